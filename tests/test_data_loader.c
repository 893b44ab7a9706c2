/* test_data_loader.c - batches against the definition of each kind of sample, counts against batches, prefetching
 * against none. */
#include "loader_fixture.h"

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
            want.weight += (double)b->weight_fixed * 0x1p-20;
        }
        assert_int_equal(dt_loader_step_counts(l, step, &got), DT_OK);
        dt_loader_close(l);
    }
    assert_memory_equal(&want, &got, sizeof want);
}

/* ---- wrapped rows ------------------------------------------------------------------------------------------------ */

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
        if (t > 0)
            assert_int_equal(b->pos[at + t], cut && starts[g] ? 0 : b->pos[at + t - 1] + 1);
        else
            assert_int_equal(b->pos[at], 0);
    }
}

TEST(wrapped_rows_follow_the_stream)
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

TEST(samples_are_numbered_through_the_files)
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

    snprintf(list, sizeof list, "%s/file-?.h5", folder); /* a glob: sorted by name */
    if (access(path_of(2), F_OK) == 0) unlink(path_of(2));
    l = open_loader(&o);
    assert_int_equal(dt_loader_batch(l, 0, 0, &batch), DT_OK);
    assert_memory_equal(batch->token, want + 4, 8 * sizeof want[0]);
    assert_memory_equal(batch->token + 8, want, 4 * sizeof want[0]);
    dt_loader_close(l);
}

/* ---- sft --------------------------------------------------------------------------------------------------------- */

static int n_targets(const document *d, int T)
{
    int n = 0;
    for (int t = 1; t < d->n && t < T; t++) n += d->mask[t];
    return n;
}

/* One sequence of a batch against the document it should be. */
static void check_record(const dt_batch *b, int seq, const document *d, int T, bool sft, float weight)
{
    const int n = d->n < T ? d->n : T, at = b->seq_start[seq];
    assert_int_equal(b->seq_start[seq + 1] - at, n);
    for (int t = 0; t < n; t++) {
        const bool predicts = t + 1 < n && (!sft || d->mask[t + 1]);
        assert_int_equal(b->token[at + t], d->id[t]);
        assert_int_equal(b->target[at + t], predicts ? d->id[t + 1] : -1);
        assert_true(b->weight[at + t] == (predicts ? weight : 0));
    }
}

TEST(records_are_shifted_once_and_those_without_target_left_out)
{
    static document d[N_DOC];
    for (int round = 0; round < 4; round++) {
        const bool weights = round % 2;
        const int T = round < 2 ? 64 : 7;
        draw_documents(d, N_DOC, 20, 300, 15);
        d[0].n = 0;
        write_documents(path_of(0), DT_DATASET_SFT, 300, d, N_DOC, weights);
        dt_loader_options o = options(path_of(0), T, 6, 4);
        dt_loader *l = open_loader(&o);
        int kept[N_DOC], n_kept = 0;
        for (int i = 0; i < N_DOC; i++)
            if (n_targets(&d[i], T) > 0) kept[n_kept++] = i;
        assert_int_equal(dt_loader_info(l)->n_samples, n_kept);
        assert_int_equal(dt_loader_info(l)->n_dropped, N_DOC - n_kept);
        assert_true(n_kept > 10 && n_kept < N_DOC - 3);
        int k = 0;
        for (int64_t step = 0; step < dt_loader_info(l)->steps_per_epoch; step++)
            for (int a = 0; a < dt_loader_n_micro(l, step); a++) {
                const dt_batch *b;
                assert_int_equal(dt_loader_batch(l, step, a, &b), DT_OK);
                check_form(b);
                assert_int_equal(b->n_samples, b->n_seq);
                for (int s = 0; s < b->n_seq; s++, k++)
                    check_record(b, s, &d[kept[k]], T, true, weights ? d[kept[k]].weight : 1);
            }
        assert_int_equal(k, n_kept);
        dt_loader_close(l);
        check_counts(o, 1, 1);
        check_counts(o, 4, 2);
    }
}

