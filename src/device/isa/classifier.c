/* classifier.c - one row of the classifier (dt_classifier): softmax, log-probability, entropy, divergence, and their
 * gradient.
 *
 * One pass computes maximum and sum together, in blocks that stay in the first-level cache. It rescales the sum when
 * the maximum increases (Milakov and Gimelshein, arXiv:1805.02867). A last pass writes gradients. Other results than
 * logp, hit and entropy need additional passes. Blocks are summed in float, the row in double. With s = z/T, m = max s,
 * d = s - m, Z = sum exp(d), and the index r for the reference logits:
 *
 *     logp = d_t - log Z        H = log Z - sum exp(d) d / Z        K = sum exp(d) (d - d_r) / Z - log Z + log Z_r
 *     dlogits_v = e^(d_v) (base + slope d_v + kl (d_v - d_rv)) - shift - (v = t ? one_hot : 0)
 *
 * With kl_mix a > 0, the factor of kl is log p - log m instead of d_v - d_rv, and with a = 1 it is 0 and ref e^(d_rv)
 * is subtracted. With gap = log p - log q:
 *
 *     gap >= 0:  log p - log m = - log(a + (1 - a) e^-gap)              log q - log m = log p - log m - gap
 *     gap <  0:  log q - log m = - log(a e^gap + 1 - a)                 log p - log m = log q - log m + gap
 *
 * With soft-capping that is multiplied by 1 - (z_v / cap)^2. */
#include "kernels.h"
#include <string.h>

enum { BLOCK = 1024 };

typedef struct softmax_stats {
    float max;
    double sum, sum_es; /* of exp(d), and of exp(d) d; d = s - max */
} softmax_stats;

/* Add a block z [n] to the row's statistics. If the maximum increases from m to m', with a = e^(m - m'):
 *     sum <- a sum,    sum_es <- a (sum_es + sum (m - m'))       since e^(s-m') (s-m') = a e^(s-m) ((s-m) + (m-m')) */
INLINE void add_block(softmax_stats *st, const float *z, int64_t n, float inv_t, bool entropy)
{
    float max = st->max;
    _Pragma("omp simd reduction(max : max)") for (int64_t i = 0; i < n; i++) max =
        z[i] * inv_t > max ? z[i] * inv_t : max;
    if (max > st->max) {
        const double alpha = st->max == -INFINITY ? 0.0 : exp((double)st->max - (double)max);
        if (entropy && alpha > 0) st->sum_es = alpha * (st->sum_es + st->sum * ((double)st->max - (double)max));
        st->sum *= alpha;
        st->max = max;
    }
    const float m = st->max == -INFINITY ? 0.0f : st->max; /* all masked so far: exp(-inf) = 0 */
    float sum = 0, sum_es = 0;
    if (entropy) {
        _Pragma("omp simd reduction(+ : sum, sum_es)") for (int64_t i = 0; i < n; i++)
        {
            const float d = z[i] * inv_t - m, e = exp_below(d);
            sum += e;
            sum_es += e > 0.0f ? e * d : 0.0f;
        }
    } else {
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++) sum += exp_below(z[i] * inv_t - m);
    }
    st->sum += (double)sum;
    st->sum_es += (double)sum_es;
}

static softmax_stats stats_of(const float *z, int64_t n, float inv_t, bool entropy)
{
    softmax_stats st = {.max = -INFINITY};
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t len = n - first < BLOCK ? n - first : BLOCK;
        if (entropy) {
            add_block(&st, z + first, len, inv_t, true);
        } else {
            add_block(&st, z + first, len, inv_t, false);
        }
    }
    return st;
}

/* sum of s - max */
static double sum_below(const float *z, int64_t n, float inv_t, float max)
{
    double total = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = n - first < BLOCK ? n : first + BLOCK;
        float sum = 0;
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = first; i < end; i++) sum += z[i] * inv_t - max;
        total += (double)sum;
    }
    return total;
}

/* sum of exp(d)^2 */
static double sum_squares(const float *z, int64_t n, float inv_t, float max)
{
    double total = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = n - first < BLOCK ? n : first + BLOCK;
        float sum = 0;
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = first; i < end; i++)
        {
            const float e = exp_below(z[i] * inv_t - max);
            sum += e * e;
        }
        total += (double)sum;
    }
    return total;
}

