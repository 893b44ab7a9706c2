/* run.c - a run, from configuration to last checkpoint. Local work alternates with votes: every section in which a
 * single rank may fail is followed by a vote. */
#include "run.h"
#include "dtrain/step/step.h"
#include "dtrain/perfmodel/chips.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dt_err write_config(const dt_run *run)
{
    char *path = NULL, *text = dt_config_text(&run->cfg);
    if (!text || asprintf(&path, "%s/config.ini", run->cfg.run_output_dir) < 0) path = NULL;
    dt_err err = path ? dt_make_dirs(run->cfg.run_output_dir) : dt_fail(DT_ERR_MEMORY, "out of memory for config.ini");
    if (err == DT_OK) err = dt_write_file_atomic(path, text, strlen(text));
    const char *relative = dt_config_relative_path(&run->cfg);
    if (err == DT_OK && relative)
        DT_WARN("%s stores relative paths, such as that of %s, because a configuration cannot express this folder's "
                "full path; start the run again only from this folder",
                path, relative);
    free(path), free(text);
    return err;
}

static dt_err open_report(dt_run *run, const progress *p)
{
    char *config = NULL;
    dt_report_options opt = {.cfg = &run->cfg,
                             .resume_step = p->step,
                             .append = !run_trains(run), /* an evaluation appends to a run's records */
                             .redo_validation = p->validation_due,
                             .every = dt_interval_steps(run->cfg.log_logging_steps, run->total_steps),
                             .total_steps = run->total_steps};
    if (!dt_comm_first(run->comm)) return DT_OK;
    if (run_trains(run)) opt.config = config = dt_config_text(&run->cfg);
    const dt_err err = dt_report_open(&run->report, &opt);
    free(config);
    return err;
}

/* All ranks must read the same files. A node with an old copy would silently train on other data or another model, or
 * enter collectives that the other ranks do not. */
static dt_err check_same_files(dt_run *run)
{
    const dt_task *t = &run->task;
    const char *config = run->has_pretrained      ? run->pretrained.config_name
                         : *run->cfg.model_config ? run->cfg.model_config
                                                  : "[model]";
    const uint64_t mine =
        (t->train ? dt_loader_fingerprint(t->train) : 0) ^ dt_mix64(t->valid ? dt_loader_fingerprint(t->valid) : 1);
    uint64_t first = mine;
    DT_TRY(dt_comm_same_file(run->comm, config, dt_hash_text(run->mc.json)));
    for (int i = 0; i < t->n_files; i++) DT_TRY(dt_comm_same_file(run->comm, t->file[i].path, t->file[i].fingerprint));
    DT_TRY(dt_comm_broadcast_host(run->comm, &first, sizeof first, 0));
    dt_err err = mine == first ? DT_OK
                               : dt_fail(DT_ERR_DATA,
                                         "[data]: dataset files on host %s differ from rank 0's (sizes or contents); "
                                         "make the same files visible on every node",
                                         run->comm->host);
    return dt_comm_agree(run->comm, err);
}

/* Other launchers set WORLD_SIZE to the number of ranks or of nodes. dtrain uses only MPI's count and warns about any
 * other value. */
static void check_world_size(const dt_run *run)
{
    const char *text = getenv("WORLD_SIZE");
    char *end = NULL;
    const long n = text ? strtol(text, &end, 10) : 0;
    if (!text || (end != text && !*end && (n == dt_comm_ranks(run->comm) || n == dt_comm_nodes(run->comm)))) return;
    const int n_ranks = dt_comm_ranks(run->comm);
    DT_WARN("WORLD_SIZE = %s is ignored, because MPI started %d rank%s on %d node%s", text, n_ranks,
            n_ranks > 1 ? "s" : "", dt_comm_nodes(run->comm), dt_comm_nodes(run->comm) > 1 ? "s" : "");
}

