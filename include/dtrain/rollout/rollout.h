/* rollout.h - completions of prompts by the model in training, and the values stored for their tokens.
 *
 * A rollout is replicated: each rank generates and scores a part, then every rank holds the whole rollout. Groups,
 * minibatches, normalisers, checkpoints and rollouts.jsonl therefore do not depend on the number of ranks. A row is a
 * completion with its prompt. The num_generations completions per prompt are a group: consecutive rows. */
#ifndef DTRAIN_ROLLOUT_H
#define DTRAIN_ROLLOUT_H

#include "dtrain/generate/generate.h"
#include "dtrain/step/step.h"

enum { DT_MAX_ROLLOUT_ARRAYS = 8 };
#define DT_MOST_REWARD 1e30 /* maximum absolute value of a reward: sums of squares must not overflow */

typedef struct dt_rollout dt_rollout;
typedef struct dt_turns dt_turns;

/** Options of dt_rollout_open. */
typedef struct dt_rollout_options {
    const char *section;     /* of the task's keys, for messages: "grpo" */
    bool validation;         /* use the prompts of data.validation, in order; not stored in checkpoints */
    bool unsaved;            /* it is made again after a resume; not stored in checkpoints */
    bool by_other;           /* another model generates: dt_rollout_use */
    dt_rollout *writes_with; /* an earlier rollout that opens rollouts.jsonl for both; NULL: none */
    bool records;            /* files may have kind sft: the prompt of a record precedes its last answer */
    int64_t n_rows;          /* rows of a rollout over all ranks: a multiple of num_generations */
    int num_generations;     /* completions per prompt */
    int32_t max_completion;  /* maximum tokens of a completion, including the one that ends it */
    /* tokens that end a completion. NULL, "" or "eos": the model's EOS tokens; else only this token, as the tokenizer
     * writes it, or an id */
    const char *stop_token;
    /* a group is the num_generations best results of a beam search of that width, in descending order, instead of
     * sampled completions; if fewer are found, the last rows have no tokens */
    bool beams;
    /* completions sampled per prompt, of which num_generations are kept; 0: num_generations. Not with beams */
    int n_drawn;
    /* with n_drawn: choose the rows to keep of first .. first+n_drawn-1, and their order. chosen: out
     * [num_generations], different indices from 0. Called on all ranks, which have all rows; local */
    dt_err (*choose)(void *self, dt_task *t, const dt_rollout *r, int64_t first, int *chosen);
    void *choose_self;
    const dt_constraint *constraint; /* constraint on completions, borrowed; NULL: none */
    dt_sampling sampling;            /* with its seed; beams only use temperature and repetition penalty */
    const char *from_file;           /* grpo.rollouts: completions are read from there; "": they are generated */
    dt_turns *turns; /* an environment answers each turn of a completion (turns.h), borrowed; NULL: none. Not with
                      * beams or a constraint */
    int n_arrays; /* number of arrays with a value per token of a completion; names in checkpoints and rollouts.jsonl */
    const char *array_name[DT_MAX_ROLLOUT_ARRAYS];
} dt_rollout_options;

/** A completion and its prompt. The completion consists of n_new tokens of the model and n_observed tokens of an
 *  environment between them. Only the model's are targets, have values in arrays and count in lengths. */
typedef struct dt_rollout_row {
    int64_t prompt;  /* sample index in the dataset, over all its files */
    uint64_t number; /* index among all completions of the run: key of its random numbers */
    int32_t n_prompt, n_new, n_observed;
    int32_t n_turns, n_calls, n_failures; /* turns of the model, its tool calls, and those that failed */
    double reward;                        /* by the environment; NaN: none */
    bool ended; /* the model's last token ends a completion; false: it was cut at max_completion */
} dt_rollout_row;
/** Tokens of a completion, including an environment's. Local. */
static inline int32_t dt_rollout_n_completion(const dt_rollout_row *row) { return row->n_new + row->n_observed; }

/* ---- life cycle: called by the functions of a task (step.h) with the same names ---------------------------------- */

/** In open: open the prompts of data.train (kind prompts) as t->train (for validation: data.validation as t->valid), or
 *  from_file; both if the prompts have images, and each line of from_file then has the number of its prompt, "sample".
 *  Declares the sum "images". If the task has opened t->train, the rollout reads the files with a loader of its own.
 *  Requests in t->model_opt a cache, and micro-batches of micro_batch_size of the longest rows; adds the bytes of
 *  dt_rollout_save to t->saved_nbytes; sets t->wants_gathered, unless by_other. The caller sets t->temperature. A row
 *  has at most data.seq_len tokens; of a longer prompt the last tokens are used. Local.
 *
 *  opt  in  copied; strings and constraint are borrowed
 *
 *  Errors are added to t->mistakes. Returns NULL if there is no memory; freed when the task is closed. */
dt_rollout *dt_rollout_open(dt_task *t, const dt_rollout_options *opt);
/** With by_other: set the model that generates. Called in begin of a part that the task added after the rollout and
 *  that model, which was opened for generation (dt_scorer.generates). Local. DT_ERR_MEMORY. */
