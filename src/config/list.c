/* list.c - comma-separated lists, the format of several keys. */
#include "config_private.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void dt_list_free(char **items, int n_items)
{
    for (int i = 0; items && i < n_items; i++) free(items[i]);
    free(items);
}

static const char *trim(const char *begin, const char **end)
{
    while (begin < *end && isspace((unsigned char)*begin)) begin++;
    while (*end > begin && isspace((unsigned char)(*end)[-1])) --*end;
    return begin;
}

dt_err dt_config_split(const char *text, char ***items, int *n_items)
{
    size_t most = 1;
    for (const char *p = text; *p; p++) most += *p == ',';
    *n_items = 0;
    *items = calloc(most, sizeof **items);
    DT_CHECK(*items, DT_ERR_MEMORY, "out of memory for a list of %zu items", most);
    for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        const char *end = p + strcspn(p, ","), *begin = trim(p, &end);
        if (begin == end) continue;
        char *item = strndup(begin, (size_t)(end - begin));
        if (!item) {
            dt_list_free(*items, *n_items);
            *items = NULL;
            *n_items = 0;
            return dt_fail(DT_ERR_MEMORY, "out of memory for a list of %zu items", most);
        }
        const char *value = dt_key_unquote(item);
        memmove(item, value, strlen(value) + 1);
        (*items)[(*n_items)++] = item;
    }
    return DT_OK;
}
