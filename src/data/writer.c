/* writer.c - arrays grow in spools; the commit makes one HDF5 file of them. A full disk shows before the copying: the file gets its whole size
 * first (posix_fallocate), because HDF5 may learn of it only when it is closed, when nothing can be said any more. */
#include "dtrain/dataset.h"
#include "dtrain/io.h"
#include "spool.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COPY_NBYTES = 1 << 20, PIECE = 4096 };

struct dt_dataset_writer {
    char *path, *part, *tokenizer;
    dt_dataset_kind kind;
    int64_t vocab_size;
    bool with_weights, open_document;
    int64_t n_documents;
    dt_spool tokens, offsets, loss_mask, weights; /* path NULL: not written */
};

static void free_writer(dt_dataset_writer *w)
{
    dt_spool_close(&w->tokens);
    dt_spool_close(&w->offsets);
    dt_spool_close(&w->loss_mask);
    dt_spool_close(&w->weights);
    free(w->path);
    free(w->part);
    free(w->tokenizer);
    free(w);
}

static dt_err open_spools(dt_dataset_writer *w)
{
    const uint64_t zero = 0;
    DT_TRY(dt_spool_open(&w->tokens, w->path, w->vocab_size <= 65536 ? 2 : 4));
    DT_TRY(dt_spool_open(&w->offsets, w->path, 8));
    if (w->kind == DT_DATASET_SFT) DT_TRY(dt_spool_open(&w->loss_mask, w->path, 1));
    if (w->with_weights) DT_TRY(dt_spool_open(&w->weights, w->path, 4));
    return dt_spool_add(&w->offsets, &zero, 1);
}

dt_err dt_dataset_create(dt_dataset_writer **out, const char *path, dt_dataset_kind kind, int64_t vocab_size,
                         const char *tokenizer, bool with_weights)
{
    *out = NULL;
    DT_TRY(dt_check_replaceable(path)); /* now, not after all has been read */
    DT_CHECK(vocab_size >= 1 && vocab_size <= INT32_MAX, DT_ERR_ARG, "%s: vocab_size %" PRId64 ", expected 1 to %d", path,
             vocab_size, INT32_MAX);
    dt_dataset_writer *w = calloc(1, sizeof *w);
    DT_CHECK(w, DT_ERR_MEMORY, "%s: no memory for a writer", path);
    *w = (dt_dataset_writer){.kind = kind, .vocab_size = vocab_size, .with_weights = with_weights && kind == DT_DATASET_SFT};
    w->path = strdup(path);
    w->tokenizer = strdup(tokenizer ? tokenizer : "");
    dt_err err = DT_OK;
    if (!w->path || !w->tokenizer || asprintf(&w->part, "%s.part", path) < 0) {
        w->part = NULL;
        err = dt_fail(DT_ERR_MEMORY, "%s: no memory for a writer", path);
    }
    if (err == DT_OK) err = open_spools(w);
    if (err != DT_OK) {
        free_writer(w);
        return err;
    }
    *out = w;
    return DT_OK;
}

static dt_err add_narrow(dt_dataset_writer *w, const int32_t *ids, int64_t n)
{
    uint16_t piece[PIECE];
    for (int64_t first = 0; first < n; first += PIECE) {
        const int64_t k = n - first < PIECE ? n - first : PIECE;
        for (int64_t i = 0; i < k; i++) piece[i] = (uint16_t)ids[first + i];
        DT_TRY(dt_spool_add(&w->tokens, piece, k));
    }
    return DT_OK;
}

dt_err dt_dataset_add(dt_dataset_writer *w, const int32_t *ids, const uint8_t *mask, int64_t n)
{
    DT_CHECK((mask != NULL) == (w->kind == DT_DATASET_SFT) || n == 0, DT_ERR_ARG, "%s: kind %s and %s loss mask", w->path,
             dt_dataset_kind_name(w->kind), mask ? "a" : "no");
    for (int64_t i = 0; i < n; i++)
        DT_CHECK(ids[i] >= 0 && ids[i] < w->vocab_size, DT_ERR_ARG, "%s: token id %" PRId32 ", expected 0 to %" PRId64, w->path,
                 ids[i], w->vocab_size - 1);
    w->open_document = true;
    DT_TRY(w->tokens.elem_size == 2 ? add_narrow(w, ids, n) : dt_spool_add(&w->tokens, ids, n));
    return mask ? dt_spool_add(&w->loss_mask, mask, n) : DT_OK;
}

dt_err dt_dataset_end_document(dt_dataset_writer *w, float weight)
{
    const uint64_t end = (uint64_t)w->tokens.n_elems;
    w->open_document = false;
    w->n_documents++;
    DT_TRY(dt_spool_add(&w->offsets, &end, 1));
    return w->with_weights ? dt_spool_add(&w->weights, &weight, 1) : DT_OK;
}

/* ---- the HDF5 file ----------------------------------------------------------------------------------------------------- */

typedef struct output {
    const dt_spool *from;
    const char *name;
    hid_t file_type, mem_type, dset;
} output;

static dt_err create_array(const dt_dataset_writer *w, hid_t file, output *o)
{
    const hsize_t n = (hsize_t)o->from->n_elems;
    const hid_t space = H5Screate_simple(1, &n, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    if (space >= 0 && plist >= 0 && H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY) >= 0 &&
        H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER) >= 0 &&
        H5Pset_obj_track_times(plist, false) >= 0) /* equal content, equal bytes */
        o->dset = H5Dcreate2(file, o->name, o->file_type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    if (space >= 0) H5Sclose(space);
    if (plist >= 0) H5Pclose(plist);
    if (o->dset < 0) return dt_h5_fail(DT_ERR_WRITE, w->part, o->name);
    return dt_h5_write_u64(o->dset, w->part, "checksum", o->from->checksum);
}

