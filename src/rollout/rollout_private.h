/* rollout_private.h - shared declarations of src/rollout. */
#ifndef DTRAIN_ROLLOUT_PRIVATE_H
#define DTRAIN_ROLLOUT_PRIVATE_H

#include "dtrain/rollout/turns.h"
#include "dtrain/tokenizer/tokenizer.h"

/* Position of the run in its prompts and completions. */
typedef struct rollout_place {
    int64_t number;      /* rollout number, -1: none */
    int64_t next_prompt; /* counted over all epochs */
    uint64_t next_completion;
} rollout_place;

/* One float per token of all rows: [n_rows, ld]. */
typedef struct rollout_floats {
    float *at;
    int64_t ld;
} rollout_floats;

/* A line of a file, which holds one group. */
typedef struct rollout_line {
    int64_t offset, number; /* number: from 1, including blank lines */
    int64_t sample;         /* of data.train, with n_samples */
} rollout_line;
typedef struct rollout_replay {
    const char *path;
    FILE *in; /* NULL: completions are generated */
    char *text;
    size_t text_room;
    rollout_line *line; /* [n] */
    int64_t n, longest_prompt, vocab_size;
    int64_t n_samples; /* of data.train, if it has images: each line names the sample with its prompt; else 0 */
    int n_rewards;     /* per completion */
    bool has_turns;    /* completions have a tool_mask */
    uint64_t fingerprint;
} rollout_replay;

struct dt_rollout {
    dt_rollout_options opt;
    rollout_replay replay;
    dt_loader *prompts; /* t->train, or own; NULL: none */
    bool has_own;       /* t->train is the task's, so own is used */
    dt_loader *own;
    int64_t n_prompts;           /* per epoch */
    int32_t max_prompt, max_len; /* maximum tokens of a prompt and of a row */
    int32_t max_images;          /* maximum images of a prompt, of grids cells */
    int32_t recompute_at;        /* of dt_generate_options */
    int32_t eos[DT_MAX_ENDS];
    int n_eos;
    int32_t end_of_turn;     /* -1: none but EOS tokens */
    dt_tokenizer *tokenizer; /* NULL: none that dtrain can read */
    dt_generate_options generate;
    dt_model *model; /* that generates */
    dt_generator *generator;
    struct meeting *meeting; /* sample.c, during generation */

    rollout_place now, before; /* before: the position at dt_rollout_start */
    int64_t n_rows;

    /* Row lengths are multiples of 8 bytes, because ranks exchange whole words. */
    dt_rollout_row *row; /* [n_rows], plus room for additional samples (rollout_room); the same for ids and sampled */
    int32_t *ids;        /* [n_rows, ids_ld] */
    uint8_t *observed;   /* [n_rows, observed_ld] 1: the token of a completion is an environment's; NULL: no turns */
    int64_t observed_ld;
    int *chosen; /* [num_generations] */
    int64_t ids_ld;
    rollout_floats sampled;                      /* [.., max_completion]: log-probabilities by the sampler */
    rollout_floats array[DT_MAX_ROLLOUT_ARRAYS]; /* [.., max_completion + 1] */
    double *given;                               /* [n_rows, replay.n_rewards] */
    dt_sequence *sequence;                       /* [n_share]: sequences of this rank */
    dt_sequence **sequences;                     /* [n_share] */
    int32_t *n_cells;                            /* [n_share, max_images] of images that are grids */
    uint32_t *grid;                              /* [max_images] */
    int64_t first_sampled;                       /* row of sequence 0 */
    float *logps;                                /* [n_share, max_len] */
    dt_turn *turn;                               /* [n_share] the last turn of each */
    int64_t n_share;
    int64_t *rows_of_micro; /* [micro_batch_size] */
    float *scores;          /* [max_tok] */
    dt_batch batch;

