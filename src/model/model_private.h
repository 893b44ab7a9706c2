/* model_private.h - what the files of the layer loop share.
 *
 * Symbols  T tokens of the micro-batch, C hidden_size, Q = num_attention_heads * head_dim, K = num_key_value_heads *
 * head_dim, W = Q + 2K,
 *          F intermediate_size, U = F (plain MLP) or 2F (gate and up side by side), V vocab_size, R rows of a chunk of
 *          the head.
 * All activations are [T, width], rows contiguous unless a row distance is given. */
#ifndef DT_MODEL_PRIVATE_H
#define DT_MODEL_PRIVATE_H

#include "dtrain/model/model.h"
#include <math.h>

/** Where a tensor lies in its unit. The part decides whether its gradient is computed. */
struct tensor_at {
    int64_t offset; /* elements from the start of the part; -1: there is no such tensor */
    dt_part part;
};

/** Low-rank adapters of a linear layer (adapter.h), y += h Bt with h = scale D(x) At. Of layers that one product
 *  serves, those with equal scales have one A, their rows one behind the other, each its columns of h and of y. */
enum { MAX_LOW = 3 }; /* q, k, v */
struct low_part {
    struct tensor_at b;       /* [n_out, r] */
    int64_t r, first_r;       /* columns of h */
    int64_t n_out, first_out; /* columns of y */
};
struct low_rank {
    struct tensor_at a; /* [r, n_in] */
    int64_t r;
    float scale;
    struct low_part part[MAX_LOW];
    int n_parts;
};

/** A low-rank adapter of a table of n_rows rows that is looked up, x += h Bt with h[t, k] = scale A[k, id[t]]. Its one
 *  part is all of x. A token's column of A is r rows of a table of r n_rows single numbers, since they lie n_rows
 *  apart. */
struct low_table {
    struct low_rank low; /* a [r, n_rows]; r 0: there is none */
    int64_t n_rows;
};
enum low_of { LOW_TOKENS, LOW_POSITIONS, N_LOW_TABLES };

/** Which of a block's linear layers. */
enum linear_site { LINEAR_QKV, LINEAR_O, LINEAR_UP, LINEAR_DOWN, N_LINEARS };

/** y = x Wt + b, with W [n_out, n_in], or [n_in, n_out] in GPT-2's files (conv1d), and row distance w_ld; and adapters.
 *  A W that is stored as codes (unit.h) is [n_out, n_in]. */
struct linear {
    int64_t n_in, n_out;
    struct tensor_at w, b, blocks, scale; /* but for w each may be none */
    int finer;                            /* of a W of nf4 (dt_scaled) */
    int64_t w_ld;
    bool conv1d;
    dt_int8_product int8; /* of forward */
    struct low_rank low[MAX_LOW];
    int n_low;
    int64_t low_r; /* columns of all h together; 0: there are no adapters */
    bool in_fp32;  /* y is, as logits are */
    int64_t layer;
    enum linear_site site;
};

/** A norm's weight and bias, which may be none. */
struct norm {
    struct tensor_at w, b;
};

/** One block: its number and where its tensors lie. Blocks of one model may differ in what is trained. */
struct block {
    int64_t layer; /* those with attention in both directions are counted on behind the others */
    bool bidirectional;
    struct norm norm1, norm2;
    struct tensor_at q_norm, k_norm; /* may be none */
    struct linear qkv, o, up, down;
};

/** A unit between the embedding and the head. */
struct stage {
    dt_unit_role role;
    int unit;
    int64_t set;        /* which set of activations it keeps for backward */
    struct block block; /* unless its role is OWN */
};

/** What one block leaves behind for its backward. Without backward one set serves all blocks, and x_in = x_mid =
 *  x_out. What is cheap to make again from the rest lies in one place for all sets where it is recomputed
 *  (selective).
 *
 *  q, k and v stand in rows of W as the product makes them (raw). Attention reads v there, and q and k in place too,
 *  unless the norm's backward needs them as they were (dt_model_keeps_raw): then those stand in an array of their own,
 *  whose rows are of W, too, K of them unused: matrices with other row distances may get other products from a library,
 *  with other bits, and what is recomputed must not show. */
