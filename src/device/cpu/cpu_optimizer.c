/* cpu_optimizer.c - classifier, states in 8 bits and reductions of the CPU device.
 *
 * Reductions divide their input into at most CPU_MAX_PARTIALS blocks, and add the partial sums in order. The number of
 * blocks depends only on the length. */
#include "cpu.h"

dt_err cpu_classifier(dt_device *dev, const dt_classifier *cl, float *logits, dt_stream *stream)
{
    const cpu_state *cpu = cpu_of(dev);
    CPU_TAKES(cl->dlogits_dtype);
    DT_TRY(dt_classifier_check(cl));
    CPU_PARALLEL_FOR (cpu, r, cl->n_rows) {
        cpu->k->classifier(cl, logits, r);
    }
    return DT_OK;
}

dt_err cpu_fill_rest(dt_device *dev, const dt_token_rows *rows, const float *logits, float inv_temperature, int64_t k,
                     const int32_t *token, const float *logp, float *y, dt_stream *stream)
{
    const cpu_state *cpu = cpu_of(dev);
    const dt_fill_rest_args args = {*rows, logits, inv_temperature, k, token, logp, y};
    DT_TRY(dt_fill_rest_check(rows, inv_temperature, k));
    CPU_PARALLEL_FOR (cpu, r, rows->n_rows) {
        cpu->k->fill_rest(&args, r);
    }
    return DT_OK;
}

/* At most 512 rows, about 128 MiB of logits, and at most half of a large micro-batch. Each chunk reads the vocabulary
 * matrix twice and reads and writes its gradient, whatever its number of rows. 1024 rows of GPT-2's vocabulary in
 * chunks of 128, 256, 512, 1024 took 1300, 840, 610, 510 ms in bf16, 2280, 2110, 2050, 1950 in fp32 (one thread,
 * bench_model's clock). */
int64_t cpu_classifier_rows(const dt_device *dev, int64_t n_vocab, int64_t n_tok)
{
    enum { MAX_ROWS = 512, MIN_ROWS = 16, LOGITS = (128 << 20) / sizeof(float) };
    const int64_t fit = LOGITS / n_vocab / MIN_ROWS * MIN_ROWS, half = (n_tok / 2 + MIN_ROWS - 1) / MIN_ROWS * MIN_ROWS,
                  rows = dt_min_i64(MAX_ROWS, dt_min_i64(fit, half));
    return dt_min_i64(n_tok, rows > MIN_ROWS ? rows : MIN_ROWS);
}

dt_err cpu_quantise_blocks(dt_device *dev, const float *x, uint8_t *codes, float *absmax, bool positive, int64_t n,
                           dt_stream *stream)
{
    const cpu_state *cpu = cpu_of(dev);
    dt_map8 map;
    dt_map8_make(&map, positive);
    CPU_PARALLEL_FOR (cpu, b, dt_ceil_div(n, DT_BLOCK8)) {
        const int64_t i = b * DT_BLOCK8;
        absmax[b] = cpu->k->quantise_block(&map, positive, x + i, codes + i, dt_min_i64(DT_BLOCK8, n - i));
    }
    return DT_OK;
}

dt_err cpu_dequantise_blocks(dt_device *dev, const uint8_t *codes, const float *absmax, float *x, bool positive,
                             int64_t n, dt_stream *stream)
{
    const cpu_state *cpu = cpu_of(dev);
    dt_map8 map;
    dt_map8_make(&map, positive);
    CPU_PARALLEL_FOR (cpu, b, dt_ceil_div(n, DT_BLOCK8)) {
        const int64_t i = b * DT_BLOCK8;
        cpu->k->dequantise_block(&map, codes + i, absmax[b], x + i, dt_min_i64(DT_BLOCK8, n - i));
    }
    return DT_OK;
}

/* Elements per block: a chunk, or more chunks if n would need more than CPU_MAX_PARTIALS blocks. */
static int64_t chunk_len(int64_t n)
{
    const int64_t chunks = cpu_n_chunks(n, CPU_CHUNK);
    return CPU_CHUNK * (chunks > CPU_MAX_PARTIALS ? cpu_n_chunks(chunks, CPU_MAX_PARTIALS) : 1);
}

dt_err cpu_sum_squares(dt_device *dev, const void *x, dt_dtype dt, int64_t n, double *result, dt_stream *stream)
{
    CPU_TAKES(dt);
    cpu_state *cpu = cpu_of(dev);
    const int64_t chunk = chunk_len(n), n_chunks = cpu_n_chunks(n, chunk);
    CPU_PARALLEL_FOR (cpu, p, n_chunks) {
        cpu->partial[p] = cpu->k->sum_squares(cpu_at(x, dt, p * chunk), dt, dt_min_i64(chunk, n - p * chunk));
    }
    double sum = 0;
    for (int64_t p = 0; p < n_chunks; p++) sum += cpu->partial[p];
    *result = sum;
    return DT_OK;
}

dt_err cpu_abs_max(dt_device *dev, const void *x, dt_dtype dt, int64_t n, float *result, dt_stream *stream)
{
    CPU_TAKES(dt);
    cpu_state *cpu = cpu_of(dev);
    const int64_t chunk = chunk_len(n), n_chunks = cpu_n_chunks(n, chunk);
    CPU_PARALLEL_FOR (cpu, p, n_chunks) {
        cpu->partial_max[p] = cpu->k->abs_max(cpu_at(x, dt, p * chunk), dt, dt_min_i64(chunk, n - p * chunk));
    }
    float max = 0;
    for (int64_t p = 0; p < n_chunks; p++) max = cpu->partial_max[p] > max ? cpu->partial_max[p] : max;
    *result = max;
    return DT_OK;
}

dt_err cpu_sum_squares_fixed(dt_device *dev, const void *x, dt_dtype dt, int64_t n, int shift, uint64_t *result,
                             dt_stream *stream)
{
    CPU_TAKES(dt);
    cpu_state *cpu = cpu_of(dev);
    enum { STEP = 2048 }; /* the maximum that the kernel sums in 64 bits */
    const int64_t chunk = chunk_len(n), n_chunks = cpu_n_chunks(n, chunk);
    CPU_PARALLEL_FOR (cpu, p, n_chunks) {
        uint64_t *sum = cpu->partial_fixed[p];
        sum[0] = sum[1] = 0;
        const int64_t last = dt_min_i64((p + 1) * chunk, n);
        for (int64_t i = p * chunk; i < last; i += STEP)
            cpu->k->sum_squares_fixed(cpu_at(x, dt, i), dt, dt_min_i64(STEP, last - i), shift, sum);
    }
    uint64_t low = 0, high = 0;
    for (int64_t p = 0; p < n_chunks; p++) {
        low += cpu->partial_fixed[p][0];
        high += cpu->partial_fixed[p][1] + (low < cpu->partial_fixed[p][0]);
    }
    result[0] = low;
    result[1] = high;
    return DT_OK;
}
