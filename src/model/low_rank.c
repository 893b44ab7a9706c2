/* low_rank.c - adapters of linear layers: y += h Bt, h = scale D(x) At. Adapters of lookup tables are the same with a
 * one-hot D(x), so h is a column of A (algorithms.md 6.1).
 *
 * The scale is applied to h in forward and to dh in backward, because both are narrow. Backward recomputes D(x) from
 * its random numbers. The matmuls of narrow matrices are separate from the layer's own matmul. Forward adds to y
 * after it. Backward runs before it, and the layer's own matmul adds to the result, before any epilogue. */
#include "model_private.h"

bool dt_linear_keeps_input(const struct linear *l) { return dt_is_trained(l->w) || l->n_low > 0; }

static void *h_of(const dt_model *m, const struct linear *l, int k, int64_t n_rows, void *low)
{
    int64_t before = 0;
    for (int i = 0; i < k; i++) before += l->low[i].r;
    return dt_at(low, n_rows * before, m->elem);
}

static dt_err drop_input(const dt_model *m, const struct linear *l, const void *from, void *to, struct low_rows rows)
{
    return m->ops->dropout(m->dev, from, NULL, to, m->opt.adapter_dropout, dt_adapter_dropout_key(m, l->layer, l->site),
                           rows.token_key, rows.n, l->n_in, m->opt.dtype, m->stream);
}

static bool drops(const dt_model *m, struct low_rows rows)
{
    return m->train && m->opt.adapter_dropout > 0 && rows.token_key;
}

struct low_rows dt_low_rank_tokens(const dt_model *m, int64_t n_rows, const int32_t *group_start)
{
    return (struct low_rows){n_rows, group_start ? NULL : m->device.token_key, group_start, m->s.low};
}

/* A matmul with the A or B of each expert, or with the only one. */
static void group(const struct linear *l, struct low_rows rows, int64_t stride, dt_matmul *mm)
{
    mm->n_groups = l ? l->n_groups : 0;
    mm->group_start = rows.group_start;
    mm->group_stride = stride;
}

/* D(x) */
static dt_err take_input(const dt_model *m, const struct linear *l, const void *x, const void **in,
                         struct low_rows rows)
{
    *in = x;
    if (!drops(m, rows)) return DT_OK;
    *in = rows.work.x;
    return drop_input(m, l, x, rows.work.x, rows);
}

