/* plan.c - memory and communication before anything is allocated. The modules that allocate also plan their sizes
 * (dt_zero_plan_make, dt_model_plan, ...). This file only adds them up, so the plan cannot diverge from the
 * allocation. */
#include "../run.h"
#include "dtrain/step/step.h"
#include <stdlib.h>
#include <string.h>

int64_t run_n_param(const dt_run *run) { return dt_units_n_weights(run->units, run->n_units); }

double run_flops(const dt_run *run, double n_tok, double n_images)
{
    const double of_token = dt_model_train_flops(&run->mc, run->units, run->n_units, 1, (double)run->cfg.data_seq_len);
    return n_tok * of_token +
           n_images * dt_model_image_flops(&run->mc, run->units, run->n_units, run->model_opt.features_given);
}

double run_checkpoint_nbytes(const dt_run *run)
{
    char *config = dt_config_text(&run->cfg);
    const size_t texts_len = (config ? strlen(config) : 0) + (run->mc.json ? strlen(run->mc.json) : 0);
    free(config);
    double nbytes = dt_checkpoint_nbytes(texts_len, run->task.saved_nbytes);
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        nbytes += dt_checkpoint_model_nbytes(m->units, m->n_units, m->zero_opt.optimizer, m->zero_opt.state_dtype,
                                             m == &run->main && !run_saves_frozen(run));
    }
    if (run->task.kept)
        nbytes += dt_checkpoint_model_nbytes(run->task.kept->units, run->task.kept->n_units, NULL, DT_F32, false);
    return nbytes;
}

/* ---- plan of a rank ---------------------------------------------------------------------------------------------- */

plan_setting run_setting(const dt_run *run, int nranks, int ranks_per_node)
{
    return (plan_setting){.strategy = run_strategy(run),
                          .nranks = nranks,
                          .ranks_per_node = ranks_per_node,
                          .batching = run->batching,
                          .model_opt = run->model_opt,
                          .max_live_parameters = run->main.zero_opt.max_live_parameters,
                          .auto_groups = run_groups_are_auto(run),
                          .gathered = run->task.keep_gathered,
                          .saves_async = run_saves_async(run)};
}

static int n_sum(const dt_run *run, const plan_setting *with)
{
    const dt_mesh_shape mesh = run_mesh(run, &with->strategy);
    return dt_mesh_sum(&mesh, with->nranks);
}

int run_planned_data(const dt_run *run, const plan_setting *with)
{
    const dt_mesh_shape mesh = run_mesh(run, &with->strategy);
    return dt_mesh_data(&mesh, with->nranks);
}

/* Nodes with different numbers of ranks are refused elsewhere. */
static int n_groups(const plan_setting *with)
{
    const bool even = with->nranks % with->ranks_per_node == 0;
    return with->strategy.by_node && even ? with->nranks / with->ranks_per_node : 1;
}

dt_zero_options run_zero_options(const plan_setting *with, const dt_trained *m)
{
    dt_zero_options opt = m->zero_opt;
    run_apply(&with->strategy, &opt);
    opt.n_groups = n_groups(with);
    opt.max_live_parameters = with->max_live_parameters;
    opt.keep_gathered = with->gathered && !m->name;
    if (with->accumulates) opt.grad_dtype = DT_F32;
    return opt;
}

static void add_traffic(dt_traffic *sum, const dt_traffic *more, double times)
{
    sum->reduced_elems += times * more->reduced_elems;
    sum->reduced_bytes += times * more->reduced_bytes;
    sum->gathered_bytes += times * more->gathered_bytes;
    sum->replicated_bytes += times * more->replicated_bytes;
}

static void add_zero(dt_zero_plan *plan, const dt_zero_plan *more)
{
    add_traffic(&plan->micro_step, &more->micro_step, 1);
    add_traffic(&plan->step, &more->step, 1);
    dt_memory_add(&plan->memory, &more->memory);
    plan->n_streams += more->n_streams;
    plan->sent_bytes_per_micro_step += more->sent_bytes_per_micro_step;
    plan->sent_bytes_per_step += more->sent_bytes_per_step;
    for (int p = 0; p < DT_N_PARTS; p++) plan->saved_nbytes[p] += more->saved_nbytes[p];
    plan->least_live_parameters = dt_max_i64(plan->least_live_parameters, more->least_live_parameters);
    plan->live_parameters = dt_max_i64(plan->live_parameters, more->live_parameters);
}

