/* frozen_model.h - a trained model without optimizer: what generates, and the reference and reward models of
 * tasks. */
#ifndef DTRAIN_FROZEN_MODEL_H
#define DTRAIN_FROZEN_MODEL_H

#include "dtrain/pretrained/pretrained.h"

/** {0} to start from. Not to be moved after dt_frozen_model_load: models borrow units and source. */
typedef struct dt_frozen_model {
    const char *adapter; /* the caller's, before it is described: a directory of adapters for it; NULL: none */
    const dt_unit
        *like; /* likewise, [n_like]: units of that model, as whose its matrices are stored; NULL: as recorded */
    int n_like;
    const char *strip_prefix; /* likewise, dt_stored_parts.prefix; NULL: none */
    dt_lora lora;             /* those it has: of that directory, or of a checkpoint's run */
    dt_pretrained from;       /* its path, tokenizer, sampling defaults */
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_zero *zero;
    dt_param_source source;
} dt_frozen_model;

enum { DT_LABELS_OF_FILES = -1 }; /* a scalar head where the adapter, or else the model, has one in its files */

/** Find the model (a Hugging Face directory; a checkpoint; a run's output_dir or its checkpoints directory: the one
 *  that `latest` names, else the highest step) and read all of it but the tensors. n_labels: of a scalar head, as a
 *  reward model has it; 0: it predicts tokens; DT_LABELS_OF_FILES. Local. DT_ERR_DATA naming what was looked for. */
dt_err dt_frozen_model_describe(dt_frozen_model *f, const char *model, int n_labels);

/** A model of that shape, to be planned for; it cannot be loaded. Local. */
dt_err dt_frozen_model_of_shape(dt_frozen_model *f, const dt_model_config *like, int n_labels);

/** Load the parameters, kept as `like` says of parameters: partitioned at stage 3, and offloaded as offload_param says;
 *  else whole on every rank. What a run's own model is kept like (dt_task.main) or {.stage}. compute: the stream on
 *  which its models will work. phase (may be NULL) says where it stands. Collective; all ranks return the same code but
 *  for DT_ERR_COMM. */
dt_err dt_frozen_model_load(dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, dt_comm *comm,
                            dt_device *dev, dt_stream *compute, dt_phase *phase);
/** Add what that allocates on so many ranks. Local. */
dt_err dt_frozen_model_plan(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                            const dt_device *dev, dt_memory *memory);

/** Bytes of it that a rank puts into checkpoints (dt_zero_saved_nbytes), on so many ranks. Local. */
dt_err dt_frozen_model_saved_nbytes(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                                    size_t *nbytes);

void dt_frozen_model_close(dt_frozen_model *f); /* local; safe on {0} and after an error */

#endif
