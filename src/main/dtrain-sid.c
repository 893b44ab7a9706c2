/* dtrain-sid.c - semantic IDs for the items of a catalogue: what is done in which order, and what is told of it. */
#include "sid/app.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- input ------------------------------------------------------------------------------------------------------- */

/* Nothing is computed for a place where nothing may be written. */
static dt_err check_outputs(const options *o)
{
    static const char *const endings[] = {".index.json", ".txt"};
    const char *const inputs[] = {o->items ? o->items : o->embeddings, o->embeddings};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        DT_CHECK((size_t)snprintf(path, sizeof path, "%s%s", o->output, endings[i]) < sizeof path, DT_ERR_USAGE,
                 "-o: the name is too long");
        DT_TRY(dt_check_output(path, o->force, inputs, 2));
    }
    return dt_make_folder_of(path);
}

static dt_err open_device(app *a)
{
    int threads = 0;
    DT_TRY(dt_comm_threads(&a->comm, a->opt.threads, "--threads", &threads));
    DT_TRY(dt_device_open(&a->dev, a->opt.device, a->comm.local_rank, threads, &a->ledger));
    if (a->dev.ops->make_reproducible) a->dev.ops->make_reproducible(&a->dev);
    return DT_OK;
}

/* Titles and ids are for rank 0, which writes them. */
static dt_err open_input(app *a)
{
    const options *o = &a->opt;
    if (o->items && a->comm.rank == 0) DT_TRY(dt_sid_items_read(&a->items, o->items));
    DT_TRY(dt_rows_open(&a->rows, o->embeddings, o->array));
    DT_CHECK(!a->items.root || a->items.n == a->rows.n, DT_ERR_DATA,
             "%s has %" PRId64 " items and %s %" PRId64 " rows: expected one row for each item", o->items, a->items.n,
             o->embeddings, a->rows.n);
    DT_CHECK(a->rows.n >= o->codes, DT_ERR_DATA,
             "%s: %" PRId64 " items cannot have %" PRId64 " different codes; see --codes", o->embeddings, a->rows.n,
             o->codes);
    DT_CHECK(a->rows.n < INT32_MAX, DT_ERR_DATA, "%s: expected fewer than 2^31 items, found %" PRId64, o->embeddings,
             a->rows.n);
    return DT_OK;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

static dt_err make_room(app *a, int64_t width)
{
    const int64_t n = a->rows.n;
    a->books = calloc((size_t)a->opt.levels, sizeof *a->books);
    a->code = calloc((size_t)a->opt.levels, sizeof *a->code);
    DT_CHECK(a->books && a->code, DT_ERR_MEMORY, "out of memory for codebooks");
    for (int64_t l = 0; l < a->opt.levels; l++) {
        a->code[l] = calloc((size_t)n, sizeof **a->code);
        DT_CHECK(a->code[l], DT_ERR_MEMORY, "out of memory for the codes of %" PRId64 " items", n);
        DT_TRY(dt_sid_book_alloc(&a->sid, &a->books[l], width));
    }
    return dt_sid_points_alloc(&a->sid, &a->points, n, width);
}

/* Residual k-means: the rows of the last level stay as they are before its codes are taken off. */
static dt_err fit_levels(app *a)
{
    const options *o = &a->opt;
    TOGETHER(a, make_room(a, a->rows.width));
    TOGETHER(a, dt_sid_points_read(&a->sid, &a->points, &a->rows));
    for (int l = 0; l < o->levels; l++) {
        const dt_sid_kmeans how = {
            .max_iterations = o->kmeans_iterations, .balanced = o->method == SID_BALANCED, .level = l};
        if (l > 0) TOGETHER(a, dt_sid_points_subtract(&a->sid, &a->points, a->books[l - 1].rows.ptr, a->code[l - 1]));
        DT_TRY(dt_sid_points_measure(&a->sid, &a->points));
        DT_TRY(dt_sid_kmeans_fit(&a->sid, &how, &a->points, &a->books[l], a->code[l], &a->error));
        a->error /= (double)a->rows.n;
        DT_INFO("level %c: mean squared distance %.6g", 'a' + l, a->error);
    }
    return DT_OK;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* Items that do not have a SID of their own as the first of it, divided by all items. */
static dt_err collision_rate(app *a, double *rate)
{
    dt_sid_groups g;
    int64_t n_distinct = 0;
    const dt_err err = dt_sid_group(a->code, (int)a->opt.levels, a->rows.n, &g, &n_distinct);
    dt_sid_groups_free(&g);
    *rate = (double)(a->rows.n - n_distinct) / (double)a->rows.n;
    return err;
}

static dt_err report_use(app *a)
{
    dt_sid_use use;
    for (int l = 0; l < a->opt.levels; l++) {
        DT_TRY(dt_sid_count_use(a->code[l], a->rows.n, a->opt.codes, &use));
        DT_INFO("level %c: %" PRId64 " of %" PRId64 " codes used, perplexity %.2f, most items of a code %" PRId64,
                'a' + l, use.n_used, a->opt.codes, use.perplexity, use.largest);
    }
    return DT_OK;
}

static dt_err finish(app *a)
{
    const options *o = &a->opt;
    double before = 0, after = 0;
    int64_t n_rounds = 0;
    TOGETHER(a, collision_rate(a, &before));
    DT_TRY(dt_sid_resolve(&a->sid, &o->sinkhorn, &a->points, &a->books[o->levels - 1], a->code, &n_rounds));
    TOGETHER(a, collision_rate(a, &after));
    TOGETHER(a, report_use(a));
    DT_INFO("collisions: %.6f of the items before, %.6f after %" PRId64 " rounds%s", before, after, n_rounds,
            o->sinkhorn.distinct ? " and free codes" : "");
    TOGETHER(a, a->comm.rank == 0
                    ? dt_sid_write(o->output, o->items ? &a->items : NULL, a->code, (int)o->levels, a->rows.n)
                    : DT_OK);
    DT_INFO("wrote %s.index.json%s%s%s for %" PRId64 " items", o->output, o->items ? " and " : "",
            o->items ? o->output : "", o->items ? ".txt" : "", a->rows.n);
    return DT_OK;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static dt_err run(app *a, dt_err parsed)
{
    const options *o = &a->opt;
    DT_TRY(dt_comm_open(&a->comm));
    dt_log_open(a->comm.rank, a->comm.nranks, a->comm.host);
    dt_phase_enter(&a->phase, "start", "");
    TOGETHER(a, parsed);
    TOGETHER(a, a->comm.rank == 0 ? check_outputs(o) : DT_OK);
    TOGETHER(a, open_input(a));
    TOGETHER(a, open_device(a));
    TOGETHER(a, dt_comm_attach(&a->comm, &a->dev, "auto", true));
    a->sid = (dt_sid){.comm = &a->comm,
                      .dev = &a->dev,
                      .phase = &a->phase,
                      .block = o->block,
                      .n_codes = o->codes,
                      .n_levels = (int)o->levels,
                      .seed = (uint64_t)o->seed};
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, o->timeout_s));
    DT_TRY(fit_levels(a));
    return finish(a);
}

static void close_all(app *a)
{
    dt_watchdog_stop(a->watchdog);
    for (int64_t l = 0; l < a->opt.levels && a->books; l++) dt_sid_book_free(&a->books[l]);
    for (int64_t l = 0; l < a->opt.levels && a->code; l++) free(a->code[l]);
    free(a->books);
    free(a->code);
    dt_sid_points_free(&a->sid, &a->points);
    dt_rows_close(&a->rows);
    dt_sid_items_free(&a->items);
    dt_comm_close(&a->comm);
    dt_device_close(&a->dev);
}

int main(int argc, char **argv)
{
    app a = {0};
    tool_start("dtrain-sid");
    const dt_err parsed = sid_parse_options(&a.opt, argc, argv);
    if (parsed == DT_OK && a.opt.help) fputs(sid_usage, stdout);
    if (parsed == DT_OK && a.opt.version) tool_print_version();
    if (parsed == DT_OK && (a.opt.help || a.opt.version)) return tool_end(DT_OK);
    tool_wait_fairly(argv);
    const dt_err started = dt_comm_start(&a.comm);
    if (started != DT_OK) return tool_end(started);
    const dt_err err = run(&a, parsed);
    const int code = dt_comm_speaks(&a.comm) ? tool_end(err) : dt_exit_code(err);
    dt_comm_leave(&a.comm, err);
    close_all(&a);
    dt_comm_stop();
    return code;
}
