/* cpu_delta.c - convolution, gated delta rule and gates of linear attention: divides the work among threads. */
#include "cpu.h"
#include <omp.h>
#include <string.h>

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* Sequence of token t. */
static int seq_at(const int32_t *q_start, int n_seq, int32_t t)
{
    int low = 0, high = n_seq;
    while (high - low > 1) {
        const int mid = (low + high) / 2;
        if (q_start[mid] <= t)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* The part that begins at token t, before token end. */
static dt_conv_part part_at(const dt_conv *c, int32_t t, int32_t end, int64_t col)
{
    const int seq = seq_at(c->q_start, c->n_seq, t);
    const int64_t n = dt_min_i64(DT_CONV_ROWS, dt_min_i64(end, c->q_start[seq + 1]) - t);
    return (dt_conv_part){seq, t - c->q_start[seq], (int32_t)n, col, dt_min_i64(DT_CPU_COLS, c->width - col)};
}

/* The last kernel - 1 rows of old state and sequence. Rows move to lower numbers, in order. */
static void advance_state(const dt_conv *c, const void *x, void *state, int seq)
{
    const int64_t kept = c->kernel - 1, start = c->q_start[seq], len = c->q_start[seq + 1] - start,
                  first = (c->state_row ? c->state_row[seq] : seq) * kept;
    const size_t nbytes = (size_t)c->width * dt_dtype_size(c->dt);
    for (int64_t r = 0; r < kept && len > 0; r++) {
        const int64_t from = len + r;
        memcpy(cpu_at_w(state, c->dt, (first + r) * c->width),
               from < kept ? cpu_at(state, c->dt, (first + from) * c->width)
                           : cpu_at(x, c->dt, (start + from - kept) * c->x_ld),
               nbytes);
    }
}

static void convolve(const cpu_state *cpu, const dt_conv_forward_args *args)
{
    const dt_conv *c = &args->c;
    const int64_t n_cols = cpu_n_chunks(c->width, DT_CPU_COLS);
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(c->n_tok, DT_CONV_ROWS) * n_cols) {
        const int32_t first = (int32_t)(turn / n_cols * DT_CONV_ROWS),
                      end = (int32_t)dt_min_i64(first + DT_CONV_ROWS, c->n_tok);
        for (int32_t t = first; t < end;) {
            const dt_conv_part part = part_at(c, t, end, turn % n_cols * DT_CPU_COLS);
            cpu->k->conv_forward(args, &part);
            t += part.n;
        }
    }
}

CPU_OP(conv_forward)
{
    const dt_conv *c = &x->c;
    convolve(cpu, x);
    if (!x->state) return DT_OK;
    CPU_PARALLEL_FOR (cpu, seq, c->n_seq) advance_state(c, x->x, x->state, (int)seq);
    return DT_OK;
}

int64_t cpu_conv_scratch_elems(const dt_device *dev, const dt_conv *c) { return CPU_SUM_BLOCKS * c->width * c->kernel; }

CPU_OP(conv_backward)
{
    const dt_conv *c = &x->c;
    const int64_t n_cols = cpu_n_chunks(c->width, DT_CPU_COLS), n_weights = c->width * c->kernel;
    CPU_PARALLEL_FOR (cpu, turn, CPU_SUM_BLOCKS * n_cols) {
        const int64_t block = turn / n_cols, col = turn % n_cols * DT_CPU_COLS,
                      cols = dt_min_i64(DT_CPU_COLS, c->width - col);
        float *sum = x->scratch + block * n_weights + col * c->kernel;
        memset(sum, 0, (size_t)(cols * c->kernel) * sizeof *sum);
        const int32_t end = (int32_t)(c->n_tok * (block + 1) / CPU_SUM_BLOCKS);
        for (int32_t t = (int32_t)(c->n_tok * block / CPU_SUM_BLOCKS); t < end;) {
            const dt_conv_part part = part_at(c, t, end, col);
            cpu->k->conv_backward(x, &part, sum);
            t += part.n;
        }
    }
    if (x->dweight) cpu_add_blocks(cpu, x->scratch, n_weights, x->dweight, x->gt, x->accumulate, n_weights);
    return DT_OK;
}

/* ---- gated delta rule -------------------------------------------------------------------------------------------- */

/* Run body for each sequence and value head; scratch: of the thread. Sequences have different lengths. */
#define EACH_HEAD(cpu, d, ...)                                                                                         \
    CPU_PRAGMA(omp parallel for num_threads((cpu)->n_threads) schedule(dynamic, 1))                                    \
    for (int64_t pair = 0; pair < (int64_t)(d)->n_seq * (d)->n_v_heads; pair++) {                                      \
        const int seq = (int)(pair / (d)->n_v_heads), head = (int)(pair % (d)->n_v_heads);                             \
        __VA_ARGS__;                                                                                                   \
    }

int64_t cpu_delta_scratch_elems(const dt_device *dev, const dt_delta *d, bool backward)
{
    const cpu_state *cpu = cpu_of(dev);
    const int64_t threads = cpu->k->delta_scratch(d, backward) * cpu->n_threads;
    return threads + (backward ? 2 * (int64_t)d->n_tok * d->n_v_heads * d->k_dim : 0);
}

CPU_OP(delta_forward)
{
    const dt_delta *d = &x->d;
    const dt_delta_args a = {
        .q = x->q, .k = x->k, .v = x->v, .g = x->g, .beta = x->beta, .out = x->out, .state = x->state};
    const int64_t each = cpu->k->delta_scratch(d, false);
    EACH_HEAD(cpu, d, cpu->k->delta_forward(d, &a, seq, head, x->scratch + omp_get_thread_num() * each))
    return DT_OK;
}

CPU_OP(delta_step)
{
    const dt_delta *d = &x->d;
    DT_EXPECT(x->state || d->n_tok == 0);
    const dt_delta_args a = {
        .q = x->q, .k = x->k, .v = x->v, .g = x->g, .beta = x->beta, .out = x->out, .state = x->state};
    EACH_HEAD(cpu, d, cpu->k->delta_step(d, &a, seq, head))
    return DT_OK;
}

CPU_OP(delta_backward)
{
    const dt_delta *d = &x->d;
    const int64_t each = cpu->k->delta_scratch(d, true), heads_elems = (int64_t)d->n_tok * d->n_v_heads * d->k_dim;
    const dt_delta_args a = {.q = x->q,
                             .k = x->k,
                             .v = x->v,
                             .g = x->g,
                             .beta = x->beta,
                             .dout = x->dout,
                             .dv = x->dv,
                             .dg = x->dg,
                             .dbeta = x->dbeta,
                             .dq_heads = x->scratch,
                             .dk_heads = x->scratch + heads_elems};
    float *of_threads = x->scratch + 2 * heads_elems;
    EACH_HEAD(cpu, d, cpu->k->delta_backward(d, &a, seq, head, of_threads + omp_get_thread_num() * each))
    CPU_PARALLEL_FOR (cpu, i, (int64_t)d->n_tok * d->n_k_heads) {
        cpu->k->delta_qk_backward(x, &a, i / d->n_k_heads, (int)(i % d->n_k_heads));
    }
    return DT_OK;
}

/* ---- gates ------------------------------------------------------------------------------------------------------- */

enum { GATE_ROWS = 256 };

CPU_OP(delta_gates_forward)
{
    const dt_delta_gates *d = &x->d;
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(d->n_rows, GATE_ROWS)) {
        cpu->k->delta_gates_forward(x, turn * GATE_ROWS, dt_min_i64(GATE_ROWS, d->n_rows - turn * GATE_ROWS));
    }
    return DT_OK;
}

