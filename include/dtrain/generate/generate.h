/* generate.h - decoding: sequences grow by sampled tokens through a model with a key-value cache. algorithms.md,
 * appendix B. */
#ifndef DTRAIN_GENERATE_H
#define DTRAIN_GENERATE_H

#include "dtrain/chat/chat.h"
#include "dtrain/comm/comm.h"
#include "dtrain/model/model.h"
#include "dtrain/generate/sampler.h"
#include "dtrain/tokenizer/tokenizer.h"

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

typedef struct dt_prompt {
    dt_ids ids;
    dt_image_names images; /* for which the ids have placeholders */
    const char *file;      /* in which they are named, borrowed from the parser's caller; NULL: in none */
    json_t *record;        /* what it was read from; NULL for plain text */
} dt_prompt;

typedef struct dt_prompts {
    dt_prompt *prompt;
    int n;
} dt_prompts;

typedef enum dt_prompt_format {
    DT_PROMPT_WHOLE, /* the text is one prompt */
    DT_PROMPT_LINES, /* one a line; empty lines do not count */
    /* an object a line, or a JSON array of objects: {"prompt": "text"}, {"messages": [{"role": "user", "content":
     * "text"}]} or {"ids": [1, 2]}, "image" or "images" (paths, from the folder of the file
     * on), and any other fields */
    DT_PROMPT_JSONL
} dt_prompt_format;

/** What texts are read with. */
typedef struct dt_prompt_reader {
    /* borrowed, with its encoder; both NULL: texts are made of ids, separated by blanks */
    const dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    const char *chat_template; /* for messages; NULL: auto */
    const char *system;        /* NULL, or what comes first where messages do not begin with a system message */
    unsigned chat_flags;       /* DT_CHAT_NO_THINK */
    /* records are whole: {"prompt": "text"} with "completion", "response" or "answer", or messages that end with an
     * answer. The end of text follows, unless a template has ended it */
    bool answers;
    int64_t vocab_size;
    /* of a vision-language model: the placeholders of an image and how a text names it. n_image_tokens 0: prompts have
     * no images, and "image" is a field like others */
    int32_t image_token, n_image_tokens;
    const char *image_text; /* one token of the tokenizer; NULL where there is none */
    /* [n_images] paths of images that belong to each prompt which is not a record. Where a text does not say where they
     * stand, they come first */
    const char *const *image;
    int n_images;
    dt_chat *chat; /* opened when it is first needed */
} dt_prompt_reader;
/** Open the template. DT_ERR_USAGE, DT_ERR_DATA as dt_chat_open. */
dt_err dt_prompt_reader_chat(dt_prompt_reader *r);
void dt_prompt_reader_close(dt_prompt_reader *r);

/** Token ids of the prompts in a text, with BOS where the tokenizer begins texts with it; an empty text gives no ids.
 *  name is what messages call the text, and borrowed by prompts with images. Local. DT_ERR_DATA naming name, line and
 *  what was expected: not JSON, no such field, an id outside 0 .. vocab_size-1, other placeholders than images, no
 *  prompt. Free also after an error. */
dt_err dt_prompts_parse(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_format format,
                        dt_prompt_reader *r);
void dt_prompts_free(dt_prompts *p);

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* STOP: on_token or is_complete asked for it. MISSING: a beam search found fewer sequences than were to be returned. */
typedef enum dt_finish { DT_FINISH_NONE, DT_FINISH_EOS, DT_FINISH_LENGTH, DT_FINISH_STOP, DT_FINISH_MISSING } dt_finish;

/** A sequence: prompt and what follows it. The caller owns ids [max_ids] and fills in the prompt. */
typedef struct dt_sequence {
    uint64_t number; /* among all of the job: keys its random numbers */
    int32_t *ids;
    int32_t n_prompt, n_ids, max_ids; /* 0 < n_prompt <= n_ids <= max_ids */
    int32_t n_images;                 /* that the prompt's placeholders stand for: with options.vision */
    /* tokens that slot 0 of the cache holds, below n_prompt: a conversation that goes on (one slot alone), with the
     * same images; after the call those in the slot */
    int32_t n_cached;
    dt_finish finish; /* EOS: the last id ends it; LENGTH: max_ids reached */
    /* with options.logp, and after beam search: log-probability of what follows the prompt, by the untransformed
     * logits divided by options.logp_temperature */
    double logp;
    /* beam search: sum of the log-probabilities after the repetition penalty / length^length_penalty */
    double score;
    /* NULL, or the caller's [max_ids]: with options.logp, and after beam search, those of each new token */
    float *logps;
    /* Sequences of one number here have the same prompt, which with options.n_prompts lies in memory once for those
     * that run at the same time and follow each other in the list, and is computed once for them. 0: it is this one's
     * alone. Not looked at by beam search, where each prompt lies there once */
    int64_t prompt_number;
} dt_sequence;