/* sum of exp(d) (d - d_r) */
static double sum_apart(const float *z, const float *ref, int64_t n, float inv_t, float max, float ref_max)
{
    double total = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = n - first < BLOCK ? n : first + BLOCK;
        float sum = 0;
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = first; i < end; i++)
        {
            const float d = z[i] * inv_t - max, e = exp_below(d), apart = d - (ref[i] * inv_t - ref_max);
            sum += e > 0.0f ? e * apart : 0.0f;
        }
        total += (double)sum;
    }
    return total;
}

/* log(own / m) for a mixture m = share own + (1 - share) other, by gap = log(own / other) >= 0. */
INLINE float over_mixture(float share, float gap) { return -log_f(FMA(1.0f - share, exp_below(-gap), share)); }

/* sums of e^d (log p - log m) and of e^(d_r) (log q - log m). shift: log Z_r - log Z. */
static void sum_mixture(const dt_classifier *cl, const float *z, const float *ref, float max, float ref_max,
                        float shift, double *own, double *other)
{
    const int64_t n = cl->n_vocab;
    const float inv_t = cl->inv_temperature, a = cl->kl_mix;
    *own = *other = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = n - first < BLOCK ? n : first + BLOCK;
        float of_p = 0, of_q = 0;
        _Pragma("omp simd reduction(+ : of_p, of_q)") for (int64_t i = first; i < end; i++)
        {
            const float d = z[i] * inv_t - max, d_r = ref[i] * inv_t - ref_max, gap = d - d_r + shift, e = exp_below(d),
                        e_r = exp_below(d_r),
                        over = a == 1.0f ? 0.0f : over_mixture(gap < 0.0f ? 1.0f - a : a, fabsf(gap));
            const float p_over = a == 1.0f || gap >= 0.0f ? over : over + gap,
                        q_over = a == 1.0f || gap >= 0.0f ? over - gap : over;
            of_p += e > 0.0f ? e * p_over : 0.0f;
            of_q += e_r > 0.0f ? e_r * q_over : 0.0f;
        }
        *own += (double)of_p, *other += (double)of_q;
    }
}

/* Is the target the first token with the maximum logit, which greedy decoding would choose? False if the row contains
 * NaN. */
static bool is_first_max(const float *z, int64_t target, int64_t n)
{
    bool first = true;
    for (int64_t i = 0; i < target && first; i++) first = z[i] < z[target];
    for (int64_t i = target; i < n && first; i++) first = z[i] <= z[target];
    return first;
}

/* 16-bit gradients overwrite the front of their own float row. Each block is therefore computed in a buffer before it
 * is stored. */
typedef uint16_t __attribute__((may_alias)) aliased_half;

/* Store elements first .. first+n-1 of a row of type dt that begins at z. */
static void store_over(float *z, dt_dtype dt, int64_t first, const float *block, int64_t n)
{
    aliased_half *out = (aliased_half *)(void *)z + first;
    if (dt == DT_F32) {
        SIMD_FOR (int64_t i = 0; i < n; i++) z[first + i] = block[i];
    } else if (dt == DT_BF16) {
        SIMD_FOR (int64_t i = 0; i < n; i++) out[i] = bf16_of(block[i]);
    } else {
        SIMD_FOR (int64_t i = 0; i < n; i++) out[i] = dt_f16_from_float(block[i]);
    }
}

/* The gradient of logits before they were capped to z, from that of z. cap 0: none. */
static void uncap(float *restrict block, const float *z, int64_t n, float cap)
{
    const float inverse = cap > 0 ? 1.0f / cap : 0.0f;
    if (cap <= 0) return;
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        const float t = z[i] * inverse;
        block[i] *= FMA(-t, t, 1.0f);
    }
}

/* Replace z [n] by dlogits of type dt: scale exp(z/T - max), less weight at the target. With scale = w / Z that is w
 * (softmax - onehot), the gradient of -w logp. */
static void write_gradient(const dt_classifier *cl, float *z, int32_t target, float max, float scale, float weight)
{
    const int64_t n = cl->n_vocab;
    const float inv_t = cl->inv_temperature;
    float block[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t len = n - first < BLOCK ? n - first : BLOCK;
        SIMD_FOR (int64_t i = 0; i < len; i++) block[i] = scale * exp_below(z[first + i] * inv_t - max);
        if (target >= first && target < first + len) block[target - first] -= weight;
        uncap(block, z + first, len, cl->softcap);
        store_over(z, cl->dlogits_dtype, first, block, len);
    }
}

/* The factors of dlogits in the equation at the top of this file. max and ref_max: m and m_r. mix: a; gap: log Z_r -
 * log Z. */
typedef struct all_terms {
    float max, ref_max, base, slope, kl, ref, shift, one_hot, mix, gap;
} all_terms;

