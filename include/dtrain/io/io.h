/* io.h - HDF5 and plain files, never trusting what is in them: every size and offset is checked before it is used.
 *
 * HDF5 as distributed is not thread-safe: every call into it in this program is made between dt_h5_lock and
 * dt_h5_unlock. */
#ifndef DTRAIN_IO_H
#define DTRAIN_IO_H

#include "dtrain/core/core.h"
#include <hdf5.h>

void dt_h5_lock(void);
void dt_h5_unlock(void);
/** Record DT_ERR_* with HDF5's own innermost message: "FILE: what: <HDF5's words>". To be called before any other HDF5
 *  function, closing included: each clears what the one before has said. Silences HDF5's printing at first use of the
 *  room. */
dt_err dt_h5_fail(dt_err err, const char *path, const char *what);
#ifdef __clang_analyzer__
#define dt_h5_fail(err, ...) ((dt_h5_fail)(err, __VA_ARGS__), (err))
#endif

/** Open for reading, without HDF5's file lock, which not every parallel file system has. The only place where a file of
 *  the user is given to HDF5: its seal (seal.h) is verified first. Between dt_h5_lock and dt_h5_unlock. Local.
 *
 *  sealed  out, or NULL: the file has a seal, and it matches
 *
 *  DT_ERR_DATA: missing, not HDF5, cut short, altered outside of its arrays, or its seal is gone. */
dt_err dt_h5_open(const char *path, hid_t *file, bool *sealed);
/** Verify the seal of a file without HDF5. *sealed: it has one. Local. Errors as above. */
dt_err dt_h5_check_seal(const char *path, bool *sealed);
/** Can HDF5 list this file without crashing? For files without a seal: a forked child lists it first. Local; not in an
 *  MPI program. DT_ERR_DATA: the child crashed, or took more than a minute. */
dt_err dt_h5_survives(const char *path);

/** Attribute readers and writers on an open object. Missing or of the wrong class or shape: DT_ERR_DATA naming path and
 *  attribute. Text is malloc'ed. HDF5 1.10 may crash on variable-length text whose heap is damaged; our own files hold
 *  fixed-length text. */
dt_err dt_h5_read_text(hid_t obj, const char *path, const char *name, char **text);
dt_err dt_h5_read_u64(hid_t obj, const char *path, const char *name, uint64_t *value);
dt_err dt_h5_read_i64(hid_t obj, const char *path, const char *name, int64_t *value);
dt_err dt_h5_read_f64(hid_t obj, const char *path, const char *name, double *value);
bool dt_h5_has(hid_t obj, const char *name);                                              /* attribute */
dt_err dt_h5_write_text(hid_t obj, const char *path, const char *name, const char *text); /* any length */
dt_err dt_h5_write_u64(hid_t obj, const char *path, const char *name, uint64_t value);
dt_err dt_h5_write_i64(hid_t obj, const char *path, const char *name, int64_t value);
dt_err dt_h5_write_f64(hid_t obj, const char *path, const char *name, double value);

/** Checksum of an array that can be formed in pieces by any number of ranks and added up (modulo 2^64):
 *      sum over i of (word[i] + 1) * block(i / 1024) * lane(i % 1024)
 *  word[i] the i-th little-endian element of 1, 2, 4 or 8 bytes as unsigned integer, i counted from the start of the
 *  whole array; first is the i of data's first element. block and lane are odd, so a change of any single element
 *  always changes the sum, and so does an exchange of two within a block; all else with overwhelming probability.
 *  (Multilinear hashing: Lemire & Kaser, arXiv:1202.4961.) Large arrays use OpenMP's threads. */
uint64_t dt_checksum(const void *data, int64_t first, int64_t n_elems, size_t elem_size);

uint64_t dt_hash_text(const char *text);

enum { DT_CHECKSUM_BLOCK = 1024 };
static inline uint64_t dt_checksum_block(uint64_t b) { return dt_mix64(b) | 1; }
static inline uint32_t dt_checksum_lane(uint64_t j) { return (uint32_t)(dt_mix64(~j) >> 32) | 1; }

/* ---- arrays in a file -------------------------------------------------------------------------------------------- */

/** Element types that are read, little-endian. BF16 is uint16 with the attribute dtype = "bf16". */
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
const char *dt_h5_type_name(dt_h5_type t); /* "fp32", "uint16", ... */

