/* test_decode_packed.c - reading a range of a tensor in codes, transposed or in runs: every range has the values of a
 * plain loop, also one that begins or ends within a byte, a block or a run. */
#include "folder.h"
#include "../src/checkpoint/load.h"
#include "dtrain/device/nf4.h"

/* The first half of the file has codes, and scales starting at SCALES_AT: with double quantisation codes of scales,
 * then scales of groups and a map. In the second half, all bits are 1. */
enum { HALF = 1 << 16, SCALES_AT = HALF - 4096, GROUPS_AT = HALF - 2048, MAP_AT = HALF - 1024 };
enum { MAX_ELEMS = 1 << 14, GUARD = 256 };
typedef struct layout {
    dt_packed packed;
    dt_st_type type;
    int64_t run, stride, first, n; /* n: elements of the slot's tensor */
} layout;

static uint8_t byte_at(int64_t i)
{
    const uint8_t b = (uint8_t)(i * 37 + i / 256 * 11);
    return (b & 127) == 127 ? 1 : b; /* no NaN */
}

/* Scales are powers of 2 in BF16, or exponents. */
static uint16_t scale_at(int64_t i) { return dt_bf16_from_float(ldexpf(1, (int)(i * 5 % 7) - 3)); }
static uint8_t exponent_at(int64_t i) { return (uint8_t)(120 + i * 5 % 11); }

static float group_at(int64_t i) { return dt_bf16_to_float(scale_at(i + 3)); }
static float map_at(int64_t i) { return (float)(i * 91 % 256 - 100) / 128; }

static float code_value(uint8_t c)
{
    const int exponent = c / 8 % 16, mantissa = c % 8;
    const float size = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return c < 128 ? size : -size;
}

/* The scale of a block of consecutive elements. */
static float block_scale(const dt_packed *p, int64_t block)
{
    if (p->group == 0) return dt_bf16_to_float(scale_at(block));
    return map_at(byte_at(block)) * group_at(block / p->group) + p->mean;
}

static float value_4bit(const dt_packed *p, int64_t i)
{
    static const float LEVELS[2][16] = {{DT_NF4_LEVELS}, {DT_FP4_LEVELS}};
    return LEVELS[p->form == DT_PACKED_FP4][byte_at(i / 2) >> 4 * (1 - i % 2) & 15] * block_scale(p, i / p->block_cols);
}

/* Element i of the file's tensor. */
static float file_value(const layout *l, int64_t i)
{
    static const float FP4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const dt_packed *p = &l->packed;
    if (p->form == DT_PACKED_PAIRS)
        return i % 2 ? p->mean : group_at((p->first + (i / 2 << dt_nf4_shift(p->finer))) / p->group);
    if (p->form == DT_PACKED_NF4 || p->form == DT_PACKED_FP4) return value_4bit(p, i);
    const int64_t row = i / p->n_cols, col = i % p->n_cols, matrix = row / p->n_rows,
                  cols = (p->n_cols + p->block_cols - 1) / p->block_cols,
                  rows = (p->n_rows + p->block_rows - 1) / p->block_rows,
                  scale = (matrix * rows + row % p->n_rows / p->block_rows) * cols + col / p->block_cols;
    if (p->form == DT_PACKED_FP8) return code_value(byte_at(i)) * dt_bf16_to_float(scale_at(scale));
    if (p->form == DT_PACKED_INT8)
        return (float)(int8_t)byte_at(i) * dt_bf16_to_float(scale_at(scale)) * (float)7.874015718698502e-3;
    if (p->form == DT_PACKED_MXFP4)
        return FP4[byte_at(i / 2) >> 4 * (i % 2) & 15] * ldexpf(1, exponent_at(scale) - 127);
    uint32_t bits = 0;
    const int64_t size = (int64_t)dt_st_type_size(l->type);
    for (int64_t b = size - 1; b >= 0; b--) bits = bits << 8 | byte_at(i * size + b);
    float x;
    dt_st_convert(&bits, l->type, &x, DT_ST_F32, 1);
    return x;
}

/* Element i of the slot's tensor. */
static float value(const layout *l, int64_t i)
{
    const dt_packed *p = &l->packed;
    if (l->run > 0) i = i / l->run * l->stride + i % l->run;
    if (p->turned) i = i % p->n_rows * p->n_cols + i / p->n_rows;
    return file_value(l, i + l->first);
}