struct block_acts {
    void *x_in, *x_mid, *x_out;           /* [T,C]: residual stream before, between and after the two halves */
    void *raw;                            /* [T,W]: q, k, v */
    void *att;                            /* [T,Q] */
    void *up;                             /* [T,U]: before the activation; backward leaves its gradient here (gated) */
    float *mean1, *rstd1, *mean2, *rstd2; /* [T] */
    float *lse;                           /* [T, heads] */
    void *low[N_LINEARS];                 /* h of adapters, one after the other: low_r elements for each token */
    /* cheap */
    void *qk;               /* [T,Q+K]: after norms and rotation (not recomputed where it is raw) */
    void *norm1, *norm2;    /* [T,C] */
    void *act;              /* [T,F] */
    float *rstd_q, *rstd_k; /* [T, heads] */
};

/** Work space that no two blocks need at once. All but dx and norm share their place with the head's. */
struct scratch {
    void *dx;    /* [T,C]: gradient of the residual stream */
    void *drop;  /* [T,C]: a branch before (its gradient after) dropout */
    void *dact;  /* [T,F] */
    void *dnorm; /* [T,C] */
    void *datt;  /* [T,Q] */
    void *dqkv;  /* [T,W] */
    float *attention, *norm;
    int64_t attention_elems;
    void *low_x; /* [T, widest n_in with adapters]: their input after dropout */
    void *low_d; /* [T, most r]: gradient of h */
    /* of the tables' adapters, from forward to backward: h [T, r], and a copy of B [C, r], since nothing else of their
     * unit is needed again */
    void *table_h[N_LOW_TABLES], *table_b[N_LOW_TABLES];
};

/** Where gradients that are added up several times within a micro-step stand in fp32 until they are rounded once: only
 *  with gradients of another type. */
struct head_sums {
    float *own;  /* as the trained part of the head's unit; several chunks */
    float *tied; /* [V,C]: of a tied table, to which the embedding's part is added */
};

/** One chunk of the head. */
struct head_work {
    int64_t n_rows, logits_ld; /* R; V rounded up so that rows are aligned */
    void *x, *y, *dy;          /* [R,C]: hidden states, after the final norm, gradient */
    float *mean, *rstd;        /* [R] */
    float *logits;             /* [R, logits_ld] */
    void *low;                 /* h of the head's adapter */
    struct head_sums sums;
};

/** What dt_model_draw and dt_model_top take and give, of up to cache_seqs sequences; host and device twins. */
struct draws {
    double *uniform, *logp;
    uint32_t *seen, *allowed, *unseen; /* [cache_seqs, seen_ld]; unseen, all other tokens, for dt_model_top alone */
    int32_t *token;
    int32_t *list_start, *list_len;
    int64_t seen_ld;
    /* two lists of each sequence, [2, cache_seqs, max_top] */
    int32_t *top_token;
    float *top_logit;
    double *top_logp;
};

/** A scalar head works on all tokens at once. */
struct value_work {
    void *y, *dy;         /* [T,C]: after the final norm, gradient */
    float *mean, *rstd;   /* [T] */
    float *host, *device; /* [T, n_labels]: values, then their gradients */
    void *dvalue;         /* the same in the activations' type; NULL: that is fp32 */
};

/** Where a norm's gradients go. */
struct norm_grads {
    void *weight, *bias; /* NULL: there is none, or it is frozen */
    dt_dtype dtype;
    bool accumulate;
};

/** A batch as the device sees it; filled on the host in pinned memory and copied as one piece, laid out anew for each
 *  batch's length. */
