/* remedy.c - the smallest change that makes a configuration fit. Only combinations of changes that keep the result
 * up to rounding are candidates. The one with the fewest keys is chosen, and among those the one that costs the least
 * time. A plan takes less than a millisecond, or about 20 for the 45 thousand tensors of DeepSeek-V3. Every combination
 * that would be better than the best so far is therefore tried. */
#include "../run.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

/* Costs only order changes with the same number of keys: a larger value costs more time. For recomputation it is the
 * measured per cent of a step (docs/data/epyc-recompute.csv). The other costs depend on the machine. They are
 * ordered by the bytes moved, and by whether computation can hide the transfer:
 *
 *     stage 2      as many bytes as stage 1, but in every micro-step
 *     saves        training waits for each save
 *     half         twice as many micro-steps, with smaller matmuls and additional collectives
 *     live         the computation waits for gathers
 *     groups       more collectives, which are smaller
 *     stage 3      1.5 times the bytes, and collectives in forward
 *     offload cpu  gradients and updated parameters cross the bus once a step, and the CPU updates them. Offloaded
 *                  parameters cross it in every pass. Block recomputation uses only the device
 *     nvme         at least 12 bytes per parameter are read from a disk and written back: above any sum of others */
static const int cost_of_stage[] = {0, 0, 1, 10}, cost_of_offload[] = {0, 60, 300}, cost_of_recompute[] = {0, 1, 20};
enum { COST_OF_LIVE = 8, COST_OF_HALF = 5, COST_OF_SAVES = 2, COST_OF_WORLD = 10, COST_OF_GROUPS = 3 };

static const char *const recompute_words[] = {"none", "selective", "block"}; /* dt_recompute */
enum { N_RECOMPUTE = sizeof recompute_words / sizeof recompute_words[0], KEYS_TEXT = 400 };

typedef struct search {
    const dt_run *run;
    const plan_setting *from;
    const limits *limits;
    const rank_memory *short_of; /* the memory that is too small */
    bool is_auto;
    int n_keys, cost; /* of the best so far; n_keys 0: none fits yet */
    plan_setting with;
    char keys[KEYS_TEXT]; /* "zero.stage = 2" */
} search;

/* ---- a change as a user would write it --------------------------------------------------------------------------- */

/* Returns 1, for a key. */
static int say(char out[KEYS_TEXT], const char *fmt, ...)
{
    const size_t len = strlen(out);
    const int comma = snprintf(out + len, KEYS_TEXT - len, "%s", len ? ", " : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + len + comma, KEYS_TEXT - len - (size_t)comma, fmt, args);
    va_end(args);
    return 1;
}

/* The batch size keys that keep train_batch_size. They count as one key. */
static int say_batch(const dt_run *run, const dt_batching *b, char out[KEYS_TEXT])
{
    const dt_config *cfg = &run->cfg;
    const bool total = cfg->batch_train_batch_size > 0, micro = cfg->batch_micro_batch_size > 0,
               steps = cfg->batch_gradient_accumulation_steps > 0;
    if (micro || !total || !steps) say(out, "batch.micro_batch_size = %" PRId64, b->micro_batch_size);
    if (run->main.zero_opt.optimizer && (steps || !total))
        say(out, "batch.gradient_accumulation_steps = %" PRId64, b->accumulation);
    return 1;
}

/* With auto, only keys that the user set count as keys to change. */
static bool is_key(const search *s, const char *name)
{
    return !s->is_auto || (strcmp(name, "stage") != 0 && dt_config_given(&s->run->cfg, "zero", name));
}

/* The keys in which a setting differs; returns their number. */
static int say_keys(const search *s, const plan_setting *with, bool live, char out[KEYS_TEXT])
{
    const strategy *was = &s->from->strategy, *now = &with->strategy;
    const bool as_0 = was->stage == 0 && now->stage == 1 && now->offload_optimizer != DT_OFFLOAD_NONE;
    int n = 0;
    *out = '\0';
    if (now->stage != was->stage && !as_0 && is_key(s, "stage")) /* with offload 0 does as 1 */
        n += say(out, "zero.stage = %d", now->stage);
    if (now->offload_optimizer != was->offload_optimizer && is_key(s, "offload_optimizer"))
        n += say(out, "zero.offload_optimizer = %s", run_offload_name(now->offload_optimizer));
    if (now->offload_param != was->offload_param && is_key(s, "offload_param"))
        n += say(out, "zero.offload_param = %s", run_offload_name(now->offload_param));
    if (now->by_node != was->by_node) n += say(out, "zero.shard_group = world");
    if (with->auto_groups != s->from->auto_groups) n += say(out, "zero.expert_group_size = auto");
    if (live) n += say(out, "zero.max_live_parameters = %" PRId64, with->max_live_parameters);
    if (with->saves_async != s->from->saves_async) n += say(out, "checkpoint.async = false");
    if (with->model_opt.recompute != s->from->model_opt.recompute)
        n += say(out, "model.activation_checkpointing = %s", recompute_words[with->model_opt.recompute]);
    if (with->batching.micro_batch_size != s->from->batching.micro_batch_size)
        n += say_batch(s->run, &with->batching, out);
    return n;
}

