/* check.c - checks before the run: settings that would fail later and, with --check, the contents of every input file.
 * Rank 0 does the checks, except that every rank checks the disk of its node. */
#include "run.h"
#include "dtrain/core/plural.h"
#include "dtrain/io/io.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- output directories ------------------------------------------------------------------------------------------ */

static dt_err check_link(const char *where, const char *path)
{
    char target[PATH_MAX];
    const ssize_t n = readlink(path, target, sizeof target);
    DT_CHECK(n < 0, DT_ERR_USAGE,
             "%s: %s is a symbolic link to %.*s, which does not exist; create that directory, or remove the link",
             where, path, (int)n, target);
    return DT_OK;
}

/* The directory itself, or its nearest existing parent. */
static dt_err find_existing(const char *where, const char *path, char dir[PATH_MAX])
{
    struct stat st;
    DT_CHECK(snprintf(dir, PATH_MAX, "%s", path) < PATH_MAX, DT_ERR_USAGE, "%s: the path is too long", where);
    while (stat(dir, &st) != 0) {
        DT_CHECK(errno == ENOENT || errno == ENOTDIR, DT_ERR_USAGE, "%s: %s: %s", where, dir, strerror(errno));
        DT_TRY(check_link(where, dir));
        char *slash = strrchr(dir, '/');
        strcpy(slash && slash > dir ? slash : dir, slash == dir ? "/" : slash ? "" : ".");
    }
    DT_CHECK(S_ISDIR(st.st_mode), DT_ERR_USAGE, "%s: expected a directory or an unused name, but %s is neither", where,
             dir);
    return DT_OK;
}

/* Creates a file, because access(2) ignores quotas, and ignores permissions for root. */
static dt_err check_writable(const char *where, const char *dir)
{
    char probe[PATH_MAX + 32];
    snprintf(probe, sizeof probe, "%s/.dtrain-probe-XXXXXX", dir);
    const int fd = mkstemp(probe);
    const int why = errno;
    if (fd >= 0) {
        close(fd);
        unlink(probe);
        return DT_OK;
    }
    return dt_fail(why == ENOSPC || why == EDQUOT ? DT_ERR_WRITE : DT_ERR_USAGE, "%s: cannot write in %s: %s", where,
                   dir, strerror(why));
}

static int64_t n_checkpoints(const dt_run *run)
{
    const int64_t steps = dt_interval_steps(run->cfg.checkpoint_save_steps, run->total_steps),
                  limit = run->cfg.checkpoint_save_total_limit;
    const int64_t n = steps > 0 ? (run->total_steps + steps - 1) / steps : 1;
    return limit > 0 && limit < n - 1 ? limit + 1 : n; /* the oldest is deleted after the newest is complete */
}

static dt_err check_space(const dt_run *run, const char *dir)
{
    char where[512], one[24], all[24], left[24];
    double available;
    if (run->n_units == 0 || !dt_free_space(dir, &available)) return DT_OK;
    const double each = run_checkpoint_nbytes(run);
    dt_config_where(&run->cfg, "run", "output_dir", where, sizeof where);
    DT_CHECK(each <= available, DT_ERR_WRITE, "%s: a checkpoint of this model needs %s, but only %s is free in %s",
             where, dt_format_bytes(each, one), dt_format_bytes(available, left), dir);
    const int64_t n = n_checkpoints(run);
    const char *fewer = run->cfg.checkpoint_save_total_limit == 1
                            ? "the last one is kept until the next is complete; free some space, or choose another disk"
                            : "a lower checkpoint.save_total_limit keeps fewer (0 keeps all)";
    if (each * (double)n > available)
        DT_WARN("%s: %" PRId64 " checkpoints of %s need %s, but only %s is free in %s; %s", where, n,
                dt_format_bytes(each, one), dt_format_bytes(each * (double)n, all), dt_format_bytes(available, left),
                dir, fewer);
    return DT_OK;
}

