/* decode_packed.c - matrices of codes with scales, and transposed ones (dt_packed), decoded when they are read.
 *
 * MXFP4 (Open Compute Project, "OCP Microscaling Formats", 2023): the published weights of gpt-oss's experts. 32
 * consecutive columns have one scale, a power of 2 stored as its exponent + 127, and a code of 4 bits each, the first
 * in the low half of a byte. They are decoded to bf16, which represents the values exactly.
 *
 * FP8 (F8_E4M3; Micikevicius et al., arXiv:2209.05433): a code has a sign, 4 bits of exponent with bias 7 and 3 bits of
 * mantissa; two codes are NaN, none is Inf. A value is code times scale, rounded to fp32.
 *
 * Both have the bits of transformers' dequantize.
 *
 * bitsandbytes: nf4 (nf4.h), with double quantisation or without; fp4, with other levels; and LLM.int8 (Dettmers et
 * al., arXiv:2208.07339), where a scale is max |w| of a row and a value is code times scale times 1/127. Each product
 * and sum is rounded to fp32, and values of 4 bits to the type in the file's quant_state: the bits of bitsandbytes.
 *
 * A tensor may be the transpose of the file's matrix: its consecutive
 * elements are then far apart in the file. All codes and scales of such a matrix are therefore read at once, and kept
 * until other ones are read. */
#include "dtrain/device/nf4.h"
#include "load.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MXFP4_COLUMNS = 32 }; /* of a block */
enum { TILE = 32, TILE_COLUMNS = 256, TILE_NBYTES = TILE * TILE_COLUMNS * sizeof(float) };

struct load_matrix {
    int file;
    int64_t offset;   /* of the codes' tensor in the file; -1: nothing is read */
    int64_t first, n; /* elements of that tensor */
    int64_t first_scale;
    dt_st_type type; /* of decoded values */
    size_t room;     /* bytes of `bytes` */
    uint16_t mxfp4[256][16];
    float fp8[256], int8[256];
    char tile[TILE_NBYTES];
    const float *scales; /* the pointers point into bytes */
    const uint8_t *codes;
    const uint8_t *exponents;
    /* scales; with double quantisation scales of groups and the map; then scales in the file's type, then codes, whose
     * number may be odd */
    float bytes[];
};

/* Decode n elements; x: index of the first in the file's tensor. */
typedef void decode_fn(const struct load_matrix *m, const dt_packed *p, int64_t x, int64_t n, void *out);

/* Index in the tensor of scales of the row of scales that belongs to a row of codes. */
static int64_t scales_row(const dt_packed *p, int64_t row)
{
    return row / p->n_rows * dt_ceil_div(p->n_rows, p->block_rows) + row % p->n_rows / p->block_rows;
}

static int64_t scales_cols(const dt_packed *p) { return dt_ceil_div(p->n_cols, p->block_cols); }

/* The scales of elements first .. first+n-1, of whole rows of scales: returns how many, the first is *begin. */
static int64_t scales_of(const dt_packed *p, int64_t first, int64_t n, int64_t *begin)
{
    const int64_t last = first + n - 1;
    const bool flat = p->block_rows == 0;
    *begin = flat ? first / p->block_cols : scales_row(p, first / p->n_cols) * scales_cols(p);
    return (flat ? last / p->block_cols + 1 : (scales_row(p, last / p->n_cols) + 1) * scales_cols(p)) - *begin;
}

static void decode_plain(const struct load_matrix *m, const dt_packed *p, int64_t x, int64_t n, void *out)
{
    const size_t size = (size_t)p->bits / 8;
    memcpy(out, m->codes + (size_t)(x - m->first) * size, (size_t)n * size);
}

static void decode_mxfp4(const struct load_matrix *m, const dt_packed *p, int64_t x, int64_t n, void *out)
{
    uint16_t *const to = out;
    const int64_t first_byte = m->first / 2;
    (void)p;
    for (int64_t i = x; i < x + n; i++) {
        const uint8_t exponent = m->exponents[i / MXFP4_COLUMNS - m->first_scale];
        to[i - x] = m->mxfp4[exponent][m->codes[i / 2 - first_byte] >> 4 * (i % 2) & 15];
    }
}

/* Codes of 8 bits: values[code] * scale * factor. */
static void decode_bytes(const struct load_matrix *m, const dt_packed *p, int64_t x, int64_t n, void *out)
{
    const float *values = p->form == DT_PACKED_FP8 ? m->fp8 : m->int8,
                factor = p->form == DT_PACKED_FP8 ? 1 : 1.0f / 127;
    float *to = out;
    for (int64_t end = x + n, stop; x < end; x = stop) {
        const int64_t row = x / p->n_cols, col = x % p->n_cols;
        const float *scales = m->scales + scales_row(p, row) * scales_cols(p) - m->first_scale,
                    scale = scales[col / p->block_cols];
        stop = dt_min_i64(x + p->block_cols - col % p->block_cols, dt_min_i64(x + p->n_cols - col, end));
        for (int64_t i = x; i < stop; i++) *to++ = values[m->codes[i - m->first]] * scale * factor;
    }
}

