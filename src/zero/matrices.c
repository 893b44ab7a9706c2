/* matrices.c - updates of whole matrices: who owns them, and their way to the owners and back.
 *
 *     step      momentum and direction of the own shard, in bf16            update.c, offload.c
 *     gather    directions of a unit, whole on every rank of a group; owners keep their matrices
 *     matrix    every owner changes its matrices, on the device             dt_matrix_optimizer.matrix
 *     return    reduce-scatter of the results: each has one owner, and the others add zeros, so sums are exact
 *     apply     the own shard of master and parameters from the results     update.c, offload.c
 *
 * Gathers and returns go unit by unit, and all matrices are changed between them: work is balanced over the whole model
 * and not over one unit. Momentum and master never leave their shard. A matrix is computed once, by one rank, from the
 * same bits, so its result depends on neither ranks nor stage.
 *
 * With an offloaded optimizer the host computes step and apply. Directions are copied to the device and results from
 * it, so matrices are multiplied where that is fast. */
#include "zero_impl.h"
#include <stdlib.h>

/* ---- owners ------------------------------------------------------------------------------------------------------ */

typedef struct job {
    int matrix;
    double work;
} job;

/** Most work first; of equal work the first matrix. */
static int by_work(const void *a, const void *b)
{
    const job *x = a, *y = b;
    if (x->work != y->work) return x->work < y->work ? 1 : -1;
    return x->matrix - y->matrix;
}

/** Give each matrix to the first rank with the least work so far. */
static void choose_owners(zero_layout *l, const job *jobs, double *load, int64_t *len)
{
    for (int i = 0; i < l->n_matrices; i++) {
        zero_matrix *m = &l->matrices[jobs[i].matrix];
        int owner = 0;
        for (int r = 1; r < l->nranks && load[owner] > 0; r++)
            if (load[r] < load[owner]) owner = r;
        m->owner = owner, m->owned_at = len[owner];
        load[owner] += jobs[i].work;
        len[owner] += dt_ceil_div(m->rows * m->cols, DT_GROUP_ALIGN) * DT_GROUP_ALIGN;
        l->owned_len = dt_max_i64(l->owned_len, len[owner]);
    }
}

dt_err zero_assign_matrices(zero_layout *l, const dt_matrix_optimizer *optimizer)
{
    job *jobs = calloc((size_t)l->n_matrices + 1, sizeof *jobs);
    double *load = calloc((size_t)l->nranks, sizeof *load);
    int64_t *len = calloc((size_t)l->nranks, sizeof *len);
    for (int i = 0; i < l->n_matrices && jobs && load && len; i++) {
        const zero_matrix *m = &l->matrices[i];
        const size_t scratch = optimizer->scratch_nbytes(m->rows, m->cols);
        jobs[i] = (job){i, optimizer->work(m->rows, m->cols)};
        if (scratch > l->matrix_scratch_bytes) l->matrix_scratch_bytes = scratch;
        l->direction_len = dt_max_i64(l->direction_len, l->units[m->unit].part[DT_TRAINED].shards.padded_len);
        l->direction_shard_len =
            dt_max_i64(l->direction_shard_len, l->units[m->unit].part[DT_TRAINED].shards.shard_len);
    }
    const bool ok = jobs && load && len;
    if (ok) qsort(jobs, (size_t)l->n_matrices, sizeof *jobs, by_work);
    if (ok) choose_owners(l, jobs, load, len);
    free(jobs), free(load), free(len);
    DT_CHECK(ok, DT_ERR_MEMORY, "out of memory for the owners of %d matrices", l->n_matrices);
    return DT_OK;
}

/* ---- to the owners ----------------------------------------------------------------------------------------------- */

static void *direction_at(const dt_zero *z, int64_t x) { return zero_at(&z->direction, x, DT_BF16); }

static bool is_mine(const dt_zero *z, const zero_matrix *m) { return m->owner == dt_axis_block(z->sum); }

/** Copy this rank's matrices of a unit from the directions, or back to them. */
static dt_err copy_own(dt_zero *z, int u, bool back)
{
    for (int i = 0; i < z->lay.n_matrices; i++) {
        const zero_matrix *m = &z->lay.matrices[i];
        void *owned = zero_at(&z->owned_matrices, m->owned_at, DT_BF16), *whole = direction_at(z, m->start);
        if (m->unit != u || !is_mine(z, m)) continue;
        DT_TRY(z->dev->ops->copy(z->dev, back ? whole : owned, back ? owned : whole,
                                 (size_t)(m->rows * m->cols) * sizeof(uint16_t), z->compute));
    }
    return DT_OK;
}

