/* dataset.h - dataset files as files: inspect, verify and write them, and make them from text or JSON records.
 * files.md, "Dataset files". How a training step reads them is in data.h.
 *
 * Every function is Local. Errors name file, dataset and index. */
#ifndef DTRAIN_DATASET_H
#define DTRAIN_DATASET_H

#include "dtrain/config/config_keys.h"
#include "dtrain/image/batch_images.h"
#include "dtrain/image/image.h"

/* ---- reading a file ---------------------------------------------------------------------------------------------- */

/** The kinds of samples, of DT_KIND_LIST. */
#define DT_KIND_ENUMERATOR(upper, lower, help) DT_DATASET_##upper,
typedef enum dt_dataset_kind {
    DT_KIND_LIST(DT_KIND_ENUMERATOR) DT_N_DATASET_KINDS,
    DT_ANY_KIND = DT_N_DATASET_KINDS /* of dt_make_options: the kind of the first document */
} dt_dataset_kind;
/** "tokens", "sft", ...: the value of the attribute */
const char *dt_dataset_kind_name(dt_dataset_kind kind);

/** Texts of a sample. FIRST: the text (tokens, sft, unpaired), the chosen text, or the prompt. SECOND: the rejected
 *  text, or the answer. */
typedef enum dt_side { DT_SIDE_FIRST, DT_SIDE_SECOND, DT_N_SIDES } dt_side;
/** Safety label of an answer, as stored. */
typedef enum dt_safety { DT_SAFETY_UNKNOWN, DT_SAFETY_SAFE, DT_SAFETY_UNSAFE, DT_N_SAFETY } dt_safety;

/** Labels of the samples with answers in a batch. A pair k has the sequences 2k (chosen) and 2k + 1 (rejected). */
typedef struct dt_batch_labels {
    float *margin; /* [n_samples] margin of the chosen text; 0: unknown */
    union {
        uint8_t *tie;  /* [n_samples] preference: 1: neither text is better */
        uint8_t *good; /* [n_samples] unpaired: 1: the answer is good */
        uint8_t *flag; /* either */
    };
    uint8_t *safety;   /* [n_seq]: dt_safety */
    int32_t *n_prompt; /* [n_samples] targets of the first text that belong to its prompt (prompt_targets); else 0 */
} dt_batch_labels;
/** The labels of a batch of a kind with answers. Local. */
const dt_batch_labels *dt_labels_of(const dt_batch *b);
/** The largest batch of a kind. */
typedef struct dt_kind_batch {
    dt_dataset_kind kind;
    int32_t max_tok, max_seq, max_images;
    size_t image_nbytes;
} dt_kind_batch;
/** Allocate it with its extensions. b: out, freed with dt_batch_free. Local. DT_ERR_ARG, DT_ERR_MEMORY. */
dt_err dt_kind_batch_alloc(dt_batch *b, const dt_kind_batch *most, dt_ledger *ledger);
/** Bytes that dt_kind_batch_alloc allocates. Local. */
size_t dt_kind_batch_nbytes(const dt_kind_batch *most);

/** Common properties of a dataset's images. In a text, an image is a run of one placeholder token. If images are grids,
 *  each cell counts as an image. */
typedef struct dt_image_form {
    int64_t size;             /* S: an image is uint8 [S, S, 3], RGB; 0: no images */
    int64_t n_tokens;         /* placeholders per image */
    int32_t token;            /* the placeholder's id */
    const char *preprocessor; /* text of the preprocessor_config.json that was used; "": unknown */
    bool grids;               /* images are grids of cells */
} dt_image_form;
enum { DT_MAX_IMAGE_TOKENS = 1 << 20 };
static inline size_t dt_image_form_nbytes(const dt_image_form *f) { return dt_image_nbytes(f->size); }
/** Parse the preprocessing of the dataset at path, if it is known. p: out, freed with dt_preprocessor_free. DT_ERR_DATA
 *  naming file, attribute and key. */
dt_err dt_image_form_preprocessor(const dt_image_form *f, const char *path, dt_preprocessor *p);
/** Check that the images were preprocessed as `wanted` does. name: owner of `wanted`; expected: for the message.
 *  DT_ERR_DATA naming both, and the first key that differs. */
