/* points.c - blocks of rows, codebooks, and the nearest code.
 *
 * argmin_k |x - e_k|^2 = argmax_k (x e_k^T - |e_k|^2/2): one GEMM with a bias, then the device's argmax of
 * token logits. Norms of rows are summed in double on the host, once per level. */
#include "points.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t dt_sid_blocks(const dt_sid *s, int64_t n) { return dt_ceil_div(n, s->block); }
int64_t dt_sid_rounds(const dt_sid *s, int64_t n) { return dt_ceil_div(dt_sid_blocks(s, n), s->comm->mesh.data.size); }

int64_t sid_block_of(const dt_sid *s, int64_t n, int64_t round, int64_t *first)
{
    *first = (round * s->comm->mesh.data.size + s->comm->mesh.data.rank) * s->block;
    return *first >= n ? 0 : dt_min_i64(s->block, n - *first);
}

float *sid_rows_of(const dt_sid *s, const dt_sid_points *p, int64_t round)
{
    return (float *)p->rows.ptr + round * s->block * p->width;
}

dt_err sid_wait(const dt_sid *s, dt_err err)
{
    const dt_err waited = s->dev->ops->stream_sync(s->dev, s->stream);
    return err == DT_OK ? waited : err;
}

/* The rank that holds an item's row, and its index there. */
static int64_t row_of(const dt_sid *s, int64_t item, int *rank)
{
    const int64_t b = item / s->block, R = s->comm->mesh.data.size;
    *rank = (int)(b % R);
    return b / R * s->block + item % s->block;
}

static size_t row_nbytes(const dt_sid_points *p, int64_t n) { return (size_t)(n * p->width) * sizeof(float); }

/* ---- points ------------------------------------------------------------------------------------------------------ */

dt_err dt_sid_points_alloc(const dt_sid *s, dt_sid_points *p, int64_t n, int64_t width)
{
    *p = (dt_sid_points){.n = n, .width = width};
    const size_t block = row_nbytes(p, s->block);
    DT_TRY(dt_buf_alloc_zeroed(&p->rows, s->dev, DT_ON_DEVICE, (size_t)dt_sid_rounds(s, n) * block, DT_MEM_DATA));
    DT_TRY(dt_buf_alloc(&p->scratch, s->dev, DT_ON_DEVICE, block, DT_MEM_DATA));
    p->norm = calloc((size_t)n, sizeof *p->norm);
    p->staging = malloc(block);
    dt_ledger_add(s->dev->ledger, DT_MEM_DATA, DT_ON_HOST, (size_t)n * sizeof *p->norm + block);
    DT_CHECK(p->norm && p->staging, DT_ERR_MEMORY, "out of memory for %lld rows of %lld values", (long long)n,
             (long long)width);
    return DT_OK;
}

dt_err dt_sid_points_read(const dt_sid *s, dt_sid_points *p, dt_matrix_file *from)
{
    for (int64_t round = 0, first; round < dt_sid_rounds(s, p->n); round++) {
        const int64_t m = sid_block_of(s, p->n, round, &first);
        dt_phase_enter(s->phase, "read", from->path);
        DT_TRY(dt_fault("sid.read"));
        if (m == 0) continue;
        DT_TRY(dt_matrix_file_read(from, first, m, p->staging));
        DT_TRY(s->dev->ops->copy(s->dev, sid_rows_of(s, p, round), p->staging, row_nbytes(p, m), s->stream));
        DT_TRY(s->dev->ops->stream_sync(s->dev, s->stream));
    }
    return DT_OK;
}

static dt_err measure_own(const dt_sid *s, dt_sid_points *p)
{
    for (int64_t round = 0, first; round < dt_sid_rounds(s, p->n); round++) {
        const int64_t m = sid_block_of(s, p->n, round, &first);
        if (m == 0) continue;
        DT_TRY(s->dev->ops->copy(s->dev, p->staging, sid_rows_of(s, p, round), row_nbytes(p, m), s->stream));
        DT_TRY(s->dev->ops->stream_sync(s->dev, s->stream));
        for (int64_t i = 0; i < m; i++) {
            const float *x = p->staging + i * p->width;
            double sum = 0;
            for (int64_t c = 0; c < p->width; c++) sum += (double)x[c] * x[c];
            p->norm[first + i] = sum;
        }
    }
    return DT_OK;
}

