/* tokenizer.c - opens a tokenizer by name and dispatches calls to its function table. */
#include "tokenizer_ops.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

dt_err dt_tokenizer_open(dt_tokenizer **out, const char *name)
{
    *out = NULL;
    dt_tokenizer *t = calloc(1, sizeof *t);
    DT_CHECK(t, DT_ERR_MEMORY, "out of memory for a tokenizer");
    dt_err err = DT_OK;
    if (strcmp(name, "bytes") == 0)
        dt_tokenizer_open_bytes(t);
    else
        err = dt_tokenizer_open_json(t, name);
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

size_t dt_tokenizer_nbytes(const dt_tokenizer *t) { return t && t->ops->nbytes ? t->ops->nbytes(t) : 0; }

const dt_tokenizer_info *dt_tokenizer_get_info(const dt_tokenizer *t) { return &t->info; }
bool dt_tokenizer_is_special(const dt_tokenizer *t, int32_t id) { return t->ops->is_special(t, id); }
const char *dt_tokenizer_token(const dt_tokenizer *t, int32_t id) { return t->ops->token(t, id); }
int32_t dt_tokenizer_find(const dt_tokenizer *t, const char *token) { return t->ops->find(t, token); }
int dt_tokenizer_n_added(const dt_tokenizer *t) { return t->ops->n_added ? t->ops->n_added(t) : 0; }
dt_added_form dt_tokenizer_added(const dt_tokenizer *t, int i) { return t->ops->added(t, i); }
const char *dt_tokenizer_bytes(const dt_tokenizer *t, int32_t id, size_t *nbytes)
{
    return t->ops->bytes(t, id, nbytes);
}

dt_err dt_ids_reserve(dt_ids *ids, size_t n_more)
{
    if (n_more <= ids->n_alloc - ids->n) return DT_OK;
    const size_t need = ids->n + n_more, want = need > 2 * ids->n_alloc ? need : 2 * ids->n_alloc;
    DT_RESIZE(ids->id, need >= n_more ? want : SIZE_MAX, "out of memory for %zu token ids", need);
    ids->n_alloc = want;
    return DT_OK;
}

dt_err dt_encoder_open(dt_encoder **out, const dt_tokenizer *t)
{
    *out = NULL;
    dt_encoder *e = calloc(1, sizeof *e);
    DT_CHECK(e, DT_ERR_MEMORY, "out of memory for an encoder");
    e->tokenizer = t;
    const dt_err err = t->ops->encoder_open ? t->ops->encoder_open(e) : DT_OK;
    if (err != DT_OK) {
        dt_encoder_close(e);
        return err;
    }
    *out = e;
    return DT_OK;
}

void dt_encoder_close(dt_encoder *e)
{
    if (e && e->tokenizer->ops->encoder_close) e->tokenizer->ops->encoder_close(e);
    if (e) free(e->what), free(e->by);
    free(e);
}

size_t dt_encoder_nbytes(const dt_encoder *e)
{
    return e && e->tokenizer->ops->encoder_nbytes ? e->tokenizer->ops->encoder_nbytes() : 0;
}

dt_err dt_encoder_replace(dt_encoder *e, const char *what, const char *by)
{
    free(e->what), free(e->by);
    e->what = what ? strdup(what) : NULL;
    e->by = what ? strdup(by) : NULL;
    DT_CHECK(!what || (e->what && e->by), DT_ERR_MEMORY, "out of memory for an encoder");
    return DT_OK;
}

static dt_err encode_replaced(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids,
                              int64_t *ends)
{
    dt_span *copy = malloc((size_t)n_spans * sizeof *copy + 1);
    char **owned = calloc((size_t)n_spans + 1, sizeof *owned);
    dt_err err = copy && owned ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %d spans", n_spans);
    for (int i = 0; i < n_spans && err == DT_OK; i++) {
        copy[i] = spans[i];
        if (!spans[i].text) continue;
        if (!dt_text_replace(spans[i].text, &copy[i].nbytes, e->what, e->by, &owned[i]))
            err = dt_fail(DT_ERR_MEMORY, "out of memory for a text of %zu bytes", spans[i].nbytes);
        if (owned[i]) copy[i].text = owned[i];
    }
    if (err == DT_OK) err = e->tokenizer->ops->encode(e, copy, n_spans, flags, ids, ends);
    for (int i = 0; owned && i < n_spans; i++) free(owned[i]);
    free(owned);
    free(copy);
    return err;
}

dt_err dt_encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends)
{
    return (e->what ? encode_replaced : e->tokenizer->ops->encode)(e, spans, n_spans, flags, ids, ends);
}

size_t dt_text_cut(const dt_tokenizer *t, const char *text, size_t nbytes)
{
    const size_t known = t->ops->cut(t, text, nbytes);
    if (known > 0 || nbytes == 0) return known;
    /* check whether the last character is complete */
    for (size_t n = nbytes; n > 0 && n + 4 > nbytes; n--)
        if (((unsigned char)text[n - 1] & 0xc0) != 0x80) {
            const size_t len = dt_utf8_length(text + n - 1, nbytes - n + 1);
            return len || n == 1 ? nbytes : n - 1;
        }
    return nbytes;
}

char *dt_decode(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes)
{
    return t->ops->decode(t, ids, n, skip_special, nbytes);
}
