/* counted_comm.c - counts collectives of hypothetical ranks (dt_comm_open_counted): what the nccl transport sends from
 * this rank, and the kernel launches involved.
 *
 * A reduce-scatter sends each rank its block and folds the received blocks. If the order is free, nodes first sum their
 * own blocks and exchange sums (cuda/nccl.c). An all-gather is NCCL's: a block enters a node once, over the adapters of
 * all its ranks, and is forwarded inside the node. With by_node no gather leaves its node.
 *
 * A reduction that is larger than the staging buffer takes several rounds. */
#include "internal.h"
#include "dtrain/perfmodel/counting_device.h"
#include <math.h>
#include <stdlib.h>

static double others_in_node(const dt_axis *axis) { return axis->local_size - 1; }
static double in_other_nodes(const dt_axis *axis) { return axis->size - axis->local_size; }

/* Number of groups of messages for `staged` bytes of blocks. */
static double rounds_of(const dt_axis *axis, double staged)
{
    return ceil(staged / (double)dt_nccl_staging_of(axis->comm->nranks));
}

static void count_sums_of_nodes(const dt_axis *axis, double block, double floats, double sum, dt_stream *stream)
{
    const double n_nodes = axis->n_nodes, handed = others_in_node(axis) * n_nodes * block, far = (n_nodes - 1) * floats,
                 rounds = rounds_of(axis, handed + (2 * n_nodes - 1) * floats);
    const dt_launch launches[] = {
        {.op = "reduce_scatter", .memory = 2 * handed, .node = handed, .exchange = {DT_MESSAGES, n_nodes, 0, rounds}},
        {.op = "reduce_scatter", .memory = handed + n_nodes * (block + floats)},
        {.op = "reduce_scatter",
         .memory = 2 * far,
         .net = far,
         .exchange = {DT_MESSAGES, 0, rounds * (n_nodes - 1), rounds}},
        {.op = "reduce_scatter", .memory = n_nodes * floats + sum},
    };
    for (size_t i = 0; i < sizeof launches / sizeof launches[0]; i++)
        dt_count_queue(axis->comm->dev, stream, &launches[i]);
}

static dt_err count_reduce_scatter(const dt_axis *axis, const dt_reduction *d, dt_stream *stream)
{
    dt_device *dev = axis->comm->dev;
    const double block = (double)d->count * (double)dt_dtype_size(d->send_dt),
                 sum = (double)d->count * (double)dt_dtype_size(d->recv_dt), all = axis->size * block,
                 results = (d->accumulate ? 2 : 1) * sum, rounds = rounds_of(axis, all - block);
    if (d->count == 0 || (axis->size == 1 && d->send == d->recv && !d->accumulate)) return DT_OK;
    if (axis->size == 1)
        return dev->ops->add_into(dev, d->send, d->send_dt, d->recv, d->recv_dt, d->accumulate, d->count, stream);
    if (!d->ordered && axis->even_nodes && axis->n_nodes > 1 && others_in_node(axis) > 0) {
        count_sums_of_nodes(axis, block, (double)d->count * sizeof(float), results, stream);
        return DT_OK;
    }
    dt_count_queue(
        dev, stream,
        &(dt_launch){.op = "reduce_scatter",
                     .memory = 2 * (all - block),
                     .node = others_in_node(axis) * block,
                     .net = in_other_nodes(axis) * block,
                     .exchange = {DT_MESSAGES, others_in_node(axis) > 0, rounds * in_other_nodes(axis), rounds}});
    dt_count_queue(dev, stream, &(dt_launch){.op = "reduce_scatter", .memory = all + results});
    return DT_OK;
}

static dt_err count_all_gather(const dt_axis *axis, const char *kind, const void *send, void *recv, size_t stride,
                               size_t nbytes, dt_stream *stream)
{
    dt_device *dev = axis->comm->dev;
    const double others = (double)(axis->size - 1) * (double)nbytes, foreign = in_other_nodes(axis) * (double)nbytes;
    if (nbytes == 0) return DT_OK;
    if (axis->size == 1) return dev->ops->copy(dev, recv, send, nbytes, stream);
    /* as cuda/nccl.c: ncclAllGather if the axis is the communicator, else messages */
    const dt_exchange messages = {DT_MESSAGES, others_in_node(axis) > 0, in_other_nodes(axis), 1},
                      ring = {DT_RING, axis->size - axis->n_nodes, axis->n_nodes - 1, 1};
    dt_count_queue(dev, stream,
                   &(dt_launch){.op = kind,
                                .memory = 2 * others,
                                .node = others_in_node(axis) > 0 ? others : 0,
                                .net = foreign / (others_in_node(axis) + 1),
                                .exchange = axis->in_order && stride == nbytes ? ring : messages});
    return DT_OK;
}

/* The members of rank 0's node come first. */
static dt_err count_exchange(const dt_axis *axis, const char *kind, const dt_parcel *m, int n, dt_stream *stream)
{
    dt_launch launch = {.op = kind, .exchange = {DT_MESSAGES, 0, 0, 1}};
    for (int i = 0; i < n; i++) {
        launch.memory += (double)(m[i].send_nbytes + m[i].recv_nbytes);
        const bool near = m[i].rank < axis->local_size;
        *(near ? &launch.node : &launch.net) += (double)m[i].send_nbytes;
        if (near) launch.exchange.near = 1;
        launch.exchange.far += !near;
    }
    if (launch.memory > 0) dt_count_queue(axis->comm->dev, stream, &launch);
    return DT_OK;
}

const dt_comm_ops dt_comm_count_ops = {.name = "count",
                                       .reduce_scatter = count_reduce_scatter,
                                       .all_gather = count_all_gather,
                                       .exchange = count_exchange};

dt_err dt_comm_open_counted(dt_comm *comm, dt_device *dev, int nranks, int ranks_per_node, const dt_mesh_shape *shape)
{
    *comm = (dt_comm){.nranks = nranks, .host = "planned", .dev = dev, .ops = &dt_comm_count_ops, .counts = true};
    dt_parcel *messages;
    DT_ALLOC(messages, nranks, "out of memory for a table of %d ranks", nranks);
    dt_mesh_plan(&comm->mesh, comm, nranks, ranks_per_node, shape);
    comm->local_nranks = comm->mesh.world.local_size;
    for (int i = 0; i < DT_N_AXES; i++) comm->mesh.axis[i].messages = messages; /* at most one call at a time */
    return DT_OK;
}
