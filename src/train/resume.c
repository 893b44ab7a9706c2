/* resume.c - determine where a run begins: the newest checkpoint that verifies, a given one, an initial model, or
 * random weights. */
#include "run.h"
#include "dtrain/core/plural.h"
#include "dtrain/io/io.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Reports a changed batch size once, when the run first resumes with it. 0: the old size was derived from other
 * keys. */
static void report_new_position(const dt_run *run, const progress *p, const dt_config *before)
{
    const int64_t per_epoch = run->task.steps_per_epoch, was = before->batch_train_batch_size,
                  is = run->batching.train_batch_size;
    const int64_t sample = p->data_step % per_epoch * is, epoch = p->data_step / per_epoch;
    if (was == is) return;
    if (was)
        DT_INFO("batch.train_batch_size changed from %" PRId64 " to %" PRId64 "; data continues at sample %" PRId64
                " of epoch %" PRId64 ". To keep the old value, set batch.train_batch_size=%" PRId64,
                was, is, sample, epoch, was);
    else
        DT_INFO("batches have %" PRId64
                " sample%s, but some earlier ones had another size; data continues at sample %" PRId64
                " of epoch %" PRId64,
                is, dt_plural(is), sample, epoch);
}

/* The remaining epochs are counted in batches of the present size. For a schedule of rollouts, the position follows
 * from the data position. */
static void set_data_position(dt_run *run, progress *p, const dt_config *before)
{
    p->data_step = dt_task_step_after(&run->task, p->samples);
    if (p->data_step == p->step) return;
    report_new_position(run, p, before);
    const bool by_rollouts = run->task.schedule_steps > 1;
    if (run->cfg.run_max_steps && !by_rollouts) return;
    run->total_steps = p->step + dt_max_i64(0, run->total_steps - p->data_step);
    if (!by_rollouts) run_make_schedule(run);
}

/* ---- choice of a checkpoint -------------------------------------------------------------------------------------- */

static bool is_word(const dt_run *run, const char *word) { return !strcmp(run->cfg.checkpoint_resume, word); }

