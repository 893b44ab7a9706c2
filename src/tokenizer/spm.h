/* spm.h - a tokenizer.model of SentencePiece, read as the tokenizer.json that AutoTokenizer of transformers 5 makes of
 * it. */
#ifndef DTRAIN_TEXT_SPM_H
#define DTRAIN_TEXT_SPM_H

#include "auto.h"

typedef enum dt_spm_type {
    DT_SPM_NORMAL = 1,
    DT_SPM_UNKNOWN,
    DT_SPM_CONTROL,
    DT_SPM_USER_DEFINED,
    DT_SPM_UNUSED,
    DT_SPM_BYTE
} dt_spm_type;
enum { DT_SPM_UNIGRAM = 1, DT_SPM_BPE = 2 };

/** Bytes of the file. */
typedef struct dt_spm_text {
    const char *bytes;
    size_t n;
} dt_spm_text;
typedef struct dt_spm_piece {
    dt_spm_text text;
    float score;
    dt_spm_type type;
} dt_spm_piece;

/** A ModelProto (sentencepiece_model.proto), the fields that determine ids. */
typedef struct dt_spm {
    const char *file;
    char *bytes;
    dt_spm_piece *piece; /* [n_pieces]; ids are indices */
    int32_t n_pieces;
    int32_t model_type, unk_id, bos_id, eos_id;
    dt_spm_text unk, bos, eos; /* names of the tokens */
    dt_spm_text charsmap;      /* precompiled; empty: none */
    bool byte_fallback, suffix, prefix, trims, escapes;
} dt_spm;

/** Read and check a file; file is borrowed. DT_ERR_DATA, DT_ERR_MEMORY. Must be freed, also after an error. */
dt_err dt_spm_read(dt_spm *s, const char *file);
void dt_spm_free(dt_spm *s); /* safe on {0} */

/** The tokenizer.json with the same ids. text: out, malloc'ed. f: the files next to it, which determine the class; its
 *  tokenizer_config.json is replaced by one with all added tokens, which belongs to the text. DT_ERR_DATA: also a class
 *  that is not made from such a file. DT_ERR_MEMORY. */
dt_err dt_spm_to_json(dt_auto_files *f, const char *file, char **text, size_t *nbytes);

#endif
