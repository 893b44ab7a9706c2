/* dataset.h - dataset files as files: looking into one, checking one, writing one, making one from text or JSON
 * records. files.md, "Dataset files".
 *
 * What feeds a training step from them is in data.h. */
#ifndef DTRAIN_DATASET_H
#define DTRAIN_DATASET_H

#include "dtrain/core/core.h"
#include "dtrain/image/image.h"

/* ---- looking into a file ----------------------------------------------------------------------------------------- */

typedef enum dt_dataset_kind {
    DT_DATASET_TOKENS,
    DT_DATASET_SFT,
    DT_DATASET_PREFERENCE,
    DT_DATASET_PROMPTS,
    DT_N_DATASET_KINDS
} dt_dataset_kind;
/* "tokens", "sft", "preference", "prompts": the attribute's words */
const char *dt_dataset_kind_name(dt_dataset_kind kind);

/** A sample has one or two texts: that of tokens and sft, the chosen and the rejected one, or the prompt and its
 *  answer. */
typedef enum dt_side { DT_SIDE_FIRST, DT_SIDE_SECOND, DT_N_SIDES } dt_side;
/** Is an answer safe? As stored. */
typedef enum dt_safety { DT_SAFETY_UNKNOWN, DT_SAFETY_SAFE, DT_SAFETY_UNSAFE, DT_N_SAFETY } dt_safety;

/** What the images of a dataset have in common. Each stands in the text as a run of placeholders, of one token. */
typedef struct dt_image_form {
    int64_t size;             /* S: an image is uint8 [S, S, 3], red, green and blue of each pixel; 0: there are none */
    int64_t n_tokens;         /* placeholders of an image */
    int32_t token;            /* the placeholder's id */
    const char *preprocessor; /* text of the preprocessor_config.json that made them; "": not known */
} dt_image_form;
enum { DT_MAX_IMAGE_TOKENS = 1 << 20 };
static inline size_t dt_image_form_nbytes(const dt_image_form *f) { return dt_image_nbytes(f->size); }
/** What made the images of the dataset at path, where that is known; free with dt_preprocessor_free. DT_ERR_DATA naming
 *  file, attribute and key. */
dt_err dt_image_form_preprocessor(const dt_image_form *f, const char *path, dt_preprocessor *p);
/** Did `wanted` make them, or one that does the same? name: whose it is; expected: what messages say is expected.
 *  DT_ERR_DATA naming both, and the first key that they differ in. */
dt_err dt_image_form_check(const dt_image_form *f, const char *path, const dt_preprocessor *wanted, const char *name,
                           const char *expected);

typedef struct dt_dataset dt_dataset;

/** Open for reading and check all that costs little: format, version, kind, shapes and types, sizes that fit each other
 *  and the file, the ends of /offsets. DT_ERR_DATA naming file, dataset and what is wrong. Local. */
dt_err dt_dataset_open(dt_dataset **d, const char *path);
void dt_dataset_close(dt_dataset *d); /* NULL is fine */

typedef struct dt_dataset_info {
    const char *path, *tokenizer; /* tokenizer "" when the file names none; strings live as long as the dataset */
    /* what wrote its conversations, as dt_chat_spec says it; "" when the file names none */
    const char *chat_template;
    dt_dataset_kind kind;
    int64_t vocab_size;
    int64_t n_tokens;        /* of the main side */
    int64_t n_second_tokens; /* of rejected texts, of answers */
    int64_t n_record_nbytes; /* of prompts' records */
    int64_t n_documents;     /* documents or samples; -1: the file has no /offsets */
    int token_nbytes;        /* 2 or 4 */
    /* pairs that are no ties: with equal texts, with scores that prefer the rejected one; -1: not counted */
    int64_t n_equal_pairs, n_contradicted_pairs;
    int64_t n_images;
    dt_image_form images; /* has_images */
    bool has_weights, has_margins, has_safety, has_ties, has_answers, has_records, has_images, has_checksums;
    bool sealed; /* has a checksum of everything except the arrays, too; it was verified when the file was opened */
    bool has_block_checksums; /* every block is verified when it is read for the first time */
} dt_dataset_info;
const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d);

