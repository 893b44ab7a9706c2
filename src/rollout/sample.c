/* sample.c - generate completions with the model in training.
 *
 * Each rank generates an equal share of the rows with its own passes. About once a second, at the end of a pass, the
 * ranks vote: on errors, stop requests and progress. A rank that has finished its share waits there. At stage 3, with
 * parameters gathered for each pass, a pass is a collective. All ranks then run the same number of passes and agree
 * before each. */
#include "rollout_private.h"
#include <math.h>
#include <string.h>

struct meeting {
    dt_rollout *r;
    dt_task *t;
    int64_t from, n; /* this rank's rows */
    int64_t n_all;   /* rows of all ranks */
    double begin_s, met_s, every_s;
    bool over; /* all ranks know the final result */
};
typedef struct meeting meeting;

/* ---- progress ---------------------------------------------------------------------------------------------------- */

/* Count finished completions, generated tokens, and the maximum number of tokens. */
static void count_done(const meeting *m, int64_t *n_done, int64_t *n_tok, int64_t *most)
{
    *n_done = *n_tok = *most = 0;
    for (int64_t k = 0; k < m->n; k++) {
        const dt_sequence *q = &m->r->sequence[k];
        const bool done = q->finish != DT_FINISH_NONE && q->finish != DT_FINISH_WAIT;
        *n_done += done;
        *n_tok += q->n_ids - q->n_prompt;
        *most += (done ? q->n_ids : q->max_ids) - q->n_prompt;
    }
}

void rollout_show_progress(const dt_task *t, const char *what, double begin_s, int64_t n_done, int64_t n, int64_t n_tok,
                           double share)
{
    char text[160], rate[40] = "", number[24];
    const double s = dt_now_s() - begin_s;
    if (!t->report) return;
    if (n_tok >= 0 && s > 0) snprintf(rate, sizeof rate, "  %s tok/s", dt_format_count((double)n_tok / s, number));
    snprintf(text, sizeof text, "%lld of %lld %s%s  left %s", (long long)n_done, (long long)n, what, rate,
             dt_format_duration(share > 0 ? s * (1 - share) / share : -1, number));
    dt_report_activity(t->report, atomic_load(&t->phase->step), text);
}

/* ---- votes ------------------------------------------------------------------------------------------------------- */

bool rollout_is_asked_to_stop(const dt_task *t)
{
    if (dt_phase_poll(t->phase) == DT_OK) return false;
    dt_error_clear();
    return true;
}

static dt_err stopped(void) { return dt_fail(DT_ERR_STOP, "stopped during the generation of completions"); }

static dt_err meet(meeting *m, dt_err err)
{
    dt_vote_value values[] = {{.kind = DT_VOTE_COUNT}, {.kind = DT_VOTE_COUNT}, {.kind = DT_VOTE_COUNT}};
    int64_t *const n_done = &values[0].count, *const n_tok = &values[1].count, *const most = &values[2].count;
    dt_vote vote = {.err = err, .stop = rollout_is_asked_to_stop(m->t), .values = values, .n_values = 3};
    if (dt_comm_first_of_team(m->t->comm)) count_done(m, n_done, n_tok, most); /* its other ranks generate the same */
    dt_phase_enter(m->t->phase, "rollout", "agree");
    m->over = true;
    DT_TRY(dt_comm_vote(m->t->comm, &vote));
    m->met_s = dt_now_s();
    if (vote.err != DT_OK) return (dt_err)vote.err;
    if (vote.stop) return dt_comm_agree(m->t->comm, stopped());
    m->over = *n_done == m->n_all;
    if (!m->over)
        rollout_show_progress(m->t, "completions", m->begin_s, *n_done, m->n_all, *n_tok,
                              (double)*n_tok / (double)*most);
    return DT_OK;
}

/* Called before each pass. */
static dt_err on_pass(void *ctx)
{
    meeting *m = ctx;
    if (m->r->generate.lockstep) return rollout_is_asked_to_stop(m->t) ? stopped() : DT_OK;
    return dt_now_s() - m->met_s < m->every_s ? DT_OK : meet(m, DT_OK);
}

dt_err rollout_on_pass(void *r) { return on_pass(((dt_rollout *)r)->meeting); }

dt_err rollout_on_token(void *self, dt_sequence *q)
{
    dt_rollout *r = self;
    return q->finish == DT_FINISH_NONE ? DT_OK : rollout_end_turn(r, r->meeting->from, q);
}

