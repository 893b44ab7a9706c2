/* ref_device.c - the plain loops that define the device's operations, and helpers to compare with them. */
#include "ref_device.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

size_t ref_bytes(const ref_array *a) { return (size_t)a->n * dt_dtype_size(a->dt); }

ref_array ref_new(dt_dtype dt, int64_t n)
{
    ref_array a = {.dt = dt, .n = n};
    a.p = malloc(ref_bytes(&a) + 1);
    if (!a.p) abort();
    memset(a.p, 0xff, ref_bytes(&a));
    return a;
}

ref_array ref_random(dt_dtype dt, int64_t n, uint64_t seed, double scale)
{
    ref_array a = ref_new(dt, n);
    for (int64_t i = 0; i < n; i++)
        ref_set(&a, i, scale * (2.0 * (double)(dt_mix64(dt_mix64(seed) + (uint64_t)i) >> 11) * 0x1p-53 - 1.0));
    return a;
}

ref_array ref_copy(const ref_array *a)
{
    ref_array b = ref_new(a->dt, a->n);
    memcpy(b.p, a->p, ref_bytes(a));
    return b;
}

void ref_drop(ref_array *a)
{
    free(a->p);
    *a = (ref_array){0};
}

double ref_get(const ref_array *a, int64_t i) { return (double)dt_element(a->p, a->dt, i); }

void ref_set(ref_array *a, int64_t i, double x) { dt_set_element(a->p, a->dt, i, (float)x); }

double *ref_doubles(const ref_array *a)
{
    double *d = malloc((size_t)(a->n + 1) * sizeof *d);
    if (!d) abort();
    for (int64_t i = 0; i < a->n; i++) d[i] = ref_get(a, i);
    return d;
}

double ref_largest(const double *x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++) m = fabs(x[i]) > m ? fabs(x[i]) : m;
    return m;
}

bool ref_near(const ref_array *a, const double *want, double tol, const char *what)
{
    const double unit = dt_roundoff(a->dt);
    if (a->dt == DT_F16) tol += 0x1p-25; /* its subnormal numbers are 2^-24 apart */
    for (int64_t i = 0; i < a->n; i++) {
        const double got = ref_get(a, i), error = fabs(got - want[i]);
        if (got == want[i] || error <= tol + unit * fabs(want[i])) continue;
        fprintf(stderr, "%s (%s): element %lld of %lld is %.9g, want %.9g, off by %.3g, allowed %.3g\n", what,
                dt_dtype_name(a->dt), (long long)i, (long long)a->n, got, want[i], error, tol + unit * fabs(want[i]));
        return false;
    }
    return true;
}

bool ref_rms_near(const ref_array *a, const double *want, double relative, const char *what)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const double e = ref_get(a, i) - want[i];
        error += e * e;
        size += want[i] * want[i];
    }
    if (error <= relative * relative * size) return true; /* false for NaN */
    fprintf(stderr, "%s (%s): root mean square error %.3g of %.3g, allowed %.3g of it\n", what, dt_dtype_name(a->dt),
            sqrt(error), sqrt(size), relative);
    return false;
}

/* ---- matmuls, activations, norms -------------------------------------------------------------------------------- */

double ref_act(dt_activation act, double x, double *slope)
{
    if (act == DT_ACT_RELU) {
        *slope = x > 0;
        return x > 0 ? x : 0;
    }
    if (act == DT_ACT_GELU) {
        const double phi = 0.5 * erfc(-x * sqrt(0.5));
        *slope = phi + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
        return x * phi;
    }
    if (act == DT_ACT_GELU_TANH) {
        const double c = sqrt(2 / M_PI), u = c * (x + 0.044715 * x * x * x), t = tanh(u);
        *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
        return 0.5 * x * (1 + t);
    }
    const double a = act == DT_ACT_SILU ? 1.0 : 1.702, s = 1 / (1 + exp(-a * x));
    *slope = s + a * x * s * (1 - s);
    return x * s;
}

