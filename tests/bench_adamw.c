/* bench_adamw.c - the CPU's AdamW, which also updates what is offloaded, against the memory that it reads and writes
 * and against PyTorch's: all in turn in every round, the least of each counts.
 *
 *     bench_adamw [threads [millions of elements [rounds]]]        defaults: 2 32 5
 *
 * The stream adds a fourth array to three others, the same loads and stores as AdamW's without its arithmetic.
 * PYTHON=... names a Python with torch, whose AdamW is taken fused and by lists of tensors (foreach), on as many
 * threads. */
#include "forms.h"
#include <omp.h>
#include <stdlib.h>

enum { N_ROWS = 6, BLOCK = 1024 };
static const struct {
    const char *name;
    double nbytes; /* of an element, read or written */
} ROWS[N_ROWS] = {{"stream", 28},
                  {"adamw fp32", 28},
                  {"adamw fp32, bf16 parameters", 30},
                  {"adamw bf16 gradients and parameters", 28},
                  {"PyTorch's, fused", 28},
                  {"PyTorch's, foreach", 28}};

typedef struct bench {
    dt_ledger ledger;
    dt_device dev;
    int64_t n;
    int n_threads;
    dt_buf grad, master, m, v, param;
    double best_s[N_ROWS];
} bench;

static void keep(bench *b, int row, double seconds)
{
    if (seconds > 0 && (b->best_s[row] == 0 || seconds < b->best_s[row])) b->best_s[row] = seconds;
}

/* Loads of an element come before its stores. */
__attribute__((optimize("O3"))) static double stream(const bench *b)
{
    const double begin_s = dt_now_s();
#pragma omp parallel for schedule(static) num_threads(b->n_threads)
    for (int64_t at = 0; at < b->n; at += BLOCK) {
        const float *restrict g = (const float *)b->grad.ptr + at;
        float *restrict p = (float *)b->master.ptr + at, *restrict m = (float *)b->m.ptr + at,
                        *restrict v = (float *)b->v.ptr + at;
        for (int i = 0; i < BLOCK; i++) {
            const float x = g[i] * 1e-9f, pi = p[i] + x, mi = m[i] + x, vi = v[i] + x;
            p[i] = pi, m[i] = mi, v[i] = vi;
        }
    }
    return dt_now_s() - begin_s;
}

static dt_err adamw(bench *b, int row, dt_dtype grad_dtype, dt_dtype param_dtype)
{
    const dt_adamw o = usual_adamw(1e-4f, 0.1f, 0.05f);
    const double begin_s = dt_now_s();
    DT_TRY(b->dev.ops->adamw_step(&b->dev, &o, b->grad.ptr, grad_dtype, b->master.ptr, b->m.ptr, b->v.ptr,
                                  param_dtype == DT_F32 ? NULL : b->param.ptr, param_dtype, b->n, NULL));
    keep(b, row, dt_now_s() - begin_s);
    return DT_OK;
}

/** "seconds seconds", fused and foreach. */
static void peer(bench *b)
{
    char command[1024], line[128] = "";
    double fused = 0, foreach = 0;
    snprintf(command, sizeof command,
             "%s -c 'import sys, time, torch\n"
             "torch.set_num_threads(%d)\n"
             "for way in (\"fused\", \"foreach\"):\n"
             "    p = torch.nn.Parameter(torch.full((%lld,), 0.5))\n"
             "    p.grad = torch.full_like(p, 0.25)\n"
             "    opt, best = torch.optim.AdamW([p], lr=1e-4, weight_decay=0.1, **{way: True}), 1e9\n"
             "    for _ in range(4):\n"
             "        since = time.perf_counter()\n"
             "        opt.step()\n"
             "        best = min(best, time.perf_counter() - since)\n"
             "    print(best, end=\" \")' 2>/dev/null",
             getenv("PYTHON"), b->n_threads, (long long)b->n);
    FILE *f = popen(command, "r");
    if (!f) return;
    if (fgets(line, sizeof line, f) && sscanf(line, "%lf %lf", &fused, &foreach) == 2)
        keep(b, 4, fused), keep(b, 5, foreach);
    pclose(f);
}

static dt_err one_round(bench *b)
{
    keep(b, 0, stream(b));
    DT_TRY(adamw(b, 1, DT_F32, DT_F32));
    DT_TRY(adamw(b, 2, DT_F32, DT_BF16));
    DT_TRY(adamw(b, 3, DT_BF16, DT_BF16));
    return DT_OK;
}

static dt_err open_bench(bench *b)
{
    dt_buf *const all[] = {&b->grad, &b->master, &b->m, &b->v, &b->param};
    DT_TRY(dt_device_open(&b->dev, "cpu", 0, b->n_threads, &b->ledger));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        DT_TRY(dt_buf_alloc(all[i], &b->dev, DT_ON_DEVICE, (size_t)b->n * sizeof(float), DT_MEM_OTHER));
        for (int64_t k = 0; k < b->n; k++) ((float *)all[i]->ptr)[k] = 0.25f;
    }
    return DT_OK;
}

static dt_err run(bench *b, int rounds)
{
    DT_TRY(open_bench(b));
    for (int r = 0; r < rounds; r++) {
        for (int k = 0; k < 4; k++) DT_TRY(one_round(b));
        if (getenv("PYTHON")) peer(b);
    }
    printf("%lld million elements, %d threads, best of %d rounds\n", (long long)b->n / 1000000, b->n_threads, rounds);
    for (int i = 0; i < N_ROWS; i++)
        if (b->best_s[i] > 0)
            printf("%-36s %8.2f ms %7.1f GB/s  %.2f of the stream%s\n", ROWS[i].name, 1e3 * b->best_s[i],
                   1e-9 * ROWS[i].nbytes * (double)b->n / b->best_s[i],
                   ROWS[i].nbytes / ROWS[0].nbytes * b->best_s[0] / b->best_s[i], i == 0 ? " (read and written)" : "");
    if (b->best_s[4] > 0)
        printf("PyTorch's time over ours, fp32: fused %.2f, foreach %.2f\n", b->best_s[4] / b->best_s[1],
               b->best_s[5] / b->best_s[1]);
    return DT_OK;
}

int main(int argc, char **argv)
{
    static bench b;
    const int rounds = argc > 3 ? atoi(argv[3]) : 5;
    b.n_threads = argc > 1 ? atoi(argv[1]) : 2;
    b.n = (int64_t)(argc > 2 ? atoi(argv[2]) : 32) * 1000000 / BLOCK * BLOCK;
    const dt_err err = run(&b, rounds);
    if (err != DT_OK) fprintf(stderr, "bench_adamw: %s\n", dt_error_message());
    return dt_exit_code(err);
}
