// NP: 1 2 3 4 8
/* mpi_comm.c - the collectives on tensors give the right elements, in the right order of addition, on every layout of
 * ranks and nodes.
 *
 * DTRAIN_COMM=nccl has that transport tried, on the device that DTRAIN_DEVICE puts in the place of the CPU: a GPU for
 * one rank, a simulated one for any number. TRANSPORTS: mpi nccl
 *
 * One machine stands for several nodes by DTRAIN_FAKE_NODES. Sums are compared exactly: small integers, which neither
 * float nor bf16 rounds, or, for the ordered sum, arbitrary floats against the left fold written out. Every result lies
 * between guard elements. */
#include "mpi_test.h"
#include "../src/comm/transport.h"
#include "../src/device/queue.h"
#include <math.h>
#include <string.h>

typedef struct layout {
    const char *nodes; /* DTRAIN_FAKE_NODES */
    bool shared, far;  /* far: on the queue device, whose memory the host cannot touch */
} layout;

static const layout layouts[] = {
    {"", true, false},  {"", false, false},  {"2", true, false}, {"2:cyclic", true, false}, {"3", true, false},
    {"4", true, false}, {"2", false, false}, {"", true, true},   {"2", true, true},
};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0], GUARD = 68, GUARD_BYTE = 0x5a };

static const char *transport(void) { return getenv("DTRAIN_COMM") ? getenv("DTRAIN_COMM") : "auto"; }
/* Other transports know nothing of nodes and windows. */
static bool is_mpi(void) { return !strcmp(transport(), "auto"); }
static int n_layouts(void) { return is_mpi() ? N_LAYOUTS : 1; }

typedef struct fixture {
    dt_comm comm;
    dt_device dev;
    dt_ledger ledger;
} fixture;

static dt_err open_near(fixture *f)
{
    f->dev = (dt_device){.ops = &dt_device_cpu_ops, .ledger = &f->ledger};
    return f->dev.ops->open(&f->dev, 0, 1);
}

static void open_layout(fixture *f, const layout *l)
{
    dt_err err;
    setenv("DTRAIN_FAKE_NODES", l->nodes, 1);
    memset(f, 0, sizeof *f);
    if (!is_mpi())
        err = dt_device_open(&f->dev, "cpu", 0, 1, &f->ledger);
    else
        err = l->far ? dt_queue_open(&f->dev, DT_QUEUE_LATE, 0, &f->ledger) : open_near(f);
    assert_int_equal(err, DT_OK);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, transport(), l->shared) == DT_OK);
}

static void close_layout(fixture *f)
{
    dt_comm_close(&f->comm);
    assert_int_equal(f->ledger.total_now, 0);
    dt_device_close(&f->dev);
    unsetenv("DTRAIN_FAKE_NODES");
}

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

/** An array of the device between guards, and its copy on the host. */
typedef struct guarded {
    dt_buf buf;
    size_t nbytes;
    char *copy;
} guarded;

static void *host(const guarded *g) { return g->copy + GUARD; }
static void *device(const guarded *g) { return (char *)g->buf.ptr + GUARD; }

static guarded guarded_alloc(fixture *f, size_t nbytes)
{
    guarded g = {.nbytes = nbytes, .copy = malloc(nbytes + 2 * GUARD)};
    assert_non_null(g.copy);
    assert_int_equal(dt_buf_alloc(&g.buf, &f->dev, DT_ON_DEVICE, nbytes + 2 * GUARD, DT_MEM_OTHER), DT_OK);
    memset(g.copy, GUARD_BYTE, nbytes + 2 * GUARD);
    return g;
}

static void guarded_free(guarded *g)
{
    dt_buf_free(&g->buf);
    free(g->copy);
}

static void to_device(fixture *f, const guarded *g)
{
    const dt_device_ops *ops = f->dev.ops;
    assert_int_equal(ops->copy(&f->dev, g->buf.ptr, g->copy, g->buf.nbytes, NULL), DT_OK);
    assert_int_equal(ops->stream_sync(&f->dev, NULL), DT_OK);
}

