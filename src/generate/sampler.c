/* sampler.c - top-k and top-p keep a beginning of the list of tokens by falling probability. The list is never sorted:
 * tokens are counted into bins by score, the bin in which the beginning ends is found, and it alone is put in order.
 * Sums run in double and in a fixed order, so that a draw is the same on every machine with the same logits. */
#include "dtrain/sampler.h"
#include "logits.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_BINS = 4096 };

struct dt_sampler {
    dt_sampling how;
    int64_t n_vocab;
    float *score;   /* [n_vocab] logits after the penalty */
    double *weight; /* [n_vocab] exp((z - max z) / T): probabilities but for their sum */
    int32_t *kept;  /* [n_vocab] ids that are in, ascending; n_kept of them */
    int64_t n_kept;
    int32_t *heap; /* [n_vocab] */
    bool *mark;    /* [n_vocab] all false between calls */
    int64_t bin_count[N_BINS];
    double bin_sum[N_BINS];
};

dt_sampling dt_sampling_default(void) { return (dt_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1}; }

dt_err dt_sampling_check(const dt_sampling *how)
{
    DT_CHECK(how->temperature >= 0 && isfinite(how->temperature), DT_ERR_USAGE,
             "temperature: expected a number from 0, found %g", how->temperature);
    DT_CHECK(how->top_k >= 0, DT_ERR_USAGE, "top_k: expected a number of tokens, or 0 for all, found %" PRId64,
             how->top_k);
    DT_CHECK(how->top_p > 0 && how->top_p <= 1, DT_ERR_USAGE, "top_p: expected a number above 0 and up to 1, found %g",
             how->top_p);
    DT_CHECK(how->min_p >= 0 && how->min_p <= 1, DT_ERR_USAGE, "min_p: expected a number from 0 to 1, found %g",
             how->min_p);
    DT_CHECK(how->repetition_penalty > 0 && isfinite(how->repetition_penalty), DT_ERR_USAGE,
             "repetition_penalty: expected a number above 0, found %g", how->repetition_penalty);
    return DT_OK;
}

dt_err dt_sampler_open(dt_sampler **s, const dt_sampling *how, int64_t vocab_size)
{
    *s = NULL;
    DT_CHECK(vocab_size > 0 && vocab_size <= INT32_MAX, DT_ERR_ARG, "a vocabulary of %" PRId64 " tokens", vocab_size);
    DT_TRY(dt_sampling_check(how));
    const size_t n = (size_t)vocab_size;
    dt_sampler *made = calloc(1, sizeof *made);
    if (made)
        *made = (dt_sampler){.how = *how,
                             .n_vocab = vocab_size,
                             .score = calloc(n, sizeof *made->score),
                             .weight = calloc(n, sizeof *made->weight),
                             .kept = calloc(n, sizeof *made->kept),
                             .heap = calloc(n, sizeof *made->heap),
                             .mark = calloc(n, sizeof *made->mark)};
    if (made && made->score && made->weight && made->kept && made->heap && made->mark) {
        *s = made;
        return DT_OK;
    }
    dt_sampler_close(made);
    return dt_fail(DT_ERR_MEMORY, "out of memory for the sampler of a vocabulary of %" PRId64 " tokens", vocab_size);
}

void dt_sampler_close(dt_sampler *s)
{
    if (!s) return;
    free(s->score);
    free(s->weight);
    free(s->kept);
    free(s->heap);
    free(s->mark);
    free(s);
}

double dt_sampler_uniform(uint64_t seed, uint64_t sequence, uint64_t position)
{
    uint32_t word[4];
    dt_philox4x32(dt_rng_key(seed, DT_RNG_SAMPLING), sequence, position, word);
    return ((double)(word[0] >> 5) * 0x1p26 + (double)(word[1] >> 6)) * 0x1p-53;
}

/* ---- the transforms ---------------------------------------------------------------------------------------------- */

/* In place: logits of the ids in seen (each once) are divided by penalty where positive, multiplied otherwise. mark:
 * [n], all false before and after. */
static void penalise(float *logits, int64_t n, const int32_t *seen, int64_t n_seen, double penalty, bool *mark)
{
    if (penalty == 1) return;
    for (int64_t i = 0; i < n_seen; i++) {
        const int32_t v = seen[i];
        if (v < 0 || v >= n || mark[v]) continue;
        mark[v] = true;
        logits[v] = (float)(logits[v] > 0 ? logits[v] / penalty : logits[v] * penalty);
    }
    for (int64_t i = 0; i < n_seen; i++)
        if (seen[i] >= 0 && seen[i] < n) mark[seen[i]] = false;
}

/* Comes a before b in the list by falling probability? */
static bool before(const float *score, int32_t a, int32_t b)
{
    return score[a] > score[b] || (a < b && score[a] == score[b]);
}

static void sift_down(const float *score, int32_t *heap, int64_t n, int64_t at)
{
    const int32_t id = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(score, heap[child + 1], heap[child])) child++;
        if (!before(score, heap[child], id)) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* Bins fall with the score: in the first those near the largest, in the last all that are 64 temperatures or more below
 * (e^-64 of its probability). */
