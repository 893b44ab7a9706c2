/* contract_check.c - every collective has a number. With comm.check the ranks verify before each collective that all of
 * them issue the same one. They use a separate communicator, so that the exchange cannot match another collective.
 *
 * One all-reduce computes the minimum and the maximum of the hashes: the maximum of the complements is the complement
 * of the minimum. If the two differ, the ranks exchange descriptions of their collectives. */
#include "internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What ranks compare and exchange: no padding, texts padded with zeros. */
typedef struct call {
    int64_t number, axis, on_host; /* axis: index in dt_mesh.axis; -1: all ranks */
    char what[192], phase[128], host[64];
} call;

/* Is this an axis along which ranks process the same samples? */
static bool divides_samples(const dt_axis *axis)
{
    return axis && axis - axis->comm->mesh.axis >= DT_N_AXES - DT_N_TEAM_AXES;
}

/* "reduce_scatter of 1024 elements, bf16 to fp32" */
static void describe(const dt_collective *c, char *out, size_t out_size)
{
    int n = snprintf(out, out_size, "%s", c->kind);
    if (c->count > 0) n += snprintf(out + n, out_size - (size_t)n, " of %" PRId64, c->count);
    if (!strcmp(c->kind, "reduce_scatter") || !strcmp(c->kind, "all_reduce"))
        n += snprintf(out + n, out_size - (size_t)n, " elements, %s to %s%s%s", dt_dtype_name(c->send_dt),
                      dt_dtype_name(c->recv_dt), c->accumulate ? ", accumulated" : "", c->ordered ? ", in order" : "");
    if (divides_samples(c->axis)) /* the others follow from the kind */
        n += snprintf(out + n, out_size - (size_t)n, " on axis %s", c->axis->name);
    if (c->root >= 0) snprintf(out + n, out_size - (size_t)n, " from rank %d", c->root);
}

/* number: of the collective, among those of its scope */
static call call_of(const dt_comm *comm, const dt_collective *c, int64_t number)
{
    call mine;
    const char *phase = comm->phase ? atomic_load(&comm->phase->name) : NULL,
               *unit = comm->phase ? atomic_load(&comm->phase->unit) : NULL;
    memset(&mine, 0, sizeof mine);
    mine.number = number;
    mine.axis = c->axis ? c->axis - comm->mesh.axis : -1;
    mine.on_host = !c->axis || c->on_host;
    describe(c, mine.what, sizeof mine.what);
    if (phase && *phase)
        snprintf(mine.phase, sizeof mine.phase, " in phase %.50s%s%.50s", phase, unit && *unit ? ", unit " : "",
                 unit ? unit : "");
    snprintf(mine.host, sizeof mine.host, "%s", comm->host);
    return mine;
}

/* Hash of the fields that must agree. For host values phases may differ: one rank reads while others wait. */
static uint64_t hash_of(const call *c)
{
    call same = *c;
    uint64_t hash = 0;
    memset(same.host, 0, sizeof same.host);
    if (c->on_host) memset(same.phase, 0, sizeof same.phase);
    for (size_t i = 0; i < sizeof same / sizeof hash; i++) {
        uint64_t word;
        memcpy(&word, (const char *)&same + i * sizeof word, sizeof word);
        hash = dt_mix64(hash ^ word);
    }
    return hash;
}

static bool same(const call *a, const call *b) { return hash_of(a) == hash_of(b); }

/** The ranks that must issue the same collective: of a tensor or context parallel axis its members, else all ranks with
 *  the same parameters. */
static const dt_axis *scope_of(const dt_comm *comm, const dt_axis *axis)
{
    const dt_mesh *m = &comm->mesh;
    const dt_axis *scope = !axis || axis == &m->world ? &m->world : divides_samples(axis) ? axis : &m->sum;
    return scope->size == comm->nranks ? &m->world : scope;
}

static int n_like(const call *all, int n_ranks, int r)
{
    int n = 0;
    for (int q = 0; q < n_ranks; q++) n += same(&all[q], &all[r]);
    return n;
}

/* Report a rank whose collective differs from that of the majority; with a tie, from that of rank 0. */
static dt_err report_difference(const dt_axis *scope, const call *all)
{
    int usual = 0, other = 0;
    for (int r = 1, n_usual = n_like(all, scope->size, 0); r < scope->size; r++)
        if (n_like(all, scope->size, r) > n_usual) usual = r, n_usual = n_like(all, scope->size, r);
    while (same(&all[other], &all[usual])) other++;
    const call *its = &all[other], *theirs = &all[usual];
    /* -1 if some ranks are not members of the scope: the error is not reported to them */
    scope->comm->mpi->failed_rank = scope->size == scope->comm->nranks ? scope->member[other] : -1;
    return dt_fail(DT_ERR_COMM,
                   "comm.check: ranks issued different collectives: rank %d on host %s issued number %" PRId64
                   ": %s%s; rank %d on host %s issued number %" PRId64 ": %s%s",
                   scope->member[other], its->host, its->number, its->what, its->phase, scope->member[usual],
                   theirs->host, theirs->number, theirs->what, theirs->phase);
}

