/* sampler.c - validation of sampling options, and a uniform random number for each position of each sequence. The
 * tokens are sampled on the device. */
#include "dtrain/generate/sampler.h"

#include <inttypes.h>
#include <math.h>

dt_sampling dt_sampling_default(void) { return (dt_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1}; }

dt_err dt_sampling_check(const dt_sampling *how)
{
    DT_CHECK(how->temperature >= 0 && isfinite(how->temperature), DT_ERR_USAGE,
             "temperature: expected a number of at least 0, found %g", how->temperature);
    DT_CHECK(how->top_k >= 0, DT_ERR_USAGE, "top_k: expected a number of tokens, or 0 for all, found %" PRId64,
             how->top_k);
    DT_CHECK(how->top_p > 0 && how->top_p <= 1, DT_ERR_USAGE,
             "top_p: expected a number above 0 and at most 1, found %g", how->top_p);
    DT_CHECK(how->min_p >= 0 && how->min_p <= 1, DT_ERR_USAGE, "min_p: expected a number from 0 to 1, found %g",
             how->min_p);
    DT_CHECK(how->repetition_penalty > 0 && isfinite(how->repetition_penalty), DT_ERR_USAGE,
             "repetition_penalty: expected a number above 0, found %g", how->repetition_penalty);
    return DT_OK;
}

dt_choice dt_sampling_choice(const dt_sampling *how)
{
    return (dt_choice){.repetition_penalty = how->repetition_penalty,
                       /* temperature 0 or so small that 1 / temperature overflows */
                       .greedy = how->greedy || isinf(1 / how->temperature),
                       .temperature = how->temperature,
                       .top_k = how->top_k,
                       .top_p = how->top_p,
                       .min_p = how->min_p};
}

double dt_sampler_uniform(uint64_t seed, uint64_t sequence, uint64_t position)
{
    uint32_t word[4];
    dt_philox4x32(dt_rng_key(seed, DT_RNG_SAMPLING), sequence, position, word);
    return ((double)(word[0] >> 5) * 0x1p26 + (double)(word[1] >> 6)) * 0x1p-53;
}
