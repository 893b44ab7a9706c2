/* mpi_task_values.c - a task whose model has a scalar head: it receives values instead of log-probabilities and
 * returns the gradient of its loss with respect to them.
 *
 *     L = 1/(2 N) sum over tokens t and labels l of (value[t, l] - wanted[t, l])^2,    dL/dvalue = (value - wanted) / N
 *
 * N tokens of all ranks, the same in every step; wanted follows from a token's id, so that a model can learn it. A
 * critic, of another family and with a head of one output, may be trained concurrently for the first label only. It
 * has its own optimizer, learning rate and norm bound.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "task_run.h"

enum { LEN = 8, LABELS = 3 };

static const char model[] =
    "[run]\nthreads = 1\nseed = 3\nmax_steps = 12\n[model]\nmodel_type = llama\nhidden_size = 32\n"
    "intermediate_size = 88\nnum_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\n"
    "vocab_size = 16\nmax_position_embeddings = 32\ntie_word_embeddings = true\n[data]\nseq_len = 8\n"
    "validation_steps = 1\n[batch]\nmicro_batch_size = 2\ntrain_batch_size = 12\n[optimizer]\nlr = 0.02\n"
    "[scheduler]\ntype = constant\n[checkpoint]\nsave_steps = 6\nresume = auto\n[log]\nreport_to = jsonl\n";

static const char critic_model[] =
    "{\"model_type\": \"gpt2\", \"n_embd\": 24, \"n_layer\": 2, \"n_head\": 3, \"vocab_size\": 16, \"n_positions\": 8, "
    "\"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}";

typedef struct values_task {
    dt_batch batch;
    int loss, critic_loss;
    /* the critic, if there is one */
    dt_trained *critic;
    dt_model_config critic_mc;
    dt_unit *units;
    int n_units;
    dt_model_options critic_opt;
    dt_param_source source;
    dt_model *critic_net;
    float *value; /* [tokens], then their gradients */
    size_t value_nbytes;
} values_task;

static bool with_critic; /* in the runs that follow */
static const dt_optimizer_ops *critic_optimizer = &dt_optimizer_adam;
static int64_t broken_step; /* in which the last rank's gradients of the critic are not finite; 0: none */

static double wanted(int32_t token, int label) { return (token * 7 + label * 3) % 5 - 2; }

static dt_err open_critic(dt_task *t)
{
    values_task *v = t->self;
    const int32_t m = (int32_t)t->batching.micro_batch_size;
    DT_TRY(dt_model_config_parse(&v->critic_mc, "critic", critic_model));
    DT_TRY(dt_model_make_value_units(&v->critic_mc, 1, &v->units, &v->n_units));
    v->critic = dt_task_train_auxiliary(t, "critic", v->units, v->n_units);
    if (!v->critic) return DT_OK; /* reported already */
    v->critic->zero_opt.optimizer = critic_optimizer;
    v->critic->settings.beta1 = 0.8;
    v->critic->groups.group[0].lr = 0.01;
    v->critic->max_grad_norm = 0.5;
    v->critic_opt = (dt_model_options){.dtype = t->model_opt->dtype,
                                       .grad_dtype = v->critic->zero_opt.grad_dtype,
                                       .max_tok = m * LEN,
                                       .max_seq = m,
                                       .max_pos = LEN,
                                       .training = true};
    v->value_nbytes = 2 * (size_t)(m * LEN) * sizeof *v->value;
    v->critic_loss = dt_sums_declare(t->sums, "critic/loss", DT_SUM_LOSS, 1);
    dt_sums_show(t->sums, DT_SHOW_TRAIN, "critic/loss", "critic/loss", "tokens", NULL);
    return DT_OK;
}

static void open_task(dt_task *t)
{
    values_task *v = calloc(1, sizeof *v);
    t->self = v;
    if (!v) return;
    v->loss = dt_sums_declare(t->sums, "loss", DT_SUM_LOSS, 1);
    declare_size(t);
    dt_sums_show(t->sums, DT_SHOW_TRAIN, "loss", "loss", "tokens", NULL);
    dt_sums_show(t->sums, DT_SHOW_VALIDATION, "validation_loss", "loss", "tokens", NULL);
    if (with_critic) dt_mistakes_add(t->mistakes, open_critic(t));
}

static dt_err plan(const dt_task *t, int stage, dt_memory *memory)
{
    const values_task *v = t->self;
    dt_memory net;
    DT_TRY(plan_batch(t, stage, memory));
    if (!v->critic) return DT_OK;
    DT_TRY(dt_model_plan(&v->critic_mc, &v->critic_opt, v->units, v->n_units, t->dev, &net));
    dt_memory_add(memory, &net);
    memory->at[DT_MEM_DATA][DT_ON_HOST] += v->value_nbytes;
    return DT_OK;
}

