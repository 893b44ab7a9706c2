/* generate_options.c - the command line of dtrain-generate. */
#include "generate_app.h"
#include "../tool/tool.h"
#include "dtrain/serve/http.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BATCH = 16, DEFAULT_NEW = 128 };

static const char usage[] =
    "usage: dtrain-generate MODEL [-] [options]\n"
    "       dtrain-generate --score MODEL --answers FILE [options]\n"
    "       dtrain-generate MODEL --top-logprobs K --data FILES -o FILE [options]\n"
    "Continues prompts with a trained model, on one rank or on several under mpirun. MODEL is a\n"
    "checkpoint (.h5), a run's output_dir, or a Hugging Face model directory. With the argument -,\n"
    "prompts are read from standard input, one per line.\n";

static dt_err take_ids(void *self, const tool_row *row, char *text)
{
    dt_ids *ids = (dt_ids *)(void *)((char *)self + row->at);
    char **items;
    int n;
    DT_TRY(dt_config_split(text, &items, &n));
    dt_err err =
        n > 0 ? DT_OK : dt_fail(DT_ERR_USAGE, "--%s: expected token ids separated by commas, found none", row->name);
    for (int i = 0; i < n && err == DT_OK; i++) {
        int64_t id;
        err = tool_parse_int(row->name, items[i], 0, INT32_MAX, &id);
        if (err == DT_OK) err = dt_ids_reserve(ids, 1);
        if (err == DT_OK) ids->id[ids->n++] = (int32_t)id;
    }
    dt_list_free(items, n);
    return err;
}

static dt_err take_stop(void *self, const tool_row *row, char *text)
{
    options *o = self;
    (void)row;
    DT_CHECK(text[0], DT_ERR_USAGE, "--stop: expected a text");
    DT_CHECK(o->n_stop < DT_MAX_STOPS, DT_ERR_USAGE, "--stop: at most %d texts", DT_MAX_STOPS);
    o->stop[o->n_stop++] = text;
    return DT_OK;
}

static dt_err take_image(void *self, const tool_row *row, char *path)
{
    options *o = self;
    (void)row;
    DT_CHECK(path[0], DT_ERR_USAGE, "--image: expected the name of a file");
    DT_CHECK(o->n_images < MAX_GIVEN_IMAGES, DT_ERR_USAGE, "--image: at most %d files", MAX_GIVEN_IMAGES);
    o->image[o->n_images++] = path;
    return DT_OK;
}

#define GIVEN(FIELD) .given = offsetof(options, given.FIELD)
#define IDS(FIELD) .kind = TOOL_CALL, .take = take_ids, .at = offsetof(options, FIELD)

