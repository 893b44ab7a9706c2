/* bpe.h - byte-pair encoding: a piece of text becomes symbols, and the pair that stands first in the list of merges is
 * joined until none is left.
 *
 * Source   Sennrich et al., ACL 2016, arXiv:1508.07909; where it is silent, Hugging Face's tokenizers. */
#ifndef DTRAIN_TEXT_BPE_H
#define DTRAIN_TEXT_BPE_H

#include "dtrain/io/spec.h"
#include "dtrain/text/utf8.h"
#include "vocab.h"

typedef struct dt_merge {
    int32_t left, right; /* left -1: free */
    int32_t rank, joined;
} dt_merge;

typedef struct dt_bpe {
    dt_vocab vocab;  /* the added tokens, too */
    dt_merge *merge; /* open addressing */
    size_t n_merge_slots;
    bool of_bytes; /* a piece is raw bytes, each of which is one symbol (the vocabulary writes it as a character) */
    bool ignore_merges, fuse_unk, byte_fallback;
    int32_t unk; /* -1: what is unknown is left out */
    /* of_bytes: the symbols; else those that stand for a byte of an unknown character. -1: none */
    int32_t byte_symbol[256];
    int32_t ascii[128];    /* symbols of characters, not with prefix or suffix */
    bool all_known;        /* no text becomes unk or is left out */
    char *prefix, *suffix; /* of what continues a word and of what ends one; NULL: none */
    uint64_t *
        /* bit set over pairs of neighbours (bytes or characters) that occur within a token; NULL: a piece is never
         * parted */
        pair;
    uint64_t pair_mask;
} dt_bpe;

/** Read "model" of a tokenizer.json. DT_ERR_DATA, DT_ERR_MEMORY. Free it in any case. */
dt_err dt_bpe_read(dt_bpe *b, const dt_spec *model, bool of_bytes);
size_t dt_bpe_nbytes(const dt_bpe *b); /* of tokens and merges */
void dt_bpe_free(dt_bpe *b);           /* safe on {0} */

/** Can two neighbours (bytes, or code points) be in no token together? Then the text may be parted between them. */
const dt_merge *dt_bpe_merge(const dt_bpe *b, int32_t left, int32_t right); /* NULL: none */
bool dt_bpe_keeps_apart(const dt_bpe *b, uint32_t x, uint32_t y);

/** What a thread needs: symbols, queue, cache. */
typedef struct dt_bpe_work dt_bpe_work;
dt_err dt_bpe_work_open(dt_bpe_work **w);
void dt_bpe_work_close(dt_bpe_work *w); /* safe on NULL */
size_t dt_bpe_work_nbytes(void);        /* of its cache */

/** Append the ids of a piece. lens, when not NULL, gets the bytes of each in the piece (0 for one that shares its bytes
 *  with the next), [ids added], borrowed until the next call. */
dt_err dt_bpe_encode(const dt_bpe *b, dt_bpe_work *w, const char *piece, size_t n, dt_ids *ids, const uint32_t **lens);

/** GPT-2's way to write bytes as characters: the character of a byte; and the byte of a character, -1 for none. */
uint32_t dt_byte_char(unsigned char byte);
int dt_char_byte(uint32_t code);
/** Append the characters of bytes. */
void dt_text_append_mapped(dt_text *out, const char *bytes, size_t n);

#endif
