/* copy_documents.h - inputs that are datasets of other programs (dt_dataset_is_foreign). */
#ifndef DTRAIN_MAKE_COPY_DOCUMENTS_H
#define DTRAIN_MAKE_COPY_DOCUMENTS_H

#include "outputs.h"

typedef struct dt_copy_job {
    dt_outputs *outputs;
    char *const *paths; /* [n_paths] */
    int n_paths;
    dt_err (*tick)(void *self); /* called now and then; its error ends the copy */
    void *self;
} dt_copy_job;

/** Write the documents of all inputs, in order. Local. DT_ERR_DATA: a malformed dataset, or an id outside the
 *  tokenizer's vocabulary. DT_ERR_USAGE: an input of another format, or a kind that needs records. */
dt_err dt_copy_documents(const dt_copy_job *job);

#endif
