// NP: 1 2 3 4
// QUICK: 4 nccl
/* mpi_comm_axes.c - the mesh of the ranks, and the collectives on each of its axes, against plain loops over what every
 * rank holds. TRANSPORTS: mpi nccl
 *
 * Small integers make sums exact in any order. Results lie between guard elements. */
#include "comm_fixture.h"
#include <inttypes.h>

static const dt_mesh_shape shapes[] = {{1, 1, false}, {2, 1, false}, {1, 2, false}, {2, 2, false},
                                       {3, 1, false}, {1, 1, true},  {2, 1, true},  {1, 2, true}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static const layout kinds[] = {{"", true, false, false},
                               {"2", true, false, false},
                               {"2:cyclic", true, false, false},
                               {"2", false, false, false},
                               {"2", true, true, false}};
static int n_kinds(void) { return is_mpi() ? (int)(sizeof kinds / sizeof kinds[0]) : 3; }

/** Open a layout with a mesh; false: these ranks cannot be arranged so. */
static bool open_mesh(fixture *f, const layout *l, const dt_mesh_shape *shape)
{
    setenv("DTRAIN_FAKE_NODES", l->nodes, 1);
    memset(f, 0, sizeof *f);
    const dt_err err = !is_mpi() ? dt_device_open(&f->dev, "cpu", 0, 1, &f->ledger)
                       : l->far  ? dt_queue_open(&f->dev, DT_QUEUE_LATE, 0, &f->ledger)
                                 : open_near(f);
    assert_int_equal(err, DT_OK);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    const int inner = shape->tp * shape->cp;
    const dt_axis *world = &f->comm.mesh.world;
    const bool fits =
        f->comm.nranks % inner == 0 && (!shape->by_node || (world->even_nodes && world->max_local % inner == 0));
    assert_all(MPI_COMM_WORLD, dt_comm_mesh(&f->comm, shape) == (fits ? DT_OK : DT_ERR_USAGE));
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, transport(), l->shared) == DT_OK);
    if (!fits) close_layout(f);
    return fits;
}

/* ---- first, because a fault point counts its passages ------------------------------------------------------------ */

/** The last rank's first call of each fails (DTRAIN_FAULT, below); its part is complete, and the vote names it. */
TEST(a_fault_of_one_rank_leaves_the_others_whole)
{
    fixture *f = *state;
    const dt_mesh_shape flat = {1, 1, false};
    assert_true(open_mesh(f, &kinds[0], &flat));
    const dt_axis *a = &f->comm.mesh.data;
    const bool bad = f->comm.rank == f->comm.nranks - 1;
    enum { N_CALLS = 3, N = 8, MOST = 16 };
    guarded x = guarded_alloc(f, 4 * N * MOST), y = guarded_alloc(f, 4 * N * MOST);
    size_t sizes[MOST];
    for (int r = 0; r < MOST; r++) sizes[r] = N;
    memset(host(&x), 0, 4 * N * MOST);
    to_device(f, &x);
    for (int call = 0; call < N_CALLS; call++) {
        const dt_err err = call == 0   ? dt_comm_all_reduce(a, device(&x), DT_F32, N, false, NULL)
                           : call == 1 ? dt_comm_all_to_all_v(a, device(&x), sizes, device(&y), sizes, NULL)
                                       : dt_comm_broadcast(a, device(&x), N, 0, NULL);
        assert_all(MPI_COMM_WORLD, err == (bad ? DT_ERR_FAULT : DT_OK));
        dt_vote vote = {.err = err};
        assert_all(MPI_COMM_WORLD, dt_comm_vote(&f->comm, &vote) == DT_OK && vote.err == DT_ERR_FAULT &&
                                       vote.failed_rank == f->comm.nranks - 1);
        dt_error_clear();
    }
    assert_int_equal(f->dev.ops->stream_sync(&f->dev, NULL), DT_OK);
    guarded_free(&x), guarded_free(&y);
    close_layout(f);
}

/* ---- the mesh ---------------------------------------------------------------------------------------------------- */

