/* cpu_matmul_groups.c - grouped matmuls without epilogue: blocks of C of all groups are divided among the threads, and
 * each is one call of a kernel in one thread. Blocks depend on the groups only, not on the number of threads. */
#include "cpu.h"
#include <omp.h>

enum { ROWS = 128, COLS = 384, FEW_ROWS = 32 /* fewer are too few for matmul_bf16, as in cpu_matmul_own.c */ };

typedef struct grouped {
    cpu_state *cpu;
    const dt_matmul *mm;
    const void *a, *b;
    void *c;
    bool sgemm; /* oneDNN computes blocks of floats */
} grouped;

/* Add the bias to a block of floats. */
static bool add_bias(const cpu_state *cpu, const dt_matmul_call *call, const dt_matmul_block *part)
{
    const dt_matmul *mm = call->mm;
    const int64_t j = part->first_col;
    for (int64_t i = part->first_row; i < part->end_row && mm->bias; i++)
        cpu->k->add_rows((float *)call->c + i * mm->ldc + j, cpu_at(mm->bias, mm->dt, j), mm->dt, part->end_col - j);
    return true;
}

/* A block of rows and columns of a group's C, in this thread. */
static bool run_block(const grouped *x, const dt_matmul_call *call, const dt_matmul_block *part)
{
    const cpu_state *cpu = x->cpu;
    const int64_t m = part->end_row - part->first_row, n = part->end_col - part->first_col;
    if (x->sgemm && m > 1 && n > 1 && call->mm->k > 1)
        return cpu_library_block(call->mm, part->first_row, m, part->first_col, n, call->a, call->b, call->c) &&
               add_bias(cpu, call, part);
    const bool packs = call->mm->k > 0 && m >= FEW_ROWS && cpu_matmul_bf16_takes(cpu, call->mm);
    (packs ? cpu->k->matmul_bf16 : cpu->k->matmul)(call, part);
    return true;
}

/* Rows `first` on of group g, and the columns of turn j. */
static bool run_turn(const grouped *x, int g, int64_t first, int64_t j)
{
    const cpu_state *cpu = x->cpu;
    dt_matmul_call call = {.a = x->a, .b = x->b, .c = x->c};
    const dt_matmul one = dt_matmul_group(x->mm, g, &call.a, &call.b, &call.c);
    call.mm = &one;
    const size_t scratch = (size_t)omp_get_thread_num() * cpu->matmul_scratch_nbytes;
    const dt_matmul_block part = {.first_row = first,
                                  .end_row = dt_min_i64(first + ROWS, one.m),
                                  .first_col = j * COLS,
                                  .end_col = dt_min_i64((j + 1) * COLS, one.n),
                                  .scratch = cpu->matmul_scratch ? (char *)cpu->matmul_scratch + scratch : NULL,
                                  .unit = cpu->unit};
    return run_block(x, &call, &part);
}

/* The group of a block of rows, if each group has one for ROWS of its rows; *slot: its number in the group. */
static int group_of(const dt_matmul *mm, int64_t *slot)
{
    int g = 0;
    for (; g < mm->n_groups; g++) {
        const int64_t n = cpu_n_chunks(mm->group_start[g + 1] - mm->group_start[g], ROWS);
        if (*slot < n) break;
        *slot -= n;
    }
    return g;
}

bool cpu_groups_take(const cpu_state *cpu, const dt_matmul *mm)
{
    const bool bf16 = mm->dt == DT_BF16 && cpu->unit;
    return (mm->dt == DT_F32 || bf16) && !mm->addend && mm->epilogue == DT_EPILOGUE_NONE && !mm->batch_invariant &&
           mm->b_scaled.how == DT_SCALE_NONE;
}

dt_err cpu_groups_run(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    const grouped x = {cpu, mm, a, b, c, mm->dt == DT_F32 && cpu_library_takes_blocks(cpu, mm)};
    const int64_t across = cpu_n_chunks(mm->n, COLS), down = cpu_n_chunks(mm->m, ROWS),
                  n_slots = mm->trans_a ? mm->n_groups * down : mm->m / ROWS + mm->n_groups;
    bool ok = true;
#pragma omp parallel for num_threads(cpu->n_threads) schedule(dynamic, 1) reduction(&& : ok)
    for (int64_t i = 0; i < n_slots * across; i++) {
        int64_t slot = i / across;
        const int g = mm->trans_a ? (int)(slot / down) : group_of(mm, &slot);
        if (mm->trans_a) slot %= down;
        if (g < mm->n_groups) ok = run_turn(&x, g, slot * ROWS, i % across) && ok;
    }
    DT_CHECK(ok, DT_ERR_FAULT, "cpu device: a matmul of oneDNN failed");
    return DT_OK;
}
