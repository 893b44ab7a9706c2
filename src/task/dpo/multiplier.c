/* multiplier.c - updates the logarithm of a Lagrange multiplier. A step is proportional to the multiplier, which must
 * therefore not come near 0: min prevents that. log_value may pass min and max, up to MIN_LAMBDA and MAX_LAMBDA. When
 * the violation changes its sign, log_value first returns to the bound (anti-windup). */
#include "multiplier.h"
#include <math.h>

#define MIN_LAMBDA 1e-8
#define MAX_LAMBDA 20.0
#define KEPT 0.95 /* of the moving average of costs */

dt_err dt_multiplier_check(const dt_config *cfg, const char *section, double min, double max, double init)
{
    DT_CONFIG_CHECK(min <= max, cfg, section, "lambda_min", "expected at most lambda_max = %g, found %g", max, min);
    DT_CONFIG_CHECK(init >= min && init <= max, cfg, section, "lambda_init",
                    "expected a number from lambda_min = %g to lambda_max = %g, found %g", min, max, init);
    return DT_OK;
}

double dt_multiplier_value(const dt_multiplier *m) { return fmin(fmax(exp(m->log_value), m->min), m->max); }

void dt_multiplier_step(dt_multiplier *m, double level)
{
    const double value = dt_multiplier_value(m), violation = level - m->limit, free = exp(m->log_value);
    if ((free > m->max && violation < 0) || (free < m->min && violation > 0)) m->log_value = log(value);
    m->log_value = fmin(fmax(m->log_value + m->lr * value * violation, log(MIN_LAMBDA)), log(MAX_LAMBDA));
    m->value = dt_multiplier_value(m);
}

void dt_multiplier_update(dt_multiplier *m, double cost)
{
    m->ema = m->n_costs++ == 0 ? cost : KEPT * m->ema + (1 - KEPT) * cost;
    dt_multiplier_step(m, m->ema);
}

void dt_multiplier_store(dt_multiplier *m, dt_task *t)
{
    m->value = dt_multiplier_value(m);
    dt_task_state(t, "lambda", DT_NAMED_F64, 1, &m->value, true);
    dt_task_state(t, "log_lambda", DT_NAMED_F64, 1, &m->log_value, true);
    dt_task_state(t, "cost_ema", DT_NAMED_F64, 1, &m->ema, true);
    dt_task_state(t, "lambda_updates", DT_NAMED_I64, 1, &m->n_costs, true);
}
