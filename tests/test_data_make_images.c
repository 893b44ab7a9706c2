// NEEDS: PCRE2 LIBJPEG LIBPNG LIBWEBP
/* test_data_make_images.c - records with images against transformers' LlavaProcessor; placeholders, targets, omitted
 * samples; unreadable images and ambiguous records. Fixture: tests/make_vision_data_fixtures.py */
#include "cases.h"
#include "data_make_fixture.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include <stdatomic.h>

#define FOLDER "tests/data/vision_data"
#define MODEL FOLDER "/model"
enum { S = 8, N_IMG = 4, IMAGE = 292, END = 291, IMAGE_NBYTES = 3 * S * S };

static char here[512]; /* FOLDER, absolute */

static dt_make_options with_images(void)
{
    dt_make_options o = options();
    o.tokenizer = MODEL;
    o.chat_template = "chatml";
    o.images = (dt_image_options){
        .preprocessor = MODEL, .folder = here, .token = "<image>", .n_tokens = N_IMG, .token_id = -1};
    return o;
}

static void make_well(const char *text, const dt_make_options *o, dt_make_stats *stats)
{
    const dt_err err = make(text, o, stats);
    if (err != DT_OK) print_message("%s\n", dt_error_message());
    assert_int_equal(err, DT_OK);
}

/* Sample i of the output: tokens of the first side, mask, images. */
typedef struct sample {
    int64_t n, n_images, n_placeholders;
    int32_t id[256];
    uint8_t mask[256], pixels[8 * IMAGE_NBYTES];
} sample;

static void read_sample(dt_dataset *d, dt_side side, int64_t i, sample *s)
{
    int64_t first;
    *s = (sample){0};
    assert_int_equal(dt_dataset_part(d, side, i, &first, &s->n), DT_OK);
    assert_true(s->n <= 256);
    assert_int_equal(dt_dataset_read_side(d, side, first, s->n, s->id), DT_OK);
    if (dt_dataset_get_info(d)->kind == DT_DATASET_SFT)
        assert_int_equal(dt_dataset_read_mask(d, first, s->n, s->mask), DT_OK);
    assert_int_equal(dt_dataset_images_of(d, i, &first, &s->n_images), DT_OK);
    assert_true(s->n_images <= 8);
    assert_int_equal(dt_dataset_read_images(d, first, s->n_images, s->pixels), DT_OK);
    for (int64_t t = 0; t < s->n; t++) s->n_placeholders += s->id[t] == IMAGE;
}

static void check_images(const sample *s, const json_t *expected)
{
    assert_int_equal(s->n_images, json_array_size(expected));
    for (int64_t k = 0; k < s->n_images; k++) {
        char hex[2 * IMAGE_NBYTES + 1];
        for (int b = 0; b < IMAGE_NBYTES; b++) snprintf(hex + 2 * b, 3, "%02x", s->pixels[k * IMAGE_NBYTES + b]);
        assert_string_equal(hex, json_string_value(json_array_get(expected, (size_t)k)));
    }
}

TEST_WITH(records_become_what_transformers_makes_of_them, clear, NULL)
{
    static const char *inputs[] = {FOLDER "/records.jsonl"};
    json_t *all = json_load_file(FOLDER "/expected.json", 0, NULL);
    assert_true(json_array_size(all) >= 7);
    dt_make_options o = with_images();
    dt_make_stats stats;
    o.inputs = inputs;
    o.images.folder = NULL; /* next to the records */
    make_well(NULL, &o, &stats);
    assert_int_equal(stats.n_images, 8);
    dt_dataset *d = open_output(output);
    const dt_dataset_info *info = dt_dataset_get_info(d);
    assert_int_equal(info->images.size, S);
    assert_int_equal(info->images.n_tokens, N_IMG);
    assert_int_equal(info->images.token, IMAGE);
    assert_non_null(strstr(info->images.preprocessor, "CLIPImageProcessor"));
    assert_int_equal(info->n_documents, json_array_size(all));
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *one = json_array_get(all, i), *ids = json_object_get(one, "ids");
        sample s;
        read_sample(d, DT_SIDE_FIRST, (int64_t)i, &s);
        assert_int_equal(s.n, json_array_size(ids));
        for (size_t t = 0; t < json_array_size(ids); t++) {
            assert_int_equal(s.id[t], json_integer_value(json_array_get(ids, t)));
            assert_int_equal(s.mask[t], json_integer_value(json_array_get(json_object_get(one, "mask"), t)));
        }
        check_images(&s, json_object_get(one, "images"));
    }
    dt_dataset_close(d);
    json_decref(all);
}