/** Read everything once: offsets never decrease, every token id is below vocab_size, masks are 0 or 1, weights and
 *  margins finite, prompts not longer than their samples, records JSON objects, placeholders as many as the images need
 *  and no targets, checksums (where the file carries them) agree. DT_ERR_DATA naming the first thing that is wrong and
 *  its index. each_piece, when not NULL, is called before each piece that is read; its error ends the verification. */
dt_err dt_dataset_verify(dt_dataset *d, dt_err (*each_piece)(void *arg), void *arg);

/** Where document i lies: tokens first .. first+n-1. */
dt_err dt_dataset_document(dt_dataset *d, int64_t i, int64_t *first, int64_t *n);
/** Token ids (checked against vocab_size), and loss mask of an sft file. */
dt_err dt_dataset_read_tokens(dt_dataset *d, int64_t first, int64_t n, int32_t *ids);
dt_err dt_dataset_read_mask(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask);
dt_err dt_dataset_read_weight(dt_dataset *d, int64_t i, float *weight); /* 1 where the file has none */
/** The same of either side: chosen and rejected, prompt and answer. */
dt_err dt_dataset_side_document(dt_dataset *d, dt_side side, int64_t i, int64_t *first, int64_t *n);
dt_err dt_dataset_read_side(dt_dataset *d, dt_side side, int64_t first, int64_t n, int32_t *ids);

/** What goes with a pair. */
typedef struct dt_pair {
    uint32_t prompt_length[DT_N_SIDES]; /* tokens of the prompt at the start of each side */
    float margin;                       /* 0 where the file has none */
    dt_safety safety[DT_N_SIDES];       /* unknown where the file has none */
    bool tie;                           /* neither is better */
    /* counted when a file is written, not kept for each pair: both texts are equal; scores prefer the rejected one */
    bool equal, contradicted;
} dt_pair;
dt_err dt_dataset_read_pair(dt_dataset *d, int64_t i, dt_pair *pair); /* preference */

/** Count the pairs with equal texts that are no ties, reading all tokens. each_piece as dt_dataset_verify. */
dt_err dt_dataset_count_equal(dt_dataset *d, dt_err (*each_piece)(void *arg), void *arg, int64_t *n);

/** The fields of the record that prompt i was made of (kind prompts), for reward functions: a JSON object of all but
 *  prompt, prompt_ids, completion and completion_ids; "{}" where the file has none. Malloc'ed, with a 0 behind it.
 *  DT_ERR_DATA: what is there is no JSON object. */
dt_err dt_dataset_read_record(dt_dataset *d, int64_t i, char **json);

/** Which images belong to sample i: first .. first+n-1, in the order of its placeholders; none where the file has none.
 *  A pair has them in its prompt. */
dt_err dt_dataset_images_of(dt_dataset *d, int64_t i, int64_t *first, int64_t *n);
/** pixels: [n, S, S, 3]. */
dt_err dt_dataset_read_images(dt_dataset *d, int64_t first, int64_t n, uint8_t *pixels);

/** How the samples of a file fill rows of seq_len tokens with a packing (none, wrapped, bfd, bfd_split), as training
 *  would pack them. DT_ERR_USAGE: not for this kind. Memory as in training. */
typedef struct dt_packing_info {
    int64_t n_rows, n_tok, n_target, n_dropped;
} dt_packing_info;
dt_err dt_dataset_packing(dt_dataset *d, const char *packing, int64_t seq_len, dt_packing_info *info);

/* ---- for people -------------------------------------------------------------------------------------------------- */

/** Print what is in a file, and verify all of it. seq_len > 0: also how its samples fill rows of so many tokens.
 *  DT_ERR_DATA. */
