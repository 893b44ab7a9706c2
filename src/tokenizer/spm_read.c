/* spm_read.c - reads a tokenizer.model: protocol buffers' wire format, and the fields of sentencepiece_model.proto.
 *
 * Source   SentencePiece, src/sentencepiece_model.proto; Protocol Buffers, "Encoding". */
#include "spm.h"
#include "dtrain/io/io.h"
#include "dtrain/text/utf8.h"

#include <math.h>
#include <stdlib.h>

/* Published files have at most 20 MB, and pieces of 16 characters; the limits bound the time to find merges. */
enum { MAX_FILE = 64 << 20, MAX_PIECE = 512 };

/* ---- wire format ------------------------------------------------------------------------------------------------- */

typedef struct message {
    const unsigned char *p, *end;
} message;

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };
typedef struct field {
    uint64_t number, value; /* value of a varint or a fixed32 */
    unsigned wire;
    dt_spm_text bytes;
} field;

static bool take_varint(message *m, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; m->p < m->end && shift < 64; shift += 7) {
        const unsigned char c = *m->p++;
        *value |= (uint64_t)(c & 127) << shift;
        if (c < 128) return true;
    }
    return false;
}

static bool take_bytes(message *m, uint64_t n, dt_spm_text *bytes)
{
    if (n > (uint64_t)(m->end - m->p)) return false;
    *bytes = (dt_spm_text){(const char *)m->p, (size_t)n};
    m->p += n;
    return true;
}

static bool take_field(message *m, field *f)
{
    uint64_t tag, n;
    if (!take_varint(m, &tag)) return false;
    *f = (field){.number = tag >> 3, .wire = tag & 7};
    switch (f->wire) {
    case VARINT:
        return take_varint(m, &f->value);
    case BYTES:
        return take_varint(m, &n) && take_bytes(m, n, &f->bytes);
    case FIXED64:
        return take_bytes(m, 8, &f->bytes);
    case FIXED32:
        if (!take_bytes(m, 4, &f->bytes)) return false;
        for (int i = 0; i < 4; i++) f->value |= (uint64_t)(unsigned char)f->bytes.bytes[i] << 8 * i;
        return true;
    default:
        return false;
    }
}

