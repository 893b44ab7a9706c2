// NP: 1 2 3 4 8
/* mpi_comm_contracts.c - the transport's contract apart from its results. A failing rank still takes part, sent
 * bytes are counted, misuse is refused, and ranks know their nodes and which ranks share their device. */
#include "comm_fixture.h"

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/** main() arms a fault on the last rank for the first passage. */
TEST(a_rank_with_an_error_of_its_own_still_takes_part)
{
    fixture *f = *state;
    open_layout(f, layout_at(0));
    dt_comm *c = &f->comm;
    const bool bad = c->rank == c->nranks - 1;
    float *all = calloc((size_t)c->nranks, sizeof *all), sum = 0.0f;
    assert_non_null(all);
    for (int r = 0; r < c->nranks; r++) all[r] = 1.0f;
    dt_error_clear();
    const dt_err reduced = dt_comm_reduce_scatter(&c->mesh.sum, all, DT_F32, &sum, DT_F32, 1, false, true, NULL);
    const dt_err gathered = dt_comm_all_gather(&c->mesh.shard, &sum, all, sizeof sum, NULL);
    dt_error_clear();
    bool ok = reduced == (bad ? DT_ERR_FAULT : DT_OK) && gathered == (bad ? DT_ERR_WRITE : DT_OK);
    for (int r = 0; r < c->nranks; r++) ok = ok && all[r] == (float)c->nranks;
    free(all);
    assert_all(MPI_COMM_WORLD, ok);
    close_layout(f);
}

/** A copy to or from the device that fails on one rank, at each copy in turn. */
TEST(a_failing_copy_does_not_strand_the_others)
{
    fixture *f = *state;
    const layout far = {"", true, true, false};
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    skip_all_if(nranks == 1, "with one rank nothing is copied to the host");
    for (int nth = 1; nth <= 3; nth++) {
        open_layout(f, &far);
        guarded send = guarded_alloc(f, 12u * (size_t)f->comm.nranks), recv = guarded_alloc(f, 12);
        if (f->comm.rank == 0) dt_queue_fail_copy(&f->dev, nth);
        dt_err err = dt_comm_reduce_scatter(&f->comm.mesh.sum, device(&send), DT_BF16, device(&recv), DT_BF16, 3, true,
                                            false, NULL);
        assert_all(MPI_COMM_WORLD, err == (f->comm.rank == 0 ? DT_ERR_FAULT : DT_OK));
        if (f->comm.rank == 0) dt_queue_fail_copy(&f->dev, nth > 2 ? 1 : nth);
        err = dt_comm_all_gather(&f->comm.mesh.shard, device(&recv), device(&send), 12, NULL);
        const dt_err late = f->dev.ops->stream_sync(&f->dev, NULL); /* of a copy back to the device */
        if (err == DT_OK) err = late;
        assert_all(MPI_COMM_WORLD, err == (f->comm.rank == 0 ? DT_ERR_FAULT : DT_OK));
        dt_error_clear();
        guarded_free(&send), guarded_free(&recv);
        close_layout(f);
    }
}

/* ---- counts, contracts ------------------------------------------------------------------------------------------- */

TEST(traffic_and_sequence_are_counted)
{
    fixture *f = *state;
    open_layout(f, layout_at(0));
    dt_comm *c = &f->comm;
    float *a = calloc(10u * (size_t)c->nranks, sizeof *a), b[10];
    assert_non_null(a);
    const long long before = c->sequence;
    bool ok = dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, b, DT_F32, 10, false, false, NULL) == DT_OK;
    ok = dt_comm_all_gather(&c->mesh.shard, b, a, sizeof b, NULL) == DT_OK && ok;
    free(a);
    assert_all(MPI_COMM_WORLD, ok && c->sequence == before + 2);
    assert_all(MPI_COMM_WORLD, c->traffic_bytes == 2 * (c->nranks - 1) * 40.0);
    close_layout(f);
}

