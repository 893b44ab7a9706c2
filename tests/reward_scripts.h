/* reward_scripts.h - programs of a few lines of shell that judge well, badly or not at all, in a folder of their
 * own. */
#ifndef DTRAIN_TESTS_REWARD_SCRIPTS_H
#define DTRAIN_TESTS_REWARD_SCRIPTS_H

#include "../src/reward/program.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char script_dir[64], script_path[128];

static inline int open_scripts(void **state)
{
    snprintf(script_dir, sizeof script_dir, "/tmp/dtrain-test-reward-XXXXXX");
    if (!mkdtemp(script_dir)) return 1;
    return 0;
}

static inline int remove_scripts(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", script_dir);
    return system(command);
}

/* Requests are objects with a number, filled up to `nbytes` bytes. */
static inline dt_err numbered(void *self, int64_t k, char **line)
{
    const int nbytes = *(const int *)self;
    DT_CHECK(asprintf(line, "{\"number\":%lld,\"text\":\"%*s\"}", (long long)k, nbytes, "") >= 0, DT_ERR_MEMORY, "no");
    return DT_OK;
}

/* The number of each request. sed -u reads and writes line by line. */
#define ECHO_NUMBERS "sed -u 's/.*\"number\":\\([0-9]*\\).*/\\1/'"

/* Each in a file of its own: a shell reads its script as it goes. */
static inline dt_err write_script(const char *text)
{
    static int number;
    snprintf(script_path, sizeof script_path, "%s/judge%d.sh", script_dir, number++);
    FILE *f = fopen(script_path, "w");
    DT_CHECK(f && fprintf(f, "#!/bin/sh\n%s\n", text) > 0 && fclose(f) == 0 && chmod(script_path, 0700) == 0,
             DT_ERR_WRITE, "cannot write %s", script_path);
    return DT_OK;
}

/* Write it down and start it. */
static inline dt_err start_script(dt_program *p, const char *text)
{
    DT_TRY(write_script(text));
    DT_TRY(dt_program_open(p, script_path, true));
    return dt_program_start(p, 2, 5, 1);
}

#endif
