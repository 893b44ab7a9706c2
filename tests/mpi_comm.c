// NP: 1 2 3 4 8
// QUICK: 2 3 4 nccl
/* mpi_comm.c - the collectives on tensors give the right elements, in the right order of addition, on every layout
 * of ranks and nodes.
 *
 * DTRAIN_COMM=nccl tests that transport, on the device that DTRAIN_DEVICE selects instead of the CPU: a GPU for one
 * rank, a simulated one for any number. TRANSPORTS: mpi nccl
 *
 * DTRAIN_FAKE_NODES simulates several nodes on one machine. Sums are compared exactly: small integers, which neither
 * float nor bf16 rounds, or, for the ordered sum, arbitrary floats against the left fold written out. Every result
 * lies between guard elements. */
#include "comm_fixture.h"

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static void put(void *base, dt_dtype dt, int64_t i, float x) { dt_set_element(base, dt, i, x); }

static float get(const void *base, dt_dtype dt, int64_t i) { return dt_element(base, dt, i); }

static float rounded(float x, dt_dtype dt)
{
    float room[1];
    put(room, dt, 0, x);
    return get(room, dt, 0);
}

/** |x| <= 8: sums over 8 ranks and a start value stay below 256, exact in bf16 and fp16. */
static float small_integer(int r, int64_t i) { return (float)((i * 5 + r * 3) % 17 - 8); }

/** Any sign, magnitudes from 2^-12 to 2^12: additions in another order give other bits. */
static float wild(int r, int64_t i)
{
    const uint64_t h = dt_mix64((uint64_t)i * 1000003u + (uint64_t)r);
    const float m = 1.0f + (float)(h & 0xffff) * 0x1p-16f;
    return ldexpf(h >> 63 ? -m : m, (int)(h >> 32 & 31) % 25 - 12);
}

typedef struct job {
    dt_dtype send_dt, recv_dt;
    int64_t count;
    bool accumulate, ordered, in_place;
    float (*value)(int r, int64_t i);
} job;

static float start_value(int64_t i) { return (float)(i % 7 - 3); }

/** The definition: a left fold over ranks, rounded at the end. */
static float expected(const job *j, const dt_comm *c, int64_t i)
{
    float sum = j->accumulate ? start_value(i) : 0.0f;
    for (int r = 0; r < c->nranks; r++) {
        float x = j->value(r, dt_axis_block(&c->mesh.sum) * j->count + i);
        x = rounded(x, j->send_dt);
        sum = r == 0 && !j->accumulate ? x : sum + x;
    }
    return rounded(sum, j->recv_dt);
}

/** Arrays begin GUARD bytes into their buffers: aligned to an element, and to nothing more. */
static bool reduce_is_right(fixture *f, const job *j)
{
    dt_comm *c = &f->comm;
    const size_t elem = dt_dtype_size(j->send_dt), n = (size_t)j->count;
    guarded send = guarded_alloc(f, n * elem * (size_t)c->nranks),
            recv = guarded_alloc(f, n * dt_dtype_size(j->recv_dt));
    char *s = host(&send), *r = host(&recv);
    for (int64_t i = 0; i < j->count * c->nranks; i++) put(s, j->send_dt, i, j->value(c->rank, i));
    for (int64_t i = 0; i < j->count; i++) put(r, j->recv_dt, i, j->accumulate ? start_value(i) : NAN);
    const size_t own = (size_t)dt_axis_block(&c->mesh.sum) * n * elem;
    char *to = j->in_place ? (char *)device(&send) + own : device(&recv);
    to_device(f, &send), to_device(f, &recv);
    bool ok = dt_comm_reduce_scatter(&c->mesh.sum, device(&send), j->send_dt, to, j->recv_dt, j->count, j->accumulate,
                                     j->ordered, NULL) == DT_OK;
    ok = ok && f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    to_host(f, &send), to_host(f, &recv);
    const void *got = j->in_place ? (char *)host(&send) + own : r;
    for (int64_t i = 0; ok && i < j->count; i++) {
        const float want = expected(j, c, i), have = get(got, j->recv_dt, i);
        ok = memcmp(&want, &have, sizeof want) == 0 || (want == 0.0f && have == 0.0f);
        if (!ok)
            fprintf(stderr, "rank %d of %d, %s -> %s, count %lld%s%s%s: element %lld is %a instead of %a\n", c->rank,
                    c->nranks, dt_dtype_name(j->send_dt), dt_dtype_name(j->recv_dt), (long long)j->count,
                    j->accumulate ? " accumulate" : "", j->ordered ? " ordered" : "", j->in_place ? " in place" : "",
                    (long long)i, (double)have, (double)want);
    }
    for (int64_t i = 0; ok && !j->in_place && i < j->count * c->nranks; i++) { /* send is the caller's */
        const float x = j->value(c->rank, i);
        ok = get(s, j->send_dt, i) == rounded(x, j->send_dt);
    }
    ok = ok && guards_stand(&send) && guards_stand(&recv);
    guarded_free(&send), guarded_free(&recv);
    return ok;
}

