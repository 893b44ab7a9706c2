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
    "\n";

static const char notes[] =
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
    "  {text, label}, {text_a, text_b, label}, {text, labels}, {tokens, labels}\n"
    "                                            with --kind labels: a label of a text or two, several,\n"
    "                                            or one for each word\n"
    "  {query, positive, negative? or negatives?, instruction?}\n"
    "                                            texts for embeddings\n"
    "Conversations may have tools: tools or functions in the record, tool_calls or function_call in\n"
    "answers. Fields that would change the training but are not supported (videos, labels, ...) are\n"
    "errors. Other fields are ignored, and listed at the end.\n"
    "\n"
    "Templates (--template). auto is the tokenizer's own chat template, or plain if the tokenizer has\n"
    "none. You can also write one as a Jinja or JSON file (docs/data.md). By name:\n";

/* ---- make -------------------------------------------------------------------------------------------------------- */

typedef struct options {
    dt_make_options make;
    const char *rec_option, *amazon_option; /* an option given that requires this format; NULL: none */
    bool quiet, help, version;
} options;

/* Replaces the escapes for newline, tab and backslash, in place. */
static dt_err take_separator(void *self, const tool_row *row, char *text)
{
    dt_make_options *m = &((options *)self)->make;
    char *to = text;
    (void)row;
    m->documents = DT_DOCUMENTS_SEPARATOR;
    m->separator = text;
    for (const char *from = text; *from; from++) {
        const bool escape = from[0] == '\\' && from[1] && strchr("nt\\", from[1]);
        from += escape;
        *to++ = (char)(escape && *from == 'n' ? '\n' : escape && *from == 't' ? '\t' : *from);
    }
    *to = '\0';
    return DT_OK;
}

#define REC .given = offsetof(options, rec_option)
#define AMAZON .given = offsetof(options, amazon_option)

