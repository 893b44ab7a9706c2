/* cpu_matmul_onednn.c - matmuls by oneDNN: which of its entry points computes a matmul, and in which blocks.
 *
 * Measured on GPT-2's shapes (tests/bench_model.c): for float, oneDNN's sgemm is faster than its primitive, except if B
 * is transposed and k is long. sgemm needs no preparation. For bf16 the primitive on plain strides is fastest. Packed
 * ("any") layouts make the matmul faster, but reorders cost more than that, because weights change every step.
 *
 * A primitive is specific to one shape and takes about a millisecond to create, so primitives are cached. If the number
 * of tokens is m (forward, dx), m is divided into three parts: blocks of at most BLOCK_M rows, a multiple of 64 rows,
 * and a rest that is padded to a multiple of 16 through scratch. 1024/64 + 4 shapes then serve any number of tokens. If
 * the number of tokens is k (weight gradients), the primitive has the exact shape: another pass over the gradient would
 * cost more than the primitive.
 *
 * On processors without bf16 instructions tiles are converted to float, and sgemm multiplies them: oneDNN's emulation
 * is slower. The same applies to fp16 on all processors.
 *
 * With several threads oneDNN may divide k among them by its own rules, so sums depend on the number of threads. With
 * make_reproducible oneDNN runs in one thread, and this file divides C into tiles among the threads. Tile sizes depend
 * only on the size of C. Primitives, each of which needs scratch, are then replaced by dtrain's own kernels.
 *
 * oneDNN computes a form of matmul only after a trial (device_check.h), which takes 0.1 ms at the first use of the
 * form. Other forms use dtrain's own kernels. So do matmuls of a single row, column or term: their strides are
 * ambiguous, and versions of oneDNN have been wrong. */
#include "cpu.h"
#include "cpu_onednn.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    CACHE_SETS = 64,
    CACHE_WAYS = 8, /* a new entry replaces the least recently used one of its set */
    BLOCK_M = 1024,
    PAD_M = 16,
    TILE_M = 256,
    TILE_N = 1024,
    TILE_K = 2048 /* TILE_M, TILE_N, TILE_K: of the conversion to float */
};

typedef struct matmul_entry {
    onednn_key key;
    uint64_t used; /* 0: empty */
    onednn_matmul matmul;
} matmul_entry;

typedef enum library_way { BY_PRIMITIVE, BY_SGEMM } library_way;
typedef enum verdict { UNTRIED, RIGHT, WRONG } verdict;

struct cpu_matmuls {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    matmul_entry entry[CACHE_SETS][CACHE_WAYS];
    uint64_t clock;
    void *scratchpad; /* the maximum over all primitives */
    size_t scratchpad_size;
    void *pad_a, *pad_c; /* padded rows of A and of C; they grow like the scratchpad */
    size_t pad_a_size, pad_c_size;
    void *tile[3]; /* A, B, C as float: allocated at open if bf16 is converted, else by the first fp16 matmul */
    size_t tile_size[3];
    bool native_bf16;
    uint8_t verdicts[128]; /* by form_number() */
    bool warned, own_alone;
};

static const size_t tile_nbytes[3] = {sizeof(float) * TILE_M * TILE_K, sizeof(float) * TILE_K *TILE_N,
                                      sizeof(float) * TILE_M *TILE_N};

static bool has_native_bf16(const cpu_matmuls *mmul)
{
    const char *most = getenv("DTRAIN_BF16");
    if (most && !strcmp(most, "none")) return false; /* for tests */
    return onednn_has_native_bf16(mmul->engine);
}

/* True if bf16 is converted to float: neither oneDNN nor dtrain's kernels have a unit for it. */
static bool converts_bf16(const cpu_state *cpu) { return !cpu->matmul->native_bf16 && !cpu->unit; }

