/* device_ops.h - descriptions of the larger device operations: matmuls, patches, heads, attention, the
 * classifier, token selection, optimizers. Part of device.h, whose conventions apply; op_list.h has the operations. */
#ifndef DTRAIN_DEVICE_OPS_H
#define DTRAIN_DEVICE_OPS_H

#include "dtrain/core/core.h"

/** Activation functions. */
typedef enum dt_activation {
    DT_ACT_SILU,
    DT_ACT_GELU,
    DT_ACT_GELU_TANH,
    DT_ACT_QUICK_GELU,
    DT_ACT_RELU,
    DT_N_ACT
} dt_activation;

/* ---- matmuls --------------------------------------------------------------------------------------------- */

/** Last step of a matmul, applied to P before it is stored as C. */
typedef enum dt_epilogue {
    DT_EPILOGUE_NONE,         /* C = P */
    DT_EPILOGUE_ACT,          /* aux = P, C = act(P); aux may be NULL */
    DT_EPILOGUE_ACT_BACKWARD, /* C = P act'(aux): P is the gradient of act's output, aux the input of act */
} dt_epilogue;

/** Row or column sums of a matrix that a matmul reads or writes anyway: gradients of biases. */
typedef enum dt_matmul_sums {
    DT_SUMS_NONE,
    DT_SUMS_OF_A, /* sums[m], sums_i = sum over p of op(A)_ip: with dW = dY^T X the gradient of Y's bias */
    DT_SUMS_OF_B, /* sums[n], sums_j = sum over p of op(B)_pj: the same for a dW that is stored [in, out] */
    DT_SUMS_OF_C, /* sums[n], sums_j = sum over i of C_ij: with ACT_BACKWARD the gradient of the bias before act */
} dt_matmul_sums;

/** Quantised storage of A or B: values of a narrower type times a scale. There is one scale for the matrix, one for
 *  each stored row, or one for each block of 64 weights (nf4.h). Blocks continue from row to row, gaps between rows
 *  included, and lda or ldb counts weights. The matmul is that of the dequantised matrix, each element rounded to dt.
 *  Backends accept B as int8 with the first two, or as nf4 with the third, if A is not transposed, without
 *  DT_SUMS_OF_B. Anything else is DT_ERR_ARG. */
typedef struct dt_scaled {
    enum { DT_SCALE_NONE, DT_SCALE_MATRIX, DT_SCALE_ROWS, DT_SCALE_NF4 } how;
    dt_dtype stored;       /* DT_I8, or DT_NF4X2 */
    const float *scale;    /* [1], [stored rows], or the groups of nf4.h */
    const uint8_t *blocks; /* of nf4.h */
    int finer;             /* of nf4.h: each group is stored 2^finer times, once for each part of it */
} dt_scaled;

/** C[m,n] from P = op(A)[m,k] op(B)[k,n] (+ D) (+ bias[n] on every row), followed by the epilogue.
 *
 *  P is a float sum, rounded once when it is stored. An epilogue may use P before or after rounding (act_of_aux). A
 *  GPU's library may round op(A) op(B) to bf16 before it adds D and bias. Pointers are device memory; NULL: no such
 *  operand. Outputs must not overlap inputs, except D, which may be C or aux (with its row distance and type).
 *
 *  On a GPU, bias, epilogue and sums correspond to cuBLASLt's (BIAS, GELU_AUX_BIAS, DGELU_BGRAD, BGRADA, BGRADB; D is
 *  its C). cuBLASLt has one pointer for bias and sums; a backend computes separately what a library does not
 *  combine. */