/* A packed row counts as one sample in every batch, though it holds several. */
static const char *say_samples(const dt_data_info *info, char *out, size_t size)
{
    const int64_t n = info->n_packed > 0 ? info->n_packed : info->n_samples;
    const char *what = info->n_packed > 0 && info->of_documents ? "document" : "sample";
    const int len = snprintf(out, size, "%" PRId64 " %s%s", n, what, n == 1 ? "" : "s");
    if (info->n_packed > 0)
        snprintf(out + len, size - (size_t)len, " in %" PRId64 " row%s", info->n_samples,
                 info->n_samples == 1 ? "" : "s");
    return out;
}

/* Report which tensors have their own learning rate. */
static void describe_groups(const dt_trained *m)
{
    const dt_lr_groups *g = &m->groups;
    int n_tensors[DT_MAX_LR_GROUPS] = {0};
    int64_t n_param[DT_MAX_LR_GROUPS] = {0};
    for (int u = 0; u < m->n_units; u++)
        for (int i = 0; i < m->units[u].n_tensors; i++) {
            const dt_tensor *t = &m->units[u].tensors[i];
            if (t->trainable) n_tensors[t->lr_group]++, n_param[t->lr_group] += dt_tensor_n_trainable(t);
        }
    for (int k = 1; k < g->n; k++)
        DT_INFO("%s: %g for %d tensor%s with %" PRId64 " parameters; %g for the others", g->group[k].metric,
                g->group[k].lr, n_tensors[k], n_tensors[k] == 1 ? "" : "s", n_param[k], g->group[0].lr);
}

static void describe_trained(const dt_run *run)
{
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        if (m->name)
            DT_INFO("%s, trained with the model: %" PRId64 " parameters, %s, lr %g, max_grad_norm %g", m->name,
                    dt_units_n_trainable(m->units, m->n_units), m->zero_opt.optimizer->name, m->groups.group[0].lr,
                    m->max_grad_norm);
        describe_groups(m);
    }
}

static void describe(const dt_run *run)
{
    const dt_task *t = &run->task;
    char text[MESH_TEXT];
    run->dev.ops->describe(&run->dev, text, sizeof text);
    const int n_ranks = dt_comm_ranks(run->comm);
    DT_INFO("%s on %d rank%s, %d node%s; device %s", t->ops->name, n_ranks, n_ranks > 1 ? "s" : "",
            dt_comm_nodes(run->comm), dt_comm_nodes(run->comm) > 1 ? "s" : "", text);
    if (run->dev.ops->own_memory && run->comm->max_sharing > 1)
        DT_INFO("%d ranks share one device, its memory and its time, because there are more ranks than devices",
                run->comm->max_sharing);
    const strategy s = run_strategy(run);
    char trained[60] = "";
    const int64_t n_trained = run_trains(run) ? dt_units_n_trainable(run->units, run->n_units) : run_n_param(run);
    if (n_trained < run_n_param(run)) snprintf(trained, sizeof trained, " (%" PRId64 " are trained)", n_trained);
    DT_INFO("model: %" PRId64 " parameters in %d units%s, %s; %s", run_n_param(run), run->n_units, trained,
            dt_dtype_name(run->model_opt.dtype), run_strategy_text(&s, text));
    if (*run_mesh_text(run, "; ", " ranks", text)) DT_INFO("mesh: %s", text + 2);
    DT_INFO("batch: train_batch_size %" PRId64 " = micro_batch_size %" PRId64 " x gradient_accumulation_steps %" PRId64
            " x %d rank%s",
            run->batching.train_batch_size, run->batching.micro_batch_size, run->batching.accumulation,
            run->mesh->data.size, run->mesh->data.size > 1 ? "s" : "");
    const int64_t n_active = dt_model_n_active(&run->mc, run->units, run->n_units);
    if (n_active < run_n_param(run))
        DT_INFO("experts: each token uses %" PRId64 " of %" PRId64 ", and %" PRId64 " parameters",
                run->mc.num_experts_per_tok, run->mc.num_experts, n_active);
    if (run_trains(run)) describe_trained(run);
    if (t->train) {
        const dt_data_info *info = dt_loader_info(t->train);
        DT_INFO("train: %s, %" PRId64 " tokens, %" PRId64 " step%s per epoch; %" PRId64 " step%s in total",
                say_samples(info, text, sizeof text), info->n_tokens, t->steps_per_epoch, dt_plural(t->steps_per_epoch),
                run->total_steps, dt_plural(run->total_steps));
        if (info->n_dropped && dt_comm_first(run->comm))
            DT_WARN("[data] train: skipped %" PRId64 " sample%s without a target", info->n_dropped,
                    dt_plural(info->n_dropped));
    }
    if (t->valid) DT_INFO("validation: %s", say_samples(dt_loader_info(t->valid), text, sizeof text));
}

