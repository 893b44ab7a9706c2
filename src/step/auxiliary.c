/* auxiliary.c - auxiliary models that a task trains in addition to the main model. */
#include "dtrain/step/step.h"
#include "dtrain/device/block8.h"
#include <string.h>

/* A name becomes a group in the checkpoint, next to the groups of the main model. */
static dt_err check(const dt_task *t, const char *name)
{
    DT_EXPECT(*name && strlen(name) < 32 && !strchr(name, '/') && !dt_has_word(". model optimizer task", name));
    for (int i = 0; i < t->n_auxiliary; i++) DT_EXPECT(strcmp(name, t->auxiliary[i].name) != 0);
    DT_EXPECT(t->n_auxiliary < DT_MAX_TRAINED - 1);
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
    for (int u = 0; u < n_units && m->zero_opt.state_dtype == DT_I8; u++) {
        units[u].trained_align = DT_BLOCK8;
        dt_unit_lay_out(&units[u]);
    }
    m->zero_opt.tied_unit = -1;
    m->zero_opt.keep_gathered = false;
    m->groups.n = 1;
    return m;
}
