/* model_config.h - shared declarations of the files that read a model's configuration. */
#ifndef DT_MODEL_MODEL_CONFIG_H
#define DT_MODEL_MODEL_CONFIG_H

#include "dtrain/model/model.h"
#include "dtrain/io/spec.h"

/* Maximum parameters of a language model, tower or projector: element and byte counts stay far below 2^63. */
#define DT_MAX_PARAMETERS 0x1p44

/** Fill mc from a JSON object. root provides its name in messages and the error code. On error mc is empty. */
dt_err dt_model_config_from_json(dt_model_config *mc, const dt_spec *root);

/* Sections: rope_theta, rope_scaling, rope_parameters; sliding_window, layer_types and related keys. */
dt_err dt_model_read_rope(const dt_spec *root, dt_model_config *mc);
/** The object with the rotary parameters that apply. False: none. */
bool dt_model_rope_object(const dt_spec *root, dt_spec *rope);
/** Read layer_types, if it is given: layers with full attention, and with windows or with linear attention. */
dt_err dt_model_read_layer_types(const dt_spec *root, dt_model_config *mc, bool linear);
/** use: layers have windows as mc->layers says, unless layer_types says otherwise; false: none may have one. */
dt_err dt_model_read_window(const dt_spec *root, dt_model_config *mc, bool use);
/** Read an activation's name; *act is unchanged if the key is missing. */
dt_err dt_model_read_activation(const dt_spec *root, const char *key, dt_activation *act);
/** Read the vision part of a model with images into mc->vision. tower: its kind; NULL: LLaVA, with one of its towers.
 *  mc already holds the language model. */
dt_err dt_model_read_vision(const dt_spec *root, const dt_tower *tower, dt_model_config *mc);
/** Read the axes of its rotary positions. text: the object of the language model. */
dt_err dt_model_read_axes(const dt_spec *text, const dt_tower *tower, dt_model_config *mc);
/** The text model alone, as a config.json of the family `plain`, without model_type. text: its object in a model
 *  with images, read as mc. own: out, the caller's. DT_ERR_MEMORY. */
dt_err dt_model_plain_text(const dt_spec *text, const dt_model_config *mc, json_t **own);
/** Of images that are grids of cells: sizes, windows and positions; then the projectors. s: vision_config. */
dt_err dt_vision_read_cells(const dt_spec *s, dt_vision_config *v);
dt_err dt_vision_read_merger(const dt_spec *s, dt_vision_config *v, const dt_model_config *mc);
void dt_vision_config_free(dt_vision_config *v); /* safe on NULL */

#endif
