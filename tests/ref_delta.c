/* ref_delta.c - the plain loops that define convolution and gated delta rule. */
#include "ref_delta.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- convolution ------------------------------------------------------------------------------------------------- */

static double row_at(const dt_conv *c, const double *x, const double *state, int seq, int64_t t, int64_t col)
{
    const int64_t kept = c->kernel - 1, row = c->state_row ? c->state_row[seq] : seq;
    if (t >= 0) return x[(c->q_start[seq] + t) * c->x_ld + col];
    return state ? state[(row * kept + kept + t) * c->width + col] : 0;
}

static double before_silu(const dt_conv *c, const double *x, const double *weight, const double *state, int seq,
                          int64_t t, int64_t col)
{
    double p = 0;
    for (int j = 0; j < c->kernel; j++)
        p += weight[col * c->kernel + j] * row_at(c, x, state, seq, t - c->kernel + 1 + j, col);
    return p;
}

void ref_conv_forward(const dt_conv *c, const double *x, const double *weight, double *y, double *state)
{
    const int64_t kept = c->kernel - 1;
    for (int seq = 0; seq < c->n_seq; seq++)
        for (int64_t col = 0; col < c->width; col++) {
            const int64_t len = c->q_start[seq + 1] - c->q_start[seq], row = c->state_row ? c->state_row[seq] : seq;
            double last[DT_CONV_MAX_KERNEL];
            for (int64_t t = 0; t < len; t++) {
                const double p = before_silu(c, x, weight, state, seq, t, col);
                y[(c->q_start[seq] + t) * c->y_ld + col] = p / (1 + exp(-p));
            }
            for (int64_t r = 0; r < kept; r++) last[r] = row_at(c, x, state, seq, len - kept + r, col);
            for (int64_t r = 0; state && r < kept; r++) state[(row * kept + r) * c->width + col] = last[r];
        }
}

void ref_conv_backward(const dt_conv *c, const double *x, const double *weight, const double *dy, double *dx,
                       double *dweight)
{
    for (int seq = 0; seq < c->n_seq; seq++)
        for (int64_t t = 0; t < c->q_start[seq + 1] - c->q_start[seq]; t++)
            for (int64_t col = 0; col < c->width; col++) {
                const int64_t row = c->q_start[seq] + t;
                const double p = before_silu(c, x, weight, NULL, seq, t, col), s = 1 / (1 + exp(-p)),
                             dp = dy[row * c->y_ld + col] * s * (1 + p * (1 - s));
                for (int j = 0; j < c->kernel; j++) {
                    const int64_t from = t - c->kernel + 1 + j;
                    if (from < 0) continue;
                    dx[(c->q_start[seq] + from) * c->x_ld + col] += dp * weight[col * c->kernel + j];
                    dweight[col * c->kernel + j] += dp * x[(c->q_start[seq] + from) * c->x_ld + col];
                }
            }
}

/* ---- gated delta rule -------------------------------------------------------------------------------------------- */

static void *room_for(int64_t n, size_t size)
{
    void *p = calloc((size_t)n + 1, size);
    if (!p) abort();
    return p;
}

/* y = factor x / |x|; returns 1 / |x|. */
static double normalise(const double *x, int n, double factor, double *y)
{
    double ss = 1e-6;
    for (int i = 0; i < n; i++) ss += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = factor * x[i] / sqrt(ss);
    return 1 / sqrt(ss);
}

/* One token of one head. */
typedef struct token {
    double q[DT_DELTA_MAX_DIM], k[DT_DELTA_MAX_DIM], u[DT_DELTA_MAX_DIM], error[DT_DELTA_MAX_DIM]; /* error: v - k S */
    double rq, rk, keep, beta;
    const double *q_from, *k_from, *v;
    int64_t row, of_k, of_v, gate;
} token;

static void load_token(const dt_delta *d, const ref_delta *r, int64_t row, int head, token *t)
{
    const int k_head = head / (d->n_v_heads / d->n_k_heads);
    t->row = row, t->of_k = row * d->x_ld + k_head * d->k_dim, t->of_v = row * d->x_ld + head * d->v_dim;
    t->gate = row * d->n_v_heads + head;
    t->q_from = r->q + t->of_k, t->k_from = r->k + t->of_k, t->v = r->v + t->of_v;
    t->rq = normalise(t->q_from, d->k_dim, 1 / sqrt(d->k_dim), t->q);
    t->rk = normalise(t->k_from, d->k_dim, 1, t->k);
    t->keep = exp(r->g[t->gate]), t->beta = r->beta[t->gate];
}

/* S: before the token, then after it. decayed NULL, or e^g S. */
static void advance(const dt_delta *d, token *t, double *S, double *decayed)
{
    const int dk = d->k_dim, dv = d->v_dim;
    for (int i = 0; i < dk * dv; i++) S[i] *= t->keep;
    if (decayed) memcpy(decayed, S, sizeof *S * (size_t)(dk * dv));
    for (int j = 0; j < dv; j++) {
        double read = 0;
        for (int i = 0; i < dk; i++) read += t->k[i] * S[i * dv + j];
        t->error[j] = t->v[j] - read, t->u[j] = t->beta * t->error[j];
    }
    for (int i = 0; i < dk; i++)
        for (int j = 0; j < dv; j++) S[i * dv + j] += t->k[i] * t->u[j];
}

