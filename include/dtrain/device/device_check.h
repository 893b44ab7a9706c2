/* device_check.h - for the backends of device.h: does a description keep the contract, which is the same on every
 * device, and does a library compute products as they are described? */
#ifndef DTRAIN_DEVICE_CHECK_H
#define DTRAIN_DEVICE_CHECK_H

#include "dtrain/device/device_ops.h"

/** DT_ERR_ARG for a description that contradicts dt_matmul. */
dt_err dt_matmul_check(const dt_matmul *mm);

/* DT_ERR_ARG, naming what contradicts the description's contract (device.h, device_ops.h). */
dt_err dt_patches_check(const dt_patches *p);
dt_err dt_heads_check(const dt_heads *h, bool has_v);
dt_err dt_attention_check(const dt_attention *at);
/** What a device's library does not take of a call that is left to it (dt_attention.by_library), whether it is there or
 *  not; NULL: nothing. */
const char *dt_attention_obstacle(const dt_attention *at);
dt_err dt_classifier_check(const dt_classifier *cl);
dt_err dt_token_rows_check(const dt_token_rows *rows);
dt_err dt_choice_check(const dt_token_rows *rows, const dt_choice *how); /* of draw_tokens, rows included */
dt_err dt_norm_rows_check(int64_t n_rows, int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld);

/** A library's product of matrices in host memory, of at most DT_TRIAL_ELEMS elements each. */
enum { DT_TRIAL_ELEMS = 51 * 51 };
typedef dt_err dt_product_function(void *library, const dt_matmul *mm, const void *a, const void *b, void *c);

/** Does `run` compute products of the form of mm (types, transposes, accumulate, addend, bias; pointers are only looked
 *  at for being there; fp32 and bf16), sizes and row distances? Libraries have been wrong for single forms and versions
 *  (oneDNN 3.7 ignores strides of single rows and columns), so a backend tries each form once. The matrices are of
 *  small integers: every sum is exact in bf16, so the answer must be equal, and what lies between the rows of C must
 *  stay as it was. */
bool dt_product_is_right(const dt_matmul *mm, dt_product_function *run, void *library);

/** A form with sizes to try it at: C[m,n] of depth k, the rows of each matrix gap elements further apart than they are
 *  long; no epilogue, whose results are no integers, and no sums. */
dt_matmul dt_trial_form(const dt_matmul *form, int64_t m, int64_t n, int64_t k, int64_t gap);

#endif
