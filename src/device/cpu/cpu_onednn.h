/* cpu_onednn.h - the interface to oneDNN's C API, versions 2 and 3: a matmul of one shape is a primitive with its
 * memory objects. */
#ifndef DTRAIN_CPU_ONEDNN_H
#define DTRAIN_CPU_ONEDNN_H

#include "dtrain/device/device.h"
#ifdef DT_HAVE_ONEDNN
#include <dnnl.h>
#else
typedef void *dnnl_engine_t, *dnnl_stream_t, *dnnl_primitive_t, *dnnl_memory_t;
typedef enum dnnl_status_t { dnnl_success, dnnl_out_of_memory, dnnl_unimplemented } dnnl_status_t;
#endif

/** Parameters of a primitive. The struct has no padding, so keys can be compared as bytes. */
typedef struct onednn_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, dt, c_dtype, accumulate, bias;
} onednn_key;

typedef struct onednn_matmul {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias, scratchpad;
    size_t scratchpad_nbytes; /* provided by the caller of onednn_run */
} onednn_matmul;

typedef struct onednn_operands {
    const void *a, *b, *bias; /* bias: [n] of key.dt, or NULL as key.bias says */
    void *c, *scratchpad;
} onednn_operands;

/** Create a primitive; takes about a millisecond. Returns dnnl_unimplemented if oneDNN does not support it on this
 *  processor. After a failure, onednn_destroy() frees what was created. */
dnnl_status_t onednn_create(dnnl_engine_t engine, const onednn_key *key, onednn_matmul *p);
dnnl_status_t onednn_run(const onednn_matmul *p, dnnl_stream_t stream, const onednn_operands *x);
void onednn_destroy(onednn_matmul *p);

/** Is oneDNN part of this program? Without it every function returns dnnl_unimplemented, or does nothing. */
bool onednn_is_built_in(void);
/** "oneDNN 2.6", or "no oneDNN". Returns out. */
enum { ONEDNN_NAME = 32 };
const char *onednn_name(char out[ONEDNN_NAME]);
/** Open an engine and a stream. Without oneDNN both are NULL, which is not an error. */
dnnl_status_t onednn_open(dnnl_engine_t *engine, dnnl_stream_t *stream);
void onednn_close(dnnl_engine_t engine, dnnl_stream_t stream);
/** Does oneDNN use bf16 instructions of this processor? On x86-64 the function checks the instruction set. On all
 *  processors it creates a trial primitive. */
bool onednn_has_native_bf16(dnnl_engine_t engine);
/** C = alpha op(A) op(B) + beta C of fp32 matrices in row-major order; trans 'N' or 'T'. */
dnnl_status_t onednn_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                           int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

#define TRY_DNNL(call)                                                                                                 \
    do {                                                                                                               \
        const dnnl_status_t s_ = (call);                                                                               \
        if (s_ != dnnl_success)                                                                                        \
            return dt_fail(s_ == dnnl_out_of_memory ? DT_ERR_MEMORY : DT_ERR_FAULT, "oneDNN status %d from %s",        \
                           (int)s_, #call);                                                                            \
    } while (0)

#endif
