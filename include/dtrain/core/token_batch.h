/* token_batch.h - what data hands to model: one micro-batch as a flat list of tokens cut into sequences. */
#ifndef DTRAIN_BATCH_H
#define DTRAIN_BATCH_H

#include "dtrain/core/core.h"

/** Host memory, allocated once for the largest micro-batch (dt_batch_alloc). A sequence is what attends to itself: a
 *  row, a document of a packed row, a sample. Token t of a sequence is an input; target[t] is the token that follows
 *  it, or -1 where nothing is to be predicted. */
typedef struct dt_batch {
    int32_t n_tok, n_seq;
    int32_t max_tok, max_seq;
    int32_t *token;     /* [n_tok] */
    int32_t *target;    /* [n_tok], -1: none. The shift is done here, once */
    int32_t *pos;       /* [n_tok], 0 at the start of each sequence */
    int32_t *seq_start; /* [n_seq + 1] */
    /* [n_seq]: tokens of the sequence of which the batch may hold a piece (a long prompt); 0: its last position + 1.
     * May be NULL */
    int32_t *full_len;
    /* [n_seq]: from this position on a sequence's tokens are what a model has generated, among which a placeholder is a
     * token like others; 0: none are. May be NULL */
    int32_t *prompt_len;
    int32_t *first_image; /* [n_seq]: the image of its first run of placeholders; the others show those that follow */
    int32_t *order;       /* [n_tok]: 0..n_tok-1 sorted by token, equal tokens ascending (for embedding_backward) */
    /* [n_tok]: weight of the target in the loss: 0 without target, 1 as a rule (dataset weights) */
    float *weight;
    /* [n_tok]: dt_mix64 of (sample number in the dataset, place in the sample): for random numbers */
    uint64_t *token_key;
    int64_t *sample; /* [n_samples]: its number in the dataset, counted through all files as given */
    /* of pairs (kind preference): sample k has the sequences 2k, the chosen text, and 2k + 1, the rejected one */
    float *margin;   /* [n_samples], by how much the chosen one is better; 0: not known */
    uint8_t *safety; /* [n_seq]: dt_safety */
    uint8_t *tie;    /* [n_samples]: 1: neither text is better */
    /* images of a vision-language model's batch, each for a sequence or for several, such as both texts of a pair: red,
     * green and blue of each pixel, row by row, or for a model whose features are given (vision.h) these; [n_images,
     * image_nbytes]. NULL: there is no room for any */
    uint8_t *pixels;
    int32_t n_images, max_images;
    size_t image_nbytes;
    int64_t n_target; /* targets >= 0 */
    int64_t n_samples;
    int64_t weight_fixed; /* sum of weight, in units of 2^-20, exact: for sums that do not depend on order */
} dt_batch;

/* one block, counted as DT_MEM_DATA */
dt_err dt_batch_alloc(dt_batch *b, int32_t max_tok, int32_t max_seq, dt_ledger *ledger);
/** Room for images, counted likewise; freed with the rest. */
dt_err dt_batch_alloc_images(dt_batch *b, int32_t max_images, size_t image_nbytes, dt_ledger *ledger);
void dt_batch_free(dt_batch *b, dt_ledger *ledger);
size_t dt_batch_nbytes(int32_t max_tok, int32_t max_seq);
/** Fill order, n_target and weight_fixed from the rest. */
void dt_batch_finish(dt_batch *b);

#endif
