/* export.c - all ranks write one directory, as save.c writes one file:
 *
 *     create   rank 0: the folder; every file reserved whole under its .part name, the small ones written
 *     write    every rank: its runs of elements, converted, by pwrite where the layout puts them
 *     sync     rank 0
 *     publish  rank 0: renames, config.json last
 *
 * with a vote behind each. The layout is worked out by every rank from the same names and shapes, so nothing has to be
 * told. */
#include "dtrain/export.h"
#include "export_config.h"
#include "tokenizer_files.h"
#include "dtrain/io.h"
#include "dtrain/stored.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct export_job {
    dt_comm *comm;
    dt_zero *z;
    const dt_export_options *opt;
    dt_phase *phase;
    dt_saved_model model; /* of the slots */
    dt_stored_slot *slots;
    int n_slots;
    dt_st_layout layout;
    char *config; /* rank 0: text of config.json */
    dt_chunks *chunks;
    char config_path[PATH_MAX], config_part[PATH_MAX];
    int fd, fd_file;        /* the file that is open for writing, and its number */
    bool made_dir, created; /* rank 0: what there is to undo */
} export_job;

static dt_err make_layout(export_job *j)
{
    dt_st_entry *entries = calloc((size_t)j->n_slots + 1, sizeof *entries);
    DT_CHECK(entries, DT_ERR_MEMORY, "no memory for a list of %d tensors", j->n_slots);
    for (int i = 0; i < j->n_slots; i++) {
        const dt_tensor *t = j->slots[i].tensor;
        entries[i] = (dt_st_entry){.name = t->name, .n_dims = t->n_dims, .shape = t->shape};
    }
    const dt_err err = dt_st_layout_make(&j->layout, entries, j->n_slots, j->opt->dtype,
                                         j->opt->shard_size ? j->opt->shard_size : DT_ST_SHARD_SIZE);
    free(entries);
    return err;
}

/* Of a scalar head; 0: the model predicts tokens. */
static int64_t n_labels(const export_job *j)
{
    for (int i = 0; i < j->n_slots; i++)
        if (strcmp(j->slots[i].tensor->name, DT_STORED_SCORE) == 0) return j->slots[i].tensor->shape[0];
    return 0;
}

static dt_err prepare(export_job *j)
{
    const bool fits = dt_join_path(j->config_path, j->opt->dir, "config.json", "") &&
                      dt_join_path(j->config_part, j->opt->dir, "config.json", ".part");
    DT_CHECK(fits, DT_ERR_WRITE, "%s: the path is too long", j->opt->dir);
    j->model = (dt_saved_model){.zero = j->z};
    DT_TRY(dt_stored_slots(&j->model, 1, &j->slots, &j->n_slots));
    DT_TRY(make_layout(j));
    DT_TRY(dt_chunks_take(&j->chunks, j->comm));
    if (j->comm->rank > 0) return DT_OK;
    return export_config_make(j->opt->model_config, j->opt->dtype, j->opt->tokenizer, n_labels(j), &j->config);
}

/* ---- rank 0: create ---------------------------------------------------------------------------------------------- */

static dt_err create_files(export_job *j)
{
    const char *dir = j->opt->dir;
    j->made_dir = access(dir, F_OK) != 0;
    DT_TRY(dt_make_dirs(dir));
    j->created = true;
    tokenizer_files_discard(dir); /* of an export that was killed */
    DT_TRY(dt_st_layout_create(&j->layout, dir));
    DT_TRY(dt_write_file_sync(j->config_part, j->config, strlen(j->config)));
    return tokenizer_files_create(j->opt->tokenizer, j->opt->chat_template, j->opt->generation_from, dir);
}

static dt_err create(export_job *j)
{
    if (j->comm->rank == 0) DT_TRY(create_files(j));
    return dt_fault("export.create");
}

/* ---- every rank: write ------------------------------------------------------------------------------------------- */

static dt_err close_file(export_job *j)
{
    if (j->fd < 0) return DT_OK;
    const int fd = j->fd;
    const char *name = j->layout.names[j->fd_file];
    /* On one node rank 0 syncs for all; across nodes each has its own cache to empty. */
    const bool sync = j->comm->n_nodes > 1;
    j->fd = -1;
    dt_err err = sync && fsync(fd) != 0
                     ? dt_fail(DT_ERR_WRITE, "%s/%s.part: sync failed: %s", j->opt->dir, name, strerror(errno))
                     : DT_OK;
    if (close(fd) != 0 && err == DT_OK)
        err = dt_fail(DT_ERR_WRITE, "%s/%s.part: close failed: %s", j->opt->dir, name, strerror(errno));
    return err;
}