dt_err dt_rollout_use(dt_rollout *r, dt_task *t, dt_model *m);
/** Add the position in the prompts, the rows and the arrays to the items of a checkpoint (not if unsaved), and flush
 *  rollouts.jsonl to disk. Collective, agreed. DT_ERR_MEMORY, DT_ERR_WRITE. */
dt_err dt_rollout_save(dt_rollout *r, dt_task *t, dt_named_arrays *items);
/** Restore the items of dt_rollout_save. A rollout that was made with other options is discarded with a warning.
 *  Collective, agreed. DT_ERR_DATA: an item is missing or contradicts another. */
dt_err dt_rollout_load(dt_rollout *r, dt_task *t, const dt_named_arrays *items);
/** Discard a loaded rollout, so that the next step makes a new one. why: for the warning. Called on all ranks;
 *  local. */
void dt_rollout_discard(dt_rollout *r, const dt_task *t, const char *why);

/* ---- generating a rollout ---------------------------------------------------------------------------------------- */

/** Number of prompts per epoch. Local. */
int64_t dt_rollout_n_prompts(const dt_rollout *r);
/** Number of rows that exist so far: at most n_rows of the options. Local. */
int64_t dt_rollout_n_rows(const dt_rollout *r);
/** num_generations of the options. Local. */
int dt_rollout_group_size(const dt_rollout *r);
/** Index of the current rollout, from 0; -1: none. Local. */
int64_t dt_rollout_number(const dt_rollout *r);

/** Begin rollout `number`, without rows: save the position in the prompts for dt_rollout_undo. Local; called on all
 *  ranks. */
void dt_rollout_start(dt_rollout *r, int64_t number);
/** Continue with prompt `prompt`, counted over all epochs, with the same random numbers each time. Local; called on all
 *  ranks. */
void dt_rollout_rewind(dt_rollout *r, int64_t prompt);
/** Complete the next prompts, or read completions from from_file, until there are n_rows rows. Collective, agreed.
 *
 *  DT_ERR_NONFINITE: logits. DT_ERR_DATA: a prompt or a line of from_file cannot be read. DT_ERR_STOP: a signal or the
 *  time limit; the state is that before dt_rollout_start, so that a resumed run makes the same rollout, and the caller
 *  returns the error. */
dt_err dt_rollout_fill(dt_rollout *r, dt_task *t);
/** Return to the state before dt_rollout_start, for callers that get DT_ERR_STOP while they work on a rollout. Local;
 *  called on all ranks. */
void dt_rollout_undo(dt_rollout *r);
/** Remove the rows i with drop[i], in whole groups (dynamic sampling); dt_rollout_fill replaces them. drop: in
 *  [n_rows], the same on all ranks. Local. */
void dt_rollout_drop(dt_rollout *r, const bool *drop);

/** Replace a row's completion by n tokens, at most max_completion, the last of which ends it. The sampler's
 *  log-probabilities become NaN (null in rollouts.jsonl), and no gap is counted. Local; called on all ranks with the
 *  same arguments. */
void dt_rollout_put(dt_rollout *r, int64_t row, const int32_t *ids, int32_t n);

/** Description of a row below dt_rollout_n_rows, on any rank. Borrowed until the rows change. Local. */
const dt_rollout_row *dt_rollout_row_of(const dt_rollout *r, int64_t row);
/** Number of rows, of all ranks, that were not cut at max_completion. Local. */
int64_t dt_rollout_n_ended(const dt_rollout *r);
/** Tokens of a row: [n_prompt + n_new + n_observed]. Borrowed. Local. */
const int32_t *dt_rollout_ids(const dt_rollout *r, int64_t row);
/** Is token k of a row's completion an environment's? Local. */
bool dt_rollout_is_observed(const dt_rollout *r, int64_t row, int32_t k);
/** Values of a row in an array: [n_new + 1], one per token of the model, and one for the state after the last token (a
 *  critic's value; 0 in other arrays). Borrowed; the caller may write them. Local. */
float *dt_rollout_array(dt_rollout *r, int array, int64_t row);
/** Part of a row. */
typedef enum dt_rollout_part { DT_PART_PROMPT, DT_PART_COMPLETION } dt_rollout_part;
/** Whether a text contains special tokens. */
typedef enum dt_special_tokens { DT_NO_SPECIAL, DT_WITH_SPECIAL } dt_special_tokens;
/** A part of a row as text; "" without a tokenizer. Borrowed until the next call for the same part. NULL: no memory.
 *  Local. */
const char *dt_rollout_text(dt_rollout *r, int64_t row, dt_rollout_part part, dt_special_tokens special);
/** Other fields of the prompt's record as JSON ("{}": none). Borrowed until the next call. NULL: an error, which is
 *  recorded. Local. */
const char *dt_rollout_record(dt_rollout *r, int64_t row);