dt_err dt_dataset_print_info(dt_dataset *d, int64_t seq_len);
/** Print document or sample i as text, targets (or completions) between marks. tokenizer: as dt_tokenizer_open; must be
 *  the one that the file was made with (DT_ERR_USAGE); NULL: the file's if that is bytes, else ids are printed. colour:
 *  marks are colours of a terminal. */
dt_err dt_dataset_print_sample(dt_dataset *d, int64_t i, const char *tokenizer, bool colour);

/** Draw images of a dataset beside each other into a PNG file, in rows: all, or `most` of them at equal distances.
 *  DT_ERR_USAGE: it has none; DT_ERR_DATA, DT_ERR_WRITE. */
dt_err dt_dataset_draw_images(dt_dataset *d, int64_t most, const char *path);

/* ---- writing a file ---------------------------------------------------------------------------------------------- */

typedef struct dt_dataset_writer dt_dataset_writer;

/** Begin PATH. Arrays grow in unnamed files beside it (memory stays fixed) and become one HDF5 file, PATH.part, renamed
 *  to PATH, at the commit; or several, see dt_commit. Tokens are stored as uint16 when vocab_size <= 65536, else
 *  uint32. tokenizer: NULL or "" for none. with_weights: sft only. Margins, safety, ties, answers and records are in
 *  the file when some sample has one. DT_ERR_WRITE when the folder cannot be written. */
dt_err dt_dataset_create(dt_dataset_writer **w, const char *path, dt_dataset_kind kind, int64_t vocab_size,
                         const char *tokenizer, bool with_weights);
/** The file's vocab_size is n_own, or more where it has larger ids: a tokenizer may have special tokens of which the
 *  model has no row (dt_tokenizer_info). */
void dt_dataset_set_own(dt_dataset_writer *w, int64_t n_own);
/** Name the template of its conversations, for the attribute chat_template. Copied. DT_ERR_MEMORY. */
dt_err dt_dataset_set_template(dt_dataset_writer *w, const char *chat_template);
/** Samples of this dataset may have images, of this form, which is copied. Before the first sample; the file has arrays
 *  of images then, also where no sample has any. DT_ERR_ARG, DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_dataset_set_images(dt_dataset_writer *w, const dt_image_form *form);
/** Add n images [n, S, S, 3] to the sample under way, whose text has their placeholders. */
dt_err dt_dataset_add_images(dt_dataset_writer *w, const uint8_t *pixels, int64_t n);
/** Add n tokens to the document (sample) under way. mask: n values 0 or 1 for sft, NULL else. */
dt_err dt_dataset_add(dt_dataset_writer *w, const int32_t *ids, const uint8_t *mask, int64_t n);
/** The same for either side of a pair, or for an answer. */
dt_err dt_dataset_add_side(dt_dataset_writer *w, dt_side side, const int32_t *ids, int64_t n);
/** The record of a prompt: a JSON object of nbytes bytes. Once a sample, before its end; not called: "{}". */
dt_err dt_dataset_add_record(dt_dataset_writer *w, const char *json, size_t nbytes);
/** End the document or sample under way (an empty one counts, too). weight is stored if the writer was opened
 *  with_weights. */
dt_err dt_dataset_end_document(dt_dataset_writer *w, float weight);
dt_err dt_dataset_end_pair(dt_dataset_writer *w, const dt_pair *pair); /* the same for a pair */
/** How a dataset becomes files. */
typedef struct dt_commit {
    /* several files, "STEM-00000-of-00004.h5" and so on for PATH "STEM.h5", that hold the samples in order: n_shards of
     * about equal size, or (n_shards 0) as many as are needed for none to have more than shard_nbytes of arrays (one
     * sample may have more). Both 0: one file, PATH. */
    int64_t n_shards;
    uint64_t shard_nbytes;
    bool keep_existing;        /* a file that is there already is an error: DT_ERR_USAGE */
    const char *const *inputs; /* files that are never replaced: DT_ERR_USAGE */
    int n_inputs;
    const atomic_bool *stop; /* NULL, or looked at between pieces: DT_ERR_STOP */
    int64_t n_files;         /* out */
} dt_commit;
/** Write n datasets whole, with checksums, make them durable, free the writers (whatever the outcome). A document under
 *  way is ended first. No file has its name before all are complete, and after an error none is left. how: [n], or
 *  NULL: one file each. DT_ERR_WRITE, DT_ERR_STOP. */
