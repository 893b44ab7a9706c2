// NEEDS: PCRE2 LIBJPEG LIBPNG
/* test_data_image_names.c - how a record may name an image: a path, a file: URL, a data: URI, OpenAI's image_url.
 * All give the same dataset; remote images are refused. */
#include "cases.h"
#include "data_make_fixture.h"
#include "dtrain/chat/chat.h"
#include "dtrain/core/core.h"
#include "dtrain/io/io.h"
#include <limits.h>

#define FILES "tests/data/image/files/"
#define MODEL "tests/data/vision_data/model"

static dt_make_options with_images(void)
{
    dt_make_options o = options();
    o.tokenizer = MODEL;
    o.chat_template = "chatml";
    o.images = (dt_image_options){.preprocessor = MODEL, .token = "<image>", .n_tokens = 4, .token_id = -1};
    return o;
}

static char *base64(const char *path)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *bytes;
    size_t n, at = 0;
    assert_int_equal(dt_read_file(path, 1 << 24, &bytes, &n), DT_OK);
    char *out = malloc(4 * (n / 3 + 1) + 1);
    for (size_t i = 0; i < n; i += 3) {
        unsigned bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0u);
        for (int k = 0; k < 4; k++) out[at++] = (size_t)k <= n - i ? digits[bits >> (18 - 6 * k) & 63] : '=';
    }
    out[at] = '\0';
    free(bytes);
    return out;
}

/* Make a dataset of a record that names an image; its file's bytes. */
static char *made(const char *before, const char *name, const char *after, size_t *n)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    char *record, *bytes;
    assert_true(asprintf(&record, "%s%s%s\n", before, name, after) > 0);
    if (make(record, &o, &stats) != DT_OK) print_message("%.200s\n%.300s\n", record, dt_error_message());
    assert_int_equal(stats.n_images, 1);
    assert_int_equal(dt_read_file(output, 1 << 24, &bytes, n), DT_OK);
    free(record);
    return bytes;
}

#define ANSWER "{\"role\": \"assistant\", \"content\": \"a\"}]"
#define LISTED "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, " ANSWER ", \"images\": [\""
#define PART "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \""
#define AFTER_PART "\"}}, {\"type\": \"text\", \"text\": \"q\"}]}, " ANSWER "}"

static void must_be_the_same(const char *file, const char *type)
{
    char path[PATH_MAX], url[PATH_MAX + 64], escaped[PATH_MAX + 64], *data, *text = base64(file);
    size_t n, n_same;
    assert_non_null(realpath(file, path));
    const char *name = strrchr(path, '/') + 1;
    snprintf(url, sizeof url, "file://%s", path);
    snprintf(escaped, sizeof escaped, "FILE://localhost%.*s%%%02x%s", (int)(name - path), path, name[0], name + 1);
    assert_true(asprintf(&data, "data:image/%s;base64,%s", type, text) > 0);
    char *want = made(LISTED, path, "\"]}", &n);
    const struct {
        const char *before, *name, *after;
    } same[] = {{LISTED, url, "\"]}"},
                {LISTED, escaped, "\"]}"},
                {LISTED, data, "\"]}"},
                {PART, path, AFTER_PART},
                {PART, data, AFTER_PART}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        char *found = made(same[i].before, same[i].name, same[i].after, &n_same);
        if (n_same != n || memcmp(found, want, n) != 0) print_message("%s, way %zu\n", file, i);
        assert_true(n_same == n && memcmp(found, want, n) == 0);
        free(found);
    }
    free(want);
    free(data);
    free(text);
}

TEST_WITH(every_name_gives_the_same_dataset, clear, NULL)
{
    must_be_the_same("tests/data/vision_data/square.png", "png");
    must_be_the_same(FILES "cmyk.jpg", "jpeg");
    must_be_the_same(FILES "alpha0.webp", "webp");
}

TEST_WITH(images_that_are_not_here_are_refused, clear, NULL)
{
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"https://example.com/a.jpg", "images are not downloaded (https): download the file"},
        {"HTTP://example.com/a.jpg", "images are not downloaded"},
        {"s3://bucket/a.jpg", "images are not downloaded (s3)"},
        {"file://other/a.jpg", "expected a local file with its full path, file:///PATH"},
        {"file:a.jpg", "expected a local file"},
        {"file:///a%00.jpg", "found a byte 0"},
        {"file:///not/there/a%20b.jpg", "/not/there/a b.jpg: cannot be opened"},
        {"data:image/png,abc", "expected data:image/TYPE;base64,DATA"},
        {"data:image/png;base64,ab!d", "expected base64, found a byte 0x21 after 2 digits"},
        {"data:image/png;base64,abcde", "expected base64, but its 5 digits are incomplete"},
        {"data:image/png;base64,AAAAAAAA", "data:image/png;base64,AAAAAAAA...: expected JPEG, PNG"},
        {"data:image/png;base64,", "the file is empty"},
    };
    dt_make_options o = with_images();
    dt_make_stats stats;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char record[512];
        snprintf(record, sizeof record, LISTED "%s\"]}\n", cases[i].name);
        assert_int_equal(make(record, &o, &stats), DT_ERR_DATA);
        if (!strstr(dt_error_message(), cases[i].says)) print_message("%s\n", dt_error_message());
        assert_non_null(strstr(dt_error_message(), cases[i].says));
        assert_non_null(strstr(dt_error_message(), "input:1: "));
    }
}

TEST_WITH(base64_is_bytes, clear, NULL)
{
    static const struct {
        const char *text, *bytes;
    } cases[] = {{"", ""},           {"TQ==", "M"},      {"TWE=", "Ma"},           {"TWFu", "Man"},
                 {"TWFuTQ", "ManM"}, {"TW\\nFu", "Man"}, {"TWFu TQ==\\n", "ManM"}, {"//79", "\xff\xfe\xfd"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64] = "data:;base64,", *to = text + strlen(text);
        uint8_t *bytes;
        size_t n;
        for (const char *p = cases[i].text; *p; p++) *to++ = *p == '\\' ? (p++, '\n') : *p;
        assert_int_equal(dt_image_data(text, &bytes, &n), DT_OK);
        assert_int_equal(n, strlen(cases[i].bytes));
        assert_memory_equal(bytes, cases[i].bytes, n);
        free(bytes);
    }
}

TEST_WITH(prompts_do_not_keep_the_bytes, clear, NULL)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    char *text = base64("tests/data/vision_data/square.png"), *record, *json;
    assert_true(asprintf(&record,
                         "{\"prompt\": \"<image>q\", \"image\": \"data:image/png;base64,%s\", \"level\": \"data\"}\n",
                         text) > 0);
    assert_int_equal(make(record, &o, &stats), DT_OK);
    dt_dataset *d = open_output(output);
    assert_int_equal(dt_dataset_read_record(d, 0, &json), DT_OK);
    assert_string_equal(json, "{\"image\":null,\"level\":\"data\"}");
    dt_dataset_close(d);
    free(json);
    free(record);
    free(text);
}

int main(void) { return run_listed("data_image_names", open_folder, remove_folder); }
