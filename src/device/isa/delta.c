/* delta.c - the gated delta rule (dt_delta), for one sequence and value head: in chunks, forward and backward, and
 * token by token.
 *
 * In a chunk of C tokens, with state S before it, normalised rows q_i and k_i, G_i the sum of g up to token i,
 * D_ij = e^(G_i - G_j) for i >= j, E_i = e^(G_i), F_i = e^(G_C - G_i) (docs/algorithms.md, 8.8):
 *
 *     L_ij = beta_i D_ij k_i k_j (i > j)      P_ij = D_ij q_i k_j (i >= j)
 *     N = V - E K S     (1 + L) U = beta N    out = E Q S + P U     S' = e^(G_C) S + K^T F U
 *
 * Exponents are never above 0, so a decay that underflows is 0. G is summed in double: D_ij of two tokens after a
 * strong decay is a difference of large numbers. The triangular system is solved in blocks of SOLVE rows. Tiles: rows
 * of tokens [CHUNK][kp] or [CHUNK][vp], squares [CHUNK][CHUNK], states [kp][vp], padded with zeros. */
#include "tile.h"

enum { CHUNK = DT_DELTA_CHUNK, SOLVE = 16, PAD = 16 };
static const float NORM_EPS = 1e-6f;

/* ---- a thread's scratch ------------------------------------------------------------------------------------------ */

typedef struct work {
    int64_t dk, dv, kp, vp;
    float *q, *k, *kt;           /* [CHUNK][kp], and [kp][CHUNK] */
    float *u, *n, *v_tmp;        /* [CHUNK][vp]: U, N, and a product */
    float *low, *p, *decay;      /* squares: -L, P, D */
    float *state;                /* [kp][vp] */
    float *dq, *dk_row, *dk_col; /* [CHUNK][kp]; dk_row: a product that is a part of dK, dk_col: the sum */
    float *dout, *w, *ut;        /* [CHUNK][vp], and [vp][CHUNK] */
    float *m;                    /* square */
    float *dstate, *st, *dst;    /* [kp][vp], and [vp][kp]: S and dS transposed */
    float *states;               /* [chunks][dk][dv] */
    float e[CHUNK], f[CHUNK], beta[CHUNK];
    double sum[CHUNK];               /* G */
    double of_e[CHUNK], of_f[CHUNK]; /* gradients of log E and log F */
} work;

static int64_t n_chunks_of(int64_t len) { return (len + CHUNK - 1) / CHUNK; }

int64_t ISA_NAME(delta_scratch)(const dt_delta *d, bool backward)
{
    const int64_t kp = round_up(d->k_dim, PAD), vp = round_up(d->v_dim, PAD), square = CHUNK * CHUNK;
    const int64_t forward = 3 * CHUNK * kp + 3 * CHUNK * vp + 3 * square + kp * vp;
    if (!backward) return forward;
    return forward + 3 * CHUNK * kp + 3 * CHUNK * vp + square + 3 * kp * vp +
           n_chunks_of(d->max_len) * d->k_dim * d->v_dim;
}

static void carve_work(work *w, const dt_delta *d, bool backward, float *p)
{
    w->dk = d->k_dim, w->dv = d->v_dim, w->kp = round_up(d->k_dim, PAD), w->vp = round_up(d->v_dim, PAD);
    float **const of_k[] = {&w->q, &w->k, &w->kt, &w->dq, &w->dk_row, &w->dk_col},
                  **const of_v[] = {&w->u, &w->n, &w->v_tmp, &w->dout, &w->w, &w->ut},
                  **const squares[] = {&w->low, &w->p, &w->decay, &w->m},
                  **const of_state[] = {&w->state, &w->dstate, &w->st, &w->dst};
    for (int i = 0; i < (backward ? 6 : 3); i++, p += CHUNK * w->kp) *of_k[i] = p;
    for (int i = 0; i < (backward ? 6 : 3); i++, p += CHUNK * w->vp) *of_v[i] = p;
    for (int i = 0; i < (backward ? 4 : 3); i++, p += CHUNK * CHUNK) *squares[i] = p;
    for (int i = 0; i < (backward ? 4 : 1); i++, p += w->kp * w->vp) *of_state[i] = p;
    w->states = p;
}

