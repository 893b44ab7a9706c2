/* data.h - what feeds a step: dataset files (HDF5), the order of samples, micro-batches. files.md, "Order of
 * samples" and "Dataset files".
 *
 * A sample is a row of tokens (kind tokens; a packed row with bfd), a record (kind sft), a pair of texts (kind
 * preference), each of which is a sequence of its own, or a prompt (kind prompts). Which samples an optimizer step
 * takes is a pure function of (configuration, step): resuming needs a step number, not an iterator. */
#ifndef DTRAIN_DATA_H
#define DTRAIN_DATA_H

#include "dtrain/core/token_batch.h"
#include "dtrain/config/config.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/features.h"

typedef struct dt_loader dt_loader;

typedef struct dt_loader_options {
    const char *files; /* as [data] train: paths, globs, path:weight */
    const char *where; /* head of messages about it: dt_config_where */
    const char *task;  /* its name in messages; NULL: not known */
    int64_t seq_len;
    const char *packing; /* auto, none, wrapped, bfd, bfd_split */
    bool document_mask, shuffle, drop_last;
    bool group;          /* batches of one modality and similar lengths; needs shuffle, and files without weights */
    bool pairs;          /* the files are of kind preference, and each sample is a pair of texts */
    bool prompts;        /* the files are of kind prompts: there are no batches, samples are read one by one */
    bool truncate;       /* pairs: a longer text is cut after seq_len tokens; else its pair is left out */
    bool no_ties;        /* pairs of which neither text is better are left out */
    int64_t max_samples; /* 0: all */
    int64_t train_batch_size; /* G */
    int64_t micro_batch_size; /* m */
    int rank, nranks;
    uint64_t seed;
    int prefetch;          /* micro-batches ahead; 0: none */
    int64_t vocab_size;    /* of the model: token ids must be below */
    size_t feature_nbytes; /* batches have features of so many bytes in the place of images; 0: they have images */
    bool planning; /* no batch and no thread is made: what it holds and what it knows of the files can be asked */
    bool verified; /* the caller verifies whole files: nothing is said of files that cannot be verified by blocks */
    dt_ledger *ledger;
    dt_phase *phase; /* told of each file that is opened, and polled; may be NULL */
} dt_loader_options;

/** What a set of files holds. */
typedef struct dt_data_info {
    int64_t n_samples; /* an epoch */
    int64_t n_tokens;  /* in the files */
    int64_t n_dropped; /* samples without any target; pairs without an answer on both sides */
    /* left out: pairs with a text of more than seq_len tokens; other samples that seq_len would cut within or before an
     * image */
    int64_t n_too_long;
    int64_t n_ties;                  /* pairs of which neither text is better, left out */
    int64_t n_packed;                /* documents or records that packing put into these samples; 0: it did not */
    bool of_documents;               /* kind tokens */
    bool has_margins;                /* pairs: some file says by how much the chosen answer is better */
    bool has_safety;                 /* pairs: some file says which answers are safe */
    int64_t steps_per_epoch;         /* optimizer steps, the last one may be short */
    int32_t max_tok, max_seq;        /* most of a micro-batch: what the model must be opened for */
    dt_image_form images;            /* size 0: no file has any */
    const char *image_path;          /* the first file that has any; NULL: none has */
    int32_t max_images;              /* most of a micro-batch; of a prompt */
    int64_t longest_prompt;          /* tokens */
    const char *path, *tokenizer;    /* of the first file, and what it was made with; "" when it names none */
    const char *chat_template;       /* of the first file that names one; "": none does */
    const char *other_template_path; /* the first file that names another one than that; NULL: none */
    const char *other_path;          /* the first file that was made with another tokenizer than that; NULL: none */
} dt_data_info;

/** Open and check the files (DT_ERR_DATA naming file and dataset: missing, wrong format or version, offsets that
 *  decrease or pass the end, token id not below vocab_size at `dtrain-info`'s full check or when read, too short for
 *  one sample). Local: every rank opens the files; the caller agrees afterwards, and compares `dt_loader_fingerprint`
 *  over the ranks. */
