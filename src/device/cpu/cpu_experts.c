/* cpu_experts.c - routing of tokens to experts, the order of their rows, and their weighted sums. Rows are divided
 * among threads; no result depends on their number. */
#include "cpu.h"
#include <math.h>
#include <string.h>

/* p = softmax(z) of n elements; p may be z. Returns log(sum of e^z). */
static float softmax(const float *z, int32_t n, float *p)
{
    float most = z[0], sum = 0;
    for (int32_t e = 1; e < n; e++) most = z[e] > most ? z[e] : most;
    for (int32_t e = 0; e < n; e++) sum += p[e] = expf(z[e] - most);
    for (int32_t e = 0; e < n; e++) p[e] /= sum;
    return most + logf(sum);
}

static float sigmoid(float z) { return 1 / (1 + expf(-z)); }

/* p from z; without sigmoid in place. lse: see route. NaN: there was a NaN, or with softmax +inf. */
static float scores(const dt_routing *r, float *z, float *p, float *lse)
{
    float sum = 0, l = 0;
    if (!r->sigmoid || lse) l = softmax(z, r->n_experts, p);
    for (int32_t e = 0; e < r->n_experts; e++) sum += p[e] = r->sigmoid ? sigmoid(z[e]) : p[e];
    if (lse) lse[0] = l, lse[1] = l * l;
    return sum;
}

/* The first of the largest values after (`value`, `last`) in descending order, ties by number. */
static int32_t next_largest(const float *c, int32_t n, float value, int32_t last)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n; e++) {
        const bool after = last < 0 || c[e] < value || (c[e] == value && e > last);
        if (after && (best < 0 || c[e] > c[best])) best = e;
    }
    return best;
}

/* Numbers of the k largest, in descending order; the sum of the values. */
static float k_largest(const float *c, int32_t n, int32_t k, int32_t *at)
{
    float sum = 0;
    for (int32_t j = 0; j < k; j++) {
        at[j] = next_largest(c, n, j > 0 ? c[at[j - 1]] : 0, j > 0 ? at[j - 1] : -1);
        sum += c[at[j]];
    }
    return sum;
}

/* The values by which experts are chosen: p + correction, or -inf for experts of other groups and NaN. */
static void choices(const dt_routing *r, const float *p, float *c)
{
    const int32_t n = r->n_groups > 1 ? r->n_groups : 0, size = n > 0 ? r->n_experts / n : 0;
    float value[DT_MAX_GROUPS];
    int32_t best[DT_MAX_EXPERTS];
    bool used[DT_MAX_GROUPS] = {false};
    for (int32_t e = 0; e < r->n_experts; e++) {
        c[e] = p[e] + (r->correction ? r->correction[e] : 0);
        if (isnan(c[e])) c[e] = -INFINITY;
    }
    for (int32_t g = 0; g < n; g++) value[g] = k_largest(c + g * size, size, r->group_best, best);
    if (n > 0) k_largest(value, n, r->k_groups, best);
    for (int32_t j = 0; j < r->k_groups && n > 0; j++) used[best[j]] = true;
    for (int32_t e = 0; e < n * size; e++)
        if (!used[e / size]) c[e] = -INFINITY;
}

/* Prevents a division by 0 if all sigmoids are 0. Rounding removes it from any other sum. */
static const float TINY = 1e-20f;

static void route_row(const dt_routing *r, float *z, int32_t *expert, float *weight, float *lse)
{
    float c[DT_MAX_EXPERTS], own[DT_MAX_EXPERTS], *p = r->sigmoid ? own : z, sum = r->sigmoid ? TINY : 0;
    const bool invalid = isnan(scores(r, z, p, lse));
    choices(r, p, c);
    k_largest(c, r->n_experts, r->k, expert);
    for (int32_t j = 0; j < r->k; j++) sum += weight[j] = p[expert[j]];
    for (int32_t j = 0; j < r->k; j++)
        weight[j] = invalid ? NAN : dt_routing_scale(r) * (r->normalise ? weight[j] / sum : weight[j]);
}

CPU_OP(route)
{
    const dt_routing *r = &x->r;
    CPU_PARALLEL_FOR (cpu, t, r->n_tok) {
        route_row(r, x->prob + t * r->n_experts, x->expert + t * r->k, x->weight + t * r->k,
                  x->lse ? x->lse + 2 * t : NULL);
    }
    return DT_OK;
}

/* With w_j = s p_j / S: dp_j = s (dw_j - sum_i dw_i p_i / S) / S; dp is 0 except for the k experts, and dprob for all.
 * Then dz_e = p_e (dp_e - sum_f p_f dp_f), or of sigmoids p_e (1 - p_e) dp_e. dl: the gradient of l. */
