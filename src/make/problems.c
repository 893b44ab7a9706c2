/* problems.c - rejected records, grouped by reason. Numbers in a reason (message, column) and the image
 * that it names are ignored when comparing reasons. */
#include "outputs.h"
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* Compare two reasons, ignoring the values of numbers. */
static bool alike(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            while (isdigit((unsigned char)*a)) a++;
            while (isdigit((unsigned char)*b)) b++;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

void dt_problems_add(dt_make_stats *stats, const dt_chunk_item *item, const char *reason, size_t n_named)
{
    const char *image = reason;
    reason += n_named;
    if (n_named) reason += strspn(reason, ": ");
    stats->n_bad++;
    for (int i = 0; i < stats->n_problems; i++)
        if (alike(stats->problems[i].reason, reason)) {
            stats->problems[i].n++;
            return;
        }
    if (stats->n_problems == DT_MAX_PROBLEMS) return;
    dt_problem *p = &stats->problems[stats->n_problems++];
    p->n = 1;
    snprintf(p->first, sizeof p->first, "%s:%" PRId64 "%s%.*s", item->path, item->line, n_named ? ", " : "",
             (int)n_named, image);
    snprintf(p->reason, sizeof p->reason, "%s", reason);
}
