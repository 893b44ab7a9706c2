/* frozen_model.h - a trained model without optimizer: for generation, and as reference and reward model of tasks. */
#ifndef DTRAIN_FROZEN_MODEL_H
#define DTRAIN_FROZEN_MODEL_H

#include "dtrain/pretrained/pretrained.h"

/** A frozen model. {0} to begin; freed with dt_frozen_model_close. Must not be moved after dt_frozen_model_load: models
 *  borrow units and source. */
typedef struct dt_frozen_model {
    const char *adapter;   /* set by the caller before dt_frozen_model_describe: directory of adapters; NULL: none */
    const dt_config *keys; /* likewise: [lora] describes new adapters; NULL: none */
    const dt_unit *like;   /* likewise: [n_like] units that determine which matrices are quantised; NULL: as recorded */
    int n_like;
    const char *strip_prefix; /* likewise: dt_stored_parts.prefix; NULL: none */
    dt_model_part model_part; /* likewise: of a directory with a model with images */
    dt_lora lora;             /* its adapters: of that directory, or of a checkpoint's run */
    dt_pretrained from;       /* its path, tokenizer, sampling defaults */
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_zero *zero;
    dt_param_source source;
} dt_frozen_model;

/* the scalar head that the files of the adapter, or else of the model, contain; without a head hidden states if
 * architectures says so */
/* ..._OF_SCORE: without any of these, the model is not a scoring model */
enum { DT_LABELS_OF_FILES = -1, DT_LABELS_OF_SCORE = -3 };

/** Find a model and read everything except its tensors. Local.
 *
 *  f         inout  freed with dt_frozen_model_close, also after an error
 *  model     a Hugging Face directory; a checkpoint; or a run's output_dir or its checkpoints directory: then the
 *            checkpoint that `latest` names, else the highest step
 *  n_labels  outputs of a scalar head (a reward model); 0: it predicts tokens; or DT_LABELS_OF_FILES
 *
 *  DT_ERR_DATA naming the missing or invalid file. DT_ERR_MEMORY. */
dt_err dt_frozen_model_describe(dt_frozen_model *f, const char *model, int n_labels);

/** Describe a model with the shape of another, for a plan; it cannot be loaded. Local. DT_ERR_MEMORY. */
dt_err dt_frozen_model_of_shape(dt_frozen_model *f, const dt_model_config *like, int n_labels);

enum { DT_GROUPS_THAT_FIT = -1 }; /* dt_zero_options.expert_group_size: chosen by dt_frozen_model_load */

/** Allocate and load the parameters. Collective, agreed except for DT_ERR_COMM.
 *
 *  like     storage of the parameters: partitioned at stage 3 and offloaded as offload_param says; otherwise whole on
 *           every rank. Its groups of experts replace f->units. Options of the run's own model (dt_task.main), or
 *           {.stage}
 *  compute  stream of its models
 *  phase    may be NULL
 *
 *  DT_ERR_DATA, DT_ERR_MEMORY, DT_ERR_COMM: as dt_pretrained_load. */
dt_err dt_frozen_model_load(dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, dt_comm *comm,
                            dt_device *dev, dt_stream *compute, dt_phase *phase);
/** Add what dt_frozen_model_load allocates on nranks ranks to the plan. Local. DT_ERR_MEMORY. */
dt_err dt_frozen_model_plan(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                            const dt_device *dev, dt_memory *memory);

/** Bytes of it that a rank writes into checkpoints (dt_zero_saved_nbytes), with nranks ranks. nbytes: out. Local. */
dt_err dt_frozen_model_saved_nbytes(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                                    size_t *nbytes);

/** Free the parameters and the description. Local. Safe on {0} and after an error; leaves {0}. */
void dt_frozen_model_close(dt_frozen_model *f);

#endif
