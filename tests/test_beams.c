/* test_beams.c - beam search against every sequence there is, against a plain loop, and against transformers on tiny
 * models; the log-probabilities that generation tells against those of training's forward.
 * DEVICES: cpu queue */

#include "cases.h"
#include <jansson.h>

#include "dtrain/generate/generate.h"
#include "host_sampler.h"
#include "model_cases.h"
#include "ref_model.h"

/* ---- a decoder that is a pure function of a sequence's tokens ---------------------------------------------------- */

enum { MAX_VOCAB = 40, MAX_SLOTS = 128, MAX_PROMPTS = 8, MAX_LEN = 40, MAX_BEAMS = 125 };

typedef struct fake {
    int n_vocab, n_levels; /* levels of logits: few make ties */
    /* of sequences and prompts; the first n_shared of a sequence are a prompt's */
    int32_t held[MAX_SLOTS + MAX_PROMPTS][MAX_LEN], n[MAX_SLOTS + MAX_PROMPTS], n_shared[MAX_SLOTS + MAX_PROMPTS];
    int32_t slot[MAX_SLOTS]; /* of the last batch's sequences */
    int n_bad, n_shares, n_moves;
    int32_t n_prompt_tok; /* decoded in slots of prompts */
} fake;

static void fake_logits(const fake *f, const int32_t *ids, int32_t n, float *logits)
{
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++) h = dt_mix64(h ^ (uint64_t)ids[i]);
    for (int v = 0; v < f->n_vocab; v++)
        logits[v] = (float)(dt_mix64(h + (uint64_t)v) % (uint64_t)f->n_levels) / (float)f->n_levels * 4;
}

static dt_err fake_decode(void *self, const dt_batch *b, const int32_t *slot)
{
    fake *f = self;
    memcpy(f->slot, slot, (size_t)b->n_seq * sizeof *slot);
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t k = slot[s];
        for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) {
            f->n_bad += b->pos[t] != f->n[k] || (k < MAX_SLOTS && f->n_shared[k] == 0);
            f->n_prompt_tok += k >= MAX_SLOTS;
            f->held[k][f->n[k]++] = b->token[t];
        }
    }
    return DT_OK;
}

static dt_err fake_top(void *self, const dt_batch *b, const dt_top *t)
{
    const fake *f = self;
    float logits[MAX_VOCAB];
    for (int32_t s = 0; s < b->n_seq; s++) {
        fake_logits(f, f->held[f->slot[s]], f->n[f->slot[s]], logits);
        host_top(t, s, logits, f->n_vocab);
    }
    return DT_OK;
}

static int32_t fake_keep(void *self, int32_t slot, int32_t n)
{
    fake *f = self;
    f->n_bad += n > f->n[slot];
    return f->n[slot] = n;
}

static dt_err fake_share(void *self, int32_t slot, int32_t prompt, int32_t n)
{
    fake *f = self;
    f->n_bad += slot >= MAX_SLOTS || prompt < MAX_SLOTS || n != f->n[prompt];
    memcpy(f->held[slot], f->held[prompt], sizeof f->held[prompt]);
    f->n[slot] = f->n_shared[slot] = n;
    f->n_shares++;
    return DT_OK;
}

static dt_err fake_move(void *self, int32_t n, const int32_t *src, const int32_t *dst)
{
    fake *f = self;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < n; j++) f->n_bad += dst[i] == src[j] || (i != j && dst[i] == dst[j]);
        f->n_bad += src[i] >= MAX_SLOTS || dst[i] >= MAX_SLOTS;
        memcpy(f->held[dst[i]], f->held[src[i]], sizeof f->held[src[i]]);
        f->n[dst[i]] = f->n[src[i]], f->n_shared[dst[i]] = f->n_shared[src[i]];
        f->n_moves++;
    }
    return DT_OK;
}

/* ---- a search and its results ------------------------------------------------------------------------------------ */

