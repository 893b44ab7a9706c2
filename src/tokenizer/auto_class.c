/* auto_class.c - the class that AutoTokenizer of transformers 5.24 chooses, and its stages
 * (models/auto/tokenization_auto.py, models/{gpt2,qwen2,qwen3_5,llama,code_llama}/tokenization_*.py). */
#include "auto.h"
#include "splitter.h"
#include "dtrain/io/io.h"

#include <stdlib.h>
#include <unistd.h>

enum { MAX_CONFIG = 64 << 20 };

/* ---- files ------------------------------------------------------------------------------------------------------- */

dt_err dt_auto_open(dt_auto_files *f, const char *directory)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                        "config.json"};
    *f = (dt_auto_files){0};
    for (int i = 0; i < DT_N_AUTO_FILES; i++) {
        if (asprintf(&f->path[i], "%s/%s", directory, names[i]) < 0) f->path[i] = NULL;
        DT_CHECK(f->path[i], DT_ERR_MEMORY, "out of memory for a path");
        if (access(f->path[i], F_OK) != 0) continue;
        const unsigned flags = DT_JSON_NUL_KEYS | (i == DT_AUTO_MODEL ? DT_JSON_LAST_KEY : 0);
        const dt_err err = dt_spec_load(&f->file[i], f->path[i], MAX_CONFIG, flags, NULL, NULL);
        if (err == DT_ERR_DATA && i == DT_AUTO_MODEL) { /* config.json of the model, which reports its own errors */
            dt_error_clear();
            f->file[i] = (dt_spec){0};
        } else {
            DT_TRY(err);
        }
    }
    const bool given = dt_spec_get(&f->file[DT_AUTO_CONFIG], "added_tokens_decoder", &f->decoder);
    return !given || json_is_object(f->decoder.value) ? DT_OK : dt_spec_bad(&f->decoder, NULL, "an object");
}

void dt_auto_close(dt_auto_files *f)
{
    for (int i = 0; i < DT_N_AUTO_FILES; i++) {
        dt_spec_unload(&f->file[i]);
        free(f->path[i]);
    }
    json_decref(f->spm_names);
    *f = (dt_auto_files){0};
}

bool dt_auto_token(const dt_auto_files *f, const char *key, dt_spec *token)
{
    const dt_spec *map = &f->file[DT_AUTO_MAP];
    const bool in_map = !f->decoder.value && json_object_get(map->value, key); /* also if null */
    return dt_spec_get(in_map ? map : &f->file[DT_AUTO_CONFIG], key, token);
}

dt_err dt_auto_content(const dt_spec *token, const char **text, size_t *n)
{
    if (json_is_object(token->value)) return dt_spec_need_bytes(token, "content", text, n);
    if (!json_is_string(token->value)) return dt_spec_bad(token, NULL, "a token: a string, or an object with content");
    *text = json_string_value(token->value);
    *n = json_string_length(token->value);
    return DT_OK;
}

/* ---- choosing the class ------------------------------------------------------------------------------------------ */

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* Class name without "Fast". */
static void class_in(const dt_spec *file, char name[64])
{
    const char *text = json_string_value(json_object_get(file->value, "tokenizer_class"));
    const size_t n = text ? strlen(text) : 0;
    snprintf(name, 64, "%.*s", (int)(n > 4 && is(text + n - 4, "Fast") ? n - 4 : n < 63 ? n : 63), text ? text : "");
}

