/* preprocessor.c - reads configurations of transformers' image processors: from one of two files, for
 * three kinds with their own defaults, with three notations for sizes. */
#include "dtrain/image/image.h"
#include "dtrain/io/io.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 20 };

/* Defaults of an image processor. */
static const struct kind {
    const char *name; /* without the suffix ImageProcessor, ImageProcessorFast or FeatureExtractor */
    int shortest_edge, side;
    bool crop, pads; /* do_pad pads to a square in this kind */
    bool squares;    /* use_square_size is read */
    bool bilinear;   /* default of resample, else bicubic */
    bool native;     /* images keep their size, rounded to whole cells */
    bool tiles;      /* images are divided into tiles */
    double mean[3], std[3];
} KINDS[] = {
#define CLIP_MEAN                                                                                                      \
    {                                                                                                                  \
        0.48145466, 0.4578275, 0.40821073                                                                              \
    }
#define CLIP_STD                                                                                                       \
    {                                                                                                                  \
        0.26862954, 0.26130258, 0.27577711                                                                             \
    }
    {"CLIP", .shortest_edge = 224, .crop = true, .squares = true, .mean = CLIP_MEAN, .std = CLIP_STD},
    {"Siglip", .side = 224, .mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}},
    {"Qwen2VL", .native = true, .mean = CLIP_MEAN, .std = CLIP_STD},
    {"GotOcr2", .side = 384, .tiles = true, .mean = CLIP_MEAN, .std = CLIP_STD},
    {"Gemma3", .side = 224, .bilinear = true, .mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}},
    {"Llava", .shortest_edge = 224, .crop = true, .pads = true, .mean = CLIP_MEAN, .std = CLIP_STD},
};

static const struct kind *kind_of(const char *type)
{
    static const char *const ENDINGS[] = {"ImageProcessor", "ImageProcessorFast", "ImageProcessorPil",
                                          "FeatureExtractor"};
    for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
        const size_t len = strlen(KINDS[k].name);
        if (strncmp(type, KINDS[k].name, len)) continue;
        for (size_t e = 0; e < sizeof ENDINGS / sizeof ENDINGS[0]; e++)
            if (!strcmp(type + len, ENDINGS[e])) return &KINDS[k];
    }
    return NULL;
}

void dt_preprocessor_usual(const char *type, double mean[3], double std[3])
{
    const struct kind *k = kind_of(type);
    for (int c = 0; c < 3; c++) mean[c] = k->mean[c], std[c] = k->std[c];
}

static dt_err read_kind(const dt_spec *s, const struct kind **kind)
{
    const char *type = "", *key = "feature_extractor_type";
    DT_TRY(dt_spec_string(s, key, &type));
    if (dt_spec_has(s, "image_processor_type")) DT_TRY(dt_spec_string(s, key = "image_processor_type", &type));
    *kind = kind_of(type);
    if (*kind) return DT_OK;
    return dt_spec_bad(s, *type ? key : "image_processor_type",
                       "CLIPImageProcessor, SiglipImageProcessor, LlavaImageProcessor, Gemma3ImageProcessor, "
                       "GotOcr2ImageProcessor or Qwen2VLImageProcessor");
}

/* An enabled step that is not implemented here would change the pixels. */
static dt_err refuse_other_steps(const dt_spec *s)
{
    static const char *const KNOWN[] = {"do_convert_rgb", "do_pad",     "do_resize",
                                        "do_center_crop", "do_rescale", "do_normalize"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)s->value, key, value)
    {
        bool known = strncmp(key, "do_", 3) || !json_is_true(value);
        for (size_t k = 0; k < sizeof KNOWN / sizeof KNOWN[0] && !known; k++) known = !strcmp(key, KNOWN[k]);
        if (!known) return dt_spec_bad(s, key, "false, because this step is not supported");
    }
    return DT_OK;
}

/* null disables a step, as in transformers; a missing key has the default of its kind. */
static dt_err read_step(const dt_spec *s, const char *key, bool *on)
{
    if (!json_is_null(json_object_get(s->value, key))) return dt_spec_bool(s, key, on);
    *on = false;
    return DT_OK;
}