/* Appendix C: ids (a, b, c), mask (0, 0, 1): one target, c, from the logits at b. */
TEST(the_worked_example_of_the_shift)
{
    const document d = {.n = 3, .id = {'a', 'b', 'c'}, .mask = {0, 0, 1}};
    write_documents(path_of(0), DT_DATASET_SFT, 257, &d, 1, false);
    dt_loader_options o = options(path_of(0), 8, 1, 1);
    dt_loader *l = open_loader(&o);
    const dt_batch *b;
    assert_int_equal(dt_loader_batch(l, 0, 0, &b), DT_OK);
    const int32_t want[] = {-1, 'c', -1};
    assert_int_equal(b->n_target, 1);
    assert_memory_equal(b->target, want, sizeof want);
    dt_loader_close(l);
}

/* ---- packed ------------------------------------------------------------------------------------------------------ */

static bool same_ids(const dt_batch *b, int seq, const int32_t *id, int n)
{
    return b->seq_start[seq + 1] - b->seq_start[seq] == n &&
           memcmp(b->token + b->seq_start[seq], id, (size_t)n * sizeof *id) == 0;
}

/* Some row contains every document (piece) exactly once, whole, and rows are no longer than T. */
static void check_packed(const document *d, int n_documents, int T, bool sft, bool split)
{
    dt_loader_options o = options(path_of(0), T, 3, 2);
    o.packing = split ? "bfd_split" : "bfd";
    dt_loader *l = open_loader(&o);
    enum { MAX_PIECES = 1024 };
    static int piece_doc[MAX_PIECES], piece_at[MAX_PIECES], piece_len[MAX_PIECES];
    static bool found[MAX_PIECES];
    int n_pieces = 0, n_found = 0;
    memset(found, 0, sizeof found);
    for (int i = 0; i < n_documents; i++)
        for (int at = 0; at < d[i].n; at += T) {
            const int len = d[i].n - at < T ? d[i].n - at : T;
            if (at > 0 && !split) break;
            if (sft ? n_targets(&d[i], T) == 0 : len < 2) continue;
            piece_doc[n_pieces] = i, piece_at[n_pieces] = at, piece_len[n_pieces++] = len;
        }
    for (int64_t step = 0; step < dt_loader_info(l)->steps_per_epoch; step++)
        for (int a = 0; a < dt_loader_n_micro(l, step); a++) {
            const dt_batch *b;
            assert_int_equal(dt_loader_batch(l, step, a, &b), DT_OK);
            check_form(b);
            for (int s = 0; s < b->n_seq; s++) {
                int p = 0;
                while (p < n_pieces && (found[p] || !same_ids(b, s, d[piece_doc[p]].id + piece_at[p], piece_len[p])))
                    p++;
                assert_true(p < n_pieces);
                found[p] = true;
                n_found++;
                document piece = d[piece_doc[p]];
                if (split) {
                    memmove(piece.id, piece.id + piece_at[p], (size_t)piece_len[p] * sizeof piece.id[0]);
                    piece.n = piece_len[p];
                }
                check_record(b, s, &piece, T, sft, sft ? piece.weight : 1);
            }
        }
    assert_int_equal(n_found, n_pieces);
    dt_loader_close(l);
    check_counts(o, 1, 0);
    check_counts(o, 2, 1);
}

TEST(packed_rows_hold_every_document_once)
{
    static document d[N_DOC];
    draw_documents(d, N_DOC, 40, 70000, 0);
    d[3].n = 0;
    d[4].n = 1;
    write_documents(path_of(0), DT_DATASET_TOKENS, 70000, d, N_DOC, false);
    check_packed(d, N_DOC, 64, false, false);
    check_packed(d, N_DOC, 11, false, false);
    check_packed(d, N_DOC, 11, false, true);
    draw_documents(d, N_DOC, 40, 70000, 10);
    write_documents(path_of(0), DT_DATASET_SFT, 70000, d, N_DOC, true);
    check_packed(d, N_DOC, 64, true, false);
    check_packed(d, N_DOC, 11, true, false);
}

/* ---- ranks, epochs, evaluation, mixing --------------------------------------------------------------------------- */

