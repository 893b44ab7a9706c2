/* beams.c - beam search (algorithms.md, appendix B) for many prompts at a time. Each prompt has a cache slot of its own
 * and n_beams slots for continuations.
 *
 * A beam's first child takes over its slot. For its other children, the beam's new tokens are copied to slots of beams
 * that ended; one copy serves all prompts. Scores are sums of log-probabilities in double. As in transformers' beam
 * search, but unlike its sampling, the repetition penalty is applied to log-probabilities, not to logits.
 *
 * The device returns the candidate tokens of each beam. If more candidates than the limit have equal scores, larger
 * logits and then lower ids are preferred. */
#include "generator.h"
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
static void offer(dt_generator *s, const candidate *c)
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
static dt_err offer_tokens(dt_generator *s, const group *g, int number)
{
    const beam *b = &g->live[number];
    const int64_t from = decode_loop_row(&s->loop, b->slot) * s->n_lists * s->k;
    DT_CHECK(!isnan(s->logp[from]), DT_ERR_NONFINITE,
             "a logit is NaN or inf, or all are -inf, so the model's weights or activations are not finite");
    for (int list = 0; list < s->n_lists; list++) {
        const double penalty = list == 0 ? 1 : s->opt.sampling.repetition_penalty;
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
static void add_hypothesis(dt_generator *s, group *g, const candidate *c, dt_finish finish)
{
    const int n_beams = s->opt.beams.n_beams;
    const double length = g->n_ids + 1 - g->n_prompt, score = c->score / pow(length, s->opt.beams.length_penalty);
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
static dt_finish ending_of(const dt_generator *s, const group *g, const candidate *c)
{
    int32_t *ids = g->live[c->beam].ids;
    ids[g->n_ids] = c->token;
    return decode_loop_ending(&s->opt, ids, g->n_prompt, g->n_ids + 1, g->max_ids);
}

/* Candidates that end become hypotheses if they are among the first n_beams. The first n_beams of the others stay live.
 * With a constraint a truncated sequence is not a valid result. */
static int sort_out(dt_generator *s, group *g)
{
    const int n_beams = s->opt.beams.n_beams;
    const dt_constraint *only = s->opt.constraint;
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
static int32_t first_slot(const dt_generator *s, const group *g)
{
    return (int32_t)(g - s->groups) * s->opt.beams.n_beams;
}
static int32_t prompt_slot(const dt_generator *s, const group *g) { return s->opt.n_slots + (int32_t)(g - s->groups); }

/* Assign cache slots to the next beams. The first child of a beam keeps its slot; others get the slot of an ended beam,
 * to which the parent's contents are copied. After the prompt all slots are free and all children start from the
 * prompt. */
static dt_err place_children(dt_generator *s, group *g, int n_next)
{
    const int n_beams = s->opt.beams.n_beams, first = first_slot(s, g);
    const dt_decoder *d = &s->decoder;
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
static void begin_again(dt_generator *s, const group *g, int n_next)
{
    const dt_decoder *d = &s->decoder;
    for (int i = 0; i < n_next; i++) d->keep(d->self, g->next[i].slot = first_slot(s, g) + i, 0);
}

/* Can no live beam beat the worst entry of a full list? Scores only decrease, so the present score is the upper
 * bound. */
static bool cannot_improve(const dt_generator *s, const group *g, int n_next)
{
    if (n_next == 0) return true;
    if (g->n_done < s->opt.beams.n_beams) return false;
    const double length = g->n_ids + 1 - g->n_prompt;
    return s->opt.beams.early_stopping ||
           g->next[0].score / pow(length, s->opt.beams.length_penalty) <= g->done[g->n_done - 1].score;
}

/* Fill the loop's slots of a group from its live beams. */
static void fill_slots(dt_generator *s, const group *g, int n_live, int32_t done)
{
    s->loop.slots[prompt_slot(s, g)] = (decode_slot){0};
    for (int i = 0; i < s->opt.beams.n_beams; i++) s->loop.slots[first_slot(s, g) + i] = (decode_slot){0};
    for (int i = 0; i < n_live; i++)
        s->loop.slots[g->live[i].slot] = (decode_slot){.ids = g->live[i].ids,
                                                       .n_ids = g->n_ids,
                                                       .done = done,
                                                       .held = g->again,
                                                       .n_prompt = g->n_prompt,
                                                       .of = s->seqs[g->prompt * s->opt.beams.n_return]};
}

static dt_err hand_back(dt_generator *s, group *g)
{
    const dt_generate_options *opt = &s->opt;
    for (int r = 0; r < s->opt.beams.n_return; r++) {
        dt_sequence *q = s->seqs[g->prompt * s->opt.beams.n_return + r];
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

static dt_err step_group(dt_generator *s, group *g)
{
    s->n_found = 0;
    for (int i = 0; i < g->n_live; i++) DT_TRY(offer_tokens(s, g, i));
    qsort(s->best, (size_t)s->n_found, sizeof *s->best, by_falling_score);
    DT_CHECK(s->n_found > 0 || g->n_done > 0 || !s->allowed, DT_ERR_USAGE,
             "prompt %d, token %d: no token is allowed: suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size "
             "and min_new_tokens together exclude all %" PRId64 "; relax one of them",
             g->prompt, g->n_ids, s->opt.vocab_size);
    const int n_next = sort_out(s, g);
    if (cannot_improve(s, g, n_next)) return hand_back(s, g);
    g->again = decode_loop_outgrows(&s->opt, g->n_ids, g->n_ids + 1);
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

static void begin_group(dt_generator *s, group *g, int prompt)
{
    const dt_sequence *q = s->seqs[prompt * s->opt.beams.n_return];
    const dt_decoder *d = &s->decoder;
    g->prompt = prompt;
    g->n_ids = g->n_prompt = q->n_prompt;
    g->max_ids = q->max_ids;
    g->n_live = 1;
    g->n_done = 0;
    g->again = false;
    memcpy(g->live[0].ids, q->ids, (size_t)q->n_prompt * sizeof *q->ids);
    memset(g->live[0].logps, 0, (size_t)q->n_prompt * sizeof *g->live[0].logps);
    g->live[0].score = g->live[0].logp = 0;
    g->live[0].state = s->opt.constraint ? s->opt.constraint->start : 0;
    g->live[0].slot = prompt_slot(s, g);
    d->keep(d->self, decode_loop_slot(&s->loop, g->live[0].slot), 0);
    fill_slots(s, g, 1, 0);
}

static dt_err admit(void *self, bool *work, bool *waits)
{
    dt_generator *s = self;
    for (group *g = s->groups; g < s->groups + s->n_groups; g++) {
        while (g->prompt < 0 && s->next < s->n_seqs / s->opt.beams.n_return) {
            const int prompt = s->next++;
            dt_sequence *const *q = s->seqs + prompt * s->opt.beams.n_return;
            if (q[0]->n_ids < q[0]->max_ids) {
                begin_group(s, g, prompt);
                continue;
            }
            for (int r = 0; r < s->opt.beams.n_return; r++)
                q[r]->finish = r == 0 ? DT_FINISH_LENGTH : DT_FINISH_MISSING;
        }
        *work |= g->prompt >= 0;
    }
    return DT_OK;
}

static dt_err read_tokens(void *self)
{
    const dt_generator *s = self;
    const dt_constraint *only = s->opt.constraint;
    const int64_t ld = rules_ld(&s->opt);
    memset(s->list_len, 0, (size_t)s->opt.n_slots * sizeof *s->list_len);
    for (const group *g = s->groups; g < s->groups + s->n_groups; g++)
        for (int i = 0; g->prompt >= 0 && i < g->n_live; i++) {
            const int32_t row = decode_loop_row(&s->loop, g->live[i].slot);
            if (row >= 0 && s->seen) rules_mark_seen(&s->opt, g->live[i].ids, g->n_ids, s->seen + row * ld);
            if (row >= 0 && s->allowed)
                rules_allow(&s->opt, g->live[i].ids, g->n_prompt, g->n_ids, s->allowed + row * ld);
            if (row >= 0 && only) only->allowed(only->self, g->live[i].state, &s->list_start[row], &s->list_len[row]);
        }
    const dt_top t = {.k = s->k,
                      .seen = s->seen,
                      .allowed = s->allowed,
                      .token = s->token,
                      .logp = s->logp,
                      .logp_temperature = s->opt.logp_temperature,
                      .list_start = only ? s->list_start : NULL,
                      .list_len = s->list_len};
    return s->decoder.top(s->decoder.self, &s->loop.batch, &t);
}

/* Let the last tokens of a group follow when all of its beams have computed the others, so that one pass takes them. */
static void end_again(dt_generator *s, group *g)
{
    decode_slot *slots = s->loop.slots;
    for (int i = 0; i < g->n_live; i++)
        if (slots[g->live[i].slot].done < g->n_ids - 1) return;
    for (int i = 0; i < g->n_live; i++) slots[g->live[i].slot].held = 0;
    g->again = false;
}

static dt_err step_groups(void *self)
{
    dt_generator *s = self;
    const dt_decoder *d = &s->decoder;
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

static int n_groups(const dt_generate_options *opt) { return opt->n_slots / opt->beams.n_beams; }

static void open_group(const dt_generator *s, group *g)
{
    const int n = s->opt.beams.n_beams;
    const int64_t number = g - s->groups, len = s->opt.max_len;
    *g = (group){.prompt = -1,
                 .live = s->beam_store + 2 * number * n,
                 .next = s->beam_store + (2 * number + 1) * n,
                 .done = s->done_store + number * n};
    for (int i = 0; i < n; i++) {
        const int64_t at = 3 * (number * n + i) * len;
        g->live[i].ids = s->id_store + at, g->live[i].logps = s->logp_store + at;
        g->next[i].ids = s->id_store + at + len, g->next[i].logps = s->logp_store + at + len;
        g->done[i].ids = s->id_store + at + 2 * len, g->done[i].logps = s->logp_store + at + 2 * len;
    }
}

/* With several end tokens, that many best continuations of a beam may be unusable. */
static int n_best(const dt_generate_options *opt)
{
    return opt->beams.n_beams * (1 + (opt->n_eos > 1 && !opt->constraint ? opt->n_eos : 1));
}

int32_t dt_beam_top(const dt_generate_options *opt) { return (int32_t)dt_min_i64(n_best(opt), opt->vocab_size); }

int beams_n_lists(const dt_generate_options *opt) { return opt->sampling.repetition_penalty != 1 ? 2 : 1; }

/* Tokens of the texts of beams and hypotheses. */
static size_t n_text_tok(const dt_generate_options *opt)
{
    return (size_t)n_groups(opt) * 3 * (size_t)opt->beams.n_beams * (size_t)opt->max_len;
}

size_t beams_nbytes(const dt_generate_options *opt)
{
    return opt->beams.n_beams ? n_text_tok(opt) * (sizeof(int32_t) + sizeof(float)) : 0;
}

dt_err beams_open(dt_generator *s)
{
    const dt_generate_options *opt = &s->opt;
    const dt_beam_options *how = &opt->beams;
    DT_EXPECT(how->n_return > 0 && how->n_return <= how->n_beams && isfinite(how->length_penalty));
    DT_EXPECT(opt->n_slots >= how->n_beams && opt->n_prompts >= n_groups(opt) && opt->vocab_size > 0 && !opt->feed);
    s->n_lists = beams_n_lists(opt), s->k = dt_beam_top(opt), s->n_best = n_best(opt);
    DT_ALLOC(s->best, s->n_best, "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->taken, how->n_beams, "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->src, opt->n_slots, "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->dst, opt->n_slots, "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->groups, n_groups(opt), "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->beam_store, 2 * n_groups(opt) * how->n_beams, "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->done_store, n_groups(opt) * how->n_beams, "out of memory for %d beams", how->n_beams);
    DT_ALLOC(s->id_store, n_text_tok(opt), "out of memory for beams of %d tokens", opt->max_len);
    DT_ALLOC(s->logp_store, n_text_tok(opt), "out of memory for beams of %d tokens", opt->max_len);
    for (; s->n_groups < n_groups(opt); s->n_groups++) open_group(s, &s->groups[s->n_groups]);
    return DT_OK;
}

void beams_close(dt_generator *s)
{
    free(s->groups), free(s->beam_store), free(s->done_store), free(s->id_store), free(s->logp_store);
    free(s->best), free(s->taken), free(s->src), free(s->dst);
}

decode_user beams_begin(dt_generator *s)
{
    for (int i = 0; i < s->n_groups; i++) s->groups[i].prompt = -1;
    return (decode_user){s, admit, read_tokens, step_groups};
}
