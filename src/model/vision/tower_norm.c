/* tower_norm.c - SigLIP's post_layernorm as the last stage of a tower, for models whose features are transformers'
 * last_hidden_state. */
#include "vision_private.h"

static struct norm norm_of(const dt_stage_pass *p) { return dt_norm_at(p->unit, "post_layernorm"); }

static dt_err forward(void *self, const dt_stage_pass *p)
{
    const struct tower_norm *n = self;
    const struct norm at = norm_of(p);
    return p->dev->ops->layernorm_forward(p->dev, p->x, dt_weight(p->w, at.w), dt_weight(p->w, at.b), p->y, n->mean,
                                          n->rstd, p->n_tok, p->width, n->eps, p->dtype, p->stream);
}

static dt_err backward(void *self, const dt_stage_pass *p)
{
    const struct tower_norm *n = self;
    const struct norm at = norm_of(p);
    return p->dev->ops->layernorm_backward(p->dev, p->x, dt_weight(p->w, at.w), n->mean, n->rstd, p->dx, p->dx, false,
                                           dt_gradient(p->g, at.w), dt_gradient(p->g, at.b), p->g->dtype,
                                           p->g->accumulate, p->n_tok, p->width, n->scratch, p->dtype, p->stream);
}

const dt_stage_ops dt_tower_norm = {forward, backward};

void dt_tower_norm_place(struct tower_norm *n, const dt_model *m, bool trains, struct arena *device)
{
    const dt_model_config *tower = m->mc->vision->blocks;
    const int64_t rows = (m->opt.max_images > 0 ? m->opt.max_images : 1) * m->mc->vision->n_rows;
    n->eps = (float)tower->norm_eps;
    n->mean = dt_take(device, rows, 1, sizeof(float));
    n->rstd = dt_take(device, rows, 1, sizeof(float));
    n->scratch = dt_take(device, trains ? m->ops->norm_scratch_elems(m->dev, tower->hidden_size) : 0, 1, sizeof(float));
}
