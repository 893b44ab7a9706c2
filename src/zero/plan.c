/* plan.c - the layout's numbers as people want them: bytes, bytes per parameter, elements sent.
 *
 * Volume (ZeRO, section 7): a ring or a direct exchange sends (N-1)/N of a unit's padded elements for a reduce-scatter
 * and as many for an all-gather. Stages 0 to 2 send 2 of these a step with one micro-step, stage 3 sends 3. */
#include "layout.h"

/** Bytes per parameter of the model states without any padding: 16, 4 + 12/N, 2 + 14/N, 16/N with bf16 parameters and
 *  gradients. */
static double formula(const zero_layout *l, const dt_unit *units)
{
    const double n = l->nranks, param = (double)dt_dtype_size(l->param_dtype);
    double params = 0;
    for (int u = 0; u < l->n_units; u++)
        params += (double)units[u].n_param * (l->units[u].whole_params ? param : param / n);
    const double per_param = l->n_param > 0 ? params / (double)l->n_param : 0;
    if (!l->has_grads) return per_param;
    const double grads = (double)dt_dtype_size(l->grad_kept), opt = sizeof(float) * (l->has_master + l->n_states);
    return per_param + (l->whole_grads ? grads : grads / n) + (l->whole_opt ? opt : opt / n);
}

static void count_sent(const zero_layout *l, dt_dtype grad_dtype, dt_zero_plan *plan)
{
    const double param = (double)dt_dtype_size(l->param_dtype), grad = (double)dt_dtype_size(grad_dtype);
    for (int u = 0; u < l->n_units; u++) {
        const zero_unit_layout *ul = &l->units[u];
        const double once = (double)(ul->shards.padded_len - ul->shards.shard_len);
        double gathers = 0, reduces = 0, final_gathers = 0, final_reduces = 0;
        if (!ul->whole_params) gathers = l->has_grads ? 2 * once : once; /* forward, and again in backward */
        if (l->has_grads) *(l->whole_grads ? &final_reduces : &reduces) = once;
        /* of gradients at stage 0, of parameters at 1 and 2 */
        if (l->has_grads && ul->whole_params) final_gathers = once;
        plan->sent_elems_per_micro_step += gathers + reduces;
        plan->sent_elems_per_step += final_gathers + final_reduces;
        plan->sent_bytes_per_micro_step += gathers * param + reduces * grad;
        plan->sent_bytes_per_step += final_gathers * (l->whole_opt ? grad : param) + final_reduces * grad;
    }
}

dt_err dt_zero_plan_make(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks, dt_zero_plan *plan)
{
    zero_layout l;
    DT_TRY(zero_layout_make(&l, opt, units, n_units, nranks));
    *plan = (dt_zero_plan){.memory = l.memory, .n_param = l.n_param, .least_live_parameters = l.least_ring_len};
    const size_t states = dt_memory_of(&l.memory, DT_MEM_PARAMS) + dt_memory_of(&l.memory, DT_MEM_GRADS) +
                          dt_memory_of(&l.memory, DT_MEM_OPTIMIZER);
    int64_t shards = 0;
    for (int u = 0; u < n_units; u++) shards += l.units[u].shards.shard_len;
    plan->n_padding = shards - l.n_param / nranks;
    plan->state_bytes_per_param = l.n_param > 0 ? (double)states / (double)l.n_param : 0;
    plan->formula_bytes_per_param = formula(&l, units);
    count_sent(&l, opt->grad_dtype, plan);
    zero_layout_free(&l);
    return DT_OK;
}