#define KIND_HELP(upper, lower, help) ", " #lower " (" help ")"
#define KIND_WORD(upper, lower, help) #lower ","
/* clang-format off */
static const tool_row rows[] = {
    {"output", "FILE", TO(make.output), "the dataset", .letter = 'o'},
    {"validation", "FILE", TO(make.validation), "second dataset, with documents that the first does not contain"},
    {"validation-fraction", "F", TO(make.validation_fraction),
     "fraction of documents for --validation, above 0 and below 1. They are chosen by a hash of the document's content "
     "(pairs: of the prompt)"},
    {"shards", "N", TO(make.n_shards),
     "write N files of about equal size, OUT-00000-of-0000N.h5 and so on, to be read in this order", 1, TOOL_NO_LIMIT},
    {"shard-size", "SIZE", BYTES(make.shard_nbytes),
     "write as many files as needed to keep each within SIZE, such as 500M, 5GB or 2GiB (G and GB are 10^9 bytes, GiB "
     "is 2^30 bytes)"},
    {"kind", "KIND", WORD(make.kind),
     "auto" DT_KIND_LIST(KIND_HELP) " (default auto: by the first document)",
     .words = DT_KIND_LIST(KIND_WORD) "auto"},
    {"format", "FORMAT", WORD(make.format),
     "auto, text, json, minionerec or amazon (default auto: json for .jsonl, .ndjson, .json (lines or an array) and "
     "Parquet files, whose rows are records; text for others, unless the content is clearly not text). text accepts "
     "any bytes. minionerec: rows of user-item interactions; amazon: dumps of reviews, see below",
     .words = "auto,text,json,minionerec,amazon"},
    {"documents", "HOW", WORD(make.documents),
     "how to split plain text into documents: files, lines, paragraphs or separator (default files). Blank documents "
     "are skipped",
     .words = "files,lines,paragraphs,separator"},
    {"separator", "TEXT", CALL(take_separator),
     "plain text: end a document at TEXT (\\n, \\t and \\\\ are escapes)", .text = true},
    {"tokenizer", "NAME", TO(make.tokenizer),
     "bytes (ids 0 to 255 are bytes, 256 is end of text), a tokenizer.json or tokenizer.model, or a folder with one"},
    {"template", "NAME", TO(make.chat_template),
     "chat template, see below (default auto). With --format minionerec, a JSON file: texts to use instead of "
     "MiniOneRec's"},
    {"as-chat", NULL, TO(make.as_chat),
     "write plain-text prompts and completions as a user's and an assistant's turn"},
    {"no-think", NULL, TO(make.no_think), "prompts: request answers without thinking, if the template supports it"},
    {"mask", "MASK", WORD(make.mask),
     "sft: tokens to train on: full (all but the first), completion (everything after the prompt; in a chat, the last "
     "answer), assistant (all answers and their end tokens), or auto (full for text, completion for records with a "
     "prompt, assistant for chats)", .words = "auto,full,completion,assistant"},
    {"weight-key", "NAME", TO(make.weight_key), "sft: record field with the sample's loss weight", .text = true},
    {"prefer", "WHICH", WORD(make.prefer),
     "better or safer: which answer of a PKU-SafeRLHF record is chosen (default better)", .words = "better,safer"},
    {"max-length", "N", TO(make.max_length), "maximum tokens in a document or sample (default 0: no limit)", 0,
     TOOL_NO_LIMIT},
    {"truncate", "HOW", WORD(make.truncate),
     "how to treat longer ones: keep_start, keep_end or drop (default keep_start; preferences: drop; prompts and "
     "format minionerec: keep_end)", .words = "auto,keep_start,keep_end,drop"},
    {"turn-budgets", NULL, TO(make.turn_budgets),
     "chats: truncate the question and the answer of each turn to their shares of --max-length"},
    {"append-eos", NULL, TO(make.append_eos), NULL},
    {"no-append-eos", NULL, CLEAR(make.append_eos),
     "append end of text to each document, and to each answer that the template does not end with a token (default: "
     "on)"},
    {"skip-bad", NULL, TO(make.skip_bad),
     "skip malformed records and count them by reason (default: the first one is an error)"},
    {"force", NULL, TO(make.force), "replace existing outputs; an input file is never replaced"},
    {"threads", "N", TO(make.n_threads), "encoder threads (default: one per core)", 1, INT_MAX},
    {"quiet", NULL, TO(quiet), "print only warnings and errors: no progress, no summary", .letter = 'q'},
    {HEADING("Images (docs/vision.md), in records of all kinds but tokens")},
    {"images", "PREPROCESSOR", TO(make.images.preprocessor),
     "how to preprocess images: a preprocessor_config.json, or the folder of a model or tower with one. A record names "
     "its images as image or images (a path or a list of paths), or in parts of its messages: "
     "{type: image, image: PATH}. file: URLs and data: URIs also work"},
    {"image-folder", "DIR", TO(make.images.folder),
     "base folder of relative paths (default: the record file's folder)"},
    {"image-token", "TEXT", TO(make.images.token),
     "placeholder of an image in a text, one token of the tokenizer (default <image>). If no message of a chat "
     "contains it, the chat's images precede the first question", .text = true},
    {"image-tokens", "N", TO(make.images.n_tokens),
     "placeholder tokens per image (default: computed from the config.json next to the preprocessor or tokenizer)", 1,
     DT_MAX_IMAGE_TOKENS},
    {"captions", NULL, TO(make.images.captions),
     "each chat is an image and its caption: write placeholders and answer without template and question, and train on "
     "the answer"},
    {HEADING("Recommendation data (--format minionerec; docs/recommendation.md)")},
    {"recipe", "WHICH", TO(make.rec.recipe),
     "purpose of the dataset: sft; rl (prompts with answers, without the preamble); or eval (prompts with answers, as "
     "in sft) (default sft)", REC},
    {"index", "FILE", TO(make.rec.index), "NAME.index.json: the semantic ID (SID) of each item", REC},
    {"items", "FILE", TO(make.rec.items),
     "NAME.item.json: title and description of each item; of amazon: the dump of the items"},
    {"tasks", "LIST", TO(make.rec.tasks),
     "sample types, NAME,NAME:SAMPLE,... (default: those of the template for this recipe). Per row: sids-sid, "
     "sids-title, titles-sid, titles-sid-rl, titles-title. Per item: title-sid, sid-title, description-sid. SAMPLE: "
     "keep this many samples, chosen by the seed", REC},
    {"category", "TEXT", TO(make.rec.category), "what the texts call the items (default items)", REC},
    {"longest-only", NULL, TO(make.rec.longest), "keep only the row with the longest history of each user", REC},
    {"seed", "N", TO(make.rec.seed), "seed of the sampling (default 42)", 0, TOOL_NO_LIMIT, REC},
    {"catalogue", "FILE", TO(make.rec.catalogue), "also write the info file for rec.catalogue", REC},
    {HEADING("Amazon's reviews (--format amazon -o PREFIX; docs/recommendation.md)")},
    {"k-core", "K", TO(make.rec.k_core), "minimum number of reviews of users and items (default 5)", 1, INT32_MAX,
     AMAZON},
    {"from", "YYYY-MM", TO(make.rec.from), "omit reviews before this month (default: none)", AMAZON},
    {"to", "YYYY-MM", TO(make.rec.to), "omit reviews after the first second of this month (default: none)", AMAZON},
    {"min-items", "N", TO(make.rec.min_items),
     "move --from back by years, at most to 1996, until N items are left (MiniOneRec for 2018: 3000)", 0, INT32_MAX,
     AMAZON},
    {HEADING("General")},
    TOOL_ROWS};
