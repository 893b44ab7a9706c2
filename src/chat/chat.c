/* chat.c - opens chat templates: by name, from JSON files, and the tokenizer's own. What another program's Jinja text
 * does is unknown, so opening a template renders a test question. */
#include "chat_private.h"

#include "dtrain/io/io.h"
#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>
#include <string.h>

const char *dt_chat_place(const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    return info->directory ? info->directory : info->name;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* How to write a token in a rendered text: as its text, if the tokenizer recognises that there, or else as a mark. */
static dt_err settle_token(const dt_tokenizer *t, int32_t id, const char *mark, const char **text)
{
    dt_encoder *e;
    dt_ids ids = {0};
    const char *token = id >= 0 ? dt_tokenizer_token(t, id) : NULL;
    *text = token;
    if (!token) return DT_OK;
    DT_TRY(dt_encoder_open(&e, t));
    const dt_err err = dt_encode(e, &(dt_span){.text = token, .nbytes = strlen(token)}, 1, 0, &ids, NULL);
    if (err == DT_OK && (ids.n != 1 || ids.id[0] != id)) *text = mark;
    free(ids.id);
    dt_encoder_close(e);
    return err;
}

/* The fixed date for templates that use the date: rendered texts must not depend on the current day. */
static time_t fixed_day(void)
{
    struct tm day = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 12, .tm_isdst = -1};
    return mktime(&day);
}

static dt_err new_chat(dt_chat **c, const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    *c = calloc(1, sizeof **c);
    DT_CHECK(*c, DT_ERR_MEMORY, "out of memory for a chat template");
    (*c)->tokenizer = t;
    (*c)->day = fixed_day();
    (*c)->end_token = -1;
    DT_TRY(settle_token(t, info->bos, DT_CHAT_BOS_MARK, &(*c)->bos));
    DT_TRY(settle_token(t, info->eos, DT_CHAT_EOS_MARK, &(*c)->eos));
    return dt_wrap_probe(&(*c)->wrap, t);
}

/* The last token that ends an answer; if targets cannot be determined, the token after the answer's content. */
static dt_err find_end(dt_chat *c)
{
    const dt_message talk[] = {{.role = DT_ROLE_USER, .text = "q", .nbytes = 1},
                               {.role = DT_ROLE_ASSISTANT, .text = "a", .nbytes = 1, .learn = DT_LEARN_CONTENT}};
    dt_jinja_result r;
    dt_jinja_part *answer = NULL;
    int n = 0;
    DT_TRY(dt_chat_evaluate(c, talk, 2, NULL, 0, 0, &r));
    const dt_err err = dt_chat_targets(c, talk, 2, NULL, &r, &answer, &n);
    for (int i = 0; i < n; i++)
        for (size_t at = answer[i].from, len; at < answer[i].to; at += len ? len : 1)
            len = dt_chat_token_at(c, r.text + at, &c->end_token);
    if (err == DT_ERR_DATA && c->after_answer)
        dt_chat_token_at(c, c->after_answer + dt_space_before(c->after_answer, strlen(c->after_answer)), &c->end_token);
    free(answer);
    dt_jinja_result_free(&r);
    return err;
}

/* Name of the template for conversations with tools, as a key of lists of templates and of specs. */
static const char tool_use[] = "tool_use";

/* True if the spec is another program's Jinja text, as dt_chat_spec writes it. */
static bool is_jinja(const char *spec) { return strncmp(spec, "{\"jinja\":", 9) == 0; }

static const char advice[] = "choose a template (dtrain-data --help lists them) or a JSON file (docs/data.md)";

dt_err dt_chat_unless_refused(dt_err err)
{
    if (err == DT_ERR_DATA) dt_error_clear();
    return err == DT_ERR_DATA ? DT_OK : err;
}

dt_err dt_chat_try(const dt_chat *c, const dt_message *messages, int n, const json_t *tools, unsigned flags, int marks,
                   dt_jinja_result *r)
{
    return dt_chat_unless_refused(dt_chat_evaluate(c, messages, n, tools, flags, marks, r));
}

