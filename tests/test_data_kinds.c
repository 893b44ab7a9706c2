/* test_data_kinds.c - samples that are not trained on as they are: prompts in the order of an epoch, and answers with
 * labels, each also after the prompt of another sample. */
#include "loader_fixture.h"

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* Each once an epoch, in another order the next; of a long one the last tokens. */
TEST(prompts_come_in_the_order_of_an_epoch)
{
    enum { N = 12, MAX = 5 };
    document d[N];
    bool differs = false;
    draw_documents(d, N, 9, 50, 0);
    for (int i = 0; i < N; i++) {
        if (d[i].n == 0) d[i].id[d[i].n++] = 3;
    }
    write_documents(path_of(0), DT_DATASET_PROMPTS, 50, d, N, false);
    dt_loader_options o = options(path_of(0), 16, 1, 1);
    o.kind = DT_DATASET_PROMPTS;
    o.shuffle = true;
    dt_loader *l = open_loader(&o);
    int64_t longest = 0;
    for (int i = 0; i < N; i++) longest = d[i].n > longest ? d[i].n : longest;
    assert_true(dt_loader_info(l)->n_samples == N && dt_loader_info(l)->longest_prompt == longest);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        bool seen[N] = {false};
        for (int64_t i = 0; i < N; i++) {
            const int64_t sample = dt_loader_prompt_at(l, epoch * N + i);
            int32_t ids[MAX], n;
            assert_true(sample >= 0 && sample < N && !seen[sample]);
            seen[sample] = true;
            differs |= sample != dt_loader_prompt_at(l, i);
            assert_int_equal(dt_loader_prompt(l, sample, MAX, ids, &n), DT_OK);
            assert_int_equal(n, d[sample].n < MAX ? d[sample].n : MAX);
            assert_memory_equal(ids, d[sample].id + d[sample].n - n, (size_t)n * sizeof *ids);
        }
    }
    assert_true(differs);
    dt_loader_close(l);
}

TEST(files_of_another_kind_than_prompts_are_refused)
{
    document d = {.n = 2, .id = {1, 2}, .mask = {0, 1}};
    dt_loader *l;
    write_documents(path_of(0), DT_DATASET_SFT, 50, &d, 1, false);
    dt_loader_options o = options(path_of(0), 16, 1, 1);
    o.kind = DT_DATASET_PROMPTS;
    assert_fails(dt_loader_open(&l, &o), DT_ERR_DATA, "kind sft: expected prompts");
    d.n = 0;
    write_documents(path_of(0), DT_DATASET_PROMPTS, 50, &d, 1, false);
    assert_fails(dt_loader_open(&l, &o), DT_ERR_DATA, "prompt 0: expected at least one token");
    write_documents(path_of(0), DT_DATASET_PROMPTS, 50, &d, 1, false);
    o.kind = DT_DATASET_TOKENS;
    assert_fails(dt_loader_open(&l, &o), DT_ERR_DATA, "kind prompts: expected tokens or sft");
}

/* ---- answers with labels ----------------------------------------------------------------------------------------- */

/* Sample i: a prompt of 1 + i % 3 tokens 10 + i, an answer of 1 + i % 4 tokens 100 + i. */
enum { N_ANSWERS = 11 };
static int n_prompt_of(int64_t i) { return 1 + (int)(i % 3); }
static int n_answer_of(int64_t i) { return 1 + (int)(i % 4); }
static bool is_good(int64_t i) { return i % 5 < 2; }

