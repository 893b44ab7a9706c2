/* tokenizer_ops.h - what a kind of tokenizer does behind tokenizer.h. */
#ifndef DTRAIN_TEXT_TOKENIZER_OPS_H
#define DTRAIN_TEXT_TOKENIZER_OPS_H

#include "dtrain/tokenizer.h"

typedef struct dt_tokenizer_ops {
    void (*close)(dt_tokenizer *t);          /* optional; impl may be half made */
    size_t (*nbytes)(const dt_tokenizer *t); /* dt_tokenizer_nbytes; optional: 0 */
    bool (*is_special)(const dt_tokenizer *t, int32_t id);
    const char *(*token)(const dt_tokenizer *t, int32_t id);
    int32_t (*find)(const dt_tokenizer *t, const char *token);
    const char *(*bytes)(const dt_tokenizer *t, int32_t id, size_t *nbytes);
    int (*n_added)(const dt_tokenizer *t); /* optional: 0 */
    dt_added_form (*added)(const dt_tokenizer *t, int i);
    dt_err (*encoder_open)(dt_encoder *e); /* optional */
    void (*encoder_close)(dt_encoder *e);  /* optional; impl may be half made */
    size_t (*encoder_nbytes)(void);        /* dt_encoder_nbytes; optional: 0 */
    dt_err (*encode)(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends);
    size_t (*cut)(const dt_tokenizer *t, const char *text, size_t nbytes); /* 0: no place known */
    char *(*decode)(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes);
} dt_tokenizer_ops;

struct dt_tokenizer {
    const dt_tokenizer_ops *ops;
    dt_tokenizer_info info;
    void *impl;
};

struct dt_encoder {
    const dt_tokenizer *tokenizer;
    void *impl;
};

void dt_tokenizer_open_bytes(dt_tokenizer *t);
dt_err dt_tokenizer_open_json(dt_tokenizer *t, const char *path); /* a tokenizer.json or its directory */

/* ---- text that grows --------------------------------------------------------------------------------------------- */

typedef struct dt_text {
    char *bytes;
    size_t n, n_alloc;
    bool failed; /* out of memory: nothing more is appended */
} dt_text;
void dt_text_append(dt_text *t, const char *bytes, size_t n);
void dt_text_reserve(dt_text *t, size_t n); /* room for n more bytes and a 0 */
/** The text, with a 0 behind it, and the caller's from now on. NULL: out of memory. */
char *dt_text_finish(dt_text *t, size_t *nbytes);
/** The same, made valid UTF-8 (dt_utf8_repair). */
char *dt_text_repaired(dt_text *t, size_t *nbytes);

/** Length of the character that begins here, 0 when none does (RFC 3629: no overlong forms, no surrogates, up to
 *  U+10FFFF). n > 0. */
size_t dt_utf8_length(const char *text, size_t n);
/** Length of what is replaced as one by U+FFFD where no character begins. n > 0. */
size_t dt_utf8_bad(const char *text, size_t n);
/** Code point of the character that begins here, in text that is valid UTF-8; *text moves behind it. */
uint32_t dt_utf8_next(const char **text);
/** Write a code point as UTF-8; returns its length. */
size_t dt_utf8_put(uint32_t code, char out[4]);

#endif
