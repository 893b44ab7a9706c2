/* journal.c - a file of objects, one a line, several of them to a step. */
#include "jsonl.h"
#include <stdlib.h>

struct dt_journal {
    dt_record_file file;
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

dt_err dt_journal_write(dt_journal *j, const char *lines, size_t nbytes)
{
    return dt_record_file_write(&j->file, &(dt_record){.data = (char *)lines, .nbytes = nbytes, .cap = nbytes});
}

dt_err dt_journal_sync(dt_journal *j) { return j ? dt_record_file_sync(&j->file) : DT_OK; }

void dt_journal_close(dt_journal *j)
{
    if (!j) return;
    dt_record_file_close(&j->file);
    free(j);
}
