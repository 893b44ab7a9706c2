/* vocab.c - one table for the model's tokens and the added tokens; a token in both has one id. */
#include "vocab.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>

/* Open addressing: the slot of a text, or the free slot where it would go. */
static size_t find_slot(const dt_vocab *v, const char *text, size_t n)
{
    size_t i = dt_hash_bytes(text, n) & (v->n_slots - 1);
    for (; v->slot[i]; i = (i + 1) & (v->n_slots - 1)) {
        const dt_vocab_entry *e = &v->entry[v->slot[i] - 1];
        if (e->n == n && memcmp(dt_vocab_text(v, e), text, n) == 0) break;
    }
    return i;
}

static dt_err grow_slots(dt_vocab *v)
{
    if (2 * (v->n_used + 1) <= v->n_slots) return DT_OK;
    dt_vocab grown = *v;
    grown.n_slots = v->n_slots ? 2 * v->n_slots : 1024;
    DT_ALLOC(grown.slot, grown.n_slots, "out of memory for a vocabulary of %zu tokens", v->n_used);
    for (size_t i = 0; i < v->n_slots; i++)
        if (v->slot[i]) {
            const dt_vocab_entry *e = &v->entry[v->slot[i] - 1];
            grown.slot[find_slot(&grown, dt_vocab_text(v, e), e->n)] = v->slot[i];
        }
    free(v->slot);
    *v = grown;
    return DT_OK;
}

static dt_err grow_ids(dt_vocab *v, int32_t id)
{
    if ((size_t)id >= v->n_alloc) {
        const size_t n_alloc = 2 * (size_t)id + 256;
        DT_RESIZE(v->entry, n_alloc, "out of memory for %zu token ids", n_alloc);
        memset(v->entry + v->n_alloc, 0, (n_alloc - v->n_alloc) * sizeof *v->entry);
        v->n_alloc = n_alloc;
    }
    if (id >= v->n_ids) v->n_ids = id + 1;
    return DT_OK;
}

static dt_err append_text(dt_vocab *v, const char *text, size_t n)
{
    DT_CHECK(v->text.n + n < UINT32_MAX, DT_ERR_DATA, "tokens of less than 4 GiB in total");
    dt_text_append(&v->text, text, n);
    dt_text_append(&v->text, "", 1);
    DT_CHECK(!v->text.failed, DT_ERR_MEMORY, "out of memory for a vocabulary");
    return DT_OK;
}

dt_err dt_vocab_add(dt_vocab *v, int32_t id, const char *text, size_t n, uint8_t flags)
{
    const int shown = (int)dt_min_i64((int64_t)n, 60); /* text need not end with a 0 */
    DT_CHECK(id >= 0 && id <= DT_VOCAB_MAX_ID, DT_ERR_DATA, "an id from 0 to %d, found %d", DT_VOCAB_MAX_ID, id);
    DT_TRY(grow_slots(v));
    const size_t slot = find_slot(v, text, n);
    if (v->slot[slot]) {
        DT_CHECK(v->slot[slot] - 1 == id, DT_ERR_DATA, "one id for \"%.*s\", found %d and %d", shown, text,
                 v->slot[slot] - 1, id);
        v->entry[id].flags |= flags;
        return DT_OK;
    }
    const dt_vocab_entry *other = dt_vocab_get(v, id);
    DT_CHECK(!other, DT_ERR_DATA, "one token for id %d, found \"%.60s\" and \"%.*s\"", id, dt_vocab_text(v, other),
             shown, text);
    const uint32_t at = (uint32_t)v->text.n;
    DT_TRY(append_text(v, text, n));
    DT_TRY(grow_ids(v, id));
    v->entry[id] =
        (dt_vocab_entry){.at = at, .n = (uint32_t)n, .decoded_at = at, .decoded_n = (uint32_t)n, .flags = flags};
    v->slot[slot] = id + 1;
    v->n_used++;
    return DT_OK;
}

dt_err dt_vocab_decode_as(dt_vocab *v, int32_t id, const char *text, size_t n)
{
    dt_vocab_entry *e = &v->entry[id];
    if (e->n == n && memcmp(dt_vocab_text(v, e), text, n) == 0) return DT_OK;
    e->decoded_at = (uint32_t)v->text.n;
    e->decoded_n = (uint32_t)n;
    return append_text(v, text, n);
}

int32_t dt_vocab_find(const dt_vocab *v, const char *text, size_t n, uint8_t flags)
{
    if (v->n_slots == 0) return -1;
    const int32_t id = v->slot[find_slot(v, text, n)] - 1;
    return id >= 0 && (v->entry[id].flags & flags) ? id : -1;
}

size_t dt_vocab_nbytes(const dt_vocab *v)
{
    return v->text.n_alloc + v->n_alloc * sizeof *v->entry + v->n_slots * sizeof *v->slot;
}

void dt_vocab_free(dt_vocab *v)
{
    free(v->text.bytes);
    free(v->entry);
    free(v->slot);
    *v = (dt_vocab){0};
}
