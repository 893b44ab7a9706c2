/* saving.c - assemble checkpoints and report them. While training continues (checkpoint.async), the vote of each step
 * includes the state of the ranks' writers, so all ranks react between the same two steps. The last save, and a save
 * before a stop, are synchronous, because a copy would gain nothing. */
#include "run.h"
#include <inttypes.h>
#include <stdlib.h>

/* ---- asynchronous saves ------------------------------------------------------------------------------------------ */

bool run_saves_async(const dt_run *run) { return run_trains(run) && run->cfg.checkpoint_async; }

size_t run_items_nbytes(const dt_run *run)
{
    const dt_task *t = &run->task;
    return t->saved_nbytes > 0 ? (size_t)t->saved_nbytes + DT_CKPT_TASK_ITEMS * sizeof(int64_t)
                               : 0; /* padding of each item */
}

dt_err run_open_saver(dt_run *run)
{
    const size_t n_items = run_items_nbytes(run);
    size_t nbytes = 0;
    if (n_items > 0) DT_TRY(dt_buf_alloc(&run->saving.items, &run->dev, DT_ON_HOST, n_items, DT_MEM_DATA));
    if (!run_saves_async(run)) return DT_OK;
    for (int i = 0; i < run->n_trained; i++) {
        const bool frozen = run->trained[i] != &run->main || run_saves_frozen(run);
        for (int p = 0; p < (frozen ? DT_N_PARTS : DT_FROZEN); p++)
            nbytes += dt_zero_saved_nbytes(run->trained[i]->zero, (dt_part)p);
    }
    for (int p = 0; run->task.kept && p < DT_N_PARTS; p++) nbytes += dt_zero_saved_nbytes(run->task.kept->zero, p);
    return dt_saver_open(&run->saving.saver, run->comm, &run->dev, run->compute, nbytes);
}

static bool is_in_progress(const dt_run *run) { return dt_saver_state_of(run->saving.saver).in_progress; }

/* ---- contents of a save ------------------------------------------------------------------------------------------ */

/* Free meta's texts and items, which belong to the save, except for the model's configuration. */
static void forget(dt_saving *s)
{
    free(s->meta.config);
    dt_named_arrays_free(&s->meta.items);
    s->meta = (dt_ckpt_meta){0};
}

static double last_lr(const dt_run *run, const progress *p)
{
    const int64_t position = run_last_schedule_position(run, p);
    return position < 0 ? -1 : dt_schedule_lr(&run->schedule, run->main.groups.group[0].lr, position);
}

static dt_err gather_local(dt_run *run, const progress *p)
{
    dt_saving *s = &run->saving;
    s->is_best = run_best_is_new(run, p);
    s->meta = (dt_ckpt_meta){.step = p->step,
                             .samples = p->samples,
                             .tokens = p->tokens,
                             .updates = p->updates,
                             .schedule = run->schedule.span,
                             .lr = last_lr(run, p),
                             .seed = (uint64_t)run->cfg.run_seed,
                             .scale = run->scale,
                             .config = dt_config_text(&run->cfg),
                             .model_config = run->mc.json,
                             .data_fingerprint = run_data_fingerprint(run),
                             .validation_due = p->validation_due,
                             .best_step = p->best_step,
                             .best_metric = p->best_metric,
                             .n_not_better = p->n_not_better,
                             .items = {.room = s->items.ptr, .room_nbytes = s->items.nbytes}};
    s->n_models = run_list_models(run, s->models);
    for (int i = 0; i < s->n_models; i++) s->models[i].with_states = true;
    DT_CHECK(s->meta.config, DT_ERR_MEMORY, "out of memory for the text of a configuration");
    DT_TRY(dt_lock_check(run->lock));
    return dt_report_flush(run->report); /* records up to this step must be on disk before a run can resume from it */
}

