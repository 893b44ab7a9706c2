/* segments.h - a record as pieces of text, each a target or not: what lies between JSON and tokens. */
#ifndef DTRAIN_DATA_SEGMENTS_H
#define DTRAIN_DATA_SEGMENTS_H

#include "dtrain/core.h"
#include <jansson.h>

typedef struct dt_segment {
    const char *text; /* borrowed from the record or the template */
    size_t nbytes;
    bool target;
    bool eos; /* the end of text follows, a target if this is one */
} dt_segment;

typedef struct dt_segments {
    dt_segment *items;
    int n, n_alloc;
} dt_segments;

dt_err dt_segments_add(dt_segments *s, const char *text, size_t nbytes, bool target, bool eos);
void dt_segments_free(dt_segments *s);

/** How a chat is written as text: prefix, content, end, after. Of an assistant's turn content and end are targets. */
typedef enum dt_role { DT_ROLE_SYSTEM, DT_ROLE_USER, DT_ROLE_ASSISTANT, DT_ROLE_TOOL, DT_N_ROLES } dt_role;

typedef struct dt_turn_form {
    const char *prefix, *end, *after;
} dt_turn_form;

typedef struct dt_chat_template {
    const char *name;
    dt_turn_form turns[DT_N_ROLES];
    bool
        eos_ends_turn; /* the end of text ends an assistant's turn (end stands in for it with append_eos off); else it ends the record */
} dt_chat_template;

/** NULL for an unknown name. */
const dt_chat_template *dt_chat_template_find(const char *name);
const char *dt_chat_template_help(void);

/** Is the record plain text ({text})? Otherwise it is one for sft, or malformed. */
bool dt_record_is_text(const json_t *record);
/** Segments of a record (algorithms.md A.1). DT_ERR_DATA with the reason, without file and line. */
dt_err dt_record_segments(const json_t *record, const dt_chat_template *form, bool append_eos, dt_segments *out);

#endif
