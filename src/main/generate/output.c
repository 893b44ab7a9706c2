/* output.c - prints sequences as text and as JSON. */
#include "generate_app.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

dt_err generate_flush(const app *a)
{
    DT_CHECK_ERRNO(fflush(stdout) == 0 && !ferror(stdout), DT_ERR_WRITE, a->part ? a->part : "standard output",
                   "cannot write");
    return DT_OK;
}

/* ---- output file ------------------------------------------------------------------------------------------------- */

/* Only rank 0 prints text, so its standard output is redirected to the file. */
dt_err generate_begin_output(app *a)
{
    const char *path = a->opt.output, *const input = a->opt.prompts ? a->opt.prompts : a->opt.data;
    int fd = -1;
    if (!path) return DT_OK;
    DT_TRY(dt_check_output(path, a->opt.force, &input, input ? 1 : 0));
    DT_TRY(dt_check_replaceable(path));
    DT_TRY(dt_make_folder_of(path));
    if (asprintf(&a->part, "%s.part", path) < 0) a->part = NULL;
    DT_CHECK(a->part, DT_ERR_MEMORY, "out of memory for the name of %s", path);
    const dt_err err = dt_create_file(a->part, &fd);
    if (err != DT_OK || dup2(fd, STDOUT_FILENO) < 0) {
        if (fd >= 0) close(fd);
        if (err != DT_OK) free(a->part), a->part = NULL; /* created by another process, must not be removed */
        return err != DT_OK ? err : dt_fail_errno(DT_ERR_WRITE, path, "cannot be written");
    }
    close(fd);
    a->plain_terminal = false;
    return DT_OK;
}

dt_err generate_end_output(app *a)
{
    if (!a->part) return DT_OK;
    DT_TRY(dt_fault("generate.output"));
    DT_TRY(generate_flush(a));
    DT_CHECK_ERRNO(fsync(STDOUT_FILENO) == 0, DT_ERR_WRITE, a->part, "cannot write");
    DT_TRY(dt_rename_durable(a->part, a->opt.output));
    free(a->part);
    a->part = NULL;
    return DT_OK;
}

void generate_drop_output(app *a)
{
    if (a->part) dt_remove_part(a->part);
    free(a->part);
    a->part = NULL;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Without a tokenizer, the text consists of token ids. */
static char *text_of(const app *a, const int32_t *ids, int64_t n, size_t *nbytes)
{
    if (a->tok) return dt_decode(a->tok, ids, n, true, nbytes);
    char *text = malloc(12 * (size_t)n + 1);
    *nbytes = 0;
    if (text) text[0] = 0;
    for (int64_t i = 0; text && i < n; i++)
        *nbytes += (size_t)sprintf(text + *nbytes, i ? " %" PRId32 : "%" PRId32, ids[i]);
    return text;
}

static bool is_conversation(const app *a, const dt_sequence *s)
{
    if (a->opt.chat) return true;
    const json_t *record = a->prompts.prompt[s->number / (uint64_t)a->n_out].record;
    return record &&
           (json_is_array(json_object_get(record, "messages")) || json_is_array(json_object_get(record, "prompt")));
}

size_t generate_find_stop(const char *const *stop, int n_stop, const char *text, size_t n, size_t from)
{
    size_t first = n;
    for (int i = 0; i < n_stop; i++) {
        const size_t len = strlen(stop[i]), begin = from >= len ? from - len + 1 : 0;
        const char *at = begin < n ? memmem(text + begin, n - begin, stop[i], len) : NULL;
        if (at && (size_t)(at - text) < first) first = (size_t)(at - text);
    }
    return first;
}

size_t generate_before_stop(const char *const *stop, int n_stop, const char *text, size_t n)
{
    size_t end = n;
    for (int i = 0; i < n_stop; i++)
        for (size_t k = strlen(stop[i]) - 1; k > 0; k--)
            if (n >= k && n - k < end && memcmp(text + n - k, stop[i], k) == 0) end = n - k;
    return end;
}

size_t generate_whole_characters(const char *text, size_t n)
{
    static const char incomplete[] = "\xef\xbf\xbd";
    for (int i = 0; i < 3 && n >= 3 && memcmp(text + n - 3, incomplete, 3) == 0; i++) n -= 3;
    return n;
}

/* True if the last token completes a stop text. Its text starts where the text without it differs, because
 * the token may complete a character. Special tokens count, as in transformers. */
bool generate_stops(const app *a, const int32_t *ids, int32_t n_ids)
{
    enum { SPARE = 8 }; /* tokens that continue an earlier character, or decode to no text */
    size_t longest = 0, n = 0, n_before = 0, same = 0;
    for (int i = 0; i < a->opt.n_stop; i++)
        longest = strlen(a->opt.stop[i]) > longest ? strlen(a->opt.stop[i]) : longest;
    if (longest == 0) return false;
    const int64_t window = (int64_t)longest + SPARE, first = n_ids > window ? n_ids - window : 0;
    char *text = a->tok ? dt_decode(a->tok, ids + first, n_ids - first, false, &n) : NULL,
         *before = a->tok ? dt_decode(a->tok, ids + first, n_ids - first - 1, false, &n_before) : NULL;
    while (text && before && same < n && same < n_before && text[same] == before[same]) same++;
    const bool found = text && before && generate_find_stop(a->opt.stop, a->opt.n_stop, text, n, same) < n;
    free(text);
    free(before);
    return found;
}

char *generate_completion(const app *a, const int32_t *ids, int32_t n_prompt, int32_t n_ids, bool apart, size_t *nbytes)
{
    size_t n_before = 0;
    char *whole = a->tok && !apart ? text_of(a, ids, n_ids, nbytes) : NULL,
         *before = whole ? text_of(a, ids, n_prompt, &n_before) : NULL;
    const bool begins = whole && before && *nbytes >= n_before && memcmp(whole, before, n_before) == 0;
    free(before);
    if (!begins) {
        free(whole);
        return text_of(a, ids + n_prompt, n_ids - n_prompt, nbytes);
    }
    *nbytes -= n_before;
    return memmove(whole, whole + n_before, *nbytes + 1);
}

char *generate_new_text(const app *a, const dt_sequence *s, size_t *nbytes, bool *stopped)
{
    char *text = generate_completion(a, s->ids, s->n_prompt, s->n_ids, is_conversation(a, s), nbytes);
    if (!text) return NULL;
    const size_t end = generate_find_stop(a->opt.stop, a->opt.n_stop, text, *nbytes, 0);
    *stopped = end < *nbytes;
    *nbytes = end;
    text[end] = 0;
    return text;
}

static void put_text(const app *a, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        const bool two = c == 0xc2 && i + 1 < n && (unsigned char)bytes[i + 1] < 0xa0; /* U+0080 to U+009F */
        const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || two;
        putchar(control && a->plain_terminal ? '?' : c);
        if (two && a->plain_terminal) i++;
    }
}

