/* amazon.c - the published dumps of Amazon's reviews, filtered as MiniOneRec's scripts for 2018 and 2023 do, become
 * PREFIX.item.json for dtrain-sid, and rows of interactions for format minionerec: PREFIX.train.csv, .valid.csv and
 * .test.csv. recommendation.md "Amazon's reviews".
 *
 *     items   have a title. 2018: of at least two characters and at most 20 words
 *     time    reviews from the first second of `from` to that of `to`, both included
 *     k-core  repeat until nothing changes: drop users and items with fewer than k reviews
 *     rows    for each user, in order of time: every review but the first, with at most 10 reviews before it
 *     splits  rows in order of time: the first 8, then 1, then 1 tenths
 *
 * Users are numbered by their first review in the files, items by user and time. */
#include "../input.h"
#include "dtrain/core/plural.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_WORDS = 20, HISTORY = 10, FIRST_YEAR = 1996, N_SPLITS = 3 };

typedef struct review {
    int32_t user, item;
    int64_t time, number; /* number: position in the files */
} review;

typedef struct row {
    int64_t time, target; /* target: index of the next item's review */
} row;

typedef struct amazon {
    const dt_make_options *opt;
    json_t *titles, *users; /* {item: title}, {user: number} */
    json_t *numbers;        /* {item: number}: of items in reviews, then of those that are kept */
    json_t *features;       /* [n_items] of the item file */
    const char **name;      /* [n_items] of the items that are kept: borrowed from numbers */
    review *all, *kept;
    int64_t n_all, n_kept;
    int32_t n_users, n_items;
    row *rows;
    int64_t n_rows, n_read, n_bad;
    const char *path; /* being read */
    dt_err (*take)(struct amazon *a, json_t *record);
} amazon;

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
} entities[] = {{"amp", "&"},        {"lt", "<"},          {"gt", ">"},         {"quot", "\""},
                {"apos", "'"},       {"nbsp", " "},        {"ndash", "\u2013"}, {"mdash", "\u2014"},
                {"lsquo", "\u2018"}, {"rsquo", "\u2019"},  {"ldquo", "\u201c"}, {"rdquo", "\u201d"},
                {"bull", "\u2022"},  {"hellip", "\u2026"}, {"trade", "\u2122"}, {"reg", "\u00ae"},
                {"copy", "\u00a9"},  {"deg", "\u00b0"},    {"eacute", "\u00e9"}};

/* Of the codes 128-159, which are no characters: HTML takes them from Windows-1252. */
static const uint16_t windows[32] = {0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021,
                                     0x2c6,  0x2030, 0x160,  0x2039, 0x152,  0x8d,   0x17d,  0x8f,
                                     0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                     0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};

static uint32_t character_of(unsigned long code)
{
    if (code >= 0x80 && code < 0xa0) return windows[code - 0x80];
    return code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0xfffd : (uint32_t)code;
}

/* Append the character of an entity and return its length; 0: it is none that is known. */
static size_t put_entity(dt_text *to, const char *text, size_t n)
{
    const char *end = memchr(text, ';', n < 10 ? n : 10);
    const size_t len = end ? (size_t)(end - text) - 1 : 0;
    char *stop, name[12];
    if (len < 2) return 0;
    snprintf(name, sizeof name, "%.*s", (int)len, text + 1);
    if (name[0] == '#') {
        char bytes[4];
        const bool hex = name[1] == 'x' || name[1] == 'X';
        const char *digits = name + (hex ? 2 : 1);
        const unsigned long code = strtoul(digits, &stop, hex ? 16 : 10);
        if (*stop || !isxdigit((unsigned char)*digits)) return 0;
        dt_text_append(to, bytes, dt_utf8_put(character_of(code), bytes));
        return len + 2;
    }
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++)
        if (strcmp(name, entities[i].name) == 0)
            return dt_text_append(to, entities[i].text, strlen(entities[i].text)), len + 2;
    return 0;
}

/* Copy without tags, <...>. */
static void strip_tags(dt_text *to, const char *text, size_t n)
{
    bool more = true; /* '>' */
    for (size_t i = 0; i < n; i++) {
        const bool open = more && text[i] == '<' && i + 2 < n;
        const char *end = open ? memchr(text + i + 2, '>', n - i - 2) : NULL;
        if (open) more = end;
        if (end && text[i + 1] != '>')
            i = (size_t)(end - text);
        else
            dt_text_append(to, text + i, 1);
    }
}

