/* auxiliary.c - auxiliary models that a task trains in addition to the main model. */
#include "dtrain/step/step.h"
#include <string.h>

/* A name becomes a group in the checkpoint, next to the groups of the main model. */
static dt_err check(const dt_task *t, const char *name)
{
    static const char *const taken[] = {"", ".", "model", "optimizer", "task"};
    bool is_new = strlen(name) < 32 && !strchr(name, '/');
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) is_new = is_new && strcmp(name, taken[i]) != 0;
    for (int i = 0; i < t->n_auxiliary; i++) is_new = is_new && strcmp(name, t->auxiliary[i].name) != 0;
    DT_CHECK(is_new, DT_ERR_ARG, "internal: dt_task_train_auxiliary: name `%s` is already in use", name);
    DT_CHECK(t->n_auxiliary < DT_MAX_TRAINED - 1, DT_ERR_ARG,
             "internal: dt_task_train_auxiliary: expected at most %d auxiliary models", DT_MAX_TRAINED - 1);
    return DT_OK;
}

dt_trained *dt_task_train_auxiliary(dt_task *t, const char *name, dt_unit *units, int n_units)
{
    const dt_err err = check(t, name);
    dt_mistakes_add(t->mistakes, err);
    if (err != DT_OK) return NULL;
    dt_trained *m = &t->auxiliary[t->n_auxiliary++];
    *m = *t->main;
    m->name = name;
    m->units = units, m->n_units = n_units;
    m->zero_opt.tied_unit = -1;
    m->zero_opt.keep_gathered = false;
    m->groups.n = 1;
    return m;
}
