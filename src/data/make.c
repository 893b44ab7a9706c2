/* make.c - inputs to datasets, in one pass. The kind is known at the first document, and the files are begun then. A document goes to the training or the
 * validation file by a hash of what it says, so that running again, or over more files, never moves one across, and equal ones stay together.
 *
 * Pieces of a record are tokenized one by one: the boundary between prompt and completion is then a boundary of tokens. */
#include "dtrain/dataset.h"
#include "dtrain/tokenizer.h"
#include "input.h"
#include "segments.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HASHED_NBYTES = 1 << 16, WARN_BAD = 3, PROGRESS_EVERY = 256 };

typedef struct make {
    const dt_make_options *opt;
    dt_make_stats *stats;
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    const dt_chat_template *form;
    bool kind_known;
    dt_dataset_writer *train, *validation;
    const char *path; /* of the input */
    dt_segments segments;
    dt_ids ids; /* of the document or the piece of it at hand */
    uint8_t *mask;
    size_t mask_alloc;
    dt_dataset_writer *to; /* of a document that comes in pieces, NULL between documents */
    int64_t document_len;
} make;

/* ---- outputs ------------------------------------------------------------------------------------------------------------------ */

static dt_err begin_outputs(make *k, dt_dataset_kind kind)
{
    const dt_make_options *o = k->opt;
    k->kind_known = true;
    k->stats->kind = kind;
    const bool weights = o->weight_key != NULL;
    DT_CHECK(!weights || kind == DT_DATASET_SFT, DT_ERR_USAGE,
             "a weight key is for datasets of kind sft, these inputs make kind tokens");
    const int64_t vocab = dt_tokenizer_get_info(k->tokenizer)->vocab_size;
    DT_TRY(dt_dataset_create(&k->train, o->output, kind, vocab, dt_tokenizer_get_info(k->tokenizer)->name, weights));
    return o->validation
               ? dt_dataset_create(&k->validation, o->validation, kind, vocab, dt_tokenizer_get_info(k->tokenizer)->name, weights)
               : DT_OK;
}

static uint64_t hash_bytes(const void *data, size_t n)
{
    const char *p = data;
    uint64_t h = dt_mix64(n);
    for (; n > 0; p += n < 8 ? n : 8, n -= n < 8 ? n : 8) {
        uint64_t word = 0;
        memcpy(&word, p, n < 8 ? n : 8);
        h = dt_mix64(h ^ word);
    }
    return h;
}

static dt_dataset_writer *choose(const make *k, uint64_t hash)
{
    return k->validation && (double)(hash >> 11) * 0x1p-53 < k->opt->validation_fraction ? k->validation : k->train;
}

static dt_err end_document(make *k, dt_dataset_writer *to, int64_t len, float weight)
{
    const bool held_out = to == k->validation;
    DT_TRY(dt_dataset_end_document(to, weight));
    *(held_out ? &k->stats->n_validation_tokens : &k->stats->n_tokens) += len;
    *(held_out ? &k->stats->n_validation_documents : &k->stats->n_documents) += 1;
    if (k->opt->progress && (k->stats->n_documents + k->stats->n_validation_documents) % PROGRESS_EVERY == 0)
        k->opt->progress(k->opt->progress_self, k->stats);
    return DT_OK;
}

static dt_err encode(make *k, const char *text, size_t nbytes)
{
    return dt_encode(k->encoder, &(dt_span){.text = text, .nbytes = nbytes}, 1, DT_ENCODE_GOES_ON, &k->ids, NULL);
}

/* ids for one more, mask as long as ids. */
static dt_err reserve(make *k)
{
    DT_TRY(dt_ids_reserve(&k->ids, 1));
    if (k->mask_alloc >= k->ids.n_alloc) return DT_OK;
    uint8_t *mask = realloc(k->mask, k->ids.n_alloc);
    DT_CHECK(mask, DT_ERR_MEMORY, "no memory for a record of %zu tokens", k->ids.n_alloc);
    k->mask = mask;
    k->mask_alloc = k->ids.n_alloc;
    return DT_OK;
}

/* ---- plain text ----------------------------------------------------------------------------------------------------------------- */

