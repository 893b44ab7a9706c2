/* sid_options.c - the command line of dtrain-sid. */
#include "sid_app.h"
#include "../tool/tool.h"
#include "dtrain/config/config.h"

#include <inttypes.h>
#include <string.h>

const char sid_usage[] =
    "usage: dtrain-sid --embeddings FILE [--items NAME.item.json] -o PREFIX [options]\n"
    "       dtrain-sid --model MODEL --items NAME.item.json -o PREFIX [options]\n"
    "Computes semantic IDs (SIDs) for the items of a catalogue. A SID has one token per level, such as\n"
    "<a_17><b_203><c_5>. Writes PREFIX.index.json (item id -> tokens). With --items it also writes the\n"
    "info file PREFIX.txt (one line per item: SID, title and item id, separated by tabs). Runs on one\n"
    "rank, or on several under mpirun.\n"
    "\n"
    "Input and output\n"
    "  --items FILE            JSON object: item id -> title, description, brand, categories. Numeric\n"
    "                          ids must be 0, 1, 2 and so on, and row i of the embeddings is item i.\n"
    "                          With other ids, row i is the i-th item of the file\n"
    "  --embeddings FILE       matrix with one row per item: .npy or HDF5\n"
    "  --array NAME            matrix to use if an HDF5 file has several\n"
    "  --model MODEL           compute the embeddings with this model: the mean over an item's tokens of\n"
    "                          the last block's output, after the final norm. They are written to\n"
    "                          PREFIX.emb.npy. MODEL is a checkpoint (.h5), a run's output_dir, or a\n"
    "                          Hugging Face model directory\n"
    "  --fields NAME,...       item fields that form its text (default title,description)\n"
    "  --max-length N          maximum tokens per text; the rest is ignored (default 2048)\n"
    "  --tokenizer NAME        a directory, tokenizer.json or bytes (default: the model's own)\n"
    "  --dtype TYPE            type of the model: fp32, bf16 or fp16 (default fp32)\n"
    "  --pass-tokens N         tokens per forward pass (default 4096)\n"
    "  -o, --output PREFIX     prefix of the output files\n"
    "  --force                 replace existing files\n"
    "\n"
    "Codes\n"
    "  --method NAME           rqvae (residual-quantised autoencoder), kmeans (residual k-means on the\n"
    "                          embeddings) or balanced (k-means with equally many items per code);\n"
    "                          default rqvae\n"
    "  --levels N              levels, and so tokens, of a SID (default 3)\n"
    "  --codes N               codes per level (default 256)\n"
    "  --kmeans-iterations N   maximum iterations (default 100)\n"
    "  --seed N                seed of the random generator (default 42)\n"
    "\n"
    "RQ-VAE\n"
    "  --dim N                 dimension of the quantised vector (default 32)\n"
    "  --hidden N,N,...        sizes of the encoder's hidden layers; the decoder mirrors them (default\n"
    "                          2048,1024,512,256,128,64; 0: none)\n"
    "  --beta B                weight of the commitment loss (default 0.25)\n"
    "  --epochs N              passes over the items (default 5000)\n"
    "  --batch-size N          items per AdamW step (default 20480)\n"
    "  --lr R                  learning rate (default 0.001)\n"
    "  --warmup-epochs N       epochs in which the learning rate grows from 0 (default 50)\n"
    "  --weight-decay W        weight decay (default 0)\n"
    "  --clip N                maximum gradient norm (default 1; 0: no clipping)\n"
    "  --evaluate-every N      epochs between evaluations; the parameters with the fewest collisions\n"
    "                          are kept (default 50)\n"
    "\n"
    "Items with the same SID\n"
    "  --sinkhorn-rounds N     rounds that reassign the last codes of colliding items (default 20;\n"
    "                          0: none)\n"
    "  --sinkhorn-epsilon E    regularisation: a smaller value assigns closer to the nearest code\n"
    "                          (default 0.003)\n"
    "  --sinkhorn-iterations N iterations per round (default 50)\n"
    "  --distinct              give items that still collide the nearest unused last code, while one is\n"
    "                          left\n"
    "\n"
    "Running\n"
    "  --block-size N          items per block (default 1024). Sums follow the order of blocks, so\n"
    "                          another size may change results within rounding\n"
    "  --threads N             threads per rank (default: the node's cores divided by its ranks)\n"
    "  --device NAME           auto, cpu or cuda (default auto)\n"
    "  --timeout S             end with exit code 76 after S seconds without progress (default 1800)\n"
    "  -h, --help              print this text\n"
    "  -V, --version           print version, commit and build\n"
    "\n"
    "Results do not depend on the number of ranks.\n"
    "exit codes: 0 done, 64 usage, 65 bad items or embeddings, 70 fault, 71 values not finite,\n"
    "            74 writing failed, 76 communication failed\n";

