/* generate.h - generation: sequences grow by sampled tokens through a model with a KV cache. algorithms.md, appendix
 * B. */
#ifndef DTRAIN_GENERATE_H
#define DTRAIN_GENERATE_H

#include "dtrain/chat/chat.h"
#include "dtrain/comm/comm.h"
#include "dtrain/model/model.h"
#include "dtrain/generate/sampler.h"
#include "dtrain/tokenizer/tokenizer.h"

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/** A prompt. */
typedef struct dt_prompt {
    dt_ids ids;
    dt_image_names images; /* one for each placeholder run in ids */
    int32_t *n_cells;      /* [images.n] of images that are grids; else NULL */
    const char *file;      /* the file that names the images, borrowed from the caller of the parser; NULL: none */
    json_t *record;        /* its source; NULL for plain text */
} dt_prompt;

typedef struct dt_prompts {
    dt_prompt *prompt;
    int n;
} dt_prompts;

typedef enum dt_prompt_format {
    DT_PROMPT_WHOLE, /* the text is one prompt */
    DT_PROMPT_LINES, /* one per line, without empty lines */
    /* one object per line, or a JSON array of objects: {"prompt": "text"}, {"messages": [{"role": "user", "content":
     * "text"}]} or {"ids": [1, 2]}, "image" or "images" (paths relative to the file's directory), and any other
     * fields */
    DT_PROMPT_JSONL
} dt_prompt_format;

/** Settings for reading prompts. */
typedef struct dt_prompt_reader {
    /* borrowed; both NULL: texts contain ids, separated by blanks */
    const dt_tokenizer *tokenizer;
    dt_encoder *encoder;
    const char *chat_template; /* for messages; NULL: auto */
    const char *system;        /* system message for messages that do not begin with one; NULL: none */
    unsigned chat_flags;       /* DT_CHAT_NO_THINK */
    const json_t *tools;       /* {"tools": ...} for messages of records without tools; NULL: none */
    /* records contain answers: {"prompt": "text"} with "completion", "response" or "answer", or messages that end with
     * an answer. The end of text is appended, unless a template has ended the text */
    bool answers;
    int64_t vocab_size;
    /* of a vision-language model: id and number of an image's placeholders. n_image_tokens 0: no images, and "image" is
     * an ordinary field */
    int32_t image_token, n_image_tokens;
    const char *image_text; /* text of the placeholder, one token; NULL: none */
    /* of images that are grids: image_text has the tokens around the placeholder, too. image_alias: as dt_messages.
     * n_cells: the cells of an image of a prompt. Else NULL */
    const char *image_alias;
    bool image_line; /* as dt_messages */
    dt_err (*n_cells)(void *ctx, const dt_prompt *p, int k, int32_t *n);
    void *ctx;
    /* [n_images] image paths for each prompt that is not a record. They come first, unless the text has placeholders */
    const char *const *image;
    int n_images;
    dt_chat *chat; /* opened on first use */
} dt_prompt_reader;
/** Open the chat template. Local. DT_ERR_USAGE, DT_ERR_DATA: as dt_chat_open. */
dt_err dt_prompt_reader_chat(dt_prompt_reader *r);
/** Close the chat template. Local. */
void dt_prompt_reader_close(dt_prompt_reader *r);

/** Read the prompts of a text, with BOS if the tokenizer begins texts with it. An empty text gives no ids. Local.
 *
 *  p     out  freed with dt_prompts_free, also after an error
 *  name  name of the text in messages; borrowed by prompts with images
 *
 *  DT_ERR_DATA naming name, line and expectation: not JSON, a missing field, an id outside 0 .. vocab_size-1, the wrong
 *  number of placeholders, no prompt. DT_ERR_MEMORY. */
dt_err dt_prompts_parse(dt_prompts *p, const char *name, const char *text, size_t nbytes, dt_prompt_format format,
                        dt_prompt_reader *r);
/** Free the prompts. Local. Safe on {0}; leaves {0}. */
void dt_prompts_free(dt_prompts *p);

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* Why a sequence ended. STOP: on_token, is_complete or, of a feed, on_pass. MISSING: a beam search found fewer
 * sequences than requested. WAIT: it has not ended; on_token has set it, and on_wait sets another one. FAILED: of a
 * feed, no token could be chosen, which ends other calls with an error. */
