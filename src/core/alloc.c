/* alloc.c - memory helpers. They access the caller's pointer by memcpy, because it may point to any type. */
#include "dtrain/core/core.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 16 }; /* capacity of an array that grows, in elements */

static dt_err fail(const char *fmt, va_list args)
{
    char text[PATH_MAX + 512];
    vsnprintf(text, sizeof text, fmt, args);
    return dt_fail(DT_ERR_MEMORY, "%s", text);
}

static bool is_valid(int64_t n, size_t elem_size) { return n >= 0 && (uint64_t)n <= SIZE_MAX / 2 / elem_size; }

static bool resize(void *array, int64_t n, size_t elem_size)
{
    void *elems;
    memcpy(&elems, array, sizeof elems);
    elems = is_valid(n, elem_size) ? realloc(elems, n > 0 ? (size_t)n * elem_size : 1) : NULL;
    if (elems) memcpy(array, &elems, sizeof elems);
    return elems != NULL;
}

#define FAIL_UNLESS(done)                                                                                              \
    va_list args;                                                                                                      \
    if (done) return DT_OK;                                                                                            \
    va_start(args, fmt);                                                                                               \
    const dt_err err = fail(fmt, args);                                                                                \
    va_end(args);                                                                                                      \
    return err

dt_err dt_alloc(void *array, int64_t n, size_t elem_size, const char *fmt, ...)
{
    void *elems = is_valid(n, elem_size) ? calloc(n > 0 ? (size_t)n : 1, elem_size) : NULL;
    memcpy(array, &elems, sizeof elems);
    FAIL_UNLESS(elems);
}

dt_err dt_resize(void *array, int64_t n, size_t elem_size, const char *fmt, ...)
{
    FAIL_UNLESS(resize(array, n, elem_size));
}

dt_err dt_grow(void *array, int64_t n, size_t elem_size, const char *fmt, ...)
{
    const bool full = n == 0 || (n >= FIRST && (n & (n - 1)) == 0);
    FAIL_UNLESS(!full || resize(array, n < FIRST ? FIRST : 2 * n, elem_size));
}

dt_err dt_copy_text(char **copy, const char *text, const char *fmt, ...)
{
    *copy = strdup(text);
    FAIL_UNLESS(*copy);
}