static dt_err open_device(dt_run *run, int n_threads)
{
    if (n_threads == 0 || dt_config_doubted(&run->cfg, "run", "device")) return DT_OK;
    const dt_err err =
        dt_device_open(&run->dev, run->cfg.run_device, dt_comm_number_on_node(run->comm), n_threads, &run->ledger);
    DT_TRY(dt_config_blame(&run->cfg, "run", "device", err));
    dt_timeline_attach(run->timeline, &run->dev);
    if (run->cfg.run_reproducible && run->dev.ops->make_reproducible) run->dev.ops->make_reproducible(&run->dev);
    return run_open_host(run, n_threads, false);
}

/* Returns 0 after an error. */
static int find_threads(dt_run *run)
{
    int n_threads = 0;
    char where[512];
    dt_config_where(&run->cfg, "run", "threads", where, sizeof where);
    dt_mistakes_add(&run->mistakes, dt_comm_threads(run->comm, run->cfg.run_threads, where, &n_threads));
    return n_threads;
}

/* Check everything that the user can set, on every rank, and report all errors together. */
static dt_err open_all(dt_run *run)
{
    dt_mistakes *m = &run->mistakes;
    const int n_threads = find_threads(run);
    const strategy s = run_strategy(run);
    const dt_mesh_shape shape = run_mesh(run, &s);
    const dt_err divides = run_check_ranks(run, dt_comm_ranks(run->comm));
    dt_mistakes_add(m, divides);
    if (divides == DT_OK && !dt_config_doubted(&run->cfg, "zero", "shard_group"))
        dt_mistakes_add(m, dt_config_blame(&run->cfg, "zero", "shard_group", dt_comm_mesh(run->comm, &shape)));
    run_open_config_objects(run);
    dt_mistakes_add(m, open_device(run, n_threads));
    dt_mistakes_add(m, run_check_attention(run));
    const dt_err devices = dt_comm_find_devices(run->comm, &run->dev);
    dt_mistakes_add(m, devices);
    run->max_sharing = run->comm->max_sharing;
    if (run->dev.ops && !dt_config_doubted(&run->cfg, "comm", "backend"))
        dt_mistakes_add(
            m, dt_config_blame(&run->cfg, "comm", "backend", dt_comm_has_backend(run->cfg.comm_backend, &run->dev)));
    run_open_task(run);
    if (run->n_units > 0) dt_mistakes_add(m, run_settle_tokenizer(run));
    dt_mistakes_add(m, run_best_check(run));
    const bool dir = !dt_comm_first(run->comm) || run_check_settings(run);
    /* a run does this after it has locked the directory */
    if (dir && run->n_units > 0 && run->only_check) dt_mistakes_add(m, run_choose_checkpoint(run));
    if (strcmp(run->cfg.zero_stage, "auto") != 0) {
        const dt_err disk = run_check_nvme_path(run);
        dt_mistakes_add(m, disk);
        if (disk == DT_OK && devices == DT_OK)
            dt_mistakes_add(m, run_check_memory(run, dt_comm_ranks_on_node(run->comm)));
    }
    return run_agree(run, dt_mistakes_end(m));
}

