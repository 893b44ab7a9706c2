/* generation_config.c - a model's generation_config.json: end tokens and the authors' sampling settings. */
#include "generation_config.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 24 }; /* bytes */

dt_generation_defaults generation_config_none(void)
{
    return (dt_generation_defaults){.bos = -1,
                                    .pad = -1,
                                    .do_sample = -1,
                                    .temperature = -1,
                                    .top_p = -1,
                                    .min_p = -1,
                                    .repetition_penalty = -1,
                                    .top_k = -1,
                                    .num_beams = -1,
                                    .max_new_tokens = -1,
                                    .length_penalty = NAN,
                                    .early_stopping = -1,
                                    .max_length = -1,
                                    .min_new_tokens = -1,
                                    .min_length = -1,
                                    .no_repeat_ngram_size = -1};
}

void generation_config_free(dt_generation_defaults *g)
{
    free(g->suppress.id);
    free(g->begin_suppress.id);
    dt_list_free(g->stop, g->n_stop);
    free(g->ignored);
    free(g->ignored_sampling);
    *g = generation_config_none();
}

enum { MAX_INT = INT32_MAX };

/* Read one id. Some files give a list, of which the first is used. */
static dt_err read_id(const dt_spec *root, const char *key, int32_t *out)
{
    dt_spec v;
    if (!dt_spec_get(root, key, &v)) return DT_OK;
    const json_t *id = json_is_array(v.value) ? json_array_get(v.value, 0) : v.value;
    if (!id) return DT_OK;
    if (!json_is_integer(id) || json_integer_value(id) < -1 || json_integer_value(id) > MAX_INT)
        return dt_spec_bad(&v, NULL, "a token id");
    *out = (int32_t)json_integer_value(id);
    return DT_OK;
}

static dt_err read_eos(const dt_spec *root, dt_generation_defaults *g)
{
    dt_spec v;
    if (!dt_spec_get(root, "eos_token_id", &v)) return DT_OK;
    const size_t n = json_is_array(v.value) ? json_array_size(v.value) : 1;
    if (n > DT_MAX_EOS) return dt_spec_bad(&v, NULL, "at most 16 token ids");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v.value) ? json_array_get(v.value, i) : v.value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > MAX_INT)
            return dt_spec_bad(&v, NULL, "a token id or a list of them");
        g->eos[g->n_eos++] = (int32_t)json_integer_value(id);
    }
    return DT_OK;
}

static dt_err read_ids(const dt_spec *root, const char *key, dt_ids *out)
{
    dt_spec v;
    if (!dt_spec_get(root, key, &v)) return DT_OK;
    if (!json_is_array(v.value)) return dt_spec_bad(&v, NULL, "a list of token ids");
    for (size_t i = 0; i < json_array_size(v.value); i++) {
        const json_t *id = json_array_get(v.value, i);
        if (!json_is_integer(id) || json_integer_value(id) < -MAX_INT || json_integer_value(id) > MAX_INT)
            return dt_spec_bad(&v, NULL, "a list of token ids");
        DT_TRY(dt_ids_reserve(out, 1));
        out->id[out->n++] = (int32_t)json_integer_value(id);
    }
    return DT_OK;
}

/* One text or a list of them. */
static dt_err read_stops(const dt_spec *root, dt_generation_defaults *g)
{
    dt_spec v;
    if (!dt_spec_get(root, "stop_strings", &v)) return DT_OK;
    const size_t n = json_is_array(v.value) ? json_array_size(v.value) : 1;
    char most[32];
    snprintf(most, sizeof most, "at most %d texts", DT_MAX_STOPS);
    if (n > DT_MAX_STOPS) return dt_spec_bad(&v, NULL, most);
    g->stop = calloc(n + 1, sizeof *g->stop);
    DT_CHECK(g->stop, DT_ERR_MEMORY, "%s: out of memory for %zu texts", root->file, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(v.value) ? json_array_get(v.value, i) : v.value;
        if (!json_is_string(text) || json_string_length(text) == 0 ||
            strlen(json_string_value(text)) != json_string_length(text))
            return dt_spec_bad(&v, NULL, "a non-empty text or a list of non-empty texts");
        g->stop[g->n_stop] = strdup(json_string_value(text));
        DT_CHECK(g->stop[g->n_stop], DT_ERR_MEMORY, "%s: out of memory for a text", root->file);
        g->n_stop++;
    }
    return DT_OK;
}