/* Copy with entities of quotes and ampersands replaced. */
static void unquote(dt_text *to, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        const bool quote = n - i >= 6 && memcmp(text + i, "&quot;", 6) == 0,
                   both = n - i >= 5 && memcmp(text + i, "&amp;", 5) == 0;
        dt_text_append(to, quote ? "\"" : both ? "&" : text + i, 1);
        i += quote ? 6 : both ? 5 : 1;
    }
}

/* Append a text without tags, with entities replaced, also those of an ampersand's, and white space collapsed to
 * single blanks. */
static void clean(dt_text *to, const char *text, size_t n)
{
    dt_text plain = {0}, once = {0}, whole = {0};
    strip_tags(&plain, text, n);
    for (size_t i = 0, len; i < plain.n; i += len) {
        len = plain.bytes[i] == '&' ? put_entity(&once, plain.bytes + i, plain.n - i) : 0;
        if (len == 0) dt_text_append(&once, plain.bytes + i, len = 1);
    }
    unquote(&whole, once.bytes, once.n);
    bool any = false;
    for (size_t i = 0, end = dt_space_trimmed(whole.bytes, whole.n), space; i < end; i++) {
        space = dt_space_before(whole.bytes + i, end - i);
        if (space > 0 && any) dt_text_append(to, " ", 1);
        i += space;
        if (i < end) dt_text_append(to, whole.bytes + i, 1), any = true;
    }
    to->failed |= plain.failed || once.failed || whole.failed;
    dt_text_free(&plain), dt_text_free(&once), dt_text_free(&whole);
}

static const char *field(const json_t *record, const char *one, const char *other)
{
    const char *text = json_string_value(json_object_get(record, one));
    return text ? text : json_string_value(json_object_get(record, other));
}

static bool is_of_2023(const json_t *record) { return json_object_get(record, "parent_asin"); }

/* The title of 2018: entities of quotes and ampersands, then blanks and quotes at both ends. */
static void plain_title(dt_text *to, const char *text)
{
    dt_text t = {0};
    unquote(&t, text, strlen(text));
    size_t first = 0, n = t.n;
    while (n > 0 && t.bytes[n - 1] == ' ') n--;
    while (first < n && t.bytes[first] == ' ') first++;
    while (n > first && t.bytes[n - 1] == '"') n--;
    while (first < n && t.bytes[first] == '"') first++;
    dt_text_append(to, t.bytes + first, n - first);
    to->failed |= t.failed;
    dt_text_free(&t);
}

