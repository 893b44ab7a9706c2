/* bench_checkpoint.c - saving and loading the states of GPT-2 124M (fp32 with Adam: 1.5 GB) against one process that
 * writes and syncs, or reads, as many bytes of an ordinary file on the same disk; turn by turn in one run, so that the
 * disk's moods meet both. Then a tiny model, where only latency counts.
 *
 *     mpirun -n 2 build/release/tests/bench_checkpoint [folder on the disk in question] [rounds] */
// NP: 1 2
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/io/io.h"
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ROUNDS = 50, BLOCK = 8 << 20 };

static dt_err add(dt_unit *u, const char *prefix, const char *name, int64_t rows, int64_t cols)
{
    char full[DT_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return dt_unit_add(u, full, cols ? 2 : 1, (int64_t[]){rows, cols}, true, true, 0.02f, 0);
}

/* GPT-2's tables of tensors, with width C. */
static dt_err make_units(dt_unit *units, int n_layers, int64_t C, int64_t vocab)
{
    snprintf(units[0].name, sizeof units[0].name, "embed");
    DT_TRY(add(&units[0], "", "wte.weight", vocab, C));
    DT_TRY(add(&units[0], "", "wpe.weight", 1024, C));
    for (int l = 1; l <= n_layers; l++) {
        dt_unit *u = &units[l];
        char prefix[32];
        snprintf(u->name, sizeof u->name, "block.%d", l - 1);
        snprintf(prefix, sizeof prefix, "h.%d.", l - 1);
        const struct {
            const char *name;
            int64_t rows, cols;
        } t[] = {{"ln_1.weight", C, 0},
                 {"ln_1.bias", C, 0},
                 {"attn.c_attn.weight", C, 3 * C},
                 {"attn.c_attn.bias", 3 * C, 0},
                 {"attn.c_proj.weight", C, C},
                 {"attn.c_proj.bias", C, 0},
                 {"ln_2.weight", C, 0},
                 {"ln_2.bias", C, 0},
                 {"mlp.c_fc.weight", C, 4 * C},
                 {"mlp.c_fc.bias", 4 * C, 0},
                 {"mlp.c_proj.weight", 4 * C, C},
                 {"mlp.c_proj.bias", C, 0}};
        for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) DT_TRY(add(u, prefix, t[i].name, t[i].rows, t[i].cols));
    }
    snprintf(units[n_layers + 1].name, sizeof units[0].name, "head");
    DT_TRY(add(&units[n_layers + 1], "", "ln_f.weight", C, 0));
    return add(&units[n_layers + 1], "", "ln_f.bias", C, 0);
}

static double seconds(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return dt_now_s();
}

