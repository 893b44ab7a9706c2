/* tokenizer_files.h - the files that make a tokenizer, as they travel with a model. Private to checkpoint. */
#ifndef DTRAIN_CHECKPOINT_TOKENIZER_FILES_H
#define DTRAIN_CHECKPOINT_TOKENIZER_FILES_H

#include "dtrain/core.h"

/** Is any file of a tokenizer in the directory? */
bool tokenizer_dir_has_files(const char *dir);

#endif
