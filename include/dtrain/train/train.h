/* train.h - the superstep loop and what it needs at start: batch sizes, intervals, plan. */
#ifndef DTRAIN_TRAIN_H
#define DTRAIN_TRAIN_H

#include "dtrain/adapter/adapter.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/config.h"
#include "dtrain/data/data.h"
#include "dtrain/pretrained/pretrained.h"
#include "dtrain/process/process.h"
#include "dtrain/report/report.h"
#include "dtrain/task/task.h"

/* ---- batch sizes ------------------------------------------------------------------------------------------------- */

/** Any two of [batch] give the third (one alone: accumulation 1). DT_ERR_USAGE, naming the nearest values that work,
 *  when they do not multiply. */
dt_err dt_batching_resolve(dt_batching *b, const dt_config *cfg, int nranks);
/** For a task that takes no optimizer step: the micro-batch size, or what the others come to a rank, and nothing
 *  else. */
void dt_batching_for_evaluation(dt_batching *b, const dt_config *cfg, int nranks);

/** What is nearest to [batch] and works, where dt_batching_resolve has failed: train_batch_size gives way. */
void dt_batching_nearest(dt_batching *b, const dt_config *cfg, int nranks);

/* ---- intervals --------------------------------------------------------------------------------------------------- */

/** 0: never but at the end; below 1: that share of total, rounded up; else the number itself. For save_steps,
 *  logging_steps, validation_steps. */
int64_t dt_interval_steps(double value, int64_t total_steps);
/** These keys are numbers because of the shares: DT_ERR_USAGE for one that is neither a share nor a whole number of
 *  steps. */
dt_err dt_intervals_check(const dt_config *cfg);
/** load_best_model_at_end: every save must come with a validation. DT_ERR_USAGE naming the nearest save_steps that
 *  fit. */
dt_err dt_best_intervals_check(const dt_config *cfg, int64_t total_steps);

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/** Numbers of sums (sums.h): those that the loop itself needs of a task, and its own. */
typedef struct dt_loop_sums {
    int tokens, samples, images; /* images -1: samples have none */
    const dt_shown *loss;
    int bad_own, bad_sum;                                       /* where gradients were not finite first */
    int memory_device, memory_pinned, memory_host, memory_file; /* the largest of a rank */
    int memory[DT_N_MEMCAT][DT_N_PLACE];                        /* held now; the largest of a rank */
    int save_done, save_work; /* have all ranks done their part of a save; seconds that the slowest took */
    int time_min[DT_N_TIME], time_mean[DT_N_TIME], time_max[DT_N_TIME]; /* seconds by group; mean: their sum */
} dt_loop_sums;

/** What a save beside the training took, on rank 0. */
typedef struct dt_save_cost {
    int64_t step;
    double nbytes, copy_s; /* copied by a rank */
    double stall_s;        /* in which training stood still */
    double whole_s;        /* until it was published */
    bool is_new;           /* not reported yet */
} dt_save_cost;

/** A save, and what is lent to it until it is published. */
typedef struct dt_saving {
    dt_saver *saver; /* NULL: training waits for checkpoints */
    dt_buf items;    /* room for what the task leaves */
    dt_ckpt_meta meta;
    dt_saved_model models[DT_MAX_SAVED];
    int n_models;
    char *dir;
    bool is_best;
    double stall_s; /* so far */
    dt_save_cost cost;
} dt_saving;

/** What of a vision-language model is trained: vision.train. Of the language model n_last blocks where that is above
 *  0. */
struct run_parts {
    bool tower, projector, llm, embed, head;
    int64_t n_last;
};

