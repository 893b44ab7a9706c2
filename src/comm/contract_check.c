/* contract_check.c - every collective has a number. With comm.check the ranks verify before each collective that all of
 * them issue the same one. They use a separate communicator, so that the exchange cannot match another collective.
 *
 * Hashes are compared by one all-reduce that computes minimum and maximum together: the maximum of the complements is
 * the complement of the minimum. Only if they differ, the ranks exchange descriptions of their collectives. */
#include "internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 64 };

/* The description that ranks exchange: no padding, strings padded with zeros. */
typedef struct call {
    int64_t number, count;
    int32_t send_dt, recv_dt, root, accumulate, ordered, on_tensors;
    char kind[WORDS], phase[WORDS], unit[WORDS], host[WORDS];
} call;

static const char *phase_of(const dt_comm *comm)
{
    const char *name = comm->phase ? atomic_load(&comm->phase->name) : NULL;
    return name ? name : "";
}

static const char *unit_of(const dt_comm *comm)
{
    const char *unit = comm->phase ? atomic_load(&comm->phase->unit) : NULL;
    return unit ? unit : "";
}

static call call_of(const dt_comm *comm, const dt_collective *c)
{
    call mine;
    memset(&mine, 0, sizeof mine);
    mine.number = atomic_load(&comm->sequence), mine.count = c->count;
    mine.send_dt = (int32_t)c->send_dt, mine.recv_dt = (int32_t)c->recv_dt, mine.root = c->root;
    mine.accumulate = c->accumulate, mine.ordered = c->ordered, mine.on_tensors = c->on_tensors;
    snprintf(mine.kind, WORDS, "%s", c->kind);
    snprintf(mine.phase, WORDS, "%.*s", WORDS - 1, phase_of(comm));
    snprintf(mine.unit, WORDS, "%.*s", WORDS - 1, unit_of(comm));
    snprintf(mine.host, WORDS, "%.*s", WORDS - 1, comm->host);
    return mine;
}

/* Hash of the fields that must agree. For host values phases may differ: one rank reads while others wait. */
static uint64_t hash_of(const call *c)
{
    call same = *c;
    uint64_t hash = 0;
    memset(same.host, 0, WORDS);
    if (!c->on_tensors) memset(same.phase, 0, WORDS), memset(same.unit, 0, WORDS);
    for (size_t i = 0; i < sizeof same / sizeof hash; i++) {
        uint64_t word;
        memcpy(&word, (const char *)&same + i * sizeof word, sizeof word);
        hash = dt_mix64(hash ^ word);
    }
    return hash;
}

/* "reduce_scatter of 1024 elements, bf16 to fp32, in phase reduce, unit lm_head" */
static void describe(const call *c, char *out, size_t out_size)
{
    int n = snprintf(out, out_size, "%s", c->kind);
    if (c->count > 0) n += snprintf(out + n, out_size - (size_t)n, " of %" PRId64, c->count);
    if (!strcmp(c->kind, "reduce_scatter"))
        n += snprintf(out + n, out_size - (size_t)n, " elements, %s to %s%s%s", dt_dtype_name((dt_dtype)c->send_dt),
                      dt_dtype_name((dt_dtype)c->recv_dt), c->accumulate ? ", accumulated" : "",
                      c->ordered ? ", in order" : "");
    if (c->root >= 0) n += snprintf(out + n, out_size - (size_t)n, " from rank %d", c->root);
    if (*c->phase)
        snprintf(out + n, out_size - (size_t)n, " in phase %s%s%s", c->phase, *c->unit ? ", unit " : "", c->unit);
}

static bool same(const call *a, const call *b) { return hash_of(a) == hash_of(b); }

static int n_like(const call *all, int nranks, int r)
{
    int n = 0;
    for (int q = 0; q < nranks; q++) n += same(&all[q], &all[r]);
    return n;
}

/* Report a rank whose collective differs from that of the majority; with a tie, from that of rank 0. */
static dt_err say_difference(const dt_comm *comm, const call *all)
{
    int usual = 0, other = 0;
    char its[512], theirs[512];
    for (int r = 1, most = n_like(all, comm->nranks, 0); r < comm->nranks; r++)
        if (n_like(all, comm->nranks, r) > most) usual = r, most = n_like(all, comm->nranks, r);
    while (same(&all[other], &all[usual])) other++;
    describe(&all[other], its, sizeof its);
    describe(&all[usual], theirs, sizeof theirs);
    comm->mpi->failed_rank = other; /* all ranks know the error and may end in order */
    return dt_fail(DT_ERR_COMM,
                   "comm.check: ranks issued different collectives: rank %d on host %s issued number %" PRId64
                   ": %s; rank %d on host %s issued number %" PRId64 ": %s",
                   other, all[other].host, all[other].number, its, usual, all[usual].host, all[usual].number, theirs);
}

static dt_err tell_difference(const dt_comm *comm, const call *mine)
{
    call *all = malloc((size_t)comm->nranks * sizeof *all);
    if (!all) return dt_fail(DT_ERR_COMM, "comm.check: ranks issued different collectives (no memory to report which)");
    const int code = MPI_Allgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE, comm->mpi->check);
    const dt_err err = code ? dt_comm_mpi_fail(code, "MPI_Allgather", __FILE__, __LINE__) : say_difference(comm, all);
    free(all);
    return err;
}

static dt_err agree_on(const dt_comm *comm, const dt_collective *c)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    call mine = call_of(comm, c);
    if (dt_fault("comm.check") != DT_OK) { /* for tests: this rank issues another collective */
        dt_error_clear();
        mine.count++;
    }
    if (mpi->check == MPI_COMM_NULL) {
        DT_MPI(MPI_Comm_dup(mpi->world, &mpi->check));
        DT_MPI(MPI_Comm_set_errhandler(mpi->check, MPI_ERRORS_RETURN));
    }
    const uint64_t hash = hash_of(&mine);
    uint64_t most[2] = {hash, ~hash};
    DT_MPI(MPI_Allreduce(MPI_IN_PLACE, most, 2, MPI_UINT64_T, MPI_MAX, mpi->check));
    if (most[0] == ~most[1]) return DT_OK;
    mpi->differ = true;
    return tell_difference(comm, &mine);
}

/* Other ranks learn of the failure only when the job ends. */
dt_err dt_comm_may_join(const dt_comm *comm)
{
    const char *failure = dt_device_failure();
    if (!failure) return DT_OK;
    if (comm->mpi) comm->mpi->failed_rank = -1;
    dt_error_clear(); /* an error that this rank kept for the next vote */
    return dt_fail(DT_ERR_COMM, "%s", failure);
}

dt_err dt_comm_next(dt_comm *comm, const dt_collective *c)
{
    DT_TRY(dt_comm_may_join(comm));
    if (!comm->counts && comm->mpi->differ) return DT_ERR_COMM; /* keeps its message */
    comm->sequence++;
    return comm->check ? agree_on(comm, c) : DT_OK;
}