static bool is_title(const char *title, size_t n, bool of_2023)
{
    int n_words = 1, n_characters = 0;
    for (size_t i = 0; i < n; i++) n_words += title[i] == ' ', n_characters += (title[i] & 0xc0) != 0x80;
    return of_2023 ? n > 0 : n_characters > 1 && n_words <= MOST_WORDS;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static dt_err take_title(amazon *a, json_t *record)
{
    const char *id = field(record, "parent_asin", "asin"), *title = field(record, "title", "title");
    const bool new = is_of_2023(record);
    dt_text t = {0};
    DT_CHECK(id, DT_ERR_DATA, "expected an item with asin or parent_asin");
    if (!title || (!new &&strstr(title, "<span id"))) return DT_OK;
    if (new)
        clean(&t, title, strlen(title));
    else
        plain_title(&t, title);
    const bool lost = t.failed || (is_title(t.bytes, t.n, new) &&
                                   json_object_set_new(a->titles, id, json_stringn(t.bytes, t.n)) != 0);
    dt_text_free(&t);
    DT_CHECK(!lost, DT_ERR_MEMORY, "out of memory for titles");
    return DT_OK;
}

/* The number of a name, a new one if it has none. */
static dt_err number_of(json_t *map, const char *name, int32_t *n, int32_t *number)
{
    const json_t *found = json_object_get(map, name);
    *number = found ? (int32_t)json_integer_value(found) : *n;
    DT_CHECK(*n < INT32_MAX && (found || json_object_set_new(map, name, json_integer((*n)++)) == 0), DT_ERR_MEMORY,
             "out of memory for users and items");
    return DT_OK;
}

static bool seconds_of(const json_t *record, int64_t *seconds)
{
    const json_t *ms = json_object_get(record, "timestamp"), *s = json_object_get(record, "unixReviewTime"),
                 *time = ms ? ms : s;
    const char *text = json_string_value(time);
    char *end = "";
    const double value = text ? strtod(text, &end) : json_number_value(time);
    if (!(json_is_number(time) || (text && *text)) || *end || !(fabs(value) < 0x1p53)) return false;
    *seconds = (int64_t)floor(ms ? value / 1000 : value);
    return true;
}

static dt_err take_review(amazon *a, json_t *record)
{
    const char *user = field(record, "user_id", "reviewerID"), *item = field(record, "parent_asin", "asin");
    review r = {.number = a->n_all};
    DT_CHECK(user && item && seconds_of(record, &r.time), DT_ERR_DATA,
             "expected a review with reviewerID, asin and unixReviewTime, or user_id, parent_asin and timestamp");
    if (!json_object_get(a->titles, item)) return DT_OK;
    DT_TRY(number_of(a->users, user, &a->n_users, &r.user));
    DT_TRY(number_of(a->numbers, item, &a->n_items, &r.item));
    DT_GROW(a->all, a->n_all, "out of memory for %" PRId64 " reviews", a->n_all + 1);
    a->all[a->n_all++] = r;
    return DT_OK;
}

/* Texts of a list, or one text, cleaned; of several levels those of the innermost. */
static void add_texts(json_t *list, const json_t *value)
{
    const json_t *one;
    size_t i;
    json_array_foreach(value, i, one) add_texts(list, one);
    if (!json_is_string(value) || strstr(json_string_value(value), "</span>")) return;
    dt_text t = {0};
    clean(&t, json_string_value(value), json_string_length(value));
    if (t.n > 0) json_array_append_new(list, json_stringn(t.bytes, t.n));
    dt_text_free(&t);
}

static dt_err take_features(amazon *a, json_t *record)
{
    static const char *const from[][2] = {{"description", ""}, {"brand", "store"}, {"category", "categories"}};
    static const char *const to[] = {"description", "brand", "categories"};
    const char *id = field(record, "parent_asin", "asin");
    const json_t *number = id ? json_object_get(a->numbers, id) : NULL;
    if (!number) return DT_OK;
    json_t *features = json_object();
    bool lost = json_object_set(features, "title", json_object_get(a->titles, id)) != 0;
    for (int i = 0; i < 3; i++) {
        const json_t *value = json_object_get(record, from[i][0]);
        const char *text = json_string_value(value); /* a brand of 2018 may begin with "by" and a line end */
        json_t *texts = json_array(), *own = text && strncmp(text, "by\n", 3) == 0 ? json_string(text + 3) : NULL;
        add_texts(texts, own ? own : value ? value : json_object_get(record, from[i][1]));
        json_decref(own);
        lost |= json_object_set_new(features, to[i], texts) != 0;
    }
    lost |= json_array_set_new(a->features, (size_t)json_integer_value(number), features) != 0;
    DT_CHECK(!lost, DT_ERR_MEMORY, "out of memory for the texts of items");
    return DT_OK;
}

static dt_err take_line(void *self, const char *text, size_t nbytes, size_t n_binary, int64_t line)
{
    amazon *a = self;
    json_t *record = NULL;
    dt_err err = dt_json_parse(&record, "", text, nbytes, DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD);
    if (err == DT_OK) err = a->take(a, record);
    json_decref(record);
    if (err == DT_ERR_DATA && a->opt->skip_bad) {
        a->n_bad += a->take != take_features; /* a second pass */
        dt_error_clear();
        return DT_OK;
    }
    return dt_error_lead(err, "%s:%" PRId64 ": ", a->path, line);
}

static dt_err read_file(amazon *a, const char *path, dt_err (*take)(amazon *a, json_t *record))
{
    dt_input in;
    a->path = path;
    a->take = take;
    DT_TRY(dt_input_open(&in, path, &a->n_read, a->opt->stop));
    dt_err err = dt_input_check_content(&in, true, false);
    if (err == DT_OK) err = dt_input_each_record(&in, take_line, a);
    dt_input_close(&in);
    return err;
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* The first second of a month, YYYY-MM, in UTC. NULL: `otherwise`. */
static dt_err month(const char *option, const char *text, int64_t otherwise, int64_t *seconds, int *year)
{
    int y = 0, m = 0, n = 0;
    *seconds = otherwise, *year = FIRST_YEAR;
    if (!text) return DT_OK;
    DT_CHECK(isdigit((unsigned char)*text) && sscanf(text, "%4d-%2d%n", &y, &m, &n) == 2 && !text[n] && y >= 1970 &&
                 m >= 1 && m <= 12,
             DT_ERR_USAGE, "--%s: expected a month such as 2016-10, found %s", option, text);
    struct tm t = {.tm_year = y - 1900, .tm_mon = m - 1, .tm_mday = 1};
    *seconds = (int64_t)timegm(&t), *year = y;
    return DT_OK;
}

/* Keep the reviews of a period whose users and items have at least k of them. n_users, n_items: out, their numbers. */
static void k_core(amazon *a, int64_t from, int64_t to, int32_t *of_user, int32_t *of_item, int64_t *n_items)
{
    const int64_t k = a->opt->rec.k_core;
    int64_t before = -1;
    a->n_kept = 0;
    for (int64_t i = 0; i < a->n_all; i++)
        if (a->all[i].time >= from && a->all[i].time <= to) a->kept[a->n_kept++] = a->all[i];
    while (a->n_kept != before) {
        before = a->n_kept;
        memset(of_user, 0, (size_t)a->n_users * sizeof *of_user);
        memset(of_item, 0, (size_t)a->n_items * sizeof *of_item);
        for (int64_t i = 0; i < before; i++) of_user[a->kept[i].user]++, of_item[a->kept[i].item]++;
        a->n_kept = 0;
        for (int64_t i = 0; i < before; i++)
            if (of_user[a->kept[i].user] >= k && of_item[a->kept[i].item] >= k) a->kept[a->n_kept++] = a->kept[i];
    }
    *n_items = 0;
    for (int32_t i = 0; i < a->n_items; i++) *n_items += of_item[i] > 0;
}

static int by_user_and_time(const void *x, const void *y)
{
    const review *a = x, *b = y;
    if (a->user != b->user) return a->user < b->user ? -1 : 1;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

static int by_time(const void *x, const void *y)
{
    const row *a = x, *b = y;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return a->target < b->target ? -1 : 1;
}

/* Number users and items of what is left, sort the reviews, and list the rows. order: scratch. */
static dt_err number_all(amazon *a, int32_t *of_user, int32_t *of_item, const char **old)
{
    const char *name;
    json_t *number, *kept = json_object();
    int32_t n_users = 0, n_items = 0;
    memset(of_user, 0xff, (size_t)a->n_users * sizeof *of_user);
    memset(of_item, 0xff, (size_t)a->n_items * sizeof *of_item);
    json_object_foreach(a->numbers, name, number) old[json_integer_value(number)] = name;
    for (int64_t i = 0; i < a->n_kept; i++) {
        int32_t *user = &of_user[a->kept[i].user];
        if (*user < 0) *user = n_users++;
        a->kept[i].user = *user;
    }
    qsort(a->kept, (size_t)a->n_kept, sizeof *a->kept, by_user_and_time);
    bool lost = !kept;
    for (int64_t i = 0; i < a->n_kept && !lost; i++) {
        int32_t *item = &of_item[a->kept[i].item];
        if (*item < 0) lost = json_object_set_new(kept, old[a->kept[i].item], json_integer(*item = n_items++)) != 0;
        a->kept[i].item = *item;
        if (i > 0 && a->kept[i].user == a->kept[i - 1].user) a->rows[a->n_rows++] = (row){a->kept[i].time, i};
    }
    json_decref(a->numbers);
    a->numbers = kept;
    a->n_users = n_users, a->n_items = n_items;
    DT_CHECK(!lost, DT_ERR_MEMORY, "out of memory for users and items");
    json_object_foreach(kept, name, number) a->name[json_integer_value(number)] = name;
    qsort(a->rows, (size_t)a->n_rows, sizeof *a->rows, by_time);
    return DT_OK;
}

static dt_err filter(amazon *a)
{
    const dt_rec_options *o = &a->opt->rec;
    int32_t *of_user = NULL, *of_item = NULL;
    const char **old = NULL;
    int64_t from, to, n_items;
    int year, last;
    char text[16];
    DT_TRY(month("to", o->to, INT64_MAX, &to, &last));
    DT_TRY(month("from", o->from, INT64_MIN, &from, &year));
    of_user = malloc((size_t)(a->n_users + 1) * sizeof *of_user);
    of_item = malloc((size_t)(a->n_items + 1) * sizeof *of_item);
    old = malloc((size_t)(a->n_items + 1) * sizeof *old);
    a->name = malloc((size_t)(a->n_items + 1) * sizeof *a->name);
    a->kept = malloc((size_t)(a->n_all + 1) * sizeof *a->kept);
    a->rows = malloc((size_t)(a->n_all + 1) * sizeof *a->rows);
    const bool room = of_user && of_item && old && a->name && a->kept && a->rows;
    dt_err err = room ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %" PRId64 " reviews", a->n_all);
    if (err == DT_OK) k_core(a, from, to, of_user, of_item, &n_items);
    while (err == DT_OK && n_items < o->min_items && year > FIRST_YEAR) {
        snprintf(text, sizeof text, "%d%s", --year, o->from + 4);
        DT_INFO("%" PRId64 " items are fewer than %" PRId64 ": reviews from %s", n_items, o->min_items, text);
        err = month("from", text, 0, &from, &year);
        if (err == DT_OK) k_core(a, from, to, of_user, of_item, &n_items);
    }
    if (err == DT_OK) err = number_all(a, of_user, of_item, old);
    free(of_user), free(of_item), free(old);
    return err;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A field of a table: quotes are doubled. */
static void put_quoted(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '"') putc_unlocked('"', f);
        putc_unlocked(*text, f);
    }
}

/* A text in a Python list within a quoted field. */
static void put_literal(FILE *f, const char *text)
{
    char c[5] = "";
    putc_unlocked('\'', f);
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') putc_unlocked('\\', f);
        if ((unsigned char)*text < ' ')
            fprintf(f, "\\x%02x", (unsigned char)*text);
        else
            snprintf(c, sizeof c, "%c", *text), put_quoted(f, c);
    }
    putc_unlocked('\'', f);
}

static const char *title_of(const amazon *a, int32_t item)
{
    return json_string_value(json_object_get(a->titles, a->name[item]));
}

static void put_row(const amazon *a, FILE *f, const row *r)
{
    const review *target = &a->kept[r->target], *first = target;
    while (first > a->kept && first[-1].user == target->user && target - first < HISTORY) first--;
    fprintf(f, "A%" PRId32 ",\"[", target->user);
    for (const review *h = first; h < target; h++)
        fputs(h > first ? ", " : "", f), put_literal(f, title_of(a, h->item));
    fputs("]\",\"", f);
    put_quoted(f, title_of(a, target->item));
    fputs("\",\"[", f);
    for (const review *h = first; h < target; h++) fprintf(f, "%s%" PRId32, h > first ? ", " : "", h->item);
    fprintf(f, "]\",%" PRId32 "\n", target->item);
}

static void put_item(const amazon *a, FILE *f, int64_t i)
{
    fprintf(f, "%s\"%" PRId64 "\": ", i ? ",\n" : "{\n", i);
    json_dumpf(json_array_get(a->features, (size_t)i), f, JSON_COMPACT);
}

static const char item_file[] = ".item.json";
static const char *const endings[] = {".train.csv", ".valid.csv", ".test.csv", item_file};

static dt_err path_of(const dt_make_options *opt, const char *ending, char path[PATH_MAX])
{
    DT_CHECK(snprintf(path, PATH_MAX, "%s%s", opt->output, ending) < PATH_MAX, DT_ERR_USAGE,
             "%s%s: the name is too long", opt->output, ending);
    return DT_OK;
}

/* Before hours of reading. */
static dt_err check_outputs(const dt_make_options *opt)
{
    char path[PATH_MAX];
    for (int i = 0; i <= N_SPLITS; i++) {
        DT_TRY(path_of(opt, endings[i], path));
        DT_TRY(dt_check_output(path, opt->force, opt->inputs, opt->n_inputs));
        DT_TRY(dt_check_output(path, true, &opt->rec.items, 1));
    }
    return dt_make_folder_of(path);
}

/* Write lines first .. end-1 of a file, rows or items. */
static dt_err write_lines(const amazon *a, const char *ending, int64_t first, int64_t end)
{
    const bool items = ending == item_file;
    char path[PATH_MAX];
    dt_aside to = {0};
    DT_TRY(path_of(a->opt, ending, path));
    DT_TRY(dt_aside_open(&to, path));
    const int fd = dup(to.fd);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f && fd >= 0) close(fd);
    dt_err err = f ? DT_OK : dt_fail_errno(DT_ERR_WRITE, path, "cannot be opened");
    if (f && !items) fputs("user_id,history_item_title,item_title,history_item_id,item_id\n", f);
    for (int64_t i = first; i < end && f; i++) items ? put_item(a, f, i) : put_row(a, f, &a->rows[i]);
    if (f && items) fputs(end > first ? "\n}\n" : "{}\n", f);
    const int failed = f && ferror(f) ? errno : 0;
    const bool closed = !f || fclose(f) == 0;
    if (failed) errno = failed;
    if (failed || !closed) err = dt_fail_errno(DT_ERR_WRITE, path, "cannot be written");
    if (err == DT_OK) err = dt_aside_commit(&to);
    dt_aside_drop(&to);
    return err;
}

