/* test_generate_feed.c - sequences that arrive while others run: each has the tokens of its own choice and seed, with
 * any others in the batch; one that is ended leaves its slot; bad logits fail only their sequence. The decoder is a
 * pure function of a sequence's tokens.
 * DEVICES: cpu queue */
#include "cases.h"
#include "dtrain/generate/generate.h"
#include "host_sampler.h"

enum { VOCAB = 50, SLOTS = 3, MAX_LEN = 40, N_SEQS = 9, TOP = 2, ENDED = 4, BAD = 6, BAD_TOKEN = 49 };

typedef struct feeder {
    int32_t held[SLOTS][MAX_LEN], n[SLOTS], slot[SLOTS]; /* the decoder's */
    dt_sequence seqs[N_SEQS];
    int32_t ids[N_SEQS][MAX_LEN], tops[N_SEQS][MAX_LEN * TOP];
    float top_logps[N_SEQS][MAX_LEN * TOP], logps[N_SEQS][MAX_LEN];
    dt_choice choices[3];
    dt_feed feed;
    int n_passes, n_begun;
} feeder;

/* Of a text with the bad token all logits are NaN. */
static void logits_of(const int32_t *ids, int32_t n, float *logits)
{
    uint64_t h = 1;
    bool bad = false;
    for (int32_t i = 0; i < n; i++) h = dt_mix64(h ^ (uint64_t)ids[i]), bad |= ids[i] == BAD_TOKEN;
    for (int v = 0; v < VOCAB; v++) logits[v] = bad ? NAN : (float)(dt_mix64(h + (uint64_t)v) >> 40) * 0x1p-22f;
    logits[BAD_TOKEN] = bad ? NAN : -INFINITY;
}

static dt_err decode(void *self, const dt_batch *b, const int32_t *slot)
{
    feeder *f = self;
    for (int32_t s = 0; s < b->n_seq; s++) {
        f->slot[s] = slot[s];
        for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++) f->held[slot[s]][f->n[slot[s]]++] = b->token[t];
    }
    return DT_OK;
}

static dt_err draw(void *self, const dt_batch *b, const dt_draw *d)
{
    feeder *f = self;
    for (int32_t s = 0; s < b->n_seq; s++) {
        float logits[VOCAB];
        logits_of(f->held[f->slot[s]], f->n[f->slot[s]], logits);
        host_draw(&d->how, logits, d->seen ? d->seen + s * ((VOCAB + 31) / 32) : NULL, VOCAB, d->uniform[s],
                  &d->token[s], &d->logp[s]);
    }
    return DT_OK;
}

/* Lists and prompts have values that tell where they come from: the length of the text. */
static dt_err top(void *self, const dt_batch *b, const dt_top *t)
{
    const feeder *f = self;
    for (int32_t s = 0; s < b->n_seq; s++)
        for (int32_t j = 0; j < t->k; j++) t->token[s * t->k + j] = j, t->logp[s * t->k + j] = -f->n[f->slot[s]];
    return DT_OK;
}

static dt_err targets(void *self, const dt_batch *b, float *logp, const dt_known *list)
{
    (void)self;
    for (int32_t i = 0; i < b->n_target; i++) {
        logp[i] = (float)-b->pos[b->target_row[i]];
        for (int32_t j = 0; j < list->k; j++) list->token[i * list->k + j] = -1, list->logp[i * list->k + j] = logp[i];
    }
    return DT_OK;
}

static int32_t keep(void *self, int32_t slot, int32_t n) { return ((feeder *)self)->n[slot] = n; }

/* One more sequence may begin in each pass. */
static dt_sequence *next(void *ctx)
{
    feeder *f = ctx;
    return f->n_begun < N_SEQS && f->n_begun < f->n_passes ? &f->seqs[f->n_begun++] : NULL;
}

static dt_err on_pass(void *ctx)
{
    feeder *f = ctx;
    f->n_passes++;
    if (f->seqs[ENDED].n_ids >= f->seqs[ENDED].n_prompt + 2) f->seqs[ENDED].finish = DT_FINISH_STOP;
    f->feed.more = f->n_begun < N_SEQS;
    return DT_OK;
}

