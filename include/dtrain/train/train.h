/* train.h - the training loop and its start: batch sizes, intervals, plan. */
#ifndef DTRAIN_TRAIN_H
#define DTRAIN_TRAIN_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/config.h"
#include "dtrain/data/data.h"
#include "dtrain/eval/eval.h"
#include "dtrain/pretrained/pretrained.h"
#include "dtrain/process/process.h"
#include "dtrain/report/report.h"
#include "dtrain/task/task.h"

/* ---- batch sizes ------------------------------------------------------------------------------------------------- */

/** Resolve the batch sizes: any two of [batch] give the third; one alone means accumulation 1. b: out. Local.
 *  DT_ERR_USAGE, with the nearest valid values: the product does not match. */
dt_err dt_batching_resolve(dt_batching *b, const dt_config *cfg, int nranks);
/** Resolve the batch sizes of a task without optimizer steps: micro_batch_size, or the value per rank that the other
 *  keys imply. b: out. Local. */
void dt_batching_for_evaluation(dt_batching *b, const dt_config *cfg, int nranks);

/** The nearest valid batch sizes, after dt_batching_resolve failed: train_batch_size is changed. b: out. Local. */
void dt_batching_nearest(dt_batching *b, const dt_config *cfg, int nranks);

/* ---- intervals --------------------------------------------------------------------------------------------------- */

/** Number of steps of save_steps, logging_steps or validation_steps. 0: only at the end; below 1: that fraction of
 *  total_steps, rounded up; otherwise the value itself. Local. */
int64_t dt_interval_steps(double value, int64_t total_steps);
/** Check these keys. DT_ERR_USAGE: one is neither a fraction nor a whole number. Local. */
dt_err dt_intervals_check(const dt_config *cfg);
/** Check that every save coincides with a validation, as load_best_model_at_end requires. interval: between validations
 *  that have the metric, the value of `key`. Local. DT_ERR_USAGE, with the nearest valid save_steps. */
dt_err dt_best_intervals_check(const dt_config *cfg, int64_t total_steps, const char *key, double interval);

/* ---- state of a run ---------------------------------------------------------------------------------------------- */

/** Indices of sums (sums.h): those of a task that the loop needs, and its own. */
typedef struct dt_loop_sums {
    int tokens, samples, images, cells; /* images, cells -1: none */
    const dt_shown *loss;
    int bad_own, bad_sum;                                       /* first unit with non-finite gradients */
    int memory_device, memory_pinned, memory_host, memory_file; /* peak bytes, maximum over ranks */
    int memory[DT_N_MEMCAT][DT_N_MEMSPACE];                     /* current bytes, maximum over ranks */
    int save_done, save_work; /* have all ranks completed their part of a save; seconds of the slowest */
    int time_min[DT_N_TIME], time_mean[DT_N_TIME], time_max[DT_N_TIME]; /* seconds by group; time_mean: their sum */
} dt_loop_sums;

/** Cost of an asynchronous save, on rank 0. */
typedef struct dt_save_cost {
    int64_t step;
    double nbytes, copy_s; /* of a rank's copy */
    double stall_s;        /* in which training waited */
    double whole_s;        /* until the checkpoint was published */
    bool is_new;           /* not reported yet */
} dt_save_cost;

/** A save, and the objects that an asynchronous save borrows until it is published. */
typedef struct dt_saving {
    dt_saver *saver; /* NULL: training waits for checkpoints */
    dt_buf items;    /* memory for the task's items */
    dt_ckpt_meta meta;
    dt_saved_model models[DT_MAX_SAVED];
    int n_models;
    bool is_best;
    double stall_s; /* so far */
    dt_save_cost cost;
} dt_saving;

/** The time by which a run must have ended, and the expected durations of what must fit before. */
typedef struct dt_time_limit {
    double at_s;           /* as dt_now_s(); 0: no limit */
    const char *name;      /* origin of the limit */
    double save_s, step_s; /* expected seconds of a save, and of a superstep */
    double load_s;         /* seconds of loading the checkpoint; 0: none was loaded */
    bool save_is_measured;
} dt_time_limit;

/** Checkpoints to resume from, on rank 0. */
typedef struct dt_candidates {
    char **path;   /* [n], best first */
    int n, first;  /* the first to try: those before it are damaged */
    bool is_given; /* by path: no other is tried */
} dt_candidates;

/** The trained parts of a vision-language model: vision.train. n_last > 0: only the last n_last blocks of the language
 *  model. */
struct run_parts {
    bool tower, projector, llm, embed, head;
    int64_t n_last;
};

