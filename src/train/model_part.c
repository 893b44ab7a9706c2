/* model_part.c - model.vision: which part of a model with images a run reads. */
#include "run.h"
#include <string.h>

static bool is(const dt_run *run, const char *word) { return strcmp(run->cfg.model_vision, word) == 0; }

static bool data_show_images(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    return run->task.ops->images && (dt_data_show_images(cfg->data_train) || dt_data_show_images(cfg->data_validation));
}

static dt_model_part asked(const dt_run *run)
{
    return is(run, "none") ? DT_MODEL_TEXT : is(run, "whole") ? DT_MODEL_WHOLE : DT_MODEL_USUAL;
}

dt_err run_describe_model(dt_run *run)
{
    dt_pretrained *p = &run->pretrained;
    DT_TRY(dt_pretrained_describe(p, run->cfg.model_path, asked(run)));
    if (!is(run, "auto") || !p->text_alone || !data_show_images(run)) return DT_OK;
    dt_pretrained_free(p);
    return dt_pretrained_describe(p, run->cfg.model_path, DT_MODEL_WHOLE);
}

dt_err run_model_from_keys(dt_run *run)
{
    const bool whole = is(run, "auto") && *run->cfg.model_config && data_show_images(run);
    return dt_model_config_from_keys(&run->mc, &run->cfg, whole ? DT_MODEL_WHOLE : asked(run));
}

dt_err run_check_tower(const dt_run *run)
{
    DT_CONFIG_CHECK(!is(run, "none") || !*run->cfg.vision_path, &run->cfg, "model", "vision",
                    "none: vision.path joins the model with a tower; leave one of the two keys out");
    return DT_OK;
}

dt_err run_check_part(const dt_run *run, bool has_vision)
{
    const dt_config *cfg = &run->cfg;
    const char *from = *cfg->model_path ? cfg->model_path : *cfg->model_config ? cfg->model_config : "[model]";
    DT_CONFIG_CHECK(!is(run, "whole") || has_vision, cfg, "model", "vision",
                    "whole: %s has no vision tower that dtrain reads; use auto or none", from);
    DT_CONFIG_CHECK(!is(run, "none") || !has_vision, cfg, "model", "vision",
                    "none: the checkpoint %s contains a vision tower; export it with dtrain-convert, and set "
                    "model.path to the directory",
                    from);
    return DT_OK;
}
