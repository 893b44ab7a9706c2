/* tokenizer_corpus.h - documents of a formula, in many scripts: the same that make_tokenizer_fixtures.py made
 * expectations of. */
#ifndef TESTS_TOKENIZER_CORPUS_H
#define TESTS_TOKENIZER_CORPUS_H

#include "dtrain/core/core.h"
#include <string.h>

enum { DOCUMENT_MAX = 4 * 700 };

static const char *const corpus_words[] = {
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "hello",
    "world",
    "Hello",
    "WORLD",
    "don't",
    "I'll",
    "we've",
    "it's",
    "they're",
    "I'm",
    "he'd",
    "can't",
    "'S",
    "'LL",
    "I'Ve",
    "na\303\257ve",
    "cafe\314\201",
    "\303\274ber",
    "stra\303\237e",
    "\303\251lan",
    "S\303\243o",
    "a\303\261o",
    "A\314\212ngstro\314\210m",
    "\320\277\321\200\320\270\320\262\320\265\321\202",
    "\320\274\320\270\321\200",
    "\320\240\320\276\321\201\321\201\320\270\321\217",
    "\320\265\321\211\321\221",
    "\316\265\316\257\316\275\316\261\316\271",
    "\316\225\316\273\316\273\316\254\316\264\316\261",
    "\316\272\316\261\316\271",
    "\330\247\331\204\330\263\331\204\330\247\331\205",
    "\330\271\331\204\331\212\331\203\331\205",
    "\331\205\330\261\330\255\330\250\330\247",
    "\327\251\327\234\327\225\327\235",
    "\327\242\327\225\327\234\327\235",
    "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207",
    "\340\244\246\340\245\201\340\244\250\340\244\277\340\244\257\340\244\276",
    "\340\244\271\340\244\277\340\244\250\340\245\215\340\244\246\340\245\200",
    "\340\270\252\340\270\247\340\270\261\340\270\252\340\270\224\340\270\265",
    "\340\270\233\340\270\243\340\270\260\340\271\200\340\270\227\340\270\250\340\271\204\340\270\227\340\270\242",
    "\344\275\240\345\245\275",
    "\344\270\226\347\225\214",
    "\344\270\255\346\226\207",
    "\346\227\245\346\234\254\350\252\236",
    "\343\201\223\343\202\223\343\201\253\343\201\241\343\201\257",
    "\343\202\253\343\202\277\343\202\253\343\203\212",
    "\354\225\210\353\205\225\355\225\230\354\204\270\354\232\224",
    "\355\225\234\352\265\255\354\226\264",
    "int",
    "main(void)",
    "return",
    "x;",
    "printf(\"%d\\n\",",
    "i);",
    "#include",
    "<stdio.h>",
    "def",
    "f(x):",
    "self._value",
    "+=",
    "1",
    "==",
    "!=",
    "->",
    "//",
    "/*",
    "*/",
    "3.14159",
    "2024-01-31",
    "1,000,000",
    "0xFF",
    "12345678",
    "https://example.org/a?b=c&d=1#e",
    "user@example.com",
    "...",
    "---",
    "!!!",
    "?!",
    ":)",
    "<br/>",
    "{}",
    "[]",
    "()",
    "@#$%",
    "\360\237\230\200",
    "\360\237\221\250\342\200\215\360\237\221\251\342\200\215\360\237\221\247",
    "\360\237\207\251\360\237\207\252",
    "\342\235\244\357\270\217",
    "\360\237\221\215\360\237\217\275",
    "\357\254\201",
    "\302\262",
    "\302\275",
    "\342\205\247",
    "\342\204\242",
    "\342\204\253",
    "\342\204\246",
};
static const uint32_t corpus_ranges[][2] = {
    {0x20, 0x7e},       {0x20, 0x7e},       {0xa1, 0x2ff},    {0x300, 0x36f},   {0x391, 0x3c9},   {0x410, 0x44f},
    {0x5d0, 0x5ea},     {0x621, 0x64a},     {0x64b, 0x652},   {0x905, 0x939},   {0x93e, 0x94d},   {0xe01, 0xe3a},
    {0xe40, 0xe4e},     {0x1100, 0x1175},   {0x11a8, 0x11c2}, {0x1e00, 0x1eff}, {0x2000, 0x206f}, {0x20a0, 0x20b5},
    {0x2100, 0x214e},   {0x2190, 0x22ff},   {0x2500, 0x257f}, {0x3000, 0x303f}, {0x3041, 0x309f}, {0x30a0, 0x30ff},
    {0x4e00, 0x9fa5},   {0x4e00, 0x9fa5},   {0xac00, 0xd7a3}, {0xfb00, 0xfb06}, {0xff01, 0xff5e}, {0x1d400, 0x1d433},
    {0x1f300, 0x1f5ff}, {0x1f600, 0x1f64f}, {0x0, 0x1f},      {0x7f, 0xa0},
};
static const char *const corpus_special[] = {
    "<s>",    "</s>",   "<unk>", "<|endoftext|>", "<|im_start|>", "<|begin_of_text|>",
    "<mask>", "[INST]", "hello", "keep",          "x1",
};