/* Determine what the template writes around an answer. */
static dt_err look_at_answers(dt_chat *c, const dt_message *question, const dt_jinja_result *asked)
{
    const dt_message talk[] = {*question, {.role = DT_ROLE_ASSISTANT, .text = "a", .nbytes = 1}};
    dt_jinja_result said, answered;
    DT_TRY(dt_chat_evaluate(c, talk, 1, NULL, 0, 0, &said));
    const dt_err err = dt_chat_try(c, talk, 2, NULL, 0, DT_CHAT_MARK_WORDS, &answered);
    const bool has_header = asked->nbytes > said.nbytes && memcmp(asked->text, said.text, said.nbytes) == 0;
    const char *words = strstr(said.text, question->text), *after = words ? words + question->nbytes : "",
               *mark = answered.text ? strstr(answered.text, DT_CHAT_END_MARK) : NULL;
    c->has_header = has_header;
    c->after_question = strdup(after);
    c->after_answer = strdup(mark ? mark + DT_CHAT_MARK_NBYTES : "");
    c->header = strdup(has_header ? asked->text + said.nbytes : after);
    dt_jinja_result_free(&said);
    dt_jinja_result_free(&answered);
    DT_CHECK(c->after_question && c->after_answer && c->header, DT_ERR_MEMORY, "out of memory for a chat template");
    return err;
}

static dt_err ask(const dt_chat *c, const dt_message *question, dt_jinja_result *asked)
{
    dt_error_clear();
    DT_TRY(dt_chat_evaluate(c, question, 1, NULL, DT_CHAT_GENERATE, 0, asked));
    if (strstr(asked->text, question->text)) return DT_OK;
    dt_jinja_result_free(asked);
    return dt_fail(DT_ERR_DATA, "it leaves out the text of a question");
}

/* Determine whether the template takes a list of parts as it is: it writes the text, and not Python's form of the
 * list. */
static dt_err look_at_parts(const dt_chat *c, bool image, bool *takes)
{
    json_t *parts = json_pack("[{s:s, s:s}]", "type", "text", "text", "Hello?");
    if (image && parts) json_array_insert_new(parts, 0, json_pack("{s:s}", "type", "image"));
    const dt_message question = {.role = DT_ROLE_USER, .text = "Hello?", .nbytes = 6, .parts = parts};
    dt_jinja_result r = {0};
    DT_CHECK(parts, DT_ERR_MEMORY, "out of memory for a chat template");
    *takes = true;
    const dt_err err = dt_chat_try(c, &question, 1, NULL, 0, 0, &r);
    *takes = r.text && strstr(r.text, "Hello?") && !strstr(r.text, "'type'") && !strstr(r.text, "\"type\"");
    dt_jinja_result_free(&r);
    json_decref(parts);
    return err;
}

/* Determine whether the template takes contents as texts or as lists of parts. If it takes neither, the reported error
 * is that of texts. */
static dt_err look_at(dt_chat *c)
{
    static const bool tries[] = {false, true, false};
    const dt_message question = {.role = DT_ROLE_USER, .text = "Hello?", .nbytes = 6};
    dt_jinja_result asked;
    dt_err err = DT_ERR_DATA;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0] && err == DT_ERR_DATA; i++) {
        c->parts = tries[i];
        err = ask(c, &question, &asked);
    }
    DT_TRY(err);
    c->dated = asked.dated;
    err = look_at_answers(c, &question, &asked);
    dt_jinja_result_free(&asked);
    DT_TRY(err);
    DT_TRY(look_at_parts(c, false, &c->text_parts));
    DT_TRY(look_at_parts(c, true, &c->image_parts));
    return dt_chat_look_at_tools(c);
}

static bool is_jinja_file(const char *name) { return dt_has_ending(name, ".jinja") || dt_has_ending(name, ".j2"); }

static dt_err parse_jinja(dt_chat *c, const char *name, const char *text)
{
    DT_CHECK(c->name = strdup(name), DT_ERR_MEMORY, "out of memory for a chat template");
    DT_CHECK(c->text = strdup(text), DT_ERR_MEMORY, "out of memory for a chat template");
    dt_err err = dt_jinja_parse(&c->jinja, name, text, strlen(text), false);
    if (err == DT_OK && !(c->spec = json_pack("{s:s}", "jinja", text)))
        err = dt_fail(DT_ERR_MEMORY, "out of memory for a chat template");
    if (err == DT_OK) err = look_at(c);
    if (err == DT_OK) err = dt_chat_unless_refused(find_end(c));
    if (err != DT_ERR_DATA) return err;
    char why[1024];
    snprintf(why, sizeof why, "%s", dt_error_message());
    dt_error_clear();
    const char *place = is_jinja_file(name) ? name : dt_chat_place(c->tokenizer);
    return dt_fail(DT_ERR_USAGE, "template: the chat template in %s cannot be evaluated: %s; %s", place, why, advice);
}

