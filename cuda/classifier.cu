/* classifier.cu - the classifier (dt_classifier), and logits of distributions that are known in part (fill_rest).
 *
 * With s = z/T, m = max s, d = s - m, Z = sum exp(d), and the same of the reference logits with index r:
 *
 *     logp = d_t - log Z     H = log Z - sum exp(d) d / Z
 *     K = sum exp(d) (s - s_r) / Z - (m + log Z) + (m_r + log Z_r)
 *     dlogits_v = e^(d_v) (base + slope d_v + kl (d_v - d_rv)) - shift - (v = t ? one_hot : 0)
 *
 * With kl_mix > 0, log p - log m replaces d_v - d_rv (src/device/isa/classifier.c has the equations).
 *
 * With soft-capping that is multiplied by 1 - (z_v / cap)^2. Only the kernels for more results know it, because the
 * plain ones have no registers left.
 *
 * Arrays    logits [n_rows, n_vocab] float, with row distance logits_ld; gradients overwrite them.
 * Threads   A block per row, in two passes. The first computes the maximum and the sums together. A thread rescales its
 *           sums when its maximum changes (Milakov and Gimelshein, arXiv:1805.02867), and the block combines the
 *           threads' sums in double. The second pass writes the gradient. The beginning of the row is cached in shared
 *           memory, 24576 logits on an H100. If requested, a separate pass between the two computes sum exp(d)^2,
 *           because the first pass has no registers left for it, or the divergence of a mixture, which needs Z and Z_r.
 * Numerics  Compiled without contraction, with explicit fused operations: a row's results do not depend on which
 *           results are requested. */
#include "kernel.cuh"

/* Requested results: PLAIN: logp, hit and the gradient of logp. MORE: also results that depend on the whole
 * distribution. SQUARES: also sums of squared probabilities. MIXED: as MORE, and a divergence with kl_mix > 0. */
enum { PLAIN, MORE, SQUARES, MIXED };

/* Threads of a block; elements of a thread per turn, in groups of 4; elements of the block per turn. */
enum { THREADS = 1024, EACH = 8, TURN = THREADS * EACH };

/* ---- loads and stores -------------------------------------------------------------------------------------------- */

/* In the turn that starts at `first`, a thread processes elements first + 4 threadIdx + offset_of(i), i < EACH. */
__device__ static inline int offset_of(int i) { return 4 * THREADS * (i / 4) + i % 4; }
/* Offset of element v of the row from the thread's first element of the turn; negative: v precedes it. */
__device__ static inline int offset_in_turn(int64_t v, int64_t first)
{
    return (int)(v - first) - 4 * (int)threadIdx.x;
}

/* Load this thread's elements of a turn; -inf beyond the row. */
template <bool aligned> __device__ static inline void load_turn(const float *z, int64_t first, int64_t n, float x[EACH])
{
    const int left = offset_in_turn(n, first);
    z += first + 4 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        const int at = offset_of(i);
        if (aligned && at + 4 <= left) {
            const vec<float, 4> v = *reinterpret_cast<const vec<float, 4> *>(z + at);
#pragma unroll
            for (int k = 0; k < 4; k++) x[i + k] = v.x[k];
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) x[i + k] = at + k < left ? z[at + k] : -INFINITY;
        }
    }
}

/* The beginning of a row, cached in shared memory in whole turns. A thread stores and loads only its own elements. */
struct row_cache {
    float *x;
    int turns;
};

__device__ static inline void keep_turn(const row_cache &cache, int turn, const float x[EACH])
{
    if (turn >= cache.turns) return;
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        vec<float, 4> v;
#pragma unroll
        for (int k = 0; k < 4; k++) v.x[k] = x[i + k];
        *reinterpret_cast<vec<float, 4> *>(cache.x + turn * TURN + 4 * threadIdx.x + offset_of(i)) = v;
    }
}

template <bool aligned>
__device__ static inline void load_again(const row_cache &cache, const float *z, int turn, int64_t n, float x[EACH])
{
    if (turn < cache.turns) {
        load_turn<true>(cache.x, (int64_t)turn * TURN, (int64_t)cache.turns * TURN, x);
    } else {
        load_turn<aligned>(z, (int64_t)turn * TURN, n, x);
    }
}

/* Store this thread's elements. A row of floats starts at a multiple of 4 bytes, so pairs of 16-bit elements are always
 * aligned. */
