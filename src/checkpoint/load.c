/* load.c - the reverse of save.c, for whatever layout the ranks have now.
 *
 * Rank 0 alone opens the file's metadata, checks it against the model and tells the others where each tensor is: at a thousand ranks that is one
 * open and a few reads, not a thousand. Each rank then reads its own runs of elements, straight into the states where the host reaches them and
 * the type is the same. The checksums are formed over what was read: the parts of all ranks add up to the sum of the whole tensor. A file whose
 * tensors others have chunked or compressed is read through HDF5 by each rank. */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct load_job {
    dt_comm *comm;
    dt_zero *z;
    const char *path;
    dt_phase *phase;
    ckpt_slot *slots;
    ckpt_place *places;
    uint64_t *sums;
    int n_slots;
    int fd;
    hid_t file;                /* -1 unless a tensor has to be read through HDF5 */
    char *raw, *converted;     /* CKPT_BUFFER bytes each: elements as in the file, and as z keeps them */
} load_job;

static dt_err prepare(load_job *j, bool with_optimizer)
{
    DT_TRY(ckpt_slots(j->z, with_optimizer, &j->slots, &j->n_slots));
    j->places = calloc((size_t)j->n_slots + 1, sizeof *j->places);
    j->sums = calloc((size_t)j->n_slots + 1, sizeof *j->sums);
    j->raw = malloc(CKPT_BUFFER);
    j->converted = malloc(CKPT_BUFFER);
    DT_CHECK(j->places && j->sums && j->raw && j->converted, DT_ERR_MEMORY, "no memory for a checkpoint's buffers of %d MiB", 2 * CKPT_BUFFER >> 20);
    return DT_OK;
}

static dt_err find_all(load_job *j)
{
    hid_t file;
    int n_without = 0;
    if (j->comm->rank != 0) return DT_OK;
    dt_h5_lock();
    dt_err err = ckpt_file_open(j->path, &file);
    for (int i = 0; i < j->n_slots && err == DT_OK; i++) {
        err = ckpt_file_find(file, j->path, &j->slots[i], &j->places[i]);
        n_without += !j->places[i].has_checksum;
    }
    if (file >= 0) H5Fclose(file);
    dt_h5_unlock();
    if (err == DT_OK && n_without)
        DT_WARN("%s: %d of %d tensors carry no checksum: damage to them would not be noticed", j->path, n_without, j->n_slots);
    return err;
}

/* ---- reading -------------------------------------------------------------------------------------------------------------- */

static float half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
    union { uint32_t u; float f; } x;
    if (exponent == 0)
        x.f = (float)fraction * 0x1p-24f; /* subnormal in half, exact in float */
    else
        x.u = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    x.u |= sign;
    return x.f;
}

static float element(const char *raw, int64_t i, dt_h5_type type)
{
    if (type == DT_H5_F32) return ((const float *)raw)[i];
    const uint16_t h = ((const uint16_t *)raw)[i];
    return type == DT_H5_F16 ? half_to_float(h) : dt_bf16_to_float(h);
}

static void convert(const char *raw, dt_h5_type from, char *out, dt_dtype to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float f = element(raw, i, from);
        if (to == DT_F32)
            ((float *)out)[i] = f;
        else
            ((uint16_t *)out)[i] = dt_bf16_from_float(f);
    }
}

/* type: what rank 0 found; out has room for elements of that. */
static dt_err fetch_through_hdf5(const load_job *j, const ckpt_slot *s, dt_h5_type type, int64_t first, int64_t n, void *out)
{
    char name[256];
    dt_h5_array a;
    dt_h5_lock();
    hid_t dset = ckpt_slot_open(j->file, s, name, sizeof name);
    dt_err err = dset < 0 ? dt_h5_fail(DT_ERR_DATA, j->path, name) : dt_h5_inspect(dset, j->path, name, &a);
    if (err == DT_OK && (a.n_elems != s->tensor->n_elems || a.type != type)) err = dt_fail(DT_ERR_DATA, "%s: tensor `%s` differs between ranks", j->path, name);
    if (err == DT_OK) err = dt_h5_read_run(dset, j->path, name, &a, first, n, out);
    if (dset >= 0) H5Dclose(dset);
    dt_h5_unlock();
    return err;
}

