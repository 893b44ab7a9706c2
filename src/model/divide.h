/* divide.h - what the ranks of a team divide: the tokens of a batch (axis cp), or the matrices of a layer (axis tp). */
#ifndef DT_MODEL_DIVIDE_H
#define DT_MODEL_DIVIDE_H

#include "model_private.h"

/* context.c: without the axis cp a batch is whole, and these functions do nothing */
void dt_context_place(dt_model *m, struct arena arenas[N_ARENAS]);
void dt_context_place_backward(dt_model *m, struct arena *a);
/** The rank's part of a batch: of a new one, or of that of the last forward. */
const dt_batch *dt_context_cut(dt_model *m, const dt_batch *b);
const dt_batch *dt_context_part(const dt_model *m, const dt_batch *b);
/** x [n_all rows], host, or NULL: this rank has set rows first .. first+n-1, and receives the others. */
dt_err dt_context_join(const dt_model *m, void *x, size_t row_nbytes, int64_t first, int64_t n, int64_t n_all);
struct kv {
    const void *k, *v;
};
struct kv_gradients {
    void *k, *v;
};
/** The keys and values that this rank's queries attend to, from those of its tokens in rows of W; sets at->kv_ld. */
dt_err dt_context_gather(const dt_model *m, const void *k, const void *v, dt_attention *at, struct kv *all);
/** Destination of their gradients, and then those of the rank's tokens, in rows of W. */
dt_err dt_context_begin_backward(const dt_model *m, void *dk, void *dv, struct kv_gradients *all);
dt_err dt_context_end_backward(const dt_model *m, void *dkv);
/** What a rank without tokens does instead of attention. */
dt_err dt_context_skip(const dt_model *m);
dt_err dt_context_skip_backward(const dt_model *m, const struct block *b);

/* divide.c: without the axis tp these functions do nothing */
/** Set m->mc, of the rank's part of a model. */
void dt_divide_config(dt_model *m, const dt_model_config *mc);
/** Add what the ranks have of x [T,C], the output of a divided branch or the gradient of its input. */
dt_err dt_divide_join(const dt_model *m, void *x);
static inline bool dt_is_divided(const dt_model *m) { return m->mc == &m->part_config; }

#endif
