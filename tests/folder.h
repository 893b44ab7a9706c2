/* folder.h - a folder of the test's own. */
#ifndef DTRAIN_TESTS_FOLDER_H
#define DTRAIN_TESTS_FOLDER_H

#include "cases.h"
#include "dtrain/io/io.h"
#include <limits.h>

static char folder[32];

static inline int make_folder(void **state)
{
    strcpy(folder, "/tmp/dtrain-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    dt_error_clear();
    return system(command);
}

/* The path of a file in it; the last four remain. */
static inline const char *in_folder(const char *name)
{
    static char path[4][PATH_MAX];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, PATH_MAX, "%s/%s", folder, name);
    return p;
}

static inline const char *write_file(const char *name, const char *text)
{
    const char *path = in_folder(name);
    assert_int_equal(dt_write_file_sync(path, text, strlen(text)), DT_OK);
    return path;
}

#endif
