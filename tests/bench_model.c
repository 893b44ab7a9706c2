/* bench_model.c - where the time of a training step goes: forward, head, backward and AdamW by one rank, on plain
 * buffers. On the CPU GPT-2 124M at 4 x 64 and 1 x 1024 tokens, fp32 and bf16; on another device bf16.
 *
 *     bench_model [threads [steps [fp32|bf16 [device [model [sequences tokens]]]]]]
 *
 * With one thread the clock is that of the thread's processor time, which other processes disturb less. The device's
 * operations pass through a table of the same functions with a clock around each, so the list adds up to the step; a
 * device with its own memory runs asynchronously and records events instead. Weights repeat after some million: only
 * the time counts. */
#include "forms.h"
#include "ref_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROWS = 96, MAX_MARKS = 8192 };

/** The time of a call, on a device that keeps its own. */
struct mark {
    dt_event *from, *to;
    int row;
};

struct row {
    char name[56];
    double seconds, flops;
    int n_calls;
};

struct bench {
    dt_device dev; /* first: what the wrappers are handed */
    const dt_device_ops *real;
    struct row rows[MAX_ROWS];
    int n_rows;
    struct mark marks[MAX_MARKS]; /* of this step; their events are made once */
    int n_marks, n_lost;
    bool on, marking;
};

static bool processor_time; /* set once in main */

