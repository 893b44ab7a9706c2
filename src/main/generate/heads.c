/* heads.c - what classifiers and embeddings compute of the texts of --answers. */
#include "generate_app.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static head_kind kind_of(const app *a, int64_t n_labels)
{
    const char *type = json_string_value(json_object_get(a->head.config, "problem_type"));
    if (n_labels == 0) return HEAD_EMBEDDING;
    if (a->frozen.mc.score_bias) return HEAD_WORDS;
    if (type && strcmp(type, "multi_label_classification") == 0) return HEAD_LABELS;
    if (type && strcmp(type, "regression") == 0) return HEAD_VALUE;
    return n_labels > 1 ? HEAD_LABEL : HEAD_REWARD;
}

dt_err generate_describe_head(app *a)
{
    const dt_frozen_model *f = &a->frozen;
    const dt_unit *head = &f->units[dt_units_find(f->units, f->n_units, DT_UNIT_SCALAR_HEAD)];
    int64_t n_labels = 0;
    DT_TRY(dt_json_parse(&a->head.config, "config.json", f->mc.json, strlen(f->mc.json), 0));
    for (int i = 0; i < head->n_tensors; i++)
        if (strcmp(head->tensors[i].name, "score.weight") == 0) n_labels = head->tensors[i].shape[0];
    a->head.kind = kind_of(a, n_labels);
    a->head.n_values = n_labels ? n_labels : f->mc.hidden_size;
    if (a->head.kind != HEAD_EMBEDDING) return DT_OK;
    return dt_sentence_read(&a->head.sentence, dt_is_directory(f->from.path) ? f->from.path : NULL, f->mc.json);
}

float *generate_values_of(const app *a, const dt_sequence *s)
{
    return a->values + (int64_t)s->number * a->head.n_values;
}

static int best_of(const float *z, int64_t n)
{
    int best = 0;
    for (int k = 1; k < n; k++)
        if (z[k] > z[best]) best = k;
    return best;
}

/* Logits to probabilities: of one of the labels, or of each. */
static void to_probabilities(head_kind kind, float *z, int64_t n)
{
    const double most = (double)z[best_of(z, n)];
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += exp((double)z[k] - most);
    for (int64_t k = 0; k < n; k++)
        z[k] = (float)(kind == HEAD_LABELS ? 1 / (1 + exp(-(double)z[k])) : exp((double)z[k] - most) / sum);
}

static dt_err embed(app *a, const float *hidden, int64_t n, float *to)
{
    const int64_t width = a->head.n_values;
    double *x, length = 0;
    DT_ALLOC(x, width, "out of memory for an embedding of %" PRId64 " values", width);
    dt_sentence_pool(a->head.sentence.pooling, hidden, n, width, x);
    for (int64_t d = 0; d < width; d++) length += x[d] * x[d];
    length = a->head.sentence.normalize ? fmax(sqrt(length), 1e-12) : 1;
    for (int64_t d = 0; d < width; d++) to[d] = (float)(x[d] / length);
    free(x);
    return DT_OK;
}

dt_err generate_take_values(app *a, dt_sequence *s, const float *value)
{
    const int64_t n = a->head.n_values, n_values = s->n_ids * n;
    for (int64_t i = 0; i < n_values; i++)
        DT_CHECK(isfinite(value[i]), DT_ERR_NONFINITE, "%s: a value of text %" PRIu64 " is not finite", a->opt.score,
                 s->number);
    DT_CHECK(s->n_ids > 0, DT_ERR_DATA, "text %" PRIu64 " has no tokens", s->number);
    if (a->head.kind == HEAD_EMBEDDING) return embed(a, value, s->n_ids, generate_values_of(a, s));
    if (a->head.kind == HEAD_WORDS) { /* the number of each token's label */
        for (int32_t i = 0; i < s->n_ids; i++) s->logps[i] = (float)best_of(value + i * n, n);
        return DT_OK;
    }
    memcpy(generate_values_of(a, s), value + (s->n_ids - 1) * n, (size_t)n * sizeof *value);
    if (a->head.kind != HEAD_VALUE) to_probabilities(a->head.kind, generate_values_of(a, s), n);
    return DT_OK;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static const char *name_of(const app *a, int label, char text[32])
{
    snprintf(text, 32, "%d", label);
    const char *name = json_string_value(json_object_get(json_object_get(a->head.config, "id2label"), text));
    return name ? name : (snprintf(text, 32, "LABEL_%d", label), text);
}

/* The labels of a text: one, those above 1/2, or those of its tokens. */
static json_t *labels_of(const app *a, const dt_sequence *s)
{
    char text[32];
    json_t *all = json_array();
    if (a->head.kind == HEAD_LABEL)
        json_array_append_new(all, json_string(name_of(a, best_of(generate_values_of(a, s), a->head.n_values), text)));
    for (int k = 0; a->head.kind == HEAD_LABELS && k < a->head.n_values; k++)
        if (generate_values_of(a, s)[k] > 0.5f) json_array_append_new(all, json_string(name_of(a, k, text)));
    for (int32_t i = 0; a->head.kind == HEAD_WORDS && i < s->n_ids; i++)
        json_array_append_new(all, json_string(name_of(a, (int)s->logps[i], text)));
    return all;
}

void generate_add_values(const app *a, const dt_sequence *s, json_t *object)
{
    json_t *values = json_array(), *labels = labels_of(a, s);
    for (int64_t k = 0; a->values && k < a->head.n_values; k++)
        json_array_append_new(values, json_real((double)generate_values_of(a, s)[k]));
    switch (a->head.kind) {
    case HEAD_LABEL:
        json_object_set(object, "predicted", json_array_get(labels, 0));
        json_object_set(object, "probabilities", values);
        break;
    case HEAD_LABELS:
        json_object_set(object, "predicted", labels);
        json_object_set(object, "probabilities", values);
        break;
    case HEAD_WORDS:
        json_object_set(object, "predicted", labels);
        break;
    case HEAD_EMBEDDING:
        json_object_set(object, "embedding", values);
        break;
    default:
        json_object_set(object, "value", json_array_get(values, 0));
    }
    json_decref(values);
    json_decref(labels);
}

void generate_print_values(const app *a, const dt_sequence *s)
{
    json_t *labels = labels_of(a, s), *label;
    size_t i;
    json_array_foreach(labels, i, label) printf("%s%s", i ? " " : "", json_string_value(label));
    const bool numbers = a->head.kind == HEAD_VALUE || a->head.kind == HEAD_EMBEDDING;
    for (int64_t k = 0; numbers && k < a->head.n_values; k++)
        printf("%s%.9g", k ? " " : "", (double)generate_values_of(a, s)[k]);
    putchar('\n');
    json_decref(labels);
}
