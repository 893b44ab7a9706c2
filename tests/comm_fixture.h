/* comm_fixture.h - a communicator on each layout of ranks and nodes, and arrays of its device between guard
 * elements. DTRAIN_FAKE_NODES simulates several nodes on one machine; DTRAIN_COMM selects a transport other than
 * MPI. */
#ifndef DTRAIN_COMM_FIXTURE_H
#define DTRAIN_COMM_FIXTURE_H

#include "mpi_test.h"
#include "../src/comm/transport.h"
#include "../src/backends/queue.h"

typedef struct layout {
    const char *nodes; /* DTRAIN_FAKE_NODES */
    bool shared, far;  /* far: on the queue device, whose memory the host cannot touch */
    bool by_node;      /* a group is a node, where these have equally many ranks */
} layout;

static const layout of_mpi[] = {
    {"", true, false, false},         {"", false, false, false}, {"2", true, false, false},
    {"2:cyclic", true, false, false}, {"3", true, false, false}, {"4", true, false, false},
    {"2", false, false, false},       {"", true, true, false},   {"2", true, true, false},
    {"2:cyclic", true, false, true},  {"4", false, false, true}, {"2", true, true, true},
};
static const layout of_others[] = {
    {"", true, false, false}, {"2", true, false, false},       {"3", true, false, false},
    {"4", true, false, true}, {"2:cyclic", true, false, true},
};
enum { GUARD = 68, GUARD_BYTE = 0x5a };

static inline const char *transport(void) { return getenv("DTRAIN_COMM") ? getenv("DTRAIN_COMM") : "auto"; }
/* Other transports know nothing of windows. */
static inline bool is_mpi(void) { return !strcmp(transport(), "auto"); }
static inline const layout *layout_at(int l) { return is_mpi() ? &of_mpi[l] : &of_others[l]; }
static inline int n_layouts(void)
{
    return (int)(is_mpi() ? sizeof of_mpi / sizeof of_mpi[0] : sizeof of_others / sizeof of_others[0]);
}

typedef struct fixture {
    dt_comm comm;
    dt_device dev;
    dt_ledger ledger;
} fixture;

static inline dt_err open_near(fixture *f)
{
    f->dev = (dt_device){.ops = &dt_device_cpu_ops, .ledger = &f->ledger};
    return f->dev.ops->open(&f->dev, 0, 1);
}

static inline void open_layout(fixture *f, const layout *l)
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
    const dt_mesh_shape by_node = {.tp = 1, .cp = 1, .by_node = true};
    if (l->by_node)
        assert_int_equal(dt_comm_mesh(&f->comm, &by_node), f->comm.mesh.world.even_nodes ? DT_OK : DT_ERR_USAGE);
    dt_error_clear();
    assert_all(MPI_COMM_WORLD, dt_comm_attach(&f->comm, &f->dev, transport(), l->shared) == DT_OK);
}

static inline void close_layout(fixture *f)
{
    dt_comm_close(&f->comm);
    assert_int_equal(f->ledger.total_now, 0);
    dt_device_close(&f->dev);
    unsetenv("DTRAIN_FAKE_NODES");
}

/** An array of the device between guards, and its copy on the host. */
typedef struct guarded {
    dt_buf buf;
    size_t nbytes;
    char *copy;
} guarded;

static inline void *host(const guarded *g) { return g->copy + GUARD; }
static inline void *device(const guarded *g) { return (char *)g->buf.ptr + GUARD; }

static inline guarded guarded_alloc(fixture *f, size_t nbytes)
{
    guarded g = {.nbytes = nbytes, .copy = malloc(nbytes + 2 * GUARD)};
    assert_non_null(g.copy);
    assert_int_equal(dt_buf_alloc(&g.buf, &f->dev, DT_ON_DEVICE, nbytes + 2 * GUARD, DT_MEM_OTHER), DT_OK);
    memset(g.copy, GUARD_BYTE, nbytes + 2 * GUARD);
    return g;
}

static inline void guarded_free(guarded *g)
{
    dt_buf_free(&g->buf);
    free(g->copy);
}

static inline void to_device(fixture *f, const guarded *g)
{
    const dt_device_ops *ops = f->dev.ops;
    assert_int_equal(ops->copy(&f->dev, g->buf.ptr, g->copy, g->buf.nbytes, NULL), DT_OK);
    assert_int_equal(ops->stream_sync(&f->dev, NULL), DT_OK);
}

/* When an exchange is done. */
static inline void to_host(fixture *f, const guarded *g)
{
    const dt_device_ops *ops = f->dev.ops;
    assert_int_equal(ops->copy(&f->dev, g->copy, g->buf.ptr, g->buf.nbytes, NULL), DT_OK);
    assert_int_equal(ops->stream_sync(&f->dev, NULL), DT_OK);
}

static inline bool guards_stand(const guarded *g)
{
    const unsigned char *p = (const unsigned char *)g->copy;
    for (size_t i = 0; i < GUARD; i++)
        if (p[i] != GUARD_BYTE || p[GUARD + g->nbytes + i] != GUARD_BYTE) return false;
    return true;
}

static inline int give_fixture(void **state)
{
    static fixture f;
    *state = &f;
    return 0;
}

/** The pretended layouts are known here only when all ranks share one machine. */
static inline bool on_one_machine(void)
{
    dt_comm c = {0};
    unsetenv("DTRAIN_FAKE_NODES");
    assert_int_equal(dt_comm_open(&c), DT_OK);
    const bool one = c.mesh.world.n_nodes == 1;
    dt_comm_close(&c);
    return one;
}

#endif
