/* product_lt.c */
#include "product.h"
dt_err cuda_library_open(cuda_library **library) { return DT_OK; }
void cuda_library_close(cuda_library *library) {}
dt_err cuda_library_product(cuda_library *library, const dt_matmul *mm, const void *a, const void *b, void *c,
                            dt_stream *s, bool *taken)
{
    *taken = false;
    return DT_OK;
}
