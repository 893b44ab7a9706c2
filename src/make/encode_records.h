/* encode_records.h - converts records to samples: ids, masks, end of text, truncation. algorithms.md 1.1. */
#ifndef DTRAIN_DATA_MAKE_ENCODE_H
#define DTRAIN_DATA_MAKE_ENCODE_H

#include "parse_record.h"
#include "chunk.h"
#include "dtrain/image/image.h"

/** Settings for all samples of a run; shared by the threads. */
typedef struct dt_recipe {
    dt_rules rules;
    const dt_tokenizer *tokenizer;
    int64_t max_length; /* 0: no limit */
    bool append_eos;
    const dt_image_form *images; /* NULL: records have no images */
    const dt_preprocessor *preprocessor;
} dt_recipe;

/** How a sample of this kind is shortened if it is too long. */
dt_truncate dt_truncate_of(const dt_recipe *r, dt_dataset_kind kind);

uint64_t dt_hash_bytes(const void *data, size_t n);

/** Append the sample of one record to the chunk's ids and masks. DT_ERR_DATA with the reason: a limit was
 *  exceeded. The caller then removes what was appended. */
dt_err dt_encode_record(const dt_recipe *recipe, dt_encoder *e, const dt_parsed_record *record, dt_chunk *p,
                        dt_sample *s);
/** Append a document of plain text, or a piece of one. The writer handles its end and its length limit. */
dt_err dt_encode_text(const dt_recipe *recipe, dt_encoder *e, const char *text, size_t nbytes, bool begins, dt_chunk *p,
                      dt_sample *s);

/** Read and preprocess the images of a record, and append them to the chunk. DT_ERR_DATA names an
 *  unreadable image. */
dt_err dt_encode_images(const dt_recipe *recipe, const dt_parsed_record *record, dt_chunk *p, dt_sample *s);
/** The cells of each image of a sample: [n_whole_images], freed with free; NULL: images are not grids. */
dt_err dt_count_cells(const dt_recipe *recipe, const dt_chunk *p, const dt_sample *s, int32_t **n_cells);
/** Encode the turns of a chat, each within its share of max_length (budgets.c). */
dt_err dt_encode_turns(const dt_recipe *recipe, dt_encoder *e, const dt_text_side *side, dt_ids *ids, uint8_t **mask,
                       bool *cut);

/** Encode the units of a record, and mark the first token of each (encode_units.c). */
dt_err dt_encode_units(const dt_recipe *recipe, dt_encoder *e, const dt_text_side *side, dt_chunk *p, dt_sample *s);

#endif
