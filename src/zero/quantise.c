/* quantise.c - quantise a matrix to codes and scales (unit.h), from any source of weights.
 *
 * The matrix is split into lines: rows for int8, blocks for nf4. The codes of a line depend on its weights only. Each
 * line also yields one value: its scale, or its maximum |w|. Everything else is computed from these values of the whole
 * matrix, which the ranks exchange. A rank therefore reads only the lines whose codes it owns, each once. */
#include "dtrain/device/device.h"
#include "dtrain/device/nf4.h"
#include "zero_impl.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct quantise_job {
    dt_zero *z;
    const dt_matrix_source *from;
    const dt_tensor *t; /* the codes */
    const dt_coded *c;
    const dt_slice *charge, *owned; /* the slices of the codes */
    int64_t n_weights, line, n_lines;
    int64_t step, chunk; /* weights: the smallest unit that can be read, and how many are read at a time */
    float *w, *column;   /* [chunk]; column, if turned: one input as stored in the file */
    uint8_t *codes;      /* [chunk] */
    float *of_line;      /* [n_lines, rounded up to even]: zero for lines of other ranks */
} quantise_job;

static int64_t multiple_of_both(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y > 0) {
        const int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

static dt_err alloc(quantise_job *j)
{
    enum { CHUNK = 1 << 19 };
    const bool int8 = j->c->type == DT_I8;
    j->n_weights = j->c->n_out * j->c->n_in;
    j->line = int8 ? j->c->n_in : DT_NF4_BLOCK;
    j->n_lines = dt_ceil_div(j->n_weights, j->line);
    j->step = j->c->turned ? multiple_of_both(j->line, j->c->n_in) : j->line;
    j->chunk = dt_max_i64(CHUNK / j->step, 1) * j->step;
    j->w = malloc((size_t)j->chunk * sizeof *j->w);
    j->column = malloc((size_t)(j->chunk / j->c->n_in + 1) * sizeof *j->column);
    j->codes = malloc((size_t)j->chunk);
    j->of_line = calloc((size_t)(j->n_lines + j->n_lines % 2), sizeof *j->of_line);
    DT_CHECK(j->w && j->column && j->codes && j->of_line, DT_ERR_MEMORY, "out of memory to quantise tensor %s",
             j->t->name);
    return DT_OK;
}

/* Read weights first .. first+n-1 into w: whole rows, also if the file stores them as columns. */
static dt_err take(const quantise_job *j, int64_t first, int64_t n)
{
    if (!j->c->turned) return j->from->read(j->from->self, j->t, first, n, j->w);
    const int64_t n_in = j->c->n_in, row = first / n_in, rows = n / n_in;
    for (int64_t i = 0; i < n_in; i++) {
        DT_TRY(j->from->read(j->from->self, j->t, i * j->c->n_out + row, rows, j->column));
        for (int64_t k = 0; k < rows; k++) j->w[k * n_in + i] = j->column[k];
    }
    return DT_OK;
}

/* Compute the codes of line l of w [n]. Returns its scale or maximum. */
static float make_line(const quantise_job *j, int64_t l, int64_t n)
{
    const float *w = j->w + l * j->line;
    float scale;
    if (j->c->type != DT_I8)
        return dt_quantise_nf4_block(w, dt_min_i64(j->line, n - l * j->line), j->codes + l * j->line / 2);
    dt_quantise_row(w, j->line, (int8_t *)j->codes + l * j->line, &scale);
    return scale;
}

/* Row of the first non-finite value of a line. */
static int64_t row_of(const quantise_job *j, int64_t first, int64_t line)
{
    int64_t at = line * j->line;
    while (isfinite(j->w[at])) at++;
    return (first + at) / j->c->n_in;
}

/* Quantise w, which begins at weight `first`. Records the values of the lines that this rank is in charge of. */
static dt_err make_codes(const quantise_job *j, int64_t first, int64_t n)
{
    const int64_t n_lines = dt_ceil_div(n, j->line), lines = first / j->line, per = dt_weights_per_elem(j->t);
    int64_t bad = n_lines;
#pragma omp parallel for schedule(static) reduction(min : bad) if (n >= 1 << 14)
    for (int64_t l = 0; l < n_lines; l++) {
        const float number = make_line(j, l, n);
        const int64_t begin = (first + l * j->line) / per - j->charge->first;
        if (begin >= 0 && begin < j->charge->n) j->of_line[lines + l] = number;
        if (!isfinite(number) && l < bad) bad = l;
    }
    DT_CHECK(bad == n_lines, DT_ERR_DATA,
             "%s: tensor `%s`: row %" PRId64 " has non-finite values, which cannot be stored as %s", j->from->name,
             j->t->name, row_of(j, first, bad), dt_dtype_name(j->c->type));
    return DT_OK;
}

/* Store n elements of a tensor, starting at element `at`, as far as this rank owns them. */
static dt_err keep(dt_zero *z, const dt_slice *owned, int64_t at, int64_t n, const void *from)
{
    const int64_t lo = dt_max_i64(at, owned->first), hi = dt_min_i64(at + n, owned->first + owned->n);
    const size_t size = dt_dtype_size(dt_zero_state_dtype(z, DT_STATE_PARAM, owned));
    if (lo >= hi) return DT_OK;
    return dt_zero_state_write(z, DT_STATE_PARAM, owned, lo - owned->first, hi - lo,
                               (const char *)from + (size_t)(lo - at) * size);
}

static dt_err make_own(const quantise_job *j)
{
    const int64_t per = dt_weights_per_elem(j->t), begin = j->owned->first * per;
    int64_t end = dt_min_i64((j->owned->first + j->owned->n) * per, j->n_weights);
    end = dt_min_i64(dt_ceil_div(end, j->step) * j->step, j->n_weights);
    for (int64_t first = begin / j->step * j->step, n; first < end && j->owned->n > 0; first += n) {
        n = dt_min_i64(j->chunk, end - first);
        DT_TRY(dt_phase_poll(j->z->phase));
        DT_TRY(take(j, first, n));
        DT_TRY(make_codes(j, first, n));
        DT_TRY(keep(j->z, j->owned, first / per, dt_ceil_div(n, per), j->codes));
    }
    return DT_OK;
}

static const dt_slice *owned_slice(const quantise_job *j, int tensor) { return j->owned + (tensor - j->c->codes); }

/* Store the quantised maxima. blocks [n_lines] and groups [dt_nf4_groups, 2] are scratch; pairs [dt_nf4_pairs, 2]
 * repeats the groups. */
static dt_err keep_maxima(const quantise_job *j, uint8_t *blocks, float *groups, float *pairs)
{
    const int64_t n = dt_nf4_pairs(j->n_weights, j->c->finer);
    DT_CHECK(blocks && groups && pairs, DT_ERR_MEMORY, "out of memory to quantise tensor %s", j->t->name);
    dt_quantise_nf4_maxima(j->of_line, j->n_lines, blocks, groups);
    for (int64_t i = 0; i < n; i++) memcpy(pairs + 2 * i, groups + 2 * (i >> j->c->finer), 2 * sizeof *pairs);
    DT_TRY(keep(j->z, owned_slice(j, j->c->blocks), 0, j->n_lines, blocks));
    return keep(j->z, owned_slice(j, j->c->scales), 0, 2 * n, pairs);
}

static dt_err keep_rest(const quantise_job *j)
{
    if (j->c->type == DT_I8) return keep(j->z, owned_slice(j, j->c->scales), 0, j->n_lines, j->of_line);
    if (owned_slice(j, j->c->blocks)->n == 0 && owned_slice(j, j->c->scales)->n == 0) return DT_OK;
    uint8_t *blocks = malloc((size_t)j->n_lines);
    float *groups = malloc((size_t)dt_nf4_groups(j->n_weights) * 2 * sizeof *groups),
          *pairs = malloc((size_t)dt_nf4_pairs(j->n_weights, j->c->finer) * 2 * sizeof *pairs);
    const dt_err err = keep_maxima(j, blocks, groups, pairs);
    free(blocks);
    free(groups);
    free(pairs);
    return err;
}

static dt_err quantise(quantise_job *j, dt_err err)
{
    dt_comm *comm = j->z->comm;
    if (err == DT_OK) err = alloc(j);
    if (err == DT_OK) err = make_own(j);
    DT_TRY(dt_comm_agree(comm, err));
    DT_TRY(
        dt_comm_join_host(dt_comm_all(comm), j->of_line, (size_t)(j->n_lines + j->n_lines % 2) * sizeof *j->of_line));
    return dt_comm_agree(comm, keep_rest(j));
}

dt_err dt_zero_quantise(dt_zero *z, int slice, const dt_matrix_source *from, dt_err own)
{
    const dt_tensor *t = dt_zero_tensor(z, &z->slices[slice]);
    DT_EXPECT(t->split_whole == 0);
    quantise_job j = {
        .z = z, .from = from, .t = t, .c = &t->coded, .charge = &z->slices[slice], .owned = &z->owned[slice]};
    const dt_err err = quantise(&j, own);
    free(j.w);
    free(j.column);
    free(j.codes);
    free(j.of_line);
    return err;
}
