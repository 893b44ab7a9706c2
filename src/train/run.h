/* run.h - shared declarations of src/train. */
#ifndef DTRAIN_SRC_TRAIN_RUN_H
#define DTRAIN_SRC_TRAIN_RUN_H

#include "dtrain/train/train.h"
#include <string.h>

/* Progress of a run. Checkpoints contain the first four. */
typedef struct progress {
    int64_t step, samples, tokens; /* supersteps done, samples and tokens seen */
    int64_t updates;               /* steps that changed the weights */
    int64_t first_step;            /* the step at which this process started */
    int64_t saved_step;            /* newest checkpoint of this run, -1: none */
    /* the loader's step of superstep `step`: differs after a resume with another batch size */
    int64_t data_step;
    int64_t skipped_in_row;
    char bad_location[160]; /* location of the last non-finite gradient */
    bool validation_due;    /* the validation of this step was postponed or interrupted */
    int64_t best_step;      /* of the best validation, 0: none */
    double best_metric;     /* its metric */
    int64_t n_not_better;   /* validations since then without improvement */
} progress;

/* Does this rank report for the run? */
static inline bool run_reports(const dt_run *run) { return !run->comm || dt_comm_first(run->comm); }
static inline bool run_trains(const dt_run *run) { return run->task.ops->trains; }
static inline uint64_t run_data_fingerprint(const dt_run *run)
{
    return run->task.train ? dt_loader_fingerprint(run->task.train) : 0;
}

/* setup.c: stages of opening a run from its configuration. The first two are local. Errors are added to run->mistakes,
 * and the remaining stages still run. */
/* the CPU device in addition to another device; local */
dt_err run_open_host(dt_run *run, int n_threads, bool planning);
void run_open_config_objects(dt_run *run);     /* batch sizes, model configuration, units, options */
dt_err run_check_attention(const dt_run *run); /* with a device, or the planned one; local */
dt_err run_attach_adapters(dt_run *run);       /* to run->units, by the section [lora] */
/* Is `what` in the directory dir of the run's output? */
bool run_writes_in(const dt_run *run, const char *what, const char *dir);
void run_open_task(dt_run *run);     /* its data and metrics, number of steps, schedule */
void run_make_schedule(dt_run *run); /* of run->total_steps */
dt_err run_open_states(dt_run *run); /* zero, model, buffers: collective, agreed */

/* token_rows.c: rec.freeze_llm. Called for the units once the trained parts are known; local. */
dt_err run_choose_rows(dt_run *run);

/* model_part.c: model.vision. Checks the key against vision.path; describes model.path (run->pretrained), or reads
 * [model] without it (run->mc); checks the key, once it is known whether the model has images. */
dt_err run_check_tower(const dt_run *run);
dt_err run_describe_model(dt_run *run);
dt_err run_model_from_keys(dt_run *run);
dt_err run_check_part(const dt_run *run, bool has_vision);

/* trained_parts.c: vision.train. Reads the key; with adapters, adds its modules to lora.modules_to_save; determines
 * whether a tensor is trained. Local. */
dt_err run_choose_parts(dt_run *run);
dt_err run_save_parts(dt_run *run);
bool run_trains_part(const dt_run *run, const dt_tensor *tensor);
/* trained_parts.c: model.freeze. Reads the key; is the tensor in it?; checks, after the choice of trained tensors, that
 * every pattern matches a tensor, and that some are trained. */
dt_err run_read_freeze(dt_run *run);
bool run_freezes(const dt_run *run, const dt_tensor *tensor);
dt_err run_check_freeze(const dt_run *run);
/* vision.feature_cache: called once the trained parts are known; local */
dt_err run_check_features(dt_run *run);

/* check.c */
/* checks that rank 0 can do at start; adds errors to run->mistakes. Returns whether output_dir is usable */
bool run_check_settings(dt_run *run);
/* checks offload to zero.nvme_path, if configured. Each rank checks the disk of its node; local */
dt_err run_check_nvme_path(const dt_run *run);
/* --check: verifies all input files completely; rank 0 */
dt_err run_check_files(dt_run *run);

