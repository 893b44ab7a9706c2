/* model_config.h - what the files that read a model's configuration share. */
#ifndef DT_MODEL_MODEL_CONFIG_H
#define DT_MODEL_MODEL_CONFIG_H

#include "dtrain/model.h"
#include "dtrain/spec.h"

/** Fill mc from an object; root says what messages call it and what a mistake counts as. On error mc is empty. */
dt_err dt_model_config_from_json(dt_model_config *mc, const dt_spec *root);

/* Parts of it: rope_theta, rope_scaling, rope_parameters; sliding_window, layer_types and their relatives. */
dt_err dt_model_read_rope(const dt_spec *root, dt_model_config *mc);
dt_err dt_model_read_window(const dt_spec *root, dt_model_config *mc);

#endif
