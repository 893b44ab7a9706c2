/* token_trie.c - texts by their beginnings. */
#include "token_trie.h"

#include <stdlib.h>

dt_err dt_trie_add(dt_trie *t, const char *text, size_t n, int token)
{
    if (t->n_nodes + n + 1 > t->n_alloc) {
        const size_t n_alloc = 2 * (t->n_nodes + n + 1);
        DT_CHECK(n_alloc < INT32_MAX, DT_ERR_DATA, "tokens of less than 2 GiB in total");
        DT_RESIZE(t->node, n_alloc, "out of memory for tokens");
        t->n_alloc = n_alloc;
        if (!t->n_nodes) t->n_nodes = 1;
    }
    int32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)text[i];
        int32_t *first = i ? &t->node[at].child : &t->root[byte], child = *first;
        while (child && t->node[child].byte != byte) child = t->node[child].sibling;
        if (!child) {
            child = (int32_t)t->n_nodes++;
            t->node[child] = (dt_trie_node){.sibling = *first, .token = -1, .byte = byte};
            *first = child;
        }
        at = child;
    }
    if (n > 0 && t->node[at].token < 0) t->node[at].token = token;
    if (n > t->longest) t->longest = n;
    return DT_OK;
}

int dt_trie_longest(const dt_trie *t, const char *text, size_t nbytes, size_t *n)
{
    int best = -1;
    int32_t at = nbytes ? t->root[(unsigned char)text[0]] : 0;
    for (size_t i = 1; at; i++) {
        if (t->node[at].token >= 0) best = t->node[at].token, *n = i;
        if (i == nbytes) break;
        for (at = t->node[at].child; at && t->node[at].byte != (unsigned char)text[i];) at = t->node[at].sibling;
    }
    return best;
}

bool dt_trie_touches(const dt_trie *t, const char *text, size_t n, size_t least, size_t at)
{
    if (!t->longest) return false;
    for (size_t i = least > t->longest ? least - t->longest : 0, len; i <= at && i < n; i++)
        if (dt_trie_longest(t, text + i, n - i, &len) >= 0 && i + len >= least) return true;
    return false;
}
