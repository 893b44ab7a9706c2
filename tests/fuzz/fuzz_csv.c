/* fuzz_csv.c - any bytes as a header and a row of a table, and as a list as Python writes it: a JSON object with a
 * value for each column, a list that says the same when every character of it is an escape, or an error with a
 * reason. */
#include "../../src/make/csv_reader.h"
#include "dtrain/make/rec_files.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "dtrain/text/utf8.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

/* Accepted, or refused for an error in the text. */
static bool done(dt_err err)
{
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    dt_error_clear();
    return err == DT_OK;
}

/* Every byte of texts in ASCII, every character of others, as an escape of eight digits. */
static char *escaped(const json_t *list)
{
    char *text;
    size_t n, i;
    json_t *one;
    FILE *f = open_memstream(&text, &n);
    putc('[', f);
    json_array_foreach(list, i, one)
    {
        putc('"', f);
        const unsigned char *p = (const unsigned char *)json_string_value(one);
        while (*p) {
            const int len = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
            uint32_t c = len == 1 ? *p : *p & (0x7fu >> len);
            for (int k = 1; k < len; k++) c = c << 6 | (p[k] & 0x3f);
            fprintf(f, "\\U%08x", c);
            p += len;
        }
        fputs("\",", f);
    }
    fputs("]", f);
    fclose(f);
    return text;
}

static void check_list(const char *text, size_t n)
{
    json_t *list, *again;
    if (!done(dt_python_list(&list, text, n))) return;
    char *same = escaped(list);
    must(done(dt_python_list(&again, same, strlen(same))) && json_equal(list, again));
    free(same);
    json_decref(again);
    json_decref(list);
}

static void check_row(const char *text, size_t n)
{
    json_t *names, *row;
    const char *newline = memchr(text, '\n', n);
    const size_t n_header = newline ? (size_t)(newline - text) + 1 : n;
    if (done(dt_csv_header_parse(&names, text, n_header)) &&
        done(dt_csv_row(&row, names, text + n_header, n - n_header))) {
        must(json_object_size(row) == json_array_size(names));
        json_decref(row);
    }
    json_decref(names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size ? size : 1); /* its own: reading past it shows */
    if (size) memcpy(text, data, size);
    if (dt_utf8_valid(text, size) == size) check_list(text, size); /* as rows promise it */
    check_row(text, size);
    free(text);
    return 0;
}
