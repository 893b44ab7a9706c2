// NEEDS: PCRE2 UTF8PROC
/* test_tokenizer.c - tokenizer.json against what Hugging Face's tokenizers makes of the same texts
 * (make_tokenizer_fixtures.py), and what must hold of any. */
#include "cases.h"
#include <jansson.h>
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include "tokenizer_corpus.h"

#define FOLDER "tests/data/tokenizer"
static const char *const families[] = {"gpt2",   "roberta",  "llama3", "qwen2",        "tekken",  "deepseek",
                                       "smollm", "falcon",   "llama2", "llama2_flags", "mistral", "metaspace",
                                       "words",  "subwords", "bare",   "gemma"};
enum { N_FAMILIES = sizeof families / sizeof families[0], BLOCK = 100 };

typedef struct subject {
    dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    json_t *expected;
} subject;

static subject open_family(const char *name)
{
    char path[256];
    json_error_t why;
    subject s;
    snprintf(path, sizeof path, FOLDER "/%s/tokenizer.json", name);
    if (dt_tokenizer_open(&s.tokenizer, path) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(dt_encoder_open(&s.encoder, s.tokenizer), DT_OK);
    snprintf(path, sizeof path, FOLDER "/%s/expected.json", name);
    s.expected = json_load_file(path, JSON_ALLOW_NUL, &why);
    assert_non_null(s.expected);
    return s;
}

static void close_family(subject *s)
{
    dt_encoder_close(s->encoder);
    dt_tokenizer_close(s->tokenizer);
    json_decref(s->expected);
}

static void encode(const subject *s, const char *text, size_t n, unsigned flags, dt_ids *ids)
{
    const dt_span span = {.text = text, .nbytes = n};
    if (dt_encode(s->encoder, &span, 1, flags, ids, NULL) != DT_OK) fail_msg("%s", dt_error_message());
}

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;
    for (; hex[0] && hex[1]; hex += 2) out[n++] = (char)strtol((char[]){hex[0], hex[1], 0}, NULL, 16);
    return n;
}

/* ---- against the reference --------------------------------------------------------------------------------------- */

static void same_ids(const char *name, size_t k, const char *what, const dt_ids *ids, const json_t *expected,
                     size_t first)
{
    bool same = ids->n == json_array_size(expected) - first;
    for (size_t i = 0; same && i < ids->n; i++)
        same = ids->id[i] == json_integer_value(json_array_get(expected, i + first));
    if (!same) fail_msg("%s: case %zu: %s differ", name, k, what);
}

static void same_text(const subject *s, const char *name, size_t k, const dt_ids *ids, bool skip,
                      const json_t *expected)
{
    size_t n;
    char *text = dt_decode(s->tokenizer, ids->id, (int64_t)ids->n, skip, &n);
    assert_non_null(text);
    if (n != json_string_length(expected) || memcmp(text, json_string_value(expected), n) != 0)
        fail_msg("%s: case %zu: expected the text \"%s\", found \"%s\"", name, k, json_string_value(expected), text);
    free(text);
}

TEST(texts_have_the_ids_of_the_reference)
{
    json_t *cases = json_load_file(FOLDER "/cases.json", 0, NULL);
    assert_true(json_array_size(cases) > 70);
    for (size_t f = 0; f < N_FAMILIES; f++) {
        subject s = open_family(families[f]);
        const int32_t bos = dt_tokenizer_get_info(s.tokenizer)->bos;
        for (size_t k = 0; k < json_array_size(cases); k++) {
            char text[1024];
            const size_t n = unhex(json_string_value(json_array_get(cases, k)), text);
            const json_t *one = json_array_get(json_object_get(s.expected, "cases"), k),
                         *wrapped = json_object_get(one, "wrapped");
            dt_ids ids = {0}, both = {0};
            encode(&s, text, n, 0, &ids);
            same_ids(families[f], k, "ids", &ids, json_object_get(one, "ids"), 0);
            same_text(&s, families[f], k, &ids, false, json_object_get(one, "text"));
            same_text(&s, families[f], k, &ids, true, json_object_get(one, "visible"));
            encode(&s, text, n, DT_ENCODE_WRAP, &both); /* the reference would put a second BOS */
            same_ids(families[f], k, "wrapped ids", &both, wrapped,
                     ids.n && bos >= 0 && ids.id[0] == bos && json_array_size(wrapped) > ids.n);
            free(ids.id);
            free(both.id);
        }
        close_family(&s);
    }
    json_decref(cases);
}

