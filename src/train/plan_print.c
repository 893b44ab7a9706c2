/* plan_print.c - --plan: what every stage would take, on ranks and nodes that need not be here, and which would be
 * chosen. */
#include "run.h"
#include "table.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What ranks_per_node ranks that share this machine would have. */
static int threads_planned(const dt_run *run, int ranks_per_node)
{
    const int shared = dt_cores_own() / ranks_per_node;
    return run->cfg.run_threads > 0 ? (int)run->cfg.run_threads : shared > 1 ? shared : 1;
}

typedef struct planner {
    dt_run *run;
    FILE *out;
    int nranks, per_node;
    budget budget;
    const char *source[2];       /* of the budget's numbers */
    bool of_device[2];           /* is it --device-memory that bounds the memory? */
    const rank_memory *short_of; /* of the highest stage that was looked at; NULL: nothing */
    bool works[4];               /* by stage */
    dt_memory memory[4];
    int first;     /* lowest stage that works, -1: none */
    int64_t needs; /* max_live_parameters with which the highest stage would, 0: it would not */
} planner;

/* What memory depends on must be known, whatever else the environment leaves open. */
static dt_err require_settings(const dt_config *cfg)
{
    static const char *const needed[][2] = {
        {"batch", NULL},      {"zero", NULL},      {"precision", NULL},       {"run", "task"},
        {"run", "threads"},   {"run", "device"},   {"data", "seq_len"},       {"run", "reproducible"},
        {"data", "prefetch"}, {"data", "packing"}, {"comm", "shared_memory"}, {"comm", "backend"}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        DT_TRY(dt_config_require(cfg, needed[i][0], needed[i][1]));
    return DT_OK;
}

/* A path that is not known yet may stand beside the shape that it will have. */
static dt_err require_model(const dt_config *cfg)
{
    const bool shape = *cfg->model_model_type || *cfg->model_config;
    for (int i = 0; i < 2 && !shape; i++) DT_TRY(dt_config_require(cfg, "model", i ? "config" : "path"));
    return DT_OK;
}

/* The data may not be there when a run is planned: then full rows of seq_len are assumed. */
static void open_task(dt_run *run)
{
    run_open_task(run);
    const dt_err err = dt_mistakes_end(&run->mistakes);
    if (err == DT_OK && (run->task.train || run->task.valid)) return;
    if (err != DT_OK) DT_INFO("%s", dt_error_message());
    dt_error_clear();
    dt_task_close_data(&run->task);
    DT_INFO("data: not read; planned for full rows of seq_len = %" PRId64 " tokens", run->cfg.data_seq_len);
}

static dt_err open_for_plan(dt_run *run, int per_node)
{
    dt_mistakes_add(&run->mistakes, require_settings(&run->cfg));
    dt_mistakes_add(&run->mistakes, require_model(&run->cfg));
    const int n_threads = threads_planned(run, per_node);
    DT_TRY(dt_device_open_to_plan(&run->dev, run->cfg.run_device, n_threads, &run->ledger));
    DT_TRY(run_open_host(run, n_threads, true));
    run_open_config_objects(run);
    DT_TRY(dt_mistakes_end(&run->mistakes));
    open_task(run);
    return DT_OK;
}

/* What the request says wins over what was found. In one memory the smaller of the two holds. */
static void set_budget(planner *p, const dt_plan_request *req)
{
    const int devices = req->devices_per_node ? req->devices_per_node : p->per_node,
              sharing = (p->per_node + devices - 1) / devices;
    const uint64_t device = req->device_memory / (uint64_t)sharing, host = req->host_memory / (uint64_t)p->per_node;
    p->run->most_sharing = sharing;
    run_budget(p->run, p->per_node, &p->budget);
    for (int i = 0; i < p->budget.n; i++) {
        rank_memory *m = &p->budget.memory[i];
        p->source[i] = m->nbytes == SIZE_MAX ? "which --device-memory would say"
                                             : "what is free on this machine divided by its ranks";
        if (m->holds[DT_ON_HOST] && host) {
            m->nbytes = host;
            p->source[i] = "--host-memory divided by the ranks of a node";
        }
        if (m->holds[DT_ON_DEVICE] && device && (!m->holds[DT_ON_HOST] || !host || device <= host)) {
            m->nbytes = device, m->n_sharing = sharing;
            p->of_device[i] = true;
            p->source[i] = sharing > 1 ? "--device-memory divided by the ranks of a device" : "a device's";
        }
    }
}

/* *needs: the max_live_parameters with which the stage works, where that of the configuration is too small; else 0. */
static dt_err plan_row(const planner *p, int stage, int nranks, stage_plan *plan, int64_t *needs)
{
    dt_zero_options *opt = &p->run->main.zero_opt;
    const int64_t limit = opt->max_live_parameters;
    opt->max_live_parameters = 0;
    dt_err err = run_plan_stage(p->run, stage, nranks, p->per_node, plan);
    *needs = plan->zero.least_live_parameters > limit ? plan->zero.least_live_parameters : 0;
    opt->max_live_parameters = *needs ? *needs : limit;
    if (err == DT_OK) err = run_plan_stage(p->run, stage, nranks, p->per_node, plan);
    opt->max_live_parameters = limit;
    return err;
}

static const rank_memory *too_small(const planner *p, const stage_plan *plan)
{
    return run_exceeds(&p->budget, RUN_USABLE, &plan->memory);
}

/* Without the memory of a device nothing is said to fit in it. */
static bool is_known(const planner *p) { return p->budget.memory[0].nbytes != SIZE_MAX; }

static void print_budget(const planner *p)
{
    char memory[16];
    for (int i = 0; i < p->budget.n; i++) {
        const rank_memory *m = &p->budget.memory[i];
        fprintf(p->out, "%s per rank: %s, %s\n", m->name,
                m->nbytes == SIZE_MAX ? "not known" : table_bytes((double)m->nbytes, memory), p->source[i]);
    }
    fprintf(p->out, "a run may take %g of %s; G is 10^9 bytes, M 10^6\n\n", RUN_USABLE,
            p->budget.n > 1 ? "each" : "it");
}

static void print_start(const planner *p)
{
    const dt_batching *b = &p->run->batching;
    const int n_nodes = (p->nranks + p->per_node - 1) / p->per_node;
    fprintf(p->out, "model: %" PRId64 " parameters in %d units; %s\n", run_n_param(p->run), p->run->n_units,
            dt_dtype_name(p->run->main.zero_opt.param_dtype));
    for (int i = 1; i < p->run->n_trained; i++)
        fprintf(p->out, "beside it: %s, %" PRId64 " parameters\n", p->run->trained[i]->name,
                dt_units_n_trainable(p->run->trained[i]->units, p->run->trained[i]->n_units));
    fprintf(p->out, "ranks: %d on %d node%s\n", p->nranks, n_nodes, n_nodes > 1 ? "s" : "");
    fprintf(p->out,
            "batch: %" PRId64 " samples = micro_batch_size %" PRId64 " x gradient_accumulation_steps %" PRId64
            " x %d rank%s\n",
            b->train_batch_size, b->micro_batch_size, b->accumulation, p->nranks, p->nranks > 1 ? "s" : "");
    fprintf(p->out, "micro-batch: at most %d tokens\n", p->run->model_opt.max_tok);
    print_budget(p);
}

/* The places of a stage, where they are different memories; what is too large for its memory says so. */
static void print_places(const planner *p, const stage_plan *plan)
{
    char limit[16];
    for (int place = 0; place < DT_N_PLACE && p->budget.n > 1; place++) {
        if (!dt_memory_on(&plan->memory, (dt_place)place)) continue;
        table_place(p->out, (dt_place)place, &plan->memory);
        if (p->short_of && p->short_of->holds[place])
            fprintf(p->out, "%10s  over %s", "", table_bytes(RUN_USABLE * (double)p->short_of->nbytes, limit));
        fputc('\n', p->out);
    }
}

static dt_err print_stage(planner *p, int stage, double *per_param)
{
    char head[16], sent[16];
    stage_plan plan;
    int64_t needs;
    DT_TRY(plan_row(p, stage, p->nranks, &plan, &needs));
    p->short_of = too_small(p, &plan);
    const bool fit = !p->short_of;
    p->works[stage] = fit && !needs;
    if (p->works[stage] && p->first < 0) p->first = stage;
    p->needs = fit ? needs : 0;
    p->memory[stage] = plan.memory;
    *per_param = plan.zero.state_bytes_per_param;
    snprintf(head, sizeof head, "%d", stage);
    table_row(p->out, head, &plan.memory);
    const double all =
        plan.zero.sent_bytes_per_step + plan.zero.sent_bytes_per_micro_step * (double)p->run->batching.accumulation;
    const char *verdict = !fit ? "  too large" : needs || !is_known(p) ? "" : "  fits";
    fprintf(p->out, "%10s%s\n", table_bytes(all, sent), verdict);
    print_places(p, &plan);
    if (needs) fprintf(p->out, "%-9s needs zero.max_live_parameters >= %" PRId64 "\n", "", needs);
    return DT_OK;
}

static dt_err print_stages(planner *p)
{
    const int every =
        p->run->main.zero_opt.optimizer ? 1 : 3; /* without gradients and states stages 1 and 2 are stage 0 */
    double per_param[4];
    table_head(p->out, "stage");
    fprintf(p->out, "%10s\n", "sent/step");
    for (int stage = 0; stage <= 3; stage += every) DT_TRY(print_stage(p, stage, &per_param[stage]));
    fprintf(p->out, "\nbytes of states per parameter:");
    for (int stage = 0; stage <= 3; stage += every)
        fprintf(p->out, "%s stage %d: %.3f", stage ? "," : "", stage, per_param[stage]);
    fputc('\n', p->out);
    return DT_OK;
}

static dt_err fits_on(const planner *p, int64_t nranks, bool *fit)
{
    stage_plan plan;
    int64_t needs;
    DT_TRY(plan_row(p, 3, (int)nranks, &plan, &needs));
    *fit = !too_small(p, &plan);
    return DT_OK;
}

/* The fewest ranks on which stage 3 fits, in multiples of `unit`; 0: not on 2^17. A rank's memory falls with their
 * number, so halving the interval finds them. */
static dt_err ranks_that_fit(const planner *p, int64_t unit, int64_t *nranks)
{
    enum { MOST = 1 << 17 };
    int64_t low = p->nranks / unit, high = low > 0 ? low : 1; /* in units: too few, and enough */
    bool fit = false;
    if (low == 0) DT_TRY(fits_on(p, unit, &fit));
    while (!fit && 2 * high * unit <= MOST) {
        low = high;
        high *= 2;
        DT_TRY(fits_on(p, high * unit, &fit));
    }
    while (fit && high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        bool enough;
        DT_TRY(fits_on(p, middle * unit, &enough));
        *(enough ? &high : &low) = middle;
    }
    *nranks = fit ? high * unit : 0;
    return DT_OK;
}

/* What can still be changed. */
static void list_advice(const planner *p, char *out, size_t size)
{
    const bool checkpointing = strcmp(p->run->cfg.model_activation_checkpointing, "none") != 0;
    const bool device = p->of_device[p->short_of - p->budget.memory];
    snprintf(out, size, "%s%s%s%sa smaller data.seq_len",
             p->short_of->n_sharing == 1 ? ""
             : device                    ? "fewer ranks on each device, "
                                         : "fewer ranks on each node, ",
             p->short_of->holds[DT_ON_HOST] && !device ? "more memory in each node, " : "",
             p->short_of->holds[DT_ON_DEVICE] && !checkpointing ? "model.activation_checkpointing = block, " : "",
             p->run->batching.micro_batch_size > 1 ? "a smaller batch.micro_batch_size, " : "");
}

static dt_err nothing_fits(const planner *p, const dt_plan_request *req)
{
    int64_t nranks = 0;
    char more[80] = "", advice[240];
    if (p->needs)
        return dt_fail(DT_ERR_MEMORY,
                       "no stage works as configured: stage 3 fits with zero.max_live_parameters = %" PRId64, p->needs);
    if (req->ranks_per_node || req->device_memory)
        DT_TRY(ranks_that_fit(p, req->ranks_per_node ? req->ranks_per_node : 1, &nranks));
    if (nranks)
        snprintf(more, sizeof more, "stage 3 needs at least %" PRId64 " ranks%s; or try ", nranks,
                 req->ranks_per_node ? ", on whole nodes" : "");
    list_advice(p, advice, sizeof advice);
    return dt_fail(DT_ERR_MEMORY, "no stage fits in %g of the %s: %s%s", RUN_USABLE, p->short_of->name,
                   nranks ? more : "try ", advice);
}

/* A stage that the configuration names has a verdict of its own. */
static void print_choice(const planner *p)
{
    const char *asked = p->run->cfg.zero_stage;
    const bool is_auto = !strcmp(asked, "auto");
    if (p->budget.n == 1) {
        const int stage = is_auto ? p->first : atoi(asked);
        fprintf(p->out, "stage %d by place: ", stage);
        table_sums(p->out, &p->memory[stage]);
        fputs(", in one memory\n", p->out);
    }
    if (!is_known(p)) {
        fputs("--device-memory SIZE, such as 80GiB, says what fits\n", p->out);
        return;
    }
    if (!is_auto)
        fprintf(p->out, "zero.stage = %s, as in this configuration, %s\n", asked,
                p->works[atoi(asked)] ? "fits" : "does not work");
    fprintf(p->out, "zero.stage = auto takes %d, the lowest that fits\n", p->first);
}

dt_err dt_plan_print(dt_run *run, const dt_plan_request *req, FILE *out)
{
    const int per_node = req->ranks_per_node ? req->ranks_per_node : req->nranks;
    planner p = {.run = run, .out = out, .nranks = req->nranks, .per_node = per_node, .first = -1};
    run->nranks = req->nranks;
    DT_TRY(open_for_plan(run, per_node));
    set_budget(&p, req);
    print_start(&p);
    DT_TRY(print_stages(&p));
    if (p.first < 0) return nothing_fits(&p, req);
    print_choice(&p);
    return DT_OK;
}
