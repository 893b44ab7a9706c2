/* load_packed.c - matrices in MXFP4 (Open Compute Project, "OCP Microscaling Formats", 2023): the published weights of
 * gpt-oss's experts. 32 consecutive inputs of an output have one scale, a power of 2 stored as its exponent + 127, and a
 * code of 4 bits each, the first in the low half of a byte.
 *
 * Values are decoded to bf16, which represents them exactly, with the bits of transformers' dequantize. */
#include "load.h"
#include <math.h>

enum { BLOCK = 32, AT_ONCE = 1024 /* inputs */ };

/* out[k * stride] = inputs first .. first+n-1 of an output, n <= AT_ONCE. */
static dt_err decode(load_job *j, const dt_stored_location *p, int64_t output, int64_t first, int64_t n, uint16_t *out,
                     int64_t stride)
{
    static const float VALUES[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const int64_t byte = first / 2, block = first / BLOCK, at = output * p->packed_in;
    uint8_t codes[AT_ONCE / 2 + 1], scales[AT_ONCE / BLOCK + 1];
    DT_TRY(load_open(j, p->file));
    DT_TRY(dt_read_at(j->fd, j->files[p->file], p->offset + at / 2 + byte, codes,
                      (size_t)((first + n - 1) / 2 - byte + 1)));
    DT_TRY(load_open(j, p->scales_file));
    DT_TRY(dt_read_at(j->fd, j->files[p->scales_file], p->scales + at / BLOCK + block, scales,
                      (size_t)((first + n - 1) / BLOCK - block + 1)));
    for (int64_t i = first; i < first + n; i++) {
        const int code = codes[i / 2 - byte] >> 4 * (i % 2) & 15;
        out[(i - first) * stride] = dt_bf16_from_float(VALUES[code] * ldexpf(1, scales[i / BLOCK - block] - 127));
    }
    return DT_OK;
}

/* Inputs lo .. hi-1 of an output. */
static dt_err decode_all(load_job *j, const dt_stored_location *p, int64_t output, int64_t lo, int64_t hi,
                         uint16_t *out, int64_t stride)
{
    for (int64_t at = lo, n; at < hi; at += n) {
        n = dt_min_i64(AT_ONCE, hi - at);
        DT_TRY(decode(j, p, output, at, n, out + (at - lo) * stride, stride));
    }
    return DT_OK;
}

dt_err load_packed(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                   uint16_t *out)
{
    const int64_t n_in = p->packed_in, n_out = s->tensor->n_elems / n_in, end = first + n;
    for (int64_t o = p->turned ? 0 : first / n_in; o < n_out && (p->turned || o * n_in < end); o++) {
        /* the inputs of output o among the elements, in a tensor [in, out] or [out, in] */
        const int64_t lo = p->turned ? (first - o + n_out - 1) / n_out : dt_max_i64(first - o * n_in, 0),
                      hi = p->turned ? (end - o + n_out - 1) / n_out : dt_min_i64(end - o * n_in, n_in);
        if (lo < hi)
            DT_TRY(decode_all(j, p, o, lo, hi, out + (p->turned ? lo * n_out + o : o * n_in + lo) - first,
                              p->turned ? n_out : 1));
    }
    return DT_OK;
}
