/* config_path.c - values that name files. `~/` is expanded. Paths are written as absolute paths, so that a
 * configuration means the same files from every folder. */
#include "config_private.h"
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum path_kind {
    NO_PATH,
    ONE_PATH,
    WORD_OR_PATH, /* a word, unless a file of this name exists */
    PATH_LIST,    /* comma separated */
    FUNCTIONS     /* model:PATH and command:PROGRAM, comma separated */
} path_kind;

static const struct {
    const char *section, *name;
    path_kind kind;
} PATHS[] = {
    {"run", "output_dir", ONE_PATH},
    {"model", "tokenizer", WORD_OR_PATH},
    {"model", "chat_template", WORD_OR_PATH},
    {"model", "config", ONE_PATH},
    {"data", "train", PATH_LIST},
    {"data", "validation", PATH_LIST},
    {"eval", "tasks", PATH_LIST},
    {"checkpoint", "resume", WORD_OR_PATH},
    {"ppo", "reward_funcs", FUNCTIONS},
    {"ppo", "rollouts", ONE_PATH},
    {"grpo", "reward_funcs", FUNCTIONS},
    {"grpo", "environment", FUNCTIONS},
    {"grpo", "rollouts", ONE_PATH},
    {"rec", "catalogue", ONE_PATH},
    {"rec", "item_embeddings", ONE_PATH},
    {"vision", "feature_cache", ONE_PATH},
};

static path_kind kind_of(const dt_key *k)
{
    const size_t n = strlen(k->name);
    if (k->kind != DT_KEY_TEXT) return NO_PATH;
    if (n >= 4 && !strcmp(k->name + n - 4, "path")) return ONE_PATH;
    for (size_t i = 0; i < sizeof PATHS / sizeof PATHS[0]; i++)
        if (!strcmp(PATHS[i].section, k->section) && !strcmp(PATHS[i].name, k->name)) return PATHS[i].kind;
    return NO_PATH;
}

/* One item of a value: text[0 .. n), without the blanks and quotes around it. */
typedef struct item {
    const char *text;
    size_t n;
} item;

/* How a value is rewritten. */
typedef struct rewriting {
    path_kind kind;
    const char *head; /* of messages */
    const char *here; /* current directory: make paths absolute; NULL: expand ~ */
    FILE *to;
} rewriting;

static dt_err check_variable(item it, const char *head)
{
    for (size_t i = 0; i + 1 < it.n; i++) {
        const char *name = it.text + i + 1;
        size_t n = 0;
        if (it.text[i] != '$' || !(isalpha((unsigned char)*name) || *name == '_')) continue;
        while (i + 1 + n < it.n && (isalnum((unsigned char)name[n]) || name[n] == '_')) n++;
        return dt_fail(DT_ERR_USAGE, "%s: $%.*s in a path is not expanded: expected ${%.*s}, found '%.*s'", head,
                       (int)n, name, (int)n, name, (int)(it.n < 200 ? it.n : 200), it.text);
    }
    return DT_OK;
}

static dt_err write_expanded(item it, const rewriting *r)
{
    DT_TRY(check_variable(it, r->head));
    if (it.text[0] == '~') {
        const char *home = getenv("HOME");
        DT_CHECK(it.n == 1 || it.text[1] == '/', DT_ERR_USAGE,
                 "%s: expected ~/... or a full path, found '%.*s' (home directories of other users are not supported)",
                 r->head, (int)(it.n < 200 ? it.n : 200), it.text);
        DT_CHECK(home && *home, DT_ERR_USAGE,
                 "%s: the path begins with ~, but the environment variable HOME is not set", r->head);
        fputs(home, r->to);
        it.text++, it.n--;
    }
    fwrite(it.text, 1, it.n, r->to);
    return DT_OK;
}

static bool exists(item it)
{
    char path[PATH_MAX];
    if (it.n >= sizeof path) return false;
    snprintf(path, sizeof path, "%.*s", (int)it.n, it.text);
    return access(path, F_OK) == 0;
}

