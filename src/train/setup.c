/* setup.c - open everything that a run needs from its configuration. All errors are found here, before any step, and
 * reported together. Each is added to a list, and settings that depend on an invalid key are skipped. */
#include "run.h"
#include "dtrain/device/block8.h"
#include "dtrain/io/io.h"
#include "dtrain/step/step.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(dt_run *run, dt_err err) { dt_mistakes_add(&run->mistakes, err); }

/* Note a mistake unless cond holds. The other arguments are those of dt_config_fail. */
#define NOTE_UNLESS(run, cond, ...) note(run, (cond) ? DT_OK : dt_config_fail(__VA_ARGS__))

static void check_needed(dt_run *run)
{
    dt_task *t = &run->task;
    dt_task_check(t);
    if (run_trains(run) && run->comm)
        dt_task_need(t, "run", "output_dir", run->cfg.run_output_dir, "a directory for the run's files");
    NOTE_UNLESS(run, run_trains(run) || !dt_has_word("1, 2", run->cfg.zero_stage), &run->cfg, "zero", "stage",
                "expected 0 or 3, found %s: this stage partitions gradients and optimizer states, and task %s has none",
                run->cfg.zero_stage, run->cfg.run_task);
}

static void list_difference(void *self, const char *name, const char *before, const char *now)
{
    enum { SIZE = 512 };
    char *list = self;
    const size_t len = strlen(list), n = strlen(name);
    if (n > 6 && strcmp(name + n - 6, "_pdrop") == 0) return;
    snprintf(list + len, SIZE - len, "%s%s = %s%s%s%s", len ? ", " : "", name, now, *before ? " (it has " : "", before,
             *before ? ")" : "");
}

/* Keys given in addition to path describe the expected model. Differences from the actual model are reported in one
 * line, and path takes precedence. */
static dt_err compare_with_keys(const dt_config *cfg, const dt_model_config *found)
{
    char differ[512] = "";
    dt_model_config file;
    if (*cfg->model_config) {
        DT_TRY(dt_model_config_from_keys(&file, cfg, DT_MODEL_USUAL));
        dt_model_config_compare(found, &file, list_difference, differ);
        dt_model_config_free(&file);
    } else {
        DT_TRY(dt_model_config_compare_keys(cfg, found, list_difference, differ));
    }
    if (*differ)
        DT_WARN("[model] keys that differ from the model of path = %s are ignored: %s", cfg->model_path, differ);
    return DT_OK;
}

/* Missing sizes would get the defaults of the family's config.json, which describe a large model. */
static dt_err open_from_keys(dt_run *run)
{
    static const char *const sizes[] = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"};
    const dt_config *cfg = &run->cfg;
    bool any = *cfg->model_config != '\0' || !run_reports(run);
    DT_TRY(run_model_from_keys(run));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) any = any || dt_config_given(cfg, "model", sizes[i]);
    if (!any)
        DT_INFO("[model] model_type = %s without sizes uses the default sizes of this type: hidden_size %" PRId64
                ", num_hidden_layers %" PRId64 ", vocab_size %" PRId64,
                cfg->model_model_type, run->mc.hidden_size, run->mc.num_hidden_layers, run->mc.vocab_size);
    return DT_OK;
}

static dt_err check_takes_images(const dt_run *run, bool has_tower)
{
    enum { MAX_TASKS = 32 };
    const char *with_images[MAX_TASKS];
    char names[256];
    int n = 0;
    for (int i = 0; dt_tasks[i] && n < MAX_TASKS; i++)
        if (dt_tasks[i]->images) with_images[n++] = dt_tasks[i]->name;
    DT_CONFIG_CHECK(run->task.ops->images || !has_tower, &run->cfg, "run", "task",
                    "task %s accepts only language models, but the model has a vision tower; expected %s, or "
                    "model.vision = none for its text model",
                    run->cfg.run_task, dt_choices(names, sizeof names, with_images, n));
    return DT_OK;
}

/* Code that reads model.path again, and checkpoints that omit frozen parameters, would find only the language model
 * there. */
