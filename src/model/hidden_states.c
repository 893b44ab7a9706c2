/* hidden_states.c - the last block's output for each token, after the final norm: for text embeddings. */
#include "head.h"
#include <string.h>

/* Convert 16-bit values to float in place. They are stored at the end of the float buffer, so none is overwritten
 * before it is read. */
static void widen(float *x, dt_dtype dt, int64_t n)
{
    const char *from = (const char *)x + 2 * n;
    for (int64_t i = 0; i < n && dt != DT_F32; i++) {
        uint16_t narrow;
        memcpy(&narrow, from + 2 * i, sizeof narrow);
        x[i] = dt == DT_F16 ? dt_f16_to_float(narrow) : dt_bf16_to_float(narrow);
    }
}

dt_err dt_model_hidden_states(dt_model *m, const dt_batch *b, float *hidden)
{
    dt_param_view w;
    struct head_work *k = &m->h;
    DT_EXPECT(m->have_hidden && dt_model_in_use(m) && b->n_tok == m->n_tok);
    DT_EXPECT(m->n_labels == 0);
    dt_phase_enter(m->phase, "head", m->units[m->head_unit].name);
    DT_TRY(dt_params_acquire(m, m->head_unit, &w));
    for (int64_t first = 0; first < m->n_tok; first += k->n_rows) {
        const int64_t n = dt_min_i64(k->n_rows, m->n_tok - first), elems = n * m->C;
        const char *x = (const char *)m->hidden + (size_t)(first * m->C) * m->elem;
        float *out = hidden + first * m->C;
        DT_TRY(dt_norm_forward(m, &m->final_norm, &w, x, k->y, k->stats, n));
        DT_TRY(m->ops->copy(m->dev, (char *)out + (size_t)elems * (sizeof *out - m->elem), k->y,
                            (size_t)elems * m->elem, m->stream));
        DT_TRY(dt_model_sync(m));
        widen(out, m->opt.dtype, elems);
    }
    return dt_params_release(m, m->head_unit);
}
