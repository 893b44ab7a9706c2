/* load.c - the reverse of save.c, for any present layout of the ranks, from a checkpoint or from safetensors files.
 *
 * Only rank 0 opens the files' metadata, validates it against the model and broadcasts the location of each tensor.
 * With a thousand ranks this is one open instead of a thousand. Each rank then reads its own ranges of elements,
 * directly into the states if the host can access them and the type is equal.
 *
 * Checksums are computed from the elements read; the partial sums of all ranks add up to the sum of the tensor. Each
 * rank uses HDF5 to read tensors that another program has chunked or compressed. A head that is stored in addition to
 * the embedding it is tied to is compared with it, one part per rank. */
#include "load.h"
#include "dtrain/model/model.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dt_err alloc_lists(load_job *j)
{
    DT_ALLOC(j->map.locations, j->n_slots + 1, "out of memory for a list of %d tensors", j->n_slots);
    DT_ALLOC(j->sums, j->n_slots + 1, "out of memory for a list of %d tensors", j->n_slots);
    return DT_OK;
}

static dt_err prepare(load_job *j)
{
    DT_TRY(dt_stored_slots(j->models, j->n_models, &j->slots, &j->n_slots));
    DT_TRY(dt_chunks_take(&j->chunks, j->comm));
    return alloc_lists(j);
}

static dt_err list_files(load_job *j)
{
    const int n = dt_stored_n_files(&j->map);
    DT_ALLOC(j->files, n + 1, "%s: out of memory for the names of %d files", j->path, n);
    const char *name = j->map.files;
    for (int f = 0; f < n; f++, name += strlen(name) + 1) j->files[f] = name;
    return DT_OK;
}

