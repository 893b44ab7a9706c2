/* cpu_matmul_rows.c - batch-invariant matmuls (no row of C depends on the other rows): divides the columns among
 * threads.
 *
 * Blocks of columns are small enough that all threads finish together, and large enough that B is read at memory
 * bandwidth. */
#include "cpu.h"
#include <stdlib.h>
#include <string.h>

/* Bytes of B per block. If B is stored [k,n], a block reads runs of consecutive columns, which should be long. For a
 * quantised B the kernel prefetches the next columns, so a block should have more of them. */
enum { CHUNK_BYTES = 128 << 10, STORED_BYTES = 1 << 20, COLUMNS = 16, MIN_RUN = 256, MAX_RUN = 512 };

static bool has_pairs(void)
{
    const char *most = getenv("DTRAIN_BF16");
    if (most && !strcmp(most, "none")) return false; /* for tests */
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16");
#else
    return true; /* Arm's kernel sets with dot_unit run only on processors that have it */
#endif
}

bool cpu_rows_use_pairs(const dt_cpu_kernels *k) { return k->dot_unit != NULL && has_pairs(); }

static int64_t piece_columns(const cpu_state *cpu, const dt_matmul *mm)
{
    const int64_t share = cpu_n_chunks(cpu_n_chunks(mm->n, cpu->n_threads), COLUMNS) * COLUMNS;
    if (!mm->trans_b) return share < MIN_RUN ? MIN_RUN : dt_min_i64(share, MAX_RUN);
    const bool scaled = mm->b_scaled.how != DT_SCALE_NONE;
    const int64_t columns = mm->k * (int64_t)dt_dtype_size(scaled ? mm->b_scaled.stored : mm->dt) * COLUMNS,
                  most = scaled ? 16 : 4, n = (scaled ? STORED_BYTES : CHUNK_BYTES) / (columns > 0 ? columns : 1);
    return dt_min_i64(share, COLUMNS * (n < 1 ? 1 : dt_min_i64(n, most)));
}

void cpu_rows_matmul(const cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    const dt_rows_matmul p = {.g = {.mm = mm, .a = a, .b = b, .c = c}, .pairs = cpu->pairs};
    const int64_t columns = piece_columns(cpu, mm), n_pieces = cpu_n_chunks(mm->n, columns);
#pragma omp parallel for num_threads(cpu->n_threads) schedule(dynamic, 1) if (n_pieces > 1)
    for (int64_t i = 0; i < n_pieces; i++)
        cpu->k->matmul_rows(&p, i * columns, dt_min_i64(columns, mm->n - i * columns));
}