/* Collective, agreed. */
static dt_err gather(dt_run *run, const progress *p)
{
    dt_task *t = &run->task;
    DT_TRY(dt_comm_agree(run->comm, gather_local(run, p)));
    dt_phase_enter(&run->phase, "save", "");
    return dt_task_save(t, &run->saving.meta.items);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static void trace_stages(const dt_run *run, const dt_saver_state *state)
{
    for (int i = 0; i < state->n_stages; i++)
        dt_timeline_add(run->timeline, "save", state->stage[i].name, state->stage[i].begin_s, state->stage[i].end_s);
}

/* Called when the file has its final name. Collective, agreed. */
static dt_err publish(dt_run *run, progress *p)
{
    p->saved_step = run->saving.meta.step;
    if (p->saved_step > p->first_step) run_count_progress(run);
    const dt_err err = run->saving.is_best ? run_best_publish(run, p->saved_step) : DT_OK;
    forget(&run->saving);
    return err;
}

static dt_err report_async(dt_run *run, progress *p, double since_s)
{
    dt_saving *s = &run->saving;
    const dt_saver_state state = dt_saver_state_of(s->saver);
    char copied[24];
    const dt_err err = publish(run, p);
    s->cost = (dt_save_cost){.step = p->saved_step,
                             .nbytes = (double)state.nbytes,
                             .copy_s = state.copy_s,
                             .stall_s = s->stall_s + dt_now_s() - since_s,
                             .whole_s = state.end_s - state.begin_s,
                             .is_new = true};
    trace_stages(run, &state);
    run_stop_measure(&run->limit, state.copy_s + state.work_s);
    dt_report_end_line(run->report);
    DT_INFO("checkpoint of step %" PRId64
            " written in %.2f s during training, which waited %.2f s for it (%s per rank copied in %.2f s)",
            p->saved_step, s->cost.whole_s, s->cost.stall_s, dt_format_bytes(s->cost.nbytes, copied), s->cost.copy_s);
    return err;
}

int run_save_metrics(dt_run *run, dt_metric metrics[RUN_SAVE_METRICS])
{
    dt_save_cost *c = &run->saving.cost;
    if (!c->is_new) return 0;
    c->is_new = false;
    metrics[0] = (dt_metric){"save/step", (double)c->step};
    metrics[1] = (dt_metric){"save/bytes", c->nbytes};
    metrics[2] = (dt_metric){"save/copy_time", c->copy_s};
    metrics[3] = (dt_metric){"save/stall", c->stall_s};
    metrics[4] = (dt_metric){"save/time", c->whole_s};
    return RUN_SAVE_METRICS;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static dt_err save_at_once(dt_run *run, progress *p, double begin_s)
{
    const dt_saving *s = &run->saving;
    DT_TRY(dt_checkpoint_save_all(run->comm, s->models, s->n_models, &s->meta, run->checkpoint_dir,
                                  run->cfg.checkpoint_save_total_limit, &run->phase));
    run_stop_measure(&run->limit, dt_now_s() - begin_s);
    DT_INFO("checkpoint of step %" PRId64 " written in %.2f s", s->meta.step, dt_now_s() - begin_s);
    return publish(run, p);
}

static dt_err save_async(dt_run *run, double begin_s)
{
    dt_saving *s = &run->saving;
    dt_phase_enter(&run->phase, "save", "copy");
    DT_TRY(dt_saver_begin(s->saver, s->models, s->n_models, &s->meta, run->checkpoint_dir,
                          run->cfg.checkpoint_save_total_limit));
    s->stall_s = dt_now_s() - begin_s;
    return DT_OK;
}

dt_err run_save(dt_run *run, progress *p, bool at_once)
{
    DT_TRY(run_save_finish(run, p));
    const double begin_s = dt_now_s();
    if (at_once) dt_report_last_line(run->report); /* no step follows soon, or none at all */
    dt_err err = gather(run, p);
    if (err == DT_OK) err = at_once || !run->saving.saver ? save_at_once(run, p, begin_s) : save_async(run, begin_s);
    if (err != DT_OK) forget(&run->saving);
    return err;
}

dt_err run_save_look(dt_run *run)
{
    bool done;
    double work_s;
    const dt_err err = dt_saver_poll(run->saving.saver, &done, &work_s);
    dt_sums_add(&run->sums, run->counted.save_done, done);
    dt_sums_add(&run->sums, run->counted.save_work, work_s);
    return err;
}

dt_err run_save_go_on(dt_run *run, progress *p)
{
    const double begin_s = dt_now_s();
    bool ended;
    if (!is_in_progress(run) || dt_sums_value(&run->sums, run->counted.save_done) == 0) return DT_OK;
    dt_phase_enter(&run->phase, "save", "");
    DT_TRY(dt_saver_continue(run->saving.saver, dt_sums_value(&run->sums, run->counted.save_work), &ended));
    if (ended) return report_async(run, p, begin_s);
    run->saving.stall_s += dt_now_s() - begin_s;
    return DT_OK;
}

dt_err run_save_finish(dt_run *run, progress *p)
{
    const double begin_s = dt_now_s();
    if (!is_in_progress(run)) return DT_OK;
    dt_phase_enter(&run->phase, "save", "");
    const dt_err err = dt_saver_finish(run->saving.saver, &run->phase);
    if (err == DT_OK) return report_async(run, p, begin_s);
    if (err != DT_ERR_COMM) forget(&run->saving); /* otherwise the writer may still run: run_close_saver */
    return err;
}

/* The run's error and the rank it came from stay the same, whether or not the save succeeds. */
dt_err run_save_last(dt_run *run, progress *p, dt_err err)
{
    if (err == DT_OK || err == DT_ERR_COMM || !is_in_progress(run) || !dt_comm_failed_together(run->comm)) return err;
    const bool owner = dt_comm_prints_error(run->comm);
    char *message = strdup(dt_error_message());
    if (run_save_finish(run, p) == DT_ERR_COMM) err = DT_ERR_COMM;
    dt_error_clear();
    if (owner && message) dt_fail(err, "%s", message);
    free(message);
    return err == DT_ERR_COMM ? err : dt_comm_agree(run->comm, owner ? err : DT_OK);
}

void run_close_saver(dt_run *run)
{
    dt_saver_close(run->saving.saver);
    forget(&run->saving);
    dt_buf_free(&run->saving.items);
    run->saving.saver = NULL;
}
