/* rollout.h - completions of prompts by the model in training, and the numbers kept for their tokens.
 *
 * A rollout is replicated: each rank generates and scores its part, then every rank holds all of it. Groups,
 * minibatches, normalisers, checkpoints and rollouts.jsonl therefore do not depend on the number of ranks. A row is a
 * completion with its prompt; the num_generations completions of a prompt, a group, are consecutive rows. */
#ifndef DTRAIN_ROLLOUT_H
#define DTRAIN_ROLLOUT_H

#include "dtrain/generate/generate.h"
#include "dtrain/step/step.h"

enum { DT_MAX_ROLLOUT_ARRAYS = 8 };
#define DT_MOST_REWARD 1e30 /* largest absolute value of a reward: sums of squares must not overflow */

typedef struct dt_rollout dt_rollout;

typedef struct dt_rollout_options {
    const char *section;    /* of the task's keys, for messages: "grpo" */
    bool validation;        /* prompts are those of data.validation, in their order; no checkpoint holds it */
    int64_t n_rows;         /* rows of a rollout, over all ranks: a multiple of num_generations */
    int num_generations;    /* completions of a prompt */
    int32_t max_completion; /* tokens of a completion, the one that ends it included */
    /* NULL, "" or "eos": the model's EOS tokens; else the only one that ends a completion, as the tokenizer writes it
     * or its id */
    const char *stop_token;
    /* the rows of a group are the num_generations best of a beam search of that width, by falling score, in the place
     * of completions that are drawn one by one; where fewer are found the last rows have no tokens */
    bool beams;
    /* completions that are drawn for each prompt, of which num_generations are kept; 0: these alone. Not for beams */
    int n_drawn;
    /* with n_drawn: which of the rows first .. first+n_drawn-1 are kept, and in which order: chosen [num_generations],
     * different numbers from 0. Called on all ranks, which have all rows, and local */
    dt_err (*choose)(void *self, dt_task *t, const dt_rollout *r, int64_t first, int *chosen);
    void *choose_self;
    const dt_constraint *constraint; /* NULL, or what completions may be; borrowed */
    dt_sampling sampling;            /* seed and all; beams take temperature and repetition penalty alone */
    const char *from_file;           /* grpo.rollouts: completions come from there; "": they are generated */
    int n_arrays; /* numbers kept for each token of a completion; named so in checkpoints and rollouts.jsonl */
    const char *array_name[DT_MAX_ROLLOUT_ARRAYS];
} dt_rollout_options;

/** A completion and its prompt. */
typedef struct dt_rollout_row {
    int64_t prompt;  /* sample of the dataset, of all its files */
    uint64_t number; /* among all completions of the run: keys its random numbers */
    int32_t n_prompt, n_new;
    bool ended; /* its last token is one that ends a completion; else it was cut at max_completion */
} dt_rollout_row;

/* ---- life cycle: called by the functions of a task (step.h) with the same names ---------------------------------- */

/** In open: the prompts of data.train (kind prompts), which becomes t->train (of data.validation: t->valid), or of
 *  from_file; asks in t->model_opt for a cache and for micro-batches of micro_batch_size of the longest rows; adds to
 *  t->saved_nbytes what dt_rollout_save leaves, and asks for t->wants_gathered. t->temperature is the caller's to set.
 *  A row has at most data.seq_len tokens: of a longer prompt the last ones count. Errors are added to t->mistakes.
 *  Local. NULL after no memory. */
dt_rollout *dt_rollout_open(dt_task *t, const dt_rollout_options *opt);
/** Add its memory to the plan; nothing for NULL. Local. */
dt_err dt_rollout_plan(const dt_rollout *r, const dt_task *t, int stage, dt_memory *memory);
/** Collective, agreed. DT_ERR_MEMORY; DT_ERR_DATA: hosts find different files under from_file. */
dt_err dt_rollout_begin(dt_rollout *r, dt_task *t);
void dt_rollout_close(dt_rollout *r, dt_task *t); /* local; safe on NULL */
/** Add the position in the prompts, the rows and the arrays to the items of a checkpoint; lines of rollouts.jsonl
 *  written so far are flushed to disk. Collective, agreed. DT_ERR_MEMORY, DT_ERR_WRITE. */
