/* model_private.h - shared declarations of the layer loop.
 *
 * Symbols  T tokens of the micro-batch, C hidden_size, Q = num_attention_heads * head_dim,
 *          K = num_key_value_heads * head_dim; of values O = num_attention_heads * v_head_dim (usually Q) and
 *          Y = num_key_value_heads * v_head_dim (usually K); W = Q + K + Y,
 *          F the width of an MLP's hidden layer (blocks may differ),
 *          U = F (plain MLP) or 2F (gate and up concatenated), V vocab_size, R rows of a chunk of the head.
 *          Of linear attention: H value heads, Z their width, M = Z and the width of q and k, I = M + Z + 2 H.
 *          Of mixtures: E num_experts, k num_experts_per_tok, X moe_intermediate_size, N = T k rows.
 * All activations are [T, width], rows contiguous unless a leading dimension is given. */
#ifndef DT_MODEL_PRIVATE_H
#define DT_MODEL_PRIVATE_H

#include "layers.h"
#include <math.h>

/** Statistics of a norm, one for each row. RMSNorm has no mean. */
struct norm_stats {
    float *mean, *rstd;
};

/** Activations of a mixture of experts. An assignment t k + j is the j-th expert of token t. Rows are the assignments
 *  in the order of their experts. */
struct expert_acts {
    float *prob;                 /* [T,E]: of the router (route) */
    float *lse;                  /* [T,2]: likewise, with a z-loss */
    int32_t *expert;             /* [T,k] */
    float *weight;               /* [T,k] */
    int32_t *start;              /* [E+1]: the first row of each expert */
    int32_t *row;                /* [T,k]: of an assignment */
    int32_t *assignment, *token; /* [N]: of a row */
    void *up;                    /* [N,2X]: backward overwrites it with its gradient */
    void *act;                   /* [N,X]: cheap to recompute */
};

/** Activations of linear attention. A row of in has q, k and v before their convolution, then z, b and a. */
struct delta_acts {
    void *in;        /* [T,I] */
    void *out;       /* [T,Z]: before norm and gate */
    float *rstd;     /* [T,H] */
    float *g, *beta; /* [T,H] */
    /* cheap to recompute */
    void *mixed;  /* [T,M]: q, k and v after the convolution */
    void *normed; /* [T,Z]: after norm and gate */
};

/** Activations of latent attention (mix_latent.c). A row of in has the compressed key and value, the shared part of
 *  keys, and the compressed query, or the query. */
struct latent_acts {
    void *in;               /* [T,A] */
    float *rstd_q, *rstd_k; /* [T] */
    /* cheap to recompute: after their norms */
    void *q, *kv; /* [T,q_lora_rank], [T,kv_lora_rank] */
};

/** Activations of a branch. */
struct branch_acts {
    void *norm; /* [T,C]: output of its norm pre; cheap to recompute */
    void *out;  /* [T,C]: input of its norm post */
    struct norm_stats pre, post;
};

/** The activations that one block stores for its backward. Without backward one set serves all blocks, and x_in = x_mid
 *  = x_out. Cheap activations that are recomputed (selective) are stored once, shared by all sets.
 *
 *  raw has rows of W with q, k and v, as the matmul writes them. Attention reads v from raw. It also reads q and k
 *  there unless the norm's backward needs them before the norm (dt_model_keeps_raw). In that case q and k are stored
 *  in an array of their own. Its rows also have width W, with K columns unused. With another leading dimension a
 *  library may choose a matmul algorithm that gives other bits, but recomputation must not change results. */
struct block_acts {
    void *x_in, *x_mid, *x_out; /* [T,C]: residual stream before, between and after the two halves */
    void *raw;                  /* [T,W]: q, k, v */
    void *att;                  /* [T,O] */
    void *up;                   /* [T,U]: before the activation; backward overwrites it with its gradient (gated) */
    float *row_gate;            /* [T]: of an MLP with a gate, before the sigmoid */
    float *lse;                 /* [T, heads] */
    void *low[N_LINEARS];       /* h of adapters, contiguous: low_r elements per token */
    struct branch_acts branch[N_BRANCHES];
    struct expert_acts experts;
    struct latent_acts latent;
    struct delta_acts delta; /* in the memory of raw, att and lse */
    void *gate;              /* [T,Q]: of attention's output; backward overwrites it with its gradient */
    /* cheap to recompute */
    void *qk;               /* [T,Q+K]: after norms and rotation (not recomputed if it is part of raw) */
    void *act;              /* [T,F], after the gate */
    float *rstd_q, *rstd_k; /* [T, heads] */
};

