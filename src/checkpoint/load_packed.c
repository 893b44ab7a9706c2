/* load_packed.c - matrices in MXFP4 (Open Compute Project, "OCP Microscaling Formats", 2023): the published weights of
 * gpt-oss's experts. 32 consecutive inputs of an output have one scale, a power of 2 stored as its exponent + 127, and
 * a code of 4 bits each, the first in the low half of a byte.
 *
 * Values are decoded to bf16, which represents them exactly, with the bits of transformers' dequantize. A tensor may be
 * the transpose [in, out], of which consecutive elements are far apart in the file. The codes and scales of a whole
 * matrix are therefore read at once, and kept until another matrix is read. */
#include "load.h"
#include <math.h>
#include <stdlib.h>

enum { BLOCK = 32, N_SCALES = 256, N_CODES = 16, TILE = 32 /* outputs: 64 bytes of a row */ };

struct load_matrix {
    int file;
    int64_t offset; /* of its codes in the file; -1: nothing is read */
    size_t nbytes;  /* of bytes */
    uint16_t value[N_SCALES][N_CODES];
    uint8_t bytes[]; /* codes, then scales */
};

static dt_err make_room(load_job *j, size_t nbytes)
{
    static const float VALUES[N_CODES] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    if (j->matrix && j->matrix->nbytes >= nbytes) return DT_OK;
    free(j->matrix);
    j->matrix = malloc(sizeof *j->matrix + nbytes);
    DT_CHECK(j->matrix, DT_ERR_MEMORY, "out of memory for a matrix in MXFP4 of %zu bytes", nbytes);
    j->matrix->nbytes = nbytes;
    for (int s = 0; s < N_SCALES; s++)
        for (int c = 0; c < N_CODES; c++) j->matrix->value[s][c] = dt_bf16_from_float(VALUES[c] * ldexpf(1, s - 127));
    return DT_OK;
}

/* Read the codes and scales of a matrix of n_elems elements into j->matrix. */
static dt_err read_matrix(load_job *j, const dt_stored_location *p, int64_t n_elems)
{
    const size_t n_codes = (size_t)n_elems / 2, n_scales = (size_t)n_elems / BLOCK;
    if (j->matrix && j->matrix->file == p->file && j->matrix->offset == p->offset) return DT_OK;
    DT_TRY(make_room(j, n_codes + n_scales));
    j->matrix->offset = -1;
    DT_TRY(load_open(j, p->file));
    DT_TRY(dt_read_at(j->fd, j->files[p->file], p->offset, j->matrix->bytes, n_codes));
    DT_TRY(load_open(j, p->scales_file));
    DT_TRY(dt_read_at(j->fd, j->files[p->scales_file], p->scales, j->matrix->bytes + n_codes, n_scales));
    j->matrix->file = p->file, j->matrix->offset = p->offset;
    return DT_OK;
}

/* Input i of output o; n_in of them. */
static uint16_t decode(const struct load_matrix *m, const uint8_t *scales, int64_t n_in, int64_t o, int64_t i)
{
    const int64_t at = o * n_in + i;
    return m->value[scales[at / BLOCK]][m->bytes[at / 2] >> 4 * (at % 2) & 15];
}

/* Elements of [in, out] in tiles: their codes are n_in / 2 bytes apart. */
static void decode_turned(const struct load_matrix *m, const uint8_t *scales, int64_t n_in, int64_t n_out,
                          int64_t first, int64_t n, uint16_t *out)
{
    for (int64_t tile = 0; tile < n_out; tile += TILE)
        for (int64_t i = first / n_out; i * n_out < first + n; i++) {
            const int64_t row = i * n_out - first, /* in out */
                lo = dt_max_i64(tile, -row), hi = dt_min_i64(dt_min_i64(tile + TILE, n_out), n - row);
            for (int64_t o = lo; o < hi; o++) out[row + o] = decode(m, scales, n_in, o, i);
        }
}

dt_err load_packed(load_job *j, const dt_stored_slot *s, const dt_stored_location *p, int64_t first, int64_t n,
                   uint16_t *out)
{
    const int64_t n_in = p->packed_in, n_elems = s->tensor->n_elems;
    DT_TRY(read_matrix(j, p, n_elems));
    const uint8_t *scales = j->matrix->bytes + n_elems / 2;
    if (p->turned) {
        decode_turned(j->matrix, scales, n_in, n_elems / n_in, first, n, out);
        return DT_OK;
    }
    for (int64_t x = first; x < first + n; x++) out[x - first] = decode(j->matrix, scales, n_in, x / n_in, x % n_in);
    return DT_OK;
}
