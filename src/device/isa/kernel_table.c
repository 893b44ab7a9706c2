/* kernel_table.c - the kernels of one instruction set, by name. */
#include "kernels.h"

#define DT_TEXT2(x) #x
#define DT_TEXT(x) DT_TEXT2(x)

const dt_cpu_kernels DT_JOIN(dt_cpu_kernels, DT_ISA) = {
    .isa = DT_TEXT(DT_ISA),
    .convert = ISA_NAME(convert),
    .dequantise = ISA_NAME(dequantise),
    .add_into = ISA_NAME(add_into),
    .add = ISA_NAME(add),
    .scale = ISA_NAME(scale),
    .add_rows = ISA_NAME(add_rows),
    .column_sums = ISA_NAME(column_sums),
    .row_sum = ISA_NAME(row_sum),
    .act_forward = ISA_NAME(act_forward),
    .act_backward = ISA_NAME(act_backward),
    .glu_forward = ISA_NAME(glu_forward),
    .glu_backward = ISA_NAME(glu_backward),
    .dropout = ISA_NAME(dropout),
    .rope = ISA_NAME(rope),
    .rmsnorm_forward = ISA_NAME(rmsnorm_forward),
    .rmsnorm_backward = ISA_NAME(rmsnorm_backward),
    .layernorm_forward = ISA_NAME(layernorm_forward),
    .layernorm_backward = ISA_NAME(layernorm_backward),
    .classifier = ISA_NAME(classifier),
    .adamw = ISA_NAME(adamw),
    .sgd = ISA_NAME(sgd),
    .sum_squares = ISA_NAME(sum_squares),
    .abs_max = ISA_NAME(abs_max),
    .sum_squares_fixed = ISA_NAME(sum_squares_fixed),
    .matmul = ISA_NAME(matmul),
    .matmul_rows = ISA_NAME(matmul_rows),
    .attention_rows = ISA_NAME(attention_rows),
    .attention_scratch = ISA_NAME(attention_scratch),
    .attention_forward = ISA_NAME(attention_forward),
    .attention_delta = ISA_NAME(attention_delta),
    .attention_backward_q = ISA_NAME(attention_backward_q),
    .attention_backward_kv = ISA_NAME(attention_backward_kv),
#if HAVE_BF16_UNITS
    .attention_forward_bf16 = ISA_NAME(attention_forward_bf16),
    .attention_backward_q_bf16 = ISA_NAME(attention_backward_q_bf16),
    .attention_backward_kv_bf16 = ISA_NAME(attention_backward_kv_bf16),
    .dequantise_pairs = ISA_NAME(dequantise_pairs),
    .dot_unit = &ISA_NAME(dot_unit),
#endif
#if HAVE_X86_UNITS
    .amx_unit = &ISA_NAME(amx_unit),
    .matmul_scratch = ISA_NAME(matmul_scratch),
    .matmul_bf16 = ISA_NAME(matmul_bf16),
#endif
};
