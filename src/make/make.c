/* make.c - builds datasets from inputs in one pass. A reader cuts the inputs into documents and records,
 * workers encode them, and the writer stores the samples in input order. Output and reported errors
 * therefore do not depend on the number of threads. */
#include "dtrain/io/io.h"
#include "copy_documents.h"
#include "outputs.h"
#include "pipeline.h"
#include "reader.h"
#include "dtrain/io/json.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 1024 };

typedef struct worker {
    dt_encoder *encoder;
    dt_parsed_record record;
} worker;

typedef struct make {
    const dt_make_options *opt;
    dt_make_stats *stats;
    dt_tokenizer *tokenizer;
    dt_chat *chat;
    char why_no_chat[1024];
    dt_recipe recipe;
    dt_rec rec;
    dt_image_form images;
    char *image_text; /* of grids, or wrapped; NULL: the options' token */
    dt_preprocessor preprocessor;
    dt_reader reader;
    const char **inputs; /* [n_inputs] all files that are read, and must not be overwritten */
    int n_inputs;
    dt_outputs outputs;
    worker *workers;
    int n_threads;
} make;

/* ---- encoding and writing chunks --------------------------------------------------------------------------------- */

static dt_err parse_json(const dt_chunk *p, const dt_chunk_item *item, json_t **json)
{
    *json = NULL;
    if (!item->json) return DT_OK;
    if (item->header) return dt_csv_row(json, item->header, p->text.bytes + item->first, item->nbytes);
    DT_TRY(dt_json_parse(json, "", p->text.bytes + item->first, item->nbytes,
                         DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD));
    return dt_open_messages(*json);
}

/* Encode sample `which` of an item, or its text. err: result of parsing. */
static dt_err encode_item(const make *k, worker *w, dt_chunk *p, const dt_chunk_item *item, const json_t *json,
                          dt_err err, int which, dt_sample *s)
{
    if (!item->json)
        return dt_encode_text(&k->recipe, w->encoder, p->text.bytes + item->first, item->nbytes, item->begins, p, s);
    if (err == DT_OK) err = dt_parse_record(&w->record, json, &k->recipe.rules, which);
    if (err == DT_OK) err = dt_encode_record(&k->recipe, w->encoder, &w->record, p, s);
    /* all samples of a row share a hash; otherwise a validation row could be trained on through another task */
    if (k->recipe.rules.rec)
        s->hash =
            item->header ? dt_hash_bytes(p->text.bytes + item->first, item->nbytes) : dt_mix64((uint64_t)item->number);
    return err;
}

/* State of a chunk, to restore after an error. */
typedef struct mark {
    size_t ids[DT_N_SIDES], records, pixels, grids;
} mark;

static mark mark_of(const dt_chunk *p)
{
    return (mark){{p->ids[0].n, p->ids[1].n}, p->records.n, p->pixels.n, p->grids.n};
}

static void go_back(dt_chunk *p, const mark *to)
{
    for (int side = 0; side < DT_N_SIDES; side++) p->ids[side].n = to->ids[side];
    p->records.n = to->records;
    p->pixels.n = to->pixels;
    p->grids.n = to->grids;
}

/* Add the record's position to errors that the record did not cause (no memory, disk). */
static dt_err at_record(dt_err err, const dt_chunk_item *item)
{
    if (item->line == 0 || (err != DT_ERR_MEMORY && err != DT_ERR_FAULT)) return err;
    return dt_error_lead(err, "%s:%" PRId64 ": ", item->path, item->line);
}

/* A record error becomes the sample's problem, and everything else of the sample is removed. Other errors
 * end the chunk. */
static dt_err add_sample(const make *k, worker *w, dt_chunk *p, const dt_chunk_item *item, const json_t *json,
                         dt_err err, int which, bool *bad)
{
    const mark before = mark_of(p);
    dt_sample *s;
    DT_TRY(dt_chunk_sample(p, &s));
    s->item = item;
    err = encode_item(k, w, p, item, json, err, which, s);
    *bad = err == DT_ERR_DATA;
    if (err != DT_OK && !*bad) p->n_samples--; /* incomplete, must not be written */
    if (!*bad) return at_record(err, item);
    s->problem = strdup(dt_error_message());
    dt_error_clear();
    go_back(p, &before);
    for (int side = 0; side < DT_N_SIDES; side++) s->n[side] = 0;
    s->n_record = 0;
    s->n_images = s->n_whole_images = 0;
    return s->problem ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for an error message");
}