enum { N_PROMPTS = 5 };
typedef struct search {
    dt_beam_options how;
    dt_generate_options opt;
    dt_sequence *seqs, **list;
    int32_t *ids;
} search;

static void make_search(search *w, const dt_beam_options *how, int n_vocab, const int32_t *eos, int n_eos, int groups,
                        int n_new)
{
    const int n = N_PROMPTS * how->n_return;
    w->how = *how;
    w->opt = (dt_generate_options){.sampling = dt_sampling_default(),
                                   .eos = eos,
                                   .n_eos = n_eos,
                                   .vocab_size = n_vocab,
                                   .n_slots = groups * how->n_beams,
                                   .n_prompts = groups,
                                   .max_tok = groups * how->n_beams + 3,
                                   .beams = *how};
    w->seqs = calloc((size_t)n, sizeof *w->seqs);
    w->list = calloc((size_t)n, sizeof(dt_sequence *));
    w->ids = calloc((size_t)n * MAX_LEN, sizeof *w->ids);
    for (int i = 0; i < n; i++) {
        const int prompt = i / how->n_return;
        const int32_t n_prompt = 1 + (int32_t)(dt_mix64((uint64_t)prompt) % 9);
        w->list[i] = &w->seqs[i];
        w->seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                   .ids = w->ids + i * MAX_LEN,
                                   .n_prompt = n_prompt,
                                   .n_ids = n_prompt,
                                   .max_ids = n_prompt + n_new};
        for (int32_t t = 0; t < n_prompt; t++)
            w->seqs[i].ids[t] = (int32_t)(dt_mix64((uint64_t)(100 * prompt + t)) % (uint64_t)n_vocab);
    }
}

static void free_search(search *w) { free(w->seqs), free(w->list), free(w->ids); }

static void run_search(search *w, fake *f, dt_ledger *ledger)
{
    const dt_decoder d = {f, fake_decode, NULL, fake_top, fake_keep, fake_share, fake_move, MAX_SLOTS, NULL};
    dt_generate_stats stats;
    w->opt.ledger = ledger;
    assert_int_equal(dt_generate(&d, w->list, N_PROMPTS * w->how.n_return, &w->opt, &stats), DT_OK);
    assert_int_equal(f->n_bad, 0);
    assert_int_equal(atomic_load(&ledger->total_now), 0);
    int32_t n_prompt_tok = 0; /* of each prompt once */
    for (int i = 0; i < N_PROMPTS * w->how.n_return; i += w->how.n_return)
        if (w->seqs[i].n_prompt < w->seqs[i].max_ids) n_prompt_tok += w->seqs[i].n_prompt;
    assert_int_equal(f->n_prompt_tok, n_prompt_tok);
}

/* ---- the definition, on whole sequences -------------------------------------------------------------------------- */

typedef struct text {
    int32_t ids[MAX_LEN], n;
    double logp, sum, score; /* sum: of log-probabilities after the penalty */
    int beam;
} text;

static int by_sum(const void *a, const void *b)
{
    const text *x = a, *y = b;
    if (x->sum != y->sum) return x->sum > y->sum ? -1 : 1;
    return x->beam != y->beam ? x->beam - y->beam : x->ids[x->n - 1] - y->ids[y->n - 1];
}

static bool is_eos(const search *w, int32_t id)
{
    for (int i = 0; i < w->opt.n_eos; i++)
        if (w->opt.eos[i] == id) return true;
    return false;
}

static bool is_in(const text *t, int32_t id)
{
    for (int32_t i = 0; i < t->n; i++)
        if (t->ids[i] == id) return true;
    return false;
}

static void extend(const fake *f, const text *t, int beam, double penalty, text *out)
{
    float z[MAX_VOCAB];
    double sum = 0, top = -INFINITY;
    fake_logits(f, t->ids, t->n, z);
    for (int v = 0; v < f->n_vocab; v++) top = z[v] > top ? z[v] : top;
    for (int v = 0; v < f->n_vocab; v++) sum += exp((double)z[v] - top);
    for (int v = 0; v < f->n_vocab; v++) {
        out[v] = *t;
        out[v].ids[out[v].n++] = v;
        const double logp = (double)z[v] - (top + log(sum));
        out[v].logp += logp;
        out[v].sum += is_in(t, v) ? penalty * logp : logp;
        out[v].beam = beam;
    }
}

