/* bench_low_rank.c - the cost of adapters relative to the matmuls of their layers, on the layers of models of 0.5
 * and of 7 billion parameters (Qwen2.5): the matmuls that src/model/low_rank.c makes, each against its share of the
 * arithmetic.
 *
 *     bench_low_rank [tokens] [bf16|fp32]        defaults 512 bf16
 *
 * "time" and "work" are of the adapters' matmuls over that of the layer's own, forward and dx. Each is the best of
 * seven turns, in which all matmuls of a layer follow one another. DTRAIN_DEVICE=cuda names the device. */
#include "dtrain/device/device.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 3, ROUNDS = 7 };

typedef struct layer {
    const char *name;
    int64_t n_in;
    int n_parts;
    int64_t n_out[MAX_PARTS];
} layer;

typedef struct bench {
    dt_device dev;
    dt_ledger ledger;
    dt_dtype dt;
    int64_t T, r, n_out;
    const layer *l;
    dt_buf x, y, w, a, b, h, d;
    dt_event *from, *to;
} bench;

#define TRY_OR_END(call)                                                                                               \
    do {                                                                                                               \
        if ((call) != DT_OK) {                                                                                         \
            fprintf(stderr, "bench_low_rank: %s\n", dt_error_message());                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static dt_buf numbers(bench *b, int64_t n)
{
    dt_buf buf;
    const size_t nbytes = (size_t)n * sizeof(float);
    char *host = malloc(nbytes);
    if (!host) exit(1);
    TRY_OR_END(dt_buf_alloc(&buf, &b->dev, DT_ON_DEVICE, nbytes, DT_MEM_OTHER));
    for (int64_t i = 0; i < n; i++)
        dt_set_element(host, b->dt, i, (float)((double)(dt_mix64((uint64_t)i) >> 40) * 0x1p-30));
    TRY_OR_END(b->dev.ops->copy(&b->dev, buf.ptr, host, nbytes, NULL));
    TRY_OR_END(b->dev.ops->stream_sync(&b->dev, NULL));
    free(host);
    return buf;
}

static void *at(const bench *b, const dt_buf *buf, int64_t i)
{
    return (char *)buf->ptr + i * (int64_t)dt_dtype_size(b->dt);
}

/* C [m,n] = or += A B */
static void matmul(bench *b, int64_t m, int64_t n, int64_t k, bool ta, bool tb, const void *a, int64_t lda,
                   const void *bb, int64_t ldb, void *c, int64_t ldc, bool add)
{
    const dt_matmul mm = {.m = m,
                          .n = n,
                          .k = k,
                          .trans_a = ta,
                          .trans_b = tb,
                          .lda = lda,
                          .ldb = ldb,
                          .ldc = ldc,
                          .dt = b->dt,
                          .c_dtype = b->dt,
                          .accumulate = add};
    TRY_OR_END(b->dev.ops->matmul(&b->dev, &mm, a, bb, c, NULL));
}

/* ---- the matmuls of a layer, with A of all parts concatenated --------------------------------------------------- */

static void base_forward(bench *b)
{
    matmul(b, b->T, b->n_out, b->l->n_in, false, true, b->x.ptr, b->l->n_in, b->w.ptr, b->l->n_in, b->y.ptr, b->n_out,
           false);
}
static void base_dx(bench *b)
{
    matmul(b, b->T, b->l->n_in, b->n_out, false, false, b->y.ptr, b->n_out, b->w.ptr, b->l->n_in, b->x.ptr, b->l->n_in,
           false);
}
static void make_h(bench *b)
{
    const int64_t R = b->r * b->l->n_parts;
    matmul(b, b->T, R, b->l->n_in, false, true, b->x.ptr, b->l->n_in, b->a.ptr, b->l->n_in, b->h.ptr, R, false);
}
static void add_h_b(bench *b)
{
    const int64_t R = b->r * b->l->n_parts;
    for (int64_t i = 0, out = 0; i < b->l->n_parts; out += b->l->n_out[i++])
        matmul(b, b->T, b->l->n_out[i], b->r, false, true, at(b, &b->h, i * b->r), R, at(b, &b->b, out * b->r), b->r,
               at(b, &b->y, out), b->n_out, true);
}
static void make_db(bench *b)
{
    const int64_t R = b->r * b->l->n_parts;
    for (int64_t i = 0, out = 0; i < b->l->n_parts; out += b->l->n_out[i++])
        matmul(b, b->l->n_out[i], b->r, b->T, true, false, at(b, &b->y, out), b->n_out, at(b, &b->h, i * b->r), R,
               at(b, &b->b, out * b->r), b->r, false);
}
static void make_dh(bench *b)
{
    const int64_t R = b->r * b->l->n_parts;
    for (int64_t i = 0, out = 0; i < b->l->n_parts; out += b->l->n_out[i++])
        matmul(b, b->T, b->r, b->l->n_out[i], false, false, at(b, &b->y, out), b->n_out, at(b, &b->b, out * b->r), b->r,
               at(b, &b->d, i * b->r), R, false);
}
static void make_da(bench *b)
{
    const int64_t R = b->r * b->l->n_parts;
    matmul(b, R, b->l->n_in, b->T, true, false, b->d.ptr, R, b->x.ptr, b->l->n_in, b->a.ptr, b->l->n_in, false);
}
static void make_dx(bench *b)
{
    const int64_t R = b->r * b->l->n_parts;
    matmul(b, b->T, b->l->n_in, R, false, false, b->d.ptr, R, b->a.ptr, b->l->n_in, b->x.ptr, b->l->n_in, false);
}

enum { BASE_FORWARD, BASE_DX, MAKE_H, ADD_H_B, MAKE_DB, MAKE_DH, MAKE_DA, MAKE_DX, N_STEPS };
static void (*const steps[N_STEPS])(bench *) = {base_forward, base_dx, make_h,  add_h_b,
                                                make_db,      make_dh, make_da, make_dx};
static const char *const names[N_STEPS] = {"x W'", "dy W", "x A'", "+= h B'", "dy' h", "dy B", "dh' x", "dh A"};

static double seconds_of(bench *b, int step)
{
    float ms = 0;
    TRY_OR_END(b->dev.ops->event_record(&b->dev, b->from, NULL));
    steps[step](b);
    TRY_OR_END(b->dev.ops->event_record(&b->dev, b->to, NULL));
    TRY_OR_END(b->dev.ops->event_sync(&b->dev, b->to));
    TRY_OR_END(b->dev.ops->event_elapsed_ms(&b->dev, b->from, b->to, &ms));
    return ms * 1e-3;
}

/* Of one matmul of the layer's own. */
static double work_of(const bench *b, int step)
{
    const double own = (double)b->l->n_in * (double)b->n_out, R = (double)(b->r * b->l->n_parts);
    if (step <= BASE_DX) return 1;
    return (step == MAKE_H || step == MAKE_DA || step == MAKE_DX ? R * (double)b->l->n_in
                                                                 : (double)b->r * (double)b->n_out) /
           own;
}

static void tell(const bench *b, const double *best)
{
    double time = 0, work = 0;
    printf("%-12s r %2lld ", b->l->name, (long long)b->r);
    for (int s = 0; s < N_STEPS; s++) {
        printf(" %8.0f", best[s] * 1e6);
        if (s > BASE_DX) time += best[s], work += work_of(b, s);
    }
    printf("  time %.3f work %.3f\n", time / (best[BASE_FORWARD] + best[BASE_DX]), work / 2);
    fflush(stdout);
}

static void measure(const layer *l, int64_t T, int64_t r, dt_dtype dt)
{
    bench b = {.T = T, .r = r, .l = l, .dt = dt};
    double best[N_STEPS];
    for (int i = 0; i < l->n_parts; i++) b.n_out += l->n_out[i];
    TRY_OR_END(dt_device_open(&b.dev, "cpu", 0, 0, &b.ledger));
    b.x = numbers(&b, T * l->n_in), b.y = numbers(&b, T * b.n_out), b.w = numbers(&b, b.n_out * l->n_in);
    b.a = numbers(&b, r * l->n_parts * l->n_in), b.b = numbers(&b, b.n_out * r);
    b.h = numbers(&b, T * r * l->n_parts), b.d = numbers(&b, T * r * l->n_parts);
    TRY_OR_END(b.dev.ops->event_create(&b.dev, &b.from));
    TRY_OR_END(b.dev.ops->event_create(&b.dev, &b.to));
    for (int s = 0; s < N_STEPS; s++) best[s] = 1e9;
    for (int round = 0; round < ROUNDS; round++)
        for (int s = 0; s < N_STEPS; s++) {
            const double t = seconds_of(&b, s);
            best[s] = t < best[s] ? t : best[s];
        }
    tell(&b, best);
    dt_buf *const all[] = {&b.x, &b.y, &b.w, &b.a, &b.b, &b.h, &b.d};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) dt_buf_free(all[i]);
    b.dev.ops->event_destroy(&b.dev, b.from);
    b.dev.ops->event_destroy(&b.dev, b.to);
    dt_device_close(&b.dev);
}

int main(int argc, char **argv)
{
    static const layer layers[] = {
        {"0.5B qkv", 896, 3, {896, 128, 128}},   {"0.5B o", 896, 1, {896}},
        {"0.5B gate,up", 896, 2, {4864, 4864}},  {"0.5B down", 4864, 1, {896}},
        {"7B qkv", 3584, 3, {3584, 512, 512}},   {"7B o", 3584, 1, {3584}},
        {"7B gate,up", 3584, 2, {18944, 18944}}, {"7B down", 18944, 1, {3584}},
    };
    static const int64_t ranks[] = {8, 16, 64};
    const int64_t T = argc > 1 ? atoll(argv[1]) : 512;
    const dt_dtype dt = argc > 2 && !strcmp(argv[2], "fp32") ? DT_F32 : DT_BF16;
    printf("%s, %lld tokens; us\n%18s", dt_dtype_name(dt), (long long)T, "");
    for (int s = 0; s < N_STEPS; s++) printf(" %8s", names[s]);
    puts("");
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) measure(&layers[i], T, ranks[k], dt);
    return 0;
}
