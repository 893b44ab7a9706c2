/* factors.c - low-rank factors of a matrix. Sums are in double and in a fixed order, so that the factors have the same
 * bits on any number of ranks and threads.
 *
 * Singular vectors: subspace iteration (Halko, Martinsson and Tropp, SIAM Review 2011, algorithm 4.4) with more vectors
 * than the rank. After each product with W the vectors are rotated by one-sided Jacobi, so that they converge one by
 * one, and not only their space. A small matrix has all vectors, and needs no iteration. */
#include "factors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, MAX_ITERATIONS = 1000, MAX_SWEEPS = 60 };

static double dot(const double *x, const double *y, int64_t n)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += x[i + k] * y[i + k];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void add_scaled(double a, const double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static void scale(double a, double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] *= a;
}

/* ---- products with W: vectors are rows --------------------------------------------------------------------------- */

/* y_k = W x_k */
static void multiply(const factor_task *t, const double *x, double *y, int64_t n)
{
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < t->n_out; j++)
        for (int64_t k = 0; k < n; k++) {
            const float *w = t->w + j * t->n_in;
            const double *of = x + k * t->n_in;
            double sum[4] = {0};
            int64_t i = 0;
            for (; i + 4 <= t->n_in; i += 4)
                for (int l = 0; l < 4; l++) sum[l] += (double)w[i + l] * of[i + l];
            for (; i < t->n_in; i++) sum[0] += (double)w[i] * of[i];
            y[k * t->n_out + j] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
}

/* x_k = W^T y_k */
static void multiply_turned(const factor_task *t, const double *y, double *x, int64_t n)
{
    memset(x, 0, (size_t)(n * t->n_in) * sizeof *x);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < t->n_in; first += BLOCK) {
        const int64_t len = dt_min_i64(BLOCK, t->n_in - first);
        for (int64_t j = 0; j < t->n_out; j++)
            for (int64_t k = 0; k < n; k++) {
                const float *w = t->w + j * t->n_in + first;
                double *to = x + k * t->n_in + first;
                for (int64_t i = 0; i < len; i++) to[i] += y[k * t->n_out + j] * (double)w[i];
            }
    }
}

/* ---- singular vectors -------------------------------------------------------------------------------------------- */

/* Vectors v_k [n_in], their products c_k = W v_k [n_out], and work space. */
typedef struct subspace {
    int64_t n;
    double *v, *c, *next, *sigma;
} subspace;

static void rotate(double *x, double *y, int64_t n, double c, double s)
{
    for (int64_t i = 0; i < n; i++) {
        const double p = x[i], q = y[i];
        x[i] = c * p - s * q, y[i] = s * p + c * q;
    }
}

/* One sweep over all pairs; true: some pair was not orthogonal. */
static bool sweep(const factor_task *t, subspace *s)
{
    bool any = false;
    for (int64_t p = 0; p < s->n; p++)
        for (int64_t q = p + 1; q < s->n; q++) {
            double *cp = s->c + p * t->n_out, *cq = s->c + q * t->n_out;
            const double a = dot(cp, cp, t->n_out), b = dot(cq, cq, t->n_out), g = dot(cp, cq, t->n_out);
            if (fabs(g) <= 1e-15 * sqrt(a * b) || g == 0) continue;
            const double zeta = (b - a) / (2 * g), tan = copysign(1 / (fabs(zeta) + sqrt(1 + zeta * zeta)), zeta),
                         cos = 1 / sqrt(1 + tan * tan);
            rotate(cp, cq, t->n_out, cos, cos * tan);
            rotate(s->v + p * t->n_in, s->v + q * t->n_in, t->n_in, cos, cos * tan);
            any = true;
        }
    return any;
}

static void swap(double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double z = x[i];
        x[i] = y[i], y[i] = z;
    }
}

