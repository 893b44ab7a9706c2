/* generate_options.c - the command line of dtrain-generate. */
#include "generate_app.h"
#include "../tool/tool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BATCH = 16, DEFAULT_NEW = 128 };

const char generate_usage[] =
    "usage: dtrain-generate MODEL [-] [options]\n"
    "       dtrain-generate --score MODEL --answers FILE [options]\n"
    "Continues prompts with a trained model, on one rank or on several under mpirun. MODEL is a\n"
    "checkpoint (.h5), a run's output_dir, or a Hugging Face model directory.\n"
    "\n"
    "Prompts\n"
    "  --prompt TEXT           the prompt (default: none; the model starts from its begin token)\n"
    "  --prompts FILE          many prompts, - for standard input: JSON objects, one per line or in an\n"
    "                          array, with \"prompt\" (a text), \"messages\" (a conversation) or \"ids\"\n"
    "                          (token ids). With --jsonl, other fields are copied to the output\n"
    "  -                       read prompts from standard input, one per line\n"
    "  --image FILE            add an image (JPEG, PNG, WebP or PPM) to the prompt of a vision-language\n"
    "                          model; may be given several times. The n-th image replaces the n-th\n"
    "                          <image> of the prompt. Without <image>, all images precede the prompt.\n"
    "                          With -, every prompt gets the images; with --chat, the first message\n"
    "                          does. Records of --prompts name their own: \"image\", \"images\" (paths\n"
    "                          relative to the folder of FILE) or parts of messages\n"
    "  --chat                  interactive chat: each line is a message. /help lists the commands,\n"
    "                          Ctrl-C stops an answer, Ctrl-D or /exit quits. In a pipe every line is a\n"
    "                          message and there are no commands. With --prompt: answer it and exit\n"
    "  --system TEXT           system message of a conversation\n"
    "  --chat-template NAME    chat template: a name, a JSON file, or auto for the tokenizer's own\n"
    "                          (default: the template that the checkpoint says it was trained with,\n"
    "                          otherwise auto)\n"
    "  --no-think              request an answer without thinking, if the template supports it\n"
    "\n"
    "Tokens (defaults come from the model's generation_config.json, if it has one)\n"
    "  --max-new-tokens N      maximum length of a continuation (default 128)\n"
    "  --min-new-tokens N      generate at least N tokens before the end token (default 0)\n"
    "  --stop TEXT, --stop-strings TEXT\n"
    "                          end a continuation at this text; may be given several times\n"
    "  --no-repeat-ngram-size N\n"
    "                          never repeat a sequence of N tokens, prompt included (default 0: may\n"
    "                          repeat)\n"
    "  --suppress-tokens IDS   never generate these tokens (ids separated by commas)\n"
    "  --begin-suppress-tokens IDS\n"
    "                          never generate these tokens first\n"
    "  --temperature T         divide the logits by T (default 1; 0: greedy)\n"
    "  --top-k K               sample from the K most probable tokens (default 0: all)\n"
    "  --top-p P               sample from the smallest set of most probable tokens whose total\n"
    "                          probability reaches P (default 1: all)\n"
    "  --min-p P               sample from tokens with at least P times the maximum probability\n"
    "                          (default 0)\n"
    "  --repetition-penalty R  penalty for tokens that already occurred (default 1: none)\n"
    "  --greedy                always take the most probable token\n"
    "  --num-samples N         continuations per prompt (default 1)\n"
    "  --seed N                seed of the random generator (default 42)\n"
    "  --num-beams B           beam search with B beams (default 1: no beam search)\n"
    "  --length-penalty A      score beams by log-probability / (new tokens)^A (default 1;\n"
    "                          0 with --catalogue)\n"
    "  --early-stopping        stop a search when B sequences are finished, even if a better one is\n"
    "                          possible\n"
    "  --num-return N          return the best N sequences per search (default 1)\n"
    "  --catalogue FILE        restrict continuations to the items of a recommender (lines: semantic ID,\n"
    "                          tab, title, tab, item id): one of the IDs, a newline and the end token\n"
    "\n"
    "Output\n"
    "  -o, --output FILE       write the text to FILE instead of standard output, where launchers may mix\n"
    "                          the output of ranks. FILE appears when it is complete\n"
    "  --force                 replace an existing FILE\n"
    "  --stream                print tokens as they are generated\n"
    "  --jsonl                 print a JSON object per continuation, in the order of the prompts\n"
    "  --logprobs              with --jsonl: add the log-probabilities of the new tokens and their sum\n"
    "  --verbose               print the settings in use to standard error\n"
    "\n"
    "Scores\n"
    "  --score MODEL           score each prompt and its continuation with a reward model (a directory, a\n"
    "                          checkpoint, a run's output_dir). --jsonl stores the score as \"reward\". The\n"
    "                          summary reports the mean and the share of scores above 0, which for a\n"
    "                          harmlessness model is the safety rate\n"
    "  --answers FILE          score these answers, and generate nothing; - for standard input. JSON\n"
    "                          objects, one per line or in an array, with \"prompt\" and \"completion\",\n"
    "                          \"response\" or \"answer\" (texts, or lists of messages), with\n"
    "                          \"messages\", with \"ids\", or as written by --jsonl\n"
    "\n"
    "Running\n"
    "  --adapter DIR           apply the LoRA adapters of DIR (PEFT format), such as the\n"
    "                          OUTPUT_DIR/adapter of a run with lora.r\n"
    "  --tokenizer NAME        a directory or tokenizer.json; bytes; or ids: prompts and continuations\n"
    "                          are token ids separated by spaces (default: the model's own, else bytes)\n"
    "  --batch-size B          sequences per rank at a time (default 16)\n"
    "  --context N             maximum tokens in a conversation with --chat (default: the model's\n"
    "                          limit, at most 4096)\n"
    "  --dtype TYPE            fp32, bf16 or fp16 (default fp32)\n"
    "  --zero-stage N          0, or 3 to shard the parameters over the ranks (default 0)\n"
    "  --threads N             threads per rank (default: the node's cores divided by its ranks)\n"
    "  --device NAME           auto, cpu or cuda (default auto)\n"
    "  --no-graphs             on a GPU: do not record decoding steps as CUDA graphs. Graphs produce the\n"
    "                          same tokens with fewer calls\n"
    "  --timeout S             end with exit code 76 after S seconds without progress (default 1800)\n"
    "  -h, --help              print this text\n"
    "  -V, --version           print version, commit and build\n"
    "\n"
    "Results do not depend on the number of ranks, the stage or the batch size.\n"
    "exit codes: 0 done, 64 usage, 65 bad model or prompts, 70 fault, 71 logits not finite,\n"
    "            74 writing failed, 76 communication failed\n";

