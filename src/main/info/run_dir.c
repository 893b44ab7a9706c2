/* run_dir.c - the state of a run from its files: config.ini (settings), metrics.jsonl (progress), run.lock (whether it
 * is active), checkpoints/ (kept checkpoints). Any of them may be missing: a new run has no checkpoint, and a copied
 * run may have nothing else. */
#include "run_dir.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/config.h"
#include "dtrain/io/io.h"
#include "dtrain/report/metrics.h"
#include "dtrain/model/model.h"
#include "dtrain/task/task.h"
#include "dtrain/train/train.h"

typedef struct run_info {
    const char *dir;
    char home[PATH_MAX], folder[PATH_MAX]; /* output_dir, and the folder of its checkpoints */
    bool has_config;
    dt_config cfg;
    dt_metrics metrics; /* n_rows 0: none */
    double age_s;       /* since the last write to metrics.jsonl */
    char **paths;       /* checkpoints, newest first */
    int n_paths;
    char *latest; /* the checkpoint a run resumes from; NULL: none */
    bool has_model;
    dt_model_config mc;
    int64_t n_param;
    int64_t last, last_valid,
        best;                  /* rows of metrics: last training, last validation, lowest validation loss; -1: none */
    int64_t step, total_steps; /* total_steps 0: unknown */
    dt_lock_state lock;
    char holder[512]; /* from run.lock */
    char *best_path;  /* target of `best`; NULL: no such file */
} run_info;

/* ---- collecting -------------------------------------------------------------------------------------------------- */

static dt_err find_places(run_info *r)
{
    char path[PATH_MAX];
    DT_CHECK(dt_join_path(r->folder, r->dir, "checkpoints", ""), DT_ERR_DATA, "%s: the name is too long", r->dir);
    snprintf(r->home, sizeof r->home, "%s", r->dir);
    if (dt_is_in(path, r->dir, "config.ini") || dt_is_in(path, r->dir, "metrics.jsonl") || dt_is_directory(r->folder))
        return DT_OK;
    DT_CHECK(!dt_is_in(path, r->dir, "config.json") && !dt_is_in(path, r->dir, DT_PEFT_CONFIG), DT_ERR_DATA,
             "%s: expected the directory of a run, found an exported model or adapter", r->dir);
    snprintf(r->folder, sizeof r->folder, "%s", r->dir); /* dir is the checkpoint folder: the run is its parent */
    snprintf(r->home, sizeof r->home, "%.*s/..", PATH_MAX - 4, r->dir);
    return DT_OK;
}

static dt_err read_config(run_info *r)
{
    char path[PATH_MAX], *text = NULL;
    if (!dt_is_in(path, r->home, "config.ini")) return DT_OK;
    DT_TRY(dt_config_read_file(path, &text));
    dt_mistakes unknown = {0}; /* written by another version, or edited */
    const dt_err err = dt_config_read(&r->cfg, path, text, 0, NULL, DT_VARIABLES_MAY_BE_UNSET, &unknown);
    free(text);
    r->has_config = err == DT_OK;
    if (unknown.text) DT_WARN("%s; dtrain-info ignores these lines", unknown.text);
    free(unknown.text);
    return err;
}

/* The last row with a value of this name, or the row with the minimum value. */
static int64_t find_row(const dt_metrics *m, const char *name, bool least)
{
    const double *column = dt_metrics_column(m, name);
    int64_t row = -1;
    for (int64_t i = 0; column && i < m->n_rows; i++)
        if (isfinite(column[i]) && (row < 0 || !least || column[i] < column[row])) row = i;
    return row;
}

static double value(const run_info *r, const char *name, int64_t row)
{
    const double *column = row >= 0 ? dt_metrics_column(&r->metrics, name) : NULL;
    return column ? dt_unsigned_nan(column[row]) : NAN;
}

static dt_err read_metrics(run_info *r)
{
    char path[PATH_MAX];
    struct stat st;
    r->last = r->last_valid = r->best = -1;
    if (!dt_is_in(path, r->home, "metrics.jsonl") || stat(path, &st) != 0 || st.st_size == 0) return DT_OK;
    r->age_s = difftime(time(NULL), st.st_mtime);
    DT_TRY(dt_metrics_read(&r->metrics, path));
    r->last = find_row(&r->metrics, "tokens", false); /* every training record has it */
    r->last_valid = find_row(&r->metrics, "validation_loss", false);
    r->best = find_row(&r->metrics, "validation_loss", true);
    return DT_OK;
}

