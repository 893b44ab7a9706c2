/* forms.h - operations in their usual form, for tests and benchmarks: arrays without gaps, usual constants. */
#ifndef DTRAIN_TESTS_FORMS_H
#define DTRAIN_TESTS_FORMS_H

#include "dtrain/device/device.h"

/* The constants of GPT-3, with a rate of lr, at a step whose bias corrections are fix1 and fix2. */
static inline dt_adamw usual_adamw(float lr, float fix1, float fix2)
{
    return (dt_adamw){.lr = lr,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .fix1 = fix1,
                      .fix2 = fix2,
                      .grad_scale = 1};
}

#endif
