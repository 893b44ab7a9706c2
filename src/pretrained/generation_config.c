/* generation_config.c - a model's generation_config.json: which tokens end a text, and how its authors want it
 * sampled. */
#include "generation_config.h"
#include "dtrain/io.h"
#include "dtrain/spec.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
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
                                    .max_new_tokens = -1};
}

enum { MAX_INT = INT32_MAX };

/* One id; of a list (some files give one) the first. */
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
    return DT_OK;
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
