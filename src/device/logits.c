/* logits.c - e^x by multiplications and additions in double. The compiler vectorises the loops, and results do not
 * depend on a maths library. */
#include "dtrain/device/logits.h"

#include <math.h>
#include <string.h>

/* e^x = 2^k e^r, |r| <= ln2/2. Adding 1.5 * 2^52 leaves k in the low bits. ln2 is split into two parts (Cody and
 * Waite). e^r is its series up to r^13, with a remainder below 5e-18. -708 <= x <= 0. */
static inline double exp_of(double x)
{
    const double t = x * 1.4426950408889634 + 0x1.8p52, k = t - 0x1.8p52;
    const double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    union {
        double d;
        uint64_t u;
    } magic = {.d = t}, e = {.d = p};
    e.u += magic.u << 52;
    return e.d;
}

void dt_logits_exp(const float *x, int64_t n, double top, double scale, double *out)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const double z = ((double)x[i] - top) * scale, inside = z < -708.0 ? -708.0 : z, e = exp_of(inside);
        out[i] = z < -708.0 ? 0.0 : e;
    }
}

int64_t dt_logits_first_best(const float *x, int64_t n)
{
    enum { BLOCK = 64 };
    float top = -INFINITY;
    int64_t at = -1; /* first element of the block with the maximum */
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t end = i + BLOCK < n ? i + BLOCK : n;
        float most = -INFINITY;
        int bad = 0;
#pragma omp simd reduction(max : most) reduction(| : bad)
        for (int64_t v = i; v < end; v++) {
            most = x[v] > most ? x[v] : most;
            bad |= !(x[v] < INFINITY);
        }
        if (bad) return -1;
        if (most > top) top = most, at = i;
    }
    while (at >= 0 && x[at] != top) at++;
    return at;
}

double dt_logits_log_sum_exp(const float *logits, int64_t n, double scale)
{
    enum { BLOCK = 256, LANES = 8 };
    double e[BLOCK], lane[LANES] = {0};
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) top = logits[i] > top ? logits[i] : top;
    if (!(fabs((double)top) < INFINITY)) return top;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t len = n - i < BLOCK ? n - i : BLOCK;
        dt_logits_exp(logits + i, len, top, scale, e);
        memset(e + len, 0, (size_t)(BLOCK - len) * sizeof *e);
        for (int64_t k = 0; k < BLOCK; k += LANES)
            for (int l = 0; l < LANES; l++) lane[l] += e[k + l];
    }
    return (double)top * scale +
           log(((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])));
}