/* Rotate the vectors until their products are orthogonal, and sort them by length, the longest first. */
static void diagonalise(const factor_task *t, subspace *s)
{
    for (int i = 0; i < MAX_SWEEPS && sweep(t, s); i++) {
    }
    for (int64_t k = 0; k < s->n; k++) s->sigma[k] = sqrt(dot(s->c + k * t->n_out, s->c + k * t->n_out, t->n_out));
    for (int64_t k = 0; k < s->n; k++) {
        int64_t most = k;
        for (int64_t l = k + 1; l < s->n; l++)
            if (s->sigma[l] > s->sigma[most]) most = l;
        if (most == k) continue;
        swap(s->c + k * t->n_out, s->c + most * t->n_out, t->n_out);
        swap(s->v + k * t->n_in, s->v + most * t->n_in, t->n_in);
        swap(s->sigma + k, s->sigma + most, 1);
    }
}

/* Gram and Schmidt, twice. A vector that depends on the others becomes zero. */
static void orthonormalise(double *v, int64_t n, int64_t len)
{
    for (int64_t k = 0; k < n; k++) {
        double *x = v + k * len;
        const double before = sqrt(dot(x, x, len));
        for (int turn = 0; turn < 2; turn++)
            for (int64_t l = 0; l < k; l++) add_scaled(-dot(x, v + l * len, len), v + l * len, x, len);
        const double after = sqrt(dot(x, x, len));
        scale(after > 1e-14 * before ? 1 / after : 0, x, len);
    }
}

/* Are the first vectors singular vectors, W^T c_k = sigma_k^2 v_k? next: W^T c_k. */
static bool converged(const factor_task *t, const subspace *s)
{
    double worst = 0;
    for (int64_t k = 0; k < t->rank; k++) {
        double sum = 0;
        for (int64_t i = 0; i < t->n_in; i++) {
            const double d = s->next[k * t->n_in + i] - s->sigma[k] * s->sigma[k] * s->v[k * t->n_in + i];
            sum += d * d;
        }
        worst = fmax(worst, sqrt(sum));
    }
    return worst <= 1e-9 * s->sigma[0] * s->sigma[0];
}

static void iterate(const factor_task *t, subspace *s)
{
    const int most = t->iterations > 0 ? t->iterations : MAX_ITERATIONS;
    multiply(t, s->v, s->c, s->n);
    diagonalise(t, s);
    for (int i = 0; i < most && s->n < t->n_in; i++) {
        multiply_turned(t, s->c, s->next, s->n);
        if (t->iterations == 0 && converged(t, s)) return;
        memcpy(s->v, s->next, (size_t)(s->n * t->n_in) * sizeof *s->v);
        orthonormalise(s->v, s->n, t->n_in);
        multiply(t, s->v, s->c, s->n);
        diagonalise(t, s);
    }
}

/* All unit vectors, or random ones. */
static dt_err start(const factor_task *t, subspace *s)
{
    if (s->n == t->n_in) {
        for (int64_t k = 0; k < s->n; k++) s->v[k * t->n_in + k] = 1;
        return DT_OK;
    }
    float *sample = malloc((size_t)(s->n * t->n_in) * sizeof *sample);
    DT_CHECK(sample, DT_ERR_MEMORY, "out of memory for vectors");
    dt_rng_normal(dt_rng_key(0, DT_RNG_INIT), 0, 0, s->n * t->n_in, 1, sample);
    for (int64_t i = 0; i < s->n * t->n_in; i++) s->v[i] = (double)sample[i];
    free(sample);
    orthonormalise(s->v, s->n, t->n_in);
    return DT_OK;
}

/* The sign of the component of largest size. */
static double sign_of(const double *x, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 1; i < n; i++)
        if (fabs(x[i]) > fabs(x[most])) most = i;
    return x[most] < 0 ? -1 : 1;
}