/* clang-format off */
enum option_id {
    PROMPT = 256, PROMPTS, CHAT, SYSTEM, TEMPLATE, NO_THINK, MAX_NEW, STOP, TEMPERATURE, TOP_K, TOP_P, MIN_P,
    PENALTY, GREEDY, SAMPLES, SEED, BEAMS, LENGTH_PENALTY, EARLY, RETURN, STREAM, JSONL, LOGPROBS, VERBOSE,
    TOKENIZER, BATCH, CONTEXT, DTYPE, STAGE, THREADS, DEVICE, TIMEOUT, FORCE,
    SCORE, ANSWERS, NO_GRAPHS, ADAPTER, CATALOGUE, IMAGE, MIN_NEW, NGRAM, SUPPRESS, BEGIN_SUPPRESS
};
static const struct option long_options[] = {
    {"prompt", 1, 0, PROMPT}, {"prompts", 1, 0, PROMPTS}, {"chat", 0, 0, CHAT}, {"system", 1, 0, SYSTEM},
    {"chat-template", 1, 0, TEMPLATE}, {"no-think", 0, 0, NO_THINK}, {"max-new-tokens", 1, 0, MAX_NEW},
    {"stop", 1, 0, STOP}, {"temperature", 1, 0, TEMPERATURE}, {"top-k", 1, 0, TOP_K}, {"top-p", 1, 0, TOP_P},
    {"min-p", 1, 0, MIN_P}, {"repetition-penalty", 1, 0, PENALTY}, {"greedy", 0, 0, GREEDY},
    {"num-samples", 1, 0, SAMPLES}, {"seed", 1, 0, SEED}, {"num-beams", 1, 0, BEAMS},
    {"length-penalty", 1, 0, LENGTH_PENALTY}, {"early-stopping", 0, 0, EARLY}, {"num-return", 1, 0, RETURN},
    {"stream", 0, 0, STREAM}, {"jsonl", 0, 0, JSONL}, {"logprobs", 0, 0, LOGPROBS}, {"verbose", 0, 0, VERBOSE},
    {"tokenizer", 1, 0, TOKENIZER}, {"batch-size", 1, 0, BATCH}, {"context", 1, 0, CONTEXT}, {"dtype", 1, 0, DTYPE},
    {"zero-stage", 1, 0, STAGE}, {"threads", 1, 0, THREADS}, {"device", 1, 0, DEVICE}, {"timeout", 1, 0, TIMEOUT},
    {"no-graphs", 0, 0, NO_GRAPHS}, {"adapter", 1, 0, ADAPTER},
    {"output", 1, 0, 'o'}, {"force", 0, 0, FORCE}, {"score", 1, 0, SCORE},
    {"answers", 1, 0, ANSWERS}, {"catalogue", 1, 0, CATALOGUE}, {"image", 1, 0, IMAGE},
    {"min-new-tokens", 1, 0, MIN_NEW}, {"stop-strings", 1, 0, STOP}, {"no-repeat-ngram-size", 1, 0, NGRAM},
    {"suppress-tokens", 1, 0, SUPPRESS}, {"begin-suppress-tokens", 1, 0, BEGIN_SUPPRESS},
    TOOL_OPTIONS, {0}};