static dt_err exchange_calls(const dt_axis *scope, MPI_Comm check, const call *mine)
{
    call *all = malloc((size_t)scope->size * sizeof *all);
    if (!all) return dt_fail(DT_ERR_COMM, "comm.check: ranks issued different collectives (no memory to report which)");
    const int code = MPI_Allgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE, check);
    const dt_err err =
        code ? dt_comm_mpi_fail(code, "MPI_Allgather", __FILE__, __LINE__) : report_difference(scope, all);
    free(all);
    return err;
}

static dt_err agree_on(dt_comm *comm, const dt_collective *c)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    const dt_axis *scope = scope_of(comm, c->axis);
    MPI_Comm check;
    dt_collective issued = *c;
    if (dt_fault("comm.check") != DT_OK) { /* for tests: this rank issues another collective */
        dt_error_clear();
        issued.count++;
    }
    const call mine = call_of(comm, &issued, ++mpi->n_issued[scope - comm->mesh.axis]);
    DT_TRY(dt_comm_group(scope, mpi->check, &check));
    const uint64_t hash = hash_of(&mine);
    uint64_t largest[2] = {hash, ~hash};
    DT_MPI(MPI_Allreduce(MPI_IN_PLACE, largest, 2, MPI_UINT64_T, MPI_MAX, check));
    if (largest[0] == ~largest[1]) return DT_OK;
    mpi->differ = true;
    return exchange_calls(scope, check, &mine);
}

/* Compare what every other member sends with what this rank expects. text: out, the first difference, or "". */
static dt_err compare_sizes(const dt_axis *axis, const size_t *send_nbytes, const size_t *recv_nbytes, char *text,
                            size_t text_size)
{
    enum { TAG_SIZE = 21 };
    *text = '\0';
    for (int k = 1; k < axis->size; k++) {
        const int to = (axis->rank + k) % axis->size, from = (axis->rank - k + axis->size) % axis->size;
        uint64_t give = send_nbytes[to], take = 0;
        DT_MPI(MPI_Sendrecv(&give, 1, MPI_UINT64_T, axis->member[to], TAG_SIZE, &take, 1, MPI_UINT64_T,
                            axis->member[from], TAG_SIZE, axis->comm->mpi->world, MPI_STATUS_IGNORE));
        if (take != recv_nbytes[from] && !*text)
            snprintf(text, text_size,
                     "comm.check: all_to_all_v: rank %d sends %" PRIu64 " bytes to rank %d, which expects %zu",
                     axis->member[from], take, axis->member[axis->rank], recv_nbytes[from]);
    }
    return DT_OK;
}

dt_err dt_comm_check_sizes(const dt_axis *axis, const size_t *send_nbytes, const size_t *recv_nbytes)
{
    dt_comm *comm = axis->comm;
    if (!comm->check) return DT_OK;
    const dt_axis *scope = scope_of(comm, axis);
    const MPI_Comm check = comm->mpi->check[scope - comm->mesh.axis];
    char text[256];
    int first = scope->size;
    DT_TRY(compare_sizes(axis, send_nbytes, recv_nbytes, text, sizeof text));
    if (*text) first = scope->rank;
    DT_MPI(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, check));
    if (first == scope->size) return DT_OK;
    DT_MPI(MPI_Bcast(text, sizeof text, MPI_CHAR, first, check));
    comm->mpi->differ = true;
    comm->mpi->failed_rank = scope->size == comm->nranks ? scope->member[first] : -1;
    return dt_fail(DT_ERR_COMM, "%s", text);
}

/* No other rank knows of the failure. */
dt_err dt_comm_may_join(const dt_comm *comm)
{
    const char *failure = dt_device_failure();
    if (!failure) return DT_OK;
    if (comm->mpi) comm->mpi->failed_rank = -1;
    dt_error_clear(); /* an error that this rank has recorded for the next vote */
    return dt_fail(DT_ERR_COMM, "%s", failure);
}

dt_err dt_comm_next(dt_comm *comm, const dt_collective *c)
{
    DT_TRY(dt_comm_may_join(comm));
    if (!comm->counts && comm->mpi->differ) return DT_ERR_COMM; /* keeps its message */
    comm->sequence++;
    return comm->check ? agree_on(comm, c) : DT_OK;
}
