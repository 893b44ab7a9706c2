/* python_random.c - the numbers of Python's random.Random, which lm-evaluation-harness uses to choose examples and to
 * estimate errors.
 *
 * Sources  Matsumoto, Nishimura: Mersenne Twister, 1998 (MT19937, init_by_array); random.py of CPython 3.11 (sample,
 *          getrandbits). */
#include "eval_private.h"
#include <math.h>
#include <stdlib.h>

enum { N = 624, M = 397 };

void python_random_seed(python_random *r, uint32_t seed)
{
    uint32_t *s = r->state;
    s[0] = 19650218u;
    for (uint32_t i = 1; i < N; i++) s[i] = 1812433253u * (s[i - 1] ^ (s[i - 1] >> 30)) + i;
    int i = 1;
    for (int k = 0; k < N; k++) {
        s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1664525u)) + seed;
        if (++i >= N) s[0] = s[N - 1], i = 1;
    }
    for (int k = 0; k < N - 1; k++) {
        s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
        if (++i >= N) s[0] = s[N - 1], i = 1;
    }
    s[0] = 0x80000000u;
    r->next = N;
}

static uint32_t next_word(python_random *r)
{
    uint32_t *s = r->state;
    if (r->next >= N) {
        for (int k = 0; k < N; k++) {
            const uint32_t y = (s[k] & 0x80000000u) | (s[(k + 1) % N] & 0x7fffffffu);
            s[k] = s[(k + M) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        r->next = 0;
    }
    uint32_t y = s[r->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

double python_random_real(python_random *r)
{
    const uint32_t a = next_word(r) >> 5, b = next_word(r) >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
}

/* A number below n, of at most 32 bits. */
static int64_t below(python_random *r, int64_t n)
{
    const int n_bits = 64 - __builtin_clzll((unsigned long long)n);
    int64_t x;
    do x = next_word(r) >> (32 - n_bits);
    while (x >= n);
    return x;
}

static bool is_chosen(const int64_t *out, int n, int64_t j)
{
    for (int i = 0; i < n; i++)
        if (out[i] == j) return true;
    return false;
}

dt_err python_random_sample(python_random *r, int64_t n, int k, int64_t *out)
{
    const double set_size = 21 + (k > 5 ? pow(4, ceil(log(k * 3) / log(4))) : 0);
    DT_EXPECT(k <= n && n <= INT32_MAX);
    if ((double)n > set_size) {
        for (int i = 0; i < k; i++) {
            do out[i] = below(r, n);
            while (is_chosen(out, i, out[i]));
        }
        return DT_OK;
    }
    int64_t *pool;
    DT_ALLOC(pool, n, "out of memory for examples");
    for (int64_t i = 0; i < n; i++) pool[i] = i;
    for (int i = 0; i < k; i++) {
        const int64_t j = below(r, n - i);
        out[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    free(pool);
    return DT_OK;
}
