/* block8.c - the dynamic maps. */
#include "dtrain/device/block8.h"
#include "dtrain/device/nf4.h"
#include <string.h>

static const float SIGNED_MAP[256] = {DT_NF4_MAP};

/* Decade i from 10^-7 to 10^-6 up to 0.1 to 1 has 2^(i+1) values: the centres of equal intervals. 0 and 1 are added. */
static void make_positive(float value[256])
{
    double top = 1e-6;
    int k = 0;
    value[k++] = 0;
    for (int i = 0; i < 7; i++, top *= 10)
        for (int j = 0; j < 2 << i; j++) value[k++] = (float)(top * (0.1 + 0.9 * (j + 0.5) / (2 << i)));
    value[k] = 1;
}

void dt_map8_make(dt_map8 *map, bool positive)
{
    if (positive)
        make_positive(map->value);
    else
        memcpy(map->value, SIGNED_MAP, sizeof SIGNED_MAP);
    for (int c = 0; c < 255; c++) map->between[c] = (map->value[c] + map->value[c + 1]) * 0.5f;
}
