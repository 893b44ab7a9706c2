/* dtrain-generate.c - samples from a checkpoint, on one rank or many. The model is the trainer's own, frozen behind ZeRO: at stage 0 each rank holds all of
 * it and works through its share of the prompts alone; at stage 3, for models larger than a rank, all ranks run the same forward passes. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtrain/frozen.h"
#include "dtrain/generate.h"

enum { DEFAULT_BATCH = 16, PREFILL_TOK = 1024 };

typedef struct options {
    const char *model, *prompt, *prompts; /* prompts: a file, "-" for standard input as JSON lines */
    bool standard_input;                  /* a prompt a line */
    const char *tokenizer, *device;
    dt_dtype dtype;
    dt_sampling sampling;
    int64_t max_new_tokens, num_samples, batch_size, threads, stage;
    bool stream, jsonl, help;
} options;

typedef struct app {
    options opt;
    dt_comm comm;
    bool comm_open;
    dt_ledger ledger;
    dt_device dev;
    dt_frozen frozen;
    dt_model *model;
    dt_tokenizer *tok; /* NULL: ids are read and printed; so is encoder then */
    dt_encoder *encoder;
    int32_t eos[DT_MAX_EOS + 1];
    int n_eos;
    dt_prompts prompts;
    dt_sequence *seqs; /* all of the job, sample by sample; number i is rank i % nranks' */
    int n_seqs, printed;
    bool plain_terminal; /* text goes to a terminal: control characters are not let through */
} app;

static const char usage[] =
    "Usage: dtrain-generate MODEL [-] [options]\n"
    "Continue prompts with a trained model. MODEL is a checkpoint (.h5) or a run's output_dir.\n\n"
    "      --prompt TEXT           the prompt; without any, the model begins by itself\n"
    "      --prompts FILE          many prompts: a JSON object a line, {\"prompt\": \"text\"} or {\"ids\": [1, 2]}\n"
    "  -                           prompts from standard input, one a line\n"
    "      --max-new-tokens N      longest continuation (default 128)\n"
    "      --temperature T         divides the logits (default 1; 0: greedy)\n"
    "      --top-k K               from the K most probable tokens alone (default 0: all)\n"
    "      --top-p P               from the fewest most probable that reach P (default 1: all)\n"
    "      --min-p P               from those with at least P times the largest probability (default 0: all)\n"
    "      --repetition-penalty R  of tokens seen before (default 1: none)\n"
    "      --greedy                always the most probable token\n"
    "      --num-samples N         continuations of each prompt (default 1)\n"
    "      --seed N                of the random numbers (default 42); results do not depend on ranks or batch size\n"
    "      --batch-size B          sequences at a time on a rank (default 16)\n"
    "      --tokenizer NAME        bytes, or ids: prompts and continuations are numbers separated by blanks\n"
    "      --threads N             of a rank (default: the cores shared among the ranks of a node)\n"
    "      --dtype TYPE            fp32 or bf16 (default fp32)\n"
    "      --device NAME           auto, cpu or cuda (default auto)\n"
    "      --zero-stage N          0, or 3: each rank keeps a part of the parameters (default 0)\n"
    "      --stream                print tokens as they come (one rank)\n"
    "      --jsonl                 print a JSON object for each continuation\n"
    "      --help                  this text\n";

/* ---- the command line ------------------------------------------------------------------------------------------------ */

static dt_err parse_int(const char *name, const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    DT_CHECK(end != text && !*end && errno == 0 && v >= low && v <= high, DT_ERR_USAGE,
             "--%s: expected an integer from %" PRId64 " to %" PRId64 ", found '%s'", name, low, high, text);
    *value = v;
    return DT_OK;
}

static dt_err parse_real(const char *name, const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    DT_CHECK(end != text && !*end && isfinite(*value), DT_ERR_USAGE, "--%s: expected a number, found '%s'", name, text);
    return DT_OK;
}

