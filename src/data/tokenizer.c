/* tokenizer.c - a table of functions a tokenizer; the list at the end is the only place that knows them all. */
#include "dtrain/data.h"
#include <stdlib.h>
#include <string.h>

typedef struct tokenizer_ops {
    const char *name;
    int32_t vocab_size, eos;
    dt_err (*open)(dt_tokenizer *t); /* optional: state behind impl */
    void (*close)(dt_tokenizer *t);  /* optional */
    dt_err (*encode)(const dt_tokenizer *t, const char *text, size_t nbytes, int32_t **ids, size_t *n, size_t *cap);
    const char *(*bytes)(const dt_tokenizer *t, int32_t id, size_t *nbytes);
} tokenizer_ops;

struct dt_tokenizer {
    const tokenizer_ops *ops;
    void *impl;
};

static dt_err reserve(int32_t **ids, size_t n, size_t *cap)
{
    if (n <= *cap) return DT_OK;
    const size_t want = n > 2 * *cap ? n : 2 * *cap;
    int32_t *more = want <= SIZE_MAX / sizeof **ids ? realloc(*ids, want * sizeof **ids) : NULL;
    DT_CHECK(more, DT_ERR_MEMORY, "no memory for %zu token ids", want);
    *ids = more;
    *cap = want;
    return DT_OK;
}

/* ---- bytes: ids 0..255 are bytes, 256 is the end of text --------------------------------------------------------------------- */

static dt_err bytes_encode(const dt_tokenizer *t, const char *text, size_t nbytes, int32_t **ids, size_t *n, size_t *cap)
{
    DT_TRY(reserve(ids, *n + nbytes, cap));
    int32_t *out = *ids + *n;
    for (size_t i = 0; i < nbytes; i++) out[i] = (unsigned char)text[i];
    *n += nbytes;
    return DT_OK;
}

static const char *bytes_bytes(const dt_tokenizer *t, int32_t id, size_t *nbytes)
{
#define ROW(x)                                                                                                                   \
    (x) + 0, (x) + 1, (x) + 2, (x) + 3, (x) + 4, (x) + 5, (x) + 6, (x) + 7, (x) + 8, (x) + 9, (x) + 10, (x) + 11, (x) + 12,      \
        (x) + 13, (x) + 14, (x) + 15
    static const unsigned char all[256] = {ROW(0x00), ROW(0x10), ROW(0x20), ROW(0x30), ROW(0x40), ROW(0x50),
                                           ROW(0x60), ROW(0x70), ROW(0x80), ROW(0x90), ROW(0xa0), ROW(0xb0),
                                           ROW(0xc0), ROW(0xd0), ROW(0xe0), ROW(0xf0)};
#undef ROW
    *nbytes = id >= 0 && id < 256;
    return *nbytes ? (const char *)&all[id] : "";
}

static const tokenizer_ops bytes_ops = {
    .name = "bytes", .vocab_size = 257, .eos = 256, .encode = bytes_encode, .bytes = bytes_bytes};

/* ---- the seam ------------------------------------------------------------------------------------------------------------------ */

static const tokenizer_ops *const tokenizers[] = {&bytes_ops};

dt_err dt_tokenizer_open(dt_tokenizer **out, const char *name)
{
    *out = NULL;
    const tokenizer_ops *ops = NULL;
    for (size_t i = 0; i < sizeof tokenizers / sizeof tokenizers[0]; i++)
        if (strcmp(tokenizers[i]->name, name) == 0) ops = tokenizers[i];
    DT_CHECK(ops, DT_ERR_USAGE, "tokenizer: expected one of: bytes; found \"%s\"", name);
    dt_tokenizer *t = calloc(1, sizeof *t);
    DT_CHECK(t, DT_ERR_MEMORY, "no memory for a tokenizer");
    t->ops = ops;
    const dt_err err = ops->open ? ops->open(t) : DT_OK;
    if (err != DT_OK) {
        dt_tokenizer_close(t);
        return err;
    }
    *out = t;
    return DT_OK;
}

void dt_tokenizer_close(dt_tokenizer *t)
{
    if (t && t->ops->close) t->ops->close(t);
    free(t);
}

const char *dt_tokenizer_name(const dt_tokenizer *t) { return t->ops->name; }
int32_t dt_tokenizer_vocab_size(const dt_tokenizer *t) { return t->ops->vocab_size; }
int32_t dt_tokenizer_eos(const dt_tokenizer *t) { return t->ops->eos; }

dt_err dt_tokenizer_encode(const dt_tokenizer *t, const char *text, size_t nbytes, int32_t **ids, size_t *n, size_t *cap)
{
    return t->ops->encode(t, text, nbytes, ids, n, cap);
}

const char *dt_tokenizer_bytes(const dt_tokenizer *t, int32_t id, size_t *nbytes) { return t->ops->bytes(t, id, nbytes); }
