/* outputs.h - writes samples in input order to the training or the validation file, and reports statistics
 * at the end. */
#ifndef DTRAIN_DATA_MAKE_OUTPUTS_H
#define DTRAIN_DATA_MAKE_OUTPUTS_H

#include "encode_records.h"

enum { DT_TRAIN, DT_VALIDATION, DT_N_OUTPUTS };

typedef struct dt_outputs {
    const dt_make_options *opt;
    const dt_recipe *recipe;
    const char *const *inputs; /* [n_inputs] */
    int n_inputs;
    dt_make_stats *stats;
    bool kind_known, template_named;
    dt_dataset_writer *file[DT_N_OUTPUTS]; /* NULL: not written */
    /* a document of plain text in progress */
    dt_dataset_writer *to; /* NULL between documents */
    int64_t document_len;
    dt_ids held;   /* of a document that may be dropped, or whose end is kept */
    uint8_t *mask; /* [mask_alloc]: ones */
    size_t mask_alloc;
} dt_outputs;

/** DT_ERR_USAGE: two of the output (possibly shards), the validation file and the catalogue would be the
 *  same file. Different spellings of a path can only be compared if their folders exist. */
dt_err dt_outputs_differ(const dt_make_options *opt);
dt_err dt_outputs_write(dt_outputs *o, const dt_chunk *p);
/** Check that no file is empty, and write all. */
dt_err dt_outputs_commit(dt_outputs *o);
void dt_outputs_free(dt_outputs *o); /* discards everything that was not committed */

/** Count a rejected record by reason. The first n_named bytes of reason name an image. */
void dt_problems_add(dt_make_stats *stats, const dt_chunk_item *item, const char *reason, size_t n_named);

#endif