typedef struct dt_matmul {
    int64_t m, n, k;
    bool trans_a; /* A is stored [k,m]; then B is stored [k,n] */
    bool trans_b; /* B is stored [n,k] */
    int64_t lda, ldb, ldc;
    dt_dtype dt;      /* of A, B, bias and aux */
    dt_dtype c_dtype; /* of C: dt or DT_F32; with an epilogue dt */
    bool accumulate;  /* D is C */
    /* a row of C has the same bits for any m and any other rows of A (generation); A is not transposed */
    bool batch_invariant;

    const void *bias;   /* [n], of a grouped matmul [n_groups, n] */
    const void *addend; /* D [m,n] with row distance ldd, of type dt or DT_F32; not together with accumulate */
    int64_t ldd;
    dt_dtype addend_dtype;

    dt_epilogue epilogue;
    dt_activation act;
    void *aux; /* [m,n] with row distance ld_aux: written by ACT, read by ACT_BACKWARD */
    int64_t ld_aux;
    bool act_of_aux; /* ACT with aux: C has the bits of act_forward(aux), which can recompute it */

    dt_matmul_sums sums_of;
    void *sums;
    dt_dtype sums_dtype; /* DT_F32, DT_BF16 or DT_F16 */
    bool accumulate_sums;

    dt_scaled a_scaled, b_scaled;

    /* A grouped matmul: n_groups matmuls, of the rows group_start[g] .. group_start[g+1]-1 of a matrix. The host knows
     * the total number of rows, but not how they are divided. Without trans_a these are rows of A, C, D and aux, m is
     * their total, and group g has its own B, group_stride elements after that of group g-1. With trans_a they are the
     * rows of A and B, k is their total, and group g has its own C, group_stride elements after that of group g-1. A
     * group without rows has the empty sum. Row scales, and blocks and groups of nf4, of consecutive matrices B follow
     * one another. sums are not supported, nor is a bias with trans_a */
    int n_groups;               /* 0: an ordinary matmul */
    const int32_t *group_start; /* device [n_groups + 1], ascending, in 0 .. total; rows outside are in no group */
    int64_t group_stride;
} dt_matmul;
/** The matmul of group g of a grouped matmul, for a host that can read group_start; moves the three matrices. */
dt_matmul dt_matmul_group(const dt_matmul *mm, int g, const void **a, const void **b, void **c);
/** A matmul of matrices without gaps between rows; everything else is optional and unset. */
static inline dt_matmul dt_dense_matmul(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, dt_dtype dt,
                                        dt_dtype c_dtype)
{
    return (dt_matmul){.m = m,
                       .n = n,
                       .k = k,
                       .trans_a = trans_a,
                       .trans_b = trans_b,
                       .lda = trans_a ? m : k,
                       .ldb = trans_b ? k : n,
                       .ldc = n,
                       .dt = dt,
                       .c_dtype = c_dtype};
}

/* ---- mixtures of experts ----------------------------------------------------------------------------------------- */

enum { DT_MAX_EXPERTS = 4096 };

/** Routing of tokens to experts. A token with the logits z has the scores p = softmax(z), or with `sigmoid`
 *  p_e = 1 / (1 + e^-z_e). Its experts are those of the k largest c_e = p_e + correction_e, in descending order (ties:
 *  the lower number). The weight of expert e is scale p_e, with `normalise` divided by the sum of the k p. All arrays
 *  are float, except the experts' numbers.
 *
 *  With n_groups > 1 the experts are in groups of equal size. A group's value is the sum of its group_best largest c.
 *  Only experts of the k_groups groups with the largest values are used (ties: the lower number). */
typedef struct dt_routing {
    int64_t n_tok;
    int32_t n_experts, k; /* 1 <= k <= n_experts <= DT_MAX_EXPERTS */
    bool normalise, sigmoid;
    int32_t n_groups, k_groups, group_best; /* n_groups <= DT_MAX_GROUPS; 0 or 1: no groups */
    float scale;                            /* 0: 1 */
    const float *correction;                /* [n_experts] device memory; NULL: 0 */
} dt_routing;
enum { DT_MAX_GROUPS = 64 };

static inline float dt_routing_scale(const dt_routing *r) { return r->scale != 0 ? r->scale : 1; }

/* ---- image patches ----------------------------------------------------------------------------------------------- */

