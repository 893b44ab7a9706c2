/* load_packed.c - matrices in MXFP4 (Open Compute Project, "OCP Microscaling Formats", 2023): the published weights of
 * gpt-oss's experts. 32 consecutive inputs of an output have one scale, a power of 2 stored as its exponent + 127, and
 * a code of 4 bits each, the first in the low half of a byte.
 *
 * Values are decoded to bf16, which represents them exactly, with the bits of transformers' dequantize. */
#include "load.h"
#include <math.h>
#include <stdlib.h>

enum { BLOCK = 32 };

/* Elements first .. first+n-1 of a matrix [in, out] or [out, in]. codes, scales: of outputs starting at `from`. */
static void decode(const dt_stored_location *p, const uint8_t *codes, const uint8_t *scales, int64_t from,
                   int64_t n_out, int64_t first, int64_t n, uint16_t *out)
{
    static const float VALUES[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const int64_t n_in = p->packed_in, n_cols = p->turned ? n_out : n_in;
    int64_t row = first / n_cols, col = first % n_cols;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = p->turned ? (col - from) * n_in + row : (row - from) * n_in + col;
        const int code = codes[at / 2] >> 4 * (at % 2) & 15;
        out[i] = dt_bf16_from_float(VALUES[code] * ldexpf(1, scales[at / BLOCK] - 127));
        if (++col == n_cols) col = 0, row++;
    }
}

static dt_err read_at(load_job *j, int file, int64_t offset, void *to, int64_t nbytes)
{
    DT_TRY(load_open(j, file));
    return dt_read_at(j->fd, j->files[file], offset, to, (size_t)nbytes);
}

/* Of a matrix [in, out], elements of any range are of all outputs. */
dt_err load_packed(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                   uint16_t *out)
{
    const int64_t n_in = p->packed_in, n_out = s->tensor->n_elems / n_in, from = p->turned ? 0 : first / n_in,
                  end = p->turned ? n_out : (first + n + n_in - 1) / n_in, n_packed = (end - from) * n_in;
    uint8_t *codes = malloc((size_t)(n_packed / 2 + n_packed / BLOCK)), *scales = codes + n_packed / 2;
    DT_CHECK(codes, DT_ERR_MEMORY, "%s: out of memory for tensor `%s`", j->files[p->file], s->tensor->name);
    dt_err err = read_at(j, p->file, p->offset + from * n_in / 2, codes, n_packed / 2);
    if (err == DT_OK) err = read_at(j, p->scales_file, p->scales + from * n_in / BLOCK, scales, n_packed / BLOCK);
    if (err == DT_OK) decode(p, codes, scales, from, n_out, first, n, out);
    free(codes);
    return err;
}
