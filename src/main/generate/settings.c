/* settings.c - applies the model's generation_config.json to settings that the command line does not set. */
#include "generate_app.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

static void add(char *names, size_t size, bool on, const char *name)
{
    const size_t n = strlen(names);
    if (on) snprintf(names + n, size - n, "%s%s", n ? ", " : "", name);
}

/* With a catalogue, items are ranked as in task = eval. */
static void warn_of_catalogue(const options *o, const dt_generation_defaults *from)
{
    char names[256] = "";
    const double rho = from->repetition_penalty, length = from->length_penalty;
    add(names, sizeof names, !o->given.penalty && rho >= 0 && rho != 1, "repetition_penalty");
    add(names, sizeof names, !o->given.length_penalty && !isnan(length) && length != 1, "length_penalty");
    add(names, sizeof names, !o->given.early && from->early_stopping > 0, "early_stopping");
    add(names, sizeof names, from->min_new_tokens > 0, "min_new_tokens");
    add(names, sizeof names, from->min_length > 0, "min_length");
    add(names, sizeof names, from->no_repeat_ngram_size > 0, "no_repeat_ngram_size");
    add(names, sizeof names, from->suppress.n > 0, "suppress_tokens");
    add(names, sizeof names, from->begin_suppress.n > 0, "begin_suppress_tokens");
    add(names, sizeof names, from->n_stop > 0, "stop_strings");
    if (*names)
        DT_WARN("--catalogue: items are ranked by the model's log-probabilities, as in task = eval, so these settings "
                "of generation_config.json are ignored: %s",
                names);
}

static void warn_of_ignored(const options *o, const dt_generation_defaults *from)
{
    const bool samples = o->beams.n_beams == 1 && !o->sampling.greedy && o->sampling.temperature > 0;
    const char *always = from->ignored, *sampling = samples ? from->ignored_sampling : NULL;
    if (always || sampling)
        DT_WARN("dtrain does not support these settings of generation_config.json and ignores them: %s%s%s",
                always ? always : "", always && sampling ? ", " : "", sampling ? sampling : "");
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static dt_err copy_ids(dt_ids *to, const dt_ids *from)
{
    DT_TRY(dt_ids_reserve(to, from->n));
    if (from->n > 0) memcpy(to->id, from->id, from->n * sizeof *to->id);
    to->n = from->n;
    return DT_OK;
}

static dt_err take_rules(options *o, const dt_generation_defaults *from)
{
    const bool minimum = !o->given.min_new && from->min_new_tokens >= 0;
    if (minimum) o->rules.min_new_tokens = (int32_t)from->min_new_tokens;
    if (!o->given.min_new && !minimum && from->min_length > 0) o->rules.min_length = (int32_t)from->min_length;
    if (!o->given.ngram && from->no_repeat_ngram_size > 0)
        o->rules.no_repeat_ngram_size = (int32_t)from->no_repeat_ngram_size;
    if (!o->given.suppress) DT_TRY(copy_ids(&o->rules.suppress, &from->suppress));
    if (!o->given.begin_suppress) DT_TRY(copy_ids(&o->rules.begin_suppress, &from->begin_suppress));
    for (int i = 0, given = o->n_stop; given == 0 && i < from->n_stop; i++) o->stop[o->n_stop++] = from->stop[i];
    return DT_OK;
}

static void take_length(options *o, const dt_generation_defaults *from)
{
    if (o->given.max_new) return;
    if (from->max_new_tokens > 0 || from->max_length > 0) o->given.max_new = "generation_config.json";
    if (from->max_new_tokens > 0)
        o->max_new_tokens = from->max_new_tokens;
    else if (from->max_length > 0)
        o->max_length = from->max_length;
}

static void take_beams(options *o, const dt_generation_defaults *from)
{
    const bool plain = !generate_draws(o) && !o->stream && !o->chat;
    if (!o->given.beams && !o->given.greedy && plain && from->do_sample != 1 && from->num_beams > 1 &&
        from->num_beams <= 1 << 16)
        o->beams.n_beams = (int)from->num_beams;
    if (o->catalogue && !o->given.length_penalty) o->beams.length_penalty = 0; /* as in task = eval */
    if (o->catalogue) return;
    if (!o->given.length_penalty && !isnan(from->length_penalty)) o->beams.length_penalty = from->length_penalty;
    if (!o->given.early && from->early_stopping >= 0) o->beams.early_stopping = from->early_stopping;
}

/* Without do_sample, decoding is greedy, as in transformers. */
static void take_sampling(options *o, const dt_generation_defaults *from)
{
    dt_sampling *s = &o->sampling;
    if (o->beams.n_beams > 1 || o->given.greedy) return;
    if (from->given && from->do_sample != 1 && !generate_draws(o)) {
        s->greedy = true;
        return;
    }
    if (!o->given.temperature && from->temperature >= 0) s->temperature = from->temperature;
    if (!o->given.top_k && from->top_k >= 0) s->top_k = from->top_k;
    if (!o->given.top_p && from->top_p >= 0) s->top_p = from->top_p;
    if (!o->given.min_p && from->min_p >= 0) s->min_p = from->min_p;
}

static dt_err check_ids(const dt_ids *ids, const char *name, int64_t vocab_size)
{
    for (size_t i = 0; i < ids->n; i++)
        DT_CHECK(ids->id[i] < vocab_size, DT_ERR_USAGE,
                 "%s: expected ids below %lld, the model's vocabulary size, found %d", name, (long long)vocab_size,
                 (int)ids->id[i]);
    return DT_OK;
}

dt_err generate_take_defaults(options *o, const dt_generation_defaults *from, int64_t vocab_size, bool speaks)
{
    DT_TRY(check_ids(&o->rules.suppress, "--suppress-tokens", vocab_size));
    DT_TRY(check_ids(&o->rules.begin_suppress, "--begin-suppress-tokens", vocab_size));
    take_length(o, from);
    take_beams(o, from);
    take_sampling(o, from);
    if (!o->catalogue) DT_TRY(take_rules(o, from));
    if (!o->catalogue && !o->given.penalty && from->repetition_penalty >= 0)
        o->sampling.repetition_penalty = from->repetition_penalty;
    if (speaks && o->catalogue) warn_of_catalogue(o, from);
    if (speaks && !o->answers) warn_of_ignored(o, from);
    return dt_sampling_check(&o->sampling);
}
