/* contrast.c - the in-batch contrastive loss, and its derivatives. Each rank computes what belongs to its own groups:
 * the losses of their queries, then the gradients of their texts. Every sum has a fixed order, so that results do not
 * depend on the number of ranks. */
#include "contrast.h"
#include <math.h>
#include <string.h>

static const double *text_of(const dt_contrast *c, int64_t i, int64_t k)
{
    return c->x + (i * c->n_texts + k) * c->width;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void dt_contrast_clear(dt_contrast *c)
{
    memset(c->loss, 0, (size_t)c->n * sizeof *c->loss);
    if (c->gradient) memset(c->gradient, 0, (size_t)(c->n * c->n_texts * c->width) * sizeof *c->gradient);
}

void dt_contrast_length(dt_contrast *c, int k)
{
    static const double smallest = 1e-12; /* as in torch.nn.functional.normalize */
    for (int64_t i = 0; i < c->n * c->n_texts; i++) {
        const double *x = c->x + i * c->width;
        c->inverse[i] = c->present[i] > 0 ? 1 / fmax(sqrt(dot(x, x, c->dim[k])), smallest) : 0;
    }
    for (int64_t i = 0; i < c->n; i++) c->log_sum[i] = 0;
}

double dt_contrast_similarity(const dt_contrast *c, int k, int64_t i, int64_t j, int64_t t)
{
    return c->scale * dot(text_of(c, i, 0), text_of(c, j, t), c->dim[k]) * c->inverse[i * c->n_texts] *
           c->inverse[j * c->n_texts + t];
}

static bool exists(const dt_contrast *c, int64_t i, int64_t t) { return c->present[i * c->n_texts + t] > 0; }

static void loss_of_query(dt_contrast *c, int k, int64_t i)
{
    const double own = dt_contrast_similarity(c, k, i, i, 1);
    double most = own, sum = 0;
    bool right = true;
    for (int64_t j = 0; j < c->n; j++)
        for (int64_t t = 1; t < c->n_texts; t++) {
            if (!exists(c, j, t)) continue;
            const double s = dt_contrast_similarity(c, k, i, j, t);
            if (s > most) sum *= exp(most - s), most = s;
            sum += exp(s - most);
            right &= s <= own;
        }
    c->log_sum[i] = most + log(sum);
    c->loss[i] += c->weight[k] * (c->log_sum[i] - own);
    c->right[i] = right;
}

void dt_contrast_losses(dt_contrast *c, int k, const bool *mine)
{
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < c->n; i++)
        if (mine[i] && exists(c, i, 0)) loss_of_query(c, k, i);
}

/* Add to the gradient of text t of group i what comes from its cosine with text `of` of group j; one of them is the
 * query. *along: the sum of the derivatives by cosines, times these. */
static void add_pair(dt_contrast *c, int k, int64_t i, int64_t t, int64_t j, int64_t of, double *along)
{
    const bool is_query = t == 0;
    const double s = is_query ? dt_contrast_similarity(c, k, i, j, of) : dt_contrast_similarity(c, k, j, i, t);
    const double p = exp(s - c->log_sum[is_query ? i : j]), fits = i == j && (is_query ? of : t) == 1;
    const double factor = c->weight[k] * (p - fits); /* d loss / d s */
    const double *x = text_of(c, j, of);
    double *to = c->gradient + (i * c->n_texts + t) * c->width;
    const double by = factor * c->scale * c->inverse[i * c->n_texts + t] * c->inverse[j * c->n_texts + of];
    for (int64_t d = 0; d < c->dim[k]; d++) to[d] += by * x[d];
    *along += factor * s;
}

static void gradient_of_text(dt_contrast *c, int k, int64_t i, int64_t t)
{
    const double *x = text_of(c, i, t), inverse = c->inverse[i * c->n_texts + t];
    double *to = c->gradient + (i * c->n_texts + t) * c->width, along = 0;
    for (int64_t j = 0; j < c->n; j++)
        for (int64_t of = t == 0; of < (t == 0 ? c->n_texts : 1); of++)
            if (exists(c, j, of)) add_pair(c, k, i, t, j, of, &along);
    for (int64_t d = 0; d < c->dim[k]; d++) to[d] -= along * inverse * inverse * x[d];
}

void dt_contrast_gradients(dt_contrast *c, int k, const bool *mine)
{
#pragma omp parallel for schedule(dynamic)
    for (int64_t at = 0; at < c->n * c->n_texts; at++)
        if (mine[at / c->n_texts] && exists(c, at / c->n_texts, at % c->n_texts))
            gradient_of_text(c, k, at / c->n_texts, at % c->n_texts);
}