struct image {
    uint64_t *token_key;
    /* [T]; pos: with a rotary table the token's row in it; pos_order: as order, but by position */
    int32_t *token, *pos, *order, *pos_order;
    /* of placeholders: where they are, one sequence after the other; which row of the projector each token shows, and
     * the order of those by that */
    int32_t *shown_at, *shown, *shown_order;
    /* of a table's adapter [T, r]: the places of A's numbers, and their order by place, of what learns (in training) */
    int32_t *low_at[N_LOW_TABLES], *low_order[N_LOW_TABLES];
    int32_t *q_start, *kv_start, *kv_len; /* [n_seq + 1], [n_seq], [n_seq] */
    int32_t *shared_start, *shared_len;   /* [n_seq] where the cache has prompts */
    int32_t *cache_row;                   /* [T]: where in the cache a new token's key goes (decode) */
};

/** Rows with a target, and what comes back for them; host and device twins like the image. NULL: what the model was not
 *  opened for (dt_model_options.head). */
struct rows {
    uint64_t *token_key; /* for dropout before the head's adapter */
    int32_t *row, *target;
    float *weight, *entropy_weight, *kl_weight;
};
enum result { RESULT_LOGP, RESULT_ENTROPY, RESULT_SUM_SQUARES, RESULT_MEAN_LOGIT, RESULT_KL, N_RESULTS };
struct results {
    float *real[N_RESULTS];
    uint8_t *hit;
};

/** Twins of a part of the staging block, in pinned memory and on the device: one copy moves it. The host may touch its
 *  side again when the copy is done, which the event says. */
struct span {
    char *host, *device;
    size_t nbytes;   /* of the largest batch */
    dt_event *moved; /* recorded behind the copy; not of one that goes ahead of another */
    bool moving;     /* the host has not waited for it */
};

/** Rows of the rotary table for the positions first .. first+n-1 of sequences of `length` tokens, beyond
 *  max_position_embeddings. */
struct stretched_rows {
    int32_t length, first, n, row;
};

/** The part of the rotary table that follows the sequences of the micro-batch (stretch.c). */
struct stretch {
    /* rows that never change; of this part, 0: no sequence can be that long, or the rule has no length */
    int64_t base_rows, max_rows;
    float *host;                 /* [max_rows, head_dim], pinned */
    struct stretched_rows *have; /* [max_seq] what is in the table */
    int32_t n_have, n_rows;
};

/** What the operations of a step of generation depend on, besides the model: all that is not read from device
 *  memory. */
struct step_key {
    enum { STEP_BLOCKS, STEP_DRAW, STEP_TOP } what;
    int32_t n;   /* sequences of one token each, or rows of logits */
    int32_t len; /* what the longest cache is taken to hold, or tokens of a list */
    bool masked, limited, listed, uniform, logp;
    double logp_temperature;
    dt_choice how;
};
struct graphs; /* graphs.c */
struct vision; /* vision.c */

/** What a tower begins with (patches.c): a product of the patches of each image, behind which its class token stands
 *  in front of them; table and positions are an embedding's. */
struct tower_input {
    struct linear conv;     /* [C, 3 p p] */
    struct tensor_at token; /* of the class; may be none */
    struct norm pre;        /* may be none */
    int64_t n_rows;         /* P */
    size_t image_nbytes;    /* of pixels */
    const dt_vision_config *config;
    /* device */
    void *rows;                          /* [N P, 3 p p] */
    void *x;                             /* [N P, C]: what the norm is applied to, kept for backward */
    float *mean, *rstd;                  /* [N P] */
    void *class_row;                     /* [N, C] */
    int32_t *class_at, *zero, *in_order; /* [N]: places of class tokens; 0, 0 ..; 0, 1 .. */
    struct span pixels;
};

/** What a slot of the cache holds: the first n_shared tokens of another slot, a prompt, and behind them n_own in rows
 *  of its own. */
struct cached {
    int32_t prompt, n_shared, n_own;
};

struct dt_model {
    const dt_model_config *mc;
    dt_model_options opt;
    const dt_unit *units;
    int n_units;
    dt_device *dev;
    const dt_device_ops *ops;
    const dt_param_source *source;
    dt_stream *stream;
    dt_phase *phase;