static void insert(text *list, int *n, int most, const text *t)
{
    int at = *n < most ? (*n)++ : most - 1;
    if (at == most - 1 && *n == most && list[at].n > 0 && list[at].score >= t->score) return;
    for (; at > 0 && list[at - 1].score < t->score; at--) list[at] = list[at - 1];
    list[at] = *t;
}

/* Logits have so many levels that scores equal but for the last bits of their sums do not occur. */
static int plain_search(const search *w, const fake *f, const dt_sequence *prompt, text *found)
{
    const int b = w->how.n_beams;
    text *live = calloc((size_t)b, sizeof *live), *all = calloc((size_t)(b * f->n_vocab), sizeof *all);
    int n_live = 1, n_found = 0;
    memset(found, 0, (size_t)b * sizeof *found);
    memcpy(live[0].ids, prompt->ids, (size_t)prompt->n_prompt * sizeof *prompt->ids);
    live[0].n = prompt->n_prompt;
    while (n_live > 0) {
        const int32_t length = live[0].n + 1 - prompt->n_prompt;
        const bool full = live[0].n + 1 == prompt->max_ids;
        const double divisor = pow(length, w->how.length_penalty);
        int n_all = n_live * f->n_vocab, n_next = 0;
        for (int i = 0; i < n_live; i++)
            extend(f, &live[i], i, w->opt.sampling.repetition_penalty, all + i * f->n_vocab);
        qsort(all, (size_t)n_all, sizeof *all, by_sum);
        const int most = b * (1 + (w->opt.n_eos > 1 ? w->opt.n_eos : 1));
        for (int i = 0; i < n_all && i < most; i++) {
            const bool ends = full || is_eos(w, all[i].ids[all[i].n - 1]);
            all[i].score = all[i].sum / divisor;
            if (ends && i < b) insert(found, &n_found, b, &all[i]);
            if (!ends && n_next < b) live[n_next++] = all[i];
        }
        n_live = n_next;
        if (n_found == b && (w->how.early_stopping || n_live == 0 || live[0].sum / divisor <= found[b - 1].score))
            break;
    }
    free(live), free(all);
    return n_found;
}

static void check_against(const search *w, const text *found, int n_found, int prompt)
{
    for (int r = 0; r < w->how.n_return; r++) {
        const dt_sequence *q = &w->seqs[prompt * w->how.n_return + r];
        if (r >= n_found) {
            assert_int_equal(q->finish, DT_FINISH_MISSING);
            assert_int_equal(q->n_ids, q->n_prompt);
            continue;
        }
        assert_int_equal(q->n_ids, found[r].n);
        assert_memory_equal(q->ids, found[r].ids, (size_t)q->n_ids * sizeof *q->ids);
        assert_true(fabs(q->score - found[r].score) <= 1e-12 * fabs(found[r].score) &&
                    fabs(q->logp - found[r].logp) <= 1e-12 * fabs(found[r].logp));
        assert_int_equal(q->finish, is_eos(w, q->ids[q->n_ids - 1]) ? DT_FINISH_EOS : DT_FINISH_LENGTH);
    }
}

