/* mpi_fp8.c - models in FP8 and MXFP4: every code, blocks that end at the end of a matrix, and all forms of scales have
 * the values of a plain loop, on any number of ranks at every stage; what does not fit is refused by name. Models that
 * transformers decodes are in mpi_export.c.
 * NP: 1 2 3
 * DEVICES: cpu queue */
#include "cases.h"
#include "pretrained_fixture.h"

enum { FP4 = -1, MAX_FILE = 1 << 18 };

/* A tensor of a file. block_rows 0: F32. FP4: the tensor NAME_blocks in MXFP4. */
typedef struct entry {
    const char *name, *scales; /* scales: the end of their tensor's name */
    int64_t n, rows, cols;     /* n: of matrices; 0: one with two dimensions, or a vector */
    int64_t block_rows, block_cols;
    dt_st_type type; /* of the scales */
    int scale_dims;
} entry;

/* The others have the experts of a layer in one tensor. In FP8 a matrix of an expert begins within a block. */
typedef struct published {
    const char *config;
    entry entries[16];
} published;
#define MIXTURE(...)                                                                                                   \
    {                                                                                                                  \
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 160, \"num_attention_heads\": 2, "                           \
        "\"num_key_value_heads\": 1, \"head_dim\": 10, \"num_experts\": 3, \"num_experts_per_tok\": 2, "               \
        "\"moe_intermediate_size\": 96, "                                                                              \
        "\"num_hidden_layers\": 1, \"vocab_size\": 61, \"tie_word_embeddings\": true}",                                \
        {                                                                                                              \
            {"model.embed_tokens.weight", "", 0, 61, 160, 0, 0, 0, 0},                                                 \
                {"model.norm.weight", "", 0, 1, 160, 0, 0, 0, 0},                                                      \
                {"model.layers.0.input_layernorm.weight", "", 0, 1, 160, 0, 0, 0, 0},                                  \
                {"model.layers.0.post_attention_layernorm.weight", "", 0, 1, 160, 0, 0, 0, 0},                         \
                {"model.layers.0.self_attn.q_proj.weight", "", 0, 20, 160, 0, 0, 0, 0},                                \
                {"model.layers.0.self_attn.k_proj.weight", "", 0, 10, 160, 0, 0, 0, 0},                                \
                {"model.layers.0.self_attn.v_proj.weight", "", 0, 10, 160, 0, 0, 0, 0},                                \
                {"model.layers.0.self_attn.o_proj.weight", "", 0, 160, 20, 0, 0, 0, 0},                                \
                {"model.layers.0.self_attn.q_norm.weight", "", 0, 1, 10, 0, 0, 0, 0},                                  \
                {"model.layers.0.self_attn.k_norm.weight", "", 0, 1, 10, 0, 0, 0, 0},                                  \
                {"model.layers.0.mlp.gate.weight", "", 0, 3, 160, 0, 0, 0, 0}, __VA_ARGS__                             \
        }                                                                                                              \
    }
static const published MODELS[] = {
    {"{\"model_type\": \"llama\", \"hidden_size\": 132, \"num_attention_heads\": 6, \"num_key_value_heads\": 3, "
     "\"intermediate_size\": 131, \"num_hidden_layers\": 1, \"vocab_size\": 61, \"tie_word_embeddings\": true, "
     "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}",
     {{"model.embed_tokens.weight", "", 0, 61, 132, 0, 0, 0, 0},
      {"model.norm.weight", "", 0, 1, 132, 0, 0, 0, 0},
      {"model.layers.0.input_layernorm.weight", "", 0, 1, 132, 0, 0, 0, 0},
      {"model.layers.0.post_attention_layernorm.weight", "", 0, 1, 132, 0, 0, 0, 0},
      {"model.layers.0.self_attn.q_proj.weight", "_scale_inv", 0, 132, 132, 128, 128, DT_ST_F32, 2},
      {"model.layers.0.self_attn.k_proj.weight", "_scale", 0, 66, 132, 1, 132, DT_ST_BF16, 2},
      {"model.layers.0.self_attn.v_proj.weight", "_scale_inv", 0, 66, 132, 66, 132, DT_ST_F16, 1},
      {"model.layers.0.self_attn.o_proj.weight", "_scale_inv", 0, 132, 132, 132, 132, DT_ST_BF16, 2},
      {"model.layers.0.mlp.gate_proj.weight", "_scale_inv", 0, 131, 132, 128, 128, DT_ST_BF16, 2},
      {"model.layers.0.mlp.up_proj.weight", "_scale", 0, 131, 132, 131, 132, DT_ST_F32, 0},
      {"model.layers.0.mlp.down_proj.weight", "_scale_inv", 0, 132, 131, 128, 128, DT_ST_F32, 2}}},
    MIXTURE({"model.layers.0.mlp.experts.gate_up_proj", "_scale_inv", 3, 192, 160, 128, 128, DT_ST_F32, 3},
            {"model.layers.0.mlp.experts.down_proj", "_scales", 3, 160, 96, FP4, 32, DT_ST_U8, 3}),
    MIXTURE({"model.layers.0.mlp.experts.gate_up_proj", "_scales", 3, 192, 160, FP4, 32, DT_ST_U8, 3},
            {"model.layers.0.mlp.experts.down_proj", "_scale_inv", 3, 160, 96, 128, 128, DT_ST_F32, 3})};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0] };

