// NEEDS: PCRE2
/* test_catalogue.c - an info file is read completely, in order, and errors name file and line. The trie has exactly
 * its SIDs, and completions through it are items. Embeddings are those of the items. */
#include "cases.h"
#include "dtrain/recommend/item_vectors.h"
#include "dtrain/io/matrix_file.h"
#include "dtrain/recommend/trie.h"
#include "host_sampler.h"

static char path[] = "/tmp/dtrain_catalogue_XXXXXX";

static void write_file(const char *text, size_t nbytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

static int make_file(void **state)
{
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}
static int remove_file(void **state) { return unlink(path); }

TEST(items_are_read_in_the_order_of_the_file)
{
    dt_ledger ledger = {0};
    dt_catalogue *c;
    static const char text[] = "\xef\xbb\xbf<b_2><x>\tTwo\twords, a tab\t7\r\n\n  \n<a_1><x>\tcaf\xc3\xa9\t12\n"
                               "<b_2><x>\t\tB0-09\n<a_10><y>\tlast";
    write_file(text, sizeof text - 1);
    assert_fails(dt_catalogue_open(&c, path, &ledger), DT_ERR_DATA, ":6: expected three fields");
    write_file(text, sizeof text - 1 - strlen("<a_10><y>\tlast"));
    assert_int_equal(dt_catalogue_open(&c, path, &ledger), DT_OK);
    assert_true(atomic_load(&ledger.total_now) >= sizeof text - 20);
    assert_string_equal(dt_catalogue_path(c), path);
    assert_int_equal(dt_catalogue_n_items(c), 3);
    dt_catalogue_item i = dt_catalogue_get(c, 0);
    assert_string_equal(i.sid, "<b_2><x>");
    assert_string_equal(i.title, "Two\twords, a tab");
    assert_string_equal(i.id, "7");
    assert_int_equal(i.line, 1);
    i = dt_catalogue_get(c, 2);
    assert_string_equal(i.title, "");
    assert_string_equal(i.id, "B0-09");
    assert_int_equal(i.line, 5);
    dt_catalogue_close(c);
    assert_int_equal(atomic_load(&ledger.total_now), 0);
}

TEST(items_are_found_by_their_sid_and_id)
{
    dt_catalogue *c;
    static const char text[] = "<b_2><x>\tA\t7\n<a_1><x>\tB\t12\n<b_2><x>\tC\t9\n<b_2>\tD\t1\n<a_10><y>\tE\t70\n";
    write_file(text, sizeof text - 1);
    assert_int_equal(dt_catalogue_open(&c, path, NULL), DT_OK);
    assert_int_equal(dt_catalogue_find(c, "<b_2><x>", 8), 0);
    assert_int_equal(dt_catalogue_find(c, "<b_2><x>?", 8), 0); /* of so many bytes */
    assert_int_equal(dt_catalogue_find(c, "<b_2><x>", 5), 3);
    assert_int_equal(dt_catalogue_find(c, "<a_10><y>", 9), 4);
    assert_int_equal(dt_catalogue_find(c, "<a_10>", 6), -1);
    assert_int_equal(dt_catalogue_find(c, "", 0), -1);
    assert_int_equal(dt_catalogue_find(c, "<c>", 3), -1);
    static const int32_t order[] = {4, 1, 3, 0, 2}; /* "<a_10>" < "<a_1>": '0' < '>' */
    assert_memory_equal(dt_catalogue_by_sid(c), order, sizeof order);
    assert_int_equal(dt_catalogue_n_sids(c), 4);
    dt_catalogue_close(c);
}

TEST(level_tokens_are_a_sorted_set)
{
    dt_catalogue *c;
    static char text[1 << 20];
    size_t n = 0;
    for (int i = 0; i < 20000; i++) /* more distinct prefixes than the list first has room for */
        n += (size_t)snprintf(text + n, sizeof text - n, "<a_%d><b_%d><c_%d>\tT\t%d\n", i / 40, i * 7 % 5003, i % 3, i);
    write_file(text, n);
    assert_int_equal(dt_catalogue_open(&c, path, NULL), DT_OK);
    assert_int_equal(dt_catalogue_n_levels(c), 500 + 5003 + 3);
    for (int32_t i = 1; i < dt_catalogue_n_levels(c); i++)
        assert_true(strcmp(dt_catalogue_level(c, i - 1), dt_catalogue_level(c, i)) < 0);
    assert_string_equal(dt_catalogue_level(c, 0), "<a_0>");
    assert_string_equal(dt_catalogue_level(c, 5505), "<c_2>");
    dt_catalogue_close(c);
}

TEST(what_is_wrong_is_named_by_line)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", ": expected items"},
        {"\n \n", ": expected items"},
        {"<a>\tT\t1\n<b> T 1\n", ":2: expected three fields separated by tabs (SID, title, item id), found no tab"},
        {"<a>\tT\n", ":1: expected three fields separated by tabs (SID, title, item id), found one tab"},
        {"<a>\tT\t\n", ":1: expected an item id"},
        {"\tT\t1\n", ":1: expected a semantic ID such as <a_17><b_203><c_5>, found \"\""},
        {"<a>\tT\t1\n\na_1\tT\t2\n", ":3: expected a semantic ID"},
        {"<>\tT\t1\n", "found \"<>\""},
        {"<a><b\tT\t1\n", "found \"<a><b\""},
        {"<a>b<c>\tT\t1\n", "found \"<a>b<c>\""},
        {"<a <b>\tT\t1\n", "found \"<a <b>\""},
        {"<a>\tT\xff\t1\n", ":1: expected text in UTF-8"},
        {"<a>\tT\t1\n<b>\tT\t2\n<c>\tT\t1\n", ":3: item id 1 is a duplicate of line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_catalogue *c;
        write_file(cases[i].text, strlen(cases[i].text));
        if (dt_catalogue_open(&c, path, NULL) != DT_ERR_DATA || c || !strstr(dt_error_message(), path) ||
            !strstr(dt_error_message(), cases[i].words))
            fail_msg("case %zu: expected \"%s\", found \"%s\"", i, cases[i].words, dt_error_message());
        dt_error_clear();
    }
}

