/* words.c - lists of words in one string. */
#include "dtrain/core/core.h"
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
