/* names.c - names of tensors in files of other programs (algorithms.md 7.1, 8.3). dtrain uses one name per tensor, that
 * of the newest transformers. Older versions, LLaVA, and the component models of a vision-language model use other
 * names. */
#include "dtrain/checkpoint/stored.h"
#include "dtrain/io/io.h"
#include <stdlib.h>
#include <string.h>

static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

const char *dt_stored_bare_name(const char *name)
{
    static const char prefix[] = "transformer.";
    return begins(name, prefix) ? name + sizeof prefix - 1 : NULL;
}

/* Name prefixes: dtrain's, and that of other files. */
static const struct {
    const char *here, *there;
} BEGINNINGS[] = {
    {"transformer.", ""},
    {"model.", ""},
    {"model.", "model.language_model."}, /* the text model of a multimodal model */
    {"model.", "language_model.model."},
    {"lm_head.", "language_model.lm_head."},
    {"language_model.model.", "model.language_model."},
    {"language_model.", ""},
    {"multi_modal_projector.", "model.multi_modal_projector."},
    {"multi_modal_projector.linear_1.", "mm_projector.0."},
    {"multi_modal_projector.linear_2.", "mm_projector.2."},
    {"multi_modal_projector.linear_1.", "model.mm_projector.0."},
    {"multi_modal_projector.linear_2.", "model.mm_projector.2."},
    {"multi_modal_projector.linear_1.", "mm_projector."},
    {"multi_modal_projector.linear_1.", "model.mm_projector."},
    {"vision_tower.", "vision_tower.vision_model."},
    {"vision_tower.", "model.vision_tower."},
    {"vision_tower.", "model.vision_tower.vision_model."},
    {"vision_tower.", "vision_model."},
    {"vision_tower.", ""},
    /* towers with a language model of their own */
    {"vision_tower.", "model.visual."},
    {"vision_tower.", "visual."},
    {"multi_modal_projector.linear_1.", "model.visual.merger.mlp.0."},
    {"multi_modal_projector.linear_2.", "model.visual.merger.mlp.2."},
    {"multi_modal_projector.linear_1.", "visual.merger.mlp.0."},
    {"multi_modal_projector.linear_2.", "visual.merger.mlp.2."},
    {"multi_modal_projector.linear_", "model.visual.merger.linear_fc"},
    {"multi_modal_projector.linear_", "visual.merger.linear_fc"},
    {"multi_modal_projector.deepstack.", "model.visual.deepstack_merger_list."},
    {"multi_modal_projector.deepstack.", "visual.deepstack_merger_list."},
};

const dt_st_tensor *dt_stored_find(const dt_safetensors *s, const char *name)
{
    const dt_st_tensor *found = dt_safetensors_find(s, name);
    for (size_t i = 0; i < sizeof BEGINNINGS / sizeof BEGINNINGS[0] && !found; i++) {
        char other[2 * DT_NAME_MAX];
        if (!begins(name, BEGINNINGS[i].here)) continue;
        snprintf(other, sizeof other, "%s%s", BEGINNINGS[i].there, name + strlen(BEGINNINGS[i].here));
        found = dt_safetensors_find(s, other);
    }
    return found;
}

dt_stored_section dt_stored_section_of(const char *name)
{
    static const char *const of_projector[] = {"multi_modal_projector.", "mm_projector."}, *const of_tower[] = {
                                                                                               "vision_tower.",
                                                                                               "vision_model."};
    const char *at = begins(name, "model.") ? name + strlen("model.") : name;
    for (size_t i = 0; i < 2; i++) {
        if (begins(at, of_projector[i])) return DT_STORED_PROJECTOR;
        if (begins(at, of_tower[i])) return DT_STORED_TOWER;
    }
    return DT_STORED_LANGUAGE;
}

const char *dt_stored_of_language(const char *name)
{
    static const char prefix[] = "language_model.";
    return begins(name, prefix) ? name + sizeof prefix - 1 : name;
}

void dt_stored_name_head(const dt_tensor *embed, char name[DT_NAME_MAX])
{
    const int n = (int)(dt_stored_of_language(embed->name) - embed->name);
    snprintf(name, DT_NAME_MAX, "%.*s%s", n, embed->name, DT_STORED_HEAD);
}

bool dt_stored_is_pooling(const char *name)
{
    const char *of = begins(name, "model.") ? name + strlen("model.") : name;
    of = begins(of, "vision_tower.") ? of + strlen("vision_tower.") : of;
    if (begins(of, "vision_model.")) return begins(of + strlen("vision_model."), "head.");
    return of != name && begins(of, "head.");
}

