/* beams.c - beam search (algorithms.md, appendix B): many prompts at a time, each in a group of n_beams slots of the
 * cache.
 *
 * A beam's first child takes over its slot; what the other children need is copied to the slots of beams that died,
 * from the prompt's end on alone, as all slots of a group hold the same prompt. Scores are sums of log-probabilities in
 * double; as in transformers' beam search, but not in its sampling, the repetition penalty is applied to the
 * log-probabilities, not to the logits. */
#include "dtrain/generate.h"
#include "decode_loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct beam {
    int32_t *ids;
    /* sums over what follows the prompt: of log-probabilities after the penalty, and as the model gave them */
    double score, logp;
    int32_t slot, parent; /* parent: the slot that holds all but its last token; slot -1: it has none yet */
} beam;

typedef struct candidate {
    double score, logp;
    int beam;
    int32_t token;
} candidate;

typedef struct hypothesis {
    int32_t *ids, n_ids;
    double logp, score;
    dt_finish finish;
} hypothesis;

typedef struct group {
    int prompt; /* -1: free */
    int32_t n_ids, n_prompt, max_ids;
    int n_live, n_done;
    beam *live, *next; /* [n_beams]; next: scratch */
    hypothesis *done;  /* [n_beams] by falling score, of equal ones the earlier first */
    bool *filled;      /* [n_beams] does the slot hold the prompt? */
} group;

typedef struct searcher {
    decode_loop loop;
    const dt_beam_options *how;
    dt_sequence *const *seqs;
    int n_prompts, next;
    int n_groups;
    group *groups;
    float *logits; /* [n_slots, vocab_size] of the pass's sequences */
    size_t logits_nbytes;
    int32_t *id_store; /* [n_groups][3 n_beams][len] */
    candidate *best;   /* [n_best]: a heap with the worst on top, then sorted */
    int n_best, n_found;
    bool *mark; /* [vocab_size] */
} searcher;

/* ---- the best continuations -------------------------------------------------------------------------------------- */

static bool better(const candidate *a, const candidate *b)
{
    if (a->score != b->score) return a->score > b->score;
    return a->beam != b->beam ? a->beam < b->beam : a->token < b->token;
}

/* s->best is a heap with the worst candidate on top: at goes down until both children are better. */
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

/* Keep a candidate among the n_best of all; the heap is formed when it is full. */
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

/* Ids outside the vocabulary cannot come again. */
static void mark_seen(searcher *s, const int32_t *ids, int32_t n_ids, bool seen)
{
    for (int32_t i = 0; i < n_ids; i++)
        if (ids[i] >= 0 && ids[i] < s->loop.opt->vocab_size) s->mark[ids[i]] = seen;
}

/* Every token after one beam: score + log p, what has been seen being penalised (log p <= 0, so it is multiplied). */
static dt_err offer_tokens(searcher *s, const group *g, int number)
{
    const dt_generate_options *opt = s->loop.opt;
    const beam *b = &g->live[number];
    const float *logits = s->logits + decode_loop_row(&s->loop, b->slot) * opt->vocab_size;
    const double penalty = opt->sampling.repetition_penalty, sum = dt_log_sum_exp(logits, opt->vocab_size);
    DT_CHECK(fabs(sum) < INFINITY, DT_ERR_NONFINITE,
             "the logits' sum of exponentials is %g: the model's weights or activations are not finite", sum);
    mark_seen(s, b->ids, g->n_ids, true);
    for (int64_t v = 0; v < opt->vocab_size; v++) {
        const double logp = (double)logits[v] - sum, after = s->mark[v] ? logp * penalty : logp; /* never positive */
        const candidate c = {.score = b->score + after, .logp = b->logp + logp, .beam = number, .token = (int32_t)v};
        if (c.score > -INFINITY && (s->n_found < s->n_best || c.score >= s->best[0].score)) offer(s, &c);
    }
    mark_seen(s, b->ids, g->n_ids, false);
    return DT_OK;
}

/* ---- a step of a group ------------------------------------------------------------------------------------------- */