static bool axis_is_right(const dt_axis *a, int size)
{
    bool ok = a->size == size && a->rank >= 0 && a->rank < size && a->member[a->rank] == a->comm->rank;
    int n_near = 0;
    for (int i = 0; ok && i < size; i++) {
        ok = dt_axis_at(a, a->node_of[i], a->local_of[i]) == i;
        n_near += a->node_of[i] == a->node;
    }
    return ok && n_near == a->local_size && a->local_of[a->rank] == a->local_rank;
}

/** Do all members of the axis see the same members and, on the axes in `same`, the same coordinates? */
static bool members_agree(const dt_comm *c, const dt_axis *a, const dt_axis *const same[2])
{
    enum { MOST = 16 };
    int mine[3] = {a->member[0], same[0] ? same[0]->rank : 0, same[1] ? same[1]->rank : 0}, all[3 * MOST];
    bool ok = c->nranks <= MOST;
    MPI_Allgather(mine, 3, MPI_INT, all, 3, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; ok && i < a->size; i++) ok = memcmp(mine, all + 3 * a->member[i], sizeof mine) == 0;
    return ok;
}

TEST(coordinates_are_those_of_the_shape)
{
    fixture *f = *state;
    for (int l = 0; l < n_kinds(); l++)
        for (int s = 0; s < N_SHAPES; s++) {
            const dt_mesh_shape *shape = &shapes[s];
            if (!open_mesh(f, &kinds[l], shape)) continue;
            const dt_mesh *m = &f->comm.mesh;
            const int n = f->comm.nranks, inner = shape->tp * shape->cp,
                      n_replicas = shape->by_node ? f->comm.mesh.world.n_nodes : 1;
            bool ok = axis_is_right(&m->world, n) && axis_is_right(&m->tp, shape->tp) &&
                      axis_is_right(&m->cp, shape->cp) && axis_is_right(&m->data, n / inner) &&
                      axis_is_right(&m->sum, n / shape->tp) && axis_is_right(&m->replicate, n_replicas) &&
                      axis_is_right(&m->shard, n / shape->tp / n_replicas);
            ok = ok && m->sum.rank == m->data.rank * shape->cp + m->cp.rank;
            ok = ok && dt_axis_block(&m->sum) == m->shard.rank * m->replicate.size + m->replicate.rank;
            ok = ok && (inner > 1 || m->data.rank == f->comm.rank);
            ok = ok && (!shape->by_node || m->shard.n_nodes == 1);
            assert_all(MPI_COMM_WORLD, ok);
            const dt_axis *const lines[][3] = {{&m->tp, &m->data, &m->cp},         {&m->cp, &m->data, &m->tp},
                                               {&m->data, &m->cp, &m->tp},         {&m->sum, &m->tp, NULL},
                                               {&m->shard, &m->replicate, &m->tp}, {&m->replicate, &m->shard, &m->tp}};
            for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
                assert_all(MPI_COMM_WORLD, members_agree(&f->comm, lines[i][0], lines[i] + 1));
            close_layout(f);
        }
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static float value(int rank, int64_t i) { return (float)((i * 5 + rank * 3) % 17 - 8); }
static unsigned char byte_of(int rank, size_t i) { return (unsigned char)dt_mix64((uint64_t)rank * 7919u + i / 3); }

static bool settled(fixture *f, dt_err err, const guarded *g)
{
    const bool ok = err == DT_OK && f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    to_host(f, g);
    return ok && guards_stand(g);
}

static bool all_reduce_is_right(fixture *f, const dt_axis *a, dt_dtype dt, int64_t n, bool ordered)
{
    guarded g = guarded_alloc(f, (size_t)n * dt_dtype_size(dt));
    for (int64_t i = 0; i < n; i++) dt_set_element(host(&g), dt, i, value(f->comm.rank, i));
    to_device(f, &g);
    bool ok = settled(f, dt_comm_all_reduce(a, device(&g), dt, n, ordered, NULL), &g);
    for (int64_t i = 0; ok && i < n; i++) {
        float sum = 0;
        for (int r = 0; r < a->size; r++) sum += value(a->member[r], i);
        ok = dt_element(host(&g), dt, i) == sum;
    }
    guarded_free(&g);
    return ok;
}

static bool reduce_is_right(fixture *f, const dt_axis *a, int64_t n, bool ordered)
{
    guarded send = guarded_alloc(f, (size_t)(n * a->size) * 4), recv = guarded_alloc(f, (size_t)n * 4);
    for (int64_t i = 0; i < n * a->size; i++) ((float *)host(&send))[i] = value(f->comm.rank, i);
    to_device(f, &send), to_device(f, &recv);
    bool ok = settled(
        f, dt_comm_reduce_scatter(a, device(&send), DT_F32, device(&recv), DT_F32, n, false, ordered, NULL), &recv);
    for (int64_t i = 0; ok && i < n; i++) {
        float sum = 0;
        for (int r = 0; r < a->size; r++) sum += value(a->member[r], dt_axis_block(a) * n + i);
        ok = ((const float *)host(&recv))[i] == sum;
    }
    guarded_free(&send), guarded_free(&recv);
    return ok;
}

static bool gather_is_right(fixture *f, const dt_axis *a, size_t n)
{
    guarded send = guarded_alloc(f, n), recv = guarded_alloc(f, n * (size_t)a->size);
    for (size_t i = 0; i < n; i++) ((unsigned char *)host(&send))[i] = byte_of(f->comm.rank, i);
    to_device(f, &send), to_device(f, &recv);
    bool ok = settled(f, dt_comm_all_gather(a, device(&send), device(&recv), n, NULL), &recv);
    for (size_t k = 0; ok && k < n * (size_t)a->size; k++)
        ok = ((const unsigned char *)host(&recv))[k] == byte_of(a->member[k / n], k % n);
    guarded_free(&send), guarded_free(&recv);
    return ok;
}

/** Bytes that the rank s sends to r, if sizes differ. */
static size_t size_of(int s, int r, size_t n) { return n * (size_t)((s + 2 * r) % 3); }

/** Byte i that s sends to r. */
static unsigned char sent(int s, int r, size_t i) { return byte_of(64 * s + r, i); }

static bool all_to_all_is_right(fixture *f, const dt_axis *a, size_t n, bool v)
{
    enum { MOST = 16 };
    size_t give[MOST], take[MOST], all_give = 0, all_take = 0, at = 0;
    for (int r = 0; r < a->size; r++) {
        all_give += give[r] = v ? size_of(a->rank, r, n) : n;
        all_take += take[r] = v ? size_of(r, a->rank, n) : n;
    }
    guarded send = guarded_alloc(f, all_give), recv = guarded_alloc(f, all_take);
    unsigned char *p = host(&send);
    for (int r = 0; r < a->size; r++)
        for (size_t i = 0; i < give[r]; i++) *p++ = sent(f->comm.rank, a->member[r], i);
    to_device(f, &send), to_device(f, &recv);
    bool ok = settled(f, dt_comm_all_to_all_v(a, device(&send), give, device(&recv), take, NULL), &recv);
    for (int r = 0; ok && r < a->size; r++)
        for (size_t i = 0; ok && i < take[r]; i++)
            ok = ((const unsigned char *)host(&recv))[at++] == sent(a->member[r], f->comm.rank, i);
    guarded_free(&send), guarded_free(&recv);
    return ok;
}

static bool broadcast_is_right(fixture *f, const dt_axis *a, size_t n, int root)
{
    guarded g = guarded_alloc(f, n);
    for (size_t i = 0; i < n; i++) ((unsigned char *)host(&g))[i] = byte_of(f->comm.rank, i);
    to_device(f, &g);
    bool ok = settled(f, dt_comm_broadcast(a, device(&g), n, root, NULL), &g);
    for (size_t i = 0; ok && i < n; i++) ok = ((const unsigned char *)host(&g))[i] == byte_of(a->member[root], i);
    guarded_free(&g);
    return ok;
}

/** Host values, which need no device: value k of rank r is r + k. */
static bool host_values_are_right(const dt_axis *a)
{
    enum { N = 3, MAX_RANKS = 16 };
    const int me = a->comm->rank;
    int64_t sum[N], largest[N], least[N], sums = 0, low = INT64_MAX, high = -1;
    double real[N];
    uint64_t word[N], joined[MAX_RANKS] = {0};
    for (int k = 0; k < N; k++)
        sum[k] = largest[k] = least[k] = me + k, real[k] = 0.5 * (me + k), word[k] = -(uint64_t)(me + k);
    joined[a->rank] = ~(uint64_t)me;
    for (int i = 0; i < a->size; i++) {
        const int r = a->member[i];
        sums += r, low = r < low ? r : low, high = r > high ? r : high;
    }
    bool ok = dt_comm_reduce_host_i64(a, sum, N, DT_SUM) == DT_OK;
    ok = dt_comm_reduce_host_i64(a, largest, N, DT_MAX) == DT_OK && ok;
    ok = dt_comm_reduce_host_i64(a, least, N, DT_MIN) == DT_OK && ok;
    ok = dt_comm_reduce_host_f64(a, real, N, DT_SUM) == DT_OK && ok;
    ok = dt_comm_sum_host_u64(a, word, N) == DT_OK && ok;
    ok = dt_comm_join_host(a, joined, sizeof joined) == DT_OK && ok;
    for (int k = 0; k < N; k++) {
        const int64_t all = sums + (int64_t)k * a->size;
        ok = ok && sum[k] == all && largest[k] == high + k && least[k] == low + k && word[k] == -(uint64_t)all &&
             real[k] == 0.5 * (double)all;
    }
    for (int i = 0; i < MAX_RANKS; i++) ok = ok && joined[i] == (i < a->size ? ~(uint64_t)a->member[i] : 0);
    return ok;
}

/** All collectives, of n elements or bytes. */
static bool axis_works(fixture *f, const dt_axis *a, int64_t n)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16};
    const bool whole = a != &f->comm.mesh.sum || f->comm.mesh.replicate.size == 1;
    bool ok = true;
    for (int t = 0; t < 4 && whole; t++) ok = all_reduce_is_right(f, a, types[t % 2], n, t / 2) && ok;
    for (int o = 0; o < 2; o++) {
        ok = reduce_is_right(f, a, n, o) && ok;
        ok = all_to_all_is_right(f, a, (size_t)n, o) && ok;
    }
    if (n > 0) ok = gather_is_right(f, a, (size_t)n) && ok;
    ok = broadcast_is_right(f, a, (size_t)n, 0) && ok;
    return broadcast_is_right(f, a, (size_t)n, a->size - 1) && ok;
}