/* --check only inspects the lock; a run waits for it and takes it. */
static dt_err check_lock(const dt_run *run)
{
    char holder[512];
    if (!run->only_check || run->force) return DT_OK;
    const dt_lock_state state = dt_lock_look(run->cfg.run_output_dir, holder, sizeof holder);
    if (state == DT_LOCK_UNREADABLE)
        return dt_config_fail(&run->cfg, "run", "output_dir",
                              "%s; dtrain needs this file to check whether another run uses this output_dir. If no "
                              "other run does, remove the file or start with --force",
                              holder);
    if (state == DT_LOCK_HELD)
        return dt_config_fail(&run->cfg, "run", "output_dir",
                              "another run uses this output_dir: %s. Wait for it, stop it, or choose another "
                              "directory. If that run is certainly dead, take over with --force",
                              holder);
    return DT_OK;
}

/* The files that a save replaces. */
static dt_err check_pointers(const dt_run *run)
{
    static const char *const names[] = {"checkpoints/latest", "checkpoints/best"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (dt_join_path(path, run->cfg.run_output_dir, names[i], "")) DT_TRY(dt_check_replaceable(path));
    return DT_OK;
}

/* Directories that exports create or write to. */
static dt_err check_exports(const dt_run *run)
{
    const char *names[RUN_MOST_EXPORTS];
    char path[PATH_MAX];
    struct stat st;
    const int n = run_list_exports(run, names);
    for (int i = 0; i < n; i++)
        DT_CHECK(!dt_join_path(path, run->cfg.run_output_dir, names[i], "") || lstat(path, &st) != 0 ||
                     dt_is_directory(path),
                 DT_ERR_WRITE,
                 "%s: expected a directory or an unused name, because the run exports its model there at the end; "
                 "remove the file",
                 path);
    return DT_OK;
}

static dt_err check_output_dir(const dt_run *run)
{
    char where[512], dir[PATH_MAX];
    if (!*run->cfg.run_output_dir || dt_config_doubted(&run->cfg, "run", "output_dir")) return DT_OK;
    dt_config_where(&run->cfg, "run", "output_dir", where, sizeof where);
    DT_TRY(find_existing(where, run->cfg.run_output_dir, dir));
    DT_TRY(check_writable(where, dir));
    DT_TRY(check_lock(run));
    if (!run_trains(run)) return DT_OK;
    DT_TRY(check_pointers(run));
    DT_TRY(check_exports(run));
    return check_space(run, dir);
}

/* The folder of cached features. An existing complete cache may be read-only. */
static dt_err check_feature_cache(const dt_run *run)
{
    char where[512], dir[PATH_MAX];
    const char *path = run->cfg.vision_feature_cache;
    if (!*path || dt_config_doubted(&run->cfg, "vision", "feature_cache")) return DT_OK;
    dt_config_where(&run->cfg, "vision", "feature_cache", where, sizeof where);
    DT_TRY(find_existing(where, path, dir));
    return strcmp(dir, path) == 0 ? DT_OK : check_writable(where, dir);
}

/* ---- offload directory ------------------------------------------------------------------------------------------- */

/* Create an unnamed file, which disappears when it is closed; see check_writable. */
dt_err run_check_nvme_path(const dt_run *run)
{
    char where[512];
    const dt_config *cfg = &run->cfg;
    const bool used =
        (run_trains(run) && !strcmp(cfg->zero_offload_optimizer, "nvme")) || !strcmp(cfg->zero_offload_param, "nvme");
    if (!used || !*cfg->zero_nvme_path || dt_config_doubted(cfg, "zero", NULL)) return DT_OK;
    const int fd = dt_open_unnamed(cfg->zero_nvme_path);
    const int why = errno;
    if (fd >= 0) return close(fd), DT_OK;
    return dt_fail(DT_ERR_WRITE, "%s: %s: cannot create a file for offloaded states: %s",
                   dt_config_where(cfg, "zero", "nvme_path", where, sizeof where), cfg->zero_nvme_path, strerror(why));
}

/* ---- other settings ---------------------------------------------------------------------------------------------- */

static void warn_of_schedule(const dt_run *run)
{
    const dt_schedule *s = &run->schedule;
    const int64_t total = s->span.total, warmup = s->span.warmup;
    if (total > 0 && warmup >= total)
        DT_WARN("[scheduler]: the warm-up takes %" PRId64 " step%s, but the run has only %" PRId64
                ", so lr is never reached; lower scheduler.warmup_steps or warmup_ratio",
                warmup, dt_plural(warmup), total);
    else if (total > 0 && s->type == DT_SCHED_WSD && warmup + s->decay_steps > total)
        DT_WARN("[scheduler]: warm-up (%" PRId64 " steps) and decay (%" PRId64 ") exceed the run (%" PRId64
                "), so the decay is shortened",
                warmup, s->decay_steps, total);
}

/* A small dataset with packing and accumulation may give too few optimizer steps to train anything. */
static void warn_of_length(const dt_run *run)
{
    enum { FEW_STEPS = 10 };
    const dt_config *cfg = &run->cfg;
    if (!run_trains(run) || cfg->run_max_steps > 0 || run->total_steps < 1 || run->total_steps >= FEW_STEPS) return;
    DT_WARN("[run] epochs = %g gives only %" PRId64 " optimizer step%s; for more, raise run.epochs, or lower "
            "batch.gradient_accumulation_steps or batch.train_batch_size%s",
            cfg->run_epochs, run->total_steps, run->total_steps == 1 ? "" : "s",
            strncmp(cfg->data_packing, "bfd", 3) ? "" : ", or set data.packing = none");
}

bool run_check_settings(dt_run *run)
{
    dt_mistakes *m = &run->mistakes;
    if (!dt_config_doubted(&run->cfg, "log", "report_to")) dt_mistakes_add(m, dt_report_check(&run->cfg));
    const dt_err dir = check_output_dir(run);
    dt_mistakes_add(m, dir);
    dt_mistakes_add(m, check_feature_cache(run));
    warn_of_schedule(run);
    warn_of_length(run);
    if (dt_config_given(&run->cfg, "data", "validation_steps") && run->cfg.data_validation_steps > 0 &&
        !*run->cfg.data_validation)
        DT_WARN("[data] validation_steps is set, but data.validation is empty, so no validation takes place");
    return dir == DT_OK;
}

/* ---- --check: complete verification of files --------------------------------------------------------------------- */

/* Find the first candidate that verifies, as a run does. */
static dt_err verify_candidates(dt_run *run)
{
    for (int i = run->resume.first, next; i < run->resume.n; i = next) {
        const char *path = run->resume.path[i];
        dt_saved_model models[DT_MAX_SAVED];
        dt_err err = dt_checkpoint_verify(path, NULL);
        if (err == DT_OK)
            err = dt_checkpoint_verify_models(path, models, run_list_saved(run, path, models), &run->phase);
        if (err == DT_OK) DT_INFO("would resume from %s", path);
        if (err == DT_OK) return run_say_position(run, path);
        if ((next = run_next_candidate(&run->resume, err, i)) == run->resume.n) return err;
        DT_WARN("%s; a run would try the previous checkpoint", dt_error_message());
        dt_error_clear();
    }
    return DT_OK;
}

/* Verify a reference, reward model or value model. Often it is the model that training starts from. */
static dt_err verify_other(dt_run *run, const struct dt_task_model *m)
{
    const dt_pretrained *own = &run->pretrained;
    const bool same_adapter = m->from->adapter ? own->adapter && !strcmp(m->from->adapter, own->adapter) : true;
    if (run->has_pretrained && strcmp(m->from->path, own->path) == 0 && same_adapter) return DT_OK;
    return dt_pretrained_verify(m->from, m->units, m->n_units, &run->phase);
}

static dt_err show_progress(void *phase)
{
    dt_phase_enter(phase, "verify", "");
    return dt_phase_poll(phase);
}

dt_err run_check_files(dt_run *run)
{
    dt_mistakes m = {0};
    if (run->task.train) dt_mistakes_add(&m, dt_loader_verify(run->task.train, show_progress, &run->phase));
    if (run->task.valid) dt_mistakes_add(&m, dt_loader_verify(run->task.valid, show_progress, &run->phase));
    dt_phase_enter(&run->phase, "verify", "checkpoint");
    if (run->has_pretrained)
        dt_mistakes_add(&m, dt_pretrained_verify(&run->pretrained, run->units, run->n_units, &run->phase));
    for (int i = 0; i < run->task.n_models; i++) dt_mistakes_add(&m, verify_other(run, &run->task.models[i]));
    dt_mistakes_add(&m, verify_candidates(run));
    return dt_mistakes_end(&m);
}