TEST(overlap_that_is_not_ones_own_place_is_refused)
{
    fixture *f = *state;
    open_layout(f, layout_at(0));
    dt_comm *c = &f->comm;
    float *a = calloc(8u * (size_t)c->nranks, sizeof *a);
    assert_non_null(a);
    float *own = a + 4 * c->rank;
    bool ok = dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, own, DT_F32, 4, true, false, NULL) ==
              DT_ERR_ARG; /* accumulate */
    ok = dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, own, DT_BF16, 4, false, false, NULL) == DT_ERR_ARG &&
         ok; /* types */
    ok = dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, own + 1, DT_F32, 4, false, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, NULL, DT_F32, 4, false, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, own, DT_F32, -1, false, false, NULL) == DT_ERR_ARG && ok;
    ok =
        dt_comm_reduce_scatter(&c->mesh.sum, a, DT_F32, own, DT_F32, INT64_MAX / 2, false, false, NULL) == DT_ERR_ARG &&
        ok;
    ok = dt_comm_all_gather(&c->mesh.shard, own + 1, a, 16, NULL) == DT_ERR_ARG && ok;
    dt_error_clear();
    free(a);
    assert_all(MPI_COMM_WORLD, ok);
    close_layout(f);
}

TEST(a_backend_that_was_not_built_is_refused_by_name)
{
    fixture *f = *state;
    memset(f, 0, sizeof *f);
    assert_int_equal(open_near(f), DT_OK);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, "nccl", true) == DT_ERR_USAGE);
    assert_all(MPI_COMM_WORLD, strstr(dt_error_message(), "nccl") && strstr(dt_error_message(), "mpi"));
    dt_error_clear();
    assert_all_fail(MPI_COMM_WORLD,
                    dt_comm_reduce_scatter(&f->comm.mesh.sum, NULL, DT_F32, NULL, DT_F32, 0, false, false, NULL),
                    DT_ERR_ARG, "");
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, "mpi", true) == DT_OK);
    dt_comm_close(&f->comm);
    dt_comm_close(&f->comm); /* twice is harmless */
    dt_device_close(&f->dev);
}

/* ---- bytes between nodes ----------------------------------------------------------------------------------------- */

static const dt_comm *watched; /* whose messages to other nodes are counted */
static double n_far_bytes;

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request *request)
{
    int size;
    PMPI_Type_size(type, &size);
    if (watched && watched->mesh.world.node_of[dest] != watched->mesh.world.node) n_far_bytes += (double)count * size;
    return PMPI_Isend(buf, count, type, dest, tag, comm, request);
}

/** Collectives of one kind: 0 and 1 reductions of bf16, free and ordered, 2 a gather, 3 an exchange among groups. */
static bool far_bytes_are_planned(fixture *f, const dt_comm_shape *shape, int kind)
{
    enum { COUNT = 5000 };
    dt_comm *c = &f->comm;
    guarded whole = guarded_alloc(f, COUNT * sizeof(float) * (size_t)c->nranks),
            part = guarded_alloc(f, COUNT * sizeof(float));
    dt_traffic traffic = {0};
    watched = c, n_far_bytes = 0;
    bool ok = true;
    if (kind < 2) {
        ok = dt_comm_reduce_scatter(&c->mesh.sum, device(&whole), DT_BF16, device(&part), DT_F32, COUNT, false, kind,
                                    NULL) == DT_OK;
        traffic.reduced_elems = COUNT, traffic.reduced_bytes = 2 * COUNT;
    } else if (kind == 2) {
        ok = dt_comm_all_gather(&c->mesh.shard, device(&part), device(&whole), COUNT, NULL) == DT_OK;
        traffic.gathered_bytes = COUNT;
    } else {
        ok = dt_comm_replicate(&c->mesh.replicate, device(&whole), COUNT, COUNT, NULL) == DT_OK;
        traffic.replicated_bytes = COUNT;
    }
    watched = NULL;
    ok = ok && f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    const double planned = dt_comm_sent(transport(), &f->dev, shape, kind == 1, &traffic).between;
    if (planned != n_far_bytes)
        fprintf(stderr, "rank %d of %d, kind %d: %g bytes to other nodes, planned %g\n", c->rank, c->nranks, kind,
                n_far_bytes, planned);
    guarded_free(&whole), guarded_free(&part);
    return ok && planned == n_far_bytes;
}