/* first_check.c: compares the results of the GPU with those of the CPU, unless a cached result exists. On the lowest
 * rank of each GPU; local */
dt_err run_check_device(dt_run *run);

/* plan.c */
int64_t run_n_param(const dt_run *run);
/* FLOPs of forward and backward for n_tok tokens, in sequences of data.seq_len, and n_images images. */
double run_flops(const dt_run *run, double n_tok, double n_images);
double run_checkpoint_nbytes(const dt_run *run); /* maximum size on disk */

/* strategy.c: the stage, offload and shard_group of a plan */
typedef struct strategy {
    int stage;
    dt_offload offload_optimizer, offload_param;
    bool by_node;              /* zero.shard_group */
    int64_t expert_group_size; /* 0: all experts of a block together, or until a trial chooses */
} strategy;
enum { MAX_STRATEGIES = 32, STRATEGY_TEXT = 180 };

strategy run_strategy(const dt_run *run);                     /* configured, or chosen by auto */
void run_apply(const strategy *s, dt_zero_options *opt);      /* all but the groups, which depend on ranks and nodes */
bool run_same_strategy(const strategy *a, const strategy *b); /* groups of experts do not count */
const char *run_offload_name(dt_offload offload);             /* the value of the key */
/* "zero.stage = 3, zero.offload_optimizer = cpu"; returns out */
const char *run_strategy_text(const strategy *s, char out[STRATEGY_TEXT]);
const char *run_offload_text(const strategy *s, char out[STRATEGY_TEXT]); /* without the stage; may be empty */
/* The strategies that zero.stage = auto tries, in order; returns their number. keep_given: omit those that differ from
 * an offload_optimizer or offload_param that the user set. Only rank 0 knows which keys the user set. */
int run_strategies(const dt_run *run, bool keep_given, strategy list[MAX_STRATEGIES]);
int run_stage_by_size(int64_t n_param, bool trains); /* zero.stage = auto:size */

bool run_groups_are_auto(const dt_run *run); /* zero.expert_group_size = auto, or not set */

/* axes.c: the axes of a team, [mesh] */
enum { MESH_TEXT = 256 };
dt_mesh_shape run_mesh(const dt_run *run, const strategy *s); /* how a strategy arranges the ranks */
dt_err run_check_ranks(const dt_run *run, int nranks);        /* do teams divide the ranks? */
dt_err run_check_axes(const dt_run *run);                     /* does the run combine with the axes? */
/* for each axis that is used `before`, its size, `ranks` and what they divide: ", 2 of which divide the tokens of a
 * sample"; returns out */
const char *run_mesh_text(const dt_run *run, const char *before, const char *ranks, char out[MESH_TEXT]);

/* settings of a plan: those of the configuration, unless a field is changed */
typedef struct plan_setting {
    strategy strategy;
    int nranks, ranks_per_node; /* all ranks */
    dt_batching batching;
    dt_model_options model_opt;
    bool accumulates; /* over micro-steps in this plan; gradients are then kept in fp32 */
    int64_t max_live_parameters;
    bool auto_groups; /* zero.expert_group_size = auto: a trial chooses groups if all experts do not fit */
    bool gathered;    /* stage 3: the main model keeps all parameters gathered during rollouts */
    bool saves_async; /* checkpoint.async: a save copies the states to host memory */
} plan_setting;
plan_setting run_setting(const dt_run *run, int nranks, int ranks_per_node);
int run_planned_data(const dt_run *run, const plan_setting *with); /* ranks of the axis data */
/* options of a model, with the run's strategy and max_live_parameters */
dt_zero_options run_zero_options(const plan_setting *with, const dt_trained *m);
/* the sum of squares that the vote adds up; collective if run.reproducible is set */
dt_err run_grad_sum_squares(const dt_run *run, dt_zero *zero, double *squares);

/* memory of a rank, as run_open_states would allocate it */
typedef struct rank_plan {
    dt_zero_plan zero;
    dt_memory memory;
    double sent_bytes;  /* per step, as papers count it */
    dt_sent sent;       /* the same, by transport */
    int64_t needs_live; /* the max_live_parameters needed; 0: the configured value suffices */
} rank_plan;
dt_err run_plan(const dt_run *run, const plan_setting *with, rank_plan *plan);
/* the same; if max_live_parameters is too small, with a sufficient value */
dt_err run_try(const dt_run *run, const plan_setting *with, rank_plan *plan);