static double now(void)
{
    struct timespec t;
    if (!processor_time) return dt_now_s();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int row_of(struct bench *b, const char *name)
{
    int i = 0;
    while (i < b->n_rows && strcmp(b->rows[i].name, name) != 0) i++;
    if (i == MAX_ROWS) return MAX_ROWS - 1;
    if (i == b->n_rows) snprintf(b->rows[b->n_rows++].name, sizeof b->rows[0].name, "%s", name);
    return i;
}

static bool mark(struct bench *b, dt_event **event, dt_stream *stream)
{
    if (!*event && b->real->event_create(&b->dev, event) != DT_OK) return false;
    return b->real->event_record(&b->dev, *event, stream) == DT_OK;
}

static double begin(dt_device *dev, dt_stream *stream)
{
    struct bench *b = (struct bench *)dev;
    if (dev->ops->own_memory && b->on)
        b->marking = b->n_marks < MAX_MARKS && mark(b, &b->marks[b->n_marks].from, stream);
    return now();
}

static void end(dt_device *dev, dt_stream *stream, const char *name, double since, double flops)
{
    struct bench *b = (struct bench *)dev;
    if (!b->on) return;
    const int i = row_of(b, name);
    b->rows[i].flops += flops;
    b->rows[i].n_calls++;
    if (!dev->ops->own_memory)
        b->rows[i].seconds += now() - since;
    else if (b->marking && mark(b, &b->marks[b->n_marks].to, stream))
        b->marks[b->n_marks++].row = i;
    else
        b->n_lost++;
}

/* The device has done all of the step: its times go to the rows. */
static dt_err collect_marks(struct bench *b)
{
    for (int i = 0; i < b->n_marks; i++) {
        float ms;
        DT_TRY(b->real->event_elapsed_ms(&b->dev, b->marks[i].from, b->marks[i].to, &ms));
        b->rows[b->marks[i].row].seconds += 1e-3 * (double)ms;
    }
    b->n_marks = 0;
    return DT_OK;
}

static void drop_marks(struct bench *b)
{
    for (int i = 0; i < MAX_MARKS; i++) {
        if (b->marks[i].from) b->real->event_destroy(&b->dev, b->marks[i].from);
        if (b->marks[i].to) b->real->event_destroy(&b->dev, b->marks[i].to);
    }
}

#define DT_OP(op, ...)                                                                                                 \
    static dt_err timed_##op DT_OP_PARAMS(__VA_ARGS__)                                                                 \
    {                                                                                                                  \
        const double since = begin(dev, stream);                                                                       \
        const dt_err err = ((struct bench *)dev)->real->op(dev DT_EACH(DT_NAME_, __VA_ARGS__), stream);                \
        end(dev, stream, #op, since, 0);                                                                               \
        return err;                                                                                                    \
    }
#include "dtrain/device/op_list.h"

static dt_err timed_copy(dt_device *dev, void *dst, const void *src, size_t nbytes, dt_stream *stream)
{
    const double since = begin(dev, stream);
    const dt_err err = ((struct bench *)dev)->real->copy(dev, dst, src, nbytes, stream);
    end(dev, stream, "copy", since, 0);
    return err;
}

static dt_err timed_matmul_by_size(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c,
                                   dt_stream *s)
{
    char name[56];
    const double since = begin(dev, s);
    const dt_err err = ((struct bench *)dev)->real->matmul(dev, mm, a, b, c, s);
    snprintf(name, sizeof name, "matmul %5d %5d %5d %s%s%s%s%s", (int)mm->m, (int)mm->n, (int)mm->k,
             mm->trans_a ? "Ta " : "", mm->trans_b ? "Tb " : "", mm->accumulate ? "+= " : "",
             mm->epilogue == DT_EPILOGUE_NONE  ? ""
             : mm->epilogue == DT_EPILOGUE_ACT ? "act "
                                               : "act' ",
             mm->sums_of ? "sums" : "");
    end(dev, s, name, since, 2.0 * (double)mm->m * (double)mm->n * (double)mm->k);
    return err;
}

static dt_device_ops timed_table(const dt_device_ops *real)
{
    dt_device_ops t = *real;
#define DT_OP(op, ...) t.op = timed_##op;
#include "dtrain/device/op_list.h"
    t.copy = timed_copy;
    t.matmul = timed_matmul_by_size;
    return t;
}

/** A model with the optimizer's states, each unit flat. */
struct job {
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_buf *params, *grads, *master, *m, *v;
    bool *fresh;
    dt_dtype dtype, grad_dtype;
};

static dt_err give_params(void *self, int unit, dt_param_view *view)
{
    struct job *j = self;
    *view = (dt_param_view){.part[DT_TRAINED] = {j->params[unit].ptr, j->dtype}};
    return DT_OK;
}

static dt_err give_grads(void *self, int unit, dt_grad_view *view)
{
    struct job *j = self;
    *view = (dt_grad_view){j->grads[unit].ptr, j->grad_dtype, !j->fresh[unit]};
    return DT_OK;
}

static dt_err release(void *self, int unit) { return DT_OK; }

static dt_err alloc_job(struct job *j, dt_device *dev)
{
    const size_t n = (size_t)j->n_units;
    dt_buf **const all[] = {&j->params, &j->grads, &j->master, &j->m, &j->v};
    for (int k = 0; k < 5; k++) {
        *all[k] = calloc(n, sizeof **all[k]);
        DT_CHECK(*all[k], DT_ERR_MEMORY, "no memory");
        for (size_t u = 0; u < n; u++) {
            const size_t elem = dt_dtype_size(k == 0 ? j->dtype : k == 1 ? j->grad_dtype : DT_F32);
            const dt_memcat cat = k == 0 ? DT_MEM_PARAMS : k == 1 ? DT_MEM_GRADS : DT_MEM_OPTIMIZER;
            DT_TRY(
                dt_buf_alloc(&(*all[k])[u], dev, DT_ON_DEVICE, (size_t)j->units[u].flat_len[DT_TRAINED] * elem, cat));
        }
    }
    j->fresh = calloc(n, sizeof *j->fresh);
    return DT_OK;
}

static void fill_tensor(const dt_tensor *t, uint64_t key, float *w)
{
    enum { PERIOD = 1 << 22 };
    const int64_t n = t->n_elems < PERIOD ? t->n_elems : PERIOD;
    for (int64_t e = 0; e < n; e++) w[e] = t->init_value;
    if (t->init_std > 0) dt_rng_normal(1, key, 0, n, t->init_std, w);
    for (int64_t at = n; at < t->n_elems; at += n)
        memcpy(w + at, w, (size_t)(t->n_elems - at < n ? t->n_elems - at : n) * sizeof *w);
}

static dt_err fill_unit(struct job *j, dt_device *dev, int u, float *w)
{
    const int64_t n = j->units[u].flat_len[DT_TRAINED];
    for (int i = 0; i < j->units[u].n_tensors; i++)
        fill_tensor(&j->units[u].tensors[i], (uint64_t)(u * 64 + i), w + j->units[u].tensors[i].offset);
    DT_TRY(dev->ops->copy(dev, j->master[u].ptr, w, (size_t)n * sizeof *w, NULL));
    DT_TRY(dev->ops->convert(dev, j->master[u].ptr, DT_F32, j->params[u].ptr, j->dtype, n, NULL));
    DT_TRY(dev->ops->zero(dev, j->m[u].ptr, j->m[u].nbytes, NULL));
    DT_TRY(dev->ops->zero(dev, j->v[u].ptr, j->v[u].nbytes, NULL));
    return dev->ops->stream_sync(dev, NULL);
}

static dt_err fill_job(struct job *j, dt_device *dev)
{
    dt_err err = DT_OK;
    for (int u = 0; u < j->n_units && err == DT_OK; u++) {
        float *w = calloc((size_t)j->units[u].flat_len[DT_TRAINED] + 1, sizeof *w);
        err = w ? fill_unit(j, dev, u, w) : dt_fail(DT_ERR_MEMORY, "out of memory for the weights of a unit");
        free(w);
    }
    return err;
}

static dt_err update(struct job *j, dt_device *dev, int64_t step)
{
    const dt_adamw opt =
        usual_adamw(1e-4f, (float)(1 - pow((double)0.9f, (double)step)), (float)(1 - pow((double)0.95f, (double)step)));
    for (int u = 0; u < j->n_units; u++) /* in fp32 the parameters are the master weights: nothing to write besides */
        DT_TRY(dev->ops->adamw_step(dev, &opt, j->grads[u].ptr, j->grad_dtype,
                                    j->dtype == DT_F32 ? j->params[u].ptr : j->master[u].ptr, j->m[u].ptr, j->v[u].ptr,
                                    j->dtype == DT_F32 ? NULL : j->params[u].ptr, j->dtype,
                                    j->units[u].flat_len[DT_TRAINED], NULL));
    return DT_OK;
}

struct times {
    double forward, head, backward, update, loss;
};

/* The host's clock after all queued work. The host blocks meanwhile, and the device is idle afterwards. */
static double done_at(dt_device *dev)
{
    if (dev->ops->stream_sync(dev, NULL) != DT_OK) fprintf(stderr, "%s\n", dt_error_message());
    return now();
}

static dt_err one_step(struct job *j, dt_model *model, dt_device *dev, const dt_batch *b, int64_t step, const float *u,
                       float *logp, struct times *t)
{
    double at[5] = {now()};
    for (int i = 0; i < j->n_units; i++) j->fresh[i] = true;
    DT_TRY(dt_model_forward(model, b, true, step));
    at[1] = done_at(dev);
    DT_TRY(dt_model_head(model, b, &(dt_head_pass){.inv_temperature = 1, .u = u}, NULL));
    at[2] = done_at(dev);
    DT_TRY(dt_model_backward(model, b));
    DT_TRY(dt_model_results(model, &(dt_head_results){.logp = logp}));
    at[3] = done_at(dev);
    DT_TRY(update(j, dev, step));
    at[4] = done_at(dev);
    t->forward += at[1] - at[0];
    t->head += at[2] - at[1];
    t->backward += at[3] - at[2];
    t->update += at[4] - at[3];
    t->loss = 0;
    for (int32_t i = 0; i < b->n_tok; i++) t->loss -= (double)logp[i] / b->n_tok;
    return DT_OK;
}

static int by_time(const void *a, const void *b)
{
    const double x = ((const struct row *)a)->seconds, y = ((const struct row *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* FLOP/s of a large matmul, the best of a few: for the limit of a step. */
static dt_err best_rate(struct bench *bench, dt_dtype dt, double *rate)
{
    enum { N = 1024, TURNS = 6 };
    const dt_matmul mm = dt_dense_matmul(N, N, N, false, true, dt, dt);
    dt_buf x[3] = {0};
    dt_err err = DT_OK;
    for (int i = 0; i < 3 && err == DT_OK; i++)
        err = dt_buf_alloc(&x[i], &bench->dev, DT_ON_DEVICE, N * N * dt_dtype_size(dt), DT_MEM_OTHER);
    for (int i = 0; i < TURNS && err == DT_OK; i++) {
        const double since = now();
        for (int k = 0; k < 2 && err == DT_OK; k++)
            err = bench->real->matmul(&bench->dev, &mm, x[0].ptr, x[1].ptr, x[2].ptr, NULL);
        const double flops = 4.0 * N * N * N / (done_at(&bench->dev) - since);
        if (i > 0 && flops > *rate) *rate = flops;
    }
    for (int i = 0; i < 3; i++) dt_buf_free(&x[i]);
    return err;
}

static void print(struct bench *bench, const struct job *j, int n_seq, int32_t len, int steps, const struct times *t,
                  double best, double total, double rate)
{
    const double flops = dt_model_train_flops(&j->mc, j->units, j->n_units, n_seq * len, (double)n_seq * len * len);
    double listed = 0, matmuls = 0, matmul_flops = 0;
    printf("\n%s %d x %d: best step %.1f ms = %.0f tokens/s, %.0f GFLOP/s; mean %.1f ms: forward %.1f, head %.1f, "
           "backward %.1f, AdamW %.1f; loss %.4f\n",
           dt_dtype_name(j->dtype), n_seq, len, 1e3 * best, n_seq * len / best, flops / best * 1e-9,
           1e3 * total / steps, 1e3 * t->forward / steps, 1e3 * t->head / steps, 1e3 * t->backward / steps,
           1e3 * t->update / steps, t->loss);
    qsort(bench->rows, (size_t)bench->n_rows, sizeof bench->rows[0], by_time);
    for (int i = 0; i < bench->n_rows; i++) {
        const struct row *r = &bench->rows[i];
        listed += r->seconds;
        if (r->flops > 0) matmuls += r->seconds;
        matmul_flops += r->flops;
        printf("  %-34s %4d calls %8.2f ms %5.1f %%", r->name, r->n_calls / steps, 1e3 * r->seconds / steps,
               100 * r->seconds / total);
        printf(r->flops > 0 ? "  %4.0f GFLOP/s\n" : "\n", r->flops / r->seconds * 1e-9);
    }
    if (bench->n_lost > 0) printf("  %d calls without a time\n", bench->n_lost);
    printf("  matmuls %.1f ms at %.0f GFLOP/s; outside of operations %.2f ms\n", 1e3 * matmuls / steps,
           matmul_flops / matmuls * 1e-9, 1e3 * (total - listed) / steps);
    const double limit = flops / rate;
    printf(
        "  limit %.1f ms at %.0f GFLOP/s, the rate of a matmul of 1024: of the step without AdamW %.2f, of all %.2f\n",
        1e3 * limit, rate * 1e-9, limit * steps / (t->forward + t->head + t->backward), limit * steps / total);
}

static dt_err run_steps(struct bench *bench, struct job *j, dt_model *model, const dt_batch *b, int32_t len, int steps)
{
    float *u = calloc((size_t)b->n_tok, sizeof *u), *logp = calloc((size_t)b->n_tok, sizeof *logp);
    struct times t = {0};
    double best = 1e30, total = 0, rate = 0;
    dt_err err = u && logp ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a batch's results");
    for (int i = 0; err == DT_OK && i < b->n_tok; i++) u[i] = 1.0f / (float)b->n_tok;
    bench->n_rows = bench->n_lost = 0;
    memset(bench->rows, 0, sizeof bench->rows);
    if (err == DT_OK) err = best_rate(bench, j->dtype, &rate);
    for (int step = -1; step < steps && err == DT_OK; step++) {
        bench->on = step >= 0; /* the first makes the primitives */
        if (step == 0) t = (struct times){0};
        const double since = now();
        err = one_step(j, model, &bench->dev, b, step + 2, u, logp, &t);
        const double took = now() - since;
        if (err == DT_OK) err = collect_marks(bench);
        if (step >= 0 && took < best) best = took;
        if (step >= 0) total += took;
    }
    bench->on = false;
    if (err == DT_OK) err = best_rate(bench, j->dtype, &rate);
    if (err == DT_OK) print(bench, j, b->n_seq, len, steps, &t, best, total, rate);
    free(u), free(logp);
    return err;
}

static dt_err bench_shape(struct bench *bench, struct job *j, int n_seq, int32_t len, int steps)
{
    const dt_model_options opt = {.dtype = j->dtype,
                                  .grad_dtype = j->grad_dtype,
                                  .max_tok = n_seq * len,
                                  .max_seq = n_seq,
                                  .max_pos = len,
                                  .training = true};
    const dt_param_source source = {j, give_params, release, give_grads, release, NULL};
    int32_t *lens = calloc((size_t)n_seq, sizeof *lens);
    dt_model *model;
    dt_batch b = {0};
    DT_CHECK(lens, DT_ERR_MEMORY, "out of memory for %d lengths", n_seq);
    for (int i = 0; i < n_seq; i++) lens[i] = len;
    DT_TRY(dt_model_open(&model, &j->mc, &opt, j->units, j->n_units, &bench->dev, &source, NULL, NULL));
    DT_TRY(dt_batch_alloc(&b, n_seq * len, n_seq, bench->dev.ledger));
    ref_batch_fill(&b, j->mc.vocab_size, 0, n_seq, lens, 0);
    const dt_err err = run_steps(bench, j, model, &b, len, steps);
    dt_batch_free(&b, bench->dev.ledger);
    dt_model_close(model);
    free(lens);
    return err;
}

static void free_job(struct job *j)
{
    dt_buf *const all[] = {j->params, j->grads, j->master, j->m, j->v};
    for (int k = 0; k < 5; k++) {
        for (int u = 0; all[k] && u < j->n_units; u++) dt_buf_free(&all[k][u]);
        free(all[k]);
    }
    free(j->fresh);
    dt_model_free_units(j->units, j->n_units);
    dt_model_config_free(&j->mc);
}

/* Unset fields are those of GPT-2 of the same width. */
static const struct {
    const char *name, *config;
} models[] = {
    {"gpt2-124m", "{\"model_type\": \"gpt2\", \"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}"},
    {"gpt2-350m", "{\"model_type\": \"gpt2\", \"n_embd\": 1024, \"n_layer\": 24, \"n_head\": 16, "
                  "\"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}"},
    {"gpt2-1.5b", "{\"model_type\": \"gpt2\", \"n_embd\": 1600, \"n_layer\": 48, \"n_head\": 25, "
                  "\"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}"},
    {"llama-1b",
     "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": "
     "16, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 64, \"vocab_size\": 128256, "
     "\"max_position_embeddings\": 131072, \"rope_theta\": 500000, \"tie_word_embeddings\": true}"},
    {"mixture",
     "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 512, \"intermediate_size\": 1024, \"num_hidden_layers\": 4, "
     "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 64, \"vocab_size\": 8192, "
     "\"max_position_embeddings\": 4096, \"num_experts\": 16, \"num_experts_per_tok\": 4, "
     "\"moe_intermediate_size\": 512, \"norm_topk_prob\": true}"},
    {"qwen2.5-0.5b",
     "{\"model_type\": \"qwen2\", \"hidden_size\": 896, \"intermediate_size\": 4864, \"num_hidden_layers\": "
     "24, \"num_attention_heads\": 14, \"num_key_value_heads\": 2, \"vocab_size\": 151936, "
     "\"max_position_embeddings\": 32768, \"rope_theta\": 1000000, \"tie_word_embeddings\": true}"},
    {"qwen2.5-1.5b",
     "{\"model_type\": \"qwen2\", \"hidden_size\": 1536, \"intermediate_size\": 8960, \"num_hidden_layers\": "
     "28, \"num_attention_heads\": 12, \"num_key_value_heads\": 2, \"vocab_size\": 151936, "
     "\"max_position_embeddings\": 131072, \"rope_theta\": 1000000, \"tie_word_embeddings\": true}"}};

static const char *config_of(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (!strcmp(models[i].name, name)) return models[i].config;
    return NULL;
}

/* The requested shapes; sequences 0: the two shapes of the CPU. */
struct request {
    int threads, steps, n_seq, len;
    const char *device, *model;
};

static dt_err bench_job(struct bench *bench, struct job *j, const struct request *r)
{
    char text[256], total[24];
    DT_TRY(alloc_job(j, &bench->dev));
    DT_TRY(fill_job(j, &bench->dev));
    bench->dev.ops->describe(&bench->dev, text, sizeof text);
    printf("%s; %s, states %s\n", text, r->model,
           dt_format_bytes((double)atomic_load(&bench->dev.ledger->total_now), total));
    if (r->n_seq > 0) return bench_shape(bench, j, r->n_seq, r->len, r->steps);
    DT_TRY(bench_shape(bench, j, 4, 64, r->steps));
    return bench_shape(bench, j, 1, 1024, r->steps);
}

static dt_err bench_dtype(dt_dtype dtype, const struct request *r)
{
    dt_ledger ledger = {0};
    dt_device dev;
    struct job j = {.dtype = dtype, .grad_dtype = DT_F32};
    struct bench *bench = calloc(1, sizeof *bench);
    DT_CHECK(bench, DT_ERR_MEMORY, "no memory");
    DT_CHECK(config_of(r->model), DT_ERR_ARG, "no model %s here", r->model);
    DT_TRY(dt_device_open(&dev, r->device, 0, r->threads, &ledger));
    const dt_device_ops ops = timed_table(dev.ops);
    bench->dev = dev;
    bench->real = dev.ops;
    bench->dev.ops = &ops;
    if (dev.ops->own_memory) j.grad_dtype = dtype; /* as dtrain has them where a step is one micro-batch */
    dt_err err = dt_model_config_parse(&j.mc, r->model, config_of(r->model));
    if (err == DT_OK) err = dt_model_make_units(&j.mc, &j.units, &j.n_units);
    if (err == DT_OK) err = bench_job(bench, &j, r);
    drop_marks(bench);
    free_job(&j);
    dt_device_close(&dev);
    free(bench);
    return err;
}

int main(int argc, char **argv)
{
    const char *only = argc > 3 ? argv[3] : "";
    const struct request r = {.threads = argc > 1 ? atoi(argv[1]) : 0,
                              .steps = argc > 2 && atoi(argv[2]) > 0 ? atoi(argv[2]) : 4,
                              .device = argc > 4 ? argv[4] : "cpu",
                              .model = argc > 5 ? argv[5] : "gpt2-124m",
                              .n_seq = argc > 7 ? atoi(argv[6]) : 0,
                              .len = argc > 7 ? atoi(argv[7]) : 0};
    dt_err err = DT_OK;
    processor_time = r.threads == 1;
    if (strcmp(only, "bf16") != 0) err = bench_dtype(DT_F32, &r);
    if (err == DT_OK && strcmp(only, "fp32") != 0) err = bench_dtype(DT_BF16, &r);
    if (err != DT_OK) fprintf(stderr, "bench_model: %s\n", dt_error_message());
    return dt_exit_code(err);
}
