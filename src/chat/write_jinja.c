/* write_jinja.c - exports a template as Jinja for transformers: the rules of chat.c in Jinja, over the same
 * texts. The template of a vision-language model sets `image`, the placeholder that replaces message parts
 * of type image.
 *
 * All tokens are written as text, including {bos}, {eos} and the tokenizer's prefix, because
 * apply_chat_template adds no tokens. The file thus does not depend on token settings elsewhere in the
 * directory. The first line is a comment with the template's name, or the JSON of a user-defined one;
 * dt_chat_open reads it back. */
#include "chat_private.h"

#include "dtrain/text/space.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char comment[] = "{#- Written by dtrain. chat_template = ", comment_end[] = " #}\n";
static const char image_begin[] = "{%- set image = '", image_end[] = "' %}\n";
static const char *const role_names[DT_N_ROLES] = {"system", "user", "assistant", "tool"};

typedef struct writer {
    FILE *out;
    const dt_chat *c;
    const char *image_text; /* NULL: no images */
} writer;

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Write text inside single quotes. */
static void put_bytes(writer *w, const char *text, size_t n)
{
    for (const unsigned char *p = (const unsigned char *)text, *end = p + n; p < end; p++) {
        if (*p == '\'' || *p == '\\')
            fprintf(w->out, "\\%c", *p);
        else if (*p == '\n')
            fputs("\\n", w->out);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(w->out, "\\x%02x", *p);
        else
            fputc(*p, w->out);
    }
}

static void put_token(writer *w, int32_t id)
{
    const char *text = dt_tokenizer_token(w->c->tokenizer, id);
    if (text) put_bytes(w, text, strlen(text));
}

/* trim_end: strip white space at the end of the last part. */
static void put_parts(writer *w, const dt_parts *p, bool trim_end)
{
    for (int i = 0; i < p->n; i++) {
        const dt_span *s = &p->span[i];
        const bool trim = trim_end && i + 1 == p->n;
        if (s->text)
            put_bytes(w, s->text, trim ? dt_space_trimmed(s->text, s->nbytes) : s->nbytes);
        else
            put_token(w, s->id);
    }
}

/* Write one expression for several parts; nothing if they are empty. */
static void say(writer *w, const dt_parts *one, const dt_parts *two)
{
    if (one->n + (two ? two->n : 0) == 0) return;
    fputs("{{- '", w->out);
    put_parts(w, one, false);
    if (two) put_parts(w, two, false);
    fputs("' }}\n", w->out);
}

static void put_quoted(writer *w, const char *text)
{
    fputc('\'', w->out);
    put_bytes(w, text, strlen(text));
    fputc('\'', w->out);
}

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

static void put_open(writer *w, dt_role role)
{
    const dt_parts *open = &w->c->turns[role].open;
    if (open->n == 0) return;
    fprintf(w->out, "{%%- if loop.first or roles[loop.previtem.role] != '%s' %%}\n", role_names[role]);
    say(w, open, NULL);
    fputs("{%- endif %}\n", w->out);
}

static void put_close(writer *w, dt_role role)
{
    const dt_parts *close = &w->c->turns[role].close;
    if (close->n == 0) return;
    fprintf(w->out, "{%%- if loop.last or roles[loop.nextitem.role] != '%s' %%}\n", role_names[role]);
    say(w, close, NULL);
    fputs("{%- endif %}\n", w->out);
}

/* Output before the content of answers, for a template that supports thoughts. */
static void put_thoughts(writer *w)
{
    fputs("{%- set given = message.reasoning_content is string %}\n"
          "{%- set thinks = message.reasoning_content | length > 0 if given else '</think>' in content %}\n"
          "{%- set thoughts = message.reasoning_content if given else "
          "content.split('</think>')[0].strip('\\n').split('<think>')[-1].strip('\\n') if thinks else '' %}\n"
          "{%- set content = content.split('</think>')[-1].lstrip('\\n') if thinks and not given else content %}\n"
          "{%- if loop.index0 > ns.last_query and (loop.last or thoughts) %}\n"
          "{%- set content = content.lstrip('\\n') %}\n"
          "{{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' if thinks else '",
          w->out);
    put_parts(w, &w->c->think_off, false);
    fputs("' }}\n{%- endif %}\n", w->out);
}

/* Write the pending system message into this user turn. Leading white space of the user's content is then kept. */
static void put_inner_system(writer *w)
{
    const dt_chat *c = w->c;
    const dt_turn_parts *system = &c->turns[DT_ROLE_SYSTEM];
    fprintf(w->out, "{%%- set takes = ns.system is not none%s %%}\n{%%- if takes %%}\n",
            c->form.system == DT_SYSTEM_LAST_USER ? " and loop.index0 == ns.last_user" : "");
    say(w, &system->prefix, NULL);
    fputs("{{- ns.system }}\n", w->out);
    if (c->form.trim && system->after.n > 0) {
        fputs("{{- '", w->out);
        put_parts(w, &system->after, false);
        fputs("' if content.strip() else '", w->out);
        put_parts(w, &system->after, true);
        fputs("' }}\n", w->out);
    } else {
        say(w, &system->after, NULL);
    }
    fputs("{%- set ns.system = none %}\n{%- endif %}\n", w->out);
}

