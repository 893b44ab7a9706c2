/* activation.cuh - activation functions and their derivatives. Element-wise operations and epilogues of matmuls share
 * one definition, so that an epilogue has the bits of the separate calls.
 *
 * All except relu, whose derivative at 0 is 0, are x s(x) with a smooth step s: silu and quick_gelu s = sigmoid(a x);
 * gelu_tanh s = (1 + tanh u)/2 = sigmoid(2u); gelu s = Phi(x). The derivative is s + x s'. */
#ifndef DTRAIN_ACTIVATION_CUH
#define DTRAIN_ACTIVATION_CUH

#include "kernel.cuh"

namespace activation
{

constexpr float SQRT_2_OVER_PI = 0.797884561f, INV_SQRT_2 = 0.707106781f, INV_SQRT_2PI = 0.398942280f,
                CUBE = 0.044715f; /* of gelu_tanh: u = sqrt(2/pi) (x + CUBE x^3) */

/* The hardware quotient needs a fifth of the instructions; its error is at most two units in the last place. With the
 * exact quotient, instructions instead of memory limit these operations. Divisors above 2^126 give 0. */
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ inline float factor(dt_activation act) { return act == DT_ACT_SILU ? 1.0f : 1.702f; }

__device__ inline float step(dt_activation act, float x)
{
    if (act == DT_ACT_GELU) return fmaf(0.5f, erff(x * INV_SQRT_2), 0.5f);
    if (act == DT_ACT_GELU_TANH) return sigmoid(2.0f * SQRT_2_OVER_PI * x * fmaf(CUBE * x, x, 1.0f));
    return sigmoid(factor(act) * x);
}

/* s'(x) for a known s(x). If s is 0 or 1 the derivative is 0, even if the other factor is not finite. */
__device__ inline float step_slope(dt_activation act, float x, float s)
{
    if (act == DT_ACT_GELU) return INV_SQRT_2PI * expf(-0.5f * x * x);
    const float bell = s * (1.0f - s);
    if (act != DT_ACT_GELU_TANH) return factor(act) * bell;
    return bell > 0.0f ? bell * 2.0f * SQRT_2_OVER_PI * fmaf(3.0f * CUBE * x, x, 1.0f) : bell;
}

} // namespace activation

/** act(x). */
__device__ inline float act_value(dt_activation act, float x)
{
    if (act == DT_ACT_RELU) return x < 0.0f ? 0.0f : x;
    return x * activation::step(act, x);
}
/** act'(x). */
__device__ inline float act_slope(dt_activation act, float x)
{
    if (act == DT_ACT_RELU) return x > 0.0f ? 1.0f : x <= 0.0f ? 0.0f : x; /* NaN stays NaN */
    const float s = activation::step(act, x);
    return fmaf(x, activation::step_slope(act, x, s), s);
}

#endif