/* ---- loading a chunk --------------------------------------------------------------------------------------------- */

/* rows [n][kp] of length dk become factor x / |x|. */
static void normalise(float *rows, int64_t n, int64_t dk, int64_t kp, float factor)
{
    for (int64_t i = 0; i < n; i++) {
        float *x = rows + i * kp, ss = 0;
        _Pragma("omp simd reduction(+ : ss)") for (int64_t c = 0; c < dk; c++) ss = FMA(x[c], x[c], ss);
        const float r = factor / sqrtf(ss + NORM_EPS);
        SIMD_FOR (int64_t c = 0; c < dk; c++) x[c] *= r;
    }
}

/* The chunk's first row, tokens and heads. */
typedef struct chunk {
    int64_t row;
    int32_t n;
    int head, k_head;
} chunk;

static void load_decays(work *w, const dt_delta *d, const dt_delta_args *a, const chunk *c)
{
    double sum = 0;
    for (int32_t i = 0; i < c->n; i++) {
        const int64_t at = (c->row + i) * d->n_v_heads + c->head;
        w->sum[i] = sum += (double)a->g[at];
        w->beta[i] = a->beta[at];
    }
    for (int32_t i = 0; i < c->n; i++) {
        w->e[i] = exp_f((float)w->sum[i]);
        w->f[i] = exp_f((float)(sum - w->sum[i]));
    }
    memset(w->decay, 0, CHUNK * CHUNK * sizeof(float));
    for (int32_t i = 0; i < c->n; i++) {
        float *row = w->decay + i * CHUNK;
        for (int32_t j = 0; j <= i; j++) row[j] = exp_f((float)(w->sum[i] - w->sum[j]));
    }
}

static void load_chunk(work *w, const dt_delta *d, const dt_delta_args *a, const chunk *c, bool with_q)
{
    const int64_t at = c->row * d->x_ld, of_k = at + (int64_t)c->k_head * w->dk;
    load_decays(w, d, a, c);
    load_rows(w->k, cpu_at(a->k, d->dt, of_k), d->dt, d->x_ld, c->n, w->dk, w->kp, 1.0f);
    normalise(w->k, c->n, w->dk, w->kp, 1.0f);
    memset(w->k + c->n * w->kp, 0, (size_t)((CHUNK - c->n) * w->kp) * sizeof(float));
    transpose(w->kt, w->k, CHUNK, w->kp);
    load_rows(w->n, cpu_at(a->v, d->dt, at + (int64_t)c->head * w->dv), d->dt, d->x_ld, c->n, w->dv, w->vp, 1.0f);
    if (!with_q) return;
    load_rows(w->q, cpu_at(a->q, d->dt, of_k), d->dt, d->x_ld, c->n, w->dk, w->kp, 1.0f);
    normalise(w->q, c->n, w->dk, w->kp, 1.0f / sqrtf((float)w->dk));
}

/* ---- rows of tiles ----------------------------------------------------------------------------------------------- */

static void scale_rows(float *rows, const float *factor, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        SIMD_FOR (int64_t c = 0; c < width; c++) rows[i * width + c] *= factor[i];
}

static void scaled_rows(float *restrict to, const float *restrict rows, const float *factor, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        SIMD_FOR (int64_t c = 0; c < width; c++) to[i * width + c] = rows[i * width + c] * factor[i];
}

INLINE float dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;
    _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < n; c++) sum = FMA(x[c], y[c], sum);
    return sum;
}

