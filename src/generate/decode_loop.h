/* decode_loop.h - shared by plain decoding and beam search: slots of the model's cache, and the forward passes that
 * fill them.
 *
 * After each pass the caller reads its results: tokens sampled on the device, or the most probable ones.
 *
 * Continuous batching: each pass takes one token of every running sequence, and fills the remaining capacity with
 * chunks of prompts. Neither a long prompt nor a short answer leaves slots idle. The batch is a flat list of tokens
 * without padding. */
#ifndef DTRAIN_GENERATE_DECODE_LOOP_H
#define DTRAIN_GENERATE_DECODE_LOOP_H

#include "dtrain/image/batch_images.h"
#include "dtrain/generate/generate.h"

typedef struct decode_slot {
    const int32_t *ids;          /* NULL: nothing to decode */
    int32_t n_ids, done;         /* number of tokens, and how many of them are in the cache */
    int32_t held;                /* 1: the last token waits, until 0 is set */
    int32_t n_prompt;            /* length of the prompt; only these may be placeholders */
    const dt_sequence *of;       /* the sequence with the images */
    int32_t take;                /* number of tokens in this pass */
    int32_t take_images;         /* number of images in this pass; of grids: cells */
    int32_t first_image, n_take; /* the images of this pass */
    int32_t row;                 /* index of its sequence in the last pass, -1: none */
} decode_slot;

typedef struct decode_loop {
    const dt_decoder *decoder;
    const dt_generate_options *opt;
    decode_slot *slots; /* [n_slots + n_prompts]: slots of sequences, then of prompts */
    int32_t *slot_of;   /* [n_slots] the decoder's slot of each sequence of the batch */
    dt_batch batch;
    dt_batch_images *images; /* the extension of the batch; NULL: the model has no vision tower */
    dt_generate_stats *stats;
    bool idle; /* no rank had work before the last call of admit, and one waits */
} decode_loop;

typedef struct decode_user {
    void *self;
    /* fill slots; sets *work if there is anything to do, *waits if only on_wait can bring work */
    dt_err (*admit)(void *self, bool *work, bool *waits);
    dt_err (*read)(void *self); /* read results from the model, after its decode */
    dt_err (*use)(void *self);  /* process them: local */
} decode_user;

dt_err decode_loop_open(decode_loop *p, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats);
void decode_loop_close(decode_loop *p);
/** Run passes until there is no work. In lockstep: until no rank has work, or one has failed. */
dt_err decode_loop_run(decode_loop *p, const decode_user *user);
/** Index of a slot's sequence in the last pass if all its tokens have been processed; otherwise -1. */
int32_t decode_loop_row(const decode_loop *p, int32_t slot);
/** The decoder's slot for a loop slot. */
int32_t decode_loop_slot(const decode_loop *p, int32_t slot);
/** Bytes of the batch. */
size_t decode_loop_nbytes(const dt_generate_options *opt);
/** The maximum prefix of a sequence's first n tokens that does not end within an image. */
int32_t decode_loop_whole(const dt_generate_options *opt, const dt_sequence *q, int32_t n);
/** DT_ERR_ARG unless a prompt has as many placeholders as its images need. */
dt_err decode_loop_check(const dt_generate_options *opt, const dt_sequence *q);
/** Why the last of n_ids tokens ends a sequence; NONE: it continues. */
dt_finish decode_loop_ending(const dt_generate_options *opt, const int32_t *ids, int32_t n_prompt, int32_t n_ids,
                             int32_t max_ids);
/** Does a text grow beyond recompute_at between n_before and n_now tokens? */
bool decode_loop_outgrows(const dt_generate_options *opt, int32_t n_before, int32_t n_now);

#endif
