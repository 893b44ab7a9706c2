/* tests.c - tests of Jinja2 that chat templates use (jinja2/tests.py). */
#include "strings.h"

#define TEST(name, what)                                                                                               \
    static dt_jv name(dt_jctx *x, dt_jv v, const dt_jv *a, const dt_jargs *args) { return dt_jv_bool(what); }

static int64_t whole(dt_jctx *x, dt_jv v) { return dt_jv_to_int(x, v, "test"); }
static bool walks(dt_jv v)
{
    return dt_jv_has_list(v) || v.kind == DT_J_STRING || v.kind == DT_J_DICT || v.kind == DT_J_UNDEFINED;
}
static bool calls(dt_jv v) { return v.kind >= DT_J_MACRO; }
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
static bool same(dt_jctx *x, dt_jv a, dt_jv b) { return a.kind == b.kind && dt_jv_equal(x, a, b); }

TEST(is_boolean, v.kind == DT_J_BOOL)
TEST(is_callable, calls(v))
TEST(is_defined, v.kind != DT_J_UNDEFINED)
TEST(is_divisible, divides(x, v, a[0]))
TEST(is_equal, dt_jv_equal(x, v, a[0]))
TEST(is_escaped, v.kind == DT_J_STRING && v.safe)
TEST(is_even, whole(x, v) % 2 == 0)
TEST(is_false, v.kind == DT_J_BOOL && !v.u.b)
TEST(is_float, v.kind == DT_J_FLOAT)
TEST(is_at_least, dt_jinja_compare(x, ">=", v, a[0]))
TEST(is_above, dt_jinja_compare(x, ">", v, a[0]))
TEST(is_in, dt_jv_in(x, v, a[0]))
TEST(is_integer, v.kind == DT_J_INT)
TEST(is_iterable, walks(v))
TEST(is_at_most, dt_jinja_compare(x, "<=", v, a[0]))
TEST(is_lower, has_case(x, v, DT_JCASE_LOWER))
TEST(is_below, dt_jinja_compare(x, "<", v, a[0]))
TEST(is_mapping, v.kind == DT_J_DICT)
TEST(is_other, !dt_jv_equal(x, v, a[0]))
TEST(is_none, v.kind == DT_J_NONE)
TEST(is_number, dt_jv_is_number(v))
TEST(is_odd, whole(x, v) % 2 != 0)
TEST(is_same, same(x, v, a[0]))
TEST(is_sequence, walks(v) && v.kind != DT_J_VIEW && v.kind != DT_J_ITERATOR)
TEST(is_string, v.kind == DT_J_STRING)
TEST(is_true, v.kind == DT_J_BOOL && v.u.b)
TEST(is_undefined, v.kind == DT_J_UNDEFINED)
TEST(is_upper, has_case(x, v, DT_JCASE_UPPER))

static const dt_jfunction tests[] = {
    {"boolean", "", 0, is_boolean},
    {"callable", "", 0, is_callable},
    {"defined", "", 0, is_defined},
    {"divisibleby", "num", 1, is_divisible},
    {"eq", "other", 1, is_equal},
    {"equalto", "other", 1, is_equal},
    {"==", "other", 1, is_equal},
    {"escaped", "", 0, is_escaped},
    {"even", "", 0, is_even},
    {"false", "", 0, is_false},
    {"float", "", 0, is_float},
    {"ge", "other", 1, is_at_least},
    {">=", "other", 1, is_at_least},
    {"gt", "other", 1, is_above},
    {"greaterthan", "other", 1, is_above},
    {">", "other", 1, is_above},
    {"in", "seq", 1, is_in},
    {"integer", "", 0, is_integer},
    {"iterable", "", 0, is_iterable},
    {"le", "other", 1, is_at_most},
    {"<=", "other", 1, is_at_most},
    {"lower", "", 0, is_lower},
    {"lt", "other", 1, is_below},
    {"lessthan", "other", 1, is_below},
    {"<", "other", 1, is_below},
    {"mapping", "", 0, is_mapping},
    {"ne", "other", 1, is_other},
    {"!=", "other", 1, is_other},
    {"none", "", 0, is_none},
    {"number", "", 0, is_number},
    {"odd", "", 0, is_odd},
    {"sameas", "other", 1, is_same},
    {"sequence", "", 0, is_sequence},
    {"string", "", 0, is_string},
    {"true", "", 0, is_true},
    {"undefined", "", 0, is_undefined},
    {"upper", "", 0, is_upper},
};

const dt_jfunction *dt_jinja_test(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strcmp(tests[i].name, name) == 0) return &tests[i];
    return NULL;
}