/* Sample i is the token i + 1 twice, so that a batch tells which samples it has. */
static void write_numbered(const char *path, int first, int n)
{
    dt_dataset_writer *w;
    assert_int_equal(dt_dataset_create(&w, path, DT_DATASET_SFT, 70000, "", false), DT_OK);
    for (int i = first; i < first + n; i++) {
        const int32_t id[] = {i + 1, i + 1};
        const uint8_t mask[] = {0, 1};
        assert_int_equal(dt_dataset_add(w, id, mask, 2), DT_OK);
        assert_int_equal(dt_dataset_end_document(w, 1), DT_OK);
    }
    assert_int_equal(dt_datasets_commit(&w, NULL, 1), DT_OK);
}

TEST(every_sample_goes_to_one_rank_once_an_epoch)
{
    enum { N = 23 };
    write_numbered(path_of(0), 0, N);
    const int rank_counts[] = {1, 2, 3, 5, 16, 40};
    for (size_t k = 0; k < sizeof rank_counts / sizeof rank_counts[0]; k++) {
        int seen[N] = {0}, n_calls = -1, evaluated[N] = {0};
        dt_loader_options o = options(path_of(0), 2, 7, 2);
        o.shuffle = true;
        o.nranks = rank_counts[k];
        for (o.rank = 0; o.rank < o.nranks; o.rank++) {
            dt_loader *l = open_loader(&o);
            const dt_batch *b;
            int calls = 0;
            for (int64_t step = 0; step < dt_loader_info(l)->steps_per_epoch; step++)
                for (int a = 0; a < dt_loader_n_micro(l, step); a++, calls++) {
                    assert_int_equal(dt_loader_batch(l, step, a, &b), DT_OK);
                    for (int s = 0; s < b->n_seq; s++) seen[b->token[b->seq_start[s]] - 1]++;
                }
            assert_true(n_calls < 0 || n_calls == calls); /* no rank waits for another */
            n_calls = calls;
            for (int64_t a = 0; a < dt_loader_n_micro(l, DT_EVALUATION); a++) {
                assert_int_equal(dt_loader_batch(l, DT_EVALUATION, a, &b), DT_OK);
                for (int s = 0; s < b->n_seq; s++) evaluated[b->token[b->seq_start[s]] - 1]++;
            }
            dt_loader_close(l);
        }
        for (int i = 0; i < N; i++) assert_true(seen[i] == 1 && evaluated[i] == 1);
    }
}

TEST(evaluation_takes_the_first_samples_in_order)
{
    write_numbered(path_of(0), 0, 10);
    dt_loader_options o = options(path_of(0), 2, 4, 2);
    o.shuffle = true;
    o.max_samples = 5;
    dt_loader *l = open_loader(&o);
    int next = 1;
    for (int64_t a = 0; a < dt_loader_n_micro(l, DT_EVALUATION); a++) {
        const dt_batch *b;
        assert_int_equal(dt_loader_batch(l, DT_EVALUATION, a, &b), DT_OK);
        for (int s = 0; s < b->n_seq; s++) assert_int_equal(b->token[b->seq_start[s]], next++);
    }
    assert_int_equal(next, 6);
    dt_loader_close(l);
}

TEST(mixed_files_keep_their_shares)
{
    write_numbered(path_of(0), 0, 30);
    write_numbered(path_of(1), 30, 300);
    char list[300];
    snprintf(list, sizeof list, "%s:3,%s", path_of(0), path_of(1));
    dt_loader_options o = options(list, 2, 33, 33);
    o.shuffle = true;
    dt_loader *l = open_loader(&o);
    int n_small = 0, n = 0, seen[330] = {0};
    assert_int_equal(dt_loader_info(l)->n_samples, 330);
    for (int64_t step = 0; step < 2 * dt_loader_info(l)->steps_per_epoch; step++) {
        const dt_batch *b;
        assert_int_equal(dt_loader_batch(l, step, 0, &b), DT_OK);
        int here = 0;
        for (int s = 0; s < b->n_seq; s++) {
            const int sample = b->token[b->seq_start[s]] - 1;
            here += sample < 30;
            seen[sample]++;
        }
        assert_in_range(here, 23, 27); /* 3/4 of 33 is 24.75 */
        n_small += here;
        n += b->n_seq;
    }
    assert_int_equal(n, 660);
    assert_int_equal(n_small, 495);
    for (int i = 0; i < 330; i++) {
        if (i < 30)
            assert_in_range(seen[i], 16, 17);
        else
            assert_in_range(seen[i], 0, 1);
    }
    dt_loader_close(l);
}

