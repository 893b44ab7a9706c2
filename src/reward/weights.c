/* weights.c - combines the rewards of a completion into one value. */
#include "dtrain/reward/reward.h"
#include <math.h>
#include <stdlib.h>

static dt_err parse(const dt_config *cfg, const char *section, char *const *words, int n_words, int n, const char *of,
                    double *weight)
{
    static const char key[] = "reward_weights";
    DT_CONFIG_CHECK(n_words == n, cfg, section, key, "expected a weight for each of %d %s, found %d", n, of, n_words);
    for (int k = 0; k < n; k++) {
        char *end;
        weight[k] = strtod(words[k], &end);
        DT_CONFIG_CHECK(!*end && end != words[k] && fabs(weight[k]) <= 1e6, cfg, section, key,
                        "expected a number from -1e6 to 1e6, found %s", words[k]);
    }
    return DT_OK;
}

dt_err dt_reward_weights(const dt_config *cfg, const char *section, const char *text, int n, const char *of,
                         double *weight)
{
    char **words = NULL;
    int n_words = 0;
    for (int k = 0; k < n; k++) weight[k] = 1;
    DT_TRY(dt_config_split(text, &words, &n_words));
    const dt_err err = n_words ? parse(cfg, section, words, n_words, n, of, weight) : DT_OK;
    dt_list_free(words, n_words);
    return err;
}

double dt_reward_total(int n, const double *weight, const double *reward)
{
    double sum = 0;
    bool any = false;
    for (int k = 0; k < n; k++) {
        if (isnan(reward[k])) continue;
        sum += (weight ? weight[k] : 1) * reward[k];
        any = true;
    }
    return any ? sum : (double)NAN;
}