/* clang-format off */
static const tool_row rows[] = {
    {HEADING("Prompts")},
    {"prompt", "TEXT", TO(prompt), "the prompt (default: none; the model starts from its begin token)", .text = true},
    {"prompts", "FILE", TO(prompts),
     "many prompts, - for standard input: JSON objects, one per line or in an array, with \"prompt\" (a text), "
     "\"messages\" (a conversation) or \"ids\" (token ids). With --jsonl, other fields are copied to the output"},
    {"image", "FILE", CALL(take_image),
     "add an image (JPEG, PNG, WebP or PPM) to the prompt of a vision-language model; may be given several times. The "
     "n-th image replaces the n-th <image> of the prompt. Without <image>, all images precede the prompt. With -, "
     "every prompt gets the images; with --chat, the first message does. Records of --prompts name their own: "
     "\"image\", \"images\" (paths relative to the folder of FILE) or parts of messages"},
    {"vision", "PART", WORD(part),
     "part of a directory with a model with images: none, its text model; whole; or auto: the whole model, but the "
     "text model of Qwen3.5 if no prompt can have images (default auto)", DT_MODEL_USUAL, .words = "auto,none,whole"},
    {"chat", NULL, TO(chat),
     "interactive chat: each line is a message. /help lists the commands, Ctrl-C stops an answer, Ctrl-D or /exit "
     "quits. In a pipe every line is a message and there are no commands. With --prompt: answer it and exit"},
    {"system", "TEXT", TO(system), "system message of a conversation", .text = true},
    {"tools", "FILE", TO(tools),
     "descriptions of tools for --chat and for messages without their own: a JSON list of {name, parameters, ...} or "
     "of {type: function, function: {...}}"},
    {"chat-template", "NAME", TO(chat_template),
     "chat template: a name, a JSON file, a Jinja file, or auto for the tokenizer's own (default: the template that is "
     "stored in the checkpoint, otherwise auto)"},
    {"no-think", NULL, TO(no_think), "request an answer without thinking, if the template supports it"},
    {HEADING("Tokens (defaults come from the model's generation_config.json, if it has one)")},
    {"max-new-tokens", "N", TO(max_new_tokens), "maximum length of a continuation (default 128)", 1, INT32_MAX,
     GIVEN(max_new)},
    {"min-new-tokens", "N", TO(rules.min_new_tokens), "generate at least N tokens before the end token (default 0)", 0,
     INT32_MAX, GIVEN(min_new)},
    {"stop", "TEXT", CALL(take_stop), NULL, .text = true},
    {"stop-strings", "TEXT", CALL(take_stop), "end a continuation at this text; may be given several times",
     .text = true},
    {"no-repeat-ngram-size", "N", TO(rules.no_repeat_ngram_size),
     "never repeat a sequence of N tokens, prompt included (default 0: may repeat)", 0, INT32_MAX, GIVEN(ngram)},
    {"suppress-tokens", "IDS", IDS(rules.suppress), "never generate these tokens (ids separated by commas)",
     GIVEN(suppress)},
    {"begin-suppress-tokens", "IDS", IDS(rules.begin_suppress), "never generate these tokens first",
     GIVEN(begin_suppress)},
    {"temperature", "T", TO(sampling.temperature), "divide the logits by T (default 1; 0: greedy)", GIVEN(temperature)},
    {"top-k", "K", TO(sampling.top_k), "sample from the K most probable tokens (default 0: all)", 0, INT32_MAX,
     GIVEN(top_k)},
    {"top-p", "P", TO(sampling.top_p),
     "sample from the smallest set of most probable tokens whose total probability reaches P (default 1: all)",
     GIVEN(top_p)},
    {"min-p", "P", TO(sampling.min_p), "sample from tokens with at least P times the maximum probability (default 0)",
     GIVEN(min_p)},
    {"repetition-penalty", "R", TO(sampling.repetition_penalty),
     "penalty for tokens that already occurred (default 1: none)", GIVEN(penalty)},
    {"greedy", NULL, TO(sampling.greedy), "always take the most probable token", GIVEN(greedy)},
    {"num-samples", "N", TO(num_samples), "continuations per prompt (default 1)", 1, INT32_MAX},
    {"seed", "N", TO(sampling.seed), "seed of the random generator (default 42)", 0, TOOL_NO_LIMIT},
    {"num-beams", "B", TO(beams.n_beams), "beam search with B beams (default 1: no beam search)", 1, 1 << 16,
     GIVEN(beams)},
    {"length-penalty", "A", TO(beams.length_penalty),
     "score beams by log-probability / (new tokens)^A (default 1; 0 with --catalogue)", GIVEN(length_penalty)},
    {"early-stopping", NULL, TO(beams.early_stopping),
     "stop a search when B sequences are finished, even if a better one is possible", GIVEN(early)},
    {"num-return", "N", TO(beams.n_return), "return the best N sequences per search (default 1)", 1, 1 << 16},
    {"catalogue", "FILE", TO(catalogue),
     "restrict continuations to the items of a recommender (lines: semantic ID, tab, title, tab, item id): one of the "
     "IDs, a newline and the end token"},
    {HEADING("Output")},
    {"output", "FILE", TO(output),
     "write the text to FILE instead of standard output, where launchers may mix the output of ranks. FILE appears "
     "when it is complete", .letter = 'o'},
    {"force", NULL, TO(force), "replace an existing FILE"},
    {"stream", NULL, TO(stream), "print tokens as they are generated"},
    {"jsonl", NULL, TO(jsonl), "print a JSON object per continuation, in the order of the prompts"},
    {"logprobs", NULL, TO(logprobs), "with --jsonl: add the log-probabilities of the new tokens and their sum"},
    {"verbose", NULL, TO(verbose), "print the settings in use to standard error"},
    {HEADING("Scores")},
    {"score", "MODEL", TO(score),
     "score each prompt and its continuation with a reward model (a directory, a checkpoint, a run's output_dir). "
     "--jsonl stores the score as \"reward\". The summary reports the mean and the share of scores above 0, which for "
     "a harmlessness model is the safety rate. With --answers, MODEL may also be a classifier or a model of "
     "embeddings: --jsonl stores \"predicted\" or \"value\", or \"embedding\""},
    {"answers", "FILE", TO(answers),
     "score these answers, and generate nothing; - for standard input. JSON objects, one per line or in an array, with "
     "\"prompt\" and \"completion\", \"response\" or \"answer\" (texts, or lists of messages), with \"messages\", with "
     "\"ids\", or as written by --jsonl; for classifiers and embeddings with \"text\", or \"text_a\" and \"text_b\""},
    {HEADING("Distillation")},
    {"top-logprobs", "K", TO(top_logprobs),
     "generate nothing; write the K most probable tokens at each target of --data, with their log-probabilities, to "
     "the HDF5 file of -o, from which students train (distill.teacher_logprobs). --temperature divides the logits", 1,
     1 << 20},
    {"data", "FILES", TO(data), "dataset files of kind sft, as in data.train of the students"},
    {"seq-len", "N", TO(seq_len), "cut texts at N tokens, the students' data.seq_len (default: 1024)", 1, 16777216},
    {HEADING("Server")},
    {"serve", "HOST:PORT", TO(serve),
     "answer requests in the form of OpenAI's API at HOST:PORT until SIGTERM or SIGINT; PORT alone listens on the "
     "loopback interface. --batch-size is the number of sequences at a time on each rank", .text = true},
    {"api-key-file", "FILE", TO(api_key_file), "accept only requests with one of the keys in FILE, one per line"},
    {"max-queue", "N", TO(max_queue), "refuse requests while N sequences wait (default 256)", 0, INT32_MAX / 2},
    {"max-body", "BYTES", BYTES(max_body), "refuse larger requests (default 8M)"},
    {"request-timeout", "S", TO(request_timeout_s), "give up a request after S seconds (default 600)", 0.001, 1e9},
    {"grace", "S", TO(grace_s), "seconds for answers in progress when the server stops (default 30)", 0, 1e9},
    {HEADING("Running")},
    {"adapter", "DIR", TO(adapter),
     "apply the LoRA adapters of DIR (PEFT format), such as the OUTPUT_DIR/adapter of a run with lora.r"},
    {"tokenizer", "NAME", TO(tokenizer),
     "a directory or tokenizer.json; bytes; or ids: prompts and continuations are token ids separated by spaces "
     "(default: the model's own, else bytes)"},
    {"batch-size", "B", TO(batch_size), "sequences per rank at a time (default 16)", 1, 1 << 20},
    {"context", "N", TO(context),
     "maximum tokens in a conversation with --chat or a request of --serve, answer included (default: the model's "
     "limit, at most 4096)", 2, INT32_MAX},
    {"dtype", "TYPE", WORD(dtype), "fp32, bf16 or fp16 (default fp32)", DT_F32, .words = "fp32,bf16,fp16"},
    {"zero-stage", "N", TO(stage), "0, or 3 to shard the parameters over the ranks (default 0)", 0, 3},
    {"threads", "N", TO(threads), "threads per rank (default: the node's cores divided by its ranks)", 0, 4096},
    {"device", "NAME", TO(device), "auto, cpu or cuda (default auto)"},
    {"no-graphs", NULL, TO(no_graphs),
     "on a GPU: do not record decoding steps as CUDA graphs. Graphs produce the same tokens with fewer calls"},
    {"timeout", "S", TO(timeout_s), "end with exit code 76 after S seconds without progress (default 1800)", 1, 1e9},
    TOOL_ROWS};
