/* wrong.cu - checks that the simulator detects errors. `wrong NAME` runs the kernel or the program of that name,
 * which must end with a line that states its error. `wrong right` uses every feature correctly, and must print
 * "right", as must "fresh" and "order", which look at what memory holds and in what order blocks and warps run
 * (tests/e2e_cudasim.sh). */
#include "ptx.cuh"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { TILE = 64, PITCH = 40, DEPTH = 32 };
enum leave_out { NOTHING, NO_WAIT, NO_BARRIER_AFTER, NO_BARRIER_BEFORE };

/* C [64,64] = A [64,k] B^T, B [64,k]: 4 warps, each for 16 rows; two tiles of each side, one copied while the other is
 * used. */
template <leave_out out> __global__ void tile_kernel(const bf16 *a, const bf16 *b, float *c, int k)
{
    DYNAMIC_SHARED(bf16, tiles);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float sum[TILE / 8][4] = {};
    auto load = [&](int k0) {
        bf16 *to = tiles + k0 / DEPTH % 2 * 2 * TILE * PITCH;
        for (int i = threadIdx.x; i < TILE * DEPTH / 8; i += blockDim.x) {
            const int row = i / (DEPTH / 8), col = i % (DEPTH / 8) * 8;
            copy_async_16(to + row * PITCH + col, a + row * k + k0 + col, true);
            copy_async_16(to + (TILE + row) * PITCH + col, b + row * k + k0 + col, true);
        }
        copy_async_commit();
    };
    load(0);
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        const bf16 *from = tiles + k0 / DEPTH % 2 * 2 * TILE * PITCH;
        if (k0 + DEPTH < k) load(k0 + DEPTH);
        if (out == NO_WAIT) {
        } else if (k0 + DEPTH < k) {
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        if (out != NO_BARRIER_AFTER) __syncthreads();
        for (int kk = 0; kk < DEPTH; kk += 16) {
            uint32_t x[4], y[4];
            ldmatrix_x4(x, from + (warp * 16 + lane % 16) * PITCH + kk + lane / 16 * 8);
            for (int j = 0; j < TILE / 8; j += 2) {
                ldmatrix_x4(y, from + (TILE + j * 8 + lane / 16 * 8 + lane % 8) * PITCH + kk + lane / 8 % 2 * 8);
                mma_16816(sum[j], x, y, bf16());
                mma_16816(sum[j + 1], x, y + 2, bf16());
            }
        }
        if (out != NO_BARRIER_BEFORE) __syncthreads();
    }
    for (int j = 0; j < TILE / 8; j++)
        for (int i = 0; i < 4; i++)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * TILE + j * 8 + lane % 4 * 2 + i % 2] = sum[j][i];
}

/* C [64,64] = A [64,64] B^T by matmuls of a group of four warps. */
enum group_mistake { NO_GROUP_MISTAKE, NO_SHOW, NO_OPEN, NO_CLOSE, TOUCHED };
template <group_mistake m> __global__ void group_kernel(const bf16 *a, const bf16 *b, float *c)
{
    DYNAMIC_SHARED(bf16, tiles);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float sum[8][4];
    for (int i = threadIdx.x; i < 2 * TILE * 8; i += blockDim.x) {
        const int row = i / 8 % TILE, chunk = i % 8;
        copy_async_16(tiles + i / 8 * TILE + (chunk ^ row % 8) * 8, (i / 8 < TILE ? a : b) + row * TILE + chunk * 8,
                      true);
    }
    copy_async_commit();
    copy_async_wait<0>();
    if (m != NO_SHOW) show_to_matmuls();
    __syncthreads();
    if (m != NO_OPEN) group_open();
    for (int k = 0; k < 4; k++) group_multiply(sum, tiles + k * 16, tiles + TILE * TILE + k * 16, k > 0);
    if (m != NO_CLOSE) group_close();
    if (m == TOUCHED) sum[3][1] = 0;
    group_wait<0>();
    for (int j = 0; j < TILE / 8; j++)
        for (int i = 0; i < 4; i++)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * TILE + j * 8 + lane % 4 * 2 + i % 2] = sum[j][i];
}

