/* embed_items.c - embeds the items' texts with a language model.
 *
 * Rows are written directly to their file offsets, so that no rank holds more than one pass. A hidden
 * state is bit-identical regardless of the rest of its pass, and means are summed in token order. The file
 * therefore does not depend on the number of ranks. */
#include "sid_app.h"

#include "dtrain/config/config.h"
#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/tokenizer/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct embedding {
    dt_frozen_model frozen;
    dt_model *model;
    dt_tokenizer *tok;
    dt_encoder *encoder;
    dt_batch batch;
    dt_ids ids;
    char **fields; /* [n_fields] fields of an item's text */
    int n_fields;
    int64_t max_length, width;
    int64_t *item; /* [max_seq] items of the pass */
    float *hidden; /* [max_tok, width] */
    float *mean;   /* [width] */
    char part[PATH_MAX];
    int fd;
} embedding;

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static dt_err encode(app *a, embedding *e, int64_t i)
{
    char *text = dt_sid_item_text(&a->items, i, (const char *const *)e->fields, e->n_fields);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for the text of item %s", a->items.id[i]);
    const dt_span span = {.text = text, .nbytes = strlen(text)};
    e->ids.n = 0;
    dt_err err = text[0] ? dt_encode(e->encoder, &span, 1, DT_ENCODE_WRAP, &e->ids, NULL)
                         : dt_fail(DT_ERR_DATA, "%s: item %s has no text in %s; choose other fields with --fields",
                                   a->opt.items, a->items.id[i], a->opt.fields);
    free(text);
    if (err == DT_OK && e->ids.n == 0)
        err = dt_fail(DT_ERR_DATA, "%s: item %s: the text has no tokens", a->opt.items, a->items.id[i]);
    if (e->ids.n > (size_t)e->max_length) e->ids.n = (size_t)e->max_length;
    return err;
}

static dt_err write_means(app *a, embedding *e)
{
    const dt_batch *b = &e->batch;
    const size_t nbytes = (size_t)e->width * sizeof *e->mean;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t first = b->seq_start[s], end = b->seq_start[s + 1];
        for (int64_t c = 0; c < e->width; c++) {
            double sum = 0;
            for (int32_t t = first; t < end; t++) sum += e->hidden[t * e->width + c];
            e->mean[c] = (float)(sum / (end - first));
            DT_CHECK(isfinite(e->mean[c]), DT_ERR_NONFINITE, "%s: the embedding of item %s is not finite", a->opt.model,
                     a->items.id[e->item[s]]);
        }
        DT_TRY(dt_write_at(e->fd, e->part, DT_NPY_HEADER + e->item[s] * (int64_t)nbytes, e->mean, nbytes));
    }
    return DT_OK;
}

static dt_err run_pass(app *a, embedding *e)
{
    if (e->batch.n_seq == 0) return DT_OK;
    dt_phase_enter(&a->phase, "embed", "");
    DT_TRY(dt_fault("sid.embed"));
    dt_batch_finish(&e->batch);
    DT_TRY(dt_model_forward(e->model, &e->batch, false, 0));
    DT_TRY(dt_model_hidden_states(e->model, &e->batch, e->hidden));
    DT_TRY(write_means(a, e));
    dt_batch_clear(&e->batch);
    return DT_OK;
}

