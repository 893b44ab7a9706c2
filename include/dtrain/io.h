/* io.h - HDF5 and plain files, never trusting what is in them: every size and offset is checked before it is used.
 *
 * HDF5 as distributed is not thread-safe: every call into it in this program is made between dt_h5_lock and dt_h5_unlock. */
#ifndef DTRAIN_IO_H
#define DTRAIN_IO_H

#include "dtrain/core.h"
#include <hdf5.h>

void dt_h5_lock(void);
void dt_h5_unlock(void);
/** Record DT_ERR_* with HDF5's own innermost message: "FILE: what: <HDF5's words>". Silences HDF5's printing at first use of the room. */
dt_err dt_h5_fail(dt_err err, const char *path, const char *what);

/** Attribute readers and writers on an open object. Missing or of the wrong class or shape: DT_ERR_DATA naming path and attribute. Text is malloc'ed. */
dt_err dt_h5_read_text(hid_t obj, const char *path, const char *name, char **text);
dt_err dt_h5_read_u64(hid_t obj, const char *path, const char *name, uint64_t *value);
dt_err dt_h5_read_i64(hid_t obj, const char *path, const char *name, int64_t *value);
dt_err dt_h5_read_f64(hid_t obj, const char *path, const char *name, double *value);
bool dt_h5_has(hid_t obj, const char *name); /* attribute */
dt_err dt_h5_write_text(hid_t obj, const char *path, const char *name, const char *text); /* any length */
dt_err dt_h5_write_u64(hid_t obj, const char *path, const char *name, uint64_t value);
dt_err dt_h5_write_i64(hid_t obj, const char *path, const char *name, int64_t value);
dt_err dt_h5_write_f64(hid_t obj, const char *path, const char *name, double value);

/** Checksum of an array that can be formed in pieces by any number of ranks and added up (modulo 2^64):
 *      sum over i of (word[i] + 1) * block(i / 1024) * lane(i % 1024)
 *  word[i] the i-th little-endian element of 1, 2, 4 or 8 bytes as unsigned integer, i counted from the start of the whole array; first is the i of
 *  data's first element. block and lane are odd, so a change of any single element always changes the sum, and so does an exchange of two within a
 *  block; all else with overwhelming probability. (Multilinear hashing: Lemire & Kaser, arXiv:1202.4961.) Large arrays use OpenMP's threads. */
uint64_t dt_checksum(const void *data, int64_t first, int64_t n_elems, size_t elem_size);

enum { DT_CHECKSUM_BLOCK = 1024 };
static inline uint64_t dt_checksum_block(uint64_t b) { return dt_mix64(b) | 1; }
static inline uint32_t dt_checksum_lane(uint64_t j) { return (uint32_t)(dt_mix64(~j) >> 32) | 1; }

/** Make a directory and its parents. DT_ERR_WRITE with the reason. */
dt_err dt_make_dirs(const char *path);
/** Write text to path by way of path.part, fsync, rename, fsync of the folder. DT_ERR_WRITE. */
dt_err dt_write_file_atomic(const char *path, const char *text, size_t nbytes);
/** Write text to path itself and fsync; on failure no file is left. DT_ERR_WRITE. */
dt_err dt_write_file_sync(const char *path, const char *text, size_t nbytes);
/** Rename and make it durable (fsync of the folder). DT_ERR_WRITE. */
dt_err dt_rename_durable(const char *from, const char *to);
/** Files that match a comma-free pattern, sorted by name; a plain path must exist. DT_ERR_DATA when nothing matches. Free with dt_config_free_list. */
dt_err dt_glob(const char *pattern, char ***paths, int *n_paths);

#endif