/* The template that transformers uses for conversations with tools. text: NULL: there is none. */
static dt_err open_with_tools(dt_chat *c, const char *name, const char *text)
{
    if (!text) return DT_OK;
    DT_TRY(new_chat(&c->with_tools, c->tokenizer));
    c->with_tools->test_tools = dt_chat_test_tools();
    DT_CHECK(c->with_tools->test_tools && json_object_set_new(c->spec, tool_use, json_string(text)) == 0, DT_ERR_MEMORY,
             "out of memory for a chat template");
    return parse_jinja(c->with_tools, name, text);
}

static dt_err open_jinja(dt_chat *c, const char *spec)
{
    json_t *root = json_loads(spec, 0, NULL);
    const char *text = dt_form_text(root, "jinja");
    dt_err err = text ? parse_jinja(c, "jinja", text) : dt_fail(DT_ERR_DATA, "template: expected {\"jinja\": TEXT}");
    if (err == DT_OK) err = open_with_tools(c, "jinja", dt_form_text(root, tool_use));
    json_decref(root);
    return err;
}

static dt_err open_jinja_file(dt_chat *c, const char *path)
{
    enum { MAX_NBYTES = 16 << 20 };
    char *text;
    size_t n;
    DT_TRY(dt_read_file(path, MAX_NBYTES, &text, &n));
    const dt_err err = strlen(text) == n ? parse_jinja(c, path, text)
                                         : dt_fail(DT_ERR_DATA, "%s: expected text, found a zero byte", path);
    free(text);
    return err;
}

static dt_err open_form(dt_chat *c, const char *name)
{
    DT_TRY(dt_form_find(name, &c->form, &c->spec));
    DT_CHECK(c->name = strdup(dt_form_text(c->form, "name")), DT_ERR_MEMORY, "out of memory for a chat template");
    DT_CHECK(c->text = dt_form_jinja(c->form, c->bos, c->eos), DT_ERR_MEMORY, "out of memory for a chat template");
    DT_TRY(dt_jinja_parse(&c->jinja, c->name, c->text, strlen(c->text), false));
    const char *begin = dt_form_text(c->form, "begin"),
               *user = dt_form_text(json_object_get(c->form, "user"), "prefix");
    c->writes_bos = (begin && strstr(begin, "{bos}")) || (user && strncmp(user, "{bos}", 5) == 0);
    c->wrapped = !c->writes_bos;
    c->writes_thoughts = dt_form_text(c->form, "think_off");
    return find_end(c);
}

dt_err dt_chat_open_named(dt_chat **c, const char *name, const dt_tokenizer *t)
{
    dt_err err = new_chat(c, t);
    const char *own = dt_form_text(dt_tokenizer_get_info(t)->chat_templates, name);
    if (err == DT_OK)
        err = is_jinja(name)        ? open_jinja(*c, name)
              : is_jinja_file(name) ? open_jinja_file(*c, name)
              : own                 ? parse_jinja(*c, name, own)
                                    : open_form(*c, name);
    if (err == DT_OK) return DT_OK;
    dt_chat_close(*c);
    *c = NULL;
    return err;
}

/* The default template, or the only one. NULL: none, or several without a default. */
static const char *only_template(const dt_tokenizer_info *info)
{
    json_t *all = (json_t *)info->chat_templates;
    const bool only = !info->chat_template && json_object_size(all) == 1;
    return only ? json_string_value(json_object_iter_value(json_object_iter(all))) : info->chat_template;
}