/* clang-format off */
enum option_id {
    PROMPT = 256, PROMPTS, MAX_NEW, TEMPERATURE, TOP_K, TOP_P, MIN_P, PENALTY, GREEDY, SAMPLES, SEED, BATCH, TOKENIZER, THREADS, DTYPE, DEVICE, STAGE,
    STREAM, JSONL, HELP
};
static const struct option long_options[] = {
    {"prompt", 1, 0, PROMPT}, {"prompts", 1, 0, PROMPTS}, {"max-new-tokens", 1, 0, MAX_NEW}, {"temperature", 1, 0, TEMPERATURE}, {"top-k", 1, 0, TOP_K},
    {"top-p", 1, 0, TOP_P}, {"min-p", 1, 0, MIN_P}, {"repetition-penalty", 1, 0, PENALTY}, {"greedy", 0, 0, GREEDY}, {"num-samples", 1, 0, SAMPLES},
    {"seed", 1, 0, SEED}, {"batch-size", 1, 0, BATCH}, {"tokenizer", 1, 0, TOKENIZER}, {"threads", 1, 0, THREADS}, {"dtype", 1, 0, DTYPE},
    {"device", 1, 0, DEVICE}, {"zero-stage", 1, 0, STAGE}, {"stream", 0, 0, STREAM}, {"jsonl", 0, 0, JSONL}, {"help", 0, 0, HELP}, {0}};
/* clang-format on */

static dt_err parse_dtype(const char *text, dt_dtype *dtype)
{
    DT_CHECK(strcmp(text, "fp32") == 0 || strcmp(text, "bf16") == 0, DT_ERR_USAGE, "--dtype: expected fp32 or bf16, found '%s'",
             text);
    *dtype = text[0] == 'f' ? DT_F32 : DT_BF16;
    return DT_OK;
}

static dt_err parse_one(options *o, int id, const char *name, const char *text)
{
    int64_t seed;
    switch (id) {
    case PROMPT:
        o->prompt = text;
        break;
    case PROMPTS:
        o->prompts = text;
        break;
    case MAX_NEW:
        return parse_int(name, text, 1, INT32_MAX, &o->max_new_tokens);
    case TEMPERATURE:
        return parse_real(name, text, &o->sampling.temperature);
    case TOP_K:
        return parse_int(name, text, 0, INT32_MAX, &o->sampling.top_k);
    case TOP_P:
        return parse_real(name, text, &o->sampling.top_p);
    case MIN_P:
        return parse_real(name, text, &o->sampling.min_p);
    case PENALTY:
        return parse_real(name, text, &o->sampling.repetition_penalty);
    case GREEDY:
        o->sampling.greedy = true;
        break;
    case SAMPLES:
        return parse_int(name, text, 1, INT32_MAX, &o->num_samples);
    case SEED:
        DT_TRY(parse_int(name, text, 0, INT64_MAX, &seed));
        o->sampling.seed = (uint64_t)seed;
        break;
    case BATCH:
        return parse_int(name, text, 1, 1 << 20, &o->batch_size);
    case TOKENIZER:
        o->tokenizer = text;
        break;
    case THREADS:
        return parse_int(name, text, 0, 4096, &o->threads);
    case DTYPE:
        return parse_dtype(text, &o->dtype);
    case DEVICE:
        o->device = text;
        break;
    case STAGE:
        return parse_int(name, text, 0, 3, &o->stage);
    case STREAM:
        o->stream = true;
        break;
    case JSONL:
        o->jsonl = true;
        break;
    default:
        o->help = true;
    }
    return DT_OK;
}

static dt_err check_options(const options *o)
{
    DT_CHECK(o->model, DT_ERR_USAGE, "expected a checkpoint or a run's directory; see dtrain-generate --help");
    DT_CHECK(!!o->prompt + !!o->prompts + o->standard_input <= 1, DT_ERR_USAGE,
             "--prompt, --prompts and -: expected one of them");
    DT_CHECK(o->stage == 0 || o->stage == 3, DT_ERR_USAGE,
             "--zero-stage: expected 0 or 3 (there are parameters alone to share), found %" PRId64, o->stage);
    DT_CHECK(!o->stream || !o->jsonl, DT_ERR_USAGE, "--stream and --jsonl: expected one of them");
    return dt_sampling_check(&o->sampling);
}

