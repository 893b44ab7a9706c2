/* bench_model.c - where the time of a GPT-2 124M training step goes: forward, head, backward and AdamW by one rank on
 * the CPU device, on plain buffers, fp32 and bf16, at 4 x 64 and 1 x 1024 tokens.
 *
 *     bench_model [threads [steps [fp32|bf16]]]
 *
 * With one thread the clock is that of the thread's processor time, which other people's work on the machine disturbs
 * less. The device's operations pass through a table of the same functions with a clock around each, so the list adds
 * up to the step. */
#include "ref_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROWS = 64 };

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
    bool on;
};

static bool processor_time; /* set once in main */

static double now(void)
{
    struct timespec t;
    if (!processor_time) return dt_now_s();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void account(dt_device *dev, const char *name, double since, double flops)
{
    struct bench *b = (struct bench *)dev;
    int i = 0;
    while (i < b->n_rows && strcmp(b->rows[i].name, name) != 0) i++;
    if (!b->on || i == MAX_ROWS) return;
    if (i == b->n_rows) snprintf(b->rows[b->n_rows++].name, sizeof b->rows[0].name, "%s", name);
    b->rows[i].seconds += now() - since;
    b->rows[i].flops += flops;
    b->rows[i].n_calls++;
}

#define TIMED(op, params, args)                                                                                        \
    static dt_err timed_##op params                                                                                    \
    {                                                                                                                  \
        const double since = now();                                                                                    \
        const dt_err err = ((struct bench *)dev)->real->op args;                                                       \
        account(dev, #op, since, 0);                                                                                   \
        return err;                                                                                                    \
    }

TIMED(copy, (dt_device * dev, void *dst, const void *src, size_t n, dt_stream *s), (dev, dst, src, n, s))
TIMED(zero, (dt_device * dev, void *dst, size_t n, dt_stream *s), (dev, dst, n, s))
TIMED(gather_rows,
      (dt_device * dev, const void *a, const int32_t *i, void *b, int64_t n, int64_t w, dt_dtype t, dt_stream *s),
      (dev, a, i, b, n, w, t, s))
TIMED(scatter_rows,
      (dt_device * dev, const void *a, const int32_t *i, void *b, int64_t n, int64_t w, dt_dtype t, dt_stream *s),
      (dev, a, i, b, n, w, t, s))
TIMED(bias_backward,
      (dt_device * dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype t, void *db, dt_dtype gt, bool acc,
       dt_stream *s),
      (dev, dy, m, n, ld, t, db, gt, acc, s))
TIMED(embedding_forward,
      (dt_device * dev, const int32_t *k, const int32_t *p, const void *a, const void *b, void *o, int64_t n, int64_t w,
       dt_dtype t, dt_stream *s),
      (dev, k, p, a, b, o, n, w, t, s))
TIMED(embedding_backward,
      (dt_device * dev, const void *d, const int32_t *id, const int32_t *o, void *g, int64_t n, int64_t w, dt_dtype t,
       dt_dtype gt, dt_stream *s),
      (dev, d, id, o, g, n, w, t, gt, s))
TIMED(layernorm_forward,
      (dt_device * dev, const void *x, const void *w, const void *b, void *y, float *m, float *r, int64_t n, int64_t c,
       float e, dt_dtype t, dt_stream *s),
      (dev, x, w, b, y, m, r, n, c, e, t, s))
TIMED(layernorm_backward,
      (dt_device * dev, const void *x, const void *w, const float *m, const float *r, const void *dy, void *dx,
       bool add, void *dw, void *db, dt_dtype gt, bool acc, int64_t n, int64_t c, float *k, dt_dtype t, dt_stream *s),
      (dev, x, w, m, r, dy, dx, add, dw, db, gt, acc, n, c, k, t, s))
TIMED(attention_forward,
      (dt_device * dev, const dt_attention *at, const void *q, const void *k, const void *v, void *o, float *l,
       dt_stream *s),
      (dev, at, q, k, v, o, l, s))
TIMED(attention_backward,
      (dt_device * dev, const dt_attention *at, const void *q, const void *k, const void *v, const void *o,
       const float *l, const void *d, void *dq, void *dk, void *dv, float *c, dt_stream *s),
      (dev, at, q, k, v, o, l, d, dq, dk, dv, c, s))
TIMED(act_forward, (dt_device * dev, dt_activation a, const void *x, void *y, dt_dtype t, int64_t n, dt_stream *s),
      (dev, a, x, y, t, n, s))
TIMED(act_backward,
      (dt_device * dev, dt_activation a, const void *x, const void *dy, void *dx, dt_dtype t, int64_t n, dt_stream *s),
      (dev, a, x, dy, dx, t, n, s))
TIMED(classifier, (dt_device * dev, const dt_classifier *c, float *l, dt_stream *s), (dev, c, l, s))
TIMED(adamw_step,
      (dt_device * dev, const dt_adamw *o, const void *g, dt_dtype gt, float *a, float *m, float *v, void *p,
       dt_dtype t, int64_t n, dt_stream *s),
      (dev, o, g, gt, a, m, v, p, t, n, s))

static dt_err timed_matmul(dt_device *dev, const dt_matmul *mm, const void *a, const void *b, void *c, dt_stream *s)
{
    char name[56];
    const double since = now();
    const dt_err err = ((struct bench *)dev)->real->matmul(dev, mm, a, b, c, s);
    snprintf(name, sizeof name, "matmul %5d %5d %5d %s%s%s", (int)mm->m, (int)mm->n, (int)mm->k,
             mm->trans_a ? "Ta " : "", mm->trans_b ? "Tb " : "", mm->accumulate ? "+=" : "");
    account(dev, name, since, 2.0 * (double)mm->m * (double)mm->n * (double)mm->k);
    return err;
}

static dt_device_ops timed_table(const dt_device_ops *real)
{
    dt_device_ops t = *real;
    t.copy = timed_copy;
    t.zero = timed_zero;
    t.gather_rows = timed_gather_rows;
    t.scatter_rows = timed_scatter_rows;
    t.matmul = timed_matmul;
    t.bias_backward = timed_bias_backward;
    t.embedding_forward = timed_embedding_forward;
    t.embedding_backward = timed_embedding_backward;
    t.layernorm_forward = timed_layernorm_forward;
    t.layernorm_backward = timed_layernorm_backward;
    t.attention_forward = timed_attention_forward;
    t.attention_backward = timed_attention_backward;
    t.act_forward = timed_act_forward;
    t.act_backward = timed_act_backward;
    t.classifier = timed_classifier;
    t.adamw_step = timed_adamw_step;
    return t;
}

/** A model with the optimizer's states, each unit flat. */
struct job {
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_buf *params, *grads, *master, *m, *v;
    bool *fresh;
    dt_dtype dtype;
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
    *view = (dt_grad_view){j->grads[unit].ptr, DT_F32, !j->fresh[unit]};
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
            const size_t elem = k == 0 ? dt_dtype_size(j->dtype) : sizeof(float);
            const dt_memcat cat = k == 0 ? DT_MEM_PARAMS : k == 1 ? DT_MEM_GRADS : DT_MEM_OPTIMIZER;
            DT_TRY(
                dt_buf_alloc(&(*all[k])[u], dev, DT_ON_DEVICE, (size_t)j->units[u].flat_len[DT_TRAINED] * elem, cat));
        }
    }
    j->fresh = calloc(n, sizeof *j->fresh);
    return DT_OK;
}

