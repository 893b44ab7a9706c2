/* chat.c - opening a chat template cuts its texts at the tokens of the tokenizer. Rendering then only
 * lists pieces. */
#include "chat_private.h"

#include "dtrain/text/space.h"
#include "dtrain/io/io.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err add_part(dt_parts *p, dt_span span)
{
    if (span.text && span.nbytes == 0) return DT_OK;
    dt_span *more = realloc(p->span, ((size_t)p->n + 1) * sizeof *more);
    DT_CHECK(more, DT_ERR_MEMORY, "no memory for a chat template");
    p->span = more;
    p->span[p->n++] = span;
    return DT_OK;
}

/* Length of the token at text, 0: none. *id -1: {bos} or {eos} of a tokenizer that lacks the token; it
 * stands for no text. */
static size_t token_here(const dt_tokenizer *t, const char *text, int32_t *id)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    if (strncmp(text, "{bos}", 5) == 0) return *id = info->bos, 5;
    if (strncmp(text, "{eos}", 5) == 0) return *id = info->eos, 5;
    if (*text != '<' && *text != '[') return 0;
    const char *close = strchr(text, *text == '<' ? '>' : ']');
    char name[64];
    const size_t n = close ? (size_t)(close - text) + 1 : 0;
    if (n < 3 || n >= sizeof name) return 0;
    memcpy(name, text, n);
    name[n] = '\0';
    *id = dt_tokenizer_find(t, name);
    return *id >= 0 && dt_tokenizer_is_special(t, *id) ? n : 0;
}

/* Length of what looks like a special token, whether or not the tokenizer has it; 0: plain text. */
static size_t token_meant(const dt_chat *c, const char *text)
{
    const bool bracket = *text == '[';
    if (bracket ? !c->form.brackets : strncmp(text, "<|", 2) != 0) return 0;
    const size_t n = strcspn(text, bracket ? "] \n" : "> \n");
    if (bracket) return text[n] == ']' ? n + 1 : 0;
    return text[n] == '>' && n > 3 && text[n - 1] == '|' ? n + 1 : 0;
}

static void note_missing(dt_chat *c, const char *text)
{
    char name[64];
    const size_t n = token_meant(c, text), have = strlen(c->missing);
    if (n == 0 || n >= sizeof name) return;
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    if (dt_tokenizer_find(c->tokenizer, name) >= 0 || strstr(c->missing, name)) return;
    if (have + n + 3 < sizeof c->missing)
        snprintf(c->missing + have, sizeof c->missing - have, "%s%s", have ? ", " : "", name);
}

/* Cut a text of the template into spans: {bos}, {eos} and special tokens as ids, the rest as text. */
static dt_err cut(dt_chat *c, const char *text, dt_parts *p)
{
    const char *from = text ? text : "";
    for (const char *at = from; *at;) {
        int32_t id;
        const size_t n = token_here(c->tokenizer, at, &id);
        if (n == 0) {
            note_missing(c, at++);
            continue;
        }
        DT_TRY(add_part(p, (dt_span){.text = from, .nbytes = (size_t)(at - from)}));
        if (id >= 0) DT_TRY(add_part(p, (dt_span){.id = id}));
        from = at += n;
    }
    return add_part(p, (dt_span){.text = from, .nbytes = strlen(from)});
}

static dt_err cut_turn(dt_chat *c, const dt_turn_template *f, dt_turn_parts *t)
{
    DT_TRY(cut(c, f->prefix, &t->prefix));
    DT_TRY(cut(c, f->lead, &t->lead));
    DT_TRY(cut(c, f->end, &t->end));
    DT_TRY(cut(c, f->after, &t->after));
    DT_TRY(cut(c, f->open, &t->open));
    return cut(c, f->close, &t->close);
}

/* A template name equal to name except for case and punctuation, or with it as prefix: llama3 is llama-3. */
static const char *near_name(const char *name)
{
    const char *one, *about, *longer = NULL;
    for (int i = 0; dt_chat_named(i, &one, &about); i++) {
        const char *a = name, *b = one;
        for (;; a++, b++) {
            while (*a && !isalnum((unsigned char)*a)) a++;
            while (*b && !isalnum((unsigned char)*b)) b++;
            if (!*a || tolower((unsigned char)*a) != tolower((unsigned char)*b)) break;
        }
        if (!*a && !*b) return one;
        if (!*a && !longer) longer = one;
    }
    return longer;
}