    int64_t C, Q, K, W, F, U, V;
    size_t elem; /* bytes of an activation or parameter */
    bool tied;
    bool dropout; /* does any layer drop? */

    struct stage *stages; /* [n_stages], in the order in which a batch passes through them */
    int64_t n_stages;
    int embed_unit, head_unit;
    struct norm final_norm;
    struct linear head;        /* w inside the head's unit, or the embedding's when tied */
    struct tensor_at wte, wpe; /* wpe none: rotary */
    struct low_table low_table[N_LOW_TABLES];
    int64_t n_labels; /* of a scalar head, whose score is `head` then; 0: a vocabulary's */
    /* the lowest stage with a trained part, -1: the embedding has one, n_stages: at most the head has. Below it nothing
     * needs a gradient, and nothing is kept for backward */
    int64_t first_trained;
    int64_t first_kept;      /* first_trained, or 0 */
    bool placeholders_learn; /* what stands in the place of their embeddings has gradients */

    dt_buf activations, kept, data, staging, table;
    float *rope; /* [stretch.base_rows + stretch.max_rows, head_dim]; NULL: learned positions */
    struct stretch stretch;
    void **x; /* [n_x]: inputs of stages from first_kept on; the last is the output */
    int64_t n_x;
    struct block_acts *sets;
    int64_t n_sets;
    struct scratch s;
    struct head_work h;
    struct value_work v;
    struct image host, device;
    struct rows host_rows, device_rows;
    struct results host_results, device_results;
    struct draws host_draws, device_draws;
    void *draw_scratch;
    int32_t *listed; /* device [max_listed]: of dt_model_set_lists */
    int32_t n_listed;
    struct span image_span, rows_span, results_span, values_span;
    int32_t *pos_count; /* host [max_pos + 1]: counting sort */

    struct dt_model *user, **in_use; /* which model uses the activations now; the lender's `user` */

    void **cache;          /* [layers]: [rows of all slots, 2K], keys then values in each row */
    struct cached *cached; /* [cache_seqs + cache_prompts] */
    struct graphs *graphs; /* NULL: there are none */
    struct vision *vision; /* NULL: a language model alone */
    size_t tower_nbytes;   /* of activations that a frozen tower uses before any block does; 0: it has its own */
    struct tower_input patches;

    /* the current micro-batch */
    int32_t n_tok, n_seq, max_q_len, max_kv_len;
    int32_t n_learned; /* tokens whose embeddings learn: host.order has no others */
    int32_t n_fill;    /* tokens of as many idle slots behind them, which nobody reads (dt_step_rows) */
    bool train, have_hidden, have_dx;
    bool have_results;    /* the head's results are on their way or there: of n_rows rows */
    struct results asked; /* host twins of those that it was asked for; NULL: of others */
    int64_t n_rows;
    int64_t step;
    int64_t set_holds; /* where blocks are recomputed whole: the stage whose activations the one set holds, -1: none */
    void *hidden;      /* [T,C]: output of the last block */
    void *kept_hidden; /* [T,C]: where it is copied behind a forward (keeps_hidden); NULL: it is not */
    /* of a tied table that is trained: held from the head's backward to the embedding's; what it has so far is in
     * h.sums.tied, where that exists */
    dt_grad_view tied_grads;
};

enum dropout_site { SITE_EMBED, SITE_SCORES, SITE_ATTENTION, SITE_MLP, N_SITES };

