/* tokenizer.h - text to token ids and back. Definitions: algorithms.md A.2. Every function is Local.
 *
 * A tokenizer is read once and never changes: any number of threads may share it. Mutable state of encoding (caches,
 * match data) is in an encoder; each thread needs its own. A text is any bytes. Bytes that are not UTF-8 are encoded as
 * their replacement (dt_utf8_repair); only "bytes" encodes them as they are. The reference of all other tokenizers,
 * Hugging Face's tokenizers, accepts valid text only. */
#ifndef DTRAIN_TOKENIZER_H
#define DTRAIN_TOKENIZER_H

#include "dtrain/core/core.h"

typedef struct dt_tokenizer dt_tokenizer;

/** Open a tokenizer.
 *
 *  t     out  closed with dt_tokenizer_close; NULL on error
 *  name  "bytes": ids 0..255 are bytes, 256 is the end of text. Otherwise a tokenizer.json with a BPE or a unigram
 *        model, a tokenizer.model of SentencePiece, or a directory that contains one; tokenizer.json takes precedence
 *
 *  Next to tokenizer.json, tokenizer_config.json and special_tokens_map.json may define bos, eos and pad, and whether
 *  they surround texts; chat_template.jinja may exist. "truncation" and "padding" of tokenizer.json are ignored:
 *  callers truncate.
 *
 *  DT_ERR_DATA: no such file; or, naming file, key and value, invalid, or a kind of tokenizer that is not supported.
 *  DT_ERR_MEMORY. */
dt_err dt_tokenizer_open(dt_tokenizer **t, const char *name);
/** The tokenizer.json with the same ids as a tokenizer.model, and the tokenizer_config.json that belongs to it.
 *
 *  path    as `name` of dt_tokenizer_open
 *  text    out, malloc'ed, the caller's; NULL: path is, or has, a tokenizer.json
 *  config  out, likewise
 *
 *  Errors as those of dt_tokenizer_open. */
dt_err dt_tokenizer_model_to_json(const char *path, char **text, size_t *nbytes, char **config);
/** Free a tokenizer; its encoders must be closed. Safe on NULL. */
void dt_tokenizer_close(dt_tokenizer *t);

/** Bytes of the tables that grow with the file: tokens, merges, added tokens; 0 for NULL. Smaller tables of fixed size
 *  are not counted. */
size_t dt_tokenizer_nbytes(const dt_tokenizer *t);

/** Description of a tokenizer. Strings live as long as the tokenizer. */
typedef struct dt_tokenizer_info {
    const char *name;      /* identity, stored in datasets made with it: "bytes", or a hash of the file's content */
    const char *directory; /* of its files; NULL if it is built in */
    /* the directory's chat template and the file of its templates; chat_template NULL: none, or only named templates */
    const char *chat_template, *chat_template_file;
    const struct json_t *chat_templates; /* named templates, {name: text, ...}; NULL: none */
    const struct json_t *named; /* special tokens as chat templates see them: {"bos_token": "<s>", ...}; NULL: none */
    int32_t vocab_size;         /* largest id + 1 */
    /* ids below it are the tokenizer's own. Ids from n_own to vocab_size - 1 are special tokens that only have a name
     * in its files; a model may have no rows for them */
    int32_t n_own;
    int32_t bos, eos, pad; /* -1: none. pad: the one named in the files, else a reserved token, else eos */
} dt_tokenizer_info;
/** The description. Borrowed; lives as long as t. */
const dt_tokenizer_info *dt_tokenizer_get_info(const dt_tokenizer *t);

/** Does decoding omit this id if special tokens are not wanted? Also true for unknown ids. */
bool dt_tokenizer_is_special(const dt_tokenizer *t, int32_t id);
/** The token as the vocabulary writes it; NULL for an unknown id. Lives as long as t. */
const char *dt_tokenizer_token(const dt_tokenizer *t, int32_t id);
/** The id of a token as the vocabulary writes it; -1: unknown. */
int32_t dt_tokenizer_find(const dt_tokenizer *t, const char *token);
/** An added token, which is recognised in a text before tokenisation. text lives as long as the tokenizer. */
typedef struct dt_added_form {
    const char *text;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
} dt_added_form;
/** Number of added tokens. */
int dt_tokenizer_n_added(const dt_tokenizer *t);
/** Added token i, 0 <= i < dt_tokenizer_n_added. */
dt_added_form dt_tokenizer_added(const dt_tokenizer *t, int i);
/** Bytes that an id stands for in running text, perhaps part of a character; none for special and unknown tokens.
 *  nbytes: out. Lives as long as t. */
