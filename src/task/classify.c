/* classify.c - task classify: labels of texts, at a text's last token as in transformers' ...ForSequenceClassification,
 * or of words, at their first tokens as in ...ForTokenClassification. The model has a scalar head with a value z_k for
 * each label k. Loss of a target with label y:
 *
 *     single_label, tokens   -log softmax(z)_y
 *     multi_label            mean over k of -(y_k log sigmoid(z_k) + (1 - y_k) log sigmoid(-z_k))
 *     regression             (z_0 - y)^2
 *
 * The loss of a step is the mean over its targets. */
#include "heads.h"
#include "labels.h"
#include "language_model.h"
#include "pair_loss.h"
#include "pairs.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHOWN = 12 }; /* labels of a confusion table that is printed */
/* Counts of a label in a validation: found and right; found and wrong, or missed. */
enum { RIGHT, ERRORS, N_COUNTS };

typedef struct classifier {
    dt_label_set set;
    dt_sample_labels train, valid;
    int64_t n_values; /* of a target: labels, 1 for regression */
    double *count;    /* [N_COUNTS, n] of the validation */
    double *table;    /* [n, n]: targets with label i that were given label k; NULL: none */
    bool has_table;
    int loss, n_target, correct, distance, f1_macro, f1_micro;
} classifier;

static bool is_regression(const classifier *c) { return c->set.problem == DT_PROBLEM_REGRESSION; }
static bool is_multi(const classifier *c) { return c->set.problem == DT_PROBLEM_MULTI; }

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err describe(dt_task *t, json_t *config)
{
    dt_label_set set;
    char architecture[128];
    const char *name = dt_classifier_architecture(t->mc->family);
    DT_TRY(labels_find(&set, t->cfg, config));
    t->n_labels = set.n;
    labels_describe(&set, config);
    const bool words = set.problem == DT_PROBLEM_TOKENS;
    labels_free(&set);
    DT_CONFIG_CHECK(!words || dt_model_has_token_classes(t->mc), t->cfg, "classify", "problem",
                    "expected labels of texts, found labels of words: models of type %s have no head for them",
                    dt_family_name(t->mc->family));
    const char *sequence = strstr(name, "Sequence");
    snprintf(architecture, sizeof architecture, "%.*s%s", words && sequence ? (int)(sequence - name) : 127, name,
             words ? "TokenClassification" : "");
    json_object_set_new(config, "architectures", json_pack("[s]", architecture));
    return DT_OK;
}

static void declare(classifier *c, dt_sums *s)
{
    c->n_target = dt_sums_declare(s, "classify/targets", DT_SUM_UNITS, 1);
    c->loss = pairs_metric(s, "loss", DT_SUM_LOSS, 1, "classify/targets");
    if (is_regression(c)) {
        c->distance = pairs_metric(s, "classify/mae", DT_SUM_LOSS, 1, "classify/targets");
    } else {
        c->correct = pairs_metric(s, "classify/accuracy", DT_SUM_UNITS, 1, "classify/targets");
        /* equal on all ranks */
        c->f1_macro = dt_sums_metric(s, DT_SHOW_VALIDATION, "classify/validation_f1_macro", DT_SUM_MAX, NULL);
        c->f1_micro = dt_sums_metric(s, DT_SHOW_VALIDATION, "classify/validation_f1_micro", DT_SUM_MAX, NULL);
    }
    dt_sums_show(s, DT_SHOW_VALIDATION, "validation_samples", "samples", NULL, NULL);
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    classifier *c = self;
    size_t used = 0;
    labels_lay_out(&c->train, block, &used);
    labels_lay_out(&c->valid, block, &used);
    if (!t->valid) return used;
    c->count = dt_carve(block, &used, N_COUNTS * c->set.n, sizeof *c->count);
    if (c->set.n <= MOST_SHOWN && !is_multi(c) && !is_regression(c))
        c->table = dt_carve(block, &used, c->set.n * c->set.n, sizeof *c->table);
    return used;
}

static dt_err begin(void *self, dt_task *t)
{
    classifier *c = self;
    DT_TRY(labels_read(&c->train, &c->set, t->train));
    return labels_read(&c->valid, &c->set, t->valid);
}

/* Print the table of the last validation. */
static void print_table(const classifier *c)
{
    char row[32 * (MOST_SHOWN + 1)];
    DT_INFO("labels of the last validation (rows), and what the model found (columns):");
    for (int i = -1; i < c->set.n; i++) {
        int n = snprintf(row, sizeof row, "%-12.12s", i < 0 ? "label, found" : c->set.name[i]);
        for (int k = 0; k < c->set.n; k++)
            n += i < 0 ? snprintf(row + n, sizeof row - (size_t)n, " %12.12s", c->set.name[k])
                       : snprintf(row + n, sizeof row - (size_t)n, " %12.0f", c->table[i * c->set.n + k]);
        DT_INFO("%s", row);
    }
}

