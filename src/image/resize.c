/* resize.c - convolution along rows and along columns, bit-identical to Pillow. Weights are computed in
 * double, normalised to a sum of 1 and rounded to multiples of 2^-22. Sums have 32 bits, and the
 * intermediate image has bytes. A dimension whose size does not change is skipped. Columns are processed
 * first if the height loses more than twice the pixels that the width loses. Pillow does so since version
 * 13, and the order affects rounding.
 *
 * Source   Pillow 13.0, src/libImaging/Resample.c, Geometry.c (nearest). */
#include "resize.h"
#include "convolve.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }
static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}
static double hamming(double x)
{
    x = fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= M_PI;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}
static double bicubic(double x) /* a = -0.5 */
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}
static double sinc(double x)
{
    if (x == 0.0) return 1.0;
    x *= M_PI;
    return sin(x) / x;
}
static double lanczos(double x) { return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

static const struct filter {
    double (*weight)(double x);
    double support;
} FILTERS[] = {[DT_BOX] = {box, 0.5},
               [DT_BILINEAR] = {bilinear, 1.0},
               [DT_HAMMING] = {hamming, 1.0},
               [DT_BICUBIC] = {bicubic, 2.0},
               [DT_LANCZOS] = {lanczos, 3.0}};

static void taps_free(dt_taps *t)
{
    free(t->weight);
    free(t->low);
    free(t->high);
    free(t->from);
    free(t->count);
}

/* Taps of one output: input pixels within the filter's support around its centre, weights in w. */
static void weigh(const struct filter *f, double scale, int64_t in, int64_t i, double *w, int *from, int *count)
{
    const double wide = scale < 1.0 ? 1.0 : scale, support = f->support * wide, center = ((double)i + 0.5) * scale;
    const double per_pixel = 1.0 / wide;
    int lo = (int)(center - support + 0.5), hi = (int)(center + support + 0.5);
    if (lo < 0) lo = 0;
    if (hi > in) hi = (int)in;
    double sum = 0.0;
    for (int j = 0; j < hi - lo; j++) {
        w[j] = f->weight((j + lo - center + 0.5) * per_pixel);
        sum += w[j];
    }
    for (int j = 0; j < hi - lo; j++)
        if (sum != 0.0) w[j] /= sum;
    *from = lo;
    *count = hi - lo;
}

static bool taps_alloc(dt_taps *t)
{
    const size_t n = (size_t)t->n, n_weights = n * (size_t)t->max_taps;
    t->weight = calloc(n_weights, sizeof *t->weight);
    t->low = calloc(n_weights, sizeof *t->low);
    t->high = calloc(n_weights, sizeof *t->high);
    t->from = malloc(sizeof *t->from * n);
    t->count = malloc(sizeof *t->count * n);
    return t->weight && t->low && t->high && t->from && t->count;
}

/* Taps of outputs `left` .. left+n-1 of `out`, from `in` inputs. */
static dt_err taps_make(dt_taps *t, dt_resample how, int64_t in, int64_t out, int64_t left, int64_t n)
{
    const struct filter *f = &FILTERS[how];
    const double scale = (double)in / (double)out, support = f->support * (scale < 1.0 ? 1.0 : scale);
    *t = (dt_taps){.n = n, .first = left, .span = n};
    if (in == out) return DT_OK;
    t->max_taps = dt_ceil_div((int64_t)ceil(support) * 2 + 1, DT_TAPS_GROUP) * DT_TAPS_GROUP;
    double *w = malloc(sizeof *w * (size_t)t->max_taps);
    const bool ok = w && taps_alloc(t);
    for (int64_t i = 0; ok && i < n; i++) {
        weigh(f, scale, in, left + i, w, &t->from[i], &t->count[i]);
        for (int64_t j = 0, at = i * t->max_taps; j < t->count[i]; j++, at++) {
            t->weight[at] = (int32_t)((w[j] < 0 ? -0.5 : 0.5) + w[j] * (1 << DT_TAPS_PRECISION));
            t->low[at] = (int16_t)t->weight[at];
            t->high[at] = (int16_t)((t->weight[at] - t->low[at]) / 65536);
        }
        if (i == 0) t->first = t->from[0];
        t->from[i] -= (int)t->first;
        t->span = t->from[i] + t->count[i];
    }
    free(w);
    return ok ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory to resize an image");
}

/* Both dimensions, with bytes in between. */
static dt_err two_passes(const dt_taps *x, const dt_taps *y, bool rows_first, const uint8_t *in, size_t in_stride,
                         uint8_t *out, size_t out_stride)
{
    const int64_t columns = rows_first ? x->n : x->span, rows = rows_first ? y->span : y->n;
    const size_t stride = 3 * (size_t)columns;
    uint8_t *between = malloc(stride * (size_t)rows);
    DT_CHECK(between, DT_ERR_MEMORY, "no memory to resize an image");
    if (rows_first) {
        dt_taps_along_rows(x, in, in_stride, rows, between, stride);
        dt_taps_down_columns(y, between, stride, (int64_t)stride, out, out_stride);
    } else {
        dt_taps_down_columns(y, in, in_stride, (int64_t)stride, between, stride);
        dt_taps_along_rows(x, between, stride, rows, out, out_stride);
    }
    free(between);
    return DT_OK;
}

static dt_err resize_smooth(const dt_image *image, int64_t width, int64_t height, dt_resample how, window keep,
                            uint8_t *out, size_t stride)
{
    const int64_t fewer_rows = image->height - height, fewer_columns = image->width - width;
    const bool rows_first = fewer_rows <= 0 || fewer_rows <= 2 * fewer_columns;
    const size_t row = 3 * (size_t)image->width;
    dt_taps x, y = {0};
    dt_err err = taps_make(&x, how, image->width, width, keep.left, keep.width);
    if (err == DT_OK) err = taps_make(&y, how, image->height, height, keep.top, keep.height);
    if (err == DT_OK) {
        const uint8_t *in = image->rgb + (size_t)y.first * row + 3 * (size_t)x.first;
        if (!y.weight)
            dt_taps_along_rows(&x, in, row, y.n, out, stride);
        else if (!x.weight)
            dt_taps_down_columns(&y, in, row, 3 * x.n, out, stride);
        else
            err = two_passes(&x, &y, rows_first, in, row, out, stride);
    }
    taps_free(&x);
    taps_free(&y);
    return err;
}

/* scale / 2 after n additions of scale, each rounded, because Pillow accumulates positions in this way.
 * Between two powers of two, all steps except the first are equal. They are multiples of one unit in the
 * last place, so any number of them is exact. */
static double running_sum(double scale, int64_t n)
{
    double x = scale * 0.5;
    while (n > 0) {
        const double one = x + scale, two = one + scale, step = two - one;
        int exponent;
        frexp(x, &exponent);
        const double end = ldexp(1, exponent);
        const int64_t k = two < end ? dt_min_i64(n - 2, (int64_t)((end - two) / step) - 1) : 0;
        x = k > 0 ? two + (double)k * step : one;
        n -= k > 0 ? 2 + k : 1;
    }
    return x;
}

/* Input positions of the nearest pixels for n outputs, starting at first. */
static void nearest(int64_t in, int64_t out, int64_t first, int64_t n, int64_t *at)
{
    const double scale = (double)in / (double)out;
    double x = running_sum(scale, first);
    for (int64_t i = 0; i < n; i++, x += scale) at[i] = dt_min_i64((int64_t)x, in - 1);
}

static dt_err resize_nearest(const dt_image *image, int64_t width, int64_t height, window keep, uint8_t *out,
                             size_t stride)
{
    int64_t *x = malloc(sizeof *x * (size_t)(keep.width + keep.height));
    DT_CHECK(x, DT_ERR_MEMORY, "no memory to resize an image");
    int64_t *y = x + keep.width;
    nearest(image->width, width, keep.left, keep.width, x);
    nearest(image->height, height, keep.top, keep.height, y);
    for (int64_t i = 0; i < keep.height; i++)
        for (int64_t j = 0; j < keep.width; j++)
            memcpy(out + (size_t)i * stride + 3 * j, image->rgb + 3 * (y[i] * image->width + x[j]), 3);
    free(x);
    return DT_OK;
}

dt_err dt_image_resize(const dt_image *image, int64_t width, int64_t height, dt_resample how, window keep, uint8_t *out,
                       size_t stride)
{
    if (how == DT_NEAREST) return resize_nearest(image, width, height, keep, out, stride);
    return resize_smooth(image, width, height, how, keep, out, stride);
}
