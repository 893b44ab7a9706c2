/* datasets.c - the datasets of [data], for tasks whose batches come from them. */
#include "dtrain/step/step.h"
#include <stdio.h>
#include <string.h>

void dt_task_need(dt_task *t, const char *section, const char *key, const char *value, const char *expected)
{
    char where[512];
    if (*value || dt_config_doubted(t->cfg, section, key)) return;
    dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_USAGE, "%s: expected %s, found none",
                                         dt_config_where(t->cfg, section, key, where, sizeof where), expected));
}

void dt_task_need_data(dt_task *t, const char *key, const char *value)
{
    char files[80];
    snprintf(files, sizeof files, "dataset files for task %s (create them with dtrain-data)", t->cfg->run_task);
    dt_task_need(t, "data", key, value, files);
}

dt_model_part dt_task_model_part(const dt_task *t)
{
    if (t->mc->vision) return DT_MODEL_WHOLE;
    return strcmp(t->cfg->model_vision, "none") == 0 ? DT_MODEL_TEXT : DT_MODEL_USUAL;
}

static dt_err settle_images(const dt_task *t, dt_loader *l, const char *key)
{
    const dt_data_info *info = dt_loader_info(l);
    char where[512];
    if (t->n_units && t->mc->vision) dt_loader_refuse_placeholders(l, t->mc->vision->image_token);
    if (!info->image_path) return DT_OK;
    dt_config_where(t->cfg, "data", key, where, sizeof where);
    DT_CHECK(t->ops->images, DT_ERR_USAGE, "%s: %s has images, which run.task = %s does not support", where,
             info->image_path, t->ops->name);
    const char *dir = *t->cfg->vision_path ? t->cfg->vision_path : t->cfg->model_path;
    return t->n_units ? dt_settle_images(where, info, t->mc, "the model", dir) : DT_OK;
}

dt_err dt_task_reads(dt_task *t, const char *path, uint64_t fingerprint)
{
    DT_EXPECT(t->n_files < DT_MAX_TASK_FILES);
    t->file[t->n_files].path = path;
    t->file[t->n_files++].fingerprint = fingerprint;
    return DT_OK;
}

dt_err dt_task_verifies(dt_task *t, const dt_pretrained *from, const dt_unit *units, int n_units)
{
    if (!from->path) return DT_OK; /* has the shape of another model */
    DT_EXPECT(t->n_models < DT_MAX_TASK_FILES);
    t->models[t->n_models++] = (struct dt_task_model){from, units, n_units};
    return DT_OK;
}

dt_err dt_task_open_loader(const dt_task *t, const char *key, dt_loader **l, const dt_loader_options *opt)
{
    const dt_err err = dt_loader_open(l, opt);
    if (err == DT_OK) return settle_images(t, *l, key);
    if (err != DT_ERR_DATA || strncmp(dt_error_message(), opt->where, strlen(opt->where)) == 0) return err;
    return dt_config_lead_to(t->cfg, "data", key, err);
}

static dt_err open_loader(const dt_task *t, dt_loader **l, const dt_task_data *what, const char *key, const char *files)
{
    const dt_config *cfg = t->cfg;
    const bool training = l == &t->train;
    char where[512], task[80];
    snprintf(task, sizeof task, "%s%s", cfg->run_task,
             dt_config_given(cfg, "run", "task") ? "" : ", the default: [run] task is not set");
    const dt_loader_options opt = {
        .files = files,
        .task = task,
        .where = dt_config_where(cfg, "data", key, where, sizeof where),
        .seq_len = what->seq_len ? what->seq_len : cfg->data_seq_len,
        .kind = what->kind,
        .truncate = what->truncate,
        .no_ties = what->no_ties,
        .prompt_targets = what->prompt_targets,
        .mismatched = what->mismatched,
        .packing = cfg->data_packing,
        .document_mask = cfg->data_document_mask,
        .shuffle = training && cfg->data_shuffle,
        .group = training && cfg->data_group_by_modality_length,
        .drop_last = training && cfg->data_drop_last,
        .max_samples = training ? 0 : cfg->data_max_validation_samples,
        .train_batch_size = t->batching.train_batch_size,
        .micro_batch_size = t->batching.micro_batch_size,
        .rank = t->comm ? t->data->rank : 0,
        .nranks = t->data->size,
        .seed = (uint64_t)cfg->run_seed,
        .prefetch = training ? (int)cfg->data_prefetch : 0,
        .vocab_size = t->mc->vocab_size,
        .feature_nbytes = dt_task_feature_nbytes(t),
        .planning = !t->comm,
        .verified = cfg->data_verify,
        .ledger = t->ledger,
        .phase = t->phase,
    };
    return dt_task_open_loader(t, key, l, &opt);
}

/* Open the model for the largest micro-batch of either loader. */
static void widen_model(dt_model_options *opt, const dt_loader *l)
{
    if (!l) return;
    const dt_data_info *info = dt_loader_info(l);
    opt->max_tok = (int32_t)dt_max_i64(opt->max_tok, info->max_tok);
    opt->max_seq = (int32_t)dt_max_i64(opt->max_seq, info->max_seq);
    opt->max_images = (int32_t)dt_max_i64(opt->max_images, info->max_images);
}

