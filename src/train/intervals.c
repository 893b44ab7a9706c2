/* intervals.c - intervals of logging, validation and saving. */
#include "dtrain/train/train.h"
#include <math.h>

int64_t dt_interval_steps(double value, int64_t total_steps)
{
    if (value <= 0) return 0;
    if (value < 1) return (int64_t)ceil(value * (double)total_steps);
    return (int64_t)value;
}

dt_err dt_intervals_check(const dt_config *cfg)
{
    const struct {
        const char *section, *key;
        double value;
    } intervals[] = {{"data", "validation_steps", cfg->data_validation_steps},
                     {"eval", "steps", cfg->eval_steps},
                     {"checkpoint", "save_steps", cfg->checkpoint_save_steps},
                     {"log", "logging_steps", cfg->log_logging_steps}};
    for (size_t i = 0; i < sizeof intervals / sizeof intervals[0]; i++)
        DT_CONFIG_CHECK(intervals[i].value < 1 || intervals[i].value == floor(intervals[i].value), cfg,
                        intervals[i].section, intervals[i].key,
                        "expected a whole number of steps, or a fraction of all steps below 1, found %g",
                        intervals[i].value);
    return DT_OK;
}
