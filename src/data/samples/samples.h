/* samples.h - how a dataset file becomes samples: six layouts, one function table each. Tokens, targets
 * and weight of each sample are kept in memory. A step is counted without reading the file.
 *
 *   wrapped  kind tokens: sample i is tokens i*T .. i*T+T-1, cut at document starts with document_mask
 *   records  kind sft: sample i is the i-th record that has a target
 *   packed   kind tokens or sft, best-fit decreasing: sample i is a row of whole documents or records
 *   answers  kinds preference and unpaired: sample i is the i-th pair with two non-empty answers, two
 *            sequences, or the i-th text with a non-empty answer
 *   units    kinds labels and texts: sample i is the i-th text or list of words with labels, or the i-th group of
 *            texts, each a sequence
 *   prompts  kind prompts, or on request sft: sample i is the i-th prompt; has no batches */
#ifndef DTRAIN_DATA_SAMPLES_H
#define DTRAIN_DATA_SAMPLES_H

#include "../counted.h"
#include "../file/dataset_file.h"
#include "dtrain/core/token_batch.h"
#include <math.h>

typedef struct dt_samples_options {
    int64_t seq_len; /* T */
    bool document_mask;
    bool split;          /* packed: split documents longer than T instead of dropping what exceeds T */
    bool truncate;       /* answers: cut texts longer than T instead of dropping their samples */
    bool no_ties;        /* preference: drop pairs in which neither text is better */
    bool prompt_targets; /* answers: the prompt of a first text is also a target */
} dt_samples_options;

typedef struct dt_sample_counts {
    int64_t n_tok, n_target, weight_fixed;
    int64_t n_chosen; /* answers: targets of the first text */
    bool images;      /* the sample has images */
} dt_sample_counts;

/* Documents or records that are cut after T tokens: their number, their targets, and the targets lost by the cut. */
typedef struct dt_cut_counts {
    int64_t n, n_target, n_lost;
} dt_cut_counts;

/* Scratch of the thread that fills batches, sized for the longest sample. */
typedef struct dt_fill_scratch {
    int32_t *ids;  /* [T + 1] */
    uint8_t *mask; /* [T] */
} dt_fill_scratch;

typedef struct dt_samples dt_samples;

typedef struct dt_samples_ops {
    size_t impl_nbytes;                 /* of impl, which is zeroed before open; 0: none */
    const dt_extension_form *extension; /* of batches; NULL: none */
    dt_err (*open)(dt_samples *set);    /* fills n_samples, n_dropped, n_too_long, max_..., impl */
    /* NULL for prompts, as is fill */
    void (*counts)(const dt_samples *set, int64_t i, dt_sample_counts *c);
    /** Append sample i to the batch: token, target, pos, weight, seq_start, n_tok and n_seq. The batch has room. */
    dt_err (*fill)(const dt_samples *set, int64_t i, dt_batch *b, dt_fill_scratch *scratch);
    /** Append the prompt of sample i with the answer of sample j of another set, as one text of at most T tokens. NULL:
     *  the samples have no prompts. */
    dt_err (*fill_mismatched)(const dt_samples *set, int64_t i, const dt_samples *other, int64_t j, dt_batch *b,
                              dt_fill_scratch *scratch);
} dt_samples_ops;

struct dt_samples {
    const dt_samples_ops *ops;
    dt_dataset *dataset; /* borrowed */
    dt_samples_options opt;
    int64_t n_samples;
    int64_t n_dropped; /* documents or records without a target, pairs without an answer */
    dt_cut_counts cut;
    int64_t n_too_long; /* dropped pairs, or records with images that seq_len would cut */
    int64_t n_ties;     /* dropped pairs with a tie */
    int64_t n_flagged;  /* samples with answers whose flag is set (dt_pair) */
    int64_t max_tok;    /* maximum tokens of a sample: T; of prompts the longest */
    int64_t max_seq;    /* maximum sequences of a sample */
    int64_t max_images; /* maximum images of a sample */
    int64_t max_tail;   /* prompts: maximum placeholders of one that ends with an image */
    void *impl;
    dt_counted memory;
};

extern const dt_samples_ops dt_samples_wrapped, dt_samples_records, dt_samples_packed, dt_samples_answers,
    dt_samples_prompts, dt_samples_units;

/** A prompt's tokens begin at `first`. n_tok: inout, of a record of kind sft reduced to the tokens before its last
 *  answer, that is before its last targets; a record without targets is a prompt. DT_ERR_DATA: nothing precedes the
 *  answer. */
dt_err dt_samples_cut_answer(dt_dataset *d, int64_t record, int64_t first, int64_t *n_tok);

/** A value of data.packing, for files of kinds tokens and sft. */
typedef struct dt_packing {
    const char *name;
    const dt_samples_ops *ops;
    bool of_tokens, of_sft; /* it supports this kind */
    bool split;
} dt_packing;
enum { DT_N_PACKINGS = 4 };
extern const dt_packing dt_packings[DT_N_PACKINGS];
/** The packing of this name; NULL: none. */
const dt_packing *dt_packing_find(const char *name);

dt_err dt_samples_open(dt_samples *set, const dt_samples_ops *ops, dt_dataset *dataset, const dt_samples_options *opt,
                       dt_ledger *ledger);
void dt_samples_close(dt_samples *set); /* safe on {0} */

/** A weight in the fixed-point units of dt_batch, 2^-20. */
static inline int64_t dt_weight_fixed(float weight) { return llrint((double)weight * 0x1p20); }

/** The weight rounded to these units. The weights of a batch then add up exactly to the counted weight. */
static inline float dt_weight_counted(float weight) { return (float)((double)dt_weight_fixed(weight) * 0x1p-20); }

/** Append one document or record as a sequence of its own. ids, mask: [n]; mask NULL: every token is a
 *  target. Token t predicts token t + 1 if that is a target. The last token predicts nothing, and the
 *  first is never a target. ids may be the batch's own next slot. */
void dt_fill_document(dt_batch *b, const int32_t *ids, const uint8_t *mask, int64_t n, float weight);

/** Append the images of record `number` of the file, whose text, the batch's last sequence, starts at token `from`.
 *  DT_ERR_DATA: its placeholders do not match its images, or one is a target. */
dt_err dt_fill_images(const dt_samples *set, int64_t number, int32_t from, dt_batch *b);
/** The same for a record's second text. It shares the images of the sequence before. */
dt_err dt_fill_same_images(const dt_samples *set, int64_t number, int32_t from, dt_batch *b);

/** Read tokens first .. first+n-1 (and their mask, if the file has one) and append them as dt_fill_document does. */
dt_err dt_fill_record(const dt_samples *set, int64_t first, int64_t n, float weight, dt_batch *b,
                      dt_fill_scratch *scratch);

#endif
