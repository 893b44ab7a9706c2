/* data.h - input of a step: dataset files (HDF5), the order of samples, micro-batches. files.md, "Order of samples" and
 * "Dataset files".
 *
 * A sample is a row of tokens (kind tokens; a packed row with bfd), a record (kind sft), a pair of texts (kind
 * preference), each its own sequence, a text with a label (kind unpaired), or a prompt (kind prompts). The samples of
 * an optimizer step are a pure function of (configuration, step). A run therefore resumes from a step number.
 *
 * Every function is Local: each rank opens the files, and all ranks compute the same order. */
#ifndef DTRAIN_DATA_H
#define DTRAIN_DATA_H

#include "dtrain/core/token_batch.h"
#include "dtrain/config/config.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/features.h"

typedef struct dt_loader dt_loader;

/** Options of dt_loader_open. */
typedef struct dt_loader_options {
    const char *files; /* list as in [data] train: paths, globs, path:weight */
    const char *where; /* its location for messages: dt_config_where */
    const char *task;  /* its name in messages; NULL: unknown */
    int64_t seq_len;
    const char *packing; /* auto, none, wrapped, bfd, bfd_split */
    bool document_mask, shuffle, drop_last;
    /* group samples of one modality and similar length; needs shuffle, and files without weights */
    bool group;
    /* of the files; TOKENS: kind tokens or sft. PROMPTS: no batches; samples are read one by one */
    dt_dataset_kind kind;
    bool records;             /* PROMPTS: also files of kind sft; the prompt of a record precedes its last answer */
    bool truncate;            /* answers: truncate a longer text to seq_len tokens; false: omit its sample */
    bool no_ties;             /* omit pairs that are ties */
    bool prompt_targets;      /* sft, and the first texts of answers: prompts are targets, too */
    bool mismatched;          /* read dt_loader_mismatched_batch of a step before its batches */
    int64_t max_samples;      /* 0: all */
    int64_t train_batch_size; /* G */
    int64_t micro_batch_size; /* m */
    int rank, nranks;
    uint64_t seed;
    int prefetch;          /* number of micro-batches read in advance; 0: none */
    int64_t vocab_size;    /* of the model: upper limit of token ids */
    size_t feature_nbytes; /* bytes of an image's features, if batches contain features instead of images; 0: images */
    bool planning;         /* allocate no batches and start no thread: only sizes and information can be queried */
    bool verified;         /* the caller verifies whole files: do not warn of files without block checksums */
    dt_ledger *ledger;
    dt_phase *phase; /* entered for each file that is opened, and polled; may be NULL */
} dt_loader_options;

/** Contents of a set of files. */
typedef struct dt_data_info {
    int64_t n_samples; /* per epoch */
    int64_t n_tokens;  /* in the files */
    int64_t n_dropped; /* omitted: samples without targets; pairs that lack an answer */
    /* omitted: pairs with a text of more than seq_len tokens; other samples that seq_len would cut within or before an
     * image */
    int64_t n_too_long;
    int64_t n_ties;                  /* omitted pairs that are ties */
    int64_t n_flagged;               /* unpaired: samples of the files whose answer is good; preference: ties */
    double flagged_share;            /* their share of the samples that a run reads, by the weights of the files */
    int64_t n_packed;                /* documents or records packed into these samples; 0: no packing */
    bool of_documents;               /* kind tokens */
    bool has_margins;                /* pairs: a file has margins of the chosen answers */
    bool has_safety;                 /* pairs: a file has safety labels */
    int64_t steps_per_epoch;         /* optimizer steps; the last one may have fewer samples */
    int32_t max_tok, max_seq;        /* maximum of a micro-batch, for dt_model_options */
    dt_image_form images;            /* size 0: no images */
    const char *image_path;          /* the first file with images; NULL: none */
    int32_t max_images;              /* maximum of a micro-batch, or of a prompt */
    int64_t longest_prompt;          /* tokens */
    int64_t longest_tail;            /* placeholders of a prompt that ends with an image, at most */
    const char *path, *tokenizer;    /* the first file, and its tokenizer's name; "" if it names none */
    const char *chat_template;       /* of the first file that names one; "": none */
    const char *other_template_path; /* the first file with a different chat template; NULL: none */
    const char *other_path;          /* the first file with a different tokenizer; NULL: none */
} dt_data_info;

/** Open and check files. The caller then agrees with the other ranks, and compares dt_loader_fingerprint.
 *
 *  l    out  closed with dt_loader_close; NULL on error
 *  opt  in  copied; ledger and phase are borrowed
 *
 *  DT_ERR_DATA, naming file and dataset: missing, wrong format or version, offsets that decrease or exceed the end, or
 *  too short for one sample. DT_ERR_USAGE: files or options. DT_ERR_MEMORY. Token ids are checked when they are
 *  read. */
dt_err dt_loader_open(dt_loader **l, const dt_loader_options *opt);
/** Does any dataset file of the list have images? Files that cannot be read have none. Local. */
bool dt_data_show_images(const char *files);
/** The kind of the first dataset file of a list; DT_N_DATASET_KINDS: it cannot be read. Local. */
dt_dataset_kind dt_data_kind(const char *files);
/** Call visit for the record of each sample with records, in the files of a list: a JSON object. It stops at an error.
 *  Local. DT_ERR_DATA, and errors of visit. */
