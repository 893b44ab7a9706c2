/* sid.h - semantic IDs of a catalogue's items: embeddings -> residual codes -> one token per level.
 *
 * An item's embedding x is quantised level by level: r_0 = x, k_l is the row of codebook l nearest to r_l, and r_(l+1)
 * = r_l - e_(l, k_l). Codebooks come from residual k-means on the embeddings, or from an RQ-VAE on a small code of
 * them.
 *
 * Source   Lee et al., "Autoregressive Image Generation using Residual Quantization", CVPR 2022, arXiv:2203.01941;
 *          MiniOneRec, arXiv:2510.24431. Choices made here: recommendation.md, "Semantic IDs".
 * Symbols  n items, d width of the quantised vectors, L levels, K codes per level.
 *
 * Ranks and order. Items are divided into blocks of dt_sid.block items; rank b mod R processes block b. Sums over items
 * are computed within a block by the device, in fixed order, and then over blocks in order. Results therefore have the
 * same bits for any number of ranks with the same device. Small results per item (a code, a distance) are replicated.
 *
 * `Collective` means over s->comm. Common errors: DT_ERR_MEMORY, DT_ERR_FAULT, DT_ERR_COMM. */
#ifndef DTRAIN_SID_H
#define DTRAIN_SID_H

#include "dtrain/comm/comm.h"
#include "dtrain/io/matrix_file.h"
#include <jansson.h>

enum { DT_SID_MAX_LEVELS = 26 }; /* letters */

/** Context of all functions: set by the caller, borrowed. */
typedef struct dt_sid {
    dt_comm *comm;  /* attached to dev, one group */
    dt_device *dev; /* made reproducible */
    dt_stream *stream;
    dt_phase *phase; /* may be NULL */
    int64_t block;   /* items per block */
    int64_t n_codes; /* K */
    int n_levels;    /* L */
    uint64_t seed;
} dt_sid;

/* ---- items ------------------------------------------------------------------------------------------------------- */

/** Items of NAME.item.json. {0} to begin; freed with dt_sid_items_free. If all ids are whole numbers, items are sorted
 *  by id, otherwise in file order; row i of the embeddings is item i. */
typedef struct dt_sid_items {
    json_t *root;
    int64_t n;
    const char **id;      /* [n] */
    json_t **item;        /* [n] */
    uint64_t fingerprint; /* of the file: dt_comm_same_file */
} dt_sid_items;

/** Is an id a whole number as Python writes it (no sign, no leading zero), of at most 18 digits? number: out. Local. */
bool dt_sid_item_number(const char *id, int64_t *number);
/** Read the items. Local. DT_ERR_DATA naming file, line or item: not JSON, an item that is not an object, a field that
 *  is not a text. */
dt_err dt_sid_items_read(dt_sid_items *items, const char *path);
/** The non-empty fields of an item, joined by spaces. Lists contribute their texts; except in the title, so do texts
 *  that are Python lists. fields: in [n_fields] names. Returns malloc'ed text; NULL: out of memory. Local. */
char *dt_sid_item_text(const dt_sid_items *items, int64_t i, const char *const *fields, int n_fields);
/** Has any item this field? Local. */
bool dt_sid_items_have(const dt_sid_items *items, const char *field);
/** Free the items. Local. Safe on {0}. */
void dt_sid_items_free(dt_sid_items *items);

/* ---- points ------------------------------------------------------------------------------------------------------ */

/** Rows of floats [n, width], each on the device of the rank that processes its block. */
typedef struct dt_sid_points {
    int64_t n, width;
    dt_buf rows;    /* this rank's blocks, in order */
    double *norm;   /* [n] squared lengths, on all ranks, after dt_sid_points_measure */
    float *staging; /* [block, width] host */
    dt_buf scratch; /* [block, width] */
} dt_sid_points;

/** Allocate this rank's blocks, zeroed. Local. Call dt_sid_points_free also after an error. DT_ERR_MEMORY. */
dt_err dt_sid_points_alloc(const dt_sid *s, dt_sid_points *p, int64_t n, int64_t width);
/** Read this rank's blocks. Local. Errors of dt_matrix_file_read. */
dt_err dt_sid_points_read(const dt_sid *s, dt_sid_points *p, dt_matrix_file *from);
/** Compute the squared lengths of the current rows. Collective. */
dt_err dt_sid_points_measure(const dt_sid *s, dt_sid_points *p);
/** rows -= codebook[code]. codebook: [K, width], device; code: [n]. Local, synchronous. */
dt_err dt_sid_points_subtract(const dt_sid *s, dt_sid_points *p, const void *codebook, const int32_t *code);
/** Free the blocks. Local. Safe on {0}. */
void dt_sid_points_free(const dt_sid *s, dt_sid_points *p);

/** Number of blocks of n items. Local. */
int64_t dt_sid_blocks(const dt_sid *s, int64_t n);
/** Maximum number of blocks of a rank. Local. */
int64_t dt_sid_rounds(const dt_sid *s, int64_t n);

