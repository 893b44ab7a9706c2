/* test_generate_vision.c - prompts with images through slots, pieces and passes: the same tokens as one by one, each
 * image through the tower once and whole; what a model says itself is no image. transformers' tokens: see
 * e2e_vision_generate.sh.
 * DEVICES: cpu queue */

#include "cases.h"
#include "dtrain/generate/generate.h"
#include "ref_model.h"

#include <jansson.h>

enum { N_SEQS = 6, MAX_LEN = 60, N_NEW = 7, MAX_IMAGES = 3, SIDE = 14, PATCH = 4 };

/* Words before each image (-1: no more images) and after the last; the third has none, the fourth ends in one. */
static const struct shape {
    int n_images, words[MAX_IMAGES + 1];
} SHAPES[N_SEQS] = {{1, {3, 4}}, {3, {0, 0, 2, 1}}, {0, {5}}, {1, {6, 0}}, {2, {1, 5, 3}}, {1, {0, 1}}};

struct work {
    ref_model r;
    json_t *root;
    char *config;
    dt_decoder model;
    uint8_t *pixels[N_SEQS];
    int shows[N_SEQS]; /* whose pixels a sequence's images are */
    int32_t ids[N_SEQS][MAX_LEN];
    dt_sequence seqs[N_SEQS], *list[N_SEQS];
    int n_images, max_images; /* that went through, and most of a pass */
    int n_read;
    bool broken; /* no image can be read */
    int32_t say; /* the token forced instead of any other; -1: none */
};

static dt_err decode(void *self, const dt_batch *b, const int32_t *slot)
{
    struct work *w = self;
    const int n = dt_n_images_of(b);
    assert_int_equal(dt_images_of(b) != NULL, n > 0);
    w->n_images += n;
    if (n > w->max_images) w->max_images = n;
    return w->model.decode(w->model.self, b, slot);
}

static dt_err draw(void *self, const dt_batch *b, const dt_draw *d)
{
    struct work *w = self;
    const dt_err err = w->model.draw(w->model.self, b, d);
    for (int32_t s = 0; w->say >= 0 && s < b->n_seq; s++) d->token[s] = w->say;
    return err;
}

static int32_t keep(void *self, int32_t slot, int32_t n)
{
    return ((struct work *)self)->model.keep(((struct work *)self)->model.self, slot, n);
}
static dt_err share(void *self, int32_t slot, int32_t prompt, int32_t n)
{
    return ((struct work *)self)->model.share(((struct work *)self)->model.self, slot, prompt, n);
}

static dt_err read_image(void *ctx, const dt_sequence *s, int32_t k, uint8_t *pixels, uint32_t *grid)
{
    struct work *w = ctx;
    const int64_t S = w->r.mc.vision->image_size, nbytes = S * S * 3;
    if (w->broken) return dt_fail(DT_ERR_DATA, "sequence %d: image %d is broken", (int)s->number, k);
    memcpy(pixels, w->pixels[w->shows[s->number]] + k * nbytes, (size_t)nbytes);
    w->n_read++;
    return DT_OK;
}

static dt_decoder decoder_of(struct work *w)
{
    dt_decoder d = w->model;
    d.self = w, d.decode = decode, d.draw = draw, d.keep = keep, d.share = share;
    return d;
}

static bool always(void *self) { return true; }

static void open_model(struct work *w, int image_size, int32_t n_slots, int32_t max_tok, int32_t max_images,
                       int32_t n_prompts)
{
    memset(w, 0, sizeof *w);
    w->say = -1;
    w->root = json_load_file("tests/data/vision/clip_llama.json", 0, NULL);
    assert_non_null(w->root);
    json_t *config = json_object_get(w->root, "config");
    json_object_set_new(json_object_get(config, "vision_config"), "image_size", json_integer(image_size));
    w->config = json_dumps(config, 0);
    const dt_model_options opt = {.dtype = DT_F32,
                                  .grad_dtype = DT_F32,
                                  .max_tok = max_tok,
                                  .max_seq = n_slots,
                                  .max_pos = MAX_LEN,
                                  .max_images = max_images,
                                  .cache_seqs = n_slots,
                                  .cache_len = MAX_LEN,
                                  .cache_prompts = n_prompts,
                                  .cache_prompt_len = n_prompts ? MAX_LEN : 0,
                                  .graphs = true,
                                  .batch_invariant = true};
    if (ref_model_open(&w->r, "clip_llama", w->config, &opt) != DT_OK) fail_msg("%s", dt_error_message());
    w->r.source.params_resident = always; /* steps become graphs */
    w->model = dt_decoder_of_model(w->r.model);
}