static dt_err take_tiles(const cpu_state *cpu)
{
    cpu_matmuls *mmul = cpu->matmul;
    for (int i = 0; i < 3; i++) DT_TRY(cpu_grow(cpu, &mmul->tile[i], &mmul->tile_size[i], tile_nbytes[i]));
    return DT_OK;
}

/* If the address space is limited, start the libraries' threads and compile their first kernels now. Later they would
 * crash if memory has run out. */
static dt_err start_libraries(cpu_state *cpu)
{
    enum { N = 16 };
    const float x[N * N] = {0};
    float y[N * N];
    const size_t left = dt_address_space_free();
    if (left == SIZE_MAX) return DT_OK;
    DT_CHECK(
        left > 0, DT_ERR_MEMORY,
        "cpu device: not enough address space for libraries: expected %d MiB, found less; raise the limit (ulimit -v)",
        DT_ADDRESS_RESERVE >> 20);
#pragma omp parallel num_threads(cpu->n_threads)
    atomic_signal_fence(memory_order_seq_cst);
    if (!onednn_is_built_in()) return DT_OK;
    return onednn_sgemm('N', 'N', N, N, N, 1, x, N, x, N, 0, y, N) == dnnl_success
               ? DT_OK
               : dt_fail(DT_ERR_MEMORY, "cpu device: the first oneDNN matmul failed");
}

dt_err cpu_matmul_open(cpu_state *cpu)
{
    cpu_matmuls *mmul = cpu->matmul = calloc(1, sizeof *mmul);
    DT_CHECK(mmul, DT_ERR_MEMORY, "cpu device: out of memory for %zu bytes for matmuls", sizeof *mmul);
    if (!cpu->planning) omp_set_num_threads(cpu->n_threads);
    if (!cpu->planning) DT_TRY(start_libraries(cpu));
    TRY_DNNL(onednn_open(&mmul->engine, &mmul->stream));
    const char *library = getenv("DTRAIN_ONEDNN"); /* none: only dtrain's own kernels, for tests */
    mmul->own_alone = !onednn_is_built_in() || (library && !strcmp(library, "none"));
    mmul->native_bf16 = has_native_bf16(mmul);
    return converts_bf16(cpu) && !cpu->planning ? take_tiles(cpu) : DT_OK;
}

static void drop_entry(matmul_entry *e)
{
    onednn_destroy(&e->matmul);
    *e = (matmul_entry){0};
}

void cpu_matmul_close(cpu_state *cpu)
{
    cpu_matmuls *mmul = cpu->matmul;
    if (!mmul) return;
    for (int i = 0; i < CACHE_SETS * CACHE_WAYS; i++) drop_entry(&mmul->entry[i / CACHE_WAYS][i % CACHE_WAYS]);
    for (int i = 0; i < 3; i++) cpu_drop(mmul->tile[i], mmul->tile_size[i]);
    cpu_drop(mmul->scratchpad, mmul->scratchpad_size);
    cpu_drop(mmul->pad_a, mmul->pad_a_size);
    cpu_drop(mmul->pad_c, mmul->pad_c_size);
    onednn_close(mmul->engine, mmul->stream);
    free(mmul);
    cpu->matmul = NULL;
}

size_t cpu_matmul_held(const cpu_state *cpu)
{
    const cpu_matmuls *mmul = cpu->matmul;
    size_t held = sizeof *mmul + mmul->scratchpad_size + mmul->pad_a_size + mmul->pad_c_size;
    for (int i = 0; i < 3; i++) held += converts_bf16(cpu) ? tile_nbytes[i] : mmul->tile_size[i];
    return held;
}

/* ---- primitives -------------------------------------------------------------------------------------------------- */

static dt_err create_entry(cpu_state *cpu, matmul_entry *e, const onednn_key *key)
{
    cpu_matmuls *mmul = cpu->matmul;
    e->key = *key;
    TRY_DNNL(onednn_create(mmul->engine, key, &e->matmul));
    return cpu_grow(cpu, &mmul->scratchpad, &mmul->scratchpad_size, e->matmul.scratchpad_nbytes);
}