dt_err dt_image_form_check(const dt_image_form *f, const char *path, const dt_preprocessor *wanted, const char *name,
                           const char *expected);

typedef struct dt_dataset dt_dataset;

/** Open a file for reading and check what is cheap to check: format, version, kind, shapes and types, sizes against
 *  each other and the file, the ends of /offsets. d: out, closed with dt_dataset_close; NULL on error. DT_ERR_DATA,
 *  DT_ERR_MEMORY. */
dt_err dt_dataset_open(dt_dataset **d, const char *path);
/** True for a dataset of another program that dt_dataset_open reads (Megatron-LM's .bin and .idx). */
bool dt_dataset_is_foreign(const char *path);
/** Set the upper limit of token ids, if the file does not store one. */
void dt_dataset_set_vocabulary(dt_dataset *d, int64_t vocab_size);
/** Close a file. Safe on NULL. */
void dt_dataset_close(dt_dataset *d);

/** Contents of a file. Strings live as long as the dataset. */
typedef struct dt_dataset_info {
    const char *path, *tokenizer; /* tokenizer: "" if the file names none */
    /* of its conversations, as dt_chat_spec; "" if the file names none */
    const char *chat_template;
    dt_dataset_kind kind;
    int64_t vocab_size;      /* 0: the file does not store it */
    int64_t n_tokens;        /* of first texts */
    int64_t n_second_tokens; /* of rejected texts, of answers */
    int64_t n_documents;     /* documents or samples; -1: the file has no /offsets */
    const char *token_type;  /* as stored: "uint16" */
    /* pairs, except ties, with equal texts, and with scores that prefer the rejected text; -1: not counted */
    int64_t n_equal_pairs, n_contradicted_pairs;
    int64_t n_images;
    dt_image_form images; /* has_images */
    bool has_weights, has_margins, has_safety, has_flags, has_answers, has_records, has_images, has_checksums;
    bool sealed; /* it also has a checksum of everything except the arrays, which was verified at opening */
    bool has_block_checksums; /* every block is verified when it is read for the first time */
} dt_dataset_info;
/** Contents of a file. Borrowed until dt_dataset_close. */
const dt_dataset_info *dt_dataset_get_info(const dt_dataset *d);

/** Read and verify everything: offsets ascend, token ids are below vocab_size, masks are 0 or 1, weights and margins
 *  are finite, prompts are not longer than their samples, records are JSON objects, the number of placeholders matches
 *  the images and none is a target, and checksums, if the file has them, match. poll: called before each block
 *  that is read; its error ends the verification; may be NULL. DT_ERR_DATA: the first mistake. */
dt_err dt_dataset_verify(dt_dataset *d, dt_err (*poll)(void *arg), void *arg);

/** Find document i: its tokens are first .. first+n-1. */
dt_err dt_dataset_document(dt_dataset *d, int64_t i, int64_t *first, int64_t *n);
/** Read token ids, checked against vocab_size. ids: out [n]. DT_ERR_DATA. */
dt_err dt_dataset_read_tokens(dt_dataset *d, int64_t first, int64_t n, int32_t *ids);
/** Read the loss mask of an sft file. mask: out [n], 0 or 1. DT_ERR_DATA. */
dt_err dt_dataset_read_mask(dt_dataset *d, int64_t first, int64_t n, uint8_t *mask);
/** As dt_dataset_document, for either text of a sample: part is a dt_side. */
dt_err dt_dataset_part(dt_dataset *d, int part, int64_t i, int64_t *first, int64_t *n);
/** As dt_dataset_read_tokens, for either text. */
dt_err dt_dataset_read_side(dt_dataset *d, dt_side side, int64_t first, int64_t n, int32_t *ids);

/** Attributes of a sample with answers: of a pair, or of a single answer (unpaired), which has one side and no
 *  margin. */
typedef struct dt_pair {
    uint32_t prompt_length[DT_N_SIDES]; /* tokens of the prompt at the start of each side */
    float margin;                       /* 0 if the file has none */
    dt_safety safety[DT_N_SIDES];       /* unknown if the file has none */
    union {
        bool tie;  /* preference: neither text is better */
        bool good; /* unpaired: the label */
        bool flag; /* either, as stored */
    };
    /* only counted when a file is written, not stored: both texts are equal; scores prefer the rejected text */
    bool equal, contradicted;
} dt_pair;
/** Read the attributes of sample i (kinds preference and unpaired). DT_ERR_DATA. */
dt_err dt_dataset_read_pair(dt_dataset *d, int64_t i, dt_pair *pair);

