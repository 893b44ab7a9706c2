// NP: 2 4
/* bench_stages.c - the cost of the layouts of model states: whole training steps of one model at the four stages of
 * ZeRO, with offload, and in reproducible mode. Steps alternate, and each layout is compared with the one that it
 * changes.
 *
 * usage: mpirun -n N bench_stages [rounds [sequences tokens [folder for files [part of a group's name]]]]
 *
 * Four blocks of GPT-2 124M's width and a small vocabulary, one thread a rank. A step counts as long as the slowest
 * rank; ratios are of steps of the same turn, and their median counts. P: the bytes of the parameters as they are
 * gathered; planned is the paper's 2P and 3P (times (R - 1)/R) in a step of one micro-step. With states in a file a
 * step can take no less than the layout without it, nor than their bytes take to be read and written, which is
 * measured in the same turns. */
#include "dtrain/model/model.h"
#include "dtrain/io/swap_file.h"
#include "dtrain/zero/zero.h"
#include "ref_model.h"
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

typedef struct layout {
    const char *name;
    int stage, more_micro; /* micro-steps beyond the first */
    bool reproducible;
    dt_offload optimizer, param;
} layout;

/* The first of each group is the baseline of the others. */
enum { MOST = 5, MAX_ROUNDS = 64 };
static const struct {
    const char *name;
    layout of[MOST];
} GROUPS[] = {
    {"stages", {{"stage 0", .stage = 0}, {"stage 1", .stage = 1}, {"stage 2", .stage = 2}, {"stage 3", .stage = 3}}},
    {"offload at stage 2",
     {{"none", .stage = 2},
      {"optimizer to cpu", .stage = 2, .optimizer = DT_OFFLOAD_CPU},
      {"optimizer to nvme", .stage = 2, .optimizer = DT_OFFLOAD_NVME}}},
    {"offload at stage 3",
     {{"none", .stage = 3},
      {"optimizer to cpu", .stage = 3, .optimizer = DT_OFFLOAD_CPU},
      {"all to cpu", .stage = 3, .optimizer = DT_OFFLOAD_CPU, .param = DT_OFFLOAD_CPU},
      {"optimizer to nvme", .stage = 3, .optimizer = DT_OFFLOAD_NVME},
      {"all to nvme", .stage = 3, .optimizer = DT_OFFLOAD_NVME, .param = DT_OFFLOAD_NVME}}},
    {"reproducible, stage 0, 4 micro-steps",
     {{"fastest", .stage = 0, .more_micro = 3}, {"reproducible", .stage = 0, .more_micro = 3, .reproducible = true}}},
    {"reproducible, stage 1", {{"fastest", .stage = 1}, {"reproducible", .stage = 1, .reproducible = true}}},
    {"reproducible, stage 1, 4 micro-steps",
     {{"fastest", .stage = 1, .more_micro = 3}, {"reproducible", .stage = 1, .more_micro = 3, .reproducible = true}}},
    {"reproducible, stage 2, 4 micro-steps",
     {{"fastest", .stage = 2, .more_micro = 3}, {"reproducible", .stage = 2, .more_micro = 3, .reproducible = true}}},
    {"reproducible, stage 3, 4 micro-steps",
     {{"fastest", .stage = 3, .more_micro = 3}, {"reproducible", .stage = 3, .more_micro = 3, .reproducible = true}}},
};
enum { N_GROUPS = sizeof GROUPS / sizeof GROUPS[0] };
static const char CONFIG[] = "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"vocab_size\": 512, \"attn_pdrop\": 0, "
                             "\"embd_pdrop\": 0, \"resid_pdrop\": 0, \"tie_word_embeddings\": false}";

/** A device, and the ranks that exchange its memory. */
typedef struct place {
    dt_comm comm;
    dt_device dev;
} place;

typedef struct bench {
    place fast, reproducible;
    dt_ledger ledger;
    dt_model_config mc;
    dt_unit *units;
    int n_units, rounds;
    dt_batch batch;
    float *u, *logp;
    const char *folder;
} bench;

/** One layout, with its own states. */
typedef struct trained {
    const layout *how;
    place *at;
    dt_param_source source;
    dt_zero *zero;
    dt_model *model;
    dt_zero_plan plan;
    int64_t t;                  /* updates done */
    double seconds[MAX_ROUNDS]; /* of the slowest rank */
    double n_collectives, sent_bytes;
    dt_swap_file *file; /* as large as the states in its file, for their time alone */
    char *in_memory;
    double file_s[MAX_ROUNDS];
} trained;

static void check(dt_err err)
{
    if (!err) return;
    fprintf(stderr, "bench_stages: %s\n", dt_error_message());
    MPI_Abort(MPI_COMM_WORLD, dt_exit_code(err));
}

static void open_place(bench *b, place *p, bool reproducible)
{
    check(dt_comm_open(&p->comm));
    check(dt_device_open(&p->dev, "cpu", p->comm.local_rank, 1, &b->ledger));
    if (reproducible) p->dev.ops->make_reproducible(&p->dev);
    check(dt_comm_attach(&p->comm, &p->dev, "mpi", true));
}

