/* tokenizer_files.h - the tokenizer files that are stored with a model. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_TOKENIZER_FILES_H
#define DTRAIN_PRETRAINED_TOKENIZER_FILES_H

#include "dtrain/pretrained/export.h"

/** Does the directory contain any tokenizer file? */
bool tokenizer_dir_has_files(const char *dir);

/** Write the files of a tokenizer, with new tokens, chat_template.jinja and generation_config.json, to DIR/NAME.part,
 *  synced. DT_ERR_DATA, DT_ERR_WRITE. */
dt_err tokenizer_files_create(const dt_export_options *opt, const char *dir);
/** Rename every DIR/NAME.part. If these include a tokenizer, remove files of an earlier tokenizer that have other
 *  names. DT_ERR_WRITE. */
dt_err tokenizer_files_publish(const char *dir);
/** Remove every DIR/NAME.part. */
void tokenizer_files_discard(const char *dir);

/** Replace the key's value in the text of a valid JSON object, or add it if missing (new_tokens.c). malloc'ed; NULL:
 *  out of memory. */
char *tokenizer_with_value(const char *text, const char *key, const json_t *value);

/* bytes_tokenizer.c: the tokenizer "bytes" in Hugging Face format: byte-level BPE without merges. malloc'ed, NULL: out
 * of memory. */
char *bytes_tokenizer_json(void);
char *bytes_tokenizer_config_json(void);
enum { BYTES_EOS = 256 };

#endif
