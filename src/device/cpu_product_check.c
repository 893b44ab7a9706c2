/* cpu_product_check.c - does a library compute products of one form? Libraries have been wrong for single forms and
 * versions (oneDNN 3.7 ignores strides of single rows and columns), so each form is tried once, on matrices of small
 * integers: every sum is exact in bf16, so the answer must be equal, and what lies between the rows of C must stay as
 * it was. */
#include "cpu.h"
#include <string.h>

/* m as padded rows come (cpu_matmul.c), n and k of no round number, rows some elements further apart than they are
 * long. */
enum { M = 48, N = 35, K = 37, GAP = 3, MOST = (M + GAP) * (M + GAP) };

/* -2 .. 2, without a period that divides a row. */
static int32_t small(int64_t i, int32_t seed) { return (int32_t)((uint64_t)(i * 7 + seed + i / 11) % 5) - 2; }

/* The same numbers as integers and as elements. */
static void fill(int32_t *number, void *p, dt_dtype dt, int64_t n, int32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        number[i] = small(i, seed);
        if (dt == DT_F32) {
            ((float *)p)[i] = (float)number[i];
        } else {
            ((uint16_t *)p)[i] = dt_bf16_from_float((float)number[i]);
        }
    }
}

typedef struct numbers {
    int32_t a[MOST], b[MOST], bias[N], c[MOST];
} numbers;

static int32_t wanted(const dt_matmul *mm, const numbers *x, int64_t i, int64_t j)
{
    if (j >= N) return x->c[i * mm->ldc + j]; /* between the rows */
    int32_t sum = (mm->accumulate ? x->c[i * mm->ldc + j] : 0) + (mm->bias ? x->bias[j] : 0);
    for (int64_t p = 0; p < K; p++)
        sum += x->a[mm->trans_a ? p * mm->lda + i : i * mm->lda + p] *
               x->b[mm->trans_b ? j * mm->ldb + p : p * mm->ldb + j];
    return sum;
}

static bool is_right(const dt_matmul *mm, const numbers *x, const void *c)
{
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < mm->ldc; j++) {
            const int64_t at = i * mm->ldc + j;
            const float found =
                mm->c_dtype == DT_F32 ? ((const float *)c)[at] : dt_bf16_to_float(((const uint16_t *)c)[at]);
            if (found != (float)wanted(mm, x, i, j)) return false;
        }
    return true;
}

bool cpu_product_is_right(cpu_state *cpu, const dt_matmul *form, cpu_product_function *run)
{
    float a[MOST], b[MOST], c[MOST], bias_row[N];
    numbers x;
    dt_matmul mm = {.m = M,
                    .n = N,
                    .k = K,
                    .trans_a = form->trans_a,
                    .trans_b = form->trans_b,
                    .dt = form->dt,
                    .c_dtype = form->c_dtype,
                    .accumulate = form->accumulate,
                    .bias = form->bias ? bias_row : NULL,
                    .ldc = N + GAP};
    mm.lda = (mm.trans_a ? M : K) + GAP, mm.ldb = (mm.trans_b ? K : N) + GAP;
    fill(x.a, a, mm.dt, MOST, 1), fill(x.b, b, mm.dt, MOST, 2), fill(x.bias, bias_row, mm.dt, N, 3),
        fill(x.c, c, mm.c_dtype, MOST, 4);
    const bool ran = run(cpu, &mm, a, b, c) == DT_OK && dt_fault("product.check") == DT_OK;
    if (!ran) dt_error_clear();
    return ran && is_right(&mm, &x, c);
}