dt_err dt_rollout_save(const dt_rollout *r, dt_task *t, dt_named_arrays *items);
/** The reverse. A rollout that was made with other options is discarded with a warning. Collective, agreed.
 *  DT_ERR_DATA: an item of dt_rollout_save is missing or contradicts another. */
dt_err dt_rollout_load(dt_rollout *r, dt_task *t, const dt_named_arrays *items);
/** Discard a rollout that was loaded, so that the next step makes another. why: what the warning says. Called on all
 *  ranks; local. */
void dt_rollout_discard(dt_rollout *r, const dt_task *t, const char *why);

/* ---- making one -------------------------------------------------------------------------------------------------- */

int64_t dt_rollout_n_prompts(const dt_rollout *r); /* prompts of an epoch */
int64_t dt_rollout_n_rows(const dt_rollout *r);    /* rows that exist: at most n_rows of the options */
int dt_rollout_group_size(const dt_rollout *r);    /* num_generations of the options */
int64_t dt_rollout_number(const dt_rollout *r);    /* of the current rollout, from 0; -1: there is none */

/** Begin the rollout of this number, empty. Local. */
void dt_rollout_start(dt_rollout *r, int64_t number);
/** Start again from the first prompt, with the same random numbers as the first time. Local. */
void dt_rollout_rewind(dt_rollout *r);
/** Complete the next prompts, or read completions from from_file, until there are n_rows rows. Collective, agreed.
 *  DT_ERR_NONFINITE: logits. DT_ERR_DATA: a prompt, or a line of from_file, cannot be read. DT_ERR_STOP: a signal or
 *  the time limit ended it, and the state is that before dt_rollout_start, so that a resumed run makes the same
 *  rollout; the caller passes it up. */
dt_err dt_rollout_fill(dt_rollout *r, dt_task *t);
/** Return to the state before dt_rollout_start: for callers that get DT_ERR_STOP while they work on a rollout. Local,
 *  called on all ranks. */
void dt_rollout_undo(dt_rollout *r);
/** Remove the rows i with drop[i], whole groups (dynamic sampling); dt_rollout_fill replaces them. drop: [n_rows], the
 *  same on all ranks. Local. */
void dt_rollout_drop(dt_rollout *r, const bool *drop);

/** Put another completion in the place of a row's: n tokens, at most max_completion, the last of which ends it. The
 *  sampler has no log-probabilities of them: they are NaN, null in rollouts.jsonl, and no gap is counted. Called on all
 *  ranks with the same; local. */
void dt_rollout_put(dt_rollout *r, int64_t row, const int32_t *ids, int32_t n);

/** A row below dt_rollout_n_rows, on any rank. Borrowed. Local. */
const dt_rollout_row *dt_rollout_row_of(const dt_rollout *r, int64_t row);
int64_t dt_rollout_n_ended(const dt_rollout *r);                 /* rows that were not cut; of all ranks */
const int32_t *dt_rollout_ids(const dt_rollout *r, int64_t row); /* [n_prompt + n_new] */
/** The numbers of a row in an array: [n_new + 1], one for each token of the completion and one for the state after the
 *  last token (a critic's value there; other arrays have 0). Borrowed; the caller may write them. */
float *dt_rollout_array(dt_rollout *r, int array, int64_t row);
typedef enum dt_rollout_part { DT_PART_PROMPT, DT_PART_COMPLETION } dt_rollout_part;
typedef enum dt_special_tokens { DT_NO_SPECIAL, DT_WITH_SPECIAL } dt_special_tokens; /* in a text, or left out of it */
/** A part of a row as text; "" without a tokenizer. Borrowed until the next call for the same part. NULL: no memory.
 *  Local. */
const char *dt_rollout_text(dt_rollout *r, int64_t row, dt_rollout_part part, dt_special_tokens special);
/** Other fields of the prompt's record as JSON ("{}": none). Borrowed until the next call. NULL: an error, which is
 *  recorded. Local. */
const char *dt_rollout_record(dt_rollout *r, int64_t row);

/** The order in which an epoch's steps take n rows of a rollout: a permutation drawn from run.seed, the rollout's
 *  number and the epoch; with data.shuffle = false they stay as they are. order: [n]. Local, the same on all ranks. */
void dt_rollout_shuffle(const dt_task *t, int64_t rollout, int64_t epoch, int64_t n, int64_t *order);

/* ---- passes over it ---------------------------------------------------------------------------------------------- */