__global__ void sum_kernel(const float *x, float *y, int n)
{
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

/* ---- mistakes: x has 1000 elements ------------------------------------------------------------------------------ */

__global__ void mask_kernel(float *x)
{
    if (threadIdx.x == 5) x[0] = __shfl_xor_sync(0xffff0000u, 1.0f, 1);
}
__global__ void ended_kernel(float *x)
{
    if (threadIdx.x == 7) return;
    const float got = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
    if (threadIdx.x == 0) x[0] = got;
}
__global__ void deadlock_kernel(float *)
{
    if (threadIdx.x % WARP < 16)
        __syncwarp();
    else
        __syncthreads();
}
__global__ void unaligned_kernel(float *x) { reinterpret_cast<vec<float, 4> *>(x + 1)->x[0] = 1; }
__global__ void copy_unaligned_kernel(float *x)
{
    DYNAMIC_SHARED(float, part);
    copy_async_16(part + threadIdx.x * 4, x + 2 + threadIdx.x * 4, true);
}
__global__ void rows_unaligned_kernel(float *x)
{
    DYNAMIC_SHARED(float, part);
    uint32_t r[4];
    part[threadIdx.x] = 0;
    __syncthreads();
    ldmatrix_x4(r, part + threadIdx.x * 2);
    x[threadIdx.x] = (float)r[0];
}
__global__ void beyond_kernel(float *x) { x[1000 + 64 + threadIdx.x] = 1; }
__global__ void index_kernel(float *x)
{
    __shared__ float part[4];
    part[threadIdx.x] = 1;
    x[threadIdx.x] = part[0];
}
__global__ void shared_kernel(float *)
{
    DYNAMIC_SHARED(float, part);
    part[threadIdx.x] = 1;
}
__global__ void behind_kernel(float *x) { x[1000 + threadIdx.x % 8] = 1; }
__global__ void shift_kernel(float *x) { x[threadIdx.x] = (float)(1 << threadIdx.x); }
__global__ void warp_race_kernel(float *x)
{
    __shared__ float part[WARP * 4];
    part[threadIdx.x] = 1;
    const float none = __shfl_xor_sync(0xffffffffu, 0.0f, 1); /* orders no memory */
    x[threadIdx.x] = part[threadIdx.x ^ 1] + none;
}
__global__ void block_race_kernel(float *x) { x[0] = (float)threadIdx.x; }
__global__ void grid_race_kernel(float *x)
{
    if (threadIdx.x == 0) x[blockIdx.x] = x[blockIdx.x ^ 1];
}

__global__ void add_kernel(float *x, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void must(cudaError_t error)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "refused: %s\n", cudaGetErrorName(error));
    abort();
}

static dt_stream *stream(int number = 0)
{
    static dt_stream s[2];
    if (!s[number].handle) must(cudaStreamCreateWithFlags(&s[number].handle, cudaStreamNonBlocking));
    s[number].last = "test";
    return &s[number];
}

template <class T> static T *device_array(int n)
{
    T *p = nullptr;
    must(cudaMalloc(&p, n * sizeof(T)));
    return p;
}
static float *pinned_array(int n)
{
    void *p = nullptr;
    must(cudaHostAlloc(&p, n * sizeof(float), cudaHostAllocDefault));
    return static_cast<float *>(p);
}

/* The host waits for it. */
template <class T> static void move(T *dst, const T *src, int n)
{
    must(cudaMemcpyAsync(dst, src, n * sizeof(T), cudaMemcpyDefault, stream()->handle));
    must(cudaStreamSynchronize(stream()->handle));
}

/* ---- kernels that use what they may ------------------------------------------------------------------------------ */

/* Small integers: all sums are exact. queue: the kernel of C = A B^T, [TILE,K] each. */
template <int K, class Queue> static bool matmul_is_right(Queue queue)
{
    static bf16 a_host[TILE * K], b_host[TILE * K];
    static float c_host[TILE * TILE];
    bf16 *a = device_array<bf16>(TILE * K), *b = device_array<bf16>(TILE * K);
    float *c = device_array<float>(TILE * TILE);
    for (int i = 0; i < TILE * K; i++) a_host[i] = (float)(i * 7 % 11 - 5), b_host[i] = (float)(i * 5 % 13 - 6);
    move(a, a_host, TILE * K), move(b, b_host, TILE * K);
    queue((const bf16 *)a, (const bf16 *)b, c);
    bool right = cudaGetLastError() == cudaSuccess;
    move(c_host, c, TILE * TILE);
    for (int i = 0; i < TILE * TILE; i++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += (float)a_host[i / TILE * K + k] * (float)b_host[i % TILE * K + k];
        right = right && c_host[i] == sum;
    }
    return right;
}
template <leave_out out> static bool tiles_are_right()
{
    enum { K = 160 };
    return matmul_is_right<K>([](const bf16 *a, const bf16 *b, float *c) {
        launch(stream(), dim3(1), 128, 4 * TILE * PITCH * sizeof(bf16), tile_kernel<out>, a, b, c, (int)K);
    });
}
template <group_mistake m> static bool groups_are_right()
{
    return matmul_is_right<TILE>([](const bf16 *a, const bf16 *b, float *c) {
        launch(stream(), dim3(1), 128, 2 * TILE * TILE * sizeof(bf16), group_kernel<m>, a, b, c);
    });
}