dt_err dt_loader_open(dt_loader **l, const dt_loader_options *opt);
void dt_loader_close(dt_loader *l);
const dt_data_info *dt_loader_info(const dt_loader *l);
size_t dt_loader_nbytes(const dt_loader *l); /* of host memory, counted as DT_MEM_DATA; 0 for NULL */
/** Sizes and checksummed heads of the files: equal on all ranks, or they do not see the same files. */
uint64_t dt_loader_fingerprint(const dt_loader *l);
/** Targets of a sample, by its number (dt_batch.sample); evaluations take the first info->n_samples of them in
 *  order. */
int64_t dt_loader_n_target(const dt_loader *l, int64_t sample);
/** Read every file once: token ids, offsets, masks, checksums. Local. DT_ERR_DATA.
 *  each_piece is called before each piece (a few MiB) that is read; its error ends the verification. */
dt_err dt_loader_verify(const dt_loader *l, dt_err (*each_piece)(void *arg), void *arg);

/** The model's placeholder of an image: a file without images may not have it in a text. DT_ERR_DATA naming file and
 *  sample when it is read, so also from dt_loader_verify. Before the first batch. */
void dt_loader_refuse_placeholders(dt_loader *l, int32_t token);

/** Images of all its files, one after the other, in samples or not. */
int64_t dt_loader_n_images(const dt_loader *l);
/** Of file k, from 0 on. false: there is no such file. */
typedef struct dt_images_of_file {
    const char *path;
    int64_t n;
    uint64_t checksum; /* of all their bytes, as dt_checksum, where the file is sealed; else 0 */
    uint64_t key;      /* the same for the same images; 0: the file does not tell */
} dt_images_of_file;
bool dt_loader_images_of(const dt_loader *l, int k, dt_images_of_file *f);
/** Image i of them: pixels [S, S, 3]. Local. DT_ERR_DATA. */
dt_err dt_loader_image(dt_loader *l, int64_t i, uint8_t *pixels);
/** Where images' features are (feature_nbytes): places [dt_loader_n_images], which is copied; f is borrowed, until
 *  others are given. Before the first batch, and between batches that were taken. Local. */
void dt_loader_give_features(dt_loader *l, const dt_features *f, const dt_feature_place *places);

/** Number of micro-steps of optimizer step `step` (counted from 0 over all epochs): the same on every rank. */
int dt_loader_n_micro(const dt_loader *l, int64_t step);
/** Sums over all ranks and micro-steps of the step: known before the first backward, on every rank, without an
 *  exchange. */
typedef struct dt_step_counts {
    double weight; /* of all targets in the loss, rounded once */
    int64_t n_target, n_tok, n_samples;
    int64_t n_chosen; /* pairs: targets of chosen texts */
} dt_step_counts;
dt_err dt_loader_step_counts(dt_loader *l, int64_t step, dt_step_counts *counts);
/** The micro-batch of this rank in micro-step `micro` of `step`; empty (n_tok 0) when there is none. Valid until the
 *  next call. Local. */
dt_err dt_loader_batch(dt_loader *l, int64_t step, int micro, const dt_batch **b);

/* Evaluation: micro-batches 0 .. n-1 over all samples once, in order, micro-batch j = a*nranks + r to rank r; every
 * rank makes the same number of calls. */
int64_t dt_loader_n_eval(const dt_loader *l); /* micro-steps per rank */
dt_err dt_loader_eval_batch(dt_loader *l, int64_t micro, const dt_batch **b);

/* Prompts: a run takes them one after the other, epoch after epoch. */
/** Sample number of the run's i-th prompt: all samples of an epoch before those of the next. */
int64_t dt_loader_prompt_at(const dt_loader *l, int64_t i);
/** Tokens of a prompt, the last max of them where it has more. ids: [max]. Local. DT_ERR_DATA, also where an image
 *  would be cut off. */
dt_err dt_loader_prompt(dt_loader *l, int64_t sample, int32_t max, int32_t *ids, int32_t *n);
/** Has every prompt an answer, a text of tokens? */
bool dt_loader_has_answers(const dt_loader *l);
/** Tokens of a prompt's answer, the first max of them where it has more. ids: [max]. Local. DT_ERR_DATA. */
dt_err dt_loader_answer(dt_loader *l, int64_t sample, int32_t max, int32_t *ids, int32_t *n);
/** The other fields of its record, a JSON object: malloc'ed. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_loader_record(dt_loader *l, int64_t sample, char **json);

#endif
