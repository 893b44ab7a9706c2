/* trie.c - a trie of token sequences. Nodes are numbered level by level, so the children of a node are contiguous. Two
 * integers per node represent the trie: its token and its first child. The tokens that may follow a node are therefore
 * a range of one array. */
#include "dtrain/recommend/trie.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct dt_trie {
    const dt_catalogue *catalogue;
    int32_t n_nodes, n_leaves, depth, eos;
    int32_t *token; /* [n_nodes] token on the edge to the node; unused for the root */
    int32_t *first; /* [n_nodes + 1]: children of node i are first[i] .. first[i + 1] - 1 */
    int32_t *leaf;  /* [n_leaves] nodes, ascending */
    int32_t *item;  /* [n_leaves] */
    int32_t *node;  /* [n_items] leaf of each item, if the item is the first with its SID */
    dt_ledger *ledger;
    size_t nbytes;
};

/* ---- sequences --------------------------------------------------------------------------------------------------- */

/* Token sequence of an item, starting at id `at`. */
typedef struct text {
    const dt_ids *ids;
    size_t at;
    int32_t n, item;
} text;

typedef struct texts {
    dt_ids ids;
    text *text; /* [n] */
    int32_t n;
} texts;

static dt_err add_text(texts *all, const dt_catalogue *c, int32_t item, dt_encoder *e, const char *tail,
                       const dt_ids *tail_ids, int32_t eos, int64_t vocab_size, dt_ids *joint)
{
    const dt_catalogue_item x = dt_catalogue_get(c, item);
    const dt_span spans[] = {
        {.text = tail, .nbytes = strlen(tail)}, {.text = x.sid, .nbytes = strlen(x.sid)}, {.text = "\n", .nbytes = 1}};
    int64_t ends[3];
    joint->n = 0;
    DT_TRY(dt_encode(e, spans, 3, DT_ENCODE_GOES_ON, joint, ends));
    DT_CHECK((ends[0] >= 0 || !*tail) && joint->n > tail_ids->n &&
                 (tail_ids->n == 0 || memcmp(joint->id, tail_ids->id, tail_ids->n * sizeof *joint->id) == 0),
             DT_ERR_DATA,
             "%s:%" PRId32 ": the tokenizer splits the SID %s of item %s differently after a prompt that ends in "
             "\"%s\" than without one, because a token would span the boundary",
             dt_catalogue_path(c), x.line, x.sid, x.id, tail);
    for (size_t i = tail_ids->n; i < joint->n; i++)
        DT_CHECK(joint->id[i] < vocab_size, DT_ERR_DATA,
                 "%s:%" PRId32 ": the SID %s of item %s has token %" PRId32 ", but the model's vocabulary has %" PRId64
                 " tokens; use the model's own tokenizer",
                 dt_catalogue_path(c), x.line, x.sid, x.id, joint->id[i], vocab_size);
    const size_t n = joint->n - tail_ids->n;
    DT_TRY(dt_ids_reserve(&all->ids, n + 1));
    all->text[all->n++] = (text){.ids = &all->ids, .at = all->ids.n, .n = (int32_t)n + 1, .item = item};
    memcpy(all->ids.id + all->ids.n, joint->id + tail_ids->n, n * sizeof *joint->id);
    all->ids.n += n;
    all->ids.id[all->ids.n++] = eos;
    return DT_OK;
}

static dt_err add_texts(texts *all, const dt_catalogue *c, dt_encoder *e, const char *tail, int32_t eos,
                        int64_t vocab_size, dt_ids *tail_ids, dt_ids *joint)
{
    const int32_t *order = dt_catalogue_by_sid(c);
    const char *before = NULL;
    const dt_span alone = {.text = tail, .nbytes = strlen(tail)};
    all->text = malloc((size_t)dt_catalogue_n_sids(c) * sizeof *all->text);
    DT_CHECK(all->text, DT_ERR_MEMORY, "%s: out of memory for the tokens of %" PRId32 " SIDs", dt_catalogue_path(c),
             dt_catalogue_n_sids(c));
    if (*tail) DT_TRY(dt_encode(e, &alone, 1, DT_ENCODE_GOES_ON, tail_ids, NULL));
    for (int32_t i = 0; i < dt_catalogue_n_items(c); i++) {
        const char *sid = dt_catalogue_get(c, order[i]).sid;
        if (!before || strcmp(before, sid) != 0)
            DT_TRY(add_text(all, c, order[i], e, tail, tail_ids, eos, vocab_size, joint));
        before = sid;
    }
    return DT_OK;
}

static const int32_t *ids_of(const text *t) { return t->ids->id + t->at; }

