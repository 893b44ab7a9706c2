/* adapters.c - the adapters of a run: those that it continues, in lora.path or in a checkpoint, or new ones, which the
 * section [lora] describes, and their tensors in the model's units. */
#include "run.h"
#include "dtrain/io/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A resumed run has its adapters in its checkpoint, and lora.path may no longer exist. r = 0: no checkpoint exists. */
static dt_err read_own_adapters(dt_run *run, dt_lora *found)
{
    dt_pretrained own = {0};
    const bool resumes = run_trains(run) && strcmp(run->cfg.checkpoint_resume, "none") != 0;
    if (!resumes || !*run->cfg.run_output_dir) return DT_OK;
    const char *from =
        strcmp(run->cfg.checkpoint_resume, "auto") ? run->cfg.checkpoint_resume : run->cfg.run_output_dir;
    dt_err err = dt_pretrained_describe(&own, from, DT_MODEL_USUAL);
    if (err != DT_OK) return dt_error_clear(), DT_OK;
    if (own.kind == DT_PRETRAINED_CHECKPOINT) err = dt_pretrained_recorded(&own, found);
    dt_pretrained_free(&own);
    return err;
}

bool run_writes_in(const dt_run *run, const char *what, const char *dir)
{
    char *path = NULL, *full = asprintf(&path, "%s/%s", run->cfg.run_output_dir, dir) < 0 ? NULL : realpath(path, NULL);
    char *its = realpath(what, NULL);
    const size_t n = full ? strlen(full) : 0;
    const bool is = n > 0 && its && strncmp(its, full, n) == 0 && (its[n] == '/' || !its[n]);
    free(its);
    free(full);
    free(path);
    return is;
}

/* The adapters that training continues from, if any: those of lora.path, or of a checkpoint. */
static dt_err read_adapters(dt_run *run, dt_lora *found)
{
    const dt_config *cfg = &run->cfg;
    DT_CONFIG_CHECK(!*cfg->lora_path || run->has_pretrained, cfg, "lora", "path",
                    "an adapter needs its model; set model.path");
    if (run->has_pretrained) DT_TRY(dt_pretrained_recorded(&run->pretrained, found));
    run->pretrained.new_adapters = found->r == 0;
    if (!*cfg->lora_path) return DT_OK;
    DT_CONFIG_CHECK(
        found->r == 0, cfg, "lora", "path",
        "the checkpoint %s already contains adapters, and only one set of adapters is supported; leave this key out",
        run->pretrained.path);
    DT_CONFIG_CHECK(
        !run->task.ops->no_dropout || !run_writes_in(run, cfg->lora_path, "adapter"), cfg, "lora", "path",
        "the reference uses the adapter of %s, which this run replaces at its end; choose another run.output_dir",
        cfg->lora_path);
    if (!dt_is_directory(cfg->lora_path)) DT_TRY(read_own_adapters(run, found));
    if (found->r > 0) return DT_OK;
    run->pretrained.adapter = strdup(cfg->lora_path);
    DT_CHECK(run->pretrained.adapter, DT_ERR_MEMORY, "out of memory for a path");
    return dt_config_lead_to(cfg, "lora", "path", dt_lora_read(found, cfg->lora_path));
}

static dt_err settle_adapters(dt_run *run)
{
    dt_config *cfg = &run->cfg;
    dt_lora found = {0};
    dt_err err = read_adapters(run, &found);
    if (run->task.ops->no_dropout) found.dropout = 0; /* as for dropout in config.json */
    if (err == DT_OK && found.r > 0)
        err = dt_lora_settle_keys(cfg, &found, *cfg->lora_path ? cfg->lora_path : run->pretrained.path, &run->mc,
                                  run->units, run->n_units);
    if (err == DT_OK) err = run_save_parts(run);
    if (err == DT_OK) err = dt_lora_from_keys(&run->lora, cfg);
    run->lora.lenient = found.r > 0;
    dt_lora_free(&found);
    return err;
}

dt_err run_attach_adapters(dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    DT_TRY(settle_adapters(run));
    DT_CONFIG_CHECK(
        run->lora.lenient || run->lora.init < DT_LORA_PISSA, cfg, "lora", "init",
        "%s moves a part of the weights to the adapters; write both once with dtrain-convert --split CONFIG "
        "MODEL DIR, then train from model.path = DIR with lora.path = DIR/adapter",
        cfg->lora_init);
    if (!run->lora.lenient)
        DT_TRY(dt_config_blame(cfg, "lora", "target_parameters",
                               dt_lora_check_parameters(&run->lora, run->units, run->n_units)));
    const dt_err err = dt_lora_attach(&run->lora, &run->mc, run->units, run->n_units);
    if (err == DT_ERR_DATA) return dt_config_lead_to(cfg, "lora", "path", err);
    DT_TRY(dt_config_blame(cfg, "lora", "target_modules", err));
    DT_TRY(dt_config_blame(cfg, "lora", "rank_pattern", dt_lora_check_ranks(&run->lora, run->units, run->n_units)));
    if (run_reports(run) && dt_lora_unties(&run->mc, run->units, run->n_units))
        DT_WARN("the head is tied to the embedding, but, as in PEFT, their adapters are separate; a merged model "
                "therefore has a head of its own (tie_word_embeddings = false)");
    if (run_reports(run) && run->lora.r > 0 && !*cfg->model_path && run_trains(run))
        DT_WARN("the adapters are trained on a base with random weights, because model.path is not set; set it to "
                "the model to be adapted");
    DT_TRY(dt_config_blame(cfg, "lora", "alpha_pattern", dt_lora_check_alphas(&run->lora, run->units, run->n_units)));
    return dt_config_blame(cfg, "lora", "modules_to_save",
                           dt_lora_check_saved(&run->lora, &run->mc, run->units, run->n_units));
}
