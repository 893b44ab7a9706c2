/* splitter.h - the pre-tokenizer: splits a text into pieces, which the model encodes separately. */
#ifndef DTRAIN_TEXT_SPLITTER_H
#define DTRAIN_TEXT_SPLITTER_H

#include "bpe.h"
#include "dtrain/text/utf8.h"
#include "normalizer.h"

typedef enum dt_split_kind {
    DT_SPLIT_PATTERN, /* by matches of an expression */
    DT_SPLIT_SPACES,  /* replace spaces, prepend a prefix */
    DT_SPLIT_MAP      /* map bytes to characters */
} dt_split_kind;
typedef enum dt_split_behavior {
    DT_SPLIT_REMOVED,
    DT_SPLIT_ISOLATED,
    DT_SPLIT_WITH_PREVIOUS,
    DT_SPLIT_WITH_NEXT,
    DT_SPLIT_CONTIGUOUS
} dt_split_behavior;

/** Where a prefix is added: to every piece, only at the start of the whole text, or never. */
typedef enum dt_prefix_where { DT_PREFIX_ALWAYS, DT_PREFIX_FIRST, DT_PREFIX_NEVER } dt_prefix_where;

/** Effect of a step at a candidate cut position: unknown, no match spans it, or always a split. */
typedef enum dt_split_there { DT_THERE_UNKNOWN, DT_THERE_LOCAL, DT_THERE_SPLIT } dt_split_there;

typedef struct dt_split_step {
    dt_split_kind kind;
    dt_regex *pattern;
    bool invert;
    dt_split_behavior behavior;
    bool replaces; /* replace spaces by prefix */
    char prefix[5];
    dt_prefix_where where;
    /* between a newline and a letter; between a letter and a space that is followed by a letter */
    dt_split_there at_line, at_space;
} dt_split_step;

enum { DT_SPLIT_MAX = 32 };
typedef struct dt_splitter {
    dt_split_step step[DT_SPLIT_MAX];
    int n_steps;
    bool ends_with_bytes; /* the last step maps bytes and is left to the model, which receives raw bytes */
} dt_splitter;

/** Read "pre_tokenizer"; missing: no steps. DT_ERR_DATA, DT_ERR_MEMORY. Must be freed, also after an error. */
dt_err dt_splitter_read(dt_splitter *s, const dt_spec *root);
void dt_splitter_free(dt_splitter *s); /* safe on {0} */
/** Insert the mapping of bytes as a regular step. */
dt_err dt_splitter_map_bytes(dt_splitter *s);

/** Fields of a Metaspace pre-tokenizer or decoder. */
dt_err dt_metaspace_read(const dt_spec *spec, char replacement[5], dt_prefix_where *where, bool *split);

/* Expressions of model families: words with their letters, then numbers and signs, and white space. */
#define DT_SPLIT_WORDS(letters, more) "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" more
#define DT_SPLIT_SPACE "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DT_SPLIT_QWEN2 DT_SPLIT_WORDS("\\p{L}", "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*") DT_SPLIT_SPACE
#define DT_SPLIT_QWEN3_5 DT_SPLIT_WORDS("[\\p{L}\\p{M}]", "\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*") DT_SPLIT_SPACE

/** Called for each piece, in order. */
typedef dt_err (*dt_piece_visit)(void *ctx, dt_segment *piece);
typedef struct dt_split_run {
    const dt_splitter *splitter;
    dt_matcher *matcher;
    dt_text *buffer; /* [DT_SPLIT_MAX] */
    bool goes_on;    /* a segment at_start continues a text: skip steps for its start */
    dt_marks *marks;
    dt_piece_visit visit;
    void *ctx;
} dt_split_run;
/** On return all marks of the segment are resolved. DT_ERR_DATA (dt_regex_next), DT_ERR_MEMORY. */
dt_err dt_split(const dt_split_run *run, dt_segment *piece);

#endif
