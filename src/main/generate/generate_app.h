/* generate_app.h - shared declarations of dtrain-generate. */
#ifndef DTRAIN_MAIN_GENERATE_APP_H
#define DTRAIN_MAIN_GENERATE_APP_H

#include "../tool/ranks.h"
#include "../tool/tool.h"
#include "dtrain/io/json.h"
#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/pretrained/sentence.h"
#include "dtrain/generate/generate.h"
#include "dtrain/image/image.h"
#include "dtrain/io/io.h"
#include "dtrain/train/train.h"
#include "dtrain/recommend/trie.h"

enum { MAX_GIVEN_IMAGES = 64 };

typedef struct options {
    const char *model, *adapter, *prompt, *prompts; /* prompts: a file, "-" for standard input as JSON lines */
    bool standard_input;                            /* one prompt per line */
    const char *output;                             /* a file; NULL: standard output */
    const char *score, *answers;                    /* score: a reward model; answers: a file, "-": standard input */
    const char *data;                               /* with top_logprobs: dataset files */
    int64_t top_logprobs, seq_len;                  /* 0: no file of log-probabilities; tokens of a text, 0: the most */
    const char *catalogue;                          /* constrains continuations; NULL: unconstrained */
    bool force;
    const char *tokenizer, *device;
    dt_dtype dtype;
    dt_sampling sampling;
    struct { /* names of options on the command line, which win over generation_config.json; NULL: not given */
        const char *temperature, *top_k, *top_p, *min_p, *penalty, *greedy, *beams, *max_new, *length_penalty, *early,
            *min_new, *ngram, *suppress, *begin_suppress;
    } given;
    dt_beam_options beams;
    int64_t max_new_tokens, num_samples, batch_size, threads, stage, context;
    int64_t max_length;   /* limit for prompt and new tokens from generation_config.json; 0: no limit */
    dt_token_rules rules; /* with ids of its own */
    const char *stop[DT_MAX_STOPS];
    int n_stop;
    bool chat, no_think;
    dt_model_part part;
    const char *system, *chat_template, *tools;
    const char *image[MAX_GIVEN_IMAGES];
    int n_images;
    double timeout_s;
    const char *serve, *api_key_file; /* serve: HOST:PORT; NULL: no server */
    int64_t max_queue, max_body;
    double request_timeout_s, grace_s;
    bool no_graphs, stream, jsonl, logprobs, verbose, help, version;
} options;

/** Images of a conversation, prepared for the model's tower. {0}: none. */
typedef struct image_list {
    int n;
    int32_t *n_cells; /* [n] */
    uint32_t *grid;   /* [n] */
    uint8_t *pixels;  /* [nbytes] */
    size_t nbytes;
} image_list;

/** What a model of --score computes of a text. */
typedef enum head_kind { HEAD_REWARD, HEAD_VALUE, HEAD_LABEL, HEAD_LABELS, HEAD_WORDS, HEAD_EMBEDDING } head_kind;
typedef struct scored_head {
    head_kind kind;
    int64_t n_values; /* of a text; HEAD_WORDS: of a token */
    json_t *config;   /* config.json: id2label */
    dt_sentence_options sentence;
} scored_head;

typedef struct app {
    options opt;
    dt_comm comm;
    dt_phase phase;
    dt_watchdog *watchdog;
    dt_ledger ledger;
    dt_device dev;
    dt_frozen_model frozen;
    dt_model *model;
    dt_frozen_model judge; /* model of --score, if it differs from the generating model */
    dt_model *judging;
    double *reward;    /* [n_seqs]; NULL: no scoring */
    scored_head head;  /* of the model of --score with --answers */
    float *values;     /* [n_seqs, head.n_values]; NULL: only rewards */
    dt_tokenizer *tok; /* NULL: ids are read and printed, and encoder is NULL */
    dt_encoder *encoder;
    int32_t eos[DT_MAX_ENDS];
    int n_eos;
    dt_catalogue *catalogue; /* NULL: none */
    dt_trie *trie;
    dt_constraint only;
    json_t *tools; /* {"tools": ...} of --tools; NULL: none */
    dt_prompt_reader reader;
    char *text; /* of the prompts or records */
    size_t text_nbytes;
    dt_prompts prompts;
    char *image_text;  /* placeholder of an image in a text; NULL: none */
    dt_sequence *seqs; /* all sequences of the job, n_out consecutive ones per prompt */
    int n_seqs, n_out, printed;
    size_t shown;          /* bytes of the current answer already printed */
    char *part;            /* temporary name of the output file while it is being written */
    struct server *server; /* of --serve */
    bool plain_terminal;   /* output is a terminal: control characters are filtered */
} app;

/* generate_options.c */
extern const tool_help generate_help;
dt_err generate_parse_options(options *o, int argc, char **argv);
void generate_free_options(options *o);
/** Does the command line request sampling? */
bool generate_draws(const options *o);
void generate_print_settings(const app *a);

/* settings.c */
/** Apply settings of generation_config.json that the command line does not set. speaks: warn about ignored ones. */
dt_err generate_take_defaults(options *o, const dt_generation_defaults *from, int64_t vocab_size, bool speaks);

