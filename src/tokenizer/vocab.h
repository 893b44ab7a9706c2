/* vocab.h - tokens by id and by text. */
#ifndef DTRAIN_TEXT_VOCAB_H
#define DTRAIN_TEXT_VOCAB_H

#include "tokenizer_ops.h"
#include "dtrain/text/utf8.h"

#include <string.h>

enum { DT_VOCAB_MAX_ID = (1 << 22) - 1 };

/** Flags of a token: in the model; matched in the text before the model; skippable in decoding; and a
 *  model token whose text is not its meaning (a byte token, unk). */
enum { DT_TOKEN_MODEL = 1, DT_TOKEN_ADDED = 2, DT_TOKEN_SPECIAL = 4, DT_TOKEN_STAND_IN = 8 };

typedef struct dt_vocab_entry {
    uint32_t at, n; /* in text, terminated by 0 */
    /* input of decoding; differs from at, n only for added tokens that the normaliser changes */
    uint32_t decoded_at, decoded_n;
    uint8_t flags; /* 0: no such id */
} dt_vocab_entry;

typedef struct dt_vocab {
    dt_text text;
    dt_vocab_entry *entry; /* [n_ids] */
    int32_t n_ids;         /* largest id + 1 */
    size_t n_alloc;
    int32_t *slot; /* open addressing: id + 1, 0: free */
    size_t n_slots, n_used;
} dt_vocab;

static inline uint64_t dt_hash_bytes(const char *bytes, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, word;
    for (; n >= 8; n -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        h = (h ^ word) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    word = 0;
    for (size_t i = 0; i < n; i++) word |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
    h = (h ^ word) * 0x94d049bb133111ebu;
    return h ^ (h >> 32);
}

/** Add a token, or add flags to an existing one with this id and text. DT_ERR_DATA: the id or the text
 *  belongs to another token. DT_ERR_MEMORY. */
dt_err dt_vocab_add(dt_vocab *v, int32_t id, const char *text, size_t n, uint8_t flags);
/** Set the text that decoding writes for an existing token. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_vocab_decode_as(dt_vocab *v, int32_t id, const char *text, size_t n);
/** Id of a token that has any of the flags, -1: none. */
int32_t dt_vocab_find(const dt_vocab *v, const char *text, size_t n, uint8_t flags);
size_t dt_vocab_nbytes(const dt_vocab *v);
void dt_vocab_free(dt_vocab *v); /* safe on {0} */

static inline const dt_vocab_entry *dt_vocab_get(const dt_vocab *v, int32_t id)
{
    return id >= 0 && id < v->n_ids && v->entry[id].flags ? &v->entry[id] : NULL;
}
static inline const char *dt_vocab_text(const dt_vocab *v, const dt_vocab_entry *e) { return v->text.bytes + e->at; }

#endif
