/* bench_image.c - images decoded and resized per second of one core's time, compared with Pillow.
 *
 *     bench_image [FILE...]      images; without any, some that are made here: waves with noise, as JPEG and PNG
 *
 * As for CLIP at 336: the shorter side to 336, bicubic, the middle of the other. "resize" is that part alone.
 * PYTHON=... names a Python that has Pillow or Pillow-SIMD, which calls itself PIL, too. The best of several rounds
 * of 0.3 s. */
#include "dtrain/image/image.h"
#include "dtrain/io/io.h"
#include <jpeglib.h>
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N_ROUNDS = 5, N_MADE = 4 };
static const double ROUND_S = 0.3;
static const char PROCESSOR[] = "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 336, \"crop_size\": 336}";

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void draw(dt_image *image)
{
    for (int y = 0; y < image->height; y++)
        for (int x = 0; x < image->width; x++)
            for (int c = 0; c < 3; c++) {
                const int64_t i = 3LL * (y * image->width + x) + c;
                const double wave = sin(x / (9.0 + 4 * c)) + cos(y / (11.0 - 3 * c)) + sin(x * y / 9e3);
                image->rgb[i] = (uint8_t)(128 + 36 * wave + (double)(dt_mix64((uint64_t)i) >> 60));
            }
}

/* Quality 85, colour at half the resolution both ways: libjpeg's usual sampling. */
static void write_jpeg(const char *path, const dt_image *image)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    FILE *f = fopen(path, "wb");
    if (!f) exit(1);
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, f);
    jpeg.image_width = (JDIMENSION)image->width;
    jpeg.image_height = (JDIMENSION)image->height;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 85, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < jpeg.image_height) {
        JSAMPROW row = image->rgb + 3 * (size_t)jpeg.next_scanline * jpeg.image_width;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    fclose(f);
}

static void write_png(const char *path, const dt_image *image)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)image->width,
                     .height = (png_uint_32)image->height,
                     .format = PNG_FORMAT_RGB};
    if (!png_image_write_to_file(&png, path, 0, image->rgb, 0, NULL)) exit(1);
}

static void make(char paths[N_MADE][64], const char *folder)
{
    static const int SIZES[N_MADE][2] = {{500, 375}, {640, 480}, {1600, 1200}, {640, 480}};
    for (int k = 0; k < N_MADE; k++) {
        const int width = SIZES[k][0], height = SIZES[k][1];
        dt_image image = {width, height, malloc(3 * (size_t)width * (size_t)height)};
        if (!image.rgb) exit(1);
        draw(&image);
        snprintf(paths[k], sizeof paths[k], "%.30s/%dx%d.%s", folder, width, height, k < 3 ? "jpg" : "png");
        (k < 3 ? write_jpeg : write_png)(paths[k], &image);
        dt_image_free(&image);
    }
}

typedef struct rates {
    double all, resize; /* images per second */
    char version[24];   /* of Pillow; Pillow-SIMD's ends in .postN */
} rates;

static dt_err one(const char *bytes, size_t n, const dt_preprocessor *p, uint8_t *out, double *resize_s)
{
    dt_image image;
    DT_TRY(dt_image_decode("image", bytes, n, &image));
    const double begin_s = cpu_s();
    const dt_err err = dt_image_prepare(p, "image", &image, out);
    *resize_s += cpu_s() - begin_s;
    dt_image_free(&image);
    return err;
}

static dt_err measure(const char *path, const dt_preprocessor *p, rates *best)
{
    char *bytes;
    size_t n;
    dt_err err = DT_OK;
    uint8_t *out = malloc(3 * (size_t)p->out_width * (size_t)p->out_height);
    DT_TRY(dt_read_file(path, (size_t)1 << 30, &bytes, &n));
    *best = (rates){0};
    for (int r = 0; r < N_ROUNDS && err == DT_OK; r++) {
        double resize_s = 0, s = 0;
        int n_done = 0;
        const double begin_s = cpu_s();
        for (; s < ROUND_S && err == DT_OK; n_done++, s = cpu_s() - begin_s) err = one(bytes, n, p, out, &resize_s);
        best->all = fmax(best->all, n_done / s);
        best->resize = fmax(best->resize, n_done / resize_s);
    }
    free(bytes);
    free(out);
    return err;
}

static rates peer(const char *path)
{
    char command[2048];
    rates r = {0};
    const char *python = getenv("PYTHON");
    if (!python) return r;
    snprintf(command, sizeof command,
             "%s -c \"\n"
             "import io, time, PIL; from PIL import Image, ImageOps\n"
             "data = open('%s', 'rb').read(); all = resize = 0; now = time.process_time\n"
             "for _ in range(%d):\n"
             "    n = s = t = 0; begin = now()\n"
             "    while s < %g:\n"
             "        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert('RGB')\n"
             "        a = now(); w, h = image.size; k = min(w, h)\n"
             "        image = image.resize((336 * w // k, 336 * h // k), 3); w, h = image.size\n"
             "        x, y = (w - 336) // 2, (h - 336) // 2; image.crop((x, y, x + 336, y + 336)).tobytes()\n"
             "        n += 1; t += now() - a; s = now() - begin\n"
             "    all = max(all, n / s); resize = max(resize, n / t)\n"
             "print(all, resize, PIL.__version__)\"",
             python, path, (int)N_ROUNDS, ROUND_S);
    FILE *f = popen(command, "r");
    if (f && fscanf(f, "%lf %lf %23s", &r.all, &r.resize, r.version) != 3) r = (rates){0};
    if (f) pclose(f);
    return r;
}

static dt_err run(char **paths, int n)
{
    dt_preprocessor p;
    DT_TRY(dt_preprocessor_parse("processor", PROCESSOR, strlen(PROCESSOR), &p));
    printf("%-16s %10s %10s %12s %12s %7s %7s\n", "image", "all, 1/s", "resize", "Pillow: all", "resize", "all",
           "resize");
    dt_err err = DT_OK;
    for (int k = 0; k < n && err == DT_OK; k++) {
        rates ours = {0};
        const char *slash = strrchr(paths[k], '/');
        if ((err = measure(paths[k], &p, &ours)) != DT_OK) break;
        const rates theirs = peer(paths[k]);
        printf("%-16.16s %10.0f %10.0f", slash ? slash + 1 : paths[k], ours.all, ours.resize);
        if (theirs.all > 0)
            printf(" %12.0f %12.0f %6.2fx %6.2fx  %s", theirs.all, theirs.resize, ours.all / theirs.all,
                   ours.resize / theirs.resize, theirs.version);
        printf("\n");
        fflush(stdout);
    }
    dt_preprocessor_free(&p);
    return err;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/dtrain-bench-XXXXXX", made[N_MADE][64], *paths[N_MADE];
    const bool given = argc > 1;
    if (!given) {
        if (!mkdtemp(folder)) return 1;
        make(made, folder);
        for (int k = 0; k < N_MADE; k++) paths[k] = made[k];
    }
    const dt_err err = given ? run(argv + 1, argc - 1) : run(paths, N_MADE);
    if (err != DT_OK) fprintf(stderr, "%s\n", dt_error_message());
    for (int k = 0; k < N_MADE && !given; k++) unlink(made[k]);
    if (!given) rmdir(folder);
    return dt_exit_code(err);
}