/* After the first malformed sample of a record, only that sample is kept, to report the problem. */
static dt_err work_on_item(const make *k, worker *w, dt_chunk *p, const dt_chunk_item *item)
{
    json_t *json;
    bool bad = false;
    const mark before = mark_of(p);
    const int first = p->n_samples;
    const dt_err parsed = parse_json(p, item, &json);
    w->record.n_records = 1;
    w->record.number = item->number;
    w->record.tasks = item->tasks;
    dt_err err = DT_OK;
    for (int which = 0; which < w->record.n_records && err == DT_OK && !bad; which++)
        err = add_sample(k, w, p, item, json, parsed, which, &bad);
    if (err == DT_OK && !bad && item->json && !k->recipe.rules.rec) {
        dt_count_ignored(&p->ignored, &w->record, json, &k->recipe.rules);
        if (!k->opt->images.captions) dt_count_turns(&p->ignored, &w->record, item->path, item->line);
    }
    if (err == DT_OK && bad) {
        p->samples[first] = p->samples[p->n_samples - 1];
        p->n_samples = first + 1;
        go_back(p, &before);
    }
    json_decref(json);
    return err;
}

/* Allocate the mask to the size of the ids. Plain text does not use it, but the writer indexes both in the
 * same way. */
static dt_err level_mask(dt_chunk *p)
{
    DT_RESIZE(p->mask[0], p->ids[0].n_alloc, "out of memory for the mask of %zu tokens", p->ids[0].n_alloc);
    return DT_OK;
}

static void work(void *self, int thread, dt_chunk *p)
{
    const make *k = self;
    dt_error_clear();
    for (int i = 0; i < p->n_items && p->err == DT_OK; i++)
        p->err = work_on_item(k, &k->workers[thread], p, &p->items[i]);
    if (p->err == DT_OK) p->err = level_mask(p);
    if (p->err != DT_OK) snprintf(p->message, sizeof p->message, "%s", dt_error_message());
}

static dt_err read_inputs(void *self, dt_pipeline *pipeline)
{
    make *k = self;
    return dt_reader_run(&k->reader, pipeline);
}

static dt_err write_chunk(void *self, dt_chunk *p)
{
    make *k = self;
    return dt_outputs_write(&k->outputs, p);
}