static dt_err add_text_ids(make *k)
{
    int64_t n = (int64_t)k->ids.n;
    const int64_t room = k->opt->max_length > 0 ? k->opt->max_length - k->document_len : INT64_MAX;
    const bool cut = n > room;
    if (cut) n = room > 0 ? room : 0;
    if (cut && k->document_len <= k->opt->max_length) k->stats->n_truncated++;
    DT_TRY(reserve(k));
    if (k->stats->kind == DT_DATASET_SFT) memset(k->mask, 1, (size_t)n);
    if (k->stats->kind == DT_DATASET_SFT && k->document_len == 0 && n > 0) k->mask[0] = 0;
    DT_TRY(dt_dataset_add(k->to, k->ids.id, k->stats->kind == DT_DATASET_SFT ? k->mask : NULL, n));
    k->document_len += n + cut; /* past max_length: cut has been counted, and no end of text follows */
    return DT_OK;
}

/* The first piece decides where the document goes: pieces have 64 KiB unless the document is shorter. */
static dt_err take_text(void *self, const char *text, size_t nbytes, bool last)
{
    make *k = self;
    if (!k->kind_known) DT_TRY(begin_outputs(k, strcmp(k->opt->kind, "sft") == 0 ? DT_DATASET_SFT : DT_DATASET_TOKENS));
    DT_CHECK(k->stats->kind == DT_DATASET_TOKENS || strcmp(k->opt->kind, "auto") != 0, DT_ERR_DATA,
             "%s: plain text among sft records: give --kind tokens or --kind sft to have both made one", k->path);
    if (!k->to) {
        k->to = choose(k, hash_bytes(text, nbytes < HASHED_NBYTES ? nbytes : HASHED_NBYTES));
        k->document_len = 0;
    }
    k->ids.n = 0;
    DT_TRY(encode(k, text, nbytes));
    DT_TRY(add_text_ids(k));
    if (k->opt->progress && !last) k->opt->progress(k->opt->progress_self, k->stats);
    if (!last) return DT_OK;
    if (k->opt->append_eos && (k->opt->max_length == 0 || k->document_len <= k->opt->max_length)) {
        k->ids.n = 0;
        DT_TRY(reserve(k));
        k->ids.id[k->ids.n++] = dt_tokenizer_get_info(k->tokenizer)->eos;
        DT_TRY(add_text_ids(k));
    }
    dt_dataset_writer *to = k->to;
    k->to = NULL;
    const int64_t most = k->opt->max_length;
    return end_document(k, to, most > 0 && k->document_len > most ? most : k->document_len, 1);
}

/* ---- records -------------------------------------------------------------------------------------------------------------------- */

static dt_err encode_segments(make *k)
{
    k->ids.n = 0;
    for (int i = 0; i < k->segments.n; i++) {
        const dt_segment *s = &k->segments.items[i];
        const size_t from = k->ids.n;
        DT_TRY(encode(k, s->text, s->nbytes));
        DT_TRY(reserve(k));
        if (s->eos) k->ids.id[k->ids.n++] = dt_tokenizer_get_info(k->tokenizer)->eos;
        memset(k->mask + from, s->target || k->opt->all_targets, k->ids.n - from);
    }
    if (k->ids.n > 0) k->mask[0] = 0; /* token 0 is never a target */
    if (k->opt->max_length > 0 && k->ids.n > (size_t)k->opt->max_length) {
        k->ids.n = (size_t)k->opt->max_length;
        k->stats->n_truncated++;
    }
    return DT_OK;
}

static dt_err record_weight(const make *k, const json_t *record, float *weight)
{
    *weight = 1;
    const json_t *w = k->opt->weight_key ? json_object_get(record, k->opt->weight_key) : NULL;
    if (!w) return DT_OK;
    DT_CHECK(json_is_number(w) && json_number_value(w) >= 0 && json_number_value(w) <= 1e6, DT_ERR_DATA,
             "%s: expected a weight from 0 to 1e6", k->opt->weight_key);
    *weight = (float)json_number_value(w);
    return DT_OK;
}

static dt_err store_record(make *k, float weight)
{
    const bool sft = k->stats->kind == DT_DATASET_SFT;
    if (sft && (k->ids.n == 0 || !memchr(k->mask, 1, k->ids.n))) {
        k->stats->n_dropped++;
        return DT_OK;
    }
    dt_dataset_writer *to = choose(k, hash_bytes(k->ids.id, k->ids.n * sizeof *k->ids.id));
    DT_TRY(dt_dataset_add(to, k->ids.id, sft ? k->mask : NULL, (int64_t)k->ids.n));
    return end_document(k, to, (int64_t)k->ids.n, weight);
}