static dt_err open_file(export_job *j, int file, char path[PATH_MAX])
{
    DT_CHECK(dt_join_path(path, j->opt->dir, j->layout.names[file], ".part"), DT_ERR_WRITE, "%s: the path is too long",
             j->opt->dir);
    if (j->fd >= 0 && j->fd_file == file) return DT_OK;
    DT_TRY(close_file(j));
    j->fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    j->fd_file = file;
    DT_CHECK_ERRNO(j->fd >= 0, DT_ERR_WRITE, path,
                   "cannot be opened by this rank (is the folder shared between the nodes?)");
    return DT_OK;
}

/* This rank's run of a tensor, converted, where the layout puts it. A finite number that the type cannot hold is an
 * error. */
static dt_err write_slot(export_job *j, int i)
{
    const dt_stored_slot *s = &j->slots[i];
    const dt_st_type kept = dt_st_type_of(dt_zero_state_dtype(j->z, s->state, s->piece)), type = j->opt->dtype;
    const size_t kept_size = dt_st_type_size(kept), size = dt_st_type_size(type);
    const int64_t step = DT_STORED_BUFFER / 4;
    const char *in_place = dt_zero_state_ptr(j->z, s->state, s->piece);
    char *const raw = j->chunks->raw, *const converted = j->chunks->converted;
    char path[PATH_MAX];
    DT_TRY(open_file(j, j->layout.file[i], path));
    for (int64_t at = 0; at < s->piece->n; at += step) {
        const int64_t n = s->piece->n - at < step ? s->piece->n - at : step;
        const char *from = in_place ? in_place + (size_t)at * kept_size : raw;
        DT_TRY(dt_phase_poll(j->phase));
        if (!in_place) DT_TRY(dt_zero_state_read(j->z, s->state, s->piece, at, n, raw));
        const int64_t n_lost = kept == type ? 0 : dt_st_convert(from, kept, converted, type, n);
        DT_CHECK(n_lost == 0, DT_ERR_DATA,
                 "tensor `%s`: %" PRId64 " numbers are too large for %s: use another data type", s->tensor->name,
                 n_lost, dt_st_type_name(type));
        DT_TRY(dt_write_at(j->fd, path, j->layout.offset[i] + (s->piece->first + at) * (int64_t)size,
                           kept == type ? from : converted, (size_t)n * size));
    }
    return DT_OK;
}

static dt_err write_slots(export_job *j)
{
    dt_err err = DT_OK;
    for (int i = 0; i < j->n_slots && err == DT_OK; i++) {
        if (j->slots[i].piece->n == 0) continue;
        dt_phase_enter(j->phase, "export", j->slots[i].tensor->name);
        if ((err = dt_fault("export.write")) == DT_OK) err = write_slot(j, i);
    }
    const dt_err closed = close_file(j);
    return err != DT_OK ? err : closed;
}

/* ---- rank 0: sync and publish ------------------------------------------------------------------------------------ */

static dt_err sync_files(export_job *j)
{
    dt_phase_enter(j->phase, "export", "sync");
    for (int f = 0; f < j->layout.n_files && j->comm->rank == 0; f++)
        DT_TRY(dt_st_layout_sync(&j->layout, j->opt->dir, f));
    return dt_fault("export.publish");
}

/* From the first removal to the last rename the directory has no config.json: nobody takes it for a model. */
static dt_err publish(export_job *j)
{
    if (j->comm->rank != 0) return DT_OK;
    DT_CHECK_ERRNO(unlink(j->config_path) == 0 || errno == ENOENT, DT_ERR_WRITE, j->config_path, "cannot be replaced");
    DT_TRY(dt_st_layout_publish(&j->layout, j->opt->dir));
    DT_TRY(tokenizer_files_publish(j->opt->dir));
    return dt_rename_durable(j->config_part, j->config_path);
}

static void clean_up(export_job *j, dt_err err)
{
    if (j->created && err != DT_OK) {
        dt_st_layout_discard(&j->layout, j->opt->dir);
        tokenizer_files_discard(j->opt->dir);
        unlink(j->config_part);
        if (j->made_dir) rmdir(j->opt->dir);
    }
    dt_st_layout_free(&j->layout);
    free(j->slots);
    free(j->config);
    dt_chunks_give_back(j->chunks, j->comm);
}

dt_err dt_export(dt_comm *comm, dt_zero *z, const dt_export_options *opt, dt_phase *phase)
{
    export_job job = {.comm = comm, .z = z, .opt = opt, .phase = phase, .fd = -1};
    dt_phase_enter(phase, "export", "create");
    dt_err err = dt_comm_agree(comm, prepare(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, create(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, write_slots(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, sync_files(&job));
    dt_phase_enter(phase, "export", "publish");
    if (err == DT_OK) err = dt_comm_agree(comm, publish(&job));
    clean_up(&job, err);
    return err;
}