/* Codes of 4 bits, the first in the high half of a byte. */
static void decode_4bit(const struct load_matrix *m, const dt_packed *p, int64_t x, int64_t n, void *out)
{
    static const float LEVELS[2][16] = {{DT_NF4_LEVELS}, {DT_FP4_LEVELS}};
    const float *levels = LEVELS[p->form == DT_PACKED_FP4];
    const int64_t first_byte = m->first / 2;
    float values[TILE_COLUMNS];
    char *to = out;
    for (int64_t end = x + n, some; x < end; x += some, to += (size_t)some * dt_st_type_size(m->type)) {
        const float scale = m->scales[x / p->block_cols - m->first_scale];
        some = dt_min_i64(TILE_COLUMNS, dt_min_i64(p->block_cols - x % p->block_cols, end - x));
        for (int64_t i = x; i < x + some; i++) {
            const uint8_t both = m->codes[i / 2 - first_byte];
            values[i - x] = levels[i % 2 ? both & 15 : both >> 4] * scale;
        }
        dt_st_convert(values, DT_ST_F32, to, m->type, some);
    }
}

static decode_fn *const DECODE[] = {
    [DT_PACKED_PLAIN] = decode_plain, [DT_PACKED_MXFP4] = decode_mxfp4, [DT_PACKED_FP8] = decode_bytes,
    [DT_PACKED_INT8] = decode_bytes,  [DT_PACKED_NF4] = decode_4bit,    [DT_PACKED_FP4] = decode_4bit};

static void fill_tables(struct load_matrix *m)
{
    static const float FP4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int s = 0; s < 256; s++)
        for (int c = 0; c < 16; c++)
            m->mxfp4[s][c] = dt_bf16_from_float(copysignf(FP4[c % 8], c < 8 ? 1 : -1) * ldexpf(1, s - 127));
    for (int c = 0; c < 256; c++) {
        const int exponent = c >> 3 & 15, mantissa = c & 7;
        const float size = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
        m->fp8[c] = copysignf((c & 127) == 127 ? NAN : size, c < 128 ? 1 : -1);
        m->int8[c] = (float)(c < 128 ? c : c - 256);
    }
}

static dt_err make_room(load_job *j, size_t nbytes)
{
    if (j->matrix && j->matrix->room >= nbytes) return DT_OK;
    free(j->matrix);
    j->matrix = malloc(sizeof *j->matrix + nbytes);
    DT_CHECK(j->matrix, DT_ERR_MEMORY, "out of memory for codes and scales of %zu bytes", nbytes);
    j->matrix->room = nbytes;
    fill_tables(j->matrix);
    return DT_OK;
}

/* Read bytes of a file of the map. */
static dt_err read_bytes(load_job *j, int file, int64_t offset, void *out, size_t nbytes)
{
    DT_TRY(load_open(j, file));
    return dt_read_at(j->fd, j->files[file], offset, out, nbytes);
}

/* Number of groups of scales begin .. begin+n-1. */
static int64_t n_groups(const dt_packed *p, int64_t begin, int64_t n)
{
    return p->group > 0 && n > 0 ? (begin + n - 1) / p->group + 1 - begin / p->group : 0;
}

/* Scales begin .. begin+n-1 from their codes, with the scales of their groups and the map, for which `groups` has
 * room. */
static dt_err decode_scales(load_job *j, const dt_packed *p, int64_t begin, int64_t n, const uint8_t *codes,
                            float *groups, float *scales)
{
    const int64_t first = begin / p->group, n_read = n_groups(p, begin, n);
    float *map = groups + n_read;
    DT_TRY(read_bytes(j, p->group_file, p->group_scales + first * (int64_t)sizeof *groups, groups,
                      (size_t)n_read * sizeof *groups));
    DT_TRY(read_bytes(j, p->map_file, p->map, map, DT_PACKED_MAP * sizeof *map));
    for (int64_t i = 0; i < n; i++) scales[i] = map[codes[i]] * groups[(begin + i) / p->group - first] + p->mean;
    return DT_OK;
}

