/* assign.c - assigns items to codes with given sizes by an auction. Each item bids for a slot of its best code.
 *
 * The price of a code is the lowest bid among the holders of its slots, or its initial price while a slot is free.
 * An item without a slot compares -cost - price of all codes. It bids for the best code: the amount that makes this
 * code equal to the second best, plus `slack`. The bid displaces the code's lowest bid. In the end no item is more
 * than `slack` below its optimum at the final prices. The total cost is thus within n slack of the minimum. All
 * slots are filled in the end, so initial prices do not affect this bound.
 *
 * With a small slack from the start, bids could rise for largest cost / slack rounds. Therefore slack starts large and
 * decreases by a factor of ten per auction. Each auction starts from the prices of the previous one (epsilon scaling:
 * Bertsekas, "The auction algorithm", Ann. Oper. Res. 14, 1988). It stops when slack is small compared to an item's
 * cost. */
#include "dtrain/recommend/sid.h"
#include <math.h>
#include <stdlib.h>

/* A filled slot of a code. The slots of a code form a heap with the lowest bid on top, ties to the lowest item. */
typedef struct place {
    double bid;
    int64_t item;
} place;
typedef struct seats {
    place *at;
    int64_t n, room;
    double first_price;
} seats;

static bool below(const place *a, const place *b) { return a->bid < b->bid || (a->bid == b->bid && a->item < b->item); }

static void sink(seats *h, place x)
{
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && below(&h->at[child + 1], &h->at[child])) child++;
        if (!below(&h->at[child], &x)) break;
        h->at[i] = h->at[child];
    }
    h->at[i] = x;
}

static void rise(seats *h, place x)
{
    int64_t i = h->n++;
    for (; i > 0 && below(&x, &h->at[(i - 1) / 2]); i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = x;
}

static double price(const seats *h) { return h->n < h->room ? h->first_price : h->at[0].bid; }

/* Returns the item that lost its slot, -1: none. */
static int64_t bid(seats *h, int64_t n_codes, const float *cost, int64_t item, double slack, int32_t *code)
{
    double best = -INFINITY, second = -INFINITY;
    int64_t to = -1;
    for (int64_t k = 0; k < n_codes; k++) {
        if (h[k].room == 0) continue;
        const double value = -(double)cost[item * n_codes + k] - price(&h[k]);
        if (value > best) {
            second = best;
            best = value;
            to = k;
        } else if (value > second) {
            second = value;
        }
    }
    if (second == -INFINITY) second = best; /* there is only one code */
    const place x = {price(&h[to]) + (best - second) + slack, item};
    code[item] = (int32_t)to;
    if (h[to].n < h[to].room) {
        rise(&h[to], x);
        return -1;
    }
    const int64_t out = h[to].at[0].item;
    sink(&h[to], x);
    return out;
}

/* One auction that starts from the current prices; returns the sum of costs. */
static double hold_auction(seats *h, int64_t n, int64_t n_codes, const float *cost, double slack, int32_t *code)
{
    double sum = 0;
    for (int64_t k = 0; k < n_codes; k++) {
        h[k].first_price = h[k].room > 0 ? price(&h[k]) : 0;
        h[k].n = 0;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t out = i; out >= 0;) out = bid(h, n_codes, cost, out, slack, code);
    for (int64_t i = 0; i < n; i++) sum += cost[i * n_codes + code[i]];
    return sum;
}

/* Prices hardly exceed n_codes times the largest cost: along a chain of items that could exchange codes,
 * the price grows by at most one cost per step. The minimum slack is 2^-30 of that cost. With up to 2^20
 * codes, no bid is lost to rounding. */
static void lower_slack(seats *h, int64_t n, int64_t n_codes, const float *cost, double largest, double precision,
                        int32_t *code)
{
    const double least = largest > 0 ? largest * 0x1p-30 : 1;
    for (double slack = fmax(largest / 100, least);; slack = fmax(slack / 10, least)) {
        const double sum = hold_auction(h, n, n_codes, cost, slack, code);
        if (slack <= least || slack * (double)n <= precision * sum) return;
    }
}

dt_err dt_sid_assign(const float *cost, int64_t n, int64_t n_codes, const int64_t *size, double precision,
                     int32_t *code)
{
    seats *h = calloc((size_t)n_codes, sizeof *h);
    place *all = malloc((size_t)(n > 0 ? n : 1) * sizeof *all);
    int64_t used = 0;
    dt_err err = h && all ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %lld slots", (long long)n);
    for (int64_t k = 0; k < n_codes && err == DT_OK; k++) {
        h[k] = (seats){.at = all + used, .room = size[k]};
        used += size[k];
        if (size[k] < 0 || used > n)
            err = dt_fail(DT_ERR_ARG, "internal: dt_sid_assign: sizes: their sum exceeds the %lld items", (long long)n);
    }
    if (err == DT_OK && used != n)
        err = dt_fail(DT_ERR_ARG, "internal: dt_sid_assign: sizes: their sum is %lld, expected %lld", (long long)used,
                      (long long)n);
    double largest = 0;
    for (int64_t i = 0; i < n * n_codes; i++)
        if (isfinite(largest) && !(cost[i] <= largest)) largest = cost[i]; /* also detects NaN */
    if (err == DT_OK && !isfinite(largest))
        err = dt_fail(DT_ERR_NONFINITE, "the distances from items to codes are not finite");
    if (err == DT_OK) lower_slack(h, n, n_codes, cost, largest, precision, code);
    free(h);
    free(all);
    return err;
}
