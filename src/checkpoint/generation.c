/* generation.c - a model's generation_config.json: which tokens end a text, and how its authors want it sampled. */
#include "generation.h"
#include "dtrain/io.h"
#include "dtrain/json.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 24 }; /* bytes */

dt_generation_defaults generation_none(void)
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

static dt_err bad(const char *name, const char *key, const json_t *value, const char *expected)
{
    char *found = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const dt_err err = dt_fail(DT_ERR_DATA, "%s: %s: expected %s, found %.100s", name, key, expected, found ? found : "nothing");
    free(found);
    return err;
}

/* The value of a key, NULL when it is absent or null. */
static const json_t *get(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    return json_is_null(v) ? NULL : v;
}

static dt_err read_real(const char *name, const json_t *root, const char *key, double hi, double *out)
{
    const json_t *v = get(root, key);
    char expected[64];
    if (!v) return DT_OK;
    const double x = json_number_value(v);
    snprintf(expected, sizeof expected, "a number from 0 to %g", hi);
    if (!json_is_number(v) || !(x >= 0 && x <= hi)) return bad(name, key, v, expected);
    *out = x;
    return DT_OK;
}

static dt_err read_int(const char *name, const json_t *root, const char *key, int64_t *out)
{
    const json_t *v = get(root, key);
    if (!v) return DT_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
        return bad(name, key, v, "an integer from 0");
    *out = json_integer_value(v);
    return DT_OK;
}

/* One id; of a list (some files give one) the first. */
static dt_err read_id(const char *name, const json_t *root, const char *key, int32_t *out)
{
    const json_t *v = get(root, key), *id = json_is_array(v) ? json_array_get(v, 0) : v;
    if (!id) return DT_OK;
    if (!json_is_integer(id) || json_integer_value(id) < -1 || json_integer_value(id) > INT32_MAX)
        return bad(name, key, v, "a token id");
    *out = (int32_t)json_integer_value(id);
    return DT_OK;
}

static dt_err read_eos(const char *name, const json_t *root, dt_generation_defaults *g)
{
    const json_t *v = get(root, "eos_token_id");
    const size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (n > DT_MAX_EOS) return bad(name, "eos_token_id", v, "at most 16 token ids");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return bad(name, "eos_token_id", v, "a token id or a list of them");
        g->eos[g->n_eos++] = (int32_t)json_integer_value(id);
    }
    return DT_OK;
}

static dt_err read_all(dt_generation_defaults *g, const char *name, const json_t *root)
{
    const json_t *sample = get(root, "do_sample");
    DT_CHECK(json_is_object(root), DT_ERR_DATA, "%s: expected one JSON object", name);
    if (sample && !json_is_boolean(sample)) return bad(name, "do_sample", sample, "true or false");
    if (sample) g->do_sample = json_is_true(sample);
    DT_TRY(read_eos(name, root, g));
    DT_TRY(read_id(name, root, "bos_token_id", &g->bos));
    DT_TRY(read_id(name, root, "pad_token_id", &g->pad));
    DT_TRY(read_real(name, root, "temperature", 1e6, &g->temperature));
    DT_TRY(read_real(name, root, "top_p", 1, &g->top_p));
    DT_TRY(read_real(name, root, "min_p", 1, &g->min_p));
    DT_TRY(read_real(name, root, "repetition_penalty", 1e6, &g->repetition_penalty));
    DT_TRY(read_int(name, root, "top_k", &g->top_k));
    DT_TRY(read_int(name, root, "num_beams", &g->num_beams));
    DT_TRY(read_int(name, root, "max_new_tokens", &g->max_new_tokens));
    return DT_OK;
}

dt_err generation_parse(dt_generation_defaults *g, const char *name, const char *text, size_t nbytes)
{
    json_t *root;
    *g = generation_none();
    DT_TRY(dt_json_parse(&root, name, text, nbytes, 0));
    const dt_err err = read_all(g, name, root);
    json_decref(root);
    return err;
}

dt_err generation_read(dt_generation_defaults *g, const char *dir)
{
    char path[PATH_MAX], *text;
    size_t nbytes;
    *g = generation_none();
    DT_CHECK(dt_join_path(path, dir, "generation_config.json", ""), DT_ERR_DATA, "%s: the path is too long", dir);
    if (access(path, F_OK) != 0) return DT_OK;
    DT_TRY(dt_read_file(path, MAX_FILE, &text, &nbytes));
    const dt_err err = generation_parse(g, path, text, nbytes);
    free(text);
    return err;
}
