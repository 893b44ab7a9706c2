/* cpu_matmul.c - dt_matmul on the CPU: selects the kernel, dequantises B, and applies epilogues.
 *
 * dtrain's own kernels compute three kinds of matmuls. isa/matmul_rows.c computes batch-invariant ones.
 * isa/matmul_bf16.c computes large bf16 ones on processors with pairwise dot products. isa/matmul_any.c computes empty
 * sums, and addends that oneDNN does not support. oneDNN computes the others (cpu_matmul_onednn.c). A quantised B is
 * dequantised panel by panel; epilogues are passes over C. */
#include "cpu.h"

/* ---- choice of a kernel ------------------------------------------------------------------------------------------ */

void cpu_convert_rows(const cpu_state *cpu, const void *x, dt_dtype x_dt, int64_t x_ld, void *y, dt_dtype y_dt,
                      int64_t y_ld, int64_t n_rows, int64_t width)
{
    CPU_PARALLEL_FOR (cpu, i, n_rows) {
        const dt_convert_args args = {cpu_at(x, x_dt, i * x_ld), x_dt, cpu_at_w(y, y_dt, i * y_ld), y_dt, width};
        cpu->k->convert(&args, 0, width);
    }
}

/* Does a kernel read the addend D directly? If not, D is copied to C first and the matmul accumulates, unless the copy
 * would round D. An fp32 C also receives the copy: kernels accumulate onto it block by block of k. */
static bool reads_addend(const cpu_state *cpu, const dt_matmul *mm)
{
    return mm->k == 0 || mm->batch_invariant || (mm->c_dtype == DT_BF16 && cpu_matmul_bf16_takes(cpu, mm)) ||
           (mm->c_dtype != DT_F32 && mm->addend_dtype == DT_F32);
}

/* P = op(A) op(B) + D + bias into c. */
static dt_err run_matmul(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    if (mm->addend && !reads_addend(cpu, mm)) {
        dt_matmul onto_c = *mm;
        onto_c.addend = NULL;
        onto_c.accumulate = true;
        /* C's type holds D exactly */
        cpu_convert_rows(cpu, mm->addend, mm->addend_dtype, mm->ldd, c, mm->c_dtype, mm->ldc, mm->m, mm->n);
        return run_matmul(cpu, &onto_c, a, b, c);
    }
    if (mm->batch_invariant && mm->k > 0)
        cpu_rows_matmul(cpu, mm, a, b, c);
    else if (cpu_matmul_bf16_takes(cpu, mm) && mm->k > 0)
        cpu_matmul_bf16_run(cpu, mm, a, b, c);
    else if (mm->k == 0 || mm->addend) /* libraries do not compute empty sums */
        cpu_matmul_any_run(cpu, mm, a, b, c);
    else
        return cpu_matmul_library(cpu, mm, a, b, c);
    return DT_OK;
}

/* ---- quantised B ------------------------------------------------------------------------------------------------- */

/* dst [rows][cols] of dt = elements of B starting at (row, col), dequantised. */
static void dequantise(const cpu_state *cpu, const dt_matmul *mm, const void *b, int64_t row, int64_t rows, int64_t col,
                       int64_t cols, void *dst)
{
    const dt_stored stored = {b, mm->ldb, mm->b_scaled};
    const bool pairs = mm->dt == DT_BF16 && cpu->pairs;
    CPU_PARALLEL_FOR (cpu, r, rows) {
        (pairs ? cpu->k->dequantise_pairs : cpu->k->dequantise)(&stored, row + r, col, cols,
                                                                cpu_at_w(dst, mm->dt, r * cols), mm->dt);
    }
}

/* Dequantise panels of columns of op(B) one after the other. A panel fits in cache when the matmul reads it again. Each
 * panel is a separate matmul, so the panels do not affect the sums of an element of C. */
