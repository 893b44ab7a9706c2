/* retrieval.h - how well queries find their texts among all texts of a validation. Private to src/task. */
#ifndef DTRAIN_TASK_RETRIEVAL_H
#define DTRAIN_TASK_RETRIEVAL_H

#include "contrast.h"
#include "dtrain/step/step.h"

enum { DT_RECALLS = 3 };
/** Sums of a validation, over queries. */
typedef struct dt_retrieval {
    int mrr, ndcg, recall[DT_RECALLS];
} dt_retrieval;

/** Declare "embed/validation_mrr@10", "..._ndcg@10", "..._recall@1", 5 and 10. n: name of the number of queries. */
void dt_retrieval_declare(dt_retrieval *r, dt_sums *s, const char *n);
/** Rank the candidates of all queries by cosine, and add this rank's share of the queries. dt_contrast_length was
 *  called for the whole embeddings. Local. */
void dt_retrieval_measure(const dt_retrieval *r, dt_task *t, const dt_contrast *c);

#endif