dt_err rollout_on_wait(void *self, bool idle)
{
    static const double nap_s = 0.02;
    dt_rollout *r = self;
    const double begin_s = dt_now_s();
    if (idle) dt_phase_enter(r->meeting->t->phase, "rollout", r->opt.turns->name);
    const dt_err err = rollout_take_answers(r, r->meeting->from, idle ? nap_s : 0);
    if (idle) r->turn_seconds += dt_now_s() - begin_s;
    return err;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Set up the sequences of rows first .. first+n-1; `begin` is the first row of the prompts. */
static dt_err set_up(dt_rollout *r, int64_t begin, int64_t first, int64_t n)
{
    r->first_sampled = first;
    for (int64_t k = 0; k < n; k++) {
        const dt_rollout_row *row = &r->row[first + k];
        if (r->observed) memset(r->observed + (first + k) * r->observed_ld, 0, (size_t)r->observed_ld);
        r->sequence[k] = (dt_sequence){.number = row->number,
                                       .ids = r->ids + (first + k) * r->ids_ld,
                                       .n_prompt = row->n_prompt,
                                       .n_ids = row->n_prompt,
                                       .max_ids = row->n_prompt + r->opt.max_completion,
                                       .logps = r->logps + k * r->max_len,
                                       .prompt_number = (first + k - begin) / rollout_n_drawn(r) + 1};
        r->sequences[k] = &r->sequence[k];
        DT_TRY(rollout_count_images(r, row, r->n_cells ? r->n_cells + k * r->max_images : NULL, &r->sequence[k]));
    }
    return DT_OK;
}

/* Copy this rank's completions to the rows. */
static void take(dt_rollout *r, int64_t first, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        const dt_sequence *q = &r->sequence[k];
        dt_rollout_row *row = &r->row[first + k];
        row->n_new = q->n_ids - q->n_prompt - row->n_observed;
        row->ended = q->finish == DT_FINISH_EOS;
        rollout_take_sampled(r, first + k, q->logps + q->n_prompt);
    }
}

/* Exchange rows first .. first+n-1 of an array. This rank provides rows from .. end-1; all ranks receive all rows. */
static dt_err join(const dt_axis *data, void *x, size_t row_nbytes, int64_t first, int64_t n, int64_t from, int64_t end)
{
    char *at = x;
    memset(at + (size_t)first * row_nbytes, 0, (size_t)(from - first) * row_nbytes);
    memset(at + (size_t)end * row_nbytes, 0, (size_t)(first + n - end) * row_nbytes);
    return dt_comm_join_host(data, at + (size_t)first * row_nbytes, (size_t)n * row_nbytes);
}

/* Exchange n rows starting at `first`: rows, ids and the sampler's log-probabilities. */
static dt_err share(dt_rollout *r, dt_task *t, int64_t first, int64_t n, int64_t from, int64_t end)
{
    dt_phase_enter(t->phase, "rollout", "share");
    DT_TRY(dt_comm_agree(t->comm, dt_fault("rollout.share")));
    DT_TRY(join(t->data, r->row, sizeof *r->row, first, n, from, end));
    DT_TRY(join(t->data, r->ids, (size_t)r->ids_ld * sizeof *r->ids, first, n, from, end));
    if (r->observed) DT_TRY(join(t->data, r->observed, (size_t)r->observed_ld, first, n, from, end));
    return join(t->data, r->sampled.at, (size_t)r->sampled.ld * sizeof(float), first, n, from, end);
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* Gather parameters that stay gathered, once for all passes, in a pass without tokens. */
static dt_err gather(dt_rollout *r, dt_task *t)
{
    dt_batch *b = &r->batch;
    if (t->stage < 3 || r->generate.lockstep) return DT_OK;
    dt_images_clear(b);
    b->n_tok = b->n_seq = 0;
    b->n_samples = 0;
    b->seq_start[0] = 0;
    dt_batch_finish(b);
    DT_TRY(dt_model_decode(r->model, b, NULL));
    return dt_model_draw(r->model, b, &(dt_draw){.how = dt_sampling_choice(&r->opt.sampling)});
}

static dt_err complete(meeting *m)
{
    dt_rollout *r = m->r;
    dt_generate_stats stats;
    return dt_generator_run(r->generator, r->sequences, (int)m->n, &stats);
}

static dt_err generate(meeting *m)
{
    dt_rollout *r = m->r;
    DT_TRY(gather(r, m->t));
    r->meeting = m;
    dt_err err = complete(m);
    r->meeting = NULL;
    if (r->generate.lockstep && err != DT_OK) return err; /* the same on all ranks, or it ends the job */
    if (err == DT_OK) err = dt_fault("rollout.generate");
    if (r->generate.lockstep) return dt_comm_agree(m->t->comm, err);
    while (!m->over) err = meet(m, err);
    return err;
}

dt_err rollout_sample(dt_rollout *r, dt_task *t, int64_t first, int64_t all)
{
    const int64_t unit = rollout_unit(r), n = all - first,
                  from = first + unit * dt_rollout_first_of(n / unit, t->data->rank, t->data->size),
                  end = first + unit * dt_rollout_first_of(n / unit, t->data->rank + 1, t->data->size);
    const double now_s = dt_now_s();
    meeting m = {.r = r,
                 .t = t,
                 .from = from,
                 .n = end - from,
                 .n_all = n,
                 .begin_s = now_s,
                 .met_s = now_s,
                 .every_s = fmin(1, t->cfg->comm_timeout / 8)};
    dt_phase_enter(t->phase, "rollout", "");
    DT_TRY(dt_comm_agree(t->comm, set_up(r, first, from, end - from)));
    DT_TRY(generate(&m));
    take(r, from, end - from);
    return share(r, t, first, n, from, end);
}
