/* linear.c - the two kinds of layers with weights: a matmul with its three gradients and its adapters (low_rank.c), and
 * norms. */
#include "magnitude.h"

static void add_to_matmul(const dt_model *m, const struct with_matmul *with, dt_matmul *mm)
{
    mm->addend = with->addend;
    mm->ldd = mm->ldc;
    mm->addend_dtype = mm->c_dtype;
    mm->epilogue = with->epilogue;
    mm->act = m->mc->act;
    mm->aux = with->act_in;
    mm->act_of_aux = with->act_of_aux;
    mm->ld_aux = mm->ldc;
}

static void add_groups(const struct linear *l, const int32_t *start, dt_matmul *mm)
{
    mm->n_groups = l->n_groups;
    mm->group_start = start;
    mm->group_stride = l->n_in * l->n_out;
}

dt_scaled dt_linear_scales(const struct linear *l, const dt_param_view *w)
{
    if (!dt_exists(l->scale)) return (dt_scaled){0};
    return (dt_scaled){.how = dt_exists(l->blocks) ? DT_SCALE_NF4 : DT_SCALE_ROWS,
                       .stored = w->part[l->w.part].dtype,
                       .scale = dt_weight(w, l->scale),
                       .blocks = dt_weight(w, l->blocks),
                       .finer = l->finer};
}

static struct low_rows low_rows_of(const dt_model *m, int64_t n_rows, const struct with_matmul *with)
{
    return with->low_rows ? *with->low_rows : dt_low_rank_tokens(m, n_rows, with->group_start);
}

dt_err dt_linear_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, int64_t x_ld,
                         void *y, int64_t y_ld, int64_t n_rows, struct with_matmul with)
{
    const struct low_rows rows = low_rows_of(m, n_rows, &with);
    dt_matmul mm = {.bias = l->scaled   ? NULL
                            : with.bias ? with.bias
                                        : dt_weight(w, l->b),
                    .m = n_rows,
                    .n = l->n_out,
                    .k = l->n_in,
                    .trans_b = !l->in_first,
                    .lda = x_ld,
                    .ldb = l->w_ld,
                    .ldc = y_ld,
                    .dt = m->opt.dtype,
                    .c_dtype = l->in_fp32 ? DT_F32 : m->opt.dtype,
                    .batch_invariant = dt_model_is_invariant(m),
                    .b_scaled = dt_linear_scales(l, w)};
    add_to_matmul(m, &with, &mm);
    add_groups(l, with.group_start, &mm);
    DT_EXPECT(!l->scaled || (!with.addend && !with.bias && with.epilogue == DT_EPILOGUE_NONE && l->n_groups == 0));
    DT_TRY(m->ops->matmul(m->dev, &mm, x, dt_weight(w, l->w), y, m->stream));
    DT_TRY(dt_low_rank_forward(m, l, w, x, y, y_ld, rows, with.low));
    return l->scaled ? dt_magnitude_forward(m, l, w, y, y_ld, rows) : DT_OK;
}

dt_err dt_linear_product(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, void *y,
                         struct low_rows rows, void *low)
{
    struct linear plain = *l;
    plain.b.offset = -1, plain.in_fp32 = plain.scaled = false;
    return dt_linear_forward(m, &plain, w, x, l->n_in, y, l->n_out, rows.n,
                             (struct with_matmul){.low = low, .low_rows = &rows});
}

/* dW = dy^T x, or x^T dy if the matrix is stored transposed, and the bias gradient: column sums of dy. */
dt_err dt_linear_weight_gradient(const dt_model *m, const struct linear *l, const dt_grad_view *g, const void *x,
                                 int64_t x_ld, const void *dy, int64_t dy_ld, int64_t n_rows,
                                 const int32_t *group_start)
{
    dt_matmul mm = {.m = l->n_out,
                    .n = l->n_in,
                    .k = n_rows,
                    .trans_a = true,
                    .lda = dy_ld,
                    .ldb = x_ld,
                    .ldc = l->w_ld,
                    .dt = m->opt.dtype,
                    .c_dtype = g->dtype,
                    .accumulate = g->accumulate};
    void *dw = dt_gradient(g, l->w);
    if (!dw) return DT_OK;
    add_groups(l, group_start, &mm);
    if (dt_is_trained(l->b) && l->n_groups == 0) {
        mm.sums_of = l->in_first ? DT_SUMS_OF_B : DT_SUMS_OF_A;
        mm.sums = dt_gradient(g, l->b);
        mm.sums_dtype = g->dtype;
        mm.accumulate_sums = g->accumulate;
    }
    if (!l->in_first) return m->ops->matmul(m->dev, &mm, dy, x, dw, m->stream);
    mm.m = l->n_in;
    mm.n = l->n_out;
    mm.lda = x_ld;
    mm.ldb = dy_ld;
    return m->ops->matmul(m->dev, &mm, x, dy, dw, m->stream);
}

