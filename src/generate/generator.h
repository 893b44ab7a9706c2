/* generator.h - the state of generation, shared by generate.c, feed.c and beams.c. Private to generate. */
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
    /* of a beam search, with token and logp [n_slots, n_lists, k] */
    int n_groups;
    struct group *groups;
    struct beam *beam_store;       /* [n_groups, 2 n_beams] */
    struct hypothesis *done_store; /* [n_groups, n_beams] */
    int n_lists;                   /* per sequence; 2 with a penalty: tokens not yet seen, and seen ones */
    int32_t k;                     /* tokens per list */
    int32_t *id_store;             /* [n_groups][3 n_beams][max_len] */
    float *logp_store;             /* the same */
    struct candidate *best;        /* [n_best]: a heap with the worst candidate at the root, then sorted */
    int n_best, n_found;
    bool *taken; /* [n_beams] */
    /* [n_slots] copies of the step: slot dst[i] receives the contents of src[i] */
    int32_t *src, *dst;
    int32_t n_moves;
};

/** The sequence of a slot; NULL: none. */
static inline dt_sequence *in_slot(const dt_generator *g, int32_t slot)
{
    return g->seq_of[slot] < 0 ? NULL : g->seqs[g->seq_of[slot]];
}

/* feed.c: of a generator with opt.feed */
/** Free the slots of sequences that on_pass has ended. */
void feed_release(dt_generator *g);
/** Log-probabilities and lists of the prompts in this pass. */
dt_err feed_read_prompts(dt_generator *g);
/** Sample with each choice, as draw, and find the lists of the sampled positions. */
dt_err feed_draw(dt_generator *g, const dt_draw *draw);
/** Addresses of its arrays (dt_carve). */
void feed_lay_out(dt_generator *g, const dt_generate_options *opt, void *block, size_t *used);

/* beams.c: of a generator with opt.beams */
/** Allocate its beams. DT_ERR_ARG: values of opt.beams. */
dt_err beams_open(dt_generator *g);
void beams_close(dt_generator *g);
/** Bytes of their texts, which the generator counts; 0 without beams. */
size_t beams_nbytes(const dt_generate_options *opt);
/** Lists of tokens per slot. */
int beams_n_lists(const dt_generate_options *opt);
/** The callbacks of a search. */
decode_user beams_begin(dt_generator *g);

#endif