/* run.device = auto may find a GPU on one node and none on another. Later code depends on the device, so ranks with
 * different devices would wait for each other. */
static dt_err check_same_device(dt_run *run)
{
    char of_first[32] = "";
    snprintf(of_first, sizeof of_first, "%s", run->dev.ops->name);
    DT_TRY(dt_comm_broadcast_host(run->comm, of_first, sizeof of_first, 0));
    dt_err err = DT_OK;
    if (strcmp(run->dev.ops->name, of_first) != 0)
        err =
            dt_config_fail(&run->cfg, "run", "device",
                           "expected the same kind of device on all ranks: %s selects %s on rank %d, but %s on rank 0",
                           run->cfg.run_device, run->dev.ops->name, dt_comm_number(run->comm), of_first);
    return run_agree(run, err);
}

/* The peak rate for utilisation: the sum over all devices, each counted once. Omitted for devices without a known peak.
 */
static dt_err find_peak(dt_run *run)
{
    const char *name = run->dev.ops->chip_name ? run->dev.ops->chip_name(&run->dev) : NULL;
    const dt_chip *chip = dt_chip_of(name);
    const double flops = chip ? dt_chip_flops(chip, run->model_opt.dtype) / run->comm->n_sharing : 0;
    double sums[2] = {flops, !chip};
    if (!run->dev.ops->chip_name) return DT_OK;
    DT_TRY(dt_comm_reduce_host_f64(dt_comm_all(run->comm), sums, 2, DT_SUM));
    if (sums[1] == 0) run->peak_flops = sums[0];
    if (name && !chip) DT_INFO("MFU is not reported, because the peak rate of %s is unknown", name);
    return DT_OK;
}

/* One rank's GPU may fail the check while others pass, so the ranks agree here. */
static dt_err check_device(dt_run *run)
{
    if (run->dev.ops == &dt_device_cpu_ops) return DT_OK;
    dt_phase_enter(&run->phase, "verify", "device");
    const dt_err err = run_agree(run, run_check_device(run));
    dt_phase_enter(&run->phase, "start", "");
    return err;
}

/* Everything before allocation; --check ends here. */
static dt_err prepare(dt_run *run)
{
    DT_TRY(open_all(run));
    DT_TRY(check_same_device(run));
    DT_TRY(check_device(run));
    DT_TRY(run_agree(run, dt_comm_attach(run->comm, &run->dev, run->cfg.comm_backend, run->cfg.comm_shared_memory)));
    DT_TRY(find_peak(run));
    DT_TRY(check_same_files(run));
    DT_TRY(run_settle_strategy(run, dt_comm_ranks_on_node(run->comm)));
    DT_TRY(run_settle_gathered(run, dt_comm_ranks_on_node(run->comm)));
    describe(run);
    if (dt_comm_first(run->comm)) check_world_size(run);
    return DT_OK;
}

static dt_err prepare_device(dt_run *run)
{
    dt_mistakes *m = &run->mistakes;
    char text[256];
    dt_mistakes_add(m, open_device(run, find_threads(run)));
    dt_mistakes_add(m, dt_comm_find_devices(run->comm, &run->dev));
    DT_TRY(run_agree(run, dt_mistakes_end(m)));
    DT_TRY(check_same_device(run));
    DT_TRY(check_device(run));
    run->dev.ops->describe(&run->dev, text, sizeof text);
    DT_INFO("check passed: device %s", text);
    return DT_OK;
}

static dt_err write_trace(dt_run *run)
{
    char path[PATH_MAX];
    const char *dir = run->cfg.run_output_dir;
    DT_CHECK(dt_join_path(path, dir, "trace.json", ""), DT_ERR_WRITE, "%s: the path is too long", dir);
    return dt_timeline_write(run->timeline, run->comm, path);
}

