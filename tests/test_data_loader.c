/* test_data_loader.c - batches against the definition of each kind of sample, counts against batches, prefetching against none. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "dtrain/data.h"
#include "dtrain/dataset.h"

static char dir[64];
static char paths[8][128];

static const char *path_of(int i)
{
    snprintf(paths[i], sizeof paths[i], "%s/file-%d.h5", dir, i);
    return paths[i];
}

/* A dataset in memory: what the tests compare with. */
typedef struct document {
    int n;
    int32_t id[64];
    uint8_t mask[64];
    float weight;
} document;

static uint64_t rng_state = 7;
static uint32_t draw(uint32_t n) { return (uint32_t)(dt_mix64(rng_state++) % n); }

static void draw_documents(document *d, int n_documents, int longest, int32_t vocab, uint32_t target_chance)
{
    for (int i = 0; i < n_documents; i++) {
        d[i].n = (int)draw((uint32_t)longest + 1);
        d[i].weight = (float)draw(5) * 0.25f;
        for (int t = 0; t < d[i].n; t++) {
            d[i].id[t] = (int32_t)draw((uint32_t)vocab);
            d[i].mask[t] = draw(100) < target_chance;
        }
    }
}

static void write_documents(const char *path, dt_dataset_kind kind, int64_t vocab, const document *d, int n_documents, bool weights)
{
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, path, kind, vocab, "test", weights), DT_OK);
    for (int i = 0; i < n_documents; i++) {
        const int half = d[i].n / 2; /* in two pieces: adding goes on where it stopped */
        const bool sft = kind == DT_DATASET_SFT;
        assert_int_equal(dt_dataset_add(w, d[i].id, sft ? d[i].mask : NULL, half), DT_OK);
        assert_int_equal(dt_dataset_add(w, d[i].id + half, sft ? d[i].mask + half : NULL, d[i].n - half), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, d[i].weight), DT_OK);
    }
    assert_int_equal(dt_dataset_commit(w), DT_OK);
}

static dt_loader_options options(const char *files, int64_t seq_len, int64_t G, int64_t m)
{
    return (dt_loader_options){.files = files, .where = "test.ini:3: [data] train", .seq_len = seq_len, .packing = "auto", .train_batch_size = G,
                               .micro_batch_size = m, .nranks = 1, .seed = 5, .vocab_size = 100000};
}

static dt_loader *open_loader(const dt_loader_options *o)
{
    dt_loader *l = NULL;
    const dt_err err = dt_loader_open(&l, o);
    if (err != DT_OK) print_message("%s\n", dt_error_message());
    assert_int_equal(err, DT_OK);
    return l;
}

/* What holds for every batch, whatever is in it. */
static void check_form(const dt_batch *b)
{
    int64_t n_target = 0;
    assert_true(b->n_tok <= b->max_tok && b->n_seq <= b->max_seq);
    assert_int_equal(b->seq_start[0], 0);
    assert_int_equal(b->seq_start[b->n_seq], b->n_tok);
    for (int s = 0; s < b->n_seq; s++) {
        assert_true(b->seq_start[s] < b->seq_start[s + 1]);
        for (int t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) {
            assert_int_equal(b->pos[t], t - b->seq_start[s]);
            if (b->target[t] < 0) assert_true(b->target[t] == -1 && b->weight[t] == 0);
            n_target += b->target[t] >= 0;
        }
    }
    assert_int_equal(n_target, b->n_target);
}

/* The counts announced for a step are those of its batches, over all ranks. */
static void check_counts(dt_loader_options o, int nranks, int64_t step)
{
    dt_step_counts want = {0}, got;
    bool known = false;
    o.nranks = nranks;
    for (int r = 0; r < nranks; r++) {
        o.rank = r;
        dt_loader *l = open_loader(&o);
        for (int a = 0; a < dt_loader_n_micro(l, step); a++) {
            const dt_batch *b;
            assert_int_equal(dt_loader_batch(l, step, a, &b), DT_OK);
            check_form(b);
            want.n_tok += b->n_tok;
            want.n_target += b->n_target;
            want.n_samples += b->n_samples;
            want.weight_fixed += b->weight_fixed;
        }
        assert_int_equal(dt_loader_step_counts(l, step, &got, &known), DT_OK);
        assert_true(known);
        dt_loader_close(l);
    }
    assert_memory_equal(&want, &got, sizeof want);
}

/* ---- wrapped rows ---------------------------------------------------------------------------------------------------------- */

enum { N_DOC = 40 };