static dt_err read_side(const dt_spec *s, const char *key, int *side)
{
    int64_t value = 0;
    DT_TRY(dt_spec_int(s, key, 1, DT_MAX_IMAGE_SIZE, &value));
    *side = (int)value;
    return *side ? DT_OK : dt_spec_bad(s, key, "an integer");
}

static dt_err read_pair(const dt_spec *list, int *height, int *width)
{
    int *const sides[] = {height, width};
    char expected[64];
    snprintf(expected, sizeof expected, "an integer from 1 to %d", DT_MAX_IMAGE_SIZE);
    if (json_array_size(list->value) != 2) return dt_spec_bad(list, NULL, "[height, width]");
    for (size_t i = 0; i < 2; i++) {
        const dt_spec item = dt_spec_item(list, i);
        const json_int_t side = json_is_integer(item.value) ? json_integer_value(item.value) : 0;
        if (side < 1 || side > DT_MAX_IMAGE_SIZE) return dt_spec_bad(&item, NULL, expected);
        *sides[i] = (int)side;
    }
    return DT_OK;
}

/* Read an integer, [height, width], {"height", "width"} or {"shortest_edge"}. An integer is the shortest
 * edge, or the side of a square if edge is NULL. */
static dt_err read_size(const dt_spec *s, const char *key, int *edge, int *height, int *width)
{
    dt_spec size;
    if (!dt_spec_get(s, key, &size)) return DT_OK;
    *height = *width = 0;
    if (edge) *edge = 0;
    if (json_is_array(size.value)) return read_pair(&size, height, width);
    if (json_is_object(size.value)) {
        if (edge && dt_spec_has(&size, "shortest_edge")) {
            DT_TRY(dt_spec_only(&size, "shortest_edge"));
            return read_side(&size, "shortest_edge", edge);
        }
        DT_TRY(dt_spec_only(&size, "height width"));
        DT_TRY(read_side(&size, "height", height));
        return read_side(&size, "width", width);
    }
    if (edge) return read_side(s, key, edge);
    DT_TRY(read_side(s, key, height));
    *width = *height;
    return DT_OK;
}

/* Kosmos-2's use_square_size: both sides are the shortest edge. Newer versions of transformers use 224,
 * whatever the size. */
static dt_err read_square(const dt_spec *s, const struct kind *kind, dt_preprocessor *p)
{
    bool square = false;
    DT_TRY(dt_spec_bool(s, "use_square_size", &square));
    if (!square || !kind->squares) return DT_OK;
    if (p->shortest_edge != kind->shortest_edge)
        return dt_spec_bad(
            s, "use_square_size",
            "false, because its result depends on the version of transformers; set size {height, width} instead");
    p->height = p->width = p->shortest_edge;
    p->shortest_edge = 0;
    return DT_OK;
}

/* One value per colour, or one for all. */
static dt_err read_colour(const dt_spec *s, const char *key, double lo, double hi, double out[3])
{
    dt_spec list;
    if (!dt_spec_get(s, key, &list)) return DT_OK;
    const bool one = json_is_number(list.value);
    if (!one && json_array_size(list.value) != 3) return dt_spec_bad(&list, NULL, "one number or three");
    for (size_t i = 0; i < 3; i++) {
        const dt_spec item = one ? list : dt_spec_item(&list, i);
        char expected[64];
        snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
        out[i] = json_number_value(item.value);
        if (!json_is_number(item.value) || !(out[i] >= lo && out[i] <= hi)) return dt_spec_bad(&item, NULL, expected);
    }
    return DT_OK;
}