/* When an exchange is done. */
static void to_host(fixture *f, const guarded *g)
{
    const dt_device_ops *ops = f->dev.ops;
    assert_int_equal(ops->copy(&f->dev, g->copy, g->buf.ptr, g->buf.nbytes, NULL), DT_OK);
    assert_int_equal(ops->stream_sync(&f->dev, NULL), DT_OK);
}

static bool guards_stand(const guarded *g)
{
    const unsigned char *p = (const unsigned char *)g->copy;
    for (size_t i = 0; i < GUARD; i++)
        if (p[i] != GUARD_BYTE || p[GUARD + g->nbytes + i] != GUARD_BYTE) return false;
    return true;
}

static float start_value(int64_t i) { return (float)(i % 7 - 3); }

/** The definition: a left fold over ranks, rounded at the end. */
static float expected(const job *j, const dt_comm *c, int64_t i)
{
    float sum = j->accumulate ? start_value(i) : 0.0f;
    for (int r = 0; r < c->nranks; r++) {
        float x = j->value(r, c->rank * j->count + i);
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
    const size_t own = (size_t)c->rank * n * elem;
    char *to = j->in_place ? (char *)device(&send) + own : device(&recv);
    to_device(f, &send), to_device(f, &recv);
    bool ok = dt_comm_reduce_scatter(c, device(&send), j->send_dt, to, j->recv_dt, j->count, j->accumulate, j->ordered,
                                     NULL) == DT_OK;
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

/** All combinations of types and switches for one count. */
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
        if (only_ordered && !j.ordered) continue;
        ok = reduce_is_right(f, &j) && ok; /* always called: it is collective */
    }
    return ok;
}

static void reduce_scatter_leaves_exact_sums(void **state)
{
    fixture *f = *state;
    const int64_t counts[] = {0, 1, 2, 63, 64, 65, 1000, 4099};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            assert_all(MPI_COMM_WORLD, reduce_is_right_for_all_switches(f, counts[k], small_integer, false));
        close_layout(f);
    }
}

/** Pieces that take many steps, and more than the pinned buffer of a far device holds. */
static void reduce_scatter_takes_large_pieces(void **state)
{
    fixture *f = *state;
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        const int64_t count = (layouts[l].far ? 4500007 : 1300003) / f->comm.nranks;
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
static void results_written_around_the_cache_are_right(void **state)
{
    fixture *f = *state;
    const int64_t counts[] = {1, 15, 33, 4099, 70001};
    open_layout(f, &layouts[0]);
    dt_transport_of(&f->comm)->stream_nbytes = 0;
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        assert_all(MPI_COMM_WORLD, reduce_is_right_for_all_switches(f, counts[k], small_integer, false));
        for (int in_place = 0; in_place < 2; in_place++)
            assert_all(MPI_COMM_WORLD, gather_is_right(f, (size_t)counts[k], in_place));
    }
    close_layout(f);
}

static void ordered_sum_is_the_left_fold_on_every_layout(void **state)
{
    fixture *f = *state;
    const int64_t counts[] = {1, 1001, 40003};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            assert_all(MPI_COMM_WORLD, reduce_is_right_for_all_switches(f, counts[k], wild, true));
        close_layout(f);
    }
}