/* What can be wrong with a record itself: nothing has been written when it is. */
static dt_err read_record(make *k, const json_t *record, float *weight)
{
    DT_CHECK(json_is_object(record), DT_ERR_DATA, "expected a JSON object");
    DT_TRY(dt_record_segments(record, k->form, k->opt->append_eos, &k->segments));
    DT_TRY(record_weight(k, record, weight));
    const bool text = dt_record_is_text(record), automatic = strcmp(k->opt->kind, "auto") == 0;
    if (!k->kind_known)
        DT_TRY(begin_outputs(k, automatic ? (text ? DT_DATASET_TOKENS : DT_DATASET_SFT)
                                          : (strcmp(k->opt->kind, "sft") == 0 ? DT_DATASET_SFT : DT_DATASET_TOKENS)));
    DT_CHECK(!automatic || text == (k->stats->kind == DT_DATASET_TOKENS), DT_ERR_DATA,
             "a record %s, but the first document made the dataset one of kind %s: give --kind tokens or --kind sft to have both "
             "made one",
             text ? "of plain text" : "for sft", dt_dataset_kind_name(k->stats->kind));
    return DT_OK;
}

/* A malformed record ends the run, or is counted. Errors that are not the record's always end it. */
static dt_err bad_record(make *k, int64_t line, dt_err err)
{
    if (err != DT_ERR_DATA) return err;
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", dt_error_message());
    dt_error_clear();
    if (!k->opt->skip_bad) return dt_fail(DT_ERR_DATA, "%s:%" PRId64 ": %s", k->path, line, reason);
    if (k->stats->n_bad++ < WARN_BAD) DT_WARN("%s:%" PRId64 ": left out: %s", k->path, line, reason);
    return DT_OK;
}

static dt_err take_record(void *self, const char *text, size_t nbytes, int64_t line)
{
    make *k = self;
    json_error_t problem;
    json_t *record = json_loadb(text, nbytes, JSON_ALLOW_NUL, &problem);
    float weight = 1;
    dt_err err = record ? read_record(k, record, &weight)
                        : dt_fail(DT_ERR_DATA, "not valid JSON: %s (line %d, column %d of the record)", problem.text,
                                  problem.line, problem.column);
    if (err != DT_OK) {
        json_decref(record);
        return bad_record(k, line, err);
    }
    err = encode_segments(k);
    json_decref(record);
    return err == DT_OK ? store_record(k, weight) : err;
}

