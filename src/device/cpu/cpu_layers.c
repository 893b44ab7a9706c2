/* cpu_layers.c - the operations of a layer except matmuls and attention: divides rows among threads and calls
 * kernels. */
#include "cpu.h"
#include <string.h>

/* ---- elements and rows ------------------------------------------------------------------------------------------- */

/* Rows per loop turn: about one chunk of elements. */
static int64_t rows_a_turn(int64_t width) { return width >= CPU_CHUNK ? 1 : CPU_CHUNK / (width > 0 ? width : 1); }

/* The entries of the table: each checks its arguments, and divides elements or rows among threads, or calls
 * cpu_run_<op>. */
#define TAKES_IN(type, name)
#define TAKES_OUT(type, name)
#define TAKES_INOUT(type, name)
#define TAKES_DESC(type, name)
#define FLOATS_ONLY(t)                                                                                                 \
    DT_CHECK(dt_is_float(t), DT_ERR_ARG, "internal: %s: expected fp32, bf16 or fp16, found %s", __func__,              \
             dt_dtype_name(t))
#define TAKES_VAL(type, name) FLOATS_ONLY(_Generic(name, dt_dtype : name, default : DT_F32));
#define TAKES_CHECK(call) DT_TRY(call);
#define IN_TURNS(op, n_all, n_turn, ...)                                                                               \
    dt_err cpu_##op DT_OP_PARAMS(__VA_ARGS__)                                                                          \
    {                                                                                                                  \
        DT_EACH(TAKES_, __VA_ARGS__)                                                                                   \
        const cpu_state *cpu = cpu_of(dev);                                                                            \
        const dt_##op##_args args = {DT_EACH(DT_TAKE_, __VA_ARGS__)};                                                  \
        const int64_t step = n_turn;                                                                                   \
        CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(n_all, step)) {                                                      \
            cpu->k->op(&args, turn *step, dt_min_i64(step, n_all - turn * step));                                      \
        }                                                                                                              \
        return DT_OK;                                                                                                  \
    }
#define DT_OP_ELEMENTS(op, ...) IN_TURNS(op, n, CPU_CHUNK, __VA_ARGS__)
#define DT_OP_ROWS(op, ...) IN_TURNS(op, n_rows, rows_a_turn(width), __VA_ARGS__)
#define DT_OP(op, ...)                                                                                                 \
    dt_err cpu_##op DT_OP_PARAMS(__VA_ARGS__)                                                                          \
    {                                                                                                                  \
        DT_EACH(TAKES_, __VA_ARGS__)                                                                                   \
        return cpu_run_##op(cpu_of(dev), &(dt_##op##_args){DT_EACH(DT_TAKE_, __VA_ARGS__)});                           \
    }
#define DT_OP_ANY(op, ...)                                                                                             \
    dt_err cpu_##op DT_OP_PARAMS(__VA_ARGS__)                                                                          \
    {                                                                                                                  \
        return cpu_run_##op(cpu_of(dev), &(dt_##op##_args){DT_EACH(DT_TAKE_, __VA_ARGS__)});                           \
    }
#include "dtrain/device/op_list.h"

/* ---- rows by index, sums of columns ------------------------------------------------------------------------------ */

#define ROWS_OF(cpu, n_rows, width, r)                                                                                 \
    const int64_t step_ = rows_a_turn(width);                                                                          \
    CPU_PARALLEL_FOR (cpu, turn_, cpu_n_chunks(n_rows, step_))                                                         \
        for (int64_t r = turn_ * step_, last_ = dt_min_i64(r + step_, n_rows); r < last_; r++)

CPU_OP(gather_rows)
{
    const size_t nbytes = (size_t)x->width * dt_dtype_size(x->dt);
    ROWS_OF(cpu, x->n_rows, x->width, r)
    {
        void *row = cpu_at_w(x->dst, x->dt, x->width * r);
        if (x->index[r] >= 0)
            memcpy(row, cpu_at(x->src, x->dt, x->width * x->index[r]), nbytes);
        else
            memset(row, 0, nbytes);
    }
    return DT_OK;
}

