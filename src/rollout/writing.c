/* writing.c - output of a rollout for users: rollouts.jsonl, one group per line, and some completions on the terminal.
 *
 * Lines are written before their step is complete. A run that resumes before that step generates the rollout again. It
 * then removes the lines of its first step and later ones. */
#include "rollout_private.h"
#include "dtrain/io/json.h"
#include "dtrain/text/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Results reported in addition to the rows. */
typedef struct findings {
    int64_t step;
    int n_funcs;
    const char *const *name;
    const double *rewards, *advantages;
} findings;

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static bool put_text(FILE *f, const char *text)
{
    json_t *string = json_string(text);
    char *quoted = json_dumps(string, JSON_ENCODE_ANY);
    const bool ok = quoted && fputs(quoted, f) >= 0;
    free(quoted);
    json_decref(string);
    return ok;
}

/* Enough digits to read the same double back. */
static void put_real(FILE *f, double x)
{
    if (isfinite(x))
        fprintf(f, "%.17g", x);
    else
        fputs("null", f);
}

static void put_ids(FILE *f, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) fprintf(f, "%s%" PRId32, i ? ", " : "[", ids[i]);
    fputs(n ? "]" : "[]", f);
}

static void put_floats(FILE *f, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) fprintf(f, isfinite(x[i]) ? "%s%.9g" : "%snull", i ? ", " : "[", (double)x[i]);
    fputs(n ? "]" : "[]", f);
}

/* Print ", "NAME": [" and one value per row of the group, written by `put`, then "]". */
typedef bool put_row(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which);
static bool put_list(FILE *f, dt_rollout *r, const findings *x, int64_t first, const char *name, put_row *put,
                     int which)
{
    fputs(", ", f);
    bool ok = put_text(f, name);
    for (int k = 0; k < r->opt.num_generations; k++) {
        fputs(k ? ", " : ": [", f);
        ok = put(f, r, x, first + k, which) && ok;
    }
    fputs("]", f);
    return ok;
}

static bool put_completion(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which)
{
    put_ids(f, dt_rollout_ids(r, row) + r->row[row].n_prompt, dt_rollout_n_completion(&r->row[row]));
    return true;
}

/* 1: a token of the model, 0: of the environment. */
static bool put_mask(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which)
{
    for (int32_t k = 0; k < dt_rollout_n_completion(&r->row[row]); k++)
        fprintf(f, "%s%d", k ? ", " : "[", !dt_rollout_is_observed(r, row, k));
    fputs("]", f);
    return true;
}

static bool put_completion_text(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which)
{
    const char *text = dt_rollout_text(r, row, DT_PART_COMPLETION, DT_WITH_SPECIAL);
    return text && put_text(f, text);
}

static bool put_rewards(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which)
{
    for (int k = 0; k < x->n_funcs; k++) {
        fputs(k ? ", " : "[", f);
        put_real(f, x->rewards[row * x->n_funcs + k]);
    }
    fputs("]", f);
    return true;
}

static bool put_advantage(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which)
{
    put_real(f, x->advantages[row]);
    return true;
}

static bool put_sampled(FILE *f, dt_rollout *r, const findings *x, int64_t row, int which)
{
    put_floats(f, r->sampled.at + row * r->sampled.ld, r->row[row].n_new);
    return true;
}

static bool put_array(FILE *f, dt_rollout *r, const findings *x, int64_t row, int array)
{
    put_floats(f, dt_rollout_array(r, array, row), r->row[row].n_new);
    return true;
}

static bool put_prompt(FILE *f, dt_rollout *r, int64_t first)
{
    const char *record = dt_rollout_record(r, first);
    if (r->max_images > 0) fprintf(f, "\"sample\": %" PRId64 ", ", rollout_sample_of(r, &r->row[first]));
    fputs("\"prompt_ids\": ", f);
    put_ids(f, dt_rollout_ids(r, first), r->row[first].n_prompt);
    if (record && strcmp(record, "{}") != 0) fprintf(f, ", \"record\": %s", record);
    if (!r->tokenizer) return record;
    const char *text = dt_rollout_text(r, first, DT_PART_PROMPT, DT_WITH_SPECIAL);
    fputs(", \"prompt\": ", f);
    return record && text && put_text(f, text);
}

static bool put_group(FILE *f, dt_rollout *r, const findings *x, int64_t first)
{
    fprintf(f, "{\"step\": %" PRId64 ", ", x->step);
    bool ok = put_prompt(f, r, first);
    ok = put_list(f, r, x, first, "completion_ids", put_completion, 0) && ok;
    if (r->observed) ok = put_list(f, r, x, first, "tool_mask", put_mask, 0) && ok;
    if (r->tokenizer) ok = put_list(f, r, x, first, "completions", put_completion_text, 0) && ok;
    if (x->n_funcs) {
        fputs(", \"reward_funcs\": [", f);
        for (int k = 0; k < x->n_funcs; k++) {
            if (k) fputs(", ", f);
            ok = put_text(f, x->name[k]) && ok;
        }
        fputs("]", f);
        ok = put_list(f, r, x, first, "rewards", put_rewards, 0) && ok;
    }
    if (x->advantages) ok = put_list(f, r, x, first, "advantages", put_advantage, 0) && ok;
    if (!r->replay.in) ok = put_list(f, r, x, first, "logps", put_sampled, 0) && ok;
    for (int i = 0; i < r->opt.n_arrays; i++) ok = put_list(f, r, x, first, r->opt.array_name[i], put_array, i) && ok;
    fputs("}\n", f);
    return ok;
}

