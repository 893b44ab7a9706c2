/* cpu_matmul_own.c - matmuls by dtrain's own kernels: isa/matmul_any.c for all forms, and isa/matmul_bf16.c for large
 * bf16 matmuls. This file divides C among the threads. The bits of an element do not depend on the number of threads.
 *
 * On processors with pairwise bf16 dot products, matmul_bf16 replaces oneDNN's primitive on plain strides.
 * docs/data/epyc-matmul-bf16.csv compares it with oneDNN 2.6. */
#include "cpu.h"

enum { MIN_ROWS = 32 }; /* with fewer rows, packing B costs as much as the matmul */

bool cpu_matmul_bf16_takes(const cpu_state *cpu, const dt_matmul *mm)
{
    return cpu->matmul_scratch && mm->dt == DT_BF16 && mm->m >= MIN_ROWS && mm->n >= DT_TILE_COLS;
}

dt_err cpu_matmul_bf16_open(cpu_state *cpu)
{
    if (!cpu->unit || cpu->unit != cpu->k->dot_unit || !cpu->k->matmul_bf16) return DT_OK;
    cpu->matmul_scratch_nbytes = (cpu->k->matmul_scratch() + 4095) / 4096 * 4096;
    const size_t nbytes = cpu->matmul_scratch_nbytes * (size_t)cpu->n_threads;
    void *p = NULL;
    DT_CHECK(cpu->planning || cpu_grab(nbytes, cpu->n_threads, &p) == DT_OK, DT_ERR_MEMORY,
             "cpu device: out of memory for %zu bytes of scratch for bf16 matmuls", nbytes);
    cpu->matmul_scratch = p;
    cpu->nbytes_held += nbytes;
    return DT_OK;
}

void cpu_matmul_bf16_close(cpu_state *cpu)
{
    cpu_drop(cpu->matmul_scratch, cpu->matmul_scratch_nbytes * (size_t)cpu->n_threads);
    cpu->matmul_scratch = NULL;
}

typedef struct grid {
    int rows, cols;
} grid;

/* Divide C into a grid of blocks, at most one per thread, none empty. The largest block determines the cost: its
 * multiply-adds, and the packing of its rows and columns. */
static grid best_grid(int n_threads, int64_t row_tiles, int64_t col_tiles)
{
    enum { PACKING = 4 }; /* multiply-adds that cost as much as packing one element */
    grid best = {1, 1};
    int64_t least = INT64_MAX;
    for (int rows = 1; rows <= n_threads && rows <= row_tiles; rows++) {
        const int cols = (int)dt_min_i64(n_threads / rows, col_tiles);
        const int64_t m = cpu_n_chunks(row_tiles, rows) * DT_TILE_ROWS,
                      n = cpu_n_chunks(col_tiles, cols) * DT_TILE_COLS;
        const int64_t cost = m * n + PACKING * (m + n);
        if (cost < least) least = cost, best = (grid){rows, cols};
    }
    return best;
}

/* The begin of block i when n elements are divided into n_parts blocks of whole tiles. */
static int64_t border(int64_t n, int64_t tile, int n_parts, int64_t i)
{
    return dt_min_i64(n, cpu_n_chunks(n, tile) * i / n_parts * tile);
}

typedef void matmul_kernel(const dt_matmul_call *g, const dt_matmul_block *part);

static void run_grid(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c, matmul_kernel *kernel)
{
    const dt_matmul_call g = {.mm = mm, .a = a, .b = b, .c = c};
    const grid cut = best_grid(cpu->n_threads, cpu_n_chunks(mm->m, DT_TILE_ROWS), cpu_n_chunks(mm->n, DT_TILE_COLS));
    CPU_PARALLEL_FOR (cpu, i, cut.rows * cut.cols) {
        const int64_t r = i / cut.cols, q = i % cut.cols;
        const dt_matmul_block part = {.first_row = border(mm->m, DT_TILE_ROWS, cut.rows, r),
                                      .end_row = border(mm->m, DT_TILE_ROWS, cut.rows, r + 1),
                                      .first_col = border(mm->n, DT_TILE_COLS, cut.cols, q),
                                      .end_col = border(mm->n, DT_TILE_COLS, cut.cols, q + 1),
                                      .scratch = cpu->matmul_scratch ? (char *)cpu->matmul_scratch +
                                                                           (size_t)i * cpu->matmul_scratch_nbytes
                                                                     : NULL,
                                      .unit = cpu->unit};
        kernel(&g, &part);
    }
}

void cpu_matmul_bf16_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    run_grid(cpu, mm, a, b, c, cpu->k->matmul_bf16);
}

void cpu_matmul_any_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    run_grid(cpu, mm, a, b, c, cpu->k->matmul);
}