/* Find the primitive of this key, or create it instead of the least recently used one of its set. */
static dt_err find_entry(cpu_state *cpu, const onednn_key *key, matmul_entry **found)
{
    cpu_matmuls *mmul = cpu->matmul;
    uint64_t hash = 0;
    uint64_t words[sizeof *key / sizeof(uint64_t)];
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) hash = dt_mix64(hash ^ words[i]);
    matmul_entry *set = mmul->entry[hash % CACHE_SETS], *oldest = set;
    for (matmul_entry *e = set; e < set + CACHE_WAYS; e++) {
        if (e->used && !memcmp(&e->key, key, sizeof *key)) {
            e->used = ++mmul->clock;
            *found = e;
            return DT_OK;
        }
        if (e->used < oldest->used) oldest = e;
    }
    drop_entry(oldest);
    const dt_err err = create_entry(cpu, oldest, key);
    if (err != DT_OK) {
        drop_entry(oldest);
        return dt_trace(err, __FILE__, __LINE__, "create_entry");
    }
    oldest->used = ++mmul->clock;
    *found = oldest;
    return DT_OK;
}

/* C = op(A) op(B) (+ C) (+ bias) by oneDNN's primitive, created once for each shape. */
static dt_err library_primitive(void *device, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    cpu_state *cpu = device;
    cpu_matmuls *mmul = cpu->matmul;
    const onednn_key key = {.m = mm->m,
                            .n = mm->n,
                            .k = mm->k,
                            .lda = mm->lda,
                            .ldb = mm->ldb,
                            .ldc = mm->ldc,
                            .trans_a = mm->trans_a,
                            .trans_b = mm->trans_b,
                            .dt = mm->dt,
                            .c_dtype = mm->c_dtype,
                            .accumulate = mm->accumulate,
                            .bias = mm->bias != NULL};
    matmul_entry *e = NULL;
    DT_TRY(find_entry(cpu, &key, &e));
    const onednn_operands x = {.a = a, .b = b, .bias = mm->bias, .c = c, .scratchpad = mmul->scratchpad};
    TRY_DNNL(onednn_run(&e->matmul, mmul->stream, &x));
    return DT_OK;
}

/* Rows i .. i+m-1 and columns j .. j+n-1 of C, in float, by oneDNN's sgemm, which needs no primitive. */
static dnnl_status_t sgemm_block(const dt_matmul *mm, int64_t i, int64_t m, int64_t j, int64_t n, const float *a,
                                 const float *b, float *c)
{
    return onednn_sgemm(mm->trans_a ? 'T' : 'N', mm->trans_b ? 'T' : 'N', m, n, mm->k, 1.0f,
                        a + (mm->trans_a ? i : i * mm->lda), mm->lda, b + (mm->trans_b ? j * mm->ldb : j), mm->ldb,
                        mm->accumulate ? 1.0f : 0.0f, c + i * mm->ldc + j, mm->ldc);
}

/* The largest tiles that leave enough of them for many threads. Compared with one sgemm for the whole matmul, tiles
 * cost 6 % of GPT-2's time on one or two threads. */
static void choose_tile(const dt_matmul *mm, int64_t *rows, int64_t *cols)
{
    enum { ROWS = 128, COLS = 384, ENOUGH = 32 };
    *rows = ROWS, *cols = COLS;
    if (cpu_n_chunks(mm->m, *rows) * cpu_n_chunks(mm->n, *cols) < ENOUGH) *cols /= 2;
    if (cpu_n_chunks(mm->m, *rows) * cpu_n_chunks(mm->n, *cols) < ENOUGH) *rows /= 2;
}

