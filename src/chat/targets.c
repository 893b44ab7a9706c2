/* targets.c - which parts of a rendered conversation are trained on.
 *
 * If a template has {% generation %} blocks, their text is the targets. dtrain's own templates have one block for each
 * answer. For other templates each answer is located in the rendered text:
 *
 *     end of content    Each answer's content is followed by a mark in a second evaluation.
 *     end of answer     The answer ends after the special tokens that follow. If answers end with none, it ends after
 *                       the text that the template writes after a last answer.
 *     begin of answer   The answer begins where add_generation_prompt leaves the model: after the first answer header
 *                       that follows the previous message's content, whose end is marked, too. If answers have no
 *                       header, it begins after the text that ends a question or a tool's result.
 *
 * The content of an answer with tool calls has no mark. It ends after the arguments of its last call (calls.c). Its end
 * is the text that the template writes there after a last answer.
 *
 * The template's empty block of thoughts before an answer is never a target.
 *
 * A conversation without a unique result is refused. */
#include "chat_private.h"

#include "dtrain/text/space.h"

#include <stdlib.h>
#include <string.h>

static const char empty_block[] = "<think>\n\n</think>\n\n", thought_begin[] = "<think>", thought_end[] = "</think>";

typedef struct talk {
    const dt_chat *c;
    const dt_message *message;
    int n;
    const json_t *tools;
    const dt_jinja_result *text;
    dt_jinja_part *answer; /* [n], of assistant messages */
} talk;

static bool is_answer(const dt_message *m) { return m->role == DT_ROLE_ASSISTANT; }

/* Answers with tool calls have no mark. */
static bool is_marked(const dt_message *m) { return is_answer(m) && !m->calls; }

static int count_answers(const dt_message *messages, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++) found += is_answer(&messages[i]);
    return found;
}

static dt_err refuse(const talk *t, int i, const char *why)
{
    return dt_fail(DT_ERR_DATA,
                   "message %d: the chat template %s %s, so the tokens to train on are unknown: drop such records, "
                   "put the answers into {%% generation %%} blocks in a copy of the template, or choose one of "
                   "dtrain's templates with --template (dtrain-data --help lists them)",
                   i, t->c->name, why);
}

/* ---- answers by generation blocks -------------------------------------------------------------------------------- */

static bool take_generated(dt_jinja_part *answer, const dt_message *messages, int n, const dt_jinja_result *text)
{
    if (text->n_generated != count_answers(messages, n)) return false;
    for (int i = 0, k = 0; i < n; i++)
        if (is_answer(&messages[i])) answer[i] = text->generated[k++];
    return true;
}

/* True if exactly the answers are trained on. Then the text of all blocks is the targets, even with several blocks. */
static bool learns_answers(const talk *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->message[i].learn != (is_answer(&t->message[i]) ? DT_LEARN_CONTENT : 0)) return false;
    return true;
}

/* ---- answers by probing ------------------------------------------------------------------------------------------ */

/* The next mark of an answer or a question; NULL: none. */
static const char *next_mark(const char *from, const char *stop)
{
    const char *answer = memmem(from, (size_t)(stop - from), DT_CHAT_END_MARK, DT_CHAT_MARK_NBYTES),
               *question = memmem(from, (size_t)(stop - from), DT_CHAT_QUESTION_MARK, DT_CHAT_MARK_NBYTES);
    return !answer || (question && question < answer) ? question : answer;
}

/* For each answer, gap.to is the end of its content. gap.from is the end of the text before it that is known not to be
 * the template's: the previous message's content, if it was marked. *found false: the marks change other text. For
 * answers with tool calls gap.to is known (find_calls). */