static dt_err check_joined(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const bool joined = run->pretrained.tower || run->pretrained.projector;
    DT_TRY(check_takes_images(run, run->pretrained.has_vision));
    DT_CONFIG_CHECK(!joined || dt_has_word("pretrain, sft, eval", cfg->run_task), cfg, "vision",
                    run->pretrained.tower ? "path" : "projector_path",
                    "task %s reads model.path more than once, so it must be a complete vision-language model; create "
                    "one with task pretrain or sft and checkpoint.export = hf",
                    cfg->run_task);
    DT_CONFIG_CHECK(!joined || run_saves_frozen(run), cfg, "checkpoint", "save",
                    "expected all, found trainable: with vision.path or vision.projector_path, model.path does not "
                    "contain the whole model");
    return DT_OK;
}

/* A model with random weights cannot be joined with a tower. */
static dt_err open_random(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    DT_CONFIG_CHECK(!*cfg->vision_path, cfg, "vision", "path",
                    "the tower needs a language model in model.path, which is not set; for random weights, set "
                    "model.config to a config.json of llava");
    return open_from_keys(run);
}

/* For --plan, before a model is downloaded. */
static dt_err open_planned(dt_run *run)
{
    dt_pretrained *p = &run->pretrained;
    DT_INFO("%s does not exist; the plan uses the shape in [model]", run->cfg.model_path);
    DT_TRY(run_model_from_keys(run));
    if (!*run->cfg.vision_path) return DT_OK;
    p->model_config = strdup(run->mc.json), p->config_name = strdup("[model]");
    DT_CHECK(p->model_config && p->config_name, DT_ERR_MEMORY, "out of memory for the text of a configuration");
    DT_TRY(dt_pretrained_take_vision(p, &run->cfg));
    dt_model_config_free(&run->mc);
    return dt_model_config_parse(&run->mc, p->config_name, p->model_config);
}

/* As in PEFT, a tied head that is trained by itself is a copy of the embedding. Adapters from which training continues
 * decide, otherwise lora.modules_to_save. */
static dt_err settle_head(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    bool unties = dt_config_lists(cfg->lora_modules_to_save, "lm_head");
    if (run->task.ops->n_labels > 0) return DT_OK;
    if (*cfg->lora_path && dt_is_directory(cfg->lora_path))
        DT_TRY(dt_config_lead_to(cfg, "lora", "path", dt_adapter_unties(cfg->lora_path, &unties)));
    if (unties) DT_TRY(dt_pretrained_untie(&run->pretrained));
    if (run->pretrained.unties && run_reports(run))
        DT_WARN(
            "%s ties the head to the embedding; because lora.modules_to_save trains one of them by itself, as in "
            "PEFT, the run has a head of its own, which starts as a copy, and a merged model has tie_word_embeddings "
            "= false",
            run->pretrained.path);
    return DT_OK;
}

static dt_err open_model_config(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const bool shape = *cfg->model_config || *cfg->model_model_type;
    DT_TRY(run_check_tower(run));
    if (!*cfg->model_path) return open_random(run);
    if (!run->comm && shape && access(cfg->model_path, F_OK) != 0) return open_planned(run);
    DT_TRY(dt_config_lead_to(cfg, "model", "path", run_describe_model(run)));
    DT_TRY(dt_pretrained_take_vision(&run->pretrained, cfg));
    DT_TRY(check_joined(run));
    run->pretrained.new_score = run->task.ops->n_labels > 0;
    run->has_pretrained = true;
    if (run_trains(run)) run->pretrained.base = &run->base; /* an evaluation saves no checkpoints */
    run->base.path = realpath(run->pretrained.path, NULL);
    DT_CHECK_ERRNO(run->base.path, DT_ERR_DATA, run->pretrained.path, NULL);
    DT_TRY(dt_model_config_set_losses(cfg, run->pretrained.config_name, &run->pretrained.model_config));
    DT_TRY(settle_head(run));
    DT_TRY(dt_model_config_parse(&run->mc, run->pretrained.config_name, run->pretrained.model_config));
    return run_reports(run) ? compare_with_keys(cfg, &run->mc) : DT_OK;
}

