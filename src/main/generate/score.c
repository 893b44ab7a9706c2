/* score.c - scores of a reward model: the value at the last token of each sequence. A value is
 * bit-identical regardless of the rest of its pass. Results therefore do not depend on the ranks or on the
 * batch. */
#include "generate_app.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_TOK = 4096 };

static dt_frozen_model *judge_of(app *a) { return a->opt.answers ? &a->frozen : &a->judge; }

dt_err generate_describe_judge(app *a)
{
    a->judge.model_part = a->frozen.mc.vision ? DT_MODEL_WHOLE : DT_MODEL_USUAL;
    DT_TRY(dt_frozen_model_describe(&a->judge, a->opt.score, 1));
    DT_CHECK(a->judge.mc.vocab_size >= a->frozen.mc.vocab_size, DT_ERR_DATA,
             "%s: vocab_size of the scoring model is %lld, but the generating model has %lld", a->opt.score,
             (long long)a->judge.mc.vocab_size, (long long)a->frozen.mc.vocab_size);
    return DT_OK;
}

/* Values that the model computes of a token. */
static int64_t values_of_token(const app *a) { return a->opt.answers ? a->head.n_values : 1; }

/* ---- passes ------------------------------------------------------------------------------------------------------ */

typedef struct passes {
    dt_batch batch;
    float *value; /* [max_tok] */
    int32_t max_tok, max_seq, max_images, longest;
} passes;

/* Images of a sequence; of grids, cells. */
static int32_t n_images_of(const dt_sequence *s)
{
    int32_t n = 0;
    for (int32_t k = 0; k < s->n_images; k++) n += s->n_cells ? s->n_cells[k] : 1;
    return n;
}

/* A pass has as many images as its tokens have placeholders for, and those of any sequence. */
static int32_t most_images(const app *a, const passes *p)
{
    const dt_vision_config *v = judge_of((app *)a)->mc.vision;
    int64_t most = 0;
    for (int i = 0; i < a->n_seqs; i++) most = dt_max_i64(most, n_images_of(&a->seqs[i]));
    if (most == 0) return 0;
    return (int32_t)dt_max_i64(most, dt_min_i64(p->max_tok / v->n_tokens, most * p->max_seq));
}

static dt_err open_passes(app *a, passes *p)
{
    p->longest = 1;
    for (int i = 0; i < a->n_seqs; i++) p->longest = a->seqs[i].max_ids > p->longest ? a->seqs[i].max_ids : p->longest;
    p->max_tok = p->longest > PASS_TOK ? p->longest : PASS_TOK;
    p->max_seq = (int32_t)a->opt.batch_size;
    const int64_t most = dt_model_max_length(&judge_of(a)->mc);
    DT_CHECK(p->longest <= most, DT_ERR_DATA,
             "%s: a text may have %d tokens, but the scoring model accepts at most %lld", a->opt.score, p->longest,
             (long long)most);
    DT_ALLOC(p->value, (int64_t)p->max_tok * values_of_token(a), "out of memory for values of %d tokens", p->max_tok);
    DT_TRY(dt_batch_alloc(&p->batch, p->max_tok, p->max_seq, &a->ledger));
    p->max_images = most_images(a, p);
    if (p->max_images > 0) DT_TRY(dt_batch_add_images(&p->batch, p->max_images, generate_image_nbytes(a), &a->ledger));
    const dt_model_options mo = {.dtype = a->opt.dtype,
                                 .grad_dtype = a->opt.dtype,
                                 .max_tok = p->max_tok,
                                 .max_seq = p->max_seq,
                                 .max_pos = p->longest,
                                 .max_images = p->max_images,
                                 .batch_invariant = true};
    const dt_frozen_model *f = judge_of(a);
    return dt_model_open(&a->judging, &f->mc, &mo, f->units, f->n_units, &a->dev, &f->source, NULL, &a->phase);
}

/* Fill a pass with as many sequences as fit, starting at number first; returns the number of the next. */
static int fill(passes *p, dt_sequence *const *mine, int n_mine, int first)
{
    dt_batch *b = &p->batch;
    int i = first;
    int32_t n_images = 0;
    dt_batch_clear(b);
    for (; i < n_mine && b->n_seq < p->max_seq && b->n_tok + mine[i]->n_ids <= p->max_tok; i++) {
        n_images += n_images_of(mine[i]);
        if (n_images > p->max_images) break;
        b->prompt_len[b->n_seq] = mine[i]->n_prompt;
        dt_batch_append(b, mine[i]->ids, mine[i]->n_ids, mine[i]->n_ids + 1);
    }
    dt_batch_finish(b);
    return i;
}

