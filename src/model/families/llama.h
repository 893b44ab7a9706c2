/* llama.h - tables and defaults of Llama that other families share. */
#ifndef DT_MODEL_LLAMA_H
#define DT_MODEL_LLAMA_H

#include "family.h"

extern const struct module dt_llama_embed[MAX_MODULES], dt_llama_block[MAX_MODULES], dt_llama_head[MAX_MODULES];

/** Read everything but windows. */
dt_err dt_llama_read(const dt_spec *root, dt_model_config *mc);

/** The tables of a family with Llama's embedding and head. */
#define TABLES(table, order)                                                                                           \
    .blocks = "model.layers.", .embed = dt_llama_embed, .block = table, .head = dt_llama_head, .steps = order
#define LLAMA_TABLES TABLES(dt_llama_block, dt_steps_pre_norm)
/** Rows of a block's table, with these flags. q: the size of the queries. */
#define ROW(...)                                                                                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define NORM_ROW(slot, name) ROW(slot, name, SIZE_C, NO_SIZE, 0, 0, 0)
#define QKV_ROWS(q, flags)                                                                                             \
    ROW(SLOT_QKV, "self_attn.q_proj", q, SIZE_C, IF(qkv_bias), 0, (flags) | ADAPT_BY_DEFAULT),                         \
        ROW(SLOT_QKV, "self_attn.k_proj", SIZE_K, SIZE_C, IF(qkv_bias), 0, flags),                                     \
        ROW(SLOT_QKV, "self_attn.v_proj", SIZE_K, SIZE_C, IF(qkv_bias), 0, (flags) | ADAPT_BY_DEFAULT)
#define O_ROW(flags) ROW(SLOT_O, "self_attn.o_proj", SIZE_C, SIZE_Q, IF(o_bias), 0, flags)
#define ATTENTION_ROWS(q, flags)                                                                                       \
    QKV_ROWS(q, flags), ROW(SLOT_Q_NORM, "self_attn.q_norm", SIZE_HEAD, NO_SIZE, 0, IF(qk_norm), flags),               \
        ROW(SLOT_K_NORM, "self_attn.k_norm", SIZE_HEAD, NO_SIZE, 0, IF(qk_norm), flags), O_ROW(flags)
#define MLP_ROWS(module, size, bias, flags)                                                                            \
    ROW(SLOT_UP, module ".gate_proj", size, SIZE_C, bias, 0, flags),                                                   \
        ROW(SLOT_UP, module ".up_proj", size, SIZE_C, bias, 0, flags),                                                 \
        ROW(SLOT_DOWN, module ".down_proj", SIZE_C, size, bias, 0, flags)
/** Llama's block. mlp: flags of the MLP. */
#define LLAMA_ROWS(mlp)                                                                                                \
    NORM_ROW(SLOT_NORM1, "input_layernorm"), ATTENTION_ROWS(SIZE_Q, 0),                                                \
        NORM_ROW(SLOT_NORM2, "post_attention_layernorm"), MLP_ROWS("mlp", SIZE_F, IF(mlp_bias), mlp)

/** Lists of keys; each ends with a comma. */
#define ROTARY_KEYS "rope_theta, rope_scaling, "

#endif
