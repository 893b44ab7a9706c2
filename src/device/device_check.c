/* device_check.c - checks of operation descriptions, and trial matmuls of libraries: see device_check.h. */
#include "dtrain/device/device_check.h"
#include "dtrain/device/nf4.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- matmuls ------------------------------------------------------------------------------------------------ */

static dt_err check_shape(const dt_matmul *mm)
{
    DT_CHECK(mm->m >= 0 && mm->n >= 0 && mm->k >= 0 && mm->lda >= (mm->trans_a ? mm->m : mm->k) &&
                 mm->ldb >= (mm->trans_b ? mm->k : mm->n) && mm->ldc >= mm->n,
             DT_ERR_ARG,
             "internal: matmul: sizes or strides are invalid: C[%" PRId64 ",%" PRId64 "], k = %" PRId64
             ", %s lda = %" PRId64 ", %s ldb = %" PRId64 ", ldc = %" PRId64,
             mm->m, mm->n, mm->k, mm->trans_a ? "transposed" : "plain", mm->lda, mm->trans_b ? "transposed" : "plain",
             mm->ldb, mm->ldc);
    DT_CHECK(mm->c_dtype == mm->dt || mm->c_dtype == DT_F32, DT_ERR_ARG,
             "internal: matmul: c_dtype %s does not match dt %s, and is not fp32", dt_dtype_name(mm->c_dtype),
             dt_dtype_name(mm->dt));
    DT_CHECK(!mm->trans_a || (!mm->trans_b && !mm->batch_invariant), DT_ERR_ARG,
             "internal: matmul: %s is not supported with trans_a", mm->trans_b ? "trans_b" : "batch_invariant");
    return DT_OK;
}

static dt_err check_addend(const dt_matmul *mm)
{
    DT_CHECK(!mm->addend ||
                 (!mm->accumulate && mm->ldd >= mm->n && (mm->addend_dtype == mm->dt || mm->addend_dtype == DT_F32)),
             DT_ERR_ARG,
             "internal: matmul: an addend of type %s with ldd = %" PRId64 " is invalid for C[%" PRId64 ",%" PRId64
             "] of %s%s",
             dt_dtype_name(mm->addend_dtype), mm->ldd, mm->m, mm->n, dt_dtype_name(mm->dt),
             mm->accumulate ? " with accumulate" : "");
    return DT_OK;
}

static dt_err check_epilogue(const dt_matmul *mm)
{
    const bool act = mm->epilogue != DT_EPILOGUE_NONE;
    DT_CHECK(!act || mm->c_dtype == mm->dt, DT_ERR_ARG,
             "internal: matmul: an activation in %s needs C in the same type, found %s", dt_dtype_name(mm->dt),
             dt_dtype_name(mm->c_dtype));
    DT_CHECK(!act || (mm->aux ? mm->ld_aux >= mm->n : mm->epilogue == DT_EPILOGUE_ACT), DT_ERR_ARG,
             "internal: matmul: %s: ld_aux = %" PRId64 " for %" PRId64 " columns",
             mm->aux ? "aux" : "the input of the activation is missing", mm->ld_aux, mm->n);
    DT_CHECK(mm->sums_of == DT_SUMS_NONE || mm->sums, DT_ERR_ARG,
             "internal: matmul: sums is NULL, but sums_of requests sums");
    return DT_OK;
}

static dt_err check_scales(const dt_matmul *mm)
{
    const dt_scaled *b = &mm->b_scaled;
    DT_CHECK(mm->a_scaled.how == DT_SCALE_NONE, DT_ERR_ARG,
             "internal: matmul: a_scaled is set: expected scales only for B");
    if (b->how == DT_SCALE_NONE) return DT_OK;
    DT_CHECK(b->stored == (b->how == DT_SCALE_NF4 ? DT_NF4X2 : DT_I8) && b->scale &&
                 (b->blocks || b->how != DT_SCALE_NF4),
             DT_ERR_ARG,
             "internal: matmul: b_scaled is stored as %s %s scales%s: expected int8 with scales, or nf4 with scales of "
             "blocks",
             dt_dtype_name(b->stored), b->scale ? "with" : "without",
             b->how != DT_SCALE_NF4 ? ""
             : b->blocks            ? " of blocks"
                                    : " only of groups");
    DT_CHECK(!mm->trans_a && mm->sums_of != DT_SUMS_OF_B, DT_ERR_ARG,
             "internal: matmul: b_scaled is not supported if %s",
             mm->trans_a ? "A is transposed" : "sums of B are requested");
    return DT_OK;
}