/* clang-format on */

static dt_err parse_dtype(const char *text, dt_dtype *dtype)
{
    DT_CHECK(dt_dtype_find(text, dtype), DT_ERR_USAGE, "--dtype: expected fp32, bf16 or fp16, found '%s'", text);
    return DT_OK;
}

static dt_err parse_ids(const char *name, const char *text, dt_ids *ids)
{
    char **items;
    int n;
    dt_err err = dt_config_split(text, &items, &n);
    DT_TRY(err);
    if (n == 0) err = dt_fail(DT_ERR_USAGE, "--%s: expected token ids separated by commas, found none", name);
    for (int i = 0; i < n && err == DT_OK; i++) {
        int64_t id;
        err = tool_parse_int(name, items[i], 0, INT32_MAX, &id);
        if (err == DT_OK) err = dt_ids_reserve(ids, 1);
        if (err == DT_OK) ids->id[ids->n++] = (int32_t)id;
    }
    dt_list_free(items, n);
    return err;
}

static dt_err parse_stop(options *o, const char *text)
{
    DT_CHECK(text[0], DT_ERR_USAGE, "--stop: expected a text");
    DT_CHECK(o->n_stop < DT_MAX_STOPS, DT_ERR_USAGE, "--stop: at most %d texts", DT_MAX_STOPS);
    o->stop[o->n_stop++] = text;
    return DT_OK;
}

static dt_err parse_image(options *o, const char *path)
{
    DT_CHECK(path[0], DT_ERR_USAGE, "--image: expected the name of a file");
    DT_CHECK(o->n_images < MAX_GIVEN_IMAGES, DT_ERR_USAGE, "--image: at most %d files", MAX_GIVEN_IMAGES);
    o->image[o->n_images++] = path;
    return DT_OK;
}

static dt_err parse_token_option(options *o, int id, const char *name, const char *text)
{
    int64_t n = 0;
    switch (id) {
    case MAX_NEW:
        o->given.max_new = true;
        return tool_parse_int(name, text, 1, INT32_MAX, &o->max_new_tokens);
    case STOP:
        return parse_stop(o, text);
    case MIN_NEW:
        o->given.min_new = true;
        return tool_parse_int(name, text, 0, INT32_MAX, &o->min_new_tokens);
    case NGRAM:
        o->given.ngram = true;
        return tool_parse_int(name, text, 0, INT32_MAX, &o->no_repeat_ngram_size);
    case SUPPRESS:
        o->given.suppress = true;
        return parse_ids(name, text, &o->suppress);
    case BEGIN_SUPPRESS:
        o->given.begin_suppress = true;
        return parse_ids(name, text, &o->begin_suppress);
    case TEMPERATURE:
        o->given.temperature = true;
        return tool_parse_real(name, text, &o->sampling.temperature);
    case TOP_K:
        o->given.top_k = true;
        return tool_parse_int(name, text, 0, INT32_MAX, &o->sampling.top_k);
    case TOP_P:
        o->given.top_p = true;
        return tool_parse_real(name, text, &o->sampling.top_p);
    case MIN_P:
        o->given.min_p = true;
        return tool_parse_real(name, text, &o->sampling.min_p);
    case PENALTY:
        o->given.penalty = true;
        return tool_parse_real(name, text, &o->sampling.repetition_penalty);
    case GREEDY:
        o->sampling.greedy = o->given.greedy = true;
        return DT_OK;
    case SAMPLES:
        return tool_parse_int(name, text, 1, INT32_MAX, &o->num_samples);
    case SEED:
        DT_TRY(tool_parse_int(name, text, 0, INT64_MAX, &n));
        o->sampling.seed = (uint64_t)n;
        return DT_OK;
    case BEAMS:
        DT_TRY(tool_parse_int(name, text, 1, 1 << 16, &n));
        o->given.beams = true;
        o->beams.n_beams = (int)n;
        return DT_OK;
    case LENGTH_PENALTY:
        o->given.length_penalty = true;
        return tool_parse_real(name, text, &o->beams.length_penalty);
    case EARLY:
        o->beams.early_stopping = o->given.early = true;
        return DT_OK;
    default: /* RETURN */
        DT_TRY(tool_parse_int(name, text, 1, 1 << 16, &n));
        o->beams.n_return = (int)n;
        return DT_OK;
    }
}

