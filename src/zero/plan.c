/* plan.c - the arrangement's numbers as people want them: bytes, bytes per parameter, elements sent.
 *
 * Volume (ZeRO, section 7): a ring or a direct exchange sends (N-1)/N of a unit's padded elements for a reduce-scatter
 * and as many for an all-gather. Stages 0 to 2 send 2 of these a step with one micro-step, stage 3 sends 3. */
#include "arrange.h"

/** Elements of a unit's tensors in a part. */
static double n_param_in(const dt_unit *u, dt_part part)
{
    double n = 0;
    for (int i = 0; i < u->n_tensors; i++)
        if (u->tensors[i].part == part) n += (double)u->tensors[i].n_elems;
    return n;
}

/** Bytes per parameter of the model states without any padding: 16, 4 + 12/N, 2 + 14/N, 16/N with bf16 parameters and
 *  gradients and an optimizer of two states, where all is trained. Frozen parameters have neither gradients nor
 *  states. */
static double formula(const zero_layout *l, const dt_unit *units)
{
    const double n = l->nranks;
    double params = 0, trained = 0;
    for (int u = 0; u < l->n_units; u++) {
        for (int p = 0; p < DT_N_PARTS; p++) {
            const double size = (double)dt_dtype_size(l->param_dtype[p]);
            params += n_param_in(&units[u], (dt_part)p) * (l->units[u].part[p].whole ? size : size / n);
        }
        trained += n_param_in(&units[u], DT_TRAINED);
    }
    const double all = (double)l->n_param, per_param = l->n_param > 0 ? params / all : 0;
    if (!l->has_grads) return per_param;
    const double grads = (double)dt_dtype_size(l->grad_kept), opt = sizeof(float) * (l->has_master + l->n_states);
    const double grads_held = (l->whole_grads ? grads : 0) + (!l->whole_grads || l->grads_down ? grads / n : 0);
    return per_param + (grads_held + (l->whole_opt ? opt : opt / n)) * (trained / all);
}

static void count_trained(const zero_layout *l, const zero_part_layout *part, dt_zero_plan *plan)
{
    const double param = (double)dt_dtype_size(l->param_dtype[DT_TRAINED]), grad = (double)dt_dtype_size(l->grad_dtype),
                 sent = (double)dt_dtype_size(l->grad_sent);
    const double once = (double)(part->shards.padded_len - part->shards.shard_len);
    double gathers = 0, reduces = 0, final_gathers = 0, final_reduces = 0;
    if (!part->whole) gathers = 2 * once; /* forward, and again in backward */
    *(l->whole_grads ? &final_reduces : &reduces) = once;
    if (part->whole) final_gathers = once; /* of gradients at stage 0, of parameters at 1 and 2 */
    plan->sent_elems_per_micro_step += gathers + reduces;
    plan->sent_elems_per_step += final_gathers + final_reduces;
    plan->sent_bytes_per_micro_step += gathers * param + reduces * sent;
    plan->sent_bytes_per_step += final_gathers * (l->whole_opt ? grad : param) + final_reduces * sent;
}

/** What is never updated is sent where it is not kept whole: for forward, and for backward where there is one. */
static void count_frozen(const zero_layout *l, dt_part p, const zero_part_layout *part, dt_zero_plan *plan)
{
    if (part->whole) return;
    const double once = (double)(part->shards.padded_len - part->shards.shard_len);
    const double gathers = l->has_grads ? 2 * once : once;
    plan->sent_elems_per_micro_step += gathers;
    plan->sent_bytes_per_micro_step += gathers * (double)dt_dtype_size(l->param_dtype[p]);
}

static void count_sent(const zero_layout *l, dt_zero_plan *plan)
{
    for (int u = 0; u < l->n_units; u++)
        for (int p = 0; p < DT_N_PARTS; p++) {
            const zero_part_layout *part = &l->units[u].part[p];
            if (p == DT_TRAINED && l->has_grads)
                count_trained(l, part, plan);
            else
                count_frozen(l, (dt_part)p, part, plan);
        }
}

size_t zero_saved_nbytes(const zero_layout *l)
{
    size_t nbytes = 0;
    for (int u = 0; u < l->n_units; u++)
        for (int p = 0; p < DT_N_PARTS; p++) {
            const bool trained = p == DT_TRAINED && l->has_grads;
            nbytes += (size_t)l->units[u].part[p].shards.shard_len *
                      (trained ? sizeof(float) * (1 + (size_t)l->n_states) : dt_dtype_size(l->param_dtype[p]));
        }
    return nbytes;
}

dt_err dt_zero_plan_make(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks, dt_zero_plan *plan)
{
    zero_layout l;
    DT_TRY(zero_layout_make(&l, opt, units, n_units, nranks));
    *plan = (dt_zero_plan){.memory = l.memory,
                           .n_param = l.n_param,
                           .least_live_parameters = l.least_live_len,
                           .saved_nbytes = zero_saved_nbytes(&l)};
    const size_t states = dt_memory_of(&l.memory, DT_MEM_PARAMS) + dt_memory_of(&l.memory, DT_MEM_GRADS) +
                          dt_memory_of(&l.memory, DT_MEM_OPTIMIZER);
    int64_t shards = 0;
    for (int u = 0; u < n_units; u++)
        for (int p = 0; p < DT_N_PARTS; p++) shards += l.units[u].part[p].shards.shard_len;
    plan->n_padding = shards - l.n_param / nranks;
    plan->state_bytes_per_param = l.n_param > 0 ? (double)states / (double)l.n_param : 0;
    plan->formula_bytes_per_param = formula(&l, units);
    count_sent(&l, plan);
    zero_layout_free(&l);
    return DT_OK;
}