static dt_err find_contents(const talk *t, int marks, dt_jinja_part *gap, bool *found)
{
    dt_jinja_result marked;
    const char *text = t->text->text;
    size_t at = 0, bound = 0;
    int i = 0;
    *found = false;
    for (int k = 0; k < t->n; k++) gap[k].from = 0;
    DT_TRY(dt_chat_evaluate(t->c, t->message, t->n, t->tools, 0, marks, &marked));
    for (const char *from = marked.text, *stop = from + marked.nbytes, *mark; from; from = mark) {
        mark = next_mark(from, stop);
        const size_t n = (size_t)((mark ? mark : stop) - from);
        if (n > t->text->nbytes - at || memcmp(text + at, from, n) != 0) break;
        at += n;
        const bool question = mark && memcmp(mark, DT_CHAT_QUESTION_MARK, DT_CHAT_MARK_NBYTES) == 0;
        while (mark && !question && i < t->n && !is_marked(&t->message[i])) i++;
        if (mark && !question && i == t->n) break;
        if (mark && !question) gap[i++] = (dt_jinja_part){bound, at};
        for (int k = 0; k < t->n && mark; k++)
            if (t->message[k].calls && gap[k].to >= at) gap[k].from = at;
        if (mark) bound = at, mark += DT_CHAT_MARK_NBYTES;
        if (!mark) *found = at == t->text->nbytes;
    }
    for (; i < t->n; i++) *found = *found && !is_marked(&t->message[i]);
    for (int k = 0; k < t->n; k++)
        for (int call = 0; call < k; call++)
            if (is_answer(&t->message[k]) && t->message[call].calls && gap[call].to > gap[k].from)
                gap[k].from = gap[call].to;
    dt_jinja_result_free(&marked);
    return DT_OK;
}

/* Set gap.to of answers with tool calls. */
static dt_err find_calls(const talk *t, dt_jinja_part *gap)
{
    int lost;
    DT_TRY(dt_chat_find_calls(t->c, t->message, t->n, t->tools, t->text, gap, &lost));
    return lost < 0 ? DT_OK : refuse(t, lost, "leaves out or changes the tool calls of this answer");
}

static size_t skip(const char *text, const char *word, size_t n) { return strncmp(text, word, n) == 0 ? n : 0; }

/* True at the special token with which the header of an answer begins: it does not end another answer. */
static bool is_turn_begin(const talk *t, const char *text)
{
    const char *header = t->c->has_header ? t->c->header : "";
    int32_t id;
    const size_t n = dt_chat_token_at(t->c, header, &id);
    return n > 0 && skip(text, header, n) > 0;
}

/* Length of the special token at the start of `end`, if `text` begins with the same token. 0: none, or it begins
 * the next turn. */
static size_t skip_token(const talk *t, const char *text, const char *end)
{
    const char *bos = t->c->bos;
    int32_t id;
    const size_t n = dt_chat_token_at(t->c, end, &id);
    const bool begins = (bos && *bos && skip(end, bos, strlen(bos))) || is_turn_begin(t, end);
    return n > 0 && !begins ? skip(text, end, n) : 0;
}

/* Length of the token with which the template ends a question, at the start of a text. 0: none. */
static size_t skip_question_end(const talk *t, const char *text)
{
    return skip_token(t, text, t->c->after_question + strspn(t->c->after_question, " \n"));
}

/* Length of the special tokens at the start of a text with which the template ends an answer. Without any, length of
 * the token with which it ends a question. 0: none. */
static size_t skip_end(const talk *t, const char *text)
{
    const char *answer = t->c->after_answer + strspn(t->c->after_answer, " \n");
    size_t n = 0;
    for (size_t more; (more = skip_token(t, text + n, answer + n)) > 0;) n += more;
    return n > 0 ? n : skip_question_end(t, text);
}

/* Length of the end of an answer with tool calls: up to the last special token that also ends the calls of a last
 * answer, or instead of it a question. If there are no such tokens, the whole end without white space. 0: none. */
static size_t skip_calls_end(const talk *t, const dt_message *m, const char *text)
{
    const char *after = t->c->after_call ? t->c->after_call : "";
    const json_t *last = json_array_get(m->calls, json_array_size(m->calls) - 1);
    const char *id = json_string_value(json_object_get(last, "id"));
    size_t n = 0, at = 0, more;
    int32_t token;
    while (*after && text[at] && !is_turn_begin(t, text + at)) {
        const size_t n_id = id ? skip(after, DT_CHAT_CALL_ID, strlen(DT_CHAT_CALL_ID)) : 0;
        if (n_id > 0) {
            if (skip(text + at, id, strlen(id)) == 0) break;
            at += strlen(id);
            after += n_id;
            continue;
        }
        more = dt_chat_token_at(t->c, after, &token);
        if (skip(text + at, after, more ? more : 1) == 0) {
            const size_t ended = more ? skip_question_end(t, text + at) : 0;
            if (ended) n = at + ended;
            break;
        }
        at += more ? more : 1;
        after += more ? more : 1;
        if (more) n = at;
    }
    return n > 0 || after[dt_space_before(after, strlen(after))] ? n : dt_space_trimmed(text, at);
}