/* Images of native resolution. size has pixels, not edges; the older keys override it. */
static dt_err read_native(const dt_spec *s, dt_preprocessor *p)
{
    enum { MAX_CELL = 1024 };
    const int64_t most = DT_IMAGE_MAX_PIXELS;
    bool resize = true;
    int64_t patch = 14, merge = 2, resample = DT_BICUBIC;
    dt_spec size;
    p->min_pixels = 56 * 56;
    p->max_pixels = 28 * 28 * 1280;
    DT_TRY(read_step(s, "do_resize", &resize));
    if (!resize) return dt_spec_bad(s, "do_resize", "true, because sides must be multiples of a cell");
    DT_TRY(read_step(s, "do_pad", &p->pad));
    if (p->pad) return dt_spec_bad(s, "do_pad", "false, because only LlavaImageProcessor pads to a square");
    if (dt_spec_get(s, "size", &size)) {
        DT_TRY(dt_spec_only(&size, "shortest_edge longest_edge min_pixels max_pixels"));
        DT_TRY(dt_spec_int(&size, "min_pixels", 1, most, &p->min_pixels));
        DT_TRY(dt_spec_int(&size, "max_pixels", 1, most, &p->max_pixels));
        DT_TRY(dt_spec_int(&size, "shortest_edge", 1, most, &p->min_pixels));
        DT_TRY(dt_spec_int(&size, "longest_edge", 1, most, &p->max_pixels));
    }
    DT_TRY(dt_spec_int(s, "min_pixels", 1, most, &p->min_pixels));
    DT_TRY(dt_spec_int(s, "max_pixels", 1, most, &p->max_pixels));
    DT_TRY(dt_spec_int(s, "patch_size", 1, MAX_CELL, &patch));
    DT_TRY(dt_spec_int(s, "merge_size", 1, 8, &merge));
    DT_TRY(dt_spec_int(s, "resample", DT_NEAREST, DT_HAMMING, &resample));
    DT_CHECK(p->min_pixels <= p->max_pixels && patch * merge <= MAX_CELL, s->err ? s->err : DT_ERR_DATA,
             "%s: size: expected shortest_edge (min_pixels) of at most longest_edge (max_pixels), and cells of at most "
             "%d pixels, found %lld, %lld and %lld",
             s->file, (int)MAX_CELL, (long long)p->min_pixels, (long long)p->max_pixels, (long long)(patch * merge));
    p->resample = (dt_resample)resample;
    p->patch = (int)patch, p->merge = (int)merge;
    p->cell = p->out_height = p->out_width = (int)(patch * merge);
    return DT_OK;
}

/* Sizes of the enabled steps, and the output size. */
static dt_err read_steps(const dt_spec *s, const struct kind *kind, dt_preprocessor *p)
{
    bool resize = true, crop = kind->crop;
    int64_t resample = kind->bilinear ? DT_BILINEAR : DT_BICUBIC;
    DT_TRY(read_step(s, "do_resize", &resize));
    DT_TRY(read_step(s, "do_center_crop", &crop));
    DT_TRY(read_step(s, "do_pad", &p->pad));
    if (p->pad && !kind->pads)
        return dt_spec_bad(s, "do_pad", "false, because only LlavaImageProcessor pads to a square");
    p->shortest_edge = kind->shortest_edge;
    p->height = p->width = kind->side;
    p->crop_height = p->crop_width = 224;
    DT_TRY(read_size(s, "size", &p->shortest_edge, &p->height, &p->width));
    DT_TRY(read_size(s, "crop_size", NULL, &p->crop_height, &p->crop_width));
    DT_TRY(read_square(s, kind, p));
    DT_TRY(dt_spec_int(s, "resample", DT_NEAREST, DT_HAMMING, &resample));
    p->resample = (dt_resample)resample;
    if (!resize) p->shortest_edge = p->height = p->width = 0;
    if (!crop) p->crop_height = p->crop_width = 0;

    const int square = p->pad ? p->shortest_edge : 0; /* the side of a square is its shortest edge */
    p->out_height = crop ? p->crop_height : square ? square : p->height;
    p->out_width = crop ? p->crop_width : square ? square : p->width;
    if (p->out_height) return DT_OK;
    if (resize && !kind->crop)
        return dt_spec_bad(
            s, "size", "{height, width}, because a shortest edge keeps the aspect ratio, so image sizes would differ");
    return dt_spec_bad(s, resize ? "do_center_crop" : "do_resize", "true, because image sizes would differ otherwise");
}