static double matmul_element(const dt_matmul *mm, const ref_matmul_args *x, int64_t i, int64_t j)
{
    double sum = x->bias ? x->bias[j] : 0.0;
    if (mm->accumulate) sum += x->c[i * mm->ldc + j];
    if (x->addend) sum += x->addend[i * mm->ldd + j];
    for (int64_t p = 0; p < mm->k; p++)
        sum += x->a[mm->trans_a ? p * mm->lda + i : i * mm->lda + p] *
               x->b[mm->trans_b ? j * mm->ldb + p : p * mm->ldb + j];
    return sum;
}

static void matmul_sums(const dt_matmul *mm, const ref_matmul_args *x)
{
    const int64_t n_sums = mm->sums_of == DT_SUMS_OF_A ? mm->m : mm->n,
                  n_terms = mm->sums_of == DT_SUMS_OF_C ? mm->m : mm->k;
    for (int64_t s = 0; s < n_sums; s++) {
        double sum = mm->accumulate_sums ? x->sums[s] : 0.0;
        for (int64_t t = 0; t < n_terms; t++)
            sum += mm->sums_of == DT_SUMS_OF_A   ? x->a[mm->trans_a ? t * mm->lda + s : s * mm->lda + t]
                   : mm->sums_of == DT_SUMS_OF_B ? x->b[mm->trans_b ? s * mm->ldb + t : t * mm->ldb + s]
                                                 : x->c[t * mm->ldc + s];
        x->sums[s] = sum;
    }
}

void ref_matmul(const dt_matmul *mm, const ref_matmul_args *x)
{
    for (int64_t i = 0; i < mm->m; i++)
        for (int64_t j = 0; j < mm->n; j++) {
            double p = matmul_element(mm, x, i, j), slope;
            if (mm->epilogue == DT_EPILOGUE_ACT) {
                if (x->aux) x->aux[i * mm->ld_aux + j] = p;
                p = ref_act(mm->act, p, &slope);
            } else if (mm->epilogue == DT_EPILOGUE_ACT_BACKWARD) {
                ref_act(mm->act, x->aux[i * mm->ld_aux + j], &slope);
                p *= slope;
            }
            x->c[i * mm->ldc + j] = p;
        }
    if (mm->sums_of != DT_SUMS_NONE) matmul_sums(mm, x);
}

void ref_norm_forward(const double *x, const double *weight, const double *bias, double *y, double *mean, double *rstd,
                      int64_t n_rows, int64_t width, double eps)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const double *xr = x + r * width;
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < width; c++) sum += xr[c];
        const double mu = bias ? sum / (double)width : 0.0;
        for (int64_t c = 0; c < width; c++) squares += (xr[c] - mu) * (xr[c] - mu);
        const double rs = 1 / sqrt(squares / (double)width + eps);
        for (int64_t c = 0; c < width; c++) y[r * width + c] = (xr[c] - mu) * rs * weight[c] + (bias ? bias[c] : 0.0);
        if (mean) mean[r] = mu;
        if (rstd) rstd[r] = rs;
    }
}

void ref_norm_backward(const double *x, const double *weight, const double *mean, const double *rstd, const double *dy,
                       double *dx, double *dweight, double *dbias, int64_t n_rows, int64_t width)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const double *xr = x + r * width, *dyr = dy + r * width, mu = mean ? mean[r] : 0.0;
        double dot = 0, sum = 0;
        for (int64_t c = 0; c < width; c++) {
            const double xhat = (xr[c] - mu) * rstd[r], g = dyr[c] * weight[c];
            dot += g * xhat / (double)width;
            sum += dbias ? g / (double)width : 0.0;
            dweight[c] += dyr[c] * xhat;
            if (dbias) dbias[c] += dyr[c];
        }
        for (int64_t c = 0; c < width; c++)
            dx[r * width + c] = rstd[r] * (dyr[c] * weight[c] - sum - (xr[c] - mu) * rstd[r] * dot);
    }
}

