/* lines.c - where the lines are is remembered and not what they say, so that long files need little memory. */
#include "lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

dt_err dt_lines_add(dt_lines *l, const char *path, const dt_kept *kept, dt_line line)
{
    if (line.step > kept->last_step) return DT_OK;
    if (kept->redo_validation && line.is_validation && line.step == kept->last_step) return DT_OK;
    if (l->n == l->room) {
        const int64_t room = l->room ? 2 * l->room : 1024;
        dt_line *more = realloc(l->line, (size_t)room * sizeof *more);
        DT_CHECK(more, DT_ERR_MEMORY, "%s: no memory for the places of its lines", path);
        l->line = more;
        l->room = room;
    }
    l->line[l->n++] = line;
    return DT_OK;
}

static int by_step(const void *a, const void *b)
{
    const dt_line *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int64_t same_step_end(const dt_lines *l, int64_t begin)
{
    int64_t end = begin;
    while (end < l->n && l->line[end].step == l->line[begin].step) end++;
    return end;
}

void dt_lines_settle(dt_lines *l)
{
    if (l->n > 0) qsort(l->line, (size_t)l->n, sizeof *l->line, by_step);
    int64_t n = 0;
    for (int64_t begin = 0, end; begin < l->n; begin = end) {
        end = same_step_end(l, begin);
        int64_t newest = begin; /* of the training lines; without one, all are kept */
        for (int64_t i = begin; i < end; i++)
            if (!l->line[i].is_validation) newest = i;
        for (int64_t i = newest; i < end; i++) l->line[n++] = l->line[i];
    }
    l->n = n;
}

int64_t dt_lines_hole(const dt_lines *l, const dt_kept *kept, int64_t every, int64_t *at)
{
    int64_t before = 0, gap_before = 0;
    *at = 0;
    for (int64_t i = 0; i <= l->n && every > 0; i++) {
        const bool end = i == l->n;
        if ((end && kept->last_step == INT64_MAX) || (!end && l->line[i].is_validation)) continue;
        const int64_t step = end ? kept->last_step + 1 : l->line[i].step, gap = step - before;
        const int64_t missing = (before / every + 1) * every;
        *at = i;
        if (before > 0 && gap > gap_before && missing < step) return missing;
        before = step;
        gap_before = gap;
    }
    return 0;
}

dt_err dt_lines_read(const dt_lines *l, int64_t i, FILE *in, const char *path, dt_record *out)
{
    const dt_line *line = &l->line[i];
    char piece[1 << 12];
    out->nbytes = 0;
    errno = 0;
    bool ok = ftello(in) == line->offset || fseeko(in, line->offset, SEEK_SET) == 0;
    for (int64_t done = 0; ok && done < line->nbytes;) {
        const int64_t left = line->nbytes - done;
        const size_t n = fread(piece, 1, left < (int64_t)sizeof piece ? (size_t)left : sizeof piece, in);
        dt_record_bytes(out, piece, n);
        done += (int64_t)n;
        ok = n > 0;
    }
    DT_CHECK(ok, DT_ERR_DATA, "%s: cannot read: %s", path, errno ? strerror(errno) : "it has become shorter");
    DT_CHECK(!out->out_of_memory, DT_ERR_MEMORY, "%s: no memory for a line of %lld bytes", path,
             (long long)line->nbytes);
    return DT_OK;
}

void dt_lines_free(dt_lines *l)
{
    free(l->line);
    *l = (dt_lines){0};
}
