/* rec_files.h - formats of lists and items in MiniOneRec's files. docs/recommendation.md "Data". Every function is
 * Local. */
#ifndef DTRAIN_REC_FILES_H
#define DTRAIN_REC_FILES_H

#include "dtrain/core/core.h"
#include <jansson.h>

/** Parse a Python list of strings and numbers, ['a', "b\n", 3], to a JSON array of texts (numbers as written). Only the
 *  output of repr() for such a list is accepted; nothing is evaluated. list: out, freed with json_decref. DT_ERR_DATA
 *  naming byte and expectation. DT_ERR_MEMORY. */
dt_err dt_python_list(json_t **list, const char *text, size_t nbytes);

/** DT_ERR_DATA naming path: an id cannot be stored in an info file, because it is empty or contains a tab or line
 *  end. */
dt_err dt_check_item_id(const char *path, const char *id);

/** Write a line of an info file, "SID TAB title TAB id". Tabs and line ends in the title become blanks. */
void dt_info_line(FILE *f, const char *sid, const char *title, const char *id);

#endif