static message inside(const field *f)
{
    const unsigned char *p = (const unsigned char *)f->bytes.bytes;
    return (message){p, p + f->bytes.n};
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static dt_err damaged(const dt_spm *s, const message *m)
{
    return dt_fail(DT_ERR_DATA, "%s: expected a SentencePiece model, found an invalid field at byte %zu", s->file,
                   (size_t)(m->p - (const unsigned char *)s->bytes));
}

/* Pieces and names become C strings. */
static bool is_text(dt_spm_text t) { return !memchr(t.bytes, 0, t.n) && dt_utf8_valid(t.bytes, t.n) == t.n; }

static dt_err add_piece(dt_spm *s, const field *of)
{
    dt_spm_piece piece = {.type = DT_SPM_NORMAL};
    message m = inside(of);
    field f;
    while (m.p < m.end) {
        if (!take_field(&m, &f)) return damaged(s, &m);
        if (f.number == 1 && f.wire == BYTES) piece.text = f.bytes;
        if (f.number == 2 && f.wire == FIXED32) memcpy(&piece.score, &(uint32_t){(uint32_t)f.value}, sizeof(float));
        if (f.number == 3 && f.wire == VARINT) piece.type = (dt_spm_type)(f.value <= DT_SPM_BYTE ? f.value : 0);
    }
    const size_t n = piece.text.n;
    const bool valid = n > 0 && n <= MAX_PIECE && is_text(piece.text) && piece.type >= DT_SPM_NORMAL;
    DT_CHECK(
        valid && isfinite(piece.score), DT_ERR_DATA,
        "%s: piece %d: expected 1 to %d bytes of UTF-8, a finite score and a type from 1 to 6, found another value",
        s->file, (int)s->n_pieces, MAX_PIECE);
    DT_CHECK(s->n_pieces <= DT_VOCAB_MAX_ID, DT_ERR_DATA, "%s: expected at most %d pieces, found more", s->file,
             DT_VOCAB_MAX_ID + 1);
    DT_GROW(s->piece, s->n_pieces, "%s: out of memory for its pieces", s->file);
    s->piece[s->n_pieces++] = piece;
    return DT_OK;
}

/* A negative id, such as -1 for none, is a varint of 64 bits. */
static int32_t as_id(uint64_t value) { return value <= (uint64_t)DT_VOCAB_MAX_ID ? (int32_t)value : -1; }

static dt_err read_trainer(dt_spm *s, const field *of)
{
    message m = inside(of);
    field f;
    while (m.p < m.end) {
        if (!take_field(&m, &f)) return damaged(s, &m);
        if (f.wire == VARINT && f.number == 3) s->model_type = as_id(f.value);
        if (f.wire == VARINT && f.number == 24) s->suffix = f.value;
        if (f.wire == VARINT && f.number == 35) s->byte_fallback = f.value;
        if (f.wire == VARINT && f.number == 40) s->unk_id = as_id(f.value);
        if (f.wire == VARINT && f.number == 41) s->bos_id = as_id(f.value);
        if (f.wire == VARINT && f.number == 42) s->eos_id = as_id(f.value);
        if (f.wire == BYTES && f.number == 45) s->unk = f.bytes;
        if (f.wire == BYTES && f.number == 46) s->bos = f.bytes;
        if (f.wire == BYTES && f.number == 47) s->eos = f.bytes;
    }
    return DT_OK;
}

static dt_err read_normalizer(dt_spm *s, const field *of)
{
    message m = inside(of);
    field f;
    while (m.p < m.end) {
        if (!take_field(&m, &f)) return damaged(s, &m);
        if (f.wire == BYTES && f.number == 2) s->charsmap = f.bytes;
        if (f.wire == VARINT && f.number == 3) s->prefix = f.value;
        if (f.wire == VARINT && f.number == 4) s->trims = f.value;
        if (f.wire == VARINT && f.number == 5) s->escapes = f.value;
    }
    return DT_OK;
}

/* Lines of a token in base64, a space and its rank. */
static bool is_tiktoken(const char *bytes, size_t n)
{
    size_t i = 0, digits;
    while (i < n && i < 64 && bytes[i] &&
           strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=", bytes[i]))
        i++;
    if (i == 0 || i >= n || bytes[i++] != ' ') return false;
    for (digits = i; digits < n && bytes[digits] >= '0' && bytes[digits] <= '9';) digits++;
    return digits > i && digits < n && (bytes[digits] == '\n' || bytes[digits] == '\r');
}

static dt_err check_name(const dt_spm *s, const char *key, const dt_spm_text *t)
{
    DT_CHECK(is_text(*t), DT_ERR_DATA, "%s: %s: expected UTF-8, found other bytes", s->file, key);
    return DT_OK;
}

static dt_err check(const dt_spm *s)
{
    DT_CHECK(s->n_pieces > 0, DT_ERR_DATA, "%s: expected a SentencePiece model, found no pieces", s->file);
    DT_CHECK(s->model_type == DT_SPM_UNIGRAM || s->model_type == DT_SPM_BPE, DT_ERR_DATA,
             "%s: model_type: expected 1 (unigram) or 2 (BPE), found %d", s->file, (int)s->model_type);
    DT_CHECK(!s->suffix, DT_ERR_DATA, "%s: treat_whitespace_as_suffix: expected false, found true", s->file);
    DT_CHECK(s->unk_id >= 0 && s->unk_id < s->n_pieces, DT_ERR_DATA,
             "%s: unk_id: expected the id of one of %d pieces, found %d", s->file, (int)s->n_pieces, (int)s->unk_id);
    DT_TRY(check_name(s, "unk_piece", &s->unk));
    DT_TRY(check_name(s, "bos_piece", &s->bos));
    return check_name(s, "eos_piece", &s->eos);
}

dt_err dt_spm_read(dt_spm *s, const char *file)
{
    size_t nbytes;
    field f;
    *s = (dt_spm){.file = file,
                  .model_type = DT_SPM_UNIGRAM,
                  .bos_id = 1,
                  .eos_id = 2,
                  .unk = {"<unk>", 5},
                  .bos = {"<s>", 3},
                  .eos = {"</s>", 4},
                  .prefix = true,
                  .trims = true,
                  .escapes = true};
    DT_TRY(dt_read_file(file, MAX_FILE, &s->bytes, &nbytes));
    DT_TRY(dt_refuse_stand_in(file, s->bytes, nbytes));
    DT_CHECK(!is_tiktoken(s->bytes, nbytes), DT_ERR_DATA,
             "%s: expected a SentencePiece model, found ranks of tiktoken, which are not read; save a tokenizer.json "
             "there (docs/data.md)",
             file);
    message m = {(const unsigned char *)s->bytes, (const unsigned char *)s->bytes + nbytes};
    while (m.p < m.end) {
        if (!take_field(&m, &f)) return damaged(s, &m);
        if (f.wire != BYTES) continue;
        if (f.number == 1) DT_TRY(add_piece(s, &f));
        if (f.number == 2) DT_TRY(read_trainer(s, &f));
        if (f.number == 3) DT_TRY(read_normalizer(s, &f));
    }
    return check(s);
}

void dt_spm_free(dt_spm *s)
{
    free(s->bytes);
    free(s->piece);
    *s = (dt_spm){0};
}
