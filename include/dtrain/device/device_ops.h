/* device_ops.h - descriptions of the larger operations of a device: products, attention, the classifier, the choice of
 * tokens, optimizers. Part of device.h, whose conventions hold here. */
#ifndef DTRAIN_DEVICE_OPS_H
#define DTRAIN_DEVICE_OPS_H

#include "dtrain/core/core.h"
#include "dtrain/core/int8.h"

typedef enum dt_activation {
    DT_ACT_SILU,
    DT_ACT_GELU,
    DT_ACT_GELU_TANH,
    DT_ACT_QUICK_GELU,
    DT_ACT_RELU,
    DT_N_ACT
} dt_activation;

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef enum dt_epilogue {
    DT_EPILOGUE_NONE,         /* C = P */
    DT_EPILOGUE_ACT,          /* aux = P, C = act(P); aux may be NULL */
    DT_EPILOGUE_ACT_BACKWARD, /* C = P act'(aux): P is the gradient of act's output, aux what act was applied to */
} dt_epilogue;

/** Sums that come with a product at the price of one more pass over a matrix that it reads or writes anyway: gradients
 *  of biases. */
typedef enum dt_product_sums {
    DT_SUMS_NONE,
    DT_SUMS_OF_A, /* sums[m], sums_i = sum over p of op(A)_ip: with dW = dY^T X the gradient of Y's bias */
    DT_SUMS_OF_B, /* sums[n], sums_j = sum over p of op(B)_pj: the same for a dW that is stored [in, out] */
    DT_SUMS_OF_C, /* sums[n], sums_j = sum over i of C_ij: with ACT_BACKWARD the gradient of the bias in front of act */
} dt_product_sums;

/** How A or B is stored where it is not as dt_matmul.dt says: as numbers of a narrower type that stand for themselves
 *  times a scale: one for the matrix, one for each of its rows, as they are stored, or one for each block of 64 (nf4.h;
 *  lda or ldb counts weights, and blocks go on from row to row, with what lies between rows). The product is that of
 *  the matrix of these numbers, each rounded to dt. Backends take a B of int8 with the first two, or of nf4 with the
 *  third, behind an A that is not transposed, without DT_SUMS_OF_B, and refuse all else (DT_ERR_ARG). */
typedef struct dt_scaled {
    enum { DT_SCALE_NONE, DT_SCALE_MATRIX, DT_SCALE_ROWS, DT_SCALE_NF4 } how;
    dt_dtype stored;       /* DT_I8, or DT_NF4X2 */
    const float *scale;    /* [1], [stored rows], or the groups of nf4.h */
    const uint8_t *blocks; /* of nf4.h */
    int finer;             /* of nf4.h: each group is given 2^finer times, for as many parts of it */
} dt_scaled;

/** C[m,n] from P = op(A)[m,k] op(B)[k,n] (+ D) (+ bias[n] on every row), as the epilogue says.
 *
 *  P is a float sum and is rounded once, where it is stored; an epilogue may start from P as it is, or as it was
 *  rounded (act_of_aux). (A GPU's library may round op(A) op(B) to bf16 before it adds D and bias.) Pointers are device
 *  memory, NULL where there is no such operand. What is written must not overlap what is read, but for D, which may be
 *  C or aux (with its row distance and type).
 *
 *  On a GPU: bias, epilogue and sums are those of cuBLASLt (BIAS, GELU_AUX_BIAS, DGELU_BGRAD, BGRADA, BGRADB; D is its
 *  C), which has one pointer for bias and sums: a backend may make sums of its own of what a library does not
 *  combine. */
typedef struct dt_matmul {
    int64_t m, n, k;
    bool trans_a; /* A is stored [k,m] */
    bool trans_b; /* B is stored [n,k] */
    int64_t lda, ldb, ldc;
    dt_dtype dt;      /* of A, B, bias and aux */
    dt_dtype c_dtype; /* of C: dt or DT_F32; with an epilogue dt */
    bool accumulate;  /* D is C */
    /* a row of C has the same bits whatever m and the other rows of A are (generation); A is not transposed */
    bool batch_invariant;

    const void *bias;   /* [n] */
    const void *addend; /* D [m,n] with row distance ldd, of type dt or DT_F32; not together with accumulate */
    int64_t ldd;
    dt_dtype addend_dtype;

    dt_epilogue epilogue;
    dt_activation act;
    void *aux; /* [m,n] with row distance ld_aux: written by ACT, read by ACT_BACKWARD */
    int64_t ld_aux;
    bool act_of_aux; /* ACT with aux: C has the bits of act_forward(aux), which can make it again */

    dt_product_sums sums_of;
    void *sums;
    dt_dtype sums_dtype; /* any that is computed in */
    bool accumulate_sums;

    dt_scaled a_scaled, b_scaled;
    dt_int8_product int8;
} dt_matmul;

/* ---- images ------------------------------------------------------------------------------------------------------ */

