/* probe.c - probe conversations. A tokenizer's chat template is identified with one of dtrain's only if
 * both render all of them identically. Probes vary roles and their order, system messages, white space,
 * content lengths, number of turns, generation prompts, tool results and thoughts. String constants of the
 * template also serve as contents, and its numbers as conversation lengths, to trigger its conditions. */
#include "probe.h"

#include <stdlib.h>
#include <string.h>

#define GENERATE DT_CHAT_GENERATE
#define SAME "\001" /* content: the template's constants */

static const char odd[] = "It's \"odd\": <b>&amp; {{ x }} {% y %} \\n \\ #} [INST] | ~ ` @ * _ 50% $1 "
                          "tab\tline\r\n\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80.",
                  thought[] = "<think>\nwhy\n</think>\n\nso", thought_2[] = "<think>\nfirst\n\nthen\n</think>\n\ndone",
                  bare[] = "no opening</think>\nyes", none[] = "<think>\n\n</think>\n\nnothing",
                  response[] = "<tool_response>\nrain\n</tool_response>";

/* Roles: s system, d developer, u user, a assistant, t tool. Contents in the same order; missing ones are
 * generated. */
static const struct {
    const char *about;
    unsigned kind, flags;
    const char *roles, *content[8];
} forms[] = {
    {"a question", 0, GENERATE, "u", {"Hello?"}},
    {"a question without generation prompt", 0, 0, "u", {"Hello?"}},
    {"a question and an answer", 0, 0, "ua", {"Hello?", "Hi!"}},
    {"a question after an answer", 0, GENERATE, "uau", {"1+1?", "2", "And\nmore?"}},
    {"three answers", 0, 0, "uauaua", {"1+1?", "2", "2+2?", "4", "3+3?", "6."}},
    {"equal questions", 0, GENERATE, "uauau", {"a", "b", "a", "b", "a"}},
    {"white space around a question", 0, GENERATE, "u", {"  spaced\n"}},
    {"white space around contents", 0, 0, "uaua", {" q ", " x ", "\n\tq\n", "\n and \xc2\xa0\xe3\x80\x80more\t\n"}},
    {"white space inside contents", 0, 0, "ua", {"a  b\n\n\nc\t d", "e  f\n\n\ng"}},
    {"empty contents", 0, 0, "uaua", {"", "", " ", "\n"}},
    {"an empty question", 0, GENERATE, "u", {""}},
    {"signs and letters of other scripts", 0, 0, "uaua", {odd, odd, "UPPER lower", "42"}},
    {"words of the template", 0, 0, "uaua", {SAME, SAME, SAME, SAME}},
    {"thinking switched off", 0, GENERATE | DT_CHAT_NO_THINK, "uau", {"1+1?", "2", "why?"}},
    {"a system message", DT_KIND_SYSTEM, GENERATE, "su", {"Be brief.", "1+1?"}},
    {"a system message and an answer", DT_KIND_SYSTEM, 0, "sua", {"Be brief.", "1+1?", "2"}},
    {"a system message and two questions", DT_KIND_SYSTEM, GENERATE, "suau", {"Be brief.", "1+1?", "2", "And\nmore?"}},
    {"a system message and two answers", DT_KIND_SYSTEM, 0, "suaua", {"Be brief.", "1+1?", "2", "2+2?", "4"}},
    {"white space around a system message", DT_KIND_SYSTEM, 0, "sua", {" sys\n", " kept", " x "}},
    {"signs in a system message", DT_KIND_SYSTEM, 0, "sua", {odd, "q", "x"}},
    {"words of the template in a system message", DT_KIND_SYSTEM, 0, "sua", {SAME, "q", "x"}},
    {"an empty system message", DT_KIND_EMPTY_SYSTEM, 0, "sua", {"", "q", "x"}},
    {"a blank system message", DT_KIND_EMPTY_SYSTEM, GENERATE, "su", {" \n", "q"}},
    {"two questions in a row", DT_KIND_ROW, 0, "uua", {"q", "r", "x"}},
    {"two answers in a row", DT_KIND_ROW, 0, "uaa", {"q", "x", "y"}},
    {"an answer first", DT_KIND_ROW, 0, "aua", {"x", "q", "y"}},
    {"an answer before the generation prompt", DT_KIND_ROW, GENERATE, "ua", {"q", "x"}},
    {"a second system message", DT_KIND_LATER_SYSTEM, 0, "suasua", {"S", "q", "x", "T", "r", "y"}},
    {"a system message after an answer", DT_KIND_LATER_SYSTEM, 0, "uasua", {"q", "x", "T", "r", "y"}},
    {"a message of role developer", DT_KIND_DEVELOPER, 0, "dua", {"Be brief.", "q", "x"}},
    {"a tool result", DT_KIND_TOOL, 0, "uata", {"weather?", "call", "rain", "wet"}},
    {"a tool result before the generation prompt",
     DT_KIND_TOOL,
     GENERATE,
     "uat",
     {"weather?", "call", " {\"a\": 1}\n"}},
    {"two tool results", DT_KIND_TOOL, 0, "uattaua", {"weather?", "call", "rain", "wind", "wet", "thanks", "ok"}},
    {"tool results and a system message", DT_KIND_TOOL, GENERATE, "suat", {"S", "weather?", "call", "\xc3\xa9"}},
    {"thoughts", DT_KIND_THINK, 0, "ua", {"q", thought}},
    {"thoughts of earlier answers", DT_KIND_THINK, 0, "uaua", {"q", thought, "r", thought_2}},
    {"thoughts before a question", DT_KIND_THINK, GENERATE, "uau", {"q", thought, "r"}},
    {"thoughts in one answer of two", DT_KIND_THINK, 0, "uaua", {"q", thought, "r", "plain"}},
    {"thoughts without a beginning", DT_KIND_THINK, 0, "uaua", {"q", bare, "r", bare}},
    {"empty thoughts", DT_KIND_THINK, 0, "uaua", {"q", none, "r", none}},
    {"thoughts without an end", DT_KIND_THINK, 0, "ua", {"q", "<think>on"}},
    {"thoughts around a tool result", DT_KIND_THINK, 0, "uaua", {"q", thought, response, thought_2}},
    {"thoughts in a separate field", DT_KIND_THOUGHTS, 0, "ua", {"q", "x"}},
    {"thoughts in separate fields", DT_KIND_THOUGHTS, 0, "uaua", {"q", "x", "r", "\n\ny"}},
    {"thought fields before a question", DT_KIND_THOUGHTS, GENERATE, "uau", {"q", "x", "r"}},
    {"thought marks in questions", DT_KIND_MARKS, 0, "uaua", {thought, "x", "a <think> b </think>", "y"}},
    {"thought marks in a last question", DT_KIND_MARKS, GENERATE, "u", {thought}},
    {"thought marks in a system message", DT_KIND_MARKS, 0, "sua", {thought, "q", "x"}},
    {"names of a user and an assistant", DT_KIND_NAME, 0, "uaua", {"q", "x", "r", "y"}},
    {"the name of a user", DT_KIND_NAME, GENERATE, "u", {"q"}},
    {"the name of a system message", DT_KIND_SYSTEM_NAME, 0, "sua", {"S", "q", "x"}},
    {"the name of a tool", DT_KIND_TOOL_NAME, 0, "uata", {"weather?", "call", "rain", "wet"}},
    {"thoughts and white space", DT_KIND_THINK, 0, "ua", {"q", "\n<think> a\n\nb </think> \n\n c "}},
};
enum { N_FORMS = sizeof forms / sizeof forms[0], MAX_TURNS = 1030, MAX_CONSTANTS = 300 };
/* limit for one template on all probes, seconds of work; published templates need less than a million */
enum { MAX_STEPS = 100000000 };

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static dt_role role_of(char letter)
{
    return letter == 'u'   ? DT_ROLE_USER
           : letter == 'a' ? DT_ROLE_ASSISTANT
           : letter == 't' ? DT_ROLE_TOOL
                           : DT_ROLE_SYSTEM;
}

