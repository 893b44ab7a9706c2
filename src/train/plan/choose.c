/* choose.c - check and choose the memory layout before a run allocates memory. A configuration that cannot fit is
 * refused with the smallest change that would make it fit. With zero.stage = auto, the first strategy that fits on
 * every rank is used. */
#include "../run.h"
#include <inttypes.h>
#include <stdlib.h>

static dt_err try_one(const dt_run *run, const plan_setting *with, const limits *l, trial *t)
{
    DT_TRY(run_try(run, with, &t->plan));
    const dt_memory missing = run_missing(&t->plan.memory, &l->held);
    t->short_of = run_exceeds(l->budget, l->usable, &missing);
    t->works = !t->short_of && t->plan.needs_live == 0;
    return DT_OK;
}

static dt_err try_whole(const dt_run *run, const plan_setting *with, const limits *l, trial *t)
{
    plan_setting gathered = *with;
    t->expert_group_size = with->strategy.expert_group_size, t->n_experts = 0;
    t->gathered = gathered.gathered = run->task.wants_gathered && with->strategy.stage == 3;
    if (t->gathered) DT_TRY(try_one(run, &gathered, l, t));
    t->gathered = t->gathered && t->works;
    return t->gathered ? DT_OK : try_one(run, with, l, t);
}

/* ---- zero.expert_group_size = auto ------------------------------------------------------------------------------- */

/* With zero.stage = auto, stage 3 follows stage 2 and needs less memory, also without groups. */
static bool may_group(const dt_run *run, const plan_setting *with)
{
    const int stage = with->strategy.stage;
    return with->auto_groups && (stage == 3 || (stage == 2 && strcmp(run->cfg.zero_stage, "auto") != 0));
}

static int64_t most_experts(const dt_run *run)
{
    int64_t n = 0;
    for (int i = 0; i < run->n_trained; i++)
        n = dt_max_i64(n, dt_units_n_experts(run->trained[i]->units, run->trained[i]->n_units));
    for (int i = 0; i < run->task.n_models; i++)
        n = dt_max_i64(n, dt_units_n_experts(run->task.models[i].units, run->task.models[i].n_units));
    return n;
}

typedef struct grouping {
    const dt_run *run;
    plan_setting with;
    limits limits;
    trial *t; /* the last that works */
} grouping;

static dt_err try_groups(grouping *g, int64_t n_groups, trial *t)
{
    g->with.strategy.expert_group_size = dt_ceil_div(g->t->n_experts, n_groups);
    DT_TRY(try_one(g->run, &g->with, &g->limits, t));
    t->expert_group_size = g->with.strategy.expert_group_size;
    return DT_OK;
}

/* Memory decreases with the number of groups, so bisection finds the fewest that fit. */
static dt_err find_fewest(grouping *g)
{
    int64_t too_few = 1, enough = g->t->n_experts;
    while (enough - too_few > 1) {
        const int64_t middle = too_few + (enough - too_few) / 2;
        trial now = *g->t;
        DT_TRY(try_groups(g, middle, &now));
        if (now.works) *g->t = now;
        *(now.works ? &enough : &too_few) = middle;
    }
    return DT_OK;
}

dt_err run_trial(const dt_run *run, const plan_setting *with, const limits *l, trial *t)
{
    DT_TRY(try_whole(run, with, l, t));
    const int64_t n = t->works || !may_group(run, with) ? 0 : most_experts(run);
    if (n < 2) return DT_OK;
    grouping g = {.run = run, .with = *with, .limits = *l, .t = t};
    g.with.gathered = false;
    t->n_experts = n, t->whole_short_of = t->short_of, t->whole_needs_live = t->plan.needs_live;
    if (g.limits.usable > RUN_USABLE) g.limits.usable = RUN_USABLE;
    DT_TRY(try_groups(&g, n, t));
    if (t->works) return l->quick ? DT_OK : find_fewest(&g);
    g.limits = *l;
    return try_groups(&g, n, t);
}

const char *run_groups_text(const trial *t, char out[GROUPS_TEXT])
{
    *out = '\0';
    if (t->n_experts == 0) return out;
    const int n = snprintf(out, GROUPS_TEXT, "zero.expert_group_size = auto takes %d of %d experts, because ",
                           (int)t->expert_group_size, (int)t->n_experts);
    if (t->whole_short_of)
        snprintf(out + n, GROUPS_TEXT - (size_t)n, "all are too large for the %s", t->whole_short_of->name);
    else if (t->whole_needs_live)
        snprintf(out + n, GROUPS_TEXT - (size_t)n, "all need zero.max_live_parameters >= %" PRId64,
                 t->whole_needs_live);
    else
        snprintf(out + n, GROUPS_TEXT - (size_t)n, "larger groups are too large for the memory of another rank");
    return out;
}

/* ---- configured strategy ----------------------------------------------------------------------------------------- */

