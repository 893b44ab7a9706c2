// NEEDS: LIBJPEG LIBPNG LIBWEBP
/* fuzz_image.c - any bytes as an image, and as an image processor's configuration: pixels, or an error that names the
 * image and a reason. What says that it is large is refused earlier than it would be (linked with --wrap), or the
 * time would go into pixels. */
#include "../../src/image/decode_image.h"
#include "dtrain/image/image.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
dt_err __real_dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image);
dt_err __wrap_dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image);

static const char CLIP[] = "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 24, \"crop_size\": 20}",
                  LLAVA[] = "{\"image_processor_type\": \"LlavaImageProcessor\", \"size\": 9, \"crop_size\": 11, "
                            "\"do_pad\": true, \"resample\": 2}",
                  SIGLIP[] =
                      "{\"image_processor_type\": \"SiglipImageProcessor\", \"size\": [16, 16], \"resample\": 1}";

static void must(bool holds)
{
    if (!holds) abort();
}

/* Done, or refused by name. */
static bool done(dt_err err)
{
    must(err == DT_OK || (err == DT_ERR_DATA && !strncmp(dt_error_message(), "the input", 9)));
    dt_error_clear();
    return err == DT_OK;
}

dt_err __wrap_dt_image_alloc(const char *name, int64_t width, int64_t height, dt_image *image)
{
    if (width > 0 && height > 0 && width <= DT_IMAGE_MAX_FILE_SIDE && height <= DT_IMAGE_MAX_FILE_SIDE)
        DT_CHECK(width * height <= 1 << 18, DT_ERR_DATA, "%s: too large for this test", name);
    return __real_dt_image_alloc(name, width, height, image);
}

static void prepare(const dt_preprocessor *p, const dt_image *image)
{
    uint8_t *out = malloc(3 * (size_t)p->out_width * (size_t)p->out_height);
    done(dt_image_prepare(p, "the input", image, out));
    free(out);
}

static void check_picture(const uint8_t *bytes, size_t n)
{
    static const char *const PROCESSORS[] = {CLIP, LLAVA, SIGLIP};
    dt_image image;
    if (!done(dt_image_decode("the input", bytes, n, &image))) {
        must(!image.rgb);
        return;
    }
    uint64_t sum = 0; /* every byte is written: seen by the memory sanitizer and by valgrind */
    for (size_t i = 0; i < 3 * (size_t)image.width * (size_t)image.height; i++) sum += image.rgb[i];
    must(sum < UINT64_MAX);
    for (int i = 0; i < 3 && image.width < 3000 && image.height < 3000; i++) { /* padding: a square of the longer */
        dt_preprocessor p;
        must(dt_preprocessor_parse("processor", PROCESSORS[i], strlen(PROCESSORS[i]), &p) == DT_OK);
        prepare(&p, &image);
        dt_preprocessor_free(&p);
    }
    dt_image_free(&image);
}

static void check_processor(const char *text, size_t n)
{
    dt_preprocessor p, again;
    uint8_t rgb[3 * 5 * 4] = {0};
    const dt_image image = {5, 4, rgb};
    if (!done(dt_preprocessor_parse("the input", text, n, &p))) return;
    must(p.out_width > 0 && p.out_height > 0 && p.rescale_factor > 0 && p.std[0] > 0 && p.std[1] > 0 && p.std[2] > 0);
    must(dt_preprocessor_parse("the input", p.json, strlen(p.json), &again) == DT_OK);
    must(again.out_width == p.out_width && again.mean[0] == p.mean[0] && again.pad == p.pad);
    if (p.shortest_edge <= 512 && p.width <= 512 && p.height <= 512 && p.out_width <= 512 && p.out_height <= 512)
        prepare(&p, &image);
    dt_preprocessor_free(&p);
    dt_preprocessor_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = malloc(size ? size : 1); /* its own: reading past it shows */
    if (size) memcpy(bytes, data, size);
    if (size && bytes[0] == '{')
        check_processor((char *)bytes, size);
    else
        check_picture(bytes, size);
    free(bytes);
    return 0;
}