/** Images as rows of normalised patches: the input of the matmul with a vision tower's patch embedding (a convolution
 *  whose stride equals its kernel size). With G = size / patch, rounded down,
 *
 *      out[i (lead + G^2) + lead + gy G + gx, (c patch + y) patch + x]
 *          = pixel[i, gy patch + y, gx patch + x, c] scale[c] + shift[c],  c < 3
 *
 *  with one rounding to float (fmaf) and one to dt, so that all devices give the same bits. Pixels after the last whole
 *  patch are ignored. The lead rows before an image's patches are 0. */
typedef struct dt_patches {
    int64_t n_images;
    int64_t size;  /* side of an image, in pixels, up to DT_MAX_IMAGE_SIZE */
    int64_t patch; /* side of a patch, from 1 to size */
    int lead;      /* rows before the patches of each image: 0, or 1 for a class token */
    float scale[3], shift[3];
    dt_dtype dt; /* of out */
} dt_patches;

/** Rows of out per image, and columns of a row. */
static inline int64_t dt_patches_rows(const dt_patches *p)
{
    const int64_t side = p->size / p->patch;
    return p->lead + side * side;
}
static inline int64_t dt_patches_width(const dt_patches *p) { return 3 * p->patch * p->patch; }

/* ---- weight-decomposed adapters ---------------------------------------------------------------------------------- */

/** Lengths of the rows of a matrix with a low-rank adapter, n_j = |W_j + scale (B A)_j|, summed in float. Row j is row
 *  `first` + j of the stored matrix, with row distance w_ld, or column `first` + j (in_first). A [r, n_in] and
 *  B [n_out, r] are contiguous. W, A, B and the magnitudes are of dt; a quantised W is rounded to dt. */
typedef struct dt_row_lengths {
    int64_t n_out, n_in, r, first, w_ld;
    bool in_first; /* not with w_scaled */
    float scale;
    dt_dtype dt;
    dt_scaled w_scaled;
} dt_row_lengths;

/* ---- norms, rotary embedding of heads ---------------------------------------------------------------------------- */

/** RMSNorm of rows: y = x rstd f, with rstd = 1 / sqrt(mean of x^2 + eps).
 *
 *  The factor f is the weight, and x rstd is rounded to dt before the multiplication. With plus_one f = 1 + weight, and
 *  only y is rounded (algorithms.md 8.4). With only_scales rstd = 1: y = x f.
 *
 *  Row r of x is at x + (r / group) * group_ld + (r % group) * width; y likewise with y_group_ld. group 1: an ordinary
 *  matrix with row distance group_ld; group = heads: each head of a wider row. */
typedef struct dt_rmsnorm {
    int64_t n_rows, width, group, group_ld, y_group_ld;
    float eps;
    bool plus_one;
    dt_dtype dt;
    bool only_scales;
} dt_rmsnorm;

/** Norm and rotary embedding of q, k and v between their matmul and attention, head by head:
 *
 *      q' = turned(norm(q)),  k' = turned(norm(k)),  v' = v
 *
 *  norm    RMSNorm over each head, as rmsnorm_forward computes it; without weights none
 *  turned  rotary embedding of the first r = rotary_dim elements (algorithms.md 8.4): pair i < r/2 of token t rotates
 *          by the angle in row pos[t] of cos_sin, float [n_pos, r]: cos for i < r/2, then sin; cos_sin NULL: no
 *          rotation. Pair i is (i, i + r/2), or (2i, 2i + 1) if neighbours. q_cos_sin: another table for q, whose
 *          angles may have a factor; NULL: cos_sin
 *
 *  The result of each step is rounded to dt. A row of x contains q, k and v of a token, in this order. The row distance
 *  of q' is q_ld, that of k' and v' kv_ld. k' and v' of token t are stored in row kv_row[t] (distinct rows of a cache);
 *  NULL: row t. */