CPU_OP(scatter_rows)
{
    const size_t nbytes = (size_t)x->width * dt_dtype_size(x->dt);
    ROWS_OF(cpu, x->n_rows, x->width, r)
    {
        if (x->index[r] >= 0)
            memcpy(cpu_at_w(x->dst, x->dt, x->width * x->index[r]), cpu_at(x->src, x->dt, x->width * r), nbytes);
    }
    return DT_OK;
}

void cpu_column_sums(const cpu_state *cpu, const void *x, dt_dtype dt, int64_t m, int64_t n, int64_t ld, void *sums,
                     dt_dtype gt, bool accumulate)
{
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(n, DT_CPU_COLS)) {
        float sum[DT_CPU_COLS];
        const int64_t first = turn * DT_CPU_COLS, len = dt_min_i64(DT_CPU_COLS, n - first);
        cpu->k->column_sums(cpu_at(x, dt, first), dt, m, ld, len, sum);
        cpu->k->add_into(&(dt_add_into_args){sum, DT_F32, cpu_at_w(sums, gt, first), gt, accumulate, len}, 0, len);
    }
}

CPU_OP(bias_backward)
{
    DT_EXPECT(x->ld >= x->n || x->m <= 1);
    cpu_column_sums(cpu, x->dy, x->dt, x->m, x->n, x->ld, x->dbias, x->gt, x->accumulate);
    return DT_OK;
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

CPU_OP(embedding_forward)
{
    ROWS_OF(cpu, x->n_tok, x->width, t)
    {
        const void *word = cpu_at(x->wte, x->dt, x->width * x->token[t]);
        void *row = cpu_at_w(x->out, x->dt, x->width * t);
        if (x->wpe) {
            cpu->k->add(&(dt_add_args){word, cpu_at(x->wpe, x->dt, x->width * x->pos[t]), row, x->dt, x->width}, 0,
                        x->width);
        } else {
            memcpy(row, word, (size_t)x->width * dt_dtype_size(x->dt));
        }
    }
    return DT_OK;
}

/* A loop turn takes EMBED_PLACES entries of order and a stripe of columns. It sums each group of equal ids that begins
 * there, to the end of the group. So only one turn writes an element of the table. */
enum { EMBED_PLACES = 64, EMBED_COLS = 512 };

/* table_grad[row] += sum of dout over the tokens order[0 .. n-1], which have this id. Summed in float, in this order,
 * and rounded once. */
static void embedding_group(const cpu_state *cpu, const void *dout, const int32_t *order, int64_t n, void *row_grad,
                            int64_t width, int64_t col, int64_t n_cols, dt_dtype dt, dt_dtype gt)
{
    float sum[EMBED_COLS] = {0};
    for (int64_t i = 0; i < n; i++) cpu->k->add_rows(sum, cpu_at(dout, dt, width * order[i] + col), dt, n_cols);
    cpu->k->add_into(&(dt_add_into_args){sum, DT_F32, cpu_at_w(row_grad, gt, col), gt, true, n_cols}, 0, n_cols);
}

CPU_OP(embedding_backward)
{
    const int64_t n_stripes = cpu_n_chunks(x->width, EMBED_COLS);
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(x->n_tok, EMBED_PLACES) * n_stripes) {
        const int64_t first = turn / n_stripes * EMBED_PLACES, last = dt_min_i64(first + EMBED_PLACES, x->n_tok);
        const int64_t col = turn % n_stripes * EMBED_COLS, n_cols = dt_min_i64(EMBED_COLS, x->width - col);
        for (int64_t i = first; i < last; i++) {
            const int32_t row = x->id[x->order[i]];
            if (i > 0 && x->id[x->order[i - 1]] == row) continue;
            int64_t n = 1;
            while (i + n < x->n_tok && x->id[x->order[i + n]] == row) n++;
            embedding_group(cpu, x->dout, x->order + i, n, cpu_at_w(x->table_grad, x->gt, x->width * row), x->width,
                            col, n_cols, x->dt, x->gt);
        }
    }
    return DT_OK;
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

int64_t cpu_norm_scratch_elems(const dt_device *dev, int64_t width) { return 2 * CPU_SUM_BLOCKS * width; }

CPU_OP(magnitude_factors)
{
    const dt_row_lengths *d = &x->d;
    CPU_PARALLEL_FOR (cpu, j, d->n_out) {
        const float found = cpu->k->row_length(x, j), length = found > 0 ? found : 1;
        dt_set_element(x->factor, x->out_dt, j, dt_element(x->magnitude, d->dt, j) / length);
        dt_set_element(x->inverse, x->out_dt, j, 1 / length);
    }
    return DT_OK;
}

CPU_OP(rmsnorm_forward)
{
    const dt_rmsnorm *n = &x->n;
    ROWS_OF(cpu, n->n_rows, n->width, r)
    {
        const float rs =
            cpu->k->rmsnorm_forward(n, cpu_at(x->x, n->dt, cpu_row_at(r, n->group, n->group_ld, n->width)), x->weight,
                                    cpu_at_w(x->y, n->dt, cpu_row_at(r, n->group, n->y_group_ld, n->width)));
        if (x->rstd) x->rstd[r] = rs;
    }
    return DT_OK;
}

CPU_OP(rmsnorm_backward)
{
    const dt_rmsnorm *n = &x->n;
    const int64_t n_rows = n->n_rows, width = n->width;
    CPU_PARALLEL_FOR (cpu, block, CPU_SUM_BLOCKS) {
        float *sum = x->scratch + block * width;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t r = n_rows * block / CPU_SUM_BLOCKS; r < n_rows * (block + 1) / CPU_SUM_BLOCKS; r++) {
            const int64_t at = cpu_row_at(r, n->group, n->group_ld, width);
            cpu->k->rmsnorm_backward(n, cpu_at(x->x, n->dt, at), x->weight, x->rstd[r],
                                     cpu_at(x->dy, n->dt, cpu_row_at(r, n->group, n->y_group_ld, width)),
                                     cpu_at_w(x->dx, n->dt, at), x->add_to_dx, sum);
        }
    }
    if (x->dweight) cpu_add_blocks(cpu, x->scratch, width, x->dweight, x->gt, x->accumulate, width);
    return DT_OK;
}

