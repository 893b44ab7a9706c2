/* fuzz_model_config.c - any bytes as the JSON files of a model's directory. The first byte says which: config.json,
 * generation_config.json, or the index of two small safetensors files. A configuration that is accepted has a table
 * of tensors and can be written again. */
#include "../../src/pretrained/export_config.h"
#include "../../src/pretrained/generation_config.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LAYERS = 100 }; /* of those whose tables are made */

static void must(bool holds)
{
    if (!holds) abort();
}

static void try_units(const dt_model_config *mc)
{
    dt_unit *units;
    int n_units;
    if (mc->num_hidden_layers * (1 + mc->num_experts) > MAX_LAYERS || (mc->vision && mc->vision->n_blocks > MAX_LAYERS))
        return;
    must(dt_model_make_units(mc, &units, &n_units) == DT_OK);
    must(mc->vision ? n_units > mc->num_hidden_layers + 2 : n_units == mc->num_hidden_layers + 2);
    for (int u = 0; u < n_units; u++)
        for (int t = 0; t < units[u].n_tensors; t++) must(units[u].tensors[t].n_elems > 0);
    dt_model_free_units(units, n_units);
    float table[2 * 4096];
    if (mc->rope_type != DT_ROPE_NONE && mc->head_dim <= 4096) dt_model_rope_rows(mc, false, 2, 0, 2, table);
}

static void try_config(const char *text)
{
    dt_model_config mc = {0}, again = {0};
    char *out;
    const dt_export_options opt = {.model_config = text, .dtype = DT_ST_BF16, .tokenizer = "bytes"};
    const dt_err err = dt_model_config_parse(&mc, "config.json", text);
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    if (err != DT_OK) return;
    try_units(&mc);
    must(export_config_make(&opt, 0, &out) == DT_OK);
    must(dt_model_config_parse(&again, "again", out) == DT_OK);
    must(again.hidden_size == mc.hidden_size && again.vocab_size == mc.vocab_size &&
         again.tie_word_embeddings == mc.tie_word_embeddings);
    free(out);
    dt_model_config_free(&again);
    dt_model_config_free(&mc);
}

static void try_generation(const char *text, size_t n)
{
    dt_generation_defaults g;
    const dt_err err = generation_config_parse(&g, "generation_config.json", text, n);
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    must(err != DT_OK || (g.n_eos >= 0 && g.n_eos <= DT_MAX_EOS && g.top_p <= 1 && g.min_p <= 1));
    if (err == DT_OK) generation_config_free(&g);
}

static void put(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    must(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static void try_index(const char *text, size_t n)
{
    static const char a[] = "\65\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}1234";
    static const char b[] = "\65\0\0\0\0\0\0\0{\"b\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]}}12";
    char dir[40], path[96];
    dt_safetensors s = {0};
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/dtrain-fuzz-XXXXXX" : "/tmp/dtrain-fuzz-XXXXXX");
    must(mkdtemp(dir) != NULL);
    put(dir, "a", a, sizeof a - 1);
    put(dir, "b", b, sizeof b - 1);
    put(dir, "model.safetensors.index.json", text, n);
    const dt_err err = dt_safetensors_open(&s, dir);
    must(err == DT_OK || (err == DT_ERR_DATA && dt_error_message()[0]));
    for (int f = 0; f < s.n_files; f++)
        must(strncmp(s.files[f], dir, strlen(dir)) == 0 && !strchr(s.files[f] + strlen(dir) + 1, '/'));
    dt_safetensors_close(&s);
    const char *const names[] = {"a", "b", "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    char *text = malloc(size);
    must(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    dt_error_clear();
    if (data[0] % 3 == 0) try_config(text);
    if (data[0] % 3 == 1) try_generation(text, size - 1);
    if (data[0] % 3 == 2) try_index(text, size - 1);
    free(text);
    return 0;
}
