/* ref_device.h - what the operations of dtrain/device/device.h mean: plain loops in double, and host arrays of any
 * type. */
#ifndef REF_DEVICE_H
#define REF_DEVICE_H

#include "dtrain/device/device.h"

/* ---- host arrays of the type under test -------------------------------------------------------------------------- */

typedef struct ref_array {
    dt_dtype dt;
    int64_t n;
    void *p; /* the n elements */
} ref_array;

ref_array ref_new(dt_dtype dt, int64_t n); /* every byte 0xff: NaN in all types */
/* uniform in [-scale, scale], rounded to dt */
ref_array ref_random(dt_dtype dt, int64_t n, uint64_t seed, double scale);
ref_array ref_copy(const ref_array *a);
size_t ref_bytes(const ref_array *a);
void ref_drop(ref_array *a);
double ref_get(const ref_array *a, int64_t i);
void ref_set(ref_array *a, int64_t i, double x);
double *ref_doubles(const ref_array *a); /* malloc'd [n] */
double ref_largest(const double *x, int64_t n);

/** |a[i] - want[i]| <= tol + rounding of the type for all i; prints the first that is not.
 *  Rounding, half a unit in the last place: 2^-8 |want| for bf16, 2^-11 |want| and at least 2^-25 for fp16, 2^-24
 *  |want| for float. */
bool ref_near(const ref_array *a, const double *want, double tol, const char *what);
/** Root mean square of a - want at most relative times that of want: what roundings of random sign give. */
bool ref_rms_near(const ref_array *a, const double *want, double relative, const char *what);

/* ---- the operations ---------------------------------------------------------------------------------------------- */

/** The arrays of a matmul, in double, in the layouts of dt_matmul; c holds D where the matmul accumulates. */
typedef struct ref_matmul_args {
    const double *a, *b;
    const double *bias, *addend; /* NULL: none */
    double *c;
    double *aux, *sums; /* as epilogue and sums_of say; sums hold what is added to */
} ref_matmul_args;
void ref_matmul(const dt_matmul *mm, const ref_matmul_args *x);
double ref_act(dt_activation act, double x, double *slope);

/** Updates of p, m and v; b NULL: no momentum. */
void ref_adamw(const dt_adamw *opt, const double *grad, double *p, double *m, double *v, int64_t n);
void ref_sgd(const dt_sgd *opt, const double *grad, double *p, double *b, int64_t n);

/** Rows of width, one after the other. dweight and dbias are added to. bias NULL: RMSNorm (mean 0). */
void ref_norm_forward(const double *x, const double *weight, const double *bias, double *y, double *mean, double *rstd,
                      int64_t n_rows, int64_t width, double eps);
void ref_norm_backward(const double *x, const double *weight, const double *mean, const double *rstd, const double *dy,
                       double *dx, double *dweight, double *dbias, int64_t n_rows, int64_t width);

/** What dt_patches says, element by element: out [n_images * dt_patches_rows, dt_patches_width] before it is rounded to
 *  dt. */
void ref_patches(const dt_patches *p, const uint8_t *pixels, float *out);

/** The arrays of dt_heads, in double, in its layouts; those of h itself are not looked at. Weights and table NULL:
 *  none; kv_row NULL: row t. */
typedef struct ref_heads {
    const double *x, *q_norm, *k_norm;
    const float *cos_sin, *q_cos_sin;
    const int32_t *pos, *kv_row;
    double *q, *k, *v; /* v NULL: it stays where it is */
} ref_heads;
void ref_heads_forward(const dt_heads *h, const ref_heads *r);
/** q and k: gradients, changed in place; dq_norm and dk_norm are added to. */
void ref_heads_backward(const dt_heads *h, const ref_heads *r, double *dq_norm, double *dk_norm);

/** The factor of dropout, 0 or 1/(1-p), of element c of a token. */
double ref_dropout(float p, uint64_t key, uint64_t token_key, uint64_t c);
/** 2 u - 1 of add_noise. */
double ref_noise(uint64_t key, uint64_t token_key, uint64_t c);

/** Layouts as in dt_attention, in double. lse [n_tok, n_heads]. */
void ref_attention_forward(const dt_attention *at, const double *q, const double *k, const double *v, double *out,
                           double *lse);
/** dq, dk, dv, dsinks (NULL: not computed) are added to. */
void ref_attention_backward(const dt_attention *at, const double *q, const double *k, const double *v,
                            const double *dout, double *dq, double *dk, double *dv, double *dsinks);

/** One row of dt_classifier. q NULL: no second logits, and kl is 0. */
typedef struct ref_row {
    int64_t n;
    const double *z, *q;
    int32_t target;
    double inv_t, smoothing, z_loss, softcap, weight, entropy_weight, kl_weight, kl_mix;
} ref_row;
typedef struct ref_row_values {
    double logp, entropy, kl, loss, log_sum_squares, mean_logit;
    double objective; /* weight loss - entropy_weight entropy + kl_weight kl */
} ref_row_values;
ref_row_values ref_classifier(const ref_row *r);
/** The gradient of the objective, [n]: term by term, as dt_classifier's comment has them. */
void ref_classifier_gradient(const ref_row *r, double *grad);

/** The distribution p [n] of a choice among the allowed tokens, by sorting all of them; false: nothing can be
 *  chosen. */
bool ref_choice(const dt_choice *how, const float *logits, const uint32_t *allowed, int64_t n, double *p);
/** All allowed tokens above -inf by falling logit, the lower id first on ties; how many. */
int64_t ref_order(const float *logits, const uint32_t *allowed, int64_t n, int32_t *id);

/* ---- instruction sets -------------------------------------------------------------------------------------------- */

bool ref_is_cpu(void);           /* or the queue device over it: not another device, which has no instruction sets */
int ref_n_isas(void);            /* kernels that were built and run here */
const char *ref_take_isa(int i); /* devices opened from now on use the i-th; its name */

#endif