static dt_err begin_local(dt_task *t)
{
    values_task *v = t->self;
    DT_TRY(dt_batch_alloc(&v->batch, t->model_opt->max_tok, t->model_opt->max_seq, t->ledger));
    if (!v->critic) return DT_OK;
    v->value = malloc(v->value_nbytes);
    DT_CHECK(v->value, DT_ERR_MEMORY, "out of memory for values");
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, v->value_nbytes);
    v->source = dt_zero_source(v->critic->zero);
    return dt_model_open(&v->critic_net, &v->critic_mc, &v->critic_opt, v->units, v->n_units, t->dev, &v->source,
                         t->compute, t->phase);
}

static dt_err begin(dt_task *t)
{
    const values_task *v = t->self;
    if (v->critic) DT_TRY(dt_zero_init_random(v->critic->zero, 5));
    return dt_comm_agree(t->comm, begin_local(t));
}

static void close_task(dt_task *t)
{
    values_task *v = t->self;
    if (!v) return;
    dt_model_close(v->critic_net);
    dt_model_free_units(v->units, v->n_units);
    dt_model_config_free(&v->critic_mc);
    if (v->value) dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, v->value_nbytes);
    free(v->value);
    dt_batch_free(&v->batch, t->ledger);
    free(v);
    t->self = NULL;
}

static void fill(dt_task *t, int micro)
{
    const int64_t m = t->batching.micro_batch_size, first = (micro * t->data->size + t->data->rank) * m;
    fill_samples(&((values_task *)t->self)->batch, first, m, LEN, 16, false);
}

static dt_err next_micro(dt_task *t, int64_t step, int micro, dt_micro *m)
{
    fill(t, micro);
    *m = (dt_micro){.batch = &((values_task *)t->self)->batch,
                    .n_micro = (int)t->batching.accumulation,
                    .inv_norm = 1 / (double)(t->batching.train_batch_size * LEN)};
    return DT_OK;
}

static dt_err weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    for (int32_t i = 0; i < m->batch->n_tok; i++)
        for (int l = 0; l < LABELS; l++) {
            const int32_t at = i * LABELS + l;
            w->dvalue[at] = (float)(((double)p->value[at] - wanted(m->batch->token[i], l)) * m->inv_norm);
        }
    return w->u || p->logp ? DT_ERR_ARG : DT_OK;
}

static dt_err train_auxiliary(dt_task *t, const dt_micro *m)
{
    const values_task *v = t->self;
    const dt_batch *b = m->batch;
    if (!v->critic) return DT_OK;
    const bool broken = atomic_load(&t->phase->step) == broken_step && t->data->rank == t->data->size - 1;
    float *dvalue = v->value + b->n_tok;
    double loss = 0;
    DT_TRY(dt_model_forward(v->critic_net, b, true, 0));
    DT_TRY(dt_model_values(v->critic_net, b, v->value));
    for (int32_t i = 0; i < b->n_tok; i++) {
        const double off = (double)v->value[i] - wanted(b->token[i], 0);
        loss += off * off / 2;
        dvalue[i] = broken ? NAN : (float)(off * m->inv_norm);
    }
    dt_sums_add(t->sums, v->critic_loss, loss);
    DT_TRY(dt_model_value_head(v->critic_net, b, dvalue));
    return dt_model_backward(v->critic_net, b);
}

static void collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const values_task *v = t->self;
    double loss = 0;
    for (int32_t i = 0; i < m->batch->n_tok; i++)
        for (int l = 0; l < LABELS; l++)
            loss += pow((double)p->value[i * LABELS + l] - wanted(m->batch->token[i], l), 2) / 2;
    dt_sums_add(t->sums, v->loss, loss);
}

static dt_err evaluate(dt_task *t, int64_t micro)
{
    fill(t, (int)micro);
    return dt_task_forward(t, &((values_task *)t->self)->batch);
}

static const dt_task_ops values_ops = {.name = "values",
                                       .trains = true,
                                       .n_labels = LABELS,
                                       .check = check_nothing,
                                       .open = open_task,
                                       .plan = plan,
                                       .begin = begin,
                                       .close = close_task,
                                       .next_micro = next_micro,
                                       .weights = weights,
                                       .train_auxiliary = train_auxiliary,
                                       .collect = collect,
                                       .evaluate = evaluate};

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static bool run(const char *name, int n_args, const char *const *args)
{
    return run_task(&values_ops, model, name, n_args, args);
}

enum { N_STEPS = 12 };
static void column(const char *name, const char *key, double *by_step) { read_column(name, key, by_step, N_STEPS + 2); }

/* A validation after a step sees the same results as the next step's start: the same passes, the same exact sums. */
TEST(a_model_with_a_scalar_head_is_trained)
{
    for (int stage = 0; stage <= 3; stage++) {
        char zero[32], name[16];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        snprintf(name, sizeof name, "stage%d", stage);
        assert_all(MPI_COMM_WORLD, run(name, 1, (const char *[]){zero}));
        double loss[N_STEPS + 2], valid[N_STEPS + 2];
        column(name, "loss", loss), column(name, "validation_loss", valid);
        bool ok = loss[12] < 0.5 * loss[1];
        for (int s = 1; s < 12; s++) ok = ok && valid[s] == loss[s + 1];
        assert_all(MPI_COMM_WORLD, ok || this_rank());
    }
}