static dt_err unknown_name(const char *name)
{
    char names[512] = "";
    const char *one, *about;
    for (int i = 0, n = 0; dt_chat_named(i, &one, &about) && n < (int)sizeof names; i++)
        n += snprintf(names + n, sizeof names - (size_t)n, "%s%s", i ? ", " : "", one);
    const char *near = near_name(name);
    return dt_fail(DT_ERR_USAGE, "template: expected auto, %s, or a JSON file, found %s%s%s%s", names, name,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static dt_err find_form(dt_chat *c, const char *name)
{
    DT_CHECK(!dt_has_ending(name, ".jinja") && !dt_has_ending(name, ".j2"), DT_ERR_USAGE,
             "template: expected auto, a name or a JSON file, found the Jinja file %s: copy it into the tokenizer's "
             "directory as chat_template.jinja and set the template to auto",
             name);
    if (*name == '{') return dt_chat_template_parse("template", name, strlen(name), &c->form, &c->root);
    if (strchr(name, '/') || dt_has_ending(name, ".json")) return dt_chat_template_read(name, &c->form, &c->root);
    const dt_chat_template *form = dt_chat_template_find(name);
    if (!form) return unknown_name(name);
    c->form = *form;
    return DT_OK;
}

static dt_err open_chat(dt_chat *c, const char *name)
{
    DT_TRY(find_form(c, name));
    DT_TRY(cut(c, c->form.begin, &c->begin));
    DT_TRY(cut(c, c->form.think_off, &c->think_off));
    DT_TRY(cut(c, c->form.generation, &c->generation));
    for (int r = 0; r < DT_N_ROLES; r++) DT_TRY(cut_turn(c, &c->form.turns[r], &c->turns[r]));
    DT_TRY(dt_wrap_probe(&c->wrap, c->tokenizer));
    const char *user = c->form.turns[DT_ROLE_USER].prefix;
    c->writes_bos = (c->form.begin && strstr(c->form.begin, "{bos}")) || (user && strncmp(user, "{bos}", 5) == 0);
    c->wrapped = !c->writes_bos;
    return DT_OK;
}

dt_err dt_chat_open_named(dt_chat **out, const char *name, const dt_tokenizer *t)
{
    *out = NULL;
    dt_chat *c = calloc(1, sizeof *c);
    DT_CHECK(c, DT_ERR_MEMORY, "no memory for a chat template");
    c->tokenizer = t;
    const dt_err err = open_chat(c, name);
    if (err != DT_OK) {
        dt_chat_close(c);
        return err;
    }
    *out = c;
    return DT_OK;
}

/* True if the template's Jinja form is exactly this text. */
static bool writes(const dt_chat *c, const char *image, const char *jinja)
{
    char *text = NULL;
    if (dt_chat_jinja(c, image, &text) != DT_OK) dt_error_clear();
    const bool same = text && strcmp(text, jinja) == 0;
    free(text);
    return same;
}

/* The template from which dtrain wrote the tokenizer's Jinja file. NULL: not written by dtrain, or changed since. */
static dt_chat *open_own_jinja(const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    if (!info->chat_template || !dt_chat_jinja_claims(info->chat_template)) return NULL;
    char *spec = dt_chat_jinja_spec(info->chat_template), *image = dt_chat_jinja_image(info->chat_template);
    dt_chat *c = NULL;
    if (spec && dt_chat_open_named(&c, spec, t) != DT_OK) dt_error_clear();
    if (c && !writes(c, image, info->chat_template)) c->wrapped = false;
    if (!c || !writes(c, image, info->chat_template)) {
        DT_WARN("the chat_template in %s was changed after dtrain wrote it, or an earlier version of dtrain wrote it: "
                "its first line is ignored",
                dt_chat_place(t));
        dt_chat_close(c);
        c = NULL;
    }
    free(image);
    free(spec);
    return c;
}

char *dt_chat_written(const dt_tokenizer *t)
{
    char *spec = NULL;
    dt_chat *c = open_own_jinja(t);
    if (c && dt_chat_spec(c, &spec) != DT_OK) dt_error_clear();
    dt_chat_close(c);
    return spec;
}

/* The template equivalent to the tokenizer's own one, or plain if it has none. */
static dt_err open_automatic(dt_chat **out, const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    *out = open_own_jinja(t);
    if (*out) return DT_OK;
    if (info->chat_template) {
        DT_TRY(dt_chat_recognise(out, t));
        if ((*out)->dated)
            DT_WARN("the chat template in %s writes the current date; dtrain always writes 26 July 2024",
                    dt_chat_place(t));
        return DT_OK;
    }
    DT_CHECK(!info->chat_template_names, DT_ERR_USAGE,
             "template: %s has the chat templates %s, but none is named default: choose one of dtrain's templates "
             "(dtrain-data --help lists them) or a JSON file",
             dt_chat_place(t), info->chat_template_names);
    return dt_chat_open_named(out, "plain", t);
}

static dt_err name_source(dt_chat *c, const char *name)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(c->tokenizer);
    const bool automatic = strcmp(name, "auto") == 0;
    int n;
    if (automatic && info->chat_template)
        n = asprintf(&c->source, "%s (%s%s%s)", c->form.name, dt_chat_place(c->tokenizer),
                     info->chat_template_file ? "/" : "", info->chat_template_file ? info->chat_template_file : "");
    else if (automatic)
        n = asprintf(&c->source, "%s (%s has no chat template)", c->form.name, dt_chat_place(c->tokenizer));
    else
        n = asprintf(&c->source, "%s (by name)", c->form.name);
    if (n < 0) c->source = NULL;
    DT_CHECK(c->source, DT_ERR_MEMORY, "no memory for a chat template");
    return DT_OK;
}

const char *dt_chat_place(const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    return info->directory ? info->directory : info->name;
}

/* Datasets and checkpoints record a template's name. If `auto` detects the same template, use its BOS
 * handling, so that the ids are the same. */
static dt_err wrap_as_own(dt_chat *c)
{
    dt_chat *own = NULL;
    char *spec = NULL, *own_spec = NULL;
    if (!c->wrapped || c->wrap.n_before == 0 || !dt_tokenizer_get_info(c->tokenizer)->chat_template) return DT_OK;
    dt_err err = dt_chat_recognise(&own, c->tokenizer);
    if (err == DT_ERR_USAGE) { /* no equivalent template in dtrain */
        dt_error_clear();
        return DT_OK;
    }
    if (err == DT_OK) err = dt_chat_spec(own, &own_spec);
    if (err == DT_OK) err = dt_chat_spec(c, &spec);
    if (err == DT_OK && strcmp(spec, own_spec) == 0) c->wrapped = own->wrapped;
    free(spec);
    free(own_spec);
    dt_chat_close(own);
    return err;
}

static dt_err open_by_name(dt_chat **out, const char *name, const dt_tokenizer *t)
{
    DT_TRY(dt_chat_open_named(out, name, t));
    return wrap_as_own(*out);
}

dt_err dt_chat_open(dt_chat **out, const char *name, const dt_tokenizer *t)
{
    *out = NULL;
    dt_err err = strcmp(name, "auto") == 0 ? open_automatic(out, t) : open_by_name(out, name, t);
    if (err == DT_OK) err = name_source(*out, name);
    if (err == DT_OK) return DT_OK;
    dt_chat_close(*out);
    *out = NULL;
    return err;
}

void dt_chat_close(dt_chat *c)
{
    if (!c) return;
    free(c->begin.span);
    free(c->think_off.span);
    free(c->generation.span);
    free(c->source);
    for (int r = 0; r < DT_N_ROLES; r++) {
        const dt_turn_parts *t = &c->turns[r];
        const dt_parts *all[] = {&t->prefix, &t->lead, &t->end, &t->after, &t->open, &t->close};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->span);
    }
    json_decref(c->root);
    free(c);
}

