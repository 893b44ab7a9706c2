/* dtrain-data.c - the program that makes datasets and looks into them. What it does is in the room data; here are its
 * command line and its words. */
#include "dtrain/chat.h"
#include "dtrain/config.h"
#include "dtrain/dataset.h"
#include "dtrain/io.h"
#include "dtrain/json.h"
#include "dtrain/model.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: dtrain-data [options] -o OUT.h5 INPUT...\n"
    "       dtrain-data info [--seq-len L] FILE.h5...        what is in datasets; verifies all of it\n"
    "       dtrain-data show [--tokenizer NAME] FILE.h5 [N]  decode document or sample N, targets\n"
    "                                                        marked\n"
    "\n"
    "Makes a dataset for dtrain from plain text, from JSON records (lines, an array, or\n"
    "pretty-printed), from Parquet files, or from the CSV files of recommendation data. INPUT: files,\n"
    "folders (their .txt, .jsonl, .ndjson, .json and .parquet files, by name), or - for standard input.\n"
    "The output appears only when it is complete, and does not depend on the number of threads. DuckDB's\n"
    "library reads Parquet files where it is found; DTRAIN_DUCKDB names libduckdb.so or its folder\n"
    "(docs/data.md).\n"
    "\n"
    "  -o, --output FILE         the dataset\n"
    "  --validation FILE         a second dataset, of documents that the first does not contain\n"
    "  --validation-fraction F   the fraction of documents that goes there, above 0 and below 1;\n"
    "                            chosen by a hash of the document's content (pairs: of the prompt)\n"
    "  --shards N                make N files of about equal size, OUT-00000-of-0000N.h5 and so on,\n"
    "                            to be read in order\n"
    "  --shard-size SIZE         or as many as are needed for none to have more than SIZE, such as 500M,\n"
    "                            5GB or 2GiB (G and GB are 10^9 bytes, GiB 2^30)\n"
    "  --kind KIND               auto, tokens (text to train on whole), sft (with a loss mask),\n"
    "                            preference or prompts (default auto: by the first document)\n"
    "  --format FORMAT           auto, text, json or minionerec (default auto: json for names that end in\n"
    "                            .jsonl, .ndjson or .json, lines or an array, and for Parquet files,\n"
    "                            whose rows are records, else text; what is none of these is refused by\n"
    "                            its content; text takes any bytes as they are;\n"
    "                            minionerec: rows of interactions with items, see below)\n"
    "  --documents HOW           files, lines or paragraphs: how plain text is cut into documents\n"
    "                            (default files); blank ones are skipped\n"
    "  --separator TEXT          plain text: documents end at TEXT (\\n, \\t and \\\\ are understood)\n"
    "  --tokenizer NAME          bytes (ids 0 to 255 are bytes, 256 is the end of text), a\n"
    "                            tokenizer.json, or a folder with one\n"
    "  --template NAME           how chats are written as text, see below (default auto)\n"
    "  --as-chat                 plain-text prompts and completions become a user's and an\n"
    "                            assistant's turn\n"
    "  --mask MASK               which tokens of sft are trained on: full (all but the first),\n"
    "                            completion (everything after the prompt; of a chat, the last answer),\n"
    "                            assistant (all answers and what ends them), or auto: full for text,\n"
    "                            completion for records with a prompt, assistant for chats\n"
    "  --weight-key NAME         sft: the field of a record that is its weight in the loss\n"
    "  --prefer WHICH            better or safer: which answer of a PKU-SafeRLHF record is the chosen\n"
    "                            one (default better)\n"
    "  --max-length N            at most N tokens in a document or sample (default 0: no limit)\n"
    "  --truncate HOW            keep_start, keep_end or drop: what is done to longer ones\n"
    "                            (default keep_start; preferences: drop; prompts and format\n"
    "                            minionerec: keep_end)\n"
    "  --turn-budgets            chats: cut the question and the answer of each turn to their shares\n"
    "                            of --max-length\n"
    "  --append-eos, --no-append-eos\n"
    "                            end-of-text after each document, and after each answer that the\n"
    "                            template does not end with a token (default: on)\n"
    "  --skip-bad                skip malformed records and count them by reason; without it the\n"
    "                            first one is an error\n"
    "  --force                   replace outputs that exist; a file that is an input is never replaced\n"
    "  --threads N               threads that encode (default: one per core)\n"
    "  -q, --quiet               no progress\n"
    "  -h, --help                this text\n"
    "  -V, --version             version, commit and build\n"
    "\n"
    "Images (docs/vision.md), of records of kinds sft, preference and prompts:\n"
    "  --images PREPROCESSOR     how they are prepared: a preprocessor_config.json, or the folder of a\n"
    "                            model or tower with one. A record names its images as image or\n"
    "                            images, a path or a list of them, or in parts of its messages,\n"
    "                            {type: image, image: PATH}; file: URLs and data: URIs are read, too\n"
    "  --image-folder DIR        where paths that are not absolute begin (default: the record's file)\n"
    "  --image-token TEXT        what stands for an image in a text, one token of the tokenizer\n"
    "                            (default <image>); where no message of a chat has it, its images\n"
    "                            come before the first question\n"
    "  --image-tokens N          placeholders that it becomes (default: as many as the model makes of\n"
    "                            an image, by the config.json beside preprocessor or tokenizer)\n"
    "  --captions                chats are an image and its caption: the placeholders and\n"
    "                            the answer, which is the target, without template and question\n"
    "\n"
    "Recommendation data (--format minionerec; docs/recommendation.md):\n"
    "  --recipe WHICH            what the dataset is for: sft; rl, prompts with answers, without the\n"
    "                            preamble; or eval, prompts with answers as sft has them (default sft)\n"
    "  --index FILE              NAME.index.json: the semantic ID (SID) of each item\n"
    "  --items FILE              NAME.item.json: its title and description\n"
    "  --tasks LIST              what samples ask for, NAME,NAME:SAMPLE,... (default: what the template\n"
    "                            lists for the recipe). Of each row: sids-sid, sids-title, titles-sid,\n"
    "                            titles-sid-rl, titles-title; of each item: title-sid, sid-title,\n"
    "                            description-sid; with SAMPLE of so many of them, drawn by the seed\n"
    "  --category TEXT           what the items are called in the texts (default items)\n"
    "  --longest-only            only the row with the longest history of each user\n"
    "  --seed N                  of what is drawn (default 42)\n"
    "  --catalogue FILE          also write the info file, which rec.catalogue names\n"
    "  --template FILE.json      other texts than MiniOneRec's\n"
    "\n"
    "info: --seq-len L           also how many samples of L tokens there are\n"
    "\n"
    "Records (JSON objects; docs/data.md lists all fields):\n"
    "  {text}                                    a document\n"
    "  {messages: [{role, content}], system?}    chat; also as {conversation: ...}\n"
    "  {conversations: [{from, value}], system?, tools?}\n"
    "                                            ShareGPT\n"
    "  {prompt, completion}                      two texts (or two lists of messages): the completion\n"
    "                                            is the target\n"
    "  {instruction, input?, output or response, system?, history?}\n"
    "                                            Alpaca: written as a user's and an assistant's turn;\n"
    "                                            history: [[question, answer], ...]\n"
    "  {prompt?, chosen, rejected, margin?}      a preference, of texts or lists of messages; without\n"
    "                                            prompt: what both have in common at the start; the\n"
    "                                            prompt may be called conversations, question or\n"
    "                                            instruction; also {prompt, chosen_response,\n"
    "                                            rejected_response, safety_labels?}, PKU-SafeRLHF;\n"
    "                                            tie: true says that neither is better\n"
    "  {prompt?, responses, ranks? or scores?}   a ranking, the best first unless they say otherwise: all\n"
    "                                            pairs of its responses, equal ones as ties\n"
    "  {prompt, answer?}, {question, answer}     a prompt to generate from; a question is a user's\n"
    "                                            turn\n"
    "Fields that would change the training and are not supported (tool_calls, tools, videos, ...) are\n"
    "errors. Other fields are ignored, and listed at the end.\n"
    "\n"
    "Templates (--template). auto takes the one that writes what the tokenizer's own chat template\n"
    "writes, and plain if it has none. Your own template is a JSON file (docs/data.md). By name:\n";

