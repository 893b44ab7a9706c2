/* mpi_task_values.c - a task whose model has a scalar head: it sees values instead of log-probabilities and gives the
 * gradient of its loss by them.
 *
 *     L = 1/(2 N) sum over tokens t and labels l of (value[t, l] - wanted[t, l])^2,    dL/dvalue = (value - wanted) / N
 *
 * N tokens of all ranks, the same in every step; wanted follows from a token's id, so that a model can learn it.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "mpi_test.h"
#include "dtrain/metrics.h"
#include "dtrain/train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEN = 8, LABELS = 3 };

static const char model[] =
    "[run]\nthreads = 1\nseed = 3\nmax_steps = 12\n[model]\nmodel_type = llama\nhidden_size = 32\n"
    "intermediate_size = 88\nnum_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\n"
    "vocab_size = 16\nmax_position_embeddings = 32\ntie_word_embeddings = true\n[data]\nseq_len = 8\n"
    "validation_steps = 1\n[batch]\nmicro_batch_size = 2\ntrain_batch_size = 12\n[optimizer]\nlr = 0.02\n"
    "[scheduler]\ntype = constant\n[checkpoint]\nsave_steps = 6\nresume = auto\n[log]\nreport_to = jsonl\n";

typedef struct values_task {
    dt_batch batch;
    int loss;
} values_task;

static double wanted(int32_t token, int label) { return (token * 7 + label * 3) % 5 - 2; }

static void check(dt_task *t) { (void)t; }

static void open_task(dt_task *t)
{
    values_task *v = calloc(1, sizeof *v);
    t->self = v;
    if (!v) return;
    v->loss = dt_sums_declare(t->sums, "loss", DT_SUM_LOSS, 1);
    dt_sums_declare(t->sums, "tokens", DT_SUM_UNITS, 1);
    dt_sums_declare(t->sums, "samples", DT_SUM_UNITS, 1);
    dt_sums_show(t->sums, DT_SHOW_TRAIN, "loss", "loss", "tokens", NULL);
    dt_sums_show(t->sums, DT_SHOW_VALIDATION, "validation_loss", "loss", "tokens", NULL);
    t->steps_per_epoch = 1000, t->samples_per_epoch = 1000 * t->batching.train_batch_size;
    t->n_validation = t->batching.accumulation;
}

static dt_err plan(const dt_task *t, int stage, dt_memory *memory)
{
    (void)stage;
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_batch_nbytes(t->model_opt->max_tok, t->model_opt->max_seq);
    return DT_OK;
}

static dt_err begin(dt_task *t)
{
    values_task *v = t->self;
    return dt_comm_agree(t->comm, dt_batch_alloc(&v->batch, t->model_opt->max_tok, t->model_opt->max_seq, t->ledger));
}

static void close_task(dt_task *t)
{
    values_task *v = t->self;
    if (v) dt_batch_free(&v->batch, t->ledger);
    free(v);
    t->self = NULL;
}

static void fill(dt_task *t, int micro)
{
    dt_batch *b = &((values_task *)t->self)->batch;
    const int64_t m = t->batching.micro_batch_size;
    b->n_tok = b->n_seq = 0;
    b->seq_start[0] = 0;
    for (int64_t k = 0; k < m; k++) {
        const uint64_t sample = (uint64_t)((micro * t->nranks + t->comm->rank) * m + k);
        for (int i = 0; i < LEN; i++, b->n_tok++) {
            b->token[b->n_tok] = (int32_t)(dt_mix64(sample * LEN + (uint64_t)i) % 16);
            b->target[b->n_tok] = -1;
            b->weight[b->n_tok] = 0;
            b->pos[b->n_tok] = i;
            b->token_key[b->n_tok] = sample * LEN + (uint64_t)i;
        }
        b->full_len[b->n_seq++] = 0;
        b->seq_start[b->n_seq] = b->n_tok;
    }
    b->n_samples = m;
    dt_batch_finish(b);
}

static dt_err next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    (void)step;
    fill(t, micro);
    *m = (dt_micro){.batch = &((values_task *)t->self)->batch,
                    .n_micro = (int)t->batching.accumulation,
                    .inv_norm = 1 / (double)(t->batching.train_batch_size * LEN)};
    return DT_OK;
}

static dt_err weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    (void)t;
    for (int32_t i = 0; i < m->batch->n_tok; i++)
        for (int l = 0; l < LABELS; l++) {
            const int32_t at = i * LABELS + l;
            w->dvalue[at] = (float)(((double)p->value[at] - wanted(m->batch->token[i], l)) * m->inv_norm);
        }
    return w->u || p->logp ? DT_ERR_ARG : DT_OK;
}

static void collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const values_task *v = t->self;
    double loss = 0;
    for (int32_t i = 0; i < m->batch->n_tok; i++)
        for (int l = 0; l < LABELS; l++)
            loss += pow((double)p->value[i * LABELS + l] - wanted(m->batch->token[i], l), 2) / 2;
    dt_sums_add(t->sums, v->loss, loss);
    dt_sums_count(t->sums, dt_sums_find(t->sums, "tokens"), m->batch->n_tok);
    dt_sums_count(t->sums, dt_sums_find(t->sums, "samples"), m->batch->n_samples);
}

static dt_err evaluate(dt_task *t, int64_t micro)
{
    fill(t, (int)micro);
    return dt_task_forward(t, &(dt_micro){.batch = &((values_task *)t->self)->batch, .n_micro = 1});
}

static int64_t step_after(const dt_task *t, int64_t samples) { return samples / t->batching.train_batch_size; }

static const dt_task_ops values_ops = {.name = "values",
                                       .trains = true,
                                       .n_labels = LABELS,
                                       .check = check,
                                       .open = open_task,
                                       .plan = plan,
                                       .begin = begin,
                                       .close = close_task,
                                       .next_micro = next_micro,
                                       .weights = weights,
                                       .collect = collect,
                                       .evaluate = evaluate,
                                       .step_after = step_after};

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static char dir[64];

static int this_rank(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

/* Is it whole: nothing fails, what is planned is allocated, nothing is left? */
static bool run(const char *name, int n_args, const char *const *args)
{
    char out[100];
    const char *all[8] = {out};
    snprintf(out, sizeof out, "run.output_dir=%s/%s", dir, name);
    for (int i = 0; i < n_args; i++) all[i + 1] = args[i];
    dt_comm comm = {0};
    dt_run r = {.start_s = dt_now_s(), .task = {.ops = &values_ops}};
    dt_err err = dt_comm_open(&comm);
    if (!err) err = dt_config_parse(&r.cfg, "mpi_task_values", model, n_args + 1, all);
    if (!err) err = dt_run_main(&r, &comm, DT_MODE_RUN);
    if (err) print_error("%s\n", dt_error_message());
    const bool as_planned = !memcmp(&r.planned, &r.allocated, sizeof r.planned);
    dt_run_close(&r);
    dt_comm_close(&comm);
    dt_device_close(&r.dev);
    return !err && as_planned && atomic_load(&r.ledger.total_now) == 0;
}