static dt_err check_groups(const dt_matmul *mm)
{
    DT_CHECK(mm->n_groups == 0 || (mm->n_groups > 0 && mm->group_start && mm->group_stride >= 0 &&
                                   mm->sums_of == DT_SUMS_NONE && (!mm->trans_a || (!mm->addend && !mm->bias))),
             DT_ERR_ARG, "internal: matmul: %d groups%s%s%s", mm->n_groups,
             mm->group_start ? "" : " without their rows", mm->sums_of != DT_SUMS_NONE ? " with sums" : "",
             mm->trans_a && (mm->addend || mm->bias) ? " with A transposed and an addend or a bias" : "");
    return DT_OK;
}

dt_matmul dt_matmul_group(const dt_matmul *mm, int g, const void **a, const void **b, void **c)
{
    dt_matmul part = *mm;
    const int64_t first = mm->group_start[g], n = mm->group_start[g + 1] - first, own = g * mm->group_stride;
    const size_t ab = dt_dtype_size(mm->dt), cc = dt_dtype_size(mm->c_dtype);
    part.n_groups = 0;
    *a = (const char *)*a + (size_t)(first * mm->lda) * ab;
    if (mm->trans_a) {
        part.k = n;
        *b = (const char *)*b + (size_t)(first * mm->ldb) * ab;
        *c = (char *)*c + (size_t)own * cc;
        return part;
    }
    part.m = n;
    if (mm->bias) part.bias = (const char *)mm->bias + (size_t)(g * mm->n) * ab;
    *c = (char *)*c + (size_t)(first * mm->ldc) * cc;
    if (mm->addend)
        part.addend = (const char *)mm->addend + (size_t)(first * mm->ldd) * dt_dtype_size(mm->addend_dtype);
    if (mm->aux) part.aux = (char *)mm->aux + (size_t)(first * mm->ld_aux) * ab;
    dt_scaled *s = &part.b_scaled;
    if (s->how == DT_SCALE_NONE) *b = (const char *)*b + (size_t)own * ab;
    if (s->how == DT_SCALE_MATRIX || s->how == DT_SCALE_ROWS) *b = (const char *)*b + own;
    if (s->how == DT_SCALE_ROWS) s->scale += g * (mm->trans_b ? mm->n : mm->k);
    if (s->how == DT_SCALE_NF4) {
        *b = (const char *)*b + own / 2;
        s->blocks += own / DT_NF4_BLOCK;
        s->scale += 2 * (own / DT_NF4_BLOCK >> dt_nf4_shift(s->finer));
    }
    return part;
}

dt_err dt_routing_check(const dt_routing *r)
{
    DT_CHECK(r->n_tok >= 0 && r->k > 0 && r->k <= r->n_experts && r->n_experts <= DT_MAX_EXPERTS, DT_ERR_ARG,
             "internal: route: %" PRId64 " tokens, %d of %d experts", r->n_tok, r->k, r->n_experts);
    const int32_t size = r->n_groups > 1 ? r->n_experts / r->n_groups : r->n_experts;
    DT_CHECK(r->n_groups <= 1 || (r->n_groups <= DT_MAX_GROUPS && size * r->n_groups == r->n_experts &&
                                  r->k_groups >= 1 && r->k_groups <= r->n_groups && r->k <= r->k_groups * size &&
                                  r->group_best >= 1 && r->group_best <= size),
             DT_ERR_ARG, "internal: route: %d of %d experts, the %d best of %d groups by %d", r->k, r->n_experts,
             r->k_groups, r->n_groups, r->group_best);
    return DT_OK;
}

dt_err dt_matmul_check(const dt_matmul *mm)
{
    DT_TRY(check_groups(mm));
    DT_TRY(check_shape(mm));
    DT_TRY(check_addend(mm));
    DT_TRY(check_scales(mm));
    return check_epilogue(mm);
}

/* ---- other operations -------------------------------------------------------------------------------------------- */

dt_err dt_convert_check(const void *src, dt_dtype src_dt, const void *dst, dt_dtype dst_dt, int64_t n)
{
    DT_CHECK(src != dst || src_dt == dst_dt || n == 0, DT_ERR_ARG,
             "internal: convert: cannot convert in place from %s to %s", dt_dtype_name(src_dt), dt_dtype_name(dst_dt));
    return DT_OK;
}

