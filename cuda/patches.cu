/* patches.cu - images as rows of normalised patches. */
#include "each.cuh"
#include <math.h>

__device__ inline float of_colour(const float *v, unsigned c) /* selects: an index would move v to memory */
{
    return c == 0 ? v[0] : c == 1 ? v[1] : v[2];
}

/* A vector of out, which is treated as one long row. A vector may begin in one line of a patch and continue in the next
 * line, colour or patch. */
template <class T> struct patch_rows {
    static constexpr int V = vector_elems<T>, TURNS = 1;
    const uint8_t *pixels;
    T *out;
    int64_t n;
    unsigned size, patch, per_line /* patches */, n_rows /* of an image */, lead;
    float scale[3], shift[3];
    bool fits;

    struct item {
        int64_t at;
        vec<T, V> out;
    };

    /* the upper left pixel of a row's patch; NULL: a row of zeros */
    __device__ const uint8_t *corner(int64_t row) const
    {
        const row_place r = place_of(row, n_rows);
        if (r.in_row < lead) return NULL;
        const unsigned at = (unsigned)r.in_row - lead, y = at / per_line, x = at - y * per_line;
        return pixels + 3 * ((r.row * size + y * patch) * size + x * patch);
    }

    __device__ item load(int64_t i) const
    {
        const row_place begin = place_of(i * V, 3 * patch * patch);
        const unsigned col = (unsigned)begin.in_row;
        const int count = elems_left(i * V, n, V);
        int64_t row = begin.row;
        unsigned c = col / (patch * patch), y = col / patch % patch, x = col % patch;
        const uint8_t *from = corner(row);
        item t = {i * V, {}};
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (j == count) break;
            const float f =
                from ? fmaf((float)from[3 * (y * size + x) + c], of_colour(scale, c), of_colour(shift, c)) : 0.0f;
            t.out.x[j] = from_float<T>(f);
            if (++x < patch) continue;
            x = 0;
            if (++y < patch) continue;
            y = 0;
            if (++c < 3) continue;
            c = 0;
            from = corner(++row);
        }
        return t;
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.at, n, V);
        store_vec(out + t.at, t.out, count, fits && count == V);
    }
};

dt_err cuda_patches(dt_device *dev, const dt_patches *p, const uint8_t *pixels, void *out, dt_stream *stream)
{
    DT_TRY(dt_patches_check(p));
    dt_stream *s = cuda_stream(dev, stream, "patches");
    const int64_t n_rows = dt_patches_rows(p), n = p->n_images * n_rows * dt_patches_width(p);
    CUDA_BY_DTYPE(p->dt, T, "patches", {
        const patch_rows<T> op = {pixels,
                                  (T *)out,
                                  n,
                                  (unsigned)p->size,
                                  (unsigned)p->patch,
                                  (unsigned)(p->size / p->patch),
                                  (unsigned)n_rows,
                                  (unsigned)p->lead,
                                  {p->scale[0], p->scale[1], p->scale[2]},
                                  {p->shift[0], p->shift[1], p->shift[2]},
                                  vectors_fit(0, out)};
        return launch_each(s, op, ceil_div(n, patch_rows<T>::V));
    });
    return DT_OK;
}