/* Read the codes of elements first .. first+n-1 of the file's tensor, and the scales of their rows, into j->matrix. */
static dt_err read_codes(load_job *j, const dt_stored_location *at, int64_t first, int64_t n)
{
    const dt_packed *p = &at->packed;
    const dt_st_type type = (dt_st_type)p->scales_type;
    int64_t begin = 0;
    const int64_t n_scales = p->form == DT_PACKED_PLAIN ? 0 : scales_of(p, first, n, &begin),
                  first_byte = first * p->bits / 8, groups = n_groups(p, begin, n_scales);
    const size_t n_codes = (size_t)(dt_ceil_div((first + n) * p->bits, 8) - first_byte), size = dt_st_type_size(type),
                 n_values = p->form == DT_PACKED_MXFP4 ? 0 : (size_t)n_scales,
                 n_floats = n_values + (groups > 0 ? (size_t)groups + DT_PACKED_MAP : 0);
    if (j->matrix && j->matrix->file == at->file && j->matrix->offset == at->offset && j->matrix->first == first &&
        j->matrix->n == n)
        return DT_OK;
    DT_TRY(make_room(j, n_floats * sizeof(float) + n_codes + (size_t)n_scales * size));
    struct load_matrix *m = j->matrix;
    uint8_t *scales = (uint8_t *)(m->bytes + n_floats), *codes = scales + (size_t)n_scales * size;
    m->offset = -1;
    DT_TRY(read_bytes(j, at->file, at->offset + first_byte, codes, n_codes));
    if (n_scales > 0)
        DT_TRY(read_bytes(j, p->scales_file, p->scales + begin * (int64_t)size, scales, (size_t)n_scales * size));
    if (groups > 0)
        DT_TRY(decode_scales(j, p, begin, n_scales, scales, m->bytes + n_values, m->bytes));
    else if (n_values > 0)
        dt_st_convert(scales, type, m->bytes, DT_ST_F32, n_scales);
    m->scales = m->bytes, m->codes = codes, m->exponents = scales, m->type = (dt_st_type)at->type;
    m->file = at->file, m->offset = at->offset, m->first = first, m->n = n, m->first_scale = begin;
    return DT_OK;
}

/* Elements first .. first+n-1 of the pairs of nf4.h: the scale of a group of blocks, and the mean. */
static dt_err decode_pairs(load_job *j, const dt_stored_location *at, int64_t first, int64_t n, float *out)
{
    const dt_packed *p = &at->packed;
    const int shift = dt_nf4_shift(p->finer);
    const int64_t begin = (p->first + (first / 2 << shift)) / p->group,
                  end = (p->first + ((first + n - 1) / 2 << shift)) / p->group + 1;
    DT_TRY(make_room(j, (size_t)(end - begin) * sizeof(float)));
    j->matrix->offset = -1;
    DT_TRY(read_bytes(j, at->file, at->offset + begin * (int64_t)sizeof(float), j->matrix->bytes,
                      (size_t)(end - begin) * sizeof(float)));
    for (int64_t i = first; i < first + n; i++)
        out[i - first] = i % 2 ? p->mean : j->matrix->bytes[(p->first + (i / 2 << shift)) / p->group - begin];
    return DT_OK;
}

/* Columns of a tile [n_rows, n_cols] to rows of out [n], `stride` elements apart: the first begins at out[at]. Elements
 * outside of out are left out. */
static inline void copy_columns(const char *tile, int64_t n_rows, int64_t n_cols, int64_t at, int64_t stride, int64_t n,
                                size_t size, char *out)
{
    for (int64_t c = 0; c < n_cols; c++, at += stride)
        for (int64_t r = dt_max_i64(0, -at); r < dt_min_i64(n_rows, n - at); r++)
            memcpy(out + (size_t)(at + r) * size, tile + (size_t)(r * n_cols + c) * size, size);
}

/* Elements first .. first+n-1 of the transpose [columns, n_rows] of columns of a matrix; the first of these begins with
 * element `from` of the file's tensor. Tiles are decoded by the file's rows. */
static void decode_turned(struct load_matrix *m, const dt_packed *p, int64_t from, int64_t n_rows, int64_t first,
                          int64_t n, size_t size, char *out)
{
    const int64_t end = (first + n - 1) / n_rows + 1; /* columns */
    for (int64_t col = first / n_rows, n_cols; col < end; col += n_cols) {
        n_cols = dt_min_i64(TILE_COLUMNS, end - col);
        for (int64_t row = 0, some; row < n_rows; row += some) {
            const int64_t at = col * n_rows + row - first;
            some = dt_min_i64(TILE, n_rows - row);
            for (int64_t r = 0; r < some; r++)
                DECODE[p->form](m, p, from + (row + r) * p->n_cols + col, n_cols,
                                m->tile + (size_t)(r * n_cols) * size);
            if (size == sizeof(uint16_t))
                copy_columns(m->tile, some, n_cols, at, n_rows, n, sizeof(uint16_t), out);
            else
                copy_columns(m->tile, some, n_cols, at, n_rows, n, sizeof(float), out);
        }
    }
}

dt_err decode_packed(load_job *j, const dt_stored_slot *s, const dt_stored_location *at, int64_t first, int64_t n,
                     void *out)
{
    const dt_packed *p = &at->packed;
    if (p->form == DT_PACKED_PAIRS) return decode_pairs(j, at, first, n, out);
    const int64_t from = p->first + (p->turned ? 0 : first), /* turned: of all columns of the matrix, or some */
        span = (p->n_rows - 1) * p->n_cols + s->tensor->n_elems / p->n_rows;
    DT_TRY(read_codes(j, at, from, p->turned ? span : n));
    if (p->turned)
        decode_turned(j->matrix, p, from, p->n_rows, first, n, dt_st_type_size((dt_st_type)at->type), out);
    else
        DECODE[p->form](j->matrix, p, from, n, out);
    return DT_OK;
}