static dt_err scale(const dt_model *m, const struct low_rank *a, void *h, int64_t n_rows)
{
    if (a->scale == 1) return DT_OK;
    return m->ops->scale(m->dev, h, a->scale, h, m->opt.dtype, n_rows * a->r, m->stream);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dt_err make_h(const dt_model *m, const struct linear *l, const struct low_rank *a, const dt_param_view *w,
                     const void *in, void *h, struct low_rows rows)
{
    dt_matmul mm = dt_dense_matmul(rows.n, a->r, l->n_in, false, true, m->opt.dtype, m->opt.dtype);
    group(l, rows, a->r * l->n_in, &mm);
    mm.batch_invariant = dt_model_is_invariant(m);
    DT_TRY(m->ops->matmul(m->dev, &mm, in, dt_weight(w, a->a), h, m->stream));
    return scale(m, a, h, rows.n);
}

/* l NULL: of a table. */
static dt_err add_part(const dt_model *m, const struct linear *l, const struct low_rank *a, const struct low_part *p,
                       const dt_param_view *w, const void *h, void *y, int64_t y_ld, struct low_rows rows,
                       dt_dtype y_dtype)
{
    dt_matmul mm = dt_dense_matmul(rows.n, p->n_out, p->r, false, true, m->opt.dtype, y_dtype);
    group(l, rows, p->n_out * p->r, &mm);
    mm.lda = a->r, mm.ldc = y_ld;
    mm.accumulate = true;
    mm.batch_invariant = dt_model_is_invariant(m);
    return m->ops->matmul(m->dev, &mm, dt_at(h, p->first_r, m->elem), dt_weight(w, p->b),
                          dt_at(y, p->first_out, dt_dtype_size(y_dtype)), m->stream);
}

dt_err dt_low_rank_project(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x,
                           struct low_rows rows, void *low)
{
    const void *in;
    if (l->n_low == 0) return DT_OK;
    DT_TRY(take_input(m, l, x, &in, rows));
    for (int k = 0; k < l->n_low; k++) DT_TRY(make_h(m, l, &l->low[k], w, in, h_of(m, l, k, rows.n, low), rows));
    return DT_OK;
}

dt_err dt_low_rank_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, void *y,
                           int64_t y_ld, struct low_rows rows, void *low)
{
    const dt_dtype y_dtype = l->in_fp32 ? DT_F32 : m->opt.dtype;
    DT_TRY(dt_low_rank_project(m, l, w, x, rows, low));
    for (int k = 0; k < l->n_low; k++) {
        const struct low_rank *a = &l->low[k];
        const void *h = h_of(m, l, k, rows.n, low);
        for (int i = 0; i < a->n_parts; i++)
            DT_TRY(add_part(m, l, a, &l->part[a->first + i], w, h, y, y_ld, rows, y_dtype));
    }
    return DT_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* dB = dy^T h, for the columns of one layer. */
static dt_err b_gradient(const dt_model *m, const struct linear *l, const struct low_rank *a, const struct low_part *p,
                         const dt_grad_view *g, const void *h, const void *dy, int64_t dy_ld, struct low_rows rows)
{
    dt_matmul db = dt_dense_matmul(p->n_out, p->r, rows.n, true, false, m->opt.dtype, g->dtype);
    void *to = dt_gradient(g, p->b);
    if (!to) return DT_OK;
    group(l, rows, p->n_out * p->r, &db);
    db.lda = dy_ld;
    db.ldb = a->r;
    db.accumulate = g->accumulate;
    return m->ops->matmul(m->dev, &db, dt_at(dy, p->first_out, m->elem), dt_at(h, p->first_r, m->elem), to, m->stream);
}

/* dh = dy B, likewise. */
static dt_err h_gradient(const dt_model *m, const struct linear *l, const struct low_rank *a, const struct low_part *p,
                         const void *b, const void *dy, int64_t dy_ld, struct low_rows rows)
{
    dt_matmul dh = dt_dense_matmul(rows.n, p->r, p->n_out, false, false, m->opt.dtype, m->opt.dtype);
    group(l, rows, p->n_out * p->r, &dh);
    dh.lda = dy_ld;
    dh.ldc = a->r;
    return m->ops->matmul(m->dev, &dh, dt_at(dy, p->first_out, m->elem), b, dt_at(rows.work.d, p->first_r, m->elem),
                          m->stream);
}

static dt_err part_backward(const dt_model *m, const struct linear *l, const struct low_rank *a,
                            const struct low_part *p, const void *b, const dt_grad_view *g, const void *h,
                            const void *dy, int64_t dy_ld, struct low_rows rows)
{
    DT_TRY(b_gradient(m, l, a, p, g, h, dy, dy_ld, rows));
    return h_gradient(m, l, a, p, b, dy, dy_ld, rows);
}

/* dA = dh^T D(x) */
static dt_err a_gradient(const dt_model *m, const struct linear *l, const struct low_rank *a, const dt_grad_view *g,
                         const void *in, struct low_rows rows)
{
    dt_matmul mm = dt_dense_matmul(a->r, l->n_in, rows.n, true, false, m->opt.dtype, g->dtype);
    void *to = dt_gradient(g, a->a);
    if (!to) return DT_OK;
    group(l, rows, a->r * l->n_in, &mm);
    mm.accumulate = g->accumulate;
    return m->ops->matmul(m->dev, &mm, rows.work.d, in, to, m->stream);
}

/* The gradient of D(x): dh A, summed over all adapters. */
static dt_err input_gradient(const dt_model *m, const struct linear *l, const struct low_rank *a,
                             const dt_param_view *w, void *dx, bool first, struct low_rows rows)
{
    dt_matmul mm = dt_dense_matmul(rows.n, l->n_in, a->r, false, false, m->opt.dtype, m->opt.dtype);
    group(l, rows, a->r * l->n_in, &mm);
    mm.accumulate = !first;
    return m->ops->matmul(m->dev, &mm, rows.work.d, dt_weight(w, a->a), dx, m->stream);
}

dt_err dt_low_rank_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                            const void *x, const void *dy, int64_t dy_ld, void *dx, struct low_rows rows, void *low)
{
    const void *in;
    DT_TRY(take_input(m, l, x, &in, rows));
    for (int k = 0; k < l->n_low; k++) {
        const struct low_rank *a = &l->low[k];
        const void *h = h_of(m, l, k, rows.n, low);
        for (int i = 0; i < a->n_parts; i++) {
            const struct low_part *p = &l->part[a->first + i];
            DT_TRY(part_backward(m, l, a, p, dt_weight(w, p->b), g, h, dy, dy_ld, rows));
        }
        DT_TRY(scale(m, a, rows.work.d, rows.n));
        DT_TRY(a_gradient(m, l, a, g, in, rows));
        if (dx) DT_TRY(input_gradient(m, l, a, w, dx, k == 0, rows));
    }
    return dx && drops(m, rows) ? drop_input(m, l, dx, dx, rows) : DT_OK;
}

