/* prompt_images.h - which images a prompt has, and where they stand in it. */
#ifndef DTRAIN_GENERATE_PROMPT_IMAGES_H
#define DTRAIN_GENERATE_PROMPT_IMAGES_H

#include "dtrain/generate.h"

/** Add an image. folder: of a relative path, [n_folder] up to its slash. */
dt_err prompt_add_image(dt_prompt *p, const char *folder, int n_folder, const char *path);
/** Those that the reader has for each prompt. */
dt_err prompt_add_given(dt_prompt *p, const dt_prompt_reader *r);
/** Those of a record from a file of this name. DT_ERR_DATA: what is no path. */
dt_err prompt_list_images(dt_prompt *p, const json_t *record, const char *file, const dt_prompt_reader *r);
/** Those that messages name, or their places in messages that name none. */
dt_err prompt_place_images(dt_prompt *p, dt_messages *m, const char *file);
/** The same for a text of nbytes bytes, and then of as many as it has: malloc'ed where images are put in front, else
 *  NULL. */
dt_err prompt_image_text(const dt_prompt *p, const dt_prompt_reader *r, const char *text, size_t *nbytes, char **with);
/** A run of placeholders for each. given: the ids were given as such, perhaps with whole runs. */
dt_err prompt_expand(dt_prompt *p, const dt_prompt_reader *r, bool given);
void prompt_free_images(dt_prompt *p);

#endif