static void take(const factor_task *t, const subspace *s, float *a, float *b)
{
    for (int64_t k = 0; k < t->rank; k++) {
        const double *c = s->c + k * t->n_out, *v = s->v + k * t->n_in, sign = sign_of(c, t->n_out),
                     root = sqrt(s->sigma[k] / t->scale), of_c = s->sigma[k] > 0 ? sign * root / s->sigma[k] : 0;
        for (int64_t i = 0; i < t->n_in; i++) a[k * t->n_in + i] = (float)(sign * root * v[i]);
        for (int64_t j = 0; j < t->n_out; j++) b[j * t->rank + k] = (float)(of_c * c[j]);
    }
}

dt_err factors_principal(const factor_task *t, float *a, float *b)
{
    const int64_t least = dt_min_i64(t->n_out, t->n_in), n = dt_min_i64(least, 2 * t->rank + 16);
    subspace s = {.n = 3 * n > 2 * least ? least : n};
    s.v = calloc((size_t)(s.n * t->n_in), sizeof *s.v), s.c = calloc((size_t)(s.n * t->n_out), sizeof *s.c);
    s.next = calloc((size_t)(s.n * t->n_in), sizeof *s.next), s.sigma = calloc((size_t)s.n, sizeof *s.sigma);
    dt_err err = s.v && s.c && s.next && s.sigma ? start(t, &s) : dt_fail(DT_ERR_MEMORY, "out of memory for vectors");
    if (err == DT_OK) {
        iterate(t, &s);
        take(t, &s, a, b);
    }
    free(s.v), free(s.c), free(s.next), free(s.sigma);
    return err;
}

/* ---- orthogonal factors ------------------------------------------------------------------------------------------ */

/* x -= tau h h^T x, for elements starting at k */
static void reflect(const double *h, double tau, double *x, int64_t k, int64_t n)
{
    add_scaled(-tau * dot(h + k, x + k, n - k), h + k, x + k, n - k);
}

/* Make column x a multiple of a unit vector below k, by a reflection h, tau (LAPACK's dlarfg). */
static double reflection(double *x, int64_t k, int64_t n, double *h)
{
    const double alpha = x[k], rest = sqrt(dot(x + k + 1, x + k + 1, n - k - 1));
    if (rest == 0) return 0;
    const double beta = -copysign(hypot(alpha, rest), alpha);
    h[k] = 1;
    for (int64_t i = k + 1; i < n; i++) h[i] = x[i] / (alpha - beta);
    return (beta - alpha) / beta;
}

dt_err factors_orthogonal(const factor_task *t, float *a, float *b)
{
    const int64_t n = t->n_out, r = t->rank;
    double *q = calloc((size_t)(r * n), sizeof *q), *h = calloc((size_t)(r * n), sizeof *h),
           *tau = calloc((size_t)r, sizeof *tau), *upper = calloc((size_t)(r * t->n_in), sizeof *upper);
    dt_err err = q && h && tau && upper ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for vectors");
    for (int64_t k = 0; k < r && err == DT_OK; k++) {
        for (int64_t j = 0; j < n; j++) q[k * n + j] = (double)t->w[j * t->n_in + k];
        for (int64_t l = 0; l < k; l++) reflect(h + l * n, tau[l], q + k * n, l, n);
        tau[k] = reflection(q + k * n, k, n, h + k * n);
    }
    for (int64_t k = 0; k < r && err == DT_OK; k++) { /* column k of Q */
        memset(q + k * n, 0, (size_t)n * sizeof *q);
        q[k * n + k] = 1;
        for (int64_t l = r - 1; l >= 0; l--) reflect(h + l * n, tau[l], q + k * n, l, n);
    }
    if (err == DT_OK) multiply_turned(t, q, upper, r);
    for (int64_t k = 0; k < r && err == DT_OK; k++) {
        for (int64_t j = 0; j < n; j++) b[j * r + k] = (float)q[k * n + j];
        for (int64_t i = 0; i < t->n_in; i++) a[k * t->n_in + i] = i < k ? 0 : (float)upper[k * t->n_in + i];
    }
    free(q), free(h), free(tau), free(upper);
    return err;
}