#define CHAT(question, answer)                                                                                         \
    "\"conversations\": [{\"from\": \"human\", \"value\": \"" question "\"}, {\"from\": \"gpt\", \"value\": \"" answer \
    "\"}]"

/* Nothing of template and question, as LLaVA's plain text has it: placeholders, the caption and an end. */
TEST_WITH(only_captions_are_trained_on, clear, NULL)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    o.images.captions = true;
    make_well("[{\"id\": \"0\", \"image\": \"wide.ppm\", " CHAT("Say briefly what it is.\\n<image>", "a") "}]", &o,
              &stats);
    dt_dataset *d = open_output(output);
    sample s;
    read_sample(d, DT_SIDE_FIRST, 0, &s);
    assert_int_equal(s.n, N_IMG + 2);
    for (int t = 0; t < s.n; t++) {
        assert_int_equal(s.id[t] == IMAGE, t < N_IMG);
        assert_int_equal(s.mask[t], t >= N_IMG);
    }
    assert_int_equal(s.id[s.n - 1], END);
    dt_dataset_close(d);
    assert_fails(make("[{\"id\": \"0\", " CHAT("What?", "a") "}]", &o, &stats), DT_ERR_DATA, "without an image");
    static const char *const questions[] = {CHAT("<image><image>", "a"), CHAT("<image> and <image>", "a")};
    for (int q = 0; q < 2; q++) { /* as of every other record */
        char text[512];
        snprintf(text, sizeof text, "{\"image\": \"wide.ppm\", %s}\n", questions[q]);
        assert_fails(make(text, &o, &stats), DT_ERR_DATA, "the text has 2 <image>, but the record has 1 image");
    }
    assert_fails(make("{\"images\": [\"wide.ppm\", \"high.ppm\"], " CHAT("<image>", "a") "}\n", &o, &stats),
                 DT_ERR_DATA, "the text has 1 <image>, but the record has 2 images");
    make_well("{\"images\": [\"wide.ppm\", \"high.ppm\"], " CHAT("What?", "a") "}\n", &o, &stats);
}

TEST_WITH(placeholders_are_no_targets_whatever_the_mask, clear, NULL)
{
    static const dt_mask masks[] = {DT_MASK_FULL, DT_MASK_COMPLETION, DT_MASK_ASSISTANT};
    dt_make_options o = with_images();
    for (int m = 0; m < 3; m++) {
        dt_make_stats stats;
        o.mask = masks[m];
        make_well(
            "{\"image\": \"wide.ppm\", " CHAT(
                "What?",
                "see <image> here") "}\n"
                                    "{\"image\": [\"wide.ppm\"], \"text\": \"a <image> b\"}\n"
                                    "{\"images\": [\"wide.ppm\"], \"prompt\": \"<image>\", \"completion\": \"b\"}\n",
            &o, &stats);
        dt_dataset *d = open_output(output);
        for (int i = 0; i < 3; i++) {
            sample s;
            int n_target = 0;
            read_sample(d, DT_SIDE_FIRST, i, &s);
            assert_int_equal(s.n_placeholders, N_IMG);
            for (int t = 0; t < s.n; t++) {
                if (s.id[t] == IMAGE) assert_int_equal(s.mask[t], 0);
                n_target += s.mask[t];
            }
            assert_true(n_target > 0);
        }
        dt_dataset_close(d);
    }
}