static const char *own(dt_probes *p, char *text)
{
    char **more = text ? realloc(p->owned, ((size_t)p->n_owned + 1) * sizeof *more) : NULL;
    if (!more) return free(text), NULL;
    p->owned = more;
    return p->owned[p->n_owned++] = text;
}

static dt_probe *add_probe(dt_probes *p, int n)
{
    dt_probe *more = realloc(p->item, ((size_t)p->n + 1) * sizeof *more);
    if (!more) return NULL;
    p->item = more;
    more += p->n;
    *more = (dt_probe){.n = n, .message = calloc((size_t)n, sizeof(dt_message))};
    return more->message ? p->n++, more : NULL;
}

static void set(dt_message *m, char letter, const char *text)
{
    *m = (dt_message){.role = role_of(letter), .text = text, .nbytes = strlen(text), .developer = letter == 'd'};
}

static void set_thoughts(dt_message *m)
{
    static const char thoughts[] = "\nfirst\n\nthen\n";
    if (m->role != DT_ROLE_ASSISTANT) return;
    m->thoughts = thoughts;
    m->thoughts_key = "reasoning_content";
    m->n_thoughts = sizeof thoughts - 1;
}

/* Set the name field of the messages that test names. */
static void set_name(dt_message *m, unsigned kind)
{
    m->named = m->role == DT_ROLE_SYSTEM ? kind == DT_KIND_SYSTEM_NAME
               : m->role == DT_ROLE_TOOL ? kind == DT_KIND_TOOL_NAME
                                         : kind == DT_KIND_NAME;
}

