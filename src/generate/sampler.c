/* sampler.c - the repetition penalty, and a uniform number for each position of each sequence; the rest is
 * dtrain/logits.h. */
#include "dtrain/sampler.h"
#include "dtrain/logits.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dt_sampler {
    dt_sampling how;
    dt_choice choice;
    int64_t n_vocab;
    float *score;  /* [n_vocab] logits after the penalty */
    bool *mark;    /* [n_vocab] all false between calls */
    void *scratch; /* of the choice */
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
                             .choice = {.greedy = how->greedy || how->temperature == 0,
                                        .temperature = how->temperature,
                                        .top_k = how->top_k,
                                        .top_p = how->top_p,
                                        .min_p = how->min_p},
                             .n_vocab = vocab_size,
                             .score = calloc(n, sizeof *made->score),
                             .mark = calloc(n, sizeof *made->mark),
                             .scratch = malloc(dt_token_weights_scratch(vocab_size))};
    if (made && made->score && made->mark && made->scratch) {
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
    free(s->mark);
    free(s->scratch);
    free(s);
}

double dt_sampler_uniform(uint64_t seed, uint64_t sequence, uint64_t position)
{
    uint32_t word[4];
    dt_philox4x32(dt_rng_key(seed, DT_RNG_SAMPLING), sequence, position, word);
    return ((double)(word[0] >> 5) * 0x1p26 + (double)(word[1] >> 6)) * 0x1p-53;
}

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

/* What may be drawn. */
static dt_err weigh(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, dt_token_weights *w)
{
    int32_t best;
    memcpy(s->score, logits, (size_t)s->n_vocab * sizeof *s->score);
    penalise(s->score, s->n_vocab, seen, n_seen, s->how.repetition_penalty, s->mark);
    if (dt_token_weights_of(&s->choice, s->score, NULL, s->n_vocab, s->scratch, w)) return DT_OK;
    return dt_logits_best(s->score, s->n_vocab, &best); /* says why */
}

dt_err dt_sampler_draw(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, uint64_t sequence,
                       uint64_t position, int32_t *token)
{
    dt_token_weights w;
    DT_TRY(weigh(s, logits, seen, n_seen, &w));
    *token = dt_token_weights_draw(&w, dt_sampler_uniform(s->how.seed, sequence, position));
    return DT_OK;
}

dt_err dt_sampler_distribution(dt_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen, double *p)
{
    dt_token_weights w;
    DT_TRY(weigh(s, logits, seen, n_seen, &w));
    const double total = dt_token_weights_sum(&w);
    memset(p, 0, (size_t)s->n_vocab * sizeof *p);
    for (int64_t i = 0; i < w.n; i++) p[w.id[i]] = w.weight[w.id[i]] / total;
    return DT_OK;
}

double dt_log_sum_exp(const float *logits, int64_t n) { return dt_logits_log_sum_exp(logits, n, 1); }
