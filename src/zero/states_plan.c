/* states_plan.c - figures of a layout for users: bytes, bytes per parameter, bytes sent.
 *
 * Volume (ZeRO, section 7): a ring or a direct exchange sends (N-1)/N of a unit's padded elements for a reduce-scatter,
 * and as many for an all-gather. With one micro-step, stages 0 to 2 send 2 of these per step and stage 3 sends 3. With
 * several groups a gather involves the ranks of one group. Once per step each rank sends its sums to the owners of the
 * same shard in the other groups. */
#include "zero_impl.h"

/** Collectives of a unit, one for each nonzero count; sizes in bytes of the types sent. */
typedef struct volume {
    double reduces, gathers, replicates; /* number of collectives */
    dt_dtype gathered;
} volume;

static void count(const zero_layout *l, const dt_shards *s, const volume *v, dt_traffic *traffic, double *bytes)
{
    const double sent = (double)dt_dtype_size(l->grad_sent), kept = (double)dt_dtype_size(l->grad_kept),
                 gathered = (double)dt_dtype_size(v->gathered);
    const double reduce = v->reduces * (double)s->charge_len, gather = v->gathers * (double)s->shard_len,
                 replicate = l->n_groups > 1 ? v->replicates * (double)s->charge_len : 0;
    traffic->reduced_elems += reduce, traffic->reduced_bytes += reduce * sent;
    traffic->gathered_bytes += gather * gathered;
    traffic->replicated_bytes += replicate * kept;
    *bytes += (l->nranks - 1) * reduce * sent + (l->group_nranks - 1) * gather * gathered +
              (l->n_groups - 1) * replicate * kept;
}

/** Trained parts are reduced in every micro-step or once per step. If not kept whole they are gathered for forward and
 *  again for backward, otherwise once at the end (gradients at stage 0). Frozen parts are sent only if they are not
 *  kept whole. */
static void count_part(const zero_layout *l, dt_part p, const zero_part_layout *part, dt_zero_plan *plan)
{
    const bool trained = p == DT_TRAINED && l->has_grads;
    volume micro = {.gathers = part->whole ? 0 : l->has_grads ? 2 : 1, .gathered = l->param_dtype[p]};
    volume step = {.gathers = part->whole && trained, .replicates = trained, .gathered = l->param_dtype[p]};
    if (l->whole_opt) step.gathered = l->grad_kept;
    if (trained) *(l->whole_grads ? &step.reduces : &micro.reduces) = 1;
    count(l, &part->shards, &micro, &plan->micro_step, &plan->sent_bytes_per_micro_step);
    count(l, &part->shards, &step, &plan->step, &plan->sent_bytes_per_step);
}

/** Directions of a unit's matrices to their owners and results back, once per step (matrices.c): the mean of all ranks,
 *  because owners differ. At stage 0 every rank has the directions, and needs all results. */
static void count_matrices(const zero_layout *l, int u, dt_zero_plan *plan)
{
    const double size = sizeof(uint16_t), n = l->nranks, others = l->group_nranks - 1;
    const zero_unit_layout *ul = &l->units[u];
    double sent = 0, added = 0; /* elements that a rank sends on the axis shard, and on replicate as its contribution */
    for (int i = 0; i < ul->n_matrices; i++) {
        const zero_matrix *m = &l->matrices[ul->first_matrix + i];
        int64_t first;
        const int64_t all = zero_matrix_len(m), kept = zero_matrix_in_shard(l, m, m->owner / l->n_groups, &first);
        sent += l->whole_opt ? (n - 1) * (double)all / n : 2 * (double)(all - kept) / n;
    }
    if (ul->n_matrices > 0 && l->n_groups > 1 && !l->whole_opt)
        added = 2 * (double)ul->part[DT_TRAINED].shards.shard_len / l->n_groups;
    plan->step.gathered_bytes += others > 0 ? sent * size / others : 0;
    plan->step.replicated_bytes += added * size;
    plan->sent_bytes_per_step += (sent + (l->n_groups - 1) * added) * size;
}