/* ---- the trie ---------------------------------------------------------------------------------------------------- */

static dt_catalogue *open_text(const char *text)
{
    dt_catalogue *c;
    write_file(text, strlen(text));
    if (dt_catalogue_open(&c, path, NULL) != DT_OK) fail_msg("%s", dt_error_message());
    return c;
}

static dt_tokenizer *open_tokenizer(const char *name)
{
    dt_tokenizer *t;
    if (dt_tokenizer_open(&t, name) != DT_OK) fail_msg("%s", dt_error_message());
    return t;
}

/* SIDs of one to three levels, some of them the beginning of others, some of several items. */
static const char *const ITEMS = "<a_1><b_1>\tA\t1\n<a_1>\tB\t2\n<a_2><b_1><c_7>\tC\t3\n<a_1><b_1>\tD\t4\n"
                                 "<a_2><b_1><c_8>\tE\t5\n<a_2><b_2><c_7>\tF\t6\n<a_10>\tG\t7\n<a_2><b_1><c_7>\tH\t8\n"
                                 "<a_3>\tI\t9\n";
enum { N_LEAVES = 7 };

/* All sequences from a state on. */
static int walk(const dt_constraint *c, int32_t state, int32_t *ids, int32_t n, int32_t found[][64], int32_t *len,
                int n_found)
{
    int32_t start, n_next;
    c->allowed(c->self, state, &start, &n_next);
    if (n_next == 0) {
        memcpy(found[n_found], ids, (size_t)n * sizeof *ids);
        len[n_found] = n;
        return n_found + 1;
    }
    for (int32_t i = start; i < start + n_next; i++) {
        if (i > start) assert_true(c->token[i] > c->token[i - 1]);
        ids[n] = c->token[i];
        n_found = walk(c, c->next(c->self, state, ids[n]), ids, n + 1, found, len, n_found);
    }
    return n_found;
}