typedef enum dt_finish {
    DT_FINISH_NONE,
    DT_FINISH_EOS,
    DT_FINISH_LENGTH,
    DT_FINISH_STOP,
    DT_FINISH_MISSING,
    DT_FINISH_WAIT,
    DT_FINISH_FAILED
} dt_finish;

/** A sequence: a prompt and its completion. The caller owns ids [max_ids] and sets the prompt. */
typedef struct dt_sequence {
    uint64_t number; /* index among all sequences of the job: key of its random numbers */
    int32_t *ids;
    int32_t n_prompt, n_ids, max_ids; /* 0 < n_prompt <= n_ids <= max_ids */
    int32_t n_images;                 /* images of the prompt, with options.vision */
    const int32_t *n_cells;           /* [n_images] of images that are grids; NULL: 1 each */
    /* in: tokens already in cache slot 0, below n_prompt, to continue a conversation with the same images (with one
     * slot only); out: tokens in the slot */
    int32_t n_cached;
    dt_finish finish; /* out; EOS: the last id ends it; LENGTH: max_ids reached */
    /* out, with options.logp and after beam search: log-probability of the completion, by the untransformed logits
     * divided by options.logp_temperature */
    double logp;
    /* out, beam search: sum of the log-probabilities after the repetition penalty, divided by length^length_penalty */
    double score;
    /* out [max_ids], the caller's, or NULL: with options.logp and after beam search, log-probability of each new
     * token */
    float *logps;
    /* Sequences with equal prompt_number have the same prompt. With options.n_prompts it is computed and cached once
     * for those that are consecutive in the list and run at the same time. 0: not shared. Beam search ignores it and
     * caches each prompt once */
    int64_t prompt_number;
    bool parked; /* the generator's: it waits, and another sequence has taken its slot */
    /* of a feed: index of its choice, and its seed. n_top: tokens in each of its lists of most probable tokens; 0: no
     * lists. of_prompt: also log-probabilities and lists of the prompt's tokens, except the first */
    int choice;
    uint64_t seed;
    int32_t n_top;
    bool of_prompt;
    /* out [max_ids, n_top], the caller's: the most probable tokens at each position, and their log-probabilities */
    int32_t *top_token;
    float *top_logp;
} dt_sequence;

/** Interface of generation to a model. Each decode is followed by draw or, in beam search, top; all three also with an
 *  empty batch. */
typedef struct dt_decoder {
    void *self;
    dt_err (*decode)(void *self, const dt_batch *b, const int32_t *slot);
    /* the next token of each sequence in b */
    dt_err (*draw)(void *self, const dt_batch *b, const dt_draw *d);
    /* the most probable next tokens of each sequence in b */
    dt_err (*top)(void *self, const dt_batch *b, const dt_top *t);
    /* remove all but the first n_tok tokens of a slot; returns the number that remains, n_tok or 0 */
    int32_t (*keep)(void *self, int32_t slot, int32_t n_tok);
    /* make a sequence's slot share the first n_tok tokens of a prompt's slot */
    dt_err (*share)(void *self, int32_t slot, int32_t prompt, int32_t n_tok);
    /* copy slot src[i] to slot dst[i], i < n: no slot is in both, and none twice in dst */
    dt_err (*move)(void *self, int32_t n, const int32_t *src, const int32_t *dst);
    int32_t prompt_slot; /* the first slot for prompts; slots of sequences begin at 0 */
    /* for feeds: log-probabilities of the targets of b, and the most probable tokens at their rows; after decode */
    dt_err (*targets)(void *self, const dt_batch *b, float *logp, const dt_known *top);
} dt_decoder;
/** The decoder of a model, borrowed. */
dt_decoder dt_decoder_of_model(dt_model *m);

/** A constraint on completions: an automaton. States are integers from 0: `start` after the prompt, then the result of
 *  `next` for each token. */
