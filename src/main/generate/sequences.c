/* sequences.c - builds sequences from prompts, assigns them to ranks, and collects the results. */
#include "generate_app.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

int generate_owner(const app *a, int sequence)
{
    /* all sequences of a beam search are on one rank */
    const int unit = a->opt.beams.n_beams > 1 ? sequence / a->n_out : sequence;
    return unit % a->comm.nranks;
}

dt_err generate_begin_prompt(const app *a, dt_ids *p)
{
    if (p->n > 0) return DT_OK;
    const int64_t vocab_size = a->frozen.mc.vocab_size;
    const int32_t given = a->frozen.from.generation.bos, bos = given >= 0 ? given : a->frozen.mc.bos_token_id;
    const int32_t first = bos >= 0 && bos < vocab_size ? bos : a->n_eos > 0 ? a->eos[0] : -1;
    DT_CHECK(first >= 0, DT_ERR_USAGE,
             "the prompt is empty and the model has no begin token; give --prompt, --prompts or -");
    DT_TRY(dt_ids_reserve(p, 1));
    p->id[p->n++] = first;
    return DT_OK;
}

static dt_err make_sequence(app *a, dt_sequence *s, int prompt)
{
    dt_ids *p = &a->prompts.prompt[prompt].ids;
    const int64_t limit = dt_model_max_length(&a->frozen.mc);
    DT_TRY(generate_begin_prompt(a, p));
    const int64_t total = a->opt.answers ? 0 : a->opt.max_length;
    DT_CHECK(total == 0 || (int64_t)p->n < total, DT_ERR_USAGE,
             "prompt %d has %zu tokens, but max_length of generation_config.json allows %" PRId64
             ", prompt included; give --max-new-tokens",
             prompt, p->n, total);
    const int64_t n_new = a->opt.answers ? 0
                          : total > 0    ? total - (int64_t)p->n
                                         : a->opt.max_new_tokens,
                  least = n_new > 0;
    DT_CHECK((int64_t)p->n + least <= limit, DT_ERR_DATA,
             "%s %d has %zu tokens, but the model accepts at most %" PRId64 "%s", a->opt.answers ? "answer" : "prompt",
             prompt, p->n, limit, a->opt.answers ? ", prompt included" : ", new tokens included");
    const int64_t most = (int64_t)p->n + n_new;
    *s = (dt_sequence){.number = (uint64_t)a->n_seqs, .n_prompt = (int32_t)p->n, .n_ids = (int32_t)p->n};
    s->max_ids = (int32_t)(most < limit ? most : limit);
    s->prompt_number = prompt + 1;
    s->ids = calloc((size_t)s->max_ids, sizeof *s->ids);
    s->logps = a->opt.logprobs || a->head.kind == HEAD_WORDS ? calloc((size_t)s->max_ids, sizeof *s->logps) : NULL;
    DT_CHECK(s->ids && (s->logps || !a->opt.logprobs), DT_ERR_MEMORY, "out of memory for sequence %d of %d tokens",
             a->n_seqs, s->max_ids);
    memcpy(s->ids, p->id, p->n * sizeof *s->ids);
    return DT_OK;
}

dt_err generate_make_sequences(app *a)
{
    a->n_out = a->opt.beams.n_beams > 1 ? a->opt.beams.n_return : (int)a->opt.num_samples;
    const int64_t n = (int64_t)a->prompts.n * a->n_out;
    DT_CHECK(n <= INT_MAX / 2, DT_ERR_USAGE,
             "%d prompts with %d continuations each are too many for one run; split the prompts", a->prompts.n,
             a->n_out);
    a->seqs = calloc((size_t)n, sizeof *a->seqs);
    a->reward = a->opt.score ? calloc((size_t)n, sizeof *a->reward) : NULL;
    if (a->opt.answers && a->head.kind != HEAD_REWARD && a->head.kind != HEAD_WORDS)
        DT_ALLOC(a->values, n * a->head.n_values, "out of memory for the values of %" PRId64 " texts", n);
    DT_CHECK(a->seqs && (a->reward || !a->opt.score), DT_ERR_MEMORY, "out of memory for %" PRId64 " sequences", n);
    while (a->n_seqs < n) {
        dt_sequence *s = &a->seqs[a->n_seqs];
        const dt_err err = make_sequence(a, s, a->n_seqs / a->n_out);
        a->n_seqs++; /* main frees partial sequences */
        DT_TRY(err);
    }
    return DT_OK;
}

