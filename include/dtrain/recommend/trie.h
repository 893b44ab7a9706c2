/* trie.h - the sequences of tokens that name an item of a catalogue: its SID, a newline, the token that ends a text.
 * What constrained generation follows; docs/recommendation.md. */
#ifndef DTRAIN_TRIE_H
#define DTRAIN_TRIE_H

#include "dtrain/recommend/catalogue.h"
#include "dtrain/generate/generate.h"

/** What prompts end with unless something else is said: MiniOneRec's. */
#define DT_TRIE_TAIL "### Response:\n"

typedef struct dt_trie dt_trie;

/** The trie over the tokens that follow `tail`, the end of every prompt, when it is tokenised together with what comes
 *  behind it. Items with one SID are one leaf. eos: the token that ends a text; vocab_size: of the model. Local;
 *  borrows c. ledger: NULL, or told of its memory (data, on the host). DT_ERR_DATA naming the catalogue's file, line
 *  and item: a token reaches from the tail into the SID or is beyond the vocabulary, or two SIDs have the same tokens.
 *  DT_ERR_USAGE: eos is none. DT_ERR_MEMORY. */
dt_err dt_trie_open(dt_trie **t, const dt_catalogue *c, const dt_tokenizer *tokenizer, const char *tail, int32_t eos,
                    int64_t vocab_size, dt_ledger *ledger);
void dt_trie_close(dt_trie *t);          /* safe on NULL */
size_t dt_trie_nbytes(const dt_trie *t); /* in the ledger; 0 for NULL */

/** States are nodes; lives as long as t. */
dt_constraint dt_trie_constraint(const dt_trie *t);
int32_t dt_trie_n_leaves(const dt_trie *t);
int32_t dt_trie_depth(const dt_trie *t); /* tokens of the longest sequence, the one that ends it included */
/** Leaves that at most n_tok tokens reach, and the tokens of the shortest sequence. */
int32_t dt_trie_n_within(const dt_trie *t, int32_t n_tok);
int32_t dt_trie_shortest(const dt_trie *t);

/** The first item, in the catalogue's order, that the tokens behind a prompt name, -1: none. */
int32_t dt_trie_item(const dt_trie *t, const int32_t *ids, int32_t n);
/** The reverse: tokens of an item that is the first of its SID, the one that ends a text included; how many they are.
 *  ids: [dt_trie_depth]. */
int32_t dt_trie_ids(const dt_trie *t, int32_t item, int32_t *ids);

#endif
