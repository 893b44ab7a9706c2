/* images.c - images of prompts: read as the model's preprocessor_config.json says, by the ranks that need them. */
#include "app.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_PATCHES = 4096 };

size_t generate_image_nbytes(const app *a)
{
    const int64_t S = a->frozen.mc.vision->image_size;
    return (size_t)(3 * S * S);
}

dt_err generate_describe_images(app *a)
{
    const dt_vision_config *v = a->frozen.mc.vision;
    const options *o = &a->opt;
    DT_CHECK(v || o->n_images == 0, DT_ERR_USAGE, "--image: %s is a language model: it takes no images",
             a->frozen.from.path);
    if (!v) return DT_OK;
    a->reader.image_token = v->image_token;
    a->reader.n_image_tokens = (int32_t)v->n_tokens;
    a->reader.image = o->image;
    a->reader.n_images = o->n_images;
    if (!a->tok) return DT_OK;
    size_t n;
    a->reader.image_text = a->image_text = dt_decode(a->tok, &v->image_token, 1, false, &n);
    DT_CHECK(a->image_text, DT_ERR_MEMORY, "no memory for the name of token %" PRId32, v->image_token);
    DT_CHECK(n > 0, DT_ERR_DATA, "%s: the tokenizer has no token %" PRId32 ", the placeholder of images",
             a->frozen.from.path, v->image_token);
    return DT_OK;
}

/* A checkpoint's configuration has it, too. */
static dt_err open_preprocessor(app *a)
{
    const dt_model_config *mc = &a->frozen.mc;
    const int64_t S = mc->vision->image_size;
    const char *path = a->frozen.from.path;
    if (a->preprocessor.json) return DT_OK;
    json_t *root = json_loads(mc->json, 0, NULL);
    char *own = json_dumps(json_object_get(root, "preprocessor_config"), JSON_COMPACT);
    const dt_err err =
        own ? dt_preprocessor_parse(path, own, strlen(own), &a->preprocessor)
            : dt_fail(DT_ERR_DATA, "%s: no preprocessor_config.json, which says how images are made ready", path);
    free(own);
    json_decref(root);
    DT_TRY(err);
    DT_CHECK(a->preprocessor.out_height == S && a->preprocessor.out_width == S, DT_ERR_DATA,
             "%s: preprocessor_config.json makes images of %d x %d pixels, but the model's tower takes %" PRId64
             " x %" PRId64,
             path, a->preprocessor.out_width, a->preprocessor.out_height, S, S);
    return DT_OK;
}

dt_err generate_read_image(app *a, const char *path, uint8_t *pixels)
{
    dt_image image = {0};
    DT_TRY(open_preprocessor(a));
    dt_err err = dt_image_read(path, &image);
    if (err == DT_OK) err = dt_image_prepare(&a->preprocessor, path, &image, pixels);
    dt_image_free(&image);
    return err;
}

static bool is_mine(const app *a, int prompt)
{
    bool mine = a->opt.stream || a->comm.nranks == 1;
    for (int i = 0; !mine && i < a->n_out; i++) mine = generate_owner(a, prompt * a->n_out + i) == a->comm.rank;
    return mine;
}

static dt_err load(app *a, int prompt)
{
    const dt_prompt *p = &a->prompts.prompt[prompt];
    if (p->n_images == 0) return DT_OK;
    DT_CHECK(!a->opt.score, DT_ERR_USAGE, "--score: prompt %d has an image: texts alone are judged", prompt);
    for (int i = 0; i < a->n_out; i++) a->seqs[prompt * a->n_out + i].n_images = p->n_images;
    if (!is_mine(a, prompt)) return DT_OK;
    const size_t nbytes = generate_image_nbytes(a);
    uint8_t *pixels = a->pixels[prompt] = malloc((size_t)p->n_images * nbytes);
    DT_CHECK(pixels, DT_ERR_MEMORY, "out of memory for %d images of prompt %d", p->n_images, prompt);
    for (int i = 0; i < a->n_out; i++) a->seqs[prompt * a->n_out + i].pixels = pixels;
    for (int i = 0; i < p->n_images; i++) DT_TRY(generate_read_image(a, p->image[i], pixels + (size_t)i * nbytes));
    return DT_OK;
}

dt_err generate_load_images(app *a)
{
    a->pixels = calloc((size_t)a->prompts.n + 1, sizeof *a->pixels);
    DT_CHECK(a->pixels, DT_ERR_MEMORY, "out of memory for the images of %d prompts", a->prompts.n);
    for (int i = 0; i < a->prompts.n; i++) DT_TRY(load(a, i));
    return DT_OK;
}

/* A pass has as many as its prompts' tokens and the tower's patches have room for. */
void generate_size_images(const app *a, dt_generate_options *g, int64_t most)
{
    const dt_vision_config *v = a->frozen.mc.vision;
    if (!v || most == 0) return;
    const int64_t least_tok = g->n_slots - 1 + v->n_tokens;
    if (g->max_tok < least_tok) g->max_tok = (int32_t)least_tok;
    int64_t n = g->max_tok / v->n_tokens;
    n = n < PASS_PATCHES / v->n_rows ? n : PASS_PATCHES / v->n_rows;
    n = n < most ? n : most;
    g->vision = v;
    g->max_images = (int32_t)(n > 1 ? n : 1);
}

void generate_free_images(app *a)
{
    for (int i = 0; a->pixels && i < a->prompts.n; i++) free(a->pixels[i]);
    free(a->pixels);
    dt_preprocessor_free(&a->preprocessor);
    free(a->image_text);
}