static dt_err check_length(const dt_run *run)
{
    char where[512];
    const int64_t T = run->cfg.data_seq_len, P = run->mc.max_position_embeddings;
    if (T <= P) return DT_OK;
    DT_CONFIG_CHECK(!run->mc.learned_positions, &run->cfg, "data", "seq_len",
                    "seq_len = %" PRId64 " exceeds the model's max_position_embeddings = %" PRId64, T, P);
    if (run_reports(run)) /* other ranks read the resolved text, whose line numbers differ */
        DT_WARN("%s: seq_len = %" PRId64 " exceeds max_position_embeddings = %" PRId64
                ", the longest text that the model was made for; lower data.seq_len unless you extend the model",
                dt_config_where(&run->cfg, "data", "seq_len", where, sizeof where), T, P);
    return DT_OK;
}

static dt_dtype state_dtype(const dt_config *cfg)
{
    if (!strcmp(cfg->optimizer_state_dtype, dt_dtype_name(DT_I8))) return DT_I8;
    return !strcmp(cfg->optimizer_state_dtype, dt_dtype_name(DT_BF16)) ? DT_BF16 : DT_F32;
}

/* Value of offload_optimizer or offload_param. */
static dt_offload offload_of(const char *word)
{
    return !strcmp(word, "cpu") ? DT_OFFLOAD_CPU : !strcmp(word, "nvme") ? DT_OFFLOAD_NVME : DT_OFFLOAD_NONE;
}

static dt_err check_nvme_is_given(const dt_config *cfg)
{
    const bool optimizer = !strcmp(cfg->zero_offload_optimizer, "nvme"),
               param = !strcmp(cfg->zero_offload_param, "nvme");
    DT_CONFIG_CHECK(!(optimizer || param) || *cfg->zero_nvme_path, cfg, "zero",
                    optimizer ? "offload_optimizer" : "offload_param",
                    "nvme needs zero.nvme_path, a directory on a local disk of each node");
    return DT_OK;
}

/* At other stages each rank keeps all parameters. auto then skips those stages. */
static bool may_offload_param(const dt_config *cfg)
{
    return !strcmp(cfg->zero_stage, "3") || !strncmp(cfg->zero_stage, "auto", 4);
}

static dt_err settle_by_size(dt_run *run)
{
    if (strcmp(run->cfg.zero_stage, "auto:size") != 0 || run->n_units == 0) return DT_OK;
    const int64_t n_param = run_n_param(run);
    const int stage = run_stage_by_size(n_param, run_trains(run));
    if (run_reports(run)) DT_INFO("zero.stage = auto:size: %d, for a model of %" PRId64 " parameters", stage, n_param);
    return dt_config_set(&run->cfg, "zero", "stage", (const char[2]){(char)('0' + stage), '\0'});
}