enum { DT_H5_MAX_DIMS = 8 };
/** An array as found and checked: its elements are inside the file, and no product of sizes overflows. */
typedef struct dt_h5_array {
    dt_h5_type type;
    size_t elem_size;
    int n_dims; /* 0: a scalar */
    int64_t shape[DT_H5_MAX_DIMS];
    int64_t n_elems;
    /* in bytes from the start of the file where the elements lie in one piece (dt_read_at), else -1 (dt_h5_read_run) */
    int64_t offset;
    bool has_checksum;
    uint64_t checksum;
} dt_h5_array;

/** Open by full name ("/model/x"); only hard links are followed, so nothing leads out of the file. Negative: not
 *  there. */
hid_t dt_h5_open_array(hid_t file, const char *name);
/** DT_ERR_DATA naming path and name: unknown type, storage outside the file, beyond its end, sizes that overflow. */
dt_err dt_h5_inspect(hid_t dset, const char *path, const char *name, dt_h5_array *a);
/** Elements first .. first+n-1 in row-major order, through HDF5: any layout. out: [n] of the file's element type. */
dt_err dt_h5_read_run(hid_t dset, const char *path, const char *name, const dt_h5_array *a, int64_t first, int64_t n,
                      void *out);
/** dt_checksum of the whole array, through a buffer of a few MiB. */
dt_err dt_h5_checksum(hid_t dset, const char *path, const char *name, const dt_h5_array *a, uint64_t *sum);
/** Call visit for each array of a file, by name; stops at the first error. */
typedef dt_err (*dt_h5_visit)(hid_t dset, const char *name, void *ctx);
dt_err dt_h5_each_array(hid_t file, const char *path, dt_h5_visit visit, void *ctx);

/** Read exactly nbytes at a byte offset; no lock needed. DT_ERR_DATA: the file ends before, or the system's reason. */
dt_err dt_read_at(int fd, const char *path, int64_t offset, void *out, size_t nbytes);

/* ---- plain files ------------------------------------------------------------------------------------------------- */

/** Behind the message that a model or tokenizer cannot be opened: "; how to get it" where path may be meant as a name
 *  of the Hugging Face hub, or as a place for such a model; else "". why: errno. */
const char *dt_missing_model_hint(const char *path, int why, char *out, size_t size);

/** "DIR/NAME" and an ending; false when it does not fit into out [PATH_MAX]. */
bool dt_join_path(char *out, const char *dir, const char *name, const char *ending);
/** The same without an ending, and is there anything of that name? */
bool dt_is_in(char *out, const char *dir, const char *name);
bool dt_has_ending(const char *name, const char *ending); /* with something before it */
bool dt_is_file(const char *path);                        /* a regular one, or a link to one */
bool dt_is_directory(const char *path);
bool dt_is_same_place(const char *a, const char *b); /* one name in one folder, whether something is there or not */
/** A whole file in a malloc'ed buffer with a 0 behind it. DT_ERR_DATA with the reason: no file, more than max_bytes;
 *  DT_ERR_FAULT: it cannot be read for a reason that lies not in the file, such as a disk or too many open files. */
dt_err dt_read_file(const char *path, size_t max_bytes, char **text, size_t *nbytes);
/** Refuse the content of a file that is a Git LFS pointer (dt_read_file does so itself). DT_ERR_DATA naming path and
 *  what to do. */
dt_err dt_refuse_pointer(const char *path, const char *bytes, size_t n);
/** The same for an empty file and a web page, too: where a model's file is expected. By its first bytes, or by an open
 *  file. */
dt_err dt_refuse_stand_in(const char *path, const char *bytes, size_t n);
dt_err dt_refuse_stand_in_file(const char *path, int fd);
/** Open a file to be read line by line; *f is the caller's to fclose. DT_ERR_DATA: there is none, or it is no regular
 *  file, whose end might never come. */
dt_err dt_open_text(const char *path, FILE **f);
/** Write exactly nbytes at a byte offset. DT_ERR_WRITE. */
dt_err dt_write_at(int fd, const char *path, int64_t offset, const void *bytes, size_t nbytes);
/** Reserve the blocks of a file that is there (dt_create_file), so that a full disk is met now; does nothing where the
 *  file system cannot. what: "a checkpoint". DT_ERR_WRITE. */
