/* generate.c - generators, and generation with sampling on the device. When a sequence ends, the next one takes its
 * slot. */
#include "generator.h"
#include "rules.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static dt_err decode_by_model(void *self, const dt_batch *b, const int32_t *slot_of)
{
    return dt_model_decode(self, b, slot_of);
}
static dt_err draw_by_model(void *self, const dt_batch *b, const dt_draw *d) { return dt_model_draw(self, b, d); }
static dt_err top_of_model(void *self, const dt_batch *b, const dt_top *t) { return dt_model_top(self, b, t); }

static dt_err targets_of_model(void *self, const dt_batch *b, float *logp, const dt_known *top)
{
    DT_TRY(dt_model_logp(self, b, 1, logp, NULL, NULL));
    return dt_model_tops(self, b, 1, top);
}

static int32_t keep_in_model(void *self, int32_t slot, int32_t n_tok) { return dt_model_cache_keep(self, slot, n_tok); }
static dt_err share_in_model(void *self, int32_t slot, int32_t prompt, int32_t n_tok)
{
    return dt_model_cache_share(self, slot, prompt, n_tok);
}
static dt_err move_in_model(void *self, int32_t n, const int32_t *src, const int32_t *dst)
{
    return dt_model_cache_move(self, n, src, dst);
}

dt_decoder dt_decoder_of_model(dt_model *m)
{
    return (dt_decoder){.self = m,
                        .decode = decode_by_model,
                        .draw = draw_by_model,
                        .top = top_of_model,
                        .keep = keep_in_model,
                        .share = share_in_model,
                        .move = move_in_model,
                        .prompt_slot = dt_model_cache_prompt(m, 0),
                        .targets = targets_of_model};
}

/* ---- shared prompts ---------------------------------------------------------------------------------------------- */

/* The last prompt token is not shared: its pass yields the first token of each sequence. */
int32_t dt_sequence_shared(const dt_generate_options *opt, const dt_sequence *q)
{
    return opt->n_prompts ? decode_loop_whole(opt, q, q->n_prompt - 1) : 0;
}

static bool is_needed(const dt_generator *g, int32_t prompt)
{
    for (int32_t k = 0; k < g->opt.n_slots; k++)
        if (g->seq_of[k] >= 0 && g->prompt_of[k] == prompt) return true;
    return false;
}

/* The slot that holds or computes a sequence's prompt, otherwise an unused one; -1: none. */
static int32_t find_prompt(const dt_generator *g, const dt_sequence *q)
{
    int32_t unused = -1;
    for (int32_t p = 0; p < g->opt.n_prompts; p++) {
        if (q->prompt_number && g->prompt_number[p] == q->prompt_number) return p;
        if (unused < 0 && !is_needed(g, p)) unused = p;
    }
    return unused;
}

/* Assign a prompt slot to a sequence. The tokens computed there are the sequence's first tokens. */
static void take_prompt(dt_generator *g, int32_t slot, const dt_sequence *q)
{
    const int32_t p = find_prompt(g, q), at = g->opt.n_slots + p;
    g->prompt_of[slot] = p;
    if (p < 0 || (q->prompt_number && g->prompt_number[p] == q->prompt_number)) return;
    g->decoder.keep(g->decoder.self, decode_loop_slot(&g->loop, at), 0);
    g->prompt_number[p] = q->prompt_number;
    g->loop.slots[at] =
        (decode_slot){.ids = q->ids, .n_ids = dt_sequence_shared(&g->opt, q), .n_prompt = q->n_prompt, .of = q};
}

/* Start the sequence of a slot, unless its prompt is not computed yet. */
static dt_err begin(dt_generator *g, int32_t slot)
{
    const dt_decoder *d = g->loop.decoder;
    dt_sequence *q = g->seqs[g->seq_of[slot]];
    const int32_t n = dt_sequence_shared(&g->opt, q);
    if (n > 0) {
        if (g->prompt_of[slot] < 0) take_prompt(g, slot, q);
        const int32_t at = g->opt.n_slots + g->prompt_of[slot];
        if (at < g->opt.n_slots || g->loop.slots[at].done < n) return DT_OK;
        DT_TRY(d->share(d->self, slot, decode_loop_slot(&g->loop, at), n));
        q->n_cached = n;
    } else {
        q->n_cached =
            decode_loop_outgrows(&g->opt, q->n_cached, q->n_ids) ? 0 : decode_loop_whole(&g->opt, q, q->n_cached);
        q->n_cached = d->keep(d->self, slot, q->n_cached);
    }
    g->loop.slots[slot] =
        (decode_slot){.ids = q->ids, .n_ids = q->n_ids, .done = q->n_cached, .n_prompt = q->n_prompt, .of = q};
    return DT_OK;
}

