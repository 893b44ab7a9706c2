/* rules.h - masks of the tokens that dt_token_rules allow next. Private to generate. */
#ifndef DTRAIN_GENERATE_RULES_H
#define DTRAIN_GENERATE_RULES_H

#include "dtrain/generate/generate.h"

/** Can these options forbid a token? */
bool rules_forbid(const dt_generate_options *opt);
/** Words in a mask of the vocabulary. */
int64_t rules_ld(const dt_generate_options *opt);
/** Compute the mask of tokens that occurred: seen [rules_ld]. Ids outside the vocabulary cannot occur again. */
void rules_mark_seen(const dt_generate_options *opt, const int32_t *ids, int32_t n_ids, uint32_t *seen);
/** Compute the mask of tokens that may follow n_ids tokens, of which the first n_prompt are the prompt: allowed
 *  [rules_ld]. Returns false if all tokens are forbidden. */
bool rules_allow(const dt_generate_options *opt, const int32_t *ids, int32_t n_prompt, int32_t n_ids,
                 uint32_t *allowed);

#endif
