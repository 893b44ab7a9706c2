/* op_args.h - for files that include op_list.h: the arguments of an entry as parameters, as a struct and in calls, and
 * the struct dt_<op>_args of each operation. */
#ifndef DTRAIN_OP_ARGS_H
#define DTRAIN_OP_ARGS_H

#include "dtrain/device/device_ops.h"

/** The parameters of a function of the table: `dt_err cpu_add DT_OP_PARAMS(...);` */
#define DT_OP_PARAMS(...) (dt_device * dev DT_EACH(DT_PARAM_, __VA_ARGS__), dt_stream * stream)
#define DT_SIZE_PARAMS(...) (const dt_device *dev DT_EACH(DT_PARAM_, __VA_ARGS__))

/** DT_EACH(M_, IN(void, a), VAL(int64_t, n)): M_IN(void, a) M_VAL(int64_t, n). */
#define DT_EACH(m, ...) DT_EACH_OF(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, )(m, __VA_ARGS__)
#define DT_EACH_OF(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) DT_EACH_##count
#define DT_EACH_1(m, a) m##a
#define DT_EACH_2(m, a, ...) m##a DT_EACH_1(m, __VA_ARGS__)
#define DT_EACH_3(m, a, ...) m##a DT_EACH_2(m, __VA_ARGS__)
#define DT_EACH_4(m, a, ...) m##a DT_EACH_3(m, __VA_ARGS__)
#define DT_EACH_5(m, a, ...) m##a DT_EACH_4(m, __VA_ARGS__)
#define DT_EACH_6(m, a, ...) m##a DT_EACH_5(m, __VA_ARGS__)
#define DT_EACH_7(m, a, ...) m##a DT_EACH_6(m, __VA_ARGS__)
#define DT_EACH_8(m, a, ...) m##a DT_EACH_7(m, __VA_ARGS__)
#define DT_EACH_9(m, a, ...) m##a DT_EACH_8(m, __VA_ARGS__)
#define DT_EACH_10(m, a, ...) m##a DT_EACH_9(m, __VA_ARGS__)
#define DT_EACH_11(m, a, ...) m##a DT_EACH_10(m, __VA_ARGS__)
#define DT_EACH_12(m, a, ...) m##a DT_EACH_11(m, __VA_ARGS__)
#define DT_EACH_13(m, a, ...) m##a DT_EACH_12(m, __VA_ARGS__)
#define DT_EACH_14(m, a, ...) m##a DT_EACH_13(m, __VA_ARGS__)
#define DT_EACH_15(m, a, ...) m##a DT_EACH_14(m, __VA_ARGS__)
#define DT_EACH_16(m, a, ...) m##a DT_EACH_15(m, __VA_ARGS__)

#define DT_PARAM_IN(type, name) , const type *name
#define DT_PARAM_OUT(type, name) , type *name
#define DT_PARAM_INOUT DT_PARAM_OUT
#define DT_PARAM_DESC DT_PARAM_IN
#define DT_PARAM_VAL(type, name) , type name
#define DT_PARAM_CHECK(call)

/** The arguments of an operation, descriptions included: dt_add_args. */
#define DT_OP(op, ...)                                                                                                 \
    typedef struct dt_##op##_args {                                                                                    \
        DT_EACH(DT_FIELD_, __VA_ARGS__)                                                                                \
    } dt_##op##_args;
#define DT_FIELD_IN(type, name) const type *name;
#define DT_FIELD_OUT(type, name) type *name;
#define DT_FIELD_INOUT DT_FIELD_OUT
#define DT_FIELD_DESC(type, name) type name;
#define DT_FIELD_VAL(type, name) type name;
#define DT_FIELD_CHECK(call)
#include "dtrain/device/op_list.h"

/** The fields of dt_<op>_args from the parameters, for an initialiser. */
#define DT_TAKE_IN(type, name) .name = name,
#define DT_TAKE_OUT DT_TAKE_IN
#define DT_TAKE_INOUT DT_TAKE_IN
#define DT_TAKE_DESC(type, name) .name = *name,
#define DT_TAKE_VAL DT_TAKE_IN
#define DT_TAKE_CHECK(call)

/** The arguments of a call from the parameters. */
#define DT_NAME_IN(type, name) , name
#define DT_NAME_OUT DT_NAME_IN
#define DT_NAME_INOUT DT_NAME_IN
#define DT_NAME_DESC DT_NAME_IN
#define DT_NAME_VAL DT_NAME_IN
#define DT_NAME_CHECK(call)

/** The arguments of a call from the fields of x, a dt_<op>_args. */
#define DT_PASS_IN(type, name) , x->name
#define DT_PASS_OUT DT_PASS_IN
#define DT_PASS_INOUT DT_PASS_IN
#define DT_PASS_DESC(type, name) , &x->name
#define DT_PASS_VAL DT_PASS_IN
#define DT_PASS_CHECK(call)

#endif
