/* plan_print.c - --plan: memory and communication of every stage and offload, for any number of ranks and nodes, and
 * the choice of auto. */
#include "forecast.h"
#include "dtrain/step/step.h"
#include "../run.h"
#include "memory_table.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Threads of a rank if ranks_per_node ranks share this machine. */
static int threads_planned(const dt_run *run, int ranks_per_node)
{
    const int shared = dt_cores_own() / ranks_per_node;
    return run->cfg.run_threads > 0 ? (int)run->cfg.run_threads : shared > 1 ? shared : 1;
}

typedef struct planner {
    dt_run *run;
    FILE *out;
    const dt_plan_request *req;
    int nranks, per_node;
    const dt_chip *chip; /* NULL: without a time forecast */
    int ranks_unit;      /* suggested numbers of ranks are multiples of this; 0: suggest none */
    budget budget;
    const char *source[MAX_MEMORIES]; /* origin of each budget value */
    int n;
    strategy list[MAX_STRATEGIES];
    trial trials[MAX_STRATEGIES];
} planner;

/* Settings that memory depends on must be given, even if the environment sets defaults for others. */
static dt_err require_settings(const dt_config *cfg)
{
    static const char *const needed[][2] = {
        {"batch", NULL},      {"zero", NULL},      {"precision", NULL},       {"run", "task"},
        {"run", "threads"},   {"run", "device"},   {"data", "seq_len"},       {"run", "reproducible"},
        {"data", "prefetch"}, {"data", "packing"}, {"comm", "shared_memory"}, {"comm", "backend"},
        {"mesh", NULL}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        DT_TRY(dt_config_require(cfg, needed[i][0], needed[i][1]));
    return DT_OK;
}

/* model.path may be missing if its shape is given too. */
static dt_err require_model(const dt_config *cfg)
{
    const bool shape = *cfg->model_model_type || *cfg->model_config;
    for (int i = 0; i < 2 && !shape; i++) DT_TRY(dt_config_require(cfg, "model", i ? "config" : "path"));
    return DT_OK;
}

/* The data may be missing when a run is planned. Full rows of seq_len are then assumed. */
static void open_task(dt_run *run)
{
    run_open_task(run);
    const dt_err err = dt_mistakes_end(&run->mistakes);
    if (err == DT_OK && (run->task.train || run->task.valid)) return;
    if (err != DT_OK) DT_INFO("%s", dt_error_message());
    dt_error_clear();
    dt_task_close_data(&run->task);
    DT_INFO("data: not read; the plan assumes full rows of seq_len = %" PRId64 " tokens", run->cfg.data_seq_len);
}

static dt_err check_nodes(const dt_run *run, int nranks, int per_node)
{
    const int rest = nranks > per_node ? nranks % per_node : 0;
    DT_CONFIG_CHECK(
        !run_strategy(run).by_node || rest == 0, &run->cfg, "zero", "shard_group",
        "node needs the same number of ranks on each node; with %d ranks, %d per node, the last node has %d", nranks,
        per_node, rest);
    const strategy s = run_strategy(run);
    const dt_mesh_shape shape = run_mesh(run, &s);
    const int n = dt_team_of(&shape).n, members = nranks < per_node ? nranks : per_node;
    DT_CONFIG_CHECK(!s.by_node || members % n == 0, &run->cfg, "zero", "shard_group",
                    "node: the %d ranks of a node cannot be divided into teams of mesh.tp x mesh.cp = %d", members, n);
    return DT_OK;
}

static dt_err open_for_plan(dt_run *run, int nranks, int per_node)
{
    dt_mistakes_add(&run->mistakes, require_settings(&run->cfg));
    dt_mistakes_add(&run->mistakes, require_model(&run->cfg));
    const int n_threads = threads_planned(run, per_node);
    DT_TRY(dt_device_open_to_plan(&run->dev, run->cfg.run_device, n_threads, &run->ledger));
    DT_TRY(dt_timeline_open(&run->timeline, &run->phase, run->cfg.log_wall_clock_breakdown, run->cfg.log_trace,
                            &run->ledger));
    dt_timeline_attach(run->timeline, &run->dev);
    DT_TRY(run_open_host(run, n_threads, true));
    run_open_config_objects(run);
    dt_mistakes_add(&run->mistakes, run_check_attention(run));
    dt_mistakes_add(&run->mistakes, check_nodes(run, nranks, per_node));
    DT_TRY(dt_mistakes_end(&run->mistakes));
    open_task(run);
    return DT_OK;
}

/* The request overrides detected values. If device and host share one memory, the smaller value counts. */
static void set_budget(planner *p, const dt_plan_request *req)
{
    const int devices = req->devices_per_node ? req->devices_per_node : p->per_node,
              sharing = (p->per_node + devices - 1) / devices;
    const uint64_t chip_memory = p->chip ? (uint64_t)p->chip->memory_nbytes : 0,
                   device_memory = req->device_memory ? req->device_memory : chip_memory;
    const uint64_t per_node = (uint64_t)p->per_node, device = device_memory / (uint64_t)sharing,
                   host = req->host_memory / per_node, disk = req->nvme_space / per_node;
    p->run->max_sharing = sharing;
    run_budget(p->run, p->per_node, &p->budget);
    for (int i = 0; i < p->budget.n; i++) {
        rank_memory *m = &p->budget.memory[i];
        p->source[i] = m->nbytes != SIZE_MAX  ? "free memory of this machine divided by its ranks"
                       : m->holds[DT_IN_FILE] ? "set it with --nvme-space"
                                              : "set it with --device-memory";
        if (m->holds[DT_IN_FILE] && disk) {
            m->nbytes = disk;
            p->source[i] = "--nvme-space divided by the ranks of a node";
        }
        if (m->holds[DT_ON_HOST] && host) {
            m->nbytes = host;
            p->source[i] = "--host-memory divided by the ranks of a node";
        }
        if (m->holds[DT_ON_DEVICE] && device && (!m->holds[DT_ON_HOST] || !host || device <= host)) {
            m->nbytes = device, m->n_sharing = sharing, m->shared_by = "device";
            p->source[i] = sharing > 1 ? "--device-memory divided by the ranks of a device" : "a device's";
        }
    }
}

/* Whether a strategy fits is unknown if one of its memories is unknown. */
static bool is_known(const planner *p, const trial *t)
{
    for (int i = 0; i < p->budget.n; i++)
        if (p->budget.memory[i].nbytes == SIZE_MAX && run_part(&t->plan.memory, &p->budget.memory[i]) > 0) return false;
    return true;
}

static bool has_own_memory(const planner *p) { return p->run->dev.ops->own_memory; }

static void print_budget(const planner *p)
{
    char memory[16];
    for (int i = 0; i < p->budget.n; i++) {
        const rank_memory *m = &p->budget.memory[i];
        fprintf(p->out, "%s per rank: %s, %s\n", m->name,
                m->nbytes == SIZE_MAX ? "unknown" : table_bytes((double)m->nbytes, memory), p->source[i]);
    }
    if (p->run->dev.ops->memory_taken)
        fprintf(p->out,
                "driver, code and libraries take an estimated %s of each device; a run reports the actual value\n",
                table_bytes((double)dt_device_overhead(&p->run->dev), memory));
    fprintf(p->out, "a run may use %g of %s; G is 10^9 bytes, M is 10^6 bytes\n\n", RUN_USABLE,
            p->budget.n > 1 ? "each" : "it");
}

static void print_start(const planner *p)
{
    const dt_batching *b = &p->run->batching;
    const int n_nodes = (p->nranks + p->per_node - 1) / p->per_node;
    fprintf(p->out, "model: %" PRId64 " parameters in %d units; %s\n", run_n_param(p->run), p->run->n_units,
            dt_dtype_name(p->run->main.zero_opt.param_dtype));
    const int64_t n_active = dt_model_n_active(&p->run->mc, p->run->units, p->run->n_units),
                  n_trained = dt_units_n_trainable(p->run->units, p->run->n_units);
    if (n_active < run_n_param(p->run))
        fprintf(p->out, "active: %" PRId64 " of them, those that a token uses\n", n_active);
    if (run_trains(p->run) && n_trained < run_n_param(p->run))
        fprintf(p->out, "trained: %" PRId64 " of them\n", n_trained);
    for (int i = 1; i < p->run->n_trained; i++)
        fprintf(p->out, "also trained: %s, %" PRId64 " parameters\n", p->run->trained[i]->name,
                dt_units_n_trainable(p->run->trained[i]->units, p->run->trained[i]->n_units));
    if (!has_own_memory(p) && !strcmp(p->run->cfg.run_device, "auto"))
        fputs("device: cpu (run.device = auto on this machine); to plan for GPUs, add --gpu NAME or run.device=cuda\n",
              p->out);
    char mesh[MESH_TEXT];
    fprintf(p->out, "ranks: %d on %d node%s%s%s\n", p->nranks, n_nodes, n_nodes > 1 ? "s" : "",
            run_mesh_text(p->run, ", ", " of which", mesh),
            run_strategy(p->run).by_node && n_nodes > 1 ? ", each node with all states (zero.shard_group = node)" : "");
    fprintf(p->out,
            "batch: %" PRId64 " samples = micro_batch_size %" PRId64 " x gradient_accumulation_steps %" PRId64
            " x %d rank%s\n",
            b->train_batch_size, b->micro_batch_size, b->accumulation, p->run->mesh->data.size,
            p->run->mesh->data.size > 1 ? "s" : "");
    fprintf(p->out, "micro-batch: at most %d tokens", p->run->model_opt.max_tok);
    if (p->run->mc.vision && p->run->model_opt.max_images > 0)
        fprintf(p->out, " and %d %s of %" PRId64 " token%s each", p->run->model_opt.max_images,
                dt_vision_has_cells(p->run->mc.vision) ? "cells of images" : "images", p->run->mc.vision->n_tokens,
                p->run->mc.vision->n_tokens == 1 ? "" : "s");
    fputc('\n', p->out);
}

/* Memory of generation in addition to training, whose activation memory it uses. */
static dt_err print_rollout(const planner *p)
{
    const dt_run *run = p->run;
    dt_model_options alone = run->model_opt;
    dt_memory both, training;
    char cache[16], more[16];
    if (alone.cache_seqs == 0) return DT_OK;
    table_bytes((double)dt_model_cache_nbytes(run->task.mc, &alone), cache);
    DT_TRY(dt_model_plan(run->task.mc, &alone, run->task.units, run->task.n_units, &run->dev, &both));
    alone.cache_seqs = alone.cache_len = alone.cache_prompts = alone.cache_prompt_len = 0;
    DT_TRY(dt_model_plan(run->task.mc, &alone, run->task.units, run->task.n_units, &run->dev, &training));
    table_bytes((double)(dt_memory_total(&both) - dt_memory_total(&training)), more);
    fprintf(p->out,
            "rollout: at most %d completions per rank at a time, each of at most %d new tokens, for at most %d prompts "
            "of %d;\n         the KV cache takes %s of the activation memory, and %s in addition to training\n",
            run->model_opt.cache_seqs, run->model_opt.cache_len, run->model_opt.cache_prompts,
            run->model_opt.cache_prompt_len, cache, more);
    return DT_OK;
}

/* Rows of a strategy's memory spaces, if they are different memories, with a remark if one is too small. A file is
 * always separate. */
static void print_spaces(const planner *p, const trial *t)
{
    char limit[16];
    for (int space = 0; space < DT_N_MEMSPACE; space++) {
        if (!dt_memory_on(&t->plan.memory, (dt_memspace)space) || (!has_own_memory(p) && space != DT_IN_FILE)) continue;
        table_memspace(p->out, (dt_memspace)space, &t->plan.memory);
        if (t->short_of && t->short_of->holds[space])
            fprintf(p->out, "%10s  over %s", "", table_bytes(RUN_USABLE * (double)t->short_of->nbytes, limit));
        fputc('\n', p->out);
    }
}

static bool same_offload(const strategy *a, const strategy *b)
{
    return a->offload_optimizer == b->offload_optimizer && a->offload_param == b->offload_param;
}

static void print_trial(const planner *p, int i)
{
    const trial *t = &p->trials[i];
    const strategy *s = &p->list[i];
    char head[16], sent[16], offload[STRATEGY_TEXT], groups[GROUPS_TEXT];
    const bool begins = i == 0 || !same_offload(s, &s[-1]);
    if (begins && *run_offload_text(s, offload)) fprintf(p->out, "with %s\n", offload);
    snprintf(head, sizeof head, "%d", s->stage);
    table_row(p->out, head, &t->plan.memory);
    const char *verdict = t->short_of ? "  too large" : !t->works || !is_known(p, t) ? "" : "  fits";
    fprintf(p->out, "%10s%s\n", table_bytes(t->plan.sent_bytes, sent), verdict);
    print_spaces(p, t);
    if (t->plan.needs_live)
        fprintf(p->out, "%-9s needs zero.max_live_parameters >= %" PRId64 "\n", "", t->plan.needs_live);
    if (t->works && *run_groups_text(t, groups)) fprintf(p->out, "%-9s %s\n", "", groups);
    if (!t->works && t->n_experts > 0)
        fprintf(p->out, "%-9s with zero.expert_group_size = %" PRId64 "\n", "", t->expert_group_size);
    if (p->run->task.wants_gathered && s->stage == 3)
        fprintf(p->out, "%-9s %s\n", "",
                t->gathered ? "rollouts keep all parameters gathered"
                            : "each forward pass of a rollout gathers parameters");
}

static dt_err print_strategies(planner *p)
{
    const limits l = {.budget = &p->budget, .usable = RUN_USABLE};
    plan_setting with = run_setting(p->run, p->nranks, p->per_node);
    p->n = run_strategies(p->run, true, p->list);
    table_head(p->out, "stage");
    fprintf(p->out, "%10s\n", "sent/step");
    for (int i = 0; i < p->n; i++) {
        with.strategy = p->list[i];
        DT_TRY(run_trial(p->run, &with, &l, &p->trials[i]));
        p->list[i].expert_group_size = p->trials[i].expert_group_size;
        print_trial(p, i);
    }
    if (!has_own_memory(p)) fputs("offload to cpu saves nothing: this device and the host share one memory\n", p->out);
    return DT_OK;
}

/* The formulas from the ZeRO paper: without offload, 16, 4 + 12/N, 2 + 14/N, 16/N. */
static void print_bytes_per_param(const planner *p)
{
    const char *before = "\nbytes of states per parameter:";
    for (int i = 0; i < p->n && same_offload(&p->list[i], &p->list[0]); i++) {
        fprintf(p->out, "%s stage %d: %.3f", before, p->list[i].stage, p->trials[i].plan.zero.state_bytes_per_param);
        before = ",";
    }
    fputc('\n', p->out);
}

/* Traffic by transport, if there are several nodes. Offload does not change it. */
static void print_sent(const planner *p)
{
    char bytes[16];
    if (p->nranks <= p->per_node) return;
    for (int between = 0; between < 2; between++) {
        const char *before = between ? "sent/step to other nodes:" : "sent/step in its node:";
        for (int i = 0; i < p->n && same_offload(&p->list[i], &p->list[0]); i++) {
            const dt_sent *sent = &p->trials[i].plan.sent;
            fprintf(p->out, "%s stage %d: %s", before, p->list[i].stage,
                    table_bytes(between ? sent->between : sent->within, bytes));
            before = ",";
        }
        fputc('\n', p->out);
    }
}

static int find(const planner *p, const strategy *s)
{
    int i = 0;
    while (i < p->n && !run_same_strategy(&p->list[i], s)) i++;
    return i < p->n ? i : -1;
}

static int first_that_works(const planner *p)
{
    int i = 0;
    while (i < p->n && !p->trials[i].works) i++;
    return i < p->n ? i : -1;
}

/* The row that zero.stage = auto takes. It tries groups of experts only at stage 3; -1: none */
static int first_for_auto(const planner *p)
{
    int i = first_that_works(p);
    while (i >= 0 && i < p->n && !(p->trials[i].works && (p->list[i].stage == 3 || p->trials[i].n_experts == 0))) i++;
    return i < p->n ? i : -1;
}

/* Only if the table has no such rows. */
static void print_sums(const planner *p, int i)
{
    if (i < 0 || has_own_memory(p)) return;
    fprintf(p->out, "stage %d by memory space: ", p->list[i].stage);
    table_one_memory(p->out, &p->trials[i].plan.memory);
    fputc('\n', p->out);
}

/* More ranks are suggested only if their distribution over nodes is given or irrelevant. */
static dt_err say_remedy(const planner *p, bool is_auto, const trial *t, char out[REMEDY_TEXT])
{
    const plan_setting with = run_setting(p->run, p->nranks, p->per_node);
    const rank_memory *short_of = t->short_of ? t->short_of : &p->budget.memory[0];
    const limits l = {.budget = &p->budget, .usable = RUN_USABLE};
    return run_say_remedy(p->run, &with, &l, is_auto, p->ranks_unit, short_of, out);
}

/* Prints whether the configured strategy fits. */
static dt_err print_verdict(const planner *p)
{
    const strategy asked = run_strategy(p->run);
    const int i = find(p, &asked);
    char text[STRATEGY_TEXT], remedy[REMEDY_TEXT];
    if (i < 0 || !is_known(p, &p->trials[i])) return DT_OK;
    fprintf(p->out, "%s, as configured, ", run_strategy_text(&asked, text));
    if (p->trials[i].works) return fputs("fits\n", p->out), DT_OK;
    DT_TRY(say_remedy(p, false, &p->trials[i], remedy));
    fprintf(p->out, "does not fit: %s\n", remedy);
    return DT_OK;
}

static dt_err print_choice(const planner *p, int first)
{
    char offload[STRATEGY_TEXT], groups[60] = "";
    const bool is_auto = !strcmp(p->run->cfg.zero_stage, "auto");
    const strategy asked = run_strategy(p->run);
    print_sums(p, is_auto ? first : find(p, &asked));
    if (!is_auto) DT_TRY(print_verdict(p));
    if (!is_known(p, &p->trials[first])) {
        const bool of_device = p->budget.memory[0].nbytes == SIZE_MAX;
        fprintf(p->out, "to see what fits, add --%s SIZE, such as %s\n", of_device ? "device-memory" : "nvme-space",
                of_device ? "80GiB" : "4TB");
        return DT_OK;
    }
    const int taken = first_for_auto(p);
    if (taken < 0) return DT_OK;
    run_offload_text(&p->list[taken], offload);
    if (p->trials[taken].n_experts > 0)
        snprintf(groups, sizeof groups, " with zero.expert_group_size = %d", (int)p->list[taken].expert_group_size);
    fprintf(p->out, "zero.stage = auto takes %d%s%s%s, the first that fits\n", p->list[taken].stage,
            *offload ? " with " : "", offload, groups);
    return DT_OK;
}

static dt_err nothing_fits(const planner *p)
{
    const bool is_auto = !strcmp(p->run->cfg.zero_stage, "auto");
    const strategy asked = run_strategy(p->run);
    const int i = is_auto ? -1 : find(p, &asked);
    const trial *t = &p->trials[i < 0 ? p->n - 1 : i];
    char remedy[REMEDY_TEXT];
    DT_TRY(say_remedy(p, is_auto, t, remedy));
    return dt_fail(DT_ERR_MEMORY, "no stage fits in %g of the %s: %s%s%s", RUN_USABLE,
                   (t->short_of ? t->short_of : &p->budget.memory[0])->name, remedy,
                   has_own_memory(p) && !p->req->host_memory
                       ? "; --host-memory SIZE plans offload to a node with another memory than this machine"
                       : "",
                   p->ranks_unit == 0 ? "; --ranks-per-node N lets the plan use more nodes" : "");
}

/* ---- --gpu ------------------------------------------------------------------------------------------------------- */

static dt_err find_chip(planner *p, const dt_plan_request *req)
{
    dt_config *cfg = &p->run->cfg;
    if (!req->gpu) return DT_OK;
    p->chip = dt_chip_named(req->gpu);
    DT_CHECK(p->chip, DT_ERR_USAGE, "--gpu: expected one of %s, found %s", dt_chip_names(), req->gpu);
    DT_CONFIG_CHECK(strcmp(cfg->run_device, "cpu") != 0, cfg, "run", "device",
                    "expected auto or cuda with --gpu, found cpu");
    return dt_config_set(cfg, "run", "device", "cuda");
}

/* Prints the forecast of the configured strategy, or of the one that auto would choose. */
static dt_err print_time(planner *p, int first)
{
    const strategy asked = run_strategy(p->run), *taken = &asked;
    const int i = strcmp(p->run->cfg.zero_stage, "auto") != 0 ? find(p, &asked) : first;
    if (i >= 0) taken = &p->list[i];
    plan_setting with = run_setting(p->run, p->nranks, p->per_node);
    char offload[STRATEGY_TEXT];
    if (!p->chip) return DT_OK;
    with.strategy = *taken;
    if (*run_offload_text(taken, offload)) {
        fprintf(p->out, "\nno prediction of the step time with %s\n", offload);
        return DT_OK;
    }
    if (p->run->max_sharing > 1) {
        fputs("\nno prediction of the step time when ranks share a device\n", p->out);
        return DT_OK;
    }
    return run_print_forecast(p->run, &with, p->chip, p->out);
}

dt_err dt_plan_print(dt_run *run, const dt_plan_request *req, FILE *out)
{
    const int per_node = req->ranks_per_node ? req->ranks_per_node : req->nranks;
    planner p = {.run = run, .out = out, .req = req, .nranks = req->nranks, .per_node = per_node};
    p.ranks_unit = req->ranks_per_node ? req->ranks_per_node : req->device_memory ? 1 : 0;
    DT_TRY(run_check_ranks(run, req->nranks));
    const strategy asked = run_strategy(run);
    const dt_mesh_shape mesh = run_mesh(run, &asked);
    dt_mesh_plan(&run->planned_mesh, NULL, req->nranks, per_node, &mesh);
    run->mesh = &run->planned_mesh;
    DT_TRY(find_chip(&p, req));
    DT_TRY(open_for_plan(run, req->nranks, per_node));
    if (req->nvme_space && !*run->cfg.zero_nvme_path)
        DT_WARN("--nvme-space is ignored, because zero.nvme_path is not set");
    set_budget(&p, req);
    print_start(&p);
    DT_TRY(print_rollout(&p));
    print_budget(&p);
    DT_TRY(print_strategies(&p));
    print_bytes_per_param(&p);
    print_sent(&p);
    const int first = first_that_works(&p);
    if (first < 0) return nothing_fits(&p);
    DT_TRY(print_choice(&p, first));
    return print_time(&p, first);
}
