/* normal_form.c - Unicode normal forms, by utf8proc. */
#include "dtrain/text/unicode.h"

#ifndef DT_HAVE_UTF8PROC

dt_err dt_unicode_check_forms(void)
{
    return dt_fail(DT_ERR_USAGE, "Unicode normalisation needs utf8proc, and this program was built without it: "
                                 "install utf8proc (Debian: libutf8proc-dev), then make");
}

dt_err dt_unicode_form(const char *text, size_t n, unsigned how, char **formed, size_t *n_formed)
{
    return dt_unicode_check_forms();
}

#else

#include <stdlib.h>
#include <utf8proc.h>

enum { OLDEST_UNICODE = 12 }; /* version of the data of DT_UNICODE_NORMAL */

dt_err dt_unicode_check_forms(void)
{
    DT_CHECK(atof(utf8proc_unicode_version()) >= OLDEST_UNICODE, DT_ERR_DATA,
             "Unicode normalisation needs the library utf8proc with Unicode %d or later, found %s", OLDEST_UNICODE,
             utf8proc_unicode_version());
    return DT_OK;
}

dt_err dt_unicode_form(const char *text, size_t n, unsigned how, char **formed, size_t *n_formed)
{
    utf8proc_uint8_t *out = NULL;
    const utf8proc_option_t option = UTF8PROC_STABLE | (how & DT_FORM_COMPATIBLE ? UTF8PROC_COMPAT : 0) |
                                     (how & DT_FORM_COMPOSED ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (how & DT_FORM_CASE_FOLDED ? UTF8PROC_CASEFOLD : 0);
    const utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &out, option);
    DT_CHECK(length >= 0, length == UTF8PROC_ERROR_NOMEM ? DT_ERR_MEMORY : DT_ERR_DATA,
             "a text cannot be normalised: %s", utf8proc_errmsg(length));
    *formed = (char *)out;
    *n_formed = (size_t)length;
    return DT_OK;
}

#endif