static void reduce_scatter_works_in_place(void **state)
{
    fixture *f = *state;
    const int64_t counts[] = {1, 65, 50021};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
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

static void unordered_sum_repeats_its_bits(void **state)
{
    fixture *f = *state;
    enum { COUNT = 30011 };
    for (int l = 0; l < n_layouts(); l++) {
        if (layouts[l].far) continue;
        open_layout(f, &layouts[l]);
        float *send = malloc(sizeof *send * COUNT * (size_t)f->comm.nranks), *a = calloc(COUNT, sizeof *a),
              *b = calloc(COUNT, sizeof *b);
        assert_true(send && a && b);
        for (int64_t i = 0; i < (int64_t)COUNT * f->comm.nranks; i++) send[i] = wild(f->comm.rank, i);
        bool ok = dt_comm_reduce_scatter(&f->comm, send, DT_F32, a, DT_F32, COUNT, false, false, NULL) == DT_OK;
        ok = dt_comm_reduce_scatter(&f->comm, send, DT_F32, b, DT_F32, COUNT, false, false, NULL) == DT_OK && ok;
        ok = ok && memcmp(a, b, COUNT * sizeof *a) == 0;
        free(send);
        free(a);
        free(b);
        assert_all(MPI_COMM_WORLD, ok);
        close_layout(f);
    }
}

/* ---- all-gather, broadcast --------------------------------------------------------------------------------------- */

static unsigned char byte_of(int r, size_t i) { return (unsigned char)dt_mix64((uint64_t)r * 7919u + i / 3); }

static bool gather_is_right(fixture *f, size_t nbytes, bool in_place)
{
    dt_comm *c = &f->comm;
    guarded send = guarded_alloc(f, nbytes), recv = guarded_alloc(f, nbytes * (size_t)c->nranks);
    guarded *from = in_place ? &recv : &send;
    const size_t offset = in_place ? (size_t)c->rank * nbytes : 0;
    for (size_t i = 0; i < nbytes; i++) ((unsigned char *)host(from))[offset + i] = byte_of(c->rank, i);
    to_device(f, &send), to_device(f, &recv);
    bool ok = dt_comm_all_gather(c, (char *)device(from) + offset, device(&recv), nbytes, NULL) == DT_OK;
    ok = ok && f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    to_host(f, &send), to_host(f, &recv);
    const unsigned char *got = host(&recv);
    for (int r = 0; ok && r < c->nranks; r++)
        for (size_t i = 0; ok && i < nbytes; i++) {
            ok = got[(size_t)r * nbytes + i] == byte_of(r, i);
            if (!ok)
                fprintf(stderr, "rank %d of %d: %zu bytes: byte %zu of rank %d is wrong\n", c->rank, c->nranks, nbytes,
                        i, r);
        }
    ok = ok && guards_stand(&send) && guards_stand(&recv);
    guarded_free(&send), guarded_free(&recv);
    return ok;
}

static void all_gather_brings_every_piece(void **state)
{
    fixture *f = *state;
    const size_t sizes[] = {0, 1, 3, 64, 4097, 200003, 2500001};
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            for (int in_place = 0; in_place < 2; in_place++)
                assert_all(MPI_COMM_WORLD, gather_is_right(f, sizes[k], in_place));
        if (layouts[l].far)
            assert_all(MPI_COMM_WORLD, gather_is_right(f, (20u << 20) / (unsigned)f->comm.nranks + 1, true));
        close_layout(f);
    }
}

static bool broadcast_is_right(fixture *f, size_t nbytes, int root)
{
    guarded g = guarded_alloc(f, nbytes);
    unsigned char *p = host(&g);
    for (size_t i = 0; i < nbytes; i++) p[i] = f->comm.rank == root ? byte_of(root, i) : 0;
    to_device(f, &g);
    bool ok = dt_comm_broadcast(&f->comm, device(&g), nbytes, root, NULL) == DT_OK &&
              f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK;
    to_host(f, &g);
    for (size_t i = 0; ok && i < nbytes; i++) ok = p[i] == byte_of(root, i);
    ok = ok && guards_stand(&g);
    guarded_free(&g);
    return ok;
}

static void broadcast_makes_all_like_the_root(void **state)
{
    fixture *f = *state;
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        for (int root = 0; root < f->comm.nranks; root++) {
            assert_all(MPI_COMM_WORLD, broadcast_is_right(f, 0, root));
            assert_all(MPI_COMM_WORLD, broadcast_is_right(f, 70001, root));
        }
        if (layouts[l].far) assert_all(MPI_COMM_WORLD, broadcast_is_right(f, (17u << 20) + 3, f->comm.nranks - 1));
        close_layout(f);
    }
}

/* The last copy out of the pinned buffer may not have run when the transport is closed: it still does, and finds the
 * buffer. */
