/* tokenizer_ops.h - function table of a tokenizer kind. tokenizer.h calls it. */
#ifndef DTRAIN_TEXT_TOKENIZER_OPS_H
#define DTRAIN_TEXT_TOKENIZER_OPS_H

#include "dtrain/tokenizer/tokenizer.h"

typedef struct dt_tokenizer_ops {
    void (*close)(dt_tokenizer *t);          /* optional; impl may be partly initialised */
    size_t (*nbytes)(const dt_tokenizer *t); /* dt_tokenizer_nbytes; optional: 0 */
    bool (*is_special)(const dt_tokenizer *t, int32_t id);
    const char *(*token)(const dt_tokenizer *t, int32_t id);
    int32_t (*find)(const dt_tokenizer *t, const char *token);
    const char *(*bytes)(const dt_tokenizer *t, int32_t id, size_t *nbytes);
    int (*n_added)(const dt_tokenizer *t); /* optional: 0 */
    dt_added_form (*added)(const dt_tokenizer *t, int i);
    dt_err (*encoder_open)(dt_encoder *e); /* optional */
    void (*encoder_close)(dt_encoder *e);  /* optional; impl may be partly initialised */
    size_t (*encoder_nbytes)(void);        /* dt_encoder_nbytes; optional: 0 */
    dt_err (*encode)(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends);
    size_t (*cut)(const dt_tokenizer *t, const char *text, size_t nbytes); /* 0: no cut known */
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
    char *what, *by; /* dt_encoder_replace; NULL: nothing */
};

void dt_tokenizer_open_bytes(dt_tokenizer *t);
dt_err dt_tokenizer_open_json(dt_tokenizer *t, const char *path); /* a tokenizer.json or its directory */

#endif
