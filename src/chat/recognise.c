/* recognise.c - finds the template of dtrain that renders all probes identically to the tokenizer's own
 * template.
 *
 * Kinds of messages that it renders differently are refused in conversations. If the only difference is
 * the default system message, the result is dtrain's template with that message. */
#include "probe.h"

#include <stdlib.h>
#include <string.h>

typedef struct search {
    const dt_tokenizer *t;
    dt_probes probes;
    dt_chat *best; /* template found, with the fewest refused kinds */
    unsigned refused;
    dt_chat *near; /* else the one with the longest common text */
    dt_probe_match near_match;
} search;

static int count(unsigned bits)
{
    int n = 0;
    for (; bits; bits &= bits - 1) n++;
    return n;
}

/* Takes ownership of c. */
static dt_err try_one(search *s, dt_chat *c)
{
    dt_probe_match m;
    const dt_err err = dt_probes_match(&s->probes, c, &m);
    dt_chat **keep = NULL;
    if (err == DT_OK && !m.differs && (!s->best || count(m.refused) < count(s->refused))) {
        keep = &s->best;
        s->refused = m.refused;
    } else if (err == DT_OK && m.differs && (!s->near || m.n_same > s->near_match.n_same)) {
        keep = &s->near;
        s->near_match = m;
    }
    if (keep) {
        dt_chat_close(*keep);
        *keep = c;
    } else {
        dt_chat_close(c);
    }
    return err;
}

/* Content of the default system message of the tokenizer's template, located by the text that dtrain's
 * template writes around a known one. *text NULL: none. */
static dt_err find_default(const search *s, const dt_chat *c, const char **text, size_t *nbytes)
{
    static const char mark[] = "\002";
    const dt_probe *question = &s->probes.item[0];
    const dt_message with[] = {{.role = DT_ROLE_SYSTEM, .text = mark, .nbytes = 1}, question->message[0]};
    char *whole;
    size_t n;
    *text = NULL;
    if (!question->text) return DT_OK;
    const dt_err err = dt_chat_text(c, with, 2, question->flags, &whole, &n);
    if (err == DT_ERR_DATA) { /* system messages are unsupported */
        dt_error_clear();
        return DT_OK;
    }
    DT_TRY(err);
    const char *at = memchr(whole, *mark, n);
    const size_t before = at ? (size_t)(at - whole) : n, after = at ? n - before - 1 : 0;
    const bool found = at && question->nbytes > n - 1 && memcmp(question->text, whole, before) == 0 &&
                       memcmp(question->text + question->nbytes - after, at + 1, after) == 0;
    free(whole);
    if (found) *text = question->text + before, *nbytes = question->nbytes - before - after;
    return DT_OK;
}

static dt_err try_default(search *s, const char *name)
{
    dt_chat *c, *changed = NULL;
    const char *text = NULL;
    size_t n = 0;
    DT_TRY(dt_chat_open_named(&c, name, s->t));
    dt_err err = c->form.system == DT_SYSTEM_TURN ? find_default(s, c, &text, &n) : DT_OK;
    char *json = text ? dt_chat_template_json(&c->form, text, n) : NULL;
    if (text && !json) err = dt_fail(DT_ERR_MEMORY, "no memory for a chat template");
    if (json) err = dt_chat_open_named(&changed, json, s->t);
    dt_chat_close(c);
    free(json);
    return err == DT_OK && changed ? try_one(s, changed) : err;
}

static dt_err try_all(search *s)
{
    const char *name, *about;
    for (int i = 0; dt_chat_named(i, &name, &about); i++) {
        dt_chat *c;
        DT_TRY(dt_chat_open_named(&c, name, s->t));
        DT_TRY(try_one(s, c));
    }
    const bool found = s->best != NULL;
    for (int i = 0; !found && dt_chat_named(i, &name, &about); i++) DT_TRY(try_default(s, name));
    return DT_OK;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static const char advice[] = "choose a template (dtrain-data --help lists them) or a JSON file (docs/data.md)";

static dt_err say_difference(const search *s)
{
    const dt_probe *p = s->near_match.differs;
    const char *place = dt_chat_place(s->t), *file = dt_tokenizer_get_info(s->t)->chat_template_file;
    const char *slash = file ? "/" : "", *name = s->near->form.name;
    char theirs[128], ours[128], *text;
    size_t n, at = 0;
    file = file ? file : "";
    if (!p->text)
        return dt_fail(DT_ERR_USAGE,
                       "template: the chat template in %s%s%s matches none of dtrain's templates: it refuses %s; %s",
                       place, slash, file, p->about, advice);
    DT_TRY(dt_chat_text(s->near, p->message, p->n, p->flags, &text, &n));
    while (at < n && at < p->nbytes && text[at] == p->text[at]) at++;
    dt_probe_excerpt(p->text, p->nbytes, at, theirs);
    dt_probe_excerpt(text, n, at, ours);
    free(text);
    return dt_fail(DT_ERR_USAGE,
                   "template: the chat template in %s%s%s matches none of dtrain's templates. The nearest is %s, but "
                   "for %s the file writes \"%s\" and %s writes \"%s\": %s",
                   place, slash, file, name, p->about, theirs, name, ours, advice);
}

/* Report why the template cannot be evaluated, as an error in the choice of the template. */
static dt_err cannot_evaluate(const dt_tokenizer *t)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", dt_error_message());
    dt_error_clear();
    return dt_fail(DT_ERR_USAGE, "template: the chat template in %s cannot be evaluated: %s; %s", dt_chat_place(t), why,
                   advice);
}

static dt_err find(search *s)
{
    DT_TRY(try_all(s));
    if (!s->best) return say_difference(s);
    s->best->refused = s->refused;
    s->best->wrapped = false; /* as apply_chat_template: only the template's text */
    s->best->dated = s->probes.dated;
    return DT_OK;
}

dt_err dt_chat_recognise(dt_chat **out, const dt_tokenizer *t)
{
    search s = {.t = t};
    *out = NULL;
    dt_err err = dt_probes_make(&s.probes, t);
    if (err == DT_ERR_DATA) return cannot_evaluate(t);
    DT_TRY(err);
    err = find(&s);
    if (err == DT_OK) *out = s.best;
    if (err != DT_OK) dt_chat_close(s.best);
    dt_chat_close(s.near);
    dt_probes_free(&s.probes);
    return err;
}
