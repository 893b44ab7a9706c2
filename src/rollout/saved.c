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

/* The items of a rollout. Each function below copies one of them: to a new item, or, if `load`, from the item of a
 * checkpoint into n_rows rows. */
typedef struct copying {
    dt_rollout *r;
    dt_named_arrays *items;
    int64_t n_rows;
    bool load;
} copying;

/* Make or find the item of n elements. *data: its elements, NULL after an error. */
static dt_err item_of(const copying *c, const char *name, dt_named_type type, int64_t n, void *data)
{
    if (!c->load) DT_TRY(dt_named_arrays_add(c->items, name, type, n, NULL));
    const dt_named_array *item = dt_named_arrays_find(c->items, name);
    DT_CHECK(item && item->type == type && item->n == n, DT_ERR_DATA,
             "the rollout in the checkpoint has no valid `%s`: expected %" PRId64 " values, found %" PRId64, name, n,
             item ? item->n : 0);
    *(void **)data = item->data;
    return DT_OK;
}

static void copy(const copying *c, void *mine, void *saved, size_t nbytes)
{
    memcpy(c->load ? mine : saved, c->load ? saved : mine, nbytes);
}

static dt_err copy_rows(const copying *c)
{
    const dt_rollout *r = c->r;
    int64_t *x;
    DT_TRY(item_of(c, "rollout_rows", DT_NAMED_I64, c->n_rows * ROW_LEN, &x));
    for (int64_t i = 0; i < c->n_rows; i++, x += ROW_LEN) {
        dt_rollout_row *row = &r->row[i];
        if (!c->load) {
            x[0] = row->prompt, x[1] = (int64_t)row->number, x[2] = row->n_prompt, x[3] = row->n_new, x[4] = row->ended;
            continue;
        }
        DT_CHECK(
            x[2] > 0 && x[2] <= r->max_len && x[3] >= 0 && x[3] <= r->opt.max_completion && x[2] + x[3] <= r->max_len,
            DT_ERR_DATA,
            "row %" PRId64 " of the rollout in the checkpoint has invalid lengths: %" PRId64 " and %" PRId64 " tokens",
            i, x[2], x[3]);
        *row = (dt_rollout_row){.prompt = x[0],
                                .number = (uint64_t)x[1],
                                .n_prompt = (int32_t)x[2],
                                .n_new = (int32_t)x[3],
                                .ended = x[4] != 0};
    }
    return DT_OK;
}

static dt_err copy_turns(const copying *c)
{
    const dt_rollout *r = c->r;
    int64_t *x;
    double *reward;
    if (!r->observed) return DT_OK;
    DT_TRY(item_of(c, "rollout_turns", DT_NAMED_I64, c->n_rows * TURNS_LEN, &x));
    DT_TRY(item_of(c, "rollout_turn_reward", DT_NAMED_F64, c->n_rows, &reward));
    for (int64_t i = 0; i < c->n_rows; i++, x += TURNS_LEN) {
        dt_rollout_row *row = &r->row[i];
        copy(c, &row->reward, &reward[i], sizeof *reward);
        if (!c->load) {
            x[0] = row->n_observed, x[1] = row->n_turns, x[2] = row->n_calls, x[3] = row->n_failures;
            continue;
        }
        DT_CHECK(x[0] >= 0 && x[0] <= r->opt.max_completion - row->n_new, DT_ERR_DATA,
                 "row %" PRId64 " of the rollout in the checkpoint has %" PRId64 " tokens of an environment", i, x[0]);
        row->n_observed = (int32_t)x[0], row->n_turns = (int32_t)x[1];
        row->n_calls = (int32_t)x[2], row->n_failures = (int32_t)x[3];
    }
    return DT_OK;
}

/* Number of tokens of a row; rows are stored without gaps. */
static int64_t n_ids(const dt_rollout *r, int64_t row)
{
    return r->row[row].n_prompt + dt_rollout_n_completion(&r->row[row]);
}

/* Tokens of an environment are stored as ~id. */
static void take_observed(const dt_rollout *r, int64_t row)
{
    uint8_t *const observed = r->observed + row * r->observed_ld;
    int32_t *const ids = r->ids + row * r->ids_ld + r->row[row].n_prompt;
    for (int32_t k = 0; k < dt_rollout_n_completion(&r->row[row]); k++) {
        observed[k] = ids[k] < 0;
        if (observed[k]) ids[k] = ~ids[k];
    }
}