/** Tokens of the longest sequence of a batch. */
static inline int32_t dt_model_longest(const dt_model *m)
{
    return m->opt.max_pos < m->opt.max_tok ? m->opt.max_pos : m->opt.max_tok;
}
/** Rows of the cache: slots of sequences first, then those of prompts. */
static inline int64_t dt_cache_row(const dt_model_options *o, int32_t slot)
{
    const int64_t before = slot < o->cache_seqs ? slot : o->cache_seqs;
    return before * o->cache_len + (slot - before) * o->cache_prompt_len;
}
static inline int32_t dt_cache_slots(const dt_model_options *o) { return o->cache_seqs + o->cache_prompts; }
static inline int64_t dt_cache_rows(const dt_model_options *o) { return dt_cache_row(o, dt_cache_slots(o)); }
/** Are logits of this pass to be batch-invariant? */
static inline bool dt_model_is_invariant(const dt_model *m) { return m->opt.batch_invariant && !m->train; }
/** Does backward make again what is cheap? */
static inline bool dt_model_remakes(const dt_model *m)
{
    return m->opt.training && m->opt.recompute == DT_RECOMPUTE_SELECTIVE;
}
/** Does backward need q and k as they were before their norms? */
static inline bool dt_model_keeps_raw(const dt_model *m) { return m->opt.training && m->mc->qk_norm; }
/** Are the activations still those of its own last pass? */
static inline bool dt_model_in_use(const dt_model *m) { return *m->in_use == m; }
/** Can its head work on the hidden states of a batch of so many tokens? */
static inline bool dt_model_has_hidden(const dt_model *m, int32_t n_tok)
{
    return m->have_hidden && m->n_tok == n_tok && (m->hidden == m->kept_hidden || dt_model_in_use(m));
}

static inline char *dt_at(const void *base, int64_t elems, size_t elem_size)
{
    return (char *)base + elems * (int64_t)elem_size;
}
static inline bool dt_exists(struct tensor_at t) { return t.offset >= 0; }
/** What the task's weights are multiplied by. A test may make this rank's gradients overflow. */
static inline float dt_model_loss_scale(const dt_model *m)
{
    if (dt_fault("head.overflow") != DT_OK) {
        dt_error_clear();
        return HUGE_VALF;
    }
    return m->opt.loss_scale ? (float)*m->opt.loss_scale : 1.0f;
}
/** Does it have gradients? */
static inline bool dt_is_trained(struct tensor_at t) { return dt_exists(t) && t.part == DT_TRAINED; }
/** A tensor in its unit's parameters; NULL: there is none. */
static inline void *dt_weight(const dt_param_view *w, struct tensor_at t)
{
    if (!dt_exists(t)) return NULL;
    return dt_at(w->part[t.part].data, t.offset, dt_dtype_size(w->part[t.part].dtype));
}
/** Its gradient; NULL: it has none. */
static inline void *dt_gradient(const dt_grad_view *g, struct tensor_at t)
{
    return dt_is_trained(t) ? dt_at(g->data, t.offset, dt_dtype_size(g->dtype)) : NULL;
}
/** A tied table that is trained has gradients from both ends of the model. */
static inline bool dt_has_tied_grads(const dt_model *m) { return m->tied && dt_is_trained(m->head.w); }

/** Hands out pieces of a block, or only counts them when there is no block yet. */
struct arena {
    char *base;
    size_t used;
    bool overflow;
};
/** Rows of elements of elem bytes; NULL while only counting. */
void *dt_take(struct arena *a, int64_t rows, int64_t width, size_t elem);
struct span dt_take_span(struct arena *host, struct arena *device, size_t nbytes);

/* find_tensors.c: which unit does what, and where tensors lie in them; m->stages has room for n_units */
dt_err dt_model_find_tensors(dt_model *m);
/** A linear layer and a norm that no block has, by the ends of their names. */
struct linear dt_linear_at(const dt_model *m, const dt_unit *u, const char *name, int64_t n_in, int64_t n_out);
struct norm dt_norm_at(const dt_unit *u, const char *weight, const char *bias);

/* linear.c */
/** What goes with the product of a linear layer (dt_matmul): an addend in the layout of the output, and an activation
 *  or its derivative with the activation's input. */
struct with_product {
    const void *addend;
    dt_epilogue epilogue;
    void *act_in;    /* row distance: that of the output */
    bool act_of_aux; /* dt_matmul's, of act_in */
    void *low;       /* h of the layer's adapters: forward writes it, backward reads it */
};
dt_err dt_linear_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, int64_t x_ld,
                         void *y, int64_t y_ld, int64_t n_rows, struct with_product with);
