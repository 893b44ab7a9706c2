/* writer.h - a dataset under way: arrays that grow in temporary files, and what they will be called. writer.c fills
 * them, commit.c makes files of them. */
#ifndef DTRAIN_DATA_WRITER_H
#define DTRAIN_DATA_WRITER_H

#include "dataset_file.h"
#include "temp_array.h"

/* What an array has one element of, and how it is cut into shards. */
typedef enum dt_per {
    DT_PER_TOKEN,
    DT_PER_SAMPLE,
    DT_PER_OFFSET
} dt_per; /* of records, a byte is a token; so is an image */

/* Every array that a dataset can have. It is kept when its dt_temp_array has a path,
 * and written when it is wanted, too. */
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
    DT_COL_PAIR_MARKS, /* in no file: what its attributes count */
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
    dt_image_form images;                   /* size 0: no sample has any; its text is malloc'ed */
    dt_dataset_kind kind;
    int64_t vocab_size, n_own; /* n_own: dt_dataset_set_own */
    int32_t largest;           /* id that was added, -1: none yet */
    bool open_document;
    int64_t n_documents;
    dt_temp_array column[DT_N_COLUMNS];
    bool wanted[DT_N_COLUMNS];
};

/** How an array is called in a file of this kind, and what it has an element of. */
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
