/* layout.c - one function decides what a rank holds, for the plan as for the allocation, so that the two cannot
 * disagree.
 *
 * Rings. Units that are not kept whole stand in a ring only while they are held (parameters at stage 3) or while their
 * gradients of one micro-step are written and reduced. The layer loop has one unit in hand; beside it may stand the
 * next one (on its way in) or the last one (on its way out), and a tied embedding, unit 0, which is held across others.
 * So each unit has a fixed place: unit 0 one of its own; the rest by turns at the front and at the end of an arena that
 * has room for the largest pair of neighbours. Fixed places need no allocator and cannot fragment. */
#include "layout.h"
#include <inttypes.h>
#include <stdlib.h>

/* of a unit; the model bounds all units together by as many: 16 bytes for each stay far below 2^63 */
static const int64_t max_elems = INT64_C(1) << 44;

static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

dt_shards dt_shards_of(int64_t flat_len, int nranks)
{
    const int64_t shard_len = round_up((flat_len + nranks - 1) / nranks, DT_SHARD_ALIGN);
    return (dt_shards){.flat_len = flat_len, .shard_len = shard_len, .padded_len = nranks * shard_len};
}

/* ---- checks and runs --------------------------------------------------------------------------------------------- */

static dt_err check_options(const dt_zero_options *opt, int n_units, int nranks)
{
    DT_CHECK(opt->stage >= 0 && opt->stage <= 3, DT_ERR_ARG, "zero.stage is %d, expected 0 to 3", opt->stage);
    DT_CHECK(nranks >= 1 && n_units >= 1, DT_ERR_ARG, "%d units on %d ranks: expected at least one of each", n_units,
             nranks);
    DT_CHECK(opt->grad_dtype == opt->param_dtype || opt->grad_dtype == DT_F32, DT_ERR_ARG,
             "gradients in %s with parameters in %s: expected the parameters' type or fp32",
             dt_dtype_name(opt->grad_dtype), dt_dtype_name(opt->param_dtype));
    const int n = opt->optimizer ? opt->optimizer->n_states : 0;
    DT_CHECK(n >= 0 && n <= DT_MAX_STATES, DT_ERR_ARG, "optimizer %s has %d states, expected at most %d",
             opt->optimizer->name, n, (int)DT_MAX_STATES);
    return DT_OK;
}

static dt_err check_unit(const dt_unit *u)
{
    DT_CHECK(u->flat_len > 0 && u->flat_len <= max_elems, DT_ERR_ARG, "unit %s: a flat buffer of %" PRId64 " elements",
             u->name, u->flat_len);
    int64_t end = 0, n_param = 0;
    for (int i = 0; i < u->n_tensors; i++) {
        const dt_tensor *t = &u->tensors[i];
        DT_CHECK(t->n_elems > 0 && t->offset >= end && t->n_elems <= u->flat_len - t->offset, DT_ERR_ARG,
                 "unit %s: tensor %s at %" PRId64 " with %" PRId64
                 " elements overlaps its neighbour or the end (%" PRId64 ")",
                 u->name, t->name, t->offset, t->n_elems, u->flat_len);
        end = t->offset + t->n_elems;
        n_param += t->n_elems;
    }
    DT_CHECK(n_param == u->n_param, DT_ERR_ARG, "unit %s: tensors of %" PRId64 " elements, n_param is %" PRId64,
             u->name, n_param, u->n_param);
    return DT_OK;
}

/** Join trainable tensors that touch and agree on decay and learning rate. Padding is never inside a run: with eps = 0
 *  AdamW would make NaN of its zeros. */
