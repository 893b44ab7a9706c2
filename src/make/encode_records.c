/* encode_records.c - converts records and texts to ids. All rules of algorithms.md 1.1 about targets are
 * implemented here or in the pieces. */
#include "record_kinds.h"
#include <stdlib.h>
#include <string.h>

enum { HASHED_NBYTES = 1 << 16 };

dt_truncate dt_truncate_of(const dt_recipe *r, dt_dataset_kind kind)
{
    if (r->rules.opt->truncate != DT_TRUNCATE_AUTO) return r->rules.opt->truncate;
    if (r->rules.rec) return DT_TRUNCATE_END;
    return dt_record_kind_of(kind)->truncate;
}

uint64_t dt_hash_bytes(const void *data, size_t n)
{
    const char *p = data;
    uint64_t h = dt_mix64(n);
    for (; n > 0; p += n < 8 ? n : 8, n -= n < 8 ? n : 8) {
        uint64_t word = 0;
        memcpy(&word, p, n < 8 ? n : 8);
        h = dt_mix64(h ^ word);
    }
    return h;
}

/* Append eos, unless the text already ends with it. */
static dt_err append_eos(dt_ids *ids, uint8_t **mask, size_t first, int32_t eos, bool target)
{
    if (eos < 0 || (ids->n > first && ids->id[ids->n - 1] == eos)) return DT_OK;
    DT_TRY(dt_ids_reserve(ids, 1));
    DT_RESIZE(*mask, ids->n_alloc, "out of memory for a record of %zu tokens", ids->n_alloc);
    (*mask)[ids->n] = target;
    ids->id[ids->n++] = eos;
    return DT_OK;
}

static size_t find_target(const uint8_t *mask, size_t n)
{
    const uint8_t *one = n ? memchr(mask, 1, n) : NULL;
    return one ? (size_t)(one - mask) : n;
}

static size_t count_placeholders(const dt_image_form *form, const int32_t *id, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; form && i < n; i++) count += id[i] == form->token;
    return count;
}

/* Placeholders are never targets. Before an answer, all must be in the prompt. */
static dt_err settle_placeholders(const dt_recipe *recipe, dt_sample *s, dt_side side, const int32_t *id, uint8_t *mask)
{
    const dt_image_form *form = recipe->images;
    for (size_t t = 0; form && t < s->n[side]; t++)
        if (id[t] == form->token) mask[t] = 0;
    const size_t n_prompt = find_target(mask, s->n[side]);
    s->pair.prompt_length[side] = (uint32_t)n_prompt;
    DT_CHECK(!dt_record_kind_of(s->kind)->answers ||
                 count_placeholders(form, id + n_prompt, s->n[side] - n_prompt) == 0,
             DT_ERR_DATA, "an answer contains an image: images of a preference belong in its prompt");
    return DT_OK;
}

static void drop_front(int32_t *id, uint8_t *mask, size_t n, size_t kept)
{
    memmove(id, id + n - kept, kept * sizeof *id);
    memmove(mask, mask + n - kept, kept);
}

/* Truncate the ids starting at first to max_length, keeping their start or end, or mark the sample as too long. */
static void truncate(const dt_recipe *recipe, dt_ids *ids, uint8_t *mask, size_t first, dt_sample *s)
{
    const size_t most = (size_t)recipe->max_length, n = ids->n - first;
    if (most == 0 || n <= most) return;
    const dt_truncate how = dt_truncate_of(recipe, s->kind);
    const int32_t *cut_off = ids->id + first + (how == DT_TRUNCATE_END ? 0 : most);
    if (how == DT_TRUNCATE_DROP || count_placeholders(recipe->images, cut_off, n - most) > 0) {
        s->too_long = true;
        return;
    }
    if (how == DT_TRUNCATE_END) drop_front(ids->id + first, mask + first, n, most);
    ids->n = first + most;
    s->truncated = true;
}

/* Encode each piece separately: no token spans two pieces. */
static dt_err encode_apart(dt_encoder *e, const dt_pieces *p, dt_ids *ids, uint8_t **mask)
{
    for (int i = 0; i < p->n; i++) {
        const size_t before = ids->n;
        DT_TRY(dt_encode(e, &p->span[i], 1, 0, ids, NULL));
        DT_RESIZE(*mask, ids->n_alloc, "out of memory for a record of %zu tokens", ids->n_alloc);
        memset(*mask + before, p->target[i], ids->n - before);
    }
    return DT_OK;
}

/* Check that the text has one placeholder per image. */
static dt_err check_places(const dt_recipe *recipe, const int32_t *id, size_t n, int n_images)
{
    dt_placeholder_words words;
    const size_t found = count_placeholders(recipe->images, id, n);
    DT_CHECK(found == (size_t)n_images, DT_ERR_DATA, "%s",
             dt_say_placeholders(&words, recipe->rules.image_text, (int64_t)found, "the record", n_images));
    return DT_OK;
}

