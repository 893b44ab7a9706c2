/* count_private.h - clocks and memory (counting_device.c) for the operations of the counting device (count_ops.c). */
#ifndef DT_DEVICE_COUNT_PRIVATE_H
#define DT_DEVICE_COUNT_PRIVATE_H

#include "dtrain/perfmodel/counting_device.h"

/** A launch that only moves bytes in device memory; none if there are none. */
void count_moves(dt_device *dev, dt_stream *s, const char *op, double bytes);

/* entries of the table: the operations */
#define DT_OP(op, ...) dt_err counting_##op DT_OP_PARAMS(__VA_ARGS__);
#include "dtrain/device/op_list.h"

/* count_matmul.c */
void count_matmul(dt_device *dev, const dt_matmul_args *x, dt_stream *s);
void count_bias_backward(dt_device *dev, const dt_bias_backward_args *x, dt_stream *s);

#endif
