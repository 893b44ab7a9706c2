/* tests.c - tests of Jinja2 that chat templates use (jinja2/tests.py). */
#include "strings.h"

static int64_t whole(dt_jctx *x, dt_jv v) { return dt_jv_to_int(x, v, "test"); }
static bool walks(dt_jv v)
{
    return dt_jv_has_list(v) || v.kind == DT_J_STRING || v.kind == DT_J_DICT || v.kind == DT_J_UNDEFINED;
}
static bool divides(dt_jctx *x, dt_jv v, dt_jv by)
{
    if (whole(x, by) == 0) dt_jinja_fail(x, "division by zero");
    return dt_jv_equal(x, dt_jinja_binary(x, "%", v, by), dt_jv_int(0));
}
static bool has_case(dt_jctx *x, dt_jv v, dt_jcase how)
{
    const dt_jv s = dt_jv_str(x, v),
                other = dt_jstring_case(x, s, how == DT_JCASE_LOWER ? DT_JCASE_UPPER : DT_JCASE_LOWER);
    return dt_jv_equal(x, s, dt_jstring_case(x, s, how)) && !dt_jv_equal(x, s, other);
}

/* Name, name of the argument or "", and condition. */
#define TESTS(T)                                                                                                       \
    T(boolean, "", v.kind == DT_J_BOOL)                                                                                \
    T(callable, "", v.kind >= DT_J_MACRO)                                                                              \
    T(defined, "", v.kind != DT_J_UNDEFINED)                                                                           \
    T(divisibleby, "num", divides(x, v, a[0]))                                                                         \
    T(eq, "other", dt_jv_equal(x, v, a[0]))                                                                            \
    T(escaped, "", v.kind == DT_J_STRING && v.safe)                                                                    \
    T(even, "", whole(x, v) % 2 == 0)                                                                                  \
    T(false, "", v.kind == DT_J_BOOL && !v.u.b)                                                                        \
    T(float, "", v.kind == DT_J_FLOAT)                                                                                 \
    T(ge, "other", dt_jinja_compare(x, ">=", v, a[0]))                                                                 \
    T(gt, "other", dt_jinja_compare(x, ">", v, a[0]))                                                                  \
    T(in, "seq", dt_jv_in(x, v, a[0]))                                                                                 \
    T(integer, "", v.kind == DT_J_INT)                                                                                 \
    T(iterable, "", walks(v))                                                                                          \
    T(le, "other", dt_jinja_compare(x, "<=", v, a[0]))                                                                 \
    T(lower, "", has_case(x, v, DT_JCASE_LOWER))                                                                       \
    T(lt, "other", dt_jinja_compare(x, "<", v, a[0]))                                                                  \
    T(mapping, "", v.kind == DT_J_DICT)                                                                                \
    T(ne, "other", !dt_jv_equal(x, v, a[0]))                                                                           \
    T(none, "", v.kind == DT_J_NONE)                                                                                   \
    T(number, "", dt_jv_is_number(v))                                                                                  \
    T(odd, "", whole(x, v) % 2 != 0)                                                                                   \
    T(sameas, "other", v.kind == a[0].kind && dt_jv_equal(x, v, a[0]))                                                 \
    T(sequence, "", walks(v) && v.kind != DT_J_VIEW && v.kind != DT_J_ITERATOR)                                        \
    T(string, "", v.kind == DT_J_STRING)                                                                               \
    T(true, "", v.kind == DT_J_BOOL && v.u.b)                                                                          \
    T(undefined, "", v.kind == DT_J_UNDEFINED)                                                                         \
    T(upper, "", has_case(x, v, DT_JCASE_UPPER))

#define FUNCTION(name, params, holds)                                                                                  \
    static dt_jv is_##name(dt_jctx *x, dt_jv v, const dt_jv *a, const dt_jargs *args) { return dt_jv_bool(holds); }
TESTS(FUNCTION)

#define ROW(name, params, holds) {#name, params, sizeof(params) > 1, is_##name},
const dt_jfunction dt_jtests[] = {
    TESTS(ROW)
    /* other names */
    {"equalto", "other", 1, is_eq},
    {"==", "other", 1, is_eq},
    {">=", "other", 1, is_ge},
    {"greaterthan", "other", 1, is_gt},
    {">", "other", 1, is_gt},
    {"<=", "other", 1, is_le},
    {"lessthan", "other", 1, is_lt},
    {"<", "other", 1, is_lt},
    {"!=", "other", 1, is_ne},
    {NULL, NULL, 0, NULL},
};
