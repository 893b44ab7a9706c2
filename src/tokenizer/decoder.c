/* decoder.c - each decoding step maps a list of texts to a list of texts. */
#include "decoder.h"
#include "dtrain/text/utf8.h"

#include <ctype.h>
#include <stdlib.h>

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static dt_err copy_text(const dt_spec *s, const char *key, char **out)
{
    const char *text;
    DT_TRY(dt_spec_need_string(s, key, &text));
    DT_CHECK((*out = strdup(text)), DT_ERR_MEMORY, "%s: no memory", s->file);
    return DT_OK;
}

static dt_err read_strip(const dt_spec *s, dt_decode_step *step)
{
    const char *content;
    step->kind = DT_DECODE_STRIP;
    DT_TRY(dt_spec_only(s, "type content start stop"));
    DT_TRY(dt_spec_need_string(s, "content", &content));
    const size_t n = strlen(content);
    if (n == 0 || dt_utf8_length(content, n) != n) return dt_spec_bad(s, "content", "one character");
    memcpy(step->character, content, n + 1);
    DT_TRY(dt_spec_int(s, "start", 0, INT32_MAX, &step->start));
    return dt_spec_int(s, "stop", 0, INT32_MAX, &step->stop);
}

static dt_err read_replace(const dt_spec *s, dt_decode_step *step)
{
    const char *text;
    bool literal;
    step->kind = DT_DECODE_REPLACE;
    DT_TRY(dt_spec_only(s, "type pattern content"));
    DT_TRY(copy_text(s, "content", &step->content));
    return dt_pattern_read(s, &step->pattern, &text, &literal);
}

static dt_err read_kind(const dt_spec *s, const char *type, dt_decode_step *step)
{
    bool split;
    if (strcmp(type, "ByteLevel") == 0)
        return step->kind = DT_DECODE_BYTES, dt_spec_only(s, "type add_prefix_space trim_offsets use_regex");
    if (strcmp(type, "ByteFallback") == 0) return step->kind = DT_DECODE_BYTE_FALLBACK, dt_spec_only(s, "type");
    if (strcmp(type, "Fuse") == 0) return step->kind = DT_DECODE_FUSE, dt_spec_only(s, "type");
    if (strcmp(type, "Replace") == 0) return read_replace(s, step);
    if (strcmp(type, "Strip") == 0) return read_strip(s, step);
    if (strcmp(type, "Metaspace") == 0)
        return step->kind = DT_DECODE_METASPACE, dt_metaspace_read(s, step->character, &step->where, &split);
    if (strcmp(type, "BPEDecoder") != 0)
        return dt_spec_bad(s, "type",
                           "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, BPEDecoder or Sequence");
    step->kind = DT_DECODE_SUFFIX;
    DT_TRY(dt_spec_only(s, "type suffix"));
    DT_TRY(copy_text(s, "suffix", &step->content));
    if (!step->content[0]) return dt_spec_bad(s, "suffix", "a string that is not empty");
    return dt_regex_compile(&step->pattern, step->content, strlen(step->content), DT_REGEX_LITERAL);
}

static dt_err read_step(void *stage, const dt_spec *s, const char *type)
{
    dt_id_decoder *d = stage;
    if (d->n_steps == DT_DECODE_MAX) return dt_spec_bad(s, NULL, "at most 32 decoders");
    dt_decode_step *step = &d->step[d->n_steps++];
    *step = (dt_decode_step){0};
    return read_kind(s, type, step);
}

dt_err dt_id_decoder_read(dt_id_decoder *d, const dt_spec *root)
{
    dt_spec s;
    *d = (dt_id_decoder){0};
    if (dt_spec_get(root, "decoder", &s)) return dt_stage_read(d, &s, "decoders", read_step);
    d->step[d->n_steps++].kind = DT_DECODE_JOIN;
    return DT_OK;
}

void dt_id_decoder_free(dt_id_decoder *d)
{
    for (int i = 0; i < d->n_steps; i++) {
        dt_regex_free(d->step[i].pattern);
        free(d->step[i].content);
    }
    *d = (dt_id_decoder){0};
}

/* ---- lists of texts ---------------------------------------------------------------------------------------------- */

static dt_err texts_end(dt_texts *t)
{
    if (t->n == t->n_alloc) {
        DT_RESIZE(t->end, 2 * t->n + 64, "out of memory for decoding");
        t->n_alloc = 2 * t->n + 64;
    }
    DT_CHECK(!t->text.failed, DT_ERR_MEMORY, "out of memory for decoding");
    t->end[t->n++] = t->text.n;
    return DT_OK;
}

dt_err dt_texts_append(dt_texts *t, const char *text, size_t n)
{
    dt_text_append(&t->text, text, n);
    return texts_end(t);
}

size_t dt_texts_nbytes(const dt_texts *t) { return t->text.n_alloc + t->n_alloc * sizeof *t->end; }

void dt_texts_free(dt_texts *t)
{
    free(t->text.bytes);
    free(t->end);
    *t = (dt_texts){0};
}

typedef struct view {
    const char *text;
    size_t n;
} view;