/** Work space that no two blocks need at the same time. All but dx and norm share memory with the head's. */
struct scratch {
    void *dx;               /* [T,C]: gradient of the residual stream */
    void *drop;             /* [T,C]: a branch before its residual is added, or its gradient after dropout */
    void *dact;             /* [T,F] */
    void *dgate;            /* [T]: gradient of row_gate */
    void *dnorm;            /* [T,C] */
    void *datt;             /* [T,O] */
    void *dqkv;             /* [T,W] */
    void *all_kv, *all_dkv; /* [cp T,K+Y]: keys and values of all ranks of the axis cp, and their gradients */
    float *attention, *norm;
    void *wide;         /* [T,2Q+2K]: queries, gates, keys and values as their matmul writes them, or their gradients */
    void *gated;        /* [T,Q]: attention's output times its gate */
    void *dout;         /* [T,Z]: gradient of linear attention's output, before and after its norm */
    void *dmixed, *din; /* [T,M], [T,I] */
    void *grouped;      /* [T,I]: the columns of the matmul of linear attention, or their gradients */
    float *dg, *dbeta;  /* [T,H] */
    float *delta;       /* scratch of the delta rule */
    int64_t delta_elems;
    void *latent_kv; /* [T, keys and values of latent attention], as their matmul writes them, or their gradients */
    void *dlatent;   /* [T,A] */
    void *dlatent_q, *dlatent_kv; /* gradients of latent.q and .kv */
    void *rows;                   /* [N,C]: inputs or outputs of experts, or their gradients */
    void *drows;                  /* [N,X]: gradient of act */
    float *dweight;               /* [T,k] */
    void *dlogits;                /* [T,E] */
    int64_t attention_elems;
    struct low_work low;
    /* Table adapters, kept from forward to backward: h [T, r] and a copy of B [C, r]. Backward needs nothing else of
     * their unit. */
    void *table_h[N_LOW_TABLES], *table_b[N_LOW_TABLES];
};

/** fp32 accumulators for gradients that are added several times within a micro-step and rounded once. Used only if the
 *  gradient type is narrower. */
struct head_sums {
    float *own;  /* layout of the trained part of the head's unit; used with several chunks */
    float *tied; /* [V,C]: of a tied table; the embedding's gradient is added to it */
};

/** One chunk of the head. */
struct head_work {
    int64_t n_rows, logits_ld; /* R; V rounded up for aligned rows */
    void *x, *y, *dy;          /* [R,C]: hidden states, after the final norm, gradient */
    struct norm_stats stats;   /* [R] */
    float *logits;             /* [R, logits_ld] */
    float *filled;             /* the same, with max_known: of dt_head_pass.known */
    void *low;                 /* h of the head's adapter */
    struct head_sums sums;
};

/** Inputs and results of dt_model_draw and dt_model_top, for up to cache_seqs sequences; on host and device. */
struct draws {
    double *uniform, *logp;
    uint32_t *seen, *allowed, *unseen; /* [cache_seqs, seen_ld]; unseen: all other tokens, only for dt_model_top */
    int32_t *token;
    int32_t *list_start, *list_len;
    int64_t seen_ld;
    /* two lists per sequence, [2, cache_seqs, max_top] */
    int32_t *top_token;
    float *top_logit;
    double *top_logp;
};

/** A scalar head processes all tokens at once. */
struct value_work {
    void *y, *dy; /* [T,C]: after the final norm, gradient */
    struct norm_stats stats;
    float *host, *device; /* [T, n_labels]: values, then their gradients */
    void *dvalue;         /* the gradients in the activations' type; NULL if that is fp32 */
};

/** The tokens and sequences of a batch, for the device. The host fills them in pinned memory and copies them as one
 *  block. The layout depends on the batch's length. */
struct tokens {
    uint64_t *token_key;
    /* [T]; pos: with a rotary table the token's row in it; pos_order: like order, but sorted by position */
    int32_t *token, *pos, *order, *pos_order;
    /* placeholders: their positions, sequence by sequence; the projector row of each token; the tokens sorted by that
     * row */
    int32_t *shown_at, *shown, *shown_order;
    float *noise;   /* [T] bounds of the noise on embeddings, with neftune_alpha */
    int32_t *ahead; /* [T], if images attend in both directions: later placeholders of the same image */
    /* table adapters [T, r]: offsets of A's elements, and in training the trained ones sorted by offset */
    int32_t *low_at[N_LOW_TABLES], *low_order[N_LOW_TABLES];
    int32_t *q_start, *kv_start, *kv_len; /* [n_seq + 1], [n_seq], [n_seq] */
    int32_t *shared_start, *shared_len;   /* [n_seq] if the cache has prompts */
    int32_t *slot;                        /* [n_seq]: of the cache, with linear attention */
    int32_t *cache_row;                   /* [T]: cache row for a new token's key and value (decode) */
};

/** Rows with a target and their results, on host and device like struct tokens. NULL: the model was not opened for it
 *  (dt_model_options.head). */