static void route_row_backward(const dt_routing *r, const float *prob, const int32_t *expert, const float *dweight,
                               const float *dprob, float l, float dl, float *dz)
{
    float own[DT_MAX_EXPERTS], sum = r->sigmoid ? TINY : 0, mean = 0, all = 0;
    const float *p = r->sigmoid ? own : prob;
    for (int32_t e = 0; r->sigmoid && e < r->n_experts; e++) own[e] = sigmoid(prob[e]);
    for (int32_t j = 0; j < r->k; j++) sum += p[expert[j]], mean += p[expert[j]] * dweight[j];
    const float scale = dt_routing_scale(r) / (r->normalise ? sum : 1), shift = r->normalise ? mean / sum : 0;
    for (int32_t e = 0; e < r->n_experts; e++) dz[e] = dprob ? dprob[e] : 0;
    for (int32_t j = 0; j < r->k; j++) dz[expert[j]] += (dweight[j] - shift) * scale;
    for (int32_t e = 0; e < r->n_experts; e++) all += p[e] * dz[e];
    for (int32_t e = 0; e < r->n_experts; e++) dz[e] = p[e] * (r->sigmoid ? (1 - p[e]) * dz[e] : dz[e] - all);
    for (int32_t e = 0; dl != 0 && e < r->n_experts; e++) dz[e] += dl * (r->sigmoid ? expf(prob[e] - l) : p[e]);
}

CPU_OP(route_backward)
{
    const dt_routing *r = &x->r;
    const int32_t E = r->n_experts;
    CPU_PARALLEL_FOR (cpu, t, r->n_tok) {
        float dz[DT_MAX_EXPERTS];
        const float l = x->dsquare ? x->lse[2 * t] : 0, dl = x->dsquare ? 2 * l * *x->dsquare : 0;
        route_row_backward(r, x->prob + t * E, x->expert + t * r->k, x->dweight + t * r->k, x->dprob, l, dl, dz);
        cpu->k->convert(&(dt_convert_args){dz, DT_F32, cpu_at_w(x->dlogits, x->dt, t * E), x->dt, E}, 0, E);
    }
    return DT_OK;
}

CPU_OP(order_experts)
{
    const dt_routing *r = &x->r;
    const int64_t n = r->n_tok * r->k;
    memset(x->start, 0, ((size_t)r->n_experts + 1) * sizeof *x->start);
    for (int64_t i = 0; i < n; i++) x->start[x->expert[i] + 1]++;
    for (int32_t e = 0; e < r->n_experts; e++) x->start[e + 1] += x->start[e];
    for (int64_t i = 0; i < n; i++) {
        const int32_t at = x->start[x->expert[i]]++;
        x->row[i] = at;
        x->assignment[at] = (int32_t)i;
        x->token[at] = (int32_t)(i / r->k);
    }
    for (int32_t e = r->n_experts; e > 0; e--) x->start[e] = x->start[e - 1];
    x->start[0] = 0;
    for (int32_t e = 0; x->load && e < r->n_experts; e++) x->load[e] += (float)(x->start[e + 1] - x->start[e]);
    return DT_OK;
}

enum { COLUMNS = 512 };

/* Columns first .. first+n-1 of a token's sum. */
static void combine(const cpu_state *cpu, const dt_combine_rows_args *x, int64_t t, int64_t first, int64_t n)
{
    float sum[COLUMNS] = {0}, one[COLUMNS];
    const int64_t at = t * x->width + first;
    for (int64_t j = t * x->k; j < (t + 1) * x->k; j++) {
        const void *y = cpu_at(x->y, x->dt, x->row[j] * x->width + first);
        const float w = x->weight ? x->weight[j] : 1;
        cpu->k->convert(&(dt_convert_args){y, x->dt, one, DT_F32, n}, 0, n);
        for (int64_t c = 0; c < n; c++) sum[c] += w * one[c];
    }
    if (x->addend) cpu->k->add_rows(sum, cpu_at(x->addend, x->dt, at), x->dt, n);
    cpu->k->convert(&(dt_convert_args){sum, DT_F32, cpu_at_w(x->out, x->dt, at), x->dt, n}, 0, n);
}

CPU_OP(combine_rows)
{
    CPU_PARALLEL_FOR (cpu, t, x->n_tok) {
        for (int64_t c = 0; c < x->width; c += COLUMNS) combine(cpu, x, t, c, dt_min_i64(COLUMNS, x->width - c));
    }
    return DT_OK;
}

/* a[i] *= w; returns sum of a[i] b[i], in 16 partial sums. */
static void weigh(float w, float *a, float *b, int64_t n, float dot[16])
{
    for (int64_t i = 0; i < n; i++) dot[i % 16] += a[i] * b[i];
    for (int64_t i = 0; i < n; i++) a[i] *= w;
    for (int64_t i = 0; i < n; i++) b[i] *= w;
}