/** Count the pairs, except ties, with equal texts; reads all tokens. n: out. poll: as dt_dataset_verify.
 *  DT_ERR_DATA. */
dt_err dt_dataset_count_equal(dt_dataset *d, dt_err (*poll)(void *arg), void *arg, int64_t *n);

/** The fields of prompt i's record (kind prompts), for reward functions: a JSON object without prompt, prompt_ids,
 *  completion and completion_ids; "{}" if the file has none. json: out, malloc'ed, 0-terminated. DT_ERR_DATA: not a
 *  JSON object. DT_ERR_MEMORY. */
dt_err dt_dataset_read_record(dt_dataset *d, int64_t i, char **json);

/** Find the images of sample i, in the order of its placeholders: first .. first+n-1; n 0: none. A pair's images are in
 *  its prompt. DT_ERR_DATA. */
dt_err dt_dataset_images_of(dt_dataset *d, int64_t i, int64_t *first, int64_t *n);
/** Read images. pixels: out [n, S, S, 3]. DT_ERR_DATA. */
dt_err dt_dataset_read_images(dt_dataset *d, int64_t first, int64_t n, uint8_t *pixels);
/** Read the grids of images; zeros if images are not grids. grid: out [n]. DT_ERR_DATA: also if the images are not
 *  complete. */
dt_err dt_dataset_read_grids(dt_dataset *d, int64_t first, int64_t n, uint32_t *grid);

/** Result of packing a file. */
typedef struct dt_packing_info {
    int64_t n_rows, n_tok, n_target, n_dropped;
} dt_packing_info;
/** Compute how the samples fill rows of seq_len tokens with a packing (none, wrapped, bfd, bfd_split), as training
 *  would. Needs as much memory as training. info: out. DT_ERR_USAGE: not for this kind. */
dt_err dt_dataset_packing(dt_dataset *d, const char *packing, int64_t seq_len, dt_packing_info *info);

/* ---- printing a file --------------------------------------------------------------------------------------------- */

/** Print the contents of a file, and verify all of it. seq_len > 0: also how its samples fill rows of that length.
 *  DT_ERR_DATA. */
dt_err dt_dataset_print_info(dt_dataset *d, int64_t seq_len);
/** Print document or sample i as text, with targets or completions between marks.
 *
 *  tokenizer  as dt_tokenizer_open, the one that the file was made with; NULL: the file's if that is bytes, else ids
 *             are printed
 *  colour     marks are terminal colours
 *
 *  DT_ERR_USAGE: another tokenizer. DT_ERR_DATA. */
dt_err dt_dataset_print_sample(dt_dataset *d, int64_t i, const char *tokenizer, bool colour);

/** Draw images of a dataset as rows in a PNG file: all, or `most` of them at equal distances. DT_ERR_USAGE: no images.
 *  DT_ERR_DATA, DT_ERR_WRITE. */
dt_err dt_dataset_draw_images(dt_dataset *d, int64_t most, const char *path);

/* ---- writing a file ---------------------------------------------------------------------------------------------- */

typedef struct dt_dataset_writer dt_dataset_writer;

/** Begin a dataset. Arrays grow in unnamed files in the same directory, with constant memory. The commit writes one
 *  HDF5 file, PATH.part, and renames it to PATH; or several (dt_commit). Tokens are stored as uint16 if vocab_size <=
 *  65536, else as uint32. Margins, safety, ties, answers and records are stored if any sample has them.
 *
 *  w             out  freed by dt_datasets_commit or dt_dataset_discard
 *  tokenizer     NULL or "": none
 *  with_weights  only for sft
 *
 *  DT_ERR_WRITE: the directory is not writable. DT_ERR_MEMORY. */
dt_err dt_dataset_create(dt_dataset_writer **w, const char *path, dt_dataset_kind kind, int64_t vocab_size,
                         const char *tokenizer, bool with_weights);