static dt_err sgemm_tiles(const cpu_state *cpu, const dt_matmul *mm, const float *a, const float *b, float *c)
{
    int64_t rows, cols;
    choose_tile(mm, &rows, &cols);
    const int64_t across = cpu_n_chunks(mm->n, cols), down = cpu_n_chunks(mm->m, rows);
    _Atomic int failed = dnnl_success;
    CPU_PARALLEL_FOR (cpu, tile, down * across) {
        const int64_t i = tile / across * rows, j = tile % across * cols;
        const dnnl_status_t status =
            sgemm_block(mm, i, dt_min_i64(rows, mm->m - i), j, dt_min_i64(cols, mm->n - j), a, b, c);
        if (status != dnnl_success) failed = (int)status;
    }
    TRY_DNNL((dnnl_status_t)failed);
    return DT_OK;
}

static dt_err library_sgemm(void *device, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    const cpu_state *cpu = device;
    if (cpu->reproducible) return sgemm_tiles(cpu, mm, a, b, c);
    TRY_DNNL(sgemm_block(mm, 0, mm->m, 0, mm->n, a, b, c));
    return DT_OK;
}

/* ---- which matmuls the library computes -------------------------------------------------------------------------- */

/* Index of the verdict on a form: transpositions, types, accumulation, bias and way, but not sizes. */
static int form_number(const dt_matmul *mm, library_way way)
{
    return mm->trans_a | mm->trans_b << 1 | (mm->dt == DT_BF16) << 2 | (mm->c_dtype == DT_BF16) << 3 |
           mm->accumulate << 4 | (mm->bias != NULL) << 5 | (int)way << 6;
}

static void warn_of_form(cpu_matmuls *mmul, const dt_matmul *mm)
{
    if (mmul->warned) return;
    char library[ONEDNN_NAME];
    DT_INFO("%s computes wrong matmul results (first case: %s, A %s, B %s%s%s). dtrain's own kernel "
            "replaces it for such matmuls, which is slower; another version of oneDNN may help",
            onednn_name(library), dt_dtype_name(mm->dt), mm->trans_a ? "transposed" : "plain",
            mm->trans_b ? "transposed" : "plain", mm->accumulate ? ", added to C" : "", mm->bias ? ", with bias" : "");
    mmul->warned = true;
}

/* oneDNN 2.6.3 executes an illegal instruction for narrow bf16 matmuls with AMX, if k is 63 and n is no multiple of 16.
 * No other case was found for k up to 700, nor for wider matrices. */
static bool may_be_fatal(const dt_matmul *mm) { return mm->dt == DT_BF16 && mm->k == 63 && mm->n < 64; }

/* May oneDNN compute this form? The first use compares it with exact sums of small integers. dtrain's own kernels
 * compute single rows, columns and terms. */
static bool library_computes(cpu_state *cpu, const dt_matmul *mm, library_way way)
{
    cpu_matmuls *mmul = cpu->matmul;
    if (mmul->own_alone || mm->m == 1 || mm->n == 1 || mm->k == 1 || may_be_fatal(mm)) return false;
    if (cpu->reproducible && way == BY_PRIMITIVE) return false;
    uint8_t *v = &mmul->verdicts[form_number(mm, way)];
    if (*v == UNTRIED) {
        dt_matmul trial = dt_trial_form(mm, 48, 35, 37, 3); /* 48 rows: a multiple of PAD_M */
        trial.addend = NULL;                                /* cpu_matmul.c has copied it to C */
        *v = dt_matmul_is_right(&trial, way == BY_SGEMM ? library_sgemm : library_primitive, cpu) ? RIGHT : WRONG;
        if (*v == WRONG) warn_of_form(mmul, mm);
    }
    return *v == RIGHT;
}

bool cpu_library_takes_blocks(cpu_state *cpu, const dt_matmul *mm)
{
    dt_matmul form = *mm; /* single rows, columns and terms are left to the caller */
    form.n_groups = 0;
    form.m = form.n = form.k = 2;
    form.bias = NULL; /* the caller adds it */
    return library_computes(cpu, &form, BY_SGEMM);
}