/* (1 + L) X = X in place, for X [n][vp]; low: -L. */
static void solve(const work *w, int32_t n, float *restrict x)
{
    for (int32_t b = 0; b < n; b += SOLVE) {
        const int32_t end = n - b < SOLVE ? n : b + SOLVE;
        if (b) tile_matmul(false, end - b, w->vp, b, w->low + b * CHUNK, CHUNK, x, w->vp, x + b * w->vp, w->vp, true);
        for (int32_t i = b + 1; i < end; i++)
            for (int32_t j = b; j < i; j++) {
                const float l = w->low[i * CHUNK + j];
                SIMD_FOR (int64_t c = 0; c < w->vp; c++) x[i * w->vp + c] = FMA(l, x[j * w->vp + c], x[i * w->vp + c]);
            }
    }
}

/* (1 + L)^T X = X in place. */
static void solve_transposed(const work *w, int32_t n, float *restrict x)
{
    for (int32_t b = (n - 1) / SOLVE * SOLVE; b >= 0; b -= SOLVE) {
        const int32_t end = n - b < SOLVE ? n : b + SOLVE;
        if (end < n)
            tile_matmul(true, end - b, w->vp, n - end, w->low + end * CHUNK + b, CHUNK, x + end * w->vp, w->vp,
                        x + b * w->vp, w->vp, true);
        for (int32_t i = end - 2; i >= b; i--)
            for (int32_t j = i + 1; j < end; j++) {
                const float l = w->low[j * CHUNK + i];
                SIMD_FOR (int64_t c = 0; c < w->vp; c++) x[i * w->vp + c] = FMA(l, x[j * w->vp + c], x[i * w->vp + c]);
            }
    }
}

/* N, then U, from V in N. */
static void new_values(work *w, int32_t n)
{
    tile_matmul(false, n, CHUNK, w->dk, w->k, w->kp, w->kt, CHUNK, w->low, CHUNK, false);
    for (int32_t i = 0; i < n; i++) {
        float *row = w->low + i * CHUNK;
        const float *decay = w->decay + i * CHUNK;
        for (int32_t j = 0; j < CHUNK; j++) row[j] = j < i ? -w->beta[i] * decay[j] * row[j] : 0.0f;
    }
    tile_matmul(false, n, w->vp, w->dk, w->k, w->kp, w->state, w->vp, w->v_tmp, w->vp, false);
    for (int32_t i = 0; i < n; i++) {
        float *row = w->n + i * w->vp;
        const float *read = w->v_tmp + i * w->vp;
        SIMD_FOR (int64_t c = 0; c < w->vp; c++) row[c] = FMA(-w->e[i], read[c], row[c]);
    }
    scaled_rows(w->u, w->n, w->beta, n, w->vp);
    solve(w, n, w->u);
}

/* S <- e^(G_C) S + K^T F U */
static void advance(work *w, int32_t n)
{
    const float all = w->e[n - 1];
    for (int64_t i = 0; i < w->dk; i++)
        SIMD_FOR (int64_t c = 0; c < w->vp; c++) w->state[i * w->vp + c] *= all;
    scaled_rows(w->v_tmp, w->u, w->f, n, w->vp);
    tile_matmul(true, w->dk, w->vp, n, w->k, w->kp, w->v_tmp, w->vp, w->state, w->vp, true);
}