const char *dt_chat_name(const dt_chat *c) { return c->form.name; }
const char *dt_chat_source(const dt_chat *c) { return c->source; }

void dt_chat_warn(const dt_chat *c)
{
    if (!c->missing[0]) return;
    DT_WARN("template %s: the tokenizer lacks %s: each is encoded as several text tokens%s", c->form.name, c->missing,
            dt_chat_end_token(c) < 0 ? ", and the tokenizer's end-of-text token ends the last answer in training" : "");
}

/* JSON on one line. Characters that start a comment or a variable in configuration files occur only inside
 * strings; they are written as escapes. */
static char *spec_of_json(const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII), *spec = NULL;
    size_t size;
    FILE *out = text ? open_memstream(&spec, &size) : NULL;
    for (const char *p = text; out && *p; p++)
        if (strchr("#;$", *p))
            fprintf(out, "\\u%04x", (unsigned)*p);
        else
            fputc(*p, out);
    if (out && fclose(out) != 0) {
        free(spec);
        spec = NULL;
    }
    free(text);
    return spec;
}

dt_err dt_chat_spec(const dt_chat *c, char **spec)
{
    json_t *copy = c->root ? json_copy(c->root) : NULL;
    if (copy && !json_object_get(copy, "name")) json_object_set_new(copy, "name", json_string(c->form.name));
    *spec = !c->root ? strdup(c->form.name) : copy ? spec_of_json(copy) : NULL;
    json_decref(copy);
    DT_CHECK(*spec, DT_ERR_MEMORY, "no memory for a chat template");
    return DT_OK;
}

