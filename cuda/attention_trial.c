/* attention_trial.c - verifies a library's attention: is it deterministic, and does it match dtrain's own kernels? On
 * random input with the shape of the later calls. */
#include "attention_cudnn.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNED = 256 };

/* Arrays of a call in the model's layout (q, k and v adjacent in rows), with results of two calls. */
typedef struct trial {
    dt_device *dev;
    dt_attention at;
    int64_t ld, n_tok;
    size_t x_nbytes, out_nbytes, lse_nbytes;
    char *memory, *x, *dout, *out[2], *dx[2];
    float *lse[2], *scratch;
    int32_t *starts; /* [n_seq + 1], then [n_seq] lengths */
    char *host[2];   /* each as large as the larger result */
} trial;

static size_t take(size_t *used, size_t nbytes)
{
    const size_t from = *used;
    *used = (from + nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return from;
}

static void place(trial *t, size_t *used)
{
    const size_t e = dt_dtype_size(t->at.dt);
    t->x_nbytes = (size_t)(t->n_tok * t->ld) * e;
    t->out_nbytes = (size_t)(t->n_tok * t->at.o_ld) * e;
    t->lse_nbytes = (size_t)(t->n_tok * t->at.n_heads) * sizeof(float);
    *used = 0;
    t->x = t->memory + take(used, t->x_nbytes);
    t->dout = t->memory + take(used, t->out_nbytes);
    for (int i = 0; i < 2; i++) {
        t->out[i] = t->memory + take(used, t->out_nbytes);
        t->dx[i] = t->memory + take(used, t->x_nbytes);
        t->lse[i] = (float *)(t->memory + take(used, t->lse_nbytes));
    }
    t->scratch =
        (float *)(t->memory + take(used, (size_t)dt_gpu_attention_scratch_elems(t->dev, &t->at) * sizeof(float)));
    t->starts = (int32_t *)(t->memory + take(used, (2 * (size_t)t->at.n_seq + 1) * sizeof(int32_t)));
}

/* Use the device's stream for everything: CUDA's default stream, which cudaMemcpy and cudaMemset use, does not wait for
 * it. */
static dt_err to_device(const trial *t, void *to, const void *from, size_t nbytes)
{
    return t->dev->ops->copy(t->dev, to, from, nbytes, NULL);
}

static dt_err fill(const trial *t, char *to, size_t nbytes, uint64_t salt)
{
    enum { PATTERN = 1 << 20 };
    uint16_t *pattern = malloc(PATTERN * sizeof *pattern);
    dt_err err = pattern ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for random numbers");
    for (int i = 0; err == DT_OK && i < PATTERN; i++) /* from -2 to 2 */
        dt_set_element(pattern, t->at.dt, i, (float)((double)(dt_mix64(salt + (uint64_t)i) >> 11) * 0x1p-51 - 2));
    for (size_t from = 0; from < nbytes && err == DT_OK; from += PATTERN * sizeof *pattern) {
        const size_t n = nbytes - from < PATTERN * sizeof *pattern ? nbytes - from : PATTERN * sizeof *pattern;
        err = to_device(t, to + from, pattern, n);
    }
    if (err == DT_OK) err = t->dev->ops->stream_sync(t->dev, NULL);
    free(pattern);
    return err;
}

static dt_err fill_starts(trial *t)
{
    const int n = t->at.n_seq;
    int32_t *starts = (int32_t *)t->host[0]; /* rows are longer */
    for (int i = 0; i <= n; i++) starts[i] = i * t->at.max_q_len;
    for (int i = 0; i < n; i++) starts[n + 1 + i] = t->at.max_q_len;
    DT_TRY(to_device(t, t->starts, starts, (2 * (size_t)n + 1) * sizeof *starts));
    t->at.q_start = t->at.kv_start = t->starts;
    t->at.kv_len = t->starts + n + 1;
    return t->dev->ops->stream_sync(t->dev, NULL);
}

static dt_err open_trial(trial *t, dt_device *dev, const dt_attention *at)
{
    size_t nbytes;
    *t = (trial){.dev = dev, .at = *at, .ld = at->q_ld, .n_tok = at->n_tok};
    place(t, &nbytes);
    if (cudaMalloc((void **)&t->memory, nbytes) != cudaSuccess) {
        (void)cudaGetLastError();
        t->memory = NULL;
        return dt_fail(DT_ERR_MEMORY, "no memory to test it (%zu MiB needed)", nbytes >> 20);
    }
    place(t, &nbytes);
    for (int i = 0; i < 2; i++) t->host[i] = malloc(t->x_nbytes + t->lse_nbytes + 4096);
    DT_CHECK(t->host[0] && t->host[1], DT_ERR_MEMORY, "no memory to test it");
    DT_TRY(fill(t, t->x, t->x_nbytes, 1));
    DT_TRY(fill(t, t->dout, t->out_nbytes, 1 << 20));
    return fill_starts(t);
}

static void close_trial(trial *t)
{
    if (t->memory) cudaFree(t->memory);
    free(t->host[0]);
    free(t->host[1]);
}

/* Compute one direction into result i; backward uses the first out and lse. Synchronous, so that errors belong to this
 * call. */
static dt_err call(trial *t, int direction, bool by_library, int i)
{
    const size_t e = dt_dtype_size(t->at.dt), k = (size_t)(t->at.n_heads * t->at.head_dim) * e,
                 v = k + (size_t)(t->at.n_kv_heads * t->at.head_dim) * e;
    char *dx = t->dx[i];
    t->at.by_library = by_library;
    const dt_err err =
        direction == DIRECTION_FORWARD
            ? cuda_attention_forward(t->dev, &t->at, t->x, t->x + k, t->x + v, t->out[i], t->lse[i], NULL)
            : cuda_attention_backward(t->dev, &t->at, t->x, t->x + k, t->x + v, t->out[0], t->lse[0], t->dout, dx,
                                      dx + k, dx + v, t->scratch, NULL);
    t->at.by_library = true;
    return err == DT_OK ? t->dev->ops->stream_sync(t->dev, NULL) : err;
}

/* Compute both directions into result i, by_library with the library's plans that can run. If the library fails,
 * dtrain's own kernels show whether the device still works. */
static dt_err compute(trial *t, bool by_library, int i, attention_verdict *verdict)
{
    DT_TRY(t->dev->ops->zero(t->dev, t->dx[i], t->x_nbytes, NULL));
    DT_TRY(t->dev->ops->zero(t->dev, t->out[i], t->out_nbytes, NULL));
    for (int direction = 0; direction < N_DIRECTIONS; direction++) {
        char *wrong = verdict->of[direction];
        const bool library = by_library && !*wrong;
        dt_err err = call(t, direction, library, i);
        if (err != DT_OK && library) {
            snprintf(wrong, sizeof verdict->of[0], "cannot run: %s", dt_error_message());
            dt_error_clear();
            err = call(t, direction, false, i);
        }
        DT_TRY(err);
    }
    return DT_OK;
}

static dt_err fetch(const trial *t, void *const result[2], size_t nbytes)
{
    for (int i = 0; i < 2; i++) DT_TRY(t->dev->ops->copy(t->dev, t->host[i], result[i], nbytes, NULL));
    return t->dev->ops->stream_sync(t->dev, NULL);
}

/* Tolerance: both round P and its gradient to 16 bits before they multiply, and sum in different orders. These errors
 * of terms are independent, so the relative error of a sum is that of its terms. The first rows have few keys, so 16
 * units of the value and of the root mean square are allowed, as in the self-check. All values of small results are
 * compared, and some rows of large ones. */
static bool is_near(const trial *t, dt_dtype dt, int64_t width)
{
    enum { ENOUGH = 1 << 22 };
    const double unit = dt_roundoff(t->at.dt);
    const int64_t n = t->n_tok * width, step = n / ENOUGH + 1;
    double squares = 0;
    int64_t counted = 0;
    for (int64_t row = 0; row < t->n_tok; row += step)
        for (int64_t i = row * width; i < (row + 1) * width; i++, counted++) {
            const double x = (double)dt_element(t->host[1], dt, i);
            squares += x * x;
        }
    const double rms = sqrt(squares / (double)counted);
    for (int64_t row = 0; row < t->n_tok; row += step)
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            const double want = (double)dt_element(t->host[1], dt, i), got = (double)dt_element(t->host[0], dt, i);
            if (!(fabs(got - want) <= 16 * unit * (fabs(want) + rms))) return false;
        }
    return true;
}

