/* answer.h - the answer in a text, and whether two answers are the same. Private to src/reward. */
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

/** Do two answers say the same? Numbers are compared as numbers (1,000 and 1e3; 1/2 and 0.5; $5 and 5.00), to within
 *  what writing them in binary costs; anything else as text, without regard to case, to runs of white space, to a point
 *  at the end and to the forms that Unicode calls compatible (NFKC). DT_ERR_MEMORY. */
dt_err dt_answers_equal(dt_answer a, dt_answer b, bool *equal);

#endif
