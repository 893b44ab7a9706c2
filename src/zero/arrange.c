/* arrange.c - computes what a rank holds, for the plan and for the allocation.
 *
 * Arenas. At stage 3, parts that are not kept whole occupy an arena only while they are held; each part kind has its
 * own arena. Gradients of one micro-step occupy the gradient arena while they are written and reduced.
 *
 * The layer loop holds one unit. The next unit (being gathered) or the previous one (being reduced) may be in the arena
 * at the same time. A tied embedding is held across other units.
 *
 * Each unit therefore has a fixed region. The tied embedding has its own region. The other units alternate between the
 * front and the end of a range that holds the largest pair of neighbours. Fixed regions need no allocator and cannot
 * fragment. Units of experts are held one after the other while the unit of their block is held, so they alternate in a
 * range of their own. */
#include "arrange.h"
#include "dtrain/device/block8.h"
#include <inttypes.h>
#include <stdlib.h>

/* limit per unit: at 16 bytes per element all sums stay far below 2^63 */
static const int64_t max_elems = INT64_C(1) << 44;

static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

dt_shards dt_shards_of(int64_t flat_len, int nranks, int n_groups, int64_t align)
{
    const int64_t charge_len = round_up((flat_len + nranks - 1) / nranks, align);
    return (dt_shards){.flat_len = flat_len,
                       .charge_len = charge_len,
                       .shard_len = n_groups * charge_len,
                       .padded_len = nranks * charge_len};
}

/* ---- checks and runs --------------------------------------------------------------------------------------------- */

/* The keys' own checks guarantee stages and types. */
static dt_err check_options(const dt_zero_options *opt, int n_units, int nranks)
{
    DT_EXPECT(nranks >= 1 && n_units >= 1);
    DT_EXPECT(opt->n_groups >= 0 && (opt->n_groups == 0 || nranks % opt->n_groups == 0));
    DT_EXPECT(opt->tied_unit >= -1 && opt->tied_unit < n_units);
    DT_EXPECT(opt->offload_param == DT_OFFLOAD_NONE || opt->stage == 3);
    const int n = opt->optimizer ? opt->optimizer->n_states : 0;
    DT_EXPECT(n >= 0 && n <= DT_MAX_STATES);
    return DT_OK;
}

static dt_err check_unit(const dt_unit *u)
{
    int64_t whole = 0;
    for (int p = 0; p < DT_N_PARTS; p++)
        whole = u->flat_len[p] < 0 || whole < 0 || whole > max_elems ? -1 : whole + u->flat_len[p];
    DT_EXPECT(whole > 0 && whole <= max_elems);
    int64_t end[DT_N_PARTS] = {0}, n_param = 0;
    for (int i = 0; i < u->n_tensors; i++) {
        const dt_tensor *t = &u->tensors[i];
        const int64_t len = u->flat_len[t->part];
        DT_CHECK(t->n_elems > 0 && t->offset >= end[t->part] && t->n_elems <= len - t->offset, DT_ERR_ARG,
                 "internal: dt_zero_open: unit %s: tensor %s overlaps its neighbour or the end", u->name, t->name);
        DT_EXPECT(t->part == DT_TRAINED || !t->trainable);
        for (int k = 0; k < t->n_row_ranges; k++) {
            const int64_t first = t->row_ranges[k].first, end_row = t->row_ranges[k].end;
            DT_EXPECT(first >= (k > 0 ? t->row_ranges[k - 1].end + 1 : 0) && first < end_row && end_row <= t->shape[0]);
        }
        end[t->part] = t->offset + t->n_elems;
        n_param += dt_n_weights(t);
    }
    DT_EXPECT(n_param == u->n_param);
    return DT_OK;
}

/** Merge adjacent trainable elements with the same settings. Runs exclude padding: with eps = 0 AdamW
 *  would turn its zeros into NaN. */
static void add_run(zero_layout *l, const zero_unit_layout *ul, zero_run run)
{
    zero_run *last = l->n_runs > ul->first_run ? &l->runs[l->n_runs - 1] : NULL;
    if (last && last->start + last->len == run.start && last->decay == run.decay && last->plain == run.plain &&
        last->matrix < 0 && run.matrix < 0 && last->lr_group == run.lr_group && last->divided == run.divided)
        last->len += run.len;
    else
        l->runs[l->n_runs++] = run;
}

