/* file.h - the checkpoint file, for a single process (files.md, "Checkpoint files"). Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_FILE_H
#define DTRAIN_CHECKPOINT_FILE_H

#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/io/io.h"
#include "dtrain/io/seal.h"
#include "dtrain/checkpoint/stored.h"
#include <limits.h>

/* 2: tensors may be stored elsewhere, which readers of version 1 do not support */
enum { CKPT_VERSION_WHOLE = 1, CKPT_VERSION = 2 };
/* bytes: arrays of at least CKPT_ALIGN_FROM start on a page boundary */
enum { CKPT_PAGE = 4096, CKPT_ALIGN_FROM = 64 << 10 };

/** "/model/NAME", "/optimizer/exp_avg/NAME", ... */
void ckpt_slot_name(const dt_stored_slot *s, char *out, size_t out_size);
static inline dt_dtype ckpt_slot_dtype(const dt_stored_slot *s)
{
    return dt_zero_state_dtype(s->of->zero, s->state, s->slice);
}
/** Open the tensor under its name, or under GPT-2's name without "transformer.". name: the name found, otherwise the
 *  full name. Negative if missing. */
hid_t ckpt_slot_open(hid_t file, const dt_stored_slot *s, char *name, size_t name_size);
dt_st_type ckpt_type_of(dt_h5_type t);

/** The file's metadata while HDF5 works on it: a sparse file in memory with the length of the checkpoint
 *  (file_image.c). Initialise to {.fd = -1}. */
typedef struct ckpt_image {
    int fd;
    char path[32];
    dt_byte_range *arrays; /* arrays to skip, sorted by offset */
    int n_arrays;
} ckpt_image;
dt_err ckpt_image_open(ckpt_image *m);
void ckpt_image_close(ckpt_image *m); /* safe on {.fd = -1} */
dt_err ckpt_image_size(const ckpt_image *m, int64_t *nbytes);
/** Register the arrays that are written separately (offset -1: no elements). Takes ownership of arrays, which is
 *  malloc'ed. */
void ckpt_image_leave_out(ckpt_image *m, dt_byte_range *arrays, int n);
/** Bytes of the complete file: HDF5's file_size and the seal. */
static inline int64_t ckpt_sealed_size(const ckpt_image *m, int64_t file_size)
{
    return file_size + dt_seal_nbytes(m->n_arrays);
}
/** Write everything except those arrays to the file at path, open as fd for reading and writing, then the seal. buffer:
 *  CKPT_COPY_NBYTES. DT_ERR_WRITE. */
enum { CKPT_COPY_NBYTES = 1 << 20 };
dt_err ckpt_image_write(const ckpt_image *m, int fd, const char *path, int64_t file_size, char *buffer);

/** Create the metadata in the image, with zero checksums. Returns the size of the whole file and offsets [n_slots +
 *  n_items]: of each slot, then of each task item. path: for messages. Local. */
dt_err ckpt_file_create(ckpt_image *image, const char *path, const dt_ckpt_meta *meta, const dt_saved_model *models,
                        int n_models, const dt_stored_slot *slots, int n_slots, int64_t *offsets, int64_t *file_size);
/** Write the checksums into an image made by ckpt_file_create. Local. */
dt_err ckpt_file_set_checksums(const ckpt_image *image, const char *path, const dt_stored_slot *slots, int n_slots,
                               const uint64_t *sums);

/** A contiguous array to create. type: negative: it could not be made. dtype: text of the attribute, or NULL. */
typedef struct ckpt_array {
    const char *name;
    hid_t type;
    int n_dims;
    const int64_t *shape;
    uint64_t checksum;
    const char *dtype;
} ckpt_array;
/** offset: out, file offset of the elements; -1: no elements. Local. */
dt_err ckpt_create_array(hid_t file, const char *path, hid_t plist, const ckpt_array *array, int64_t *offset);

/** Joint checksum of a file's texts, in this order. */
uint64_t ckpt_sum_texts(const char *config, const char *model_config, const char *base);

/** Open for reading; validates format and version. */
dt_err ckpt_file_open(const char *path, hid_t *file);
/** Like dt_checkpoint_locate, at nesting level `depth` of bases. */
dt_err ckpt_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map, int depth);

/* base.c: omitted tensors. Local. */
/** The text of the attribute, malloc'ed. DT_ERR_WRITE: the path is not valid UTF-8. */
dt_err ckpt_base_text(const dt_base *b, char **text);
/** Initialise b to {0}. DT_ERR_DATA naming the file at path. */
dt_err ckpt_base_parse(const char *path, const char *text, dt_base *b);
/** The base entry of a slot's tensor; for codes and scales, that of the plain weight. NULL: none. */
const struct dt_base_tensor *ckpt_base_of(const dt_base *b, const dt_stored_slot *s);
/** Locate the tensors that the map marks as left_out. DT_ERR_DATA: the base or one of its tensors is missing or has
 *  changed. */
dt_err ckpt_locate_left_out(const char *path, const dt_base *base, const dt_stored_slot *slots, int n_slots,
                            dt_stored_map *map, int depth);

/* task_arrays.c: saved items of a task. Local. */
/** Create their arrays; offsets [n_items]: file offset of each, -1 for an item without elements. */
dt_err ckpt_create_task_arrays(hid_t file, const char *path, hid_t group_list, hid_t dataset_list,
                               const dt_named_arrays *items, int64_t *offsets);
dt_err ckpt_write_task_arrays(int fd, const char *path, const dt_named_arrays *items, const int64_t *offsets);
double ckpt_task_arrays_nbytes(const dt_named_arrays *items); /* maximum bytes in a file */
dt_err ckpt_read_task_arrays(hid_t file, const char *path, dt_named_arrays *items);

/** Read the file name in DIR/latest or DIR/best into out [CKPT_NAME_SIZE]; "" without one. Local. */
enum { CKPT_NAME_SIZE = NAME_MAX + 2 };
void ckpt_read_pointer(const char *dir, const char *pointer, char *out);
/** Prepare the update of a pointer file at path to the checkpoint of a step. The text is already on disk; only the
 *  commit remains. Local. */
dt_err ckpt_write_pointer(dt_aside *a, const char *path, int64_t step);
/** Delete partial files of killed saves (step-*.h5.part). Local; failures are ignored. */
void ckpt_remove_stale(const char *dir);

#endif