dt_err dt_dropout_check(float p)
{
    DT_CHECK(p >= 0 && p < 1, DT_ERR_ARG, "internal: dropout: expected p in [0, 1), found %g", (double)p);
    return DT_OK;
}

dt_err dt_patches_check(const dt_patches *p)
{
    DT_CHECK(p->n_images >= 0 && p->patch > 0 && p->patch <= p->size && p->size <= DT_MAX_IMAGE_SIZE &&
                 (p->lead == 0 || p->lead == 1),
             DT_ERR_ARG,
             "internal: patches: invalid sizes: %" PRId64 " images of %" PRId64
             " pixels per side (at most %d), patches of %" PRId64 ", %d leading rows (0 or 1)",
             p->n_images, p->size, DT_MAX_IMAGE_SIZE, p->patch, p->lead);
    return DT_OK;
}

dt_err dt_heads_check(const dt_heads *h, bool has_v)
{
    const int64_t d = h->head_dim, q = h->n_heads * d, kv = h->n_kv_heads * d;
    DT_CHECK(h->n_tok >= 0 && h->n_heads > 0 && h->n_kv_heads > 0 && d > 0 && d <= DT_ATTENTION_MAX_HEAD_DIM &&
                 h->x_ld >= q + (has_v ? 2 : 1) * kv && h->q_ld >= q && h->kv_ld >= kv,
             DT_ERR_ARG,
             "internal: heads: invalid sizes: %d and %d heads of %d (1 to %d), row strides %" PRId64 " %" PRId64
             " %" PRId64,
             h->n_heads, h->n_kv_heads, h->head_dim, DT_ATTENTION_MAX_HEAD_DIM, h->x_ld, h->q_ld, h->kv_ld);
    const int rotary = dt_heads_rotary_dim(h);
    DT_CHECK(!h->cos_sin || (rotary > 0 && rotary <= d && rotary % 2 == 0 && h->pos), DT_ERR_ARG,
             "internal: heads: rotation needs an even rotary_dim of at most head_dim, and pos, found %d of %d%s",
             rotary, h->head_dim, h->pos ? "" : " and no pos");
    DT_CHECK(!h->q_cos_sin || h->cos_sin, DT_ERR_ARG, "internal: heads: a table for q only");
    DT_CHECK(!h->q_norm == !h->k_norm, DT_ERR_ARG, "internal: heads: only %s has a norm: expected both or none",
             h->q_norm ? "q" : "k");
    return DT_OK;
}

dt_err dt_latent_check(const dt_latent *l)
{
    const int64_t H = l->n_heads, N = l->nope_dim, R = l->rope_dim, V = l->v_dim, larger = V > N + R ? V : N + R;
    DT_CHECK(l->n_tok >= 0 && H > 0 && N > 0 && V > 0 && R > 0 && R <= DT_ATTENTION_MAX_HEAD_DIM && R % 2 == 0 &&
                 l->xq_ld >= H * (N + R) && l->xkv_ld >= H * (N + V) && l->xr_ld >= R && l->q_ld >= H * (N + R) &&
                 l->kv_ld >= H * larger && (l->n_tok == 0 || (l->pos && l->cos_sin)),
             DT_ERR_ARG,
             "internal: latent: invalid sizes: %d heads of %d, %d (even, 2 to %d) and %d, row strides %" PRId64
             " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "%s",
             l->n_heads, l->nope_dim, l->rope_dim, DT_ATTENTION_MAX_HEAD_DIM, l->v_dim, l->xq_ld, l->xkv_ld, l->xr_ld,
             l->q_ld, l->kv_ld, l->pos && l->cos_sin ? "" : ", no positions");
    return DT_OK;
}

