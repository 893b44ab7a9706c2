/* dtrain-data.c - creates and shows datasets: command line and messages. The work is done in src/data. */
#include "dtrain/chat/chat.h"
#include "dtrain/config/config.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/model/model.h"
#include "data/summary.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: dtrain-data [options] -o OUT.h5 INPUT...\n"
    "       dtrain-data info [--seq-len L] FILE.h5...        describe and verify datasets\n"
    "       dtrain-data show [--tokenizer NAME] FILE.h5 [N]  decode document or sample N, with its\n"
    "                                                        targets marked\n"
    "\n"
    "Creates a dataset for dtrain from plain text, JSON records (lines, an array, or pretty-printed),\n"
    "Parquet files, or the CSV files of recommendation data. INPUT is a file, a folder (its .txt, .jsonl,\n"
    ".ndjson, .json and .parquet files, sorted by name), or - for standard input. The output file appears\n"
    "when it is complete, and does not depend on the number of threads. Parquet files need DuckDB's\n"
    "library. If dtrain does not find it, set DTRAIN_DUCKDB to libduckdb.so or its folder (docs/data.md).\n"
    "\n"
    "  -o, --output FILE         the dataset\n"
    "  --validation FILE         second dataset, with documents that the first does not contain\n"
    "  --validation-fraction F   fraction of documents for --validation, above 0 and below 1. They are\n"
    "                            chosen by a hash of the document's content (pairs: of the prompt)\n"
    "  --shards N                write N files of about equal size, OUT-00000-of-0000N.h5 and so on, to\n"
    "                            be read in this order\n"
    "  --shard-size SIZE         write as many files as needed to keep each within SIZE, such as 500M,\n"
    "                            5GB or 2GiB (G and GB are 10^9 bytes, GiB is 2^30 bytes)\n"
    "  --kind KIND               auto, tokens (plain text), sft (with a loss mask), preference or prompts\n"
    "                            (default auto: by the first document)\n"
    "  --format FORMAT           auto, text, json or minionerec (default auto: json for .jsonl, .ndjson,\n"
    "                            .json (lines or an array) and Parquet files, whose rows are records;\n"
    "                            text for others, unless the content is clearly not text). text accepts\n"
    "                            any bytes. minionerec: rows of user-item interactions, see below\n"
    "  --documents HOW           how to split plain text into documents: files, lines or paragraphs\n"
    "                            (default files). Blank documents are skipped\n"
    "  --separator TEXT          plain text: end a document at TEXT (\\n, \\t and \\\\ are escapes)\n"
    "  --tokenizer NAME          bytes (ids 0 to 255 are bytes, 256 is end of text), a\n"
    "                            tokenizer.json, or a folder with one\n"
    "  --template NAME           chat template, see below (default auto)\n"
    "  --as-chat                 write plain-text prompts and completions as a user's and an\n"
    "                            assistant's turn\n"
    "  --mask MASK               sft: tokens to train on: full (all but the first), completion\n"
    "                            (everything after the prompt; in a chat, the last answer), assistant\n"
    "                            (all answers and their end tokens), or auto (full for text, completion\n"
    "                            for records with a prompt, assistant for chats)\n"
    "  --weight-key NAME         sft: record field with the sample's loss weight\n"
    "  --prefer WHICH            better or safer: which answer of a PKU-SafeRLHF record is chosen\n"
    "                            (default better)\n"
    "  --max-length N            maximum tokens in a document or sample (default 0: no limit)\n"
    "  --truncate HOW            how to treat longer ones: keep_start, keep_end or drop (default\n"
    "                            keep_start; preferences: drop; prompts and format minionerec: keep_end)\n"
    "  --turn-budgets            chats: truncate the question and the answer of each turn to their shares\n"
    "                            of --max-length\n"
    "  --append-eos, --no-append-eos\n"
    "                            append end of text to each document, and to each answer that the\n"
    "                            template does not end with a token (default: on)\n"
    "  --skip-bad                skip malformed records and count them by reason (default: the first one\n"
    "                            is an error)\n"
    "  --force                   replace existing outputs; an input file is never replaced\n"
    "  --threads N               encoder threads (default: one per core)\n"
    "  -q, --quiet               print only warnings and errors: no progress, no summary\n"
    "  -h, --help                print this text\n"
    "  -V, --version             print version, commit and build\n"
    "\n"
    "Images (docs/vision.md), in records of kinds sft, preference and prompts:\n"
    "  --images PREPROCESSOR     how to preprocess images: a preprocessor_config.json, or the folder of a\n"
    "                            model or tower with one. A record names its images as image or\n"
    "                            images (a path or a list of paths), or in parts of its messages:\n"
    "                            {type: image, image: PATH}. file: URLs and data: URIs also work\n"
    "  --image-folder DIR        base folder of relative paths (default: the record file's folder)\n"
    "  --image-token TEXT        placeholder of an image in a text, one token of the tokenizer (default\n"
    "                            <image>). If no message of a chat contains it, the chat's images\n"
    "                            precede the first question\n"
    "  --image-tokens N          placeholder tokens per image (default: computed from the config.json\n"
    "                            next to the preprocessor or tokenizer)\n"
    "  --captions                each chat is an image and its caption: write placeholders and answer\n"
    "                            without template and question, and train on the answer\n"
    "\n"
    "Recommendation data (--format minionerec; docs/recommendation.md):\n"
    "  --recipe WHICH            purpose of the dataset: sft; rl (prompts with answers, without the\n"
    "                            preamble); or eval (prompts with answers, as in sft) (default sft)\n"
    "  --index FILE              NAME.index.json: the semantic ID (SID) of each item\n"
    "  --items FILE              NAME.item.json: title and description of each item\n"
    "  --tasks LIST              sample types, NAME,NAME:SAMPLE,... (default: those of the template for\n"
    "                            this recipe). Per row: sids-sid, sids-title, titles-sid,\n"
    "                            titles-sid-rl, titles-title. Per item: title-sid, sid-title,\n"
    "                            description-sid. SAMPLE: keep this many samples, chosen by the seed\n"
    "  --category TEXT           what the texts call the items (default items)\n"
    "  --longest-only            keep only the row with the longest history of each user\n"
    "  --seed N                  seed of the sampling (default 42)\n"
    "  --catalogue FILE          also write the info file for rec.catalogue\n"
    "  --template FILE.json      texts to use instead of MiniOneRec's\n"
    "\n"
    "info: --seq-len L           also print the number of samples of L tokens\n"
    "\n"
    "Records (JSON objects; docs/data.md lists all fields):\n"
    "  {text}                                    a document\n"
    "  {messages: [{role, content}], system?}    chat; also as {conversation: ...}\n"
    "  {conversations: [{from, value}], system?, tools?}\n"
    "                                            chat (ShareGPT)\n"
    "  {prompt, completion}                      two texts, or two lists of messages; the completion\n"
    "                                            is the target\n"
    "  {instruction, input?, output or response, system?, history?}\n"
    "                                            Alpaca, written as a user's and an assistant's turn;\n"
    "                                            history: [[question, answer], ...]\n"
    "  {prompt?, chosen, rejected, margin?}      a preference: texts or lists of messages. Without\n"
    "                                            prompt, it is the common start of both. The prompt may\n"
    "                                            also be named conversations, question or instruction.\n"
    "                                            tie: true marks equally good answers\n"
    "  {prompt, chosen_response, rejected_response, safety_labels?}\n"
    "                                            a preference (PKU-SafeRLHF)\n"
    "  {prompt?, responses, ranks? or scores?}   a ranking, best first unless ranks or scores say\n"
    "                                            otherwise; gives all pairs of responses, equal ones as\n"
    "                                            ties\n"
    "  {prompt, answer?}, {question, answer}     a prompt to generate from; a question is written as a\n"
    "                                            user's turn\n"
    "Fields that would change the training but are not supported (tool_calls, tools, videos, ...) are\n"
    "errors. Other fields are ignored, and listed at the end.\n"
    "\n"
    "Templates (--template). auto selects the template that matches the tokenizer's own chat template,\n"
    "or plain if the tokenizer has none. You can also write one as a JSON file (docs/data.md). By name:\n";