/* Length of the common prefix. */
static int32_t common(const text *a, const text *b)
{
    const int32_t *x = ids_of(a), *y = ids_of(b);
    int32_t n = 0;
    while (n < a->n && n < b->n && x[n] == y[n]) n++;
    return n;
}

static int by_ids(const void *a, const void *b)
{
    const text *x = a, *y = b;
    const int32_t n = common(x, y);
    if (n == x->n || n == y->n) return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : x->item - y->item;
    return ids_of(x)[n] < ids_of(y)[n] ? -1 : 1;
}

/* Sort the sequences. No sequence may equal another or be a prefix of it. */
static dt_err sort_texts(texts *all, const dt_catalogue *c)
{
    qsort(all->text, (size_t)all->n, sizeof *all->text, by_ids);
    for (int32_t i = 1; i < all->n; i++) {
        const text *a = &all->text[i - 1], *b = &all->text[i];
        const dt_catalogue_item x = dt_catalogue_get(c, a->item), y = dt_catalogue_get(c, b->item);
        DT_CHECK(common(a, b) < a->n, DT_ERR_DATA,
                 "%s:%" PRId32 ": the tokenizer encodes the SID %s of item %s like that of item %s in line %" PRId32
                 ", %s",
                 dt_catalogue_path(c), y.line, y.sid, y.id, x.id, x.line, x.sid);
    }
    return DT_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static dt_err count_nodes(dt_trie *t, const texts *all)
{
    int64_t n = 1;
    for (int32_t i = 0; i < all->n; i++) {
        const text *x = &all->text[i];
        n += x->n - (i > 0 ? common(x - 1, x) : 0);
        if (x->n > t->depth) t->depth = x->n;
    }
    DT_CHECK(n < INT32_MAX, DT_ERR_DATA, "%s: the items need a trie of %" PRId64 " nodes, but at most %d are possible",
             dt_catalogue_path(t->catalogue), n, INT32_MAX - 1);
    t->n_nodes = (int32_t)n;
    t->n_leaves = all->n;
    return DT_OK;
}

/* Range of sorted sequences that share a node at `depth` tokens. */
typedef struct span {
    int32_t begin, end, depth;
} span;

static void add_children(dt_trie *t, const texts *all, span *spans, int32_t node, int32_t *next, int32_t *n_leaves)
{
    const span s = spans[node];
    t->first[node] = *next;
    if (s.depth == all->text[s.begin].n) {
        t->leaf[*n_leaves] = node;
        t->node[all->text[s.begin].item] = node;
        t->item[(*n_leaves)++] = all->text[s.begin].item;
        return;
    }
    for (int32_t i = s.begin; i < s.end;) {
        const int32_t token = ids_of(&all->text[i])[s.depth], from = i;
        while (i < s.end && ids_of(&all->text[i])[s.depth] == token) i++;
        spans[*next] = (span){from, i, s.depth + 1};
        t->token[(*next)++] = token;
    }
}

static dt_err build(dt_trie *t, const texts *all)
{
    int32_t next = 1, n_leaves = 0;
    DT_TRY(count_nodes(t, all));
    const size_t n = (size_t)t->n_nodes, leaves = (size_t)t->n_leaves,
                 n_items = (size_t)dt_catalogue_n_items(t->catalogue);
    span *spans = malloc(n * sizeof *spans);
    t->nbytes = (2 * n + 1 + 2 * leaves + n_items) * sizeof(int32_t);
    t->token = calloc(1, t->nbytes);
    if (spans && t->token) {
        t->first = t->token + n;
        t->leaf = t->first + n + 1;
        t->item = t->leaf + leaves;
        t->node = t->item + leaves;
        spans[0] = (span){0, all->n, 0};
        for (int32_t node = 0; node < t->n_nodes; node++) add_children(t, all, spans, node, &next, &n_leaves);
        t->first[n] = next;
    }
    free(spans);
    DT_CHECK(t->token && t->first, DT_ERR_MEMORY, "%s: out of memory for a trie of %zu nodes",
             dt_catalogue_path(t->catalogue), n);
    return DT_OK;
}

static dt_err make(dt_trie *t, const dt_tokenizer *tokenizer, const char *tail, int32_t eos, int64_t vocab_size)
{
    dt_encoder *e = NULL;
    dt_ids tail_ids = {0}, joint = {0};
    texts all = {0};
    dt_err err = dt_encoder_open(&e, tokenizer);
    if (err == DT_OK) err = add_texts(&all, t->catalogue, e, tail, eos, vocab_size, &tail_ids, &joint);
    if (err == DT_OK) err = sort_texts(&all, t->catalogue);
    if (err == DT_OK) err = build(t, &all);
    dt_encoder_close(e);
    free(tail_ids.id);
    free(joint.id);
    free(all.ids.id);
    free(all.text);
    return err;
}

dt_err dt_trie_open(dt_trie **out, const dt_catalogue *c, const dt_tokenizer *tokenizer, const char *tail, int32_t eos,
                    int64_t vocab_size, dt_ledger *ledger)
{
    *out = NULL;
    DT_CHECK(eos >= 0 && eos < vocab_size, DT_ERR_USAGE,
             "%s: SIDs must be followed by an end-of-text token, but the model defines none", dt_catalogue_path(c));
    dt_trie *t = calloc(1, sizeof *t);
    DT_CHECK(t, DT_ERR_MEMORY, "%s: out of memory for a trie", dt_catalogue_path(c));
    t->catalogue = c, t->eos = eos;
    const dt_err err = make(t, tokenizer, tail, eos, vocab_size);
    if (err != DT_OK) {
        t->nbytes = 0;
        dt_trie_close(t);
        return err;
    }
    t->ledger = ledger;
    dt_ledger_add(ledger, DT_MEM_DATA, DT_ON_HOST, t->nbytes);
    *out = t;
    return DT_OK;
}

void dt_trie_close(dt_trie *t)
{
    if (!t) return;
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, t->nbytes);
    free(t->token);
    free(t);
}