/* Classes with their own stages, and the model types that AutoTokenizer assigns to each class. */
static const struct {
    const char *name, *types;
} CLASSES[] = {
    [DT_AUTO_BACKEND] = {"TokenizersBackend",
                         " arctic ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe "
                         "gpt_bigcode granite granitemoe granitemoehybrid granitemoeshared hyperclovax internlm2 "
                         "internlm3 iquestcoder jamba kimi_k25 kimi_linear llava llava_next mimo_v2_flash minicpm3 "
                         "minimax_m2 ministral ministral3 mistral mistral3 mixtral modernbert-decoder nemotron olmo2 "
                         "olmo3 olmo_hybrid persimmon phi3 phi3_v phimoe pixtral stablelm vipllava "},
    [DT_AUTO_GPT2] = {"GPT2Tokenizer", " codegen dbrx emu3 gpt2 gpt_neo gptj jais2 opt phi starcoder2 "},
    [DT_AUTO_QWEN2] = {"Qwen2Tokenizer", " internvl qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 "
                                         "qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe "},
    [DT_AUTO_QWEN3_5] = {"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text "},
    [DT_AUTO_LLAMA] = {"LlamaTokenizer", " idefics idefics2 "},
    [DT_AUTO_CODE_LLAMA] = {"CodeLlamaTokenizer", " code_llama "}};
enum { N_CLASSES = sizeof CLASSES / sizeof CLASSES[0] };

static dt_auto_class class_called(const char *name)
{
    for (int c = 0; c < N_CLASSES; c++)
        if (is(name, CLASSES[c].name)) return (dt_auto_class)c;
    return DT_AUTO_BACKEND;
}

static bool lists(const char *types, const char *type)
{
    char word[64];
    return snprintf(word, sizeof word, " %s ", type) < (int)sizeof word && strstr(types, word);
}

/* Class name of a model type; "": none. */
static const char *class_of_model(const char *type)
{
    for (int c = 0; c < N_CLASSES; c++)
        if (lists(CLASSES[c].types, type)) return CLASSES[c].name;
    return "";
}

/* Models whose files name a wrong class (MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS). */
static bool class_is_overruled(const char *type)
{
    return lists(" arctic ernie4_5 ernie4_5_moe hyperclovax internlm2 internlm3 iquestcoder jamba llava llava_next "
                 "minicpm3 minimax_m2 modernbert-decoder nemotron phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe "
                 "qwen3_5_moe_text vipllava ",
                 type);
}

static bool is_byte_level(const dt_spec *root)
{
    char *stages[2] = {json_dumps(json_object_get(root->value, "pre_tokenizer"), JSON_COMPACT | JSON_ENCODE_ANY),
                       json_dumps(json_object_get(root->value, "decoder"), JSON_COMPACT | JSON_ENCODE_ANY)};
    const bool any = (stages[0] && strstr(stages[0], "\"type\":\"ByteLevel\"")) ||
                     (stages[1] && strstr(stages[1], "\"type\":\"ByteLevel\""));
    free(stages[0]);
    free(stages[1]);
    return any;
}

dt_auto_class dt_auto_class_of(const dt_auto_files *f, const dt_spec *root)
{
    char name[64];
    const char *type = json_string_value(json_object_get(f->file[DT_AUTO_MODEL].value, "model_type"));
    const char *registered = class_of_model(type ? type : "");
    const bool overruled = class_is_overruled(type ? type : "");
    class_in(&f->file[DT_AUTO_CONFIG], name);
    if (!*name) class_in(&f->file[DT_AUTO_MODEL], name);
    if (is(name, "LlamaTokenizer") && !overruled && is_byte_level(root)) return DT_AUTO_BACKEND;
    if (!*name) return class_called(registered);
    if (!*registered || is(registered, name)) return class_called(name);
    if (is(registered, "TokenizersBackend")) return DT_AUTO_BACKEND;
    return class_called(overruled ? registered : name);
}

/* ---- stages of the class ----------------------------------------------------------------------------------------- */

/* absent: default of the class if the key is missing or null. */
static bool flag(const dt_auto_files *f, const char *key, bool absent)
{
    const json_t *v = json_object_get(f->file[DT_AUTO_CONFIG].value, key);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}

static json_t *byte_level(bool prefix, bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", true,
                     "use_regex", use_regex);
}

typedef struct stages {
    json_t *normalizer, *splitter, *decoder;
} stages;

static bool is_llama(dt_auto_class c) { return c == DT_AUTO_LLAMA || c == DT_AUTO_CODE_LLAMA; }

