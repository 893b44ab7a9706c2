// NEEDS: PCRE2 UTF8PROC
/* test_unicode.c - every character of Unicode is to the tokenizer what it is to Hugging Face's tokenizers, whatever
 * versions the machine's libraries have: checksums by make_unicode_fixtures.py. */
#include "cases.h"
#include "../src/tokenizer/splitter.h"
#include "dtrain/text/utf8.h"

enum { N_ALL = 0x110000 - 0x800, N_DRAWN = 400000 };

typedef struct fixture {
    json_t *root;
    dt_matcher *matcher;
    dt_text text[2]; /* every character in order; drawn at random */
    dt_text buffer[DT_SPLIT_MAX];
} fixture;

static void put_char(dt_text *t, uint32_t c)
{
    char bytes[4];
    dt_text_append(t, bytes, dt_utf8_put(c, bytes));
}

static uint32_t nth(uint32_t i) { return i < 0xd800 ? i : i + 0x800; }

/* drawn() of the script. */
static uint32_t drawn(uint32_t i)
{
    static const uint32_t below[] = {0x400, 0x20000, 0x110000, 0x110000};
    const uint64_t r = dt_mix64(i);
    const uint32_t c = (uint32_t)((r >> 8) % below[r % 4]);
    return c >= 0xd800 && c < 0xe000 ? 32 : c;
}

static int open_fixture(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    f->root = json_load_file("tests/data/tokenizer/unicode.json", 0, NULL);
    for (uint32_t i = 0; i < N_ALL; i++) put_char(&f->text[0], nth(i));
    for (uint32_t i = 0; i < N_DRAWN; i++) put_char(&f->text[1], drawn(i));
    return f->root && dt_matcher_open(&f->matcher) == DT_OK ? 0 : -1;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    json_decref(f->root);
    dt_matcher_close(f->matcher);
    for (int i = 0; i < 2; i++) free(f->text[i].bytes);
    for (int i = 0; i < DT_SPLIT_MAX; i++) free(f->buffer[i].bytes);
    free(f);
    return 0;
}

static void same(const char *what, size_t k, uint64_t sum, const json_t *expected)
{
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)sum);
    if (!json_is_string(expected) || strcmp(text, json_string_value(expected)) != 0)
        fail_msg("%s: text %zu differs from the reference", what, k);
}

TEST(classes_hold_the_characters_of_the_reference)
{
    fixture *f = *state;
    const json_t *classes = json_object_get(f->root, "classes");
    const char *pattern;
    json_t *expected;
    assert_true(json_object_size(classes) > 350);
    json_object_foreach((json_t *)classes, pattern, expected)
    {
        char runs[512];
        dt_regex *r;
        dt_matches at;
        uint64_t sum = 0;
        snprintf(runs, sizeof runs, "(?:%s)+", pattern);
        if (dt_regex_compile(&r, runs, strlen(runs), DT_REGEX_ONIGURUMA) != DT_OK)
            fail_msg("%s: %s", pattern, dt_error_message());
        assert_int_equal(dt_matches_begin(&at, r, f->matcher, f->text[0].bytes, f->text[0].n, NULL), DT_OK);
        for (bool found;;) {
            assert_int_equal(dt_regex_next(&at, &found), DT_OK);
            if (!found) break;
            for (const char *p = f->text[0].bytes + at.begin; p < f->text[0].bytes + at.end;)
                sum += dt_mix64(dt_utf8_next(&p));
        }
        dt_regex_free(r);
        same(pattern, 0, sum, expected);
    }
}

typedef struct places {
    const char *text;
    size_t byte_at, char_at;
    uint64_t sum;
} places;

static size_t char_place(places *p, const char *at)
{
    for (const char *next; p->text + p->byte_at < at; p->char_at++) {
        next = p->text + p->byte_at;
        dt_utf8_next(&next);
        p->byte_at = (size_t)(next - p->text);
    }
    return p->char_at;
}