dt_err dt_sid_points_measure(const dt_sid *s, dt_sid_points *p)
{
    memset(p->norm, 0, (size_t)p->n * sizeof *p->norm);
    DT_TRY(dt_comm_agree(s->comm, measure_own(s, p)));
    return dt_comm_join_host(&s->comm->mesh.data, p->norm, (size_t)p->n * sizeof *p->norm);
}

dt_err dt_sid_points_subtract(const dt_sid *s, dt_sid_points *p, const void *codebook, const int32_t *code)
{
    dt_buf index = {0};
    const dt_device_ops *ops = s->dev->ops;
    DT_TRY(dt_buf_alloc(&index, s->dev, DT_ON_DEVICE, (size_t)s->block * sizeof *code, DT_MEM_DATA));
    dt_err err = DT_OK;
    for (int64_t round = 0, first; round < dt_sid_rounds(s, p->n) && err == DT_OK; round++) {
        const int64_t m = sid_block_of(s, p->n, round, &first), n = m * p->width;
        if (m == 0) continue;
        void *rows = sid_rows_of(s, p, round), *e = p->scratch.ptr;
        err = ops->copy(s->dev, index.ptr, code + first, (size_t)m * sizeof *code, s->stream);
        if (err == DT_OK) err = ops->gather_rows(s->dev, codebook, index.ptr, e, m, p->width, DT_F32, s->stream);
        if (err == DT_OK) err = ops->scale(s->dev, e, -1, e, DT_F32, n, s->stream);
        if (err == DT_OK) err = ops->add(s->dev, rows, e, rows, DT_F32, n, s->stream);
        err = sid_wait(s, err);
    }
    dt_buf_free(&index);
    return err;
}

void dt_sid_points_free(const dt_sid *s, dt_sid_points *p)
{
    if (p->n == 0) return;
    dt_ledger_sub(s->dev->ledger, DT_MEM_DATA, DT_ON_HOST,
                  p->scratch.ptr ? (size_t)p->n * sizeof *p->norm + row_nbytes(p, s->block) : 0);
    dt_buf_free(&p->rows);
    dt_buf_free(&p->scratch);
    free(p->norm);
    free(p->staging);
    *p = (dt_sid_points){0};
}

dt_err sid_fetch_row(const dt_sid *s, const dt_sid_points *p, int64_t item, float *out)
{
    int rank;
    const int64_t row = row_of(s, item, &rank);
    const size_t nbytes = row_nbytes(p, 1);
    dt_err err = DT_OK;
    if (rank == s->comm->mesh.data.rank) {
        err = s->dev->ops->copy(s->dev, out, (float *)p->rows.ptr + row * p->width, nbytes, s->stream);
        err = sid_wait(s, err);
    }
    DT_TRY(dt_comm_agree(s->comm, err));
    return dt_comm_broadcast_host(s->comm, out, nbytes, rank);
}

/* ---- codebooks --------------------------------------------------------------------------------------------------- */

static size_t book_nbytes(int64_t n_codes, int64_t width) { return (size_t)(n_codes * (width + 1)) * sizeof(float); }

dt_err dt_sid_book_alloc(const dt_sid *s, dt_sid_book *b, int64_t width)
{
    const int64_t K = s->n_codes;
    *b = (dt_sid_book){.n_codes = K, .width = width};
    b->host = calloc((size_t)(K * (width + 1)), sizeof *b->host);
    DT_CHECK(b->host, DT_ERR_MEMORY, "out of memory for a codebook of %lld x %lld", (long long)K, (long long)width);
    b->bias_host = b->host + K * width;
    dt_ledger_add(s->dev->ledger, DT_MEM_PARAMS, DT_ON_HOST, book_nbytes(K, width));
    DT_TRY(dt_buf_alloc(&b->rows, s->dev, DT_ON_DEVICE, (size_t)(K * width) * sizeof(float), DT_MEM_PARAMS));
    return dt_buf_alloc(&b->bias, s->dev, DT_ON_DEVICE, (size_t)K * sizeof(float), DT_MEM_PARAMS);
}

