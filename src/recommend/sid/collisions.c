/* collisions.c - items with the same codes on all levels, and how such collisions are resolved.
 *
 * Items of a group share their first levels, so only the last level can separate them. Groups are
 * distributed over the ranks and balanced independently. The result may collide with items outside the
 * group, hence several rounds. Bit-identical items have identical plans and are never separated by rounds;
 * that requires `distinct`. */
#include "dtrain/recommend/sid.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_ITEMS = 8192 };

/* ---- groups ------------------------------------------------------------------------------------------------------ */

struct order {
    int32_t *const *code;
    int n_levels;
};

static int compare_codes(const void *a, const void *b, void *ctx)
{
    const struct order *o = ctx;
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    for (int l = 0; l < o->n_levels; l++)
        if (o->code[l][i] != o->code[l][j]) return o->code[l][i] < o->code[l][j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

static bool same_codes(const struct order *o, int64_t i, int64_t j)
{
    for (int l = 0; l < o->n_levels; l++)
        if (o->code[l][i] != o->code[l][j]) return false;
    return true;
}

dt_err dt_sid_group(int32_t *const *code, int n_levels, int64_t n, dt_sid_groups *g, int64_t *n_distinct)
{
    struct order o = {code, n_levels};
    *g = (dt_sid_groups){.item = malloc((size_t)(n + 1) * sizeof *g->item),
                         .start = calloc((size_t)n + 2, sizeof *g->start)};
    DT_CHECK(g->item && g->start, DT_ERR_MEMORY, "out of memory for the groups of %lld items", (long long)n);
    for (int64_t i = 0; i < n; i++) g->item[i] = i;
    qsort_r(g->item, (size_t)n, sizeof *g->item, compare_codes, &o);
    *n_distinct = 0;
    for (int64_t i = 0, end; i < n; i = end, ++*n_distinct) {
        for (end = i + 1; end < n && same_codes(&o, g->item[i], g->item[end]);) end++;
        if (end - i == 1) continue;
        memmove(g->item + g->n_items, g->item + i, (size_t)(end - i) * sizeof *g->item);
        g->n_items += end - i;
        g->start[++g->n_groups] = g->n_items;
    }
    return DT_OK;
}

void dt_sid_groups_free(dt_sid_groups *g)
{
    free(g->item);
    free(g->start);
    *g = (dt_sid_groups){0};
}

/* ---- Sinkhorn ---------------------------------------------------------------------------------------------------- */

/* Scale each line to the sum `sum`. There are n lines, `step` apart in memory, of n_in values `in` apart.
 * A line that has underflowed is left unchanged, because sum / total would be infinite. */
static void normalise(double *q, int64_t n, int64_t step, int64_t n_in, int64_t in, double sum)
{
    for (int64_t i = 0; i < n; i++) {
        double total = 0;
        for (int64_t j = 0; j < n_in; j++) total += q[i * step + j * in];
        for (int64_t j = 0; j < n_in && total >= DBL_MIN; j++) q[i * step + j * in] *= sum / total;
    }
}

void dt_sid_sinkhorn_plan(const float *cost, int64_t n, int64_t n_codes, double epsilon, int64_t iterations, double *q)
{
    const int64_t size = n * n_codes;
    double least = INFINITY, most = -INFINITY;
    for (int64_t i = 0; i < size; i++) {
        least = fmin(least, cost[i]);
        most = fmax(most, cost[i]);
    }
    const double amplitude = (most - least) / 2 + 1e-5;
    for (int64_t i = 0; i < n; i++) { /* subtract the minimum of a row: a common factor of a row cancels */
        float nearest = INFINITY;
        for (int64_t k = 0; k < n_codes; k++) nearest = fminf(nearest, cost[i * n_codes + k]);
        for (int64_t k = 0; k < n_codes; k++)
            q[i * n_codes + k] = exp(-((double)cost[i * n_codes + k] - nearest) / amplitude / epsilon);
    }
    for (int64_t t = 0; t < iterations; t++) {
        normalise(q, n, n_codes, n_codes, 1, 1.0 / (double)n);
        normalise(q, n_codes, 1, n, n_codes, 1.0 / (double)n_codes);
    }
    for (int64_t i = 0; i < size; i++) q[i] *= (double)n;
}

static dt_err part_group(const float *cost, int64_t m, int64_t K, const dt_sid_sinkhorn *how, uint64_t *last)
{
    double *q = malloc((size_t)(m * K) * sizeof *q);
    DT_CHECK(q, DT_ERR_MEMORY, "out of memory for the plan of %lld colliding items", (long long)m);
    dt_sid_sinkhorn_plan(cost, m, K, how->epsilon, how->iterations, q);
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 1; k < K; k++)
            if (q[i * K + k] > q[i * K + (int64_t)last[i]]) last[i] = (uint64_t)k;
    free(q);
    return DT_OK;
}

/* Plan the groups first .. end-1 that belong to this rank. last: new codes of their items. */
static dt_err part_groups(const dt_sid *s, const dt_sid_sinkhorn *how, const dt_sid_groups *g, int64_t first,
                          int64_t end, const float *cost, uint64_t *last)
{
    dt_err err = DT_OK;
    const int64_t from = g->start[first], R = s->comm->mesh.data.size;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = first; i < end; i++) {
        if (i % R != s->comm->mesh.data.rank) continue;
        const int64_t at = g->start[i] - from, m = g->start[i + 1] - g->start[i];
        if (part_group(cost + at * s->n_codes, m, s->n_codes, how, last + at) == DT_OK) continue;
#pragma omp critical
        err = DT_ERR_MEMORY;
    }
    return err == DT_OK ? DT_OK : dt_fail(err, "out of memory for the plans of colliding items");
}