/* Rank r processes items r, r + nranks, ...: round robin balances texts of different lengths. */
static dt_err all_passes(app *a, embedding *e)
{
    dt_batch *b = &e->batch;
    dt_batch_clear(b);
    for (int64_t i = a->comm.rank; i < a->items.n; i += a->comm.nranks) {
        DT_TRY(encode(a, e, i));
        if (b->n_seq == b->max_seq || b->n_tok + (int64_t)e->ids.n > b->max_tok) DT_TRY(run_pass(a, e));
        e->item[b->n_seq] = i;
        dt_batch_append(b, e->ids.id, (int32_t)e->ids.n, (int32_t)e->ids.n + 1);
    }
    return run_pass(a, e);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static dt_err open_text(app *a, embedding *e)
{
    const char *name = a->opt.tokenizer ? a->opt.tokenizer : e->frozen.from.tokenizer;
    DT_TRY(dt_config_split(a->opt.fields, &e->fields, &e->n_fields));
    for (int k = 0; k < e->n_fields; k++)
        if (a->comm.rank == 0 && !dt_sid_items_have(&a->items, e->fields[k]))
            DT_WARN("--fields: no item of %s has a field `%s`", a->opt.items, e->fields[k]);
    DT_CHECK(name, DT_ERR_USAGE, "%s does not name its tokenizer; choose one with --tokenizer", a->opt.model);
    DT_TRY(dt_tokenizer_open(&e->tok, name));
    DT_CHECK(dt_tokenizer_get_info(e->tok)->vocab_size <= e->frozen.mc.vocab_size, DT_ERR_DATA,
             "%s: the model has %" PRId64 " tokens, but its tokenizer (%s) has %" PRId32, a->opt.model,
             e->frozen.mc.vocab_size, name, dt_tokenizer_get_info(e->tok)->vocab_size);
    return dt_encoder_open(&e->encoder, e->tok);
}

static dt_err open_model(app *a, embedding *e)
{
    enum { MAX_SEQ = 256 };
    const dt_frozen_model *f = &e->frozen;
    const int32_t max_tok = (int32_t)dt_max_i64(a->opt.pass, e->max_length);
    const dt_model_options mo = {.dtype = a->opt.dtype,
                                 .grad_dtype = a->opt.dtype,
                                 .max_tok = max_tok,
                                 .max_seq = MAX_SEQ,
                                 .max_pos = (int32_t)e->max_length,
                                 .batch_invariant = true};
    e->width = f->mc.hidden_size;
    DT_ALLOC(e->item, MAX_SEQ, "out of memory for hidden states of %d tokens", max_tok);
    DT_ALLOC(e->hidden, max_tok * e->width, "out of memory for hidden states of %d tokens", max_tok);
    DT_ALLOC(e->mean, e->width, "out of memory for hidden states of %d tokens", max_tok);
    DT_TRY(dt_batch_alloc(&e->batch, max_tok, MAX_SEQ, &a->ledger));
    return dt_model_open(&e->model, &f->mc, &mo, f->units, f->n_units, &a->dev, &f->source, NULL, &a->phase);
}

/* Create the file at its final size before other ranks write to it. */
static dt_err create_part(const app *a, embedding *e)
{
    char header[DT_NPY_HEADER];
    const int64_t nbytes = DT_NPY_HEADER + a->items.n * e->width * (int64_t)sizeof(float);
    dt_npy_header(a->items.n, e->width, header);
    DT_TRY(dt_create_file(e->part, &e->fd));
    DT_TRY(dt_reserve_blocks(e->fd, e->part, nbytes, "the embeddings"));
    return dt_write_at(e->fd, e->part, 0, header, sizeof header);
}

static dt_err open_part(embedding *e)
{
    e->fd = open(e->part, O_WRONLY | O_CLOEXEC);
    DT_CHECK_ERRNO(e->fd >= 0, DT_ERR_WRITE, e->part, "cannot write");
    return DT_OK;
}

static dt_err close_part(embedding *e)
{
    const bool ok = fsync(e->fd) == 0;
    const dt_err err = ok ? DT_OK : dt_fail_errno(DT_ERR_WRITE, e->part, "cannot write");
    close(e->fd);
    e->fd = -1;
    return err;
}

static dt_err embed(app *a, embedding *e, const char *path)
{
    const bool first = a->comm.rank == 0;
    TOGETHER(a, dt_frozen_model_describe(&e->frozen, a->opt.model, 0));
    e->max_length = dt_min_i64(a->opt.max_length, dt_model_max_length(&e->frozen.mc));
    TOGETHER(a, open_text(a, e));
    const dt_zero_options kept = {.stage = 0};
    TOGETHER(a, dt_frozen_model_load(&e->frozen, &kept, a->opt.dtype, &a->comm, &a->dev, NULL, &a->phase));
    TOGETHER(a, open_model(a, e));
    TOGETHER(a, first ? create_part(a, e) : DT_OK);
    TOGETHER(a, first ? DT_OK : open_part(e));
    TOGETHER(a, all_passes(a, e));
    TOGETHER(a, close_part(e));
    TOGETHER(a, first ? dt_rename_durable(e->part, path) : DT_OK);
    DT_INFO("wrote %s: %" PRId64 " embeddings of %" PRId64 " values", path, a->items.n, e->width);
    return DT_OK;
}

dt_err sid_embed(app *a, const char *path)
{
    embedding e = {.fd = -1};
    DT_CHECK((size_t)snprintf(e.part, sizeof e.part, "%s.part", path) < sizeof e.part, DT_ERR_USAGE,
             "-o: the name is too long");
    const dt_err err = embed(a, &e, path);
    if (e.fd >= 0) close(e.fd);
    if (err != DT_OK && a->comm.rank == 0) dt_remove_part(e.part);
    dt_model_close(e.model);
    dt_frozen_model_close(&e.frozen);
    dt_encoder_close(e.encoder);
    dt_tokenizer_close(e.tok);
    dt_batch_free(&e.batch, &a->ledger);
    dt_list_free(e.fields, e.n_fields);
    free(e.ids.id);
    free(e.item);
    free(e.hidden);
    free(e.mean);
    return err;
}
