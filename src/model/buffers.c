/* buffers.c - the buffers of a model. One function lays out all of them. The plan calls it without memory, and open.c
 * with memory, so the two cannot differ. */
#include "divide.h"
#include "magnitude.h"
#include "vision/vision_private.h"

void *dt_take(struct arena *a, int64_t rows, int64_t width, size_t elem)
{
    size_t n, at = a->used;
    a->overflow = a->overflow || rows < 0 || width < 0 || __builtin_mul_overflow((size_t)rows, (size_t)width, &n) ||
                  __builtin_mul_overflow(n, elem, &n) || n > SIZE_MAX / 2 || a->used > SIZE_MAX / 4;
    if (a->overflow) return NULL;
    a->used += (n + 63) / 64 * 64;
    return a->base ? a->base + at : NULL;
}

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
/* Elements of h per token, of all adapters of a layer. */
static int64_t low_r(const struct linear *l) { return l->low_r * l->n_rows; }
static int64_t scaled_n_out(const struct linear *l) { return l->scaled ? l->n_out : 0; }
static int64_t low_n_in(const struct linear *l) { return l->n_low > 0 ? l->n_in : 0; }

/* A tower without blocks still provides one: an empty entry follows the last stage. */
static const struct block *a_block(const dt_model *m)
{
    const struct stage *s = m->stages;
    while (s->role == DT_UNIT_NORM) s++;
    return &s->block;
}

struct norm_stats dt_take_stats(struct arena *a, int64_t rows)
{
    float *const mean = dt_take(a, rows, 1, sizeof *mean);
    return (struct norm_stats){mean, dt_take(a, rows, 1, sizeof(float))};
}

/* Everything that takes little memory is kept in any case. */
static void place_experts(const dt_model *m, struct arena *a, struct expert_acts *s)
{
    const int64_t T = m->opt.max_tok, N = T * m->k;
    s->prob = dt_take(a, T, m->E, sizeof(float));
    s->lse = dt_take(a, dt_squares(m) ? T : 0, 2, sizeof(float));
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
        s->branch[i].pre = dt_take_stats(a, dt_exists(of->pre.w) ? T : 0);
        s->branch[i].post = dt_take_stats(a, dt_exists(of->post.w) ? T : 0);
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
    dt_attention_place_backward(m, a);
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
    return post || dt_is_divided(m) || m->has_magnitudes || m->mc->residual_multiplier != 1 ||
           (m->opt.training && m->mc->resid_pdrop > 0);
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
    h->stats = dt_take_stats(a, h->n_rows);
    h->logits = dt_take(a, h->n_rows, h->logits_ld, sizeof(float));
    h->filled = dt_take(a, m->opt.max_known > 0 ? h->n_rows : 0, h->logits_ld, sizeof(float));
    h->low = dt_take(a, h->n_rows, m->head.low_r, m->elem);
    h->sums.own = own > 0 && chunked_sums(m) ? dt_take(a, own, 1, sizeof(float)) : NULL;
}

static void place_value_head(dt_model *m, struct arena *a)
{
    struct value_work *v = &m->v;
    const int64_t T = m->opt.max_tok;
    v->y = dt_take(a, T, m->C, m->elem);
    v->dy = dt_take(a, m->opt.training ? T : 0, m->C, m->elem);
    v->stats = dt_take_stats(a, T);
    v->dvalue = m->opt.training && m->opt.dtype != DT_F32 ? dt_take(a, T, m->n_labels, m->elem) : NULL;
}

