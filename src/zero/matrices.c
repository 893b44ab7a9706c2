/* matrices.c - updates of whole matrices: their owners, and the exchange of directions and results with them.
 *
 *     step      momentum and direction of the own shard, in bf16               update.c, offload.c
 *     gather    all-to-all in a group: shards send their segments of a matrix to its owner
 *     matrix    owners change their matrices, on the device                    dt_matrix_optimizer.matrix
 *     return    all-to-all back; an all-reduce passes results to the other groups, which contribute zeros
 *     apply     the own shard of master and parameters from the results        update.c, offload.c
 *
 * At stage 0 every rank has all directions: nothing is gathered, and owners broadcast their results.
 *
 * Gathers and returns proceed unit by unit. All matrices are changed between them, which balances work over the whole
 * model. One rank computes a matrix, always from the same bits: its result depends on neither ranks nor stage.
 *
 * At its owner, matrices of a unit are adjacent and in the order of the unit. Shards are ascending ranges. The blocks
 * of an all-to-all, in rank order, therefore form these matrices: owners copy nothing. */
#include "zero_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- owners ------------------------------------------------------------------------------------------------------ */

typedef struct job {
    int matrix;
    double work;
} job;

/** Order: most work first; with equal work the lower index first. */
static int by_work(const void *a, const void *b)
{
    const job *x = a, *y = b;
    return x->work < y->work ? 1 : x->work > y->work ? -1 : x->matrix - y->matrix;
}

/** Assign each matrix to the first rank with the least work so far. */
static void choose_owners(zero_layout *l, const job *jobs, double *load)
{
    for (int i = 0; i < l->n_matrices; i++) {
        int owner = 0;
        for (int r = 1; r < l->nranks && load[owner] > 0; r++)
            if (load[r] < load[owner]) owner = r;
        l->matrices[jobs[i].matrix].owner = owner;
        load[owner] += jobs[i].work;
    }
}

/** Set where owners keep their matrices (len: [nranks] zeros), and the sizes of buffers. */
static void place_matrices(zero_layout *l, const dt_matrix_optimizer *optimizer, int64_t *len)
{
    for (int i = 0; i < l->n_matrices; i++) {
        zero_matrix *m = &l->matrices[i];
        const dt_shards *shards = zero_shards(l, m->unit, DT_TRAINED);
        const size_t scratch = optimizer->scratch_nbytes(m->rows, m->cols);
        m->owned_at = len[m->owner];
        len[m->owner] += zero_matrix_len(m);
        l->owned_len = dt_max_i64(l->owned_len, len[m->owner]);
        l->direction_len = dt_max_i64(l->direction_len, l->whole_opt ? shards->padded_len : shards->shard_len);
        if (scratch > l->matrix_scratch_bytes) l->matrix_scratch_bytes = scratch;
    }
    l->blocks_len = l->whole_opt || l->group_nranks == 1 ? 0 : l->direction_len;
}

dt_err zero_assign_matrices(zero_layout *l, const dt_matrix_optimizer *optimizer)
{
    job *jobs = calloc((size_t)l->n_matrices, sizeof *jobs);
    double *load = calloc((size_t)l->nranks, sizeof *load);
    int64_t *len = calloc((size_t)l->nranks, sizeof *len);
    l->block_nbytes = calloc(3 * (size_t)l->group_nranks, sizeof *l->block_nbytes);
    const bool ok = jobs && load && len && l->block_nbytes;
    for (int i = 0; i < l->n_matrices && ok; i++)
        jobs[i] = (job){i, optimizer->work(l->matrices[i].rows, l->matrices[i].cols)};
    if (ok) {
        qsort(jobs, (size_t)l->n_matrices, sizeof *jobs, by_work);
        choose_owners(l, jobs, load);
        place_matrices(l, optimizer, len);
    }
    free(jobs), free(load), free(len);
    DT_CHECK(ok, DT_ERR_MEMORY, "out of memory for the owners of %d matrices", l->n_matrices);
    return DT_OK;
}

int64_t zero_matrix_in_shard(const zero_layout *l, const zero_matrix *m, int r, int64_t *first)
{
    const int64_t len = zero_shards(l, m->unit, DT_TRAINED)->shard_len,
                  end = dt_min_i64(m->start + zero_matrix_len(m), (r + 1) * len);
    *first = dt_max_i64(m->start, r * len);
    return dt_max_i64(end - *first, 0);
}

/* ---- to the owners ----------------------------------------------------------------------------------------------- */