TEST(the_trie_has_every_sid_once)
{
    dt_ledger ledger = {0};
    dt_catalogue *c = open_text(ITEMS);
    dt_tokenizer *tokenizer = open_tokenizer("bytes");
    const int32_t eos = dt_tokenizer_get_info(tokenizer)->eos;
    int32_t ids[64], found[N_LEAVES + 1][64], len[N_LEAVES + 1];
    bool met[9] = {false};
    dt_trie *t;
    assert_int_equal(dt_trie_open(&t, c, tokenizer, DT_TRIE_TAIL, eos, 100000, &ledger), DT_OK);
    const dt_constraint only = dt_trie_constraint(t);
    assert_int_equal(dt_trie_n_leaves(t), N_LEAVES);
    assert_int_equal(dt_trie_depth(t), (int)strlen("<a_2><b_1><c_7>\n") + 1);
    assert_true(atomic_load(&ledger.total_now) >= (size_t)only.n_token * 8);
    assert_int_equal(walk(&only, only.start, ids, 0, found, len, 0), N_LEAVES);
    for (int i = 0; i < N_LEAVES; i++) {
        size_t n;
        char *text = dt_decode(tokenizer, found[i], len[i] - 1, false, &n);
        const int32_t item = dt_trie_item(t, found[i], len[i]);
        assert_int_equal(found[i][len[i] - 1], eos);
        assert_true(text && n > 1 && text[n - 1] == '\n');
        assert_int_equal(item, dt_catalogue_find(c, text, n - 1));
        assert_true(item >= 0 && !met[item]);
        met[item] = true;
        assert_int_equal(dt_trie_ids(t, item, ids), len[i]);
        assert_memory_equal(ids, found[i], (size_t)len[i] * sizeof *ids);
        assert_int_equal(dt_trie_item(t, found[i], len[i] - 1), -1);
        found[i][1]++;
        assert_int_equal(dt_trie_item(t, found[i], len[i]), -1);
        free(text);
    }
    assert_true(met[0] && !met[3] && met[2] && !met[7]); /* the first of those with one SID */
    dt_trie_close(t);
    assert_int_equal(atomic_load(&ledger.total_now), 0);
    dt_tokenizer_close(tokenizer);
    dt_catalogue_close(c);
}

/* GPT-2's merges have a token " <". */
TEST(tails_that_join_the_sid_are_refused)
{
    dt_catalogue *c = open_text("<a>\tA\t31\n<b>\tB\t32\n");
    dt_tokenizer *tokenizer = open_tokenizer("tests/data/tokenizer/gpt2");
    const int32_t eos = dt_tokenizer_get_info(tokenizer)->eos;
    dt_trie *t;
    assert_fails(dt_trie_open(&t, c, tokenizer, "Answer: ", eos, 100000, NULL), DT_ERR_DATA, path,
                 ":1: the tokenizer splits the SID <a> of item 31 differently");
    assert_int_equal(dt_trie_open(&t, c, tokenizer, "Answer:\n", eos, 100000, NULL), DT_OK);
    assert_int_equal(dt_trie_n_leaves(t), 2);
    dt_trie_close(t);
    assert_fails(dt_trie_open(&t, c, tokenizer, "Answer:\n", 3, 4, NULL), DT_ERR_DATA,
                 ":1: the SID <a> of item 31 has token");
    assert_fails(dt_trie_open(&t, c, tokenizer, "Answer:\n", -1, 100000, NULL), DT_ERR_USAGE, "");
    dt_tokenizer_close(tokenizer);
    dt_catalogue_close(c);
}

/* ---- a search through it ----------------------------------------------------------------------------------------- */

enum { MAX_SLOTS = 64, MAX_LEN = 64, MAX_VOCAB = 400 };

/* A decoder whose logits are a function of a sequence's tokens. */
typedef struct fake {
    int64_t n_vocab;
    const dt_constraint *only;
    int32_t held[MAX_SLOTS + 2][MAX_LEN], n[MAX_SLOTS + 2], slot[MAX_SLOTS]; /* 2: prompts */
} fake;

static void fake_logits(const fake *f, const int32_t *ids, int32_t n, float *z)
{
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++) h = dt_mix64(h ^ (uint64_t)ids[i]);
    for (int64_t v = 0; v < f->n_vocab; v++) z[v] = (float)(dt_mix64(h + (uint64_t)v) >> 40) * 0x1p-22f;
}

static dt_err fake_decode(void *self, const dt_batch *b, const int32_t *slot)
{
    fake *f = self;
    memcpy(f->slot, slot, (size_t)b->n_seq * sizeof *slot);
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) f->held[slot[s]][f->n[slot[s]]++] = b->token[t];
    return DT_OK;
}