static dt_err copy_ids(const copying *c)
{
    const dt_rollout *r = c->r;
    int64_t n = 0;
    int32_t *x;
    for (int64_t i = 0; i < c->n_rows; i++) n += n_ids(r, i);
    DT_TRY(item_of(c, "rollout_ids", DT_NAMED_I32, n, &x));
    for (int64_t i = 0; i < c->n_rows; i++, x += n_ids(r, i - 1)) {
        copy(c, r->ids + i * r->ids_ld, x, (size_t)n_ids(r, i) * sizeof *x);
        if (c->load && r->observed) take_observed(r, i);
        for (int32_t k = 0; !c->load && k < dt_rollout_n_completion(&r->row[i]); k++)
            if (dt_rollout_is_observed(r, i, k)) x[r->row[i].n_prompt + k] = ~x[r->row[i].n_prompt + k];
    }
    return DT_OK;
}

/* more: 1 if there is also a value after the last token. */
static dt_err copy_floats(const copying *c, const char *name, const rollout_floats *a, int more)
{
    const dt_rollout_row *row = c->r->row;
    int64_t n = 0;
    float *x;
    for (int64_t i = 0; i < c->n_rows; i++) n += row[i].n_new + more;
    DT_TRY(item_of(c, name, DT_NAMED_F32, n, &x));
    for (int64_t i = 0; i < c->n_rows; x += row[i++].n_new + more)
        copy(c, a->at + i * a->ld, x, (size_t)(row[i].n_new + more) * sizeof *x);
    return DT_OK;
}

static const char *name_of(const dt_rollout *r, int array, char out[DT_NAMED_NAME])
{
    snprintf(out, DT_NAMED_NAME, "rollout_%.40s", r->opt.array_name[array]);
    return out;
}

static dt_err copy_all(const copying *c)
{
    const dt_rollout *r = c->r;
    char name[DT_NAMED_NAME];
    double *given;
    DT_TRY(copy_rows(c));
    DT_TRY(copy_turns(c));
    DT_TRY(copy_ids(c));
    DT_TRY(copy_floats(c, "rollout_sampled", &r->sampled, 0));
    for (int i = 0; i < r->opt.n_arrays; i++) DT_TRY(copy_floats(c, name_of(r, i, name), &r->array[i], 1));
    const int64_t n_given = c->n_rows * r->replay.n_rewards;
    if (n_given == 0) return DT_OK;
    DT_TRY(item_of(c, "rollout_rewards", DT_NAMED_F64, n_given, &given));
    copy(c, r->given, given, (size_t)n_given * sizeof *given);
    return DT_OK;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static dt_err save(dt_rollout *r, dt_named_arrays *items)
{
    const int64_t place[PLACE_LEN] = {
        r->now.number, r->now.next_prompt,     (int64_t)r->now.next_completion, r->n_rows,
        r->opt.n_rows, r->opt.num_generations, r->opt.max_completion,           r->policy};
    DT_TRY(dt_named_arrays_add(items, "rollout", DT_NAMED_I64, PLACE_LEN, place));
    return r->n_rows == 0 ? DT_OK : copy_all(&(copying){.r = r, .items = items, .n_rows = r->n_rows});
}

dt_err dt_rollout_save(dt_rollout *r, dt_task *t, dt_named_arrays *items)
{
    dt_err err = r->opt.unsaved ? DT_OK : save(r, items);
    if (err == DT_OK)
        err = dt_journal_sync(r->journal); /* sync the lines of a checkpoint's steps before the checkpoint */
    return dt_comm_agree(t->comm, err);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

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
    DT_TRY(copy_all(&(copying){.r = r, .items = (dt_named_arrays *)items, .n_rows = n, .load = true}));
    r->n_rows = n;
    r->policy = place[7] >= 0 && place[7] < r->opt.n_arrays ? (int)place[7] : -1;
    return DT_OK;
}

dt_err dt_rollout_load(dt_rollout *r, dt_task *t, const dt_named_arrays *items)
{
    return dt_comm_agree(t->comm, load(r, t, items));
}