/* budget.c: checks whether a plan fits. A rank's memory spaces lie in one or two physical memories: on the CPU device
 * only in the node's memory, otherwise also in the device's own. States offloaded to nvme are in a third, the disk. */
typedef struct rank_memory {
    const char *name, *shared_by; /* "device memory", "device" */
    bool holds[DT_N_MEMSPACE];
    int n_sharing; /* ranks */
    size_t nbytes; /* free memory per rank; SIZE_MAX: unknown */
} rank_memory;
enum { MAX_MEMORIES = 3 };
typedef struct budget {
    rank_memory memory[MAX_MEMORIES];
    int n;
} budget;
#define RUN_USABLE 0.9 /* fraction of the free memory; the rest is for the system and fragmentation */

void run_budget(const dt_run *run, int ranks_per_node, budget *b);
size_t run_part(const dt_memory *bytes, const rank_memory *m); /* the bytes that are in m */
/* the first memory whose usable share is exceeded; NULL: the plan fits */
const rank_memory *run_exceeds(const budget *b, double usable, const dt_memory *needed);
dt_memory run_overhead(const dt_run *run); /* device memory outside the ledger */
dt_memory run_held(const dt_run *run);     /* present allocation, including the overhead */

dt_memory run_missing(const dt_memory *planned, const dt_memory *held); /* the part that is not yet allocated */

/* limits that plans are checked against */
typedef struct limits {
    const budget *budget;
    double usable;  /* of each memory */
    bool quick;     /* if all experts do not fit, try only the smallest groups */
    dt_memory held; /* allocated already, and contained in the plans */
} limits;

/* choose.c */
typedef struct trial {
    rank_plan plan;
    bool gathered;               /* with all parameters gathered, because the task requests it and memory suffices */
    const rank_memory *short_of; /* NULL: it fits */
    bool works;                  /* it fits, and max_live_parameters is enough */
    /* zero.expert_group_size, as configured or chosen by auto. If auto chooses groups: the reason, which is what all
     * experts together are too large for */
    int64_t expert_group_size, n_experts; /* n_experts 0: auto has not chosen groups */
    const rank_memory *whole_short_of;
    int64_t whole_needs_live;
} trial;
dt_err run_trial(const dt_run *run, const plan_setting *with, const limits *l, trial *t);
/* checks that the configured strategy fits into the free memory; local */
dt_err run_check_memory(const dt_run *run, int ranks_per_node);
/* "zero.expert_group_size = auto takes 8 of 64 experts: ..."; "" if auto has not chosen groups. Returns out */
enum { GROUPS_TEXT = 200 };
const char *run_groups_text(const trial *t, char out[GROUPS_TEXT]);
/* zero.stage = auto: the first strategy that fits on every rank; zero.expert_group_size = auto: its groups. Collective,
 * agreed */
dt_err run_settle_strategy(dt_run *run, int ranks_per_node);
/* for a task with rollouts: decides whether parameters stay gathered on every rank. Collective, agreed */
dt_err run_settle_gathered(dt_run *run, int ranks_per_node);

/* memory_table.c: both log */
void run_compare_plan(dt_run *run, const rank_plan *plan); /* compares it with the present allocation */
void run_say_overhead(const dt_run *run);                  /* memory that the device uses in addition; after a step */
void run_say_trials(const strategy list[], const trial trials[], int n, bool nodes); /* nodes: more than one */

/* remedy.c: changes that would make a run fit; local. */
enum { REMEDY_TEXT = 800 };
/* End of a message: the smallest change that fits or, if there is none, the number of ranks at which stage 3 fits, in
 * multiples of `unit` (0: not searched). is_auto: the strategy does not count as a change. */
dt_err run_say_remedy(const dt_run *run, const plan_setting *with, const limits *l, bool is_auto, int64_t unit,
                      const rank_memory *short_of, char out[REMEDY_TEXT]);

