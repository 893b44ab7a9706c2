/* token_list.h - tokens that a vocabulary is to have: the level tokens of a recommender's items, or others. */
#ifndef DTRAIN_TOKEN_LIST_H
#define DTRAIN_TOKEN_LIST_H

#include "dtrain/core/core.h"

/** {0} to start from. */
typedef struct dt_token_list {
    char **token; /* [n] by rising bytes, each once */
    int32_t n;    /* at least 1 */
} dt_token_list;

/** Read a list: NAME.index.json of MiniOneRec (item id: list of level tokens) where its name ends in .json; an info
 *  file (catalogue.h) where there is a tab in it; else a token a line, blank lines and a byte order mark passed over.
 *  Local. DT_ERR_DATA naming file and item or line: no such file, no tokens, what is no level token, text that is not
 *  UTF-8. */
dt_err dt_token_list_read(dt_token_list *l, const char *path);
void dt_token_list_free(dt_token_list *l); /* safe on {0} */

#endif
