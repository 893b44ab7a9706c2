/* trie.h - a trie over the token sequences that name an item of a catalogue: its SID, a newline, the end of text. For
 * constrained generation; docs/recommendation.md. Every function is Local. */
#ifndef DTRAIN_TRIE_H
#define DTRAIN_TRIE_H

#include "dtrain/recommend/catalogue.h"
#include "dtrain/generate/generate.h"

/** Default end of prompts: MiniOneRec's. */
#define DT_TRIE_TAIL "### Response:\n"

typedef struct dt_trie dt_trie;

/** Build the trie over the tokens that follow `tail`, the end of every prompt, if both are tokenised together. Items
 *  with the same SID share a leaf.
 *
 *  t           out  closed with dt_trie_close; NULL on error
 *  c           borrowed until then
 *  eos         the token that ends a text
 *  vocab_size  of the model
 *  ledger      counts its memory (DT_MEM_DATA, host); may be NULL
 *
 *  DT_ERR_DATA naming the catalogue's file, line and item: a token crosses from the tail into the SID or is outside the
 *  vocabulary, or two SIDs have the same tokens. DT_ERR_USAGE: eos is -1. DT_ERR_MEMORY. */
dt_err dt_trie_open(dt_trie **t, const dt_catalogue *c, const dt_tokenizer *tokenizer, const char *tail, int32_t eos,
                    int64_t vocab_size, dt_ledger *ledger);
/** Free the trie. Safe on NULL. */
void dt_trie_close(dt_trie *t);
/** Bytes in the ledger; 0 for NULL. */
size_t dt_trie_nbytes(const dt_trie *t);

/** The constraint whose states are nodes. Borrows t. */
dt_constraint dt_trie_constraint(const dt_trie *t);
/** Number of leaves. */
int32_t dt_trie_n_leaves(const dt_trie *t);
/** Tokens of the longest sequence, including the one that ends it. */
int32_t dt_trie_depth(const dt_trie *t);
/** Number of leaves at a depth of at most n_tok tokens. */
int32_t dt_trie_n_within(const dt_trie *t, int32_t n_tok);
/** Tokens of the shortest sequence. */
int32_t dt_trie_shortest(const dt_trie *t);

/** The first item, in catalogue order, that a completion names; -1: none. */
int32_t dt_trie_item(const dt_trie *t, const int32_t *ids, int32_t n);
/** Tokens of an item, which must be the first with its SID, including the end of text. ids: out [dt_trie_depth].
 *  Returns their number. */
int32_t dt_trie_ids(const dt_trie *t, int32_t item, int32_t *ids);

#endif