static void what_is_queued_when_it_is_closed_arrives(void **state)
{
    enum { NBYTES = 70001 };
    fixture *f = *state;
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        const int rank = f->comm.rank, root = f->comm.nranks - 1;
        guarded g = guarded_alloc(f, NBYTES);
        unsigned char *p = host(&g);
        for (size_t i = 0; i < NBYTES; i++) p[i] = rank == root ? byte_of(root, i) : 0;
        to_device(f, &g);
        bool ok = dt_comm_broadcast(&f->comm, device(&g), NBYTES, root, NULL) == DT_OK;
        dt_comm_close(&f->comm);
        ok = f->dev.ops->stream_sync(&f->dev, NULL) == DT_OK && ok;
        to_host(f, &g);
        for (size_t i = 0; ok && i < NBYTES; i++) ok = p[i] == byte_of(root, i);
        guarded_free(&g);
        assert_all(MPI_COMM_WORLD, ok);
        close_layout(f);
    }
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

enum { ON_STREAMS = 999 };

/* An exchange of ON_STREAMS floats, from rank r's plus + r + 1 or plus + i + r; 0: reduce-scatter, 1: all-gather, 2:
 * broadcast from the last rank. Queued; whole: [nranks * ON_STREAMS], part: [ON_STREAMS] of the device. */
static dt_err queue_exchange(dt_comm *c, int kind, guarded *whole, guarded *part, dt_stream *s)
{
    const size_t nbytes = ON_STREAMS * sizeof(float);
    switch (kind) {
    case 0:
        return dt_comm_reduce_scatter(c, device(whole), DT_F32, device(part), DT_F32, ON_STREAMS, false, false, s);
    case 1:
        return dt_comm_all_gather(c, device(part), device(whole), nbytes, s);
    default:
        return dt_comm_broadcast(c, device(part), nbytes, c->nranks - 1, s);
    }
}

static void fill_exchange(const dt_comm *c, float plus, guarded *whole, guarded *part)
{
    for (int i = 0; i < ON_STREAMS; i++) put(host(part), DT_F32, i, plus + (float)(i + c->rank));
    for (int i = 0; i < ON_STREAMS * c->nranks; i++) put(host(whole), DT_F32, i, plus + (float)(c->rank + 1));
}

static bool exchange_is_right(const dt_comm *c, int kind, float plus, const guarded *whole, const guarded *part)
{
    bool ok = true;
    for (int i = 0; ok && i < ON_STREAMS; i++) {
        if (kind == 0)
            ok = get(host(part), DT_F32, i) == (float)c->nranks * plus + (float)(c->nranks * (c->nranks + 1) / 2);
        if (kind == 2) ok = get(host(part), DT_F32, i) == plus + (float)(i + c->nranks - 1);
        for (int r = 0; kind == 1 && ok && r < c->nranks; r++)
            ok = get(host(whole), DT_F32, r * ON_STREAMS + i) == plus + (float)(i + r);
    }
    return ok && guards_stand(whole) && guards_stand(part);
}

