/* export.c - a run's model for other programs, and the tokenizer that goes with it. */
#include "dtrain/export.h"
#include "dtrain/tokenizer.h"
#include "run.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool exports(const dt_run *run) { return run->train && !strcmp(run->cfg.checkpoint_export, "hf"); }

/* What the key says, else what came with the model, else what the data was made with where that needs no files. */
static const char *choose_tokenizer(const dt_run *run)
{
    const char *data = run->train ? dt_loader_info(run->train)->tokenizer : "";
    if (*run->cfg.model_tokenizer) return run->cfg.model_tokenizer;
    if (run->has_pretrained && run->pretrained.tokenizer) return run->pretrained.tokenizer;
    return !strcmp(data, "bytes") ? "bytes" : "";
}

static void warn_of_data(const dt_loader *l, const char *tokenizer, const char *name)
{
    const dt_data_info *data = l ? dt_loader_info(l) : NULL;
    if (!data) return;
    if (data->other_path) DT_WARN("%s and %s were made with different tokenizers", data->path, data->other_path);
    if (name && *data->tokenizer && strcmp(data->tokenizer, name) != 0)
        DT_WARN("%s was made with the tokenizer %s, but that of the model, %s, is %s, so its ids stand for other text", data->path,
                data->tokenizer, tokenizer, name);
}

/* A tokenizer that cannot be read here, or of a kind that is only copied, is not compared. */
static void warn_of_other_tokenizers(const dt_run *run, const char *tokenizer)
{
    dt_tokenizer *t = NULL;
    if (*tokenizer && dt_tokenizer_open(&t, tokenizer) != DT_OK) dt_error_clear();
    const char *name = t ? dt_tokenizer_get_info(t)->name : NULL;
    warn_of_data(run->train, tokenizer, name);
    warn_of_data(run->valid, tokenizer, name);
    dt_tokenizer_close(t);
}

/* Full paths: the text goes into checkpoints, which are read from other working directories. */
dt_err run_settle_tokenizer(dt_run *run)
{
    char where[512];
    const char *tokenizer = choose_tokenizer(run);
    char *full = *tokenizer && strcmp(tokenizer, "bytes") ? realpath(tokenizer, NULL) : NULL;
    dt_err err = exports(run) || *run->cfg.model_tokenizer ? dt_export_check_tokenizer(tokenizer) : DT_OK;
    if (err != DT_OK && *run->cfg.model_tokenizer) {
        char *why = strdup(dt_error_message());
        dt_error_clear();
        err = dt_fail(DT_ERR_USAGE, "%s: %s", dt_config_where(&run->cfg, "model", "tokenizer", where, sizeof where),
                      why ? why : "");
        free(why);
    }
    if (err == DT_OK && exports(run) && !*tokenizer && run->comm && run->comm->rank == 0)
        DT_WARN("[checkpoint] export = hf: no tokenizer is known for this model, so its files will be missing; name one with "
                "[model] tokenizer");
    if (err == DT_OK && run->comm && run->comm->rank == 0) warn_of_other_tokenizers(run, tokenizer);
    if (err == DT_OK && *tokenizer) err = dt_config_set(&run->cfg, "model", "tokenizer", full ? full : tokenizer);
    free(full);
    return err;
}

static dt_st_type export_type(const dt_run *run)
{
    const char *word = run->cfg.checkpoint_export_dtype;
    if (!strcmp(word, "auto")) word = run->cfg.precision_dtype;
    return !strcmp(word, "bf16") ? DT_ST_BF16 : !strcmp(word, "fp16") ? DT_ST_F16 : DT_ST_F32;
}

dt_err run_export(dt_run *run)
{
    char *dir = NULL;
    if (!exports(run)) return DT_OK;
    const double begin_s = dt_now_s();
    const bool named = asprintf(&dir, "%s/hf", run->cfg.run_output_dir) >= 0;
    dt_err err = dt_comm_agree(run->comm, named ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory for a path"));
    const bool from_hf = run->has_pretrained && run->pretrained.kind == DT_PRETRAINED_HF;
    const dt_export_options opt = {.dir = dir,
                                   .dtype = export_type(run),
                                   .model_config = run->mc.json,
                                   .tokenizer = run->cfg.model_tokenizer,
                                   .generation_from = from_hf ? run->pretrained.path : NULL};
    if (err == DT_OK) err = dt_export(run->comm, run->zero, &opt, &run->phase);
    if (err == DT_OK) DT_INFO("model exported to %s in %.2f s", dir, dt_now_s() - begin_s);
    if (named) free(dir);
    return err;
}