typedef dt_err dt_sample_record_fn(void *arg, const char *json);
dt_err dt_data_records(const char *files, dt_sample_record_fn *visit, void *arg);
/** Stop reading in advance, close the files and free everything. Safe on NULL. */
void dt_loader_close(dt_loader *l);
/** Contents of the files. Borrowed until dt_loader_close. */
const dt_data_info *dt_loader_info(const dt_loader *l);
/** Bytes of host memory, counted as DT_MEM_DATA; 0 for NULL. */
size_t dt_loader_nbytes(const dt_loader *l);
/** Hash of sizes and checksummed headers of the files: ranks with different values see different files. */
uint64_t dt_loader_fingerprint(const dt_loader *l);
/** Number of targets of a sample, by its index (dt_batch.sample). Evaluations take the first info->n_samples in
 *  order. */
int64_t dt_loader_n_target(const dt_loader *l, int64_t sample);
/** Read every file once and verify token ids, offsets, masks and checksums. poll: called before each block of a
 *  few MiB; its error ends the verification. DT_ERR_DATA. */
dt_err dt_loader_verify(const dt_loader *l, dt_err (*poll)(void *arg), void *arg);

/** Refuse the model's image placeholder in texts of files without images: reading such a sample, also in
 *  dt_loader_verify, is DT_ERR_DATA. Before the first batch. */
void dt_loader_refuse_placeholders(dt_loader *l, int32_t token);

/** Number of images in all files, used by samples or not. */
int64_t dt_loader_n_images(const dt_loader *l);
/** Images of a file. */
typedef struct dt_images_of_file {
    const char *path;
    int64_t n;
    uint64_t checksum; /* dt_checksum of all their bytes if the file is sealed; else 0 */
    uint64_t key;      /* equal for equal images; 0: unknown */
} dt_images_of_file;
/** Images of file k, from 0. False: no such file. */
bool dt_loader_images_of(const dt_loader *l, int k, dt_images_of_file *f);
/** Read image i of all files. pixels: out [S, S, 3]. DT_ERR_DATA. */
dt_err dt_loader_image(dt_loader *l, int64_t i, uint8_t *pixels);
/** Grids of all cells, of images that are grids (dt_batch_images). grid: out [dt_loader_n_images]. DT_ERR_DATA. */
dt_err dt_loader_grids(const dt_loader *l, uint32_t *grid);
/** Set the files of images' features, and the location of each image's features in them (feature_nbytes). Called before
 *  the first batch, or when no batch is in use. f: borrowed until the next call; slots: in [dt_loader_n_images],
 *  copied. */
void dt_loader_set_features(dt_loader *l, const dt_features *f, const dt_feature_slot *slots);

/** Instead of a step: an evaluation, which takes all samples once, in the order of the files. */
enum { DT_EVALUATION = -1 };
/** Number of micro-steps of optimizer step `step`, counted from 0 over all epochs, or of an evaluation: the same on
 *  every rank. */
int64_t dt_loader_n_micro(const dt_loader *l, int64_t step);
/** Sums over all ranks and micro-steps of a step. Every rank computes them before the step, without communication. */
typedef struct dt_step_counts {
    double weight; /* sum over all targets in the loss, rounded once */
    int64_t n_target, n_tok, n_samples;
    int64_t n_chosen; /* pairs: targets of chosen texts */
} dt_step_counts;
/** Compute the counts of a step. counts: out. DT_ERR_DATA. */
dt_err dt_loader_step_counts(dt_loader *l, int64_t step, dt_step_counts *counts);
/** The micro-batch of this rank in micro-step `micro` of `step` or DT_EVALUATION; empty (n_tok 0) if it has none. b:
 *  out, borrowed until the next call. DT_ERR_DATA; DT_ERR_ARG: a negative number. */
dt_err dt_loader_batch(dt_loader *l, int64_t step, int64_t micro, const dt_batch **b);

/** Kind unpaired: as dt_loader_batch, but each prompt has the answer of the previous sample of the step; the first one
 *  has the answer of the last. Every answer occurs once, for any number of ranks and micro-batches. Labels are not
 *  set. */
dt_err dt_loader_mismatched_batch(dt_loader *l, int64_t step, int64_t micro, const dt_batch **b);

/* Prompts: a run takes them in order, epoch after epoch. */
/** Sample index of the run's prompt i: all samples of an epoch before those of the next. */
int64_t dt_loader_prompt_at(const dt_loader *l, int64_t i);
/** Tokens of a prompt; of a longer prompt the last max tokens. ids: out [max]; n: out. DT_ERR_DATA: also if an image
 *  would be cut off. */
dt_err dt_loader_prompt(dt_loader *l, int64_t sample, int32_t max, int32_t *ids, int32_t *n);
/** Images of a prompt, of grids their cells, in their order: n, out, at most max (else DT_ERR_DATA), and their grids
 *  (dt_batch_images), out [n]. DT_ERR_DATA. */
dt_err dt_loader_prompt_grids(dt_loader *l, int64_t sample, int32_t max, uint32_t *grid, int32_t *n);
/** Read images from .. from+n-1 of a prompt, or their features (feature_nbytes). DT_ERR_DATA. */
dt_err dt_loader_prompt_images(dt_loader *l, int64_t sample, int32_t from, int32_t n, uint8_t *to);
/** True if every file has answers of its prompts. */
bool dt_loader_has_answers(const dt_loader *l);
/** Tokens of a prompt's answer; of a longer answer the first max tokens. ids: out [max]; n: out. DT_ERR_DATA. */
dt_err dt_loader_answer(dt_loader *l, int64_t sample, int32_t max, int32_t *ids, int32_t *n);
/** The other fields of a prompt's record as a JSON object. json: out, malloc'ed, the caller's. DT_ERR_DATA,
 *  DT_ERR_MEMORY. */
dt_err dt_loader_record(dt_loader *l, int64_t sample, char **json);

#endif
