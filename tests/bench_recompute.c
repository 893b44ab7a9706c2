/* bench_recompute.c - savings and cost of recomputation: the bytes that a block keeps per token, and the time of
 * forward, head and backward. The same model without recomputation runs in alternating steps.
 *
 *     bench_recompute [rounds [sequences tokens]]
 *
 * Blocks of known models, four of each, with a small vocabulary; one thread, by its processor time. Around the
 * operations that selective recomputation repeats there is a clock, so that each has its own price. */
#include "ref_model.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NORMS, HEADS, ACTIVATIONS, N_KINDS, MAX_ROUNDS = 64 };
static const char *const MODES[] = {"none", "selective", "block"};

enum {
#define DT_OP(op, ...) OP_##op,
#include "dtrain/device/op_list.h"
    N_OPS
};

static struct {
    const dt_device_ops *real;
    double seconds[N_OPS];
} clocked; /* of this step */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define DT_OP(op, ...)                                                                                                 \
    static dt_err clocked_##op DT_OP_PARAMS(__VA_ARGS__)                                                               \
    {                                                                                                                  \
        const double since = now();                                                                                    \
        const dt_err err = clocked.real->op(dev DT_EACH(DT_NAME_, __VA_ARGS__), stream);                               \
        clocked.seconds[OP_##op] += now() - since;                                                                     \
        return err;                                                                                                    \
    }
#include "dtrain/device/op_list.h"

static dt_device_ops with_clocks(const dt_device_ops *real)
{
    dt_device_ops ops = *real;
    clocked.real = real;
#define DT_OP(op, ...) ops.op = clocked_##op;
#include "dtrain/device/op_list.h"
    return ops;
}

static const struct {
    const char *name, *config;
} models[] = {
    {"gpt2-124m", "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"vocab_size\": 512, \"attn_pdrop\": 0, \"embd_pdrop\": "
                  "0, \"resid_pdrop\": 0}"},
    {"llama-3.2-1b", "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192, "
                     "\"num_hidden_layers\": 4, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": "
                     "64, \"vocab_size\": 512, \"max_position_embeddings\": 4096}"},
    {"qwen3-0.6b", "{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"intermediate_size\": 3072, "
                   "\"num_hidden_layers\": 4, \"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": "
                   "128, \"vocab_size\": 512, \"max_position_embeddings\": 4096}"},
};
enum { N_MODELS = sizeof models / sizeof models[0] };

/** What was measured of one way, by rounds. */
struct times {
    double step[MAX_ROUNDS], kind[MAX_ROUNDS][N_KINDS];
};

static dt_err planned(const char *config, const dt_model_options *opt, dt_device *dev, int64_t more, double *nbytes)
{
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_memory plan;
    DT_TRY(dt_model_config_parse(&mc, "bench", config));
    mc.num_hidden_layers += more;
    DT_TRY(dt_model_make_units(&mc, &units, &n_units));
    DT_TRY(dt_model_plan(&mc, opt, units, n_units, dev, &plan));
    *nbytes = (double)plan.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE];
    dt_model_free_units(units, n_units);
    dt_model_config_free(&mc);
    return DT_OK;
}

static dt_err kept_of_token(const char *config, const dt_model_options *opt, dt_device *dev, double *nbytes)
{
    double less, more;
    DT_TRY(planned(config, opt, dev, 0, &less));
    DT_TRY(planned(config, opt, dev, 1, &more));
    *nbytes = (more - less) / opt->max_tok;
    return DT_OK;
}

static dt_err one_step(ref_model *r, const dt_batch *b, struct times *t, int round)
{
    memset(clocked.seconds, 0, sizeof clocked.seconds);
    const double since = now();
    DT_TRY(ref_model_grads(r, b, 0, 1, NULL));
    t->step[round] = now() - since;
    t->kind[round][NORMS] = clocked.seconds[OP_layernorm_forward] + clocked.seconds[OP_rmsnorm_forward];
    t->kind[round][HEADS] = clocked.seconds[OP_heads_forward];
    t->kind[round][ACTIVATIONS] = clocked.seconds[OP_act_forward] + clocked.seconds[OP_glu_forward];
    return DT_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *of, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, of, (size_t)n * sizeof *of);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

