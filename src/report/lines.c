/* lines.c - stores offsets of lines, not their contents, so that long files need little memory. */
#include "lines.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dt_err dt_lines_add(dt_lines *l, const char *path, const dt_kept *kept, dt_line line)
{
    if (line.step > kept->last_step) return DT_OK;
    if (kept->redo_validation && line.is_validation && line.step == kept->last_step) return DT_OK;
    DT_GROW(l->line, l->n, "%s: out of memory for line offsets", path);
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
        int64_t newest = begin; /* the last training line; without training lines, all lines are kept */
        for (int64_t i = begin; i < end; i++)
            if (!l->line[i].is_validation) newest = i;
        for (int64_t i = newest; i < end; i++) l->line[n++] = l->line[i];
    }
    l->n = n;
}

/* Interval between the first two training records; 0: fewer than two. */
static int64_t first_gap(const dt_lines *l)
{
    int64_t first = 0;
    for (int64_t i = 0; i < l->n; i++) {
        if (l->line[i].is_validation) continue;
        if (first > 0) return l->line[i].step - first;
        first = l->line[i].step;
    }
    return 0;
}

int64_t dt_lines_hole(const dt_lines *l, const dt_kept *kept, int64_t *at)
{
    const bool ends = kept->last_step != INT64_MAX;
    int64_t before = 0, gap_before = first_gap(l);
    bool known = ends && gap_before > 0; /* a single record does not show the interval between records */
    *at = 0;
    for (int64_t i = 0; i <= l->n && kept->every > 0; i++) {
        const bool end = i == l->n;
        if ((end && !ends) || (!end && l->line[i].is_validation)) continue;
        const int64_t step = end ? kept->last_step + 1 : l->line[i].step, gap = step - before;
        const int64_t missing = (before / kept->every + 1) * kept->every;
        *at = i;
        if (known && gap > gap_before && missing < step) return missing;
        known = true;
        before = step;
        gap_before = gap;
    }
    return 0;
}

void dt_lines_warn_gone(const char *path, const dt_kept *kept)
{
    if (kept->last_step == INT64_MAX || kept->every <= 0 || kept->last_step < kept->every) return;
    DT_WARN("%s does not exist or is empty: the records of steps %" PRId64 " to %" PRId64
            " are missing; a new file is started",
            path, kept->every, kept->last_step / kept->every * kept->every);
}

static void settle_and_warn(dt_lines *l, const char *path, const dt_kept *kept, int64_t n_bad, int64_t n_head)
{
    int64_t at;
    const int64_t n = l->n;
    if (n == 0 && n_bad == 0) return dt_lines_warn_gone(path, kept);
    if (!kept->several) dt_lines_settle(l);
    const int64_t missing = dt_lines_hole(l, kept, &at), n_twice = n - l->n, line = at + n_head;
    if (n_bad > 0) DT_WARN("%s: removed %" PRId64 " incomplete line%s", path, n_bad, dt_plural(n_bad));
    if (n_twice > 0) DT_WARN("%s: removed %" PRId64 " duplicate record%s", path, n_twice, dt_plural(n_twice));
    if (missing && at < l->n)
        DT_WARN("%s:%" PRId64 ": the record of step %" PRId64 " is missing before this line, which has step %" PRId64,
                path, line + 1, missing, l->line[at].step);
    else if (missing)
        DT_WARN("%s:%" PRId64 ": the record of step %" PRId64 " is missing after this last line", path, line, missing);
}

/* Read a line into out, replacing its contents. */
static dt_err read_line(const dt_line *line, FILE *in, const char *path, dt_text *out)
{
    char piece[1 << 12];
    out->n = 0;
    errno = 0;
    bool ok = ftello(in) == line->offset || fseeko(in, line->offset, SEEK_SET) == 0;
    for (int64_t done = 0; ok && done < line->nbytes;) {
        const int64_t left = line->nbytes - done;
        const size_t n = fread(piece, 1, left < (int64_t)sizeof piece ? (size_t)left : sizeof piece, in);
        dt_text_append(out, piece, n);
        done += (int64_t)n;
        ok = n > 0;
    }
    DT_CHECK(ok, DT_ERR_DATA, "%s: cannot read: %s", path, errno ? strerror(errno) : "the file was truncated");
    DT_CHECK(!out->failed, DT_ERR_MEMORY, "%s: out of memory for a line of %lld bytes", path, (long long)line->nbytes);
    return DT_OK;
}

static dt_err find_lines(FILE *in, const char *path, const dt_kept *kept, const dt_line_format *f, dt_lines *lines)
{
    char *line = NULL;
    size_t cap = 0;
    int64_t offset = ftello(in), n_bad = 0;
    dt_err err = DT_OK;
    ssize_t n;
    for (errno = 0; err == DT_OK && (n = getline(&line, &cap, in)) >= 0; offset += n) {
        dt_line found = {.offset = offset, .nbytes = n};
        if (f->parse(line, (size_t)n, &found))
            err = dt_lines_add(lines, path, kept, found);
        else
            n_bad++;
        errno = 0;
    }
    if (err == DT_OK && !feof(in)) err = dt_fail_errno(DT_ERR_DATA, path, "cannot read");
    free(line);
    if (err == DT_OK) settle_and_warn(lines, path, kept, n_bad, f->n_head);
    return err;
}

static dt_err copy_lines(FILE *in, const char *path, const dt_lines *lines, const dt_line_format *f, dt_record_file *to)
{
    enum { BATCH = 1 << 16 }; /* bytes gathered before a write */
    dt_text batch = {0}, line = {0};
    dt_err err = DT_OK;
    if (f->head) dt_text_append(&batch, f->head->bytes, f->head->n);
    batch.failed |= f->head && f->head->failed;
    for (int64_t i = 0; err == DT_OK && i < lines->n; i++) {
        err = read_line(&lines->line[i], in, path, &line);
        if (err == DT_OK && f->adapt) f->adapt(f->self, &line);
        dt_text_append(&batch, line.bytes, line.n);
        batch.failed |= line.failed;
        if (err != DT_OK || (batch.n < BATCH && !batch.failed)) continue;
        err = dt_record_file_write(to, &batch);
        batch.n = 0;
    }
    if (err == DT_OK) err = dt_record_file_write(to, &batch);
    dt_text_free(&batch);
    dt_text_free(&line);
    return err;
}

static dt_err write_again(FILE *in, const char *path, const dt_lines *lines, const dt_line_format *f)
{
    dt_aside a;
    DT_TRY(dt_aside_open(&a, path));
    dt_record_file to = {.fd = a.fd, .path = a.part};
    const dt_err err = copy_lines(in, path, lines, f, &to);
    if (err == DT_OK) return dt_aside_commit(&a);
    dt_aside_drop(&a);
    return err;
}

dt_err dt_lines_rewrite(FILE *in, const char *path, const dt_kept *kept, const dt_line_format *f)
{
    dt_lines lines = {0};
    dt_err err = in ? find_lines(in, path, kept, f, &lines) : DT_OK;
    if (err == DT_OK) err = write_again(in, path, &lines, f);
    free(lines.line);
    return err;
}