/* All tokens of a dataset in a row, and 1 where a document starts. */
static int flatten(const document *d, int n_documents, int32_t *id, uint8_t *starts)
{
    int n = 0;
    for (int i = 0; i < n_documents; i++) {
        if (d[i].n) starts[n] = 1;
        for (int t = 0; t < d[i].n; t++) id[n++] = d[i].id[t];
    }
    return n;
}

static void check_row(const dt_batch *b, int at, int64_t row, int T, const int32_t *id, const uint8_t *starts, bool cut)
{
    for (int t = 0; t < T; t++) {
        const int64_t g = row * T + t;
        assert_int_equal(b->token[at + t], id[g]);
        const bool has_target = !cut || !starts[g + 1];
        assert_int_equal(b->target[at + t], has_target ? id[g + 1] : -1);
        assert_true(b->weight[at + t] == (has_target ? 1 : 0));
        if (t > 0) assert_int_equal(b->pos[at + t], cut && starts[g] ? 0 : b->pos[at + t - 1] + 1);
        else assert_int_equal(b->pos[at], 0);
    }
}

static void wrapped_rows_follow_the_stream(void **state)
{
    static document d[N_DOC];
    static int32_t id[N_DOC * 64];
    static uint8_t starts[N_DOC * 64];
    const int64_t vocabs[] = {257, 70000}; /* uint16 and uint32 */
    const int lens[] = {1, 3, 16, 50};
    for (int v = 0; v < 2; v++) {
        draw_documents(d, N_DOC, 30, (int32_t)vocabs[v], 0);
        d[5].n = d[6].n = d[N_DOC - 1].n = 0;
        memset(starts, 0, sizeof starts);
        const int n = flatten(d, N_DOC, id, starts);
        write_documents(path_of(0), DT_DATASET_TOKENS, vocabs[v], d, N_DOC, false);
        for (size_t k = 0; k < 4; k++)
            for (int cut = 0; cut < 2; cut++) {
                const int T = lens[k];
                dt_loader_options o = options(path_of(0), T, 5, 2);
                o.document_mask = cut;
                dt_loader *l = open_loader(&o);
                assert_int_equal(dt_loader_info(l)->n_samples, (n - 1) / T);
                assert_int_equal(dt_loader_info(l)->n_tokens, n);
                for (int64_t step = 0, row = 0; step < dt_loader_info(l)->steps_per_epoch; step++)
                    for (int a = 0; a < dt_loader_n_micro(l, step); a++) {
                        const dt_batch *b;
                        assert_int_equal(dt_loader_batch(l, step, a, &b), DT_OK);
                        check_form(b);
                        for (int at = 0; at < b->n_tok; at += T) check_row(b, at, row++, T, id, starts, cut);
                    }
                dt_loader_close(l);
                check_counts(o, 1, 0);
                check_counts(o, 3, 1);
            }
    }
}

static void samples_are_numbered_through_the_files(void **state)
{
    static document a = {.n = 9, .id = {0, 1, 2, 3, 4, 5, 6, 7, 8}}, b = {.n = 6, .id = {10, 11, 12, 13, 14, 15}};
    write_documents(path_of(0), DT_DATASET_TOKENS, 300, &a, 1, false);
    write_documents(path_of(1), DT_DATASET_TOKENS, 300, &b, 1, false);
    char list[300];
    snprintf(list, sizeof list, "%s , %s", path_of(1), path_of(0));
    dt_loader_options o = options(list, 2, 6, 6);
    dt_loader *l = open_loader(&o);
    const int32_t want[] = {10, 11, 12, 13, 0, 1, 2, 3, 4, 5, 6, 7};
    const dt_batch *batch;
    assert_int_equal(dt_loader_info(l)->n_samples, 6);
    assert_int_equal(dt_loader_batch(l, 0, 0, &batch), DT_OK);
    assert_memory_equal(batch->token, want, sizeof want);
    dt_loader_close(l);

    snprintf(list, sizeof list, "%s/file-?.h5", dir); /* a glob: sorted by name */
    if (access(path_of(2), F_OK) == 0) unlink(path_of(2));
    l = open_loader(&o);
    assert_int_equal(dt_loader_batch(l, 0, 0, &batch), DT_OK);
    assert_memory_equal(batch->token, want + 4, 8 * sizeof want[0]);
    assert_memory_equal(batch->token + 8, want, 4 * sizeof want[0]);
    dt_loader_close(l);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/dtrain-test-loader-XXXXXX");
    if (!mkdtemp(dir)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrapped_rows_follow_the_stream),
        cmocka_unit_test(samples_are_numbered_through_the_files),
    };
    const int status = cmocka_run_group_tests(tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) == 0 ? status : 1;
}