static view get(const dt_texts *t, size_t i)
{
    const size_t begin = i ? t->end[i - 1] : 0;
    return (view){t->text.bytes ? t->text.bytes + begin : "", t->end[i] - begin};
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A token with a character that is not a mapped byte is copied unchanged. */
static void append_unmapped(dt_text *out, view v)
{
    const size_t n = out->n;
    for (const char *p = v.text, *end = p + v.n; p < end;) {
        const int byte = dt_char_byte(dt_utf8_next(&p));
        if (byte < 0) {
            out->n = n;
            dt_text_append(out, v.text, v.n);
            return;
        }
        dt_text_append(out, (char[]){(char)byte}, 1);
    }
}

static dt_err bytes(const dt_texts *in, dt_texts *out, bool running)
{
    for (size_t i = 0; i < in->n; i++) append_unmapped(&out->text, get(in, i));
    if (!running && !out->text.failed) {
        size_t n;
        char *valid = dt_utf8_repair(out->text.bytes ? out->text.bytes : "", out->text.n, &n);
        DT_CHECK(valid, DT_ERR_MEMORY, "out of memory for decoding");
        out->text.n = 0;
        dt_text_append(&out->text, valid, n);
        free(valid);
    }
    return texts_end(out);
}

static int written_byte(view v)
{
    const unsigned char *p = (const unsigned char *)v.text;
    if (v.n != 6 || memcmp(p, "<0x", 3) != 0 || !isxdigit(p[3]) || !isxdigit(p[4]) || p[5] != '>') return -1;
    return (int)strtol(v.text + 1, NULL, 16); /* ends at > */
}

/* Consecutive byte tokens form a text; if it is invalid, each byte becomes U+FFFD. */
static dt_err byte_fallback(const dt_texts *in, dt_texts *out, bool running)
{
    for (size_t i = 0; i < in->n;) {
        const size_t begin = out->text.n;
        size_t n = 0;
        for (int byte; i < in->n && (byte = written_byte(get(in, i))) >= 0; i++, n++)
            dt_text_append(&out->text, (char[]){(char)byte}, 1);
        if (n > 0 && !running && !out->text.failed && dt_utf8_valid(out->text.bytes + begin, n) != n) {
            out->text.n = begin;
            for (size_t k = 0; k < n; k++) dt_text_append(&out->text, "\xef\xbf\xbd", 3);
        }
        if (n > 0) DT_TRY(texts_end(out));
        if (i == in->n) break;
        const view v = get(in, i++);
        DT_TRY(dt_texts_append(out, v.text, v.n));
    }
    return DT_OK;
}

static dt_err replace_in(const dt_regex *pattern, dt_matcher *m, view v, const char *content, dt_texts *out)
{
    dt_matches at;
    size_t done = 0;
    /* part of a character, in running text */
    if (dt_utf8_valid(v.text, v.n) != v.n) return dt_texts_append(out, v.text, v.n);
    DT_TRY(dt_matches_begin(&at, pattern, m, v.text, v.n, NULL));
    for (bool found;;) {
        DT_TRY(dt_regex_next(&at, &found));
        if (!found) break;
        dt_text_append(&out->text, v.text + done, at.begin - done);
        dt_text_append(&out->text, content, strlen(content));
        done = at.end;
    }
    return dt_texts_append(out, v.text + done, v.n - done);
}

static view stripped(const dt_decode_step *s, view v)
{
    const size_t n = strlen(s->character);
    for (int64_t i = 0; i < s->start && v.n >= n && memcmp(v.text, s->character, n) == 0; i++) v.text += n, v.n -= n;
    for (int64_t i = 0; i < s->stop && v.n >= n && memcmp(v.text + v.n - n, s->character, n) == 0; i++) v.n -= n;
    return v;
}

static dt_err metaspace(const dt_decode_step *s, view v, bool first, dt_texts *out)
{
    const size_t n = strlen(s->character);
    for (size_t i = 0; i < v.n;) {
        if (v.n - i >= n && memcmp(v.text + i, s->character, n) == 0) {
            if (!first || s->where == DT_PREFIX_NEVER) dt_text_append(&out->text, " ", 1);
            i += n;
        } else {
            dt_text_append(&out->text, v.text + i++, 1);
        }
    }
    return texts_end(out);
}

static dt_err step_one(const dt_decode_step *s, dt_matcher *m, view v, size_t i, size_t n, bool running, bool fused,
                       dt_texts *out)
{
    switch (s->kind) {
    case DT_DECODE_REPLACE:
        return replace_in(s->pattern, m, v, s->content, out);
    case DT_DECODE_STRIP:
        if (!running || !fused) v = stripped(s, v);
        return dt_texts_append(out, v.text, v.n);
    case DT_DECODE_JOIN:
        if (i > 0 && !running) dt_text_append(&out->text, " ", 1);
        return dt_texts_append(out, v.text, v.n);
    case DT_DECODE_METASPACE:
        return metaspace(s, v, i == 0 && !running, out);
    default:
        return replace_in(s->pattern, m, v, i + 1 == n && !running ? "" : " ", out);
    }
}

dt_err dt_id_decoder_run(const dt_id_decoder *d, dt_matcher *m, dt_texts t[2], bool running)
{
    bool fused = false; /* later steps see the text as a whole */
    for (int k = 0; k < d->n_steps; k++) {
        const dt_decode_step *s = &d->step[k];
        dt_texts *in = &t[0], *out = &t[1];
        out->text.n = out->n = 0;
        if (s->kind == DT_DECODE_BYTES) {
            DT_TRY(bytes(in, out, running));
        } else if (s->kind == DT_DECODE_BYTE_FALLBACK) {
            DT_TRY(byte_fallback(in, out, running));
        } else if (s->kind == DT_DECODE_FUSE) {
            in->n = 0;
            DT_TRY(texts_end(in));
            fused = true;
            continue;
        } else {
            for (size_t i = 0; i < in->n; i++) DT_TRY(step_one(s, m, get(in, i), i, in->n, running, fused, out));
        }
        fused = fused || s->kind == DT_DECODE_BYTES;
        const dt_texts done = *out;
        *out = *in;
        *in = done;
    }
    return DT_OK;
}