static dt_err run_panels(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    enum { PANEL_NBYTES = 16 << 20, WHOLE = DT_TILE_COLS };
    const int64_t column = mm->k * (int64_t)dt_dtype_size(mm->dt), fit = PANEL_NBYTES / (column > 0 ? column : 1),
                  most = fit < WHOLE ? WHOLE : fit / WHOLE * WHOLE;
    for (int64_t j = 0; j < mm->n; j += most) {
        dt_matmul panel = *mm;
        panel.n = dt_min_i64(most, mm->n - j);
        DT_TRY(cpu_grow(cpu, &cpu->panel, &cpu->panel_nbytes, (size_t)(panel.n * column)));
        if (mm->trans_b)
            dequantise(cpu, mm, b, j, panel.n, 0, mm->k, cpu->panel);
        else
            dequantise(cpu, mm, b, 0, mm->k, j, panel.n, cpu->panel);
        panel.ldb = mm->trans_b ? mm->k : panel.n;
        panel.b_scaled = (dt_scaled){0};
        if (mm->bias) panel.bias = cpu_at(mm->bias, mm->dt, j);
        if (mm->addend) panel.addend = cpu_at(mm->addend, mm->addend_dtype, j);
        DT_TRY(run_matmul(cpu, &panel, a, cpu->panel, cpu_at_w(c, mm->c_dtype, j)));
    }
    return DT_OK;
}

/* Can the kernel read a quantised B? Batch-invariant matmuls of few rows dequantise blocks of B as they read them. With
 * many rows they would dequantise the same elements repeatedly. */
static bool reads_stored(const dt_matmul *mm)
{
    return mm->b_scaled.how == DT_SCALE_NONE || (mm->batch_invariant && mm->k > 0 && mm->m <= DT_ROWS_BLOCK);
}

/* ---- epilogues --------------------------------------------------------------------------------------------------- */

/* The matmul before the epilogue. *c: in: C; out: where its result P is stored, which is aux if the epilogue ACT keeps
 * P. If D is stored there, the matmul accumulates onto it. */
static dt_matmul matmul_of(const dt_matmul *mm, void **c)
{
    dt_matmul p = *mm;
    if (mm->accumulate) p.addend = *c, p.ldd = mm->ldc, p.addend_dtype = mm->c_dtype;
    if (mm->epilogue == DT_EPILOGUE_ACT && mm->aux) *c = mm->aux, p.ldc = mm->ld_aux;
    p.accumulate = p.addend == *c;
    if (p.accumulate) p.addend = NULL;
    return p;
}

/* A matmul with its epilogue. */
static dt_err run_one(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    void *to = c;
    const dt_matmul p = matmul_of(mm, &to);
    DT_TRY(reads_stored(&p) ? run_matmul(cpu, &p, a, b, to) : run_panels(cpu, &p, a, b, to));
    cpu_epilogue_act(cpu, mm, c);
    return DT_OK;
}

/* The groups one after the other. A group without rows of A has no rows of C. */
static dt_err run_groups(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    if (cpu_groups_take(cpu, mm)) return cpu_groups_run(cpu, mm, a, b, c);
    for (int g = 0; g < mm->n_groups; g++) {
        const void *a_g = a, *b_g = b;
        void *c_g = c;
        const dt_matmul one = dt_matmul_group(mm, g, &a_g, &b_g, &c_g);
        if (one.m > 0) DT_TRY(run_one(cpu, &one, a_g, b_g, c_g));
    }
    return DT_OK;
}

CPU_OP(matmul)
{
    const dt_matmul *mm = &x->mm;
    /* sums of A and B first, while these may still be in cache */
    if (mm->sums_of != DT_SUMS_OF_C) cpu_epilogue_sums(cpu, mm, x->a, x->b, x->c);
    if (mm->m > 0 && mm->n > 0) DT_TRY((mm->n_groups > 0 ? run_groups : run_one)(cpu, mm, x->a, x->b, x->c));
    if (mm->sums_of == DT_SUMS_OF_C) cpu_epilogue_sums(cpu, mm, x->a, x->b, x->c);
    return DT_OK;
}