void ref_patches(const dt_patches *p, const uint8_t *pixels, float *out)
{
    const int64_t side = p->patch, per_line = p->size / side, n_rows = dt_patches_rows(p);
    for (int64_t row = 0; row < p->n_images * n_rows; row++)
        for (int64_t col = 0; col < 3 * side * side; col++) {
            const int64_t i = row / n_rows, at = row % n_rows - p->lead, c = col / (side * side);
            const int64_t y = at / per_line * side + col / side % side, x = at % per_line * side + col % side;
            out[row * 3 * side * side + col] =
                at < 0 ? 0 : fmaf(pixels[((i * p->size + y) * p->size + x) * 3 + c], p->scale[c], p->shift[c]);
        }
}

/* One head; sign -1 turns back. */
static void turn_head(const dt_heads *h, const float *row, double sign, double *y)
{
    const int half = dt_heads_rotary_dim(h) / 2;
    for (int i = 0; row && i < half; i++) {
        double *a = &y[h->neighbours ? 2 * i : i], *b = h->neighbours ? a + 1 : a + half;
        const double x = *a, z = *b, c = (double)row[i], s = sign * (double)row[half + i];
        *a = x * c - z * s;
        *b = z * c + x * s;
    }
}

static const float *turn_of(const dt_heads *h, const ref_heads *r, int64_t t, bool is_q)
{
    const float *table = is_q && r->q_cos_sin ? r->q_cos_sin : r->cos_sin;
    return table ? table + (int64_t)r->pos[t] * dt_heads_rotary_dim(h) : NULL;
}

void ref_heads_forward(const dt_heads *h, const ref_heads *r)
{
    const int d = h->head_dim, Hq = h->n_heads, Hk = h->n_kv_heads;
    for (int64_t t = 0; t < h->n_tok; t++)
        for (int i = 0; i < Hq + (r->v ? 2 : 1) * Hk; i++) {
            const int64_t row = (r->kv_row ? r->kv_row[t] : t) * h->kv_ld;
            const bool is_q = i < Hq, is_v = i >= Hq + Hk;
            const double *weight = is_q ? r->q_norm : is_v ? NULL : r->k_norm;
            double y[DT_ATTENTION_MAX_HEAD_DIM];
            memcpy(y, r->x + t * h->x_ld + i * d, (size_t)d * sizeof *y);
            if (weight) ref_norm_forward(y, weight, NULL, y, NULL, NULL, 1, d, (double)h->eps);
            if (!is_v) turn_head(h, turn_of(h, r, t, is_q), 1, y);
            double *to = is_q   ? r->q + t * h->q_ld + i * d
                         : is_v ? r->v + row + (i - Hq - Hk) * d
                                : r->k + row + (i - Hq) * d;
            memcpy(to, y, (size_t)d * sizeof *y);
        }
}

void ref_heads_backward(const dt_heads *h, const ref_heads *r, double *dq_norm, double *dk_norm)
{
    const int d = h->head_dim, Hq = h->n_heads;
    for (int64_t t = 0; t < h->n_tok; t++)
        for (int i = 0; i < Hq + h->n_kv_heads; i++) {
            const bool is_q = i < Hq;
            const double *x = r->x + t * h->x_ld + i * d, *weight = is_q ? r->q_norm : r->k_norm;
            double *dy = is_q ? r->q + t * h->q_ld + i * d : r->k + t * h->kv_ld + (i - Hq) * d;
            double y[DT_ATTENTION_MAX_HEAD_DIM], dx[DT_ATTENTION_MAX_HEAD_DIM], rstd;
            turn_head(h, turn_of(h, r, t, is_q), -1, dy);
            if (!weight) continue;
            ref_norm_forward(x, weight, NULL, y, NULL, &rstd, 1, d, (double)h->eps);
            ref_norm_backward(x, weight, NULL, &rstd, dy, dx, is_q ? dq_norm : dk_norm, NULL, 1, d);
            memcpy(dy, dx, (size_t)d * sizeof *dx);
        }
}

