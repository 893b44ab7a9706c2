/* host_sampler.h - sampling on the host, the reference for every device's draw_tokens (dtrain/device/logits.h): for
 * tests. */
#ifndef DTRAIN_TESTS_HOST_SAMPLER_H
#define DTRAIN_TESTS_HOST_SAMPLER_H

#include "cases.h"
#include "dtrain/device/logits.h"
#include "dtrain/model/model.h"
#include "dtrain/generate/sampler.h"

typedef struct host_sampler {
    dt_sampling how;
    dt_choice choice;
    int64_t n_vocab;
    uint32_t *seen;
    void *scratch;
} host_sampler;

static inline host_sampler host_sampler_open(const dt_sampling *how, int64_t n_vocab)
{
    host_sampler s = {.how = *how, .choice = dt_sampling_choice(how), .n_vocab = n_vocab};
    assert_int_equal(dt_sampling_check(how), DT_OK);
    s.seen = malloc((size_t)(n_vocab + 31) / 32 * sizeof *s.seen);
    s.scratch = malloc(dt_token_weights_scratch(n_vocab));
    assert_true(s.seen && s.scratch);
    return s;
}

static inline void host_sampler_close(host_sampler *s) { free(s->seen), free(s->scratch); }

static inline bool host_sampler_weigh(host_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen,
                                      dt_token_weights *w)
{
    memset(s->seen, 0, (size_t)(s->n_vocab + 31) / 32 * sizeof *s->seen);
    for (int64_t i = 0; i < n_seen; i++) s->seen[seen[i] / 32] |= 1u << seen[i] % 32;
    return dt_token_weights_of(&s->choice, logits, NULL, n_seen > 0 ? s->seen : NULL, s->n_vocab, s->scratch, w);
}

/* The next token after the n_seen ids of a sequence; -1: none. */
static inline int32_t host_sampler_draw(host_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen,
                                        uint64_t sequence, uint64_t position)
{
    dt_token_weights w;
    if (!host_sampler_weigh(s, logits, seen, n_seen, &w)) return -1;
    return dt_token_weights_draw(&w, dt_sampler_uniform(s->how.seed, sequence, position));
}

/* What that would be drawn from: p [n_vocab]. */
static inline void host_sampler_distribution(host_sampler *s, const float *logits, const int32_t *seen, int64_t n_seen,
                                             double *p)
{
    dt_token_weights w;
    assert_true(host_sampler_weigh(s, logits, seen, n_seen, &w));
    const double total = dt_token_weights_sum(&w);
    memset(p, 0, (size_t)s->n_vocab * sizeof *p);
    for (int64_t i = 0; i < w.n; i++) p[w.id[i]] = w.weight[w.id[i]] / total;
}

/* What a decoder's draw gives for a row of n_vocab logits, which is sequence s of a batch. */
static inline void host_draw(const dt_choice *how, const float *logits, const uint32_t *seen, int64_t n_vocab,
                             double uniform, int32_t *token, double *logp)
{
    void *scratch = malloc(dt_token_weights_scratch(n_vocab));
    dt_token_weights w;
    const bool any = dt_token_weights_of(how, logits, NULL, seen, n_vocab, scratch, &w);
    *token = any ? dt_token_weights_draw(&w, uniform) : -1;
    if (logp) *logp = any ? (double)logits[*token] - dt_logits_log_sum_exp(logits, n_vocab, 1) : 0;
    free(scratch);
}

/* What a decoder's top gives for a row of n_vocab logits, which is sequence s of a batch: by looking for the best of
 * those that are left, again and again. */
static inline void host_top(const dt_top *t, int32_t s, const float *logits, int64_t n_vocab)
{
    const double sum = dt_logits_log_sum_exp(logits, n_vocab, 1);
    for (int list = 0; list < (t->seen ? 2 : 1); list++) {
        int32_t before = -1;
        for (int32_t i = 0; i < t->k; i++) {
            const int64_t at = ((int64_t)s * (t->seen ? 2 : 1) + list) * t->k + i;
            int32_t best = -1;
            for (int32_t v = 0; v < n_vocab && (i == 0 || before >= 0); v++) {
                const bool seen = t->seen && t->seen[s * ((n_vocab + 31) / 32) + v / 32] >> v % 32 & 1;
                const bool behind = i == 0 || logits[v] < logits[before] || (logits[v] == logits[before] && v > before);
                if (seen == (list == 1) && behind && logits[v] > -INFINITY && (best < 0 || logits[v] > logits[best]))
                    best = v;
            }
            t->token[at] = before = best;
            t->logp[at] = !(fabs(sum) < INFINITY) ? NAN : best < 0 ? -INFINITY : (double)logits[best] - sum;
        }
    }
}

#endif