/* Are the keys that determine how the file is opened valid? */
static bool is_known(const dt_config *cfg, const char *key)
{
    const char *const others[] = {
        "seq_len", "packing", "shuffle", "group_by_modality_length", "document_mask", "max_validation_samples"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (dt_config_doubted(cfg, "data", others[i])) return false;
    return !dt_config_doubted(cfg, "data", key);
}

void dt_task_close_data(dt_task *t)
{
    dt_loader_close(t->train);
    dt_loader_close(t->valid);
    t->train = t->valid = NULL;
}

/* If no file could be read, batches of full rows are planned. self: the task, if it reads data.train here; else
 * t->train belongs to a rollout. */
static dt_err plan_data(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_model_options *opt = t->model_opt;
    if (t->comm && !t->train && !t->valid) return DT_OK; /* an evaluation on benchmarks only */
    const dt_kind_batch most = {.kind = t->data_kind,
                                .max_tok = opt->max_tok,
                                .max_seq = opt->max_seq,
                                .max_images = opt->max_images,
                                .image_nbytes = dt_task_image_nbytes(t)};
    memory->at[DT_MEM_DATA][DT_ON_HOST] += t->train || t->valid
                                               ? dt_loader_nbytes(self ? t->train : NULL) + dt_loader_nbytes(t->valid)
                                               : (size_t)(t->cfg->data_prefetch + 1) * dt_kind_batch_nbytes(&most);
    return DT_OK;
}

static void close_data(void *self, dt_task *t)
{
    (void)self;
    dt_task_close_data(t);
}

static bool has_cells(const dt_task *t)
{
    return t->model_opt->max_images > 0 && t->mc->vision && dt_vision_has_cells(t->mc->vision);
}

/* Images that are grids take half of a sequence; those with tiles have all tiles that fit. */
int64_t dt_task_planned_images(const dt_task *t)
{
    enum { USUAL_TILES = 13 };
    const dt_vision_config *v = t->mc->vision;
    const int64_t T = t->cfg->data_seq_len;
    const int64_t n_tiles = v->preprocessor.max_tiles > 0 ? v->preprocessor.max_tiles + 1 : USUAL_TILES;
    if (!dt_vision_has_cells(v)) return 1;
    return dt_max_i64(1, v->grids ? T / 2 : dt_min_i64(T / v->n_tokens, n_tiles));
}

void dt_task_declare_images(dt_task *t)
{
    if (t->model_opt->max_images > 0 && dt_sums_find(t->sums, "images") < 0)
        dt_sums_declare(t->sums, "images", DT_SUM_UNITS, 1);
    if (has_cells(t) && dt_sums_find(t->sums, "cells") < 0) dt_sums_declare(t->sums, "cells", DT_SUM_UNITS, 1);
}

void dt_task_open_data(dt_task *t, const dt_task_data *what)
{
    static const dt_task_part_ops part = {.plan = plan_data, .close = close_data};
    const dt_config *cfg = t->cfg;
    t->data_kind = what->kind;
    dt_task_hold(t, &part, what->training ? t : NULL);
    if (what->training && *cfg->data_train && is_known(cfg, "train"))
        dt_mistakes_add(t->mistakes, open_loader(t, &t->train, what, "train", cfg->data_train));
    if (what->validation && *cfg->data_validation && is_known(cfg, "validation"))
        dt_mistakes_add(t->mistakes, open_loader(t, &t->valid, what, "validation", cfg->data_validation));
    widen_model(t->model_opt, t->train);
    widen_model(t->model_opt, t->valid);
    if (!t->train && !t->valid && t->mc->vision) /* --plan without files: one image per sample */
        t->model_opt->max_images = (int32_t)(t->batching.micro_batch_size * dt_task_planned_images(t));
    dt_task_declare_images(t);
    if (t->train) {
        t->steps_per_epoch = dt_loader_info(t->train)->steps_per_epoch;
        t->samples_per_epoch = dt_loader_info(t->train)->n_samples;
    }
    if (t->valid) t->n_validation = dt_loader_n_micro(t->valid, DT_EVALUATION);
}

const dt_data_info *dt_task_warned_data(const dt_task *t)
{
    return t->train && (!t->comm || dt_comm_first(t->comm)) ? dt_loader_info(t->train) : NULL;
}

/* An epoch has the same number of samples for every batch size (with drop_last: whole micro-batches). The sample count
 * therefore defines the position even if the number of ranks or the batch size has changed. A position inside a step is
 * rounded down to the step's start. */
int64_t dt_task_data_step_after(const dt_task *t, int64_t samples)
{
    const int64_t n = dt_loader_info(t->train)->n_samples, m = t->batching.micro_batch_size,
                  in_epoch = t->cfg->data_drop_last ? n - n % m : n;
    return samples / in_epoch * t->steps_per_epoch + samples % in_epoch / t->batching.train_batch_size;
}

int64_t dt_task_step_after(const dt_task *t, int64_t samples)
{
    if (t->ops->step_after) return t->ops->step_after(t, samples);
    return t->ops->next_micro ? samples / t->batching.train_batch_size : dt_task_data_step_after(t, samples);
}