double ref_dropout(float p, uint64_t key, uint64_t token_key, uint64_t c)
{
    uint32_t w[4];
    dt_philox4x32(key, token_key, c / 4, w);
    return dt_u32_to_unit(w[c % 4]) >= p ? 1.0 / (1.0 - (double)p) : 0.0;
}

double ref_noise(uint64_t key, uint64_t token_key, uint64_t c)
{
    uint32_t w[4];
    dt_philox4x32(key, token_key, c / 4, w);
    return 2 * (double)dt_u32_to_unit(w[c % 4]) - 1;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static int64_t key_row(const dt_attention *at, int s, int j)
{
    const int shared = at->shared_len ? at->shared_len[s] : 0;
    return j < shared ? at->shared_start[s] + j : at->kv_start[s] + j - shared;
}

static double sink_of(const dt_attention *at, int h)
{
    return at->sinks ? (double)dt_element(at->sinks, at->dt, h) : -INFINITY;
}

/* The score of a product, and its derivative. */
static double softcapped(const dt_attention *at, double x)
{
    return at->softcap > 0 ? (double)at->softcap * tanh(x / (double)at->softcap) : x;
}
static double softcap_slope(const dt_attention *at, double x)
{
    const double t = at->softcap > 0 ? tanh(x / (double)at->softcap) : 0;
    return 1 - t * t;
}

/* One query's probabilities over its sequence's keys, before dropout, and the slope of each score (NULL: none); returns
 * logsumexp of the scores and the sink. */
static double probabilities(const dt_attention *at, int s, int i, int h, const double *q, const double *k, double *p,
                            double *slope)
{
    const int n_q = at->q_start[s + 1] - at->q_start[s], len = at->kv_len[s], d = at->head_dim,
              kh = h / (at->n_heads / at->n_kv_heads);
    const int pos = len - n_q + i, ends = at->block > 1 ? (pos / at->block + 1) * at->block - 1 : pos,
              own = at->bidirectional ? len - 1
                    : pos < 0         ? -1
                                      : ends,
              last = at->ahead ? pos + at->ahead[at->q_start[s] + i] : own,
              first = at->window > 0 ? own - at->window + 1 : 0;
    const double sink = sink_of(at, h);
    double max = sink, sum = 0;
    for (int j = 0; j < len; j++) {
        double score = 0;
        for (int c = 0; c < d; c++)
            score += q[(at->q_start[s] + i) * at->q_ld + h * d + c] * k[key_row(at, s, j) * at->kv_ld + kh * d + c];
        p[j] = j <= last && j >= first ? softcapped(at, (double)at->scale * score) : -INFINITY;
        if (slope) slope[j] = softcap_slope(at, (double)at->scale * score);
        max = p[j] > max ? p[j] : max;
    }
    for (int j = 0; j < len; j++) sum += p[j] = p[j] == -INFINITY ? 0.0 : exp(p[j] - max);
    if (sink > -INFINITY) sum += exp(sink - max);
    for (int j = 0; j < len; j++) p[j] = sum > 0 ? p[j] / sum : 0.0;
    return max + log(sum);
}

static double attention_dropout(const dt_attention *at, int64_t row, int h, int j)
{
    return at->dropout_p > 0 ? ref_dropout(at->dropout_p, at->dropout_key, at->token_key[row],
                                           4 * ((uint64_t)h << 32 | (uint64_t)(j / 4)) + (uint64_t)(j % 4))
                             : 1.0;
}

void ref_attention_forward(const dt_attention *at, const double *q, const double *k, const double *v, double *out,
                           double *lse)
{
    const int d = dt_attention_v_dim(at);
    for (int s = 0; s < at->n_seq; s++) {
        double *p = malloc(((size_t)at->kv_len[s] + 1) * sizeof *p);
        for (int i = 0; i < at->q_start[s + 1] - at->q_start[s]; i++)
            for (int h = 0; h < at->n_heads; h++) {
                const int64_t row = at->q_start[s] + i;
                const int kh = h / (at->n_heads / at->n_kv_heads);
                const double l = probabilities(at, s, i, h, q, k, p, NULL);
                if (lse) lse[row * at->n_heads + h] = l;
                for (int c = 0; c < d; c++) {
                    double sum = 0;
                    for (int j = 0; j < at->kv_len[s]; j++)
                        sum += p[j] * attention_dropout(at, row, h, j) * v[key_row(at, s, j) * at->kv_ld + kh * d + c];
                    out[row * at->o_ld + h * d + c] = sum;
                }
            }
        free(p);
    }
}

/* dp_j = f_j dout.v_j;  ds_j = p_j (dp_j - sum_l p_l dp_l) slope_j;  dq += scale ds_j k_j, dk_j += scale ds_j q,
 * dv_j += f_j p_j dout;  dsink -= p_sink sum_l p_l dp_l. */
static void query_backward(const dt_attention *at, int s, int i, int h, const double *q, const double *k,
                           const double *v, const double *dout, double *dq, double *dk, double *dv, double *dsinks,
                           double *p, double *dp, double *slope)
{
    const int d = at->head_dim, v_dim = dt_attention_v_dim(at), len = at->kv_len[s],
              kh = h / (at->n_heads / at->n_kv_heads);
    const int64_t row = at->q_start[s] + i, first = (int64_t)at->kv_start[s] * at->kv_ld, in_k = first + kh * d,
                  in_v = first + kh * v_dim;
    const double *qi = q + row * at->q_ld + h * d, *doi = dout + row * at->o_ld + h * v_dim;
    double mean = 0;
    const double lse = probabilities(at, s, i, h, q, k, p, slope);
    for (int j = 0; j < len; j++) {
        const double f = attention_dropout(at, row, h, j);
        dp[j] = 0;
        for (int c = 0; c < v_dim; c++) dp[j] += f * doi[c] * v[in_v + j * at->kv_ld + c];
        for (int c = 0; c < v_dim; c++) dv[in_v + j * at->kv_ld + c] += f * p[j] * doi[c];
        mean += p[j] * dp[j];
    }
    for (int j = 0; j < len; j++) {
        const double ds = (double)at->scale * p[j] * (dp[j] - mean) * slope[j];
        for (int c = 0; c < d; c++) {
            dq[row * at->q_ld + h * d + c] += ds * k[in_k + j * at->kv_ld + c];
            dk[in_k + j * at->kv_ld + c] += ds * qi[c];
        }
    }
    if (dsinks && sink_of(at, h) > -INFINITY) dsinks[h] -= exp(sink_of(at, h) - lse) * mean;
}

void ref_attention_backward(const dt_attention *at, const double *q, const double *k, const double *v,
                            const double *dout, double *dq, double *dk, double *dv, double *dsinks)
{
    for (int s = 0; s < at->n_seq; s++) {
        double *p = malloc(((size_t)at->kv_len[s] + 1) * 3 * sizeof *p);
        for (int i = 0; i < at->q_start[s + 1] - at->q_start[s]; i++)
            for (int h = 0; h < at->n_heads; h++)
                query_backward(at, s, i, h, q, k, v, dout, dq, dk, dv, dsinks, p, p + at->kv_len[s],
                               p + 2 * at->kv_len[s]);
        free(p);
    }
}

/* ---- classifier -------------------------------------------------------------------------------------------------- */

/* log sum_v exp(z_v / T) */
static double log_sum_exp(const double *z, int64_t n, double inv_t)
{
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < n; v++) max = z[v] * inv_t > max ? z[v] * inv_t : max;
    for (int64_t v = 0; v < n; v++) sum += exp(z[v] * inv_t - max);
    return max + log(sum);
}