/* A finished text, scored by sum of log p / length^penalty; the n_beams best stay, in order. */
static void add_hypothesis(searcher *s, group *g, const candidate *c, dt_finish finish)
{
    const int n_beams = s->how->n_beams;
    const double length = g->n_ids + 1 - g->n_prompt, score = c->score / pow(length, s->how->length_penalty);
    if (g->n_done == n_beams && score <= g->done[n_beams - 1].score) return;
    hypothesis *last = &g->done[g->n_done == n_beams ? n_beams - 1 : g->n_done++];
    hypothesis h = {.ids = last->ids, .n_ids = g->n_ids + 1, .logp = c->logp, .score = score, .finish = finish};
    memcpy(h.ids, g->live[c->beam].ids, (size_t)g->n_ids * sizeof *h.ids);
    h.ids[g->n_ids] = c->token;
    int at = (int)(last - g->done);
    for (; at > 0 && g->done[at - 1].score < score; at--) g->done[at] = g->done[at - 1];
    g->done[at] = h;
}

/* Those that end become hypotheses when they are among the first n_beams; of the others the first n_beams live on. */
static int sort_out(searcher *s, group *g)
{
    const int n_beams = s->how->n_beams;
    const bool full = g->n_ids + 1 == g->max_ids;
    int n_next = 0;
    for (int i = 0; i < s->n_found && (n_next < n_beams || i < n_beams); i++) {
        const candidate *c = &s->best[i];
        const bool eos = is_end_of_text(s->loop.opt, c->token);
        if ((eos || full) && i < n_beams) add_hypothesis(s, g, c, eos ? DT_FINISH_EOS : DT_FINISH_LENGTH);
        if (eos || full || n_next == n_beams) continue;
        beam *b = &g->next[n_next++]; /* next keeps its own ids */
        memcpy(b->ids, g->live[c->beam].ids, (size_t)g->n_ids * sizeof *b->ids);
        b->ids[g->n_ids] = c->token;
        b->score = c->score;
        b->logp = c->logp;
        b->parent = g->live[c->beam].slot;
        b->slot = -1;
    }
    return n_next;
}

/* Slots of the cache for the next beams: the first child of a beam keeps its slot, others get a dead beam's, into which
 * the parent's keys and values are copied; what all share, the prompt, is copied once. */
static dt_err place_children(searcher *s, group *g, int n_next)
{
    const int n_beams = s->how->n_beams, first = (int)(g - s->groups) * n_beams;
    const dt_decoder *d = s->loop.decoder;
    bool *taken = s->mark; /* of the group's slots; false again below */
    dt_err err = DT_OK;
    for (int i = 0; i < n_next; i++) {
        beam *b = &g->next[i];
        if (taken[b->parent - first]) continue;
        taken[b->parent - first] = true;
        b->slot = b->parent;
    }
    for (int i = 0, k = 0; i < n_next && err == DT_OK; i++) { /* a slot that is free here was a dead beam's */
        beam *b = &g->next[i];
        if (b->slot >= 0) continue;
        while (taken[k]) k++;
        taken[k] = true;
        b->slot = first + k;
        err = d->copy(d->self, b->parent, b->slot, g->filled[k] ? g->n_prompt : 0);
        g->filled[k] = true;
    }
    memset(taken, 0, (size_t)n_beams * sizeof *taken);
    return err;
}

/* No living beam can become better than the worst of a full list: at its score now, which only falls. */
static bool cannot_improve(const searcher *s, const group *g, int n_next)
{
    if (n_next == 0) return true;
    if (g->n_done < s->how->n_beams) return false;
    const double length = g->n_ids + 1 - g->n_prompt;
    return s->how->early_stopping ||
           g->next[0].score / pow(length, s->how->length_penalty) <= g->done[g->n_done - 1].score;
}

static dt_err hand_back(searcher *s, group *g)
{
    const dt_generate_options *opt = s->loop.opt;
    const int n_beams = s->how->n_beams, first = (int)(g - s->groups) * n_beams;
    for (int r = 0; r < s->how->n_return; r++) {
        dt_sequence *q = s->seqs[g->prompt * s->how->n_return + r];
        q->finish = DT_FINISH_MISSING;
        if (r < g->n_done) {
            const hypothesis *h = &g->done[r];
            memcpy(q->ids, h->ids, (size_t)h->n_ids * sizeof *q->ids);
            q->n_ids = h->n_ids;
            q->logp = h->logp;
            q->score = h->score;
            q->finish = h->finish;
        }
        s->loop.stats->n_new_tok += q->n_ids - q->n_prompt;
        if (opt->on_token) DT_TRY(opt->on_token(opt->ctx, q));
    }
    for (int i = 0; i < n_beams; i++) s->loop.slots[first + i] = (decode_slot){0};
    g->prompt = -1;
    return DT_OK;
}