/* ---- the definition ---------------------------------------------------------------------------------------------- */

static double ref_code(uint8_t code)
{
    const int exponent = code / 8 % 16, mantissa = code % 8;
    const double size = exponent ? (1 + mantissa / 8.0) * pow(2, exponent - 7) : mantissa / 8.0 * pow(2, -6);
    return exponent == 15 && mantissa == 7 ? (double)NAN : code < 128 ? size : -size;
}

/* Every code but NaN. */
static uint8_t code_at(int64_t i)
{
    const uint8_t c = (uint8_t)(i % 254);
    return (uint8_t)(c + (c >= 127));
}

static uint8_t fp4_at(int64_t i) { return (uint8_t)(i * 7 % 16); }
static uint8_t exponent_at(int64_t i) { return (uint8_t)(115 + i * 5 % 11); }

static int64_t n_blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }
/* Has few bits: every type represents it. */
static float scale_at(int64_t i) { return (float)(1 + i * 37 % 64) / 4096; }

static float value_at(const entry *e, int64_t i)
{
    static const double FP4_VALUES[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const uint8_t code = fp4_at(i);
    const int64_t matrix = i / (e->rows * e->cols), row = i / e->cols % e->rows, col = i % e->cols;
    if (e->block_rows == 0) return (float)(i % 29 - 14) / 64;
    if (e->block_rows == FP4)
        return (float)(FP4_VALUES[code % 8] * (code < 8 ? 1 : -1) * pow(2, exponent_at(i / e->block_cols) - 127));
    const int64_t cols = n_blocks(e->cols, e->block_cols),
                  at = (matrix * n_blocks(e->rows, e->block_rows) + row / e->block_rows) * cols + col / e->block_cols;
    return (float)(ref_code(code_at(i)) * (double)scale_at(at));
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

typedef struct file {
    char header[8192], *data;
    size_t len, nbytes;
} file;

static void add(file *f, const char *name, const char *end, const char *dtype, const char *shape, const void *data,
                size_t nbytes)
{
    f->len += (size_t)snprintf(f->header + f->len, sizeof f->header - f->len,
                               "%c\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                               f->len ? ',' : '{', name, end, dtype, shape, f->nbytes, f->nbytes + nbytes);
    memcpy(f->data + f->nbytes, data, nbytes);
    f->nbytes += nbytes;
}

/* "3,192,160". n_dims 0: of one value */
static const char *shape_text(int n_dims, int64_t n, int64_t rows, int64_t cols, char out[64])
{
    const char *const formats[] = {"", "%3$lld", "%2$lld,%3$lld", "%1$lld,%2$lld,%3$lld"};
    snprintf(out, 64, formats[n_dims], (long long)n, (long long)rows, (long long)cols);
    return out;
}

static bool write_text(const char *path, const char *text)
{
    FILE *out = fopen(path, "we");
    const bool ok = out && fputs(text, out) >= 0;
    return out && fclose(out) == 0 && ok;
}

static bool write_file(const fixture *f, const char *name, file *x)
{
    char path[PATH_MAX];
    x->len += (size_t)snprintf(x->header + x->len, sizeof x->header - x->len, "}");
    FILE *out = fopen(in_folder(f->dir, name, path), "we");
    const uint64_t len = x->len;
    bool ok = out && fwrite(&len, sizeof len, 1, out) == 1 && fwrite(x->header, 1, x->len, out) == x->len;
    ok = ok && fwrite(x->data, 1, x->nbytes, out) == x->nbytes;
    return out && fclose(out) == 0 && ok;
}

typedef struct fault {
    int64_t nan_at; /* of q_proj; -1: none */
    bool vector;    /* a norm is in FP8 */
    const char *word;
    int model;
} fault;

static void add_codes(file *weights, const entry *e, const fault *bad, const char **end)
{
    static char data[MAX_FILE];
    char shape[64];
    float *x = (float *)(void *)data;
    const int64_t n_elems = dt_max_i64(e->n, 1) * e->rows * e->cols;
    const bool vector = bad->vector && strcmp(e->name, "model.norm.weight") == 0;
    *end = "";
    shape_text(e->n ? 3 : e->rows > 1 ? 2 : 1, e->n, e->rows, e->cols, shape);
    for (int64_t i = 0; i < n_elems; i++)
        if (e->block_rows == 0)
            x[i] = value_at(e, i);
        else
            data[i] = (char)code_at(i);
    if (bad->nan_at >= 0 && strstr(e->name, "q_proj")) data[bad->nan_at] = (char)0xff;
    if (e->block_rows != FP4) {
        add(weights, e->name, "", e->block_rows || vector ? "F8_E4M3" : "F32", shape, data,
            (size_t)n_elems * (e->block_rows || vector ? 1 : 4));
        return;
    }
    for (int64_t i = 0; i < n_elems; i += 2) data[i / 2] = (char)(fp4_at(i) | fp4_at(i + 1) << 4);
    snprintf(shape, sizeof shape, "%lld,%lld,%lld,16", (long long)e->n, (long long)e->rows, (long long)e->cols / 32);
    add(weights, e->name, *end = "_blocks", "U8", shape, data, (size_t)n_elems / 2);
}

static void add_scales(file *scales, const entry *e)
{
    static float x[1 << 13];
    static char converted[sizeof x];
    char shape[64];
    const int64_t rows = e->block_rows == FP4 ? e->rows : n_blocks(e->rows, e->block_rows),
                  cols = n_blocks(e->cols, e->block_cols), n = dt_max_i64(e->n, 1) * rows * cols;
    shape_text(e->scale_dims, e->n, rows, cols, shape);
    for (int64_t i = 0; i < n; i++)
        if (e->block_rows == FP4)
            converted[i] = (char)exponent_at(i);
        else
            x[i] = scale_at(i);
    if (e->block_rows != FP4) dt_st_convert(x, DT_ST_F32, converted, e->type, n);
    add(scales, e->name, e->scales, e->type == DT_ST_U8 ? "U8" : dt_st_type_name(e->type), shape, converted,
        (size_t)n * dt_st_type_size(e->type));
}

/* Weights in one file, scales in another. */
static bool write_model(const fixture *f, const void *what)
{
    const fault *bad = what;
    static char bytes[MAX_FILE], scale_bytes[MAX_FILE], index[8192];
    file weights = {.data = bytes}, scales = {.data = scale_bytes};
    const entry *first = MODELS[bad->model].entries;
    size_t n = (size_t)snprintf(index, sizeof index, "{\"weight_map\":{");
    char path[PATH_MAX];
    for (const entry *e = first; e->name; e++) {
        const char *end;
        add_codes(&weights, e, bad, &end);
        n += (size_t)snprintf(index + n, sizeof index - n, "%s\"%s%s\":\"a.safetensors\"", e == first ? "" : ",",
                              e->name, end);
        if (e->block_rows == 0) continue;
        add_scales(&scales, e);
        n += (size_t)snprintf(index + n, sizeof index - n, ",\"%s%s\":\"b.safetensors\"", e->name, e->scales);
    }
    snprintf(index + n, sizeof index - n, "}}");
    return write_file(f, "a.safetensors", &weights) && write_file(f, "b.safetensors", &scales) &&
           write_text(in_folder(f->dir, "config.json", path), MODELS[bad->model].config) &&
           write_text(in_folder(f->dir, "model.safetensors.index.json", path), index);
}

static const entry *find_entry(int model, const char *name)
{
    const entry *e = MODELS[model].entries;
    while (e->name && strcmp(e->name, name) != 0) e++;
    return e->name ? e : NULL;
}

static bool values_are_right(fixture *f, int model)
{
    const dt_slice *p = dt_zero_slices(f->z);
    for (int k = 0; k < dt_zero_n_slices(f->z); k++) {
        const dt_tensor *t = dt_zero_tensor(f->z, &p[k]);
        const bool fused = !find_entry(model, t->name);
        const entry *e = find_entry(model, fused ? dt_tensor_fused(t).name : t->name);
        const int64_t before = fused ? t->fused.first : 0;
        if (!e) return false;
        for (int64_t i = 0; i < p[k].n; i++) {
            const float exact = value_at(e, before + p[k].first + i);
            uint32_t want = 0, found = 0;
            dt_st_convert(&exact, DT_ST_F32, &want, dt_st_type_of(dt_zero_state_dtype(f->z, DT_STATE_PARAM, &p[k])), 1);
            if (dt_zero_state_read(f->z, DT_STATE_PARAM, &p[k], i, 1, &found) != DT_OK) return false;
            if (want == found) continue;
            print_error("%s: element %lld: %08x, expected %08x\n", t->name, (long long)(p[k].first + i), found, want);
            return false;
        }
    }
    return true;
}

IN_DIR(values_are_those_of_a_plain_loop)
{
    fixture *f = *state;
    for (int model = 0; model < N_MODELS; model++) {
        const fault none = {.nan_at = -1, .model = model};
        dt_st_type type;
        assert_all(f->mpi, on_first(f, write_model, &none));
        for (int stage = 0; stage <= 3; stage++)
            for (int frozen = 0; frozen < 2; frozen++) {
                const dt_dtype dtype = stage % 2 ? DT_BF16 : DT_F32;
                assert_all(f->mpi, open_model(f, f->dir, stage, dtype, frozen) == DT_OK && values_are_right(f, model));
            }
        assert_all(f->mpi, dt_pretrained_verify(&f->from, f->units, f->n_units, NULL) == DT_OK);
        assert_all(f->mpi, dt_pretrained_type(&f->from, &type) == DT_OK && type == DT_ST_OTHER); /* F32 and codes */
    }
}

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

IN_DIR(values_that_cannot_be_are_refused_by_name)
{
    static const fault all[] = {
        {132 * 130 + 131, false, "q_proj.weight`: expected finite values, found NaN at [130, 131]", 0},
        {-1, true, "`model.norm.weight`: expected F32, F16 or BF16 for a vector, found F8_E4M3", 0}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_all(f->mpi, on_first(f, write_model, &all[i]));
        const dt_err err = open_model(f, f->dir, 3, DT_BF16, true);
        const bool speaks = err == DT_OK || dt_comm_prints_error(&f->comm);
        assert_all(f->mpi, err == DT_ERR_DATA && (!speaks || strstr(dt_error_message(), all[i].word)));
        dt_error_clear();
    }
}

/* A fixture, an edit of its header that does not change the length, and a part of the message. */
typedef struct header_edit {
    const char *from, *edit, *word;
} header_edit;

static bool edit_header(const fixture *f, const void *what)
{
    const header_edit *h = what;
    return shell("rm -rf '%s'/*", f->dir) && shell("cp tests/data/hf/%s/* '%s'", h->from, f->dir) &&
           shell("LC_ALL=C sed -i '%s' '%s/model.safetensors'", h->edit, f->dir);
}

IN_DIR(files_that_do_not_fit_are_refused_by_name)
{
#define FP8 "qwen3_moe_fp8"
#define MXFP4 "gpt_oss_mxfp4"
#define NF4 "llama_nf4"
#define INT8 "mistral_int8"
#define Q "`model.layers.0.self_attn.q_proj.weight"
#define EXPERTS "`model.layers.0.mlp.experts."
    static const header_edit all[] = {
        {FP8, "s/q_proj.weight_scale_inv/q_proj.weight_scale_inw/",
         Q "_scale_inv` is missing: the scales of this tensor in F8_E4M3"},
        {FP8, "s/F8_E4M3/F8_E5M2/g", "expected F32, F16, BF16 or F8_E4M3, found F8_E5M2"},
        {FP8, "s/\\[2,1\\]/[1,2]/g", "_scale_inv`: expected the shape [2, 1] of this model, found [1, 2]"},
        {FP8, "s/\\(q_proj.weight_scale_inv\":{\"dtype\":\\)\"BF16\"/\\1\"I16\" /",
         Q "_scale_inv`: expected F32, F16 or BF16, found I16"},
        {FP8, "s/\\[128,20\\]/[20,128]/", Q "`: expected the shape [128, 20] of this model, found [20, 128]"},
        {FP8, "s/\\(q_proj.weight\":{\"dtype\":\\)\"F8_E4M3\"/\\1\"I8\"     /",
         Q "`: expected F32, F16, BF16 or F8_E4M3, found I8"},
        {MXFP4, "s/down_proj_scales/down_proj_scalez/", EXPERTS "down_proj_scales` is missing"},
        {MXFP4, "s/down_proj_blocks/down_proj_blockz/", EXPERTS "down_proj_blocks` is missing"},
        {MXFP4, "s/gate_up_proj_blocks/gate_up_proj_blockz/;s/gate_up_proj_scales/gate_up_proj_scalez/",
         EXPERTS "gate_up_proj` is missing"},
        {MXFP4, "s/\\[3,128,1,16\\]/[3,128,16,1]/",
         EXPERTS "gate_up_proj_blocks`: expected the shape [3, 128, 1, 16] of this model, found [3, 128, 16, 1]"},
        {MXFP4, "s/\\[3,32,2\\]/[3,2,32]/", EXPERTS "down_proj_scales`: expected the shape [3, 32, 2]"},
        {MXFP4, "0,/\"U8\"/s//\"I8\"/", ": expected U8, found I8"},
        {NF4, "s/q_proj.weight.absmax/q_proj.weight.absmin/",
         Q ".absmax` is missing: bitsandbytes' data of the matrix"},
        {NF4, "s/q_proj.weight.nested_absmax/q_proj.weight.nested_absmin/", Q ".nested_absmax` is missing"},
        {NF4, "s/q_proj.weight.nested_quant_map/q_proj.weight.nested_quant_mop/", Q ".nested_quant_map` is missing"},
        {NF4, "s/q_proj.weight.quant_map/q_proj.weight.quant_mop/", Q ".quant_map` is missing"},
        {NF4, "s/q_proj.weight.quant_state.bitsandbytes__nf4/q_proj.weight.quant_state.bitsandbytes__nf3/",
         Q "`: expected the shape [64, 128] of this model, found [4096, 1]"},
        {NF4, "s/\"shape\": \\[64, 128\\]/\"shape\": [128, 64]/",
         Q ".quant_state.bitsandbytes__nf4`: expected the shape [64, 128] of this model, found [128, 64]"},
        {NF4, "s/\"blocksize\": 64/\"blocksize\": 32/g",
         ".absmax`: expected the shape [256] of this model, found [128]"},
        {NF4, "s/\"blocksize\": 64/\"blocksize\": -4/g", "blocksize: expected"},
        {NF4, "s/\"nested_blocksize\": 256/\"nested_blocksize\": 6.5/g", "nested_blocksize: expected"},
        {NF4, "s/\"nested_offset\"/\"nested_offzet\"/g", "nested_offset: expected a number, found nothing"},
        {NF4, "s/\"dtype\": \"bfloat16\"/\"dtype\": \"bfloat19\"/g", "dtype: expected float32, float16 or bfloat16"},
        {NF4, "s/\"quant_type\": \"nf4\"/\"quant_type\": \"fp4\"/g", "quant_type: expected nf4, found \"fp4\""},
        {NF4, "s/{\"quant_type\"/[\"quant_type\"/g", ".quant_state.bitsandbytes__nf4`"},
        {NF4, "s/bitsandbytes__nf4/bitsandbytes__fp4/g;s/\"quant_type\": \"nf4\"/\"quant_type\": \"fp4\"/g",
         ".quant_map`: expected the 16 levels of fp4, found others"},
        {INT8, "s/q_proj.SCB/q_proj.SCA/", Q "`: expected F32, F16, BF16 or F8_E4M3, found I8"},
        {INT8, "s/q_proj.SCB\":{\"dtype\":\"F32\"/q_proj.SCB\":{\"dtype\":\"I32\"/", "SCB`: expected F32, found I32"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_all(f->mpi, on_first(f, edit_header, &all[i]));
        const dt_err err = open_model(f, f->dir, (int)i % 4, DT_F32, false);
        const bool speaks = err == DT_OK || dt_comm_prints_error(&f->comm);
        if (speaks && !strstr(dt_error_message(), all[i].word)) print_error("edit %zu: %s\n", i, dt_error_message());
        assert_all(f->mpi, err == DT_ERR_DATA && (!speaks || strstr(dt_error_message(), all[i].word)));
        dt_error_clear();
    }
}

MPI_TEST_MAIN(open_fixture, close_fixture)
