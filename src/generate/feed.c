/* feed.c - sequences that arrive while others run (dt_feed): each has its own choice of tokens, and may want the most
 * probable ones. The head runs once for each choice, and once for the lists. The choices are the same on all ranks, so
 * the ranks of a partitioned model run the head equally often. */
#include "generator.h"

#include <math.h>
#include <string.h>

void feed_lay_out(dt_generator *g, const dt_generate_options *opt, void *block, size_t *used)
{
    const int64_t n = opt->n_slots, k = opt->max_top > 0 ? opt->max_top : 1;
    g->fed = dt_carve(block, used, n, sizeof *g->fed);
    g->one_logp = dt_carve(block, used, n, sizeof *g->one_logp);
    g->top_logp = dt_carve(block, used, n * k, sizeof *g->top_logp);
    g->one_token = dt_carve(block, used, n, sizeof *g->one_token);
    g->top_token = dt_carve(block, used, n * k, sizeof *g->top_token);
    g->target_top = dt_carve(block, used, opt->max_tok * k, sizeof *g->target_top);
    g->target_logp = dt_carve(block, used, opt->max_tok, sizeof *g->target_logp);
    g->target_top_logp = dt_carve(block, used, opt->max_tok * k, sizeof *g->target_top_logp);
}

void feed_release(dt_generator *g)
{
    for (int32_t slot = 0; slot < g->opt.n_slots; slot++) {
        const dt_sequence *q = in_slot(g, slot);
        if (!q || q->finish == DT_FINISH_NONE) continue;
        g->seq_of[slot] = -1;
        g->loop.slots[slot].ids = NULL;
    }
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* Target `at` of the batch is token i of the prompt. A token in its list has the log-probability of the list. */
static void take_target(const dt_generator *g, dt_sequence *q, int32_t i, int32_t at, int32_t k)
{
    const int64_t from = (int64_t)at * k, to = (int64_t)i * q->n_top;
    float logp = g->target_logp[at];
    for (int32_t j = 0; j < k; j++)
        if (g->target_top[from + j] == q->ids[i]) logp = g->target_top_logp[from + j];
    if (q->logps) q->logps[i] = logp;
    for (int32_t j = 0; j < q->n_top && j < k; j++) {
        q->top_token[to + j] = g->target_top[from + j];
        q->top_logp[to + j] = g->target_top_logp[from + j];
    }
}

dt_err feed_read_prompts(dt_generator *g)
{
    const dt_batch *b = &g->loop.batch;
    const int32_t k = g->opt.feed->n_top > 0 ? g->opt.feed->n_top : 1;
    const dt_known top = {k, g->target_top, g->target_top_logp};
    const dt_err err = g->decoder.targets(g->decoder.self, b, g->target_logp, &top);
    if (err != DT_OK && err != DT_ERR_NONFINITE) return err;
    for (int32_t slot = 0; slot < g->opt.n_slots; slot++) {
        const int32_t row = g->loop.slots[slot].row;
        dt_sequence *q = in_slot(g, slot);
        if (!q || !q->of_prompt || row < 0) continue;
        for (int32_t at = b->seq_target[row]; at < b->seq_target[row + 1]; at++)
            if (err == DT_OK)
                take_target(g, q, b->pos[b->target_row[at]] + 1, at, k);
            else
                q->finish = DT_FINISH_FAILED;
    }
    if (err != DT_OK) dt_error_clear();
    return DT_OK;
}

/* ---- new tokens -------------------------------------------------------------------------------------------------- */

static const dt_sequence *drawn(const dt_generator *g, int32_t slot, int32_t *row)
{
    const dt_sequence *q = in_slot(g, slot);
    *row = q ? decode_loop_row(&g->loop, slot) : -1;
    return *row >= 0 ? q : NULL;
}

static dt_err draw_choice(dt_generator *g, const dt_draw *all, int choice)
{
    dt_draw d = *all;
    int32_t row;
    d.how = g->opt.feed->choice[choice];
    d.token = g->one_token;
    d.logp = all->logp ? g->one_logp : NULL;
    if (d.how.repetition_penalty == 1) d.seen = NULL;
    DT_TRY(g->decoder.draw(g->decoder.self, &g->loop.batch, &d));
    for (int32_t slot = 0; slot < g->opt.n_slots; slot++) {
        const dt_sequence *q = drawn(g, slot, &row);
        if (!q || q->choice != choice) continue;
        all->token[row] = g->one_token[row];
        if (all->logp) all->logp[row] = g->one_logp[row];
    }
    return DT_OK;
}

/* The lists of all rows have the length of the longest one wanted. */
static dt_err find_lists(dt_generator *g)
{
    const int32_t k = g->opt.feed->n_top;
    const dt_top t = {.k = k, .token = g->top_token, .logp = g->top_logp};
    int32_t row;
    DT_TRY(g->decoder.top(g->decoder.self, &g->loop.batch, &t));
    for (int32_t slot = 0; slot < g->opt.n_slots; slot++) {
        const dt_sequence *q = drawn(g, slot, &row);
        for (int32_t j = 0; q && j < q->n_top; j++) {
            q->top_token[(int64_t)q->n_ids * q->n_top + j] = g->top_token[(int64_t)row * k + j];
            q->top_logp[(int64_t)q->n_ids * q->n_top + j] = (float)g->top_logp[(int64_t)row * k + j];
        }
    }
    return DT_OK;
}

dt_err feed_draw(dt_generator *g, const dt_draw *draw)
{
    for (int i = 0; i < g->opt.feed->n_choices; i++) DT_TRY(draw_choice(g, draw, i));
    return g->opt.feed->n_top > 0 ? find_lists(g) : DT_OK;
}
