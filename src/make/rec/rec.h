/* rec.h - recommendation data in MiniOneRec's format: interaction rows and an item catalogue, from which
 * tasks build samples by templates. recommendation.md "Data".
 *
 * A task is described by data: its source (rows or items), and texts with {names}. The list of tasks of a
 * dataset is data, too. A sample depends only on its row or item and the seed. */
#ifndef DTRAIN_DATA_MAKE_REC_H
#define DTRAIN_DATA_MAKE_REC_H

#include "../csv_reader.h"
#include "dtrain/data/dataset.h"
#include "dtrain/tokenizer/tokenizer.h"

/* ---- templates --------------------------------------------------------------------------------------------------- */

/** Values of {name} in templates, in the order of their names in rec_template.c. */
typedef enum dt_rec_value {
    DT_REC_CATEGORY,
    DT_REC_SIDS, /* the history, as SIDs */
    DT_REC_TITLES,
    DT_REC_SID, /* of the next item (rows) or of the item (items) */
    DT_REC_TITLE,
    DT_REC_DESCRIPTION,
    DT_REC_INSTRUCTION, /* texts of the task that contain values themselves */
    DT_REC_INPUT,
    DT_REC_TARGET,
    DT_N_REC_VALUES
} dt_rec_value;

enum { DT_REC_MAX_TASKS = 32 };

typedef struct dt_rec_task {
    const char *name;
    bool of_items; /* source: items of the catalogue, not rows */
    /* preamble, prompt and response are the texts of a sample, each encoded separately; they embed the others */
    const char *preamble, *prompt, *response, *input, *target;
    const json_t *instruction;     /* a text, or a list from which one is sampled */
    const char *quote, *separator; /* around and between the entries of a history */
    uint32_t uses;                 /* bit mask: values used in its texts */
    int64_t sample;                /* number of sampled rows or items; 0: all */
} dt_rec_task;

typedef struct dt_rec_template {
    json_t *json;
    dt_rec_task task[DT_REC_MAX_TASKS]; /* selected tasks; texts borrowed from json */
    int n_tasks;
    const char *category; /* borrowed from json or from the option */
} dt_rec_template;

/** name: "auto" or "minionerec" (the recipe's), or a JSON file. recipe: the template's task list to use
 *  unless tasks (NULL, or NAME,NAME:SAMPLE,...) is given. category: NULL, or the value of {category}; if
 *  the template lists it, the template's text is used. Call dt_rec_template_close also after an error.
 *  DT_ERR_USAGE: unknown task. DT_ERR_DATA: invalid file, naming the key. */
dt_err dt_rec_template_open(dt_rec_template *t, const char *name, const char *recipe, const char *tasks,
                            const char *category);
void dt_rec_template_close(dt_rec_template *t);
/** Value that starts at a template's text: "{name}". -1: other text. *len: its length in bytes; "{{" and
 *  "}}" are one escaped brace. */
int dt_rec_find_value(const char *text, size_t *len);
/** The built-in template, the text of input/minionerec.json. */
extern const char dt_rec_default[];

/* ---- the catalogue ----------------------------------------------------------------------------------------------- */

/** Level tokens that the tokenizer encodes to their own id, in any context. */
typedef struct dt_rec_levels {
    const dt_tokenizer *tokenizer;
    json_t *read; /* {level token: true} */
} dt_rec_levels;
/** DT_ERR_MEMORY. Call dt_rec_levels_close also after an error. */
dt_err dt_rec_levels_open(dt_rec_levels *l, const dt_tokenizer *t);
void dt_rec_levels_close(dt_rec_levels *l);
/** DT_ERR_DATA: the SID has no level tokens, or contains an unknown one. */
dt_err dt_rec_check_sid(const dt_rec_levels *l, const char *sid);

typedef struct dt_rec_item {
    const char *id, *sid, *title, *description; /* "" if missing */
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

/** Read an index file and, if not NULL, an item file. DT_ERR_DATA names position and cause, such as a
 *  level token that is not in l. */
dt_err dt_rec_items_open(dt_rec_items *items, const char *index_path, const char *items_path, const dt_rec_levels *l);
void dt_rec_items_close(dt_rec_items *items); /* also after an error */
/** Write "SID TAB title TAB id" lines: rec.catalogue. DT_ERR_WRITE. */
dt_err dt_rec_items_write(const dt_rec_items *items, const char *path);

/* ---- all recommendation data ------------------------------------------------------------------------------------- */

typedef struct dt_rec {
    dt_rec_template texts;
    dt_rec_levels levels;
    dt_rec_items items; /* n 0: no catalogue */
    dt_dataset_kind kind;
    bool preamble;
    uint64_t key; /* derived from the seed */
} dt_rec;

/** Open what the options name. Call dt_rec_close also after an error. DT_ERR_USAGE, DT_ERR_DATA. */
dt_err dt_rec_open(dt_rec *r, const dt_make_options *opt, const dt_tokenizer *t);
void dt_rec_close(dt_rec *r);
/** Bit mask of the tasks that build a sample from row (or item) number i of n. */
uint32_t dt_rec_tasks_of(const dt_rec *r, bool items, int64_t i, int64_t n);
bool dt_rec_has_samples(const dt_rec *r); /* true if some task samples a limited number */
/** DT_ERR_DATA: a column that the tasks need is missing. */
dt_err dt_rec_check_header(const dt_rec *r, const json_t *names);

#endif