static void add_span(zero_layout *l, const zero_unit_layout *ul, zero_span span)
{
    zero_span *last = l->n_spans > ul->first_span ? &l->spans[l->n_spans - 1] : NULL;
    if (last && last->start + last->len == span.start && last->plain == span.plain && last->states == span.states)
        last->len += span.len;
    else
        l->spans[l->n_spans++] = span;
}

static int add_matrix(zero_layout *l, int unit, const dt_tensor *t)
{
    l->units[unit].n_matrices++;
    l->matrices[l->n_matrices] =
        (zero_matrix){.unit = unit, .start = t->offset, .rows = t->shape[0], .cols = t->shape[1]};
    return l->n_matrices++;
}

static void add_runs(zero_layout *l, const dt_zero_options *opt, zero_unit_layout *ul, const dt_unit *u)
{
    ul->first_run = l->n_runs;
    ul->first_matrix = l->n_matrices;
    ul->first_span = l->n_spans;
    ul->all_trainable = true;
    bool divided[2] = {false, false}; /* [0]: a tensor is not divided; [1]: a tensor is divided */
    for (int i = 0; i < u->n_tensors; i++) {
        const dt_tensor *t = &u->tensors[i];
        const int64_t row_len = t->n_elems / t->shape[0];
        const bool is_divided = t->split_whole > 0;
        if (t->part != DT_TRAINED) continue;
        divided[is_divided] = true;
        ul->all_trainable =
            ul->all_trainable && t->trainable && t->n_row_ranges == 0 && !(divided[false] && divided[true]);
        if (!t->trainable) continue;
        zero_run run = {.start = t->offset, .len = t->n_elems, .decay = t->decay, .lr_group = t->lr_group};
        run.divided = is_divided;
        run.plain = dt_zero_keeps_fp32(l->state_dtype, t);
        const unsigned states = l->has_grads ? dt_optimizer_states_of(opt->optimizer, t) : 0;
        const bool is_matrix = l->has_grads && opt->optimizer->matrices && dt_is_hidden_matrix(t);
        run.matrix = is_matrix ? add_matrix(l, (int)(ul - l->units), t) : -1;
        add_span(l, ul, (zero_span){t->offset, t->n_elems, run.plain, states});
        if (t->n_row_ranges == 0) add_run(l, ul, run);
        for (int k = 0; k < t->n_row_ranges; k++) {
            const dt_row_range *r = &t->row_ranges[k];
            run.start = t->offset + r->first * row_len, run.len = (r->end - r->first) * row_len;
            add_run(l, ul, run);
        }
    }
    ul->n_runs = l->n_runs - ul->first_run;
    ul->n_spans = l->n_spans - ul->first_span;
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

/** Contents of an arena: one part of the units, or gradients. */
typedef struct arena_kind {
    dt_part part;
    bool grads;
} arena_kind;

static int64_t held_len(const zero_part_layout *p) { return round_up(p->shards.padded_len, DT_GROUP_ALIGN); }

/** Does unit u use this arena? Every trained part has gradients. Parameters use it unless they are kept whole. */
static bool is_in(const zero_layout *l, arena_kind kind, int u)
{
    const zero_part_layout *p = &l->units[u].part[kind.part];
    return p->shards.flat_len > 0 && (kind.grads || !p->whole);
}

static int64_t *held_at(zero_layout *l, arena_kind kind, int u)
{
    return kind.grads ? &l->units[u].grad_held_at : &l->units[u].part[kind.part].held_at;
}

/** Assign the inner units, or the others, their arena offsets from `from` on, and return the end. */
static int64_t place_range(zero_layout *l, arena_kind kind, int tied_unit, int64_t ahead, bool inner, int64_t from)
{
    int64_t base = from, range_len = 0, before = 0;
    for (int u = 0; u < l->n_units; u++) {
        if (!is_in(l, kind, u) || l->units[u].inner != inner) continue;
        const int64_t len = held_len(&l->units[u].part[kind.part]);
        if (u == tied_unit) {
            base = from + len;
            continue;
        }
        const int64_t small = before < len ? before : len;
        range_len = dt_max_i64(range_len, before > 0 && small <= ahead ? before + len : len);
        before = len;
    }
    bool at_end = false;
    for (int u = 0; u < l->n_units; u++) {
        if (!is_in(l, kind, u) || l->units[u].inner != inner) continue;
        const int64_t len = held_len(&l->units[u].part[kind.part]);
        *held_at(l, kind, u) = base + (at_end && ahead > 0 ? range_len - len : 0);
        if (u == tied_unit)
            *held_at(l, kind, u) = from;
        else
            at_end = !at_end;
    }
    return base + range_len;
}

/** Assign each unit its arena offset and return the arena's length. Two neighbours get disjoint regions if one of them
 *  has at most `ahead` elements; ahead 0: never. */
static int64_t place_arena(zero_layout *l, arena_kind kind, int tied_unit, int64_t ahead)
{
    return place_range(l, kind, -1, ahead, true, place_range(l, kind, tied_unit, ahead, false, 0));
}

/** As place_arena, with a separate region for each unit. */
static int64_t place_apart(zero_layout *l, arena_kind kind)
{
    int64_t end = 0;
    for (int u = 0; u < l->n_units; u++) {
        if (!is_in(l, kind, u)) continue;
        *held_at(l, kind, u) = end;
        end += held_len(&l->units[u].part[kind.part]);
    }
    return end;
}

/** Lay out the arenas of all parts. Returns their total length. */
static int64_t place_params(zero_layout *l, const dt_zero_options *opt, int64_t ahead)
{
    int64_t sum = 0;
    for (int p = 0; p < DT_N_PARTS; p++) {
        const arena_kind kind = {.part = (dt_part)p};
        sum += l->param_arena_len[p] =
            opt->keep_gathered ? place_apart(l, kind) : place_arena(l, kind, opt->tied_unit, ahead);
    }
    return sum;
}

/** Elements of a unit in the parameter arenas. */
static int64_t live_len(const zero_layout *l, int u)
{
    int64_t n = 0;
    for (int p = 0; p < DT_N_PARTS; p++)
        if (is_in(l, (arena_kind){.part = (dt_part)p}, u)) n += held_len(&l->units[u].part[p]);
    return n;
}

static dt_err refuse_limit(const zero_layout *l, const dt_zero_options *opt, const dt_unit *units, int64_t alone)
{
    int largest = -1;
    for (int u = 0; u < l->n_units; u++)
        if (u != opt->tied_unit && live_len(l, u) > 0 && (largest < 0 || live_len(l, u) > live_len(l, largest)))
            largest = u;
    return dt_fail(DT_ERR_USAGE,
                   "zero.max_live_parameters = %" PRId64 " is too small: unit %s%s needs %" PRId64
                   " elements at once; set it to at least %" PRId64,
                   opt->max_live_parameters, units[largest < 0 ? 0 : largest].name,
                   opt->tied_unit < 0 || largest < 0 ? "" : " with a tied embedding", alone, alone);
}

static dt_err arrange_params_apart(zero_layout *l, const dt_zero_options *opt)
{
    const int64_t all = place_params(l, opt, 0), limit = opt->max_live_parameters;
    DT_CHECK(limit <= 0 || all <= limit, DT_ERR_USAGE,
             "zero.max_live_parameters = %" PRId64 " is too small: this task keeps all parameters gathered, %" PRId64
             " elements; set it to at least %" PRId64,
             limit, all, all);
    l->least_live_len = all;
    l->prefetch = opt->overlap_comm && opt->prefetch_bucket_size > 0;
    return DT_OK;
}

static dt_err arrange_params(zero_layout *l, const dt_zero_options *opt, const dt_unit *units)
{
    if (opt->keep_gathered) return arrange_params_apart(l, opt);
    const int64_t alone = place_params(l, opt, 0), limit = opt->max_live_parameters;
    if (limit > 0 && alone > limit) return refuse_limit(l, opt, units, alone);
    l->least_live_len = alone;
    if (!opt->overlap_comm || opt->prefetch_bucket_size <= 0) return DT_OK;
    const int64_t pair = place_params(l, opt, opt->prefetch_bucket_size);
    l->prefetch = limit <= 0 || pair <= limit;
    if (!l->prefetch) place_params(l, opt, 0);
    return DT_OK;
}

/* ---- master and states ------------------------------------------------------------------------------------------- */

bool dt_zero_keeps_fp32(dt_dtype state_dtype, const dt_tensor *t)
{
    /* an expert's offset depends on the number of experts before it in its unit, of which any may be the first */
    const bool aligned = t->offset % DT_BLOCK8 == 0 && (!t->of_expert || t->n_elems % DT_BLOCK8 == 0);
    return state_dtype == DT_I8 && (t->n_elems < DT_BLOCK8_SMALLEST || t->n_row_ranges > 0 || !aligned);
}

dt_state_nbytes dt_zero_state_nbytes(dt_dtype state_dtype, const dt_tensor *t)
{
    const double n = (double)t->n_elems;
    if (state_dtype != DT_I8 || dt_zero_keeps_fp32(state_dtype, t))
        return (dt_state_nbytes){n * (state_dtype == DT_BF16 ? sizeof(uint16_t) : sizeof(float)), 0};
    return (dt_state_nbytes){n, sizeof(float) * (double)dt_ceil_div(t->n_elems, DT_BLOCK8)};
}

/* Does array a store the elements of this span? */
static bool covers(const zero_layout *l, int a, const zero_span *span)
{
    const zero_array *array = &l->array[a];
    if (array->state < 0) return true;
    return (span->states >> array->state & 1) && (l->state_dtype != DT_I8 || array->of_plain == span->plain);
}

int64_t zero_packed(const zero_layout *l, int a, int u, int64_t x)
{
    const zero_unit_layout *ul = &l->units[u];
    int64_t n = 0;
    for (int k = 0; k < ul->n_spans; k++) {
        const zero_span *span = &l->spans[ul->first_span + k];
        if (span->start > x) break;
        if (!covers(l, a, span)) continue;
        n += (span->start - n % ZERO_PACKED_ALIGN + ZERO_PACKED_ALIGN) % ZERO_PACKED_ALIGN;
        n += dt_min_i64(span->len, x - span->start);
    }
    return n;
}

/** Add an array of each state. Packed arrays are not in the file, whose blocks are aligned. */
static void list_states(zero_layout *l, zero_array like, bool packed)
{
    if (like.space == DT_IN_FILE) packed = false;
    for (int k = 0; k < l->n_states; k++) {
        like.state = k, like.packed = packed;
        l->array[l->n_arrays++] = like;
    }
}

static void list_arrays(zero_layout *l)
{
    const bool in_8_bits = l->state_dtype == DT_I8, differ = l->n_matrices > 0;
    const dt_memspace scale_space = l->opt_space == DT_IN_FILE ? DT_ON_HOST : l->opt_space;
    l->array[l->n_arrays++] = (zero_array){.dtype = DT_F32, .per = 1, .state = -1, .space = l->opt_space};
    list_states(l, (zero_array){.dtype = in_8_bits ? DT_U8 : l->state_dtype, .per = 1, .space = l->opt_space}, differ);
    if (!in_8_bits) return;
    list_states(l, (zero_array){.dtype = DT_F32, .per = DT_BLOCK8, .space = scale_space}, differ);
    list_states(l, (zero_array){.dtype = DT_F32, .per = 1, .of_plain = true, .space = scale_space}, true);
}

/** Number of shards from x on that lie in one span of the unit, or between two. */
static int64_t n_in_one_span(const zero_layout *l, int u, int64_t x, int64_t shard_len)
{
    const zero_unit_layout *ul = &l->units[u];
    int64_t end = ul->part[DT_TRAINED].shards.padded_len;
    for (int k = ul->n_spans - 1; k >= 0; k--) {
        const zero_span *span = &l->spans[ul->first_span + k];
        if (span->start + span->len <= x) break;
        end = span->start > x ? span->start : span->start + span->len;
    }
    return (end - x) / shard_len;
}

/** Packed elements of unit u per rank: the maximum over the ranks of a group, which all reserve. Within a span the
 *  lengths repeat after PERIOD shards, so a plan for a million ranks examines few of them. */
static int64_t packed_len(const zero_layout *l, int a, int u)
{
    enum { PERIOD = ZERO_PACKED_ALIGN / DT_SHARD_ALIGN };
    const dt_shards *s = &l->units[u].part[DT_TRAINED].shards;
    const int64_t step = l->whole_opt ? s->padded_len : s->shard_len;
    int64_t most = 0;
    for (int64_t x = 0; x < s->padded_len; x += step) {
        most = dt_max_i64(most, zero_packed(l, a, u, x + step) - zero_packed_base(l, a, u, x));
        x += dt_max_i64(0, n_in_one_span(l, u, x, step) / PERIOD - 1) * PERIOD * step;
    }
    return round_up(most, ZERO_PACKED_ALIGN);
}

static dt_err place_arrays(zero_layout *l)
{
    for (int a = 0; a < l->n_arrays; a++) {
        zero_array *array = &l->array[a];
        array->len = a > 0 || l->has_master ? l->opt_len / array->per : 0;
        if (!array->packed) continue;
        array->len = 0;
        DT_ALLOC(array->packed_at, l->n_units, "out of memory for the tables of %d units", l->n_units);
        for (int u = 0; u < l->n_units; u++) {
            array->packed_at[u] = array->len;
            array->len += packed_len(l, a, u) / array->per;
        }
    }
    return DT_OK;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static int64_t kept_len(const dt_shards *s, bool whole)
{
    return whole ? round_up(s->padded_len, DT_GROUP_ALIGN) : s->shard_len;
}

/** Padded length of a shard. A shard in a file is padded to the alignment of direct I/O. */
static int64_t shard_len_in(dt_memspace space, const dt_shards *s, dt_dtype dtype)
{
    const int64_t align = space == DT_IN_FILE ? DT_SWAP_ALIGN / (int64_t)dt_dtype_size(dtype) : 1;
    return round_up(s->shard_len, align);
}

static void place_params_kept(zero_layout *l, int p, zero_part_layout *part)
{
    const bool away = part->space != DT_ON_DEVICE;
    int64_t *len = away ? &l->away_len[p] : &l->params_len[p];
    part->kept_at = *len;
    *len += away ? shard_len_in(part->space, &part->shards, l->param_dtype[p]) : kept_len(&part->shards, part->whole);
}

/** The smallest type that master and states have in the optimizer's memory space. */
static dt_dtype least_dtype(const zero_layout *l) { return l->state_dtype == DT_I8 ? DT_U8 : l->state_dtype; }

static void place_kept(zero_layout *l)
{
    for (int u = 0; u < l->n_units; u++) {
        zero_unit_layout *ul = &l->units[u];
        for (int p = 0; p < DT_N_PARTS; p++) place_params_kept(l, p, &ul->part[p]);
        if (!l->has_grads) continue;
        const dt_shards *shards = &ul->part[DT_TRAINED].shards;
        if (l->whole_grads || !l->grads_down) {
            ul->grad_at = l->grads_len;
            l->grads_len += kept_len(shards, l->whole_grads);
        }
        ul->opt_at = l->opt_len;
        l->opt_len += l->whole_opt ? kept_len(shards, true) : shard_len_in(l->opt_space, shards, least_dtype(l));
    }
}

/** The maximum shard_len of a part over the units where it is in this memory space; DT_N_MEMSPACE: in any. */
static int64_t longest_in(const zero_layout *l, int p, dt_memspace space)
{
    int64_t n = 0;
    for (int u = 0; u < l->n_units; u++) {
        const zero_part_layout *part = &l->units[u].part[p];
        if (space == DT_N_MEMSPACE || part->space == space) n = dt_max_i64(n, part->shards.shard_len);
    }
    return n;
}

static int64_t longest_shard(const zero_layout *l, int p) { return longest_in(l, p, DT_N_MEMSPACE); }

static int64_t longest_of_all(const zero_layout *l)
{
    int64_t n = 0;
    for (int p = 0; p < DT_N_PARTS; p++) n = dt_max_i64(n, longest_shard(l, p));
    return n;
}

/** Multiple of align: elements per rank in one collective that moves at most `bucket` elements over nranks;
 *  bucket <= 0: no limit. */
static int64_t aligned_per_rank(int64_t bucket, int nranks, int64_t longest, int64_t align)
{
    if (bucket <= 0) return longest;
    const int64_t n = dt_max_i64(bucket / nranks / align * align, align);
    return n < longest ? n : longest;
}

static int64_t per_rank(int64_t bucket, int nranks, int64_t longest)
{
    return aligned_per_rank(bucket, nranks, longest, DT_SHARD_ALIGN);
}

/** Elements that the trained part of a shard is a multiple of: an update starts and ends with whole blocks of states.
 */
static int64_t update_align(const zero_layout *l) { return l->state_dtype == DT_I8 ? DT_BLOCK8 : DT_SHARD_ALIGN; }

/** Bytes per element of the widest gathered type: a parameter, or at stage 0 an optimizer state. */
static size_t widest_gathered(const zero_layout *l)
{
    size_t n = l->whole_opt ? sizeof(float) : 0;
    for (int p = 0; p < DT_N_PARTS; p++)
        if (longest_shard(l, p) > 0 && dt_dtype_size(l->param_dtype[p]) > n) n = dt_dtype_size(l->param_dtype[p]);
    return n;
}

static void size_buckets(zero_layout *l, const dt_zero_options *opt)
{
    /* elements: fits in the last-level cache, yet large enough to amortise the latency of a collective */
    enum { UPDATE_BUCKET = 1 << 20 };
    const int64_t charge = longest_shard(l, DT_TRAINED) / l->n_groups, trained = longest_shard(l, DT_TRAINED),
                  longest = longest_of_all(l);
    l->reduce_per_rank = per_rank(opt->reduce_bucket_size, l->nranks, charge);
    l->gather_per_rank = per_rank(opt->allgather_bucket_size, l->group_nranks, longest);
    l->update_per_rank = aligned_per_rank(UPDATE_BUCKET, l->group_nranks, trained, update_align(l));
    if (l->gather_per_rank < l->update_per_rank)
        l->update_per_rank = aligned_per_rank(l->gather_per_rank, 1, trained, update_align(l));
    size_t reduce = 0, gather = 0, update = 0;
    if (l->has_grads && l->nranks > 1 && (l->reduce_per_rank < charge || l->grad_sent != l->grad_dtype))
        reduce = (size_t)(l->nranks * l->reduce_per_rank) * dt_dtype_size(l->grad_sent);
    if (l->group_nranks > 1 && l->gather_per_rank < longest)
        gather = (size_t)(l->group_nranks * l->gather_per_rank) * widest_gathered(l);
    if (l->whole_opt) update = (size_t)(l->group_nranks * l->update_per_rank) * dt_dtype_size(l->grad_kept);
    l->bucket_bytes = reduce > gather ? reduce : gather;
    if (update > l->bucket_bytes) l->bucket_bytes = update;
}

/** Size the rings of staging buffers for offloaded states. */
static void size_rings(zero_layout *l, const dt_zero_options *opt)
{
    const int64_t step = DT_SWAP_ALIGN / (int64_t)dt_dtype_size(least_dtype(l)), longest = longest_shard(l, DT_TRAINED);
    l->n_buffers = opt->buffer_count > 0 ? opt->buffer_count : 1;
    if (l->grads_down) {
        l->group_len = round_up(longest, step);
        if (opt->sub_group_size > 0 && opt->sub_group_size < l->group_len)
            l->group_len = dt_max_i64(opt->sub_group_size / step * step, step);
        l->grad_slot_len = l->whole_grads ? 0 : longest;
        if (longest_in(l, DT_TRAINED, DT_ON_DEVICE) > 0)
            l->up_bytes = (size_t)l->group_len * dt_dtype_size(l->param_dtype[DT_TRAINED]);
        if (l->opt_space == DT_IN_FILE)
            for (int a = 0; a <= l->n_states; a++)
                l->swap_bytes += (size_t)l->group_len * dt_dtype_size(l->array[a].dtype);
    }
    for (int p = 0; p < DT_N_PARTS; p++) {
        const size_t nbytes = dt_swap_round_up((size_t)longest_in(l, p, DT_IN_FILE) * dt_dtype_size(l->param_dtype[p]));
        if (nbytes > l->fetch_bytes) l->fetch_bytes = nbytes;
    }
}

/** Elements of the longest run, rounded up to whole blocks of states. */
static int64_t longest_run(const zero_layout *l)
{
    int64_t n = 0;
    for (int k = 0; k < l->n_runs; k++) n = dt_max_i64(n, l->runs[k].len);
    return round_up(n, DT_BLOCK8);
}

static void size_staging(zero_layout *l, const dt_zero_options *opt)
{
    size_buckets(l, opt);
    size_rings(l, opt);
    if (l->n_states > 0 && l->state_dtype != DT_F32) l->scratch_len = dt_min_i64(ZERO_STATE_CHUNK, longest_run(l));
    for (int p = 0; p < DT_N_PARTS; p++)
        l->param_arena_bytes[p] = (size_t)l->param_arena_len[p] * dt_dtype_size(l->param_dtype[p]);
    l->grad_arena_bytes = (size_t)l->grad_arena_len * dt_dtype_size(l->grad_dtype);
    l->n_results = l->has_grads ? l->n_runs + l->n_units : 0;
    l->watched_bytes = l->has_grads && l->nranks > 1 ? (size_t)(1 + l->n_units) * ZERO_RESULT_NBYTES : 0;
    const size_t results = (size_t)l->n_results * ZERO_RESULT_NBYTES;
    /* with offload the host sums the squares and writes to its own scratch */
    l->results_bytes = l->grads_down ? 0 : results;
    l->host_bytes = ZERO_HOST_CHUNK * sizeof(float);
    if (results + l->watched_bytes > l->host_bytes) l->host_bytes = results + l->watched_bytes;
    const size_t sums = (size_t)l->n_matrices * ZERO_RESULT_NBYTES;
    if (sums > l->host_bytes) l->host_bytes = sums;
}

static size_t params_nbytes(const zero_layout *l, int p, const int64_t *len)
{
    return (size_t)len[p] * dt_dtype_size(l->param_dtype[p]);
}

size_t zero_arrays_nbytes(const zero_layout *l, dt_memspace space, int end)
{
    size_t nbytes = 0;
    for (int a = 0; a < end; a++)
        if (l->array[a].space == space) nbytes += zero_array_nbytes(l, a);
    return nbytes;
}

dt_swap_options zero_file_options(const zero_layout *l, const char *dir, dt_ledger *ledger)
{
    size_t transfers = dt_swap_transfers(l->fetch_bytes);
    for (int a = 0; a <= l->n_states && l->swap_bytes > 0; a++) /* each is a separate request */
        transfers += dt_swap_transfers((size_t)l->group_len * dt_dtype_size(l->array[a].dtype));
    dt_swap_options file = {.dir = dir, .what = "offloaded states", .ledger = ledger};
    file.depth = (int)dt_min_i64(l->n_buffers * (int64_t)transfers, ZERO_FILE_DEPTH_MAX);
    for (int p = 0; p < DT_N_PARTS && l->away_space == DT_IN_FILE; p++)
        file.nbytes[DT_MEM_PARAMS] += params_nbytes(l, p, l->away_len);
    file.nbytes[DT_MEM_OPTIMIZER] = zero_arrays_nbytes(l, DT_IN_FILE, l->n_arrays);
    return file;
}

/** Memory space of offloaded states. `in_host_memory` is pinned memory for states that the device copies. */
static dt_memspace space_of_offload(dt_offload offload, dt_memspace in_host_memory)
{
    return offload == DT_OFFLOAD_NVME ? DT_IN_FILE : offload == DT_OFFLOAD_CPU ? in_host_memory : DT_ON_DEVICE;
}

/** The type of all codes: a model has codes of one type only. */
static dt_dtype codes_dtype(const dt_unit *units, int n_units)
{
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < units[u].n_tensors; i++)
            if (units[u].tensors[i].part == DT_CODES) return units[u].tensors[i].coded.type;
    return DT_I8;
}

static void set_flags(zero_layout *l, const dt_zero_options *opt, const dt_unit *units)
{
    bool trained = false;
    for (int u = 0; u < l->n_units; u++) trained = trained || units[u].flat_len[DT_TRAINED] > 0;
    l->has_grads = trained && opt->optimizer;
    l->grads_down = l->has_grads && opt->offload_optimizer != DT_OFFLOAD_NONE;
    l->host_grad_space = opt->pin_memory ? DT_ON_PINNED : DT_ON_HOST;
    l->opt_space = l->grads_down ? space_of_offload(opt->offload_optimizer, DT_ON_HOST) : DT_ON_DEVICE;
    l->away_space = space_of_offload(opt->offload_param, l->host_grad_space);
    const bool offloads = l->grads_down || l->away_space != DT_ON_DEVICE;
    l->n_streams = opt->overlap_comm + offloads;
    l->stage = l->group_nranks == 1 && !offloads ? 1 : l->grads_down && opt->stage == 0 ? 1 : opt->stage;
    l->n_states = l->has_grads ? opt->optimizer->n_states : 0;
    l->state_dtype = opt->state_dtype;
    /* In reproducible mode every micro-step is reduced. Full gradients would never accumulate, so every stage keeps
     * shards. */
    l->whole_grads = l->stage < 2 && !opt->reproducible;
    l->whole_opt = l->stage == 0 && l->has_grads;
    l->has_master = l->has_grads && (offloads || opt->param_dtype != DT_F32);
    l->param_dtype[DT_TRAINED] = opt->param_dtype;
    l->param_dtype[DT_FROZEN] = opt->param_dtype;
    l->param_dtype[DT_EXACT] = DT_F32;
    l->param_dtype[DT_CODES] = codes_dtype(units, l->n_units);
    l->param_dtype[DT_BLOCKS] = DT_U8;
    l->param_dtype[DT_SCALES] = DT_F32;
    l->grad_dtype = opt->grad_dtype;
    l->grad_kept = opt->reproducible ? DT_F32 : opt->grad_dtype;
    l->grad_sent = opt->reduce_differs ? opt->reduce_dtype : opt->grad_dtype;
}

static dt_err make_tables(zero_layout *l, const dt_unit *units)
{
    size_t n_runs = 0, n_tensors = 0; /* upper bounds */
    for (int u = 0; u < l->n_units; u++) {
        DT_TRY(check_unit(&units[u]));
        n_tensors += (size_t)units[u].n_tensors;
        for (int i = 0; i < units[u].n_tensors; i++) n_runs += 1 + (size_t)units[u].tensors[i].n_row_ranges;
        l->n_param += units[u].n_param;
    }
    DT_ALLOC(l->units, l->n_units, "out of memory for the tables of %d units", l->n_units);
    DT_ALLOC(l->runs, n_runs + 1, "out of memory for the tables of %d units", l->n_units);
    DT_ALLOC(l->spans, n_tensors + 1, "out of memory for the tables of %d units", l->n_units);
    DT_ALLOC(l->matrices, n_tensors + 1, "out of memory for the tables of %d units", l->n_units);
    return DT_OK;
}

/** Compute for one unit which parts are kept whole, the memory space of the others, and the runs of the optimizer. */
static void arrange_unit(zero_layout *l, const dt_zero_options *opt, const dt_unit *unit, zero_unit_layout *ul)
{
    ul->inner = unit->role == DT_UNIT_EXPERTS;
    for (int p = 0; p < DT_N_PARTS; p++) {
        const int64_t len = unit->flat_len[p];
        ul->part[p].shards =
            dt_shards_of(len, l->nranks, l->n_groups, p == DT_TRAINED ? update_align(l) : DT_SHARD_ALIGN);
        ul->part[p].whole = l->stage < 3 || len < opt->param_persistence_threshold;
        ul->part[p].space = ul->part[p].whole ? DT_ON_DEVICE : l->away_space;
    }
    add_runs(l, opt, ul, unit);
}

static dt_err arrange(zero_layout *l, const dt_zero_options *opt, const dt_unit *units)
{
    DT_TRY(make_tables(l, units));
    set_flags(l, opt, units);
    for (int u = 0; u < l->n_units; u++) arrange_unit(l, opt, &units[u], &l->units[u]);
    if (l->n_matrices > 0) DT_TRY(zero_assign_matrices(l, opt->optimizer->matrices));
    list_arrays(l);
    place_kept(l);
    DT_TRY(place_arrays(l));
    if (l->has_grads && !l->whole_grads)
        l->grad_arena_len =
            place_arena(l, (arena_kind){DT_TRAINED, true}, opt->tied_unit, opt->overlap_comm ? INT64_MAX : 0);
    DT_TRY(arrange_params(l, opt, units));
    size_staging(l, opt);
    const dt_swap_options file = zero_file_options(l, "", NULL);
    l->has_file = file.nbytes[DT_MEM_PARAMS] + file.nbytes[DT_MEM_OPTIMIZER] > 0;
    return DT_OK;
}

dt_err zero_layout_make(zero_layout *l, const dt_zero_options *opt, const dt_unit *units, int n_units, int nranks)
{
    *l = (zero_layout){0};
    DT_TRY(check_options(opt, n_units, nranks));
    *l = (zero_layout){.nranks = nranks, .n_groups = opt->n_groups ? opt->n_groups : 1, .n_units = n_units};
    l->group_nranks = nranks / l->n_groups;
    const dt_err err = arrange(l, opt, units);
    if (err != DT_OK) zero_layout_free(l);
    return err;
}

void zero_layout_free(zero_layout *l)
{
    for (int a = 0; a < l->n_arrays; a++) free(l->array[a].packed_at);
    free(l->units);
    free(l->runs);
    free(l->spans);
    free(l->matrices);
    free(l->block_nbytes);
    *l = (zero_layout){0};
}
