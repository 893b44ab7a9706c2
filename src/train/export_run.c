/* export_run.c - export a run's model for other programs, with its tokenizer. */
#include "dtrain/pretrained/export.h"
#include "dtrain/chat/chat.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "run.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char ADAPTER[] = "adapter";
static bool exports(const dt_run *run) { return run->total_steps > 0 && !strcmp(run->cfg.checkpoint_export, "hf"); }

const char *run_tokenizer(const dt_run *run)
{
    if (*run->cfg.model_tokenizer) return run->cfg.model_tokenizer;
    return run->has_pretrained && run->pretrained.tokenizer ? run->pretrained.tokenizer : "";
}

/* Otherwise the dataset's tokenizer, if it needs no files. */
static const char *choose_tokenizer(const dt_run *run)
{
    const char *own = run_tokenizer(run), *data = run->task.train ? dt_loader_info(run->task.train)->tokenizer : "";
    if (*own) return own;
    return !strcmp(data, "bytes") ? "bytes" : "";
}

static void warn_of_data(const dt_loader *l, const char *tokenizer, const char *name)
{
    const dt_data_info *data = l ? dt_loader_info(l) : NULL;
    if (!data) return;
    if (data->other_path) DT_WARN("%s and %s were encoded with different tokenizers", data->path, data->other_path);
    if (name && *data->tokenizer && strcmp(data->tokenizer, name) != 0) {
        const bool is_file = strcmp(tokenizer, name) != 0;
        DT_WARN("%s was encoded with the tokenizer %s, but the model's tokenizer%s%s%s is %s, so the same ids "
                "stand for other text",
                data->path, data->tokenizer, is_file ? ", " : "", is_file ? tokenizer : "", is_file ? "," : "", name);
    }
}

/* A tokenizer that dtrain cannot read, or only copies, is not compared. */
static void warn_of_other_tokenizers(const dt_run *run, const char *tokenizer)
{
    dt_tokenizer *t = NULL;
    if (*tokenizer && dt_tokenizer_open(&t, tokenizer) != DT_OK) dt_error_clear();
    const char *name = t ? dt_tokenizer_get_info(t)->name : NULL;
    warn_of_data(run->task.train, tokenizer, name);
    warn_of_data(run->task.valid, tokenizer, name);
    dt_tokenizer_close(t);
}

/* ---- the chat template ------------------------------------------------------------------------------------------- */

static void warn_of_templates(const dt_loader *l, const char *chosen)
{
    const dt_data_info *data = l ? dt_loader_info(l) : NULL;
    if (!data || !*data->chat_template) return;
    if (data->other_template_path)
        DT_WARN("the conversations in %s were written with another chat template than those of the files before it",
                data->other_template_path);
    if (strcmp(chosen, data->chat_template) != 0)
        DT_WARN("%s was written with the chat template %.200s, but the model uses %.200s", data->path,
                data->chat_template, chosen);
}

/* Expands a file or a short name to the form that checkpoints store. If the tokenizer cannot be read here, the name
 * stays unchanged. */
static dt_err spell_out(dt_run *run, const char *chosen, const char *tokenizer)
{
    dt_tokenizer *t = NULL;
    dt_chat *chat = NULL;
    char *spec = NULL;
    if (!*tokenizer || dt_tokenizer_open(&t, tokenizer) != DT_OK) {
        dt_error_clear();
        return dt_config_set(&run->cfg, "model", "chat_template", chosen);
    }
    dt_err err = dt_chat_open(&chat, chosen, t);
    if (err == DT_OK) err = dt_chat_spec(chat, &spec);
    if (err == DT_OK) err = dt_config_set(&run->cfg, "model", "chat_template", spec);
    err = dt_config_blame(&run->cfg, "model", "chat_template", err);
    free(spec);
    dt_chat_close(chat);
    dt_tokenizer_close(t);
    return err;
}

/* The key's value, otherwise the dataset's template, otherwise the model's. */
static dt_err settle_template(dt_run *run, const char *tokenizer)
{
    const char *data = run->task.train ? dt_loader_info(run->task.train)->chat_template : "";
    const char *from = run->has_pretrained && run->pretrained.chat_template ? run->pretrained.chat_template : "";
    const char *chosen = *run->cfg.model_chat_template ? run->cfg.model_chat_template : *data ? data : from;
    if (!*chosen || !strcmp(chosen, "auto")) return DT_OK;
    DT_TRY(spell_out(run, chosen, tokenizer));
    if (!run->comm || !dt_comm_first(run->comm)) return DT_OK;
    warn_of_templates(run->task.train, run->cfg.model_chat_template);
    warn_of_templates(run->task.valid, run->cfg.model_chat_template);
    return DT_OK;
}

/* Paths become absolute, because checkpoints store them and are read from other working directories. */
dt_err run_settle_tokenizer(dt_run *run)
{
    const char *tokenizer = choose_tokenizer(run);
    char *full = *tokenizer && strcmp(tokenizer, "bytes") != 0 ? realpath(tokenizer, NULL) : NULL;
    dt_err err = exports(run) || *run->cfg.model_tokenizer ? dt_export_check_tokenizer(tokenizer) : DT_OK;
    if (*run->cfg.model_tokenizer) err = dt_config_lead_to(&run->cfg, "model", "tokenizer", err);
    if (err == DT_OK && exports(run) && !*tokenizer && run->comm && dt_comm_first(run->comm))
        DT_WARN("[checkpoint] export = hf: this model has no known tokenizer, so the export will lack its files; set "
                "[model] tokenizer");
    if (err == DT_OK && run->comm && dt_comm_first(run->comm)) warn_of_other_tokenizers(run, tokenizer);
    if (err == DT_OK && *tokenizer) err = dt_config_set(&run->cfg, "model", "tokenizer", full ? full : tokenizer);
    if (err == DT_OK) err = settle_template(run, run->cfg.model_tokenizer);
    free(full);
    return err;
}