static const char after_templates[] =
    "\n"
    "exit codes: 0 done, 64 usage, 65 bad or missing input, 70 fault, 74 writing failed\n";

/* ---- progress ---------------------------------------------------------------------------------------------------- */

typedef struct meter {
    double start_s, last_s, every_s;
    bool terminal, shown;
} meter;

static void show_progress(void *self, const dt_make_stats *s)
{
    meter *m = self;
    const double now_s = dt_now_s(), seconds = now_s - m->start_s + 1e-9;
    if (now_s - m->last_s < m->every_s) return;
    m->last_s = now_s;
    m->shown = m->terminal;
    char read[24], total[24], rate[24], left[24], share[48] = "", eta[40] = "", images[32] = "", line[256];
    dt_format_bytes((double)s->nbytes_read / seconds, rate);
    if (s->nbytes_total > 0 && s->nbytes_read > 0) {
        snprintf(share, sizeof share, " of %s (%.0f%%)", dt_format_bytes((double)s->nbytes_total, total),
                 100.0 * (double)s->nbytes_read / (double)s->nbytes_total);
        const double left_s = seconds * (double)(s->nbytes_total - s->nbytes_read) / (double)s->nbytes_read;
        snprintf(eta, sizeof eta, "  left %s", dt_format_duration(left_s, left));
    }
    if (s->n_images > 0) snprintf(images, sizeof images, "  %" PRId64 " images", s->n_images);
    snprintf(line, sizeof line, "%s%s  %" PRId64 " documents%s  %" PRId64 " tokens  %s/s%s",
             dt_format_bytes((double)s->nbytes_read, read), share, s->n_documents + s->n_validation_documents, images,
             s->n_tokens + s->n_validation_tokens, rate, eta);
    if (m->terminal)
        fprintf(stderr, "\r%s \033[K", line), fflush(stderr);
    else
        DT_INFO("%s", line);
}

