/* tokenizer_files.c - which files belong to a tokenizer. They are carried along as they are: nothing here reads what is in them. */
#include "tokenizer_files.h"
#include <limits.h>
#include <sys/stat.h>

/* The first N_VOCABULARIES can each be a tokenizer by itself; what follows says more about one. */
static const char *const FILES[] = {"tokenizer.json",          "tokenizer.model",   "vocab.json",       "merges.txt", "tokenizer_config.json",
                                    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "generation_config.json"};
enum { N_FILES = sizeof FILES / sizeof FILES[0], N_VOCABULARIES = 3 };

bool tokenizer_dir_has_files(const char *dir)
{
    struct stat st;
    char path[PATH_MAX];
    for (int i = 0; i < N_VOCABULARIES; i++)
        if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, FILES[i]) < sizeof path && stat(path, &st) == 0 && S_ISREG(st.st_mode)) return true;
    return false;
}
