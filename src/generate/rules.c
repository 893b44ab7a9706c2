/* rules.c - see rules.h. The rules only forbid tokens and change no other logit, so their order does not matter. */
#include "rules.h"

#include <string.h>

bool rules_forbid(const dt_generate_options *opt)
{
    const dt_token_rules *r = &opt->rules;
    return !opt->constraint && (r->min_new_tokens > 0 || r->min_length > 0 || r->no_repeat_ngram_size > 0 ||
                                r->suppress.n > 0 || r->begin_suppress.n > 0);
}

int64_t rules_ld(const dt_generate_options *opt) { return (opt->vocab_size + 31) / 32; }

void rules_mark_seen(const dt_generate_options *opt, const int32_t *ids, int32_t n_ids, uint32_t *seen)
{
    memset(seen, 0, (size_t)rules_ld(opt) * sizeof *seen);
    for (int32_t i = 0; i < n_ids; i++)
        if (ids[i] >= 0 && ids[i] < opt->vocab_size) seen[ids[i] / 32] |= 1u << ids[i] % 32;
}

static void forbid(const dt_generate_options *opt, const int32_t *ids, size_t n, uint32_t *allowed)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < opt->vocab_size) allowed[ids[i] / 32] &= ~(1u << ids[i] % 32);
}

/* Forbid each token that followed an earlier occurrence of the last n - 1 tokens. */
static void forbid_repeats(const dt_generate_options *opt, const int32_t *ids, int32_t n_ids, uint32_t *allowed)
{
    const int32_t before = opt->rules.no_repeat_ngram_size - 1;
    for (int32_t i = 0; i < n_ids - before; i++)
        if (memcmp(ids + i, ids + n_ids - before, (size_t)before * sizeof *ids) == 0)
            forbid(opt, ids + i + before, 1, allowed);
}

bool rules_allow(const dt_generate_options *opt, const int32_t *ids, int32_t n_prompt, int32_t n_ids, uint32_t *allowed)
{
    const dt_token_rules *r = &opt->rules;
    const int64_t n_words = rules_ld(opt);
    memset(allowed, 0xff, (size_t)n_words * sizeof *allowed);
    if (opt->vocab_size % 32) allowed[n_words - 1] = (1u << opt->vocab_size % 32) - 1;
    forbid(opt, r->suppress.id, r->suppress.n, allowed);
    if (n_ids == n_prompt) forbid(opt, r->begin_suppress.id, r->begin_suppress.n, allowed);
    if (n_ids - n_prompt < r->min_new_tokens || n_ids < r->min_length)
        forbid(opt, opt->eos, (size_t)opt->n_eos, allowed);
    if (r->no_repeat_ngram_size > 0) forbid_repeats(opt, ids, n_ids, allowed);
    for (int64_t i = 0; i < n_words; i++)
        if (allowed[i]) return true;
    return false;
}