static dt_err parse_options(options *o, int argc, char **argv)
{
    *o = (options){.device = "auto",
                   .sampling = dt_sampling_default(),
                   .max_new_tokens = 128,
                   .num_samples = 1,
                   .batch_size = DEFAULT_BATCH};
    o->sampling.seed = 42;
    opterr = 0;
    for (int c, at = -1; (c = getopt_long(argc, argv, ":", long_options, &at)) != -1; at = -1) {
        DT_CHECK(c != ':', DT_ERR_USAGE, "%s: expected a value; see dtrain-generate --help", argv[optind - 1]);
        DT_CHECK(c != '?', DT_ERR_USAGE, "%s: unknown option; see dtrain-generate --help", argv[optind - 1]);
        DT_TRY(parse_one(o, c, long_options[at].name, optarg));
    }
    if (o->help) return DT_OK;
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

/* ---- ranks ----------------------------------------------------------------------------------------------------------- */

/* All ranks go on, or none. After an error of communication there is no way to tell the others: main ends the job. */
static dt_err together(app *a, dt_err err) { return err == DT_ERR_COMM ? err : dt_comm_agree(&a->comm, err); }
#define TOGETHER(a, call) DT_TRY(together((a), (call)))

/* ---- the model ------------------------------------------------------------------------------------------------------- */

static void add_eos(app *a, int32_t id)
{
    for (int i = 0; i < a->n_eos; i++)
        if (a->eos[i] == id) return;
    if (id >= 0 && id < a->frozen.mc.vocab_size) a->eos[a->n_eos++] = id;
}

/* What is text to this model? So far checkpoints come from one tokenizer; a smaller vocabulary cannot be its. */
static dt_err open_tokenizer(app *a)
{
    const char *name = a->opt.tokenizer ? a->opt.tokenizer : "bytes";
    if (strcmp(name, "ids") != 0) DT_TRY(dt_tokenizer_open(&a->tok, name));
    if (a->tok && a->frozen.mc.vocab_size < dt_tokenizer_get_info(a->tok)->vocab_size && !a->opt.tokenizer) {
        if (a->comm.rank == 0)
            DT_WARN("the model's vocabulary of %" PRId64
                    " tokens is smaller than that of the tokenizer (%s): token ids are read and printed",
                    a->frozen.mc.vocab_size, name);
        dt_tokenizer_close(a->tok);
        a->tok = NULL;
    }
    if (a->tok) DT_TRY(dt_encoder_open(&a->encoder, a->tok));
    for (int i = 0; i < a->frozen.mc.n_eos; i++) add_eos(a, a->frozen.mc.eos_token_id[i]);
    if (a->tok) add_eos(a, dt_tokenizer_get_info(a->tok)->eos);
    return DT_OK;
}

static dt_err open_device(app *a)
{
    int threads = (int)a->opt.threads;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads == 0 && a->comm.local_nranks > 1)
        threads = cores > a->comm.local_nranks ? (int)(cores / a->comm.local_nranks) : 1;
    return dt_device_open(&a->dev, a->opt.device, a->comm.local_rank, threads, &a->ledger);
}

/* ---- prompts and sequences ------------------------------------------------------------------------------------------- */

static dt_err read_stream(FILE *in, const char *name, char **text, uint64_t *nbytes)
{
    size_t cap = 0, n = 0, got;
    do {
        if (cap - n < 65536) {
            char *grown = realloc(*text, cap = 2 * cap + 65536);
            DT_CHECK(grown, DT_ERR_MEMORY, "%s: out of memory after %zu bytes", name, n);
            *text = grown;
        }
        got = fread(*text + n, 1, cap - n, in);
        n += got;
    } while (got > 0);
    DT_CHECK(!ferror(in), DT_ERR_DATA, "%s: cannot read: %s", name, strerror(errno));
    *nbytes = n;
    return DT_OK;
}

static dt_err read_prompts(const options *o, char **text, uint64_t *nbytes)
{
    if (o->standard_input || (o->prompts && strcmp(o->prompts, "-") == 0))
        return read_stream(stdin, "standard input", text, nbytes);
    if (o->prompts) {
        FILE *in = fopen(o->prompts, "re");
        DT_CHECK(in, DT_ERR_DATA, "%s: cannot read: %s", o->prompts, strerror(errno));
        const dt_err err = read_stream(in, o->prompts, text, nbytes);
        fclose(in);
        return err;
    }
    *text = strdup(o->prompt ? o->prompt : "");
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for the prompt");
    *nbytes = strlen(*text);
    return DT_OK;
}

