/* io.h - HDF5 files and plain files. Their content is untrusted: every size and offset is validated before use.
 *
 * Every function is Local. HDF5 as distributed is not thread-safe: every call into it is made between dt_h5_lock and
 * dt_h5_unlock.
 *
 * Common errors. DT_ERR_DATA: the input is missing or invalid. DT_ERR_WRITE: writing failed. DT_ERR_MEMORY: as every
 * function that allocates. Messages name the path. */
#ifndef DTRAIN_IO_H
#define DTRAIN_IO_H

#include "dtrain/core/core.h"
#include <hdf5.h>

/** Take the process-wide HDF5 lock, which is not recursive, and silence HDF5's own error printing. */
void dt_h5_lock(void);
/** Release the HDF5 lock. Only the thread that holds it. */
void dt_h5_unlock(void);
/** As dt_fail, with the message "PATH: WHAT: <HDF5's innermost message>". Call it before any other HDF5 function,
 *  including close functions, because each clears HDF5's messages. Between dt_h5_lock and dt_h5_unlock. Returns err. */
dt_err dt_h5_fail(dt_err err, const char *path, const char *what);
#ifdef __clang_analyzer__
#define dt_h5_fail(err, ...) ((dt_h5_fail)(err, __VA_ARGS__), (err))
#endif

/** Open a file for reading, without HDF5's file locking, which some parallel file systems lack. Every HDF5 file that
 *  the user names is opened here: its seal (seal.h) is verified first. Between dt_h5_lock and dt_h5_unlock.
 *
 *  file    out  closed by the caller with H5Fclose; -1 on error
 *  sealed  out  the file has a seal, which matches; may be NULL
 *
 *  DT_ERR_DATA: missing, not HDF5, truncated, changed outside of its arrays, or its seal was removed. */
dt_err dt_h5_open(const char *path, hid_t *file, bool *sealed);
/** Verify the seal of a file without HDF5. sealed: out, the file has a seal. Errors as dt_h5_open. */
dt_err dt_h5_check_seal(const char *path, bool *sealed);
/** Can HDF5 list this file without crashing? A forked child lists it first. For files without a seal; not in an MPI
 *  program. DT_ERR_DATA: the child crashed, or took more than a minute. */
dt_err dt_h5_survives(const char *path);

/** Read an attribute of an open object. DT_ERR_DATA, naming path and attribute: it is missing or has the wrong class or
 *  shape. Text is malloc'ed; the caller frees it. HDF5 1.10 may crash on variable-length text in a damaged heap; dtrain
 *  writes fixed-length text. */
dt_err dt_h5_read_text(hid_t obj, const char *path, const char *name, char **text);
dt_err dt_h5_read_u64(hid_t obj, const char *path, const char *name, uint64_t *value);
dt_err dt_h5_read_i64(hid_t obj, const char *path, const char *name, int64_t *value);
dt_err dt_h5_read_f64(hid_t obj, const char *path, const char *name, double *value);
/** Does the object have this attribute? */
bool dt_h5_has(hid_t obj, const char *name);
/** Create an attribute of an open object. Text of any length. DT_ERR_WRITE. */
dt_err dt_h5_write_text(hid_t obj, const char *path, const char *name, const char *text);
dt_err dt_h5_write_u64(hid_t obj, const char *path, const char *name, uint64_t value);
dt_err dt_h5_write_i64(hid_t obj, const char *path, const char *name, int64_t value);
dt_err dt_h5_write_f64(hid_t obj, const char *path, const char *name, double value);

/** Checksum of an array. Ranks can compute it for parts of the array and add the results modulo 2^64:
 *
 *      sum over i of (word[i] + 1) * block(i / 1024) * lane(i % 1024)
 *
 *  word[i] is the i-th little-endian element of 1, 2, 4 or 8 bytes as an unsigned integer; i counts from the start of
 *  the whole array. block and lane are odd. A change of one element, or an exchange of two within a block, therefore
 *  always changes the sum; any other change does so with overwhelming probability (multilinear hashing: Lemire & Kaser,
 *  arXiv:1202.4961). Uses OpenMP threads for 32 MiB and more.
 *
 *  data       in  [n_elems] elements, host, any alignment
 *  first      index of data's first element in the whole array
 *  elem_size  1, 2, 4 or 8 bytes */
