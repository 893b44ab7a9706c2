// NEEDS: LIBJPEG LIBPNG LIBWEBP
/* test_image.c - images as a model's input: the results of Pillow and transformers for files and sizes
 * (make_image_fixtures.py), and refused files. */
#include "cases.h"
#include "dtrain/image/image.h"
#include <jansson.h>
#include <limits.h>
#include <png.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <webp/encode.h>
/* it wants stdio.h first */
#include <jpeglib.h>

#define DATA "tests/data/image"

static json_t *expected; /* expected.json */

static int open_expected(void **state)
{
    json_error_t why;
    expected = json_load_file(DATA "/expected.json", 0, &why);
    return expected ? 0 : -1;
}

static int close_expected(void **state)
{
    json_decref(expected);
    return 0;
}

/* FNV-1a, as the fixtures have it. */
static void sum_of(const uint8_t *bytes, size_t n, char out[17])
{
    uint64_t x = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) x = (x ^ bytes[i]) * 0x100000001b3;
    snprintf(out, 17, "%016llx", (unsigned long long)x);
}

static void expect_sum(const json_t *want, const uint8_t *bytes, size_t n, const char *what)
{
    char got[17];
    sum_of(bytes, n, got);
    if (strcmp(got, json_string_value(want))) fail_msg("%s: the bytes differ", what);
}

static int int_of(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}
static int item_of(const json_t *object, const char *key, size_t i)
{
    return (int)json_integer_value(json_array_get(json_object_get(object, key), i));
}

/* The fixtures' formula. */
static dt_image image_of(int width, int height, int seed)
{
    const size_t n = 3 * (size_t)width * (size_t)height;
    dt_image image = {width, height, malloc(n)};
    assert_non_null(image.rgb);
    for (size_t i = 0; i < n; i++) {
        const uint8_t x = (uint8_t)(dt_mix64(i + ((uint64_t)seed << 32)) >> 56);
        image.rgb[i] = seed ? x : (x & 1) * 255;
    }
    return image;
}

static char message[1024];
static dt_err take_message(dt_err err)
{
    snprintf(message, sizeof message, "%s", dt_error_message());
    dt_error_clear();
    return err;
}

TEST(files_are_decoded_as_pillow_does)
{
    const char *name;
    json_t *want;
    json_object_foreach(json_object_get(expected, "files"), name, want)
    {
        char path[PATH_MAX];
        dt_image image;
        snprintf(path, sizeof path, DATA "/files/%s", name);
        const dt_err err = take_message(dt_image_read(path, &image));
        if (json_is_null(want)) {
            assert_int_equal(err, DT_ERR_DATA);
            assert_null(image.rgb);
            if (strncmp(message, path, strlen(path))) fail_msg("%s: refused by \"%s\"", name, message);
            continue;
        }
        if (err != DT_OK) fail_msg("%s", message);
        const int width = (int)json_integer_value(json_array_get(want, 0)),
                  height = (int)json_integer_value(json_array_get(want, 1));
        if (image.width != width || image.height != height) fail_msg("%s: %d x %d", name, image.width, image.height);
        expect_sum(json_array_get(want, 2), image.rgb, 3 * (size_t)width * (size_t)height, name);
        dt_image_free(&image);
    }
}

TEST(refusals_state_the_reason)
{
    static const char *const REASONS[][2] = {{"cut.jpg", "cut short"},
                                             {"cut.png", "cut short"},
                                             {"cut.ppm", "cut short"},
                                             {"cut.webp", "cut short"},
                                             {"empty.ppm", "empty"},
                                             {"text.ppm", "expected JPEG"},
                                             {"bomb.png", "20000 x 20000"},
                                             {"bomb.ppm", "20000 x 20000"},
                                             {"no_pixels.ppm", "has no pixels"},
                                             {"too_bright.ppm", "from 0 to 255"},
                                             {"strip.ppm", "2000000 x 1"}};
    for (size_t i = 0; i < sizeof REASONS / sizeof REASONS[0]; i++) {
        char path[PATH_MAX];
        dt_image image;
        snprintf(path, sizeof path, DATA "/files/%s", REASONS[i][0]);
        take_message(dt_image_read(path, &image));
        if (!strstr(message, REASONS[i][1])) fail_msg("%s: \"%s\"", REASONS[i][0], message);
    }
}

