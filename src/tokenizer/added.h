/* added.h - added tokens, which are matched in a text before all other processing. */
#ifndef DTRAIN_TEXT_ADDED_H
#define DTRAIN_TEXT_ADDED_H

#include "bpe.h"
#include "normalizer.h"
#include "token_trie.h"

enum {
    DT_ADDED_LSTRIP = 1,
    DT_ADDED_RSTRIP = 2,
    DT_ADDED_SINGLE_WORD = 4,
    DT_ADDED_NORMALIZED = 8, /* matched in normalised text */
    DT_ADDED_SPECIAL = 16,
    DT_ADDED_SPLIT = 32 /* not matched, treated as text (split_special_tokens) */
};
typedef struct dt_added_token {
    int32_t id;
    unsigned flags;
} dt_added_token;

typedef struct dt_added {
    dt_added_token *token;
    int n_tokens;
    /* tokens matched in the raw text, and tokens matched in the normalised text, in normalised form */
    dt_trie trie[2];
} dt_added;

/** Added tokens as files define them (auto.h); contents are borrowed from the files. */
typedef struct dt_added_item {
    const char *key; /* of a named token: bos_token, ...; NULL: none */
    const char *content;
    size_t n;
    int32_t id;
    unsigned flags;
    int order;
    bool is_text;  /* a string in the file, not an object */
    bool is_other; /* it has a non-standard name */
    dt_spec from;  /* for messages */
} dt_added_item;
typedef struct dt_added_list {
    dt_added_item *item;
    int n;
    dt_vocab first; /* by content: the index of the first item with it */
} dt_added_list;
void dt_added_list_free(dt_added_list *l); /* safe on {0} */

/** Add the tokens to the vocabulary and the tries. DT_ERR_DATA, DT_ERR_MEMORY. Must be freed, also after an error. */
dt_err dt_added_read(dt_added *a, const dt_added_list *list, dt_vocab *vocab, const dt_normalizer *normalizer,
                     dt_matcher *m);
size_t dt_added_nbytes(const dt_added *a);
void dt_added_free(dt_added *a); /* safe on {0} */

/** The next token in a segment: the one that starts first, and of several the longest. match: inout.
 *
 *  from         start of the search, and of the next one
 *  text_from    start of the text not matched so far
 *  begin .. end the match, with the spaces that it strips
 *
 *  False: none. */
typedef struct dt_added_match {
    size_t from, text_from;
    size_t begin, end;
    int32_t id;
} dt_added_match;
bool dt_added_next(const dt_added *a, int which, const dt_segment *p, dt_added_match *match);

#endif
