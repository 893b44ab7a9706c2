/* vote.c - votes, and collectives of small host values.
 *
 * All ranks choose the error of the lowest failing rank, and this rank prints it. The vote's operation is declared
 * non-commutative. MPI then combines in rank order, so sums of doubles are bit-identical on every rank and in every run
 * with the same ranks.
 *
 * A vote is a list of values, each with its own kind of combination, so MPI may split the list anywhere. The first
 * values are the error, the stop request and the non-finite flag. */
#include "internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEAD_FAILED, HEAD_STOP, HEAD_NONFINITE, N_HEAD, ROOM_AT_START = 8 };
/* kinds used only in the head: minimum or maximum of integers */
enum { MIN_INTEGER = 100, MAX_INTEGER };
/* HEAD_FAILED: the failed rank in the upper half and its error in the lower half, or this value */
static const int64_t NO_RANK = INT64_MAX;

/** NaN counts as larger, and as smaller, than every number, so that all ranks receive it. */
static double larger(double a, double b) { return isnan(a) || a > b ? a : b; }
static double smaller(double a, double b) { return isnan(a) || a < b ? a : b; }

/* a is from lower ranks than b. */
static dt_vote_value combine(dt_vote_value a, dt_vote_value b)
{
    switch (a.kind) {
    case DT_VOTE_COUNT:
        b.count = (int64_t)((uint64_t)a.count + (uint64_t)b.count);
        break;
    case DT_VOTE_SUM:
        b.real = a.real + b.real;
        break;
    case DT_VOTE_MAX:
        b.real = larger(a.real, b.real);
        break;
    case DT_VOTE_MIN:
        b.real = smaller(a.real, b.real);
        break;
    case MIN_INTEGER:
        if (a.count < b.count) b.count = a.count;
        break;
    case MAX_INTEGER:
        if (a.count > b.count) b.count = a.count;
        break;
    }
    return b;
}

/* MPI may pass memory of any alignment: copy. */
static void vote_function(void *in, void *io, int *len, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *len; i++) {
        dt_vote_value a, b;
        memcpy(&a, (const char *)in + (size_t)i * sizeof a, sizeof a);
        memcpy(&b, (const char *)io + (size_t)i * sizeof b, sizeof b);
        b = combine(a, b);
        memcpy((char *)io + (size_t)i * sizeof b, &b, sizeof b);
    }
}

dt_err dt_comm_vote_open(struct dt_comm_mpi *mpi)
{
    DT_MPI(MPI_Type_contiguous((int)sizeof(dt_vote_value), MPI_BYTE, &mpi->vote_type));
    DT_MPI(MPI_Type_commit(&mpi->vote_type));
    DT_MPI(MPI_Op_create(vote_function, 0, &mpi->vote_op));
    DT_ALLOC(mpi->vote_values, N_HEAD + ROOM_AT_START, "out of memory for a vote");
    mpi->vote_room = ROOM_AT_START;
    return DT_OK;
}

void dt_comm_vote_close(struct dt_comm_mpi *mpi)
{
    if (mpi->vote_op != MPI_OP_NULL) MPI_Op_free(&mpi->vote_op);
    if (mpi->vote_type != MPI_DATATYPE_NULL) MPI_Type_free(&mpi->vote_type);
    free(mpi->vote_values);
    mpi->vote_values = NULL;
}

dt_err dt_comm_vote_reserve(dt_comm *comm, int n_values)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    if (n_values <= mpi->vote_room) return DT_OK;
    DT_RESIZE(mpi->vote_values, N_HEAD + n_values, "out of memory for a vote of %d values", n_values);
    mpi->vote_room = n_values;
    return DT_OK;
}

enum { TEXT_SIZE = 96 };
static const char *failure_text(int rank, dt_err err, char out[TEXT_SIZE])
{
    snprintf(out, TEXT_SIZE, "rank %d failed: %s", rank, dt_error_words(err));
    return out;
}

/* The rank that has the message of an error: this rank, or the failed rank of the last agreement, if its error is
 * agreed again. */