dt_err dt_attention_check(const dt_attention *at)
{
    DT_CHECK(at->n_seq >= 0 && at->head_dim > 0 && at->head_dim <= DT_ATTENTION_MAX_HEAD_DIM && at->scale > 0,
             DT_ERR_ARG, "internal: attention: invalid sizes: %d sequences, head_dim %d (1 to %d), scale %g", at->n_seq,
             at->head_dim, DT_ATTENTION_MAX_HEAD_DIM, (double)at->scale);
    DT_CHECK(at->n_kv_heads > 0 && at->n_heads % at->n_kv_heads == 0, DT_ERR_ARG,
             "internal: attention: n_heads %d is not a multiple of n_kv_heads %d", at->n_heads, at->n_kv_heads);
    const int64_t v = dt_attention_v_dim(at), larger = v > at->head_dim ? v : at->head_dim;
    DT_CHECK(v > 0 && v <= DT_ATTENTION_MAX_HEAD_DIM, DT_ERR_ARG,
             "internal: attention: invalid size: v_head_dim %" PRId64 " (1 to %d)", v, DT_ATTENTION_MAX_HEAD_DIM);
    DT_CHECK(at->q_ld >= (int64_t)at->n_heads * at->head_dim && at->o_ld >= at->n_heads * v &&
                 at->kv_ld >= at->n_kv_heads * larger,
             DT_ERR_ARG,
             "internal: attention: rows of %d x %d (v %" PRId64 ") exceed the row strides %" PRId64 " %" PRId64
             " %" PRId64,
             at->n_heads, at->head_dim, v, at->q_ld, at->kv_ld, at->o_ld);
    DT_CHECK(at->softcap >= 0 && isfinite(at->softcap), DT_ERR_ARG,
             "internal: attention: softcap %g is not 0 (none) or above 0", (double)at->softcap);
    DT_CHECK(!at->dsinks || at->sinks, DT_ERR_ARG, "internal: attention: dsinks is set, but sinks is NULL");
    DT_CHECK(!at->bidirectional || at->window == 0, DT_ERR_ARG,
             "internal: attention: bidirectional is not supported with a window (%d)", at->window);
    DT_CHECK(at->block >= 0 && (at->block <= 1 || (at->window == 0 && !at->bidirectional)), DT_ERR_ARG,
             "internal: attention: blocks of %d are not supported with a window (%d) or bidirectional", at->block,
             at->window);
    DT_CHECK(!at->ahead || (at->max_ahead >= 0 && at->block <= 1 && !at->bidirectional), DT_ERR_ARG,
             "internal: attention: ahead is not supported with blocks of %d, bidirectional, or max_ahead %d", at->block,
             at->max_ahead);
    DT_CHECK(!at->shared_len || (at->shared_start && at->batch_invariant), DT_ERR_ARG,
             "internal: attention: shared_len is set, but %s",
             at->batch_invariant ? "shared_start is NULL" : "batch_invariant is false");
    DT_CHECK(at->dropout_p >= 0 && at->dropout_p < 1 && (at->dropout_p == 0 || at->token_key), DT_ERR_ARG,
             "internal: attention: dropout_p %g is out of range [0, 1)%s", (double)at->dropout_p,
             at->token_key ? "" : ", or token_key is missing");
    return DT_OK;
}

const char *dt_attention_obstacle(const dt_attention *at)
{
    if (at->dt != DT_BF16 && at->dt != DT_F16) return "it supports only bf16 and fp16";
    if (at->dropout_p > 0) return "it is used here without attention dropout";
    if (at->softcap > 0) return "it is used here without soft-capping of scores";
    if (at->block > 1 || at->ahead) return "it is used here without a block mask";
    if (dt_attention_v_dim(at) != at->head_dim) return "it is used here for values as wide as keys";
    if (at->sinks) return "it is used here without attention sinks";
    if (at->window > 0 && at->window < at->max_kv_len) return "it is used here without a sliding window";
    if (at->batch_invariant) return "it is not batch-invariant";
    if (at->head_dim % 8 != 0 || at->head_dim > 128) return "it supports only head sizes of 8, 16 ... 128";
    if (at->n_seq <= 0 || at->max_q_len != at->max_kv_len || (int64_t)at->n_seq * at->max_q_len != at->n_tok)
        return "it supports only sequences of one length";
    if ((at->q_ld | at->kv_ld | at->o_ld) % 8 != 0 || (int64_t)at->n_tok * at->n_heads % 4 != 0)
        return "it needs rows that begin at multiples of 16 bytes";
    return NULL;
}

