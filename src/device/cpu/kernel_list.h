/* kernel_list.h - the kernels of the CPU device, declared once: result, name and parameters of each. A file that
 * defines KERNEL first generates the table of an instruction set, its prototypes or its entries from this list. Sets
 * without bf16 units omit BF16_KERNEL, sets of other processors than x86 X86_KERNEL. */
#ifndef BF16_KERNEL
#define BF16_KERNEL KERNEL
#endif
#ifndef X86_KERNEL
#define X86_KERNEL KERNEL
#endif

/* elementwise.c, norm.c, optimizer_kernels.c: n elements or rows of an operation, starting at first */
#define DT_OP_ELEMENTS(op, ...) KERNEL(void, op, (const dt_##op##_args *args, int64_t first, int64_t n))
#define DT_OP_ROWS DT_OP_ELEMENTS
#include "dtrain/device/op_list.h"

/* elementwise.c */
KERNEL(void, add_rows, (float *sum, const void *row, dt_dtype dt, int64_t n)) /* sum[i] += row[i] */
/* n_cols <= DT_CPU_COLS */
KERNEL(void, column_sums, (const void *x, dt_dtype dt, int64_t m, int64_t ld, int64_t n_cols, float *sum))
KERNEL(float, row_sum, (const void *x, dt_dtype dt, int64_t n))
/* rotate the pairs (i, half + i), and (2 i, 2 i + 1) */
KERNEL(void, rope, (void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt))
KERNEL(void, rope_neighbours, (void *x, const float *cos_sin, int64_t half, bool inverse, dt_dtype dt))

/* dequantise.c: n elements of a row, starting at column col, as values of type dt */
KERNEL(void, dequantise, (const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt))

/* norm.c: one row; backward adds to the block's float sums */
KERNEL(float, rmsnorm_forward, (const dt_rmsnorm *n, const void *x, const void *weight, void *y))
KERNEL(void, rmsnorm_backward,
       (const dt_rmsnorm *n, const void *x, const void *weight, float rstd, const void *dy, void *dx, bool add_to_dx,
        float *dweight))
KERNEL(void, layernorm_backward,
       (const void *x, const void *weight, float mean, float rstd, const void *dy, void *dx, bool add_to_dx,
        float *dweight, float *dbias, int64_t width, dt_dtype dt))

/* gates.c: rows starting at first; backward of gates adds to float sums [2][width] */
KERNEL(float, norm_gate_forward, (const dt_rmsnorm *n, const void *x, const void *weight, const void *z, void *y))
KERNEL(void, norm_gate_backward,
       (const dt_rmsnorm *n, const void *x, const void *weight, const void *z, float rstd, const void *dy, void *dx,
        void *dz, float *dweight))
KERNEL(void, sigmoid_gate_forward, (const void *x, const void *gate, void *out, int64_t n, dt_dtype dt))
KERNEL(void, sigmoid_gate_backward,
       (const void *x, const void *gate, const void *dout, void *dx, void *dgate, int64_t n, dt_dtype dt))
KERNEL(void, delta_gates_forward, (const dt_delta_gates_forward_args *args, int64_t first, int64_t n))
KERNEL(void, delta_gates_backward, (const dt_delta_gates_backward_args *args, int64_t first, int64_t n, float *sums))

/* conv.c: some rows of one sequence, some columns; backward adds to dweight, float [n_cols][kernel] */
KERNEL(void, conv_forward, (const dt_conv_forward_args *args, const dt_conv_part *part))
KERNEL(void, conv_backward, (const dt_conv_backward_args *args, const dt_conv_part *part, float *dweight))

/* delta.c: one sequence and value head; the last one: rows of a key head, from the gradients of its value heads */
KERNEL(int64_t, delta_scratch, (const dt_delta *d, bool backward))
KERNEL(void, delta_forward, (const dt_delta *d, const dt_delta_args *a, int seq, int head, float *scratch))
KERNEL(void, delta_backward, (const dt_delta *d, const dt_delta_args *a, int seq, int head, float *scratch))
KERNEL(void, delta_step, (const dt_delta *d, const dt_delta_args *a, int seq, int head))
KERNEL(void, delta_qk_backward, (const dt_delta_backward_args *args, const dt_delta_args *a, int64_t row, int head))

/* elementwise.c: one row */
KERNEL(float, row_length, (const dt_magnitude_factors_args *args, int64_t row))

/* classifier.c: one row */
KERNEL(void, classifier, (const dt_classifier *cl, float *logits, int64_t row))
KERNEL(void, fill_rest, (const dt_fill_rest_args *args, int64_t row))

/* optimizer_kernels.c */
KERNEL(float, quantise_block,
       (const dt_map8 *map, bool positive, const float *x, uint8_t *codes, int64_t n)) /* returns max |x|; n <= 256 */
KERNEL(void, dequantise_block, (const dt_map8 *map, const uint8_t *codes, float absmax, float *x, int64_t n))
KERNEL(double, sum_squares, (const void *x, dt_dtype dt, int64_t n))
KERNEL(float, abs_max, (const void *x, dt_dtype dt, int64_t n))
KERNEL(void, sum_squares_fixed, (const void *x, dt_dtype dt, int64_t n, int shift, uint64_t sum[2])) /* n <= 2^11 */

/* matmul_any.c: any form, size and type */
KERNEL(void, matmul, (const dt_matmul_call *g, const dt_matmul_block *part))

/* matmul_rows.c, attention_rows.c: for generation */
KERNEL(void, matmul_rows, (const dt_rows_matmul *p, int64_t first, int64_t n)) /* n columns of C, starting at first */
/* head: of keys */
KERNEL(void, attention_rows, (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))

/* attention.c, attention_backward.c */
KERNEL(int64_t, attention_scratch, (int head_dim))
KERNEL(void, attention_forward, (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))
/** delta[t, h] for n tokens, starting at first */
KERNEL(void, attention_delta,
       (const dt_attention *at, const void *out, const void *dout, int64_t first, int64_t n, float *delta))
/** float gradients of n sinks from first on */
KERNEL(void, attention_sinks,
       (const dt_attention *at, const float *lse, const float *delta, int64_t first, int64_t n, double *grad))
KERNEL(void, attention_backward_q, (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))
KERNEL(void, attention_backward_kv, (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))

/* attention_bf16.c, matmul_x86.c: the same on bf16 units, NULL in sets without them. Probabilities and their
 * gradients are rounded to bf16 before they are multiplied, as on GPUs. */
BF16_KERNEL(void, attention_forward_bf16,
            (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))
BF16_KERNEL(void, attention_backward_q_bf16,
            (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))
BF16_KERNEL(void, attention_backward_kv_bf16,
            (const dt_attention *at, const dt_attention_args *a, const dt_attention_part *part))
/* bf16 for these units, which treat values below 2^-126 as 0 */
BF16_KERNEL(void, dequantise_pairs, (const dt_stored *b, int64_t row, int64_t col, int64_t n, void *dst, dt_dtype dt))

/* matmul_bf16.c: NULL except in x86 sets with dot_unit */
X86_KERNEL(size_t, matmul_scratch, (void))
X86_KERNEL(void, matmul_bf16, (const dt_matmul_call *g, const dt_matmul_block *part))

#undef KERNEL
#undef BF16_KERNEL
#undef X86_KERNEL
