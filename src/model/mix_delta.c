/* mix_delta.c - linear attention with the gated delta rule as the mixer of a branch (docs/algorithms.md, 8.8). One
 * matmul computes q, k, v, z, b and a. A convolution over tokens mixes q, k and v. Decay and strength come from a and
 * b. The output of the delta rule passes a norm by head and is multiplied by silu(z). The columns of the matmul may be
 * grouped by key head: q, k, v and z of each, then b and a of each. They are then copied.
 *
 * Passes without a cache use the chunked form. Generation goes token by token: its results do not depend on how a text
 * is divided into passes. */
#include "mixer.h"

static dt_conv conv_of(const dt_model *m)
{
    return (dt_conv){.n_seq = m->n_seq,
                     .q_start = m->device.q_start,
                     .n_tok = m->n_tok,
                     .width = m->M,
                     .kernel = (int)m->mc->linear_conv_kernel_dim,
                     .x_ld = m->I,
                     .y_ld = m->M,
                     .dt = m->opt.dtype};
}

dt_delta dt_block_delta(const dt_model *m)
{
    const dt_model_config *mc = m->mc;
    return (dt_delta){.n_seq = m->n_seq,
                      .n_k_heads = (int)mc->linear_num_key_heads,
                      .n_v_heads = (int)mc->linear_num_value_heads,
                      .k_dim = (int)mc->linear_key_head_dim,
                      .v_dim = (int)mc->linear_value_head_dim,
                      .q_start = m->device.q_start,
                      .n_tok = m->n_tok,
                      .max_len = m->max_q_len,
                      .x_ld = m->M,
                      .o_ld = m->Z,
                      .dt = m->opt.dtype};
}

static dt_delta_gates gates_of(const dt_model *m) { return (dt_delta_gates){m->n_tok, m->H, m->I, m->opt.dtype}; }

static dt_rmsnorm norm_of(const dt_model *m)
{
    return (dt_rmsnorm){.n_rows = m->n_tok * m->H,
                        .width = m->mc->linear_value_head_dim,
                        .group = m->H,
                        .group_ld = m->Z,
                        .y_group_ld = m->Z,
                        .eps = (float)m->mc->norm_eps,
                        .dt = m->opt.dtype};
}

/* Columns of a row of `in`, and of `mixed`. */
static void *z_in(const dt_model *m, void *in) { return dt_at(in, m->M, m->elem); }
static void *b_in(const dt_model *m, void *in) { return dt_at(in, m->M + m->Z, m->elem); }
static void *a_in(const dt_model *m, void *in) { return dt_at(in, m->M + m->Z + m->H, m->elem); }
static void *k_in(const dt_model *m, void *mixed) { return dt_at(mixed, (m->M - m->Z) / 2, m->elem); }
static void *v_in(const dt_model *m, void *mixed) { return dt_at(mixed, m->M - m->Z, m->elem); }

/* in from the columns of the matmul, in s.grouped; back: the reverse, of the gradients. */
static dt_err regroup(const dt_model *m, void *in, bool back)
{
    const int64_t n = m->mc->linear_num_key_heads, k = m->mc->linear_key_head_dim, v = m->Z / n, h = m->H / n;
    const struct {
        int64_t width, in, grouped, group; /* grouped: column of the first group; group: their distance */
    } parts[] = {{k, 0, 0, 2 * (k + v)},
                 {k, n * k, k, 2 * (k + v)},
                 {v, 2 * n * k, 2 * k, 2 * (k + v)},
                 {v, m->M, 2 * k + v, 2 * (k + v)},
                 {h, m->M + m->Z, m->M + m->Z, 2 * h},
                 {h, m->M + m->Z + m->H, m->M + m->Z + h, 2 * h}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        void *at = dt_at(in, parts[i].in, m->elem), *grouped = dt_at(m->s.grouped, parts[i].grouped, m->elem);
        dt_blocks b = {m->n_tok, n, parts[i].width, m->I, parts[i].group, m->I, parts[i].width, m->opt.dtype};
        if (back) b.x_block = parts[i].width, b.y_block = parts[i].group;
        DT_TRY(m->ops->copy_blocks(m->dev, &b, back ? at : grouped, back ? grouped : at, m->stream));
    }
    return DT_OK;
}

