/* vision_fixture.h - tiny vision-language models of tests/data/vision (tests/make_vision_fixtures.py), with their
 * batches of sequences and images. */
#ifndef TESTS_VISION_FIXTURE_H
#define TESTS_VISION_FIXTURE_H

#include "model_expected.h"

enum { MAX_TOK = 96, MAX_SEQ = 4, MAX_IMAGES = 4 };
static const char *const CASES[] = {"clip_llama", "clip_full",     "siglip_qwen2", "linear",      "mlp",
                                    "deep_mlp",   "pixel_shuffle", "normed",       "pooled",      "pooled_clip",
                                    "siglip_72",  "gemma3",        "internvl",     "internvl_rms"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

struct fixture {
    json_t *root;
    char *config;
    int32_t lens[MAX_SEQ], images[MAX_SEQ];
    int n_seq;
    ref_model r;
    dt_batch b;
    dt_batch_images *shown; /* of b */
};

static inline void read_list(const json_t *list, int32_t *out, int *n)
{
    for (*n = 0; *n < (int)json_array_size(list); (*n)++)
        out[*n] = (int32_t)json_integer_value(json_array_get(list, (size_t)*n));
}

static inline void put_pixels(struct fixture *f, int64_t image)
{
    uint8_t *to = f->shown->pixels + (size_t)f->shown->n++ * f->shown->image_nbytes;
    for (size_t i = 0; i < f->shown->image_nbytes; i++)
        to[i] = (uint8_t)(dt_mix64((uint64_t)(7919 * (image + 1)) + i) >> 20);
}

/* Sequences and images of batch k as the script has them. */
static inline void fill(struct fixture *f, int64_t k)
{
    const int32_t token = f->r.mc.vision->image_token, N = (int32_t)f->r.mc.vision->n_tokens;
    int64_t image = 10 * k;
    ref_batch_fill(&f->b, token, k, f->n_seq, f->lens, 0);
    f->shown->n = 0;
    for (int s = 0; s < f->n_seq; s++) {
        const int32_t first = f->b.seq_start[s], end = f->b.seq_start[s + 1];
        f->shown->first[s] = f->shown->n;
        f->shown->count[s] = f->images[s];
        for (int32_t i = 0; i < f->images[s]; i++, image++) {
            for (int32_t t = 0; t < N; t++) f->b.token[first + 1 + i * (N + 1) + t] = token;
            put_pixels(f, image);
        }
        for (int32_t t = first; t + 1 < end; t++)
            if (f->b.token[t + 1] == token) f->b.target[t] = -1, f->b.weight[t] = 0;
    }
    dt_batch_finish(&f->b);
}

static inline void open_with(struct fixture *f, const char *name, double dropout, dt_dtype dtype,
                             dt_recompute recompute, dt_trains trained)
{
    char path[128];
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "tests/data/vision/%s.json", name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    if (dropout > 0) json_object_set_new(json_object_get(f->root, "config"), "projector_dropout", json_real(dropout));
    f->config = json_dumps(json_object_get(f->root, "config"), 0);
    read_list(json_object_get(f->root, "lens"), f->lens, &f->n_seq);
    read_list(json_object_get(f->root, "images"), f->images, &f->n_seq);
    const int32_t n_tok = f->lens[0] > MAX_TOK ? f->lens[0] : MAX_TOK; /* a long one is alone */
    dt_model_options opt = ref_options(n_tok, n_tok > MAX_TOK ? n_tok : 64, dtype);
    opt.max_images = MAX_IMAGES;
    opt.recompute = recompute;
    if (ref_model_open_part(&f->r, name, f->config, &opt, trained, NULL) != DT_OK)
        fail_msg("%s: %s", name, dt_error_message());
    const int64_t S = f->r.mc.vision->image_size;
    assert_int_equal(dt_batch_alloc(&f->b, n_tok, MAX_SEQ, &f->r.ledger), DT_OK);
    assert_int_equal(dt_batch_add_images(&f->b, MAX_IMAGES, (size_t)(S * S * 3), &f->r.ledger), DT_OK);
    f->shown = dt_images_of(&f->b);
    fill(f, 0);
}

static inline void open_part(struct fixture *f, const char *name, dt_dtype dtype, dt_recompute recompute,
                             dt_trains trained)
{
    open_with(f, name, 0, dtype, recompute, trained);
}

static inline bool all(void *self, const dt_tensor *t) { return true; }

static inline void open_fixture(struct fixture *f, const char *name, dt_dtype dtype)
{
    open_part(f, name, dtype, DT_RECOMPUTE_NONE, all);
}

static inline void close_fixture(struct fixture *f)
{
    dt_batch_free(&f->b, &f->r.ledger);
    ref_model_close(&f->r);
    assert_false(f->r.misused);
    assert_int_equal(ref_model_left(&f->r), 0);
    free(f->config);
    json_decref(f->root);
}

static inline bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* A language model that leaves its rows as they come: its blocks add nothing, and its last norm divides by 2^10 and
 * multiplies with as much, to 1e-7 of what rows of size 0.3 are. */
static inline void make_transparent(struct fixture *f)
{
    const char *const layers = "language_model.model.layers.";
    f->r.mc.norm_eps = 0x1p20;
    for (int u = 0; u < f->r.n_units; u++)
        for (int i = 0; i < f->r.units[u].n_tensors; i++) {
            const dt_tensor *t = &f->r.units[u].tensors[i];
            const bool norm = strcmp(t->name, "language_model.model.norm.weight") == 0;
            const bool adds = strncmp(t->name, layers, strlen(layers)) == 0 &&
                              (ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight"));
            for (int64_t e = 0; (norm || adds) && e < t->n_elems; e++)
                ref_set_param(&f->r, u, ref_at(&f->r, u, t) + e, norm ? 0x1p10 - f->r.mc.norm_plus_one : 0);
        }
}

static inline double distance_of_grads(struct fixture *a, struct fixture *of, int u)
{
    double off = 0, length = 0;
    for (int i = 0; i < of->r.units[u].n_tensors; i++) {
        const dt_tensor *t = &of->r.units[u].tensors[i];
        for (int64_t e = t->offset; t->part == DT_TRAINED && e < t->offset + t->n_elems; e++) {
            const double g = ref_grad(&of->r, u, e), d = ref_grad(&a->r, u, e) - g;
            off += d * d;
            length += g * g;
        }
    }
    return length > 0 ? sqrt(off / length) : 0;
}

#endif
