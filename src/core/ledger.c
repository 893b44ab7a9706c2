/* ledger.c - bytes held, by category. Plain counters: an allocator that hides behind this would hide what it allocates,
 * too. */
#include "dtrain/core.h"

const char *dt_memcat_name(dt_memcat c)
{
    static const char *const names[DT_N_MEMCAT] = {"parameters", "gradients", "optimizer", "activations",
                                                   "staging",    "data",      "other"};
    return (unsigned)c < DT_N_MEMCAT ? names[c] : "?";
}

static void raise_to(atomic_size_t *peak, size_t value)
{
    size_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(peak, &seen, value)) {
    }
}

void dt_ledger_add(dt_ledger *l, dt_memcat c, size_t nbytes)
{
    if (!l) return;
    atomic_fetch_add(&l->n_allocs, 1);
    raise_to(&l->peak[c], atomic_fetch_add(&l->now[c], nbytes) + nbytes);
    raise_to(&l->total_peak, atomic_fetch_add(&l->total_now, nbytes) + nbytes);
}

void dt_ledger_sub(dt_ledger *l, dt_memcat c, size_t nbytes)
{
    if (!l) return;
    atomic_fetch_sub(&l->now[c], nbytes);
    atomic_fetch_sub(&l->total_now, nbytes);
}
