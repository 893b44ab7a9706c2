/* dtrain-convert.c - converts a checkpoint to a Hugging Face directory and back. The model is sharded as
 * in ZeRO stage 3: each of N ranks holds, reads and writes 1/N of it. */
#include "dtrain/chat/chat.h"
#include "dtrain/pretrained/export.h"
#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/process/process.h"
#include "dtrain/recommend/token_list.h"
#include "tool/ranks.h"
#include "tool/tool.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: dtrain-convert [options] FROM TO\n"
    "Converts a dtrain checkpoint to a Hugging Face model directory, or a model directory to a\n"
    "checkpoint. Under mpirun each rank reads and writes its share of the model.\n"
    "  FROM   a checkpoint (.h5), a run's output_dir, or a directory with config.json and\n"
    "         safetensors files\n"
    "  TO     if FROM is a checkpoint: the directory to create. If FROM is a directory: the\n"
    "         checkpoint to create (FILE.h5, or a folder for it)\n"
    "\n";

enum kind { KIND_NONE, KIND_CHECKPOINT, KIND_HF };

typedef struct options {
    const char *from, *to, *adapter, *split, *initial, *add_tokens, *strip_prefix, *tokenizer;
    const char *chat_template; /* these are NULL if not given */
    enum kind kind;
    dt_model_part part;
    dt_st_type dtype; /* DT_ST_OTHER: not given */
    int64_t shard_size;
    double noise, timeout_s;
    bool text_only, force, help, version;
} options;

typedef struct app {
    options opt;
    dt_comm comm;
    dt_phase phase;
    dt_watchdog *watchdog;
    dt_ledger ledger;
    dt_device dev;
    dt_frozen_model frozen;
    enum kind kind;
    dt_st_type dtype;      /* type of the output */
    dt_dtype kept;         /* type in memory */
    const char *tokenizer; /* NULL: none */
    char *full_tokenizer;  /* its absolute path */
    char *chat_template;   /* as dt_chat_spec; NULL: unknown */
    char *jinja;           /* its Jinja form for a directory; NULL: keep the tokenizer's own */
    dt_config split;       /* of --split */
    dt_new_tokens new_tokens;
    uint64_t tokens_fingerprint; /* of the --add-tokens list */
} app;

/* ---- the command line -------------------------------------------------------------------------------------------- */

/* clang-format off */
static const tool_row rows[] = {
    {"to", "KIND", WORD(kind),
     "output kind: checkpoint or hf. With hf, FROM may also be a directory, for example to change the shard size or "
     "the data type", KIND_CHECKPOINT, .words = "checkpoint,hf"},
    {"adapter", "DIR", TO(adapter),
     "merge the LoRA adapters of DIR (PEFT format) into the weights: W + s B A, summed in fp32 and rounded once. TO is "
     "a directory"},
    {"split", "CONFIG", TO(split),
     "split adapters from the weights, as [lora] of the configuration file CONFIG says (lora.init = pissa or olora): "
     "TO is the directory of a model with the weights W - s B A, and TO/adapter has A and B"},
    {"initial", "DIR", TO(initial),
     "FROM is an adapter that was trained from the adapter DIR of --split: write it to TO as an adapter of the "
     "original model, with twice the rank"},
    {"add-tokens", "FILE", TO(add_tokens),
     "add tokens to the tokenizer, and a row for each to the embedding and the output head. A new row starts as the "
     "mean of the existing rows. FILE is NAME.index.json or the info file of a recommender, whose level tokens are "
     "added, or a text file with one token per line. Tokens that already have an id keep it. TO is a directory"},
    {"noise", "STD", TO(noise),
     "with --add-tokens: add normal noise with this standard deviation to each new row (default 0: all new rows are "
     "equal)", 0, 1},
    {"dtype", "TYPE", WORD(dtype),
     "fp32, bf16, or fp16 (directories only). Default for a directory: the type in which the run computed. If the "
     "weights come from a directory: their type in that directory (fp32 if it has several types). Default for a "
     "checkpoint: bf16 if all weights are bf16, otherwise fp32, which stores all three types exactly", DT_ST_F32,
     .words = "fp32,fp16,bf16"},
    {"strip-prefix", "P", TO(strip_prefix),
     "remove P (module., _orig_mod., base_model.model.) from the start of tensor names in FROM, a directory. A P that "
     "begins with _ is also removed after any dot", .text = true},
    {"text-only", NULL, TO(text_only),
     "only the text model of FROM, a directory with a model with images: the result is a model of texts"},
    {"vision", "PART", WORD(part),
     "part of a directory FROM with a model with images: none is --text-only; whole; or auto: the text model of "
     "Qwen3.5, otherwise whole (default auto)", DT_MODEL_USUAL, .words = "auto,none,whole"},
    {"shard-size", "SIZE", BYTES(shard_size),
     "maximum bytes of tensors per file, such as 5GB or 2GiB (default 5GB). G and GB are 10^9 bytes, GiB is 2^30 "
     "bytes"},
    {"tokenizer", "NAME", TO(tokenizer),
     "directory or tokenizer.json whose files are copied; bytes; or none (default: the tokenizer of FROM)"},
    {"chat-template", "NAME", TO(chat_template),
     "chat template of the tokenizer: a name (dtrain-data --help lists them), a JSON file or a Jinja file. A directory "
     "stores it as chat_template.jinja (default: the template that the checkpoint was trained with)"},
    {"force", NULL, TO(force), "write into a directory that is not empty, or overwrite an existing file"},
    {"timeout", "S", TO(timeout_s), "end with exit code 76 after S seconds without progress (default 1800)", 1, 1e9},
    TOOL_ROWS};
