/* load_rows.c - quantised tensors from a file of floats: reads the weights that zero requests. */
#include "load.h"

/* Checksum, in file order, of those of these weights that have codes owned by this rank. Each weight is counted by
 * exactly one rank. For transposed weights, consecutive elements of the file are n_in apart among the codes. */
static uint64_t checksum_of(const dt_stored_slot *s, const char *elems, int64_t first, int64_t n, size_t size)
{
    const dt_coded *c = &s->tensor->coded;
    const int64_t per = dt_weights_per_elem(s->tensor), begin = s->slice->first * per, end = begin + s->slice->n * per;
    const dt_slice charge = {.first = begin, .n = end - begin};
    if (s->slice->n == 0) return 0;
    if (!c->turned) return load_checksum(&charge, elems, first, n, first, size);
    const int64_t i = first / c->n_out, row = first % c->n_out,
                  lo = dt_max_i64(row, (begin - i + c->n_in - 1) / c->n_in),
                  hi = dt_min_i64(row + n, (end - i + c->n_in - 1) / c->n_in);
    return lo < hi ? dt_checksum(elems + (size_t)(lo - row) * size, first + lo - row, hi - lo, size) : 0;
}

typedef struct rows {
    load_job *j;
    int slot;
} rows;

static dt_err read_weights(void *self, const dt_tensor *codes, int64_t first, int64_t n, float *w)
{
    const rows *r = self;
    load_job *j = r->j;
    const dt_stored_slot *s = &j->slots[r->slot];
    const dt_stored_location *p = &j->map.locations[r->slot];
    const int64_t step = DT_STORED_BUFFER / (int64_t)sizeof(float);
    const size_t size = dt_st_type_size((dt_st_type)p->type);
    dt_tensor tensor;
    const dt_stored_slot plain = dt_stored_plain(s, &tensor);
    (void)codes;
    for (int64_t at = 0; at < n; at += step) {
        const int64_t some = dt_min_i64(step, n - at);
        DT_TRY(load_fetch(j, &plain, p, first + at, some, j->chunks->raw));
        if (p->has_checksum || s->of->base) j->sums[r->slot] += checksum_of(s, j->chunks->raw, first + at, some, size);
        dt_st_convert(j->chunks->raw, (dt_st_type)p->type, w + at, DT_ST_F32, some);
    }
    return DT_OK;
}

/* Checksum of the codes, blocks and scales of a matrix that this rank owns. */
static dt_err sum_matrix(load_job *j, int i, uint64_t *sum)
{
    const dt_coded *c = &j->slots[i].tensor->coded;
    const int tensors[] = {c->codes, c->blocks, c->scales};
    *sum = 0;
    for (int k = 0; k < 3; k++) {
        if (tensors[k] < 0) continue;
        const dt_stored_slot *s = &j->slots[i + (tensors[k] - c->codes)];
        const int64_t size = (int64_t)dt_dtype_size(ckpt_slot_dtype(s)), step = DT_STORED_BUFFER / size;
        for (int64_t at = 0; at < s->owned->n; at += step) {
            const int64_t n = dt_min_i64(step, s->owned->n - at);
            DT_TRY(dt_zero_state_read(s->of->zero, s->state, s->owned, at, n, j->chunks->raw));
            *sum = dt_mix64(*sum + dt_checksum(j->chunks->raw, at, n, (size_t)size));
        }
    }
    return DT_OK;
}

/* A frozen matrix must be as before: the file's weights give the codes that are in memory. */
static dt_err check_matrix(load_job *j, int i, uint64_t before)
{
    const dt_stored_slot *s = &j->slots[i];
    uint64_t now;
    DT_TRY(sum_matrix(j, i, &now));
    return now == before ? DT_OK : load_fail_changed(j, s, &j->map.locations[i]);
}

dt_err load_quantised(load_job *j, int i, dt_err own)
{
    const dt_stored_slot *s = &j->slots[i];
    rows r = {j, i};
    const dt_matrix_source from = {.self = &r, .name = j->files[j->map.locations[i].file], .read = read_weights};
    const dt_coded *c = &s->tensor->coded;
    uint64_t before = 0;
    if (s->of->keeps_frozen && own == DT_OK) own = sum_matrix(j, i, &before);
    const dt_err err = dt_zero_quantise(s->of->zero, (int)(s->slice - dt_zero_slices(s->of->zero)), &from, own);
    if (c->blocks >= 0) j->sums[i + (c->blocks - c->codes)] = j->sums[i]; /* computed from the same weight */
    j->sums[i + (c->scales - c->codes)] = j->sums[i];
    if (err != DT_OK || !s->of->keeps_frozen) return err;
    return dt_comm_agree(j->comm, check_matrix(j, i, before));
}
