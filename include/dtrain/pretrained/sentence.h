/* sentence.h - how the embedding of a text follows from the hidden states of its tokens, as sentence-transformers
 * stores it. */
#ifndef DTRAIN_SENTENCE_H
#define DTRAIN_SENTENCE_H

#include "dtrain/core/core.h"

typedef enum dt_pooling { DT_POOL_LAST, DT_POOL_MEAN, DT_POOL_FIRST } dt_pooling;
typedef struct dt_sentence_options {
    dt_pooling pooling;
    bool normalize; /* divide the embedding by its length */
} dt_sentence_options;

/** last, mean or cls; and back. Local. */
dt_pooling dt_pooling_of(const char *name);
const char *dt_pooling_name(dt_pooling pooling);
/** The options of a model: of a run's config.json, or of the files in its directory. If neither says, they are last and
 *  normalize. dir: may be NULL. Local. DT_ERR_DATA. */
dt_err dt_sentence_read(dt_sentence_options *o, const char *dir, const char *model_config);
/** Compute the embedding of a text from the hidden states [n, width] of its tokens. x: out [width]. Local. */
void dt_sentence_pool(dt_pooling pooling, const float *hidden, int64_t n, int64_t width, double *x);

#endif
