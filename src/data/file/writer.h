/* writer.h - a dataset being written: arrays that grow in temporary files, and their names in the final
 * file. writer.c fills them; commit.c converts them to dataset files. */
#ifndef DTRAIN_DATA_WRITER_H
#define DTRAIN_DATA_WRITER_H

#include "dataset_file.h"
#include "temp_array.h"

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
    dt_temp_array column[DT_N_COLUMNS]; /* path NULL: the kind has no such array */
    bool wanted[DT_N_COLUMNS];          /* the commit writes it */
};

#endif