dt_err dt_datasets_commit(dt_dataset_writer **w, dt_commit *how, int n);
dt_err dt_dataset_commit(dt_dataset_writer *w); /* one, into one file */
/** Is it how a shard of the dataset OF is named, whatever their number? */
bool dt_is_shard_of(const char *path, const char *of);
void dt_dataset_discard(dt_dataset_writer *w); /* give up: nothing stays behind; NULL is fine */

/* ---- making one from text or records (dtrain-data) --------------------------------------------------------------- */

/** Records that were left out for one reason: numbers in the reasons apart, they read alike. */
typedef struct dt_problem {
    int64_t n;
    char first[512], reason[512]; /* FILE:LINE of the first, with the image that it is about; its reason */
} dt_problem;
enum { DT_MAX_PROBLEMS = 16 };

/** Fields of records that nothing reads: how many records, or messages, have one of a name. */
enum { DT_MAX_FIELDS = 64, DT_FIELD_NAME_SIZE = 64 };
typedef struct dt_field_count {
    char name[DT_FIELD_NAME_SIZE]; /* of a message: messages[].NAME; cut to fit */
    int64_t n;
} dt_field_count;
typedef struct dt_field_counts {
    dt_field_count field[DT_MAX_FIELDS]; /* in the order of the input */
    int n;
    int64_t n_others;                 /* fields of more names */
    int64_t n_calls;                  /* messages of role function_call, whose text is an answer like others */
    int64_t n_in_row, n_without_user; /* chats with two answers in a row; with answers, but without a question */
    char first_odd[512];              /* FILE:LINE of the first of these */
} dt_field_counts;

/** Pairs with something in common. */
typedef struct dt_pair_count {
    int64_t n;
    char first[512]; /* FILE:LINE of the first */
} dt_pair_count;

typedef struct dt_make_stats {
    int64_t nbytes_read, nbytes_total; /* total -1: not known (standard input) */
    int64_t n_documents, n_tokens;     /* training file; tokens of both sides */
    int64_t n_validation_documents, n_validation_tokens;
    char first_dropped[512]; /* FILE:LINE of the first of n_dropped */
    int64_t n_dropped;       /* records without any target (sft), without an answer (preference), without a prompt */
    int64_t n_truncated;     /* cut at max_length */
    int64_t n_too_long;      /* left out for max_length */
    int64_t n_parted;        /* prompt and completion encoded one by one, because a token reached across the border */
    int64_t n_bad;           /* malformed records left out (skip_bad) */
    int64_t n_images;        /* in both files */
    dt_problem problems[DT_MAX_PROBLEMS];
    int n_problems; /* the rest of n_bad had other reasons */
    dt_field_counts ignored;
    int64_t n_pairs;                   /* in both files, without ties */
    dt_pair_count equal, contradicted; /* of these: equal answers; scores that prefer the rejected one */
    dt_dataset_kind kind;
    int n_shards; /* files of the output */
} dt_make_stats;

/** Recommendation data in MiniOneRec's files (format minionerec): inputs are CSV files. */
typedef struct dt_rec_options {
    const char *recipe;        /* sft; rl: prompts without the preamble; eval: prompts as sft has them */
    const char *tasks;         /* NULL: those that the template lists for the recipe; else NAME,NAME:SAMPLE,... */
    const char *index, *items; /* NAME.index.json, NAME.item.json; NULL: none */
    const char *category;      /* NULL, or what {category} of a template says */
    const char *catalogue;     /* NULL, or the file that is to be written: "SID TAB title TAB id" a line */
    bool longest;              /* of each user's rows the one with the longest history alone */
    uint64_t seed;             /* of what is drawn: rows of a SAMPLE, instructions */
} dt_rec_options;