static void write_answers(const char *path, int n_answers)
{
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, path, DT_DATASET_UNPAIRED, 200, "bytes", false), DT_OK);
    for (int i = 0; i < n_answers; i++) {
        int32_t ids[16];
        int n = 0;
        while (n < n_prompt_of(i)) ids[n++] = 10 + i;
        while (n < n_prompt_of(i) + n_answer_of(i)) ids[n++] = 100 + i;
        const dt_pair answer = {.prompt_length = {(uint32_t)n_prompt_of(i)}, .good = is_good(i)};
        assert_int_equal(dt_dataset_add(w, ids, NULL, n), DT_OK);
        assert_int_equal(dt_dataset_end_pair(w, &answer), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

/* Is sequence k of the batch the prompt of one sample with the answer of another, cut at T tokens? */
static bool is_text(const dt_batch *b, int64_t k, int64_t prompt, int64_t answer, int T)
{
    const int n_prompt = n_prompt_of(prompt),
              n = n_prompt + n_answer_of(answer) < T ? n_prompt + n_answer_of(answer) : T;
    const int32_t first = b->seq_start[k];
    bool ok = b->seq_start[k + 1] - first == n && b->sample[k] == prompt;
    for (int t = 0; ok && t < n; t++) {
        const int32_t id = (int32_t)(t < n_prompt ? 10 + prompt : 100 + answer),
                      next = t + 1 < n && t + 1 >= n_prompt ? (int32_t)(100 + answer) : -1;
        ok = b->token[first + t] == id && b->target[first + t] == next;
    }
    return ok;
}

/* Steps of four samples, the last of three: whatever the ranks and micro-batches are, each prompt meets the answer of
 * the sample before it in its step. */
TEST(mismatched_answers_depend_on_the_step_alone)
{
    enum { T = 6, G = 4 };
    int64_t order[3 * N_ANSWERS] = {0};
    write_answers(path_of(0), N_ANSWERS);
    for (int m = 1; m <= G; m *= 2)
        for (int nranks = 1; nranks <= 4 / m; nranks++)
            for (int prefetch = 0; prefetch < 3; prefetch++) {
                int64_t n_found = 0;
                for (int rank = 0; rank < nranks; rank++) {
                    dt_loader_options o = options(path_of(0), T, G, m);
                    o.kind = DT_DATASET_UNPAIRED;
                    o.truncate = o.mismatched = o.shuffle = true;
                    o.rank = rank, o.nranks = nranks, o.prefetch = prefetch;
                    dt_loader *l = open_loader(&o);
                    assert_int_equal(dt_loader_info(l)->n_samples, N_ANSWERS);
                    for (int64_t step = 0; step < 6; step++) {
                        const int64_t n = step % 3 == 2 ? 3 : 4;
                        for (int turn = 0; turn < 2; turn++)
                            for (int micro = 0; micro < dt_loader_n_micro(l, step); micro++) {
                                const dt_batch *b;
                                assert_int_equal(turn == 0 ? dt_loader_mismatched_batch(l, step, micro, &b)
                                                           : dt_loader_batch(l, step, micro, &b),
                                                 DT_OK);
                                for (int64_t k = 0; k < b->n_samples; k++) {
                                    const int64_t in_step = (int64_t)(micro * nranks + rank) * m + k;
                                    int64_t *of = order + step * G - step / 3; /* 11 samples an epoch */
                                    if (nranks == 1 && m == 1 && prefetch == 0 && turn == 0) of[in_step] = b->sample[k];
                                    assert_int_equal(of[in_step], b->sample[k]);
                                    n_found++;
                                    if (turn == 1) {
                                        assert_true(is_text(b, k, of[in_step], of[in_step], T));
                                        assert_int_equal(dt_labels_of(b)->good[k], is_good(of[in_step]));
                                    } else if (m > 1 || nranks > 1 || prefetch > 0) { /* the order is known */
                                        assert_true(is_text(b, k, of[in_step], of[(in_step + n - 1) % n], T));
                                    }
                                }
                            }
                    }
                    for (int64_t micro = 0; micro < dt_loader_n_micro(l, DT_EVALUATION); micro++) {
                        const dt_batch *b;
                        assert_int_equal(dt_loader_mismatched_batch(l, DT_EVALUATION, micro, &b), DT_OK);
                        for (int64_t k = 0; k < b->n_samples; k++)
                            assert_true(is_text(b, k, b->sample[k], (b->sample[k] + N_ANSWERS - 1) % N_ANSWERS, T));
                    }
                    dt_loader_close(l);
                }
                assert_int_equal(n_found, 2 * 2 * N_ANSWERS);
            }
}

/* Answers that seq_len cuts off do not count. Weights of files change the share. */
TEST(good_answers_are_counted)
{
    char files[3 * PATH_MAX];
    write_answers(path_of(0), N_ANSWERS); /* good: 0 1 5 6 10 */
    write_answers(path_of(1), 2);
    const struct {
        const char *weight[2];
        int64_t seq_len, n, n_good;
        double share;
    } cases[] = {{{"", ""}, 16, 13, 7, 7.0 / 13},
                 {{":1", ":3"}, 16, 13, 7, 0.25 * 5 / 11 + 0.75},
                 {{"", ""}, 2, 5, 3, 3.0 / 5}}; /* only prompts of one token leave room for an answer */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(files, sizeof files, "%s%s, %s%s", path_of(0), cases[i].weight[0], path_of(1), cases[i].weight[1]);
        dt_loader_options o = options(files, (int)cases[i].seq_len, 4, 1);
        o.kind = DT_DATASET_UNPAIRED;
        o.truncate = true;
        dt_loader *l = open_loader(&o);
        const dt_data_info *info = dt_loader_info(l);
        assert_int_equal(info->n_samples, cases[i].n);
        assert_int_equal(info->n_flagged, cases[i].n_good);
        assert_true(fabs(info->flagged_share - cases[i].share) < 1e-12);
        dt_loader_close(l);
    }
}

int main(void) { return run_listed(NULL, make_folder, remove_folder); }