/* Standard input and the file are rank 0's; every rank gets the text and makes the same prompts of it. */
static dt_err share_prompts(app *a, char **text)
{
    const options *o = &a->opt;
    uint64_t nbytes = 0;
    TOGETHER(a, a->comm.rank == 0 ? read_prompts(o, text, &nbytes) : DT_OK);
    TOGETHER(a, dt_comm_broadcast_host(&a->comm, &nbytes, sizeof nbytes, 0));
    if (a->comm.rank != 0) *text = malloc(nbytes + 1);
    TOGETHER(a, *text ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %" PRIu64 " bytes of prompts", nbytes));
    TOGETHER(a, nbytes > 0 ? dt_comm_broadcast_host(&a->comm, *text, nbytes, 0) : DT_OK);
    const dt_prompt_format format = o->standard_input ? DT_PROMPT_LINES : o->prompts ? DT_PROMPT_JSONL : DT_PROMPT_WHOLE;
    const char *name = o->prompt ? "--prompt" : o->standard_input || !o->prompts ? "standard input" : o->prompts;
    TOGETHER(a, dt_prompts_parse(&a->prompts, name, *text, nbytes, format, a->encoder, a->frozen.mc.vocab_size));
    return DT_OK;
}

/* A model cannot continue nothing: an empty prompt becomes the token that stands between documents. */
static dt_err begin_prompt(const app *a, dt_ids *p)
{
    if (p->n > 0) return DT_OK;
    const int32_t first = a->frozen.mc.bos_token_id >= 0 && a->frozen.mc.bos_token_id < a->frozen.mc.vocab_size
                              ? a->frozen.mc.bos_token_id
                          : a->n_eos > 0 ? a->eos[0]
                                         : -1;
    DT_CHECK(first >= 0, DT_ERR_USAGE,
             "an empty prompt: the model has no token to begin with; expected --prompt, --prompts or -");
    DT_TRY(dt_ids_reserve(p, 1));
    p->id[p->n++] = first;
    return DT_OK;
}

static dt_err make_sequences(app *a)
{
    const int64_t n = a->prompts.n * a->opt.num_samples, limit = a->frozen.mc.max_position_embeddings;
    DT_CHECK(n <= INT_MAX / 2, DT_ERR_USAGE, "%d prompts with %" PRId64 " samples each are too many", a->prompts.n,
             a->opt.num_samples);
    a->seqs = calloc((size_t)n, sizeof *a->seqs);
    DT_CHECK(a->seqs, DT_ERR_MEMORY, "out of memory for %" PRId64 " sequences", n);
    for (; a->n_seqs < n; a->n_seqs++) {
        dt_ids *p = &a->prompts.prompt[a->n_seqs / a->opt.num_samples];
        dt_sequence *s = &a->seqs[a->n_seqs];
        DT_TRY(begin_prompt(a, p));
        DT_CHECK((int64_t)p->n < limit, DT_ERR_DATA,
                 "prompt %" PRId64 " has %zu tokens: the model takes %" PRId64 ", new ones included",
                 a->n_seqs / a->opt.num_samples, p->n, limit);
        const int64_t most = (int64_t)p->n + a->opt.max_new_tokens;
        *s = (dt_sequence){.number = (uint64_t)a->n_seqs, .n_prompt = (int32_t)p->n, .n_ids = (int32_t)p->n};
        s->max_ids = (int32_t)(most < limit ? most : limit);
        s->ids = malloc((size_t)s->max_ids * sizeof *s->ids);
        DT_CHECK(s->ids, DT_ERR_MEMORY, "out of memory for sequence %d of %d tokens", a->n_seqs, s->max_ids);
        memcpy(s->ids, p->id, p->n * sizeof *s->ids);
    }
    return DT_OK;
}

/* ---- output ---------------------------------------------------------------------------------------------------------- */

static void put_text(const app *a, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        putchar(control && a->plain_terminal ? '?' : c);
    }
}

/* Tokens as they come, so that what is the first half of a character is completed by the next. */
static void put_tokens(const app *a, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        size_t nbytes = 0;
        const char *bytes = a->tok ? dt_tokenizer_bytes(a->tok, ids[i], &nbytes) : "";
        if (!a->tok)
            printf(i ? " %" PRId32 : "%" PRId32, ids[i]);
        else if (nbytes == 0 && !dt_tokenizer_token(a->tok, ids[i]))
            printf("<|%" PRId32 "|>", ids[i]);
        put_text(a, bytes, nbytes);
    }
}