/** Images as rows of patches, normalised: what a product with the weights of a vision tower's patch embedding (a
 *  convolution whose stride is its kernel) takes. With G = size / patch, rounded down,
 *
 *      out[i (lead + G^2) + lead + gy G + gx, (c patch + y) patch + x]
 *          = pixel[i, gy patch + y, gx patch + x, c] scale[c] + shift[c],  c < 3
 *
 *  with one rounding to float (fmaf) and one to dt, so that all devices have the same bits. Pixels behind the last
 *  whole patch are not looked at. The rows in front of an image's patches are 0. */
typedef struct dt_patches {
    int64_t n_images;
    int64_t size;  /* side of an image, in pixels, up to DT_MAX_IMAGE_SIZE */
    int64_t patch; /* side of a patch, from 1 to size */
    int lead;      /* rows in front of the patches of each image: 0, or 1 for a class token */
    float scale[3], shift[3];
    dt_dtype dt; /* of out */
} dt_patches;

/** Rows of out that an image has, and columns of a row. */
static inline int64_t dt_patches_rows(const dt_patches *p)
{
    const int64_t side = p->size / p->patch;
    return p->lead + side * side;
}
static inline int64_t dt_patches_width(const dt_patches *p) { return 3 * p->patch * p->patch; }

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/** The way of q, k and v from the product that makes them to attention, head by head:
 *
 *      q' = turned(norm(q)),  k' = turned(norm(k)),  v' = v
 *
 *  norm     an RMSNorm over each head, as rmsnorm_forward computes it; without weights none
 *  turned   rotary embedding, halves layout (algorithms.md 8.4): the pairs (i, i + head_dim/2) of token t turn by the
 *           angle of row pos[t] of cos_sin, float [n_pos, head_dim]: cos for i < head_dim/2, then sin; cos_sin NULL:
 *           they do not turn
 *
 *  What one step gives the next is rounded to dt. A token's q, k and v lie side by side in a row of x; rows of q' are
 *  q_ld, those of k' and v' kv_ld apart. k' and v' of token t go to row kv_row[t] (distinct: a cache), NULL: row t. */
typedef struct dt_heads {
    int64_t n_tok;
    int n_heads, n_kv_heads, head_dim;
    int64_t x_ld, q_ld, kv_ld;
    const int32_t *kv_row;
    const void *q_norm, *k_norm; /* [head_dim], both or neither */
    float eps;
    const int32_t *pos;
    const float *cos_sin;
    dt_dtype dt;
} dt_heads;

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { DT_ATTENTION_MAX_HEAD_DIM = 256 };

/** Exact softmax attention, in tiles: out = softmax(scale q k^T + mask) v for each query head, per sequence.
 *
 *  Rows     Sequence s has the query rows q_start[s] .. q_start[s+1]-1 of q and out, and kv_len[s] key rows from row
 *           kv_start[s] of k and v. In training kv_start = q_start and kv_len = n_q. With shared_len the first
 *           shared_len[s] of them lie from row shared_start[s] on, where other sequences may have them too, and those
 *           behind them from kv_start[s] on. q: [.., n_heads * head_dim] with row distance q_ld; k, v alike with kv_ld;
 *           out, dout with o_ld. Query head h uses key head h / (n_heads/n_kv_heads).
 *  Mask     Causal, aligned at the end: query i of n_q sees the key rows j <= kv_len - n_q + i, and with a window W > 0
 *           only j > kv_len - n_q + i - W. Bidirectional: every query sees all kv_len rows; there is no window then.
 *  Dropout  of the probabilities with p > 0: kept when u >= p, scaled by 1/(1-p); for key row j of its sequence u =
 *           dt_u32_to_unit(word j % 4 of philox(dropout_key, token_key[query row], head << 32 | j / 4)). */
typedef struct dt_attention {
    int n_seq, n_heads, n_kv_heads, head_dim;
    const int32_t *q_start;                   /* [n_seq + 1] */
    const int32_t *kv_start;                  /* [n_seq] */
    const int32_t *kv_len;                    /* [n_seq] */
    const int32_t *shared_start, *shared_len; /* [n_seq] from 0 to kv_len, NULL: 0; for batch_invariant alone */
    int32_t n_tok;                            /* q_start[n_seq], known to the host */
    int32_t max_q_len, max_kv_len;
    int64_t q_ld, kv_ld, o_ld;
    float scale;    /* above 0 */
    int32_t window; /* 0: none */
    bool bidirectional;
    dt_dtype dt;
    float dropout_p;
    uint64_t dropout_key;      /* step and layer mixed in by the caller */
    const uint64_t *token_key; /* [n_tok], NULL without dropout */
    /* forward alone, without lse and dropout: made for few queries; a row of out has the same bits whatever other
     * queries are in the call */
    bool batch_invariant;
    /* all sequences have max_q_len queries, and those rows' keys: kv_start = q_start, kv_len = n_q. A library that was
     * made ready for the shape may take the call (attention_prepare) */
    bool by_library;
} dt_attention;

/** What a library was made ready for. */
enum { DT_READY_FORWARD = 1, DT_READY_BACKWARD = 2 };

/* ---- the classifier ---------------------------------------------------------------------------------------------- */

