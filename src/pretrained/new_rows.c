/* new_rows.c - rows of new tokens. Each rank owns a range of elements of the old rows; it may begin and end within a
 * row. */
#include "new_rows.h"
#include "dtrain/model/model.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t new_rows_needed(int64_t n, const dt_new_tokens *t)
{
    return t ? dt_max_i64(n, (int64_t)t->first_id + t->n_added) : n;
}

/* Special tokens that the tokenizer's files list by name only may have no rows yet. */
int64_t new_rows_first(int64_t n, const dt_new_tokens *t) { return t ? dt_min_i64(n, t->first_id) : n; }

void new_rows_grow(dt_tensor *tensor, const dt_new_tokens *t)
{
    if (!t || !dt_model_is_vocabulary(tensor)) return;
    const int64_t row_len = tensor->n_elems / tensor->shape[0];
    tensor->shape[0] = new_rows_needed(tensor->shape[0], t);
    tensor->n_elems = tensor->shape[0] * row_len;
}

/* One pass over this rank's elements of old rows: finds the maximum, or sums the columns. */
typedef struct pass {
    const dt_stored_slot *s;
    dt_chunks *chunks;
    int64_t end; /* end of the old rows' elements */
    double largest;
    int shift;
    uint64_t *sum; /* [row length] of rint(x 2^shift), modulo 2^64; NULL: find the maximum */
} pass;

static void look_at(pass *p, const float *x, int64_t first, int64_t n)
{
    const int64_t row_len = p->s->tensor->shape[1];
    const double units = ldexp(1, p->shift);
    for (int64_t i = 0; i < n && !p->sum; i++)
        if (!(fabs(x[i]) <= p->largest)) p->largest = isfinite(x[i]) ? fabs(x[i]) : INFINITY;
    for (int64_t i = 0, c = first % row_len; i < n && p->sum; i++) {
        p->sum[c] += (uint64_t)(int64_t)rint(x[i] * units);
        c = c + 1 < row_len ? c + 1 : 0;
    }
}

static dt_err go_over(pass *p)
{
    const dt_slice *own = p->s->slice;
    dt_zero *z = p->s->of->zero;
    const dt_st_type kept = dt_st_type_of(dt_zero_state_dtype(z, p->s->state, own));
    const int64_t step = DT_STORED_BUFFER / (int64_t)sizeof(float), end = dt_min_i64(own->first + own->n, p->end);
    for (int64_t at = own->first; at < end; at += step) {
        const int64_t n = dt_min_i64(step, end - at);
        DT_TRY(dt_zero_state_read(z, p->s->state, own, at - own->first, n, p->chunks->raw));
        dt_st_convert(p->chunks->raw, kept, p->chunks->converted, DT_ST_F32, n);
        look_at(p, (const float *)(const void *)p->chunks->converted, at, n);
    }
    return DT_OK;
}

static dt_err check(const pass *p, const dt_new_tokens *t)
{
    const dt_tensor *tensor = p->s->tensor;
    DT_CHECK(t->n_own > 0 && t->n_own <= tensor->shape[0], DT_ERR_DATA,
             "tensor `%s` has %lld rows, but its tokenizer has ids up to %lld", tensor->name,
             (long long)tensor->shape[0], (long long)t->n_own - 1);
    return DT_OK;
}

/* Divide the sums to get the mean. */
static dt_err divide(const pass *p, int64_t n_rows, float **row)
{
    const int64_t row_len = p->s->tensor->shape[1];
    *row = malloc((size_t)row_len * sizeof **row);
    DT_CHECK(*row, DT_ERR_MEMORY, "out of memory for a row of `%s`", p->s->tensor->name);
    for (int64_t c = 0; c < row_len; c++)
        (*row)[c] = (float)(ldexp((double)(int64_t)p->sum[c], -p->shift) / (double)n_rows);
    return DT_OK;
}

/* Shift at which the sum of n_rows terms of magnitude up to `largest` stays below 2^62. */
static int shift_for(double largest, int64_t n_rows)
{
    int exponent, of_rows;
    frexp(largest, &exponent);
    frexp((double)n_rows, &of_rows);
    return 62 - exponent - of_rows;
}

dt_err new_rows_mean(dt_comm *comm, const dt_stored_slot *s, const dt_new_tokens *t, dt_chunks *chunks, float **row)
{
    const int64_t row_len = s->tensor->shape[1], n_old = new_rows_first(s->tensor->shape[0], t);
    pass p = {.s = s, .chunks = chunks, .end = n_old * row_len};
    uint64_t *sum = calloc((size_t)row_len, sizeof *sum);
    dt_err err = sum ? check(&p, t) : dt_fail(DT_ERR_MEMORY, "out of memory for sums of `%s`", s->tensor->name);
    if (err == DT_OK) err = go_over(&p);
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_reduce_host_f64(dt_comm_all(comm), &p.largest, 1, DT_MAX);
    if (err == DT_OK && isinf(p.largest)) /* the same on all ranks */
        err = dt_fail(DT_ERR_DATA, "tensor `%s`: the mean for new rows is undefined, because the values are not finite",
                      s->tensor->name);
    p.sum = sum;
    p.shift = shift_for(p.largest, n_old);
    if (err == DT_OK) err = dt_comm_agree(comm, go_over(&p));
    if (err == DT_OK) err = dt_comm_sum_host_u64(dt_comm_all(comm), sum, (int)row_len);
    if (err == DT_OK) err = dt_comm_agree(comm, divide(&p, n_old, row));
    free(sum);
    return err;
}
