/* decode_loop.c - see decode_loop.h. */
#include "decode_loop.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_end_of_text(const dt_generate_options *opt, int32_t token)
{
    if (opt->constraint) return token == opt->constraint->end;
    for (int i = 0; i < opt->n_eos; i++)
        if (opt->eos[i] == token) return true;
    return false;
}

dt_finish decode_loop_ending(const dt_generate_options *opt, const int32_t *ids, int32_t n_prompt, int32_t n_ids,
                             int32_t max_ids)
{
    if (is_end_of_text(opt, ids[n_ids - 1])) return DT_FINISH_EOS;
    if (opt->is_complete && opt->is_complete(opt->ctx, ids, n_prompt, n_ids)) return DT_FINISH_STOP;
    return n_ids == max_ids ? DT_FINISH_LENGTH : DT_FINISH_NONE;
}

static int32_t n_slots(const decode_loop *p) { return p->opt->n_slots + p->opt->n_prompts; }

int32_t decode_loop_slot(const decode_loop *p, int32_t slot)
{
    return slot < p->opt->n_slots ? slot : p->decoder->prompt_slot + slot - p->opt->n_slots;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static int32_t max_images(const dt_generate_options *opt) { return opt->vision ? opt->max_images : 0; }
static size_t image_nbytes(const dt_generate_options *opt)
{
    if (opt->feature_nbytes > 0) return opt->feature_nbytes;
    return opt->vision ? dt_image_nbytes(opt->vision->image_size) : 0;
}

size_t decode_loop_nbytes(const dt_generate_options *opt)
{
    return dt_batch_nbytes(opt->max_tok, opt->n_slots) +
           dt_batch_images_nbytes(max_images(opt), image_nbytes(opt), opt->n_slots);
}

static int32_t count_placeholders(const dt_vision_config *v, const int32_t *ids, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; v && i < n; i++) count += ids[i] == v->image_token;
    return count;
}

/* Placeholders of image k. */
static int32_t tokens_of(const dt_vision_config *v, const dt_sequence *q, int32_t k)
{
    return (int32_t)v->n_tokens * (q->n_cells ? q->n_cells[k] : 1);
}

int32_t decode_loop_whole(const dt_generate_options *opt, const dt_sequence *q, int32_t n)
{
    const dt_vision_config *v = opt->vision;
    int32_t count = count_placeholders(v, q->ids, n < q->n_prompt ? n : q->n_prompt);
    for (int32_t k = 0; k < q->n_images && count >= tokens_of(v, q, k); k++) count -= tokens_of(v, q, k);
    return count > 0 ? n - count : n; /* remove the tokens of an image that is cut off */
}

dt_err decode_loop_check(const dt_generate_options *opt, const dt_sequence *q)
{
    const dt_vision_config *v = opt->vision;
    const int32_t n = count_placeholders(v, q->ids, q->n_prompt);
    int32_t expected = 0;
    for (int32_t k = 0; v && k < q->n_images; k++) expected += tokens_of(v, q, k);
    DT_CHECK(v ? n == expected : q->n_images == 0, DT_ERR_ARG,
             "internal: generate: sequence %" PRIu64 ": %d placeholders in its prompt for %d images", q->number, n,
             q->n_images);
    return DT_OK;
}

static int32_t cells_of(const dt_sequence *q, int32_t k) { return q->n_cells ? q->n_cells[k] : 1; }

/* The number of images before the slot's next token. */
static int32_t images_before(const dt_vision_config *v, const decode_slot *s)
{
    int32_t count = count_placeholders(v, s->ids, s->done < s->n_prompt ? s->done : s->n_prompt), k = 0;
    while (k < s->of->n_images && count > 0) count -= tokens_of(v, s->of, k++);
    return k;
}

/* The first tokens of a chunk that contain at most max_images images, all complete. */
static int32_t take_whole(const decode_loop *p, decode_slot *s, int32_t take, int32_t max_images)
{
    const dt_vision_config *v = p->opt->vision;
    const int32_t left = s->n_prompt - s->done < take ? s->n_prompt - s->done : take;
    int32_t n = 0, start = 0;
    for (int32_t i = 0; i < left && v && s->of->n_images > 0; i++) {
        if (s->ids[s->done + i] != v->image_token) continue;
        const int32_t k = s->first_image + s->n_take;
        if (n == 0) start = i;
        if (n == 0 && s->take_images + cells_of(s->of, k) > max_images) return i;
        if (++n < tokens_of(v, s->of, k)) continue;
        s->take_images += cells_of(s->of, k);
        s->n_take++;
        n = 0;
    }
    return v && n > 0 ? start : take;
}

