/* kinds.c - kinds of messages that chat templates treat differently. If the tokenizer's own template
 * renders a kind differently from dtrain's, conversations with such messages are refused. */
#include "chat_private.h"

#include "dtrain/text/space.h"
#include <string.h>

static bool contains(const dt_message *m, const char *word) { return memmem(m->text, m->nbytes, word, strlen(word)); }

/* Last message before i that is not a system message; NULL: none. */
static const dt_message *before(const dt_message *messages, int i)
{
    while (i-- > 0)
        if (messages[i].role != DT_ROLE_SYSTEM) return &messages[i];
    return NULL;
}

static bool has_marks(const dt_message *m) { return contains(m, "<think>") || contains(m, "</think>"); }

static unsigned kinds_by_role(const dt_message *messages, int i, int n, unsigned flags)
{
    const dt_message *m = &messages[i], *last = before(messages, i);
    const bool blank = dt_space_trimmed(m->text, m->nbytes) == 0;
    if (m->developer) return DT_KIND_DEVELOPER;
    if (m->role == DT_ROLE_SYSTEM)
        return (i > 0 ? DT_KIND_LATER_SYSTEM : DT_KIND_SYSTEM) | (blank ? DT_KIND_EMPTY_SYSTEM : 0u);
    if (m->role == DT_ROLE_TOOL) return DT_KIND_TOOL;
    unsigned kinds = (last && last->role == m->role) || (!last && m->role == DT_ROLE_ASSISTANT) ? DT_KIND_ROW : 0;
    if (m->role != DT_ROLE_ASSISTANT) return kinds;
    if (i + 1 == n && flags & DT_CHAT_GENERATE) kinds |= DT_KIND_ROW;
    return kinds | (m->n_thoughts ? DT_KIND_THOUGHTS : has_marks(m) ? DT_KIND_THINK : 0u);
}

static unsigned kind_of_name(const dt_message *m)
{
    if (!m->named) return 0;
    return m->role == DT_ROLE_SYSTEM ? DT_KIND_SYSTEM_NAME : m->role == DT_ROLE_TOOL ? DT_KIND_TOOL_NAME : DT_KIND_NAME;
}

unsigned dt_chat_kinds(const dt_message *messages, int i, int n, unsigned flags)
{
    const bool marks = messages[i].role != DT_ROLE_ASSISTANT && has_marks(&messages[i]);
    return kinds_by_role(messages, i, n, flags) | (marks ? DT_KIND_MARKS : 0u) | kind_of_name(&messages[i]);
}

static const char *say_kind(unsigned kind)
{
    switch (kind) {
    case DT_KIND_SYSTEM:
        return "system messages";
    case DT_KIND_EMPTY_SYSTEM:
        return "blank system messages";
    case DT_KIND_LATER_SYSTEM:
        return "system messages after the first message";
    case DT_KIND_DEVELOPER:
        return "messages of role developer";
    case DT_KIND_ROW:
        return "messages whose roles do not alternate";
    case DT_KIND_TOOL:
        return "tool results";
    case DT_KIND_MARKS:
        return "thought marks (<think>) outside answers";
    case DT_KIND_THOUGHTS:
        return "thoughts in a separate field (reasoning_content)";
    case DT_KIND_NAME:
    case DT_KIND_SYSTEM_NAME:
    case DT_KIND_TOOL_NAME:
        return "messages with the field name";
    default:
        return "thoughts (<think>) in answers";
    }
}

dt_err dt_chat_check_kinds(const dt_chat *c, const dt_message *messages, int n, unsigned flags)
{
    for (int i = 0; c->refused && i < n; i++) {
        const unsigned bad = dt_chat_kinds(messages, i, n, flags) & c->refused;
        DT_CHECK(!bad, DT_ERR_DATA,
                 "message %d: the chat template in %s and dtrain's %s write %s differently: drop such records, or "
                 "choose dtrain's form with --template %s",
                 i, dt_chat_place(c->tokenizer), c->form.name, say_kind(bad & -bad), c->form.name);
    }
    return DT_OK;
}