typedef struct dt_heads {
    int64_t n_tok;
    int n_heads, n_kv_heads, head_dim;
    int64_t x_ld, q_ld, kv_ld;
    const int32_t *kv_row;
    const void *q_norm, *k_norm; /* [head_dim], both or neither */
    float eps;
    bool plus_one; /* of dt_rmsnorm */
    const int32_t *pos;
    const float *cos_sin, *q_cos_sin;
    int rotary_dim; /* 0: head_dim */
    bool neighbours;
    dt_dtype dt;
} dt_heads;

static inline int dt_heads_rotary_dim(const dt_heads *h) { return h->rotary_dim ? h->rotary_dim : h->head_dim; }

/** The heads of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), between its matmuls and attention. Of
 *  token t, with N = nope_dim, R = rope_dim and V = v_dim, a query head is xq_h [N + R], a key and value head xkv_h
 *  [N + V], and all key heads share xr [R]:
 *
 *      q_h = (xq_h[0..N-1], turned(xq_h[N..]))    k_h = (xkv_h[0..N-1], turned(xr))    v_h = xkv_h[N..]
 *
 *  turned: the rotation of dt_heads over all R elements. Results are rounded to dt once. Heads of a row follow one
 *  another; rows have the distances *_ld, k and v have kv_ld. k and v of token t are stored in row kv_row[t] (distinct
 *  rows of a cache); NULL: row t. */
typedef struct dt_latent {
    int64_t n_tok;
    int n_heads, nope_dim, rope_dim, v_dim; /* rope_dim even, at most DT_ATTENTION_MAX_HEAD_DIM */
    int64_t xq_ld, xkv_ld, xr_ld, q_ld, kv_ld;
    const int32_t *kv_row, *pos;
    const float *cos_sin; /* [n_pos, R]: dt_heads */
    bool neighbours;
    dt_dtype dt;
} dt_latent;

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { DT_ATTENTION_MAX_HEAD_DIM = 256 };

/** Exact softmax attention, in tiles, for each query head, per sequence:
 *
 *      x = scale q k^T     s = x, or softcap tanh(x / softcap), or -inf where the mask hides the key
 *      p_j = e^(s_j) / (e^sink + sum_l e^(s_l))     out = p v     lse = log (e^sink + sum_l e^(s_l))
 *
 *  Without sinks, e^sink is 0. A query that sees no key has out = 0, and lse = sink or -inf. Every kernel reads this
 *  description, through its platform's score functions (isa/tile.h, cuda/attention.cuh). A kernel that does not support
 *  a description leaves it to the next one. Positions are in q and k already (dt_heads).
 *
 *  Rows     Sequence s has the query rows q_start[s] .. q_start[s+1]-1 of q and out, and kv_len[s] key rows, starting
 *           at row kv_start[s] of k and v. In training kv_start = q_start and kv_len = n_q. With shared_len the first
 *           shared_len[s] key rows start at row shared_start[s], which sequences may share; the others start at
 *           kv_start[s]. q: [.., n_heads * head_dim] with row distance q_ld; k: [.., n_kv_heads * head_dim] and v:
 *           [.., n_kv_heads * v_dim], both with kv_ld; out, dout: [.., n_heads * v_dim] with o_ld, v_dim =
 *           dt_attention_v_dim. Query head h uses key head h / (n_heads/n_kv_heads).
 *  Mask     Query i of n_q has the position p = kv_len - n_q + i. Causal: it attends to the key rows j <= p, and with a
 *           window W > 0 only to j > p - W. Block-causal, block B > 1: to all j < (floor(p / B) + 1) B. Bidirectional:
 *           to all kv_len rows. Only causal attention has a window, or ahead: the query of row t then also attends to
 *           the ahead[t] key rows after p. p + ahead must not decrease in a sequence.
 *  Sinks    The gradient of a head's sink is - sum over its queries of e^(sink - lse) delta, delta = dout . out.
 *           attention_backward writes or adds it to dsinks.
 *  Dropout  Of the probabilities, with p > 0: kept if u >= p, and scaled by 1/(1-p). For key row j of its sequence u =
 *           dt_u32_to_unit(word j % 4 of philox(dropout_key, token_key[query row], head << 32 | j / 4)). */