static void open_bench(bench *b, int n_seq, int32_t len)
{
    int32_t *lens = calloc((size_t)n_seq, sizeof *lens);
    for (int i = 0; i < n_seq; i++) lens[i] = len;
    open_place(b, &b->fast, false);
    open_place(b, &b->reproducible, true);
    check(dt_model_config_parse(&b->mc, "bench", CONFIG));
    check(dt_model_make_units(&b->mc, &b->units, &b->n_units));
    check(dt_batch_alloc(&b->batch, n_seq * len, n_seq, &b->ledger));
    ref_batch_fill(&b->batch, b->mc.vocab_size, b->fast.comm.rank, n_seq, lens, 0);
    b->u = calloc((size_t)b->batch.n_tok, sizeof *b->u);
    b->logp = calloc((size_t)b->batch.n_tok, sizeof *b->logp);
    for (int32_t i = 0; i < b->batch.n_tok; i++) b->u[i] = 1.0f / (float)(b->batch.n_tok * b->fast.comm.nranks);
    free(lens);
}

static size_t file_nbytes(const trained *t) { return dt_memory_on(&t->plan.memory, DT_IN_FILE); }

/** A file of the size of the states in the layout's own. */
static void open_file(const bench *b, trained *t)
{
    const size_t nbytes = dt_swap_round_up(file_nbytes(t));
    const dt_swap_options opt = {
        .dir = b->folder, .what = "the benchmark", .nbytes = {[DT_MEM_OTHER] = nbytes}, .depth = 8};
    if (nbytes == 0) return;
    check(dt_swap_open(&t->file, &opt));
    t->in_memory = aligned_alloc(DT_SWAP_ALIGN, nbytes);
    check(t->in_memory ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %zu bytes", nbytes));
    memset(t->in_memory, 1, nbytes);
}

static void open_layout(bench *b, trained *t, const layout *how, dt_dtype dtype)
{
    place *at = how->reproducible ? &b->reproducible : &b->fast;
    const dt_dtype grad_dtype = how->more_micro > 0 || how->reproducible ? DT_F32 : dtype;
    const dt_zero_options zero = {.stage = how->stage,
                                  .param_dtype = dtype,
                                  .grad_dtype = grad_dtype,
                                  .optimizer = &dt_optimizer_adamw,
                                  .reproducible = how->reproducible,
                                  .overlap_comm = true,
                                  .tied_unit = -1,
                                  .prefetch_bucket_size = INT64_C(1) << 40,
                                  .offload_optimizer = how->optimizer,
                                  .offload_param = how->param,
                                  .host = &at->dev,
                                  .sub_group_size = 2000000,
                                  .buffer_count = 4,
                                  .pin_memory = true,
                                  .nvme_path = b->folder};
    const dt_model_options model = {.dtype = dtype,
                                    .grad_dtype = grad_dtype,
                                    .max_tok = b->batch.max_tok,
                                    .max_seq = b->batch.max_seq,
                                    .max_pos = b->batch.n_tok / b->batch.n_seq,
                                    .training = true};
    *t = (trained){.how = how, .at = at};
    check(dt_zero_plan_make(&zero, b->units, b->n_units, at->comm.nranks, &t->plan));
    check(dt_zero_open(&t->zero, &zero, b->units, b->n_units, &at->comm, &at->dev, NULL, NULL));
    check(dt_zero_init_random(t->zero, 1));
    t->source = dt_zero_source(t->zero);
    check(dt_model_open(&t->model, &b->mc, &model, b->units, b->n_units, &at->dev, &t->source, NULL, NULL));
    open_file(b, t);
}

static void close_layout(trained *t)
{
    dt_model_close(t->model);
    dt_zero_close(t->zero);
    dt_swap_close(t->file);
    free(t->in_memory);
}

static void step(bench *b, trained *t)
{
    double squares;
    const dt_optimizer_step with = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 1, .weight_decay = 0.1, .t = ++t->t};
    for (int i = 0; i <= t->how->more_micro; i++) {
        dt_zero_begin_micro(t->zero, i, 1 + t->how->more_micro);
        check(dt_model_forward(t->model, &b->batch, true, t->t));
        check(dt_model_head(t->model, &b->batch, &(dt_head_pass){.inv_temperature = 1, .u = b->u}, NULL));
        check(dt_model_backward(t->model, &b->batch));
        check(dt_model_results(t->model, &(dt_head_results){.logp = b->logp}));
    }
    check(t->how->reproducible ? dt_zero_grad_sum_squares_reproducible(t->zero, &squares)
                               : dt_zero_grad_sum_squares(t->zero, &squares));
    check(dt_zero_update(t->zero, &with, NULL));
}

/** Seconds since, on the slowest rank. */
static double slowest_since(double since)
{
    double took = dt_now_s() - since;
    MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return took;
}