TEST(the_plain_loop_finds_the_same)
{
    static const int32_t eos[] = {3, 17, 0};
    static text found[MAX_BEAMS];
    for (uint64_t k = 0; k < 120; k++) {
        fake f = {.n_vocab = 4 + (int)(dt_mix64(k) % 36), .n_levels = 1 << 20};
        dt_ledger ledger = {0};
        search w;
        const int n_beams = 1 + (int)(dt_mix64(k + 1000) % 6);
        const dt_beam_options how = {.n_beams = n_beams,
                                     .n_return = 1 + (int)(dt_mix64(k + 2000) % (uint64_t)n_beams),
                                     .length_penalty = (double)(k % 5) * 0.5 - 0.5,
                                     .early_stopping = k % 2};
        make_search(&w, &how, f.n_vocab, eos, (int)(k % 3) + 1 - (k % 7 == 0), 1 + (int)(k % 3), 1 + (int)(k % 12));
        w.opt.sampling.repetition_penalty = k % 4 == 1 ? 1.5 : k % 4 == 3 ? 0.5 : 1;
        run_search(&w, &f, &ledger);
        for (int p = 0; p < N_PROMPTS; p++)
            check_against(&w, found, plain_search(&w, &f, &w.seqs[p * how.n_return], found), p);
        free_search(&w);
    }
}

/* With as many beams as there are sequences nothing is ever left out. */
static void enumerate(const search *w, const fake *f, const text *t, const dt_sequence *prompt, text *found, int *n)
{
    text next[MAX_VOCAB];
    extend(f, t, 0, w->opt.sampling.repetition_penalty, next);
    for (int v = 0; v < f->n_vocab; v++) {
        const bool ends = is_eos(w, v) || next[v].n == prompt->max_ids;
        next[v].score = next[v].sum / pow(next[v].n - prompt->n_prompt, w->how.length_penalty);
        if (ends)
            insert(found, n, MAX_BEAMS, &next[v]);
        else
            enumerate(w, f, &next[v], prompt, found, n);
    }
}

TEST(enough_beams_find_the_best_of_all_sequences)
{
    static const int32_t eos[] = {2};
    static text found[MAX_BEAMS];
    static const double penalties[] = {1, 0, 2, -1};
    for (int k = 0; k < 4; k++) {
        fake f = {.n_vocab = 5, .n_levels = 1 << 20};
        dt_ledger ledger = {0};
        search w;
        const dt_beam_options how = {.n_beams = 125, .n_return = 40, .length_penalty = penalties[k]};
        make_search(&w, &how, f.n_vocab, eos, 1, 1, 3);
        w.opt.sampling.repetition_penalty = 1 + 0.2 * k;
        run_search(&w, &f, &ledger);
        for (int p = 0; p < N_PROMPTS; p++) {
            const dt_sequence *prompt = &w.seqs[p * how.n_return];
            text start = {.n = prompt->n_prompt};
            int n = 0;
            memset(found, 0, sizeof found);
            memcpy(start.ids, prompt->ids, (size_t)start.n * sizeof *start.ids);
            enumerate(&w, &f, &start, prompt, found, &n);
            assert_int_equal(n, 1 + 4 + 16 * 5);
            check_against(&w, found, n, p);
        }
        free_search(&w);
    }
}

/* All logits equal: the order is that of beams, then ids. */
TEST(ties_go_to_the_lower_beam_then_the_lower_id)
{
    static const int32_t eos[] = {39};
    fake f = {.n_vocab = 6, .n_levels = 1};
    dt_ledger ledger = {0};
    search w;
    const dt_beam_options how = {.n_beams = 3, .n_return = 3, .length_penalty = 1};
    make_search(&w, &how, f.n_vocab, eos, 1, 2, 2);
    run_search(&w, &f, &ledger);
    for (int r = 0; r < 3; r++) {
        const dt_sequence *q = &w.seqs[r];
        assert_int_equal(q->ids[q->n_prompt], 0);
        assert_int_equal(q->ids[q->n_prompt + 1], r);
    }
    free_search(&w);
}

