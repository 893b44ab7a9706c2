/* elementwise.cu - conversions and sums of elements, gather and scatter of rows, dropout, noise.
 *
 * Threads   each.cuh: one pass over memory, a few vectors per thread; no sums across elements. */
#include "each.cuh"
#include "philox.cuh"
#include <math.h>

/* ---- conversions and sums ---------------------------------------------------------------------------------------- */

struct identity {
    __device__ float operator()(float x) const { return x; }
};

static dt_err copy_elems(dt_stream *s, const void *src, void *dst, dt_dtype dt, int64_t n)
{
    if (src == dst) return DT_OK;
    DT_CUDA(cudaMemcpyAsync(dst, src, (size_t)n * dt_dtype_size(dt), cudaMemcpyDeviceToDevice, s->handle));
    return DT_OK;
}

dt_err cuda_convert(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, int64_t n,
                    dt_stream *stream)
{
    DT_TRY(dt_convert_check(src, src_dt, dst, dst_dt, n));
    if (n == 0) return DT_OK;
    dt_stream *s = cuda_stream(dev, stream, "convert");
    CUDA_BY_DTYPE(src_dt, S, "convert", {
        CUDA_BY_DTYPE(dst_dt, D, "convert", {
            if (src_dt == dst_dt) return copy_elems(s, src, dst, dst_dt, n);
            return launch_map<S, D>(s, identity(), src, dst, n);
        });
    });
    return DT_OK;
}

dt_err cuda_add_into(dt_device *dev, const void *src, dt_dtype src_dt, void *dst, dt_dtype dst_dt, bool accumulate,
                     int64_t n, dt_stream *stream)
{
    if (!accumulate) return cuda_convert(dev, src, src_dt, dst, dst_dt, n, stream);
    dt_stream *s = cuda_stream(dev, stream, "add_into");
    CUDA_BY_DTYPE(src_dt, S, "add_into", {
        CUDA_BY_DTYPE(dst_dt, D, "add_into", { return launch_map<S, D, D>(s, plus(), src, dst, dst, n); });
    });
    return DT_OK;
}

dt_err cuda_add(dt_device *dev, const void *a, const void *b, void *c, dt_dtype dt, int64_t n, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "add");
    CUDA_BY_DTYPE(dt, T, "add", { return launch_map<T, T, T>(s, plus(), a, b, c, n); });
    return DT_OK;
}

struct times {
    float factor;
    __device__ float operator()(float x) const { return factor * x; }
};

dt_err cuda_scale(dt_device *dev, const void *x, float factor, void *y, dt_dtype dt, int64_t n, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "scale");
    const times op = {factor};
    CUDA_BY_DTYPE(dt, T, "scale", { return launch_map<T, T>(s, op, x, y, n); });
    return DT_OK;
}

/* Rows of logits, ld apart: x = cap tanh(x / cap). */
struct capped_rows {
    static constexpr int V = 4, TURNS = 2;
    float *x;
    float cap, inverse;
    int64_t width, ld;
    unsigned per_row; /* vectors */
    bool fits;

    struct item {
        float *at;
        int count;
        vec<float, V> x;
    };
    __device__ item load(int64_t i) const
    {
        const row_place p = place_of(i, per_row);
        float *at = x + p.row * ld + p.in_row * V;
        const int count = elems_left(p.in_row * V, width, V);
        return {at, count, load_vec<V>(at, count, fits && count == V)};
    }
    __device__ void store(const item &t) const
    {
        vec<float, V> out;
#pragma unroll
        for (int j = 0; j < V; j++) out.x[j] = cap * tanhf(t.x.x[j] * inverse);
        store_vec(t.at, out, t.count, fits && t.count == V);
    }
};

