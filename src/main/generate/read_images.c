/* read_images.c - images of prompts, prepared as the model's preprocessor_config.json specifies, on the ranks
 * that need them. */
#include "generate_app.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASS_PATCHES = 4096 };

size_t generate_image_nbytes(const app *a) { return dt_image_nbytes(a->frozen.mc.vision->image_size); }

/* A model trained on conversations often returns an empty answer without the chat template. Prompts that
 * contain only images are exempt, because they request a caption. */
static void warn_of_raw_prompt(const app *a)
{
    const options *o = &a->opt;
    const char *known = a->reader.chat_template, *text = o->prompt;
    const bool has = (known && strcmp(known, "auto") != 0) || dt_tokenizer_get_info(a->tok)->chat_template;
    if (o->n_images == 0 || o->chat || !has || a->comm.rank > 0) return;
    const size_t n = strlen(a->image_text);
    while (text && *text && (strncmp(text, a->image_text, n) == 0 || *text == ' ' || *text == '\n'))
        text += *text == ' ' || *text == '\n' ? 1 : n;
    if (text && !*text) return;
    DT_WARN("%s has a chat template, but the prompt is passed to the model unchanged; use --chat --prompt TEXT to "
            "apply the template",
            a->frozen.from.path);
}

static dt_err check_preprocessor(const app *a)
{
    const dt_vision_config *v = a->frozen.mc.vision;
    const dt_preprocessor *p = &v->preprocessor;
    const char *path = a->frozen.from.path;
    DT_CHECK(p->out_width, DT_ERR_DATA, "%s: preprocessor_config.json, which defines image preprocessing, is missing",
             path);
    DT_CHECK(p->out_height == v->image_size && p->out_width == v->image_size, DT_ERR_DATA,
             "%s: preprocessor_config.json produces images of %d x %d pixels, but the model's tower expects %" PRId64
             " x %" PRId64,
             path, p->out_width, p->out_height, v->image_size, v->image_size);
    return DT_OK;
}

/* Read an image and find its cells. file: that names the image, NULL: none. called: its name in messages. The caller
 * frees the image, also after an error. */
static dt_err open_image(const app *a, const char *name, const char *file, char called[PATH_MAX], dt_image *image,
                         int64_t cells[2])
{
    const bool is_data = dt_image_is_data(name);
    *image = (dt_image){0};
    DT_TRY(check_preprocessor(a));
    if (!is_data) DT_TRY(dt_image_path(NULL, file, name, called));
    DT_TRY(is_data ? dt_image_read_data(name, called, image) : dt_image_read(called, image));
    return dt_image_grid(&a->frozen.mc.vision->preprocessor, called, image, &cells[0], &cells[1]);
}

/* All ranks read all images, because the lengths of prompts depend on their sizes. */
static dt_err count_cells(void *ctx, const dt_prompt *p, int k, int32_t *n)
{
    char called[PATH_MAX];
    dt_image image;
    int64_t cells[2] = {0};
    const dt_err err = open_image(ctx, p->images.path[k], p->file, called, &image, cells);
    dt_image_free(&image);
    *n = (int32_t)(cells[0] * cells[1]);
    return err;
}

dt_err generate_describe_images(app *a)
{
    const dt_vision_config *v = a->frozen.mc.vision;
    const options *o = &a->opt;
    DT_CHECK(v || o->n_images == 0, DT_ERR_USAGE,
             "--image: expected a vision-language model, found %s, a language model without images",
             a->frozen.from.path);
    if (!v) return DT_OK;
    a->reader.image_token = v->image_token;
    a->reader.n_image_tokens = (int32_t)v->n_tokens;
    a->reader.image = o->image;
    a->reader.n_images = o->n_images;
    if (!a->tok) return DT_OK;
    const char *dir = a->frozen.from.path;
    size_t n = 0;
    free(dt_decode(a->tok, &v->image_token, 1, false, &n));
    DT_CHECK(n > 0, DT_ERR_DATA, "%s: the tokenizer lacks token %" PRId32 ", the placeholder for images", dir,
             v->image_token);
    const int32_t whole[3] = {v->around[0], v->image_token, v->around[1]};
    a->reader.image_line = !v->grids && !v->wrapped;
    if (!a->reader.image_line || v->tiles) a->reader.image_alias = "<image>";
    if (dt_vision_has_cells(v)) a->reader.n_cells = count_cells, a->reader.ctx = a;
    if (v->wrapped || v->tiles) {
        const dt_image_wrap wrap = {
            v->image_token, {v->around[0], v->around[1]}, {v->tower->around[0], v->tower->around[1]}};
        DT_TRY(dt_error_prefix(dt_wrap_images(a->encoder, a->tok, &wrap, &a->image_text), "%s: ", dir));
        a->reader.image_text = a->image_text;
        warn_of_raw_prompt(a);
        return DT_OK;
    }
    a->reader.image_text = a->image_text =
        v->grids ? dt_decode(a->tok, whole, 3, false, &n) : dt_decode(a->tok, &v->image_token, 1, false, &n);
    DT_CHECK(a->image_text, DT_ERR_MEMORY, "out of memory for the name of token %" PRId32, v->image_token);
    warn_of_raw_prompt(a);
    return DT_OK;
}

