/* activations.cu - element-wise activations and gated units.
 *
 * Threads   each.cuh: one pass over memory, a few 16-byte vectors per thread; no sums across elements.
 * Numerics  float, rounded once when stored; definitions in activation.cuh. */
#include "activation.cuh"
#include "each.cuh"

/* Run the statements with A as the activation, so that it is a compile-time constant of the kernel. */
#define CUDA_BY_ACT(act, A, ...)                                                                                       \
    do {                                                                                                               \
        switch (act) {                                                                                                 \
            ACT_CASE(DT_ACT_SILU, A, __VA_ARGS__)                                                                      \
            ACT_CASE(DT_ACT_GELU, A, __VA_ARGS__)                                                                      \
            ACT_CASE(DT_ACT_GELU_TANH, A, __VA_ARGS__)                                                                 \
            ACT_CASE(DT_ACT_QUICK_GELU, A, __VA_ARGS__)                                                                \
            ACT_CASE(DT_ACT_RELU, A, __VA_ARGS__)                                                                      \
        default:                                                                                                       \
            return dt_fail(DT_ERR_ARG, "internal: activation %d is unknown", (int)(act));                              \
        }                                                                                                              \
    } while (0)
#define ACT_CASE(value, A, ...)                                                                                        \
    case value: {                                                                                                      \
        constexpr dt_activation A = value;                                                                             \
        __VA_ARGS__                                                                                                    \
    } break;

/* ---- activations ------------------------------------------------------------------------------------------------- */

template <dt_activation act> struct value_of {
    __device__ float operator()(float x) const { return act_value(act, x); }
};
template <dt_activation act> struct slope_times {
    __device__ float operator()(float x, float dy) const { return act_slope(act, x) * dy; }
};

template <class T, dt_activation act> static dt_err launch_act(dt_stream *s, const void *x, void *y, int64_t n)
{
    return launch_map<T, T>(s, value_of<act>(), x, y, n);
}
template <class T, dt_activation act>
static dt_err launch_slope(dt_stream *s, const void *x, const void *dy, void *dx, int64_t n)
{
    return launch_map<T, T, T>(s, slope_times<act>(), x, dy, dx, n);
}

/* y = act(x); x, y [n] */
dt_err cuda_act_forward(dt_device *dev, dt_activation act, const void *x, void *y, dt_dtype dt, int64_t n,
                        dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "act_forward");
    CUDA_BY_DTYPE(dt, T, "act_forward", { CUDA_BY_ACT(act, A, return launch_act<T, A>(s, x, y, n);); });
    return DT_OK;
}

/* dx = dy act'(x); x, dy, dx [n]; dx may be dy */
dt_err cuda_act_backward(dt_device *dev, dt_activation act, const void *x, const void *dy, void *dx, dt_dtype dt,
                         int64_t n, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "act_backward");
    CUDA_BY_DTYPE(dt, T, "act_backward", { CUDA_BY_ACT(act, A, return launch_slope<T, A>(s, x, dy, dx, n);); });
    return DT_OK;
}

/* ---- gated units ------------------------------------------------------------------------------------------------- */

/** Gated unit.
 *
 *      forward    y = act(gate) up
 *      backward   dgate = dy up act'(gate),  dup = dy act(gate)
 *
 *  Arrays    gate_up [n_rows, 2 width], the gate first; y, dy [n_rows, width]; d gate_up like gate_up, and may be
 *            gate_up. */
template <class T, dt_activation act, bool backward> struct glu {
    static constexpr int V = vector_elems<T>, TURNS = backward ? 1 : 2;
    const T *gate_up;
    const T *dy; /* backward */
    T *out;      /* y, or d gate_up */
    int64_t width;
    unsigned per_row; /* vectors of y */
    bool fits;

    struct item {
        int64_t row, col;
        vec<T, V> gate, up, dy;
    };
    __device__ item load(int64_t i) const
    {
        const row_place at = place_of(i, per_row);
        const int64_t col = at.in_row * V;
        const int count = elems_left(col, width, V);
        const bool whole = fits && count == V;
        const T *gate = gate_up + at.row * 2 * width + col;
        item t = {at.row, col, load_vec<V>(gate, count, whole), load_vec<V>(gate + width, count, whole), {}};
        if (backward) t.dy = load_vec<V>(dy + at.row * width + col, count, whole);
        return t;
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.col, width, V);
        const bool whole = fits && count == V;
        vec<T, V> first, second; /* y; or dgate and dup */
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float gate = to_float(t.gate.x[j]), up = to_float(t.up.x[j]), value = act_value(act, gate);
            if (backward) {
                const float d = to_float(t.dy.x[j]);
                first.x[j] = from_float<T>(d * up * act_slope(act, gate));
                second.x[j] = from_float<T>(d * value);
            } else {
                first.x[j] = from_float<T>(value * up);
            }
        }
        T *to = out + t.row * (backward ? 2 : 1) * width + t.col;
        store_vec(to, first, count, whole);
        if (backward) store_vec(to + width, second, count, whole);
    }
};

