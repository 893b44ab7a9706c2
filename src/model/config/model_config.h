/* model_config.h - what the files that read a model's configuration share. */
#ifndef DT_MODEL_MODEL_CONFIG_H
#define DT_MODEL_MODEL_CONFIG_H

#include "dtrain/model/model.h"
#include "dtrain/io/spec.h"

/* Most parameters of a language model, a tower or a projector: counts of elements and bytes stay far below 2^63. */
#define DT_MAX_PARAMETERS 0x1p44

/** Fill mc from an object; root says what messages call it and what a mistake counts as. On error mc is empty. */
dt_err dt_model_config_from_json(dt_model_config *mc, const dt_spec *root);

/* Parts of it: rope_theta, rope_scaling, rope_parameters; sliding_window, layer_types and their relatives. */
dt_err dt_model_read_rope(const dt_spec *root, dt_model_config *mc);
dt_err dt_model_read_window(const dt_spec *root, dt_model_config *mc);
/** The word of an activation; leaves *act alone where the key is absent. */
dt_err dt_model_read_activation(const dt_spec *root, const char *key, dt_activation *act);
/** Of llava's object, beside text_config, which mc holds: into mc->vision. */
dt_err dt_model_read_vision(const dt_spec *root, dt_model_config *mc);
void dt_vision_config_free(dt_vision_config *v); /* safe on NULL */

#endif
