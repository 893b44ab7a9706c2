/* parse_rec.c - builds one task's sample from an interaction row or an item: up to three texts, each
 * encoded separately. For prompts, the target is stored as the record's answer. recommendation.md "Data". */
#include "../parse_record.h"
#include "rec.h"
#include <stdlib.h>
#include <string.h>

typedef struct sample {
    const dt_rec *rec;
    const dt_rec_task *task;
    const json_t *row;       /* for tasks of rows */
    const dt_rec_item *item; /* for tasks of items */
    const char *instruction;
    FILE *out; /* memory stream */
} sample;

/* ---- values of a row --------------------------------------------------------------------------------------------- */

static const char *column(const json_t *row, const char *name)
{
    const char *text = json_string_value(json_object_get(row, name));
    return text ? text : "";
}

static dt_err check_sid(const dt_rec *rec, const char *name, const char *sid)
{
    if (rec->items.n > 0) {
        DT_CHECK(json_object_get(rec->items.by_sid, sid), DT_ERR_DATA, "%s: \"%.100s\" is not an item of %s", name, sid,
                 rec->items.index_path);
        return DT_OK;
    }
    return dt_error_prefix(dt_rec_check_sid(&rec->levels, sid), "%s: ", name);
}

static dt_err sid_of(const dt_rec *rec, const char *name, const json_t *id, json_t **sid)
{
    const json_t *own = json_object_get(rec->items.by_id, json_string_value(id));
    DT_CHECK(own, DT_ERR_DATA, "%s: \"%.100s\" is not an item of %s", name, json_string_value(id),
             rec->items.index_path);
    *sid = json_string(json_string_value(own)); /* a copy: rows are parsed in several threads */
    return *sid ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a SID");
}

/* Add the SIDs that a row lacks, from its item ids. */
static dt_err add_sids(const dt_rec *rec, json_t *row)
{
    const json_t *id = json_object_get(row, "item_id"), *history = json_object_get(row, "history_item_id");
    json_t *sid, *sids;
    size_t i;
    if (id && !json_object_get(row, "item_sid")) {
        DT_TRY(sid_of(rec, "item_id", id, &sid));
        json_object_set_new(row, "item_sid", sid);
    }
    if (!history || json_object_get(row, "history_item_sid")) return DT_OK;
    DT_CHECK(json_object_set_new(row, "history_item_sid", sids = json_array()) == 0, DT_ERR_MEMORY,
             "out of memory for the SIDs of a row");
    json_array_foreach(history, i, id)
    {
        DT_TRY(sid_of(rec, "history_item_id", id, &sid));
        json_array_append_new(sids, sid);
    }
    return DT_OK;
}

/* Check that every SID is in the catalogue, or, without a catalogue, consists of known tokens. Check that the item
 * has its own SID. */
