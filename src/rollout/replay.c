/* replay.c - completions from a file: one group per line, in order. After the last line it continues with the first.
 *
 * The whole file is validated when it is opened. Only the offsets of its lines are kept, so a run can resume at any
 * line. */
#include "rollout_private.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a line ------------------------------------------------------------------------------------------------------ */

/* Location of a value: the line, and the limits of its contents. */
typedef struct place {
    const rollout_replay *from;
    const dt_rollout_options *opt;
    int64_t line; /* counted from 1 */
} place;

static dt_err check_ids(const place *at, const char *name, const json_t *ids)
{
    DT_CHECK(json_array_size(ids) > 0, DT_ERR_DATA, "%s:%" PRId64 ": %s: expected a list of token ids, found %s",
             at->from->path, at->line, name, json_is_array(ids) ? "an empty one" : "none");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        DT_CHECK(json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < at->from->vocab_size,
                 DT_ERR_DATA, "%s:%" PRId64 ": %s[%zu]: expected a token id below %" PRId64, at->from->path, at->line,
                 name, i, at->from->vocab_size);
    }
    return DT_OK;
}

static dt_err check_completions(const place *at, const json_t *list)
{
    DT_CHECK(json_array_size(list) == (size_t)at->opt->num_generations, DT_ERR_DATA,
             "%s:%" PRId64 ": completion_ids: expected %d completions per prompt, found %zu", at->from->path, at->line,
             at->opt->num_generations, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        char name[48];
        const json_t *ids = json_array_get(list, i);
        snprintf(name, sizeof name, "completion_ids[%zu]", i);
        DT_TRY(check_ids(at, name, ids));
        DT_CHECK(json_array_size(ids) <= (size_t)at->opt->max_completion, DT_ERR_DATA,
                 "%s:%" PRId64 ": %s: expected at most the %d tokens that section [%s] allows, found %zu",
                 at->from->path, at->line, name, at->opt->max_completion, at->opt->section, json_array_size(ids));
    }
    return DT_OK;
}

/* tool_mask has 0 or 1 for each token of a completion, in all lines or in none. */
static dt_err check_masks(const place *at, const json_t *group)
{
    const json_t *masks = json_object_get(group, "tool_mask"), *lists = json_object_get(group, "completion_ids");
    if (!at->from->has_turns && !masks) return DT_OK;
    DT_CHECK(json_array_size(masks) == json_array_size(lists), DT_ERR_DATA,
             "%s:%" PRId64 ": tool_mask: expected one list per completion (%zu), as in the other lines, found %zu",
             at->from->path, at->line, json_array_size(lists), json_array_size(masks));
    for (size_t i = 0; i < json_array_size(lists); i++) {
        const json_t *mask = json_array_get(masks, i), *one;
        const size_t n = json_array_size(json_array_get(lists, i));
        size_t k, n_valid = 0;
        json_array_foreach(mask, k, one) n_valid += json_is_integer(one) && json_integer_value(one) >> 1 == 0;
        DT_CHECK(n_valid == n && json_array_size(mask) == n, DT_ERR_DATA,
                 "%s:%" PRId64 ": tool_mask[%zu]: expected %zu numbers, 1 for a token of the model and 0 for one of an "
                 "environment",
                 at->from->path, at->line, i, n);
    }
    return DT_OK;
}

/* Rewards of a completion: a list, or a single number. */
static size_t n_rewards(const json_t *of_one) { return json_is_array(of_one) ? json_array_size(of_one) : 1; }
static const json_t *reward_at(const json_t *of_one, size_t k)
{
    return json_is_array(of_one) ? json_array_get(of_one, k) : of_one;
}

static dt_err check_rewards(const place *at, const json_t *list)
{
    if (at->from->n_rewards == 0 && !list) return DT_OK;
    DT_CHECK(json_array_size(list) == (size_t)at->opt->num_generations, DT_ERR_DATA,
             "%s:%" PRId64 ": rewards: expected %d, one per completion, found %zu", at->from->path, at->line,
             at->opt->num_generations, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *of_one = json_array_get(list, i);
        DT_CHECK(n_rewards(of_one) == (size_t)at->from->n_rewards, DT_ERR_DATA,
                 "%s:%" PRId64 ": rewards[%zu]: expected %d numbers, as in the other lines, found %zu", at->from->path,
                 at->line, i, at->from->n_rewards, n_rewards(of_one));
        for (size_t k = 0; k < n_rewards(of_one); k++) {
            const json_t *x = reward_at(of_one, k);
            DT_CHECK(json_is_null(x) || (json_is_number(x) && fabs(json_number_value(x)) <= DT_MOST_REWARD),
                     DT_ERR_DATA, "%s:%" PRId64 ": rewards[%zu]: expected numbers or null (from -1e30 to 1e30)",
                     at->from->path, at->line, i);
        }
    }
    return DT_OK;
}