static bool sums_are_right(float *x)
{
    float x_host[1000], y_host[10], *y = device_array<float>(10);
    for (int i = 0; i < 1000; i++) x_host[i] = (float)i;
    move(x, x_host, 1000);
    launch(stream(), dim3(10), 256, 0, sum_kernel, (const float *)x, y, 100);
    bool right = cudaGetLastError() == cudaSuccess;
    move(y_host, y, 10);
    for (int i = 0; i < 10; i++) right = right && y_host[i] == (float)(i * 10000 + 4950);
    return right;
}

/* Memory that was never written is NaN. */
__global__ void unwritten_kernel(float *y)
{
    DYNAMIC_SHARED(float, dynamic);
    __shared__ float fixed[WARP];
    if (!y) fixed[threadIdx.x] = 0; /* never: what nothing writes a compiler may take for 0 */
    y[threadIdx.x] = dynamic[threadIdx.x];
    y[WARP + threadIdx.x] = fixed[threadIdx.x];
}

static bool fresh_is_nan()
{
    enum { N = 1000 };
    static float host[N];
    float *device = device_array<float>(N), *pinned = pinned_array(N), *y = device_array<float>(2 * WARP);
    bool right = true;
    for (int i = 0; i < N; i++) right = right && isnan(pinned[i]);
    move(host, device, N);
    for (int i = 0; i < N; i++) right = right && isnan(host[i]);
    launch(stream(), dim3(1), WARP, WARP * sizeof(float), unwritten_kernel, y);
    right = right && cudaGetLastError() == cudaSuccess;
    move(host, y, 2 * WARP);
    for (int i = 0; i < 2 * WARP; i++) right = right && isnan(host[i]);
    return right;
}

/* Each warp records itself four times: block and warp go to the next slot of a list. */
enum { BLOCKS = 8, WARPS = 4, TIMES = 4, PLACES = BLOCKS * WARPS * TIMES };
__global__ void list_kernel(int *n, int *list)
{
    const int me = blockIdx.x * WARPS + threadIdx.x / WARP;
    for (int i = 0; i < TIMES; i++) {
        if (threadIdx.x % WARP == 0) list[atomicAdd(n, 1)] = me;
        __syncwarp();
    }
}

/* Blocks do not run from first to last, nor warps, and not twice in the same order. */
static bool order_is_drawn()
{
    enum { TURNS = 8 };
    static int host[TURNS][PLACES];
    static const int zero[1] = {0};
    int *n = device_array<int>(1), *list = device_array<int>(PLACES);
    int blocks_fall = 0, warps_fall = 0, others = 0, resumed = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        move(n, zero, 1);
        launch(stream(), dim3(BLOCKS), WARPS * WARP, 0, list_kernel, n, list);
        move(host[turn], list, PLACES);
        for (int i = 1; i < PLACES; i++) {
            const int is = host[turn][i], was = host[turn][i - 1];
            blocks_fall += is / WARPS < was / WARPS;
            warps_fall += is / WARPS == was / WARPS && is < was;
        }
        for (int i = 1; i < PLACES; i++) /* a warp continues after others had their turn */
            for (int k = 0; k < i - 1 && host[turn][i] != host[turn][i - 1]; k++)
                resumed += host[turn][k] == host[turn][i];
        others += turn > 0 && memcmp(host[turn], host[0], sizeof host[0]) != 0;
    }
    return blocks_fall > 0 && warps_fall > 0 && resumed > 0 && others > 0;
}

/* ---- programs of two streams ------------------------------------------------------------------------------------- */

/* N floats go to the device in two halves and come back with 1 added, by way of two buffers of pinned memory, up and
 * down, of which the halves take turns in one: stream 0 copies up and adds, stream 1 copies down. What is left out, or
 * done at the wrong place, is the mistake. */
enum mistake {
    NO_MISTAKE,
    NO_EVENT,           /* stream 1 does not wait for the sums */
    RECORDED_TOO_EARLY, /* before the sums were queued */
    WAITED_TOO_LATE,    /* after the copy to the host */
    OTHER_EVENT,        /* of the other half */
    UP_REUSED,          /* the host fills up again before the copy from it has ended */
    DOWN_READ,          /* the host reads down before the copy to it has ended */
    OTHER_STREAM,       /* it waits, but for the stream that copies up */
    ASKED_ONCE,         /* it asks, and does not heed the answer */
    BOTH_DOWN,          /* the second half comes down onto the first, by the other stream */
    ON_DEVICE_REUSED,   /* the second half comes up onto the first, which is still copied down */
    FREED               /* device memory goes while it is copied */
};