bool cpu_library_block(const dt_matmul *mm, int64_t i, int64_t m, int64_t j, int64_t n, const void *a, const void *b,
                       void *c)
{
    return sgemm_block(mm, i, m, j, n, a, b, c) == dnnl_success;
}

/* m rows, by oneDNN or by dtrain's own kernel. */
static dt_err run_primitive(cpu_state *cpu, const dt_matmul *mm, int64_t m, const void *a, const void *b, void *c)
{
    dt_matmul part = *mm;
    part.m = m;
    if (library_computes(cpu, &part, BY_PRIMITIVE)) return library_primitive(cpu, &part, a, b, c);
    cpu_matmul_any_run(cpu, &part, a, b, c);
    return DT_OK;
}

static dt_err sgemm(cpu_state *cpu, const dt_matmul *mm, const float *a, const float *b, float *c, bool accumulate)
{
    dt_matmul part = *mm;
    part.dt = part.c_dtype = DT_F32;
    part.accumulate = accumulate;
    part.bias = NULL;
    if (library_computes(cpu, &part, BY_SGEMM)) return library_sgemm(cpu, &part, a, b, c);
    cpu_matmul_any_run(cpu, &part, a, b, c);
    return DT_OK;
}

/* ---- blocks of rows ---------------------------------------------------------------------------------------------- */

/* The last rows (fewer than 64), padded to a multiple of PAD_M rows. The results of the padding are not read. */
static dt_err run_padded(cpu_state *cpu, const dt_matmul *mm, int64_t m, const char *a, const void *b, char *c)
{
    cpu_matmuls *mmul = cpu->matmul;
    const int64_t rows = (m + PAD_M - 1) / PAD_M * PAD_M;
    if (rows == m) return run_primitive(cpu, mm, m, a, b, c);
    const size_t a_row = (size_t)mm->k * dt_dtype_size(mm->dt), c_row = (size_t)mm->n * dt_dtype_size(mm->c_dtype);
    const size_t lda = (size_t)mm->lda * dt_dtype_size(mm->dt), ldc = (size_t)mm->ldc * dt_dtype_size(mm->c_dtype);
    DT_TRY(cpu_grow(cpu, &mmul->pad_a, &mmul->pad_a_size, a_row * 64));
    DT_TRY(cpu_grow(cpu, &mmul->pad_c, &mmul->pad_c_size, c_row * 64));
    for (int64_t i = 0; i < m; i++) memcpy((char *)mmul->pad_a + (size_t)i * a_row, a + (size_t)i * lda, a_row);
    if (mm->accumulate)
        for (int64_t i = 0; i < m; i++) memcpy((char *)mmul->pad_c + (size_t)i * c_row, c + (size_t)i * ldc, c_row);
    dt_matmul padded = *mm;
    padded.lda = mm->k;
    padded.ldc = mm->n;
    DT_TRY(run_primitive(cpu, &padded, rows, mmul->pad_a, b, mmul->pad_c));
    for (int64_t i = 0; i < m; i++) memcpy(c + (size_t)i * ldc, (char *)mmul->pad_c + (size_t)i * c_row, c_row);
    return DT_OK;
}

/* With few terms (B of an adapter: C += h B^T) the time is that of reading and writing C. oneDNN touches many pages of
 * C for a few bytes at a time, so blocks have fewer rows. Measured with AMX for 512 x 18944, accumulating, k = 16,
 * twice (gate and up of 7 billion parameters): 18 -> 9 ms on one thread, 10.5 -> 7.4 ms on two. For a narrower C the
 * additional calls cost more than this saves. */
static int64_t rows_of_block(const cpu_state *cpu, const dt_matmul *mm)
{
    enum { FEW = 128, ROWS = 128, WIDE = 3072 };
    const int64_t n_threads = cpu->n_threads;
    return mm->k <= FEW && mm->n >= WIDE * n_threads ? dt_min_i64(ROWS * n_threads, BLOCK_M) : BLOCK_M;
}