const char *dt_tokenizer_bytes(const dt_tokenizer *t, int32_t id, size_t *nbytes);

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

/** A growing list of token ids. {0} to begin. */
typedef struct dt_ids {
    int32_t *id; /* [n], malloc'ed; freed by the caller */
    size_t n, n_alloc;
} dt_ids;
/** Make space for n_more ids after the n in the list, by realloc. DT_ERR_MEMORY: the list is unchanged. */
dt_err dt_ids_reserve(dt_ids *ids, size_t n_more);

/** A segment of a text, or a token between segments. text is borrowed. */
typedef struct dt_span {
    const char *text; /* NULL: the token id */
    size_t nbytes;
    int32_t id;
} dt_span;

typedef struct dt_encoder dt_encoder;
/** Create an encoder for a thread. e: out, closed with dt_encoder_close; NULL on error. Borrows t. DT_ERR_MEMORY. */
dt_err dt_encoder_open(dt_encoder **e, const dt_tokenizer *t);
/** Free an encoder. Safe on NULL. */
void dt_encoder_close(dt_encoder *e);
/** Replace `what` in texts by `by` before they are encoded, within each span. Both are copied; NULL: nothing.
 *  DT_ERR_MEMORY. */
dt_err dt_encoder_replace(dt_encoder *e, const char *what, const char *by);
/** Bytes of its cache; 0 for NULL. Its other memory grows with the longest text and is not counted. */
size_t dt_encoder_nbytes(const dt_encoder *e);

enum {
    DT_ENCODE_WRAP = 1, /* add the tokens that the tokenizer puts around a text: BOS, EOS */
    DT_ENCODE_GOES_ON =
        /* the spans continue a text that was cut (dt_text_cut): omit what belongs to the start of a text */
    2,
    DT_ENCODE_MORE = 4, /* the text continues in another call: nothing is appended after it */
};
/** Append the ids of the concatenation of all spans, encoded as one text. Special tokens written in the text are
 *  recognised.
 *
 *  e      used by one thread at a time
 *  spans  in  [n_spans]
 *  flags  sum of DT_ENCODE_*
 *  ids    inout  appended to
 *  ends   out  [n_spans] ids->n at the end of each span; -1 if a token crosses that end into the next span. May be NULL
 *
 *  DT_ERR_MEMORY. DT_ERR_DATA, naming the bytes: a limit of the regular-expression library was reached. */
dt_err dt_encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends);

/** Find where to cut a long text so that its parts, encoded separately, have the ids of the whole (all parts but the
 *  first with DT_ENCODE_GOES_ON, all but the last with DT_ENCODE_MORE).
 *
 *  Returns the largest known boundary up to nbytes: after a line end and before a letter, or before a space between two
 *  letters. Without such a boundary, it returns the end of the last whole character, where the ids may differ from the
 *  whole's. At least 1 if nbytes > 0. */
size_t dt_text_cut(const dt_tokenizer *t, const char *text, size_t nbytes);

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/** The text of ids, as the tokenizer's decoder produces it: malloc'ed, with a 0 appended, always valid UTF-8 (U+FFFD
 *  for invalid bytes).
 *
 *  ids           in  [n]; unknown ids are allowed
 *  skip_special  omit special tokens (dt_tokenizer_is_special)
 *  nbytes        out  length without the 0
 *
 *  NULL: out of memory. */
char *dt_decode(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes);

/* ---- level tokens ------------------------------------------------------------------------------------------------ */

/** Length of the level token of a semantic ID (<a_17><b_203><c_5>) at the start of a text; 0: none. A level token is
 *  `<...>` without `<`, `>`, blank or control character inside. */
size_t dt_level_token_len(const char *text, size_t nbytes);

#endif