static void write_layout(const layout *l)
{
    static char all[2 * HALF];
    memset(all, 0xff, sizeof all);
    for (int64_t i = 0; i < SCALES_AT; i++) all[i] = (char)byte_at(i);
    for (int64_t i = 0; SCALES_AT + 2 * i < HALF; i++) {
        const uint16_t scale = scale_at(i);
        if (l->packed.form >= DT_PACKED_FP8) memcpy(all + SCALES_AT + 2 * i, &scale, sizeof scale);
        if (l->packed.form == DT_PACKED_MXFP4) all[SCALES_AT + i] = (char)exponent_at(i);
    }
    for (int64_t i = 0; l->packed.group > 0 && i < DT_PACKED_MAP; i++) {
        const float group = group_at(i), entry = map_at(i);
        all[SCALES_AT + i] = (char)byte_at(i);
        memcpy(all + GROUPS_AT + 4 * i, &group, sizeof group);
        memcpy(all + MAP_AT + 4 * i, &entry, sizeof entry);
    }
    assert_int_equal(dt_write_file_sync(in_folder("codes"), all, sizeof all), DT_OK);
}

static void check_range(load_job *j, const layout *l, const dt_stored_slot *s, int64_t first, int64_t n)
{
    static uint32_t buffer[MAX_ELEMS];
    char *const all = (char *)buffer, *const out = all + GUARD;
    const size_t size = dt_st_type_size(l->type), nbytes = (size_t)n * size;
    dt_stored_location at = {.packed = l->packed, .type = (int32_t)l->type, .run = l->run, .stride = l->stride},
                       other = {.packed = l->packed, .type = (int32_t)l->type, .offset = HALF};
    if (l->packed.form != DT_PACKED_PAIRS) at.packed.first = l->first;
    at.packed.scales = SCALES_AT, at.packed.group_scales = GROUPS_AT, at.packed.map = MAP_AT;
    if (l->packed.form == DT_PACKED_PAIRS) at.offset = GROUPS_AT;
    other.packed.scales = HALF + SCALES_AT, other.packed.group_scales = HALF + GROUPS_AT,
    other.packed.map = HALF + MAP_AT;
    /* a byte that is not read keeps another value */
    assert_int_equal(load_fetch(j, s, &other, 0, l->n, out), DT_OK);
    memset(all, 0x5a, GUARD + nbytes + GUARD);
    assert_int_equal(load_fetch(j, s, &at, first, n, out), DT_OK);
    for (int i = 0; i < GUARD; i++) assert_true(all[i] == 0x5a && out[nbytes + (size_t)i] == 0x5a);
    for (int64_t i = 0; i < n; i++) {
        float found, expected = value(l, first + i);
        uint32_t rounded;
        dt_st_convert(&expected, DT_ST_F32, &rounded, l->type, 1);
        dt_st_convert(&rounded, l->type, &expected, DT_ST_F32, 1);
        dt_st_convert(out + (size_t)i * size, l->type, &found, DT_ST_F32, 1);
        if (memcmp(&found, &expected, sizeof found) != 0)
            fail_msg("form %d, elements %lld ..+%lld: element %lld is %g, expected %g", l->packed.form,
                     (long long)first, (long long)n, (long long)(first + i), (double)found, (double)expected);
    }
}

static void check_layout(const layout *l)
{
    const char *path = in_folder("codes");
    dt_tensor tensor = {.n_elems = l->n};
    const dt_stored_slot s = {.tensor = &tensor};
    load_job j = {.files = &path, .fd = -1};
    write_layout(l);
    check_range(&j, l, &s, 0, l->n);
    for (int64_t first = 0; first < l->n; first += 1 + l->n / 97 / 2 * 2)
        for (int64_t n = 1; first + n <= l->n; n += 1 + n / 3) check_range(&j, l, &s, first, n);
    close(j.fd);
    free(j.matrix);
}