static void fill_zero_options(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const dt_dtype dtype = dt_config_precision(cfg);
    /* With one micro-step a gradient is written and rounded once (the model accumulates in fp32), so the parameters'
     * type suffices. */
    const bool fp32_grads = dtype == DT_F32 || run->batching.accumulation > 1 || cfg->run_reproducible;
    dt_dtype reduce_dtype = DT_F32;
    const bool reduce_differs = dt_dtype_find(cfg->precision_reduce_dtype, &reduce_dtype);
    run->main.zero_opt = (dt_zero_options){
        .stage = strcmp(cfg->zero_stage, "auto") ? atoi(cfg->zero_stage) : 0,
        .expert_group_size = strtoll(cfg->zero_expert_group_size, NULL, 10), /* auto: 0, until it chooses */
        .n_groups = run->comm ? run->comm->mesh.replicate.size : 0,          /* a plan sets its own */
        .param_dtype = dtype,
        .grad_dtype = fp32_grads ? DT_F32 : dtype,
        .reduce_differs = reduce_differs,
        .reduce_dtype = reduce_dtype,
        .optimizer = run_trains(run) ? run->optimizer : NULL,
        .state_dtype = state_dtype(cfg),
        .seed = (uint64_t)cfg->run_seed,
        .reproducible = cfg->run_reproducible,
        .overlap_comm = cfg->zero_overlap_comm,
        .tied_unit = dt_model_tied_unit(&run->mc, run->units, run->n_units),
        .reduce_bucket_size = cfg->zero_reduce_bucket_size,
        .allgather_bucket_size = cfg->zero_allgather_bucket_size,
        .prefetch_bucket_size = cfg->zero_prefetch_bucket_size,
        .param_persistence_threshold = cfg->zero_param_persistence_threshold,
        .max_live_parameters = cfg->zero_max_live_parameters,
        .offload_optimizer = offload_of(cfg->zero_offload_optimizer),
        .offload_param = may_offload_param(cfg) ? offload_of(cfg->zero_offload_param) : DT_OFFLOAD_NONE,
        .sub_group_size = cfg->zero_sub_group_size,
        .buffer_count = (int)cfg->zero_buffer_count,
        .pin_memory = cfg->zero_pin_memory,
        .nvme_path = cfg->zero_nvme_path,
    };
}

static dt_recompute recompute_of(const char *word)
{
    if (!strcmp(word, "block")) return DT_RECOMPUTE_BLOCK;
    return !strcmp(word, "selective") ? DT_RECOMPUTE_SELECTIVE : DT_RECOMPUTE_NONE;
}

static void fill_model_options(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const int64_t T = cfg->data_seq_len, m = run->batching.micro_batch_size;
    run->model_opt = (dt_model_options){
        .dtype = run->main.zero_opt.param_dtype,
        .grad_dtype = run->main.zero_opt.grad_dtype,
        .max_tok = (int32_t)(m * T),
        .max_seq = (int32_t)m,
        .max_pos = (int32_t)T,
        .mesh = run->mesh,
        .training = run_trains(run),
        .features_given = run->mc.vision && *cfg->vision_feature_cache,
        .recompute = recompute_of(cfg->model_activation_checkpointing),
        .reproducible = cfg->run_reproducible,
        .library_attention = !strcmp(cfg->model_attention, "cudnn"),
        .loss_scale = run->scale.scaled ? &run->scale.scale : NULL,
        .adapter_dropout = (float)run->lora.dropout,
        .neftune_alpha = run_trains(run) ? (float)cfg->model_neftune_noise_alpha : 0,
        .seed = (uint64_t)cfg->run_seed,
    };
}

/* Warns about settings without effect. A run's own config.ini contains every key. */
static void warn_of_precision(const dt_run *run)
{
    static const char *const keys[] = {"loss_scale",     "initial_scale_power",    "loss_scale_window",
                                       "min_loss_scale", "consecutive_hysteresis", "hysteresis"};
    const bool scaled = dt_config_precision(&run->cfg) == DT_F16;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && run_reports(run) && !scaled; i++)
        if (dt_config_differs(&run->cfg, "precision", keys[i]))
            DT_WARN("precision.%s is ignored, because with dtype = %s the loss is not scaled", keys[i],
                    run->cfg.precision_dtype);
}

static dt_err check_precision(const dt_run *run)
{
    const char *reduce = run->cfg.precision_reduce_dtype;
    DT_CONFIG_CHECK(!run->cfg.run_reproducible || !strcmp(reduce, "auto") || !strcmp(reduce, "fp32"), &run->cfg,
                    "precision", "reduce_dtype",
                    "expected auto or fp32, because run.reproducible sums gradients in fp32, found %s", reduce);
    warn_of_precision(run);
    return DT_OK;
}

