/* token_weights.c - transforms of a row of logits, and sampling. top-k and top-p keep a prefix of the tokens in
 * descending order of probability. The tokens are not sorted: they are counted into bins by score, and only the bin in
 * which the prefix ends is ordered. Sums are double and in a fixed order, so equal logits give the same token on every
 * machine. */
#include "dtrain/device/logits.h"

#include <math.h>
#include <string.h>

enum { N_BINS = 4096 };

typedef struct chooser {
    dt_choice how;
    const float *score; /* [n_vocab] logits, -inf where not allowed */
    double *weight;     /* [n_vocab] exp((z - max z) / T): unnormalised probabilities */
    int32_t *kept;      /* [n_vocab] kept ids, ascending; the first n_kept are valid */
    int64_t n_kept;
    int32_t *heap; /* [n_vocab] */
    bool *mark;    /* [n_vocab] all false between calls */
    double *bin_sum;
    int64_t *bin_count; /* [N_BINS] */
} chooser;

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

/* Reserve n elements of a size in scratch. base NULL: only count their bytes. */
static void *carve(char *base, size_t *at, int64_t n, size_t size)
{
    void *p = base ? base + *at : NULL;
    *at += ((size_t)n * size + 15) / 16 * 16;
    return p;
}

static size_t lay_out(chooser *s, float **masked, void *scratch, int64_t n_vocab)
{
    size_t at = 0;
    s->weight = carve(scratch, &at, n_vocab, sizeof *s->weight);
    s->bin_sum = carve(scratch, &at, N_BINS, sizeof *s->bin_sum);
    s->bin_count = carve(scratch, &at, N_BINS, sizeof *s->bin_count);
    s->kept = carve(scratch, &at, n_vocab, sizeof *s->kept);
    s->heap = carve(scratch, &at, n_vocab, sizeof *s->heap);
    *masked = carve(scratch, &at, n_vocab, sizeof **masked);
    s->mark = carve(scratch, &at, n_vocab, sizeof *s->mark);
    return at;
}

size_t dt_token_weights_scratch(int64_t n_vocab)
{
    chooser s;
    float *masked;
    return lay_out(&s, &masked, NULL, n_vocab);
}

/* ---- the transforms ---------------------------------------------------------------------------------------------- */

/* True if a precedes b in descending order of probability (ties: the lower id). */
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

/* Bins are in descending order of score. The first contains the scores near the maximum. The last contains all that are
 * at least 64 temperatures lower (e^-64 of its probability). */
static int bin_of(const chooser *s, int32_t v, float largest)
{
    const double below = ((double)largest - s->score[v]) / s->how.temperature * (N_BINS / 64.0);
    return below < N_BINS - 1 ? (int)below : N_BINS - 1;
}

/* The bin in which the prefix ends: at most `most` tokens, or those whose sum reaches `goal`. count and sum: out, of
 * the bins before it. */
static int find_last_bin(chooser *s, float largest, int64_t most, double goal, int64_t *count, double *sum)
{
    memset(s->bin_count, 0, N_BINS * sizeof *s->bin_count);
    memset(s->bin_sum, 0, N_BINS * sizeof *s->bin_sum);
    const chooser c = *s; /* a local copy: stores to the bins cannot alias it, so it stays in registers */
    for (int64_t i = 0; i < c.n_kept; i++) {
        const int bin = bin_of(&c, c.kept[i], largest);
        c.bin_count[bin]++;
        c.bin_sum[bin] += c.weight[c.kept[i]];
    }
    int bin = 0;
    for (*count = 0, *sum = 0; bin < N_BINS - 1; bin++) {
        if (*count + s->bin_count[bin] >= most || *sum + s->bin_sum[bin] >= goal) break;
        *count += s->bin_count[bin];
        *sum += s->bin_sum[bin];
    }
    return bin;
}

/* Keep a prefix in descending order of probability: at least one token, at most `most`, and no more than needed to
 * reach `goal`. */
static void keep_beginning(chooser *s, float largest, int64_t most, double goal)
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

static dt_token_weights weights_of(const chooser *s)
{
    return (dt_token_weights){.id = s->kept, .n = s->n_kept, .weight = s->weight};
}

static void keep_min_p(chooser *s)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n_kept; i++)
        if (s->weight[s->kept[i]] >= s->how.min_p) s->kept[kept++] = s->kept[i]; /* the most probable has weight 1 */
    s->n_kept = kept;
}

static void keep_some(chooser *s, int64_t n_vocab, float largest)
{
    const dt_choice *how = &s->how;
    if (how->top_k > 0 && how->top_k < n_vocab) keep_beginning(s, largest, how->top_k, INFINITY);
    const dt_token_weights kept = weights_of(s);
    if (how->top_p < 1) keep_beginning(s, largest, INT64_MAX, how->top_p * dt_token_weights_sum(&kept));
    if (how->min_p > 0) keep_min_p(s);
}

static void penalise(float *score, const uint32_t *seen, int64_t n_vocab, double penalty)
{
    for (int64_t word = 0; word < (n_vocab + 31) / 32; word++)
        for (uint32_t bits = seen[word]; bits != 0; bits &= bits - 1) {
            const int64_t v = word * 32 + __builtin_ctz(bits);
            if (v < n_vocab) score[v] = (float)(score[v] > 0 ? score[v] / penalty : score[v] * penalty);
        }
}

/* Logits after the penalty, -inf for tokens that are not allowed. They are written to score, unless nothing changes. */
static const float *scores_of(const dt_choice *how, const float *logits, const uint32_t *allowed, const uint32_t *seen,
                              int64_t n_vocab, float *score)
{
    if (!allowed && !seen) return logits;
    memcpy(score, logits, (size_t)n_vocab * sizeof *score);
    if (seen) penalise(score, seen, n_vocab, how->repetition_penalty);
    for (int64_t v = 0; allowed && v < n_vocab; v++) score[v] = allowed[v / 32] >> (v % 32) & 1 ? score[v] : -INFINITY;
    return score;
}

bool dt_token_weights_of(const dt_choice *how, const float *logits, const uint32_t *allowed, const uint32_t *seen,
                         int64_t n_vocab, void *scratch, dt_token_weights *w)
{
    chooser s = {.how = *how};
    float *masked;
    lay_out(&s, &masked, scratch, n_vocab);
    s.score = scores_of(how, logits, allowed, seen, n_vocab, masked);
    const int64_t best = dt_logits_first_best(s.score, n_vocab);
    if (best < 0) return false;
    s.kept[0] = (int32_t)best;
    s.n_kept = 1;
    s.weight[best] = 1;
    if (!how->greedy) {
        const float largest = s.score[best];
        memset(s.mark, 0, (size_t)n_vocab * sizeof *s.mark);
        dt_logits_exp(s.score, n_vocab, largest, 1 / how->temperature, s.weight);
        for (int64_t v = 0; v < n_vocab; v++) s.kept[v] = (int32_t)v;
        s.n_kept = n_vocab;
        keep_some(&s, n_vocab, largest);
    }
    *w = weights_of(&s);
    return true;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

double dt_token_weights_sum(const dt_token_weights *w)
{
    double sum = 0;
    for (int64_t i = 0; i < w->n; i++) sum += w->weight[w->id[i]];
    return sum;
}

int32_t dt_token_weights_draw(const dt_token_weights *w, double u)
{
    const double target = u * dt_token_weights_sum(w);
    int32_t token = -1;
    double sum = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const int32_t v = w->id[i];
        if (w->weight[v] == 0) continue;
        token = v; /* the last token, if rounding makes target reach the sum */
        sum += w->weight[v];
        if (sum > target) break;
    }
    return token;
}