/* Ids are the text where there is no tokenizer. */
static json_t *json_text(const app *a, const int32_t *ids, int64_t n)
{
    size_t nbytes = 0;
    char *bytes = NULL;
    if (a->tok) {
        bytes = dt_decode(a->tok, ids, n, true, &nbytes);
    } else if ((bytes = malloc(12 * (size_t)n + 1)) != NULL) {
        for (int64_t i = 0; i < n; i++) nbytes += (size_t)sprintf(bytes + nbytes, i ? " %" PRId32 : "%" PRId32, ids[i]);
    }
    json_t *text = bytes ? json_stringn(bytes, nbytes) : NULL;
    free(bytes);
    return text;
}

static dt_err put_json(const app *a, const dt_sequence *s)
{
    const int64_t n_samples = a->opt.num_samples;
    json_t *ids = json_array();
    for (int32_t i = s->n_prompt; i < s->n_ids; i++) json_array_append_new(ids, json_integer(s->ids[i]));
    json_t *object = json_pack("{s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:s}", "index", (json_int_t)s->number / n_samples, "sample",
                               (json_int_t)s->number % n_samples, "prompt", json_text(a, s->ids, s->n_prompt), "text",
                               json_text(a, s->ids + s->n_prompt, s->n_ids - s->n_prompt), "ids", ids, "n_prompt_tokens",
                               (json_int_t)s->n_prompt, "n_new_tokens", (json_int_t)(s->n_ids - s->n_prompt), "finish",
                               s->finish == DT_FINISH_EOS ? "eos" : "length");
    char *line = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    DT_CHECK(line, DT_ERR_MEMORY, "out of memory for the record of sequence %" PRIu64, s->number);
    puts(line);
    free(line);
    return DT_OK;
}

static dt_err put_sequence(const app *a, const dt_sequence *s)
{
    if (a->opt.jsonl) return put_json(a, s);
    if (a->n_seqs > 1)
        printf("%s==> prompt %" PRIu64 ", sample %" PRIu64 " <==\n", s->number ? "\n" : "",
               s->number / (uint64_t)a->opt.num_samples, s->number % (uint64_t)a->opt.num_samples);
    put_tokens(a, s->ids, s->n_ids);
    putchar('\n');
    return DT_OK;
}

static dt_err flush_output(void)
{
    DT_CHECK(fflush(stdout) == 0 && !ferror(stdout), DT_ERR_WRITE, "standard output: cannot write: %s", strerror(errno));
    return DT_OK;
}

/* Print those that are finished, in the order of their numbers. */
static dt_err put_finished(app *a)
{
    while (a->printed < a->n_seqs && a->seqs[a->printed].finish != DT_FINISH_NONE)
        DT_TRY(put_sequence(a, &a->seqs[a->printed++]));
    return flush_output();
}

static dt_err stream_token(void *ctx, dt_sequence *s)
{
    app *a = ctx;
    if (!a->tok) putchar(' ');
    put_tokens(a, s->ids + s->n_ids - 1, 1);
    if (s->finish != DT_FINISH_NONE) putchar('\n');
    return flush_output();
}

static dt_err print_when_finished(void *ctx, dt_sequence *s)
{
    return s->finish != DT_FINISH_NONE ? put_finished(ctx) : DT_OK;
}

/* ---- running --------------------------------------------------------------------------------------------------------- */

static dt_err open_model(app *a, const dt_generate_options *g, int32_t max_len)
{
    const dt_model_options mo = {.dtype = a->opt.dtype,
                                 .grad_dtype = a->opt.dtype,
                                 .max_tok = g->max_tok,
                                 .max_seq = g->n_slots,
                                 .max_pos = max_len,
                                 .cache_seqs = g->n_slots,
                                 .cache_len = max_len,
                                 .by_row = true};
    return dt_model_open(&a->model, &a->frozen.mc, &mo, a->frozen.units, a->frozen.n_units, &a->dev, &a->frozen.source, NULL,
                         NULL);
}