/* clang-format on */

const tool_help generate_help = {usage, rows,
                                 "\nResults do not depend on the number of ranks, the stage or the batch size.\n",
                                 .codes = 1U << DT_ERR_NONFINITE | 1U << DT_ERR_COMM};

bool generate_draws(const options *o)
{
    return o->given.temperature || o->given.top_k || o->given.top_p || o->given.min_p || o->num_samples > 1;
}

/* Warns that sampling options have no effect with greedy decoding, as transformers does. */
static void warn_of_greedy(const options *o)
{
    const bool zero = o->given.temperature && o->sampling.temperature == 0;
    const struct {
        const char *name;
        bool given;
    } all[] = {{"--temperature", o->given.temperature && o->given.greedy},
               {"--top-k", o->given.top_k},
               {"--top-p", o->given.top_p},
               {"--min-p", o->given.min_p}};
    char names[64] = "";
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].given)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "", all[i].name);
    if ((o->given.greedy || zero) && *names)
        DT_WARN("%s always takes the most probable token, so these options have no effect: %s",
                o->given.greedy ? "--greedy" : "--temperature 0", names);
}

static dt_err check_beams(const options *o)
{
    const dt_beam_options *b = &o->beams;
    DT_CHECK(b->n_beams == 1 || !generate_draws(o), DT_ERR_USAGE,
             "--num-beams: beam search does not sample; it cannot be combined with --temperature, --top-k, --top-p, "
             "--min-p and --num-samples");
    DT_CHECK(b->n_return <= b->n_beams, DT_ERR_USAGE, "--num-return: expected at most --num-beams = %d, found %d",
             b->n_beams, b->n_return);
    DT_CHECK(b->n_beams == 1 || (!o->stream && !o->chat), DT_ERR_USAGE,
             "--num-beams: cannot be combined with --stream and --chat");
    DT_CHECK(!o->given.max_new || o->rules.min_new_tokens <= o->max_new_tokens, DT_ERR_USAGE,
             "--min-new-tokens: expected at most --max-new-tokens = %" PRId64 ", found %" PRId32, o->max_new_tokens,
             o->rules.min_new_tokens);
    return DT_OK;
}

