/* cpu_layers.c - the operations of a layer except matmuls and attention: divides rows among threads and calls
 * kernels. */
#include "cpu.h"
#include <inttypes.h>
#include <string.h>

/* ---- elements and rows ------------------------------------------------------------------------------------------- */

/* Rows per loop turn: about one chunk of elements. */
static int64_t rows_a_turn(int64_t width) { return width >= CPU_CHUNK ? 1 : CPU_CHUNK / (width > 0 ? width : 1); }

/* Check the arguments, and divide the elements or rows among threads. */
#define TAKES_IN(type, name)
#define TAKES_OUT(type, name)
#define TAKES_INOUT(type, name)
#define TAKES_DESC(type, name)
#define TAKES_VAL(type, name) CPU_TAKES(_Generic(name, dt_dtype : name, default : DT_F32));
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
#include "dtrain/device/op_list.h"

/* ---- rows by index, sums of columns ------------------------------------------------------------------------------ */

#define ROWS_OF(cpu, n_rows, width, r)                                                                                 \
    const int64_t step_ = rows_a_turn(width);                                                                          \
    CPU_PARALLEL_FOR (cpu, turn_, cpu_n_chunks(n_rows, step_))                                                         \
        for (int64_t r = turn_ * step_, last_ = dt_min_i64(r + step_, n_rows); r < last_; r++)

dt_err cpu_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows, int64_t width,
                       dt_dtype dt, dt_stream *stream)
{
    const size_t nbytes = (size_t)width * dt_dtype_size(dt);
    ROWS_OF(cpu_of(dev), n_rows, width, r)
    {
        void *row = cpu_at_w(dst, dt, width * r);
        if (index[r] >= 0)
            memcpy(row, cpu_at(src, dt, width * index[r]), nbytes);
        else
            memset(row, 0, nbytes);
    }
    return DT_OK;
}

dt_err cpu_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows, int64_t width,
                        dt_dtype dt, dt_stream *stream)
{
    const size_t nbytes = (size_t)width * dt_dtype_size(dt);
    ROWS_OF(cpu_of(dev), n_rows, width, r)
    {
        if (index[r] >= 0) memcpy(cpu_at_w(dst, dt, width * index[r]), cpu_at(src, dt, width * r), nbytes);
    }
    return DT_OK;
}

dt_err cpu_bias_backward(dt_device *dev, const void *dy, int64_t m, int64_t n, int64_t ld, dt_dtype dt, void *dbias,
                         dt_dtype gt, bool accumulate, dt_stream *stream)
{
    CPU_TAKES(dt);
    CPU_TAKES(gt);
    const cpu_state *cpu = cpu_of(dev);
    DT_CHECK(ld >= n || m <= 1, DT_ERR_ARG,
             "internal: bias_backward: row stride %" PRId64 " is less than %" PRId64 " columns", ld, n);
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(n, DT_CPU_COLS)) {
        float sum[DT_CPU_COLS];
        const int64_t first = turn * DT_CPU_COLS, len = dt_min_i64(DT_CPU_COLS, n - first);
        cpu->k->column_sums(cpu_at(dy, dt, first), dt, m, ld, len, sum);
        cpu->k->add_into(&(dt_add_into_args){sum, DT_F32, cpu_at_w(dbias, gt, first), gt, accumulate, len}, 0, len);
    }
    return DT_OK;
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

