/* commit.c - converts temporary arrays to one or several HDF5 files of plain arrays. posix_fallocate
 * reserves each file's full size before copying, so that a full disk is reported then. HDF5 may otherwise
 * detect it only in H5Fclose, which cannot be recovered.
 *
 * All files are written completely under temporary names before the first is renamed. */
#include "blocks.h"
#include "writer.h"
#include "../kinds/kinds.h"
#include "dtrain/io/io.h"
#include "dtrain/io/seal.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_NBYTES = 1 << 20 };

/* One file: samples first .. first+n-1, and the range of their elements in each part. Elements are tokens (both sides),
 * bytes (records) or images. */
typedef struct shard {
    char *path, *part;
    int64_t first, n;
    uint64_t token[DT_N_DATA_PARTS], token_end[DT_N_DATA_PARTS];
} shard;

typedef struct commit {
    dt_dataset_writer *w;
    dt_commit how;
    shard *shards;
    int64_t n_shards;
    char *buffer;   /* [COPY_NBYTES], or one image if that is larger */
    uint64_t *sums; /* of the blocks that a buffer can hold */
} commit;

/* An array of a file, and its range of the temporary array. */
typedef struct output {
    const dt_temp_array *from;
    const char *name;
    int64_t first, n;
    uint64_t base;      /* subtracted from elements: offsets count from the shard's first token */
    hsize_t image_size; /* S of images [n, S, S, 3]; 0: elements are scalars */
    int type;           /* DT_ARRAY_ */
    hid_t dset;
    int64_t first_block; /* in /block_checksums; -1: that array itself */
} output;

/* Length of the dataset's path without .h5: the common stem of its shards' names. */
static int stem_len(const char *path) { return (int)strlen(path) - (dt_has_ending(path, ".h5") ? 3 : 0); }

static bool is_alone(const commit *k) { return k->how.n_shards == 0 && k->how.shard_nbytes == 0; }

/* ---- cutting samples into shards --------------------------------------------------------------------------------- */

static dt_err offset_at(const dt_dataset_writer *w, int side, int64_t i, uint64_t *value)
{
    const dt_temp_array *s = &w->column[dt_part_offsets(side)];
    *value = 0;
    return s->path ? dt_temp_array_read(s, i, 1, value) : DT_OK;
}

/* Bytes of all arrays before sample i. */
static dt_err nbytes_before(const dt_dataset_writer *w, int64_t i, uint64_t *nbytes)
{
    *nbytes = 0;
    for (int c = 0; c < DT_N_COLUMNS; c++) {
        if (!w->wanted[c]) continue;
        uint64_t n = (uint64_t)i;
        if (dt_columns[c].per == DT_PER_TOKEN) DT_TRY(offset_at(w, dt_columns[c].part, i, &n));
        *nbytes += n * (uint64_t)w->column[c].elem_size;
    }
    return DT_OK;
}

/* The smallest i in lo .. hi with nbytes_before(i) >= goal; hi if there is none. */
static dt_err sample_at(const dt_dataset_writer *w, uint64_t goal, int64_t lo, int64_t hi, int64_t *out)
{
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        uint64_t nbytes;
        DT_TRY(nbytes_before(w, mid, &nbytes));
        if (nbytes >= goal)
            hi = mid;
        else
            lo = mid + 1;
    }
    *out = lo;
    return DT_OK;
}

/* Add the shard of samples first .. end-1. */
static dt_err add_shard(commit *k, int64_t first, int64_t end)
{
    DT_GROW(k->shards, k->n_shards, "%s: out of memory for %" PRId64 " shards", k->w->path, k->n_shards + 1);
    shard *s = &k->shards[k->n_shards++];
    *s = (shard){.first = first, .n = end - first};
    for (int side = 0; side < DT_N_DATA_PARTS; side++) {
        DT_TRY(offset_at(k->w, side, first, &s->token[side]));
        DT_TRY(offset_at(k->w, side, end, &s->token_end[side]));
    }
    return DT_OK;
}