static bool has(const char *text, size_t n, const char *word) { return memmem(text, n, word, strlen(word)) != NULL; }

/* True for a string of the template that may be a content: not empty, and not changing a message's kind. */
static bool is_content(const char *text, size_t n)
{
    return n > 0 && strlen(text) == n && !has(text, n, "<think>") && !has(text, n, "</think>") &&
           !has(text, n, "tool_response>");
}

/* All such strings, concatenated. */
static const char *constants(dt_probes *p, const dt_jinja *t)
{
    char *text = NULL;
    const char *one;
    size_t size, n;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    fputs("x", out);
    for (int i = 0; i < MAX_CONSTANTS && dt_jinja_string(t, i, &one, &n); i++)
        if (is_content(one, n)) fprintf(out, " %s.", one);
    fputs(" x", out);
    return fclose(out) == 0 ? own(p, text) : (free(text), NULL);
}

static dt_err add_word(dt_probes *p, const char *word, const char *roles, unsigned flags)
{
    dt_probe *probe = add_probe(p, (int)strlen(roles));
    DT_CHECK(probe, DT_ERR_MEMORY, "no memory for probes of a chat template");
    for (int i = 0; i < probe->n; i++) set(&probe->message[i], roles[i], word);
    probe->about = *roles == 's' ? "words of the template in a system message" : "words of the template";
    probe->kind = *roles == 's' ? dt_chat_kinds(probe->message, 0, probe->n, flags) : 0;
    probe->flags = flags;
    return DT_OK;
}

/* Add each string as a separate content, which a template may compare or search for at the end. */
static dt_err add_constants(dt_probes *p, const dt_jinja *t)
{
    const char *one;
    size_t n;
    for (int i = 0; i < MAX_CONSTANTS && dt_jinja_string(t, i, &one, &n); i++) {
        if (!is_content(one, n)) continue;
        const char *word = own(p, strdup(one));
        DT_CHECK(word, DT_ERR_MEMORY, "no memory for probes of a chat template");
        DT_TRY(add_word(p, word, "ua", 0));
        DT_TRY(add_word(p, word, "uau", GENERATE));
        DT_TRY(add_word(p, word, "su", GENERATE));
        DT_TRY(add_word(p, word, "sua", 0));
    }
    return DT_OK;
}

