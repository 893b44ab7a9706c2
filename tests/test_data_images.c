/* test_data_images.c - datasets whose samples have images: a batch has what was written, each image with its
 * placeholders, for every kind, packing and number of ranks; inconsistent data are refused. */
#include "loader_fixture.h"

enum { S = 5, N_IMG = 3, IMAGE = 300, VOCAB = 400, IMAGE_NBYTES = 3 * S * S, N_SAMPLES = 40 };

static char path[128], other[128];

#define CLIP "{\"image_processor_type\": \"CLIPImageProcessor\""
static const dt_image_form form = {.size = S, .n_tokens = N_IMG, .token = IMAGE, .preprocessor = CLIP "}"};

/* Byte t of image k of sample i. */
static uint8_t byte_of(int i, int k, int t) { return (uint8_t)dt_mix64((uint64_t)(i * 1000003 + k * 1009 + t)); }
static int n_images_of(int i) { return i % 4 == 3 ? 2 : i % 4 == 1 ? 0 : 1; } /* 1, 0, 1, 2 */

static void add_images(dt_dataset_writer *w, int i)
{
    uint8_t pixels[2 * IMAGE_NBYTES];
    for (int k = 0; k < n_images_of(i); k++)
        for (int t = 0; t < IMAGE_NBYTES; t++) pixels[k * IMAGE_NBYTES + t] = byte_of(i, k, t);
    assert_int_equal(dt_dataset_add_images(w, pixels, NULL, n_images_of(i)), DT_OK);
}

/* Sample i: its number, its images with a token before each, its number, and i % 5 + 2 targets. Returns the length. */
static int text_of(int i, int32_t *id, uint8_t *mask)
{
    int n = 0;
    id[n++] = i;
    for (int k = 0; k < n_images_of(i); k++) {
        id[n++] = 200;
        for (int t = 0; t < N_IMG; t++) id[n++] = IMAGE;
    }
    id[n++] = i;
    memset(mask, 0, (size_t)n);
    for (int t = 0; t < i % 5 + 2; t++) mask[n] = 1, id[n++] = 100 + i;
    return n;
}

static dt_dataset_writer *begin(const char *file, dt_dataset_kind kind)
{
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, file, kind, VOCAB, "test", false), DT_OK);
    assert_int_equal(dt_dataset_set_images(w, &form), DT_OK);
    return w;
}

static void write_sft(const char *file, int first, int n, dt_commit *how)
{
    dt_dataset_writer *w = begin(file, DT_DATASET_SFT);
    int32_t id[32];
    uint8_t mask[32];
    for (int i = first; i < first + n; i++) {
        const int len = text_of(i, id, mask);
        assert_int_equal(dt_dataset_add(w, id, mask, len), DT_OK);
        add_images(w, i);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, how, 1), DT_OK);
}

