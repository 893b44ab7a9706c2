/* kmeans.c - codebooks of a level: k-means++, Lloyd's algorithm, and a balanced variant with fixed sizes.
 *
 * All decisions (seed items, empty codes, stopping) are computed on every rank from identical values, so
 * they need no communication. */
#include "points.h"
#include "blocked_sums.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fit {
    const dt_sid *s;
    const dt_sid_kmeans *how;
    dt_sid_points *p;
    dt_sid_book *b;
    sid_sums sums;        /* [K, width] */
    dt_buf index, order;  /* [block] */
    int32_t *order_host;  /* [block] */
    int32_t *code, *next; /* [n] */
    float *distance;      /* [n] */
    int64_t *count;       /* [K + 1] */
    float *cost;          /* balanced: [n, K] */
    size_t cost_nbytes;
} fit;

static dt_err fit_alloc(fit *f, int32_t *code)
{
    const int64_t n = f->p->n, K = f->b->n_codes;
    const size_t block = (size_t)f->s->block * sizeof(int32_t);
    f->code = code;
    f->next = malloc((size_t)n * sizeof *f->next);
    f->distance = malloc((size_t)n * sizeof *f->distance);
    f->count = malloc((size_t)(K + 1) * sizeof *f->count);
    f->order_host = malloc(block);
    f->cost_nbytes = f->how->balanced ? (size_t)(n * K + 1) * sizeof *f->cost : 0;
    if (f->how->balanced) f->cost = malloc(f->cost_nbytes);
    dt_ledger_add(f->s->dev->ledger, DT_MEM_DATA, DT_ON_HOST, f->cost_nbytes);
    DT_CHECK(f->next && f->distance && f->count && f->order_host && (f->cost || !f->how->balanced), DT_ERR_MEMORY,
             "out of memory for the codes of %lld items", (long long)n);
    DT_TRY(dt_buf_alloc(&f->index, f->s->dev, DT_ON_DEVICE, block, DT_MEM_DATA));
    DT_TRY(dt_buf_alloc(&f->order, f->s->dev, DT_ON_DEVICE, block, DT_MEM_DATA));
    return sid_sums_alloc(f->s, &f->sums, K * f->p->width, DT_MEM_GRADS);
}

static void fit_free(fit *f)
{
    dt_ledger_sub(f->s->dev->ledger, DT_MEM_DATA, DT_ON_HOST, f->cost_nbytes);
    sid_sums_free(&f->sums);
    dt_buf_free(&f->index);
    dt_buf_free(&f->order);
    free(f->next);
    free(f->distance);
    free(f->count);
    free(f->order_host);
    free(f->cost);
}

/* ---- k-means++ seeds --------------------------------------------------------------------------------------------- */

static double uniform(const dt_sid *s, int level, int64_t k)
{
    uint32_t w[4];
    dt_philox4x32(dt_rng_key(s->seed, DT_RNG_SAMPLING), (uint64_t)level, (uint64_t)k, w);
    return ((double)w[0] * 0x1p-32 + (double)w[1] * 0x1p-64);
}

/* The item at which the prefix sum of distances exceeds u times the total; if all are 0, the item at u n. */
static int64_t draw(const float *distance, int64_t n, double u)
{
    double sum = 0, so_far = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++) sum += distance[i];
    if (!(sum > 0)) return dt_min_i64((int64_t)(u * (double)n), n - 1);
    for (int64_t i = 0; i < n; i++) {
        so_far += distance[i];
        if (distance[i] > 0) last = i;
        if (so_far > u * sum) return i;
    }
    return last;
}

/* Update distances for the newest seed, as a book with one code. */
static dt_err nearer(fit *f, dt_sid_book *one, float *distance)
{
    DT_TRY(dt_sid_book_set(f->s, one));
    DT_TRY(dt_sid_nearest(f->s, f->p, one, f->next, distance));
    for (int64_t i = 0; i < f->p->n; i++) f->distance[i] = fminf(f->distance[i], distance[i]);
    return DT_OK;
}

