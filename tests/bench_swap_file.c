/* bench_swap_file.c - the file of offloaded states against plain calls on the same disk: MB/s of writing and reading
 * by way and by the number of concurrent transfers. The ways alternate in every round; the best round counts. Ratios
 * are to one thread's pwrite and pread with O_DIRECT.
 *
 *     build/release/tests/bench_swap_file [folder on the disk in question] [rounds] [MiB] */
#include "dtrain/io/io.h"
#include "dtrain/io/swap_file.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_DEPTH = 8, HUGE_PAGE = 2 << 20 };
static const size_t REQUEST = (size_t)64 << 20; /* what one call, or one request, moves */

typedef struct row {
    const char *label, *way; /* way: DTRAIN_SWAP_IO; NULL: plain calls */
    int depth;               /* 0: by bytes, through the file's own buffer */
    bool direct;
    int fd;
    dt_swap_file *f;
    double best_s[2], call_s[2]; /* whole; spent in the calls that begin requests */
} row;

static row rows[] = {
    {.label = "plain calls, O_DIRECT", .direct = true},
    {.label = "plain calls, page cache and sync"},
    {.label = "io_uring", .way = "io_uring", .depth = 1},
    {.label = "io_uring", .way = "io_uring", .depth = 2},
    {.label = "io_uring", .way = "io_uring", .depth = 4},
    {.label = "io_uring", .way = "io_uring", .depth = MAX_DEPTH},
    {.label = "posix_aio", .way = "posix_aio", .depth = 1},
    {.label = "posix_aio", .way = "posix_aio", .depth = 2},
    {.label = "posix_aio", .way = "posix_aio", .depth = 4},
    {.label = "posix_aio", .way = "posix_aio", .depth = MAX_DEPTH},
    {.label = "any bytes, for checkpoints", .way = "posix_aio"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static dt_err open_row(row *r, const char *dir, size_t nbytes)
{
    r->best_s[0] = r->best_s[1] = 1e30;
    if (r->way) {
        const dt_swap_options opt = {
            .dir = dir, .what = "the benchmark", .nbytes = {[DT_MEM_OTHER] = nbytes}, .depth = r->depth ? r->depth : 1};
        setenv("DTRAIN_SWAP_IO", r->way, 1);
        return dt_swap_open(&r->f, &opt);
    }
    r->fd = dt_open_unnamed(dir);
    DT_CHECK_ERRNO(r->fd >= 0, DT_ERR_WRITE, dir, "cannot make a file");
    DT_TRY(dt_reserve_blocks(r->fd, dir, (int64_t)nbytes, "the benchmark"));
    if (r->direct)
        DT_CHECK_ERRNO(fcntl(r->fd, F_SETFL, fcntl(r->fd, F_GETFL) | O_DIRECT) == 0, DT_ERR_WRITE, dir, "no O_DIRECT");
    return DT_OK;
}

static dt_err plain(const row *r, bool write, char *memory, size_t nbytes)
{
    for (size_t at = 0; at < nbytes;) {
        const ssize_t n =
            write ? pwrite(r->fd, memory + at, REQUEST, (off_t)at) : pread(r->fd, memory + at, REQUEST, (off_t)at);
        DT_CHECK_ERRNO(n > 0, DT_ERR_WRITE, r->label, "failed");
        at += (size_t)n;
    }
    if (r->direct) return DT_OK;
    DT_CHECK_ERRNO(fdatasync(r->fd) == 0, DT_ERR_WRITE, r->label, "sync failed");
    posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED); /* the next to be read are read from the disk */
    return DT_OK;
}

static dt_err requests(row *r, bool write, char *memory, size_t nbytes, double *call_s)
{
    dt_swap_request under_way[MAX_DEPTH] = {0};
    *call_s = 0;
    for (size_t at = 0; at < nbytes; at += REQUEST) {
        dt_swap_request *q = &under_way[at / REQUEST % (size_t)r->depth];
        DT_TRY(dt_swap_wait(r->f, q));
        const double begin = dt_now_s();
        DT_TRY(write ? dt_swap_write(r->f, (int64_t)at, memory + at, REQUEST, q)
                     : dt_swap_read(r->f, (int64_t)at, memory + at, REQUEST, q));
        *call_s += dt_now_s() - begin;
    }
    for (int k = 0; k < r->depth; k++) DT_TRY(dt_swap_wait(r->f, &under_way[k]));
    return DT_OK;
}

static dt_err once(row *r, bool write, char *memory, size_t nbytes)
{
    double call_s = 0;
    const double begin = dt_now_s();
    if (!r->way)
        DT_TRY(plain(r, write, memory, nbytes));
    else if (r->depth > 0)
        DT_TRY(requests(r, write, memory, nbytes, &call_s));
    else
        DT_TRY(write ? dt_swap_write_bytes(r->f, 0, memory, nbytes) : dt_swap_read_bytes(r->f, 0, memory, nbytes));
    const double took_s = dt_now_s() - begin;
    if (took_s < r->best_s[write]) r->best_s[write] = took_s, r->call_s[write] = call_s;
    return DT_OK;
}

static dt_err run(const char *dir, int rounds, size_t nbytes)
{
    char *memory = aligned_alloc(HUGE_PAGE, nbytes); /* as the program's staging buffers */
    DT_CHECK(memory, DT_ERR_MEMORY, "no memory");
    madvise(memory, nbytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < nbytes / 8; i++) ((uint64_t *)memory)[i] = dt_mix64(i);
    int there = 0;
    row *r[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) {
        const dt_err err = open_row(&rows[i], dir, nbytes);
        if (err != DT_OK && err != DT_ERR_USAGE) return err;
        if (err == DT_OK)
            r[there++] = &rows[i];
        else
            printf("skip: %s\n", dt_error_message()), dt_error_clear();
    }
    for (int round = -1; round < rounds; round++) /* the first writes each block for the first time */
        for (int i = 0; i < there; i++) {
            if (round == 0) r[i]->best_s[0] = r[i]->best_s[1] = 1e30;
            DT_TRY(once(r[i], true, memory, nbytes));
            DT_TRY(once(r[i], false, memory, nbytes));
        }
    printf("%zu MiB by %zu MiB in %s, best of %d\n", nbytes >> 20, REQUEST >> 20, dir, rounds);
    printf("%-34s %5s %11s %6s %10s %6s %22s\n", "way", "depth", "write MB/s", "ratio", "read MB/s", "ratio",
           "ms in calls that begin");
    for (int i = 0; i < there; i++) {
        const double mb = (double)nbytes / 1e6;
        printf("%-34s %5.0d %11.0f %6.2f %10.0f %6.2f", r[i]->label, r[i]->depth, mb / r[i]->best_s[1],
               r[0]->best_s[1] / r[i]->best_s[1], mb / r[i]->best_s[0], r[0]->best_s[0] / r[i]->best_s[0]);
        if (r[i]->depth) printf(" %10.2f %10.2f", 1e3 * r[i]->call_s[1], 1e3 * r[i]->call_s[0]);
        printf("\n");
        dt_swap_close(r[i]->f);
    }
    free(memory);
    return DT_OK;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 2 ? atoi(argv[2]) : 5;
    const size_t mib = argc > 3 ? (size_t)atoi(argv[3]) : 512;
    setenv("DTRAIN_LOG", "warn", 0);
    dt_log_open(0, 1, "");
    const dt_err err = run(argc > 1 ? argv[1] : ".", rounds, (mib << 20) / REQUEST * REQUEST);
    if (err != DT_OK) fprintf(stderr, "bench_swap_file: %s\n", dt_error_message());
    return dt_exit_code(err);
}