static dt_err refuse_names(const dt_tokenizer *t)
{
    char names[512] = "";
    const char *name;
    json_t *text;
    size_t n = 0;
    json_object_foreach((json_t *)dt_tokenizer_get_info(t)->chat_templates, name, text) if (n < sizeof names) n +=
        (size_t)snprintf(names + n, sizeof names - n, "%s%.60s", n ? ", " : "", name);
    return dt_fail(DT_ERR_USAGE,
                   "template: %s has the chat templates %s, but none is named default: choose one of them, one of "
                   "dtrain's templates (dtrain-data --help lists them) or a JSON file",
                   dt_chat_place(t), names);
}

/* Open the tokenizer's own Jinja text. */
static dt_err open_own(dt_chat **c, const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    char *name = NULL;
    const char *file = info->chat_template_file ? info->chat_template_file : "chat_template";
    dt_err err = new_chat(c, t);
    if (err == DT_OK && asprintf(&name, "%s/%s", dt_chat_place(t), file) < 0)
        err = dt_fail(DT_ERR_MEMORY, "out of memory for a name");
    if (err == DT_OK) err = parse_jinja(*c, name, only_template(info));
    if (err == DT_OK && info->chat_template)
        err = open_with_tools(*c, name, dt_form_text(info->chat_templates, tool_use));
    free(name);
    if (err == DT_OK) return DT_OK;
    dt_chat_close(*c);
    *c = NULL;
    return err;
}

/* The tokenizer's own template, or plain if it has none. */
static dt_err open_automatic(dt_chat **c, const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    char *spec = dt_chat_written(t);
    if (spec || !only_template(info)) {
        if (!spec && info->chat_templates) return refuse_names(t);
        const dt_err err = dt_chat_open_named(c, spec ? spec : "plain", t);
        free(spec);
        return err;
    }
    DT_TRY(open_own(c, t));
    if ((*c)->dated)
        DT_WARN("the chat template in %s writes the current date; dtrain always writes 26 July 2024", dt_chat_place(t));
    return DT_OK;
}

static bool same_text(const dt_chat *a, const dt_chat *b)
{
    const dt_message talk[] = {{.role = DT_ROLE_USER, .text = "q", .nbytes = 1},
                               {.role = DT_ROLE_ASSISTANT, .text = "a", .nbytes = 1},
                               {.role = DT_ROLE_USER, .text = "r", .nbytes = 1}};
    dt_jinja_result one = {0}, two = {0};
    const bool both = dt_chat_evaluate(a, talk, 3, NULL, DT_CHAT_GENERATE, 0, &one) == DT_OK &&
                      dt_chat_evaluate(b, talk, 3, NULL, DT_CHAT_GENERATE, 0, &two) == DT_OK;
    const bool same = both && one.nbytes == two.nbytes && memcmp(one.text, two.text, one.nbytes) == 0;
    dt_jinja_result_free(&one);
    dt_jinja_result_free(&two);
    return same;
}

/* apply_chat_template encodes the text of the tokenizer's own template without changes. A template by name that writes
 * the same text must give the same ids. */
static dt_err wrap_as_own(dt_chat *c)
{
    dt_chat *own;
    if (!c->wrapped || c->wrap.n_before == 0 || !dt_tokenizer_get_info(c->tokenizer)->chat_template) return DT_OK;
    char *spec = dt_chat_written(c->tokenizer);
    const dt_err err = spec ? dt_chat_open_named(&own, spec, c->tokenizer) : open_own(&own, c->tokenizer);
    free(spec);
    if (err == DT_ERR_MEMORY) return err;
    if (err == DT_OK && same_text(c, own)) c->wrapped = own->wrapped;
    dt_error_clear();
    dt_chat_close(own);
    return DT_OK;
}

static dt_err name_source(dt_chat *c, const char *asked, bool automatic)
{
    const bool has = dt_tokenizer_get_info(c->tokenizer)->chat_template, by_name = !automatic && !is_jinja(asked);
    const char *place = dt_chat_place(c->tokenizer), *file = dt_tokenizer_get_info(c->tokenizer)->chat_template_file;
    const char *more = c->with_tools ? " (default, and tool_use for conversations with tools)" : "";
    const int n = automatic && !c->form ? asprintf(&c->source, "%s%s", c->name, more)
                  : by_name && !c->form ? asprintf(&c->source, "%s (by name)", c->name)
                  : automatic && has    ? asprintf(&c->source, "%s (%s/%s)", c->name, place, file ? file : "")
                  : automatic           ? asprintf(&c->source, "%s (%s has no chat template)", c->name, place)
                  : c->form             ? asprintf(&c->source, "%s (by name)", c->name)
                                        : asprintf(&c->source, "the model's own, recorded in training");
    if (n < 0) c->source = NULL;
    DT_CHECK(c->source, DT_ERR_MEMORY, "out of memory for a chat template");
    return DT_OK;
}