static dt_err open_journal(dt_rollout *r, const char *dir, int64_t step)
{
    char *path = NULL;
    if (r->journal) return DT_OK;
    DT_CHECK(asprintf(&path, "%s/rollouts.jsonl", dir) >= 0, DT_ERR_MEMORY, "out of memory for a path");
    const dt_err err = dt_journal_open(&r->journal, path, step - 1);
    free(path);
    return err;
}

static dt_err write_lines(dt_rollout *r, const char *dir, const findings *x)
{
    FILE *f;
    bool ok = true;
    dt_rollout *const with = r->opt.writes_with ? r->opt.writes_with : r;
    DT_TRY(open_journal(with, dir, x->step));
    DT_TRY(dt_journal_begin(with->journal, &f));
    for (int64_t row = 0; row < r->n_rows && ok; row += r->opt.num_generations) ok = put_group(f, r, x, row);
    dt_err err = dt_fault("rollout.write");
    if (err == DT_OK && !ok)
        err = *dt_error_message() ? DT_ERR_DATA : dt_fail(DT_ERR_MEMORY, "out of memory for the lines of a rollout");
    return dt_journal_end(with->journal, err);
}

/* ---- terminal output --------------------------------------------------------------------------------------------- */

enum { MOST_SHOWN = 400 };

/* Prints the text quoted and escaped, so that it stays on its line and cannot control the terminal; without a
 * tokenizer, prints ids. */
static void show_text(FILE *f, dt_rollout *r, int64_t row, dt_rollout_part part)
{
    const bool completion = part == DT_PART_COMPLETION;
    const dt_rollout_row *x = &r->row[row];
    const char *text = r->tokenizer ? dt_rollout_text(r, row, part, DT_WITH_SPECIAL) : NULL;
    if (!text) {
        const int32_t n = completion ? dt_rollout_n_completion(x) : x->n_prompt;
        put_ids(f, dt_rollout_ids(r, row) + (completion ? x->n_prompt : 0), n < MOST_SHOWN / 8 ? n : MOST_SHOWN / 8);
        return;
    }
    char *head = strndup(text, dt_utf8_valid(text, strnlen(text, MOST_SHOWN)));
    if (head) put_text(f, head);
    if (head && strlen(text) > strlen(head)) fputs(" ...", f);
    free(head);
}

static void show_row(dt_rollout *r, const findings *x, int64_t row)
{
    char *line = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&line, &nbytes);
    if (!f) return;
    fprintf(f, "step %" PRId64 ", a completion of %" PRId32 " tokens%s", x->step, r->row[row].n_new,
            r->row[row].ended ? "" : ", cut");
    for (int k = 0; k < x->n_funcs; k++) {
        const double reward = x->rewards[row * x->n_funcs + k]; /* NaN: does not apply */
        fprintf(f, isnan(reward) ? ", %s -" : ", %s %.4g", x->name[k], reward);
    }
    fputs(": ", f);
    show_text(f, r, row, DT_PART_PROMPT);
    fputs(" -> ", f);
    show_text(f, r, row, DT_PART_COMPLETION);
    if (fclose(f) == 0) DT_INFO("%s", line);
    free(line);
}

static void show_some(dt_rollout *r, const dt_task *t, const findings *x)
{
    const int64_t n = dt_min_i64(t->cfg->log_completions, r->n_rows);
    if (n == 0 || !dt_cadence_shows(&r->shown, t->cfg->log_stdout_every, r->begin_s, dt_now_s())) return;
    dt_report_end_line(t->report);
    for (int64_t i = 0; i < n; i++) show_row(r, x, i * r->n_rows / n);
}

/* ------------------------------------------------------------------------------------------------------------------ */

dt_err dt_rollout_write(dt_rollout *r, dt_task *t, int n_funcs, const char *const *name, const double *rewards,
                        const double *advantages)
{
    const findings x = {.step = atomic_load(&t->phase->step),
                        .n_funcs = n_funcs,
                        .name = name,
                        .rewards = rewards,
                        .advantages = advantages};
    dt_err err = DT_OK;
    dt_phase_enter(t->phase, "rollout", "write");
    if (dt_comm_first(t->comm) && t->cfg->log_rollouts) err = write_lines(r, t->cfg->run_output_dir, &x);
    if (dt_comm_first(t->comm) && err == DT_OK) show_some(r, t, &x);
    return t->cfg->log_rollouts ? dt_comm_agree(t->comm, err) : DT_OK;
}
