/* tokenizer_json.h - a tokenizer.json: the stages of tokenizer_json.h's calls, in the order that text goes through
 * them.
 *
 *     text -> added tokens -> normalizer -> added tokens -> splitter -> bpe -> ids -> what is put around them ->
 *     decoder -> text */
#ifndef DTRAIN_TEXT_JSON_TOKENIZER_H
#define DTRAIN_TEXT_JSON_TOKENIZER_H

#include "auto.h"
#include "decoder.h"

enum { DT_POST_PROCESSOR_MAX = 16 };
/** What the post-processor puts around a text. */
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
    dt_texts running;    /* by id: its bytes in running text */
    dt_auto_files files; /* open while it is read */
    dt_auto_class class;
    int32_t n_own; /* dt_tokenizer_info */
    char name[48];
    char *directory, *chat_template, *chat_template_names;
    const char *chat_template_file;
    json_t *named;                    /* dt_tokenizer_info */
    dt_split_there at_line, at_space; /* DT_THERE_LOCAL: where the model keeps the neighbours apart, too */
} dt_json_tokenizer;

/** What tokenizer_config.json and special_tokens_map.json say, where they are there: bos, eos, pad, what is put around
 *  a text, the chat template. */
dt_err dt_tokenizer_read_config(dt_tokenizer *t);
/** The chat template of the directory; config is tokenizer_config.json, or empty (chat_source.c). */
dt_err dt_tokenizer_read_template(dt_json_tokenizer *j, const dt_spec *config);

/** Find out where texts may be cut. */
void dt_json_plan_cuts(dt_json_tokenizer *j);
size_t dt_json_cut(const dt_tokenizer *t, const char *text, size_t nbytes);

dt_err dt_json_encoder_open(dt_encoder *e);
void dt_json_encoder_close(dt_encoder *e);
dt_err dt_json_encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends);
char *dt_json_decode(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes);

#endif