/* ---- the search -------------------------------------------------------------------------------------------------- */

static int cost_of(const search *s, const plan_setting *with, bool live)
{
    int halves = 0;
    for (int64_t m = with->batching.micro_batch_size; m < s->from->batching.micro_batch_size; m *= 2) halves++;
    return cost_of_stage[with->strategy.stage] + cost_of_offload[with->strategy.offload_optimizer] +
           cost_of_offload[with->strategy.offload_param] + cost_of_recompute[with->model_opt.recompute] +
           COST_OF_HALF * halves + COST_OF_LIVE * live + COST_OF_SAVES * (with->saves_async != s->from->saves_async) +
           COST_OF_WORLD * (with->strategy.by_node != s->from->strategy.by_node) +
           COST_OF_GROUPS * (with->auto_groups != s->from->auto_groups);
}

/* live: with the minimum max_live_parameters that works. */
static dt_err try_setting(search *s, plan_setting with, bool live)
{
    char keys[KEYS_TEXT];
    trial t;
    if (live) with.max_live_parameters = 1; /* never enough, so the plan reports the required value */
    const int n_keys = say_keys(s, &with, live, keys), cost = cost_of(s, &with, live);
    const bool better = n_keys < s->n_keys || (n_keys == s->n_keys && cost < s->cost);
    if (n_keys == 0 || (s->n_keys > 0 && !better)) return DT_OK;
    DT_TRY(run_trial(s->run, &with, s->limits, &t));
    if (t.short_of || live != (t.plan.needs_live > 0)) return DT_OK;
    if (live) with.max_live_parameters = t.plan.needs_live;
    s->n_keys = n_keys, s->cost = cost;
    s->with = with;
    say_keys(s, &with, live, s->keys);
    return DT_OK;
}

static int64_t smallest_factor(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0) return d;
    return n;
}

/* Smaller micro-batches, as many more of them. A packed row or a long sample has at most seq_len tokens; the data is
 * not read again. */
static void split_batch(plan_setting *with, int64_t times, int64_t seq_len)
{
    const int64_t micro = with->batching.micro_batch_size / times, most = micro * seq_len;
    if (times == 1) return;
    with->batching.micro_batch_size = micro;
    with->batching.accumulation *= times;
    if (most < with->model_opt.max_tok) with->model_opt.max_tok = (int32_t)most;
    with->model_opt.max_images /= (int32_t)times; /* as many for each sample */
    if (!with->model_opt.training) return;
    with->accumulates = true;
    with->model_opt.grad_dtype = DT_F32;
}

/* Divisors leave the batch as it is. */
static dt_err try_batches(search *s, const plan_setting *of)
{
    const int64_t micro = of->batching.micro_batch_size;
    for (int64_t m = micro;; m /= smallest_factor(m)) {
        plan_setting with = *of;
        split_batch(&with, micro / m, s->run->cfg.data_seq_len);
        for (int waits = 0; waits <= s->from->saves_async; waits++) {
            with.saves_async = s->from->saves_async && !waits;
            DT_TRY(try_setting(s, with, false));
            if (with.strategy.stage == 3) DT_TRY(try_setting(s, with, true));
        }
        if (m == 1) return DT_OK;
    }
}

/* Proposals never offload less than before, except to files if the disk is full. */
static bool offloads_enough(const search *s, dt_offload now, dt_offload was)
{
    return now >= was || (was == DT_OFFLOAD_NVME && s->short_of->holds[DT_IN_FILE]);
}

/* If the user set a stage and an offload, do not propose less of either. */
static bool saves(const search *s, const strategy *now)
{
    const strategy *was = &s->from->strategy;
    return s->is_auto ||
           (now->stage >= was->stage && offloads_enough(s, now->offload_optimizer, was->offload_optimizer) &&
            offloads_enough(s, now->offload_param, was->offload_param));
}

static dt_err try_recompute(search *s, plan_setting with)
{
    const int first = with.model_opt.recompute, last = with.model_opt.training ? N_RECOMPUTE - 1 : first;
    for (int r = first; r <= last; r++) {
        with.model_opt.recompute = (dt_recompute)r;
        DT_TRY(try_batches(s, &with));
    }
    return DT_OK;
}

/* Also with groups of experts by auto, if the user set their size. */
static dt_err try_strategy(search *s, strategy now)
{
    plan_setting with = *s->from;
    with.strategy = now;
    if (!saves(s, &now)) return DT_OK;
    DT_TRY(try_recompute(s, with));
    if (with.auto_groups || s->run->mc.num_experts == 0) return DT_OK;
    with.auto_groups = true, with.strategy.expert_group_size = 0;
    return try_recompute(s, with);
}