TEST(collectives_on_every_axis_are_right)
{
    fixture *f = *state;
    const int64_t counts[] = {0, 1, 65, 20011};
    for (int l = 0; l < n_kinds(); l++)
        for (int s = 0; s < N_SHAPES; s++) {
            if (!open_mesh(f, &kinds[l], &shapes[s])) continue;
            const dt_mesh *m = &f->comm.mesh;
            const dt_axis *const axes[] = {&m->tp, &m->cp, &m->data, &m->sum, &m->shard, &m->replicate, &m->world};
            for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
                for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
                    assert_all(MPI_COMM_WORLD, axis_works(f, axes[i], counts[k]));
            close_layout(f);
        }
}

TEST(host_values_are_combined_on_every_axis)
{
    fixture *f = *state;
    for (int l = 0; l < 2; l++)
        for (int s = 0; s < N_SHAPES; s++) {
            if (!open_mesh(f, &kinds[l], &shapes[s])) continue;
            f->comm.check = l == 0;
            for (int i = 0; i < DT_N_AXES; i++)
                assert_all(MPI_COMM_WORLD, host_values_are_right(&f->comm.mesh.axis[i]));
            f->comm.check = false;
            close_layout(f);
        }
}

/** More than the pinned buffer holds at a time, and more than one message of MPI. */
TEST(large_exchanges_take_several_messages)
{
    fixture *f = *state;
    skip_all_if(!is_mpi(), "of the transport mpi");
    const dt_mesh_shape flat = {1, 1, false};
    for (int l = 0; l < n_kinds(); l++) {
        assert_true(open_mesh(f, &kinds[l], &flat));
        const dt_axis *a = &f->comm.mesh.data;
        if (kinds[l].far) {
            assert_all(MPI_COMM_WORLD, broadcast_is_right(f, a, 20u << 20, 0));
            assert_all(MPI_COMM_WORLD, all_to_all_is_right(f, a, (9u << 20) + 3, false));
        }
        f->comm.mpi->max_message = 1000;
        assert_all(MPI_COMM_WORLD, all_to_all_is_right(f, a, 4097, true));
        assert_all(MPI_COMM_WORLD, all_to_all_is_right(f, a, 1000, false));
        assert_all(MPI_COMM_WORLD, broadcast_is_right(f, a, 200001, a->size - 1));
        assert_all(MPI_COMM_WORLD, all_reduce_is_right(f, a, DT_F32, 20011, false));
        close_layout(f);
    }
}

