/* turns.c - a completion of several turns, on the rank that generates it. */
#include "rollout_private.h"
#include <math.h>
#include <string.h>

/* The row has its tokens so far, so that the environment can read them. */
dt_err rollout_end_turn(dt_rollout *r, int64_t first, dt_sequence *q)
{
    const int64_t k = q - r->sequence;
    dt_rollout_row *row = &r->row[first + k];
    const int32_t before = row->n_turns == 0 ? 0 : r->turn[k].from;
    row->n_new = q->n_ids - q->n_prompt - row->n_observed;
    row->ended = q->finish == DT_FINISH_EOS;
    row->n_turns++;
    r->turn[k] = (dt_turn){.row = first + k,
                           .from = before,
                           .n_tok = dt_rollout_n_completion(row) - before,
                           .last = !row->ended || (r->opt.turns->max_turns && row->n_turns >= r->opt.turns->max_turns)};
    q->finish = DT_FINISH_WAIT;
    return r->opt.turns->ask(r->opt.turns->self, r, &r->turn[k]);
}

/* An observation that does not fit is left out, and the completion ends with the model's turn. */
static void take_answer(dt_rollout *r, int64_t first, const dt_observation *o)
{
    const int64_t k = o->row - first;
    dt_sequence *q = &r->sequence[k];
    dt_rollout_row *row = &r->row[o->row];
    row->n_calls += o->n_calls, row->n_failures += o->n_failures;
    if (!isnan(o->reward)) row->reward = isnan(row->reward) ? o->reward : row->reward + o->reward;
    q->finish = row->ended ? DT_FINISH_EOS : DT_FINISH_LENGTH;
    if (r->turn[k].last || o->n == 0 || o->n > q->max_ids - q->n_ids) return;
    memcpy(q->ids + q->n_ids, o->ids, (size_t)o->n * sizeof *o->ids);
    memset(r->observed + o->row * r->observed_ld + q->n_ids - q->n_prompt, 1, (size_t)o->n);
    q->n_ids += o->n;
    row->n_observed += o->n;
    r->turn[k].from = q->n_ids - q->n_prompt;
    row->ended = q->n_ids < q->max_ids;
    q->finish = row->ended ? DT_FINISH_NONE : DT_FINISH_LENGTH;
}

dt_err rollout_take_answers(dt_rollout *r, int64_t first, double most_s)
{
    for (bool any = true; any; most_s = 0) {
        dt_observation o;
        DT_TRY(r->opt.turns->answer(r->opt.turns->self, most_s, &o, &any));
        if (any) take_answer(r, first, &o);
    }
    return DT_OK;
}

void rollout_take_sampled(dt_rollout *r, int64_t row, const float *logps)
{
    float *to = r->sampled.at + row * r->sampled.ld;
    for (int32_t k = 0; k < dt_rollout_n_completion(&r->row[row]); k++)
        if (!dt_rollout_is_observed(r, row, k)) *to++ = logps[k];
}