/* A conversation of n distinct turns. The last is a question if n is odd. */
static dt_err add_turns(dt_probes *p, int n, bool system)
{
    dt_probe *probe = add_probe(p, n + system);
    for (int i = 0; probe && i < n; i++) {
        char *text;
        const char *kept =
            asprintf(&text, i % 5 == 4 ? "Turn %d.\nIt has two lines." : "turn %d", i) < 0 ? NULL : own(p, text);
        DT_CHECK(kept, DT_ERR_MEMORY, "no memory for probes of a chat template");
        set(&probe->message[i + system], i % 2 ? 'a' : 'u', kept);
    }
    DT_CHECK(probe, DT_ERR_MEMORY, "no memory for probes of a chat template");
    if (system) set(&probe->message[0], 's', "Be brief.");
    probe->about = system ? "many turns after a system message" : "many turns";
    probe->kind = system ? DT_KIND_SYSTEM : 0;
    probe->flags = n % 2 ? GENERATE : 0;
    return DT_OK;
}

/* Contents of many lengths: templates may truncate them. */
static dt_err add_long(dt_probes *p)
{
    static const char words[] = "The quick brown fox jumps over the lazy dog, 1234567890 times.\n";
    dt_probe *probe = add_probe(p, 4);
    for (int i = 0; probe && i < 4; i++) {
        const size_t n = (size_t)1 << (5 + 3 * i);
        char *text = malloc(n * (sizeof words - 1) / 8 + 1), *end = text;
        for (size_t k = 0; text && k < n / 8; k++)
            end = (char *)memcpy(end, words, sizeof words - 1) + sizeof words - 1;
        if (text) *end = '\0';
        const char *kept = own(p, text);
        DT_CHECK(kept, DT_ERR_MEMORY, "no memory for probes of a chat template");
        set(&probe->message[i], i % 2 ? 'a' : 'u', kept);
    }
    DT_CHECK(probe, DT_ERR_MEMORY, "no memory for probes of a chat template");
    probe->about = "long contents";
    const char *longest = probe->message[2].text;
    probe = add_probe(p, 2);
    DT_CHECK(probe, DT_ERR_MEMORY, "no memory for probes of a chat template");
    set(&probe->message[0], 's', longest);
    set(&probe->message[1], 'u', "q");
    probe->about = "a long system message";
    probe->kind = DT_KIND_SYSTEM;
    return DT_OK;
}

static dt_err add_forms(dt_probes *p, const char *same)
{
    for (int i = 0; i < N_FORMS; i++) {
        const int n = (int)strlen(forms[i].roles);
        dt_probe *probe = add_probe(p, n);
        DT_CHECK(probe, DT_ERR_MEMORY, "no memory for probes of a chat template");
        for (int k = 0; k < n; k++)
            set(&probe->message[k], forms[i].roles[k], *forms[i].content[k] == *SAME ? same : forms[i].content[k]);
        for (int k = 0; k < n && forms[i].kind == DT_KIND_THOUGHTS; k++) set_thoughts(&probe->message[k]);
        for (int k = 0; k < n; k++) set_name(&probe->message[k], forms[i].kind);
        probe->about = forms[i].about;
        probe->kind = forms[i].kind;
        probe->flags = forms[i].flags;
    }
    return DT_OK;
}