/* ---- items of a catalogue ---------------------------------------------------------------------------------------- */

/* An item with more tokens than the new-token limit cannot be reached. */
dt_err generate_check_items(const app *a)
{
    int32_t fewest = INT32_MAX, prompt = 0;
    for (int i = 0; i < a->n_seqs; i++) {
        const int32_t n_new = a->seqs[i].max_ids - a->seqs[i].n_prompt;
        if (n_new < fewest) fewest = n_new, prompt = i / a->n_out;
    }
    const int32_t n_items = dt_trie_n_leaves(a->trie), n_within = dt_trie_n_within(a->trie, fewest);
    DT_CHECK(n_within > 0, DT_ERR_USAGE,
             "--catalogue: an item of %s needs at least %d new tokens, but prompt %d allows %d; raise --max-new-tokens "
             "to %d, or shorten the prompt if the model's length is the limit",
             a->opt.catalogue, dt_trie_shortest(a->trie), prompt, fewest, dt_trie_depth(a->trie));
    if (n_within < n_items && a->comm.rank == 0)
        DT_WARN("--catalogue: %d of %d items of %s cannot be reached with %d new tokens after prompt %d: the longest "
                "needs %d; raise --max-new-tokens",
                n_items - n_within, n_items, a->opt.catalogue, fewest, prompt, dt_trie_depth(a->trie));
    if (a->opt.beams.n_beams > 1 && a->opt.beams.n_return > n_within && a->comm.rank == 0)
        DT_WARN("--num-return %d: a search finds at most %d sequences, one per item that can be reached",
                a->opt.beams.n_return, n_within);
    return DT_OK;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

typedef struct result_head {
    double logp, score, reward;
    int32_t n_ids, finish;
} result_head;

/* One field of a result, at the cursor, in multiples of 8 bytes. Packs or unpacks; at NULL: only counts. */
typedef struct cursor {
    char *at;
    size_t nbytes;
    bool unpacks;
} cursor;

static void exchange(cursor *c, void *field, size_t nbytes)
{
    if (c->at && nbytes) memcpy(c->unpacks ? field : c->at, c->unpacks ? c->at : field, nbytes);
    nbytes = (nbytes + 7) / 8 * 8;
    c->at = c->at ? c->at + nbytes : NULL;
    c->nbytes += nbytes;
}

static void exchange_result(const app *a, cursor *c, dt_sequence *s)
{
    result_head head = {s->logp, s->score, a->reward ? a->reward[s->number] : 0, s->n_ids, (int32_t)s->finish};
    exchange(c, &head, sizeof head);
    s->logp = head.logp, s->score = head.score, s->n_ids = head.n_ids, s->finish = (dt_finish)head.finish;
    if (a->reward) a->reward[s->number] = head.reward;
    if (a->values) exchange(c, generate_values_of(a, s), (size_t)a->head.n_values * sizeof *a->values);
    exchange(c, s->ids, (size_t)s->max_ids * sizeof *s->ids);
    if (s->logps) exchange(c, s->logps, (size_t)s->max_ids * sizeof *s->logps);
}

/* The results of all sequences of a rank. */
static void exchange_results(app *a, int of, cursor *c)
{
    for (int i = 0; i < a->n_seqs; i++)
        if (generate_owner(a, i) == of) exchange_result(a, c, &a->seqs[i]);
}

/* One broadcast per source rank. */
dt_err generate_fetch_from(app *a, int from)
{
    cursor count = {0};
    exchange_results(a, from, &count);
    char *all = calloc(count.nbytes + 1, 1);
    dt_err err =
        together(&a->comm, all ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for the results of rank %d", from));
    if (err == DT_OK && a->comm.rank == from) exchange_results(a, from, &(cursor){.at = all});
    if (err == DT_OK) err = dt_comm_broadcast_host(&a->comm, all, count.nbytes, from);
    if (err == DT_OK) exchange_results(a, from, &(cursor){.at = all, .unpacks = true});
    free(all);
    return err;
}