/* A text of 1.8 GB in a file of 50 bytes. */
TEST(what_a_cut_chunk_says_it_has_takes_no_memory)
{
    static const uint8_t PNG[] = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x0d\0\0\0\7\x8\2\0\0\0\x5c\x12\x50\x4d"
                                 "nitytEXta";
    struct rusage before, after;
    dt_image image;
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(take_message(dt_image_decode("x", PNG, sizeof PNG, &image)), DT_ERR_DATA);
    getrusage(RUSAGE_SELF, &after);
    assert_string_equal(message, "x: the image is cut short");
    assert_true(after.ru_maxrss - before.ru_maxrss < 500000); /* KB */
}

/* Resizing alone: an image processor without a crop. */
TEST(sizes_are_as_pillow_resizes)
{
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(expected, "resized"), i, c)
    {
        const int width = item_of(c, "to", 0), height = item_of(c, "to", 1);
        dt_image image = image_of(item_of(c, "from", 0), item_of(c, "from", 1), int_of(c, "seed"));
        uint8_t *out = malloc(3 * (size_t)width * (size_t)height);
        const dt_preprocessor p = {.width = width,
                                   .height = height,
                                   .resample = (dt_resample)int_of(c, "resample"),
                                   .out_width = width,
                                   .out_height = height};
        char what[96];
        snprintf(what, sizeof what, "%d x %d to %d x %d by %d", image.width, image.height, width, height, p.resample);
        assert_int_equal(dt_image_prepare(&p, what, &image, out), DT_OK);
        expect_sum(json_object_get(c, "sum"), out, 3 * (size_t)width * (size_t)height, what);
        free(out);
        dt_image_free(&image);
    }
}

TEST(plain_loops_give_the_same_bytes)
{
    setenv("DTRAIN_ISA", "v2", 1);
    sizes_are_as_pillow_resizes(state);
    unsetenv("DTRAIN_ISA");
}

TEST(processors_are_as_transformers_has_them)
{
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(expected, "processed"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "processor"));
        char path[PATH_MAX], what[PATH_MAX + 32];
        dt_preprocessor p, again;
        snprintf(path, sizeof path, DATA "/processors/%s", name);
        if (take_message(dt_preprocessor_read(path, &p)) != DT_OK) fail_msg("%s", message);
        assert_int_equal(dt_preprocessor_parse("text", p.json, strlen(p.json), &again), DT_OK); /* as it is recorded */
        dt_image image = image_of(int_of(c, "width"), int_of(c, "height"), 1);
        const size_t n = 3 * (size_t)p.out_width * (size_t)p.out_height;
        uint8_t *out = malloc(n);
        snprintf(what, sizeof what, "%s: %d x %d", name, image.width, image.height);
        assert_int_equal(dt_image_prepare(&again, what, &image, out), DT_OK);
        expect_sum(json_object_get(c, "sum"), out, n, what);
        free(out);
        dt_image_free(&image);
        dt_preprocessor_free(&p);
        dt_preprocessor_free(&again);
    }
}

static dt_err parse(const char *text, dt_preprocessor *p)
{
    return take_message(dt_preprocessor_parse("p.json", text, strlen(text), p));
}

TEST(parsed_values_are_the_effective_ones)
{
    dt_preprocessor p;
    assert_int_equal(parse("{\"image_processor_type\": \"SiglipImageProcessor\", \"do_rescale\": false}", &p), DT_OK);
    assert_true(p.rescale_factor == 1 && p.mean[2] == 0.5 && p.std[0] == 0.5 && p.out_width == 224);
    dt_preprocessor_free(&p);
    assert_int_equal(parse("{\"image_processor_type\": \"LlavaImageProcessorFast\", \"do_pad\": true, "
                           "\"do_normalize\": false, \"image_mean\": [0, 0.5, 1], \"crop_size\": [9]}",
                           &p),
                     DT_ERR_DATA);
    assert_non_null(strstr(message, "p.json: crop_size: expected [height, width], found [9]"));
    assert_int_equal(parse("{\"image_processor_type\": \"LlavaImageProcessorFast\", \"do_pad\": true, "
                           "\"do_normalize\": false, \"image_mean\": [0, 0.5, 1], \"crop_size\": 9}",
                           &p),
                     DT_OK);
    assert_true(p.rescale_factor == 1.0 / 255 && p.mean[1] == 0 && p.std[1] == 1 && p.out_height == 9);
    assert_true(p.colour[0] == 0 && p.colour[1] == 127 && p.colour[2] == 255);
    dt_preprocessor_free(&p);
}

