/* list.c - comma-separated lists, the format of several keys. */
#include "config_private.h"
#include <stdlib.h>
#include <string.h>

void dt_list_free(char **items, int n_items)
{
    for (int i = 0; items && i < n_items; i++) free(items[i]);
    free(items);
}

dt_err dt_config_split(const char *text, char ***items, int *n_items)
{
    size_t most = 1;
    for (const char *p = text; *p; p++) most += *p == ',';
    *n_items = 0;
    *items = calloc(most, sizeof **items);
    DT_CHECK(*items, DT_ERR_MEMORY, "out of memory for a list of %zu items", most);
    for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char *item = strndup(p, strcspn(p, ",")), *value = item ? dt_key_trim(item) : NULL;
        if (!value) {
            dt_list_free(*items, *n_items);
            *items = NULL;
            *n_items = 0;
            return dt_fail(DT_ERR_MEMORY, "out of memory for a list of %zu items", most);
        }
        if (!*value) {
            free(item);
            continue;
        }
        value = dt_key_unquote(value);
        memmove(item, value, strlen(value) + 1);
        (*items)[(*n_items)++] = item;
    }
    return DT_OK;
}

bool dt_config_lists(const char *text, const char *item)
{
    char **items;
    int n;
    bool found = false;
    if (dt_config_split(text, &items, &n) != DT_OK) return false;
    for (int i = 0; i < n; i++) found |= !strcmp(items[i], item);
    dt_list_free(items, n);
    return found;
}
