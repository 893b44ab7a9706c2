/* each.cuh - one kernel for all element-wise operations. A thread first loads several vectors of elements, and then
 * computes and stores their results one after the other.
 *
 * An operation is a struct with its arrays and
 *
 *     TURNS                      vectors per thread: limited by the registers at four blocks per multiprocessor
 *     struct item                a thread's data of one vector between load and store
 *     item load(int64_t i)       load vector i
 *     void store(const item &)   compute and store its result
 *
 * The result of a vector may overlap its own input, but no other input. */
#ifndef DTRAIN_EACH_CUH
#define DTRAIN_EACH_CUH

#include "kernel.cuh"

enum { EACH_THREADS = 256 };

/** Elements in a 16-byte vector of the widest type. */
template <class A, class B = A, class C = A>
constexpr int vector_elems = 16 / (int)(sizeof(A) > sizeof(B)   ? sizeof(A) > sizeof(C) ? sizeof(A) : sizeof(C)
                                          : sizeof(B) > sizeof(C) ? sizeof(B)
                                                                : sizeof(C));

/** Load the first `count` of n elements at p; the others are 0. whole: count is n and p is aligned, so one access
 *  suffices. The end of an array and unaligned arrays are loaded element by element. Both cases compute with the same
 *  code, so results have the same bits for any alignment. */
template <int n, class T> __device__ inline vec<T, n> load_vec(const T *p, int count, bool whole)
{
    vec<T, n> v;
    if (whole) {
        v = *reinterpret_cast<const vec<T, n> *>(p);
    } else {
#pragma unroll
        for (int j = 0; j < n; j++) v.x[j] = j < count ? p[j] : from_float<T>(0.0f);
    }
    return v;
}
template <int n, class T> __device__ inline void store_vec(T *p, const vec<T, n> &v, int count, bool whole)
{
    if (whole) {
        *reinterpret_cast<vec<T, n> *>(p) = v;
    } else {
#pragma unroll
        for (int j = 0; j < n; j++)
            if (j < count) p[j] = v.x[j];
    }
}

/** Valid elements of the vector of n elements that starts at column `at` of a row of `width` columns. */
__device__ inline int elems_left(int64_t at, int64_t width, int n) { return width - at < n ? (int)(width - at) : n; }

/** Row of item i, and its index in the row, with per_row items per row. */
struct row_place {
    int64_t row, in_row;
};
__device__ inline row_place place_of(int64_t i, unsigned per_row)
{
    if (i >> 32 == 0) { /* a 64-bit division takes several times as long */
        const unsigned row = (unsigned)i / per_row;
        return {(int64_t)row, (int64_t)((unsigned)i - row * per_row)};
    }
    return {i / per_row, i % per_row};
}

template <class Op> __global__ void __launch_bounds__(EACH_THREADS, 4) each_kernel(const Op op, int64_t n)
{
    const int64_t first = blockIdx.x * (int64_t)(EACH_THREADS * Op::TURNS) + threadIdx.x;
    typename Op::item item[Op::TURNS];
#pragma unroll
    for (int u = 0; u < Op::TURNS; u++)
        if (first + u * EACH_THREADS < n) item[u] = op.load(first + u * EACH_THREADS);
#pragma unroll
    for (int u = 0; u < Op::TURNS; u++)
        if (first + u * EACH_THREADS < n) op.store(item[u]);
}

/** Queue op on its n vectors. */
template <class Op> static dt_err launch_each(dt_stream *s, const Op &op, int64_t n)
{
    if (n <= 0) return DT_OK;
    launch(s, (unsigned)ceil_div(n, EACH_THREADS * Op::TURNS), EACH_THREADS, 0, each_kernel<Op>, op, n);
    CUDA_LAUNCHED();
    return DT_OK;
}

/** c[i] = f(a[i]), i < n. */
template <class A, class C, class F> struct map_one {
    static constexpr int V = vector_elems<A, C>, TURNS = 2;
    const A *a;
    C *c;
    int64_t n;
    bool fits; /* vectors */
    F f;

    struct item {
        int64_t at;
        vec<A, V> a;
    };
    __device__ item load(int64_t i) const
    {
        const int count = elems_left(i * V, n, V);
        return {i * V, load_vec<V>(a + i * V, count, fits && count == V)};
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.at, n, V);
        vec<C, V> out;
#pragma unroll
        for (int j = 0; j < V; j++) out.x[j] = from_float<C>(f(to_float(t.a.x[j])));
        store_vec(c + t.at, out, count, fits && count == V);
    }
};
template <class A, class C, class F> static dt_err launch_map(dt_stream *s, F f, const void *a, void *c, int64_t n)
{
    typedef map_one<A, C, F> op;
    return launch_each(s, op{(const A *)a, (C *)c, n, vectors_fit(0, a, c), f}, ceil_div(n, op::V));
}

/** c[i] = f(a[i], b[i]), i < n; c may be a or b. */
template <class A, class B, class C, class F> struct map_two {
    static constexpr int V = vector_elems<A, B, C>, TURNS = 2;
    const A *a;
    const B *b;
    C *c;
    int64_t n;
    bool fits;
    F f;

    struct item {
        int64_t at;
        vec<A, V> a;
        vec<B, V> b;
    };
    __device__ item load(int64_t i) const
    {
        const int count = elems_left(i * V, n, V);
        const bool whole = fits && count == V;
        return {i * V, load_vec<V>(a + i * V, count, whole), load_vec<V>(b + i * V, count, whole)};
    }
    __device__ void store(const item &t) const
    {
        const int count = elems_left(t.at, n, V);
        vec<C, V> out;
#pragma unroll
        for (int j = 0; j < V; j++) out.x[j] = from_float<C>(f(to_float(t.a.x[j]), to_float(t.b.x[j])));
        store_vec(c + t.at, out, count, fits && count == V);
    }
};
template <class A, class B, class C, class F>
static dt_err launch_map(dt_stream *s, F f, const void *a, const void *b, void *c, int64_t n)
{
    typedef map_two<A, B, C, F> op;
    return launch_each(s, op{(const A *)a, (const B *)b, (C *)c, n, vectors_fit(0, a, b, c), f}, ceil_div(n, op::V));
}

#endif