/* Rows in blocks of BLOCK_M, then a multiple of 64, then the rest. So few shapes, and few primitives, serve any
 * batch. */
static dt_err run_blocks(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    if (mm->trans_a) return run_primitive(cpu, mm, mm->m, a, b, c);
    const int64_t most = rows_of_block(cpu, mm);
    for (int64_t at = 0; at < mm->m;) {
        const int64_t left = mm->m - at, rows = left >= most ? most : left >= 64 ? left / 64 * 64 : left;
        const void *block_a = cpu_at(a, mm->dt, at * mm->lda);
        void *block_c = cpu_at_w(c, mm->c_dtype, at * mm->ldc);
        if (left >= 64) {
            DT_TRY(run_primitive(cpu, mm, rows, block_a, b, block_c));
        } else {
            DT_TRY(run_padded(cpu, mm, rows, block_a, b, block_c));
        }
        at += rows;
    }
    return DT_OK;
}

/* If C is as large as a vocabulary, it is divided into slabs, which stay in cache while they are written. GPT-2's head
 * with 128 and 256 tokens on two threads (AMX): weight gradients 59 -> 28 ms, logits 22 -> 15 ms and 31 -> 30 ms. Each
 * element is the same sum as without slabs. */
static dt_err run_slabs(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    enum { LARGE = 16384, SLAB_M = 1024, SLAB_N = 8192 };
    const int64_t rows = mm->trans_a && mm->m > LARGE ? SLAB_M : mm->m,
                  cols = !mm->trans_a && mm->n > LARGE ? SLAB_N : mm->n;
    for (int64_t i = 0; i < mm->m; i += rows)
        for (int64_t j = 0; j < mm->n; j += cols) {
            dt_matmul slab = *mm;
            slab.m = dt_min_i64(rows, mm->m - i);
            slab.n = dt_min_i64(cols, mm->n - j);
            if (mm->bias) slab.bias = cpu_at(mm->bias, mm->dt, j);
            DT_TRY(run_blocks(cpu, &slab, cpu_at(a, mm->dt, mm->trans_a ? i : i * mm->lda),
                              cpu_at(b, mm->dt, mm->trans_b ? j * mm->ldb : j),
                              cpu_at_w(c, mm->c_dtype, i * mm->ldc + j)));
        }
    return DT_OK;
}

/* ---- float by sgemm ---------------------------------------------------------------------------------------------- */

/* If the stride of B is a multiple of 4 KiB, its rows map to the same cache sets while oneDNN packs them. Narrower
 * blocks of columns conflict less. Measured for 256 x 768 x 3072: 215 GFLOP/s in one call, 237 in blocks of 768
 * columns, 270 with a stride that is 16 elements larger. With 1000 rows or more there is no gain. */
static dt_err sgemm_in_columns(cpu_state *cpu, const dt_matmul *mm, const float *a, const float *b, float *c,
                               bool accumulate)
{
    enum { COLUMNS = 768 };
    if (cpu->reproducible || mm->trans_a || mm->trans_b || mm->ldb % 1024 || mm->m > 512 || mm->m < 64)
        return sgemm(cpu, mm, a, b, c, accumulate);
    for (int64_t j = 0; j < mm->n; j += COLUMNS) {
        dt_matmul piece = *mm;
        piece.n = dt_min_i64(COLUMNS, mm->n - j);
        DT_TRY(sgemm(cpu, &piece, a, b + j, c + j, accumulate));
    }
    return DT_OK;
}

/* sgemm has no bias: C is initialised with it. */
static dt_err run_sgemm(cpu_state *cpu, const dt_matmul *mm, const float *a, const float *b, float *c)
{
    if (mm->bias) {
        CPU_PARALLEL_FOR (cpu, i, mm->m) {
            cpu->k->add_into(&(dt_add_into_args){mm->bias, DT_F32, c + i * mm->ldc, DT_F32, mm->accumulate, mm->n}, 0,
                             mm->n);
        }
    }
    return sgemm_in_columns(cpu, mm, a, b, c, mm->bias || mm->accumulate);
}