json_t *dt_auto_decoder(bool byte_fallback, bool fuse, bool strip)
{
    json_t *list =
        json_pack("[{s:s, s:{s:s}, s:s}]", "type", "Replace", "pattern", "String", DT_SPACE_SIGN, "content", " ");
    if (byte_fallback) json_array_append_new(list, json_pack("{s:s}", "type", "ByteFallback"));
    if (fuse) json_array_append_new(list, json_pack("{s:s}", "type", "Fuse"));
    if (strip)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

static stages make_stages(dt_auto_class c, const dt_auto_files *f)
{
    stages s = {json_null(), NULL, NULL};
    const bool prefix = flag(f, "add_prefix_space", is_llama(c));
    if (is_llama(c)) {
        const bool always = c == DT_AUTO_LLAMA && flag(f, "legacy", false);
        const char *scheme = !prefix ? "never" : always ? "always" : "first";
        s.splitter = json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", DT_SPACE_SIGN,
                               "prepend_scheme", scheme, "split", false);
        s.decoder = dt_auto_decoder(true, true, prefix || c == DT_AUTO_CODE_LLAMA);
        return s;
    }
    s.decoder = byte_level(true, true);
    s.splitter = byte_level(prefix, true);
    if (c == DT_AUTO_GPT2) return s;
    json_decref(s.splitter);
    s.normalizer = json_pack("{s:s}", "type", "NFC");
    s.splitter = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type",
                           "Split", "pattern", "Regex", c == DT_AUTO_QWEN2 ? DT_SPLIT_QWEN2 : DT_SPLIT_QWEN3_5,
                           "behavior", "Isolated", "invert", false, byte_level(prefix, false));
    return s;
}

/* Compare two stages, ignoring keys that files of older versions lack. */
static bool same_stage(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_array(a) && json_is_array(b)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        json_array_foreach((json_t *)a, i, value) if (!same_stage(value, json_array_get(b, i))) return false;
        return true;
    }
    if (!json_is_object(a) || !json_is_object(b)) return json_equal(a, b);
    json_object_foreach((json_t *)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (strcmp(key, "trim_offsets") != 0 && other && !same_stage(value, other)) return false;
    }
    return true;
}

static bool is_none(const json_t *v) { return !v || json_is_null(v); }

static bool replaces(json_t *root, const char *key, json_t *made)
{
    const json_t *had = json_object_get(root, key);
    const bool differs = is_none(had) != is_none(made) || (!is_none(had) && !same_stage(had, made));
    json_object_set_new(root, key, made);
    return differs;
}

static bool replaces_model(dt_auto_class c, json_t *model)
{
    const bool sp = is_llama(c);
    bool differs = json_is_true(json_object_get(model, "byte_fallback")) != sp ||
                   json_is_true(json_object_get(model, "ignore_merges"));
    static const char *const none[] = {"unk_token", "continuing_subword_prefix", "end_of_word_suffix", "dropout"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) json_object_set_new(model, none[i], json_null());
    json_object_set_new(model, "byte_fallback", json_boolean(sp));
    json_object_set_new(model, "fuse_unk", json_boolean(sp));
    json_object_set_new(model, "ignore_merges", json_false());
    return differs;
}

dt_err dt_auto_build(dt_auto_class c, const dt_auto_files *f, const dt_spec *root, bool *changed)
{
    json_t *all = (json_t *)root->value, *model = json_object_get(all, "model");
    *changed = false;
    if (c == DT_AUTO_BACKEND || !json_is_object(model)) return DT_OK;
    const stages s = make_stages(c, f);
    DT_CHECK(s.normalizer && s.splitter && s.decoder, DT_ERR_MEMORY, "%s: out of memory for its pipeline", root->file);
    *changed |= replaces(all, "normalizer", s.normalizer);
    *changed |= replaces(all, "pre_tokenizer", s.splitter);
    *changed |= replaces_model(c, model);
    json_object_set_new(all, "decoder", s.decoder);
    return DT_OK;
}
