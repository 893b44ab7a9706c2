/* answer.h - find the answer in a text, and compare two answers. Private to src/reward. */
#ifndef DTRAIN_REWARD_ANSWER_H
#define DTRAIN_REWARD_ANSWER_H

#include "dtrain/core/core.h"

/** Position of the answer in a text: within the last <answer>...</answer>, if any; there, the text after the last ####
 *  up to the end of its line, or the contents of the last \boxed{...}; without surrounding white space. Without any of
 *  these marks, the whole text is the answer. */
typedef struct dt_answer {
    const char *at;
    size_t n;
} dt_answer;
dt_answer dt_answer_in(const char *text);

/** Are two answers equal? Numbers are compared numerically (1,000 and 1e3; 1/2 and 0.5; $5 and 5.00), up to binary
 *  rounding. Other answers are compared as text. Case, runs of white space, a final point and Unicode compatibility
 *  forms (NFKC) are ignored. DT_ERR_MEMORY. */
dt_err dt_answers_equal(dt_answer a, dt_answer b, bool *equal);

#endif