/** Address of the direction of element x, which the own shard contains except at stage 0. */
static void *direction_at(const dt_zero *z, int u, int64_t x)
{
    return zero_at(&z->direction, x - (z->lay.whole_opt ? 0 : zero_own(z, u, DT_TRAINED)), DT_BF16);
}

static bool is_mine(const dt_zero *z, const zero_matrix *m)
{
    return m->owner == (z->lay.whole_opt ? z->sum->rank : dt_axis_block(z->sum));
}
static bool is_in_group(const dt_zero *z, const zero_matrix *m)
{
    return m->owner % z->lay.n_groups == z->replicate->rank;
}

static void *owned_at(const dt_zero *z, const zero_matrix *m)
{
    return zero_at(&z->owned_matrices, m->owned_at, DT_BF16);
}

static const zero_matrix *first_matrix(const dt_zero *z, int u)
{
    return &z->lay.matrices[z->lay.units[u].first_matrix];
}
static const zero_matrix *end_matrix(const dt_zero *z, int u)
{
    return first_matrix(z, u) + z->lay.units[u].n_matrices;
}

static dt_err copy(dt_zero *z, void *a, void *b, int64_t n, bool back, dt_stream *stream)
{
    return z->dev->ops->copy(z->dev, back ? a : b, back ? b : a, (size_t)n * sizeof(uint16_t), stream);
}

/** Copy this rank's matrices of a unit from the directions, or back to them. */
static dt_err copy_own(dt_zero *z, int u, bool back)
{
    for (const zero_matrix *m = first_matrix(z, u); m < end_matrix(z, u); m++)
        if (is_mine(z, m))
            DT_TRY(copy(z, direction_at(z, u, m->start), owned_at(z, m), zero_matrix_len(m), back, z->compute));
    return DT_OK;
}

/** Copy the own shard's segments of a unit's matrices to the blocks of their owners in this group, or back. at: [shard]
 *  offset of each owner's block. */
static dt_err copy_segments(dt_zero *z, int u, size_t *at, bool back)
{
    for (const zero_matrix *m = first_matrix(z, u); m < end_matrix(z, u); m++) {
        int64_t first;
        const int64_t n = zero_matrix_in_shard(&z->lay, m, z->shard->rank, &first);
        size_t *to = &at[m->owner / z->lay.n_groups];
        if (n == 0 || !is_in_group(z, m)) continue;
        DT_TRY(copy(z, direction_at(z, u, first), (char *)z->blocks.ptr + *to, n, back, z->comm_stream));
        *to += (size_t)n * sizeof(uint16_t);
    }
    return DT_OK;
}

/** All-to-all on the axis shard, from shards to owners or back. Enters it even after an earlier error. */
static dt_err exchange(dt_zero *z, int u, bool back, dt_err err)
{
    int64_t first;
    void *owned = NULL;
    const int n = z->shard->size;
    size_t *of_shard = z->lay.block_nbytes, *of_owned = of_shard + n, *at = of_owned + n; /* [n] each */
    memset(of_shard, 0, 3 * (size_t)n * sizeof *of_shard);
    for (const zero_matrix *m = first_matrix(z, u); m < end_matrix(z, u); m++) {
        if (!is_in_group(z, m)) continue;
        of_shard[m->owner / z->lay.n_groups] +=
            (size_t)zero_matrix_in_shard(&z->lay, m, z->shard->rank, &first) * sizeof(uint16_t);
        if (is_mine(z, m) && !owned) owned = owned_at(z, m);
        for (int r = 0; r < n && is_mine(z, m); r++)
            of_owned[r] += (size_t)zero_matrix_in_shard(&z->lay, m, r, &first) * sizeof(uint16_t);
    }
    for (int r = 1; r < n; r++) at[r] = at[r - 1] + of_shard[r - 1];
    if (!back && err == DT_OK) err = copy_segments(z, u, at, false);
    err = dt_first_err(err,
                       back ? dt_comm_all_to_all_v(z->shard, owned, of_owned, z->blocks.ptr, of_shard, z->comm_stream)
                            : dt_comm_all_to_all_v(z->shard, z->blocks.ptr, of_shard, owned, of_owned, z->comm_stream));
    return back && err == DT_OK ? copy_segments(z, u, at, true) : err;
}