/* Continue a sequence that has waited in its slot: its tokens are still in the cache. */
static void go_on(dt_generator *g, int32_t slot, dt_sequence *q)
{
    if (decode_loop_outgrows(&g->opt, q->n_cached, q->n_ids)) q->n_cached = g->decoder.keep(g->decoder.self, slot, 0);
    g->loop.slots[slot] =
        (decode_slot){.ids = q->ids, .n_ids = q->n_ids, .done = q->n_cached, .n_prompt = q->n_prompt, .of = q};
}

/* A sequence without a slot that need not wait any more; -1: none. */
static int find_parked(dt_generator *g)
{
    for (int i = 0; i < g->next && g->n_parked > 0; i++) {
        dt_sequence *q = g->seqs[i];
        if (!q->parked || q->finish == DT_FINISH_WAIT) continue;
        q->parked = false;
        g->n_parked--;
        if (q->finish == DT_FINISH_NONE) return i;
    }
    return -1;
}

/* Index of the next sequence; -1: none. Those of a feed have the index of their slot. */
static int next_sequence(dt_generator *g, int32_t slot)
{
    if (g->opt.feed) return (g->fed[slot] = g->opt.feed->next(g->opt.ctx)) ? slot : -1;
    return g->next < g->n_seqs ? g->next++ : -1;
}

/* Assign the slot to the next sequence that can still grow. */
static dt_err take_next(dt_generator *g, int32_t slot)
{
    const int parked = find_parked(g);
    g->prompt_of[slot] = -1;
    if (parked >= 0) {
        g->seq_of[slot] = parked;
        return begin(g, slot);
    }
    for (int i; (i = next_sequence(g, slot)) >= 0;) {
        dt_sequence *q = g->seqs[i];
        q->finish = q->n_ids >= q->max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE;
        if (q->finish != DT_FINISH_NONE) continue;
        g->seq_of[slot] = i;
        if (g->opt.constraint) g->state[slot] = g->opt.constraint->start;
        return begin(g, slot);
    }
    return DT_OK;
}

/* A sequence that waits for its prompt or has waited for on_wait. */
static dt_err wake(dt_generator *g, int32_t slot)
{
    dt_sequence *q = in_slot(g, slot);
    if (!q || g->loop.slots[slot].ids || q->finish == DT_FINISH_WAIT) return DT_OK;
    if (q->finish != DT_FINISH_NONE)
        g->seq_of[slot] = -1;
    else if (q->n_ids == q->n_prompt || q->n_cached == 0)
        return begin(g, slot);
    else
        go_on(g, slot, q);
    return DT_OK;
}

/* Give the slot of a waiting sequence to another one that can use it. */
static dt_err hand_over(dt_generator *g, int32_t slot)
{
    dt_sequence *q = in_slot(g, slot);
    if (!q || q->finish != DT_FINISH_WAIT) return DT_OK;
    const int was = g->seq_of[slot];
    const int32_t prompt = g->prompt_of[slot];
    g->seq_of[slot] = -1;
    DT_TRY(take_next(g, slot));
    if (g->seq_of[slot] < 0) return g->seq_of[slot] = was, g->prompt_of[slot] = prompt, DT_OK;
    q->parked = true;
    q->n_cached = 0;
    g->n_parked++;
    return DT_OK;
}