/* After the other steps, which may only resize to a square. crop_to_patches is not read: transformers' processor of
 * InternVL sets it. */
static dt_err read_tiles(const dt_spec *s, dt_preprocessor *p)
{
    enum { MOST = 1024 };
    p->min_tiles = 1, p->max_tiles = 12;
    DT_TRY(dt_spec_int(s, "min_patches", 1, MOST, &p->min_tiles));
    DT_TRY(dt_spec_int(s, "max_patches", 1, MOST, &p->max_tiles));
    if (p->min_tiles > p->max_tiles) return dt_spec_bad(s, "min_patches", "at most max_patches");
    if (p->crop_height) return dt_spec_bad(s, "do_center_crop", "false, because images are divided into tiles");
    if (!p->height) return dt_spec_bad(s, "do_resize", "true, because images are divided into tiles");
    if (p->height != p->width) return dt_spec_bad(s, "size", "equal height and width");
    p->cell = p->width;
    return DT_OK;
}

static dt_err read_numbers(const dt_spec *s, const struct kind *kind, dt_preprocessor *p)
{
    bool rescale = true, normalise = true;
    p->rescale_factor = 1.0 / 255;
    memcpy(p->mean, kind->mean, sizeof p->mean);
    memcpy(p->std, kind->std, sizeof p->std);
    DT_TRY(read_step(s, "do_rescale", &rescale));
    DT_TRY(read_step(s, "do_normalize", &normalise));
    DT_TRY(dt_spec_real(s, "rescale_factor", 1e-9, 1e9, &p->rescale_factor));
    DT_TRY(read_colour(s, "image_mean", p->pad ? 0 : -1e6, p->pad ? 1 : 1e6, p->mean));
    DT_TRY(read_colour(s, "image_std", 1e-9, 1e9, p->std));
    const bool no_mean = json_is_null(json_object_get(s->value, "image_mean")),
               no_std = json_is_null(json_object_get(s->value, "image_std"));
    if (normalise && (no_mean || no_std))
        return dt_spec_bad(s, no_mean ? "image_mean" : "image_std", "one number or three if do_normalize is true");
    if (no_mean) p->mean[0] = p->mean[1] = p->mean[2] = 0;
    if (!rescale) p->rescale_factor = 1;
    for (int c = 0; c < 3; c++) {
        p->colour[c] = p->pad ? (uint8_t)(p->mean[c] * 255) : 0; /* from the mean, even if it is not subtracted */
        if (!normalise) p->mean[c] = 0, p->std[c] = 1;
    }
    return DT_OK;
}

static dt_err read_object(const dt_spec *s, dt_preprocessor *p)
{
    const struct kind *kind;
    *p = (dt_preprocessor){0};
    DT_TRY(read_kind(s, &kind));
    DT_TRY(refuse_other_steps(s));
    DT_TRY(kind->native ? read_native(s, p) : read_steps(s, kind, p));
    if (kind->tiles) DT_TRY(read_tiles(s, p));
    DT_TRY(read_numbers(s, kind, p));
    p->json = json_dumps(s->value, JSON_INDENT(2));
    DT_CHECK(p->json, DT_ERR_MEMORY, "%s: out of memory for its text", s->file);
    return DT_OK;
}

/* The configuration is the whole file, or the value of its key image_processor. inner: only the latter is
 * accepted, and p->json stays NULL if the key is missing. */
static dt_err read_file(const char *file, bool inner, dt_preprocessor *p)
{
    dt_spec root, found;
    dt_err err = dt_spec_load(&root, file, MAX_FILE, 0, NULL, NULL);
    if (err == DT_OK && dt_spec_get(&root, "image_processor", &found))
        err = json_is_object(found.value) ? read_object(&found, p) : dt_spec_bad(&found, NULL, "an object");
    else if (err == DT_OK && !inner)
        err = read_object(&root, p);
    dt_spec_unload(&root);
    return err;
}

