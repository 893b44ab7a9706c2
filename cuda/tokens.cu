/* tokens.cu - selection of tokens (dt_token_rows, dt_choice). Block r processes row r of the logits.
 *
 * The transforms keep a prefix of the list of tokens in descending order of logits, ties by ascending id
 * (token_weights.c on the host). The list is never sorted. Counting finds the end of the prefix. First, all tokens are
 * counted in bins by score. Then the tokens of the bin that contains the end are counted by the digits of their
 * logit's bits, from the top. Of the tokens with the last logit, the first ones by id are kept. A border, which is a
 * logit and an id, therefore describes a prefix.
 *
 * Numerics  Counts are exact, and so are sums of weights. A weight is an integer of about 44 bits times a power of two.
 *           The power belongs to the weight's bin of scores, within which weights differ little. The order in which
 *           threads add does not matter, and the sum of a distribution has a relative error of at most 2^-44. */
#include "kernel.cuh"
#include <inttypes.h>

enum { THREADS = 1024, WARPS = THREADS / WARP, IN_FLIGHT = 8, N_BINS = 2048, SORTED = THREADS };

/* ---- a row ------------------------------------------------------------------------------------------------------- */

struct token_row {
    const float *__restrict__ z;
    const int32_t *__restrict__ list;     /* ids, ascending; NULL: all */
    const uint32_t *__restrict__ allowed; /* NULL: all */
    const uint32_t *__restrict__ seen;    /* NULL: none */
    double penalty;                       /* of seen tokens */
    int32_t n;                            /* length of the list */
};

/* Describe row r. seen: nullptr, and penalty 1, for tokens without a repetition penalty. */
__device__ static inline token_row row_of(const dt_token_rows &rows, const float *logits, int64_t r,
                                          const uint32_t *seen, double penalty)
{
    return {logits + r * rows.logits_ld,
            rows.list ? rows.list + rows.list_start[r] : nullptr,
            rows.allowed ? rows.allowed + r * rows.allowed_ld : nullptr,
            seen ? seen + r * rows.seen_ld : nullptr,
            penalty,
            rows.list ? rows.list_len[r] : (int32_t)rows.n_vocab};
}

/* The id at a position of the list. */
__device__ static inline int32_t id_at(const token_row &row, int64_t place)
{
    return row.list ? row.list[place] : (int32_t)place;
}

__device__ static inline bool is_in(const uint32_t *mask, int32_t v) { return mask[v / 32] >> (v % 32) & 1; }

/* A token's logit after the repetition penalty; -inf (impossible) if not allowed. */
__device__ static inline float logit_of(const token_row &row, int32_t v)
{
    const float x = !row.allowed || is_in(row.allowed, v) ? row.z[v] : -INFINITY;
    if (!row.seen || !is_in(row.seen, v)) return x;
    return (float)(x > 0 ? (double)x / row.penalty : (double)x * row.penalty);
}

/* Call f(v, logit) for the possible tokens at positions begin + me, begin + me + stride, ... below end. Several loads
 * are in flight. */
template <class F>
__device__ static inline void each_token(const token_row &row, int32_t begin, int32_t end, int me, int stride, F f)
{
    for (int64_t first = (int64_t)begin + me; first < end; first += (int64_t)IN_FLIGHT * stride) {
        float x[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++)
            x[i] = first + i * stride < end ? logit_of(row, id_at(row, first + i * stride)) : -INFINITY;
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++)
            if (x[i] != -INFINITY) f(id_at(row, first + i * stride), x[i]);
    }
}
template <class F> __device__ static inline void each_token(const token_row &row, F f)
{
    each_token(row, 0, row.n, (int)threadIdx.x, THREADS, f);
}