/* stop.c: early end of a run. Everything but run_agree is local. */
enum { STOP_NO, STOP_TIME_LIMIT, STOP_SIGNAL };
/* determines the time limit: run.time_limit, or the end of the job on a rank whose environment reports it; 0: none */
void run_stop_open(dt_time_limit *l, double time_limit, double start_s, bool sees_job);
/* estimates the duration of the first save, of nbytes */
void run_stop_estimate(dt_time_limit *l, double nbytes, int n_nodes);
void run_stop_measure(dt_time_limit *l, double save_s); /* records the duration of a save */
int run_stop_request(const dt_run *run, double more_s); /* would a save still fit after more_s seconds? */
double run_stop_at(const dt_run *run);                  /* latest start of a save, as dt_phase.stop_at_s */
/* "a signal", "run.time_limit", "the end of the Slurm job" */
const char *run_stop_name(const dt_time_limit *l, int stop);
/* DT_ERR_USAGE if start-up took all of the run's time; called before its first step */
dt_err run_stop_too_late(const dt_run *run);
/* dt_comm_agree; also handles a signal during start-up. Collective */
dt_err run_agree(dt_run *run, dt_err err);

/* stalled.c: counts consecutive starts without a newer checkpoint, in run.output_dir. A job script that restarts the
 * run after each of them would otherwise never end. */
/* resets the count: a newer checkpoint was written, or the run is complete; local */
void run_count_progress(dt_run *run);
/* The final error of the run: DT_ERR_STOP becomes DT_ERR_USAGE if another start would not help. Collective, agreed. */
dt_err run_count_stop(dt_run *run, dt_err err);

/* extend.c: the learning rate of a resumed run. The schedule position of an update: the number of earlier updates, or
 * of rollouts for a task with rollouts. Local. */
int64_t run_schedule_position(const dt_run *run, const progress *p);
int64_t run_last_schedule_position(const dt_run *run, const progress *p); /* of the last update; -1: none yet */
/* p: position of the checkpoint in the present data; before: its configuration. Reports the change of the learning
 * rate. */
void run_extend_schedule(dt_run *run, const dt_ckpt_meta *meta, const dt_config *before, const progress *p);

/* changes.c: reports or refuses (DT_ERR_USAGE) differences from the run that wrote a checkpoint; local. */
dt_err run_check_changes(const dt_run *run, const char *path, const dt_ckpt_meta *meta);
/* are there no changes to report? */
dt_err run_same_settings(const dt_run *run, const char *path, const dt_ckpt_meta *meta, bool *same);

/* branch.c: local, on rank 0. */
/* moves checkpoints that are newer than the step away, if any */
dt_err run_leave_branch(const char *output_dir, int64_t step);
dt_err run_finish_leaving(const char *output_dir); /* completes what a kill interrupted */

/* best.c: the best validation, and early stopping. */
/* validates the combination of keys; local, the same on all ranks */
dt_err run_best_check(const dt_run *run);
bool run_best_same_metric(const dt_config *a, const dt_config *b);
void run_best_take(const dt_run *run, int parts, progress *p); /* right after the validation of these parts */
/* the best validation is of this step, and its checkpoint is to be kept */
bool run_best_is_new(const dt_run *run, const progress *p);
bool run_best_gives_up(const dt_run *run, const progress *p); /* early stopping */
dt_err run_best_settle(dt_run *run, progress *p);             /* after resuming; collective, agreed */
dt_err run_best_publish(dt_run *run, int64_t step);           /* its checkpoint exists; collective, agreed */
dt_err run_best_load(dt_run *run, const progress *p);         /* at the end; collective, agreed */

/* resume.c */
/* the run's models in the form of checkpoints, trained ones first; returns their number */
int run_list_models(const dt_run *run, dt_saved_model models[DT_MAX_SAVED]);
/* the same for a checkpoint: if it predates a frozen model that the task keeps, that model is omitted */
int run_list_saved(const dt_run *run, const char *path, dt_saved_model models[DT_MAX_SAVED]);
/* the candidate to try after number i failed with err: the previous one, or, if its base is corrupt, one that is
 * complete; n: none. Rank 0 */
