/* texts.c - texts between rank 0 and all others. Every failure but that of the exchange itself is agreed on, as memory
 * may be short on one rank alone. */
#include "internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dt_err dt_comm_share_text(dt_comm *comm, char **text, size_t *nbytes)
{
    const bool has_it = comm->rank == 0;
    int64_t len = has_it && *text ? (int64_t)(nbytes ? *nbytes : strlen(*text)) : -1; /* -1: none */
    if (!has_it) *text = NULL;
    DT_TRY(dt_comm_broadcast_host(comm, &len, sizeof len, 0));
    if (nbytes) *nbytes = len > 0 ? (size_t)len : 0;
    if (len < 0) return DT_OK;
    dt_err err = dt_fault("comm.share_text");
    if (err == DT_OK && !has_it && !(*text = calloc(1, (size_t)len + 1)))
        err = dt_fail(DT_ERR_MEMORY, "no memory for a text of %" PRId64 " bytes from rank 0", len);
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_broadcast_host(comm, *text, (size_t)len, 0);
    if (err == DT_OK || has_it) return err;
    free(*text);
    *text = NULL;
    return err;
}

/* ---- to rank 0 --------------------------------------------------------------------------------------------------- */

/* In parts, through one buffer: rank 0 needs no more memory with more ranks or longer texts, and one whose sink has
 * failed goes on receiving, so that nobody waits for it. */

enum { PART_NBYTES = 1 << 16, TAG_LENGTH = 11, TAG_PART };

static size_t part_after(size_t done, size_t nbytes)
{
    return nbytes - done < PART_NBYTES ? nbytes - done : PART_NBYTES;
}

static dt_err send_text(dt_comm *comm, const char *text, uint64_t nbytes)
{
    DT_MPI(MPI_Send(&nbytes, 1, MPI_UINT64_T, 0, TAG_LENGTH, comm->mpi->world));
    for (uint64_t done = 0; done < nbytes; done += PART_NBYTES)
        DT_MPI(MPI_Send(text + done, (int)part_after(done, nbytes), MPI_CHAR, 0, TAG_PART, comm->mpi->world));
    return DT_OK;
}

/* *failed: the sink's first error. */
static dt_err receive_text(dt_comm *comm, int rank, char *part, dt_text_sink sink, void *ctx, dt_err *failed)
{
    uint64_t nbytes = 0;
    DT_MPI(MPI_Recv(&nbytes, 1, MPI_UINT64_T, rank, TAG_LENGTH, comm->mpi->world, MPI_STATUS_IGNORE));
    for (uint64_t done = 0; done < nbytes; done += PART_NBYTES) {
        const size_t n = part_after(done, nbytes);
        DT_MPI(MPI_Recv(part, (int)n, MPI_CHAR, rank, TAG_PART, comm->mpi->world, MPI_STATUS_IGNORE));
        if (*failed == DT_OK) *failed = sink(ctx, rank, part, n);
    }
    return DT_OK;
}

static dt_err receive_texts(dt_comm *comm, const char *own, size_t nbytes, char *part, dt_text_sink sink, void *ctx,
                            dt_err *failed)
{
    if (nbytes > 0) *failed = sink(ctx, 0, own, nbytes);
    for (int r = 1; r < comm->nranks; r++) DT_TRY(receive_text(comm, r, part, sink, ctx, failed));
    return DT_OK;
}

dt_err dt_comm_gather_text(dt_comm *comm, const char *text, size_t nbytes, dt_text_sink sink, void *ctx)
{
    char *part = comm->rank == 0 ? malloc(PART_NBYTES) : NULL;
    dt_err err = dt_fault("comm.gather_text"), failed = DT_OK;
    if (err == DT_OK && comm->rank == 0 && !part)
        err = dt_fail(DT_ERR_MEMORY, "no memory for %d bytes of texts", PART_NBYTES);
    err = dt_comm_agree(comm, err);
    if (err == DT_OK)
        err = comm->rank ? send_text(comm, text, nbytes) : receive_texts(comm, text, nbytes, part, sink, ctx, &failed);
    if (err == DT_OK) err = dt_comm_agree(comm, failed);
    free(part);
    return err;
}
