/* dtrain-data.c - the program that makes datasets and looks into them. What it does is in the room data; here are its command line and its words. */
#include "dtrain/dataset.h"
#include "dtrain/tokenizer.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: dtrain-data [options] -o OUT.h5 INPUT...\n"
    "       dtrain-data info FILE.h5          what is in a dataset; verifies all of it\n"
    "       dtrain-data show FILE.h5 [N]      decode document or sample N, targets marked\n"
    "\n"
    "Makes a dataset for dtrain from plain text, JSON lines or a JSON array. INPUT: files, folders (their .txt, .jsonl, .ndjson\n"
    "and .json files, by name), or - for standard input. The output appears only when it is complete.\n"
    "\n"
    "  -o, --output FILE           the dataset\n"
    "  --validation FILE           a second dataset of documents held out of the first\n"
    "  --validation-fraction F     their share, above 0 and below 1; chosen by a hash of the document's content\n"
    "  --kind auto|tokens|sft      tokens: text to learn whole; sft: with a loss mask. auto: by the first document\n"
    "  --format auto|text|json     auto: json for names that end in .jsonl, .ndjson or .json (lines or an array), else text\n"
    "  --documents files|lines|paragraphs\n"
    "                              how plain text is cut into documents (default: files); blank ones are left out\n"
    "  --separator TEXT            plain text: documents end at TEXT (\\n, \\t and \\\\ are understood)\n"
    "  --tokenizer NAME            bytes (ids 0 to 255 are bytes, 256 is the end of text)\n"
    "  --template NAME             how chats are written as text (default: plain), see below\n"
    "  --mask answers|all          sft targets: answers (default) or every token but the first\n"
    "  --weight-key NAME           sft: the field of a record that holds its weight in the loss\n"
    "  --max-length N              keep the first N tokens of a document or sample (default 0: all)\n"
    "  --append-eos, --no-append-eos\n"
    "                              end-of-text after each document and answer (default: on)\n"
    "  --skip-bad                  leave malformed records out and count them; without it the first one ends the run\n"
    "  -q, --quiet                 no progress line\n"
    "  -h, --help                  this text\n"
    "\n"
    "Records (JSON objects):\n"
    "  {text}                                      a document\n"
    "  {messages: [{role, content}]}               chat; also as {conversation: ...}\n"
    "  {conversations: [{from, value}], system?, tools?}   ShareGPT\n"
    "  {prompt, completion}                        two texts (or two lists of messages): the completion is the target\n"
    "  {instruction, input?, output or response}   Alpaca: written as a user's and an assistant's turn\n"
    "In chats the assistant's words and what ends its turn are the targets. Templates:\n";

static const char after_templates[] =
    "\n"
    "Exit codes: 0 done, 64 wrong command line, 65 bad or missing input, 70 fault, 74 writing failed.\n";

/* ---- progress --------------------------------------------------------------------------------------------------------------------- */

typedef struct meter {
    double start_s, last_s;
    bool shown;
} meter;

static void show_progress(void *self, const dt_make_stats *s)
{
    meter *m = self;
    const double now_s = dt_now_s();
    if (now_s - m->last_s < 0.25) return;
    m->last_s = now_s;
    m->shown = true;
    char read[24], total[24], rate[24], share[48] = "";
    dt_format_bytes((double)s->nbytes_read / (now_s - m->start_s + 1e-9), rate);
    if (s->nbytes_total > 0)
        snprintf(share, sizeof share, " of %s (%.0f%%)", dt_format_bytes((double)s->nbytes_total, total),
                 100.0 * (double)s->nbytes_read / (double)s->nbytes_total);
    fprintf(stderr, "\r%s%s  %" PRId64 " documents  %" PRId64 " tokens  %s/s \033[K",
            dt_format_bytes((double)s->nbytes_read, read), share, s->n_documents + s->n_validation_documents,
            s->n_tokens + s->n_validation_tokens, rate);
    fflush(stderr);
}

static void report(const dt_make_options *o, const dt_make_stats *s, double seconds)
{
    const char *noun = s->kind == DT_DATASET_SFT ? "samples" : "documents";
    DT_INFO("%s: kind %s, %" PRId64 " %s, %" PRId64 " tokens", o->output, dt_dataset_kind_name(s->kind), s->n_documents, noun,
            s->n_tokens);
    if (o->validation)
        DT_INFO("%s: kind %s, %" PRId64 " %s, %" PRId64 " tokens", o->validation, dt_dataset_kind_name(s->kind),
                s->n_validation_documents, noun, s->n_validation_tokens);
    if (s->n_truncated) DT_INFO("%" PRId64 " %s cut at %" PRId64 " tokens", s->n_truncated, noun, o->max_length);
    if (s->n_dropped) DT_INFO("%" PRId64 " records without any target left out", s->n_dropped);
    if (s->n_bad) DT_WARN("%" PRId64 " malformed records left out", s->n_bad);
    char text[24];
    DT_INFO("%s read in %.1f s", dt_format_bytes((double)s->nbytes_read, text), seconds);
}