/** Store vocab_size n_own, or more if an id is larger: a tokenizer may have special tokens without a row in the model
 *  (dt_tokenizer_info). */
void dt_dataset_set_own(dt_dataset_writer *w, int64_t n_own);
/** Set the attribute chat_template, copied. DT_ERR_MEMORY. */
dt_err dt_dataset_set_template(dt_dataset_writer *w, const char *chat_template);
/** Allow images of this form, which is copied; before the first sample. The file then has arrays of images, even if no
 *  sample has any. DT_ERR_ARG, DT_ERR_WRITE, DT_ERR_MEMORY. */
dt_err dt_dataset_set_images(dt_dataset_writer *w, const dt_image_form *form);
/** Add n images [n, S, S, 3] to the current sample, whose text has their placeholders. grid: in [n], of grids
 *  (dt_grid_code); else ignored. DT_ERR_WRITE. */
dt_err dt_dataset_add_images(dt_dataset_writer *w, const uint8_t *pixels, const uint32_t *grid, int64_t n);
/** Add n tokens to the current document or sample. mask: in [n] 0 or 1 for sft; NULL otherwise. DT_ERR_WRITE. */
dt_err dt_dataset_add(dt_dataset_writer *w, const int32_t *ids, const uint8_t *mask, int64_t n);
/** The same for either text of a pair, or for an answer. */
dt_err dt_dataset_add_side(dt_dataset_writer *w, dt_side side, const int32_t *ids, int64_t n);
/** Set the record of the current prompt: a JSON object of nbytes bytes; "{}" if not called. At most once per sample.
 *  DT_ERR_WRITE. */
dt_err dt_dataset_add_record(dt_dataset_writer *w, const char *json, size_t nbytes);
/** End the current document or sample, which may be empty. weight: stored if the writer was created with_weights.
 *  DT_ERR_WRITE. */
dt_err dt_dataset_end_document(dt_dataset_writer *w, float weight);
/** End the current sample of kind preference or unpaired. DT_ERR_WRITE. */
dt_err dt_dataset_end_pair(dt_dataset_writer *w, const dt_pair *pair);
/** Options of a commit. */
typedef struct dt_commit {
    /* Several files, "STEM-00000-of-00004.h5" etc. for PATH "STEM.h5", that contain the samples in order: n_shards
     * files of about equal size, or, if n_shards is 0, files of at most shard_nbytes of arrays (unless one sample is
     * larger). Both 0: one file, PATH. */
    int64_t n_shards;
    uint64_t shard_nbytes;
    bool keep_existing;        /* an existing file is an error: DT_ERR_USAGE */
    const char *const *inputs; /* files that are never replaced: DT_ERR_USAGE */
    int n_inputs;
    const atomic_bool *stop; /* polled between blocks: DT_ERR_STOP; may be NULL */
    int64_t n_files;         /* out */
} dt_commit;
/** End the current documents, write n datasets with checksums, and sync them. The writers are freed, also after an
 *  error. No file gets its final name before all are complete; after an error no file remains.
 *
 *  how  inout  [n]; NULL: one file each
 *
 *  DT_ERR_WRITE, DT_ERR_STOP, DT_ERR_USAGE, DT_ERR_MEMORY. */
dt_err dt_datasets_commit(dt_dataset_writer **w, dt_commit *how, int n);
/** True if path is the name of a shard of the dataset OF, for any number of shards. */
bool dt_is_shard_of(const char *path, const char *of);
/** Free a writer and remove its temporary files. Safe on NULL. */
void dt_dataset_discard(dt_dataset_writer *w);

/* ---- making a dataset from text or records (dtrain-data) --------------------------------------------------------- */

/** Records that were skipped for the same reason; only numbers in its text differ. */
typedef struct dt_problem {
    int64_t n;
    char first[512], reason[512]; /* FILE:LINE of the first, with the image concerned; its reason */
} dt_problem;
enum { DT_MAX_PROBLEMS = 16 };