dt_err dt_linear_input_gradient(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *dy,
                                int64_t dy_ld, void *dx, int64_t dx_ld, struct with_matmul with, int64_t n_rows)
{
    dt_matmul mm = {.m = n_rows,
                    .n = l->n_in,
                    .k = l->n_out,
                    .trans_b = l->in_first,
                    .lda = dy_ld,
                    .ldb = l->w_ld,
                    .ldc = dx_ld,
                    .dt = m->opt.dtype,
                    .c_dtype = m->opt.dtype,
                    .b_scaled = dt_linear_scales(l, w)};
    add_to_matmul(m, &with, &mm);
    add_groups(l, with.group_start, &mm);
    return m->ops->matmul(m->dev, &mm, dy, dt_weight(w, l->w), dx, m->stream);
}

dt_err dt_linear_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                          const void *x, int64_t x_ld, const void *dy, int64_t dy_ld, void *dx, int64_t dx_ld,
                          struct with_matmul with, int64_t n_rows)
{
    if (dt_is_trained(l->b) && !dt_is_trained(l->w))
        DT_TRY(m->ops->bias_backward(m->dev, dy, n_rows, l->n_out, dy_ld, m->opt.dtype, dt_gradient(g, l->b), g->dtype,
                                     g->accumulate, m->stream));
    const struct low_rows rows = low_rows_of(m, n_rows, &with);
    if (l->scaled) {
        DT_TRY(dt_magnitude_backward(m, l, w, g, x, dy, dy_ld, rows, with.low));
        dy = rows.work.y, dy_ld = l->n_out;
    }
    DT_TRY(dt_linear_weight_gradient(m, l, g, x, x_ld, dy, dy_ld, n_rows, with.group_start));
    if (l->n_low > 0) {
        DT_TRY(dt_low_rank_backward(m, l, w, g, x, dy, dy_ld, dx, rows, with.low));
        with.addend = dx;
    }
    return dx ? dt_linear_input_gradient(m, l, w, dy, dy_ld, dx, dx_ld, with, n_rows) : DT_OK;
}

static dt_rmsnorm rms_of(const dt_model *m, const struct norm *n, int64_t n_rows)
{
    return (dt_rmsnorm){.n_rows = n_rows,
                        .width = n->width,
                        .group = 1,
                        .group_ld = n->x_ld,
                        .y_group_ld = n->y_ld,
                        .eps = n->eps,
                        .plus_one = n->plus_one,
                        .only_scales = n->only_scales,
                        .dt = m->opt.dtype};
}

dt_err dt_norm_forward(const dt_model *m, const struct norm *n, const dt_param_view *w, const void *x, void *y,
                       struct norm_stats stats, int64_t n_rows)
{
    const void *weight = dt_weight(w, n->w);
    const dt_rmsnorm rms = rms_of(m, n, n_rows);
    if (n->rms) return m->ops->rmsnorm_forward(m->dev, &rms, x, weight, y, stats.rstd, m->stream);
    return m->ops->layernorm_forward(m->dev, x, weight, dt_weight(w, n->b), y, stats.mean, stats.rstd, n_rows, n->width,
                                     n->eps, m->opt.dtype, m->stream);
}

dt_err dt_norm_backward(const dt_model *m, const struct norm *n, const dt_param_view *w, const dt_grad_view *g,
                        const void *x, struct norm_stats stats, const void *dy, void *dx, bool add_to_dx,
                        int64_t n_rows)
{
    const void *weight = dt_weight(w, n->w);
    void *dweight = dt_gradient(g, n->w), *dbias = dt_gradient(g, n->b);
    const dt_rmsnorm rms = rms_of(m, n, n_rows);
    if (n->rms)
        return m->ops->rmsnorm_backward(m->dev, &rms, x, weight, stats.rstd, dy, dx, add_to_dx, dweight, g->dtype,
                                        g->accumulate, m->s.norm, m->stream);
    return m->ops->layernorm_backward(m->dev, x, weight, stats.mean, stats.rstd, dy, dx, add_to_dx, dweight, dbias,
                                      g->dtype, g->accumulate, n_rows, n->width, m->s.norm, m->opt.dtype, m->stream);
}