/* KL(p || q) of distributions given as logarithms. */
static double ref_kl(const double *logp, const double *logq, int64_t n)
{
    double sum = 0;
    for (int64_t v = 0; v < n; v++)
        if (logp[v] > -INFINITY) sum += exp(logp[v]) * (logp[v] - logq[v]);
    return sum;
}

/* logp, logq, logm: out [n], of the row, of its reference and of their mixture. */
static void ref_mixture(const ref_row *r, double *logp, double *logq, double *logm)
{
    const double lse = log_sum_exp(r->z, r->n, r->inv_t), ref_lse = log_sum_exp(r->q, r->n, r->inv_t), a = r->kl_mix;
    for (int64_t v = 0; v < r->n; v++) {
        logp[v] = r->z[v] * r->inv_t - lse, logq[v] = r->q[v] * r->inv_t - ref_lse;
        logm[v] = log(a * exp(logp[v]) + (1 - a) * exp(logq[v]));
    }
}

/* The divergence with kl_mix, and, if grad is given, its gradient by s = z/T. */
static double ref_divergence(const ref_row *r, double *grad)
{
    const double a = r->kl_mix;
    double *logp = calloc(3 * (size_t)r->n, 8), *logq = logp + r->n, *logm = logq + r->n;
    ref_mixture(r, logp, logq, logm);
    const double forward = ref_kl(logq, logp, r->n), reverse = ref_kl(logp, logq, r->n), own = ref_kl(logp, logm, r->n),
                 other = ref_kl(logq, logm, r->n);
    for (int64_t v = 0; grad && v < r->n; v++) {
        const double p = exp(logp[v]);
        if (a == 1)
            grad[v] = p - exp(logq[v]);
        else if (p > 0)
            grad[v] = a == 0 ? p * (logp[v] - logq[v] - reverse) : a * p * (logp[v] - logm[v] - own);
        else
            grad[v] = 0;
    }
    free(logp);
    return a == 0 ? reverse : a == 1 ? forward : a * own + (1 - a) * other;
}