dt_err cuda_softcap(dt_device *dev, float *x, float cap, int64_t n_rows, int64_t width, int64_t ld, dt_stream *stream)
{
    DT_TRY(dt_softcap_check(cap, n_rows, width, ld));
    const int64_t per_row = ceil_div(width, capped_rows::V);
    return launch_each(cuda_stream(dev, stream, "softcap"),
                       capped_rows{x, cap, 1.0f / cap, width, ld, (unsigned)per_row, vectors_fit((size_t)ld * 4, x)},
                       n_rows * per_row);
}

/* ---- rows by index ----------------------------------------------------------------------------------------------- */

/* Copy row r from src to dst. gather: dst[r] = src[index[r]], or zeros if the index is negative. scatter: dst[index[r]]
 * = src[r], skipped if the index is negative. A row consists of per_row units. Units are as large as the rows' size and
 * alignment allow. */
template <class Unit, bool gather> struct move_rows {
    static constexpr int TURNS = 2;
    const Unit *src;
    const int32_t *index;
    Unit *dst;
    int64_t per_row;

    struct item {
        int64_t to; /* negative: skipped */
        Unit unit;
    };
    __device__ item load(int64_t i) const
    {
        const row_place p = place_of(i, (unsigned)per_row);
        const int64_t other = index[p.row];
        if (gather) return {i, other < 0 ? Unit{} : src[other * per_row + p.in_row]};
        return {other < 0 ? -1 : other * per_row + p.in_row, src[i]};
    }
    __device__ void store(const item &t) const
    {
        if (t.to >= 0) dst[t.to] = t.unit;
    }
};

template <class Unit, bool gather>
static dt_err move_units(dt_stream *s, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                         size_t row_nbytes)
{
    const int64_t per_row = (int64_t)(row_nbytes / sizeof(Unit));
    return launch_each(s, move_rows<Unit, gather>{(const Unit *)src, index, (Unit *)dst, per_row}, n_rows * per_row);
}

template <bool gather>
static dt_err launch_move(dt_stream *s, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                          size_t row_nbytes)
{
    const size_t all = (size_t)src | (size_t)dst | row_nbytes;
    if (all % 16 == 0) return move_units<vec<uint32_t, 4>, gather>(s, src, index, dst, n_rows, row_nbytes);
    if (all % 4 == 0) return move_units<uint32_t, gather>(s, src, index, dst, n_rows, row_nbytes);
    if (all % 2 == 0) return move_units<uint16_t, gather>(s, src, index, dst, n_rows, row_nbytes);
    return move_units<uint8_t, gather>(s, src, index, dst, n_rows, row_nbytes);
}

dt_err cuda_gather_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows, int64_t width,
                        dt_dtype dt, dt_stream *stream)
{
    return launch_move<true>(cuda_stream(dev, stream, "gather_rows"), src, index, dst, n_rows,
                             (size_t)width * dt_dtype_size(dt));
}

dt_err cuda_scatter_rows(dt_device *dev, const void *src, const int32_t *index, void *dst, int64_t n_rows,
                         int64_t width, dt_dtype dt, dt_stream *stream)
{
    return launch_move<false>(cuda_stream(dev, stream, "scatter_rows"), src, index, dst, n_rows,
                              (size_t)width * dt_dtype_size(dt));
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* Inverted dropout: y[t,c] = (addend[t,c] +) x[t,c] / (1 - p) if u >= p, else 0; u is word c % 4 of philox(key,
 * token_key[t], c / 4). A vector begins at a multiple of 4 columns. */
template <class T> struct dropout {
    static constexpr int V = vector_elems<T>, TURNS = 1;
    const T *x;
    const T *addend; /* may be NULL */
    T *y;
    uint32_t least; /* minimum word that keeps an element */
    float scale;
    uint64_t key;
    const uint64_t *token_key;
    int64_t width;
    unsigned per_row; /* vectors */
    bool fits;

    struct item {
        int64_t row, col;
        uint64_t token;
        vec<T, V> x, addend;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        const int64_t col = at.in_row * V;
        const int count = elems_left(col, width, V);
        const bool whole = fits && count == V;
        item t = {at.row, col, token_key[at.row], load_vec<V>(x + at.row * width + col, count, whole), {}};
        if (addend) t.addend = load_vec<V>(addend + at.row * width + col, count, whole);
        return t;
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.col, width, V);
        vec<T, V> out;
#pragma unroll
        for (int first = 0; first < V; first += 4) {
            const philox_words words = philox(key, t.token, (uint64_t)((t.col + first) / 4));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float kept = words.w[j] >= least ? to_float(t.x.x[first + j]) * scale : 0.0f;
                out.x[first + j] = from_float<T>(addend ? to_float(t.addend.x[first + j]) + kept : kept);
            }
        }
        store_vec(y + t.row * width + t.col, out, count, fits && count == V);
    }
};

