/* generate.c - sequences grow by tokens that the sampler draws; as one ends, the next takes its slot. */
#include "dtrain/generate.h"
#include "decode_loop.h"

#include <inttypes.h>
#include <stdlib.h>

struct dt_generator {
    decode_loop loop;
    dt_decoder decoder;
    dt_generate_options opt;
    dt_sequence *const *seqs;
    int n_seqs, next; /* next: the first that has not had a slot */
    int *seq_of;      /* [n_slots] index of the sequence in a slot, -1: free */
    dt_sampler *sampler;
};

static dt_err decode_by_model(void *self, const dt_batch *b, const int32_t *slot_of, float *logits)
{
    DT_TRY(dt_model_decode(self, b, slot_of));
    return dt_model_last_logits(self, b, logits);
}

static void keep_in_model(void *self, int32_t slot, int32_t n_tok) { dt_model_cache_keep(self, slot, n_tok); }
static dt_err copy_in_model(void *self, int32_t src, int32_t dst, int32_t first)
{
    return dt_model_cache_copy(self, src, dst, first);
}

dt_decoder dt_decoder_of_model(dt_model *m)
{
    return (dt_decoder){.self = m, .decode = decode_by_model, .keep = keep_in_model, .copy = copy_in_model};
}

/* Give free slots to the sequences that wait. Is there anything to do? */
static bool admit(void *self)
{
    dt_generator *g = self;
    const dt_decoder *d = g->loop.decoder;
    bool any = false;
    for (int32_t k = 0; k < g->loop.opt->n_slots; k++) {
        while (g->seq_of[k] < 0 && g->next < g->n_seqs) {
            dt_sequence *q = g->seqs[g->next++];
            /* no room for a token: nothing to decode */
            q->finish = q->n_ids >= q->max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE;
            if (q->finish != DT_FINISH_NONE) continue;
            g->seq_of[k] = g->next - 1;
            g->loop.slots[k] =
                (decode_slot){.ids = q->ids, .n_ids = q->n_ids, .done = q->n_cached, .n_prompt = q->n_prompt};
            d->keep(d->self, k, q->n_cached);
        }
        any |= g->seq_of[k] >= 0;
    }
    return any;
}

static dt_err draw_token(dt_generator *g, dt_sequence *q, const float *logits)
{
    const dt_generate_options *opt = g->loop.opt;
    int32_t token;
    DT_TRY(dt_sampler_draw(g->sampler, logits, q->ids, q->n_ids, q->number, (uint64_t)q->n_ids, &token));
    if (opt->logp) {
        const double logp = (double)logits[token] - dt_log_sum_exp(logits, opt->vocab_size);
        if (q->logps) q->logps[q->n_ids] = (float)logp;
        q->logp += logp;
    }
    q->ids[q->n_ids++] = token;
    g->loop.stats->n_new_tok++;
    q->finish = is_end_of_text(opt, token) ? DT_FINISH_EOS : q->n_ids == q->max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE;
    return opt->on_token ? opt->on_token(opt->ctx, q) : DT_OK;
}

/* Draw the next token of each sequence whose last token went through. */
static dt_err draw_tokens(void *self)
{
    dt_generator *g = self;
    for (int32_t k = 0; k < g->loop.opt->n_slots; k++) {
        decode_slot *s = &g->loop.slots[k];
        if (g->seq_of[k] < 0) continue;
        dt_sequence *q = g->seqs[g->seq_of[k]];
        q->n_cached = s->done;
        const float *logits = decode_loop_logits(&g->loop, k);
        if (!logits) continue;
        DT_TRY(draw_token(g, q, logits));
        s->n_ids = q->n_ids;
        if (q->finish == DT_FINISH_NONE) continue;
        g->seq_of[k] = -1;
        s->ids = NULL;
    }
    return DT_OK;
}

static dt_err check(dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt)
{
    for (int i = 0; i < n_seqs; i++)
        DT_CHECK(seqs[i]->n_prompt > 0 && seqs[i]->n_ids == seqs[i]->n_prompt && seqs[i]->n_ids <= seqs[i]->max_ids &&
                     seqs[i]->n_cached >= 0 && seqs[i]->n_cached < seqs[i]->n_ids &&
                     (seqs[i]->n_cached == 0 || opt->n_slots == 1),
                 DT_ERR_ARG, "sequence %d: a prompt of %d tokens, %d tokens of %d, %d of them cached", i,
                 seqs[i]->n_prompt, seqs[i]->n_ids, seqs[i]->max_ids, seqs[i]->n_cached);
    return DT_OK;
}

size_t dt_generator_nbytes(const dt_generate_options *opt)
{
    return dt_batch_nbytes(opt->max_tok, opt->n_slots) + decode_loop_logits_nbytes(opt);
}

static dt_err open_parts(dt_generator *g)
{
    const dt_generate_options *opt = &g->opt;
    DT_TRY(decode_loop_open(&g->loop, &g->decoder, opt, NULL));
    DT_TRY(dt_sampler_open(&g->sampler, &opt->sampling, opt->vocab_size));
    g->seq_of = malloc((size_t)opt->n_slots * sizeof *g->seq_of);
    DT_CHECK(g->seq_of, DT_ERR_MEMORY, "out of memory for %d slots", opt->n_slots);
    return DT_OK;
}

dt_err dt_generator_open(dt_generator **out, const dt_decoder *d, const dt_generate_options *opt)
{
    dt_generator *g = calloc(1, sizeof *g);
    *out = NULL;
    DT_CHECK(g, DT_ERR_MEMORY, "out of memory for a generator");
    g->decoder = *d;
    g->opt = *opt;
    g->loop.opt = &g->opt;
    const dt_err err = open_parts(g);
    if (err == DT_OK)
        *out = g;
    else
        dt_generator_close(g);
    return err;
}

void dt_generator_close(dt_generator *g)
{
    if (!g) return;
    decode_loop_close(&g->loop);
    dt_sampler_close(g->sampler);
    free(g->seq_of);
    free(g);
}

/* err: what went wrong before, of which the other ranks are to know. */
static dt_err run(dt_generator *g, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt, dt_err err,
                  dt_generate_stats *stats)
{
    *stats = (dt_generate_stats){0};
    const double start = dt_now_s();
    if (err == DT_OK) err = check(seqs, n_seqs, opt);
    if (opt->lockstep) err = dt_comm_agree(opt->lockstep, err);
    if (err != DT_OK) return err;
    g->seqs = seqs, g->n_seqs = n_seqs, g->next = 0;
    g->loop.stats = stats;
    for (int32_t k = 0; k < opt->n_slots; k++) {
        g->seq_of[k] = -1;
        g->loop.slots[k] = (decode_slot){0};
    }
    err = decode_loop_run(&g->loop, g, admit, draw_tokens);
    stats->seconds = dt_now_s() - start;
    return err;
}

dt_err dt_generator_run(dt_generator *g, dt_sequence *const *seqs, int n_seqs, dt_generate_stats *stats)
{
    return run(g, seqs, n_seqs, &g->opt, DT_OK, stats);
}

dt_err dt_generate(const dt_decoder *d, dt_sequence *const *seqs, int n_seqs, const dt_generate_options *opt,
                   dt_generate_stats *stats)
{
    dt_generator *g = NULL;
    const dt_err opened = dt_generator_open(&g, d, opt);
    const dt_err err = run(g, seqs, n_seqs, opt, opened, stats);
    dt_generator_close(g);
    return err;
}
