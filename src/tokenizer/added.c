/* added.c - added tokens. Of those that start at a position, the longest matches. */
#include "added.h"
#include "dtrain/text/space.h"
#include "dtrain/text/utf8.h"

#include <stdlib.h>

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Limit: a search may scan a whole token at each byte of a text. */
static dt_err too_long(size_t n)
{
    return dt_fail(DT_ERR_DATA, "an added token of at most %d bytes, found %zu", DT_CONTENT_MAX, n);
}

/* Normalise a token that is matched in normalised text; decoding writes the normalised form. */
static dt_err add_normalized(dt_added *a, const char *content, size_t n, int k, dt_vocab *vocab,
                             const dt_normalizer *normalizer, dt_matcher *m)
{
    dt_text buffer[2] = {0};
    dt_segment p = {.text = content, .to = n, .at_start = true};
    dt_err err = dt_normalize(normalizer, m, buffer, &p, false);
    if (err == DT_OK && p.to - p.from > DT_CONTENT_MAX) err = too_long(p.to - p.from);
    if (err == DT_OK) err = dt_trie_add(&a->trie[1], p.text + p.from, p.to - p.from, k);
    if (err == DT_OK) err = dt_vocab_decode_as(vocab, a->token[k].id, p.text + p.from, p.to - p.from);
    free(buffer[0].bytes);
    free(buffer[1].bytes);
    return err;
}

static dt_err name_token(const dt_spec *s, dt_err err)
{
    return dt_error_prefix(err, "%s: %s: expected ", s->file, s->where);
}

static dt_err read_token(dt_added *a, const dt_added_item *t, dt_vocab *vocab, const dt_normalizer *normalizer,
                         dt_matcher *m)
{
    const unsigned in_vocab = DT_TOKEN_ADDED | (t->flags & DT_ADDED_SPECIAL ? DT_TOKEN_SPECIAL : 0);
    if (t->n > DT_CONTENT_MAX) return name_token(&t->from, too_long(t->n));
    const dt_vocab_entry *known = dt_vocab_get(vocab, t->id);
    if (known && (known->flags & DT_TOKEN_ADDED))
        return dt_spec_bad(&t->from, "id", "an id that no other added token has");
    DT_TRY(name_token(&t->from, dt_vocab_add(vocab, t->id, t->content, t->n, (uint8_t)in_vocab)));
    const int k = a->n_tokens++;
    a->token[k] = (dt_added_token){.id = t->id, .flags = t->flags};
    return t->flags & DT_ADDED_NORMALIZED ? add_normalized(a, t->content, t->n, k, vocab, normalizer, m)
                                          : dt_trie_add(&a->trie[0], t->content, t->n, k);
}

dt_err dt_added_read(dt_added *a, const dt_added_list *list, dt_vocab *vocab, const dt_normalizer *normalizer,
                     dt_matcher *m)
{
    *a = (dt_added){.token = calloc((size_t)list->n + 1, sizeof *a->token)};
    DT_CHECK(a->token, DT_ERR_MEMORY, "out of memory for %d added tokens", list->n);
    for (int i = 0; i < list->n; i++) DT_TRY(read_token(a, &list->item[i], vocab, normalizer, m));
    return DT_OK;
}

size_t dt_added_nbytes(const dt_added *a)
{
    return ((size_t)a->n_tokens + 1) * sizeof *a->token +
           (a->trie[0].n_alloc + a->trie[1].n_alloc) * sizeof(dt_trie_node);
}

void dt_added_free(dt_added *a)
{
    free(a->token);
    free(a->trie[0].node);
    free(a->trie[1].node);
    *a = (dt_added){0};
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

/* True if a word continues before or after the match. */
static bool within_word(const dt_segment *p, size_t begin, size_t end)
{
    size_t before = begin, n;
    while (before > p->from && ((unsigned char)p->text[--before] & 0xc0) == 0x80) {
    }
    return (before < begin && dt_unicode_is_word(dt_utf8_decode(p->text + before, &n))) ||
           (end < p->to && dt_unicode_is_word(dt_utf8_decode(p->text + end, &n)));
}

bool dt_added_next(const dt_added *a, int which, const dt_segment *p, dt_added_match *match)
{
    const dt_trie *t = &a->trie[which];
    if (!t->longest) return false;
    for (size_t i = match->from, n; i < p->to;) {
        const int k = t->root[(unsigned char)p->text[i]] ? dt_trie_longest(t, p->text + i, p->to - i, &n) : -1;
        if (k < 0) {
            i++;
            continue;
        }
        const dt_added_token *token = &a->token[k];
        if (token->flags & DT_ADDED_SPLIT || (token->flags & DT_ADDED_SINGLE_WORD && within_word(p, i, i + n))) {
            i += n;
            continue;
        }
        *match =
            (dt_added_match){.from = i + n, .text_from = match->text_from, .begin = i, .end = i + n, .id = token->id};
        if (token->flags & DT_ADDED_LSTRIP) {
            match->begin = p->from + dt_white_trimmed(p->text + p->from, i - p->from);
            if (match->begin < match->text_from) match->begin = match->text_from;
        }
        if (token->flags & DT_ADDED_RSTRIP) match->end += dt_white_before(p->text + match->end, p->to - match->end);
        return true;
    }
    return false;
}
