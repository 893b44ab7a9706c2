/* config_fixture.h - parsing of configurations in tests. */
#ifndef CONFIG_FIXTURE_H
#define CONFIG_FIXTURE_H

#include "cases.h"
#include "dtrain/config/config.h"
#include "dtrain/model/model.h"

static inline dt_err parse(dt_config *cfg, const char *text, const char *override)
{
    dt_error_clear();
    return dt_config_parse(cfg, "input.ini", text, override ? 1 : 0, &override);
}

static inline void fill_line(char *line, size_t n)
{
    memcpy(line, "train = ", 8);
    for (size_t i = 8; i < n; i++) line[i] = i % 2 ? ',' : 'x';
    line[n] = '\0';
}

/* A config.json. */
static inline dt_model_config parsed(const char *json)
{
    dt_model_config mc;
    dt_error_clear();
    if (dt_model_config_parse(&mc, "config.json", quoted(json)) != DT_OK) fail_msg("%s", dt_error_message());
    return mc;
}

/* The number of parameters of a model. */
static inline int64_t n_parameters(const char *json)
{
    dt_model_config mc = parsed(json);
    dt_unit *units;
    int n_units;
    int64_t n = 0;
    assert_int_equal(dt_model_make_units(&mc, &units, &n_units), DT_OK);
    for (int u = 0; u < n_units; u++) n += units[u].n_param;
    dt_model_free_units(units, n_units);
    dt_model_config_free(&mc);
    return n;
}

static inline void count_difference(void *self, const char *name, const char *before, const char *now)
{
    assert_true(*name && strcmp(before, now) != 0);
    ++*(int *)self;
}

static inline int n_differences(const dt_model_config *a, const dt_model_config *b)
{
    int n = 0;
    dt_model_config_compare(a, b, count_difference, &n);
    return n;
}

#endif