static dt_err try_all(search *s)
{
    strategy list[MAX_STRATEGIES + 1];
    int n = run_strategies(s->run, false, list);
    bool has_own = false; /* auto may never try it */
    for (int i = 0; i < n; i++) has_own = has_own || run_same_strategy(&list[i], &s->from->strategy);
    if (!has_own) list[n++] = s->from->strategy;
    for (int i = 0; i < n; i++) {
        DT_TRY(try_strategy(s, list[i]));
        list[i].by_node = false;
        if (s->from->strategy.by_node) DT_TRY(try_strategy(s, list[i]));
    }
    return DT_OK;
}

/* ---- more ranks -------------------------------------------------------------------------------------------------- */

static dt_err fits_on(const search *s, int64_t nranks, bool *fit)
{
    plan_setting more = *s->from;
    trial t;
    more.nranks = (int)nranks;
    more.strategy.stage = 3;
    more.strategy.by_node = false; /* more nodes would be more copies */
    DT_TRY(run_trial(s->run, &more, s->limits, &t));
    *fit = t.works;
    return DT_OK;
}

/* The minimum number of ranks on which it fits at stage 3, in multiples of `unit`; 0: not on 2^17. A rank's memory
 * decreases with this number, so bisection finds it. */
static dt_err ranks_that_fit(const search *s, int64_t unit, int64_t *nranks)
{
    enum { MAX_RANKS = 1 << 17 };
    int64_t low = s->from->nranks / unit, high = low > 0 ? low : 1; /* in units: too few, and enough */
    bool fit = false;
    if (low == 0) DT_TRY(fits_on(s, unit, &fit));
    while (!fit && 2 * high * unit <= MAX_RANKS) {
        low = high;
        high *= 2;
        DT_TRY(fits_on(s, high * unit, &fit));
    }
    while (fit && high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        bool enough;
        DT_TRY(fits_on(s, middle * unit, &enough));
        *(enough ? &high : &low) = middle;
    }
    *nranks = fit ? high * unit : 0;
    return DT_OK;
}

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static dt_err say_found(const search *s, const limits *l, char out[REMEDY_TEXT])
{
    strategy found = s->with.strategy;
    char needs[24], takes[STRATEGY_TEXT] = "";
    trial t;
    DT_TRY(run_trial(s->run, &s->with, l, &t));
    found.expert_group_size = t.expert_group_size;
    const dt_memory missing = run_missing(&t.plan.memory, &l->held);
    if (s->is_auto) run_strategy_text(&found, takes);
    snprintf(out, REMEDY_TEXT, "the smallest change that fits is %s%s%s, which needs %s of %s", s->keys,
             s->is_auto ? "; auto then takes " : "", takes,
             dt_format_bytes((double)run_part(&missing, s->short_of), needs), s->short_of->name);
    return DT_OK;
}

/* Remedies other than keys, and keys that change the result. */
static void say_others(const rank_memory *short_of, char out[REMEDY_TEXT])
{
    const size_t len = strlen(out);
    const bool of_node = !strcmp(short_of->shared_by, "node");
    char ranks[40] = "";
    if (short_of->n_sharing > 1) snprintf(ranks, sizeof ranks, "fewer ranks per %s, ", short_of->shared_by);
    snprintf(out + len, REMEDY_TEXT - len, "try %s%sa smaller data.seq_len", ranks,
             !of_node                      ? ""
             : short_of->holds[DT_IN_FILE] ? "more disk space per node, "
                                           : "more memory per node, ");
}

dt_err run_say_remedy(const dt_run *run, const plan_setting *with, const limits *l, bool is_auto, int64_t unit,
                      const rank_memory *short_of, char out[REMEDY_TEXT])
{
    limits quick = *l;
    quick.quick = true;
    search s = {.run = run, .from = with, .limits = &quick, .short_of = short_of, .is_auto = is_auto};
    int64_t nranks = 0;
    char ranks[80] = "";
    DT_TRY(try_all(&s));
    if (s.n_keys > 0) return say_found(&s, l, out);
    const dt_mesh_shape shape = run_mesh(run, &with->strategy);
    const int64_t n_team = dt_team_of(&shape).n;
    if (unit > 0 && unit % n_team != 0) unit *= n_team;
    if (unit > 0) DT_TRY(ranks_that_fit(&s, unit, &nranks));
    if (nranks > 0)
        snprintf(ranks, sizeof ranks, "stage 3 needs at least %" PRId64 " ranks%s; or ", nranks,
                 unit > 1 ? ", on whole nodes" : "");
    snprintf(
        out, REMEDY_TEXT,
        "no setting of [zero], model.activation_checkpointing, checkpoint.async and batch.micro_batch_size fits; %s",
        ranks);
    say_others(short_of, out);
    return DT_OK;
}
