/* task.c - the list of tasks. */
#include "dtrain/task/task.h"
#include <string.h>

const dt_task_ops *const dt_tasks[] = {&dt_task_pretrain, &dt_task_sft,  &dt_task_rm,   &dt_task_dpo,
                                       &dt_task_ppo,      &dt_task_grpo, &dt_task_eval, NULL};

const dt_task_ops *dt_task_find(const char *name)
{
    for (int i = 0; dt_tasks[i]; i++)
        if (!strcmp(dt_tasks[i]->name, name)) return dt_tasks[i];
    return NULL;
}