/** Members of one axis may differ from those of its parallel lines in what they exchange: each line adds its own. */
TEST(all_ranks_get_the_same_bits)
{
    fixture *f = *state;
    enum { COUNT = 30011 };
    const dt_mesh_shape flat = {1, 1, false};
    for (int l = 0; l < n_kinds(); l++) {
        assert_true(open_mesh(f, &kinds[l], &flat));
        guarded g = guarded_alloc(f, COUNT * sizeof(float));
        float *x = host(&g);
        for (int i = 0; i < COUNT; i++) x[i] = 1.0f / (float)(i + f->comm.rank + 1);
        to_device(f, &g);
        const bool ok = settled(f, dt_comm_all_reduce(&f->comm.mesh.data, device(&g), DT_F32, COUNT, false, NULL), &g);
        uint64_t hash = 0, first;
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            hash = dt_mix64(hash ^ bits);
        }
        first = hash;
        MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        guarded_free(&g);
        assert_all(MPI_COMM_WORLD, ok && first == hash);
        close_layout(f);
    }
}

/* ---- one rank fails, or differs ---------------------------------------------------------------------------------- */

/** A copy to or from the device fails on one rank, at each copy in turn. */
TEST(a_failing_copy_does_not_strand_the_others)
{
    fixture *f = *state;
    const layout far = {"", true, true, false};
    const dt_mesh_shape flat = {1, 1, false};
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    skip_all_if(!is_mpi() || nranks == 1, "copies of the transport mpi");
    for (int nth = 1; nth <= 3; nth++) {
        assert_true(open_mesh(f, &far, &flat));
        guarded send = guarded_alloc(f, 8u * (size_t)nranks), recv = guarded_alloc(f, 8u * (size_t)nranks);
        if (f->comm.rank == 0) dt_queue_fail_copy(&f->dev, nth);
        size_t sizes[16];
        for (int r = 0; r < 16; r++) sizes[r] = 8;
        dt_err err = dt_comm_all_to_all_v(&f->comm.mesh.data, device(&send), sizes, device(&recv), sizes, NULL);
        const dt_err late = f->dev.ops->stream_sync(&f->dev, NULL);
        if (err == DT_OK) err = late;
        assert_all(MPI_COMM_WORLD, err == (f->comm.rank == 0 ? DT_ERR_FAULT : DT_OK));
        dt_error_clear();
        guarded_free(&send), guarded_free(&recv);
        close_layout(f);
    }
}