/* ---- inputs --------------------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static bool is_json_name(const char *path)
{
    return ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".json");
}

static dt_err read_file(make *k, const char *path)
{
    const dt_make_options *o = k->opt;
    dt_input in;
    k->path = strcmp(path, "-") == 0 ? "standard input" : path;
    dt_err err = dt_input_open(&in, path, &k->stats->nbytes_read);
    const bool json = strcmp(o->format, "json") == 0 || (strcmp(o->format, "auto") == 0 && is_json_name(path));
    if (err == DT_OK)
        err = json ? dt_input_each_record(&in, take_record, k)
                   : dt_input_each_document(&in, o->documents, o->separator, take_text, k);
    dt_input_close(&in);
    return err;
}

static int wanted(const struct dirent *e)
{
    return e->d_name[0] != '.' && (is_json_name(e->d_name) || ends_with(e->d_name, ".txt"));
}

/* What fn does to one file, it does to every file of a folder, by name. */
static dt_err each_file(make *k, const char *path, dt_err (*fn)(make *, const char *))
{
    struct stat st;
    if (strcmp(path, "-") == 0 || stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return fn(k, path);
    struct dirent **names;
    const int n = scandir(path, &names, wanted, alphasort);
    DT_CHECK(n >= 0, DT_ERR_DATA, "%s: the folder cannot be read: %s", path, strerror(errno));
    dt_err err = n > 0 ? DT_OK : dt_fail(DT_ERR_DATA, "%s: no .txt, .jsonl, .ndjson or .json file in the folder", path);
    for (int i = 0; i < n; i++) {
        char *whole = NULL;
        if (err == DT_OK && asprintf(&whole, "%s/%s", path, names[i]->d_name) < 0)
            err = dt_fail(DT_ERR_MEMORY, "no memory for a file name");
        if (err == DT_OK) err = fn(k, whole);
        if (whole) free(whole);
        free(names[i]);
    }
    free(names);
    return err;
}

static dt_err add_size(make *k, const char *path)
{
    struct stat st = {0}; /* of standard input: no regular file */
    if (strcmp(path, "-") != 0) DT_CHECK(stat(path, &st) == 0, DT_ERR_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        k->stats->nbytes_total = -1;
    else if (k->stats->nbytes_total >= 0)
        k->stats->nbytes_total += (int64_t)st.st_size;
    return DT_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------------------- */

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(word, *words) == 0) return true;
    return false;
}

static dt_err check_options(const dt_make_options *o)
{
    DT_CHECK(o->n_inputs > 0, DT_ERR_USAGE, "expected at least one input file");
    DT_CHECK(is_one_of(o->kind, (const char *const[]){"auto", "tokens", "sft", NULL}), DT_ERR_USAGE,
             "kind: expected auto, tokens or sft, found %s", o->kind);
    DT_CHECK(is_one_of(o->format, (const char *const[]){"auto", "text", "json", NULL}), DT_ERR_USAGE,
             "format: expected auto, text or json, found %s", o->format);
    DT_CHECK(is_one_of(o->documents, (const char *const[]){"files", "lines", "paragraphs", "separator", NULL}), DT_ERR_USAGE,
             "documents: expected files, lines or paragraphs, found %s", o->documents);
    DT_CHECK(strcmp(o->documents, "separator") != 0 || (o->separator && o->separator[0]), DT_ERR_USAGE,
             "separator: expected a text, found nothing");
    DT_CHECK(o->validation ? o->validation_fraction > 0 && o->validation_fraction < 1 : o->validation_fraction == 0, DT_ERR_USAGE,
             "a validation file and a validation fraction above 0 and below 1 go together, found %s and %g",
             o->validation ? o->validation : "no file", o->validation_fraction);
    DT_CHECK(!o->validation || strcmp(o->validation, o->output) != 0, DT_ERR_USAGE,
             "%s: the validation file must be another file than the output", o->output);
    DT_CHECK(o->max_length >= 0, DT_ERR_USAGE, "max length: expected 0 or more, found %" PRId64, o->max_length);
    return DT_OK;
}

static dt_err check_result(const make *k)
{
    const dt_make_stats *s = k->stats;
    DT_CHECK(s->n_documents + s->n_validation_documents > 0, DT_ERR_DATA, "%s%s: no document in the inputs%s", k->opt->inputs[0],
             k->opt->n_inputs > 1 ? " ..." : "",
             s->n_dropped ? " has a target"
             : s->n_bad   ? " is well formed"
                          : "");
    DT_CHECK(s->n_documents > 0 && (s->n_validation_documents > 0 || !k->validation), DT_ERR_DATA,
             "all %" PRId64 " documents fell to the %s file: a fraction of %g wants more documents (plain text can be cut: "
             "--documents paragraphs or lines)",
             s->n_documents + s->n_validation_documents, s->n_documents > 0 ? "training" : "validation",
             k->opt->validation_fraction);
    return DT_OK;
}

static dt_err run(make *k)
{
    const dt_make_options *o = k->opt;
    DT_TRY(check_options(o));
    DT_TRY(dt_tokenizer_open(&k->tokenizer, o->tokenizer));
    DT_TRY(dt_encoder_open(&k->encoder, k->tokenizer));
    k->form = dt_chat_template_find(o->chat_template);
    DT_CHECK(k->form, DT_ERR_USAGE, "template: expected plain, chatml or alpaca, found %s", o->chat_template);
    for (int i = 0; i < o->n_inputs; i++) DT_TRY(each_file(k, o->inputs[i], add_size));
    for (int i = 0; i < o->n_inputs; i++) DT_TRY(each_file(k, o->inputs[i], read_file));
    DT_TRY(check_result(k));

    dt_dataset_writer *w = k->validation;
    k->validation = NULL; /* committing frees */
    if (w) DT_TRY(dt_dataset_commit(w));
    w = k->train;
    k->train = NULL;
    return dt_dataset_commit(w);
}

dt_err dt_make_datasets(const dt_make_options *opt, dt_make_stats *stats)
{
    *stats = (dt_make_stats){0};
    make k = {.opt = opt, .stats = stats};
    const dt_err err = run(&k);
    dt_dataset_discard(k.train);
    dt_dataset_discard(k.validation);
    dt_encoder_close(k.encoder);
    dt_tokenizer_close(k.tokenizer);
    dt_segments_free(&k.segments);
    free(k.ids.id);
    free(k.mask);
    return err;
}

const char *dt_make_template_help(void) { return dt_chat_template_help(); }