/* Conversation lengths: numbers in the template, which may be special cases, and some more. */
static dt_err add_lengths(dt_probes *p, const dt_jinja *t)
{
    bool wanted[MAX_TURNS + 2] = {[10] = true, [11] = true, [40] = true, [41] = true, [MAX_TURNS] = true};
    int64_t value;
    for (int i = 0; i < 200 && dt_jinja_integer(t, i, &value); i++)
        for (int64_t n = value; n <= value + 2; n++)
            if (n > 1 && n <= MAX_TURNS) wanted[n] = true;
    for (int n = 0; n <= MAX_TURNS; n++)
        if (wanted[n]) DT_TRY(add_turns(p, n, false));
    DT_TRY(add_turns(p, 20, true));
    return add_long(p);
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

static json_t *variables_of_message(const dt_message *m)
{
    static const char *const names[DT_N_ROLES] = {"system", "user", "assistant", "tool"};
    json_t *all =
        json_pack("{s:s, s:s%}", "role", m->developer ? "developer" : names[m->role], "content", m->text, m->nbytes);
    if (all && m->named) json_object_set_new(all, "name", json_string("Ann"));
    if (all && m->thoughts) json_object_set_new(all, "reasoning_content", json_stringn(m->thoughts, m->n_thoughts));
    return all;
}

static json_t *named_tokens(const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    if (info->named) return json_copy((json_t *)info->named);
    const char *bos = info->bos >= 0 ? dt_tokenizer_token(t, info->bos) : NULL;
    const char *eos = info->eos >= 0 ? dt_tokenizer_token(t, info->eos) : NULL;
    return json_pack("{s:s*, s:s*}", "bos_token", bos, "eos_token", eos);
}

/* Variables that apply_chat_template passes to a template. */
static json_t *variables_of(const dt_probe *probe, const dt_tokenizer *t)
{
    json_t *messages = json_array(), *all = named_tokens(t);
    bool ok = messages && all;
    for (int i = 0; ok && i < probe->n; i++)
        ok = json_array_append_new(messages, variables_of_message(&probe->message[i])) == 0;
    ok = ok && json_object_set_new(all, "tools", json_null()) == 0 &&
         json_object_set_new(all, "documents", json_null()) == 0 &&
         json_object_set_new(all, "add_generation_prompt", json_boolean(probe->flags & GENERATE)) == 0;
    if (ok && probe->flags & DT_CHAT_NO_THINK) ok = json_object_set_new(all, "enable_thinking", json_false()) == 0;
    ok = ok && json_object_set(all, "messages", messages) == 0;
    json_decref(messages);
    if (ok) return all;
    json_decref(all);
    return NULL;
}

/* The date that Llama 3's templates write if they receive none. */
static time_t fixed_day(void)
{
    struct tm day = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 12, .tm_isdst = -1};
    return mktime(&day);
}

/* Evaluate a template on a probe. It may refuse a conversation. For a probe with a kind, any failure
 * counts as a refusal. */
static dt_err evaluate(dt_probes *p, dt_probe *probe, const dt_jinja *t, const dt_tokenizer *tokenizer)
{
    dt_jinja_result r;
    json_t *variables = variables_of(probe, tokenizer);
    DT_CHECK(variables, DT_ERR_MEMORY, "no memory for probes of a chat template");
    dt_err err = dt_jinja_render(t, variables, fixed_day(), &r);
    json_decref(variables);
    p->dated |= r.dated;
    probe->text = r.text;
    probe->nbytes = r.nbytes;
    p->steps += r.steps;
    DT_CHECK(p->steps <= MAX_STEPS, DT_ERR_DATA, "%d evaluations of the chat template take more than %d steps",
             (int)(probe - p->item) + 1, MAX_STEPS);
    if (err != DT_ERR_DATA || (!probe->kind && !r.raised)) return err;
    dt_error_clear();
    return DT_OK;
}

static dt_err make(dt_probes *p, const dt_jinja *t, const dt_tokenizer *tokenizer)
{
    const char *same = constants(p, t);
    DT_CHECK(same, DT_ERR_MEMORY, "no memory for probes of a chat template");
    DT_TRY(add_forms(p, same));
    DT_TRY(add_constants(p, t));
    DT_TRY(add_lengths(p, t));
    for (int i = 0; i < p->n; i++) DT_TRY(evaluate(p, &p->item[i], t, tokenizer));
    return DT_OK;
}

dt_err dt_probes_make(dt_probes *p, const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    dt_jinja *jinja;
    *p = (dt_probes){0};
    DT_TRY(dt_jinja_parse(&jinja, info->chat_template_file ? info->chat_template_file : "chat_template",
                          info->chat_template, strlen(info->chat_template)));
    const dt_err err = make(p, jinja, t);
    dt_jinja_close(jinja);
    if (err != DT_OK) dt_probes_free(p);
    return err;
}

