/* attention_forward.cu - softmax attention forward. */
#include "attention.cuh"
#include <inttypes.h>

dt_err cuda_attention_check(const dt_attention *at, dt_attention *checked)
{
    DT_CHECK(at->n_seq >= 0 && at->head_dim > 0 && at->head_dim <= ATTENTION_MAX_HEAD_DIM && at->scale > 0, DT_ERR_ARG,
             "attention: %d sequences, head_dim %d (1 to %d work), scale %g", at->n_seq, at->head_dim,
             ATTENTION_MAX_HEAD_DIM, (double)at->scale);
    DT_CHECK(at->n_kv_heads > 0 && at->n_heads % at->n_kv_heads == 0, DT_ERR_ARG,
             "attention: %d heads share %d key heads", at->n_heads, at->n_kv_heads);
    const int64_t width = (int64_t)at->n_heads * at->head_dim;
    DT_CHECK(at->q_ld >= width && at->o_ld >= width && at->kv_ld >= (int64_t)at->n_kv_heads * at->head_dim, DT_ERR_ARG,
             "attention: %d x %d wide, row distances %" PRId64 " %" PRId64 " %" PRId64, at->n_heads, at->head_dim,
             at->q_ld, at->kv_ld, at->o_ld);
    DT_CHECK(!at->bidirectional || at->window == 0, DT_ERR_ARG, "attention: bidirectional, with a window of %d",
             at->window);
    DT_CHECK(at->dropout_p >= 0 && at->dropout_p < 1 && (at->dropout_p == 0 || at->token_key), DT_ERR_ARG,
             "attention: dropout %g%s", (double)at->dropout_p, at->token_key ? "" : " without token keys");
    *checked = *at;
    if (at->window >= at->max_kv_len) checked->window = 0;
    return DT_OK;
}

dt_err cuda_attention_forward(dt_device *dev, const dt_attention *at, const void *q, const void *k, const void *v,
                              void *out, float *lse, dt_stream *stream)
{
    dt_attention checked;
    DT_TRY(cuda_attention_check(at, &checked));
    DT_CHECK(!at->batch_invariant || (!lse && at->dropout_p == 0), DT_ERR_ARG,
             "batch-invariant attention has neither lse nor dropout");
    if (at->n_tok == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "attention_forward");
    CUDA_BY_DTYPE(at->dt, T, "attention_forward", {
        attention_arrays<T> a = {};
        a.q = (const T *)q, a.k = (const T *)k, a.v = (const T *)v, a.out_w = (T *)out, a.lse_w = lse;
        return cuda_attention_float_forward(s, checked, a);
    });
}
