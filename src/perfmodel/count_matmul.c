/* count_matmul.c - launches of matmuls. If cuBLASLt has no kernel for the whole operation, cuda/matmul.cu adds passes:
 * an activation, sums for the gradients of biases, the edges of odd extents. This file makes the same choice from the
 * same description and addresses. */
#include "count_private.h"
#include "dtrain/device/gpu_sizes.h"
#include "dtrain/device/nf4.h"

enum { WHOLE = 8 }; /* of cuda/matmul.cu */

/* Bytes of an nf4 weight: half a byte, its share of the block's scale and of the group's two floats. */
#define NF4_NBYTES (0.5 + 1.0 / DT_NF4_BLOCK + 8.0 / DT_NF4_BLOCK / DT_NF4_GROUP)

static double size_of(dt_dtype dt) { return (double)dt_dtype_size(dt); }

static bool by_one_kernel(const dt_matmul_args *x) { return dt_gpu_library_takes(&x->mm, x->a, x->b, x->c); }

/* ---- additional passes (cuda/matmul.cu)    ---------------------------------------------------------------------- */

/* Number of launches of a matmul, including a pass over C for an activation or a bias that the library does not add.
 * 0: the library has no such matmul. */
static int by_library(const dt_matmul_args *x)
{
    const dt_matmul *mm = &x->mm;
    const bool bias_is_left = mm->bias && mm->c_dtype != mm->dt, act = mm->epilogue == DT_EPILOGUE_ACT;
    dt_matmul_args part = *x;
    if (by_one_kernel(x)) return 1;
    if (mm->epilogue == DT_EPILOGUE_NONE && !bias_is_left) return 0;
    if (act && mm->aux) part.c = mm->aux, part.mm.ldc = mm->ld_aux;
    if (mm->accumulate) part.mm.addend = x->c, part.mm.ldd = mm->ldc, part.mm.addend_dtype = mm->c_dtype;
    part.mm.accumulate = false;
    part.mm.epilogue = DT_EPILOGUE_NONE;
    if (bias_is_left) part.mm.bias = NULL;
    return by_one_kernel(&part) ? 2 : 0;
}

static dt_matmul_args with_terms(const dt_matmul_args *x, int64_t k)
{
    dt_matmul_args most = *x;
    most.mm.k = k;
    return most;
}

/* k is not a multiple of 8: the library sums most terms into the workspace, as many rows as fit at a time, and our own
 * kernel adds the rest. */
static int cut_terms(const dt_matmul_args *x, int64_t k)
{
    const int64_t room = (int64_t)(DT_GPU_WORKSPACE_NBYTES / 2 / sizeof(float)) / x->mm.n;
    dt_matmul_args most = with_terms(x, k);
    if (x->mm.accumulate || x->mm.addend || room == 0) return 0;
    most.mm.ldc = x->mm.n, most.mm.c_dtype = DT_F32;
    most.mm.bias = NULL, most.mm.epilogue = DT_EPILOGUE_NONE;
    most.c = NULL; /* aligned, as the workspace is */
    return by_one_kernel(&most) ? 2 * (int)((x->mm.m + room - 1) / room) : 0;
}

/* The library computes the part whose extents are multiples of 8, our own kernels the edges. */
static int by_cut(const dt_matmul_args *x)
{
    const dt_matmul *mm = &x->mm;
    const int64_t m = mm->m - (mm->trans_a ? mm->m % WHOLE : 0), n = mm->n - mm->n % WHOLE, k = mm->k - mm->k % WHOLE;
    dt_matmul_args most = *x;
    int launches;
    most.mm.m = m, most.mm.n = n;
    if (m == 0 || n == 0 || mm->k < WHOLE) return 0;
    if (mm->k % WHOLE == 0 || mm->trans_a) {
        launches = by_library(&most);
    } else if (mm->c_dtype == DT_F32) {
        most = with_terms(&most, k);
        launches = by_library(&most);
        launches += launches > 0;
    } else {
        launches = cut_terms(&most, k);
    }
    return launches ? launches + (n < mm->n) + (m < mm->m) : 0;
}

/* Can the kernel for few rows read B as it is stored (cuda_stored_fits)? The fp32 kernel reads any B. */
static bool reads_stored(const dt_matmul_args *x)
{
    enum { FEW_ROWS = 64 };
    const dt_matmul *mm = &x->mm;
    if (mm->dt == DT_F32) return true;
    return mm->trans_b && mm->m <= FEW_ROWS && dt_gpu_whole_row(x->a, mm->lda, mm->dt) &&
           dt_gpu_whole_row(x->b, 0, mm->dt) &&
           (mm->k | mm->ldb) % (mm->b_scaled.how == DT_SCALE_NF4 ? DT_NF4_BLOCK : 16) == 0;
}

/* B is decoded into half of the workspace panel by panel, each followed by its matmul. The library needs this, and so
 * do our own kernels that cannot read B as it is stored. */
static int by_panels(const dt_matmul_args *x)
{
    enum { MANY_ROWS = 16, HALF_WORKSPACE = 16 << 20, WHOLE_COLUMNS = 8 };
    const int64_t fit = HALF_WORKSPACE / (int64_t)dt_dtype_size(x->mm.dt) / x->mm.k,
                  most = fit < WHOLE_COLUMNS ? fit : fit / WHOLE_COLUMNS * WHOLE_COLUMNS;
    dt_matmul_args panel = *x;
    panel.b = NULL; /* the workspace is aligned */
    panel.mm.n = dt_min_i64(most, x->mm.n);
    panel.mm.ldb = x->mm.trans_b ? x->mm.k : panel.mm.n;
    const bool library = !x->mm.batch_invariant && x->mm.m >= MANY_ROWS && by_one_kernel(&panel);
    if (most == 0 || (reads_stored(x) && !library)) return 1;
    return (int)(2 * ((x->mm.n + most - 1) / most));
}