static const char after_templates[] =
    "\n"
    "exit codes: 0 done, 64 usage, 65 bad or missing input, 70 fault, 74 writing failed\n";

/* ---- make -------------------------------------------------------------------------------------------------------- */

enum {
    OPT_VALIDATION = 256,
    OPT_FRACTION,
    OPT_SHARDS,
    OPT_SHARD_SIZE,
    OPT_KIND,
    OPT_FORMAT,
    OPT_DOCUMENTS,
    OPT_SEPARATOR,
    OPT_TOKENIZER,
    OPT_TEMPLATE,
    OPT_AS_CHAT,
    OPT_MASK,
    OPT_WEIGHT,
    OPT_PREFER,
    OPT_MAX_LENGTH,
    OPT_TRUNCATE,
    OPT_BUDGETS,
    OPT_EOS,
    OPT_NO_EOS,
    OPT_SKIP_BAD,
    OPT_FORCE,
    OPT_THREADS,
    OPT_IMAGES,
    OPT_IMAGE_FOLDER,
    OPT_IMAGE_TOKEN,
    OPT_IMAGE_TOKENS,
    OPT_CAPTIONS,
    OPT_RECIPE, /* from here to OPT_CATALOGUE: recommendation data */
    OPT_INDEX,
    OPT_ITEMS,
    OPT_TASKS,
    OPT_CATEGORY,
    OPT_LONGEST,
    OPT_SEED,
    OPT_CATALOGUE, /* end of these options */
    OPT_SEQ_LEN
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"validation", required_argument, NULL, OPT_VALIDATION},
    {"validation-fraction", required_argument, NULL, OPT_FRACTION},
    {"shards", required_argument, NULL, OPT_SHARDS},
    {"shard-size", required_argument, NULL, OPT_SHARD_SIZE},
    {"kind", required_argument, NULL, OPT_KIND},
    {"format", required_argument, NULL, OPT_FORMAT},
    {"documents", required_argument, NULL, OPT_DOCUMENTS},
    {"separator", required_argument, NULL, OPT_SEPARATOR},
    {"tokenizer", required_argument, NULL, OPT_TOKENIZER},
    {"template", required_argument, NULL, OPT_TEMPLATE},
    {"as-chat", no_argument, NULL, OPT_AS_CHAT},
    {"mask", required_argument, NULL, OPT_MASK},
    {"weight-key", required_argument, NULL, OPT_WEIGHT},
    {"prefer", required_argument, NULL, OPT_PREFER},
    {"max-length", required_argument, NULL, OPT_MAX_LENGTH},
    {"truncate", required_argument, NULL, OPT_TRUNCATE},
    {"turn-budgets", no_argument, NULL, OPT_BUDGETS},
    {"append-eos", no_argument, NULL, OPT_EOS},
    {"no-append-eos", no_argument, NULL, OPT_NO_EOS},
    {"skip-bad", no_argument, NULL, OPT_SKIP_BAD},
    {"force", no_argument, NULL, OPT_FORCE},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"images", required_argument, NULL, OPT_IMAGES},
    {"image-folder", required_argument, NULL, OPT_IMAGE_FOLDER},
    {"image-token", required_argument, NULL, OPT_IMAGE_TOKEN},
    {"image-tokens", required_argument, NULL, OPT_IMAGE_TOKENS},
    {"captions", no_argument, NULL, OPT_CAPTIONS},
    {"recipe", required_argument, NULL, OPT_RECIPE},
    {"index", required_argument, NULL, OPT_INDEX},
    {"items", required_argument, NULL, OPT_ITEMS},
    {"tasks", required_argument, NULL, OPT_TASKS},
    {"category", required_argument, NULL, OPT_CATEGORY},
    {"longest-only", no_argument, NULL, OPT_LONGEST},
    {"seed", required_argument, NULL, OPT_SEED},
    {"catalogue", required_argument, NULL, OPT_CATALOGUE},
    {"quiet", no_argument, NULL, 'q'},
    TOOL_OPTIONS,
    {NULL, 0, NULL, 0},
};