/** Ignored fields: how many records, or messages, have a field of this name. */
enum { DT_MAX_FIELDS = 64, DT_FIELD_NAME_SIZE = 64 };
typedef struct dt_field_count {
    char name[DT_FIELD_NAME_SIZE]; /* of a message: messages[].NAME; cut to fit */
    int64_t n;
} dt_field_count;
typedef struct dt_field_counts {
    dt_field_count field[DT_MAX_FIELDS]; /* in the order of the input */
    int n;
    int64_t n_others;                 /* fields with further names */
    int64_t n_calls, n_tools;         /* messages whose tool calls are plain text; conversations whose tools are */
    int64_t n_left_out;               /* messages that are not answers and that the template leaves out */
    int64_t n_in_row, n_without_user; /* chats with two consecutive answers; chats with answers but no question */
    char first_odd[512];              /* FILE:LINE of the first of these */
} dt_field_counts;

/** Number of pairs with a property. */
typedef struct dt_pair_count {
    int64_t n;
    char first[512]; /* FILE:LINE of the first */
} dt_pair_count;

/** Statistics of dt_make_datasets. */
typedef struct dt_make_stats {
    int64_t nbytes_read, nbytes_total; /* total -1: unknown (standard input) */
    int64_t n_documents, n_tokens;     /* training file; tokens of both sides */
    int64_t n_validation_documents, n_validation_tokens;
    char first_dropped[512]; /* FILE:LINE of the first of n_dropped */
    int64_t n_dropped;       /* records without any target (sft), without an answer (preference), without a prompt */
    int64_t n_truncated;     /* truncated to max_length */
    int64_t n_too_long;      /* skipped because of max_length */
    int64_t n_parted;        /* prompt and completion encoded separately, because a token would cross their border */
    int64_t n_bad;           /* malformed records skipped (skip_bad) */
    int64_t n_images;        /* in both files */
    dt_problem problems[DT_MAX_PROBLEMS];
    int n_problems; /* the rest of n_bad had other reasons */
    dt_field_counts ignored;
    int64_t n_pairs;                   /* in both files, without ties */
    dt_pair_count equal, contradicted; /* of these pairs: equal answers; scores that prefer the rejected answer */
    dt_dataset_kind kind;
    const char *lacking; /* what the n_dropped records lack */
    int n_shards;        /* files of the output */
} dt_make_stats;

/** Recommendation data in MiniOneRec's files (format minionerec): inputs are CSV files. */
typedef struct dt_rec_options {
    const char *recipe;        /* sft; rl: prompts without the preamble; eval: prompts as in sft */
    const char *tasks;         /* NAME,NAME:SAMPLE,...; NULL: those that the template lists for the recipe */
    const char *index, *items; /* NAME.index.json, NAME.item.json; NULL: none */
    const char *category;      /* value of {category} in a template; may be NULL */
    const char *catalogue;     /* file to write, with lines "SID TAB title TAB id"; NULL: none */
    bool longest;              /* use only the row with the longest history of each user */
    uint64_t seed;             /* for sampling rows of a SAMPLE and instructions */
    /* of dt_make_amazon: minimum number of reviews of a user or an item; first and last month, NULL: any; `from` moves
     * back by years, at most to 1996, until this many items are left */
    int64_t k_core, min_items;
    const char *from, *to;
} dt_rec_options;

/** Images of records: they are decoded and preprocessed, and become runs of a placeholder in the texts. */
typedef struct dt_image_options {
    const char *preprocessor; /* as dt_preprocessor_read; NULL: a record with images is an error */
    const char *folder;       /* directory of relative paths; NULL: that of the record's file */
    const char *token;        /* text of the placeholder, one token of the tokenizer */
    int64_t n_tokens;         /* placeholders of an image */
    bool captions;            /* a chat is an image and its caption: without template and question */
    /* the placeholder's id and the image size that the model expects; -1 and 0: unknown */
    int32_t token_id;
    int64_t size;
    bool grids;   /* the model takes images of several cells */
    bool wrapped; /* dt_wrap_images applies; image_line: as dt_messages */
    bool image_line;
    int32_t around[2];          /* of both: ids of the tokens before and after an image's placeholders */
    const char *around_name[2]; /* if it is wrapped: as dt_image_wrap */
} dt_image_options;

