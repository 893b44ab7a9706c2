/* normalizer.h - transformations of a text by tokenizer.json before it is split. */
#ifndef DTRAIN_TEXT_NORMALIZER_H
#define DTRAIN_TEXT_NORMALIZER_H

#include "segment.h"
#include "regex.h"
#include "dtrain/io/spec.h"
#include "dtrain/text/utf8.h"

/** Unicode forms first, numbered as the bits of DT_UNICODE_NORMAL. */
typedef enum dt_normal_kind {
    DT_NFC,
    DT_NFD,
    DT_NFKC,
    DT_NFKD,
    DT_LOWERCASE,
    DT_PREPEND,
    DT_REPLACE,
    DT_STRIP,
    DT_PRECOMPILED
} dt_normal_kind;

/** A table of SentencePiece that replaces characters (charsmap.c). */
typedef struct dt_charsmap dt_charsmap;

typedef struct dt_normal_step {
    dt_normal_kind kind;
    char *content; /* prepended, or the replacement of pattern */
    size_t n_content;
    dt_regex *pattern; /* NULL: the single byte `byte` */
    char byte;
    bool left, right; /* strip */
    dt_charsmap *charsmap;
} dt_normal_step;

/* maximum number of steps; maximum bytes of an inserted text and of an added token */
enum { DT_NORMAL_MAX = 32, DT_CONTENT_MAX = 1024 };
typedef struct dt_normalizer {
    dt_normal_step step[DT_NORMAL_MAX];
    int n_steps;
    dt_char_table chars; /* values of DT_UNICODE_NORMAL; empty without a form */
} dt_normalizer;

/** Read "normalizer"; missing: no steps. DT_ERR_DATA, DT_ERR_MEMORY. Must be freed, also after an error. */
dt_err dt_normalizer_read(dt_normalizer *n, const dt_spec *root);
void dt_normalizer_free(dt_normalizer *n); /* safe on {0} */

/** Reads a step of a stage into the stage. */
typedef dt_err (*dt_read_step)(void *stage, const dt_spec *step, const char *type);
/** Read a stage of tokenizer.json: one step, or a Sequence of steps under `list`, also nested ones. DT_ERR_DATA, and
 *  the errors of `read`. */
dt_err dt_stage_read(void *stage, const dt_spec *s, const char *list, dt_read_step read);

/** Pattern of a Split or a Replace: {"String": ...} or {"Regex": ...}. */
dt_err dt_pattern_read(const dt_spec *s, dt_regex **out, const char **text, bool *literal);

/** Normalise a segment in place; the result is in one of the two buffers. goes_on: the segment continues a
 *  text, so steps for its start are skipped. */
dt_err dt_normalize(const dt_normalizer *n, dt_matcher *m, dt_text buffer[2], dt_segment *piece, bool goes_on);

/** Read a step of type Precompiled. DT_ERR_DATA, DT_ERR_MEMORY. m: out, must be freed, also after an error. */
dt_err dt_charsmap_read(dt_charsmap **m, const dt_spec *step);
void dt_charsmap_free(dt_charsmap *m); /* safe on NULL */
dt_err dt_charsmap_apply(const dt_charsmap *m, dt_text *out, dt_segment *p);

/** True if a text may be split before an ASCII space or a letter, and its parts normalised separately. */
bool dt_normalizer_is_local(const dt_normalizer *n);

#endif
