/* vision_files.h - files that define a model's image preprocessing: preprocessor_config.json, or processor_config.json
 * in newer versions of transformers. Private to pretrained. */
#ifndef DTRAIN_PRETRAINED_VISION_FILES_H
#define DTRAIN_PRETRAINED_VISION_FILES_H

#include "dtrain/pretrained/export.h"
#include "dtrain/io/json.h"

#define VISION_PREPROCESSOR "preprocessor_config.json"
#define VISION_PROCESSOR "processor_config.json"
enum { VISION_MAX_CONFIG = 1 << 26 }; /* bytes */

/** The object of DIR/preprocessor_config.json, or the image processor in processor_config.json; the caller owns it.
 *  NULL: neither exists. DT_ERR_DATA. */
dt_err vision_read_preprocessor(const char *dir, json_t **object);

/** Complete the text of a config.json of a model with images from the other files in DIR, and reduce it to the wanted
 *  part; *text is replaced. Texts of other models are unchanged. The image preprocessor is added under the key
 *  preprocessor_config, unless the key exists. If tie_word_embeddings differs between the two objects, both get the
 *  value that the weights show; without weights, true. is_text: out, it is now that of the text model alone.
 *  DT_ERR_DATA. */
dt_err vision_complete_config(char **text, const char *name, const char *dir, dt_model_part part, bool *is_text);

/** Texts of both files for an exported model; malloc'ed, NULL: the model has no images. A model without a preprocessor
 *  gets the one with which towers of its kind are published. DT_ERR_DATA. */
dt_err vision_make_files(const dt_export_options *opt, char **preprocessor, char **processor);

#endif
