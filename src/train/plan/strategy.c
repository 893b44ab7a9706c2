/* strategy.c - the strategies that zero.stage = auto tries, in order (algorithms.md 9.2).
 *
 * A higher stage costs communication. Offload costs transfers to the host and CPU time, and a file also disk transfers.
 * Stages are therefore tried first. Then optimizer states are offloaded, because they are most of the bytes and are
 * used once per step, and then parameters; first to host memory, then to files.
 *
 * With offload, stage 0 is omitted: each rank updates only its shard, as at stage 1. Offload to host memory is omitted
 * on a device that computes in host memory. */
#include "../run.h"
#include <stdlib.h>

static bool by_node(const dt_run *run) { return !strcmp(run->cfg.zero_shard_group, "node"); }

strategy run_strategy(const dt_run *run)
{
    const dt_zero_options *opt = &run->main.zero_opt;
    const bool as_stage_1 = opt->stage == 0 && opt->optimizer && opt->offload_optimizer != DT_OFFLOAD_NONE;
    return (strategy){as_stage_1 ? 1 : opt->stage, opt->offload_optimizer, opt->offload_param, by_node(run),
                      opt->expert_group_size};
}

bool run_groups_are_auto(const dt_run *run)
{
    return !*run->cfg.zero_expert_group_size || !strcmp(run->cfg.zero_expert_group_size, "auto");
}

void run_apply(const strategy *s, dt_zero_options *opt)
{
    opt->stage = s->stage;
    opt->expert_group_size = s->expert_group_size;
    opt->offload_optimizer = s->offload_optimizer, opt->offload_param = s->offload_param;
}

bool run_same_strategy(const strategy *a, const strategy *b)
{
    return a->stage == b->stage && a->offload_optimizer == b->offload_optimizer &&
           a->offload_param == b->offload_param && a->by_node == b->by_node;
}

const char *run_offload_name(dt_offload offload)
{
    return offload == DT_OFFLOAD_NVME ? "nvme" : offload == DT_OFFLOAD_CPU ? "cpu" : "none";
}

const char *run_offload_text(const strategy *s, char out[STRATEGY_TEXT])
{
    const bool both = s->offload_optimizer != DT_OFFLOAD_NONE && s->offload_param != DT_OFFLOAD_NONE;
    char optimizer[40] = "", param[40] = "";
    if (s->offload_optimizer != DT_OFFLOAD_NONE)
        snprintf(optimizer, sizeof optimizer, "zero.offload_optimizer = %s", run_offload_name(s->offload_optimizer));
    if (s->offload_param != DT_OFFLOAD_NONE)
        snprintf(param, sizeof param, "zero.offload_param = %s", run_offload_name(s->offload_param));
    snprintf(out, STRATEGY_TEXT, "%s%s%s", optimizer, both ? ", " : "", param);
    return out;
}

const char *run_strategy_text(const strategy *s, char out[STRATEGY_TEXT])
{
    char offload[STRATEGY_TEXT], groups[60] = "";
    run_offload_text(s, offload);
    if (s->expert_group_size > 0)
        snprintf(groups, sizeof groups, ", zero.expert_group_size = %d", (int)s->expert_group_size);
    snprintf(out, STRATEGY_TEXT, "zero.stage = %d%s%.64s%s%s", s->stage, *offload ? ", " : "", offload,
             s->by_node ? ", zero.shard_group = node" : "", groups);
    return out;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* True if the offload reduces device memory. A configured offload is always tried. */
static bool can_offload(const dt_run *run, dt_offload offload, dt_offload configured)
{
    if (offload == DT_OFFLOAD_CPU && offload != configured) return run->dev.ops->own_memory;
    return offload != DT_OFFLOAD_NVME || *run->cfg.zero_nvme_path;
}

static bool is_tried(const dt_run *run, bool keep_given, const strategy *s)
{
    const dt_zero_options *opt = &run->main.zero_opt;
    const bool optimizer_is_given = keep_given && dt_config_given(&run->cfg, "zero", "offload_optimizer"),
               param_is_given = keep_given && dt_config_given(&run->cfg, "zero", "offload_param");
    const bool updates = opt->optimizer != NULL;
    if (!can_offload(run, s->offload_optimizer, opt->offload_optimizer)) return false;
    if (!can_offload(run, s->offload_param, opt->offload_param)) return false;
    if (optimizer_is_given && s->offload_optimizer != opt->offload_optimizer) return false;
    if (param_is_given && s->offload_param != opt->offload_param) return false;
    if (!updates && s->offload_optimizer != (optimizer_is_given ? opt->offload_optimizer : DT_OFFLOAD_NONE))
        return false;
    /* data used in every pass is offloaded last */
    if (updates && !param_is_given && !optimizer_is_given && s->offload_param > s->offload_optimizer) return false;
    if (s->offload_param != DT_OFFLOAD_NONE) return s->stage == 3;
    if (!updates) return s->stage == 0 || s->stage == 3; /* without gradients and states, stages 1 and 2 equal 0 */
    return s->stage > 0 || s->offload_optimizer == DT_OFFLOAD_NONE;
}

int run_strategies(const dt_run *run, bool keep_given, strategy list[MAX_STRATEGIES])
{
    int n = 0;
    for (int o = DT_OFFLOAD_NONE; o <= DT_OFFLOAD_NVME; o++)
        for (int p = DT_OFFLOAD_NONE; p <= DT_OFFLOAD_NVME; p++)
            for (int stage = 0; stage <= 3; stage++) {
                const strategy s = {stage, (dt_offload)o, (dt_offload)p, by_node(run),
                                    run->main.zero_opt.expert_group_size};
                if (n < MAX_STRATEGIES && is_tried(run, keep_given, &s)) list[n++] = s;
            }
    return n;
}

/* Thresholds from common guides, by the total number of parameters, trained or not. */
int run_stage_by_size(int64_t n_param, bool trains)
{
    const int64_t small = 1000000000, large = 7000000000;
    return n_param > large ? 3 : n_param < small || !trains ? 0 : 2;
}
