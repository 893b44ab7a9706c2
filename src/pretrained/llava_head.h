/* llava_head.h - whether the head of a llava-hf directory is its embedding. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_LLAVA_HEAD_H
#define DTRAIN_PRETRAINED_LLAVA_HEAD_H

#include "dtrain/core/core.h"

/** If tie_word_embeddings differs between the two objects of LLaVA's config.json, set both to the value that the
 *  weights of the directory show. *text, that of config.json, is replaced. It is unchanged for other models and without
 *  weights. DT_ERR_DATA. */
dt_err llava_settle_head(char **text, const char *name, const char *dir);

#endif