template <class T, bool aligned>
__device__ static inline void store_turn(T *out, int64_t first, int64_t n, const float x[EACH])
{
    constexpr int N = aligned ? 4 : 4 / sizeof(T);
    const int left = offset_in_turn(n, first);
    out += first + 4 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < EACH; i += N) {
        const int at = offset_of(i);
        vec<T, N> v;
#pragma unroll
        for (int l = 0; l < N; l++) v.x[l] = from_float<T>(x[i + l]);
        if (at + N <= left) {
            *reinterpret_cast<vec<T, N> *>(out + at) = v;
        } else {
#pragma unroll
            for (int l = 0; l < N; l++)
                if (at + l < left) out[at + l] = v.x[l];
        }
    }
}

/* ---- first pass -------------------------------------------------------------------------------------------------- */

/* Running maximum, and sum of e^d with d = s - max. */
struct softmax_sum {
    float max, sum;
};

/* Running sums for results that depend on whole distributions: e^d d, e^d (s - s_r), and s. */
struct more_sums {
    float es, apart;
    double s;
};

/* If the maximum changes from m to m', sums are scaled by a = e^(m - m'):
 *     sum <- a sum,    es <- a (es + sum (m - m'))       since e^(s-m') (s-m') = a e^(s-m) ((s-m) + (m-m')) */
template <int ASKED> __device__ static inline void raise_max(softmax_sum &st, more_sums &more, float max)
{
    if (max <= st.max) return;
    const float moved = st.max - max, a = expf(moved); /* 0 if there was no element yet */
    if (ASKED) {
        more.es = a > 0.0f ? a * fmaf(st.sum, moved, more.es) : 0.0f;
        more.apart = a > 0.0f ? a * more.apart : 0.0f;
    }
    st.sum *= a;
    st.max = max;
}

/* Add x to the sums; e[i] = e^d of each. A NaN makes the sum NaN. */
template <int ASKED>
__device__ static inline void add_turn(softmax_sum &st, more_sums &more, const float x[EACH], float inv_t,
                                       float e[EACH])
{
    float max = st.max, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) max = fmaxf(max, x[i] * inv_t);
    raise_max<ASKED>(st, more, max);
    const float m = st.max == -INFINITY ? 0.0f : st.max; /* only -inf so far: e^-inf = 0 */
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        e[i] = expf(fmaf(x[i], inv_t, -m));
        sum += e[i];
    }
    st.sum += sum;
}

/* True if the target, at this offset, may still be the first maximum. False if an element is NaN. */
__device__ static inline bool none_before(const float x[EACH], int target, float of_target)
{
    bool none = true;
#pragma unroll
    for (int i = 0; i < EACH; i++) none = none && (offset_of(i) < target ? x[i] < of_target : x[i] <= of_target);
    return none;
}

/* Results of a thread, then of the block, for a row. */
struct row_sums {
    softmax_sum own, ref;
    more_sums more;
    bool first; /* the target is the first maximum */
};

/* Add a turn to the sums for the whole distribution; e: e^d of x. */
__device__ static void add_more(row_sums &r, const float x[EACH], float e[EACH], const float *ref, int64_t first,
                                int64_t n, float inv_t, bool aligned)
{
    const int left = offset_in_turn(n, first);
    float es = 0.0f, s = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        es += e[i] > 0.0f ? e[i] * fmaf(x[i], inv_t, -r.own.max) : 0.0f;
        if (offset_of(i) < left) s += x[i] * inv_t;
    }
    r.more.es += es;
    r.more.s += (double)s;
    if (!ref) return;
    float y[EACH], apart = 0.0f;
    if (aligned) {
        load_turn<true>(ref, first, n, y);
    } else {
        load_turn<false>(ref, first, n, y);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) apart += e[i] > 0.0f ? e[i] * (x[i] * inv_t - y[i] * inv_t) : 0.0f;
    r.more.apart += apart;
    more_sums none = {0, 0, 0};
    add_turn<PLAIN>(r.ref, none, y, inv_t, e);
}