static dt_err fill_job(struct job *j, dt_device *dev)
{
    for (int u = 0; u < j->n_units; u++) {
        float *w = j->master[u].ptr;
        for (int i = 0; i < j->units[u].n_tensors; i++) {
            const dt_tensor *t = &j->units[u].tensors[i];
            for (int64_t e = 0; e < t->n_elems; e++) w[t->offset + e] = t->init_value;
            if (t->init_std > 0) dt_rng_normal(1, (uint64_t)(u * 64 + i), 0, t->n_elems, t->init_std, w + t->offset);
        }
        DT_TRY(dev->ops->convert(dev, w, DT_F32, j->params[u].ptr, j->dtype, j->units[u].flat_len[DT_TRAINED], NULL));
    }
    return DT_OK;
}

static dt_err update(struct job *j, dt_device *dev, int64_t step)
{
    const dt_adamw opt = {.lr = 1e-4f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .fix1 = (float)(1 - pow(0.9, (double)step)),
                          .fix2 = (float)(1 - pow(0.95, (double)step)),
                          .grad_scale = 1};
    for (int u = 0; u < j->n_units; u++) /* in fp32 the parameters are the master weights: nothing to write besides */
        DT_TRY(dev->ops->adamw_step(dev, &opt, j->grads[u].ptr, DT_F32,
                                    j->dtype == DT_F32 ? j->params[u].ptr : j->master[u].ptr, j->m[u].ptr, j->v[u].ptr,
                                    j->dtype == DT_F32 ? NULL : j->params[u].ptr, j->dtype,
                                    j->units[u].flat_len[DT_TRAINED], NULL));
    return DT_OK;
}

struct times {
    double forward, head, backward, update, loss;
};

