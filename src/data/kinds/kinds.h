/* kinds.h - a kind of samples, as a table: the arrays of its files, and functions that read, print and batch its
 * samples. A new kind is one file here, one in src/make (record_kinds.h) and a word of DT_KIND_LIST (config_keys.h). */
#ifndef DTRAIN_DATA_KINDS_H
#define DTRAIN_DATA_KINDS_H

#include "../file/dataset_file.h"
#include "../file/writer.h"
#include "../samples/samples.h"
#include "dtrain/tokenizer/tokenizer.h"

/** How samples are printed (print_sample.c). */
typedef struct dt_view {
    dt_dataset *d;
    dt_tokenizer *t; /* NULL: print ids */
    const char *on, *off;
} dt_view;
/** Print tokens first .. first+n-1 of a side with targets marked. n_prompt >= 0: tokens from n_prompt on are targets;
 *  else the mask decides, if there is one. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_print_side(const dt_view *v, dt_side side, int64_t first, int64_t n, int64_t n_prompt);
/** Print the record of sample i and a line end. Local. DT_ERR_DATA, DT_ERR_MEMORY. */
dt_err dt_print_record(const dt_view *v, int64_t i);
/** Number of ones in the mask of a file. Local. DT_ERR_DATA. */
dt_err dt_count_mask(dt_dataset *d, int64_t *n);
static inline const char *dt_yes(bool b) { return b ? "yes" : "no"; }

/** The table of a kind. Functions that are NULL do nothing. */
typedef struct dt_kind {
    const char *name;
    const char *wanted;           /* for messages: the kind, and how to create such a file */
    const char *noun;             /* of a sample: "document" or "sample" */
    const char *marks;            /* what `show` marks: ", targets"; "": nothing */
    const char *side[DT_N_SIDES]; /* names of its texts: "chosen"; "": the sample has one text */
    struct dt_kind_column {
        const char *name; /* NULL: its files do not have this array */
        bool optional;
    } column[DT_N_COLUMNS];
    const dt_samples_ops *samples; /* the layout of its samples; NULL: data.packing chooses one */
    int n_sequences;               /* of a sample in a batch; 0: data.packing decides */
    bool answers;                  /* its texts have prompt lengths; images are in the prompts */

    /** Read and write the attributes that only files of this kind have. The file has samples first .. first+n-1 of the
     *  writer. Called with the HDF5 lock held. */
    dt_err (*read_head)(dt_dataset *d, hid_t file);
    dt_err (*write_head)(const dt_dataset_writer *w, int64_t first, int64_t n, hid_t file, const char *path);
    /** Check by the file's attributes that its samples give a training signal; warn unless quiet. Called when a run
     *  opens a file. */
    dt_err (*check_signal)(const dt_dataset *d, bool quiet);
    /** The same check by reading the samples, for a file without these attributes. poll: as dt_dataset_verify. */
    dt_err (*read_signal)(dt_dataset *d, dt_err (*poll)(void *arg), void *arg, bool quiet);
    /** Print the properties of a file that only this kind has. */
    dt_err (*print_info)(dt_dataset *d);
    /** Print sample i. NULL: its text. */
    dt_err (*show)(const dt_view *v, int64_t i);
} dt_kind;

/** The table of a kind. */
const dt_kind *dt_kind_of(dt_dataset_kind kind);
/** "tokens, sft, preference, prompts or unpaired", for messages. text: out. */
enum { DT_KIND_NAMES_SIZE = 128 };
const char *dt_kind_names(char text[DT_KIND_NAMES_SIZE]);

#define DT_KIND_TABLE(upper, lower, help) extern const dt_kind dt_kind_##lower;
DT_KIND_LIST(DT_KIND_TABLE)

#endif
