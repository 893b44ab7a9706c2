/* export_config.h - config.json of an exported model. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_EXPORT_CONFIG_H
#define DTRAIN_PRETRAINED_EXPORT_CONFIG_H

#include "dtrain/pretrained/export.h"
#include "dtrain/io/json.h"

/** Text of an object with sorted keys; malloc'ed, NULL: out of memory. */
char *export_config_dump(const json_t *root);
/** Returns malloc'ed text. n_labels: of a scalar head; 0: vocabulary head. DT_ERR_DATA: model_config is not valid. */
dt_err export_config_make(const dt_export_options *opt, int64_t n_labels, char **text);

#endif
