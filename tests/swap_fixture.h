/* swap_fixture.h - the file of offloaded states in a folder of the test's own, by each way that transfers can take. */
#ifndef DTRAIN_TESTS_SWAP_FIXTURE_H
#define DTRAIN_TESTS_SWAP_FIXTURE_H

#include "cases.h"
#include "dtrain/io/io.h"
#include "dtrain/io/swap_file.h"
#include <dirent.h>

enum { BLOCK = DT_SWAP_ALIGN, MIB = 1 << 20 };
enum { NO_WAY = 2, REFUSALS = 4 };

static char folder[64];

static inline dt_swap_options options(size_t nbytes, int depth)
{
    return (dt_swap_options){
        .dir = folder, .what = "the moments", .nbytes = {[DT_MEM_OPTIMIZER] = nbytes}, .depth = depth};
}

static inline dt_swap_file *open_file(size_t nbytes, int depth)
{
    dt_swap_file *f = NULL;
    const dt_swap_options opt = options(nbytes, depth);
    if (dt_swap_open(&f, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    return f;
}

static inline void *blocks(size_t nbytes)
{
    void *p = aligned_alloc(BLOCK, nbytes);
    assert_non_null(p);
    return p;
}

static inline void fill(void *p, size_t nbytes, uint64_t seed)
{
    for (size_t i = 0; i < nbytes / 8; i++) ((uint64_t *)p)[i] = dt_mix64(seed + i);
}

static inline uint64_t draw(uint64_t *seed, uint64_t n) { return dt_mix64((*seed)++) % n; }

static inline void is_ok(dt_err err)
{
    if (err != DT_OK) fail_msg("%s", dt_error_message());
}

static inline void fails(dt_err err, dt_err expected, const char *words)
{
    if (err != expected || !strstr(dt_error_message(), words))
        fail_msg("expected %d and \"%s\", found %d and \"%s\"", expected, words, err, dt_error_message());
    dt_error_clear();
}

static inline int n_files(const char *path)
{
    DIR *d = opendir(path);
    int n = -2; /* . and .. */
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

TEST_OF(NO_WAY, this_way_is_not_there)
{
    print_message("%s\n", dt_error_message());
    dt_error_clear();
    skip();
}

static inline int give_way(void **state)
{
    *state = getenv("DTRAIN_SWAP_IO");
    return 0;
}

/** The tests by one way, whose name is their state. */
static inline int run_by(const char *way)
{
    dt_swap_file *f = NULL;
    const dt_swap_options opt = options(BLOCK, 1);
    setenv("DTRAIN_SWAP_IO", way, 1);
    const dt_err err = dt_swap_open(&f, &opt);
    dt_swap_close(f);
    return err == DT_OK ? run_listed(way, give_way, NULL) : run_groups(NO_WAY, way, NULL, NULL);
}

/* The C library makes the threads of its POSIX AIO past the thread sanitizer, which then crashes in their memory. */
#ifdef __SANITIZE_THREAD__
enum { HAS_POSIX_AIO = false };
#else
enum { HAS_POSIX_AIO = true };
#endif

/** The tests by each way, in a folder of their own; returns how many failed. */
static inline int run_by_each_way(void)
{
    const char *const ways[] = {"io_uring", "posix_aio", "io_uring,buffered", "posix_aio,buffered", "late,buffered"};
    int n_failed = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (HAS_POSIX_AIO || !strstr(ways[i], "posix_aio")) n_failed += run_by(ways[i]);
    rmdir(folder);
    return n_failed;
}

static inline bool make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/dtrain-swap-XXXXXX", P_tmpdir);
    return mkdtemp(folder);
}

#endif
