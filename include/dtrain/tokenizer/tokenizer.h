/* tokenizer.h - text to token ids and back. algorithms.md A.2.
 *
 * A tokenizer is read once and never changes: any number of threads may share it. What encoding needs besides (caches,
 * match data) is an encoder, one a thread. Every text is bytes. What is not UTF-8 in it is encoded as its replacement
 * (dt_utf8_repair), but by "bytes", which keeps it: the reference for all others, Hugging Face's tokenizers, is given
 * valid text only. */
#ifndef DTRAIN_TOKENIZER_H
#define DTRAIN_TOKENIZER_H

#include "dtrain/core/core.h"

typedef struct dt_tokenizer dt_tokenizer;

/** "bytes": ids 0..255 are bytes, 256 is the end of text. Else a tokenizer.json with a BPE model, or a directory that
 *  holds one. Beside it may stand tokenizer_config.json and special_tokens_map.json, which say what bos, eos and pad
 *  are and whether they are put around texts, and chat_template.jinja. "truncation" and "padding" of a tokenizer.json
 *  are ignored: callers truncate. Local. DT_ERR_USAGE: there is no such file; DT_ERR_DATA naming file, key and value:
 *  not valid, or a kind of tokenizer that is not supported. */
dt_err dt_tokenizer_open(dt_tokenizer **t, const char *name);
void dt_tokenizer_close(dt_tokenizer *t); /* safe on NULL */

/** Bytes of the tables that grow with its file: tokens, merges, added tokens. What it has besides does not. */
size_t dt_tokenizer_nbytes(const dt_tokenizer *t); /* 0 for NULL */

typedef struct dt_tokenizer_info {
    const char *name;      /* what datasets made with it carry: "bytes", or a hash of the file's contents */
    const char *directory; /* where its files are; NULL for those built in */
    /* the chat template as written in a file of the directory, and that file's name; NULL: there is none, or there are
     * only some with names of their own, which chat_template_names lists */
    const char *chat_template, *chat_template_file, *chat_template_names;
    const struct json_t *named; /* what a chat template sees of them: {"bos_token": "<s>", ...}; NULL: nothing */
    int32_t vocab_size;         /* largest id + 1 */
    int32_t n_own; /* ids below are the tokenizer's own; at most vocab_size: others are special tokens of which files
                    * have a name alone, and of which a model may have no row */
    int32_t bos, eos, pad; /* -1: there is none. pad: the one named, else a reserved one, else eos */
} dt_tokenizer_info;
const dt_tokenizer_info *dt_tokenizer_get_info(const dt_tokenizer *t); /* lives as long as t */

/** Is the id one that decoding leaves out when special tokens are not wanted? Also true of ids that the tokenizer does
 *  not know. */
bool dt_tokenizer_is_special(const dt_tokenizer *t, int32_t id);
/** The token as the vocabulary writes it, NULL for an unknown id; and the id of a token written so, -1 for an unknown
 *  one. */
const char *dt_tokenizer_token(const dt_tokenizer *t, int32_t id);
int32_t dt_tokenizer_find(const dt_tokenizer *t, const char *token);
/** The i-th added token, which is looked for in a text before anything else; 0 <= i < dt_tokenizer_n_added. text lives
 *  as long as t. */
typedef struct dt_added_form {
    const char *text;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
} dt_added_form;
int dt_tokenizer_n_added(const dt_tokenizer *t);
dt_added_form dt_tokenizer_added(const dt_tokenizer *t, int i);
/** Bytes that an id stands for in running text (perhaps a piece of a character); none for special and unknown tokens.
 *  Lives as long as t. */
const char *dt_tokenizer_bytes(const dt_tokenizer *t, int32_t id, size_t *nbytes);

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

typedef struct dt_ids {
    int32_t *id; /* malloc'ed; the caller frees */
    size_t n, n_alloc;
} dt_ids;
/** Room for n_more ids behind the n there are. DT_ERR_MEMORY. */
dt_err dt_ids_reserve(dt_ids *ids, size_t n_more);

/** A piece of a text, or a token that stands between pieces. */
typedef struct dt_span {
    const char *text; /* NULL: the token id */
    size_t nbytes;
    int32_t id;
} dt_span;

typedef struct dt_encoder dt_encoder;
dt_err dt_encoder_open(dt_encoder **e, const dt_tokenizer *t); /* borrows t. DT_ERR_MEMORY */
void dt_encoder_close(dt_encoder *e);                          /* safe on NULL */
/** Bytes of its cache. What it has besides grows with the longest text. */
size_t dt_encoder_nbytes(const dt_encoder *e); /* 0 for NULL */

enum {
    DT_ENCODE_WRAP = 1, /* with what the tokenizer puts around a text: BOS, EOS */
    DT_ENCODE_GOES_ON =
        /* the spans go on with a text that was cut (dt_text_cut): nothing is done that belongs to the start of a
         * text */
    2,
    DT_ENCODE_MORE = 4, /* the text goes on in another call: nothing is put behind it */
};
/** Append the ids of the text that the spans make together, as if it were one. ends, when not NULL, [n_spans]: ids->n
 *  at the end of each span, or -1 when a token reaches across that end into the next span. Special tokens written in
 *  the text are recognised. DT_ERR_MEMORY, DT_ERR_DATA (a limit of the expression library was met; says which
 *  bytes). */
dt_err dt_encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends);

/** Where a long text may be cut so that its parts, encoded one by one (all but the first with DT_ENCODE_GOES_ON, all
 *  but the last with DT_ENCODE_MORE), have the ids of the whole: the largest such place up to nbytes that this
 *  tokenizer is known to keep apart (behind a line's end and before a letter, or before a space between two letters);
 *  where there is none, the end of the last whole character: the ids may then differ from the whole's around that
 *  place. At least 1 for nbytes > 0. */
size_t dt_text_cut(const dt_tokenizer *t, const char *text, size_t nbytes);

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/** The text of ids, malloc'ed with a 0 behind it, always valid UTF-8 (U+FFFD where bytes are none), as the tokenizer's
 *  decoder makes it. NULL: out of memory. */
char *dt_decode(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes);

/* ---- level tokens ------------------------------------------------------------------------------------------------ */

/** Length of the level token of a semantic ID (<a_17><b_203><c_5>) that text begins with, 0: it begins with none.
 *  `<...>` with no `<`, `>`, blank or control character inside. */
size_t dt_level_token_len(const char *text, size_t nbytes);

#endif