size_t dt_trie_nbytes(const dt_trie *t) { return t ? t->nbytes : 0; }

/* ---- traversal --------------------------------------------------------------------------------------------------- */

static void allowed(const void *self, int32_t state, int32_t *list_start, int32_t *list_len)
{
    const dt_trie *t = self;
    *list_start = t->first[state];
    *list_len = t->first[state + 1] - t->first[state];
}

/* The first index from low to high - 1 of an ascending array whose value is at least x; high: none. */
static int32_t lower_bound(const int32_t *values, int32_t low, int32_t high, int32_t x)
{
    while (low < high) {
        const int32_t at = low + (high - low) / 2;
        *(values[at] < x ? &low : &high) = values[at] < x ? at + 1 : at;
    }
    return low;
}

/* Child for a token, -1: none. */
static int32_t child(const dt_trie *t, int32_t node, int32_t token)
{
    const int32_t end = t->first[node + 1], at = lower_bound(t->token, t->first[node], end, token);
    return at < end && t->token[at] == token ? at : -1;
}

static int32_t next(const void *self, int32_t state, int32_t token) { return child(self, state, token); }

dt_constraint dt_trie_constraint(const dt_trie *t)
{
    return (dt_constraint){.self = t,
                           .start = 0,
                           .token = t->token,
                           .n_token = t->n_nodes,
                           .allowed = allowed,
                           .next = next,
                           .end = t->eos};
}

int32_t dt_trie_n_leaves(const dt_trie *t) { return t->n_leaves; }
int32_t dt_trie_depth(const dt_trie *t) { return t->depth; }

/* Nodes of a level are contiguous, and so are their children. */
int32_t dt_trie_n_within(const dt_trie *t, int32_t n_tok)
{
    int32_t end = 1;
    for (int32_t d = 0; d < n_tok && end < t->n_nodes; d++) end = t->first[end];
    return lower_bound(t->leaf, 0, t->n_leaves, end);
}

int32_t dt_trie_shortest(const dt_trie *t)
{
    int32_t n = 1;
    while (n < t->depth && dt_trie_n_within(t, n) == 0) n++;
    return n;
}

static int32_t item_of(const dt_trie *t, int32_t node)
{
    const int32_t at = lower_bound(t->leaf, 0, t->n_leaves, node);
    return at < t->n_leaves && t->leaf[at] == node ? t->item[at] : -1;
}

int32_t dt_trie_item(const dt_trie *t, const int32_t *ids, int32_t n)
{
    int32_t node = 0;
    for (int32_t i = 0; i < n && node >= 0; i++) node = child(t, node, ids[i]);
    return node < 0 ? -1 : item_of(t, node);
}

/* Parent of a child node: the last node whose first child is at or before it. */
static int32_t parent(const dt_trie *t, int32_t node) { return lower_bound(t->first, 0, node, node + 1) - 1; }

int32_t dt_trie_ids(const dt_trie *t, int32_t item, int32_t *ids)
{
    int32_t n = 0;
    for (int32_t node = t->node[item]; node > 0; node = parent(t, node)) ids[n++] = t->token[node];
    for (int32_t i = 0; i < n / 2; i++) {
        const int32_t id = ids[i];
        ids[i] = ids[n - 1 - i];
        ids[n - 1 - i] = id;
    }
    return n;
}
