/* decode_loop.h - what plain decoding and beam search share: slots of the model's cache, and forward passes that feed
 * them.
 *
 * A pass is decode, then what its user reads of it: tokens that were drawn on the device, or the most probable ones.
 *
 * Continuous batching: each pass takes one token of every running sequence and fills the rest of its room with pieces
 * of prompts, so neither a long prompt nor a short answer leaves slots idle. The batch is a flat list of tokens:
 * nothing is padded. */
#ifndef DTRAIN_GENERATE_DECODE_LOOP_H
#define DTRAIN_GENERATE_DECODE_LOOP_H

#include "dtrain/generate/generate.h"

typedef struct decode_slot {
    const int32_t *ids;    /* NULL: nothing to decode */
    int32_t n_ids, done;   /* tokens there are, and of these in the cache */
    int32_t n_prompt;      /* the first of them: placeholders stand among these */
    const dt_sequence *of; /* whose images they stand for */
    int32_t take;          /* of these in the pass */
    int32_t take_images;   /* images in the pass */
    int32_t row;           /* its sequence in the last pass, -1: none */
} decode_slot;

typedef struct decode_loop {
    const dt_decoder *decoder;
    const dt_generate_options *opt;
    decode_slot *slots; /* [n_slots + n_prompts]: those of prompts behind those of sequences */
    int32_t *slot_of;   /* [n_slots] the decoder's slot of each sequence of the batch */
    dt_batch batch;
    uint8_t *pixels; /* of the batch, which has none where a pass has none */
    dt_generate_stats *stats;
} decode_loop;

typedef struct decode_user {
    void *self;
    dt_err (*admit)(void *self, bool *work); /* fill slots: is there anything to do? */
    dt_err (*read)(void *self);              /* from the model, after its decode */
    dt_err (*use)(void *self);               /* what was read: local */
} decode_user;

dt_err decode_loop_open(decode_loop *p, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats);
void decode_loop_close(decode_loop *p);
/** Pass after pass. With lockstep until no rank has anything to do, or one has failed. */
dt_err decode_loop_run(decode_loop *p, const decode_user *user);
/** The sequence, in the last pass, of a slot whose tokens have all gone through; else -1. */
int32_t decode_loop_row(const decode_loop *p, int32_t slot);
/** The decoder's number of a slot. */
int32_t decode_loop_slot(const decode_loop *p, int32_t slot);
/** Bytes of the images of a pass. */
size_t decode_loop_pixels(const dt_generate_options *opt);
/** The most of a sequence's first n tokens that do not end within an image. */
int32_t decode_loop_whole(const dt_generate_options *opt, const dt_sequence *q, int32_t n);
/** Has a prompt as many placeholders as its images want? DT_ERR_ARG. */
dt_err decode_loop_check(const dt_generate_options *opt, const dt_sequence *q);
bool is_end_of_text(const dt_generate_options *opt, int32_t token);

#endif
