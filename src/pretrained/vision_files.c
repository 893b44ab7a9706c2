/* vision_files.c - see vision_files.h. */
#include "vision_files.h"
#include "export_config.h"
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

dt_err vision_add_preprocessor(char **text, const char *name, const char *dir)
{
    json_t *root, *object = NULL;
    DT_TRY(dt_json_parse(&root, name, *text, strlen(*text), 0));
    const bool missing = dt_model_is_llava(root) && !json_object_get(root, "preprocessor_config");
    dt_err err = missing ? vision_read_preprocessor(dir, &object) : DT_OK;
    if (err == DT_OK && object) {
        json_object_set(root, "preprocessor_config", object);
        free(*text);
        *text = json_dumps(root, JSON_INDENT(2));
        if (!*text) err = dt_fail(DT_ERR_MEMORY, "%s: out of memory for its text", name);
    }
    json_decref(object);
    json_decref(root);
    return err;
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

/* Means and deviations are omitted: the preprocessor class has those of its towers. */
static json_t *usual_preprocessor(const dt_vision_config *v)
{
    const json_int_t S = v->image_size;
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
    if (mc.vision) *preprocessor = dump(preprocessor_of(&mc)), *processor = dump(make_processor(opt, mc.vision));
    const bool made = !mc.vision || (*preprocessor && *processor);
    dt_model_config_free(&mc);
    return made ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the files of a vision-language model");
}