TEST(it_resumes_to_the_bit)
{
    const char *whole[] = {"zero.stage=1"}, *half[] = {"zero.stage=1", "run.max_steps=6"};
    double a[N_STEPS + 2], b[N_STEPS + 2];
    assert_all(MPI_COMM_WORLD, run("whole", 1, whole) && run("two", 2, half) && run("two", 1, whole));
    column("whole", "loss", a), column("two", "loss", b);
    bool ok = true;
    for (int s = 1; s <= 12; s++) ok = ok && a[s] == b[s];
    assert_all(MPI_COMM_WORLD, ok || this_rank());
}

/* The two columns that distinguish both models from others, by step. */
typedef struct courses {
    double model[N_STEPS + 2], critic[N_STEPS + 2];
} courses;

static bool run_with_critic(const char *name, int n_args, const char *const *args, courses *c)
{
    const char *all[6] = {"run.reproducible=true"};
    for (int i = 0; i < n_args; i++) all[i + 1] = args[i];
    with_critic = true;
    const bool ok = run(name, n_args + 1, all);
    with_critic = false;
    column(name, "loss", c->model), column(name, "critic/loss", c->critic);
    return ok;
}

static bool same(const courses *a, const courses *b)
{
    for (int s = 1; s <= 12; s++)
        if (a->model[s] != b->model[s] || a->critic[s] != b->critic[s]) return false;
    return true;
}

/* The same sums of squares and bits at every stage, and a model that does not know of its critic. */
TEST(a_critic_is_trained_as_an_auxiliary_model)
{
    courses first, c, alone;
    for (int stage = 0; stage <= 3; stage++) {
        char zero[32], name[16];
        snprintf(zero, sizeof zero, "zero.stage=%d", stage);
        snprintf(name, sizeof name, "critic%d", stage);
        assert_all(MPI_COMM_WORLD, run_with_critic(name, 1, (const char *[]){zero}, &c));
        if (stage == 0) first = c;
        assert_all(MPI_COMM_WORLD, this_rank() || same(&first, &c));
    }
    double rate[N_STEPS + 2];
    column("critic3", "critic/lr", rate);
    assert_all(MPI_COMM_WORLD, this_rank() || (c.critic[12] < 0.7 * c.critic[1] && rate[12] == 0.01));
    assert_all(MPI_COMM_WORLD, run("alone", 1, (const char *[]){"run.reproducible=true"}));
    column("alone", "loss", alone.model);
    memcpy(alone.critic, c.critic, sizeof alone.critic);
    assert_all(MPI_COMM_WORLD, this_rank() || same(&alone, &c));
}

/* Also at another stage, and with its states in host memory. */
TEST(both_resume_to_the_bit)
{
    courses whole, c;
    const char *half[] = {"zero.stage=1", "run.max_steps=6"}, *rest[] = {"zero.stage=3", "zero.offload_optimizer=cpu"};
    assert_all(MPI_COMM_WORLD, run_with_critic("critic-whole", 1, half, &whole) &&
                                   run_with_critic("critic-two", 2, half, &c) &&
                                   run_with_critic("critic-two", 2, rest, &c));
    assert_all(MPI_COMM_WORLD, this_rank() || same(&whole, &c));
}

/* Its states start at zero then; those of the model do not. */
TEST(the_critic_resumes_with_another_optimizer)
{
    courses whole, c;
    const char *half[] = {"run.max_steps=6"};
    assert_all(MPI_COMM_WORLD, run_with_critic("critic-adam", 0, NULL, &whole));
    assert_all(MPI_COMM_WORLD, run_with_critic("critic-other", 1, half, &c));
    critic_optimizer = &dt_optimizer_sgd;
    const bool ok = run_with_critic("critic-other", 0, NULL, &c);
    critic_optimizer = &dt_optimizer_adam;
    assert_all(MPI_COMM_WORLD, ok);
    assert_all(MPI_COMM_WORLD, this_rank() || !memcmp(c.model + 1, whole.model + 1, 12 * sizeof(double)));
    assert_all(MPI_COMM_WORLD, this_rank() || (c.critic[7] == whole.critic[7] && c.critic[12] != whole.critic[12]));
}

/* All else comes a step later, for both: the data are the same in every step, and the rates. */
TEST(a_step_is_left_out_of_both_when_the_critic_has_no_numbers)
{
    enum { BROKEN = 5 };
    courses whole, c;
    assert_all(MPI_COMM_WORLD, run_with_critic("critic-sound", 0, NULL, &whole));
    broken_step = BROKEN;
    assert_all(MPI_COMM_WORLD, run_with_critic("critic-broken", 0, NULL, &c));
    broken_step = 0;
    bool ok = true;
    for (int step = 1; step <= 12; step++) {
        const int as = step < BROKEN ? step : step - 1;
        ok = ok && (step == BROKEN || (c.model[step] == whole.model[as] && c.critic[step] == whole.critic[as]));
    }
    assert_all(MPI_COMM_WORLD, ok || this_rank());
}

MPI_TEST_MAIN(make_task_run_dir, remove_task_run_dir)