static dt_err check_scoring(const options *o)
{
    DT_CHECK(!o->answers || o->score, DT_ERR_USAGE, "--answers needs --score, the model that scores them");
    DT_CHECK(!o->answers || (!o->model && !o->prompt && !o->prompts && !o->standard_input), DT_ERR_USAGE,
             "--answers: nothing is generated, so it cannot be combined with a model or a prompt");
    DT_CHECK(!o->catalogue || (!o->answers && !o->chat), DT_ERR_USAGE,
             "--catalogue: cannot be combined with --answers and --chat");
    DT_CHECK(!o->catalogue || (o->rules.min_new_tokens == 0 && o->n_stop == 0 && o->rules.no_repeat_ngram_size == 0 &&
                               o->rules.suppress.n == 0 && o->rules.begin_suppress.n == 0),
             DT_ERR_USAGE,
             "--catalogue: cannot be combined with --min-new-tokens, --stop, --no-repeat-ngram-size, --suppress-tokens "
             "and --begin-suppress-tokens: only the catalogue determines what may follow a prompt");
    DT_CHECK(!o->score || (!o->stream && !o->chat), DT_ERR_USAGE,
             "--score: cannot be combined with --stream and --chat");
    return DT_OK;
}

/* Are there prompts, scores or forms of output, which --top-logprobs and --serve exclude? */
static bool has_prompts(const options *o)
{
    return o->prompt || o->prompts || o->standard_input || o->chat || o->score || o->n_images > 0 ||
           o->beams.n_beams > 1 || o->jsonl || o->stream || o->catalogue;
}

static dt_err check_logprobs(const options *o)
{
    DT_CHECK(o->top_logprobs > 0 || (!o->data && o->seq_len == 0), DT_ERR_USAGE,
             "--data and --seq-len need --top-logprobs");
    DT_CHECK(o->top_logprobs == 0 || (o->data && o->output), DT_ERR_USAGE,
             "--top-logprobs: expected --data, the dataset, and -o, the file to write");
    DT_CHECK(o->top_logprobs == 0 || !has_prompts(o), DT_ERR_USAGE,
             "--top-logprobs: nothing is generated, so it cannot be combined with prompts, scores and their output");
    DT_CHECK(o->top_logprobs == 0 || !o->given.temperature || o->sampling.temperature > 0, DT_ERR_USAGE,
             "--temperature: expected above 0 with --top-logprobs, found 0");
    return DT_OK;
}

static dt_err check_serve(const options *o)
{
    const bool other =
        has_prompts(o) || o->top_logprobs > 0 || o->output || o->system || o->tools || o->num_samples > 1;
    if (o->serve) DT_TRY(dt_http_available());
    DT_CHECK(o->serve || !o->api_key_file, DT_ERR_USAGE, "--api-key-file needs --serve");
    DT_CHECK(
        !o->serve || !other, DT_ERR_USAGE,
        "--serve: requests have the prompts, so it cannot be combined with prompts, beams, a catalogue, scores and "
        "forms of output");
    return DT_OK;
}

