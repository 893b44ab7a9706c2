/* bench_text.c - megabytes of text encoded and decoded per second of one core's time, compared with Hugging Face's
 *     tokenizers.
 *
 *     bench_text [DIRECTORY...]      tokenizers; without any, the small ones of tests/data/tokenizer
 *
 * TEXT=FILE is the prose (else README.md and docs/); "mixed" are the documents of the tests, of many scripts.
 * PYTHON=... names a Python that has tokenizers. Parts of about 64 KB, as dtrain-data takes them; the best of
 * several rounds. */
#include "dtrain/tokenizer/tokenizer.h"
#include "tokenizer_corpus.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PART = 64 << 10, MAX_TEXT = 8 << 20, N_ROUNDS = 5 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct body {
    const char *name;
    char *text;
    size_t n;
    char path[64]; /* for the peer */
} body;

static void append_file(body *b, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return;
    b->n += fread(b->text + b->n, 1, MAX_TEXT - b->n, f);
    fclose(f);
}

static void save(body *b)
{
    strcpy(b->path, "/tmp/dtrain-bench-XXXXXX");
    const int fd = mkstemp(b->path);
    b->n -= b->n - (size_t)(strrchr(b->text, '\n') + 1 - b->text);
    if (fd < 0 || write(fd, b->text, b->n) != (ssize_t)b->n) exit(1);
    close(fd);
}

static dt_err encode_all(const dt_tokenizer *t, dt_encoder *e, const body *b, dt_ids *ids)
{
    ids->n = 0;
    for (size_t at = 0, n; at < b->n; at += n) {
        n = b->n - at <= PART ? b->n - at : dt_text_cut(t, b->text + at, PART);
        const dt_span span = {.text = b->text + at, .nbytes = n};
        DT_TRY(dt_encode(e, &span, 1, at ? DT_ENCODE_GOES_ON : 0, ids, NULL));
    }
    return DT_OK;
}

/* The same text by lines, through its batch call limited to one thread. */
static double peer(const char *directory, const body *b)
{
    char command[1024];
    const char *python = getenv("PYTHON");
    double rate = 0;
    if (!python) return 0;
    snprintf(command, sizeof command,
             "RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false %s -c \"\n"
             "import sys, time; from tokenizers import Tokenizer\n"
             "t = Tokenizer.from_file('%s/tokenizer.json'); s = open('%s', encoding='utf8', errors='replace', "
             "newline='').read(); p = s.splitlines(True)\n"
             "p = [''.join(p[i:i+500]) for i in range(0, len(p), 500)]; n = len(s.encode()); best = 1e9\n"
             "for _ in range(3):\n"
             "    a = time.process_time(); [t.encode(x, add_special_tokens=False) for x in p]; best = min(best, "
             "time.process_time() - a)\n"
             "print(n / 1e6 / best)\"",
             python, directory, b->path);
    FILE *f = popen(command, "r");
    if (f && fscanf(f, "%lf", &rate) != 1) rate = 0;
    if (f) pclose(f);
    return rate;
}

static dt_err measure(const char *directory, const body *bodies, int n_bodies)
{
    dt_tokenizer *t;
    dt_encoder *e;
    dt_ids ids = {0};
    const double begin_s = cpu_s();
    DT_TRY(dt_tokenizer_open(&t, directory));
    const double open_s = cpu_s() - begin_s;
    DT_TRY(dt_encoder_open(&e, t));
    for (int k = 0; k < n_bodies; k++) {
        double encode_s = 1e9, decode_s = 1e9;
        for (int r = 0; r < N_ROUNDS; r++) {
            const double a = cpu_s();
            DT_TRY(encode_all(t, e, &bodies[k], &ids));
            const double b = cpu_s();
            size_t n;
            free(dt_decode(t, ids.id, (int64_t)ids.n, false, &n));
            const double c = cpu_s();
            if (b - a < encode_s) encode_s = b - a;
            if (c - b < decode_s) decode_s = c - b;
        }
        const char *slash = strrchr(directory, '/');
        const double mb = (double)bodies[k].n / 1e6, other = peer(directory, &bodies[k]);
        printf("%-14s %7d  %6.3f  %-6s %6.2f  %9.1f  %9.1f", slash ? slash + 1 : directory,
               dt_tokenizer_get_info(t)->vocab_size, open_s, bodies[k].name, mb / (double)ids.n * 1e6, mb / encode_s,
               mb / decode_s);
        if (other > 0) printf("  %10.1f  %5.1f", other, mb / encode_s / other);
        printf("\n");
        fflush(stdout);
    }
    free(ids.id);
    dt_encoder_close(e);
    dt_tokenizer_close(t);
    return DT_OK;
}

int main(int argc, char **argv)
{
    static const char *const small[] = {"tests/data/tokenizer/gpt2", "tests/data/tokenizer/llama3",
                                        "tests/data/tokenizer/qwen2", "tests/data/tokenizer/llama2",
                                        "tests/data/tokenizer/mistral"};
    body bodies[2] = {{.name = "prose", .text = calloc(1, MAX_TEXT + 1)},
                      {.name = "mixed", .text = calloc(1, MAX_TEXT + 1)}};
    const char *text = getenv("TEXT"), *const *names = argc > 1 ? (const char *const *)argv + 1 : small;
    const int n_names = argc > 1 ? argc - 1 : (int)(sizeof small / sizeof small[0]);
    append_file(&bodies[0], text ? text : "README.md");
    if (!text) append_file(&bodies[0], "docs/keys.md"), append_file(&bodies[0], "docs/dtrain.1");
    for (uint64_t d = 0; bodies[1].n < 2000000; d++) bodies[1].n += corpus_document(d, bodies[1].text + bodies[1].n);
    for (int k = 0; k < 2; k++) save(&bodies[k]);
    printf("tokenizer       tokens  open s  text   bytes/id  encode MB/s  decode MB/s%s\n",
           getenv("PYTHON") ? "  tokenizers MB/s  ratio" : "");
    dt_err err = DT_OK;
    for (int i = 0; i < n_names && err == DT_OK; i++) err = measure(names[i], bodies, 2);
    if (err != DT_OK) fprintf(stderr, "%s\n", dt_error_message());
    for (int k = 0; k < 2; k++) unlink(bodies[k].path), free(bodies[k].text);
    return err != DT_OK;
}
