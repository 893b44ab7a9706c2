/* batch_images.c - see batch_images.h. */
#include "dtrain/image/batch_images.h"

static size_t lay_out(void *self, int32_t max_seq, void *block)
{
    dt_batch_images *i = self;
    size_t used = 0;
    i->pixels = dt_carve(block, &used, i->max, i->image_nbytes);
    i->grid = dt_carve(block, &used, i->max, sizeof *i->grid);
    i->first = dt_carve(block, &used, max_seq, sizeof *i->first);
    i->count = dt_carve(block, &used, max_seq, sizeof *i->count);
    return used;
}

static const dt_extension_form form = {"images", sizeof(dt_batch_images), lay_out};

dt_err dt_batch_add_images(dt_batch *b, int32_t max, size_t image_nbytes, dt_ledger *ledger)
{
    size_t nbytes;
    const dt_batch_images sizes = {.max = max, .image_nbytes = image_nbytes};
    if (max == 0) return DT_OK;
    DT_EXPECT(max > 0 && image_nbytes > 0 && !__builtin_mul_overflow((size_t)max, image_nbytes, &nbytes));
    return dt_batch_extend(b, &form, &sizes, ledger);
}

size_t dt_batch_images_nbytes(int32_t max, size_t image_nbytes, int32_t max_seq)
{
    return max > 0 ? dt_extension_nbytes(&form, &(dt_batch_images){.max = max, .image_nbytes = image_nbytes}, max_seq)
                   : 0;
}

dt_batch_images *dt_images_of(const dt_batch *b)
{
    dt_batch_images *i = dt_batch_extension(b, &form);
    return i && !i->absent ? i : NULL;
}

int32_t dt_n_images_of(const dt_batch *b)
{
    const dt_batch_images *i = dt_images_of(b);
    int32_t n = 0;
    for (int32_t k = 0; i && k < i->n; k++) n += i->grid[k] > 0;
    return n > 0 || !i ? n : i->n;
}

void dt_images_clear(dt_batch *b)
{
    dt_batch_images *i = dt_images_of(b);
    if (i) i->n = 0;
}
