/* untie.c - a head of its own for a model whose files tie it to the embedding, as PEFT trains one. */
#include "untie.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/pretrained/pretrained.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- which models ------------------------------------------------------------------------------------------------ */

dt_err dt_pretrained_untie(dt_pretrained *p)
{
    static const char key[] = "tie_word_embeddings";
    dt_model_config mc;
    json_t *root;
    DT_TRY(dt_model_config_parse(&mc, p->config_name, p->model_config));
    const bool tied = mc.tie_word_embeddings;
    dt_model_config_free(&mc);
    if (!tied) return DT_OK;
    DT_TRY(dt_json_parse(&root, p->config_name, p->model_config, strlen(p->model_config), 0));
    json_t *inner = json_object_get(root, "text_config");
    json_object_set_new(root, key, json_false());
    if (json_is_object(inner)) json_object_set_new(inner, key, json_false());
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    DT_CHECK(text, DT_ERR_MEMORY, "%s: out of memory for its text", p->config_name);
    free(p->model_config);
    p->model_config = text, p->unties = true;
    return DT_OK;
}

static bool ends_as(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* The tensor in the file of a module that is trained as a whole; NULL: there is none. */
static const dt_st_tensor *find_saved(const dt_safetensors *s, const dt_lora *l, const char *const *modules)
{
    for (int i = 0; i < l->modules_to_save.n; i++)
        for (const char *const *m = modules; *m; m++) {
            char end[64];
            snprintf(end, sizeof end, ".%s.weight", *m);
            for (int k = 0; ends_as(l->modules_to_save.list[i], *m) && k < s->n_tensors; k++) {
                const char *name = s->tensors[k].name;
                if (ends_as(name, end) && !strstr(name, ".modules_to_save.") && !strstr(name, ".original_module."))
                    return &s->tensors[k];
            }
        }
    return NULL;
}

dt_err dt_adapter_unties(const char *dir, bool *unties)
{
    static const char *const heads[] = {"lm_head", NULL}, *const tables[] = {"embed_tokens", "wte", NULL};
    char path[PATH_MAX];
    dt_lora l;
    dt_safetensors s = {0};
    bool same = false;
    *unties = false;
    DT_TRY(dt_lora_read(&l, dir));
    dt_err err = dt_is_in(path, dir, DT_PEFT_TENSORS) ? dt_safetensors_open(&s, path) : DT_OK;
    if (err == DT_OK) {
        const dt_st_tensor *head = find_saved(&s, &l, heads), *table = find_saved(&s, &l, tables);
        if (head && table) err = untie_compare(&s, head, table, &same);
        *unties = err == DT_OK && (head || table) && !same && !(table && !head && l.ties);
    }
    dt_safetensors_close(&s);
    dt_lora_free(&l);
    return err;
}

/* The first element that differs decides. */
dt_err untie_compare(const dt_safetensors *s, const dt_st_tensor *a, const dt_st_tensor *b, bool *same)
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

/* ---- its first values -------------------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 18 };

/* The elements that a slice and a chunk of the tensor share; their first one in *first. */
static int64_t shared(const dt_slice *p, int64_t at, int64_t n, int64_t *first)
{
    *first = dt_max_i64(at, p->first);
    return dt_max_i64(0, dt_min_i64(at + n, p->first + p->n) - *first);
}

static dt_err read_part(dt_zero *z, const dt_slice *p, int64_t at, int64_t n, float *chunk, float *raw)
{
    int64_t first;
    const int64_t len = shared(p, at, n, &first);
    memset(chunk, 0, CHUNK * sizeof *chunk);
    if (len == 0) return DT_OK;
    DT_TRY(dt_zero_state_read(z, DT_STATE_PARAM, p, first - p->first, len, raw));
    dt_st_convert(raw, dt_st_type_of(dt_zero_state_dtype(z, DT_STATE_PARAM, p)), chunk + (first - at), DT_ST_F32, len);
    return DT_OK;
}

static dt_err write_part(dt_zero *z, const dt_slice *p, int64_t at, int64_t n, const float *chunk, float *raw)
{
    int64_t first;
    const int64_t len = shared(p, at, n, &first);
    if (len == 0) return DT_OK;
    dt_st_convert(chunk + (first - at), DT_ST_F32, raw, dt_st_type_of(dt_zero_state_dtype(z, DT_STATE_PARAM, p)), len);
    return dt_zero_state_write(z, DT_STATE_PARAM, p, first - p->first, len, raw);
}

/* Indices of the slices of table and head; -1: there is no such tensor. */
static void find_both(const dt_zero *z, int *table, int *head)
{
    *table = *head = -1;
    for (int i = 0; i < dt_zero_n_slices(z); i++) {
        const dt_tensor *t = dt_zero_tensor(z, &dt_zero_slices(z)[i]);
        if (t->kind == DT_KIND_EMBEDDING && *table < 0) *table = i;
        if (strcmp(dt_stored_of_language(t->name), DT_STORED_HEAD) == 0) *head = i;
    }
}

dt_err untie_copy_head(dt_comm *comm, dt_zero *z)
{
    int table, head;
    find_both(z, &table, &head);
    if (table < 0 || head < 0) return DT_OK;
    const int64_t n = dt_zero_tensor(z, &dt_zero_slices(z)[table])->n_elems;
    float *chunk = malloc(2 * CHUNK * sizeof *chunk);
    dt_err err = dt_comm_agree(comm, chunk ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a head"));
    for (int64_t at = 0; at < n && err == DT_OK; at += CHUNK) {
        const int64_t len = dt_min_i64(CHUNK, n - at);
        err = dt_comm_agree(comm, read_part(z, &dt_zero_slices(z)[table], at, len, chunk, chunk + CHUNK));
        if (err == DT_OK) err = dt_comm_join_host(dt_comm_all(comm), chunk, CHUNK * sizeof *chunk);
        if (err == DT_OK)
            err = dt_comm_agree(comm, write_part(z, &dt_zero_owned(z)[head], at, len, chunk, chunk + CHUNK));
    }
    free(chunk);
    return err == DT_OK ? dt_comm_agree(comm, dt_zero_state_written(z)) : err;
}