/* transformers 5 writes processor_config.json and prefers it. Older versions use that file for other settings. */
dt_err dt_preprocessor_find(const char *dir, dt_preprocessor *p)
{
    char file[PATH_MAX];
    *p = (dt_preprocessor){0};
    if (dt_is_in(file, dir, "processor_config.json")) DT_TRY(read_file(file, true, p));
    return !p->json && dt_is_in(file, dir, "preprocessor_config.json") ? read_file(file, false, p) : DT_OK;
}

dt_err dt_preprocessor_read(const char *path, dt_preprocessor *p)
{
    char file[PATH_MAX];
    *p = (dt_preprocessor){0};
    if (!dt_is_directory(path)) return read_file(path, false, p);
    DT_TRY(dt_preprocessor_find(path, p));
    if (p->json) return DT_OK;
    DT_CHECK(dt_join_path(file, path, "preprocessor_config.json", ""), DT_ERR_DATA, "%s: the name is too long", path);
    return read_file(file, false, p); /* reports that it is missing */
}

dt_err dt_preprocessor_parse(const char *file, const char *json, size_t nbytes, dt_preprocessor *p)
{
    dt_spec root = {.file = file};
    json_t *value;
    *p = (dt_preprocessor){0};
    DT_TRY(dt_json_parse(&value, file, json, nbytes, 0));
    root.value = value;
    const dt_err err = dt_preprocessor_from(&root, p);
    json_decref(value);
    return err;
}

dt_err dt_preprocessor_from(const dt_spec *object, dt_preprocessor *p)
{
    *p = (dt_preprocessor){0};
    return json_is_object(object->value) ? read_object(object, p) : dt_spec_bad(object, NULL, "an object");
}

/* ---- description ------------------------------------------------------------------------------------------------- */

static void say_size(const dt_preprocessor *p, char *text, size_t size)
{
    static const char *const filters[] = {"nearest", "Lanczos", "bilinear", "bicubic", "box", "Hamming"};
    const char *how = filters[p->resample];
    if (p->max_tiles)
        snprintf(text, size, "tiles of %d x %d pixels, %s", p->cell, p->cell, how);
    else if (p->cell)
        snprintf(text, size, "cells of %d x %d patches of %d pixels, %s", p->merge, p->merge, p->patch, how);
    else if (p->shortest_edge)
        snprintf(text, size, "shortest edge %d, %s", p->shortest_edge, how);
    else if (p->height)
        snprintf(text, size, "%d x %d, %s", p->width, p->height, how);
    else
        snprintf(text, size, "none");
}

static void say_colours(const double x[3], char *text, size_t size)
{
    snprintf(text, size, "%.9g, %.9g, %.9g", (double)(float)x[0], (double)(float)x[1], (double)(float)x[2]);
}

const char *dt_preprocessor_differs(const dt_preprocessor *a, const dt_preprocessor *b, dt_preprocessor_words *of_a,
                                    dt_preprocessor_words *of_b)
{
    static const char *const keys[] = {"do_pad",         "size and resample", "crop_size",
                                       "rescale_factor", "image_mean",        "image_std"};
    const dt_preprocessor *const both[] = {a, b};
    for (int k = 0; k < (int)(sizeof keys / sizeof keys[0]); k++) {
        dt_preprocessor_words *const words[] = {of_a, of_b};
        for (int i = 0; i < 2; i++) {
            const dt_preprocessor *p = both[i];
            char *text = words[i]->text;
            const size_t size = sizeof words[i]->text;
            snprintf(text, size, "none");
            if (k == 0 && p->pad)
                snprintf(text, size, "a margin of %d, %d, %d", p->colour[0], p->colour[1], p->colour[2]);
            if (k == 1) say_size(p, text, size);
            if (k == 2 && p->crop_height) snprintf(text, size, "%d x %d", p->crop_width, p->crop_height);
            if (k == 3) snprintf(text, size, "%.9g", (double)(float)p->rescale_factor);
            if (k >= 4) say_colours(k == 4 ? p->mean : p->std, text, size);
        }
        if (strcmp(of_a->text, of_b->text) != 0) return keys[k];
    }
    return NULL;
}

void dt_preprocessor_free(dt_preprocessor *p)
{
    free(p->json);
    *p = (dt_preprocessor){0};
}