static dt_err check_group(const place *at, const json_t *group)
{
    DT_CHECK(json_is_object(group), DT_ERR_DATA,
             "%s:%" PRId64 ": expected an object with prompt_ids and completion_ids", at->from->path, at->line);
    const json_t *ids = json_object_get(group, "prompt_ids"), *sample = json_object_get(group, "sample");
    const int64_t n_samples = at->from->n_samples;
    DT_CHECK(n_samples == 0 ||
                 (json_is_integer(sample) && json_integer_value(sample) >= 0 && json_integer_value(sample) < n_samples),
             DT_ERR_DATA,
             "%s:%" PRId64 ": sample: expected the number of the prompt in data.train, which has images: from 0 to "
             "%" PRId64,
             at->from->path, at->line, n_samples - 1);
    if (n_samples == 0 || ids) DT_TRY(check_ids(at, "prompt_ids", ids));
    DT_TRY(check_completions(at, json_object_get(group, "completion_ids")));
    DT_TRY(check_masks(at, group));
    return check_rewards(at, json_object_get(group, "rewards"));
}

static dt_err parse(const rollout_replay *f, int64_t line, const char *text, size_t nbytes, json_t **group)
{
    char where[4200];
    snprintf(where, sizeof where, "%s:%" PRId64, f->path, line);
    return dt_json_parse(group, where, text, nbytes, DT_JSON_NUL | DT_JSON_LAST_KEY | DT_JSON_RECORD);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Record a line's offset. All lines must have the counts of the first one. */
static dt_err add_line(rollout_replay *f, const dt_rollout_options *opt, int64_t offset, int64_t line, const char *text,
                       size_t nbytes)
{
    json_t *group = NULL;
    rollout_line *more = realloc(f->line, (size_t)(f->n + 1) * sizeof *more);
    DT_CHECK(more, DT_ERR_MEMORY, "%s: out of memory for the offsets of its lines", f->path);
    f->line = more;
    f->line[f->n] = (rollout_line){.offset = offset, .number = line};
    DT_TRY(parse(f, line, text, nbytes, &group));
    if (f->n == 0) {
        const json_t *rewards = json_object_get(group, "rewards");
        f->n_rewards = rewards ? (int)n_rewards(json_array_get(rewards, 0)) : 0;
        f->has_turns = json_object_get(group, "tool_mask") != NULL;
    }
    const dt_err err = check_group(&(place){f, opt, line}, group);
    f->line[f->n].sample = json_integer_value(json_object_get(group, "sample"));
    f->longest_prompt = dt_max_i64(f->longest_prompt, (int64_t)json_array_size(json_object_get(group, "prompt_ids")));
    json_decref(group);
    f->n += err == DT_OK;
    return err;
}

static bool is_blank(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i]) return false;
    return true;
}

static dt_err find_lines(rollout_replay *f, const dt_rollout_options *opt)
{
    int64_t offset = 0, line = 0;
    ssize_t n;
    while ((n = getline(&f->text, &f->text_room, f->in)) >= 0) {
        line++;
        f->fingerprint = dt_mix64(f->fingerprint ^ dt_checksum(f->text, offset, n, 1));
        if (!is_blank(f->text, (size_t)n)) DT_TRY(add_line(f, opt, offset, line, f->text, (size_t)n));
        offset += n;
    }
    DT_CHECK(feof(f->in), DT_ERR_DATA, "%s: cannot read", f->path);
    DT_CHECK(f->n > 0, DT_ERR_DATA, "%s: expected a group of completions per line, found none", f->path);
    return DT_OK;
}

dt_err rollout_replay_open(rollout_replay *f, const dt_rollout_options *opt, int64_t vocab_size)
{
    f->path = opt->from_file;
    f->vocab_size = vocab_size;
    DT_TRY(dt_open_text(f->path, &f->in));
    return find_lines(f, opt);
}

/* Line offsets and a buffer for the longest line. */
size_t rollout_replay_nbytes(const rollout_replay *f) { return (size_t)f->n * sizeof *f->line + f->text_room; }

void rollout_replay_close(rollout_replay *f)
{
    if (f->in) fclose(f->in);
    free(f->line);
    free(f->text);
    *f = (rollout_replay){0};
}

static dt_err read_group(rollout_replay *f, const dt_rollout_options *opt, int64_t number, json_t **group)
{
    const rollout_line *at = &f->line[number];
    *group = NULL;
    const ssize_t n = fseeko(f->in, at->offset, SEEK_SET) == 0 ? getline(&f->text, &f->text_room, f->in) : -1;
    DT_CHECK(n > 0, DT_ERR_DATA, "%s:%" PRId64 ": cannot read", f->path, at->number);
    DT_TRY(parse(f, at->number, f->text, (size_t)n, group));
    const dt_err err = check_group(&(place){f, opt, at->number}, *group);
    if (err == DT_OK) return DT_OK;
    json_decref(*group);
    *group = NULL;
    return err;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void copy_ids(const json_t *list, size_t first, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, first + (size_t)i));
}