INLINE void form_block(float *restrict block, const float *z, const float *ref, bool mixed, int64_t n, float inv_t,
                       const all_terms *g)
{
    SIMD_FOR (int64_t i = 0; i < n; i++) {
        const float d = z[i] * inv_t - g->max, e = exp_below(d);
        float factor = FMA(g->slope, d, g->base), of_ref = 0.0f;
        if (ref) {
            const float d_r = ref[i] * inv_t - g->ref_max;
            float apart = d - d_r;
            if (mixed) {
                const float gap = apart + g->gap, over = over_mixture(gap < 0.0f ? 1.0f - g->mix : g->mix, fabsf(gap));
                apart = g->mix == 1.0f ? 0.0f : gap < 0.0f ? over + gap : over;
                of_ref = g->ref * exp_below(d_r);
            }
            factor = FMA(g->kl, apart, factor);
        }
        block[i] = (e == 0.0f ? 0.0f : e * factor) - of_ref - g->shift; /* NaN propagates */
    }
}

static void write_all_terms(const dt_classifier *cl, float *z, const float *ref, int32_t target, const all_terms *g)
{
    const int64_t n = cl->n_vocab;
    const float inv_t = cl->inv_temperature;
    float block[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t len = n - first < BLOCK ? n - first : BLOCK;
        if (ref && g->mix > 0) {
            form_block(block, z + first, ref + first, true, len, inv_t, g);
        } else if (ref) {
            form_block(block, z + first, ref + first, false, len, inv_t, g);
        } else {
            form_block(block, z + first, NULL, false, len, inv_t, g);
        }
        if (target >= first && target < first + len) block[target - first] -= g->one_hot;
        uncap(block, z + first, len, cl->softcap);
        store_over(z, cl->dlogits_dtype, first, block, len);
    }
}

/* A row's sums and results. */
typedef struct row_values {
    softmax_stats st, ref;
    double log_sum, log_ref_sum; /* log Z, log Z_r */
    double entropy, kl;
    double own_kl; /* KL(p || m), if kl_mix > 0 */
} row_values;

/* The divergence of a mixture: kl_mix > 0. */
static void mix_row(const dt_classifier *cl, row_values *v, const float *z, const float *ref)
{
    const double a = (double)cl->kl_mix;
    double own, other;
    sum_mixture(cl, z, ref, v->st.max, v->ref.max, (float)(v->log_ref_sum - v->log_sum), &own, &other);
    v->own_kl = own / v->st.sum;
    v->kl = a < 1 ? a * v->own_kl + (1 - a) * other / v->ref.sum : other / v->ref.sum;
}

static bool wants_gradient(const dt_classifier *cl) { return cl->weight || cl->entropy_weight || cl->kl_weight; }
static float weight_of(const float *weight, int64_t row) { return weight ? weight[row] : 0.0f; }

static void write_gradient_of_row(const dt_classifier *cl, const row_values *v, float *z, const float *ref,
                                  int32_t target, int64_t row, double logp)
{
    const float inv_t = cl->inv_temperature, factor = cl->weight_by_p ? inv_t * (float)exp(logp) : inv_t,
                w = weight_of(cl->weight, row) * factor;
    const int64_t n = cl->n_vocab;
    if (!cl->entropy_weight && !cl->kl_weight && cl->label_smoothing == 0 && cl->z_loss == 0) {
        write_gradient(cl, z, target, v->st.max, (float)((double)w / v->st.sum), w);
        return;
    }
    const double eps = (double)cl->label_smoothing, lse = (double)v->st.max + v->log_sum,
                 entropy_w = (double)(weight_of(cl->entropy_weight, row) * inv_t),
                 kl_w = (double)(weight_of(cl->kl_weight, row) * inv_t), a = (double)cl->kl_mix,
                 gap = ref ? v->log_ref_sum - v->log_sum : 0.0;
    const double of_kl = a == 0 ? gap - v->kl : a < 1 ? -a * v->own_kl : 1;
    const double base = (double)w * (1 + 2 * (double)cl->z_loss * lse) + entropy_w * (v->entropy - v->log_sum) +
                        (ref ? kl_w * of_kl : 0.0);
    const all_terms g = {.max = v->st.max,
                         .ref_max = v->ref.max,
                         .base = (float)(base / v->st.sum),
                         .slope = (float)(entropy_w / v->st.sum),
                         .kl = (float)((a > 0 ? a : 1) * kl_w / v->st.sum),
                         .ref = ref && a == 1 ? (float)(kl_w / v->ref.sum) : 0.0f,
                         .shift = (float)((double)w * eps / (double)n),
                         .one_hot = (float)((double)w * (1 - eps)),
                         .mix = cl->kl_mix,
                         .gap = (float)gap};
    write_all_terms(cl, z, ref, target, &g);
}