static dt_err step_group(searcher *s, group *g)
{
    const int n_beams = s->how->n_beams, first = (int)(g - s->groups) * n_beams;
    s->n_found = 0;
    for (int i = 0; i < g->n_live; i++) DT_TRY(offer_tokens(s, g, i));
    qsort(s->best, (size_t)s->n_found, sizeof *s->best, by_falling_score);
    const int n_next = sort_out(s, g);
    if (cannot_improve(s, g, n_next)) return hand_back(s, g);
    DT_TRY(place_children(s, g, n_next));
    beam *old = g->live;
    g->live = g->next;
    g->next = old;
    g->n_live = n_next;
    g->n_ids++;
    for (int i = 0; i < n_beams; i++) s->loop.slots[first + i].ids = NULL;
    for (int i = 0; i < n_next; i++)
        s->loop.slots[g->live[i].slot] =
            (decode_slot){.ids = g->live[i].ids, .n_ids = g->n_ids, .done = g->n_ids - 1, .n_prompt = g->n_prompt};
    return DT_OK;
}

/* ---- scheduling -------------------------------------------------------------------------------------------------- */

static void begin_group(searcher *s, group *g, int prompt)
{
    const int n_beams = s->how->n_beams, first = (int)(g - s->groups) * n_beams;
    const dt_sequence *q = s->seqs[prompt * s->how->n_return];
    const dt_decoder *d = s->loop.decoder;
    g->prompt = prompt;
    g->n_ids = g->n_prompt = q->n_prompt;
    g->max_ids = q->max_ids;
    g->n_live = 1;
    g->n_done = 0;
    memcpy(g->live[0].ids, q->ids, (size_t)q->n_prompt * sizeof *q->ids);
    g->live[0].score = g->live[0].logp = 0;
    g->live[0].slot = first;
    for (int i = 0; i < n_beams; i++) {
        d->keep(d->self, first + i, 0);
        g->filled[i] = i == 0;
        s->loop.slots[first + i] = (decode_slot){0};
    }
    s->loop.slots[first] = (decode_slot){.ids = g->live[0].ids, .n_ids = g->n_ids, .n_prompt = g->n_prompt};
}

static bool admit(void *self)
{
    searcher *s = self;
    bool any = false;
    for (group *g = s->groups; g < s->groups + s->n_groups; g++) {
        while (g->prompt < 0 && s->next < s->n_prompts) {
            const int prompt = s->next++;
            dt_sequence *const *q = s->seqs + prompt * s->how->n_return;
            if (q[0]->n_ids < q[0]->max_ids) {
                begin_group(s, g, prompt);
                continue;
            }
            for (int r = 0; r < s->how->n_return; r++) q[r]->finish = r == 0 ? DT_FINISH_LENGTH : DT_FINISH_MISSING;
        }
        any |= g->prompt >= 0;
    }
    return any;
}

static dt_err read_logits(void *self)
{
    const searcher *s = self;
    return s->loop.decoder->logits(s->loop.decoder->self, &s->loop.batch, s->logits);
}