static int owner_of(const dt_comm *comm, dt_err err)
{
    char text[TEXT_SIZE];
    const int last = comm->mpi->failed_rank;
    const char *message = dt_error_message(); /* empty after a vote, which records no message */
    return last >= 0 && (!*message || !strcmp(message, failure_text(last, err, text))) ? last : comm->rank;
}

/* kind, count: description of the collective. */
static dt_err vote_as(dt_comm *comm, dt_vote *vote, const char *kind, int count)
{
    struct dt_comm_mpi *mpi = comm->mpi;
    dt_vote_value *all = mpi->vote_values;
    const size_t nbytes = (size_t)vote->n_values * sizeof *all;
    all[HEAD_FAILED] =
        (dt_vote_value){.kind = MIN_INTEGER,
                        .count = vote->err == DT_OK ? NO_RANK : ((int64_t)owner_of(comm, vote->err) << 32) + vote->err};
    all[HEAD_STOP] = (dt_vote_value){.kind = MAX_INTEGER, .count = vote->stop};
    all[HEAD_NONFINITE] = (dt_vote_value){.kind = MAX_INTEGER, .count = vote->nonfinite};
    if (nbytes) memcpy(all + N_HEAD, vote->values, nbytes);
    DT_TRY(dt_comm_next(comm, &(dt_collective){.kind = kind, .count = count, .root = -1}));
    mpi->failed_rank = -1; /* a failed exchange is not an agreement */
    DT_MPI(MPI_Allreduce(MPI_IN_PLACE, all, N_HEAD + vote->n_values, mpi->vote_type, mpi->vote_op, mpi->world));
    const int64_t failed = all[HEAD_FAILED].count;
    vote->err = failed == NO_RANK ? DT_OK : (int32_t)(failed & INT32_MAX);
    vote->failed_rank = failed == NO_RANK ? -1 : (int32_t)(failed >> 32);
    vote->stop = (int32_t)all[HEAD_STOP].count;
    vote->nonfinite = (int32_t)all[HEAD_NONFINITE].count;
    if (nbytes) memcpy(vote->values, all + N_HEAD, nbytes);
    mpi->failed_rank = vote->failed_rank;
    return DT_OK;
}

dt_err dt_comm_vote(dt_comm *comm, dt_vote *vote)
{
    DT_EXPECT(comm && comm->mpi && vote);
    DT_EXPECT(vote->n_values >= 0 && vote->n_values <= comm->mpi->vote_room);
    return vote_as(comm, vote, "vote", vote->n_values);
}

dt_err(dt_comm_agree)(dt_comm *comm, dt_err err)
{
    if (comm && comm->counts) return err;
    DT_EXPECT(comm && comm->mpi);
    if (err != DT_OK && comm->mpi->apart) return err; /* main ends the job */
    dt_vote vote = {.err = (int32_t)err};
    char text[TEXT_SIZE];
    DT_TRY(vote_as(comm, &vote, "agreement", 1));
    if (vote.err == DT_OK || err != DT_OK) return (dt_err)vote.err;
    dt_error_clear(); /* the message of an error that was already handled must not be reported for this one */
    return dt_fail((dt_err)vote.err, "%s", failure_text(vote.failed_rank, (dt_err)vote.err, text));
}

bool dt_comm_prints_error(const dt_comm *comm)
{
    return !dt_comm_failed_together(comm) || comm->mpi->failed_rank == comm->rank;
}

bool dt_comm_failed_together(const dt_comm *comm) { return comm && comm->mpi && comm->mpi->failed_rank >= 0; }

/* ---- small values of the host ------------------------------------------------------------------------------------ */

static MPI_Op mpi_op(dt_reduce_op op) { return op == DT_SUM ? MPI_SUM : op == DT_MAX ? MPI_MAX : MPI_MIN; }

static dt_err reduce_host(const dt_axis *axis, void *values, int n, MPI_Datatype type, MPI_Op op)
{
    dt_comm *comm = axis ? axis->comm : NULL;
    if (comm && comm->counts) return DT_OK;
    DT_EXPECT(comm && comm->mpi && n >= 0 && (n == 0 || values));
    DT_TRY(dt_comm_next(
        comm,
        &(dt_collective){.kind = "reduction of host values", .count = n, .root = -1, .axis = axis, .on_host = true}));
    MPI_Comm group = comm->mpi->world;
    if (axis->size < comm->nranks) DT_TRY(dt_comm_group(axis, comm->mpi->group, &group));
    DT_MPI(MPI_Allreduce(MPI_IN_PLACE, values, n, type, op, group));
    return DT_OK;
}