static void count_sent(const zero_layout *l, dt_zero_plan *plan)
{
    for (int u = 0; u < l->n_units; u++) count_matrices(l, u, plan);
    for (int u = 0; u < l->n_units; u++)
        for (int p = 0; p < DT_N_PARTS; p++) count_part(l, (dt_part)p, &l->units[u].part[p], plan);
}

/** Entries of array a that a rank is in charge of in unit u, at most. */
static int64_t saved_entries(const zero_layout *l, int a, int u)
{
    const dt_shards *s = &l->units[u].part[DT_TRAINED].shards;
    if (!l->array[a].packed) return s->charge_len / l->array[a].per;
    return dt_min_i64(s->charge_len, zero_packed(l, a, u, s->padded_len));
}

size_t zero_saved_nbytes(const zero_layout *l, dt_part p)
{
    const bool trained = p == DT_TRAINED && l->has_grads;
    const size_t param = trained ? sizeof(float) : dt_dtype_size(l->param_dtype[p]);
    size_t nbytes = 0;
    for (int u = 0; u < l->n_units; u++) {
        nbytes += (size_t)l->units[u].part[p].shards.charge_len * param;
        for (int a = 1; a < l->n_arrays && trained; a++)
            nbytes += (size_t)saved_entries(l, a, u) * dt_dtype_size(l->array[a].dtype);
    }
    return nbytes;
}

static dt_memory memory_of(const zero_layout *l)
{
    dt_zero z = {.lay = *l};
    zero_memory list[ZERO_MAX_MEMORY];
    dt_memory sum = {0};
    for (int i = 0, n = zero_list_memory(&z, list); i < n; i++)
        sum.at[list[i].category][list[i].space] += list[i].nbytes;
    const dt_swap_options file = zero_file_options(l, "", NULL);
    if (l->has_file) dt_swap_plan(&file, &sum);
    return sum;
}

static dt_err plan_units(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks, dt_zero_plan *plan)
{
    zero_layout l;
    DT_TRY(zero_layout_make(&l, opt, units, n_units, nranks));
    *plan = (dt_zero_plan){.memory = memory_of(&l),
                           .n_streams = l.n_streams,
                           .n_param = l.n_param,
                           .least_live_parameters = l.least_live_len};
    for (int p = 0; p < DT_N_PARTS; p++) {
        plan->live_parameters += l.param_arena_len[p];
        plan->saved_nbytes[p] = zero_saved_nbytes(&l, (dt_part)p);
    }
    const size_t states = dt_memory_of(&plan->memory, DT_MEM_PARAMS) + dt_memory_of(&plan->memory, DT_MEM_GRADS) +
                          dt_memory_of(&plan->memory, DT_MEM_OPTIMIZER);
    int64_t shards = 0;
    const int per_code = l.param_dtype[DT_CODES] == DT_NF4X2 ? 2 : 1;
    for (int u = 0; u < n_units; u++)
        for (int p = 0; p <= DT_CODES; p++)
            shards += l.units[u].part[p].shards.shard_len * (p == DT_CODES ? per_code : 1);
    plan->n_padding = shards - l.n_param / l.group_nranks;
    plan->state_bytes_per_param = l.n_param > 0 ? (double)states / (double)l.n_param : 0;
    count_sent(&l, plan);
    zero_layout_free(&l);
    return DT_OK;
}

dt_err dt_zero_plan_make(const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks, dt_zero_plan *plan)
{
    dt_unit *grouped;
    int n;
    if (opt->expert_group_size == 0) return plan_units(opt, units, n_units, nranks, plan);
    DT_TRY(dt_units_group_experts(units, n_units, opt->expert_group_size, &grouped, &n));
    const dt_err err = plan_units(opt, grouped, n, nranks, plan);
    dt_units_free(grouped, n);
    return err;
}