/* Replace the escapes for newline, tab and backslash, in place. */
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

typedef struct command {
    dt_make_options make;
    const char *rec_option; /* an option given that requires recommendation data; NULL: none */
    bool quiet, help, version;
} command;

/* The variable for an option's word; NULL: the option does not take a plain word. */
static const char **word_of(command *c, int which)
{
    dt_make_options *m = &c->make;
    switch (which) {
    case 'o':
        return &m->output;
    case OPT_VALIDATION:
        return &m->validation;
    case OPT_KIND:
        return &m->kind;
    case OPT_FORMAT:
        return &m->format;
    case OPT_DOCUMENTS:
        return &m->documents;
    case OPT_TOKENIZER:
        return &m->tokenizer;
    case OPT_TEMPLATE:
        return &m->chat_template;
    case OPT_MASK:
        return &m->mask;
    case OPT_PREFER:
        return &m->prefer;
    case OPT_TRUNCATE:
        return &m->truncate;
    case OPT_WEIGHT:
        return &m->weight_key;
    case OPT_IMAGES:
        return &m->images.preprocessor;
    case OPT_IMAGE_FOLDER:
        return &m->images.folder;
    case OPT_IMAGE_TOKEN:
        return &m->images.token;
    case OPT_RECIPE:
        return &m->rec.recipe;
    case OPT_INDEX:
        return &m->rec.index;
    case OPT_ITEMS:
        return &m->rec.items;
    case OPT_TASKS:
        return &m->rec.tasks;
    case OPT_CATEGORY:
        return &m->rec.category;
    case OPT_CATALOGUE:
        return &m->rec.catalogue;
    default:
        return NULL;
    }
}

