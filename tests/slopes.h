/* slopes.h - gradients of a model against central differences of a loss.
 *
 * For a direction d (a unit vector inside one tensor) the slope of f(e) = loss(w + e d) at 0 is compared with g.d. With
 * the five-point formula
 *     D(h) = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / (12 h)
 * the truncation error is c h^4, so |D(2h) - D(h)| / 15 estimates it; and a rounding error r of f becomes at most 18 r
 * / (12 h). h starts wide and is halved until truncation is the smaller of the two: a direction that lies in a few rows
 * of the embedding bends fast. */
#ifndef SLOPES_H
#define SLOPES_H

#include "cases.h"
#include "ref_model.h"

static const double H_WIDEST = 0.01, H_NARROWEST = 0.0025;

/** The loss whose slope is looked at; NAN after an error. */
typedef double slope_loss(ref_model *r, const dt_batch *b);
/* A mean over 25 tokens of logp with about ten roundings of 2^-24 * 4 each, partly shared: 10^-6 is a generous
 * bound. */
static inline double rounding(double h) { return 18 * 1e-6 / (12 * h); }

enum direction { RANDOM_SIGNS, ALONG_GRADIENT, ONE_ELEMENT };

static inline double component(ref_model *r, int u, const dt_tensor *t, enum direction kind, int64_t i, double norm)
{
    if (kind == RANDOM_SIGNS) return (ref_number(t->name, i) < 0 ? -1 : 1) / sqrt((double)t->n_elems);
    if (kind == ALONG_GRADIENT) return norm > 0 ? ref_grad(r, u, t->offset + i) / norm : 0;
    return i == t->n_elems / 3;
}

/* The loss with e * d added to tensor t, whose weights are w0. */
static inline double loss_at(ref_model *r, const dt_batch *b, slope_loss *loss, int u, const dt_tensor *t,
                             const double *w0, const double *d, double e)
{
    for (int64_t i = 0; i < t->n_elems; i++) ref_set_param(r, u, t->offset + i, w0[i] + e * d[i]);
    const double found = loss(r, b);
    assert_false(isnan(found));
    return found;
}

struct slope {
    double value, tolerance;
};

static inline struct slope slope_along(ref_model *r, const dt_batch *b, slope_loss *loss, int u, const dt_tensor *t,
                                       const double *w0, const double *d)
{
    for (double h = H_WIDEST;; h /= 2) {
        double diff[3];
        for (int k = 0; k < 3; k++) {
            const double e = h * (double)(1 << k);
            diff[k] = loss_at(r, b, loss, u, t, w0, d, e) - loss_at(r, b, loss, u, t, w0, d, -e);
        }
        const double fine = (8 * diff[0] - diff[1]) / (12 * h), coarse = (8 * diff[1] - diff[2]) / (24 * h);
        const double truncation = fabs(coarse - fine) / 15;
        if (truncation < rounding(h) || h <= H_NARROWEST) return (struct slope){fine, rounding(h) + 2 * truncation};
    }
}

/** The gradients of tensor t, which are there, against the slope of the loss along a direction. */
static inline void check_tensor(ref_model *r, const dt_batch *b, slope_loss *loss, int u, const dt_tensor *t,
                                enum direction kind)
{
    double *w0 = calloc((size_t)t->n_elems, sizeof *w0), *d = calloc((size_t)t->n_elems, sizeof *d), norm = 0,
           expected = 0;
    for (int64_t i = 0; i < t->n_elems; i++) norm += pow(ref_grad(r, u, t->offset + i), 2);
    for (int64_t i = 0; i < t->n_elems; i++) {
        w0[i] = ref_param(r, u, t->offset + i);
        d[i] = component(r, u, t, kind, i, sqrt(norm));
        expected += d[i] * ref_grad(r, u, t->offset + i);
    }
    const struct slope s = slope_along(r, b, loss, u, t, w0, d);
    loss_at(r, b, loss, u, t, w0, d, 0);
    free(w0);
    free(d);
    if (!(fabs(s.value - expected) <= s.tolerance))
        fail_msg("%s, direction %d: slope %.7g, gradient says %.7g: off by %.2g, allowed %.2g", t->name, kind, s.value,
                 expected, fabs(s.value - expected), s.tolerance);
}

/** All tensors, along all directions. */
static inline void check_slopes(ref_model *r, const dt_batch *b, slope_loss *loss)
{
    for (int u = 0; u < r->n_units; u++)
        for (int i = 0; i < r->units[u].n_tensors; i++)
            for (int kind = RANDOM_SIGNS; kind <= ONE_ELEMENT; kind++)
                check_tensor(r, b, loss, u, &r->units[u].tensors[i], kind);
}

#endif