int run_next_candidate(const dt_candidates *c, dt_err err, int i);
dt_err run_choose_checkpoint(dt_run *run);   /* before anything is allocated; local, on rank 0 */
dt_err run_resume(dt_run *run, progress *p); /* collective, agreed */
/* --check: reports where a run would continue from this file, and its learning rate; local, rank 0 */
dt_err run_say_position(dt_run *run, const char *path);

bool run_saves_frozen(const dt_run *run); /* do checkpoints contain frozen parameters? local */

/* saving.c: collective and agreed, unless marked local. */
bool run_saves_async(const dt_run *run);    /* is checkpoint.async in use? local */
size_t run_items_nbytes(const dt_run *run); /* size of the task's items in a checkpoint; local */
dt_err run_open_saver(dt_run *run);         /* opens the saver and reserves that size; local */
void run_close_saver(dt_run *run);          /* local */
/* Saves the state of this step after any save in progress; at_once: the checkpoint is published on return */
dt_err run_save(dt_run *run, progress *p, bool at_once);
dt_err run_save_look(dt_run *run); /* adds the progress of this rank's writer to the vote of a step; local */
dt_err run_save_go_on(dt_run *run, progress *p);  /* continues the save after that vote */
dt_err run_save_finish(dt_run *run, progress *p); /* wait for a save in progress */
/* the same if all ranks know that the run ends with err, which is returned */
dt_err run_save_last(dt_run *run, progress *p, dt_err err);
/* cost of the last asynchronous save, reported once; returns the number of metrics; local */
enum { RUN_SAVE_METRICS = 5 };
int run_save_metrics(dt_run *run, dt_metric metrics[RUN_SAVE_METRICS]);

/* nonfinite.c: steps with non-finite gradients. */
void run_declare_nonfinite(dt_run *run);
void run_note_nonfinite(dt_run *run); /* this rank's results, for the vote */
/* sets whether ranks check their own gradients in the next step; nonfinite: those of the last step were not finite;
 * local */
void run_watch_next(dt_run *run, const progress *p, bool nonfinite);
/* after the vote on a step: updates the loss scale, warns, and ends the run after too many skipped steps; collective,
 * agreed */
dt_err run_judge_step(dt_run *run, progress *p, bool nonfinite);
/* at the end of the loop: DT_ERR_NONFINITE if no step was finite; collective, agreed */
dt_err run_judge_end(const dt_run *run, const progress *p);

/* export_run.c */
const char *run_tokenizer(const dt_run *run); /* the key's value, otherwise the model's; "": neither; local */
dt_err run_settle_tokenizer(dt_run *run);     /* [model] tokenizer, stored in the configuration; local */
/* the directories in run.output_dir that run_export writes, not owned; returns their number; local */
enum { RUN_MOST_EXPORTS = 1 + DT_MAX_TRAINED };
int run_list_exports(const dt_run *run, const char *names[RUN_MOST_EXPORTS]);
dt_err run_export(dt_run *run); /* exports according to checkpoint.export; collective, agreed */

/* closing.c: reports what this start did, where the results are, and next commands; rank 0. loop_s: time of the steps
 * from `from` to `to`. */
void run_say_closing(const dt_run *run, const progress *from, const progress *to, double loop_s);

/* loop.c, evaluate.c: collective, agreed */
dt_err run_open_sums(dt_run *run); /* checks that task and loop declare the same metrics on all ranks */
dt_err run_loop(dt_run *run, progress *p);
/** Parts of a validation: the loss on data.validation, and the benchmarks of eval.tasks. */
enum { VALIDATE_DATA = 1, VALIDATE_TASKS = 2 };
int run_validation_parts(const dt_run *run); /* those that the run has; local */
/** stop: STOP_NO, or the reason for which all ranks ended the validation early, without a result. n_done of n
 *  micro-steps were done. Without a stop, run->sums has the result until the next step. */
typedef struct validation_end {
    int stop;
    int64_t n_done, n;
} validation_end;
dt_err run_validate(dt_run *run, int64_t step, int parts, validation_end *end);
dt_err run_evaluate(dt_run *run, int64_t step); /* for a task without steps */

#endif