template <int ASKED, bool aligned>
__device__ static row_sums read_row(const dt_classifier &cl, const row_cache &cache, const float *z, const float *ref,
                                    int64_t target)
{
    constexpr int AHEAD = ASKED ? 1 : 2; /* turns that are loaded together */
    const int64_t n = cl.n_vocab;
    const float inv_t = cl.inv_temperature, of_target = z[target];
    row_sums r = {{-INFINITY, 0}, {-INFINITY, 0}, {0, 0, 0}, true};
    for (int turn = 0; (int64_t)turn * TURN < n; turn += AHEAD) {
        float x[AHEAD][EACH], e[EACH];
#pragma unroll
        for (int l = 0; l < AHEAD; l++) load_turn<aligned>(z, (int64_t)(turn + l) * TURN, n, x[l]);
#pragma unroll
        for (int l = 0; l < AHEAD; l++) {
            if ((int64_t)(turn + l) * TURN >= n) break;
            keep_turn(cache, turn + l, x[l]);
            add_turn<ASKED>(r.own, r.more, x[l], inv_t, e);
            if (cl.hit)
                r.first = r.first && none_before(x[l], offset_in_turn(target, (int64_t)(turn + l) * TURN), of_target);
        }
        if (ASKED) add_more(r, x[0], e, ref, (int64_t)turn * TURN, n, inv_t, aligned);
    }
    return r;
}

/* A row's sums, in double, the same for all threads. */
struct row_values {
    float max, ref_max;
    double sum, log_sum, lse; /* Z, log Z, m + log Z */
    double ref_log_sum, ref_lse;
    double entropy, kl, sum_s;
    double own_kl; /* KL(p || m), with kl_mix > 0 */
    bool first;
};

/* Combine the threads' sums, each relative to its own maximum. */
template <int ASKED> __device__ static row_values join(const row_sums &r, bool ref)
{
    row_values v;
    v.max = block_reduce(r.own.max, larger());
    const float moved = r.own.max - v.max, a = expf(moved);
    v.sum = block_sum((double)a * (double)r.own.sum);
    v.log_sum = log(v.sum);
    v.lse = (double)v.max + v.log_sum;
    v.first = block_sum(r.first ? 0 : 1) == 0;
    if (!ASKED) return v;
    const double es = a > 0.0f ? (double)a * ((double)r.more.es + (double)r.own.sum * (double)moved) : 0.0;
    v.entropy = v.log_sum - block_sum(es) / v.sum;
    v.sum_s = block_sum(r.more.s);
    if (!ref) return v;
    v.ref_max = block_reduce(r.ref.max, larger());
    v.ref_log_sum = log(block_sum((double)expf(r.ref.max - v.ref_max) * (double)r.ref.sum));
    v.ref_lse = (double)v.ref_max + v.ref_log_sum;
    v.kl = block_sum(a > 0.0f ? (double)a * (double)r.more.apart : 0.0) / v.sum - (v.lse - v.ref_lse);
    return v;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

__device__ static inline double logp_of(const dt_classifier &cl, const row_values &v, float of_target)
{
    return (double)fmaf(of_target, cl.inv_temperature, -v.max) - v.log_sum;
}

/* Store the results of a row; called by one thread. of_target: the target's logit. */
template <int ASKED>
__device__ static void store_results(const dt_classifier &cl, const row_values &v, float of_target, int64_t row)
{
    const double logp = logp_of(cl, v, of_target);
    if (cl.logp) cl.logp[row] = (float)logp;
    if (cl.hit) cl.hit[row] = v.first;
    if (!ASKED) return;
    if (cl.entropy) cl.entropy[row] = (float)v.entropy;
    if (cl.kl) cl.kl[row] = (float)v.kl;
    if (cl.mean_logit) cl.mean_logit[row] = (float)(v.sum_s / (double)cl.n_vocab);
    if (cl.loss) {
        const double eps = (double)cl.label_smoothing;
        double loss = -(1 - eps) * logp + (double)cl.z_loss * v.lse * v.lse;
        if (eps > 0) loss -= eps * (v.sum_s / (double)cl.n_vocab - v.lse);
        cl.loss[row] = (float)loss;
    }
}

/* ---- sums of squares --------------------------------------------------------------------------------------------- */

template <bool aligned>
__device__ static void store_squares(const dt_classifier &cl, const row_values &v, const row_cache &cache,
                                     const float *z, int64_t row)
{
    float sum = 0.0f;
    for (int turn = 0; (int64_t)turn * TURN < cl.n_vocab; turn++) {
        float x[EACH];
        load_again<aligned>(cache, z, turn, cl.n_vocab, x);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float e = expf(fmaf(x[i], cl.inv_temperature, -v.max));
            sum += e * e;
        }
    }
    const double all = block_sum((double)sum);
    if (threadIdx.x == 0) cl.log_sum_squares[row] = (float)(log(all) - 2 * v.log_sum);
}

/* ---- divergence of a mixture ------------------------------------------------------------------------------------- */

