/* open.c - the memory of a model. One function counts and lays out all buffers. The plan calls it without memory, open
 * with memory, so the two cannot differ. */
#include "vision/vision_private.h"
#include "dtrain/device/device_check.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void *dt_take(struct arena *a, int64_t rows, int64_t width, size_t elem)
{
    size_t n, at = a->used;
    a->overflow = a->overflow || rows < 0 || width < 0 || __builtin_mul_overflow((size_t)rows, (size_t)width, &n) ||
                  __builtin_mul_overflow(n, elem, &n) || n > SIZE_MAX / 2 || a->used > SIZE_MAX / 4;
    if (a->overflow) return NULL;
    a->used += (n + 63) / 64 * 64;
    return a->base ? a->base + at : NULL;
}

/* KEPT: activations that are never borrowed. */
enum { ACTIVATIONS, KEPT, DATA, STAGING, TABLE, N_ARENAS };
static const dt_memcat CATEGORY[N_ARENAS] = {DT_MEM_ACTIVATIONS, DT_MEM_ACTIVATIONS, DT_MEM_DATA, DT_MEM_STAGING,
                                             DT_MEM_OTHER};
static const dt_memspace SPACE[N_ARENAS] = {DT_ON_DEVICE, DT_ON_DEVICE, DT_ON_DEVICE, DT_ON_PINNED, DT_ON_DEVICE};

/* The maximum of a requirement over all blocks and the head, for one site or for any (N_LINEARS). Blocks may differ. */
static int64_t most_of(const dt_model *m, int site, int64_t (*of)(const struct linear *l))
{
    int64_t most = site == N_LINEARS ? of(&m->head) : 0;
    for (int64_t i = 0; i < m->n_stages; i++) {
        const struct block *b = &m->stages[i].block;
        for (int k = 0; k < N_LINEARS; k++)
            if (k == site || site == N_LINEARS) most = dt_max_i64(most, of(&b->linear[k]));
    }
    return most;
}

static int64_t n_in(const struct linear *l) { return l->n_in; }
static int64_t n_out(const struct linear *l) { return l->n_out; }
static int64_t low_r(const struct linear *l) { return l->low_r; }
static int64_t low_n_in(const struct linear *l) { return l->n_low > 0 ? l->n_in : 0; }

/* A tower without blocks still provides one: an empty entry follows the last stage. */
static const struct block *a_block(const dt_model *m)
{
    const struct stage *s = m->stages;
    while (s->role == DT_UNIT_NORM) s++;
    return &s->block;
}

static struct norm_stats place_stats(const dt_model *m, struct arena *a, bool exists)
{
    const int64_t T = exists ? m->opt.max_tok : 0;
    return (struct norm_stats){dt_take(a, T, 1, sizeof(float)), dt_take(a, T, 1, sizeof(float))};
}

/* Everything that takes little memory is kept in any case. */
static void place_experts(const dt_model *m, struct arena *a, struct expert_acts *s)
{
    const int64_t T = m->opt.max_tok, N = T * m->k;
    s->prob = dt_take(a, T, m->E, sizeof(float));
    s->weight = dt_take(a, N, 1, sizeof(float));
    s->expert = dt_take(a, N, 1, sizeof(int32_t));
    s->start = dt_take(a, m->E > 0 ? m->E + 1 : 0, 1, sizeof(int32_t));
    s->row = dt_take(a, N, 1, sizeof(int32_t));
    s->assignment = dt_take(a, N, 1, sizeof(int32_t));
    s->token = dt_take(a, N, 1, sizeof(int32_t));
    s->up = dt_take(a, N, 2 * m->X, m->elem);
}

static void place_delta(const dt_model *m, struct arena *a, struct delta_acts *s)
{
    const int64_t T = m->opt.max_tok;
    s->in = dt_take(a, T, m->I, m->elem);
    s->out = dt_take(a, T, m->Z, m->elem);
    s->rstd = dt_take(a, T, m->H, sizeof(float));
    s->g = dt_take(a, T, m->H, sizeof(float));
    s->beta = dt_take(a, T, m->H, sizeof(float));
}

static void place_latent(const dt_model *m, struct arena *a, struct latent_acts *s)
{
    const int64_t T = m->A > 0 ? m->opt.max_tok : 0;
    s->in = dt_take(a, T, m->A, m->elem);
    s->rstd_q = dt_take(a, T, 1, sizeof(float));
    s->rstd_k = dt_take(a, T, 1, sizeof(float));
}

static void place_expensive(dt_model *m, struct arena *a, struct block_acts *s)
{
    const int64_t T = m->opt.max_tok;
    const size_t e = m->elem, f = sizeof(float);
    s->x_mid = dt_take(a, m->opt.training ? T : 0, m->C, e);
    const size_t from = a->used;
    s->raw = dt_take(a, T, m->W, e);
    if (!dt_model_keeps_raw(m)) s->qk = s->raw;
    s->att = dt_take(a, T, m->O, e);
    s->lse = dt_take(a, m->opt.training ? T : 0, m->mc->num_attention_heads, f);
    s->gate = dt_take(a, m->mc->attn_output_gate ? T : 0, m->Q, e);
    place_latent(m, a, &s->latent);
    const size_t full_end = a->used;
    a->used = from; /* a layer has one kind of attention */
    place_delta(m, a, &s->delta);
    if (full_end > a->used) a->used = full_end;
    s->up = dt_take(a, T, most_of(m, SLOT_UP, n_out), e);
    s->row_gate = dt_take(a, T, most_of(m, SLOT_MLP_GATE, n_out), f);
    place_experts(m, a, &s->experts);
    for (int i = 0; i < N_BRANCHES; i++) {
        const struct branch *of = &a_block(m)->branch[i];
        s->branch[i].pre = place_stats(m, a, dt_exists(of->pre.w));
        s->branch[i].post = place_stats(m, a, dt_exists(of->post.w));
        s->branch[i].out = dt_take(a, m->opt.training && dt_exists(of->post.w) ? T : 0, m->C, e);
    }
    for (int i = 0; i < N_LINEARS; i++) s->low[i] = dt_take(a, T, most_of(m, i, low_r), e);
}