/** The pinned buffer serves all streams: what the first exchange leaves there may be copied late. */
static void exchanges_on_two_streams_do_not_disturb_each_other(void **state)
{
    fixture *f = *state;
    const layout far = {"", true, true};
    const size_t nbytes = ON_STREAMS * sizeof(float);
    for (int kinds = 0; kinds < 9; kinds++) {
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
            ok = queue_exchange(&f->comm, k ? kinds % 3 : kinds / 3, &whole[k], &part[k], streams[k]) == DT_OK && ok;
        for (int k = 0; k < 2; k++) ok = f->dev.ops->stream_sync(&f->dev, streams[k]) == DT_OK && ok;
        for (int k = 0; k < 2; k++) {
            to_host(f, &whole[k]), to_host(f, &part[k]);
            ok = ok && exchange_is_right(&f->comm, k ? kinds % 3 : kinds / 3, (float)k * 1024, &whole[k], &part[k]);
            guarded_free(&whole[k]), guarded_free(&part[k]);
        }
        f->dev.ops->stream_destroy(&f->dev, streams[1]);
        assert_all(MPI_COMM_WORLD, ok);
        close_layout(f);
    }
}

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/** main() arms a fault on the last rank for the first passage. */
static void a_rank_with_an_error_of_its_own_still_takes_part(void **state)
{
    fixture *f = *state;
    open_layout(f, &layouts[0]);
    dt_comm *c = &f->comm;
    const bool bad = c->rank == c->nranks - 1;
    float *all = calloc((size_t)c->nranks, sizeof *all), sum = 0.0f;
    assert_non_null(all);
    for (int r = 0; r < c->nranks; r++) all[r] = 1.0f;
    dt_error_clear();
    const dt_err reduced = dt_comm_reduce_scatter(c, all, DT_F32, &sum, DT_F32, 1, false, true, NULL);
    const dt_err gathered = dt_comm_all_gather(c, &sum, all, sizeof sum, NULL);
    dt_error_clear();
    bool ok = reduced == (bad ? DT_ERR_FAULT : DT_OK) && gathered == (bad ? DT_ERR_WRITE : DT_OK);
    for (int r = 0; r < c->nranks; r++) ok = ok && all[r] == (float)c->nranks;
    free(all);
    assert_all(MPI_COMM_WORLD, ok);
    close_layout(f);
}

/** A copy to or from the device that fails on one rank, at each copy in turn. */
static void a_failing_copy_does_not_strand_the_others(void **state)
{
    fixture *f = *state;
    const layout far = {"", true, true};
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    skip_all_if(nranks == 1, "with one rank nothing is copied to the host");
    for (int nth = 1; nth <= 3; nth++) {
        open_layout(f, &far);
        guarded send = guarded_alloc(f, 12u * (size_t)f->comm.nranks), recv = guarded_alloc(f, 12);
        if (f->comm.rank == 0) dt_queue_fail_copy(&f->dev, nth);
        dt_err err =
            dt_comm_reduce_scatter(&f->comm, device(&send), DT_BF16, device(&recv), DT_BF16, 3, true, false, NULL);
        assert_all(MPI_COMM_WORLD, err == (f->comm.rank == 0 ? DT_ERR_FAULT : DT_OK));
        if (f->comm.rank == 0) dt_queue_fail_copy(&f->dev, nth > 2 ? 1 : nth);
        err = dt_comm_all_gather(&f->comm, device(&recv), device(&send), 12, NULL);
        const dt_err late = f->dev.ops->stream_sync(&f->dev, NULL); /* of a copy back to the device */
        if (err == DT_OK) err = late;
        assert_all(MPI_COMM_WORLD, err == (f->comm.rank == 0 ? DT_ERR_FAULT : DT_OK));
        dt_error_clear();
        guarded_free(&send), guarded_free(&recv);
        close_layout(f);
    }
}

/* ---- counts, contracts ------------------------------------------------------------------------------------------- */

static void traffic_and_sequence_are_counted(void **state)
{
    fixture *f = *state;
    open_layout(f, &layouts[0]);
    dt_comm *c = &f->comm;
    float *a = calloc(10u * (size_t)c->nranks, sizeof *a), b[10];
    assert_non_null(a);
    const long long before = c->sequence;
    bool ok = dt_comm_reduce_scatter(c, a, DT_F32, b, DT_F32, 10, false, false, NULL) == DT_OK;
    ok = dt_comm_all_gather(c, b, a, sizeof b, NULL) == DT_OK && ok;
    ok = dt_comm_broadcast(c, b, sizeof b, 0, NULL) == DT_OK && ok;
    free(a);
    assert_all(MPI_COMM_WORLD, ok && c->sequence == before + 3);
    const double each = (c->nranks - 1) * 40.0;
    assert_all(MPI_COMM_WORLD, c->traffic_bytes == 2 * each + (c->rank == 0 ? 40.0 : 0.0));
    close_layout(f);
}

