/* contrast.h - the in-batch contrastive loss of embeddings, without models and data. Private to src/task. */
#ifndef DTRAIN_TASK_CONTRAST_H
#define DTRAIN_TASK_CONTRAST_H

#include <stdbool.h>
#include <stdint.h>

enum { DT_MOST_LENGTHS = 32 };

/** n groups of at most n_texts texts. Text 0 of a group is its query, text 1 fits it, and the others do not. Candidates
 *  of a query are the texts 1, 2, ... of all groups. With s_ij = scale cos(query i, candidate j) the loss of query i
 *  is -log softmax_j(s_ij) at its text 1, summed over the starts of embeddings of length dim[k], times weight[k].
 *
 *  Source: Henderson et al., arXiv:1705.00652; Kusupati et al., arXiv:2205.13147; MultipleNegativesRankingLoss and
 *  MatryoshkaLoss of sentence-transformers. */
typedef struct dt_contrast {
    double scale;
    int n_lengths;
    int64_t dim[DT_MOST_LENGTHS]; /* ends of the starts: at most width */
    double weight[DT_MOST_LENGTHS];
    int64_t n, n_texts, width;
    double *x;        /* [n, n_texts, width] embeddings */
    double *present;  /* [n, n_texts] 1: the text exists */
    double *inverse;  /* [n, n_texts] scratch: 1 / length of the start of an embedding */
    double *log_sum;  /* [n] log of the sum of exp(s_ij) over j; 0: the group does not exist */
    double *loss;     /* [n] */
    double *right;    /* [n] 1: text 1 has the largest cosine, of the last length */
    double *gradient; /* [n, n_texts, width] of the sum of losses; NULL: not wanted */
} dt_contrast;

/** Begin: loss and gradients 0. */
void dt_contrast_clear(dt_contrast *c);
/** Prepare length k: the inverse lengths of all starts. */
void dt_contrast_length(dt_contrast *c, int k);
/** scale times the cosine of the starts of query i and text t of group j, of the length that was prepared. */
double dt_contrast_similarity(const dt_contrast *c, int k, int64_t i, int64_t j, int64_t t);
/** Add the losses of the groups of this rank, and set their log_sum. mine: [n] does the group belong to this rank? */
void dt_contrast_losses(dt_contrast *c, int k, const bool *mine);
/** Add the gradients of the texts of these groups, once log_sum is known of all groups. They are complete: those of
 *  candidates are sums over the queries of all groups, in their order. */
void dt_contrast_gradients(dt_contrast *c, int k, const bool *mine);

#endif