/* Logits of a sequence of the batch after their log-sum-exp: -inf for tokens not in its list. */
static double listed_logits(const fake *f, int32_t s, const int32_t *list_start, const int32_t *list_len, float *z)
{
    float all[MAX_VOCAB];
    fake_logits(f, f->held[f->slot[s]], f->n[f->slot[s]], all);
    for (int64_t v = 0; v < f->n_vocab; v++) z[v] = list_start ? -INFINITY : all[v];
    for (int32_t i = 0; list_start && i < list_len[s]; i++)
        z[f->only->token[list_start[s] + i]] = all[f->only->token[list_start[s] + i]];
    return dt_logits_log_sum_exp(all, f->n_vocab, 1);
}

static dt_err fake_top(void *self, const dt_batch *b, const dt_top *t)
{
    float z[MAX_VOCAB];
    for (int32_t s = 0; s < b->n_seq; s++) {
        const double sum = listed_logits(self, s, t->list_start, t->list_len, z);
        for (int32_t i = 0; i < t->k; i++) {
            int32_t best = 0;
            for (int32_t v = 1; v < ((fake *)self)->n_vocab; v++)
                if (z[v] > z[best]) best = v;
            t->token[s * t->k + i] = z[best] > -INFINITY ? best : -1;
            t->logp[s * t->k + i] = (double)z[best] - sum;
            z[best] = -INFINITY;
        }
    }
    return DT_OK;
}

static dt_err fake_draw(void *self, const dt_batch *b, const dt_draw *d)
{
    float z[MAX_VOCAB];
    double ignored;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const double sum = listed_logits(self, s, d->list_start, d->list_len, z);
        host_draw(&d->how, z, NULL, ((fake *)self)->n_vocab, d->uniform[s], &d->token[s], &ignored);
        d->logp[s] = d->token[s] < 0 ? NAN : (double)z[d->token[s]] - sum;
    }
    return DT_OK;
}

static int32_t fake_keep(void *self, int32_t slot, int32_t n) { return ((fake *)self)->n[slot] = n; }

static dt_err fake_share(void *self, int32_t slot, int32_t prompt, int32_t n)
{
    fake *f = self;
    memcpy(f->held[slot], f->held[prompt], sizeof f->held[prompt]);
    f->n[slot] = n;
    return DT_OK;
}

static dt_err fake_move(void *self, int32_t n, const int32_t *src, const int32_t *dst)
{
    for (int32_t i = 0; i < n; i++) fake_share(self, dst[i], src[i], ((fake *)self)->n[src[i]]);
    return DT_OK;
}

typedef struct answer {
    int32_t ids[64], n;
    double logp;
    float logps[64];
} answer;

static int by_falling_logp(const void *a, const void *b)
{
    const answer *x = a, *y = b;
    return (x->logp < y->logp) - (x->logp > y->logp);
}

/* Every sequence of the trie after a prompt, by descending log-probability. */
static int score_all(const fake *f, const int32_t *prompt, int32_t n_prompt, answer *all)
{
    int32_t ids[64], found[N_LEAVES + 1][64], len[N_LEAVES + 1], text[2 * MAX_LEN];
    float z[MAX_VOCAB];
    const int n = walk(f->only, f->only->start, ids, 0, found, len, 0);
    for (int i = 0; i < n; i++) {
        all[i] = (answer){.n = len[i]};
        memcpy(all[i].ids, found[i], (size_t)len[i] * sizeof *ids);
        memcpy(text, prompt, (size_t)n_prompt * sizeof *prompt);
        memcpy(text + n_prompt, found[i], (size_t)len[i] * sizeof *ids);
        for (int32_t k = 0; k < len[i]; k++) {
            fake_logits(f, text, n_prompt + k, z);
            const double logp = (double)z[found[i][k]] - dt_logits_log_sum_exp(z, f->n_vocab, 1);
            all[i].logps[k] = (float)logp;
            all[i].logp += logp;
        }
    }
    qsort(all, (size_t)n, sizeof *all, by_falling_logp);
    return n;
}

typedef struct search {
    dt_sequence seqs[3 * 16], *list[3 * 16];
    int32_t ids[3 * 16][MAX_LEN];
    float logps[3 * 16][MAX_LEN];
} search;