/** All combinations of types and switches for one count, or those that are tried. */
static bool reduce_is_right_for_all_switches(fixture *f, int64_t count, float (*value)(int, int64_t), bool only_ordered)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
    bool ok = true;
    for (int way = 0; way < 36; way++) {
        const job j = {.send_dt = types[way % 3],
                       .recv_dt = types[way / 3 % 3],
                       .count = count,
                       .accumulate = way / 9 & 1,
                       .ordered = way / 18,
                       .value = value};
        if (!is_tried() || (only_ordered && !j.ordered)) continue;
        ok = reduce_is_right(f, &j) && ok; /* always called: it is collective */
    }
    return ok;
}

TEST(reduce_scatter_leaves_exact_sums)
{
    fixture *f = *state;
    const int64_t counts[] = {0, 1, 2, 63, 64, 65, 1000, 4099};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            assert_all(MPI_COMM_WORLD, reduce_is_right_for_all_switches(f, counts[k], small_integer, false));
        close_layout(f);
    }
}

/** Pieces that take many steps, and more than the pinned buffer of a far device holds. */
TEST(reduce_scatter_takes_large_pieces)
{
    fixture *f = *state;
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        const int64_t count = (layout_at(l)->far ? 4500007 : 1300003) / f->comm.nranks;
        job j = {.send_dt = DT_F32, .recv_dt = DT_F32, .count = count, .value = small_integer};
        assert_all(MPI_COMM_WORLD, reduce_is_right(f, &j));
        j = (job){
            .send_dt = DT_BF16, .recv_dt = DT_F32, .count = count, .accumulate = true, .ordered = true, .value = wild};
        assert_all(MPI_COMM_WORLD, reduce_is_right(f, &j));
        close_layout(f);
    }
}

static bool gather_is_right(fixture *f, size_t nbytes, bool in_place);

/** Large results are written around the cache; here all are. */
TEST(results_written_around_the_cache_are_right)
{
    fixture *f = *state;
    skip_all_if(!is_mpi(), "of the transport mpi");
    const int64_t counts[] = {1, 15, 33, 4099, 70001};
    open_layout(f, layout_at(0));
    dt_transport_of(&f->comm.mesh.sum)->stream_nbytes = 0;
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        assert_all(MPI_COMM_WORLD, reduce_is_right_for_all_switches(f, counts[k], small_integer, false));
        for (int in_place = 0; in_place < 2; in_place++)
            assert_all(MPI_COMM_WORLD, gather_is_right(f, (size_t)counts[k], in_place));
    }
    close_layout(f);
}

TEST(ordered_sum_is_the_left_fold_on_every_layout)
{
    fixture *f = *state;
    const int64_t counts[] = {1, 1001, 40003};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            assert_all(MPI_COMM_WORLD, reduce_is_right_for_all_switches(f, counts[k], wild, true));
        close_layout(f);
    }
}

