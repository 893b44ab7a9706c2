/* pass.h - what plain decoding and beam search share: slots of the model's cache, and forward passes that feed them.
 *
 * Continuous batching: each pass takes one token of every running sequence and fills the rest of its room with pieces
 * of prompts, so neither a long prompt nor a short answer leaves slots idle. The batch is a flat list of tokens:
 * nothing is padded. */
#ifndef DTRAIN_TASK_PASS_H
#define DTRAIN_TASK_PASS_H

#include "dtrain/generate.h"

typedef struct pass_slot {
    const int32_t *ids;  /* NULL: nothing to decode */
    int32_t n_ids, done; /* tokens there are, and of these in the cache */
    int32_t n_prompt;    /* the first of them, for the statistics */
    int32_t take;        /* of these in the pass */
    int32_t row;         /* of its logits in the last pass, -1: none */
} pass_slot;

typedef struct dt_pass {
    const dt_decoder *decoder;
    const dt_generate_options *opt;
    pass_slot *slots; /* [n_slots] */
    int32_t *slot_of; /* [n_slots] slot of each sequence of the batch */
    float *logits;    /* [n_slots, vocab_size] */
    size_t nbytes;    /* of logits */
    dt_batch batch;
    dt_generate_stats *stats;
} dt_pass;

dt_err dt_pass_open(dt_pass *p, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats);
void dt_pass_close(dt_pass *p);
/** Pass after pass: admit fills slots and says whether there is anything to do; use reads the logits of the slots that
 *  are through. With lockstep until no rank has anything to do, or one has failed. */
dt_err dt_pass_loop(dt_pass *p, void *self, bool (*admit)(void *self), dt_err (*use)(void *self));
/** Logits of a slot whose tokens have all gone through in the last pass; else NULL. */
float *dt_pass_logits(const dt_pass *p, int32_t slot);
bool dt_pass_ends(const dt_generate_options *opt, int32_t token);

#endif
