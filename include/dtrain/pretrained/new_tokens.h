/* new_tokens.h - adds tokens to a tokenizer: level tokens of a recommender's items, or others. recommendation.md
 * "Vocabulary". The model gets rows for them when it is exported (export.h). */
#ifndef DTRAIN_NEW_TOKENS_H
#define DTRAIN_NEW_TOKENS_H

#include "dtrain/core/core.h"

/** An extended tokenizer. {0} to begin; freed with dt_new_tokens_free. Strings are malloc'ed. */
typedef struct dt_new_tokens {
    int32_t n_listed;          /* number of requested tokens */
    int32_t first_id, n_added; /* n_added of them had no id, and now have first_id, first_id + 1, ... */
    int32_t n_own;             /* dt_tokenizer_info.n_own of the original tokenizer */
    /* texts of the tokenizer's new files; NULL: unchanged, or no such file */
    char *tokenizer;    /* tokenizer.json */
    char *config;       /* tokenizer_config.json */
    char *added_tokens; /* added_tokens.json */
} dt_new_tokens;

/** Add tokens [n] (sorted by bytes, each once) to a tokenizer, in this order, with ids after the largest one. As with
 *  transformers' add_tokens for a list of texts, they are not special, and are recognised in normalised text; level
 *  tokens are recognised in the original text. A token with an id keeps it. A token of the vocabulary that texts only
 *  reach by merges is now recognised as a whole.
 *
 *  tokenizer  a directory, or a tokenizer.json
 *
 *  Local. DT_ERR_DATA: a tokenizer that cannot be read; DT_ERR_USAGE: one without files ("bytes"). */
dt_err dt_new_tokens_make(dt_new_tokens *t, char *const *tokens, int32_t n, const char *tokenizer);
/** Free the texts. Local. Safe on {0}. */
void dt_new_tokens_free(dt_new_tokens *t);

#endif
