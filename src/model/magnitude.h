/* magnitude.h - adapted layers with magnitudes (magnitude.c). x has contiguous rows. */
#ifndef DT_MODEL_MAGNITUDE_H
#define DT_MODEL_MAGNITUDE_H

#include "model_private.h"

/** y, W x + s B A x, becomes the layer's output: times the factors of the magnitudes, plus the bias. */
dt_err dt_magnitude_forward(const dt_model *m, const struct linear *l, const dt_param_view *w, void *y, int64_t y_ld,
                            struct low_rows rows);
/** rows.work.y = the gradient of what dt_magnitude_forward was given, and gradients of magnitudes into g, from dy. */
dt_err dt_magnitude_backward(const dt_model *m, const struct linear *l, const dt_param_view *w, const dt_grad_view *g,
                             const void *x, const void *dy, int64_t dy_ld, struct low_rows rows, void *low);
/** The storage format of the layer's matrix. */
dt_scaled dt_linear_scales(const struct linear *l, const dt_param_view *w);
/** y = W x, and y += s B A x, without bias and magnitudes, in the type of activations. */
dt_err dt_linear_product(const dt_model *m, const struct linear *l, const dt_param_view *w, const void *x, void *y,
                         struct low_rows rows, void *low);
/** The part of the work space of adapters for magnitudes of up to `widest` outputs; 0: none. */
void dt_low_work_place(const dt_model *m, struct arena *a, int64_t n_rows, int64_t widest, struct low_work *work);

#endif
