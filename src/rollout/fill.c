/* fill.c - fill a rollout: prompts, completions generated in shares by the ranks, and the exchange of all
 * completions. */
#include "rollout_private.h"
#include <math.h>
#include <string.h>

/* Add the prompts of rows first .. end-1, in the order of the epoch. The same on all ranks. */
static dt_err add_prompts(dt_rollout *r, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        dt_rollout_row *row = &r->row[i];
        int32_t *ids = r->ids + i * r->ids_ld;
        const bool begins = (i - first) % rollout_n_drawn(r) == 0;
        if (begins) {
            *row = (dt_rollout_row){.prompt = dt_loader_prompt_at(r->prompts, r->now.next_prompt++),
                                    .reward = (double)NAN};
            DT_TRY(dt_loader_prompt(r->prompts, row->prompt, r->max_prompt, ids, &row->n_prompt));
        } else {
            *row = r->row[i - 1];
            memcpy(ids, ids - r->ids_ld, (size_t)row->n_prompt * sizeof *ids);
        }
        row->number = r->now.next_completion++;
    }
    return DT_OK;
}

/* Move the chosen rows of each prompt, in order, to the positions of its group. They are copied through the space after
 * all rows, because they may swap positions. */
static dt_err keep_chosen(dt_rollout *r, dt_task *t, int64_t first, int64_t end)
{
    const int n = r->opt.num_generations;
    const int64_t scratch = rollout_room(r);
    for (int64_t from = first, to = first; from < end; from += r->opt.n_drawn, to += n) {
        DT_TRY(r->opt.choose(r->opt.choose_self, t, r, from, r->chosen));
        for (int k = 0; k < n; k++) rollout_copy_row(r, from + r->chosen[k], scratch + k);
        for (int k = 0; k < n; k++) rollout_copy_row(r, scratch + k, to + k);
    }
    return DT_OK;
}

static dt_err fill(dt_rollout *r, dt_task *t)
{
    const int64_t first = r->n_rows, n_groups = (r->opt.n_rows - first) / r->opt.num_generations,
                  end = first + n_groups * rollout_n_drawn(r);
    const double begin_s = dt_now_s();
    dt_phase_enter(t->phase, "rollout", "prompts");
    if (r->replay.in) {
        DT_TRY(dt_comm_agree(t->comm, rollout_replay_rows(r, first)));
    } else {
        DT_TRY(dt_comm_agree(t->comm, add_prompts(r, first, end)));
        DT_TRY(rollout_sample(r, t, first, end));
        if (r->opt.n_drawn) DT_TRY(dt_comm_agree(t->comm, keep_chosen(r, t, first, end)));
    }
    r->n_rows = r->opt.n_rows;
    r->seconds += dt_now_s() - begin_s;
    return DT_OK;
}

dt_err dt_rollout_fill(dt_rollout *r, dt_task *t)
{
    const dt_err err = r->n_rows < r->opt.n_rows ? fill(r, t) : DT_OK;
    if (err == DT_ERR_STOP) dt_rollout_undo(r);
    return err;
}
