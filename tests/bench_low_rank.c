/* bench_low_rank.c - the cost of adapters relative to the matmuls of their layers, on the layers of models of 0.5
 * and of 7 billion parameters (Qwen2.5): the matmuls that src/model/low_rank.c makes, each against its share of the
 * arithmetic.
 *
 *     bench_low_rank [tokens] [bf16|fp32]        defaults 512 bf16
 *
 * "time" and "work" are of the adapters' matmuls over that of the layer's own, forward and dx. Each is the best of
 * seven turns, in which all matmuls of a layer follow one another. DTRAIN_DEVICE=cuda names the device. */
#include "bench.h"

enum { MAX_PARTS = 3, ROUNDS = 7 };

typedef struct layer {
    const char *name;
    int64_t n_in;
    int n_parts;
    int64_t n_out[MAX_PARTS];
} layer;

/* A layer with adapters of rank r; step: the matmul of it that runs. */
typedef struct job {
    dt_dtype dt;
    int64_t T, r, n_out;
    const layer *l;
    char *x, *y, *w, *a, *b, *h, *d;
    int step;
} job;

/* C [m,n] = or += A B */
static dt_err matmul(bench *b, const job *j, int64_t m, int64_t n, int64_t k, bool ta, bool tb, const void *a,
                     int64_t lda, const void *bb, int64_t ldb, void *c, int64_t ldc, bool add)
{
    dt_matmul mm = dt_dense_matmul(m, n, k, ta, tb, j->dt, j->dt);
    mm.lda = lda, mm.ldb = ldb, mm.ldc = ldc, mm.accumulate = add;
    return b->ops->matmul(&b->dev, &mm, a, bb, c, NULL);
}

/* ---- the matmuls of a layer, with A of all parts concatenated --------------------------------------------------- */

enum { BASE_FORWARD, BASE_DX, MAKE_H, ADD_H_B, MAKE_DB, MAKE_DH, MAKE_DA, MAKE_DX, N_STEPS };
static const char *const names[N_STEPS] = {"x W'", "dy W", "x A'", "+= h B'", "dy' h", "dy B", "dh' x", "dh A"};

static dt_err run_step(bench *b, const void *what)
{
    const job *j = what;
    const int64_t T = j->T, r = j->r, R = r * j->l->n_parts, I = j->l->n_in, O = j->n_out,
                  e = (int64_t)dt_dtype_size(j->dt);
    switch (j->step) {
    case BASE_FORWARD:
        return matmul(b, j, T, O, I, false, true, j->x, I, j->w, I, j->y, O, false);
    case BASE_DX:
        return matmul(b, j, T, I, O, false, false, j->y, O, j->w, I, j->x, I, false);
    case MAKE_H:
        return matmul(b, j, T, R, I, false, true, j->x, I, j->a, I, j->h, R, false);
    case MAKE_DA:
        return matmul(b, j, R, I, T, true, false, j->d, R, j->x, I, j->a, I, false);
    case MAKE_DX:
        return matmul(b, j, T, I, R, false, false, j->d, R, j->a, I, j->x, I, false);
    default:
        break;
    }
    for (int64_t i = 0, out = 0; i < j->l->n_parts; out += j->l->n_out[i++]) {
        const int64_t n = j->l->n_out[i];
        char *y = j->y + out * e, *h = j->h + i * r * e, *d = j->d + i * r * e, *bt = j->b + out * r * e;
        if (j->step == ADD_H_B) DT_TRY(matmul(b, j, T, n, r, false, true, h, R, bt, r, y, O, true));
        if (j->step == MAKE_DB) DT_TRY(matmul(b, j, n, r, T, true, false, y, O, h, R, bt, r, false));
        if (j->step == MAKE_DH) DT_TRY(matmul(b, j, T, r, n, false, false, y, O, bt, r, d, R, false));
    }
    return DT_OK;
}

/* Of one matmul of the layer's own. */
static double work_of(const job *j, int step)
{
    const double own = (double)j->l->n_in * (double)j->n_out, R = (double)(j->r * j->l->n_parts);
    if (step <= BASE_DX) return 1;
    return (step == MAKE_H || step == MAKE_DA || step == MAKE_DX ? R * (double)j->l->n_in
                                                                 : (double)j->r * (double)j->n_out) /
           own;
}

static void tell(const job *j, const double *best)
{
    double time = 0, work = 0;
    printf("%-12s r %2lld ", j->l->name, (long long)j->r);
    for (int s = 0; s < N_STEPS; s++) {
        printf(" %8.0f", best[s]);
        if (s > BASE_DX) time += best[s], work += work_of(j, s);
    }
    printf("  time %.3f work %.3f\n", time / (best[BASE_FORWARD] + best[BASE_DX]), work / 2);
    fflush(stdout);
}

static void measure(const layer *l, int64_t T, int64_t r, dt_dtype dt)
{
    const float scale = 0x1p-6f;
    double best[N_STEPS], us = 0;
    bench b;
    job j = {.T = T, .r = r, .l = l, .dt = dt};
    for (int i = 0; i < l->n_parts; i++) j.n_out += l->n_out[i];
    bench_open(&b, "cpu");
    j.x = bench_values(&b, T * l->n_in, dt, scale), j.y = bench_values(&b, T * j.n_out, dt, scale);
    j.w = bench_values(&b, j.n_out * l->n_in, dt, scale), j.a = bench_values(&b, r * l->n_parts * l->n_in, dt, scale);
    j.b = bench_values(&b, j.n_out * r, dt, scale), j.h = bench_values(&b, T * r * l->n_parts, dt, scale);
    j.d = bench_values(&b, T * r * l->n_parts, dt, scale);
    for (int s = 0; s < N_STEPS; s++) best[s] = INFINITY;
    for (int round = 0; round < ROUNDS; round++)
        for (j.step = 0; j.step < N_STEPS; j.step++) {
            TRY_OR_END(bench_time(&b, run_step, &j, 1, &us));
            best[j.step] = fmin(best[j.step], us);
        }
    tell(&j, best);
    bench_close(&b);
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