static dt_err tick(void *self)
{
    const make *k = self;
    DT_CHECK(!k->opt->stop || !atomic_load(k->opt->stop), DT_ERR_STOP, "stopped before %s was complete",
             k->opt->output);
    if (k->opt->progress) k->opt->progress(k->opt->progress_self, k->stats);
    return DT_OK;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static dt_err check_options(const dt_make_options *o)
{
    DT_CHECK(o->n_inputs > 0, DT_ERR_USAGE, "expected at least one input file");
    DT_CHECK(o->documents != DT_DOCUMENTS_SEPARATOR || (o->separator && o->separator[0]), DT_ERR_USAGE,
             "separator: expected a text, found nothing");
    DT_CHECK(!o->separator || strlen(o->separator) <= 4096, DT_ERR_USAGE, "separator: expected at most 4096 bytes");
    DT_CHECK(o->validation ? o->validation_fraction > 0 && o->validation_fraction < 1 : o->validation_fraction == 0,
             DT_ERR_USAGE, "expected both a validation file and a fraction above 0 and below 1, found %s and %g",
             o->validation ? o->validation : "no file", o->validation_fraction);
    DT_CHECK(o->max_length >= 0 && o->max_length <= INT32_MAX, DT_ERR_USAGE,
             "max length: expected a number from 0 to %d, found %" PRId64, INT32_MAX, o->max_length);
    DT_CHECK(!o->turn_budgets || o->max_length > 0, DT_ERR_USAGE,
             "turn budgets: expected --max-length, which they divide");
    const dt_image_options *i = &o->images;
    DT_CHECK(i->preprocessor || (!i->folder && !i->captions), DT_ERR_USAGE,
             "an image folder or captions need images: expected a preprocessor (--images)");
    DT_CHECK(!i->preprocessor || (i->token && i->token[0]), DT_ERR_USAGE,
             "image token: expected the text of a token, found nothing");
    DT_CHECK(!i->preprocessor || (i->n_tokens >= 1 && i->n_tokens <= DT_MAX_IMAGE_TOKENS), DT_ERR_USAGE,
             "image tokens: expected 1 to %d tokens per image, found %" PRId64, DT_MAX_IMAGE_TOKENS, i->n_tokens);
    DT_CHECK(!i->preprocessor || (!o->turn_budgets && o->format != DT_INPUT_MINIONEREC), DT_ERR_USAGE,
             "images cannot be combined with turn budgets, which would cut them, or with format minionerec");
    DT_CHECK(o->n_threads >= 0 && o->n_threads <= MAX_THREADS, DT_ERR_USAGE, "threads: expected 0 to %d, found %d",
             MAX_THREADS, o->n_threads);
    DT_CHECK(o->n_shards == 0 || o->shard_nbytes == 0, DT_ERR_USAGE,
             "expected a number of shards or a shard size, found both");
    DT_CHECK(o->n_shards >= 0 && o->n_shards <= 99999, DT_ERR_USAGE, "shards: expected 1 to 99999, found %" PRId64,
             o->n_shards);
    return DT_OK;
}

/* ---- opening and running ----------------------------------------------------------------------------------------- */

/* A missing chat template is an error only when the first chat is met. */
static dt_err open_chat(make *k)
{
    const dt_err err = dt_chat_open(&k->chat, k->opt->chat_template, k->tokenizer);
    if (err != DT_ERR_USAGE || strcmp(k->opt->chat_template, "auto") != 0) return err;
    snprintf(k->why_no_chat, sizeof k->why_no_chat, "%s", dt_error_message());
    k->recipe.rules.why_no_chat = k->why_no_chat;
    dt_error_clear();
    return DT_OK;
}

static dt_err list_inputs(make *k)
{
    const dt_make_options *o = k->opt;
    const char *const others[] = {o->rec.index, o->rec.items, o->chat_template, o->tokenizer, o->images.preprocessor};
    enum { N_OTHERS = sizeof others / sizeof others[0] };
    DT_ALLOC(k->inputs, k->reader.n_paths + N_OTHERS, "out of memory for the names of inputs");
    for (int i = 0; i < k->reader.n_paths; i++) k->inputs[k->n_inputs++] = k->reader.paths[i];
    for (int i = 0; i < N_OTHERS; i++)
        if (others[i]) k->inputs[k->n_inputs++] = others[i];
    return DT_OK;
}

/* Files that are read from a model's folder are inputs. Others in it, such as an earlier dataset, may be
 * overwritten. */
static dt_err check_output(const make *k, const char *path)
{
    static const char *const read[] = {"config.json",           "tokenizer.json",      "tokenizer.model",
                                       "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json",
                                       "processor_config.json"};
    const char *const folders[] = {k->opt->tokenizer, k->opt->images.preprocessor};
    char file[PATH_MAX];
    DT_TRY(dt_check_output(path, k->opt->force, k->inputs, k->n_inputs));
    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; f++)
        for (size_t i = 0; folders[f] && i < sizeof read / sizeof read[0]; i++)
            if (dt_is_in(file, folders[f], read[i]))
                DT_TRY(dt_check_output(path, true, (const char *const[]){file}, 1));
    return DT_OK;
}

/* Check output paths before anything is read. Names of shards depend on their number, so the commit checks
 * again. Images are checked when their names are known. */
static dt_err check_outputs(const make *k)
{
    const dt_make_options *o = k->opt;
    DT_TRY(dt_outputs_differ(o));
    if (!o->n_shards && !o->shard_nbytes) DT_TRY(check_output(k, o->output));
    if (o->rec.catalogue) DT_TRY(check_output(k, o->rec.catalogue));
    return o->validation ? check_output(k, o->validation) : DT_OK;
}

/* Open the templates that render records: of chats, or of recommendation data. */
static dt_err open_templates(make *k)
{
    if (k->opt->format != DT_INPUT_MINIONEREC) return open_chat(k);
    k->recipe.rules.rec = &k->rec;
    return dt_rec_open(&k->rec, k->opt, k->tokenizer);
}

