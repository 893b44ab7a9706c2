/* normalizer.h - what a tokenizer.json does to a text before it is split. */
#ifndef DTRAIN_TEXT_NORMALIZER_H
#define DTRAIN_TEXT_NORMALIZER_H

#include "segment.h"
#include "regex.h"
#include "dtrain/io/spec.h"
#include "dtrain/text/utf8.h"

/** Forms first, numbered as the bits of dt_unicode_normal. */
typedef enum dt_normal_kind {
    DT_NFC,
    DT_NFD,
    DT_NFKC,
    DT_NFKD,
    DT_LOWERCASE,
    DT_PREPEND,
    DT_REPLACE,
    DT_STRIP
} dt_normal_kind;

typedef struct dt_normal_step {
    dt_normal_kind kind;
    char *content; /* prepended, or put in the place of what pattern finds */
    size_t n_content;
    dt_regex *pattern; /* NULL: the single byte `byte` */
    char byte;
    bool left, right; /* strip */
} dt_normal_step;

/* steps; bytes that a step puts in, and of an added token */
enum { DT_NORMAL_MAX = 32, DT_CONTENT_MAX = 1024 };
typedef struct dt_normalizer {
    dt_normal_step step[DT_NORMAL_MAX];
    int n_steps;
    dt_char_table chars; /* values of dt_unicode_normal; empty without a form */
} dt_normalizer;

/** Read "normalizer"; none: no steps. DT_ERR_DATA, DT_ERR_MEMORY. Free it in any case. */
dt_err dt_normalizer_read(dt_normalizer *n, const dt_spec *root);
void dt_normalizer_free(dt_normalizer *n); /* safe on {0} */

/** The pattern of a Split, or a Replace: {"String": ...} or {"Regex": ...}. */
dt_err dt_pattern_read(const dt_spec *s, dt_regex **out, const char **text, bool *literal);

/** Normalise a piece in place; what it becomes lies in one of the two buffers. A piece that does not begin the text
 *  (goes_on) is not given what belongs there. */
dt_err dt_normalize(const dt_normalizer *n, dt_matcher *m, dt_text buffer[2], dt_segment *piece, bool goes_on);

/** May a text be parted before an ASCII space or a letter, and its parts be normalised alone? */
bool dt_normalizer_is_local(const dt_normalizer *n);

#endif