static dt_err write_all(amazon *a)
{
    const int64_t end[N_SPLITS] = {(int64_t)((double)a->n_rows * 0.8), (int64_t)((double)a->n_rows * 0.9), a->n_rows};
    for (int s = 0; s < N_SPLITS; s++) DT_TRY(write_lines(a, endings[s], s ? end[s - 1] : 0, end[s]));
    DT_TRY(write_lines(a, item_file, 0, a->n_items));
    DT_INFO(
        "%" PRId64 " review%s of items with a title; %" PRId64 " left, of %" PRId32 " user%s and %" PRId32 " item%s",
        a->n_all, dt_plural(a->n_all), a->n_kept, a->n_users, dt_plural(a->n_users), a->n_items, dt_plural(a->n_items));
    DT_INFO("rows: %" PRId64 " train, %" PRId64 " valid, %" PRId64 " test", end[0], end[1] - end[0], end[2] - end[1]);
    if (a->n_bad) DT_WARN("skipped %" PRId64 " malformed record%s", a->n_bad, dt_plural(a->n_bad));
    return DT_OK;
}

/* Features of the items that are left, from a second pass: those of all items may exceed the memory. */
static dt_err read_features(amazon *a)
{
    DT_CHECK(a->features, DT_ERR_MEMORY, "out of memory for the texts of items");
    for (int32_t i = 0; i < a->n_items; i++) json_array_append_new(a->features, json_null());
    return read_file(a, a->opt->rec.items, take_features);
}

