/* safetensors.h - Hugging Face's files of tensors, read without trust and written in place by any number of processes.
 * algorithms.md 8.3.
 *
 * A file is the length of its header (8 bytes, little-endian), the header (JSON: {name: {dtype, shape, data_offsets}}),
 * and the tensors' bytes, one after the other. A model is one file, model.safetensors, or several with
 * model.safetensors.index.json, which says where each tensor is. */
#ifndef DTRAIN_SAFETENSORS_H
#define DTRAIN_SAFETENSORS_H

#include "dtrain/core/core.h"

/* ---- element types ----------------------------------------------------------------------------------------------- */

/** I8 and U8: codes in checkpoints (unit.h), which safetensors files do not hold: there such tensors are OTHER. */
typedef enum dt_st_type { DT_ST_OTHER, DT_ST_F32, DT_ST_F16, DT_ST_BF16, DT_ST_I8, DT_ST_U8 } dt_st_type;

static inline size_t dt_st_type_size(dt_st_type t) { return t == DT_ST_F32 ? 4 : t >= DT_ST_I8 ? 1 : 2; }
const char *dt_st_type_name(dt_st_type t); /* "F32", "F16", "BF16" */
static inline dt_st_type dt_st_type_of(dt_dtype t)
{
    static const dt_st_type TYPES[DT_N_DTYPE] = {DT_ST_F32, DT_ST_BF16, DT_ST_F16, DT_ST_I8, DT_ST_U8, DT_ST_U8};
    return TYPES[t];
}

/** n elements of one floating type as another; rounding is to nearest, ties to even, and a number too large for F16
 *  becomes infinite. Returns how many finite ones did. from and to must not overlap. */
int64_t dt_st_convert(const void *from, dt_st_type from_type, void *to, dt_st_type to_type, int64_t n);
/** Index of the first of n elements that is Inf or NaN, -1: all are finite, or they are codes; and which of the two. */
int64_t dt_st_first_nonfinite(const void *x, dt_st_type type, int64_t n);
bool dt_st_is_nan(const void *x, dt_st_type type, int64_t i);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum { DT_ST_MAX_DIMS = 8 };

/** A tensor as found and checked: its bytes are inside its file and belong to no other. */
typedef struct dt_st_tensor {
    char *name;
    const char *dtype; /* as the file says: "F32", "I64", "BOOL", ... */
    dt_st_type type;   /* DT_ST_OTHER: none that holds weights */
    int n_dims;
    int64_t shape[DT_ST_MAX_DIMS];
    int64_t n_elems, nbytes;
    int file;       /* in dt_safetensors.files */
    int64_t offset; /* bytes from the start of that file */
} dt_st_tensor;

typedef struct dt_safetensors {
    char **files; /* paths */
    int n_files;
    dt_st_tensor *tensors; /* by name */
    int n_tensors;
} dt_safetensors;

/** Read the headers of a file, or of all files of a directory: model.safetensors, else those that
 *  model.safetensors.index.json names. Local. {0} to start from. DT_ERR_DATA naming file and tensor: neither is there
 *  (and what is instead: pickled weights); a header that is cut, too long (100 MB) or no JSON; an unknown dtype; sizes
 *  that overflow; offsets that do not fit the shape, overlap, leave gaps or do not end with the file; a tensor twice,
 *  in another file than the index says or in none; an index that names files outside of the directory. */
dt_err dt_safetensors_open(dt_safetensors *s, const char *path);
void dt_safetensors_close(dt_safetensors *s); /* safe on {0} and after an error */

const dt_st_tensor *dt_safetensors_find(const dt_safetensors *s, const char *name); /* NULL: there is none */
/** Elements first .. first+n-1 in row-major order, as dtype. Local. DT_ERR_DATA: not F32, F16 or BF16; the file ends
 *  before. DT_ERR_ARG: outside the tensor. */
dt_err dt_safetensors_read(const dt_safetensors *s, const dt_st_tensor *t, int64_t first, int64_t n, dt_dtype dtype,
                           void *out);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

#define DT_ST_SHARD_SIZE INT64_C(5000000000) /* bytes: as transformers cuts by default */

/** Files to be written: a function of names, shapes, type and shard size alone, so every process that makes it knows
 *  where each tensor goes. */
typedef struct dt_st_layout {
    dt_st_type type;
    const char *stem; /* what the files' names begin with; borrowed */
    int n_files, n_tensors;
    int *file;       /* [n_tensors] */
    int64_t *offset; /* [n_tensors] bytes from the start of its file */
    char **names;    /* [n_files] "STEM.safetensors", or "STEM-00001-of-00002.safetensors", ... */
    char **headers;  /* [n_files] all that stands before the data */
    size_t *header_len;
    int64_t *size; /* [n_files] bytes */
    char *index;   /* text of STEM.safetensors.index.json; NULL for one file */
} dt_st_layout;

typedef struct dt_st_entry {
    const char *name;
    int n_dims;
    const int64_t *shape;
} dt_st_entry;

/** Tensors go into files in the order given, each file as full as shard_size (bytes of data) allows and with one tensor
 *  at least; inside a file they are sorted by name, and headers are spaced so that data begins at a multiple of 8
 *  bytes, as the safetensors library does. stem: "model", as a rule; borrowed. Local. DT_ERR_MEMORY, DT_ERR_ARG. */
dt_err dt_st_layout_make(dt_st_layout *l, const char *stem, const dt_st_entry *entries, int n_entries, dt_st_type type,
                         int64_t shard_size);
void dt_st_layout_free(dt_st_layout *l); /* safe on {0} */

/** Make DIR/NAME.part for every file, its blocks reserved and its header written, and for the index. On failure none is
 *  left. One process. DT_ERR_WRITE (disk full, ...). */
dt_err dt_st_layout_create(const dt_st_layout *l, const char *dir);
/** Flush a file that this process has written to: DIR/NAME.part. DT_ERR_WRITE. */
dt_err dt_st_layout_sync(const dt_st_layout *l, const char *dir, int file);
/** Rename every file and then the index, after removing weights of an earlier model that have other names. One process.
 *  DT_ERR_WRITE. */
dt_err dt_st_layout_publish(const dt_st_layout *l, const char *dir);
void dt_st_layout_discard(const dt_st_layout *l, const char *dir); /* remove every .part */

#endif
