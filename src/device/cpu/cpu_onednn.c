/* cpu_onednn.c - matmuls as primitives of oneDNN. Version 2 describes memory by values, and matmuls by a matmul
 * descriptor. Version 3 describes memory by handles, which must be destroyed, and has no matmul descriptor. The code
 * after the line "both versions" is the same for both. */
#include "cpu_onednn.h"
#include <stdio.h>

#ifndef DT_HAVE_ONEDNN
bool onednn_is_built_in(void) { return false; }
const char *onednn_name(char out[ONEDNN_NAME])
{
    snprintf(out, ONEDNN_NAME, "no oneDNN");
    return out;
}
dnnl_status_t onednn_open(dnnl_engine_t *engine, dnnl_stream_t *stream)
{
    *engine = NULL, *stream = NULL;
    return dnnl_success;
}
void onednn_close(dnnl_engine_t engine, dnnl_stream_t stream) {}
bool onednn_has_native_bf16(dnnl_engine_t engine) { return true; } /* dtrain's own kernels read bf16 directly */
dnnl_status_t onednn_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                           int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    return dnnl_unimplemented;
}
dnnl_status_t onednn_create(dnnl_engine_t engine, const onednn_key *key, onednn_matmul *p)
{
    *p = (onednn_matmul){0};
    return dnnl_unimplemented;
}
dnnl_status_t onednn_run(const onednn_matmul *p, dnnl_stream_t stream, const onednn_operands *x)
{
    return dnnl_unimplemented;
}
void onednn_destroy(onednn_matmul *p) {}
#else

#define TRY_STATUS(call)                                                                                               \
    do {                                                                                                               \
        const dnnl_status_t status_ = (call);                                                                          \
        if (status_ != dnnl_success) return status_;                                                                   \
    } while (0)

enum { OF_A, OF_B, OF_C, OF_BIAS, N_MATRICES };

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t borrowed_desc;
#define DESC(md) (md)

static dnnl_status_t describe(dnnl_memory_desc_t *md, const dnnl_dims_t dims, dnnl_data_type_t type,
                              const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(md, 2, dims, type, strides);
}
static void forget(dnnl_memory_desc_t *md)
{
    for (int i = 0; i < N_MATRICES; i++)
        if (md[i]) dnnl_memory_desc_destroy(md[i]);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t describe_matmul(dnnl_engine_t engine, dnnl_memory_desc_t *md, bool bias,
                                     dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *pd)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, md[OF_A], md[OF_B], bias ? md[OF_BIAS] : NULL, md[OF_C], attr);
}
#else
typedef const dnnl_memory_desc_t *borrowed_desc;
#define DESC(md) (&(md))

static dnnl_status_t describe(dnnl_memory_desc_t *md, const dnnl_dims_t dims, dnnl_data_type_t type,
                              const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}
static void forget(dnnl_memory_desc_t *md) {}
static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }
static dnnl_status_t describe_matmul(dnnl_engine_t engine, dnnl_memory_desc_t *md, bool bias,
                                     dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *pd)
{
    dnnl_matmul_desc_t desc;
    TRY_STATUS(dnnl_matmul_desc_init(&desc, &md[OF_A], &md[OF_B], bias ? &md[OF_BIAS] : NULL, &md[OF_C]));
    return dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL);
}
#endif
/* ---- both versions ----------------------------------------------------------------------------------------------- */

static dnnl_data_type_t type_of(int32_t dt) { return dt == DT_F32 ? dnnl_f32 : dnnl_bf16; }

static dnnl_status_t describe_matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, int64_t ld, bool transposed,
                                     int32_t dt)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    return describe(md, dims, type_of(dt), strides);
}

static dnnl_status_t describe_matrices(const onednn_key *key, dnnl_memory_desc_t *md)
{
    TRY_STATUS(describe_matrix(&md[OF_A], key->m, key->k, key->lda, key->trans_a, key->dt));
    TRY_STATUS(describe_matrix(&md[OF_B], key->k, key->n, key->ldb, key->trans_b, key->dt));
    TRY_STATUS(describe_matrix(&md[OF_C], key->m, key->n, key->ldc, false, key->c_dtype));
    return describe_matrix(&md[OF_BIAS], 1, key->n, key->n, false, key->dt);
}