static void close_part(void *self, dt_task *t)
{
    classifier *c = self;
    if (c->has_table && t->comm && dt_comm_first(t->comm)) print_table(c);
    c->has_table = false;
    labels_free(&c->set);
}

static void classify_open(dt_task *t)
{
    static const dt_task_part_ops part = {.lay_out = lay_out, .begin = begin, .close = close_part};
    classifier *c = t->self;
    if (t->n_units) dt_mistakes_add(t->mistakes, labels_recall(&c->set, t->mc));
    c->n_values = c->set.n;
    answers_open(t, &(dt_task_data){.kind = DT_DATASET_LABELS}, 1);
    dt_task_hold(t, &part, c);
    declare(c, t->sums);
    if (t->n_units == 0) return; /* the labels are unknown after a mistake */
    dt_mistakes_add(t->mistakes, labels_count(&c->train, &c->set, t->train));
    dt_mistakes_add(t->mistakes, labels_count(&c->valid, &c->set, t->valid));
}

/* ---- a target ---------------------------------------------------------------------------------------------------- */

typedef struct target {
    const float *label; /* [n] numbers of its labels, or the value of a regression */
    int64_t n;
    const float *z; /* [n_values] */
    float *dz;      /* [n_values] its derivatives; NULL: not wanted */
} target;

/* Target number i of a batch, which belongs to sequence `sequence`. */
static dt_err find(const dt_task *t, const dt_micro *m, int64_t sequence, int32_t i, const float *value, target *to)
{
    const classifier *c = t->self;
    const dt_sample_labels *of = m->validation ? &c->valid : &c->train;
    const int64_t sample = m->batch->sample[sequence], first = of->first[sample], n = of->first[sample + 1] - first;
    const int32_t row = m->batch->target_row[i], unit = m->batch->target[row];
    const bool words = c->set.problem == DT_PROBLEM_TOKENS;
    DT_CHECK(!words || unit < n, DT_ERR_DATA,
             "sample %" PRId64 ": expected a label for each of its words, found %" PRId64, sample, n);
    *to = (target){of->label + first + (words ? unit : 0), words ? 1 : n, value + row * c->n_values, NULL};
    return DT_OK;
}

static int best_of(const float *z, int64_t n)
{
    int best = 0;
    for (int k = 1; k < n; k++)
        if (z[k] > z[best]) best = k;
    return best;
}

static double loss_of_one(const classifier *c, const target *of, double scale)
{
    const int64_t n = c->n_values, y = (int64_t)of->label[0], best = best_of(of->z, n);
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += exp((double)of->z[k] - (double)of->z[best]);
    for (int64_t k = 0; k < n && of->dz; k++)
        of->dz[k] = (float)(scale * (exp((double)of->z[k] - (double)of->z[best]) / sum - (k == y)));
    return log(sum) + (double)of->z[best] - (double)of->z[y];
}

static bool has_label(const target *of, int64_t k)
{
    for (int64_t i = 0; i < of->n; i++)
        if ((int64_t)of->label[i] == k) return true;
    return false;
}

static double loss_of_many(const classifier *c, const target *of, double scale)
{
    double loss = 0;
    for (int64_t k = 0; k < c->n_values; k++) {
        const double sign = has_label(of, k) ? 1 : -1, z = (double)of->z[k];
        loss -= dt_log_sigmoid(sign * z);
        if (of->dz) of->dz[k] = (float)(-scale * sign * dt_sigmoid(-sign * z) / (double)c->n_values);
    }
    return loss / (double)c->n_values;
}

