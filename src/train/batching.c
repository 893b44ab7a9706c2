/* batching.c - train_batch_size = micro_batch_size * gradient_accumulation_steps * ranks. Values that do not satisfy it
 * are reported, never rounded. */
#include "run.h"
#include <inttypes.h>

static int64_t largest_divisor(int64_t n, int64_t at_most)
{
    for (int64_t d = at_most < n ? at_most : n; d > 1; d--)
        if (n % d == 0) return d;
    return 1;
}

/* unit: product of the other key (name, value) and the number of ranks. train_batch_size must be a multiple of it. */
static dt_err remainder_error(const dt_config *cfg, int64_t G, const char *other, int64_t value, int nranks)
{
    char alternative[120] = "";
    const int64_t unit = value * nranks, below = G / unit * unit, above = below + unit;
    if (G % nranks == 0)
        snprintf(alternative, sizeof alternative, "; or keep it and set %s = %" PRId64, other,
                 largest_divisor(G / nranks, value));
    if (below == 0)
        return dt_config_fail(cfg, "batch", "train_batch_size",
                              "train_batch_size = %" PRId64 " is less than %s x ranks = %" PRId64 " x %d; use %" PRId64
                              ", the smallest possible value%s",
                              G, other, value, nranks, above, alternative);
    return dt_config_fail(cfg, "batch", "train_batch_size",
                          "train_batch_size = %" PRId64 " is not a multiple of %s x ranks = %" PRId64
                          " x %d; use %" PRId64 " or %" PRId64 ", the nearest multiples%s",
                          G, other, value, nranks, below, above, alternative);
}

/* An evaluation takes no optimizer step, so batch settings meant for training must not make it fail on any number of
 * ranks. */
void dt_batching_for_evaluation(dt_batching *b, const dt_config *cfg, int nranks)
{
    const int64_t A = cfg->batch_gradient_accumulation_steps ? cfg->batch_gradient_accumulation_steps : 1;
    int64_t m = cfg->batch_micro_batch_size ? cfg->batch_micro_batch_size : cfg->batch_train_batch_size / A / nranks;
    if (m < 1) m = 1;
    if (m > INT32_MAX) m = INT32_MAX;
    *b = (dt_batching){.train_batch_size = m * nranks, .micro_batch_size = m, .accumulation = 1};
}

dt_err dt_batching_resolve(dt_batching *b, const dt_config *cfg, int nranks)
{
    int64_t G = cfg->batch_train_batch_size, m = cfg->batch_micro_batch_size,
            A = cfg->batch_gradient_accumulation_steps;
    const int64_t N = nranks;

    if (!A && !(G && m)) A = 1;
    if (G && m && !A) {
        if (G % (m * N)) return remainder_error(cfg, G, "micro_batch_size", m, nranks);
        A = G / (m * N);
    } else if (G && !m) {
        if (G % (A * N)) return remainder_error(cfg, G, "gradient_accumulation_steps", A, nranks);
        m = G / (A * N);
    } else {
        if (!m) m = 1;
        int64_t product;
        DT_CONFIG_CHECK(!__builtin_mul_overflow(m * A, N, &product), cfg, "batch", "micro_batch_size",
                        "micro_batch_size x gradient_accumulation_steps x ranks overflows");
        DT_CONFIG_CHECK(!G || G == product, cfg, "batch", "train_batch_size",
                        "train_batch_size = %" PRId64 " contradicts micro_batch_size %" PRId64
                        " x gradient_accumulation_steps %" PRId64 " x %d ranks = %" PRId64
                        "; set one of the three to 0, which dtrain then computes, or train_batch_size to %" PRId64,
                        G, m, A, nranks, product, product);
        G = product;
    }
    DT_CONFIG_CHECK(m <= INT32_MAX && A <= INT32_MAX, cfg, "batch", "micro_batch_size",
                    "expected fewer than 2^31 samples per micro-batch and fewer than 2^31 micro-steps, found %" PRId64
                    " samples and %" PRId64 " micro-steps",
                    m, A);
    *b = (dt_batching){.train_batch_size = G, .micro_batch_size = m, .accumulation = A};
    return DT_OK;
}

void dt_batching_nearest(dt_batching *b, const dt_config *cfg, int nranks)
{
    const int64_t G = cfg->batch_train_batch_size, N = nranks;
    int64_t m = cfg->batch_micro_batch_size, A = cfg->batch_gradient_accumulation_steps;
    if (m && !A) A = (G + m * N / 2) / (m * N);
    if (!m && A) m = (G + A * N / 2) / (A * N);
    if (m < 1) m = 1;
    if (A < 1) A = 1;
    *b = (dt_batching){.train_batch_size = m * A * N, .micro_batch_size = m, .accumulation = A};
}