dt_err zero_gather_matrices(dt_zero *z, int u, dt_err err)
{
    const size_t shard_nbytes = (size_t)zero_shards(&z->lay, u, DT_TRAINED)->shard_len * sizeof(uint16_t);
    const zero_phase before = zero_enter(z, "gather", z->units[u].name);
    if (z->lay.grads_down && err == DT_OK)
        err = zero_copy(z, "up", u, z->direction.ptr, z->host_direction.ptr, shard_nbytes, z->compute);
    if (z->lay.blocks_len > 0) {
        err = dt_first_err(err, zero_comm_after_compute(z));
        err = exchange(z, u, false, err);
        if (err != DT_ERR_COMM) err = dt_first_err(err, zero_compute_after_comm(z));
    } else if (err == DT_OK) {
        err = copy_own(z, u, false);
    }
    /* the host writes the next unit's directions to the buffer from which this copy reads */
    if (z->lay.grads_down && err == DT_OK) err = z->dev->ops->stream_sync(z->dev, z->compute);
    zero_leave(z, before);
    return err;
}

/* ---- at the owners ----------------------------------------------------------------------------------------------- */

/** Sums of squares of this rank's matrices, in the host's scratch, with one wait for all of them. */
static dt_err sum_squares(dt_zero *z)
{
    for (int i = 0; i < z->lay.n_matrices; i++) {
        const zero_matrix *m = &z->lay.matrices[i];
        if (is_mine(z, m))
            DT_TRY(z->dev->ops->sum_squares(z->dev, owned_at(z, m), DT_BF16, zero_matrix_len(m),
                                            (double *)((char *)z->matrix_sums.ptr + (size_t)i * ZERO_RESULT_NBYTES),
                                            z->compute));
    }
    DT_TRY(z->dev->ops->copy(z->dev, z->host.ptr, z->matrix_sums.ptr, z->matrix_sums.nbytes, z->compute));
    return z->dev->ops->stream_sync(z->dev, z->compute);
}

dt_err zero_change_matrices(dt_zero *z, const zero_update *up)
{
    DT_TRY(dt_fault("zero.matrix"));
    DT_TRY(sum_squares(z));
    for (int i = 0; i < z->lay.n_matrices; i++) {
        const zero_matrix *m = &z->lay.matrices[i];
        if (!is_mine(z, m)) continue;
        if (z->phase) dt_phase_enter(z->phase, "update", z->units[m->unit].name);
        DT_TRY(z->opt.optimizer->matrices->matrix(
            z->dev, up->step, owned_at(z, m), m->rows, m->cols,
            *(const double *)((const char *)z->host.ptr + (size_t)i * ZERO_RESULT_NBYTES), z->matrix_scratch.ptr,
            z->compute));
        z->n_matrix_calls++;
    }
    return DT_OK;
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

/** Stage 0: every rank needs all results. */
static dt_err broadcast_results(dt_zero *z, int u, dt_err err)
{
    for (const zero_matrix *m = first_matrix(z, u); m < end_matrix(z, u) && err != DT_ERR_COMM; m++)
        err = dt_first_err(err,
                           dt_comm_broadcast(z->sum, direction_at(z, u, m->start),
                                             (size_t)zero_matrix_len(m) * sizeof(uint16_t), m->owner, z->comm_stream));
    return err;
}

dt_err zero_return_matrices(dt_zero *z, int u, dt_err err)
{
    const int64_t shard_len = zero_shards(&z->lay, u, DT_TRAINED)->shard_len;
    const size_t shard_nbytes = (size_t)shard_len * sizeof(uint16_t);
    const bool add = !z->lay.whole_opt && z->lay.n_groups > 1;
    const zero_phase before = zero_enter(z, "reduce", z->units[u].name);
    if (add && err == DT_OK) err = z->dev->ops->zero(z->dev, z->direction.ptr, shard_nbytes, z->compute);
    if (z->lay.blocks_len == 0 && err == DT_OK) err = copy_own(z, u, true);
    if (z->sum->size > 1) {
        err = dt_first_err(err, zero_comm_after_compute(z));
        if (z->lay.whole_opt) err = broadcast_results(z, u, err);
        if (z->lay.blocks_len > 0 && err != DT_ERR_COMM) err = exchange(z, u, true, err);
        if (add && err != DT_ERR_COMM)
            err = dt_first_err(
                err, dt_comm_all_reduce(z->replicate, z->direction.ptr, DT_BF16, shard_len, false, z->comm_stream));
        if (err != DT_ERR_COMM) err = dt_first_err(err, zero_compute_after_comm(z));
    }
    if (z->lay.grads_down && err == DT_OK) {
        err = zero_copy(z, "down", u, z->host_direction.ptr, z->direction.ptr, shard_nbytes, z->compute);
        if (err == DT_OK) err = z->dev->ops->stream_sync(z->dev, z->compute);
    }
    zero_leave(z, before);
    return err;
}

int64_t dt_zero_matrix_calls(const dt_zero *z) { return z->n_matrix_calls; }
