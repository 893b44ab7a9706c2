/* generate.c - continuous batching: each forward pass takes one token of every running sequence and fills the rest of its room with pieces of prompts, so
 * neither a long prompt nor a short answer leaves slots idle. The batch is a flat list of tokens, so nothing is padded. */
#include "dtrain/generate.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct slot {
    int seq;      /* index of the sequence in it, -1: free */
    int32_t done; /* tokens of the sequence that are in the cache */
    int32_t take; /* tokens of it in this pass */
} slot;

typedef struct generator {
    const dt_decoder *decoder;
    const dt_generate_options *opt;
    dt_sequence *const *seqs;
    int n_seqs, next; /* next: the first that has not had a slot */
    slot *slots;
    int32_t *slot_of; /* [n_slots] slot of each sequence of the batch */
    float *logits;    /* [n_slots, vocab_size] */
    size_t nbytes;    /* of logits */
    dt_batch batch;
    dt_sampler *sampler;
    dt_generate_stats *stats;
} generator;

static dt_err decode_by_model(void *self, const dt_batch *b, const int32_t *slot_of, float *logits)
{
    DT_TRY(dt_model_decode(self, b, slot_of));
    return dt_model_last_logits(self, b, logits);
}

static void forget_in_model(void *self, int32_t slot_number) { dt_model_cache_clear(self, slot_number); }

dt_decoder dt_decoder_of_model(dt_model *m)
{
    return (dt_decoder){.self = m, .decode = decode_by_model, .forget = forget_in_model};
}

static bool ends(const generator *g, int32_t token)
{
    for (int i = 0; i < g->opt->n_eos; i++)
        if (g->opt->eos[i] == token) return true;
    return false;
}

/* Give free slots to the sequences that wait. Is there anything to do? */
static bool admit(generator *g)
{
    bool any = false;
    for (int32_t k = 0; k < g->opt->n_slots; k++) {
        slot *s = &g->slots[k];
        while (s->seq < 0 && g->next < g->n_seqs) {
            dt_sequence *q = g->seqs[g->next++];
            q->finish = q->n_ids >= q->max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE; /* no room for a token: nothing to decode */
            if (q->finish != DT_FINISH_NONE) continue;
            *s = (slot){.seq = g->next - 1};
            g->decoder->forget(g->decoder->self, k);
        }
        any |= s->seq >= 0;
    }
    return any;
}

/* How many tokens of each slot go into this pass: those with one token left first, for each of them gives a new token. */
static void share_out(generator *g)
{
    int32_t room = g->opt->max_tok;
    for (int round = 0; round < 2; round++) {
        for (int32_t k = 0; k < g->opt->n_slots; k++) {
            slot *s = &g->slots[k];
            if (round == 0) s->take = 0;
            const int32_t left = s->seq < 0 ? 0 : g->seqs[s->seq]->n_ids - s->done;
            if ((round == 0) != (left == 1)) continue;
            s->take = left < room ? left : room;
            room -= s->take;
        }
    }
}

static void fill_batch(generator *g)
{
    dt_batch *b = &g->batch;
    b->n_tok = b->n_seq = 0;
    b->n_samples = 0;
    b->seq_start[0] = 0;
    for (int32_t k = 0; k < g->opt->n_slots; k++) {
        const slot *s = &g->slots[k];
        if (s->take == 0) continue;
        for (int32_t i = 0; i < s->take; i++, b->n_tok++) {
            b->token[b->n_tok] = g->seqs[s->seq]->ids[s->done + i];
            b->pos[b->n_tok] = s->done + i;
            b->target[b->n_tok] = -1;
            b->weight[b->n_tok] = 0;
            b->token_key[b->n_tok] = 0;
        }
        g->slot_of[b->n_seq++] = k;
        b->seq_start[b->n_seq] = b->n_tok;
    }
    dt_batch_finish(b);
}