/* Broadcast rank 0's results. Collective, agreed. */
static dt_err share(load_job *j)
{
    dt_stored_map *f = &j->map, from_first = *f;
    DT_TRY(dt_comm_broadcast_host(j->comm, &from_first, sizeof from_first, 0));
    if (!dt_comm_first(j->comm)) {
        from_first.locations = f->locations;
        from_first.files = malloc(from_first.files_len);
        *f = from_first;
    }
    DT_TRY(dt_comm_agree(
        j->comm, f->files ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the names of %s's files", j->path)));
    DT_TRY(dt_comm_broadcast_host(j->comm, f->files, f->files_len, 0));
    DT_TRY(dt_comm_broadcast_host(j->comm, f->locations, (size_t)j->n_slots * sizeof *f->locations, 0));
    return dt_comm_agree(j->comm, list_files(j));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

dt_err load_open(load_job *j, int file)
{
    if (j->fd >= 0 && j->fd_file == file) return DT_OK;
    if (j->fd >= 0) close(j->fd);
    j->fd = open(j->files[file], O_RDONLY | O_CLOEXEC);
    j->fd_file = file;
    DT_CHECK_ERRNO(j->fd >= 0, DT_ERR_DATA, j->files[file], "cannot be opened by this rank");
    (void)posix_fadvise(j->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* only a hint */
    return DT_OK;
}

/* out has room for elements of the type that rank 0 found. */
static dt_err fetch_through_hdf5(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first,
                                 int64_t n, void *out)
{
    char name[256];
    const char *path = j->files[p->file];
    dt_h5_array a;
    dt_h5_lock();
    if (j->file >= 0 && j->h5_file != p->file) H5Fclose(j->file), j->file = -1;
    j->h5_file = p->file;
    dt_err err = j->file >= 0 ? DT_OK : ckpt_file_open(path, &j->file);
    hid_t dset = err == DT_OK ? ckpt_slot_open(j->file, s, name, sizeof name) : -1;
    if (err == DT_OK) err = dset < 0 ? dt_h5_fail(DT_ERR_DATA, path, name) : dt_h5_inspect(dset, path, name, &a);
    if (err == DT_OK && (a.n_elems != s->tensor->n_elems || ckpt_type_of(a.type) != (dt_st_type)p->type))
        err = dt_fail(DT_ERR_DATA, "%s: tensor `%s` differs between ranks", path, name);
    if (err == DT_OK) err = dt_h5_read_run(dset, path, name, &a, first, n, out);
    if (dset >= 0) H5Dclose(dset);
    dt_h5_unlock();
    return err;
}

/* Elements of a tensor whose columns alternate in the file (dt_stored_location.n_alternating). */
static dt_err fetch_alternating(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first,
                                int64_t n, char *out)
{
    const size_t size = dt_st_type_size((dt_st_type)p->type), nbytes = (size_t)s->tensor->n_elems * size;
    const int64_t E = p->n_alternating, r = s->tensor->shape[1], n_out = s->tensor->shape[0] / E;
    char *whole = malloc(nbytes);
    DT_CHECK(whole, DT_ERR_MEMORY, "%s: out of memory for tensor `%s`", j->files[p->file], s->tensor->name);
    const dt_err err = dt_read_at(j->fd, j->files[p->file], p->offset, whole, nbytes);
    for (int64_t i = first; i < first + n && err == DT_OK; i++) {
        const int64_t e = i / (n_out * r), o = i / r % n_out, k = i % r;
        memcpy(out + (size_t)(i - first) * size, whole + (size_t)((o * r + k) * E + e) * size, size);
    }
    free(whole);
    return err;
}

/* Elements of a tensor whose runs are apart in the file. */
static dt_err fetch_runs(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                         char *out)
{
    const size_t size = dt_st_type_size((dt_st_type)p->type);
    dt_stored_location whole = *p;
    whole.run = 0;
    for (int64_t i = first, some; i < first + n; i += some, out += (size_t)some * size) {
        const int64_t in_run = i % p->run;
        some = dt_min_i64(p->run - in_run, first + n - i);
        DT_TRY(load_fetch(j, s, &whole, i / p->run * p->stride + in_run, some, out));
    }
    return DT_OK;
}

dt_err load_fetch(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                  void *out)
{
    const size_t size = dt_st_type_size((dt_st_type)p->type);
    if (p->run > 0) return fetch_runs(j, s, p, first, n, out);
    if (p->packed.form != DT_PACKED_NOT) return decode_packed(j, s, p, first, n, out);
    if (p->offset < 0) return fetch_through_hdf5(j, s, p, first, n, out);
    DT_TRY(load_open(j, p->file));
    if (p->n_alternating > 0) return fetch_alternating(j, s, p, first, n, out);
    return dt_read_at(j->fd, j->files[p->file], p->offset + first * (int64_t)size, out, (size_t)n * size);
}

/* Clear a state that is not in the file. */
static dt_err clear_slot(load_job *j, const dt_stored_slot *s)
{
    const int64_t step = DT_STORED_BUFFER / (int64_t)sizeof(float);
    memset(j->chunks->raw, 0, DT_STORED_BUFFER);
    for (int64_t at = 0; at < s->owned->n; at += step)
        DT_TRY(dt_zero_state_write(s->of->zero, s->state, s->owned, at, dt_min_i64(step, s->owned->n - at),
                                   j->chunks->raw));
    return DT_OK;
}

uint64_t load_checksum(const dt_slice *charge, const char *elems, int64_t first, int64_t n, int64_t whole, size_t size)
{
    const int64_t lo = dt_max_i64(first, charge->first), hi = dt_min_i64(first + n, charge->first + charge->n);
    return lo < hi ? dt_checksum(elems + (size_t)(lo - first) * size, lo - first + whole, hi - lo, size) : 0;
}

/* Format the index of an element of a tensor: "[3, 17]". */
static const char *index_text(const dt_tensor *t, int64_t i, char *out, size_t out_size)
{
    int64_t at[DT_ST_MAX_DIMS] = {0};
    for (int d = t->n_dims - 1; d >= 0; d--) {
        at[d] = i % t->shape[d];
        i /= t->shape[d];
    }
    return dt_stored_shape_text(t->n_dims, at, out, out_size);
}

/* Check elements first .. first+n-1 as stored in the file. One NaN among the weights makes every output of a model
 * NaN. */
static dt_err check_finite(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, const void *elems,
                           int64_t first, int64_t n)
{
    const dt_st_type type = (dt_st_type)p->type;
    const int64_t at = dt_st_first_nonfinite(elems, type, n);
    char name[256], index[128];
    if (at < 0) return DT_OK;
    const char *file = j->files[p->file], *what = dt_st_is_nan(elems, type, at) ? "NaN" : "Inf";
    if (s->state == DT_STATE_PARAM)
        snprintf(name, sizeof name, "%s", s->tensor->name);
    else
        ckpt_slot_name(s, name, sizeof name);
    index_text(s->tensor, first + at, index, sizeof index);
    DT_CHECK(s->of->keeps_nonfinite, DT_ERR_DATA,
             "%s: tensor `%s`: expected finite values, found %s at %s; the file is corrupt, or the run that wrote it "
             "diverged. Use another copy, or an earlier checkpoint",
             file, name, what, index);
    if (!j->warned_nonfinite)
        DT_WARN(
            "%s: tensor `%s`: found %s at %s; non-finite values are converted unchanged, but the model cannot be used",
            file, name, what, index);
    j->warned_nonfinite = true;
    return DT_OK;
}

dt_err load_fail_changed(const load_job *j, const dt_stored_slot *s, const dt_stored_location *p)
{
    return dt_fail(
        DT_ERR_DATA,
        "%s: tensor `%s` differs from the model's tensor and is not trained in this run, so the run's result "
        "would lose it; %s",
        j->files[p->file], s->tensor->name, s->of->keeps_frozen);
}

/* Frozen tensors that must not change: is the file's value, as the state stores it, that of the state? */
static dt_err compare_with_state(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t at,
                                 int64_t n, const void *elems)
{
    char *const own = elems == j->chunks->raw ? j->chunks->converted : j->chunks->raw;
    const size_t size = dt_dtype_size(dt_zero_state_dtype(s->of->zero, s->state, s->owned));
    DT_TRY(dt_zero_state_read(s->of->zero, s->state, s->owned, at, n, own));
    return memcmp(own, elems, (size_t)n * size) == 0 ? DT_OK : load_fail_changed(j, s, p);
}

/* Read this rank's range of a tensor in chunks: read, checksum, convert, store into the state or compare with it. */
static dt_err read_slot(load_job *j, int i)
{
    const dt_stored_slot *s = &j->slots[i];
    const dt_stored_location *p = &j->map.locations[i];
    dt_zero *z = s->of->zero;
    char *const raw = j->chunks->raw, *const converted = j->chunks->converted;
    const dt_st_type type = (dt_st_type)p->type, keep = dt_st_type_of(dt_zero_state_dtype(z, s->state, s->owned));
    const size_t size = dt_st_type_size(type);
    const int64_t step = DT_STORED_BUFFER / 4;
    const bool compares = s->of->keeps_frozen && !s->tensor->trainable;
    if (p->kept || p->elsewhere) return DT_OK;
    if (p->absent) return clear_slot(j, s);
    char *in_place = type == keep && !compares ? dt_zero_state_ptr(z, s->state, s->owned) : NULL;
    for (int64_t at = 0, n; at < s->owned->n; at += n) {
        const int64_t first = s->owned->first + at;
        const dt_tensor_run run = dt_tensor_run_of(s->held, first, dt_min_i64(step, s->owned->n - at));
        char *to = in_place ? in_place + (size_t)at * size : raw;
        n = run.n;
        DT_TRY(dt_phase_poll(j->phase));
        DT_TRY(load_fetch(j, p->as_slot ? &j->slots[p->as_slot - 1] : s, p, run.whole, n, to));
        DT_TRY(check_finite(j, s, p, to, run.whole, n));
        if (p->has_checksum || s->of->base) j->sums[i] += load_checksum(s->slice, to, first, n, run.whole, size);
        if (in_place) continue;
        if (type != keep) dt_st_convert(raw, type, converted, keep, n);
        const char *elems = type == keep ? raw : converted;
        DT_TRY(compares ? compare_with_state(j, s, p, at, n, elems)
                        : dt_zero_state_write(z, s->state, s->owned, at, n, elems));
    }
    return DT_OK;
}

/* Is it computed together with codes, from a plain weight in the file? */
static bool comes_with_codes(const load_job *j, int i)
{
    return j->map.locations[i].quantise && j->slots[i].tensor->part != DT_CODES;
}

/* Collective if weights are quantised: a rank that has failed enters, too. */
static dt_err read_slots(load_job *j)
{
    dt_err err = DT_OK;
    for (int i = 0; i < j->n_slots; i++) {
        const dt_stored_slot *s = &j->slots[i];
        const bool reads = s->owned->n > 0 && err == DT_OK && !comes_with_codes(j, i);
        if (reads) dt_phase_enter(j->phase, "load", s->tensor->name);
        if (reads) err = dt_fault("load.read");
        if (j->map.locations[i].quantise && s->tensor->part == DT_CODES)
            DT_TRY(err = load_quantised(j, i, err));
        else if (reads && err == DT_OK)
            err = read_slot(j, i);
    }
    return err;
}

/* ---- a separate head for a tied embedding ------------------------------------------------------------------------ */

/* Compare elements first .. first+n-1 of head and embedding as floats; their bits must be equal. */
static dt_err compare_part(load_job *j, const dt_stored_slot *head, int64_t first, int64_t n)
{
    const dt_stored_slot *embed = &j->slots[j->map.embed];
    const dt_stored_location *p = &j->map.locations[j->map.embed], *q = &j->map.head;
    const dt_chunks *c = j->chunks;
    char *const raw[2] = {c->raw, c->raw + DT_STORED_BUFFER / 2};
    char *const floats[2] = {c->converted, c->converted + DT_STORED_BUFFER / 2};
    DT_TRY(load_fetch(j, embed, p, first, n, raw[0]));
    DT_TRY(load_fetch(j, head, q, first, n, raw[1]));
    dt_st_convert(raw[0], (dt_st_type)p->type, floats[0], DT_ST_F32, n);
    dt_st_convert(raw[1], (dt_st_type)q->type, floats[1], DT_ST_F32, n);
    DT_CHECK(memcmp(floats[0], floats[1], (size_t)n * sizeof(float)) == 0, DT_ERR_DATA,
             "%s: tensor `%s` differs from `%s`, but the configuration ties the two (tie_word_embeddings = true)",
             j->files[q->file], head->tensor->name, embed->tensor->name);
    return DT_OK;
}

/* Compare part `part` of n_parts equal parts. */
static dt_err compare_head(load_job *j, int part, int n_parts)
{
    if (!j->map.has_head) return DT_OK;
    dt_tensor tensor = *j->slots[j->map.embed].tensor;
    dt_stored_name_head(j->slots[j->map.embed].tensor, tensor.name);
    const dt_stored_slot head = {.of = j->slots[j->map.embed].of, .tensor = &tensor};
    const int64_t each = tensor.n_elems / n_parts + 1, begin = each * part;
    const int64_t end = begin + each < tensor.n_elems ? begin + each : tensor.n_elems, step = DT_STORED_BUFFER / 8;
    dt_phase_enter(j->phase, "load", "lm_head.weight");
    for (int64_t at = begin; at < end; at += step)
        DT_TRY(compare_part(j, &head, at, end - at < step ? end - at : step));
    return DT_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The result is the same on all ranks: sums are those of whole tensors here. */
static dt_err compare(const load_job *j)
{
    const dt_stored_location *locations = j->map.locations;
    char name[256];
    int n_bad = 0, first_bad = -1;
    for (int i = 0; i < j->n_slots; i++) {
        if (!locations[i].has_checksum || j->sums[i] == locations[i].checksum) continue;
        if (n_bad++ == 0) first_bad = i;
    }
    if (n_bad == 0) return DT_OK;
    ckpt_slot_name(&j->slots[first_bad], name, sizeof name);
    DT_CHECK(!locations[first_bad].left_out, DT_ERR_BASE,
             "%s: tensor `%s` of this base model was altered after %s was trained on it: checksum %016" PRIx64
             ", expected %016" PRIx64 " (%d of %d tensors differ)",
             j->files[locations[first_bad].file], j->slots[first_bad].tensor->name, j->path, j->sums[first_bad],
             locations[first_bad].checksum, n_bad, j->n_slots);
    return dt_fail(DT_ERR_DATA,
                   "%s: tensor `%s` was altered: checksum %016" PRIx64 ", expected %016" PRIx64
                   " (%d of %d tensors differ)",
                   j->path, name, j->sums[first_bad], locations[first_bad].checksum, n_bad, j->n_slots);
}

/* Keep the checksums for checkpoints that omit these tensors. */
static dt_err keep_checksums(const load_job *j)
{
    for (int k = 0; k < j->n_models; k++)
        if (j->models[k].base && !j->models[k].has_base) j->models[k].base->n = 0;
    for (int i = 0; i < j->n_slots; i++) {
        const dt_stored_slot *s = &j->slots[i];
        const dt_stored_location *p = &j->map.locations[i];
        if (s->state != DT_STATE_PARAM || s->tensor->trainable || !s->of->base || s->of->has_base) continue;
        if (!p->kept && !p->elsewhere) DT_TRY(dt_base_add(s->of->base, s->tensor->name, j->sums[i]));
    }
    return DT_OK;
}

static void clean_up(load_job *j)
{
    if (j->fd >= 0) close(j->fd);
    if (j->file >= 0) {
        dt_h5_lock();
        H5Fclose(j->file);
        dt_h5_unlock();
    }
    free(j->matrix);
    free(j->map.locations);
    free(j->map.files);
    free(j->files);
    free(j->sums);
}

/* A local error does not keep this rank from the collectives of the other models. */
static dt_err all_written(const load_job *j)
{
    dt_err err = DT_OK;
    dt_phase_enter(j->phase, "load", ""); /* comm.check: ranks have read different tensors */
    for (int k = 0; k < j->n_models && err != DT_ERR_COMM; k++)
        err = dt_first_err(err, dt_zero_state_written(j->models[k].zero));
    return err;
}

/* A head that the file ties to the embedding is read from there (new_head), even if the file has one of that name. */
static void locate_new_head(load_job *j)
{
    for (int i = 0; i < j->n_slots; i++) {
        const dt_saved_model *of = j->slots[i].of;
        const char *name = dt_stored_of_language(j->slots[i].tensor->name);
        if (j->slots[i].state != DT_STATE_PARAM || !of->new_head || strcmp(name, DT_STORED_HEAD) != 0) continue;
        for (int k = 0; k < j->n_slots; k++)
            if (k != i && j->slots[k].of == of && j->slots[k].state == DT_STATE_PARAM &&
                dt_model_is_vocabulary(j->slots[k].tensor))
                j->map.locations[i] = j->map.locations[k], j->map.locations[i].as_slot = 1 + k;
    }
}

static void log_kept(const load_job *j)
{
    int n_adapters = 0, n_projector = 0;
    for (int i = 0; i < j->n_slots && dt_comm_first(j->comm); i++) {
        if (!j->map.locations[i].kept) continue;
        if (j->slots[i].tensor->adapter_scale != 0)
            n_adapters += !j->slots[i].of->adapters_follow && !strstr(j->slots[i].tensor->name, ".lora_magnitude");
        else if (dt_stored_section_of(j->slots[i].tensor->name) == DT_STORED_PROJECTOR)
            n_projector++;
        else
            DT_INFO("%s has no tensor `%s`: it starts from random values", j->path, j->slots[i].tensor->name);
    }
    if (n_projector > 0) DT_INFO("the projector (%d tensors) starts from random values", n_projector);
    if (n_adapters > 0) DT_INFO("%s has no adapters; %d new ones are added", j->path, n_adapters / 2);
}

dt_err dt_stored_load(dt_comm *comm, const dt_saved_model *models, int n_models, const char *path,
                      dt_stored_locator locate, dt_phase *phase)
{
    load_job job = {
        .comm = comm, .models = models, .n_models = n_models, .path = path, .phase = phase, .fd = -1, .file = -1};
    dt_phase_enter(phase, "load", "open");
    dt_err err = dt_comm_agree(comm, prepare(&job));
    if (err == DT_OK)
        err = dt_comm_agree(comm, dt_comm_first(comm) ? locate(path, job.slots, job.n_slots, &job.map) : DT_OK);
    if (err == DT_OK && dt_comm_first(comm)) locate_new_head(&job);
    if (err == DT_OK) err = share(&job);
    if (err == DT_OK) log_kept(&job);
    if (err == DT_OK) err = dt_comm_agree(comm, read_slots(&job));
    if (err == DT_OK) err = dt_comm_sum_host_u64(dt_comm_all(comm), job.sums, job.n_slots);
    if (err == DT_OK) err = dt_comm_agree(comm, compare(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, keep_checksums(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, compare_head(&job, comm->mesh.sum.rank, comm->mesh.sum.size));
    if (err == DT_OK) err = dt_comm_agree(comm, all_written(&job));
    clean_up(&job);
    dt_chunks_give_back(job.chunks, comm);
    free(job.slots);
    return err;
}

/* Read a whole tensor: check that its values are finite, and compute its checksum if it has one to be compared with. */
static dt_err verify_slot(load_job *j, int i)
{
    dt_tensor tensor;
    const dt_stored_location *p = &j->map.locations[i];
    const dt_stored_slot s = p->quantise ? dt_stored_plain(&j->slots[i], &tensor) : j->slots[i];
    const int64_t step = DT_STORED_BUFFER / (int64_t)sizeof(float);
    dt_phase_enter(j->phase, "verify", s.tensor->name);
    for (int64_t at = 0; at < s.tensor->n_elems; at += step) {
        const int64_t n = dt_min_i64(step, s.tensor->n_elems - at);
        DT_TRY(dt_phase_poll(j->phase));
        DT_TRY(load_fetch(j, &s, p, at, n, j->chunks->raw));
        DT_TRY(check_finite(j, &s, p, j->chunks->raw, at, n));
        if (p->has_checksum) j->sums[i] += dt_checksum(j->chunks->raw, at, n, dt_st_type_size((dt_st_type)p->type));
    }
    return DT_OK;
}

/* Checksums of omitted tensors are in the checkpoint. Those of the file are verified with the file. */
static dt_err verify_slots(load_job *j)
{
    for (int i = 0; i < j->n_slots; i++) {
        dt_stored_location *p = &j->map.locations[i];
        const bool is_read = !p->kept && !p->elsewhere && !p->absent && !comes_with_codes(j, i);
        p->has_checksum &= p->left_out && is_read;
        if (is_read) DT_TRY(verify_slot(j, i));
    }
    return compare(j);
}

dt_err dt_stored_verify(const char *path, dt_stored_locator locate, dt_stored_slot *slots, int n_slots, dt_phase *phase)
{
    char *memory = malloc(DT_CHUNKS_NBYTES); /* called without a run, hence without its buffers */
    dt_chunks chunks = {.raw = memory, .converted = memory ? memory + DT_STORED_BUFFER : NULL};
    load_job job = {
        .path = path, .slots = slots, .n_slots = n_slots, .fd = -1, .file = -1, .chunks = &chunks, .phase = phase};
    dt_err err = memory ? alloc_lists(&job) : dt_fail(DT_ERR_MEMORY, "%s: out of memory to read it", path);
    if (err == DT_OK) err = locate(path, slots, n_slots, &job.map);
    if (err == DT_OK) err = list_files(&job);
    if (err == DT_OK) err = compare_head(&job, 0, 1);
    if (err == DT_OK) err = verify_slots(&job);
    clean_up(&job);
    free(memory);
    return err;
}

dt_err dt_checkpoint_load_all(dt_comm *comm, const dt_saved_model *models, int n_models, const char *path,
                              dt_phase *phase)
{
    return dt_stored_load(comm, models, n_models, path, dt_checkpoint_locate, phase);
}

dt_err dt_checkpoint_verify_models(const char *path, const dt_saved_model *models, int n_models, dt_phase *phase)
{
    dt_stored_slot *slots;
    int n_slots;
    DT_TRY(dt_stored_slots(models, n_models, &slots, &n_slots));
    const dt_err err = dt_stored_verify(path, dt_checkpoint_locate, slots, n_slots, phase);
    free(slots);
    return err;
}

dt_err dt_checkpoint_fits(const char *path, const dt_saved_model *models, int n_models)
{
    dt_stored_slot *slots;
    int n_slots;
    DT_TRY(dt_stored_slots(models, n_models, &slots, &n_slots));
    dt_stored_map map = {.locations = calloc((size_t)n_slots + 1, sizeof *map.locations)};
    const dt_err err = map.locations ? dt_checkpoint_locate(path, slots, n_slots, &map)
                                     : dt_fail(DT_ERR_MEMORY, "out of memory for a list of %d tensors", n_slots);
    free(map.locations);
    free(map.files);
    free(slots);
    return err;
}
