/* remedy.c - the smallest change that makes a configuration fit. Lists every combination of changes that leave the
 * result the same to rounding, ordered by number of keys and then by cost, and returns the first whose plan fits. A
 * plan takes less than a millisecond, so exhaustive search is enough. */
#include "../run.h"
#include <inttypes.h>
#include <stdlib.h>

/* An order among proposals of equally many keys, and nothing else: a greater number costs more time. For recomputation
 * it is the measured per cent of a step (docs/data/epyc-recompute.csv). The others depend on the machine, so they stand
 * by what is moved and where what is moved can hide:
 *
 *     stage 2      as many bytes as stage 1, but in every micro-step
 *     saves        nothing but the time of a save, which training waits for
 *     half         the same work in twice as many micro-steps, each with smaller products and collectives of its own
 *     live         gathers that the computation waits for
 *     stage 3      half as many bytes again, and collectives in forward
 *     offload cpu  gradients and parameters pass the bus once a step, and the processor updates; or all parameters pass
 *                  it in every pass: more than block's recomputation, which needs nothing from outside the device
 *     nvme         12 bytes and more of each parameter come from a disk and go back: above any sum of the others */
static const int cost_of_stage[] = {0, 0, 1, 10}, cost_of_offload[] = {0, 60, 300}, cost_of_recompute[] = {0, 1, 20};
enum { COST_OF_LIVE = 8, COST_OF_HALF = 5, COST_OF_SAVES = 2, COST_OF_WORLD = 10 };

static const char *const recompute_words[] = {"none", "selective", "block"}; /* dt_recompute */
enum { N_RECOMPUTE = sizeof recompute_words / sizeof recompute_words[0] };

typedef struct proposal {
    strategy strategy;
    dt_recompute recompute;
    int64_t micro_batch_size;
    bool live;                /* the minimum max_live_parameters that works */
    bool waits;               /* for a checkpoint to be written, so that no copy of it is kept */
    int n_keys, cost, number; /* number: of the list as it was made, which settles the rest */
} proposal;

typedef struct search {
    const dt_run *run;
    const plan_setting *from;
    const limits *limits;
    const rank_memory *short_of; /* the memory that is too small */
    bool is_auto;
    proposal *list;
    int n, room;
} search;

/* With auto, only keys that the user set count as keys to change. */
static bool is_key(const search *s, const char *name)
{
    return !s->is_auto || (strcmp(name, "stage") != 0 && dt_config_given(&s->run->cfg, "zero", name));
}

typedef struct differences {
    bool stage, offload_optimizer, offload_param, group, recompute, batch;
} differences;

static differences compare(const search *s, const proposal *p)
{
    const strategy *was = &s->from->strategy, *now = &p->strategy;
    const bool as_0 = was->stage == 0 && now->stage == 1 && now->offload_optimizer != DT_OFFLOAD_NONE;
    return (differences){
        .stage = now->stage != was->stage && !as_0 && is_key(s, "stage"), /* with offload 0 does as 1 */
        .offload_optimizer = now->offload_optimizer != was->offload_optimizer && is_key(s, "offload_optimizer"),
        .offload_param = now->offload_param != was->offload_param && is_key(s, "offload_param"),
        .group = now->by_node != was->by_node,
        .recompute = p->recompute != s->from->model_opt.recompute,
        .batch = p->micro_batch_size != s->from->batching.micro_batch_size,
    };
}

static void rate(const search *s, proposal *p)
{
    const differences d = compare(s, p);
    int halves = 0;
    for (int64_t m = p->micro_batch_size; m < s->from->batching.micro_batch_size; m *= 2) halves++;
    p->n_keys = d.stage + d.offload_optimizer + d.offload_param + d.group + d.recompute + d.batch + p->live + p->waits;
    p->cost = cost_of_stage[p->strategy.stage] + cost_of_offload[p->strategy.offload_optimizer] +
              cost_of_offload[p->strategy.offload_param] + cost_of_recompute[p->recompute] + COST_OF_HALF * halves +
              COST_OF_LIVE * p->live + COST_OF_SAVES * p->waits + COST_OF_WORLD * d.group;
}

