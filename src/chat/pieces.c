/* pieces.c - converts the pieces of a conversation to ids and a mask. A piece is a text that is completely a target or
 * completely not. All pieces are encoded as one text, as in later use of the model. A token that spans the border
 * between prompt and answer cannot be masked correctly. Only then are the two sides encoded separately. */
#include "dtrain/chat/chat.h"

#include <stdlib.h>
#include <string.h>

static dt_err add(dt_pieces *p, dt_span span, bool target)
{
    DT_GROW(p->span, p->n, "out of memory for a text of %d pieces", p->n + 1);
    DT_GROW(p->target, p->n, "out of memory for a text of %d pieces", p->n + 1);
    p->span[p->n] = span;
    p->target[p->n++] = target;
    return DT_OK;
}

dt_err dt_pieces_text(dt_pieces *p, const char *text, size_t nbytes, bool target)
{
    return nbytes ? add(p, (dt_span){.text = text, .nbytes = nbytes}, target) : DT_OK;
}

dt_err dt_pieces_token(dt_pieces *p, int32_t id, bool target)
{
    return id >= 0 ? add(p, (dt_span){.id = id}, target) : DT_OK;
}

void dt_pieces_clear(dt_pieces *p)
{
    free(p->owned);
    p->owned = NULL;
    p->n = 0;
}

void dt_pieces_free(dt_pieces *p)
{
    dt_pieces_clear(p);
    free(p->span);
    free(p->target);
    *p = (dt_pieces){0};
}

dt_err dt_expand_placeholders(int32_t token, int64_t n_tokens, const int32_t *n_cells, int n_images, dt_ids *ids,
                              uint8_t **mask, size_t first)
{
    int found = 0;
    size_t more_ids = 0;
    for (size_t i = first; i < ids->n; i++) found += ids->id[i] == token;
    dt_placeholder_words words = {0};
    DT_CHECK(found == n_images, DT_ERR_DATA, "%s", dt_say_placeholders(&words, NULL, found, "the record", n_images));
    if (found == 0) return DT_OK;
    for (int i = 0; i < found; i++) more_ids += (size_t)n_tokens * (size_t)(n_cells ? n_cells[i] : 1) - 1;
    DT_TRY(dt_ids_reserve(ids, more_ids));
    uint8_t *more = mask ? realloc(*mask, ids->n_alloc) : NULL;
    DT_CHECK(more || !mask, DT_ERR_MEMORY, "out of memory for a record of %zu tokens", ids->n_alloc);
    if (mask) *mask = more;
    size_t to = ids->n + more_ids; /* backwards, so that no id is overwritten before it is moved */
    for (size_t from = ids->n, end = to; from-- > first; ids->n = end) {
        const int32_t id = ids->id[from];
        const uint8_t target = mask ? more[from] : 0;
        const size_t run = (size_t)n_tokens * (size_t)(id == token && n_cells ? n_cells[--found] : 1);
        for (size_t k = id == token ? run : 1; k-- > 0;) {
            ids->id[--to] = id;
            if (mask) more[to] = target;
        }
    }
    return DT_OK;
}

/* ---- tokens added by the tokenizer ------------------------------------------------------------------------------- */

/* Encode a single token to find out what the tokenizer puts around texts. */
dt_err dt_wrap_probe(dt_wrap *w, const dt_tokenizer *t)
{
    const dt_tokenizer_info *info = dt_tokenizer_get_info(t);
    int32_t inner = 0; /* an id that is never added around a text */
    while (inner == info->bos || inner == info->eos) inner++;
    *w = (dt_wrap){.last_before = -1};
    dt_encoder *e = NULL;
    DT_TRY(dt_encoder_open(&e, t));
    dt_ids ids = {0};
    const dt_err err = dt_encode(e, &(dt_span){.id = inner}, 1, DT_ENCODE_WRAP, &ids, NULL);
    size_t at = 0;
    while (at < ids.n && ids.id[at] != inner) at++;
    if (err == DT_OK && at < ids.n)
        *w = (dt_wrap){
            .n_before = (int)at, .n_after = (int)(ids.n - at - 1), .last_before = at > 0 ? ids.id[at - 1] : -1};
    free(ids.id);
    dt_encoder_close(e);
    return err;
}

