/* llava_head.c - transformers ties head and embedding if either of two keys says so. It does not tie them if the files
 * have a head that differs from the embedding. */
#include "llava_head.h"
#include "dtrain/io/json.h"
#include "dtrain/model/model.h"
#include "dtrain/io/safetensors.h"
#include "dtrain/checkpoint/stored.h"
#include <stdlib.h>
#include <string.h>

static const char KEY[] = "tie_word_embeddings";

static bool keys_differ(const json_t *root)
{
    const json_t *of_text = json_object_get(json_object_get(root, "text_config"), KEY);
    return dt_model_is_llava(root) && json_is_boolean(json_object_get(root, KEY)) &&
           json_is_true(json_object_get(root, KEY)) != json_is_true(of_text);
}

/* Compares as fp32, which represents all types exactly. The first element that differs decides. */
static dt_err compare(const dt_safetensors *s, const dt_st_tensor *a, const dt_st_tensor *b, bool *same)
{
    enum { AT_A_TIME = 1 << 20 };
    float *both = malloc(2 * AT_A_TIME * sizeof *both);
    dt_err err = both ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory to compare a head with its embedding");
    *same = a->n_elems == b->n_elems;
    for (int64_t at = 0; at < a->n_elems && *same && err == DT_OK; at += AT_A_TIME) {
        const int64_t n = dt_min_i64(AT_A_TIME, a->n_elems - at);
        err = dt_safetensors_read(s, a, at, n, DT_F32, both);
        if (err == DT_OK) err = dt_safetensors_read(s, b, at, n, DT_F32, both + AT_A_TIME);
        *same = err == DT_OK && memcmp(both, both + AT_A_TIME, (size_t)n * sizeof *both) == 0;
    }
    free(both);
    return err;
}

/* Invalid files are reported when they are read. */
static dt_err is_tied(const char *dir, bool *tied)
{
    dt_safetensors s = {0};
    *tied = true;
    if (dt_safetensors_open(&s, dir) != DT_OK) return dt_error_clear(), DT_OK;
    const dt_st_tensor *head = dt_stored_find(&s, "language_model.lm_head.weight"),
                       *embed = dt_stored_find(&s, "language_model.model.embed_tokens.weight");
    const dt_err err = head && embed ? compare(&s, head, embed, tied) : DT_OK;
    dt_safetensors_close(&s);
    return err;
}

dt_err llava_settle_head(char **text, const char *name, const char *dir)
{
    json_t *root;
    bool tied = true;
    DT_TRY(dt_json_parse(&root, name, *text, strlen(*text), 0));
    const bool doubt = keys_differ(root);
    dt_err err = doubt ? is_tied(dir, &tied) : DT_OK;
    if (err == DT_OK && doubt) {
        json_object_set_new(root, KEY, json_boolean(tied));
        json_object_set_new(json_object_get(root, "text_config"), KEY, json_boolean(tied));
        free(*text);
        *text = json_dumps(root, JSON_INDENT(2));
        if (!*text) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for its text", name);
    }
    json_decref(root);
    return err;
}