static dt_st_type export_type(const dt_run *run)
{
    const char *word = run->cfg.checkpoint_export_dtype;
    if (!strcmp(word, "auto")) word = dt_dtype_name(dt_config_precision(&run->cfg));
    return !strcmp(word, "bf16") ? DT_ST_BF16 : !strcmp(word, "fp16") ? DT_ST_F16 : DT_ST_F32;
}

/* The chat template of the training data, if the tokenizer has another one or none. */
static dt_err make_template(const dt_run *run, char **jinja)
{
    const char *spec = run->cfg.model_chat_template, *tokenizer = run->cfg.model_tokenizer;
    const int32_t image_token = run->mc.vision ? dt_vision_text_token(run->mc.vision) : -1;
    *jinja = NULL;
    if (!dt_comm_first(run->comm) || !*spec || !strcmp(spec, "auto") || !*tokenizer) return DT_OK;
    const dt_err err = dt_chat_jinja_for(spec, tokenizer, image_token, NULL, jinja);
    if (err != DT_ERR_DATA && err != DT_ERR_USAGE) return err;
    DT_WARN("chat_template.jinja is not written for the template %.200s: %s", spec, dt_error_message());
    dt_error_clear();
    return DT_OK;
}

static const char *folder_of(const dt_trained *m) { return m->name ? m->name : "hf"; }
static const char *config_of(const dt_run *run, const dt_trained *m)
{
    return m->name ? m->model_config : run->mc.json;
}

static bool exports_adapter(const dt_run *run)
{
    return run->lora.r > 0 && run_trains(run) && *run->cfg.run_output_dir;
}

int run_list_exports(const dt_run *run, const char *names[RUN_MOST_EXPORTS])
{
    int n = 0;
    if (exports_adapter(run)) names[n++] = ADAPTER;
    for (int i = 0; i < run->n_trained && exports(run); i++)
        if (config_of(run, run->trained[i])) names[n++] = folder_of(run->trained[i]);
    return n;
}

/* Collective, agreed. */
static dt_err export_model(dt_run *run, const dt_trained *m, const char *config, const char *jinja)
{
    char *dir = NULL;
    const double begin_s = dt_now_s();
    const bool named = asprintf(&dir, "%s/%s", run->cfg.run_output_dir, folder_of(m)) >= 0;
    dt_err err = dt_comm_agree(run->comm, named ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a path"));
    const bool from_hf = run->has_pretrained && run->pretrained.kind == DT_PRETRAINED_HF && !m->name;
    const dt_export_options opt = {.dir = dir,
                                   .dtype = export_type(run),
                                   .unties = !m->name && dt_lora_unties(&run->mc, run->units, run->n_units),
                                   .model_config = config,
                                   .tokenizer = run->cfg.model_tokenizer,
                                   .chat_template = jinja,
                                   .generation_from = from_hf ? run->pretrained.path : NULL};
    if (err == DT_OK) err = dt_export(run->comm, m->zero, &opt, &run->phase);
    if (err == DT_OK)
        DT_INFO("%s exported to %s in %.2f s%s%.200s", m->name ? m->name : "model", dir, dt_now_s() - begin_s,
                jinja ? ", with the chat template " : "", jinja ? run->cfg.model_chat_template : "");
    if (named) free(dir);
    return err;
}

/* Export OUTPUT_DIR/adapter, in fp32 as stored. Collective, agreed. */
static dt_err export_adapter(dt_run *run)
{
    char *dir = NULL, *config = NULL, *base = NULL;
    const double begin_s = dt_now_s();
    if (run->has_pretrained && run->pretrained.kind == DT_PRETRAINED_HF) base = realpath(run->pretrained.path, NULL);
    dt_err err = asprintf(&dir, "%s/%s", run->cfg.run_output_dir, ADAPTER) >= 0
                     ? dt_lora_text(&run->lora, base, &run->mc, run->units, run->n_units, &config)
                     : dt_fail(DT_ERR_MEMORY, "out of memory for a path");
    const dt_export_options opt = {.adapter = &run->lora, .dir = dir, .dtype = DT_ST_F32, .model_config = config};
    err = dt_comm_agree(run->comm, err);
    if (err == DT_OK) err = dt_export(run->comm, run->main.zero, &opt, &run->phase);
    if (err == DT_OK) DT_INFO("adapters exported to %s in %.2f s", dir, dt_now_s() - begin_s);
    free(dir);
    free(config);
    free(base);
    return err;
}

static dt_err export_models(dt_run *run)
{
    char *jinja = NULL;
    dt_err err = dt_comm_agree(run->comm, make_template(run, &jinja));
    for (int i = 0; i < run->n_trained && err == DT_OK; i++) {
        const dt_trained *m = run->trained[i];
        const char *config = config_of(run, m);
        if (config) err = export_model(run, m, config, jinja);
    }
    free(jinja);
    return err;
}

dt_err run_export(dt_run *run)
{
    if (exports_adapter(run)) DT_TRY(export_adapter(run));
    return exports(run) ? export_models(run) : DT_OK;
}
