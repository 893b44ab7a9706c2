/* file.h - files with tensors as one process sees them: the checkpoint file (interface.md, "Checkpoint files"),
 * safetensors. Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_FILE_H
#define DTRAIN_CHECKPOINT_FILE_H

#include "dtrain/checkpoint.h"
#include "dtrain/io.h"
#include "dtrain/safetensors.h"
#include <limits.h>

enum {
    CKPT_VERSION = 1,
    CKPT_BUFFER =
        8 << 20 /* bytes moved at a time: inside the second cache's reach, far above a disk's favourite size */
};
enum { CKPT_PAGE = 4096, CKPT_ALIGN_FROM = 64 << 10 }; /* bytes: arrays from there on begin on a page */

/** A tensor of one state: a dataset of the file. The list is the same on all ranks, in the order of the file. */
typedef struct ckpt_slot {
    dt_state state;
    const dt_piece *piece; /* what this rank holds of it */
    const dt_tensor *tensor;
} ckpt_slot;

/** Where a slot's elements are: found by rank 0, sent to all as bytes. */
typedef struct ckpt_place {
    int64_t offset; /* bytes; -1: not in one piece, ask HDF5 */
    uint64_t checksum;
    int32_t type; /* dt_st_type */
    int32_t has_checksum;
    int32_t file; /* of ckpt_found */
    int32_t bare; /* found without "transformer." */
} ckpt_place;

/** What rank 0 found for a list of slots. */
typedef struct ckpt_found {
    ckpt_place *places; /* [n_slots], the caller's */
    char *files;        /* malloc'ed: paths, each with its 0, one after the other */
    size_t files_len;
    int32_t embed;    /* slot of the embedding, -1: there is none that a head could be tied to */
    int32_t has_head; /* lm_head.weight is there, though the model is tied */
    ckpt_place head;
} ckpt_found;
#define CKPT_HEAD "lm_head.weight"

/** Finders: every slot has its place, and no tensor is there that no slot asks for. Local. DT_ERR_DATA naming file and
 *  tensor. */
dt_err ckpt_find_in_checkpoint(const char *path, const ckpt_slot *slots, int n_slots, ckpt_found *found);
dt_err ckpt_find_in_directory(const char *dir, const ckpt_slot *slots, int n_slots, ckpt_found *found);

typedef dt_err (*ckpt_finder)(const char *path, const ckpt_slot *slots, int n_slots, ckpt_found *found);
/** Collective: rank 0 finds, every rank reads its pieces. */
dt_err ckpt_load(dt_comm *comm, dt_zero *z, const char *path, ckpt_finder find, bool with_optimizer, dt_phase *phase);

/** What loading would find wrong with names, shapes and a tied head, without loading. Local. */
dt_err ckpt_verify(const char *path, ckpt_finder find, ckpt_slot *slots, int n_slots);

/* names.c: GPT-2's tensors may lack "transformer." in files; some buffers of older models are no weights. */
const char *ckpt_bare_name(const char *name); /* NULL: it has no prefix to leave out */
bool ckpt_is_ignored(const char *name);
char *ckpt_shape_text(int n_dims, const int64_t *shape, char *out, size_t out_size); /* "[768, 3072]" */
dt_err ckpt_check_shape(const char *path, const char *name, const dt_tensor *t, int n_dims, const int64_t *shape);
/** Look for the embedding among the slots; -1 when the model has a head of its own. */
int32_t ckpt_tied_embedding(const ckpt_slot *slots, int n_slots);
dt_err ckpt_add_file(ckpt_found *found, const char *path);

/** The slots of z: parameters, and the moments when with_optimizer and z has them. malloc'ed. */
dt_err ckpt_slots(dt_zero *z, bool with_optimizer, ckpt_slot **slots, int *n_slots);
/** "/model/NAME", "/optimizer/exp_avg/NAME", ... */
void ckpt_slot_name(const ckpt_slot *s, char *out, size_t out_size);
/** Open the tensor under its name, or GPT-2's without "transformer."; name: as found, else as looked for. Negative when
 *  there is none. */
hid_t ckpt_slot_open(hid_t file, const ckpt_slot *s, char *name, size_t name_size);
dt_st_type ckpt_type_of(dt_h5_type t);

/** Bytes that a tensor takes in the file. */
typedef struct ckpt_extent {
    int64_t offset, nbytes; /* offset -1: none */
} ckpt_extent;

/** The file's metadata while HDF5 works on it: a file in memory, sparse, as long as the checkpoint (image.c). {.fd =
 *  -1} to start from. */
typedef struct ckpt_image {
    int fd;
    char path[32];
    ckpt_extent *extents; /* of the tensors, by offset */
    int n_extents;
} ckpt_image;
dt_err ckpt_image_open(ckpt_image *m);
void ckpt_image_close(ckpt_image *m); /* safe on {.fd = -1} */
dt_err ckpt_image_size(const ckpt_image *m, int64_t *nbytes);
/** Say where the tensors are. */
dt_err ckpt_image_leave_out(ckpt_image *m, const ckpt_extent *extents, int n);
/** Write all but the tensors into the file at path, open as fd. DT_ERR_WRITE. */
dt_err ckpt_image_write(const ckpt_image *m, int fd, const char *path, int64_t file_size);

/** Make the metadata in the image, checksums as zeros; give each slot's offset and the size of the whole file. path:
 *  for messages. Local. */
dt_err ckpt_file_create(ckpt_image *image, const char *path, const dt_ckpt_meta *meta, dt_zero *z,
                        const ckpt_slot *slots, int n_slots, int64_t *offsets, int64_t *file_size);
/** Put the checksums into an image made by ckpt_file_create. Local. */
dt_err ckpt_file_seal(const ckpt_image *image, const char *path, const ckpt_slot *slots, int n_slots,
                      const uint64_t *sums);

/** Open for reading and check format and version. */
dt_err ckpt_file_open(const char *path, hid_t *file);
/** Find and check a slot's dataset. DT_ERR_DATA naming file and tensor. */
dt_err ckpt_file_find(hid_t file, const char *path, const ckpt_slot *slot, ckpt_place *place);

/** The name in DIR/latest or DIR/best, "" without one; out [CKPT_NAME_SIZE]. Local. */
enum { CKPT_NAME_SIZE = NAME_MAX + 2 };
void ckpt_read_pointer(const char *dir, const char *pointer, char *out);
/** Open aside what will let a pointer's file, at path, name the checkpoint of a step: the text is on the disk, and only
 *  the commit is left. Local. */
dt_err ckpt_write_pointer(dt_aside *a, const char *path, int64_t step);
/** Delete what killed saves left (step-*.h5.part). Local; failures are nobody's concern. */
void ckpt_remove_stale(const char *dir);

#endif
