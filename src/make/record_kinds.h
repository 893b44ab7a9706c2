/* record_kinds.h - a kind of samples for the maker of datasets: the other half of its table in src/data/kinds. */
#ifndef DTRAIN_MAKE_RECORD_KINDS_H
#define DTRAIN_MAKE_RECORD_KINDS_H

#include "encode_records.h"

typedef struct dt_record_kind {
    const char *description; /* of a record, for messages: "of a preference" */
    const char *missing;     /* what a sample without signal lacks: if all do */
    const char *lacking;     /* the same in the summary: if some do */
    const char *advice;      /* what to do about it; "": nothing */
    const char *noun;        /* of its samples, in messages */
    /* fields of its records in addition to those of their form, each between blanks: " label "; NULL: none */
    const char *fields;
    /** Does a record have this form? any: no kind was requested. NULL: it is a text or a chat. */
    bool (*is)(const json_t *json, bool any);
    dt_form (*form)(const json_t *json); /* NULL: only_form */
    dt_form only_form;
    /** Parse sample `which` of a record (dt_parse_record). */
    dt_err (*parse)(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which);
    /** Has the sample nothing to train on? NULL: never. */
    bool (*is_empty)(const dt_sample *s, const uint8_t *mask);
    dt_truncate truncate; /* of --truncate auto */
    /* an answer follows a prompt: images are in the prompt, and samples with equal prompts are never divided between
     * training and validation */
    bool answers;
    bool mask;    /* samples have a mask: which of their tokens are targets */
    bool weights; /* samples may have weights */
    bool images;  /* samples may have images */
} dt_record_kind;

/** The table of a kind. */
const dt_record_kind *dt_record_kind_of(dt_dataset_kind kind);
/** Is a record of this kind one text or chat? These kinds can be made from each other's records. */
static inline bool dt_record_is_text(dt_dataset_kind kind) { return !dt_record_kind_of(kind)->is; }

#define DT_RECORD_KIND_TABLE(upper, lower, help) extern const dt_record_kind dt_records_##lower;
DT_KIND_LIST(DT_RECORD_KIND_TABLE)

#endif
