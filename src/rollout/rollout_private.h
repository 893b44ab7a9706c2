/* rollout_private.h - shared declarations of src/rollout. */
#ifndef DTRAIN_ROLLOUT_PRIVATE_H
#define DTRAIN_ROLLOUT_PRIVATE_H

#include "dtrain/rollout/rollout.h"
#include "dtrain/tokenizer/tokenizer.h"

/* Position of the run in its prompts and completions. */
typedef struct rollout_place {
    int64_t number;      /* of the rollout, -1: none */
    int64_t next_prompt; /* of all epochs */
    uint64_t next_completion;
} rollout_place;

/* Numbers of each token of all rows: [n_rows, ld]. */
typedef struct rollout_floats {
    float *at;
    int64_t ld;
} rollout_floats;

/* Lines of a file, a group each. */
typedef struct rollout_line {
    int64_t offset, number; /* number: from 1, blank lines counted */
} rollout_line;
typedef struct rollout_replay {
    const char *path;
    FILE *in; /* NULL: completions are generated */
    char *text;
    size_t text_room;
    rollout_line *line; /* [n] */
    int64_t n, longest_prompt, vocab_size;
    int n_rewards; /* of a completion */
    uint64_t fingerprint;
} rollout_replay;

struct dt_rollout {
    dt_rollout_options opt;
    rollout_replay replay;
    dt_loader *prompts;          /* t->train; NULL: none */
    int64_t n_prompts;           /* of an epoch */
    int32_t max_prompt, max_len; /* tokens of a prompt and of a row, at most */
    int32_t eos[DT_MAX_ENDS];
    int n_eos;
    dt_tokenizer *tokenizer; /* NULL: none that can be read here */
    dt_generate_options generate;
    dt_generator *generator; /* NULL with beams */
    dt_searcher *searcher;   /* NULL without */
    struct meeting *meeting; /* sample.c, while completions are generated */

    rollout_place now, before; /* before: dt_rollout_start */
    int64_t n_rows;

    /* One block. Rows of arrays are whole words of 8 bytes, in which ranks exchange them. */
    void *block;
    size_t nbytes;
    dt_rollout_row *row; /* [n_rows], and room for what is drawn besides (rollout_room); ids and sampled the same */
    int32_t *ids;        /* [n_rows, ids_ld] */
    int *chosen;         /* [num_generations] */
    int64_t ids_ld;
    rollout_floats sampled;                      /* max_completion numbers: log-probabilities by the sampler */
    rollout_floats array[DT_MAX_ROLLOUT_ARRAYS]; /* max_completion + 1 */
    double *given;                               /* [n_rows, replay.n_rewards] */
    dt_sequence *sequence;                       /* [n_share]: those of this rank */
    dt_sequence **sequences;                     /* [n_share] */
    float *logps;                                /* [n_share, max_len] */
    int64_t n_share;
    int64_t *rows_of_micro; /* [micro_batch_size] */
    float *scores;          /* [max_tok] */
    dt_batch batch;

    struct {
        int n, n_tok, least, largest, n_cut, n_ended, ended_tok, ended_least, ended_largest;
        int gap, gap_tok, gap_largest, ratio, n_ratios, ratio_least, ratio_largest;
        int seconds, score_seconds, reward_seconds;
    } sums;
    int policy;          /* the array that dt_rollout_policy has filled in for these rows, -1: none */
    dt_journal *journal; /* rollouts.jsonl, on rank 0 from the first line on */
    dt_cadence shown;
    double begin_s;                                /* of the run, for the cadence */
    double seconds, score_seconds, reward_seconds; /* of this rollout, on this rank */

    char *text[2]; /* by dt_rollout_part: borrowed until the next */
    char *record;
};

double rollout_saved_nbytes(const dt_rollout *r); /* saved.c */

/* replay.c: local. What was opened is to be closed after an error, too. */
dt_err rollout_replay_open(rollout_replay *f, const dt_rollout_options *opt, int64_t vocab_size);
size_t rollout_replay_nbytes(const rollout_replay *f);
void rollout_replay_close(rollout_replay *f);
dt_err rollout_replay_rows(dt_rollout *r, int64_t first); /* the rows from `first` on */
dt_err rollout_replay_record(dt_rollout *r, int64_t number, char **record);

/* Rows that are generated together: a group of beams, or one. */
static inline int rollout_unit(const dt_rollout *r) { return r->opt.beams ? r->opt.num_generations : 1; }
static inline dt_beam_options rollout_beams(const dt_rollout *r)
{
    return (dt_beam_options){.n_beams = r->opt.num_generations, .n_return = r->opt.num_generations};
}

/* Rows that are drawn for a prompt, and for all that a rollout takes. */
static inline int rollout_n_drawn(const dt_rollout *r)
{
    return r->opt.n_drawn ? r->opt.n_drawn : r->opt.num_generations;
}
static inline int64_t rollout_room(const dt_rollout *r)
{
    return r->opt.n_rows / r->opt.num_generations * rollout_n_drawn(r);
}
/* rollout.c: a row and its tokens, without the arrays, become another. */
void rollout_copy_row(dt_rollout *r, int64_t from, int64_t to);

/* sample.c: the rows first .. end-1, by the model. Collective, agreed. */
dt_err rollout_sample(dt_rollout *r, dt_task *t, int64_t first, int64_t end);
/** True if the user or the time limit asks this rank to stop. All ranks know it after a vote. Local. */
bool rollout_is_asked_to_stop(const dt_task *t);
/** "n_done of n WHAT ... left"; n_tok: made in that time, -1: none; share: of the work, that is done. Completions
 *  differ in length: what is left of them is as much as it can be. Local. */
void rollout_show_progress(const dt_task *t, const char *what, double begin_s, int64_t n_done, int64_t n, int64_t n_tok,
                           double share);
dt_err rollout_on_pass(void *r); /* for the generator, before each pass */

#endif