/** Gradients of the weights and bias into g, of those that are trained, and of x into dx (NULL: not wanted, of a layer
 *  without adapters). Without an addend. */
dt_err dt_linear_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                          const void *x, int64_t x_ld, const void *dy, int64_t dy_ld, void *dx, int64_t dx_ld,
                          struct with_product with, int64_t n_rows);

/* low_rank.c; x and dx: rows of n_in elements one after the other */
/** Rows that go through adapters: how many, and the keys of their tokens (device; NULL: nothing is dropped). */
struct low_rows {
    int64_t n;
    const uint64_t *token_key;
};
/** All tokens. */
struct low_rows dt_low_rank_tokens(const dt_model *m, int64_t n_rows);
/** low = what A makes of x: as much of the forward as backward needs. */
dt_err dt_low_rank_project(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x,
                           struct low_rows rows, void *low);
/** The same, and y += what B makes of that. */
dt_err dt_low_rank_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, void *y,
                           int64_t y_ld, struct low_rows rows, void *low);
/** Gradients of the adapters into g; dx = their part of the gradient of x. The layer has adapters, that are trained. */
dt_err dt_low_rank_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                            const void *x, const void *dy, int64_t dy_ld, void *dx, struct low_rows rows, void *low);
/** x [T,C] += what a table's adapter makes of the batch's tokens or positions; nothing without one. */
dt_err dt_low_table_forward(const dt_model *m, enum low_of of, const dt_param_view *w, void *x);
/** Its gradients from s.dx, that of x. A's are added to what is there. */
dt_err dt_low_table_backward(const dt_model *m, enum low_of of, const dt_grad_view *g);
/** Does backward read what the layer was applied to? */
bool dt_linear_keeps_input(const struct linear *l);
dt_err dt_norm_forward(const dt_model *m, const struct norm *n, const dt_param_view *w, const void *x, void *y,
                       float *mean, float *rstd, int64_t n_rows);
/** Their place in their unit's gradients. */
struct norm_grads dt_norm_grads_in(const struct norm *n, const dt_grad_view *g);
dt_err dt_norm_backward(const dt_model *m, const struct norm *n, const dt_param_view *w, const struct norm_grads *g,
                        const void *x, const float *mean, const float *rstd, const void *dy, void *dx, bool add_to_dx,
                        int64_t n_rows);

/* block.c, block_backward.c */
dt_attention dt_block_attention(const dt_model *m, const struct block *b);
/** The way of its heads from the product to attention; nothing where they do not change on it. */
dt_heads dt_block_heads(const dt_model *m, const struct block *b, const dt_param_view *w);
/** qk from raw. */
dt_err dt_block_make_qk(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a);
/** act from up. */
dt_err dt_block_make_act(const dt_model *m, const struct block_acts *a);
/** raw = norm1(x_in) Wqkv: the beginning of a block. */
dt_err dt_block_project(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a);
/** x_mid = x_in + att Wo: closes the first half; then the second half (x_out is left alone when want_output is false:
 *  recomputation). */
dt_err dt_block_finish(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                       bool want_output);
dt_err dt_block_forward(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                        bool want_output);
/** s.dx: in the gradient of x_out, out that of x_in. */
dt_err dt_block_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                         const struct block_acts *a);

/* graphs.c */
dt_err dt_graphs_open(dt_model *m);
void dt_graphs_close(dt_model *m); /* nothing is queued */
/** Queue a step: by `queue`, or as the graph that was recorded of it. */
typedef dt_err dt_queue_step(dt_model *m, const void *how);
dt_err dt_step_run(dt_model *m, const struct step_key *key, dt_queue_step *queue, const void *how);
/** Lengths of a cache that a step is recorded for: those up to the result. */
int32_t dt_step_len(const dt_model *m, int32_t len);
/** Rows that a step of n is filled up to, where rows do not depend on one another; at most cache_seqs. */
int32_t dt_step_rows(const dt_model *m, int32_t n);

