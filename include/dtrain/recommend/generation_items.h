/* generation_items.h - the catalogue of a recommender for generating tasks: items, their tokens, and the allowed
 * continuations.
*/
#ifndef DTRAIN_TASK_ITEMS_H
#define DTRAIN_TASK_ITEMS_H

#include "dtrain/step/step.h"
#include "dtrain/recommend/trie.h"

typedef struct dt_generation_items {
    bool is_named;           /* rec.catalogue is given */
    dt_catalogue *catalogue; /* NULL: not open, or a reported mistake */
    dt_tokenizer *tokenizer;
    dt_trie *trie; /* also NULL in a plan without a tokenizer */
    dt_constraint only;
} dt_generation_items;

/** In open: rec.catalogue, if it is given. Errors are added to t->mistakes. Local. */
void dt_generation_items_open(dt_generation_items *items, dt_task *t);
void dt_generation_items_close(dt_generation_items *items, dt_ledger *ledger); /* safe on {0} */
size_t dt_generation_items_nbytes(const dt_generation_items *items);           /* in the ledger, as data on the host */

/** The constraint on completions; NULL without a catalogue. */
const dt_constraint *dt_generation_items_constraint(const dt_generation_items *items);
enum { DT_ITEMS_USUAL_DEPTH = 8 }; /* where items' tokens are not known */
/** Tokens of the longest completion, the one that ends it included. Without a catalogue otherwise; of a plan without
 *  the tokenizer, and of a catalogue that could not be read, the usual number, and at most otherwise. */
int32_t dt_generation_items_depth(const dt_generation_items *items, int32_t otherwise);

/** The target of a prompt, which its answer names: as a text without what stands around it (malloc'ed), and the first
 *  item with that SID, -1: the catalogue has none. prompts: with answers. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_generation_items_target(const dt_generation_items *items, dt_loader *prompts, int64_t prompt, char **text,
                                  int32_t *item);

#endif