/* true, false, or "never", which searches longer than false and is not supported: ignored. */
static dt_err read_early_stopping(const dt_spec *root, dt_generation_defaults *g)
{
    dt_spec v;
    bool early = false;
    if (!dt_spec_get(root, "early_stopping", &v) || json_is_string(v.value)) return DT_OK;
    DT_TRY(dt_spec_bool(root, "early_stopping", &early));
    g->early_stopping = early;
    return DT_OK;
}

/* ---- unsupported settings ---------------------------------------------------------------------------------------- */

/* Settings that are supported, and settings that do not change what a single model generates. */
static const char harmless[] =
    "do_sample eos_token_id bos_token_id pad_token_id temperature top_p min_p repetition_penalty top_k "
    "num_beams max_new_tokens length_penalty max_length min_new_tokens min_length no_repeat_ngram_size "
    "suppress_tokens begin_suppress_tokens stop_strings transformers_version _from_model_config "
    "_commit_hash use_cache cache_implementation cache_config return_legacy_cache prefill_chunk_size "
    "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate "
    "decoder_start_token_id low_memory remove_invalid_values is_assistant num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_early_exit "
    "assistant_lookbehind target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size "
    "compile_config disable_compile continuous_batching_config task_to_id lang_to_id alignment_heads "
    "is_multilingual max_initial_timestamp_index no_timestamps_token_id prev_sot_token_id "
    "return_timestamps language task trust_remote_code chat_format max_window_size user_token_id "
    "assistant_token_id";

/* Values at which a setting has no effect. Other settings have none if they are null, false or empty. */
static const struct {
    const char *name;
    double off;
    bool sampling; /* has an effect only with sampling */
} with_off[] = {{"encoder_repetition_penalty", 1, false},
                {"encoder_no_repeat_ngram_size", 0, false},
                {"num_return_sequences", 1, false},
                {"diversity_penalty", 0, false},
                {"num_beam_groups", 1, false},
                {"guidance_scale", 1, false},
                {"penalty_alpha", 0, false},
                {"presence_penalty", 0, false},
                {"frequency_penalty", 0, false},
                {"typical_p", 1, true},
                {"eta_cutoff", 0, true},
                {"epsilon_cutoff", 0, true},
                {"top_h", 1, true},
                {"watermarking_config", NAN, false}};