void dt_probes_free(dt_probes *p)
{
    for (int i = 0; i < p->n; i++) free(p->item[i].message), free(p->item[i].text);
    for (int i = 0; i < p->n_owned; i++) free(p->owned[i]);
    free(p->item);
    free(p->owned);
    *p = (dt_probes){0};
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

dt_err dt_chat_text(const dt_chat *c, const dt_message *messages, int n, unsigned flags, char **text, size_t *nbytes)
{
    dt_pieces pieces = {0};
    dt_err err = dt_chat_render(c, messages, n, flags, &pieces);
    *text = NULL;
    FILE *out = err == DT_OK ? open_memstream(text, nbytes) : NULL;
    for (int i = 0; out && i < pieces.n; i++) {
        const dt_span *s = &pieces.span[i];
        const char *token = s->text ? NULL : dt_tokenizer_token(c->tokenizer, s->id);
        if (s->text) fwrite(s->text, 1, s->nbytes, out);
        if (token) fputs(token, out);
    }
    if (err == DT_OK && (!out || fclose(out) != 0))
        err = dt_fail(DT_ERR_MEMORY, "no memory for the text of a conversation");
    dt_pieces_free(&pieces);
    if (err == DT_OK) return DT_OK;
    free(*text);
    *text = NULL;
    return err;
}

static dt_err compare_from(const dt_probe *probe, const dt_chat *c, int from, bool *same, size_t *n_same)
{
    char *text;
    size_t n = 0;
    const dt_err err = dt_chat_text(c, probe->message + from, probe->n - from, probe->flags, &text, &n);
    *n_same = 0;
    if (err == DT_ERR_DATA) { /* unsupported message: dtrain refuses such records anyway */
        dt_error_clear();
        *same = true;
        return DT_OK;
    }
    DT_TRY(err);
    while (probe->text && *n_same < n && *n_same < probe->nbytes && text[*n_same] == probe->text[*n_same]) ++*n_same;
    *same = probe->text && *n_same == n && n == probe->nbytes;
    free(text);
    return DT_OK;
}

/* Templates that merge the system message into a final question omit it if an answer is last. dtrain
 * merges it into the last question, so the probe is also compared without it. */
static dt_err compare(const dt_probe *probe, const dt_chat *c, bool *same, size_t *n_same)
{
    const bool left_out = c->form.system == DT_SYSTEM_LAST_USER && probe->message[0].role == DT_ROLE_SYSTEM &&
                          probe->message[probe->n - 1].role != DT_ROLE_USER;
    DT_TRY(compare_from(probe, c, 0, same, n_same));
    return *same || !left_out ? DT_OK : compare_from(probe, c, 1, same, n_same);
}

dt_err dt_probes_match(const dt_probes *p, const dt_chat *c, dt_probe_match *m)
{
    *m = (dt_probe_match){0};
    for (int i = 0; i < p->n; i++) {
        bool same = false;
        size_t n = 0;
        const dt_probe *probe = &p->item[i];
        DT_TRY(compare(probe, c, &same, &n));
        if (probe->kind == 0) m->n_same += n;
        if (same) continue;
        const bool refused = !probe->text;
        if (probe->kind == 0 || (probe->kind == DT_KIND_SYSTEM && !refused)) {
            if (!m->differs) m->differs = probe;
        } else {
            m->refused |= probe->kind;
        }
    }
    return DT_OK;
}

void dt_probe_excerpt(const char *text, size_t nbytes, size_t at, char *out)
{
    enum { BEFORE = 28, AFTER = 24, ROOM = 120 };
    size_t from = at > BEFORE ? at - BEFORE : 0, to = nbytes - at > AFTER ? at + AFTER : nbytes, n = 0;
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80) from--;
    while (to < nbytes && ((unsigned char)text[to] & 0xc0) == 0x80) to++;
    if (from > 0) n += (size_t)snprintf(out, ROOM, "...");
    for (size_t i = from; i < to && n + 8 < ROOM; i++) {
        const char c = text[i];
        const char *escaped = c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : c == '"' ? "\\\"" : NULL;
        if (escaped)
            n += (size_t)snprintf(out + n, ROOM - n, "%s", escaped);
        else if ((unsigned char)c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(out + n, ROOM - n, "\\x%02x", (unsigned char)c);
        else
            out[n++] = c;
    }
    snprintf(out + n, 8, "%s", to < nbytes ? "..." : "");
}