/* A column of a run's report, by step: [14]. */
static void column(const char *name, const char *key, double *by_step)
{
    char path[120];
    dt_metrics m = {0};
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", dir, name);
    for (int i = 0; i < 14; i++) by_step[i] = NAN;
    if (dt_metrics_read(&m, path) == DT_OK) {
        const double *at = dt_metrics_column(&m, "step"), *value = dt_metrics_column(&m, key);
        for (int64_t i = 0; at && value && i < m.n_rows; i++)
            if (at[i] >= 0 && at[i] < 14 && !isnan(value[i])) by_step[(int)at[i]] = value[i];
    }
    dt_metrics_free(&m);
}

/* What a validation sees behind a step is what the next one begins with: the same passes, the same exact sums. */
static void a_model_with_a_scalar_head_is_trained(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        char zero[32], name[16];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        snprintf(name, sizeof name, "stage%d", stage);
        assert_all(MPI_COMM_WORLD, run(name, 1, (const char *[]){zero}));
        double loss[14], valid[14];
        column(name, "loss", loss), column(name, "validation_loss", valid);
        bool ok = loss[12] < 0.5 * loss[1];
        for (int s = 1; s < 12; s++) ok = ok && valid[s] == loss[s + 1];
        assert_all(MPI_COMM_WORLD, ok || this_rank());
    }
}

static void it_resumes_to_the_bit(void **state)
{
    (void)state;
    const char *whole[] = {"zero.stage=1"}, *half[] = {"zero.stage=1", "run.max_steps=6"};
    double a[14], b[14];
    assert_all(MPI_COMM_WORLD, run("whole", 1, whole) && run("two", 2, half) && run("two", 1, whole));
    column("whole", "loss", a), column("two", "loss", b);
    bool ok = true;
    for (int s = 1; s <= 12; s++) ok = ok && a[s] == b[s];
    assert_all(MPI_COMM_WORLD, ok || this_rank());
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/dtrain-mpi-task-values-%d", (int)getpid());
    MPI_Bcast(dir, sizeof dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return this_rank() ? 0 : system(command);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_with_a_scalar_head_is_trained),
        cmocka_unit_test(it_resumes_to_the_bit),
    };
    mpi_test_begin(&argc, &argv);
    return mpi_test_end(cmocka_run_group_tests(tests, make_dir, remove_dir));
}