/* ---- make ------------------------------------------------------------------------------------------------------------------------- */

enum {
    OPT_VALIDATION = 256,
    OPT_FRACTION,
    OPT_KIND,
    OPT_FORMAT,
    OPT_DOCUMENTS,
    OPT_SEPARATOR,
    OPT_TOKENIZER,
    OPT_TEMPLATE,
    OPT_MASK,
    OPT_WEIGHT,
    OPT_MAX_LENGTH,
    OPT_EOS,
    OPT_NO_EOS,
    OPT_SKIP_BAD
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"validation", required_argument, NULL, OPT_VALIDATION},
    {"validation-fraction", required_argument, NULL, OPT_FRACTION},
    {"kind", required_argument, NULL, OPT_KIND},
    {"format", required_argument, NULL, OPT_FORMAT},
    {"documents", required_argument, NULL, OPT_DOCUMENTS},
    {"separator", required_argument, NULL, OPT_SEPARATOR},
    {"tokenizer", required_argument, NULL, OPT_TOKENIZER},
    {"template", required_argument, NULL, OPT_TEMPLATE},
    {"mask", required_argument, NULL, OPT_MASK},
    {"weight-key", required_argument, NULL, OPT_WEIGHT},
    {"max-length", required_argument, NULL, OPT_MAX_LENGTH},
    {"append-eos", no_argument, NULL, OPT_EOS},
    {"no-append-eos", no_argument, NULL, OPT_NO_EOS},
    {"skip-bad", no_argument, NULL, OPT_SKIP_BAD},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Newline, tab and backslash as they are written in a shell, in place. */
static char *unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (from[0] == '\\' && from[1] && strchr("nt\\", from[1])) {
            from++;
            *to++ = (char)(*from == 'n' ? '\n' : *from == 't' ? '\t' : '\\');
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
    return text;
}

static dt_err parse_number(const char *name, const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    DT_CHECK(end != text && *end == '\0', DT_ERR_USAGE, "--%s: expected a number, found %s", name, text);
    return DT_OK;
}

static dt_err parse_count(const char *name, const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    DT_CHECK(end != text && *end == '\0' && errno == 0 && *value >= 0, DT_ERR_USAGE,
             "--%s: expected a whole number from 0 on, found %s", name, text);
    return DT_OK;
}

typedef struct command {
    dt_make_options make;
    bool quiet, help;
} command;

static dt_err take_option(command *c, int which, char *arg)
{
    dt_make_options *m = &c->make;
    switch (which) {
    case 'o':
        m->output = arg;
        break;
    case 'q':
        c->quiet = true;
        break;
    case 'h':
        c->help = true;
        break;
    case OPT_VALIDATION:
        m->validation = arg;
        break;
    case OPT_FRACTION:
        return parse_number("validation-fraction", arg, &m->validation_fraction);
    case OPT_KIND:
        m->kind = arg;
        break;
    case OPT_FORMAT:
        m->format = arg;
        break;
    case OPT_DOCUMENTS:
        m->documents = arg;
        break;
    case OPT_SEPARATOR:
        m->documents = "separator";
        m->separator = unescape(arg);
        break;
    case OPT_TOKENIZER:
        m->tokenizer = arg;
        break;
    case OPT_TEMPLATE:
        m->chat_template = arg;
        break;
    case OPT_MASK:
        m->all_targets = strcmp(arg, "all") == 0;
        DT_CHECK(m->all_targets || strcmp(arg, "answers") == 0, DT_ERR_USAGE, "--mask: expected answers or all, found %s", arg);
        break;
    case OPT_WEIGHT:
        m->weight_key = arg;
        break;
    case OPT_MAX_LENGTH:
        return parse_count("max-length", arg, &m->max_length);
    case OPT_EOS:
        m->append_eos = true;
        break;
    case OPT_NO_EOS:
        m->append_eos = false;
        break;
    case OPT_SKIP_BAD:
        m->skip_bad = true;
        break;
    case ':':
        return dt_fail(DT_ERR_USAGE, "an option without its value (dtrain-data --help lists them)");
    default:
        return dt_fail(DT_ERR_USAGE, "unknown or ambiguous option (dtrain-data --help lists them)");
    }
    return DT_OK;
}

