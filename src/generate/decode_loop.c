/* decode_loop.c - see decode_loop.h. */
#include "decode_loop.h"

#include <stdlib.h>

bool is_end_of_text(const dt_generate_options *opt, int32_t token)
{
    if (opt->constraint) return token == opt->constraint->end;
    for (int i = 0; i < opt->n_eos; i++)
        if (opt->eos[i] == token) return true;
    return false;
}

static int32_t n_slots(const decode_loop *p) { return p->opt->n_slots + p->opt->n_prompts; }

int32_t decode_loop_slot(const decode_loop *p, int32_t slot)
{
    return slot < p->opt->n_slots ? slot : p->decoder->prompt_slot + slot - p->opt->n_slots;
}

/* How many tokens of each slot go into this pass: slots with one token left first, for each of them gives a new one. */
static void choose_tokens(decode_loop *p)
{
    int32_t room = p->opt->max_tok;
    for (int round = 0; round < 2; round++) {
        for (int32_t k = 0; k < n_slots(p); k++) {
            decode_slot *s = &p->slots[k];
            if (round == 0) s->take = 0;
            const int32_t left = s->ids ? s->n_ids - s->done : 0;
            if ((round == 0) != (left == 1)) continue;
            s->take = left < room ? left : room;
            room -= s->take;
        }
    }
}

/* A sequence for each slot that takes part: its next tokens, at their positions, against a cache of n_ids. There are no
 * more than slots of sequences: for each prompt that is computed one waits. */
static void fill_batch(decode_loop *p)
{
    dt_batch *b = &p->batch;
    b->n_tok = b->n_seq = 0;
    b->n_samples = 0;
    b->seq_start[0] = 0;
    for (int32_t k = 0; k < n_slots(p); k++) {
        decode_slot *s = &p->slots[k];
        s->row = -1;
        if (s->take == 0) continue;
        for (int32_t i = 0; i < s->take; i++, b->n_tok++) {
            b->token[b->n_tok] = s->ids[s->done + i];
            b->pos[b->n_tok] = s->done + i;
            b->target[b->n_tok] = -1;
            b->weight[b->n_tok] = 0;
            b->token_key[b->n_tok] = 0;
        }
        s->row = b->n_seq;
        b->full_len[b->n_seq] = s->n_ids > s->n_prompt ? s->n_ids : s->n_prompt;
        p->slot_of[b->n_seq++] = decode_loop_slot(p, k);
        b->seq_start[b->n_seq] = b->n_tok;
    }
    dt_batch_finish(b);
}

static int32_t count_prompt_tokens(const decode_loop *p)
{
    int32_t n = 0;
    for (int32_t k = 0; k < n_slots(p); k++) {
        const decode_slot *s = &p->slots[k];
        const int32_t end = s->done + s->take < s->n_prompt ? s->done + s->take : s->n_prompt;
        if (s->ids && end > s->done) n += end - s->done;
    }
    return n;
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

dt_err decode_loop_run(decode_loop *p, const decode_user *user)
{
    for (dt_err err = DT_OK;;) {
        bool work = false;
        if (err == DT_OK && p->opt->on_pass) err = p->opt->on_pass(p->opt->ctx);
        if (err == DT_OK) err = user->admit(user->self, &work);
        DT_TRY(stay_together(p->opt->lockstep, err, &work));
        if (!work) return DT_OK;
        const double since = dt_now_s();
        choose_tokens(p);
        fill_batch(p);
        DT_TRY(p->decoder->decode(p->decoder->self, &p->batch, p->slot_of));
        const int32_t n_prompt_tok = count_prompt_tokens(p);
        for (int32_t k = 0; k < n_slots(p); k++) p->slots[k].done += p->slots[k].take;
        DT_TRY(user->read(user->self));
        err = user->use(user->self);
        if (err == DT_OK) err = dt_fault("generate.pass");
        p->stats->n_forward++;
        p->stats->n_prompt_tok += n_prompt_tok;
        if (p->batch.n_tok > 0) p->stats->prompt_seconds += (dt_now_s() - since) * n_prompt_tok / p->batch.n_tok;
    }
}

int32_t decode_loop_row(const decode_loop *p, int32_t slot)
{
    const decode_slot *s = &p->slots[slot];
    return s->ids && s->done == s->n_ids ? s->row : -1;
}

dt_err decode_loop_open(decode_loop *p, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats)
{
    *p = (decode_loop){.decoder = d, .opt = opt, .stats = stats};
    DT_CHECK(opt->n_slots > 0 && opt->n_prompts >= 0 && opt->max_tok >= opt->n_slots, DT_ERR_ARG,
             "%d slots, %d of prompts, and %d tokens a pass", opt->n_slots, opt->n_prompts, opt->max_tok);
    DT_TRY(dt_batch_alloc(&p->batch, opt->max_tok, opt->n_slots, opt->ledger));
    p->slots = calloc((size_t)n_slots(p), sizeof *p->slots);
    p->slot_of = calloc((size_t)opt->n_slots, sizeof *p->slot_of);
    DT_CHECK(p->slots && p->slot_of, DT_ERR_MEMORY, "out of memory for %d slots", opt->n_slots);
    return DT_OK;
}

void decode_loop_close(decode_loop *p)
{
    free(p->slot_of);
    free(p->slots);
    dt_batch_free(&p->batch, p->opt->ledger);
}