/** With comm->check. */
TEST(different_calls_on_an_axis_are_found)
{
    fixture *f = *state;
    const dt_mesh_shape pairs = {2, 1, false}, flat = {1, 1, false};
    for (int way = 0; way < 3; way++) {
        if (!open_mesh(f, &kinds[0], way == 0 ? &pairs : &flat)) continue;
        f->comm.check = true;
        float x[16] = {0}, y[64];
        size_t give[16], take[16];
        const dt_axis *a = way == 0 ? &f->comm.mesh.tp : &f->comm.mesh.data;
        const bool odd = a->rank == 1;
        for (int r = 0; r < 16; r++) give[r] = take[r] = 4;
        if (odd) give[0] = 8;
        if (way == 2 && a->rank == 0) take[1] = 8; /* as it should be */
        dt_err err = DT_ERR_COMM;
        if (is_mpi() && a->size > 1)
            err = way == 0 ? dt_comm_all_reduce(a, x, DT_F32, odd ? 3 : 4, false, NULL)
                           : dt_comm_all_to_all_v(a, x, give, y, take, NULL);
        const char *want = way == 0 ? "all_reduce of 3 elements, fp32 to fp32 on axis tp"
                                    : "all_to_all_v: rank 1 sends 8 bytes to rank 0, which expects 4";
        const bool told = strstr(dt_error_message(), want) != NULL;
        if (is_mpi() && a->size > 1)
            assert_all(MPI_COMM_WORLD, way == 2 ? err == DT_OK : err == DT_ERR_COMM && (told || a->member[0] > 0));
        dt_error_clear();
        f->comm.check = false;
        close_layout(f);
    }
}