static double *state_of(const dt_delta *d, const ref_delta *r, int seq, int head)
{
    const int64_t row = d->state_row ? d->state_row[seq] : seq;
    return r->state ? r->state + (row * d->n_v_heads + head) * d->k_dim * d->v_dim : NULL;
}

void ref_delta_forward(const dt_delta *d, const ref_delta *r)
{
    const int dk = d->k_dim, dv = d->v_dim;
    double *S = room_for(dk * dv, sizeof *S);
    for (int seq = 0; seq < d->n_seq; seq++)
        for (int head = 0; head < d->n_v_heads; head++) {
            double *kept = state_of(d, r, seq, head);
            for (int i = 0; i < dk * dv; i++) S[i] = kept ? kept[i] : 0;
            for (int64_t row = d->q_start[seq]; row < d->q_start[seq + 1]; row++) {
                token t;
                load_token(d, r, row, head, &t);
                advance(d, &t, S, NULL);
                for (int j = 0; j < dv; j++) {
                    double out = 0;
                    for (int i = 0; i < dk; i++) out += t.q[i] * S[i * dv + j];
                    r->out[row * d->o_ld + head * dv + j] = out;
                }
            }
            for (int i = 0; kept && i < dk * dv; i++) kept[i] = S[i];
        }
    free(S);
}

/* dx += factor / |x| (dy - x^ (x^ dy)) */
static void add_norm_gradient(const double *x, const double *dy, int n, double factor, double r, double *dx)
{
    double along = 0;
    for (int i = 0; i < n; i++) along += x[i] * r * dy[i];
    for (int i = 0; i < n; i++) dx[i] += factor * r * (dy[i] - x[i] * r * along);
}

/* dS: the gradient of the state after the token, then of that before it. S: after it. */
static void token_backward(const dt_delta *d, const ref_delta *r, int head, token *t, const double *S,
                           const double *decayed, double *dS)
{
    const int dk = d->k_dim, dv = d->v_dim;
    const double *dout = r->dout + t->row * d->o_ld + head * dv;
    double dq[DT_DELTA_MAX_DIM] = {0}, dk_[DT_DELTA_MAX_DIM] = {0}, dg = 0, dbeta = 0;
    for (int i = 0; i < dk; i++)
        for (int j = 0; j < dv; j++) dS[i * dv + j] += t->q[i] * dout[j], dq[i] += S[i * dv + j] * dout[j];
    for (int j = 0; j < dv; j++) {
        double du = 0;
        for (int i = 0; i < dk; i++) du += t->k[i] * dS[i * dv + j], dk_[i] += dS[i * dv + j] * t->u[j];
        dbeta += du * t->error[j];
        r->dv[t->of_v + j] = t->beta * du;
        for (int i = 0; i < dk; i++) {
            dk_[i] -= t->beta * du * decayed[i * dv + j];
            dS[i * dv + j] -= t->beta * du * t->k[i];
        }
    }
    for (int i = 0; i < dk * dv; i++) dg += dS[i] * decayed[i], dS[i] *= t->keep;
    r->dg[t->gate] = dg, r->dbeta[t->gate] = dbeta;
    add_norm_gradient(t->q_from, dq, dk, 1 / sqrt(dk), t->rq, r->dq + t->of_k);
    add_norm_gradient(t->k_from, dk_, dk, 1, t->rk, r->dk + t->of_k);
}

void ref_delta_backward(const dt_delta *d, const ref_delta *r)
{
    const int64_t dk = d->k_dim, dv = d->v_dim, size = dk * dv;
    double *S = room_for(size * (d->max_len + 1), sizeof *S), *decayed = room_for(size * d->max_len, sizeof *S),
           *dS = room_for(size, sizeof *S);
    token *t = room_for(d->max_len, sizeof *t);
    for (int64_t row = 0; row < d->n_tok; row++)
        for (int64_t i = 0; i < d->n_k_heads * dk; i++) r->dq[row * d->x_ld + i] = r->dk[row * d->x_ld + i] = 0;
    for (int seq = 0; seq < d->n_seq; seq++)
        for (int head = 0; head < d->n_v_heads; head++) {
            const int64_t start = d->q_start[seq], len = d->q_start[seq + 1] - start;
            memset(S, 0, (size_t)size * sizeof *S), memset(dS, 0, (size_t)size * sizeof *S);
            for (int64_t i = 0; i < len; i++) {
                load_token(d, r, start + i, head, &t[i]);
                memcpy(S + (i + 1) * size, S + i * size, (size_t)size * sizeof *S);
                advance(d, &t[i], S + (i + 1) * size, decayed + i * size);
            }
            for (int64_t i = len - 1; i >= 0; i--)
                token_backward(d, r, head, &t[i], S + (i + 1) * size, decayed + i * size, dS);
        }
    free(S), free(decayed), free(dS), free(t);
}
