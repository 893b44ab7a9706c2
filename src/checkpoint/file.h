/* file.h - the checkpoint file as one process sees it (files.md, "Checkpoint files"). Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_FILE_H
#define DTRAIN_CHECKPOINT_FILE_H

#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/io/io.h"
#include "dtrain/io/seal.h"
#include "dtrain/checkpoint/stored.h"
#include <limits.h>

/* 2: a part of the model is elsewhere, which readers of 1 know nothing of */
enum { CKPT_VERSION_WHOLE = 1, CKPT_VERSION = 2 };
enum { CKPT_PAGE = 4096, CKPT_ALIGN_FROM = 64 << 10 }; /* bytes: arrays from there on begin on a page */

/** "/model/NAME", "/optimizer/exp_avg/NAME", ... */
void ckpt_slot_name(const dt_stored_slot *s, char *out, size_t out_size);
static inline dt_dtype ckpt_slot_dtype(const dt_stored_slot *s)
{
    return dt_zero_state_dtype(s->of->zero, s->state, s->piece);
}
/** Open the tensor under its name, or GPT-2's without "transformer."; name: as found, else as looked for. Negative when
 *  there is none. */
hid_t ckpt_slot_open(hid_t file, const dt_stored_slot *s, char *name, size_t name_size);
dt_st_type ckpt_type_of(dt_h5_type t);

/** The file's metadata while HDF5 works on it: a file in memory, sparse, as long as the checkpoint (file_image.c). {.fd
 *  = -1} to start from. */
typedef struct ckpt_image {
    int fd;
    char path[32];
    dt_byte_range *arrays; /* those that are left out, by offset */
    int n_arrays;
} ckpt_image;
dt_err ckpt_image_open(ckpt_image *m);
void ckpt_image_close(ckpt_image *m); /* safe on {.fd = -1} */
dt_err ckpt_image_size(const ckpt_image *m, int64_t *nbytes);
/** Say where the arrays are that others write (offset -1: it has no elements); arrays, malloc'ed, is the image's from
 *  now on. */
void ckpt_image_leave_out(ckpt_image *m, dt_byte_range *arrays, int n);
/** Bytes of the complete file: what HDF5 made, file_size, and the seal. */
static inline int64_t ckpt_sealed_size(const ckpt_image *m, int64_t file_size)
{
    return file_size + dt_seal_nbytes(m->n_arrays);
}
/** Write all but those arrays into the file at path, open as fd for reading and writing, and the seal after it.
 *  buffer: of CKPT_COPY_NBYTES. DT_ERR_WRITE. */
enum { CKPT_COPY_NBYTES = 1 << 20 };
dt_err ckpt_image_write(const ckpt_image *m, int fd, const char *path, int64_t file_size, char *buffer);

/** Make the metadata in the image, checksums of tensors as zeros; give the size of the whole file, and the offset of
 *  each slot, and behind them of each of the task's items [n_slots + n_items]. path: for messages. Local. */
dt_err ckpt_file_create(ckpt_image *image, const char *path, const dt_ckpt_meta *meta, const dt_saved_model *models,
                        int n_models, const dt_stored_slot *slots, int n_slots, int64_t *offsets, int64_t *file_size);
/** Put the checksums into an image made by ckpt_file_create. Local. */
dt_err ckpt_file_set_checksums(const ckpt_image *image, const char *path, const dt_stored_slot *slots, int n_slots,
                               const uint64_t *sums);

/** The checksum of a file's texts, one after the other. */
uint64_t ckpt_sum_texts(const char *config, const char *model_config, const char *base);

/** Open for reading and check format and version. */
dt_err ckpt_file_open(const char *path, hid_t *file);
/** Locate and check a slot's dataset. DT_ERR_DATA naming file and tensor. */
dt_err ckpt_file_locate(hid_t file, const char *path, const dt_stored_slot *slot, dt_stored_location *location);

/** As dt_checkpoint_locate, in the base of a base of ...: depth of them. */
dt_err ckpt_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map, int depth);

/* base.c: what is left out. Local. */
/** The text of the attribute, malloc'ed. DT_ERR_WRITE: its path cannot be a text. */
dt_err ckpt_base_text(const dt_base *b, char **text);
/** {0} to start from. DT_ERR_DATA naming the file at path. */
dt_err ckpt_base_parse(const char *path, const char *text, dt_base *b);
/** What is said of a slot's tensor, or, of codes and scales, of the plain weight; NULL: nothing. */
const struct dt_base_tensor *ckpt_base_of(const dt_base *b, const dt_stored_slot *s);
/** Locate what is marked so in the map (left_out). DT_ERR_DATA: the base, or a tensor in it, is gone or has changed. */
dt_err ckpt_locate_left_out(const char *path, const dt_base *base, const dt_stored_slot *slots, int n_slots,
                            dt_stored_map *map, int depth);

/* dt_generation_items.c: what a task left. Local. */
/** Make their arrays; offsets [n_items]: where each goes in the file, -1 for one without elements. */
dt_err ckpt_create_task_arrays(hid_t file, const char *path, hid_t group_list, hid_t dataset_list,
                               const dt_named_arrays *items, int64_t *offsets);
dt_err ckpt_write_task_arrays(int fd, const char *path, const dt_named_arrays *items, const int64_t *offsets);
double ckpt_task_arrays_nbytes(const dt_named_arrays *items); /* that they take in a file, at most */
dt_err ckpt_read_task_arrays(hid_t file, const char *path, dt_named_arrays *items);

/** The name in DIR/latest or DIR/best, "" without one; out [CKPT_NAME_SIZE]. Local. */
enum { CKPT_NAME_SIZE = NAME_MAX + 2 };
void ckpt_read_pointer(const char *dir, const char *pointer, char *out);
/** Open aside what will let a pointer's file, at path, name the checkpoint of a step: the text is on the disk, and only
 *  the commit is left. Local. */
dt_err ckpt_write_pointer(dt_aside *a, const char *path, int64_t step);
/** Delete what killed saves left (step-*.h5.part). Local; failures are nobody's concern. */
void ckpt_remove_stale(const char *dir);

#endif