struct rows {
    uint64_t *token_key; /* for the dropout of the head's adapter */
    int32_t *row, *target;
    float *weight, *entropy_weight, *kl_weight;
    int32_t *known_token; /* [rows, k], k of the pass; with max_known */
    float *known_logp;
};
enum result { RESULT_LOGP, RESULT_ENTROPY, RESULT_SUM_SQUARES, RESULT_MEAN_LOGIT, RESULT_KL, N_RESULTS };
struct results {
    float *real[N_RESULTS];
    uint8_t *hit;
};

/** A range of the staging block in pinned memory and on the device; one copy moves it. The host may modify its side
 *  after the event. */
struct span {
    char *host, *device;
    size_t nbytes;   /* of the largest batch */
    dt_event *moved; /* recorded after the copy; unused for a span that precedes another */
    bool moving;     /* a copy is in flight for which the host has not waited */
};

/** Rows of the rotary table for positions first .. first+n-1 of sequences of `length` tokens, beyond
 *  max_position_embeddings. */
struct dynamic_rows {
    int32_t length, first, n, row;
};

/** The part of the rotary table that depends on the sequences of the micro-batch (dynamic_rope.c). */
struct dynamic_rope {
    /* constant rows; rows of this part, 0: no sequence can be that long, or the rule does not depend on the length */
    int64_t base_rows, max_rows;
    int64_t long_rows; /* of longrope, instead: for sequences that are longer than base_rows */
    float *host;       /* [max_rows, rotary dimension], pinned */
    /* of positions with several axes (grids.c), instead of rows for longer sequences: rows of one image's side, on the
     * host */
    float *axis;
    struct dynamic_rows *have; /* [max_seq] rows currently in the table */
    int32_t n_have, n_rows;
};

/** Parameters of a generation step's operations that are not read from device memory, apart from the model's own. */
struct step_key {
    enum { STEP_BLOCKS, STEP_DRAW, STEP_TOP } what;
    int32_t n;   /* sequences of one token each, or rows of logits */
    int32_t len; /* longest cache, rounded up, or tokens of a list */
    bool masked, limited, listed, uniform, logp;
    double logp_temperature;
    dt_choice how;
};
struct graphs; /* graphs.c */
struct grids;  /* grids.c */
struct vision; /* vision.c */

enum { N_TAPS = 4 }; /* of the interpolation of a position */
/** Arrays of a tower's batch that depend on the grids of its images (grids.c); on host and device. */
struct grid_arrays {
    int32_t *window_start, *window_len; /* [n_windows + 1], [n_windows] in patches */
    /* rows of the table of positions, and their weights: [T, N_TAPS]; for its gradient, also by tap */
    int32_t *tap;
    float *weight;
    int32_t *in_order; /* [T]: 0, 1 .. */
    int32_t *tap_of[N_TAPS], *order[N_TAPS];
    float *weight_of[N_TAPS];
};

/** Input stage of a tower (patches.c): a matmul over each image's patches; the class token precedes the patches. Table
 *  and positions are those of an embedding. */
struct tower_input {
    struct linear conv;     /* [C, 3 p p] */
    struct tensor_at token; /* class embedding; optional */
    struct norm pre;        /* optional */
    int64_t n_rows;         /* P */
    size_t image_nbytes;    /* of pixels */
    const dt_vision_config *config;
    /* device */
    void *rows;                          /* [N P, 3 p p] */
    void *frames;                        /* of grids: [N P, 3, n_frames, p p] */
    void *x;                             /* [N P, C]: input of the norm, kept for backward */
    struct norm_stats stats;             /* [N P] */
    void *class_row;                     /* [N, C] */
    int32_t *class_at, *zero, *in_order; /* [N]: rows of class tokens; 0, 0 ..; 0, 1 .. */
    struct span pixels;                  /* filled by vision.c */
    struct span arrays;                  /* of grids */
    struct grid_arrays host_arrays, device_arrays;
    int32_t *tap_end; /* host [V + 1] */
};

/** Contents of a cache slot: the first n_shared tokens of another slot (a prompt), then n_own tokens in its own
 *  rows. */
struct cached {
    int32_t prompt, n_shared, n_own;
    bool in_batch; /* a sequence of the current batch uses the slot */
    /* added to the number of a token for its rotary position, because images have fewer positions than tokens; after
     * the current batch */
    int32_t shift, next_shift;
};

/** The rank's tokens of a batch that the ranks of the axis cp divide (context.c). */
struct part {
    dt_batch batch;
    int32_t n_each;   /* tokens of a rank; the last ranks may have fewer, or none */
    int32_t first;    /* the first token in the whole batch */
    int32_t n_before; /* tokens of the first sequence on earlier ranks */
    /* targets on earlier ranks, and on all */
    int64_t first_target, n_targets;
    /* host: arrays of batch, and the results of all ranks */
    int32_t *order, *target_row, *seq_start, *full_len;
    char *joined;
};