static dt_err one_step(struct job *j, dt_model *model, dt_device *dev, const dt_batch *b, int64_t step, const float *u,
                       float *logp, struct times *t)
{
    double at[5] = {now()};
    for (int i = 0; i < j->n_units; i++) j->fresh[i] = true;
    DT_TRY(dt_model_forward(model, b, true, step));
    at[1] = now();
    DT_TRY(dt_model_head(model, b, u, 1, false));
    at[2] = now();
    DT_TRY(dt_model_backward(model, b));
    DT_TRY(dt_model_results(model, logp, NULL, NULL));
    at[3] = now();
    DT_TRY(update(j, dev, step));
    at[4] = now();
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

static void print(struct bench *bench, const struct job *j, int n_seq, int32_t len, int steps, const struct times *t,
                  double best, double total)
{
    const double flops = dt_model_train_flops(&j->mc, n_seq * len, (double)n_seq * len * len);
    double listed = 0, products = 0, product_flops = 0;
    printf("\n%s %d x %d: best step %.1f ms = %.0f tokens/s, %.0f GFLOP/s; mean %.1f ms: forward %.1f, head %.1f, "
           "backward %.1f, "
           "AdamW %.1f; loss %.4f\n",
           dt_dtype_name(j->dtype), n_seq, len, 1e3 * best, n_seq * len / best, flops / best * 1e-9,
           1e3 * total / steps, 1e3 * t->forward / steps, 1e3 * t->head / steps, 1e3 * t->backward / steps,
           1e3 * t->update / steps, t->loss);
    qsort(bench->rows, (size_t)bench->n_rows, sizeof bench->rows[0], by_time);
    for (int i = 0; i < bench->n_rows; i++) {
        const struct row *r = &bench->rows[i];
        listed += r->seconds;
        if (r->flops > 0) products += r->seconds;
        product_flops += r->flops;
        printf("  %-34s %4d calls %8.2f ms %5.1f %%", r->name, r->n_calls / steps, 1e3 * r->seconds / steps,
               100 * r->seconds / total);
        printf(r->flops > 0 ? "  %4.0f GFLOP/s\n" : "\n", r->flops / r->seconds * 1e-9);
    }
    printf("  products %.1f ms at %.0f GFLOP/s; outside of operations %.2f ms\n", 1e3 * products / steps,
           product_flops / products * 1e-9, 1e3 * (total - listed) / steps);
}

static dt_err bench_shape(struct bench *bench, struct job *j, int n_seq, int32_t len, int steps)
{
    static float u[1024], logp[1024];
    const dt_model_options opt = {.dtype = j->dtype,
                                  .grad_dtype = DT_F32,
                                  .max_tok = n_seq * len,
                                  .max_seq = n_seq,
                                  .max_pos = len,
                                  .training = true};
    const dt_param_source source = {j, give_params, release, give_grads, release};
    int32_t lens[4] = {len, len, len, len};
    struct times t = {0};
    dt_model *model;
    dt_batch b = {0};
    double best = 1e30, total = 0;
    DT_TRY(dt_model_open(&model, &j->mc, &opt, j->units, j->n_units, &bench->dev, &source, NULL, NULL));
    DT_TRY(dt_batch_alloc(&b, n_seq * len, n_seq, bench->dev.ledger));
    ref_batch_fill(&b, j->mc.vocab_size, 0, n_seq, lens, 0);
    for (int i = 0; i < n_seq * len; i++) u[i] = 1.0f / (float)(n_seq * len);
    bench->on = false;
    bench->n_rows = 0;
    memset(bench->rows, 0, sizeof bench->rows);
    for (int step = -1; step < steps; step++) {
        bench->on = step >= 0; /* the first makes the primitives */
        if (step == 0) t = (struct times){0};
        const double since = now();
        DT_TRY(one_step(j, model, &bench->dev, &b, step + 2, u, logp, &t));
        const double took = now() - since;
        if (step >= 0 && took < best) best = took;
        if (step >= 0) total += took;
    }
    print(bench, j, n_seq, len, steps, &t, best, total);
    dt_batch_free(&b, bench->dev.ledger);
    dt_model_close(model);
    return DT_OK;
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

static dt_err bench_dtype(dt_dtype dtype, int threads, int steps)
{
    dt_ledger ledger = {0};
    dt_device dev;
    struct job j = {.dtype = dtype};
    struct bench *bench = calloc(1, sizeof *bench);
    char text[256], total[24];
    DT_CHECK(bench, DT_ERR_MEMORY, "no memory");
    DT_TRY(dt_device_open(&dev, "cpu", 0, threads, &ledger));
    const dt_device_ops ops = timed_table(dev.ops);
    bench->dev = dev;
    bench->real = dev.ops;
    bench->dev.ops = &ops;
    DT_TRY(dt_model_config_parse(
        &j.mc, "gpt2", "{\"model_type\": \"gpt2\", \"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0}"));
    DT_TRY(dt_model_make_units(&j.mc, &j.units, &j.n_units));
    DT_TRY(alloc_job(&j, &dev));
    DT_TRY(fill_job(&j, &dev));
    dev.ops->describe(&dev, text, sizeof text);
    printf("%s; states %s\n", text, dt_format_bytes((double)atomic_load(&ledger.total_now), total));
    DT_TRY(bench_shape(bench, &j, 4, 64, steps));
    DT_TRY(bench_shape(bench, &j, 1, 1024, steps));
    free_job(&j);
    dt_device_close(&dev);
    free(bench);
    return DT_OK;
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 0, steps = argc > 2 && atoi(argv[2]) > 0 ? atoi(argv[2]) : 4;
    const char *only = argc > 3 ? argv[3] : "";
    dt_err err = DT_OK;
    processor_time = threads == 1;
    if (strcmp(only, "bf16") != 0) err = bench_dtype(DT_F32, threads, steps);
    if (err == DT_OK && strcmp(only, "fp32") != 0) err = bench_dtype(DT_BF16, threads, steps);
    if (err != DT_OK) fprintf(stderr, "bench_model: %s\n", dt_error_message());
    return dt_exit_code(err);
}