/* log(p / m) and log(q / m) for m = a p + (1 - a) q, by gap = log(p / q). */
struct over_mixture {
    float p, q;
};
__device__ static inline over_mixture over_mixture_of(float a, float gap)
{
    if (a == 1.0f) return {0.0f, -gap};
    const float share = gap < 0.0f ? 1.0f - a : a, over = -logf(fmaf(1.0f - share, expf(-fabsf(gap)), share));
    return gap < 0.0f ? over_mixture{over + gap, over} : over_mixture{over, over - gap};
}

template <bool aligned>
__device__ static void mix_row(const dt_classifier &cl, row_values &v, const row_cache &cache, const float *z,
                               const float *ref)
{
    const float inv_t = cl.inv_temperature, shift = (float)(v.ref_log_sum - v.log_sum);
    const double a = (double)cl.kl_mix;
    float of_p = 0.0f, of_q = 0.0f;
    for (int turn = 0; (int64_t)turn * TURN < cl.n_vocab; turn++) {
        float x[EACH], y[EACH];
        load_again<aligned>(cache, z, turn, cl.n_vocab, x);
        load_turn<aligned>(ref, (int64_t)turn * TURN, cl.n_vocab, y);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float d = fmaf(x[i], inv_t, -v.max), d_r = fmaf(y[i], inv_t, -v.ref_max), e = expf(d),
                        e_r = expf(d_r);
            const over_mixture over = over_mixture_of(cl.kl_mix, d - d_r + shift);
            of_p += e > 0.0f ? e * over.p : 0.0f;
            of_q += e_r > 0.0f ? e_r * over.q : 0.0f;
        }
    }
    v.own_kl = block_sum((double)of_p) / v.sum;
    const double other = block_sum((double)of_q) / exp(v.ref_log_sum);
    v.kl = a < 1 ? a * v.own_kl + (1 - a) * other : other;
}

/* ---- second pass ------------------------------------------------------------------------------------------------- */

/* Factors of dlogits as at the top of this file; max and ref_max: m and m_r. */
struct gradient_terms {
    float max, ref_max, base, slope, kl, shift, one_hot, inv_cap;
    float ref, gap; /* MIXED: of e^(d_r); log Z_r - log Z */
};

__device__ static inline float weight_of(const float *weight, int64_t row) { return weight ? weight[row] : 0.0f; }

template <int ASKED>
__device__ static gradient_terms terms_of(const dt_classifier &cl, const row_values &v, bool ref, float of_target,
                                          int64_t row)
{
    const float inv_t = cl.inv_temperature,
                factor = cl.weight_by_p ? inv_t * expf((float)logp_of(cl, v, of_target)) : inv_t,
                w = weight_of(cl.weight, row) * factor;
    gradient_terms g = {v.max, 0, (float)((double)w / v.sum), 0, 0, 0, w, 0, 0, 0};
    if (!ASKED) return g;
    const double eps = (double)cl.label_smoothing, entropy_w = (double)(weight_of(cl.entropy_weight, row) * inv_t),
                 kl_w = (double)(weight_of(cl.kl_weight, row) * inv_t);
    double base = (double)w * (1 + 2 * (double)cl.z_loss * v.lse) + entropy_w * (v.entropy - v.log_sum);
    const double a = ASKED == MIXED ? (double)cl.kl_mix : 0, gap = v.ref_log_sum - v.log_sum;
    if (ref) base += kl_w * (a == 0 ? gap - v.kl : a < 1 ? -a * v.own_kl : 1);
    g.ref_max = ref ? v.ref_max : 0.0f;
    g.base = (float)(base / v.sum);
    g.slope = (float)(entropy_w / v.sum);
    g.kl = (float)((a > 0 ? a : 1) * kl_w / v.sum);
    if (ASKED == MIXED) g.ref = a == 1 ? (float)(kl_w / exp(v.ref_log_sum)) : 0.0f, g.gap = (float)gap;
    g.shift = (float)((double)w * eps / (double)cl.n_vocab);
    g.one_hot = (float)((double)w * (1 - eps));
    if (cl.softcap > 0.0f) g.inv_cap = 1.0f / cl.softcap;
    return g;
}

/* Replace z [n] by dlogits. 16-bit gradients overwrite the first half of their own float row: turn t overwrites the
 * floats of turn t/2. All threads must therefore have read that turn first. A barrier after the loads of turn b makes
 * turns up to 2b + 1 safe. */