/* The flag of an option without a value, set to true except for OPT_NO_EOS; NULL: not such an option. */
static bool *switch_of(command *c, int which)
{
    switch (which) {
    case 'q':
        return &c->quiet;
    case 'h':
        return &c->help;
    case 'V':
        return &c->version;
    case OPT_AS_CHAT:
        return &c->make.as_chat;
    case OPT_BUDGETS:
        return &c->make.turn_budgets;
    case OPT_EOS:
    case OPT_NO_EOS:
        return &c->make.append_eos;
    case OPT_SKIP_BAD:
        return &c->make.skip_bad;
    case OPT_CAPTIONS:
        return &c->make.images.captions;
    case OPT_LONGEST:
        return &c->make.rec.longest;
    case OPT_FORCE:
        return &c->make.force;
    default:
        return NULL;
    }
}

static dt_err take_value(dt_make_options *m, int which, char *arg)
{
    int64_t n = 0;
    switch (which) {
    case OPT_FRACTION:
        return tool_parse_real("validation-fraction", arg, &m->validation_fraction);
    case OPT_SHARDS:
        return tool_parse_int("shards", arg, 1, INT64_MAX, &m->n_shards);
    case OPT_IMAGE_TOKENS:
        return tool_parse_int("image-tokens", arg, 1, DT_MAX_IMAGE_TOKENS, &m->images.n_tokens);
    case OPT_MAX_LENGTH:
        return tool_parse_int("max-length", arg, 0, INT64_MAX, &m->max_length);
    case OPT_SEPARATOR:
        m->documents = "separator";
        m->separator = unescape(arg);
        return DT_OK;
    case OPT_SHARD_SIZE:
        return tool_parse_bytes("shard-size", arg, &m->shard_nbytes);
    case OPT_THREADS:
        DT_TRY(tool_parse_int("threads", arg, 1, INT_MAX, &n));
        m->n_threads = (int)n;
        return DT_OK;
    case OPT_SEED:
        DT_TRY(tool_parse_int("seed", arg, 0, INT64_MAX, &n));
        m->rec.seed = (uint64_t)n;
        return DT_OK;
    default:
        return dt_fail(DT_ERR_ARG, "internal: option %d is not handled", which);
    }
}

static dt_err take_option(command *c, int which, char *arg)
{
    const char **word = word_of(c, which);
    bool *on = switch_of(c, which);
    if (word) *word = arg;
    if (on) *on = which != OPT_NO_EOS;
    return word || on ? DT_OK : take_value(&c->make, which, arg);
}

static dt_err parse(int argc, char **argv, command *c)
{
    c->make = (dt_make_options){.kind = "auto",
                                .format = "auto",
                                .documents = "files",
                                .tokenizer = "bytes",
                                .chat_template = "auto",
                                .mask = "auto",
                                .prefer = "better",
                                .truncate = "auto",
                                .append_eos = true,
                                .images = {.token = "<image>", .token_id = -1},
                                .rec = {.recipe = "sft", .seed = 42}};
    for (int which, at;;) {
        DT_TRY(tool_option(argc, argv, ":o:q" TOOL_LETTERS, long_options, &which, &at));
        if (which == -1) break;
        if (which >= OPT_RECIPE && which <= OPT_CATALOGUE) c->rec_option = long_options[at].name;
        DT_TRY(take_option(c, which, optarg));
    }
    if (c->help || c->version) return DT_OK;
    DT_CHECK(!c->rec_option || strcmp(c->make.format, "minionerec") == 0, DT_ERR_USAGE,
             "--%s needs --format minionerec", c->rec_option);
    c->make.inputs = (const char *const *)argv + optind;
    c->make.n_inputs = argc - optind;
    DT_CHECK(c->make.output, DT_ERR_USAGE, "expected -o OUT.h5 (dtrain-data --help)");
    DT_CHECK(c->make.n_inputs > 0, DT_ERR_USAGE, "expected input files (dtrain-data --help)");
    return DT_OK;
}