static dnnl_status_t set_attributes(dnnl_primitive_attr_t attr, bool accumulate)
{
    TRY_STATUS(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (!accumulate) return dnnl_success;
    dnnl_post_ops_t ops;
    TRY_STATUS(dnnl_post_ops_create(&ops));
    dnnl_status_t status = append_sum(ops);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t choose(dnnl_engine_t engine, const onednn_key *key, dnnl_memory_desc_t *md,
                            dnnl_primitive_desc_t *pd)
{
    dnnl_primitive_attr_t attr;
    TRY_STATUS(dnnl_primitive_attr_create(&attr));
    dnnl_status_t status = set_attributes(attr, key->accumulate);
    if (status == dnnl_success) status = describe_matmul(engine, md, key->bias, attr, pd);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t make_primitive(dnnl_engine_t engine, const dnnl_primitive_desc_t pd, onednn_matmul *p)
{
    borrowed_desc scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    p->scratchpad_nbytes = dnnl_memory_desc_get_size(scratchpad);
    TRY_STATUS(dnnl_memory_create(&p->scratchpad, scratchpad, engine, DNNL_MEMORY_NONE));
    return dnnl_primitive_create(&p->primitive, pd);
}

static dnnl_status_t make_memories(dnnl_engine_t engine, const onednn_key *key, dnnl_memory_desc_t *md,
                                   onednn_matmul *p)
{
    TRY_STATUS(dnnl_memory_create(&p->a, DESC(md[OF_A]), engine, DNNL_MEMORY_NONE));
    TRY_STATUS(dnnl_memory_create(&p->b, DESC(md[OF_B]), engine, DNNL_MEMORY_NONE));
    TRY_STATUS(dnnl_memory_create(&p->c, DESC(md[OF_C]), engine, DNNL_MEMORY_NONE));
    return key->bias ? dnnl_memory_create(&p->bias, DESC(md[OF_BIAS]), engine, DNNL_MEMORY_NONE) : dnnl_success;
}

dnnl_status_t onednn_create(dnnl_engine_t engine, const onednn_key *key, onednn_matmul *p)
{
    dnnl_memory_desc_t md[N_MATRICES] = {0};
    dnnl_primitive_desc_t pd = NULL;
    *p = (onednn_matmul){0};
    dnnl_status_t status = describe_matrices(key, md);
    if (status == dnnl_success) status = choose(engine, key, md, &pd);
    if (status == dnnl_success) status = make_primitive(engine, pd, p);
    if (status == dnnl_success) status = make_memories(engine, key, md, p);
    if (pd) dnnl_primitive_desc_destroy(pd);
    forget(md);
    return status;
}

dnnl_status_t onednn_run(const onednn_matmul *p, dnnl_stream_t stream, const onednn_operands *x)
{
    TRY_STATUS(dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)x->a));
    TRY_STATUS(dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)x->b));
    TRY_STATUS(dnnl_memory_set_data_handle(p->c, x->c));
    TRY_STATUS(dnnl_memory_set_data_handle(p->scratchpad, x->scratchpad));
    if (p->bias) TRY_STATUS(dnnl_memory_set_data_handle(p->bias, (void *)(uintptr_t)x->bias));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a},
                                    {DNNL_ARG_WEIGHTS, p->b},
                                    {DNNL_ARG_DST, p->c},
                                    {DNNL_ARG_SCRATCHPAD, p->scratchpad},
                                    {DNNL_ARG_BIAS, p->bias}};
    return dnnl_primitive_execute(p->primitive, stream, p->bias ? 5 : 4, args);
}

void onednn_destroy(onednn_matmul *p)
{
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    dnnl_memory_t *const all[] = {&p->a, &p->b, &p->c, &p->bias, &p->scratchpad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (*all[i]) dnnl_memory_destroy(*all[i]);
    *p = (onednn_matmul){0};
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

bool onednn_is_built_in(void) { return true; }

const char *onednn_name(char out[ONEDNN_NAME])
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(out, ONEDNN_NAME, "oneDNN %d.%d", v->major, v->minor);
    return out;
}

dnnl_status_t onednn_open(dnnl_engine_t *engine, dnnl_stream_t *stream)
{
    *stream = NULL;
    TRY_STATUS(dnnl_engine_create(engine, dnnl_cpu, 0));
    return dnnl_stream_create(stream, *engine, dnnl_stream_in_order);
}

void onednn_close(dnnl_engine_t engine, dnnl_stream_t stream)
{
    if (stream) dnnl_stream_destroy(stream);
    if (engine) dnnl_engine_destroy(engine);
}

bool onednn_has_native_bf16(dnnl_engine_t engine)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512bf16") || dnnl_get_effective_cpu_isa() < dnnl_cpu_isa_avx512_core_bf16)
        return false;
#endif
    const onednn_key key = {
        .m = 16, .n = 16, .k = 16, .lda = 16, .ldb = 16, .ldc = 16, .dt = DT_BF16, .c_dtype = DT_F32};
    onednn_matmul p;
    const bool made = onednn_create(engine, &key, &p) == dnnl_success;
    onednn_destroy(&p);
    return made;
}

dnnl_status_t onednn_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                           int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    return dnnl_sgemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#endif