static dt_err read_model(run_info *r)
{
    dt_ckpt_meta meta = {0};
    dt_unit *units = NULL;
    int n_units = 0;
    dt_err err = DT_OK;
    if (r->latest) {
        err = dt_checkpoint_read_meta(r->latest, &meta);
        if (err == DT_OK) err = dt_model_config_parse(&r->mc, r->latest, meta.model_config);
        if (err == DT_OK && meta.step > r->step) r->step = meta.step;
    } else if (r->has_config && !*r->cfg.model_path) {
        err = dt_model_config_from_keys(&r->mc, &r->cfg, DT_MODEL_USUAL);
    } else {
        return DT_OK;
    }
    if (err == DT_OK) err = dt_model_make_units(&r->mc, &units, &n_units);
    for (int u = 0; u < n_units; u++) r->n_param += units[u].n_param;
    r->has_model = err == DT_OK;
    dt_model_free_units(units, n_units);
    dt_ckpt_meta_free(&meta);
    return err;
}

/* Without max_steps, the number of steps follows from the epochs so far. */
static int64_t count_steps(const run_info *r)
{
    const double epoch = value(r, "epoch", r->last), samples = value(r, "samples", r->last),
                 step = value(r, "step", r->last);
    if (!r->has_config) return 0;
    if (r->cfg.run_max_steps > 0) return r->cfg.run_max_steps;
    if (!(epoch > 0) || !(samples > 0)) return 0;
    const dt_task_ops *task = dt_task_find(r->cfg.run_task);
    if (task && task->count_steps) return task->count_steps(&r->cfg, samples / epoch, samples / step);
    if (epoch >= r->cfg.run_epochs) return (int64_t)step; /* earlier steps may have had other batch sizes */
    const double steps_per_epoch = ceil(samples / epoch / (samples / step) - 1e-6);
    return (int64_t)ceil(r->cfg.run_epochs * steps_per_epoch - 1e-6);
}

/* Find the checkpoint that `best` points to, if the run keeps one. */
static dt_err find_best(run_info *r)
{
    char path[PATH_MAX];
    if (!dt_is_in(path, r->folder, "best")) return DT_OK;
    const dt_err err = dt_checkpoint_find(path, &r->best_path);
    if (err == DT_ERR_DATA) dt_error_clear(); /* the checkpoint was deleted by hand */
    return err == DT_ERR_DATA ? DT_OK : err;
}

static dt_err collect(run_info *r)
{
    DT_TRY(find_places(r));
    DT_TRY(dt_checkpoint_list(r->folder, &r->paths, &r->n_paths));
    if (r->n_paths > 0) DT_TRY(dt_checkpoint_find(r->folder, &r->latest));
    DT_TRY(find_best(r));
    DT_TRY(read_config(r));
    DT_TRY(read_metrics(r));
    r->lock = dt_lock_look(r->home, r->holder, sizeof r->holder);
    DT_CHECK(r->has_config || r->metrics.n_rows > 0 || r->n_paths > 0, DT_ERR_DATA,
             "%s: expected the directory of a run, found no config.ini, metrics.jsonl or checkpoint in it", r->dir);
    if (r->last >= 0) r->step = (int64_t)value(r, "step", r->last);
    DT_TRY(read_model(r));
    r->total_steps = count_steps(r);
    return DT_OK;
}

static void release(run_info *r)
{
    dt_config_free(&r->cfg);
    dt_metrics_free(&r->metrics);
    dt_list_free(r->paths, r->n_paths);
    free(r->latest);
    free(r->best_path);
    dt_model_config_free(&r->mc);
}

/* ---- derived values ---------------------------------------------------------------------------------------------- */

/* Estimate for the remaining steps, from the duration of recent ones. Negative: unknown. */
static double seconds_left(const run_info *r)
{
    const double step_s = value(r, "step_time", r->last);
    return r->total_steps > r->step && isfinite(step_s) ? step_s * (double)(r->total_steps - r->step) : -1;
}

