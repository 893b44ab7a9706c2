// NP: 2 4
/* bench_stages.c - what the stages of ZeRO cost over stage 0: whole training steps of one model at all four, step by
 * step in turn, with the collectives and bytes of a step against the paper's 2P and 3P (times (R - 1)/R).
 *
 * usage: mpirun -n N bench_stages [rounds [sequences tokens]]
 *
 * Four blocks of GPT-2 124M's width and a small vocabulary, one thread a rank, one micro-batch a step. A step counts as
 * long as the slowest rank; ratios are of steps of the same turn, and their median counts. */
#include "dtrain/model.h"
#include "dtrain/zero.h"
#include "ref_model.h"
#include <math.h>
#include <mpi.h>
#include <stdlib.h>

enum { N_STAGES = 4, MAX_ROUNDS = 64 };
static const char CONFIG[] = "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"vocab_size\": 512, \"attn_pdrop\": 0, "
                             "\"embd_pdrop\": 0, \"resid_pdrop\": 0, \"tie_word_embeddings\": false}";

typedef struct bench {
    dt_comm comm;
    dt_ledger ledger;
    dt_device dev;
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_batch batch;
    float *u, *logp;
} bench;

/** One stage, with its own states. */
typedef struct trained {
    dt_zero *zero;
    dt_model *model;
    dt_zero_plan plan;
    int64_t t;                  /* updates done */
    double seconds[MAX_ROUNDS]; /* of the slowest rank */
    double n_collectives, sent_bytes;
} trained;

static void check(dt_err err)
{
    if (!err) return;
    fprintf(stderr, "bench_stages: %s\n", dt_error_message());
    MPI_Abort(MPI_COMM_WORLD, dt_exit_code(err));
}

static void open_bench(bench *b, int n_seq, int32_t len)
{
    int32_t *lens = calloc((size_t)n_seq, sizeof *lens);
    for (int i = 0; i < n_seq; i++) lens[i] = len;
    check(dt_comm_open(&b->comm));
    check(dt_device_open(&b->dev, "cpu", b->comm.local_rank, 1, &b->ledger));
    check(dt_comm_attach(&b->comm, &b->dev, "mpi", true));
    check(dt_model_config_parse(&b->mc, "bench", CONFIG));
    check(dt_model_make_units(&b->mc, &b->units, &b->n_units));
    check(dt_batch_alloc(&b->batch, n_seq * len, n_seq, &b->ledger));
    ref_batch_fill(&b->batch, b->mc.vocab_size, b->comm.rank, n_seq, lens, 0);
    b->u = calloc((size_t)b->batch.n_tok, sizeof *b->u);
    b->logp = calloc((size_t)b->batch.n_tok, sizeof *b->logp);
    for (int32_t i = 0; i < b->batch.n_tok; i++) b->u[i] = 1.0f / (float)(b->batch.n_tok * b->comm.nranks);
    free(lens);
}

static void open_stage(bench *b, trained *t, int stage, dt_dtype dtype)
{
    const dt_zero_options zero = {.stage = stage,
                                  .param_dtype = dtype,
                                  .grad_dtype = dtype,
                                  .optimizer = &dt_optimizer_adamw,
                                  .overlap_comm = true,
                                  .tied_unit = -1,
                                  .prefetch_bucket_size = INT64_C(1) << 40};
    const dt_model_options model = {.dtype = dtype,
                                    .grad_dtype = dtype,
                                    .max_tok = b->batch.max_tok,
                                    .max_seq = b->batch.max_seq,
                                    .max_pos = b->batch.n_tok / b->batch.n_seq,
                                    .training = true};
    *t = (trained){0};
    check(dt_zero_plan_make(&zero, b->units, b->n_units, b->comm.nranks, &t->plan));
    check(dt_zero_open(&t->zero, &zero, b->units, b->n_units, &b->comm, &b->dev, NULL, NULL));
    check(dt_zero_init_random(t->zero, 1));
    const dt_param_source source = dt_zero_source(t->zero);
    dt_param_source *kept = malloc(sizeof *kept); /* the model borrows it: for the life of the program */
    *kept = source;
    check(dt_model_open(&t->model, &b->mc, &model, b->units, b->n_units, &b->dev, kept, NULL, NULL));
}