/* Slots that wait for a prompt are served first: the prompt's slot may be reused after others have started. */
static dt_err admit(void *self, bool *work, bool *waits)
{
    dt_generator *g = self;
    if (g->opt.feed) feed_release(g);
    if (g->opt.on_wait) DT_TRY(g->opt.on_wait(g->opt.ctx, g->loop.idle));
    for (int32_t k = 0; k < g->opt.n_slots; k++) DT_TRY(wake(g, k));
    for (int32_t k = 0; k < g->opt.n_slots; k++)
        if (g->seq_of[k] < 0) DT_TRY(take_next(g, k));
    for (int32_t k = 0; k < g->opt.n_slots; k++) DT_TRY(hand_over(g, k));
    for (int32_t k = 0; k < g->opt.n_slots + g->opt.n_prompts; k++)
        *work |= g->loop.slots[k].ids && g->loop.slots[k].n_ids > g->loop.slots[k].done;
    *work |= g->opt.feed && g->opt.feed->more;
    *waits = g->n_parked > 0;
    for (int32_t k = 0; k < g->opt.n_slots; k++) *waits |= g->seq_of[k] >= 0;
    return DT_OK;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

/* Sample a token for each sequence of the pass; those of incomplete prompts are discarded. */
static dt_err draw_tokens(void *self)
{
    dt_generator *g = self;
    const dt_generate_options *opt = g->loop.opt;
    const dt_constraint *only = opt->constraint;
    if (opt->feed && opt->feed->of_prompt) DT_TRY(feed_read_prompts(g));
    memset(g->uniform, 0, (size_t)opt->n_slots * sizeof *g->uniform);
    memset(g->list_len, 0, (size_t)opt->n_slots * sizeof *g->list_len);
    if (g->allowed) memset(g->nothing_left, 0, (size_t)opt->n_slots);
    for (int32_t k = 0; k < opt->n_slots; k++) {
        const int32_t row = g->seq_of[k] < 0 ? -1 : decode_loop_row(&g->loop, k);
        if (row < 0) continue;
        const dt_sequence *q = g->seqs[g->seq_of[k]];
        const uint64_t seed = opt->feed ? q->seed : opt->sampling.seed;
        g->uniform[row] = dt_sampler_uniform(seed, q->number, (uint64_t)q->n_ids);
        if (g->seen) rules_mark_seen(opt, q->ids, q->n_ids, g->seen + row * rules_ld(opt));
        if (g->allowed && !rules_allow(opt, q->ids, q->n_prompt, q->n_ids, g->allowed + row * rules_ld(opt)))
            g->nothing_left[row] = true;
        if (only) only->allowed(only->self, g->state[k], &g->list_start[row], &g->list_len[row]);
    }
    const dt_draw d = {.how = dt_sampling_choice(&opt->sampling),
                       .uniform = g->uniform,
                       .seen = g->seen,
                       .allowed = g->allowed,
                       .token = g->token,
                       .logp = g->logp,
                       .logp_temperature = opt->logp_temperature,
                       .list_start = only ? g->list_start : NULL,
                       .list_len = g->list_len};
    return opt->feed ? feed_draw(g, &d) : g->decoder.draw(g->decoder.self, &g->loop.batch, &d);
}

static dt_err append_token(dt_generator *g, dt_sequence *q, int32_t row)
{
    const dt_generate_options *opt = g->loop.opt;
    const int32_t token = g->token[row];
    if (opt->feed && (token < 0 || (g->allowed && g->nothing_left[row]) || q->finish != DT_FINISH_NONE)) {
        q->finish = DT_FINISH_FAILED; /* ends only this sequence */
        return opt->on_token(opt->ctx, q);
    }
    DT_CHECK(!g->allowed || !g->nothing_left[row], DT_ERR_USAGE,
             "sequence %" PRIu64 ", token %d: no token is allowed: suppress_tokens, begin_suppress_tokens, "
             "no_repeat_ngram_size and min_new_tokens together exclude all %" PRId64 "; relax one of them",
             q->number, q->n_ids, opt->vocab_size);
    DT_CHECK(token >= 0, DT_ERR_NONFINITE,
             "sequence %" PRIu64
             ", token %d: a logit is NaN or inf, or all are -inf, so the model's weights or activations are not finite",
             q->number, q->n_ids);
    if (g->logp) {
        if (q->logps) q->logps[q->n_ids] = (float)g->logp[row];
        q->logp += g->logp[row];
    }
    q->ids[q->n_ids++] = token;
    g->loop.stats->n_new_tok++;
    q->finish = decode_loop_ending(opt, q->ids, q->n_prompt, q->n_ids, q->max_ids);
    return opt->on_token ? opt->on_token(opt->ctx, q) : DT_OK;
}

/* Append to each sequence whose last token was processed. */
static dt_err append_tokens(void *self)
{
    dt_generator *g = self;
    for (int32_t k = 0; k < g->loop.opt->n_slots; k++) {
        decode_slot *s = &g->loop.slots[k];
        if (g->seq_of[k] < 0 || !s->ids) continue;
        dt_sequence *q = g->seqs[g->seq_of[k]];
        q->n_cached = s->done;
        const int32_t row = decode_loop_row(&g->loop, k);
        if (row < 0) continue;
        DT_TRY(append_token(g, q, row));
        const dt_constraint *only = g->opt.constraint;
        if (only) g->state[k] = only->next(only->self, g->state[k], g->token[row]);
        s->n_ids = q->n_ids;
        if (q->finish == DT_FINISH_NONE) {
            if (decode_loop_outgrows(&g->opt, s->done, s->n_ids))
                g->decoder.keep(g->decoder.self, k, s->done = q->n_cached = 0);
            continue;
        }
        if (q->finish != DT_FINISH_WAIT) g->seq_of[k] = -1;
        s->ids = NULL; /* the slot's cache is kept for a conversation that continues */
    }
    return DT_OK;
}

static dt_err check(dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt)
{
    const int n_beams = opt->beams.n_beams, each = n_beams ? opt->beams.n_return : 1;
    for (int i = 0; i < n_seqs; i++) {
        DT_EXPECT(seqs[i]->n_prompt > 0 && seqs[i]->n_ids == seqs[i]->n_prompt && seqs[i]->n_ids <= seqs[i]->max_ids &&
                  seqs[i]->n_cached >= 0 && seqs[i]->n_cached < seqs[i]->n_ids &&
                  (seqs[i]->n_cached == 0 || (opt->n_slots == 1 && opt->n_prompts == 0)));
        DT_EXPECT(n_beams == 0 || seqs[i]->max_ids <= opt->max_len);
        if (i % each == 0) DT_TRY(decode_loop_check(opt, seqs[i]));
    }
    return DT_OK;
}

static size_t lay_out(dt_generator *g, const dt_generate_options *opt, void *block)
{
    const bool beams = opt->beams.n_beams > 0;
    const int64_t n = opt->n_slots, ld = rules_ld(opt), n_tok = beams ? n * beams_n_lists(opt) * dt_beam_top(opt) : n;
    size_t used = 0;
    if (opt->logp || beams) g->logp = dt_carve(block, &used, n_tok, sizeof *g->logp);
    g->token = dt_carve(block, &used, n_tok, sizeof *g->token);
    g->list_start = dt_carve(block, &used, n, sizeof *g->list_start);
    g->list_len = dt_carve(block, &used, n, sizeof *g->list_len);
    if (!beams) g->uniform = dt_carve(block, &used, n, sizeof *g->uniform);
    if (!beams) g->state = dt_carve(block, &used, n, sizeof *g->state);
    if (opt->feed) feed_lay_out(g, opt, block, &used);
    if (opt->sampling.repetition_penalty != 1) g->seen = dt_carve(block, &used, n * ld, sizeof *g->seen);
    if (!rules_forbid(opt)) return used;
    g->allowed = dt_carve(block, &used, n * ld, sizeof *g->allowed);
    if (!beams) g->nothing_left = dt_carve(block, &used, n, sizeof *g->nothing_left);
    return used;
}

static size_t draws_nbytes(const dt_generate_options *opt) { return lay_out(&(dt_generator){0}, opt, NULL); }
static size_t own_nbytes(const dt_generate_options *opt) { return draws_nbytes(opt) + beams_nbytes(opt); }

size_t dt_generator_nbytes(const dt_generate_options *opt) { return decode_loop_nbytes(opt) + own_nbytes(opt); }

static dt_err open_parts(dt_generator *g)
{
    const dt_generate_options *opt = &g->opt;
    const int32_t n = opt->n_slots;
    const bool beams = opt->beams.n_beams > 0;
    DT_EXPECT(opt->recompute_at == 0 || opt->n_prompts == 0 || beams);
    DT_EXPECT(!opt->feed || (opt->on_token && !opt->lockstep && !opt->constraint && opt->n_prompts == 0));
    if (!beams) DT_TRY(dt_sampling_check(&opt->sampling));
    DT_TRY(decode_loop_open(&g->loop, &g->decoder, opt, NULL));
    g->seq_of = malloc((size_t)n * sizeof *g->seq_of);
    g->prompt_of = malloc((size_t)n * sizeof *g->prompt_of);
    g->prompt_number = malloc((size_t)(opt->n_prompts + 1) * sizeof *g->prompt_number);
    g->draws = calloc(1, draws_nbytes(opt));
    DT_CHECK(g->seq_of && g->prompt_of && g->prompt_number && g->draws, DT_ERR_MEMORY, "out of memory for %d slots", n);
    lay_out(g, opt, g->draws);
    dt_ledger_add(opt->ledger, DT_MEM_DATA, DT_ON_HOST, own_nbytes(opt));
    return beams ? beams_open(g) : DT_OK;
}

dt_err dt_generator_open(dt_generator **out, const dt_decoder *d, const dt_generate_options *opt)
{
    dt_generator *g = calloc(1, sizeof *g);
    *out = NULL;
    DT_CHECK(g, DT_ERR_MEMORY, "out of memory for a generator");
    g->decoder = *d;
    g->opt = *opt;
    g->loop.opt = &g->opt;
    const dt_err err = open_parts(g);
    if (err == DT_OK)
        *out = g;
    else
        dt_generator_close(g);
    return err;
}

void dt_generator_close(dt_generator *g)
{
    if (!g) return;
    if (g->token) dt_ledger_sub(g->opt.ledger, DT_MEM_DATA, DT_ON_HOST, own_nbytes(&g->opt));
    if (g->opt.beams.n_beams > 0) beams_close(g);
    decode_loop_close(&g->loop);
    free(g->draws);
    free(g->prompt_of);
    free(g->prompt_number);
    free(g->seq_of);
    free(g);
}

/* err: an earlier error of this rank, which is reported to the other ranks. */
static dt_err run(dt_generator *g, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt, dt_err err,
                  dt_generate_stats *stats)
{
    *stats = (dt_generate_stats){0};
    const double start = dt_now_s();
    if (err == DT_OK) err = check(seqs, n_seqs, opt);
    if (opt->lockstep) err = dt_comm_agree(opt->lockstep, err);
    if (err != DT_OK) return err;
    g->seqs = opt->feed ? g->fed : seqs, g->n_seqs = n_seqs, g->next = g->n_parked = 0;
    g->loop.stats = stats;
    for (int32_t k = 0; k < opt->n_slots; k++) g->seq_of[k] = -1;
    memset(g->prompt_number, 0, (size_t)opt->n_prompts * sizeof *g->prompt_number);
    memset(g->loop.slots, 0, (size_t)(opt->n_slots + opt->n_prompts) * sizeof *g->loop.slots);
    const decode_user user =
        opt->beams.n_beams > 0 ? beams_begin(g) : (decode_user){g, admit, draw_tokens, append_tokens};
    err = decode_loop_run(&g->loop, &user);
    stats->seconds = dt_now_s() - start;
    return err;
}

dt_err dt_generator_run(dt_generator *g, dt_sequence *const *seqs, int n_seqs, dt_generate_stats *stats)
{
    return run(g, seqs, n_seqs, &g->opt, DT_OK, stats);
}

dt_err dt_generate(const dt_decoder *d, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt,
                   dt_generate_stats *stats)
{
    dt_generator *g = NULL;
    dt_generate_options own = *opt;
    for (int i = 0; i < n_seqs; i++)
        if (seqs[i]->max_ids > own.max_len) own.max_len = seqs[i]->max_ids;
    const dt_err opened = dt_generator_open(&g, d, &own);
    const dt_err err = run(g, seqs, n_seqs, &own, opened, stats);
    dt_generator_close(g);
    return err;
}
