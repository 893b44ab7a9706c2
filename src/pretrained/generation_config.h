/* generation_config.h - read generation_config.json. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_GENERATION_CONFIG_H
#define DTRAIN_PRETRAINED_GENERATION_CONFIG_H

#include "dtrain/pretrained/pretrained.h"

/** All settings unset. */
dt_generation_defaults generation_config_none(void);
/** Free g and reset it to generation_config_none. */
void generation_config_free(dt_generation_defaults *g);
/** Parse the text of a generation_config.json; name is used in messages. Keys with null values are ignored. Free g
 *  after success. DT_ERR_DATA naming file, key and value. */
dt_err generation_config_parse(dt_generation_defaults *g, const char *name, const char *text, size_t nbytes);
/** Read DIR/generation_config.json. If it is missing, all settings are unset. */
dt_err generation_config_read(dt_generation_defaults *g, const char *dir);

#endif
