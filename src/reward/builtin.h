/* builtin.h - reward functions that need only a completion, or all completions of a prompt. Private to src/reward. */
#ifndef DTRAIN_REWARD_BUILTIN_H
#define DTRAIN_REWARD_BUILTIN_H

#include "dtrain/io/json.h"
#include "dtrain/reward/reward.h"

typedef struct dt_builtin dt_builtin;

/** NAME or NAME:PARAMETERS. *b is NULL, without an error, if NAME is not a built-in function. DT_ERR_USAGE: invalid
 *  parameters; DT_ERR_MEMORY. */
dt_err dt_builtin_open(dt_builtin **b, const char *text);
void dt_builtin_close(dt_builtin *b); /* safe on NULL */
const char *dt_builtin_name(const dt_builtin *b);

/** Does it need the embeddings of a catalogue's items? If so, dt_reward_sample.items must be set. */
bool dt_builtin_needs_items(const dt_builtin *b);

/** The reward of a completion; NaN: the function does not apply. record: of s, parsed. Local. DT_ERR_MEMORY,
 *  DT_ERR_DATA: a field of the record is invalid. */
dt_err dt_builtin_score(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward);

/** Called after the scores of all n completions of a prompt, in their order: adjusts the rewards of the group. reward[i
 *  * stride], i < n. Local. */
void dt_builtin_finish_group(const dt_builtin *b, double *reward, int n, int stride);

/** The i-th name, with its parameters and a line of help; false: there are no more. */
bool dt_builtin_named(int i, const char **name, const char **help);

#endif