static dt_err write_attributes(const dt_dataset_writer *w, hid_t file)
{
    DT_TRY(dt_h5_write_text(file, w->part, "format", "dtrain-dataset"));
    DT_TRY(dt_h5_write_i64(file, w->part, "version", 1));
    DT_TRY(dt_h5_write_text(file, w->part, "kind", dt_dataset_kind_name(w->kind)));
    DT_TRY(dt_h5_write_i64(file, w->part, "vocab_size", w->vocab_size));
    return w->tokenizer[0] ? dt_h5_write_text(file, w->part, "tokenizer", w->tokenizer) : DT_OK;
}

static dt_err claim_space(const dt_dataset_writer *w, hid_t file)
{
    hsize_t nbytes = 0;
    if (H5Fflush(file, H5F_SCOPE_LOCAL) < 0 || H5Fget_filesize(file, &nbytes) < 0)
        return dt_h5_fail(DT_ERR_WRITE, w->part, "cannot write");
    const int fd = open(w->part, O_WRONLY | O_CLOEXEC);
    const int status = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)nbytes);
    if (fd >= 0) close(fd);
    char text[24];
    DT_CHECK(status == 0 || status == EOPNOTSUPP || status == EINVAL, DT_ERR_WRITE, "%s: no room for %s: %s", w->part,
             dt_format_bytes((double)nbytes, text), strerror(status));
    return DT_OK;
}

static dt_err copy_array(const dt_dataset_writer *w, const output *o, char *buffer)
{
    const int64_t piece = COPY_NBYTES / o->from->elem_size;
    for (int64_t first = 0; first < o->from->n_elems; first += piece) {
        const int64_t left = o->from->n_elems - first, k = left < piece ? left : piece;
        DT_TRY(dt_spool_read(o->from, first, k, buffer));
        const hsize_t start = (hsize_t)first, count = (hsize_t)k;
        const hid_t to = H5Dget_space(o->dset), mem = H5Screate_simple(1, &count, NULL);
        herr_t ok = to < 0 || mem < 0 ? -1 : H5Sselect_hyperslab(to, H5S_SELECT_SET, &start, NULL, &count, NULL);
        if (ok >= 0) ok = H5Dwrite(o->dset, o->mem_type, mem, to, H5P_DEFAULT, buffer);
        const dt_err err = ok >= 0 ? DT_OK : dt_h5_fail(DT_ERR_WRITE, w->part, o->name);
        if (to >= 0) H5Sclose(to);
        if (mem >= 0) H5Sclose(mem);
        if (err != DT_OK) return err;
    }
    return DT_OK;
}

static dt_err fill_file(const dt_dataset_writer *w, hid_t file, char *buffer)
{
    output outputs[] = {
        {&w->tokens, "tokens", w->tokens.elem_size == 2 ? H5T_STD_U16LE : H5T_STD_U32LE,
         w->tokens.elem_size == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32, -1},
        {&w->offsets, "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, -1},
        {&w->loss_mask, "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, -1},
        {&w->weights, "weights", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, -1},
    };
    enum { N = sizeof outputs / sizeof outputs[0] };
    dt_err err = write_attributes(w, file);
    for (int i = 0; i < N && err == DT_OK; i++)
        if (outputs[i].from->path) err = create_array(w, file, &outputs[i]);
    if (err == DT_OK) err = claim_space(w, file);
    for (int i = 0; i < N && err == DT_OK; i++)
        if (outputs[i].from->path) err = copy_array(w, &outputs[i], buffer);
    for (int i = 0; i < N; i++)
        if (outputs[i].dset >= 0 && H5Dclose(outputs[i].dset) < 0 && err == DT_OK)
            err = dt_h5_fail(DT_ERR_WRITE, w->part, outputs[i].name);
    return err;
}

static dt_err write_part(const dt_dataset_writer *w)
{
    char *buffer = malloc(COPY_NBYTES);
    DT_CHECK(buffer, DT_ERR_MEMORY, "%s: no memory for a buffer", w->part);
    dt_h5_lock();
    const hid_t file = H5Fcreate(w->part, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    dt_err err = file < 0 ? dt_h5_fail(DT_ERR_WRITE, w->part, "cannot create") : fill_file(w, file, buffer);
    if (file >= 0 && H5Fclose(file) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, w->part, "cannot close");
    dt_h5_unlock();
    free(buffer);
    return err;
}

static dt_err make_durable(const dt_dataset_writer *w)
{
    const int fd = open(w->part, O_RDONLY | O_CLOEXEC);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    const int number = errno;
    if (fd >= 0) close(fd);
    DT_CHECK(ok, DT_ERR_WRITE, "%s: cannot sync: %s", w->part, strerror(number));
    return dt_rename_durable(w->part, w->path);
}

static dt_err finish(dt_dataset_writer *w)
{
    if (w->open_document) DT_TRY(dt_dataset_end_document(w, 1));
    dt_spool *spools[] = {&w->tokens, &w->offsets, &w->loss_mask, &w->weights};
    for (size_t i = 0; i < sizeof spools / sizeof spools[0]; i++)
        if (spools[i]->path) DT_TRY(dt_spool_finish(spools[i]));
    DT_TRY(write_part(w));
    return make_durable(w);
}

dt_err dt_dataset_commit(dt_dataset_writer *w)
{
    const dt_err err = finish(w);
    if (err != DT_OK) unlink(w->part);
    free_writer(w);
    return err;
}

void dt_dataset_discard(dt_dataset_writer *w)
{
    if (w) free_writer(w);
}