TEST(a_prompt_without_room_and_wrong_numbers)
{
    fake f = {.n_vocab = 6, .n_levels = 100};
    dt_ledger ledger = {0};
    search w;
    const dt_beam_options how = {.n_beams = 2, .n_return = 2, .length_penalty = 1};
    make_search(&w, &how, f.n_vocab, NULL, 0, 1, 3);
    w.seqs[2].max_ids = w.seqs[3].max_ids = w.seqs[2].n_prompt;
    run_search(&w, &f, &ledger);
    assert_int_equal(w.seqs[2].finish, DT_FINISH_LENGTH);
    assert_int_equal(w.seqs[3].finish, DT_FINISH_MISSING);
    assert_int_equal(w.seqs[4].n_ids, w.seqs[4].max_ids);
    const dt_decoder d = {&f, fake_decode, NULL, fake_top, fake_keep, fake_share, fake_move, MAX_SLOTS, NULL};
    dt_generate_stats stats;
    w.opt.beams.n_return = 3;
    assert_fails(dt_generate(&d, w.list, 0, &w.opt, &stats), DT_ERR_ARG, "");
    free_search(&w);
}

/* ---- transformers ------------------------------------------------------------------------------------------------ */

static int32_t take_ids(const json_t *list, int32_t *ids)
{
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int32_t)json_array_size(list);
}

static void fill_prompts(const json_t *fixture, const char *name, int n_return, dt_sequence *seqs, dt_sequence **list,
                         int32_t (*ids)[MAX_LEN])
{
    const json_t *prompts = json_object_get(fixture, "prompts");
    const int32_t n_new = (int32_t)json_integer_value(json_object_get(fixture, name));
    for (int i = 0; i < (int)json_array_size(prompts) * n_return; i++) {
        const int32_t n = take_ids(json_array_get(prompts, (size_t)(i / n_return)), ids[i]);
        seqs[i] = (dt_sequence){.number = (uint64_t)i, .ids = ids[i], .n_prompt = n, .n_ids = n, .max_ids = n + n_new};
        list[i] = &seqs[i];
    }
}

static void expect_ids(const dt_sequence *q, const json_t *want, const char *what)
{
    int32_t ids[MAX_LEN];
    const int32_t n = take_ids(want, ids);
    if (q->n_ids - q->n_prompt != n || memcmp(q->ids + q->n_prompt, ids, (size_t)n * sizeof *ids) != 0)
        fail_msg("%s", what);
}

static int32_t rule_of(const json_t *how, const char *key)
{
    return (int32_t)json_integer_value(json_object_get(how, key));
}

/* The lists: [64] each. */
static dt_token_rules rules_of(const json_t *how, int32_t *suppress, int32_t *begin)
{
    return (dt_token_rules){
        .min_new_tokens = rule_of(how, "min_new_tokens"),
        .min_length = rule_of(how, "min_length"),
        .no_repeat_ngram_size = rule_of(how, "no_repeat_ngram_size"),
        .suppress = {suppress, (size_t)take_ids(json_object_get(how, "suppress_tokens"), suppress)},
        .begin_suppress = {begin, (size_t)take_ids(json_object_get(how, "begin_suppress_tokens"), begin)}};
}

/* Scores: a log-probability is a difference of floats near 4. Sums of at most 64 products in another order, a few
 * layers deep, differ by less than 64 2^-24 of that: 2^-16. As many add up as tokens are new, n, and are divided by
 * n^a; the penalty multiplies them. */
