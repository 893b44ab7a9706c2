/* nesting.c - finds the end of a JSON record by its brackets and quotes, before it is parsed. */
#include "dtrain/io/json.h"

#include <ctype.h>
#include <string.h>

/* The innermost open bracket; 0: none, or nested too deeply to be recorded. */
static char inside(const dt_json_nesting *at)
{
    return at->depth > 0 && at->depth <= DT_JSON_MAX_OPEN ? at->open[at->depth - 1] : 0;
}

static const char *open_bracket(dt_json_nesting *at, char c)
{
    if (at->depth == 0 && at->last) return "expected a comma or ], found an opening bracket";
    if (inside(at) == '{' && at->last != ':') return "expected a key or }, found an opening bracket";
    if (at->depth < DT_JSON_MAX_OPEN) at->open[at->depth] = c;
    at->depth++;
    return NULL;
}

static const char *close_bracket(dt_json_nesting *at, char c)
{
    if (at->depth == 0) return "expected a comma or ], found }";
    if (inside(at) == '{' && c == ']') return "expected }, found ]";
    if (inside(at) == '[' && c == '}') return "expected ], found }";
    at->depth--;
    return NULL;
}

const char *dt_json_step(dt_json_nesting *at, char c)
{
    if (at->in_string) {
        at->in_string = at->escaped || c != '"';
        at->escaped = !at->escaped && c == '\\';
        return c == '\n' ? "expected a closing quote, found the end of the line" : NULL;
    }
    const char *wrong = NULL;
    if (c == '{' || c == '[') wrong = open_bracket(at, c);
    if (c == '}' || c == ']') wrong = close_bracket(at, c);
    at->in_string = c == '"';
    if (!isspace((unsigned char)c)) at->last = c;
    return wrong;
}

/* A truncated record ends inside a value. */
bool dt_json_is_printed(const char *text, const char *end)
{
    dt_json_nesting at = {0};
    const char *p = text;
    for (; p < end && *p != '\n'; p++)
        if (dt_json_step(&at, *p)) return false;
    return p < end && at.depth > 0 && !at.in_string && strchr("{[,:", at.last);
}
