/* muon.c - Muon: momentum, replaced by the nearest (semi-)orthogonal matrix.
 *
 * Source   Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; torch.optim.Muon. Scale of
 * the learning rate: Liu et al., "Muon is Scalable for LLM Training" (Moonlight), arXiv:2502.16982, section 2.2.
 *
 * Newton-Schulz iterates X <- a X + (b A + c A A) X with A = X X^T, from X = U / |U|. Singular values approach 1; with
 * these coefficients they end between about 0.7 and 1.2 after five iterations. As published, X, A and b A + c A A are
 * bf16 and sums are fp32. A tall matrix uses A = X^T X and multiplies from the right, which is the iteration of its
 * transpose. */
#include "dtrain/optim/optim.h"
#include <math.h>
#include <string.h>

enum { EXP_AVG, EXP_AVG_SQ, MOMENTUM_BUFFER, N_STATES };

static const float COEFFICIENT_A = 3.4445f, COEFFICIENT_B = -4.7750f, COEFFICIENT_C = 2.0315f;
static const double MIN_NORM = 1e-7; /* torch.optim.Muon's eps */

/* buf <- momentum buf + (1 - momentum) g;  U = buf, or with Nesterov momentum buf + (1 - momentum) g. */
static dt_err muon_direction(dt_device *dev, const dt_optimizer_step *s, const dt_update_range *r)
{
    float *buf = r->states[MOMENTUM_BUFFER];
    const double momentum = s->cfg->optimizer_muon_momentum;
    const float keep = (float)momentum, take = (float)((1 - momentum) * s->grad_scale);
    DT_TRY(dev->ops->add_scaled(dev, keep, buf, DT_F32, take, r->grad, r->grad_dtype, buf, DT_F32, r->n, r->stream));
    if (!s->cfg->optimizer_muon_nesterov)
        return dev->ops->convert(dev, buf, DT_F32, r->direction, DT_BF16, r->n, r->stream);
    return dev->ops->add_scaled(dev, keep, buf, DT_F32, take, r->grad, r->grad_dtype, r->direction, DT_BF16, r->n,
                                r->stream);
}

/* ---- Newton-Schulz ----------------------------------------------------------------------------------------------- */

static size_t gram_nbytes(int64_t small) { return ((size_t)(small * small) * sizeof(uint16_t) + 63) / 64 * 64; }

static size_t muon_scratch_nbytes(int64_t rows, int64_t cols)
{
    return 2 * gram_nbytes(dt_min_i64(rows, cols)) + (size_t)(rows * cols) * sizeof(float);
}

/* Multiplications and additions of an iteration. */
static double muon_work(int64_t rows, int64_t cols)
{
    const double small = (double)dt_min_i64(rows, cols), large = (double)dt_max_i64(rows, cols);
    return 2 * small * small * (2 * large + small);
}

/* C [m, n] = A B, all dense and bf16 except C. */
static dt_err multiply(dt_device *dev, int64_t m, int64_t n, int64_t k, const void *a, bool trans_a, const void *b,
                       bool trans_b, void *c, dt_dtype c_dtype, dt_stream *stream)
{
    const dt_matmul mm = dt_dense_matmul(m, n, k, trans_a, trans_b, DT_BF16, c_dtype);
    return dev->ops->matmul(dev, &mm, a, b, c, stream);
}

/* scratch: A and b A + c A A [m, m] in bf16, and a product in fp32. */
static dt_err iterate(dt_device *dev, int64_t rows, int64_t cols, void *x, char *gram, dt_stream *stream)
{
    const dt_device_ops *ops = dev->ops;
    const bool wide = rows <= cols;
    const int64_t m = dt_min_i64(rows, cols), k = dt_max_i64(rows, cols);
    char *polynomial = gram + gram_nbytes(m), *product = polynomial + gram_nbytes(m);
    DT_TRY(multiply(dev, m, m, k, x, !wide, x, wide, gram, DT_BF16, stream));
    DT_TRY(multiply(dev, m, m, m, gram, false, gram, false, product, DT_F32, stream));
    DT_TRY(ops->add_scaled(dev, COEFFICIENT_B, gram, DT_BF16, COEFFICIENT_C, product, DT_F32, polynomial, DT_BF16,
                           m * m, stream));
    DT_TRY(multiply(dev, rows, cols, m, wide ? polynomial : x, false, wide ? x : polynomial, false, product, DT_F32,
                    stream));
    return ops->add_scaled(dev, COEFFICIENT_A, x, DT_BF16, 1, product, DT_F32, x, DT_BF16, rows * cols, stream);
}

static dt_err muon_matrix(dt_device *dev, const dt_optimizer_step *s, void *x, int64_t rows, int64_t cols,
                          double sum_squares, void *scratch, dt_stream *stream)
{
    const float norm = dt_bf16_to_float(dt_bf16_from_float((float)fmax(sqrt(sum_squares), MIN_NORM)));
    DT_TRY(dev->ops->scale(dev, x, 1 / norm, x, DT_BF16, rows * cols, stream));
    for (int64_t i = 0; i < s->cfg->optimizer_muon_ns_steps; i++) DT_TRY(iterate(dev, rows, cols, x, scratch, stream));
    return DT_OK;
}

/* ---- the update -------------------------------------------------------------------------------------------------- */

/* Factor of the learning rate: 0.2 sqrt(max(rows, cols)) gives steps of the size of AdamW's; sqrt(max(1, rows / cols))
 * is the original. */
static double lr_factor(const dt_optimizer_step *s, int64_t rows, int64_t cols)
{
    if (!strcmp(s->cfg->optimizer_muon_lr_scale, "original")) return sqrt(fmax(1, (double)rows / (double)cols));
    return 0.2 * sqrt((double)dt_max_i64(rows, cols));
}

/* p <- (1 - lr wd) p - lr factor O */
static dt_err muon_apply(dt_device *dev, const dt_optimizer_step *s, int64_t rows, int64_t cols,
                         const dt_update_range *r)
{
    const float keep = (float)(1 - s->lr * s->weight_decay), take = (float)(-s->lr * lr_factor(s, rows, cols));
    DT_TRY(dev->ops->add_scaled(dev, keep, r->master, DT_F32, take, r->direction, DT_BF16, r->master, DT_F32, r->n,
                                r->stream));
    return r->param ? dev->ops->convert(dev, r->master, DT_F32, r->param, r->param_dtype, r->n, r->stream) : DT_OK;
}

static const dt_matrix_optimizer MATRICES = {.states = 1u << MOMENTUM_BUFFER,
                                             .direction = muon_direction,
                                             .scratch_nbytes = muon_scratch_nbytes,
                                             .work = muon_work,
                                             .matrix = muon_matrix,
                                             .apply = muon_apply};

const dt_optimizer_ops dt_optimizer_muon = {.name = "muon",
                                            .n_states = N_STATES,
                                            .state_names = {"exp_avg", "exp_avg_sq", "momentum_buffer"},
                                            .positive_states = 1u << EXP_AVG_SQ,
                                            .step = dt_adamw_step,
                                            .matrices = &MATRICES};
