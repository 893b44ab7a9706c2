/* head.h - the head's weights while they are held, and logits of selected rows: for the loss (head.c) and for
 * generation (last_logits.c). */
#ifndef DT_MODEL_HEAD_H
#define DT_MODEL_HEAD_H

#include "model_private.h"

/** The unit of the head, and the unit of the vocabulary matmul. With a tied head the latter is the embedding's. */
struct head_weights {
    dt_param_view head, out;
};

/** Collective if the parameter source gathers shards. Each acquire needs a release, after the last use. */
dt_err dt_head_acquire(dt_model *m, struct head_weights *w);
dt_err dt_head_release(dt_model *m);

/** Compute m->h.logits[n, logits_ld] = norm(hidden[index]) Wout^T in fp32, including the head's adapter and
 *  soft-capping. Queued; n is at most m->h.n_rows. m->h.x and m->h.y keep the rows before and after the norm.
 *
 *  index      in, on the device [n]: rows of the hidden states
 *  token_key  in, on the device [n]: keys of their tokens, in training; NULL: no dropout in the head's adapter */
dt_err dt_head_logits(dt_model *m, const struct head_weights *w, const int32_t *index, const uint64_t *token_key,
                      int64_t n);

#endif
