/* cpu_int8.c - products in int8 (dt_int8_product): which unit multiplies, and who does what.
 *
 * Outliers are looked for in all rows of A first. Then panels of rows become int8, and threads take columns of C: what
 * they read of B stays in cache while the panel's rows use it. Sums are exact, so no cut changes an element. */
#include "cpu.h"
#include <stdlib.h>
#include <string.h>

/* What is worth a thread's turn, as elements of A. */
enum { PANEL = 512, COLUMNS = 256, TURN = 16384 };

static bool held_back(const char *name)
{
    const char *most = getenv("DTRAIN_INT8"); /* amx, dot or plain, for tests */
    return most && strcmp(most, name) != 0 && (!strcmp(most, "plain") || !strcmp(name, "amx"));
}

void cpu_int8_open(cpu_state *cpu, bool has_dot, bool has_amx)
{
    const dt_cpu_kernels *k = cpu->k;
    cpu->int8_few = k->int8_dot && has_dot && !held_back("dot") ? k->int8_dot : k->int8_plain;
    cpu->int8_many = k->int8_amx && has_amx && !held_back("amx") ? k->int8_amx : cpu->int8_few;
}

void cpu_int8_close(cpu_state *cpu)
{
    for (int i = 0; i < 2; i++) cpu_drop(cpu->int8_scratch[i], cpu->int8_scratch_nbytes[i]);
}

static dt_err take_scratch(cpu_state *cpu, int i, size_t nbytes, char **at)
{
    DT_TRY(cpu_grow(cpu, &cpu->int8_scratch[i], &cpu->int8_scratch_nbytes[i], nbytes));
    *at = cpu->int8_scratch[i];
    return DT_OK;
}

static size_t up(size_t n) { return (n + 63) / 64 * 64; }

static dt_err take_list(cpu_state *cpu, dt_int8_rows *p)
{
    const size_t k = up((size_t)p->g.mm->k);
    char *at = NULL;
    DT_TRY(take_scratch(cpu, 0, k + k * sizeof *p->outliers, &at));
    p->is_outlier = (uint8_t *)at, at += k;
    p->outliers = (int32_t *)(void *)at;
    return DT_OK;
}

/* Of n rows; codes twice where they are to lie in quads, too. As much whatever the numbers of A are: what a step needs
 * the first one has. */
static dt_err take_panel(cpu_state *cpu, dt_int8_rows *p, int64_t n)
{
    const size_t k = up((size_t)p->g.mm->k), rows = (size_t)cpu_n_chunks(n, DT_INT8_ROWS) * DT_INT8_ROWS,
                 codes = rows * k * (p->unit->in_quads ? 2 : 1), scales = up(rows * sizeof *p->scale),
                 beside = p->least == UINT32_MAX ? 0 : rows * DT_INT8_BESIDE * sizeof *p->beside;
    char *at = NULL;
    DT_TRY(take_scratch(cpu, 1, codes + scales + beside, &at));
    p->ld = (int64_t)k;
    p->q = (int8_t *)at, at += codes;
    p->scale = (float *)(void *)at, at += scales;
    p->beside = (float *)(void *)at;
    return DT_OK;
}

static void find_outliers(const cpu_state *cpu, dt_int8_rows *p)
{
    const dt_matmul *mm = p->g.mm;
    const int64_t fit = TURN / mm->m, cols = fit < COLUMNS ? COLUMNS : fit;
    if (p->least == UINT32_MAX) return;
    CPU_PARALLEL_FOR (cpu, i, cpu_n_chunks(mm->k, cols)) {
        cpu->k->int8_mark(p, i * cols, dt_min_i64(cols, mm->k - i * cols));
    }
    for (int64_t c = 0; c < mm->k; c++)
        if (p->is_outlier[c]) p->outliers[p->n_outliers++] = (int32_t)c;
}

/* DT_QUAD_ROWS rows one after the other as quads. */
static void to_quads(const int8_t *rows, int64_t ld, int8_t *quads)
{
    for (int64_t r = 0; r < DT_QUAD_ROWS; r++)
        for (int64_t p = 0; p < ld; p += 4) memcpy(quads + p * DT_QUAD_ROWS + 4 * r, rows + r * ld + p, 4);
}

static void quantise_panel(const cpu_state *cpu, const dt_int8_rows *p)
{
    CPU_PARALLEL_FOR (cpu, i, p->n) {
        cpu->k->int8_quantise(p, i);
    }
}

static void turn_panel(const cpu_state *cpu, const dt_int8_rows *p, int8_t *quads)
{
    CPU_PARALLEL_FOR (cpu, i, cpu_n_chunks(p->n, DT_QUAD_ROWS)) {
        to_quads(p->q + i * DT_QUAD_ROWS * p->ld, p->ld, quads + i * DT_QUAD_ROWS * p->ld);
    }
}

static void multiply_panel(const cpu_state *cpu, const dt_int8_rows *p)
{
    enum { MOST = 4 };
    const int64_t n = p->g.mm->n, share = cpu_n_chunks(cpu_n_chunks(n, cpu->n_threads), DT_INT8_BLOCK),
                  cols = dt_min_i64(share, MOST) * DT_INT8_BLOCK;
    CPU_PARALLEL_FOR (cpu, i, cpu_n_chunks(n, cols)) {
        cpu->k->int8_columns(p, i * cols, dt_min_i64(cols, n - i * cols));
    }
}

/* Rows first .. first+n-1 of C. */
static void run_panel(const cpu_state *cpu, const dt_int8_rows *of, int64_t first, int64_t n)
{
    dt_int8_rows p = *of;
    p.first = first, p.n = n;
    quantise_panel(cpu, &p);
    if (p.unit->in_quads) {
        int8_t *quads = p.q + cpu_n_chunks(n, DT_INT8_ROWS) * DT_INT8_ROWS * p.ld;
        turn_panel(cpu, &p, quads);
        p.q = quads;
    }
    multiply_panel(cpu, &p);
}

static uint32_t bits_of_least(float threshold)
{
    uint32_t bits;
    memcpy(&bits, &threshold, sizeof bits);
    return threshold > 0 ? bits : UINT32_MAX;
}

dt_err cpu_int8_product(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    dt_int8_rows p = {.g = {.mm = mm, .a = a, .b = b, .c = c},
                      .least = bits_of_least(mm->int8.threshold),
                      .unit = mm->m < DT_QUAD_ROWS ? cpu->int8_few : cpu->int8_many};
    DT_TRY(take_list(cpu, &p));
    find_outliers(cpu, &p);
    DT_TRY(take_panel(cpu, &p, dt_min_i64(PANEL, mm->m)));
    for (int64_t i = 0; i < mm->m; i += PANEL) run_panel(cpu, &p, i, dt_min_i64(PANEL, mm->m - i));
    return DT_OK;
}
