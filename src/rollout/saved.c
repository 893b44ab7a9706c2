/* saved.c - a rollout in a checkpoint. It is the same on all ranks, so rank 0's is stored. */
#include "rollout_private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_LEN = 8, ROW_LEN = 5, TURNS_LEN = 4 };

double rollout_saved_nbytes(const dt_rollout *r)
{
    const double n = (double)r->opt.n_rows, tokens = (double)r->max_len,
                 floats = (double)(1 + r->opt.n_arrays) * (double)(r->opt.max_completion + 1);
    return 8 * PLACE_LEN + n * (8 * (ROW_LEN + (rollout_has_turns(r) ? TURNS_LEN + 1 : 0)) + 4 * tokens + 4 * floats +
                                8 * r->replay.n_rewards);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static dt_err add_place(const dt_rollout *r, dt_named_arrays *items)
{
    const int64_t place[PLACE_LEN] = {
        r->now.number, r->now.next_prompt,     (int64_t)r->now.next_completion, r->n_rows,
        r->opt.n_rows, r->opt.num_generations, r->opt.max_completion,           r->policy};
    return dt_named_arrays_add(items, "rollout", DT_NAMED_I64, PLACE_LEN, place);
}

static dt_err add_rows(const dt_rollout *r, dt_named_arrays *items)
{
    DT_TRY(dt_named_arrays_add(items, "rollout_rows", DT_NAMED_I64, r->n_rows * ROW_LEN, NULL));
    int64_t *x = dt_named_arrays_find(items, "rollout_rows")->data;
    for (int64_t i = 0; i < r->n_rows; i++, x += ROW_LEN) {
        const dt_rollout_row *row = &r->row[i];
        x[0] = row->prompt, x[1] = (int64_t)row->number, x[2] = row->n_prompt, x[3] = row->n_new, x[4] = row->ended;
    }
    return DT_OK;
}

/* Number of tokens of a row; rows are stored without gaps. */
static int64_t n_ids(const dt_rollout *r, int64_t row)
{
    return r->row[row].n_prompt + dt_rollout_n_completion(&r->row[row]);
}

/* Tokens of an environment are stored as ~id. */
static void flip_observed(const dt_rollout *r, int64_t row, int32_t *ids)
{
    for (int32_t k = 0; k < dt_rollout_n_completion(&r->row[row]); k++)
        if (dt_rollout_is_observed(r, row, k)) ids[r->row[row].n_prompt + k] = ~ids[r->row[row].n_prompt + k];
}

static dt_err add_turns(const dt_rollout *r, dt_named_arrays *items)
{
    if (!r->observed) return DT_OK;
    DT_TRY(dt_named_arrays_add(items, "rollout_turns", DT_NAMED_I64, r->n_rows * TURNS_LEN, NULL));
    DT_TRY(dt_named_arrays_add(items, "rollout_turn_reward", DT_NAMED_F64, r->n_rows, NULL));
    int64_t *x = dt_named_arrays_find(items, "rollout_turns")->data;
    double *reward = dt_named_arrays_find(items, "rollout_turn_reward")->data;
    for (int64_t i = 0; i < r->n_rows; i++, x += TURNS_LEN) {
        const dt_rollout_row *row = &r->row[i];
        x[0] = row->n_observed, x[1] = row->n_turns, x[2] = row->n_calls, x[3] = row->n_failures;
        reward[i] = row->reward;
    }
    return DT_OK;
}

static dt_err add_ids(const dt_rollout *r, dt_named_arrays *items)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_rows; i++) n += n_ids(r, i);
    DT_TRY(dt_named_arrays_add(items, "rollout_ids", DT_NAMED_I32, n, NULL));
    int32_t *x = dt_named_arrays_find(items, "rollout_ids")->data;
    for (int64_t i = 0; i < r->n_rows; i++, x += n_ids(r, i - 1)) {
        memcpy(x, dt_rollout_ids(r, i), (size_t)n_ids(r, i) * sizeof *x);
        flip_observed(r, i, x);
    }
    return DT_OK;
}

/* more: 1 if there is also a value after the last token. */
static dt_err add_floats(const dt_rollout *r, dt_named_arrays *items, const char *name, const rollout_floats *a,
                         int more)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_rows; i++) n += r->row[i].n_new + more;
    DT_TRY(dt_named_arrays_add(items, name, DT_NAMED_F32, n, NULL));
    float *x = dt_named_arrays_find(items, name)->data;
    for (int64_t i = 0; i < r->n_rows; i++) {
        const int64_t n_row = r->row[i].n_new + more;
        memcpy(x, a->at + i * a->ld, (size_t)n_row * sizeof *x);
        x += n_row;
    }
    return DT_OK;
}

