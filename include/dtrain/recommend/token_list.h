/* token_list.h - reads a list of tokens to add to a vocabulary: level tokens of a recommender's items, or others. */
#ifndef DTRAIN_TOKEN_LIST_H
#define DTRAIN_TOKEN_LIST_H

#include "dtrain/core/core.h"

/** A list of tokens. {0} to begin; freed with dt_token_list_free. */
typedef struct dt_token_list {
    char **token; /* [n] sorted by bytes, each once */
    int32_t n;    /* at least 1 */
} dt_token_list;

/** Read a list: MiniOneRec's NAME.index.json (item id: list of level tokens) if the name ends in .json; an info file
 *  (catalogue.h) if it contains a tab; otherwise one token per line, where blank lines and a byte order mark are
 *  ignored. Local. DT_ERR_DATA naming file and item or line: no such file, no tokens, not a level token, not UTF-8.
 *  DT_ERR_MEMORY. */
dt_err dt_token_list_read(dt_token_list *l, const char *path);
/** Free the list. Local. Safe on {0}. */
void dt_token_list_free(dt_token_list *l);

#endif
