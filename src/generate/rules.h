/* rules.h - masks of the tokens that dt_token_rules let follow. Private to generate. */
#ifndef DTRAIN_GENERATE_RULES_H
#define DTRAIN_GENERATE_RULES_H

#include "dtrain/generate/generate.h"

/** Can these options forbid a token? */
bool rules_forbid(const dt_generate_options *opt);
/** Words of a mask of the vocabulary. */
int64_t rules_ld(const dt_generate_options *opt);
/** Bits of the tokens that may follow n_ids tokens, the first n_prompt of which are the prompt: allowed [rules_ld].
 *  Returns false where none may. */
bool rules_allow(const dt_generate_options *opt, const int32_t *ids, int32_t n_prompt, int32_t n_ids,
                 uint32_t *allowed);

#endif