bool dt_stored_is_not_text(const char *name)
{
    return begins(name, "model.visual.") || begins(name, "visual.") || begins(name, "mtp.");
}

bool dt_stored_is_exact(const char *name) { return dt_has_ending(name, ".e_score_correction_bias"); }

/* Masks and tables that older versions stored with the weights. They are computed from the configuration. */
bool dt_stored_is_ignored(const char *name)
{
    static const char *const endings[] = {".rotary_emb.inv_freq", ".rotary_pos_emb.inv_freq", ".attn.bias",
                                          ".attn.masked_bias", ".embeddings.position_ids",
                                          /* of FP8: scales of activations, which are not quantised here */
                                          "activation_scale", ".input_scale",
                                          /* of LLM.int8: the order of codes (bitsandbytes.c) */
                                          ".weight_format"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (dt_has_ending(name, endings[i])) return true;
    return dt_stored_is_pooling(name) || dt_stored_is_not_text(name);
}

bool dt_stored_is_fp8(const dt_st_tensor *t) { return strcmp(t->dtype, "F8_E4M3") == 0; }

/* What follows the name of an FP8 tensor in the name of its scales, in files of transformers and compressed-tensors. */
static const char *const SCALES[] = {"_scale_inv", "_scale"};
enum { N_SCALES = sizeof SCALES / sizeof SCALES[0] };

const dt_st_tensor *dt_stored_find_scales(const dt_safetensors *s, const dt_st_tensor *codes)
{
    const dt_st_tensor *found = NULL;
    for (int i = 0; i < N_SCALES && !found; i++) {
        char name[2 * DT_NAME_MAX];
        snprintf(name, sizeof name, "%s%s", codes->name, SCALES[i]);
        found = dt_safetensors_find(s, name);
    }
    return found;
}

bool dt_stored_is_scale(const dt_safetensors *s, const char *name)
{
    for (int i = 0; i < N_SCALES; i++) {
        char codes[2 * DT_NAME_MAX];
        if (!dt_has_ending(name, SCALES[i])) continue;
        snprintf(codes, sizeof codes, "%.*s", (int)(strlen(name) - strlen(SCALES[i])), name);
        const dt_st_tensor *t = dt_safetensors_find(s, codes);
        if (t && dt_stored_is_fp8(t)) return true;
    }
    return false;
}

bool dt_stored_is_outside_tower(const char *name)
{
    static const char *const beginnings[] = {
        "text_model.",           "text_projection.", "visual_projection.",
        "logit_scale",           "logit_bias",       "head.",
        "language_model.",       "lm_head.",         "multi_modal_projector.",
        "model.language_model.", "model.lm_head.",   "model.multi_modal_projector."};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
        if (begins(name, beginnings[i])) return true;
    return strcmp(name, "embeddings.position_ids") == 0 || dt_stored_is_ignored(name);
}

bool dt_stored_is_unmerged(const char *name)
{
    return strstr(name, ".base_layer.") || strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
}

/* ---- prefixes ---------------------------------------------------------------------------------------------------- */

/* Returns the number of occurrences. */
static int strip_name(char *name, const char *prefix)
{
    const size_t n = strlen(prefix);
    int n_found = 0;
    for (char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        for (; begins(at, prefix) && (n_found == 0 || *prefix == '_'); n_found++)
            memmove(at, at + n, strlen(at + n) + 1);
        if (*prefix != '_') break;
    }
    return n_found;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dt_st_tensor *)a)->name, ((const dt_st_tensor *)b)->name);
}

dt_err dt_stored_strip(dt_safetensors *s, const char *prefix)
{
    int n_found = 0;
    for (int i = 0; i < s->n_tensors; i++) n_found += strip_name(s->tensors[i].name, prefix);
    DT_CHECK(n_found > 0 && *prefix, DT_ERR_DATA,
             "%s: expected tensor names that start with the prefix `%s`, found none%s%.200s", s->files[0], prefix,
             s->n_tensors ? "; the first name is " : "", s->n_tensors ? s->tensors[0].name : "");
    qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_name);
    for (int i = 1; i < s->n_tensors; i++)
        DT_CHECK(strcmp(s->tensors[i - 1].name, s->tensors[i].name) != 0, DT_ERR_DATA,
                 "%s: tensor `%.200s` exists twice, with and without the prefix `%s`", s->files[s->tensors[i].file],
                 s->tensors[i].name, prefix);
    return DT_OK;
}
