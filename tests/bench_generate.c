/* bench_generate.c - tokens/s of decoding with random weights, and which part that is of what memory allows.
 *
 *     bench_generate [threads [new tokens [124m|1b]]]
 *
 * A new token of a single sequence reads every weight once. "of limit" is (bytes of weights read a token) * tokens/s
 * / (bytes/s at which the same threads read those weights, measured between the runs; the best of each counts).
 * Greedy, and drawn with top-k and top-p. A prompt of 64 tokens comes first and is not timed with them. Batch 1 and
 * batch 8 are measured. The tokens of batch 8 share the reading of weights, and its 8 x 64 prompt tokens share a
 * pass. A model that does not fit in memory is skipped. With one thread the clock is that thread's processor time,
 * which other processes disturb less. */
#include "dtrain/generate/generate.h"
#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool processor_time; /* set once in main */

static double now(void)
{
    struct timespec t;
    if (!processor_time) return dt_now_s();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bench {
    dt_ledger ledger;
    dt_device dev;
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_buf *params;
    dt_dtype dtype;
} bench;

static dt_err give_params(void *self, int unit, dt_param_view *view)
{
    const bench *j = self;
    *view = (dt_param_view){.part[DT_TRAINED] = {j->params[unit].ptr, j->dtype}};
    return DT_OK;
}
static dt_err release(void *self, int unit) { return DT_OK; }
static bool resident(void *self) { return true; }

/* Uniform random values with the tensor's deviation: the speed does not depend on the values. */
static void fill_tensor(const dt_tensor *t, uint64_t key, dt_dtype dtype, void *flat)
{
    const double scale = 3.4641016 * (double)t->init_std;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t->n_elems; i++) {
        const double u = (double)(dt_mix64(key + (uint64_t)i) >> 11) * 0x1p-53 - 0.5;
        const float x = t->init_std > 0 ? (float)(u * scale) : t->init_value;
        if (dtype == DT_F32)
            ((float *)flat)[t->offset + i] = x;
        else
            ((uint16_t *)flat)[t->offset + i] = dt_bf16_from_float(x);
    }
}

static dt_err make_weights(bench *j)
{
    j->params = calloc((size_t)j->n_units, sizeof *j->params);
    DT_CHECK(j->params, DT_ERR_MEMORY, "no memory");
    for (int u = 0; u < j->n_units; u++) {
        DT_TRY(dt_buf_alloc(&j->params[u], &j->dev, DT_ON_DEVICE,
                            (size_t)j->units[u].flat_len[DT_TRAINED] * dt_dtype_size(j->dtype), DT_MEM_PARAMS));
        for (int i = 0; i < j->units[u].n_tensors; i++)
            fill_tensor(&j->units[u].tensors[i], (uint64_t)u << 50 | (uint64_t)i << 44, j->dtype, j->params[u].ptr);
    }
    return DT_OK;
}

/* All weights but tables of which a token reads one row: unit 0, unless the head's matrix is in it. */
static double bytes_a_token(const bench *j)
{
    double n = j->mc.tie_word_embeddings ? (double)(j->mc.vocab_size * j->mc.hidden_size) : 0;
    for (int u = 1; u < j->n_units; u++) n += (double)j->units[u].n_param;
    return n * (double)dt_dtype_size(j->dtype);
}

/* Sums of words, so that nothing but reading takes time; each thread one contiguous piece of each unit. */
__attribute__((optimize("O3"))) static uint64_t sum_words(const uint64_t *restrict p, int64_t n)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += p[i];
    return sum;
}

static double read_rate(const bench *j, int n_threads, uint64_t *sink)
{
    double nbytes = 0;
    const double since = now();
    for (int u = 1; u < j->n_units - 1; u++) {
        const int64_t words = (int64_t)(j->params[u].nbytes / 8), piece = words / n_threads;
#pragma omp parallel for num_threads(n_threads) schedule(static)
        for (int t = 0; t < n_threads; t++) {
            const uint64_t sum = sum_words((const uint64_t *)j->params[u].ptr + t * piece, piece);
#pragma omp atomic
            *sink += sum;
        }
        nbytes += 8.0 * (double)piece * n_threads;
    }
    return nbytes / (now() - since);
}

typedef struct run {
    int batch, n_new;
    dt_sampling how;
    const char *name;
} run;

static double first_new; /* clock: prompts are through */
static dt_err note_first(void *ctx, dt_sequence *s)
{
    if (s->n_ids == s->n_prompt + 1) first_new = now();
    return DT_OK;
}

static dt_err time_run(bench *j, dt_model *model, const run *r, double *rate, double *prompts)
{
    enum { PROMPT = 64 };
    dt_sequence seq[8], *seqs[8];
    static int32_t ids[8][4096];
    dt_generate_stats stats;
    for (int i = 0; i < r->batch; i++) {
        for (int k = 0; k < PROMPT; k++)
            ids[i][k] = (int32_t)(dt_mix64((uint64_t)(i * 100 + k)) % (uint64_t)j->mc.vocab_size);
        seq[i] = (dt_sequence){
            .number = (uint64_t)i, .ids = ids[i], .n_prompt = PROMPT, .n_ids = PROMPT, .max_ids = PROMPT + r->n_new};
        seqs[i] = &seq[i];
    }
    const dt_generate_options opt = {.sampling = r->how,
                                     .vocab_size = j->mc.vocab_size,
                                     .n_slots = r->batch,
                                     .max_tok = 8 * PROMPT,
                                     .on_token = note_first,
                                     .ledger = &j->ledger};
    const dt_decoder d = dt_decoder_of_model(model);
    dt_model_cache_clear(model, -1);
    DT_TRY(dt_generate(&d, seqs, r->batch, &opt, &stats));
    *rate = (double)r->batch * (r->n_new - 1) / (now() - first_new);
    *prompts = (double)stats.n_prompt_tok / stats.prompt_seconds;
    return DT_OK;
}

