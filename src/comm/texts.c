/* texts.c - exchange of texts between rank 0 and all others. A single rank may run out of memory, so the ranks agree on
 * every error. */
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
        err = dt_fail(DT_ERR_MEMORY, "out of memory for a text of %" PRId64 " bytes from rank 0", len);
    err = dt_comm_agree(comm, err);
    if (err == DT_OK) err = dt_comm_broadcast_host(comm, *text, (size_t)len, 0);
    if (err == DT_OK || has_it) return err;
    free(*text);
    *text = NULL;
    return err;
}

/* ---- to rank 0 --------------------------------------------------------------------------------------------------- */

/* Sent in chunks through one buffer, so memory grows neither with the ranks nor with the texts. Rank 0 continues to
 * receive after its sink has failed, so that no rank waits for it. An empty chunk marks the end. */

enum { TAG_PART = 11 };

static dt_err send_text(dt_comm *comm, char *part, dt_text_source source, void *ctx)
{
    for (size_t n = 1; n > 0;) {
        n = source(ctx, part);
        DT_MPI(MPI_Send(part, (int)n, MPI_CHAR, 0, TAG_PART, comm->mpi->world));
    }
    return DT_OK;
}

/* *failed: the sink's first error. */
static dt_err receive_text(dt_comm *comm, int rank, char *part, dt_text_sink sink, void *ctx, dt_err *failed)
{
    for (int n = 1; n > 0;) {
        MPI_Status status;
        DT_MPI(MPI_Recv(part, DT_TEXT_PART, MPI_CHAR, rank, TAG_PART, comm->mpi->world, &status));
        DT_MPI(MPI_Get_count(&status, MPI_CHAR, &n));
        if (n > 0 && *failed == DT_OK) *failed = sink(ctx, rank, part, (size_t)n);
    }
    return DT_OK;
}

static dt_err receive_texts(dt_comm *comm, char *part, dt_text_source source, dt_text_sink sink, void *ctx,
                            dt_err *failed)
{
    for (size_t n; *failed == DT_OK && (n = source(ctx, part)) > 0;) *failed = sink(ctx, 0, part, n);
    for (int r = 1; r < comm->nranks; r++) DT_TRY(receive_text(comm, r, part, sink, ctx, failed));
    return DT_OK;
}

dt_err dt_comm_gather_text(dt_comm *comm, dt_text_source source, dt_text_sink sink, void *ctx)
{
    char *part = malloc(DT_TEXT_PART);
    dt_err err = dt_fault("comm.gather_text"), failed = DT_OK;
    if (err == DT_OK && !part) err = dt_fail(DT_ERR_MEMORY, "out of memory for %d bytes of texts", DT_TEXT_PART);
    err = dt_comm_agree(comm, err);
    if (err == DT_OK)
        err = comm->rank ? send_text(comm, part, source, ctx) : receive_texts(comm, part, source, sink, ctx, &failed);
    if (err == DT_OK) err = dt_comm_agree(comm, failed);
    free(part);
    return err;
}