const char *dt_chat_input_join(const dt_chat *c) { return c->form.input_join ? c->form.input_join : "\n"; }
const char *dt_chat_input_system(const dt_chat *c) { return c->form.input_system; }
const dt_wrap *dt_chat_wrap(const dt_chat *c) { return c->wrapped ? &c->wrap : NULL; }
void dt_chat_for_images(dt_chat *c) { c->wrapped = !c->writes_bos; }

int32_t dt_chat_end_token(const dt_chat *c)
{
    const dt_parts *end = &c->turns[DT_ROLE_ASSISTANT].end;
    for (int i = end->n; i-- > 0;)
        if (!end->span[i].text) return end->span[i].id;
    return -1;
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

typedef struct render {
    const dt_chat *c;
    const dt_message *message;
    int n;
    unsigned flags;
    int last_user;  /* index of the last user message */
    int last_query; /* likewise, not counting tool results in user messages; if there is none, of the last message */
    dt_pieces *out;
} render;

/* Append parts of the template as pieces, all targets or all not. */
static dt_err put(render *r, const dt_parts *p, bool target)
{
    for (int i = 0; i < p->n; i++)
        DT_TRY(p->span[i].text ? dt_pieces_text(r->out, p->span[i].text, p->span[i].nbytes, target)
                               : dt_pieces_token(r->out, p->span[i].id, target));
    return DT_OK;
}

static const char *find_last(const char *text, size_t n, const char *word)
{
    const size_t len = strlen(word);
    for (size_t i = n < len ? 0 : n - len + 1; i-- > 0;)
        if (memcmp(text + i, word, len) == 0) return text + i;
    return NULL;
}

typedef struct view {
    const char *text;
    size_t n;
} view;

static view without_newlines(view v)
{
    while (v.n > 0 && *v.text == '\n') v.text++, v.n--;
    while (v.n > 0 && v.text[v.n - 1] == '\n') v.n--;
    return v;
}

/* Split "<think>THOUGHTS</think>ANSWER" as Qwen3's template does: thoughts end at the first </think>, the
 * answer starts after the last one. */
static bool part_thoughts(view *answer, view *thoughts)
{
    static const char begin[] = "<think>", end[] = "</think>";
    const char *stop = memmem(answer->text, answer->n, end, strlen(end));
    *thoughts = (view){answer->text, 0};
    if (!stop) return false;
    *thoughts = without_newlines((view){answer->text, (size_t)(stop - answer->text)});
    const char *start = find_last(thoughts->text, thoughts->n, begin);
    if (start) thoughts->n -= (size_t)(start + strlen(begin) - thoughts->text), thoughts->text = start + strlen(begin);
    *thoughts = without_newlines(*thoughts);
    const char *after = find_last(answer->text, answer->n, end) + strlen(end);
    answer->n -= (size_t)(after - answer->text);
    answer->text = after;
    while (answer->n > 0 && *answer->text == '\n') answer->text++, answer->n--;
    return true;
}

static dt_err put_view(render *r, view v, bool target) { return dt_pieces_text(r->out, v.text, v.n, target); }

/* Thoughts are kept only in answers to the last question, in normalised form. The last answer always has a
 * thoughts block. */
static dt_err put_thoughts(render *r, int i, view *answer)
{
    static const char begin[] = "<think>\n", end[] = "\n</think>\n\n";
    const dt_message *m = &r->message[i];
    const bool target = m->learn & DT_LEARN_CONTENT, last = i + 1 == r->n;
    view thoughts = {m->thoughts, m->n_thoughts};
    const bool has = m->thoughts ? thoughts.n > 0 : part_thoughts(answer, &thoughts);
    if (i <= r->last_query || !(last || thoughts.n)) return DT_OK;
    if (m->thoughts) thoughts = without_newlines(thoughts);
    while (answer->n > 0 && *answer->text == '\n') answer->text++, answer->n--;
    if (!has) return put(r, &r->c->think_off, false);
    DT_TRY(put_view(r, (view){begin, strlen(begin)}, target));
    DT_TRY(put_view(r, thoughts, target));
    return put_view(r, (view){end, strlen(end)}, target);
}

static dt_err put_content(render *r, int i, bool after_system)
{
    const dt_message *m = &r->message[i];
    const bool answer = m->role == DT_ROLE_ASSISTANT, trim = r->c->form.trim || (answer && r->c->form.trim_answer);
    view v = {m->text, m->nbytes};
    if (r->c->form.think_off && answer) DT_TRY(put_thoughts(r, i, &v));
    const size_t before = trim && !after_system ? dt_space_before(v.text, v.n) : 0;
    v = (view){v.text + before, v.n - before};
    if (trim) v.n = dt_space_trimmed(v.text, v.n);
    return put_view(r, v, m->learn & DT_LEARN_CONTENT);
}

static bool is_blank(const dt_message *m) { return dt_space_trimmed(m->text, m->nbytes) == 0; }

/* If the question after a system message is all white space, the text between them is trimmed with it. */
static dt_err put_trimmed(render *r, const dt_parts *p)
{
    for (int i = 0; i < p->n; i++) {
        dt_span s = p->span[i];
        if (s.text && i + 1 == p->n) s.nbytes = dt_space_trimmed(s.text, s.nbytes);
        DT_TRY(s.text ? dt_pieces_text(r->out, s.text, s.nbytes, false) : dt_pieces_token(r->out, s.id, false));
    }
    return DT_OK;
}

/* inner: the system message to merge into this turn, or NULL. */
static dt_err put_turn(render *r, int i, const dt_message *inner)
{
    const dt_message *m = &r->message[i];
    const dt_turn_parts *t = &r->c->turns[m->role], *system = &r->c->turns[DT_ROLE_SYSTEM];
    if (i == 0 || m[-1].role != m->role) DT_TRY(put(r, &t->open, m->learn & DT_LEARN_HEADER));
    DT_TRY(put(r, &t->prefix, m->learn & DT_LEARN_HEADER));
    if (inner) {
        DT_TRY(put(r, &system->prefix, false));
        DT_TRY(dt_pieces_text(r->out, inner->text, inner->nbytes, false));
        DT_TRY(r->c->form.trim && is_blank(m) ? put_trimmed(r, &system->after) : put(r, &system->after, false));
    }
    DT_TRY(put(r, &t->lead, m->learn & DT_LEARN_CONTENT));
    DT_TRY(put_content(r, i, inner != NULL));
    DT_TRY(put(r, &t->end, m->learn & DT_LEARN_CONTENT));
    DT_TRY(put(r, &t->after, m->learn & DT_LEARN_AFTER));
    return i + 1 == r->n || m[1].role != m->role ? put(r, &t->close, m->learn & DT_LEARN_AFTER) : DT_OK;
}

static dt_err put_system(render *r, const dt_message *m)
{
    const dt_turn_parts *t = &r->c->turns[DT_ROLE_SYSTEM];
    DT_TRY(put(r, &t->open, false));
    DT_TRY(put(r, &t->prefix, false));
    DT_TRY(dt_pieces_text(r->out, m->text, m->nbytes, false));
    DT_TRY(put(r, &t->end, false));
    DT_TRY(put(r, &t->after, false));
    return put(r, &t->close, false);
}

/* Render the conversation: begin, then each turn as  open prefix lead CONTENT end after close. open and
 * close enclose consecutive turns of a role. A default or merged system message goes where the template
 * puts it. */
static dt_err put_all(render *r)
{
    const bool inside = r->c->form.system != DT_SYSTEM_TURN, late = r->c->form.system == DT_SYSTEM_LAST_USER;
    const char *words = r->n > 0 && r->message[0].role == DT_ROLE_SYSTEM ? NULL : r->c->form.default_system;
    const dt_message system = {.role = DT_ROLE_SYSTEM, .text = words, .nbytes = words ? strlen(words) : 0};
    const dt_message *waiting = inside && words ? &system : NULL;
    DT_TRY(put(r, &r->c->begin, false));
    if (words && !inside) DT_TRY(put_system(r, &system));
    for (int i = 0; i < r->n; i++) {
        const dt_message *m = &r->message[i];
        if (inside && m->role == DT_ROLE_SYSTEM) {
            DT_CHECK(!waiting && r->last_user > i, DT_ERR_DATA,
                     "message %d: the template %s merges the system message into a user message: expected one system "
                     "message, followed by a user message",
                     i, r->c->form.name);
            waiting = m;
            continue;
        }
        const bool takes = waiting && m->role == DT_ROLE_USER && (!late || i == r->last_user);
        DT_TRY(put_turn(r, i, takes ? waiting : NULL));
        if (takes) waiting = NULL;
    }
    if (!(r->flags & DT_CHAT_GENERATE)) return DT_OK;
    DT_TRY(put(r, &r->c->turns[DT_ROLE_ASSISTANT].open, false));
    DT_TRY(put(r, &r->c->turns[DT_ROLE_ASSISTANT].prefix, false));
    if (r->c->generation.n > 0) return put(r, &r->c->generation, false);
    return r->flags & DT_CHAT_NO_THINK ? put(r, &r->c->think_off, false) : DT_OK;
}

/* True for a tool result written as a user message. */
static bool is_tool_response(const dt_message *m)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    const size_t n_begin = strlen(begin), n_end = strlen(end);
    return m->nbytes >= n_end && memcmp(m->text, begin, n_begin) == 0 &&
           memcmp(m->text + m->nbytes - n_end, end, n_end) == 0;
}