/* clang-format off */
enum option_id {
    ITEMS = 256, EMBEDDINGS, ARRAY, METHOD, LEVELS, CODES, KMEANS_ITERATIONS, SEED, ROUNDS, EPSILON,
    SINKHORN_ITERATIONS, DISTINCT, BLOCK, THREADS, DEVICE, TIMEOUT, FORCE, DIM, HIDDEN, BETA, EPOCHS, BATCH, LR,
    WARMUP, DECAY, CLIP, EVALUATE, MODEL, FIELDS, MAX_LENGTH, TOKENIZER, DTYPE, PASS
};
static const struct option long_options[] = {
    {"items", 1, 0, ITEMS}, {"embeddings", 1, 0, EMBEDDINGS}, {"array", 1, 0, ARRAY}, {"output", 1, 0, 'o'},
    {"force", 0, 0, FORCE}, {"method", 1, 0, METHOD}, {"levels", 1, 0, LEVELS}, {"codes", 1, 0, CODES},
    {"kmeans-iterations", 1, 0, KMEANS_ITERATIONS}, {"seed", 1, 0, SEED}, {"sinkhorn-rounds", 1, 0, ROUNDS},
    {"sinkhorn-epsilon", 1, 0, EPSILON}, {"sinkhorn-iterations", 1, 0, SINKHORN_ITERATIONS},
    {"distinct", 0, 0, DISTINCT}, {"block-size", 1, 0, BLOCK}, {"threads", 1, 0, THREADS}, {"device", 1, 0, DEVICE},
    {"timeout", 1, 0, TIMEOUT}, {"dim", 1, 0, DIM}, {"hidden", 1, 0, HIDDEN}, {"beta", 1, 0, BETA},
    {"epochs", 1, 0, EPOCHS}, {"batch-size", 1, 0, BATCH}, {"lr", 1, 0, LR}, {"warmup-epochs", 1, 0, WARMUP},
    {"weight-decay", 1, 0, DECAY}, {"clip", 1, 0, CLIP}, {"evaluate-every", 1, 0, EVALUATE}, {"model", 1, 0, MODEL},
    {"fields", 1, 0, FIELDS}, {"max-length", 1, 0, MAX_LENGTH}, {"tokenizer", 1, 0, TOKENIZER}, {"dtype", 1, 0, DTYPE},
    {"pass-tokens", 1, 0, PASS}, TOOL_OPTIONS, {0}};
/* clang-format on */

static dt_err parse_method(const char *text, sid_method *method)
{
    static const char *const words[] = {[SID_RQVAE] = "rqvae", [SID_KMEANS] = "kmeans", [SID_BALANCED] = "balanced"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i]) == 0) {
            *method = (sid_method)i;
            return DT_OK;
        }
    return dt_fail(DT_ERR_USAGE, "--method: expected rqvae, kmeans or balanced, found '%s'", text);
}

/* Sizes separated by commas; a single 0: none. */
static dt_err parse_hidden(options *o, const char *text)
{
    char one[24];
    o->rqvae.n_hidden = 0;
    for (const char *at = text; strcmp(text, "0") != 0;) {
        const size_t len = strcspn(at, ",");
        DT_CHECK(o->rqvae.n_hidden < MAX_HIDDEN, DT_ERR_USAGE, "--hidden: expected at most %d sizes", MAX_HIDDEN);
        snprintf(one, sizeof one, "%.*s", (int)dt_min_size(len, sizeof one - 1), at);
        DT_TRY(tool_parse_int("hidden", one, 1, 1 << 20, &o->rqvae.hidden[o->rqvae.n_hidden++]));
        if (!at[len]) break;
        at += len + 1;
    }
    return DT_OK;
}