static dt_err export_result(dt_run *run, const progress *p)
{
    const dt_err err = run_export(run);
    if (err != DT_ERR_STOP) return err;
    dt_error_clear();
    return dt_fail(err,
                   "stopped by a signal during the export of the model, after step %" PRId64 " of %" PRId64
                   " was saved; start it again to export",
                   p->step, run->total_steps);
}

static dt_err train(dt_run *run)
{
    progress p;
    DT_TRY(run_resume(run, &p));
    DT_TRY(dt_task_make_features(&run->task));
    /* only now: a start that is refused must not replace the earlier run's file */
    if (run_trains(run)) DT_TRY(dt_comm_agree(run->comm, dt_comm_first(run->comm) ? write_config(run) : DT_OK));
    DT_TRY(run_agree(run, open_report(run, &p)));
    run->task.report = run->report;
    run_stop_estimate(&run->limit, run_checkpoint_nbytes(run), dt_comm_nodes(run->comm));
    const progress from = p;
    const double begin_s = dt_now_s();
    dt_err err = run_trains(run) ? run_loop(run, &p) : run_evaluate(run, p.step);
    err = run_save_last(run, &p, err);
    const double loop_s = dt_now_s() - begin_s;
    if (err == DT_OK) err = export_result(run, &p);
    if (err == DT_OK && run_trains(run)) dt_report_last_line(run->report);
    if (err == DT_OK || err == DT_ERR_STOP) run_say_closing(run, &from, &p, loop_s);
    if ((err != DT_OK && err != DT_ERR_STOP) || !run->cfg.log_trace || !*run->cfg.run_output_dir) return err;
    const dt_err traced = write_trace(run);
    if (err == DT_OK || traced == DT_ERR_COMM) return traced;
    /* main decides by the last vote whether all ranks exit together; the trace has voted since the stop */
    return dt_comm_agree(run->comm, err);
}

/* Only rank 0 reads the files, which may be of any size. Meanwhile all ranks vote periodically: while rank 0 makes
 * progress, all report progress to their watchdogs, and if a rank hangs, the others time out. */
typedef struct verification {
    dt_run *run;
    double voted_s; /* time of the last vote */
    bool ended;     /* by a vote */
} verification;

static dt_err verify_vote(verification *v, dt_err err, bool last)
{
    int ended = last;
    dt_phase_enter(&v->run->phase, "verify", "");
    err = dt_comm_agree(v->run->comm, err);
    if (err == DT_OK) err = dt_comm_broadcast_host(v->run->comm, &ended, sizeof ended, 0);
    v->ended = ended || err != DT_OK;
    v->voted_s = dt_now_s();
    return err;
}

static dt_err verify_progress(void *arg)
{
    verification *v = arg;
    const double timeout_s = v->run->cfg.comm_timeout;
    DT_TRY(dt_phase_poll(&v->run->phase));
    return dt_now_s() - v->voted_s < (timeout_s < 4 ? timeout_s / 8 : 0.5) ? DT_OK : verify_vote(v, DT_OK, false);
}

static dt_err verify_sets(verification *v)
{
    const dt_run *run = v->run;
    const dt_task *t = &run->task;
    DT_TRY(dt_fault("data.verify"));
    if (!dt_comm_first(run->comm)) return DT_OK;
    if (t->train) DT_TRY(dt_loader_verify(t->train, verify_progress, v));
    return t->valid ? dt_loader_verify(t->valid, verify_progress, v) : DT_OK;
}

static dt_err verify_data(dt_run *run)
{
    const double begin_s = dt_now_s();
    verification v = {.run = run, .voted_s = begin_s};
    dt_phase_enter(&run->phase, "verify", "");
    dt_err err = verify_sets(&v);
    while (!v.ended) err = verify_vote(&v, err, true); /* rank 0 marks the last vote */
    if (err != DT_OK) return err;
    DT_INFO("datasets verified in %.1f s", dt_now_s() - begin_s);
    dt_phase_enter(&run->phase, "start", "");
    return DT_OK;
}

