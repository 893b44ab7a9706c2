/* generator.h - the state of plain decoding, shared by generate.c and feed.c. Private to generate. */
#ifndef DTRAIN_GENERATE_GENERATOR_H
#define DTRAIN_GENERATE_GENERATOR_H

#include "decode_loop.h"

struct dt_generator {
    decode_loop loop;
    dt_decoder decoder;
    dt_generate_options opt;
    dt_sequence *const *seqs;
    int n_seqs, next;       /* next: the first sequence without a slot so far */
    int n_parked;           /* sequences below `next` that have lost their slot */
    int *seq_of;            /* [n_slots] index of the sequence in a slot, -1: free */
    int32_t *prompt_of;     /* [n_slots] the prompt slot that the sequence in a slot continues, -1: none */
    int64_t *prompt_number; /* [n_prompts] number of the prompt in a prompt slot; 0: no prompt that can be shared */
    /* [n_slots] in the order of the pass's sequences. logp NULL: not needed. seen [n_slots, seen_ld] NULL: no penalty.
     * allowed [n_slots, seen_ld] NULL: no rules. */
    int32_t *token;
    double *uniform, *logp;
    uint32_t *seen, *allowed;
    bool *nothing_left;             /* [n_slots] like token, with rules: every token is forbidden */
    int32_t *state;                 /* [n_slots] state of the constraint, by slot */
    int32_t *list_start, *list_len; /* [n_slots] in the order of the pass's sequences */
    /* of a feed: [n_slots] its sequences, by slot, and results of one choice; [n_slots, max_top] lists; [max_tok] of
     * targets, and their lists */
    dt_sequence **fed;
    int32_t *one_token, *top_token, *target_top;
    double *one_logp, *top_logp;
    float *target_logp, *target_top_logp;
    void *draws; /* one allocation for the arrays from token on */
};

/* feed.c: of a generator with opt.feed */
/** Free the slots of sequences that on_pass has ended. */
void feed_release(dt_generator *g);
/** Log-probabilities and lists of the prompts in this pass. */
dt_err feed_read_prompts(dt_generator *g);
/** Sample with each choice, as draw, and find the lists of the sampled positions. */
dt_err feed_draw(dt_generator *g, const dt_draw *draw);
/** Addresses of its arrays (dt_carve). */
void feed_lay_out(dt_generator *g, const dt_generate_options *opt, void *block, size_t *used);

#endif