static char *prompt_text(const app *a, const int32_t *ids, int64_t n, bool whole, size_t *nbytes)
{
    return whole && a->tok ? dt_decode(a->tok, ids, n, false, nbytes) : text_of(a, ids, n, nbytes);
}

/* An image, a run of placeholders, is shown as one placeholder. whole: include special tokens. */
static char *prompt_of(const app *a, const dt_sequence *s, bool whole, size_t *nbytes)
{
    const int32_t n_each = a->reader.n_image_tokens;
    const bool grids = a->reader.n_cells != NULL;
    if (n_each <= 1 && !grids) return prompt_text(a, s->ids, s->n_prompt, whole, nbytes);
    int32_t *ids = malloc((size_t)s->n_prompt * sizeof *ids);
    int64_t n = 0, n_places = 0;
    for (int64_t i = 0; ids && i < s->n_prompt; i++) {
        const bool place = s->ids[i] == a->reader.image_token;
        const bool first = grids ? i == 0 || s->ids[i - 1] != s->ids[i] : n_places % n_each == 0;
        if (!place || first) ids[n++] = s->ids[i];
        n_places += place;
    }
    char *text = ids ? prompt_text(a, ids, n, whole, nbytes) : NULL;
    free(ids);
    return text;
}

void generate_put_prompt(const app *a, const dt_sequence *s)
{
    size_t n = 0;
    char *text = prompt_of(a, s, false, &n);
    if (text) put_text(a, text, n);
    free(text);
}

/* ---- streaming --------------------------------------------------------------------------------------------------- */