/* ---- tokens per image -------------------------------------------------------------------------------------------- */

/* Number of tokens that replace an image in a complete vision-language model. */
static dt_err ask_llava(const char *path, const char *text, dt_image_options *o)
{
    dt_model_config mc;
    DT_TRY(dt_model_config_parse(&mc, path, text));
    if (mc.vision) {
        if (!o->n_tokens) o->n_tokens = mc.vision->n_tokens;
        o->token_id = mc.vision->image_token;
        o->size = mc.vision->image_size;
    }
    dt_model_config_free(&mc);
    return DT_OK;
}

/* A CLIP or SigLIP tower without projector: its number of patches, assuming that the projector keeps it. */
static void ask_tower(const json_t *config, dt_image_options *o)
{
    const json_t *vision = json_object_get(config, "vision_config"), *tower = vision ? vision : config,
                 *size = json_object_get(tower, "image_size"), *patch = json_object_get(tower, "patch_size");
    dt_tower kind;
    const bool known = dt_tower_find(json_string_value(json_object_get(config, "model_type")), &kind);
    const int64_t S = size ? (int64_t)json_integer_value(size) : 224, P = patch   ? (int64_t)json_integer_value(patch)
                                                                          : known ? dt_tower_patch_size(kind)
                                                                                  : 0;
    if (P < 1 || S < P || S > DT_MAX_IMAGE_SIZE) return;
    o->size = S;
    if (!o->n_tokens) o->n_tokens = (S / P) * (S / P);
}

static dt_err ask_model(const char *directory, dt_image_options *o)
{
    char *path = NULL, *text = NULL;
    size_t n;
    json_t *config = NULL;
    if (!dt_is_directory(directory)) return DT_OK;
    DT_CHECK(asprintf(&path, "%s/config.json", directory) >= 0, DT_ERR_MEMORY, "out of memory for a path");
    dt_err err = DT_OK;
    if (access(path, F_OK) == 0) err = dt_read_file(path, 1 << 24, &text, &n);
    if (err == DT_OK && text) err = dt_json_parse(&config, path, text, n, DT_JSON_LAST_KEY);
    if (err == DT_OK && config) {
        if (json_object_get(config, "text_config") && dt_model_is_llava(config))
            err = ask_llava(path, text, o);
        else
            ask_tower(config, o);
    }
    json_decref(config);
    free(text);
    free(path);
    return err;
}

/* A model may be in the preprocessor's directory or in the tokenizer's. */
static dt_err size_images(dt_make_options *m)
{
    dt_image_options *o = &m->images;
    dt_preprocessor p;
    if (!o->preprocessor) return DT_OK;
    /* also reports a missing folder, which has no config.json either */
    DT_TRY(dt_preprocessor_read(o->preprocessor, &p));
    dt_preprocessor_free(&p);
    DT_TRY(ask_model(o->preprocessor, o));
    if (strcmp(m->tokenizer, "bytes") != 0 && o->token_id < 0) DT_TRY(ask_model(m->tokenizer, o));
    DT_CHECK(o->n_tokens > 0, DT_ERR_USAGE,
             "--image-tokens: expected the number of placeholder tokens per image, because %s has no config.json of a "
             "vision-language model or a tower, and %s has none of a vision-language model",
             o->preprocessor, m->tokenizer);
    return DT_OK;
}

/* Prints text from column INDENT, in lines of at most COLUMNS. */
static void print_wrapped(const char *text)
{
    enum { INDENT = 18, COLUMNS = 100 };
    for (int column = INDENT; *text;) {
        const int len = (int)strcspn(text, " ");
        if (column > INDENT && column + 1 + len > COLUMNS) column = printf("\n%*s", INDENT, "") - 1;
        column += printf(column > INDENT ? " %.*s" : "%.*s", len, text);
        text += len + (text[len] == ' ');
    }
    putchar('\n');
}

static void print_help(void)
{
    fputs(usage, stdout);
    const char *name, *about;
    for (int i = 0; dt_chat_named(i, &name, &about); i++) {
        printf("  %-15s ", name);
        print_wrapped(about);
    }
    fputs(after_templates, stdout);
}

