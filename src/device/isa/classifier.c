/* classifier.c - softmax, log-probability and their gradient for one row of logits.
 *
 * One pass finds maximum and sum together: block by block (a block stays in the first cache), the sum being rescaled
 * when the maximum moves (Milakov and Gimelshein, arXiv:1805.02867). A second pass writes gradients. Blocks are summed
 * in float, the row in double. With T the temperature, s = z/T, m = max s, Z = sum exp(s - m):
 *     logp = s_t - m - log Z,    entropy = log Z - sum exp(s - m) (s - m) / Z */
#include "kernels.h"
#include <string.h>

enum { BLOCK = 1024 };

typedef struct softmax_stats {
    float max;
    double sum, sum_es; /* of exp(s - max), and of exp(s - max) (s - max) */
} softmax_stats;

/* Bring a block z [n] into the row's statistics. Where the maximum moves from m to m', with a = e^(m - m'):
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

/* Is the target the first of the largest logits? That is what greedy decoding would choose. With a NaN
 * in the row: no. */
static bool is_first_max(const float *z, int64_t target, int64_t n)
{
    bool first = true;
    for (int64_t i = 0; i < target && first; i++) first = z[i] < z[target];
    for (int64_t i = target; i < n && first; i++) first = z[i] <= z[target];
    return first;
}

/* Bfloat16 gradients go over the front of their own float row: each block is formed apart before it is stored. */
typedef uint16_t __attribute__((may_alias)) aliased_bf16;

/* z [n] becomes dlogits of type dt in place: scale exp(z/T - max), less weight at the target. With scale = w / Z that
 * is w (softmax - onehot), the gradient of -w logp. */
static void write_gradient(float *z, int64_t n, dt_dtype dt, int32_t target, float inv_t, float max, float scale,
                           float weight)
{
    float block[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t len = n - first < BLOCK ? n - first : BLOCK;
        SIMD_FOR (int64_t i = 0; i < len; i++) block[i] = scale * exp_below(z[first + i] * inv_t - max);
        if (target >= first && target < first + len) block[target - first] -= weight;
        if (dt == DT_F32) {
            SIMD_FOR (int64_t i = 0; i < len; i++) z[first + i] = block[i];
        } else {
            aliased_bf16 *out = (aliased_bf16 *)(void *)z + first;
            SIMD_FOR (int64_t i = 0; i < len; i++) out[i] = bf16_of(block[i]);
        }
    }
}

void ISA_NAME(classifier)(const dt_classifier *cl, float *logits, int32_t target, const float *weight, float *logp,
                          uint8_t *hit, float *entropy)
{
    const int64_t n = cl->n_vocab;
    const float inv_t = cl->inv_temperature;
    softmax_stats st = {.max = -INFINITY};
    if (target >= 0 || entropy) {
        for (int64_t first = 0; first < n; first += BLOCK) {
            const int64_t len = n - first < BLOCK ? n - first : BLOCK;
            if (entropy) {
                add_block(&st, logits + first, len, inv_t, true);
            } else {
                add_block(&st, logits + first, len, inv_t, false);
            }
        }
    }
    if (entropy) *entropy = (float)(log(st.sum) - st.sum_es / st.sum);
    if (hit) *hit = target >= 0 && is_first_max(logits, target, n);
    *logp = target >= 0 ? (float)((double)(logits[target] * inv_t) - (double)st.max - log(st.sum)) : 0.0f;
    if (!weight) return;
    if (target >= 0) {
        const float w = *weight * inv_t;
        write_gradient(logits, n, cl->dlogits_dtype, target, inv_t, st.max, (float)((double)w / st.sum), w);
    } else {
        memset(logits, 0, (size_t)n * dt_dtype_size(cl->dlogits_dtype));
    }
}