/** Values of options, in the order of the words that dtrain-data takes for them. */
typedef enum dt_input_format {
    DT_INPUT_AUTO, /* by the ending of the file's name */
    DT_INPUT_TEXT,
    DT_INPUT_JSON, /* lines or an array */
    DT_INPUT_MINIONEREC,
    DT_INPUT_AMAZON /* dt_make_amazon */
} dt_input_format;
typedef enum dt_documents {
    DT_DOCUMENTS_FILES,
    DT_DOCUMENTS_LINES,
    DT_DOCUMENTS_PARAGRAPHS,
    DT_DOCUMENTS_SEPARATOR
} dt_documents;
typedef enum dt_mask { DT_MASK_AUTO, DT_MASK_FULL, DT_MASK_COMPLETION, DT_MASK_ASSISTANT } dt_mask;
typedef enum dt_prefer { DT_PREFER_BETTER, DT_PREFER_SAFER } dt_prefer;
typedef enum dt_truncate { DT_TRUNCATE_AUTO, DT_TRUNCATE_START, DT_TRUNCATE_END, DT_TRUNCATE_DROP } dt_truncate;

/** Options of dt_make_datasets. */
typedef struct dt_make_options {
    const char *output, *validation; /* validation NULL: none */
    /* fraction of documents, chosen by a hash of their content: equal documents go to the same file */
    double validation_fraction;
    /* files, directories (their .txt, .jsonl, .ndjson, .json and .parquet files, by name), "-": standard input */
    const char *const *inputs;
    int n_inputs;
    dt_dataset_kind kind;
    /* with AUTO or JSON, a file that is Parquet by its name or first bytes is a table of records */
    dt_input_format format;
    dt_documents documents;    /* of plain text */
    const char *separator;     /* for DT_DOCUMENTS_SEPARATOR */
    const char *tokenizer;     /* as dt_tokenizer_open */
    const char *chat_template; /* as dt_chat_open; of format minionerec: auto, minionerec, or a JSON file */
    dt_mask mask;              /* AUTO: by the form of the record */
    dt_prefer prefer;          /* for PKU-SafeRLHF records: the answer that is chosen */
    dt_truncate truncate;      /* AUTO: DROP for preferences, END for prompts and MINIONEREC, else START */
    const char *weight_key;    /* field of a record with its weight (sft); may be NULL */
    bool as_chat;              /* convert prompts and completions to turns of user and assistant */
    bool no_think;             /* kind prompts: as DT_CHAT_NO_THINK */
    /* chats: source and target of each turn share max_length (algorithms.md 1.1, turn budgets) */
    bool turn_budgets;
    int64_t max_length; /* maximum tokens of a document or sample; 0: no limit */
    bool append_eos, skip_bad;
    dt_rec_options rec;
    dt_image_options images;
    bool force;    /* replace existing outputs, but never an input */
    int n_threads; /* 0: the number of cores of the process */
    int64_t n_shards;
    uint64_t shard_nbytes;                                    /* of the output (dt_commit) */
    const atomic_bool *stop;                                  /* polled: true ends with DT_ERR_STOP; may be NULL */
    void (*progress)(void *self, const dt_make_stats *stats); /* called at intervals; may be NULL */
    void *progress_self;
} dt_make_options;

/** Warn of pairs whose scores or margin prefer the rejected answer. path: of the dataset; first: location of the first;
 *  NULL: not printed. */
void dt_warn_contradicted(const char *path, int64_t n_contradicted, int64_t n_pairs, const char *first);

/** Make one or two datasets. The output does not depend on n_threads. Memory: a few hundred KiB per thread (with images
 *  a few dozen MiB), and the largest record; documents of plain text may have any length. stats: out.
 *
 *  DT_ERR_DATA, "FILE:LINE: reason": the first malformed record in input order. DT_ERR_USAGE: options. DT_ERR_WRITE,
 *  DT_ERR_STOP, DT_ERR_MEMORY. After an error the outputs are unchanged. */
dt_err dt_make_datasets(const dt_make_options *opt, dt_make_stats *stats);

/** Filter the dumps of Amazon's reviews (opt->inputs) and items (opt->rec.items). Writes OUTPUT.item.json and
 *  OUTPUT.train.csv, .valid.csv and .test.csv. Errors as dt_make_datasets. */
dt_err dt_make_amazon(const dt_make_options *opt);

/** Name and version of the library for Parquet files, or why there is none. text: out [size]. Returns text. */
const char *dt_parquet_library(char *text, size_t size);

#endif
