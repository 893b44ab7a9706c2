/* open.c - opens a model: checks its options, finds its tensors, allocates its buffers, and fills its tables. Also the
 * plan of its memory. */
#include "divide.h"
#include "vision/vision_private.h"
#include "dtrain/comm/comm.h"
#include "dtrain/device/device_check.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const dt_memcat CATEGORY[N_ARENAS] = {DT_MEM_ACTIVATIONS, DT_MEM_ACTIVATIONS, DT_MEM_DATA, DT_MEM_STAGING,
                                             DT_MEM_OTHER};
static const dt_memspace SPACE[N_ARENAS] = {DT_ON_DEVICE, DT_ON_DEVICE, DT_ON_DEVICE, DT_ON_PINNED, DT_ON_DEVICE};

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
    DT_EXPECT(o->max_known >= 0 && o->max_known <= mc->vocab_size);
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
    m->parts = calloc((size_t)m->n_units + 1, sizeof *m->parts);
    DT_CHECK(m->stages && m->parts, DT_ERR_MEMORY, "out of memory for the tables of %d units", m->n_units);
    return dt_model_find_tensors(m);
}

/* Common to plan and open, before the layout. */
static dt_err prepare(dt_model *m, const dt_model_config *mc, const dt_model_options *opt, const dt_unit *units,
                      int n_units, const dt_device *dev)
{
    DT_TRY(check_options(mc, opt));
    m->opt = *opt;
    dt_divide_config(m, mc);
    mc = m->mc;
    m->units = units;
    m->n_units = dt_vision_first_unit(units, n_units);
    for (int u = m->n_units; u < n_units; u++)
        m->placeholders_learn = m->placeholders_learn || units[u].flat_len[DT_TRAINED] > 0;
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
    if (opt->mesh) m->opt.max_tok = (int32_t)dt_ceil_div(opt->max_tok, dt_mesh_n_tokens(opt->mesh));
    m->n_tok = m->opt.max_tok;
    m->n_seq = opt->max_seq;
    m->max_q_len = dt_model_longest(m);
    m->max_kv_len = (int32_t)dt_min_i64(opt->max_pos, opt->max_tok);
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
    free(m->parts);
    free(m->x);
    free(m->sets);
    free(m->cache);
    free(m->cached);
}

static dt_err count(dt_model *m, struct arena arenas[N_ARENAS])
{
    bool overflow = false;
    dt_model_place(m, arenas);
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
        if (i != IN_ACTIVATIONS || !opt->borrows) plan->at[CATEGORY[i]][SPACE[i]] += arenas[i].used;
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
    if (m->opt.borrows) DT_TRY(check_lender(m, arenas[IN_ACTIVATIONS].used));
    for (int i = 0; i < N_ARENAS; i++) {
        const bool borrowed = i == IN_ACTIVATIONS && m->opt.borrows;
        if (!borrowed) DT_TRY(dt_buf_alloc(bufs[i], m->dev, SPACE[i], arenas[i].used, CATEGORY[i]));
        arenas[i] = (struct arena){.base = borrowed ? m->opt.lender->activations.ptr : bufs[i]->ptr};
    }
    dt_model_place(m, arenas);
    DT_TRY(m->ops->event_create(m->dev, &m->tokens_span.moved));
    DT_TRY(m->ops->event_create(m->dev, &m->rows_span.moved));
    DT_TRY(m->ops->event_create(m->dev, &m->values_span.moved));
    if (dt_balances(m)) DT_TRY(m->ops->event_create(m->dev, &m->load_span.moved));
    if (dt_balances(m)) DT_TRY(m->ops->event_create(m->dev, &m->dload_span.moved));
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
                                m->values_span.moved, m->load_span.moved, m->dload_span.moved};
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