static dt_err parse_one(options *o, int id, const char *name, const char *text)
{
    const struct {
        int id;
        const char **text;
    } texts[] = {
        {PROMPT, &o->prompt},       {PROMPTS, &o->prompts}, {SYSTEM, &o->system},      {TEMPLATE, &o->chat_template},
        {TOKENIZER, &o->tokenizer}, {DEVICE, &o->device},   {'o', &o->output},         {SCORE, &o->score},
        {ANSWERS, &o->answers},     {ADAPTER, &o->adapter}, {CATALOGUE, &o->catalogue}};
    const struct {
        int id;
        bool *flag;
    } flags[] = {{CHAT, &o->chat},   {NO_THINK, &o->no_think}, {NO_GRAPHS, &o->no_graphs}, {STREAM, &o->stream},
                 {JSONL, &o->jsonl}, {LOGPROBS, &o->logprobs}, {VERBOSE, &o->verbose},     {FORCE, &o->force},
                 {'h', &o->help},    {'V', &o->version}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].id == id) {
            *texts[i].text = text;
            return DT_OK;
        }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].id == id) {
            *flags[i].flag = true;
            return DT_OK;
        }
    switch (id) {
    case BATCH:
        return tool_parse_int(name, text, 1, 1 << 20, &o->batch_size);
    case CONTEXT:
        return tool_parse_int(name, text, 2, INT32_MAX, &o->context);
    case DTYPE:
        return parse_dtype(text, &o->dtype);
    case IMAGE:
        return parse_image(o, text);
    case STAGE:
        return tool_parse_int(name, text, 0, 3, &o->stage);
    case THREADS:
        return tool_parse_int(name, text, 0, 4096, &o->threads);
    case TIMEOUT:
        return tool_parse_between(name, text, 1, 1e9, &o->timeout_s);
    default:
        return parse_token_option(o, id, name, text);
    }
}

static bool draws(const options *o)
{
    return o->given.temperature || o->given.top_k || o->given.top_p || o->given.min_p;
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
    DT_CHECK(b->n_beams == 1 || (!draws(o) && o->num_samples == 1), DT_ERR_USAGE,
             "--num-beams: beam search does not sample; it cannot be combined with --temperature, --top-k, --top-p, "
             "--min-p and --num-samples");
    DT_CHECK(b->n_return <= b->n_beams, DT_ERR_USAGE, "--num-return: expected at most --num-beams = %d, found %d",
             b->n_beams, b->n_return);
    DT_CHECK(b->n_beams == 1 || (!o->stream && !o->chat), DT_ERR_USAGE,
             "--num-beams: cannot be combined with --stream and --chat");
    DT_CHECK(!o->given.max_new || o->min_new_tokens <= o->max_new_tokens, DT_ERR_USAGE,
             "--min-new-tokens: expected at most --max-new-tokens = %" PRId64 ", found %" PRId64, o->max_new_tokens,
             o->min_new_tokens);
    return DT_OK;
}