/* However a record lists its images, they come first in a conversation that does not state their positions. */
TEST_WITH(images_without_places_come_first, clear, NULL)
{
    static const char *const lists[] = {"\"image\": \"wide.ppm\"", "\"images\": [\"wide.ppm\"]",
                                        "\"image\": {\"path\": \"wide.ppm\"}"};
    dt_make_options o = with_images();
    dt_make_stats stats;
    char text[1024];
    sample s, first;
    make_well("{\"image\": \"wide.ppm\", " CHAT("<image>\\nWhat?", "a") "}\n", &o, &stats);
    dt_dataset *d = open_output(output);
    read_sample(d, DT_SIDE_FIRST, 0, &first);
    dt_dataset_close(d);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        snprintf(text, sizeof text, "{%s, " CHAT("What?", "a") "}\n", lists[i]);
        make_well(text, &o, &stats);
        read_sample(d = open_output(output), DT_SIDE_FIRST, 0, &s);
        dt_dataset_close(d);
        assert_int_equal(s.n_images, 1);
        assert_int_equal(s.n, first.n);
        assert_memory_equal(s.id, first.id, (size_t)s.n * sizeof *s.id);
        assert_memory_equal(s.mask, first.mask, (size_t)s.n);
    }
}

TEST_WITH(pairs_and_prompts_have_images_in_their_prompts, clear, NULL)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    sample s;
    make_well("{\"images\": [\"wide.ppm\", \"high.ppm\"], \"prompt\": \"<image>or<image>?\", \"chosen\": \"a\", "
              "\"rejected\": \"b\"}\n"
              "{\"image\": \"wide.ppm\", \"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}], "
              "\"chosen\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"rejected\": \"no\"}\n",
              &o, &stats);
    dt_dataset *d = open_output(output);
    assert_int_equal(dt_dataset_get_info(d)->kind, DT_DATASET_PREFERENCE);
    for (int i = 0; i < 2; i++)
        for (int side = 0; side < DT_N_SIDES; side++) {
            read_sample(d, (dt_side)side, i, &s);
            assert_int_equal(s.n_images, 2 - i);
            assert_int_equal(s.n_placeholders, N_IMG * (2 - i));
        }
    dt_dataset_close(d);
    sample pairs[3];
    make_well("{\"images\": [\"wide.ppm\", \"high.ppm\"], \"prompt\": \"<image><image>\", \"responses\": [\"a\", "
              "\"b\", \"c\"]}\n",
              &o, &stats);
    assert_int_equal(stats.n_images, 6);
    d = open_output(output);
    for (int i = 0; i < 3; i++) read_sample(d, DT_SIDE_FIRST, i, &pairs[i]);
    assert_memory_not_equal(pairs[0].pixels, pairs[0].pixels + IMAGE_NBYTES, IMAGE_NBYTES);
    for (int i = 1; i < 3; i++) assert_memory_equal(pairs[i].pixels, pairs[0].pixels, 2 * IMAGE_NBYTES);
    dt_dataset_close(d);
    make_well(
        "{\"image\": \"wide.ppm\", \"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, {\"type\": "
        "\"text\", \"text\": \"What?\"}]}], \"answer\": \"a\"}\n{\"question\": \"What?\", \"answer\": \"b\"}\n",
        &o, &stats);
    d = open_output(output);
    assert_int_equal(dt_dataset_get_info(d)->kind, DT_DATASET_PROMPTS);
    for (int i = 0; i < 2; i++) {
        read_sample(d, DT_SIDE_FIRST, i, &s);
        assert_int_equal(s.n_images, 1 - i);
        assert_int_equal(s.n_placeholders, N_IMG * (1 - i));
    }
    dt_dataset_close(d);
}

