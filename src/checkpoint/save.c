/* save.c - all ranks write one file. If one of them fails, nothing of the file remains.
 *
 *     create   rank 0: directory, metadata by HDF5 in memory (create.c, file_image.c); reserves the whole file, which
 *              detects a full disk
 *     write    every rank: its ranges of elements by pwrite, at the offsets from HDF5, with checksums;
 *              rank 0 also writes the task's items
 *     publish  rank 0: checksums in memory, metadata to the file, fsync; rename, `latest`
 *
 * Each stage is local work and ends with a vote, so no rank proceeds after a failure. After the vote the ranks exchange
 * what the next stage needs. Here the stages follow each other directly. In save_async.c a thread does the work while
 * training continues.
 *
 * A slice is one range of elements and a dataset one range of bytes. A rank therefore writes a few long, disjoint
 * ranges. Local disks, NFS, Lustre and GPFS all serve this pattern at full speed, without the exchange between ranks of
 * collective MPI-IO.
 *
 * NFS requires that ranks open the file after rank 0 closed it, and sync before rank 0 opens it again. */
#include "save.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* File names of a checkpoint in a run's directory, and of the pointer to the newest. */
static dt_err name_in_dir(save_job *j)
{
    DT_CHECK(j->meta->step >= 0, DT_ERR_ARG, "step %" PRId64, j->meta->step);
    DT_TRY(dt_checkpoint_path(j->path, j->dir, j->meta->step));
    const bool fits = (size_t)snprintf(j->part, PATH_MAX, "%s.part", j->path) < PATH_MAX &&
                      dt_join_path(j->latest, j->dir, "latest", "");
    DT_CHECK(fits, DT_ERR_WRITE, "%s: the path is too long", j->dir);
    return DT_OK;
}

/* A single file: no pointer names it, and no older file is deleted. */
static dt_err name_alone(save_job *j, const char *path)
{
    const char *slash = strrchr(path, '/');
    const int len = slash ? (int)(slash == path ? 1 : slash - path) : 1;
    const bool fits = (size_t)snprintf(j->path, PATH_MAX, "%s", path) < PATH_MAX &&
                      (size_t)snprintf(j->part, PATH_MAX, "%s.part", path) < PATH_MAX &&
                      (size_t)snprintf(j->folder, PATH_MAX, "%.*s", len, slash ? path : ".") < PATH_MAX;
    DT_CHECK(fits, DT_ERR_WRITE, "%s: the path is too long", path);
    j->dir = j->folder;
    return DT_OK;
}

static void leave_out_frozen(save_job *j)
{
    int n = 0;
    for (int i = 0; i < j->n_slots; i++)
        if (!j->slots[i].of->base || j->slots[i].tensor->trainable) j->slots[n++] = j->slots[i];
    j->n_slots = n;
}

static dt_err prepare(save_job *j)
{
    DT_TRY(dt_stored_slots(j->models, j->n_models, &j->slots, &j->n_slots));
    leave_out_frozen(j);
    DT_ALLOC(j->offsets, j->n_slots + DT_CKPT_TASK_ITEMS, "out of memory for a list of %d tensors", j->n_slots);
    DT_ALLOC(j->sums, j->n_slots + 1, "out of memory for a list of %d tensors", j->n_slots);
    return dt_chunks_take(&j->chunks, j->comm);
}

dt_err save_open_in_dir(save_job *j)
{
    DT_TRY(name_in_dir(j));
    return prepare(j);
}

/* ---- rank 0: create and reserve ---------------------------------------------------------------------------------- */

/* Array, header and page alignment. */
static double array_nbytes(double nbytes) { return nbytes + 512 + (nbytes >= CKPT_ALIGN_FROM ? CKPT_PAGE : 0); }

/* The root. HDF5 stores long texts in blocks that double in size. */
static double root_nbytes(size_t texts_len) { return (1 << 16) + 2.0 * (double)texts_len; }

