/* ledger.c - counts bytes held by category and memory space. It does not allocate, because that would hide
 * allocations. */
#include "dtrain/core/core.h"

const char *dt_memcat_name(dt_memcat c)
{
    static const char *const names[DT_N_MEMCAT] = {"parameters", "gradients", "optimizer", "activations",
                                                   "staging",    "data",      "other"};
    return (unsigned)c < DT_N_MEMCAT ? names[c] : "?";
}

const char *dt_memspace_name(dt_memspace p)
{
    static const char *const names[DT_N_MEMSPACE] = {"device", "pinned", "host", "file"};
    return (unsigned)p < DT_N_MEMSPACE ? names[p] : "?";
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

void dt_memory_add(dt_memory *sum, const dt_memory *more)
{
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++) sum->at[c][p] += more->at[c][p];
}

size_t dt_memory_of(const dt_memory *m, dt_memcat c)
{
    size_t sum = 0;
    for (int p = 0; p < DT_N_MEMSPACE; p++) sum += m->at[c][p];
    return sum;
}

size_t dt_memory_on(const dt_memory *m, dt_memspace p)
{
    size_t sum = 0;
    for (int c = 0; c < DT_N_MEMCAT; c++) sum += m->at[c][p];
    return sum;
}

size_t dt_memory_total(const dt_memory *m)
{
    size_t sum = 0;
    for (int p = 0; p < DT_N_MEMSPACE; p++) sum += dt_memory_on(m, (dt_memspace)p);
    return sum;
}

/* ---- the ledger -------------------------------------------------------------------------------------------------- */

static void raise_to(atomic_size_t *peak, size_t value)
{
    size_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(peak, &seen, value)) {
    }
}

static void count(atomic_size_t *now, atomic_size_t *peak, size_t nbytes)
{
    raise_to(peak, atomic_fetch_add(now, nbytes) + nbytes);
}

void dt_ledger_add(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes)
{
    if (!l || nbytes == 0) return;
    atomic_fetch_add(&l->n_allocs, 1);
    count(&l->now[c][p], &l->peak[c][p], nbytes);
    count(&l->on_now[p], &l->on_peak[p], nbytes);
    if (p != DT_IN_FILE) count(&l->total_now, &l->total_peak, nbytes);
}

void dt_ledger_sub(dt_ledger *l, dt_memcat c, dt_memspace p, size_t nbytes)
{
    if (!l) return;
    atomic_fetch_sub(&l->now[c][p], nbytes);
    atomic_fetch_sub(&l->on_now[p], nbytes);
    if (p != DT_IN_FILE) atomic_fetch_sub(&l->total_now, nbytes);
}

dt_memory dt_ledger_now(const dt_ledger *l)
{
    dt_memory m;
    for (int c = 0; c < DT_N_MEMCAT; c++)
        for (int p = 0; p < DT_N_MEMSPACE; p++) m.at[c][p] = atomic_load(&l->now[c][p]);
    return m;
}