static dt_err parse(int argc, char **argv, command *c)
{
    c->make = (dt_make_options){.kind = "auto",
                                .format = "auto",
                                .documents = "files",
                                .tokenizer = "bytes",
                                .chat_template = "plain",
                                .append_eos = true};
    opterr = 0;
    for (int which; (which = getopt_long(argc, argv, ":o:qh", long_options, NULL)) != -1;) {
        const dt_err err = take_option(c, which, optarg);
        if (err != DT_OK && (which == '?' || which == ':')) {
            dt_error_clear();
            return dt_fail(err, "%s: %s (dtrain-data --help lists the options)", argv[optind - 1],
                           which == ':' ? "a value is missing" : "unknown option");
        }
        DT_TRY(err);
    }
    if (c->help) return DT_OK;
    c->make.inputs = (const char *const *)argv + optind;
    c->make.n_inputs = argc - optind;
    DT_CHECK(c->make.output, DT_ERR_USAGE, "expected -o OUT.h5 (dtrain-data --help)");
    DT_CHECK(c->make.n_inputs > 0, DT_ERR_USAGE, "expected input files (dtrain-data --help)");
    return DT_OK;
}

static dt_err make_main(int argc, char **argv)
{
    command c = {0};
    DT_TRY(parse(argc, argv, &c));
    if (c.help) {
        printf("%s%s%s", usage, dt_make_template_help(), after_templates);
        return DT_OK;
    }
    meter m = {.start_s = dt_now_s()};
    m.last_s = m.start_s;
    if (!c.quiet && isatty(STDERR_FILENO)) {
        c.make.progress = show_progress;
        c.make.progress_self = &m;
    }
    dt_make_stats stats;
    const dt_err err = dt_make_datasets(&c.make, &stats);
    if (m.shown) fputs("\r\033[K", stderr);
    if (err == DT_OK) report(&c.make, &stats, dt_now_s() - m.start_s);
    return err;
}

/* ---- info ------------------------------------------------------------------------------------------------------------------------- */

enum { N_BINS = 41 }; /* bin k > 0: lengths 2^(k-1) .. 2^k - 1; bin 0: empty */

static dt_err print_lengths(dt_dataset *d)
{
    const int64_t n = dt_dataset_get_info(d)->n_documents;
    int64_t bins[N_BINS] = {0}, longest = 0, most = 1, first, len;
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(dt_dataset_document(d, i, &first, &len));
        int k = 0;
        while (k < N_BINS - 1 && len >> k) k++;
        if (++bins[k] > most) most = bins[k];
        if (len > longest) longest = len;
    }
    printf("longest      %" PRId64 " tokens\nlengths\n", longest);
    for (int k = 0; k < N_BINS; k++) {
        if (!bins[k]) continue;
        const int64_t lo = k ? INT64_C(1) << (k - 1) : 0, hi = k ? (INT64_C(1) << k) - 1 : 0;
        const int width = (int)(40 * bins[k] / most);
        printf("  %10" PRId64 " to %-10" PRId64 " %10" PRId64 "  %.*s\n", lo, hi, bins[k], width > 0 ? width : 1,
               "########################################");
    }
    return DT_OK;
}

static dt_err count_targets(dt_dataset *d, int64_t *n_target)
{
    uint8_t piece[1 << 16];
    const int64_t n = dt_dataset_get_info(d)->n_tokens;
    *n_target = 0;
    for (int64_t first = 0; first < n; first += (int64_t)sizeof piece) {
        const int64_t k = n - first < (int64_t)sizeof piece ? n - first : (int64_t)sizeof piece;
        DT_TRY(dt_dataset_read_mask(d, first, k, piece));
        for (int64_t i = 0; i < k; i++) *n_target += piece[i];
    }
    return DT_OK;
}

static dt_err info(dt_dataset *d)
{
    const dt_dataset_info *i = dt_dataset_get_info(d);
    const bool sft = i->kind == DT_DATASET_SFT;
    printf("%s\nkind         %s\ntokens       %" PRId64 " (uint%d)\nvocab_size   %" PRId64 "\ntokenizer    %s\n", i->path,
           dt_dataset_kind_name(i->kind), i->n_tokens, 8 * i->token_nbytes, i->vocab_size,
           i->tokenizer[0] ? i->tokenizer : "not named");
    if (i->n_documents >= 0)
        printf("%s %" PRId64 "\n", sft ? "samples     " : "documents   ", i->n_documents);
    else
        printf("documents    not marked\n");
    if (i->n_documents > 0) DT_TRY(print_lengths(d));
    if (sft) {
        int64_t n_target;
        DT_TRY(count_targets(d, &n_target));
        printf("targets      %" PRId64 " (%.1f %% of the tokens)\nweights      %s\n", n_target,
               i->n_tokens ? 100.0 * (double)n_target / (double)i->n_tokens : 0.0, i->has_weights ? "yes" : "no");
    }
    DT_TRY(dt_dataset_verify(d));
    printf("verified     %s\n",
           i->has_checksums ? "offsets, token ids, checksums" : "offsets, token ids (the file carries no checksums)");
    return DT_OK;
}