/** All that is in the file, read and written once. */
static double move_file(const trained *t)
{
    enum { REQUEST = 8 << 20 };
    MPI_Barrier(MPI_COMM_WORLD);
    const double since = dt_now_s();
    const size_t nbytes = dt_swap_round_up(file_nbytes(t));
    for (int write = 0; write < 2; write++) {
        dt_swap_request r[8] = {0};
        for (size_t at = 0, k = 0; at < nbytes; at += REQUEST, k++) {
            const size_t n = nbytes - at < REQUEST ? nbytes - at : REQUEST;
            check(dt_swap_wait(t->file, &r[k % 8]));
            check(write ? dt_swap_write(t->file, (int64_t)at, t->in_memory + at, n, &r[k % 8])
                        : dt_swap_read(t->file, (int64_t)at, t->in_memory + at, n, &r[k % 8]));
        }
        for (int k = 0; k < 8; k++) check(dt_swap_wait(t->file, &r[k]));
    }
    return slowest_since(since);
}

/* A step's pending writes delay the next step: with a file two steps run and the second counts. They also delay the
 * measurement of the file's own time, so that starts after all transfers. */
static void timed_step(bench *b, trained *t, int round)
{
    const dt_comm *comm = &t->at->comm;
    if (t->file) step(b, t);
    const double sent = comm->traffic_bytes;
    const long long sequence = atomic_load(&comm->sequence);
    MPI_Barrier(MPI_COMM_WORLD);
    const double since = dt_now_s();
    step(b, t);
    t->seconds[round] = slowest_since(since);
    t->n_collectives = (double)(atomic_load(&comm->sequence) - sequence);
    t->sent_bytes = comm->traffic_bytes - sent;
    if (!t->file) return;
    move_file(t);
    t->file_s[round] = move_file(t);
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

/** What a step can take no less than, over what it took: its own layout without the file, or the file. */
static double of_bound(const trained *base, const trained *t, int rounds)
{
    double bound[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++)
        bound[i] = t->file && t->file_s[i] > base->seconds[i] ? t->file_s[i] : base->seconds[i];
    return median_ratio(t->seconds, bound, rounds);
}

static void print(const bench *b, const trained *t, int n, const char *group, dt_dtype dtype)
{
    const double P_bytes = (double)t[0].plan.n_param * (double)dt_dtype_size(dtype);
    printf("%s: %s, %d ranks, %.1f million parameters in %d units\n", group, dt_dtype_name(dtype), b->fast.comm.nranks,
           (double)t[0].plan.n_param / 1e6, b->n_units);
    for (int s = 0; s < n; s++) {
        const dt_zero_plan *plan = &t[s].plan;
        printf(
            "  %-17s %8.1f ms  %.3f of the first  %3.0f collectives, %.3f P sent, planned %.3f P  %6.1f MB in memory",
            t[s].how->name, 1e3 * median_ratio(t[s].seconds, NULL, b->rounds),
            median_ratio(t[s].seconds, t[0].seconds, b->rounds), t[s].n_collectives, t[s].sent_bytes / P_bytes,
            ((1 + t[s].how->more_micro) * plan->sent_bytes_per_micro_step + plan->sent_bytes_per_step) / P_bytes,
            1e-6 * (double)(dt_memory_total(&plan->memory) - file_nbytes(&t[s])));
        if (t[s].file)
            printf(", %.1f in the file (alone %.1f ms: the step is %.2f of the bound)",
                   1e-6 * (double)file_nbytes(&t[s]), 1e3 * median_ratio(t[s].file_s, NULL, b->rounds),
                   of_bound(&t[0], &t[s], b->rounds));
        printf("\n");
    }
}

static void run_group(bench *b, int group, dt_dtype dtype)
{
    static trained t[MOST];
    int n = 0;
    while (n < MOST && GROUPS[group].of[n].name) open_layout(b, &t[n], &GROUPS[group].of[n], dtype), n++;
    for (int i = -2; i < b->rounds; i++) /* first primitives are made, and it is learned which unit follows which */
        for (int s = 0; s < n; s++) timed_step(b, &t[s], i < 0 ? 0 : i);
    if (b->fast.comm.rank == 0) print(b, t, n, GROUPS[group].name, dtype);
    for (int s = 0; s < n; s++) close_layout(&t[s]);
}

int main(int argc, char **argv)
{
    static bench b;
    const int n_seq = argc > 3 ? atoi(argv[2]) : 4, len = argc > 3 ? atoi(argv[3]) : 128;
    b.rounds = argc > 1 ? atoi(argv[1]) : 9;
    b.folder = argc > 4 ? argv[4] : ".";
    setenv("DTRAIN_LOG", "warn", 0);
    MPI_Init(&argc, &argv);
    if (b.rounds < 1 || b.rounds > MAX_ROUNDS || n_seq < 1 || len < 1 || len > 1024)
        check(dt_fail(DT_ERR_USAGE, "usage: bench_stages [rounds [sequences tokens [folder [group]]]]"));
    open_bench(&b, n_seq, len);
    for (int g = 0; g < N_GROUPS; g++)
        for (int k = 0; k < 2 && strstr(GROUPS[g].name, argc > 5 ? argv[5] : ""); k++)
            run_group(&b, g, k ? DT_BF16 : DT_F32);
    dt_comm_close(&b.reproducible.comm);
    dt_comm_close(&b.fast.comm);
    MPI_Finalize();
    return 0;
}
