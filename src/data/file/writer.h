/* writer.h - a dataset being written: arrays that grow in temporary files, and their names in the final
 * file. writer.c fills them; commit.c converts them to dataset files. */
#ifndef DTRAIN_DATA_WRITER_H
#define DTRAIN_DATA_WRITER_H

#include "dataset_file.h"
#include "temp_array.h"

/* Unit that an array has one element per, and by which it is cut into shards. */
typedef enum dt_per {
    DT_PER_TOKEN,
    DT_PER_SAMPLE,
    DT_PER_OFFSET
} dt_per; /* for records a byte counts as a token, and so does an image */

/* Every array that a dataset can have. It is kept if its dt_temp_array has a path, and written if it is
 * also in `wanted`. */
typedef enum dt_column {
    DT_COL_TOKENS,
    DT_COL_OFFSETS,
    DT_COL_SECOND_TOKENS,
    DT_COL_SECOND_OFFSETS,
    DT_COL_MASK,
    DT_COL_WEIGHTS,
    DT_COL_PROMPT,
    DT_COL_SECOND_PROMPT,
    DT_COL_MARGINS,
    DT_COL_SAFETY,
    DT_COL_SECOND_SAFETY,
    DT_COL_TIES,
    DT_COL_PAIR_MARKS, /* not written: source of the pair count attributes */
    DT_COL_RECORDS,
    DT_COL_RECORD_OFFSETS,
    DT_COL_PIXELS,
    DT_COL_IMAGE_OFFSETS,
    DT_N_COLUMNS
} dt_column;

/* Bits of DT_COL_PAIR_MARKS. */
enum { DT_MARK_EQUAL = 1, DT_MARK_CONTRADICTED = 2 };

struct dt_dataset_writer {
    char *path, *tokenizer, *chat_template; /* chat_template NULL: none */
    dt_image_form images;                   /* size 0: no sample has images; its text is malloc'ed */
    dt_dataset_kind kind;
    int64_t vocab_size, n_own; /* n_own: dt_dataset_set_own */
    int32_t largest;           /* largest id added so far, -1: none */
    bool open_document;
    int64_t n_documents;
    dt_temp_array column[DT_N_COLUMNS];
    bool wanted[DT_N_COLUMNS];
};

/** Name of an array in a file of this kind. */
const char *dt_column_name(dt_dataset_kind kind, dt_column c);
dt_per dt_column_per(dt_column c);
/** DT_SIDE_FIRST, DT_SIDE_SECOND, DT_RECORDS or DT_IMAGES. */
static inline int dt_column_side(dt_column c)
{
    if (c == DT_COL_RECORDS || c == DT_COL_RECORD_OFFSETS) return DT_RECORDS;
    if (c == DT_COL_PIXELS || c == DT_COL_IMAGE_OFFSETS) return DT_IMAGES;
    return c == DT_COL_SECOND_TOKENS || c == DT_COL_SECOND_OFFSETS ? DT_SIDE_SECOND : DT_SIDE_FIRST;
}

#endif
