/* sid.h - semantic IDs of the items of a catalogue: embeddings -> residual codes -> one token a level.
 *
 * An item's embedding x is quantised level by level: r_0 = x, k_l is the row of codebook l that is nearest to r_l, and
 * r_(l+1) = r_l - e_(l, k_l). Codebooks are those of residual k-means on the embeddings, or of an RQ-VAE on a small
 * code of them.
 *
 * Source   Lee et al., "Autoregressive Image Generation using Residual Quantization", CVPR 2022, arXiv:2203.01941;
 *          MiniOneRec, arXiv:2510.24431. What is decided here: recommendation.md "Semantic IDs".
 * Symbols  n items, d width of what is quantised, L levels, K codes of a level.
 *
 * Ranks and order. Items are cut into blocks of dt_sid.block items; rank b mod R works on block b. What is summed over
 * items is summed within a block by the device, in one order, and over blocks in the order of their numbers, so results
 * are the same bits for any number of ranks with the same device. What is small for each item (a code, a distance) is
 * known to all ranks.
 */
#ifndef DTRAIN_SID_H
#define DTRAIN_SID_H

#include "dtrain/comm/comm.h"
#include "dtrain/io/matrix_file.h"
#include <jansson.h>

enum { DT_SID_MAX_LEVELS = 26 }; /* letters */

/** Where and how: filled by the caller, borrowed by all below. */
typedef struct dt_sid {
    dt_comm *comm;  /* attached to dev, one group */
    dt_device *dev; /* made reproducible */
    dt_stream *stream;
    dt_phase *phase; /* may be NULL */
    int64_t block;   /* items that are worked on at a time */
    int64_t n_codes; /* K */
    int n_levels;    /* L */
    uint64_t seed;
} dt_sid;

/* ---- items ------------------------------------------------------------------------------------------------------- */

/** What NAME.item.json says of each item: {0} to start from. Ids that are all whole numbers are in the order of these,
 *  others in the order of the file; row i of the embeddings is item i. */
typedef struct dt_sid_items {
    json_t *root;
    int64_t n;
    const char **id;      /* [n] */
    json_t **item;        /* [n] */
    uint64_t fingerprint; /* of the file: dt_comm_same_file */
} dt_sid_items;

/** Is an id a whole number as Python writes it (no sign, no leading zero), of at most 18 digits? Then *number. */
bool dt_sid_item_number(const char *id, int64_t *number);
/** Local. DT_ERR_DATA naming file, line or item: not JSON, an item that is no object, a field that is no text. */
dt_err dt_sid_items_read(dt_sid_items *items, const char *path);
/** The fields of an item that are there and not empty, joined by a space; of lists their texts, also of lists as Python
 *  writes them where the field is not the title. fields: [n_fields] names. malloc'ed, NULL: out of memory. */
char *dt_sid_item_text(const dt_sid_items *items, int64_t i, const char *const *fields, int n_fields);
bool dt_sid_items_have(const dt_sid_items *items, const char *field); /* some item has it */
void dt_sid_items_free(dt_sid_items *items);

/* ---- points ------------------------------------------------------------------------------------------------------ */

/** Rows of floats that lie on the device of the rank that works on their block: [n, width] in all. */
typedef struct dt_sid_points {
    int64_t n, width;
    dt_buf rows;    /* this rank's blocks, in order */
    double *norm;   /* [n] squared lengths, on all ranks, once dt_sid_points_measure was called */
    float *staging; /* [block, width] host */
    dt_buf scratch; /* [block, width] */
} dt_sid_points;

/** Room for this rank's blocks, zeros. Local. dt_sid_points_free also after an error. DT_ERR_MEMORY. */
dt_err dt_sid_points_alloc(const dt_sid *s, dt_sid_points *p, int64_t n, int64_t width);
/** Read this rank's blocks. Local. Errors of dt_rows_read. */
dt_err dt_sid_points_read(const dt_sid *s, dt_sid_points *p, dt_rows *from);
/** Squared lengths of the rows as they are. Collective. */
dt_err dt_sid_points_measure(const dt_sid *s, dt_sid_points *p);
/** rows -= codebook[code]. codebook: [K, width], device; code: [n]. Local, synchronous. */
dt_err dt_sid_points_subtract(const dt_sid *s, dt_sid_points *p, const void *codebook, const int32_t *code);
void dt_sid_points_free(const dt_sid *s, dt_sid_points *p);

int64_t dt_sid_blocks(const dt_sid *s, int64_t n); /* blocks of n items */
int64_t dt_sid_rounds(const dt_sid *s, int64_t n); /* blocks of the rank that has most */

