/* dataset_file.h - internals of an open dataset file, for the code that builds samples from it. */
#ifndef DTRAIN_DATA_DATASET_FILE_H
#define DTRAIN_DATA_DATASET_FILE_H

#include "pread_array.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/features.h"

/* Records are stored like the texts of a third side (bytes instead of token ids), images like those of a fourth. */
enum { DT_RECORDS = DT_N_SIDES, DT_IMAGES, DT_N_DATA_PARTS };

/* Every array that a dataset can have. The order is part of dt_dataset_fingerprint. */
typedef enum dt_column {
    DT_COL_TOKENS,
    DT_COL_OFFSETS,
    DT_COL_MASK,
    DT_COL_WEIGHTS,
    DT_COL_SECOND_TOKENS, /* rejected texts (preference) or answers (prompts) */
    DT_COL_SECOND_OFFSETS,
    DT_COL_PROMPT,
    DT_COL_SECOND_PROMPT,
    DT_COL_MARGINS,
    DT_COL_SAFETY,
    DT_COL_SECOND_SAFETY,
    DT_COL_FLAGS,   /* their meaning depends on the kind */
    DT_COL_RECORDS, /* bytes of JSON */
    DT_COL_RECORD_OFFSETS,
    DT_COL_PIXELS,
    DT_COL_IMAGE_OFFSETS,
    DT_COL_GRIDS, /* of images that are grids of cells, one for each cell (dt_grid_code) */
    DT_N_ARRAYS,
    DT_COL_PAIR_MARKS = DT_N_ARRAYS, /* not in files: source of the pair count attributes */
    DT_N_COLUMNS
} dt_column;

/* What an array has one element for. Shards end between these units. */
typedef enum dt_per {
    DT_PER_TOKEN, /* or per byte of a record, or per image */
    DT_PER_SAMPLE,
    DT_PER_OFFSET
} dt_per;

/** A row of the table of columns. The table of a kind (kinds.h) names the columns of its files. */
typedef struct dt_column_form {
    dt_per per;
    int part;  /* DT_SIDE_FIRST, DT_SIDE_SECOND, DT_RECORDS or DT_IMAGES */
    int types; /* DT_ARRAY_ */
} dt_column_form;
extern const dt_column_form dt_columns[DT_N_COLUMNS];

/** The columns of a part's elements and offsets, and the name of its elements. */
static inline dt_column dt_part_elements(int part)
{
    static const dt_column OF[DT_N_DATA_PARTS] = {DT_COL_TOKENS, DT_COL_SECOND_TOKENS, DT_COL_RECORDS, DT_COL_PIXELS};
    return OF[part];
}
static inline dt_column dt_part_offsets(int part) { return (dt_column)(dt_part_elements(part) + 1); }
static inline const char *dt_part_words(int part)
{
    return part == DT_RECORDS ? "bytes" : part == DT_IMAGES ? "images" : "tokens";
}

struct dt_kind;
struct dt_store;
struct dt_dataset {
    dt_dataset_info info;
    const struct dt_kind *kind;
    const struct dt_store *store;
    void *store_self;
    char *path, *tokenizer, *chat_template, *preprocessor;
    int fd;
    int64_t file_nbytes;
    dt_array column[DT_N_ARRAYS]; /* path NULL, n_elems 0: missing in the file */
    /* placeholder id of the model, which a file without images must not contain; -1: unknown */
    int32_t placeholder;
    bool prompt_targets; /* every token is a target, whatever loss_mask says, except placeholders of images */
    /* borrowed, [n_images]: batches get features from here instead of pixels; NULL: batches get pixels */
    const dt_features *features;
    const dt_feature_slot *feature_slots;
};

/** Scan the offsets of a part once, in blocks, and check that they never decrease. fn receives documents first ..
 *  first+n-1 with offset[0 .. n]; an error of fn ends the scan. fn NULL: only check. */
typedef dt_err dt_documents_fn(void *arg, int64_t first, int64_t n, const uint64_t *offset);
dt_err dt_dataset_each_block(dt_dataset *d, int part, dt_documents_fn *fn, void *arg);

/** Read the weights of samples first .. first+n-1. The file must have weights. */
dt_err dt_dataset_read_weights(dt_dataset *d, int64_t first, int64_t n, float *weight);

/** Hash of the file's size, head and checksums. For a file of another program: of all offsets and 64 segments of its
 *  tokens. Ranks compare it to detect different files. A resumed run compares it to detect other data. */
dt_err dt_dataset_fingerprint(dt_dataset *d, uint64_t *hash);

#endif
