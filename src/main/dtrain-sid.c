/* dtrain-sid.c - semantic IDs for the items of a catalogue: sequence of steps, and messages. */
#include "sid/sid_app.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- input ------------------------------------------------------------------------------------------------------- */

/* Check the outputs before computing anything. */
static dt_err check_outputs(const options *o)
{
    const char *const endings[] = {".index.json", o->items ? ".txt" : NULL, o->model ? ".emb.npy" : NULL};
    const char *const inputs[] = {o->items ? o->items : o->embeddings, o->embeddings ? o->embeddings : o->items};
    char path[PATH_MAX];
    for (int i = 0; i < 3; i++) {
        if (!endings[i]) continue;
        DT_CHECK((size_t)snprintf(path, sizeof path, "%s%s", o->output, endings[i]) < sizeof path, DT_ERR_USAGE,
                 "-o: the name is too long");
        DT_TRY(dt_check_output(path, o->force, inputs, 2));
    }
    return dt_make_folder_of(path);
}

static dt_err open_device(app *a)
{
    DT_TRY(ranks_open_device(&a->comm, &a->dev, &a->ledger, a->opt.device, a->opt.threads));
    if (a->dev.ops->make_reproducible) a->dev.ops->make_reproducible(&a->dev);
    return DT_OK;
}

/* All ranks need the texts. Only rank 0 needs titles and ids, because it writes them. */
static dt_err read_items(app *a)
{
    const options *o = &a->opt;
    return o->items && (o->model || a->comm.rank == 0) ? dt_sid_items_read(&a->items, o->items) : DT_OK;
}

static dt_err open_embeddings(app *a)
{
    const options *o = &a->opt;
    DT_TRY(dt_matrix_file_open(&a->rows, a->embeddings, o->array));
    DT_CHECK(!a->items.root || a->items.n == a->rows.n, DT_ERR_DATA,
             "%s has %" PRId64 " items, but %s has %" PRId64 " rows: expected one row per item", o->items, a->items.n,
             a->embeddings, a->rows.n);
    DT_CHECK(a->rows.n >= o->codes, DT_ERR_DATA,
             "%s: %" PRId64 " items are too few for %" PRId64 " different codes; lower --codes", a->embeddings,
             a->rows.n, o->codes);
    DT_CHECK(a->rows.n < INT32_MAX, DT_ERR_DATA, "%s: expected fewer than 2^31 items, found %" PRId64, a->embeddings,
             a->rows.n);
    return DT_OK;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static dt_err report_use(app *a)
{
    dt_sid_use use;
    for (int l = 0; l < a->opt.levels; l++) {
        DT_TRY(dt_sid_count_use(a->code[l], a->rows.n, a->opt.codes, &use));
        DT_INFO("level %c: %" PRId64 " of %" PRId64 " codes used, perplexity %.2f, maximum items per code %" PRId64,
                'a' + l, use.n_used, a->opt.codes, use.perplexity, use.largest);
    }
    return DT_OK;
}

static dt_err finish(app *a)
{
    const options *o = &a->opt;
    double before = 0, after = 0;
    int64_t n_rounds = 0;
    TOGETHER(a, sid_collision_rate(a, &before));
    DT_TRY(dt_sid_resolve(&a->sid, &o->sinkhorn, &a->points, &a->books[o->levels - 1], a->code, &n_rounds));
    TOGETHER(a, sid_collision_rate(a, &after));
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

static dt_err run(void *self, dt_err parsed)
{
    app *a = self;
    const options *o = &a->opt;
    DT_TRY(ranks_open(&a->comm, &a->phase, o->timeout_s, parsed));
    TOGETHER(a, a->comm.rank == 0 ? check_outputs(o) : DT_OK);
    TOGETHER(a, read_items(a));
    snprintf(a->embeddings, sizeof a->embeddings, "%s%s", o->model ? o->output : o->embeddings,
             o->model ? ".emb.npy" : "");
    if (o->model) DT_TRY(dt_comm_same_file(&a->comm, o->items, a->items.fingerprint));
    if (!o->model) TOGETHER(a, open_embeddings(a));
    /* embeddings are hashed by shape only, because no rank reads all of them */
    if (!o->model)
        DT_TRY(dt_comm_same_file(&a->comm, a->embeddings, dt_mix64((uint64_t)a->rows.n) + (uint64_t)a->rows.width));
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, o->timeout_s));
    TOGETHER(a, open_device(a));
    TOGETHER(a, dt_comm_attach(&a->comm, &a->dev, "auto", true));
    dt_phase_enter(&a->phase, "load", "");
    a->sid = (dt_sid){.comm = &a->comm,
                      .dev = &a->dev,
                      .phase = &a->phase,
                      .block = o->block,
                      .n_codes = o->codes,
                      .n_levels = (int)o->levels,
                      .seed = (uint64_t)o->seed};
    if (o->model) DT_TRY(sid_embed(a, a->embeddings));
    if (o->model) TOGETHER(a, open_embeddings(a));
    DT_TRY(sid_make_codes(a));
    return finish(a);
}

static void close_all(void *self)
{
    app *a = self;
    dt_watchdog_stop(&a->watchdog);
    for (int64_t l = 0; l < a->opt.levels && a->books; l++) dt_sid_book_free(&a->books[l]);
    for (int64_t l = 0; l < a->opt.levels && a->code; l++) free(a->code[l]);
    free(a->books);
    free(a->code);
    dt_sid_points_free(&a->sid, &a->points);
    dt_matrix_file_close(&a->rows);
    dt_sid_items_free(&a->items);
}

int main(int argc, char **argv)
{
    app a = {0};
    tool_start("dtrain-sid");
    const dt_err parsed = sid_parse_options(&a.opt, argc, argv);
    if (parsed == DT_OK && tool_answers(&sid_help, a.opt.help, a.opt.version)) return tool_end(DT_OK);
    tool_wait_fairly(argv);
    return ranks_main(&a.comm, &a.dev, &a, parsed, run, close_all, tool_end);
}
