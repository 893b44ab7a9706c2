/* encode_units.c - encodes units: words of a text, or texts of a group. Texts become the ids that the tokenizer gives
 * them alone, with the tokens that it puts around a text. Words are joined by blanks, and no token spans two of them;
 * the tokens around a text are around all words. */
#include "record_kinds.h"
#include <string.h>

typedef struct work {
    const dt_recipe *recipe;
    dt_encoder *e;
    const dt_text_side *t;
    dt_ids *ids;
    uint8_t **mask;
    size_t first;
    bool marks; /* labels of texts have no marks: their label is one of the whole text */
    dt_sample *s;
} work;

static bool is_of_texts(const work *w) { return w->s->kind == DT_DATASET_TEXTS; }

/* Extend the mask over the new ids, and mark the first of them. Token 0 of texts is not marked. */
static dt_err mark(const work *w, size_t before)
{
    DT_RESIZE(*w->mask, w->ids->n_alloc, "out of memory for a record of %zu tokens", w->ids->n_alloc);
    memset(*w->mask + before, 0, w->ids->n - before);
    if (w->marks && w->ids->n > before && !(is_of_texts(w) && before == w->first)) (*w->mask)[before] = 1;
    return DT_OK;
}

/* Keep the first max_length tokens of a text, of which the last are those that end every text. */
static void cut(const work *w, size_t before)
{
    const size_t most = (size_t)w->recipe->max_length, n = w->ids->n - before,
                 n_after = (size_t)w->recipe->rules.wrap.n_after;
    int32_t *id = w->ids->id + before;
    if (most == 0 || n <= most) return;
    if (n_after < most) memmove(id + most - n_after, id + n - n_after, n_after * sizeof *id);
    w->ids->n = before + most;
    w->s->truncated = true;
}

static dt_err encode_text(const work *w, int first, int end)
{
    const size_t before = w->ids->n;
    DT_TRY(dt_encode(w->e, &w->t->pieces.span[first], end - first, DT_ENCODE_WRAP, w->ids, NULL));
    DT_CHECK(w->ids->n > before, DT_ERR_DATA, "text %d: expected tokens, found none", first);
    if (is_of_texts(w)) cut(w, before);
    return mark(w, before);
}

static dt_err encode_texts(const work *w)
{
    const dt_pieces *p = &w->t->pieces;
    for (int first = 0, end; first < p->n; first = end) {
        for (end = first + 1; end < p->n && !p->target[end];) end++;
        DT_TRY(encode_text(w, first, end));
    }
    return DT_OK;
}

static dt_err encode_words(const work *w)
{
    const dt_pieces *p = &w->t->pieces;
    const size_t n_before = (size_t)w->recipe->rules.wrap.n_before, n_after = (size_t)w->recipe->rules.wrap.n_after;
    dt_ids *ids = w->ids;
    const dt_span none = {.text = ""};
    DT_TRY(dt_encode(w->e, &none, 1, DT_ENCODE_WRAP, ids, NULL));
    DT_CHECK(ids->n - w->first == n_before + n_after, DT_ERR_DATA,
             "the tokenizer puts %zu tokens around an empty text, expected %zu", ids->n - w->first, n_before + n_after);
    int32_t after[8];
    DT_CHECK(n_after <= 8, DT_ERR_DATA, "the tokenizer ends a text with %zu tokens, expected at most 8", n_after);
    memcpy(after, ids->id + w->first + n_before, n_after * sizeof *after);
    ids->n -= n_after;
    DT_RESIZE(*w->mask, ids->n_alloc, "out of memory for a record of %zu tokens", ids->n_alloc);
    memset(*w->mask + w->first, 0, ids->n - w->first);
    for (int i = 0; i < p->n; i++) {
        const size_t before = ids->n;
        const dt_span with_blank[2] = {{.text = " ", .nbytes = 1}, p->span[i]};
        DT_TRY(dt_encode(w->e, &with_blank[i == 0], i == 0 ? 1 : 2,
                         i == 0 ? DT_ENCODE_MORE : DT_ENCODE_GOES_ON | DT_ENCODE_MORE, ids, NULL));
        DT_CHECK(ids->n > before, DT_ERR_DATA, "word %d: expected tokens, found none", i);
        DT_TRY(mark(w, before));
    }
    const size_t before = ids->n;
    DT_TRY(dt_ids_reserve(ids, n_after));
    memcpy(ids->id + before, after, n_after * sizeof *after);
    ids->n += n_after;
    DT_RESIZE(*w->mask, ids->n_alloc, "out of memory for a record of %zu tokens", ids->n_alloc);
    memset(*w->mask + before, 0, n_after);
    return DT_OK;
}

dt_err dt_encode_units(const dt_recipe *recipe, dt_encoder *e, const dt_text_side *side, dt_chunk *p, dt_sample *s)
{
    const work w = {.recipe = recipe,
                    .e = e,
                    .t = side,
                    .ids = &p->ids[0],
                    .mask = &p->mask[0],
                    .first = p->ids[0].n,
                    .marks = s->kind == DT_DATASET_TEXTS || side->apart,
                    .s = s};
    const size_t most = (size_t)recipe->max_length;
    DT_TRY((side->apart ? encode_words : encode_texts)(&w));
    if (!is_of_texts(&w) && most > 0 && w.ids->n - w.first > most) w.ids->n = w.first + most, s->truncated = true;
    s->n[0] = w.ids->n - w.first;
    return DT_OK;
}
