/* prompt_images.h - the images of a prompt and their positions in it. */
#ifndef DTRAIN_GENERATE_PROMPT_IMAGES_H
#define DTRAIN_GENERATE_PROMPT_IMAGES_H

#include "dtrain/generate/generate.h"

/** Add the images that the reader specifies for every prompt. */
dt_err prompt_add_given(dt_prompt *p, const dt_prompt_reader *r);
/** Prepend placeholders for the prompt's images to a text of *nbytes bytes, unless the text contains placeholders.
 *  malloc'ed, with the new length in *nbytes; NULL: unchanged. DT_ERR_MEMORY. */
dt_err prompt_image_text(const dt_prompt *p, const dt_prompt_reader *r, const char *text, size_t *nbytes, char **with);
/** Expand placeholders to one run per image. given: the prompt was given as ids, possibly with complete runs. */
dt_err prompt_expand(dt_prompt *p, const dt_prompt_reader *r, bool given);

#endif