typedef struct dt_attention {
    int n_seq, n_heads, n_kv_heads, head_dim; /* head_dim: of q and k */
    int v_head_dim;                           /* of v and out; 0: head_dim */
    const int32_t *q_start;                   /* [n_seq + 1] */
    const int32_t *kv_start;                  /* [n_seq] */
    const int32_t *kv_len;                    /* [n_seq] */
    const int32_t *shared_start, *shared_len; /* [n_seq] from 0 to kv_len, NULL: 0; only with batch_invariant */
    int32_t n_tok;                            /* q_start[n_seq], known to the host */
    int32_t max_q_len, max_kv_len;
    int64_t q_ld, kv_ld, o_ld;
    float scale;       /* above 0 */
    float softcap;     /* 0: none */
    const void *sinks; /* [n_heads] of dt: learned logits (gpt-oss); NULL: none */
    void *dsinks;      /* backward: [n_heads] of dsinks_dtype; NULL: not computed */
    dt_dtype dsinks_dtype;
    bool accumulate_dsinks;
    int32_t window; /* 0: none */
    int32_t block;  /* 0 or 1: causal */
    bool bidirectional;
    const int32_t *ahead; /* [n_tok] from 0 to max_ahead: keys after the query's position; NULL: none */
    int32_t max_ahead;
    dt_dtype dt;
    float dropout_p;
    uint64_t dropout_key;      /* step and layer mixed in by the caller */
    const uint64_t *token_key; /* [n_tok], NULL without dropout */
    /* only forward without lse and dropout, for few queries: a row of out has the same bits for any other queries of
     * the call */
    bool batch_invariant;
    /* all sequences have max_q_len queries and the keys of the same rows: kv_start = q_start, kv_len = n_q. A library
     * that was prepared for the shape may compute the call (attention_prepare) */
    bool by_library;
} dt_attention;

static inline int dt_attention_v_dim(const dt_attention *at) { return at->v_head_dim ? at->v_head_dim : at->head_dim; }

/** Operations that a library was prepared for. */
enum { DT_READY_FORWARD = 1, DT_READY_BACKWARD = 2 };

/* ---- linear attention -------------------------------------------------------------------------------------------- */

/** Causal depthwise convolution over the tokens of each sequence, followed by SiLU. With K = kernel,
 *
 *      p[t, c] = sum over j < K of weight[c, j] x[t - (K-1) + j, c]        y = p / (1 + e^-p)
 *
 *  Sequence s has the rows q_start[s] .. q_start[s+1]-1. The K-1 rows before its first are its state, or 0: no
 *  sequence reads another one's rows. A state is [K-1, width], oldest row first; that of sequence s is number
 *  state_row[s] (distinct), NULL: s. */
typedef struct dt_conv {
    int n_seq;
    const int32_t *q_start; /* [n_seq + 1] */
    int32_t n_tok;          /* q_start[n_seq], known to the host */
    int64_t width;          /* channels */
    int kernel;             /* 1 to DT_CONV_MAX_KERNEL */
    int64_t x_ld, y_ld;     /* row distances of x and dx, and of y and dy */
    const int32_t *state_row;
    dt_dtype dt;
} dt_conv;
enum { DT_CONV_MAX_KERNEL = 8 };

/** The gated delta rule (Yang et al., arXiv:2412.06464) for each value head, per sequence, with k' = k / |k| and
 *  q' = q / (|q| sqrt(k_dim)), where |x|^2 = sum of x^2 + 1e-6:
 *
 *      S <- e^g S        S <- S + k'^T beta (v - k' S)        out = q' S
 *
 *  S: float [k_dim, v_dim], 0 or the sequence's state before its first token. Value head h uses the query and key head
 *  h / (n_v_heads/n_k_heads).
 *
 *  Rows     Sequence s has the rows q_start[s] .. q_start[s+1]-1. q and k: [.., n_k_heads * k_dim], v: [.., n_v_heads *
 *           v_dim], all three and their gradients with row distance x_ld; out, dout: [.., n_v_heads * v_dim] with o_ld;
 *           g (at most 0), beta and their gradients: float [n_tok, n_v_heads].
 *  States   float [.., n_v_heads, k_dim, v_dim]; that of sequence s is number state_row[s] (distinct), NULL: s. */