static dt_err add(search *s, const proposal *p)
{
    if (s->n == s->room) {
        const int room = 2 * s->room + 64;
        proposal *list = realloc(s->list, (size_t)room * sizeof *list);
        DT_CHECK(list, DT_ERR_MEMORY, "out of memory for the search of a setting that fits");
        s->list = list, s->room = room;
    }
    s->list[s->n] = *p;
    s->list[s->n].number = s->n;
    rate(s, &s->list[s->n]);
    if (s->list[s->n].n_keys > 0) s->n++;
    return DT_OK;
}

static int64_t smallest_factor(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0) return d;
    return n;
}

/* Smaller micro-batches with as many more of them: divisors leave the batch as it is. */
static dt_err add_batches(search *s, proposal p)
{
    for (int64_t m = s->from->batching.micro_batch_size;; m /= smallest_factor(m)) {
        p.micro_batch_size = m;
        for (int i = 0; i < 4; i++) {
            p.live = i & 1, p.waits = i & 2;
            if (p.live <= (p.strategy.stage == 3) && p.waits <= s->from->saves_beside) DT_TRY(add(s, &p));
        }
        if (m == 1) return DT_OK;
    }
}

/* At least as much offload as before. If the disk is full, less offload to files helps. */
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

static dt_err add_strategy(search *s, strategy now)
{
    const int first = s->from->model_opt.recompute, last = s->from->model_opt.training ? N_RECOMPUTE - 1 : first;
    for (int r = first; r <= last && saves(s, &now); r++)
        DT_TRY(add_batches(s, (proposal){.strategy = now, .recompute = (dt_recompute)r}));
    return DT_OK;
}

static dt_err add_all(search *s)
{
    strategy list[MAX_STRATEGIES + 1];
    int n = run_strategies(s->run, false, list);
    bool has_own = false; /* auto may never try it */
    for (int i = 0; i < n; i++) has_own = has_own || run_same_strategy(&list[i], &s->from->strategy);
    if (!has_own) list[n++] = s->from->strategy;
    for (int i = 0; i < n; i++) {
        DT_TRY(add_strategy(s, list[i]));
        list[i].by_node = false;
        if (s->from->strategy.by_node) DT_TRY(add_strategy(s, list[i]));
    }
    return DT_OK;
}

static int by_keys_and_cost(const void *a, const void *b)
{
    const proposal *x = a, *y = b;
    return x->n_keys != y->n_keys ? x->n_keys - y->n_keys
           : x->cost != y->cost   ? x->cost - y->cost
                                  : x->number - y->number;
}

/* A packed row or a long sample has at most seq_len tokens; the data is not read again. */
static plan_setting setting_of(const search *s, const proposal *p)
{
    plan_setting with = *s->from;
    const int64_t times = with.batching.micro_batch_size / p->micro_batch_size,
                  most = p->micro_batch_size * s->run->cfg.data_seq_len;
    with.strategy = p->strategy;
    with.model_opt.recompute = p->recompute;
    with.saves_beside = with.saves_beside && !p->waits;
    if (times == 1) return with;
    with.batching.micro_batch_size = p->micro_batch_size;
    with.batching.accumulation *= times;
    if (most < with.model_opt.max_tok) with.model_opt.max_tok = (int32_t)most;
    with.model_opt.max_images /= (int32_t)times; /* as many for each sample */
    if (!with.model_opt.training) return with;
    with.accumulates = true;
    with.model_opt.grad_dtype = DT_F32;
    return with;
}

typedef struct remedy {
    char keys[400]; /* the settings, "zero.stage = 2" */
    plan_setting with;
    rank_plan plan;
} remedy;

static dt_err try_proposal(const search *s, const proposal *p, remedy *r, bool *found)
{
    trial t;
    r->with = setting_of(s, p);
    if (p->live) r->with.max_live_parameters = 1; /* never enough, so the plan reports the required value */
    DT_TRY(run_trial(s->run, &r->with, s->limits, &t));
    if (p->live) r->with.max_live_parameters = t.plan.needs_live;
    *found = !t.short_of && p->live == (t.plan.needs_live > 0);
    r->plan = t.plan;
    return DT_OK;
}