/** What generation needs of a model. After each decode comes draw or, for beam search, top; all three also with an
 *  empty batch. */
typedef struct dt_decoder {
    void *self;
    dt_err (*decode)(void *self, const dt_batch *b, const int32_t *slot);
    /* the next token of each sequence in b */
    dt_err (*draw)(void *self, const dt_batch *b, const dt_draw *d);
    /* the most probable next tokens of each sequence in b */
    dt_err (*top)(void *self, const dt_batch *b, const dt_top *t);
    /* forget all but the first n_tok tokens of a slot */
    void (*keep)(void *self, int32_t slot, int32_t n_tok);
    /* a sequence's slot holds the first n_tok tokens of a prompt's slot from now on, in the place where they are */
    dt_err (*share)(void *self, int32_t slot, int32_t prompt, int32_t n_tok);
    /* sequence slots dst[i] become what src[i] are, i < n: all are different, but a slot may be src several times */
    dt_err (*move)(void *self, int32_t n, const int32_t *src, const int32_t *dst);
    int32_t prompt_slot; /* the first of the slots for prompts; those of sequences are numbered from 0 */
} dt_decoder;
dt_decoder dt_decoder_of_model(dt_model *m);

/** What may follow in a sequence. A state is a number from 0: `start` behind the prompt, then what `next` makes of it
 *  and each token. */
typedef struct dt_constraint {
    const void *self;
    int32_t start;
    /* lists of tokens, each ascending, in one array [n_token]: the decoder's (dt_model_set_lists) */
    const int32_t *token;
    int32_t n_token;
    /* the tokens that may follow in a state are token[list_start] and the list_len - 1 behind it: perhaps none */
    void (*allowed)(const void *self, int32_t state, int32_t *list_start, int32_t *list_len);
    int32_t (*next)(const void *self, int32_t state, int32_t token); /* token: one of those */
    int32_t end; /* the token that ends a sequence, the only one: those of the options end none */
} dt_constraint;

/** Tokens that may not follow, as transformers' logits processors of these names say. {0}: none are forbidden. */
typedef struct dt_token_rules {
    /* the tokens that end a sequence may not be among the first min_new_tokens, nor among the first min_length of
     * prompt and new tokens together; 0: no minimum */
    int32_t min_new_tokens, min_length;
    int32_t no_repeat_ngram_size;             /* no n tokens in a row occur twice, the prompt's included; 0: they may */
    const int32_t *suppress, *begin_suppress; /* borrowed; begin_suppress: as the first new token alone */
    int32_t n_suppress, n_begin_suppress;
} dt_token_rules;

typedef struct dt_generate_options {
    dt_sampling sampling;
    dt_token_rules rules; /* not with a constraint, which says alone what may follow */
    /* NULL, or what may follow; log-probabilities stay those among the whole vocabulary. A beam search then finds
     * sequences that are complete alone, perhaps fewer than were asked for */
    const dt_constraint *constraint;
    const int32_t *eos;
    int n_eos;
    int64_t vocab_size;
    int32_t n_slots; /* sequences at a time: those of the model's cache */
    /* slots of the model's cache for prompts, which sequences go on from: their own slots then have room for what is
     * new (and what of the prompt is not shared, dt_sequence_shared). 0: a sequence has its prompt in its own slot.
     * Where all are in use a sequence waits */
    int32_t n_prompts;
    int32_t max_tok; /* tokens of a forward pass, at least n_slots: long prompts enter in pieces */
    /* of a vision-language model, whose prompts have images, on any rank in lockstep; else NULL. No image is cut: it
     * goes through the tower once, with the piece of its prompt that all of its placeholders are in, so that max_tok
     * is at least n_slots - 1 + vision->n_tokens */
    const dt_vision_config *vision;
    int32_t max_images; /* of a forward pass: those the model was opened for */
    /* With vision: image k of a sequence's prompt, as the tower takes it, into pixels [S, S, 3]: asked for before the
     * pass that it goes through, of a beam search with the prompt's first sequence. Local; its error ends the call, in
     * lockstep on all ranks */
    dt_err (*image)(void *ctx, const dt_sequence *s, int32_t k, uint8_t *pixels);
    bool logp;               /* fill in log-probabilities */
    double logp_temperature; /* logits are divided by it for them; 0: by 1. Beams are scored by them */
    /* NULL, or the ranks that must run the same number of forward passes (ZeRO-3): the call is then collective */
    dt_comm *lockstep;
    /* NULL, or told of every new token, the one that ends a sequence included; may set s->finish to STOP. Beam search:
     * told of every sequence once, at its end */
    dt_err (*on_token)(void *ctx, dt_sequence *s);
    /* Beam search: NULL, or is a sequence of these ids complete, as if its last token ended it? */
    bool (*is_complete)(void *ctx, const int32_t *ids, int32_t n_prompt, int32_t n_ids);
    /* NULL, or called before each pass; its error ends the call. With lockstep it is local and its error agreed on,
     * else it may exchange something with other ranks */
    dt_err (*on_pass)(void *ctx);
    void *ctx;
    dt_ledger *ledger;
} dt_generate_options;