static dt_err add_images(app *a, passes *p, dt_sequence *const *mine)
{
    dt_batch_images *to = dt_images_of(&p->batch);
    dt_images_clear(&p->batch);
    for (int32_t s = 0; to && s < p->batch.n_seq; s++) {
        int32_t at = to->n;
        dt_images_append(to, s, n_images_of(mine[s]));
        for (int32_t k = 0; k < mine[s]->n_images; k++) {
            DT_TRY(generate_bring_image(a, mine[s], k, to->pixels + (size_t)at * to->image_nbytes, to->grid + at));
            at += mine[s]->n_cells ? mine[s]->n_cells[k] : 1;
        }
    }
    return DT_OK;
}

static dt_err one_pass(app *a, passes *p, dt_sequence *const *mine, int first)
{
    DT_TRY(dt_fault("generate.score"));
    DT_TRY(add_images(a, p, mine + first));
    DT_TRY(dt_model_forward(a->judging, &p->batch, false, 0));
    DT_TRY(dt_model_values(a->judging, &p->batch, p->value));
    for (int s = 0; s < p->batch.n_seq; s++) {
        if (a->opt.answers && a->head.kind != HEAD_REWARD) {
            DT_TRY(generate_take_values(a, mine[first + s], p->value + p->batch.seq_start[s] * a->head.n_values));
            continue;
        }
        const double reward = (double)p->value[p->batch.seq_start[s + 1] - 1];
        DT_CHECK(isfinite(reward), DT_ERR_NONFINITE, "%s: the reward of sequence %llu is not finite", a->opt.score,
                 (unsigned long long)mine[first + s]->number);
        a->reward[mine[first + s]->number] = reward;
    }
    return DT_OK;
}

/* At stage 3, all ranks run the same number of passes, with empty ones at the end. A rank that fails alone
 * leaves the others in the middle of a pass, so it ends the job. */
static dt_err all_passes(app *a, passes *p, dt_sequence *const *mine, int n_mine)
{
    int64_t n_passes = 0;
    for (int i = 0; i < n_mine; n_passes++) i = fill(p, mine, n_mine, i);
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(&a->comm), &n_passes, 1, DT_MAX));
    dt_err err = DT_OK;
    for (int next = 0; n_passes > 0 && err == DT_OK; n_passes--) {
        const int first = next;
        next = fill(p, mine, n_mine, first);
        dt_phase_enter(&a->phase, "score", "");
        err = one_pass(a, p, mine, first);
    }
    return a->opt.stage == 3 && a->comm.nranks > 1 ? err : together(&a->comm, err);
}

dt_err generate_score(app *a, dt_sequence *const *mine, int n_mine)
{
    passes p = {0};
    const dt_zero_options kept = {.stage = (int)a->opt.stage, .expert_group_size = DT_GROUPS_THAT_FIT};
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    dt_err err = a->opt.answers ? DT_OK
                                : together(&a->comm, dt_frozen_model_load(&a->judge, &kept, a->opt.dtype, &a->comm,
                                                                          &a->dev, NULL, &a->phase));
    if (err == DT_OK) err = together(&a->comm, open_passes(a, &p));
    if (err == DT_OK) err = all_passes(a, &p, mine, n_mine);
    dt_watchdog_stop(&a->watchdog);
    dt_batch_free(&p.batch, &a->ledger);
    free(p.value);
    return err;
}

/* ---- reporting --------------------------------------------------------------------------------------------------- */

dt_err generate_report_rewards(app *a)
{
    double sum = 0, least = INFINITY, largest = -INFINITY;
    int n = 0, n_above = 0;
    for (int i = 0; i < a->n_seqs; i++) {
        if (a->seqs[i].finish == DT_FINISH_MISSING) continue;
        sum += a->reward[i], n_above += a->reward[i] > 0, n++;
        least = fmin(least, a->reward[i]), largest = fmax(largest, a->reward[i]);
    }
    if (a->comm.rank == 0 && n > 0 && a->head.kind == HEAD_REWARD)
        fprintf(stderr, "dtrain-generate: rewards of %d answer%s: mean %.6g, %.6g to %.6g; %.1f %% above 0\n", n,
                n == 1 ? "" : "s", dt_unsigned_nan(sum / n), dt_unsigned_nan(least), dt_unsigned_nan(largest),
                100.0 * n_above / n);
    return DT_OK;
}
