/* todo.c - operations that are not written yet. */
#include "cuda.h"

__attribute__((weak)) dt_err cuda_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias, dt_dtype gt, bool accumulate, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_bias_backward: not written yet");
}

__attribute__((weak)) dt_err cuda_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte, const void *wpe, void *out, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_embedding_forward: not written yet");
}

__attribute__((weak)) dt_err cuda_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order, void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_embedding_backward: not written yet");
}

__attribute__((weak)) dt_err cuda_rmsnorm_forward(dt_device *dev, const void *x, const void *weight, void *y, float *rstd, int64_t n_rows, int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float eps, dt_dtype dt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_rmsnorm_forward: not written yet");
}

__attribute__((weak)) dt_err cuda_rmsnorm_backward(dt_device *dev, const void *x, const void *weight, const float *rstd, const void *dy, void *dx, bool add_to_dx, void *dweight, dt_dtype gt, bool accumulate, int64_t n_rows, int64_t width, int64_t group, int64_t group_ld, int64_t y_group_ld, float *scratch, dt_dtype dt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_rmsnorm_backward: not written yet");
}

__attribute__((weak)) dt_err cuda_layernorm_forward(dt_device *dev, const void *x, const void *weight, const void *bias, void *y, float *mean, float *rstd, int64_t n_rows, int64_t width, float eps, dt_dtype dt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_layernorm_forward: not written yet");
}

__attribute__((weak)) dt_err cuda_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean, const float *rstd, const void *dy, void *dx, bool add_to_dx, void *dweight, void *dbias, dt_dtype gt, bool accumulate, int64_t n_rows, int64_t width, float *scratch, dt_dtype dt, dt_stream *stream)
{
    return dt_fail(DT_ERR_FAULT, "cuda_layernorm_backward: not written yet");
}

__attribute__((weak)) int64_t cuda_norm_scratch_elems(const dt_device *dev, int64_t width)
{
    return 1;
}

