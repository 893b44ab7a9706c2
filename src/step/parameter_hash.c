/* parameter_hash.c - a checksum of all parameters that does not depend on the number of ranks or on the stage: ranks
 * sum partial checksums. */
#include "dtrain/io/io.h"
#include "dtrain/step/step.h"
#include <stdlib.h>

enum { CHUNK = 1 << 16 }; /* elements read at a time */

static dt_err add_slice(dt_zero *z, const dt_slice *x, float *chunk, uint64_t *sum)
{
    const size_t size = dt_dtype_size(dt_zero_state_dtype(z, DT_STATE_PARAM, x));
    const uint64_t tensor = dt_hash_text(dt_zero_tensor(z, x)->name) | 1;
    for (int64_t at = 0; at < x->n; at += CHUNK) {
        const int64_t n = dt_min_i64(CHUNK, x->n - at);
        DT_TRY(dt_zero_state_read(z, DT_STATE_PARAM, x, at, n, chunk));
        *sum += tensor * dt_checksum(chunk, x->first + at, n, size);
    }
    return DT_OK;
}

dt_err dt_hash_parameters(dt_zero *z, dt_comm *comm, bool (*is_one)(const dt_unit *u), uint64_t *sum)
{
    dt_err err = DT_OK;
    float *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk) err = dt_fail(DT_ERR_MEMORY, "out of memory to hash parameters");
    *sum = 0;
    for (int i = 0; i < dt_zero_n_slices(z) && err == DT_OK; i++) {
        const dt_slice *x = &dt_zero_slices(z)[i];
        if (!is_one || is_one(dt_zero_unit(z, x))) err = add_slice(z, x, chunk, sum);
    }
    free(chunk);
    DT_TRY(dt_comm_agree(comm, err));
    return dt_comm_sum_host_u64(dt_comm_all(comm), sum, 1);
}
