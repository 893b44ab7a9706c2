/* dataset_file.h - internals of an open dataset file, for the code that builds samples from it. */
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
    dt_array tokens, offsets, loss_mask, weights; /* n_elems 0 if missing in the file */
    dt_array second_tokens, second_offsets;       /* rejected texts (preference) or answers (prompts) */
    dt_array prompt_length[DT_N_SIDES], margins, safety[DT_N_SIDES], ties;
    dt_array records, record_offsets; /* bytes of JSON */
    dt_array pixels, image_offsets;
    /* placeholder id of the model, which no token may equal in a file without images; -1: unknown */
    int32_t placeholder;
    /* borrowed, [n_images]: batches get features from here instead of pixels; NULL: batches get pixels */
    const dt_features *features;
    const dt_feature_place *feature_places;
};

/* Records count as the texts of a third side (bytes instead of token ids), images as those of a fourth. */
enum { DT_RECORDS = DT_N_SIDES, DT_IMAGES, DT_N_PARTS };

enum { DT_N_ARRAYS = 16 };
/** List all arrays of a file; missing ones have path NULL. */
void dt_dataset_arrays(const dt_dataset *d, const dt_array *all[DT_N_ARRAYS]);

/** Scan /offsets once, in blocks, and check that it never decreases. fn receives documents first ..
 *  first+n-1 with offset[0 .. n]; an error of fn ends the scan. fn NULL: only check. */
typedef dt_err dt_documents_fn(void *arg, int64_t first, int64_t n, const uint64_t *offset);
dt_err dt_dataset_each_block(dt_dataset *d, dt_documents_fn *fn, void *arg);
/** The same scan over the offsets of a part: DT_SIDE_FIRST, DT_SIDE_SECOND, DT_RECORDS or DT_IMAGES. */
dt_err dt_dataset_each_side_block(dt_dataset *d, int side, dt_documents_fn *fn, void *arg);

/** Range of sample i in the array of a part: elements first .. first+n-1. */
dt_err dt_dataset_part(dt_dataset *d, int part, int64_t i, int64_t *first, int64_t *n);

/** Read the weights of samples first .. first+n-1. The file must have weights. */
dt_err dt_dataset_read_weights(dt_dataset *d, int64_t first, int64_t n, float *weight);

/** Hash of the file's size and head. Ranks compare it to detect that they opened different files. */
dt_err dt_dataset_fingerprint(const dt_dataset *d, uint64_t *hash);

#endif
