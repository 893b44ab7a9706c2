/* kernel_table.c - the table of kernels of one instruction set. */
#include "kernels.h"

#define DT_TEXT2(x) #x
#define DT_TEXT(x) DT_TEXT2(x)

const dt_cpu_kernels DT_JOIN(dt_cpu_kernels, DT_ISA) = {
    .isa = DT_TEXT(DT_ISA),
#define KERNEL(result, name, parameters) .name = ISA_NAME(name),
#if !HAVE_BF16_UNITS
#define BF16_KERNEL(result, name, parameters)
#endif
#if !HAVE_X86_UNITS
#define X86_KERNEL(result, name, parameters)
#endif
#include "../cpu/kernel_list.h"
#if HAVE_BF16_UNITS
    .dot_unit = &ISA_NAME(dot_unit),
#endif
#if HAVE_X86_UNITS
    .amx_unit = &ISA_NAME(amx_unit),
#endif
};
