/* prompt_images.h - which images a prompt has, and where they stand in it. */
#ifndef DTRAIN_GENERATE_PROMPT_IMAGES_H
#define DTRAIN_GENERATE_PROMPT_IMAGES_H

#include "dtrain/generate/generate.h"

/** Those that the reader has for each prompt. */
dt_err prompt_add_given(dt_prompt *p, const dt_prompt_reader *r);
/** A text of nbytes bytes, and then of as many as it has, behind the prompt's images where it does not say where they
 *  stand: malloc'ed, or NULL where it stays as it is. DT_ERR_MEMORY. */
dt_err prompt_image_text(const dt_prompt *p, const dt_prompt_reader *r, const char *text, size_t *nbytes, char **with);
/** A run of placeholders for each. given: the ids were given as such, perhaps with whole runs. */
dt_err prompt_expand(dt_prompt *p, const dt_prompt_reader *r, bool given);

#endif
