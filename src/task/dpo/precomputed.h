/* precomputed.h - log-probabilities of a reference, computed before training so that the reference takes no memory
 * during training. Private to src/task.
 *
 * They are stored in a file in the run's output_dir, one float per target of each pair, training data first. The header
 * identifies parameters, data, lengths and type. A file that does not match is rejected. The values are computed in the
 * memory of the model in training, before that model's weights are loaded. The reference must therefore have the same
 * shape. */
#ifndef DTRAIN_TASK_PRECOMPUTED_H
#define DTRAIN_TASK_PRECOMPUTED_H

#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/task/task.h"

typedef enum dt_precomputed_part { DT_OF_TRAINING, DT_OF_VALIDATION, DT_N_PRECOMPUTED_PARTS } dt_precomputed_part;
/* keys in the file's header */
enum { DT_KEY_MODEL, DT_KEY_TRAINING, DT_KEY_VALIDATION, DT_KEY_TOKENIZER, DT_KEY_LENGTHS, DT_KEY_TYPE, DT_N_KEYS };

/** Initialise to {0}. */
typedef struct dt_precomputed {
    dt_frozen_model model; /* only described, never opened */
    char *path;
    int fd; /* the open file; -1: not open. Valid if path is not NULL */
    uint64_t key[DT_N_KEYS];
    int64_t n_samples[DT_N_PRECOMPUTED_PARTS];
    int64_t *first[DT_N_PRECOMPUTED_PARTS]; /* [n_samples + 1]: index of each sample's first element in the array */
    float *logp;                            /* [max_tok] of the last batch's targets; NULL: not in use */
} dt_precomputed;

/** In open, after the data is open and t->model_opt covers the batches: add it to the task's parts. When the run
 *  begins, it computes the file or verifies the existing one (DT_ERR_DATA: it does not match or was modified), and
 *  leaves the reference's weights in t->zero. A resume compares the reference with that at the start of the run
 *  (DT_ERR_DATA: it differs). model_path as in dt_reference_open. Errors are returned without the key:
 *  no such model, or another shape than the model in training. Local. */
dt_err dt_precomputed_open(dt_precomputed *p, dt_task *t, const char *model_path);

/** Read p->logp for a batch of pairs. Local. */
dt_err dt_precomputed_read(dt_precomputed *p, dt_precomputed_part part, const dt_batch *b);

#endif
