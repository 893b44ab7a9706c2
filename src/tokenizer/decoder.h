/* decoder.h - tokens become text. */
#ifndef DTRAIN_TEXT_DECODER_H
#define DTRAIN_TEXT_DECODER_H

#include "splitter.h"
#include "dtrain/text/utf8.h"

typedef enum dt_decode_kind {
    DT_DECODE_BYTES,         /* characters that stand for bytes, of all tokens together */
    DT_DECODE_BYTE_FALLBACK, /* tokens <0xHH> */
    DT_DECODE_REPLACE,
    DT_DECODE_FUSE,
    DT_DECODE_STRIP,
    DT_DECODE_METASPACE,
    DT_DECODE_SUFFIX /* the end of a word */
} dt_decode_kind;

typedef struct dt_decode_step {
    dt_decode_kind kind;
    dt_regex *pattern;
    char *content;     /* what is put in; the suffix */
    char character[5]; /* stripped, or for a space */
    int64_t start, stop;
    dt_prefix_where where;
} dt_decode_step;

enum { DT_DECODE_MAX = 32 };
typedef struct dt_id_decoder {
    dt_decode_step step[DT_DECODE_MAX];
    int n_steps;
    bool none; /* tokens are joined with spaces */
} dt_id_decoder;

/** Read "decoder". DT_ERR_DATA, DT_ERR_MEMORY. Free it in any case. */
dt_err dt_id_decoder_read(dt_id_decoder *d, const dt_spec *root);
void dt_id_decoder_free(dt_id_decoder *d); /* safe on {0} */

/** Texts in a row. */
typedef struct dt_texts {
    dt_text text;
    size_t *end; /* [n] */
    size_t n, n_alloc;
} dt_texts;
dt_err dt_texts_append(dt_texts *t, const char *text, size_t n);
size_t dt_texts_nbytes(const dt_texts *t);
void dt_texts_free(dt_texts *t);

/** What the tokens decode to: t[0] holds them, and in the end the one text; t[1] is used besides. running: the tokens
 *  stand somewhere within a text, so what belongs to its start and end is not done, and bytes are not made valid.
 *  DT_ERR_MEMORY, DT_ERR_DATA (dt_regex_next). */
dt_err dt_id_decoder_run(const dt_id_decoder *d, dt_matcher *m, dt_texts t[2], bool running);

#endif
