/* llama.h - tables and defaults of Llama that other families share. */
#ifndef DT_MODEL_LLAMA_H
#define DT_MODEL_LLAMA_H

#include "family.h"

extern const struct module dt_llama_embed[MAX_MODULES], dt_llama_block[MAX_MODULES], dt_llama_head[MAX_MODULES];

/** Read everything but windows. */
dt_err dt_llama_read(const dt_spec *root, dt_model_config *mc);

#define LLAMA_TABLES                                                                                                   \
    .blocks = "model.layers.", .embed = dt_llama_embed, .block = dt_llama_block, .head = dt_llama_head,                \
    .steps = dt_steps_pre_norm
#define ROTARY_KEYS                                                                                                    \
    {"rope_theta", NULL}, { "rope_scaling", NULL }

#endif
