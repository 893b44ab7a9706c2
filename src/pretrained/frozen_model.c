/* frozen_model.c - a frozen model uses ZeRO like a trained one, and so the same stages, transports and checkpoint
 * reader. */
#include "dtrain/pretrained/frozen_model.h"
#include "dtrain/io/io.h"
#include "dtrain/io/safetensors.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static dt_err add_new(dt_frozen_model *f)
{
    DT_CHECK(f->lora.r == 0, DT_ERR_USAGE, "%s: this model already has adapters; expected one without", f->from.path);
    DT_TRY(dt_lora_from_keys(&f->lora, f->keys));
    f->from.new_adapters = true;
    DT_TRY(dt_config_blame(f->keys, "lora", "target_modules", dt_lora_attach(&f->lora, &f->mc, f->units, f->n_units)));
    DT_TRY(dt_config_blame(f->keys, "lora", "rank_pattern", dt_lora_check_ranks(&f->lora, f->units, f->n_units)));
    return dt_config_blame(f->keys, "lora", "alpha_pattern", dt_lora_check_alphas(&f->lora, f->units, f->n_units));
}

static dt_err attach(dt_frozen_model *f)
{
    DT_TRY(dt_pretrained_recorded(&f->from, &f->lora));
    DT_TRY(dt_lora_attach(&f->lora, &f->mc, f->units, f->n_units));
    DT_CHECK(!f->adapter || f->lora.r == 0, DT_ERR_USAGE,
             "%s: this checkpoint already contains adapters, and only one set of adapters is supported", f->from.path);
    if (f->adapter) DT_TRY(dt_pretrained_adapt(&f->from, f->adapter, &f->lora, &f->mc, f->units, f->n_units));
    if (f->keys) DT_TRY(add_new(f));
    dt_units_choose_trained(f->units, f->n_units, NULL, NULL);
    return f->like ? dt_lora_store_like(f->like, f->n_like, f->units, f->n_units)
                   : dt_lora_store_base(&f->lora, f->units, f->n_units);
}

/* Adapters of a whole model with images name the path of its language model, or of its tower. */
static dt_err settle_part(dt_frozen_model *f)
{
    char path[PATH_MAX];
    dt_safetensors s = {0};
    if (f->model_part != DT_MODEL_USUAL || !f->adapter || !dt_is_in(path, f->adapter, DT_PEFT_TENSORS)) return DT_OK;
    DT_TRY(dt_safetensors_open(&s, path));
    for (int i = 0; i < s.n_tensors; i++)
        if (strstr(s.tensors[i].name, ".language_model.") || strstr(s.tensors[i].name, ".visual."))
            f->model_part = DT_MODEL_WHOLE;
    dt_safetensors_close(&s);
    return DT_OK;
}

dt_err dt_frozen_model_describe(dt_frozen_model *f, const char *model, int n_labels)
{
    DT_TRY(settle_part(f));
    DT_TRY(dt_pretrained_describe(&f->from, model, f->model_part));
    f->from.parts.prefix = f->strip_prefix;
    bool unties = false;
    if (f->adapter && n_labels <= 0) DT_TRY(dt_adapter_unties(f->adapter, &unties));
    if (unties) DT_TRY(dt_pretrained_untie(&f->from));
    DT_TRY(dt_model_config_parse(&f->mc, f->from.config_name, f->from.model_config));
    int64_t n = n_labels;
    const bool of_files = n_labels == DT_LABELS_OF_FILES || n_labels == DT_LABELS_OF_SCORE;
    if (of_files) DT_TRY(dt_pretrained_n_labels(&f->from, f->adapter, &n));
    if (of_files && n == 0 && f->mc.headless) n = DT_HIDDEN_STATES;
    if (n_labels == DT_LABELS_OF_SCORE && n == 0) n = 1; /* the load reports that the score is missing */
    DT_TRY(dt_model_make_parts(&f->mc, n, NULL, &f->units, &f->n_units));
    return attach(f);
}

dt_err dt_frozen_model_of_shape(dt_frozen_model *f, const dt_model_config *like, int n_labels)
{
    DT_TRY(dt_model_config_parse(&f->mc, "config.json", like->json));
    DT_TRY(dt_model_make_parts(&f->mc, n_labels, NULL, &f->units, &f->n_units));
    return attach(f);
}