/* A tokenizer is written to a file, for it is read from one. */
static subject open_small(const json_t *tokenizer)
{
    char path[] = "/tmp/small-XXXXXX";
    subject s = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(json_dumpfd(tokenizer, fd, 0), 0);
    close(fd);
    if (dt_tokenizer_open(&s.tokenizer, path) != DT_OK) fail_msg("%s", dt_error_message());
    unlink(path);
    assert_int_equal(dt_encoder_open(&s.encoder, s.tokenizer), DT_OK);
    return s;
}

static void same(const char *name, const char *what, uint64_t place, const dt_ids *a, const dt_ids *b)
{
    if (a->n != b->n || (a->n && memcmp(a->id, b->id, a->n * sizeof *a->id) != 0))
        fail_msg("%s: %s: ids differ (%zu and %zu) at %llu", name, what, a->n, b->n, (unsigned long long)place);
}

/* In two spans, wherever they meet, a text has the same ids. */
static void same_in_spans(const subject *s, const char *name, const char *text, size_t n, const dt_ids *whole)
{
    dt_ids ids = {0};
    for (size_t at = 0; at <= n; at++) {
        const dt_span spans[] = {{.text = text, .nbytes = at}, {.text = text + at, .nbytes = n - at}};
        int64_t ends[2];
        ids.n = 0;
        assert_int_equal(dt_encode(s->encoder, spans, 2, 0, &ids, ends), DT_OK);
        same(name, "spans", at, whole, &ids);
        assert_true(ends[0] >= -1 && ends[0] <= ends[1] && ends[1] == (int64_t)ids.n);
    }
    free(ids.id);
}

TEST(small_tokenizers_do_as_the_reference_where_stages_meet)
{
    json_t *all = json_load_file(FOLDER "/small.json", JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(all) > 60);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *small = json_array_get(all, i), *cases = json_object_get(small, "cases");
        subject s = open_small(json_object_get(small, "tokenizer"));
        char name[32];
        snprintf(name, sizeof name, "small %zu", i);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            const json_t *one = json_array_get(cases, k), *text = json_object_get(one, "text");
            dt_ids ids = {0};
            encode(&s, json_string_value(text), json_string_length(text), 0, &ids);
            same_ids(name, k, "ids", &ids, json_object_get(one, "ids"), 0);
            same_text(&s, name, k, &ids, false, json_object_get(one, "decoded"));
            same_text(&s, name, k, &ids, true, json_object_get(one, "visible"));
            same_in_spans(&s, name, json_string_value(text), json_string_length(text), &ids);
            free(ids.id);
        }
        close_family(&s);
    }
    json_decref(all);
}

typedef struct sum {
    uint64_t value, n;
} sum;
static void add(sum *s, uint64_t v) { s->value += (v + 1) * dt_mix64(s->n++); }

static void same_sum(const char *name, size_t block, const char *what, const sum *s, const json_t *expected)
{
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)s->value);
    if (strcmp(text, json_string_value(expected)) != 0) fail_msg("%s: block %zu: %s differ", name, block, what);
}