template <class T, int ASKED, bool aligned>
__device__ static void write_gradient(const dt_classifier &cl, const gradient_terms &g, const row_cache &cache,
                                      float *z, const float *ref, int64_t target)
{
    const int64_t n = cl.n_vocab;
    const float inv_t = cl.inv_temperature;
    T *out = reinterpret_cast<T *>(z);
    int barrier = 0;
    for (int turn = 0; (int64_t)turn * TURN < n; turn++) {
        const int64_t first = (int64_t)turn * TURN;
        const int at_target = offset_in_turn(target, first);
        float x[EACH], y[EACH];
        load_again<aligned>(cache, z, turn, n, x);
        if (ASKED && ref) load_turn<aligned>(ref, first, n, y);
        if (sizeof(T) < sizeof(float) && turn == barrier) {
            __syncthreads();
            barrier = 2 * turn + 2;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float d = fmaf(x[i], inv_t, -g.max), e = expf(d), t = ASKED ? x[i] * g.inv_cap : 0.0f;
            if (ASKED) {
                float factor = fmaf(g.slope, d, g.base), of_ref = 0.0f;
                if (ref) {
                    const float d_r = fmaf(y[i], inv_t, -g.ref_max);
                    if (ASKED == MIXED) of_ref = g.ref * expf(d_r);
                    factor =
                        fmaf(g.kl, ASKED == MIXED ? over_mixture_of(cl.kl_mix, d - d_r + g.gap).p : d - d_r, factor);
                }
                x[i] = (e == 0.0f ? 0.0f : e * factor) - of_ref - g.shift; /* NaN is kept */
            } else {
                x[i] = g.base * e;
            }
            if (offset_of(i) == at_target) x[i] -= g.one_hot;
            if (ASKED && cl.softcap > 0.0f) x[i] *= fmaf(-t, t, 1.0f);
        }
        store_turn<T, aligned>(out, first, n, x);
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

__host__ __device__ static inline bool wants_gradient(const dt_classifier &cl)
{
    return cl.weight || cl.entropy_weight || cl.kl_weight;
}

template <class T, int ASKED> __device__ static void clear_row(const dt_classifier &cl, float *z, int64_t row)
{
    if (threadIdx.x == 0) {
        if (cl.logp) cl.logp[row] = 0;
        if (cl.hit) cl.hit[row] = 0;
        if (ASKED && cl.entropy) cl.entropy[row] = 0;
        if (ASKED && cl.kl) cl.kl[row] = 0;
        if (ASKED && cl.loss) cl.loss[row] = 0;
        if (ASKED && cl.mean_logit) cl.mean_logit[row] = 0;
        if (ASKED == SQUARES) cl.log_sum_squares[row] = 0;
    }
    if (!wants_gradient(cl)) return;
    for (int64_t i = threadIdx.x; i < cl.n_vocab; i += THREADS) reinterpret_cast<T *>(z)[i] = from_float<T>(0.0f);
}

template <class T, int ASKED, bool aligned>
__device__ static void work_on_row(const dt_classifier &cl, const row_cache &cache, float *z, const float *ref,
                                   int64_t target, int64_t row)
{
    const float of_target = z[target];
    row_values v = join<ASKED>(read_row<ASKED, aligned>(cl, cache, z, ref, target), ref != nullptr);
    if (ASKED == MIXED) mix_row<aligned>(cl, v, cache, z, ref);
    if (threadIdx.x == 0) store_results<ASKED>(cl, v, of_target, row);
    if (ASKED == SQUARES) store_squares<aligned>(cl, v, cache, z, row);
    if (wants_gradient(cl))
        write_gradient<T, ASKED, aligned>(cl, terms_of<ASKED>(cl, v, ref != nullptr, of_target, row), cache, z, ref,
                                          target);
}

/* The classifier: block r computes row r. Rows aligned to 16 bytes are read in vectors. The order of sums does not
 * depend on the alignment. */
template <class T, int ASKED>
__global__ void __launch_bounds__(THREADS) classifier_kernel(dt_classifier cl, float *logits, int cached_turns)
{
    DYNAMIC_SHARED(float, shared);
    const row_cache cache = {shared, cached_turns};
    const int64_t row = blockIdx.x, target = cl.target[row];
    float *z = logits + row * cl.logits_ld;
    const float *ref = ASKED && (cl.kl || cl.kl_weight) ? cl.ref_logits + row * cl.ref_ld : nullptr;
    if (target < 0)
        clear_row<T, ASKED>(cl, z, row);
    else if ((((size_t)z | (size_t)ref) & 15) == 0)
        work_on_row<T, ASKED, true>(cl, cache, z, ref, target, row);
    else
        work_on_row<T, ASKED, false>(cl, cache, z, ref, target, row);
}

/* Turns of a row that a block caches. Two blocks must fit on a multiprocessor, so that one computes while the other
 * combines its sums. No turn is cached if each row is read only once. */
static int turns_to_cache(const cuda_state *cuda, const dt_classifier *cl)
{
    enum { SUMS_NBYTES = 2048 };
    const int64_t turns = ceil_div(cl->n_vocab, TURN),
                  fit = ((int64_t)cuda->properties.sharedMemPerBlockOptin / 2 - SUMS_NBYTES) / (TURN * sizeof(float));
    if (!wants_gradient(*cl)) return 0;
    return (int)(turns < fit ? turns : fit > 0 ? fit : 0);
}

dt_err cuda_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *stream)
{
    DT_TRY(dt_classifier_check(cl));
    if (cl->n_rows == 0) return DT_OK;
    const bool more = cl->entropy || cl->kl || cl->loss || cl->mean_logit || cl->entropy_weight || cl->kl_weight ||
                      cl->label_smoothing > 0 || cl->z_loss > 0 || cl->softcap > 0;
    const bool mixed = cl->kl_mix > 0 && (cl->kl || cl->kl_weight);
    dt_stream *s = cuda_stream(dev, stream, "classifier");
    const int turns = turns_to_cache(cuda_of(dev), cl);
    const size_t shared_nbytes = (size_t)turns * TURN * sizeof(float);
    CUDA_BY_DTYPE(wants_gradient(*cl) ? cl->dlogits_dtype : DT_F32, T, "classifier", {
        const auto kernel = cl->log_sum_squares ? classifier_kernel<T, SQUARES>
                            : mixed             ? classifier_kernel<T, MIXED>
                            : more              ? classifier_kernel<T, MORE>
                                                : classifier_kernel<T, PLAIN>;
        CUDA_ALLOW_SHARED(kernel, shared_nbytes);
        launch(s, (unsigned)cl->n_rows, THREADS, shared_nbytes, kernel, *cl, logits, turns);
    });
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- known log-probabilities ------------------------------------------------------------------------------------- */

/* Block r fills row r of y: a copy of the logits without the k known tokens, their sum, its shift, the known tokens. */
__global__ void __launch_bounds__(THREADS)
    fill_rest_kernel(dt_token_rows rows, const float *logits, float inv_t, int64_t k, const int32_t *token,
                     const float *logp, float *y)
{
    const int64_t n = rows.n_vocab, row = blockIdx.x;
    const float *z = logits + row * rows.logits_ld;
    y += row * rows.logits_ld, token += row * k, logp += row * k;
    for (int64_t v = threadIdx.x; v < n; v += THREADS) y[v] = z[v];
    __syncthreads();
    double known = 0;
    for (int64_t i = threadIdx.x; i < k; i += THREADS) {
        if (token[i] < 0) continue;
        y[token[i]] = -INFINITY;
        known += exp((double)logp[i]);
    }
    known = block_sum(known); /* with a barrier */
    float max = -INFINITY;
    for (int64_t v = threadIdx.x; v < n; v += THREADS) max = fmaxf(max, y[v]);
    max = block_reduce(max, larger());
    float sum = 0.0f;
    for (int64_t v = threadIdx.x; v < n; v += THREADS) sum += max == -INFINITY ? 0.0f : expf((y[v] - max) * inv_t);
    const double all = block_sum((double)sum), rest = log(known < 1 - 1e-7 ? 1 - known : 1e-7);
    const float shift = max == -INFINITY ? 0.0f : (float)((rest - log(all)) / (double)inv_t - (double)max);
    for (int64_t v = threadIdx.x; v < n; v += THREADS) y[v] += shift;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < k; i += THREADS)
        if (token[i] >= 0) y[token[i]] = logp[i] / inv_t;
}

dt_err cuda_fill_rest(dt_device *dev, const dt_token_rows *rows, const float *logits, float inv_temperature, int64_t k,
                      const int32_t *token, const float *logp, float *y, dt_stream *stream)
{
    DT_TRY(dt_fill_rest_check(rows, inv_temperature, k));
    if (rows->n_rows == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "fill_rest");
    launch(s, (unsigned)rows->n_rows, THREADS, 0, fill_rest_kernel, *rows, logits, inv_temperature, k, token, logp, y);
    CUDA_LAUNCHED();
    return DT_OK;
}
