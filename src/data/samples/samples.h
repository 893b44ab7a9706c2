/* samples.h - how one dataset file becomes samples. Five ways, one table of functions each; what a step needs to know
 * of a sample before it is read (tokens, targets, weight) each of them answers from memory, so that counts of a whole
 * step cost no reading.
 *
 *   wrapped  kind tokens: sample i is tokens i*T .. i*T+T-1, cut at document starts with document_mask
 *   records  kind sft: sample i is the i-th record that has a target
 *   packed   either of these kinds, best-fit decreasing: sample i is a row of whole documents or records
 *   pairs    kind preference: sample i is the i-th pair with an answer on both sides, two sequences
 *   prompts  kind prompts: sample i is the i-th prompt; of no batch */
#ifndef DTRAIN_DATA_SAMPLES_H
#define DTRAIN_DATA_SAMPLES_H

#include "../file/dataset_file.h"
#include "dtrain/core/token_batch.h"
#include <math.h>

typedef struct dt_samples_options {
    int64_t seq_len; /* T */
    bool document_mask;
    bool split;    /* packed: cut documents longer than T in pieces instead of leaving out what is over */
    bool truncate; /* pairs: cut texts longer than T, instead of leaving out their pairs */
    bool no_ties;  /* pairs: leave out those of which neither text is better */
    dt_ledger *ledger;
} dt_samples_options;

typedef struct dt_sample_counts {
    int64_t n_tok, n_target, weight_fixed;
    int64_t n_chosen; /* pairs: targets of the chosen text */
    bool images;      /* are there any? */
} dt_sample_counts;

/* Documents or records that are cut after T tokens: their targets, and those of them that lie behind the cut. */
typedef struct dt_cut_counts {
    int64_t n, n_target, n_lost;
} dt_cut_counts;

/* Of the thread that fills: as large as the longest sample. */
typedef struct dt_fill_scratch {
    int32_t *ids;  /* [T + 1] */
    uint8_t *mask; /* [T] */
} dt_fill_scratch;

typedef struct dt_samples dt_samples;

typedef struct dt_samples_ops {
    const char *name;
    dt_err (*open)(dt_samples *set); /* fills n_samples, n_dropped, n_too_long, max_..., impl */
    void (*close)(dt_samples *set);
    /* of prompts NULL, as fill */
    void (*counts)(const dt_samples *set, int64_t i, dt_sample_counts *c);
    /** Append sample i to the batch: token, target, pos, weight, seq_start and n_tok, n_seq. The batch has room. */
    dt_err (*fill)(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch);
} dt_samples_ops;

struct dt_samples {
    const dt_samples_ops *ops;
    dt_dataset *dataset; /* borrowed */
    dt_samples_options opt;
    int64_t n_samples;
    int64_t n_dropped; /* documents or records without any target, pairs without an answer */
    dt_cut_counts cut;
    int64_t n_too_long; /* pairs; records that seq_len would cut where they have images */
    int64_t n_ties;     /* pairs, left out */
    int64_t max_tok;    /* tokens of a sample, at most: T; of prompts those of the longest */
    int64_t max_seq;    /* sequences of a sample, at most */
    int64_t max_images; /* of a sample, at most */
    void *impl;
    size_t nbytes; /* of dt_samples_alloc */
};

extern const dt_samples_ops dt_samples_wrapped, dt_samples_records, dt_samples_packed, dt_samples_pairs,
    dt_samples_prompts;

dt_err dt_samples_open(dt_samples *set, const dt_samples_ops *ops, dt_dataset *dataset, const dt_samples_options *opt);
void dt_samples_close(dt_samples *set); /* safe on {0} */

/** Memory that lives as long as the samples are open, zeroed, counted as DT_MEM_DATA. */
void *dt_samples_alloc(dt_samples *set, int64_t n, size_t elem_size);
void dt_samples_free(dt_samples *set, void *p, int64_t n, size_t elem_size);

/** A weight as dt_batch counts it, in units of 2^-20. */
static inline int64_t dt_weight_fixed(float weight) { return llrint((double)weight * 0x1p20); }

/** The weight that is counted for this one, so that the weights of a batch add up to exactly what was counted. */
static inline float dt_weight_counted(float weight) { return (float)((double)dt_weight_fixed(weight) * 0x1p-20); }

/** Begin a sequence at the end of the batch. */
static inline void dt_fill_begin_sequence(dt_batch *b)
{
    b->first_image[b->n_seq] = b->n_images;
    b->seq_start[b->n_seq++] = b->n_tok;
}

/** Append one document or record, ids and mask [n] (mask NULL: every token is a target), as a sequence of its own:
 *  token t predicts token t + 1 where that one is a target; the last predicts nothing, and the first is never a target.
 *  ids may be the batch's own place. */
void dt_fill_document(dt_batch *b, const int32_t *ids, const uint8_t *mask, int64_t n, float weight);

/** Append the images of record `number` of the file. Its text stands in the batch from token `from` on; it must have
 *  their placeholders, and none as a target: DT_ERR_DATA. */
dt_err dt_fill_images(const dt_samples *set, int64_t number, int32_t from, dt_batch *b);
/** The same for a record's second text, the batch's last sequence: it shows the images of the sequence before. */
dt_err dt_fill_same_images(const dt_samples *set, int64_t number, int32_t from, dt_batch *b);

/** Read tokens first .. first+n-1 (and their mask, if the file has one) and append them so. */
dt_err dt_fill_record(const dt_samples *set, int64_t first, int64_t n, float weight, dt_batch *b,
                      dt_fill_scratch *scratch);

#endif