/* at: end of the arguments of the last call. The argument by which calls.c finds it may begin with characters that also
 * follow, so that arguments and none differ by a few. */
static size_t end_of_calls(const talk *t, const dt_message *m, size_t at)
{
    enum { MAX_SHIFT = 4 };
    for (size_t shift = 0, n; shift <= MAX_SHIFT; shift++) {
        if (at + shift < t->text->nbytes && (n = skip_calls_end(t, m, t->text->text + at + shift)) > 0)
            return at + shift + n;
        if (at >= shift && (n = skip_calls_end(t, m, t->text->text + at - shift)) > shift) return at - shift + n;
    }
    return at;
}

/* End of answer i, after the tokens or the text that end it. at: end of its content, without white space at its end. */
static size_t end_of(const talk *t, int i, size_t at)
{
    if (t->message[i].calls) return end_of_calls(t, &t->message[i], at);
    const char *text = t->text->text + at, *after = t->c->after_answer;
    const dt_message *m = &t->message[i];
    const size_t n = dt_space_trimmed(m->text, m->nbytes), own = skip(text, m->text + n, m->nbytes - n),
                 space = dt_space_before(text, t->text->nbytes - at), token = skip_end(t, text + space),
                 ending = skip(text + own, after, strlen(after));
    return at + (token ? space + token : ending ? own + ending : skip(text, after, strlen(after)));
}

static size_t find_last(const char *text, size_t from, size_t to, const char *word, size_t n)
{
    for (size_t at = to; at >= from + n; at--)
        if (memcmp(text + at - n, word, n) == 0) return at;
    return 0;
}

static size_t find_first(const char *text, size_t from, size_t to, const char *word, size_t n)
{
    const char *found = memmem(text + from, to - from, word, n);
    return found ? (size_t)(found - text) + n : 0;
}

/* End of the text that follows a tool's result, in from .. to-1; if it also contains the result's id, of the special
 * tokens at its end. 0: none. */
static size_t end_of_result(const talk *t, size_t from, size_t to)
{
    const char *header = t->c->result_header ? t->c->result_header : "", *text = t->text->text;
    const size_t n = strlen(header), at = n > 0 ? find_first(text, from, to, header, n) : 0;
    size_t last = n, more;
    int32_t id;
    for (size_t k = 0; at == 0 && k < n; k += more ? more : 1)
        if ((more = dt_chat_token_at(t->c, header + k, &id)) > 0 && last == n) last = k;
    return at == 0 && last < n ? find_first(text, from, to, header + last, n - last) : at;
}

/* Length of the header's beginning without its last line, or without what follows its last special token. */
static size_t shorter_header(const talk *t, const char *header, size_t n)
{
    size_t line = n - 1, token = 0, more;
    int32_t id;
    while (line > 0 && header[line - 1] != '\n') line--;
    for (size_t at = 0; at < n; at += more ? more : 1)
        if ((more = dt_chat_token_at(t->c, header + at, &id)) > 0 && at + more < n) token = at + more;
    return line > token ? line : token;
}

/* End of the first answer header in from .. to-1. The header of a generated answer may be longer than that of others
 * ("<think>"). Then the end of the header's beginning, and *part is set. 0: none. */
static size_t end_of_header(const talk *t, int i, size_t from, size_t to, bool *part)
{
    const bool result = i > 0 && t->message[i - 1].role == DT_ROLE_TOOL;
    const size_t after_result = result ? end_of_result(t, from, to) : 0;
    *part = false;
    if (after_result > 0) return after_result;
    const char *header = t->c->header, *text = t->text->text;
    size_t n = strlen(header), at = find_first(text, from, to, header, n);
    while (at == 0 && n > 0 && (n = shorter_header(t, header, n)) > 0 && dt_space_before(header, n) < n)
        if ((at = find_first(text, from, to, header, n)) > 0) *part = true;
    return at;
}

