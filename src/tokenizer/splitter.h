/* splitter.h - the pre-tokenizer: a text becomes the pieces that the model sees one by one. */
#ifndef DTRAIN_TEXT_SPLITTER_H
#define DTRAIN_TEXT_SPLITTER_H

#include "bpe.h"
#include "dtrain/text/utf8.h"
#include "normalizer.h"

typedef enum dt_split_kind {
    DT_SPLIT_PATTERN, /* by what an expression finds */
    DT_SPLIT_SPACES,  /* spaces are replaced, something is prepended */
    DT_SPLIT_MAP      /* bytes become the characters that stand for them */
} dt_split_kind;
typedef enum dt_split_behavior {
    DT_SPLIT_REMOVED,
    DT_SPLIT_ISOLATED,
    DT_SPLIT_WITH_PREVIOUS,
    DT_SPLIT_WITH_NEXT,
    DT_SPLIT_CONTIGUOUS
} dt_split_behavior;

/** Where a prefix is put: before every piece, only where the whole text begins, or nowhere. */
typedef enum dt_prefix_where { DT_PREFIX_ALWAYS, DT_PREFIX_FIRST, DT_PREFIX_NEVER } dt_prefix_where;

/** What a step does at a position where the text might be parted: not known, nothing that reaches across it, or always
 *  a split. */
typedef enum dt_split_there { DT_THERE_UNKNOWN, DT_THERE_LOCAL, DT_THERE_SPLIT } dt_split_there;

typedef struct dt_split_step {
    dt_split_kind kind;
    dt_regex *pattern;
    bool invert;
    dt_split_behavior behavior;
    bool replaces; /* spaces by prefix */
    char prefix[5];
    dt_prefix_where where;
    /* between a line's end and a letter, between a letter and a space that a letter follows */
    dt_split_there at_line, at_space;
} dt_split_step;

enum { DT_SPLIT_MAX = 32 };
typedef struct dt_splitter {
    dt_split_step step[DT_SPLIT_MAX];
    int n_steps;
    bool ends_with_bytes; /* the last step is a byte-level one, left to the model: what it sees is raw bytes */
} dt_splitter;

/** Read "pre_tokenizer"; none: no steps. DT_ERR_DATA, DT_ERR_MEMORY. Free it in any case. */
dt_err dt_splitter_read(dt_splitter *s, const dt_spec *root);
void dt_splitter_free(dt_splitter *s); /* safe on {0} */
/** Let the mapping of bytes be a step after all. */
dt_err dt_splitter_map_bytes(dt_splitter *s);

/** What a Metaspace, pre-tokenizer or decoder, says. */
dt_err dt_metaspace_read(const dt_spec *spec, char replacement[5], dt_prefix_where *where, bool *split);

/** Is it known what a step does with this expression at those positions? */
void dt_split_known(const char *pattern, dt_split_step *step);

/** Called for each piece, in order. */
typedef dt_err (*dt_piece_visit)(void *ctx, dt_segment *piece);
typedef struct dt_split_run {
    const dt_splitter *splitter;
    dt_matcher *matcher;
    dt_text *buffer; /* [DT_SPLIT_MAX] */
    bool goes_on;    /* a piece at_start is not given what belongs to the start of a text */
    dt_marks *marks;
    dt_piece_visit visit;
    void *ctx;
} dt_split_run;
/** All marks of the piece are passed in the end. DT_ERR_DATA (dt_regex_next), DT_ERR_MEMORY. */
dt_err dt_split(const dt_split_run *run, dt_segment *piece);

#endif