static void add_runs(zero_layout *l, zero_unit_layout *ul, const dt_unit *u)
{
    ul->first_run = l->n_runs;
    ul->all_trainable = true;
    for (int i = 0; i < u->n_tensors; i++) {
        const dt_tensor *t = &u->tensors[i];
        if (!t->trainable) {
            ul->all_trainable = false;
            continue;
        }
        zero_run *last = l->n_runs > ul->first_run ? &l->runs[l->n_runs - 1] : NULL;
        if (last && last->start + last->len == t->offset && last->decay == t->decay && last->lr_group == t->lr_group)
            last->len += t->n_elems;
        else
            l->runs[l->n_runs++] = (zero_run){t->offset, t->n_elems, t->decay, t->lr_group};
    }
    ul->n_runs = l->n_runs - ul->first_run;
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

static int64_t place_len(const zero_unit_layout *ul) { return round_up(ul->shards.padded_len, DT_GROUP_ALIGN); }

/** Give the units of a ring their places and return its length. grads: all units are in it, else those whose parameters
 *  are not whole. Neighbours have room beside each other when one of them has at most `ahead` elements (ahead 0:
 *  never). */
static int64_t place_ring(zero_layout *l, bool grads, bool untied, int64_t ahead)
{
    int64_t base = 0, arena = 0, before = 0;
    for (int u = 0; u < l->n_units; u++) {
        if (!grads && l->units[u].whole_params) continue;
        const int64_t len = place_len(&l->units[u]);
        if (u == 0 && !untied) {
            base = len;
            continue;
        }
        const int64_t small = before < len ? before : len;
        arena = max64(arena, before > 0 && small <= ahead ? before + len : len);
        before = len;
    }
    bool at_end = false;
    for (int u = 0; u < l->n_units; u++) {
        zero_unit_layout *ul = &l->units[u];
        if (!grads && ul->whole_params) continue;
        int64_t place = base + (at_end && ahead > 0 ? arena - place_len(ul) : 0);
        if (u == 0 && !untied)
            place = 0;
        else
            at_end = !at_end;
        if (grads)
            ul->grad_place = place;
        else
            ul->param_place = place;
    }
    return base + arena;
}

static dt_err place_param_ring(zero_layout *l, const dt_zero_options *opt, const dt_unit *units)
{
    const int64_t alone = place_ring(l, false, opt->untied, 0), limit = opt->max_live_parameters;
    if (limit > 0 && alone > limit) {
        int largest = -1;
        for (int u = opt->untied ? 0 : 1; u < l->n_units; u++)
            if (!l->units[u].whole_params && (largest < 0 || place_len(&l->units[u]) > place_len(&l->units[largest])))
                largest = u;
        return dt_fail(DT_ERR_USAGE,
                       "zero.max_live_parameters = %" PRId64 " is too small: unit %s%s needs %" PRId64
                       " elements at once; set it to %" PRId64 " or more",
                       limit, units[largest < 0 ? 0 : largest].name,
                       opt->untied || largest < 0 ? "" : " beside a tied embedding", alone, alone);
    }
    l->param_ring_len = l->least_ring_len = alone;
    if (!opt->overlap_comm || opt->prefetch_bucket_size <= 0) return DT_OK;
    const int64_t pair = place_ring(l, false, opt->untied, opt->prefetch_bucket_size);
    l->prefetch = limit <= 0 || pair <= limit;
    l->param_ring_len = l->prefetch ? pair : place_ring(l, false, opt->untied, 0);
    return DT_OK;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void place_kept(zero_layout *l)
{
    for (int u = 0; u < l->n_units; u++) {
        zero_unit_layout *ul = &l->units[u];
        const int64_t whole = round_up(ul->shards.padded_len, DT_GROUP_ALIGN), shard = ul->shards.shard_len;
        ul->param_at = l->params_len;
        l->params_len += ul->whole_params ? whole : shard;
        if (!l->has_grads) continue;
        ul->grad_at = l->grads_len;
        l->grads_len += l->whole_grads ? whole : shard;
        ul->opt_at = l->opt_len;
        l->opt_len += l->whole_opt ? whole : shard;
    }
}

static int64_t longest_shard(const zero_layout *l)
{
    int64_t n = 0;
    for (int u = 0; u < l->n_units; u++) n = max64(n, l->units[u].shards.shard_len);
    return n;
}

/** Elements of a shard that one collective of at most `bucket` elements over all ranks moves; 0 or less: no limit. */
static int64_t per_rank(int64_t bucket, int nranks, int64_t longest)
{
    if (bucket <= 0) return longest;
    const int64_t n = max64(bucket / nranks / DT_SHARD_ALIGN * DT_SHARD_ALIGN, DT_SHARD_ALIGN);
    return n < longest ? n : longest;
}

static void size_buckets(zero_layout *l, const dt_zero_options *opt)
{
    /* elements: small enough for a processor's last cache, large beside what a collective costs */
    enum { UPDATE_BUCKET = 1 << 20 };
    const int64_t longest = longest_shard(l);
    l->reduce_per_rank = per_rank(opt->reduce_bucket_size, l->nranks, longest);
    l->gather_per_rank = per_rank(opt->allgather_bucket_size, l->nranks, longest);
    l->update_per_rank = per_rank(UPDATE_BUCKET, l->nranks, l->gather_per_rank);
    size_t reduce = 0, gather = 0, update = 0;
    if (l->has_grads && l->nranks > 1 && l->reduce_per_rank < longest)
        reduce = (size_t)(l->nranks * l->reduce_per_rank) * dt_dtype_size(l->grad_dtype);
    if (l->nranks > 1 && l->gather_per_rank < longest)
        gather =
            (size_t)(l->nranks * l->gather_per_rank) * (l->whole_opt ? sizeof(float) : dt_dtype_size(l->param_dtype));
    if (l->whole_opt) update = (size_t)(l->nranks * l->update_per_rank) * dt_dtype_size(l->grad_kept);
    l->bucket_bytes = reduce > gather ? reduce : gather;
    if (update > l->bucket_bytes) l->bucket_bytes = update;
}

static void size_staging(zero_layout *l, const dt_zero_options *opt)
{
    size_buckets(l, opt);
    l->grad_ring_bytes = (size_t)l->grad_ring_len * dt_dtype_size(l->grad_dtype);
    l->n_results = l->has_grads ? l->n_runs + l->n_units : 0;
    l->results_bytes = (size_t)l->n_results * 16;
    l->host_bytes = ZERO_HOST_CHUNK * sizeof(float);
    if (l->results_bytes > l->host_bytes) l->host_bytes = l->results_bytes;
}

static void add_up(zero_layout *l)
{
    l->memory.at[DT_MEM_PARAMS][DT_ON_DEVICE] = (size_t)l->params_len * dt_dtype_size(l->param_dtype);
    l->memory.at[DT_MEM_GRADS][DT_ON_DEVICE] = (size_t)l->grads_len * dt_dtype_size(l->grad_kept);
    l->memory.at[DT_MEM_OPTIMIZER][DT_ON_DEVICE] =
        (size_t)l->opt_len * sizeof(float) * (size_t)(l->has_master + l->n_states);
    l->memory.at[DT_MEM_STAGING][DT_ON_DEVICE] = (size_t)l->param_ring_len * dt_dtype_size(l->param_dtype) +
                                                 l->grad_ring_bytes + l->bucket_bytes + l->results_bytes;
    l->memory.at[DT_MEM_STAGING][DT_ON_PINNED] = l->host_bytes;
}

static void set_flags(zero_layout *l, const dt_zero_options *opt)
{
    l->stage = l->nranks == 1 ? 1 : opt->stage;
    l->has_grads = opt->optimizer != NULL;
    l->n_states = l->has_grads ? opt->optimizer->n_states : 0;
    /* In reproducible mode every micro-step is reduced, so full gradients would never be summed up: every stage keeps
     * shards of them. */
    l->whole_grads = l->stage < 2 && !opt->reproducible;
    l->whole_opt = l->stage == 0 && l->has_grads;
    l->has_master = l->has_grads && opt->param_dtype == DT_BF16;
    l->param_dtype = opt->param_dtype;
    l->grad_dtype = opt->grad_dtype;
    l->grad_kept = opt->reproducible ? DT_F32 : opt->grad_dtype;
}

dt_err zero_layout_make(zero_layout *l, const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks)
{
    *l = (zero_layout){.nranks = nranks, .n_units = n_units};
    DT_TRY(check_options(opt, n_units, nranks));
    size_t n_tensors = 0;
    for (int u = 0; u < n_units; u++) {
        DT_TRY(check_unit(&units[u]));
        n_tensors += (size_t)units[u].n_tensors;
        l->n_param += units[u].n_param;
    }
    set_flags(l, opt);
    l->units = calloc((size_t)n_units, sizeof *l->units);
    l->runs = calloc(n_tensors + 1, sizeof *l->runs);
    if (!l->units || !l->runs) {
        zero_layout_free(l);
        return dt_fail(DT_ERR_MEMORY, "out of memory for the tables of %d units", n_units);
    }
    for (int u = 0; u < n_units; u++) {
        zero_unit_layout *ul = &l->units[u];
        ul->shards = dt_shards_of(units[u].flat_len, nranks);
        ul->whole_params = l->stage < 3 || units[u].flat_len < opt->param_persistence_threshold;
        add_runs(l, ul, &units[u]);
    }
    place_kept(l);
    if (l->has_grads && !l->whole_grads)
        l->grad_ring_len = place_ring(l, true, opt->untied, opt->overlap_comm ? INT64_MAX : 0);
    const dt_err err = place_param_ring(l, opt, units);
    if (err != DT_OK) {
        zero_layout_free(l);
        return err;
    }
    size_staging(l, opt);
    add_up(l);
    return DT_OK;
}

void zero_layout_free(zero_layout *l)
{
    free(l->units);
    free(l->runs);
    *l = (zero_layout){0};
}
