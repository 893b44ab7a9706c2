/* cpu_epilogue.c - epilogues of a matmul: activations, and sums of rows or columns for bias gradients.
 *
 * An epilogue is a second pass over matrices that the matmul has just read or written. It uses the kernels and blocks
 * of the separate operations. So a matmul with an epilogue is bit-identical to the two calls that it replaces. */
#include "cpu.h"

static void act_row(const cpu_state *cpu, const dt_matmul *mm, void *aux, void *c, int64_t n)
{
    if (mm->epilogue == DT_EPILOGUE_ACT)
        cpu->k->act_forward(&(dt_act_forward_args){mm->act, aux, c, mm->dt, n}, 0, n);
    else
        cpu->k->act_backward(&(dt_act_backward_args){mm->act, aux, c, c, mm->dt, n}, 0, n);
}

/* c = act(aux), or c = c act'(aux). Contiguous rows are processed as one long row. */
void cpu_epilogue_act(const cpu_state *cpu, const dt_matmul *mm, void *c)
{
    if (mm->epilogue == DT_EPILOGUE_NONE) return;
    void *aux = mm->aux ? mm->aux : c;
    const int64_t ld_aux = mm->aux ? mm->ld_aux : mm->ldc;
    const bool dense = mm->ldc == mm->n && ld_aux == mm->n;
    const int64_t n_rows = dense ? 1 : mm->m, width = dense ? mm->m * mm->n : mm->n, n = cpu_n_chunks(width, CPU_CHUNK);
    CPU_PARALLEL_FOR (cpu, turn, n_rows * n) {
        const int64_t row = turn / n, first = turn % n * CPU_CHUNK;
        act_row(cpu, mm, cpu_at_w(aux, mm->dt, row * ld_aux + first), cpu_at_w(c, mm->dt, row * mm->ldc + first),
                dt_min_i64(CPU_CHUNK, width - first));
    }
}

/* sums[r] = sum of row r of x. */
static void row_sums(const cpu_state *cpu, const dt_matmul *mm, const void *x, int64_t n_rows, int64_t n, int64_t ld)
{
    CPU_PARALLEL_FOR (cpu, r, n_rows) {
        const float sum = cpu->k->row_sum(cpu_at(x, mm->dt, r * ld), mm->dt, n);
        void *to = cpu_at_w(mm->sums, mm->sums_dtype, r);
        cpu->k->add_into(&(dt_add_into_args){&sum, DT_F32, to, mm->sums_dtype, mm->accumulate_sums, 1}, 0, 1);
    }
}

static void column_sums(const cpu_state *cpu, const dt_matmul *mm, const void *x, dt_dtype dt, int64_t n_rows,
                        int64_t n, int64_t ld)
{
    cpu_column_sums(cpu, x, dt, n_rows, n, ld, mm->sums, mm->sums_dtype, mm->accumulate_sums);
}

void cpu_epilogue_sums(const cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, const void *c)
{
    const bool of_a = mm->sums_of == DT_SUMS_OF_A, of_b = mm->sums_of == DT_SUMS_OF_B;
    if (of_a && mm->trans_a) column_sums(cpu, mm, a, mm->dt, mm->k, mm->m, mm->lda);
    if (of_a && !mm->trans_a) row_sums(cpu, mm, a, mm->m, mm->k, mm->lda);
    if (of_b && !mm->trans_b) column_sums(cpu, mm, b, mm->dt, mm->k, mm->n, mm->ldb);
    if (of_b && mm->trans_b) row_sums(cpu, mm, b, mm->n, mm->k, mm->ldb);
    if (mm->sums_of == DT_SUMS_OF_C) column_sums(cpu, mm, c, mm->c_dtype, mm->m, mm->n, mm->ldc);
}