/* The samples without images, in a file that cannot have any. */
static void write_texts(const char *file)
{
    dt_dataset_writer *w;
    int32_t id[32];
    uint8_t mask[32];
    assert_int_equal(dt_dataset_create(&w, file, DT_DATASET_SFT, VOCAB, "test", false), DT_OK);
    for (int i = 0; i < N_SAMPLES; i++) {
        if (n_images_of(i) > 0) continue;
        assert_int_equal(dt_dataset_add(w, id, mask, text_of(i, id, mask)), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

static void write_pairs(const char *file)
{
    dt_dataset_writer *w = begin(file, DT_DATASET_PREFERENCE);
    int32_t id[32];
    uint8_t mask[32];
    for (int i = 0; i < N_SAMPLES; i++) {
        const int len = text_of(i, id, mask), n_answer = i % 5 + 2;
        const dt_pair pair = {.prompt_length = {(uint32_t)(len - n_answer), (uint32_t)(len - n_answer)}};
        assert_int_equal(dt_dataset_add_side(w, DT_SIDE_FIRST, id, len), DT_OK);
        assert_int_equal(dt_dataset_add_side(w, DT_SIDE_SECOND, id, len - 1), DT_OK);
        add_images(w, i);
        assert_int_equal(dt_dataset_end_pair(w, &pair), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

static dt_loader_options of_images(const char *files)
{
    dt_loader_options o = options(files, 24, 8, 2);
    o.shuffle = true;
    o.vocab_size = VOCAB;
    return o;
}

/* The images of each sequence are those of the sample that the text says, one after the other; of a pair's second text
 * they are the first one's. */
static int check_batch(const dt_batch *b, bool pairs)
{
    const dt_batch_images *images = dt_images_of(b);
    int n_images = 0;
    for (int s = 0; s < b->n_seq; s++) {
        const int32_t *id = b->token + b->seq_start[s], i = id[0];
        const int n = b->seq_start[s + 1] - b->seq_start[s];
        int n_placeholders = 0;
        for (int t = 0; t < n; t++) {
            n_placeholders += id[t] == IMAGE;
            assert_int_not_equal(b->target[b->seq_start[s] + t], IMAGE);
        }
        assert_int_equal(n_placeholders, N_IMG * n_images_of(i));
        if (!images) continue;
        const bool again = pairs && s % 2 == 1;
        assert_int_equal(images->first[s], again ? images->first[s - 1] : n_images);
        assert_int_equal(images->count[s], n_images_of(i));
        for (int k = 0; k < n_images_of(i); k++)
            for (int t = 0; t < IMAGE_NBYTES; t++)
                assert_int_equal(images->pixels[(images->first[s] + k) * IMAGE_NBYTES + t], byte_of(i, k, t));
        n_images += again ? 0 : n_images_of(i);
    }
    assert_int_equal(dt_n_images_of(b), n_images);
    return n_images;
}

/* Images of an epoch on so many ranks. */
static int count_epoch(dt_loader_options o, int nranks)
{
    int n = 0;
    o.nranks = nranks;
    for (o.rank = 0; o.rank < nranks; o.rank++) {
        dt_loader *l = open_loader(&o);
        const dt_data_info *info = dt_loader_info(l);
        assert_int_equal(info->images.size, S);
        assert_int_equal(info->images.n_tokens, N_IMG);
        assert_int_equal(info->images.token, IMAGE);
        assert_string_equal(info->images.preprocessor, form.preprocessor);
        for (int64_t step = 0; step < info->steps_per_epoch; step++)
            for (int micro = 0; micro < dt_loader_n_micro(l, step); micro++) {
                const dt_batch *b;
                assert_int_equal(dt_loader_batch(l, step, micro, &b), DT_OK);
                assert_true(dt_n_images_of(b) <= info->max_images);
                n += check_batch(b, o.kind == DT_DATASET_PREFERENCE);
            }
        dt_loader_close(l);
    }
    return n;
}

TEST(batches_have_the_images_of_their_placeholders)
{
    const int n_images = N_SAMPLES / 4 * (1 + 0 + 1 + 2);
    write_sft(path, 0, N_SAMPLES, NULL);
    write_pairs(other);
    for (int nranks = 1; nranks <= 3; nranks++)
        for (int prefetch = 0; prefetch <= 2; prefetch += 2) {
            dt_loader_options o = of_images(path);
            o.prefetch = prefetch;
            assert_int_equal(count_epoch(o, nranks), n_images);
            o.packing = "bfd";
            assert_int_equal(count_epoch(o, nranks), n_images);
            o = of_images(other);
            o.kind = DT_DATASET_PREFERENCE;
            o.prefetch = prefetch;
            assert_int_equal(count_epoch(o, nranks), n_images);
        }
}

/* Texts after images do not refer to images of an earlier batch. */
TEST(texts_of_another_file_have_no_images)
{
    char files[sizeof path + sizeof other + 2];
    write_sft(path, 0, N_SAMPLES, NULL);
    write_texts(other);
    snprintf(files, sizeof files, "%s, %s", path, other);
    dt_loader_options o = of_images(files);
    assert_int_equal(count_epoch(o, 2), N_SAMPLES);
    o.packing = "bfd";
    assert_int_equal(count_epoch(o, 2), N_SAMPLES);
}

TEST(a_batch_has_room_for_the_most_images_and_no_more)
{
    dt_ledger ledger = {0};
    write_sft(path, 0, N_SAMPLES, NULL);
    dt_loader_options o = of_images(path);
    o.ledger = &ledger;
    o.prefetch = 1;
    dt_loader *l = open_loader(&o);
    assert_int_equal(dt_loader_info(l)->max_images, 2 * 2);
    assert_int_equal(dt_loader_nbytes(l), ledger.total_now);
    dt_loader_close(l);
    write_pairs(path);
    o.kind = DT_DATASET_PREFERENCE;
    l = open_loader(&o);
    assert_int_equal(dt_loader_info(l)->max_images, 2 * 2);
    assert_int_equal(dt_loader_nbytes(l), ledger.total_now);
    dt_loader_close(l);
    assert_int_equal(ledger.total_now, 0);
    write_sft(path, 1, 1, NULL); /* without any */
    o.kind = DT_DATASET_SFT;
    l = open_loader(&o);
    assert_int_equal(dt_loader_info(l)->max_images, 0);
    const dt_batch *b;
    assert_int_equal(dt_loader_batch(l, 0, 0, &b), DT_OK);
    assert_null(dt_images_of(b));
    dt_loader_close(l);
}

/* A sample cut to seq_len keeps all its images, or it is left out and counted. */
TEST(no_image_is_cut)
{
    write_sft(path, 0, N_SAMPLES, NULL);
    for (int packed = 0; packed < 2; packed++)
        for (int T = 3; T <= 20; T++) {
            dt_loader_options o = of_images(path);
            int n_kept = 0, n_images = 0, n_cut = 0;
            o.seq_len = T;
            o.packing = packed ? "bfd" : "none";
            o.micro_batch_size = 1;
            for (int i = 0; i < N_SAMPLES; i++) {
                const int n_before = 1 + n_images_of(i) * (1 + N_IMG); /* tokens up to the end of the last image */
                const bool cut = T < n_before && n_images_of(i) > 0, target = T >= n_before + 2;
                n_cut += cut;
                n_kept += target;
                n_images += target ? n_images_of(i) : 0;
            }
            dt_loader *l = open_loader(&o);
            const dt_data_info *info = dt_loader_info(l);
            assert_int_equal(info->n_too_long, n_cut);
            assert_int_equal(info->n_dropped, N_SAMPLES - n_kept - n_cut);
            assert_int_equal(packed ? info->n_packed : info->n_samples, n_kept);
            dt_loader_close(l);
            assert_int_equal(count_epoch(o, 2), n_images);
        }
}

TEST(shards_have_the_images_of_their_samples)
{
    dt_commit how = {.n_shards = 3};
    char glob[160];
    write_sft(path, 0, N_SAMPLES, &how);
    snprintf(glob, sizeof glob, "%.*s-*.h5", (int)(strlen(path) - 3), path);
    for (int i = 0; i < 3; i++) {
        char shard[160];
        dt_dataset *d;
        snprintf(shard, sizeof shard, "%.*s-0000%d-of-00003.h5", (int)(strlen(path) - 3), path, i);
        assert_int_equal(dt_dataset_open(&d, shard), DT_OK);
        assert_int_equal(dt_dataset_verify(d, NULL, NULL), DT_OK);
        dt_dataset_close(d);
    }
    dt_loader_options o = of_images(glob);
    o.shuffle = false;
    assert_int_equal(count_epoch(o, 2), N_SAMPLES);
    for (int i = 0; i < 3; i++) {
        char shard[160];
        snprintf(shard, sizeof shard, "%.*s-0000%d-of-00003.h5", (int)(strlen(path) - 3), path, i);
        unlink(shard);
    }
}

TEST(no_image_of_a_prompt_is_cut)
{
    dt_dataset_writer *w = begin(path, DT_DATASET_PROMPTS);
    int32_t id[32];
    uint8_t mask[32];
    for (int i = 0; i < N_SAMPLES; i++) {
        assert_int_equal(dt_dataset_add(w, id, NULL, text_of(i, id, mask)), DT_OK);
        add_images(w, i);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
    dt_loader_options o = of_images(path);
    o.kind = DT_DATASET_PROMPTS;
    dt_loader *l = open_loader(&o);
    assert_int_equal(dt_loader_info(l)->max_images, 2);
    for (int i = 0; i < N_SAMPLES; i++) {
        int32_t n;
        const int len = text_of(i, id, mask), n_first = n_images_of(i) ? 2 : 1; /* tokens before the first image */
        assert_int_equal(dt_loader_prompt(l, i, len - n_first, id, &n), DT_OK);
        dt_error_clear();
        if (n_images_of(i)) assert_int_equal(dt_loader_prompt(l, i, len - n_first - 1, id, &n), DT_ERR_DATA);
    }
    dt_loader_close(l);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

enum { N_GROUPED = 403, G = 8, N_WITH = 134 }; /* every third has an image */

static void write_lengths(const char *file, int *n_tok)
{
    dt_dataset_writer *w = begin(file, DT_DATASET_SFT);
    for (int i = 0; i < N_GROUPED; i++) {
        int32_t id[80];
        uint8_t mask[80] = {0}, pixels[IMAGE_NBYTES] = {0};
        int n = 0;
        for (int t = 0; t < (i % 3 == 1 ? N_IMG : 0); t++) id[n++] = IMAGE;
        for (int t = (int)(dt_mix64((uint64_t)i) % 60) + 2; t > 0; t--) mask[n] = n > N_IMG, id[n++] = 1;
        mask[n - 1] = 1;
        n_tok[i] = n;
        assert_int_equal(dt_dataset_add(w, id, mask, n), DT_OK);
        if (i % 3 == 1) assert_int_equal(dt_dataset_add_images(w, pixels, NULL, 1), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

/* Samples of each step of an epoch, over all ranks in the order of the step. */
static void list_epoch(dt_loader_options o, int nranks, int epoch, int64_t *sample)
{
    o.nranks = nranks;
    for (o.rank = 0; o.rank < nranks; o.rank++) {
        dt_loader *l = open_loader(&o);
        const int64_t n_steps = dt_loader_info(l)->steps_per_epoch;
        for (int64_t step = 0; step < n_steps; step++)
            for (int micro = 0; micro < dt_loader_n_micro(l, epoch * n_steps + step); micro++) {
                const dt_batch *b;
                assert_int_equal(dt_loader_batch(l, epoch * n_steps + step, micro, &b), DT_OK);
                for (int64_t k = 0; k < b->n_samples; k++)
                    sample[step * G + (micro * nranks + o.rank) * o.micro_batch_size + k] = b->sample[k];
            }
        dt_loader_close(l);
    }
}

static int spread(const int64_t *sample, const int *n_tok)
{
    int least = n_tok[sample[0]], most = least;
    for (int k = 1; k < G; k++) {
        least = n_tok[sample[k]] < least ? n_tok[sample[k]] : least;
        most = n_tok[sample[k]] > most ? n_tok[sample[k]] : most;
    }
    return most - least;
}

/* 16 + 33 whole batches, 6 + 5 samples left: those may be of both kinds. */
TEST(grouped_batches_are_of_one_modality_and_similar_lengths)
{
    enum { N_WHOLE = N_WITH / G + (N_GROUPED - N_WITH) / G };
    static int n_tok[N_GROUPED];
    static int64_t sample[3][N_GROUPED], other_ranks[N_GROUPED], loose[N_GROUPED];
    write_lengths(path, n_tok);
    dt_loader_options o = of_images(path);
    o.seq_len = 80;
    list_epoch(o, 1, 0, loose);
    o.group = true;
    int sum = 0, sum_loose = 0, changed = 0;
    for (int e = 0; e < 3; e++) {
        bool seen[N_GROUPED] = {false};
        list_epoch(o, 1, e, sample[e]);
        list_epoch(o, 3, e, other_ranks);
        assert_memory_equal(sample[e], other_ranks, sizeof other_ranks);
        for (int i = 0; i < N_GROUPED; i++) {
            assert_false(seen[sample[e][i]]);
            seen[sample[e][i]] = true;
            const int64_t first = sample[e][i / G * G];
            if (i / G < N_WHOLE) assert_int_equal(sample[e][i] % 3 == 1, first % 3 == 1);
        }
        for (int s = 0; s < N_WHOLE; s++) {
            sum += spread(sample[e] + s * G, n_tok);
            sum_loose += spread(loose + s * G, n_tok);
            changed += sample[e][s * G] != sample[0][s * G];
        }
    }
    assert_true(sum * 3 <
                sum_loose); /* sets of 4 and 8 batches: a batch spans about a fourth of the lengths, or less */
    assert_true(changed > N_WHOLE);
    o.seed++;
    list_epoch(o, 1, 0, other_ranks);
    assert_true(memcmp(sample[0], other_ranks, sizeof other_ranks) != 0);

    dt_loader *l;
    dt_ledger ledger = {0};
    o.ledger = &ledger;
    l = open_loader(&o);
    assert_int_equal(dt_loader_nbytes(l), ledger.total_now);
    dt_loader_close(l);
    assert_int_equal(ledger.total_now, 0);
    o.shuffle = false;
    dt_error_clear();
    assert_fails(dt_loader_open(&l, &o), DT_ERR_USAGE, "data.shuffle");
    assert_int_equal(ledger.total_now, 0);
}

/* ---- what does not fit together ---------------------------------------------------------------------------------- */

typedef struct wrong {
    int n_placeholders, n_images;
    int target; /* this token is one; 0: the last */
    const char *says;
} wrong;

TEST(texts_and_images_that_do_not_match_are_refused)
{
    static const wrong cases[] = {{N_IMG, 2, 0, "placeholders"},     {N_IMG - 1, 1, 0, "placeholders"},
                                  {N_IMG + 1, 1, 0, "placeholders"}, {N_IMG, 0, 0, "placeholders"},
                                  {0, 1, 0, "placeholders"},         {N_IMG, 1, 2, "not be a target"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dt_dataset_writer *w = begin(path, DT_DATASET_SFT);
        int32_t id[16] = {7};
        uint8_t mask[16] = {0}, pixels[2 * IMAGE_NBYTES] = {0};
        int n = 1;
        for (int t = 0; t < cases[c].n_placeholders; t++) id[n++] = IMAGE;
        id[n++] = 8;
        mask[n - 1] = 1;
        mask[cases[c].target] = cases[c].target > 0;
        assert_int_equal(dt_dataset_add(w, id, mask, n), DT_OK);
        assert_int_equal(dt_dataset_add_images(w, pixels, NULL, cases[c].n_images), DT_OK);
        assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
        dt_dataset *d;
        assert_int_equal(dt_dataset_open(&d, path), DT_OK);
        dt_error_clear();
        assert_fails(dt_dataset_verify(d, NULL, NULL), DT_ERR_DATA, cases[c].says);
        dt_dataset_close(d);
        for (int packed = 0; packed < 2; packed++) {
            dt_loader_options o = of_images(path);
            const dt_batch *b;
            o.packing = packed ? "bfd" : "none";
            dt_loader *l = open_loader(&o);
            dt_error_clear();
            assert_fails(dt_loader_batch(l, 0, 0, &b), DT_ERR_DATA, "placeholder");
            dt_loader_close(l);
        }
    }
}

TEST(files_of_one_run_must_agree)
{
    static const char *const says[] = {"must agree",
                                       "must agree",
                                       "must agree",
                                       ": attribute preprocessor: size and resample: the images were prepared with",
                                       ": attribute preprocessor:1:", /* not valid JSON here */
                                       NULL};
    const dt_image_form forms[] = {
        {S + 1, N_IMG, IMAGE, form.preprocessor, false},
        {S, N_IMG + 1, IMAGE, form.preprocessor, false},
        {S, N_IMG, IMAGE + 1, form.preprocessor, false},
        {S, N_IMG, IMAGE, CLIP ", \"resample\": 2}", false},
        {S, N_IMG, IMAGE, CLIP ", \"note\": \"\\u0000\"}", false},
        {S, N_IMG, IMAGE, "{\"resample\": 3, \"size\": 224, \"image_processor_type\": \"CLIPImageProcessor\"}",
         false}}; /* says the same */
    char files[300];
    snprintf(files, sizeof files, "%s, %s", path, other);
    write_sft(path, 0, 4, NULL);
    for (size_t c = 0; c < sizeof forms / sizeof forms[0]; c++) {
        dt_dataset_writer *w;
        const int32_t id[] = {1, 2};
        const uint8_t mask[] = {0, 1};
        assert_int_equal(dt_dataset_create(&w, other, DT_DATASET_SFT, VOCAB, "test", false), DT_OK);
        assert_int_equal(dt_dataset_set_images(w, &forms[c]), DT_OK);
        assert_int_equal(dt_dataset_add(w, id, mask, 2), DT_OK);
        assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
        const dt_loader_options o = of_images(files);
        const bool same = !says[c];
        dt_loader *l;
        dt_error_clear();
        assert_int_equal(dt_loader_open(&l, &o), same ? DT_OK : DT_ERR_DATA);
        if (!same) assert_says(says[c]);
        if (same) dt_loader_close(l);
    }
    write_sft(other, 4, N_SAMPLES - 4, NULL);
    assert_int_equal(count_epoch(of_images(files), 2), N_SAMPLES);
}

TEST(an_altered_image_fails_verification)
{
    write_sft(path, 0, N_SAMPLES, NULL);
    FILE *f = fopen(path, "r+b");
    uint8_t head[8], bytes[1 << 16];
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    for (int t = 0; t < 8; t++) head[t] = byte_of(0, 0, t);
    const uint8_t *at = memmem(bytes, n, head, sizeof head);
    assert_non_null(at);
    fseek(f, at - bytes, SEEK_SET);
    fputc(at[0] ^ 1, f);
    fclose(f);
    dt_dataset *d;
    assert_int_equal(dt_dataset_open(&d, path), DT_OK);
    dt_error_clear();
    assert_fails(dt_dataset_verify(d, NULL, NULL), DT_ERR_DATA, "images/pixels: block 0 (bytes ");
    dt_dataset_close(d);
}

static int open_files(void **state)
{
    if (make_folder(state) != 0) return -1;
    strcpy(path, in_folder("a.h5")), strcpy(other, in_folder("b.h5"));
    return 0;
}

int main(void) { return run_listed(NULL, open_files, remove_folder); }
