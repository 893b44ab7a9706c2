/* export.c - the chat_template.jinja of an exported model: the template's own Jinja text. It writes all tokens, because
 * apply_chat_template adds none. It thus does not depend on token settings elsewhere in the directory.
 *
 * For dtrain's templates the first line is a comment with the name, for a user's template with its JSON.
 * dt_chat_written reads it back. */
#include "chat_private.h"
#include "dtrain/text/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char comment[] = "{#- Written by dtrain. chat_template = ", comment_end[] = " #}\n";
static const char image_begin[] = "{%- set image = ", image_end[] = " %}\n";

static dt_err no_memory(void) { return dt_fail(DT_ERR_MEMORY, "out of memory for a chat template"); }

static const char *token_text(const dt_chat *c, int32_t id)
{
    return id >= 0 ? dt_tokenizer_token(c->tokenizer, id) : NULL;
}

/* ---- tokens added by the tokenizer ------------------------------------------------------------------------------- */

/* Tokens that the tokenizer adds before a text. */
typedef struct wrapping {
    dt_ids before;
    bool space; /* the tokenizer also adds a space, unless the text starts with BOS */
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

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void say(dt_text *out, const char *text) { dt_text_append(out, text, strlen(text)); }

/* A string of Jinja. */
static void put_quoted(dt_text *out, const char *text)
{
    say(out, "'");
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '\'' || *p == '\\')
            dt_text_printf(out, "\\%c", *p);
        else if (*p == '\n')
            say(out, "\\n");
        else if (*p < 0x20 || *p == 0x7f)
            dt_text_printf(out, "\\x%02x", *p);
        else
            dt_text_append(out, p, 1);
    }
    say(out, "'");
}

/* Write the tokenizer's prefix, unless the conversation begins with BOS. */
static void put_wrapped(dt_text *out, const dt_chat *c, const wrapping *found)
{
    const char *bos = token_text(c, dt_tokenizer_get_info(c->tokenizer)->bos);
    say(out, "{%- endset %}\n");
    if (bos) {
        say(out, "{%- if not conversation.startswith(");
        put_quoted(out, bos);
        say(out, ") %}\n");
    }
    for (size_t i = 0; i < found->before.n; i++) {
        const char *token = token_text(c, found->before.id[i]);
        say(out, "{{- ");
        put_quoted(out, token ? token : "");
        say(out, " }}\n");
    }
    if (found->space) say(out, "{{- '' if conversation.startswith(' ') else ' ' }}\n");
    if (bos) say(out, "{%- endif %}\n");
    say(out, "{{- conversation }}\n");
}

/* image: the text of an image as a string of Jinja; NULL: none. */
static dt_err put_form(dt_text *out, const dt_chat *c, const char *image)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(c->tokenizer);
    wrapping around = {0};
    char *spec;
    DT_TRY(dt_chat_spec(c, &spec));
    dt_text_printf(out, "%s%s%s", comment, spec, comment_end);
    free(spec);
    DT_TRY(find_wrapping(c, &around));
    char *text = dt_form_jinja(c->form, token_text(c, info->bos), token_text(c, info->eos));
    if (image) dt_text_printf(out, "%s%s%s", image_begin, image, image_end);
    if (around.before.n > 0) say(out, "{%- set conversation %}\n");
    if (text) say(out, text);
    if (around.before.n > 0) put_wrapped(out, c, &around);
    free(around.before.id);
    free(text);
    return text ? DT_OK : no_memory();
}

static dt_err write_form(const dt_chat *c, const char *image, char **jinja)
{
    dt_text out = {0};
    size_t n;
    dt_err err = put_form(&out, c, image);
    if (err != DT_OK) dt_text_free(&out);
    *jinja = err == DT_OK ? dt_text_finish(&out, &n) : NULL;
    return err != DT_OK || *jinja ? err : no_memory();
}

dt_err dt_chat_jinja(const dt_chat *c, const char *image_text, char **jinja)
{
    dt_text image = {0};
    if (!c->form) return (*jinja = strdup(c->text)) ? DT_OK : no_memory();
    if (image_text) put_quoted(&image, image_text);
    *jinja = NULL;
    const dt_err err = image.failed ? no_memory() : write_form(c, image.bytes, jinja);
    dt_text_free(&image);
    return err;
}