/* True if the text begins with the BOS that the tokenizer would prepend. */
static bool begins_with_bos(const dt_tokenizer *t, const dt_pieces *p, const dt_wrap *wrap)
{
    const int32_t bos = dt_tokenizer_get_info(t)->bos;
    if (bos < 0 || bos != wrap->last_before || p->n == 0) return false;
    const dt_span *first = &p->span[0];
    if (!first->text) return first->id == bos;
    const char *token = dt_tokenizer_token(t, bos);
    const size_t n = token ? strlen(token) : 0;
    return n > 0 && first->nbytes >= n && memcmp(first->text, token, n) == 0;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

typedef struct work {
    dt_encoder *e;
    const dt_pieces *p;
    const dt_wrap *wrap; /* NULL: none */
    dt_ids *ids;
    uint8_t **mask;
    int64_t *ends; /* [n] */
} work;

/* Encode pieces from .. to-1 as one text. The tokenizer's prefix counts to the first piece; its suffix is
 * removed. ends[i]: number of ids up to the end of piece i, negative if a token spans that end. */
static dt_err encode_range(work *w, int from, int to)
{
    const bool first = from == 0, wrapped = first && w->wrap;
    DT_TRY(dt_encode(w->e, w->p->span + from, to - from,
                     wrapped ? DT_ENCODE_WRAP
                     : first ? 0
                             : DT_ENCODE_GOES_ON,
                     w->ids, w->ends + from));
    if (wrapped) w->ids->n -= (size_t)w->wrap->n_after < w->ids->n ? (size_t)w->wrap->n_after : w->ids->n;
    w->ends[to - 1] = (int64_t)w->ids->n;
    return DT_OK;
}

/* End of the run of pieces that starts at `from`: all are targets, or none is. */
static int run_end(const dt_pieces *p, int from)
{
    int to = from + 1;
    while (to < p->n && p->target[to] == p->target[from]) to++;
    return to;
}

/* True if a token spans the border between targets and other text. The runs are then encoded separately. */
static bool crosses(const work *w)
{
    for (int from = 0, to; from < w->p->n; from = to) {
        to = run_end(w->p, from);
        if (w->ends[to - 1] < 0) return true;
    }
    return false;
}

static dt_err encode_runs(work *w)
{
    for (int from = 0, to; from < w->p->n; from = to) {
        to = run_end(w->p, from);
        DT_TRY(encode_range(w, from, to));
    }
    return DT_OK;
}

/* Set the mask of each id from its piece. */
static dt_err mark(work *w, size_t first)
{
    if (!w->mask) return DT_OK;
    uint8_t *mask = realloc(*w->mask, w->ids->n_alloc ? w->ids->n_alloc : 1);
    DT_CHECK(mask, DT_ERR_MEMORY, "out of memory for the mask of %zu tokens", w->ids->n_alloc);
    *w->mask = mask;
    size_t at = first;
    for (int from = 0, to; from < w->p->n; from = to) {
        to = run_end(w->p, from);
        const size_t end = (size_t)w->ends[to - 1];
        memset(mask + at, w->p->target[from], end - at);
        at = end;
    }
    return DT_OK;
}

dt_err dt_pieces_encode(dt_encoder *e, const dt_tokenizer *t, const dt_pieces *p, const dt_wrap *wrap, dt_ids *ids,
                        uint8_t **mask, bool *parted)
{
    const size_t first = ids->n;
    int64_t few[64], *many = p->n > 64 ? malloc((size_t)p->n * sizeof *many) : NULL;
    DT_CHECK(p->n <= 64 || many, DT_ERR_MEMORY, "out of memory for a text of %d pieces", p->n);
    work w = {.e = e,
              .p = p,
              .wrap = wrap && wrap->n_before + wrap->n_after > 0 && !begins_with_bos(t, p, wrap) ? wrap : NULL,
              .ids = ids,
              .mask = mask,
              .ends = many ? many : few};
    *parted = false;
    dt_err err = p->n > 0 ? encode_range(&w, 0, p->n) : DT_OK;
    if (err == DT_OK && crosses(&w)) {
        *parted = true;
        ids->n = first;
        err = encode_runs(&w);
    }
    if (err == DT_OK) err = mark(&w, first);
    free(many);
    return err;
}
