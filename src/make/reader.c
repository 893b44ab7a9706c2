/* reader.c - reads files into chunks. A chunk is submitted when it is full, independent of file boundaries. */
#include "reader.h"
#include "input.h"
#include "parquet.h"
#include "dtrain/io/io.h"
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- listing files ----------------------------------------------------------------------------------------------- */

static bool is_json_name(const char *path)
{
    return dt_has_ending(path, ".jsonl") || dt_has_ending(path, ".ndjson") || dt_has_ending(path, ".json");
}

static int wanted(const struct dirent *e)
{
    return e->d_name[0] != '.' &&
           (is_json_name(e->d_name) || dt_has_ending(e->d_name, ".txt") || dt_has_ending(e->d_name, ".parquet"));
}

static dt_err add_path(dt_reader *r, const char *path)
{
    struct stat st = {0}; /* stays zero for standard input: not a regular file */
    DT_CHECK_ERRNO(strcmp(path, "-") == 0 || stat(path, &st) == 0, DT_ERR_DATA, path, "cannot be opened");
    DT_GROW(r->paths, r->n_paths, "out of memory for the names of the inputs");
    DT_COPY_TEXT(r->paths[r->n_paths], path, "out of memory for the names of the inputs");
    r->n_paths++;
    if (!S_ISREG(st.st_mode))
        r->nbytes_total = -1;
    else if (r->nbytes_total >= 0)
        r->nbytes_total += (int64_t)st.st_size;
    return DT_OK;
}