static dt_err read_slot(load_job *j, int i)
{
    const ckpt_slot *s = &j->slots[i];
    const ckpt_place *p = &j->places[i];
    const dt_h5_type type = (dt_h5_type)p->type;
    const dt_dtype keep = dt_zero_state_dtype(j->z, s->state);
    const bool same = type == (keep == DT_F32 ? DT_H5_F32 : DT_H5_BF16);
    const size_t size = type == DT_H5_F32 ? 4 : 2;
    const int64_t step = CKPT_BUFFER / 4;
    char *in_place = same ? dt_zero_state_ptr(j->z, s->state, s->piece) : NULL;
    for (int64_t at = 0; at < s->piece->n; at += step) {
        const int64_t n = s->piece->n - at < step ? s->piece->n - at : step, first = s->piece->first + at;
        char *to = in_place ? in_place + (size_t)at * size : j->raw;
        DT_TRY(p->offset >= 0 ? dt_read_at(j->fd, j->path, p->offset + first * (int64_t)size, to, (size_t)n * size)
                              : fetch_through_hdf5(j, s, type, first, n, to));
        j->sums[i] += dt_checksum(to, first, n, size);
        if (in_place) continue;
        if (!same) convert(j->raw, type, j->converted, keep, n);
        DT_TRY(dt_zero_state_write(j->z, s->state, s->piece, at, n, same ? j->raw : j->converted));
    }
    return DT_OK;
}

static dt_err open_file(load_job *j)
{
    bool through_hdf5 = false;
    for (int i = 0; i < j->n_slots; i++) through_hdf5 |= j->places[i].offset < 0;
    j->fd = open(j->path, O_RDONLY | O_CLOEXEC);
    DT_CHECK(j->fd >= 0, DT_ERR_DATA, "%s: cannot be opened by this rank: %s", j->path, strerror(errno));
    (void)posix_fadvise(j->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* a hint */
    if (!through_hdf5) return DT_OK;
    dt_h5_lock();
    const dt_err err = ckpt_file_open(j->path, &j->file);
    dt_h5_unlock();
    return err;
}

static dt_err read_slots(load_job *j)
{
    DT_TRY(open_file(j));
    for (int i = 0; i < j->n_slots; i++) {
        if (j->slots[i].piece->n == 0) continue;
        dt_phase_enter(j->phase, "load", j->slots[i].tensor->name);
        DT_TRY(dt_fault("load.read"));
        DT_TRY(read_slot(j, i));
    }
    return DT_OK;
}

/* The same on all ranks: sums are those of whole tensors here. */
static dt_err compare(const load_job *j)
{
    char name[256];
    int n_bad = 0, first_bad = -1;
    for (int i = 0; i < j->n_slots; i++) {
        if (!j->places[i].has_checksum || j->sums[i] == j->places[i].checksum) continue;
        if (n_bad++ == 0) first_bad = i;
    }
    if (n_bad == 0) return DT_OK;
    ckpt_slot_name(&j->slots[first_bad], name, sizeof name);
    return dt_fail(DT_ERR_DATA, "%s: tensor `%s` was altered: checksum %016" PRIx64 ", expected %016" PRIx64 " (%d of %d tensors differ)", j->path, name,
                   j->sums[first_bad], j->places[first_bad].checksum, n_bad, j->n_slots);
}

static void clean_up(load_job *j)
{
    if (j->fd >= 0) close(j->fd);
    if (j->file >= 0) {
        dt_h5_lock();
        H5Fclose(j->file);
        dt_h5_unlock();
    }
    free(j->slots);
    free(j->places);
    free(j->sums);
    free(j->raw);
    free(j->converted);
}

dt_err dt_checkpoint_load(dt_comm *comm, dt_zero *z, const char *path, bool with_optimizer, dt_phase *phase)
{
    load_job job = {.comm = comm, .z = z, .path = path, .phase = phase, .fd = -1, .file = -1};
    dt_phase_enter(phase, "load", "open");
    dt_err err = dt_comm_agree(comm, prepare(&job, with_optimizer));
    if (err == DT_OK) err = dt_comm_agree(comm, find_all(&job));
    if (err == DT_OK) err = dt_comm_broadcast_host(comm, job.places, (size_t)job.n_slots * sizeof *job.places, 0);
    if (err == DT_OK) err = dt_comm_agree(comm, read_slots(&job));
    if (err == DT_OK) err = dt_comm_sum_host_u64(comm, job.sums, job.n_slots);
    if (err == DT_OK) err = dt_comm_agree(comm, compare(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, dt_zero_state_written(z));
    clean_up(&job);
    return err;
}