static void place_cheap(dt_model *m, struct arena *a, struct block_acts *s)
{
    const int64_t T = m->opt.max_tok;
    const size_t e = m->elem, f = sizeof(float);
    for (int i = 0; i < N_BRANCHES; i++)
        s->branch[i].norm = dt_take(a, dt_exists(a_block(m)->branch[i].pre.w) ? T : 0, m->C, e);
    s->act = dt_take(a, T, most_of(m, SLOT_DOWN, n_in), e);
    s->experts.act = dt_take(a, T * m->k, m->X, e);
    s->delta.mixed = dt_take(a, T, m->M, e);
    s->delta.normed = dt_take(a, T, m->Z, e);
    s->latent.q = dt_take(a, T, m->mc->q_lora_rank, e);
    s->latent.kv = dt_take(a, T, m->mc->kv_lora_rank, e);
    if (!m->mc->qk_norm) return;
    if (dt_model_keeps_raw(m)) s->qk = dt_take(a, T, m->W, e);
    s->rstd_q = dt_take(a, T, m->mc->num_attention_heads, f);
    s->rstd_k = dt_take(a, T, m->mc->num_key_value_heads, f);
}

/* Lay out set i of the kept activations. Recomputed activations exist once, in the first set. */
static void place_set(dt_model *m, struct arena *a, int64_t i)
{
    if (i > 0 && dt_model_remakes(m))
        m->sets[i] = m->sets[0];
    else
        place_cheap(m, a, &m->sets[i]);
    place_expensive(m, a, &m->sets[i]);
}

/* Buffers that are not needed at the same time overlap: the two halves of a block's backward, and block and head work
 * (place_work). */
static void place_block_work(dt_model *m, struct arena *a)
{
    const int64_t T = m->opt.max_tok;
    const size_t e = m->elem;
    dt_attention at = dt_block_attention(m, a_block(m), NULL); /* for the largest batch */
    at.dropout_p = (float)m->mc->attn_pdrop;
    at.window = 0;
    at.batch_invariant = false; /* backward is not batch-invariant */
    at.by_library = m->opt.library_attention;
    m->s.attention_elems = m->ops->attention_scratch_elems(m->dev, &at);
    m->s.dnorm = dt_take(a, T, m->C, e);
    const size_t from = a->used;
    m->s.dact = dt_take(a, T, most_of(m, SLOT_DOWN, n_in), e);
    m->s.dgate = dt_take(a, T, most_of(m, SLOT_MLP_GATE, n_out), e);
    m->s.drows = dt_take(a, T * m->k, m->X, e);
    m->s.dweight = dt_take(a, T * m->k, 1, sizeof(float));
    m->s.dlogits = dt_take(a, T, m->E, e);
    const size_t mlp_end = a->used;
    a->used = from;
    m->s.datt = dt_take(a, T, m->O, e);
    m->s.dqkv = dt_take(a, T, m->W, e);
    m->s.dlatent = dt_take(a, T, m->A, e);
    m->s.dlatent_q = dt_take(a, T, m->mc->q_lora_rank, e);
    m->s.dlatent_kv = dt_take(a, T, m->mc->kv_lora_rank, e);
    m->s.attention = dt_take(a, m->s.attention_elems, 1, sizeof(float));
    const size_t full_end = mlp_end > a->used ? mlp_end : a->used;
    a->used = from;
    m->s.dout = dt_take(a, T, m->Z, e);
    m->s.dmixed = dt_take(a, T, m->M, e);
    m->s.din = dt_take(a, T, m->I, e);
    m->s.dg = dt_take(a, T, m->H, sizeof(float));
    m->s.dbeta = dt_take(a, T, m->H, sizeof(float));
    if (full_end > a->used) a->used = full_end;
}

/* Does a kernel add the residual of branches, instead of their last matmul? */
static bool adds_apart(const dt_model *m)
{
    bool post = false;
    for (int i = 0; i < N_BRANCHES; i++) post = post || dt_exists(a_block(m)->branch[i].post.w);
    return post || m->mc->residual_multiplier != 1 || (m->opt.training && m->mc->resid_pdrop > 0);
}

/* Would gradients of the head, accumulated over chunks, be rounded after each chunk? */
static bool chunked_sums(const dt_model *m)
{
    return m->opt.training && m->opt.grad_dtype != DT_F32 && m->h.n_rows < m->opt.max_tok;
}

/* A tied table's gradient is the sum of the head's and the embedding's. All blocks' backward runs between the two. */
static void place_tied_sums(dt_model *m, struct arena *a)
{
    const bool wanted = dt_has_tied_grads(m) && m->opt.training && m->opt.grad_dtype != DT_F32;
    m->h.sums.tied = wanted ? dt_take(a, m->V, m->C, sizeof(float)) : NULL;
}