/* sequences.c: builds sequences from prompts, assigns them to ranks, and gathers results on all ranks */
dt_err generate_make_sequences(app *a);
/** With a catalogue: check that at least one item fits after every prompt. DT_ERR_USAGE, DT_ERR_DATA. */
dt_err generate_check_items(const app *a);
/** An empty prompt becomes the begin token, or the document separator. DT_ERR_USAGE: the model has none. */
dt_err generate_begin_prompt(const app *a, dt_ids *p);
int generate_owner(const app *a, int sequence);
/** Tokens per second; 0 if the time is too short to measure, as when the only new token came with the prompt. */
double generate_rate(int64_t n_tok, double seconds);
dt_err generate_fetch_from(app *a, int from); /* collective */

/* logprobs.c: writes a file of log-probabilities (known.h). Collective. */
dt_err generate_logprobs(app *a);

/* read_images.c */
/** Determine how the model's prompts may contain images, for the reader. DT_ERR_USAGE: --image is given
 *  but unsupported. */
dt_err generate_describe_images(app *a);
/** Assign image numbers to sequences. DT_ERR_DATA names a missing file that this rank must read. */
dt_err generate_find_images(app *a);
/** Callback dt_generate_options.image for sequences of a->prompts; ctx: a. */
dt_err generate_bring_image(void *ctx, const dt_sequence *s, int32_t k, uint8_t *pixels, uint32_t *grid);
/** Read an image of at most `most` cells; an image without cells counts as one. pixels: out, malloc'ed. DT_ERR_DATA. */
dt_err generate_load_image(const app *a, const char *path, int32_t most, uint8_t **pixels, int64_t *n_cells,
                           uint32_t *grid);
/** Append an image. *pixels: out, where the caller stores its pixels, valid until the next call. DT_ERR_MEMORY. */
dt_err generate_images_add(const app *a, image_list *i, int64_t n_cells, uint32_t grid, uint8_t **pixels);
/** Copy the pixels and the grid of image k. */
void generate_images_copy(const app *a, const image_list *i, int k, uint8_t *pixels, uint32_t *grid);
/** Remove n images. */
void generate_images_drop(const app *a, image_list *i, int from, int n);
void generate_images_free(image_list *i);
size_t generate_image_nbytes(const app *a); /* of a vision-language model */
/** Reserve memory for images per pass if prompts may have images, at most `most` at a time. */
void generate_size_images(const app *a, dt_generate_options *g, int64_t most);
void generate_free_images(app *a);

/* score.c: collective */
/** Read the description of the reward model, without its tensors. */
dt_err generate_describe_judge(app *a);
/** Compute a->reward for this rank's sequences. */
dt_err generate_score(app *a, dt_sequence *const *mine, int n_mine);
dt_err generate_report_rewards(app *a); /* on standard error, after rank 0 has received all */

/* heads.c: classifiers and embeddings */
/** Find out what the model of --answers computes. */
dt_err generate_describe_head(app *a);
/** The values of a text [head.n_values]. */
float *generate_values_of(const app *a, const dt_sequence *s);
/** Take the values of a text's tokens [n_ids, values of a token]. DT_ERR_NONFINITE. */
dt_err generate_take_values(app *a, dt_sequence *s, const float *value);
/** Add the fields of a text to its record. */
void generate_add_values(const app *a, const dt_sequence *s, json_t *object);
/** Print a text's label or embedding as a line. */
void generate_print_values(const app *a, const dt_sequence *s);

/* output.c */
/** With -o, redirect standard output to FILE.part on rank 0. */
dt_err generate_begin_output(app *a);
dt_err generate_end_output(app *a); /* rename FILE.part to FILE, durably */
void generate_drop_output(app *a);  /* removes the partial output file */
/** Text of the continuation, malloc'ed: without special tokens, up to a stop text; *stopped: a stop text occurred.
 *  NULL: out of memory. */
char *generate_new_text(const app *a, const dt_sequence *s, size_t *nbytes, bool *stopped);
/** Text of a completion, malloc'ed. A tokenizer may omit the space before the first word of a text, so it is the whole
 *  text minus the prompt's. apart: it is decoded independently. NULL: out of memory. */
char *generate_completion(const app *a, const int32_t *ids, int32_t n_prompt, int32_t n_ids, bool apart,
                          size_t *nbytes);
/** Position of the first stop text that ends after byte `from`; n: none. */
size_t generate_find_stop(const char *const *stop, int n_stop, const char *text, size_t n, size_t from);
/** Bytes of a growing text before its end, if that may be the beginning of a stop text. */
size_t generate_before_stop(const char *const *stop, int n_stop, const char *text, size_t n);
/** Bytes of a growing text without the characters at its end that the next token may complete. */
size_t generate_whole_characters(const char *text, size_t n);
void generate_put_prompt(const app *a, const dt_sequence *s);
dt_err generate_put_finished(app *a); /* prints finished sequences, in the order of their numbers */
dt_err generate_stream(app *a, const dt_sequence *s, bool last); /* prints new text, only whole characters */
/** True if the newest token completes a stop text, which may begin in the prompt. */
bool generate_stops(const app *a, const int32_t *ids, int32_t n_ids);
dt_err generate_flush(const app *a);

/* serve.c: answers requests until a signal. Collective */
dt_err generate_serve(app *a, const dt_decoder *d, dt_generate_options *g, int32_t max_len);

/* chat_session.c */
dt_err generate_chat(app *a, const dt_decoder *d, const dt_generate_options *g, int32_t max_len); /* collective */

#endif
