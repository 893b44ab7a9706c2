/* strings.h - shared by filters and methods of strings. */
#ifndef DTRAIN_TEXT_JINJA_STRINGS_H
#define DTRAIN_TEXT_JINJA_STRINGS_H

#include "jinja_private.h"

typedef enum dt_jcase { DT_JCASE_LOWER, DT_JCASE_UPPER, DT_JCASE_CAPITALIZE, DT_JCASE_TITLE } dt_jcase;
dt_jv dt_jstring_case(dt_jctx *x, dt_jv s, dt_jcase how);

enum { DT_JSTRIP_LEFT = 1, DT_JSTRIP_RIGHT = 2 };
/** chars: characters to strip; not a string: white space. */
dt_jv dt_jstring_strip(dt_jctx *x, dt_jv s, dt_jv chars, unsigned sides);
/** max < 0: no limit. */
dt_jv dt_jstring_replace(dt_jctx *x, dt_jv s, dt_jv from, dt_jv to, int64_t max);
dt_jv dt_jstring_join(dt_jctx *x, dt_jv between, const dt_jlist *parts);
/** Lines without line ends, as str.splitlines. */
dt_jv dt_jstring_lines(dt_jctx *x, dt_jv s);

#endif