static bool halves_are_right(mistake m)
{
    enum { N = 300, BESIDE = 8 }; /* half a page: the host may use the rest of it */
    cudaStream_t up_stream = stream(0)->handle, down_stream = stream(1)->handle;
    cudaEvent_t added[2], came_up, went_down;
    float *up = pinned_array(N + BESIDE), *down = pinned_array(N + BESIDE), *x = device_array<float>(2 * N);
    bool right = true;
    must(cudaEventCreate(&added[0])), must(cudaEventCreate(&added[1]));
    must(cudaEventCreate(&came_up)), must(cudaEventCreate(&went_down));
    for (int half = 0; half < 2; half++) {
        float *part = x + (m == ON_DEVICE_REUSED ? 0 : half * N);
        for (int i = 0; i < N; i++) up[i] = (float)(half * N + i);
        must(cudaMemcpyAsync(part, up, N * sizeof *x, cudaMemcpyHostToDevice, up_stream));
        must(cudaEventRecord(came_up, up_stream));
        if (m == RECORDED_TOO_EARLY) must(cudaEventRecord(added[half], up_stream));
        launch(stream(0), dim3(1), 64, 0, add_kernel, part, (int)N);
        if (m != RECORDED_TOO_EARLY) must(cudaEventRecord(added[half], up_stream));
        if (m != NO_EVENT && m != WAITED_TOO_LATE)
            must(cudaStreamWaitEvent(down_stream, added[m == OTHER_EVENT ? 0 : half], 0));
        must(cudaMemcpyAsync(down, part, N * sizeof *x, cudaMemcpyDeviceToHost, down_stream));
        if (m == BOTH_DOWN) must(cudaMemcpyAsync(down, part, N * sizeof *x, cudaMemcpyDeviceToHost, up_stream));
        if (m == WAITED_TOO_LATE) must(cudaStreamWaitEvent(down_stream, added[half], 0));
        must(cudaEventRecord(went_down, down_stream));
        for (int i = N; i < N + BESIDE; i++) up[i] = down[i] = (float)i; /* next to what streams use */
        if (m == ON_DEVICE_REUSED) {
            must(cudaEventSynchronize(came_up));
            continue;
        }
        if (m == FREED) must(cudaFree(x));
        if (m != UP_REUSED) must(cudaEventSynchronize(came_up));
        if (m == UP_REUSED) up[7] = 0;
        if (m == OTHER_STREAM) must(cudaStreamSynchronize(up_stream));
        if (m == ASKED_ONCE) (void)cudaEventQuery(went_down);
        if (m == NO_MISTAKE && half)
            while (cudaEventQuery(went_down) == cudaErrorNotReady) {
            }
        else if (m != DOWN_READ && m != OTHER_STREAM && m != ASKED_ONCE)
            must(cudaEventSynchronize(went_down));
        for (int i = 0; i < N; i++) right = right && down[i] == (float)(half * N + i + 1);
    }
    must(cudaEventDestroy(added[0])), must(cudaEventDestroy(added[1]));
    must(cudaEventDestroy(came_up)), must(cudaEventDestroy(went_down));
    must(cudaFree(x)), must(cudaFreeHost(up)), must(cudaFreeHost(down));
    return right;
}

/* ---- memory of three kinds --------------------------------------------------------------------------------------- */

static bool direction(float *x)
{
    must(cudaMemcpyAsync(pinned_array(10), x, 40, cudaMemcpyHostToDevice, stream()->handle));
    return true;
}
static bool copy_beyond(float *x)
{
    move(x + 990, static_cast<const float *>(pinned_array(100)), 11);
    return true;
}
static bool copy_freed(float *)
{
    float *y = device_array<float>(10), *host = pinned_array(10);
    must(cudaFree(y));
    move(host, y, 10);
    return true;
}
static bool host_reads(float *x) { return *static_cast<volatile float *>(x + 3) == 0; }
static bool host_writes(float *x)
{
    *static_cast<volatile float *>(x) = 0;
    return true;
}
static bool pinned_beyond(float *)
{
    float *host = pinned_array(1000);
    *static_cast<volatile float *>(host + 1001) = 0;
    must(cudaFreeHost(host));
    return true;
}

/* ---- what a thread may not do ------------------------------------------------------------------------------------ */

static void begin_capture() { must(cudaStreamBeginCapture(stream()->handle, cudaStreamCaptureModeThreadLocal)); }