/* The loss of a target; scale times its derivatives in of->dz. */
static double loss_of(const classifier *c, const target *of, double scale)
{
    if (is_multi(c)) return loss_of_many(c, of, scale);
    if (!is_regression(c)) return loss_of_one(c, of, scale);
    const double d = (double)of->z[0] - (double)of->label[0];
    if (of->dz) of->dz[0] = (float)(2 * scale * d);
    return d * d;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static dt_err classify_begin_step(dt_task *t, int64_t step, const dt_step_counts *counts)
{
    t->micro.inv_norm = 1 / (double)counts->n_target;
    return DT_OK;
}

static dt_err classify_weights(dt_task *t, const dt_micro *m, const dt_predictions *p, dt_weights *w)
{
    const classifier *c = t->self;
    const dt_batch *b = m->batch;
    memset(w->dvalue, 0, (size_t)(b->n_tok * c->n_values) * sizeof *w->dvalue);
    for (int64_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++) {
            target of;
            DT_TRY(find(t, m, s, i, p->value, &of));
            of.dz = w->dvalue + b->target_row[i] * c->n_values;
            loss_of(c, &of, m->inv_norm);
        }
    return DT_OK;
}

/* Count a label that the target has or does not have, and that was found or not. */
static void count_label(const classifier *c, int64_t k, bool has, bool found)
{
    if (has || found) c->count[(has && found ? RIGHT : ERRORS) * c->set.n + k]++;
}

/* Is the target classified correctly? counts: also count its labels. */
static bool judge(const classifier *c, const target *of, bool counts)
{
    bool right = true;
    const int best = best_of(of->z, c->n_values);
    for (int64_t k = 0; k < c->n_values; k++) {
        const bool has = has_label(of, k), found = is_multi(c) ? of->z[k] > 0 : k == best;
        right &= has == found;
        if (counts) count_label(c, k, has, found);
    }
    if (counts && c->table) c->table[(int64_t)of->label[0] * c->set.n + best]++;
    return right;
}

static void classify_collect(dt_task *t, const dt_micro *m, const dt_predictions *p)
{
    const classifier *c = t->self;
    const dt_batch *b = m->batch;
    for (int64_t s = 0; s < b->n_seq; s++)
        for (int32_t i = b->seq_target[s]; i < b->seq_target[s + 1]; i++) {
            target of;
            if (find(t, m, s, i, p->value, &of) != DT_OK) continue; /* weights has reported it */
            dt_sums_add(t->sums, c->loss, loss_of(c, &of, 1));
            if (is_regression(c))
                dt_sums_add(t->sums, c->distance, fabs((double)of.z[0] - (double)of.label[0]));
            else
                dt_sums_count(t->sums, c->correct, judge(c, &of, m->validation));
        }
    dt_sums_count(t->sums, c->n_target, b->n_target);
}

/* ---- validation -------------------------------------------------------------------------------------------------- */

static double f1_of(double right, double errors) { return right > 0 ? 2 * right / (2 * right + errors) : 0; }

/* F1 as in scikit-learn, over the labels that occur as label or as result; with several labels of a text over all. */
static void add_f1(dt_task *t)
{
    const classifier *c = t->self;
    const int64_t n = c->set.n;
    double all[N_COUNTS] = {0}, sum = 0;
    int64_t n_seen = 0;
    for (int64_t k = 0; k < n; k++) {
        const double right = c->count[RIGHT * n + k], errors = c->count[ERRORS * n + k];
        all[RIGHT] += right, all[ERRORS] += errors;
        sum += f1_of(right, errors);
        n_seen += is_multi(c) || right + errors > 0;
    }
    dt_sums_add(t->sums, c->f1_macro, n_seen ? sum / (double)n_seen : 0);
    dt_sums_add(t->sums, c->f1_micro, f1_of(all[RIGHT], all[ERRORS]));
}

static dt_err begin_validation(dt_task *t)
{
    classifier *c = t->self;
    const int64_t n = c->set.n;
    memset(c->count, 0, (size_t)(N_COUNTS * n) * sizeof *c->count);
    if (c->table) memset(c->table, 0, (size_t)(n * n) * sizeof *c->table);
    return DT_OK;
}

static dt_err end_validation(dt_task *t)
{
    classifier *c = t->self;
    const int64_t n = c->set.n;
    if (is_regression(c)) return DT_OK;
    dt_phase_enter(t->phase, "validate", "counts of labels");
    DT_TRY(dt_fault("task.classify"));
    DT_TRY(answers_add_up(t, c->count, N_COUNTS * n));
    if (c->table) DT_TRY(answers_add_up(t, c->table, n * n));
    c->has_table = c->table != NULL;
    add_f1(t);
    return DT_OK;
}

#define CLASSIFIER                                                                                                     \
    .name = "classify", .no_dropout = true, .self_nbytes = sizeof(classifier), .describe = describe,                   \
    .open = classify_open, .collect = classify_collect, .begin_validation = begin_validation,                          \
    .end_validation = end_validation

const dt_task_ops classify_evaluation = {CLASSIFIER};
const dt_task_ops dt_task_classify = {CLASSIFIER,
                                      .trains = true,
                                      .watch = {"classify/accuracy", "classify/mae"},
                                      .num_tokens = "classify/num_tokens",
                                      .begin_step = classify_begin_step,
                                      .weights = classify_weights};