/* A signal stops the work cleanly, and main then re-raises it. A second signal takes effect immediately. */
static atomic_bool stop;
static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
    atomic_store(&stop, true);
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction before, action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}

static dt_err make_main(int argc, char **argv)
{
    command c = {0};
    DT_TRY(parse(argc, argv, &c));
    if (c.help) print_help();
    if (c.version) tool_print_version();
    if (c.help || c.version) return DT_OK;
    if (c.quiet) setenv("DTRAIN_LOG", "warn", 0); /* nothing has been logged yet */
    DT_TRY(size_images(&c.make));
    meter m = {.start_s = dt_now_s(), .terminal = isatty(STDERR_FILENO)};
    m.last_s = m.start_s;
    m.every_s = m.terminal ? 0.25 : 30;
    if (!c.quiet) {
        c.make.progress = data_show_progress;
        c.make.progress_self = &m;
    }
    c.make.stop = &stop;
    catch_signals();
    dt_make_stats stats;
    const dt_err err = dt_make_datasets(&c.make, &stats);
    if (m.shown) fputs("\r\033[K", stderr);
    if (err == DT_OK) data_report(&c.make, &stats, dt_now_s() - m.start_s);
    return err;
}

/* ---- show and verify --------------------------------------------------------------------------------------------- */

typedef struct look {
    bool show;
    const char *tokenizer;
    int64_t seq_len, number;
} look;

static const struct option look_options[] = {{"seq-len", required_argument, NULL, OPT_SEQ_LEN},
                                             {"tokenizer", required_argument, NULL, OPT_TOKENIZER},
                                             {NULL, 0, NULL, 0}};

static dt_err look_one(const look *l, const char *path)
{
    dt_dataset *d;
    DT_TRY(dt_dataset_open(&d, path));
    const dt_err err = l->show ? dt_dataset_print_sample(d, l->number, l->tokenizer, isatty(STDOUT_FILENO))
                               : dt_dataset_print_info(d, l->seq_len);
    dt_dataset_close(d);
    return err;
}

/* A path, or a pattern that the shell did not expand. */
static dt_err look_at(const look *l, const char *pattern)
{
    char **paths;
    int n;
    if (access(pattern, F_OK) == 0) return look_one(l, pattern);
    DT_TRY(dt_glob(pattern, &paths, &n));
    dt_err err = DT_OK;
    for (int i = 0; i < n && err == DT_OK; i++) err = look_one(l, paths[i]);
    dt_list_free(paths, n);
    return err;
}

static dt_err parse_look(int argc, char **argv, look *l)
{
    for (int which, at;;) {
        DT_TRY(tool_option(argc, argv, ":", look_options, &which, &at));
        if (which == -1) break;
        if (which == OPT_TOKENIZER) l->tokenizer = optarg;
        if (which == OPT_SEQ_LEN) DT_TRY(tool_parse_int("seq-len", optarg, 1, INT64_MAX, &l->seq_len));
    }
    const int n = argc - optind;
    DT_CHECK(l->show ? n == 1 || n == 2 : n >= 1, DT_ERR_USAGE, "expected: dtrain-data %s",
             l->show ? "show [--tokenizer NAME] FILE.h5 [N]" : "info [--seq-len L] FILE.h5...");
    if (!l->show || n == 1) return DT_OK;
    char *end;
    l->number = strtoll(argv[optind + 1], &end, 10);
    DT_CHECK(end != argv[optind + 1] && *end == '\0', DT_ERR_USAGE,
             "expected the number of a document or sample, found %s", argv[optind + 1]);
    return DT_OK;
}

static dt_err look_main(int argc, char **argv)
{
    look l = {.show = strcmp(argv[0], "show") == 0};
    DT_TRY(parse_look(argc, argv, &l));
    for (int i = optind; i < (l.show ? optind + 1 : argc); i++) DT_TRY(look_at(&l, argv[i]));
    return DT_OK;
}

int main(int argc, char **argv)
{
    tool_start("dtrain-data");
    const bool looking = argc >= 2 && (strcmp(argv[1], "info") == 0 || strcmp(argv[1], "show") == 0);
    const dt_err err = looking ? look_main(argc - 1, argv + 1) : make_main(argc, argv);
    const int code = tool_end(err);
    if (err == DT_ERR_STOP && stop_signal) {
        signal(stop_signal, SIG_DFL);
        raise(stop_signal);
    }
    return code;
}