dt_err cpu_embedding_forward(dt_device *dev, const int32_t *token, const int32_t *pos, const void *wte, const void *wpe,
                             void *out, int64_t n_tok, int64_t width, dt_dtype dt, dt_stream *stream)
{
    CPU_TAKES(dt);
    const cpu_state *cpu = cpu_of(dev);
    ROWS_OF(cpu, n_tok, width, t)
    {
        const void *word = cpu_at(wte, dt, width * token[t]);
        void *row = cpu_at_w(out, dt, width * t);
        if (wpe) {
            cpu->k->add(&(dt_add_args){word, cpu_at(wpe, dt, width * pos[t]), row, dt, width}, 0, width);
        } else {
            memcpy(row, word, (size_t)width * dt_dtype_size(dt));
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

dt_err cpu_embedding_backward(dt_device *dev, const void *dout, const int32_t *id, const int32_t *order,
                              void *table_grad, int64_t n_tok, int64_t width, dt_dtype dt, dt_dtype gt,
                              dt_stream *stream)
{
    CPU_TAKES(dt);
    CPU_TAKES(gt);
    const cpu_state *cpu = cpu_of(dev);
    const int64_t n_stripes = cpu_n_chunks(width, EMBED_COLS);
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(n_tok, EMBED_PLACES) * n_stripes) {
        const int64_t first = turn / n_stripes * EMBED_PLACES, last = dt_min_i64(first + EMBED_PLACES, n_tok);
        const int64_t col = turn % n_stripes * EMBED_COLS, n_cols = dt_min_i64(EMBED_COLS, width - col);
        for (int64_t i = first; i < last; i++) {
            const int32_t row = id[order[i]];
            if (i > 0 && id[order[i - 1]] == row) continue;
            int64_t n = 1;
            while (i + n < n_tok && id[order[i + n]] == row) n++;
            embedding_group(cpu, dout, order + i, n, cpu_at_w(table_grad, gt, width * row), width, col, n_cols, dt, gt);
        }
    }
    return DT_OK;
}

/* ---- norms -------------------------------------------------------------------------------------------------------
 * Backward sums a weight's gradient over rows in NORM_BLOCKS blocks, and then adds the blocks in order. The number of
 * blocks does not depend on the number of threads. */
enum { NORM_BLOCKS = CPU_SUM_BLOCKS };

int64_t cpu_norm_scratch_elems(const dt_device *dev, int64_t width) { return 2 * NORM_BLOCKS * width; }

/* Offset of row r if groups of rows have the stride group_ld: heads within the q, k, v of a token. */
static int64_t row_at(int64_t r, int64_t width, int64_t group, int64_t group_ld)
{
    return r / group * group_ld + r % group * width;
}

/* grad [width] (+)= the NORM_BLOCKS partial sums, added in order. */
void cpu_add_blocks(const cpu_state *cpu, const float *blocks, void *grad, dt_dtype gt, bool accumulate, int64_t width)
{
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(width, DT_CPU_COLS)) {
        float sum[DT_CPU_COLS];
        const int64_t first = turn * DT_CPU_COLS, len = dt_min_i64(DT_CPU_COLS, width - first);
        cpu->k->column_sums(blocks + first, DT_F32, NORM_BLOCKS, width, len, sum);
        cpu->k->add_into(&(dt_add_into_args){sum, DT_F32, cpu_at_w(grad, gt, first), gt, accumulate, len}, 0, len);
    }
}

dt_err cpu_magnitude_factors(dt_device *dev, const dt_row_lengths *d, const void *w, const void *a, const void *b,
                             const void *magnitude, void *factor, void *inverse, dt_dtype out_dt, dt_stream *stream)
{
    CPU_TAKES(d->dt);
    CPU_TAKES(out_dt);
    const cpu_state *cpu = cpu_of(dev);
    const dt_magnitude_factors_args args = {*d, w, a, b, magnitude, factor, inverse, out_dt};
    DT_TRY(dt_row_lengths_check(d));
    CPU_PARALLEL_FOR (cpu, j, d->n_out) {
        const float found = cpu->k->row_length(&args, j), length = found > 0 ? found : 1;
        dt_set_element(factor, out_dt, j, dt_element(magnitude, d->dt, j) / length);
        dt_set_element(inverse, out_dt, j, 1 / length);
    }
    return DT_OK;
}

dt_err cpu_rmsnorm_forward(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, void *y, float *rstd,
                           dt_stream *stream)
{
    CPU_TAKES(n->dt);
    const cpu_state *cpu = cpu_of(dev);
    DT_TRY(dt_rmsnorm_check(n));
    ROWS_OF(cpu, n->n_rows, n->width, r)
    {
        const float rs =
            cpu->k->rmsnorm_forward(n, cpu_at(x, n->dt, row_at(r, n->width, n->group, n->group_ld)), weight,
                                    cpu_at_w(y, n->dt, row_at(r, n->width, n->group, n->y_group_ld)));
        if (rstd) rstd[r] = rs;
    }
    return DT_OK;
}

dt_err cpu_rmsnorm_backward(dt_device *dev, const dt_rmsnorm *n, const void *x, const void *weight, const float *rstd,
                            const void *dy, void *dx, bool add_to_dx, void *dweight, dt_dtype gt, bool accumulate,
                            float *scratch, dt_stream *stream)
{
    CPU_TAKES(gt);
    CPU_TAKES(n->dt);
    const cpu_state *cpu = cpu_of(dev);
    const int64_t n_rows = n->n_rows, width = n->width;
    DT_TRY(dt_rmsnorm_check(n));
    CPU_PARALLEL_FOR (cpu, block, NORM_BLOCKS) {
        float *sum = scratch + block * width;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t r = n_rows * block / NORM_BLOCKS; r < n_rows * (block + 1) / NORM_BLOCKS; r++) {
            const int64_t at = row_at(r, width, n->group, n->group_ld);
            cpu->k->rmsnorm_backward(n, cpu_at(x, n->dt, at), weight, rstd[r],
                                     cpu_at(dy, n->dt, row_at(r, width, n->group, n->y_group_ld)),
                                     cpu_at_w(dx, n->dt, at), add_to_dx, sum);
        }
    }
    if (dweight) cpu_add_blocks(cpu, scratch, dweight, gt, accumulate, width);
    return DT_OK;
}

