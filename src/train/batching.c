/* batching.c - train_batch_size = micro_batch_size * gradient_accumulation_steps * ranks, and nothing is rounded in silence. */
#include "dtrain/train.h"
#include <inttypes.h>
#include <string.h>

static dt_err remainder_error(const dt_config *cfg, const char *key, const char *name, int64_t G, int64_t unit, const char *unit_text)
{
    char where[512];
    const int64_t below = G / unit * unit, above = below + unit;
    dt_config_where(cfg, "batch", key, where, sizeof where);
    if (below == 0)
        return dt_fail(DT_ERR_USAGE, "%s: %s = %" PRId64 " is less than %s = %" PRId64 "; the nearest that works is %" PRId64, where, name, G,
                       unit_text, unit, above);
    return dt_fail(DT_ERR_USAGE, "%s: %s = %" PRId64 " is no multiple of %s = %" PRId64 "; the nearest that work are %" PRId64 " and %" PRId64,
                   where, name, G, unit_text, unit, below, above);
}

/* An evaluation takes no optimizer step: what a training configuration says of one must not stop it on any number of ranks. */
static void for_evaluation(dt_batching *b, const dt_config *cfg, int64_t nranks)
{
    const int64_t A = cfg->batch_gradient_accumulation_steps ? cfg->batch_gradient_accumulation_steps : 1;
    int64_t m = cfg->batch_micro_batch_size ? cfg->batch_micro_batch_size : cfg->batch_train_batch_size / A / nranks;
    if (m < 1) m = 1;
    if (m > INT32_MAX) m = INT32_MAX;
    *b = (dt_batching){.train_batch_size = m * nranks, .micro_batch_size = m, .accumulation = 1};
}

dt_err dt_batching_resolve(dt_batching *b, const dt_config *cfg, int nranks)
{
    int64_t G = cfg->batch_train_batch_size, m = cfg->batch_micro_batch_size, A = cfg->batch_gradient_accumulation_steps;
    char where[512], unit_text[96];
    const int64_t N = nranks;

    if (!strcmp(cfg->run_task, "eval")) {
        for_evaluation(b, cfg, N);
        return DT_OK;
    }
    if (!A && !(G && m)) A = 1;
    if (G && m && !A) {
        snprintf(unit_text, sizeof unit_text, "micro_batch_size x ranks = %" PRId64 " x %d", m, nranks);
        if (G % (m * N)) return remainder_error(cfg, "train_batch_size", "train_batch_size", G, m * N, unit_text);
        A = G / (m * N);
    } else if (G && !m) {
        snprintf(unit_text, sizeof unit_text, "gradient_accumulation_steps x ranks = %" PRId64 " x %d", A, nranks);
        if (G % (A * N)) return remainder_error(cfg, "train_batch_size", "train_batch_size", G, A * N, unit_text);
        m = G / (A * N);
    } else {
        if (!m) m = 1;
        int64_t product;
        dt_config_where(cfg, "batch", "micro_batch_size", where, sizeof where);
        DT_CHECK(!__builtin_mul_overflow(m * A, N, &product), DT_ERR_USAGE, "%s: micro_batch_size x gradient_accumulation_steps x ranks overflows",
                 where);
        if (G && G != product) {
            dt_config_where(cfg, "batch", "train_batch_size", where, sizeof where);
            return dt_fail(DT_ERR_USAGE,
                           "%s: train_batch_size = %" PRId64 " contradicts micro_batch_size %" PRId64 " x gradient_accumulation_steps %" PRId64
                           " x %d ranks = %" PRId64 "; give two of the three, or train_batch_size = %" PRId64,
                           where, G, m, A, nranks, product, product);
        }
        G = product;
    }
    dt_config_where(cfg, "batch", "micro_batch_size", where, sizeof where);
    DT_CHECK(m <= INT32_MAX && A <= INT32_MAX, DT_ERR_USAGE, "%s: %" PRId64 " samples a micro-batch and %" PRId64 " micro-steps: expected less than 2^31 of each",
             where, m, A);
    *b = (dt_batching){.train_batch_size = G, .micro_batch_size = m, .accumulation = A};
    return DT_OK;
}