TEST(a_large_corpus_has_the_ids_of_the_reference)
{
    static char text[DOCUMENT_MAX + 64];
    for (size_t f = 0; f < N_FAMILIES; f++) {
        subject s = open_family(families[f]);
        const json_t *blocks = json_object_get(s.expected, "blocks");
        size_t nbytes = 0;
        dt_ids ids = {0};
        for (size_t b = 0; b < json_array_size(blocks); b++) {
            sum id_sum = {0}, text_sum = {0};
            for (uint64_t d = b * BLOCK; d < (b + 1) * BLOCK; d++) {
                const size_t n = corpus_document(d, text);
                size_t n_decoded;
                ids.n = 0;
                nbytes += n;
                encode(&s, text, n, 0, &ids);
                for (size_t i = 0; i < ids.n; i++) add(&id_sum, (uint64_t)ids.id[i]);
                char *decoded = dt_decode(s.tokenizer, ids.id, (int64_t)ids.n, false, &n_decoded);
                for (size_t i = 0; i < n_decoded; i++) add(&text_sum, (unsigned char)decoded[i]);
                free(decoded);
            }
            same_sum(families[f], b, "ids", &id_sum, json_array_get(json_array_get(blocks, b), 0));
            same_sum(families[f], b, "decoded texts", &text_sum, json_array_get(json_array_get(blocks, b), 1));
        }
        assert_true(nbytes > 2000000);
        free(ids.id);
        close_family(&s);
    }
}

/* ---- what must hold of any --------------------------------------------------------------------------------------- */

/* Documents one after another. */
static size_t long_text(uint64_t first, size_t want, char *out)
{
    size_t n = 0;
    for (uint64_t d = first; n < want; d++) n += corpus_document(d, out + n);
    return n;
}

/* Lengths of parts are drawn; where no place is known among so many bytes, more are looked at. */
static size_t encode_in_parts(const subject *s, const char *text, size_t n, uint64_t seed, dt_ids *ids)
{
    size_t at = 0, n_cuts = 0, more = 0;
    for (uint64_t k = seed; at < n; k++) {
        const size_t room = 60 + dt_mix64(k) % 1500 + more, limit = n - at > room ? room : n - at;
        const size_t len = limit < n - at ? dt_text_cut(s->tokenizer, text + at, limit) : limit;
        assert_true(len > 0 && len <= limit);
        if (limit < n - at && len + 4 > limit) { /* no place is known: the cut is at the limit */
            more = 2 * more + 1000;
            continue;
        }
        encode(s, text + at, len, (at ? DT_ENCODE_GOES_ON : 0) | (at + len < n ? DT_ENCODE_MORE : 0) | DT_ENCODE_WRAP,
               ids);
        at += len;
        n_cuts += at < n;
        more = 0;
    }
    return n_cuts;
}

TEST(parts_of_a_text_have_the_ids_of_the_whole)
{
    static char text[200000 + DOCUMENT_MAX];
    for (size_t f = 0; f < N_FAMILIES; f++) {
        subject s = open_family(families[f]);
        size_t n_cuts = 0;
        for (uint64_t t = 0; t < 3; t++) {
            const size_t n = long_text(5000 + 1000 * t, 100000, text);
            dt_ids whole = {0}, parts = {0};
            encode(&s, text, n, DT_ENCODE_WRAP, &whole);
            n_cuts += encode_in_parts(&s, text, n, dt_mix64(f) + t * 100000, &parts);
            same(families[f], "parts", t, &whole, &parts);
            free(whole.id);
            free(parts.id);
        }
        /* these strip, replace by an expression, and split after a replacement */
        const bool known = strcmp(families[f], "words") != 0 && strcmp(families[f], "subwords") != 0 &&
                           strcmp(families[f], "gemma") != 0;
        if (known && n_cuts < 100) fail_msg("%s: only %zu places known to keep apart", families[f], n_cuts);
        close_family(&s);
    }
}

static size_t token_bytes(const subject *s, int32_t id)
{
    size_t n;
    if (dt_tokenizer_is_special(s->tokenizer, id)) return strlen(dt_tokenizer_token(s->tokenizer, id));
    dt_tokenizer_bytes(s->tokenizer, id, &n);
    return n;
}