static double loss_of_row(const dt_classifier *cl, const row_values *v, const float *z, double logp)
{
    const double eps = (double)cl->label_smoothing, lse = (double)v->st.max + v->log_sum, n = (double)cl->n_vocab;
    double loss = -(1 - eps) * logp + (double)cl->z_loss * lse * lse;
    if (eps > 0) loss -= eps * (sum_below(z, cl->n_vocab, cl->inv_temperature, v->st.max) / n - v->log_sum);
    return loss;
}

static void clear_row(const dt_classifier *cl, float *z, int64_t row)
{
    if (cl->logp) cl->logp[row] = 0;
    if (cl->hit) cl->hit[row] = 0;
    if (cl->entropy) cl->entropy[row] = 0;
    if (cl->kl) cl->kl[row] = 0;
    if (cl->loss) cl->loss[row] = 0;
    if (cl->log_sum_squares) cl->log_sum_squares[row] = 0;
    if (cl->mean_logit) cl->mean_logit[row] = 0;
    if (wants_gradient(cl)) memset(z, 0, (size_t)cl->n_vocab * dt_dtype_size(cl->dlogits_dtype));
}

void ISA_NAME(fill_rest)(const dt_fill_rest_args *args, int64_t row)
{
    const int64_t n = args->rows.n_vocab, at = row * args->rows.logits_ld, k = args->k;
    const float inv_t = args->inv_temperature;
    const int32_t *token = args->token + row * k;
    const float *logp = args->logp + row * k;
    float *y = args->y + at;
    double known = 0;
    memcpy(y, args->logits + at, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < k; i++) {
        if (token[i] < 0) continue;
        y[token[i]] = -INFINITY;
        known += exp((double)logp[i]);
    }
    const softmax_stats st = stats_of(y, n, inv_t, false);
    const double rest = log(known < 1 - 1e-7 ? 1 - known : 1e-7);
    const float shift = st.sum == 0 ? 0.0f : (float)((rest - (double)st.max - log(st.sum)) / (double)inv_t);
    SIMD_FOR (int64_t i = 0; i < n; i++) y[i] += shift;
    for (int64_t i = 0; i < k; i++)
        if (token[i] >= 0) y[token[i]] = logp[i] / inv_t;
}

void ISA_NAME(classifier)(const dt_classifier *cl, float *logits, int64_t row)
{
    const int64_t n = cl->n_vocab;
    const float inv_t = cl->inv_temperature;
    const int32_t target = cl->target[row];
    float *z = logits + row * cl->logits_ld;
    const float *ref = cl->kl || cl->kl_weight ? cl->ref_logits + row * cl->ref_ld : NULL;
    if (target < 0) {
        clear_row(cl, z, row);
        return;
    }
    row_values v = {.st = stats_of(z, n, inv_t, cl->entropy || cl->entropy_weight)};
    v.log_sum = log(v.st.sum);
    v.entropy = v.log_sum - v.st.sum_es / v.st.sum;
    const double logp = (double)(z[target] * inv_t) - (double)v.st.max - v.log_sum;
    if (ref) {
        v.ref = stats_of(ref, n, inv_t, false);
        v.log_ref_sum = log(v.ref.sum);
        if (cl->kl_mix > 0)
            mix_row(cl, &v, z, ref);
        else
            v.kl = sum_apart(z, ref, n, inv_t, v.st.max, v.ref.max) / v.st.sum + (v.log_ref_sum - v.log_sum);
    }
    if (cl->logp) cl->logp[row] = (float)logp;
    if (cl->hit) cl->hit[row] = is_first_max(z, target, n);
    if (cl->entropy) cl->entropy[row] = (float)v.entropy;
    if (cl->kl) cl->kl[row] = (float)v.kl;
    if (cl->loss) cl->loss[row] = (float)loss_of_row(cl, &v, z, logp);
    if (cl->log_sum_squares)
        cl->log_sum_squares[row] = (float)(log(sum_squares(z, n, inv_t, v.st.max)) - 2 * v.log_sum);
    if (cl->mean_logit) cl->mean_logit[row] = (float)(sum_below(z, n, inv_t, 0) / (double)n);
    if (wants_gradient(cl)) write_gradient_of_row(cl, &v, z, ref, target, row, logp);
}