typedef struct dt_generate_stats {
    int64_t n_forward, n_prompt_tok, n_new_tok;
    /* all, and the part that prompts had in it: the time of a pass is divided by tokens */
    double seconds, prompt_seconds;
} dt_generate_stats;

/** Tokens of a sequence's prompt that lie in a slot of prompts: all but the last one, and all before the image that it
 *  ends in; 0 without such slots. In beam search it is all of it. */
int32_t dt_sequence_shared(const dt_generate_options *opt, const dt_sequence *s);

/** Decode every sequence to its end, in the order given: as one ends, the next takes its slot. A sequence's tokens
 *  depend on its number, its prompt and the options alone, as far as the model's logits do not depend on what else is
 *  in the batch.
 *
 *  With lockstep all ranks return together as long as the model answers; an error of the model itself (DT_ERR_COMM and
 *  others) is returned at once, and the caller ends the job. DT_ERR_NONFINITE: logits. Else what on_token returned. */
dt_err dt_generate(const dt_decoder *d, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt,
                   dt_generate_stats *stats);

/** The same in two parts, for a caller that decodes again and again and allocates nothing in between. opt and d are
 *  copied; what they point to is borrowed for the generator's life. Opening is local: DT_ERR_ARG, DT_ERR_MEMORY,
 *  DT_ERR_USAGE of opt->sampling. */
typedef struct dt_generator dt_generator;
dt_err dt_generator_open(dt_generator **g, const dt_decoder *d, const dt_generate_options *opt);
dt_err dt_generator_run(dt_generator *g, dt_sequence *const *seqs, int n_seqs, dt_generate_stats *stats);
void dt_generator_close(dt_generator *g);                   /* safe on NULL */
size_t dt_generator_nbytes(const dt_generate_options *opt); /* in the ledger, as data on the host */

typedef struct dt_beam_options {
    int n_beams, n_return; /* n_return <= n_beams */
    /* a: score = sum of log-probabilities / (new tokens)^a, the one that ends the sequence included */
    double length_penalty;
    /* a prompt is done when n_beams sequences are finished; else when no running beam can beat the worst of them */
    bool early_stopping;
} dt_beam_options;

/** Tokens of a sequence that a search asks its decoder for: the model's max_top. */
int32_t dt_beam_top(const dt_beam_options *how, const dt_generate_options *opt);

/** Beam search: for each prompt the n_return best sequences, by falling score; equal candidates by lower beam, then
 *  lower token id. seqs: n_return in a row for each prompt, which is read from the first; where fewer are found the
 *  rest become MISSING. Of opt->sampling the repetition penalty alone counts, a factor on the log-probabilities of
 *  tokens seen before (transformers); opt->n_slots is for n_slots / n_beams prompts at a time, each with one of
 *  opt->n_prompts. Otherwise as dt_generate. DT_ERR_USAGE: numbers of how. */
dt_err dt_beam_search(const dt_decoder *d, dt_sequence *const *seqs, int n_prompts, const dt_beam_options *how,
                      const dt_generate_options *opt, dt_generate_stats *stats);

/** The same in two parts, as dt_generator_open, for sequences of at most max_len tokens. Opening is local:
 *  DT_ERR_USAGE, DT_ERR_ARG, DT_ERR_MEMORY. */
typedef struct dt_searcher dt_searcher;
dt_err dt_searcher_open(dt_searcher **s, const dt_decoder *d, const dt_beam_options *how,
                        const dt_generate_options *opt, int32_t max_len);
dt_err dt_searcher_run(dt_searcher *s, dt_sequence *const *seqs, int n_prompts, dt_generate_stats *stats);
void dt_searcher_close(dt_searcher *s); /* safe on NULL */
/** In the ledger, as data on the host. */
size_t dt_searcher_nbytes(const dt_beam_options *how, const dt_generate_options *opt, int32_t max_len);

#endif
