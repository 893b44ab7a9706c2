/* rollout_task.h - a task of the tests alone, whose rollouts are those of src/rollout: each serves two steps of
 * policy gradient,
 *
 *     L = -(1/M) sum over t of r_t A,    r_t = exp(logp_t - old_t),    u_t = r_t A / M,
 *
 * with the advantage A of a completion 1 or -1 as its number is even or odd, and M the number of the step's targets.
 * rollout_seen records a hash of each rollout's full content. */
#ifndef DTRAIN_TESTS_ROLLOUT_TASK_H
#define DTRAIN_TESTS_ROLLOUT_TASK_H

#include "../src/backends/queue.h"
#include "dtrain/rollout/rollout.h"
#include "dtrain/train/train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROLLOUT_GROUP = 3, ROLLOUT_NEW = 10, ROLLOUT_STEPS = 2, ROLLOUT_EOS = 5, ROLLOUT_SEEN = 32 };

/* Set before a run, looked at after it: runs are inside the test's process. */
static struct {
    const char *from_file;
    const char *stop_token; /* NULL: ROLLOUT_EOS */
    double temperature;     /* 0: 1 */
    bool drops;             /* of each rollout the groups whose first completion has an even sum of ids, once */
    int stop_rank;          /* with stop_after > 0: it hears of a stop when it has asked so often */
    int stop_after, n_asked;
    uint64_t seen[ROLLOUT_SEEN];
    double gap[ROLLOUT_SEEN]; /* of log-probabilities, the largest of the rollout */
    int n_seen;
    int64_t n_eos, n_rows; /* of all that was seen */
    int64_t n_launches;    /* of the last generation, on the queue device; else 0 */
} rollout_test;

typedef struct policy {
    dt_rollout *rollout;
    int64_t *order;
    bool *drop;
    double *rewards;
    const int64_t *row; /* of the micro-batch */
    int64_t n_target;   /* of the step, of all ranks */
    int loss, n_weight;
} policy;

static inline policy *policy_of(const dt_task *t) { return t->self; }
static inline int64_t policy_rows(const dt_task *t) { return ROLLOUT_STEPS * t->batching.train_batch_size; }

static void policy_check(dt_task *t) {}

static void policy_open(dt_task *t)
{
    policy *y = calloc(1, sizeof *y);
    const int64_t n = policy_rows(t);
    t->self = y;
    t->temperature = rollout_test.temperature;
    const dt_rollout_options opt = {.section = "run",
                                    .n_rows = n,
                                    .num_generations = ROLLOUT_GROUP,
                                    .max_completion = ROLLOUT_NEW,
                                    .stop_token = rollout_test.stop_token ? rollout_test.stop_token : "5",
                                    .sampling = {.temperature = rollout_test.temperature ? rollout_test.temperature : 1,
                                                 .top_p = 1,
                                                 .repetition_penalty = 1,
                                                 .seed = (uint64_t)t->cfg->run_seed},
                                    .from_file = rollout_test.from_file ? rollout_test.from_file : "",
                                    .n_arrays = 1,
                                    .array_name = {"old"}};
    y->rollout = dt_rollout_open(t, &opt);
    y->order = calloc((size_t)n, sizeof *y->order);
    y->drop = calloc((size_t)n, sizeof *y->drop);
    y->rewards = calloc((size_t)n, sizeof *y->rewards);
    for (int64_t i = 0; i < n; i++) y->order[i] = i;
    t->samples_per_epoch = dt_rollout_n_prompts(y->rollout) * ROLLOUT_GROUP;
    t->steps_per_epoch = dt_max_i64(t->samples_per_epoch / t->batching.train_batch_size, 1);
    dt_sums *s = t->sums;
    y->loss = dt_sums_declare(s, "loss", DT_SUM_LOSS, 1);
    y->n_weight = dt_sums_declare(s, "test/targets", DT_SUM_UNITS, 1);
    dt_sums_show(s, DT_SHOW_TRAIN, "loss", "loss", "test/targets", NULL);
    dt_rollout_declare(y->rollout, s, "test");
}

static void policy_close(dt_task *t)
{
    policy *y = policy_of(t);
    if (!y) return;
    free(y->order), free(y->drop), free(y->rewards), free(y);
    t->self = NULL;
}

/* ---- a rollout --------------------------------------------------------------------------------------------------- */

static uint64_t policy_hash(uint64_t h, const void *x, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) h = dt_mix64(h ^ ((const unsigned char *)x)[i]);
    return h;
}

/* Instead of a signal: the test sets which rank requests what, and when. */
static int policy_stop_asked(void) { return ++rollout_test.n_asked >= rollout_test.stop_after; }

static void policy_look(dt_task *t)
{
    dt_rollout *r = policy_of(t)->rollout;
    uint64_t h = 0;
    for (int64_t i = 0; i < dt_rollout_n_rows(r); i++) {
        const dt_rollout_row *row = dt_rollout_row_of(r, i);
        const int64_t numbers[] = {row->prompt, (int64_t)row->number, row->n_prompt, row->n_new, row->ended};
        h = policy_hash(h, numbers, sizeof numbers);
        h = policy_hash(h, dt_rollout_ids(r, i), (size_t)(row->n_prompt + row->n_new) * sizeof(int32_t));
        h = policy_hash(h, dt_rollout_array(r, 0, i), (size_t)(row->n_new + 1) * sizeof(float));
        rollout_test.n_eos += row->ended, rollout_test.n_rows++;
    }
    if (rollout_test.n_seen < ROLLOUT_SEEN) rollout_test.seen[rollout_test.n_seen++] = h;
}