static bool ends(const dt_rollout *r, int32_t id)
{
    for (int i = 0; i < r->n_eos; i++)
        if (r->eos[i] == id) return true;
    return false;
}

/* The prompt of a line. If prompts have images, it is that of the dataset. */
static dt_err add_prompt(dt_rollout *r, const json_t *prompt, dt_rollout_row *x, int32_t *ids)
{
    const size_t whole = json_array_size(prompt);
    const rollout_line *line = &r->replay.line[x->prompt];
    if (r->replay.n_samples == 0) {
        x->n_prompt = (int32_t)dt_min_i64((int64_t)whole, r->max_prompt);
        copy_ids(prompt, whole - (size_t)x->n_prompt, ids, x->n_prompt);
        return DT_OK;
    }
    DT_TRY(dt_loader_prompt(r->prompts, line->sample, r->max_prompt, ids, &x->n_prompt));
    bool same = !prompt || (int64_t)whole == x->n_prompt;
    for (size_t i = 0; i < whole && same; i++) same = json_integer_value(json_array_get(prompt, i)) == ids[i];
    DT_CHECK(same, DT_ERR_DATA, "%s:%" PRId64 ": prompt_ids: expected those of sample %" PRId64 " of data.train",
             r->replay.path, line->number, line->sample);
    return DT_OK;
}

/* With the tokens of an environment a completion is taken whole. */
static void add_turns(dt_rollout *r, const json_t *mask, int64_t row, int32_t n)
{
    dt_rollout_row *x = &r->row[row];
    uint8_t *const observed = r->observed + row * r->observed_ld;
    for (int32_t k = 0; k < n; k++) {
        observed[k] = json_integer_value(json_array_get(mask, (size_t)k)) == 0;
        x->n_observed += observed[k];
        x->n_turns += !observed[k] && (k == 0 || observed[k - 1]);
    }
    x->n_new = n - x->n_observed;
    x->ended = ends(r, dt_rollout_ids(r, row)[x->n_prompt + n - 1]);
}

/* Otherwise it ends at the first end token. */
static dt_err add_row(dt_rollout *r, const json_t *group, int64_t number, int64_t row, size_t k)
{
    const json_t *prompt = json_object_get(group, "prompt_ids"),
                 *completion = json_array_get(json_object_get(group, "completion_ids"), k),
                 *rewards = json_array_get(json_object_get(group, "rewards"), k);
    dt_rollout_row *x = &r->row[row];
    int32_t *ids = r->ids + row * r->ids_ld;
    *x = (dt_rollout_row){.prompt = number, .number = r->now.next_completion++, .reward = (double)NAN};
    DT_TRY(add_prompt(r, prompt, x, ids));
    const int32_t n = (int32_t)json_array_size(completion);
    copy_ids(completion, 0, ids + x->n_prompt, n);
    if (r->observed) add_turns(r, json_array_get(json_object_get(group, "tool_mask"), k), row, n);
    while (!r->observed && !x->ended && x->n_new < n) x->ended = ends(r, ids[x->n_prompt + x->n_new++]);
    for (int f = 0; f < r->replay.n_rewards; f++) {
        const json_t *reward = reward_at(rewards, (size_t)f);
        r->given[row * r->replay.n_rewards + f] = json_is_null(reward) ? NAN : json_number_value(reward);
    }
    return DT_OK;
}

dt_err rollout_replay_rows(dt_rollout *r, int64_t first)
{
    for (int64_t row = first; row < r->opt.n_rows; row += r->opt.num_generations) {
        const int64_t number = r->now.next_prompt++ % r->replay.n;
        json_t *group;
        DT_TRY(read_group(&r->replay, &r->opt, number, &group));
        dt_err err = DT_OK;
        for (int k = 0; k < r->opt.num_generations && err == DT_OK; k++)
            err = add_row(r, group, number, row + k, (size_t)k);
        json_decref(group);
        DT_TRY(err);
    }
    return DT_OK;
}

/* The remaining fields of a line. */
dt_err rollout_replay_record(dt_rollout *r, int64_t number, char **record)
{
    static const char *const ours[] = {"step",        "prompt_ids", "completion_ids", "prompt",
                                       "completions", "rewards",    "reward_funcs",   "advantages",
                                       "logps",       "tool_mask",  "sample"};
    json_t *group;
    DT_TRY(read_group(&r->replay, &r->opt, number, &group));
    json_t *nested = json_object_get(group, "record");
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) json_object_del(group, ours[i]);
    for (int i = 0; i < r->opt.n_arrays; i++) json_object_del(group, r->opt.array_name[i]);
    *record = json_dumps(json_is_object(nested) ? nested : group, 0);
    json_decref(group);
    DT_CHECK(*record, DT_ERR_MEMORY, "%s: out of memory for a record", r->replay.path);
    return DT_OK;
}

const double *dt_rollout_given_rewards(const dt_rollout *r, int *n)
{
    *n = r->replay.n_rewards;
    return *n ? r->given : NULL;
}