CPU_OP(layernorm_backward)
{
    float *weight_sums = x->scratch, *bias_sums = x->scratch + CPU_SUM_BLOCKS * x->width;
    CPU_PARALLEL_FOR (cpu, block, CPU_SUM_BLOCKS) {
        float *wsum = weight_sums + block * x->width, *bsum = bias_sums + block * x->width;
        memset(wsum, 0, (size_t)x->width * sizeof *wsum);
        memset(bsum, 0, (size_t)x->width * sizeof *bsum);
        for (int64_t r = x->n_rows * block / CPU_SUM_BLOCKS; r < x->n_rows * (block + 1) / CPU_SUM_BLOCKS; r++) {
            cpu->k->layernorm_backward(cpu_at(x->x, x->dt, r * x->width), x->weight, x->mean[r], x->rstd[r],
                                       cpu_at(x->dy, x->dt, r * x->width), cpu_at_w(x->dx, x->dt, r * x->width),
                                       x->add_to_dx, wsum, bsum, x->width, x->dt);
        }
    }
    if (x->dweight) cpu_add_blocks(cpu, weight_sums, x->width, x->dweight, x->gt, x->accumulate, x->width);
    if (x->dbias) cpu_add_blocks(cpu, bias_sums, x->width, x->dbias, x->gt, x->accumulate, x->width);
    return DT_OK;
}

/* ---- heads -------------------------------------------------------------------------------------------------------
 * Each head passes through all kernels in turn, while it is in the first-level cache. The bits are those of the
 * separate operations. */

/* The norm of one head. */
static dt_rmsnorm norm_of(const dt_heads *h)
{
    return (dt_rmsnorm){.width = h->head_dim, .eps = h->eps, .plus_one = h->plus_one, .dt = h->dt};
}

/* Rotate one head; turn NULL: not. */
static void rotate(const cpu_state *cpu, const dt_heads *h, void *head, const float *turn, bool inverse)
{
    const int64_t half = dt_heads_rotary_dim(h) / 2;
    if (turn) (h->neighbours ? cpu->k->rope_neighbours : cpu->k->rope)(head, turn, half, inverse, h->dt);
}

