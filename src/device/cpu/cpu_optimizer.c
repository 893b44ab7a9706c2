/* cpu_optimizer.c - classifier, states in 8 bits and reductions of the CPU device.
 *
 * Reductions divide their input into at most CPU_MAX_PARTIALS blocks, and add the partial sums in order. The number of
 * blocks depends only on the length. */
#include "cpu.h"

CPU_OP(classifier)
{
    const dt_classifier *cl = &x->cl;
    CPU_PARALLEL_FOR (cpu, r, cl->n_rows) {
        cpu->k->classifier(cl, x->logits, r);
    }
    return DT_OK;
}

CPU_OP(fill_rest)
{
    const dt_token_rows *rows = &x->rows;
    CPU_PARALLEL_FOR (cpu, r, rows->n_rows) {
        cpu->k->fill_rest(x, r);
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

CPU_OP(quantise_blocks)
{
    dt_map8 map;
    dt_map8_make(&map, x->positive);
    CPU_PARALLEL_FOR (cpu, b, dt_ceil_div(x->n, DT_BLOCK8)) {
        const int64_t i = b * DT_BLOCK8;
        x->absmax[b] =
            cpu->k->quantise_block(&map, x->positive, x->x + i, x->codes + i, dt_min_i64(DT_BLOCK8, x->n - i));
    }
    return DT_OK;
}

CPU_OP(dequantise_blocks)
{
    dt_map8 map;
    dt_map8_make(&map, x->positive);
    CPU_PARALLEL_FOR (cpu, b, dt_ceil_div(x->n, DT_BLOCK8)) {
        const int64_t i = b * DT_BLOCK8;
        cpu->k->dequantise_block(&map, x->codes + i, x->absmax[b], x->x + i, dt_min_i64(DT_BLOCK8, x->n - i));
    }
    return DT_OK;
}

/* Elements per block: a chunk, or more chunks if n would need more than CPU_MAX_PARTIALS blocks. */
static int64_t chunk_len(int64_t n)
{
    const int64_t chunks = cpu_n_chunks(n, CPU_CHUNK);
    return CPU_CHUNK * (chunks > CPU_MAX_PARTIALS ? cpu_n_chunks(chunks, CPU_MAX_PARTIALS) : 1);
}

CPU_OP(sum_squares)
{
    const int64_t chunk = chunk_len(x->n), n_chunks = cpu_n_chunks(x->n, chunk);
    CPU_PARALLEL_FOR (cpu, p, n_chunks) {
        cpu->partial[p] =
            cpu->k->sum_squares(cpu_at(x->x, x->dt, p * chunk), x->dt, dt_min_i64(chunk, x->n - p * chunk));
    }
    double sum = 0;
    for (int64_t p = 0; p < n_chunks; p++) sum += cpu->partial[p];
    *x->result = sum;
    return DT_OK;
}

CPU_OP(abs_max)
{
    const int64_t chunk = chunk_len(x->n), n_chunks = cpu_n_chunks(x->n, chunk);
    CPU_PARALLEL_FOR (cpu, p, n_chunks) {
        cpu->partial_max[p] =
            cpu->k->abs_max(cpu_at(x->x, x->dt, p * chunk), x->dt, dt_min_i64(chunk, x->n - p * chunk));
    }
    float max = 0;
    for (int64_t p = 0; p < n_chunks; p++) max = cpu->partial_max[p] > max ? cpu->partial_max[p] : max;
    *x->result = max;
    return DT_OK;
}

CPU_OP(sum_squares_fixed)
{
    enum { STEP = 2048 }; /* the maximum that the kernel sums in 64 bits */
    const int64_t chunk = chunk_len(x->n), n_chunks = cpu_n_chunks(x->n, chunk);
    CPU_PARALLEL_FOR (cpu, p, n_chunks) {
        uint64_t *sum = cpu->partial_fixed[p];
        sum[0] = sum[1] = 0;
        const int64_t last = dt_min_i64((p + 1) * chunk, x->n);
        for (int64_t i = p * chunk; i < last; i += STEP)
            cpu->k->sum_squares_fixed(cpu_at(x->x, x->dt, i), x->dt, dt_min_i64(STEP, last - i), x->shift, sum);
    }
    uint64_t low = 0, high = 0;
    for (int64_t p = 0; p < n_chunks; p++) {
        low += cpu->partial_fixed[p][0];
        high += cpu->partial_fixed[p][1] + (low < cpu->partial_fixed[p][0]);
    }
    x->result[0] = low;
    x->result[1] = high;
    return DT_OK;
}
