/* budgets.c - turn budgets of chats (algorithms.md 1.1): each turn is truncated separately, so that a long
 * question does not displace its answer. With L = max_length, a turn of |src| and |tgt| tokens gets
 *
 *     L |src| / (|src| + |tgt|)     for its question, and
 *     L |tgt| / (|src| + |tgt|)     for its answer.
 *
 * The answer's share includes its end token. A question that is cut keeps what the template writes between it and
 * its answer. The first turn for which L has no room, and all later ones, are dropped. */
#include "encode_records.h"
#include <stdlib.h>
#include <string.h>

typedef struct turns {
    const dt_recipe *recipe;
    dt_encoder *e;
    dt_ids *ids;
    uint8_t **mask;
    size_t first;
    bool cut;
    dt_ids header; /* a short conversation up to its answer; n 0: not yet encoded */
} turns;

/* Encode pieces from .. to-1 as an independent text. */
static dt_err encode_part(turns *t, const dt_text_side *side, int from, int to, dt_ids *out)
{
    const dt_pieces part = {.span = side->pieces.span + from, .target = side->pieces.target + from, .n = to - from};
    bool parted;
    out->n = 0;
    if (from == 0) return dt_pieces_encode(t->e, t->recipe->tokenizer, &part, side->wrap, out, NULL, &parted);
    return dt_encode(t->e, part.span, part.n, DT_ENCODE_GOES_ON, out, NULL);
}

static dt_err put(turns *t, const int32_t *id, size_t n, bool target)
{
    DT_TRY(dt_ids_reserve(t->ids, n + 1));
    DT_RESIZE(*t->mask, t->ids->n_alloc, "out of memory for a record of %zu tokens", t->ids->n_alloc);
    if (n) memcpy(t->ids->id + t->ids->n, id, n * sizeof *id);
    memset(*t->mask + t->ids->n, target, n);
    t->ids->n += n;
    return DT_OK;
}

/* *n: how many ids at the end of src, the ids up to an answer, the template wrote. */
static dt_err count_header(turns *t, const dt_ids *src, size_t *n)
{
    static const dt_message talk[] = {
        {.role = DT_ROLE_USER, .text = "x", .nbytes = 1},
        {.role = DT_ROLE_ASSISTANT, .text = "y", .nbytes = 1, .learn = DT_LEARN_CONTENT},
    };
    dt_ids *h = &t->header;
    if (h->n == 0) {
        dt_text_side side = {0};
        int answer = 0;
        dt_err err = dt_chat_render(t->recipe->rules.chat, talk, 2, NULL, 0, &side.pieces);
        while (answer < side.pieces.n && !side.pieces.target[answer]) answer++;
        if (err == DT_OK) err = encode_part(t, &side, 0, answer, h);
        dt_pieces_free(&side.pieces);
        DT_TRY(err);
    }
    for (*n = 0; *n < src->n && *n < h->n && src->id[src->n - 1 - *n] == h->id[h->n - 1 - *n];) ++*n;
    return DT_OK;
}

/* Append one turn; *full if there is no room for it. */
static dt_err put_turn(turns *t, dt_ids *src, dt_ids *tgt, bool *full)
{
    const size_t L = (size_t)t->recipe->max_length, total = src->n + tgt->n;
    const int32_t own = dt_chat_end_token(t->recipe->rules.chat),
                  end = own >= 0 ? own : dt_tokenizer_get_info(t->recipe->tokenizer)->eos;
    const size_t most_src = total ? L * src->n / total : 0, most_tgt = total ? L * tgt->n / total : 0;
    if (tgt->n > 0 && tgt->id[tgt->n - 1] == end) tgt->n--;
    size_t n_src = src->n, n_tgt = tgt->n, n_header = 0;
    if (n_src > most_src) {
        DT_TRY(count_header(t, src, &n_header));
        n_src = most_src > n_header ? most_src : n_header;
    }
    if (n_tgt + 1 > most_tgt) n_tgt = most_tgt > 0 ? most_tgt - 1 : 0;
    const size_t n_end = end >= 0;
    *full = t->ids->n - t->first + n_src + n_tgt + n_end > L;
    t->cut |= *full || n_src < src->n || n_tgt < tgt->n;
    if (*full) return DT_OK;
    DT_TRY(put(t, src->id, n_src - n_header, false));
    DT_TRY(put(t, src->id + src->n - n_header, n_header, false));
    DT_TRY(put(t, tgt->id, n_tgt, true));
    return n_end ? put(t, &end, 1, true) : DT_OK;
}

dt_err dt_encode_turns(const dt_recipe *recipe, dt_encoder *e, const dt_text_side *side, dt_ids *ids, uint8_t **mask,
                       bool *cut)
{
    turns t = {.recipe = recipe, .e = e, .ids = ids, .mask = mask, .first = ids->n};
    dt_ids src = {0}, tgt = {0};
    dt_err err = DT_OK;
    bool full = false;
    const dt_pieces *p = &side->pieces;
    for (int from = 0; from < p->n && err == DT_OK && !full;) {
        int answer = from, to;
        while (answer < p->n && !p->target[answer]) answer++;
        if (answer == p->n) break; /* a question without an answer */
        for (to = answer; to < p->n && p->target[to];) to++;
        err = encode_part(&t, side, from, answer, &src);
        if (err == DT_OK) err = encode_part(&t, side, answer, to, &tgt);
        if (err == DT_OK) err = put_turn(&t, &src, &tgt, &full);
        from = to;
    }
    if (err == DT_OK) err = put(&t, NULL, 0, false); /* ensures that a mask exists */
    free(src.id);
    free(tgt.id);
    free(t.header.id);
    *cut = t.cut;
    return err;
}