static void place_head(dt_model *m, struct arena *a)
{
    struct head_work *h = &m->h;
    const int64_t own = m->units[m->head_unit].flat_len[DT_TRAINED];
    h->logits_ld = (m->V + 31) / 32 * 32;
    h->n_rows = m->ops->classifier_rows(m->dev, h->logits_ld, m->opt.max_tok);
    h->x = dt_take(a, h->n_rows, m->C, m->elem);
    h->y = dt_take(a, h->n_rows, m->C, m->elem);
    h->dy = dt_take(a, m->opt.training ? h->n_rows : 0, m->C, m->elem);
    h->mean = dt_take(a, h->n_rows, 1, sizeof(float));
    h->rstd = dt_take(a, h->n_rows, 1, sizeof(float));
    h->logits = dt_take(a, h->n_rows, h->logits_ld, sizeof(float));
    h->low = dt_take(a, h->n_rows, m->head.low_r, m->elem);
    h->sums.own = own > 0 && chunked_sums(m) ? dt_take(a, own, 1, sizeof(float)) : NULL;
}

static void place_value_head(dt_model *m, struct arena *a)
{
    struct value_work *v = &m->v;
    const int64_t T = m->opt.max_tok;
    v->y = dt_take(a, T, m->C, m->elem);
    v->dy = dt_take(a, m->opt.training ? T : 0, m->C, m->elem);
    v->mean = dt_take(a, T, 1, sizeof(float));
    v->rstd = dt_take(a, T, 1, sizeof(float));
    v->dvalue = m->opt.training && m->opt.dtype != DT_F32 ? dt_take(a, T, m->n_labels, m->elem) : NULL;
}

/* Buffers of table adapters, kept from forward to backward. */
static void place_tables(dt_model *m, struct arena *a)
{
    for (int t = 0; t < N_LOW_TABLES; t++) {
        const int64_t r = m->low_table[t].low.r;
        m->s.table_h[t] = dt_take(a, m->opt.max_tok, r, m->elem);
        m->s.table_b[t] = dt_take(a, m->opt.training ? m->C : 0, r, m->elem);
    }
}

/* Work space of linear and latent attention, and of attention with a gate, in forward, too. */
static void place_mixers(dt_model *m, struct arena *a)
{
    const int64_t gated = m->mc->attn_output_gate ? m->opt.max_tok : 0;
    const dt_delta d = dt_block_delta(m); /* for the largest batch */
    m->s.delta_elems = m->H > 0 ? m->ops->delta_scratch_elems(m->dev, &d, m->opt.training) : 0;
    m->s.wide = dt_take(a, gated, 2 * m->Q + 2 * m->K, m->elem);
    m->s.gated = dt_take(a, gated, m->Q, m->elem);
    m->s.delta = dt_take(a, m->s.delta_elems, 1, sizeof(float));
    m->s.latent_kv = dt_take(a, m->A > 0 ? m->opt.max_tok : 0, dt_family_size(m->mc, SIZE_LKV), m->elem);
}

/* Floats of scratch of linear attention's gradients of weights. */
static int64_t delta_sums(const dt_model *m)
{
    const dt_conv c = {.width = m->M, .kernel = (int)m->mc->linear_conv_kernel_dim};
    if (m->H == 0) return 0;
    return dt_max_i64(m->ops->conv_scratch_elems(m->dev, &c),
                      m->ops->norm_scratch_elems(m->dev, dt_max_i64(m->H, m->mc->linear_value_head_dim)));
}

static void place_work(dt_model *m, struct arena *a, struct arena *kept)
{
    int64_t r = most_of(m, N_LINEARS, low_r);
    for (int t = 0; t < N_LOW_TABLES; t++) r = dt_max_i64(r, m->low_table[t].low.r);
    place_tables(m, a);
    m->stage_norm = place_stats(m, a, m->has_norm_stage);
    if (m->opt.training) {
        const int64_t latent = dt_max_i64(m->mc->q_lora_rank, m->mc->kv_lora_rank),
                      widest = dt_max_i64(dt_max_i64(m->C, m->mc->qk_norm_whole ? m->Q : latent),
                                          m->mc->vision ? m->mc->vision->projector.hidden_size : 0),
                      norm = dt_max_i64(dt_max_i64(m->ops->norm_scratch_elems(m->dev, widest), delta_sums(m)),
                                        m->ops->norm_scratch_elems(m->dev, m->mc->head_dim));
        m->s.dx = dt_take(a, m->opt.max_tok, m->C, m->elem);
        m->s.norm = dt_take(a, norm, 1, sizeof(float));
        m->s.low_x =
            dt_take(a, m->opt.adapter_dropout > 0 ? m->opt.max_tok : 0, most_of(m, N_LINEARS, low_n_in), m->elem);
        m->s.low_d = dt_take(a, m->opt.max_tok, r, m->elem);
    }
    place_tied_sums(m, a);
    const size_t from = a->used;
    m->s.drop = dt_take(a, adds_apart(m) ? m->opt.max_tok : 0, m->C, m->elem);
    m->s.rows = dt_take(a, m->opt.max_tok * m->k, m->C, m->elem);
    place_mixers(m, a);
    if (m->opt.training) place_block_work(m, a);
    const size_t block_end = a->used;
    a->used = from;
    if (m->head_unit >= 0) (m->n_labels > 0 ? place_value_head : place_head)(m, m->opt.keeps_hidden ? kept : a);
    if (block_end > a->used) a->used = block_end;
}

