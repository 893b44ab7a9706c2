/* ref_zero.h - a model that is all sizes and no layers, and training it in plain loops on one rank: what ZeRO is held
 * against. */
#ifndef DTRAIN_REF_ZERO_H
#define DTRAIN_REF_ZERO_H

#include "dtrain/device/device.h"
#include "dtrain/core/unit.h"

enum { REF_ZERO_UNITS = 5 };

/** Units of odd sizes, with padding inside, tensors without decay, two learning rates and, when asked for, frozen
 *  tensors and rows. The same on all ranks. */
dt_err ref_zero_make_units(dt_unit *units, bool with_frozen);
/** Is element i of data x, rounded to the type? */
static inline bool ref_zero_is_rounded(const void *data, dt_dtype t, int64_t i, float x)
{
    float room[1];
    dt_set_element(room, t, 0, x);
    return dt_element(data, t, i) == dt_element(room, t, 0);
}

void ref_zero_free_units(dt_unit *units);
int64_t ref_zero_total(const dt_unit *units); /* sum of flat_len: length of the arrays below, unit after unit */
/** Where a tensor begins in them: a unit's trained part comes first. */
int64_t ref_zero_begin(const dt_unit *units, int unit, int tensor);

/** Gradient of element i of a unit in micro-batch j of a step, its part `half` of 2 (a tied tensor gets two).
 *  exact: multiples of 1/64 in [-1/16, 1/16], so that sums of up to 64 of them are exact in bf16 and fp16 and free of
 *  order; else any float of a few binary orders. */
float ref_zero_grad(bool exact, int64_t step, int64_t j, int unit, int64_t i, int half);

/** What the test wants from the source: the calls of one micro-step, forward and backward, with a unit tied to the
 *  last. */
typedef struct ref_zero_model {
    const dt_unit *units;
    dt_param_source source;
    dt_device *dev;
    bool exact;
    int tied_unit; /* -1: none */
    /* NULL, or parameters that params_acquire must show (fp32: in these bits; bf16: these, rounded) */
    const float *expect;
    float slack;                    /* how far parameters in 16 bits may be off, in parts of the value */
    int64_t n_wrong;                /* elements of views that were not as expected, padding included */
    void *lent[4 * REF_ZERO_UNITS]; /* host memory that queued copies read: freed at the end of the micro-step */
    int n_lent;
} ref_zero_model;

/** n elements of a view in host memory, malloc'ed; waits for the device. NULL: an error. And the way back, queued on
 *  the default stream: host is borrowed until that is synchronised. */
void *ref_zero_read(dt_device *dev, const void *data, int64_t n, dt_dtype t);
dt_err ref_zero_write(dt_device *dev, void *data, int64_t n, dt_dtype t, const void *host);

/** Micro-batch j < 0 is an empty one: gradients are zero. Returns the first error, but makes all calls. */
dt_err ref_zero_micro_step(ref_zero_model *m, int64_t step, int64_t j);

/** fp32 training on one rank: sum gradients of micro-batches 0 .. n_micro-1 in order, from grad_dtype-rounded parts. */
void ref_zero_sum_grads(const dt_unit *units, bool exact, int tied_unit, dt_dtype micro_dtype, int64_t step,
                        int64_t n_micro, float *grad);
/** opt, with the learning rate of each tensor's group. */
void ref_zero_adamw(const dt_unit *units, const dt_adamw *opt, const double *group_lr, const float *grad, float *param,
                    float *m, float *v);

#endif