dt_err dt_low_rank_input_gradient(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *dy,
                                  int64_t dy_ld, void *dx, struct low_rows rows)
{
    const struct low_rank *a = l->low;
    DT_EXPECT(l->n_low == 1 && a->n_parts == 1);
    DT_TRY(h_gradient(m, l, a, l->part, dt_weight(w, l->part->b), dy, dy_ld, rows));
    DT_TRY(scale(m, a, rows.work.d, rows.n));
    return input_gradient(m, l, a, w, dx, true, rows);
}

dt_err dt_low_rank_weight_gradient(const dt_model *m, const struct linear *l, const dt_param_view *w,
                                   const dt_grad_view *g, const void *x, const void *dy, int64_t dy_ld,
                                   struct low_rows rows, void *low)
{
    const struct low_rank *a = l->low;
    DT_TRY(make_h(m, l, a, w, x, low, rows));
    DT_TRY(b_gradient(m, l, a, l->part, g, low, dy, dy_ld, rows));
    return a_gradient(m, l, a, g, x, rows);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

dt_err dt_low_table_forward(const dt_model *m, enum low_of of, const dt_param_view *w, void *x)
{
    const struct low_rank *a = &m->low_table[of].low;
    const struct low_part *p = &m->low_table[of].part;
    const void *b = dt_weight(w, p->b);
    void *h = m->s.table_h[of];
    if (a->r == 0) return DT_OK;
    DT_TRY(m->ops->gather_rows(m->dev, dt_weight(w, a->a), m->device.low_at[of], h, m->n_tok * a->r, 1, m->opt.dtype,
                               m->stream));
    DT_TRY(scale(m, a, h, m->n_tok));
    if (m->train) DT_TRY(m->ops->copy(m->dev, m->s.table_b[of], b, (size_t)(m->C * a->r) * m->elem, m->stream));
    return add_part(m, NULL, a, p, w, h, x, m->C, (struct low_rows){.n = m->n_tok}, m->opt.dtype);
}

dt_err dt_low_table_backward(const dt_model *m, enum low_of of, const dt_grad_view *g)
{
    const struct low_rank *a = &m->low_table[of].low;
    const int32_t n_learned = of == LOW_TOKENS ? m->n_learned : m->n_tok;
    if (a->r == 0) return DT_OK;
    const struct low_rows rows = {.n = m->n_tok, .work = m->s.low};
    DT_TRY(
        part_backward(m, NULL, a, &m->low_table[of].part, m->s.table_b[of], g, m->s.table_h[of], m->s.dx, m->C, rows));
    if (!dt_is_trained(a->a)) return DT_OK;
    DT_TRY(scale(m, a, m->s.low.d, m->n_tok));
    return m->ops->embedding_backward(m->dev, m->s.low.d, m->device.low_at[of], m->device.low_order[of],
                                      dt_gradient(g, a->a), n_learned * a->r, 1, m->opt.dtype, g->dtype, m->stream);
}
