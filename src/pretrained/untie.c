/* untie.c - which models get a head of their own although their files tie it to the embedding, as PEFT trains one. */
#include "untie.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/pretrained/pretrained.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

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
    const dt_err err = dt_json_store(&p->model_config, p->config_name, root);
    json_decref(root);
    p->unties = err == DT_OK;
    return err;
}

/* The tensor in the file of a module that is trained as a whole; NULL: there is none. */
static const dt_st_tensor *find_saved(const dt_safetensors *s, const dt_lora *l, const char *const *modules)
{
    for (int i = 0; i < l->modules_to_save.n; i++)
        for (const char *const *m = modules; *m; m++) {
            char end[64];
            snprintf(end, sizeof end, ".%s.weight", *m);
            const char *saved = l->modules_to_save.list[i];
            if (strcmp(saved, *m) != 0 && !dt_has_ending(saved, *m)) continue;
            for (int k = 0; k < s->n_tensors; k++) {
                const char *name = s->tensors[k].name;
                if (dt_has_ending(name, end) && !strstr(name, ".modules_to_save.") &&
                    !strstr(name, ".original_module."))
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
