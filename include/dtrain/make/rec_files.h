/* rec_files.h - how MiniOneRec's files write lists and items. docs/recommendation.md "Data". */
#ifndef DTRAIN_REC_FILES_H
#define DTRAIN_REC_FILES_H

#include "dtrain/core/core.h"
#include <jansson.h>

/** A Python list of strings and numbers, ['a', "b\n", 3], as a JSON array of texts (numbers as they are written).
 *  DT_ERR_DATA saying what was expected at which byte. Nothing is evaluated: what repr() writes for such a list is
 *  understood, other expressions are not. */
dt_err dt_python_list(json_t **list, const char *text, size_t nbytes);

/** DT_ERR_DATA, with the name of the file that has it, where an id cannot stand in an info file: it is empty, or has a
 *  tab or the end of a line. */
dt_err dt_check_item_id(const char *path, const char *id);

/** A line of an info file, "SID TAB title TAB id". Tabs and ends of lines part the fields: in the title they are
 *  blanks. */
void dt_info_line(FILE *f, const char *sid, const char *title, const char *id);

#endif
