/* llava_head.h - whether the head of a llava-hf directory is its embedding. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_LLAVA_HEAD_H
#define DTRAIN_PRETRAINED_LLAVA_HEAD_H

#include "dtrain/core/core.h"

/** Where config.json of llava says tie_word_embeddings in the one place and not in the other: true or false in both, by
 *  the weights of the directory. *text, that of config.json, is replaced. Other texts stay as they are, and so does one
 *  without weights. DT_ERR_DATA. */
dt_err llava_settle_head(char **text, const char *name, const char *dir);

#endif