static void make_sequence(struct work *w, int i)
{
    const dt_vision_config *v = w->r.mc.vision;
    const size_t nbytes = dt_image_nbytes(v->image_size);
    const struct shape *shape = &SHAPES[i];
    int32_t n = 0;
    w->pixels[i] = malloc((size_t)shape->n_images * nbytes + 1);
    for (size_t k = 0; k < (size_t)shape->n_images * nbytes; k++)
        w->pixels[i][k] = (uint8_t)(dt_mix64((uint64_t)(1000 * i) + k * 31) >> 20);
    for (int k = 0; k <= shape->n_images; k++) {
        for (int t = 0; t < shape->words[k]; t++, n++) w->ids[i][n] = (int32_t)(dt_mix64((uint64_t)(100 * i + n)) % 60);
        for (int t = 0; k < shape->n_images && t < v->n_tokens; t++) w->ids[i][n++] = v->image_token;
    }
    w->seqs[i] = (dt_sequence){.number = (uint64_t)i,
                               .ids = w->ids[i],
                               .n_prompt = n,
                               .n_ids = n,
                               .max_ids = n + N_NEW,
                               .n_images = shape->n_images};
    w->list[i] = &w->seqs[i];
    w->shows[i] = i;
}

static void close_model(struct work *w)
{
    for (int i = 0; i < N_SEQS; i++) free(w->pixels[i]);
    ref_model_close(&w->r);
    assert_false(w->r.misused);
    assert_int_equal(ref_model_left(&w->r), 0);
    free(w->config);
    json_decref(w->root);
}

static dt_generate_options options_of(struct work *w, int32_t n_slots, int32_t max_tok, int32_t max_images,
                                      int32_t n_prompts)
{
    return (dt_generate_options){.sampling = {.temperature = 0.9, .top_p = 1, .repetition_penalty = 1, .seed = 3},
                                 .vocab_size = w->r.mc.vocab_size,
                                 .n_slots = n_slots,
                                 .n_prompts = n_prompts,
                                 .max_tok = max_tok,
                                 .vision = w->r.mc.vision,
                                 .max_images = max_images,
                                 .image = read_image,
                                 .ctx = w,
                                 .ledger = &w->r.ledger};
}