/* Bits that are ordered like the values; both zeros are equal. */
__device__ static inline uint32_t key_of(float x)
{
    uint32_t u;
    x = x == 0.0f ? 0.0f : x;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ static inline float of_key(uint32_t key)
{
    const uint32_t u = key >> 31 ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The end of a prefix: its last token, which has this key (key_of its logit) and id. */
struct border {
    uint32_t key;
    int32_t id;
};
__device__ static inline bool is_within(border b, uint32_t key, int32_t id)
{
    return key > b.key || (key == b.key && id <= b.id);
}
__device__ static inline border all_tokens() { return {0, INT32_MAX}; }
__device__ static inline border no_token() { return {UINT32_MAX, -1}; }

struct greater {
    __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

/* The first token of the list. id -1: there is none; `key` is 1 if a logit is NaN or +inf, 0 if all are -inf. */
__device__ static border first_token(const token_row &row)
{
    uint64_t best = 0;
    each_token(row, [&](int32_t v, float x) {
        const uint64_t place = (uint64_t)key_of(x) << 32 | (uint32_t)~v;
        best = !(x < INFINITY) ? UINT64_MAX : place > best ? place : best;
    });
    best = block_reduce(best, greater());
    if (best == 0 || best == UINT64_MAX) return {best ? 1u : 0u, -1};
    return {(uint32_t)(best >> 32), (int32_t) ~(uint32_t)best};
}

/* ---- weights and their sums -------------------------------------------------------------------------------------- */

/* Bins are 1/32 wide; the last one contains all scores that are 64 or more below the maximum. The weights of bin b are
 * at most 2^-exponent(b). */
enum { BINS_PER_UNIT = 32 };
__device__ static inline int exponent(int bin) { return (int)((double)bin * (1.4426950408889634 / BINS_PER_UNIT)); }

/* 2^e, in the range of double. */
__device__ static inline double two_to(int e)
{
    const uint64_t u = (uint64_t)(1023 + e) << 52;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Maps the distance to the maximum, in units of the temperature, to a weight e^-distance and a bin. */
struct scores {
    float largest, bins_per_logit;
    double inv_temperature;
    int fixed_bits;

    __device__ double weight(float x) const { return exp(((double)x - (double)largest) * inv_temperature); }
    __device__ int bin(float x) const
    {
        const float below = (largest - x) * bins_per_logit;
        return below < (float)(N_BINS - 1) ? (int)below : N_BINS - 1;
    }
};

__device__ static scores scores_of(float largest, double temperature, int64_t n_vocab)
{
    const double per_logit = BINS_PER_UNIT / temperature;
    int log2_n = 0;
    while (log2_n < 32 && (int64_t)1 << log2_n < n_vocab) log2_n++;
    return {largest, per_logit < 1e38 ? (float)per_logit : 1e38f, 1 / temperature, 62 - log2_n};
}

/* State of the search for the end of a prefix. count, sum: number and weight of the tokens before a bin. most: maximum
 * number of tokens. goal: the sum at which the prefix is complete. */
struct search {
    uint32_t count, most;
    double sum, goal;
};

/* Counts of tokens, sums of their weights as 64-bit integers in two words, and the result of a search. */
struct histogram {
    uint32_t count[N_BINS], low[N_BINS], high[N_BINS];
    uint32_t group_count[WARPS];
    double group_sum[WARPS];
    search at;
    int last; /* bin in which the prefix ends; -1: no tokens */
};

template <bool SUMS> __device__ static void clear(histogram &h)
{
    __syncthreads();
    for (int b = threadIdx.x; b < N_BINS; b += THREADS) {
        h.count[b] = 0;
        if (SUMS) h.low[b] = h.high[b] = 0;
    }
    __syncthreads();
}

template <bool SUMS> __device__ static inline void count_token(histogram &h, int bin, const scores &s, float x)
{
    atomicAdd(&h.count[bin], 1u);
    if (!SUMS) return;
    const uint64_t w = (uint64_t)rint(s.weight(x) * two_to(s.fixed_bits + exponent(s.bin(x))));
    const uint32_t low = (uint32_t)w, was = atomicAdd(&h.low[bin], low);
    atomicAdd(&h.high[bin], (uint32_t)(w >> 32) + (was + low < was ? 1u : 0u));
}

/* Sum of the weights in a bin. score_bin: the bin of scores of these tokens, which determines the unit. */
template <bool SUMS> __device__ static inline double sum_of(const histogram &h, int bin, const scores &s, int score_bin)
{
    if (!SUMS) return 0;
    return (double)((uint64_t)h.high[bin] << 32 | h.low[bin]) * two_to(-s.fixed_bits - exponent(score_bin));
}

/* Find the bin in which the prefix ends: the first one with which it has `most` tokens or reaches its goal, else the
 * last that is not empty. h.at becomes the state before this bin. score_bin: bin of scores of all counted tokens; -1:
 * the bins are bins of scores. fraction > 0: the goal is this fraction of the sum of all weights. */
template <bool SUMS> __device__ static void find_last(histogram &h, const scores &s, int score_bin, double fraction)
{
    enum { GROUP = N_BINS / WARPS };
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();
    uint32_t count = 0;
    double sum = 0;
    for (int b = warp * GROUP + lane; b < (warp + 1) * GROUP; b += WARP) {
        count += h.count[b];
        sum += sum_of<SUMS>(h, b, s, score_bin < 0 ? b : score_bin);
    }
    count = warp_sum(count), sum = warp_sum(sum);
    if (lane == 0) h.group_count[warp] = count, h.group_sum[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        search at = h.at;
        if (fraction > 0) {
            at.goal = 0;
            for (int g = 0; g < WARPS; g++) at.goal += h.group_sum[g];
            at.goal *= fraction;
        }
        int group = -1, last = -1;
        for (int g = 0; g < WARPS; g++) {
            if (h.group_count[g] == 0) continue;
            if (group >= 0) at.count += h.group_count[group], at.sum += h.group_sum[group];
            group = g;
            if (at.count + h.group_count[g] >= at.most || at.sum + h.group_sum[g] >= at.goal) break;
        }
        double own = 0; /* sum of bin `last` */
        for (int b = group * GROUP; group >= 0 && b < (group + 1) * GROUP; b++) {
            if (h.count[b] == 0) continue;
            if (last >= 0) at.count += h.count[last], at.sum += own;
            last = b;
            own = sum_of<SUMS>(h, b, s, score_bin < 0 ? b : score_bin);
            if (at.count + h.count[b] >= at.most || at.sum + own >= at.goal) break;
        }
        h.at = at, h.last = last;
    }
    __syncthreads();
}

/* ---- searches in the order of ids -------------------------------------------------------------------------------- */

struct walk {
    double part[WARPS], before, target;
    int32_t begin, end, found;
};

/* Select the part in which the sum exceeds the target, else the last part that is not empty. Called by one thread. */
__device__ static void enter_part(walk &w, int64_t part_len)
{
    int in = -1;
    for (int p = 0; p < WARPS; p++) {
        if (w.part[p] == 0) continue;
        if (in >= 0) w.before += w.part[in];
        in = p;
        if (w.before + w.part[p] > w.target) break;
    }
    const int64_t begin = in < 0 ? w.end : w.begin + in * part_len, end = begin + part_len;
    w.begin = (int32_t)begin;
    if (end < w.end) w.end = (int32_t)end;
}

/* Find the first id at which the running sum of weight(v, logit) exceeds fraction * the sum of all + offset, else the
 * last id with a weight; -1: none. Each warp sums an equal part of the positions, and the part that contains the id is
 * divided again, until it has at most WARP positions. */
template <class W>
__device__ static int32_t first_past(walk &w, const token_row &row, double fraction, double offset, W weight)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();
    if (threadIdx.x == 0) w.begin = 0, w.end = row.n, w.before = 0, w.found = -1;
    for (bool first = true; first || w.end - w.begin > WARP; first = false) {
        __syncthreads();
        const int64_t part_len = ((int64_t)w.end - w.begin + THREADS - 1) / THREADS * WARP,
                      begin = w.begin + warp * part_len, end = begin + part_len < w.end ? begin + part_len : w.end;
        double sum = 0;
        if (begin < end)
            each_token(row, (int32_t)begin, (int32_t)end, lane, WARP, [&](int32_t v, float x) { sum += weight(v, x); });
        sum = warp_sum(sum);
        if (lane == 0) w.part[warp] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            if (first) {
                double all = 0;
                for (int p = 0; p < WARPS; p++) all += w.part[p];
                w.target = fraction * all + offset;
            }
            enter_part(w, part_len);
        }
        __syncthreads();
    }
    if (warp == 0) {
        const int32_t at = w.begin + lane, v = at < w.end ? id_at(row, at) : -1;
        const float x = v >= 0 ? logit_of(row, v) : -INFINITY;
        w.part[lane] = x != -INFINITY ? weight(v, x) : 0;
        __syncwarp();
        if (lane == 0) {
            double sum = w.before;
            for (int i = 0; i < w.end - w.begin; i++) {
                if (w.part[i] == 0) continue;
                w.found = id_at(row, w.begin + i);
                sum += w.part[i];
                if (sum > w.target) break;
            }
        }
    }
    __syncthreads();
    return w.found;
}

/* ---- the end of a prefix ----------------------------------------------------------------------------------------- */

struct tools {
    histogram h;
    walk w;
};

/* Number of tokens with the last logit that belong to the prefix, at least one. `ties` tokens have this logit; their
 * weights sum to `sum`. */
__device__ static uint32_t n_of_ties(const search &at, uint32_t ties, double sum)
{
    const double need = at.goal < INFINITY ? ceil((at.goal - at.sum) / (sum / ties)) : (double)ties;
    const uint32_t by_sum = !(need > 1) ? 1 : need < (double)ties ? (uint32_t)need : ties, left = at.most - at.count;
    return by_sum < left ? by_sum : left;
}

/* Find the end of a prefix of the tokens that are within a border and not within `after`. The prefix has at least one
 * and at most `most` tokens. With fraction > 0 it has no more than needed to reach this fraction of their sum.
 * no_token(): there are no such tokens. */
template <bool SUMS>
__device__ static border beginning(tools &t, const token_row &row, const scores &s, border after, border within,
                                   uint32_t most, double fraction)
{
    histogram &h = t.h;
    clear<SUMS>(h);
    if (threadIdx.x == 0) h.at = {0, most, 0, INFINITY};
    each_token(row, [&](int32_t v, float x) {
        const uint32_t key = key_of(x);
        if (is_within(within, key, v) && !is_within(after, key, v)) count_token<SUMS>(h, s.bin(x), s, x);
    });
    find_last<SUMS>(h, s, -1, fraction);
    const int score_bin = h.last;
    if (score_bin < 0) return no_token();
    uint64_t upper = 0; /* bits of the last logit, from the top: 11, 11 and 10 */
    for (int bits = 32; bits > 0;) {
        const int width = bits > 10 ? 11 : 10, rest = bits - width, mask = (1 << width) - 1;
        clear<SUMS>(h);
        each_token(row, [&](int32_t v, float x) {
            const uint64_t key = key_of(x);
            if (key >> bits == upper && s.bin(x) == score_bin && is_within(within, (uint32_t)key, v) &&
                !is_within(after, (uint32_t)key, v))
                count_token<SUMS>(h, mask - (int)(key >> rest & mask), s, x);
        });
        find_last<SUMS>(h, s, score_bin, 0);
        upper = upper << width | (uint64_t)(mask - h.last);
        bits = rest;
    }
    const uint32_t key = (uint32_t)upper, ties = h.count[h.last],
                   take = n_of_ties(h.at, ties, sum_of<SUMS>(h, h.last, s, score_bin));
    if (take == ties) return {key, key == within.key ? within.id : INT32_MAX};
    return {key, first_past(t.w, row, 0, (double)take - 1, [&](int32_t v, float x) {
                const uint32_t k = key_of(x);
                return k == key && is_within(within, k, v) && !is_within(after, k, v) ? 1.0 : 0.0;
            })};
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

/* token[r]: see dt_token_weights_draw. Block r processes row r. */
__global__ void __launch_bounds__(THREADS)
    draw_kernel(dt_token_rows rows, dt_choice how, const float *logits, const double *uniform, int32_t *token)
{
    __shared__ tools t;
    const token_row row = row_of(rows, logits, blockIdx.x, rows.seen, how.repetition_penalty);
    const border best = first_token(row);
    int32_t chosen = best.id;
    if (chosen >= 0 && !how.greedy) {
        const scores s = scores_of(of_key(best.key), how.temperature, row.n);
        border kept = all_tokens();
        if (how.top_k > 0 && how.top_k < row.n)
            kept = beginning<false>(t, row, s, no_token(), kept, (uint32_t)how.top_k, 0);
        if (how.top_p < 1) kept = beginning<true>(t, row, s, no_token(), kept, UINT32_MAX, how.top_p);
        chosen = first_past(t.w, row, uniform[blockIdx.x], 0, [&](int32_t v, float x) {
            const double weight = is_within(kept, key_of(x), v) ? s.weight(x) : 0.0;
            return weight >= how.min_p ? weight : 0.0; /* the most probable token has weight 1 */
        });
    }
    if (threadIdx.x == 0) token[blockIdx.x] = chosen;
}

/* scratch is unused: blocks only need shared memory. */
dt_err cuda_draw_tokens(dt_device *dev, const dt_token_rows *rows, const dt_choice *how, const float *logits,
                        const double *uniform, int32_t *token, void *scratch, dt_stream *stream)
{
    DT_TRY(dt_choice_check(rows, how));
    if (rows->n_rows == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "draw_tokens");
    launch(s, (unsigned)rows->n_rows, THREADS, 0, draw_kernel, *rows, *how, logits, uniform, token);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- the top k tokens -------------------------------------------------------------------------------------------- */

/* Sort list [SORTED] ascending: bitonic sort (Batcher, AFIPS 1968). Thread i writes element i. After the call it may
 * read other elements only after a barrier. */
__device__ static void sort(uint64_t *list)
{
    const int i = threadIdx.x;
    for (int run = 2; run <= SORTED; run *= 2)
        for (int apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            const uint64_t own = list[i], other = list[i ^ apart];
            const bool keep_smaller = ((i & run) == 0) == ((i & apart) == 0);
            __syncthreads();
            list[i] = keep_smaller == (own < other) ? own : other;
        }
}

/* token and logit [k] of row r, by block r. Each turn collects the next SORTED tokens of the list and sorts them. */
__global__ void __launch_bounds__(THREADS)
    top_kernel(dt_token_rows rows, const float *logits, int64_t k, int32_t *token, float *logit)
{
    __shared__ tools t;
    __shared__ uint64_t list[SORTED];
    __shared__ int n_list;
    const token_row row = row_of(rows, logits, blockIdx.x, nullptr, 1);
    const border best = first_token(row);
    const float missing = best.id < 0 && best.key ? NAN : -INFINITY;
    const scores s = scores_of(of_key(best.key), 1, row.n);
    border done = no_token();
    bool more = best.id >= 0;
    for (int64_t first = 0; first < k; first += SORTED) {
        const int want = k - first < SORTED ? (int)(k - first) : SORTED;
        __syncthreads();
        list[threadIdx.x] = UINT64_MAX;
        if (threadIdx.x == 0) n_list = 0;
        __syncthreads();
        if (more) {
            const border next = row.n <= SORTED /* a short list is sorted as a whole */
                                    ? all_tokens()
                                    : beginning<false>(t, row, s, done, all_tokens(), (uint32_t)want, 0);
            each_token(row, [&](int32_t v, float x) {
                const uint32_t key = key_of(x);
                if (is_within(next, key, v) && !is_within(done, key, v))
                    list[atomicAdd(&n_list, 1)] = (uint64_t)~key << 32 | (uint32_t)v;
            });
            sort(list);
            done = next;
            more = row.n > SORTED && n_list == want;
        }
        if ((int)threadIdx.x < want) {
            const bool there = (int)threadIdx.x < n_list;
            const uint64_t place = list[threadIdx.x];
            const int64_t at = blockIdx.x * k + first + threadIdx.x;
            token[at] = there ? (int32_t)(uint32_t)place : -1;
            logit[at] = there ? row.z[(uint32_t)place] : missing;
        }
    }
}

dt_err cuda_top_tokens(dt_device *dev, const dt_token_rows *rows, const float *logits, int64_t k, int32_t *token,
                       float *logit, dt_stream *stream)
{
    DT_TRY(dt_token_rows_check(rows));
    DT_CHECK(k > 0 && k <= rows->n_vocab, DT_ERR_ARG,
             "internal: top_tokens: expected k from 1 to the vocabulary size, found %" PRId64 " of %" PRId64, k,
             rows->n_vocab);
    if (rows->n_rows == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "top_tokens");
    launch(s, (unsigned)rows->n_rows, THREADS, 0, top_kernel, *rows, logits, k, token, logit);
    CUDA_LAUNCHED();
    return DT_OK;
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------- */

/* logp[r, i] = z[token[r, i]]/T - log sum over v of e^(z_v/T), in double. Block r processes row r. */
__global__ void __launch_bounds__(THREADS)
    log_softmax_kernel(dt_token_rows rows, const float *logits, double inv_temperature, int64_t k, const int32_t *token,
                       double *logp)
{
    token_row row = row_of(rows, logits, blockIdx.x, nullptr, 1);
    row.allowed = nullptr, row.list = nullptr, row.n = (int32_t)rows.n_vocab;
    float top = -INFINITY;
    each_token(row, [&](int32_t v, float x) { top = fmaxf(top, x); });
    top = block_reduce(top, larger());
    double sum = 0;
    each_token(row, [&](int32_t v, float x) { sum += exp(((double)x - (double)top) * inv_temperature); });
    sum = block_sum(sum);
    const double log_sum = (double)top * inv_temperature + log(sum);
    const bool finite = fabs(log_sum) < INFINITY;
    for (int64_t i = blockIdx.x * k + threadIdx.x; i < (blockIdx.x + 1) * k; i += THREADS) {
        const double of_token = token[i] < 0 ? -INFINITY : (double)row.z[token[i]] * inv_temperature - log_sum;
        logp[i] = finite ? of_token : NAN;
    }
}

dt_err cuda_log_softmax_at(dt_device *dev, const dt_token_rows *rows, const float *logits, double inv_temperature,
                           int64_t k, const int32_t *token, double *logp, dt_stream *stream)
{
    DT_TRY(dt_token_rows_check(rows));
    DT_CHECK(inv_temperature > 0 && k >= 0, DT_ERR_ARG,
             "internal: log_softmax_at: expected k of at least 0 and inv_temperature above 0, found %" PRId64 " and %g",
             k, inv_temperature);
    if (rows->n_rows == 0 || k == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "log_softmax_at");
    launch(s, (unsigned)rows->n_rows, THREADS, 0, log_softmax_kernel, *rows, logits, inv_temperature, k, token, logp);
    CUDA_LAUNCHED();
    return DT_OK;
}