static bool in_folder(const char *path, const char *dir)
{
    struct stat a, b;
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    return stat(folder, &a) == 0 && stat(dir, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* True if this run, started from the same path, wrote the newest checkpoint here. It was then stopped and submitted
 * again, and continues. After save_total_limit has deleted that path, changed settings are treated as for any resumed
 * run. */
static bool is_submitted_again(const dt_run *run, const char *newest, bool path_is_gone)
{
    dt_ckpt_meta meta;
    dt_config before = {0};
    bool same = false;
    if (dt_checkpoint_read_meta(newest, &meta) == DT_OK) {
        if (dt_config_read_recorded(&before, newest, meta.config) == DT_OK &&
            !strcmp(before.checkpoint_resume, run->cfg.checkpoint_resume) &&
            run_same_settings(run, newest, &meta, &same) == DT_OK)
            same = same || path_is_gone;
        dt_config_free(&before);
        dt_ckpt_meta_free(&meta);
    }
    dt_error_clear();
    return same;
}

/* The path was one of this run's own checkpoints, and was deleted when newer ones were saved. */
static bool was_deleted_since(const dt_run *run)
{
    const char *resume = run->cfg.checkpoint_resume;
    struct stat st;
    return run->resume.n && stat(resume, &st) != 0 && errno == ENOENT && in_folder(resume, run->checkpoint_dir) &&
           is_submitted_again(run, run->resume.path[0], true);
}

/* resume = PATH, while the list holds the directory's own candidates. */
static dt_err choose_given(dt_run *run)
{
    char *file = NULL;
    const char *resume = run->cfg.checkpoint_resume, *dir = run->checkpoint_dir;
    if (was_deleted_since(run)) {
        DT_INFO("this run was started from %s, which has been deleted; it continues from its own newest checkpoint",
                resume);
        return DT_OK;
    }
    DT_TRY(dt_config_lead_to(&run->cfg, "checkpoint", "resume", dt_checkpoint_find(resume, &file)));
    const int n = run->resume.n;
    if (n && strcmp(file, run->resume.path[0]) != 0 && is_submitted_again(run, run->resume.path[0], false)) {
        DT_INFO("this run was started from %s and continues from its own newest checkpoint", resume);
        free(file);
        return DT_OK;
    }
    const bool own = in_folder(file, dir);
    dt_list_free(run->resume.path, n);
    run->resume.path = NULL, run->resume.n = 0, run->resume.is_given = true;
    if (n && !own) {
        free(file);
        return dt_config_fail(&run->cfg, "checkpoint", "resume",
                              "%s belongs to another run, but %s already holds %d checkpoint%s; use auto to continue "
                              "from those, or choose another run.output_dir",
                              resume, dir, n, n > 1 ? "s" : "");
    }
    if (!(run->resume.path = calloc(1, sizeof *run->resume.path))) {
        free(file);
        return dt_fail(DT_ERR_MEMORY, "out of memory for a path");
    }
    run->resume.path[0] = file, run->resume.n = 1;
    return DT_OK;
}

/* On rank 0: list the files to try, best first. */
static dt_err list_candidates(dt_run *run)
{
    const char *dir = run->checkpoint_dir;
    if (!run->only_check) DT_TRY(run_finish_leaving(run->cfg.run_output_dir));
    DT_TRY(dt_checkpoint_candidates(dir, &run->resume.path, &run->resume.n));
    if (is_word(run, "auto")) return DT_OK;
    if (!is_word(run, "none")) return choose_given(run);
    DT_CONFIG_CHECK(run->resume.n == 0, &run->cfg, "checkpoint", "resume",
                    "none, but %s holds %d checkpoints of an earlier run; use auto to continue from them, or choose "
                    "another run.output_dir",
                    dir, run->resume.n);
    return DT_OK;
}

bool run_saves_frozen(const dt_run *run) { return strcmp(run->cfg.checkpoint_save, "trainable") != 0; }

/* In the form that checkpoints use. */
int run_list_models(const dt_run *run, dt_saved_model models[DT_MAX_SAVED])
{
    for (int i = 0; i < run->n_trained; i++) {
        const dt_trained *m = run->trained[i];
        models[i] = (dt_saved_model){.name = m->name,
                                     .zero = m->zero,
                                     .units = m->units,
                                     .n_units = m->n_units,
                                     .state_updates = m->state_updates};
    }
    const dt_frozen_model *kept = run->task.kept;
    if (!run_saves_frozen(run)) models[0].base = (dt_base *)&run->base;
    if (!kept) return run->n_trained;
    models[run->n_trained] = (dt_saved_model){
        .name = run->task.kept_name, .zero = kept->zero, .units = kept->units, .n_units = kept->n_units};
    return run->n_trained + 1;
}

int run_list_saved(const dt_run *run, const char *path, dt_saved_model models[DT_MAX_SAVED])
{
    const int n = run_list_models(run, models);
    dt_ckpt_states states = {0};
    models[0].base = (dt_base *)&run->base;
    if (n == run->n_trained) return n;
    const bool exists = dt_checkpoint_read_states(path, models[n - 1].name, &states) == DT_OK;
    dt_ckpt_states_free(&states);
    dt_error_clear();
    return exists ? n : n - 1;
}

/* A checkpoint lacks the states of a model that was added after it was written. */
static dt_err check_auxiliary(const dt_run *run, const char *path)
{
    for (int i = 0; i < run->task.n_auxiliary; i++) {
        const dt_trained *m = &run->task.auxiliary[i];
        dt_ckpt_states states = {0};
        if (!m->key) continue;
        const dt_err err = dt_checkpoint_read_states(path, m->name, &states);
        dt_ckpt_states_free(&states);
        if (err == DT_OK) continue;
        dt_error_clear();
        return dt_config_fail(&run->cfg, run->task.ops->name, m->key,
                              "%s has no %s, which must be trained from the start of a run; resume without this key, "
                              "or start a new run from the checkpoint's model",
                              path, m->name);
    }
    return DT_OK;
}

/* The file contains a frozen tensor: it was trained earlier, or the base was quantised differently. */
static dt_err fail_left_out(const dt_run *run, const char *path, const dt_ckpt_meta *meta, const char *tensor)
{
    dt_config before = {0};
    DT_TRY(dt_config_read_recorded(&before, path, meta->config));
    const char *was = before.lora_base_quantization, *now = run->cfg.lora_base_quantization;
    const dt_err err =
        strcmp(was, now) != 0
            ? dt_config_fail(&run->cfg, "lora", "base_quantization",
                             "%s, but %s does not contain the base (checkpoint.save = trainable), and the run stored "
                             "the base as %s; expected %s, or checkpoint.save = all",
                             now, path, was, was)
            : dt_config_fail(
                  &run->cfg, "checkpoint", "save",
                  "expected all, found trainable: it would omit %s, which is frozen now but was trained earlier, in %s",
                  tensor, path);
    dt_config_free(&before);
    return err;
}

/* Parameters that an earlier run trained are not in the base, so checkpoints that omit them would lose them. */
static dt_err check_left_out(const dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    if (run_saves_frozen(run) || !meta->base.path) return DT_OK;
    for (int u = 0; u < run->n_units; u++)
        for (int i = 0; i < run->units[u].n_tensors; i++) {
            const dt_tensor *t = &run->units[u].tensors[i];
            if (!t->trainable && !dt_base_find(&meta->base, t->name)) return fail_left_out(run, path, meta, t->name);
        }
    return DT_OK;
}

typedef struct named_model {
    const char *section, *key; /* of the task; the first key that now names another model */
} named_model;

static void see_path(void *self, const char *section, const char *key, const char *before, const char *now)
{
    named_model *m = self;
    const char *end = strstr(key, "_path");
    (void)before, (void)now;
    if (!m->key && strcmp(section, m->section) == 0 && end && !end[5]) m->key = key;
}

/* Called after the main model is known to fit. The other models depend on a key of the task. If that key now names
 * another model, mismatching tensors are not corruption, so no earlier checkpoint is tried. */
static dt_err check_all_fit(const dt_run *run, const char *path, const dt_ckpt_meta *meta, const dt_saved_model *models,
                            int n)
{
    dt_config before = {0};
    named_model named = {.section = run->task.ops->name};
    if (n == 1) return DT_OK;
    DT_TRY(dt_config_read_recorded(&before, path, meta->config));
    dt_config_compare(&before, &run->cfg, see_path, &named);
    dt_config_free(&before);
    const dt_err err = dt_checkpoint_fits(path, models, n);
    return err == DT_ERR_DATA && named.key ? dt_config_blame(&run->cfg, named.section, named.key, err) : err;
}

/* Check whether this run can continue from the file, without loading it. Names and shapes are checked last: if the
 * model is the same, a mismatch there is corruption. */
static dt_err look_at(const dt_run *run, const char *path)
{
    dt_ckpt_meta meta;
    dt_saved_model models[DT_MAX_SAVED];
    DT_TRY(dt_checkpoint_read_meta(path, &meta));
    dt_err err = run_check_changes(run, path, &meta);
    if (err == DT_OK) err = check_auxiliary(run, path);
    if (err == DT_OK) err = check_left_out(run, path, &meta);
    const int n = err == DT_OK ? run_list_saved(run, path, models) : 0;
    if (err == DT_OK) err = dt_checkpoint_fits(path, models, 1);
    if (err == DT_OK) err = check_all_fit(run, path, &meta, models, n);
    dt_ckpt_meta_free(&meta);
    return err;
}

/* Does not change the current error message. */
static bool leaves_out(const char *path)
{
    dt_ckpt_meta meta = {0};
    const bool is = dt_checkpoint_read_meta(path, &meta) == DT_OK && meta.base.path;
    dt_ckpt_meta_free(&meta);
    return is;
}

/* A path that the user gave has no alternatives. Starting from scratch would ignore the user's checkpoints. */
int run_next_candidate(const dt_candidates *c, dt_err err, int i)
{
    if (c->is_given || (err != DT_ERR_DATA && err != DT_ERR_BASE)) return c->n;
    for (i++; i < c->n && err == DT_ERR_BASE && leaves_out(c->path[i]);) i++;
    return i;
}

static dt_err choose(dt_run *run)
{
    dt_err err = list_candidates(run);
    for (int i = 0, next; err == DT_OK && i < run->resume.n; i = next) {
        err = look_at(run, run->resume.path[i]);
        run->resume.first = i;
        if (err == DT_OK || (next = run_next_candidate(&run->resume, err, i)) == run->resume.n) break;
        DT_WARN("%s; trying the previous checkpoint", dt_error_message());
        dt_error_clear();
        err = DT_OK;
    }
    return err;
}

dt_err run_choose_checkpoint(dt_run *run)
{
    const dt_err err =
        dt_comm_first(run->comm) && run->total_steps > 0 && *run->cfg.run_output_dir ? choose(run) : DT_OK;
    return err == DT_OK ? dt_fault("resume.choose") : err;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* State that depends on the earlier settings. A best validation by another metric is ignored. */
static void take_state(dt_run *run, const char *path, const dt_ckpt_meta *meta, progress *p)
{
    dt_config before = {0};
    p->validation_due = meta->validation_due && run_validation_parts(run);
    p->best_step = meta->best_step, p->best_metric = meta->best_metric, p->n_not_better = meta->n_not_better;
    if (dt_config_read_recorded(&before, path, meta->config) == DT_OK && !run_best_same_metric(&before, &run->cfg))
        p->best_step = 0, p->n_not_better = 0;
    set_data_position(run, p, &before);
    run_extend_schedule(run, meta, &before, p);
    dt_loss_scale_resume(&run->scale, &meta->scale);
    dt_config_free(&before);
    dt_error_clear();
}

/* If the file has all states of a model's optimizer, they continue. Otherwise all start at zero with a new update
 * count, because Adam's bias correction needs one count for all. */
static dt_err choose_states(const dt_run *run, const char *path, const dt_ckpt_meta *meta, dt_trained *m, bool *whole)
{
    const dt_optimizer_ops *o = m->zero_opt.optimizer;
    dt_ckpt_states own = {0};
    if (m->name) DT_TRY(dt_checkpoint_read_states(path, m->name, &own));
    const dt_ckpt_states *found = m->name ? &own : &meta->states;
    const bool fits = dt_checkpoint_fits_type(found, m->zero_opt.state_dtype);
    *whole = fits && dt_checkpoint_has_states(found, o);
    m->state_updates = *whole ? found->updates : 0;
    if (!*whole && dt_comm_first(run->comm))
        DT_WARN("%s, written with %s%s%s%s%s, does not contain the states of %s%s%s; they start at zero", path,
                found->optimizer, m->name ? " for " : "", m->name ? m->name : "", fits ? "" : " in ",
                fits ? "" : found->dtype, o->name, fits ? "" : " in ",
                fits ? "" : dt_dtype_name(m->zero_opt.state_dtype));
    dt_ckpt_states_free(&own);
    return DT_OK;
}

/* Agreed. */
static dt_err load_states(dt_run *run, const char *path, const dt_ckpt_meta *meta)
{
    dt_saved_model models[DT_MAX_SAVED];
    const int n = run_list_saved(run, path, models);
    if (run->task.kept && n == run->n_trained)
        DT_INFO("%s contains no model `%s`; the model stays as loaded", path, run->task.kept_name);
    dt_err err = DT_OK;
    for (int i = 0; i < run->n_trained && err == DT_OK; i++)
        err = choose_states(run, path, meta, run->trained[i], &models[i].with_states);
    DT_TRY(run_agree(run, err));
    if (!run_saves_frozen(run) && !meta->base.path) { /* a complete file, whose frozen parameters must be the base's */
        models[0].base = NULL;                        /* keeps the checksums of the base */
        models[0].keeps_frozen = "use checkpoint.save = all, or the model that the run was started from";
        DT_TRY(dt_pretrained_load(run->comm, run->main.zero, &run->pretrained, &run->phase));
    }
    DT_TRY(dt_checkpoint_load_all(run->comm, models, n, path, &run->phase));
    for (int i = 0; i < run->n_trained && err == DT_OK; i++)
        if (!models[i].with_states) err = dt_zero_clear_states(models[i].zero);
    return run_agree(run, err);
}

static void take_counts(const dt_ckpt_meta *meta, progress *p)
{
    p->step = p->saved_step = meta->step;
    p->samples = meta->samples, p->tokens = meta->tokens, p->updates = meta->updates;
}

dt_err run_say_position(dt_run *run, const char *path)
{
    progress p = {0};
    dt_ckpt_meta meta = {0};
    DT_TRY(dt_checkpoint_read_meta(path, &meta));
    take_counts(&meta, &p);
    take_state(run, path, &meta, &p);
    dt_ckpt_meta_free(&meta);
    return DT_OK;
}

/* Load one file into zero; agreed. */
static dt_err load_one(dt_run *run, const char *path, progress *p)
{
    dt_ckpt_meta meta = {0};
    dt_err err = run_agree(run, dt_checkpoint_read_meta(path, &meta));
    if (err == DT_OK) err = load_states(run, path, &meta);
    if (err == DT_OK) {
        take_counts(&meta, p);
        take_state(run, path, &meta, p);
        err = dt_task_load(&run->task, &meta.items);
    }
    dt_ckpt_meta_free(&meta);
    return err;
}

/* Is the file in this run's own directory? With checkpoint.resume = PATH it may be another run's. Collective. */
static dt_err is_own(dt_run *run, const char *path, bool *own)
{
    int64_t is = dt_comm_first(run->comm) && in_folder(path, run->checkpoint_dir);
    DT_TRY(dt_comm_broadcast_host(run->comm, &is, sizeof is, 0));
    *own = is;
    return DT_OK;
}

/* Try candidate i. It is validated first, unless that was done before anything was allocated. */
static dt_err try_candidate(dt_run *run, int64_t i, progress *p)
{
    char *path = dt_comm_first(run->comm) ? run->resume.path[i] : NULL;
    const double begin_s = dt_now_s();
    DT_TRY(dt_comm_share_text(run->comm, &path, NULL));
    dt_err err =
        dt_comm_agree(run->comm, !dt_comm_first(run->comm) || i == run->resume.first ? DT_OK : look_at(run, path));
    bool own = true;
    if (err == DT_OK) err = load_one(run, path, p);
    if (err == DT_OK) err = is_own(run, path, &own);
    if (!own) p->saved_step = -1;
    run->limit.load_s = dt_now_s() - begin_s;
    if (err == DT_OK) DT_INFO("resumed from %s: step %" PRId64 ", %" PRId64 " samples", path, p->step, p->samples);
    if (!dt_comm_first(run->comm)) free(path);
    return err;
}

/* Parts that the starting model may lack: a language model may lack a score head and usually adapters; a model joined
 * with a tower may lack a projector. */
static bool may_be_new(const dt_tensor *t)
{
    return t->adapter_scale != 0 || dt_stored_is_score(t->name) || dt_stored_section_of(t->name) == DT_STORED_PROJECTOR;
}

/* Adapters of lora.path, or of a checkpoint, are complete. */
static dt_err start_adapters(dt_run *run)
{
    return run->lora.use_dora && !run->lora.lenient ? dt_adapters_start(run->comm, run->main.zero) : DT_OK;
}

static dt_err start_fresh(dt_run *run)
{
    const uint64_t seed = (uint64_t)run->cfg.run_seed;
    if (!run->has_pretrained) {
        DT_TRY(dt_zero_init_random(run->main.zero, seed));
        return start_adapters(run);
    }
    DT_TRY(dt_zero_init_some(run->main.zero, seed, may_be_new));
    DT_INFO("starting from the weights of %s", run->pretrained.path);
    if (run->pretrained.adapter) DT_INFO("the adapters are those of %s", run->pretrained.adapter);
    DT_TRY(dt_pretrained_load(run->comm, run->main.zero, &run->pretrained, &run->phase));
    return start_adapters(run);
}

/* Adjust the directory to the checkpoint that was loaded. */
static dt_err settle_directory(dt_run *run, progress *p)
{
    const dt_err err = dt_comm_first(run->comm) ? run_leave_branch(run->cfg.run_output_dir, p->step) : DT_OK;
    DT_TRY(dt_comm_agree(run->comm, err));
    return run_best_settle(run, p);
}

static dt_err share_next(const dt_run *run, dt_err err, int64_t *i)
{
    if (dt_comm_first(run->comm)) *i = run_next_candidate(&run->resume, err, (int)*i);
    return dt_comm_broadcast_host(run->comm, i, sizeof *i, 0);
}

dt_err run_resume(dt_run *run, progress *p)
{
    int64_t range[2] = {run->resume.first, run->resume.n}; /* rank 0's values */
    *p = (progress){.saved_step = -1};
    DT_TRY(dt_comm_broadcast_host(run->comm, range, sizeof range, 0));
    run->resume.first = (int)range[0];
    dt_err err = DT_OK;
    bool loaded = false;
    for (int64_t i = range[0]; i < range[1] && !loaded && err == DT_OK;) {
        err = try_candidate(run, i, p);
        loaded = err == DT_OK;
        if (err != DT_ERR_DATA && err != DT_ERR_BASE) break;
        DT_TRY(share_next(run, err, &i));
        if (i == range[1]) break;
        if (dt_comm_prints_error(run->comm)) DT_WARN("%s; trying the previous checkpoint", dt_error_message());
        dt_error_clear();
        err = DT_OK;
    }
    if (err != DT_OK) return err;
    return loaded ? settle_directory(run, p) : start_fresh(run);
}
