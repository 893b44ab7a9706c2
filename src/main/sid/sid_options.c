/* sid_options.c - the command line of dtrain-sid. */
#include "sid_app.h"

#include <inttypes.h>
#include <string.h>

static const char usage[] =
    "usage: dtrain-sid --embeddings FILE [--items NAME.item.json] -o PREFIX [options]\n"
    "       dtrain-sid --model MODEL --items NAME.item.json -o PREFIX [options]\n"
    "Computes semantic IDs (SIDs) for the items of a catalogue. A SID has one token per level, such as\n"
    "<a_17><b_203><c_5>. Writes PREFIX.index.json (item id -> tokens). With --items it also writes the\n"
    "info file PREFIX.txt (one line per item: SID, title and item id, separated by tabs). Runs on one\n"
    "rank, or on several under mpirun.\n";

/* Sizes separated by commas; a single 0: none. */
static dt_err take_hidden(void *self, const tool_row *row, char *text)
{
    options *o = self;
    char one[24];
    o->rqvae.net.n_hidden = 0;
    for (const char *at = text; strcmp(text, "0") != 0;) {
        const size_t len = strcspn(at, ",");
        DT_CHECK(o->rqvae.net.n_hidden < MAX_HIDDEN, DT_ERR_USAGE, "--hidden: expected at most %d sizes", MAX_HIDDEN);
        snprintf(one, sizeof one, "%.*s", (int)dt_min_size(len, sizeof one - 1), at);
        DT_TRY(tool_parse_int(row->name, one, 1, 1 << 20, &o->rqvae.hidden[o->rqvae.net.n_hidden++]));
        if (!at[len]) break;
        at += len + 1;
    }
    return DT_OK;
}

/* clang-format off */
static const tool_row rows[] = {
    {HEADING("Input and output")},
    {"items", "FILE", TO(items),
     "JSON object: item id -> title, description, brand, categories. Numeric ids must be 0, 1, 2 and so on, and row i "
     "of the embeddings is item i. With other ids, row i is the i-th item of the file"},
    {"embeddings", "FILE", TO(embeddings), "matrix with one row per item: .npy or HDF5"},
    {"array", "NAME", TO(array), "matrix to use if an HDF5 file has several"},
    {"model", "MODEL", TO(model),
     "compute the embeddings with this model: the mean over an item's tokens of the last block's output, after the "
     "final norm. They are written to PREFIX.emb.npy. MODEL is a checkpoint (.h5), a run's output_dir, or a Hugging "
     "Face model directory"},
    {"fields", "NAME,...", TO(fields), "item fields that form its text (default title,description)"},
    {"max-length", "N", TO(max_length), "maximum tokens per text; the rest is ignored (default 2048)", 1, INT32_MAX},
    {"tokenizer", "NAME", TO(tokenizer), "a directory, tokenizer.json or bytes (default: the model's own)"},
    {"dtype", "TYPE", WORD(dtype), "type of the model: fp32, bf16 or fp16 (default fp32)", DT_F32,
     .words = "fp32,bf16,fp16"},
    {"pass-tokens", "N", TO(pass), "tokens per forward pass (default 4096)", 1, 1 << 24},
    {"output", "PREFIX", TO(output), "prefix of the output files", .letter = 'o'},
    {"force", NULL, TO(force), "replace existing files"},
    {HEADING("Codes")},
    {"method", "NAME", WORD(method),
     "rqvae (residual-quantised autoencoder), kmeans (residual k-means on the embeddings), balanced (k-means with "
     "equally many items per code) or kmeans+ (an autoencoder that starts from balanced); default rqvae",
     .words = "rqvae,kmeans,balanced,kmeans+"},
    {"levels", "N", TO(levels), "levels, and so tokens, of a SID (default 3)", 1, DT_SID_MAX_LEVELS},
    {"codes", "N", TO(codes), "codes per level (default 256)", 2, 1 << 20},
    {"kmeans-iterations", "N", TO(kmeans_iterations), "maximum iterations (default 100)", 0, INT32_MAX},
    {"seed", "N", TO(seed), "seed of the random generator (default 42)", 0, TOOL_NO_LIMIT},
    {HEADING("Autoencoder: rqvae, kmeans+")},
    {"dim", "N", TO(rqvae.net.dim), "rqvae: dimension of the quantised vector (default 32)", 1, 1 << 20},
    {"hidden", "N,N,...", CALL(take_hidden),
     "sizes of the encoder's hidden layers; the decoder mirrors them (default 2048,1024,512,256,128,64; 0: none)"},
    {"beta", "B", TO(rqvae.net.beta), "weight of the commitment loss (default 0.25)", 0, 1e6},
    {"epochs", "N", TO(rqvae.epochs), "passes over the items (default 5000)", 1, INT32_MAX},
    {"batch-size", "N", TO(rqvae.batch), "items per AdamW step (default 20480; kmeans+: 2048)", 1, INT32_MAX},
    {"lr", "R", TO(rqvae.net.lr), "learning rate (default 0.001; kmeans+: 0.0001)", 0, 1e6},
    {"warmup-epochs", "N", TO(rqvae.warmup_epochs), "epochs in which the learning rate grows from 0 (default 50)", 0,
     INT32_MAX},
    {"weight-decay", "W", TO(rqvae.net.weight_decay), "weight decay (default 0)", 0, 1e6},
    {"clip", "N", TO(rqvae.net.clip), "maximum gradient norm (default 1; 0: no clipping)", 0, 1e30},
    {"evaluate-every", "N", TO(rqvae.evaluate_every),
     "epochs between evaluations; the parameters with the fewest collisions are kept (default 50)", 1, INT32_MAX},
    {HEADING("Items with the same SID")},
    {"sinkhorn-rounds", "N", TO(sinkhorn.max_rounds),
     "rounds that reassign the last codes of colliding items (default 20; 0: none)", 0, INT32_MAX},
    {"sinkhorn-epsilon", "E", TO(sinkhorn.epsilon),
     "regularisation: a smaller value assigns closer to the nearest code (default 0.003)", 1e-6, 1e6},
    {"sinkhorn-iterations", "N", TO(sinkhorn.iterations), "iterations per round (default 50)", 1, INT32_MAX},
    {"distinct", NULL, TO(sinkhorn.distinct),
     "give items that still collide the nearest unused last code, while one is left"},
    {HEADING("Running")},
    {"block-size", "N", TO(block),
     "items per block (default 1024). Sums follow the order of blocks, so another size may change results within "
     "rounding", 1, 1 << 20},
    {"threads", "N", TO(threads), "threads per rank (default: the node's cores divided by its ranks)", 0, 4096},
    {"device", "NAME", TO(device), "auto, cpu or cuda (default auto)"},
    {"timeout", "S", TO(timeout_s), "end with exit code 76 after S seconds without progress (default 1800)", 1, 1e9},
    TOOL_ROWS};