/* A text that would lose a placeholder is left out; one that loses others is cut. */
TEST_WITH(no_image_is_cut, clear, NULL)
{
    static const struct {
        dt_truncate truncate;
        int64_t max_length;
        int n_documents, n_truncated;
    } cases[] = {{DT_TRUNCATE_START, N_IMG + 2, 1, 1},
                 {DT_TRUNCATE_START, N_IMG, 0, 0},
                 {DT_TRUNCATE_END, N_IMG + 8, 1, 1},
                 {DT_TRUNCATE_END, N_IMG + 7, 0, 0},
                 {DT_TRUNCATE_DROP, N_IMG + 8, 0, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dt_make_options o = with_images();
        dt_make_stats stats;
        o.mask = DT_MASK_FULL;
        o.truncate = cases[c].truncate;
        o.max_length = cases[c].max_length;
        /* a token, the image, seven tokens and the end; and a short one, that there is a file */
        make_well("{\"image\": \"wide.ppm\", \"text\": \"x<image>1234567\"}\n{\"text\": \"yz\"}\n", &o, &stats);
        assert_int_equal(stats.n_documents, cases[c].n_documents + 1);
        assert_int_equal(stats.n_truncated, cases[c].n_truncated);
        assert_int_equal(stats.n_too_long, 1 - cases[c].n_documents);
        assert_int_equal(stats.n_images, cases[c].n_documents);
        dt_dataset_close(open_output(output));
    }
}

TEST_WITH(what_does_not_fit_is_refused, clear, NULL)
{
    static const struct {
        const char *record, *says;
    } cases[] = {
        {"{\"image\": \"wide.ppm\", \"text\": \"a\"}", "the text has no <image>, but the record has 1 image"},
        {"{\"image\": \"wide.ppm\", " CHAT("<image><image>", "a") "}",
         "the text has 2 <image>, but the record has 1 image"},
        {"{" CHAT("<image>", "a") "}", "the text has 1 <image>, but the record has no image"},
        {"{\"image\": \"none.ppm\", " CHAT("<image>", "a") "}", "none.ppm"},
        {"{\"image\": \"records.jsonl\", " CHAT("<image>", "a") "}", "records.jsonl"},
        {"{\"image\": \"\", " CHAT("<image>", "a") "}", "image: expected a path"},
        {"{\"image\": 5, " CHAT("<image>", "a") "}", "image: expected a path"},
        {"{\"image\": \"wide.ppm\\u0000\", " CHAT("<image>", "a") "}", "image: expected a path"},
        {"{\"images\": [\"wide.ppm\", null], " CHAT("<image>", "a") "}", "images: expected a path"},
        {"{\"images\": [\"wide.ppm\"], \"image\": \"wide.ppm\", " CHAT("<image>", "a") "}",
         "expected only one of them"},
        {"{\"image\": \"wide.ppm\", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": "
         "\"wide.ppm\"}]}, {\"role\": \"assistant\", \"content\": \"a\"}]}",
         "expected only one"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"video\"}]}]}", "\"image\"}"},
        {"{\"image\": \"wide.ppm\", \"prompt\": \"p\", \"chosen\": \"a<image>\", \"rejected\": \"<image>b\"}",
         "belong in its prompt"},
        {"{\"image\": \"wide.ppm\", \"prompt\": \"p\", \"completion\": \"c\"}", "the text has no <image>"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dt_make_options o = with_images();
        dt_make_stats stats;
        char text[1024];
        /* after a valid one and a blank line */
        snprintf(text, sizeof text, "{\"image\": \"wide.ppm\", " CHAT("<image>", "a") "}\n\n%s\n", cases[c].record);
        if (strstr(cases[c].record, "chosen")) memmove(text, strstr(text, "\n\n"), strlen(strstr(text, "\n\n")) + 1);
        assert_fails(make(text, &o, &stats), DT_ERR_DATA, cases[c].says, ":3: ");
        assert_true(access(output, F_OK) != 0);
        if (strstr(cases[c].record, "chosen")) continue;
        o.skip_bad = true;
        make_well(NULL, &o, &stats);
        assert_int_equal(stats.n_bad, 1);
        assert_int_equal(stats.n_images, 1);
        dt_dataset_close(open_output(output));
        unlink(output);
    }
}

/* A record is left out when its second image cannot be read: the first one, by then in the chunk, must not be the next
 * record's. */
TEST_WITH(a_record_with_a_broken_second_image_leaves_the_next_one_its_own, clear, NULL)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    sample alone, behind;
    make_well("{\"image\": \"high.ppm\", \"text\": \"<image>b\"}\n", &o, &stats);
    dt_dataset *d = open_output(output);
    read_sample(d, DT_SIDE_FIRST, 0, &alone);
    dt_dataset_close(d);
    o.skip_bad = true;
    make_well("{\"image\": \"wide.ppm\", \"text\": \"<image>a\"}\n"
              "{\"images\": [\"wide.ppm\", \"none.ppm\"], \"text\": \"<image><image>\"}\n"
              "{\"image\": \"high.ppm\", \"text\": \"<image>b\"}\n",
              &o, &stats);
    assert_int_equal(stats.n_bad, 1);
    assert_int_equal(stats.n_images, 2);
    d = open_output(output);
    assert_int_equal(dt_dataset_get_info(d)->n_documents, 2);
    read_sample(d, DT_SIDE_FIRST, 1, &behind);
    assert_int_equal(behind.n_images, 1);
    assert_memory_equal(behind.pixels, alone.pixels, IMAGE_NBYTES);
    read_sample(d, DT_SIDE_FIRST, 0, &behind);
    assert_memory_not_equal(behind.pixels, alone.pixels, IMAGE_NBYTES);
    dt_dataset_close(d);
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

typedef struct progress {
    int n;                      /* reports */
    int64_t n_images[8];        /* distinct indices that they named */
    int64_t nbytes[8], n_total; /* read by then */
} progress;

static void note(void *self, const dt_make_stats *s)
{
    progress *p = self;
    assert_true(p->n == 0 || s->n_images >= p->n_images[p->n - 1]);
    if (s->n_images == (p->n ? p->n_images[p->n - 1] : 0)) return;
    assert_true(p->n < 8);
    p->n_images[p->n] = s->n_images;
    p->nbytes[p->n++] = s->nbytes_read;
    p->n_total = s->nbytes_total;
}

/* Large images are processed in small sets, 24 of 336 x 336 pixels, so progress reports match the work done. */
TEST_WITH(progress_is_that_of_images, clear, NULL)
{
    enum { N = 60, SET = (1 << 23) / (3 * 336 * 336), LINE = 5000, BLOCK = 1 << 16 }; /* blocks are read ahead */
    static char text[N * LINE + 1];
    char path[160];
    progress p = {0};
    dt_make_options o = with_images();
    dt_make_stats stats;
    snprintf(path, sizeof path, "%s/large.json", dir);
    FILE *f = fopen(path, "w");
    fputs("{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 336, \"crop_size\": 336}", f);
    fclose(f);
    for (int i = 0; i < N; i++)
        snprintf(text + (size_t)i * LINE, LINE + 1, "%-*s\n", LINE - 1,
                 "{\"prompt\": \"<image>\", \"completion\": \"b\", \"image\": \"wide.ppm\"}");
    o.images.preprocessor = path;
    o.progress = note;
    o.progress_self = &p;
    make_well(text, &o, &stats);
    assert_int_equal(stats.n_images, N);
    assert_int_equal(p.n, (N + SET - 1) / SET);
    assert_int_equal(p.n_total, N * LINE);
    for (int i = 0; i < p.n; i++) {
        const int64_t done = (i + 1) * SET < N ? (i + 1) * SET : N;
        assert_int_equal(p.n_images[i], done);
        assert_in_range(p.nbytes[i], done * LINE, done * LINE + BLOCK);
    }
    unlink(path);
}

TEST_WITH(options_that_do_not_fit_are_refused, clear, NULL)
{
#define REFUSED(change, err, says)                                                                                     \
    do {                                                                                                               \
        dt_make_options o = with_images();                                                                             \
        dt_make_stats stats;                                                                                           \
        change;                                                                                                        \
        assert_int_equal(make("{\"image\": \"wide.ppm\", \"text\": \"<image>a\"}\n", &o, &stats), err);                \
        if (!strstr(dt_error_message(), says)) print_message("%s\n", dt_error_message());                              \
        assert_non_null(strstr(dt_error_message(), says));                                                             \
    } while (0)
    REFUSED(o.images.preprocessor = NULL, DT_ERR_USAGE, "--images");
    REFUSED((o.images.preprocessor = NULL, o.images.folder = NULL), DT_ERR_DATA, "rename the field");
    REFUSED(o.images.n_tokens = 0, DT_ERR_USAGE, "image tokens");
    REFUSED(o.images.token = "<picture>", DT_ERR_USAGE, "--add-tokens");
    REFUSED(o.tokenizer = "bytes", DT_ERR_USAGE, "--add-tokens");
    REFUSED(o.images.token_id = 5, DT_ERR_DATA, "config.json");
    REFUSED(o.images.size = 16, DT_ERR_DATA, "16");
    REFUSED((o.turn_budgets = true, o.max_length = 50), DT_ERR_USAGE, "budgets");
    REFUSED(o.kind = DT_DATASET_TOKENS, DT_ERR_USAGE, "kind tokens");
    REFUSED(o.format = DT_INPUT_TEXT, DT_ERR_USAGE, "kind tokens");
}

static void copy(const char *from, const char *to)
{
    char *bytes;
    size_t nbytes;
    assert_int_equal(dt_read_file(from, 1 << 20, &bytes, &nbytes), DT_OK);
    assert_int_equal(dt_write_file_sync(to, bytes, nbytes), DT_OK);
    free(bytes);
}

/* An image of a record, and a file of the preprocessor's folder: not even with force. */
TEST_WITH(what_is_read_is_not_replaced, clear, NULL)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    char image[160], preprocessor[160], text[512];
    snprintf(image, sizeof image, "%s/p.ppm", dir);
    snprintf(preprocessor, sizeof preprocessor, "%s/preprocessor_config.json", dir);
    snprintf(text, sizeof text, "{\"image\": \"%s\", \"text\": \"<image>a\"}\n", image);
    copy(FOLDER "/wide.ppm", image);
    copy(MODEL "/preprocessor_config.json", preprocessor);
    const char *const outputs[][2] = {{image, NULL}, {output, image}, {preprocessor, NULL}};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        o.output = outputs[i][0], o.validation = outputs[i][1];
        o.validation_fraction = o.validation ? 0.5 : 0;
        o.images.preprocessor = dir;
        assert_fails(make(text, &o, &stats), DT_ERR_USAGE, "would be overwritten");
    }
    dt_error_clear();
    o = with_images();
    o.images.preprocessor = dir;
    make_well(text, &o, &stats);
}

