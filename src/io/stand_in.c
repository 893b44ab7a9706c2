/* stand_in.c - recognises files that are left by a failed download: a Git LFS pointer, a web page, an empty file. */
#include "dtrain/io/io.h"
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool begins(const char *bytes, size_t n, const char *word)
{
    const size_t len = strlen(word);
    return n >= len && strncasecmp(bytes, word, len) == 0;
}

static bool is_page(const char *bytes, size_t n)
{
    static const char *const words[] = {"<!doctype html", "<html", "<head", "<?xml"};
    for (; n > 0 && memchr(" \t\r\n", *bytes, 4); n--) bytes++;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (begins(bytes, n, words[i])) return true;
    return false;
}

dt_err dt_refuse_pointer(const char *path, const char *bytes, size_t n)
{
    static const char *const words[] = {"version https://git-lfs.github.com/spec/", "version http://git-media.io/"};
    DT_CHECK(!begins(bytes, n, words[0]) && !begins(bytes, n, words[1]), DT_ERR_DATA,
             "%s: found a Git LFS pointer instead of the file; run `git lfs pull` in the directory of the repository",
             path);
    return DT_OK;
}

dt_err dt_refuse_stand_in(const char *path, const char *bytes, size_t n)
{
    DT_CHECK(n > 0, DT_ERR_DATA, "%s: the file is empty; copy or download it again", path);
    DT_TRY(dt_refuse_pointer(path, bytes, n));
    DT_CHECK(
        !is_page(bytes, n), DT_ERR_DATA,
        "%s: found a web page instead of the file: the download saved an error or log-in page; download the file again",
        path);
    return DT_OK;
}

dt_err dt_refuse_stand_in_file(const char *path, int fd)
{
    char head[256];
    ssize_t n;
    do n = pread(fd, head, sizeof head, 0);
    while (n < 0 && errno == EINTR);
    return n < 0 ? DT_OK : dt_refuse_stand_in(path, head, (size_t)n); /* the later read reports the error */
}
