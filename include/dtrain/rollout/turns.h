/* turns.h - completions of several turns. The model ends a turn with an end token, an environment answers with an
 * observation, and the model continues after it, until the environment is done or the completion has no room.
 * reward/environment.h is one: a user's program. */
#ifndef DTRAIN_ROLLOUT_TURNS_H
#define DTRAIN_ROLLOUT_TURNS_H

#include "dtrain/rollout/rollout.h"

/** A turn of the model that has ended. */
typedef struct dt_turn {
    int64_t row;         /* of the rollout, which has its completion so far */
    int32_t from, n_tok; /* its tokens in the completion, with the one that ends it */
    bool last;           /* the completion ends, whatever the environment answers */
} dt_turn;

/** An environment's answer. */
typedef struct dt_observation {
    int64_t row;
    const int32_t *ids; /* [n] tokens that follow the turn, up to the begin of the next one; borrowed until the next
                         * call */
    int32_t n;          /* 0: the completion ends */
    int32_t n_calls, n_failures; /* of tools */
    double reward;               /* is added to the row's; NaN: none */
} dt_observation;

/** An environment. Functions are Local. */
struct dt_turns {
    void *self;
    /* In open of a rollout: the token that ends a turn, in addition to EOS tokens; -1: none. tokenizer: its name */
    dt_err (*open)(void *self, dt_task *t, const char *tokenizer, int32_t *end_token);
    /* a turn has ended; does not wait for the answer */
    dt_err (*ask)(void *self, dt_rollout *r, const dt_turn *turn);
    /* the next answer, of any turn; *any false: none within most_s seconds. DT_ERR_DATA, with the reason */
    dt_err (*answer)(void *self, double most_s, dt_observation *o, bool *any);
    const char *name;  /* for the phase while all ranks wait */
    int64_t max_turns; /* 0: no limit */
};

#endif
