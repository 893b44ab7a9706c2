/* branch.c - a run that returns to an older checkpoint leaves a branch: newer checkpoints and records that are no
 * longer part of its history.
 *
 * They are moved to OUTPUT_DIR/left/after-step-NNNNNNNN, with the layout of a run's directory. If the process is killed
 * at any point, the next start completes or undoes the move:
 *
 *     left/unfinished/               created, with a copy of the records (metrics.jsonl, metrics.csv)
 *     left/unfinished/step           the step to return to, written atomically: commits the move
 *     checkpoints/latest             names that step
 *     left/unfinished/checkpoints/   the newer checkpoints, one rename each
 *     left/after-step-NNNNNNNN       final name of the directory
 *
 * Before the second line nothing has changed and the directory is removed. After it the remaining steps are repeated.
 * TensorBoard's event files stay in place: the next file records the step from which the run is repeated. */
#include "run.h"
#include "dtrain/io/io.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct branch_paths {
    const char *output_dir;
    char checkpoints[PATH_MAX], left[PATH_MAX], folder[PATH_MAX], folder_checkpoints[PATH_MAX], folder_step[PATH_MAX];
} branch_paths;

static dt_err find_paths(branch_paths *p, const char *output_dir)
{
    p->output_dir = output_dir;
    DT_CHECK(dt_join_path(p->checkpoints, output_dir, "checkpoints", "") &&
                 dt_join_path(p->left, output_dir, "left", "") &&
                 dt_join_path(p->folder, output_dir, "left/unfinished", "") &&
                 dt_join_path(p->folder_checkpoints, output_dir, "left/unfinished/checkpoints", "") &&
                 dt_join_path(p->folder_step, output_dir, "left/unfinished/step", ""),
             DT_ERR_WRITE, "%s: the path is too long", output_dir);
    return DT_OK;
}

/* The records of sinks that are truncated when the run continues. */
static dt_err copy_records(const branch_paths *p)
{
    char from[PATH_MAX], to[PATH_MAX];
    const char *name;
    for (int i = 0; (name = dt_report_record(i)); i++) {
        DT_CHECK(dt_join_path(from, p->output_dir, name, "") && dt_join_path(to, p->folder, name, ""), DT_ERR_WRITE,
                 "%s: the path is too long", p->folder);
        if (dt_is_file(from)) DT_TRY(dt_copy_file(from, to));
    }
    return DT_OK;
}

static dt_err move_newer(const branch_paths *p, int64_t step)
{
    char **paths, to[PATH_MAX];
    int n;
    dt_err err = DT_OK;
    DT_TRY(dt_checkpoint_list(p->checkpoints, &paths, &n));
    for (int i = 0; i < n && err == DT_OK && dt_checkpoint_step_of(paths[i]) > step; i++) {
        const bool fits = dt_join_path(to, p->folder_checkpoints, strrchr(paths[i], '/') + 1, "");
        err = fits ? dt_rename_durable(paths[i], to)
                   : dt_fail(DT_ERR_WRITE, "%s: the path is too long", p->folder_checkpoints);
        if (err == DT_OK) err = dt_fault("branch.move");
    }
    dt_list_free(paths, n);
    return err;
}

/* The first unused name of after-step-4, after-step-4.2, ... */
static dt_err name_folder(const branch_paths *p, int64_t step)
{
    char name[64], to[PATH_MAX], name_of_step[PATH_MAX];
    for (int k = 1; k < 100000; k++) {
        snprintf(name, sizeof name, k == 1 ? "after-step-%08" PRId64 : "after-step-%08" PRId64 ".%d", step, k);
        DT_CHECK(dt_join_path(to, p->left, name, ""), DT_ERR_WRITE, "%s: the path is too long", p->left);
        if (access(to, F_OK) == 0) continue;
        DT_TRY(dt_rename_durable(p->folder, to));
        if (dt_join_path(name_of_step, to, "step", "")) unlink(name_of_step);
        DT_WARN("continuing from step %" PRId64 "; later checkpoints and records were moved to %s", step, to);
        return DT_OK;
    }
    return dt_fail(DT_ERR_WRITE, "%s contains too many folders", p->left);
}

/* Remove the file and the temporary copy that a killed run may have left. */
static void remove_copy(const char *folder, const char *name)
{
    char path[PATH_MAX], part[PATH_MAX];
    if (dt_join_path(path, folder, name, "")) unlink(path);
    if (dt_join_path(part, folder, name, ".part")) unlink(part);
}

static void undo(const branch_paths *p)
{
    const char *name;
    for (int i = 0; (name = dt_report_record(i)); i++) remove_copy(p->folder, name);
    remove_copy(p->folder, "step");
    rmdir(p->folder_checkpoints), rmdir(p->folder), rmdir(p->left);
}

static dt_err read_step(const branch_paths *p, int64_t *step)
{
    char *text;
    size_t nbytes;
    DT_TRY(dt_read_file(p->folder_step, 64, &text, &nbytes));
    *step = strtoll(text, NULL, 10);
    free(text);
    DT_CHECK(*step > 0, DT_ERR_DATA, "%s: expected the number of a step", p->folder_step);
    return DT_OK;
}

static dt_err finish(const branch_paths *p)
{
    int64_t step = 0;
    DT_TRY(read_step(p, &step));
    DT_TRY(dt_fault("branch.latest"));
    DT_TRY(dt_checkpoint_point(p->checkpoints, "latest", step));
    DT_TRY(dt_make_dirs(p->folder_checkpoints));
    DT_TRY(dt_fault("branch.begin"));
    DT_TRY(move_newer(p, step));
    DT_TRY(dt_fault("branch.name"));
    return name_folder(p, step);
}

dt_err run_finish_leaving(const char *output_dir)
{
    branch_paths p;
    DT_TRY(find_paths(&p, output_dir));
    if (access(p.folder, F_OK) != 0) return DT_OK;
    if (dt_is_file(p.folder_step)) return finish(&p);
    undo(&p);
    return DT_OK;
}

dt_err run_leave_branch(const char *output_dir, int64_t step)
{
    branch_paths p;
    char **paths, text[32];
    int n;
    DT_TRY(find_paths(&p, output_dir));
    DT_TRY(dt_checkpoint_list(p.checkpoints, &paths, &n));
    const bool any = n > 0 && dt_checkpoint_step_of(paths[0]) > step;
    dt_list_free(paths, n);
    if (!any) return DT_OK;
    DT_TRY(dt_make_dirs(p.folder));
    DT_TRY(copy_records(&p));
    DT_TRY(dt_fault("branch.copied"));
    snprintf(text, sizeof text, "%" PRId64 "\n", step);
    DT_TRY(dt_write_file_atomic(p.folder_step, text, strlen(text)));
    return finish(&p);
}