/* Encode one side of a record: pieces to ids and mask, end of text, then truncation. */
static dt_err encode_side(const dt_recipe *recipe, dt_encoder *e, const dt_parsed_record *r, dt_side side, dt_chunk *p,
                          dt_sample *s)
{
    const dt_text_side *t = &r->side[side];
    dt_ids *ids = &p->ids[side];
    const size_t first = ids->n;
    bool parted = false, cut = false;
    const dt_record_kind *kind = dt_record_kind_of(s->kind);
    const bool turns = recipe->rules.opt->turn_budgets && r->is_chat && kind->mask && recipe->max_length > 0;
    if (t->units) return dt_encode_units(recipe, e, t, p, s);
    if (turns)
        DT_TRY(dt_encode_turns(recipe, e, t, ids, &p->mask[side], &cut));
    else if (t->apart)
        DT_TRY(encode_apart(e, &t->pieces, ids, &p->mask[side]));
    else
        DT_TRY(dt_pieces_encode(e, recipe->tokenizer, &t->pieces, t->wrap, ids, &p->mask[side], &parted));
    if (t->eos && recipe->append_eos && !turns)
        DT_TRY(append_eos(ids, &p->mask[side], first, dt_tokenizer_get_info(recipe->tokenizer)->eos, t->eos_target));
    if (recipe->images) {
        /* a second text that is no answer of a sample is one to a prompt, without images */
        const int n_images = side == DT_SIDE_SECOND && !kind->answers ? 0 : r->images.n;
        DT_TRY(check_places(recipe, ids->id + first, ids->n - first, n_images));
        int32_t *n_cells;
        DT_TRY(dt_count_cells(recipe, p, s, &n_cells));
        const dt_err err = dt_expand_placeholders(recipe->images->token, recipe->images->n_tokens, n_cells, n_images,
                                                  ids, &p->mask[side], first);
        free(n_cells);
        DT_TRY(err);
    }
    s->parted |= parted;
    s->truncated |= cut;
    truncate(recipe, ids, p->mask[side], first, s);
    s->n[side] = ids->n - first;
    if (recipe->rules.opt->mask == DT_MASK_FULL && kind->mask && ids->n > first)
        memset(p->mask[side] + first, 1, ids->n - first);
    DT_TRY(settle_placeholders(recipe, s, side, ids->id + first, p->mask[side] + first));
    if (ids->n > first) p->mask[side][first] = 0; /* token 0 is never a target */
    return DT_OK;
}

/* A sample that is too long has no images, as if they had not been read. */
static void drop_images(dt_chunk *p, dt_sample *s)
{
    p->pixels.n = s->first_pixel;
    p->grids.n = s->first_grid;
    s->n_images = s->n_whole_images = 0;
}

dt_err dt_encode_record(const dt_recipe *recipe, dt_encoder *e, const dt_parsed_record *record, dt_chunk *p,
                        dt_sample *s)
{
    s->kind = record->kind;
    s->weight = record->weight;
    s->pair = record->pair;
    s->has_second = record->has_second;
    s->is_chat = record->is_chat;
    /* the number of placeholders depends on the sizes of the images */
    const bool grids = recipe->images && recipe->images->grids && record->images.n > 0;
    if (grids) DT_TRY(dt_encode_images(recipe, record, p, s));
    const uint64_t hash_of_image = s->hash;
    DT_TRY(encode_side(recipe, e, record, DT_SIDE_FIRST, p, s));
    if (s->has_second) DT_TRY(encode_side(recipe, e, record, DT_SIDE_SECOND, p, s));
    const bool answers = dt_record_kind_of(s->kind)->answers;
    if (answers && s->has_second && s->n[0] == s->n[1] && s->n[0] > 0)
        s->pair.equal = memcmp(p->ids[0].id + p->ids[0].n - s->n[0], p->ids[1].id + p->ids[1].n - s->n[1],
                               s->n[0] * sizeof *p->ids[0].id) == 0;
    if (record->fields) dt_text_append(&p->records, record->fields, s->n_record = strlen(record->fields));
    DT_CHECK(!p->records.failed, DT_ERR_MEMORY, "out of memory for a record of %zu bytes", s->n_record);
    /* answers by prompt, so that a prompt is never on both sides of the split */
    const int32_t *ids = p->ids[0].id + p->ids[0].n - s->n[0];
    const size_t n = answers ? s->pair.prompt_length[0] : s->n[0];
    s->hash = dt_hash_bytes(ids, n * sizeof *ids);
    if (grids) s->hash = hash_of_image;
    if (grids && s->too_long) drop_images(p, s);
    return record->images.n && !s->too_long && !grids ? dt_encode_images(recipe, record, p, s) : DT_OK;
}

dt_err dt_encode_text(const dt_recipe *recipe, dt_encoder *e, const char *text, size_t nbytes, bool begins, dt_chunk *p,
                      dt_sample *s)
{
    dt_ids *ids = &p->ids[0];
    const size_t first = ids->n;
    s->text = true;
    s->kind = recipe->rules.opt->kind == DT_ANY_KIND ? DT_DATASET_TOKENS : recipe->rules.opt->kind;
    DT_CHECK(dt_record_is_text(s->kind), DT_ERR_DATA, "found plain text, but a dataset of kind %s needs JSON records",
             dt_dataset_kind_name(s->kind));
    dt_span span = {.text = text, .nbytes = nbytes};
    bool target = true, parted;
    const dt_pieces piece = {.span = &span, .target = &target, .n = 1};
    if (begins)
        DT_TRY(dt_pieces_encode(e, recipe->tokenizer, &piece, &recipe->rules.wrap, ids, NULL, &parted));
    else
        DT_TRY(dt_encode(e, &span, 1, DT_ENCODE_GOES_ON, ids, NULL));
    s->n[0] = ids->n - first;
    if (begins) s->hash = dt_hash_bytes(text, nbytes < HASHED_NBYTES ? nbytes : HASHED_NBYTES);
    return DT_OK;
}
