/* plan.c - memory and communication before anything is allocated. The rooms that allocate also say how much (dt_zero_plan_make, dt_model_plan, ...);
 * this file only adds up, so the plan cannot drift from what happens. */
#include "run.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dt_err run_plan_stage(const dt_run *run, int stage, int nranks, int ranks_per_node, stage_plan *plan)
{
    dt_zero_options opt = run->zero_opt;
    opt.stage = stage;
    *plan = (stage_plan){0};
    DT_TRY(dt_zero_plan_make(&opt, run->units, run->n_units, nranks, &plan->zero));
    DT_TRY(dt_model_plan(&run->mc, &run->model_opt, &run->dev, plan->bytes));
    for (int c = 0; c < DT_N_MEMCAT; c++) plan->bytes[c] += plan->zero.bytes[c];
    plan->bytes[DT_MEM_STAGING] += dt_comm_plan_nbytes(nranks, ranks_per_node, run->cfg.comm_shared_memory,
                                                        run->dev.ops->host_accessible);
    plan->bytes[DT_MEM_DATA] += dt_task_buffers_nbytes(run->model_opt.max_tok) + run->loader_nbytes;
    plan->bytes[DT_MEM_OTHER] += dt_device_overhead(&run->dev);
    for (int c = 0; c < DT_N_MEMCAT; c++) plan->total += plan->bytes[c];
    return DT_OK;
}

static void print_row(FILE *out, const char *head, const size_t bytes[DT_N_MEMCAT], size_t total)
{
    char text[24];
    fprintf(out, "%-12s", head);
    for (int c = 0; c < DT_N_MEMCAT; c++) fprintf(out, " %12s", dt_format_bytes((double)bytes[c], text));
    fprintf(out, " %12s", dt_format_bytes((double)total, text));
}

static void print_head(FILE *out, const char *head)
{
    fprintf(out, "%-12s", head);
    for (int c = 0; c < DT_N_MEMCAT; c++) fprintf(out, " %12s", dt_memcat_name((dt_memcat)c));
    fprintf(out, " %12s", "total");
}

void run_compare_plan(dt_run *run, const stage_plan *plan)
{
    char *text = NULL;
    size_t nbytes = 0;
    memcpy(run->planned, plan->bytes, sizeof run->planned);
    for (int c = 0; c < DT_N_MEMCAT; c++) run->allocated[c] = atomic_load(&run->ledger.now[c]);
    run->allocated[DT_MEM_OTHER] += dt_device_overhead(&run->dev); /* held by the device outside the ledger */
    size_t total = 0;
    for (int c = 0; c < DT_N_MEMCAT; c++) total += run->allocated[c];
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return;
    print_head(f, "a rank");
    fputc('\n', f);
    print_row(f, "planned", plan->bytes, plan->total);
    fputc('\n', f);
    print_row(f, "allocated", run->allocated, total);
    fclose(f);
    DT_INFO("%s", text);
    DT_INFO("model states: %.3f bytes per parameter (formula %.3f; %" PRId64 " elements of padding)", plan->zero.state_bytes_per_param,
            plan->zero.formula_bytes_per_param, plan->zero.n_padding);
    free(text);
}

/* What ranks_per_node ranks that share this machine would have. */
static int threads_planned(const dt_run *run, int ranks_per_node)
{
    const int shared = dt_cores_own() / ranks_per_node;
    return run->cfg.run_threads > 0 ? (int)run->cfg.run_threads : shared > 1 ? shared : 1;
}

/* The data may not be there yet when a run is planned: then full rows of seq_len are assumed. */
static dt_err open_for_plan(dt_run *run, int ranks_per_node)
{
    DT_TRY(run_open_device(run, 0, threads_planned(run, ranks_per_node)));
    DT_TRY(run_open_config_objects(run));
    if (run_open_data(run) == DT_OK) return DT_OK;
    DT_INFO("%s; planning for full rows of seq_len tokens", dt_error_message());
    dt_error_clear();
    run->loader_nbytes = (size_t)(run->cfg.data_prefetch + 1) * dt_batch_nbytes(run->model_opt.max_tok, run->model_opt.max_seq);
    return DT_OK;
}

/* Bytes that a rank may use. */
static size_t budget(const dt_run *run, const dt_plan_request *req, int per_node)
{
    const size_t host = req->host_memory ? req->host_memory / (size_t)per_node : 0;
    size_t bytes = req->device_memory;
    if (run->dev.ops->host_accessible && host && (!bytes || host < bytes)) bytes = host;
    return bytes ? bytes : run->dev.ops->memory_free(&run->dev) / (size_t)per_node;
}

dt_err dt_plan_print(dt_run *run, const dt_plan_request *req, FILE *out)
{
    const int per_node = req->ranks_per_node ? req->ranks_per_node : req->nranks;
    char memory[24];
    stage_plan plan;
    int fits = -1;

    run->nranks = req->nranks;
    DT_TRY(open_for_plan(run, per_node));
    const size_t device_free = budget(run, req, per_node);
    DT_TRY(run_plan_stage(run, 0, req->nranks, per_node, &plan));
    fprintf(out, "model: %" PRId64 " parameters in %d units; %s\n", plan.zero.n_param, run->n_units, dt_dtype_name(run->zero_opt.param_dtype));
    fprintf(out, "batch: train_batch_size %" PRId64 " = micro_batch_size %" PRId64 " x gradient_accumulation_steps %" PRId64 " x %d ranks; at most %d tokens a micro-batch\n",
            run->batching.train_batch_size, run->batching.micro_batch_size, run->batching.accumulation, req->nranks, run->model_opt.max_tok);
    fprintf(out, "memory a rank may use: %s (%s)\n\n", dt_format_bytes((double)device_free, memory), req->device_memory || req->host_memory ? "given" : "free on this machine, shared among its ranks");
    print_head(out, "zero.stage");
    fprintf(out, " %10s %12s %12s  %s\n", "bytes/param", "sent/micro", "sent/step", "");
    for (int stage = 0; stage <= 3; stage++) {
        char head[16], micro[24], step[24];
        DT_TRY(run_plan_stage(run, stage, req->nranks, per_node, &plan));
        const bool ok = (double)plan.total <= 0.9 * (double)device_free;
        if (ok && fits < 0) fits = stage;
        snprintf(head, sizeof head, "%d", stage);
        print_row(out, head, plan.bytes, plan.total);
        const double all = plan.zero.sent_bytes_per_step + plan.zero.sent_bytes_per_micro_step * (double)run->batching.accumulation;
        fprintf(out, " %11.3f %12s %12s  %s\n", plan.zero.state_bytes_per_param, dt_format_bytes(plan.zero.sent_bytes_per_micro_step, micro),
                dt_format_bytes(all, step),
                ok ? "fits" : "does not fit");
    }
    if (fits >= 0) fprintf(out, "\nzero.stage = auto takes %d: the first that fits in 0.9 of the memory\n", fits);
    else fprintf(out, "\nno stage fits in 0.9 of the memory: use more ranks, smaller micro-batches or activation checkpointing\n");
    return DT_OK;
}