static int bin_of(const dt_sampler *s, int32_t v, float largest)
{
    const double below = ((double)largest - s->score[v]) / s->how.temperature * (N_BINS / 64.0);
    return below < N_BINS - 1 ? (int)below : N_BINS - 1;
}

/* The bin in which the beginning of at most `most` tokens, or of those that reach `goal`, ends; count and sum of the
 * bins before it. */
static int find_last_bin(dt_sampler *s, float largest, int64_t most, double goal, int64_t *count, double *sum)
{
    memset(s->bin_count, 0, sizeof s->bin_count);
    memset(s->bin_sum, 0, sizeof s->bin_sum);
    for (int64_t i = 0; i < s->n_kept; i++) {
        const int bin = bin_of(s, s->kept[i], largest);
        s->bin_count[bin]++;
        s->bin_sum[bin] += s->weight[s->kept[i]];
    }
    int bin = 0;
    for (*count = 0, *sum = 0; bin < N_BINS - 1; bin++) {
        if (*count + s->bin_count[bin] >= most || *sum + s->bin_sum[bin] >= goal) break;
        *count += s->bin_count[bin];
        *sum += s->bin_sum[bin];
    }
    return bin;
}

/* Keep a beginning of the list: at least one token, at most `most`, and no more than it takes to reach `goal`. */
static void keep_beginning(dt_sampler *s, float largest, int64_t most, double goal)
{
    int64_t count, n = 0, kept = 0;
    double sum;
    const int last = find_last_bin(s, largest, most, goal, &count, &sum);
    for (int64_t i = 0; i < s->n_kept; i++)
        if (bin_of(s, s->kept[i], largest) == last) s->heap[n++] = s->kept[i];
    for (int64_t at = n / 2; at-- > 0;) sift_down(s->score, s->heap, n, at);
    for (; n > 0 && (count == 0 || (count < most && sum < goal)); count++) {
        const int32_t first = s->heap[0];
        s->mark[first] = true;
        sum += s->weight[first];
        s->heap[0] = s->heap[--n];
        if (n > 0) sift_down(s->score, s->heap, n, 0);
    }
    for (int64_t i = 0; i < s->n_kept; i++) {
        const int32_t v = s->kept[i];
        if (s->mark[v] || bin_of(s, v, largest) < last) s->kept[kept++] = v;
        s->mark[v] = false;
    }
    s->n_kept = kept;
}

static double kept_sum(const dt_sampler *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->n_kept; i++) sum += s->weight[s->kept[i]];
    return sum;
}

static void keep_min_p(dt_sampler *s)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n_kept; i++)
        if (s->weight[s->kept[i]] >= s->how.min_p) s->kept[kept++] = s->kept[i]; /* the most probable has weight 1 */
    s->n_kept = kept;
}

/* Weights of the final distribution, of those in kept. */
static dt_err transform(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen)
{
    const int64_t n = s->n_vocab;
    int32_t best;
    memcpy(s->score, logits, (size_t)n * sizeof *s->score);
    penalise(s->score, n, seen, n_seen, s->how.repetition_penalty, s->mark);
    DT_TRY(dt_logits_best(s->score, n, &best));
    s->kept[0] = best;
    s->n_kept = 1;
    s->weight[best] = 1;
    if (s->how.greedy || s->how.temperature == 0) return DT_OK;
    const float largest = s->score[best];
    dt_logits_exp(s->score, n, largest, 1 / s->how.temperature, s->weight);
    for (int64_t v = 0; v < n; v++) s->kept[v] = (int32_t)v;
    s->n_kept = n;
    if (s->how.top_k > 0 && s->how.top_k < n) keep_beginning(s, largest, s->how.top_k, INFINITY);
    if (s->how.top_p < 1) keep_beginning(s, largest, INT64_MAX, s->how.top_p * kept_sum(s));
    if (s->how.min_p > 0) keep_min_p(s);
    return DT_OK;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

dt_err dt_sampler_draw(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, uint64_t sequence,
                       uint64_t position, int32_t *token)
{
    DT_TRY(transform(s, logits, seen, n_seen));
    const double target = dt_sampler_uniform(s->how.seed, sequence, position) * kept_sum(s);
    double sum = 0;
    for (int64_t i = 0; i < s->n_kept; i++) {
        const int32_t v = s->kept[i];
        if (s->weight[v] == 0) continue;
        *token = v; /* the last of them if rounding lets target reach the sum */
        sum += s->weight[v];
        if (sum > target) break;
    }
    return DT_OK;
}

dt_err dt_sampler_distribution(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, double *p)
{
    DT_TRY(transform(s, logits, seen, n_seen));
    const double total = kept_sum(s);
    memset(p, 0, (size_t)s->n_vocab * sizeof *p);
    for (int64_t i = 0; i < s->n_kept; i++) p[s->kept[i]] = s->weight[s->kept[i]] / total;
    return DT_OK;
}