/* Cut into n_shards of about equal size: shard s ends at the first sample at or beyond total * (s + 1) / n_shards
 * bytes. */
static dt_err cut_equal(commit *k)
{
    const int64_t n = k->w->n_documents, n_shards = k->how.n_shards;
    DT_CHECK(n >= n_shards, DT_ERR_DATA,
             "%s: too few samples for the shards: expected at least %" PRId64 ", one for each shard, found %" PRId64,
             k->w->path, n_shards, n);
    uint64_t total;
    DT_TRY(nbytes_before(k->w, n, &total));
    for (int64_t s = 0, first = 0; s < n_shards; s++) { /* leave at least one sample for each shard */
        int64_t end = n;
        const uint64_t goal = (uint64_t)((double)total * (double)(s + 1) / (double)n_shards);
        if (s + 1 < n_shards) DT_TRY(sample_at(k->w, goal, first + 1, n - (n_shards - s - 1), &end));
        DT_TRY(add_shard(k, first, end));
        first = end;
    }
    return DT_OK;
}

/* As many samples as fit into shard_nbytes, at least one. */
static dt_err cut_by_size(commit *k)
{
    const int64_t n = k->w->n_documents;
    for (int64_t first = 0; first < n;) {
        uint64_t from, until;
        int64_t end;
        DT_TRY(nbytes_before(k->w, first, &from));
        DT_TRY(sample_at(k->w, from + k->how.shard_nbytes, first + 1, n, &end));
        DT_TRY(nbytes_before(k->w, end, &until));
        if (end > first + 1 && until - from > k->how.shard_nbytes) end--;
        DT_TRY(add_shard(k, first, end));
        first = end;
    }
    return DT_OK;
}

static dt_err name_shards(commit *k)
{
    const char *path = k->w->path;
    for (int64_t i = 0; i < k->n_shards; i++) {
        shard *s = &k->shards[i];
        const int made = is_alone(k) ? asprintf(&s->path, "%s", path)
                                     : asprintf(&s->path, "%.*s-%05" PRId64 "-of-%05" PRId64 ".h5", stem_len(path),
                                                path, i, k->n_shards);
        if (made < 0) s->path = NULL;
        if (s->path && asprintf(&s->part, "%s.part", s->path) < 0) s->part = NULL;
        DT_CHECK(s->path && s->part, DT_ERR_MEMORY, "%s: out of memory for a file name", path);
        DT_TRY(dt_check_replaceable(s->path));
        if (k->how.keep_existing) DT_TRY(dt_check_output(s->path, false, NULL, 0));
        DT_TRY(dt_check_output(s->path, true, k->how.inputs, k->how.n_inputs));
    }
    return DT_OK;
}

/* The dash before the number that ends at `end` in a shard's name; NULL: no such number. */
static const char *number_before(const char *path, const char *end)
{
    const char *p = end;
    while (p > path && isdigit((unsigned char)p[-1])) p--;
    return end - p >= 5 && p > path && p[-1] == '-' ? p - 1 : NULL;
}

