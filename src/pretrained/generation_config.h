/* generation_config.h - reading generation_config.json. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_GENERATION_CONFIG_H
#define DTRAIN_PRETRAINED_GENERATION_CONFIG_H

#include "dtrain/pretrained/pretrained.h"

/** Nothing given. */
dt_generation_defaults generation_config_none(void);
/** Back to nothing given. */
void generation_config_free(dt_generation_defaults *g);
/** Parse the text of a generation_config.json; name is what messages call it. Keys whose values are null
 *  are passed over. Free it after success. DT_ERR_DATA naming file, key and value. */
dt_err generation_config_parse(dt_generation_defaults *g, const char *name, const char *text, size_t nbytes);
/** The file DIR/generation_config.json; where there is none, nothing is given. */
dt_err generation_config_read(dt_generation_defaults *g, const char *dir);

#endif
