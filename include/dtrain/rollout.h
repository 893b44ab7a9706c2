/* rollout.h - completions of prompts by the model in training, and what is known of them.
 *
 * A rollout is everybody's: each rank generates and scores a share of it, then all ranks hold the whole. So groups,
 * minibatches, normalisers, resuming and the record of it depend neither on the number of ranks nor on who made which
 * part. Rows are completions; the num_generations completions of a prompt stand together. */
#ifndef DTRAIN_ROLLOUT_H
#define DTRAIN_ROLLOUT_H

#include "dtrain/generate.h"
#include "dtrain/step.h"

enum { DT_MAX_ROLLOUT_ARRAYS = 8 };
#define DT_MOST_REWARD 1e30 /* size of a reward; sums of squares of far larger ones overflow */

typedef struct dt_rollout_options {
    const char *section;    /* of the task's keys, for messages: "grpo" */
    bool validation;        /* prompts are those of data.validation, in their order; no checkpoint holds it */
    int64_t n_rows;         /* of a rollout, over all ranks: a multiple of num_generations */
    int num_generations;    /* completions of a prompt */
    int32_t max_completion; /* tokens of a completion, the one that ends it included */
    /* NULL, "" or "eos": the model's EOS tokens; else the only one that ends a completion, as the tokenizer writes it
     * or its id */
    const char *stop_token;
    dt_sampling sampling;  /* seed and all */
    const char *from_file; /* grpo.rollouts: completions come from there; "": they are generated */
    int n_arrays;          /* numbers kept for each token of a completion; names are in checkpoints and records */
    const char *array_name[DT_MAX_ROLLOUT_ARRAYS];
} dt_rollout_options;

/** A completion and its prompt. */
typedef struct dt_rollout_row {
    int64_t prompt;  /* sample of the dataset, of all its files */
    uint64_t number; /* among all completions of the run: keys its random numbers */
    int32_t n_prompt, n_new;
    bool ended; /* its last token is one that ends a completion; else it was cut at max_completion */
} dt_rollout_row;

typedef struct dt_rollout dt_rollout;

/* ---- its life: as the functions of a task of the same names ------------------------------------------------------ */

/** In open: the prompts of data.train (kind prompts), which becomes t->train (of data.validation: t->valid), or of
 *  from_file; asks in t->model_opt for a cache and for micro-batches of micro_batch_size of the longest rows; adds to
 *  t->saved_nbytes what dt_rollout_save leaves, and asks for t->wants_gathered. t->temperature is the caller's to set.
 *  A row has at most data.seq_len tokens: of a longer prompt the last ones count. What is wrong joins t->mistakes.
 *  Local. NULL after no memory. */
dt_rollout *dt_rollout_open(dt_task *t, const dt_rollout_options *opt);
/** Add what it holds; nothing for NULL. Local. */
dt_err dt_rollout_plan(const dt_rollout *r, const dt_task *t, int stage, dt_memory *memory);
/** Collective, agreed. DT_ERR_MEMORY; DT_ERR_DATA: from_file is another on another host. */
dt_err dt_rollout_begin(dt_rollout *r, dt_task *t);
void dt_rollout_close(dt_rollout *r, dt_task *t); /* local; safe on NULL */
/** Prompts, rows, arrays; the same on all ranks. Lines of rollouts.jsonl are on the disk then. Collective, agreed.
 *  DT_ERR_MEMORY, DT_ERR_WRITE. */
dt_err dt_rollout_save(const dt_rollout *r, dt_task *t, dt_items *items);
/** One that was made with other options is left out, and told of. Collective, agreed. DT_ERR_DATA: what save leaves is
 *  not there, or is not of one piece. */
dt_err dt_rollout_load(dt_rollout *r, dt_task *t, const dt_items *items);
/** A rollout that was loaded and is of no use: the next step makes one. `why`: for a warning. On every rank. */
void dt_rollout_leave_out(dt_rollout *r, const dt_task *t, const char *why);

/* ---- making one -------------------------------------------------------------------------------------------------- */

int64_t dt_rollout_n_prompts(const dt_rollout *r); /* of an epoch */
int64_t dt_rollout_n_rows(const dt_rollout *r);    /* that are there */
int64_t dt_rollout_number(const dt_rollout *r);    /* of this rollout; -1: there is none */

/** Begin the rollout of this number, empty. Local. */
void dt_rollout_start(dt_rollout *r, int64_t number);
/** The next prompts are the first ones again, completed with the same random numbers as at first. Local. */
void dt_rollout_rewind(dt_rollout *r);
/** Generate, or read, until all n_rows are there, with the prompts that come next. Collective, agreed.
 *  DT_ERR_NONFINITE: logits. DT_ERR_DATA: a prompt, or a line of from_file, cannot be read. DT_ERR_STOP when a signal
 *  or the time limit asks for it: then there is no rollout, and all is as it was before dt_rollout_start, so that a
 *  resumed run makes the same one; to be passed up. */