/* The image in the tower's format: pixels [cells, generate_image_nbytes], and its grid, 0 if images are no grids. */
static dt_err prepare(const app *a, const char *called, const dt_image *image, const int64_t cells[2], uint8_t *pixels,
                      uint32_t *grid)
{
    const dt_preprocessor *p = &a->frozen.mc.vision->preprocessor;
    *grid = p->cell ? dt_grid_code(cells[0], cells[1]) : 0;
    return dt_image_prepare(p, called, image, pixels);
}

/* ---- images of conversations ------------------------------------------------------------------------------------- */

dt_err generate_load_image(const app *a, const char *path, int32_t most, uint8_t **pixels, int64_t *n_cells,
                           uint32_t *grid)
{
    const int64_t n_tokens = a->frozen.mc.vision->n_tokens;
    char called[PATH_MAX];
    dt_image image;
    int64_t cells[2];
    *pixels = NULL;
    dt_err err = open_image(a, path, NULL, called, &image, cells);
    if (err == DT_OK) *n_cells = cells[0] * cells[1];
    if (err == DT_OK && *n_cells > most)
        err = dt_fail(DT_ERR_DATA,
                      "%s: the image has %lld tokens: at most %lld fit; use a smaller image, or raise --context",
                      called, (long long)(*n_cells * n_tokens), (long long)(most * n_tokens));
    if (err == DT_OK)
        err = dt_alloc(pixels, *n_cells, generate_image_nbytes(a), "out of memory for the image %s", called);
    if (err == DT_OK) err = prepare(a, called, &image, cells, *pixels, grid);
    dt_image_free(&image);
    return err;
}

/* Bytes of the first n images. */
static size_t nbytes_of(const app *a, const image_list *i, int n)
{
    size_t n_cells = 0;
    for (int k = 0; k < n; k++) n_cells += (size_t)i->n_cells[k];
    return n_cells * generate_image_nbytes(a);
}

dt_err generate_images_add(const app *a, image_list *i, int64_t n_cells, uint32_t grid, uint8_t **pixels)
{
    DT_GROW(i->n_cells, i->n, "out of memory for image %d", i->n);
    DT_GROW(i->grid, i->n, "out of memory for image %d", i->n);
    const size_t more = (size_t)n_cells * generate_image_nbytes(a);
    DT_RESIZE(i->pixels, i->nbytes + more, "out of memory for image %d", i->n);
    *pixels = i->pixels + i->nbytes;
    i->nbytes += more;
    i->n_cells[i->n] = (int32_t)n_cells;
    i->grid[i->n++] = grid;
    return DT_OK;
}

void generate_images_copy(const app *a, const image_list *i, int k, uint8_t *pixels, uint32_t *grid)
{
    const size_t from = nbytes_of(a, i, k);
    memcpy(pixels, i->pixels + from, nbytes_of(a, i, k + 1) - from);
    *grid = i->grid[k];
}

void generate_images_drop(const app *a, image_list *i, int from, int n)
{
    if (n == 0) return;
    const size_t first = nbytes_of(a, i, from), end = nbytes_of(a, i, from + n), left = (size_t)(i->n - from - n);
    memmove(i->pixels + first, i->pixels + end, i->nbytes - end);
    memmove(i->n_cells + from, i->n_cells + from + n, left * sizeof *i->n_cells);
    memmove(i->grid + from, i->grid + from + n, left * sizeof *i->grid);
    i->nbytes -= end - first;
    i->n -= n;
}

void generate_images_free(image_list *i)
{
    free(i->n_cells), free(i->grid), free(i->pixels);
    *i = (image_list){0};
}

/* ---- images of prompts ------------------------------------------------------------------------------------------- */

static bool is_mine(const app *a, int prompt)
{
    bool mine = a->opt.stream || a->comm.nranks == 1;
    for (int i = 0; !mine && i < a->n_out; i++) mine = generate_owner(a, prompt * a->n_out + i) == a->comm.rank;
    return mine;
}

