/* fuzz_tokenizer.c - any bytes as a tokenizer.json or a tokenizer.model, and any text: an error, or ids that are known,
 * that are the same for the text as a whole, as spans and in parts, and that decode to UTF-8.
 *
 * The text follows a zero byte; without one it is the file itself. A file that begins with the tag of a piece, a line
 * end, is a tokenizer.model, and the text. */
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { MAX_TEXT = 2000 };

static void must(bool holds)
{
    if (!holds) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    setenv("DTRAIN_LOG", "error", 0);
    dt_log_open(0, 1, "fuzz");
    return 0;
}

static void ids_decode(const dt_tokenizer *t, const dt_ids *ids)
{
    size_t n, n_valid;
    char *text = dt_decode(t, ids->id, (int64_t)ids->n, true, &n);
    if (!text) return; /* a limit of an expression */
    char *valid = dt_utf8_repair(text, n, &n_valid);
    must(valid && n == n_valid && memcmp(text, valid, n) == 0);
    free(valid);
    free(text);
}

/* In two parts, where a place is known that keeps them apart (else the cut is at the end). */
static void cut_in_two(const dt_tokenizer *t, dt_encoder *e, const char *text, size_t n, const dt_ids *whole)
{
    dt_ids parts = {0};
    const size_t cut = dt_text_cut(t, text, n);
    const dt_span first = {.text = text, .nbytes = cut}, second = {.text = text + cut, .nbytes = n - cut};
    must(cut <= n && (cut > 0 || n == 0));
    if (cut + 4 <= n && dt_encode(e, &first, 1, DT_ENCODE_WRAP | DT_ENCODE_MORE, &parts, NULL) == DT_OK &&
        dt_encode(e, &second, 1, DT_ENCODE_WRAP | DT_ENCODE_GOES_ON, &parts, NULL) == DT_OK)
        must(whole->n == parts.n && (parts.n == 0 || memcmp(whole->id, parts.id, parts.n * sizeof *parts.id) == 0));
    free(parts.id);
}

/* Whole, as three spans, and in two parts. */
static void encode(const dt_tokenizer *t, dt_encoder *e, const char *text, size_t n)
{
    dt_ids whole = {0}, parts = {0};
    int64_t ends[3];
    const size_t a = n / 3, b = n / 2;
    const dt_span one = {.text = text, .nbytes = n};
    const dt_span three[] = {
        {.text = text, .nbytes = a}, {.text = text + a, .nbytes = b - a}, {.text = text + b, .nbytes = n - b}};
    if (dt_encode(e, &one, 1, DT_ENCODE_WRAP, &whole, NULL) == DT_OK &&
        dt_encode(e, three, 3, DT_ENCODE_WRAP, &parts, ends) == DT_OK) {
        must(whole.n == parts.n && (whole.n == 0 || memcmp(whole.id, parts.id, whole.n * sizeof *whole.id) == 0));
        for (int i = 0; i < 3; i++) must(ends[i] >= -1 && ends[i] <= (int64_t)parts.n);
        for (size_t i = 0; i < whole.n; i++) must(dt_tokenizer_token(t, whole.id[i]) != NULL);
        ids_decode(t, &whole);
        cut_in_two(t, e, text, n, &whole);
    }
    free(whole.id);
    free(parts.id);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64] = "/dev/shm/dtrain-fuzz-XXXXXX.model";
    const bool model = size > 0 && data[0] == '\n';
    const int n_suffix = model ? 6 : 0;
    const uint8_t *zero = model ? NULL : memchr(data, 0, size);
    const size_t n_file = zero ? (size_t)(zero - data) : size;
    const char *text = (const char *)(zero ? zero + 1 : data);
    const size_t rest = zero ? size - n_file - 1 : size, n_text = rest < MAX_TEXT ? rest : MAX_TEXT;
    if (!model) *strrchr(path, '.') = 0;
    int fd = mkstemps(path, n_suffix);
    if (fd < 0) {
        strcpy(path, model ? "/tmp/dtrain-fuzz-XXXXXX.model" : "/tmp/dtrain-fuzz-XXXXXX");
        fd = mkstemps(path, n_suffix);
    }
    must(fd >= 0 && write(fd, data, n_file) == (ssize_t)n_file);
    dt_tokenizer *t;
    dt_encoder *e;
    dt_error_clear();
    if (dt_tokenizer_open(&t, path) == DT_OK) {
        const dt_tokenizer_info *i = dt_tokenizer_get_info(t);
        must(i->vocab_size > 0 && i->bos < i->vocab_size && i->eos < i->vocab_size && i->pad < i->vocab_size);
        if (dt_encoder_open(&e, t) == DT_OK) encode(t, e, text, n_text);
        dt_encoder_close(e);
        dt_tokenizer_close(t);
    } else {
        must(dt_error_message()[0] != 0);
    }
    close(fd);
    unlink(path);
    dt_error_clear();
    return 0;
}