/* Id of the image placeholder, which must encode to exactly one token. */
static dt_err find_placeholder(const make *k, int32_t *id)
{
    const dt_image_options *o = &k->opt->images;
    const dt_span span = {.text = o->token, .nbytes = strlen(o->token)};
    dt_ids ids = {0};
    dt_err err = dt_encode(k->workers[0].encoder, &span, 1, 0, &ids, NULL);
    const bool found = err == DT_OK && ids.n == 1 && ids.id[0] == dt_tokenizer_find(k->tokenizer, o->token);
    if (found) *id = ids.id[0];
    if (err == DT_OK && !found)
        err = dt_fail(DT_ERR_USAGE,
                      "the tokenizer %s has no token \"%s\" for images: add it to the tokenizer and its model with "
                      "dtrain-convert --add-tokens FILE (one line: %s), or name another token with --image-token",
                      k->opt->tokenizer, o->token, o->token);
    free(ids.id);
    return err;
}

/* The text of an image that is a grid: the tokens before and after it, and one placeholder between them. */
static dt_err name_image(make *k)
{
    const dt_image_options *o = &k->opt->images;
    const int32_t ids[3] = {o->around[0], o->token_id, o->around[1]};
    size_t n;
    k->images.token = o->token_id;
    k->image_text = dt_decode(k->tokenizer, ids, 3, false, &n);
    DT_CHECK(k->image_text, DT_ERR_MEMORY, "out of memory for the name of an image");
    DT_CHECK(n > 0 && dt_tokenizer_token(k->tokenizer, ids[1]), DT_ERR_DATA,
             "%s: the tokenizer lacks token %" PRId32 ", the placeholder for images", k->opt->tokenizer, ids[1]);
    return DT_OK;
}

/* In texts, images are wrapped in the tokens around them. */
static dt_err wrap_images(make *k)
{
    const dt_image_options *o = &k->opt->images;
    const dt_image_wrap wrap = {o->token_id, {o->around[0], o->around[1]}, {o->around_name[0], o->around_name[1]}};
    k->images.token = o->token_id;
    for (int i = 0; i < k->n_threads; i++) {
        free(k->image_text); /* every encoder gives the same text */
        k->image_text = NULL;
        DT_TRY(dt_error_prefix(dt_wrap_images(k->workers[i].encoder, k->tokenizer, &wrap, &k->image_text),
                               "%s: ", k->opt->tokenizer));
    }
    return DT_OK;
}

static dt_err open_images(make *k)
{
    const dt_image_options *o = &k->opt->images;
    dt_preprocessor *p = &k->preprocessor;
    if (!o->preprocessor) return DT_OK;
    DT_TRY(dt_preprocessor_read(o->preprocessor, p));
    DT_CHECK(p->cell || !o->grids, DT_ERR_DATA,
             "%s: image_processor_type: expected that of the model, because its images have different sizes",
             o->preprocessor);
    DT_CHECK(!p->cell || o->grids, DT_ERR_USAGE,
             "%s: images of different sizes need the model: expected its config.json in the directory of --images or "
             "--tokenizer",
             o->preprocessor);
    DT_CHECK(!p->cell || (p->max_tiles > 0) == o->wrapped, DT_ERR_DATA,
             "%s: image_processor_type: expected that of the model", o->preprocessor);
    DT_CHECK(p->out_height == p->out_width && p->out_width <= DT_MAX_IMAGE_SIZE, DT_ERR_DATA,
             "%s: expected square images of at most %d pixels per side, found %d x %d", o->preprocessor,
             DT_MAX_IMAGE_SIZE, p->out_height, p->out_width);
    DT_CHECK(o->size <= 0 || o->size == p->out_width, DT_ERR_DATA,
             "%s: produces images of %d pixels per side, but the model's tower takes %" PRId64, o->preprocessor,
             p->out_width, o->size);
    k->images =
        (dt_image_form){.size = p->out_width, .n_tokens = o->n_tokens, .grids = p->cell > 0, .preprocessor = p->json};
    DT_TRY(o->wrapped ? wrap_images(k) : p->cell ? name_image(k) : find_placeholder(k, &k->images.token));
    DT_CHECK(o->token_id < 0 || o->token_id == k->images.token, DT_ERR_DATA,
             "%s: \"%s\" has the id %" PRId32 " in this tokenizer, but the model's config.json says %" PRId32,
             k->opt->tokenizer, o->token, k->images.token, o->token_id);
    k->recipe.images = &k->images;
    k->recipe.preprocessor = p;
    k->recipe.rules.image_text = k->image_text ? k->image_text : o->token;
    k->recipe.rules.image_alias = k->image_text ? o->token : NULL;
    k->recipe.rules.image_line = !k->image_text || o->image_line;
    return DT_OK;
}

