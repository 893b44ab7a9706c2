/* new_tokens.h - a tokenizer with more tokens: the level tokens of a recommender's items, or others.
 * recommendation.md "Vocabulary". The model that it is for grows when it is exported (export.h). */
#ifndef DTRAIN_NEW_TOKENS_H
#define DTRAIN_NEW_TOKENS_H

#include "dtrain/core/core.h"

/** {0} to start from. Strings are malloc'ed. */
typedef struct dt_new_tokens {
    int32_t n_listed;          /* tokens that were asked for */
    int32_t first_id, n_added; /* of them n_added had no id, and have first_id, first_id + 1, ... now */
    int32_t n_own;             /* dt_tokenizer_info's, before */
    /* the files of the tokenizer as they are with them; NULL: it stays as it is, or there is none */
    char *tokenizer;    /* tokenizer.json */
    char *config;       /* tokenizer_config.json */
    char *added_tokens; /* added_tokens.json */
} dt_new_tokens;

/** Add tokens [n] (by rising bytes, each once) to a tokenizer, in this order, with the ids behind the largest that
 *  there is; as add_tokens of transformers does with a list of texts, they are not special and found in normalised
 *  text, but for level tokens, which are found in the text as it is. A token that has an id keeps it; one that the
 *  vocabulary has, but texts reach by merges alone, is found as a whole then.
 *
 *  tokenizer  a directory, or a tokenizer.json
 *
 *  Local. DT_ERR_DATA: a tokenizer that cannot be read; DT_ERR_USAGE: one without files ("bytes"). */
dt_err dt_new_tokens_make(dt_new_tokens *t, char *const *tokens, int32_t n, const char *tokenizer);
void dt_new_tokens_free(dt_new_tokens *t); /* safe on {0} */

#endif