/* Draw the next token of each sequence whose last token went through. */
static dt_err draw_tokens(generator *g)
{
    for (int32_t i = 0; i < g->batch.n_seq; i++) {
        slot *s = &g->slots[g->slot_of[i]];
        dt_sequence *q = g->seqs[s->seq];
        const int32_t before = s->done;
        s->done += s->take;
        g->stats->n_prompt_tok += before < q->n_prompt ? (s->done < q->n_prompt ? s->done : q->n_prompt) - before : 0;
        if (s->done < q->n_ids) continue;
        int32_t token;
        DT_TRY(dt_sampler_draw(g->sampler, g->logits + (int64_t)i * g->opt->vocab_size, q->ids, q->n_ids, q->number,
                               (uint64_t)q->n_ids, &token));
        q->ids[q->n_ids++] = token;
        g->stats->n_new_tok++;
        q->finish = ends(g, token) ? DT_FINISH_EOS : q->n_ids == q->max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE;
        if (q->finish != DT_FINISH_NONE) s->seq = -1;
        if (g->opt->on_token) DT_TRY(g->opt->on_token(g->opt->ctx, q));
    }
    return DT_OK;
}

/* Ranks in lockstep go on while any of them has work, and stop together when one has failed. */
static dt_err stay_together(dt_comm *comm, dt_err err, bool *work)
{
    if (!comm) return err;
    int64_t any[2] = {*work, err != DT_OK};
    DT_TRY(dt_comm_reduce_host_i64(comm, any, 2, DT_MAX));
    *work = any[0] > 0;
    return any[1] > 0 ? dt_comm_agree(comm, err) : DT_OK;
}

static dt_err run(generator *g)
{
    for (dt_err err = DT_OK;;) {
        bool work = admit(g);
        DT_TRY(stay_together(g->opt->lockstep, err, &work));
        if (!work) return DT_OK;
        share_out(g);
        fill_batch(g);
        DT_TRY(g->decoder->decode(g->decoder->self, &g->batch, g->slot_of, g->logits));
        g->stats->n_forward++;
        err = draw_tokens(g);
    }
}

static dt_err check(dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt)
{
    DT_CHECK(opt->n_slots > 0 && opt->max_tok >= opt->n_slots, DT_ERR_ARG, "%d slots and %d tokens a pass", opt->n_slots,
             opt->max_tok);
    for (int i = 0; i < n_seqs; i++)
        DT_CHECK(seqs[i]->n_prompt > 0 && seqs[i]->n_ids == seqs[i]->n_prompt && seqs[i]->n_ids <= seqs[i]->max_ids, DT_ERR_ARG,
                 "sequence %d: a prompt of %d tokens, %d tokens of %d", i, seqs[i]->n_prompt, seqs[i]->n_ids, seqs[i]->max_ids);
    return DT_OK;
}

static dt_err open_generator(generator *g)
{
    const dt_generate_options *opt = g->opt;
    DT_TRY(check(g->seqs, g->n_seqs, opt));
    DT_TRY(dt_sampler_open(&g->sampler, &opt->sampling, opt->vocab_size));
    DT_TRY(dt_batch_alloc(&g->batch, opt->max_tok, opt->n_slots, opt->ledger));
    g->slots = calloc((size_t)opt->n_slots, sizeof *g->slots);
    g->slot_of = calloc((size_t)opt->n_slots, sizeof *g->slot_of);
    g->logits = calloc((size_t)opt->n_slots * (size_t)opt->vocab_size, sizeof *g->logits);
    DT_CHECK(g->slots && g->slot_of && g->logits, DT_ERR_MEMORY,
             "out of memory for the logits of %d sequences (%" PRId64 " floats each)", opt->n_slots, opt->vocab_size);
    g->nbytes = (size_t)opt->n_slots * (size_t)opt->vocab_size * sizeof *g->logits;
    dt_ledger_add(opt->ledger, DT_MEM_DATA, g->nbytes);
    for (int32_t k = 0; k < opt->n_slots; k++) g->slots[k].seq = -1;
    return DT_OK;
}

static void close_generator(generator *g)
{
    if (g->nbytes) dt_ledger_sub(g->opt->ledger, DT_MEM_DATA, g->nbytes);
    free(g->logits);
    free(g->slot_of);
    free(g->slots);
    dt_batch_free(&g->batch, g->opt->ledger);
    dt_sampler_close(g->sampler);
}

dt_err dt_generate(const dt_decoder *d, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt,
                   dt_generate_stats *stats)
{
    generator g = {.decoder = d, .opt = opt, .seqs = seqs, .n_seqs = n_seqs, .stats = stats};
    *stats = (dt_generate_stats){0};
    const double start = dt_now_s();
    dt_err err = open_generator(&g);
    if (opt->lockstep) err = dt_comm_agree(opt->lockstep, err);
    if (err == DT_OK) err = run(&g);
    stats->seconds = dt_now_s() - start;
    close_generator(&g);
    return err;
}