static void overlap_that_is_not_ones_own_place_is_refused(void **state)
{
    fixture *f = *state;
    open_layout(f, &layouts[0]);
    dt_comm *c = &f->comm;
    float *a = calloc(8u * (size_t)c->nranks, sizeof *a);
    assert_non_null(a);
    float *own = a + 4 * c->rank;
    bool ok = dt_comm_reduce_scatter(c, a, DT_F32, own, DT_F32, 4, true, false, NULL) == DT_ERR_ARG;    /* accumulate */
    ok = dt_comm_reduce_scatter(c, a, DT_F32, own, DT_BF16, 4, false, false, NULL) == DT_ERR_ARG && ok; /* types */
    ok = dt_comm_reduce_scatter(c, a, DT_F32, own + 1, DT_F32, 4, false, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_reduce_scatter(c, a, DT_F32, NULL, DT_F32, 4, false, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_reduce_scatter(c, a, DT_F32, own, DT_F32, -1, false, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_reduce_scatter(c, a, DT_F32, own, DT_F32, INT64_MAX / 2, false, false, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_all_gather(c, own + 1, a, 16, NULL) == DT_ERR_ARG && ok;
    ok = dt_comm_broadcast(c, a, 16, c->nranks, NULL) == DT_ERR_ARG && ok;
    dt_error_clear();
    free(a);
    assert_all(MPI_COMM_WORLD, ok);
    close_layout(f);
}

static void a_backend_that_was_not_built_is_refused_by_name(void **state)
{
    fixture *f = *state;
    memset(f, 0, sizeof *f);
    assert_int_equal(open_near(f), DT_OK);
    assert_int_equal(dt_comm_open(&f->comm), DT_OK);
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, "nccl", true) == DT_ERR_USAGE);
    assert_all(MPI_COMM_WORLD, strstr(dt_error_message(), "nccl") && strstr(dt_error_message(), "mpi"));
    dt_error_clear();
    assert_all(MPI_COMM_WORLD,
               dt_comm_reduce_scatter(&f->comm, NULL, DT_F32, NULL, DT_F32, 0, false, false, NULL) == DT_ERR_ARG);
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, "mpi", true) == DT_OK);
    dt_comm_close(&f->comm);
    dt_comm_close(&f->comm); /* twice is harmless */
    dt_device_close(&f->dev);
}

/** The pretended layouts are known here only when all ranks share one machine. */
static bool on_one_machine(void)
{
    dt_comm c;
    unsetenv("DTRAIN_FAKE_NODES");
    assert_int_equal(dt_comm_open(&c), DT_OK);
    const bool one = c.n_nodes == 1;
    dt_comm_close(&c);
    return one;
}

static void staging_is_what_was_planned(void **state)
{
    fixture *f = *state;
    skip_all_if(!on_one_machine(), "ranks run on several machines");
    for (int l = 0; l < n_layouts(); l++) {
        open_layout(f, &layouts[l]);
        const int k = layouts[l].nodes[0] ? atoi(layouts[l].nodes) : 1, per_node = (f->comm.nranks + k - 1) / k;
        const bool alike = f->comm.nranks % k == 0; /* what the plan's number of ranks per node can say */
        const dt_comm_shape shape = {f->comm.nranks, per_node, 1, layouts[l].shared};
        const dt_memory held = dt_ledger_now(&f->ledger), plan = dt_comm_plan(transport(), &f->dev, &shape);
        const bool pinned = is_mpi() && layouts[l].far && f->comm.nranks > 1;
        assert_all(MPI_COMM_WORLD, !alike || !memcmp(&held, &plan, sizeof plan));
        assert_all(MPI_COMM_WORLD, (plan.at[DT_MEM_STAGING][DT_ON_PINNED] > 0) == pinned);
        close_layout(f);
    }
}

