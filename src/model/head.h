/* head.h - the head's weights while they are held, and logits of some rows: for the loss (head.c) and for what comes
 * next (last_logits.c). */
#ifndef DT_MODEL_HEAD_H
#define DT_MODEL_HEAD_H

#include "model_private.h"

/** The unit of the head, and that of the vocabulary product: the embedding's where they are tied. */
struct head_weights {
    dt_param_view head, out;
};

/** Collective where the parameter source gathers shards; every acquire has its release, behind the last use. */
dt_err dt_head_acquire(dt_model *m, struct head_weights *w);
dt_err dt_head_release(dt_model *m);

/** m->h.logits[n, logits_ld] = norm(hidden[index]) Wout^T in fp32, with the head's adapter, queued; n is at most
 *  m->h.n_rows. The rows before and behind the norm stay in m->h.x and m->h.y.
 *
 *  index      in, on the device [n]: rows of the hidden states
 *  token_key  in, on the device [n]: keys of their tokens, in training; NULL: the head's adapter drops nothing */
dt_err dt_head_logits(dt_model *m, const struct head_weights *w, const int32_t *index, const uint64_t *token_key,
                      int64_t n);

#endif
