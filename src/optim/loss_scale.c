/* loss_scale.c - the loss scale of fp16 (docs/algorithms.md 9.3). Steps are counted from the last overflow. The length
 * of an overflow-free window therefore does not depend on its start, or on a resume within it. */
#include "dtrain/optim/optim.h"
#include <math.h>

dt_err dt_loss_scale_make(dt_loss_scale *s, const dt_config *cfg)
{
    const double initial = exp2((double)cfg->precision_initial_scale_power);
    *s = (dt_loss_scale){.scale = 1, .last = -1};
    if (dt_config_precision(cfg) != DT_F16) return DT_OK;
    s->scaled = true;
    s->scale = cfg->precision_loss_scale;
    if (s->scale > 0) return DT_OK;
    DT_CONFIG_CHECK(initial >= cfg->precision_min_loss_scale, cfg, "precision", "min_loss_scale",
                    "%g is above the initial scale, 2^initial_scale_power = %g", cfg->precision_min_loss_scale,
                    initial);
    s->dynamic = true;
    s->scale = initial, s->least = cfg->precision_min_loss_scale;
    s->window = cfg->precision_loss_scale_window;
    s->hysteresis = s->overflows_left = cfg->precision_hysteresis;
    s->consecutive = cfg->precision_consecutive_hysteresis;
    return DT_OK;
}

/* The first overflows after a window are tolerated; each further one halves the scale. */
static bool shrink(dt_loss_scale *s)
{
    s->last = s->iter;
    if (s->overflows_left > 1) {
        s->overflows_left--;
        return true;
    }
    if (s->scale <= s->least) return false;
    s->scale = fmax(s->scale / 2, s->least);
    return true;
}

static void grow(dt_loss_scale *s)
{
    const int64_t n_clean = s->iter - s->last - 1; /* before this step */
    const bool window_ends = n_clean > 0 && n_clean % s->window == 0;
    if (window_ends) s->scale *= 2;
    if (window_ends || s->consecutive) s->overflows_left = s->hysteresis;
}

bool dt_loss_scale_next(dt_loss_scale *s, bool overflow)
{
    bool fits = true;
    if (!s->dynamic) return true;
    if (overflow)
        fits = shrink(s);
    else
        grow(s);
    s->iter++;
    return fits;
}

void dt_loss_scale_resume(dt_loss_scale *s, const dt_loss_scale *saved)
{
    if (!s->dynamic || saved->overflows_left < 1) return;
    s->scale = fmax(saved->scale, s->least);
    s->iter = saved->iter, s->last = saved->last;
    if (saved->overflows_left < s->overflows_left) s->overflows_left = saved->overflows_left;
}
