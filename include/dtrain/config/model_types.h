/* model_types.h - the list of model families, by config.json's model_type. A new family is one word here and one file
 * in src/model/families/, which defines dt_family_WORD. */
#ifndef DTRAIN_MODEL_TYPES_H
#define DTRAIN_MODEL_TYPES_H

/* clang-format off */
#define DT_MODEL_TYPES(TYPE) \
    TYPE(gpt2) \
    TYPE(llama) \
    TYPE(mistral) \
    TYPE(qwen2) \
    TYPE(qwen3) \
    TYPE(olmo2) \
    TYPE(olmo3) \
    TYPE(seed_oss) \
    TYPE(internlm3) \
    TYPE(ministral3) \
    TYPE(phi3) \
    TYPE(glm) \
    TYPE(glm4) \
    TYPE(granite) \
    TYPE(smollm3) \
    TYPE(gemma2) \
    TYPE(gemma3_text) \
    TYPE(qwen2_moe) \
    TYPE(qwen3_moe) \
    TYPE(mixtral) \
    TYPE(deepseek_v2) \
    TYPE(deepseek_v3) \
    TYPE(glm4_moe) \
    TYPE(gpt_oss) \
    TYPE(qwen3_5_text) \
    TYPE(qwen3_next) \
    TYPE(qwen3_5_moe_text)
/* clang-format on */

#define DT_AFTER_BAR(type) "|" #type
/** All words in one string: "gpt2|llama". */
#define DT_MODEL_TYPE_WORDS (&(DT_MODEL_TYPES(DT_AFTER_BAR))[1])

#endif