static void make_search(search *w, int n_each, int32_t n_new)
{
    memset(w, 0, sizeof *w);
    for (int i = 0; i < 3 * n_each; i++) {
        w->list[i] = &w->seqs[i];
        w->seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                   .ids = w->ids[i],
                                   .logps = w->logps[i],
                                   .n_prompt = 2 + i / n_each,
                                   .n_ids = 2 + i / n_each,
                                   .max_ids = 2 + i / n_each + n_new};
        for (int k = 0; k < 4; k++) w->ids[i][k] = 40 + 7 * (i / n_each) + k;
    }
}

/* One row of the device has the same values, so sums in the same order are equal. */
static void check_found(const dt_sequence *q, const answer *a)
{
    assert_int_equal(q->finish, DT_FINISH_EOS);
    assert_int_equal(q->n_ids, q->n_prompt + a->n);
    assert_memory_equal(q->ids + q->n_prompt, a->ids, (size_t)a->n * sizeof *a->ids);
    assert_true(fabs(q->logp - a->logp) < 1e-12 && q->score == q->logp);
    for (int32_t k = 0; k < a->n; k++) assert_true(fabsf(q->logps[q->n_prompt + k] - a->logps[k]) < 1e-6f);
}

/* ITEMS and a decoder for them. The end-of-text token option does not count: every SID contains one. */
typedef struct fixture {
    dt_catalogue *catalogue;
    dt_tokenizer *tokenizer;
    dt_trie *trie;
    dt_constraint only;
    fake fake;
    dt_decoder decoder;
    dt_generate_options opt;
    int32_t eos[2];
} fixture;

static void open_fixture(fixture *x)
{
    *x = (fixture){.catalogue = open_text(ITEMS), .tokenizer = open_tokenizer("bytes"), .eos = {'<', '\n'}};
    const dt_tokenizer_info *info = dt_tokenizer_get_info(x->tokenizer);
    assert_int_equal(dt_trie_open(&x->trie, x->catalogue, x->tokenizer, DT_TRIE_TAIL, info->eos, 100000, NULL), DT_OK);
    x->only = dt_trie_constraint(x->trie);
    x->fake = (fake){.n_vocab = info->vocab_size, .only = &x->only};
    x->decoder =
        (dt_decoder){&x->fake, fake_decode, fake_draw, fake_top, fake_keep, fake_share, fake_move, MAX_SLOTS, NULL};
    x->opt = (dt_generate_options){.sampling = dt_sampling_default(),
                                   .constraint = &x->only,
                                   .eos = x->eos,
                                   .n_eos = 2,
                                   .vocab_size = info->vocab_size,
                                   .n_prompts = 2};
}

static void close_fixture(fixture *x)
{
    dt_trie_close(x->trie);
    dt_tokenizer_close(x->tokenizer);
    dt_catalogue_close(x->catalogue);
}

/* The item of a sequence, -1: none. */
static int32_t item_of(const fixture *x, const dt_sequence *q)
{
    return dt_trie_item(x->trie, q->ids + q->n_prompt, q->n_ids - q->n_prompt);
}

static fixture fixed;
static search w;

TEST(a_search_as_wide_as_the_catalogue_finds_what_scoring_all_items_does)
{
    fixture *x = &fixed;
    dt_ledger ledger = {0};
    dt_generate_stats stats;
    open_fixture(x);
    x->opt.ledger = &ledger;
    for (int n_beams = 1; n_beams <= 11; n_beams++) {
        x->opt.beams = (dt_beam_options){.n_beams = n_beams, .n_return = n_beams};
        x->opt.n_slots = 2 * n_beams, x->opt.max_tok = 2 * n_beams + 1;
        assert_int_equal(dt_beam_top(&x->opt), 2 * n_beams);
        make_search(&w, n_beams, dt_trie_depth(x->trie));
        assert_int_equal(dt_generate(&x->decoder, w.list, 3 * n_beams, &x->opt, &stats), DT_OK);
        assert_int_equal(atomic_load(&ledger.total_now), 0);
        for (int p = 0; p < 3; p++) {
            answer all[N_LEAVES + 1];
            assert_int_equal(score_all(&x->fake, w.ids[p * n_beams], 2 + p, all), N_LEAVES);
            for (int i = 0; i < n_beams; i++) {
                const dt_sequence *q = &w.seqs[p * n_beams + i];
                if (n_beams >= N_LEAVES && i < N_LEAVES) check_found(q, &all[i]);
                if (i >= N_LEAVES) assert_int_equal(q->finish, DT_FINISH_MISSING);
                if (q->finish == DT_FINISH_MISSING) continue; /* beams may end in one item's SID */
                assert_true(item_of(x, q) >= 0);
                assert_true(i == 0 || q->score <= w.seqs[p * n_beams + i - 1].score);
            }
        }
    }
    close_fixture(x);
}