static dt_err check_scoring(const options *o)
{
    DT_CHECK(!o->answers || o->score, DT_ERR_USAGE, "--answers needs --score, the model that scores them");
    DT_CHECK(!o->answers || (!o->model && !o->prompt && !o->prompts && !o->standard_input), DT_ERR_USAGE,
             "--answers: nothing is generated, so it cannot be combined with a model or a prompt");
    DT_CHECK(!o->catalogue || (!o->answers && !o->chat), DT_ERR_USAGE,
             "--catalogue: cannot be combined with --answers and --chat");
    DT_CHECK(!o->catalogue || (o->min_new_tokens == 0 && o->n_stop == 0 && o->no_repeat_ngram_size == 0 &&
                               o->suppress.n == 0 && o->begin_suppress.n == 0),
             DT_ERR_USAGE,
             "--catalogue: cannot be combined with --min-new-tokens, --stop, --no-repeat-ngram-size, --suppress-tokens "
             "and --begin-suppress-tokens: only the catalogue determines what may follow a prompt");
    DT_CHECK(!o->score || (!o->stream && !o->chat), DT_ERR_USAGE,
             "--score: cannot be combined with --stream and --chat");
    return DT_OK;
}

static dt_err check_options(const options *o)
{
    DT_TRY(check_scoring(o));
    const bool ids = o->tokenizer && strcmp(o->tokenizer, "ids") == 0;
    DT_CHECK(o->model || o->answers, DT_ERR_USAGE,
             "expected a checkpoint, a run's directory or a model directory; see dtrain-generate --help");
    DT_CHECK((o->prompt && !o->chat) + !!o->prompts + o->standard_input + o->chat <= 1, DT_ERR_USAGE,
             "--prompt, --prompts, - and --chat: expected one of them, or --chat with --prompt");
    DT_CHECK(o->stage == 0 || o->stage == 3, DT_ERR_USAGE,
             "--zero-stage: expected 0 or 3 (generation has only parameters to partition), found %" PRId64, o->stage);
    DT_CHECK(o->stream + o->jsonl + o->chat <= 1, DT_ERR_USAGE, "--stream, --jsonl and --chat: expected one of them");
    DT_CHECK(o->n_images == 0 || (!o->prompts && !o->score), DT_ERR_USAGE,
             "--image: expected --prompt, - or --chat; records of --prompts name their own images, and --score accepts "
             "only texts");
    DT_CHECK(!o->force || o->output, DT_ERR_USAGE, "--force needs -o, whose file it replaces");
    DT_CHECK(!o->output || o->output[0], DT_ERR_USAGE, "-o: expected the name of a file");
    DT_CHECK(!o->logprobs || o->jsonl, DT_ERR_USAGE, "--logprobs needs --jsonl");
    DT_CHECK(!ids || (o->n_stop == 0 && !o->chat), DT_ERR_USAGE,
             "--tokenizer ids: expected neither --stop nor --chat, which need text");
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
                   .timeout_s = 1800};
    o->sampling.seed = 42;
    for (int c, at;;) {
        DT_TRY(tool_option(argc, argv, ":o:" TOOL_LETTERS, long_options, &c, &at));
        if (c == -1) break;
        DT_TRY(parse_one(o, c, at >= 0 ? long_options[at].name : "", optarg));
    }
    if (o->help || o->version) return DT_OK;
    for (; optind < argc; optind++) {
        if (strcmp(argv[optind], "-") == 0) {
            o->standard_input = true;
        } else {
            DT_CHECK(!o->model, DT_ERR_USAGE, "expected one model, found '%s' and '%s'", o->model, argv[optind]);
            o->model = argv[optind];
        }
    }
    return check_options(o);
}

void generate_free_options(options *o)
{
    free(o->suppress.id);
    free(o->begin_suppress.id);
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
    if (o->min_new_tokens > 0) fprintf(stderr, ", at least %" PRId64 " new tokens", o->min_new_tokens);
    if (o->no_repeat_ngram_size > 0)
        fprintf(stderr, ", no repeated sequence of %" PRId64 " tokens", o->no_repeat_ngram_size);
    if (o->suppress.n > 0) fprintf(stderr, ", %zu suppressed tokens", o->suppress.n);
    if (o->begin_suppress.n > 0) fprintf(stderr, ", %zu suppressed first tokens", o->begin_suppress.n);
    fprintf(stderr, ", ends at");
    for (int i = 0; i < a->n_eos; i++) fprintf(stderr, " %" PRId32, a->eos[i]);
    fprintf(stderr, a->n_eos ? "\n" : " nothing\n");
}