struct dt_model {
    const dt_model_config *mc;
    dt_model_config part_config; /* mc of a rank that has a part of the model (divide.c) */
    dt_model_options opt;
    const dt_unit *units;
    int n_units;
    dt_device *dev;
    const dt_device_ops *ops;
    const dt_param_source *source;
    dt_stream *stream;
    dt_phase *phase;

    int64_t C, Q, K, O, Y, W, V;
    int64_t A;          /* of latent attention: the width of its latent_acts.in; 0: none */
    int64_t E, k, X;    /* 0: no experts */
    int64_t H, Z, M, I; /* 0: no linear attention */
    size_t elem;        /* bytes of an activation or parameter */
    bool tied;
    bool dropout; /* any layer has dropout */

    struct stage *stages; /* [n_stages], in order of execution */
    int64_t n_stages;
    struct expert_part *parts; /* [n_units]: of all blocks */
    bool has_norm_stage;
    struct norm_stats stage_norm; /* of a stage of role NORM, kept for backward */
    int embed_unit, head_unit;
    struct norm final_norm;
    struct linear head;        /* w in the head's unit, or in the embedding's if tied */
    struct tensor_at wte, wpe; /* wpe missing: rotary */
    struct low_table low_table[N_LOW_TABLES];
    int64_t n_labels; /* of a scalar head, whose score is `head`; 0: vocabulary head */
    /* The lowest stage with a trained part; -1: the embedding has one; n_stages: at most the head has one. Stages below
     * it need no gradient and keep nothing for backward. */
    int64_t first_trained;
    int64_t first_kept;      /* first_trained, or 0 */
    bool placeholders_learn; /* the rows that replace placeholder embeddings receive gradients */

    dt_buf activations, kept, data, staging, table;
    /* [.., dt_model_rotary_dim] */
    float *rope;       /* base_rows + max_rows + long_rows of `dynamic`; NULL: learned positions */
    float *rope_local; /* [dynamic.base_rows], of the layers with a window; NULL: rope */
    float *rope_q;     /* [dynamic.base_rows], of queries; NULL: that of keys */
    struct dynamic_rope dynamic;
    void **x; /* [n_x]: inputs of stages starting at first_kept; the last is the output */
    int64_t n_x;
    struct block_acts *sets;
    int64_t n_sets;
    struct scratch s;
    struct head_work h;
    struct value_work v;
    struct tokens host, device;
    struct rows host_rows, device_rows;
    struct results host_results, device_results;
    struct draws host_draws, device_draws;
    void *draw_scratch;
    int32_t *listed; /* device [max_listed]: of dt_model_set_lists */
    int32_t n_listed;
    struct span tokens_span, rows_span, results_span, values_span;
    struct span tops_span; /* dt_model_tops: double [max_tok, max_known], int32_t likewise */
    /* of the losses of routers (balance.c): float [2 E + 1], rows of each expert, sums of its probabilities, and the
     * sum of l^2, over all layers; float [E + 1], gradients of each token's probabilities and of its l^2 */
    struct span load_span, dload_span;
    float *load;        /* device, in a forward that counts; else NULL */
    bool have_dload;    /* dload_span is for the next backward */
    int32_t *pos_count; /* host [max_pos + 1]: counting sort */

    struct dt_model *user, **in_use; /* which model uses the activations now; in_use points to the lender's `user` */

    /* [layers]: [rows of all slots, K + Y], each row keys then values; of linear attention dt_delta_cache */
    void **cache;
    struct cached *cached;     /* [cache_seqs + cache_prompts] */
    struct graphs *graphs;     /* NULL: no graphs */
    struct vision *vision;     /* NULL: no vision part */
    struct vision *owner;      /* of a tower: the vision part that it belongs to, else NULL */
    const struct grids *grids; /* of a tower: its images, if they are grids; else NULL */
    size_t tower_nbytes;       /* activations that a frozen tower uses before any block does; 0: it has its own */
    struct tower_input patches;
    bool has_magnitudes; /* of adapters in blocks (magnitude.h) */

