/* tool.c - common code of the programs. The log stores the program's name; there is no other state. */
#include "tool.h"

#include "dtrain/config/config.h"
#include "dtrain/device/device.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* If the address space is limited (ulimit -v) and too small, MPI crashes and OpenMP ends the process. So check first
 * that the limit leaves enough. */
static void check_address_space(void)
{
    enum { START_NBYTES = 128 << 20, STACK_NBYTES = 8 << 20 };
    const size_t free_nbytes = dt_address_space_free(),
                 needed = START_NBYTES + (size_t)omp_get_max_threads() * STACK_NBYTES;
    if (free_nbytes == SIZE_MAX) return;
    mallopt(M_ARENA_MAX, 1); /* an arena per thread would take 64 MiB of address space each */
    if (free_nbytes >= needed) return;
    dt_log(DT_LOG_ERROR,
           "out of address space: %d threads need %zu MiB to start, found %zu MiB left; raise the limit (ulimit -v), "
           "or lower OMP_NUM_THREADS",
           omp_get_max_threads(), (needed + DT_ADDRESS_RESERVE) >> 20, (free_nbytes + DT_ADDRESS_RESERVE) >> 20);
    exit(dt_exit_code(DT_ERR_MEMORY));
}

void tool_start(const char *name)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    dt_log_name(name);
    check_address_space();
}

static bool reader_has_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int tool_end(dt_err err)
{
    errno = 0;
    const bool lost = fflush(stdout) != 0 || ferror(stdout);
    const int why = errno ? errno : EIO;
    if ((lost || err == DT_ERR_WRITE) && reader_has_left()) return err == DT_ERR_WRITE ? 0 : dt_exit_code(err);
    if (err == DT_OK && lost) err = dt_fail(DT_ERR_WRITE, "standard output: %s", strerror(why));
    if (err != DT_OK) dt_log(DT_LOG_ERROR, "%s", *dt_error_message() ? dt_error_message() : "failed without a message");
    return dt_exit_code(err);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static int n_matching(const struct option *longs, const char *word, size_t len)
{
    int n = 0;
    for (; longs->name; longs++) n += strncmp(longs->name, word, len) == 0;
    return n;
}

/* The option that equals a name with underscores for hyphens, such as max_new_tokens; NULL: none. */
static const char *with_hyphens(const char *name, size_t len, const struct option *longs)
{
    for (; longs->name; longs++) {
        size_t i = 0;
        while (i < len && longs->name[i] && (longs->name[i] == name[i] || (longs->name[i] == '-' && name[i] == '_')))
            i++;
        if (i == len && !longs->name[i]) return longs->name;
    }
    return NULL;
}

/* The option with the smallest edit distance, if it is small enough; else NULL. */
static const char *nearest(const char *name, size_t len, const struct option *longs)
{
    char typed[64];
    const char *best = NULL;
    if (len >= sizeof typed) return NULL;
    snprintf(typed, sizeof typed, "%.*s", (int)len, name);
    for (int most = 1 + (int)len / 4; longs->name; longs++) {
        const int distance = dt_edit_distance(typed, longs->name);
        if (distance <= most) best = longs->name, most = distance - 1;
    }
    return best;
}

static dt_err refuse(const char *word, const struct option *longs)
{
    const char *help = dt_log_program();
    const char *name = strncmp(word, "--", 2) == 0 ? word + 2 : NULL;
    const size_t len = name ? strcspn(name, "=") : 0;
    const int n = name ? n_matching(longs, name, len) : 0;
    if (!name && optopt) return dt_fail(DT_ERR_USAGE, "-%c: unknown option; see %s --help", optopt, help);
    DT_CHECK(n != 1, DT_ERR_USAGE, "%.*s: this option takes no value, found %s", (int)len + 2, word, word + 2 + len);
    DT_CHECK(n == 0, DT_ERR_USAGE, "%s: %d options start with this; see %s --help", word, n, help);
    if (!name) return dt_fail(DT_ERR_USAGE, "%s: unknown option; see %s --help", word, help);
    const char *ours = with_hyphens(name, len, longs);
    DT_CHECK(!ours, DT_ERR_USAGE, "%s: unknown option; did you mean --%s?", word, ours);
    DT_CHECK(!name[len] || !memchr(name, '.', len), DT_ERR_USAGE, "%s: keys are set without the leading --: %s", word,
             name);
    const char *near = nearest(name, len, longs);
    DT_CHECK(!near, DT_ERR_USAGE, "%s: unknown option; the nearest is --%s; see %s --help", word, near, help);
    return dt_fail(DT_ERR_USAGE, "%s: unknown option; see %s --help", word, help);
}

/* Expand ~/ in a path, which the shell does not do in quotes. The new text lives as long as the program. */
static dt_err expand(char **word)
{
    char *path, *text = *word;
    const bool home = text[0] == '~' && (!text[1] || text[1] == '/');
    const bool variable = text[0] == '$' && (isalpha((unsigned char)text[1]) || text[1] == '_' || text[1] == '{');
    if ((!home && !variable) || access(text, F_OK) == 0) return DT_OK; /* or such a file exists */
    DT_CHECK(!variable, DT_ERR_USAGE,
             "%s: expected a path, found a variable that the shell did not expand; write it without single quotes",
             text);
    DT_TRY(dt_path_expand(text, text, &path));
    *word = path;
    return DT_OK;
}

static dt_err expand_all(char **words, int n)
{
    for (int i = 0; i < n; i++) DT_TRY(expand(&words[i]));
    return DT_OK;
}

dt_err tool_parse_int(const char *name, const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    DT_CHECK(end != text && !*end && errno == 0 && v >= low && v <= high, DT_ERR_USAGE,
             "--%s: expected a whole number from %" PRId64 " to %" PRId64 ", found '%s'", name, low, high, text);
    *value = v;
    return DT_OK;
}

static dt_err parse_real(const tool_row *r, const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    const bool is_number = end != text && !*end && isfinite(*value);
    if (r->low == r->high)
        DT_CHECK(is_number, DT_ERR_USAGE, "--%s: expected a number, found '%s'", r->name, text);
    else
        DT_CHECK(is_number && *value >= r->low && *value <= r->high, DT_ERR_USAGE,
                 "--%s: expected a number from %g to %g, found '%s'", r->name, r->low, r->high, text);
    return DT_OK;
}

static dt_err parse_bytes(const tool_row *r, const char *text, uint64_t *nbytes)
{
    DT_CHECK(dt_parse_bytes(text, nbytes) && *nbytes > 0, DT_ERR_USAGE,
             "--%s: expected a size in bytes such as 500M, 5GB (10^9 each) or 2GiB (2^30 each), found '%s'", r->name,
             text);
    DT_CHECK((double)*nbytes >= r->low, DT_ERR_USAGE, "--%s: %s is %" PRIu64 " bytes; did you mean %.*sG?", r->name,
             text, *nbytes, (int)strspn(text, "0123456789."), text);
    return DT_OK;
}

static dt_err parse_word(const tool_row *r, const char *text, int *value)
{
    char list[128] = "";
    *value = (int)r->low;
    for (const char *word = r->words;; ++*value) {
        const size_t len = strcspn(word, ",");
        if (strlen(text) == len && strncmp(text, word, len) == 0) return DT_OK;
        const bool last = !word[len];
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%.*s",
                 word == r->words ? ""
                 : last           ? " or "
                                  : ", ",
                 (int)len, word);
        if (last) return dt_fail(DT_ERR_USAGE, "--%s: expected %s, found '%s'", r->name, list, text);
        word += len + 1;
    }
}

