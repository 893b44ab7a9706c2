/* run.h - what the files of src/train share. */
#ifndef DTRAIN_SRC_TRAIN_RUN_H
#define DTRAIN_SRC_TRAIN_RUN_H

#include "dtrain/train.h"

/* How far a run has come. The first four go into checkpoints. */
typedef struct progress {
    int64_t step, samples, tokens; /* supersteps done, samples and tokens seen */
    int64_t updates;               /* of them, those that changed the weights */
    int64_t saved_step;            /* newest checkpoint of this run, -1: none */
    int64_t data_step;             /* the loader's step of superstep `step`: differs after a resume with another batch size */
    int64_t skipped_in_row;
} progress;

dt_err run_open_device(dt_run *run, int local_rank, int n_threads); /* run.c; local */

/* setup.c: the parts of opening a run, from the configuration. The first two are local and fail alike on all ranks except where files are read. */
dt_err run_open_config_objects(dt_run *run); /* batch sizes, model configuration, units, options */
dt_err run_open_data(dt_run *run);           /* loaders, number of steps, schedule */
dt_err run_settle_stage(dt_run *run, int ranks_per_node, size_t free_bytes); /* zero.stage = auto: the same on all ranks; collective */
dt_err run_open_states(dt_run *run);         /* zero, model, buffers: collective, agreed */

dt_err run_betas(const dt_config *cfg, double *beta1, double *beta2); /* [optimizer] betas: two numbers in [0, 1) */

/* threads.c: the first is collective; the second is what the first would give ranks_per_node ranks that share this machine. */
dt_err run_threads(const dt_run *run, int *n_threads);
int run_threads_planned(const dt_run *run, int ranks_per_node);

/* plan.c: bytes by category of a rank at a stage, as run_open_states would allocate. */
typedef struct stage_plan { dt_zero_plan zero; size_t bytes[DT_N_MEMCAT], total; } stage_plan;
dt_err run_plan_stage(const dt_run *run, int stage, int nranks, int ranks_per_node, stage_plan *plan);
void run_compare_plan(dt_run *run, const stage_plan *plan); /* with what is allocated now; logs both */

/* resume.c */
dt_err run_resume(dt_run *run, progress *p);       /* collective, agreed */
dt_err run_save(dt_run *run, progress *p);         /* collective, agreed */
char *run_checkpoint_dir(const dt_run *run);       /* malloc'ed */

/* export.c */
dt_err run_settle_tokenizer(dt_run *run); /* [model] tokenizer, and into the configuration; local */
dt_err run_export(dt_run *run);           /* what checkpoint.export asks for; collective, agreed */

/* closing.c: what this start has done, where it is and what to do with it; rank 0. loop_s: time of the steps from `from` to `to`. */
void run_say_closing(const dt_run *run, const progress *from, const progress *to, double loop_s);

/* loop.c, evaluate.c: collective, agreed */
dt_err run_loop(dt_run *run, progress *p);
dt_err run_validate(dt_run *run, int64_t step);

#endif