static bool captured_query(float *)
{
    cudaEvent_t event;
    must(cudaEventCreate(&event));
    must(cudaEventRecord(event, stream(1)->handle));
    begin_capture();
    must(cudaEventQuery(event));
    return true;
}
static bool captured_alloc(float *)
{
    begin_capture();
    return pinned_array(10) != nullptr;
}
static bool captured_copy(float *x)
{
    float *host = pinned_array(10);
    begin_capture();
    must(cudaMemcpyAsync(host, x, 40, cudaMemcpyDeviceToHost, stream()->handle));
    return true;
}

/* It begins on GPU 0, whatever the others have chosen. */
static void *allocate(void *) { return device_array<float>(10); }
static bool other_thread(float *)
{
    pthread_t thread;
    must(cudaSetDevice(1));
    pthread_create(&thread, nullptr, allocate, nullptr);
    pthread_join(thread, nullptr);
    return true;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*kernel)(float *);
    size_t shared_nbytes;
} wrong_kernels[] = {
    {"host", block_race_kernel, 0},
    {"mask", mask_kernel, 0},
    {"ended", ended_kernel, 0},
    {"deadlock", deadlock_kernel, 0},
    {"unaligned", unaligned_kernel, 0},
    {"beyond", beyond_kernel, 0},
    {"index", index_kernel, 0},
    {"shared", shared_kernel, 256},
    {"behind", behind_kernel, 0},
    {"shift", shift_kernel, 0},
    {"warp_race", warp_race_kernel, 0},
    {"block_race", block_race_kernel, 0},
    {"grid_race", grid_race_kernel, 0},
    {"copy_unaligned", copy_unaligned_kernel, 2048},
    {"rows_unaligned", rows_unaligned_kernel, 2048},
};
static const struct {
    const char *name;
    mistake what;
} wrong_programs[] = {
    {"no_event", NO_EVENT},
    {"recorded_too_early", RECORDED_TOO_EARLY},
    {"waited_too_late", WAITED_TOO_LATE},
    {"other_event", OTHER_EVENT},
    {"up_reused", UP_REUSED},
    {"down_read", DOWN_READ},
    {"other_stream", OTHER_STREAM},
    {"asked_once", ASKED_ONCE},
    {"both_down", BOTH_DOWN},
    {"on_device_reused", ON_DEVICE_REUSED},
    {"freed", FREED},
};
static const struct {
    const char *name;
    bool (*run)(float *x);
} wrong_kinds[] = {
    {"direction", direction},           {"copy_beyond", copy_beyond},       {"copy_freed", copy_freed},
    {"host_reads", host_reads},         {"host_writes", host_writes},       {"pinned_beyond", pinned_beyond},
    {"captured_query", captured_query}, {"captured_alloc", captured_alloc}, {"captured_copy", captured_copy},
    {"other_thread", other_thread},
};

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "right";
    float *x = device_array<float>(1000), *host = static_cast<float *>(malloc(4000));
    bool right = true;
    for (const auto &w : wrong_kernels)
        if (!strcmp(name, w.name))
            launch(stream(), dim3(2), 128, w.shared_nbytes, w.kernel, strcmp(name, "host") ? x : host);
    for (const auto &w : wrong_programs)
        if (!strcmp(name, w.name)) right = halves_are_right(w.what);
    for (const auto &w : wrong_kinds)
        if (!strcmp(name, w.name)) right = w.run(x);
    if (!strcmp(name, "right"))
        right = sums_are_right(x) && tiles_are_right<NOTHING>() && groups_are_right<NO_GROUP_MISTAKE>() &&
                halves_are_right(NO_MISTAKE);
    if (!strcmp(name, "fresh")) right = fresh_is_nan();
    if (!strcmp(name, "order")) right = order_is_drawn();
    if (!strcmp(name, "no_wait")) right = tiles_are_right<NO_WAIT>();
    if (!strcmp(name, "no_barrier_after")) right = tiles_are_right<NO_BARRIER_AFTER>();
    if (!strcmp(name, "no_barrier_before")) right = tiles_are_right<NO_BARRIER_BEFORE>();
    if (!strcmp(name, "no_show")) right = groups_are_right<NO_SHOW>();
    if (!strcmp(name, "no_open")) right = groups_are_right<NO_OPEN>();
    if (!strcmp(name, "no_close")) right = groups_are_right<NO_CLOSE>();
    if (!strcmp(name, "touched")) right = groups_are_right<TOUCHED>();
    must(cudaDeviceSynchronize());
    cudaFree(x);
    free(host);
    puts(right ? "right" : "the numbers are wrong");
    return 0;
}
