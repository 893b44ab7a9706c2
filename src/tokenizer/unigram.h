/* unigram.h - a unigram language model: a piece of text is divided into the tokens with the largest sum of scores.
 *
 * Source   Kudo, ACL 2018, arXiv:1804.10959; unspecified details as in Hugging Face's tokenizers. */
#ifndef DTRAIN_TEXT_UNIGRAM_H
#define DTRAIN_TEXT_UNIGRAM_H

#include "dtrain/io/spec.h"
#include "token_trie.h"
#include "vocab.h"

typedef struct dt_unigram {
    dt_trie trie;
    double *score; /* [n], by id */
    int32_t n;
    double unknown; /* score of a character that is no token */
} dt_unigram;

/** Read "vocab" of a model of type Unigram, and add its tokens to vocab. u: out, must be freed, also after an error.
 *  DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_unigram_read(dt_unigram **u, const dt_spec *model, dt_vocab *vocab);
size_t dt_unigram_nbytes(const dt_unigram *u); /* 0 for NULL */
void dt_unigram_free(dt_unigram *u);           /* safe on NULL */

/** By position in a text. */
typedef struct dt_unigram_node {
    double score;      /* of the best division of the text before it */
    int32_t start, id; /* of the last token in that division; start -1: there is none */
    int32_t end;       /* of the next token, in the best division of the whole text */
} dt_unigram_node;
/** Buffer of one thread. {0} to begin. */
typedef struct dt_unigram_work {
    dt_unigram_node *node;
    size_t n_alloc;
} dt_unigram_work;

/** Find the best division: the first token ends at node[0].end, its id is that of the node there. unk: id of characters
 *  that are no token; -1: they are an error. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_unigram_divide(const dt_unigram *u, dt_unigram_work *w, const char *text, size_t n, int32_t unk);

#endif