    /* the current micro-batch */
    int32_t n_tok, n_seq, max_q_len, max_kv_len;
    int32_t max_ahead;                 /* maximum of ahead; 0: attention is causal */
    int32_t n_learned;                 /* tokens whose embeddings receive gradients: host.order contains only these */
    int32_t n_windows, longest_window; /* of grids; patches of the longest */
    int32_t n_fill;                    /* unused tokens in as many idle slots after the batch (dt_step_rows) */
    struct part part;
    bool train, have_hidden, have_dx;
    bool have_results;    /* the head's results for n_rows rows are computed or being copied */
    struct results asked; /* host addresses of the requested results; NULL: not requested */
    int64_t n_rows;
    int64_t step;
    int64_t set_holds; /* full recomputation: the stage whose activations the single set holds, -1: none */
    void *hidden;      /* [T,C]: output of the last block */
    void *kept_hidden; /* [T,C]: copy of hidden after a forward (keeps_hidden); NULL: no copy */
    /* Gradients of a tied, trained table: held from the head's backward to the embedding's. h.sums.tied, if it exists,
     * has the partial sums. */
    dt_grad_view tied_grads;
};

enum dropout_site { SITE_EMBED, SITE_SCORES, SITE_ATTENTION, SITE_MLP, N_SITES };

/** Maximum tokens of a sequence of a batch. */
static inline int32_t dt_model_longest(const dt_model *m)
{
    return m->opt.max_pos < m->opt.max_tok ? m->opt.max_pos : m->opt.max_tok;
}
/** First cache row of a slot: slots of sequences precede those of prompts. */
static inline int64_t dt_cache_row(const dt_model_options *o, int32_t slot)
{
    const int64_t before = slot < o->cache_seqs ? slot : o->cache_seqs;
    return before * o->cache_len + (slot - before) * o->cache_prompt_len;
}
static inline int32_t dt_cache_slots(const dt_model_options *o) { return o->cache_seqs + o->cache_prompts; }
static inline int64_t dt_cache_rows(const dt_model_options *o) { return dt_cache_row(o, dt_cache_slots(o)); }
/** The cache of a layer with linear attention: the last inputs of the convolution [slots, kernel - 1, M], and the
 *  states of the delta rule, float [slots, H, key width, value width]. */
struct delta_cache {
    void *inputs;
    float *state;
    size_t inputs_nbytes, state_nbytes; /* of a slot */
    size_t nbytes;                      /* of all */
};
struct delta_cache dt_delta_cache_at(const dt_model *m, void *cache);
/** Copy the states of slot src to slot dst; src -1: clear them. */
dt_err dt_delta_cache_copy(const dt_model *m, int32_t src, int32_t dst);
/** The delta rule of the current batch; state_row is not set. */
dt_delta dt_block_delta(const dt_model *m);
/** Must logits of this pass be batch-invariant? */
static inline bool dt_model_is_invariant(const dt_model *m) { return m->opt.batch_invariant && !m->train; }
/** Does backward recompute cheap activations? */
static inline bool dt_model_remakes(const dt_model *m)
{
    return m->opt.training && m->opt.recompute == DT_RECOMPUTE_SELECTIVE;
}
/** Does backward need q and k as they were before their norms? */
static inline bool dt_model_keeps_raw(const dt_model *m) { return m->opt.training && m->mc->qk_norm; }
/** Do the shared activations hold this model's last pass? */
static inline bool dt_model_in_use(const dt_model *m) { return *m->in_use == m; }
/** Are the hidden states of a batch of n_tok tokens available to the head? */
static inline bool dt_model_has_hidden(const dt_model *m, int32_t n_tok)
{
    return m->have_hidden && m->n_tok == n_tok && (m->hidden == m->kept_hidden || dt_model_in_use(m));
}

static inline char *dt_at(const void *base, int64_t elems, size_t elem_size)
{
    return (char *)base + elems * (int64_t)elem_size;
}
static inline bool dt_exists(struct tensor_at t) { return t.offset >= 0; }
/** The factor of the task's weights. A test fault can make this rank's gradients overflow. */
static inline float dt_model_loss_scale(const dt_model *m)
{
    if (dt_fault("head.overflow") != DT_OK) {
        dt_error_clear();
        return HUGE_VALF;
    }
    return m->opt.loss_scale ? (float)*m->opt.loss_scale : 1.0f;
}
/** Does the tensor have a gradient? */
static inline bool dt_is_trained(struct tensor_at t) { return dt_exists(t) && t.part == DT_TRAINED; }
static inline bool dt_norm_trains(const struct norm *n) { return dt_is_trained(n->w) || dt_is_trained(n->b); }
/** Address of a tensor in its unit's parameters; NULL: missing. */
static inline void *dt_weight(const dt_param_view *w, struct tensor_at t)
{
    if (!dt_exists(t)) return NULL;
    return dt_at(w->part[t.part].data, t.offset, dt_dtype_size(w->part[t.part].dtype));
}
/** Address of its gradient; NULL: none. */
static inline void *dt_gradient(const dt_grad_view *g, struct tensor_at t)
{
    return dt_is_trained(t) ? dt_at(g->data, t.offset, dt_dtype_size(g->dtype)) : NULL;
}
/** A tied trained table receives gradients from the embedding and from the head. */
static inline bool dt_has_tied_grads(const dt_model *m) { return m->tied && dt_is_trained(m->head.w); }

