/* tokenizer_json.h - a tokenizer.json. Text passes through its stages in this order:
 *
 *     text -> added tokens -> normalizer -> added tokens -> splitter -> bpe -> ids -> post-processor ->
 *     decoder -> text */
#ifndef DTRAIN_TEXT_JSON_TOKENIZER_H
#define DTRAIN_TEXT_JSON_TOKENIZER_H

#include "auto.h"
#include "decoder.h"

enum { DT_POST_PROCESSOR_MAX = 16 };
/** Tokens that the post-processor adds around a text. */
typedef struct dt_post_processor {
    int32_t before[DT_POST_PROCESSOR_MAX], after[DT_POST_PROCESSOR_MAX];
    int n_before, n_after;
} dt_post_processor;
dt_err dt_post_processor_read(dt_post_processor *w, const dt_spec *root, const dt_vocab *vocab);

typedef struct dt_json_tokenizer {
    dt_normalizer normalizer;
    dt_splitter splitter;
    dt_bpe bpe;
    dt_added added;
    dt_id_decoder decoder;
    dt_post_processor wrap;
    dt_texts running;    /* by id: its bytes in the middle of a text */
    dt_auto_files files; /* only open while reading */
    dt_auto_class class;
    int32_t n_own; /* dt_tokenizer_info */
    char name[48];
    char *directory, *chat_template;
    const char *chat_template_file;
    json_t *chat_templates;
    json_t *named;                    /* dt_tokenizer_info */
    dt_split_there at_line, at_space; /* DT_THERE_LOCAL: only where the model also keeps the neighbours apart */
} dt_json_tokenizer;

/** Read tokenizer_config.json and special_tokens_map.json, if they exist: bos, eos, pad, added prefix and
 *  suffix, and the chat template. */
dt_err dt_tokenizer_read_config(dt_tokenizer *t);
/** Find the directory's chat template; config: tokenizer_config.json, or empty (chat_source.c). */
dt_err dt_tokenizer_read_template(dt_json_tokenizer *j, const dt_spec *config);

/** Determine where texts may be cut. */
void dt_json_plan_cuts(dt_json_tokenizer *j);
size_t dt_json_cut(const dt_tokenizer *t, const char *text, size_t nbytes);

dt_err dt_json_encoder_open(dt_encoder *e);
void dt_json_encoder_close(dt_encoder *e);
dt_err dt_json_encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends);

#endif