/** Everything a run holds. {0}, then dt_run_* in order; dt_run_close frees what was opened. */
typedef struct dt_run {
    dt_config cfg;
    dt_mistakes mistakes; /* found so far in what the user asks for; reported together */
    dt_ledger ledger;
    dt_phase phase;
    dt_comm *comm; /* NULL for --plan */
    dt_device dev;
    dt_device host; /* the CPU beside another device: updates what is offloaded; {0} where dev is the CPU */
    dt_stream *compute;
    int nranks, most_sharing; /* on one device */
    double peak_flops;        /* of all devices together, of products in the model's type; 0: not known */
    dt_batching batching;
    dt_model_config mc;
    dt_unit *units;
    int n_units;
    dt_lora lora; /* adapters of the units */
    struct run_parts parts;
    dt_row_range *rows;           /* rec.freeze_llm: of the vocabulary's matrices, which are trained */
    dt_chunks chunks;             /* lent to comm */
    dt_memory planned, allocated; /* of this rank before the first step */
    dt_model_options model_opt;
    const dt_optimizer_ops *optimizer; /* set before the run: this one; else the one that the configuration names */
    dt_trained main;                   /* the run's own model, whether it is trained or evaluated */
    dt_param_source source;            /* of its zero, for model */
    dt_model *model;
    dt_trained *trained[DT_MAX_TRAINED]; /* main, and what the task trains beside it */
    int n_trained;
    dt_task task;     /* task.ops NULL: the one that run.task names */
    dt_sums sums;     /* all that is counted: the task's, then the loop's */
    dt_metric *shown; /* room for all of them in one record */
    dt_loop_sums counted;
    dt_report *report;
    dt_watchdog *watchdog;
    bool force;    /* take the directory from a run that seems to be alive */
    dt_lock *lock; /* rank 0 */
    dt_timeline *timeline;
    dt_schedule schedule;
    dt_loss_scale scale;
    int64_t n_nonfinite; /* steps of this run whose gradients were not finite */
    int64_t total_steps;
    double start_s;
    bool has_progressed;       /* this start has written a newer checkpoint, or done all that was left */
    bool only_check;           /* --check: nothing is written */
    double deadline_s;         /* dt_now_s() at which the run must have ended; 0: none */
    const char *deadline_name; /* whose that is */
    double save_s, step_s;     /* how long a save, and a superstep, may take */
    double load_s;             /* how long loading the checkpoint took, 0: none was loaded */
    bool save_is_measured;
    dt_saving saving;
    char **resume_paths; /* rank 0: checkpoints to go on from, best first */
    int n_resume_paths, resume_first;
    bool resume_is_given; /* by path: no other will do */
    bool has_pretrained;  /* is there a model to start from? */
    dt_pretrained pretrained;
    dt_base base; /* pretrained by its full path, and what is frozen there: for checkpoints that leave it out */
} dt_run;

typedef enum dt_mode {
    DT_MODE_RUN,
    DT_MODE_CHECK,
    DT_MODE_CHECK_DEVICE /* the configuration may lack all that a run needs */
} dt_mode;

/** Run or check what run->cfg asks for. Collective. */
dt_err dt_run_main(dt_run *run, dt_comm *comm, dt_mode mode);

/** --plan: memory per rank by category and place, and communication, every stage and offload, as text on out. Local;
 *  opens no device, starts no thread and reads only the headers of what the configuration names, where that is there;
 *  run->cfg may have been read with DT_VARIABLES_MAY_BE_UNSET. DT_ERR_MEMORY when nothing fits. */
typedef struct dt_plan_request {
    int nranks, ranks_per_node; /* ranks_per_node 0: all on one node */
    int devices_per_node;       /* 0: one for each rank */
    /* bytes of a device and of a node; 0: this machine's, and not known for a device with memory of its own, which is
     * not opened. On the CPU device both are one memory, and the smaller holds */
    uint64_t device_memory, host_memory;
    uint64_t nvme_space; /* bytes behind zero.nvme_path of a node; 0: this machine's, and not known where that is not */
    /* a name of chips.h: the devices are of this kind, and the time of a step on them is printed, too; NULL: none */
    const char *gpu;
} dt_plan_request;
dt_err dt_plan_print(dt_run *run, const dt_plan_request *req, FILE *out);

void dt_run_close(dt_run *run); /* local */

#endif