/* ---- states of generation ---------------------------------------------------------------------------------------- */

struct delta_cache dt_delta_cache_at(const dt_model *m, void *cache)
{
    enum { ALIGN = 64 };
    const size_t slots = (size_t)dt_cache_slots(&m->opt),
                 inputs = (size_t)((m->mc->linear_conv_kernel_dim - 1) * m->M) * m->elem,
                 state = (size_t)(m->Z * m->mc->linear_key_head_dim) * sizeof(float),
                 first = (slots * inputs + ALIGN - 1) / ALIGN * ALIGN;
    return (struct delta_cache){cache, cache ? (float *)(void *)((char *)cache + first) : NULL, inputs, state,
                                first + slots * state};
}

/* src -1: zeros. */
static dt_err set_slot(const dt_model *m, char *of, size_t nbytes, int32_t src, int32_t dst)
{
    char *const to = of + (size_t)dst * nbytes;
    return src < 0 ? m->ops->zero(m->dev, to, nbytes, m->stream)
                   : m->ops->copy(m->dev, to, of + (size_t)src * nbytes, nbytes, m->stream);
}

dt_err dt_delta_cache_copy(const dt_model *m, int32_t src, int32_t dst)
{
    for (int64_t i = 0; i < m->mc->num_hidden_layers; i++) {
        if (!dt_model_layer(m->mc, i).linear) continue;
        const struct delta_cache c = dt_delta_cache_at(m, m->cache[i]);
        DT_TRY(set_slot(m, c.inputs, c.inputs_nbytes, src, dst));
        DT_TRY(set_slot(m, (char *)c.state, c.state_nbytes, src, dst));
    }
    return DT_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* mixed from in. */
static dt_err mix_tokens(const dt_model *m, const struct block *b, const dt_param_view *w, const struct delta_acts *a,
                         void *cache)
{
    dt_conv c = conv_of(m);
    if (cache) c.state_row = m->device.slot;
    return m->ops->conv_forward(m->dev, &c, a->in, dt_weight(w, b->conv), a->mixed, dt_delta_cache_at(m, cache).inputs,
                                m->stream);
}

/* normed from out and z. */
static dt_err make_normed(const dt_model *m, const struct block *b, const dt_param_view *w, const struct delta_acts *a)
{
    const dt_rmsnorm n = norm_of(m);
    return m->ops->norm_gate_forward(m->dev, &n, a->out, dt_weight(w, b->delta_norm), z_in(m, a->in), m->I, a->normed,
                                     a->rstd, m->stream);
}

static dt_err apply_rule(const dt_model *m, const struct delta_acts *a, void *cache)
{
    dt_delta d = dt_block_delta(m);
    if (cache) {
        d.state_row = m->device.slot;
        return m->ops->delta_step(m->dev, &d, a->mixed, k_in(m, a->mixed), v_in(m, a->mixed), a->g, a->beta, a->out,
                                  dt_delta_cache_at(m, cache).state, m->stream);
    }
    DT_EXPECT(m->ops->delta_scratch_elems(m->dev, &d, false) <= m->s.delta_elems);
    return m->ops->delta_forward(m->dev, &d, a->mixed, k_in(m, a->mixed), v_in(m, a->mixed), a->g, a->beta, a->out,
                                 NULL, m->s.delta, m->stream);
}

static dt_err mix(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *acts,
                  const void *x, void *cache, const void **inner)
{
    const struct delta_acts *a = &acts->delta;
    const dt_delta_gates gates = gates_of(m);
    *inner = a->normed;
    DT_TRY(dt_slot_forward(m, b, SLOT_DELTA_IN, w, acts, x, m->mc->linear_grouped ? m->s.grouped : a->in));
    if (m->mc->linear_grouped) DT_TRY(regroup(m, a->in, false));
    DT_TRY(mix_tokens(m, b, w, a, cache));
    DT_TRY(m->ops->delta_gates_forward(m->dev, &gates, a_in(m, a->in), b_in(m, a->in), dt_weight(w, b->a_log),
                                       dt_weight(w, b->dt_bias), a->g, a->beta, m->stream));
    DT_TRY(apply_rule(m, a, cache));
    return make_normed(m, b, w, a);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* From the gradient of normed in s.dout: the gradient of in, in s.din, and those of the small weights. */
static dt_err rule_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                            const struct delta_acts *a)
{
    const dt_rmsnorm n = norm_of(m);
    const dt_delta d = dt_block_delta(m);
    const dt_conv c = conv_of(m);
    const dt_delta_gates gates = gates_of(m);
    void *const dmixed = m->s.dmixed, *const din = m->s.din;
    DT_EXPECT(m->ops->delta_scratch_elems(m->dev, &d, true) <= m->s.delta_elems);
    DT_TRY(m->ops->norm_gate_backward(m->dev, &n, a->out, dt_weight(w, b->delta_norm), z_in(m, a->in), m->I, a->rstd,
                                      m->s.dout, m->s.dout, z_in(m, din), dt_gradient(g, b->delta_norm), g->dtype,
                                      g->accumulate, m->s.norm, m->stream));
    DT_TRY(m->ops->delta_backward(m->dev, &d, a->mixed, k_in(m, a->mixed), v_in(m, a->mixed), a->g, a->beta, m->s.dout,
                                  dmixed, k_in(m, dmixed), v_in(m, dmixed), m->s.dg, m->s.dbeta, m->s.delta,
                                  m->stream));
    DT_TRY(m->ops->conv_backward(m->dev, &c, a->in, dt_weight(w, b->conv), dmixed, din, dt_gradient(g, b->conv),
                                 g->dtype, g->accumulate, m->s.norm, m->stream));
    return m->ops->delta_gates_backward(m->dev, &gates, a_in(m, a->in), a->g, a->beta, dt_weight(w, b->a_log),
                                        dt_weight(w, b->dt_bias), m->s.dg, m->s.dbeta, a_in(m, din), b_in(m, din),
                                        dt_gradient(g, b->a_log), dt_gradient(g, b->dt_bias), g->dtype, g->accumulate,
                                        m->s.norm, m->stream);
}

static dt_err mix_backward(const dt_model *m, const struct block *b, int i, const dt_param_view *w,
                           const dt_grad_view *g, const struct block_acts *acts, const void *dy)
{
    const struct delta_acts *a = &acts->delta;
    if (dt_model_remakes(m)) DT_TRY(mix_tokens(m, b, w, a, NULL));
    if (dt_model_remakes(m) && dt_linear_keeps_input(&b->linear[SLOT_DELTA_OUT])) DT_TRY(make_normed(m, b, w, a));
    DT_TRY(dt_slot_backward(m, b, SLOT_DELTA_OUT, w, g, acts, a->normed, dy, m->s.dout));
    DT_TRY(rule_backward(m, b, w, g, a));
    DT_TRY(dt_mixer_remake_input(m, b, i, w, acts));
    if (m->mc->linear_grouped) DT_TRY(regroup(m, m->s.din, true));
    const void *din = m->mc->linear_grouped ? m->s.grouped : m->s.din;
    return dt_slot_backward(m, b, SLOT_DELTA_IN, w, g, acts, dt_mixer_input(b, i, acts), din, m->s.dnorm);
}

const struct mixer dt_delta_mixer = {.reads = 1 << SLOT_DELTA_IN,
                                     .last = SLOT_DELTA_OUT,
                                     .site = SITE_ATTENTION,
                                     .forward = mix,
                                     .backward = mix_backward};
