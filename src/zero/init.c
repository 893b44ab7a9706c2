/* init.c - random initialisation. Each value depends only on the seed, the tensor's name and the element's index, not
 * on the number of ranks. Codes are computed from the plain initial weight (quantise.c). */
#include "zero_impl.h"
#include <string.h>

/* FNV-1a */
uint64_t zero_name_hash(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h;
}

static void make_values(uint64_t key, const dt_tensor *t, int64_t first, int64_t n, float *values)
{
    if (t->init_std > 0)
        dt_rng_normal(key, zero_name_hash(t->name), first, n, t->init_std, values);
    else if (t->init_bound > 0)
        dt_rng_uniform(key, zero_name_hash(t->name), first, n, t->init_bound, values);
    else
        for (int64_t i = 0; i < n; i++) values[i] = t->init_value;
}

/** Values of a part: those of the same elements of the whole tensor. */
static void make_part(uint64_t key, const dt_tensor *t, int64_t first, int64_t n, float *values)
{
    for (int64_t done = 0; done < n;) {
        const dt_tensor_run run = dt_tensor_run_of(t, first + done, n - done);
        make_values(key, t, run.whole, run.n, values + done);
        done += run.n;
    }
}

static dt_err init_slice(dt_zero *z, uint64_t key, const dt_slice *p)
{
    const dt_tensor *t = dt_zero_tensor(z, p);
    const dt_dtype dtype = dt_zero_state_dtype(z, DT_STATE_PARAM, p);
    float *values = z->host.ptr;
    for (int64_t done = 0; done < p->n; done += ZERO_HOST_CHUNK) {
        const int64_t n = p->n - done < ZERO_HOST_CHUNK ? p->n - done : ZERO_HOST_CHUNK;
        make_part(key, t, p->first + done, n, values);
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

static dt_err sample(void *self, const dt_tensor *t, int64_t first, int64_t n, float *w)
{
    make_values(*(uint64_t *)self, t, first, n, w);
    return DT_OK;
}

dt_err dt_zero_init_random(dt_zero *z, uint64_t seed) { return dt_zero_init_some(z, seed, NULL); }

dt_err dt_zero_init_some(dt_zero *z, uint64_t seed, bool (*is_one)(const dt_tensor *t))
{
    uint64_t key = dt_rng_key(seed, DT_RNG_INIT);
    const dt_matrix_source source = {.self = &key, .name = "the random start", .read = sample};
    const zero_phase before = zero_enter(z, "init", "");
    bool agreed = false; /* in case of an error */
    dt_err err = zero_before_write(z);
    for (int i = 0; i < z->n_slices && !agreed; i++) {
        const dt_tensor *t = dt_zero_tensor(z, &z->owned[i]);
        if (is_one && !is_one(t)) continue;
        zero_enter(z, "init", t->name);
        if (t->part == DT_CODES)
            agreed = (err = dt_zero_quantise(z, i, &source, err)) != DT_OK;
        else if (t->part < DT_CODES && err == DT_OK)
            err = init_slice(z, key, &z->owned[i]);
    }
    zero_leave(z, before);
    return dt_first_err(err, dt_zero_state_written(z));
}