/* ---- codebooks --------------------------------------------------------------------------------------------------- */

/** A codebook as products want it: distances are |x|^2 - 2 (x e^T - |e|^2/2). */
typedef struct dt_sid_book {
    int64_t n_codes, width;
    dt_buf rows; /* [K, width] float, device */
    dt_buf bias; /* [K] -|e|^2/2 */
    float *host; /* [K, width] */
    float *bias_host;
} dt_sid_book;
/** For the codes of s. Local. dt_sid_book_free also after an error. DT_ERR_MEMORY. */
dt_err dt_sid_book_alloc(const dt_sid *s, dt_sid_book *b, int64_t width);
/** The host's rows go to the device, and the biases that follow from them. Local, synchronous. */
dt_err dt_sid_book_set(const dt_sid *s, dt_sid_book *b);
void dt_sid_book_free(dt_sid_book *b);

/** The nearest code of each point, of equal ones the lowest, and the squared distance: code, distance [n], on all
 *  ranks. Collective. Needs measured points. */
dt_err dt_sid_nearest(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, int32_t *code, float *distance);
/** Squared distances of n_items points to all codes: cost [n_items, K] with room for one float more, on all ranks, the
 *  same whatever else is asked for. item: NULL: 0 .. n_items-1. Collective. */
dt_err dt_sid_distances(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, const int64_t *item,
                        int64_t n_items, float *cost);

typedef struct dt_sid_kmeans {
    int64_t max_iterations;
    bool balanced; /* codes have floor(n/K) or ceil(n/K) items each */
    int level;     /* keys the random numbers */
} dt_sid_kmeans;

/** k-means from k-means++ (Arthur & Vassilvitskii, SODA 2007) seeds, by Lloyd's iterations until no item moves. A code
 *  without items moves to the item that is farthest from its own. Balanced: each assignment is the cheapest one with
 *  the sizes of above, to within 1/1000 of its sum (dt_sid_assign); the larger sizes go to the codes that are nearest
 *  to most items. Results: book, code [n] of it, *objective the sum of squared distances.
 *  Collective. DT_ERR_DATA: fewer points than codes. */
dt_err dt_sid_kmeans_fit(const dt_sid *s, const dt_sid_kmeans *how, dt_sid_points *p, dt_sid_book *b, int32_t *code,
                         double *objective);

/** Items to codes that have room for size[k] each, sum of size = n, so that the sum of cost is above the least by at
 *  most `precision` of itself, or n 2^-30 of the largest cost where that is more. cost: [n, K] row-major, none below 0;
 *  K <= 2^20. An auction (Bertsekas & Castanon, "The auction algorithm for the transportation problem", Ann. Oper. Res.
 *  20, 1989). code: [n]. Local. DT_ERR_NONFINITE: a cost; DT_ERR_MEMORY, DT_ERR_ARG. */
dt_err dt_sid_assign(const float *cost, int64_t n, int64_t n_codes, const int64_t *size, double precision,
                     int32_t *code);

/* ---- RQ-VAE ------------------------------------------------------------------------------------------------------ */

/** An autoencoder around a residual quantiser: z = encoder(x), q = sum over levels of the nearest codes e_l of r_0 = z,
 *  r_(l+1) = r_l - e_l, y = decoder(q). Both are linear layers with relu between them, the decoder's sizes those of the
 *  encoder backwards. For a batch of B rows, with sg what gradients do not pass,
 *
 *      L = mean over B width of (y - x)^2 + 1/L sum over l of (mean over B dim of (sg r_l - e_l)^2
 *                                                              + beta mean over B dim of (r_l - sg e_l)^2)
 *
 *  The gradient of y reaches z as if q were z (straight-through). r_(l+1) for l >= 0 is constant: what commits the
 *  encoder to its codes is the first level alone, as in MiniOneRec, where the straight-through value is what is
 *  subtracted. */
typedef struct dt_rqvae dt_rqvae;
typedef struct dt_rqvae_options {
    int64_t width, dim;    /* of embeddings, of what is quantised */
    const int64_t *hidden; /* [n_hidden] sizes of the encoder's layers but the last */
    int n_hidden;
    double beta;
    double lr, weight_decay; /* AdamW with 0.9, 0.999 and 1e-8 */
    double clip;             /* the gradient's norm is at most this; 0: whatever it is */
    int64_t warmup_steps;    /* lr grows from 0 to its value */
} dt_rqvae_options;

/** Weights are N(0, 2 / (in + out)) (Glorot & Bengio, AISTATS 2010), biases and codebooks zero. Local. */
dt_err dt_rqvae_open(dt_rqvae **v, const dt_sid *s, const dt_rqvae_options *o);
void dt_rqvae_close(dt_rqvae *v); /* safe on NULL */