dt_err dt_classifier_check(const dt_classifier *cl)
{
    DT_CHECK(cl->n_vocab > 0 && cl->logits_ld >= cl->n_vocab && cl->inv_temperature > 0, DT_ERR_ARG,
             "internal: classifier: invalid sizes: n_vocab %" PRId64 ", logits_ld %" PRId64 ", inv_temperature %g",
             cl->n_vocab, cl->logits_ld, (double)cl->inv_temperature);
    DT_CHECK(cl->label_smoothing >= 0 && cl->label_smoothing < 1 && cl->z_loss >= 0, DT_ERR_ARG,
             "internal: classifier: label_smoothing %g or z_loss %g is out of range", (double)cl->label_smoothing,
             (double)cl->z_loss);
    DT_CHECK(cl->softcap >= 0 && isfinite(cl->softcap), DT_ERR_ARG,
             "internal: classifier: softcap %g is not 0 (none) or above 0", (double)cl->softcap);
    DT_CHECK(cl->kl_mix >= 0 && cl->kl_mix <= (cl->log_sum_squares ? 0 : 1), DT_ERR_ARG,
             "internal: classifier: kl_mix %g is not from 0 to 1, or above 0 with log_sum_squares", (double)cl->kl_mix);
    DT_CHECK(cl->ref_logits ? cl->ref_ld >= cl->n_vocab : !cl->kl && !cl->kl_weight, DT_ERR_ARG,
             "internal: classifier: the divergence has %s",
             cl->ref_logits ? "a ref_ld below n_vocab" : "no ref_logits");
    return DT_OK;
}

dt_err dt_fill_rest_check(const dt_token_rows *rows, float inv_temperature, int64_t k)
{
    DT_TRY(dt_token_rows_check(rows));
    DT_CHECK(inv_temperature > 0 && k > 0 && k <= rows->n_vocab, DT_ERR_ARG,
             "internal: fill_rest: expected inv_temperature above 0 and k from 1 to the vocabulary size, found %g and "
             "%" PRId64 " of %" PRId64,
             (double)inv_temperature, k, rows->n_vocab);
    return DT_OK;
}

dt_err dt_softcap_check(float cap, int64_t n_rows, int64_t width, int64_t ld)
{
    DT_CHECK(cap > 0 && isfinite(cap) && n_rows >= 0 && width > 0 && ld >= width, DT_ERR_ARG,
             "internal: softcap: expected a cap above 0 and rows within their distance, found cap %g, %" PRId64
             " rows of %" PRId64 ", distance %" PRId64,
             (double)cap, n_rows, width, ld);
    return DT_OK;
}

dt_err dt_token_rows_check(const dt_token_rows *rows)
{
    const int64_t words = (rows->n_vocab + 31) / 32;
    DT_CHECK(rows->n_rows >= 0 && rows->n_vocab > 0 && rows->n_vocab <= INT32_MAX && rows->logits_ld >= rows->n_vocab,
             DT_ERR_ARG, "internal: tokens: invalid sizes: n_rows %" PRId64 ", n_vocab %" PRId64 ", logits_ld %" PRId64,
             rows->n_rows, rows->n_vocab, rows->logits_ld);
    DT_CHECK(!rows->allowed || rows->allowed_ld == 0 || rows->allowed_ld >= words, DT_ERR_ARG,
             "internal: tokens: allowed_ld %" PRId64 " is too small for %" PRId64 " tokens", rows->allowed_ld,
             rows->n_vocab);
    DT_CHECK(!rows->seen || rows->seen_ld == 0 || rows->seen_ld >= words, DT_ERR_ARG,
             "internal: tokens: seen_ld %" PRId64 " is too small for %" PRId64 " tokens", rows->seen_ld, rows->n_vocab);
    DT_CHECK(!rows->list || (rows->list_start && rows->list_len), DT_ERR_ARG,
             "internal: tokens: list has no list_start or list_len");
    return DT_OK;
}

dt_err dt_choice_check(const dt_token_rows *rows, const dt_choice *how)
{
    DT_TRY(dt_token_rows_check(rows));
    DT_CHECK(!rows->seen || how->repetition_penalty > 0, DT_ERR_ARG,
             "internal: draw_tokens: expected repetition_penalty above 0, found %g", how->repetition_penalty);
    DT_CHECK(how->greedy || (how->temperature > 0 && isfinite(1 / how->temperature) && how->top_k >= 0 &&
                             how->top_p > 0 && how->min_p >= 0),
             DT_ERR_ARG,
             "internal: draw_tokens: invalid sampling parameters: temperature %g, top_k %" PRId64
             ", top_p %g, min_p %g",
             how->temperature, how->top_k, how->top_p, how->min_p);
    return DT_OK;
}