/* Checks the settings. Limits of the library are checked once the device is known. */
static dt_err check_attention(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const char *packing = cfg->data_packing, *no = NULL;
    if (strcmp(cfg->model_attention, "cudnn") != 0) return DT_OK;
    if (!run->task.ops->whole_rows)
        no = "needs sequences of equal length, as in run.task = pretrain and eval";
    else if (cfg->data_document_mask || (strcmp(packing, "auto") != 0 && strcmp(packing, "wrapped") != 0))
        no = "needs sequences of equal length: data.packing = wrapped without document_mask";
    else if (cfg->run_reproducible)
        no = "does not guarantee bitwise equal results, which run.reproducible needs";
    DT_CONFIG_CHECK(!no, cfg, "model", "attention",
                    "cudnn %s; use flash, dtrain's own kernels, which has no such restriction", no);
    return DT_OK;
}

/* If the batch size is invalid, the remaining checks use the smallest one. */
static dt_err resolve_batching(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    run->batching = (dt_batching){.train_batch_size = run->mesh->data.size, .micro_batch_size = 1, .accumulation = 1};
    if (dt_config_doubted(cfg, "batch", NULL)) return DT_OK;
    dt_batching b;
    dt_err err = DT_OK;
    if (run_trains(run))
        err = dt_batching_resolve(&b, cfg, run->mesh->data.size);
    else
        dt_batching_for_evaluation(&b, cfg, run->mesh->data.size);
    if (err != DT_OK && !run->comm) { /* --plan tries rank counts that the batch may not fit */
        dt_batching_nearest(&b, cfg, run->mesh->data.size);
        DT_INFO("%s\nthe plan uses train_batch_size = %" PRId64, dt_error_message(), b.train_batch_size);
        dt_error_clear();
        err = DT_OK;
    }
    DT_TRY(err);
    DT_CONFIG_CHECK(b.micro_batch_size * cfg->data_seq_len <= INT32_MAX, cfg, "batch", "micro_batch_size",
                    "expected fewer than 2^31 tokens in a micro-batch, found %" PRId64 " samples of %" PRId64 " tokens",
                    b.micro_batch_size, cfg->data_seq_len);
    run->batching = b;
    return DT_OK;
}

static bool is_trained(void *self, const dt_tensor *tensor)
{
    const dt_run *run = self;
    const dt_task *task = &run->task;
    if (run_freezes(run, tensor)) return false;
    if (run->cfg.rec_freeze_llm) return dt_model_is_vocabulary(tensor);
    if (run->lora.r > 0 && !dt_lora_trains(&run->lora, tensor)) return false;
    if (run->lora.r == 0 && !run_trains_part(run, tensor)) return false;
    return !task->ops->is_trained || task->ops->is_trained(task, tensor);
}

static dt_err check_saves(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    const int64_t n_frozen = run_n_param(run) - dt_units_n_trainable(run->units, run->n_units);
    if (!run_trains(run) || run_saves_frozen(run)) return DT_OK;
    DT_CONFIG_CHECK(*cfg->model_path, cfg, "checkpoint", "save",
                    "expected all, found trainable: it omits frozen parameters, which a resumed run must read from "
                    "model.path, and model.path is not set");
    DT_CONFIG_CHECK(n_frozen > 0 || dt_config_doubted(cfg, "lora", NULL), cfg, "checkpoint", "save",
                    "expected all, found trainable: it omits frozen parameters, and this run has none");
    DT_CONFIG_CHECK(!run_writes_in(run, run->base.path, "checkpoints") && !run_writes_in(run, run->base.path, "hf"),
                    cfg, "checkpoint", "save",
                    "expected all, found trainable: it omits what %s contains, but this run replaces or removes that "
                    "file; use all, or set model.path to the model that the run was started from",
                    run->base.path);
    for (int u = 0; u < run->n_units; u++)
        for (int i = 0; i < run->units[u].n_tensors; i++) {
            const dt_tensor *t = &run->units[u].tensors[i];
            DT_CONFIG_CHECK(t->adapter_scale == 0 || t->trainable, cfg, "checkpoint", "save",
                            "expected all, found trainable: it would omit %s, which model.freeze = %s freezes", t->name,
                            cfg->model_freeze);
            DT_CONFIG_CHECK(
                !run->pretrained.unties || t->trainable || strcmp(dt_stored_of_language(t->name), DT_STORED_HEAD) != 0,
                cfg, "checkpoint", "save",
                "expected all, found trainable: it would omit the head, which %s ties to the embedding that "
                "this run trains; add lm_head to lora.modules_to_save, or use all",
                run->pretrained.path);
        }
    return DT_OK;
}