static dt_err refuse(const dt_run *run, const plan_setting *with, const limits *l, const trial *t)
{
    const rank_memory *m = t->short_of;
    const dt_memory missing = run_missing(&t->plan.memory, &l->held);
    char what[STRATEGY_TEXT], needs[24], has[24], remedy[REMEDY_TEXT];
    DT_TRY(run_say_remedy(run, with, l, false, with->ranks_per_node, m, remedy));
    return dt_fail(
        DT_ERR_MEMORY,
        "%s does not fit: it needs %s of %s per rank, and %s is free for each of the %d rank%s of this %s; %s",
        run_strategy_text(&with->strategy, what), dt_format_bytes((double)run_part(&missing, m), needs), m->name,
        dt_format_bytes((double)m->nbytes, has), m->n_sharing, m->n_sharing > 1 ? "s" : "", m->shared_by, remedy);
}

dt_err run_check_memory(const dt_run *run, int ranks_per_node)
{
    plan_setting with = run_setting(run, dt_comm_ranks(run->comm), ranks_per_node);
    rank_plan plan;
    trial t;
    budget b;
    if (!run->dev.ops || run->n_units == 0 || dt_config_doubted(&run->cfg, "zero", NULL)) return DT_OK;
    run_budget(run, ranks_per_node, &b);
    const limits l = {.budget = &b, .usable = 1, .quick = true, .held = run_held(run)};
    DT_TRY(run_trial(run, &with, &l, &t));
    with.strategy.expert_group_size = t.expert_group_size;
    DT_TRY(run_plan(run, &with, &plan)); /* reports an invalid max_live_parameters even if the plan fits */
    return t.short_of ? refuse(run, &with, &l, &t) : DT_OK;
}

/* ---- zero.stage = auto ------------------------------------------------------------------------------------------- */

typedef struct choice {
    int n, taken; /* taken: -1 none */
    strategy list[MAX_STRATEGIES];
    trial trials[MAX_STRATEGIES];
} choice;

/* The minimum over all ranks, on every rank. */
static dt_err share_budget(dt_run *run, budget *b)
{
    int64_t nbytes[MAX_MEMORIES] = {0};
    for (int i = 0; i < b->n; i++)
        nbytes[i] = b->memory[i].nbytes < INT64_MAX ? (int64_t)b->memory[i].nbytes : INT64_MAX;
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(run->comm), nbytes, b->n, DT_MIN));
    for (int i = 0; i < b->n; i++) b->memory[i].nbytes = nbytes[i] < INT64_MAX ? (size_t)nbytes[i] : SIZE_MAX;
    return DT_OK;
}

/* Only rank 0 knows which keys the user has set. */
static dt_err share_list(const dt_run *run, choice *c)
{
    if (dt_comm_first(run->comm)) c->n = run_strategies(run, true, c->list);
    DT_TRY(dt_comm_broadcast_host(run->comm, &c->n, sizeof c->n, 0));
    return dt_comm_broadcast_host(run->comm, c->list, sizeof c->list, 0);
}

static dt_err try_all(const dt_run *run, const limits *l, int ranks_per_node, choice *c)
{
    plan_setting with = run_setting(run, dt_comm_ranks(run->comm), ranks_per_node);
    for (int i = 0; i < c->n; i++) {
        with.strategy = c->list[i];
        DT_TRY(run_trial(run, &with, l, &c->trials[i]));
    }
    return DT_OK;
}

/* The smallest groups of all ranks; 0, all experts together, is the largest. */
static dt_err share_groups(dt_run *run, trial *t)
{
    int64_t least = t->expert_group_size > 0 ? t->expert_group_size : INT64_MAX;
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(run->comm), &least, 1, DT_MIN));
    if (least == INT64_MAX || least == t->expert_group_size) return DT_OK;
    t->expert_group_size = least, t->n_experts = most_experts(run);
    t->whole_short_of = NULL, t->whole_needs_live = 0; /* the reason is another rank's */
    return DT_OK;
}

/* Scratch depends on a node's processors, and buffers on its number of ranks, so the choice must work on every rank. */
static dt_err take_first(dt_run *run, choice *c)
{
    int64_t works[MAX_STRATEGIES];
    for (int i = 0; i < c->n; i++) works[i] = c->trials[i].works;
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(run->comm), works, c->n, DT_MIN));
    for (c->taken = 0; c->taken < c->n && !works[c->taken];) c->taken++;
    if (c->taken == c->n) return c->taken = -1, DT_OK;
    DT_TRY(share_groups(run, &c->trials[c->taken]));
    c->list[c->taken].expert_group_size = c->trials[c->taken].expert_group_size;
    return DT_OK;
}

