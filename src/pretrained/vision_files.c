/* vision_files.c - read, complete and write the files of image preprocessing. */
#include "vision_files.h"
#include "export_config.h"
#include "untie.h"
#include "dtrain/checkpoint/stored.h"
#include "dtrain/image/image.h"
#include "dtrain/io/io.h"
#include "dtrain/io/spec.h"
#include "dtrain/tokenizer/tokenizer.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

dt_err vision_read_preprocessor(const char *dir, json_t **object)
{
    dt_preprocessor p;
    *object = NULL;
    DT_TRY(dt_preprocessor_find(dir, &p));
    const dt_err err = p.json ? dt_json_parse(object, dir, p.json, strlen(p.json), 0) : DT_OK;
    dt_preprocessor_free(&p);
    return err;
}

/* ---- a model's config.json --------------------------------------------------------------------------------------- */

static const char KEY[] = "tie_word_embeddings";

static bool keys_differ(const json_t *root)
{
    const json_t *text = json_object_get(root, "text_config");
    return text && dt_model_ties_outside(root) != json_is_true(json_object_get(text, KEY));
}

/* Invalid files are reported when they are read. */
static dt_err is_tied(const char *dir, bool *tied)
{
    dt_safetensors s = {0};
    *tied = true;
    if (dt_safetensors_open(&s, dir) != DT_OK) return dt_error_clear(), DT_OK;
    const dt_st_tensor *head = dt_stored_find(&s, "language_model.lm_head.weight"),
                       *embed = dt_stored_find(&s, "language_model.model.embed_tokens.weight");
    const dt_err err = head && embed ? untie_compare(&s, head, embed, tied) : DT_OK;
    dt_safetensors_close(&s);
    return err;
}

/* transformers ties head and embedding if either key says so, but not if the files have a head that differs. */
static dt_err settle_head(json_t *root, const char *dir, bool *changed)
{
    bool tied;
    if (!keys_differ(root)) return DT_OK;
    DT_TRY(is_tied(dir, &tied));
    json_object_set_new(root, KEY, json_boolean(tied));
    json_object_set_new(json_object_get(root, "text_config"), KEY, json_boolean(tied));
    *changed = true;
    return DT_OK;
}

static dt_err add_preprocessor(json_t *root, const char *dir, bool *changed)
{
    json_t *object;
    if (json_object_get(root, "preprocessor_config")) return DT_OK;
    DT_TRY(vision_read_preprocessor(dir, &object));
    if (object) json_object_set_new(root, "preprocessor_config", object), *changed = true;
    return DT_OK;
}

dt_err vision_complete_config(char **text, const char *name, const char *dir, dt_model_part part, bool *is_text)
{
    json_t *root;
    bool changed = false;
    DT_TRY(dt_json_parse(&root, name, *text, strlen(*text), 0));
    dt_err err = settle_head(root, dir, &changed);
    if (err == DT_OK) err = dt_model_choose_part(part, name, &root, is_text, &changed);
    if (err == DT_OK && dt_model_has_vision(root)) err = add_preprocessor(root, dir, &changed);
    if (err == DT_OK && changed) err = dt_json_store(text, name, root);
    json_decref(root);
    return err;
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

/* Means and deviations are omitted: the preprocessor class has those of its towers. */
static json_t *usual_preprocessor(const dt_vision_config *v)
{
    const json_int_t S = v->image_size;
    if (v->grids)
        return json_pack("{s:s, s:I, s:I, s:I, s:{s:i, s:i}}", "image_processor_type", v->tower->processor,
                         "patch_size", (json_int_t)v->patch_size, "merge_size", (json_int_t)v->n_side,
                         "temporal_patch_size", (json_int_t)v->n_frames, "size", "shortest_edge", 56 * 56,
                         "longest_edge", 28 * 28 * 1280);
    if (v->tiles)
        return json_pack("{s:s, s:b, s:i, s:i, s:{s:I, s:I}}", "image_processor_type", v->tower->processor,
                         "crop_to_patches", 1, "min_patches", 1, "max_patches", 12, "size", "height", S, "width", S);
    if (!v->tower->crops)
        return json_pack("{s:s, s:{s:I, s:I}}", "image_processor_type", v->tower->processor, "size", "height", S,
                         "width", S);
    return json_pack("{s:s, s:{s:I}, s:{s:I, s:I}}", "image_processor_type", v->tower->processor, "size",
                     "shortest_edge", S, "crop_size", "height", S, "width", S);
}

/* malloc'ed; NULL: unknown. */
static char *placeholder(const char *tokenizer, int32_t id)
{
    dt_tokenizer *t = NULL;
    if (!tokenizer || !*tokenizer) return NULL;
    if (dt_tokenizer_open(&t, tokenizer) != DT_OK) return dt_error_clear(), NULL;
    const char *token = dt_tokenizer_token(t, id);
    char *copy = token ? strdup(token) : NULL;
    dt_tokenizer_close(t);
    return copy;
}

/* LlavaProcessor subtracts one token if the strategy drops the first row. */
static json_t *make_processor(const dt_export_options *opt, const dt_vision_config *v)
{
    if (v->wrapped || v->tiles)
        return json_pack("{s:s, s:I}", "processor_class", v->tiles ? "InternVLProcessor" : "Gemma3Processor",
                         "image_seq_length", (json_int_t)v->n_tokens);
    char *token = placeholder(opt->tokenizer, v->image_token);
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:I, s:s}", "processor_class", "LlavaProcessor", "image_token",
                  token ? token : "<image>", "num_additional_image_tokens", v->tower->class_row, "patch_size",
                  (json_int_t)v->patch_size, "vision_feature_select_strategy", v->drop_first ? "default" : "full");
    free(token);
    return root;
}

static char *dump(json_t *root)
{
    char *text = NULL, *bare = root ? export_config_dump(root) : NULL;
    if (bare && asprintf(&text, "%s\n", bare) < 0) text = NULL;
    free(bare);
    json_decref(root);
    return text;
}

static json_t *preprocessor_of(const dt_model_config *mc)
{
    json_t *root = json_loads(mc->json, 0, NULL), *own = json_incref(json_object_get(root, "preprocessor_config"));
    json_decref(root);
    return own ? own : usual_preprocessor(mc->vision);
}

dt_err vision_make_files(const dt_export_options *opt, char **preprocessor, char **processor)
{
    dt_model_config mc = {0};
    *preprocessor = *processor = NULL;
    DT_TRY(dt_model_config_parse(&mc, "config.json", opt->model_config));
    if (mc.vision) *preprocessor = dump(preprocessor_of(&mc));
    if (mc.vision && !mc.vision->grids) *processor = dump(make_processor(opt, mc.vision));
    const bool made = !mc.vision || (*preprocessor && (*processor || mc.vision->grids));
    dt_model_config_free(&mc);
    return made ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the files of a vision-language model");
}