TEST(a_search_too_short_for_the_longest_items_finds_others_and_cuts_none)
{
    fixture *x = &fixed;
    dt_generate_stats stats;
    int n_items = 0;
    open_fixture(x);
    x->opt.n_slots = N_LEAVES, x->opt.max_tok = N_LEAVES;
    make_search(&w, N_LEAVES, dt_trie_depth(x->trie) - 1);
    x->opt.beams = (dt_beam_options){.n_beams = N_LEAVES, .n_return = N_LEAVES};
    assert_int_equal(dt_generate(&x->decoder, w.list, 3 * N_LEAVES, &x->opt, &stats), DT_OK);
    for (int i = 0; i < 3 * N_LEAVES; i++) {
        const bool found = w.seqs[i].finish == DT_FINISH_EOS;
        assert_true(found || w.seqs[i].finish == DT_FINISH_MISSING);
        assert_int_equal(item_of(x, &w.seqs[i]) >= 0, found);
        n_items += found;
    }
    assert_int_equal(n_items, 3 * (N_LEAVES - 3)); /* three have three levels */
    close_fixture(x);
}

TEST(samples_are_items_with_their_probabilities_among_all_tokens)
{
    fixture *x = &fixed;
    dt_generate_stats stats;
    bool met[9] = {false};
    int n_met = 0;
    open_fixture(x);
    x->opt.n_slots = 5, x->opt.max_tok = 7, x->opt.logp = true;
    make_search(&w, 16, dt_trie_depth(x->trie));
    assert_int_equal(dt_generate(&x->decoder, w.list, 48, &x->opt, &stats), DT_OK);
    for (int i = 0; i < 48; i++) {
        const dt_sequence *q = &w.seqs[i];
        const int32_t item = item_of(x, q);
        answer all[N_LEAVES + 1];
        int found = 0;
        score_all(&x->fake, q->ids, q->n_prompt, all);
        for (int k = 0; k < N_LEAVES; k++) {
            if (dt_trie_item(x->trie, all[k].ids, all[k].n) != item) continue;
            found++;
            assert_true(fabs(q->logp - all[k].logp) < 1e-12);
        }
        assert_int_equal(found, 1);
        n_met += !met[item];
        met[item] = true;
    }
    assert_true(n_met > 3);
    close_fixture(x);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

static char vectors_path[] = "/tmp/dtrain_vectors_XXXXXX";

/* Row i is (1 + i, 2, -i), of at most n; the row `zeros` is 0. */
static void write_vectors(int n, int zeros)
{
    char head[DT_NPY_HEADER];
    FILE *f = fopen(vectors_path, "wb");
    assert_non_null(f);
    dt_npy_header(n, 3, head);
    assert_int_equal(fwrite(head, 1, sizeof head, f), sizeof head);
    for (int i = 0; i < n; i++) {
        const float row[3] = {i == zeros ? 0 : (float)(1 + i), i == zeros ? 0 : 2, i == zeros ? 0 : (float)-i};
        assert_int_equal(fwrite(row, sizeof row, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

static double cosine_of_rows(int i, int j)
{
    const double dot = (1.0 + i) * (1.0 + j) + 4 + (double)i * j;
    return dot / (sqrt((1.0 + i) * (1.0 + i) + 4 + (double)i * i) * sqrt((1.0 + j) * (1.0 + j) + 4 + (double)j * j));
}

/* row: [3] of the items in their order. */
static void cosines_are_of_rows(const char *text, const int *row, int n_rows)
{
    dt_ledger ledger = {0};
    dt_catalogue *c = open_text(text);
    dt_item_vectors *v, *described;
    write_vectors(n_rows, -1);
    assert_int_equal(dt_item_vectors_open(&v, c, vectors_path, "", false, &ledger), DT_OK);
    assert_int_equal(atomic_load(&ledger.total_now), dt_item_vectors_nbytes(v));
    assert_int_equal(dt_item_vectors_open(&described, c, vectors_path, "", true, &ledger), DT_OK);
    assert_int_equal(dt_item_vectors_nbytes(described), dt_item_vectors_nbytes(v));
    assert_int_equal(dt_item_vectors_nbytes(v), 3 * (3 * sizeof(float) + sizeof(double)));
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) /* 1e-15: four roundings of doubles near 1 */
            assert_true(fabs(dt_item_cosine(v, i, j) - cosine_of_rows(row[i], row[j])) < 1e-15);
    dt_item_vectors_close(described);
    dt_item_vectors_close(v);
    assert_int_equal(atomic_load(&ledger.total_now), 0);
    dt_catalogue_close(c);
}

TEST(embeddings_go_by_id_where_ids_are_numbers_and_by_place_elsewhere)
{
    const int fd = mkstemp(vectors_path);
    assert_true(fd >= 0 && close(fd) == 0);
    cosines_are_of_rows("<a>\tA\t4\n<b>\tB\t0\n<c>\tC\t2\n", (const int[]){4, 0, 2}, 5);
    cosines_are_of_rows("<a>\tA\t4\n<b>\tB\tB0\n<c>\tC\t2\n", (const int[]){0, 1, 2}, 3);
    cosines_are_of_rows("<a>\tA\t2\n<b>\tB\t01\n<c>\tC\t0\n", (const int[]){0, 1, 2}, 3); /* 01 is no number */
}

/* The same matrix in NumPy's format, fp32, and in HDF5's, fp64 and compressed. */
TEST(embeddings_of_hdf5_are_those_of_numpy)
{
    static const struct {
        const char *path, *array;
    } from[] = {
        {"tests/data/sid/items.npy", ""}, {"tests/data/sid/items.h5", ""}, {"tests/data/sid/items.h5", "/text/emb"}};
    enum { N_FROM = sizeof from / sizeof from[0] };
    dt_catalogue *c = open_text("<a>\tA\t299\n<b>\tB\t0\n<c>\tC\t7\n");
    dt_item_vectors *v[N_FROM], *none;
    for (int k = 0; k < N_FROM; k++)
        assert_int_equal(dt_item_vectors_open(&v[k], c, from[k].path, from[k].array, false, NULL), DT_OK);
    for (int k = 1; k < N_FROM; k++)
        for (int i = 0; i < 3; i++) assert_true(dt_item_cosine(v[k], i, 1) == dt_item_cosine(v[0], i, 1));
    assert_true(fabs(dt_item_cosine(v[0], 0, 1)) < 0.999);
    assert_int_equal(dt_item_vectors_open(&none, c, from[1].path, "/norms", false, NULL), DT_ERR_DATA);
    for (int k = 0; k < N_FROM; k++) dt_item_vectors_close(v[k]);
    dt_catalogue_close(c);
}

TEST(embeddings_that_do_not_fit_are_refused)
{
    static const struct {
        const char *text, *says;
        int n, zeros;
    } cases[] = {
        {"<a>\tA\t1\n<b>\tB\t3\n", "has no row for item 3 (/tmp/dtrain_catalogue", 3, -1},
        {"<a>\tA\tx\n<b>\tB\t1\n", "expected 2 rows, one per item of", 3, -1},
        {"<a>\tA\tx\n<b>\tB\t1\n", "found 1", 1, -1},
        {"<a>\tA\t1\n<b>\tB\t2\n", "row 2, of item 2: expected a non-zero embedding", 3, 2},
    };
    dt_item_vectors *v;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_catalogue *c = open_text(cases[i].text);
        write_vectors(cases[i].n, cases[i].zeros);
        dt_error_clear();
        assert_int_equal(dt_item_vectors_open(&v, c, vectors_path, "", false, NULL), DT_ERR_DATA);
        assert_null(v);
        assert_says(cases[i].says);
        dt_catalogue_close(c);
    }
    dt_catalogue *c = open_text(cases[3].text);
    assert_int_equal(dt_item_vectors_open(&v, c, path, "", false, NULL), DT_ERR_DATA); /* no matrix at all */
    write_vectors(3, 0);
    assert_int_equal(dt_item_vectors_open(&v, c, vectors_path, "", false, NULL), DT_OK); /* of no item */
    dt_item_vectors_close(v);
    dt_catalogue_close(c);
    assert_int_equal(unlink(vectors_path), 0);
}

int main(void) { return run_listed(NULL, make_file, remove_file); }