CPU_OP(delta_gates_backward)
{
    const dt_delta_gates *d = &x->d;
    /* a block's sums of both weights are one row */
    CPU_PARALLEL_FOR (cpu, block, CPU_SUM_BLOCKS) {
        float *sums = x->scratch + 2 * block * d->width;
        const int64_t first = d->n_rows * block / CPU_SUM_BLOCKS;
        memset(sums, 0, 2 * (size_t)d->width * sizeof *sums);
        cpu->k->delta_gates_backward(x, first, d->n_rows * (block + 1) / CPU_SUM_BLOCKS - first, sums);
    }
    if (x->da_log) cpu_add_blocks(cpu, x->scratch, 2 * d->width, x->da_log, x->gt, x->accumulate, d->width);
    if (x->ddt_bias)
        cpu_add_blocks(cpu, x->scratch + d->width, 2 * d->width, x->ddt_bias, x->gt, x->accumulate, d->width);
    return DT_OK;
}

CPU_OP(norm_gate_forward)
{
    const dt_rmsnorm *n = &x->n;
    CPU_PARALLEL_FOR (cpu, turn, cpu_n_chunks(n->n_rows, GATE_ROWS)) {
        for (int64_t r = turn * GATE_ROWS, end = dt_min_i64(r + GATE_ROWS, n->n_rows); r < end; r++) {
            const float rs = cpu->k->norm_gate_forward(
                n, cpu_at(x->x, n->dt, cpu_row_at(r, n->group, n->group_ld, n->width)), x->weight,
                cpu_at(x->z, n->dt, cpu_row_at(r, n->group, x->z_group_ld, n->width)),
                cpu_at_w(x->y, n->dt, cpu_row_at(r, n->group, n->y_group_ld, n->width)));
            if (x->rstd) x->rstd[r] = rs;
        }
    }
    return DT_OK;
}