typedef struct dt_delta {
    int n_seq, n_k_heads, n_v_heads, k_dim, v_dim;
    const int32_t *q_start; /* [n_seq + 1] */
    int32_t n_tok, max_len; /* q_start[n_seq] and the maximum of the sequences' lengths, known to the host */
    int64_t x_ld, o_ld;
    const int32_t *state_row;
    dt_dtype dt;
} dt_delta;
/** Tokens that the chunked form processes together; maximum of k_dim and v_dim. */
enum { DT_DELTA_CHUNK = 64, DT_DELTA_MAX_DIM = 256 };

/** The decay and the writing strength of the gated delta rule, for each token and value head:
 *
 *      g = - e^a_log log(1 + e^(a + dt_bias))        beta = 1 / (1 + e^-b)
 *
 *  a and b: rows of width with row distance ld. a_log and dt_bias: [width]. g, beta: float [n_rows, width]. */
typedef struct dt_delta_gates {
    int64_t n_rows, width, ld;
    dt_dtype dt;
} dt_delta_gates;

/** Blocks of width elements in rows: block b of row r of x is at x + r x_ld + b x_block, that of y at y + r y_ld +
 *  b y_block. */
typedef struct dt_blocks {
    int64_t n_rows, n_blocks, width;
    int64_t x_ld, x_block, y_ld, y_block;
    dt_dtype dt;
} dt_blocks;

/* ---- classifier -------------------------------------------------------------------------------------------------- */

/** The classifier over a chunk of rows of float logits: log-probabilities of targets, terms that depend on whole
 *  distributions, and their gradient, which overwrites the logits. For a row with logits z, target t and temperature T,
 *  and logits y of a reference model:
 *
 *      s = z/T, p = softmax(s), q = softmax(y/T), V = n_vocab
 *      logp = log p_t            entropy H = - sum_v p_v log p_v            kl K = KL(p || q) with a = kl_mix = 0
 *      loss = - (1 - eps) log p_t - eps/V sum_v log p_v + zeta (log sum_v e^(s_v))^2
 *
 *  with eps = label_smoothing and zeta = z_loss. The row's term of the objective is weight loss - entropy_weight H +
 *  kl_weight K. Its gradient, written if any of the weights is given, is
 *
 *      dlogits_v = 1/T ( weight (p_v (1 + 2 zeta log sum e^s) - (1 - eps) [v = t] - eps/V)
 *                        + entropy_weight p_v (log p_v + H) + kl_weight p_v (log p_v - log q_v - K) )
 *
 *  where KL(p || q) = sum_v p_v (log p_v - log q_v). With 0 < a < 1, K is the generalised Jensen-Shannon divergence,
 *  and with a = 1 the forward divergence. The last term of the gradient is then
 *
 *      m = a p + (1 - a) q,  K = a KL(p || m) + (1 - a) KL(q || m):   kl_weight a p_v (log p_v - log m_v - KL(p || m))
 *      K = KL(q || p):                                                kl_weight (p_v - q_v)
 *
 *  With weight_by_p the weight of a row is weight p_t, where p_t counts as a constant (dynamic fine-tuning).
 *
 *  With softcap c > 0 the logits are z = c tanh(x / c), and dlogits is the gradient of x: the above times
 *  1 - (z_v / c)^2.
 *
 *  A class with the logit -inf has p_v = 0 and adds nothing, except that it makes a smoothed loss infinite. If q
 *  excludes a class that p allows, K is infinite with a = 0; if p excludes a class that q allows, with a = 1. Rows
 *  with target < 0 have results and gradients 0. If both models' logits are equal, K and its gradient are exactly 0.
 *
 *  Pointers are device memory. NULL: weights are 0, results are not computed. */