/* ---- codebooks --------------------------------------------------------------------------------------------------- */

/** A codebook prepared for matrix products: squared distances are |x|^2 - 2 (x e^T - |e|^2/2). */
typedef struct dt_sid_book {
    int64_t n_codes, width;
    dt_buf rows; /* [K, width] float, device */
    dt_buf bias; /* [K] -|e|^2/2 */
    float *host; /* [K, width] */
    float *bias_host;
} dt_sid_book;
/** Allocate a codebook of s->n_codes codes. Local. Call dt_sid_book_free also after an error. DT_ERR_MEMORY. */
dt_err dt_sid_book_alloc(const dt_sid *s, dt_sid_book *b, int64_t width);
/** Copy the host's rows, and the biases computed from them, to the device. Local, synchronous. */
dt_err dt_sid_book_set(const dt_sid *s, dt_sid_book *b);
/** Free a codebook. Local. Safe on {0}. */
void dt_sid_book_free(dt_sid_book *b);

/** Find the nearest code of each measured point (ties: the lowest), and the squared distance. code, distance: out [n],
 *  on all ranks. Collective. */
dt_err dt_sid_nearest(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, int32_t *code, float *distance);
/** Compute the squared distances of n_items points to all codes. cost: out [n_items, K] plus one float, on all ranks;
 *  independent of the other items. item: NULL: 0 .. n_items-1. Collective. */
dt_err dt_sid_distances(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, const int64_t *item,
                        int64_t n_items, float *cost);

/** Options of k-means. */
typedef struct dt_sid_kmeans {
    int64_t max_iterations;
    bool balanced; /* codes have floor(n/K) or ceil(n/K) items each */
    int level;     /* key of the random numbers */
} dt_sid_kmeans;

/** Fit k-means from k-means++ seeds (Arthur & Vassilvitskii, SODA 2007), by Lloyd's iterations until no item moves. A
 *  code without items moves to the item farthest from its own code. Balanced: each assignment has the sizes above and
 *  is within 1/1000 of the minimum cost (dt_sid_assign); codes nearest to the most items get the larger sizes. Results:
 *  book, code [n], and in objective the sum of squared distances. Collective. DT_ERR_DATA: fewer points than codes. */
dt_err dt_sid_kmeans_fit(const dt_sid *s, const dt_sid_kmeans *how, dt_sid_points *p, dt_sid_book *b, int32_t *code,
                         double *objective);

/** Assign items to codes with size[k] items each, sum of size = n. The sum of costs exceeds the minimum by at most the
 *  fraction `precision`, or n 2^-30 times the largest cost if that is more. cost: in [n, K], row-major, not negative; K
 *  <= 2^20. An auction (Bertsekas & Castanon, "The auction algorithm for the transportation problem", Ann. Oper. Res.
 *  20, 1989). code: [n]. Local. DT_ERR_NONFINITE: a cost; DT_ERR_MEMORY, DT_ERR_ARG. */
dt_err dt_sid_assign(const float *cost, int64_t n, int64_t n_codes, const int64_t *size, double precision,
                     int32_t *code);

/* ---- RQ-VAE ------------------------------------------------------------------------------------------------------ */

/** An autoencoder with a residual quantiser: z = encoder(x), q = sum over levels of the nearest codes e_l of r_0 = z,
 *  r_(l+1) = r_l - e_l, y = decoder(q). Encoder and decoder are linear layers with ReLU between them, with mirrored
 *  sizes. For a batch of B rows, with the stop-gradient sg,
 *
 *      L = mean over B width of (y - x)^2 + 1/L sum over l of (mean over B dim of (sg r_l - e_l)^2
 *                                                              + beta mean over B dim of (r_l - sg e_l)^2)
 *
 *  The gradient of y is passed to z as if q were z (straight-through). r_(l+1) for l >= 0 is constant, so only the
 *  first level commits the encoder to its codes. This follows MiniOneRec, which subtracts the straight-through
 *  value.
 *
 *  With `residual` z = x + encoder(x), and the encoder's last layer starts at zero: if the codebooks start from all
 *  items, training starts from residual k-means (RQ-Kmeans+ of MiniOneRec, first in GPR, arXiv:2511.10138). */
typedef struct dt_rqvae dt_rqvae;
typedef struct dt_rqvae_options {
    int64_t width, dim; /* of embeddings, and of the quantised vectors; equal with residual */
    bool residual;
    const int64_t *hidden; /* [n_hidden] sizes of the encoder's layers, without the last */
    int n_hidden;
    double beta;
    double lr, weight_decay; /* AdamW with 0.9, 0.999 and 1e-8 */
    double clip;             /* maximum norm of the gradient; 0: no clipping */
    int64_t warmup_steps;    /* lr increases from 0 to its value */
} dt_rqvae_options;