/* After an error in the model's settings the model is unknown, so later checks have no units. */
static dt_err drop_units(dt_run *run, dt_err err)
{
    dt_model_free_units(run->units, run->n_units);
    run->units = NULL, run->n_units = 0;
    return err;
}

static dt_err adapt_model(dt_run *run)
{
    const bool doubted = dt_config_doubted(&run->cfg, "lora", NULL);
    const dt_err err = doubted ? DT_OK : run_attach_adapters(run);
    return err == DT_OK && !doubted ? DT_OK : drop_units(run, err);
}

static dt_err store_base(dt_run *run)
{
    const dt_err err = dt_lora_store_base(&run->lora, run->units, run->n_units);
    return err == DT_OK ? DT_OK : drop_units(run, dt_config_blame(&run->cfg, "lora", "base_quantization", err));
}

/* The task's head, in config.json. */
static dt_err describe_head(dt_run *run)
{
    const dt_task_ops *ops = run->task.ops;
    json_t *root;
    if (!ops->describe) return DT_OK;
    DT_TRY(dt_json_parse(&root, "config.json", run->mc.json, strlen(run->mc.json), 0));
    dt_err err = ops->describe(&run->task, root);
    run->pretrained.new_score = ops->trains || run->task.n_labels == DT_HIDDEN_STATES;
    char *text = err == DT_OK ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    DT_TRY(err);
    DT_CHECK(text, DT_ERR_MEMORY, "out of memory for the text of a configuration");
    dt_model_config_free(&run->mc);
    err = dt_model_config_parse(&run->mc, "config.json", text);
    free(text);
    return err;
}

static dt_err open_model(dt_run *run)
{
    if (dt_config_doubted(&run->cfg, "model", NULL)) return DT_OK;
    DT_TRY(open_model_config(run));
    DT_TRY(describe_head(run));
    DT_TRY(run_check_part(run, run->mc.vision != NULL));
    DT_TRY(check_takes_images(run, run->mc.vision != NULL));
    const bool none = run->task.ops->no_dropout && run->cfg.model_dropout < 0;
    dt_model_config_set_dropout(&run->mc, none ? 0 : run->cfg.model_dropout);
    if (run->mc.vision && *run->cfg.vision_projector_dropout)
        run->mc.vision->projector.dropout = strtod(run->cfg.vision_projector_dropout, NULL);
    run->mc.router_z_loss_coef = run->cfg.model_router_z_loss_coef;
    DT_CONFIG_CHECK(strtoll(run->cfg.zero_expert_group_size, NULL, 10) == 0 || run->mc.num_experts > 0, &run->cfg,
                    "zero", "expert_group_size", "the model has no experts; leave this key out");
    DT_CONFIG_CHECK(run->mc.router_z_loss_coef == 0 || run->mc.num_experts > 0, &run->cfg, "model",
                    "router_z_loss_coef", "the model has no experts; leave this key out");
    DT_TRY(check_length(run));
    DT_TRY(dt_model_make_parts(&run->mc, run->task.n_labels, run->mesh, &run->units, &run->n_units));
    DT_TRY(run_choose_parts(run));
    DT_TRY(run_read_freeze(run));
    DT_TRY(adapt_model(run));
    for (int u = 0; u < run->n_units; u++)
        run->units[u].trained_align = state_dtype(&run->cfg) == DT_I8 ? DT_BLOCK8 : 0;
    dt_units_choose_trained(run->units, run->n_units, run->task.ops->trains ? is_trained : NULL, run);
    note(run, run_choose_rows(run));
    note(run, run_check_freeze(run));
    const dt_err err = run_check_features(run);
    if (err != DT_OK) return drop_units(run, err);
    DT_TRY(store_base(run));
    return check_saves(run);
}

