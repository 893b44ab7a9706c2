/* rec.c - checks the options, and determines the tasks of a row or an item. */
#include "rec.h"
#include <string.h>

static const char *const recipes[] = {"sft", "rl", "eval"};

static dt_err check_kind(const dt_make_options *o, dt_dataset_kind kind)
{
    DT_CHECK(o->kind == DT_ANY_KIND || o->kind == kind, DT_ERR_USAGE, "kind: expected %s for the recipe %s, found %s",
             dt_dataset_kind_name(kind), o->rec.recipe, dt_dataset_kind_name(o->kind));
    DT_CHECK(!o->as_chat && !o->turn_budgets && !o->weight_key && o->mask == DT_MASK_AUTO, DT_ERR_USAGE,
             "format minionerec does not support chats, masks or weights of other records");
    return DT_OK;
}

/* Check, before any row is read, that the catalogue has what the tasks use. */
static dt_err check_catalogue(const dt_rec *r, const dt_make_options *o)
{
    for (int i = 0; i < r->texts.n_tasks; i++) {
        const dt_rec_task *t = &r->texts.task[i];
        DT_CHECK(!t->of_items || o->rec.index, DT_ERR_USAGE, "task %s: expected the index file (--index)", t->name);
        const bool texts = t->uses & (1u << DT_REC_TITLE | 1u << DT_REC_DESCRIPTION);
        DT_CHECK(!t->of_items || !texts || o->rec.items, DT_ERR_USAGE, "task %s: expected the item file (--items)",
                 t->name);
    }
    DT_CHECK(o->rec.index || (!o->rec.items && !o->rec.catalogue), DT_ERR_USAGE,
             "expected the index file (--index) in addition to an item file or a catalogue");
    return DT_OK;
}

dt_err dt_rec_open(dt_rec *r, const dt_make_options *o, const dt_tokenizer *t)
{
    size_t which = 0;
    while (which < 3 && strcmp(recipes[which], o->rec.recipe) != 0) which++;
    DT_CHECK(which < 3, DT_ERR_USAGE, "recipe: expected sft, rl or eval, found %s", o->rec.recipe);
    *r = (dt_rec){.kind = which == 0 ? DT_DATASET_SFT : DT_DATASET_PROMPTS,
                  .preamble = which != 1,
                  .key = dt_rng_key(o->rec.seed, DT_RNG_SAMPLING)};
    DT_TRY(check_kind(o, r->kind));
    DT_TRY(dt_rec_template_open(&r->texts, o->chat_template, o->rec.recipe, o->rec.tasks, o->rec.category));
    DT_TRY(check_catalogue(r, o));
    DT_TRY(dt_rec_levels_open(&r->levels, t));
    if (o->rec.index) DT_TRY(dt_rec_items_open(&r->items, o->rec.index, o->rec.items, &r->levels));
    return DT_OK;
}

void dt_rec_close(dt_rec *r)
{
    dt_rec_items_close(&r->items);
    dt_rec_levels_close(&r->levels);
    dt_rec_template_close(&r->texts);
}

uint32_t dt_rec_tasks_of(const dt_rec *r, bool items, int64_t i, int64_t n)
{
    uint32_t tasks = 0;
    for (int k = 0; k < r->texts.n_tasks; k++) {
        const dt_rec_task *t = &r->texts.task[k];
        const bool drawn = t->sample == 0 || t->sample >= n ||
                           (int64_t)dt_rng_permute(r->key + (uint64_t)k, (uint64_t)n, (uint64_t)i) < t->sample;
        if (t->of_items == items && drawn) tasks |= 1u << k;
    }
    return tasks;
}

bool dt_rec_has_samples(const dt_rec *r)
{
    for (int k = 0; k < r->texts.n_tasks; k++)
        if (!r->texts.task[k].of_items && r->texts.task[k].sample > 0) return true;
    return false;
}

dt_err dt_rec_check_header(const dt_rec *r, const json_t *names)
{
    static const struct {
        dt_rec_value value;
        const char *column, *instead; /* with a catalogue */
    } needed[] = {{DT_REC_SIDS, "history_item_sid", "history_item_id"},
                  {DT_REC_TITLES, "history_item_title", ""},
                  {DT_REC_SID, "item_sid", "item_id"},
                  {DT_REC_TITLE, "item_title", ""}};
    for (int k = 0; k < r->texts.n_tasks; k++)
        for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
            DT_CHECK(r->texts.task[k].of_items || !(r->texts.task[k].uses & 1u << needed[i].value) ||
                         dt_csv_header_has(names, needed[i].column) ||
                         (r->items.n > 0 && dt_csv_header_has(names, needed[i].instead)),
                     DT_ERR_DATA, "expected column names in the first line, including %s (task %s)", needed[i].column,
                     r->texts.task[k].name);
    return DT_OK;
}