double dt_checkpoint_nbytes(size_t texts_len, double task_nbytes)
{
    return root_nbytes(texts_len) + (task_nbytes > 0 ? task_nbytes + DT_CKPT_TASK_ITEMS * (512.0 + CKPT_PAGE) : 0);
}

/* One optimizer state of a tensor, with its scales. */
static double state_nbytes(dt_dtype state_dtype, const dt_tensor *t)
{
    const dt_state_nbytes size = dt_zero_state_nbytes(state_dtype, t);
    return array_nbytes(size.values) + (size.scales > 0 ? array_nbytes(size.scales) : 0);
}

double dt_checkpoint_model_nbytes(const dt_unit *units, int n_units, const dt_optimizer_ops *optimizer,
                                  dt_dtype state_dtype, bool trained_alone)
{
    double nbytes = 0;
    for (int u = 0; u < n_units; u++)
        for (int t = 0; t < units[u].n_tensors; t++) {
            const dt_tensor *tensor = &units[u].tensors[t], whole = dt_tensor_whole(tensor);
            const bool is_bytes = tensor->part == DT_CODES || tensor->part == DT_BLOCKS;
            const double array = array_nbytes((is_bytes ? 1.0 : sizeof(float)) * (double)whole.n_elems);
            if (tensor->trainable)
                nbytes += array + (optimizer ? __builtin_popcount(dt_optimizer_states_of(optimizer, tensor)) : 0) *
                                      state_nbytes(state_dtype, &whole);
            else
                nbytes += trained_alone ? 2.0 * (DT_NAME_MAX + 32) : array; /* its line in the base's text */
        }
    return nbytes;
}

/* Reserve space for the data under the file's name, because the free space of a disk ignores quotas and file size
 * limits. The excess over the real size is released later. Reserving slightly too much is safer: HDF5 could not create
 * its image beyond a file size limit. */
static dt_err probe_space(const save_job *j)
{
    const char *config = j->meta->config, *model = j->meta->model_config;
    const dt_base *base = j->models[0].base;
    const size_t base_len = base ? PATH_MAX + (size_t)base->n * (DT_NAME_MAX + 32) : 0;
    double nbytes = root_nbytes((config ? strlen(config) : 0) + (model ? strlen(model) : 0) + base_len) +
                    ckpt_task_arrays_nbytes(&j->meta->items);
    for (int i = 0; i < j->n_slots; i++)
        nbytes +=
            array_nbytes((double)j->slots[i].tensor->n_elems * (double)dt_dtype_size(ckpt_slot_dtype(&j->slots[i])));
    DT_TRY(dt_check_space(j->dir, j->part, nbytes, "a checkpoint"));
    DT_TRY(dt_create_empty_file(j->part));
    return dt_reserve_file(j->part, (int64_t)nbytes, "a checkpoint");
}

static dt_err make_metadata(save_job *j)
{
    DT_TRY(dt_check_replaceable(j->path));
    DT_TRY(dt_make_dirs(j->dir));
    if (j->latest[0]) ckpt_remove_stale(j->dir);
    DT_TRY(probe_space(j));
    /* written while there is space; renamed after the checkpoint */
    if (j->latest[0]) DT_TRY(ckpt_write_pointer(&j->pointer, j->latest, j->meta->step));
    DT_TRY(ckpt_image_open(&j->image));
    dt_h5_lock();
    const dt_err err = ckpt_file_create(&j->image, j->part, j->meta, j->models, j->n_models, j->slots, j->n_slots,
                                        j->offsets, &j->file_size);
    dt_h5_unlock();
    return err;
}

static dt_err reserve(const save_job *j)
{
    if (truncate(j->part, (off_t)j->file_size) != 0)
        return dt_fail_errno(DT_ERR_WRITE, j->part, "cannot be extended to its full size");
    return dt_reserve_file(j->part, ckpt_sealed_size(&j->image, j->file_size), "a checkpoint");
}

