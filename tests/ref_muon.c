/* ref_muon.c - see ref_muon.h. Slow and plain: one element at a time. */
#include "ref_muon.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double bf16(double x) { return (double)dt_bf16_to_float(dt_bf16_from_float((float)x)); }

/** a [m, k] times b [k, n], or times the transpose of b [n, k]; malloc'ed. */
static double *times(const double *a, const double *b, int64_t m, int64_t k, int64_t n, bool turned)
{
    double *c = calloc((size_t)(m * n), sizeof *c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; l < k; l++) c[i * n + j] += a[i * k + l] * b[turned ? j * k + l : l * n + j];
    return c;
}

/** X [m, n] with m <= n: one iteration in place. */
static void iterate(double *x, int64_t m, int64_t n)
{
    double *gram = times(x, x, m, n, m, true);
    for (int64_t i = 0; i < m * m; i++) gram[i] = bf16(gram[i]);
    double *square = times(gram, gram, m, m, m, false);
    for (int64_t i = 0; i < m * m; i++) gram[i] = bf16(-4.7750 * gram[i] + 2.0315 * square[i]);
    double *turned = times(gram, x, m, m, n, false);
    for (int64_t i = 0; i < m * n; i++) x[i] = bf16(3.4445 * x[i] + turned[i]);
    free(gram), free(square), free(turned);
}

static void newton_schulz(double *u, int64_t rows, int64_t cols, int64_t n_iterations)
{
    const bool tall = rows > cols;
    double *x = calloc((size_t)(rows * cols), sizeof *x), sum = 0;
    for (int64_t i = 0; i < rows * cols; i++) sum += u[i] * u[i];
    const double norm = bf16(fmax(sqrt(sum), 1e-7));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) x[tall ? j * rows + i : i * cols + j] = bf16(u[i * cols + j] / norm);
    for (int64_t k = 0; k < n_iterations; k++) iterate(x, tall ? cols : rows, tall ? rows : cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) u[i * cols + j] = x[tall ? j * rows + i : i * cols + j];
    free(x);
}

void ref_muon_step(const dt_optimizer_step *s, int64_t rows, int64_t cols, const float *grad, float *param,
                   float *momentum)
{
    const dt_config *cfg = s->cfg;
    const double mu = cfg->optimizer_muon_momentum, m = (double)rows, n = (double)cols;
    const double scale =
        !strcmp(cfg->optimizer_muon_lr_scale, "original") ? sqrt(fmax(1, m / n)) : 0.2 * sqrt(fmax(m, n));
    double *u = calloc((size_t)(rows * cols), sizeof *u);
    for (int64_t i = 0; i < rows * cols; i++) {
        const double g = s->grad_scale * (double)grad[i], b = mu * (double)momentum[i] + (1 - mu) * g;
        momentum[i] = (float)b;
        u[i] = bf16(cfg->optimizer_muon_nesterov ? mu * b + (1 - mu) * g : b);
    }
    newton_schulz(u, rows, cols, cfg->optimizer_muon_ns_steps);
    for (int64_t i = 0; i < rows * cols; i++)
        param[i] = (float)((1 - s->lr * s->weight_decay) * (double)param[i] - s->lr * scale * u[i]);
    free(u);
}
