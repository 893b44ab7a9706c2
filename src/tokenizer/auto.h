/* auto.h - the tokenizer that AutoTokenizer of transformers 5 makes of a directory: tokenizer.json with what the files
 * next to it change. */
#ifndef DTRAIN_TEXT_AUTO_H
#define DTRAIN_TEXT_AUTO_H

#include "added.h"

/** Files next to tokenizer.json, each an object; value NULL: it does not exist. */
enum { DT_AUTO_CONFIG, DT_AUTO_MAP, DT_AUTO_ADDED, DT_AUTO_MODEL, DT_N_AUTO_FILES };
typedef struct dt_auto_files {
    dt_spec file[DT_N_AUTO_FILES]; /* tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json */
    char *path[DT_N_AUTO_FILES];
    const dt_spec *decoder; /* added_tokens_decoder of CONFIG; NULL: it has none, and MAP and ADDED count */
    dt_spec decoder_value;
} dt_auto_files;
/** DT_ERR_DATA naming the file. Free it in any case. */
dt_err dt_auto_open(dt_auto_files *f, const char *directory);
void dt_auto_close(dt_auto_files *f); /* safe on {0} */

/** A named special token (bos_token, ...), as the file that counts has it: a string, or an object with its content.
 *  False: none does, or it is null. */
bool dt_auto_token(const dt_auto_files *f, const char *key, dt_spec *token);
/** The text of a string or of an object with a content. DT_ERR_DATA. */
dt_err dt_auto_content(const dt_spec *token, const char **text, size_t *n);

/** The class that AutoTokenizer chooses. BACKEND leaves the stages of tokenizer.json as they are; the others build
 *  their own, with the vocabulary, merges and post-processor of the file. */
typedef enum dt_auto_class {
    DT_AUTO_BACKEND,
    DT_AUTO_GPT2,
    DT_AUTO_QWEN2,
    DT_AUTO_LLAMA,
    DT_AUTO_CODE_LLAMA
} dt_auto_class;
dt_auto_class dt_auto_class_of(const dt_auto_files *f, const dt_spec *root);
/** The text of a named token that no file has, "" for none: what the class takes. key: bos_token, ... */
const char *dt_auto_default(dt_auto_class c, const dt_auto_files *f, const char *key);
/** The named special tokens that the tokenizer has, as variables of a chat template: {"bos_token": "<s>", ...}.
 *  DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_auto_names(json_t **names, dt_auto_class c, const dt_auto_files *f, const dt_spec *root);
/** Put the stages of the class into root, the parsed tokenizer.json; *changed: are they others? DT_ERR_MEMORY. */
dt_err dt_auto_build(dt_auto_class c, const dt_auto_files *f, const dt_spec *root, bool *changed);

/** All added tokens with their ids, in a list for dt_added_read. vocab: of the model alone. *changed: is there one that
 *  tokenizer.json lacks or has with other flags? n_own: ids below are known without special tokens that have a name
 *  alone. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_auto_tokens(dt_added_list *list, dt_auto_class c, const dt_auto_files *f, const dt_spec *root,
                      const dt_vocab *vocab, bool *changed, int32_t *n_own);

#endif
