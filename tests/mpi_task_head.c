/* mpi_task_head.c - a task that requests every output and option of its model's head in addition to
 * log-probabilities: a temperature, weights of entropies, sums of squared probabilities, mean logits, and
 * divergences from a reference over the whole vocabulary.
 *
 *     L = 1/N sum over targets t of  - a logp_t - b H_t + c K_t,    with logits divided by T
 *
 * N targets of all ranks, the same in every step. The reference is another model of the same vocabulary, with its
 * own width and head.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "task_run.h"
#include "../src/task/reference.h"

enum { LEN = 10, N_STEPS = 6 };
#define TEMPERATURE 0.8

static const char model[] = "[run]\nthreads = 1\nseed = 3\nmax_steps = 6\nreproducible = true\n[model]\n"
                            "path = tests/data/hf/llama\n[data]\nseq_len = 10\nvalidation_steps = 1\n[batch]\n"
                            "micro_batch_size = 2\ntrain_batch_size = 12\n[optimizer]\nlr = 0.01\n[scheduler]\n"
                            "type = constant\n[checkpoint]\nsave_steps = 100\n[log]\nreport_to = jsonl\n";

/* Of the runs that follow. */
static struct {
    double a, b, c;
    const char *reference;
    bool all_on_first; /* the first rank has all samples, in more micro-steps; the others have empty batches */
} how;

typedef struct head_task {
    dt_reference reference;
    dt_batch batch;
    int loss, targets, entropy, squares, mean, kl;
} head_task;

static void show(dt_task *t, const char *name, const char *validation)
{
    dt_sums_show(t->sums, DT_SHOW_TRAIN, name, name, "targets", NULL);
    dt_sums_show(t->sums, DT_SHOW_VALIDATION, validation, name, "targets", NULL);
}

static void open_task(dt_task *t)
{
    head_task *h = calloc(1, sizeof *h);
    t->self = h;
    if (!h) return;
    h->loss = dt_sums_declare(t->sums, "loss", DT_SUM_LOSS, 1);
    h->targets = dt_sums_declare(t->sums, "targets", DT_SUM_UNITS, 1);
    declare_size(t);
    h->entropy = dt_sums_declare(t->sums, "entropy", DT_SUM_LOSS, 1);
    h->squares = dt_sums_declare(t->sums, "squares", DT_SUM_LOSS, 1);
    h->mean = dt_sums_declare(t->sums, "mean", DT_SUM_LOSS, 1);
    h->kl = dt_sums_declare(t->sums, "kl", DT_SUM_LOSS, 1);
    show(t, "loss", "validation_loss"), show(t, "entropy", "validation_entropy");
    show(t, "squares", "validation_squares"), show(t, "mean", "validation_mean"), show(t, "kl", "validation_kl");
    t->temperature = TEMPERATURE;
    const int32_t m = (int32_t)t->batching.micro_batch_size;
    if (t->model_opt->max_tok < m * LEN) t->model_opt->max_tok = m * LEN;
    if (t->model_opt->max_seq < m) t->model_opt->max_seq = m;
    if (t->model_opt->max_pos < LEN) t->model_opt->max_pos = LEN;
    t->model_opt->head = DT_HEAD_ENTROPY_WEIGHT | DT_HEAD_SUM_SQUARES | DT_HEAD_MEAN_LOGIT | DT_HEAD_DIVERGENCE;
    dt_mistakes_add(t->mistakes, dt_reference_open(&h->reference, t, how.reference));
}

static dt_err begin(dt_task *t)
{
    head_task *h = t->self;
    return dt_comm_agree(t->comm, dt_batch_alloc(&h->batch, t->model_opt->max_tok, t->model_opt->max_seq, t->ledger));
}

static void close_task(dt_task *t)
{
    head_task *h = t->self;
    if (!h) return;
    dt_batch_free(&h->batch, t->ledger);
    free(h);
    t->self = NULL;
}

static dt_err take(dt_task *t, int64_t micro, dt_micro *m)
{
    head_task *h = t->self;
    const int64_t size = t->batching.micro_batch_size, n_targets = t->batching.train_batch_size * (LEN - LEN / 3);
    int64_t at = micro * t->data->size + t->data->rank;
    if (how.all_on_first) at = t->data->rank == 0 ? micro : -1;
    fill_samples(&h->batch, at * size, at < 0 ? 0 : size, LEN, 61, true);
    *m = (dt_micro){.batch = &h->batch,
                    .n_micro = (int)(t->batching.accumulation * (how.all_on_first ? t->data->size : 1)),
                    .inv_norm = 1 / (double)n_targets};
    return dt_reference_score(&h->reference, t, &h->batch);
}

static dt_err next_micro(dt_task *t, int64_t step, int micro, dt_micro *m) { return take(t, micro, m); }

/* Outputs that only metrics need are not available yet. */
static dt_err weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    if (!p->logp || !p->entropy || !p->log_sum_squares || p->kl || p->mean_logit) return DT_ERR_ARG;
    for (int64_t i = 0; i < m->batch->n_target; i++) {
        w->u[i] = (float)(how.a * m->inv_norm);
        w->entropy[i] = (float)(how.b * m->inv_norm);
        w->kl[i] = (float)(how.c * m->inv_norm);
    }
    return DT_OK;
}