static dt_err open_all(make *k)
{
    const dt_make_options *o = k->opt;
    DT_TRY(check_options(o));
    k->recipe.rules.opt = o;
    k->recipe.max_length = o->max_length;
    k->recipe.append_eos = o->append_eos;
    DT_TRY(dt_tokenizer_open(&k->tokenizer, o->tokenizer));
    DT_TRY(open_templates(k));
    k->recipe.tokenizer = k->tokenizer;
    k->recipe.rules.chat = k->chat;
    DT_TRY(dt_wrap_probe(&k->recipe.rules.wrap, k->tokenizer));
    k->n_threads = o->n_threads ? o->n_threads : (int)dt_min_i64(dt_cores_own(), MAX_THREADS);
    DT_ALLOC(k->workers, k->n_threads, "out of memory for %d threads", k->n_threads);
    for (int i = 0; i < k->n_threads; i++) DT_TRY(dt_encoder_open(&k->workers[i].encoder, k->tokenizer));
    DT_TRY(open_images(k));
    if (k->chat && k->recipe.rules.image_text) dt_chat_for_images(k->chat);
    DT_TRY(dt_reader_open(&k->reader, o, k->tokenizer, k->recipe.rules.rec));
    if (k->recipe.images)
        k->reader.chunk_items =
            k->images.grids
                ? DT_CHUNK_GRIDS
                : (int)dt_max_i64(
                      1, dt_min_i64(DT_CHUNK_ITEMS, DT_CHUNK_PIXELS / (int64_t)dt_image_form_nbytes(&k->images)));
    DT_TRY(list_inputs(k));
    DT_TRY(check_outputs(k));
    k->stats->nbytes_total = k->reader.nbytes_total;
    k->outputs =
        (dt_outputs){.opt = o, .recipe = &k->recipe, .stats = k->stats, .inputs = k->inputs, .n_inputs = k->n_inputs};
    return DT_OK;
}

/* Their documents end as their writer ended them. */
static dt_err copy_datasets(make *k)
{
    k->recipe.append_eos = false;
    return dt_copy_documents(&(dt_copy_job){
        .outputs = &k->outputs, .paths = k->reader.paths, .n_paths = k->reader.n_paths, .tick = tick, .self = k});
}

static dt_err encode_inputs(make *k)
{
    const dt_pipeline_jobs jobs = {.read = read_inputs, .work = work, .write = write_chunk, .tick = tick, .self = k};
    return dt_pipeline_run(&jobs, k->n_threads);
}

static dt_err run(make *k)
{
    DT_TRY(open_all(k));
    const bool datasets =
        k->opt->format == DT_INPUT_AUTO && k->reader.n_paths > 0 && dt_dataset_is_foreign(k->reader.paths[0]);
    DT_TRY(datasets ? copy_datasets(k) : encode_inputs(k));
    DT_TRY(dt_outputs_commit(&k->outputs));
    return k->opt->rec.catalogue ? dt_rec_items_write(&k->rec.items, k->opt->rec.catalogue) : DT_OK;
}

dt_err dt_make_datasets(const dt_make_options *opt, dt_make_stats *stats)
{
    *stats = (dt_make_stats){0};
    json_object_seed(0); /* must precede the threads */
    make k = {.opt = opt, .stats = stats};
    const dt_err err = run(&k);
    dt_outputs_free(&k.outputs);
    free(k.inputs);
    free(k.image_text);
    dt_reader_close(&k.reader);
    for (int i = 0; k.workers && i < k.n_threads; i++) {
        dt_encoder_close(k.workers[i].encoder);
        dt_parsed_record_free(&k.workers[i].record);
    }
    free(k.workers);
    dt_chat_close(k.chat);
    dt_rec_close(&k.rec);
    dt_preprocessor_free(&k.preprocessor);
    dt_tokenizer_close(k.tokenizer);
    return err;
}