/* Ends of spans by the bytes that tokens stand for: of tokenizers that change nothing in a text. */
static void ends_are_where_bytes_say(const subject *s, const char *name, const dt_span *spans, int n_spans,
                                     const dt_ids *ids, const int64_t *ends)
{
    size_t at = 0, passed = 0;
    int64_t i = 0;
    for (int k = 0; k < n_spans; k++) {
        at += spans[k].nbytes;
        while (i < (int64_t)ids->n && passed < at) passed += token_bytes(s, ids->id[i++]);
        if (ends[k] != (passed == at ? i : -1))
            fail_msg("%s: span %d ends at %lld, not %lld", name, k, (long long)ends[k],
                     passed == at ? (long long)i : -1LL);
    }
}

TEST(spans_form_one_text_and_their_ends_are_reported)
{
    static char text[DOCUMENT_MAX + 64];
    static const char *const exact[] = {"gpt2", "llama3", "tekken", "deepseek", "smollm"};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        subject s = open_family(families[f]);
        dt_ids whole = {0}, parts = {0};
        for (uint64_t d = 0; d < 600; d++) {
            const size_t n = corpus_document(20000 + d, text);
            enum { MOST = 8 };
            dt_span spans[MOST];
            int64_t ends[MOST];
            int n_spans = 0;
            for (size_t at = 0; n_spans < MOST; n_spans++) {
                const size_t len =
                    n_spans + 1 == MOST ? n - at : dt_mix64(d * MOST + (uint64_t)n_spans) % (n - at + 1) / 2;
                spans[n_spans] = (dt_span){.text = text + at, .nbytes = len};
                at += len;
            }
            whole.n = parts.n = 0;
            encode(&s, text, n, DT_ENCODE_WRAP, &whole);
            assert_int_equal(dt_encode(s.encoder, spans, n_spans, DT_ENCODE_WRAP, &parts, ends), DT_OK);
            same(families[f], "spans", d, &whole, &parts);
            int64_t last = 0;
            for (int k = 0; k < n_spans; k++) {
                assert_true(ends[k] == -1 || (ends[k] >= last && ends[k] <= (int64_t)parts.n));
                if (ends[k] >= 0) last = ends[k];
            }
            assert_true(ends[n_spans - 1] >= 0);
            parts.n = 0;
            assert_int_equal(dt_encode(s.encoder, spans, n_spans, 0, &parts, ends), DT_OK);
            for (size_t k = 0; k < sizeof exact / sizeof exact[0]; k++)
                if (strcmp(families[f], exact[k]) == 0)
                    ends_are_where_bytes_say(&s, families[f], spans, n_spans, &parts, ends);
        }
        free(whole.id);
        free(parts.id);
        close_family(&s);
    }
}