/* ---- as people would write it ------------------------------------------------------------------------------------ */

static void say(char out[], size_t size, const char *key, const char *value)
{
    const size_t len = strlen(out);
    snprintf(out + len, size - len, "%s%s = %s", len ? ", " : "", key, value);
}

static void say_number(char out[], size_t size, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    say(out, size, key, text);
}

/* Of the three sizes of a batch, those that keep train_batch_size as it is. */
static void say_batch(const dt_run *run, const dt_batching *b, char out[], size_t size)
{
    const dt_config *cfg = &run->cfg;
    const bool total = cfg->batch_train_batch_size > 0, micro = cfg->batch_micro_batch_size > 0,
               steps = cfg->batch_gradient_accumulation_steps > 0;
    if (micro || !total || !steps) say_number(out, size, "batch.micro_batch_size", b->micro_batch_size);
    if (run->main.zero_opt.optimizer && (steps || !total))
        say_number(out, size, "batch.gradient_accumulation_steps", b->accumulation);
}

static void say_keys(const search *s, const proposal *p, remedy *r)
{
    const differences d = compare(s, p);
    const strategy *now = &p->strategy;
    const size_t size = sizeof r->keys;
    *r->keys = '\0';
    if (d.stage) say_number(r->keys, size, "zero.stage", now->stage);
    if (d.offload_optimizer) say(r->keys, size, "zero.offload_optimizer", run_offload_name(now->offload_optimizer));
    if (d.offload_param) say(r->keys, size, "zero.offload_param", run_offload_name(now->offload_param));
    if (d.group) say(r->keys, size, "zero.shard_group", "world");
    if (p->live) say_number(r->keys, size, "zero.max_live_parameters", r->with.max_live_parameters);
    if (p->waits) say(r->keys, size, "checkpoint.async", "false");
    if (d.recompute) say(r->keys, size, "model.activation_checkpointing", recompute_words[p->recompute]);
    if (d.batch) say_batch(s->run, &r->with.batching, r->keys, size);
}

static dt_err find(search *s, remedy *r, bool *found)
{
    dt_err err = add_all(s);
    *found = false;
    if (s->n > 0) qsort(s->list, (size_t)s->n, sizeof *s->list, by_keys_and_cost);
    for (int i = 0; i < s->n && err == DT_OK && !*found; i++) {
        err = try_proposal(s, &s->list[i], r, found);
        if (err == DT_OK && *found) say_keys(s, &s->list[i], r);
    }
    free(s->list);
    return err;
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

/* The fewest ranks on which it fits at stage 3, in multiples of `unit`; 0: not on 2^17. A rank's memory falls with
 * their number, so halving the interval finds them. */
static dt_err ranks_that_fit(const search *s, int64_t unit, int64_t *nranks)
{
    enum { MOST = 1 << 17 };
    int64_t low = s->from->nranks / unit, high = low > 0 ? low : 1; /* in units: too few, and enough */
    bool fit = false;
    if (low == 0) DT_TRY(fits_on(s, unit, &fit));
    while (!fit && 2 * high * unit <= MOST) {
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

static void say_found(const search *s, const remedy *r, const rank_memory *short_of, char out[REMEDY_TEXT])
{
    const dt_memory missing = run_missing(&r->plan.memory, &s->limits->held);
    char needs[24], takes[STRATEGY_TEXT] = "";
    if (s->is_auto) run_strategy_text(&r->with.strategy, takes);
    snprintf(out, REMEDY_TEXT, "the smallest change that fits is %s%s%s, which needs %s of %s", r->keys,
             s->is_auto ? "; auto then takes " : "", takes,
             dt_format_bytes((double)run_part(&missing, short_of), needs), short_of->name);
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
    search s = {.run = run, .from = with, .limits = l, .short_of = short_of, .is_auto = is_auto};
    remedy r;
    bool found;
    int64_t nranks = 0;
    char ranks[80] = "";
    DT_TRY(find(&s, &r, &found));
    if (found) return say_found(&s, &r, short_of, out), DT_OK;
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