size_t dt_model_place_tokens(const dt_model *m, char *base, int64_t n_tok, int64_t n_seq, struct tokens *t)
{
    struct arena a = {.base = base};
    t->token_key = dt_take(&a, n_tok, 1, sizeof(uint64_t));
    t->token = dt_take(&a, n_tok, 1, sizeof(int32_t));
    t->pos = dt_take(&a, n_tok, 1, sizeof(int32_t));
    t->order = dt_take(&a, n_tok, 1, sizeof(int32_t));
    const int64_t n_shown = m->opt.max_images > 0 && m->mc->vision ? n_tok : 0;
    t->shown_at = dt_take(&a, n_shown, 1, sizeof(int32_t));
    t->shown = dt_take(&a, n_shown, 1, sizeof(int32_t));
    t->shown_order = dt_take(&a, n_shown, 1, sizeof(int32_t));
    t->pos_order = dt_take(&a, m->mc->learned_positions ? n_tok : 0, 1, sizeof(int32_t));
    for (int k = 0; k < N_LOW_TABLES; k++) {
        const int64_t r = m->low_table[k].low.r;
        t->low_at[k] = dt_take(&a, n_tok, r, sizeof(int32_t));
        t->low_order[k] = dt_take(&a, m->opt.training ? n_tok : 0, r, sizeof(int32_t));
    }
    t->cache_row = dt_take(&a, m->opt.cache_seqs > 0 ? n_tok : 0, 1, sizeof(int32_t));
    t->shared_start = dt_take(&a, m->opt.cache_prompts > 0 ? n_seq : 0, 1, sizeof(int32_t));
    t->shared_len = dt_take(&a, m->opt.cache_prompts > 0 ? n_seq : 0, 1, sizeof(int32_t));
    t->slot = dt_take(&a, m->opt.cache_seqs > 0 && m->H > 0 ? n_seq : 0, 1, sizeof(int32_t));
    t->q_start = dt_take(&a, n_seq + 1, 1, sizeof(int32_t));
    t->kv_start = dt_take(&a, n_seq, 1, sizeof(int32_t));
    t->kv_len = dt_take(&a, n_seq, 1, sizeof(int32_t));
    return a.used;
}

/* Allocate only if the model was opened for it. */
static float *take_if(bool wanted, struct arena *a, int64_t rows)
{
    return wanted ? dt_take(a, rows, 1, sizeof(float)) : NULL;
}

size_t dt_model_place_rows(const dt_model *m, char *base, int64_t n_tok, struct rows *r)
{
    const bool drops = m->opt.training && m->opt.adapter_dropout > 0 && m->head.n_low > 0;
    struct arena a = {.base = base};
    r->token_key = drops ? dt_take(&a, n_tok, 1, sizeof *r->token_key) : NULL;
    r->row = dt_take(&a, n_tok, 1, sizeof(int32_t));
    r->target = dt_take(&a, n_tok, 1, sizeof(int32_t));
    r->weight = dt_take(&a, n_tok, 1, sizeof(float));
    r->entropy_weight = take_if(m->opt.head & DT_HEAD_ENTROPY_WEIGHT, &a, n_tok);
    r->kl_weight = take_if(m->opt.head & DT_HEAD_DIVERGENCE, &a, n_tok);
    return a.used;
}

static void place_results(const dt_model *m, struct arena *a, struct results *r)
{
    r->real[RESULT_LOGP] = dt_take(a, m->opt.max_tok, 1, sizeof(float));
    r->real[RESULT_ENTROPY] = dt_take(a, m->opt.max_tok, 1, sizeof(float));
    r->real[RESULT_SUM_SQUARES] = take_if(m->opt.head & DT_HEAD_SUM_SQUARES, a, m->opt.max_tok);
    r->real[RESULT_MEAN_LOGIT] = take_if(m->opt.head & DT_HEAD_MEAN_LOGIT, a, m->opt.max_tok);
    r->real[RESULT_KL] = take_if(m->opt.head & DT_HEAD_DIVERGENCE, a, m->opt.max_tok);
    r->hit = dt_take(a, m->opt.max_tok, 1, sizeof(uint8_t));
}

static void place_draws(const dt_model *m, struct arena *a, struct draws *d)
{
    const int64_t n = m->cache ? m->opt.cache_seqs : 0;
    d->seen_ld = (m->V + 31) / 32;
    d->uniform = dt_take(a, n, 1, sizeof(double));
    d->logp = dt_take(a, n, 1, sizeof(double));
    d->seen = dt_take(a, n, d->seen_ld, sizeof(uint32_t));
    d->allowed = dt_take(a, n, d->seen_ld, sizeof(uint32_t));
    d->token = dt_take(a, n, 1, sizeof(int32_t));
    d->list_start = dt_take(a, m->opt.max_listed > 0 ? n : 0, 1, sizeof(int32_t));
    d->list_len = dt_take(a, m->opt.max_listed > 0 ? n : 0, 1, sizeof(int32_t));
    d->unseen = dt_take(a, m->opt.max_top > 0 ? n : 0, d->seen_ld, sizeof(uint32_t));
    d->top_token = dt_take(a, 2 * n, m->opt.max_top, sizeof(int32_t));
    d->top_logit = dt_take(a, 2 * n, m->opt.max_top, sizeof(float));
    d->top_logp = dt_take(a, 2 * n, m->opt.max_top, sizeof(double));
}

struct span dt_take_span(struct arena *host, struct arena *device, size_t nbytes)
{
    return (struct span){.host = dt_take(host, 1, (int64_t)nbytes, 1),
                         .device = dt_take(device, 1, (int64_t)nbytes, 1),
                         .nbytes = nbytes};
}

/* The longest side of an image, in the positions of this model. */
static int64_t longest_side(const dt_model *m)
{
    if (m->mc->rope_axes == 0) return 0;
    return m->opt.max_images * (m->opt.tower ? m->opt.tower->n_side : 1);
}

