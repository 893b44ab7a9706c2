/* init.c - the random start: numbers follow from seed, name and place in the tensor, so they are the same for any
 * number of ranks. What is stored as codes is that of the plain weight, row by row. */
#include "dtrain/device.h"
#include "zero_impl.h"
#include <stdlib.h>
#include <string.h>

/** FNV-1a: a tensor's stream follows from its name, so neither its number nor its unit matter. */
static uint64_t name_hash(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h;
}

static void make_values(uint64_t key, const dt_tensor *t, int64_t first, int64_t n, float *values)
{
    if (t->init_std > 0)
        dt_rng_normal(key, name_hash(t->name), first, n, t->init_std, values);
    else if (t->init_bound > 0)
        dt_rng_uniform(key, name_hash(t->name), first, n, t->init_bound, values);
    else
        for (int64_t i = 0; i < n; i++) values[i] = t->init_value;
}

static dt_err init_piece(dt_zero *z, uint64_t key, const dt_piece *p)
{
    const dt_tensor *t = dt_zero_tensor(z, p);
    const dt_dtype dtype = dt_zero_state_dtype(z, DT_STATE_PARAM, p);
    float *values = z->host.ptr;
    for (int64_t done = 0; done < p->n; done += ZERO_HOST_CHUNK) {
        const int64_t n = p->n - done < ZERO_HOST_CHUNK ? p->n - done : ZERO_HOST_CHUNK;
        make_values(key, t, p->first + done, n, values);
        if (dtype != DT_F32) /* in place: 16-bit element i lies at or before float i */
            for (int64_t i = 0; i < n; i++) {
                const float x = values[i];
                const uint16_t rounded = dtype == DT_F16 ? dt_f16_from_float(x) : dt_bf16_from_float(x);
                memcpy((char *)values + 2 * i, &rounded, 2);
            }
        DT_TRY(zero_move(z, DT_STATE_PARAM, p, done, n, values, true));
    }
    return DT_OK;
}

/* ---- codes and scales -------------------------------------------------------------------------------------------- */

/** One row of a weight while it becomes codes. */
typedef struct row_work {
    float *w;  /* [n_in] */
    int8_t *q; /* [n_in] */
} row_work;

/** codes: the table's entry. */
static void quantise_row(uint64_t key, const dt_tensor *codes, int64_t row, const row_work *work, float *scale)
{
    const int64_t n_out = codes->shape[0], n_in = codes->shape[1];
    if (!codes->turned) make_values(key, codes, row * n_in, n_in, work->w);
    for (int64_t i = 0; i < n_in && codes->turned; i++) make_values(key, codes, i * n_out + row, 1, work->w + i);
    dt_quantise_row(work->w, n_in, work->q, scale);
}

static dt_err init_codes(dt_zero *z, uint64_t key, const dt_piece *p, const row_work *work)
{
    const dt_tensor *t = dt_zero_tensor(z, p);
    const int64_t n_in = t->shape[1], end = p->first + p->n;
    float scale;
    for (int64_t at = p->first, next; at < end; at = next) {
        const int64_t row = at / n_in;
        next = dt_min_i64((row + 1) * n_in, end);
        quantise_row(key, t, row, work, &scale);
        DT_TRY(zero_move(z, DT_STATE_PARAM, p, at - p->first, next - at, work->q + (at - row * n_in), true));
    }
    return DT_OK;
}

static dt_err init_scales(dt_zero *z, uint64_t key, const dt_piece *p, const row_work *work)
{
    const dt_tensor *codes = &dt_zero_unit(z, p)->tensors[dt_zero_tensor(z, p)->pair];
    float *scales = z->host.ptr;
    for (int64_t done = 0; done < p->n; done += ZERO_HOST_CHUNK) {
        const int64_t n = dt_min_i64(ZERO_HOST_CHUNK, p->n - done);
        for (int64_t r = 0; r < n; r++) quantise_row(key, codes, p->first + done + r, work, &scales[r]);
        DT_TRY(zero_move(z, DT_STATE_PARAM, p, done, n, scales, true));
    }
    return DT_OK;
}

static dt_err init_quantised(dt_zero *z, uint64_t key, const dt_piece *p)
{
    const dt_tensor *t = dt_zero_tensor(z, p), *codes = t->part == DT_CODES ? t : &dt_zero_unit(z, p)->tensors[t->pair];
    const size_t n_in = (size_t)codes->shape[1];
    const row_work work = {malloc(n_in * sizeof *work.w), malloc(n_in)};
    dt_err err = work.w && work.q ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory for a row of tensor %s", codes->name);
    if (err == DT_OK) err = (t->part == DT_CODES ? init_codes : init_scales)(z, key, p, &work);
    free(work.w);
    free(work.q);
    return err;
}

/* ---- all tensors ------------------------------------------------------------------------------------------------- */

static bool any(const dt_tensor *t)
{
    (void)t;
    return true;
}

dt_err dt_zero_init_random(dt_zero *z, uint64_t seed) { return dt_zero_init_some(z, seed, any); }

dt_err dt_zero_init_some(dt_zero *z, uint64_t seed, bool (*is_one)(const dt_tensor *t))
{
    const uint64_t key = dt_rng_key(seed, DT_RNG_INIT);
    const zero_phase before = zero_enter(z, "init", "");
    dt_err err = zero_before_write(z);
    for (int i = 0; i < z->n_pieces && err == DT_OK; i++) {
        const dt_tensor *t = dt_zero_tensor(z, &z->owned[i]);
        if (!is_one(t)) continue;
        zero_enter(z, "init", t->name);
        err = (t->part >= DT_CODES ? init_quantised : init_piece)(z, key, &z->owned[i]);
    }
    zero_leave(z, before);
    return zero_first_err(err, dt_zero_state_written(z));
}
