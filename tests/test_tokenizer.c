/* test_tokenizer.c - tokenizer.json against what Hugging Face's tokenizers makes of the same texts (make_tokenizer_fixtures.py), and what must hold of any. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "dtrain/tokenizer.h"
#include "tokenizer_corpus.h"

#define FOLDER "tests/data/tokenizer"
static const char *const families[] = {"gpt2", "roberta", "llama3", "qwen2", "tekken", "deepseek", "smollm", "falcon",
                                       "llama2", "llama2_flags", "mistral", "metaspace", "words", "subwords", "bare"};
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

/* ---- against the reference ----------------------------------------------------------------------------------------------- */

static void same_ids(const char *name, size_t k, const char *what, const dt_ids *ids, const json_t *expected, size_t first)
{
    bool same = ids->n == json_array_size(expected) - first;
    for (size_t i = 0; same && i < ids->n; i++) same = ids->id[i] == json_integer_value(json_array_get(expected, i + first));
    if (!same) fail_msg("%s: case %zu: %s differ", name, k, what);
}

static void same_text(const subject *s, const char *name, size_t k, const dt_ids *ids, bool skip, const json_t *expected)
{
    size_t n;
    char *text = dt_decode(s->tokenizer, ids->id, (int64_t)ids->n, skip, &n);
    assert_non_null(text);
    if (n != json_string_length(expected) || memcmp(text, json_string_value(expected), n) != 0)
        fail_msg("%s: case %zu: expected the text \"%s\", found \"%s\"", name, k, json_string_value(expected), text);
    free(text);
}

static void texts_have_the_ids_of_the_reference(void **state)
{
    (void)state;
    json_t *cases = json_load_file(FOLDER "/cases.json", 0, NULL);
    assert_true(json_array_size(cases) > 70);
    for (size_t f = 0; f < N_FAMILIES; f++) {
        subject s = open_family(families[f]);
        const int32_t bos = dt_tokenizer_get_info(s.tokenizer)->bos;
        for (size_t k = 0; k < json_array_size(cases); k++) {
            char text[1024];
            const size_t n = unhex(json_string_value(json_array_get(cases, k)), text);
            const json_t *one = json_array_get(json_object_get(s.expected, "cases"), k), *wrapped = json_object_get(one, "wrapped");
            dt_ids ids = {0}, both = {0};
            encode(&s, text, n, 0, &ids);
            same_ids(families[f], k, "ids", &ids, json_object_get(one, "ids"), 0);
            same_text(&s, families[f], k, &ids, false, json_object_get(one, "text"));
            same_text(&s, families[f], k, &ids, true, json_object_get(one, "visible"));
            encode(&s, text, n, DT_ENCODE_WRAP, &both); /* the reference would put a second BOS */
            same_ids(families[f], k, "wrapped ids", &both, wrapped, ids.n && bos >= 0 && ids.id[0] == bos && json_array_size(wrapped) > ids.n);
            free(ids.id);
            free(both.id);
        }
        close_family(&s);
    }
    json_decref(cases);
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

static void a_large_corpus_has_the_ids_of_the_reference(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_the_ids_of_the_reference),
        cmocka_unit_test(a_large_corpus_has_the_ids_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