/* However it is written; numbers as 32 bits hold them. */
TEST(preprocessors_are_compared_by_meaning)
{
#define OF(type, more) "{\"image_processor_type\": \"" type "ImageProcessor\"" more "}"
    static const char *const CASES[][3] = {
        {OF("CLIP", ""), OF("CLIP", ", \"size\": {\"shortest_edge\": 224}, \"crop_size\": 224, \"do_resize\": true"),
         NULL},
        {OF("CLIP", ""), OF("Llava", ", \"resample\": 3"), NULL},
        {OF("CLIP", ""), OF("CLIP", ", \"image_mean\": [0.48145466, 0.4578275000001, 0.40821073]"), NULL},
        {OF("Siglip", ""), OF("Siglip", ", \"image_mean\": 0.5, \"image_std\": [0.5, 0.5, 0.5]"), NULL},
        {OF("Siglip", ", \"do_normalize\": false"), OF("Siglip", ", \"do_normalize\": false, \"image_mean\": 0"), NULL},
        {OF("CLIP", ", \"do_resize\": false"), OF("CLIP", ", \"do_resize\": false, \"resample\": 2"), NULL},
        {OF("CLIP", ", \"do_normalize\": false, \"do_resize\": false"),
         OF("CLIP", ", \"do_normalize\": null, \"do_resize\": null"), NULL},
        {OF("Qwen2VL", ""), OF("Qwen2VL", ", \"min_pixels\": 784, \"max_pixels\": 65536"), NULL},
        {OF("GotOcr2", ""), OF("GotOcr2", ", \"min_patches\": 2, \"max_patches\": 4"), NULL},
        {OF("Qwen2VL", ""), OF("Qwen2VL", ", \"patch_size\": 16"), "size and resample"},
        {OF("GotOcr2", ""), OF("GotOcr2", ", \"resample\": 2"), "size and resample"},
        {OF("Llava", ""), OF("Llava", ", \"do_pad\": true"), "do_pad"},
        {OF("CLIP", ""), OF("CLIP", ", \"size\": {\"height\": 224, \"width\": 224}"), "size and resample"},
        {OF("CLIP", ""), OF("CLIP", ", \"resample\": 2"), "size and resample"},
        {OF("CLIP", ""), OF("CLIP", ", \"crop_size\": 223"), "crop_size"},
        {OF("CLIP", ""), OF("CLIP", ", \"do_rescale\": false"), "rescale_factor"},
        {OF("CLIP", ""), OF("CLIP", ", \"image_mean\": [0.48145466, 0.457828, 0.40821073]"), "image_mean"},
        {OF("CLIP", ""), OF("CLIP", ", \"image_std\": 0.25"), "image_std"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        dt_preprocessor a, b;
        dt_preprocessor_words of_a, of_b;
        assert_int_equal(parse(CASES[i][0], &a), DT_OK);
        assert_int_equal(parse(CASES[i][1], &b), DT_OK);
        const char *key = dt_preprocessor_differs(&a, &b, &of_a, &of_b);
        if (!key != !CASES[i][2] || (key && strcmp(key, CASES[i][2]))) fail_msg("%zu: %s", i, key ? key : "none");
        if (key) assert_string_not_equal(of_a.text, of_b.text);
        dt_preprocessor_free(&a);
        dt_preprocessor_free(&b);
    }
#undef OF
}

TEST(mistakes_are_named_by_file_and_key)
{
#define CLIP "{\"image_processor_type\": \"CLIPImageProcessor\", "
    static const char *const WRONG[][2] = {
        {"[]", "p.json: expected an object"},
        {"{\"size\": 224}", "p.json: image_processor_type: expected CLIPImageProcessor, "},
        {"{\"image_processor_type\": \"LlavaNextImageProcessor\"}", "found \"LlavaNextImageProcessor\""},
        {CLIP "\"do_thumbnail\": true}", "p.json: do_thumbnail: expected false"},
        {CLIP "\"do_pad\": true}", "p.json: do_pad: expected false"},
        {CLIP "\"do_center_crop\": false}", "p.json: do_center_crop: expected true"},
        {CLIP "\"size\": {\"shortest_edge\": 0}}", "p.json: size.shortest_edge: expected an integer from 1"},
        {CLIP "\"size\": {\"shortest_edge\": 9, \"longest_edge\": 12}}", "p.json: size.longest_edge: "},
        {CLIP "\"size\": {\"height\": 9}}", "p.json: size.width: "},
        {CLIP "\"size\": \"big\"}", "p.json: size: "},
        {CLIP "\"size\": [9, 0]}", "p.json: size[1]: expected an integer from 1"},
        {CLIP "\"size\": 50, \"use_square_size\": true}", "p.json: use_square_size: expected false"},
        {CLIP "\"image_mean\": null}", "p.json: image_mean: expected one number or three if do_normalize is true"},
        {"{\"image_processor_type\": \"SiglipImageProcessor\", \"size\": 50}",
         "p.json: size: expected {height, width}, because a shortest edge keeps the aspect"},
        {CLIP "\"resample\": 6}", "p.json: resample: expected an integer from 0 to 5"},
        {CLIP "\"image_std\": [1, 1, 0]}", "p.json: image_std[2]: "},
        {"{\"image_processor_type\": \"LlavaImageProcessor\", \"do_pad\": true, \"image_mean\": 1.5}",
         "p.json: image_mean: expected a number from 0 to 1"},
        {CLIP "\"image_mean\": [1, 1]}", "p.json: image_mean: "},
        {CLIP "\"rescale_factor\": true}", "p.json: rescale_factor: "},
        {CLIP "\"note\": \"\\u0000\"}", "p.json:1:63: not valid JSON"}};
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) {
        dt_preprocessor p;
        assert_int_equal(parse(WRONG[i][0], &p), DT_ERR_DATA);
        if (!strstr(message, WRONG[i][1])) fail_msg("%s: \"%s\"", WRONG[i][0], message);
        assert_null(p.json);
    }
}