/* P from Q and K. */
static void pair_queries(work *w, int32_t n)
{
    tile_matmul(false, n, CHUNK, w->dk, w->q, w->kp, w->kt, CHUNK, w->p, CHUNK, false);
    for (int32_t i = 0; i < n; i++)
        SIMD_FOR (int32_t j = 0; j < CHUNK; j++) w->p[i * CHUNK + j] *= w->decay[i * CHUNK + j];
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static float *state_of(const dt_delta *d, const dt_delta_args *a, int seq, int head)
{
    const int64_t row = d->state_row ? d->state_row[seq] : seq;
    return a->state ? a->state + (row * d->n_v_heads + head) * d->k_dim * d->v_dim : NULL;
}

static chunk chunk_at(const dt_delta *d, int seq, int head, int64_t first)
{
    const int64_t len = d->q_start[seq + 1] - d->q_start[seq];
    return (chunk){d->q_start[seq] + first, (int32_t)dt_min_i64(CHUNK, len - first), head,
                   head / (d->n_v_heads / d->n_k_heads)};
}

void ISA_NAME(delta_forward)(const dt_delta *d, const dt_delta_args *a, int seq, int head, float *scratch)
{
    work w;
    carve_work(&w, d, false, scratch);
    float *kept = state_of(d, a, seq, head);
    const int64_t len = d->q_start[seq + 1] - d->q_start[seq];
    memset(w.state, 0, (size_t)(w.kp * w.vp) * sizeof(float));
    if (kept) load_rows(w.state, kept, DT_F32, w.dv, w.dk, w.dv, w.vp, 1.0f);
    for (int64_t first = 0; first < len; first += CHUNK) {
        const chunk c = chunk_at(d, seq, head, first);
        load_chunk(&w, d, a, &c, true);
        new_values(&w, c.n);
        pair_queries(&w, c.n);
        tile_matmul(false, c.n, w.vp, w.dk, w.q, w.kp, w.state, w.vp, w.v_tmp, w.vp, false);
        scale_rows(w.v_tmp, w.e, c.n, w.vp);
        tile_matmul(false, c.n, w.vp, c.n, w.p, CHUNK, w.u, w.vp, w.v_tmp, w.vp, true);
        for (int32_t i = 0; i < c.n; i++)
            store_elements(a->out, d->dt, (c.row + i) * d->o_ld + (int64_t)head * w.dv, w.v_tmp + i * w.vp, w.dv);
        advance(&w, c.n);
    }
    for (int64_t i = 0; kept && i < w.dk; i++) memcpy(kept + i * w.dv, w.state + i * w.vp, (size_t)w.dv * sizeof *kept);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The state before each chunk, in states. */
static void keep_states(work *w, const dt_delta *d, const dt_delta_args *a, int seq, int head, int64_t len)
{
    memset(w->state, 0, (size_t)(w->kp * w->vp) * sizeof(float));
    for (int64_t first = 0; first < len; first += CHUNK) {
        const chunk c = chunk_at(d, seq, head, first);
        float *kept = w->states + first / CHUNK * w->dk * w->dv;
        for (int64_t i = 0; i < w->dk; i++)
            memcpy(kept + i * w->dv, w->state + i * w->vp, (size_t)w->dv * sizeof *kept);
        if (first + CHUNK >= len) break;
        load_chunk(w, d, a, &c, false);
        new_values(w, c.n);
        advance(w, c.n);
    }
}

/* m <- m D for i > j, or i >= j with the diagonal. */
static void decayed(work *w, int32_t n, float sign, bool diagonal)
{
    for (int32_t i = 0; i < n; i++) {
        float *row = w->m + i * CHUNK;
        const float *decay = w->decay + i * CHUNK;
        const int32_t end = diagonal ? i + 1 : i;
        for (int32_t j = 0; j < CHUNK; j++) row[j] = j < end ? sign * decay[j] * row[j] : 0.0f;
    }
}

/* From dout and dS: w = dU = P^T dout + F K dS, dq = E dout S^T + X K, dk_col = F U dS^T + X^T Q, with X = D dout U^T.
 * p becomes the gradient of log D from P. That of e^(G_C)'s exponent is returned. */
static double read_backward(work *w, int32_t n)
{
    double of_end = 0;
    transpose(w->st, w->state, w->kp, w->vp);
    memset(w->u + n * w->vp, 0, (size_t)((CHUNK - n) * w->vp) * sizeof(float));
    transpose(w->ut, w->u, CHUNK, w->vp);
    tile_matmul(false, n, CHUNK, w->dv, w->dout, w->vp, w->ut, CHUNK, w->m, CHUNK, false);
    tile_matmul(false, n, w->vp, w->dk, w->k, w->kp, w->dstate, w->vp, w->w, w->vp, false);
    scale_rows(w->w, w->f, n, w->vp);
    tile_matmul(true, n, w->vp, n, w->p, CHUNK, w->dout, w->vp, w->w, w->vp, true);
    for (int32_t i = 0; i < n; i++)
        SIMD_FOR (int32_t j = 0; j < CHUNK; j++) w->p[i * CHUNK + j] *= w->m[i * CHUNK + j];
    decayed(w, n, 1.0f, true);
    tile_matmul(false, n, w->kp, w->dv, w->dout, w->vp, w->st, w->kp, w->dq, w->kp, false);
    scale_rows(w->dq, w->e, n, w->kp);
    for (int32_t i = 0; i < n; i++) w->of_e[i] = (double)dot(w->q + i * w->kp, w->dq + i * w->kp, w->dk);
    tile_matmul(false, n, w->kp, n, w->m, CHUNK, w->k, w->kp, w->dq, w->kp, true);
    for (int64_t i = 0; i < w->dk; i++)
        of_end += (double)(w->e[n - 1] * dot(w->dstate + i * w->vp, w->state + i * w->vp, w->dv));
    transpose(w->dst, w->dstate, w->kp, w->vp);
    tile_matmul(false, n, w->kp, w->dv, w->u, w->vp, w->dst, w->kp, w->dk_col, w->kp, false);
    scale_rows(w->dk_col, w->f, n, w->kp);
    for (int32_t i = 0; i < n; i++) w->of_f[i] = (double)dot(w->k + i * w->kp, w->dk_col + i * w->kp, w->dk);
    tile_matmul(true, n, w->kp, n, w->m, CHUNK, w->q, w->kp, w->dk_col, w->kp, true);
    return of_end;
}

/* From w = dU: w = W = (1 + L)^-T dU, dk_row = - beta E W S^T, dk_col += beta M K + (beta M)^T K, with M = - D W U^T
 * below the diagonal, and beta's gradient. p += the gradient of log D from L. */
static void write_backward(work *w, const dt_delta *d, const dt_delta_args *a, const chunk *c)
{
    const int32_t n = c->n;
    float both[CHUNK];
    solve_transposed(w, n, w->w);
    tile_matmul(false, n, CHUNK, w->dv, w->w, w->vp, w->ut, CHUNK, w->m, CHUNK, false);
    for (int32_t i = 0; i < n; i++)
        SIMD_FOR (int32_t j = 0; j < CHUNK; j++)
            w->p[i * CHUNK + j] = FMA(w->low[i * CHUNK + j], w->m[i * CHUNK + j], w->p[i * CHUNK + j]);
    decayed(w, n, -1.0f, false);
    tile_matmul(false, n, w->kp, n, w->m, CHUNK, w->k, w->kp, w->dk_row, w->kp, false);
    for (int32_t i = 0; i < n; i++)
        a->dbeta[(c->row + i) * d->n_v_heads + c->head] =
            dot(w->k + i * w->kp, w->dk_row + i * w->kp, w->dk) + dot(w->w + i * w->vp, w->n + i * w->vp, w->dv);
    for (int32_t i = 0; i < n; i++)
        SIMD_FOR (int64_t j = 0; j < w->kp; j++)
            w->dk_col[i * w->kp + j] = FMA(w->beta[i], w->dk_row[i * w->kp + j], w->dk_col[i * w->kp + j]);
    scale_rows(w->m, w->beta, n, CHUNK);
    tile_matmul(true, n, w->kp, n, w->m, CHUNK, w->k, w->kp, w->dk_col, w->kp, true);
    for (int32_t i = 0; i < n; i++) both[i] = -w->beta[i] * w->e[i];
    scaled_rows(w->v_tmp, w->w, both, n, w->vp);
    tile_matmul(false, n, w->kp, w->dv, w->v_tmp, w->vp, w->st, w->kp, w->dk_row, w->kp, false);
    for (int32_t i = 0; i < n; i++) w->of_e[i] += (double)dot(w->k + i * w->kp, w->dk_row + i * w->kp, w->dk);
}

/* dS <- e^(G_C) dS + Q^T E dout - K^T beta E W, of which v_tmp has - beta E W. */
static void state_backward(work *w, int32_t n)
{
    for (int64_t i = 0; i < w->dk; i++)
        SIMD_FOR (int64_t c = 0; c < w->vp; c++) w->dstate[i * w->vp + c] *= w->e[n - 1];
    tile_matmul(true, w->dk, w->vp, n, w->k, w->kp, w->v_tmp, w->vp, w->dstate, w->vp, true);
    scaled_rows(w->v_tmp, w->dout, w->e, n, w->vp);
    tile_matmul(true, w->dk, w->vp, n, w->q, w->kp, w->v_tmp, w->vp, w->dstate, w->vp, true);
}

/* g_i is in the exponents of E_l for l >= i, of F_j for j < i, of D_lj for l >= i > j, and of e^(G_C). The sum of their
 * gradients has no terms that cancel: where g_i is so strong that all of these decays are 0, dg_i is 0. */
static void store_decay_gradients(work *w, const dt_delta *d, const dt_delta_args *a, const chunk *c, double of_end)
{
    float of_d[CHUNK] = {0}; /* of_d[j]: sum over l >= i */
    double of_e = 0;
    for (int32_t i = 0; i < c->n; i++) {
        const double f = w->of_f[i];
        w->of_f[i] = of_end, of_end += f;
    }
    for (int32_t i = c->n - 1; i >= 0; i--) {
        float pairs = 0;
        SIMD_FOR (int32_t j = 0; j < CHUNK; j++) of_d[j] += w->p[i * CHUNK + j];
        _Pragma("omp simd reduction(+ : pairs)") for (int32_t j = 0; j < i; j++) pairs += of_d[j];
        of_e += w->of_e[i];
        a->dg[(c->row + i) * d->n_v_heads + c->head] = (float)(of_e + w->of_f[i] + (double)pairs);
    }
}

/* dq, dk and dv to memory. */
static void store_gradients(work *w, const dt_delta *d, const dt_delta_args *a, const chunk *c)
{
    scale_rows(w->w, w->beta, c->n, w->vp);
    for (int32_t i = 0; i < c->n; i++) {
        const float *dq = w->dq + i * w->kp, *col = w->dk_col + i * w->kp;
        float *row = w->dk_row + i * w->kp;
        const int64_t at = (c->row + i) * d->n_v_heads + c->head;
        SIMD_FOR (int64_t j = 0; j < w->dk; j++) row[j] += col[j];
        memcpy(a->dq_heads + at * w->dk, dq, (size_t)w->dk * sizeof *dq);
        memcpy(a->dk_heads + at * w->dk, row, (size_t)w->dk * sizeof *row);
        store_elements(a->dv, d->dt, (c->row + i) * d->x_ld + (int64_t)c->head * w->dv, w->w + i * w->vp, w->dv);
    }
}

void ISA_NAME(delta_backward)(const dt_delta *d, const dt_delta_args *a, int seq, int head, float *scratch)
{
    work w;
    carve_work(&w, d, true, scratch);
    const int64_t len = d->q_start[seq + 1] - d->q_start[seq];
    if (len == 0) return;
    keep_states(&w, d, a, seq, head, len);
    memset(w.state, 0, (size_t)(w.kp * w.vp) * sizeof(float));
    memset(w.dstate, 0, (size_t)(w.kp * w.vp) * sizeof(float));
    for (int64_t first = (len - 1) / CHUNK * CHUNK; first >= 0; first -= CHUNK) {
        const chunk c = chunk_at(d, seq, head, first);
        load_rows(w.state, w.states + first / CHUNK * w.dk * w.dv, DT_F32, w.dv, w.dk, w.dv, w.vp, 1.0f);
        load_chunk(&w, d, a, &c, true);
        load_rows(w.dout, cpu_at(a->dout, d->dt, c.row * d->o_ld + (int64_t)head * w.dv), d->dt, d->o_ld, c.n, w.dv,
                  w.vp, 1.0f);
        new_values(&w, c.n);
        pair_queries(&w, c.n);
        const double of_end = read_backward(&w, c.n);
        write_backward(&w, d, a, &c);
        state_backward(&w, c.n);
        store_decay_gradients(&w, d, a, &c, of_end);
        store_gradients(&w, d, a, &c);
    }
}

/* The gradient of x from that of y = factor x / |x|, summed over the value heads: with r = 1 / |x|,
 *     dx = factor r (dy - x r (x r dy)) */
static void norm_backward(const dt_delta *d, const void *x, const float *dy, float factor, void *dx)
{
    const int64_t dk = d->k_dim, group = d->n_v_heads / d->n_k_heads;
    float row[DT_DELTA_MAX_DIM], sum[DT_DELTA_MAX_DIM] = {0}, ss = 0;
    for (int64_t h = 0; h < group; h++)
        SIMD_FOR (int64_t c = 0; c < dk; c++) sum[c] += dy[h * dk + c];
    load_elements(row, x, d->dt, 0, dk);
    _Pragma("omp simd reduction(+ : ss)") for (int64_t c = 0; c < dk; c++) ss = FMA(row[c], row[c], ss);
    const float r = 1.0f / sqrtf(ss + NORM_EPS), along = dot(row, sum, dk) * r * r;
    SIMD_FOR (int64_t c = 0; c < dk; c++) sum[c] = factor * r * FMA(-row[c], along, sum[c]);
    store_elements(dx, d->dt, 0, sum, dk);
}

void ISA_NAME(delta_qk_backward)(const dt_delta_backward_args *args, const dt_delta_args *a, int64_t row, int head)
{
    const dt_delta *d = &args->d;
    const int64_t at = row * d->x_ld + (int64_t)head * d->k_dim, group = d->n_v_heads / d->n_k_heads,
                  of_heads = (row * d->n_v_heads + head * group) * d->k_dim;
    norm_backward(d, cpu_at(args->q, d->dt, at), a->dq_heads + of_heads, 1.0f / sqrtf((float)d->k_dim),
                  cpu_at_w(args->dq, d->dt, at));
    norm_backward(d, cpu_at(args->k, d->dt, at), a->dk_heads + of_heads, 1.0f, cpu_at_w(args->dk, d->dt, at));
}

/* ---- token by token ---------------------------------------------------------------------------------------------- */

void ISA_NAME(delta_step)(const dt_delta *d, const dt_delta_args *a, int seq, int head)
{
    const int64_t dk = d->k_dim, dv = d->v_dim, len = d->q_start[seq + 1] - d->q_start[seq];
    float *restrict state = state_of(d, a, seq, head);
    float q[DT_DELTA_MAX_DIM], k[DT_DELTA_MAX_DIM], v[DT_DELTA_MAX_DIM], read[DT_DELTA_MAX_DIM], out[DT_DELTA_MAX_DIM];
    for (int64_t t = 0; t < len; t++) {
        const chunk c = chunk_at(d, seq, head, t);
        const int64_t at = c.row * d->x_ld;
        const float keep = exp_f(a->g[c.row * d->n_v_heads + head]), beta = a->beta[c.row * d->n_v_heads + head];
        load_elements(q, a->q, d->dt, at + c.k_head * dk, dk);
        load_elements(k, a->k, d->dt, at + c.k_head * dk, dk);
        load_elements(v, a->v, d->dt, at + head * dv, dv);
        normalise(q, 1, dk, dk, 1.0f / sqrtf((float)dk));
        normalise(k, 1, dk, dk, 1.0f);
        memset(read, 0, sizeof read), memset(out, 0, sizeof out);
        for (int64_t i = 0; i < dk; i++)
            SIMD_FOR (int64_t j = 0; j < dv; j++) {
                state[i * dv + j] *= keep;
                read[j] = FMA(k[i], state[i * dv + j], read[j]);
            }
        SIMD_FOR (int64_t j = 0; j < dv; j++) v[j] = beta * (v[j] - read[j]);
        for (int64_t i = 0; i < dk; i++)
            SIMD_FOR (int64_t j = 0; j < dv; j++) {
                state[i * dv + j] = FMA(k[i], v[j], state[i * dv + j]);
                out[j] = FMA(q[i], state[i * dv + j], out[j]);
            }
        store_elements(a->out, d->dt, c.row * d->o_ld + head * dv, out, dv);
    }
}