static bool is_off(const char *name, const json_t *value, bool *sampling)
{
    *sampling = false;
    for (size_t i = 0; i < sizeof with_off / sizeof with_off[0]; i++) {
        if (strcmp(with_off[i].name, name) != 0) continue;
        *sampling = with_off[i].sampling;
        if (json_is_number(value) && json_number_value(value) == with_off[i].off) return true;
    }
    if (strcmp(name, "early_stopping") == 0) return !json_is_string(value);
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static dt_err add_name(char **names, const char *name)
{
    char *more;
    const int n = asprintf(&more, "%s%s%.64s", *names ? *names : "", *names ? ", " : "", name);
    DT_CHECK(n >= 0, DT_ERR_MEMORY, "out of memory for the name of a setting");
    free(*names);
    *names = more;
    return DT_OK;
}

static dt_err find_ignored(dt_generation_defaults *g, const dt_spec *root)
{
    const char *name;
    json_t *value;
    bool sampling;
    json_object_foreach((json_t *)root->value, name,
                        value) if (!dt_has_word(harmless, name) && !is_off(name, value, &sampling))
        DT_TRY(add_name(sampling ? &g->ignored_sampling : &g->ignored, name));
    return DT_OK;
}

static dt_err read_all(dt_generation_defaults *g, const dt_spec *root)
{
    bool sample = g->do_sample > 0;
    dt_spec v;
    DT_CHECK(json_is_object(root->value), DT_ERR_DATA, "%s: expected one JSON object", root->file);
    DT_TRY(dt_spec_bool(root, "do_sample", &sample));
    if (dt_spec_get(root, "do_sample", &v)) g->do_sample = sample;
    DT_TRY(read_eos(root, g));
    DT_TRY(read_id(root, "bos_token_id", &g->bos));
    DT_TRY(read_id(root, "pad_token_id", &g->pad));
    DT_TRY(dt_spec_real(root, "temperature", 0, 1e6, &g->temperature));
    DT_TRY(dt_spec_real(root, "top_p", 0, 1, &g->top_p));
    DT_TRY(dt_spec_real(root, "min_p", 0, 1, &g->min_p));
    DT_TRY(dt_spec_real(root, "repetition_penalty", 0, 1e6, &g->repetition_penalty));
    DT_TRY(dt_spec_int(root, "top_k", 0, MAX_INT, &g->top_k));
    DT_TRY(dt_spec_int(root, "num_beams", 0, MAX_INT, &g->num_beams));
    DT_TRY(dt_spec_int(root, "max_new_tokens", 0, MAX_INT, &g->max_new_tokens));
    DT_TRY(dt_spec_int(root, "max_length", 0, MAX_INT, &g->max_length));
    DT_TRY(dt_spec_int(root, "min_new_tokens", 0, MAX_INT, &g->min_new_tokens));
    DT_TRY(dt_spec_int(root, "min_length", 0, MAX_INT, &g->min_length));
    DT_TRY(dt_spec_int(root, "no_repeat_ngram_size", 0, MAX_INT, &g->no_repeat_ngram_size));
    DT_TRY(dt_spec_real(root, "length_penalty", -1e6, 1e6, &g->length_penalty));
    DT_TRY(read_early_stopping(root, g));
    DT_TRY(read_ids(root, "suppress_tokens", &g->suppress));
    DT_TRY(read_ids(root, "begin_suppress_tokens", &g->begin_suppress));
    DT_TRY(read_stops(root, g));
    return find_ignored(g, root);
}

static void add_end(int32_t *ends, int *n, int32_t id, const dt_model_config *mc)
{
    for (int i = 0; i < *n; i++)
        if (ends[i] == id) return;
    if (id >= 0 && id < mc->vocab_size) ends[(*n)++] = id;
}

int dt_ends_of_text(int32_t own, const dt_generation_defaults *from, const dt_model_config *mc, int32_t turn,
                    int32_t *ends)
{
    int n = 0;
    ends[0] = -1;
    add_end(ends, &n, own, mc);
    for (int i = 0; i < from->n_eos; i++) add_end(ends, &n, from->eos[i], mc);
    for (int i = 0; from->n_eos == 0 && i < mc->n_eos; i++) add_end(ends, &n, mc->eos_token_id[i], mc);
    add_end(ends, &n, turn, mc);
    return n;
}

dt_err generation_config_parse(dt_generation_defaults *g, const char *name, const char *text, size_t nbytes)
{
    json_t *root;
    *g = generation_config_none();
    DT_TRY(dt_json_parse(&root, name, text, nbytes, 0));
    const dt_err err = read_all(g, &(dt_spec){.file = name, .value = root});
    json_decref(root);
    g->given = err == DT_OK;
    if (err != DT_OK) generation_config_free(g);
    return err;
}

dt_err generation_config_read(dt_generation_defaults *g, const char *dir)
{
    char path[PATH_MAX], *text;
    size_t nbytes;
    *g = generation_config_none();
    DT_CHECK(dt_join_path(path, dir, "generation_config.json", ""), DT_ERR_DATA, "%s: the path is too long", dir);
    if (access(path, F_OK) != 0) return DT_OK;
    DT_TRY(dt_read_file(path, MAX_FILE, &text, &nbytes));
    const dt_err err = generation_config_parse(g, path, text, nbytes);
    free(text);
    return err;
}
