/* counted_comm.c - counts collectives of hypothetical ranks (dt_comm_open_counted): what the nccl transport sends from
 * this rank, and the kernel launches involved.
 *
 * A reduce-scatter sends each rank its block and folds the received blocks. If the order is free, nodes first sum their
 * own blocks and exchange sums (cuda/nccl.c). An all-gather is NCCL's: a block enters a node once, over the adapters of
 * all its ranks, and is forwarded inside the node. If groups are nodes, nothing leaves a node.
 *
 * A reduction that is larger than the staging buffer takes several rounds. */
#include "internal.h"
#include "dtrain/perfmodel/counting_device.h"
#include <math.h>

static double others_in_node(const dt_comm *comm) { return dt_min_i64(comm->nranks, comm->local_nranks) - 1; }
static double in_other_nodes(const dt_comm *comm) { return comm->nranks - 1 - others_in_node(comm); }

/* Groups of messages for blocks of which the staging buffer holds as many bytes as here. */
static double rounds_of(const dt_comm *comm, double staged)
{
    return ceil(staged / (double)dt_nccl_staging_of(comm->nranks).nbytes);
}

static void count_sums_of_nodes(dt_comm *comm, double piece, double floats, double sum, dt_stream *stream)
{
    const double n_nodes = comm->n_nodes, handed = others_in_node(comm) * n_nodes * piece, far = (n_nodes - 1) * floats,
                 rounds = rounds_of(comm, handed + (2 * n_nodes - 1) * floats);
    const dt_launch launches[] = {
        {.op = "reduce_scatter", .memory = 2 * handed, .node = handed, .exchange = {DT_MESSAGES, n_nodes, 0, rounds}},
        {.op = "reduce_scatter", .memory = handed + n_nodes * (piece + floats)},
        {.op = "reduce_scatter",
         .memory = 2 * far,
         .net = far,
         .exchange = {DT_MESSAGES, 0, rounds * (n_nodes - 1), rounds}},
        {.op = "reduce_scatter", .memory = n_nodes * floats + sum},
    };
    for (size_t i = 0; i < sizeof launches / sizeof launches[0]; i++) dt_count_queue(comm->dev, stream, &launches[i]);
}

static dt_err count_reduce_scatter(dt_comm *comm, const void *send, dt_dtype send_dt, void *recv, dt_dtype recv_dt,
                                   int64_t count, bool accumulate, bool ordered, dt_stream *stream)
{
    const double piece = (double)count * (double)dt_dtype_size(send_dt),
                 sum = (double)count * (double)dt_dtype_size(recv_dt), all = comm->nranks * piece,
                 rounds = rounds_of(comm, all - piece);
    if (count == 0 || (comm->nranks == 1 && send == recv && !accumulate)) return DT_OK;
    if (comm->nranks == 1)
        return comm->dev->ops->add_into(comm->dev, send, send_dt, recv, recv_dt, accumulate, count, stream);
    if (!ordered && comm->even_nodes && comm->n_nodes > 1 && others_in_node(comm) > 0) {
        count_sums_of_nodes(comm, piece, (double)count * sizeof(float), (accumulate ? 2 : 1) * sum, stream);
        return DT_OK;
    }
    dt_count_queue(
        comm->dev, stream,
        &(dt_launch){.op = "reduce_scatter",
                     .memory = 2 * (all - piece),
                     .node = others_in_node(comm) * piece,
                     .net = in_other_nodes(comm) * piece,
                     .exchange = {DT_MESSAGES, others_in_node(comm) > 0, rounds * in_other_nodes(comm), rounds}});
    dt_count_queue(comm->dev, stream, &(dt_launch){.op = "reduce_scatter", .memory = all + (accumulate ? 2 : 1) * sum});
    return DT_OK;
}

static dt_err count_all_gather(dt_comm *comm, const void *send, void *recv, size_t nbytes, dt_stream *stream)
{
    const double others = (double)(comm->group_nranks - 1) * (double)nbytes,
                 foreign = comm->n_groups > 1 ? 0 : in_other_nodes(comm) * (double)nbytes;
    if (nbytes == 0) return DT_OK;
    if (comm->group_nranks == 1) return comm->dev->ops->copy(comm->dev, recv, send, nbytes, stream);
    /* inside a node of several, neighbours send to each other */
    const dt_exchange messages = {DT_MESSAGES, 1, 0, 1},
                      ring = {DT_RING, comm->nranks - comm->n_nodes, comm->n_nodes - 1, 1};
    dt_count_queue(comm->dev, stream,
                   &(dt_launch){.op = "all_gather",
                                .memory = 2 * others,
                                .node = others_in_node(comm) > 0 ? others : 0,
                                .net = foreign / (others_in_node(comm) + 1),
                                .exchange = comm->n_groups > 1 ? messages : ring});
    return DT_OK;
}

static dt_err count_replicate(dt_comm *comm, void *buf, size_t stride, size_t nbytes, dt_stream *stream)
{
    const double others = (double)(comm->n_groups - 1) * (double)nbytes;
    if (nbytes > 0)
        dt_count_queue(comm->dev, stream,
                       &(dt_launch){.op = "replicate",
                                    .memory = 2 * others,
                                    .net = others,
                                    .exchange = {DT_MESSAGES, 0, comm->n_groups - 1, 1}});
    return DT_OK;
}

const dt_comm_ops dt_comm_count_ops = {.name = "count",
                                       .reduce_scatter = count_reduce_scatter,
                                       .all_gather = count_all_gather,
                                       .replicate = count_replicate};

void dt_comm_open_counted(dt_comm *comm, dt_device *dev, int nranks, int ranks_per_node, bool by_node)
{
    *comm = (dt_comm){.nranks = nranks,
                      .local_nranks = (int)dt_min_i64(nranks, ranks_per_node),
                      .n_nodes = (nranks + ranks_per_node - 1) / ranks_per_node,
                      .group_nranks = by_node ? (int)dt_min_i64(nranks, ranks_per_node) : nranks,
                      .n_groups = by_node ? (nranks + ranks_per_node - 1) / ranks_per_node : 1,
                      .even_nodes = nranks <= ranks_per_node || nranks % ranks_per_node == 0,
                      .host = "planned",
                      .dev = dev,
                      .ops = &dt_comm_count_ops,
                      .counts = true};
}