/* open.c */
/** Lay an image, or rows, out from base on (NULL: count only); bytes used. */
size_t dt_model_place_image(const dt_model *m, char *base, int64_t n_tok, int64_t n_seq, struct image *i);
size_t dt_model_place_rows(const dt_model *m, char *base, int64_t n_tok, struct rows *r);

/* upload_batch.c */
/** A pass of this model begins. */
void dt_model_take_activations(dt_model *m);
/** Check b against the model and copy it to the device. slot NULL: sequences attend to themselves; else the cache
 *  (decode), and where each sequence has one token n_fill more may follow. */
dt_err dt_model_stage_batch(dt_model *m, const dt_batch *b, const int32_t *slot);
/** Counting sort of tokens (NULL: 0 .. n-1) by key[token] < n_keys, in their order among equals. end [n_keys + 1]: out,
 *  where those of each key end. */
void dt_sort_tokens(const int32_t *key, int64_t n_keys, const int32_t *token, int64_t n, int32_t *end, int32_t *order);
/** One token for each sequence, and no images. */
bool dt_is_step(const dt_batch *b);
/** Compact the rows with a target and their weights and copy them; m->n_rows of them. grads: the weights count. */
dt_err dt_model_stage_rows(dt_model *m, const dt_batch *b, const dt_head_pass *pass, bool grads);
/** Queue a copy of a span's first bytes. */
dt_err dt_span_to_device(dt_model *m, struct span *s, size_t nbytes);
dt_err dt_span_to_host(dt_model *m, struct span *s, size_t nbytes);
/** The same for what dt_model_stage_batch copies ahead of image_span, which it waits for before it touches either. */
dt_err dt_span_ahead(const dt_model *m, const struct span *s, size_t nbytes);
/** Wait until the host may touch its side. */
dt_err dt_span_wait(dt_model *m, struct span *s);
/** All work is done, the host has seen that: no span is moving. */
dt_err dt_model_sync(dt_model *m);

/* patches.c */
/** Where a tower's product writes to, on its way to x: where its norm reads. */
void *dt_patches_input(const dt_model *m, void *x);
/** Bring a batch's images to the device. */
dt_err dt_patches_stage(dt_model *m, const dt_batch *b);
/** x [T,C] from the positions in dt_patches_input(x). */
dt_err dt_patches_forward(const dt_model *m, const dt_param_view *w, void *x);
/** Gradients, added to what is in g, from s.dx, that of x; leaves there that of the positions. */
dt_err dt_patches_backward(const dt_model *m, const dt_param_view *w, const dt_grad_view *g);

/* stretch.c */
/** Sizes of the rotary table. */
void dt_stretch_size(dt_model *m);
/** Host arrays. */
dt_err dt_stretch_open(dt_model *m);
void dt_stretch_close(dt_model *m);
/** Turn the positions of the host's image into rows of the rotary table, and bring the rows that are missing there. */
dt_err dt_stretch_batch(dt_model *m, const dt_batch *b);

/* embed.c */
uint64_t dt_dropout_key(const dt_model *m, int64_t layer, enum dropout_site site);
uint64_t dt_adapter_dropout_key(const dt_model *m, int64_t layer, enum linear_site site);
dt_err dt_embed_forward(dt_model *m, void *x);
dt_err dt_embed_backward(dt_model *m);
/** A unit's gradients of an empty micro-batch. */
dt_err dt_model_clear_grads(const dt_model *m, int unit, const dt_grad_view *g);
/** Parts in the type that the model computes in, but for codes and scales: DT_ERR_ARG for another. */
dt_err dt_params_acquire(dt_model *m, int unit, dt_param_view *w);
/** Nothing for a unit without a trained part: g is {0}, and no kernel is given it. */
dt_err dt_grads_acquire(dt_model *m, int unit, dt_grad_view *g);
dt_err dt_grads_release(dt_model *m, int unit);

#endif
