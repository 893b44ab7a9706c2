/* export_config.h - config.json as it goes out. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_EXPORT_CONFIG_H
#define DTRAIN_PRETRAINED_EXPORT_CONFIG_H

#include "dtrain/pretrained/export.h"
#include "dtrain/io/json.h"

/** The text of an object, with keys in order; malloc'ed, NULL: no memory. */
char *export_config_dump(const json_t *root);
/** malloc'ed. n_labels: of a scalar head; 0: the model predicts tokens. DT_ERR_DATA: model_config is not valid. */
dt_err export_config_make(const dt_export_options *opt, int64_t n_labels, char **text);

#endif
