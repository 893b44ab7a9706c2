/* dtrain-info.c - shows a checkpoint or dataset and verifies its checksums. It is one process without MPI
 * and runs on a login node.
 *
 * All facts about a file are collected first and then printed, as text or as JSON, so that both formats
 * agree. */
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "info/run_dir.h"
#include "dtrain/io/json.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    bool tensors, config, verify, json, help, version;
    const char *images; /* NULL: no contact sheet */
    int64_t n_images;
    int n_files;
    char **files;
} options;

typedef enum verdict { NOT_CHECKED, NO_CHECKSUM, VERIFIED, ALTERED } verdict;

typedef struct array_info {
    char *name;
    dt_h5_array a;
    verdict verdict;
} array_info;

typedef struct file_info {
    const char *path;
    bool is_checkpoint, sealed; /* sealed: a dataset whose header has a checksum, which matches */
    dt_ckpt_meta meta;          /* of a checkpoint */
    /* of a dataset; tokenizer and chat_template: "" if it names none; n_records -1: no offsets */
    const char *kind;
    char *tokenizer, *chat_template;
    int64_t vocab_size, n_records, n_images;
    dt_image_form images; /* size 0: no images; preprocessor not kept */
    array_info *arrays;
    int n_arrays;
    bool verify;
    double verify_s;
} file_info;

static const char usage[] =
    "usage: dtrain-info [options] FILE|RUN_DIR...\n"
    "Shows dtrain checkpoints and datasets, and verifies their checksums. For a run's output_dir or\n"
    "its checkpoint folder it shows the model and data, whether the run is active, its progress, its\n"
    "latest metrics and its checkpoints.\n"
    "\n";

/* clang-format off */
static const tool_row rows[] = {
    {"tensors", NULL, TO(tensors), "list every tensor"},
    {"config", NULL, TO(config), "print the configuration and model of a checkpoint"},
    {"no-verify", NULL, CLEAR(verify), "do not read the data, so checksums are not verified"},
    {"images", "FILE", TO(images), "plot images of a dataset into FILE, a PNG"},
    {"n-images", "N", TO(n_images), "plot at most N images, evenly spaced (default 64)", 1, 1 << 20},
    {"json", NULL, TO(json), "print one JSON object per file, one per line"},
    TOOL_ROWS};
/* clang-format on */
static const tool_help help = {usage, rows, .codes = 0};

/* ---- collecting -------------------------------------------------------------------------------------------------- */

static dt_err add_array(hid_t dset, const char *name, void *ctx)
{
    file_info *f = ctx;
    DT_GROW(f->arrays, f->n_arrays, "%s: out of memory for its list of arrays", f->path);
    array_info *info = &f->arrays[f->n_arrays];
    uint64_t sum = 0;
    DT_TRY(dt_h5_inspect(dset, f->path, name, &info->a));
    if (f->verify && info->a.has_checksum) DT_TRY(dt_h5_checksum(dset, f->path, name, &info->a, &sum));
    info->verdict = !info->a.has_checksum     ? NO_CHECKSUM
                    : !f->verify              ? NOT_CHECKED
                    : sum == info->a.checksum ? VERIFIED
                                              : ALTERED;
    DT_COPY_TEXT(info->name, name, "%s: out of memory for its list of arrays", f->path);
    f->n_arrays++;
    return DT_OK;
}

/* File order is the model's order; sorting by name would put block 10 before block 2. */
static int by_place(const void *a, const void *b)
{
    const array_info *x = a, *y = b;
    if (x->a.offset != y->a.offset) return x->a.offset < y->a.offset ? -1 : 1;
    return strcmp(x->name, y->name);
}

static dt_err read_format(hid_t file, file_info *f)
{
    char *format = NULL;
    DT_TRY(dt_h5_read_text(file, f->path, "format", &format));
    f->is_checkpoint = strcmp(format, "dtrain-checkpoint") == 0;
    const bool is_dataset = strcmp(format, "dtrain-dataset") == 0;
    dt_err err = DT_OK;
    if (!f->is_checkpoint && !is_dataset)
        err = dt_fail(DT_ERR_DATA, "%s: attribute `format`: expected dtrain-checkpoint or dtrain-dataset, found %.60s",
                      f->path, format);
    free(format);
    return err;
}

