/* precomputed.h - log-probabilities of a reference that were found before the training, so that it is in no memory
 * while that runs. Private to src/task.
 *
 * They are in a file in the run's output_dir, a float for each target of each pair, training data first. Its head says
 * what they are of: parameters, data, lengths and type. A file that is of something else is refused. They are made with
 * the memory of the model in training, before its own weights are loaded, so the reference has its shape. */
#ifndef DTRAIN_TASK_PRECOMPUTED_H
#define DTRAIN_TASK_PRECOMPUTED_H

#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/task/task.h"

typedef enum dt_precomputed_part { DT_OF_TRAINING, DT_OF_VALIDATION, DT_N_PRECOMPUTED_PARTS } dt_precomputed_part;
/* keys in the header of the file */
enum { DT_KEY_MODEL, DT_KEY_TRAINING, DT_KEY_VALIDATION, DT_KEY_TOKENIZER, DT_KEY_LENGTHS, DT_KEY_TYPE, DT_N_KEYS };

/** {0} to start from. */
typedef struct dt_precomputed {
    dt_frozen_model model; /* described, never opened */
    char *path;
    int fd; /* of the file, where path is not NULL and it is open; else -1 */
    uint64_t key[DT_N_KEYS];
    int64_t n_samples[DT_N_PRECOMPUTED_PARTS];
    int64_t *first[DT_N_PRECOMPUTED_PARTS]; /* [n_samples + 1]: elements before each sample's, from the array's start */
    float *logp;                            /* [max_tok] of the last batch's targets, 0 elsewhere */
    void *block;
    size_t nbytes;
} dt_precomputed;

/** In open, when the data are open and t->model_opt is as wide as the batches; model_path as dt_reference_open. What is
 *  wrong is returned, without the key: no such model, another shape than the model in training has. Local. */
dt_err dt_precomputed_open(dt_precomputed *p, dt_task *t, const char *model_path);
dt_err dt_precomputed_plan(const dt_precomputed *p, const dt_task *t, dt_memory *memory); /* local */
/** In begin: make the file, or find that it is there. Leaves the reference's weights in t->zero. Collective, agreed.
 *  DT_ERR_DATA: the file that is there is of something else, or was altered. DT_ERR_WRITE. */
dt_err dt_precomputed_begin(dt_precomputed *p, dt_task *t);
void dt_precomputed_close(dt_precomputed *p, dt_ledger *ledger); /* local; safe on {0} */

/** p->logp of a batch of pairs. Local. */
dt_err dt_precomputed_read(dt_precomputed *p, dt_precomputed_part part, const dt_batch *b);

/** What a checkpoint says of the reference; another one than this is DT_ERR_DATA. Local. */
enum { DT_PRECOMPUTED_NBYTES = 8 };
dt_err dt_precomputed_save(const dt_precomputed *p, dt_named_arrays *items);
dt_err dt_precomputed_load(const dt_precomputed *p, const dt_named_arrays *items);

#endif