/* Compare the results of two calls: same bits, or (near) values within the tolerance. */
static dt_err compare(const trial *t, bool near, bool *forward, bool *backward)
{
    void *const out[2] = {t->out[0], t->out[1]}, *const dx[2] = {t->dx[0], t->dx[1]},
                *const lse[2] = {t->lse[0], t->lse[1]};
    DT_TRY(fetch(t, out, t->out_nbytes));
    *forward = near ? is_near(t, t->at.dt, t->at.o_ld) : !memcmp(t->host[0], t->host[1], t->out_nbytes);
    DT_TRY(fetch(t, lse, t->lse_nbytes));
    *forward = *forward && (near ? is_near(t, DT_F32, t->at.n_heads) : !memcmp(t->host[0], t->host[1], t->lse_nbytes));
    DT_TRY(fetch(t, dx, t->x_nbytes));
    *backward = near ? is_near(t, t->at.dt, t->ld) : !memcmp(t->host[0], t->host[1], t->x_nbytes);
    return DT_OK;
}

/* Two calls of the library, then one of dtrain's own kernels, which replaces the second result. */
static dt_err judge(trial *t, attention_verdict *verdict)
{
    static const char *const what[] = {"gives different bits in repeated calls",
                                       "differs from dtrain's own kernels by more than rounding"};
    *verdict = (attention_verdict){0};
    DT_TRY(compute(t, true, 0, verdict));
    for (int near = 0; near < 2; near++) {
        bool same[N_DIRECTIONS] = {false};
        DT_TRY(compute(t, !near, 1, verdict));
        DT_TRY(compare(t, near, &same[DIRECTION_FORWARD], &same[DIRECTION_BACKWARD]));
        for (int i = 0; i < N_DIRECTIONS; i++)
            if (!same[i] && !*verdict->of[i]) snprintf(verdict->of[i], sizeof verdict->of[i], "%s", what[near]);
    }
    return DT_OK;
}

dt_err cuda_attention_try(dt_device *dev, const dt_attention *at, attention_verdict *verdict)
{
    trial t;
    dt_err err = open_trial(&t, dev, at);
    if (err == DT_OK) err = judge(&t, verdict);
    close_trial(&t);
    if (err != DT_ERR_MEMORY) return err;
    dt_error_clear();
    for (int i = 0; i < N_DIRECTIONS; i++)
        snprintf(verdict->of[i], sizeof verdict->of[i], "cannot be tested for lack of memory");
    return DT_OK;
}
