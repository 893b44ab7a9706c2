/* module_match.h - which modules match a name or a pattern. */
#ifndef DT_ADAPTER_MODULE_MATCH_H
#define DT_ADAPTER_MODULE_MATCH_H

#include "dtrain/adapter/adapter.h"

/** "model.norm" of the tensor "model.norm.weight". */
void module_of(const dt_tensor *t, char module[DT_NAME_MAX]);
/** Is the path `name`, or does it end with "." and `name`? */
bool module_is_called(const char *module, const char *name);
/** Does the path of the module, or of a module that contains it, end with these letters? PEFT matches modules_to_save
 *  like this. For example, "norm" also matches input_layernorm, and "mlp" matches all modules in it. */
bool module_is_within(const char *module, const char *letters);
/** Is the module one of the list, or matched by the pattern? all-linear matches nothing. */
bool module_is_in(const dt_modules *m, const char *module);
bool module_is_all_linear(const dt_modules *m);
/** Does the pattern match the path, or a suffix of it that starts after a "."? */
bool module_ends_as(const char *pattern, const char *module);
/** DT_ERR_DATA: the pattern is not valid. DT_ERR_USAGE: built without PCRE2. */
dt_err module_check_pattern(const char *pattern);
void module_list_free(dt_modules *m);

/** Does modules_to_save name the embedding that the head is tied to? PEFT then unties them. */
bool lora_saves_tied(const dt_lora *l, const dt_model_config *mc, const dt_unit *units, int n_units);

#endif