/* clang-format on */
static const tool_help help = {usage, rows, .codes = 1U << DT_ERR_COMM};

static dt_err parse_options(options *o, int argc, char **argv)
{
    *o = (options){.shard_size = DT_ST_SHARD_SIZE, .timeout_s = 1800};
    DT_TRY(tool_parse(rows, o, argc, argv));
    if (o->help || o->version) return DT_OK;
    DT_CHECK(argc - optind == 2, DT_ERR_USAGE, "expected FROM and TO, found %d names; see dtrain-convert --help",
             argc - optind);
    if (o->text_only) o->part = DT_MODEL_TEXT;
    o->from = argv[optind];
    o->to = argv[optind + 1];
    DT_CHECK(o->noise == 0 || o->add_tokens, DT_ERR_USAGE, "--noise needs --add-tokens, whose new rows get the noise");
    return DT_OK;
}

/* ---- checking and choosing --------------------------------------------------------------------------------------- */

static bool ends_in_h5(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (!strcmp(dot, ".h5") || !strcmp(dot, ".hdf5"));
}

static dt_err choose_kind(app *a)
{
    DT_CHECK(!a->opt.strip_prefix || a->frozen.from.kind == DT_PRETRAINED_HF, DT_ERR_USAGE,
             "--strip-prefix: expected FROM to be a model directory, found the checkpoint %s", a->frozen.from.path);
    const bool text_only = a->opt.part == DT_MODEL_TEXT;
    DT_CHECK(!text_only || a->frozen.from.kind == DT_PRETRAINED_HF, DT_ERR_USAGE,
             "--text-only: expected FROM to be a model directory, found the checkpoint %s", a->frozen.from.path);
    DT_CHECK(a->opt.part != DT_MODEL_WHOLE || a->frozen.mc.vision, DT_ERR_DATA,
             "--vision whole: %s: expected a model with images that dtrain reads, found %s", a->frozen.from.config_name,
             dt_family_name(a->frozen.mc.family));
    DT_CHECK(!text_only || a->frozen.from.text_alone, DT_ERR_DATA,
             "%s: model_type: expected a model with images whose text model can be used alone, found %s",
             a->frozen.from.config_name, dt_family_name(a->frozen.mc.family));
    const bool from_hf = a->frozen.from.kind == DT_PRETRAINED_HF;
    const bool merges = a->frozen.lora.r > 0, grows = a->opt.add_tokens;
    a->kind = a->opt.kind != KIND_NONE ? a->opt.kind : from_hf && !merges && !grows ? KIND_CHECKPOINT : KIND_HF;
    DT_CHECK(!grows || !merges, DT_ERR_USAGE,
             "--add-tokens: expected a model without adapters; merge them first (dtrain-convert without --add-tokens)");
    DT_CHECK(!grows || a->kind == KIND_HF, DT_ERR_USAGE,
             "--add-tokens: expected TO to be a directory, because a checkpoint stores no tokenizer; train from that "
             "directory, or convert it afterwards");
    DT_CHECK(a->kind == KIND_HF || !merges, DT_ERR_USAGE,
             "--to checkpoint: a model with adapters can only be converted to a directory; convert that directory "
             "afterwards");
    DT_CHECK(a->kind == KIND_HF || from_hf, DT_ERR_USAGE, "--to checkpoint: %s is already a checkpoint",
             a->frozen.from.path);
    DT_CHECK(a->kind == KIND_CHECKPOINT || !ends_in_h5(a->opt.to), DT_ERR_USAGE,
             "%s: expected a directory name (%s), found the name of a checkpoint", a->opt.to,
             from_hf ? "--to hf" : "FROM is a checkpoint");
    return DT_OK;
}