TEST(files_of_a_directory_are_named)
{
    dt_preprocessor p;
    assert_int_equal(take_message(dt_preprocessor_read(DATA "/files", &p)), DT_ERR_DATA);
    assert_non_null(strstr(message, DATA "/files/preprocessor_config.json"));
    assert_int_equal(take_message(dt_preprocessor_read(DATA "/processors/llava/processor_config.json", &p)), DT_OK);
    assert_true(p.pad && p.out_width == 24);
    dt_preprocessor_free(&p);
}

/* A column whose pixel values are their indices, resized by nearest neighbour to `height` pixels and cropped to the
 * middle: Pillow's running sum. */
static void check_nearest(const dt_image *column, int height)
{
    enum { KEPT = 9 };
    uint8_t out[3 * KEPT];
    const int kept = height < KEPT ? height : KEPT, first = (height - kept) / 2;
    const dt_preprocessor p = {
        .width = 1, .height = height, .resample = DT_NEAREST, .out_width = 1, .out_height = kept};
    const double scale = (double)column->height / height;
    double at = scale * 0.5;
    assert_int_equal(dt_image_prepare(&p, "column", column, out), DT_OK);
    for (int i = 0; i < first + kept; i++, at += scale) {
        if (i < first) continue;
        const uint8_t *pixel = out + 3 * (i - first);
        const int got = pixel[0] << 16 | pixel[1] << 8 | pixel[2],
                  want = at < column->height ? (int)at : column->height - 1;
        if (got != want) fail_msg("%d to %d: output %d is pixel %d, not %d", column->height, height, i, got, want);
    }
}

TEST(the_nearest_pixel_is_where_a_running_sum_is)
{
    static const int HEIGHTS[] = {1, 2, 3, 7, 1000, 1024, 99991, 1000000};
    for (size_t k = 0; k < sizeof HEIGHTS / sizeof HEIGHTS[0]; k++) {
        dt_image column = {1, HEIGHTS[k], malloc(3 * (size_t)HEIGHTS[k])};
        for (int y = 0; y < column.height; y++)
            for (int c = 0; c < 3; c++) column.rgb[3 * y + c] = (uint8_t)(y >> (16 - 8 * c));
        for (int height = 1; height < 3000; height += 1 + height / 5) check_nearest(&column, height);
        check_nearest(&column, 999983);
        check_nearest(&column, 4000037);
        dt_image_free(&column);
    }
}

/* 4096 x 4096000000 pixels before the crop. */
TEST(the_nearest_pixel_of_a_long_strip_is_found)
{
    dt_image strip = {1, 1000000, calloc(1000000, 3)};
    const dt_preprocessor p = {.shortest_edge = 4096, .resample = DT_NEAREST, .out_width = 2, .out_height = 2};
    uint8_t out[12];
    memset(strip.rgb + 3 * 499999, 7, 6);
    assert_int_equal(dt_image_prepare(&p, "strip", &strip, out), DT_OK);
    for (int i = 0; i < 12; i++) assert_int_equal(out[i], 7);
    dt_image_free(&strip);
}

