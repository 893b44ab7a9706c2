/* cpu_patches.c - images as rows of normalised patches. One thread computes a row. */
#include "cpu.h"
#include <math.h>
#include <string.h>

/* The normalised values of each colour's 256 levels, in the type of out. A lookup is faster than computing a value
 * again. */
typedef struct patch_values {
    char of[3][256 * sizeof(float)];
} patch_values;

static void make_values(const dt_patches *p, patch_values *values)
{
    for (int i = 0; i < 3 * 256; i++) {
        const int c = i / 256, v = i % 256;
        /* cppcheck-suppress uninitvar ; dt_set_element fills it */
        dt_set_element(values->of[c], p->dt, v, fmaf((float)v, p->scale[c], p->shift[c]));
    }
}

/* The patch whose upper left pixel is at corner. nbytes: size of an element, known to the compiler. */
static inline void patch_row(const dt_patches *p, const patch_values *values, const uint8_t *corner, char *row,
                             size_t nbytes)
{
    for (int c = 0; c < 3; c++)
        for (int64_t y = 0; y < p->patch; y++) {
            const uint8_t *line = corner + 3 * p->size * y + c;
            for (int64_t x = 0; x < p->patch; x++, row += nbytes)
                memcpy(row, values->of[c] + nbytes * line[3 * x], nbytes);
        }
}

CPU_OP(patches)
{
    const dt_patches *p = &x->p;
    const int64_t side = p->size / p->patch, n_rows = dt_patches_rows(p), width = dt_patches_width(p);
    patch_values values;
    make_values(p, &values);
    CPU_PARALLEL_FOR (cpu, r, p->n_images * n_rows) {
        const int64_t image = r / n_rows, at = r % n_rows - p->lead;
        char *row = cpu_at_w(x->out, p->dt, width * r);
        if (at < 0) {
            memset(row, 0, (size_t)width * dt_dtype_size(p->dt));
            continue;
        }
        const uint8_t *corner =
            x->pixels + 3 * ((image * p->size + at / side * p->patch) * p->size + at % side * p->patch);
        if (p->dt == DT_F32)
            patch_row(p, &values, corner, row, sizeof(float));
        else
            patch_row(p, &values, corner, row, sizeof(uint16_t));
    }
    return DT_OK;
}