static dt_err visit(void *ctx, dt_segment *piece)
{
    places *p = ctx;
    const uint64_t begin = char_place(p, piece->text + piece->from), end = char_place(p, piece->text + piece->to);
    p->sum += dt_mix64(begin << 32 | end);
    return DT_OK;
}

TEST(every_text_is_split_as_by_the_reference)
{
    fixture *f = *state;
    const json_t *splits = json_object_get(f->root, "splits");
    assert_true(json_array_size(splits) >= 12);
    for (size_t i = 0; i < json_array_size(splits); i++) {
        const json_t *one = json_array_get(splits, i);
        const dt_spec root = {.file = "unicode.json", .value = one};
        char *name = json_dumps(json_object_get(one, "pre_tokenizer"), JSON_COMPACT);
        dt_splitter s;
        if (dt_splitter_read(&s, &root) != DT_OK) fail_msg("%s", dt_error_message());
        for (size_t k = 0; k < 2; k++) {
            places p = {.text = f->text[k].bytes};
            dt_marks marks = {0};
            dt_segment piece = {.text = f->text[k].bytes, .to = f->text[k].n, .at_start = true};
            const dt_split_run run = {
                .splitter = &s, .matcher = f->matcher, .buffer = f->buffer, .marks = &marks, .visit = visit, .ctx = &p};
            if (dt_split(&run, &piece) != DT_OK) fail_msg("%s: %s", name, dt_error_message());
            same(name, k, p.sum, json_array_get(json_object_get(one, "sums"), k));
        }
        dt_splitter_free(&s);
        free(name);
    }
}

/* Every character between two texts, followed by a newline. */
static dt_text between(const char *before, const char *after)
{
    dt_text t = {0};
    for (uint32_t i = 0; i < N_ALL; i++) {
        dt_text_append(&t, before, strlen(before));
        put_char(&t, nth(i));
        dt_text_append(&t, after, strlen(after));
        dt_text_append(&t, "\n", 1);
    }
    return t;
}

static uint64_t normal_sum(const fixture *f, const dt_normalizer *n, const dt_text *text)
{
    dt_text buffer[2] = {{0}, {0}};
    dt_segment p = {.text = text->bytes, .to = text->n, .at_start = true};
    uint64_t sum = 0;
    assert_int_equal(dt_normalize(n, f->matcher, buffer, &p, false), DT_OK);
    for (size_t i = p.from; i < p.to; i++) sum += ((unsigned char)p.text[i] + 1u) * dt_mix64(i - p.from);
    for (int i = 0; i < 2; i++) free(buffer[i].bytes);
    return sum;
}

TEST(normal_forms_are_those_of_the_reference)
{
    static const char *const around[][2] = {{"", ""},
                                            {"a", "\xcc\x81"},
                                            {"\xcd\x85", "\xcc\xb4"},
                                            {"\xea\xb0\x80", "\xe1\x86\xa8"},
                                            {"\xe0\xa4\x95", "\xe3\x82\x99"}};
    enum { N_AROUND = 5 };
    fixture *f = *state;
    const char *name;
    json_t *sums;
    json_object_foreach(json_object_get(f->root, "normalizers"), name, sums)
    {
        json_t *root = json_pack("{s:{s:s}}", "normalizer", "type", name);
        dt_normalizer n;
        if (dt_normalizer_read(&n, &(dt_spec){.file = "test", .value = root}) != DT_OK)
            fail_msg("%s", dt_error_message());
        for (size_t k = 0; k < N_AROUND + 2; k++) {
            dt_text text = k < N_AROUND ? between(around[k][0], around[k][1]) : f->text[k - N_AROUND];
            same(name, k, normal_sum(f, &n, &text), json_array_get(sums, k));
            if (k < N_AROUND) free(text.bytes);
        }
        dt_normalizer_free(&n);
        json_decref(root);
    }
}

int main(void) { return run_listed(NULL, open_fixture, close_fixture); }