ref_row_values ref_classifier(const ref_row *r)
{
    ref_row_values x = {0};
    if (r->target < 0) return x;
    const double lse = log_sum_exp(r->z, r->n, r->inv_t);
    double sum_logp = 0, squares = 0;
    for (int64_t v = 0; v < r->n; v++) {
        const double logp = r->z[v] * r->inv_t - lse;
        sum_logp += logp;
        squares += exp(2 * logp);
        x.mean_logit += r->z[v] * r->inv_t / (double)r->n;
        if (logp == -INFINITY) continue;
        x.entropy -= exp(logp) * logp;
    }
    if (r->q) x.kl = ref_divergence(r, NULL);
    x.log_sum_squares = log(squares);
    x.logp = r->z[r->target] * r->inv_t - lse;
    x.loss = -(1 - r->smoothing) * x.logp + r->z_loss * lse * lse;
    if (r->smoothing > 0) x.loss -= r->smoothing / (double)r->n * sum_logp;
    x.objective = r->weight * x.loss - r->entropy_weight * x.entropy + r->kl_weight * x.kl;
    return x;
}

void ref_classifier_gradient(const ref_row *r, double *grad)
{
    const ref_row_values x = ref_classifier(r);
    const double lse = log_sum_exp(r->z, r->n, r->inv_t);
    double *of_kl = calloc((size_t)r->n, 8);
    if (r->q) ref_divergence(r, of_kl);
    for (int64_t v = 0; v < r->n; v++) {
        const double logp = r->z[v] * r->inv_t - lse, p = exp(logp), one_hot = v == r->target ? 1.0 : 0.0;
        double g =
            r->weight * (p * (1 + 2 * r->z_loss * lse) - (1 - r->smoothing) * one_hot - r->smoothing / (double)r->n);
        if (p > 0) g += r->entropy_weight * p * (logp + x.entropy);
        g += r->kl_weight * of_kl[v];
        if (r->softcap > 0) g *= 1 - pow(r->z[v] / r->softcap, 2);
        grad[v] = r->target < 0 ? 0.0 : r->inv_t * g;
    }
    free(of_kl);
}

/* ---- choosing tokens --------------------------------------------------------------------------------------------- */

