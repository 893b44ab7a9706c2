/* beams.c - beam search (algorithms.md, appendix B) for many prompts at a time. Each prompt has a cache slot of its own
 * and n_beams slots for continuations.
 *
 * A beam's first child takes over its slot. For its other children, the beam's new tokens are copied to slots of beams
 * that ended; one copy serves all prompts. Scores are sums of log-probabilities in double. As in transformers' beam
 * search, but unlike its sampling, the repetition penalty is applied to log-probabilities, not to logits.
 *
 * The device returns the candidate tokens of each beam. If more candidates than the limit have equal scores, larger
 * logits and then lower ids are preferred. */
#include "dtrain/generate/generate.h"
#include "decode_loop.h"
#include "rules.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct beam {
    int32_t *ids;
    float *logps; /* log-probability of each token after the prompt */
    /* sums of log-probabilities over the tokens after the prompt: with the penalty, and without */
    double score, logp;
    int32_t state; /* state of the constraint */
    /* parent: the slot that holds all tokens but the last, initially the prompt's; slot -1: not assigned yet */
    int32_t slot, parent;
} beam;

typedef struct candidate {
    double score, logp;
    int beam;
    int32_t token;
} candidate;

typedef struct hypothesis {
    int32_t *ids, n_ids;
    float *logps;
    double logp, score;
    dt_finish finish;
} hypothesis;

typedef struct group {
    int prompt; /* -1: free */
    int32_t n_ids, n_prompt, max_ids;
    int n_live, n_done;
    bool again;        /* the cache of its beams is computed again */
    beam *live, *next; /* [n_beams]; next: scratch */
    hypothesis *done;  /* [n_beams], highest score first, ties in order of completion */
} group;

struct dt_searcher {
    decode_loop loop;
    dt_decoder decoder;
    dt_generate_options opt;
    dt_beam_options how;
    int32_t max_len;
    dt_sequence *const *seqs;
    int n_prompts, next;
    int n_groups;
    group *groups;
    /* per sequence; 2 with a penalty: tokens not yet seen, and seen ones */
    int n_lists;
    int32_t k;                      /* tokens per list */
    void *lists;                    /* one allocation for the arrays from logp to allowed */
    double *logp;                   /* [n_slots, n_lists, k] */
    int32_t *token;                 /* [n_slots, n_lists, k] */
    int32_t *list_start, *list_len; /* [n_slots] allowed tokens of the constraint */
    uint32_t *seen;                 /* [n_slots, seen_ld]; NULL: no penalty */
    uint32_t *allowed;              /* the same; NULL: no rules */
    int32_t *id_store;              /* [n_groups][3 n_beams][len] */
    float *logp_store;              /* the same */
    size_t texts_nbytes;            /* bytes of id_store and logp_store */
    candidate *best;                /* [n_best]: a heap with the worst candidate at the root, then sorted */
    int n_best, n_found;
    bool *taken; /* [n_beams] */
    /* [n_slots] copies of the step: slot dst[i] receives the contents of src[i] */
    int32_t *src, *dst;
    int32_t n_moves;
};
typedef struct dt_searcher searcher;

/* ---- the best continuations -------------------------------------------------------------------------------------- */

static bool better(const candidate *a, const candidate *b)
{
    if (a->score != b->score) return a->score > b->score;
    return a->beam != b->beam ? a->beam < b->beam : a->token < b->token;
}

