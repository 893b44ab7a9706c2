/* journal.c - a file of JSON objects, one per line, with several lines per step. */
#include "dtrain/report/report.h"
#include "metrics_jsonl.h"
#include <stdlib.h>
#include <unistd.h>

struct dt_journal {
    dt_record_file file;
    FILE *lines;   /* between begin and end */
    int64_t begin; /* their offset in the file */
    dt_err err;    /* first error of writing them */
    char buffer[1 << 14];
};

static dt_err open_file(dt_journal *j, const char *path, int64_t last_step)
{
    const dt_kept kept = {.last_step = last_step, .several = true};
    if (last_step > 0) DT_TRY(dt_jsonl_cut(path, &kept));
    return dt_record_file_open(&j->file, path, last_step > 0);
}

dt_err dt_journal_open(dt_journal **out, const char *path, int64_t last_step)
{
    dt_journal *j = calloc(1, sizeof *j);
    *out = NULL;
    DT_CHECK(j, DT_ERR_MEMORY, "%s: no memory", path);
    j->file.fd = -1;
    const dt_err err = open_file(j, path, last_step);
    if (err == DT_OK)
        *out = j;
    else
        dt_journal_close(j);
    return err;
}

static ssize_t add(void *cookie, const char *bytes, size_t n)
{
    dt_journal *j = cookie;
    const dt_text r = {.bytes = (char *)bytes, .n = n, .n_alloc = n};
    if (j->err == DT_OK) j->err = dt_record_file_write(&j->file, &r);
    return j->err == DT_OK ? (ssize_t)n : 0;
}

dt_err dt_journal_begin(dt_journal *j, FILE **f)
{
    j->begin = j->file.nbytes, j->err = DT_OK;
    *f = j->lines = fopencookie(j, "w", (cookie_io_functions_t){.write = add});
    DT_CHECK(*f, DT_ERR_MEMORY, "%s: out of memory for the write buffer", j->file.path);
    setvbuf(*f, j->buffer, _IOFBF, sizeof j->buffer);
    return DT_OK;
}

dt_err dt_journal_end(dt_journal *j, dt_err err)
{
    fclose(j->lines); /* errors are already in j->err */
    j->lines = NULL;
    if (err == DT_OK) err = j->err;
    if (err == DT_OK) return DT_OK;
    if (ftruncate(j->file.fd, j->begin) == 0) j->file.nbytes = j->begin;
    return err;
}

dt_err dt_journal_sync(dt_journal *j) { return j ? dt_record_file_sync(&j->file) : DT_OK; }

void dt_journal_close(dt_journal *j)
{
    if (!j) return;
    dt_record_file_close(&j->file);
    free(j);
}