typedef struct dt_constraint {
    const void *self;
    int32_t start;
    /* [n_token] lists of tokens, each ascending, as passed to dt_model_set_lists */
    const int32_t *token;
    int32_t n_token;
    /* the allowed tokens in a state: token[list_start .. list_start + list_len - 1], possibly none */
    void (*allowed)(const void *self, int32_t state, int32_t *list_start, int32_t *list_len);
    int32_t (*next)(const void *self, int32_t state, int32_t token); /* token: an allowed one */
    int32_t end; /* the only token that ends a sequence, instead of those of the options */
} dt_constraint;

/** Forbidden tokens, as in transformers' logits processors with these names. {0}: none. */
typedef struct dt_token_rules {
    /* no end token among the first min_new_tokens, nor among the first min_length of prompt and new tokens together; 0:
     * no minimum */
    int32_t min_new_tokens, min_length;
    int32_t no_repeat_ngram_size;    /* no n consecutive tokens occur twice, including the prompt; 0: off */
    dt_ids suppress, begin_suppress; /* borrowed; begin_suppress: only for the first new token */
} dt_token_rules;

/** Sequences that arrive while others run, each with its own choice of tokens. on_pass updates the fields, and gives
 *  them the same values on all ranks that run passes together. */
typedef struct dt_feed {
    dt_sequence *(*next)(void *ctx); /* the next sequence of this rank; NULL: none now. Its slot is free at its end */
    bool more;                       /* the call continues, also on a rank without sequences */
    const dt_choice *choice;         /* [n_choices] those of all sequences that run */
    int n_choices;
    int32_t n_top;  /* the largest of their n_top */
    bool of_prompt; /* does one of them have of_prompt? */
} dt_feed;

/** Options of beam search: find the n_return best sequences of each prompt, in descending order of score; ties by lower
 *  beam, then lower token id. The list of sequences has n_return consecutive ones per prompt, which is read from the
 *  first; if fewer are found, the others become MISSING. */
typedef struct dt_beam_options {
    int n_beams, n_return; /* n_return <= n_beams; n_beams 0: sampling */
    /* a: score = sum of log-probabilities / (new tokens)^a, including the token that ends the sequence */
    double length_penalty;
    /* true: a prompt is done when n_beams sequences are finished; false: when no running beam can exceed the worst of
     * them */
    bool early_stopping;
} dt_beam_options;

/** Options of generation. */
typedef struct dt_generate_options {
    /* of its fields, beam search only uses the repetition penalty: a factor on the log-probabilities of tokens seen
     * before, as in transformers */
    dt_sampling sampling;
    /* instead of sampling: n_slots serve n_slots / n_beams prompts at a time, each with one of n_prompts. {0}: none */
    dt_beam_options beams;
    int32_t max_len;      /* of a generator with beams: maximum tokens of a sequence */
    dt_token_rules rules; /* not with a constraint */
    /* may be NULL. Log-probabilities stay relative to the whole vocabulary. A beam search then returns only complete
     * sequences, possibly fewer than requested */
    const dt_constraint *constraint;
    const int32_t *eos;
    int n_eos;
    int64_t vocab_size;
    int32_t n_slots; /* sequences at a time: slots of the model's cache */
    /* slots of the model's cache for shared prompts; a sequence's own slot then needs space only for new tokens and the
     * part of the prompt that is not shared (dt_sequence_shared). If all are in use, a sequence waits. 0: a sequence
     * has its prompt in its own slot */
    int32_t n_prompts;
    /* When a text has grown beyond this length, its cache is computed again, because all its tokens then rotate
     * otherwise (dt_model_recompute_length); 0: never. Only without n_prompts. In beam search a sequence's own slot
     * then needs space for the whole text */
    int32_t recompute_at;
    /* maximum tokens of a forward pass, at least n_slots: long prompts are divided into several passes */
    int32_t max_tok;
    /* of a vision-language model whose prompts have images, on any rank in lockstep; else NULL. An image's placeholders
     * are not divided between passes, so max_tok is at least n_slots - 1 + those of the largest image */
    const dt_vision_config *vision;
    int32_t max_images;    /* maximum images of a forward pass, as in dt_model_options; of grids: cells */
    size_t feature_nbytes; /* of an image's features, if the model takes features instead of images; else 0 */
    /* with vision: write image k of a sequence's prompt, pixels [S, S, 3] or features, of grids those of each cell, and
     * its grid to *grid. Called before the image's pass, in beam search with the prompt's first sequence. Local; its
     * error ends the call, in lockstep on all ranks */
    dt_err (*image)(void *ctx, const dt_sequence *s, int32_t k, uint8_t *pixels, uint32_t *grid);
    bool logp;               /* compute log-probabilities */
    double logp_temperature; /* divides the logits for log-probabilities, and so for beam scores; 0: 1 */
    /* ranks that must run the same number of forward passes (ZeRO-3): calls are then Collective; NULL: Local */
    dt_comm *lockstep;
    /* called for every new token, including the one that ends a sequence; may set s->finish to STOP or, with on_wait,
     * to WAIT. Beam search: called once per sequence, at its end. May be NULL */
    dt_err (*on_token)(void *ctx, dt_sequence *s);
    /* called before each pass, when sequences may wait. May append tokens to one with finish WAIT and set NONE: it
     * continues; or another finish: it ends. Others use its slot meanwhile, if they need it. idle: all ranks only wait,
     * so it should sleep for some milliseconds. Its error ends the call; local. Not in beam search. May be NULL */
    dt_err (*on_wait)(void *ctx, bool idle);
    /* is a sequence with these ids complete, as if its last token ended it? It then ends with STOP. May be NULL */
    bool (*is_complete)(void *ctx, const int32_t *ids, int32_t n_prompt, int32_t n_ids);
    /* called before each pass; its error ends the call. With lockstep it must be local, and its error is agreed; else
     * it may communicate. With a feed it may end a sequence (STOP), which leaves its slot. May be NULL */
    dt_err (*on_pass)(void *ctx);
    /* sequences instead of a list, and their choices instead of `sampling`, whose repetition_penalty only says that
     * they may have one (not 1). With on_token, without lockstep, constraint and n_prompts. max_top: largest n_top; the
     * model's max_top and max_known are as large. NULL: none */
    const dt_feed *feed;
    int32_t max_top;
    void *ctx;
    dt_ledger *ledger;
} dt_generate_options;