static bool judge_sees_the_same(const app *a)
{
    const dt_vision_config *v = a->frozen.mc.vision, *its = a->judge.mc.vision;
    dt_preprocessor_words of_v, of_its;
    return its && its->image_size == v->image_size && its->n_tokens == v->n_tokens &&
           its->image_token == v->image_token &&
           !dt_preprocessor_differs(&v->preprocessor, &its->preprocessor, &of_v, &of_its);
}

/* Check an image's file before the model is loaded. The image is read when its sequence starts. */
static dt_err find(app *a, int prompt)
{
    const dt_prompt *p = &a->prompts.prompt[prompt];
    const int n = p->images.n;
    char path[PATH_MAX];
    if (n == 0) return DT_OK;
    DT_CHECK(!a->opt.score || a->opt.answers || judge_sees_the_same(a), DT_ERR_USAGE,
             "--score: prompt %d has an image: expected a scoring model that prepares images as the generating model "
             "does; to score with this one, store the answers (--jsonl -o FILE), and give the file in --answers",
             prompt);
    for (int i = 0; i < a->n_out; i++) {
        a->seqs[prompt * a->n_out + i].n_images = n;
        a->seqs[prompt * a->n_out + i].n_cells = p->n_cells;
    }
    DT_TRY(check_preprocessor(a));
    for (int i = 0; i < n && is_mine(a, prompt); i++) {
        if (dt_image_is_data(p->images.path[i])) continue;
        DT_TRY(dt_image_path(NULL, p->file, p->images.path[i], path));
        DT_CHECK_ERRNO(access(path, R_OK) == 0, DT_ERR_DATA, path, "cannot be opened");
        if (a->opt.output) DT_TRY(dt_check_output(a->opt.output, true, (const char *const[]){path}, 1));
    }
    return DT_OK;
}

dt_err generate_find_images(app *a)
{
    for (int i = 0; i < a->prompts.n; i++) DT_TRY(find(a, i));
    return DT_OK;
}

dt_err generate_bring_image(void *ctx, const dt_sequence *s, int32_t k, uint8_t *pixels, uint32_t *grid)
{
    const app *a = ctx;
    const dt_prompt *p = &a->prompts.prompt[s->number / (uint64_t)a->n_out];
    char called[PATH_MAX];
    dt_image image;
    int64_t cells[2];
    dt_err err = open_image(a, p->images.path[k], p->file, called, &image, cells);
    if (err == DT_OK && cells[0] * cells[1] != (s->n_cells ? s->n_cells[k] : 1))
        err = dt_fail(DT_ERR_DATA, "%s: the image was replaced during the run by one of another size", called);
    if (err == DT_OK) err = prepare(a, called, &image, cells, pixels, grid);
    dt_image_free(&image);
    return err;
}

/* The largest number of cells of an image: sides differ by a factor of at most 200, and the shorter one may be a single
 * cell, which then exceeds the limit of pixels. Tiles: the whole image follows them. */
static int64_t most_cells(const dt_vision_config *v)
{
    if (v->tiles) return v->preprocessor.max_tiles + 1;
    const int64_t n = v->preprocessor.max_pixels / (v->image_size * v->image_size);
    return dt_max_i64(n, (int64_t)sqrt(200 * ((double)n + 1)) + 1);
}

/* Images per pass are limited by the prompts' tokens and by the tower's patches. A pass holds at least the largest
 * image. In a conversation the sizes of grids are not known: they have at most `most` tokens. */
void generate_size_images(const app *a, dt_generate_options *g, int64_t most)
{
    const dt_vision_config *v = a->frozen.mc.vision;
    if (!v || most == 0) return;
    const bool has_cells = dt_vision_has_cells(v);
    int64_t largest = !has_cells, all = has_cells ? 0 : most;
    if (has_cells && (a->opt.chat || a->opt.serve))
        largest = all = dt_max_i64(1, dt_min_i64(most / v->n_tokens, most_cells(v)));
    for (int i = 0; i < a->n_seqs && has_cells; i++)
        for (int32_t k = 0; k < a->seqs[i].n_images; k++) {
            largest = dt_max_i64(largest, a->seqs[i].n_cells[k]);
            all += a->seqs[i].n_cells[k];
        }
    g->max_tok = (int32_t)dt_max_i64(g->max_tok, g->n_slots - 1 + largest * v->n_tokens);
    g->vision = v;
    g->max_images =
        (int32_t)dt_max_i64(largest, dt_min_i64(dt_min_i64(g->max_tok / v->n_tokens, all), PASS_PATCHES / v->n_rows));
}

void generate_free_images(app *a) { free(a->image_text); }