static dt_err step_groups(void *self)
{
    searcher *s = self;
    for (group *g = s->groups; g < s->groups + s->n_groups; g++) {
        if (g->prompt < 0) continue;
        /* all live beams have one token left, so they pass together */
        if (decode_loop_row(&s->loop, g->live[0].slot) >= 0) DT_TRY(step_group(s, g));
    }
    return DT_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static dt_err check(const searcher *s, const dt_generate_options *opt)
{
    const dt_beam_options *how = s->how;
    DT_CHECK(how->n_beams > 0 && how->n_return > 0 && how->n_return <= how->n_beams && isfinite(how->length_penalty),
             DT_ERR_USAGE, "%d beams, %d to return, length penalty %g", how->n_beams, how->n_return,
             how->length_penalty);
    DT_CHECK(opt->n_slots >= how->n_beams, DT_ERR_ARG, "%d slots for %d beams", opt->n_slots, how->n_beams);
    DT_CHECK(opt->vocab_size > 0, DT_ERR_ARG, "a vocabulary of %" PRId64 " tokens", opt->vocab_size);
    for (int i = 0; i < s->n_prompts * how->n_return; i++)
        DT_CHECK(s->seqs[i]->n_prompt > 0 && s->seqs[i]->n_ids == s->seqs[i]->n_prompt &&
                     s->seqs[i]->n_ids <= s->seqs[i]->max_ids,
                 DT_ERR_ARG, "sequence %d: a prompt of %d tokens, %d tokens of %d", i, s->seqs[i]->n_prompt,
                 s->seqs[i]->n_ids, s->seqs[i]->max_ids);
    return DT_OK;
}

static dt_err open_group(searcher *s, group *g, int32_t *store, int32_t len)
{
    const size_t n = (size_t)s->how->n_beams;
    *g = (group){.prompt = -1,
                 .live = calloc(n, sizeof *g->live),
                 .next = calloc(n, sizeof *g->next),
                 .done = calloc(n, sizeof *g->done),
                 .filled = calloc(n, sizeof *g->filled)};
    DT_CHECK(g->live && g->next && g->done && g->filled, DT_ERR_MEMORY, "out of memory for %d beams", s->how->n_beams);
    for (size_t i = 0; i < n; i++) {
        g->live[i].ids = store + (int64_t)(3 * i) * len;
        g->next[i].ids = store + (int64_t)(3 * i + 1) * len;
        g->done[i].ids = store + (int64_t)(3 * i + 2) * len;
    }
    return DT_OK;
}

static dt_err open_searcher(searcher *s, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats)
{
    const int n_beams = s->how->n_beams;
    int32_t len = 1;
    DT_TRY(check(s, opt));
    DT_TRY(decode_loop_open(&s->loop, d, opt, stats));
    for (int i = 0; i < s->n_prompts; i++)
        if (s->seqs[i * s->how->n_return]->max_ids > len) len = s->seqs[i * s->how->n_return]->max_ids;
    /* with several tokens that end a sequence a beam may have as many best continuations that are no use */
    s->n_best = n_beams * (1 + (opt->n_eos > 1 ? opt->n_eos : 1));
    s->best = calloc((size_t)s->n_best, sizeof *s->best);
    s->mark = calloc((size_t)(opt->vocab_size > n_beams ? opt->vocab_size : n_beams), sizeof *s->mark);
    s->logits_nbytes = (size_t)opt->n_slots * (size_t)opt->vocab_size * sizeof *s->logits;
    s->logits = malloc(s->logits_nbytes);
    if (s->logits) dt_ledger_add(opt->ledger, DT_MEM_DATA, DT_ON_HOST, s->logits_nbytes);
    s->groups = calloc((size_t)(opt->n_slots / n_beams), sizeof *s->groups);
    s->id_store = calloc((size_t)(opt->n_slots / n_beams) * 3 * (size_t)n_beams, (size_t)len * sizeof *s->id_store);
    DT_CHECK(s->logits, DT_ERR_MEMORY, "out of memory for the logits of %d sequences (%" PRId64 " floats each)",
             opt->n_slots, opt->vocab_size);
    DT_CHECK(s->best && s->mark && s->groups && s->id_store, DT_ERR_MEMORY, "out of memory for %d beams of %d tokens",
             opt->n_slots, len);
    for (s->n_groups = 0; s->n_groups < opt->n_slots / n_beams; s->n_groups++)
        DT_TRY(open_group(s, &s->groups[s->n_groups], s->id_store + (int64_t)s->n_groups * 3 * n_beams * len, len));
    return DT_OK;
}

static void close_searcher(searcher *s)
{
    for (int i = 0; s->groups && i < s->loop.opt->n_slots / s->how->n_beams; i++) {
        free(s->groups[i].live);
        free(s->groups[i].next);
        free(s->groups[i].done);
        free(s->groups[i].filled);
    }
    if (s->logits) dt_ledger_sub(s->loop.opt->ledger, DT_MEM_DATA, DT_ON_HOST, s->logits_nbytes);
    free(s->logits);
    free(s->groups);
    free(s->id_store);
    free(s->best);
    free(s->mark);
    decode_loop_close(&s->loop);
}

dt_err dt_beam_search(const dt_decoder *d, dt_sequence *const *seqs, int n_prompts, const dt_beam_options *how,
                      const dt_generate_options *opt, dt_generate_stats *stats)
{
    searcher s = {.loop = {.opt = opt}, .how = how, .seqs = seqs, .n_prompts = n_prompts};
    *stats = (dt_generate_stats){0};
    const decode_user user = {&s, admit, read_logits, step_groups};
    const double start = dt_now_s();
    dt_err err = open_searcher(&s, d, opt, stats);
    if (opt->lockstep) err = dt_comm_agree(opt->lockstep, err);
    if (err == DT_OK) err = decode_loop_run(&s.loop, &user);
    stats->seconds = dt_now_s() - start;
    close_searcher(&s);
    return err;
}