/* End of a batch of groups that starts at `first`, with about BATCH_ITEMS items. */
static int64_t batch_end(const dt_sid_groups *g, int64_t first)
{
    int64_t end = first + 1;
    while (end < g->n_groups && g->start[end + 1] - g->start[first] <= BATCH_ITEMS) end++;
    return end;
}

static int64_t most_items(const dt_sid_groups *g)
{
    int64_t most = 0;
    for (int64_t first = 0, end; first < g->n_groups; first = end) {
        end = batch_end(g, first);
        most = dt_max_i64(most, g->start[end] - g->start[first]);
    }
    return most;
}

static dt_err one_round(const dt_sid *s, const dt_sid_sinkhorn *how, const dt_sid_points *p, const dt_sid_book *b,
                        const dt_sid_groups *g, int32_t *code)
{
    const int64_t most = most_items(g);
    float *cost = malloc((size_t)(most * s->n_codes + 1) * sizeof *cost);
    uint64_t *last = malloc((size_t)most * sizeof *last);
    dt_err err = cost && last ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for distances of colliding items");
    err = dt_comm_agree(s->comm, err);
    for (int64_t first = 0, end; first < g->n_groups && err == DT_OK; first = end) {
        end = batch_end(g, first);
        const int64_t m = g->start[end] - g->start[first];
        const int64_t *item = g->item + g->start[first];
        memset(last, 0, (size_t)m * sizeof *last);
        dt_phase_enter(s->phase, "collisions", "");
        err = dt_sid_distances(s, p, b, item, m, cost);
        if (err == DT_OK) err = dt_comm_agree(s->comm, part_groups(s, how, g, first, end, cost, last));
        if (err == DT_OK) err = dt_comm_join_host(&s->comm->mesh.data, last, (size_t)m * sizeof *last);
        for (int64_t i = 0; i < m && err == DT_OK; i++) code[item[i]] = (int32_t)last[i];
    }
    free(cost);
    free(last);
    return err;
}

/* ---- remaining collisions ---------------------------------------------------------------------------------------- */

static int64_t nearest_free(const float *cost, const uint8_t *taken, int64_t n_codes)
{
    int64_t best = -1;
    for (int64_t k = 0; k < n_codes; k++)
        if (!taken[k] && (best < 0 || cost[k] < cost[best])) best = k;
    return best;
}

/* by_code: items sorted by their codes. In each group, all items but the first take the nearest code that
 * is free for their first levels. */
