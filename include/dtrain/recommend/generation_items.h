/* generation_items.h - the catalogue of a recommender for generating tasks: items, their tokens, and the allowed
 * continuations. */
#ifndef DTRAIN_TASK_ITEMS_H
#define DTRAIN_TASK_ITEMS_H

#include "dtrain/step/step.h"
#include "dtrain/recommend/trie.h"

/** The catalogue of a task. {0} to begin. */
typedef struct dt_generation_items {
    bool is_named;           /* rec.catalogue is given */
    dt_catalogue *catalogue; /* NULL: not open, or a reported mistake */
    dt_tokenizer *tokenizer;
    dt_trie *trie; /* also NULL in a plan without a tokenizer */
    dt_constraint only;
} dt_generation_items;

/** In open: open rec.catalogue, if it is given, as a part of the task. Errors are added to t->mistakes. Local. */
void dt_generation_items_open(dt_generation_items *items, dt_task *t);

/** The constraint on completions, borrowed; NULL without a catalogue. Local. */
const dt_constraint *dt_generation_items_constraint(const dt_generation_items *items);
enum { DT_ITEMS_USUAL_DEPTH = 8 }; /* if the items' tokens are unknown */
/** Tokens of the longest completion, including the one that ends it; `otherwise` without a catalogue. In a plan without
 *  tokenizer, and for a catalogue that could not be read, DT_ITEMS_USUAL_DEPTH, at most `otherwise`. Local. */
int32_t dt_generation_items_depth(const dt_generation_items *items, int32_t otherwise);

/** Find the target of a prompt, which its answer names. Local.
 *
 *  prompts  with answers
 *  text     out  its SID without surrounding text, malloc'ed
 *  item     out  the first item with this SID; -1: none
 *
 *  DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_generation_items_target(const dt_generation_items *items, dt_loader *prompts, int64_t prompt, char **text,
                                  int32_t *item);

#endif