/* A strip so long that padding it to a square would take more than the memory that images may take. */
TEST(padding_of_a_strip_is_limited)
{
    dt_image strip = image_of(20000, 1, 1);
    dt_preprocessor p;
    uint8_t out[27];
    assert_int_equal(
        parse("{\"image_processor_type\": \"LlavaImageProcessor\", \"do_pad\": true, \"crop_size\": 3}", &p), DT_OK);
    assert_int_equal(take_message(dt_image_prepare(&p, "strip", &strip, out)), DT_ERR_DATA);
    assert_non_null(strstr(message, "strip: the image is too large: padding 20000 x 1 pixels"));
    dt_preprocessor_free(&p);
    dt_image_free(&strip);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

typedef struct encoded {
    uint8_t *bytes;
    size_t nbytes;
} encoded;

enum { SIDE = 1200, LONG_SIDE = 600000 }; /* of a PNG, decoding takes some rows */

/* Of several scans: all coefficients are kept. */
static encoded jpeg_of(const dt_image *image)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned long n = 0;
    encoded e = {0};
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &e.bytes, &n);
    jpeg.image_width = (JDIMENSION)image->width, jpeg.image_height = (JDIMENSION)image->height;
    jpeg.input_components = 3, jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < image->height; y++) {
        JSAMPROW row = image->rgb + 3 * (size_t)y * (size_t)image->width;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    e.nbytes = n;
    return e;
}

static encoded png_of(const dt_image *image)
{
    png_image png = {.version = PNG_IMAGE_VERSION, .format = PNG_FORMAT_RGB};
    encoded e = {0};
    png_alloc_size_t n = 0;
    png.width = (png_uint_32)image->width, png.height = (png_uint_32)image->height;
    assert_true(png_image_write_to_memory(&png, NULL, &n, 0, image->rgb, 0, NULL));
    e = (encoded){malloc(n), n};
    assert_true(png_image_write_to_memory(&png, e.bytes, &n, 0, image->rgb, 0, NULL));
    return e;
}

static encoded webp_of(const dt_image *image)
{
    uint8_t *bytes;
    const size_t n = WebPEncodeRGB(image->rgb, image->width, image->height, 3 * image->width, 50, &bytes);
    encoded e = {malloc(n), n};
    assert_true(n && e.bytes);
    memcpy(e.bytes, bytes, n);
    WebPFree(bytes);
    return e;
}

static size_t pages_of_this(void)
{
    size_t n = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_true(f && fscanf(f, "%zu", &n) == 1);
    fclose(f);
    return n;
}

/* In a process that may take so much more: what it says. */
static dt_err decode_within(const encoded *e, size_t nbytes)
{
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        const size_t most = pages_of_this() * (size_t)sysconf(_SC_PAGESIZE) + nbytes;
        dt_image image;
        if (setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) != 0) _exit(99);
        _exit((int)dt_image_decode("a picture", e->bytes, e->nbytes, &image));
    }
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return (dt_err)WEXITSTATUS(status);
}

/* With more and more memory: first there is not enough, then the image; at no time is it called damaged. */
TEST(without_memory_no_image_is_called_damaged)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    skip(); /* they take their memory by other ways */
#endif
    if (getenv("VALGRIND")) skip();
    dt_image flat = {SIDE, SIDE, calloc(3, (size_t)SIDE * SIDE)}, row = {LONG_SIDE, 1, calloc(3, LONG_SIDE)};
    assert_true(flat.rgb && row.rgb);
    const encoded files[] = {jpeg_of(&flat), png_of(&row), webp_of(&flat)};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        int n_without = 0, n_decoded = 0;
        for (size_t nbytes = 0; nbytes < (size_t)40 << 20 && n_decoded < 2; nbytes += (size_t)1 << 19) {
            const dt_err err = decode_within(&files[i], nbytes);
            if (err != DT_OK && err != DT_ERR_MEMORY) fail_msg("file %zu with %zu bytes: code %d", i, nbytes, (int)err);
            n_without += err == DT_ERR_MEMORY;
            n_decoded += err == DT_OK;
        }
        assert_true(n_without > 1 && n_decoded == 2);
        free(files[i].bytes);
    }
    dt_image_free(&flat);
    dt_image_free(&row);
}

int main(void) { return run_listed(NULL, open_expected, close_expected); }
