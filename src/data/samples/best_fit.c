/* best_fit.c - best-fit decreasing (algorithms.md 1.2; arXiv:2404.10830) for millions of documents.
 *
 * Rows are indexed by their free space f. For every f, a heap holds the rows with f free, lowest row on
 * top (a skew heap: two links per row, no allocation). A tree of bit sets with 64 branches per level marks
 * the non-empty heaps. It finds the smallest f >= length in a few steps. */
#include "best_fit.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX /* no row */
enum { RADIX_BITS = 13, RADIX = 1 << RADIX_BITS, MAX_LEVELS = 6 };

/* ---- bit tree of the free spaces in use -------------------------------------------------------------------------- */

typedef struct bit_tree {
    uint64_t *level[MAX_LEVELS]; /* level[0]: one bit per value; level[k + 1]: one bit per word of level[k] */
    size_t n_words[MAX_LEVELS];
    int n_levels;
    uint64_t *words;
} bit_tree;

/* Initialise for the values 0 .. n_values-1, all absent. Each level is 64 times shorter than the one
 * below: two levels for 4096 values, five for 2^26. */
static bool bit_tree_init(bit_tree *t, uint64_t n_values)
{
    size_t total = 0;
    t->n_levels = 0;
    for (uint64_t n = n_values; t->n_levels == 0 || n > 1;) {
        n = (n + 63) / 64;
        t->n_words[t->n_levels++] = n;
        total += n;
    }
    t->words = calloc(total, sizeof *t->words);
    if (!t->words) return false;
    t->level[0] = t->words;
    for (int k = 1; k < t->n_levels; k++) t->level[k] = t->level[k - 1] + t->n_words[k - 1];
    return true;
}

static void bit_tree_set(bit_tree *t, uint64_t v)
{
    for (int k = 0; k < t->n_levels; k++, v /= 64) t->level[k][v / 64] |= UINT64_C(1) << (v % 64);
}

/* If the word becomes 0, its bit one level up is cleared too. */
static void bit_tree_clear(bit_tree *t, uint64_t v)
{
    for (int k = 0; k < t->n_levels; k++, v /= 64) {
        t->level[k][v / 64] &= ~(UINT64_C(1) << (v % 64));
        if (t->level[k][v / 64]) return;
    }
}

/* The smallest member >= v, or -1. Ascends until a word has a member at or after v, then descends to the lowest. */
static int64_t bit_tree_next(const bit_tree *t, uint64_t v)
{
    for (int k = 0; k < t->n_levels && v / 64 < t->n_words[k]; k++) {
        const uint64_t word = t->level[k][v / 64] >> (v % 64);
        if (word) {
            v += (uint64_t)__builtin_ctzll(word);
            for (; k > 0; k--) v = v * 64 + (uint64_t)__builtin_ctzll(t->level[k - 1][v]);
            return (int64_t)v;
        }
        v = v / 64 + 1; /* the following words are the bits from here one level up */
    }
    return -1;
}

/* ---- rows of equal free space ------------------------------------------------------------------------------------ */

typedef struct bins {
    uint32_t *left, *right; /* [n]: links of the skew heaps */
    uint32_t *root;         /* [capacity + 1]: heap of each free space */
    bit_tree members;
} bins;

/* Merge two skew heaps, lowest row on top: the smaller root's left link becomes its right link, and the
 * rest is merged into its left. Amortised O(log n). */
static uint32_t heap_merge(bins *b, uint32_t x, uint32_t y)
{
    uint32_t top = NONE, *link = &top;
    while (x != NONE && y != NONE) {
        if (y < x) {
            const uint32_t t = x;
            x = y;
            y = t;
        }
        *link = x;
        const uint32_t rest = b->right[x];
        b->right[x] = b->left[x];
        link = &b->left[x];
        x = rest;
    }
    *link = x != NONE ? x : y;
    return top;
}

/* Remove and return the lowest row with this free space. */
static uint32_t take_lowest(bins *b, uint32_t free_space)
{
    const uint32_t row = b->root[free_space];
    b->root[free_space] = heap_merge(b, b->left[row], b->right[row]);
    if (b->root[free_space] == NONE) bit_tree_clear(&b->members, free_space);
    return row;
}