static dt_err on_token(void *ctx, dt_sequence *q)
{
    (void)ctx, (void)q;
    return DT_OK;
}

static void make(feeder *f)
{
    *f = (feeder){.choices = {{.greedy = true, .repetition_penalty = 1},
                              {.temperature = 0.7, .top_k = 20, .top_p = 0.9, .repetition_penalty = 1},
                              {.temperature = 2, .top_p = 1, .repetition_penalty = 1.3}}};
    f->feed =
        (dt_feed){.next = next, .more = true, .choice = f->choices, .n_choices = 3, .n_top = TOP, .of_prompt = true};
    for (int i = 0; i < N_SEQS; i++) {
        const int32_t n = 1 + i * 2;
        for (int32_t t = 0; t < n; t++) f->ids[i][t] = (int32_t)(dt_mix64((uint64_t)(50 * i + t)) % BAD_TOKEN);
        if (i == BAD) f->ids[i][n - 1] = BAD_TOKEN;
        f->seqs[i] = (dt_sequence){.number = (uint64_t)i,
                                   .seed = (uint64_t)(7 * i),
                                   .choice = i % 3,
                                   .ids = f->ids[i],
                                   .n_prompt = n,
                                   .n_ids = n,
                                   .max_ids = n + 3 + i,
                                   .n_top = i % 2 ? TOP : 0,
                                   .of_prompt = i % 2,
                                   .logps = f->logps[i],
                                   .top_token = f->tops[i],
                                   .top_logp = f->top_logps[i]};
    }
}

/* The next token of a text by a plain call. */
static int32_t expected(const feeder *f, const dt_sequence *q, int32_t n, double *logp)
{
    uint32_t seen[(VOCAB + 31) / 32] = {0};
    float logits[VOCAB];
    int32_t token;
    logits_of(q->ids, n, logits);
    for (int32_t i = 0; i < n; i++) seen[q->ids[i] / 32] |= 1u << q->ids[i] % 32;
    host_draw(&f->choices[q->choice], logits, f->choices[q->choice].repetition_penalty != 1 ? seen : NULL, VOCAB,
              dt_sampler_uniform(q->seed, q->number, (uint64_t)n), &token, logp);
    return token;
}

TEST(each_sequence_has_its_own_choice)
{
    feeder f;
    dt_ledger ledger = {0};
    dt_generate_stats stats;
    make(&f);
    const dt_decoder d = {.self = &f, .decode = decode, .draw = draw, .top = top, .keep = keep, .targets = targets};
    const dt_generate_options opt = {.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 2},
                                     .vocab_size = VOCAB,
                                     .n_slots = SLOTS,
                                     .max_tok = 5,
                                     .max_top = TOP,
                                     .logp = true,
                                     .feed = &f.feed,
                                     .on_pass = on_pass,
                                     .on_token = on_token,
                                     .ctx = &f,
                                     .ledger = &ledger};
    assert_int_equal(dt_generate(&d, NULL, 0, &opt, &stats), DT_OK);
    for (int i = 0; i < N_SEQS; i++) {
        const dt_sequence *q = &f.seqs[i];
        const int32_t n_new = i == ENDED ? 2 : i == BAD ? 0 : 3 + i;
        assert_int_equal(q->n_ids, q->n_prompt + n_new);
        assert_int_equal(q->finish, i == ENDED ? DT_FINISH_STOP : i == BAD ? DT_FINISH_FAILED : DT_FINISH_LENGTH);
        for (int32_t n = q->n_prompt; n < q->n_ids; n++) {
            double logp;
            assert_int_equal(q->ids[n], expected(&f, q, n, &logp));
            assert_true(q->logps[n] == (float)logp);
            for (int32_t j = 0; j < q->n_top; j++) assert_true(q->top_logp[n * TOP + j] == (float)-n);
        }
        for (int32_t n = 1; n < q->n_prompt && q->of_prompt && i != BAD; n++)
            assert_true(q->logps[n] == (float)(1 - n));
    }
    assert_int_equal(ledger.now[DT_MEM_DATA][DT_ON_HOST], 0);
}

int main(void) { return run_listed(NULL, NULL, NULL); }