/* End of the empty block of thoughts that the template writes before an answer without thoughts. begin: end of the
 * header, which is the result if there is no such block. to: begin of the content or of the calls. part: the header is
 * not whole, so that all text before the content is the template's. */
static size_t end_of_block(const talk *t, const dt_message *m, size_t from, size_t begin, size_t to, bool part)
{
    const char *text = t->text->text, *found = memmem(text + from, to - from, empty_block, strlen(empty_block));
    size_t at = begin + dt_space_before(text + begin, to - begin);
    if (found) return (size_t)(found - text) + strlen(empty_block);
    if (!m->calls)
        return at < to && (part || memmem(text + begin, to - begin, thought_end, strlen(thought_end))) ? to : begin;
    at += skip(text + at, thought_begin, strlen(thought_begin));
    at += dt_space_before(text + at, to > at ? to - at : 0);
    const size_t end = skip(text + at, thought_end, strlen(thought_end));
    return end > 0 && at + end <= to ? at + end + dt_space_before(text + at + end, to - at - end) : begin;
}

/* Begin of a content that ends at `to`, without white space and thoughts at its start. */
static size_t begin_of_content(const talk *t, const dt_message *m, size_t from, size_t to)
{
    const size_t thoughts = find_last(m->text, 0, m->nbytes, thought_end, strlen(thought_end)),
                 before = thoughts + dt_space_before(m->text + thoughts, m->nbytes - thoughts),
                 stop = dt_space_trimmed(m->text, m->nbytes), n = stop > before ? stop - before : 0;
    return to - from >= n && memcmp(t->text->text + to - n, m->text + before, n) == 0 ? to - n : to;
}

/* Begin of the name of an answer's first call, or of the answer's text before it. */
static size_t begin_of_call(const talk *t, const dt_message *m, size_t from, size_t to)
{
    const json_t *function = json_object_get(json_array_get(m->calls, 0), "function");
    const char *name = json_string_value(json_object_get(function, "name")), *text = t->text->text;
    const size_t words = dt_space_trimmed(m->text, m->content == DT_CONTENT_ANY ? 0 : m->nbytes),
                 blank = dt_space_before(m->text, words);
    const char *found = words > blank ? memmem(text + from, to - from, m->text + blank, words - blank) : NULL;
    if (!found && name && *name) found = memmem(text + from, to - from, name, strlen(name));
    return found ? (size_t)(found - text) : to;
}

/* True if a text contains what the template writes before an answer. */
static bool resembles_header(const talk *t, const char *text, size_t nbytes)
{
    const char *header = t->c->header + dt_space_before(t->c->header, strlen(t->c->header));
    const size_t n = strcspn(header, "\n");
    return memmem(text, nbytes, "think>", 6) || (n > 0 && memmem(text, nbytes, header, n));
}

/* True if a message before answer i contains text that could be mistaken for the answer's header. Only needed if ends
 * of questions are not marked. */
static bool is_ambiguous(const talk *t, int i)
{
    const dt_message *m = &t->message[i];
    if (m->thoughts && resembles_header(t, m->thoughts, m->n_thoughts)) return true;
    for (int k = i - 1; k >= 0 && !is_answer(&t->message[k]); k--)
        if (resembles_header(t, t->message[k].text, t->message[k].nbytes)) return true;
    return false;
}

/* from: end of the previous message; to: end of the answer's content. */
static dt_err begin_answer(const talk *t, int i, size_t from, size_t to, size_t *begin)
{
    const dt_message *m = &t->message[i];
    bool part = false;
    *begin = 0;
    if (from > to) return refuse(t, i, "writes messages in another order");
    const size_t content = m->calls ? begin_of_call(t, m, from, to) : begin_of_content(t, m, from, to);
    if (i > 0 || *t->c->header) *begin = end_of_header(t, i, from, content, &part);
    if (i > 0 && *begin == 0) return refuse(t, i, "begins this answer in another way than one after a question");
    const bool thinks = m->thoughts || memmem(m->text, m->nbytes, thought_end, strlen(thought_end));
    if (!thinks) *begin = end_of_block(t, m, from, *begin, content, part);
    return DT_OK;
}

