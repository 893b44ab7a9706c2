/* vision_files.h - the files that say how images are made ready for a model: preprocessor_config.json, and the
 * processor_config.json in which newer versions of transformers have it. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_VISION_FILES_H
#define DTRAIN_PRETRAINED_VISION_FILES_H

#include "dtrain/pretrained/export.h"
#include "dtrain/io/json.h"

#define VISION_PREPROCESSOR "preprocessor_config.json"
#define VISION_PROCESSOR "processor_config.json"
enum { VISION_MAX_CONFIG = 1 << 26 }; /* bytes */

/** The object of DIR/preprocessor_config.json, or what processor_config.json has of an image processor; the caller's.
 *  NULL: there is neither. DT_ERR_DATA. */
dt_err vision_read_preprocessor(const char *dir, json_t **object);

/** Put it into the text of a config.json of llava, under the key preprocessor_config, where it has none: *text is
 *  replaced. Other models' texts stay as they are. DT_ERR_DATA. */
dt_err vision_add_preprocessor(char **text, const char *name, const char *dir);

/** The texts of both files for a model that goes out; malloc'ed, NULL: it has no images. A model that does not know its
 *  preprocessor has the one that towers of its kind are published with. DT_ERR_DATA. */
dt_err vision_make_files(const dt_export_options *opt, char **preprocessor, char **processor);

#endif