/* Read the images of a pass, slot by slot. */
static dt_err read_images(decode_loop *p)
{
    const dt_generate_options *opt = p->opt;
    const double since = dt_now_s();
    uint8_t *to = p->images->pixels;
    uint32_t *grid = p->images->grid;
    for (int32_t k = 0; k < n_slots(p); k++) {
        const decode_slot *s = &p->slots[k];
        if (s->take_images == 0) continue;
        for (int32_t i = s->first_image; i < s->first_image + s->n_take; i++) {
            const int32_t n = cells_of(s->of, i);
            memset(grid, 0, (size_t)n * sizeof *grid);
            DT_TRY(opt->image(opt->ctx, s->of, i, to, grid));
            DT_CHECK(!opt->vision->grids || dt_grid_rows(*grid) * dt_grid_columns(*grid) == n, DT_ERR_DATA,
                     "internal: generate: an image of %" PRId32 " cells has the grid %" PRIu32, n, *grid);
            to += (size_t)n * p->images->image_nbytes;
            grid += n;
        }
    }
    p->stats->prompt_seconds += dt_now_s() - since;
    return DT_OK;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* Choose how many tokens of each slot enter this pass. Slots with one token left come first, because each yields a new
 * token. Sets whether there are images among them. */
static bool choose_tokens(decode_loop *p)
{
    int32_t room = p->opt->max_tok, images = p->opt->max_images;
    for (int round = 0; round < 2; round++) {
        for (int32_t k = 0; k < n_slots(p); k++) {
            decode_slot *s = &p->slots[k];
            if (round == 0) s->take = s->take_images = s->n_take = 0;
            const int32_t left = s->ids ? s->n_ids - s->held - s->done : 0;
            if ((round == 0) != (left == 1)) continue;
            if (p->images && s->ids && s->of->n_images > 0) s->first_image = images_before(p->opt->vision, s);
            s->take = take_whole(p, s, left < room ? left : room, images);
            room -= s->take;
            images -= s->take_images;
        }
    }
    return images < p->opt->max_images;
}

/* Build one sequence per participating slot: its next tokens with positions, against a cache of n_ids. There are at
 * most n_slots sequences, because for each prompt being computed one sequence waits. */
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
            const bool scored = s->of && s->of->of_prompt && s->done + i + 1 < s->n_prompt;
            b->target[b->n_tok] = scored ? s->ids[s->done + i + 1] : -1;
            b->weight[b->n_tok] = 0;
            b->token_key[b->n_tok] = 0;
        }
        s->row = b->n_seq;
        b->full_len[b->n_seq] = s->n_ids > s->n_prompt ? s->n_ids : s->n_prompt;
        b->prompt_len[b->n_seq] = s->n_prompt;
        p->slot_of[b->n_seq++] = decode_loop_slot(p, k);
        b->seq_start[b->n_seq] = b->n_tok;
    }
    dt_batch_finish(b);
}

/* As dt_images_append, for images that are in place. */
static void append_kept(dt_batch_images *i, int32_t row, int32_t n)
{
    i->first[row] = i->n;
    i->count[row] = n;
    i->n += n;
}

/* Add the images that were read. any: a rank has some in this pass. */
static void list_images(decode_loop *p, bool any)
{
    p->images->n = 0;
    p->images->absent = !any;
    for (int32_t k = 0; k < n_slots(p); k++)
        if (p->slots[k].take > 0) append_kept(p->images, p->slots[k].row, p->slots[k].take_images);
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

/* Ranks in lockstep continue while any rank has work. All run the tower if any has images. All stop if one has
 * failed. */
static dt_err stay_together(dt_comm *comm, dt_err err, bool *work, bool *waits, bool *images)
{
    if (!comm) return err;
    int64_t any[4] = {*work, *waits, *images, err != DT_OK};
    DT_TRY(dt_comm_reduce_host_i64(dt_comm_all(comm), any, 4, DT_MAX));
    *work = any[0] > 0;
    *waits = any[1] > 0;
    *images = any[2] > 0;
    return any[3] > 0 ? dt_comm_agree(comm, err) : DT_OK;
}

dt_err decode_loop_run(decode_loop *p, const decode_user *user)
{
    p->idle = false;
    for (dt_err err = DT_OK;;) {
        bool work = false, waits = false, images = false;
        if (err == DT_OK && p->opt->on_pass) err = p->opt->on_pass(p->opt->ctx);
        if (err == DT_OK) err = user->admit(user->self, &work, &waits);
        if (err == DT_OK && (images = choose_tokens(p))) err = read_images(p);
        DT_TRY(stay_together(p->opt->lockstep, err, &work, &waits, &images));
        p->idle = !work;
        if (!work && !waits) return DT_OK;
        if (!work) continue;
        const double since = dt_now_s();
        fill_batch(p);
        if (p->images) list_images(p, images);
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

bool decode_loop_outgrows(const dt_generate_options *opt, int32_t n_before, int32_t n_now)
{
    return opt->recompute_at > 0 && n_before <= opt->recompute_at && n_now > opt->recompute_at;
}

int32_t decode_loop_row(const decode_loop *p, int32_t slot)
{
    const decode_slot *s = &p->slots[slot];
    return s->ids && s->done == s->n_ids ? s->row : -1;
}

dt_err decode_loop_open(decode_loop *p, const dt_decoder *d, const dt_generate_options *opt, dt_generate_stats *stats)
{
    *p = (decode_loop){.decoder = d, .opt = opt, .stats = stats};
    DT_EXPECT(opt->n_slots > 0 && opt->n_prompts >= 0 && opt->max_tok >= opt->n_slots);
    const dt_vision_config *v = opt->vision;
    DT_CHECK(!v || (opt->image && opt->max_images > 0 && opt->max_tok >= opt->n_slots - 1 + v->n_tokens), DT_ERR_ARG,
             "internal: generate: %d slots, %d tokens and %d images per pass, with %" PRId64 " placeholders each",
             opt->n_slots, opt->max_tok, opt->max_images, v ? v->n_tokens : 0);
    DT_TRY(dt_batch_alloc(&p->batch, opt->max_tok, opt->n_slots, opt->ledger));
    DT_TRY(dt_batch_add_images(&p->batch, max_images(opt), image_nbytes(opt), opt->ledger));
    p->images = dt_images_of(&p->batch);
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