uint64_t dt_checksum(const void *data, int64_t first, int64_t n_elems, size_t elem_size);

/** 64-bit hash of a 0-terminated text, not cryptographic. The values are part of file formats. */
uint64_t dt_hash_text(const char *text);

enum { DT_CHECKSUM_BLOCK = 1024 };
static inline uint64_t dt_checksum_block(uint64_t b) { return dt_mix64(b) | 1; }
static inline uint32_t dt_checksum_lane(uint64_t j) { return (uint32_t)(dt_mix64(~j) >> 32) | 1; }

/* ---- arrays in a file -------------------------------------------------------------------------------------------- */

/** Element types. Big-endian numbers are read as little-endian ones. DT_H5_BF16 is uint16 with the attribute dtype =
 *  "bf16". */
typedef enum dt_h5_type {
    DT_H5_OTHER,
    DT_H5_F32,
    DT_H5_F16,
    DT_H5_BF16,
    DT_H5_F64,
    DT_H5_U8,
    DT_H5_U16,
    DT_H5_U32,
    DT_H5_U64,
    DT_H5_I8,
    DT_H5_I16,
    DT_H5_I32,
    DT_H5_I64
} dt_h5_type;
/** "fp32", "uint16", ... */
const char *dt_h5_type_name(dt_h5_type t);

enum { DT_H5_MAX_DIMS = 8 };
/** A validated array: its elements are inside the file, and no product of sizes overflows. */
typedef struct dt_h5_array {
    dt_h5_type type;
    size_t elem_size;
    int n_dims; /* 0: a scalar */
    int64_t shape[DT_H5_MAX_DIMS];
    int64_t n_elems;
    /* bytes from the start of the file, if the elements are contiguous and little-endian (dt_read_at); else -1
     * (dt_h5_read_run) */
    int64_t offset;
    bool has_checksum;
    uint64_t checksum;
} dt_h5_array;

/** Open an array by its full name ("/model/x"). Only hard links are followed, so the array is in this file. Negative:
 *  missing. */
hid_t dt_h5_open_array(hid_t file, const char *name);
/** Validate an array and describe it. DT_ERR_DATA naming path and name: unknown type, external storage, data beyond the
 *  end of the file, or sizes that overflow. */
dt_err dt_h5_inspect(hid_t dset, const char *path, const char *name, dt_h5_array *a);
/** Read the elements first .. first+n-1 in row-major order through HDF5, for any storage layout. out: out [n] of the
 *  file's element type. DT_ERR_DATA. */
dt_err dt_h5_read_run(hid_t dset, const char *path, const char *name, const dt_h5_array *a, int64_t first, int64_t n,
                      void *out);
/** dt_checksum of the whole array, read through a buffer of a few MiB. sum: out. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_h5_checksum(hid_t dset, const char *path, const char *name, const dt_h5_array *a, uint64_t *sum);
/** Called for an array of a file by dt_h5_each_array. */
typedef dt_err (*dt_h5_visit)(hid_t dset, const char *name, void *ctx);
/** Call visit for each array of a file, in the order of names, until one returns an error. Returns that error, or
 *  DT_ERR_DATA. */
dt_err dt_h5_each_array(hid_t file, const char *path, dt_h5_visit visit, void *ctx);

/** Read exactly nbytes at a byte offset of an open file. Any thread, without the HDF5 lock. out: out [nbytes].
 *  DT_ERR_DATA: the file ends earlier, or the system's error. */
dt_err dt_read_at(int fd, const char *path, int64_t offset, void *out, size_t nbytes);

/* ---- plain files ------------------------------------------------------------------------------------------------- */

