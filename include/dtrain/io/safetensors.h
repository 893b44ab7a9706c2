/* safetensors.h - Hugging Face's tensor files: read with full validation, and written in place by any number of
 * processes. algorithms.md 8.3. Every function is Local.
 *
 * A file is the length of its header (8 bytes, little-endian), the header (JSON: {name: {dtype, shape, data_offsets}}),
 * and the tensors' bytes, consecutively. A model is one file, model.safetensors, or several with
 * model.safetensors.index.json, which maps tensors to files. */
#ifndef DTRAIN_SAFETENSORS_H
#define DTRAIN_SAFETENSORS_H

#include "dtrain/core/core.h"

/* ---- element types ----------------------------------------------------------------------------------------------- */

/** Element types. I8 and U8 are codes in checkpoints (unit.h); such tensors in safetensors files are OTHER. */
typedef enum dt_st_type { DT_ST_OTHER, DT_ST_F32, DT_ST_F16, DT_ST_BF16, DT_ST_I8, DT_ST_U8 } dt_st_type;

static inline size_t dt_st_type_size(dt_st_type t) { return t == DT_ST_F32 ? 4 : t >= DT_ST_I8 ? 1 : 2; }
/** "F32", "F16", "BF16" */
const char *dt_st_type_name(dt_st_type t);
static inline dt_st_type dt_st_type_of(dt_dtype t)
{
    static const dt_st_type TYPES[DT_N_DTYPE] = {DT_ST_F32, DT_ST_BF16, DT_ST_F16, DT_ST_I8, DT_ST_U8, DT_ST_U8};
    return TYPES[t];
}

/** Convert n elements from one floating-point type to another, rounding to nearest, ties to even; a value too large for
 *  F16 becomes infinite. from and to must not overlap. Returns the number of finite values that became infinite. */
int64_t dt_st_convert(const void *from, dt_st_type from_type, void *to, dt_st_type to_type, int64_t n);
/** Index of the first Inf or NaN of n elements; -1: all are finite, or they are codes. */
int64_t dt_st_first_nonfinite(const void *x, dt_st_type type, int64_t n);
/** Is element i NaN? */
bool dt_st_is_nan(const void *x, dt_st_type type, int64_t i);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum { DT_ST_MAX_DIMS = 8 };

/** A validated tensor: its bytes are inside its file, and overlap no other tensor. */
typedef struct dt_st_tensor {
    char *name;
    const char *dtype; /* as in the file: "F32", "I64", "BOOL", ... */
    dt_st_type type;   /* DT_ST_OTHER: not a type of weights */
    int n_dims;
    int64_t shape[DT_ST_MAX_DIMS];
    int64_t n_elems, nbytes;
    int file;       /* index in dt_safetensors.files */
    int64_t offset; /* bytes from the start of that file */
} dt_st_tensor;

/** The tensors of a file or directory. {0} to begin; freed with dt_safetensors_close. */
typedef struct dt_safetensors {
    char **files; /* paths */
    int n_files;
    dt_st_tensor *tensors; /* sorted by name */
    int n_tensors;
} dt_safetensors;

/** Read the headers of a file, or of all files of a directory: model.safetensors, else those in
 *  model.safetensors.index.json.
 *
 *  DT_ERR_DATA naming file and tensor: no such files (and what exists instead, such as pickled weights); a header that
 *  is truncated, too long (100 MB) or not JSON; an unknown dtype; sizes that overflow; offsets that do not fit the
 *  shape, overlap, leave gaps or do not end with the file; a tensor that occurs twice, in another file than the index
 *  says, or in none; an index with files outside of the directory. DT_ERR_MEMORY. */
dt_err dt_safetensors_open(dt_safetensors *s, const char *path);
/** Free the tables. Safe on {0} and after an error. */
void dt_safetensors_close(dt_safetensors *s);

/** The tensor of this name, borrowed; NULL: none. */
const dt_st_tensor *dt_safetensors_find(const dt_safetensors *s, const char *name);
/** Read elements first .. first+n-1 in row-major order, converted to dtype. out: out [n]. DT_ERR_DATA: not F32, F16 or
 *  BF16, or the file ends early. DT_ERR_ARG: outside the tensor. */
dt_err dt_safetensors_read(const dt_safetensors *s, const dt_st_tensor *t, int64_t first, int64_t n, dt_dtype dtype,
                           void *out);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

#define DT_ST_SHARD_SIZE INT64_C(5000000000) /* bytes: the default of transformers */

/** Layout of files to be written. It depends only on names, shapes, type and shard size, so every process that computes
 *  it knows where each tensor is stored. */
typedef struct dt_st_layout {
    dt_st_type type;
    const char *stem; /* beginning of the file names; borrowed */
    int n_files, n_tensors;
    int *file;       /* [n_tensors] */
    int64_t *offset; /* [n_tensors] bytes from the start of its file */
    char **names;    /* [n_files] "STEM.safetensors", or "STEM-00001-of-00002.safetensors", ..., then the index */
    char **headers;  /* [n_files] all bytes before the data */
    size_t *header_len;
    int64_t *size; /* [n_files] bytes */
    char *index;   /* text of STEM.safetensors.index.json; NULL for one file */
} dt_st_layout;

/** A tensor to be written. */
typedef struct dt_st_entry {
    const char *name;
    int n_dims;
    const int64_t *shape;
    bool exact; /* F32, whatever the layout's type is */
} dt_st_entry;

/** Assign tensors to files in the order given. A file has at most shard_size bytes of data, but at least one tensor.
 *  Within a file they are sorted by type (wider first) and name, and headers are padded so that data begins at a
 *  multiple of 8 bytes, as the safetensors library does. l: out, freed with dt_st_layout_free. stem: usually
 *  "model"; borrowed. DT_ERR_MEMORY, DT_ERR_ARG. */
dt_err dt_st_layout_make(dt_st_layout *l, const char *stem, const dt_st_entry *entries, int n_entries, dt_st_type type,
                         int64_t shard_size);
/** Free the layout. Safe on {0}. */
void dt_st_layout_free(dt_st_layout *l);

/** Create DIR/NAME.part for every file, with blocks reserved and header written, and for the index. Called by one
 *  process. On error none is left. DT_ERR_WRITE (disk full, ...). */
dt_err dt_st_layout_create(const dt_st_layout *l, const char *dir);
/** fsync a file that this process has written to: DIR/NAME.part. DT_ERR_WRITE. */
dt_err dt_st_layout_sync(const dt_st_layout *l, const char *dir, int file);
/** Rename every file and then the index, after deleting an earlier model's weights with other names. Called by one
 *  process. DT_ERR_WRITE. */
dt_err dt_st_layout_publish(const dt_st_layout *l, const char *dir);
/** Remove every .part. */
void dt_st_layout_discard(const dt_st_layout *l, const char *dir);

#endif
