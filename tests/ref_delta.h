/* ref_delta.h - what the operations of linear attention and its gates mean: plain loops in double. Descriptions have
 * the arrays q_start and state_row on the host. */
#ifndef REF_DELTA_H
#define REF_DELTA_H

#include "ref_device.h"

/** state NULL: zeros. Layouts of dt_conv. */
void ref_conv_forward(const dt_conv *c, const double *x, const double *weight, double *y, double *state);
/** dx and dweight are added to. */
void ref_conv_backward(const dt_conv *c, const double *x, const double *weight, const double *dy, double *dx,
                       double *dweight);

/** The arrays of dt_delta. */
typedef struct ref_delta {
    const double *q, *k, *v, *g, *beta;
    double *out, *state; /* NULL: zeros */
    const double *dout;
    double *dq, *dk, *dv, *dg, *dbeta; /* written */
} ref_delta;
/** Token by token. */
void ref_delta_forward(const dt_delta *d, const ref_delta *r);
void ref_delta_backward(const dt_delta *d, const ref_delta *r);

#endif