static bool is_empty(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return true; /* the function that writes to the directory reports the error */
    for (struct dirent *e = readdir(d); e && n <= 2; e = readdir(d)) n++;
    closedir(d);
    return n <= 2;
}

/* The output must not be the input model or a file of its directory, not even with --force. */
static dt_err check_no_input(const app *a)
{
    char path[PATH_MAX];
    const char *from = a->frozen.from.path, *const file = path, *const both[] = {from, a->opt.from};
    DT_TRY(dt_check_output(a->opt.to, true, both, 2));
    DIR *d = opendir(from);
    if (!d) return DT_OK; /* not a directory: a checkpoint file */
    dt_err err = DT_OK;
    for (struct dirent *e = readdir(d); e && err == DT_OK; e = readdir(d))
        if (e->d_name[0] != '.' && dt_join_path(path, from, e->d_name, ""))
            err = dt_check_output(a->opt.to, true, &file, 1);
    closedir(d);
    return err;
}

/* On rank 0 only. */
static dt_err check_target(const app *a)
{
    struct stat st;
    const char *to = a->opt.to;
    DT_TRY(check_no_input(a));
    if (stat(to, &st) != 0) return DT_OK;
    if (a->kind == KIND_HF)
        DT_CHECK(S_ISDIR(st.st_mode), DT_ERR_USAGE, "%s: expected a directory for the model, found a file", to);
    DT_CHECK(a->opt.force || (S_ISDIR(st.st_mode) && is_empty(to)), DT_ERR_USAGE,
             "%s: %s; use --force to write there anyway", to,
             S_ISDIR(st.st_mode) ? "this directory is not empty" : "this file exists");
    return DT_OK;
}

/* The caller owns the result; NULL: not JSON. */
static json_t *parse_config(const char *text)
{
    json_t *root;
    if (dt_json_parse(&root, "config.json", text, strlen(text), DT_JSON_LAST_KEY) != DT_OK) dt_error_clear();
    return root;
}

/* The weight type in config.json. */
static dt_st_type type_in_config(const char *text)
{
    json_t *root = parse_config(text);
    const json_t *v = json_object_get(root, "dtype");
    const char *word = json_string_value(v ? v : json_object_get(root, "torch_dtype"));
    const dt_st_type type = !word                      ? DT_ST_OTHER
                            : strstr(word, "bfloat16") ? DT_ST_BF16
                            : strstr(word, "float16")  ? DT_ST_F16
                            : strstr(word, "float32")  ? DT_ST_F32
                                                       : DT_ST_OTHER;
    json_decref(root);
    return type;
}