bool dt_is_shard_of(const char *path, const char *of)
{
    char stem[PATH_MAX], stem_of[PATH_MAX];
    const char *count = dt_has_ending(path, ".h5") ? number_before(path, path + stem_len(path)) : NULL;
    const bool has_of = count && count - path > 3 && strncmp(count - 3, "-of", 3) == 0;
    const char *number = has_of ? number_before(path, count - 3) : NULL;
    if (!number || (size_t)(number - path) >= sizeof stem || (size_t)stem_len(of) >= sizeof stem_of) return false;
    snprintf(stem, sizeof stem, "%.*s", (int)(number - path), path);
    snprintf(stem_of, sizeof stem_of, "%.*s", stem_len(of), of);
    return dt_is_same_place(stem, stem_of);
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

/* Create an empty array with early allocation and no fill, so that claim_space knows the final file size. */
static dt_err create_array(const shard *s, hid_t file, output *o)
{
    const hsize_t n[4] = {(hsize_t)o->n, o->image_size, o->image_size, 3};
    const hid_t space = H5Screate_simple(o->image_size ? 4 : 1, n, NULL), plist = H5Pcreate(H5P_DATASET_CREATE),
                link = H5Pcreate(H5P_LINK_CREATE);
    if (space >= 0 && plist >= 0 && link >= 0 && H5Pset_create_intermediate_group(link, 1) >= 0 &&
        H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY) >= 0 && H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER) >= 0 &&
        H5Pset_obj_track_times(plist, false) >= 0) /* identical content gives identical files */
        o->dset = H5Dcreate2(file, o->name, dt_array_hdf5_type(o->type, true), space, link, plist, H5P_DEFAULT);
    if (space >= 0) H5Sclose(space);
    if (plist >= 0) H5Pclose(plist);
    if (link >= 0) H5Pclose(link);
    if (o->dset < 0) return dt_h5_fail(DT_ERR_WRITE, s->part, o->name);
    if (o->first_block >= 0) DT_TRY(dt_h5_write_i64(o->dset, s->part, "first_block", o->first_block));
    return dt_h5_write_u64(o->dset, s->part, "checksum", 0); /* reserves space; copying overwrites it */
}

static dt_err set_checksum(const shard *s, const output *o, uint64_t sum)
{
    const hid_t a = H5Aopen(o->dset, "checksum", H5P_DEFAULT);
    const bool ok = a >= 0 && H5Awrite(a, H5T_NATIVE_UINT64, &sum) >= 0;
    const dt_err err = ok ? DT_OK : dt_h5_fail(DT_ERR_WRITE, s->part, o->name);
    if (a >= 0) H5Aclose(a);
    return err;
}

static dt_err write_image_attributes(const dt_image_form *form, const shard *s, hid_t file)
{
    DT_TRY(dt_h5_write_i64(file, s->part, "image_token", form->token));
    DT_TRY(dt_h5_write_i64(file, s->part, "image_tokens", form->n_tokens));
    return dt_h5_write_text(file, s->part, "preprocessor", form->preprocessor);
}

static dt_err write_attributes(const dt_dataset_writer *w, const shard *s, hid_t file)
{
    DT_TRY(dt_h5_write_text(file, s->part, "format", "dtrain-dataset"));
    DT_TRY(dt_h5_write_i64(file, s->part, "version", 1));
    DT_TRY(dt_h5_write_text(file, s->part, "kind", dt_dataset_kind_name(w->kind)));
    DT_TRY(dt_h5_write_i64(file, s->part, "vocab_size", dt_max_i64(w->n_own, w->largest + 1)));
    /* The seal is written when the file is closed. This attribute detects a file that has lost its seal. */
    DT_TRY(dt_h5_write_i64(file, s->part, "sealed", 1));
    if (w->chat_template) DT_TRY(dt_h5_write_text(file, s->part, "chat_template", w->chat_template));
    if (w->images.size) DT_TRY(write_image_attributes(&w->images, s, file));
    const dt_kind *kind = dt_kind_of(w->kind);
    if (kind->write_head) DT_TRY(kind->write_head(w, s->first, s->n, file, s->part));
    return w->tokenizer[0] ? dt_h5_write_text(file, s->part, "tokenizer", w->tokenizer) : DT_OK;
}

/* Reserve the whole file, which detects a full disk. If the file system cannot reserve, a later write reports the full
 * disk. */