static float weigh_row(const cpu_state *cpu, float w, void *x, void *dy, int64_t width, dt_dtype dt)
{
    float a[COLUMNS], b[COLUMNS], dot[16] = {0}, sum = 0;
    for (int64_t c = 0; c < width; c += COLUMNS) {
        const int64_t n = dt_min_i64(COLUMNS, width - c);
        void *at = cpu_at_w(x, dt, c), *d_at = cpu_at_w(dy, dt, c);
        cpu->k->convert(&(dt_convert_args){at, dt, a, DT_F32, n}, 0, n);
        cpu->k->convert(&(dt_convert_args){d_at, dt, b, DT_F32, n}, 0, n);
        weigh(w, a, b, n, dot);
        cpu->k->convert(&(dt_convert_args){a, DT_F32, at, dt, n}, 0, n);
        cpu->k->convert(&(dt_convert_args){b, DT_F32, d_at, dt, n}, 0, n);
    }
    for (int i = 0; i < 16; i++) sum += dot[i];
    return sum;
}

/* sum = w_r dy[r, first .. first+n-1] over rows begin .. end-1. Each block of 64 rows is summed separately before it is
 * added to the total: rounding errors grow with the root of the number of rows. */
static void sum_group(const cpu_state *cpu, const dt_group_bias_backward_args *x, int64_t begin, int64_t end,
                      int64_t first, int64_t n, float *sum)
{
    enum { ROWS = 64 };
    float part[COLUMNS], row[COLUMNS];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t r = begin; r < end; r++) {
        const float w = x->weight ? x->weight[x->assignment[r]] : 1;
        if ((r - begin) % ROWS == 0) memset(part, 0, (size_t)n * sizeof *part);
        cpu->k->convert(&(dt_convert_args){cpu_at(x->dy, x->dt, r * x->width + first), x->dt, row, DT_F32, n}, 0, n);
        for (int64_t c = 0; c < n; c++) part[c] += w * row[c];
        if ((r - begin) % ROWS == ROWS - 1 || r == end - 1)
            for (int64_t c = 0; c < n; c++) sum[c] += part[c];
    }
}

static float dot_row(const cpu_state *cpu, const void *x, const void *y, int64_t width, dt_dtype dt)
{
    float a[COLUMNS], b[COLUMNS], dot[16] = {0}, sum = 0;
    for (int64_t c = 0; c < width; c += COLUMNS) {
        const int64_t n = dt_min_i64(COLUMNS, width - c);
        cpu->k->convert(&(dt_convert_args){cpu_at(x, dt, c), dt, a, DT_F32, n}, 0, n);
        cpu->k->convert(&(dt_convert_args){cpu_at(y, dt, c), dt, b, DT_F32, n}, 0, n);
        for (int64_t i = 0; i < n; i++) dot[i % 16] += a[i] * b[i];
    }
    for (int i = 0; i < 16; i++) sum += dot[i];
    return sum;
}

/* The group of row r: the last one that begins at or before it. */
static int64_t group_of_row(const int32_t *start, int64_t n_groups, int64_t r)
{
    int64_t low = 0, high = n_groups - 1;
    while (low < high) {
        const int64_t at = (low + high + 1) / 2;
        if (start[at] <= r)
            low = at;
        else
            high = at - 1;
    }
    return low;
}

static void add_bias_weights(const cpu_state *cpu, const dt_group_bias_backward_args *x)
{
    CPU_PARALLEL_FOR (cpu, r, x->n_rows) {
        const int64_t g = group_of_row(x->start, x->n_groups, r), width = x->width;
        const void *dy = cpu_at(x->dy, x->dt, r * width);
        x->dweight[x->assignment[r]] += dot_row(cpu, cpu_at(x->bias, x->dt, g * width), dy, width, x->dt);
    }
}

CPU_OP(group_bias_backward)
{
    const int64_t across = cpu_n_chunks(x->width, COLUMNS);
    if (x->weight) add_bias_weights(cpu, x);
    CPU_PARALLEL_FOR (cpu, i, x->dbias ? x->n_groups * across : 0) {
        float sum[COLUMNS];
        const int64_t g = i / across, first = i % across * COLUMNS, n = dt_min_i64(COLUMNS, x->width - first);
        void *to = cpu_at_w(x->dbias, x->gt, g * x->width + first);
        sum_group(cpu, x, x->start[g], x->start[g + 1], first, n, sum);
        cpu->k->add_into(&(dt_add_into_args){sum, DT_F32, to, x->gt, x->accumulate, n}, 0, n);
    }
    return DT_OK;
}

CPU_OP(weigh_rows)
{
    CPU_PARALLEL_FOR (cpu, r, x->n_rows) {
        const int32_t i = x->assignment[r];
        x->dweight[i] = weigh_row(cpu, x->weight[i], cpu_at_w(x->x, x->dt, r * x->width),
                                  cpu_at_w(x->dy, x->dt, r * x->width), x->width, x->dt);
    }
    return DT_OK;
}