/** Counts and times of a call. */
typedef struct dt_generate_stats {
    int64_t n_forward, n_prompt_tok, n_new_tok;
    /* total, and the part of prompts: a pass is divided in proportion to tokens */
    double seconds, prompt_seconds;
} dt_generate_stats;

/** Number of a prompt's tokens in a prompt slot: all but the last one, and only those before an image that the prompt
 *  ends in; 0 without prompt slots. In beam search all. Local. */
int32_t dt_sequence_shared(const dt_generate_options *opt, const dt_sequence *s);

/** Generate all sequences, in the order given: when one ends, the next takes its slot. A sequence's tokens depend only
 *  on its number, its prompt and the options, if the model's logits do not depend on the rest of the batch.
 *
 *  seqs   inout  [n_seqs]
 *  stats  out
 *
 *  Collective on opt->lockstep, else Local. With lockstep all ranks return together, except after an error of the model
 *  (DT_ERR_COMM and others), which is returned immediately; the caller then ends the job. DT_ERR_NONFINITE: logits.
 *  Also errors of dt_generator_open and of callbacks. */
dt_err dt_generate(const dt_decoder *d, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt,
                   dt_generate_stats *stats);

/** dt_generate in two steps, for a caller that generates repeatedly and allocates nothing in between. */
typedef struct dt_generator dt_generator;
/** Open a generator. g: out, closed with dt_generator_close; NULL on error. opt and d are copied; what they point to is
 *  borrowed. Local. DT_ERR_ARG, DT_ERR_MEMORY; DT_ERR_USAGE: opt->sampling. */
dt_err dt_generator_open(dt_generator **g, const dt_decoder *d, const dt_generate_options *opt);
/** As dt_generate. */
dt_err dt_generator_run(dt_generator *g, dt_sequence *const *seqs, int n_seqs, dt_generate_stats *stats);
/** Free a generator. Local. Safe on NULL. */
void dt_generator_close(dt_generator *g);
/** Bytes that it allocates (DT_MEM_DATA, host). Local. */
size_t dt_generator_nbytes(const dt_generate_options *opt);

/** Number of most probable tokens per sequence that a beam search requests: the model's max_top. Local. */
int32_t dt_beam_top(const dt_generate_options *opt);

#endif