void dt_low_work_place(const dt_model *m, struct arena *a, int64_t n_rows, int64_t widest, struct low_work *work)
{
    const int64_t R = m->opt.training ? n_rows : 0;
    work->factor = dt_take(a, widest, 1, sizeof(float));
    work->inverse = dt_take(a, widest, 1, sizeof(float));
    work->y = dt_take(a, R, widest, m->elem);
    work->ones = dt_take(a, widest > 0 ? R : 0, 1, sizeof(float));
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

/* Work space of attention, linear and latent attention in forward. */
static void place_mixers(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct arena *a = &arenas[IN_ACTIVATIONS];
    const dt_delta d = dt_block_delta(m); /* for the largest batch */
    m->s.delta_elems = m->H > 0 ? m->ops->delta_scratch_elems(m->dev, &d, m->opt.training) : 0;
    m->s.grouped = dt_take(a, m->mc->linear_grouped ? m->opt.max_tok : 0, m->I, m->elem);
    dt_attention_place(m, arenas);
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

static void place_work(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct arena *a = &arenas[IN_ACTIVATIONS], *kept = &arenas[IN_KEPT];
    int64_t r = most_of(m, N_LINEARS, low_r);
    const int64_t scaled = most_of(m, N_LINEARS, scaled_n_out);
    for (int t = 0; t < N_LOW_TABLES; t++) r = dt_max_i64(r, m->low_table[t].low.r);
    place_tables(m, a);
    m->stage_norm = dt_take_stats(a, m->has_norm_stage ? m->opt.max_tok : 0);
    if (m->opt.training) {
        const int64_t latent = dt_max_i64(m->mc->q_lora_rank, m->mc->kv_lora_rank),
                      of_vision = m->mc->vision
                                      ? dt_max_i64(m->mc->vision->projector.hidden_size, m->mc->vision->projector.n_in)
                                      : 0,
                      widest = dt_max_i64(dt_max_i64(m->C, m->mc->qk_norm_whole ? m->Q : latent), of_vision),
                      norm = dt_max_i64(
                          dt_max_i64(m->ops->norm_scratch_elems(m->dev, dt_max_i64(widest, scaled)), delta_sums(m)),
                          m->ops->norm_scratch_elems(m->dev, m->mc->head_dim));
        m->s.dx = dt_take(a, m->opt.max_tok, m->C, m->elem);
        m->s.norm = dt_take(a, norm, 1, sizeof(float));
        m->s.low.x =
            dt_take(a, m->opt.adapter_dropout > 0 ? m->opt.max_tok : 0, most_of(m, N_LINEARS, low_n_in), m->elem);
        m->s.low.d = dt_take(a, m->opt.max_tok, r, m->elem);
    }
    dt_low_work_place(m, a, m->opt.max_tok, scaled, &m->s.low);
    place_tied_sums(m, a);
    const size_t from = a->used;
    m->s.drop = dt_take(a, adds_apart(m) ? m->opt.max_tok : 0, m->C, m->elem);
    m->s.rows = dt_take(a, m->opt.max_tok * m->k, m->C, m->elem);
    place_mixers(m, arenas);
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
    t->noise = dt_take(&a, m->opt.neftune_alpha > 0 ? n_tok : 0, 1, sizeof(float));
    const int64_t n_shown = m->opt.max_images > 0 && m->mc->vision ? n_tok : 0;
    t->shown_at = dt_take(&a, n_shown, 1, sizeof(int32_t));
    t->shown = dt_take(&a, n_shown, 1, sizeof(int32_t));
    t->shown_order = dt_take(&a, n_shown, 1, sizeof(int32_t));
    t->ahead = dt_take(&a, n_shown > 0 && m->mc->vision->both_ways ? n_tok : 0, 1, sizeof(int32_t));
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
    r->known_token = dt_take(&a, m->opt.max_known > 0 ? n_tok : 0, m->opt.max_known, sizeof(int32_t));
    r->known_logp = dt_take(&a, m->opt.max_known > 0 ? n_tok : 0, m->opt.max_known, sizeof(float));
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
    const int64_t n_tops = m->opt.training ? 0 : (int64_t)m->opt.max_tok * m->opt.max_known;
    m->tops_span = dt_take_span(host, device, (size_t)n_tops * (sizeof(double) + sizeof(int32_t)));
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
    struct arena *a = &arenas[IN_ACTIVATIONS], *data = &arenas[IN_DATA];
    const int64_t T = m->opt.max_tok, N = m->opt.max_images, kept = dt_exists(k->pre.w) ? T : 0;
    k->rows = dt_take(a, T, k->conv.n_in, m->elem);
    k->x = dt_take(a, kept, m->C, m->elem);
    k->stats = dt_take_stats(a, kept);
    k->class_row = dt_take(a, dt_exists(k->token) ? N : 0, m->C, m->elem);
    k->class_at = dt_take(data, 3 * N, 1, sizeof(int32_t));
    k->zero = k->class_at ? k->class_at + N : NULL;
    k->in_order = k->class_at ? k->zero + N : NULL;
    k->pixels = dt_take_span(&arenas[IN_STAGING], data, (size_t)N * k->image_nbytes);
    const bool grids = k->config->grids;
    struct grid_arrays none;
    k->frames = dt_take(a, grids && k->config->n_frames > 1 ? T : 0, k->conv.n_in, m->elem);
    k->arrays = dt_take_span(&arenas[IN_STAGING], data, grids ? dt_grids_place_arrays(m, NULL, N, &none) : 0);
    k->tap_end = dt_take(&arenas[IN_STAGING], grids ? m->V + 1 : 0, 1, sizeof(int32_t));
}

void dt_model_place(dt_model *m, struct arena arenas[N_ARENAS])
{
    struct arena *a = &arenas[IN_ACTIVATIONS];
    const int64_t base_rows = m->dynamic.base_rows, width = dt_model_rotary_dim(m->mc),
                  rope_rows = base_rows + m->dynamic.max_rows + m->dynamic.long_rows;
    place_staging(m, &arenas[IN_STAGING], &arenas[IN_DATA]);
    m->x[0] = dt_take(a, m->opt.max_tok, m->C, m->elem);
    place_set(m, a, 0);
    place_work(m, arenas);
    if (m->opt.tower) place_patches(m, arenas);
    m->kept_hidden = m->opt.keeps_hidden ? dt_take(&arenas[IN_KEPT], m->opt.max_tok, m->C, m->elem) : NULL;
    place_kept(m, a);
    if (m->opt.lend_nbytes > a->used) a->used = m->opt.lend_nbytes;
    m->rope = dt_take(&arenas[IN_TABLE], rope_rows, width, sizeof(float));
    if (rope_rows == 0) m->rope = NULL;
    const bool local = m->mc->rope_local_theta > 0 && m->mc->sliding_window > 0;
    m->rope_local = local ? dt_take(&arenas[IN_TABLE], base_rows, width, sizeof(float)) : NULL;
    m->rope_q = m->mc->q_scaling_beta > 0 ? dt_take(&arenas[IN_TABLE], base_rows, width, sizeof(float)) : NULL;
}
