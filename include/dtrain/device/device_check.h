/* device_check.h - for backends of device.h: checks of descriptions, which are the same on every device, and of a
 * library's matmuls. Every function is Local. */
#ifndef DTRAIN_DEVICE_CHECK_H
#define DTRAIN_DEVICE_CHECK_H

#include "dtrain/device/device_ops.h"

/** DT_ERR_ARG: the description violates dt_matmul's contract. */
dt_err dt_matmul_check(const dt_matmul *mm);

/* DT_ERR_ARG, naming the violation: the description violates its contract (device.h, device_ops.h). */
dt_err dt_routing_check(const dt_routing *r);
dt_err dt_convert_check(const void *src, dt_dtype src_dt, const void *dst, dt_dtype dst_dt, int64_t n);
dt_err dt_dropout_check(float p);
dt_err dt_patches_check(const dt_patches *p);
dt_err dt_heads_check(const dt_heads *h, bool has_v);
dt_err dt_latent_check(const dt_latent *l);
dt_err dt_attention_check(const dt_attention *at);
/** Why a device's library does not support a call with dt_attention.by_library, whether it is available or not; NULL:
 *  it does. */
const char *dt_attention_obstacle(const dt_attention *at);
dt_err dt_classifier_check(const dt_classifier *cl);
dt_err dt_fill_rest_check(const dt_token_rows *rows, float inv_temperature, int64_t k);
dt_err dt_softcap_check(float cap, int64_t n_rows, int64_t width, int64_t ld);
dt_err dt_token_rows_check(const dt_token_rows *rows);
dt_err dt_choice_check(const dt_token_rows *rows, const dt_choice *how); /* of draw_tokens, including rows */
dt_err dt_rmsnorm_check(const dt_rmsnorm *n);
dt_err dt_row_lengths_check(const dt_row_lengths *d);
dt_err dt_norm_gate_check(const dt_rmsnorm *n, int64_t z_group_ld);
dt_err dt_conv_check(const dt_conv *c);
dt_err dt_delta_check(const dt_delta *d);
dt_err dt_delta_gates_check(const dt_delta_gates *d);
dt_err dt_blocks_check(const dt_blocks *b);

/** A library's matmul of host matrices with at most DT_TRIAL_ELEMS elements each. */
enum { DT_TRIAL_ELEMS = 51 * 51 };
typedef dt_err dt_matmul_function(void *library, const dt_matmul *mm, const void *a, const void *b, void *c);

/** Does `run` compute matmuls of mm's form (types, transposes, accumulate, addend, bias), sizes and row distances?
 *  Pointers only indicate which operands exist; fp32 and bf16. Libraries have been wrong for some forms and versions
 *  (oneDNN 3.7 ignores strides of single rows and columns), so a backend tries each form once. The matrices contain
 *  small integers: every sum is exact in bf16, so the result must be equal, and gaps between the rows of C must be
 *  unchanged. */
bool dt_matmul_is_right(const dt_matmul *mm, dt_matmul_function *run, void *library);

/** The form with sizes for a trial: C[m,n] of depth k, with row distances `gap` elements above the row lengths, without
 *  epilogue (whose results are not integers) and sums. */
dt_matmul dt_trial_form(const dt_matmul *form, int64_t m, int64_t n, int64_t k, int64_t gap);

#endif
