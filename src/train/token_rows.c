/* token_rows.c - trains only the rows of a catalogue's level tokens (recommendation.md "Fine-tuning"). */
#include "dtrain/recommend/catalogue.h"
#include "dtrain/tokenizer/tokenizer.h"
#include "run.h"
#include <inttypes.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Ids of the level tokens, ascending; the caller frees them. */
static dt_err find_ids(const dt_run *run, const dt_catalogue *c, const dt_tokenizer *t, int32_t **ids)
{
    const int32_t n = dt_catalogue_n_levels(c);
    const char *from = dt_catalogue_path(c), *tokenizer = run_tokenizer(run), *missing = NULL;
    int32_t n_missing = 0, largest = 0;
    *ids = malloc((size_t)n * sizeof **ids);
    DT_CHECK(*ids, DT_ERR_MEMORY, "out of memory for the ids of %d tokens", (int)n);
    for (int32_t i = 0; i < n; i++) {
        (*ids)[i] = dt_tokenizer_find(t, dt_catalogue_level(c, i));
        if ((*ids)[i] < 0 && n_missing++ == 0) missing = dt_catalogue_level(c, i);
        largest = (*ids)[i] > largest ? (*ids)[i] : largest;
    }
    DT_CHECK(n_missing == 0, DT_ERR_DATA,
             "%d of %d level tokens (the first is %.100s) are missing from the tokenizer %s; add them to the model "
             "with dtrain-convert --add-tokens %s FROM TO",
             (int)n_missing, (int)n, missing, tokenizer, from);
    DT_CHECK(largest < run->mc.vocab_size, DT_ERR_DATA,
             "level tokens have ids up to %d in the tokenizer %s, but the model has vocab_size = %" PRId64
             "; add them to the model with dtrain-convert --add-tokens %s FROM TO",
             (int)largest, tokenizer, run->mc.vocab_size, from);
    qsort(*ids, (size_t)n, sizeof **ids, by_value);
    return DT_OK;
}

/* Consecutive ids form a range. */
static dt_err make_ranges(dt_run *run, const int32_t *ids, int32_t n, int *n_ranges)
{
    run->rows = calloc((size_t)n, sizeof *run->rows);
    DT_CHECK(run->rows, DT_ERR_MEMORY, "out of memory for the rows of %d tokens", (int)n);
    *n_ranges = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i == 0 || ids[i] > ids[i - 1] + 1) run->rows[(*n_ranges)++].first = ids[i];
        run->rows[*n_ranges - 1].end = ids[i] + 1;
    }
    return DT_OK;
}

static void train_rows(dt_run *run, int n_ranges)
{
    for (int u = 0; u < run->n_units; u++)
        for (int i = 0; i < run->units[u].n_tensors; i++) {
            dt_tensor *t = &run->units[u].tensors[i];
            if (t->trainable) t->row_ranges = run->rows, t->n_row_ranges = n_ranges;
        }
}

static dt_err choose(dt_run *run, const dt_catalogue *c, const dt_tokenizer *t)
{
    int32_t *ids;
    int n_ranges = 0;
    dt_err err = find_ids(run, c, t, &ids);
    if (err == DT_OK) err = make_ranges(run, ids, dt_catalogue_n_levels(c), &n_ranges);
    free(ids);
    DT_TRY(err);
    train_rows(run, n_ranges);
    if (run_reports(run))
        DT_INFO("rec.freeze_llm: training only the rows of %d level tokens, ids %" PRId64 " to %" PRId64 ": %" PRId64
                " of %" PRId64 " parameters",
                (int)dt_catalogue_n_levels(c), run->rows[0].first, run->rows[n_ranges - 1].end - 1,
                dt_units_n_trainable(run->units, run->n_units), run_n_param(run));
    return DT_OK;
}

static dt_err check_keys(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    DT_CONFIG_CHECK(run->task.n_labels == 0, cfg, "rec", "freeze_llm",
                    "expected a task whose model predicts tokens, found task %s", cfg->run_task);
    DT_CONFIG_CHECK(run->lora.r == 0, cfg, "rec", "freeze_llm",
                    "expected lora.r = 0, because only the rows of level tokens are trained; to train adapters and the "
                    "embedding, use lora.modules_to_save = embed_tokens instead");
    DT_CONFIG_CHECK(*cfg->rec_catalogue, cfg, "rec", "freeze_llm",
                    "needs rec.catalogue, whose level tokens are trained");
    DT_CONFIG_CHECK(*run_tokenizer(run), cfg, "rec", "freeze_llm", "needs the model's tokenizer; set model.tokenizer");
    return DT_OK;
}

dt_err run_choose_rows(dt_run *run)
{
    dt_catalogue *c = NULL;
    dt_tokenizer *t = NULL;
    if (!run->cfg.rec_freeze_llm || !run_trains(run)) return DT_OK;
    DT_TRY(check_keys(run));
    DT_TRY(
        dt_config_lead_to(&run->cfg, "rec", "catalogue", dt_catalogue_open(&c, run->cfg.rec_catalogue, &run->ledger)));
    dt_err err = dt_task_reads(&run->task, run->cfg.rec_catalogue, dt_catalogue_fingerprint(c));
    if (err == DT_OK) err = dt_tokenizer_open(&t, run_tokenizer(run));
    if (err == DT_OK) err = choose(run, c, t);
    dt_tokenizer_close(t);
    dt_catalogue_close(c);
    return err == DT_OK ? err : dt_config_lead_to(&run->cfg, "rec", "freeze_llm", err);
}
