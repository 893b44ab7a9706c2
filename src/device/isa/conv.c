/* conv.c - causal depthwise convolution and SiLU (dt_conv), for some rows and columns of one sequence. Vectors run
 * along columns: a block of rows is loaded as floats, with the rows before it.
 *
 *     y_t = p_t sigmoid(p_t), p_t = sum_j w_j x_(t-K+1+j)
 *     dp_t = dy_t silu'(p_t), dx_s = sum_j w_j dp_(s+K-1-j), dw_j = sum_t dp_t x_(t-K+1+j) */
#include "kernels.h"
#include <string.h>

enum { COLS = DT_CPU_COLS, MORE = DT_CONV_MAX_KERNEL - 1 };

/* weight [K][COLS] of the part's columns. */
static void load_weight(const dt_conv *c, const void *weight, const dt_conv_part *part, float (*w)[COLS])
{
    for (int j = 0; j < c->kernel; j++)
        for (int64_t i = 0; i < part->n_cols; i++) w[j][i] = load(weight, c->dt, (part->col + i) * c->kernel + j);
}

/* Rows from .. to-1 of the sequence, row distance ld; rows before 0 are the state's, or 0. */
static void load_window(const dt_conv *c, const void *x, int64_t ld, const void *state, const dt_conv_part *part,
                        int32_t from, int32_t to, float (*rows)[COLS])
{
    const int64_t start = c->q_start[part->seq],
                  first_kept = (int64_t)(c->state_row ? c->state_row[part->seq] : part->seq) * (c->kernel - 1);
    for (int32_t t = from; t < to; t++) {
        float *row = rows[t - from];
        if (t >= 0)
            load_elements(row, x, c->dt, (start + t) * ld + part->col, part->n_cols);
        else if (state)
            load_elements(row, state, c->dt, (first_kept + c->kernel - 1 + t) * c->width + part->col, part->n_cols);
        else
            memset(row, 0, (size_t)part->n_cols * sizeof *row);
    }
}

/* p of one row: window begins K-1 rows before it. */
INLINE void convolve(int kernel, const float (*w)[COLS], const float (*window)[COLS], float *restrict p)
{
    SIMD_FOR (int64_t i = 0; i < COLS; i++) p[i] = 0.0f;
    for (int j = 0; j < kernel; j++)
        SIMD_FOR (int64_t i = 0; i < COLS; i++) p[i] = FMA(w[j][i], window[j][i], p[i]);
}

void ISA_NAME(conv_forward)(const dt_conv_forward_args *args, const dt_conv_part *part)
{
    const dt_conv *c = &args->c;
    float w[DT_CONV_MAX_KERNEL][COLS] = {{0}}, rows[DT_CONV_ROWS + MORE][COLS] = {{0}}, p[COLS];
    load_weight(c, args->weight, part, w);
    load_window(c, args->x, c->x_ld, args->state, part, part->first - c->kernel + 1, part->first + part->n, rows);
    for (int32_t t = 0; t < part->n; t++) {
        convolve(c->kernel, (const float(*)[COLS])w, (const float(*)[COLS])rows + t, p);
        SIMD_FOR (int64_t i = 0; i < COLS; i++) p[i] *= sigmoid_f(p[i]);
        store_elements(args->y, c->dt, (c->q_start[part->seq] + part->first + t) * c->y_ld + part->col, p,
                       part->n_cols);
    }
}

void ISA_NAME(conv_backward)(const dt_conv_backward_args *args, const dt_conv_part *part, float *dweight)
{
    const dt_conv *c = &args->c;
    const int K = c->kernel;
    const int32_t len = c->q_start[part->seq + 1] - c->q_start[part->seq],
                  end = (int32_t)dt_min_i64(part->first + part->n + K - 1, len), n = end - part->first;
    float w[DT_CONV_MAX_KERNEL][COLS] = {{0}}, dw[DT_CONV_MAX_KERNEL][COLS] = {{0}}, p[COLS], dx[COLS];
    float rows[DT_CONV_ROWS + 2 * MORE][COLS] = {{0}}, dp[DT_CONV_ROWS + MORE][COLS] = {{0}};
    load_weight(c, args->weight, part, w);
    load_window(c, args->x, c->x_ld, NULL, part, part->first - K + 1, end, rows);
    load_window(c, args->dy, c->y_ld, NULL, part, part->first, end, dp);
    for (int32_t t = 0; t < n; t++) {
        convolve(K, (const float(*)[COLS])w, (const float(*)[COLS])rows + t, p);
        SIMD_FOR (int64_t i = 0; i < COLS; i++) {
            const float s = sigmoid_f(p[i]);
            dp[t][i] *= s * FMA(p[i], 1.0f - s, 1.0f);
        }
        for (int j = 0; j < K && t < part->n; j++)
            SIMD_FOR (int64_t i = 0; i < COLS; i++) dw[j][i] = FMA(dp[t][i], rows[t + j][i], dw[j][i]);
    }
    for (int32_t t = 0; t < part->n; t++) { /* rows of dp after the sequence are 0 */
        memset(dx, 0, sizeof dx);
        for (int j = 0; j < K; j++)
            SIMD_FOR (int64_t i = 0; i < COLS; i++) dx[i] = FMA(w[j][i], dp[t + K - 1 - j][i], dx[i]);
        store_elements(args->dx, c->dt, (c->q_start[part->seq] + part->first + t) * c->x_ld + part->col, dx,
                       part->n_cols);
    }
    for (int64_t i = 0; i < part->n_cols; i++)
        for (int j = 0; j < K; j++) dweight[i * K + j] += dw[j][i];
}