/* Bytes per parameter are those of the main model. Auxiliary models add to the memory and the communication. */
static dt_err plan_zeros(const dt_run *run, const plan_setting *with, dt_zero_plan *plan)
{
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        const dt_zero_options opt = run_zero_options(with, m);
        dt_zero_plan own;
        DT_TRY(dt_zero_plan_make(&opt, m->units, m->n_units, n_sum(run, with), &own));
        if (i > 0)
            add_zero(plan, &own);
        else
            *plan = own;
    }
    return DT_OK;
}

static dt_err plan_task(const dt_run *run, const plan_setting *with, dt_memory *memory)
{
    dt_task task = run->task; /* with the planned ranks and batches */
    dt_trained main = run->main;
    dt_model_options model_opt = with->model_opt;
    main.zero_opt = run_zero_options(with, &run->main);
    task.main = &main, task.model_opt = &model_opt;
    const dt_mesh_shape shape = run_mesh(run, &with->strategy);
    dt_mesh mesh;
    dt_mesh_plan(&mesh, NULL, with->nranks, with->ranks_per_node, &shape);
    task.data = &mesh.data, task.sum = &mesh.sum, task.batching = with->batching;
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_task_buffers_nbytes(&model_opt, dt_task_n_values(&task));
    return dt_task_plan(&task, with->strategy.stage, memory);
}

static dt_err plan_saver(const dt_run *run, const plan_setting *with, const size_t of_part[DT_N_PARTS],
                         dt_memory *memory)
{
    size_t nbytes = 0, kept = 0;
    if (!with->saves_async) return DT_OK;
    for (int p = 0; p < (run_saves_frozen(run) ? DT_N_PARTS : DT_FROZEN); p++) nbytes += of_part[p];
    if (run->task.kept) {
        const dt_zero_options like = run_zero_options(with, &run->main);
        DT_TRY(dt_frozen_model_saved_nbytes(run->task.kept, &like, with->model_opt.dtype, n_sum(run, with), &kept));
    }
    dt_saver_plan(&run->dev, nbytes + kept, memory);
    return DT_OK;
}

dt_err run_plan(const dt_run *run, const plan_setting *with, rank_plan *plan)
{
    *plan = (rank_plan){0};
    DT_TRY(plan_zeros(run, with, &plan->zero));
    DT_TRY(dt_model_plan(&run->mc, &with->model_opt, run->units, run->n_units, &run->dev, &plan->memory));
    const dt_comm_shape shape = {with->nranks, with->ranks_per_node, run->max_sharing, run->cfg.comm_shared_memory,
                                 run_mesh(run, &with->strategy)};
    const dt_memory comm = dt_comm_plan(run->cfg.comm_backend, &run->dev, &shape), overhead = run_overhead(run);
    dt_memory_add(&plan->memory, &plan->zero.memory);
    dt_memory_add(&plan->memory, &comm);
    dt_memory_add(&plan->memory, &overhead);
    dt_stream_plan(&run->dev, 1 + plan->zero.n_streams, &plan->memory); /* 1: the compute stream */
    plan->memory.at[DT_MEM_OTHER][DT_ON_HOST] += dt_timeline_nbytes(run->cfg.log_trace);
    plan->memory.at[DT_MEM_DATA][DT_ON_HOST] += run_items_nbytes(run);
    dt_chunks_plan(&plan->memory);
    DT_TRY(plan_saver(run, with, plan->zero.saved_nbytes, &plan->memory));
    DT_TRY(plan_task(run, with, &plan->memory));
    const double n_micro = (double)with->batching.accumulation;
    dt_traffic step = plan->zero.step;
    add_traffic(&step, &plan->zero.micro_step, n_micro);
    plan->sent_bytes = plan->zero.sent_bytes_per_step + plan->zero.sent_bytes_per_micro_step * n_micro;
    plan->sent = dt_comm_sent(run->cfg.comm_backend, &run->dev, &shape, run->cfg.run_reproducible, &step);
    return DT_OK;
}

dt_err run_try(const dt_run *run, const plan_setting *with, rank_plan *plan)
{
    plan_setting enough = *with;
    enough.max_live_parameters = 0; /* no limit */
    DT_TRY(run_plan(run, &enough, plan));
    if (plan->zero.live_parameters <= with->max_live_parameters) return DT_OK;
    const int64_t least = plan->zero.least_live_parameters;
    const bool too_few = least > with->max_live_parameters;
    enough.max_live_parameters = too_few ? least : with->max_live_parameters;
    DT_TRY(run_plan(run, &enough, plan));
    plan->needs_live = too_few ? least : 0;
    return DT_OK;
}