/* Set the fields that a task may access from the start; the others follow later. */
static void lend(dt_run *run)
{
    dt_task *t = &run->task;
    if (!t->ops) t->ops = dt_task_find(run->cfg.run_task);
    t->n_labels = t->ops->n_labels;
    t->cfg = &run->cfg, t->mistakes = &run->mistakes;
    t->comm = run->comm, t->data = &run->mesh->data, t->sum = &run->mesh->sum;
    t->dev = &run->dev, t->ledger = &run->ledger, t->phase = &run->phase;
    t->sums = &run->sums;
    t->mc = &run->mc, t->model_opt = &run->model_opt, t->main = &run->main;
}

void run_open_config_objects(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    lend(run);
    check_needed(run);
    note(run, dt_optimizer_settings(&run->main.settings, cfg));
    note(run, dt_lr_groups_make(&run->main.groups, cfg));
    NOTE_UNLESS(run, !strcmp(cfg->optimizer_lr_scale_rule, "none") || cfg->optimizer_lr_base_batch_size > 0, cfg,
                "optimizer", "lr_scale_rule", "%s needs lr_base_batch_size, the batch size for which lr was chosen",
                cfg->optimizer_lr_scale_rule);
    NOTE_UNLESS(run,
                cfg->scheduler_warmup_steps > 0 || cfg->scheduler_warmup_ratio > 0 ||
                    strcmp(cfg->scheduler_on_extend, "rewarm") != 0,
                cfg, "scheduler", "on_extend",
                "rewarm needs the length of a warm-up; set scheduler.warmup_steps or warmup_ratio");
    note(run, dt_intervals_check(cfg));
    note(run, resolve_batching(run));
    note(run, open_model(run));
    if (run->units && run_trains(run)) note(run, dt_lr_groups_assign(&run->main.groups, cfg, run->units, run->n_units));
    note(run, settle_by_size(run));
    note(run, check_nvme_is_given(cfg));
    NOTE_UNLESS(run, !strcmp(cfg->zero_offload_param, "none") || may_offload_param(cfg), cfg, "zero", "offload_param",
                "parameters can be offloaded only with zero.stage = 3, where they are sharded over the ranks; "
                "found zero.stage = %s",
                cfg->zero_stage);
    if (!run->optimizer) run->optimizer = dt_optimizer_of(cfg);
    NOTE_UNLESS(run, run->lora.r == 0 || !run->optimizer || !run->optimizer->matrices, cfg, "optimizer", "type",
                "%s updates whole matrices, but with lora.r = %d only low-rank adapters are trained; use adamw, or set "
                "lora.r = 0",
                cfg->optimizer_type, (int)run->lora.r);
    note(run, dt_loss_scale_make(&run->scale, cfg));
    note(run, check_precision(run));
    note(run, check_attention(run));
    if (!dt_config_doubted(cfg, "mesh", NULL)) note(run, run_check_axes(run));
    fill_zero_options(run);
    fill_model_options(run);
    run->main.units = run->units, run->main.n_units = run->n_units;
    run->main.max_grad_norm = cfg->optimizer_max_grad_norm;
}

void run_make_schedule(dt_run *run)
{
    const int64_t n = dt_max_i64(1, run->task.schedule_steps);
    dt_schedule_make(&run->schedule, &run->cfg, (run->total_steps + n - 1) / n, run->batching.train_batch_size);
}

static dt_err count_steps(dt_run *run)
{
    char where[512];
    const int64_t per_epoch = run->task.steps_per_epoch;
    DT_CHECK(per_epoch > 0, DT_ERR_DATA, "%s: %" PRId64 " samples are too few for one optimizer step",
             dt_config_where(&run->cfg, "data", "train", where, sizeof where), run->task.samples_per_epoch);
    run->total_steps = run->cfg.run_max_steps  ? run->cfg.run_max_steps
                       : run->task.total_steps ? run->task.total_steps
                                               : (int64_t)ceil(run->cfg.run_epochs * (double)per_epoch);
    run_make_schedule(run);
    return DT_OK;
}