/* ---- reading back ------------------------------------------------------------------------------------------------ */

/* True if a Jinja text starts as those of dt_chat_jinja, except for white space. */
static bool claims(const char *jinja)
{
    const char *c = comment;
    for (; *c; c++) {
        if (isspace((unsigned char)*c)) continue;
        while (isspace((unsigned char)*jinja)) jinja++;
        if (*jinja++ != *c) return false;
    }
    return true;
}

static bool is_named(const char *name)
{
    const char *one, *about;
    for (int i = 0; dt_chat_named(i, &one, &about); i++)
        if (strcmp(one, name) == 0) return true;
    return false;
}

/* If *text starts with `begin`: the text from there to `end`, malloc'ed, and *text is advanced past `end`. Otherwise
 * NULL. */
static char *between(const char **text, const char *begin, const char *end)
{
    const size_t n = strlen(begin);
    const char *stop = strncmp(*text, begin, n) == 0 ? strstr(*text + n, end) : NULL;
    char *found = stop ? strndup(*text + n, (size_t)(stop - *text) - n) : NULL;
    if (stop) *text = stop + strlen(end);
    return found;
}

static bool writes(const dt_chat *c, const char *image, const char *jinja)
{
    char *text = NULL;
    if (write_form(c, image, &text) != DT_OK) dt_error_clear();
    const bool same = text && strcmp(text, jinja) == 0;
    free(text);
    return same;
}

/* The first line is trusted only if its template writes this very text, with or without the tokenizer's BOS. */
char *dt_chat_written(const dt_tokenizer *t)
{
    const char *jinja = dt_tokenizer_get_info(t)->chat_template, *rest = jinja;
    if (!jinja || !claims(jinja)) return NULL;
    char *spec = between(&rest, comment, comment_end), *image = between(&rest, image_begin, image_end);
    dt_chat *c = NULL;
    bool same = false;
    if (spec && (*spec == '{' || is_named(spec)) && dt_chat_open_named(&c, spec, t) != DT_OK) dt_error_clear();
    if (c && c->form) same = writes(c, image, jinja);
    if (c && c->form && !same) {
        c->wrapped = false;
        same = writes(c, image, jinja);
    }
    if (!same) {
        DT_WARN("the chat_template in %s was changed after dtrain wrote it, or an earlier version of dtrain wrote it: "
                "its first line is ignored",
                dt_chat_place(t));
        free(spec);
        spec = NULL;
    }
    dt_chat_close(c);
    free(image);
    return spec;
}

/* ---- the tokenizer's own template -------------------------------------------------------------------------------- */

/* The tokenizer's own text, for an export. NULL: its file is copied with the others. */
static dt_err keep_own(const dt_tokenizer *t, char **jinja)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    const bool copied = !info->chat_template_file || strcmp(info->chat_template_file, "chat_template.jinja") == 0 ||
                        strcmp(info->chat_template_file, "tokenizer_config.json") == 0;
    if (!copied) return DT_OK;
    free(*jinja);
    *jinja = NULL;
    return DT_OK;
}

dt_err dt_chat_jinja_for(const char *name, const char *tokenizer, int32_t image_token, char **spec, char **jinja)
{
    dt_tokenizer *t = NULL;
    dt_chat *c = NULL;
    size_t n;
    *jinja = NULL;
    if (spec) *spec = NULL;
    dt_err err = dt_tokenizer_open(&t, tokenizer);
    char *image_text = err == DT_OK && image_token >= 0 ? dt_decode(t, &image_token, 1, false, &n) : NULL;
    if (err == DT_OK) err = dt_chat_open(&c, name, t);
    if (err == DT_OK && image_text) dt_chat_for_images(c);
    if (err == DT_OK && spec) err = dt_chat_spec(c, spec);
    if (err == DT_OK) err = dt_chat_jinja(c, image_text, jinja);
    const char *own = err == DT_OK ? dt_tokenizer_get_info(t)->chat_template : NULL;
    if (own && strcmp(own, *jinja) == 0) err = keep_own(t, jinja);
    free(image_text);
    dt_chat_close(c);
    dt_tokenizer_close(t);
    return err;
}