/* One sequence at a time, its prompt in one pass. */
static void generate_alone(int image_size, int32_t expected[N_SEQS][MAX_LEN], int32_t say)
{
    struct work w;
    dt_generate_stats stats;
    open_model(&w, image_size, 1, MAX_LEN, MAX_IMAGES, 0);
    const dt_decoder d = decoder_of(&w);
    const dt_generate_options opt = options_of(&w, 1, MAX_LEN, MAX_IMAGES, 0);
    w.say = say;
    for (int i = 0; i < N_SEQS; i++) {
        make_sequence(&w, i);
        if (dt_generate(&d, &w.list[i], 1, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
        memcpy(expected[i], w.ids[i], sizeof w.ids[i]);
    }
    close_model(&w);
}

/* how: slots, tokens and images a pass, prompts' slots. */
static void run_as(int image_size, const int32_t how[4], int32_t expected[N_SEQS][MAX_LEN])
{
    struct work w;
    dt_generate_stats stats;
    int n_seqs = 0, n_images = 0;
    dt_sequence *list[N_SEQS];
    open_model(&w, image_size, how[0], how[1], how[2], how[3]);
    const dt_decoder d = decoder_of(&w);
    const dt_generate_options opt = options_of(&w, how[0], how[1], how[2], how[3]);
    for (int i = 0; i < N_SEQS; i++) {
        make_sequence(&w, i);
        list[n_seqs++] = &w.seqs[i];
        n_images += SHAPES[i].n_images;
    }
    if (dt_generate(&d, list, n_seqs, &opt, &stats) != DT_OK)
        fail_msg("%d slots, %d tokens, %d images, %d prompts: %s", how[0], how[1], how[2], how[3], dt_error_message());
    for (int i = 0; i < n_seqs; i++)
        assert_memory_equal(list[i]->ids, expected[list[i]->number], (size_t)list[i]->max_ids * sizeof(int32_t));
    assert_int_equal(w.n_images, n_images);
    assert_int_equal(w.n_read, n_images);
    assert_in_range(w.max_images, 1, how[2]);
    close_model(&w);
}

TEST(tokens_do_not_depend_on_slots_and_pieces)
{
    int32_t expected[N_SEQS][MAX_LEN];
    /* 9 placeholders of an image go in whole, so 9 tokens are the least */
    static const int32_t runs[][4] = {{1, 9, 1, 0},  {1, 12, 3, 0}, {3, 11, 1, 0}, {6, 14, 2, 0},
                                      {6, 90, 2, 0}, {4, 40, 8, 0}, {3, 11, 1, 2}, {2, 30, 4, 3}};
    generate_alone(SIDE, expected, -1);
    for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) run_as(SIDE, runs[k], expected);
}

/* A piece of one token may be an image. */
TEST(an_image_may_be_one_placeholder)
{
    int32_t expected[N_SEQS][MAX_LEN];
    static const int32_t runs[][4] = {{1, 1, 1, 0}, {3, 3, 1, 0}, {6, 8, 2, 0}, {6, 60, 8, 0}, {3, 3, 1, 2}};
    generate_alone(PATCH, expected, -1);
    for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) run_as(PATCH, runs[k], expected);
}