/* The type that a run computed with; DT_ST_OTHER: the checkpoint was not written by a run. */
static dt_st_type type_of_run(const dt_pretrained *p)
{
    dt_config cfg = {0};
    dt_st_type type = DT_ST_OTHER;
    if (!p->meta.config) return type;
    if (dt_config_read_recorded(&cfg, p->path, p->meta.config) != DT_OK)
        dt_error_clear();
    else if (dt_config_given(&cfg, "precision", "dtype"))
        type = dt_st_type_of(dt_config_precision(&cfg));
    dt_config_free(&cfg);
    return type;
}

static dt_err choose_dtype(app *a)
{
    const dt_pretrained *p = &a->frozen.from;
    dt_st_type stored;
    DT_TRY(dt_pretrained_type(p, &stored));
    dt_st_type usual = stored != DT_ST_OTHER ? stored : type_of_run(p);
    if (usual == DT_ST_OTHER && p->kind == DT_PRETRAINED_CHECKPOINT) usual = type_in_config(p->model_config);
    if (usual == DT_ST_OTHER) usual = DT_ST_F32;
    if (a->kind == KIND_CHECKPOINT) {
        DT_CHECK(a->opt.dtype != DT_ST_F16, DT_ERR_USAGE,
                 "--dtype: expected fp32 or bf16 for a checkpoint, found fp16; use fp32, which stores fp16 exactly");
        usual = stored == DT_ST_BF16 ? DT_ST_BF16 : DT_ST_F32;
    }
    a->dtype = a->opt.dtype != DT_ST_OTHER ? a->opt.dtype : usual;
    a->kept = a->dtype == DT_ST_BF16 ? DT_BF16 : DT_F32;
    /* fp32, because adapters are added before rounding, and the mean of rows is taken before rounding */
    if (a->frozen.lora.r > 0 || (a->opt.add_tokens && stored != DT_ST_BF16)) a->kept = DT_F32;
    return DT_OK;
}

static dt_err choose_tokenizer(app *a)
{
    const char *asked = a->opt.tokenizer;
    if (asked && !strcmp(asked, "none")) return DT_OK;
    a->tokenizer = asked ? asked : a->frozen.from.tokenizer;
    const dt_err err = dt_export_check_tokenizer(a->tokenizer);
    if (err != DT_OK && asked) return err;
    if (err != DT_OK) { /* FROM names a tokenizer that no longer exists; the weights are still useful */
        if (a->comm.rank == 0)
            DT_WARN("%s; the tokenizer's files are not copied (see --tokenizer)", dt_error_message());
        dt_error_clear();
        a->tokenizer = NULL;
    }
    if (a->tokenizer && strcmp(a->tokenizer, "bytes")) {
        a->full_tokenizer = realpath(a->tokenizer, NULL);
        DT_CHECK_ERRNO(a->full_tokenizer, DT_ERR_DATA, a->tokenizer, NULL);
        a->tokenizer = a->full_tokenizer;
    }
    if (!a->tokenizer && a->kind == KIND_HF && a->comm.rank == 0)
        DT_WARN("this model has no known tokenizer, so none is copied; choose one with --tokenizer");
    return DT_OK;
}

/* Files of a tokenizer are copied even if dtrain cannot read it. */
static dt_err choose_template(app *a)
{
    const char *asked = a->opt.chat_template, *name = asked ? asked : a->frozen.from.chat_template;
    DT_CHECK(!asked || a->tokenizer, DT_ERR_USAGE, "--chat-template needs a tokenizer; choose one with --tokenizer");
    if (!name || !strcmp(name, "auto")) return DT_OK;
    if (!a->tokenizer)
        return (a->chat_template = strdup(name)) ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a name");
    const dt_vision_config *v = a->frozen.mc.vision;
    const dt_err err =
        dt_chat_jinja_for(name, a->tokenizer, v ? dt_vision_text_token(v) : -1, &a->chat_template, &a->jinja);
    if (err == DT_OK || asked) return err;
    if (a->kind == KIND_HF && a->comm.rank == 0)
        DT_WARN("chat_template.jinja is not written for the template %.200s: %s", name, dt_error_message());
    dt_error_clear();
    if (!a->chat_template) a->chat_template = strdup(name);
    return a->chat_template ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a name");
}

