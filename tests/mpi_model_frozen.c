/* mpi_model_frozen.c - a partially trained model, through ZeRO: every stage follows the plain reference on one rank,
 * and in reproducible mode all stages end in the same bits; frozen tensors keep their bits.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "mpi_test.h"
#include "dtrain/zero/zero.h"
#include "ref_model.h"
#include <math.h>
#include <string.h>

enum { N_JOBS = 6 /* micro-batches of a step: divides by 1, 2, 3 ranks */, N_STEPS = 3, MAX_TOK = 24 };
static const int32_t LENS[] = {11, 13};
static const double LR = 1e-3, DECAY = 0.1, CLIP = 0.5;

static const char QWEN3[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 20, \"intermediate_size\": 28, \"num_hidden_layers\": 3, "
    "\"vocab_size\": 61, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true}";

/* Half of a group, all of a block, a block of which nothing is trained below it, the tied table or not. */
static bool upper_is_trained(void *self, const dt_tensor *t)
{
    return strstr(t->name, "layers.2") || strstr(t->name, "layers.1.self_attn.q_proj") || strstr(t->name, "model.norm");
}
static bool table_is_trained(void *self, const dt_tensor *t)
{
    return strstr(t->name, "embed_tokens") || strstr(t->name, "layers.1.mlp") || strstr(t->name, "k_norm");
}

typedef struct fixture {
    dt_comm comm;
    ref_model ref;
    dt_zero *z;
    dt_model *model;
    dt_param_source source;
    dt_batch b;
    double loss, norm; /* of the last step */
    bool reproducible;
} fixture;

static MPI_Comm world(const fixture *f) { return *(MPI_Comm *)dt_comm_mpi_handle(&f->comm); }

static bool open_reference(fixture *f, dt_trains trains)
{
    const dt_model_options opt = ref_options(MAX_TOK, 32, DT_F32);
    return dt_comm_open(&f->comm) == DT_OK &&
           ref_model_open_part(&f->ref, "test", QWEN3, &opt, trains, NULL) == DT_OK &&
           dt_comm_attach(&f->comm, &f->ref.dev, "mpi", true) == DT_OK &&
           dt_batch_alloc(&f->b, MAX_TOK, MAX_TOK, &f->ref.ledger) == DT_OK;
}

static void close_reference(fixture *f)
{
    dt_batch_free(&f->b, &f->ref.ledger);
    dt_comm_close(&f->comm);
    ref_model_close(&f->ref);
    assert_false(f->ref.misused);
}

static dt_err fill(fixture *f, int64_t step, int64_t job)
{
    ref_batch_fill(&f->b, f->ref.mc.vocab_size, step * N_JOBS + job, 2, LENS, 5);
    return DT_OK;
}

/* The mean over a step's micro-batches, by plain buffers and plain AdamW. */
static dt_err reference_step(fixture *f, int64_t step)
{
    ref_model_forget_grads(&f->ref);
    f->loss = 0;
    for (int64_t j = 0; j < N_JOBS; j++) {
        double loss;
        DT_TRY(fill(f, step, j));
        DT_TRY(ref_model_grads(&f->ref, &f->b, step, 1.0 / N_JOBS, &loss));
        f->loss += loss / N_JOBS;
    }
    f->norm = ref_model_adamw(&f->ref, LR, DECAY, CLIP);
    return DT_OK;
}

static dt_err micro_step(fixture *f, int64_t step, int64_t job)
{
    static float u[MAX_TOK], logp[MAX_TOK];
    DT_TRY(fill(f, step, job));
    for (int64_t i = 0; i < f->b.n_target; i++)
        u[i] = (float)(1.0 / N_JOBS * (double)f->b.weight[f->b.target_row[i]] / (double)f->b.n_target);
    DT_TRY(dt_model_forward(f->model, &f->b, true, step));
    DT_TRY(dt_model_head(f->model, &f->b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL));
    DT_TRY(dt_model_backward(f->model, &f->b));
    DT_TRY(dt_model_results(f->model, &(dt_head_results){.logp = logp}));
    for (int64_t i = 0; i < f->b.n_target; i++) f->loss -= (double)logp[i] / f->b.n_target / N_JOBS;
    return DT_OK;
}

static dt_err zero_step(fixture *f, int64_t step)
{
    const int n_micro = N_JOBS / f->comm.nranks;
    double sums[2];
    f->loss = 0;
    for (int a = 0; a < n_micro; a++) {
        dt_zero_begin_micro(f->z, a, n_micro);
        DT_TRY(micro_step(f, step, (int64_t)a * f->comm.nranks + f->comm.rank));
    }
    DT_TRY(f->reproducible ? dt_zero_grad_sum_squares_reproducible(f->z, &sums[1])
                           : dt_zero_grad_sum_squares(f->z, &sums[1]));
    sums[0] = f->loss;
    DT_TRY(dt_comm_reduce_host_f64(&f->comm, sums, 2, DT_SUM));
    f->loss = sums[0];
    f->norm = sqrt(sums[1]);
    const dt_optimizer_step with = {.lr = LR,
                                    .weight_decay = DECAY,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .grad_scale = fmin(1, CLIP / (f->norm + 1e-6)),
                                    .t = step};
    return dt_zero_update(f->z, &with, NULL);
}

/* Opens the model through ZeRO with the formula's weights; the memory held equals the plan. */
static dt_err open_zero(fixture *f, const dt_zero_options *opt)
{
    const ref_model *r = &f->ref;
    dt_memory expected = dt_ledger_now(&r->ledger), model;
    dt_zero_plan plan;
    DT_TRY(dt_zero_plan_make(opt, r->units, r->n_units, f->comm.nranks, &plan));
    DT_TRY(dt_model_plan(&r->mc, &r->opt, r->units, r->n_units, &r->dev, &model));
    dt_memory_add(&expected, &plan.memory);
    dt_stream_plan(&r->dev, plan.n_streams, &expected);
    dt_memory_add(&expected, &model);
    DT_TRY(dt_zero_open(&f->z, opt, r->units, r->n_units, &f->comm, &f->ref.dev, NULL, NULL));
    f->source = dt_zero_source(f->z);
    DT_TRY(dt_model_open(&f->model, &r->mc, &r->opt, r->units, r->n_units, &f->ref.dev, &f->source, NULL, NULL));
    const dt_memory now = dt_ledger_now(&r->ledger);
    DT_CHECK(!memcmp(&now, &expected, sizeof now), DT_ERR_FAULT, "what is held is not what was planned");
    for (int k = 0; k < dt_zero_n_slices(f->z); k++) {
        const dt_slice *p = &dt_zero_slices(f->z)[k];
        for (int64_t i = 0; i < p->n; i++) {
            const float x = (float)ref_weight(dt_zero_tensor(f->z, p), p->first + i);
            DT_TRY(dt_zero_state_write(f->z, DT_STATE_PARAM, p, i, 1, &x));
        }
    }
    return dt_zero_state_written(f->z);
}

static void close_zero(fixture *f)
{
    dt_model_close(f->model);
    dt_zero_close(f->z);
    f->model = NULL;
    f->z = NULL;
}

/* A sum over all parameters of all ranks that shows any other bit; frozen ones must be the formula's. */
static bool hash_params(fixture *f, uint64_t *hash)
{
    uint64_t own = 0;
    bool ok = true;
    for (int k = 0; k < dt_zero_n_slices(f->z); k++) {
        const dt_slice *p = &dt_zero_slices(f->z)[k];
        const dt_tensor *t = dt_zero_tensor(f->z, p);
        for (int64_t i = 0; i < p->n; i++) {
            float x;
            uint32_t bits;
            ok = dt_zero_state_read(f->z, DT_STATE_PARAM, p, i, 1, &x) == DT_OK && ok;
            memcpy(&bits, &x, sizeof bits);
            own += dt_mix64(bits ^ dt_mix64((uint64_t)k << 40 ^ (uint64_t)(p->first + i)));
            ok = ok && (t->trainable || x == (float)ref_weight(t, p->first + i));
        }
    }
    *hash = own;
    return dt_comm_sum_host_u64(&f->comm, hash, 1) == DT_OK && ok;
}

/* Losses of size 4 and norms of size 1 of sums of some hundred terms in fp32: 2^-24 of them for each rounding, as a
 * random walk. A first update moves a parameter by lr whatever the size of its gradient: where that is rounding alone,
 * below 1e-7, the two may move apart by 2 lr, and 10^4 such parameters change the loss by 2e-6. */
static bool near(double want, double found) { return fabs(want - found) <= 1e-5 * (1 + fabs(want)); }

static void check_choice(dt_trains trains)
{
    fixture f = {0};
    double loss[N_STEPS], norm[N_STEPS];
    assert_all(MPI_COMM_WORLD, open_reference(&f, trains));
    bool ok = true;
    for (int s = 0; s < N_STEPS; s++) {
        ok = reference_step(&f, s + 1) == DT_OK && ok;
        loss[s] = f.loss, norm[s] = f.norm;
    }
    assert_all(world(&f), ok && loss[N_STEPS - 1] > 0);
    uint64_t first = 0, hash;
    for (int k = 0; k < 8; k++) {
        const dt_zero_options opt = {.stage = k / 2,
                                     .param_dtype = DT_F32,
                                     .grad_dtype = DT_F32,
                                     .optimizer = &dt_optimizer_adamw,
                                     .reproducible = k % 2,
                                     .overlap_comm = true,
                                     .prefetch_bucket_size = 1 << 20};
        ok = open_zero(&f, &opt) == DT_OK;
        f.reproducible = opt.reproducible;
        assert_all(world(&f), ok);
        for (int s = 0; s < N_STEPS; s++) {
            ok = zero_step(&f, s + 1) == DT_OK && near(loss[s], f.loss) && near(norm[s], f.norm) && ok;
            if (!ok)
                print_error("stage %d, step %d: loss %.9g, expected %.9g; norm %.9g, expected %.9g\n", opt.stage, s + 1,
                            f.loss, loss[s], f.norm, norm[s]);
        }
        ok = hash_params(&f, &hash) && ok;
        if (k == 1) first = hash;
        assert_all(world(&f), ok && (k % 2 == 0 || hash == first));
        close_zero(&f);
    }
    close_reference(&f);
}

TEST(the_upper_part_is_trained_as_by_the_plain_reference) { check_choice(upper_is_trained); }
TEST(a_tied_table_is_trained_as_by_the_plain_reference) { check_choice(table_is_trained); }

int main(int argc, char **argv) { MPI_TEST_MAIN(argc, argv); }