int64_t ref_order(const float *logits, const uint32_t *allowed, int64_t n, int32_t *id)
{
    int64_t found = 0;
    for (int32_t v = 0; v < n; v++) {
        if ((allowed && !(allowed[v / 32] >> v % 32 & 1)) || logits[v] == -INFINITY) continue;
        int64_t at = found++;
        for (; at > 0 && logits[id[at - 1]] < logits[v]; at--) id[at] = id[at - 1];
        id[at] = v;
    }
    return found;
}

bool ref_choice(const dt_choice *how, const float *logits, const uint32_t *allowed, int64_t n, double *p)
{
    int32_t *id = malloc((size_t)n * sizeof *id);
    const int64_t found = ref_order(logits, allowed, n, id);
    int64_t kept = how->greedy ? 1 : how->top_k > 0 && how->top_k < found ? how->top_k : found;
    double total = 0, sum = 0;
    memset(p, 0, (size_t)n * sizeof *p);
    for (int64_t i = 0; i < kept && found > 0; i++)
        total += p[id[i]] = how->greedy ? 1 : exp((double)(logits[id[i]] - logits[id[0]]) / how->temperature);
    if (!how->greedy && how->top_p < 1) {
        int64_t reach = 0;
        while (reach < kept && (reach == 0 || sum < how->top_p * total)) sum += p[id[reach++]];
        for (int64_t i = reach; i < kept; i++) p[id[i]] = 0;
        kept = reach;
    }
    total = 0;
    for (int64_t i = 0; i < kept && found > 0; i++) {
        if (!how->greedy && p[id[i]] < how->min_p) p[id[i]] = 0;
        total += p[id[i]];
    }
    for (int64_t v = 0; v < n && found > 0; v++) p[v] /= total;
    free(id);
    return found > 0;
}

/* ---- instruction sets -------------------------------------------------------------------------------------------- */

static const char *const isas[] = {"v2", "v3", "v4", "neon", "neon_bf16", "sve", "sve_bf16", "base"};

static bool isa_runs(const char *isa)
{
    dt_device dev;
    dt_ledger ledger = {0};
    setenv("DTRAIN_ISA", isa, 1);
    const bool runs = dt_device_open(&dev, "cpu", 0, 1, &ledger) == DT_OK;
    dt_error_clear();
    dt_device_close(&dev);
    unsetenv("DTRAIN_ISA");
    return runs;
}

static const char *find_isa(int wanted, int *n)
{
    const char *found = NULL;
    *n = 0;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (!isa_runs(isas[i])) continue;
        if (*n == wanted) found = isas[i];
        ++*n;
    }
    return found;
}

/* Another device than the CPU in its place, which has no instruction sets: its tests run once. */
static const char *other_device(void)
{
    const char *name = getenv("DTRAIN_DEVICE");
    return name && *name && strcmp(name, "cpu") != 0 && strcmp(name, "queue") != 0 ? name : NULL;
}

bool ref_is_cpu(void) { return !other_device(); }

int ref_n_isas(void)
{
    int n = 1;
    if (!other_device()) find_isa(-1, &n);
    return n;
}

const char *ref_take_isa(int i)
{
    int n;
    if (other_device()) return other_device();
    const char *isa = find_isa(i, &n);
    if (isa) setenv("DTRAIN_ISA", isa, 1);
    return isa;
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

void ref_adamw(const dt_adamw *opt, const double *grad, double *p, double *m, double *v, int64_t n)
{
    const double b1 = (double)opt->beta1, b2 = (double)opt->beta2, lr = (double)opt->lr;
    for (int64_t i = 0; i < n; i++) {
        const double g = grad[i] * (double)opt->grad_scale + (double)opt->l2 * p[i];
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        p[i] = p[i] * (1 - lr * (double)opt->weight_decay) -
               lr * (m[i] / (double)opt->fix1) / (sqrt(v[i] / (double)opt->fix2) + (double)opt->eps);
    }
}

void ref_sgd(const dt_sgd *opt, const double *grad, double *p, double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double step = grad[i] * (double)opt->grad_scale + (double)opt->l2 * p[i];
        if (b) step = b[i] = (double)opt->momentum * b[i] + step;
        p[i] -= (double)opt->lr * step;
    }
}