static void report_problems(const dt_make_stats *s)
{
    int64_t n_listed = 0;
    if (s->n_bad) DT_WARN("%" PRId64 " malformed records left out", s->n_bad);
    for (int i = 0; i < s->n_problems; n_listed += s->problems[i++].n)
        DT_WARN("  %" PRId64 " x %s (first: %s)", s->problems[i].n, s->problems[i].reason, s->problems[i].first);
    if (n_listed < s->n_bad) DT_WARN("  %" PRId64 " for other reasons", s->n_bad - n_listed);
}

static void report_left_out(const dt_make_options *o, const dt_make_stats *s, const char *noun)
{
    static const char *const missing[] = {"any token", "any token to train on", "a completion on both sides",
                                          "a prompt"};
    if (s->n_truncated) DT_INFO("%" PRId64 " %s cut at %" PRId64 " tokens", s->n_truncated, noun, o->max_length);
    if (s->n_too_long)
        DT_INFO("%" PRId64 " %s of more than %" PRId64 " tokens dropped", s->n_too_long, noun, o->max_length);
    if (s->n_images) DT_INFO("%" PRId64 " images", s->n_images);
    if (s->n_dropped) DT_INFO("%" PRId64 " records without %s dropped", s->n_dropped, missing[s->kind]);
    if (s->n_parted)
        DT_INFO("%" PRId64
                " %s whose prompt and completion were encoded separately, because a token would span the boundary",
                s->n_parted, noun);
}

/* The most frequent first. */
static int compare_counts(const void *a, const void *b)
{
    const dt_field_count *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->name, y->name);
}

static void report_ignored(const dt_make_stats *s)
{
    enum { MOST = 20 }; /* names listed */
    dt_field_counts c = s->ignored;
    char list[MOST * (DT_FIELD_NAME_SIZE + 24)] = "";
    int n = 0;
    if (c.n_calls)
        DT_WARN("%" PRId64
                " messages of role function_call are answers with their text as it is, without the marks that the "
                "model's template may have for calls",
                c.n_calls);
    if (c.n == 0) return;
    qsort(c.field, (size_t)c.n, sizeof c.field[0], compare_counts);
    for (int i = 0; i < c.n && i < MOST; i++)
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%s (%" PRId64 ")", i ? ", " : "", c.field[i].name,
                      c.field[i].n);
    DT_INFO("ignored fields: %s%s", list, c.n > MOST ? ", and others" : "");
}

static void report_pairs(const dt_make_stats *s)
{
    if (s->equal.n)
        DT_WARN("%" PRId64 " of %" PRId64 " pairs have equal answers after encoding, which teach nothing (first: %s)",
                s->equal.n, s->n_pairs, s->equal.first);
    if (s->contradicted.n) dt_warn_contradicted(NULL, s->contradicted.n, s->n_pairs, s->contradicted.first);
}

