/* blocked_sums.c - sums that do not depend on the number of ranks. In round t the R ranks supply the blocks
 * tR .. tR+R-1. An ordered reduction adds them one after the other: ((sum + b_0) + b_1) + ...
 * Missing blocks are zero, which changes no sum. */
#include "blocked_sums.h"

dt_err sid_sums_alloc(const dt_sid *s, sid_sums *x, int64_t n, dt_memcat category)
{
    enum { ALIGN = 16 };
    const int64_t R = s->comm->mesh.data.size;
    *x = (sid_sums){.n = n, .count = dt_ceil_div(dt_ceil_div(n, R), ALIGN) * ALIGN};
    const size_t piece = (size_t)x->count * sizeof(float);
    DT_TRY(dt_buf_alloc_zeroed(&x->part, s->dev, DT_ON_DEVICE, (size_t)R * piece, category));
    DT_TRY(dt_buf_alloc(&x->piece, s->dev, DT_ON_DEVICE, piece, category));
    return dt_buf_alloc(&x->whole, s->dev, DT_ON_DEVICE, (size_t)R * piece, category);
}

void sid_sums_free(sid_sums *x)
{
    dt_buf_free(&x->part);
    dt_buf_free(&x->piece);
    dt_buf_free(&x->whole);
    *x = (sid_sums){0};
}

dt_err sid_sums_begin(const dt_sid *s, sid_sums *x)
{
    return s->dev->ops->zero(s->dev, x->piece.ptr, x->piece.nbytes, s->stream);
}

dt_err sid_sums_clear(const dt_sid *s, sid_sums *x)
{
    return s->dev->ops->zero(s->dev, x->part.ptr, x->part.nbytes, s->stream);
}

dt_err sid_sums_add(const dt_sid *s, sid_sums *x)
{
    return dt_comm_reduce_scatter(&s->comm->mesh.data, x->part.ptr, DT_F32, x->piece.ptr, DT_F32, x->count, true, true,
                                  s->stream);
}

dt_err sid_sums_end(const dt_sid *s, sid_sums *x)
{
    return dt_comm_all_gather(&s->comm->mesh.data, x->piece.ptr, x->whole.ptr, x->piece.nbytes, s->stream);
}

void sid_sort_by_code(const int32_t *code, int64_t m, int64_t n_codes, int64_t *count, int32_t *order)
{
    for (int64_t k = 0; k <= n_codes; k++) count[k] = 0;
    for (int64_t i = 0; i < m; i++) count[code[i] + 1]++;
    for (int64_t k = 0; k < n_codes; k++) count[k + 1] += count[k];
    for (int64_t i = 0; i < m; i++) order[count[code[i]]++] = (int32_t)i;
}
