/* rope.c - the rotary table (Su et al., arXiv:2104.09864), with the frequency rules of algorithms.md 8.5. Computed in
 * double: an angle is position times frequency, and in float it loses four digits at position 10^4. Only the rules
 * dynamic and longrope depend on the length of a sequence (dynamic_rope.c). */
#include "model_private.h"
#include <math.h>

static const double PI = 3.14159265358979323846;

/* Scales wavelengths beyond the pre-training length by factor, keeps short ones, and blends those in between. */
static double llama3_frequency(const dt_model_config *mc, double f)
{
    const double wavelength = 2 * PI / f, original = (double)mc->rope_original_max_position;
    if (wavelength < original / mc->rope_high_freq_factor) return f;
    if (wavelength > original / mc->rope_low_freq_factor) return f / mc->rope_factor;
    const double t =
        (original / wavelength - mc->rope_low_freq_factor) / (mc->rope_high_freq_factor - mc->rope_low_freq_factor);
    return f * ((1 - t) / mc->rope_factor + t);
}

/* The dimension that completes n rotations over the original length. */
static double yarn_dimension(const dt_model_config *mc, double n_turns)
{
    return (double)dt_model_rotary_dim(mc) * log((double)mc->rope_original_max_position / (n_turns * 2 * PI)) /
           (2 * log(mc->rope_theta));
}

static double yarn_frequency(const dt_model_config *mc, double f, int64_t i)
{
    double a = yarn_dimension(mc, mc->rope_beta_fast), b = yarn_dimension(mc, mc->rope_beta_slow);
    if (mc->rope_truncate) {
        a = floor(a);
        b = ceil(b);
    }
    a = fmax(a, 0);
    b = fmin(b, (double)dt_model_rotary_dim(mc) - 1);
    if (a == b) b += 0.001;
    const double ramp = fmin(fmax(((double)i - a) / (b - a), 0), 1);
    return f * (1 - ramp) + f / mc->rope_factor * ramp;
}

static double yarn_scale(const dt_model_config *mc)
{
    const double log_factor = mc->rope_factor > 1 ? log(mc->rope_factor) : 0;
    if (mc->rope_attention_factor > 0) return mc->rope_attention_factor;
    if (mc->rope_mscale > 0 && mc->rope_mscale_all_dim > 0)
        return (0.1 * mc->rope_mscale * log_factor + 1) / (0.1 * mc->rope_mscale_all_dim * log_factor + 1);
    return 0.1 * log_factor + 1;
}

static double longrope_scale(const dt_model_config *mc)
{
    const double O = (double)mc->rope_original_max_position,
                 factor = mc->rope_factor > 0 ? mc->rope_factor : (double)mc->max_position_embeddings / O;
    if (mc->rope_attention_factor > 0) return mc->rope_attention_factor;
    return factor > 1 ? sqrt(1 + log(factor) / log(O)) : 1;
}

int dt_model_rope_axis(const dt_model_config *mc, int64_t i)
{
    const int64_t *n = mc->mrope_section, half = dt_model_rotary_dim(mc) / 2;
    if (mc->rope_axes == 0) return 0;
    if (mc->rope_axes == 2) return i >= half / 2;
    if (mc->mrope_interleaved) return i % 3 > 0 && i < 3 * n[i % 3] ? (int)(i % 3) : 0;
    return i < n[0] ? 0 : i < n[0] + n[1] ? 1 : 2;
}

static double frequency(const dt_model_config *mc, int64_t i, int64_t length)
{
    const int n_turns = mc->rope_axes == 2 ? 2 : 1; /* the axes of a tower have the same frequencies */
    const double d = (double)(dt_model_rotary_dim(mc) / n_turns), longest = (double)mc->max_position_embeddings;
    if (n_turns == 2) i %= dt_model_rotary_dim(mc) / 4;
    double theta = mc->rope_theta;
    if (mc->rope_type == DT_ROPE_DYNAMIC && (double)length > longest) {
        const double s = mc->rope_factor;
        theta *= pow(s * (double)length / longest - (s - 1), d / (d - 2));
    }
    const double f = pow(theta, -2.0 * (double)i / d);
    if (mc->rope_type == DT_ROPE_LINEAR) return f / mc->rope_factor;
    if (mc->rope_type == DT_ROPE_LLAMA3) return llama3_frequency(mc, f);
    if (mc->rope_type == DT_ROPE_YARN) return yarn_frequency(mc, f, i);
    if (mc->rope_type == DT_ROPE_LONGROPE)
        return f / (length > mc->rope_original_max_position ? mc->rope_long : mc->rope_short)[i];
    return f;
}

int64_t dt_model_rope_constant_length(const dt_model_config *mc)
{
    if (mc->rope_type == DT_ROPE_DYNAMIC) return mc->max_position_embeddings;
    return mc->rope_type == DT_ROPE_LONGROPE ? mc->rope_original_max_position : INT64_MAX;
}

int32_t dt_model_recompute_length(const dt_model_config *mc, int64_t longest)
{
    const int64_t length = dt_model_rope_constant_length(mc);
    return mc->rope_type == DT_ROPE_LONGROPE && length < longest ? (int32_t)length : 0;
}

/* The factor of a query at this position, which its rotation applies. */
static double q_scale(const dt_model_config *mc, int64_t pos)
{
    return 1 + mc->q_scaling_beta * log(1 + floor((double)pos / (double)mc->rope_original_max_position));
}

void dt_model_rope_rows(const dt_model_config *mc, bool of_q, int64_t length, int64_t first, int64_t n, float *cos_sin)
{
    const int64_t width = dt_model_rotary_dim(mc), half = width / 2;
    const double scale = mc->rope_type == DT_ROPE_YARN       ? yarn_scale(mc)
                         : mc->rope_type == DT_ROPE_LONGROPE ? longrope_scale(mc)
                                                             : 1;
    for (int64_t i = 0; i < half; i++) {
        const double f = frequency(mc, i, length);
        for (int64_t r = 0; r < n; r++) {
            const double angle = (double)(first + r) * f, s = of_q ? scale * q_scale(mc, first + r) : scale;
            cos_sin[r * width + i] = (float)(s * cos(angle));
            cos_sin[r * width + half + i] = (float)(s * sin(angle));
        }
    }
}

int64_t dt_model_max_length(const dt_model_config *mc)
{
    const double P = (double)mc->max_position_embeddings;
    double longest = P;
    if (mc->rope_type == DT_ROPE_LINEAR || mc->rope_type == DT_ROPE_DYNAMIC) longest = P * mc->rope_factor;
    if (mc->rope_type == DT_ROPE_YARN) longest = (double)mc->rope_original_max_position * mc->rope_factor;
    return (int64_t)fmin(fmax(longest, P), INT32_MAX / 2);
}