CPU_OP(norm_gate_backward)
{
    const dt_rmsnorm *n = &x->n;
    CPU_PARALLEL_FOR (cpu, block, CPU_SUM_BLOCKS) {
        float *sum = x->scratch + block * n->width;
        memset(sum, 0, (size_t)n->width * sizeof *sum);
        for (int64_t r = n->n_rows * block / CPU_SUM_BLOCKS; r < n->n_rows * (block + 1) / CPU_SUM_BLOCKS; r++) {
            const int64_t at = cpu_row_at(r, n->group, n->group_ld, n->width),
                          at_z = cpu_row_at(r, n->group, x->z_group_ld, n->width);
            cpu->k->norm_gate_backward(n, cpu_at(x->x, n->dt, at), x->weight, cpu_at(x->z, n->dt, at_z), x->rstd[r],
                                       cpu_at(x->dy, n->dt, cpu_row_at(r, n->group, n->y_group_ld, n->width)),
                                       cpu_at_w(x->dx, n->dt, at), cpu_at_w(x->dz, n->dt, at_z), sum);
        }
    }
    if (x->dweight) cpu_add_blocks(cpu, x->scratch, n->width, x->dweight, x->gt, x->accumulate, n->width);
    return DT_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

#define EACH_BLOCK_OF(cpu, b, at_x, at_y)                                                                              \
    const int64_t n_blocks_ = (b)->n_rows * (b)->n_blocks;                                                             \
    CPU_PARALLEL_FOR (cpu, turn_, cpu_n_chunks(n_blocks_, GATE_ROWS))                                                  \
        for (int64_t i_ = turn_ * GATE_ROWS, end_ = dt_min_i64(i_ + GATE_ROWS, n_blocks_), at_x, at_y;                 \
             i_ < end_ && (at_x = cpu_row_at(i_, (b)->n_blocks, (b)->x_ld, (b)->x_block),                              \
                          at_y = cpu_row_at(i_, (b)->n_blocks, (b)->y_ld, (b)->y_block), true);                        \
             i_++)

CPU_OP(copy_blocks)
{
    const dt_blocks *b = &x->b;
    EACH_BLOCK_OF(cpu, b, at_x, at_y)
    memcpy(cpu_at_w(x->y, b->dt, at_y), cpu_at(x->x, b->dt, at_x), (size_t)b->width * dt_dtype_size(b->dt));
    return DT_OK;
}

CPU_OP(sigmoid_gate_forward)
{
    const dt_blocks *b = &x->b;
    EACH_BLOCK_OF(cpu, b, at_x, at_y)
    cpu->k->sigmoid_gate_forward(cpu_at(x->x, b->dt, at_x), cpu_at(x->gate, b->dt, at_y), cpu_at_w(x->out, b->dt, at_x),
                                 b->width, b->dt);
    return DT_OK;
}

CPU_OP(sigmoid_gate_backward)
{
    const dt_blocks *b = &x->b;
    EACH_BLOCK_OF(cpu, b, at_x, at_y)
    cpu->k->sigmoid_gate_backward(cpu_at(x->x, b->dt, at_x), cpu_at(x->gate, b->dt, at_y), cpu_at(x->dout, b->dt, at_x),
                                  cpu_at_w(x->dx, b->dt, at_x), cpu_at_w(x->dgate, b->dt, at_y), b->width, b->dt);
    return DT_OK;
}