static size_t corpus_put(uint32_t c, char *out)
{
    const int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) return *out = (char)c, 1;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(0xf00 >> n | c);
    return (size_t)n;
}

static size_t corpus_text(const char *text, char *out)
{
    memcpy(out, text, strlen(text));
    return strlen(text);
}

static size_t corpus_run(char c, uint64_t n, char *out)
{
    memset(out, c, n);
    return n;
}

/* One piece, chosen by a number. */
static size_t corpus_piece(uint64_t r, char *out)
{
    enum {
        N_WORDS = sizeof corpus_words / sizeof corpus_words[0],
        N_RANGES = sizeof corpus_ranges / sizeof corpus_ranges[0],
        N_SPECIAL = sizeof corpus_special / sizeof corpus_special[0]
    };
    static const uint64_t tens[] = {10, 100, 1000, 10000, 100000, 1000000, 10000000};
    const int kind = (int)(r % 16);
    r >>= 8;
    const uint32_t low = corpus_ranges[(r & 0xff) % N_RANGES][0],
                   span = corpus_ranges[(r & 0xff) % N_RANGES][1] - low + 1;
    size_t n = 0;
    switch (kind) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
        if (r & 1) n = corpus_run(' ', 1, out);
        return n + corpus_text(corpus_words[(r >> 1) % N_WORDS], out + n);
    case 6:
    case 7:
        return corpus_put(low + (uint32_t)((r >> 8) % span), out);
    case 8:
        return corpus_run(' ', 1 + r % 9, out);
    case 9:
        return corpus_run('\n', 1 + r % 3, out);
    case 10:
        return corpus_run('\t', 1 + r % 3, out);
    case 11:
        return (size_t)sprintf(out, "%llu", (unsigned long long)(r % tens[(r >> 20) % 7]));
    case 12:
        out[n++] = ' ';
        for (int i = 0; i < 3; i++) out[n++] = (char)('a' + (r >> 8 * i) % 26);
        return n;
    case 13:
        for (uint64_t i = 0; i < 1 + (r >> 8) % 8; i++)
            n += corpus_put(low + (uint32_t)((r >> (11 + 4 * i)) % span), out + n);
        return n;
    case 14:
        return corpus_run(".,;:!?-'\"/\r\n"[r % 12], 1, out);
    default:
        return corpus_text(r % 8 == 0 ? corpus_special[(r >> 8) % N_SPECIAL] : r % 8 == 1 ? "\r\n" : " \n", out);
    }
}

/* Document d, in out [DOCUMENT_MAX]; returns its bytes. */
static size_t corpus_document(uint64_t d, char *out)
{
    size_t n = 0, n_chars = 0;
    for (uint64_t k = d << 32; n_chars < 50 + d % 600; k++) {
        const size_t len = corpus_piece(dt_mix64(k), out + n);
        for (size_t i = n; i < n + len; i++) n_chars += (out[i] & 0xc0) != 0x80;
        n += len;
    }
    return n;
}

#endif