/* Many chunks: threads change nothing, an image is in one file alone, shards and images agree. */
TEST_WITH(an_image_is_on_one_side_whatever_is_asked_of_it, clear, NULL)
{
    enum { N = 3000, N_PICTURES = 40 };
    dt_make_options o = with_images();
    dt_make_stats stats, first = {0};
    char validation[160];
    snprintf(validation, sizeof validation, "%s/held.h5", dir);
    FILE *f = fopen(input, "w");
    for (int i = 0; i < N_PICTURES; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/p%d.ppm", dir, i);
        FILE *p = fopen(path, "wb");
        fprintf(p, "P6\n1 1\n255\n%c%c%c", 1 + 6 * i, 2, 3); /* every pixel says which it is */
        fclose(p);
    }
    for (int i = 0; i < N; i++)
        fprintf(
            f,
            i % 3 ? "{\"image\": \"p%d.ppm\", \"prompt\": \"<image>%d\", \"completion\": \"a\"}\n"
                  : "{\"image\": [\"p%d.ppm\", \"p%d.ppm\"], \"prompt\": \"<image><image>\", \"completion\": \"a\"}\n",
            i % N_PICTURES, i % 3 ? i : (i / 3) % N_PICTURES);
    fclose(f);
    o.images.folder = NULL;
    o.validation = validation;
    o.validation_fraction = 0.3;
    for (int n = 1; n <= 3; n++) {
        o.n_threads = n;
        make_well(NULL, &o, &stats);
        if (n == 1) first = stats;
        assert_int_equal(stats.n_documents, first.n_documents);
    }
    bool seen[2][N_PICTURES] = {{false}};
    for (int k = 0; k < 2; k++) {
        dt_dataset *d = open_output(k ? validation : output);
        for (int64_t i = 0; i < dt_dataset_get_info(d)->n_documents; i++) {
            sample s;
            read_sample(d, DT_SIDE_FIRST, i, &s);
            assert_in_range(s.n_images, 1, 2);
            seen[k][(s.pixels[0] - 1) / 6] = true;
        }
        dt_dataset_close(d);
    }
    for (int i = 0; i < N_PICTURES; i++) assert_true(seen[0][i] != seen[1][i]);
}