TEST(reduce_scatter_works_in_place)
{
    fixture *f = *state;
    const int64_t counts[] = {1, 65, 50021};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        for (int way = 0; way < 18; way++) {
            static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
            const job j = {.send_dt = types[way % 3],
                           .recv_dt = types[way % 3],
                           .count = counts[way / 6],
                           .ordered = way / 3 & 1,
                           .in_place = true,
                           .value = small_integer};
            assert_all(MPI_COMM_WORLD, reduce_is_right(f, &j));
        }
        close_layout(f);
    }
}

TEST(unordered_sum_repeats_its_bits)
{
    fixture *f = *state;
    skip_all_if(!is_mpi(), "of the transport mpi");
    enum { COUNT = 30011 };
    for (int l = 0; l < n_layouts(); l++) {
        if (layout_at(l)->far) continue;
        open_layout(f, layout_at(l));
        float *send = malloc(sizeof *send * COUNT * (size_t)f->comm.nranks), *a = calloc(COUNT, sizeof *a),
              *b = calloc(COUNT, sizeof *b);
        assert_true(send && a && b);
        for (int64_t i = 0; i < (int64_t)COUNT * f->comm.nranks; i++) send[i] = wild(f->comm.rank, i);
        bool ok =
            dt_comm_reduce_scatter(&f->comm.mesh.sum, send, DT_F32, a, DT_F32, COUNT, false, false, NULL) == DT_OK;
        ok = dt_comm_reduce_scatter(&f->comm.mesh.sum, send, DT_F32, b, DT_F32, COUNT, false, false, NULL) == DT_OK &&
             ok;
        ok = ok && memcmp(a, b, COUNT * sizeof *a) == 0;
        free(send);
        free(a);
        free(b);
        assert_all(MPI_COMM_WORLD, ok);
        close_layout(f);
    }
}

/* ---- all-gather -------------------------------------------------------------------------------------------------- */

static unsigned char byte_of(int r, size_t i) { return (unsigned char)dt_mix64((uint64_t)r * 7919u + i / 3); }

static bool gather_is_right(fixture *f, size_t nbytes, bool in_place)
{
    const dt_comm *c = &f->comm;
    const dt_axis *a = &c->mesh.shard;
    guarded send = guarded_alloc(f, nbytes), recv = guarded_alloc(f, nbytes * (size_t)a->size);
    guarded *from = in_place ? &recv : &send;
    const size_t offset = in_place ? (size_t)a->rank * nbytes : 0;
    for (size_t i = 0; i < nbytes; i++) ((unsigned char *)host(from))[offset + i] = byte_of(c->rank, i);
    to_device(f, &send), to_device(f, &recv);
    bool ok = dt_comm_all_gather(a, (char *)device(from) + offset, device(&recv), nbytes, NULL) == DT_OK;
    ok = ok && f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    to_host(f, &send), to_host(f, &recv);
    const unsigned char *got = host(&recv);
    for (int r = 0; ok && r < a->size; r++)
        for (size_t i = 0; ok && i < nbytes; i++) {
            ok = got[(size_t)r * nbytes + i] == byte_of(a->member[r], i);
            if (!ok)
                fprintf(stderr, "rank %d of %d: %zu bytes: byte %zu of rank %d is wrong\n", c->rank, c->nranks, nbytes,
                        i, r);
        }
    ok = ok && guards_stand(&send) && guards_stand(&recv);
    guarded_free(&send), guarded_free(&recv);
    return ok;
}

TEST(all_gather_brings_every_piece)
{
    fixture *f = *state;
    const size_t sizes[] = {0, 1, 3, 64, 4097, 200003, 2500001};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            for (int in_place = 0; in_place < 2; in_place++)
                assert_all(MPI_COMM_WORLD, gather_is_right(f, sizes[k], in_place));
        if (layout_at(l)->far)
            assert_all(MPI_COMM_WORLD, gather_is_right(f, (20u << 20) / (unsigned)f->comm.nranks + 1, true));
        close_layout(f);
    }
}