static void ranks_find_their_nodes(void **state)
{
    fixture *f = *state;
    skip_all_if(!on_one_machine(), "ranks run on several machines");
    for (int l = 0; l < n_layouts(); l++) {
        const int k = layouts[l].nodes[0] ? atoi(layouts[l].nodes) : 1;
        const bool cyclic = strchr(layouts[l].nodes, ':') != NULL;
        open_layout(f, &layouts[l]);
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
        assert_all(MPI_COMM_WORLD,
                   c->n_nodes == n_nodes && c->node == node && c->local_rank == local && c->local_nranks == n_local);
        close_layout(f);
    }
    setenv("DTRAIN_FAKE_NODES", "two", 1);
    assert_int_equal(dt_comm_open(&f->comm), DT_ERR_USAGE);
    unsetenv("DTRAIN_FAKE_NODES");
    dt_error_clear();
}

/** Two devices for the ranks of the node, taken in turn; and the CPU, which is one for all. */
static void ranks_that_share_a_device_are_counted(void **state)
{
    dt_comm c;
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
        assert_all(MPI_COMM_WORLD, c.n_sharing == mine && c.most_sharing == (queue ? (c.nranks + 1) / 2 : c.nranks));
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
    static fixture f;
    const struct CMUnitTest of_any_transport[] = {
        cmocka_unit_test_prestate(reduce_scatter_leaves_exact_sums, &f),
        cmocka_unit_test_prestate(reduce_scatter_takes_large_pieces, &f),
        cmocka_unit_test_prestate(ordered_sum_is_the_left_fold_on_every_layout, &f),
        cmocka_unit_test_prestate(reduce_scatter_works_in_place, &f),
        cmocka_unit_test_prestate(all_gather_brings_every_piece, &f),
        cmocka_unit_test_prestate(broadcast_makes_all_like_the_root, &f),
        cmocka_unit_test_prestate(what_is_queued_when_it_is_closed_arrives, &f),
        cmocka_unit_test_prestate(exchanges_on_two_streams_do_not_disturb_each_other, &f),
        cmocka_unit_test_prestate(staging_is_what_was_planned, &f),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_rank_with_an_error_of_its_own_still_takes_part, &f),
        cmocka_unit_test_prestate(a_failing_copy_does_not_strand_the_others, &f),
        cmocka_unit_test_prestate(ranks_find_their_nodes, &f),
        cmocka_unit_test_prestate(reduce_scatter_leaves_exact_sums, &f),
        cmocka_unit_test_prestate(reduce_scatter_takes_large_pieces, &f),
        cmocka_unit_test_prestate(results_written_around_the_cache_are_right, &f),
        cmocka_unit_test_prestate(ordered_sum_is_the_left_fold_on_every_layout, &f),
        cmocka_unit_test_prestate(reduce_scatter_works_in_place, &f),
        cmocka_unit_test_prestate(unordered_sum_repeats_its_bits, &f),
        cmocka_unit_test_prestate(all_gather_brings_every_piece, &f),
        cmocka_unit_test_prestate(broadcast_makes_all_like_the_root, &f),
        cmocka_unit_test_prestate(what_is_queued_when_it_is_closed_arrives, &f),
        cmocka_unit_test_prestate(exchanges_on_two_streams_do_not_disturb_each_other, &f),
        cmocka_unit_test_prestate(staging_is_what_was_planned, &f),
        cmocka_unit_test_prestate(ranks_that_share_a_device_are_counted, &f),
        cmocka_unit_test_prestate(traffic_and_sequence_are_counted, &f),
        cmocka_unit_test_prestate(overlap_that_is_not_ones_own_place_is_refused, &f),
        cmocka_unit_test_prestate(a_backend_that_was_not_built_is_refused_by_name, &f),
    };
    mpi_test_begin(&argc, &argv);
    if (!is_mpi()) return mpi_test_end(cmocka_run_group_tests(of_any_transport, NULL, NULL));
    int nranks;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    char fault[96];
    snprintf(fault, sizeof fault, "comm.reduce_scatter:%d:1:error,comm.all_gather:%d:1:nospace", nranks - 1,
             nranks - 1);
    setenv("DTRAIN_FAULT", fault, 1); /* read at the first passage of any point */
    return mpi_test_end(cmocka_run_group_tests(tests, NULL, NULL));
}