/* buffers.c */
/** Bump allocator over a block; without a block it only counts. */
struct arena {
    char *base;
    size_t used;
    bool overflow;
};
/** Allocate rows * width elements of elem bytes; NULL while only counting. */
void *dt_take(struct arena *a, int64_t rows, int64_t width, size_t elem);
struct span dt_take_span(struct arena *host, struct arena *device, size_t nbytes);
struct norm_stats dt_take_stats(struct arena *a, int64_t rows);
/** The blocks of a model. IN_KEPT: activations that are never borrowed. */
enum { IN_ACTIVATIONS, IN_KEPT, IN_DATA, IN_STAGING, IN_TABLE, N_ARENAS };
/** Lay out all buffers. */
void dt_model_place(dt_model *m, struct arena arenas[N_ARENAS]);
/** Lay out tokens, or rows, starting at base (NULL: count only). Returns the bytes used. */
size_t dt_model_place_tokens(const dt_model *m, char *base, int64_t n_tok, int64_t n_seq, struct tokens *t);
size_t dt_model_place_rows(const dt_model *m, char *base, int64_t n_tok, struct rows *r);

/* find_tensors.c: unit roles and tensor locations; m->stages has room for n_units */
dt_err dt_model_find_tensors(dt_model *m);
/** A linear layer and a norm outside the blocks, by the end of their names. */
struct linear dt_linear_at(const dt_model *m, const dt_unit *u, const char *name, int64_t n_in, int64_t n_out);
struct norm dt_norm_at(const dt_model *m, const dt_unit *u, const char *name);

/* linear.c */
/** Optional arguments of a linear layer's matmul (dt_matmul): an addend with the layout of the output, and an
 *  activation or its derivative with the activation's input. */
struct with_matmul {
    const void *addend;
    const void *bias; /* instead of the layer's own, which is in another unit; NULL: its own */
    dt_epilogue epilogue;
    void *act_in;                    /* leading dimension: that of the output */
    bool act_of_aux;                 /* act_of_aux of dt_matmul, for act_in */
    void *low;                       /* h of the layer's adapters: written by forward, read by backward */
    const struct low_rows *low_rows; /* NULL: dt_low_rank_tokens */
    const int32_t *group_start;      /* of a layer of experts: the first row of each (dt_matmul) */
};
dt_err dt_linear_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, int64_t x_ld,
                         void *y, int64_t y_ld, int64_t n_rows, struct with_matmul with);
/** Gradients of the trained weights and bias into g, and of x into dx. dx NULL: not needed. No addend. */
dt_err dt_linear_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                          const void *x, int64_t x_ld, const void *dy, int64_t dy_ld, void *dx, int64_t dx_ld,
                          struct with_matmul with, int64_t n_rows);

/** The two parts of dt_linear_backward, without adapters and biases: the gradients of the trained weights, and dx. */
dt_err dt_linear_weight_gradient(const dt_model *m, const struct linear *l, const dt_grad_view *g, const void *x,
                                 int64_t x_ld, const void *dy, int64_t dy_ld, int64_t n_rows,
                                 const int32_t *group_start);
dt_err dt_linear_input_gradient(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *dy,
                                int64_t dy_ld, void *dx, int64_t dx_ld, struct with_matmul with, int64_t n_rows);

/* low_rank.c; x and dx: contiguous rows of n_in elements */
/** Rows that pass through adapters, and their token keys (device; NULL: no dropout). */
struct low_rows {
    int64_t n;
    const uint64_t *token_key;
    const int32_t *group_start; /* of a layer of experts, whose adapters have no dropout */
    struct low_work work;
};
/** All tokens; or all rows of a layer of experts. */
struct low_rows dt_low_rank_tokens(const dt_model *m, int64_t n_rows, const int32_t *group_start);
/** low = h of x: the part of forward that backward needs. */
dt_err dt_low_rank_project(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x,
                           struct low_rows rows, void *low);
/** The same, and y += low Bt. */
dt_err dt_low_rank_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, void *y,
                           int64_t y_ld, struct low_rows rows, void *low);
/** Gradients of the trained adapters into g; dx = the contribution of all to the gradient of x; NULL: not needed. dx
 *  may be x if one adapter has all columns of h. */
dt_err dt_low_rank_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                            const void *x, const void *dy, int64_t dy_ld, void *dx, struct low_rows rows, void *low);
/** The two parts of dt_low_rank_backward for a layer of experts: dx, with the gradient of h in s.low.d; then the
 *  gradients of the adapters, from x and dy whose products are to be summed. low: overwritten. */
dt_err dt_low_rank_input_gradient(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *dy,
                                  int64_t dy_ld, void *dx, struct low_rows rows);