static void step(bench *b, trained *t)
{
    double squares;
    const dt_optimizer_step with = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 1, .weight_decay = 0.1, .t = ++t->t};
    dt_zero_begin_micro(t->zero, 0, 1);
    check(dt_model_forward(t->model, &b->batch, true, t->t));
    check(dt_model_head(t->model, &b->batch, b->u, 1, false));
    check(dt_model_backward(t->model, &b->batch));
    check(dt_model_results(t->model, b->logp, NULL, NULL));
    check(dt_zero_grad_sum_squares(t->zero, &squares));
    check(dt_zero_update(t->zero, &with, NULL));
}

static void timed_step(bench *b, trained *t, int round)
{
    const double sent = b->comm.traffic_bytes;
    const long long sequence = atomic_load(&b->comm.sequence);
    MPI_Barrier(MPI_COMM_WORLD);
    const double since = dt_now_s();
    step(b, t);
    double took = dt_now_s() - since;
    t->n_collectives = (double)(atomic_load(&b->comm.sequence) - sequence);
    t->sent_bytes = b->comm.traffic_bytes - sent;
    MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    t->seconds[round] = took;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median_ratio(const double *a, const double *b, int n)
{
    double ratio[MAX_ROUNDS];
    for (int i = 0; i < n; i++) ratio[i] = b ? a[i] / b[i] : a[i];
    qsort(ratio, (size_t)n, sizeof *ratio, by_value);
    return ratio[n / 2];
}

static void print(const bench *b, const trained *t, dt_dtype dtype, int rounds)
{
    const double R = b->comm.nranks, P = (double)t[0].plan.n_param, e = (double)dt_dtype_size(dtype);
    printf("%s, %d ranks, %.1f million parameters in %d units\n", dt_dtype_name(dtype), b->comm.nranks, P / 1e6,
           b->n_units);
    for (int s = 0; s < N_STAGES; s++)
        printf(
            "  stage %d  %8.1f ms  %.3f of stage 0   %4.0f collectives, %.3f P elements sent (%d P (R-1)/R = %.3f P)\n",
            s, 1e3 * median_ratio(t[s].seconds, NULL, rounds), median_ratio(t[s].seconds, t[0].seconds, rounds),
            t[s].n_collectives, t[s].sent_bytes / e / P, s < 3 ? 2 : 3, (s < 3 ? 2 : 3) * (R - 1) / R);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 9, n_seq = argc > 3 ? atoi(argv[2]) : 4,
              len = argc > 3 ? atoi(argv[3]) : 128;
    static const dt_dtype TYPES[] = {DT_F32, DT_BF16};
    static bench b;
    static trained t[N_STAGES];
    MPI_Init(&argc, &argv);
    if (rounds < 1 || rounds > MAX_ROUNDS || n_seq < 1 || len < 1 || len > 1024)
        check(dt_fail(DT_ERR_USAGE, "usage: bench_stages [rounds [sequences tokens]]"));
    open_bench(&b, n_seq, len);
    for (int k = 0; k < 2; k++) {
        for (int s = 0; s < N_STAGES; s++) open_stage(&b, &t[s], s, TYPES[k]);
        for (int i = -2; i < rounds;
             i++) /* first the primitives are made, and it is learned which unit follows which */
            for (int s = 0; s < N_STAGES; s++) timed_step(&b, &t[s], i < 0 ? 0 : i);
        if (b.comm.rank == 0) print(&b, t, TYPES[k], rounds);
        for (int s = 0; s < N_STAGES; s++) dt_model_close(t[s].model), dt_zero_close(t[s].zero);
    }
    dt_comm_close(&b.comm);
    MPI_Finalize();
    return 0;
}
