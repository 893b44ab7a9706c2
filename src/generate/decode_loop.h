/* decode_loop.h - what plain decoding and beam search share: slots of the model's cache, and forward passes that feed
 * them.
 *
 * Continuous batching: each pass takes one token of every running sequence and fills the rest of its room with pieces
 * of prompts, so neither a long prompt nor a short answer leaves slots idle. The batch is a flat list of tokens:
 * nothing is padded. */
#ifndef DTRAIN_GENERATE_DECODE_LOOP_H
#define DTRAIN_GENERATE_DECODE_LOOP_H

#include "dtrain/generate.h"

typedef struct decode_slot {
    const int32_t *ids;  /* NULL: nothing to decode */
    int32_t n_ids, done; /* tokens there are, and of these in the cache */
    int32_t n_prompt;    /* the first of them, for the statistics */
    int32_t take;        /* of these in the pass */
    int32_t row;         /* of its logits in the last pass, -1: none */
} decode_slot;

typedef struct decode_loop {
    const dt_decoder *decoder;
    const dt_generate_options *opt;
    decode_slot *slots; /* [n_slots] */
    int32_t *slot_of;   /* [n_slots] slot of each sequence of the batch */
    float *logits;      /* [n_slots, vocab_size] */
    size_t nbytes;      /* of logits */
    dt_batch batch;
    dt_generate_stats *stats;
} decode_loop;

dt_err decode_loop_open(decode_loop *p, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats);
void decode_loop_close(decode_loop *p);
size_t decode_loop_logits_nbytes(const dt_generate_options *opt);
/** Pass after pass: admit fills slots and says whether there is anything to do; use reads the logits of the slots that
 *  are through. With lockstep until no rank has anything to do, or one has failed. */
dt_err decode_loop_run(decode_loop *p, void *self, bool (*admit)(void *self), dt_err (*use)(void *self));
/** Logits of a slot whose tokens have all gone through in the last pass; else NULL. */
float *decode_loop_logits(const decode_loop *p, int32_t slot);
bool is_end_of_text(const dt_generate_options *opt, int32_t token);

#endif
