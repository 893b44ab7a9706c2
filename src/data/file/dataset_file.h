/* dataset_file.h - the inside of an open dataset file, for what makes samples of it. */
#ifndef DTRAIN_DATA_DATASET_FILE_H
#define DTRAIN_DATA_DATASET_FILE_H

#include "pread_array.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/features.h"

struct dt_dataset {
    dt_dataset_info info;
    char *path, *tokenizer, *chat_template, *preprocessor;
    int fd;
    hid_t file; /* open while an array needs HDF5, else H5I_INVALID_HID */
    int64_t file_nbytes;
    dt_array tokens, offsets, loss_mask, weights; /* n_elems 0 where the file has none */
    dt_array second_tokens, second_offsets;       /* of rejected texts, of answers */
    dt_array prompt_length[DT_N_SIDES], margins, safety[DT_N_SIDES], ties;
    dt_array records, record_offsets; /* bytes of JSON */
    dt_array pixels, image_offsets;
    int32_t placeholder; /* of the model, where the file has no images: no token of it may be one; -1: none is known */
    /* borrowed: batches get images' features from there in the place of pixels; NULL: they do not. [n_images] */
    const dt_features *features;
    const dt_feature_place *feature_places;
};

/* Records are kept as the texts of a third side, of bytes in the place of token ids; images as those of a fourth. */
enum { DT_RECORDS = DT_N_SIDES, DT_IMAGES, DT_N_PARTS };

enum { DT_N_ARRAYS = 16 };
/** All arrays of a file, those that it has not with path NULL. */
void dt_dataset_arrays(const dt_dataset *d, const dt_array *all[DT_N_ARRAYS]);

/** Walk through /offsets in blocks, once, checking that they never decrease: fn gets documents first .. first+n-1 with
 *  offset[0 .. n]; an error it returns ends the walk. fn NULL: the check alone. */
typedef dt_err dt_documents_fn(void *arg, int64_t first, int64_t n, const uint64_t *offset);
dt_err dt_dataset_each_block(dt_dataset *d, dt_documents_fn *fn, void *arg);
/** The same walk over the offsets of a part: DT_SIDE_FIRST, DT_SIDE_SECOND, DT_RECORDS or DT_IMAGES. */
dt_err dt_dataset_each_side_block(dt_dataset *d, int side, dt_documents_fn *fn, void *arg);

/** Where a part of sample i lies: elements first .. first+n-1 of the part's array. */
dt_err dt_dataset_part(dt_dataset *d, int part, int64_t i, int64_t *first, int64_t *n);

/** Weights of samples first .. first+n-1, of a file that has them. */
dt_err dt_dataset_read_weights(dt_dataset *d, int64_t first, int64_t n, float *weight);

/** Hash of size and head of the file: differs where two ranks see different files. */
dt_err dt_dataset_fingerprint(const dt_dataset *d, uint64_t *hash);

#endif