/** State of a run. {0} to begin; freed with dt_run_close. */
typedef struct dt_run {
    dt_config cfg;
    dt_mistakes mistakes; /* found so far in the user's input; reported together */
    dt_ledger ledger;
    dt_phase phase;
    dt_comm *comm; /* NULL for --plan */
    dt_device dev;
    dt_device host; /* the CPU in addition to another device, for offloaded updates; {0} if dev is the CPU */
    dt_stream *compute;
    const dt_mesh *mesh; /* of comm, or planned_mesh */
    dt_mesh planned_mesh;
    int max_sharing;   /* maximum ranks on a device */
    double peak_flops; /* of all devices together, for products in the model's type; 0: unknown */
    dt_batching batching;
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_lora lora; /* adapters of the units */
    struct run_parts parts;
    char **frozen; /* [n_frozen] patterns of model.freeze */
    int n_frozen;
    dt_row_range *rows;           /* rec.freeze_llm: trained rows of the vocabulary's matrices */
    dt_chunks chunks;             /* lent to comm */
    dt_memory planned, allocated; /* of this rank before the first step */
    dt_model_options model_opt;
    const dt_optimizer_ops *optimizer; /* set by the caller, or NULL: the one that the configuration names */
    dt_trained main;                   /* the run's own model, whether it is trained or evaluated */
    dt_param_source source;            /* of main.zero, for model */
    dt_model *model;
    dt_trained *trained[DT_MAX_TRAINED]; /* main, and the task's auxiliary models */
    int n_trained;
    dt_task task;     /* task.ops set by the caller, or NULL: the task that run.task names */
    dt_evals *evals;  /* a part of task; NULL: no benchmarks */
    dt_sums sums;     /* the task's sums, then the loop's */
    dt_metric *shown; /* space for all metrics of a record */
    dt_loop_sums counted;
    dt_report *report;
    dt_watchdog *watchdog;
    bool force;    /* take the lock from a run that seems to be alive */
    dt_lock *lock; /* rank 0 */
    dt_timeline *timeline;
    dt_schedule schedule;
    dt_loss_scale scale;
    int64_t n_nonfinite; /* steps of this run whose gradients were not finite */
    int64_t total_steps;
    double start_s;
    bool has_progressed; /* since this start a newer checkpoint was written, or the run was completed */
    bool only_check;     /* --check: nothing is written */
    dt_time_limit limit;
    dt_saving saving;
    char *checkpoint_dir; /* OUTPUT_DIR/checkpoints */
    dt_candidates resume;
    bool has_pretrained; /* there is an initial model */
    dt_pretrained pretrained;
    dt_base base; /* the initial model's full path and frozen tensors, for checkpoints that omit them */
} dt_run;

/** Mode of dt_run_main. */
typedef enum dt_mode {
    DT_MODE_RUN,
    DT_MODE_CHECK,
    DT_MODE_CHECK_DEVICE /* only the device; other settings may be missing */
} dt_mode;

/** Run or check the configuration run->cfg. Collective, agreed except for errors after which the caller ends the job
 *  (dt_comm_failed_together). Errors: any; dt_exit_code maps them. */
dt_err dt_run_main(dt_run *run, dt_comm *comm, dt_mode mode);

/** Arguments of dt_plan_print. */
typedef struct dt_plan_request {
    int nranks, ranks_per_node; /* ranks_per_node 0: all on one node */
    int devices_per_node;       /* 0: one for each rank */
    /* bytes of a device and of a node; 0: this machine's, but unknown for a GPU, which is not opened. On the CPU device
     * both are the same memory, and the smaller counts */
    uint64_t device_memory, host_memory;
    uint64_t nvme_space; /* bytes of a node's disk at zero.nvme_path; 0: this machine's, if it exists */
    /* a name of chips.h: also print the time of a step on devices of this kind; NULL: none */
    const char *gpu;
} dt_plan_request;
/** Print the plan (--plan): memory per rank by category and memory space, and communication, for every stage and
 *  offload. Local: opens no device, starts no thread, and reads only headers of the files that the configuration names
 *  and that exist. run->cfg may have been read with DT_VARIABLES_MAY_BE_UNSET. DT_ERR_MEMORY: nothing fits.
 *  DT_ERR_USAGE, DT_ERR_DATA: the configuration or its files. */
dt_err dt_plan_print(dt_run *run, const dt_plan_request *req, FILE *out);

/** Free everything that was opened. Local. Safe on {0} and after an error. */
void dt_run_close(dt_run *run);

#endif