/** Micro-batch `micro` of this rank of a step that takes the rows order[first .. first+n-1]: by *Order of samples*,
 *  micro-batch j has m of them and goes to rank j mod N. A sequence is prompt and completion whole; targets are the
 *  completion's tokens, the last token has none. Empty where this rank has nothing. Valid until the next call.
 *  *row: [n_seq] of the batch's sequences. order NULL: rows as they follow each other. Local. */
const dt_batch *dt_rollout_micro(dt_rollout *r, const dt_task *t, const int64_t *order, int64_t first, int64_t n,
                                 int micro, const int64_t **row);
int dt_rollout_n_micro(const dt_rollout *r, const dt_task *t, int64_t n); /* of a step of so many rows */

/** A model's number for each token of a batch: out[i], i < n_tok, is the log-probability of token i's target, or the
 *  value at token i. Collective where the model's forward is. */
typedef dt_err (*dt_rollout_scorer)(void *self, dt_task *t, const dt_batch *b, float *out);
/** Score all rows and keep the numbers in an array, on all ranks: element k < n_new is the scorer's number at the token
 *  before the completion's token k, element n_new that at the last token. Each rank scores its micro-batches of
 *  dt_rollout_micro over the whole order. Collective, agreed. DT_ERR_STOP: as dt_rollout_fill. */
dt_err dt_rollout_score(dt_rollout *r, dt_task *t, const int64_t *order, dt_rollout_scorer scorer, void *self,
                        int array);
/** A dt_rollout_scorer: log-probabilities under the current policy at t->temperature, by the same forward as a training
 *  step's, so that the first ratio of new to old probabilities is exactly 1. self is unused. The array that was filled
 *  with it last is what the sampler's log-probabilities are compared with. Collective. */
dt_err dt_rollout_policy(void *self, dt_task *t, const dt_batch *b, float *out);

/** Rows are divided into contiguous parts whose sizes differ by at most 1: of n rows rank r has
 *  [dt_rollout_first_of(n, r, nranks), dt_rollout_first_of(n, r + 1, nranks)). Parts are whole groups where
 *  nranks * num_generations divides n. */
static inline int64_t dt_rollout_first_of(int64_t n, int rank, int nranks) { return n * rank / nranks; }
/** Is the row in this rank's part of the rows that exist? */
bool dt_rollout_is_mine(const dt_rollout *r, const dt_task *t, int64_t row);

/* ---- metrics and records ----------------------------------------------------------------------------------------- */

/** Metrics under TRL's names, PREFIX/completions/mean_length ...: lengths, the share of completions cut at
 *  max_completion, the gap between the sampler's and the scorer's log-probabilities, seconds of generation, scoring and
 *  reward functions. Declared in open; collected once in each step, for the rollout that the step uses. Local. */
void dt_rollout_declare(dt_rollout *r, dt_sums *sums, const char *prefix);
void dt_rollout_collect(const dt_rollout *r, dt_task *t);
/** Add to the seconds that reward functions took on this rank for this rollout. Local. */
void dt_rollout_count_reward_time(dt_rollout *r, double seconds);
/** For a rollout that dt_rollout_policy has not scored: count the gap from a step's own log-probabilities, logp [n_tok]
 *  of batch b, in collect of a step before the first update since the rollout. row: from dt_rollout_micro. Local. */
void dt_rollout_compare(const dt_rollout *r, dt_task *t, const dt_batch *b, const int64_t *row, const float *logp);

/** Write a line for each group to OUTPUT_DIR/rollouts.jsonl (log.rollouts; from_file reads such files), and print some
 *  completions now and then (log.completions). Called once for a rollout, after scoring; lines carry the current step.
 *  name: [n_funcs]; rewards: [n_rows, n_funcs]; advantages: [n_rows] or NULL. Rank 0 writes. Collective, agreed.
 *  DT_ERR_WRITE. */
dt_err dt_rollout_write(dt_rollout *r, dt_task *t, int n_funcs, const char *const *name, const double *rewards,
                        const double *advantages);
/** Rewards from from_file: [n_rows, n], borrowed, filled in by dt_rollout_fill; NULL: it has none. *n is known from
 *  dt_rollout_open on; 0: none. Local. */
const double *dt_rollout_given_rewards(const dt_rollout *r, int *n);

#endif