/* clang-format on */

static dt_err parse(int argc, char **argv, options *c)
{
    c->make = (dt_make_options){.kind = DT_ANY_KIND,
                                .tokenizer = "bytes",
                                .chat_template = "auto",
                                .append_eos = true,
                                .images = {.token = "<image>", .token_id = -1},
                                .rec = {.recipe = "sft", .seed = 42, .k_core = 5}};
    DT_TRY(tool_parse(rows, c, argc, argv));
    if (c->help || c->version) return DT_OK;
    DT_CHECK(!c->rec_option || c->make.format == DT_INPUT_MINIONEREC, DT_ERR_USAGE, "--%s needs --format minionerec",
             c->rec_option);
    DT_CHECK(!c->amazon_option || c->make.format == DT_INPUT_AMAZON, DT_ERR_USAGE, "--%s needs --format amazon",
             c->amazon_option);
    DT_CHECK(!c->make.rec.items || c->make.format == DT_INPUT_MINIONEREC || c->make.format == DT_INPUT_AMAZON,
             DT_ERR_USAGE, "--items needs --format minionerec or amazon");
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
    dt_err err = DT_OK;
    DT_TRY(dt_model_config_parse(&mc, path, text));
    if (mc.vision) {
        const int64_t n = mc.vision->n_tokens;
        if ((mc.vision->grids || mc.vision->wrapped) && o->n_tokens && o->n_tokens != n)
            err = dt_fail(DT_ERR_USAGE, "--image-tokens: expected %" PRId64 "%s, as in %s, found %" PRId64, n,
                          mc.vision->grids ? " for each cell of an image" : "", path, o->n_tokens);
        if (!o->n_tokens) o->n_tokens = n;
        o->token_id = mc.vision->image_token;
        o->size = mc.vision->image_size;
        o->grids = dt_vision_has_cells(mc.vision);
        memcpy(o->around, mc.vision->around, sizeof o->around);
        memcpy(o->around_name, mc.vision->tower->around, sizeof o->around_name);
        o->wrapped = mc.vision->wrapped || mc.vision->tiles;
        o->image_line = mc.vision->tiles;
    }
    dt_model_config_free(&mc);
    return err;
}

/* A CLIP or SigLIP tower without projector: its number of patches, assuming that the projector keeps it. */
static dt_err ask_tower(const char *directory, const json_t *config, dt_image_options *o)
{
    const json_t *vision = json_object_get(config, "vision_config"), *tower = vision ? vision : config,
                 *size = json_object_get(tower, "image_size"), *patch = json_object_get(tower, "patch_size");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const dt_tower *kind = dt_tower_find(type);
    if (vision && type && !kind) { /* another model: its tower is not used, but its tokenizer may be */
        DT_CHECK(directory != o->preprocessor, DT_ERR_DATA,
                 "%s/config.json: model_type: expected a vision-language model that dtrain reads, or a tower (CLIP, "
                 "SigLIP), found \"%.60s\"",
                 directory, type);
        return DT_OK;
    }
    const int64_t S = size ? (int64_t)json_integer_value(size) : 224, P = patch  ? (int64_t)json_integer_value(patch)
                                                                          : kind ? kind->patch_size
                                                                                 : 0;
    if (P < 1 || S < P || S > DT_MAX_IMAGE_SIZE) return DT_OK;
    o->size = S;
    if (!o->n_tokens) o->n_tokens = (S / P) * (S / P);
    return DT_OK;
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
        if (json_object_get(config, "vision_config") && dt_model_has_vision(config))
            err = ask_llava(path, text, o);
        else
            err = ask_tower(directory, config, o);
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
             "--image-tokens: expected the number of placeholder tokens per image, because no config.json gives it: "
             "%s has none of a vision-language model or a tower, and %s has none of a vision-language model",
             o->preprocessor, m->tokenizer);
    return DT_OK;
}

static void print_templates(void)
{
    const char *name, *about;
    for (int i = 0; dt_chat_named(i, &name, &about); i++) {
        printf("  %-15s ", name);
        dt_print_wrapped(stdout, about, 18);
    }
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
    options c = {0};
    DT_TRY(parse(argc, argv, &c));
    if (tool_answers(&(tool_help){usage, rows, notes, .more = print_templates}, c.help, c.version)) return DT_OK;
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
    if (c.make.format == DT_INPUT_AMAZON) return dt_make_amazon(&c.make);
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

static const tool_row look_rows[] = {
    {"seq-len", "L", TOOL_FIELD(look, seq_len), "also print the number of samples of L tokens", 1, TOOL_NO_LIMIT},
    {"tokenizer", "NAME", TOOL_FIELD(look, tokenizer), ""},
    {0}};

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
    DT_TRY(tool_parse(look_rows, l, argc, argv));
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