typedef struct dt_classifier {
    int64_t n_rows, n_vocab;
    int64_t logits_ld;      /* row distance of logits */
    float inv_temperature;  /* 1/T */
    dt_dtype dlogits_dtype; /* written over logits: row r at the byte address of logits' row r */
    float label_smoothing;  /* from 0 to below 1 */
    float z_loss;           /* from 0 */
    float softcap;          /* c; 0: none */
    float kl_mix;           /* a, from 0 to 1; 0 with log_sum_squares */
    bool weight_by_p;

    const int32_t *target;                            /* [n_rows] */
    const float *weight, *entropy_weight, *kl_weight; /* [n_rows] */
    const float *ref_logits;                          /* y, for K; must not overlap logits */
    int64_t ref_ld;

    float *logp;            /* [n_rows] */
    uint8_t *hit;           /* [n_rows] 1 if the target has the largest logit (ties: the lowest id) */
    float *entropy, *kl;    /* [n_rows] */
    float *loss;            /* [n_rows] */
    float *log_sum_squares; /* [n_rows] log sum_v p_v^2 */
    float *mean_logit;      /* [n_rows] 1/V sum_v s_v */
} dt_classifier;

/* ---- token selection --------------------------------------------------------------------------------------------- */

/** Rows of logits from which tokens are selected. */
typedef struct dt_token_rows {
    int64_t n_rows, n_vocab;
    int64_t logits_ld;       /* row distance of logits, float */
    const uint32_t *allowed; /* token v of row r: bit v % 32 of word r * allowed_ld + v / 32; NULL: all are */
    int64_t allowed_ld;      /* 0: the same for all rows */
    const uint32_t *seen;    /* likewise: tokens that occurred in the row's text; NULL: none. Only for draw_tokens */
    int64_t seen_ld;
    /* candidates of row r: the allowed ones of list[list_start[r] .. + list_len[r] - 1], in ascending order. NULL:
     * all */
    const int32_t *list;
    const int32_t *list_start, *list_len; /* [n_rows] */
} dt_token_rows;

/** How a token is sampled from a row: the transforms apply in this order, each to the result of the one before. */
typedef struct dt_choice {
    double repetition_penalty; /* rho, for seen tokens: logit / rho if positive, else logit * rho, as a float */
    bool greedy;               /* the largest logit (ties: the lowest id); the fields below are ignored */
    double temperature;        /* logits / temperature, above 0 with a finite inverse */
    int64_t top_k;             /* the k most probable tokens (ties: the lower ids); 0: all */
    double top_p;              /* the smallest set of most probable tokens whose sum reaches p, at least one; 1: all */
    double min_p;              /* tokens with at least min_p times the maximum probability; 0: all */
} dt_choice;

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

/** One Adam update of n elements (Kingma & Ba, arXiv:1412.6980), with decay in the gradient (l2) or decoupled
 *  (weight_decay, times lr; AdamW: Loshchilov & Hutter, arXiv:1711.05101, algorithm 2):
 *
 *      g = grad_scale * grad + l2 p;  m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2
 *      p <- p (1 - lr wd) - lr (m/fix1) / (sqrt(v/fix2) + eps) */
typedef struct dt_adamw {
    float lr, beta1, beta2, eps, weight_decay, l2;
    float fix1, fix2; /* 1 - beta^t, computed in double by the caller */
    float grad_scale;
} dt_adamw;

/** One update of n elements by gradient descent with momentum: b <- momentum b + g; p <- p - lr b, g = grad_scale *
 *  grad + l2 p. b is zero before the first update. */
typedef struct dt_sgd {
    float lr, momentum, l2;
    float grad_scale;
} dt_sgd;

#endif