/** Weights are N(0, 2 / (in + out)) (Glorot & Bengio, AISTATS 2010), biases and codebooks zero. Local. */
dt_err dt_rqvae_open(dt_rqvae **v, const dt_sid *s, const dt_rqvae_options *o);
void dt_rqvae_close(dt_rqvae *v); /* safe on NULL */

/** Number of parameters. In the arrays below, host memory, they are ordered: weight [out, in] and bias of each layer,
 *  the encoder's first; then codebooks [L, K, dim]. Synchronous, Local. */
int64_t dt_rqvae_n_param(const dt_rqvae *v);
/** Copy the parameters to the host. param: out [dt_rqvae_n_param]. */
dt_err dt_rqvae_get(const dt_rqvae *v, float *param);
/** Set the parameters from the host. param: in [dt_rqvae_n_param]. */
dt_err dt_rqvae_put(dt_rqvae *v, const float *param);
dt_err dt_rqvae_get_gradient(const dt_rqvae *v, float *grad); /* of the last dt_rqvae_backward, not clipped */

/** Mean losses over a batch. */
typedef struct dt_rqvae_loss {
    double reconstruction, quantisation, total;
} dt_rqvae_loss;

/** Encode n rows to z. item: in [n] their indices in the file, the same on all ranks; NULL: 0 .. n-1. p: allocated for
 *  n and dim. Local. */
dt_err dt_rqvae_encode(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, dt_sid_points *p);
/** Initialise the codebooks by k-means of encoded rows, level by level; how->level is ignored. Collective. */
dt_err dt_rqvae_seed(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, int64_t n, const dt_sid_kmeans *how);
/** Loss and gradient of a batch. Collective. DT_ERR_NONFINITE: distances that are not finite. */
dt_err dt_rqvae_backward(dt_rqvae *v, dt_matrix_file *rows, const int64_t *item, int64_t n, dt_rqvae_loss *loss);
/** Make an AdamW step with that gradient. Local, the same on all ranks. DT_ERR_NONFINITE: its norm is not finite. */
dt_err dt_rqvae_update(dt_rqvae *v);
/** Copy the codebooks to books [L] of width dim. Local. */
dt_err dt_rqvae_books(const dt_rqvae *v, dt_sid_book *books);

/* ---- collisions -------------------------------------------------------------------------------------------------- */

/** Groups of two or more items with the same SID, in the order of their first items. */
typedef struct dt_sid_groups {
    int64_t n_groups, n_items;
    int64_t *item;  /* [n_items] consecutive groups, ascending in each */
    int64_t *start; /* [n_groups + 1] */
} dt_sid_groups;
/** Find the groups. code: in [L][n], by level. n_distinct: out, number of SIDs in use. Local. DT_ERR_MEMORY. */
dt_err dt_sid_group(int32_t *const *code, int n_levels, int64_t n, dt_sid_groups *groups, int64_t *n_distinct);
/** Free the groups. Local. Safe on {0}. */
void dt_sid_groups_free(dt_sid_groups *groups);

typedef struct dt_sid_sinkhorn {
    double epsilon;     /* above 0 */
    int64_t iterations; /* of rows, then columns */
    int64_t max_rounds;
    bool distinct; /* then give each remaining duplicate the nearest code that no item with the same first levels has */
} dt_sid_sinkhorn;

/** The balanced transport plan of n items and K codes (Cuturi, "Sinkhorn Distances", NIPS 2013): cost is centred and
 *  scaled to -1 .. 1,
 *
 *      Q = exp(-c/epsilon), then alternately: rows sum to 1/n, columns sum to 1/K
 *
 *  q: [n, K] out, times n. Local. */
void dt_sid_sinkhorn_plan(const float *cost, int64_t n, int64_t n_codes, double epsilon, int64_t iterations, double *q);

/** Resolve collisions in rounds: each item of a group gets the last code to which its group's plan gives the most
 *  weight. The round with the most SIDs in use is kept. p: in, measured residuals of the last level, before its
 *  subtraction. code: inout [L][n]; the last level changes. n_rounds: out. Collective. */
dt_err dt_sid_resolve(const dt_sid *s, const dt_sid_sinkhorn *how, const dt_sid_points *p, const dt_sid_book *b,
                      int32_t *const *code, int64_t *n_rounds);

/* ---- results ----------------------------------------------------------------------------------------------------- */

/** Use of a level: number of codes with items, and exp of the entropy of their frequencies. */
typedef struct dt_sid_use {
    int64_t n_used, largest;
    double perplexity;
} dt_sid_use;
/** Compute the use of a level. code: in [n]. Local. DT_ERR_MEMORY. */
dt_err dt_sid_count_use(const int32_t *code, int64_t n, int64_t n_codes, dt_sid_use *use);

/** PREFIX.index.json, {"id": ["<a_17>", "<b_203>", "<c_5>"], ...}, and with items PREFIX.txt, lines sid TAB title TAB
 *  id. items NULL: ids are row indices. Local, called by one rank. DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_sid_write(const char *prefix, const dt_sid_items *items, int32_t *const *code, int n_levels, int64_t n);

#endif