static dt_err run_mode(dt_run *run, dt_comm *comm, dt_mode mode)
{
    rank_plan plan;
    run->comm = comm, run->mesh = &comm->mesh;
    comm->timeout_s = run->cfg.comm_timeout;
    comm->phase = &run->phase, comm->check = run->cfg.comm_check;
    run->only_check = mode != DT_MODE_RUN;
    DT_CHECK(asprintf(&run->checkpoint_dir, "%s/checkpoints", run->cfg.run_output_dir) >= 0, DT_ERR_MEMORY,
             "out of memory for a path");
    if (!run->only_check) {
        run->phase.stop_asked = dt_signals_pending;
        run_stop_open(&run->limit, run->cfg.run_time_limit, run->start_s, dt_comm_first(comm));
    }
    dt_phase_enter(&run->phase, "start", "");
    DT_TRY(dt_watchdog_start(&run->watchdog, &run->phase, comm, run->cfg.comm_timeout));
    DT_TRY(dt_timeline_open(&run->timeline, &run->phase, run->cfg.log_wall_clock_breakdown, run->cfg.log_trace,
                            &run->ledger));
    if (mode == DT_MODE_CHECK_DEVICE) return prepare_device(run);
    DT_TRY(prepare(run));
    if (mode == DT_MODE_CHECK) {
        /* Only rank 0 reads the files, which may be of any size, without any exchange, so comm.timeout does not apply.
         */
        dt_watchdog_stop(&run->watchdog);
        DT_TRY(dt_comm_agree(comm, dt_comm_first(comm) ? run_check_files(run) : DT_OK));
        DT_INFO("check passed: no step was taken");
        return DT_OK;
    }
    if (run->cfg.data_verify) DT_TRY(verify_data(run));
    if (*run->cfg.run_output_dir)
        DT_TRY(dt_lock_take(&run->lock, comm, run->cfg.run_output_dir, run->force, &run->phase));
    DT_TRY(run_agree(run, run_choose_checkpoint(run)));
    const plan_setting with = run_setting(run, dt_comm_ranks(run->comm), dt_comm_ranks_on_node(comm));
    DT_TRY(dt_comm_agree(comm, run_plan(run, &with, &plan)));
    DT_TRY(run_open_sums(run));
    DT_TRY(run_open_states(run));
    run_compare_plan(run, &plan);
    return train(run);
}

dt_err dt_run_main(dt_run *run, dt_comm *comm, dt_mode mode)
{
    const dt_err err = run_mode(run, comm, mode);
    return mode == DT_MODE_RUN ? run_count_stop(run, err) : err;
}

void dt_run_close(dt_run *run)
{
    run_close_saver(run); /* may wait for a disk, which the watchdog limits */
    if (run->comm) run->comm->phase = NULL, run->comm->chunks = NULL; /* comm may outlive the run */
    dt_chunks_close(&run->chunks);
    dt_watchdog_stop(&run->watchdog);
    dt_timeline_close(run->timeline);
    dt_report_close(run->report);
    dt_lock_release(run->lock);
    dt_task_buffers_free(&run->task.buffers, &run->ledger);
    dt_task_close(&run->task);
    dt_task_drop_features(&run->task);
    dt_sums_close(&run->sums);
    free(run->shown);
    dt_model_close(run->model);
    for (int i = 0; i < run->n_trained; i++) dt_zero_close(run->trained[i]->zero);
    dt_device_close(&run->host);
    dt_model_free_units(run->units, run->n_units);
    dt_model_config_free(&run->mc);
    dt_lora_free(&run->lora);
    dt_list_free(run->frozen, run->n_frozen);
    free(run->rows);
    if (run->dev.ops) dt_stream_close(&run->dev, run->compute);
    dt_pretrained_free(&run->pretrained);
    dt_base_free(&run->base);
    dt_list_free(run->resume.path, run->resume.n);
    free(run->checkpoint_dir);
    free(run->mistakes.text);
    dt_config_free(&run->cfg);
}
