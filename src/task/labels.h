/* labels.h - labels of texts or words: their names, and those of a dataset's samples. Private to src/task. */
#ifndef DTRAIN_TASK_LABELS_H
#define DTRAIN_TASK_LABELS_H

#include "dtrain/step/step.h"

/** Values of classify.problem, in the order of the key's words. */
typedef enum dt_label_problem {
    DT_PROBLEM_AUTO,
    DT_PROBLEM_SINGLE,
    DT_PROBLEM_MULTI,
    DT_PROBLEM_REGRESSION,
    DT_PROBLEM_TOKENS
} dt_label_problem;

/** The labels of a run: name[k] is label number k. Regression has one label. Freed with labels_free. */
typedef struct dt_label_set {
    dt_label_problem problem;
    char **name; /* [n] */
    int n;
} dt_label_set;

/** Find the problem and the names: of the keys, else of config (a config.json with id2label), else of the dataset
 *  files. s: out. Local. DT_ERR_USAGE, DT_ERR_DATA. */
dt_err labels_find(dt_label_set *s, const dt_config *cfg, const json_t *config);
void labels_free(dt_label_set *s);
/** Store names and problem in a config.json, as transformers does. Local. */
void labels_describe(const dt_label_set *s, json_t *config);
/** The labels that labels_describe stored in the configuration of the model. s: out. Local. DT_ERR_MEMORY. */
dt_err labels_recall(dt_label_set *s, const dt_model_config *mc);

/** Labels of the samples of a dataset, one after another: numbers of labels, or values of a regression. {0}: none. */
typedef struct dt_sample_labels {
    int64_t n_samples, n_labels;
    int64_t *first; /* [n_samples + 1]: of a sample's labels */
    float *label;   /* [n_labels] */
} dt_sample_labels;
/** Count the labels of l's samples, and check them; l NULL: none. Local. DT_ERR_DATA naming the sample. */
dt_err labels_count(dt_sample_labels *of, const dt_label_set *s, dt_loader *l);
/** Assign its arrays with dt_carve. */
void labels_lay_out(dt_sample_labels *of, void *block, size_t *used);
/** Read the labels into the arrays. Local. */
dt_err labels_read(dt_sample_labels *of, const dt_label_set *s, dt_loader *l);

#endif
