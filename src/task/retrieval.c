/* retrieval.c - metrics of retrieval, as sentence-transformers' InformationRetrievalEvaluator defines them, with one
 * text that fits each query:
 *
 *     MRR@10 = mean of 1 / rank        recall@k = share of ranks up to k        NDCG@10 = mean of 1 / log2(1 + rank)
 *
 * The first two terms are 0 for ranks above 10. A candidate with the same cosine counts as better only if it comes
 * earlier. */
#include "retrieval.h"
#include <math.h>

enum { DEEPEST = 10 };
static const int DEPTH[DT_RECALLS] = {1, 5, 10};

void dt_retrieval_declare(dt_retrieval *r, dt_sums *s, const char *n)
{
    char name[DT_SUM_NAME];
    r->mrr = dt_sums_metric(s, DT_SHOW_VALIDATION, "embed/validation_mrr@10", DT_SUM_LOSS, n);
    r->ndcg = dt_sums_metric(s, DT_SHOW_VALIDATION, "embed/validation_ndcg@10", DT_SUM_LOSS, n);
    for (int i = 0; i < DT_RECALLS; i++) {
        snprintf(name, sizeof name, "embed/validation_recall@%d", DEPTH[i]);
        r->recall[i] = dt_sums_metric(s, DT_SHOW_VALIDATION, name, DT_SUM_UNITS, n);
    }
}

/* 1 + the number of candidates that come before the text that fits query i. */
static int64_t rank_of(const dt_contrast *c, int64_t i)
{
    const double own = dt_contrast_similarity(c, 0, i, i, 1);
    int64_t rank = 1;
    for (int64_t j = 0; j < c->n; j++)
        for (int64_t t = 1; t < c->n_texts; t++) {
            if (!(c->present[j * c->n_texts + t] > 0) || (j == i && t == 1)) continue;
            const double s = dt_contrast_similarity(c, 0, i, j, t);
            rank += s > own || (s == own && j < i);
        }
    return rank;
}

void dt_retrieval_measure(const dt_retrieval *r, dt_task *t, const dt_contrast *c)
{
    for (int64_t i = t->data->rank; i < c->n; i += t->data->size) {
        const int64_t rank = rank_of(c, i);
        if (rank <= DEEPEST) {
            dt_sums_add(t->sums, r->mrr, 1 / (double)rank);
            dt_sums_add(t->sums, r->ndcg, 1 / log2(1 + (double)rank));
        }
        for (int k = 0; k < DT_RECALLS; k++) dt_sums_count(t->sums, r->recall[k], rank <= DEPTH[k]);
    }
}