/* Copy one head, with norm if there is a weight, and rotate the copy. Returns the norm's rstd. */
static float pass_head(const cpu_state *cpu, const dt_heads *h, const void *from, const void *weight, void *to,
                       const float *turn)
{
    float rstd = 0;
    const dt_rmsnorm norm = norm_of(h);
    if (weight)
        rstd = cpu->k->rmsnorm_forward(&norm, from, weight, to);
    else if (to != from)
        memcpy(to, from, (size_t)h->head_dim * dt_dtype_size(h->dt));
    rotate(cpu, h, to, turn, false);
    return rstd;
}

/* Token t's row of the table of q, or of k. */
static const float *turn_of(const dt_heads *h, const float *table, int64_t t)
{
    return table ? table + (int64_t)dt_heads_rotary_dim(h) * h->pos[t] : NULL;
}
static const float *q_table(const dt_heads *h) { return h->q_cos_sin ? h->q_cos_sin : h->cos_sin; }

CPU_OP(heads_forward)
{
    const dt_heads *h = &x->h;
    const int64_t D = h->head_dim, Hq = h->n_heads, Hk = h->n_kv_heads;
    ROWS_OF(cpu, h->n_tok, (Hq + 2 * Hk) * D, t)
    {
        const int64_t row = h->kv_row ? h->kv_row[t] : t;
        const void *from = cpu_at(x->x, h->dt, t * h->x_ld), *k_from = cpu_at(from, h->dt, Hq * D);
        for (int64_t i = 0; i < Hq; i++) {
            const float rs = pass_head(cpu, h, cpu_at(from, h->dt, i * D), h->q_norm,
                                       cpu_at_w(x->q, h->dt, t * h->q_ld + i * D), turn_of(h, q_table(h), t));
            if (x->rstd_q) x->rstd_q[t * Hq + i] = rs;
        }
        for (int64_t i = 0; i < Hk; i++) {
            const float rs = pass_head(cpu, h, cpu_at(k_from, h->dt, i * D), h->k_norm,
                                       cpu_at_w(x->k, h->dt, row * h->kv_ld + i * D), turn_of(h, h->cos_sin, t));
            if (x->rstd_k) x->rstd_k[t * Hk + i] = rs;
        }
        const void *v_from = cpu_at(k_from, h->dt, Hk * D);
        void *v_to = x->v ? cpu_at_w(x->v, h->dt, row * h->kv_ld) : NULL;
        if (x->v && v_to != v_from) memcpy(v_to, v_from, (size_t)(Hk * D) * dt_dtype_size(h->dt));
    }
    return DT_OK;
}

/* Backward of rotation and norm for n heads of each token, in place, with stride ld. x: the first head as forward read
 * it. blocks: CPU_SUM_BLOCKS rows of partial sums of the weight's gradient. */
static void heads_back(const cpu_state *cpu, const dt_heads *h, int64_t n, const void *x, const void *weight,
                       const float *rstd, const float *table, void *dy, int64_t ld, float *blocks)
{
    const int64_t D = h->head_dim, n_rows = h->n_tok * n;
    const dt_rmsnorm norm = norm_of(h);
    CPU_PARALLEL_FOR (cpu, block, CPU_SUM_BLOCKS) {
        float *sum = blocks + block * D;
        if (weight) memset(sum, 0, (size_t)D * sizeof *sum);
        for (int64_t r = n_rows * block / CPU_SUM_BLOCKS; r < n_rows * (block + 1) / CPU_SUM_BLOCKS; r++) {
            void *d = cpu_at_w(dy, h->dt, cpu_row_at(r, n, ld, D));
            rotate(cpu, h, d, turn_of(h, table, r / n), true);
            if (weight)
                cpu->k->rmsnorm_backward(&norm, cpu_at(x, h->dt, cpu_row_at(r, n, h->x_ld, D)), weight, rstd[r], d, d,
                                         false, sum);
        }
    }
}

