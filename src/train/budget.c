/* budget.c - does a plan fit into the memory that a rank has? One comparison for --plan, --check and zero.stage = auto:
 * what is still to be allocated in the places of a physical memory, against this rank's part of what is free there. */
#include "run.h"
#include <string.h>

static rank_memory part_of(size_t nbytes_free, int n_sharing)
{
    const size_t part = nbytes_free == SIZE_MAX ? SIZE_MAX : nbytes_free / (size_t)n_sharing;
    return (rank_memory){.n_sharing = n_sharing, .nbytes = part};
}

void run_budget(const dt_run *run, int ranks_per_node, budget *b)
{
    const dt_device *dev = &run->dev;
    rank_memory *own = &b->memory[0], *node = &b->memory[1];
    *b = (budget){.n = dev->ops->own_memory ? 2 : 1};
    *own = part_of(dev->ops->memory_free(dev), run->comm ? run->comm->n_sharing : ranks_per_node);
    own->holds[DT_ON_DEVICE] = true;
    own->name = "device memory", own->shared_by = "of this device";
    if (b->n == 1)
        node = own;
    else
        *node = part_of(dt_host_memory_free(), ranks_per_node);
    node->holds[DT_ON_PINNED] = node->holds[DT_ON_HOST] = true;
    node->name = b->n == 1 ? "memory" : "host memory", node->shared_by = "of this node";
}

size_t run_part(const dt_memory *bytes, const rank_memory *m)
{
    size_t sum = 0;
    for (int p = 0; p < DT_N_PLACE; p++) sum += m->holds[p] ? dt_memory_on(bytes, (dt_place)p) : 0;
    return sum;
}

const rank_memory *run_exceeds(const budget *b, double usable, const dt_memory *needed)
{
    for (int i = 0; i < b->n; i++)
        if ((double)run_part(needed, &b->memory[i]) > usable * (double)b->memory[i].nbytes) return &b->memory[i];
    return NULL;
}

dt_memory run_overhead(const dt_run *run)
{
    dt_memory m = {0};
    m.at[DT_MEM_OTHER][DT_ON_DEVICE] = dt_device_overhead(&run->dev);
    if (run->host.ops) m.at[DT_MEM_OTHER][DT_ON_HOST] = dt_device_overhead(&run->host);
    return m;
}

dt_memory run_held(const dt_run *run)
{
    dt_memory held = dt_ledger_now(&run->ledger);
    const dt_memory overhead = run_overhead(run);
    dt_memory_add(&held, &overhead);
    return held;
}

static dt_memory still_needed(const dt_run *run, const stage_plan *plan)
{
    dt_memory needed = plan->memory;
    const dt_memory held = run_held(run);
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_PLACE; p++)
            needed.at[c][p] -= held.at[c][p] < needed.at[c][p] ? held.at[c][p] : needed.at[c][p];
    return needed;
}

dt_err run_check_memory(const dt_run *run, int ranks_per_node)
{
    stage_plan plan;
    budget b;
    char needs[24], has[24];
    if (!run->dev.ops || run->n_units == 0 || dt_config_doubted(&run->cfg, "zero", NULL)) return DT_OK;
    DT_TRY(run_plan_stage(run, run->stage, run->nranks, ranks_per_node, &plan));
    run_budget(run, ranks_per_node, &b);
    const dt_memory needed = still_needed(run, &plan);
    const rank_memory *m = run_exceeds(&b, 1, &needed);
    if (!m) return DT_OK;
    return dt_fail(
        DT_ERR_MEMORY,
        "zero.stage = %d needs %s of %s for each rank, and %s is free for each of the %d rank%s %s; see dtrain "
        "--plan, and use more ranks, a higher zero.stage, smaller micro-batches or "
        "model.activation_checkpointing = block",
        run->stage, dt_format_bytes((double)run_part(&needed, m), needs), m->name,
        dt_format_bytes((double)m->nbytes, has), m->n_sharing, m->n_sharing > 1 ? "s" : "", m->shared_by);
}

/* ---- zero.stage = auto ------------------------------------------------------------------------------------------- */

static dt_err first_stage_that_fits(const dt_run *run, int ranks_per_node, const budget *b, int64_t *stage)
{
    const rank_memory *m = NULL;
    dt_memory needed;
    char need[24], have[24];
    for (*stage = 0; *stage <= 3; *stage += run->main.zero_opt.optimizer ? 1 : 3) {
        stage_plan plan;
        DT_TRY(run_plan_stage(run, (int)*stage, run->nranks, ranks_per_node, &plan));
        needed = still_needed(run, &plan);
        if (!(m = run_exceeds(b, RUN_USABLE, &needed))) return DT_OK;
    }
    return dt_fail(
        DT_ERR_MEMORY,
        "[zero] stage = auto: even stage 3 needs %s of %s per rank, but %g of what is free for it is %s; use "
        "more ranks or smaller micro-batches",
        dt_format_bytes((double)run_part(&needed, m), need), m->name, RUN_USABLE,
        dt_format_bytes(RUN_USABLE * (double)m->nbytes, have));
}

/* The least of all ranks, for all. */
static dt_err share_budget(dt_run *run, budget *b)
{
    int64_t nbytes[2] = {0};
    for (int i = 0; i < b->n; i++)
        nbytes[i] = b->memory[i].nbytes < INT64_MAX ? (int64_t)b->memory[i].nbytes : INT64_MAX;
    DT_TRY(dt_comm_reduce_host_i64(run->comm, nbytes, b->n, DT_MIN));
    for (int i = 0; i < b->n; i++) b->memory[i].nbytes = (size_t)nbytes[i];
    return DT_OK;
}

dt_err run_settle_stage(dt_run *run, int ranks_per_node)
{
    const bool is_auto = !strcmp(run->cfg.zero_stage, "auto");
    int64_t stage = run->stage;
    budget b;
    if (is_auto) {
        run_budget(run, ranks_per_node, &b);
        DT_TRY(share_budget(run, &b));
    }
    DT_TRY(run_agree(run, is_auto ? first_stage_that_fits(run, ranks_per_node, &b, &stage) : DT_OK));
    if (!is_auto) return DT_OK;
    /* Scratch depends on a node's processors and buffers on its number of ranks: the largest is taken by all. */
    DT_TRY(dt_comm_reduce_host_i64(run->comm, &stage, 1, DT_MAX));
    run->stage = run->main.zero_opt.stage = (int)stage;
    return dt_config_set(&run->cfg, "zero", "stage", (const char[2]){(char)('0' + stage), '\0'});
}
