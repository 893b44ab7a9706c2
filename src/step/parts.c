/* parts.c - the parts that a task holds: planned, opened and closed by one loop each. Its state is saved and loaded by
 * one loop each. */
#include "dtrain/step/step.h"
#include <stdlib.h>

void dt_task_check(dt_task *t)
{
    if (t->ops->check)
        t->ops->check(t);
    else if (t->comm)
        dt_task_need_data(t, "train", t->cfg->data_train);
}

void dt_task_open(dt_task *t)
{
    dt_sums_declare(t->sums, "tokens", DT_SUM_UNITS, 1);
    dt_sums_declare(t->sums, "samples", DT_SUM_UNITS, 1);
    if (t->ops->self_nbytes && !(t->self = calloc(1, t->ops->self_nbytes)))
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for the task"));
    else
        t->ops->open(t);
}

void dt_task_hold(dt_task *t, const dt_task_part_ops *ops, void *self)
{
    if (t->n_parts < DT_MAX_TASK_PARTS)
        t->part[t->n_parts++] = (struct dt_task_part){.ops = ops, .self = self};
    else
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_ARG, "internal: dt_task_hold: a task has more than %d parts",
                                             (int)DT_MAX_TASK_PARTS));
}

dt_err dt_task_plan(const dt_task *t, int stage, dt_memory *memory)
{
    for (int i = 0; i < t->n_parts; i++) {
        const struct dt_task_part *p = &t->part[i];
        if (p->ops->lay_out) memory->at[DT_MEM_DATA][DT_ON_HOST] += p->ops->lay_out(p->self, t, NULL);
        if (p->ops->plan) DT_TRY(p->ops->plan(p->self, t, memory));
    }
    return t->ops->plan ? t->ops->plan(t, stage, memory) : DT_OK;
}

static dt_err allocate(dt_task *t)
{
    for (int i = 0; i < t->n_parts; i++) {
        struct dt_task_part *p = &t->part[i];
        if (!p->ops->lay_out) continue;
        const size_t nbytes = p->ops->lay_out(p->self, t, NULL);
        p->block = calloc(1, nbytes + 1);
        DT_CHECK(p->block, DT_ERR_MEMORY, "out of memory for %zu bytes of task %s", nbytes, t->ops->name);
        dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, p->nbytes = nbytes);
        p->ops->lay_out(p->self, t, p->block);
    }
    return DT_OK;
}

dt_err dt_task_begin(dt_task *t)
{
    DT_TRY(dt_comm_agree(t->comm, allocate(t)));
    for (int i = 0; i < t->n_parts; i++)
        if (t->part[i].ops->begin) DT_TRY(t->part[i].ops->begin(t->part[i].self, t));
    return t->ops->begin ? t->ops->begin(t) : DT_OK;
}

void dt_task_close(dt_task *t)
{
    if (!t->ops) return;
    while (t->n_parts > 0) {
        const struct dt_task_part *p = &t->part[--t->n_parts];
        if (p->ops->close) p->ops->close(p->self, t);
        if (p->block) dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, p->nbytes);
        free(p->block);
    }
    if (t->ops->close) t->ops->close(t);
    if (!t->ops->self_nbytes) return;
    free(t->self);
    t->self = NULL;
}

/* ---- state in checkpoints ---------------------------------------------------------------------------------------- */

static void add_state(dt_task *t, struct dt_task_state state)
{
    if (t->n_state == DT_MAX_TASK_STATE) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_ARG, "internal: dt_task_state: a task has more than %d values",
                                             (int)DT_MAX_TASK_STATE));
        return;
    }
    t->state[t->n_state++] = state;
    t->saved_nbytes += (double)state.n * (double)dt_named_type_size(state.type);
}

void dt_task_state(dt_task *t, const char *name, dt_named_type type, int64_t n, void *data, bool optional)
{
    add_state(t, (struct dt_task_state){.name = name, .type = type, .n = n, .data = data, .optional = optional});
}

void dt_task_identity(dt_task *t, const char *name, int64_t n, int64_t *key,
                      dt_err (*compare)(const void *self, const int64_t *found), const void *self)
{
    add_state(t, (struct dt_task_state){name, DT_NAMED_I64, n, key, true, compare, self});
}

static bool is_unknown(const struct dt_task_state *s) { return s->compare && *(const int64_t *)s->data == 0; }

dt_err dt_task_save_state(const dt_task *t, dt_named_arrays *items)
{
    for (const struct dt_task_state *s = t->state; s < t->state + t->n_state; s++)
        if (!is_unknown(s)) DT_TRY(dt_named_arrays_add(items, s->name, s->type, s->n, s->data));
    return DT_OK;
}

dt_err dt_task_load_state(const dt_task *t, const dt_named_arrays *items)
{
    for (const struct dt_task_state *s = t->state; s < t->state + t->n_state; s++) {
        int64_t found[2];
        if (is_unknown(s) || (s->optional && !dt_named_arrays_find(items, s->name))) continue;
        DT_EXPECT(!s->compare || s->n <= 2);
        DT_TRY(dt_named_arrays_get(items, s->name, s->type, s->n, s->compare ? found : s->data));
        if (s->compare) DT_TRY(s->compare(s->self, found));
    }
    return DT_OK;
}

dt_err dt_task_save(dt_task *t, dt_named_arrays *items)
{
    DT_TRY(dt_comm_agree(t->comm, dt_task_save_state(t, items)));
    return t->ops->save ? t->ops->save(t, items) : DT_OK;
}

dt_err dt_task_load(dt_task *t, const dt_named_arrays *items)
{
    DT_TRY(dt_comm_agree(t->comm, dt_task_load_state(t, items)));
    return t->ops->load ? t->ops->load(t, items) : DT_OK;
}