CPU_OP(heads_backward)
{
    const dt_heads *h = &x->h;
    const int64_t D = h->head_dim;
    float *of_k = h->k_norm ? x->scratch + CPU_SUM_BLOCKS * D : NULL;
    heads_back(cpu, h, h->n_heads, x->x, h->q_norm, x->rstd_q, q_table(h), x->dq, h->q_ld, x->scratch);
    heads_back(cpu, h, h->n_kv_heads, h->k_norm ? cpu_at(x->x, h->dt, h->n_heads * D) : NULL, h->k_norm, x->rstd_k,
               h->cos_sin, x->dk, h->kv_ld, of_k);
    if (h->q_norm && x->dq_norm) cpu_add_blocks(cpu, x->scratch, D, x->dq_norm, x->gt, x->accumulate, D);
    if (h->k_norm && x->dk_norm) cpu_add_blocks(cpu, of_k, D, x->dk_norm, x->gt, x->accumulate, D);
    return DT_OK;
}

/* ---- latent attention -------------------------------------------------------------------------------------------- */

static void turn_latent(const cpu_state *cpu, const dt_latent *l, void *x, int64_t t, bool inverse, dt_dtype dt)
{
    const float *turn = l->cos_sin + (int64_t)l->rope_dim * l->pos[t];
    (l->neighbours ? cpu->k->rope_neighbours : cpu->k->rope)(x, turn, l->rope_dim / 2, inverse, dt);
}

static void copy_elems(void *to, const void *from, int64_t n, dt_dtype dt)
{
    if (to != from) memcpy(to, from, (size_t)n * dt_dtype_size(dt));
}

/* Address of element n. */
#define AT(p, n) cpu_at(p, l->dt, n)
#define AT_W(p, n) cpu_at_w(p, l->dt, n)

CPU_OP(latent_forward)
{
    const dt_latent *l = &x->l;
    const int64_t H = l->n_heads, N = l->nope_dim, R = l->rope_dim, V = l->v_dim, D = N + R;
    ROWS_OF(cpu, l->n_tok, H * (2 * D + V), t)
    {
        const int64_t row = l->kv_row ? l->kv_row[t] : t;
        void *q_t = AT_W(x->q, t * l->q_ld), *k_t = AT_W(x->k, row * l->kv_ld), *v_t = AT_W(x->v, row * l->kv_ld);
        copy_elems(q_t, AT(x->xq, t * l->xq_ld), H * D, l->dt);
        for (int64_t h = 0; h < H; h++) {
            const void *from = AT(x->xkv, t * l->xkv_ld + h * (N + V));
            turn_latent(cpu, l, AT_W(q_t, h * D + N), t, false, l->dt);
            copy_elems(AT_W(k_t, h * D), from, N, l->dt);
            copy_elems(AT_W(v_t, h * V), AT(from, N), V, l->dt);
            copy_elems(AT_W(k_t, h * D + N), h == 0 ? AT(x->xr, t * l->xr_ld) : AT(k_t, N), R, l->dt);
            if (h == 0) turn_latent(cpu, l, AT_W(k_t, N), t, false, l->dt);
        }
    }
    return DT_OK;
}

CPU_OP(latent_backward)
{
    const dt_latent *l = &x->l;
    const int64_t H = l->n_heads, N = l->nope_dim, R = l->rope_dim, V = l->v_dim, D = N + R;
    ROWS_OF(cpu, l->n_tok, H * (2 * D + V), t)
    {
        float sum[DT_ATTENTION_MAX_HEAD_DIM] = {0};
        const void *dk_t = AT(x->dk, t * l->kv_ld), *dv_t = AT(x->dv, t * l->kv_ld);
        copy_elems(AT_W(x->dxq, t * l->xq_ld), AT(x->dq, t * l->q_ld), H * D, l->dt);
        for (int64_t h = 0; h < H; h++) {
            void *to = AT_W(x->dxkv, t * l->xkv_ld + h * (N + V));
            turn_latent(cpu, l, AT_W(x->dxq, t * l->xq_ld + h * D + N), t, true, l->dt);
            copy_elems(to, AT(dk_t, h * D), N, l->dt);
            copy_elems(AT_W(to, N), AT(dv_t, h * V), V, l->dt);
            cpu->k->add_rows(sum, AT(dk_t, h * D + N), l->dt, R);
        }
        turn_latent(cpu, l, sum, t, true, DT_F32);
        cpu->k->convert(&(dt_convert_args){sum, DT_F32, AT_W(x->dxr, t * l->xr_ld), l->dt, R}, 0, R);
    }
    return DT_OK;
}
#undef AT
#undef AT_W