dt_err dt_rmsnorm_check(const dt_rmsnorm *n)
{
    const int64_t least = n->group * n->width;
    DT_CHECK(n->n_rows >= 0 && n->width > 0 && n->group > 0 && n->n_rows % n->group == 0 && n->group_ld >= least &&
                 n->y_group_ld >= least,
             DT_ERR_ARG,
             "internal: norm: invalid sizes: %" PRId64 " rows of %" PRId64 " in groups of %" PRId64
             ", group strides %" PRId64 " and %" PRId64,
             n->n_rows, n->width, n->group, n->group_ld, n->y_group_ld);
    return DT_OK;
}

dt_err dt_row_lengths_check(const dt_row_lengths *d)
{
    DT_CHECK(d->n_out >= 0 && d->n_in > 0 && d->r > 0 && d->first >= 0 &&
                 d->w_ld >= (d->in_first ? d->first + d->n_out : d->n_in) &&
                 (d->w_scaled.how == DT_SCALE_NONE || !d->in_first),
             DT_ERR_ARG,
             "internal: magnitude_factors: invalid sizes: %" PRId64 " rows of %" PRId64 " starting at row %" PRId64
             ", stride %" PRId64 ", rank %" PRId64 "%s",
             d->n_out, d->n_in, d->first, d->w_ld, d->r, d->in_first ? ", as columns" : "");
    return DT_OK;
}

/* The width is limited by the shared memory of a GPU. */
dt_err dt_norm_gate_check(const dt_rmsnorm *n, int64_t z_group_ld)
{
    enum { MAX_WIDTH = 1024 };
    DT_TRY(dt_rmsnorm_check(n));
    DT_CHECK(
        n->width <= MAX_WIDTH && z_group_ld >= n->group * n->width && !n->plus_one, DT_ERR_ARG,
        "internal: norm_gate: expected rows of at most %d within their group stride and no plus_one, found %" PRId64
        " rows of %" PRId64 " in groups of %" PRId64 ", group stride of z %" PRId64 "%s",
        MAX_WIDTH, n->n_rows, n->width, n->group, z_group_ld, n->plus_one ? ", plus_one" : "");
    return DT_OK;
}

dt_err dt_conv_check(const dt_conv *c)
{
    DT_CHECK(c->n_seq >= 0 && c->n_tok >= 0 && c->width > 0 && c->kernel >= 1 && c->kernel <= DT_CONV_MAX_KERNEL &&
                 c->x_ld >= c->width && c->y_ld >= c->width,
             DT_ERR_ARG,
             "internal: conv: invalid sizes: %d sequences, %d tokens of %" PRId64 ", kernel %d (1 to %d), row strides "
             "%" PRId64 " and %" PRId64,
             c->n_seq, c->n_tok, c->width, c->kernel, DT_CONV_MAX_KERNEL, c->x_ld, c->y_ld);
    return DT_OK;
}

dt_err dt_delta_check(const dt_delta *d)
{
    DT_CHECK(d->n_seq >= 0 && d->n_tok >= 0 && d->max_len >= 0 && d->max_len <= d->n_tok && d->n_k_heads > 0 &&
                 d->n_v_heads > 0 && d->n_v_heads % d->n_k_heads == 0,
             DT_ERR_ARG,
             "internal: delta: invalid sizes: %d sequences of up to %d tokens, %d tokens, %d value heads for %d key "
             "heads",
             d->n_seq, d->max_len, d->n_tok, d->n_v_heads, d->n_k_heads);
    DT_CHECK(d->k_dim > 0 && d->k_dim <= DT_DELTA_MAX_DIM && d->v_dim > 0 && d->v_dim <= DT_DELTA_MAX_DIM &&
                 d->x_ld >= (int64_t)d->n_k_heads * d->k_dim && d->x_ld >= (int64_t)d->n_v_heads * d->v_dim &&
                 d->o_ld >= (int64_t)d->n_v_heads * d->v_dim,
             DT_ERR_ARG,
             "internal: delta: heads of %d and %d (1 to %d) exceed their limit or the row strides %" PRId64
             " and %" PRId64,
             d->k_dim, d->v_dim, DT_DELTA_MAX_DIM, d->x_ld, d->o_ld);
    return DT_OK;
}

