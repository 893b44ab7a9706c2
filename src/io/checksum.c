/* checksum.c - a sum of keyed products. Any number of ranks can compute partial sums (definition: io.h).
 *
 * An independent 64-bit key for every element would cost more than reading the element. The key is therefore a product
 * of two odd numbers. A 64-bit number belongs to the block of 1024 elements, and is applied once per block. A 32-bit
 * number belongs to the index in the block, and comes from a table in the L1 cache. One widening 32-bit multiplication
 * per element remains, and SIMD units execute several at a time.
 *
 * Detected errors. One changed element: delta * odd * odd is never 0 modulo 2^64. Two elements of a block exchanged, or
 * both with the same bit flipped: delta * (lane(j) +- lane(k)) is a product of two numbers below 2^32, and not 0
 * because lanes differ. Other errors are detected with high probability. */
#include "dtrain/io/io.h"
#include <assert.h>
#include <string.h>

enum { BLOCK = DT_CHECKSUM_BLOCK };

/* Any alignment and any underlying type: float tensors, or bytes read from files. */
typedef uint8_t __attribute__((may_alias)) word1;
typedef uint16_t __attribute__((may_alias, aligned(1))) word2;
typedef uint32_t __attribute__((may_alias, aligned(1))) word4;
typedef uint64_t __attribute__((may_alias, aligned(1))) word8;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are taken as they lie in memory");

typedef struct lane_table {
    uint32_t key[BLOCK];
    uint64_t sum_before[BLOCK + 1]; /* sum of key[0 .. j-1]: the "+ 1" of every word, added once per block */
} lane_table;

static void lane_table_fill(lane_table *t)
{
    t->sum_before[0] = 0;
    for (uint64_t j = 0; j < BLOCK; j++) {
        t->key[j] = dt_checksum_lane(j);
        t->sum_before[j + 1] = t->sum_before[j] + t->key[j];
    }
}

#define DEFINE_LANE_SUM(WORD)                                                                                          \
    static uint64_t lane_sum_##WORD(const WORD *w, const uint32_t *key, int64_t n)                                     \
    {                                                                                                                  \
        uint64_t sum = 0;                                                                                              \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++) sum += (uint64_t)w[i] * key[i];         \
        return sum;                                                                                                    \
    }
DEFINE_LANE_SUM(word1)
DEFINE_LANE_SUM(word2)
DEFINE_LANE_SUM(word4)
DEFINE_LANE_SUM(word8)

/* Sum over lanes from .. to-1 of block `block`; data points to lane `from`. */
static uint64_t block_sum(const lane_table *t, uint64_t block, const void *data, int64_t from, int64_t to,
                          size_t elem_size)
{
    const uint32_t *key = t->key + from;
    const int64_t n = to - from;
    uint64_t sum = elem_size == 4   ? lane_sum_word4(data, key, n)
                   : elem_size == 2 ? lane_sum_word2(data, key, n)
                   : elem_size == 8 ? lane_sum_word8(data, key, n)
                                    : lane_sum_word1(data, key, n);
    sum += t->sum_before[to] - t->sum_before[from];
    return sum * dt_checksum_block(block);
}

uint64_t dt_checksum(const void *data, int64_t first, int64_t n_elems, size_t elem_size)
{
    assert(first >= 0 && (elem_size == 1 || elem_size == 2 || elem_size == 4 || elem_size == 8));
    if (n_elems <= 0) return 0;

    lane_table table;
    lane_table_fill(&table);
    const char *bytes = data;
    const int64_t end = first + n_elems, first_block = first / BLOCK, last_block = (end - 1) / BLOCK;
    /* for smaller arrays, waiting for a thread that lost its core would cost more than threads save */
    const bool large = (size_t)n_elems * elem_size >= (size_t)32 << 20;
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (large)
    for (int64_t b = first_block; b <= last_block; b++) {
        const int64_t lo = b == first_block ? first : b * BLOCK, hi = b == last_block ? end : (b + 1) * BLOCK;
        sum += block_sum(&table, (uint64_t)b, bytes + (size_t)(lo - first) * elem_size, lo - b * BLOCK, hi - b * BLOCK,
                         elem_size);
    }
    return sum;
}

uint64_t dt_hash_text(const char *text)
{
    return dt_mix64(strlen(text)) ^ dt_checksum(text, 0, (int64_t)strlen(text), 1);
}