static const char *state_of(const run_info *r)
{
    if (r->lock == DT_LOCK_HELD) return "running";
    if (r->total_steps > 0 && r->step >= r->total_steps) return "done";
    if (r->lock == DT_LOCK_UNREADABLE) return "unknown";
    if (r->lock == DT_LOCK_LEFT) return "killed";
    return r->metrics.n_rows == 0 && r->n_paths == 0 ? "not started" : "stopped";
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The kept checkpoint with the lowest validation loss; NULL: none has one. */
static const char *best_checkpoint(const run_info *r, double *loss)
{
    const double *steps = dt_metrics_column(&r->metrics, "step"),
                 *losses = dt_metrics_column(&r->metrics, "validation_loss");
    const char *best = NULL;
    if (r->best_path) return r->best_path;
    for (int i = 0; losses && i < r->n_paths; i++)
        for (int64_t row = 0; row < r->metrics.n_rows; row++) {
            if ((int64_t)steps[row] != dt_checkpoint_step_of(r->paths[i]) || !isfinite(losses[row]) ||
                (best && losses[row] >= *loss))
                continue;
            best = r->paths[i];
            *loss = losses[row];
        }
    return best;
}

static double total_bytes(const run_info *r)
{
    double nbytes = 0;
    struct stat st;
    for (int i = 0; i < r->n_paths; i++)
        if (stat(r->paths[i], &st) == 0) nbytes += (double)st.st_size;
    return nbytes;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_state(const run_info *r)
{
    char text[24];
    printf("  state        %s", state_of(r));
    if (r->metrics.n_rows > 0) printf(", metrics written %s ago", dt_format_duration(fmax(0, r->age_s), text));
    if (r->lock == DT_LOCK_UNREADABLE) printf("\n  lock         %s", r->holder);
    if (r->lock == DT_LOCK_HELD || r->lock == DT_LOCK_LEFT) printf("\n  run by       %s", r->holder);
    printf("\n  steps        %" PRId64, r->step);
    if (r->total_steps > 0 && r->step <= r->total_steps)
        printf(" of %" PRId64 " (%.0f%%)", r->total_steps, floor(100.0 * (double)r->step / (double)r->total_steps));
    if (r->last >= 0) printf(", %s tokens", dt_format_count(value(r, "tokens", r->last), text));
    if (seconds_left(r) >= 0) printf(", %s of steps left", dt_format_duration(seconds_left(r), text));
    printf("\n");
}

/* Print the main metric of the run's task: "reward 0.31, " for grpo/reward. */
static void print_watched(const run_info *r)
{
    const dt_task_ops *task = r->has_config ? dt_task_find(r->cfg.run_task) : NULL;
    for (int i = 0; task && task->watch[i]; i++) {
        const double x = value(r, task->watch[i], r->last);
        if (isfinite(x)) printf("%s %.4g, ", base_name(task->watch[i]), x);
    }
}

static void print_training(const run_info *r)
{
    char rate[24];
    printf("  training     step %.0f: loss %.4f, ", value(r, "step", r->last), value(r, "loss", r->last));
    print_watched(r);
    printf("grad_norm %.3g, lr %.2e, %s tokens/s of all ranks\n", value(r, "grad_norm", r->last),
           value(r, "lr", r->last), dt_format_count(value(r, "tokens_per_second", r->last), rate));
}

static void print_metrics(const run_info *r)
{
    if (r->last >= 0) print_training(r);
    if (r->last_valid >= 0)
        printf("  validation   step %.0f: loss %.4f; best %.4f at step %.0f\n", value(r, "step", r->last_valid),
               value(r, "validation_loss", r->last_valid), value(r, "validation_loss", r->best),
               value(r, "step", r->best));
}

static void print_checkpoints(const run_info *r)
{
    char size[24];
    double loss = NAN;
    const char *best = best_checkpoint(r, &loss);
    printf("  checkpoints  ");
    if (r->n_paths == 0) {
        printf("none\n");
        return;
    }
    printf("%d in %s, %s\n", r->n_paths, r->folder, dt_format_bytes(total_bytes(r), size));
    printf("  latest       %s\n", base_name(r->latest));
    if (strcmp(r->paths[0], r->latest) != 0) printf("  newest       %s\n", base_name(r->paths[0]));
    if (best && isfinite(loss)) printf("  best         %s (validation loss %.4f)\n", base_name(best), loss);
    if (best && !isfinite(loss)) printf("  best         %s (named by %s/best)\n", base_name(best), r->folder);
}

static void print_vision(const run_info *r)
{
    const dt_vision_config *v = r->mc.vision;
    if (!v) return;
    printf("  vision       %s tower, %" PRId64 " layers, hidden %" PRId64 ", %s of %" PRId64 " x %" PRId64
           " pixels, each %" PRId64 " token%s; projector %s\n",
           v->tower->name, v->n_blocks, v->blocks->hidden_size, v->grids ? "cells of images" : "images", v->image_size,
           v->image_size, v->n_tokens, v->n_tokens == 1 ? "" : "s", dt_projector_name(v->projector.type));
    if (r->has_config) printf("  trained      %s\n", r->cfg.vision_train);
    if (r->has_config && r->cfg.lora_r > 0) printf("  adapters     %s\n", r->cfg.lora_parts);
}

static void print_text(const run_info *r)
{
    printf("%s\n  kind         run\n", r->dir);
    if (r->has_config) printf("  task         %s\n", r->cfg.run_task);
    if (r->has_config && *r->cfg.model_path) printf("  started from %s\n", r->cfg.model_path);
    if (r->has_model)
        printf("  model        %s, %" PRId64 " layers, hidden %" PRId64 ", %" PRId64 " heads, vocabulary %" PRId64
               ", %" PRId64 " parameters\n",
               dt_model_architecture(&r->mc), r->mc.num_hidden_layers, r->mc.hidden_size, r->mc.num_attention_heads,
               r->mc.vocab_size, r->n_param);
    if (r->has_model) print_vision(r);
    if (r->has_config && *r->cfg.data_train) printf("  data         %s\n", r->cfg.data_train);
    print_state(r);
    print_metrics(r);
    print_checkpoints(r);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* All values of a record. */
static json_t *record_of(const run_info *r, int64_t row)
{
    json_t *record = row >= 0 ? json_object() : json_null();
    for (int c = 0; row >= 0 && c < r->metrics.n_columns; c++) {
        const double x = r->metrics.columns[c][row];
        if (isfinite(x))
            json_object_set_new(record, r->metrics.names[c],
                                x == rint(x) && fabs(x) < 0x1p53 ? json_integer((json_int_t)x) : json_real(x));
    }
    return record;
}

static json_t *text_or_null(const char *text) { return text && *text ? json_string(text) : json_null(); }

static void print_json(const run_info *r)
{
    double loss;
    json_t *root = json_object(), *list = json_array();
    for (int i = 0; i < r->n_paths; i++) json_array_append_new(list, json_string(r->paths[i]));
    json_object_set_new(root, "directory", json_string(r->dir));
    json_object_set_new(root, "kind", json_string("run"));
    json_object_set_new(root, "ok", json_true());
    json_object_set_new(root, "task", text_or_null(r->has_config ? r->cfg.run_task : NULL));
    json_object_set_new(root, "model", text_or_null(r->has_model ? dt_model_architecture(&r->mc) : NULL));
    json_object_set_new(root, "parameters", r->has_model ? json_integer(r->n_param) : json_null());
    json_object_set_new(root, "state", json_string(state_of(r)));
    json_object_set_new(root, "run_by", text_or_null(r->holder));
    json_object_set_new(root, "step", json_integer(r->step));
    json_object_set_new(root, "total_steps", r->total_steps > 0 ? json_integer(r->total_steps) : json_null());
    json_object_set_new(root, "seconds_left", seconds_left(r) >= 0 ? json_real(seconds_left(r)) : json_null());
    json_object_set_new(root, "training", record_of(r, r->last));
    json_object_set_new(root, "validation", record_of(r, r->last_valid));
    json_object_set_new(root, "best_validation", record_of(r, r->best));
    json_object_set_new(root, "checkpoints", list);
    json_object_set_new(root, "latest", text_or_null(r->latest));
    json_object_set_new(root, "best", text_or_null(best_checkpoint(r, &loss)));
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    puts(text ? text : "{}");
    free(text);
    json_decref(root);
}

dt_err info_show_run(const char *dir, bool json)
{
    run_info r = {.dir = dir};
    const dt_err err = collect(&r);
    if (err == DT_OK && json) print_json(&r);
    if (err == DT_OK && !json) print_text(&r);
    release(&r);
    return err;
}