static dt_err write_absolute(item it, const rewriting *r)
{
    while (r->kind == ONE_PATH && it.n > 1 && it.text[it.n - 1] == '/') it.n--;
    const bool is_word = r->kind == WORD_OR_PATH && !exists(it);
    while (!is_word && it.n > 2 && it.text[0] == '.' && it.text[1] == '/') it.text += 2, it.n -= 2;
    if (it.text[0] != '/' && !is_word) fprintf(r->to, "%s/", strcmp(r->here, "/") ? r->here : "");
    fwrite(it.text, 1, it.n, r->to);
    return DT_OK;
}

/* In a command, ~ and $NAME follow the shell's rules. Words with a slash that name files become absolute paths. */
static dt_err write_command(item it, const rewriting *r)
{
    for (size_t i = 0, n; i < it.n; i += n) {
        for (n = 0; i + n < it.n && !isspace((unsigned char)it.text[i + n]) && it.text[i + n] != ':';) n++;
        const item word = {it.text + i, n};
        if (r->here && n && word.text[0] != '/' && memchr(word.text, '/', n) && exists(word))
            fprintf(r->to, "%s/", r->here);
        if (n == 0) n = 1; /* a blank or colon */
        fwrite(word.text, 1, n, r->to);
    }
    return DT_OK;
}

static dt_err write_item(item it, const rewriting *r)
{
    static const char model[] = "model:";
    const size_t skip = sizeof model - 1;
    if (it.n == 0) return DT_OK;
    if (r->kind == FUNCTIONS) {
        if (it.n <= skip || strncmp(it.text, model, skip) != 0) return write_command(it, r);
        fputs(model, r->to);
        it.text += skip, it.n -= skip;
    }
    return r->here ? write_absolute(it, r) : write_expanded(it, r);
}

static dt_err write_items(const char *value, const rewriting *r)
{
    const bool list = r->kind == PATH_LIST || r->kind == FUNCTIONS;
    for (const char *p = value; *p;) {
        while (list && *p && strchr(" \t\"'", *p)) fputc(*p++, r->to);
        const size_t n = list ? strcspn(p, ",") : strlen(p);
        DT_TRY(write_item((item){p, n}, r));
        p += n;
        if (*p) fputc(*p++, r->to);
    }
    return DT_OK;
}

static dt_err rewrite(const dt_key *k, const char *value, const char *head, const char *here, char **out)
{
    size_t size;
    char *text = NULL;
    rewriting r = {.kind = kind_of(k), .head = head, .here = here};
    *out = NULL;
    if (r.kind == NO_PATH) {
        *out = strdup(value);
        return *out ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: out of memory for its value", head);
    }
    r.to = open_memstream(&text, &size);
    DT_CHECK(r.to, DT_ERR_MEMORY, "%s: out of memory for its value", head);
    dt_err err = write_items(value, &r);
    if (fclose(r.to) != 0 && err == DT_OK) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for its value", head);
    if (err == DT_OK)
        *out = text;
    else
        free(text);
    return err;
}

dt_err dt_key_expand_path(const dt_key *k, const char *value, const char *head, char **out)
{
    return rewrite(k, value, head, NULL, out);
}

/* Would a value with a path in the current directory be parsed as it was written? */
static bool reads_back(path_kind kind, const char *here)
{
    for (const char *p = here + 1; *p; p++)
        if (*p == ';' && isspace((unsigned char)p[-1])) return false; /* would begin a comment */
    return !strpbrk(here, kind == FUNCTIONS ? ",;:\"' \t\r\n$" : kind == PATH_LIST ? ",:\"'\t\r\n$" : "\t\r\n$");
}

char *dt_key_absolute(const dt_key *k, const char *value, bool *stays)
{
    char *here = getcwd(NULL, 0), *text = NULL;
    if (!here || rewrite(k, value, k->name, here, &text) != DT_OK) text = strdup(value);
    const bool fits =
        text && (strcmp(text, value) == 0 || (reads_back(kind_of(k), here) &&
                                              strlen(text) + strlen(k->name) + strlen(" = ") <= DT_CONFIG_LINE_MAX));
    free(here);
    if (!text || fits) return text;
    if (stays) *stays = true;
    free(text);
    return strdup(value);
}

dt_err dt_path_expand(const char *path, const char *head, char **out)
{
    static const dt_key any = {.section = "", .name = "path", .kind = DT_KEY_TEXT};
    return rewrite(&any, path, head, NULL, out);
}
