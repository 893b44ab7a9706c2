/* auto.h - the tokenizer that AutoTokenizer of transformers 5 creates from a directory: tokenizer.json, as
 * modified by the files next to it. */
#ifndef DTRAIN_TEXT_AUTO_H
#define DTRAIN_TEXT_AUTO_H

#include "added.h"

/** Files next to tokenizer.json, each a JSON object; value NULL: the file does not exist. */
enum { DT_AUTO_CONFIG, DT_AUTO_MAP, DT_AUTO_ADDED, DT_AUTO_MODEL, DT_N_AUTO_FILES };
typedef struct dt_auto_files {
    dt_spec file[DT_N_AUTO_FILES]; /* tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json */
    char *path[DT_N_AUTO_FILES];
    dt_spec decoder; /* added_tokens_decoder of CONFIG; value NULL: missing, MAP and ADDED are used instead */
    /* while a tokenizer.model is read (spm.h): it stands for tokenizer.json; tokens of the files are matched in the raw
     * text; names of its tokens, {"bos_token": ...}, for classes without their own */
    bool from_model, raw;
    json_t *spm_names;
} dt_auto_files;
/** DT_ERR_DATA names the file. Must be closed, also after an error. */
dt_err dt_auto_open(dt_auto_files *f, const char *directory);
void dt_auto_close(dt_auto_files *f); /* safe on {0} */

/** Get a named special token (bos_token, ...) from the file that takes precedence: a string, or an object
 *  with its content. false: missing or null. */
bool dt_auto_token(const dt_auto_files *f, const char *key, dt_spec *token);
/** Text of a string or of an object with a content. DT_ERR_DATA. */
dt_err dt_auto_content(const dt_spec *token, const char **text, size_t *n);

static inline bool dt_auto_is_id(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= DT_VOCAB_MAX_ID;
}

/** Class that AutoTokenizer chooses. BACKEND keeps the stages of tokenizer.json. The others build their
 *  own stages and use only vocabulary, merges and post-processor of the file. */
typedef enum dt_auto_class {
    DT_AUTO_BACKEND,
    DT_AUTO_GPT2,
    DT_AUTO_QWEN2,
    DT_AUTO_QWEN3_5,
    DT_AUTO_LLAMA,
    DT_AUTO_CODE_LLAMA
} dt_auto_class;
dt_auto_class dt_auto_class_of(const dt_auto_files *f, const dt_spec *root);
/** Default text of a named token of the class or of tokenizer.model, if no file has it; "" for none. key: bos_token,
 *  ... */
const char *dt_auto_default(dt_auto_class c, const dt_auto_files *f, const char *key);
#define DT_SPACE_SIGN "\xe2\x96\x81" /* U+2581, which SentencePiece writes for a space */
/** A decoder that writes spaces for U+2581, and optionally bytes, all as one text, without a space at its start. NULL:
 *  no memory. */
json_t *dt_auto_decoder(bool byte_fallback, bool fuse, bool strip);
/** Write the stages of the class into root, the parsed tokenizer.json; *changed: they differ. DT_ERR_MEMORY. */
dt_err dt_auto_build(dt_auto_class c, const dt_auto_files *f, const dt_spec *root, bool *changed);

/** Collect all added tokens with their ids, for dt_added_read. vocab: only the model's. *changed: a token
 *  is missing in tokenizer.json or has other flags there. n_own: see dt_tokenizer_info. *names: out, a new reference,
 *  the named special tokens as variables of a chat template: {"bos_token": "<s>", ...}; also after an error, or NULL.
 *  DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_auto_tokens(dt_added_list *list, dt_auto_class c, const dt_auto_files *f, const dt_spec *root,
                      const dt_vocab *vocab, bool *changed, int32_t *n_own, json_t **names);

#endif