dt_err cpu_layernorm_backward(dt_device *dev, const void *x, const void *weight, const float *mean, const float *rstd,
                              const void *dy, void *dx, bool add_to_dx, void *dweight, void *dbias, dt_dtype gt,
                              bool accumulate, int64_t n_rows, int64_t width, float *scratch, dt_dtype dt,
                              dt_stream *stream)
{
    CPU_TAKES(gt);
    CPU_TAKES(dt);
    const cpu_state *cpu = cpu_of(dev);
    float *weight_sums = scratch, *bias_sums = scratch + NORM_BLOCKS * width;
    CPU_PARALLEL_FOR (cpu, block, NORM_BLOCKS) {
        float *wsum = weight_sums + block * width, *bsum = bias_sums + block * width;
        memset(wsum, 0, (size_t)width * sizeof *wsum);
        memset(bsum, 0, (size_t)width * sizeof *bsum);
        for (int64_t r = n_rows * block / NORM_BLOCKS; r < n_rows * (block + 1) / NORM_BLOCKS; r++) {
            cpu->k->layernorm_backward(cpu_at(x, dt, r * width), weight, mean[r], rstd[r], cpu_at(dy, dt, r * width),
                                       cpu_at_w(dx, dt, r * width), add_to_dx, wsum, bsum, width, dt);
        }
    }
    if (dweight) cpu_add_blocks(cpu, weight_sums, dweight, gt, accumulate, width);
    if (dbias) cpu_add_blocks(cpu, bias_sums, dbias, gt, accumulate, width);
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

dt_err cpu_heads_forward(dt_device *dev, const dt_heads *h, const void *x, void *q, void *k, void *v, float *rstd_q,
                         float *rstd_k, dt_stream *stream)
{
    CPU_TAKES(h->dt);
    const cpu_state *cpu = cpu_of(dev);
    DT_TRY(dt_heads_check(h, v != NULL));
    const int64_t D = h->head_dim, Hq = h->n_heads, Hk = h->n_kv_heads;
    ROWS_OF(cpu, h->n_tok, (Hq + 2 * Hk) * D, t)
    {
        const int64_t row = h->kv_row ? h->kv_row[t] : t;
        const void *from = cpu_at(x, h->dt, t * h->x_ld), *k_from = cpu_at(from, h->dt, Hq * D);
        for (int64_t i = 0; i < Hq; i++) {
            const float rs = pass_head(cpu, h, cpu_at(from, h->dt, i * D), h->q_norm,
                                       cpu_at_w(q, h->dt, t * h->q_ld + i * D), turn_of(h, q_table(h), t));
            if (rstd_q) rstd_q[t * Hq + i] = rs;
        }
        for (int64_t i = 0; i < Hk; i++) {
            const float rs = pass_head(cpu, h, cpu_at(k_from, h->dt, i * D), h->k_norm,
                                       cpu_at_w(k, h->dt, row * h->kv_ld + i * D), turn_of(h, h->cos_sin, t));
            if (rstd_k) rstd_k[t * Hk + i] = rs;
        }
        const void *v_from = cpu_at(k_from, h->dt, Hk * D);
        void *v_to = v ? cpu_at_w(v, h->dt, row * h->kv_ld) : NULL;
        if (v && v_to != v_from) memcpy(v_to, v_from, (size_t)(Hk * D) * dt_dtype_size(h->dt));
    }
    return DT_OK;
}

/* Backward of rotation and norm for n heads of each token, in place, with stride ld. x: the first head as forward read
 * it. blocks: NORM_BLOCKS rows of partial sums of the weight's gradient. */
static void heads_back(const cpu_state *cpu, const dt_heads *h, int64_t n, const void *x, const void *weight,
                       const float *rstd, const float *table, void *dy, int64_t ld, float *blocks)
{
    const int64_t D = h->head_dim, n_rows = h->n_tok * n;
    const dt_rmsnorm norm = norm_of(h);
    CPU_PARALLEL_FOR (cpu, block, NORM_BLOCKS) {
        float *sum = blocks + block * D;
        if (weight) memset(sum, 0, (size_t)D * sizeof *sum);
        for (int64_t r = n_rows * block / NORM_BLOCKS; r < n_rows * (block + 1) / NORM_BLOCKS; r++) {
            void *d = cpu_at_w(dy, h->dt, row_at(r, D, n, ld));
            rotate(cpu, h, d, turn_of(h, table, r / n), true);
            if (weight)
                cpu->k->rmsnorm_backward(&norm, cpu_at(x, h->dt, row_at(r, D, n, h->x_ld)), weight, rstd[r], d, d,
                                         false, sum);
        }
    }
}

dt_err cpu_heads_backward(dt_device *dev, const dt_heads *h, const void *x, const float *rstd_q, const float *rstd_k,
                          void *dq, void *dk, void *dq_norm, void *dk_norm, dt_dtype gt, bool accumulate,
                          float *scratch, dt_stream *stream)
{
    CPU_TAKES(h->dt);
    CPU_TAKES(gt);
    const cpu_state *cpu = cpu_of(dev);
    DT_TRY(dt_heads_check(h, false));
    const int64_t D = h->head_dim;
    float *of_k = h->k_norm ? scratch + NORM_BLOCKS * D : NULL;
    heads_back(cpu, h, h->n_heads, x, h->q_norm, rstd_q, q_table(h), dq, h->q_ld, scratch);
    heads_back(cpu, h, h->n_kv_heads, h->k_norm ? cpu_at(x, h->dt, h->n_heads * D) : NULL, h->k_norm, rstd_k,
               h->cos_sin, dk, h->kv_ld, of_k);
    if (h->q_norm && dq_norm) cpu_add_blocks(cpu, scratch, dq_norm, gt, accumulate, D);
    if (h->k_norm && dk_norm) cpu_add_blocks(cpu, of_k, dk_norm, gt, accumulate, D);
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

dt_err cpu_latent_forward(dt_device *dev, const dt_latent *l, const void *xq, const void *xkv, const void *xr, void *q,
                          void *k, void *v, dt_stream *stream)
{
    CPU_TAKES(l->dt);
    const cpu_state *cpu = cpu_of(dev);
    const int64_t H = l->n_heads, N = l->nope_dim, R = l->rope_dim, V = l->v_dim, D = N + R;
    DT_TRY(dt_latent_check(l));
    ROWS_OF(cpu, l->n_tok, H * (2 * D + V), t)
    {
        const int64_t row = l->kv_row ? l->kv_row[t] : t;
        void *q_t = AT_W(q, t * l->q_ld), *k_t = AT_W(k, row * l->kv_ld), *v_t = AT_W(v, row * l->kv_ld);
        copy_elems(q_t, AT(xq, t * l->xq_ld), H * D, l->dt);
        for (int64_t h = 0; h < H; h++) {
            const void *from = AT(xkv, t * l->xkv_ld + h * (N + V));
            turn_latent(cpu, l, AT_W(q_t, h * D + N), t, false, l->dt);
            copy_elems(AT_W(k_t, h * D), from, N, l->dt);
            copy_elems(AT_W(v_t, h * V), AT(from, N), V, l->dt);
            copy_elems(AT_W(k_t, h * D + N), h == 0 ? AT(xr, t * l->xr_ld) : AT(k_t, N), R, l->dt);
            if (h == 0) turn_latent(cpu, l, AT_W(k_t, N), t, false, l->dt);
        }
    }
    return DT_OK;
}

dt_err cpu_latent_backward(dt_device *dev, const dt_latent *l, const void *dq, const void *dk, const void *dv,
                           void *dxq, void *dxkv, void *dxr, dt_stream *stream)
{
    CPU_TAKES(l->dt);
    const cpu_state *cpu = cpu_of(dev);
    const int64_t H = l->n_heads, N = l->nope_dim, R = l->rope_dim, V = l->v_dim, D = N + R;
    DT_TRY(dt_latent_check(l));
    ROWS_OF(cpu, l->n_tok, H * (2 * D + V), t)
    {
        float sum[DT_ATTENTION_MAX_HEAD_DIM] = {0};
        const void *dk_t = AT(dk, t * l->kv_ld), *dv_t = AT(dv, t * l->kv_ld);
        copy_elems(AT_W(dxq, t * l->xq_ld), AT(dq, t * l->q_ld), H * D, l->dt);
        for (int64_t h = 0; h < H; h++) {
            void *to = AT_W(dxkv, t * l->xkv_ld + h * (N + V));
            turn_latent(cpu, l, AT_W(dxq, t * l->xq_ld + h * D + N), t, true, l->dt);
            copy_elems(to, AT(dk_t, h * D), N, l->dt);
            copy_elems(AT_W(to, N), AT(dv_t, h * V), V, l->dt);
            cpu->k->add_rows(sum, AT(dk_t, h * D + N), l->dt, R);
        }
        turn_latent(cpu, l, sum, t, true, DT_F32);
        cpu->k->convert(&(dt_convert_args){sum, DT_F32, AT_W(dxr, t * l->xr_ld), l->dt, R}, 0, R);
    }
    return DT_OK;
}
#undef AT
#undef AT_W
