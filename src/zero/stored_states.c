/* stored_states.c - optimizer states of fewer bits: loaded to fp32, stepped, and stored again.
 *
 * Optimizers therefore only implement a step for fp32 states. A chunk stays in the cache between the three passes.
 * Rounding depends only on the element and the update: key and counter of the random bits consist of the tensor's name,
 * the element in the whole tensor, state and update. The bits are therefore the same for any ranks, mesh, stage, units
 * (groups of experts) and offload. So are codes of 8 bits, whose blocks begin where a tensor begins, unless the ranks
 * of an axis divide the tensor: then they begin where a rank's part begins. */
#include "dtrain/device/block8.h"
#include "zero_impl.h"

/** Position in a slice that begins at element lo of unit u: element lo + from. */
typedef struct position {
    const dt_zero *z;
    const zero_slice *s;
    int u;
    int64_t lo, from;
    int tensor; /* trained tensors before it end before the position */
} position;

static void *entry(const position *p, int a)
{
    const zero_array *array = &p->z->lay.array[a];
    char *first = p->s->array[a];
    if (!first) return zero_entry_at(p->z, a, p->u, p->lo + p->from);
    return first + (size_t)(p->from / array->per) * dt_dtype_size(array->dtype);
}

/** The states of the tensors in a run: bit k for state k. */
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

/** Elements first to end of a tensor, each with random bits of its own. t: the number of this update. */
static dt_err round_elements(const position *p, const dt_tensor *tensor, int k, int64_t t, const float *x, uint16_t *to,
                             int64_t first, int64_t end)
{
    enum { UPDATE_BITS = 56 }; /* bits of t */
    const uint64_t key = dt_mix64(dt_rng_key(p->z->opt.seed, DT_RNG_STATES) + zero_name_hash(tensor->name));
    for (int64_t n, at = first; at < end; at += n) {
        const dt_tensor_run run = dt_tensor_run_of(tensor, at, end - at);
        n = run.n;
        DT_TRY(p->s->dev->ops->round_stochastic(p->s->dev, x + (at - first), to + (at - first), key,
                                                (uint64_t)k << UPDATE_BITS | (uint64_t)t, (uint64_t)run.whole, n,
                                                p->s->stream));
    }
    return DT_OK;
}

static dt_err round_tensors(position *p, int k, int64_t n, int64_t t, uint16_t *to)
{
    const dt_unit *unit = &p->z->units[p->u];
    const float *x = scratch_of(p->z, k);
    const int64_t first = p->lo + p->from;
    for (int i = p->tensor; i < unit->n_tensors; i++) {
        const dt_tensor *tensor = &unit->tensors[i];
        const int64_t begin = dt_max_i64(tensor->offset, first),
                      end = dt_min_i64(tensor->offset + tensor->n_elems, first + n);
        if (tensor->part != DT_TRAINED) continue;
        if (tensor->offset >= first + n) break;
        if (begin >= end) {
            p->tensor = i + 1;
            continue;
        }
        DT_TRY(round_elements(p, tensor, k, t, x + (begin - first), to + (begin - first), begin - tensor->offset,
                              end - tensor->offset));
    }
    return DT_OK;
}

static dt_err store(position *p, int k, int64_t n, int64_t t)
{
    const dt_zero *z = p->z;
    void *to = entry(p, zero_state_array(k));
    if (z->lay.state_dtype == DT_BF16) return round_tensors(p, k, n, t, to);
    return p->s->dev->ops->quantise_blocks(p->s->dev, scratch_of(z, k), to, entry(p, zero_scale_array(&z->lay, k)),
                                           is_positive(z, k), n, p->s->stream);
}

dt_err zero_step_states(const dt_zero *z, int u, int64_t lo, const zero_slice *s, const dt_optimizer_step *one,
                        const zero_run *run, int64_t from, int64_t to)
{
    const int n_states = z->lay.n_states;
    const unsigned has = states_of_run(z, run);
    const bool in_place = z->lay.state_dtype == DT_F32 || run->plain || n_states == 0;
    const dt_optimizer_ops *o = z->opt.optimizer;
    dt_err (*const step)(dt_device *, const dt_optimizer_step *, const dt_update_range *) =
        run->matrix >= 0 ? o->matrices->direction : o->step;
    position p = {z, s, u, lo, from, 0};
    for (int64_t n; p.from < to; p.from += n) {
        n = in_place ? to - p.from : dt_min_i64(z->lay.scratch_len, to - p.from);
        dt_update_range r = zero_range_of(z, s, p.from, p.from + n);
        for (int k = 0; k < n_states; k++) {
            if (!(has >> k & 1)) continue;
            r.states[k] = !in_place    ? scratch_of(z, k)
                          : run->plain ? entry(&p, zero_plain_array(&z->lay, k))
                                       : entry(&p, zero_state_array(k));
            if (!in_place) DT_TRY(load(&p, k, n));
        }
        DT_TRY(step(s->dev, one, &r));
        for (int k = 0; k < n_states && !in_place; k++)
            if (has >> k & 1) DT_TRY(store(&p, k, n, one->t));
    }
    return DT_OK;
}