static void report(const dt_make_options *o, const dt_make_stats *s, double seconds)
{
    const char *noun = s->kind == DT_DATASET_TOKENS ? "documents" : "samples";
    char text[24], rate[24], files[40] = "";
    if (o->n_shards || o->shard_nbytes) snprintf(files, sizeof files, " in %d files", s->n_shards);
    DT_INFO("%s: kind %s, %" PRId64 " %s, %" PRId64 " tokens%s", o->output, dt_dataset_kind_name(s->kind),
            s->n_documents, noun, s->n_tokens, files);
    if (o->validation)
        DT_INFO("%s: kind %s, %" PRId64 " %s, %" PRId64 " tokens", o->validation, dt_dataset_kind_name(s->kind),
                s->n_validation_documents, noun, s->n_validation_tokens);
    report_left_out(o, s, noun);
    report_ignored(s);
    report_pairs(s);
    report_problems(s);
    DT_INFO("%s read in %.1f s, %s/s", dt_format_bytes((double)s->nbytes_read, text), seconds,
            dt_format_bytes((double)s->nbytes_read / (seconds + 1e-9), rate));
}

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
    OPT_RECIPE, /* from here on for recommendation data */
    OPT_INDEX,
    OPT_ITEMS,
    OPT_TASKS,
    OPT_CATEGORY,
    OPT_LONGEST,
    OPT_SEED,
    OPT_CATALOGUE, /* up to here */
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

typedef struct command {
    dt_make_options make;
    const char *rec_option; /* one that is for recommendation data alone; NULL: there was none */
    bool quiet, help, version;
} command;

/* Where the word of an option goes; NULL: it is none that takes a word as it stands. */
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

/* What an option without a value switches, on unless it is OPT_NO_EOS; NULL: it is none. */
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
        return dt_fail(DT_ERR_ARG, "option %d has no place", which);
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
             "--%s is for --format minionerec", c->rec_option);
    c->make.inputs = (const char *const *)argv + optind;
    c->make.n_inputs = argc - optind;
    DT_CHECK(c->make.output, DT_ERR_USAGE, "expected -o OUT.h5 (dtrain-data --help)");
    DT_CHECK(c->make.n_inputs > 0, DT_ERR_USAGE, "expected input files (dtrain-data --help)");
    return DT_OK;
}

/* ---- what a model makes of an image ------------------------------------------------------------------------------ */

/* A whole vision-language model: what it takes in the place of an image. */
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

/* A tower alone, CLIP's or SigLIP's: its patches, as a projector that keeps their number has them. */
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
    DT_CHECK(asprintf(&path, "%s/config.json", directory) >= 0, DT_ERR_MEMORY, "no memory for a path");
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

/* The preprocessor's directory may have a model, and so may the tokenizer's. */
static dt_err size_images(dt_make_options *m)
{
    dt_image_options *o = &m->images;
    dt_preprocessor p;
    if (!o->preprocessor) return DT_OK;
    DT_TRY(dt_preprocessor_read(o->preprocessor, &p)); /* what is not there has no config.json either */
    dt_preprocessor_free(&p);
    DT_TRY(ask_model(o->preprocessor, o));
    if (strcmp(m->tokenizer, "bytes") != 0 && o->token_id < 0) DT_TRY(ask_model(m->tokenizer, o));
    DT_CHECK(o->n_tokens > 0, DT_ERR_USAGE,
             "--image-tokens: expected how many placeholders an image has, for no config.json of a vision-language "
             "model or a tower is in %s, and none of a vision-language model in %s",
             o->preprocessor, m->tokenizer);
    return DT_OK;
}

/* Words of text from column INDENT on, in lines of at most COLUMNS. */
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

/* A signal ends the making in order; main then lets the signal have its way. A second one does so at once. */
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
    DT_TRY(size_images(&c.make));
    meter m = {.start_s = dt_now_s(), .terminal = isatty(STDERR_FILENO)};
    m.last_s = m.start_s;
    m.every_s = m.terminal ? 0.25 : 30;
    if (!c.quiet) {
        c.make.progress = show_progress;
        c.make.progress_self = &m;
    }
    c.make.stop = &stop;
    catch_signals();
    dt_make_stats stats;
    const dt_err err = dt_make_datasets(&c.make, &stats);
    if (m.shown) fputs("\r\033[K", stderr);
    if (err == DT_OK) report(&c.make, &stats, dt_now_s() - m.start_s);
    return err;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

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

/* A path, or a pattern that the shell has left alone. */
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
