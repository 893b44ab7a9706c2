/* bench_compute.c - rates of what bench_layers leaves out, on any device: copies, matmuls, attention, the
 * classifier, optimizers and reductions, the choice of tokens.
 *
 *     bench_compute [device [part...]]     device: cuda. Parts: copies matmuls attention classifier optimizer tokens
 *
 * In bf16 at the shapes of known models, 8192 tokens. Time is the device's own, between events, the least of several
 * turns of as many calls as take some milliseconds. Values are random: zeros would be faster. Rates count the
 * operations that the mathematics asks for (attention: the causal half) and the bytes that have to move.
 * DTRAIN_CUDA_PRODUCT=own or DTRAIN_ONEDNN=none measures dtrain's own matmuls instead of the library's. */
#include "bench.h"

enum { TOKENS = 8192, TURNS = 5 };

static double peak, copy_rate; /* TFLOP/s of a large matmul, GB/s of a copy: 0 before they are known */

/* Prints one line. A benchmark that cannot run says so, and the others continue. */
static double show(bench *b, const char *name, bench_call run, const void *what, double flops, double nbytes)
{
    double us;
    if (bench_best(b, run, what, TURNS, &us) != DT_OK) {
        printf("  %-44s %s\n", name, dt_error_message());
        dt_error_clear();
        return 0;
    }
    const double rate = flops > 0 ? flops / us * 1e-6 : nbytes / us * 1e-3, of = flops > 0 ? peak : copy_rate;
    printf("  %-44s %10.1f us", name, us);
    if (rate > 0) printf(" %9.1f %s", rate, flops > 0 ? "TFLOP/s" : "GB/s");
    if (rate > 0 && of > 0) printf("  %.2f", rate / of);
    printf("\n");
    fflush(stdout);
    return rate;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

typedef struct copy_job {
    void *to, *from, *back_to, *back_from;
    size_t nbytes;
    dt_stream *other;
    dt_event *begun, *done;
} copy_job;

static dt_err run_copy(bench *b, const void *what)
{
    const copy_job *j = what;
    return b->ops->copy(&b->dev, j->to, j->from, j->nbytes, NULL);
}
static dt_err run_zero(bench *b, const void *what)
{
    const copy_job *j = what;
    return b->ops->zero(&b->dev, j->to, j->nbytes, NULL);
}
/* The way back on a stream of its own. */
static dt_err run_both(bench *b, const void *what)
{
    const copy_job *j = what;
    DT_TRY(b->ops->event_record(&b->dev, j->begun, NULL));
    DT_TRY(b->ops->event_wait(&b->dev, j->begun, j->other));
    DT_TRY(b->ops->copy(&b->dev, j->back_to, j->back_from, j->nbytes, j->other));
    DT_TRY(run_copy(b, what));
    DT_TRY(b->ops->event_record(&b->dev, j->done, j->other));
    return b->ops->event_wait(&b->dev, j->done, NULL);
}

static void bench_copies(bench *b)
{
    const size_t nbytes = (size_t)256 << 20;
    dt_buf pinned[2] = {{0}, {0}};
    char *x = bench_values(b, (int64_t)(nbytes / 4), DT_F32, 1), *y = bench_values(b, (int64_t)(nbytes / 4), DT_F32, 1);
    copy_job j = {.to = y, .from = x, .nbytes = nbytes};
    copy_rate = show(b, "device to device, read and written", run_copy, &j, 0, 2.0 * (double)nbytes);
    show(b, "zero", run_zero, &j, 0, (double)nbytes);
    for (int i = 0; i < 2; i++) TRY_OR_END(dt_buf_alloc(&pinned[i], &b->dev, DT_ON_PINNED, nbytes, DT_MEM_OTHER));
    TRY_OR_END(b->ops->stream_create(&b->dev, &j.other));
    TRY_OR_END(b->ops->event_create(&b->dev, &j.begun));
    TRY_OR_END(b->ops->event_create(&b->dev, &j.done));
    const double share = copy_rate;
    copy_rate = 0;
    for (size_t n = nbytes; n >= 1 << 20; n /= 16) {
        char name[64];
        const double mib = (double)n / (1 << 20);
        j.nbytes = n;
        j.to = y, j.from = pinned[0].ptr, j.back_to = pinned[1].ptr, j.back_from = x;
        snprintf(name, sizeof name, "pinned to device, %.0f MiB", mib);
        show(b, name, run_copy, &j, 0, (double)n);
        snprintf(name, sizeof name, "both ways at once, %.0f MiB, each way", mib);
        show(b, name, run_both, &j, 0, (double)n);
        j.to = pinned[1].ptr, j.from = x;
        snprintf(name, sizeof name, "device to pinned, %.0f MiB", mib);
        show(b, name, run_copy, &j, 0, (double)n);
    }
    copy_rate = share;
    b->ops->event_destroy(&b->dev, j.begun), b->ops->event_destroy(&b->dev, j.done);
    b->ops->stream_destroy(&b->dev, j.other);
    for (int i = 0; i < 2; i++) dt_buf_free(&pinned[i]);
}

/* ---- matmuls ---------------------------------------------------------------------------------------------------- */

typedef struct layer {
    const char *model, *name;
    int64_t in, out;
    bool weights_by_rows; /* GPT-2 stores W [in,out], the others [out,in] */
} layer;

static const layer layers[] = {
    {"GPT-2 124M", "qkv", 768, 2304, true},       {"GPT-2 124M", "fc", 768, 3072, true},
    {"GPT-2 124M", "fc2", 3072, 768, true},       {"GPT-2 1.5B", "qkv", 1600, 4800, true},
    {"GPT-2 1.5B", "proj", 1600, 1600, true},     {"GPT-2 1.5B", "fc", 1600, 6400, true},
    {"GPT-2 1.5B", "fc2", 6400, 1600, true},      {"Qwen 1.5B", "qkv", 1536, 2048, false},
    {"Qwen 1.5B", "gate_up", 1536, 17920, false}, {"Qwen 1.5B", "down", 8960, 1536, false},
    {"Llama 8B", "qkv", 4096, 6144, false},       {"Llama 8B", "gate_up", 4096, 28672, false},
    {"Llama 8B", "down", 14336, 4096, false},     {"GPT-2 124M", "head", 768, 50257, false},
    {"GPT-2 1.5B", "head", 1600, 50257, false},   {"Llama 8B", "head", 4096, 128256, false}};

typedef struct matmul {
    dt_matmul mm;
    const void *a, *b;
    void *c;
} matmul;

static dt_err run_matmul(bench *b, const void *what)
{
    const matmul *p = what;
    return b->ops->matmul(&b->dev, &p->mm, p->a, p->b, p->c, NULL);
}

static void show_matmul(bench *b, const layer *l, const char *what, const matmul *p)
{
    char name[96];
    const dt_matmul *mm = &p->mm;
    snprintf(name, sizeof name, "%s %s %s %" PRId64 "x%" PRId64 "x%" PRId64, l->model, l->name, what, mm->m, mm->n,
             mm->k);
    show(b, name, run_matmul, p, 2.0 * (double)mm->m * (double)mm->n * (double)mm->k, 0);
}

/* The head works on some rows at a time, at a distance that suits the device; its gradients lie in the logits' rows. */
static void bench_layer(bench *b, const layer *l)
{
    const bool head = !strcmp(l->name, "head"), rows = l->weights_by_rows;
    const int64_t T = head ? b->ops->classifier_rows(&b->dev, l->out, TOKENS) : TOKENS, I = l->in, O = l->out,
                  y_ld = head ? (O + 15) / 16 * 16 : O, dy_ld = head ? 2 * y_ld : O;
    const dt_dtype y_dt = head ? DT_F32 : DT_BF16;
    void *x = bench_values(b, T * I, DT_BF16, 1), *y = bench_values(b, T * y_ld, y_dt, 1),
         *dy = bench_values(b, T * dy_ld, DT_BF16, 1), *w = bench_values(b, I * O, DT_BF16, 1),
         *dw = bench_values(b, I * O, DT_F32, 1), *bias = bench_values(b, O, DT_BF16, 1);
    matmul p = {dt_dense_matmul(T, O, I, false, !rows, DT_BF16, y_dt), x, w, y};
    p.mm.ldc = y_ld;
    show_matmul(b, l, "forward", &p);
    if (!strcmp(l->name, "fc")) {
        p.mm.bias = bias, p.mm.epilogue = DT_EPILOGUE_ACT, p.mm.act = DT_ACT_GELU_TANH, p.mm.aux = dy, p.mm.ld_aux = O;
        show_matmul(b, l, "bias, gelu", &p);
    }
    p = (matmul){dt_dense_matmul(T, I, O, false, rows, DT_BF16, DT_BF16), dy, w, x};
    p.mm.lda = dy_ld;
    show_matmul(b, l, "dx", &p);
    if (!strcmp(l->name, "fc2")) {
        p.mm.epilogue = DT_EPILOGUE_ACT_BACKWARD, p.mm.act = DT_ACT_GELU_TANH, p.mm.aux = x, p.mm.ld_aux = I;
        p.c = bench_values(b, T * I, DT_BF16, 1);
        show_matmul(b, l, "dx, gelu'", &p);
    }
    for (int fp32 = 0; fp32 < 2; fp32++) {
        const dt_dtype dt = fp32 ? DT_F32 : DT_BF16;
        p = rows ? (matmul){dt_dense_matmul(I, O, T, true, false, DT_BF16, dt), x, dy, dw}
                 : (matmul){dt_dense_matmul(O, I, T, true, false, DT_BF16, dt), dy, x, dw};
        *(rows ? &p.mm.ldb : &p.mm.lda) = dy_ld;
        p.mm.accumulate = fp32;
        show_matmul(b, l, fp32 ? "dw fp32 +=" : "dw bf16", &p);
    }
}

static void bench_matmul(bench *b)
{
    const int64_t n = b->dev.ops->own_memory ? 8192 : 1024;
    matmul p = {dt_dense_matmul(n, n, n, false, false, DT_BF16, DT_BF16), bench_values(b, n * n, DT_BF16, 1),
                bench_values(b, n * n, DT_BF16, 1), bench_values(b, n * n, DT_BF16, 1)};
    peak = show(b, "large matmul, the base of the fractions", run_matmul, &p, 2.0 * pow((double)n, 3), 0);
    bench_drop(b);
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        bench_layer(b, &layers[i]);
        bench_drop(b);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static const struct {
    int n_heads, n_kv_heads, head_dim, n_seq, len;
} attentions[] = {{12, 12, 64, 32, 1024}, {25, 25, 64, 8, 1024},  {32, 32, 64, 8, 2048}, {32, 32, 64, 4, 4096},
                  {12, 2, 128, 8, 1024},  {32, 32, 128, 8, 2048}, {32, 8, 128, 8, 2048}, {32, 8, 128, 4, 4096},
                  {32, 8, 128, 1, 16384}, {16, 16, 72, 8, 1024},  {32, 32, 96, 4, 2048}};

typedef struct attention_job {
    dt_attention at;
    char *qkv, *dqkv;
    void *out, *dout;
    float *lse, *scratch;
} attention_job;

static char *column(char *rows, int64_t c) { return rows + c * 2; }

static dt_err run_attention(bench *b, const void *what)
{
    const attention_job *j = what;
    const int64_t k = (int64_t)j->at.n_heads * j->at.head_dim, v = k + (int64_t)j->at.n_kv_heads * j->at.head_dim;
    return b->ops->attention_forward(&b->dev, &j->at, j->qkv, column(j->qkv, k), column(j->qkv, v), j->out, j->lse,
                                     NULL);
}
static dt_err run_attention_backward(bench *b, const void *what)
{
    const attention_job *j = what;
    const int64_t k = (int64_t)j->at.n_heads * j->at.head_dim, v = k + (int64_t)j->at.n_kv_heads * j->at.head_dim;
    return b->ops->attention_backward(&b->dev, &j->at, j->qkv, column(j->qkv, k), column(j->qkv, v), j->out, j->lse,
                                      j->dout, j->dqkv, column(j->dqkv, k), column(j->dqkv, v), j->scratch, NULL);
}

/* The same by the device's library, where it takes it. */
static void show_library(bench *b, attention_job *j, char name[96], int n, double pairs)
{
    int ready = 0;
    char why[256] = "the device has no library";
    j->at.by_library = true;
    if (b->ops->attention_prepare)
        TRY_OR_END(b->ops->attention_prepare(&b->dev, &j->at, true, &ready, why, sizeof why));
    snprintf(name + n, 96 - (size_t)n, ", library");
    if (ready & DT_READY_FORWARD) show(b, name, run_attention, j, 4 * pairs, 0);
    snprintf(name + n, 96 - (size_t)n, " backward, library");
    if (ready & DT_READY_BACKWARD) show(b, name, run_attention_backward, j, 10 * pairs, 0);
    if (*why) printf("  %.*s, library: %s\n", n, name, why);
}

static void bench_attention_of(bench *b, int H, int KV, int D, int n_seq, int len)
{
    char name[96];
    int32_t start[64], lens[64];
    const int64_t T = (int64_t)n_seq * len, width = (int64_t)(H + 2 * KV) * D;
    for (int s = 0; s <= n_seq; s++) start[s] = s * len, lens[s] = len;
    const int32_t *q_start = bench_given(b, start, (size_t)(n_seq + 1) * 4),
                  *kv_len = bench_given(b, lens, (size_t)n_seq * 4);
    attention_job j = {.at = {.n_seq = n_seq,
                              .n_heads = H,
                              .n_kv_heads = KV,
                              .head_dim = D,
                              .q_start = q_start,
                              .kv_start = q_start,
                              .kv_len = kv_len,
                              .n_tok = (int32_t)T,
                              .max_q_len = len,
                              .max_kv_len = len,
                              .q_ld = width,
                              .kv_ld = width,
                              .o_ld = (int64_t)H * D,
                              .scale = 1 / sqrtf((float)D),
                              .dt = DT_BF16}};
    j.qkv = bench_values(b, T * width, DT_BF16, 1), j.dqkv = bench_values(b, T * width, DT_BF16, 1);
    j.out = bench_values(b, T * H * D, DT_BF16, 1), j.dout = bench_values(b, T * H * D, DT_BF16, 1);
    j.lse = bench_values(b, T * H, DT_F32, 1);
    j.at.by_library = true; /* its scratch is the larger one */
    j.scratch = bench_values(b, b->ops->attention_scratch_elems(&b->dev, &j.at) + 1, DT_F32, 1);
    j.at.by_library = false;
    const double pairs = (double)n_seq * len * (len + 1.0) / 2 * H * D;
    const int n = snprintf(name, sizeof name, "%2d/%d heads of %3d, %2d x %5d", H, KV, D, n_seq, len);
    show(b, name, run_attention, &j, 4 * pairs, 0);
    snprintf(name + n, sizeof name - (size_t)n, " backward");
    show(b, name, run_attention_backward, &j, 10 * pairs, 0);
    show_library(b, &j, name, n, pairs);
}

static void bench_attention(bench *b)
{
    for (size_t i = 0; i < sizeof attentions / sizeof attentions[0]; i++) {
        bench_attention_of(b, attentions[i].n_heads, attentions[i].n_kv_heads, attentions[i].head_dim,
                           attentions[i].n_seq, attentions[i].len);
        bench_drop(b);
    }
}

/* ---- the classifier ---------------------------------------------------------------------------------------------- */

typedef struct classifier_job {
    dt_classifier cl;
    float *logits;
} classifier_job;

static dt_err run_classifier(bench *b, const void *what)
{
    const classifier_job *j = what;
    return b->ops->classifier(&b->dev, &j->cl, j->logits, NULL);
}

static void bench_classifier(bench *b)
{
    static const int64_t vocabularies[] = {50257, 128256, 151936};
    for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++) {
        char name[96];
        const int64_t V = vocabularies[i], ld = (V + 15) / 16 * 16, n = b->ops->classifier_rows(&b->dev, V, TOKENS);
        int32_t *target = calloc((size_t)n, 4);
        if (!target) exit(1);
        for (int64_t r = 0; r < n; r++) target[r] = (int32_t)(dt_mix64((uint64_t)r) % (uint64_t)V);
        classifier_job j = {{.n_rows = n,
                             .n_vocab = V,
                             .logits_ld = ld,
                             .inv_temperature = 1,
                             .dlogits_dtype = DT_BF16,
                             .target = bench_given(b, target, (size_t)n * 4)},
                            bench_values(b, n * ld, DT_F32, 1)};
        free(target);
        j.cl.weight = bench_values(b, n, DT_F32, 1), j.cl.logp = bench_values(b, n, DT_F32, 1);
        snprintf(name, sizeof name, "%" PRId64 " rows of %" PRId64, n, V);
        show(b, name, run_classifier, &j, 0, (double)(n * V) * 6);
        bench_drop(b);
    }
}

/* ---- optimizers and reductions ----------------------------------------------------------------------------------- */

typedef struct optimizer_job {
    int64_t n;
    void *grad, *param, *result;
    float *master, *m, *v;
    dt_dtype dt;
} optimizer_job;

static dt_err run_adamw(bench *b, const void *what)
{
    const optimizer_job *j = what;
    const dt_adamw o = usual_adamw(1e-4f, 0.1f, 0.05f);
    return b->ops->adamw_step(&b->dev, &o, j->grad, j->dt, j->master, j->m, j->v, j->param, DT_BF16, j->n, NULL);
}
static dt_err run_sgd(bench *b, const void *what)
{
    const optimizer_job *j = what;
    const dt_sgd o = {.lr = 1e-4f, .momentum = 0.9f, .grad_scale = 1};
    return b->ops->sgd_step(&b->dev, &o, j->grad, j->dt, j->master, j->m, j->param, DT_BF16, j->n, NULL);
}
static dt_err run_sum_squares(bench *b, const void *what)
{
    const optimizer_job *j = what;
    return b->ops->sum_squares(&b->dev, j->grad, j->dt, j->n, j->result, NULL);
}
static dt_err run_abs_max(bench *b, const void *what)
{
    const optimizer_job *j = what;
    return b->ops->abs_max(&b->dev, j->grad, j->dt, j->n, j->result, NULL);
}
static dt_err run_sum_fixed(bench *b, const void *what)
{
    const optimizer_job *j = what;
    return b->ops->sum_squares_fixed(&b->dev, j->grad, j->dt, j->n, 30, j->result, NULL);
}

static void bench_optimizer(bench *b)
{
    optimizer_job j = {.n = 124439808, .dt = DT_BF16};
    const double n = (double)j.n;
    void *grad = bench_values(b, j.n, DT_F32, 1), *param = bench_values(b, j.n, DT_BF16, 1);
    j.master = bench_values(b, j.n, DT_F32, 1), j.m = bench_values(b, j.n, DT_F32, 1),
    j.v = bench_values(b, j.n, DT_F32, 1);
    j.result = bench_values(b, 8, DT_F32, 1);
    TRY_OR_END(b->ops->zero(&b->dev, j.v, (size_t)j.n * 4, NULL)); /* a variance is not negative */
    j.grad = grad, j.param = param;
    show(b, "adamw, bf16 gradients and parameters", run_adamw, &j, 0, 28 * n);
    show(b, "sgd, bf16 gradients and parameters", run_sgd, &j, 0, 20 * n);
    show(b, "sum of squares, bf16", run_sum_squares, &j, 0, 2 * n);
    show(b, "largest, bf16", run_abs_max, &j, 0, 2 * n);
    show(b, "exact sum of squares, bf16", run_sum_fixed, &j, 0, 2 * n);
    j.dt = DT_F32, j.param = NULL;
    show(b, "adamw, fp32", run_adamw, &j, 0, 28 * n);
    show(b, "sum of squares, fp32", run_sum_squares, &j, 0, 4 * n);
    show(b, "exact sum of squares, fp32", run_sum_fixed, &j, 0, 4 * n);
}

/* ---- the choice of tokens ---------------------------------------------------------------------------------------- */

typedef struct token_job {
    dt_token_rows rows;
    dt_choice how;
    const float *logits;
    const double *uniform;
    int32_t *token;
    float *logit;
    double *logp;
    void *scratch;
    int64_t k;
} token_job;

static dt_err run_draw(bench *b, const void *what)
{
    const token_job *j = what;
    return b->ops->draw_tokens(&b->dev, &j->rows, &j->how, j->logits, j->uniform, j->token, j->scratch, NULL);
}
static dt_err run_top(bench *b, const void *what)
{
    const token_job *j = what;
    return b->ops->top_tokens(&b->dev, &j->rows, j->logits, j->k, j->token, j->logit, NULL);
}
static dt_err run_log_softmax(bench *b, const void *what)
{
    const token_job *j = what;
    return b->ops->log_softmax_at(&b->dev, &j->rows, j->logits, 1, j->k, j->token, j->logp, NULL);
}

static void show_tokens(bench *b, token_job *j)
{
    static const struct {
        const char *name;
        dt_choice how;
    } choices[] = {{"greedy", {.greedy = true, .temperature = 1, .top_p = 1}},
                   {"temperature", {.temperature = 0.8, .top_p = 1}},
                   {"top_k 50", {.temperature = 1, .top_k = 50, .top_p = 1}},
                   {"top_p 0.9", {.temperature = 1, .top_p = 0.9}},
                   {"top_k 50, top_p 0.9, min_p 0.01", {.temperature = 0.8, .top_k = 50, .top_p = 0.9, .min_p = 0.01}}};
    char name[96];
    const double nbytes = (double)(j->rows.n_rows * j->rows.n_vocab) * 4;
    const int at = snprintf(name, sizeof name, "%" PRId64 " x %" PRId64 " ", j->rows.n_rows, j->rows.n_vocab);
    for (size_t c = 0; c < sizeof choices / sizeof choices[0]; c++) {
        j->how = choices[c].how;
        snprintf(name + at, sizeof name - (size_t)at, "%s", choices[c].name);
        show(b, name, run_draw, j, 0, nbytes);
    }
    for (j->k = 8; j->k <= 1024; j->k = j->k == 8 ? 50 : j->k == 50 ? 1024 : 1025) {
        snprintf(name + at, sizeof name - (size_t)at, "top %" PRId64, j->k);
        show(b, name, run_top, j, 0, nbytes);
    }
    j->k = 1;
    snprintf(name + at, sizeof name - (size_t)at, "log-probability");
    show(b, name, run_log_softmax, j, 0, nbytes);
}

static void bench_tokens(bench *b)
{
    enum { MOST = 64, TOP = 1024 };
    static const int64_t vocabularies[] = {50257, 151936}, counts[] = {1, 8, MOST};
    double uniform[MOST];
    for (int i = 0; i < MOST; i++) uniform[i] = (i + 0.5) / MOST;
    for (size_t v = 0; v < 2; v++) {
        const int64_t V = vocabularies[v];
        token_job j = {.rows = {.n_rows = MOST, .n_vocab = V, .logits_ld = V}, .how = {.temperature = 1, .top_p = 1}};
        j.logits = bench_values(b, MOST * V, DT_F32, 1), j.uniform = bench_given(b, uniform, sizeof uniform);
        j.token = bench_values(b, MOST * TOP, DT_F32, 1), j.logit = bench_values(b, MOST * TOP, DT_F32, 1);
        j.logp = bench_values(b, 2 * MOST, DT_F32, 1);
        j.scratch = bench_values(b, (int64_t)(b->ops->draw_scratch_nbytes(&b->dev, &j.rows) / 4) + 1, DT_F32, 1);
        for (size_t n = 0; n < 3; n++) {
            j.rows.n_rows = counts[n];
            show_tokens(b, &j);
        }
        bench_drop(b);
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(bench *b);
} parts[] = {{"copies", bench_copies},         {"matmuls", bench_matmul},      {"attention", bench_attention},
             {"classifier", bench_classifier}, {"optimizer", bench_optimizer}, {"tokens", bench_tokens}};

int main(int argc, char **argv)
{
    bench b;
    bench_open(&b, argc > 1 ? argv[1] : "cuda");
    bench_describe(&b);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool wanted = argc <= 2;
        for (int k = 2; k < argc; k++) wanted = wanted || !strcmp(argv[k], parts[i].name);
        if (!wanted) continue;
        printf("%s\n", parts[i].name);
        parts[i].run(&b);
        bench_drop(&b);
    }
    bench_close(&b);
    return 0;
}