static void collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const head_task *h = t->self;
    const dt_batch *b = m->batch;
    double loss = 0, entropy = 0, squares = 0, mean = 0, kl = 0;
    for (int64_t i = 0; i < b->n_target; i++) {
        loss += -how.a * (double)p->logp[i] - how.b * (double)p->entropy[i] + how.c * (double)p->kl[i];
        entropy += (double)p->entropy[i], squares += (double)p->log_sum_squares[i];
        mean += (double)p->mean_logit[i], kl += (double)p->kl[i];
    }
    dt_sums_add(t->sums, h->loss, loss), dt_sums_add(t->sums, h->entropy, entropy);
    dt_sums_add(t->sums, h->squares, squares), dt_sums_add(t->sums, h->mean, mean);
    dt_sums_add(t->sums, h->kl, kl);
    dt_sums_count(t->sums, h->targets, b->n_target);
}

static dt_err evaluate(dt_task *t, int64_t micro)
{
    const bool all_on_first = how.all_on_first;
    dt_micro m;
    how.all_on_first = false;
    const dt_err err = take(t, micro, &m);
    how.all_on_first = all_on_first;
    return err == DT_OK ? dt_task_forward(t, m.batch) : err;
}

static const dt_task_ops head_ops = {.name = "head",
                                     .trains = true,
                                     .no_dropout = true,
                                     .check = check_nothing,
                                     .open = open_task,
                                     .plan = plan_batch,
                                     .begin = begin,
                                     .close = close_task,
                                     .next_micro = next_micro,
                                     .weights = weights,
                                     .collect = collect,
                                     .evaluate = evaluate};

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static bool run(const char *name, int n_args, const char *const *args)
{
    return run_task(&head_ops, model, name, n_args, args);
}

/* Columns of a run's report, by step. */
enum { LOSS, ENTROPY, SQUARES, MEAN, KL, VALID_LOSS, VALID_KL, N_COLUMNS };
typedef struct course {
    double at[N_COLUMNS][N_STEPS + 1];
} course;

static course read_course(const char *name)
{
    static const char *const names[N_COLUMNS] = {"loss", "entropy",         "squares",      "mean",
                                                 "kl",   "validation_loss", "validation_kl"};
    course c;
    for (int k = 0; k < N_COLUMNS; k++) read_column(name, names[k], c.at[k], N_STEPS + 1);
    return c;
}

/* To the bit. */
static bool same(const course *a, const course *b)
{
    for (int k = 0; k < N_COLUMNS; k++)
        for (int s = 1; s <= N_STEPS; s++)
            if (!(a->at[k][s] == b->at[k][s])) {
                print_error("column %d, step %d: %.17g and %.17g\n", k, s, a->at[k][s], b->at[k][s]);
                return false;
            }
    return true;
}

static void all_terms(const char *reference)
{
    how.a = 1, how.b = 0.1, how.c = 0.5, how.reference = reference;
    how.all_on_first = false;
}

/* A validation after a step sees the same results as the next step's start. */
static bool validation_agrees(const course *c)
{
    bool ok = true;
    for (int s = 1; s < N_STEPS; s++)
        ok = ok && c->at[VALID_LOSS][s] == c->at[LOSS][s + 1] && c->at[VALID_KL][s] == c->at[KL][s + 1];
    return ok;
}

/* With parameters in host memory, too: the reference's head is brought between two uses of the model's. */
TEST(all_stages_are_the_same)
{
    course first = {0};
    all_terms("tests/data/hf/qwen3");
    for (int stage = 0; stage <= 4; stage++) {
        char zero[32], name[16];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage < 4 ? stage : 3);
        snprintf(name, sizeof name, "stage%d", stage);
        assert_all(MPI_COMM_WORLD, run(name, stage < 4 ? 1 : 2, (const char *[]){zero, "zero.offload_param=cpu"}));
        const course c = read_course(name);
        if (stage == 0) first = c;
        assert_all(MPI_COMM_WORLD, this_rank() || (same(&first, &c) && validation_agrees(&c)));
    }
    assert_all(MPI_COMM_WORLD, this_rank() || first.at[LOSS][N_STEPS] < first.at[LOSS][1]);
}

/* Micro-batches that are empty on all ranks but one: no rank hangs, and the results equal those of a single rank. */
TEST(the_distribution_of_samples_does_not_matter)
{
    const char *stage3[] = {"zero.stage=3"};
    all_terms("tests/data/hf/gpt2");
    assert_all(MPI_COMM_WORLD, run("shared", 1, stage3));
    how.all_on_first = true;
    assert_all(MPI_COMM_WORLD, run("alone", 1, stage3));
    const course a = read_course("shared"), b = read_course("alone");
    assert_all(MPI_COMM_WORLD, this_rank() || same(&a, &b));
}

TEST(a_policy_comes_back_to_its_reference)
{
    all_terms("tests/data/hf/mistral");
    how.a = how.b = 0;
    assert_all(MPI_COMM_WORLD, run("back", 0, NULL));
    const course c = read_course("back");
    assert_all(MPI_COMM_WORLD, this_rank() || (c.at[KL][1] > 0 && c.at[KL][N_STEPS] < 0.5 * c.at[KL][1]));
}

/* From itself a model has not moved, to the bit; a bonus on entropy raises it. */
TEST(divergence_from_the_initial_model_starts_at_zero)
{
    all_terms("tests/data/hf/llama");
    how.a = how.c = 0;
    assert_all(MPI_COMM_WORLD, run("itself", 0, NULL));
    const course c = read_course("itself");
    assert_all(MPI_COMM_WORLD, this_rank() || (c.at[KL][1] == 0 && c.at[KL][2] > 0));
    assert_all(MPI_COMM_WORLD, this_rank() || c.at[ENTROPY][N_STEPS] > c.at[ENTROPY][1]);
}

MPI_TEST_MAIN(make_task_run_dir, remove_task_run_dir)
