/* token_trie.h - tokens by the bytes of their texts. */
#ifndef DTRAIN_TEXT_TOKEN_TRIE_H
#define DTRAIN_TEXT_TOKEN_TRIE_H

#include "dtrain/core/core.h"

/** A trie of bytes. Node 0 is null. */
typedef struct dt_trie_node {
    int32_t child, sibling; /* 0: none */
    int32_t token;          /* index of the token that ends here, -1: none */
    unsigned char byte;
} dt_trie_node;
typedef struct dt_trie {
    dt_trie_node *node;
    size_t n_nodes, n_alloc;
    int32_t root[256];
    size_t longest;
} dt_trie;

/** Add a token, unless its text has one. DT_ERR_DATA: all texts together are too long. DT_ERR_MEMORY. */
dt_err dt_trie_add(dt_trie *t, const char *text, size_t n, int token);
/** The longest token that starts at text, -1: none. n: out, its length in bytes. */
int dt_trie_longest(const dt_trie *t, const char *text, size_t nbytes, size_t *n);
/** The node after `at` (0: the root) by a byte; 0: none. */
static inline int32_t dt_trie_step(const dt_trie *t, int32_t at, unsigned char byte)
{
    int32_t next = at ? t->node[at].child : t->root[byte];
    while (next && t->node[next].byte != byte) next = t->node[next].sibling;
    return next;
}
/** True if a token begins at `at` or before, and ends at `least` or after: it touches or spans the position. */
bool dt_trie_touches(const dt_trie *t, const char *text, size_t n, size_t least, size_t at);

#endif
