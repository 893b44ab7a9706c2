/* device_check.c - checks of operation descriptions, and trial matmuls of libraries: see device_check.h. */
#include "dtrain/device/device_check.h"
#include "dtrain/device/nf4.h"
#include <math.h>

/* Messages name the function and the condition. */
#define EXPECT(cond) DT_CHECK(cond, DT_ERR_ARG, "internal: %s: expected %s", __func__, #cond)
#define FLOATS(t)                                                                                                      \
    DT_CHECK(dt_is_float(t), DT_ERR_ARG, "internal: %s: expected fp32, bf16 or fp16, found %s", __func__,              \
             dt_dtype_name(t))

/* ---- matmuls ------------------------------------------------------------------------------------------------ */

static dt_err matmul_check_scales(const dt_matmul *mm)
{
    const dt_scaled *b = &mm->b_scaled;
    EXPECT(mm->a_scaled.how == DT_SCALE_NONE);
    if (b->how == DT_SCALE_NONE) return DT_OK;
    EXPECT(b->stored == (b->how == DT_SCALE_NF4 ? DT_NF4X2 : DT_I8));
    EXPECT(b->scale && (b->blocks || b->how != DT_SCALE_NF4));
    EXPECT(!mm->trans_a && mm->sums_of != DT_SUMS_OF_B);
    return DT_OK;
}

static dt_err matmul_check_groups(const dt_matmul *mm)
{
    if (mm->n_groups == 0) return DT_OK;
    EXPECT(mm->n_groups > 0 && mm->group_start && mm->group_stride >= 0);
    EXPECT(mm->sums_of == DT_SUMS_NONE && (!mm->trans_a || (!mm->addend && !mm->bias)));
    return DT_OK;
}