static void check_search(ref_model *r, const json_t *fixture, const json_t *how, int groups, const int32_t *eos,
                         int n_eos, const char *name)
{
    dt_sequence seqs[32], *list[32];
    int32_t ids[32][MAX_LEN], suppress[64], begin[64];
    dt_generate_stats stats;
    const json_t *found = json_object_get(how, "found");
    const dt_beam_options bo = {.n_beams = (int)json_integer_value(json_object_get(how, "num_beams")),
                                .n_return = (int)json_integer_value(json_object_get(how, "num_return")),
                                .length_penalty = json_number_value(json_object_get(how, "length_penalty")),
                                .early_stopping = json_is_true(json_object_get(how, "early_stopping"))};
    dt_generate_options opt = {.sampling = dt_sampling_default(),
                               .eos = eos,
                               .n_eos = n_eos,
                               .vocab_size = r->mc.vocab_size,
                               .n_slots = groups * bo.n_beams,
                               .n_prompts = groups,
                               .recompute_at = dt_model_recompute_length(&r->mc, MAX_LEN),
                               .max_tok = 20,
                               .ledger = &r->ledger};
    const json_t *penalty = json_object_get(how, "repetition_penalty");
    if (penalty) opt.sampling.repetition_penalty = json_number_value(penalty);
    opt.rules = rules_of(how, suppress, begin);
    opt.sampling.greedy = true;
    const dt_decoder d = dt_decoder_of_model(r->model);
    const int n_prompts = (int)json_array_size(found);
    fill_prompts(fixture, "max_new_tokens", bo.n_return, seqs, list, ids);
    if (bo.n_beams > 1) opt.beams = bo;
    assert_int_equal(dt_generate(&d, list, n_prompts * bo.n_return, &opt, &stats), DT_OK);
    for (size_t p = 0; p < json_array_size(found); p++)
        for (int k = 0; k < bo.n_return; k++) {
            const json_t *want = json_array_get(json_array_get(found, p), (size_t)k);
            const dt_sequence *q = &seqs[p * (size_t)bo.n_return + (size_t)k];
            char what[128];
            snprintf(what, sizeof what, "%s, %d beams, prompt %d, sequence %d", name, bo.n_beams, (int)p, k);
            expect_ids(q, json_object_get(want, "ids"), what);
            const double score = json_number_value(json_object_get(want, "score"));
            const double n = q->n_ids - q->n_prompt, rho = fmax(1, opt.sampling.repetition_penalty),
                         error = rho * n * 0x1p-16 / pow(n, bo.length_penalty);
            if (!(fabs(q->score - score) <= error)) fail_msg("%s: score %.7f instead of %.7f", what, q->score, score);
        }
}

static void check_greedy(ref_model *r, const json_t *fixture, const int32_t *eos, int n_eos, const char *name)
{
    dt_sequence seqs[8], *list[8];
    int32_t ids[8][MAX_LEN];
    dt_generate_stats stats;
    dt_generate_options opt = {.sampling = dt_sampling_default(),
                               .eos = eos,
                               .n_eos = n_eos,
                               .vocab_size = r->mc.vocab_size,
                               .n_slots = 2,
                               .recompute_at = dt_model_recompute_length(&r->mc, MAX_LEN),
                               .max_tok = 5,
                               .ledger = &r->ledger};
    const dt_decoder d = dt_decoder_of_model(r->model);
    opt.sampling.greedy = true;
    fill_prompts(fixture, "max_new_tokens", 1, seqs, list, ids);
    const json_t *want = json_object_get(fixture, "greedy");
    assert_int_equal(dt_generate(&d, list, (int)json_array_size(want), &opt, &stats), DT_OK);
    for (size_t i = 0; i < json_array_size(want); i++) expect_ids(&seqs[i], json_array_get(want, i), name);
}

static void check_fixture(const char *name)
{
    char path[128];
    ref_model r;
    int32_t eos[DT_MAX_EOS];
    snprintf(path, sizeof path, "tests/data/generate/%s.json", name);
    json_t *fixture = json_load_file(path, 0, NULL);
    assert_non_null(fixture);
    char *config = json_dumps(json_object_get(fixture, "config"), 0);
    const int n_eos = take_ids(json_object_get(fixture, "eos"), eos);
    dt_model_options mo = {
        .dtype = DT_F32,
        .grad_dtype = DT_F32,
        .max_tok = 20,
        .max_seq = 16,
        .max_pos = 24,
        .cache_seqs = 16,
        .cache_len = 24,
        .cache_prompts = 2,
        .cache_prompt_len = 24,
        .max_top = (int32_t)json_integer_value(json_object_get(json_object_get(fixture, "config"), "vocab_size")),
        .batch_invariant = true};
    if (ref_model_open(&r, name, config, &mo) != DT_OK) fail_msg("%s", dt_error_message());
    check_greedy(&r, fixture, eos, n_eos, name);
    const json_t *searches = json_object_get(fixture, "searches");
    const json_t *rules = json_object_get(fixture, "rules");
    assert_true(json_array_size(rules) > 0 || !strstr("gpt2 gpt2_variant llama", name));
    for (size_t i = 0; i < json_array_size(rules); i++)
        check_search(&r, fixture, json_array_get(rules, i), 2, eos, n_eos, name);
    for (size_t i = 0; i < json_array_size(searches); i++)
        for (int groups = 1; groups < 3; groups++)
            check_search(&r, fixture, json_array_get(searches, i), groups, eos, n_eos, name);
    ref_model_close(&r);
    assert_int_equal(ref_model_left(&r), 0);
    free(config);
    json_decref(fixture);
}