void run_open_task(dt_run *run)
{
    dt_task *t = &run->task;
    t->batching = run->batching;
    t->units = run->units, t->n_units = run->n_units;
    t->tokenizer = run_tokenizer(run);
    t->generation = &run->pretrained.generation;
    dt_task_open(t);
    run->evals = dt_evals_open(t);
    run->n_trained = 0;
    run->trained[run->n_trained++] = &run->main;
    for (int i = 0; i < t->n_auxiliary; i++) run->trained[run->n_trained++] = &t->auxiliary[i];
    if (run_trains(run) && (t->train || t->steps_per_epoch > 0)) note(run, count_steps(run));
}

dt_err run_open_host(dt_run *run, int n_threads, bool planning)
{
    if (run->dev.ops == &dt_device_cpu_ops) return DT_OK;
    return dt_device_open_host(&run->host, n_threads, planning, &run->ledger);
}

static dt_err group_experts(dt_run *run)
{
    for (int i = 0; i < run->n_trained; i++) {
        dt_trained *m = run->trained[i];
        DT_TRY(dt_units_take_groups(&m->units, &m->n_units, m->zero_opt.expert_group_size));
        if (i > 0) continue;
        run->units = m->units, run->n_units = m->n_units;
        run->task.units = m->units, run->task.n_units = m->n_units;
    }
    return DT_OK;
}

static dt_err open_zeros(dt_run *run)
{
    const plan_setting with = run_setting(run, dt_comm_ranks(run->comm), dt_comm_ranks_on_node(run->comm));
    for (int i = 0; i < run->n_trained; i++) {
        dt_trained *m = run->trained[i];
        m->zero_opt.host = run->host.ops ? &run->host : &run->dev;
        const dt_zero_options opt = run_zero_options(&with, m);
        DT_TRY(dt_zero_open(&m->zero, &opt, m->units, m->n_units, run->comm, &run->dev, run->compute, &run->phase));
    }
    return DT_OK;
}

dt_err run_check_attention(const dt_run *run)
{
    if (!run->model_opt.library_attention || !run->units || !run->dev.ops) return DT_OK;
    if (dt_config_doubted(&run->cfg, "model", NULL) || dt_config_doubted(&run->cfg, "batch", NULL)) return DT_OK;
    return dt_config_blame(&run->cfg, "model", "attention",
                           dt_model_check_attention(&run->mc, &run->model_opt, run->units, run->n_units, &run->dev));
}

static dt_err prepare_attention(dt_run *run)
{
    if (!run->model_opt.library_attention) return DT_OK;
    return dt_config_blame(&run->cfg, "model", "attention",
                           dt_model_prepare_attention(&run->mc, &run->model_opt, run->units, run->n_units, &run->dev));
}

dt_err run_open_states(dt_run *run)
{
    dt_phase_enter(&run->phase, "open", "");
    DT_TRY(dt_stream_open(&run->dev, &run->compute, "compute"));
    DT_TRY(dt_chunks_open(&run->chunks, &run->dev));
    run->comm->chunks = &run->chunks;
    DT_TRY(dt_comm_agree(run->comm, group_experts(run)));
    DT_TRY(open_zeros(run));
    run->source = dt_zero_source(run->main.zero);
    dt_err err = prepare_attention(run);
    if (err == DT_OK)
        err = dt_model_open(&run->model, &run->mc, &run->model_opt, run->units, run->n_units, &run->dev, &run->source,
                            run->compute, &run->phase);
    dt_task *t = &run->task;
    if (err == DT_OK) err = dt_task_buffers_alloc(&t->buffers, &run->model_opt, dt_task_n_values(t), &run->ledger);
    DT_TRY(dt_comm_agree(run->comm, err));
    t->stage = run->main.zero_opt.stage, t->compute = run->compute;
    t->zero = run->main.zero, t->model = run->model;
    DT_TRY(dt_task_begin(t));
    return dt_comm_agree(run->comm, run_open_saver(run));
}