dt_err dt_chat_open(dt_chat **c, const char *name, const dt_tokenizer *t)
{
    const bool automatic = strcmp(name, "auto") == 0;
    *c = NULL;
    dt_err err = automatic ? open_automatic(c, t) : dt_chat_open_named(c, name, t);
    if (err == DT_OK && !automatic) err = wrap_as_own(*c);
    if (err == DT_OK) err = name_source(*c, name, automatic);
    if (err == DT_OK) return DT_OK;
    dt_chat_close(*c);
    *c = NULL;
    return err;
}

void dt_chat_close(dt_chat *c)
{
    if (!c) return;
    dt_chat_close(c->with_tools);
    json_decref(c->test_tools);
    dt_jinja_close(c->jinja);
    json_decref(c->form);
    json_decref(c->spec);
    free(c->name);
    free(c->source);
    free(c->text);
    free(c->after_question);
    free(c->after_answer);
    free(c->header);
    free(c->after_call);
    free(c->result_header);
    dt_call_form_free(&c->calls);
    free(c);
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

const char *dt_chat_source(const dt_chat *c) { return c->source; }
int32_t dt_chat_end_token(const dt_chat *c) { return c->end_token; }
const dt_wrap *dt_chat_wrap(const dt_chat *c) { return c->wrapped ? &c->wrap : NULL; }
bool dt_chat_reads_tools(const dt_chat *c, bool system) { return system ? c->reads_tools_in_system : c->reads_tools; }
bool dt_chat_writes_calls(const dt_chat *c) { return c->writes_calls; }
void dt_chat_for_images(dt_chat *c) { c->wrapped = !c->writes_bos; }
const char *dt_chat_input_system(const dt_chat *c) { return dt_form_text(c->form, "input_system"); }
const char *dt_chat_input_join(const dt_chat *c)
{
    const char *join = dt_form_text(c->form, "input_join");
    return join ? join : "\n";
}

/* [INST] is a token of some templates and text in others. */
static size_t bracket_token(const char *text)
{
    const size_t n = *text == '[' ? strspn(text + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_/") : 0;
    return n > 0 && text[n + 1] == ']' ? n + 2 : 0;
}

void dt_chat_warn(const dt_chat *c)
{
    const bool brackets = json_is_true(json_object_get(c->form, "brackets"));
    char missing[256] = "", name[64];
    for (const char *at = c->text; *at; at++) {
        const size_t n = brackets ? bracket_token(at) : dt_chat_token_meant(at), have = strlen(missing);
        if (n == 0 || n >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        if (dt_tokenizer_find(c->tokenizer, name) >= 0 || strstr(missing, name)) continue;
        if (have + n + 3 < sizeof missing)
            snprintf(missing + have, sizeof missing - have, "%s%s", have ? ", " : "", name);
    }
    if (!missing[0]) return;
    DT_WARN("template %s: the tokenizer lacks %s: each is encoded as several text tokens%s", c->name, missing,
            c->end_token < 0 ? ", and the tokenizer's end-of-text token ends the last answer in training" : "");
}

/* JSON on one line. Characters that start a comment or a variable in configuration files occur only inside
 * strings; they are written as escapes. */
static char *spec_of_json(const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII);
    dt_text spec = {.failed = !text};
    size_t n;
    for (const char *p = text; p && *p; p++)
        if (strchr("#;$", *p))
            dt_text_printf(&spec, "\\u%04x", (unsigned)*p);
        else
            dt_text_append(&spec, p, 1);
    free(text);
    return dt_text_finish(&spec, &n);
}

dt_err dt_chat_spec(const dt_chat *c, char **spec)
{
    *spec = json_is_string(c->spec) ? strdup(json_string_value(c->spec)) : spec_of_json(c->spec);
    DT_CHECK(*spec, DT_ERR_MEMORY, "out of memory for a chat template");
    return DT_OK;
}