/** Advice to append to the message that a model or tokenizer cannot be opened: how to download it, if path looks like a
 *  name on the Hugging Face hub or a directory for such a model; else "". why: errno. Returns out. */
const char *dt_missing_model_hint(const char *path, int why, char *out, size_t size);

/** Write DIR/NAME and an ending into out [PATH_MAX]. False: it does not fit. */
bool dt_join_path(char *out, const char *dir, const char *name, const char *ending);
/** Does DIR/NAME exist? Writes the path into out [PATH_MAX]. */
bool dt_is_in(char *out, const char *dir, const char *name);
/** Does a name end with this ending, after at least one character? */
bool dt_has_ending(const char *name, const char *ending);
/** Is path a regular file, or a link to one? */
bool dt_is_file(const char *path);
/** Is path a directory, or a link to one? */
bool dt_is_directory(const char *path);
/** Do two paths mean the same name in the same directory? The files need not exist. */
bool dt_is_same_place(const char *a, const char *b);
/** Read a whole regular file. Git LFS pointers are refused.
 *
 *  text    out  malloc'ed, with a 0 appended; freed by the caller; NULL on error
 *  nbytes  out  length without that 0
 *
 *  DT_ERR_DATA: missing, not a regular file, larger than max_bytes. DT_ERR_FAULT: an I/O error, or too many open files.
 *  DT_ERR_MEMORY. */
dt_err dt_read_file(const char *path, size_t max_bytes, char **text, size_t *nbytes);
/** DT_ERR_DATA, with what to do, if the content of a file is a Git LFS pointer. dt_read_file calls it. bytes: in [n],
 *  the beginning of the file. */
dt_err dt_refuse_pointer(const char *path, const char *bytes, size_t n);
/** As dt_refuse_pointer, and also for an empty file and a web page, where a model's file is expected. By its first
 *  bytes, or by an open file. */
dt_err dt_refuse_stand_in(const char *path, const char *bytes, size_t n);
dt_err dt_refuse_stand_in_file(const char *path, int fd);
/** Open a regular file for reading lines. f: out, closed by the caller with fclose. DT_ERR_DATA: missing or not a
 *  regular file. DT_ERR_FAULT, DT_ERR_MEMORY: as dt_read_file. */
dt_err dt_open_text(const char *path, FILE **f);
/** Write exactly nbytes at a byte offset of an open file. bytes: in [nbytes]. Does not sync. DT_ERR_WRITE. */
dt_err dt_write_at(int fd, const char *path, int64_t offset, const void *bytes, size_t nbytes);
/** Allocate the disk blocks of an existing file (dt_create_file), so that a full disk is reported now. Nothing if the
 *  file system cannot. what: for messages, "a checkpoint". DT_ERR_WRITE. */
dt_err dt_reserve_file(const char *path, int64_t nbytes, const char *what);
/** As dt_reserve_file for an open file; path is for messages. */
dt_err dt_reserve_blocks(int fd, const char *path, int64_t nbytes, const char *what);
/** Create a file without a name in a directory, open for reading and writing. It disappears when it is closed, also if
 *  the process is killed. Returns the descriptor; -1 with errno: none can be created there. */
int dt_open_unnamed(const char *folder);
/** Bytes that this user may still write on the disk of a directory. False: the file system does not report it. */
bool dt_free_space(const char *folder, double *nbytes);
/** DT_ERR_WRITE, naming path and what, if the disk of a directory has less than nbytes free. This is only a first
 *  check; dt_reserve_file decides. */
dt_err dt_check_space(const char *folder, const char *path, double nbytes, const char *what);
/** Create a directory and its parents. An existing directory is no error. DT_ERR_WRITE. */
dt_err dt_make_dirs(const char *path);
/** Create the directory of a file, and its parents. DT_ERR_WRITE. */
dt_err dt_make_folder_of(const char *path);
/** Create a new, empty file, open for writing. An existing file or link of that name is removed, never written through.
 *  By convention the name is FINAL.part.
 *
 *  A .part file is locked, if the file system has locks, until it is renamed (dt_rename_durable) or removed
 *  (dt_remove_part).
 *
 *  fd  out  closed by the caller; -1 on error
 *
 *  DT_ERR_WRITE: path is a directory, no permission, or another process is writing the file. DT_ERR_MEMORY. */
