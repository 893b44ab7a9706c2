/* task.c - the list of tasks. */
#include "dtrain/task/task.h"
#include <string.h>

#define TASK(name) &dt_task_##name,
const dt_task_ops *const dt_tasks[] = {DT_TASK_LIST(TASK) NULL};

const dt_task_ops *dt_task_find(const char *name)
{
    for (int i = 0; dt_tasks[i]; i++)
        if (!strcmp(dt_tasks[i]->name, name)) return dt_tasks[i];
    return NULL;
}
