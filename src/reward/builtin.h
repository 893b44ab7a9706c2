/* builtin.h - reward functions that need only a completion, or all completions of a prompt. Private to src/reward. */
#ifndef DTRAIN_REWARD_BUILTIN_H
#define DTRAIN_REWARD_BUILTIN_H

#include "dtrain/io/json.h"
#include "dtrain/reward/reward.h"

typedef struct dt_builtin dt_builtin;

/** A built-in function. */
typedef struct dt_builtin_kind {
    const char *name;
    /** Read the parameters; NULL: it has none. Local. DT_ERR_USAGE, DT_ERR_MEMORY. */
    dt_err (*read)(dt_builtin *b, const char *parameters);
    /** The reward of a completion; NaN: the function does not apply. record: of s, parsed. Local. DT_ERR_MEMORY,
     *  DT_ERR_DATA: a field of the record is invalid. */
    dt_err (*score)(const dt_builtin *b, const dt_reward_sample *s, const json_t *record, double *reward);
    /** After the scores of all n completions of a prompt, in their order: adjust the rewards of the group, reward[i *
     *  stride], i < n. NULL: nothing to do. Local. */
    void (*of_group)(double *reward, int n, int stride);
    bool of_items; /* it needs the embeddings of a catalogue's items: dt_reward_sample.items must be set */
} dt_builtin_kind;
/** All functions; the last has no name. */
extern const dt_builtin_kind dt_builtins[];

/** NAME or NAME:PARAMETERS. *b is NULL, without an error, if NAME is not a built-in function. DT_ERR_USAGE: invalid
 *  parameters; DT_ERR_MEMORY. */
dt_err dt_builtin_open(dt_builtin **b, const char *text);
void dt_builtin_close(dt_builtin *b); /* safe on NULL */
/** Its function. */
const dt_builtin_kind *dt_builtin_of(const dt_builtin *b);

#endif