static dt_err create(save_job *j)
{
    dt_phase_enter(j->phase, "save", "create");
    if (dt_comm_first(j->comm)) DT_TRY(make_metadata(j));
    DT_TRY(dt_fault("save.create"));
    if (dt_comm_first(j->comm)) DT_TRY(reserve(j));
    return dt_fault("save.reserve");
}

static dt_err share_offsets(save_job *j)
{
    return dt_comm_broadcast_host(j->comm, j->offsets, (size_t)j->n_slots * sizeof *j->offsets, 0);
}

/* ---- every rank: write ------------------------------------------------------------------------------------------- */

/* Write this rank's range of a tensor and add to its checksum. in_place: address on the host; NULL: the data passes
 * through the buffer. */
static dt_err write_slot(const save_job *j, int fd, int i, const char *in_place)
{
    const dt_stored_slot *s = &j->slots[i];
    const size_t size = dt_dtype_size(ckpt_slot_dtype(s));
    const int64_t step = DT_STORED_BUFFER / (int64_t)size, first = s->slice->first;
    for (int64_t at = 0; at < s->slice->n; at += step) {
        const int64_t n = s->slice->n - at < step ? s->slice->n - at : step;
        const char *from = in_place ? in_place + (size_t)at * size : j->chunks->raw;
        if (j->given_up && atomic_load(j->given_up)) return dt_fail(DT_ERR_STOP, "%s: cancelled", j->part);
        dt_phase_enter(j->phase, "save", s->tensor->name);
        if (!in_place) DT_TRY(dt_zero_state_read(s->of->zero, s->state, s->slice, at, n, j->chunks->raw));
        for (int64_t done = 0; done < n;) {
            const dt_tensor_run run = dt_tensor_run_of(s->held, first + at + done, n - done);
            const char *part = from + (size_t)done * size;
            j->sums[i] += dt_checksum(part, run.whole, run.n, size);
            DT_TRY(dt_write_at(fd, j->part, j->offsets[i] + run.whole * (int64_t)size, part, (size_t)run.n * size));
            done += run.n;
        }
    }
    return DT_OK;
}

