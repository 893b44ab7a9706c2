/* bpe.h - byte-pair encoding. A piece of text, from the splitter, is split into symbols. The pair that comes first in
 * the list of merges is merged, repeatedly, until no pair is in the list. A model may instead be a unigram model
 * (unigram.h), whose tokens become the symbols.
 *
 * Source   Sennrich et al., ACL 2016, arXiv:1508.07909; unspecified details as in Hugging Face's
 * tokenizers. */
#ifndef DTRAIN_TEXT_BPE_H
#define DTRAIN_TEXT_BPE_H

#include "dtrain/io/spec.h"
#include "dtrain/text/utf8.h"
#include "unigram.h"

typedef struct dt_merge {
    int32_t left, right; /* left -1: free */
    int32_t rank, joined;
} dt_merge;

typedef struct dt_bpe {
    dt_vocab vocab;      /* including the added tokens */
    dt_unigram *unigram; /* NULL: byte-pair encoding */
    dt_merge *merge;     /* open addressing */
    size_t n_merge_slots;
    bool of_bytes; /* pieces are raw bytes, one symbol each (written as a character in the vocabulary) */
    bool ignore_merges, fuse_unk, byte_fallback;
    int32_t unk; /* -1: unknown characters are dropped */
    /* of_bytes: the symbols; else the symbols for the bytes of an unknown character. -1: none */
    int32_t byte_symbol[256];
    int32_t ascii[128];    /* symbols of characters without affixes */
    bool all_known;        /* no text becomes unk or is dropped */
    char *prefix, *suffix; /* of symbols that continue a word, and that end one; NULL: none */
    /* bit set of pairs of neighbours (bytes or characters) that occur in a token; NULL: pieces are never split */
    uint64_t *pair;
    uint64_t pair_mask;
} dt_bpe;

/** Read "model" of a tokenizer.json. DT_ERR_DATA, DT_ERR_MEMORY. Must be freed, also after an error. */
dt_err dt_bpe_read(dt_bpe *b, const dt_spec *model, bool of_bytes);
size_t dt_bpe_nbytes(const dt_bpe *b); /* of tokens and merges */
void dt_bpe_free(dt_bpe *b);           /* safe on {0} */

/** The merge of a pair; NULL: none. dt_bpe_keeps_apart: no token contains the neighbours x y (bytes, or
 *  code points), so the text may be split between them. */
const dt_merge *dt_bpe_merge(const dt_bpe *b, int32_t left, int32_t right);
bool dt_bpe_keeps_apart(const dt_bpe *b, uint32_t x, uint32_t y);

/** State of one thread: symbols, queue, cache. */
typedef struct dt_bpe_work dt_bpe_work;
dt_err dt_bpe_work_open(dt_bpe_work **w);
void dt_bpe_work_close(dt_bpe_work *w); /* safe on NULL */
size_t dt_bpe_work_nbytes(void);        /* of its cache */

/** Append the ids of a piece. lens, if not NULL, receives the length of each id in the piece, [ids added],
 *  borrowed until the next call. It is 0 for an id that shares its bytes with the next. */
dt_err dt_bpe_encode(const dt_bpe *b, dt_bpe_work *w, const char *piece, size_t n, dt_ids *ids, const uint32_t **lens);

/** GPT-2's mapping of bytes to characters: the character of a byte, and the byte of a character, -1 for none. */
uint32_t dt_byte_char(unsigned char byte);
int dt_char_byte(uint32_t code);
/** Append bytes, mapped to characters. */
void dt_text_append_mapped(dt_text *out, const char *bytes, size_t n);

#endif