/* All checks that training makes before it starts: this program and training must accept the same files. */
static dt_err open_as_training_does(file_info *f, const options *o)
{
    dt_dataset *d;
    if (o->images) DT_TRY(dt_check_output(o->images, true, (const char *const[]){f->path}, 1));
    DT_TRY(dt_dataset_open(&d, f->path));
    const dt_dataset_info *info = dt_dataset_get_info(d);
    f->sealed = info->sealed;
    f->vocab_size = info->vocab_size;
    f->n_records = info->n_documents;
    f->n_images = info->n_images;
    f->images = info->images;
    f->images.preprocessor = NULL;
    dt_err err = dt_copy_text(&f->tokenizer, info->tokenizer, "%s: out of memory", f->path);
    if (err == DT_OK) err = dt_copy_text(&f->chat_template, info->chat_template, "%s: out of memory", f->path);
    if (err == DT_OK) f->kind = dt_dataset_kind_name(info->kind);
    if (err == DT_OK && o->images) err = dt_dataset_draw_images(d, o->n_images, o->images);
    dt_dataset_close(d);
    return err;
}

static dt_err collect(file_info *f, const options *o)
{
    hid_t file = H5I_INVALID_HID;
    dt_h5_lock();
    dt_err err = dt_h5_survives(f->path);
    if (err == DT_OK) err = dt_h5_open(f->path, &file, &f->sealed);
    if (err == DT_OK) err = read_format(file, f);
    if (err == DT_OK && !f->is_checkpoint) { /* HDF5 does not open a file twice with different access properties */
        H5Fclose(file);
        file = H5I_INVALID_HID;
        dt_h5_unlock();
        err = open_as_training_does(f, o);
        dt_h5_lock();
        if (err == DT_OK) err = dt_h5_open(f->path, &file, NULL);
    }
    dt_h5_unlock();
    if (err == DT_OK && f->is_checkpoint) err = dt_checkpoint_read_meta(f->path, &f->meta);
    const double start = dt_now_s();
    dt_h5_lock();
    if (err == DT_OK) err = dt_h5_each_array(file, f->path, add_array, f);
    if (file >= 0) H5Fclose(file);
    dt_h5_unlock();
    f->verify_s = dt_now_s() - start;
    if (f->n_arrays) qsort(f->arrays, (size_t)f->n_arrays, sizeof *f->arrays, by_place);
    return err;
}

static void release(file_info *f)
{
    for (int i = 0; i < f->n_arrays; i++) free(f->arrays[i].name);
    free(f->arrays);
    free(f->tokenizer);
    free(f->chat_template);
    dt_ckpt_meta_free(&f->meta);
}

/* ---- derived values ---------------------------------------------------------------------------------------------- */

static int64_t nbytes_of(const array_info *i) { return i->a.n_elems * (int64_t)i->a.elem_size; }

static int count_verdict(const file_info *f, verdict v)
{
    int n = 0;
    for (int i = 0; i < f->n_arrays; i++) n += f->arrays[i].verdict == v;
    return n;
}

static size_t group_len(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? (size_t)(slash - name) : 0;
}

static bool same_group(const char *a, const char *b)
{
    return group_len(a) == group_len(b) && strncmp(a, b, group_len(a)) == 0;
}

/* nf4 stores two parameters per byte; scales do not count. */
static int64_t n_parameters(const file_info *f)
{
    int64_t n = 0;
    for (int i = 0; i < f->n_arrays; i++) {
        const char *name = f->arrays[i].name, *end = strrchr(name, '.');
        const bool is_scale = end && (strcmp(end, ".weight_scale") == 0 || strcmp(end, ".weight_blocks") == 0);
        const int per_elem = f->arrays[i].a.type == DT_H5_U8 ? 2 : 1;
        if (same_group(name, "model/") && !is_scale) n += per_elem * f->arrays[i].a.n_elems;
    }
    return n;
}

