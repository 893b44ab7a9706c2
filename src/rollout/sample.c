/* sample.c - completions by the model in training.
 *
 * Each rank has an equal share of the rows that are to be made. */
#include "rollout_private.h"
#include <string.h>

static void set_up(dt_rollout *r, int64_t first, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        const dt_rollout_row *row = &r->row[first + k];
        r->sequence[k] = (dt_sequence){.number = row->number,
                                       .ids = r->ids + (first + k) * r->ids_ld,
                                       .n_prompt = row->n_prompt,
                                       .n_ids = row->n_prompt,
                                       .max_ids = row->n_prompt + r->opt.max_completion,
                                       .logps = r->logps + k * r->max_len};
        r->sequences[k] = &r->sequence[k];
    }
}

/* What this rank has made, to the rows. */
static void take(dt_rollout *r, int64_t first, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        const dt_sequence *q = &r->sequence[k];
        dt_rollout_row *row = &r->row[first + k];
        row->n_new = q->n_ids - q->n_prompt;
        row->ended = q->finish == DT_FINISH_EOS;
        memcpy(r->sampled.at + (first + k) * r->sampled.ld, q->logps + q->n_prompt, (size_t)row->n_new * sizeof(float));
    }
}

/* All get all: rows, ids and the sampler's numbers. */
static dt_err share(dt_rollout *r, dt_comm *comm, int64_t first, int64_t from, int64_t end)
{
    const int64_t n = r->opt.n_rows - first;
    DT_TRY(rollout_join(comm, r->row, sizeof *r->row, first, n, from, end));
    DT_TRY(rollout_join(comm, r->ids, (size_t)r->ids_ld * sizeof *r->ids, first, n, from, end));
    return rollout_join(comm, r->sampled.at, (size_t)r->sampled.ld * sizeof(float), first, n, from, end);
}

dt_err rollout_sample(dt_rollout *r, dt_task *t, int64_t first)
{
    const int64_t n = r->opt.n_rows - first;
    const int64_t from = first + rollout_first_of(n, t->comm->rank, t->nranks),
                  end = first + rollout_first_of(n, t->comm->rank + 1, t->nranks);
    dt_generate_stats stats;
    dt_phase_enter(t->phase, "rollout", "");
    set_up(r, from, end - from);
    dt_err err = dt_generator_run(r->generator, r->sequences, (int)(end - from), &stats);
    if (err == DT_OK) err = dt_fault("rollout.generate");
    DT_TRY(dt_comm_agree(t->comm, err));
    take(r, from, end - from);
    dt_phase_enter(t->phase, "rollout", "share");
    return share(r, t->comm, first, from, end);
}