static dt_err write_slots(save_job *j)
{
    const int fd = open(j->part, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return dt_fail_errno(DT_ERR_WRITE, j->part,
                             "cannot be opened by this rank; check that all nodes share the folder");
    dt_err err = DT_OK;
    const char *copy = j->copy;
    for (int i = 0; i < j->n_slots && err == DT_OK; i++) {
        const dt_stored_slot *slot = &j->slots[i];
        if (slot->slice->n == 0) continue;
        if ((err = dt_fault("save.write")) != DT_OK) break;
        err = write_slot(j, fd, i, copy ? copy : dt_zero_state_ptr(slot->of->zero, slot->state, slot->slice));
        if (copy) copy += save_slot_nbytes(slot);
    }
    if (err == DT_OK && dt_comm_first(j->comm))
        err = ckpt_write_task_arrays(fd, j->part, &j->meta->items, j->offsets + j->n_slots);
    /* On one node rank 0 syncs for all ranks after the checksums are written. Across nodes each rank flushes its own
     * cache concurrently. */
    const bool sync = !dt_comm_first(j->comm) || dt_comm_nodes(j->comm) > 1;
    dt_phase_enter(j->phase, "save", "sync");
    return dt_close_written(fd, j->part, sync, err);
}

static dt_err add_sums(save_job *j) { return dt_comm_sum_host_u64(dt_comm_all(j->comm), j->sums, j->n_slots); }

/* ---- rank 0: publish ------------------------------------------------------------------------------- */

/* Write the image around the tensors, and the seal; then sync. */
static dt_err write_metadata(const save_job *j)
{
    const int fd = open(j->part, O_RDWR | O_CLOEXEC);
    if (fd < 0) return dt_fail_errno(DT_ERR_WRITE, j->part, "cannot be opened again");
    const dt_err err = ckpt_image_write(&j->image, fd, j->part, j->file_size, j->chunks->raw);
    return dt_close_written(fd, j->part, true, err);
}

static dt_err complete(const save_job *j)
{
    dt_h5_lock();
    const dt_err err = ckpt_file_set_checksums(&j->image, j->part, j->slots, j->n_slots, j->sums);
    dt_h5_unlock();
    DT_TRY(err);
    return write_metadata(j);
}

/* Does `latest` name the new file? It may if a step is saved again. */
static bool latest_names(const save_job *j)
{
    char name[CKPT_NAME_SIZE];
    ckpt_read_pointer(j->dir, "latest", name);
    return strcmp(name, strrchr(j->path, '/') + 1) == 0;
}

static dt_err rename_all(save_job *j)
{
    if (!j->latest[0]) return dt_rename_durable(j->part, j->path);
    DT_TRY(dt_rename_file(j->part, j->path));
    dt_err err = dt_fault("save.latest");
    if (err == DT_OK) err = dt_aside_commit(&j->pointer);  /* same directory: one sync covers both */
    if (err != DT_OK && !latest_names(j)) unlink(j->path); /* the previous checkpoint remains valid */
    return err;
}

/* Only rank 0 works here, after all ranks have agreed that their writes succeeded. */
static dt_err publish(save_job *j)
{
    dt_phase_enter(j->phase, "save", "publish");
    if (!dt_comm_first(j->comm)) return DT_OK;
    DT_TRY(complete(j));
    DT_TRY(dt_fault("save.rename"));
    DT_TRY(rename_all(j));
    dt_checkpoint_prune(j->dir, j->keep);
    return DT_OK;
}

/* ---- stage by stage ---------------------------------------------------------------------------------------------- */

const save_stage save_stages[DT_SAVE_STAGES] = {
    {"create", create, share_offsets}, {"write", write_slots, add_sums}, {"publish", publish, NULL}};

void save_close(save_job *j, bool published)
{
    if (dt_comm_first(j->comm) && !published && j->part[0]) dt_remove_part(j->part);
    dt_aside_drop(&j->pointer);
    ckpt_image_close(&j->image);
    free(j->slots);
    free(j->offsets);
    free(j->sums);
    dt_chunks_give_back(j->chunks, j->comm);
    *j = (save_job){.image.fd = -1};
}

/* opened: this rank's error so far. */
static dt_err save(save_job *j, dt_err opened)
{
    dt_err err = dt_comm_agree(j->comm, opened);
    for (const save_stage *s = save_stages; s < save_stages + DT_SAVE_STAGES && err == DT_OK; s++) {
        err = dt_comm_agree(j->comm, s->work(j));
        if (err == DT_OK && s->meet) err = s->meet(j);
    }
    save_close(j, err == DT_OK);
    return err;
}

dt_err dt_checkpoint_save_all(dt_comm *comm, const dt_saved_model *models, int n_models, const dt_ckpt_meta *meta,
                              const char *dir, int64_t keep, dt_phase *phase)
{
    save_job job = {.comm = comm,
                    .models = models,
                    .n_models = n_models,
                    .meta = meta,
                    .dir = dir,
                    .keep = keep,
                    .phase = phase,
                    .image.fd = -1};
    return save(&job, save_open_in_dir(&job));
}

/* A single model with its states. */
static dt_saved_model own_model(dt_zero *z, const dt_ckpt_meta *meta)
{
    return (dt_saved_model){.zero = z, .with_states = true, .state_updates = meta->states.updates};
}

dt_err dt_checkpoint_save(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *dir, int64_t keep,
                          dt_phase *phase)
{
    const dt_saved_model one = own_model(z, meta);
    return dt_checkpoint_save_all(comm, &one, 1, meta, dir, keep, phase);
}

dt_err dt_checkpoint_save_as(dt_comm *comm, dt_zero *z, const dt_ckpt_meta *meta, const char *path, dt_phase *phase)
{
    const dt_saved_model one = own_model(z, meta);
    save_job job = {.comm = comm, .models = &one, .n_models = 1, .meta = meta, .phase = phase, .image.fd = -1};
    const dt_err named = name_alone(&job, path);
    return save(&job, named == DT_OK ? prepare(&job) : named);
}
