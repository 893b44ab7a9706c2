/* model_expected.h - what transformers computed of a tiny model, from the files of tests/make_model_fixtures.py and
 * tests/make_vision_fixtures.py, against what a ref_model computes. */
#ifndef TESTS_MODEL_EXPECTED_H
#define TESTS_MODEL_EXPECTED_H

#include "cases.h"
#include <jansson.h>

#include "ref_model.h"

static inline double number(const json_t *v)
{
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static inline void assert_near(const char *what, const char *which, double expected, double found, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%s of %s: expected %.9g, found %.9g: off by %.2g, allowed %.2g", what, which, expected, found,
                 fabs(found - expected), tolerance);
}

/* Relative to the tensor's gradient: some 10^2 roundings of 2^-24 in the chain back to the first block, adding up
 * like a random walk to 10 * 6e-8, with a factor 10; the matmul with values below 1/2 has the same error times at
 * most sqrt(n)/4. least: of gradients that are 0 except for rounding. */
static inline void check_grad(const json_t *root, ref_model *r, int u, const dt_tensor *t, double least)
{
    double sum = 0, dot = 0;
    char name[DT_NAME_MAX + 8];
    snprintf(name, sizeof name, "dot.%s", t->name);
    for (int64_t e = 0; e < t->n_elems; e++) {
        const double g = ref_grad(r, u, t->offset + e);
        sum += g * g;
        dot += g * ref_number(name, e);
    }
    const double norm = number(json_object_get(json_object_get(root, "grad_norm"), t->name)),
                 tolerance = 6e-6 * norm + least;
    assert_near("gradient norm", t->name, norm, sqrt(sum), tolerance);
    assert_near("gradient", t->name, number(json_object_get(json_object_get(root, "grad_dot"), t->name)), dot,
                tolerance * fmax(1, sqrt((double)t->n_elems) / 4));
}

/* Of all that is trained, which is what the file has. */
static inline void check_grads(const json_t *root, ref_model *r, double least)
{
    size_t n_found = 0;
    for (int u = 0; u < r->n_units; u++)
        for (int i = 0; i < r->units[u].n_tensors; i++) {
            const dt_tensor *t = &r->units[u].tensors[i];
            if (t->part == DT_TRAINED) check_grad(root, r, u, t, least), n_found++;
        }
    assert_int_equal(n_found, json_object_size(json_object_get(root, "grad_norm")));
}

/* A step of AdamW on a batch, whose loss before it is that of the list; tolerance is relative. */
static inline void check_step(const json_t *root, ref_model *r, const dt_batch *b, const char *name,
                              const json_t *losses, size_t step, double tolerance)
{
    double loss;
    char what[48];
    ref_model_forget_grads(r);
    assert_int_equal(ref_model_grads(r, b, (int64_t)step, 1, &loss), DT_OK);
    ref_model_adamw(r, number(json_object_get(root, "lr")), number(json_object_get(root, "weight_decay")),
                    number(json_object_get(root, "clip")));
    snprintf(what, sizeof what, "loss of step %zu", step);
    assert_near(what, name, number(json_array_get(losses, step)), loss, tolerance * loss);
}

#endif