dt_err dt_low_rank_weight_gradient(const dt_model *m, const struct linear *l, const dt_param_view *w,
                                   const dt_grad_view *g, const void *x, const void *dy, int64_t dy_ld,
                                   struct low_rows rows, void *low);
/** x [T,C] += the table adapter's output for the batch's tokens or positions; no operation without an adapter. */
dt_err dt_low_table_forward(const dt_model *m, enum low_of of, const dt_param_view *w, void *x);
/** Its gradients from s.dx, the gradient of x. A's gradient is accumulated. */
dt_err dt_low_table_backward(const dt_model *m, enum low_of of, const dt_grad_view *g);
/** Does backward read the layer's input? */
bool dt_linear_keeps_input(const struct linear *l);
/** stats: out. */
dt_err dt_norm_forward(const dt_model *m, const struct norm *n, const dt_param_view *w, const void *x, void *y,
                       struct norm_stats stats, int64_t n_rows);
/** Gradients of trained weight and bias into g, and of x into dx; add_to_dx: added to it. */
dt_err dt_norm_backward(const dt_model *m, const struct norm *n, const dt_param_view *w, const dt_grad_view *g,
                        const void *x, struct norm_stats stats, const void *dy, void *dx, bool add_to_dx,
                        int64_t n_rows);

/* mix_attention.c */
dt_attention dt_block_attention(const dt_model *m, const struct block *b, const dt_param_view *w);
/** Set the ranges of queries and keys of the sequences of a batch, each of which attends to itself. */
void dt_attention_stage(dt_model *m, const dt_batch *b);
/** Lay out its work space: of all passes, and what only backward needs. */
void dt_attention_place(dt_model *m, struct arena arenas[N_ARENAS]);
void dt_attention_place_backward(dt_model *m, struct arena *a);

/* block.c */
/** cache: keys and values of earlier tokens, to which the new ones are added (decode.c); NULL: sequences attend to
 *  themselves. want_output false: x_out is not written (recomputation). */
dt_err dt_block_forward(const dt_model *m, const struct block *b, const dt_param_view *w, const struct block_acts *a,
                        void *cache, bool want_output);
/** s.dx: on entry the gradient of x_out, on return that of x_in. */
dt_err dt_block_backward(const dt_model *m, const struct block *b, const dt_param_view *w, const dt_grad_view *g,
                         const struct block_acts *a);
/** What a rank without tokens does instead. */
dt_err dt_block_skip(const dt_model *m, const struct block *b, bool want_output);
dt_err dt_block_skip_backward(const dt_model *m, const struct block *b);

/* graphs.c */
dt_err dt_graphs_open(dt_model *m);
void dt_graphs_close(dt_model *m); /* no work may be queued */
/** Queue a step: through `queue`, or through its recorded graph. */
typedef dt_err dt_queue_step(dt_model *m, const void *how);
dt_err dt_step_run(dt_model *m, const struct step_key *key, dt_queue_step *queue, const void *how);
/** The cache length for which a step is recorded: len rounded up. */
int32_t dt_step_len(const dt_model *m, int32_t len);
/** The number of rows to which a step of n is padded; at most cache_seqs. Rows must be independent of each other. */
int32_t dt_step_rows(const dt_model *m, int32_t n);

/* balance.c */
/** Is there a loss of the routers? Is it, or one of them, the z-loss? */
bool dt_balances(const dt_model *m);
bool dt_squares(const dt_model *m);
void dt_balance_place(dt_model *m, struct arena *host, struct arena *device);
/** Before a forward: start counting, in training. */
dt_err dt_balance_begin(dt_model *m);
/** Add a layer's probabilities and l^2 to m->load. */
dt_err dt_balance_count(const dt_model *m, const struct expert_acts *a);
/** Arguments of route_backward; NULL: none. */
struct load_gradient {
    const float *prob, *square;
};
struct load_gradient dt_balance_gradient(const dt_model *m);

/* decode_batch.c: called by dt_model_stage_batch if there are slots */
/** Stage the sequences of b, which attend to their slots. */
void dt_slots_stage(dt_model *m, const dt_batch *b, const int32_t *slot);
/** Does each sequence have exactly one token, and no images? */
bool dt_is_step(const dt_batch *b);
/** Number of fill tokens that the graph of a step needs; 0: none, or there are too few idle slots. */
int32_t dt_slots_count_fill(const dt_model *m, const dt_batch *b);
/** Append m->n_fill copies of the batch's first token after the contents of idle slots. Each attends to itself only. */
void dt_slots_stage_fill(dt_model *m, const dt_batch *b);

/* upload_batch.c */
/** Start a pass of this model: it takes over the shared activations. */
void dt_model_take_activations(dt_model *m);
/** Validate b against the model and copy it to the device. slot NULL: sequences attend to themselves; otherwise to the
 *  cache (decode). With one token per sequence n_fill unused tokens may follow. */