static dt_err check_row(const dt_rec *rec, const json_t *row, uint32_t uses)
{
    const json_t *sid;
    size_t i;
    if (uses & 1u << DT_REC_SIDS)
        json_array_foreach(json_object_get(row, "history_item_sid"), i, sid)
            DT_TRY(check_sid(rec, "history_item_sid", json_string_value(sid)));
    if (!(uses & 1u << DT_REC_SID)) return DT_OK;
    const char *target = column(row, "item_sid"), *id = column(row, "item_id");
    DT_TRY(check_sid(rec, "item_sid", target));
    const char *own = id[0] && rec->items.n > 0 ? json_string_value(json_object_get(rec->items.by_id, id)) : NULL;
    DT_CHECK(!own || strcmp(own, target) == 0, DT_ERR_DATA, "item_sid: expected %s as in %s for item %s, found %s", own,
             rec->items.index_path, id, target);
    return DT_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void write_history(const sample *s, const char *name)
{
    const json_t *one, *list = json_object_get(s->row, name);
    size_t i;
    json_array_foreach(list, i, one)
    {
        fputs(i ? s->task->separator : "", s->out);
        fputs(s->task->quote, s->out);
        fwrite(json_string_value(one), 1, json_string_length(one), s->out);
        fputs(s->task->quote, s->out);
    }
}

static void write_text(const sample *s, const char *text);

static void write_value(const sample *s, dt_rec_value value)
{
    switch (value) {
    case DT_REC_CATEGORY:
        fputs(s->rec->texts.category, s->out);
        break;
    case DT_REC_SIDS:
        write_history(s, "history_item_sid");
        break;
    case DT_REC_TITLES:
        write_history(s, "history_item_title");
        break;
    case DT_REC_SID:
        fputs(s->item ? s->item->sid : column(s->row, "item_sid"), s->out);
        break;
    case DT_REC_TITLE:
        fputs(s->item ? s->item->title : column(s->row, "item_title"), s->out);
        break;
    case DT_REC_DESCRIPTION:
        fputs(s->item ? s->item->description : "", s->out);
        break;
    case DT_REC_INSTRUCTION: /* these contain no other texts: checked when the template is opened */
        write_text(s, s->instruction);
        break;
    case DT_REC_INPUT:
        write_text(s, s->task->input);
        break;
    case DT_REC_TARGET:
        write_text(s, s->task->target);
        break;
    default:
        break;
    }
}

static void write_text(const sample *s, const char *text)
{
    for (size_t len; *text; text += len) {
        const int value = dt_rec_find_value(text, &len);
        if (value >= 0)
            write_value(s, (dt_rec_value)value);
        else
            putc_unlocked(*text, s->out); /* "{{" writes one brace */
    }
}

/* True if the values that the task needs are not empty. Histories may be empty. */
static bool has_values(const sample *s)
{
    const uint32_t uses = s->task->uses;
    const char *title = s->item ? s->item->title : column(s->row, "item_title");
    return (!(uses & 1u << DT_REC_TITLE) || title[0]) &&
           (!(uses & 1u << DT_REC_DESCRIPTION) || (s->item && s->item->description[0]));
}

enum { PREAMBLE, PROMPT, RESPONSE, ANSWER, N_TEXTS };

/* Write the texts of a sample, concatenated in r->owned. ends[i]: end of text i. */
static dt_err write_texts(dt_parsed_record *r, sample *s, size_t ends[N_TEXTS])
{
    const char *texts[N_TEXTS] = {s->rec->preamble ? s->task->preamble : "", s->task->prompt, s->task->response,
                                  s->task->target};
    size_t n = 0;
    free(r->owned);
    r->owned = NULL;
    s->out = open_memstream(&r->owned, &n);
    DT_CHECK(s->out, DT_ERR_MEMORY, "out of memory for the text of a sample");
    bool whole = true;
    for (int i = 0; i < N_TEXTS; i++) {
        write_text(s, texts[i]);
        whole &= fflush(s->out) == 0; /* flushing updates n */
        ends[i] = n;
    }
    whole &= !ferror(s->out);
    whole &= fclose(s->out) == 0;
    DT_CHECK(whole, DT_ERR_MEMORY, "out of memory for the text of a sample");
    return DT_OK;
}

/* ---- the sample -------------------------------------------------------------------------------------------------- */

/* Fields for reward functions in addition to the prompt, including columns that are not lists. */
static dt_err keep_fields(dt_parsed_record *r, const sample *s, const char *answer, size_t n_answer)
{
    const char *name;
    json_t *value, *fields = json_pack("{s:s%, s:s}", "answer", answer, n_answer, "task", s->task->name);
    if (s->item)
        json_object_set_new(fields, "item_id", json_string(s->item->id));
    else
        json_object_foreach((json_t *)s->row, name, value) if (json_is_string(value) && !json_object_get(fields, name))
            json_object_set(fields, name, value);
    r->fields = fields ? json_dumps(fields, JSON_COMPACT) : NULL;
    json_decref(fields);
    DT_CHECK(r->fields, DT_ERR_MEMORY, "out of memory for the fields of a record");
    return DT_OK;
}

static dt_err add_pieces(dt_parsed_record *r, const sample *s, const size_t ends[N_TEXTS])
{
    const bool prompts = r->kind == DT_DATASET_PROMPTS;
    dt_text_side *side = &r->side[DT_SIDE_FIRST];
    const char *text = r->owned;
    side->apart = true;
    side->eos = side->eos_target = !prompts;
    DT_TRY(dt_pieces_token(&side->pieces, dt_tokenizer_get_info(s->rec->levels.tokenizer)->bos, false));
    DT_TRY(dt_pieces_text(&side->pieces, text, ends[PREAMBLE], false));
    DT_TRY(dt_pieces_text(&side->pieces, text + ends[PREAMBLE], ends[PROMPT] - ends[PREAMBLE], false));
    if (!prompts) return dt_pieces_text(&side->pieces, text + ends[PROMPT], ends[RESPONSE] - ends[PROMPT], true);
    const char *answer = text + ends[RESPONSE];
    const size_t n_answer = ends[ANSWER] - ends[RESPONSE];
    r->has_second = true;
    r->side[DT_SIDE_SECOND].apart = true;
    DT_TRY(dt_pieces_text(&r->side[DT_SIDE_SECOND].pieces, answer, n_answer, true));
    return keep_fields(r, s, answer, n_answer);
}

/* Index of the i-th set bit. */
static int find_bit(uint32_t bits, int i)
{
    int bit = 0;
    for (; bits && (!(bits & 1) || i-- > 0); bits >>= 1) bit++;
    return bit;
}

dt_err dt_parse_rec(dt_parsed_record *r, const json_t *json, const dt_rules *rules, int which)
{
    const dt_rec *rec = rules->rec;
    r->n_records = __builtin_popcount(r->tasks);
    sample s = {.rec = rec, .task = &rec->texts.task[find_bit(r->tasks, which)], .row = json};
    if (s.task->of_items) s.item = &rec->items.item[r->number];
    r->kind = rec->kind;
    if (!s.item && rec->items.n > 0) DT_TRY(add_sids(rec, (json_t *)json));
    if (!s.item) DT_TRY(check_row(rec, json, s.task->uses));
    if (!has_values(&s)) return DT_OK; /* an empty sample, which is dropped and counted */
    const uint64_t draw = dt_mix64(rec->key ^ (uint64_t)r->number), n = json_array_size(s.task->instruction);
    s.instruction =
        json_string_value(n ? json_array_get(s.task->instruction, (size_t)(draw % n)) : s.task->instruction);
    size_t ends[N_TEXTS];
    DT_TRY(write_texts(r, &s, ends));
    return add_pieces(r, &s, ends);
}