static void put_turn(writer *w, dt_role role)
{
    const dt_chat *c = w->c;
    const dt_turn_parts *t = &c->turns[role];
    const bool answer = role == DT_ROLE_ASSISTANT, trim = c->form.trim || (answer && c->form.trim_answer);
    const bool inner = role == DT_ROLE_USER && c->form.system != DT_SYSTEM_TURN;
    put_open(w, role);
    say(w, &t->prefix, NULL);
    if (inner) put_inner_system(w);
    say(w, &t->lead, NULL);
    if (answer && c->form.think_off) put_thoughts(w);
    fprintf(w->out, "{{- content%s }}\n", !trim ? "" : inner ? ".rstrip() if takes else content.strip()" : ".strip()");
    say(w, &t->end, &t->after);
    put_close(w, role);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void put_roles(writer *w)
{
    const char *name;
    dt_role role;
    fputs("{%- set roles = {", w->out);
    for (int i = 0; dt_role_named(i, &name, &role); i++)
        fprintf(w->out, "%s'%s': '%s'", i ? ", " : "", name, role_names[role]);
    fputs("} %}\n", w->out);
}

/* Extract the text of a message. Images of a message with parts come first, as in dt_messages_read. */
static void put_content(writer *w)
{
    const char *images =
        "(image ~ '\\n') * (message.content | selectattr('type', 'equalto', 'image') | list | length) ~ ";
    fprintf(w->out,
            "{%%- set content = message.content if message.content is string else %smessage.content | "
            "map(attribute='text') | join %%}\n",
            w->image_text ? images : "");
}

/* Find the last question. With thoughts: excluding tool results, and defaulting to the last message. */
static void put_first_look(writer *w)
{
    const dt_chat_template *f = &w->c->form;
    if (f->system == DT_SYSTEM_TURN && !f->think_off) return;
    fputs("{%- set ns = namespace(system=none, last_user=-1, last_query=messages | length - 1) %}\n"
          "{%- for message in messages %}\n",
          w->out);
    put_content(w);
    fputs("{%- if roles[message.role] == 'user' %}\n{%- set ns.last_user = loop.index0 %}\n", w->out);
    if (f->think_off)
        fputs("{%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}"
              "{%- set ns.last_query = loop.index0 %}{%- endif %}\n",
              w->out);
    fputs("{%- endif %}\n{%- endfor %}\n", w->out);
}

static void put_default_system(writer *w)
{
    const dt_chat_template *f = &w->c->form;
    const dt_turn_parts *t = &w->c->turns[DT_ROLE_SYSTEM];
    if (!f->default_system) return;
    fputs("{%- if roles[messages[0].role] != 'system' %}\n", w->out);
    if (f->system != DT_SYSTEM_TURN) {
        fputs("{%- set ns.system = ", w->out);
        put_quoted(w, f->default_system);
        fputs(" %}\n", w->out);
    } else {
        say(w, &t->open, &t->prefix);
        fputs("{{- ", w->out);
        put_quoted(w, f->default_system);
        fputs(" }}\n", w->out);
        say(w, &t->end, &t->after);
        say(w, &t->close, NULL);
    }
    fputs("{%- endif %}\n", w->out);
}

static void put_waiting_system(writer *w)
{
    fputs("{%- if ns.system is not none or ns.last_user <= loop.index0 %}"
          "{{- raise_exception('expected one system message, followed by a user\\'s') }}{%- endif %}\n"
          "{%- set ns.system = content %}\n",
          w->out);
}

static void put_messages(writer *w)
{
    fputs("{%- for message in messages %}\n"
          "{%- if message.role not in roles %}{{- raise_exception('unknown role ' ~ message.role) }}{%- endif %}\n"
          "{%- set role = roles[message.role] %}\n",
          w->out);
    put_content(w);
    for (int r = 0; r < DT_N_ROLES; r++) {
        fprintf(w->out, "{%%- %s role == '%s' %%}\n", r ? "elif" : "if", role_names[r]);
        if (r == DT_ROLE_SYSTEM && w->c->form.system != DT_SYSTEM_TURN)
            put_waiting_system(w);
        else
            put_turn(w, (dt_role)r);
    }
    fputs("{%- endif %}\n{%- endfor %}\n", w->out);
}

static void put_generation(writer *w)
{
    const dt_turn_parts *t = &w->c->turns[DT_ROLE_ASSISTANT];
    fputs("{%- if add_generation_prompt %}\n", w->out);
    say(w, &t->open, &t->prefix);
    if (w->c->generation.n > 0) {
        say(w, &w->c->generation, NULL);
    } else if (w->c->think_off.n > 0) {
        fputs("{%- if enable_thinking is defined and enable_thinking is false %}\n", w->out);
        say(w, &w->c->think_off, NULL);
        fputs("{%- endif %}\n", w->out);
    }
    fputs("{%- endif %}\n", w->out);
}

/* Tokens that the tokenizer puts before a text. */
typedef struct wrapping {
    dt_ids before;
    bool space; /* also a space, except if the text itself starts with BOS */
} wrapping;

static bool ends_with(const dt_ids *whole, const dt_ids *end)
{
    return whole->n >= end->n && memcmp(whole->id + whole->n - end->n, end->id, end->n * sizeof *end->id) == 0;
}

/* Detect the space: encode a letter after BOS, with and without a space, and compare with the letter
 * wrapped by the tokenizer. */
static dt_err find_space(dt_encoder *e, const dt_wrap *wrap, wrapping *found)
{
    dt_ids whole = {0}, bare = {0}, spaced = {0};
    const dt_span bos = {.id = found->before.id[0]}, bare_text[] = {bos, {.text = "x", .nbytes = 1}},
                  spaced_text[] = {bos, {.text = " x", .nbytes = 2}};
    dt_err err = dt_encode(e, bare_text + 1, 1, DT_ENCODE_WRAP, &whole, NULL);
    if (err == DT_OK) err = dt_encode(e, bare_text, 2, 0, &bare, NULL);
    if (err == DT_OK) err = dt_encode(e, spaced_text, 2, 0, &spaced, NULL);
    if (err == DT_OK) {
        whole.n -= (size_t)wrap->n_after;
        found->space = !ends_with(&whole, &bare) && ends_with(&whole, &spaced);
    }
    free(whole.id);
    free(bare.id);
    free(spaced.id);
    return err;
}

static dt_err find_wrapping(const dt_chat *c, wrapping *found)
{
    const dt_wrap *wrap = dt_chat_wrap(c);
    if (!wrap || wrap->n_before == 0) return DT_OK;
    dt_encoder *e = NULL;
    DT_TRY(dt_encoder_open(&e, c->tokenizer));
    dt_err err = dt_encode(e, &(dt_span){.id = 0}, 1, DT_ENCODE_WRAP, &found->before, NULL);
    if (err == DT_OK) found->before.n = (size_t)wrap->n_before;
    if (err == DT_OK) err = find_space(e, wrap, found);
    dt_encoder_close(e);
    return err;
}

/* Write the tokenizer's prefix, unless the conversation begins with BOS. */
static void put_wrapped(writer *w, const wrapping *found)
{
    const int32_t bos = dt_tokenizer_get_info(w->c->tokenizer)->bos;
    if (bos >= 0) {
        fputs("{%- if not conversation.startswith('", w->out);
        put_token(w, bos);
        fputs("') %}\n", w->out);
    }
    fputs("{{- '", w->out);
    for (size_t i = 0; i < found->before.n; i++) put_token(w, found->before.id[i]);
    fputs("' }}\n", w->out);
    if (found->space) fputs("{{- '' if conversation.startswith(' ') else ' ' }}\n", w->out);
    if (bos >= 0) fputs("{%- endif %}\n", w->out);
    fputs("{{- conversation }}\n", w->out);
}

static void put_all(writer *w, const char *spec, const wrapping *around)
{
    fprintf(w->out, "%s%s%s", comment, spec, comment_end);
    if (w->image_text) {
        fputs(image_begin, w->out);
        put_bytes(w, w->image_text, strlen(w->image_text));
        fputs(image_end, w->out);
    }
    put_roles(w);
    put_first_look(w);
    if (around->before.n > 0) fputs("{%- set conversation %}\n", w->out);
    say(w, &w->c->begin, NULL);
    put_default_system(w);
    put_messages(w);
    put_generation(w);
    if (around->before.n == 0) return;
    fputs("{%- endset %}\n", w->out);
    put_wrapped(w, around);
}

dt_err dt_chat_jinja(const dt_chat *c, const char *image_text, char **jinja)
{
    char *spec = NULL;
    size_t size;
    wrapping around = {0};
    *jinja = NULL;
    dt_err err = dt_chat_spec(c, &spec);
    if (err == DT_OK) err = find_wrapping(c, &around);
    writer w = {.out = err == DT_OK ? open_memstream(jinja, &size) : NULL, .c = c, .image_text = image_text};
    if (err == DT_OK && !w.out) err = dt_fail(DT_ERR_MEMORY, "no memory for a chat template");
    if (err == DT_OK) {
        put_all(&w, spec, &around);
        const bool failed = ferror(w.out) != 0, not_closed = fclose(w.out) != 0;
        if (failed || not_closed) {
            free(*jinja);
            *jinja = NULL;
            err = dt_fail(DT_ERR_MEMORY, "no memory for a chat template");
        }
    }
    free(spec);
    free(around.before.id);
    return err;
}

/* Exact comparison, except for white space. */
bool dt_chat_jinja_claims(const char *jinja)
{
    const char *c = comment;
    for (; *c; c++) {
        if (isspace((unsigned char)*c)) continue;
        while (isspace((unsigned char)*jinja)) jinja++;
        if (*jinja++ != *c) return false;
    }
    return true;
}

char *dt_chat_jinja_spec(const char *jinja)
{
    if (strncmp(jinja, comment, strlen(comment)) != 0) return NULL;
    const char *spec = jinja + strlen(comment), *end = strstr(spec, comment_end);
    char *text = end ? strndup(spec, (size_t)(end - spec)) : NULL;
    /* a name or JSON, never a path */
    if (text && *text != '{' && !dt_chat_template_find(text)) {
        free(text);
        text = NULL;
    }
    return text;
}

char *dt_chat_jinja_image(const char *jinja)
{
    const char *begin = strstr(jinja, comment_end);
    begin = begin ? begin + strlen(comment_end) : jinja;
    if (strncmp(begin, image_begin, strlen(image_begin)) != 0) return NULL;
    begin += strlen(image_begin);
    const char *end = strstr(begin, image_end);
    char *text = end ? strndup(begin, (size_t)(end - begin)) : NULL, *to = text;
    for (const char *from = text; from && *from; from++) { /* unescape what put_bytes escaped */
        if (*from == '\\' && from[1]) from++;
        *to++ = *from;
    }
    if (text) *to = '\0';
    return text;
}

/* A template supports images if it tests for a part of type image. */
static bool knows_images(const char *jinja) { return strstr(jinja, "'image'") || strstr(jinja, "\"image\""); }

/* Compare the tokenizer's own template with the one to export. They differ if the own one depends on the date. */
static dt_err says_the_same(const dt_chat *c, const char *spec, const char *image_text, const char *jinja, bool *same)
{
    const char *own = dt_tokenizer_get_info(c->tokenizer)->chat_template;
    dt_chat *found = NULL;
    char *found_spec = NULL;
    *same = false;
    if (!own || (image_text && !knows_images(own))) return DT_OK;
    if (strcmp(own, jinja) == 0) return *same = true, DT_OK;
    dt_err err = dt_chat_recognise(&found, c->tokenizer);
    if (err == DT_ERR_USAGE) { /* no equivalent template in dtrain */
        dt_error_clear();
        return DT_OK;
    }
    if (err == DT_OK) err = dt_chat_spec(found, &found_spec);
    if (err == DT_OK) {
        if (image_text) dt_chat_for_images(found);
        const bool wraps_alike = found->wrapped == c->wrapped || c->wrap.n_before == 0;
        *same = !found->dated && wraps_alike && strcmp(found_spec, spec) == 0;
    }
    free(found_spec);
    dt_chat_close(found);
    return err;
}

/* Template for an export; NULL: the tokenizer's own file suffices. */
static dt_err keep_own(const dt_tokenizer *t, char **jinja)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    const bool copied = !info->chat_template_file || strcmp(info->chat_template_file, "chat_template.jinja") == 0 ||
                        strcmp(info->chat_template_file, "tokenizer_config.json") == 0;
    free(*jinja);
    *jinja = copied ? NULL : strdup(info->chat_template);
    DT_CHECK(copied || *jinja, DT_ERR_MEMORY, "no memory for a chat template");
    return DT_OK;
}

dt_err dt_chat_jinja_for(const char *name, const char *tokenizer, int32_t image_token, char **spec, char **jinja)
{
    dt_tokenizer *t = NULL;
    dt_chat *c = NULL;
    size_t n;
    *jinja = NULL;
    char *found = NULL;
    dt_err err = dt_tokenizer_open(&t, tokenizer);
    char *image_text = err == DT_OK && image_token >= 0 ? dt_decode(t, &image_token, 1, false, &n) : NULL;
    if (err == DT_OK) err = dt_chat_open(&c, name, t);
    if (err == DT_OK && image_text) dt_chat_for_images(c);
    if (err == DT_OK) err = dt_chat_spec(c, &found);
    if (err == DT_OK) err = dt_chat_jinja(c, image_text, jinja);
    bool same = false;
    if (err == DT_OK) err = says_the_same(c, found, image_text, *jinja, &same);
    if (err == DT_OK && same) err = keep_own(t, jinja);
    if (spec)
        *spec = found;
    else
        free(found);
    free(image_text);
    dt_chat_close(c);
    dt_tokenizer_close(t);
    return err;
}