static dt_err bench_runs(bench *j, dt_model *model, int n_threads, int n_new)
{
    enum { ROUNDS = 3 };
    dt_sampling greedy = dt_sampling_default(), drawn = dt_sampling_default();
    greedy.greedy = true;
    drawn.top_k = 50, drawn.top_p = 0.95;
    dt_sampling nucleus = dt_sampling_default();
    nucleus.top_p = 0.9;
    const run runs[] = {{1, n_new, greedy, "greedy"},
                        {1, n_new, drawn, "top-k 50, top-p 0.95"},
                        {1, n_new, nucleus, "top-p 0.9"},
                        {8, n_new, greedy, "greedy"}};
    enum { N = sizeof runs / sizeof runs[0] };
    double best[N] = {0}, best_prompts[N] = {0}, read = 0;
    uint64_t sink = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N; i++) {
            double rate = read_rate(j, n_threads, &sink);
            if (rate > read) read = rate;
            double prompts = 0;
            DT_TRY(time_run(j, model, &runs[i], &rate, &prompts));
            if (rate > best[i]) best[i] = rate;
            if (prompts > best_prompts[i]) best_prompts[i] = prompts;
        }
    printf("  weights %.0f MB a token, read at %.1f GB/s%s\n", bytes_a_token(j) * 1e-6, read * 1e-9,
           sink == 1 ? "." : "");
    for (int i = 0; i < N; i++) {
        printf("  batch %d  %-22s %8.1f tokens/s", runs[i].batch, runs[i].name, best[i]);
        if (runs[i].batch == 1)
            printf("  %.2f of limit\n", best[i] * bytes_a_token(j) / read);
        else
            printf("  prompts %.0f tokens/s\n", best_prompts[i]);
    }
    return DT_OK;
}

static dt_err bench_model(const char *name, const char *json, dt_dtype dtype, int n_threads, int n_new)
{
    bench j = {.dtype = dtype};
    dt_model *model = NULL;
    char text[256];
    DT_TRY(dt_device_open(&j.dev, "cpu", 0, n_threads, &j.ledger));
    DT_TRY(dt_model_config_parse(&j.mc, name, json));
    DT_TRY(dt_model_make_units(&j.mc, &j.units, &j.n_units));
    double need = 0;
    for (int u = 0; u < j.n_units; u++) need += (double)j.units[u].flat_len[DT_TRAINED] * (double)dt_dtype_size(dtype);
    if (1.3 * need > (double)j.dev.ops->memory_free(&j.dev)) {
        printf("%s %s SKIPPED: %.1f GB of weights do not fit the memory\n", name, dt_dtype_name(dtype), need * 1e-9);
        dt_model_free_units(j.units, j.n_units);
        dt_model_config_free(&j.mc);
        dt_device_close(&j.dev);
        return DT_OK;
    }
    DT_TRY(make_weights(&j));
    const dt_model_options opt = {.dtype = dtype,
                                  .grad_dtype = dtype,
                                  .max_tok = 512,
                                  .max_seq = 8,
                                  .max_pos = 64 + n_new,
                                  .cache_seqs = 8,
                                  .cache_len = 64 + n_new,
                                  .graphs = true,
                                  .batch_invariant = true};
    const dt_param_source source = {&j, give_params, release, NULL, NULL, resident};
    DT_TRY(dt_model_open(&model, &j.mc, &opt, j.units, j.n_units, &j.dev, &source, NULL, NULL));
    j.dev.ops->describe(&j.dev, text, sizeof text);
    printf("%s %s (%s)\n", name, dt_dtype_name(dtype), text);
    DT_TRY(bench_runs(&j, model, n_threads, n_new));
    dt_model_close(model);
    for (int u = 0; u < j.n_units; u++) dt_buf_free(&j.params[u]);
    free(j.params);
    dt_model_free_units(j.units, j.n_units);
    dt_model_config_free(&j.mc);
    dt_device_close(&j.dev);
    return DT_OK;
}

int main(int argc, char **argv)
{
    static const char *const models[][3] = {
        {"124m", "GPT-2 124M", "{\"model_type\": \"gpt2\"}"},
        {"1b", "Llama 3.2 1B's shape",
         "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16, "
         "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256, "
         "\"max_position_embeddings\": 4096, \"rope_theta\": 500000, \"tie_word_embeddings\": true}"}};
    const int n_threads = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : omp_get_num_procs(),
              n_new = argc > 2 ? atoi(argv[2]) : 32;
    dt_err err = DT_OK;
    processor_time = n_threads == 1;
    for (int i = 0; i < 2 && err == DT_OK; i++) {
        if (argc > 3 && strcmp(argv[3], models[i][0]) != 0) continue;
        err = bench_model(models[i][1], models[i][2], DT_F32, n_threads, n_new);
        if (err == DT_OK) err = bench_model(models[i][1], models[i][2], DT_BF16, n_threads, n_new);
    }
    if (err != DT_OK) fprintf(stderr, "bench_generate: %s\n", dt_error_message());
    return dt_exit_code(err);
}