#define MXFP4(rows, cols, is_turned)                                                                                   \
    {                                                                                                                  \
        .form = DT_PACKED_MXFP4, .bits = 4, .n_rows = (rows), .n_cols = (cols), .block_rows = 1, .block_cols = 32,     \
        .scales_type = DT_ST_U8, .turned = (is_turned)                                                                 \
    }
#define FP8(rows, cols, of_block, cols_of_block, is_turned)                                                            \
    {                                                                                                                  \
        .form = DT_PACKED_FP8, .bits = 8, .n_rows = (rows), .n_cols = (cols), .block_rows = (of_block),                \
        .block_cols = (cols_of_block), .scales_type = DT_ST_BF16, .turned = (is_turned)                                \
    }
#define FOUR_BITS(of_form, rows, cols, block, of_group, is_turned)                                                     \
    {                                                                                                                  \
        .form = (of_form), .bits = 4, .n_rows = (rows), .n_cols = (cols), .block_cols = (block), .group = (of_group),  \
        .mean = 0.375f, .scales_type = (of_group) ? DT_ST_U8 : DT_ST_BF16, .turned = (is_turned)                       \
    }
#define INT8(rows, cols, is_turned)                                                                                    \
    {                                                                                                                  \
        .form = DT_PACKED_INT8, .bits = 8, .n_rows = (rows), .n_cols = (cols), .block_rows = 1, .block_cols = (cols),  \
        .scales_type = DT_ST_BF16, .turned = (is_turned)                                                               \
    }
#define PLAIN(n_bits, rows, cols)                                                                                      \
    {                                                                                                                  \
        .form = DT_PACKED_PLAIN, .bits = (n_bits), .n_rows = (rows), .n_cols = (cols), .block_rows = 1,                \
        .block_cols = 1, .turned = 1                                                                                   \
    }

/* Sizes of matrices are no multiples of blocks; a slot's tensor begins within a block, and at an odd element. */
TEST(every_range_has_the_values_of_a_plain_loop)
{
    static const layout LAYOUTS[] = {
        {MXFP4(3, 64, 0), DT_ST_BF16, 0, 0, 0, 384},
        {MXFP4(3, 64, 0), DT_ST_BF16, 0, 0, 33, 159},
        {MXFP4(35, 288, 1), DT_ST_BF16, 0, 0, 0, 35 * 288},
        {PLAIN(16, 33, 259), DT_ST_BF16, 0, 0, 0, 33 * 259},
        {PLAIN(32, 29, 259), DT_ST_F32, 0, 0, 29 * 259, 29 * 259},
        {FP8(5, 7, 2, 3, 0), DT_ST_F32, 0, 0, 0, 70},
        {FP8(5, 7, 2, 3, 0), DT_ST_F32, 0, 0, 11, 23},
        {FP8(5, 7, 2, 3, 1), DT_ST_F32, 0, 0, 35, 35},
        {FP8(24, 7, 5, 3, 0), DT_ST_F32, 14, 35, 7, 4 * 14},
        {INT8(9, 21, 0), DT_ST_F32, 0, 0, 0, 9 * 21},
        {INT8(40, 261, 1), DT_ST_F32, 0, 0, 0, 40 * 261},
        {FOUR_BITS(DT_PACKED_FP4, 9, 21, 32, 0, 0), DT_ST_F16, 0, 0, 0, 9 * 21},
        {FOUR_BITS(DT_PACKED_NF4, 9, 41, 64, 0, 0), DT_ST_F32, 0, 0, 41, 7 * 41},
        {FOUR_BITS(DT_PACKED_NF4, 40, 261, 64, 16, 0), DT_ST_BF16, 0, 0, 0, 40 * 261},
        {FOUR_BITS(DT_PACKED_NF4, 40, 261, 64, 16, 1), DT_ST_BF16, 0, 0, 0, 40 * 261},
        {FOUR_BITS(DT_PACKED_NF4, 24, 7, 8, 2, 0), DT_ST_F32, 14, 35, 7, 4 * 14},
        {{.form = DT_PACKED_PAIRS, .first = 96, .group = 256, .finer = 3, .mean = 0.25f}, DT_ST_F32, 0, 0, 0, 90},
    };
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof LAYOUTS[0]; i++) check_layout(&LAYOUTS[i]);
}

int main(void) { return run_listed(NULL, make_folder, remove_folder); }