static void print_way(int way, const struct times *base, const struct times *t, int rounds, double kept, double of_all)
{
    double ratio[MAX_ROUNDS], share[N_KINDS][MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        ratio[i] = t->step[i] / base->step[i];
        for (int k = 0; k < N_KINDS; k++) share[k][i] = 100 * (t->kind[i][k] - base->kind[i][k]) / base->step[i];
    }
    printf("  %-10s %8.0f bytes a token and block %5.2f   %8.1f ms %6.3f", MODES[way], kept, kept / of_all,
           1e3 * median(t->step, rounds), median(ratio, rounds));
    if (way > 0)
        printf("   norms %.2f %%, heads %.2f %%, activations %.2f %%", median(share[NORMS], rounds),
               median(share[HEADS], rounds), median(share[ACTIVATIONS], rounds));
    printf("\n");
}

static dt_err open_way(ref_model *r, const char *config, const dt_model_options *opt, const dt_device_ops *ops)
{
    DT_TRY(ref_model_open(r, "bench", config, opt));
    dt_model_close(r->model);
    r->dev.ops = ops;
    return dt_model_open(&r->model, &r->mc, opt, r->units, r->n_units, &r->dev, &r->source, NULL, NULL);
}

static dt_err bench_model(const char *name, const char *config, dt_dtype dtype, int rounds, int n_seq, int32_t len)
{
    static struct times times[3];
    dt_model_options opt = ref_options(n_seq * len, len, dtype);
    int32_t *lens = calloc((size_t)n_seq, sizeof *lens);
    ref_model r[3];
    dt_batch b = {0};
    double kept[3];
    DT_CHECK(lens, DT_ERR_MEMORY, "out of memory for %d lengths", n_seq);
    for (int i = 0; i < n_seq; i++) lens[i] = len;
    const dt_device_ops ops = with_clocks(&dt_device_cpu_ops);
    for (int way = 0; way < 3; way++) {
        opt.recompute = (dt_recompute)way;
        DT_TRY(open_way(&r[way], config, &opt, &ops));
        DT_TRY(kept_of_token(config, &opt, &r[way].dev, &kept[way]));
    }
    DT_TRY(dt_batch_alloc(&b, n_seq * len, n_seq, &r[0].ledger));
    ref_batch_fill(&b, r[0].mc.vocab_size, 0, n_seq, lens, 0);
    for (int i = -1; i < rounds; i++) /* the first makes the primitives */
        for (int way = 0; way < 3; way++) DT_TRY(one_step(&r[way], &b, &times[way], i < 0 ? 0 : i));
    printf("%s, %s, %d x %d tokens\n", name, dt_dtype_name(dtype), n_seq, len);
    for (int way = 0; way < 3; way++) print_way(way, &times[0], &times[way], rounds, kept[way], kept[0]);
    dt_batch_free(&b, &r[0].ledger);
    for (int way = 0; way < 3; way++) ref_model_close(&r[way]);
    free(lens);
    return DT_OK;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 7, n_seq = argc > 3 ? atoi(argv[2]) : 2,
              len = argc > 3 ? atoi(argv[3]) : 256;
    dt_err err = rounds > 0 && rounds <= MAX_ROUNDS && n_seq > 0 && len > 0 && len <= 1024
                     ? DT_OK
                     : dt_fail(DT_ERR_USAGE, "usage: bench_recompute [rounds [sequences tokens]]");
    for (int k = 0; k < 2 * N_MODELS && err == DT_OK; k++)
        err = bench_model(models[k / 2].name, models[k / 2].config, k % 2 ? DT_BF16 : DT_F32, rounds, n_seq, len);
    if (err != DT_OK) fprintf(stderr, "bench_recompute: %s\n", dt_error_message());
    return dt_exit_code(err);
}