/* One after the other, so that the text on the screen is one sequence's. */
static dt_err stream_all(app *a, const dt_decoder *decoder, const dt_generate_options *g, dt_generate_stats *stats)
{
    for (int i = 0; i < a->n_seqs; i++) {
        dt_sequence *s = &a->seqs[i];
        dt_generate_stats one;
        put_tokens(a, s->ids, s->n_prompt);
        DT_TRY(flush_output());
        DT_TRY(dt_generate(decoder, &s, 1, g, &one));
        stats->n_prompt_tok += one.n_prompt_tok;
        stats->n_new_tok += one.n_new_tok;
        stats->seconds += one.seconds;
    }
    return DT_OK;
}

static dt_err generate(app *a, dt_sequence *const *mine, int n_mine, dt_generate_stats *stats)
{
    int32_t max_len = 1;
    int64_t n_prompt = 1;
    for (int i = 0; i < a->n_seqs; i++) {
        max_len = a->seqs[i].max_ids > max_len ? a->seqs[i].max_ids : max_len;
        n_prompt = a->seqs[i].n_prompt > n_prompt ? a->seqs[i].n_prompt : n_prompt;
    }
    dt_generate_options g = {.sampling = a->opt.sampling,
                             .eos = a->eos,
                             .n_eos = a->n_eos,
                             .vocab_size = a->frozen.mc.vocab_size,
                             .ledger = &a->ledger,
                             .ctx = a};
    g.n_slots = a->opt.stream ? 1 : (int32_t)(a->opt.batch_size < n_mine ? a->opt.batch_size : n_mine > 0 ? n_mine : 1);
    g.max_tok = (int32_t)(n_prompt * g.n_slots < PREFILL_TOK ? n_prompt * g.n_slots : PREFILL_TOK);
    if (g.max_tok < g.n_slots) g.max_tok = g.n_slots;
    g.on_token = a->opt.stream ? stream_token : a->comm.nranks == 1 ? print_when_finished : NULL;
    g.lockstep = a->opt.stage == 3 && a->comm.nranks > 1 ? &a->comm : NULL;
    TOGETHER(a, open_model(a, &g, max_len));

    const dt_decoder decoder = dt_decoder_of_model(a->model);
    const dt_err err = a->opt.stream ? stream_all(a, &decoder, &g, stats) : dt_generate(&decoder, mine, n_mine, &g, stats);
    /* In lockstep the ranks have agreed among themselves, or this one alone was thrown out of the middle of a pass. */
    return g.lockstep ? err : together(a, err);
}