static dt_err check_options(const options *o)
{
    DT_TRY(check_logprobs(o));
    DT_TRY(check_scoring(o));
    DT_TRY(check_serve(o));
    const bool ids = o->tokenizer && strcmp(o->tokenizer, "ids") == 0;
    DT_CHECK(o->model || o->answers, DT_ERR_USAGE,
             "expected a checkpoint, a run's directory or a model directory; see dtrain-generate --help");
    DT_CHECK((o->prompt && !o->chat) + !!o->prompts + o->standard_input + o->chat <= 1, DT_ERR_USAGE,
             "--prompt, --prompts, - and --chat: expected one of them, or --chat with --prompt");
    DT_CHECK(
        o->chat || o->prompts || o->answers || o->serve ||
            (!o->system && !o->tools && !o->chat_template && !o->no_think),
        DT_ERR_USAGE,
        "--system, --tools, --chat-template and --no-think: expected --chat, --prompts or --answers, because other "
        "prompts are no conversations");
    DT_CHECK(o->stage == 0 || o->stage == 3, DT_ERR_USAGE,
             "--zero-stage: expected 0 or 3 (generation has only parameters to partition), found %" PRId64, o->stage);
    DT_CHECK(o->stream + o->jsonl + o->chat <= 1, DT_ERR_USAGE, "--stream, --jsonl and --chat: expected one of them");
    DT_CHECK(o->n_images == 0 || (!o->prompts && !o->score), DT_ERR_USAGE,
             "--image: expected --prompt, - or --chat; records of --prompts name their own images, and --score accepts "
             "only texts");
    DT_CHECK(!o->force || o->output, DT_ERR_USAGE, "--force needs -o, whose file it replaces");
    DT_CHECK(!o->output || o->output[0], DT_ERR_USAGE, "-o: expected the name of a file");
    DT_CHECK(!o->logprobs || o->jsonl, DT_ERR_USAGE, "--logprobs needs --jsonl");
    DT_CHECK(!ids || (o->n_stop == 0 && !o->chat && !o->serve), DT_ERR_USAGE,
             "--tokenizer ids: expected none of --stop, --chat and --serve, which need text");
    DT_CHECK(!o->chat || o->num_samples == 1, DT_ERR_USAGE,
             "--chat: expected one answer per message, found --num-samples %" PRId64, o->num_samples);
    DT_TRY(check_beams(o));
    warn_of_greedy(o);
    return dt_sampling_check(&o->sampling);
}

dt_err generate_parse_options(options *o, int argc, char **argv)
{
    *o = (options){.device = "auto",
                   .sampling = dt_sampling_default(),
                   .beams = {.n_beams = 1, .n_return = 1, .length_penalty = 1},
                   .max_new_tokens = DEFAULT_NEW,
                   .num_samples = 1,
                   .batch_size = DEFAULT_BATCH,
                   .max_queue = 256,
                   .max_body = 8 << 20,
                   .request_timeout_s = 600,
                   .grace_s = 30,
                   .timeout_s = 1800};
    o->sampling.seed = 42;
    DT_TRY(tool_parse(rows, o, argc, argv));
    if (o->help || o->version) return DT_OK;
    for (; optind < argc; optind++) {
        if (strcmp(argv[optind], "-") == 0) {
            o->standard_input = true;
        } else {
            DT_CHECK(!o->model, DT_ERR_USAGE, "expected one model, found '%s' and '%s'; give a prompt as --prompt TEXT",
                     o->model, argv[optind]);
            o->model = argv[optind];
        }
    }
    return check_options(o);
}

void generate_free_options(options *o)
{
    free(o->rules.suppress.id);
    free(o->rules.begin_suppress.id);
}

void generate_print_settings(const app *a)
{
    const options *o = &a->opt;
    const dt_sampling *s = &o->sampling;
    fprintf(stderr, "dtrain-generate: %s, tokenizer %s, at most %" PRId64 " new tokens, repetition penalty %g, ",
            a->frozen.from.path, a->tok ? dt_tokenizer_get_info(a->tok)->name : "ids", o->max_new_tokens,
            s->repetition_penalty);
    if (o->beams.n_beams > 1)
        fprintf(stderr, "%d beams, length penalty %g%s", o->beams.n_beams, o->beams.length_penalty,
                o->beams.early_stopping ? ", early stopping" : "");
    else if (s->greedy || s->temperature == 0)
        fprintf(stderr, "greedy");
    else
        fprintf(stderr, "temperature %g, top-k %" PRId64 ", top-p %g, min-p %g, seed %" PRIu64, s->temperature,
                s->top_k, s->top_p, s->min_p, s->seed);
    if (o->rules.min_new_tokens > 0) fprintf(stderr, ", at least %" PRId32 " new tokens", o->rules.min_new_tokens);
    if (o->rules.no_repeat_ngram_size > 0)
        fprintf(stderr, ", no repeated sequence of %" PRId32 " tokens", o->rules.no_repeat_ngram_size);
    if (o->rules.suppress.n > 0) fprintf(stderr, ", %zu suppressed tokens", o->rules.suppress.n);
    if (o->rules.begin_suppress.n > 0) fprintf(stderr, ", %zu suppressed first tokens", o->rules.begin_suppress.n);
    fprintf(stderr, ", ends at");
    for (int i = 0; i < a->n_eos; i++) fprintf(stderr, " %" PRId32, a->eos[i]);
    fprintf(stderr, a->n_eos ? "\n" : " nothing\n");
}