static dt_err seed(fit *f)
{
    const int64_t n = f->p->n, width = f->p->width, K = f->b->n_codes;
    dt_sid_book one = {0};
    dt_sid single = *f->s;
    single.n_codes = 1;
    float *distance = malloc((size_t)n * sizeof *distance);
    dt_err err = distance ? dt_sid_book_alloc(&single, &one, width) : dt_fail(DT_ERR_MEMORY, "out of memory for seeds");
    err = dt_comm_agree(f->s->comm, err);
    for (int64_t i = 0; i < n; i++) f->distance[i] = 0;
    for (int64_t k = 0; k < K && err == DT_OK; k++) {
        float *row = f->b->host + k * width;
        dt_phase_enter(f->s->phase, "k-means seeds", "");
        err = sid_fetch_row(f->s, f->p, draw(f->distance, n, uniform(f->s, f->how->level, k)), row);
        for (int64_t i = 0; i < n && k == 0; i++) f->distance[i] = INFINITY;
        memcpy(one.host, row, (size_t)width * sizeof *row);
        fit with_one = *f;
        with_one.s = &single;
        if (err == DT_OK) err = nearer(&with_one, &one, distance);
    }
    dt_sid_book_free(&one);
    free(distance);
    return err;
}

/* ---- iterations -------------------------------------------------------------------------------------------------- */

static void count_codes(fit *f, const int32_t *code)
{
    memset(f->count, 0, (size_t)f->b->n_codes * sizeof *f->count);
    for (int64_t i = 0; i < f->p->n; i++) f->count[code[i]]++;
}

static double objective_of(const fit *f)
{
    double sum = 0;
    for (int64_t i = 0; i < f->p->n; i++) sum += f->distance[i];
    return sum;
}

/* Add up a block's rows by code, into sums.part. */
static dt_err sum_block(fit *f, int64_t round)
{
    const dt_sid *s = f->s;
    const dt_device_ops *ops = s->dev->ops;
    int64_t first;
    const int64_t m = sid_block_of(s, f->p->n, round, &first);
    const size_t nbytes = (size_t)m * sizeof(int32_t);
    DT_TRY(sid_sums_clear(s, &f->sums));
    if (m == 0) return DT_OK;
    DT_TRY(ops->stream_sync(s->dev, s->stream)); /* the previous round's copy from order_host must be complete */
    sid_sort_by_code(f->code + first, m, f->b->n_codes, f->count, f->order_host);
    DT_TRY(ops->copy(s->dev, f->index.ptr, f->code + first, nbytes, s->stream));
    DT_TRY(ops->copy(s->dev, f->order.ptr, f->order_host, nbytes, s->stream));
    return ops->embedding_backward(s->dev, sid_rows_of(s, f->p, round), f->index.ptr, f->order.ptr, f->sums.part.ptr, m,
                                   f->p->width, DT_F32, DT_F32, s->stream);
}

/* The item farthest from its code, whose distance is then set to 0; -1: all distances are 0. */
static int64_t take_farthest(fit *f)
{
    int64_t far = 0;
    for (int64_t i = 1; i < f->p->n; i++)
        if (f->distance[i] > f->distance[far]) far = i;
    if (!(f->distance[far] > 0)) return -1;
    f->distance[far] = 0;
    return far;
}

/* Move codes to the means of their items, and unused codes to the farthest items. */
static dt_err move_codes(fit *f)
{
    const dt_sid *s = f->s;
    const int64_t width = f->p->width, K = f->b->n_codes;
    float *sum = malloc((size_t)(K * width) * sizeof *sum);
    dt_err err = sum ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the sums of a codebook");
    err = dt_comm_agree(s->comm, err);
    if (err == DT_OK) err = sid_sums_begin(s, &f->sums);
    for (int64_t round = 0; round < dt_sid_rounds(s, f->p->n) && err == DT_OK; round++) {
        err = sum_block(f, round);
        if (err == DT_OK) err = sid_sums_add(s, &f->sums);
    }
    if (err == DT_OK) err = sid_sums_end(s, &f->sums);
    if (err == DT_OK)
        err = s->dev->ops->copy(s->dev, sum, f->sums.whole.ptr, (size_t)(K * width) * sizeof *sum, s->stream);
    err = sid_wait(s, err);
    count_codes(f, f->code);
    for (int64_t k = 0; k < K && err == DT_OK; k++) {
        float *row = f->b->host + k * width;
        for (int64_t c = 0; c < width && f->count[k] > 0; c++)
            row[c] = (float)((double)sum[k * width + c] / (double)f->count[k]);
        if (f->count[k] > 0) continue;
        const int64_t item = take_farthest(f);
        if (item >= 0) err = sid_fetch_row(s, f->p, item, row);
    }
    free(sum);
    return err == DT_OK ? dt_sid_book_set(s, f->b) : err;
}

