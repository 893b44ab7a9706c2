// NP: 2 3
/* mpi_device_fails.c - a rank whose device has failed permanently enters no collectives. Each call returns
 * immediately with the device's message, though no other rank calls it. */
#include "comm_fixture.h"

static const char MESSAGE[] = "the device of this test has failed";

static dt_err break_down(dt_device *below, const void *args) { return dt_device_fail("%s", MESSAGE); }

static bool refused(dt_err err)
{
    const bool right = err == DT_ERR_COMM && !strcmp(dt_error_message(), MESSAGE);
    dt_error_clear();
    return right;
}

/* The device fails during a collective: when the data to send is copied to the host. */
static bool leaves_a_collective(fixture *f, const guarded *all, const guarded *own)
{
    const char nothing = 0;
    dt_comm *c = &f->comm;
    return dt_queue_call(&f->dev, NULL, break_down, &nothing, sizeof nothing) == DT_OK && !dt_device_failure() &&
           refused(
               dt_comm_reduce_scatter(&c->mesh.sum, device(all), DT_F32, device(own), DT_F32, 3, false, false, NULL));
}

static bool joins_no_tensors(fixture *f, const guarded *all, const guarded *own)
{
    dt_comm *c = &f->comm;
    return refused(
               dt_comm_reduce_scatter(&c->mesh.sum, device(all), DT_F32, device(own), DT_F32, 3, false, true, NULL)) &&
           refused(dt_comm_all_gather(&c->mesh.shard, device(own), device(all), 12, NULL));
}

static bool joins_no_values(dt_comm *c)
{
    int64_t n = 1;
    double x = 1;
    char *text = NULL;
    dt_vote vote = {.failed_rank = -1};
    return refused(dt_comm_vote(c, &vote)) && refused(dt_comm_agree(c, DT_OK)) &&
           refused(dt_comm_agree(c, dt_fail(DT_ERR_DATA, "an error of before"))) &&
           refused(dt_comm_reduce_host_i64(dt_comm_all(c), &n, 1, DT_SUM)) &&
           refused(dt_comm_reduce_host_f64(dt_comm_all(c), &x, 1, DT_MAX)) &&
           refused(dt_comm_broadcast_host(c, &n, sizeof n, 0)) && refused(dt_comm_share_text(c, &text, NULL)) &&
           refused(dt_comm_find_devices(c, c->dev));
}

TEST(a_rank_with_a_failed_device_enters_no_collectives)
{
    fixture *f = *state;
    const layout far = {"", true, true, false};
    bool ok = true;
    open_layout(f, &far);
    guarded all = guarded_alloc(f, 12u * (size_t)f->comm.nranks), own = guarded_alloc(f, 12);
    if (f->comm.rank == 1) {
        ok = leaves_a_collective(f, &all, &own);
        const long long begun = f->comm.sequence;
        ok = ok && joins_no_tensors(f, &all, &own) && joins_no_values(&f->comm) && f->comm.sequence == begun &&
             !dt_comm_failed_together(&f->comm) && dt_comm_prints_error(&f->comm);
    }
    assert_all(MPI_COMM_WORLD, ok);
    (void)f->dev.ops->stream_sync(&f->dev, NULL);
    guarded_free(&all), guarded_free(&own);
    close_layout(f);
}

MPI_TEST_MAIN(give_fixture, NULL)