/* Value of the first of two alternative keys in config.json that exists. */
static json_int_t model_number(const json_t *model, const char *name, const char *other)
{
    const json_t *value = json_object_get(model, name);
    if (!json_is_integer(value)) value = json_object_get(model, other);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void shape_text(const dt_h5_array *a, char *out, size_t out_size)
{
    size_t len = 0;
    out[0] = '\0';
    for (int d = 0; d < a->n_dims && len < out_size; d++)
        len += (size_t)snprintf(out + len, out_size - len, "%s%" PRId64, d ? " x " : "", a->shape[d]);
}

static const char *verdict_text(verdict v)
{
    static const char *const text[] = {"", "no checksum", "ok", "ALTERED"};
    return text[v];
}

static void print_tensors(const file_info *f)
{
    int width = 0;
    for (int i = 0; i < f->n_arrays; i++)
        width = (int)strlen(f->arrays[i].name) > width ? (int)strlen(f->arrays[i].name) : width;
    for (int i = 0; i < f->n_arrays; i++) {
        const array_info *t = &f->arrays[i];
        char shape[200], size[24];
        shape_text(&t->a, shape, sizeof shape);
        printf("  %-*s  %-20s %-7s %11s  %s\n", width, t->name, shape, dt_h5_type_name(t->a.type),
               dt_format_bytes((double)nbytes_of(t), size), verdict_text(t->verdict));
    }
}

static void print_groups(const file_info *f)
{
    for (int i = 0; i < f->n_arrays; i++) {
        const char *name = f->arrays[i].name;
        bool seen = false, mixed = false;
        for (int k = 0; k < i; k++) seen |= same_group(f->arrays[k].name, name);
        if (seen) continue;
        int n = 0;
        int64_t elems = 0, nbytes = 0;
        for (int k = i; k < f->n_arrays; k++) {
            if (!same_group(f->arrays[k].name, name)) continue;
            n++;
            elems += f->arrays[k].a.n_elems;
            nbytes += nbytes_of(&f->arrays[k]);
            mixed |= f->arrays[k].a.type != f->arrays[i].a.type;
        }
        char size[24];
        printf("  /%-22.*s %5d tensors %14" PRId64 " elements  %-6s %s\n", (int)group_len(name), name, n, elems,
               mixed ? "mixed" : dt_h5_type_name(f->arrays[i].a.type), dt_format_bytes((double)nbytes, size));
    }
}

/* The caller owns the result; NULL: not JSON. */
static json_t *model_config(const file_info *f)
{
    json_t *model;
    if (dt_json_parse(&model, f->path, f->meta.model_config, strlen(f->meta.model_config), DT_JSON_LAST_KEY) != DT_OK)
        dt_error_clear();
    return model;
}

static void print_model(const file_info *f)
{
    json_t *model = model_config(f);
    printf("  model        ");
    if (json_is_object(model)) {
        const char *type = json_string_value(json_object_get(model, "model_type"));
        const json_t *text = json_object_get(model, "text_config"), *language = text ? text : model;
        const json_int_t layers = model_number(language, "num_hidden_layers", "n_layer"),
                         hidden = model_number(language, "hidden_size", "n_embd"),
                         heads = model_number(language, "num_attention_heads", "n_head"),
                         vocab = model_number(language, "vocab_size", "vocab_size");
        printf("%s", type ? type : "of unnamed type");
        if (layers >= 0) printf(", %" JSON_INTEGER_FORMAT " layers", layers);
        if (hidden >= 0) printf(", hidden %" JSON_INTEGER_FORMAT, hidden);
        if (heads >= 0) printf(", %" JSON_INTEGER_FORMAT " heads", heads);
        if (vocab >= 0) printf(", vocabulary %" JSON_INTEGER_FORMAT, vocab);
        printf(", ");
    }
    printf("%" PRId64 " parameters\n", n_parameters(f));
    json_decref(model);
}

static void print_verdict(const file_info *f)
{
    double nbytes = 0;
    char size[24];
    for (int i = 0; i < f->n_arrays; i++)
        if (f->arrays[i].verdict == VERIFIED || f->arrays[i].verdict == ALTERED)
            nbytes += (double)nbytes_of(&f->arrays[i]);
    const int n_with = f->n_arrays - count_verdict(f, NO_CHECKSUM);
    if (!f->is_checkpoint)
        printf("  header       %s\n",
               f->sealed ? "verified" : "has no checksum (written by an earlier dtrain, or by another program)");
    printf("  checksums    ");
    if (n_with == 0)
        printf("none in this file\n");
    else if (!f->verify)
        printf("%d of %d arrays have one; not verified\n", n_with, f->n_arrays);
    else
        printf("%d of %d arrays verified, %d altered, %d without (%s in %.2f s)\n", count_verdict(f, VERIFIED),
               f->n_arrays, count_verdict(f, ALTERED), f->n_arrays - n_with, dt_format_bytes(nbytes, size),
               f->verify_s);
}

static void print_text(const file_info *f, const options *o)
{
    printf("%s\n", f->path);
    if (f->is_checkpoint) {
        printf("  kind         checkpoint\n  step         %" PRId64 " (%" PRId64 " updates)\n  samples      %" PRId64
               "\n  tokens       %" PRId64 "\n  seed         %" PRIu64 "\n  loss_scale   %g\n",
               f->meta.step, f->meta.updates, f->meta.samples, f->meta.tokens, f->meta.seed, f->meta.scale.scale);
        printf("  optimizer    %s%s%s\n", f->meta.states.optimizer, *f->meta.states.names ? ": " : "",
               f->meta.states.names);
        print_model(f);
        if (f->meta.base.path)
            printf("  base         %s: %d tensors that are not in this file\n", f->meta.base.path, f->meta.base.n);
    } else {
        printf("  kind         dataset of %s\n  vocab_size   %" PRId64 "\n", f->kind, f->vocab_size);
        if (*f->tokenizer) printf("  tokenizer    %s\n", f->tokenizer);
        if (*f->chat_template) printf("  template     %.200s\n", f->chat_template);
        if (f->n_records >= 0)
            printf("  %-12s %" PRId64 "\n", strcmp(f->kind, "tokens") == 0 ? "documents" : "samples", f->n_records);
        if (f->images.size)
            printf("  images       %" PRId64 "%s of %" PRId64 " x %" PRId64 " pixels, each %" PRId64
                   " token%s of id %" PRId32 "\n",
                   f->n_images, f->images.grids ? " cells" : "", f->images.size, f->images.size, f->images.n_tokens,
                   f->images.n_tokens == 1 ? "" : "s", f->images.token);
        if (o->images)
            printf("  plot         %s shows %" PRId64 " of them, evenly spaced\n", o->images,
                   dt_min_i64(o->n_images, f->n_images));
    }
    print_verdict(f);
    if (o->tensors || !f->is_checkpoint)
        print_tensors(f);
    else
        print_groups(f);
    if (o->config && f->is_checkpoint)
        printf("\n# config\n%s\n# model_config\n%s\n", f->meta.config, f->meta.model_config);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *json_arrays(const file_info *f)
{
    json_t *list = json_array();
    for (int i = 0; i < f->n_arrays; i++) {
        const array_info *t = &f->arrays[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->a.n_dims; d++) json_array_append_new(shape, json_integer(t->a.shape[d]));
        json_array_append_new(list, json_pack("{s:s, s:o, s:s, s:I, s:s}", "name", t->name, "shape", shape, "dtype",
                                              dt_h5_type_name(t->a.type), "bytes", (json_int_t)nbytes_of(t), "checksum",
                                              t->verdict == NOT_CHECKED ? "not verified" : verdict_text(t->verdict)));
    }
    return list;
}

/* "a, b" */
static json_t *json_names(const char *text)
{
    char **names;
    int n;
    json_t *list = json_array();
    if (dt_config_split(text, &names, &n) != DT_OK) return list;
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(names[i]));
    dt_list_free(names, n);
    return list;
}

static void add_checkpoint(json_t *root, const file_info *f, const options *o)
{
    char seed[24]; /* text: 64 bits unsigned do not fit a JSON integer */
    snprintf(seed, sizeof seed, "%" PRIu64, f->meta.seed);
    json_object_set_new(root, "step", json_integer(f->meta.step));
    json_object_set_new(root, "updates", json_integer(f->meta.updates));
    json_object_set_new(root, "samples", json_integer(f->meta.samples));
    json_object_set_new(root, "tokens", json_integer(f->meta.tokens));
    json_object_set_new(root, "seed", json_string(seed));
    json_object_set_new(root, "loss_scale", json_real(f->meta.scale.scale));
    json_object_set_new(root, "parameters", json_integer(n_parameters(f)));
    json_object_set_new(root, "base", f->meta.base.path ? json_string(f->meta.base.path) : json_null());
    json_object_set_new(root, "optimizer", json_string(f->meta.states.optimizer));
    json_object_set_new(root, "state_updates", json_integer(f->meta.states.updates));
    json_object_set_new(root, "optimizer_states", json_names(f->meta.states.names));
    json_t *model = model_config(f);
    json_object_set_new(root, "model", model ? model : json_null());
    if (o->config) json_object_set_new(root, "config", json_string(f->meta.config));
}

static void add_dataset(json_t *root, const file_info *f)
{
    json_object_set_new(root, "dataset_kind", json_string(f->kind));
    json_object_set_new(root, "vocab_size", json_integer(f->vocab_size));
    if (*f->tokenizer) json_object_set_new(root, "tokenizer", json_string(f->tokenizer));
    if (*f->chat_template) json_object_set_new(root, "chat_template", json_string(f->chat_template));
    if (f->n_records >= 0) json_object_set_new(root, "records", json_integer(f->n_records));
    if (!f->images.size) return;
    json_object_set_new(root, "images", json_integer(f->n_images));
    json_object_set_new(root, "image_size", json_integer(f->images.size));
    json_object_set_new(root, "image_token", json_integer(f->images.token));
    json_object_set_new(root, "image_tokens", json_integer(f->images.n_tokens));
}

static void print_json(const file_info *f, const options *o, dt_err err)
{
    json_t *root = json_object();
    json_object_set_new(root, "file", json_string(f->path));
    json_object_set_new(root, "ok", json_boolean(err == DT_OK));
    if (err == DT_OK || f->n_arrays) {
        json_object_set_new(root, "kind", json_string(f->is_checkpoint ? "checkpoint" : "dataset"));
        if (f->is_checkpoint && f->meta.model_config) add_checkpoint(root, f, o);
        if (!f->is_checkpoint && f->kind) add_dataset(root, f);
        json_object_set_new(root, "verified", json_boolean(f->verify && count_verdict(f, VERIFIED) == f->n_arrays));
        json_object_set_new(root, "arrays", json_arrays(f));
    }
    if (err != DT_OK) json_object_set_new(root, "error", json_string(dt_error_message()));
    char *text = json_dumps(root, JSON_COMPACT);
    puts(text ? text : "{}");
    free(text);
    json_decref(root);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static dt_err show_directory(const char *path, const options *o)
{
    const dt_err err = info_show_run(path, o->json);
    if (err != DT_OK) dt_log(DT_LOG_ERROR, "%s", dt_error_message());
    dt_error_clear();
    return err;
}

static dt_err show(const char *path, const options *o)
{
    if (dt_is_directory(path)) return show_directory(path, o);
    char *file = NULL; /* checkpoint that checkpoints/latest (or a similar file) names */
    dt_err err = dt_checkpoint_find(path, &file);
    file_info f = {.path = file ? file : path, .verify = o->verify};
    if (err == DT_OK) err = collect(&f, o);
    const bool whole = err == DT_OK;
    for (int i = 0; whole && i < f.n_arrays; i++)
        if (f.arrays[i].verdict == ALTERED)
            err = dt_fail(DT_ERR_DATA, "%s: `%s` was altered: its data do not match the checksum (%d such arrays)",
                          f.path, f.arrays[i].name, count_verdict(&f, ALTERED));
    if (o->json)
        print_json(&f, o, err);
    else if (whole)
        print_text(&f, o);
    if (err != DT_OK) dt_log(DT_LOG_ERROR, "%s", dt_error_message());
    dt_error_clear();
    release(&f);
    free(file);
    return err;
}

static dt_err parse(int argc, char **argv, options *o)
{
    *o = (options){.verify = true, .n_images = 64};
    DT_TRY(tool_parse(rows, o, argc, argv));
    o->n_files = argc - optind;
    o->files = argv + optind;
    DT_CHECK(o->n_files > 0 || o->help || o->version, DT_ERR_USAGE,
             "expected a file or a run's directory; see dtrain-info --help");
    DT_CHECK(!o->images || o->n_files == 1, DT_ERR_USAGE, "--images: expected one dataset, found %d files", o->n_files);
    return DT_OK;
}

int main(int argc, char **argv)
{
    options o;
    tool_start("dtrain-info");
    const dt_err parsed = parse(argc, argv, &o);
    if (parsed != DT_OK) return tool_end(parsed);
    if (tool_answers(&help, o.help, o.version)) return tool_end(DT_OK);
    dt_err err = DT_OK;
    for (int i = 0; i < o.n_files; i++) {
        const dt_err one = show(o.files[i], &o);
        if (err == DT_OK) err = one;
    }
    const int written = tool_end(DT_OK); /* the message for each file was already printed */
    return err != DT_OK ? dt_exit_code(err) : written;
}