dt_err dt_sid_book_set(const dt_sid *s, dt_sid_book *b)
{
    for (int64_t k = 0; k < b->n_codes; k++) {
        double sum = 0;
        for (int64_t c = 0; c < b->width; c++) sum += (double)b->host[k * b->width + c] * b->host[k * b->width + c];
        b->bias_host[k] = (float)(-sum / 2);
    }
    DT_TRY(s->dev->ops->copy(s->dev, b->rows.ptr, b->host, b->rows.nbytes, s->stream));
    DT_TRY(s->dev->ops->copy(s->dev, b->bias.ptr, b->bias_host, b->bias.nbytes, s->stream));
    return s->dev->ops->stream_sync(s->dev, s->stream);
}

void dt_sid_book_free(dt_sid_book *b)
{
    if (b->host && b->rows.dev)
        dt_ledger_sub(b->rows.dev->ledger, DT_MEM_PARAMS, DT_ON_HOST, book_nbytes(b->n_codes, b->width));
    dt_buf_free(&b->rows);
    dt_buf_free(&b->bias);
    free(b->host);
    *b = (dt_sid_book){0};
}

/* ---- distances --------------------------------------------------------------------------------------------------- */

/* score[m, K] = x e^T - |e|^2/2. The bits of a row do not depend on other rows. */
static dt_err scores(const dt_sid *s, const dt_sid_book *b, const void *x, int64_t m, void *score)
{
    const dt_matmul mm = {.m = m,
                          .n = b->n_codes,
                          .k = b->width,
                          .trans_b = true,
                          .lda = b->width,
                          .ldb = b->width,
                          .ldc = b->n_codes,
                          .dt = DT_F32,
                          .c_dtype = DT_F32,
                          .batch_invariant = true,
                          .bias = b->bias.ptr};
    return s->dev->ops->matmul(s->dev, &mm, x, b->rows.ptr, score, s->stream);
}

dt_err sid_choice_alloc(const dt_sid *s, sid_choice *c)
{
    const size_t n = (size_t)s->block;
    *c = (sid_choice){0};
    DT_TRY(dt_buf_alloc(&c->score, s->dev, DT_ON_DEVICE, n * (size_t)s->n_codes * sizeof(float), DT_MEM_ACTIVATIONS));
    DT_TRY(dt_buf_alloc(&c->token, s->dev, DT_ON_DEVICE, n * sizeof(int32_t), DT_MEM_ACTIVATIONS));
    DT_TRY(dt_buf_alloc(&c->logit, s->dev, DT_ON_DEVICE, n * sizeof(float), DT_MEM_ACTIVATIONS));
    c->token_host = malloc(n * sizeof *c->token_host);
    c->logit_host = malloc(n * sizeof *c->logit_host);
    DT_CHECK(c->token_host && c->logit_host, DT_ERR_MEMORY, "out of memory for a block's codes");
    return DT_OK;
}

void sid_choice_free(sid_choice *c)
{
    dt_buf_free(&c->score);
    dt_buf_free(&c->token);
    dt_buf_free(&c->logit);
    free(c->token_host);
    free(c->logit_host);
}

dt_err sid_choose(const dt_sid *s, const dt_sid_book *b, const void *x, int64_t m, sid_choice *c)
{
    const dt_token_rows rows = {.n_rows = m, .n_vocab = b->n_codes, .logits_ld = b->n_codes};
    const dt_device_ops *ops = s->dev->ops;
    DT_TRY(scores(s, b, x, m, c->score.ptr));
    DT_TRY(ops->top_tokens(s->dev, &rows, c->score.ptr, 1, c->token.ptr, c->logit.ptr, s->stream));
    DT_TRY(ops->copy(s->dev, c->token_host, c->token.ptr, (size_t)m * sizeof(int32_t), s->stream));
    DT_TRY(ops->copy(s->dev, c->logit_host, c->logit.ptr, (size_t)m * sizeof(float), s->stream));
    return ops->stream_sync(s->dev, s->stream);
}

/* A code and a distance, packed for one exchange. */
struct found {
    int32_t code;
    float distance;
};