TEST(a_colon_may_be_part_of_a_name)
{
    char path[160], list[300];
    snprintf(path, sizeof path, "%s/a:b.h5", folder);
    write_numbered(path, 0, 3);
    dt_loader_options o = options(path, 2, 4, 2);
    dt_loader_close(open_loader(&o));
    snprintf(list, sizeof list, "%s:0.5", path);
    o.files = list;
    dt_loader_close(open_loader(&o));
    const char *bad[] = {"0", "-1", "1e400"};
    for (int i = 0; i < 3; i++) {
        dt_loader *l;
        snprintf(list, sizeof list, "%s:%s", path, bad[i]);
        dt_error_clear();
        assert_fails(dt_loader_open(&l, &o), DT_ERR_USAGE, "test.ini:3");
    }
}

/* ---- reading ahead ----------------------------------------------------------------------------------------------- */

static void same_batch(const dt_batch *a, const dt_batch *b)
{
    const size_t n = (size_t)a->n_tok;
    assert_int_equal(a->n_tok, b->n_tok);
    assert_int_equal(a->n_seq, b->n_seq);
    assert_int_equal(a->n_samples, b->n_samples);
    assert_int_equal(a->weight_fixed, b->weight_fixed);
    if (n == 0) return;
    assert_memory_equal(a->token, b->token, n * sizeof *a->token);
    assert_memory_equal(a->target, b->target, n * sizeof *a->target);
    assert_memory_equal(a->pos, b->pos, n * sizeof *a->pos);
    assert_memory_equal(a->order, b->order, n * sizeof *a->order);
    assert_memory_equal(a->weight, b->weight, n * sizeof *a->weight);
    assert_memory_equal(a->token_key, b->token_key, n * sizeof *a->token_key);
    assert_memory_equal(a->seq_start, b->seq_start, (size_t)(a->n_seq + 1) * sizeof *a->seq_start);
}

TEST(reading_ahead_changes_nothing)
{
    static document d[N_DOC];
    draw_documents(d, N_DOC, 20, 300, 30);
    write_documents(path_of(0), DT_DATASET_SFT, 300, d, N_DOC, true);
    for (int ahead = 1; ahead <= 9; ahead += 4) {
        dt_ledger ledger = {0};
        dt_loader_options o = options(path_of(0), 16, 7, 2), with = o;
        with.prefetch = ahead;
        with.ledger = &ledger;
        o.shuffle = with.shuffle = true;
        o.nranks = with.nranks = 2;
        dt_loader *plain = open_loader(&o), *fast = open_loader(&with);
        const size_t n_allocs = ledger.n_allocs;
        const dt_batch *a, *b;
        for (int turn = 0; turn < 60; turn++) {
            const int64_t step = turn < 30 ? turn : (int)draw(20); /* in order, then at random */
            for (int micro = 0; micro < dt_loader_n_micro(plain, step); micro++) {
                assert_int_equal(dt_loader_batch(plain, step, micro, &a), DT_OK);
                assert_int_equal(dt_loader_batch(fast, step, micro, &b), DT_OK);
                same_batch(a, b);
            }
            if (turn % 7 == 3)
                for (int64_t micro = 0; micro < dt_loader_n_micro(plain, DT_EVALUATION); micro++) {
                    assert_int_equal(dt_loader_batch(plain, DT_EVALUATION, micro, &a), DT_OK);
                    assert_int_equal(dt_loader_batch(fast, DT_EVALUATION, micro, &b), DT_OK);
                    same_batch(a, b);
                }
        }
        assert_int_equal(ledger.n_allocs, n_allocs); /* steps allocate nothing */
        assert_int_equal(dt_loader_fingerprint(plain), dt_loader_fingerprint(fast));
        dt_loader_close(plain);
        dt_loader_close(fast);
        assert_int_equal(ledger.total_now, 0);
    }
}

