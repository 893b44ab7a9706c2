/* decoder.h - converts tokens to text. */
#ifndef DTRAIN_TEXT_DECODER_H
#define DTRAIN_TEXT_DECODER_H

#include "splitter.h"
#include "dtrain/text/utf8.h"

typedef enum dt_decode_kind {
    DT_DECODE_BYTES,         /* map characters to bytes, over all tokens together */
    DT_DECODE_BYTE_FALLBACK, /* tokens of the form <0xHH> */
    DT_DECODE_REPLACE,
    DT_DECODE_FUSE,
    DT_DECODE_STRIP,
    DT_DECODE_METASPACE,
    DT_DECODE_JOIN,  /* without a decoder: a space between tokens */
    DT_DECODE_SUFFIX /* the marker at the end of a word */
} dt_decode_kind;

typedef struct dt_decode_step {
    dt_decode_kind kind;
    dt_regex *pattern;
    char *content;     /* replacement, or the suffix */
    char character[5]; /* to be stripped, or representing a space */
    int64_t start, stop;
    dt_prefix_where where;
} dt_decode_step;

enum { DT_DECODE_MAX = 32 };
typedef struct dt_id_decoder {
    dt_decode_step step[DT_DECODE_MAX];
    int n_steps;
} dt_id_decoder;

/** Read "decoder". DT_ERR_DATA, DT_ERR_MEMORY. Must be freed, also after an error. */
dt_err dt_id_decoder_read(dt_id_decoder *d, const dt_spec *root);
void dt_id_decoder_free(dt_id_decoder *d); /* safe on {0} */

/** A list of texts, stored contiguously. */
typedef struct dt_texts {
    dt_text text;
    size_t *end; /* [n] */
    size_t n, n_alloc;
} dt_texts;
dt_err dt_texts_append(dt_texts *t, const char *text, size_t n);
size_t dt_texts_nbytes(const dt_texts *t);
void dt_texts_free(dt_texts *t);

/** Decode tokens. t[0] holds them on entry and the single result on return; t[1] is scratch. running: the
 *  tokens are from inside a text, so steps for its start and end are skipped, and invalid UTF-8 is not
 *  repaired. DT_ERR_MEMORY, DT_ERR_DATA (dt_regex_next). */
dt_err dt_id_decoder_run(const dt_id_decoder *d, dt_matcher *m, dt_texts t[2], bool running);

#endif