dt_err dt_reserve_file(const char *path, int64_t nbytes, const char *what);
/** The same for an open file; path is what messages call it. */
dt_err dt_reserve_blocks(int fd, const char *path, int64_t nbytes, const char *what);
/** A file without a name in a folder, open for reading and writing: it is gone when it is closed, also by a kill. -1
 *  and errno: none can be made there. */
int dt_open_unnamed(const char *folder);
/** Bytes that this user may still write on the disk of a folder. false: the file system does not tell. */
bool dt_free_space(const char *folder, double *nbytes);
/** Is there so much room on the disk of a folder? A first look only: what counts is the reservation. DT_ERR_WRITE
 *  naming path and what. */
dt_err dt_check_space(const char *folder, const char *path, double nbytes, const char *what);
/** Make a directory and its parents. DT_ERR_WRITE with the reason. */
dt_err dt_make_dirs(const char *path);
dt_err dt_make_folder_of(const char *path); /* the directory that this file is to be in */
/** A new, empty file, open for writing. Whatever has the name (the rest of a killed run, a link that somebody planted)
 *  is removed, never written through: all that this program writes begins here, under the name FINAL.part as a rule.
 *  A .part is held until it is renamed (dt_rename_durable) or removed (dt_remove_part), if the file system has locks.
 *  DT_ERR_WRITE with the reason: a directory, no right, another process that holds it. */
dt_err dt_create_file(const char *path, int *fd);
/** The same, closed again: for a library that opens files by name. */
dt_err dt_create_empty_file(const char *path);
/** Remove a .part, whoever made it, but not one that another process is writing. Failures are nobody's concern. */
void dt_remove_part(const char *path);
/** Remove a .part that nobody holds; where the file system has no locks it stays, for somebody may. */
void dt_remove_left_part(const char *path);
/** A file that is written aside, as PATH.part, and takes its place whole. {0} to begin; path is borrowed. */
typedef struct dt_aside {
    const char *path;
    char *part; /* NULL: nothing is open */
    int fd;
} dt_aside;
dt_err dt_aside_open(dt_aside *a, const char *path);                  /* PATH must be replaceable. DT_ERR_WRITE */
dt_err dt_aside_write(dt_aside *a, const void *bytes, size_t nbytes); /* behind what is there. DT_ERR_WRITE */
dt_err dt_aside_sync(dt_aside *a);
/** fsync, close, rename, fsync of the folder; after a failure PATH.part is gone and PATH as it was. DT_ERR_WRITE. */
dt_err dt_aside_commit(dt_aside *a);
void dt_aside_drop(dt_aside *a); /* PATH.part goes; safe on {0} and after a commit */
/** Copy a file in pieces into a new one, and fsync; on failure none is left. DT_ERR_DATA, DT_ERR_WRITE. */
dt_err dt_copy_file(const char *from, const char *to);
/** Write text to path by way of path.part, fsync, rename, fsync of the folder. DT_ERR_WRITE. */
dt_err dt_write_file_atomic(const char *path, const char *text, size_t nbytes);
/** Write text to path itself and fsync; on failure no file is left. DT_ERR_WRITE. */
dt_err dt_write_file_sync(const char *path, const char *text, size_t nbytes);
/** That a tool may write its result to path: it is none of the inputs (same device and inode, so also through links;
 *  "-" is standard input), and nothing is there unless force. DT_ERR_USAGE with the next step. */
dt_err dt_check_output(const char *path, bool force, const char *const *inputs, int n_inputs);
/** That a file may take the place of path: a rename would put one over /dev/null, too, when root asks. DT_ERR_WRITE. */
dt_err dt_check_replaceable(const char *path);
/** Rename onto a file or nothing. DT_ERR_WRITE, also where a .part is no longer the file that this process made. */
dt_err dt_rename_file(const char *from, const char *to);
/** The same, made durable (fsync of the folder). */
dt_err dt_rename_durable(const char *from, const char *to);
/** Files that match a comma-free pattern, sorted by name; a plain path must exist. DT_ERR_DATA when nothing matches.
 *  Free with dt_list_free. */
dt_err dt_glob(const char *pattern, char ***paths, int *n_paths);

#endif