static dt_err take_free_codes(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, const dt_sid_groups *g,
                              int32_t *const *code, const int64_t *by_code, int64_t n)
{
    const struct order first_levels = {code, s->n_levels - 1};
    const int64_t K = s->n_codes;
    int32_t *last = code[s->n_levels - 1];
    int64_t at = 0, end, most = 0;
    for (int64_t i = 0; i < g->n_groups; i++) most = dt_max_i64(most, g->start[i + 1] - g->start[i]);
    float *cost = malloc((size_t)(most * K + 1) * sizeof *cost);
    uint8_t *taken = malloc((size_t)K);
    dt_err err = cost && taken ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the codes of an item");
    err = dt_comm_agree(s->comm, err);
    for (int64_t i = 0; i < g->n_groups && err == DT_OK; i++) {
        const int64_t head = g->item[g->start[i]];
        while (!same_codes(&first_levels, by_code[at], head)) at++; /* both are sorted by code */
        memset(taken, 0, (size_t)K);
        for (end = at; end < n && same_codes(&first_levels, by_code[end], head); end++) taken[last[by_code[end]]] = 1;
        const int64_t *others = g->item + g->start[i] + 1, m = g->start[i + 1] - g->start[i] - 1;
        err = dt_sid_distances(s, p, b, others, m, cost);
        for (int64_t j = 0; j < m && err == DT_OK; j++) {
            const int64_t best = nearest_free(cost + j * K, taken, K);
            if (best < 0) break; /* more items share these first levels than there are codes */
            last[others[j]] = (int32_t)best;
            taken[best] = 1;
        }
    }
    free(cost);
    free(taken);
    return err;
}

static dt_err make_distinct(const dt_sid *s, const dt_sid_points *p, const dt_sid_book *b, int32_t *const *code)
{
    struct order o = {code, s->n_levels};
    dt_sid_groups g = {0};
    int64_t n_distinct, *by_code = malloc((size_t)p->n * sizeof *by_code);
    dt_err err = by_code ? dt_sid_group(code, s->n_levels, p->n, &g, &n_distinct)
                         : dt_fail(DT_ERR_MEMORY, "out of memory for the order of %lld items", (long long)p->n);
    err = dt_comm_agree(s->comm, err);
    for (int64_t i = 0; i < p->n && err == DT_OK; i++) by_code[i] = i;
    if (err == DT_OK) {
        qsort_r(by_code, (size_t)p->n, sizeof *by_code, compare_codes, &o);
        err = take_free_codes(s, p, b, &g, code, by_code, p->n);
    }
    dt_sid_groups_free(&g);
    free(by_code);
    return err;
}

/* Rounds may undo one another, so the best one is kept. */
static dt_err play_rounds(const dt_sid *s, const dt_sid_sinkhorn *how, const dt_sid_points *p, const dt_sid_book *b,
                          int32_t *const *code, int32_t *best, int64_t *n_rounds)
{
    int32_t *last = code[s->n_levels - 1];
    const size_t nbytes = (size_t)p->n * sizeof *last;
    int64_t most = -1, n_distinct = 0;
    dt_err err = DT_OK;
    for (*n_rounds = 0; err == DT_OK; ++*n_rounds) {
        dt_sid_groups g = {0};
        err = dt_comm_agree(s->comm, dt_sid_group(code, s->n_levels, p->n, &g, &n_distinct));
        if (err == DT_OK && n_distinct > most) {
            memcpy(best, last, nbytes);
            most = n_distinct;
        }
        const bool done = err != DT_OK || g.n_groups == 0 || *n_rounds == how->max_rounds;
        if (!done) err = one_round(s, how, p, b, &g, last);
        dt_sid_groups_free(&g);
        if (done) break;
    }
    memcpy(last, best, nbytes);
    return err;
}

dt_err dt_sid_resolve(const dt_sid *s, const dt_sid_sinkhorn *how, const dt_sid_points *p, const dt_sid_book *b,
                      int32_t *const *code, int64_t *n_rounds)
{
    int32_t *best = calloc((size_t)p->n, sizeof *best);
    dt_err err = best ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the codes of %lld items", (long long)p->n);
    err = dt_comm_agree(s->comm, err);
    if (err == DT_OK) err = play_rounds(s, how, p, b, code, best, n_rounds);
    free(best);
    return err == DT_OK && how->distinct ? make_distinct(s, p, b, code) : err;
}