static dt_err claim_space(const shard *s, hid_t file)
{
    hsize_t nbytes = 0;
    if (H5Fflush(file, H5F_SCOPE_LOCAL) < 0 || H5Fget_filesize(file, &nbytes) < 0)
        return dt_h5_fail(DT_ERR_WRITE, s->part, "cannot write");
    const int fd = open(s->part, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    const int status = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)nbytes);
    if (fd >= 0) close(fd);
    char text[24];
    DT_CHECK(status == 0 || status == EOPNOTSUPP || status == EINVAL, DT_ERR_WRITE, "%s: not enough space for %s: %s",
             s->part, dt_format_bytes((double)nbytes, text), strerror(status));
    return DT_OK;
}

static dt_err write_chunk(const shard *s, const output *o, int64_t first, int64_t n, const char *buffer)
{
    const hsize_t start[4] = {(hsize_t)first}, count[4] = {(hsize_t)n, o->image_size, o->image_size, 3};
    const hid_t to = H5Dget_space(o->dset), mem = H5Screate_simple(o->image_size ? 4 : 1, count, NULL);
    herr_t ok = to < 0 || mem < 0 ? -1 : H5Sselect_hyperslab(to, H5S_SELECT_SET, start, NULL, count, NULL);
    if (ok >= 0) ok = H5Dwrite(o->dset, dt_array_hdf5_type(o->type, false), mem, to, H5P_DEFAULT, buffer);
    const dt_err err = ok >= 0 ? DT_OK : dt_h5_fail(DT_ERR_WRITE, s->part, o->name);
    if (to >= 0) H5Sclose(to);
    if (mem >= 0) H5Sclose(mem);
    return err;
}

/* Copy from the temporary array to the file, one buffer at a time, computing checksums. Offsets become
 * relative to the shard. */
static dt_err copy_array(const commit *k, const shard *s, const output *o, const output *blocks, uint64_t *blocks_sum)
{
    const int64_t chunk = dt_max_i64(1, COPY_NBYTES / o->from->elem_size);
    int64_t block = o->first_block;
    dt_block_sums sums = {0};
    for (int64_t first = 0; first < o->n; first += chunk) {
        const int64_t n = o->n - first < chunk ? o->n - first : chunk;
        DT_CHECK(!k->how.stop || !atomic_load(k->how.stop), DT_ERR_STOP, "stopped before %s was complete", s->path);
        DT_TRY(dt_temp_array_read(o->from, o->first + first, n, k->buffer));
        uint64_t *offset = (uint64_t *)(void *)k->buffer;
        for (int64_t i = 0; o->base && i < n; i++) offset[i] -= o->base;
        DT_TRY(write_chunk(s, o, first, n, k->buffer));
        const int n_sums = dt_block_sums_add(&sums, k->buffer, first, n, o->from->elem_size, o->image_size > 0,
                                             first + n == o->n, k->sums);
        if (n_sums > 0) DT_TRY(write_chunk(s, blocks, block, n_sums, (const char *)k->sums));
        *blocks_sum += dt_checksum(k->sums, block, n_sums, sizeof *k->sums);
        block += n_sums;
    }
    return set_checksum(s, o, sums.total);
}

/* List the arrays of one shard. Per-token arrays use the shard's token range, per-sample arrays its sample
 * range; offsets have one more element. Returns their number. */
static int list_outputs(const dt_dataset_writer *w, const shard *s, output *outputs)
{
    int n = 0;
    for (int c = 0; c < DT_N_COLUMNS; c++) {
        if (!w->wanted[c]) continue;
        const int side = dt_columns[c].part, types = dt_columns[c].types;
        const dt_per per = dt_columns[c].per;
        output *o = &outputs[n++];
        *o = (output){.from = &w->column[c],
                      .name = dt_kind_of(w->kind)->column[c].name,
                      .first = s->first,
                      .n = s->n,
                      .image_size = c == DT_COL_PIXELS ? (hsize_t)w->images.size : 0,
                      .type = types & DT_ARRAY_U16 ? w->column[c].elem_size : types, /* ids: either of two types */
                      .dset = -1};
        if (per == DT_PER_TOKEN)
            o->first = (int64_t)s->token[side], o->n = (int64_t)(s->token_end[side] - s->token[side]);
        if (per == DT_PER_OFFSET) o->n = s->n + 1, o->base = s->token[side];
    }
    return n;
}