static void policy_choose_dropped(dt_task *t)
{
    policy *y = policy_of(t);
    for (int64_t i = 0; i < dt_rollout_n_rows(y->rollout); i++) {
        const int64_t first = i - i % ROLLOUT_GROUP;
        const dt_rollout_row *row = dt_rollout_row_of(y->rollout, first);
        int64_t sum = 0;
        for (int32_t k = 0; k < row->n_prompt + row->n_new; k++) sum += dt_rollout_ids(y->rollout, first)[k];
        y->drop[i] = sum % 2 == 0;
    }
}

static int64_t policy_launches(const dt_task *t)
{
    return strcmp(t->dev->ops->name, "queue") ? 0 : dt_queue_counts_of(t->dev).launches;
}

static dt_err policy_roll_out(dt_task *t, int64_t number)
{
    policy *y = policy_of(t);
    dt_rollout *r = y->rollout;
    static const char *const names[] = {"parity"};
    if (rollout_test.stop_after && t->data->rank == rollout_test.stop_rank) t->phase->stop_asked = policy_stop_asked;
    dt_rollout_start(r, number);
    const int64_t before = policy_launches(t);
    DT_TRY(dt_rollout_fill(r, t));
    rollout_test.n_launches = policy_launches(t) - before;
    if (rollout_test.drops) {
        policy_choose_dropped(t);
        dt_rollout_drop(r, y->drop);
        DT_TRY(dt_rollout_fill(r, t));
    }
    DT_TRY(dt_rollout_score(r, t, y->order, dt_rollout_policy, NULL, DT_SCORED_TARGETS, 0));
    for (int64_t i = 0; i < dt_rollout_n_rows(r); i++)
        y->rewards[i] = dt_rollout_is_mine(r, t, i) ? (dt_rollout_row_of(r, i)->number % 2 ? -1 : 1) : 0;
    DT_TRY(dt_comm_join_host(t->data, y->rewards, (size_t)dt_rollout_n_rows(r) * sizeof *y->rewards));
    policy_look(t);
    return dt_rollout_write(r, t, 1, names, y->rewards, y->rewards);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static dt_err policy_next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    policy *y = policy_of(t);
    dt_rollout *r = y->rollout;
    const int64_t n = t->batching.train_batch_size, first = step % ROLLOUT_STEPS * n;
    if (micro == 0 && dt_rollout_number(r) != step / ROLLOUT_STEPS) DT_TRY(policy_roll_out(t, step / ROLLOUT_STEPS));
    y->n_target = 0;
    for (int64_t i = first; i < first + n; i++) y->n_target += dt_rollout_row_of(r, y->order[i])->n_new;
    *m = (dt_micro){.n_micro = dt_rollout_n_micro(r, t, n), .inv_norm = 1 / (double)y->n_target};
    return dt_rollout_micro(r, t, y->order, first, n, micro, &m->batch, &y->row);
}

/* The gain of target i, of sequence s, times the ratio of its new to its old probability. */
static double policy_gain(const dt_task *t, const dt_batch *b, int32_t s, int32_t i, const float *logp)
{
    const policy *y = policy_of(t);
    const dt_rollout_row *row = dt_rollout_row_of(y->rollout, y->row[s]);
    const float *old = dt_rollout_array(y->rollout, 0, y->row[s]);
    return (row->number % 2 ? -1 : 1) * exp((double)logp[i] - (double)old[i - b->seq_target[s]]);
}

static dt_err policy_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const dt_batch *b = m->batch;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++)
            w->u[i] = (float)(policy_gain(t, b, s, i, p->logp) * m->inv_norm);
    return DT_OK;
}

static void policy_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    policy *y = policy_of(t);
    const dt_batch *b = m->batch;
    double loss = 0;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++) loss -= policy_gain(t, b, s, i, p->logp);
    dt_sums_add(t->sums, y->loss, loss);
    dt_sums_count(t->sums, y->n_weight, b->n_target);
    dt_rollout_collect(y->rollout, t);
}

static dt_err policy_save(dt_task *t, dt_named_arrays *items)
{
    return dt_rollout_save(policy_of(t)->rollout, t, items);
}
static dt_err policy_load(dt_task *t, const dt_named_arrays *items)
{
    return dt_rollout_load(policy_of(t)->rollout, t, items);
}

static const dt_task_ops policy_ops = {.name = "policy",
                                       .trains = true,
                                       .no_dropout = true,
                                       .check = policy_check,
                                       .open = policy_open,
                                       .close = policy_close,
                                       .next_micro = policy_next_micro,
                                       .weights = policy_weights,
                                       .collect = policy_collect,
                                       .save = policy_save,
                                       .load = policy_load};

#endif