static dt_err add_input(dt_reader *r, const char *path)
{
    struct stat st;
    if (strcmp(path, "-") == 0 || stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return add_path(r, path);
    DT_CHECK(!r->rec, DT_ERR_USAGE, "%s: expected a CSV file, found a directory", path);
    struct dirent **names;
    const int n = scandir(path, &names, wanted, alphasort);
    DT_CHECK_ERRNO(n >= 0, DT_ERR_DATA, path, "the directory cannot be read");
    dt_err err = DT_OK;
    if (n == 0)
        err = dt_fail(DT_ERR_DATA, "%s: the directory has no .txt, .jsonl, .ndjson, .json or .parquet file", path);
    for (int i = 0; i < n; i++) {
        char whole[PATH_MAX];
        if (err == DT_OK && !dt_join_path(whole, path, names[i]->d_name, ""))
            err = dt_fail(DT_ERR_DATA, "%s/%s: the path is too long", path, names[i]->d_name);
        if (err == DT_OK) err = add_path(r, whole);
        free(names[i]);
    }
    free(names);
    return err;
}

dt_err dt_reader_open(dt_reader *r, const dt_make_options *opt, const dt_tokenizer *tokenizer, const dt_rec *rec)
{
    *r = (dt_reader){.opt = opt, .tokenizer = tokenizer, .rec = rec, .chunk_items = DT_CHUNK_ITEMS};
    for (int i = 0; i < opt->n_inputs; i++) DT_TRY(add_input(r, opt->inputs[i]));
    if (!rec) return DT_OK;
    DT_ALLOC(r->headers, r->n_paths + 1, "out of memory for the names of columns");
    if (!opt->rec.longest && !dt_rec_has_samples(rec)) return DT_OK;
    r->scanned = true;
    return dt_rec_rows_scan(&r->rows, r->paths, r->n_paths, opt->rec.longest, opt->stop);
}

void dt_reader_close(dt_reader *r)
{
    for (int i = 0; i < r->n_paths; i++) {
        free(r->paths[i]);
        if (r->headers) json_decref(r->headers[i]);
    }
    free(r->paths);
    free(r->headers);
    free(r->rows.keep);
    *r = (dt_reader){0};
}

/* ---- chunks ----------------------------------------------------------------------------------------------------- */

static void hand_over(dt_reader *r)
{
    if (!r->chunk) return;
    r->chunk->nbytes_read = r->n_read;
    dt_pipeline_submit(r->pipeline);
    r->chunk = NULL;
}

static dt_err put(dt_reader *r, const char *text, size_t nbytes, dt_chunk_item item)
{
    if (r->chunk && (r->chunk->n_items >= r->chunk_items || r->chunk->text.n + nbytes > DT_CHUNK_NBYTES)) hand_over(r);
    if (!r->chunk) r->chunk = dt_pipeline_chunk(r->pipeline);
    DT_CHECK(r->chunk, DT_ERR_STOP, "stopped while reading %s", r->path);
    return dt_chunk_add(r->chunk, text, nbytes, item);
}

static dt_err put_text(void *self, const char *text, size_t nbytes, bool last)
{
    dt_reader *r = self;
    const bool begins = !r->begun;
    r->begun = !last;
    return put(r, text, nbytes, (dt_chunk_item){.path = r->path, .begins = begins, .ends = last});
}

static dt_err put_record(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line)
{
    dt_reader *r = self;
    const dt_chunk_item item = {
        .path = r->path, .line = line, .n_binary = n_binary, .json = true, .begins = true, .ends = true};
    return put(r, text, nbytes + n_binary, item);
}

static dt_err put_header(dt_reader *r, const char *text, size_t nbytes, int64_t line)
{
    r->begun = true;
    dt_err err = dt_csv_header_parse(r->header, text, nbytes);
    if (err == DT_OK) err = dt_rec_check_header(r->rec, *r->header);
    if (err == DT_OK && r->opt->rec.longest && !dt_csv_header_has(*r->header, "user_id"))
        err = dt_fail(DT_ERR_DATA, "expected the column user_id, because --longest-only keeps one row per user");
    return dt_error_prefix(err, "%s:%" PRId64 ": ", r->path, line);
}

static dt_err put_row(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line)
{
    dt_reader *r = self;
    if (!r->begun) return put_header(r, text, nbytes, line);
    const int64_t row = r->row++;
    DT_CHECK(row < r->rows.n || !r->scanned, DT_ERR_DATA, "%s: the file has grown since its rows were counted",
             r->path);
    if (r->rows.keep && !r->rows.keep[row]) return DT_OK;
    const int64_t number = r->n_kept++;
    const uint32_t tasks = dt_rec_tasks_of(r->rec, false, number, r->rows.n_kept);
    if (!tasks) return DT_OK;
    return put(r, text, nbytes,
               (dt_chunk_item){.path = r->path,
                               .line = line,
                               .json = true,
                               .begins = true,
                               .ends = true,
                               .header = *r->header,
                               .number = number,
                               .tasks = tasks});
}

/* Add the catalogue's items, after all rows. */
static dt_err put_items(dt_reader *r)
{
    const dt_rec_items *items = &r->rec->items;
    r->path = items->index_path;
    for (int64_t i = 0; i < items->n; i++) {
        const uint32_t tasks = dt_rec_tasks_of(r->rec, true, i, items->n);
        const dt_chunk_item item = {
            .path = r->path, .json = true, .begins = true, .ends = true, .number = i, .tasks = tasks};
        if (tasks) DT_TRY(put(r, "{}", 2, item));
    }
    return DT_OK;
}

static dt_err read_file(dt_reader *r, const char *path)
{
    const dt_make_options *o = r->opt;
    const dt_document_rules rules = {.documents = o->documents,
                                     .separator = o->separator,
                                     .tokenizer = r->tokenizer,
                                     .piece_nbytes = DT_CHUNK_NBYTES};
    dt_input in;
    dt_err err = dt_input_open(&in, path, &r->n_read, dt_pipeline_stop(r->pipeline));
    r->path = strcmp(path, "-") == 0 ? "standard input" : path;
    r->begun = false;
    const bool automatic = o->format == DT_INPUT_AUTO,
               json = o->format == DT_INPUT_JSON || (automatic && is_json_name(path)) || r->rec;
    const bool parquet = err == DT_OK && !r->rec && (json || automatic) && dt_is_parquet(&in);
    if (err == DT_OK && !parquet) err = dt_input_check_content(&in, json, automatic);
    if (err == DT_OK)
        err = parquet  ? dt_parquet_each_row(&in, put_record, r)
              : r->rec ? dt_input_each_row(&in, put_row, r)
              : json   ? dt_input_each_record(&in, put_record, r)
                       : dt_input_each_document(&in, &rules, put_text, r);
    dt_input_close(&in);
    return err;
}

dt_err dt_reader_run(dt_reader *r, dt_pipeline *pipeline)
{
    r->pipeline = pipeline;
    dt_err err = DT_OK;
    for (int i = 0; i < r->n_paths && err == DT_OK; i++) {
        r->header = r->rec ? &r->headers[i] : NULL;
        err = read_file(r, r->paths[i]);
    }
    if (r->scanned && err == DT_OK && r->row < r->rows.n)
        err = dt_fail(DT_ERR_DATA,
                      "%s: the inputs have shrunk since their rows were counted: expected %" PRId64
                      " rows, found %" PRId64,
                      r->path, r->rows.n, r->row);
    if (r->rec && err == DT_OK) err = put_items(r);
    hand_over(r); /* Submit what was read before an error: errors in these chunks come first. */
    return err;
}