static dt_err probe_answers(const talk *t, dt_jinja_part *gap)
{
    static const int tries[] = {DT_CHAT_MARK_WORDS | DT_CHAT_MARK_QUESTION_ENDS,
                                DT_CHAT_MARK_WORDS | DT_CHAT_MARK_QUESTION_WORDS,
                                DT_CHAT_MARK_ENDS | DT_CHAT_MARK_QUESTION_ENDS,
                                DT_CHAT_MARK_ENDS | DT_CHAT_MARK_QUESTION_WORDS,
                                DT_CHAT_MARK_WORDS,
                                DT_CHAT_MARK_ENDS};
    bool found = false;
    int marks = 0;
    size_t before = 0;
    DT_TRY(find_calls(t, gap));
    for (size_t k = 0; k < sizeof tries / sizeof tries[0] && !found; k++)
        DT_TRY(find_contents(t, marks = tries[k], gap, &found));
    for (int i = 0; i < t->n; i++) {
        if (!is_answer(&t->message[i])) continue;
        if (!found) return refuse(t, i, "leaves out or changes answers");
        if (t->message[i].learn && !(marks & DT_CHAT_MARK_QUESTIONS) && is_ambiguous(t, i))
            return refuse(t, i, "changes messages before this answer that contain its own words");
        if (t->message[i].learn) DT_TRY(begin_answer(t, i, gap[i].from, gap[i].to, &t->answer[i].from));
        if (t->answer[i].from < before) t->answer[i].from = before;
        t->answer[i].to = before = end_of(t, i, gap[i].to);
        if (t->message[i].calls && t->message[i].learn && t->answer[i].to == gap[i].to)
            return refuse(t, i, "ends the tool calls of this answer in another way than those of a last answer");
    }
    return DT_OK;
}

static dt_err find_answers(const talk *t)
{
    if (take_generated(t->answer, t->message, t->n, t->text)) return DT_OK;
    if (t->text->has_blocks) {
        int i = 0;
        while (!is_answer(&t->message[i]) && i < t->n - 1) i++;
        return refuse(t, i, "has {% generation %} blocks, but not one for each answer");
    }
    dt_jinja_part *gap = calloc((size_t)t->n, sizeof *gap);
    DT_CHECK(gap, DT_ERR_MEMORY, "out of memory for the answers of a conversation");
    const dt_err err = probe_answers(t, gap);
    free(gap);
    return err;
}

/* ---- targets ----------------------------------------------------------------------------------------------------- */

/* Length of the text that the template writes after answer n-1, if the conversation ends with it. */
static dt_err after_answer(const talk *t, int n, size_t *length)
{
    dt_jinja_result r;
    talk shorter = {.c = t->c, .message = t->message, .n = n, .tools = t->tools, .text = &r};
    DT_TRY(dt_chat_evaluate(t->c, t->message, n, t->tools, 0, 0, &r));
    shorter.answer = calloc((size_t)n, sizeof *shorter.answer);
    dt_err err = shorter.answer ? find_answers(&shorter) : dt_fail(DT_ERR_MEMORY, "out of memory for a conversation");
    if (err == DT_OK) {
        const size_t end = t->answer[n - 1].to, at = shorter.answer[n - 1].to;
        *length = r.nbytes - at;
        if (*length > t->text->nbytes - end || memcmp(r.text + at, t->text->text + end, *length) != 0)
            err = refuse(t, n, "changes what follows an answer");
    }
    free(shorter.answer);
    dt_jinja_result_free(&r);
    return err;
}

