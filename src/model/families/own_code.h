/* own_code.h - published models with their own code that compute what a family does. */
#ifndef DT_MODEL_OWN_CODE_H
#define DT_MODEL_OWN_CODE_H

#include "../config/model_config.h"

/** Their model_type, i = 0, 1, ...; NULL: there are no more. */
const char *dt_own_code_type(int i);
/** Translate such a model's config.json to that of the family. own: out, the caller's; NULL: root is of another model.
 *  DT_ERR_MEMORY; root->err naming key and value: a value that the family does not compute. */
dt_err dt_own_code_translate(const dt_spec *root, json_t **own);
/** Note the names that tensors of a unit of the language model have in such files (dt_fused). */
void dt_own_code_note(const dt_model_config *mc, dt_unit *u);

#endif