static int64_t n_given(const dt_rollout *r) { return r->n_rows * r->replay.n_rewards; }

static const char *name_of(const dt_rollout *r, int array, char out[DT_NAMED_NAME])
{
    snprintf(out, DT_NAMED_NAME, "rollout_%.40s", r->opt.array_name[array]);
    return out;
}

static dt_err save(const dt_rollout *r, dt_named_arrays *items)
{
    char name[DT_NAMED_NAME];
    DT_TRY(add_place(r, items));
    if (r->n_rows == 0) return DT_OK;
    if (n_given(r)) DT_TRY(dt_named_arrays_add(items, "rollout_rewards", DT_NAMED_F64, n_given(r), r->given));
    DT_TRY(add_rows(r, items));
    DT_TRY(add_turns(r, items));
    DT_TRY(add_ids(r, items));
    DT_TRY(add_floats(r, items, "rollout_sampled", &r->sampled, 0));
    for (int i = 0; i < r->opt.n_arrays; i++) DT_TRY(add_floats(r, items, name_of(r, i, name), &r->array[i], 1));
    return DT_OK;
}

dt_err dt_rollout_save(const dt_rollout *r, dt_task *t, dt_named_arrays *items)
{
    dt_err err = r->opt.unsaved ? DT_OK : save(r, items);
    if (err == DT_OK)
        err = dt_journal_sync(r->journal); /* sync the lines of a checkpoint's steps before the checkpoint */
    return dt_comm_agree(t->comm, err);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static dt_err take_rows(dt_rollout *r, const dt_named_arrays *items, int64_t n)
{
    const dt_named_array *rows = dt_named_arrays_find(items, "rollout_rows");
    DT_CHECK(rows && rows->type == DT_NAMED_I64 && rows->n == n * ROW_LEN, DT_ERR_DATA,
             "the rollout in the checkpoint has no rows");
    const int64_t *x = rows->data;
    for (int64_t i = 0; i < n; i++, x += ROW_LEN) {
        DT_CHECK(
            x[2] > 0 && x[2] <= r->max_len && x[3] >= 0 && x[3] <= r->opt.max_completion && x[2] + x[3] <= r->max_len,
            DT_ERR_DATA,
            "row %" PRId64 " of the rollout in the checkpoint has invalid lengths: %" PRId64 " and %" PRId64 " tokens",
            i, x[2], x[3]);
        r->row[i] = (dt_rollout_row){.prompt = x[0],
                                     .number = (uint64_t)x[1],
                                     .n_prompt = (int32_t)x[2],
                                     .n_new = (int32_t)x[3],
                                     .ended = x[4] != 0};
    }
    return DT_OK;
}

static dt_err take_turns(dt_rollout *r, const dt_named_arrays *items, int64_t n)
{
    const dt_named_array *turns = dt_named_arrays_find(items, "rollout_turns"),
                         *reward = dt_named_arrays_find(items, "rollout_turn_reward");
    if (!r->observed) return DT_OK;
    DT_CHECK(turns && turns->type == DT_NAMED_I64 && turns->n == n * TURNS_LEN && reward &&
                 reward->type == DT_NAMED_F64 && reward->n == n,
             DT_ERR_DATA, "the rollout in the checkpoint has no turns of its rows");
    const int64_t *x = turns->data;
    for (int64_t i = 0; i < n; i++, x += TURNS_LEN) {
        dt_rollout_row *row = &r->row[i];
        DT_CHECK(x[0] >= 0 && x[0] <= r->opt.max_completion - row->n_new, DT_ERR_DATA,
                 "row %" PRId64 " of the rollout in the checkpoint has %" PRId64 " tokens of an environment", i, x[0]);
        row->n_observed = (int32_t)x[0], row->n_turns = (int32_t)x[1];
        row->n_calls = (int32_t)x[2], row->n_failures = (int32_t)x[3];
        row->reward = ((const double *)reward->data)[i];
    }
    return DT_OK;
}

static void take_observed(dt_rollout *r, int64_t row)
{
    uint8_t *const observed = r->observed + row * r->observed_ld;
    const int32_t *ids = dt_rollout_ids(r, row) + r->row[row].n_prompt;
    for (int32_t k = 0; k < dt_rollout_n_completion(&r->row[row]); k++) observed[k] = ids[k] < 0;
    flip_observed(r, row, r->ids + row * r->ids_ld);
}

static dt_err take_ids(dt_rollout *r, const dt_named_arrays *items, int64_t n)
{
    int64_t n_all = 0;
    for (int64_t i = 0; i < n; i++) n_all += n_ids(r, i);
    const dt_named_array *ids = dt_named_arrays_find(items, "rollout_ids");
    DT_CHECK(ids && ids->type == DT_NAMED_I32 && ids->n == n_all, DT_ERR_DATA,
             "the rollout in the checkpoint is inconsistent: its token count differs from its rows");
    const int32_t *x = ids->data;
    for (int64_t i = 0; i < n; i++, x += n_ids(r, i - 1)) {
        memcpy(r->ids + i * r->ids_ld, x, (size_t)n_ids(r, i) * sizeof *x);
        if (r->observed) take_observed(r, i);
    }
    return DT_OK;
}

static dt_err take_floats(dt_rollout *r, const dt_named_arrays *items, const char *name, const rollout_floats *a,
                          int more, int64_t n)
{
    int64_t n_all = 0;
    for (int64_t i = 0; i < n; i++) n_all += r->row[i].n_new + more;
    const dt_named_array *item = dt_named_arrays_find(items, name);
    DT_CHECK(item && item->type == DT_NAMED_F32 && item->n == n_all, DT_ERR_DATA,
             "the rollout in the checkpoint has no %s of its rows", name);
    const float *x = item->data;
    for (int64_t i = 0; i < n; i++) {
        const int64_t n_row = r->row[i].n_new + more;
        memcpy(a->at + i * a->ld, x, (size_t)n_row * sizeof *x);
        x += n_row;
    }
    return DT_OK;
}

/* True if it was generated with other options that make it unusable, or lacks values that are needed now. */
static bool is_of_other_options(const dt_rollout *r, const dt_named_arrays *items, const int64_t *place)
{
    char name[DT_NAMED_NAME];
    bool other = place[3] != r->opt.n_rows || place[5] != r->opt.num_generations || place[6] != r->opt.max_completion;
    for (int i = 0; i < r->opt.n_arrays; i++) other |= !dt_named_arrays_find(items, name_of(r, i, name));
    other |= (dt_named_arrays_find(items, "rollout_turns") != NULL) != (r->observed != NULL);
    return other;
}

void dt_rollout_discard(dt_rollout *r, const dt_task *t, const char *why)
{
    r->n_rows = 0;
    r->now.number = -1;
    if (dt_comm_first(t->comm)) DT_WARN("the rollout in the checkpoint is discarded and generated again: %s", why);
}

static dt_err load(dt_rollout *r, const dt_task *t, const dt_named_arrays *items)
{
    int64_t place[PLACE_LEN];
    char name[DT_NAMED_NAME];
    DT_TRY(dt_named_arrays_get(items, "rollout", DT_NAMED_I64, PLACE_LEN, place));
    const int64_t n = place[3];
    r->now = (rollout_place){place[0], place[1], (uint64_t)place[2]};
    r->n_rows = 0;
    if (n == 0) return DT_OK;
    if (is_of_other_options(r, items, place)) {
        char why[80];
        snprintf(why, sizeof why, "options in [%s] have changed since then", r->opt.section);
        dt_rollout_discard(r, t, why);
        return DT_OK;
    }
    DT_TRY(take_rows(r, items, n));
    DT_TRY(take_turns(r, items, n));
    DT_TRY(take_ids(r, items, n));
    DT_TRY(take_floats(r, items, "rollout_sampled", &r->sampled, 0, n));
    for (int i = 0; i < r->opt.n_arrays; i++) DT_TRY(take_floats(r, items, name_of(r, i, name), &r->array[i], 1, n));
    r->n_rows = n;
    r->policy = place[7] >= 0 && place[7] < r->opt.n_arrays ? (int)place[7] : -1;
    return n_given(r) ? dt_named_arrays_get(items, "rollout_rewards", DT_NAMED_F64, n_given(r), r->given) : DT_OK;
}

dt_err dt_rollout_load(dt_rollout *r, dt_task *t, const dt_named_arrays *items)
{
    return dt_comm_agree(t->comm, load(r, t, items));
}