/** Parts GAP bytes apart, which stay as they are. */
static bool replicate_is_right(fixture *f, size_t nbytes)
{
    enum { GAP = 12 };
    const dt_axis *a = &f->comm.mesh.replicate;
    const size_t stride = nbytes + GAP, n = (size_t)a->size;
    guarded g = guarded_alloc(f, stride * n);
    unsigned char *p = host(&g);
    for (size_t i = 0; i < nbytes; i++) p[(size_t)a->rank * stride + i] = byte_of(f->comm.rank, i);
    to_device(f, &g);
    bool ok = dt_comm_replicate(a, device(&g), stride, nbytes, NULL) == DT_OK;
    ok = ok && f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    to_host(f, &g);
    for (size_t k = 0; ok && k < stride * n; k++) {
        ok = p[k] == (k % stride < nbytes ? byte_of(a->member[k / stride], k % stride) : GUARD_BYTE);
    }
    ok = ok && guards_stand(&g);
    guarded_free(&g);
    return ok;
}

TEST(ranks_of_one_number_get_each_others_parts)
{
    fixture *f = *state;
    const size_t sizes[] = {0, 1, 4097, 200004};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            assert_all(MPI_COMM_WORLD, replicate_is_right(f, sizes[k]));
        if (layout_at(l)->far) assert_all(MPI_COMM_WORLD, replicate_is_right(f, (9u << 20) + 4));
        if (is_mpi()) {
            f->comm.mpi->max_message = 1000;
            assert_all(MPI_COMM_WORLD, replicate_is_right(f, 4097));
        }
        close_layout(f);
    }
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

enum { ON_STREAMS = 999 };

/* An exchange of ON_STREAMS floats, from rank r's plus + r + 1 or plus + i + r: an all-gather (gather) or a
 * reduce-scatter. Queued; whole: [nranks * ON_STREAMS], part: [ON_STREAMS] of the device. */
static dt_err queue_exchange(dt_comm *c, bool gather, guarded *whole, guarded *part, dt_stream *s)
{
    if (gather) return dt_comm_all_gather(&c->mesh.shard, device(part), device(whole), ON_STREAMS * sizeof(float), s);
    return dt_comm_reduce_scatter(&c->mesh.sum, device(whole), DT_F32, device(part), DT_F32, ON_STREAMS, false, false,
                                  s);
}

static void fill_exchange(const dt_comm *c, float plus, guarded *whole, guarded *part)
{
    for (int i = 0; i < ON_STREAMS; i++) put(host(part), DT_F32, i, plus + (float)(i + c->rank));
    for (int i = 0; i < ON_STREAMS * c->nranks; i++) put(host(whole), DT_F32, i, plus + (float)(c->rank + 1));
}

static bool exchange_is_right(const dt_comm *c, bool gather, float plus, const guarded *whole, const guarded *part)
{
    bool ok = true;
    for (int i = 0; ok && i < ON_STREAMS; i++) {
        if (!gather)
            ok = get(host(part), DT_F32, i) == (float)c->nranks * plus + (float)(c->nranks * (c->nranks + 1) / 2);
        for (int r = 0; gather && ok && r < c->nranks; r++)
            ok = get(host(whole), DT_F32, r * ON_STREAMS + i) == plus + (float)(i + r);
    }
    return ok && guards_stand(whole) && guards_stand(part);
}

/* The last copy out of the pinned buffer may not have run when the transport is closed: it still does, and finds the
 * buffer. */