/* Thoughts in a separate field require a template that supports them. */
static dt_err check_thoughts(const dt_chat *c, const dt_message *messages, int n)
{
    for (int i = 0; i < n && !c->form.think_off; i++)
        DT_CHECK(messages[i].n_thoughts == 0, DT_ERR_DATA,
                 "message %d: %s: the template %s has no block for thoughts: choose one that has it (--template "
                 "qwen3), put thoughts into the text of the answer, or remove the field to train on the answer only",
                 i, messages[i].thoughts_key, c->form.name);
    return DT_OK;
}

dt_err dt_chat_render(const dt_chat *c, const dt_message *messages, int n, unsigned flags, dt_pieces *out)
{
    DT_TRY(check_thoughts(c, messages, n));
    DT_TRY(dt_chat_check_kinds(c, messages, n, flags));
    render r = {.c = c, .message = messages, .n = n, .flags = flags, .last_user = -1, .last_query = n - 1, .out = out};
    for (int i = 0; i < n; i++)
        if (messages[i].role == DT_ROLE_USER) r.last_user = i;
    int query = n - 1;
    while (query >= 0 && (messages[query].role != DT_ROLE_USER || is_tool_response(&messages[query]))) query--;
    if (query >= 0) r.last_query = query;
    return put_all(&r);
}

dt_err dt_chat_encode(const dt_chat *c, dt_encoder *e, const dt_message *messages, int n, unsigned flags, dt_ids *ids)
{
    dt_pieces p = {0};
    bool parted;
    dt_err err = dt_chat_render(c, messages, n, flags, &p);
    if (err == DT_OK) err = dt_pieces_encode(e, c->tokenizer, &p, dt_chat_wrap(c), ids, NULL, &parted);
    dt_pieces_free(&p);
    return err;
}
