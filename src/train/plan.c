/* plan.c - memory and communication before anything is allocated. The rooms that allocate also say how much
 * (dt_zero_plan_make, dt_model_plan, ...); this file only adds up, so the plan cannot drift from what happens. */
#include "run.h"
#include <stdlib.h>
#include <string.h>

int64_t run_n_param(const dt_run *run)
{
    int64_t n = 0;
    for (int u = 0; u < run->n_units; u++) n += run->units[u].n_param;
    return n;
}

double run_checkpoint_nbytes(const dt_run *run)
{
    char *config = dt_config_text(&run->cfg);
    const size_t texts_len = (config ? strlen(config) : 0) + (run->mc.json ? strlen(run->mc.json) : 0);
    free(config);
    double nbytes = dt_checkpoint_nbytes(texts_len, run->task.saved_nbytes);
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        const dt_optimizer_ops *o = m->zero_opt.optimizer; /* NULL: of an evaluation */
        nbytes += dt_checkpoint_model_nbytes(m->units, m->n_units, o ? o->n_states : 0);
    }
    return nbytes;
}

/* What is trained beside the model joins its plan. */
static dt_err add_beside(const dt_run *run, int stage, int nranks, dt_zero_plan *plan)
{
    for (int i = 1; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        dt_zero_options opt = m->zero_opt;
        dt_zero_plan own;
        opt.stage = stage;
        opt.max_live_parameters = run->main.zero_opt.max_live_parameters;
        DT_TRY(dt_zero_plan_make(&opt, m->units, m->n_units, nranks, &own));
        dt_memory_add(&plan->memory, &own.memory);
        plan->sent_elems_per_micro_step += own.sent_elems_per_micro_step;
        plan->sent_bytes_per_micro_step += own.sent_bytes_per_micro_step;
        plan->sent_elems_per_step += own.sent_elems_per_step;
        plan->sent_bytes_per_step += own.sent_bytes_per_step;
        if (own.least_live_parameters > plan->least_live_parameters)
            plan->least_live_parameters = own.least_live_parameters;
    }
    return DT_OK;
}

dt_err run_plan_stage(const dt_run *run, int stage, int nranks, int ranks_per_node, stage_plan *plan)
{
    dt_zero_options opt = run->main.zero_opt;
    opt.stage = stage;
    *plan = (stage_plan){0};
    DT_TRY(dt_zero_plan_make(&opt, run->units, run->n_units, nranks, &plan->zero));
    DT_TRY(add_beside(run, stage, nranks, &plan->zero));
    DT_TRY(dt_model_plan(&run->mc, &run->model_opt, run->units, run->n_units, &run->dev, &plan->memory));
    const dt_comm_shape shape = {nranks, ranks_per_node, run->most_sharing, run->cfg.comm_shared_memory};
    const dt_memory comm = dt_comm_plan(run->cfg.comm_backend, &run->dev, &shape);
    dt_memory_add(&plan->memory, &plan->zero.memory);
    dt_memory_add(&plan->memory, &comm);
    plan->memory.at[DT_MEM_DATA][DT_ON_HOST] += dt_task_buffers_nbytes(run->model_opt.max_tok, run->task.ops->n_labels);
    dt_task task = run->task; /* on as many ranks as are asked about */
    task.nranks = nranks;
    DT_TRY(task.ops->plan(&task, stage, &plan->memory));
    const dt_memory overhead = run_overhead(run);
    dt_memory_add(&plan->memory, &overhead);
    return DT_OK;
}