    struct {
        int n_turns, n_calls, n_failures, n_observed, turn_seconds;
        int n, n_tok, least, largest, n_cut, n_ended, ended_tok, ended_least, ended_largest;
        int gap, gap_tok, gap_largest, ratio, n_ratios, ratio_least, ratio_largest;
        int seconds, score_seconds, reward_seconds;
    } sums;
    int policy;          /* the array that dt_rollout_policy has filled for these rows, -1: none */
    dt_journal *journal; /* rollouts.jsonl, on rank 0, open since the first line */
    dt_cadence shown;
    double begin_s;                                              /* start of the run, for the cadence */
    double seconds, score_seconds, reward_seconds, turn_seconds; /* of this rollout, on this rank */

    char *text[2]; /* returned by dt_rollout_part: valid until its next call */
    char *record;
};

double rollout_saved_nbytes(const dt_rollout *r); /* saved.c */

/* replay.c: local. Call close even after an error of open. */
dt_err rollout_replay_open(rollout_replay *f, const dt_rollout_options *opt, int64_t vocab_size);
size_t rollout_replay_nbytes(const rollout_replay *f);
void rollout_replay_close(rollout_replay *f);
dt_err rollout_replay_rows(dt_rollout *r, int64_t first); /* fills the rows starting at `first` */
dt_err rollout_replay_record(dt_rollout *r, int64_t number, char **record);

/* Rows that are generated together: a group of beams, or one row. */
static inline int rollout_unit(const dt_rollout *r) { return r->opt.beams ? r->opt.num_generations : 1; }

/* Samples per prompt, and number of rows of the whole rollout including those. */
static inline int rollout_n_drawn(const dt_rollout *r)
{
    return r->opt.n_drawn ? r->opt.n_drawn : r->opt.num_generations;
}
static inline int64_t rollout_room(const dt_rollout *r)
{
    return r->opt.n_rows / r->opt.num_generations * rollout_n_drawn(r);
}
/* Do completions have turns of an environment? */
static inline bool rollout_has_turns(const dt_rollout *r) { return r->opt.turns || r->replay.has_turns; }

/* images.c: images of prompts. Local. */
/* The sample of data.train with the row's prompt. */
int64_t rollout_sample_of(const dt_rollout *r, const dt_rollout_row *row);
bool rollout_has_cells(const dt_rollout *r, const dt_task *t);
/* Set the numbers of a sequence's images; n_cells: out [max_images]. */
dt_err rollout_count_images(dt_rollout *r, const dt_rollout_row *row, int32_t *n_cells, dt_sequence *q);
/* dt_generate_options.image. */
dt_err rollout_image(void *r, const dt_sequence *q, int32_t k, uint8_t *to, uint32_t *grid);
/* Add the images of the batch's last sequence, whose row this is: those of an earlier sequence with the same prompt. */
dt_err rollout_add_images(dt_rollout *r, int64_t row);

/* rollout.c: copy a row and its tokens, without the arrays. */
void rollout_copy_row(dt_rollout *r, int64_t from, int64_t to);

/* sample.c: generate rows first .. end-1 with the model. Collective, agreed. */
dt_err rollout_sample(dt_rollout *r, dt_task *t, int64_t first, int64_t end);
/** True if the user or the time limit requests a stop on this rank. A vote tells the other ranks. Local. */
bool rollout_is_asked_to_stop(const dt_task *t);
/** Show "n_done of n WHAT ... left". n_tok: tokens generated since begin_s, -1: none. share: completed fraction of the
 *  work. Completions differ in length, so the remaining time is an upper bound. Local. */
void rollout_show_progress(const dt_task *t, const char *what, double begin_s, int64_t n_done, int64_t n, int64_t n_tok,
                           double share);
/* Called by the generator: before each pass, and for turns. */
dt_err rollout_on_pass(void *r);
dt_err rollout_on_token(void *r, dt_sequence *q);
dt_err rollout_on_wait(void *r, bool idle);

/* turns.c: local. first: the row of r->sequence[0]. */
dt_err rollout_end_turn(dt_rollout *r, int64_t first, dt_sequence *q);
dt_err rollout_take_answers(dt_rollout *r, int64_t first, double most_s);
/* Copy the sampler's log-probabilities of the model's tokens of a row from those of all tokens of its completion. */
void rollout_take_sampled(dt_rollout *r, int64_t row, const float *logps);

#endif
