/* byte_tokenizer.c - the byte tokenizer, which needs no file: ids 0..255 are bytes, 256 is the end of text. */
#include "tokenizer_ops.h"
#include "dtrain/text/utf8.h"

#include <string.h>

static const char eos_token[] = "<|endoftext|>";
enum { EOS = 256 };

static bool is_special(const dt_tokenizer *t, int32_t id) { return id < 0 || id >= EOS; }

static const char *bytes_of(const dt_tokenizer *t, int32_t id, size_t *nbytes)
{
#define ROW(x)                                                                                                         \
    (x) + 0, (x) + 1, (x) + 2, (x) + 3, (x) + 4, (x) + 5, (x) + 6, (x) + 7, (x) + 8, (x) + 9, (x) + 10, (x) + 11,      \
        (x) + 12, (x) + 13, (x) + 14, (x) + 15
    static const unsigned char all[256] = {ROW(0x00), ROW(0x10), ROW(0x20), ROW(0x30), ROW(0x40), ROW(0x50),
                                           ROW(0x60), ROW(0x70), ROW(0x80), ROW(0x90), ROW(0xa0), ROW(0xb0),
                                           ROW(0xc0), ROW(0xd0), ROW(0xe0), ROW(0xf0)};
#undef ROW
    *nbytes = id >= 0 && id < EOS;
    return *nbytes ? (const char *)&all[id] : "";
}

static const char *token(const dt_tokenizer *t, int32_t id) { return id == EOS ? eos_token : NULL; }

static int32_t find(const dt_tokenizer *t, const char *text)
{
    if (strcmp(text, eos_token) == 0) return EOS;
    return text[0] && !text[1] ? (unsigned char)text[0] : -1;
}

static dt_err encode(dt_encoder *e, const dt_span *spans, int n_spans, unsigned flags, dt_ids *ids, int64_t *ends)
{
    for (int s = 0; s < n_spans; s++) {
        DT_TRY(dt_ids_reserve(ids, spans[s].text ? spans[s].nbytes : 1));
        int32_t *out = ids->id + ids->n;
        if (spans[s].text)
            for (size_t i = 0; i < spans[s].nbytes; i++) out[i] = (unsigned char)spans[s].text[i];
        else
            *out = spans[s].id;
        ids->n += spans[s].text ? spans[s].nbytes : 1;
        if (ends) ends[s] = (int64_t)ids->n;
    }
    return DT_OK;
}

static size_t cut(const dt_tokenizer *t, const char *text, size_t nbytes) { return nbytes; }

static char *decode(const dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, size_t *nbytes)
{
    dt_text raw = {0};
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = bytes_of(t, ids[i], &len);
        dt_text_append(&raw, bytes, len);
        if (!skip_special && ids[i] == EOS) dt_text_append(&raw, eos_token, sizeof eos_token - 1);
    }
    return dt_text_repaired(&raw, nbytes);
}

static const dt_tokenizer_ops bytes_ops = {.is_special = is_special,
                                           .token = token,
                                           .find = find,
                                           .bytes = bytes_of,
                                           .encode = encode,
                                           .cut = cut,
                                           .decode = decode};

void dt_tokenizer_open_bytes(dt_tokenizer *t)
{
    t->ops = &bytes_ops;
    t->info =
        (dt_tokenizer_info){.name = "bytes", .vocab_size = EOS + 1, .n_own = EOS + 1, .bos = -1, .eos = EOS, .pad = -1};
}