/* Launches of a group of a grouped matmul whose B is quantised: it is decoded in panels (stored_group). */
static int panels_of_group(const dt_matmul *mm)
{
    enum { HALF_WORKSPACE = DT_GPU_WORKSPACE_NBYTES / 2 };
    const int64_t fit = (int64_t)(HALF_WORKSPACE / dt_dtype_size(mm->dt)) / (mm->k > 0 ? mm->k : 1),
                  most = fit < WHOLE ? fit : fit / WHOLE * WHOLE;
    return most > 0 ? 2 * (int)((mm->n + most - 1) / most) : 1;
}

static int n_launches(const dt_matmul_args *x)
{
    const dt_matmul *mm = &x->mm;
    int launches = 0;
    if (mm->n_groups > 0) return mm->b_scaled.how == DT_SCALE_NONE ? 1 : mm->n_groups * panels_of_group(mm);
    if (mm->k == 0) return 1;
    if (mm->b_scaled.how != DT_SCALE_NONE) return by_panels(x);
    if (mm->batch_invariant) return 1;
    launches = by_library(x);
    if (launches == 0 && dt_gpu_is_worth_cutting(mm)) launches = by_cut(x);
    return launches ? launches : 1;
}

/* ---- bytes moved ------------------------------------------------------------------------------------------------- */

/* Bytes of the launches after the first if B is decoded in panels. Each panel is written and read, and all but the
 * first of a matrix B read A again. A group has a matrix B and a share of A. */
static double panels_nbytes(const dt_matmul *mm, int launches)
{
    const double matrices = mm->n_groups > 0 ? (double)mm->n_groups : 1, panels = launches / (2 * matrices);
    return size_of(mm->dt) * (double)mm->k * (2 * matrices * (double)mm->n + (panels - 1) * (double)mm->m);
}

/* The matmul reads A and B and writes C once. A grouped one reads at most as many matrices B as there are rows. Each
 * further pass reads and writes C and the auxiliary matrix, or panels of a quantised B. */
static void queue_matmul(dt_device *dev, dt_stream *s, const dt_matmul_args *x)
{
    const dt_matmul *mm = &x->mm;
    const double groups = mm->n_groups > 0 ? (double)dt_min_i64(mm->n_groups, mm->trans_a ? mm->k : mm->m) : 1,
                 m = (double)mm->m, n = (double)mm->n, k = (double)mm->k, n_b = mm->trans_a ? 1 : groups,
                 n_c = mm->trans_a && mm->n_groups > 0 ? mm->n_groups : 1, c = n_c * m * n * size_of(mm->c_dtype),
                 of_b = mm->b_scaled.how == DT_SCALE_NONE  ? size_of(mm->dt)
                        : mm->b_scaled.how == DT_SCALE_NF4 ? NF4_NBYTES
                                                           : size_of(mm->b_scaled.stored),
                 aux = mm->aux && mm->epilogue != DT_EPILOGUE_NONE ? m * n * size_of(mm->dt) : 0,
                 addend = mm->accumulate ? c
                          : mm->addend   ? m * n * size_of(mm->addend_dtype)
                                         : 0;
    dt_launch launch = {.op = "matmul",
                        .dt = mm->dt,
                        .flops = 2 * m * n * k,
                        .memory = m * k * size_of(mm->dt) + n_b * k * n * of_b + c + aux + addend};
    dt_count_queue(dev, s, &launch);
    const int launches = n_launches(x);
    const bool panels = mm->b_scaled.how != DT_SCALE_NONE && launches > 1;
    launch = (dt_launch){.op = "matmul", .memory = panels ? panels_nbytes(mm, launches) / (launches - 1) : c + aux};
    for (int i = launches; i > 1; i--) dt_count_queue(dev, s, &launch);
}

/* Column sums are computed per slice of rows, and a second launch adds the slices. Row sums are one launch. */
static void queue_sums(dt_device *dev, dt_stream *s, const dt_matmul *mm)
{
    const bool of_a = mm->sums_of == DT_SUMS_OF_A, of_b = mm->sums_of == DT_SUMS_OF_B,
               rows = (of_a && !mm->trans_a) || (of_b && mm->trans_b);
    const int64_t m = of_a || of_b ? mm->k : mm->m, n = of_a ? mm->m : mm->n;
    if (mm->sums_of == DT_SUMS_NONE) return;
    if (rows)
        count_moves(dev, s, "matmul", (double)m * (double)n * size_of(mm->dt));
    else
        count_bias_backward(
            dev,
            &(dt_bias_backward_args){.m = m, .n = n, .dt = of_a || of_b ? mm->dt : mm->c_dtype, .gt = mm->sums_dtype},
            s);
}

void count_bias_backward(dt_device *dev, const dt_bias_backward_args *x, dt_stream *s)
{
    enum { ROWS = 64 }; /* minimum per slice */
    const double m = (double)x->m, n = (double)x->n;
    count_moves(dev, s, "bias_backward", m * n * size_of(x->dt));
    count_moves(dev, s, "bias_backward", n * ((m + ROWS - 1) / ROWS * sizeof(float) + size_of(x->gt)));
}

void count_matmul(dt_device *dev, const dt_matmul_args *x, dt_stream *s)
{
    const dt_matmul *mm = &x->mm;
    if (mm->sums_of != DT_SUMS_OF_C) queue_sums(dev, s, mm);
    if (mm->m > 0 && mm->n > 0) queue_matmul(dev, s, x);
    if (mm->sums_of == DT_SUMS_OF_C) queue_sums(dev, s, mm);
}