TEST(bytes_between_nodes_match_the_plan)
{
    fixture *f = *state;
    skip_all_if(!on_one_machine(), "ranks run on several machines");
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        const dt_comm_shape shape = {
            f->comm.nranks, f->comm.local_nranks, 1, layout_at(l)->shared, {1, 1, layout_at(l)->by_node}};
        for (int kind = 0; kind < 4 && f->comm.mesh.world.even_nodes; kind++)
            assert_all(MPI_COMM_WORLD, far_bytes_are_planned(f, &shape, kind));
        close_layout(f);
    }
}

/* ---- nodes and devices ------------------------------------------------------------------------------------------- */

TEST(ranks_find_their_nodes)
{
    fixture *f = *state;
    skip_all_if(!on_one_machine(), "ranks run on several machines");
    for (int l = 0; l < n_layouts(); l++) {
        const int k = layout_at(l)->nodes[0] ? atoi(layout_at(l)->nodes) : 1;
        const bool cyclic = strchr(layout_at(l)->nodes, ':') != NULL;
        open_layout(f, layout_at(l));
        const dt_comm *c = &f->comm;
        int local = 0, n_local = 0, n_nodes = k < c->nranks ? k : c->nranks, node = 0, last = -1;
        for (int r = 0; r < c->nranks; r++) {
            const int color = cyclic ? r % k : r * k / c->nranks, mine = cyclic ? c->rank % k : c->rank * k / c->nranks;
            if (color == mine && r < c->rank) local++;
            if (color == mine) n_local++;
            if (!cyclic && r <= c->rank && color != last) node++;
            last = color;
        }
        node = cyclic ? c->rank % k : node - 1;
        assert_all(MPI_COMM_WORLD, c->mesh.world.n_nodes == n_nodes && c->mesh.world.node == node &&
                                       c->local_rank == local && c->local_nranks == n_local);
        close_layout(f);
    }
    setenv("DTRAIN_FAKE_NODES", "two", 1);
    assert_int_equal(dt_comm_open(&f->comm), DT_ERR_USAGE);
    unsetenv("DTRAIN_FAKE_NODES");
}

/** Two devices for the ranks of the node, taken in turn; and the CPU, which is one for all. */
TEST(ranks_that_share_a_device_are_counted)
{
    dt_comm c = {0};
    dt_device dev;
    dt_ledger ledger = {0};
    const char *was = getenv("DTRAIN_DEVICE");
    char *device = was ? strdup(was) : NULL;
    skip_all_if(!on_one_machine(), "ranks run on several machines");
    setenv("DTRAIN_QUEUE_DEVICES", "2", 1);
    for (int queue = 0; queue < 2; queue++) {
        assert_int_equal(dt_comm_open(&c), DT_OK);
        setenv("DTRAIN_DEVICE", queue ? "queue" : "cpu", 1);
        assert_int_equal(dt_device_open(&dev, "cpu", c.local_rank, 1, &ledger), DT_OK);
        assert_int_equal(dt_comm_find_devices(&c, &dev), DT_OK);
        const int mine = queue ? (c.nranks + 1 - c.rank % 2) / 2 : c.nranks;
        assert_all(MPI_COMM_WORLD, c.n_sharing == mine && c.max_sharing == (queue ? (c.nranks + 1) / 2 : c.nranks));
        assert_all(MPI_COMM_WORLD, dt_comm_find_devices(&c, &(dt_device){0}) == DT_OK);
        dt_device_close(&dev);
        dt_comm_close(&c);
    }
    unsetenv("DTRAIN_QUEUE_DEVICES");
    if (device)
        setenv("DTRAIN_DEVICE", device, 1);
    else
        unsetenv("DTRAIN_DEVICE");
    free(device);
}

int main(int argc, char **argv)
{
    mpi_test_begin(&argc, &argv);
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    char fault[96];
    snprintf(fault, sizeof fault, "comm.reduce_scatter:%d:1:error,comm.all_gather:%d:1:nospace", nranks - 1,
             nranks - 1);
    setenv("DTRAIN_FAULT", fault, 1); /* read at the first passage of any point */
    return mpi_test_end(run_listed(NULL, give_fixture, NULL));
}