/* Staging buffers on host and device: the largest batch's tokens, rows and results. */
static void place_staging(dt_model *m, struct arena *host, struct arena *device)
{
    struct tokens largest;
    struct rows most;
    m->tokens_span =
        dt_take_span(host, device, dt_model_place_tokens(m, NULL, m->opt.max_tok, m->opt.max_seq, &largest));
    m->rows_span = dt_take_span(host, device, dt_model_place_rows(m, NULL, m->opt.max_tok, &most));
    const size_t at_host = host->used, at_device = device->used;
    place_results(m, host, &m->host_results);
    place_results(m, device, &m->device_results);
    m->results_span = (struct span){.host = host->base ? host->base + at_host : NULL,
                                    .device = device->base ? device->base + at_device : NULL,
                                    .nbytes = device->used - at_device};
    place_draws(m, host, &m->host_draws);
    place_draws(m, device, &m->device_draws);
    const dt_token_rows drawn = {.n_rows = m->opt.cache_seqs, .n_vocab = m->V, .logits_ld = m->V};
    m->draw_scratch = dt_take(device, m->cache ? (int64_t)m->ops->draw_scratch_nbytes(m->dev, &drawn) : 0, 1, 1);
    m->listed = dt_take(device, m->opt.max_listed, 1, sizeof(int32_t));
    m->values_span = dt_take_span(host, device, (size_t)(m->opt.max_tok * m->n_labels) * sizeof(float));
    dt_balance_place(m, host, device);
    m->v.host = (float *)(void *)m->values_span.host;
    m->v.device = (float *)(void *)m->values_span.device;
    m->dynamic.host = dt_take(host, m->dynamic.max_rows, m->mc->head_dim, sizeof(float));
    m->dynamic.axis = dt_take(host, longest_side(m), m->mc->head_dim, sizeof(float));
    m->pos_count = dt_take(host, m->mc->learned_positions ? m->opt.max_pos + 1 : 0, 1, sizeof(int32_t));
}

/* Buffers that outlast a pass: activations for backward, or the KV cache. They overlap, because they are never needed
 * at the same time. */
static void place_kept(dt_model *m, struct arena *a)
{
    const size_t from = a->used;
    for (int64_t i = 1; i < m->n_x; i++) m->x[i] = dt_take(a, m->opt.max_tok, m->C, m->elem);
    for (int64_t i = 1; i < m->n_sets; i++) place_set(m, a, i);
    const size_t backward_end = a->used;
    a->used = from > m->tower_nbytes ? from : m->tower_nbytes; /* the tower runs while the cache holds data */
    for (int64_t i = 0; m->cache && i < m->mc->num_hidden_layers; i++)
        m->cache[i] = dt_model_layer(m->mc, i).linear ? dt_take(a, (int64_t)dt_delta_cache_at(m, NULL).nbytes, 1, 1)
                                                      : dt_take(a, dt_cache_rows(&m->opt), m->K + m->Y, m->elem);
    if (backward_end > a->used) a->used = backward_end;
}

/* Buffers of a tower. */
static void place_patches(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct tower_input *k = &m->patches;
    struct arena *a = &arenas[ACTIVATIONS], *data = &arenas[DATA];
    const int64_t T = m->opt.max_tok, N = m->opt.max_images, kept = dt_exists(k->pre.w) ? T : 0;
    k->rows = dt_take(a, T, k->conv.n_in, m->elem);
    k->x = dt_take(a, kept, m->C, m->elem);
    k->mean = dt_take(a, kept, 1, sizeof(float));
    k->rstd = dt_take(a, kept, 1, sizeof(float));
    k->class_row = dt_take(a, dt_exists(k->token) ? N : 0, m->C, m->elem);
    k->class_at = dt_take(data, 3 * N, 1, sizeof(int32_t));
    k->zero = k->class_at ? k->class_at + N : NULL;
    k->in_order = k->class_at ? k->zero + N : NULL;
    k->pixels = dt_take_span(&arenas[STAGING], data, (size_t)N * k->image_nbytes);
    const bool grids = k->config->grids;
    struct grid_arrays none;
    k->frames = dt_take(a, grids && k->config->n_frames > 1 ? T : 0, k->conv.n_in, m->elem);
    k->arrays = dt_take_span(&arenas[STAGING], data, grids ? dt_grids_place_arrays(m, NULL, N, &none) : 0);
    k->tap_end = dt_take(&arenas[STAGING], grids ? m->V + 1 : 0, 1, sizeof(int32_t));
}

static void place_all(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct arena *a = &arenas[ACTIVATIONS];
    const int64_t base_rows = m->dynamic.base_rows, width = dt_model_rotary_dim(m->mc),
                  rope_rows = base_rows + m->dynamic.max_rows + m->dynamic.long_rows;
    place_staging(m, &arenas[STAGING], &arenas[DATA]);
    m->x[0] = dt_take(a, m->opt.max_tok, m->C, m->elem);
    place_set(m, a, 0);
    place_work(m, a, &arenas[KEPT]);
    if (m->opt.tower) place_patches(m, arenas);
    m->kept_hidden = m->opt.keeps_hidden ? dt_take(&arenas[KEPT], m->opt.max_tok, m->C, m->elem) : NULL;
    place_kept(m, a);
    if (m->opt.lend_nbytes > a->used) a->used = m->opt.lend_nbytes;
    m->rope = dt_take(&arenas[TABLE], rope_rows, width, sizeof(float));
    if (rope_rows == 0) m->rope = NULL;
    const bool local = m->mc->rope_local_theta > 0 && m->mc->sliding_window > 0;
    m->rope_local = local ? dt_take(&arenas[TABLE], base_rows, width, sizeof(float)) : NULL;
    m->rope_q = m->mc->q_scaling_beta > 0 ? dt_take(&arenas[TABLE], base_rows, width, sizeof(float)) : NULL;
}