static void forget(const char *path) /* so that reading reads the disk */
{
    const int fd = open(path, O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static bool plain_write(const char *path, const char *bytes, int64_t source, int64_t nbytes)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    bool ok = fd >= 0;
    for (int64_t at = 0; ok && at < nbytes; at += BLOCK) {
        const int64_t n = nbytes - at < BLOCK ? nbytes - at : BLOCK;
        ok = write(fd, bytes + at % source, (size_t)n) == n;
    }
    ok = ok && fsync(fd) == 0;
    close(fd);
    return ok;
}

static bool plain_read(const char *path, char *bytes, int64_t room, int64_t nbytes)
{
    const int fd = open(path, O_RDONLY);
    bool ok = fd >= 0;
    for (int64_t at = 0; ok && at < nbytes; at += BLOCK) {
        const int64_t n = nbytes - at < BLOCK ? nbytes - at : BLOCK;
        ok = read(fd, bytes + at % room, (size_t)n) == n;
    }
    close(fd);
    return ok;
}

typedef struct bench {
    dt_comm comm;
    dt_device dev;
    dt_ledger ledger;
    char dir[PATH_MAX];
} bench;

typedef enum what { WRITE, SAVE, READ, LOAD, N_WHAT } what;

typedef struct task {
    bench *b;
    dt_zero *z;
    const dt_ckpt_meta *meta;
    const char *path, *plain;
    char *bytes;
    int64_t room, nbytes;
} task;

static dt_err once(const task *t, what w)
{
    const bool first = t->b->comm.rank == 0;
    switch (w) {
    case WRITE:
        return !first || plain_write(t->plain, t->bytes, t->room, t->nbytes) ? DT_OK
                                                                             : dt_fail(DT_ERR_WRITE, "plain write");
    case SAVE:
        return dt_checkpoint_save(&t->b->comm, t->z, t->meta, t->b->dir, 0, NULL);
    case READ:
        return !first || plain_read(t->plain, t->bytes, t->room, t->nbytes) ? DT_OK
                                                                            : dt_fail(DT_ERR_DATA, "plain read");
    default:
        return dt_checkpoint_load_all(&t->b->comm, &(dt_saved_model){.zero = t->z, .with_states = true}, 1, t->path,
                                      NULL);
    }
}

static dt_err run(bench *b, const char *label, int n_layers, int64_t width, int64_t vocab, int rounds)
{
    dt_unit units[16] = {0};
    dt_zero *z = NULL;
    char path[PATH_MAX + 40], plain[PATH_MAX + 40];
    const int64_t room = 32 * (int64_t)BLOCK;
    char *bytes = malloc((size_t)room);
    const dt_zero_options opt = {.stage = 1,
                                 .param_dtype = DT_F32,
                                 .grad_dtype = DT_F32,
                                 .optimizer = &dt_optimizer_adamw,
                                 .max_live_parameters = INT64_MAX / 4};
    DT_CHECK(bytes, DT_ERR_MEMORY, "no memory");
    for (int64_t i = 0; i < room / 8; i++) ((uint64_t *)bytes)[i] = dt_mix64((uint64_t)i);
    DT_TRY(make_units(units, n_layers, width, vocab));
    DT_TRY(dt_zero_open(&z, &opt, units, n_layers + 2, &b->comm, &b->dev, NULL, NULL));
    DT_TRY(dt_zero_init_random(z, 1));
    int64_t nbytes = 0;
    for (int u = 0; u < n_layers + 2; u++) nbytes += 12 * units[u].n_param;
    snprintf(path, sizeof path, "%s/step-00000001.h5", b->dir);
    snprintf(plain, sizeof plain, "%s/plain", b->dir);
    dt_ckpt_meta meta = {.step = 1, .config = (char *)"", .model_config = (char *)"{}"};
    const bool first = b->comm.rank == 0;
    const task t = {
        .b = b, .z = z, .meta = &meta, .path = path, .plain = plain, .bytes = bytes, .room = room, .nbytes = nbytes};
    double best[N_WHAT] = {1e30, 1e30, 1e30, 1e30};
    for (int r = -1; r < rounds;
         /* round -1 warms up; the order alternates because the first save's leftovers in memory slow the second */
         r++) {
        for (int k = 0; k < N_WHAT; k++) {
            const what w = (what)(k ^ (r & 1));
            const double begin = seconds();
            DT_TRY(once(&t, w));
            const double took = seconds() - begin;
            if (r >= 0 && took < best[w]) best[w] = took;
            if (first) forget(w == SAVE || w == LOAD ? path : plain);
        }
        if (first) unlink(plain), unlink(path);
    }
    if (first)
        printf("%-10s %5d %8.1f %10.1f %10.1f %7.2f %10.1f %10.1f %7.2f\n", label, b->comm.nranks, (double)nbytes / 1e6,
               1e3 * best[WRITE], 1e3 * best[SAVE], best[WRITE] / best[SAVE], 1e3 * best[READ], 1e3 * best[LOAD],
               best[READ] / best[LOAD]);
    dt_zero_close(z);
    for (int u = 0; u < n_layers + 2; u++) dt_unit_free(&units[u]);
    free(bytes);
    return DT_OK;
}

int main(int argc, char **argv)
{
    int provided;
    bench b = {0};
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    snprintf(b.dir, sizeof b.dir, "%s/bench-checkpoint", argc > 1 ? argv[1] : ".");
    const int asked = argc > 2 ? atoi(argv[2]) : 5, rounds = asked < 1 ? 1 : asked > MAX_ROUNDS ? MAX_ROUNDS : asked;
    dt_err err = dt_comm_open(&b.comm);
    if (err == DT_OK) err = dt_device_open(&b.dev, "cpu", b.comm.local_rank, 0, &b.ledger);
    if (err == DT_OK) err = dt_comm_attach(&b.comm, &b.dev, "mpi", true);
    if (err == DT_OK && b.comm.rank == 0) err = dt_make_dirs(b.dir);
    if (err == DT_OK && b.comm.rank == 0)
        printf("checkpoint %5s %8s %10s %10s %7s %10s %10s %7s\n", "ranks", "MB", "write ms", "save ms", "ratio",
               "read ms", "load ms", "ratio");
    if (err == DT_OK) err = run(&b, "124M", 12, 768, 50257, rounds);
    if (err == DT_OK) err = run(&b, "tiny", 4, 64, 256, 4 * rounds);
    if (err != DT_OK) {
        fprintf(stderr, "bench_checkpoint: %s\n", dt_error_message());
        MPI_Abort(MPI_COMM_WORLD, dt_exit_code(err));
    }
    if (b.comm.rank == 0) {
        char latest[PATH_MAX + 40];
        snprintf(latest, sizeof latest, "%s/latest", b.dir);
        unlink(latest);
        rmdir(b.dir);
    }
    dt_comm_close(&b.comm);
    dt_device_close(&b.dev);
    MPI_Finalize();
    return 0;
}
