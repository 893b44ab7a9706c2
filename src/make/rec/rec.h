/* rec.h - recommendation data in MiniOneRec's files: rows of interactions and a catalogue of items, from which tasks
 * make samples by templates. recommendation.md "Data".
 *
 * A task is data: where it takes its values from (a row, or an item), and texts with {names} in them. So is which tasks
 * a dataset has. What a sample says depends on its row or item and the seed alone. */
#ifndef DTRAIN_DATA_MAKE_REC_H
#define DTRAIN_DATA_MAKE_REC_H

#include "../csv_reader.h"
#include "dtrain/data/dataset.h"
#include "dtrain/tokenizer/tokenizer.h"

/* ---- templates --------------------------------------------------------------------------------------------------- */

/** What stands behind a {name} of a template; in the order of their names in rec_template.c. */
typedef enum dt_rec_value {
    DT_REC_CATEGORY,
    DT_REC_SIDS, /* the history, as SIDs */
    DT_REC_TITLES,
    DT_REC_SID, /* of the next item, or of the item */
    DT_REC_TITLE,
    DT_REC_DESCRIPTION,
    DT_REC_INSTRUCTION, /* texts of the task, which have values in them */
    DT_REC_INPUT,
    DT_REC_TARGET,
    DT_N_REC_VALUES
} dt_rec_value;

enum { DT_REC_MAX_TASKS = 32 };

typedef struct dt_rec_task {
    const char *name;
    bool of_items; /* of items of the catalogue, not of rows */
    /* preamble, prompt and response are the three texts of a sample, each encoded on its own; the others stand in
     * them */
    const char *preamble, *prompt, *response, *input, *target;
    const json_t *instruction;     /* a text, or several of which one is drawn */
    const char *quote, *separator; /* around and between the entries of a history */
    uint32_t uses;                 /* bits: values in its texts */
    int64_t sample;                /* so many rows or items of all; 0: each */
} dt_rec_task;

typedef struct dt_rec_template {
    json_t *json;
    dt_rec_task task[DT_REC_MAX_TASKS]; /* those chosen, texts borrowed from json */
    int n_tasks;
    const char *category; /* borrowed from json or from the option */
} dt_rec_template;

/** name: "auto" or "minionerec" (the recipe's), or a JSON file. recipe: the list of tasks in the template that tasks
 *  (NULL, or NAME,NAME:SAMPLE,...) replaces. category: NULL, or what {category} says; one that the template lists is
 *  replaced by its text there. dt_rec_template_close also after an error. DT_ERR_USAGE: no such task; DT_ERR_DATA: the
 *  file, naming the key. */
dt_err dt_rec_template_open(dt_rec_template *t, const char *name, const char *recipe, const char *tasks,
                            const char *category);
void dt_rec_template_close(dt_rec_template *t);
/** The value that stands at a template's text: "{name}". -1: other text. *len: bytes of it; "{{" and "}}" are one
 *  brace. */
int dt_rec_find_value(const char *text, size_t *len);
/** The recipe's own template, the text of input/minionerec.json. */
extern const char dt_rec_default[];

/* ---- the catalogue ----------------------------------------------------------------------------------------------- */

/** Level tokens that the tokenizer makes of their text, wherever it stands. */
typedef struct dt_rec_levels {
    const dt_tokenizer *tokenizer;
    json_t *read; /* {level token: true} */
} dt_rec_levels;
/** dt_rec_levels_close also after an error. DT_ERR_MEMORY. */
dt_err dt_rec_levels_open(dt_rec_levels *l, const dt_tokenizer *t);
void dt_rec_levels_close(dt_rec_levels *l);
/** DT_ERR_DATA: a level token of the SID is not among them, or it has none. */
dt_err dt_rec_check_sid(const dt_rec_levels *l, const char *sid);

typedef struct dt_rec_item {
    const char *id, *sid, *title, *description; /* "" where there is none */
} dt_rec_item;

/** Items in the order of the index file. */
typedef struct dt_rec_items {
    json_t *by_id;  /* {id: SID} */
    json_t *by_sid; /* {SID: true} */
    json_t *texts;  /* the item file */
    dt_rec_item *item;
    int64_t n;
    const char *index_path;
} dt_rec_items;

/** Read an index file and (NULL: none) an item file. DT_ERR_DATA with what is wrong where: a level token that is not
 *  among l, for example. */
dt_err dt_rec_items_open(dt_rec_items *items, const char *index_path, const char *items_path, const dt_rec_levels *l);
void dt_rec_items_close(dt_rec_items *items); /* also after an error */
/** "SID TAB title TAB id" a line: rec.catalogue. DT_ERR_WRITE. */
dt_err dt_rec_items_write(const dt_rec_items *items, const char *path);

/* ---- all of it --------------------------------------------------------------------------------------------------- */

typedef struct dt_rec {
    dt_rec_template texts;
    dt_rec_levels levels;
    dt_rec_items items; /* n 0: none were given */
    dt_dataset_kind kind;
    bool preamble;
    uint64_t key; /* of the seed */
} dt_rec;

/** What the options say. dt_rec_close also after an error. DT_ERR_USAGE, DT_ERR_DATA. */
dt_err dt_rec_open(dt_rec *r, const dt_make_options *opt, const dt_tokenizer *t);
void dt_rec_close(dt_rec *r);
/** The tasks, as bits, that make a sample of row (or item) number i of n. */
uint32_t dt_rec_tasks_of(const dt_rec *r, bool items, int64_t i, int64_t n);
bool dt_rec_has_samples(const dt_rec *r); /* is some task's number of samples limited? */
/** DT_ERR_DATA: a column that the tasks need is not there. */
dt_err dt_rec_check_header(const dt_rec *r, const dt_csv_header *h);

#endif