/* ---- the heap: the linker leads the program's own calls here, of libraries none (Makefile) ----------------------- */

static atomic_long n_allocations, failing; /* of them the failing-th has no memory; 0: none */

static bool is_refused(void) { return atomic_fetch_add(&n_allocations, 1) + 1 == atomic_load(&failing); }

void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__real_realloc(void *ptr, size_t nbytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
void *__wrap_realloc(void *ptr, size_t nbytes);
char *__wrap_strdup(const char *text);
void *__wrap_malloc(size_t nbytes) { return is_refused() ? NULL : __real_malloc(nbytes); }
void *__wrap_calloc(size_t n, size_t nbytes) { return is_refused() ? NULL : __real_calloc(n, nbytes); }
void *__wrap_realloc(void *ptr, size_t nbytes) { return is_refused() ? NULL : __real_realloc(ptr, nbytes); }
char *__wrap_strdup(const char *text) { return is_refused() ? NULL : __real_strdup(text); }

/* Whichever allocation fails, of the tokenizer, the template, the preprocessor, records or images: it is said, and
 * nothing is written. */
TEST_WITH(allocation_failure_anywhere_is_an_error, clear, NULL)
{
    dt_make_options o = with_images();
    dt_make_stats stats;
    dt_err err = DT_ERR_MEMORY;
    write_input("{\"image\": \"wide.ppm\", " CHAT("<image>\\nWhat?", "a") "}\n");
    o.n_threads = 1;
    long n = 0;
    while (err != DT_OK) {
        atomic_store(&n_allocations, 0);
        atomic_store(&failing, ++n);
        err = make(NULL, &o, &stats);
        const bool refused = atomic_load(&n_allocations) >= n;
        atomic_store(&failing, 0);
        if (refused && err != DT_ERR_MEMORY) print_message("allocation %ld: %s\n", n, dt_error_message());
        assert_int_equal(err, refused ? DT_ERR_MEMORY : DT_OK);
        assert_true(refused == (access(output, F_OK) != 0));
    }
    assert_true(n > 100);
    dt_dataset_close(open_output(output));
}

int main(void)
{
    if (!realpath(FOLDER, here)) return 1;
    return run_listed("data_make_images", open_folder, remove_folder);
}