static void put_back(bins *b, uint32_t row, uint32_t free_space)
{
    if (b->root[free_space] == NONE) bit_tree_set(&b->members, free_space);
    b->left[row] = b->right[row] = NONE;
    b->root[free_space] = heap_merge(b, b->root[free_space], row);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* One pass of a stable radix sort by descending length: 13 bits at shift. Two passes sort. */
static void sort_pass(const uint32_t *len, uint32_t capacity, int shift, const uint32_t *from, uint32_t *to, int64_t n,
                      int64_t *count)
{
    memset(count, 0, (RADIX + 1) * sizeof *count);
    for (int64_t i = 0; i < n; i++) count[1 + (((capacity - len[i]) >> shift) & (RADIX - 1))]++;
    for (int d = 0; d < RADIX; d++) count[d + 1] += count[d];
    for (int64_t i = 0; i < n; i++) {
        const uint32_t item = from ? from[i] : (uint32_t)i;
        to[count[((capacity - len[item]) >> shift) & (RADIX - 1)]++] = item;
    }
}

/* Best fit: items in the given order, each into the row with the least sufficient free space. row_of: [n].
 * Returns the number of rows. */
static int64_t place_all(bins *b, const uint32_t *len, const uint32_t *order, int64_t n, uint32_t capacity,
                         uint32_t *row_of)
{
    uint32_t n_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t item = order[i];
        const int64_t found = bit_tree_next(&b->members, len[item]);
        const uint32_t free_space = found < 0 ? capacity : (uint32_t)found;
        const uint32_t row = found < 0 ? n_rows++ : take_lowest(b, free_space);
        row_of[item] = row;
        if (free_space > len[item]) put_back(b, row, free_space - len[item]);
    }
    return n_rows;
}

/* Counting sort from the row of each item to the items of each row. row_start [n_rows + 1] ends as prefix sums. */
static dt_err list_rows(dt_row_list *p, const uint32_t *order, const uint32_t *row_of, int64_t n)
{
    DT_ALLOC(p->row_start, p->n_rows + 2, "no memory to pack %" PRId64 " documents", n);
    DT_ALLOC(p->item, n > 0 ? n : 1, "no memory to pack %" PRId64 " documents", n);
    for (int64_t i = 0; i < n; i++) p->row_start[row_of[i] + 2]++;
    for (int64_t r = 0; r < p->n_rows; r++) p->row_start[r + 2] += p->row_start[r + 1];
    for (int64_t i = 0; i < n; i++) p->item[p->row_start[row_of[order[i]] + 1]++] = order[i];
    return DT_OK;
}

dt_err dt_best_fit(dt_row_list *p, const uint32_t *len, int64_t n, uint32_t capacity)
{
    *p = (dt_row_list){.n_items = n};
    DT_CHECK(n >= 0 && n < NONE && capacity >= 1 && capacity <= 1u << 26, DT_ERR_ARG,
             "internal: dt_best_fit: %" PRId64 " documents or a capacity of %" PRIu32 " are out of range", n, capacity);
    const size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof(uint32_t);
    uint32_t *order = malloc(bytes), *other = malloc(bytes), *row_of = malloc(bytes);
    int64_t *count = malloc((RADIX + 1) * sizeof *count);
    bins b = {.left = malloc(bytes), .right = malloc(bytes), .root = malloc(((size_t)capacity + 1) * sizeof *b.root)};
    const bool room = bit_tree_init(&b.members, (uint64_t)capacity + 1) && order && other && row_of && count &&
                      b.left && b.right && b.root;
    dt_err err = DT_OK;
    if (room) {
        memset(b.root, 0xff, ((size_t)capacity + 1) * sizeof *b.root);
        sort_pass(len, capacity, 0, NULL, other, n, count);
        sort_pass(len, capacity, RADIX_BITS, other, order, n, count);
        p->n_rows = place_all(&b, len, order, n, capacity, row_of);
        err = list_rows(p, order, row_of, n);
    } else {
        err = dt_fail(DT_ERR_MEMORY, "no memory to pack %" PRId64 " documents", n);
    }
    free(order);
    free(other);
    free(row_of);
    free(count);
    free(b.left);
    free(b.right);
    free(b.root);
    free(b.members.words);
    if (err != DT_OK) dt_row_list_free(p);
    return err;
}

void dt_row_list_free(dt_row_list *p)
{
    free(p->row_start);
    free(p->item);
    *p = (dt_row_list){0};
}