/* ---- 16-bit types without native instructions -------------------------------------------------------------------- */

/* One tile of C: matmuls over k in float, then bias, then one rounding. */
static dt_err converted_tile(cpu_state *cpu, const dt_matmul *mm, int64_t i, int64_t j, const void *a, const void *b,
                             void *c)
{
    float *const *tile = (float *const *)cpu->matmul->tile;
    dt_matmul t = {.m = dt_min_i64(TILE_M, mm->m - i),
                   .n = dt_min_i64(TILE_N, mm->n - j),
                   .trans_a = mm->trans_a,
                   .trans_b = mm->trans_b};
    t.ldc = t.n;
    for (int64_t p = 0; p < mm->k; p += TILE_K) {
        t.k = dt_min_i64(TILE_K, mm->k - p);
        t.lda = t.trans_a ? t.m : t.k;
        t.ldb = t.trans_b ? t.k : t.n;
        cpu_convert_rows(cpu, cpu_at(a, mm->dt, t.trans_a ? p * mm->lda + i : i * mm->lda + p), mm->dt, mm->lda,
                         tile[0], DT_F32, t.lda, t.trans_a ? t.k : t.m, t.lda);
        cpu_convert_rows(cpu, cpu_at(b, mm->dt, t.trans_b ? j * mm->ldb + p : p * mm->ldb + j), mm->dt, mm->ldb,
                         tile[1], DT_F32, t.ldb, t.trans_b ? t.n : t.k, t.ldb);
        DT_TRY(sgemm(cpu, &t, tile[0], tile[1], tile[2], p > 0));
    }
    CPU_PARALLEL_FOR (cpu, r, t.m) {
        float *row = tile[2] + r * t.n;
        void *to = cpu_at_w(c, mm->c_dtype, (i + r) * mm->ldc + j);
        if (mm->bias)
            cpu->k->add_into(&(dt_add_into_args){cpu_at(mm->bias, mm->dt, j), mm->dt, row, DT_F32, true, t.n}, 0, t.n);
        cpu->k->add_into(&(dt_add_into_args){row, DT_F32, to, mm->c_dtype, mm->accumulate, t.n}, 0, t.n);
    }
    return DT_OK;
}

/* Convert tiles of A and B to float, and round each tile of C once. */
static dt_err run_converted(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    DT_TRY(take_tiles(cpu));
    for (int64_t j = 0; j < mm->n; j += TILE_N)
        for (int64_t i = 0; i < mm->m; i += TILE_M) DT_TRY(converted_tile(cpu, mm, i, j, a, b, c));
    return DT_OK;
}

/* By oneDNN if it supports bf16 natively, else by the processor's unit, else in float. */
static dt_err run_bf16(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    if (cpu->matmul->native_bf16) return run_slabs(cpu, mm, a, b, c);
    if (!cpu->unit) return run_converted(cpu, mm, a, b, c);
    cpu_matmul_any_run(cpu, mm, a, b, c);
    return DT_OK;
}

dt_err cpu_matmul_library(cpu_state *cpu, const dt_matmul *mm, const void *a, const void *b, void *c)
{
    const int n_threads = cpu->reproducible ? 1 : cpu->n_threads; /* oneDNN uses OpenMP's setting */
    if (omp_get_max_threads() != n_threads) omp_set_num_threads(n_threads);
    if (mm->dt == DT_BF16) return run_bf16(cpu, mm, a, b, c);
    if (mm->dt == DT_F16) return run_converted(cpu, mm, a, b, c);
    if (mm->trans_b && !mm->trans_a && mm->k >= 2048 && !cpu->reproducible) return run_blocks(cpu, mm, a, b, c);
    return run_sgemm(cpu, mm, a, b, c);
}
