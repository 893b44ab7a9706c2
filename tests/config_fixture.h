/* config_fixture.h - parsing of configurations in tests. */
#ifndef CONFIG_FIXTURE_H
#define CONFIG_FIXTURE_H

#include "dtrain/config/config.h"
#include <string.h>

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

#endif
