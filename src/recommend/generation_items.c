/* generation_items.c - opens a catalogue, the tokenizer of its items, and the trie of both. */
#include "dtrain/recommend/generation_items.h"
#include "dtrain/pretrained/pretrained.h"

#include <stdlib.h>
#include <string.h>

static dt_err open_tokenizer(dt_generation_items *items, dt_task *t)
{
    const dt_config *cfg = t->cfg;
    DT_CONFIG_CHECK(*t->tokenizer, cfg, "rec", "catalogue",
                    "identifying items needs a tokenizer, and the model has none; set [model] tokenizer");
    DT_TRY(dt_tokenizer_open(&items->tokenizer, t->tokenizer));
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, dt_tokenizer_nbytes(items->tokenizer));
    return DT_OK;
}

static dt_err open_trie(dt_generation_items *items, dt_task *t)
{
    int32_t ends[DT_MAX_ENDS];
    dt_ends_of_text(dt_tokenizer_get_info(items->tokenizer)->eos, t->generation, t->mc, -1, ends);
    DT_TRY(dt_trie_open(&items->trie, items->catalogue, items->tokenizer, DT_TRIE_TAIL, ends[0], t->mc->vocab_size,
                        t->ledger));
    items->only = dt_trie_constraint(items->trie);
    return DT_OK;
}

static dt_err open_all(dt_generation_items *items, dt_task *t)
{
    DT_TRY(dt_catalogue_open(&items->catalogue, t->cfg->rec_catalogue, t->ledger));
    DT_TRY(dt_task_reads(t, t->cfg->rec_catalogue, dt_catalogue_fingerprint(items->catalogue)));
    if (t->n_units == 0) return DT_OK; /* a mistake in the model, already reported */
    const dt_err err = open_tokenizer(items, t);
    if (err == DT_OK) return open_trie(items, t);
    if (t->comm) return err;
    dt_error_clear(); /* a plan works without the files */
    return DT_OK;
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_generation_items *items = self;
    (void)t;
    memory->at[DT_MEM_DATA][DT_ON_HOST] +=
        dt_tokenizer_nbytes(items->tokenizer) + dt_catalogue_nbytes(items->catalogue) + dt_trie_nbytes(items->trie);
    return DT_OK;
}

static void close_items(void *self, dt_task *t)
{
    dt_generation_items *items = self;
    dt_trie_close(items->trie);
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, dt_tokenizer_nbytes(items->tokenizer));
    dt_tokenizer_close(items->tokenizer);
    dt_catalogue_close(items->catalogue);
}

void dt_generation_items_open(dt_generation_items *items, dt_task *t)
{
    static const dt_task_part_ops part = {.plan = plan, .close = close_items};
    *items = (dt_generation_items){.is_named = *t->cfg->rec_catalogue};
    if (!items->is_named) return;
    dt_task_hold(t, &part, items);
    dt_mistakes_add(t->mistakes, open_all(items, t));
}

const dt_constraint *dt_generation_items_constraint(const dt_generation_items *items)
{
    return items->trie ? &items->only : NULL;
}

int32_t dt_generation_items_depth(const dt_generation_items *items, int32_t otherwise)
{
    if (items->trie) return dt_trie_depth(items->trie);
    return items->is_named && otherwise > DT_ITEMS_USUAL_DEPTH ? DT_ITEMS_USUAL_DEPTH : otherwise;
}

enum { MAX_ANSWER = 4096 };

dt_err dt_generation_items_target(const dt_generation_items *items, dt_loader *prompts, int64_t prompt, char **text,
                                  int32_t *item)
{
    int32_t ids[MAX_ANSWER], n = 0;
    size_t nbytes;
    DT_TRY(dt_loader_answer(prompts, prompt, MAX_ANSWER, ids, &n));
    while (n > 0 && ids[n - 1] == items->only.end) n--;
    char *decoded = dt_decode(items->tokenizer, ids, n, false, &nbytes);
    const char *sid = decoded ? dt_sid_in(decoded, &nbytes) : NULL;
    *text = sid ? strndup(sid, nbytes) : NULL;
    free(decoded);
    DT_CHECK(*text, DT_ERR_MEMORY, "out of memory for a target's text");
    *item = dt_catalogue_find(items->catalogue, *text, strlen(*text));
    return DT_OK;
}
