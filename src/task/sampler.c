/* sampler.c - top-k and top-p keep a beginning of the list of tokens by falling probability. A heap gives that beginning without sorting the rest, since of a
 * hundred thousand tokens a few dozen are kept as a rule. Sums run in double and in the order of ids, so that a draw is the same on every machine with the
 * same logits. */
#include "dtrain/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dt_sampler {
    dt_sampling how;
    int64_t n_vocab;
    double *weight; /* [n_vocab] exp((z - max z) / T), then 0 for what is left out: probabilities but for their sum */
    double *score;  /* [n_vocab] logits after the penalty */
    int32_t *heap;  /* [n_vocab] ids */
    bool *mark;     /* [n_vocab] all false between calls */
};

dt_sampling dt_sampling_default(void) { return (dt_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1}; }

dt_err dt_sampling_check(const dt_sampling *how)
{
    DT_CHECK(how->temperature >= 0 && isfinite(how->temperature), DT_ERR_USAGE,
             "temperature: expected a number from 0 on, found %g", how->temperature);
    DT_CHECK(how->top_k >= 0, DT_ERR_USAGE, "top_k: expected a number of tokens, or 0 for all, found %" PRId64, how->top_k);
    DT_CHECK(how->top_p > 0 && how->top_p <= 1, DT_ERR_USAGE, "top_p: expected a number above 0 and up to 1, found %g",
             how->top_p);
    DT_CHECK(how->min_p >= 0 && how->min_p <= 1, DT_ERR_USAGE, "min_p: expected a number from 0 to 1, found %g", how->min_p);
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
                             .weight = calloc(n, sizeof *made->weight),
                             .score = calloc(n, sizeof *made->score),
                             .heap = calloc(n, sizeof *made->heap),
                             .mark = calloc(n, sizeof *made->mark)};
    if (made && made->weight && made->score && made->heap && made->mark) {
        *s = made;
        return DT_OK;
    }
    dt_sampler_close(made);
    return dt_fail(DT_ERR_MEMORY, "out of memory for the sampler of a vocabulary of %" PRId64 " tokens", vocab_size);
}

void dt_sampler_close(dt_sampler *s)
{
    if (!s) return;
    free(s->weight);
    free(s->score);
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

/* ---- the transforms ------------------------------------------------------------------------------------------------ */

static dt_err load_scores(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen)
{
    const double rho = s->how.repetition_penalty;
    for (int64_t v = 0; v < s->n_vocab; v++) s->score[v] = logits[v];
    for (int64_t i = 0; rho != 1 && i < n_seen; i++) {
        const int32_t v = seen[i];
        if (v < 0 || v >= s->n_vocab || s->mark[v]) continue;
        s->mark[v] = true;
        s->score[v] = s->score[v] > 0 ? s->score[v] / rho : s->score[v] * rho;
    }
    for (int64_t i = 0; rho != 1 && i < n_seen; i++)
        if (seen[i] >= 0 && seen[i] < s->n_vocab) s->mark[seen[i]] = false;

    for (int64_t v = 0; v < s->n_vocab; v++)
        DT_CHECK(s->score[v] < INFINITY, DT_ERR_NONFINITE,
                 "logit %" PRId64 " is %g: the model's weights or activations are not finite", v, s->score[v]);
    return DT_OK;
}

static dt_err find_best(const dt_sampler *s, int32_t *best)
{
    *best = 0;
    for (int64_t v = 1; v < s->n_vocab; v++)
        if (s->score[v] > s->score[*best]) *best = (int32_t)v;
    DT_CHECK(s->score[*best] > -INFINITY, DT_ERR_NONFINITE, "all %" PRId64 " logits are -inf", s->n_vocab);
    return DT_OK;
}

/* Comes a before b in the list by falling probability? */
static bool before(const double *score, int32_t a, int32_t b) { return score[a] > score[b] || (score[a] == score[b] && a < b); }

static void sift_down(const double *score, int32_t *heap, int64_t n, int64_t at)
{
    const int32_t id = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(score, heap[child + 1], heap[child])) child++;
        if (!before(score, heap[child], id)) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* Move the next id of the list behind the heap, which shrinks to n - 1: the list grows from the array's end. */
static int32_t pop(const double *score, int32_t *heap, int64_t n)
{
    const int32_t first = heap[0];
    heap[0] = heap[n - 1];
    if (n > 1) sift_down(score, heap, n - 1, 0);
    heap[n - 1] = first;
    return first;
}

/* Leave the weights of a beginning of the list alone: the first top_k, and of these the fewest that reach top_p of their sum. */
static void keep_most_probable(dt_sampler *s)
{
    const int64_t n = s->n_vocab, k = s->how.top_k > 0 && s->how.top_k < n ? s->how.top_k : n;
    for (int64_t v = 0; v < n; v++) s->heap[v] = (int32_t)v;
    for (int64_t at = n / 2; at-- > 0;) sift_down(s->score, s->heap, n, at);

    double total = 0, sum = 0;
    int64_t popped = 0, kept = 0;
    if (k < n)
        for (; popped < k; popped++) total += s->weight[pop(s->score, s->heap, n - popped)];
    else
        for (int64_t v = 0; v < n; v++) total += s->weight[v];

    /* The list stands backwards at the end of the heap's array. */
    while (kept < k && (kept == 0 || s->how.top_p >= 1 || sum < s->how.top_p * total)) {
        if (popped == kept) pop(s->score, s->heap, n - popped), popped++;
        sum += s->weight[s->heap[n - 1 - kept++]];
    }
    for (int64_t i = 0; i < n - kept; i++) s->weight[s->heap[i]] = 0;
}

/* Weights of the final distribution. */
static dt_err transform(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen)
{
    int32_t best;
    DT_TRY(load_scores(s, logits, seen, n_seen));
    DT_TRY(find_best(s, &best));
    if (s->how.greedy || s->how.temperature == 0) {
        memset(s->weight, 0, (size_t)s->n_vocab * sizeof *s->weight);
        s->weight[best] = 1;
        return DT_OK;
    }
    const double largest = s->score[best];
    for (int64_t v = 0; v < s->n_vocab; v++) s->weight[v] = exp((s->score[v] - largest) / s->how.temperature);
    if (s->how.top_p < 1 || (s->how.top_k > 0 && s->how.top_k < s->n_vocab)) keep_most_probable(s);
    for (int64_t v = 0; s->how.min_p > 0 && v < s->n_vocab; v++)
        if (s->weight[v] < s->how.min_p) s->weight[v] = 0; /* the most probable has weight 1 */
    return DT_OK;
}

/* ---- drawing ------------------------------------------------------------------------------------------------------- */

dt_err dt_sampler_draw(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, uint64_t sequence,
                       uint64_t position, int32_t *token)
{
    DT_TRY(transform(s, logits, seen, n_seen));
    double total = 0, sum = 0;
    for (int64_t v = 0; v < s->n_vocab; v++) total += s->weight[v];
    const double target = dt_sampler_uniform(s->how.seed, sequence, position) * total;
    for (int64_t v = 0; v < s->n_vocab; v++) {
        if (s->weight[v] == 0) continue;
        *token = (int32_t)v; /* the last of them if rounding lets target reach total */
        sum += s->weight[v];
        if (sum > target) break;
    }
    return DT_OK;
}

dt_err dt_sampler_distribution(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, double *p)
{
    DT_TRY(transform(s, logits, seen, n_seen));
    double total = 0;
    for (int64_t v = 0; v < s->n_vocab; v++) total += s->weight[v];
    for (int64_t v = 0; v < s->n_vocab; v++) p[v] = s->weight[v] / total;
    return DT_OK;
}
