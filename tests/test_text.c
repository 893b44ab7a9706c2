/* test_text.c - tokenizers and the text they make. */
#include "cases.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"

TEST(bytes_are_ids_and_back)
{
    dt_tokenizer *t;
    dt_encoder *e;
    dt_ids ids = {0};
    int64_t ends[3];
    size_t n;
    assert_int_equal(dt_tokenizer_open(&t, "bytes"), DT_OK);
    assert_int_equal(dt_encoder_open(&e, t), DT_OK);
    const dt_span spans[] = {{.text = "H\xff", .nbytes = 2}, {.id = 256}, {.text = "i", .nbytes = 1}};
    assert_int_equal(dt_encode(e, spans, 3, DT_ENCODE_WRAP, &ids, ends), DT_OK);
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.id, ((int32_t[]){'H', 0xff, 256, 'i'}), 4 * sizeof(int32_t));
    assert_memory_equal(ends, ((int64_t[]){2, 3, 4}), sizeof ends);

    char *text = dt_decode(t, ids.id, (int64_t)ids.n, true, &n);
    assert_string_equal(text, "H\xef\xbf\xbdi");
    free(text);
    text = dt_decode(t, ids.id, (int64_t)ids.n, false, &n);
    assert_string_equal(text, "H\xef\xbf\xbd<|endoftext|>i");
    free(text);
    text = dt_decode(t, NULL, 0, true, &n);
    assert_true(n == 0 && text[0] == 0);
    free(text);
    assert_int_equal(dt_tokenizer_find(t, "<|endoftext|>"), 256);
    assert_int_equal(dt_tokenizer_find(t, "<|none|>"), -1);
    assert_true(dt_tokenizer_is_special(t, 256) && !dt_tokenizer_is_special(t, 255));
    free(ids.id);
    dt_encoder_close(e);
    dt_tokenizer_close(t);
}

/* The cases of Unicode 15.0, table 3-8 among them. */
TEST(invalid_utf8_is_replaced)
{
#define R "\xef\xbf\xbd"
    const struct {
        const char *in, *out;
    } cases[] = {{"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z", "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"},
                 {"\xc3", R},
                 {"\xe2\x82", R},
                 {"\x80x", R "x"},
                 {"\xc0\xaf", R R},
                 {"\xed\xa0\x80", R R R},
                 {"\xf4\x90\x80\x80", R R R R},
                 {"\xe0\x80\x80", R R R},
                 {"\xff", R},
                 {"\xc3(", R "("},
                 {"", ""},
                 {"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a" R R R "b" R "c" R R "d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n;
        char *text = dt_utf8_repair(cases[i].in, strlen(cases[i].in), &n);
        assert_string_equal(text, cases[i].out);
        assert_int_equal(n, strlen(cases[i].out));
        free(text);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
