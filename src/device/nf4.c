/* nf4.c - quantisation to nf4, and dequantisation on the host; nf4.h describes the format. Plain loops: the devices
 * have their own dequantisation (isa/dequantise.c, cuda/matmul_stored.cu). */
#include "dtrain/device/nf4.h"
#include <math.h>

static const float LEVELS[16] = {DT_NF4_LEVELS}, MAP[256] = {DT_NF4_MAP};

/* max |x|; NaN if an element is NaN. */
static float largest(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        if (size > most || isnan(size)) most = size;
    }
    return most;
}

/* 1 / most, bounded so that blocks of zeros stay zeros. */
static float inverse_of(float most) { return 1.0f / (most < 1e-38f ? 1e-38f : most); }

/* Index of the nearest of n ascending values: the number of midpoints between neighbours that are below x. */
static uint8_t nearest(const float *numbers, int n, float x)
{
    int low = 0, high = n - 1;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (x > (numbers[mid] + numbers[mid + 1]) / 2)
            low = mid + 1;
        else
            high = mid;
    }
    return (uint8_t)low;
}

void dt_quantise_nf4_maxima(float *most, int64_t n_blocks, uint8_t *blocks, float *groups)
{
    double sum = 0;
    for (int64_t b = 0; b < n_blocks; b++) sum += (double)most[b];
    const float mean = (float)(sum / (double)n_blocks);
    for (int64_t b = 0; b < n_blocks; b++) most[b] -= mean;
    for (int64_t first = 0, g = 0; first < n_blocks; first += DT_NF4_GROUP, g++) {
        const int64_t n = dt_min_i64(DT_NF4_GROUP, n_blocks - first);
        const float scale = largest(most + first, n), inverse = inverse_of(scale);
        for (int64_t b = first; b < first + n; b++) blocks[b] = nearest(MAP, 256, most[b] * inverse);
        groups[2 * g] = scale, groups[2 * g + 1] = mean;
    }
}

float dt_quantise_nf4_block(const float *w, int64_t n, uint8_t *codes)
{
    const float most = largest(w, n), inverse = inverse_of(most);
    if (n % 2) codes[n / 2] = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t code = nearest(LEVELS, 16, w[i] * inverse);
        codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | code : code << 4);
    }
    return most;
}

void dt_dequantise_nf4(const uint8_t *codes, const uint8_t *blocks, const float *groups, int finer, int64_t first,
                       int64_t n, float *w)
{
    for (int64_t i = first; i < first + n; i++) {
        const int64_t b = i / DT_NF4_BLOCK, g = b >> dt_nf4_shift(finer);
        const float scale = MAP[blocks[b]] * groups[2 * g] + groups[2 * g + 1];
        const uint8_t both = codes[i / 2 - first / 2];
        w[i - first] = LEVELS[i % 2 ? both & 15 : both >> 4] * scale;
    }
}