static dt_err refuse_all(const dt_run *run, const limits *l, int ranks_per_node, const choice *c)
{
    const plan_setting with = run_setting(run, dt_comm_ranks(run->comm), ranks_per_node);
    const trial *last = &c->trials[c->n - 1]; /* never empty: stage 3 supports every offload */
    const rank_memory *m = last->short_of ? last->short_of : &l->budget->memory[0];
    const dt_memory missing = run_missing(&last->plan.memory, &l->held);
    char what[STRATEGY_TEXT], needs[24], has[24], remedy[REMEDY_TEXT];
    DT_TRY(run_say_remedy(run, &with, l, true, ranks_per_node, m, remedy));
    return dt_fail(DT_ERR_MEMORY,
                   "zero.stage = auto: no strategy fits: even %s needs %s of %s per rank, but %g of the free memory "
                   "per rank is %s; %s",
                   run_strategy_text(&c->list[c->n - 1], what), dt_format_bytes((double)run_part(&missing, m), needs),
                   m->name, l->usable, dt_format_bytes(l->usable * (double)m->nbytes, has), remedy);
}

static dt_err write_groups(dt_run *run, const trial *t)
{
    char size[24], text[GROUPS_TEXT];
    if (!run_groups_are_auto(run)) return DT_OK;
    if (*run_groups_text(t, text) && dt_comm_first(run->comm)) DT_INFO("%s", text);
    for (int i = 0; i < run->n_trained; i++) run->trained[i]->zero_opt.expert_group_size = t->expert_group_size;
    if (run->mc.num_experts == 0) return DT_OK; /* only other models have experts, and the key is not for them */
    snprintf(size, sizeof size, "%" PRId64, t->expert_group_size);
    return dt_config_set(&run->cfg, "zero", "expert_group_size", size);
}

/* A trial with the memory of the rank that has the least. b: out; t points into it. Collective, agreed. */
static dt_err try_on_all(dt_run *run, const plan_setting *with, double usable, budget *b, trial *t)
{
    run_budget(run, with->ranks_per_node, b);
    DT_TRY(share_budget(run, b));
    const limits l = {.budget = b, .usable = usable, .held = run_held(run)};
    return run_agree(run, run_trial(run, with, &l, t));
}

/* The stage is given, and each rank has checked that it fits. */
static dt_err settle_groups(dt_run *run, int ranks_per_node)
{
    const plan_setting with = run_setting(run, dt_comm_ranks(run->comm), ranks_per_node);
    budget b;
    trial t;
    DT_TRY(try_on_all(run, &with, 1, &b, &t));
    DT_TRY(share_groups(run, &t));
    return run_agree(run, write_groups(run, &t));
}

static dt_err write_down(dt_run *run, const strategy *s, const trial *t)
{
    const char stage[2] = {(char)('0' + s->stage), '\0'};
    for (int i = 0; i < run->n_trained; i++) run_apply(s, &run->trained[i]->zero_opt);
    DT_TRY(write_groups(run, t));
    DT_TRY(dt_config_set(&run->cfg, "zero", "stage", stage));
    DT_TRY(dt_config_set(&run->cfg, "zero", "offload_optimizer", run_offload_name(s->offload_optimizer)));
    DT_TRY(dt_config_set(&run->cfg, "zero", "offload_param", run_offload_name(s->offload_param)));
    return run_check_nvme_path(run);
}

static dt_err settle(dt_run *run, int ranks_per_node, choice *c)
{
    budget b;
    run_budget(run, ranks_per_node, &b);
    DT_TRY(share_budget(run, &b));
    DT_TRY(share_list(run, c));
    const limits l = {.budget = &b, .usable = RUN_USABLE, .held = run_held(run)};
    DT_TRY(run_agree(run, try_all(run, &l, ranks_per_node, c)));
    DT_TRY(take_first(run, c));
    if (dt_comm_first(run->comm)) run_say_trials(c->list, c->trials, c->n, dt_comm_nodes(run->comm) > 1);
    return run_agree(run, c->taken < 0 ? refuse_all(run, &l, ranks_per_node, c)
                                       : write_down(run, &c->list[c->taken], &c->trials[c->taken]));
}

dt_err run_settle_strategy(dt_run *run, int ranks_per_node)
{
    if (strcmp(run->cfg.zero_stage, "auto") != 0)
        return run_groups_are_auto(run) && most_experts(run) > 0 ? settle_groups(run, ranks_per_node)
                                                                 : run_agree(run, DT_OK);
    choice *c = calloc(1, sizeof *c);
    dt_err err = dt_comm_agree(run->comm, c ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the ZeRO strategies"));
    if (err == DT_OK) err = settle(run, ranks_per_node, c);
    free(c);
    return err;
}

/* ---- rollouts at stage 3 ----------------------------------------------------------------------------------------- */

dt_err run_settle_gathered(dt_run *run, int ranks_per_node)
{
    budget b;
    trial t;
    plan_setting with = run_setting(run, dt_comm_ranks(run->comm), ranks_per_node);
    if (!run->task.wants_gathered || run->main.zero_opt.stage != 3) return DT_OK;
    with.gathered = false;
    DT_TRY(try_on_all(run, &with, RUN_USABLE, &b, &t));
    int64_t fits = t.gathered;
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(run->comm), &fits, 1, DT_MIN));
    run->task.keep_gathered = fits;
    if (!fits)
        DT_INFO("zero.stage = 3: all parameters at once exceed zero.max_live_parameters or the free memory, so each "
                "forward pass of a rollout gathers them");
    return DT_OK;
}