static dt_err check_cache(const dt_model_options *o)
{
    DT_EXPECT(o->cache_seqs >= 0 && o->cache_len >= 0 && o->cache_prompts >= 0 && o->cache_prompt_len >= 0);
    DT_EXPECT(dt_cache_rows(o) <= INT32_MAX);
    DT_EXPECT(o->cache_prompts == 0 || o->batch_invariant);
    return DT_OK;
}

static dt_err check_options(const dt_model_config *mc, const dt_model_options *o)
{
    DT_EXPECT(o->max_tok > 0 && o->max_seq > 0 && o->max_pos > 0);
    DT_TRY(check_cache(o));
    DT_EXPECT(o->max_top >= 0 && o->max_top <= mc->vocab_size);
    DT_CHECK(o->max_tok <= INT32_MAX / dt_max_i64(mc->num_experts_per_tok, 1), DT_ERR_USAGE,
             "%d tokens of a micro-batch use %" PRId64 " experts each: expected at most 2^31 rows; lower "
             "batch.micro_batch_size or data.seq_len",
             o->max_tok, mc->num_experts_per_tok);
    DT_EXPECT(o->max_listed >= 0);
    DT_EXPECT(!o->borrows || (!o->training && o->lend_nbytes == 0));
    DT_EXPECT(dt_is_float(o->dtype));
    DT_EXPECT(o->grad_dtype == o->dtype || o->grad_dtype == DT_F32);
    DT_CHECK(!mc->learned_positions || o->max_pos <= mc->max_position_embeddings, DT_ERR_DATA,
             "sequences may have %d tokens, but the model has learned positions only for %" PRId64
             " (max_position_embeddings)",
             o->max_pos, mc->max_position_embeddings);
    return DT_OK;
}

/* Small host arrays. Their sizes depend on what is trained: stages below the first trained one keep nothing for
 * backward. */
static dt_err make_tables(dt_model *m)
{
    const int64_t L = m->mc->num_hidden_layers;
    const bool cached = m->opt.cache_seqs > 0 && m->opt.cache_len > 0;
    DT_EXPECT(!cached || (m->n_stages == L && m->n_labels == 0));
    m->x = calloc((size_t)m->n_x, sizeof *m->x);
    m->sets = calloc((size_t)m->n_sets, sizeof *m->sets);
    m->cache = cached ? calloc((size_t)L, sizeof *m->cache) : NULL;
    m->cached = cached ? calloc((size_t)dt_cache_slots(&m->opt), sizeof *m->cached) : NULL;
    DT_CHECK(m->x && m->sets && (!cached || (m->cache && m->cached)), DT_ERR_MEMORY,
             "out of memory for the tables of %" PRId64 " blocks", L);
    return dt_dynamic_rope_open(m);
}

static dt_err find_tensors(dt_model *m)
{
    m->stages = calloc((size_t)m->n_units + 1, sizeof *m->stages);
    DT_CHECK(m->stages, DT_ERR_MEMORY, "out of memory for the tables of %d units", m->n_units);
    return dt_model_find_tensors(m);
}

/* Common to plan and open, before the layout. */
static dt_err prepare(dt_model *m, const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                      int n_units, const dt_device *dev)
{
    DT_TRY(check_options(mc, opt));
    m->mc = mc;
    m->units = units;
    m->n_units = dt_vision_first_unit(units, n_units);
    for (int u = m->n_units; u < n_units; u++)
        m->placeholders_learn = m->placeholders_learn || units[u].flat_len[DT_TRAINED] > 0;
    m->opt = *opt;
    m->dev = (dt_device *)dev;
    m->ops = dev->ops;
    m->elem = dt_dtype_size(opt->dtype);
    m->C = mc->hidden_size;
    m->Q = mc->num_attention_heads * mc->head_dim;
    m->K = mc->num_key_value_heads * mc->head_dim;
    m->O = mc->num_attention_heads * dt_model_v_dim(mc);
    m->Y = mc->num_key_value_heads * dt_model_v_dim(mc);
    m->W = m->Q + m->K + m->Y;
    if (mc->kv_lora_rank > 0) m->A = dt_family_size(mc, SIZE_LKR) + (mc->q_compressed ? mc->q_lora_rank : m->Q);
    m->V = mc->vocab_size;
    if (dt_model_n_linear(mc) > 0) {
        m->H = dt_family_size(mc, SIZE_H), m->Z = dt_family_size(mc, SIZE_Z), m->M = dt_family_size(mc, SIZE_M);
        m->I = m->M + m->Z + 2 * m->H;
    }
    m->E = mc->num_experts, m->X = mc->moe_intermediate_size, m->k = mc->num_experts_per_tok;
    m->n_tok = opt->max_tok;
    m->n_seq = opt->max_seq;
    m->max_q_len = m->max_kv_len = dt_model_longest(m);
    m->set_holds = -1;
    dt_dynamic_rope_size(m);
    DT_TRY(find_tensors(m));
    DT_TRY(make_tables(m));
    return m->n_units < n_units ? dt_vision_size(m, units, n_units, m->n_units, &m->tower_nbytes) : DT_OK;
}

static void free_tables(dt_model *m)
{
    dt_dynamic_rope_close(m);
    free(m->stages);
    free(m->x);
    free(m->sets);
    free(m->cache);
    free(m->cached);
    m->stages = NULL;
    m->x = NULL;
    m->sets = NULL;
    m->cache = NULL;
    m->cached = NULL;
}