static dt_zero_options options(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype)
{
    return (dt_zero_options){.stage = like->stage == 3 ? 3 : 0,
                             .expert_group_size = dt_max_i64(0, like->expert_group_size),
                             .n_groups = like->n_groups,
                             .param_dtype = dtype,
                             .grad_dtype = dtype,
                             .tied_unit = dt_model_tied_unit(&f->mc, f->units, f->n_units),
                             .overlap_comm = true,
                             .prefetch_bucket_size = INT64_MAX,
                             .offload_param = like->stage == 3 ? like->offload_param : DT_OFFLOAD_NONE,
                             .host = like->host,
                             .buffer_count = like->buffer_count,
                             .pin_memory = like->pin_memory,
                             .nvme_path = like->nvme_path};
}

static dt_err make_plan(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                        dt_zero_plan *plan)
{
    const dt_zero_options opt = options(f, like, dtype);
    return dt_zero_plan_make(&opt, f->units, f->n_units, nranks, plan);
}

dt_err dt_frozen_model_plan(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                            const dt_device *dev, dt_memory *memory)
{
    dt_zero_plan plan;
    DT_TRY(make_plan(f, like, dtype, nranks, &plan));
    dt_memory_add(memory, &plan.memory);
    dt_stream_plan(dev, plan.n_streams, memory);
    return DT_OK;
}

dt_err dt_frozen_model_saved_nbytes(const dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, int nranks,
                                    size_t *nbytes)
{
    dt_zero_plan plan;
    DT_TRY(make_plan(f, like, dtype, nranks, &plan));
    *nbytes = 0;
    for (int p = 0; p < DT_N_PARTS; p++) *nbytes += plan.saved_nbytes[p];
    return DT_OK;
}

/* With all experts of a block together, or the fewest groups whose plan fits into most of the free memory; the smallest
 * groups if none does. Collective, agreed. */
static dt_err fit_groups(const dt_frozen_model *f, dt_zero_options *opt, dt_comm *comm, const dt_device *dev)
{
    const int64_t n = opt->stage == 3 ? dt_units_n_experts(f->units, f->n_units) : 0;
    const double usable = 0.9 * (double)dev->ops->memory_free(dev) / dt_max_i64(1, comm->n_sharing);
    int64_t n_groups = 1;
    dt_err err = DT_OK;
    opt->expert_group_size = 0;
    for (bool fits = n < 2; !fits && err == DT_OK;) {
        dt_zero_plan plan;
        err = dt_zero_plan_make(opt, f->units, f->n_units, comm->mesh.sum.size, &plan);
        fits = n_groups >= n || (double)dt_memory_on(&plan.memory, DT_ON_DEVICE) <= usable;
        if (!fits) n_groups *= 2, opt->expert_group_size = dt_ceil_div(n, n_groups);
    }
    DT_TRY(dt_comm_agree(comm, err));
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(comm), &n_groups, 1, DT_MAX));
    opt->expert_group_size = n_groups > 1 ? dt_ceil_div(n, n_groups) : 0;
    if (n_groups > 1 && dt_comm_first(comm))
        DT_INFO("stage 3 gathers %" PRId64 " of %" PRId64
                " experts of a block together, because all are too large for the free memory",
                opt->expert_group_size, n);
    return DT_OK;
}

dt_err dt_frozen_model_load(dt_frozen_model *f, const dt_zero_options *like, dt_dtype dtype, dt_comm *comm,
                            dt_device *dev, dt_stream *compute, dt_phase *phase)
{
    dt_zero_options opt = options(f, like, dtype);
    if (like->expert_group_size == DT_GROUPS_THAT_FIT) DT_TRY(fit_groups(f, &opt, comm, dev));
    DT_TRY(dt_comm_agree(comm, dt_units_take_groups(&f->units, &f->n_units, opt.expert_group_size)));
    DT_TRY(dt_zero_open(&f->zero, &opt, f->units, f->n_units, comm, dev, compute, phase));
    f->source = dt_zero_source(f->zero);
    return dt_pretrained_load(comm, f->zero, &f->from, phase);
}

void dt_frozen_model_close(dt_frozen_model *f)
{
    dt_zero_close(f->zero);
    dt_model_free_units(f->units, f->n_units);
    dt_model_config_free(&f->mc);
    dt_lora_free(&f->lora);
    dt_pretrained_free(&f->from);
    *f = (dt_frozen_model){0};
}
