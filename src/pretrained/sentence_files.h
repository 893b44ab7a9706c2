/* sentence_files.h - the files by which sentence-transformers opens an exported model. Private to src/pretrained. */
#ifndef DTRAIN_PRETRAINED_SENTENCE_FILES_H
#define DTRAIN_PRETRAINED_SENTENCE_FILES_H

#include "dtrain/core/core.h"

/** Write modules.json, 1_Pooling, 2_Normalize and config_sentence_transformers.json, if model_config has an object
 *  sentence_transformers (task embed). Local. DT_ERR_WRITE, DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err sentence_files_write(const char *dir, const char *model_config);

#endif