TEST(queued_work_completes_on_close)
{
    fixture *f = *state;
    for (int l = 0; l < n_layouts(); l++) {
        if (layout_at(l)->by_node) continue; /* pieces of the node alone */
        open_layout(f, layout_at(l));
        const dt_comm closed = {.nranks = f->comm.nranks};
        guarded whole = guarded_alloc(f, ON_STREAMS * sizeof(float) * (size_t)closed.nranks);
        guarded part = guarded_alloc(f, ON_STREAMS * sizeof(float));
        fill_exchange(&f->comm, 0, &whole, &part);
        to_device(f, &whole), to_device(f, &part);
        bool ok = queue_exchange(&f->comm, true, &whole, &part, NULL) == DT_OK;
        dt_comm_close(&f->comm);
        ok = f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK && ok;
        to_host(f, &whole), to_host(f, &part);
        ok = ok && exchange_is_right(&closed, true, 0, &whole, &part);
        guarded_free(&whole), guarded_free(&part);
        assert_all(MPI_COMM_WORLD, ok);
        close_layout(f);
    }
}

/** The pinned buffer serves all streams: what the first exchange leaves there may be copied late. */
TEST(exchanges_on_two_streams_do_not_disturb_each_other)
{
    fixture *f = *state;
    const layout far = {"", true, true, false};
    const size_t nbytes = ON_STREAMS * sizeof(float);
    for (int kinds = 0; kinds < 4; kinds++) {
        dt_stream *streams[2] = {NULL, NULL};
        guarded whole[2], part[2];
        open_layout(f, &far);
        bool ok = f->dev.ops->stream_create(&f->dev, &streams[1]) == DT_OK;
        for (int k = 0; k < 2; k++) {
            whole[k] = guarded_alloc(f, nbytes * (size_t)f->comm.nranks), part[k] = guarded_alloc(f, nbytes);
            fill_exchange(&f->comm, (float)k * 1024, &whole[k], &part[k]);
            to_device(f, &whole[k]), to_device(f, &part[k]);
        }
        for (int k = 0; k < 2; k++)
            ok = queue_exchange(&f->comm, k ? kinds % 2 : kinds / 2, &whole[k], &part[k], streams[k]) == DT_OK && ok;
        for (int k = 0; k < 2; k++) ok = f->dev.ops->stream_sync(&f->dev, streams[k]) == DT_OK && ok;
        for (int k = 0; k < 2; k++) {
            to_host(f, &whole[k]), to_host(f, &part[k]);
            ok = ok && exchange_is_right(&f->comm, k ? kinds % 2 : kinds / 2, (float)k * 1024, &whole[k], &part[k]);
            guarded_free(&whole[k]), guarded_free(&part[k]);
        }
        f->dev.ops->stream_destroy(&f->dev, streams[1]);
        assert_all(MPI_COMM_WORLD, ok);
        close_layout(f);
    }
}

TEST(staging_is_what_was_planned)
{
    fixture *f = *state;
    skip_all_if(!on_one_machine(), "ranks run on several machines");
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, layout_at(l));
        const int k = layout_at(l)->nodes[0] ? atoi(layout_at(l)->nodes) : 1, per_node = (f->comm.nranks + k - 1) / k;
        const bool alike = f->comm.nranks % k == 0; /* what the plan's number of ranks per node can say */
        const dt_comm_shape shape = {f->comm.nranks, per_node, 1, layout_at(l)->shared, {1, 1, layout_at(l)->by_node}};
        const dt_memory held = dt_ledger_now(&f->ledger), plan = dt_comm_plan(transport(), &f->dev, &shape);
        const bool pinned = is_mpi() && layout_at(l)->far && f->comm.nranks > 1;
        assert_all(MPI_COMM_WORLD, !alike || !memcmp(&held, &plan, sizeof plan));
        assert_all(MPI_COMM_WORLD, (plan.at[DT_MEM_STAGING][DT_ON_PINNED] > 0) == pinned);
        close_layout(f);
    }
}

int main(int argc, char **argv)
{
    int nranks;
    mpi_test_begin(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    /* each element is the sum of all ranks' values: on 8 ranks every combination takes minutes */
    if (nranks > 4) setenv("TEST_EVERY", "5", 0);
    return mpi_test_end(run_listed(NULL, give_fixture, NULL));
}