TEST(contracts_are_checked)
{
    fixture *f = *state;
    const dt_mesh_shape flat = {1, 1, false};
    const dt_mesh_shape none = {0, 1, false};
    assert_true(open_mesh(f, &kinds[0], &flat));
    const dt_axis *a = &f->comm.mesh.data;
    float x[16] = {0};
    const size_t one = 4;
    size_t sizes[16];
    for (int r = 0; r < 16; r++) sizes[r] = one;
    bool ok = dt_comm_all_reduce(a, x, DT_I8, 4, false, NULL) == DT_ERR_ARG;
    ok = dt_comm_all_reduce(a, NULL, DT_F32, 4, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_all_to_all_v(a, x, sizes, x, sizes, NULL) == DT_ERR_ARG && ok; /* overlap */
    ok = dt_comm_broadcast(a, x, one, a->size, NULL) == DT_ERR_ARG && ok;
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, ok);
    close_layout(f);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    assert_fails(dt_comm_mesh(&f->comm, &none), DT_ERR_ARG, "");
    dt_comm_close(&f->comm);
}

/** The message of a shape that does not fit; afterwards the mesh is as before. */
static void refuses(const char *nodes, dt_mesh_shape shape, const char *want)
{
    dt_comm comm = {0};
    setenv("DTRAIN_FAKE_NODES", nodes, 1);
    assert_int_equal(dt_comm_open(&comm), DT_OK);
    const dt_mesh before = comm.mesh;
    const bool ok = dt_comm_mesh(&comm, &shape) == DT_ERR_USAGE && strstr(dt_error_message(), want) &&
                    memcmp(&before, &comm.mesh, sizeof before) == 0;
    if (!ok) print_error("expected `%s`, found `%s`\n", want, dt_error_message());
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, ok);
    dt_comm_close(&comm);
}

TEST(shapes_that_do_not_fit_name_ranks_and_teams)
{
    int n;
    char want[128];
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    snprintf(want, sizeof want, "%d rank%s cannot be divided into teams of %d x 1 (tensor x context parallel)", n,
             n == 1 ? "" : "s", n + 1);
    refuses("", (dt_mesh_shape){n + 1, 1, false}, want);
    snprintf(want, sizeof want, "cannot be divided into teams of 1 x %d (", 2 * n);
    refuses("", (dt_mesh_shape){1, 2 * n, false}, want);
    refuses("", (dt_mesh_shape){1 << 16, 1 << 16, false}, "cannot be divided into teams of 65536 x 65536 (");
    if (n == 3)
        refuses("2", (dt_mesh_shape){1, 1, true}, "3 ranks are spread unevenly over 2 nodes, from 1 to 2 per node: ");
    if (n == 2)
        refuses("2", (dt_mesh_shape){2, 1, true}, "the 1 rank of a node cannot be divided into teams of 2 x 1 ");
    if (n == 4)
        refuses("2", (dt_mesh_shape){2, 2, true}, "the 2 ranks of a node cannot be divided into teams of 2 x 2 ");
}

int main(int argc, char **argv)
{
    mpi_test_begin(&argc, &argv);
    int nranks;
    char fault[256];
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    *fault = '\0';
    const char *const calls[] = {"all_reduce", "all_to_all_v", "broadcast"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const size_t at = strlen(fault);
        snprintf(fault + at, sizeof fault - at, "%scomm.%s:%d:1:error", i ? "," : "", calls[i], nranks - 1);
    }
    setenv("DTRAIN_FAULT", fault, 1); /* read at the first passage of any point */
    return mpi_test_end(run_listed(NULL, give_fixture, NULL));
}
