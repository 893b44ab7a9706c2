/* kernels.h - prototypes of the kernels of one instruction set; kernel_list.h lists them. */
#ifndef DTRAIN_ISA_KERNELS_H
#define DTRAIN_ISA_KERNELS_H

#include "isa.h"

#define KERNEL(result, name, parameters) result ISA_NAME(name) parameters;
#include "../cpu/kernel_list.h"

/* Units that multiply bf16. On x86 single functions enable them by target attributes, within the set with AVX-512. On
 * Arm separate sets enable them. */
#if defined(__x86_64__) && defined(__AVX512BW__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAVE_X86_UNITS 1
#else
#define HAVE_X86_UNITS 0
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAVE_ARM_UNITS 1
#else
#define HAVE_ARM_UNITS 0
#endif
#define HAVE_BF16_UNITS (HAVE_X86_UNITS || HAVE_ARM_UNITS)
extern const dt_bf16_unit ISA_NAME(dot_unit), ISA_NAME(amx_unit);

#endif