/** The classifier over a chunk of rows of float logits: log-probabilities of targets, terms that depend on whole
 *  distributions, and the gradient of all of them, which is written over the logits. For a row with the logits z, the
 *  target t and the temperature T, and with the logits y of a second model:
 *
 *      s = z/T, p = softmax(s), q = softmax(y/T), V = n_vocab
 *      logp = log p_t            entropy H = - sum_v p_v log p_v            kl K = sum_v p_v (log p_v - log q_v)
 *      loss = - (1 - eps) log p_t - eps/V sum_v log p_v + zeta (log sum_v e^(s_v))^2
 *
 *  with eps = label_smoothing and zeta = z_loss. The row's part of the objective is
 *  weight loss - entropy_weight H + kl_weight K, and its gradient, written where any of the weights is given,
 *
 *      dlogits_v = 1/T ( weight (p_v (1 + 2 zeta log sum e^s) - (1 - eps) [v = t] - eps/V)
 *                        + entropy_weight p_v (log p_v + H) + kl_weight p_v (log p_v - log q_v - K) )
 *
 *  A class with the logit -inf cannot be (p_v = 0) and adds nothing, but to a smoothed loss, which it makes infinite;
 *  where q excludes what p allows, K is infinite. Rows with target < 0 have results and gradients 0. With the same
 *  logits twice K and its gradient are exactly 0.
 *
 *  Pointers are device memory. NULL: weights are 0, results are not wanted. */
typedef struct dt_classifier {
    int64_t n_rows, n_vocab;
    int64_t logits_ld;      /* row distance of logits */
    float inv_temperature;  /* 1/T */
    dt_dtype dlogits_dtype; /* written over logits: row r at the byte address of logits' row r */
    float label_smoothing;  /* from 0 to below 1 */
    float z_loss;           /* from 0 */

    const int32_t *target;                            /* [n_rows] */
    const float *weight, *entropy_weight, *kl_weight; /* [n_rows] */
    const float *ref_logits;                          /* y, for K; must not overlap logits */
    int64_t ref_ld;

    float *logp;            /* [n_rows] */
    uint8_t *hit;           /* [n_rows] 1 where the largest logit, the lowest id on ties, is the target's */
    float *entropy, *kl;    /* [n_rows] */
    float *loss;            /* [n_rows] */
    float *log_sum_squares; /* [n_rows] log sum_v p_v^2 */
    float *mean_logit;      /* [n_rows] 1/V sum_v s_v */
} dt_classifier;

/* ---- choosing tokens --------------------------------------------------------------------------------------------- */

/** Rows of logits that tokens are chosen from. */
typedef struct dt_token_rows {
    int64_t n_rows, n_vocab;
    int64_t logits_ld;       /* row distance of logits, float */
    const uint32_t *allowed; /* token v of row r: bit v % 32 of word r * allowed_ld + v / 32; NULL: all are */
    int64_t allowed_ld;      /* 0: the same for all rows */
    const uint32_t *seen;    /* likewise: those that came before in the row's text; NULL: none. For draw_tokens alone */
    int64_t seen_ld;
    /* row r is chosen from list[list_start[r]] and the list_len[r] - 1 ids behind it, which ascend, as far as they are
     * allowed; no others are looked at. NULL: from all */
    const int32_t *list;
    const int32_t *list_start, *list_len; /* [n_rows] */
} dt_token_rows;

/** How a token is drawn from a row: the transforms in this order, each on what the one before it left. */
typedef struct dt_choice {
    double repetition_penalty; /* of seen tokens: logit / rho where positive, logit * rho otherwise, as a float */
    bool greedy;               /* the largest logit, the lowest id on ties; the rest is not looked at */
    double temperature;        /* logits / temperature, above 0 with a finite inverse */
    int64_t top_k;             /* the k most probable, of equal ones those with lower ids; 0: all */
    double top_p; /* the fewest most probable whose probabilities reach p of the sum, at least one; 1: all */
    double min_p; /* those with at least min_p times the probability of the most probable; 0: all */
} dt_choice;

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

/** One call of Adam over n elements (Kingma & Ba, arXiv:1412.6980), with decay in the gradient (l2), or outside of it
 *  (weight_decay; AdamW: Loshchilov & Hutter, arXiv:1711.05101, algorithm 2; decay times lr):
 *
 *      g = grad_scale * grad + l2 p;  m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2
 *      p <- p (1 - lr wd) - lr (m/fix1) / (sqrt(v/fix2) + eps) */
typedef struct dt_adamw {
    float lr, beta1, beta2, eps, weight_decay, l2;
    float fix1, fix2; /* 1 - beta^t, formed in double by the caller */
    float grad_scale;
} dt_adamw;

/** One call of gradient descent with momentum over n elements. b <- momentum b + g; p <- p - lr b, g = grad_scale *
 *  grad + l2 p. A buffer of zeros becomes the first gradient. */
typedef struct dt_sgd {
    float lr, momentum, l2;
    float grad_scale;
} dt_sgd;

#endif
