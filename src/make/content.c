/* content.c - detects inputs that are not text. Any bytes can be trained on, so wrong files must be
 * recognised by content. */
#include "input.h"
#include "dtrain/io/io.h"
#include "dtrain/text/utf8.h"
#include <ctype.h>
#include <string.h>

typedef struct known_content {
    const char *name, *magic;
    size_t len;
    const char *next_step;
} known_content;

#define UNPACK "pass its contents on standard input: "
#define KNOWN(name, magic, next_step)                                                                                  \
    {                                                                                                                  \
        name, magic, sizeof magic - 1, next_step                                                                       \
    }

static const known_content known[] = {
    KNOWN("a Parquet file", "PAR1", "pass it by name as a file of records, because it cannot be read from a pipe"),
    KNOWN("an Arrow file", "ARROW1",
          "convert it to JSON lines: datasets.load_from_disk(FOLDER).to_json(\"FILE.jsonl\") in Python"),
    KNOWN("compressed with gzip", "\x1f\x8b", UNPACK "gzip -dc FILE | dtrain-data ... -, for JSON with --format json"),
    KNOWN("compressed with zstd", "\x28\xb5\x2f\xfd",
          UNPACK "zstd -dc FILE | dtrain-data ... -, for JSON with --format json"),
    KNOWN("compressed with xz",
          "\xfd"
          "7zXZ",
          UNPACK "xz -dc FILE | dtrain-data ... -, for JSON with --format json"),
    KNOWN("compressed with bzip2", "BZh", UNPACK "bzip2 -dc FILE | dtrain-data ... -, for JSON with --format json"),
    KNOWN("an HDF5 file", "\x89HDF\r\n\x1a\n",
          "datasets made by dtrain-data are ready for training: pass it as data.train"),
    KNOWN("a zip archive", "PK\x03\x04", "unpack it and pass the text files in it"),
    KNOWN("a PDF document", "%PDF-", "convert it to text first, for instance with pdftotext"),
    KNOWN("UTF-16 text", "\xff\xfe", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    KNOWN("UTF-16 text", "\xfe\xff", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
};

static dt_err refuse_known(const dt_input *in, const char *text, size_t n)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        DT_CHECK(n < known[i].len || memcmp(text, known[i].magic, known[i].len) != 0, DT_ERR_DATA,
                 "%s: expected text or JSON, found %s; %s", in->path, known[i].name, known[i].next_step);
    return DT_OK;
}

/* In text of a single-byte character set, some words are invalid UTF-8. In a binary file, most bytes are. */
static dt_err refuse_binary(const dt_input *in, const char *text, size_t n)
{
    enum { MIN_NBYTES = 16 }; /* fewer bytes are inconclusive */
    size_t n_bad = 0;
    DT_CHECK(
        !memchr(text, '\0', n), DT_ERR_DATA,
        "%s: expected text, found a binary file (a zero byte among the first %zu); --format text reads it unchanged",
        in->path, n);
    for (size_t at = 0; at < n;) {
        const size_t valid = dt_utf8_valid(text + at, n - at);
        at += valid;
        n_bad += at < n;
        at += at < n;
    }
    DT_CHECK(n < MIN_NBYTES || n_bad * 10 < n * 3, DT_ERR_DATA,
             "%s: expected UTF-8 text, found %zu invalid bytes among the first %zu: a binary file, or another "
             "character set (convert it: iconv -f CP1251 -t UTF-8 FILE); --format text reads it unchanged",
             in->path, n_bad, n);
    return DT_OK;
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && isspace((unsigned char)*p)) p++;
    return p;
}

/* Matches {"key":, or an array of such objects. */
static bool looks_like_records(const char *p, const char *end)
{
    p = skip_blanks(p, end);
    if (p < end && *p == '[') p = skip_blanks(p + 1, end);
    if (p == end || *p != '{') return false;
    p = skip_blanks(p + 1, end);
    if (p == end || *p != '"') return false;
    for (p++; p < end && *p != '"' && *p != '\n'; p++) p += *p == '\\';
    if (p >= end || *p != '"') return false;
    p = skip_blanks(p + 1, end);
    return p < end && *p == ':';
}

dt_err dt_input_check_content(dt_input *in, bool json, bool automatic)
{
    const char *text = in->buffer + in->at;
    const size_t n = in->end - in->at;
    if (!json && !automatic) return DT_OK; /* --format text */
    DT_TRY(refuse_known(in, text, n));
    DT_TRY(refuse_binary(in, text, n));
    if (json) return DT_OK;
    DT_CHECK(!looks_like_records(text, text + n), DT_ERR_DATA,
             "%s: the file looks like JSON lines: add --format json (or --format text to train on the JSON itself)",
             in->path);
    DT_CHECK(!dt_has_ending(in->path, ".csv") && !dt_has_ending(in->path, ".tsv"), DT_ERR_DATA,
             "%s: the file looks like a table: --format minionerec reads recommendation data; convert other tables to "
             "JSON lines, python3 -c 'import pandas as p, sys; p.read_csv(sys.argv[1]).to_json(sys.argv[2], "
             "orient=\"records\", lines=True)' FILE.csv FILE.jsonl (or --format text to train on the table itself)",
             in->path);
    return DT_OK;
}