static dt_err store(const tool_row *r, void *options, char *text)
{
    void *to = (char *)options + r->at;
    const int64_t high = r->high >= 0x1p63 ? INT64_MAX : (int64_t)r->high;
    int64_t n = 0;
    if (r->given) *(const char **)(void *)((char *)options + r->given) = r->name;
    switch (r->kind) {
    case TOOL_SET:
    case TOOL_CLEAR:
        *(bool *)to = r->kind == TOOL_SET;
        return DT_OK;
    case TOOL_STRING:
        *(const char **)to = text;
        return DT_OK;
    case TOOL_INT:
        DT_TRY(tool_parse_int(r->name, text, (int64_t)r->low, high, &n));
        *(int *)to = (int)n;
        return DT_OK;
    case TOOL_INT64:
        return tool_parse_int(r->name, text, (int64_t)r->low, high, to);
    case TOOL_REAL:
        return parse_real(r, text, to);
    case TOOL_BYTES:
        return parse_bytes(r, text, to);
    case TOOL_WORD:
        return parse_word(r, text, to);
    default:
        return r->take(options, r, text);
    }
}

/* Tables for getopt_long: for a long option it returns ROW and the row's index, else the letter. */
enum { MOST_ROWS = 80, ROW = 256 };

static dt_err next_row(const tool_row *rows, const struct option *longs, const char *shorts, int argc, char **argv,
                       const tool_row **row)
{
    opterr = 0;
    const int c = getopt_long(argc, argv, shorts, longs, NULL);
    const char *word = c == -1 ? "" : argv[optind - 1];
    DT_CHECK(c != ':', DT_ERR_USAGE, "%s: expected a value after this option; see %s --help", word, dt_log_program());
    if (c == '?') return refuse(word, longs);
    *row = c == -1 ? NULL : c >= ROW ? rows + c - ROW : rows;
    while (c != -1 && c < ROW && (*row)->letter != c) ++*row;
    return DT_OK;
}

dt_err tool_parse(const tool_row *rows, void *options, int argc, char **argv)
{
    struct option longs[MOST_ROWS] = {0};
    char shorts[MOST_ROWS] = ":";
    int n = 0;
    for (const tool_row *r = rows; r->name || r->help; r++) {
        if (!r->name) continue;
        longs[n++] = (struct option){r->name, r->value ? required_argument : no_argument, NULL, ROW + (int)(r - rows)};
        if (r->letter) strcat(strncat(shorts, &r->letter, 1), r->value ? ":" : "");
    }
    for (const tool_row *row = NULL;;) {
        DT_TRY(next_row(rows, longs, shorts, argc, argv, &row));
        if (!row) return expand_all(argv + optind, argc - optind);
        if (row->value && !row->text) DT_TRY(expand(&optarg));
        DT_TRY(store(row, options, optarg));
    }
}