dt_err dt_rollout_fill(dt_rollout *r, dt_task *t);
/** As before dt_rollout_start, with no rollout: for who meets DT_ERR_STOP in work on one. Local, on all ranks. */
void dt_rollout_undo(dt_rollout *r);
/** Leave out the rows of which drop is true, whole groups (dynamic sampling); dt_rollout_fill brings others. Local, the
 *  same on all ranks. drop: [n_rows]. */
void dt_rollout_drop(dt_rollout *r, const bool *drop);

/** Of a row that is there; all ranks have all rows. Local. */
const dt_rollout_row *dt_rollout_row_of(const dt_rollout *r, int64_t row);
const int32_t *dt_rollout_ids(const dt_rollout *r, int64_t row); /* [n_prompt + n_new] */
/** Numbers of an array: [n_new + 1], one a token of the completion and one for the state behind the last one (critics;
 *  else 0). */
float *dt_rollout_array(dt_rollout *r, int array, int64_t row);
typedef enum dt_rollout_part { DT_PART_PROMPT, DT_PART_COMPLETION } dt_rollout_part;
typedef enum dt_special_tokens { DT_NO_SPECIAL, DT_WITH_SPECIAL } dt_special_tokens; /* in a text, or left out of it */
/** Text of a part of a row; "" without a tokenizer. Borrowed until the next call for the same part. NULL: no memory.
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

/** What a model says of each token of a batch: out [n_tok], for token i of its target (or of itself, values).
 *  Collective where the model is. */
typedef dt_err (*dt_rollout_scorer)(void *self, dt_task *t, const dt_batch *b, float *out);
/** Let a model see all rows, each rank in its micro-batches of dt_rollout_micro over the whole order, and keep on all
 *  ranks what it says: of the tokens that predict the completion's (element k: from the token before the completion's
 *  k-th), and of the last one (element n_new). Collective, agreed. DT_ERR_STOP: as dt_rollout_fill. */
dt_err dt_rollout_score(dt_rollout *r, dt_task *t, const int64_t *order, dt_rollout_scorer scorer, void *self,
                        int array);
/** Log-probabilities by the model in training as it is, at t's temperature, from a pass like that of a step: the first
 *  ratio of new to old is exactly 1. Collective. A dt_rollout_scorer; self is not looked at. What was scored so last
 *  is what the sampler's log-probabilities are compared with. */
dt_err dt_rollout_policy(void *self, dt_task *t, const dt_batch *b, float *out);

/** Rows that follow each other belong to one rank, equally many to each (one more to some): of n rows rank r has those
 *  from dt_rollout_first_of(n, r, nranks) on, up to the first of rank r + 1. Whole groups wherever a rank's number of
 *  rows divides by num_generations. */
static inline int64_t dt_rollout_first_of(int64_t n, int rank, int nranks) { return n * rank / nranks; }
/** Is it this rank's, of all rows that are there? */
bool dt_rollout_is_mine(const dt_rollout *r, const dt_task *t, int64_t row);

/* ---- what is said of it ------------------------------------------------------------------------------------------ */

/** Lengths, share of completions without an end, gap between the sampler's and the scorer's log-probabilities, seconds
 *  of generation, scoring and reward functions; under PREFIX/completions/mean_length ... as TRL names them. In open;
 *  then once in each step, of the rollout that it works with. Local. */
void dt_rollout_declare(dt_rollout *r, dt_sums *sums, const char *prefix);
void dt_rollout_collect(const dt_rollout *r, dt_task *t);
/** Reward functions took so long on this rank for rows of this rollout. Local. */
void dt_rollout_count_reward_time(dt_rollout *r, double seconds);
/** For a rollout that is not scored by dt_rollout_policy: in collect of a step whose model is the one that generated,
 *  the log-probabilities of its batch, for the gap. row: of dt_rollout_micro. Local. */
void dt_rollout_compare(const dt_rollout *r, dt_task *t, const dt_batch *b, const int64_t *row, const float *logp);

/** A line of OUTPUT_DIR/rollouts.jsonl for each group, which from_file reads, where log.rollouts asks for it, and some
 *  completions on the terminal now and then (log.completions). Once a rollout, when it is scored: the lines carry the
 *  step at work. rewards: [n_rows, n_funcs] by name; advantages: [n_rows] or NULL. Rank 0 writes. Collective,
 *  agreed. DT_ERR_WRITE. */
dt_err dt_rollout_write(dt_rollout *r, dt_task *t, int n_funcs, const char *const *name, const double *rewards,
                        const double *advantages);
/** Rewards that from_file gave: [n_rows, n]; NULL: it has none. */
const double *dt_rollout_given_rewards(const dt_rollout *r, int *n);

#endif