dt_err zero_gather_matrices(dt_zero *z, int u, dt_err err)
{
    const int64_t own = zero_own(z, u, DT_TRAINED);
    const dt_shards *shards = zero_shards(&z->lay, u, DT_TRAINED);
    const zero_phase before = zero_enter(z, "gather", z->units[u].name);
    if (z->lay.grads_down && err == DT_OK)
        err = zero_copy(z, "up", u, direction_at(z, own), z->host_direction.ptr,
                        (size_t)shards->shard_len * sizeof(uint16_t), z->compute);
    if (!z->lay.whole_opt && z->shard->size > 1) {
        err = zero_first_err(err, zero_comm_after_compute(z));
        err = zero_gather(z, shards, direction_at(z, own), direction_at(z, 0), DT_BF16, err);
        if (err != DT_ERR_COMM) err = zero_first_err(err, zero_compute_after_comm(z));
    }
    if (err == DT_OK) err = copy_own(z, u, false);
    /* the host writes the next unit's directions where this one's are read */
    if (z->lay.grads_down && err == DT_OK) err = z->dev->ops->stream_sync(z->dev, z->compute);
    zero_leave(z, before);
    return err;
}

/* ---- at the owners ----------------------------------------------------------------------------------------------- */

/** Sums of squares of the own matrices, in the host's scratch: one wait for all of them. */
static dt_err sum_squares(dt_zero *z, int *n)
{
    *n = 0;
    for (int i = 0; i < z->lay.n_matrices; i++) {
        const zero_matrix *m = &z->lay.matrices[i];
        if (!is_mine(z, m)) continue;
        DT_TRY(z->dev->ops->sum_squares(z->dev, zero_at(&z->owned_matrices, m->owned_at, DT_BF16), DT_BF16,
                                        m->rows * m->cols, (double *)((char *)z->matrix_sums.ptr + (size_t)(*n)++ * 16),
                                        z->compute));
    }
    if (*n == 0) return DT_OK;
    DT_TRY(z->dev->ops->copy(z->dev, z->host.ptr, z->matrix_sums.ptr, (size_t)*n * 16, z->compute));
    return z->dev->ops->stream_sync(z->dev, z->compute);
}

dt_err zero_change_matrices(dt_zero *z, const zero_update *up)
{
    int n, k = 0;
    const dt_matrix_optimizer *optimizer = z->opt.optimizer->matrices;
    DT_TRY(dt_fault("zero.matrix"));
    DT_TRY(sum_squares(z, &n));
    for (int i = 0; i < z->lay.n_matrices; i++) {
        const zero_matrix *m = &z->lay.matrices[i];
        if (!is_mine(z, m)) continue;
        if (z->phase) dt_phase_enter(z->phase, "update", z->units[m->unit].name);
        const double sum = *(const double *)((const char *)z->host.ptr + (size_t)k++ * 16);
        DT_TRY(optimizer->matrix(z->dev, up->step, zero_at(&z->owned_matrices, m->owned_at, DT_BF16), m->rows, m->cols,
                                 sum, z->matrix_scratch.ptr, z->compute));
        z->n_matrix_calls++;
    }
    return DT_OK;
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

dt_err zero_return_matrices(dt_zero *z, int u, dt_err err)
{
    const int64_t own = zero_own(z, u, DT_TRAINED);
    const dt_shards *shards = zero_shards(&z->lay, u, DT_TRAINED);
    const zero_phase before = zero_enter(z, "reduce", z->units[u].name);
    if (err == DT_OK)
        err = z->dev->ops->zero(z->dev, direction_at(z, 0), (size_t)shards->padded_len * sizeof(uint16_t), z->compute);
    if (err == DT_OK) err = copy_own(z, u, true);
    if (z->sum->size > 1) {
        err = zero_first_err(err, zero_comm_after_compute(z));
        err = zero_reduce(z, shards, direction_at(z, 0), DT_BF16, DT_BF16,
                          direction_at(z, zero_charge(z, u, DT_TRAINED)), DT_BF16, false, err);
        err = zero_replicate(z, shards, direction_at(z, own), DT_BF16, err);
        if (z->lay.whole_opt) err = zero_gather(z, shards, direction_at(z, own), direction_at(z, 0), DT_BF16, err);
        if (err != DT_ERR_COMM) err = zero_first_err(err, zero_compute_after_comm(z));
    }
    if (z->lay.grads_down && err == DT_OK)
        err = zero_copy(z, "down", u, z->host_direction.ptr, direction_at(z, own),
                        (size_t)shards->shard_len * sizeof(uint16_t), z->compute);
    if (z->lay.grads_down && err == DT_OK) err = z->dev->ops->stream_sync(z->dev, z->compute);
    zero_leave(z, before);
    return err;
}

int64_t dt_zero_matrix_calls(const dt_zero *z) { return z->n_matrix_calls; }