dt_err dt_comm_reduce_host_i64(const dt_axis *axis, int64_t *values, int n, dt_reduce_op op)
{
    return reduce_host(axis, values, n, MPI_INT64_T, mpi_op(op));
}

dt_err dt_comm_reduce_host_f64(const dt_axis *axis, double *values, int n, dt_reduce_op op)
{
    return reduce_host(axis, values, n, MPI_DOUBLE, mpi_op(op));
}

dt_err dt_comm_sum_host_u64(const dt_axis *axis, uint64_t *values, int n)
{
    return reduce_host(axis, values, n, MPI_UINT64_T, MPI_SUM);
}

/* Sums of words of which all but one are zero keep every bit. No rank needs to know which rank has which word. */
dt_err dt_comm_join_host(const dt_axis *axis, void *x, size_t nbytes)
{
    enum { MAX_WORDS = 1 << 24 };
    uint64_t *word = x;
    for (size_t at = 0, n = nbytes / sizeof *word; at < n; at += MAX_WORDS)
        DT_TRY(dt_comm_sum_host_u64(axis, word + at, (int)dt_min_size(n - at, MAX_WORDS)));
    return DT_OK;
}

/* MPI_Bcast of any size. */
static dt_err broadcast_bytes(dt_comm *comm, void *buf, size_t nbytes, int root)
{
    DT_TRY(dt_comm_may_join(comm));
    for (size_t done = 0; done < nbytes;) {
        const size_t n = nbytes - done < comm->mpi->max_message ? nbytes - done : comm->mpi->max_message;
        DT_MPI(MPI_Bcast((char *)buf + done, (int)n, MPI_BYTE, root, comm->mpi->world));
        done += n;
    }
    return DT_OK;
}

dt_err dt_comm_broadcast_host(dt_comm *comm, void *buf, size_t nbytes, int root)
{
    DT_EXPECT(comm && comm->mpi && (nbytes == 0 || buf));
    DT_EXPECT(root >= 0 && root < comm->nranks);
    DT_TRY(dt_comm_next(comm,
                        &(dt_collective){.kind = "broadcast of host bytes", .count = (int64_t)nbytes, .root = root}));
    return broadcast_bytes(comm, buf, nbytes, root);
}

/* A rank that waits sleeps between its looks, longer with time. */
dt_err dt_comm_broadcast_late(dt_comm *comm, void *buf, size_t nbytes)
{
    enum { SHORTEST_NS = 50000, LONGEST_NS = 5000000 };
    MPI_Request request;
    int done = 0;
    DT_EXPECT(comm && comm->mpi && nbytes <= comm->mpi->max_message);
    DT_TRY(dt_comm_next(comm, &(dt_collective){.kind = "late broadcast of host bytes", .count = (int64_t)nbytes}));
    DT_TRY(dt_comm_may_join(comm));
    DT_MPI(MPI_Ibcast(buf, (int)nbytes, MPI_BYTE, 0, comm->mpi->world, &request));
    for (long ns = SHORTEST_NS; !done; ns = ns < LONGEST_NS ? 2 * ns : LONGEST_NS) {
        DT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (!done) nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    }
    return DT_OK;
}

dt_err dt_comm_same_file(dt_comm *comm, const char *path, uint64_t fingerprint)
{
    uint64_t first = fingerprint;
    DT_TRY(dt_comm_broadcast_host(comm, &first, sizeof first, 0));
    return dt_comm_agree(comm,
                         first == fingerprint
                             ? DT_OK
                             : dt_fail(DT_ERR_DATA, "%s: the file on host %s differs from rank 0's", path, comm->host));
}

void *dt_comm_mpi_handle(const dt_comm *comm) { return comm && comm->mpi ? &comm->mpi->world : NULL; }