/* Sequences with different random streams and one prompt, of the given shape. */
static int sample(int shape, int32_t n_slots, int32_t n_prompts, int32_t ids[N_SEQS][MAX_LEN])
{
    struct work w;
    dt_generate_stats stats;
    open_model(&w, SIDE, n_slots, MAX_LEN, MAX_IMAGES, n_prompts);
    const dt_decoder d = decoder_of(&w);
    const dt_generate_options opt = options_of(&w, n_slots, MAX_LEN, MAX_IMAGES, n_prompts);
    for (int i = 0; i < N_SEQS; i++) make_sequence(&w, i);
    for (int i = 0; i < N_SEQS; i++) {
        const int32_t n = w.seqs[shape].n_prompt;
        memcpy(ids[i], w.ids[shape], sizeof ids[i]);
        w.shows[i] = shape;
        w.seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                  .ids = ids[i],
                                  .n_prompt = n,
                                  .n_ids = n,
                                  .max_ids = n + N_NEW,
                                  .n_images = SHAPES[shape].n_images,
                                  .prompt_number = 7};
    }
    if (dt_generate(&d, w.list, N_SEQS, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
    close_model(&w);
    return w.n_images;
}

/* But for an image that a prompt ends in, from which the first tokens come. */
TEST(samples_of_a_prompt_share_its_images)
{
    int32_t alone[N_SEQS][MAX_LEN], shared[N_SEQS][MAX_LEN];
    for (int shape = 0; shape < N_SEQS; shape++) {
        const int n = SHAPES[shape].n_images, ends = shape == 3;
        assert_int_equal(sample(shape, 1, 0, alone), N_SEQS * n);
        assert_int_equal(sample(shape, 4, 1, shared), n - ends + N_SEQS * ends);
        assert_memory_equal(shared, alone, sizeof alone);
    }
}

/* Its table has a row for it, as transformers takes it; also in passes in which others' images go through. */
TEST(a_placeholder_that_a_model_says_is_no_image)
{
    int32_t expected[N_SEQS][MAX_LEN];
    struct work w;
    dt_generate_stats stats;
    generate_alone(SIDE, expected, 60);
    open_model(&w, SIDE, 3, 11, 1, 0);
    const dt_decoder d = decoder_of(&w);
    const dt_generate_options opt = options_of(&w, 3, 11, 1, 0);
    w.say = w.r.mc.vision->image_token;
    for (int i = 0; i < N_SEQS; i++) make_sequence(&w, i);
    if (dt_generate(&d, w.list, N_SEQS, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(w.ids[i][w.seqs[i].max_ids - 1], 60);
        assert_memory_equal(w.ids[i], expected[i], (size_t)w.seqs[i].max_ids * sizeof(int32_t));
    }
    close_model(&w);
}

/* A conversation that continues within an image resumes before that image. */
TEST(the_cached_prefix_ends_before_an_image)
{
    struct work w;
    dt_generate_stats stats;
    int32_t first[MAX_LEN];
    open_model(&w, SIDE, 1, 20, 1, 0);
    const dt_decoder d = decoder_of(&w);
    const dt_generate_options opt = options_of(&w, 1, 20, 1, 0);
    make_sequence(&w, 3);
    assert_int_equal(dt_generate(&d, &w.list[3], 1, &opt, &stats), DT_OK);
    memcpy(first, w.ids[3], sizeof first);
    w.seqs[3].n_ids = w.seqs[3].n_prompt, w.seqs[3].n_cached = w.seqs[3].n_prompt - 1,
    w.seqs[3].finish = DT_FINISH_NONE;
    if (dt_generate(&d, &w.list[3], 1, &opt, &stats) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(stats.n_prompt_tok, w.r.mc.vision->n_tokens);
    assert_memory_equal(w.ids[3], first, (size_t)w.seqs[3].max_ids * sizeof(int32_t));
    close_model(&w);
}

static void assert_refused(struct work *w, int i, const dt_generate_options *opt, const char *text)
{
    const dt_decoder d = decoder_of(w);
    dt_generate_stats stats;
    dt_error_clear();
    assert_int_equal(dt_generate(&d, &w->list[i], 1, opt, &stats), DT_ERR_ARG);
    if (!strstr(dt_error_message(), text)) fail_msg("expected %s, found %s", text, dt_error_message());
}

TEST(impossible_values_are_refused)
{
    struct work w;
    open_model(&w, SIDE, 2, 30, 1, 1);
    for (int i = 0; i < N_SEQS; i++) make_sequence(&w, i);
    const dt_generate_options opt = options_of(&w, 2, 30, 1, 1), small = options_of(&w, 2, 9, 1, 1),
                              none = options_of(&w, 2, 30, 0, 1);
    w.seqs[0].n_images = 2;
    assert_refused(&w, 0, &opt, "9 placeholders in its prompt for 2 images");
    w.seqs[2].n_images = 1;
    assert_refused(&w, 2, &opt, "0 placeholders in its prompt for 1 images");
    assert_refused(&w, 1, &small, "9 tokens and 1 images per pass");
    assert_refused(&w, 1, &none, "30 tokens and 0 images per pass");
    close_model(&w);
}

TEST(an_image_that_cannot_be_read_ends_the_call)
{
    struct work w;
    dt_generate_stats stats;
    open_model(&w, SIDE, 2, 30, 1, 0);
    for (int i = 0; i < N_SEQS; i++) make_sequence(&w, i);
    const dt_decoder d = decoder_of(&w);
    const dt_generate_options opt = options_of(&w, 2, 30, 1, 0);
    w.broken = true;
    dt_error_clear();
    assert_int_equal(dt_generate(&d, w.list, N_SEQS, &opt, &stats), DT_ERR_DATA);
    assert_string_equal(dt_error_message(), "sequence 0: image 0 is broken");
    dt_error_clear();
    close_model(&w);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
