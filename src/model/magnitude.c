/* magnitude.c - magnitudes of adapted layers (DoRA, Liu et al., arXiv:2402.09353):
 *
 *     y = c z + b,   z = W x + s B A x,   c_j = m_j / n_j,   n_j = |W_j + s (B A)_j|
 *
 * m is trained. The lengths n are constants in backward (section 4.3 of the paper), so dz = c dy, and dm_j is the sum
 * of dy_j z_j / n_j over all rows. z is not kept: backward computes it again, with one more matmul by W, which is
 * available then. So are the lengths. */
#include "magnitude.h"

/* The factors of a part's magnitudes, and the inverse lengths, in the work space. */
static dt_err find_factors(const dt_model *m, const struct linear *l, const struct low_rank *a,
                           const struct low_part *p, const dt_param_view *w, const struct low_work *work, dt_dtype dt)
{
    const dt_row_lengths d = {.n_out = p->n_out,
                              .n_in = l->n_in,
                              .r = p->r,
                              .first = p->first_out,
                              .w_ld = l->w_ld,
                              .in_first = l->in_first,
                              .scale = a->scale,
                              .dt = m->opt.dtype,
                              .w_scaled = dt_linear_scales(l, w)};
    return m->ops->magnitude_factors(m->dev, &d, dt_weight(w, l->w),
                                     dt_at(dt_weight(w, a->a), p->first_r * l->n_in, m->elem), dt_weight(w, p->b),
                                     dt_weight(w, p->m), work->factor, work->inverse, dt, m->stream);
}

/* Rows of some columns, times a factor for each column. */
static dt_rmsnorm columns_of(const struct low_part *p, int64_t n_rows, int64_t x_ld, int64_t y_ld, dt_dtype dt)
{
    return (dt_rmsnorm){.n_rows = n_rows,
                        .width = p->n_out,
                        .group = 1,
                        .group_ld = x_ld,
                        .y_group_ld = y_ld,
                        .only_scales = true,
                        .dt = dt};
}

/* Run the statement for each part p of the adapters a of l that has magnitudes. */
#define EACH_SCALED(l, a, p, ...)                                                                                      \
    for (const struct low_rank *a = (l)->low; a < (l)->low + (l)->n_low; a++)                                          \
        for (const struct low_part *p = (l)->part + a->first; p < (l)->part + a->first + a->n_parts; p++)              \
            if (dt_exists(p->m)) __VA_ARGS__

static dt_err scale_columns(const dt_model *m, const struct low_part *p, const void *by, void *y, int64_t y_ld,
                            int64_t n_rows, dt_dtype dt, float *ones)
{
    const dt_rmsnorm n = columns_of(p, n_rows, y_ld, y_ld, dt);
    void *at = dt_at(y, p->first_out, dt_dtype_size(dt));
    return m->ops->rmsnorm_forward(m->dev, &n, at, by, at, ones, m->stream);
}

dt_err dt_magnitude_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, void *y, int64_t y_ld,
                            struct low_rows rows)
{
    const dt_dtype dt = l->in_fp32 ? DT_F32 : m->opt.dtype;
    EACH_SCALED(l, a, p, {
        DT_TRY(find_factors(m, l, a, p, w, &rows.work, dt));
        DT_TRY(scale_columns(m, p, rows.work.factor, y, y_ld, rows.n, dt, NULL));
    })
    if (!dt_exists(l->b)) return DT_OK;
    /* y + b: an empty sum */
    dt_matmul mm = dt_dense_matmul(rows.n, l->n_out, 0, false, true, m->opt.dtype, dt);
    mm.lda = mm.ldb = 1, mm.ldc = mm.ldd = y_ld;
    mm.bias = dt_weight(w, l->b), mm.addend = y, mm.addend_dtype = dt;
    return m->ops->matmul(m->dev, &mm, y, y, y, m->stream);
}

/* Columns without an adapter, from column `first` to `end`: their gradient is dy. */
static dt_err copy_columns(const dt_model *m, const struct linear *l, const void *dy, int64_t dy_ld, void *dz,
                           int64_t first, int64_t end, int64_t n_rows)
{
    const dt_blocks b = {n_rows, 1, end - first, dy_ld, end - first, l->n_out, end - first, m->opt.dtype};
    if (end == first) return DT_OK;
    return m->ops->copy_blocks(m->dev, &b, dt_at(dy, first, m->elem), dt_at(dz, first, m->elem), m->stream);
}

dt_err dt_magnitude_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                             const void *x, const void *dy, int64_t dy_ld, struct low_rows rows, void *low)
{
    void *z = rows.work.y;
    int64_t done = 0;
    DT_TRY(dt_linear_product(m, l, w, x, z, rows, low));
    EACH_SCALED(l, a, p, {
        const dt_rmsnorm n = columns_of(p, rows.n, l->n_out, dy_ld, m->opt.dtype);
        void *at = dt_at(z, p->first_out, m->elem);
        DT_TRY(find_factors(m, l, a, p, w, &rows.work, m->opt.dtype));
        DT_TRY(scale_columns(m, p, rows.work.inverse, z, l->n_out, rows.n, m->opt.dtype, rows.work.ones));
        DT_TRY(m->ops->rmsnorm_backward(m->dev, &n, at, rows.work.factor, rows.work.ones,
                                        dt_at(dy, p->first_out, m->elem), at, false, dt_gradient(g, p->m), g->dtype,
                                        g->accumulate, m->s.norm, m->stream));
        DT_TRY(copy_columns(m, l, dy, dy_ld, z, done, p->first_out, rows.n));
        done = p->first_out + p->n_out;
    })
    return copy_columns(m, l, dy, dy_ld, z, done, l->n_out, rows.n);
}