TEST(transformers_finds_the_same)
{
    static const char *const without[] = {"qwen3_moe_balanced", "mixtral_all", "gpt_oss_all"}; /* no searches */
    for (int i = 0; i < N_CASES; i++) {
        bool has = true;
        for (size_t k = 0; k < sizeof without / sizeof without[0]; k++) has = has && strcmp(CASES[i], without[k]) != 0;
        if (has) check_fixture(CASES[i]);
    }
}

/* Continue the first n_ids tokens of a text, of which the cache has n_cached. Returns the prompt tokens computed. */
static int64_t continue_text(ref_model *r, int32_t *ids, int32_t n_ids, int32_t n_cached, int32_t max_ids)
{
    dt_sequence q = {.ids = ids, .n_prompt = n_ids, .n_ids = n_ids, .max_ids = max_ids, .n_cached = n_cached},
                *list[] = {&q};
    dt_generate_stats stats;
    dt_generate_options opt = {.sampling = dt_sampling_default(),
                               .vocab_size = r->mc.vocab_size,
                               .n_slots = 1,
                               .recompute_at = dt_model_recompute_length(&r->mc, MAX_LEN),
                               .max_tok = 5,
                               .ledger = &r->ledger};
    const dt_decoder d = dt_decoder_of_model(r->model);
    opt.sampling.greedy = true;
    assert_int_equal(dt_generate(&d, list, 1, &opt, &stats), DT_OK);
    return stats.n_prompt_tok;
}

/* Its original context has 8 tokens. */
TEST(a_conversation_that_outgrows_longrope_is_computed_again)
{
    int32_t ids[MAX_LEN] = {5, 17, 33, 2}, again[MAX_LEN];
    ref_model r;
    json_t *fixture = json_load_file("tests/data/generate/phi3.json", 0, NULL);
    char *config = json_dumps(json_object_get(fixture, "config"), 0);
    const dt_model_options mo = {.dtype = DT_F32,
                                 .grad_dtype = DT_F32,
                                 .max_tok = 20,
                                 .max_seq = 1,
                                 .max_pos = 24,
                                 .cache_seqs = 1,
                                 .cache_len = 24,
                                 .batch_invariant = true};
    if (ref_model_open(&r, "phi3", config, &mo) != DT_OK) fail_msg("%s", dt_error_message());
    assert_int_equal(continue_text(&r, ids, 4, 0, 6), 4);
    ids[6] = 11;
    assert_int_equal(continue_text(&r, ids, 7, 5, 8), 2); /* still short: the cache is continued */
    ids[8] = 40, ids[9] = 3;
    memcpy(again, ids, sizeof ids);
    assert_int_equal(continue_text(&r, ids, 10, 7, 20), 10);
    assert_int_equal(continue_text(&r, again, 10, 0, 20), 10);
    assert_memory_equal(again, ids, sizeof ids);
    assert_int_equal(continue_text(&r, ids, 21, 19, 22), 2); /* long already */
    ref_model_close(&r);
    assert_int_equal(ref_model_left(&r), 0);
    free(config);
    json_decref(fixture);
}

/* ---- log-probabilities of the sampler and of the scorer ---------------------------------------------------------- */

/* Mean |logp_sampler - logp_scorer| over the new tokens, the scorer being the forward of training on the whole
 * texts. */