/* clang-format on */

const tool_help sid_help = {usage, rows, "\nResults do not depend on the number of ranks.\n",
                            .codes = 1U << DT_ERR_NONFINITE | 1U << DT_ERR_COMM};

enum { NOT_GIVEN = -1 };

static dt_err check_options(const options *o)
{
    DT_CHECK(!o->embeddings != !o->model, DT_ERR_USAGE,
             "expected either --embeddings FILE or --model MODEL; see dtrain-sid --help");
    DT_CHECK(!o->model || o->items, DT_ERR_USAGE, "--model needs --items, the texts of the items");
    DT_CHECK(o->output && o->output[0], DT_ERR_USAGE, "expected -o PREFIX, the prefix of the output files");
    DT_CHECK(o->method != SID_KMEANS_PLUS || o->rqvae.net.dim == NOT_GIVEN, DT_ERR_USAGE,
             "--dim: with --method kmeans+ the quantised vector is as wide as the embeddings; leave it out");
    return DT_OK;
}

dt_err sid_parse_options(options *o, int argc, char **argv)
{
    *o = (options){.method = SID_RQVAE,
                   .rqvae = {.net = {.n_hidden = 6, .dim = NOT_GIVEN, .beta = 0.25, .lr = NOT_GIVEN, .clip = 1},
                             .hidden = {2048, 1024, 512, 256, 128, 64},
                             .epochs = 5000,
                             .batch = NOT_GIVEN,
                             .warmup_epochs = 50,
                             .evaluate_every = 50},
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
    DT_TRY(tool_parse(rows, o, argc, argv));
    if (o->help || o->version) return DT_OK;
    DT_CHECK(optind == argc, DT_ERR_USAGE, "expected only options, found '%s'", argv[optind]);
    DT_TRY(check_options(o));
    const bool plus = o->method == SID_KMEANS_PLUS;
    if (o->rqvae.net.dim == NOT_GIVEN) o->rqvae.net.dim = 32;
    if (o->rqvae.batch == NOT_GIVEN) o->rqvae.batch = plus ? 2048 : 20480;
    if (o->rqvae.net.lr == NOT_GIVEN) o->rqvae.net.lr = plus ? 1e-4 : 1e-3;
    return DT_OK;
}