dt_err dt_create_file(const char *path, int *fd);
/** As dt_create_file, and close it: for libraries that open files by name. */
dt_err dt_create_empty_file(const char *path);
/** Close a file, after an fsync if sync and err is DT_OK. Returns err, else the failure: DT_ERR_WRITE. */
dt_err dt_close_written(int fd, const char *path, bool sync, dt_err err);
/** Remove a .part file, unless another process is writing it. Also removes other files of this process. Failures are
 *  ignored. */
void dt_remove_part(const char *path);
/** Remove a .part file that no process has locked. Without file locks it stays, because another process may be writing
 *  it. */
void dt_remove_left_part(const char *path);
/** A file that is written as PATH.part and renamed to PATH when it is complete. {0} to begin. */
typedef struct dt_aside {
    const char *path; /* borrowed */
    char *part;       /* owned; NULL: no file is open */
    int fd;
} dt_aside;
/** Create PATH.part. DT_ERR_WRITE: PATH is not a regular file, or as dt_create_file. DT_ERR_MEMORY. */
dt_err dt_aside_open(dt_aside *a, const char *path);
/** Append bytes. DT_ERR_WRITE. */
dt_err dt_aside_write(dt_aside *a, const void *bytes, size_t nbytes);
/** fsync of the file. DT_ERR_WRITE. */
dt_err dt_aside_sync(dt_aside *a);
/** Publish the file: fsync, close, rename to PATH, fsync of the directory. Call it once after dt_aside_open. On error
 *  PATH.part is removed and PATH unchanged. DT_ERR_WRITE. */
dt_err dt_aside_commit(dt_aside *a);
/** Close and remove PATH.part. Safe on {0} and after a commit. */
void dt_aside_drop(dt_aside *a);
/** Copy a regular file into a new one, and fsync. On error the new file is removed. DT_ERR_DATA, DT_ERR_WRITE,
 *  DT_ERR_MEMORY. */
dt_err dt_copy_file(const char *from, const char *to);
/** Write a whole file by way of PATH.part: fsync, rename, fsync of the directory. On error PATH is unchanged. text: in
 *  [nbytes]. DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_write_file_atomic(const char *path, const char *text, size_t nbytes);
/** Write a whole file under its own name, and fsync. On error it is removed. DT_ERR_WRITE. */
dt_err dt_write_file_sync(const char *path, const char *text, size_t nbytes);
/** May a tool write its result to path? DT_ERR_USAGE, with what to do: path or PATH.part is one of the inputs, or path
 *  exists and force is false. Files are compared by device and inode.
 *
 *  inputs  in  [n_inputs] paths; "-" is standard input */
dt_err dt_check_output(const char *path, bool force, const char *const *inputs, int n_inputs);
/** May a rename replace path? DT_ERR_WRITE: it is a directory, device, pipe or socket. A regular file, a link and a
 *  missing file pass. */
dt_err dt_check_replaceable(const char *path);
/** Rename a file onto a regular file or a new name, and unlock it if it is a .part. DT_ERR_WRITE: also if another
 *  process replaced the .part. */
dt_err dt_rename_file(const char *from, const char *to);
/** As dt_rename_file, and fsync the directory, so that the rename survives a power failure. DT_ERR_WRITE. */
dt_err dt_rename_durable(const char *from, const char *to);
/** Files that match a pattern, sorted by name; directories are skipped. A path without * ? [ must exist. paths: out
 *  [n_paths], freed with dt_list_free. DT_ERR_DATA: nothing matches. */
dt_err dt_glob(const char *pattern, char ***paths, int *n_paths);

#endif