static dt_err count(dt_model *m, struct arena arenas[N_ARENAS])
{
    bool overflow = false;
    place_all(m, arenas);
    for (int i = 0; i < N_ARENAS; i++) overflow = overflow || arenas[i].overflow;
    DT_CHECK(!overflow, DT_ERR_MEMORY,
             "activations of %d tokens exceed the address space; lower batch.micro_batch_size or data.seq_len",
             m->opt.max_tok);
    return DT_OK;
}

size_t dt_model_cache_nbytes(const dt_model_config *mc, const dt_model_options *opt)
{
    const int64_t n_linear = dt_model_n_linear(mc), n_rows = dt_cache_rows(opt) * (mc->num_hidden_layers - n_linear),
                  inputs = (mc->linear_conv_kernel_dim - 1) * dt_family_size(mc, SIZE_M),
                  state = dt_family_size(mc, SIZE_Z) * mc->linear_key_head_dim;
    const size_t keys = (size_t)(n_rows * mc->num_key_value_heads * (mc->head_dim + dt_model_v_dim(mc))) *
                        dt_dtype_size(opt->dtype),
                 slot = (size_t)inputs * dt_dtype_size(opt->dtype) + (size_t)state * sizeof(float);
    return keys + (n_linear > 0 ? (size_t)n_linear * (size_t)dt_cache_slots(opt) * slot : 0);
}

dt_err dt_model_plan(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units, int n_units,
                     const dt_device *dev, dt_memory *plan)
{
    dt_model m = {0};
    struct arena arenas[N_ARENAS] = {{0}};
    *plan = (dt_memory){0};
    dt_err err = prepare(&m, mc, opt, units, n_units, dev);
    if (err == DT_OK) err = count(&m, arenas);
    for (int i = 0; err == DT_OK && i < N_ARENAS; i++)
        if (i != ACTIVATIONS || !opt->borrows) plan->at[CATEGORY[i]][SPACE[i]] += arenas[i].used;
    if (err == DT_OK && m.n_units < n_units) err = dt_vision_plan(&m, units, n_units, m.n_units, plan);
    free_tables(&m);
    return err;
}

/* Find a block with full attention. Blocks of one model differ in window and in scale; the scale is irrelevant here. */
static bool find_whole_attention(dt_model *m, dt_attention *at)
{
    const int32_t len = m->max_q_len;
    m->n_seq = m->opt.max_tok / len;
    m->n_tok = m->n_seq * len;
    m->train = m->opt.training;
    for (int64_t i = 0; i < m->n_stages; i++) {
        if (m->stages[i].role != DT_UNIT_BLOCK) continue;
        const struct block *b = &m->stages[i].block;
        *at = dt_block_attention(m, b, NULL);
        if (dt_exists(b->sinks)) at->sinks = b; /* arrays are ignored */
        at->by_library = true;
        if (at->window == 0 || at->window >= len) return true;
    }
    return false;
}

static dt_err refuse_library(const char *why)
{
    return dt_fail(DT_ERR_USAGE,
                   "cuDNN cannot compute this model's attention: %s; set model.attention = flash, dtrain's own kernels",
                   why);
}

/* Can the library compute this attention? */
static dt_err check_attention(dt_model *m, dt_attention *at)
{
    char text[128];
    if (!find_whole_attention(m, at)) return refuse_library("all blocks have a sliding window");
    const char *why = dt_attention_obstacle(at);
    if (why) return refuse_library(why);
    snprintf(text, sizeof text, "the device %s has no such library", m->ops->name);
    return m->ops->attention_prepare ? DT_OK : refuse_library(text);
}

static dt_err prepare_attention(dt_model *m)
{
    static const char *const DIRECTION[] = {"nothing", "forward only", "backward only"};
    dt_attention at;
    int ready = 0;
    char why[512] = "";
    DT_TRY(check_attention(m, &at));
    DT_TRY(m->ops->attention_prepare(m->dev, &at, m->opt.training, &ready, why, sizeof why));
    if (!ready) return refuse_library(why);
    if (m->opt.training && ready != (DT_READY_FORWARD | DT_READY_BACKWARD))
        DT_WARN("cuDNN computes attention %s: %s", DIRECTION[ready], why);
    return DT_OK;
}

dt_err dt_model_check_attention(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                                int n_units, const dt_device *dev)
{
    dt_model m = {0};
    dt_attention at;
    dt_err err = prepare(&m, mc, opt, units, n_units, dev);
    if (err == DT_OK) err = check_attention(&m, &at);
    free_tables(&m);
    return err;
}

dt_err dt_model_prepare_attention(const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                                  int n_units, dt_device *dev)
{
    dt_model m = {0};
    dt_err err = prepare(&m, mc, opt, units, n_units, dev);
    if (err == DT_OK) err = prepare_attention(&m);
    free_tables(&m);
    return err;
}

/* The models must share one stream: work of one completes before work of the other begins. */
static dt_err check_lender(const dt_model *m, size_t nbytes)
{
    const dt_model *lender = m->opt.lender;
    DT_EXPECT(lender && lender->dev == m->dev && lender->stream == m->stream && !lender->opt.borrows);
    DT_EXPECT(nbytes <= lender->activations.nbytes);
    return DT_OK;
}