/** The same with a limit L: gate and up alternate in gate_up and in its gradient, and
 *
 *      forward    y = act(min(gate, L)) (1 + max(-L, min(up, L)))
 *
 *  The gradient of a value beyond its limit is 0. The loads of a pair of vectors are adjacent. */
template <class T, bool backward> struct clamped_glu {
    static constexpr int V = vector_elems<T>, TURNS = backward ? 1 : 2;
    const T *gate_up;
    const T *dy; /* backward */
    T *out;      /* y, or d gate_up */
    int64_t n;   /* elements of y */
    float limit;
    dt_activation act;
    bool fits;

    struct item {
        int64_t at;
        vec<T, V> pairs[2], dy;
    };
    __device__ item load(int64_t i) const
    {
        const int count = elems_left(i * V, n, V), first = 2 * count < V ? 2 * count : V;
        const bool whole = fits && count == V;
        const T *from = gate_up + 2 * i * V;
        item t = {i * V, {load_vec<V>(from, first, whole), load_vec<V>(from + V, 2 * count - first, whole)}, {}};
        if (backward) t.dy = load_vec<V>(dy + i * V, count, whole);
        return t;
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.at, n, V), first = 2 * count < V ? 2 * count : V;
        const bool whole = fits && count == V;
        vec<T, V> result[2]; /* y in the first; or dgate and dup */
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float gate = to_float(t.pairs[2 * j / V].x[2 * j % V]),
                        up = to_float(t.pairs[2 * j / V].x[2 * j % V + 1]), g = gate > limit ? limit : gate,
                        u = 1.0f + (up > limit    ? limit
                                    : up < -limit ? -limit
                                                  : up),
                        value = act_value(act, g);
            if (backward) {
                const float d = to_float(t.dy.x[j]);
                result[2 * j / V].x[2 * j % V] = from_float<T>(gate > limit ? 0.0f : d * u * act_slope(act, g));
                result[2 * j / V].x[2 * j % V + 1] = from_float<T>(fabsf(up) > limit ? 0.0f : d * value);
            } else {
                result[0].x[j] = from_float<T>(value * u);
            }
        }
        if (!backward) {
            store_vec(out + t.at, result[0], count, whole);
        } else {
            store_vec(out + 2 * t.at, result[0], first, whole);
            store_vec(out + 2 * t.at + V, result[1], 2 * count - first, whole);
        }
    }
};

template <class T, bool backward>
static dt_err launch_clamped(dt_stream *s, dt_activation act, float limit, const void *gate_up, const void *dy,
                             void *out, int64_t n)
{
    typedef clamped_glu<T, backward> op;
    return launch_each(s,
                       op{(const T *)gate_up, (const T *)dy, (T *)out, n, limit, act, vectors_fit(0, gate_up, dy, out)},
                       ceil_div(n, op::V));
}

template <class T, dt_activation act, bool backward>
static dt_err launch_glu(dt_stream *s, const void *gate_up, const void *dy, void *out, int64_t n_rows, int64_t width)
{
    typedef glu<T, act, backward> op;
    const int64_t per_row = ceil_div(width, op::V);
    const bool fits = vectors_fit((size_t)width * sizeof(T), gate_up, dy, out);
    return launch_each(s, op{(const T *)gate_up, (const T *)dy, (T *)out, width, (unsigned)per_row, fits},
                       n_rows * per_row);
}

dt_err cuda_glu_forward(dt_device *dev, dt_activation act, float limit, const void *gate_up, void *y, dt_dtype dt,
                        int64_t n_rows, int64_t width, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "glu_forward");
    CUDA_BY_DTYPE(dt, T, "glu_forward", {
        if (limit > 0) return launch_clamped<T, false>(s, act, limit, gate_up, NULL, y, n_rows * width);
        CUDA_BY_ACT(act, A, return launch_glu<T, A, false>(s, gate_up, NULL, y, n_rows, width););
    });
    return DT_OK;
}

dt_err cuda_glu_backward(dt_device *dev, dt_activation act, float limit, const void *gate_up, const void *dy,
                         void *dgate_up, dt_dtype dt, int64_t n_rows, int64_t width, dt_stream *stream)
{
    dt_stream *s = cuda_stream(dev, stream, "glu_backward");
    CUDA_BY_DTYPE(dt, T, "glu_backward", {
        if (limit > 0) return launch_clamped<T, true>(s, act, limit, gate_up, dy, dgate_up, n_rows * width);
        CUDA_BY_ACT(act, A, return launch_glu<T, A, true>(s, gate_up, dy, dgate_up, n_rows, width););
    });
    return DT_OK;
}