/** Parameters one after the other: of each layer, the encoder's first, weight [out, in] and bias; then codebooks
 *  [L, K, dim]. Host, synchronous, local. */
int64_t dt_rqvae_n_param(const dt_rqvae *v);
dt_err dt_rqvae_get(const dt_rqvae *v, float *param);
dt_err dt_rqvae_put(dt_rqvae *v, const float *param);
dt_err dt_rqvae_get_gradient(const dt_rqvae *v, float *grad); /* of the last dt_rqvae_backward, not clipped */

/** The mean of the loss over a batch. */
typedef struct dt_rqvae_loss {
    double reconstruction, quantisation, total;
} dt_rqvae_loss;

/** z of n rows. item: [n] their numbers in the file, the same on all ranks; NULL: 0 .. n-1. p: of dt_sid_points_alloc
 *  for n and dim. Local. */
dt_err dt_rqvae_encode(dt_rqvae *v, dt_rows *rows, const int64_t *item, dt_sid_points *p);
/** Codebooks by k-means of what a batch is encoded to, level by level. Collective. */
dt_err dt_rqvae_seed(dt_rqvae *v, dt_rows *rows, const int64_t *item, int64_t n, int64_t max_iterations);
/** Loss and gradient of a batch. Collective. DT_ERR_NONFINITE: distances that are not finite. */
dt_err dt_rqvae_backward(dt_rqvae *v, dt_rows *rows, const int64_t *item, int64_t n, dt_rqvae_loss *loss);
/** A step of AdamW by that gradient. The same on all ranks, local. DT_ERR_NONFINITE: its norm is not finite. */
dt_err dt_rqvae_update(dt_rqvae *v);
/** The codebooks of the parameters: books [L] of width dim. Local. */
dt_err dt_rqvae_books(const dt_rqvae *v, dt_sid_book *books);

/* ---- collisions -------------------------------------------------------------------------------------------------- */

/** Items of one SID, lists of two or more in the order of their first items. */
typedef struct dt_sid_groups {
    int64_t n_groups, n_items;
    int64_t *item;  /* [n_items], a list after the other, ascending in each */
    int64_t *start; /* [n_groups + 1] */
} dt_sid_groups;
/** code: [L][n], level by level. *n_distinct: SIDs in use. Local. DT_ERR_MEMORY. */
dt_err dt_sid_group(int32_t *const *code, int n_levels, int64_t n, dt_sid_groups *groups, int64_t *n_distinct);
void dt_sid_groups_free(dt_sid_groups *groups);

typedef struct dt_sid_sinkhorn {
    double epsilon;     /* above 0 */
    int64_t iterations; /* of rows, then columns */
    int64_t max_rounds;
    bool distinct; /* what still collides then takes the nearest code that no item with its first levels has */
} dt_sid_sinkhorn;

/** The balanced plan of n items and K codes (Cuturi, "Sinkhorn Distances", NIPS 2013): cost is centred and scaled to
 *  -1 .. 1,
 *
 *      Q = exp(-c/epsilon), then by turns: rows sum to 1/n, columns sum to 1/K
 *
 *  q: [n, K] out, times n. Local. */
void dt_sid_sinkhorn_plan(const float *cost, int64_t n, int64_t n_codes, double epsilon, int64_t iterations, double *q);

/** Rounds in which all items of each group get the last code that the plan of their group gives most of their weight;
 *  of all rounds the one that leaves most SIDs in use counts. p: what the last level's codes are of, as before it was
 *  subtracted; measured. code: [L][n], the last level's change. *n_rounds: how many there were. Collective. */
dt_err dt_sid_resolve(const dt_sid *s, const dt_sid_sinkhorn *how, const dt_sid_points *p, const dt_sid_book *b,
                      int32_t *const *code, int64_t *n_rounds);

/* ---- what comes out ---------------------------------------------------------------------------------------------- */

/** Use of a level: codes that some item has, and exp of the entropy of their shares. */
typedef struct dt_sid_use {
    int64_t n_used, largest;
    double perplexity;
} dt_sid_use;
dt_err dt_sid_count_use(const int32_t *code, int64_t n, int64_t n_codes, dt_sid_use *use); /* DT_ERR_MEMORY */

/** PREFIX.index.json, {"id": ["<a_17>", "<b_203>", "<c_5>"], ...}, and with items PREFIX.txt, lines sid TAB title TAB
 *  id. items NULL: ids are the numbers of rows. Local, for one rank. DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_sid_write(const char *prefix, const dt_sid_items *items, int32_t *const *code, int n_levels, int64_t n);

#endif