dt_err cuda_dropout(dt_device *dev, const void *x, const void *addend, void *y, float p, uint64_t key,
                    const uint64_t *token_key, int64_t n_rows, int64_t width, dt_dtype dt, dt_stream *stream)
{
    DT_TRY(dt_dropout_check(p));
    dt_stream *s = cuda_stream(dev, stream, "dropout");
    CUDA_BY_DTYPE(dt, T, "dropout", {
        const int64_t per_row = ceil_div(width, dropout<T>::V);
        const bool fits = vectors_fit((size_t)width * sizeof(T), x, addend, y);
        /* u = (word >> 8) 2^-24 (dt_u32_to_unit), so u >= p if word >> 8 >= p 2^24, rounded up; the product is exact */
        const uint32_t least = (uint32_t)ceilf(p * 0x1p24f) << 8;
        const dropout<T> op = {(const T *)x, (const T *)addend, (T *)y, least, 1.0f / (1.0f - p), key, token_key,
                               width,        (unsigned)per_row, fits};
        return launch_each(s, op, n_rows * per_row);
    });
    return DT_OK;
}

/* ---- noise ------------------------------------------------------------------------------------------------------- */

/* x[t,c] += bound[t] (2 u - 1), with u of dropout. */
template <class T> struct add_noise {
    static constexpr int V = vector_elems<T>, TURNS = 1;
    T *x;
    const float *bound;
    uint64_t key;
    const uint64_t *token_key;
    int64_t width;
    unsigned per_row; /* vectors */
    bool fits;

    struct item {
        int64_t row, col;
        uint64_t token;
        float bound;
        vec<T, V> x;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        const int64_t col = at.in_row * V;
        const int count = elems_left(col, width, V);
        return {at.row, col, token_key[at.row], bound[at.row],
                load_vec<V>(x + at.row * width + col, count, fits && count == V)};
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.col, width, V);
        vec<T, V> out;
#pragma unroll
        for (int first = 0; first < V; first += 4) {
            const philox_words words = philox(key, t.token, (uint64_t)((t.col + first) / 4));
#pragma unroll
            for (int j = 0; j < 4; j++)
                out.x[first + j] = from_float<T>(
                    fmaf(t.bound, 2.0f * ((float)(words.w[j] >> 8) * 0x1p-24f) - 1.0f, to_float(t.x.x[first + j])));
        }
        store_vec(x + t.row * width + t.col, out, count, fits && count == V);
    }
};

dt_err cuda_add_noise(dt_device *dev, void *x, const float *bound, uint64_t key, const uint64_t *token_key,
                      int64_t n_rows, int64_t width, dt_dtype dt, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "add_noise");
    CUDA_BY_DTYPE(dt, T, "add_noise", {
        const int64_t per_row = ceil_div(width, add_noise<T>::V);
        const bool fits = vectors_fit((size_t)width * sizeof(T), x);
        const add_noise<T> op = {(T *)x, bound, key, token_key, width, (unsigned)per_row, fits};
        return launch_each(s, op, n_rows * per_row);
    });
    return DT_OK;
}