/* Offset at which the text of message i begins. */
static dt_err begin_of(const talk *t, int i, size_t *at)
{
    dt_jinja_result r;
    *at = i == 0 ? 0 : t->text->nbytes;
    if (i == 0 || i == t->n) return DT_OK;
    if (is_answer(&t->message[i - 1])) {
        DT_TRY(after_answer(t, i, at));
        *at += t->answer[i - 1].to;
        return DT_OK;
    }
    if (dt_chat_evaluate(t->c, t->message, i, t->tools, 0, 0, &r) == DT_ERR_MEMORY) return DT_ERR_MEMORY;
    const bool same = r.text && r.nbytes <= t->text->nbytes && memcmp(r.text, t->text->text, r.nbytes) == 0;
    *at = r.nbytes;
    dt_jinja_result_free(&r);
    return same ? DT_OK : refuse(t, i, "changes earlier messages when others follow");
}

static dt_err begin_target(const talk *t, int i, size_t *at)
{
    const dt_message *m = &t->message[i];
    if (m->learn & DT_LEARN_HEADER || !is_answer(m)) return begin_of(t, i, at);
    *at = t->answer[i].from;
    return DT_OK;
}

static dt_err end_target(const talk *t, int i, size_t *at)
{
    const dt_message *m = &t->message[i];
    if (m->learn & DT_LEARN_AFTER || !is_answer(m)) return begin_of(t, i + 1, at);
    *at = t->answer[i].to;
    return DT_OK;
}

/* True if messages i-1 and i belong to one target. */
static bool goes_on(const talk *t, int i)
{
    return i < t->n && t->message[i - 1].learn & DT_LEARN_AFTER && t->message[i].learn & DT_LEARN_HEADER;
}

/* Length of the empty block of thoughts that ends at `at`. */
static size_t block_before(const talk *t, size_t at)
{
    const char *form = dt_form_text(t->c->form, "think_off"), *block = t->c->form ? form : empty_block;
    const size_t n = block ? strlen(block) : 0;
    return n <= at && n > 0 && memcmp(t->text->text + at - n, block, n) == 0 ? n : 0;
}

static dt_err find_targets(const talk *t, dt_jinja_part *part, int *n_parts)
{
    DT_TRY(find_answers(t));
    for (int i = 0, to; i < t->n; i = to) {
        to = i + 1;
        if (!t->message[i].learn) continue;
        size_t from;
        DT_TRY(begin_target(t, i, &from));
        for (; goes_on(t, to); to++) {
            const size_t begin = is_answer(&t->message[to]) ? t->answer[to].from : 0, block = block_before(t, begin);
            if (block == 0) continue;
            part[(*n_parts)++] = (dt_jinja_part){from, begin - block};
            from = begin;
        }
        part[*n_parts].from = from;
        DT_TRY(end_target(t, to - 1, &part[*n_parts].to));
        const size_t before = *n_parts > 0 ? part[*n_parts - 1].to : 0;
        if (from < before || part[*n_parts].to < from)
            return refuse(t, i, "begins this answer before another one ends");
        ++*n_parts;
    }
    return DT_OK;
}

static dt_err copy_blocks(const dt_jinja_result *text, dt_jinja_part **part, int *n_parts)
{
    const size_t nbytes = (size_t)text->n_generated * sizeof **part;
    *part = malloc(nbytes + 1);
    DT_CHECK(*part, DT_ERR_MEMORY, "out of memory for the targets of a conversation");
    if (nbytes > 0) memcpy(*part, text->generated, nbytes);
    *n_parts = text->n_generated;
    return DT_OK;
}

dt_err dt_chat_targets(const dt_chat *c, const dt_message *messages, int n, const json_t *tools,
                       const dt_jinja_result *text, dt_jinja_part **part, int *n_parts)
{
    bool any = false;
    for (int i = 0; i < n; i++) any |= messages[i].learn != 0;
    *part = NULL;
    *n_parts = 0;
    if (!any) return DT_OK;
    dt_jinja_part *both = calloc(2 * (size_t)n, sizeof *both);
    DT_CHECK(both, DT_ERR_MEMORY, "out of memory for the targets of a conversation");
    const talk t = {.c = c, .message = messages, .n = n, .tools = tools, .text = text, .answer = both + n};
    if (text->has_blocks && text->n_generated != count_answers(messages, n) && learns_answers(&t)) {
        free(both);
        return copy_blocks(text, part, n_parts);
    }
    const dt_err err = find_targets(&t, both, n_parts);
    *part = both;
    return err;
}
