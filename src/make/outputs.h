/* outputs.h - samples, in the order of the input, to the training or the validation file; and what is said about them
 * in the end. */
#ifndef DTRAIN_DATA_MAKE_OUTPUTS_H
#define DTRAIN_DATA_MAKE_OUTPUTS_H

#include "encode_records.h"

typedef struct dt_outputs {
    const dt_make_options *opt;
    const dt_recipe *recipe;
    const char *const *inputs; /* [n_inputs] files that are read */
    int n_inputs;
    dt_make_stats *stats;
    bool kind_known, template_named;
    dt_dataset_writer *train, *validation;
    /* a document of plain text that comes in pieces */
    dt_dataset_writer *to; /* NULL between documents */
    int64_t document_len;
    dt_ids held;   /* of a document that may yet be dropped, or whose end is kept */
    uint8_t *mask; /* [mask_alloc]: ones */
    size_t mask_alloc;
} dt_outputs;

/** DT_ERR_USAGE: two of the output, which may be shards, the validation file and the catalogue would be one file. What
 *  two spellings have in common shows only when their folders are there. */
dt_err dt_outputs_differ(const dt_make_options *opt);
dt_err dt_outputs_write(dt_outputs *o, const dt_chunk *p);
/** Check that there is something in each file, and make them. */
dt_err dt_outputs_commit(dt_outputs *o);
void dt_outputs_free(dt_outputs *o); /* nothing stays behind of what was not committed */

/** Count a record that is left out, with its reason, whose first n_named bytes name an image. */
void dt_problems_add(dt_make_stats *stats, const dt_chunk_item *item, const char *reason, size_t n_named);

#endif