dt_err dt_matmul_check(const dt_matmul *mm)
{
    const bool act = mm->epilogue != DT_EPILOGUE_NONE;
    FLOATS(mm->dt);
    EXPECT(mm->m >= 0 && mm->n >= 0 && mm->k >= 0);
    EXPECT(mm->lda >= (mm->trans_a ? mm->m : mm->k) && mm->ldb >= (mm->trans_b ? mm->k : mm->n) && mm->ldc >= mm->n);
    EXPECT(mm->c_dtype == mm->dt || (mm->c_dtype == DT_F32 && !act));
    EXPECT(!mm->trans_a || (!mm->trans_b && !mm->batch_invariant));
    EXPECT(!mm->addend || (!mm->accumulate && mm->ldd >= mm->n));
    EXPECT(!mm->addend || mm->addend_dtype == mm->dt || mm->addend_dtype == DT_F32);
    EXPECT(!act || (mm->aux ? mm->ld_aux >= mm->n : mm->epilogue == DT_EPILOGUE_ACT));
    EXPECT(mm->sums_of == DT_SUMS_NONE || (mm->sums && dt_is_float(mm->sums_dtype)));
    DT_TRY(matmul_check_scales(mm));
    return matmul_check_groups(mm);
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

/* ---- other operations -------------------------------------------------------------------------------------------- */

dt_err dt_routing_check(const dt_routing *r)
{
    EXPECT(r->n_tok >= 0 && r->k > 0 && r->k <= r->n_experts && r->n_experts <= DT_MAX_EXPERTS);
    if (r->n_groups <= 1) return DT_OK;
    const int32_t size = r->n_experts / r->n_groups;
    EXPECT(r->n_groups <= DT_MAX_GROUPS && size * r->n_groups == r->n_experts);
    EXPECT(r->k_groups >= 1 && r->k_groups <= r->n_groups && r->k <= r->k_groups * size);
    EXPECT(r->group_best >= 1 && r->group_best <= size);
    return DT_OK;
}

dt_err dt_convert_check(const void *src, dt_dtype src_dt, const void *dst, dt_dtype dst_dt, int64_t n)
{
    EXPECT(src != dst || src_dt == dst_dt || n == 0);
    return DT_OK;
}

dt_err dt_dropout_check(float p)
{
    EXPECT(p >= 0 && p < 1);
    return DT_OK;
}

dt_err dt_patches_check(const dt_patches *p)
{
    FLOATS(p->dt);
    EXPECT(p->n_images >= 0 && p->patch > 0 && p->patch <= p->size && p->size <= DT_MAX_IMAGE_SIZE);
    EXPECT(p->lead == 0 || p->lead == 1);
    return DT_OK;
}

dt_err dt_heads_check(const dt_heads *h, bool has_v)
{
    const int64_t d = h->head_dim, q = h->n_heads * d, kv = h->n_kv_heads * d;
    const int rotary = dt_heads_rotary_dim(h);
    FLOATS(h->dt);
    EXPECT(h->n_tok >= 0 && h->n_heads > 0 && h->n_kv_heads > 0 && d > 0 && d <= DT_ATTENTION_MAX_HEAD_DIM);
    EXPECT(h->x_ld >= q + (has_v ? 2 : 1) * kv && h->q_ld >= q && h->kv_ld >= kv);
    EXPECT(!h->cos_sin || (rotary > 0 && rotary <= d && rotary % 2 == 0 && h->pos));
    EXPECT(!h->q_cos_sin || h->cos_sin);
    EXPECT(!h->q_norm == !h->k_norm);
    return DT_OK;
}

dt_err dt_latent_check(const dt_latent *l)
{
    const int64_t H = l->n_heads, N = l->nope_dim, R = l->rope_dim, V = l->v_dim, larger = V > N + R ? V : N + R;
    FLOATS(l->dt);
    EXPECT(l->n_tok >= 0 && H > 0 && N > 0 && V > 0 && R > 0 && R <= DT_ATTENTION_MAX_HEAD_DIM && R % 2 == 0);
    EXPECT(l->xq_ld >= H * (N + R) && l->xkv_ld >= H * (N + V) && l->xr_ld >= R);
    EXPECT(l->q_ld >= H * (N + R) && l->kv_ld >= H * larger);
    EXPECT(l->n_tok == 0 || (l->pos && l->cos_sin));
    return DT_OK;
}

dt_err dt_attention_check(const dt_attention *at)
{
    const int64_t v = dt_attention_v_dim(at), larger = v > at->head_dim ? v : at->head_dim;
    FLOATS(at->dt);
    EXPECT(at->n_seq >= 0 && at->scale > 0);
    EXPECT(at->head_dim > 0 && at->head_dim <= DT_ATTENTION_MAX_HEAD_DIM);
    EXPECT(v > 0 && v <= DT_ATTENTION_MAX_HEAD_DIM);
    EXPECT(at->n_kv_heads > 0 && at->n_heads % at->n_kv_heads == 0);
    EXPECT(at->q_ld >= (int64_t)at->n_heads * at->head_dim && at->o_ld >= at->n_heads * v);
    EXPECT(at->kv_ld >= at->n_kv_heads * larger);
    EXPECT(at->softcap >= 0 && isfinite(at->softcap));
    EXPECT(!at->dsinks || at->sinks);
    EXPECT(!at->bidirectional || at->window == 0);
    EXPECT(at->block >= 0 && (at->block <= 1 || (at->window == 0 && !at->bidirectional)));
    EXPECT(!at->ahead || (at->max_ahead >= 0 && at->block <= 1 && !at->bidirectional));
    EXPECT(!at->shared_len || (at->shared_start && at->batch_invariant));
    EXPECT(at->dropout_p >= 0 && at->dropout_p < 1 && (at->dropout_p == 0 || at->token_key));
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
    FLOATS(cl->dlogits_dtype);
    EXPECT(cl->n_vocab > 0 && cl->logits_ld >= cl->n_vocab && cl->inv_temperature > 0);
    EXPECT(cl->label_smoothing >= 0 && cl->label_smoothing < 1 && cl->z_loss >= 0);
    EXPECT(cl->softcap >= 0 && isfinite(cl->softcap));
    EXPECT(cl->kl_mix >= 0 && cl->kl_mix <= (cl->log_sum_squares ? 0 : 1));
    EXPECT(cl->ref_logits ? cl->ref_ld >= cl->n_vocab : !cl->kl && !cl->kl_weight);
    return DT_OK;
}

dt_err dt_fill_rest_check(const dt_token_rows *rows, float inv_temperature, int64_t k)
{
    EXPECT(inv_temperature > 0 && k > 0 && k <= rows->n_vocab);
    return dt_token_rows_check(rows);
}

dt_err dt_softcap_check(float cap, int64_t n_rows, int64_t width, int64_t ld)
{
    EXPECT(cap > 0 && isfinite(cap) && n_rows >= 0 && width > 0 && ld >= width);
    return DT_OK;
}

dt_err dt_token_rows_check(const dt_token_rows *rows)
{
    const int64_t words = (rows->n_vocab + 31) / 32;
    EXPECT(rows->n_rows >= 0 && rows->n_vocab > 0 && rows->n_vocab <= INT32_MAX);
    EXPECT(rows->logits_ld >= rows->n_vocab);
    EXPECT(!rows->allowed || rows->allowed_ld == 0 || rows->allowed_ld >= words);
    EXPECT(!rows->seen || rows->seen_ld == 0 || rows->seen_ld >= words);
    EXPECT(!rows->list || (rows->list_start && rows->list_len));
    return DT_OK;
}

dt_err dt_choice_check(const dt_token_rows *rows, const dt_choice *how)
{
    EXPECT(!rows->seen || how->repetition_penalty > 0);
    EXPECT(how->greedy || (how->temperature > 0 && isfinite(1 / how->temperature)));
    EXPECT(how->greedy || (how->top_k >= 0 && how->top_p > 0 && how->min_p >= 0));
    return dt_token_rows_check(rows);
}

dt_err dt_rmsnorm_check(const dt_rmsnorm *n)
{
    FLOATS(n->dt);
    EXPECT(n->n_rows >= 0 && n->width > 0 && n->group > 0 && n->n_rows % n->group == 0);
    EXPECT(n->group_ld >= n->group * n->width && n->y_group_ld >= n->group * n->width);
    return DT_OK;
}

dt_err dt_row_lengths_check(const dt_row_lengths *d)
{
    FLOATS(d->dt);
    EXPECT(d->n_out >= 0 && d->n_in > 0 && d->r > 0 && d->first >= 0);
    EXPECT(d->w_ld >= (d->in_first ? d->first + d->n_out : d->n_in));
    EXPECT(d->w_scaled.how == DT_SCALE_NONE || !d->in_first);
    return DT_OK;
}

/* The width is limited by the shared memory of a GPU. */
dt_err dt_norm_gate_check(const dt_rmsnorm *n, int64_t z_group_ld)
{
    enum { MAX_WIDTH = 1024 };
    EXPECT(n->width <= MAX_WIDTH && z_group_ld >= n->group * n->width && !n->plus_one);
    return dt_rmsnorm_check(n);
}

dt_err dt_conv_check(const dt_conv *c)
{
    FLOATS(c->dt);
    EXPECT(c->n_seq >= 0 && c->n_tok >= 0 && c->kernel >= 1 && c->kernel <= DT_CONV_MAX_KERNEL);
    EXPECT(c->width > 0 && c->x_ld >= c->width && c->y_ld >= c->width);
    return DT_OK;
}

dt_err dt_delta_check(const dt_delta *d)
{
    FLOATS(d->dt);
    EXPECT(d->n_seq >= 0 && d->n_tok >= 0 && d->max_len >= 0 && d->max_len <= d->n_tok);
    EXPECT(d->n_k_heads > 0 && d->n_v_heads > 0 && d->n_v_heads % d->n_k_heads == 0);
    EXPECT(d->k_dim > 0 && d->k_dim <= DT_DELTA_MAX_DIM && d->v_dim > 0 && d->v_dim <= DT_DELTA_MAX_DIM);
    EXPECT(d->x_ld >= (int64_t)d->n_k_heads * d->k_dim && d->x_ld >= (int64_t)d->n_v_heads * d->v_dim);
    EXPECT(d->o_ld >= (int64_t)d->n_v_heads * d->v_dim);
    return DT_OK;
}

dt_err dt_delta_gates_check(const dt_delta_gates *d)
{
    FLOATS(d->dt);
    EXPECT(d->n_rows >= 0 && d->width > 0 && d->ld >= d->width);
    return DT_OK;
}

dt_err dt_blocks_check(const dt_blocks *b)
{
    FLOATS(b->dt);
    EXPECT(b->n_rows >= 0 && b->n_blocks > 0 && b->width > 0 && b->x_block >= b->width && b->y_block >= b->width);
    EXPECT(b->x_ld >= (b->n_blocks - 1) * b->x_block + b->width);
    EXPECT(b->y_ld >= (b->n_blocks - 1) * b->y_block + b->width);
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
    dt_matmul mm = dt_dense_matmul(m, n, k, form->trans_a, form->trans_b, form->dt, form->c_dtype);
    mm.lda += gap, mm.ldb += gap, mm.ldc += gap, mm.ldd = mm.ldc;
    mm.accumulate = form->accumulate;
    mm.addend = form->addend, mm.addend_dtype = form->c_dtype;
    mm.bias = form->bias;
    return mm;
}