dt_err dt_delta_gates_check(const dt_delta_gates *d)
{
    DT_CHECK(d->n_rows >= 0 && d->width > 0 && d->ld >= d->width, DT_ERR_ARG,
             "internal: delta_gates: invalid sizes: %" PRId64 " rows of %" PRId64 ", row stride %" PRId64, d->n_rows,
             d->width, d->ld);
    return DT_OK;
}

dt_err dt_blocks_check(const dt_blocks *b)
{
    DT_CHECK(b->n_rows >= 0 && b->n_blocks > 0 && b->width > 0 && b->x_block >= b->width && b->y_block >= b->width &&
                 b->x_ld >= (b->n_blocks - 1) * b->x_block + b->width &&
                 b->y_ld >= (b->n_blocks - 1) * b->y_block + b->width,
             DT_ERR_ARG,
             "internal: blocks: invalid sizes: %" PRId64 " rows of %" PRId64 " blocks of %" PRId64 ", strides %" PRId64
             " %" PRId64 " and %" PRId64 " %" PRId64,
             b->n_rows, b->n_blocks, b->width, b->x_ld, b->x_block, b->y_ld, b->y_block);
    return DT_OK;
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

/* The same values as integers and as elements: -2 .. 2. Their period divides no row length. */
typedef struct numbers {
    int32_t number[DT_TRIAL_ELEMS];
    float element[DT_TRIAL_ELEMS]; /* of any type */
} numbers;

static int32_t small(int64_t i, int32_t seed) { return (int32_t)((uint64_t)(i * 7 + seed + i / 11) % 5) - 2; }

static void fill(numbers *x, dt_dtype dt, int32_t seed)
{
    for (int64_t i = 0; i < DT_TRIAL_ELEMS; i++) {
        x->number[i] = small(i, seed);
        dt_set_element(x->element, dt, i, (float)x->number[i]);
    }
}

typedef struct trial {
    dt_matmul mm;
    numbers a, b, c, addend, bias;
} trial;

static int32_t wanted(const trial *t, int64_t i, int64_t j)
{
    const dt_matmul *mm = &t->mm;
    if (j >= mm->n) return t->c.number[i * mm->ldc + j]; /* gap between rows: must be unchanged */
    int32_t sum = (mm->accumulate ? t->c.number[i * mm->ldc + j] : 0) + (mm->bias ? t->bias.number[j] : 0) +
                  (mm->addend ? t->addend.number[i * mm->ldd + j] : 0);
    for (int64_t p = 0; p < mm->k; p++)
        sum += t->a.number[mm->trans_a ? p * mm->lda + i : i * mm->lda + p] *
               t->b.number[mm->trans_b ? j * mm->ldb + p : p * mm->ldb + j];
    return sum;
}

static bool is_right(const trial *t)
{
    for (int64_t i = 0; i < t->mm.m; i++)
        for (int64_t j = 0; j < t->mm.ldc; j++)
            if (dt_element(t->c.element, t->mm.c_dtype, i * t->mm.ldc + j) != (float)wanted(t, i, j)) return false;
    return true;
}

bool dt_matmul_is_right(const dt_matmul *mm, dt_matmul_function *run, void *library)
{
    trial t = {.mm = *mm};
    t.mm.bias = mm->bias ? t.bias.element : NULL;
    t.mm.addend = mm->addend ? t.addend.element : NULL;
    fill(&t.a, mm->dt, 1), fill(&t.b, mm->dt, 2), fill(&t.bias, mm->dt, 3), fill(&t.c, mm->c_dtype, 4);
    fill(&t.addend, mm->addend_dtype, 5);
    const bool ran =
        run(library, &t.mm, t.a.element, t.b.element, t.c.element) == DT_OK && dt_fault("matmul.check") == DT_OK;
    if (!ran) dt_error_clear();
    return ran && is_right(&t);
}

dt_matmul dt_trial_form(const dt_matmul *form, int64_t m, int64_t n, int64_t k, int64_t gap)
{
    return (dt_matmul){.m = m,
                       .n = n,
                       .k = k,
                       .trans_a = form->trans_a,
                       .trans_b = form->trans_b,
                       .lda = (form->trans_a ? m : k) + gap,
                       .ldb = (form->trans_b ? k : n) + gap,
                       .ldc = n + gap,
                       .ldd = n + gap,
                       .dt = form->dt,
                       .c_dtype = form->c_dtype,
                       .addend_dtype = form->c_dtype,
                       .accumulate = form->accumulate,
                       .addend = form->addend,
                       .bias = form->bias};
}