static double logp_gap(const json_t *fixture, const char *config, dt_dtype dtype)
{
    enum { N = 3, NEW = 12 };
    dt_sequence seqs[8], *list[8];
    int32_t ids[8][MAX_LEN];
    float logps[8][MAX_LEN], scored[64];
    dt_generate_stats stats;
    dt_batch b;
    ref_model r, scorer;
    dt_model_options mo = {.dtype = dtype,
                           .grad_dtype = DT_F32,
                           .max_tok = 64,
                           .max_seq = 4,
                           .max_pos = 24,
                           .cache_seqs = 4,
                           .cache_len = 24,
                           .batch_invariant = true};
    if (ref_model_open(&r, "sampler", config, &mo) != DT_OK) fail_msg("%s", dt_error_message());
    mo.batch_invariant = false;
    mo.cache_seqs = mo.cache_len = 0;
    if (ref_model_open(&scorer, "scorer", config, &mo) != DT_OK) fail_msg("%s", dt_error_message());
    const dt_generate_options opt = {
        .sampling = {.temperature = 0.8, .top_p = 0.9, .repetition_penalty = 1.3, .seed = 3},
        .vocab_size = r.mc.vocab_size,
        .n_slots = 2,
        .max_tok = 7,
        .logp = true,
        .ledger = &r.ledger};
    const dt_decoder d = dt_decoder_of_model(r.model);
    fill_prompts(fixture, "max_new_tokens", 1, seqs, list, ids);
    for (int i = 0; i < N; i++) seqs[i].logps = logps[i];
    assert_int_equal(dt_generate(&d, list, N, &opt, &stats), DT_OK);

    assert_int_equal(dt_batch_alloc(&b, mo.max_tok, mo.max_seq, &scorer.ledger), DT_OK);
    b.n_seq = N;
    b.n_tok = b.seq_start[0] = 0;
    for (int i = 0; i < N; i++) {
        for (int32_t t = 0; t + 1 < seqs[i].n_ids; t++, b.n_tok++) {
            b.token[b.n_tok] = seqs[i].ids[t];
            b.pos[b.n_tok] = t;
            b.target[b.n_tok] = t + 1 < seqs[i].n_prompt ? -1 : seqs[i].ids[t + 1];
            b.weight[b.n_tok] = 1;
        }
        b.seq_start[i + 1] = b.n_tok;
    }
    dt_batch_finish(&b);
    assert_int_equal(dt_model_forward(scorer.model, &b, false, 0), DT_OK);
    assert_int_equal(dt_model_logp(scorer.model, &b, 1, scored, NULL, NULL), DT_OK);
    double gap = 0;
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int32_t t = seqs[i].n_prompt; t < seqs[i].n_ids; t++) {
            gap += fabs((double)(logps[i][t] - scored[b.seq_target[i] + t - seqs[i].n_prompt])) / (N * NEW);
            sum += (double)logps[i][t];
        }
        assert_true(seqs[i].n_ids - seqs[i].n_prompt == NEW && fabs(sum - seqs[i].logp) <= NEW * 0x1p-22);
    }
    dt_batch_free(&b, &scorer.ledger);
    ref_model_close(&r), ref_model_close(&scorer);
    return gap;
}

/* fp32: sums of some 2^-24 of logits near 4 in another order. bf16: roundings of 2^-9 of what passes between the
 * layers, of random sign. */
TEST(the_sampler_and_the_scorer_agree)
{
    static const char *const names[] = {"gpt2", "llama", "mistral", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/data/generate/%s.json", names[i]);
        json_t *fixture = json_load_file(path, 0, NULL);
        assert_non_null(fixture);
        char *config = json_dumps(json_object_get(fixture, "config"), 0);
        assert_true(logp_gap(fixture, config, DT_F32) <= 2e-6);
        assert_true(logp_gap(fixture, config, DT_BF16) <= 0.04);
        free(config);
        json_decref(fixture);
    }
}

int main(void) { return run_listed(NULL, NULL, NULL); }