static dt_err choose_new_tokens(app *a)
{
    if (!a->opt.add_tokens) return DT_OK;
    DT_CHECK(a->tokenizer, DT_ERR_USAGE, "--add-tokens needs the model's tokenizer; choose it with --tokenizer");
    dt_token_list list;
    DT_TRY(dt_token_list_read(&list, a->opt.add_tokens));
    for (int32_t i = 0; i < list.n; i++)
        a->tokens_fingerprint =
            dt_mix64(a->tokens_fingerprint ^ dt_checksum(list.token[i], 0, (int64_t)strlen(list.token[i]), 1));
    const dt_err err = dt_new_tokens_make(&a->new_tokens, list.token, list.n, a->tokenizer);
    dt_token_list_free(&list);
    return err;
}

/* Without a preprocessor configuration, users of the model would have to guess how to prepare images. */
static void warn_of_images(const app *a)
{
    const dt_vision_config *v = a->frozen.mc.vision;
    if (v && !v->preprocessor.out_width && a->comm.rank == 0)
        DT_WARN("%s: preprocessor_config.json, which defines image preprocessing, is missing; %s", a->opt.from,
                a->kind == KIND_HF ? "the new directory gets the usual one for this tower"
                                   : "the checkpoint will not store it either");
}

static dt_err choose(app *a)
{
    DT_TRY(choose_kind(a));
    if (a->comm.rank == 0) DT_TRY(check_target(a));
    warn_of_images(a);
    DT_TRY(choose_dtype(a));
    DT_TRY(choose_tokenizer(a));
    DT_TRY(choose_new_tokens(a));
    return choose_template(a);
}

/* ---- converting -------------------------------------------------------------------------------------------------- */

/* config.json with the stored weight type, so that converting back keeps it. malloc'ed. */
static char *config_with_type(const dt_pretrained *p)
{
    static const char *const names[] = {NULL, "float32", "float16", "bfloat16"};
    dt_st_type stored = DT_ST_OTHER;
    /* the type was read before; loading the model reports errors */
    if (dt_pretrained_type(p, &stored) != DT_OK) dt_error_clear();
    /* mixed types: fp32 represents all of them */
    if (stored == DT_ST_OTHER && p->kind == DT_PRETRAINED_HF) stored = DT_ST_F32;
    json_t *root = names[stored] ? parse_config(p->model_config) : NULL;
    if (!root) return strdup(p->model_config);
    if (json_object_get(root, "dtype") || !json_object_get(root, "torch_dtype"))
        json_object_set_new(root, "dtype", json_string(names[stored]));
    if (json_object_get(root, "torch_dtype")) json_object_set_new(root, "torch_dtype", json_string(names[stored]));
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}

static char *config_with_tokenizer(const app *a)
{
    char *text = NULL;
    /* other characters would be parsed as configuration syntax */
    const bool fits = a->tokenizer && !strpbrk(a->tokenizer, "\r\n;#$");
    if (a->tokenizer && !fits && a->comm.rank == 0)
        DT_WARN("%s: a configuration cannot contain this name, so the checkpoint does not store its tokenizer",
                a->tokenizer);
    return asprintf(&text, "[model]\ntokenizer =%s%s\nchat_template = %s\n", fits ? " " : "", fits ? a->tokenizer : "",
                    a->chat_template ? a->chat_template : "") < 0
               ? NULL
               : text;
}