dt_err dt_model_stage_batch(dt_model *m, const dt_batch *b, const int32_t *slot);
/** Stable counting sort of tokens (NULL: 0 .. n-1) by key[token] < n_keys. end [n_keys + 1]: out, end of each key's
 *  range. */
void dt_sort_tokens(const int32_t *key, int64_t n_keys, const int32_t *token, int64_t n, int32_t *end, int32_t *order);
/** Copy the rows with a target and their weights to the device; sets m->n_rows. grads: the weights are used. */
dt_err dt_model_stage_rows(dt_model *m, const dt_batch *b, const dt_head_pass *pass, bool grads);
/** Queue a copy of the first bytes of a span. */
dt_err dt_span_to_device(dt_model *m, struct span *s, size_t nbytes);
dt_err dt_span_to_host(dt_model *m, struct span *s, size_t nbytes);
/** The same for a span that dt_model_stage_batch copies before tokens_span. It needs no event of its own:
 *  dt_model_stage_batch waits for tokens_span before it modifies the span. */
dt_err dt_span_ahead(const dt_model *m, const struct span *s, size_t nbytes);
/** Wait until the host may modify its side. */
dt_err dt_span_wait(dt_model *m, struct span *s);
/** Wait for all work of the stream. Afterwards no span is moving. */
dt_err dt_model_sync(dt_model *m);

/* patches.c */
/** Destination of the patch matmul: the input of the norm if there is one, otherwise x. */
void *dt_patches_input(const dt_model *m, void *x);
/** The interpolated position embeddings of grids; no operation without such a table. Their gradient is accumulated from
 *  s.dx. */
dt_err dt_patches_positions(const dt_model *m, const dt_param_view *w, void *out);
dt_err dt_patches_positions_backward(const dt_model *m, const dt_grad_view *g);
/** Compute x [T,C] from the position embeddings in dt_patches_input(x). */
dt_err dt_patches_forward(const dt_model *m, const dt_param_view *w, void *x);
/** Accumulate gradients in g from s.dx, the gradient of x. Leaves the gradient of the position embeddings in s.dx. */
dt_err dt_patches_backward(const dt_model *m, const dt_param_view *w, const dt_grad_view *g);

/* dynamic_rope.c */
/** Compute the sizes of the rotary table. */
void dt_dynamic_rope_size(dt_model *m);
/** Allocate and free the host arrays. */
dt_err dt_dynamic_rope_open(dt_model *m);
void dt_dynamic_rope_close(dt_model *m);
/** Convert the host's positions to rows of the rotary table, and copy missing rows to the device. */
dt_err dt_dynamic_rope_batch(dt_model *m, const dt_batch *b);

/* embed.c */
uint64_t dt_dropout_key(const dt_model *m, int64_t layer, enum dropout_site site);
uint64_t dt_adapter_dropout_key(const dt_model *m, int64_t layer, enum slot site);
dt_err dt_embed_forward(dt_model *m, void *x);
dt_err dt_embed_backward(dt_model *m);
/** A unit's gradients for an empty micro-batch: zeros. */
dt_err dt_model_clear_grads(const dt_model *m, int unit, const dt_grad_view *g);
/** Acquire a unit's parameters. DT_ERR_ARG: a part other than codes and scales does not have the compute type. */
dt_err dt_params_acquire(const dt_model *m, int unit, dt_param_view *w);
dt_err dt_params_release(const dt_model *m, int unit);
/** For a unit without a trained part g is {0}, and no kernel receives it. */
dt_err dt_grads_acquire(const dt_model *m, int unit, dt_grad_view *g);
dt_err dt_grads_release(const dt_model *m, int unit);

/* model.c: the layers, from tokens to hidden states, and their gradients from s.dx */
dt_err dt_layers_forward(dt_model *m, const dt_batch *b, bool train, int64_t step);
/** Run the staged batch through embedding and blocks. cached: with the KV cache (decode.c). */
dt_err dt_layers_run(dt_model *m, const char *phase, bool cached);
dt_err dt_layers_backward(dt_model *m);

/* head.c */
/** Results for the rows with a target; grads: also gradients, and s.dx. */
dt_err dt_head_run(dt_model *m, const dt_batch *b, const dt_head_pass *pass, const dt_head_results *wanted, bool grads);
/** Copy the requested results of this rank's targets to their place among all targets. list: out, the arrays of out. */
dt_err dt_head_fetch(dt_model *m, const dt_head_results *out, float *list[N_RESULTS]);

/* values.c: the outputs of a scalar head, and from their gradients those of the head, and s.dx */
dt_err dt_values_forward(dt_model *m, float *value);
dt_err dt_values_backward(dt_model *m, const float *dvalue);

#endif
