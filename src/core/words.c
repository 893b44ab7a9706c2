/* words.c - lists of words in one string. */
#include "dtrain/core/core.h"
#include <stdio.h>
#include <string.h>

bool dt_has_word(const char *list, const char *word)
{
    const size_t len = strlen(word);
    for (size_t n; *(list += strspn(list, ", ")); list += n) {
        n = strcspn(list, ", ");
        if (n == len && strncmp(list, word, n) == 0) return true;
    }
    return false;
}

const char *dt_choices(char *out, size_t size, const char *const *word, int n)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", word[i]);
    return out;
}