/** The order in which the steps of an epoch take n rows: a permutation that depends on run.seed, the rollout's index
 *  and the epoch; the identity if data.shuffle is false. order: out [n]. Local, the same on all ranks. */
void dt_rollout_shuffle(const dt_task *t, int64_t rollout, int64_t epoch, int64_t n, int64_t *order);

/* ---- micro-batches and scores ------------------------------------------------------------------------------------ */

/** This rank's micro-batch `micro` of a step that takes the rows order[first .. first+n-1] (order NULL: rows in order).
 *  As in *Order of samples*, micro-batch j has m rows and belongs to rank j mod N. A sequence is a whole prompt and
 *  completion; targets are the model's tokens of the completion. Rows with the same prompt share its images. b: out,
 *  empty if this rank has no rows; borrowed until the next call, like row: out [n_seq], the rows of its sequences.
 *  Local. DT_ERR_DATA: images. */
dt_err dt_rollout_micro(dt_rollout *r, const dt_task *t, const int64_t *order, int64_t first, int64_t n, int micro,
                        const dt_batch **b, const int64_t **row);
/** Number of micro-steps of a step with n rows. Local. */
int dt_rollout_n_micro(const dt_rollout *r, const dt_task *t, int64_t n);

/** What a scorer computes for a batch: the log-probability of each target, out [n_target], or the value of each token
 *  (a critic, a judge), out [n_tok]. */
typedef enum dt_scored { DT_SCORED_TARGETS, DT_SCORED_TOKENS } dt_scored;
/** Score a batch. Collective, as the model's forward. */
typedef dt_err (*dt_rollout_scorer)(void *self, dt_task *t, const dt_batch *b, float *out);
/** Score all rows and store the results in an array, on all ranks. Element k < n_new is the log-probability of
 *  completion token k, or the value at the token before it. Element n_new is 0, or the value at the last token. Each
 *  rank scores its micro-batches of dt_rollout_micro over the whole order. Collective, agreed. DT_ERR_STOP: as
 *  dt_rollout_fill. */
dt_err dt_rollout_score(dt_rollout *r, dt_task *t, const int64_t *order, dt_rollout_scorer scorer, void *self,
                        dt_scored scored, int array);
/** A dt_rollout_scorer: log-probabilities under the current policy at t->temperature, by the same forward as a training
 *  step, so that the first ratio of new to old probabilities is exactly 1. self is unused. The sampler's
 *  log-probabilities are compared with the last array filled by it. Collective. */
dt_err dt_rollout_policy(void *self, dt_task *t, const dt_batch *b, float *out);

/** First row of a rank's part of n rows. Parts are contiguous, and their sizes differ by at most 1: rank r has
 *  [dt_rollout_first_of(n, r, nranks), dt_rollout_first_of(n, r + 1, nranks)). They are whole groups if nranks *
 *  num_generations divides n. Local. */
static inline int64_t dt_rollout_first_of(int64_t n, int rank, int nranks) { return n * rank / nranks; }
/** Is the row in this rank's part of the existing rows? Local. */
bool dt_rollout_is_mine(const dt_rollout *r, const dt_task *t, int64_t row);

/* ---- metrics and records ----------------------------------------------------------------------------------------- */

/** Metrics with TRL's names, PREFIX/completions/mean_length ...: lengths, the fraction of completions cut at
 *  max_completion, the gap between the sampler's and the scorer's log-probabilities, seconds of generation, scoring and
 *  reward functions. Call declare in open, and collect once in each step, for the rollout that the step uses. Local. */
void dt_rollout_declare(dt_rollout *r, dt_sums *sums, const char *prefix);
void dt_rollout_collect(const dt_rollout *r, dt_task *t);
/** Add to the seconds of reward functions on this rank for this rollout. Local. */
void dt_rollout_count_reward_time(dt_rollout *r, double seconds);
/** For a rollout that dt_rollout_policy has not scored: compute the gap from a step's own log-probabilities, in collect
 *  of a step before the first update since the rollout. logp: in [n_tok] of batch b; row: of dt_rollout_micro.
 *  Local. */
void dt_rollout_compare(const dt_rollout *r, dt_task *t, const dt_batch *b, const int64_t *row, const float *logp);

/** Write a line for each group to OUTPUT_DIR/rollouts.jsonl (log.rollouts; from_file reads such files), and print some
 *  completions (log.completions). Call it once for a rollout, after scoring; lines contain the current step. Rank 0
 *  writes. Collective, agreed.
 *
 *  name        in  [n_funcs]
 *  rewards     in  [n_rows, n_funcs]
 *  advantages  in  [n_rows], or NULL
 *
 *  DT_ERR_WRITE. */
dt_err dt_rollout_write(dt_rollout *r, dt_task *t, int n_funcs, const char *const *name, const double *rewards,
                        const double *advantages);
/** Rewards of from_file: [n_rows, n], borrowed, set by dt_rollout_fill; NULL: it has none. n: out, known after
 *  dt_rollout_open; 0: none. Local. */
const double *dt_rollout_given_rewards(const dt_rollout *r, int *n);

#endif