/* Ends where a text is changed on its way, and tokens that stand between. */
TEST(ends_hold_where_the_text_is_changed)
{
    const struct {
        const char *family, *span[3];
        int64_t ends[3];
    } cases[] = {
        /* composed: one character, one or two tokens of its bytes */
        {"qwen2", {"e", "\xcc\x81", ""}, {-1, 1, 1}},
        /* the token takes the blanks before it; a newline has a prefix */
        {"roberta", {"\n ", "<mask>", "\n"}, {-1, 1, 2}},
        /* each byte a U+FFFD: a prefix and three bytes, three bytes */
        {"llama2", {"", "\xff", "\xff"}, {0, 4, 7}},
        {"llama2", {"\xe4\xb8", "\xad", ""}, {-1, -2, -2}}, /* one character */
        {"mistral", {"\x01", "", "\x01"}, {2, 2, 3}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        subject s = open_family(cases[c].family);
        dt_span spans[3];
        int64_t ends[3];
        dt_ids ids = {0};
        for (int k = 0; k < 3; k++) spans[k] = (dt_span){.text = cases[c].span[k], .nbytes = strlen(cases[c].span[k])};
        assert_int_equal(dt_encode(s.encoder, spans, 3, 0, &ids, ends), DT_OK);
        for (int k = 0; k < 3; k++) {
            const int64_t expected = cases[c].ends[k] == -2 || (c == 0 && k) ? (int64_t)ids.n : cases[c].ends[k];
            if (ends[k] != expected) fail_msg("case %zu: span %d ends at %lld of %zu", c, k, (long long)ends[k], ids.n);
        }
        free(ids.id);
        close_family(&s);
    }
}

TEST(a_token_between_texts_parts_them)
{
    subject s = open_family("llama2");
    const dt_span spans[] = {{.id = 1}, {.text = "hello", .nbytes = 5}, {.id = 2}, {.text = "hello", .nbytes = 5}};
    int64_t ends[4];
    dt_ids ids = {0}, written = {0};
    assert_int_equal(dt_encode(s.encoder, spans, 4, DT_ENCODE_WRAP, &ids, ends), DT_OK);
    encode(&s, "<s>hello</s>hello", 17, 0, &written); /* as if written in the text; and no second BOS */
    same("llama2", "tokens between", 0, &ids, &written);
    const int64_t word = ((int64_t)ids.n - 2) / 2;
    assert_memory_equal(ends, ((int64_t[]){1, 1 + word, 2 + word, 2 + 2 * word}), sizeof ends);
    free(ids.id);
    free(written.id);
    close_family(&s);
}

TEST(invalid_utf8_is_encoded_as_its_replacement)
{
    for (size_t f = 0; f < N_FAMILIES; f++) {
        subject s = open_family(families[f]);
        dt_ids raw = {0}, good = {0};
        for (uint64_t d = 0; d < 300; d++) {
            char bytes[120];
            size_t n;
            for (size_t i = 0; i < sizeof bytes; i++) {
                const uint64_t r = dt_mix64(d << 32 | i);
                bytes[i] = r % 3 ? (char)(r >> 8) : "ab \n<s>\xe2\x96\x81"[(r >> 8) % 10];
            }
            char *repaired = dt_utf8_repair(bytes, sizeof bytes, &n);
            raw.n = good.n = 0;
            encode(&s, bytes, sizeof bytes, 0, &raw);
            encode(&s, repaired, n, 0, &good);
            same(families[f], "repaired", d, &raw, &good);
            free(repaired);
        }
        free(raw.id);
        free(good.id);
        close_family(&s);
    }
}

TEST(bytes_of_tokens_make_the_text)
{
    static const char *const exact[] = {"gpt2", "llama3", "tekken", "deepseek", "smollm"};
    static char text[DOCUMENT_MAX + 64], made[DOCUMENT_MAX + 64];
    for (size_t f = 0; f < sizeof exact / sizeof exact[0]; f++) {
        subject s = open_family(exact[f]);
        dt_ids ids = {0};
        for (uint64_t d = 0; d < 200; d++) {
            const size_t n = corpus_document(30000 + d, text);
            size_t n_made = 0, len;
            ids.n = 0;
            encode(&s, text, n, 0, &ids);
            for (size_t i = 0; i < ids.n; i++) {
                const bool special = dt_tokenizer_is_special(s.tokenizer, ids.id[i]);
                const char *bytes = special ? dt_tokenizer_token(s.tokenizer, ids.id[i])
                                            : dt_tokenizer_bytes(s.tokenizer, ids.id[i], &len);
                if (special) len = strlen(bytes);
                memcpy(made + n_made, bytes, len);
                n_made += len;
            }
            assert_int_equal(n_made, n);
            assert_memory_equal(made, text, n);
        }
        free(ids.id);
        close_family(&s);
    }
    subject s = open_family("llama2");
    size_t n;
    assert_memory_equal(dt_tokenizer_bytes(s.tokenizer, dt_tokenizer_find(s.tokenizer, "<0xE4>"), &n), "\xe4", 1);
    assert_int_equal(n, 1);
    assert_memory_equal(dt_tokenizer_bytes(s.tokenizer, dt_tokenizer_find(s.tokenizer, "\xe2\x96\x81"), &n), " ", 1);
    assert_int_equal(n, 1);
    dt_tokenizer_bytes(s.tokenizer, 1, &n);
    assert_int_equal(n, 0);
    dt_tokenizer_bytes(s.tokenizer, 1 << 30, &n);
    assert_int_equal(n, 0);
    assert_null(dt_tokenizer_token(s.tokenizer, -5));
    close_family(&s);
}

TEST(threads_share_a_tokenizer)
{
    subject s = open_family("qwen2");
    uint64_t sums[4] = {0};
#pragma omp parallel for num_threads(4) schedule(static, 1)
    for (int t = 0; t < 4; t++) {
        static _Thread_local char text[DOCUMENT_MAX + 64];
        dt_encoder *e;
        dt_ids ids = {0};
        if (dt_encoder_open(&e, s.tokenizer) != DT_OK) continue;
        for (uint64_t d = 0; d < 400; d++) {
            const dt_span span = {.text = text, .nbytes = corpus_document(d + 40000, text)};
            ids.n = 0;
            if (dt_encode(e, &span, 1, 0, &ids, NULL) != DT_OK) break;
            for (size_t i = 0; i < ids.n; i++) sums[t] = dt_mix64(sums[t] ^ (uint64_t)ids.id[i]);
        }
        free(ids.id);
        dt_encoder_close(e);
    }
    for (int t = 1; t < 4; t++) assert_true(sums[t] == sums[0] && sums[t] != 0);
    close_family(&s);
}

/* One piece of a megabyte: merged in n log n, and a cut where nothing is known is at the end. */
TEST(a_piece_may_be_long)
{
    enum { N = 1 << 20 };
    char *text = malloc(N);
    for (size_t i = 0; i < N; i++) text[i] = "ab"[dt_mix64(i) % 2];
    static const char *const some[] = {"gpt2", "llama3", "llama2", "bare"};
    for (size_t f = 0; f < 4; f++) {
        subject s = open_family(some[f]);
        dt_ids ids = {0};
        size_t n;
        encode(&s, text, N, 0, &ids);
        char *again = dt_decode(s.tokenizer, ids.id, (int64_t)ids.n, true, &n);
        assert_int_equal(n, N);
        assert_memory_equal(again, text, N);
        assert_int_equal(dt_text_cut(s.tokenizer, text, 5000), 5000);
        free(again);
        free(ids.id);
        close_family(&s);
    }
    free(text);
}

static void check_strip(const subject *s, const dt_added_form *a)
{
    static const char before[] = "a \n", after[] = " \n b";
    const dt_span spans[] = {
        {.text = before, .nbytes = strlen(before)}, {.id = a->id}, {.text = after, .nbytes = strlen(after)}};
    char whole[256];
    dt_ids ids = {0}, expected = {0};
    snprintf(whole, sizeof whole, "%s%s%s", before, a->text, after);
    encode(s, whole, strlen(whole), 0, &expected);
    assert_int_equal(dt_encode(s->encoder, spans, 3, 0, &ids, NULL), DT_OK);
    assert_int_equal(ids.n, expected.n);
    assert_memory_equal(ids.id, expected.id, ids.n * sizeof *ids.id);
    free(ids.id);
    free(expected.id);
}

/* A token that takes the white space next to it does so where it is given as an id, too. */
TEST(tokens_strip_like_ids)
{
    static const char *const names[] = {"qwen2", "roberta", "gpt2"};
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        subject s = open_family(names[i]);
        for (int k = 0; k < dt_tokenizer_n_added(s.tokenizer); k++) {
            const dt_added_form a = dt_tokenizer_added(s.tokenizer, k);
            if (a.single_word) continue;
            check_strip(&s, &a);
            n += a.lstrip || a.rstrip;
        }
        close_family(&s);
    }
    assert_true(n >= 4);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