/* ---- show ------------------------------------------------------------------------------------------------------------------------- */

typedef struct marks {
    const char *on, *off;
} marks;

static void print_bytes(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static void print_tokens(const dt_tokenizer *t, const int32_t *ids, const uint8_t *mask, int64_t n, marks m)
{
    bool on = false;
    for (int64_t i = 0; i < n; i++) {
        const bool target = mask && mask[i];
        if (target != on) fputs(target ? m.on : m.off, stdout);
        on = target;
        size_t nbytes = 0;
        const char *bytes = t ? dt_tokenizer_bytes(t, ids[i], &nbytes) : "";
        if (nbytes)
            print_bytes(bytes, nbytes);
        else if (t && ids[i] == dt_tokenizer_get_info(t)->eos)
            printf("<eos>");
        else
            printf("<%" PRId32 ">", ids[i]);
    }
    if (on) fputs(m.off, stdout);
    putchar('\n');
}

static dt_err show(dt_dataset *d, int64_t number)
{
    const dt_dataset_info *i = dt_dataset_get_info(d);
    const bool sft = i->kind == DT_DATASET_SFT;
    int64_t first = 0, n = i->n_tokens < 1024 ? i->n_tokens : 1024;
    float weight = 1;
    if (i->n_documents >= 0)
        DT_TRY(dt_dataset_document(d, number, &first, &n));
    else
        DT_CHECK(number == 0, DT_ERR_USAGE, "%s: its documents are not marked: only 0, its first tokens, can be shown", i->path);
    if (sft) DT_TRY(dt_dataset_read_weight(d, number, &weight));

    int32_t *ids = malloc((size_t)(n + 1) * sizeof *ids);
    uint8_t *mask = sft ? malloc((size_t)n + 1) : NULL;
    dt_tokenizer *t = NULL;
    dt_err err = ids && (mask || !sft) ? DT_OK : dt_fail(DT_ERR_MEMORY, "%s: no memory for %" PRId64 " tokens", i->path, n);
    if (err == DT_OK) err = dt_dataset_read_tokens(d, first, n, ids);
    if (err == DT_OK && sft) err = dt_dataset_read_mask(d, first, n, mask);
    if (err == DT_OK && dt_tokenizer_open(&t, i->tokenizer) != DT_OK) dt_error_clear(); /* another tokenizer's: ids are shown */
    if (err == DT_OK) {
        const bool colour = isatty(STDOUT_FILENO);
        printf("%s %" PRId64 " of %" PRId64 ": tokens %" PRId64 " to %" PRId64, sft ? "sample" : "document", number,
               i->n_documents < 0 ? 1 : i->n_documents, first, first + n - 1);
        if (i->has_weights) printf(", weight %g", (double)weight);
        printf("%s\n", sft ? colour ? ", targets in colour" : ", targets in {+ +}" : "");
        print_tokens(t, ids, mask, n, colour ? (marks){"\033[7;32m", "\033[0m"} : (marks){"{+", "+}"});
    }
    dt_tokenizer_close(t);
    free(ids);
    free(mask);
    return err;
}

static dt_err look(int argc, char **argv)
{
    const bool showing = strcmp(argv[1], "show") == 0;
    int64_t number = 0;
    DT_CHECK(argc == 3 || (showing && argc == 4), DT_ERR_USAGE, "expected: dtrain-data %s",
             showing ? "show FILE.h5 [N]" : "info FILE.h5");
    if (argc == 4) {
        char *end;
        number = strtoll(argv[3], &end, 10);
        DT_CHECK(end != argv[3] && *end == '\0', DT_ERR_USAGE, "expected the number of a document or sample, found %s", argv[3]);
    }
    dt_dataset *d;
    DT_TRY(dt_dataset_open(&d, argv[2]));
    dt_err err = showing ? show(d, number) : info(d);
    dt_dataset_close(d);
    if (err == DT_OK && fflush(stdout) != 0) err = dt_fail(DT_ERR_WRITE, "standard output: %s", strerror(errno));
    return err;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is then an error of write, as a full disk is */
    dt_log_open(0, 1, "");
    const bool looking = argc >= 2 && (strcmp(argv[1], "info") == 0 || strcmp(argv[1], "show") == 0);
    const dt_err err = looking ? look(argc, argv) : make_main(argc, argv);
    if (err != DT_OK) dt_log(DT_LOG_ERROR, "%s", dt_error_message());
    return dt_exit_code(err);
}