/** Images of records: they are decoded and prepared, and stand in the texts as runs of a placeholder. */
typedef struct dt_image_options {
    const char *preprocessor; /* as dt_preprocessor_read; NULL: a record with images is an error */
    const char *folder;       /* of their paths; NULL: the folder of the record's file */
    const char *token;        /* what stands for an image in a text, one token of the tokenizer's */
    int64_t n_tokens;         /* placeholders of an image */
    bool captions;            /* a chat is an image and its caption: no template, and nothing of the question */
    /* what the model expects, where that is known, else -1 and 0: the placeholder's id, the size of its images */
    int32_t token_id;
    int64_t size;
} dt_image_options;

typedef struct dt_make_options {
    const char *output, *validation; /* validation NULL: none */
    /* share of documents, chosen by a hash of what they say: equal ones go to the same side */
    double validation_fraction;
    /* files, folders (their .txt, .jsonl, .ndjson, .json and .parquet files, by name), "-": standard input */
    const char *const *inputs;
    int n_inputs;
    const char *kind; /* auto (by the first document), tokens, sft, preference, prompts */
    /* auto (by the end of the name), text, json (lines or an array), minionerec; a file that is Parquet by its name or
     * its first bytes is a table of records where auto or json is asked for */
    const char *format;
    const char *documents;     /* of plain text: files, lines, paragraphs, or separator */
    const char *separator;     /* for documents = separator */
    const char *tokenizer;     /* as dt_tokenizer_open */
    const char *chat_template; /* as dt_chat_open; of format minionerec: auto, minionerec, or a JSON file */
    const char *mask;          /* auto (by the form of the record), full, completion, assistant */
    const char *prefer;        /* which of two answers PKU-SafeRLHF's records prefer: better, safer */
    /* auto (preference: drop; prompts, format minionerec: keep_end; else keep_start), keep_start, keep_end, drop */
    const char *truncate;
    const char *weight_key; /* NULL, or the field of a record that holds its weight (sft) */
    bool as_chat;           /* texts of prompts and completions become turns of user and assistant */
    /* chats: source and target of each turn share max_length (algorithms.md 1.1, turn budgets) */
    bool turn_budgets;
    int64_t max_length; /* tokens of a document or sample; 0: no limit */
    bool append_eos, skip_bad;
    dt_rec_options rec;
    dt_image_options images;
    bool force;    /* replace outputs that exist; an input never is one */
    int n_threads; /* 0: as many as the process may use cores */
    int64_t n_shards;
    uint64_t shard_nbytes;                                    /* of the output (dt_commit) */
    const atomic_bool *stop;                                  /* NULL, or give up when it is true: DT_ERR_STOP */
    void (*progress)(void *self, const dt_make_stats *stats); /* NULL, or called now and then */
    void *progress_self;
} dt_make_options;

/** Warn of pairs whose scores or margin prefer the rejected answer. path: of the dataset; first: where the first of
 *  them is; NULL: not said. */
void dt_warn_contradicted(const char *path, int64_t n_contradicted, int64_t n_pairs, const char *first);

/** Make one dataset, or two. What is written does not depend on n_threads. Memory: a few hundred KiB a thread (with
 *  images a few dozen MiB), and the largest record; documents of plain text may have any length. Errors: DT_ERR_DATA
 *  "FILE:LINE: reason" for a malformed record (the first in the order of the input), DT_ERR_USAGE for options that do
 *  not fit, DT_ERR_WRITE, DT_ERR_STOP; the outputs are then as they were. */
dt_err dt_make_datasets(const dt_make_options *opt, dt_make_stats *stats);

/** The library that Parquet files are read by, with its version, or why there is none. text [size]; returns it. */
const char *dt_parquet_library(char *text, size_t size);

#endif
