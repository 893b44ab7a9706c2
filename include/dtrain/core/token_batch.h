/* token_batch.h - one micro-batch: a flat list of tokens, divided into sequences without padding. Every function is
 * Local. */
#ifndef DTRAIN_TOKEN_BATCH_H
#define DTRAIN_TOKEN_BATCH_H

#include "dtrain/core/core.h"

/** Arrays that some batches have, and that only their task or part of the model reads. The table's address identifies
 *  it. */
typedef struct dt_extension_form {
    const char *name;
    size_t self_nbytes; /* of the structure with the addresses of the arrays, at most DT_EXTENSION_NBYTES */
    /** Assign the arrays of self for a batch of at most max_seq sequences, with dt_carve. self has the sizes that were
     *  given to dt_batch_extend. Returns their bytes. */
    size_t (*lay_out)(void *self, int32_t max_seq, void *block);
} dt_extension_form;
enum { DT_EXTENSION_NBYTES = 64 };
typedef struct dt_extension dt_extension;

/** A micro-batch in host memory, allocated once for the largest one (dt_batch_alloc), which owns the arrays. Tokens
 *  attend only to tokens of their own sequence: a row, a document of a packed row, or a sample. target[t] is the token
 *  that follows token t, or -1 if none is predicted. */
typedef struct dt_batch {
    int32_t n_tok, n_seq;
    int32_t max_tok, max_seq;
    int32_t *token;     /* [n_tok] */
    int32_t *target;    /* [n_tok], already shifted; -1: none */
    int32_t *pos;       /* [n_tok], 0 at the start of each sequence */
    int32_t *seq_start; /* [n_seq + 1] */
    /* [n_seq] tokens of the whole sequence, if the batch may hold a part of it (a long prompt); 0: its last position +
     * 1. May be NULL */
    int32_t *full_len;
    /* [n_seq] position of the first generated token; image placeholders at or after it are ordinary tokens. 0: none are
     * generated. May be NULL */
    int32_t *prompt_len;
    int32_t *order; /* [n_tok] 0 .. n_tok-1, sorted by token, then by index (for embedding_backward) */
    /* [n_tok] weight of the target in the loss: 0 without target, else 1 or the dataset's weight */
    float *weight;
    /* [n_tok] hash of the sample's index in the dataset and the token's index in it: key of random numbers */
    uint64_t *token_key;
    int64_t *sample; /* [n_samples] index in the dataset, over all its files in order */
    /* The tokens with a target, ascending, and the number of them before each sequence. Weights and log-probabilities
     * have one element per target, in this order. */
    int32_t *target_row; /* [n_target] */
    int32_t *seq_target; /* [n_seq + 1] */
    int64_t n_target;
    int64_t n_samples;
    int64_t weight_fixed;     /* sum of weight in units of 2^-20: exact, independent of order */
    dt_extension *extensions; /* a list; dt_batch_extension */
} dt_batch;

/** Allocate a batch for max_tok tokens and max_seq sequences, zeroed, as one block (DT_MEM_DATA, host).
 *
 *  b       out  freed with dt_batch_free
 *  ledger  may be NULL
 *
 *  DT_ERR_ARG: max_tok or max_seq below 1. DT_ERR_MEMORY. */
dt_err dt_batch_alloc(dt_batch *b, int32_t max_tok, int32_t max_seq, dt_ledger *ledger);
/** Add an extension, its arrays zeroed, counted in ledger and freed by dt_batch_free. form: borrowed; sizes: initial
 *  values of its structure, NULL: zeros. DT_ERR_MEMORY. */
dt_err dt_batch_extend(dt_batch *b, const dt_extension_form *form, const void *sizes, dt_ledger *ledger);
/** The structure of an extension; NULL: the batch has none of this form. */
void *dt_batch_extension(const dt_batch *b, const dt_extension_form *form);
/** Bytes that dt_batch_extend allocates; 0 for form NULL. */
size_t dt_extension_nbytes(const dt_extension_form *form, const void *sizes, int32_t max_seq);
/** Free the arrays and subtract them from the same ledger. Safe on {0}; leaves {0}. */
void dt_batch_free(dt_batch *b, dt_ledger *ledger);
/** Bytes that dt_batch_alloc allocates. */
size_t dt_batch_nbytes(int32_t max_tok, int32_t max_seq);
/** Remove all sequences. */
void dt_batch_clear(dt_batch *b);
/** Append a sequence without dropout: ids [n] at positions 0 .. n-1. Token i predicts ids[i + 1], with weight 1, if
 *  i + 1 >= n_context; n_context > n: no token predicts. */
void dt_batch_append(dt_batch *b, const int32_t *ids, int32_t n, int32_t n_context);
/** Compute order, target_row, seq_target, n_target and weight_fixed from the other fields, after these were filled in.
 *  Allocates nothing. */
void dt_batch_finish(dt_batch *b);

#endif