/* The array of the block checksums of n outputs. Sets the outputs' first_block. */
static output list_blocks(output *outputs, int n)
{
    int64_t n_blocks = 0;
    for (int i = 0; i < n; i++) {
        outputs[i].first_block = n_blocks;
        n_blocks += dt_blocks_of(outputs[i].n * outputs[i].from->elem_size);
    }
    return (output){.name = "block_checksums", .n = n_blocks, .type = DT_ARRAY_U64, .dset = -1, .first_block = -1};
}

/* Byte ranges of the non-empty arrays. Block checksums are not included: the seal covers them. */
static int find_ranges(const output *outputs, int n, dt_byte_range ranges[DT_N_COLUMNS])
{
    int n_ranges = 0;
    for (int i = 0; i < n; i++) {
        const haddr_t at = outputs[i].n > 0 ? H5Dget_offset(outputs[i].dset) : HADDR_UNDEF;
        if (at != HADDR_UNDEF)
            ranges[n_ranges++] = (dt_byte_range){(int64_t)at, outputs[i].n * outputs[i].from->elem_size};
    }
    dt_byte_ranges_sort(ranges, n_ranges);
    return n_ranges;
}

static dt_err fill_file(const commit *k, const shard *s, hid_t file, dt_byte_range ranges[DT_N_COLUMNS], int *n_ranges)
{
    output outputs[DT_N_COLUMNS + 1];
    const int n = list_outputs(k->w, s, outputs);
    output *blocks = &outputs[n];
    uint64_t blocks_sum = 0;
    *blocks = list_blocks(outputs, n);
    dt_err err = write_attributes(k->w, s, file);
    for (int i = 0; i <= n && err == DT_OK; i++) err = create_array(s, file, &outputs[i]);
    if (err == DT_OK) err = claim_space(s, file);
    for (int i = 0; i < n && err == DT_OK; i++) err = copy_array(k, s, &outputs[i], blocks, &blocks_sum);
    if (err == DT_OK) err = set_checksum(s, blocks, blocks_sum);
    if (err == DT_OK) *n_ranges = find_ranges(outputs, n, ranges);
    for (int i = 0; i <= n; i++)
        if (outputs[i].dset >= 0 && H5Dclose(outputs[i].dset) < 0 && err == DT_OK)
            err = dt_h5_fail(DT_ERR_WRITE, s->part, outputs[i].name);
    return err;
}