/* s->best is a heap with the worst candidate at the root: move `at` down until both children are better. */
static void sift_down(candidate *heap, int n, int at)
{
    const candidate c = heap[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && better(&heap[child], &heap[child + 1])) child++;
        if (!better(&c, &heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

/* Keep a candidate if it is among the n_best overall. The heap is built when the array is full. */
static void offer(searcher *s, const candidate *c)
{
    if (s->n_found < s->n_best) {
        s->best[s->n_found++] = *c;
        if (s->n_found == s->n_best)
            for (int at = s->n_found / 2; at-- > 0;) sift_down(s->best, s->n_found, at);
    } else if (better(c, &s->best[0])) {
        s->best[0] = *c;
        sift_down(s->best, s->n_found, 0);
    }
}

static int by_falling_score(const void *a, const void *b) { return better(a, b) ? -1 : 1; }

/* Offer the likely tokens after one beam: score + log p. Seen tokens are penalised; log p <= 0, so it is multiplied. At
 * most n_best of either list can be among the n_best overall. */
static dt_err offer_tokens(searcher *s, const group *g, int number)
{
    const beam *b = &g->live[number];
    const int64_t from = decode_loop_row(&s->loop, b->slot) * s->n_lists * s->k;
    DT_CHECK(!isnan(s->logp[from]), DT_ERR_NONFINITE,
             "a logit is NaN or inf, or all are -inf, so the model's weights or activations are not finite");
    for (int list = 0; list < s->n_lists; list++) {
        const double penalty = list == 0 ? 1 : s->loop.opt->sampling.repetition_penalty;
        for (int64_t i = from + list * s->k, end = i + s->k; i < end && s->token[i] >= 0; i++) {
            const double after = s->logp[i] * penalty; /* never positive */
            const candidate c = {
                .score = b->score + after, .logp = b->logp + s->logp[i], .beam = number, .token = s->token[i]};
            if (c.score > -INFINITY) offer(s, &c);
        }
    }
    return DT_OK;
}

/* ---- a step of a group ------------------------------------------------------------------------------------------- */

/* Copy a beam's tokens and append a candidate's token, in another beam's buffers. */
static void extend(const group *g, const candidate *c, int32_t *ids, float *logps)
{
    const beam *b = &g->live[c->beam];
    memcpy(ids, b->ids, (size_t)g->n_ids * sizeof *ids);
    memcpy(logps, b->logps, (size_t)g->n_ids * sizeof *logps);
    ids[g->n_ids] = c->token;
    logps[g->n_ids] = (float)(c->logp - b->logp);
}

/* Add a finished text with score sum of log p / length^penalty. Keeps the n_beams best, sorted. */
static void add_hypothesis(searcher *s, group *g, const candidate *c, dt_finish finish)
{
    const int n_beams = s->how.n_beams;
    const double length = g->n_ids + 1 - g->n_prompt, score = c->score / pow(length, s->how.length_penalty);
    if (g->n_done == n_beams && score <= g->done[n_beams - 1].score) return;
    hypothesis *last = &g->done[g->n_done == n_beams ? n_beams - 1 : g->n_done++];
    hypothesis h = {.ids = last->ids,
                    .n_ids = g->n_ids + 1,
                    .logps = last->logps,
                    .logp = c->logp,
                    .score = score,
                    .finish = finish};
    extend(g, c, h.ids, h.logps);
    int at = (int)(last - g->done);
    for (; at > 0 && g->done[at - 1].score < score; at--) g->done[at] = g->done[at - 1];
    g->done[at] = h;
}

/* Why a candidate ends its sequence; NONE: it may continue. The candidate's token is written after its beam's ids. */
static dt_finish ending_of(const searcher *s, const group *g, const candidate *c)
{
    const dt_generate_options *opt = s->loop.opt;
    int32_t *ids = g->live[c->beam].ids;
    if (is_end_of_text(opt, c->token)) return DT_FINISH_EOS;
    ids[g->n_ids] = c->token;
    if (opt->is_complete && opt->is_complete(opt->ctx, ids, g->n_prompt, g->n_ids + 1)) return DT_FINISH_STOP;
    return g->n_ids + 1 == g->max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE;
}

/* Candidates that end become hypotheses if they are among the first n_beams. The first n_beams of the others stay live.
 * With a constraint a truncated sequence is not a valid result. */
static int sort_out(searcher *s, group *g)
{
    const int n_beams = s->how.n_beams;
    const dt_constraint *only = s->loop.opt->constraint;
    int n_next = 0;
    for (int i = 0; i < s->n_found && (n_next < n_beams || i < n_beams); i++) {
        const candidate *c = &s->best[i];
        const dt_finish ending = ending_of(s, g, c);
        const bool counts = ending != DT_FINISH_NONE && !(only && ending == DT_FINISH_LENGTH);
        if (counts && i < n_beams) add_hypothesis(s, g, c, ending);
        if (ending != DT_FINISH_NONE || n_next == n_beams) continue;
        beam *b = &g->next[n_next++]; /* the ids buffer of `next` is kept */
        extend(g, c, b->ids, b->logps);
        if (only) b->state = only->next(only->self, g->live[c->beam].state, c->token);
        b->score = c->score;
        b->logp = c->logp;
        b->parent = g->live[c->beam].slot;
        b->slot = -1;
    }
    return n_next;
}

/* First beam slot of a group, and its prompt slot. */
static int32_t first_slot(const searcher *s, const group *g) { return (int32_t)(g - s->groups) * s->how.n_beams; }
static int32_t prompt_slot(const searcher *s, const group *g) { return s->opt.n_slots + (int32_t)(g - s->groups); }

/* Assign cache slots to the next beams. The first child of a beam keeps its slot; others get the slot of an ended beam,
 * to which the parent's contents are copied. After the prompt all slots are free and all children start from the
 * prompt. */
static dt_err place_children(searcher *s, group *g, int n_next)
{
    const int n_beams = s->how.n_beams, first = first_slot(s, g);
    const dt_decoder *d = s->loop.decoder;
    bool *taken = s->taken; /* of the group's slots */
    memset(taken, 0, (size_t)n_beams * sizeof *taken);
    for (int i = 0; i < n_next; i++) {
        beam *b = &g->next[i];
        if (b->parent == prompt_slot(s, g) || taken[b->parent - first]) continue;
        taken[b->parent - first] = true;
        b->slot = b->parent;
    }
    for (int i = 0, k = 0; i < n_next; i++) { /* a free slot belonged to a beam that ended */
        beam *b = &g->next[i];
        if (b->slot >= 0) continue;
        while (taken[k]) k++;
        taken[k] = true;
        b->slot = first + k;
        if (b->parent == prompt_slot(s, g)) {
            DT_TRY(d->share(d->self, b->slot, decode_loop_slot(&s->loop, b->parent), g->n_prompt));
        } else {
            s->src[s->n_moves] = b->parent;
            s->dst[s->n_moves++] = b->slot;
        }
    }
    return DT_OK;
}

/* The texts have grown beyond recompute_at: each beam computes its cache again, in a slot of its own. */
static void begin_again(searcher *s, const group *g, int n_next)
{
    const dt_decoder *d = s->loop.decoder;
    for (int i = 0; i < n_next; i++) d->keep(d->self, g->next[i].slot = first_slot(s, g) + i, 0);
}

/* Can no live beam beat the worst entry of a full list? Scores only decrease, so the present score is the upper
 * bound. */
static bool cannot_improve(const searcher *s, const group *g, int n_next)
{
    if (n_next == 0) return true;
    if (g->n_done < s->how.n_beams) return false;
    const double length = g->n_ids + 1 - g->n_prompt;
    return s->how.early_stopping ||
           g->next[0].score / pow(length, s->how.length_penalty) <= g->done[g->n_done - 1].score;
}

/* Fill the loop's slots of a group from its live beams. */
static void fill_slots(searcher *s, const group *g, int n_live, int32_t done)
{
    s->loop.slots[prompt_slot(s, g)] = (decode_slot){0};
    for (int i = 0; i < s->how.n_beams; i++) s->loop.slots[first_slot(s, g) + i] = (decode_slot){0};
    for (int i = 0; i < n_live; i++)
        s->loop.slots[g->live[i].slot] = (decode_slot){.ids = g->live[i].ids,
                                                       .n_ids = g->n_ids,
                                                       .done = done,
                                                       .held = g->again,
                                                       .n_prompt = g->n_prompt,
                                                       .of = s->seqs[g->prompt * s->how.n_return]};
}

static dt_err hand_back(searcher *s, group *g)
{
    const dt_generate_options *opt = s->loop.opt;
    for (int r = 0; r < s->how.n_return; r++) {
        dt_sequence *q = s->seqs[g->prompt * s->how.n_return + r];
        q->finish = DT_FINISH_MISSING;
        if (r < g->n_done) {
            const hypothesis *h = &g->done[r];
            memcpy(q->ids, h->ids, (size_t)h->n_ids * sizeof *q->ids);
            if (q->logps) memcpy(q->logps, h->logps, (size_t)h->n_ids * sizeof *q->logps);
            q->n_ids = h->n_ids;
            q->logp = h->logp;
            q->score = h->score;
            q->finish = h->finish;
        }
        s->loop.stats->n_new_tok += q->n_ids - q->n_prompt;
        if (opt->on_token) DT_TRY(opt->on_token(opt->ctx, q));
    }
    fill_slots(s, g, 0, 0);
    g->prompt = -1;
    return DT_OK;
}

static dt_err step_group(searcher *s, group *g)
{
    s->n_found = 0;
    for (int i = 0; i < g->n_live; i++) DT_TRY(offer_tokens(s, g, i));
    qsort(s->best, (size_t)s->n_found, sizeof *s->best, by_falling_score);
    DT_CHECK(s->n_found > 0 || g->n_done > 0 || !s->allowed, DT_ERR_USAGE,
             "prompt %d, token %d: no token is allowed: suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size "
             "and min_new_tokens together exclude all %" PRId64 "; relax one of them",
             g->prompt, g->n_ids, s->loop.opt->vocab_size);
    const int n_next = sort_out(s, g);
    if (cannot_improve(s, g, n_next)) return hand_back(s, g);
    g->again = decode_loop_outgrows(s->loop.opt, g->n_ids, g->n_ids + 1);
    if (g->again)
        begin_again(s, g, n_next);
    else
        DT_TRY(place_children(s, g, n_next));
    beam *old = g->live;
    g->live = g->next;
    g->next = old;
    g->n_live = n_next;
    g->n_ids++;
    fill_slots(s, g, n_next, g->again ? 0 : g->n_ids - 1);
    return DT_OK;
}

/* ---- scheduling -------------------------------------------------------------------------------------------------- */

static void begin_group(searcher *s, group *g, int prompt)
{
    const dt_sequence *q = s->seqs[prompt * s->how.n_return];
    const dt_decoder *d = s->loop.decoder;
    g->prompt = prompt;
    g->n_ids = g->n_prompt = q->n_prompt;
    g->max_ids = q->max_ids;
    g->n_live = 1;
    g->n_done = 0;
    g->again = false;
    memcpy(g->live[0].ids, q->ids, (size_t)q->n_prompt * sizeof *q->ids);
    memset(g->live[0].logps, 0, (size_t)q->n_prompt * sizeof *g->live[0].logps);
    g->live[0].score = g->live[0].logp = 0;
    g->live[0].state = s->loop.opt->constraint ? s->loop.opt->constraint->start : 0;
    g->live[0].slot = prompt_slot(s, g);
    d->keep(d->self, decode_loop_slot(&s->loop, g->live[0].slot), 0);
    fill_slots(s, g, 1, 0);
}

static dt_err admit(void *self, bool *work, bool *waits)
{
    searcher *s = self;
    for (group *g = s->groups; g < s->groups + s->n_groups; g++) {
        while (g->prompt < 0 && s->next < s->n_prompts) {
            const int prompt = s->next++;
            dt_sequence *const *q = s->seqs + prompt * s->how.n_return;
            if (q[0]->n_ids < q[0]->max_ids) {
                begin_group(s, g, prompt);
                continue;
            }
            for (int r = 0; r < s->how.n_return; r++) q[r]->finish = r == 0 ? DT_FINISH_LENGTH : DT_FINISH_MISSING;
        }
        *work |= g->prompt >= 0;
    }
    return DT_OK;
}

/* Ids outside the vocabulary cannot occur again. */
static void mark_seen(const searcher *s, const beam *b, int32_t n_ids, uint32_t *seen)
{
    const int64_t n_vocab = s->loop.opt->vocab_size;
    memset(seen, 0, (size_t)rules_ld(s->loop.opt) * sizeof *seen);
    for (int32_t i = 0; i < n_ids; i++)
        if (b->ids[i] >= 0 && b->ids[i] < n_vocab) seen[b->ids[i] / 32] |= 1u << b->ids[i] % 32;
}

static dt_err read_tokens(void *self)
{
    const searcher *s = self;
    const dt_constraint *only = s->loop.opt->constraint;
    const int64_t ld = rules_ld(s->loop.opt);
    memset(s->list_len, 0, (size_t)s->loop.opt->n_slots * sizeof *s->list_len);
    for (const group *g = s->groups; g < s->groups + s->n_groups; g++)
        for (int i = 0; g->prompt >= 0 && i < g->n_live; i++) {
            const int32_t row = decode_loop_row(&s->loop, g->live[i].slot);
            if (row >= 0 && s->seen) mark_seen(s, &g->live[i], g->n_ids, s->seen + row * ld);
            if (row >= 0 && s->allowed)
                rules_allow(s->loop.opt, g->live[i].ids, g->n_prompt, g->n_ids, s->allowed + row * ld);
            if (row >= 0 && only) only->allowed(only->self, g->live[i].state, &s->list_start[row], &s->list_len[row]);
        }
    const dt_top t = {.k = s->k,
                      .seen = s->seen,
                      .allowed = s->allowed,
                      .token = s->token,
                      .logp = s->logp,
                      .logp_temperature = s->loop.opt->logp_temperature,
                      .list_start = only ? s->list_start : NULL,
                      .list_len = s->list_len};
    return s->loop.decoder->top(s->loop.decoder->self, &s->loop.batch, &t);
}

/* Let the last tokens of a group follow when all of its beams have computed the others, so that one pass takes them. */
static void end_again(searcher *s, group *g)
{
    decode_slot *slots = s->loop.slots;
    for (int i = 0; i < g->n_live; i++)
        if (slots[g->live[i].slot].done < g->n_ids - 1) return;
    for (int i = 0; i < g->n_live; i++) slots[g->live[i].slot].held = 0;
    g->again = false;
}

static dt_err step_groups(void *self)
{
    searcher *s = self;
    const dt_decoder *d = s->loop.decoder;
    s->n_moves = 0;
    for (group *g = s->groups; g < s->groups + s->n_groups; g++) {
        if (g->prompt < 0) continue;
        if (g->again) end_again(s, g);
        /* each live beam has one token left, so one pass takes all of them */
        if (decode_loop_row(&s->loop, g->live[0].slot) >= 0) DT_TRY(step_group(s, g));
    }
    return s->n_moves > 0 ? d->move(d->self, s->n_moves, s->src, s->dst) : DT_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static dt_err check(const dt_beam_options *how, const dt_generate_options *opt)
{
    DT_CHECK(how->n_beams > 0 && how->n_return > 0 && how->n_return <= how->n_beams && isfinite(how->length_penalty),
             DT_ERR_USAGE, "internal: dt_beam_search: %d beams, %d to return, length penalty %g", how->n_beams,
             how->n_return, how->length_penalty);
    DT_EXPECT(opt->n_slots >= how->n_beams && opt->n_prompts >= opt->n_slots / how->n_beams);
    DT_EXPECT(opt->vocab_size > 0);
    return DT_OK;
}

static dt_err check_sequences(const searcher *s, dt_sequence *const *seqs, int n)
{
    for (int i = 0; i < n; i++) {
        DT_EXPECT(seqs[i]->n_prompt > 0 && seqs[i]->n_ids == seqs[i]->n_prompt && seqs[i]->n_ids <= seqs[i]->max_ids &&
                  seqs[i]->max_ids <= s->max_len);
        if (i % s->how.n_return == 0) DT_TRY(decode_loop_check(&s->opt, seqs[i]));
    }
    return DT_OK;
}

static dt_err open_group(searcher *s, group *g, int32_t *store, float *logps, int32_t len)
{
    const size_t n = (size_t)s->how.n_beams;
    *g = (group){.prompt = -1,
                 .live = calloc(n, sizeof *g->live),
                 .next = calloc(n, sizeof *g->next),
                 .done = calloc(n, sizeof *g->done)};
    DT_CHECK(g->live && g->next && g->done, DT_ERR_MEMORY, "out of memory for %d beams", s->how.n_beams);
    for (size_t i = 0; i < n; i++) {
        const int64_t at = (int64_t)(3 * i) * len;
        g->live[i].ids = store + at, g->live[i].logps = logps + at;
        g->next[i].ids = store + at + len, g->next[i].logps = logps + at + len;
        g->done[i].ids = store + at + 2 * len, g->done[i].logps = logps + at + 2 * len;
    }
    return DT_OK;
}

/* With several end tokens, that many best continuations of a beam may be unusable. */
static int n_best(const dt_beam_options *how, const dt_generate_options *opt)
{
    return how->n_beams * (1 + (opt->n_eos > 1 && !opt->constraint ? opt->n_eos : 1));
}

int32_t dt_beam_top(const dt_beam_options *how, const dt_generate_options *opt)
{
    return (int32_t)dt_min_i64(n_best(how, opt), opt->vocab_size);
}

static bool has_penalty(const dt_generate_options *opt) { return opt->sampling.repetition_penalty != 1; }

/* Log-probabilities, tokens and masks. */
static size_t lay_out(searcher *s, const dt_beam_options *how, const dt_generate_options *opt, void *block)
{
    const int64_t n = opt->n_slots, ld = rules_ld(opt);
    size_t used = 0;
    s->n_lists = has_penalty(opt) ? 2 : 1;
    s->k = dt_beam_top(how, opt);
    s->logp = dt_carve(block, &used, n * s->n_lists * s->k, sizeof *s->logp);
    s->token = dt_carve(block, &used, n * s->n_lists * s->k, sizeof *s->token);
    s->list_start = dt_carve(block, &used, n, sizeof *s->list_start);
    s->list_len = dt_carve(block, &used, n, sizeof *s->list_len);
    if (has_penalty(opt)) s->seen = dt_carve(block, &used, n * ld, sizeof *s->seen);
    if (rules_forbid(opt)) s->allowed = dt_carve(block, &used, n * ld, sizeof *s->allowed);
    return used;
}

static size_t lists_nbytes(const dt_beam_options *how, const dt_generate_options *opt)
{
    return lay_out(&(searcher){0}, how, opt, NULL);
}

/* Number of texts of beams and hypotheses. */
static size_t n_texts(const dt_beam_options *how, const dt_generate_options *opt)
{
    return (size_t)(opt->n_slots / how->n_beams) * 3 * (size_t)how->n_beams;
}

size_t dt_searcher_nbytes(const dt_beam_options *how, const dt_generate_options *opt, int32_t max_len)
{
    return decode_loop_nbytes(opt) + lists_nbytes(how, opt) +
           n_texts(how, opt) * (size_t)max_len * (sizeof(int32_t) + sizeof(float));
}

static dt_err open_lists(searcher *s, const dt_generate_options *opt)
{
    const size_t nbytes = lists_nbytes(&s->how, opt);
    s->lists = calloc(1, nbytes);
    DT_CHECK(s->lists, DT_ERR_MEMORY, "out of memory for the tokens of %d sequences", opt->n_slots);
    lay_out(s, &s->how, opt, s->lists);
    dt_ledger_add(opt->ledger, DT_MEM_DATA, DT_ON_HOST, nbytes);
    return DT_OK;
}

static dt_err open_texts(searcher *s)
{
    const int n_beams = s->how.n_beams, n_groups = s->opt.n_slots / n_beams;
    const size_t n = n_texts(&s->how, &s->opt) * (size_t)s->max_len;
    s->groups = calloc((size_t)n_groups, sizeof *s->groups);
    s->id_store = calloc(n, sizeof *s->id_store);
    s->logp_store = calloc(n, sizeof *s->logp_store);
    DT_CHECK(s->groups && s->id_store && s->logp_store, DT_ERR_MEMORY, "out of memory for %d beams of %d tokens",
             s->opt.n_slots, s->max_len);
    s->texts_nbytes = n * (sizeof *s->id_store + sizeof *s->logp_store);
    dt_ledger_add(s->opt.ledger, DT_MEM_DATA, DT_ON_HOST, s->texts_nbytes);
    for (; s->n_groups < n_groups; s->n_groups++) {
        const int64_t at = (int64_t)s->n_groups * 3 * n_beams * s->max_len;
        DT_TRY(open_group(s, &s->groups[s->n_groups], s->id_store + at, s->logp_store + at, s->max_len));
    }
    return DT_OK;
}

static dt_err open_searcher(searcher *s)
{
    const dt_generate_options *opt = &s->opt;
    DT_TRY(check(&s->how, opt));
    DT_TRY(decode_loop_open(&s->loop, &s->decoder, opt, NULL));
    s->n_best = n_best(&s->how, opt);
    s->best = calloc((size_t)s->n_best, sizeof *s->best);
    s->taken = calloc((size_t)s->how.n_beams, sizeof *s->taken);
    s->src = calloc((size_t)opt->n_slots, sizeof *s->src);
    s->dst = calloc((size_t)opt->n_slots, sizeof *s->dst);
    DT_CHECK(s->best && s->taken && s->src && s->dst, DT_ERR_MEMORY, "out of memory for %d beams", s->how.n_beams);
    DT_TRY(open_lists(s, opt));
    return open_texts(s);
}

dt_err dt_searcher_open(dt_searcher **out, const dt_decoder *d, const dt_beam_options *how,
                        const dt_generate_options *opt, int32_t max_len)
{
    searcher *s = calloc(1, sizeof *s);
    *out = NULL;
    DT_CHECK(s, DT_ERR_MEMORY, "out of memory for a search");
    s->decoder = *d, s->how = *how, s->opt = *opt, s->max_len = max_len;
    s->loop.opt = &s->opt;
    const dt_err err = open_searcher(s);
    if (err == DT_OK)
        *out = s;
    else
        dt_searcher_close(s);
    return err;
}

void dt_searcher_close(dt_searcher *s)
{
    if (!s) return;
    for (int i = 0; s->groups && i < s->opt.n_slots / s->how.n_beams; i++) {
        free(s->groups[i].live);
        free(s->groups[i].next);
        free(s->groups[i].done);
    }
    if (s->lists) dt_ledger_sub(s->opt.ledger, DT_MEM_DATA, DT_ON_HOST, lists_nbytes(&s->how, &s->opt));
    dt_ledger_sub(s->opt.ledger, DT_MEM_DATA, DT_ON_HOST, s->texts_nbytes);
    free(s->lists);
    free(s->groups);
    free(s->id_store);
    free(s->logp_store);
    free(s->best);
    free(s->taken);
    free(s->src);
    free(s->dst);
    decode_loop_close(&s->loop);
    free(s);
}

/* err: an earlier error of this rank, which is reported to the other ranks. */
static dt_err run(searcher *s, dt_sequence *const *seqs, int n_prompts, const dt_generate_options *opt, dt_err err,
                  dt_generate_stats *stats)
{
    const double start = dt_now_s();
    *stats = (dt_generate_stats){0};
    if (err == DT_OK) err = check_sequences(s, seqs, n_prompts * s->how.n_return);
    if (opt->lockstep) err = dt_comm_agree(opt->lockstep, err);
    if (err != DT_OK) return err;
    const decode_user user = {s, admit, read_tokens, step_groups};
    s->seqs = seqs, s->n_prompts = n_prompts, s->next = 0;
    s->loop.stats = stats;
    for (int i = 0; i < s->n_groups; i++) s->groups[i].prompt = -1;
    memset(s->loop.slots, 0, (size_t)(opt->n_slots + opt->n_prompts) * sizeof *s->loop.slots);
    err = decode_loop_run(&s->loop, &user);
    stats->seconds = dt_now_s() - start;
    return err;
}

dt_err dt_searcher_run(dt_searcher *s, dt_sequence *const *seqs, int n_prompts, dt_generate_stats *stats)
{
    return run(s, seqs, n_prompts, &s->opt, DT_OK, stats);
}

dt_err dt_beam_search(const dt_decoder *d, dt_sequence *const *seqs, int n_prompts, const dt_beam_options *how,
                      const dt_generate_options *opt, dt_generate_stats *stats)
{
    searcher *s = NULL;
    int32_t len = 1;
    for (int i = 0; i < n_prompts * how->n_return; i++)
        if (seqs[i]->max_ids > len) len = seqs[i]->max_ids;
    const dt_err opened = dt_searcher_open(&s, d, how, opt, len);
    const dt_err err = run(s, seqs, n_prompts, opt, opened, stats);
    dt_searcher_close(s);
    return err;
}