static dt_err find_own(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, struct found *found)
{
    sid_choice c;
    dt_err err = sid_choice_alloc(s, &c);
    for (int64_t round = 0, first; round < dt_sid_rounds(s, p->n) && err == DT_OK; round++) {
        const int64_t m = sid_block_of(s, p->n, round, &first);
        if (m > 0) err = sid_choose(s, b, sid_rows_of(s, p, round), m, &c);
        for (int64_t i = 0; i < m && err == DT_OK; i++) {
            const double d = p->norm[first + i] - 2 * (double)c.logit_host[i];
            found[first + i] = (struct found){c.token_host[i], d > 0 ? (float)d : 0};
            if (c.token_host[i] < 0)
                err = dt_fail(DT_ERR_NONFINITE, "item %lld has no nearest code, because its distances are not finite",
                              (long long)(first + i));
        }
    }
    sid_choice_free(&c);
    return err;
}

dt_err dt_sid_nearest(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, int32_t *code, float *distance)
{
    const size_t nbytes = (size_t)p->n * sizeof(struct found);
    struct found *found = calloc((size_t)p->n, sizeof *found);
    dt_err err = found ? find_own(s, p, b, found) : dt_fail(DT_ERR_MEMORY, "out of memory for %zu bytes", nbytes);
    if ((err = dt_comm_agree(s->comm, err)) == DT_OK) err = dt_comm_join_host(&s->comm->mesh.data, found, nbytes);
    for (int64_t i = 0; i < p->n && err == DT_OK; i++) code[i] = found[i].code, distance[i] = found[i].distance;
    free(found);
    return err;
}

/* List this rank's items among item[0 .. n), starting at *at, at most one block: their positions in the
 * list and their rows. */
static int64_t own_items(const dt_sid *s, const int64_t *item, int64_t n, int64_t *at, int64_t *place, int32_t *row)
{
    int64_t m = 0;
    for (; *at < n && m < s->block; ++*at) {
        int rank;
        const int64_t i = row_of(s, item ? item[*at] : *at, &rank);
        if (rank != s->comm->mesh.data.rank) continue;
        place[m] = *at;
        row[m++] = (int32_t)i;
    }
    return m;
}

static dt_err own_distances(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, const int64_t *item,
                            int64_t n, float *cost)
{
    const int64_t K = b->n_codes;
    const dt_device_ops *ops = s->dev->ops;
    sid_choice c; /* tokens are indices of rows */
    int64_t *place = malloc((size_t)s->block * sizeof *place), m, at = 0;
    float *host = malloc((size_t)(s->block * K) * sizeof *host);
    dt_err err = sid_choice_alloc(s, &c);
    if (err == DT_OK && !(place && host)) err = dt_fail(DT_ERR_MEMORY, "out of memory for a block's distances");
    while (err == DT_OK && (m = own_items(s, item, n, &at, place, c.token_host)) > 0) {
        err = ops->copy(s->dev, c.token.ptr, c.token_host, (size_t)m * sizeof *c.token_host, s->stream);
        if (err == DT_OK)
            err = ops->gather_rows(s->dev, p->rows.ptr, c.token.ptr, p->scratch.ptr, m, p->width, DT_F32, s->stream);
        if (err == DT_OK) err = scores(s, b, p->scratch.ptr, m, c.score.ptr);
        if (err == DT_OK) err = ops->copy(s->dev, host, c.score.ptr, (size_t)(m * K) * sizeof *host, s->stream);
        err = sid_wait(s, err);
        for (int64_t i = 0; i < m && err == DT_OK; i++) {
            const double norm = p->norm[item ? item[place[i]] : place[i]];
            for (int64_t k = 0; k < K; k++) {
                const double d = norm - 2 * (double)host[i * K + k];
                cost[place[i] * K + k] = d > 0 ? (float)d : 0;
            }
        }
    }
    sid_choice_free(&c);
    free(place);
    free(host);
    return err;
}

dt_err dt_sid_distances(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, const int64_t *item,
                        int64_t n_items, float *cost)
{
    const size_t nbytes = (size_t)(n_items * b->n_codes) * sizeof *cost;
    memset(cost, 0, (nbytes + 7) / 8 * 8);
    DT_TRY(dt_comm_agree(s->comm, own_distances(s, p, b, item, n_items, cost)));
    return dt_comm_join_host(&s->comm->mesh.data, cost, (nbytes + 7) / 8 * 8);
}