static dt_err seal_part(const char *part, const dt_byte_range *ranges, int n)
{
    struct stat st;
    const int fd = open(part, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    DT_CHECK_ERRNO(fd >= 0, DT_ERR_WRITE, part, "cannot be reopened");
    const dt_err err = fstat(fd, &st) == 0 ? dt_seal_write(fd, part, (int64_t)st.st_size, ranges, n)
                                           : dt_fail_errno(DT_ERR_WRITE, part, NULL);
    return dt_close_written(fd, part, true, err);
}

/* Open without HDF5's own lock. On NFS, where flock and fcntl locks are the same, it would conflict with our lock on
 * the .part file. */
static hid_t create_hdf5(const char *part)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t file = -1;
    if (access >= 0 && H5Pset_file_locking(access, false, true) >= 0)
        file = H5Fcreate(part, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (access >= 0) H5Pclose(access);
    return file;
}

/* Write one file under its .part name: arrays, then the seal over everything else, then fsync. */
static dt_err write_part(const commit *k, const shard *s)
{
    dt_byte_range ranges[DT_N_COLUMNS];
    int n_ranges = 0;
    DT_TRY(dt_create_empty_file(s->part));
    dt_h5_lock();
    const hid_t file = create_hdf5(s->part);
    dt_err err =
        file < 0 ? dt_h5_fail(DT_ERR_WRITE, s->part, "cannot create") : fill_file(k, s, file, ranges, &n_ranges);
    if (file >= 0 && H5Fclose(file) < 0 && err == DT_OK) err = dt_h5_fail(DT_ERR_WRITE, s->part, "cannot close");
    dt_h5_unlock();
    return err == DT_OK ? seal_part(s->part, ranges, n_ranges) : err;
}

/* ---- all files of a dataset -------------------------------------------------------------------------------------- */

/* Warn of shards of an earlier run with another shard count, which a glob of the new shards would include. */
static void warn_of_others(const commit *k)
{
    const int stem = stem_len(k->w->path);
    char *pattern = NULL, ours[32];
    glob_t found = {0};
    snprintf(ours, sizeof ours, "-of-%05" PRId64 ".h5", k->n_shards);
    if (asprintf(&pattern, "%.*s-[0-9]*-of-[0-9]*.h5", stem, k->w->path) < 0) return;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            if (!strstr(found.gl_pathv[i] + stem, ours)) {
                DT_WARN("%s is a shard of another dataset with this name: a pattern such as NAME-*.h5 matches both",
                        found.gl_pathv[i]);
                break;
            }
    globfree(&found);
    free(pattern);
}

/* Write all files of a dataset under their .part names. publish renames them afterwards. */
static dt_err prepare(commit *k)
{
    dt_dataset_writer *w = k->w;
    if (w->open_document) DT_TRY(dt_dataset_end_document(w, 1));
    for (int c = 0; c < DT_N_COLUMNS; c++)
        if (w->column[c].path) DT_TRY(dt_temp_array_finish(&w->column[c]));
    DT_TRY(is_alone(k) ? add_shard(k, 0, w->n_documents) : k->how.n_shards ? cut_equal(k) : cut_by_size(k));
    DT_TRY(name_shards(k));
    const size_t nbytes = (size_t)dt_max_i64(COPY_NBYTES, w->column[DT_COL_PIXELS].elem_size);
    k->buffer = malloc(nbytes);
    k->sums = malloc((nbytes / DT_BLOCK_NBYTES + 2) * sizeof *k->sums);
    DT_CHECK(k->buffer && k->sums, DT_ERR_MEMORY, "%s: out of memory for a buffer", w->path);
    for (int64_t i = 0; i < k->n_shards; i++) DT_TRY(write_part(k, &k->shards[i]));
    return DT_OK;
}

static dt_err publish(const commit *k)
{
    for (int64_t i = 0; i < k->n_shards; i++) DT_TRY(dt_rename_durable(k->shards[i].part, k->shards[i].path));
    if (!is_alone(k)) warn_of_others(k);
    return DT_OK;
}

static void end(commit *k, bool failed)
{
    for (int64_t i = 0; i < k->n_shards; i++) {
        if (failed && k->shards[i].part) dt_remove_part(k->shards[i].part);
        free(k->shards[i].path);
        free(k->shards[i].part);
    }
    free(k->shards);
    free(k->buffer);
    free(k->sums);
    dt_dataset_discard(k->w);
}

dt_err dt_datasets_commit(dt_dataset_writer **w, dt_commit *how, int n)
{
    commit k[2] = {0};
    DT_CHECK(n >= 1 && n <= 2, DT_ERR_ARG, "internal: dt_datasets_commit: expected n from 1 to 2, found %d", n);
    dt_err err = DT_OK;
    for (int i = 0; i < n; i++) {
        k[i] = (commit){.w = w[i], .how = how ? how[i] : (dt_commit){0}};
        if (err == DT_OK) err = prepare(&k[i]);
    }
    if (err == DT_OK) err = dt_fault("data.publish");
    for (int i = 0; i < n && err == DT_OK; i++) err = publish(&k[i]);
    for (int i = 0; i < n; i++) {
        if (how) how[i].n_files = k[i].n_shards;
        end(&k[i], err != DT_OK);
    }
    return err;
}
