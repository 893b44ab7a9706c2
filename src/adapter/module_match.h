/* module_match.h - which modules names and patterns stand for. */
#ifndef DT_ADAPTER_MODULE_MATCH_H
#define DT_ADAPTER_MODULE_MATCH_H

#include "dtrain/adapter/adapter.h"

/** "model.norm" of the tensor "model.norm.weight". */
void module_of(const dt_tensor *t, char module[DT_NAME_MAX]);
/** Is the path `name`, or does it end with "." and it? */
bool module_is_called(const char *module, const char *name);
/** Is it a module whose path ends with these letters, or a part of one? As PEFT finds modules_to_save: "norm" is
 *  input_layernorm, too, and "mlp" all that is in it. */
bool module_is_within(const char *module, const char *letters);
/** Is the module one of the list, or matched by the pattern? all-linear matches nothing. */
bool module_is_in(const dt_modules *m, const char *module);
bool module_is_all_linear(const dt_modules *m);
/** Is the path, or a part of it that begins behind a ".", matched to its end? */
bool module_ends_as(const char *pattern, const char *module);
/** DT_ERR_DATA: it cannot be compiled. */
dt_err module_check_pattern(const char *pattern);
void module_list_free(dt_modules *m);

/** Does modules_to_save name the embedding that the head is tied to? PEFT takes the two apart then. */
bool lora_saves_tied(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units);

#endif
