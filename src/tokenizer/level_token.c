/* level_token.c - level tokens, which spell semantic IDs. */
#include "dtrain/tokenizer/tokenizer.h"

size_t dt_level_token_len(const char *text, size_t nbytes)
{
    if (nbytes < 3 || text[0] != '<') return 0;
    size_t n = 1;
    while (n < nbytes && (unsigned char)text[n] > ' ' && text[n] != '<' && text[n] != '>' && text[n] != 0x7f) n++;
    return n > 1 && n < nbytes && text[n] == '>' ? n + 1 : 0;
}