static dt_err parse_one(options *o, int id, const char *name, const char *text)
{
    const struct {
        int id;
        const char **text;
    } texts[] = {{ITEMS, &o->items},   {EMBEDDINGS, &o->embeddings}, {ARRAY, &o->array},   {'o', &o->output},
                 {DEVICE, &o->device}, {MODEL, &o->model},           {FIELDS, &o->fields}, {TOKENIZER, &o->tokenizer}};
    const struct {
        int id;
        bool *flag;
    } flags[] = {{FORCE, &o->force}, {DISTINCT, &o->sinkhorn.distinct}, {'h', &o->help}, {'V', &o->version}};
    const struct {
        int id;
        int64_t *value, low, high;
    } numbers[] = {{LEVELS, &o->levels, 1, DT_SID_MAX_LEVELS},
                   {CODES, &o->codes, 2, 1 << 20},
                   {KMEANS_ITERATIONS, &o->kmeans_iterations, 0, INT32_MAX},
                   {SEED, &o->seed, 0, INT64_MAX},
                   {ROUNDS, &o->sinkhorn.max_rounds, 0, INT32_MAX},
                   {SINKHORN_ITERATIONS, &o->sinkhorn.iterations, 1, INT32_MAX},
                   {DIM, &o->rqvae.dim, 1, 1 << 20},
                   {EPOCHS, &o->rqvae.epochs, 1, INT32_MAX},
                   {BATCH, &o->rqvae.batch, 1, INT32_MAX},
                   {WARMUP, &o->rqvae.warmup_epochs, 0, INT32_MAX},
                   {EVALUATE, &o->rqvae.evaluate_every, 1, INT32_MAX},
                   {MAX_LENGTH, &o->max_length, 1, INT32_MAX},
                   {PASS, &o->pass, 1, 1 << 24},
                   {BLOCK, &o->block, 1, 1 << 20},
                   {THREADS, &o->threads, 0, 4096}};
    const struct {
        int id;
        double *value, low, high;
    } reals[] = {{EPSILON, &o->sinkhorn.epsilon, 1e-6, 1e6},
                 {TIMEOUT, &o->timeout_s, 1, 1e9},
                 {BETA, &o->rqvae.beta, 0, 1e6},
                 {LR, &o->rqvae.lr, 0, 1e6},
                 {DECAY, &o->rqvae.weight_decay, 0, 1e6},
                 {CLIP, &o->rqvae.clip, 0, 1e30}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].id == id) *texts[i].text = text;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].id == id) *flags[i].flag = true;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].id == id) return tool_parse_int(name, text, numbers[i].low, numbers[i].high, numbers[i].value);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        if (reals[i].id == id) return tool_parse_between(name, text, reals[i].low, reals[i].high, reals[i].value);
    if (id == DTYPE) {
        DT_CHECK(dt_dtype_find(text, &o->dtype), DT_ERR_USAGE, "--dtype: expected fp32, bf16 or fp16, found '%s'",
                 text);
        return DT_OK;
    }
    if (id == HIDDEN) return parse_hidden(o, text);
    return id == METHOD ? parse_method(text, &o->method) : DT_OK;
}

static dt_err check_options(const options *o)
{
    DT_CHECK(!o->embeddings != !o->model, DT_ERR_USAGE,
             "expected either --embeddings FILE or --model MODEL; see dtrain-sid --help");
    DT_CHECK(!o->model || o->items, DT_ERR_USAGE, "--model needs --items, the texts of the items");
    DT_CHECK(o->output && o->output[0], DT_ERR_USAGE, "expected -o PREFIX, the prefix of the output files");
    return DT_OK;
}

dt_err sid_parse_options(options *o, int argc, char **argv)
{
    *o = (options){.method = SID_RQVAE,
                   .rqvae = {.hidden = {2048, 1024, 512, 256, 128, 64},
                             .n_hidden = 6,
                             .dim = 32,
                             .epochs = 5000,
                             .batch = 20480,
                             .warmup_epochs = 50,
                             .evaluate_every = 50,
                             .beta = 0.25,
                             .lr = 1e-3,
                             .clip = 1},
                   .levels = 3,
                   .codes = 256,
                   .kmeans_iterations = 100,
                   .block = 1024,
                   .seed = 42,
                   .sinkhorn = {.epsilon = 0.003, .iterations = 50, .max_rounds = 20},
                   .fields = "title,description",
                   .max_length = 2048,
                   .pass = 4096,
                   .device = "auto",
                   .timeout_s = 1800};
    for (int c, at;;) {
        DT_TRY(tool_option(argc, argv, ":o:" TOOL_LETTERS, long_options, &c, &at));
        if (c == -1) break;
        DT_TRY(parse_one(o, c, at >= 0 ? long_options[at].name : "", optarg));
    }
    if (o->help || o->version) return DT_OK;
    DT_CHECK(optind == argc, DT_ERR_USAGE, "expected only options, found '%s'", argv[optind]);
    return check_options(o);
}