static dt_err run(amazon *a)
{
    DT_CHECK(a->titles && a->users && a->numbers, DT_ERR_MEMORY, "out of memory");
    DT_TRY(read_file(a, a->opt->rec.items, take_title));
    for (int i = 0; i < a->opt->n_inputs; i++) DT_TRY(read_file(a, a->opt->inputs[i], take_review));
    DT_TRY(filter(a));
    DT_CHECK(a->n_kept > 0, DT_ERR_DATA, "no user and item has %" PRId64 " reviews in this period; lower --k-core",
             a->opt->rec.k_core);
    DT_TRY(read_features(a));
    return write_all(a);
}

dt_err dt_make_amazon(const dt_make_options *opt)
{
    DT_CHECK(opt->rec.items, DT_ERR_USAGE, "format amazon: expected the dump of the items (--items)");
    DT_CHECK(strcmp(opt->rec.items, "-") != 0, DT_ERR_USAGE, "--items: expected a file, which is read twice, found -");
    DT_CHECK(!opt->rec.min_items || opt->rec.from, DT_ERR_USAGE, "--min-items needs --from, which it changes");
    DT_TRY(check_outputs(opt));
    amazon a = {.opt = opt,
                .titles = json_object(),
                .users = json_object(),
                .numbers = json_object(),
                .features = json_array()};
    const dt_err err = run(&a);
    json_decref(a.titles), json_decref(a.users), json_decref(a.numbers), json_decref(a.features);
    free(a.name), free(a.all), free(a.kept), free(a.rows);
    return err;
}