/* Bring the new tokens of rank `from` to rank 0: counts, ends and ids in one message. */
static dt_err fetch_from(app *a, int from)
{
    int64_t n_words = 0;
    for (int i = from; i < a->n_seqs; i += a->comm.nranks) n_words += 2 + a->seqs[i].max_ids;
    int32_t *words = malloc((size_t)(n_words + 1) * sizeof *words);
    dt_err err = together(a, words ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the results of rank %d", from));
    if (err != DT_OK) {
        free(words);
        return err;
    }
    int32_t *w = words;
    for (int i = from; i < a->n_seqs && from == a->comm.rank; i += a->comm.nranks) {
        const dt_sequence *s = &a->seqs[i];
        w[0] = s->n_ids;
        w[1] = (int32_t)s->finish;
        memcpy(w + 2, s->ids, (size_t)s->n_ids * sizeof *w);
        memset(w + 2 + s->n_ids, 0, (size_t)(s->max_ids - s->n_ids) * sizeof *w);
        w += 2 + s->max_ids;
    }
    err = dt_comm_broadcast_host(&a->comm, words, (size_t)n_words * sizeof *words, from);
    w = words;
    for (int i = from; i < a->n_seqs && err == DT_OK; i += a->comm.nranks) {
        dt_sequence *s = &a->seqs[i];
        s->n_ids = w[0];
        s->finish = (dt_finish)w[1];
        memcpy(s->ids, w + 2, (size_t)s->n_ids * sizeof *w);
        w += 2 + s->max_ids;
    }
    free(words);
    return err;
}

static dt_err report_speed(app *a, const dt_generate_stats *stats)
{
    int64_t sums[2] = {stats->n_prompt_tok, stats->n_new_tok};
    double seconds = stats->seconds;
    DT_TRY(dt_comm_reduce_host_i64(&a->comm, sums, 2, DT_SUM));
    DT_TRY(dt_comm_reduce_host_f64(&a->comm, &seconds, 1, DT_MAX));
    if (a->comm.rank == 0)
        fprintf(stderr,
                "dtrain-generate: %" PRId64 " new tokens in %.3f s: %.1f tokens/s (%d sequences, %" PRId64
                " prompt tokens, %d rank%s)\n",
                sums[1], seconds, seconds > 0 ? (double)sums[1] / seconds : 0, a->n_seqs, sums[0], a->comm.nranks,
                a->comm.nranks == 1 ? "" : "s");
    return DT_OK;
}

static dt_err run_sequences(app *a)
{
    dt_generate_stats stats = {0};
    int n_mine = 0;
    dt_sequence **mine = calloc((size_t)a->n_seqs / (size_t)a->comm.nranks + 1, sizeof *mine);
    dt_err err = together(a, mine ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %d sequences", a->n_seqs));
    for (int i = a->comm.rank; i < a->n_seqs && err == DT_OK; i += a->comm.nranks) mine[n_mine++] = &a->seqs[i];
    if (err == DT_OK) err = generate(a, mine, n_mine, &stats);
    free(mine);
    DT_TRY(err);
    for (int r = 1; r < a->comm.nranks; r++) TOGETHER(a, fetch_from(a, r));
    TOGETHER(a, a->comm.rank == 0 && !a->opt.stream ? put_finished(a) : DT_OK);
    TOGETHER(a, report_speed(a, &stats));
    return DT_OK;
}

static dt_err run(app *a, dt_err parsed)
{
    char *text = NULL;
    DT_TRY(dt_comm_open(&a->comm));
    a->comm_open = true;
    dt_log_open(a->comm.rank, a->comm.nranks, a->comm.host);
    TOGETHER(a, parsed);
    TOGETHER(a, a->opt.stream && a->comm.nranks > 1
                    ? dt_fail(DT_ERR_USAGE, "--stream: expected one rank, found %d", a->comm.nranks)
                    : DT_OK);
    TOGETHER(a, dt_frozen_describe(&a->frozen, a->opt.model));
    TOGETHER(a, open_tokenizer(a));
    const dt_err err = share_prompts(a, &text);
    free(text);
    DT_TRY(err);
    TOGETHER(a, make_sequences(a));
    TOGETHER(a, open_device(a));
    TOGETHER(a, dt_comm_attach(&a->comm, &a->dev, "auto", true));
    TOGETHER(a, dt_frozen_load(&a->frozen, &a->comm, &a->dev, (int)a->opt.stage, a->opt.dtype));
    return run_sequences(a);
}

/* in_order: all ranks end here, for the same reason */
static void close_all(app *a, bool in_order)
{
    dt_model_close(a->model);
    dt_frozen_close(&a->frozen);
    for (int i = 0; i < a->n_seqs; i++) free(a->seqs[i].ids);
    free(a->seqs);
    dt_prompts_free(&a->prompts);
    dt_encoder_close(a->encoder);
    dt_tokenizer_close(a->tok);
    if (a->comm_open && in_order) dt_comm_close(&a->comm);
    dt_device_close(&a->dev);
}

int main(int argc, char **argv)
{
    app a = {0};
    const dt_err parsed = parse_options(&a.opt, argc, argv);
    if (parsed == DT_OK && a.opt.help) {
        fputs(usage, stdout);
        return 0;
    }
    setenv("DTRAIN_LOG", "warn", 0); /* standard output is for the text */
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    a.plain_terminal = isatty(STDOUT_FILENO);
    const dt_err err = run(&a, parsed);
    const bool in_order = err == DT_OK || (a.comm_open && dt_comm_failed_together(&a.comm));
    if (err != DT_OK && (!in_order || dt_comm_speaks(&a.comm))) dt_log(DT_LOG_ERROR, "%s", dt_error_message());
    if (!in_order && a.comm_open && a.comm.nranks > 1) MPI_Abort(MPI_COMM_WORLD, dt_exit_code(err));
    close_all(&a, in_order);
    MPI_Finalize();
    return dt_exit_code(err);
}