TEST(what_a_loader_holds_is_known_without_its_batches)
{
    static const char *const packings[] = {"wrapped", "bfd"};
    static document d[N_DOC];
    draw_documents(d, N_DOC, 20, 300, 30);
    write_documents(path_of(0), DT_DATASET_SFT, 300, d, N_DOC, true);
    write_documents(path_of(1), DT_DATASET_TOKENS, 300, d, N_DOC, true);
    for (int i = 0; i < 3; i++) {
        dt_ledger held = {0}, looked = {0};
        dt_loader_options o = options(path_of(i > 0), 16, 7, 2);
        if (i > 0) o.packing = packings[i - 1];
        o.document_mask = i == 1;
        o.prefetch = 3, o.ledger = &held;
        dt_loader *l = open_loader(&o);
        o.planning = true, o.ledger = &looked;
        dt_loader *plan = open_loader(&o);
        assert_int_equal(held.now[DT_MEM_DATA][DT_ON_HOST], dt_loader_nbytes(l));
        assert_int_equal(held.total_now, dt_loader_nbytes(l));
        assert_int_equal(dt_loader_nbytes(plan), dt_loader_nbytes(l));
        assert_int_equal(dt_loader_info(plan)->max_seq, dt_loader_info(l)->max_seq);
        assert_true(looked.total_now > 0); /* tables of the samples */
        assert_true(held.total_now - looked.total_now >= 4 * dt_batch_nbytes(32, 2));
        dt_loader_close(l), dt_loader_close(plan);
        assert_int_equal(held.total_now + looked.total_now, 0);
    }
    assert_int_equal(dt_loader_nbytes(NULL), 0);
}

TEST(closing_does_not_wait_for_use)
{
    write_numbered(path_of(0), 0, 10);
    dt_loader_options o = options(path_of(0), 2, 4, 2);
    o.prefetch = 3;
    dt_loader_close(open_loader(&o)); /* nothing asked for */
    for (int i = 0; i < 20; i++) {
        dt_loader *l = open_loader(&o);
        const dt_batch *b;
        assert_int_equal(dt_loader_batch(l, 0, 0, &b), DT_OK);
        dt_loader_close(l); /* in the middle of reading ahead */
    }
}

/* A file that loses its end after it was opened: the error comes with the batch that needs it, not before, and not only
 * once. */
TEST(an_error_comes_with_the_batch_that_has_it)
{
    static document d[30];
    for (int i = 0; i < 30; i++) {
        d[i].n = 50;
        for (int t = 0; t < 50; t++) d[i].id[t] = i;
    }
    write_documents(path_of(0), DT_DATASET_TOKENS, 70000, d, 30, false);
    for (int ahead = 0; ahead <= 4; ahead += 2) {
        write_documents(path_of(0), DT_DATASET_TOKENS, 70000, d, 30, false);
        dt_loader_options o = options(path_of(0), 10, 1, 1);
        o.prefetch = ahead;
        dt_loader *l = open_loader(&o);
        const dt_batch *b;
        FILE *f = fopen(path_of(0), "r+");
        fseek(f, 0, SEEK_END);
        const long whole = ftell(f);
        fclose(f);
        assert_int_equal(dt_loader_batch(l, 0, 0, &b), DT_OK);
        /* about half of the tokens are left */
        assert_int_equal(truncate(path_of(0), whole - 30 * 50 * 4 / 2 - 8 * 31), 0);
        int64_t step = 1;
        dt_err err = DT_OK;
        dt_error_clear();
        while (step < 149 && (err = dt_loader_batch(l, step, 0, &b)) == DT_OK) step++;
        assert_int_equal(err, DT_ERR_DATA);
        assert_non_null(strstr(dt_error_message(), "tokens"));
        assert_non_null(strstr(dt_error_message(), path_of(0)));
        dt_error_clear();
        assert_int_equal(dt_loader_batch(l, step, 0, &b), DT_ERR_DATA);
        assert_int_equal(dt_loader_batch(l, 2, 0, &b), DT_OK); /* the existing data can still be read */
        assert_int_equal(b->token[0], 0);
        dt_loader_close(l);
    }
}

int main(void) { return run_listed(NULL, make_folder, remove_folder); }
