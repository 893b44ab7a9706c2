/* stored_states.c - optimizer states of fewer bits: loaded to fp32, stepped, and stored again.
 *
 * An optimizer therefore has one step, for states in fp32, whatever their storage. A chunk stays in a cache between the
 * three passes. Rounding depends on the element and the update only. The counter of the random bits is the unit, the
 * element and the state. Blocks of 8-bit states begin where a tensor begins. All ranks, stages, groups and offloads
 * therefore give the same bits. */
#include "dtrain/device/block8.h"
#include "zero_impl.h"

/** Elements from, from+1, ... of a slice in unit u. */
typedef struct position {
    const dt_zero *z;
    const zero_slice *s;
    int u;
    int64_t lo, from;
} position;

static void *entry(const position *p, int a)
{
    const zero_array *array = &p->z->lay.array[a];
    char *first = p->s->array[a];
    if (!first) return zero_entry_at(p->z, a, p->u, p->lo + p->from);
    return first + (size_t)(p->from / array->per) * dt_dtype_size(array->dtype);
}

/** The states that the tensors of a run have. */
static unsigned states_of_run(const dt_zero *z, const zero_run *run)
{
    const dt_matrix_optimizer *m = z->opt.optimizer->matrices;
    return !m ? ~0u : run->matrix >= 0 ? m->states : ~m->states;
}

static bool is_positive(const dt_zero *z, int k) { return z->opt.optimizer->positive_states >> k & 1; }

static float *scratch_of(const dt_zero *z, int k) { return (float *)z->scratch.ptr + k * z->lay.scratch_len; }

static dt_err load(const position *p, int k, int64_t n)
{
    const dt_device_ops *ops = p->s->dev->ops;
    const void *from = entry(p, zero_state_array(k));
    if (p->z->lay.state_dtype == DT_BF16)
        return ops->convert(p->s->dev, from, DT_BF16, scratch_of(p->z, k), DT_F32, n, p->s->stream);
    return ops->dequantise_blocks(p->s->dev, from, entry(p, zero_scale_array(&p->z->lay, k)), scratch_of(p->z, k),
                                  is_positive(p->z, k), n, p->s->stream);
}

/** t: the number of this update. */
static dt_err store(const position *p, int k, int64_t n, int64_t t)
{
    enum { ELEM_BITS = 44, UPDATE_BITS = 56 }; /* of an element in a unit (arrange.c), of t */
    const dt_zero *z = p->z;
    const dt_device_ops *ops = p->s->dev->ops;
    void *to = entry(p, zero_state_array(k));
    if (z->lay.state_dtype != DT_BF16)
        return ops->quantise_blocks(p->s->dev, scratch_of(z, k), to, entry(p, zero_scale_array(&z->lay, k)),
                                    is_positive(z, k), n, p->s->stream);
    return ops->round_stochastic(p->s->dev, scratch_of(z, k), to, dt_rng_key(z->opt.seed, DT_RNG_STATES),
                                 (uint64_t)k << UPDATE_BITS | (uint64_t)t,
                                 (uint64_t)p->u << ELEM_BITS | (uint64_t)(p->lo + p->from), n, p->s->stream);
}

static dt_err step(const position *p, const dt_optimizer_step *one, const zero_run *run, float *const states[],
                   int64_t n)
{
    const zero_slice *s = p->s;
    const dt_optimizer_ops *o = p->z->opt.optimizer;
    const dt_dtype dtype = p->z->lay.param_dtype[DT_TRAINED];
    const char *grad = (const char *)s->grad + (size_t)p->from * dt_dtype_size(s->grad_dtype);
    void *param = s->param ? (char *)s->param + (size_t)p->from * dt_dtype_size(dtype) : NULL;
    if (run->matrix >= 0)
        return o->matrices->direction(s->dev, one, grad, s->grad_dtype, states, (uint16_t *)s->direction + p->from, n,
                                      s->stream);
    return o->step(s->dev, one, grad, s->grad_dtype, s->master + p->from, states, param, dtype, n, s->stream);
}

dt_err zero_step_states(const dt_zero *z, int u, int64_t lo, const zero_slice *s, const dt_optimizer_step *one,
                        const zero_run *run, int64_t from, int64_t to)
{
    const int n_states = z->lay.n_states;
    const unsigned has = states_of_run(z, run);
    float *states[DT_MAX_STATES] = {0};
    position p = {z, s, u, lo, from};
    if (z->lay.state_dtype == DT_F32 || run->plain) {
        for (int k = 0; k < n_states; k++)
            if (has >> k & 1) states[k] = entry(&p, run->plain ? zero_plain_array(&z->lay, k) : zero_state_array(k));
        return step(&p, one, run, states, to - from);
    }
    for (int k = 0; k < n_states; k++) states[k] = scratch_of(z, k);
    for (int64_t n; p.from < to; p.from += n) {
        n = dt_min_i64(z->lay.scratch_len, to - p.from);
        for (int k = 0; k < n_states; k++)
            if (has >> k & 1) DT_TRY(load(&p, k, n));
        DT_TRY(step(&p, one, run, states, n));
        for (int k = 0; k < n_states; k++)
            if (has >> k & 1) DT_TRY(store(&p, k, n, one->t));
    }
    return DT_OK;
}