/* Sizes of floor(n/K), plus one for the codes that are nearest to most items; ties to the lowest code. */
static void choose_sizes(fit *f, int64_t *size)
{
    const int64_t n = f->p->n, K = f->b->n_codes;
    count_codes(f, f->next);
    for (int64_t k = 0; k < K; k++) size[k] = n / K;
    for (int64_t more = n % K; more > 0; more--) {
        int64_t most = 0;
        for (int64_t k = 1; k < K; k++)
            if (f->count[k] > f->count[most]) most = k;
        size[most]++;
        f->count[most] = -1;
    }
}

static dt_err assign_balanced(fit *f)
{
    const int64_t n = f->p->n, K = f->b->n_codes;
    int64_t *size = malloc((size_t)K * sizeof *size);
    dt_err err = size ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the sizes of codes");
    err = dt_comm_agree(f->s->comm, err);
    if (err == DT_OK) err = dt_sid_nearest(f->s, f->p, f->b, f->next, f->distance);
    if (err == DT_OK) err = dt_sid_distances(f->s, f->p, f->b, NULL, n, f->cost);
    if (err == DT_OK) {
        choose_sizes(f, size);
        dt_phase_enter(f->s->phase, "balance", "");
        err = dt_comm_agree(f->s->comm, dt_sid_assign(f->cost, n, K, size, 1e-3, f->next));
    }
    for (int64_t i = 0; i < n && err == DT_OK; i++) f->distance[i] = f->cost[i * K + f->next[i]];
    free(size);
    return err;
}

static dt_err assign(fit *f)
{
    dt_phase_enter(f->s->phase, "k-means", "");
    return f->how->balanced ? assign_balanced(f) : dt_sid_nearest(f->s, f->p, f->b, f->next, f->distance);
}

/* A balanced assignment is optimal within 0.1 %, so it may be worse than the previous one, which is then kept. */
static dt_err iterate(fit *f, double *objective)
{
    const size_t nbytes = (size_t)f->p->n * sizeof *f->code;
    DT_TRY(dt_sid_book_set(f->s, f->b));
    DT_TRY(assign(f));
    memcpy(f->code, f->next, nbytes);
    *objective = objective_of(f);
    for (int64_t i = 0; i < f->how->max_iterations; i++) {
        DT_TRY(dt_fault("sid.kmeans"));
        DT_TRY(move_codes(f));
        DT_TRY(assign(f));
        const bool moved = memcmp(f->code, f->next, nbytes) != 0;
        const double now = objective_of(f);
        if (f->how->balanced && now > *objective) return DT_OK;
        memcpy(f->code, f->next, nbytes);
        *objective = now;
        if (!moved) return DT_OK;
    }
    return DT_OK;
}

dt_err dt_sid_kmeans_fit(const dt_sid *s, const dt_sid_kmeans *how, dt_sid_points *p, dt_sid_book *b, int32_t *code,
                         double *objective)
{
    fit f = {.s = s, .how = how, .p = p, .b = b};
    DT_CHECK(p->n >= b->n_codes, DT_ERR_DATA, "%lld items are too few for %lld different codes; use fewer codes",
             (long long)p->n, (long long)b->n_codes);
    dt_err err = dt_comm_agree(s->comm, fit_alloc(&f, code));
    if (err == DT_OK) err = seed(&f);
    if (err == DT_OK) err = iterate(&f, objective);
    fit_free(&f);
    return err;
}