static dt_err allocate(dt_model *m)
{
    dt_buf *const bufs[N_ARENAS] = {&m->activations, &m->kept, &m->data, &m->staging, &m->table};
    struct arena arenas[N_ARENAS] = {{0}};
    DT_TRY(count(m, arenas));
    if (m->opt.borrows) DT_TRY(check_lender(m, arenas[ACTIVATIONS].used));
    for (int i = 0; i < N_ARENAS; i++) {
        const bool borrowed = i == ACTIVATIONS && m->opt.borrows;
        if (!borrowed) DT_TRY(dt_buf_alloc(bufs[i], m->dev, SPACE[i], arenas[i].used, CATEGORY[i]));
        arenas[i] = (struct arena){.base = borrowed ? m->opt.lender->activations.ptr : bufs[i]->ptr};
    }
    place_all(m, arenas);
    DT_TRY(m->ops->event_create(m->dev, &m->tokens_span.moved));
    DT_TRY(m->ops->event_create(m->dev, &m->rows_span.moved));
    DT_TRY(m->ops->event_create(m->dev, &m->values_span.moved));
    if (dt_balances(m)) DT_TRY(m->ops->event_create(m->dev, &m->load_span.moved));
    if (dt_balances(m)) DT_TRY(m->ops->event_create(m->dev, &m->dprob_span.moved));
    return m->ops->event_create(m->dev, &m->results_span.moved);
}

/* Copies blocks of rows, so that host memory does not grow with the length. */
static dt_err fill_rope(dt_model *m, const dt_model_config *rule, bool of_q, float *table, int64_t n_rows)
{
    enum { PIECE = 64 };
    if (!table) return DT_OK;
    const int64_t width = dt_model_rotary_dim(m->mc);
    const size_t row_nbytes = (size_t)width * sizeof(float);
    float *piece = malloc(PIECE * row_nbytes);
    DT_CHECK(piece, DT_ERR_MEMORY, "out of memory for %d rows of a rotary table", PIECE);
    dt_err err = DT_OK;
    for (int64_t first = 0; first < n_rows && err == DT_OK; first += PIECE) {
        const int64_t n = dt_min_i64(PIECE, n_rows - first);
        dt_model_rope_rows(rule, of_q, n_rows, first, n, piece);
        err = m->ops->copy(m->dev, table + first * width, piece, (size_t)n * row_nbytes, m->stream);
        if (err == DT_OK) err = m->ops->stream_sync(m->dev, m->stream);
    }
    free(piece);
    return err;
}

static dt_err fill_ropes(dt_model *m)
{
    dt_model_config local = *m->mc;
    local.rope_type = DT_ROPE_DEFAULT;
    local.rope_theta = local.rope_local_theta;
    const int64_t base_rows = m->dynamic.base_rows;
    DT_TRY(fill_rope(m, m->mc, false, m->rope, base_rows));
    if (m->dynamic.long_rows > 0)
        DT_TRY(fill_rope(m, m->mc, false, m->rope + base_rows * dt_model_rotary_dim(m->mc), m->dynamic.long_rows));
    DT_TRY(fill_rope(m, m->mc, true, m->rope_q, base_rows));
    return fill_rope(m, &local, false, m->rope_local, base_rows);
}

/* Fill the index lists for class tokens. */
static dt_err fill_patches(dt_model *m)
{
    const struct tower_input *k = &m->patches;
    const int32_t N = m->opt.max_images;
    if (!m->opt.tower) return DT_OK;
    int32_t *list = malloc(3 * (size_t)N * sizeof *list);
    DT_CHECK(list, DT_ERR_MEMORY, "out of memory for the offsets of %d class tokens", N);
    for (int32_t i = 0; i < N; i++) list[i] = (int32_t)(i * k->n_rows), list[N + i] = 0, list[2 * N + i] = i;
    const dt_err err = m->ops->copy(m->dev, k->class_at, list, 3 * (size_t)N * sizeof *list, m->stream),
                 waited = m->ops->stream_sync(m->dev, m->stream);
    free(list);
    return err != DT_OK ? err : waited;
}

dt_err dt_model_open(dt_model **out, const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                     int n_units, dt_device *dev, const dt_param_source *source, dt_stream *compute, dt_phase *phase)
{
    dt_model *m = calloc(1, sizeof *m);
    *out = NULL;
    DT_CHECK(m, DT_ERR_MEMORY, "out of memory for a model");
    m->source = source;
    m->stream = compute;
    m->phase = phase;
    m->in_use = opt->borrows && opt->lender ? opt->lender->in_use : &m->user;
    dt_err err = prepare(m, mc, opt, units, n_units, dev);
    if (err == DT_OK) err = allocate(m);
    if (err == DT_OK) err = fill_ropes(m);
    if (err == DT_OK) err = fill_patches(m);
    if (err == DT_OK) err = dt_graphs_open(m);
    if (err == DT_OK && m->n_units < n_units) err = dt_vision_open(m, units, n_units, m->n_units);
    m->n_tok = m->n_seq = 0;
    if (err == DT_OK)
        *out = m;
    else
        dt_model_close(m);
    return err;
}

void dt_model_close(dt_model *m)
{
    if (!m) return;
    dt_event *const events[] = {m->tokens_span.moved, m->rows_span.moved, m->results_span.moved,
                                m->values_span.moved, m->load_span.moved, m->dprob_span.moved};
    if (m->staging.ptr) (void)dt_model_sync(m); /* queued work may still use the buffers */
    dt_vision_close(m);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i]) m->ops->event_destroy(m->dev, events[i]);
    dt_graphs_close(m);
    if (m->in_use && dt_model_in_use(m)) *m->in_use = NULL;
    dt_buf_free(&m->activations);
    dt_buf_free(&m->kept);
    dt_buf_free(&m->data);
    dt_buf_free(&m->staging);
    dt_buf_free(&m->table);
    free_tables(m);
    free(m);
}