dt_err generate_stream(app *a, const dt_sequence *s, bool last)
{
    size_t n = 0;
    bool stopped;
    if (!a->tok) {
        printf(" %" PRId32, s->ids[s->n_ids - 1]);
        return generate_flush(a);
    }
    char *text = generate_new_text(a, s, &n, &stopped);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for the text of %d tokens", s->n_ids);
    const size_t whole = generate_whole_characters(text, n),
                 before = generate_before_stop(a->opt.stop, a->opt.n_stop, text, n),
                 end = last || stopped ? n : dt_min_size(whole, before);
    if (end > a->shown) {
        put_text(a, text + a->shown, end - a->shown);
        a->shown = end;
    }
    free(text);
    return generate_flush(a);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static const char *finish_name(const app *a, const dt_sequence *s, bool stopped)
{
    if (stopped || s->finish == DT_FINISH_STOP) return "stop";
    return s->finish == DT_FINISH_EOS ? "eos" : "length";
}

static json_t *id_list(const int32_t *ids, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *take_text(char *text, size_t n)
{
    json_t *t = text ? json_stringn(text, n) : NULL;
    free(text);
    return t;
}

/* JSON cannot represent NaN and inf. */
static json_t *real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static void add_scores(const app *a, const dt_sequence *s, json_t *object)
{
    if (a->head.kind != HEAD_REWARD)
        generate_add_values(a, s, object);
    else if (a->reward)
        json_object_set_new(object, "reward", real_or_null(a->reward[s->number]));
    const bool beams = a->opt.beams.n_beams > 1;
    if (beams) json_object_set_new(object, "score", real_or_null(s->score));
    if (beams || a->opt.logprobs) json_object_set_new(object, "logprob", real_or_null(s->logp));
    if (beams || !a->opt.logprobs) return;
    json_t *list = json_array();
    for (int32_t i = s->n_prompt; i < s->n_ids; i++) json_array_append_new(list, real_or_null((double)s->logps[i]));
    json_object_set_new(object, "logprobs", list);
}

/* Fields of dtrain, followed by the input record's other fields. */
static json_t *record_of(const app *a, const dt_sequence *s)
{
    json_t *from = a->prompts.prompt[s->number / (uint64_t)a->n_out].record, *object = json_object();
    size_t n_text = 0, n_prompt = 0;
    bool stopped = false;
    char *text = generate_new_text(a, s, &n_text, &stopped);
    json_object_set_new(object, "index", json_integer((json_int_t)s->number / a->n_out));
    json_object_set_new(object, "sample", json_integer((json_int_t)s->number % a->n_out));
    const bool talks = is_conversation(a, s);
    char *prompt = prompt_of(a, s, talks, &n_prompt);
    json_t *given = from ? json_object_get(from, "prompt") : NULL, *shown = take_text(prompt, n_prompt);
    json_object_set(object, "prompt", given ? given : shown);
    if (talks) json_object_set(object, "prompt_text", shown);
    json_decref(shown);
    json_object_set_new(object, "text", take_text(text, n_text));
    json_object_set_new(object, "ids", id_list(s->ids + s->n_prompt, s->n_ids - s->n_prompt));
    json_object_set_new(object, "prompt_ids", id_list(s->ids, s->n_prompt));
    json_object_set_new(object, "n_prompt_tokens", json_integer(s->n_prompt));
    json_object_set_new(object, "n_new_tokens", json_integer(s->n_ids - s->n_prompt));
    json_object_set_new(object, "finish", json_string(finish_name(a, s, stopped)));
    add_scores(a, s, object);
    if (from) json_object_update_missing(object, from);
    return object;
}

static json_t *answer_of(const app *a, const dt_sequence *s)
{
    json_t *object = json_object();
    json_object_set_new(object, "index", json_integer((json_int_t)s->number));
    json_object_set_new(object, "n_tokens", json_integer(s->n_ids));
    add_scores(a, s, object);
    json_object_update_missing(object, a->prompts.prompt[s->number].record);
    return object;
}

static dt_err put_json(const app *a, const dt_sequence *s)
{
    json_t *object = a->opt.answers ? answer_of(a, s) : record_of(a, s);
    char *line = object && (a->opt.answers || (json_object_get(object, "text") && json_object_get(object, "ids")))
                     ? json_dumps(object, JSON_COMPACT)
                     : NULL;
    json_decref(object);
    DT_CHECK(line, DT_ERR_MEMORY, "out of memory for the record of sequence %" PRIu64, s->number);
    puts(line);
    free(line);
    return DT_OK;
}

/* ---- complete sequences ------------------------------------------------------------------------------------------ */

static dt_err put_sequence(const app *a, const dt_sequence *s)
{
    size_t n = 0;
    bool stopped;
    if (s->finish == DT_FINISH_MISSING) return DT_OK;
    if (a->opt.jsonl) return put_json(a, s);
    if (a->opt.answers && a->head.kind != HEAD_REWARD) {
        generate_print_values(a, s);
        return DT_OK;
    }
    if (a->opt.answers) {
        printf("%.9g\n", dt_unsigned_nan(a->reward[s->number]));
        return DT_OK;
    }
    if (a->n_seqs > 1)
        printf("%s==> prompt %" PRIu64 ", sample %" PRIu64 " <==\n", s->number ? "\n" : "",
               s->number / (uint64_t)a->n_out, s->number % (uint64_t)a->n_out);
    char *text = generate_new_text(a, s, &n, &stopped);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for the text of %d tokens", s->n_ids);
    if (!is_conversation(a, s)) generate_put_prompt(a, s);
    if (!a->tok && n > 0) putchar(' ');
    put_text(a, text, n);
    putchar('\n');
    free(text);
    return DT_OK;
}

dt_err generate_put_finished(app *a)
{
    while (a->printed < a->n_seqs && a->seqs[a->printed].finish != DT_FINISH_NONE)
        DT_TRY(put_sequence(a, &a->seqs[a->printed++]));
    return generate_flush(a);
}