static dt_err write_checkpoint(app *a)
{
    char *config = config_with_tokenizer(a), *model_config = config_with_type(&a->frozen.from);
    dt_err err = together(
        &a->comm, config && model_config ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the configuration"));
    const dt_ckpt_meta meta = {.scale.scale = 1, .config = config, .model_config = model_config};
    if (err == DT_OK && ends_in_h5(a->opt.to))
        err = dt_checkpoint_save_as(&a->comm, a->frozen.zero, &meta, a->opt.to, &a->phase);
    else if (err == DT_OK)
        err = dt_checkpoint_save(&a->comm, a->frozen.zero, &meta, a->opt.to, 0, &a->phase);
    free(config);
    free(model_config);
    return err;
}

static bool unties(const app *a) { return dt_lora_unties(&a->frozen.mc, a->frozen.units, a->frozen.n_units); }

static dt_err write_directory(app *a)
{
    const dt_export_options e = {.dir = a->opt.to,
                                 .dtype = a->dtype,
                                 .unties = unties(a),
                                 .subtracts = a->opt.split,
                                 .shard_size = a->opt.shard_size,
                                 .model_config = a->frozen.mc.json,
                                 .tokenizer = a->tokenizer,
                                 .chat_template = a->jinja,
                                 .new_tokens = a->opt.add_tokens ? &a->new_tokens : NULL,
                                 .new_rows_noise = a->opt.noise,
                                 .generation_from =
                                     a->frozen.from.kind == DT_PRETRAINED_HF ? a->frozen.from.path : NULL};
    return dt_export(&a->comm, a->frozen.zero, &e, &a->phase);
}

/* TO/adapter. It starts at the model in TO like any other adapter. */
static dt_err write_adapter(app *a)
{
    char *dir = NULL, *config = NULL, *base = realpath(a->opt.to, NULL);
    dt_lora lora = a->frozen.lora; /* borrows its lists */
    lora.init = DT_LORA_KAIMING;
    dt_err err = asprintf(&dir, "%s/adapter", a->opt.to) >= 0
                     ? dt_lora_text(&lora, base, &a->frozen.mc, a->frozen.units, a->frozen.n_units, &config)
                     : dt_fail(DT_ERR_MEMORY, "out of memory for a path");
    const dt_export_options e = {.adapter = &lora, .dir = dir, .dtype = DT_ST_F32, .model_config = config};
    err = together(&a->comm, err);
    if (err == DT_OK) err = dt_export(&a->comm, a->frozen.zero, &e, &a->phase);
    if (err == DT_OK) DT_INFO("%s: the adapters", dir);
    free(dir);
    free(config);
    free(base);
    return err;
}

static void say_what_was_done(const app *a)
{
    const dt_new_tokens *more = &a->new_tokens;
    const int64_t end = (int64_t)more->first_id + more->n_added;
    if (a->opt.add_tokens && more->n_added == 0)
        DT_INFO("%s: %d token%s, none of them new", a->opt.add_tokens, (int)more->n_listed,
                more->n_listed == 1 ? "" : "s");
    else if (a->opt.add_tokens)
        DT_INFO("%s: %d token%s, %d of them new, with ids starting at %d", a->opt.add_tokens, (int)more->n_listed,
                more->n_listed == 1 ? "" : "s", (int)more->n_added, (int)more->first_id);
    const dt_model_config *mc = &a->frozen.mc;
    int64_t n_param = unties(a) ? mc->vocab_size * mc->hidden_size : 0; /* plus a separate head */
    char size[24];
    for (int u = 0; u < a->frozen.n_units; u++) /* merged adapters and quantisation scales are not written */
        for (int i = 0; i < a->frozen.units[u].n_tensors; i++) {
            const dt_tensor *t = &a->frozen.units[u].tensors[i];
            n_param += t->adapter_scale == 0 ? dt_n_weights(t) : 0;
            if (a->new_tokens.n_added > 0 && dt_model_is_vocabulary(t))
                n_param += dt_max_i64(0, end - t->shape[0]) * t->shape[1];
        }
    DT_INFO("%s: %" PRId64 " parameters from %s as %s %s, %s", a->opt.to, n_param, a->frozen.from.path,
            a->kind == KIND_HF ? "a Hugging Face directory in" : "a checkpoint in", dt_st_type_name(a->dtype),
            dt_format_bytes((double)n_param * (double)dt_st_type_size(a->dtype), size));
}

static dt_err read_split(app *a)
{
    char *text;
    if (!a->opt.split) return DT_OK;
    DT_TRY(dt_config_read_file(a->opt.split, &text));
    const dt_err err = dt_config_parse(&a->split, a->opt.split, text, 0, NULL);
    free(text);
    DT_TRY(err);
    a->frozen.keys = &a->split;
    DT_CONFIG_CHECK(a->split.lora_r > 0 && dt_has_word("pissa, olora", a->split.lora_init), &a->split, "lora", "init",
                    "--split: expected pissa or olora, and lora.r above 0, found %s and %d", a->split.lora_init,
                    (int)a->split.lora_r);
    DT_CONFIG_CHECK(!a->split.lora_use_dora, &a->split, "lora", "use_dora", "--split: expected false, found true");
    return DT_OK;
}

static dt_err make_plain(const app *a)
{
    const options *o = &a->opt;
    const char *const both[] = {o->from, o->initial};
    if (a->comm.rank != 0) return DT_OK;
    DT_CHECK(!o->adapter && !o->split && !o->add_tokens, DT_ERR_USAGE, "--initial: expected no option of a model");
    DT_TRY(dt_check_output(o->to, true, both, 2));
    DT_CHECK(o->force || is_empty(o->to), DT_ERR_USAGE,
             "%s: this directory is not empty; use --force to write there anyway", o->to);
    DT_TRY(dt_adapter_plain(o->from, o->initial, o->to));
    DT_INFO("%s: the adapter of %s for the original model", o->to, o->from);
    return DT_OK;
}

static dt_err run(void *self, dt_err parsed)
{
    app *a = self;
    const dt_zero_options stage_3 = {.stage = 3, .expert_group_size = 1}; /* nothing is gathered, so this saves space */
    DT_TRY(ranks_open(&a->comm, &a->phase, a->opt.timeout_s, parsed));
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    if (a->opt.initial) return together(&a->comm, make_plain(a));
    a->frozen.adapter = a->opt.adapter;
    TOGETHER(a, read_split(a));
    a->frozen.strip_prefix = a->opt.strip_prefix;
    a->frozen.model_part = a->opt.part;
    TOGETHER(a, dt_frozen_model_describe(&a->frozen, a->opt.from, DT_LABELS_OF_FILES));
    DT_TRY(dt_comm_same_file(&a->comm, a->frozen.from.config_name, dt_hash_text(a->frozen.mc.json)));
    TOGETHER(a, choose(a));
    /* values are copied without arithmetic, so NaN and inf are kept */
    a->frozen.from.keeps_nonfinite = a->frozen.lora.r == 0 && !a->opt.add_tokens;
    if (a->opt.add_tokens) DT_TRY(dt_comm_same_file(&a->comm, a->opt.add_tokens, a->tokens_fingerprint));
    TOGETHER(a, ranks_open_device(&a->comm, &a->dev, &a->ledger, "cpu", 0));
    TOGETHER(a, dt_comm_attach(&a->comm, &a->dev, "auto", true));
    dt_phase_enter(&a->phase, "load", "");
    TOGETHER(a, dt_frozen_model_load(&a->frozen, &stage_3, a->kept, &a->comm, &a->dev, NULL, &a->phase));
    dt_phase_enter(&a->phase, "write", "");
    if (a->opt.split) DT_TRY(dt_adapters_split(&a->comm, a->frozen.zero, &a->frozen.lora));
    TOGETHER(a, a->kind == KIND_HF ? write_directory(a) : write_checkpoint(a));
    if (a->opt.split) DT_TRY(write_adapter(a));
    say_what_was_done(a);
    return DT_OK;
}

static void close_all(void *self)
{
    app *a = self;
    dt_watchdog_stop(&a->watchdog);
    dt_frozen_model_close(&a->frozen);
    dt_config_free(&a->split);
    dt_new_tokens_free(&a->new_tokens);
    free(a->full_tokenizer);
    free(a->chat_template);
    free(a->jinja);
}

int main(int argc, char **argv)
{
    app a = {0};
    tool_start("dtrain-convert");
    const dt_err parsed = parse_options(&a.opt, argc, argv);
    if (parsed == DT_OK && tool_answers(&help, a.opt.help, a.opt.version)) return tool_end(DT_OK);
    tool_wait_fairly(argv);
    return ranks_main(&a.comm, &a.dev, &a, parsed, run, close_all, tool_end);
}
