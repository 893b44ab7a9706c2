/* rollout.c - open and close a rollout, and access its rows. */
#include "rollout_private.h"
#include "dtrain/pretrained/pretrained.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err open_replay(dt_rollout *r, dt_task *t)
{
    dt_err err = rollout_replay_open(&r->replay, &r->opt, t->mc->vocab_size);
    if (err == DT_OK) err = dt_task_reads(t, r->opt.from_file, r->replay.fingerprint);
    dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, rollout_replay_nbytes(&r->replay));
    r->n_prompts = r->replay.n;
    return err;
}

static dt_loader **loader_of(dt_rollout *r, dt_task *t)
{
    if (r->opt.validation) return &t->valid;
    return r->has_own ? &r->own : &t->train;
}

static dt_err open_prompts(dt_rollout *r, dt_task *t)
{
    const dt_config *cfg = t->cfg;
    const bool validation = r->opt.validation;
    const char *const key = validation ? "validation" : "train";
    dt_loader **const loader = loader_of(r, t);
    char where[512];
    const dt_loader_options opt = {.files = validation ? cfg->data_validation : cfg->data_train,
                                   .where = dt_config_where(cfg, "data", key, where, sizeof where),
                                   .seq_len = cfg->data_seq_len,
                                   .kind = DT_DATASET_PROMPTS,
                                   .records = r->opt.records,
                                   .shuffle = !validation && cfg->data_shuffle,
                                   .max_samples = validation ? cfg->data_max_validation_samples : 0,
                                   .train_batch_size = 1,
                                   .micro_batch_size = 1,
                                   .nranks = 1,
                                   .seed = (uint64_t)cfg->run_seed,
                                   .vocab_size = t->mc->vocab_size,
                                   .feature_nbytes = dt_task_feature_nbytes(t),
                                   .planning = !t->comm,
                                   .ledger = t->ledger,
                                   .phase = t->phase};
    const bool replays = *r->opt.from_file;
    if (replays && !dt_data_show_images(opt.files)) return open_replay(r, t);
    if (!*opt.files || dt_config_doubted(cfg, "data", key)) return DT_OK; /* already reported */
    DT_TRY(dt_task_open_loader(t, key, loader, &opt));
    const dt_data_info *info = dt_loader_info(*loader);
    r->prompts = *loader;
    if (r->has_own) t->prompts = r->own;
    r->max_images = info->max_images;
    r->n_prompts = info->n_samples;
    if (!replays) return DT_OK;
    r->replay.n_samples = info->n_samples;
    return open_replay(r, t);
}

/* Find the maximum length of prompts and rows. A row has at most data.seq_len tokens, like every sequence of a run. */
static dt_err find_lengths(dt_rollout *r, const dt_task *t)
{
    const dt_rollout_options *o = &r->opt;
    const int64_t T = t->cfg->data_seq_len, room = T - o->max_completion;
    char where[512];
    r->max_prompt = (int32_t)dt_max_i64(room, 1);
    r->max_len = (int32_t)T;
    DT_CHECK(room > 0, DT_ERR_USAGE,
             "%s: seq_len = %" PRId64 " tokens leave none for the prompt, because completions of section [%s] may have "
             "%d; raise seq_len, or shorten the completions",
             dt_config_where(t->cfg, "data", "seq_len", where, sizeof where), T, o->section, o->max_completion);
    if (r->n_prompts == 0) return DT_OK;
    const int64_t longest = r->prompts ? dt_loader_info(r->prompts)->longest_prompt : r->replay.longest_prompt;
    if (longest > room && t->comm && dt_comm_first(t->comm))
        DT_WARN("the longest prompt has %" PRId64 " tokens; with seq_len = %" PRId64
                " and completions of at most %d tokens, only the last %" PRId64 " tokens of a prompt are kept",
                longest, T, o->max_completion, room);
    r->max_prompt = (int32_t)dt_min_i64(longest, room);
    r->max_len = r->max_prompt + o->max_completion;
    return DT_OK;
}

/* Maximum number of rows that a rank generates. */
static int64_t share_of(const dt_rollout *r, int nranks)
{
    return dt_ceil_div(rollout_room(r) / rollout_unit(r), nranks) * rollout_unit(r);
}

/* Number of prompts cached at a time, for n sequences. Beam searches keep their prompts to the end. Otherwise it is
 * the maximum number of prompts that start together at any offset, and the same number again for groups that run
 * long. */
static int64_t n_prompts_for(const dt_rollout *r, int nranks, int64_t n)
{
    if (r->recompute_at > 0 && !r->opt.beams) return 0;
    const int64_t each = rollout_n_drawn(r), begin = dt_ceil_div(n, each),
                  all = dt_ceil_div(share_of(r, nranks) - 1, each) + 1;
    return r->opt.beams ? begin : dt_min_i64(n, dt_min_i64(2 * begin + 1, all));
}

/* A prompt is cached once for all its completions. Each of them has its own slots for new tokens, and for an image that
 * the prompt ends with. */
static void ask_for_cache(const dt_rollout *r, int nranks, int64_t n, dt_model_options *o)
{
    o->cache_seqs = (int32_t)dt_max_i64(o->cache_seqs, n);
    const int64_t n_prompts = n_prompts_for(r, nranks, n), shared = n_prompts > 0 ? r->max_prompt : 0,
                  tail = dt_min_i64(r->prompts ? dt_loader_info(r->prompts)->longest_tail : 0, shared);
    o->cache_len = (int32_t)dt_max_i64(o->cache_len, r->recompute_at > 0 ? r->max_len : r->max_len - shared + tail);
    o->cache_prompts = (int32_t)dt_max_i64(o->cache_prompts, n_prompts);
    o->cache_prompt_len = (int32_t)dt_max_i64(o->cache_prompt_len, shared);
    o->max_seq = (int32_t)dt_max_i64(o->max_seq, n);
    o->batch_invariant = true; /* completions do not depend on the rest of the batch */
}

/* A pass takes one token of each sequence. If one takes an image instead, that is not divided. */
static int32_t image_room(const dt_rollout *r) { return r->max_images > 0 ? r->max_prompt : 0; }

/* Number of sequences at a time. Generating all rows of a rank together is fastest, because each pass reads the
 * weights. The cache uses the activation memory of training, so it is free if it fits there. */
static dt_err find_slots(const dt_rollout *r, const dt_task *t, int32_t *n_slots)
{
    enum { MIN_SLOTS = 16 };
    dt_model_options with = *t->model_opt;
    dt_memory trains, generates;
    const int64_t unit = rollout_unit(r), share = share_of(r, t->data->size),
                  most = dt_max_i64(dt_min_i64(share, with.max_tok - image_room(r)) / unit, 1); /* in units */
    *n_slots = (int32_t)(t->ops->trains ? dt_min_i64(most, dt_ceil_div(MIN_SLOTS, unit)) * unit : share);
    if (!t->ops->trains || !t->dev->ops || t->n_units == 0) return DT_OK;
    DT_TRY(dt_model_plan(t->mc, &with, t->units, t->n_units, t->dev, &trains));
    for (int64_t low = *n_slots / unit + 1, high = most; low <= high;) {
        const int64_t middle = low + (high - low) / 2, n = middle * unit;
        with = *t->model_opt;
        ask_for_cache(r, t->data->size, n, &with);
        DT_TRY(dt_model_plan(t->mc, &with, t->units, t->n_units, t->dev, &generates));
        const bool fits = dt_memory_of(&generates, DT_MEM_ACTIVATIONS) <= dt_memory_of(&trains, DT_MEM_ACTIVATIONS);
        if (fits)
            *n_slots = (int32_t)n, low = middle + 1;
        else
            high = middle - 1;
    }
    return DT_OK;
}

/* A plan without files assumes one image per prompt. */
static dt_err widen_for_images(dt_rollout *r, dt_task *t)
{
    const int64_t m = t->batching.micro_batch_size;
    if (!r->prompts && !r->replay.in && t->mc->vision) r->max_images = (int32_t)dt_task_planned_images(t);
    DT_CHECK(m * r->max_images <= INT32_MAX, DT_ERR_USAGE,
             "a prompt has %d images, which is too many for a micro-batch of %" PRId64, (int)r->max_images, m);
    t->model_opt->max_images = (int32_t)dt_max_i64(t->model_opt->max_images, m * r->max_images);
    dt_task_declare_images(t);
    return DT_OK;
}

static dt_err widen_model(dt_rollout *r, dt_task *t)
{
    dt_model_options *o = t->model_opt;
    int32_t n_slots;
    r->recompute_at = dt_model_recompute_length(t->mc, r->max_len);
    DT_TRY(widen_for_images(r, t));
    DT_TRY(find_slots(r, t, &n_slots));
    o->max_tok = (int32_t)dt_max_i64(o->max_tok, n_slots + image_room(r));
    if (r->opt.constraint) o->max_listed = (int32_t)dt_max_i64(o->max_listed, r->opt.constraint->n_token);
    ask_for_cache(r, t->data->size, n_slots, o);
    if (!r->opt.by_other) t->wants_gathered = true;
    o->graphs = t->cfg->run_cuda_graphs;
    r->generate = (dt_generate_options){.sampling = r->opt.sampling,
                                        .constraint = r->opt.constraint,
                                        .eos = r->eos,
                                        .n_eos = r->n_eos,
                                        .vocab_size = t->mc->vocab_size,
                                        .max_len = r->max_len,
                                        .n_slots = n_slots,
                                        .n_prompts = (int32_t)n_prompts_for(r, t->data->size, n_slots),
                                        .recompute_at = r->recompute_at,
                                        .max_tok = o->max_tok,
                                        .vision = r->max_images > 0 ? t->mc->vision : NULL,
                                        .max_images = o->max_images,
                                        .feature_nbytes = dt_task_feature_nbytes(t),
                                        .image = rollout_image,
                                        .logp = true,
                                        .logp_temperature = r->opt.sampling.temperature,
                                        .ledger = t->ledger};
    if (!r->opt.beams) return DT_OK;
    r->generate.beams = (dt_beam_options){.n_beams = rollout_unit(r), .n_return = rollout_unit(r)};
    o->max_top = (int32_t)dt_max_i64(o->max_top, dt_beam_top(&r->generate));
    return DT_OK;
}

/* Without a readable tokenizer there are no texts; everything else works. For a plan, the files may be missing. */
static void open_tokenizer(dt_rollout *r, dt_task *t)
{
    if (!*t->tokenizer && t->train && !strcmp(dt_loader_info(t->train)->tokenizer, "bytes")) t->tokenizer = "bytes";
    if (!*t->tokenizer) return;
    if (dt_tokenizer_open(&r->tokenizer, t->tokenizer) == DT_OK) {
        dt_ledger_add(t->ledger, DT_MEM_DATA, DT_ON_HOST, dt_tokenizer_nbytes(r->tokenizer));
        return;
    }
    r->tokenizer = NULL;
    if (t->comm && dt_comm_first(t->comm)) DT_WARN("completions are reported without text: %s", dt_error_message());
    dt_error_clear();
}

static dt_err find_ends(dt_rollout *r, const dt_task *t)
{
    const char *stop = r->opt.stop_token;
    char *end;
    if (t->n_units == 0) return DT_OK; /* the error is already reported */
    if (r->opt.constraint) {
        r->eos[r->n_eos++] = r->opt.constraint->end;
        return DT_OK;
    }
    if (!stop || !*stop || !strcmp(stop, "eos")) {
        const int32_t own = r->tokenizer ? dt_tokenizer_get_info(r->tokenizer)->eos : -1;
        r->n_eos = dt_ends_of_text(own, t->generation, t->mc, r->end_of_turn, r->eos);
        return DT_OK;
    }
    int32_t id = r->tokenizer ? dt_tokenizer_find(r->tokenizer, stop) : -1;
    if (id < 0) {
        const long long number = strtoll(stop, &end, 10);
        if (!*end && number >= 0 && number < t->mc->vocab_size) id = (int32_t)number;
    }
    if (id < 0 && !r->tokenizer && !t->comm) return DT_OK; /* a plan does not need it */
    DT_CONFIG_CHECK(id >= 0 && id < t->mc->vocab_size, t->cfg, r->opt.section, "stop_token",
                    "expected eos, a token of the vocabulary or its id, found %s%s", stop,
                    r->tokenizer ? "" : "; there is no tokenizer to look it up");
    r->eos[r->n_eos++] = id;
    return DT_OK;
}

/* ---- a part of the task ------------------------------------------------------------------------------------------ */

static int64_t even(int64_t n) { return n + n % 2; }
static int64_t whole_words(int64_t nbytes) { return dt_ceil_div(nbytes, 8) * 8; }

static int32_t batch_images(const dt_rollout *r, const dt_task *t)
{
    return (int32_t)t->batching.micro_batch_size * r->max_images;
}

static int32_t batch_tok(const dt_rollout *r, const dt_task *t)
{
    return (int32_t)(t->batching.micro_batch_size * r->max_len);
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_rollout *r = self;
    const int64_t n = r->opt.n_rows, n_share = share_of(r, t->data->size),
                  n_chosen = r->opt.n_drawn ? r->opt.num_generations : 0,
                  n_made = rollout_room(r) + n_chosen; /* the extra rows are scratch for reordering a group */
    size_t used = 0;
    r->n_share = n_share;
    r->ids_ld = even(r->max_len), r->sampled.ld = even(r->opt.max_completion);
    r->row = dt_carve(block, &used, n_made, sizeof *r->row);
    r->ids = dt_carve(block, &used, n_made * r->ids_ld, sizeof *r->ids);
    r->sampled.at = dt_carve(block, &used, n_made * r->sampled.ld, sizeof(float));
    r->observed_ld = whole_words(r->opt.max_completion);
    if (rollout_has_turns(r)) r->observed = dt_carve(block, &used, n_made * r->observed_ld, sizeof *r->observed);
    r->chosen = dt_carve(block, &used, n_chosen, sizeof *r->chosen);
    for (int i = 0; i < r->opt.n_arrays; i++) {
        r->array[i].ld = even(r->opt.max_completion + 1);
        r->array[i].at = dt_carve(block, &used, n * r->array[i].ld, sizeof(float));
    }
    r->given = dt_carve(block, &used, n * r->replay.n_rewards, sizeof *r->given);
    r->sequence = dt_carve(block, &used, n_share, sizeof *r->sequence);
    r->sequences = dt_carve(block, &used, n_share, sizeof *r->sequences);
    r->turn = dt_carve(block, &used, r->opt.turns ? n_share : 0, sizeof *r->turn);
    r->logps = dt_carve(block, &used, n_share * r->max_len, sizeof(float));
    r->n_cells = rollout_has_cells(r, t) ? dt_carve(block, &used, n_share * r->max_images, sizeof *r->n_cells) : NULL;
    r->grid = dt_carve(block, &used, r->max_images, sizeof *r->grid);
    r->rows_of_micro = dt_carve(block, &used, t->batching.micro_batch_size, sizeof *r->rows_of_micro);
    r->scores = dt_carve(block, &used, batch_tok(r, t), sizeof *r->scores);
    return used;
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_rollout *r = self;
    dt_generate_options generate = r->generate;
    const int32_t m = (int32_t)t->batching.micro_batch_size;
    generate.max_tok = t->model_opt->max_tok;
    generate.max_images = t->model_opt->max_images;
    memory->at[DT_MEM_DATA][DT_ON_HOST] += dt_batch_nbytes(batch_tok(r, t), m) +
                                           dt_batch_images_nbytes(batch_images(r, t), dt_task_image_nbytes(t), m) +
                                           dt_generator_nbytes(&generate) + dt_loader_nbytes(r->prompts) +
                                           rollout_replay_nbytes(&r->replay) + dt_tokenizer_nbytes(r->tokenizer);
    return DT_OK;
}

dt_err dt_rollout_use(dt_rollout *r, dt_task *t, dt_model *m)
{
    const dt_decoder decoder = dt_decoder_of_model(m);
    const dt_constraint *only = r->opt.constraint;
    const bool gathered = m == t->model && t->keep_gathered;
    r->model = m;
    if (only) DT_TRY(dt_model_set_lists(m, only->token, only->n_token));
    r->generate.lockstep = t->stage == 3 && !gathered ? t->comm : NULL;
    r->generate.on_pass = rollout_on_pass, r->generate.ctx = r;
    if (r->opt.turns) r->generate.on_token = rollout_on_token, r->generate.on_wait = rollout_on_wait;
    return dt_generator_open(&r->generator, &decoder, &r->generate);
}

static dt_err begin_local(dt_rollout *r, dt_task *t)
{
    r->begin_s = dt_now_s();
    DT_TRY(dt_batch_alloc(&r->batch, batch_tok(r, t), (int32_t)t->batching.micro_batch_size, t->ledger));
    DT_TRY(dt_batch_add_images(&r->batch, batch_images(r, t), dt_task_image_nbytes(t), t->ledger));
    if (r->n_eos == 0 && dt_comm_first(t->comm))
        DT_WARN("the model defines no end-of-text token, so every completion runs to the maximum length");
    return r->opt.by_other ? DT_OK : dt_rollout_use(r, t, t->model);
}

static dt_err begin(void *self, dt_task *t) { return dt_comm_agree(t->comm, begin_local(self, t)); }

static void close_rollout(void *self, dt_task *t)
{
    dt_rollout *r = self;
    dt_generator_close(r->generator);
    dt_journal_close(r->journal);
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, dt_tokenizer_nbytes(r->tokenizer));
    dt_tokenizer_close(r->tokenizer);
    dt_batch_free(&r->batch, t->ledger);
    for (int i = 0; i < 2; i++) free(r->text[i]);
    free(r->record);
    dt_ledger_sub(t->ledger, DT_MEM_DATA, DT_ON_HOST, rollout_replay_nbytes(&r->replay));
    rollout_replay_close(&r->replay);
    dt_loader_close(*loader_of(r, t));
    *loader_of(r, t) = NULL;
    free(r);
}

static const dt_task_part_ops as_part = {.lay_out = lay_out, .plan = plan, .begin = begin, .close = close_rollout};

/* Objectives of distillation do not contain the probabilities of samples. */
static dt_err check_noise(const dt_rollout *r, const dt_task *t)
{
    DT_CONFIG_CHECK(t->cfg->model_neftune_noise_alpha == 0 || r->opt.unsaved || r->opt.validation, t->cfg, "model",
                    "neftune_noise_alpha",
                    "expected 0 with run.task = %s, because noise would change the probabilities of sampled tokens in "
                    "training, which are compared with those at sampling; found %g",
                    t->ops->name, t->cfg->model_neftune_noise_alpha);
    return DT_OK;
}

dt_rollout *dt_rollout_open(dt_task *t, const dt_rollout_options *opt)
{
    dt_rollout *r = calloc(1, sizeof *r);
    if (!r) {
        dt_mistakes_add(t->mistakes, dt_fail(DT_ERR_MEMORY, "out of memory for rollouts"));
        return NULL;
    }
    dt_task_hold(t, &as_part, r);
    r->opt = *opt;
    r->has_own = t->train && !opt->validation;
    r->now.number = r->before.number = r->policy = -1;
    dt_mistakes_add(t->mistakes, open_prompts(r, t));
    open_tokenizer(r, t);
    r->end_of_turn = -1;
    if (opt->turns && t->n_units > 0)
        dt_mistakes_add(t->mistakes, opt->turns->open(opt->turns->self, t, t->tokenizer, &r->end_of_turn));
    dt_mistakes_add(t->mistakes, find_ends(r, t));
    dt_mistakes_add(t->mistakes, find_lengths(r, t));
    dt_mistakes_add(t->mistakes, check_noise(r, t));
    dt_mistakes_add(t->mistakes, widen_model(r, t));
    if (!opt->validation && !opt->unsaved) t->saved_nbytes += rollout_saved_nbytes(r);
    return r;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

int64_t dt_rollout_n_prompts(const dt_rollout *r) { return r->n_prompts; }
int64_t dt_rollout_n_rows(const dt_rollout *r) { return r->n_rows; }
int dt_rollout_group_size(const dt_rollout *r) { return r->opt.num_generations; }
int64_t dt_rollout_number(const dt_rollout *r) { return r->now.number; }
const dt_rollout_row *dt_rollout_row_of(const dt_rollout *r, int64_t row) { return &r->row[row]; }
int64_t dt_rollout_n_ended(const dt_rollout *r)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_rows; i++) n += r->row[i].ended;
    return n;
}
const int32_t *dt_rollout_ids(const dt_rollout *r, int64_t row) { return r->ids + row * r->ids_ld; }

bool dt_rollout_is_observed(const dt_rollout *r, int64_t row, int32_t k)
{
    return r->observed && r->observed[row * r->observed_ld + k];
}

float *dt_rollout_array(dt_rollout *r, int array, int64_t row) { return r->array[array].at + row * r->array[array].ld; }

bool dt_rollout_is_mine(const dt_rollout *r, const dt_task *t, int64_t row)
{
    return row >= dt_rollout_first_of(r->n_rows, t->data->rank, t->data->size) &&
           row < dt_rollout_first_of(r->n_rows, t->data->rank + 1, t->data->size);
}

void dt_rollout_start(dt_rollout *r, int64_t number)
{
    r->before = r->now;
    r->now.number = number;
    r->n_rows = 0;
    r->policy = -1;
    r->seconds = r->score_seconds = r->reward_seconds = r->turn_seconds = 0;
}

void dt_rollout_rewind(dt_rollout *r, int64_t prompt)
{
    r->now.next_prompt = prompt;
    r->now.next_completion = (uint64_t)prompt * (uint64_t)rollout_n_drawn(r);
}

void dt_rollout_undo(dt_rollout *r)
{
    r->now = r->before;
    r->n_rows = 0;
}

static void copy_floats(const rollout_floats *a, int64_t from, int64_t to)
{
    memcpy(a->at + to * a->ld, a->at + from * a->ld, (size_t)a->ld * sizeof(float));
}

void rollout_copy_row(dt_rollout *r, int64_t from, int64_t to)
{
    r->row[to] = r->row[from];
    memcpy(r->ids + to * r->ids_ld, r->ids + from * r->ids_ld, (size_t)r->ids_ld * sizeof *r->ids);
    copy_floats(&r->sampled, from, to);
    if (r->observed)
        memcpy(r->observed + to * r->observed_ld, r->observed + from * r->observed_ld, (size_t)r->observed_ld);
}

/* Move a kept row and all its values to a lower index. */
static void move_row(dt_rollout *r, int64_t from, int64_t to)
{
    rollout_copy_row(r, from, to);
    for (int i = 0; i < r->opt.n_arrays; i++) copy_floats(&r->array[i], from, to);
    for (int i = 0, n = r->replay.n_rewards; i < n; i++) r->given[to * n + i] = r->given[from * n + i];
}

void dt_rollout_drop(dt_rollout *r, const bool *drop)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_rows; i++) {
        if (drop[i]) continue;
        if (n != i) move_row(r, i, n);
        n++;
    }
    r->n_rows = n;
}

void dt_rollout_put(dt_rollout *r, int64_t row, const int32_t *ids, int32_t n)
{
    dt_rollout_row *x = &r->row[row];
    float *sampled = r->sampled.at + row * r->sampled.ld;
    memcpy(r->ids + row * r->ids_ld + x->n_prompt, ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++) sampled[i] = NAN;
    x->n_new = n;
    x->ended = true;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

const char *dt_rollout_text(dt_rollout *r, int64_t row, dt_rollout_part part, dt_special_tokens special)
{
    const bool completion = part == DT_PART_COMPLETION;
    const dt_rollout_row *x = &r->row[row];
    const int32_t *ids = dt_rollout_ids(r, row) + (completion ? x->n_prompt : 0);
    char **text = &r->text[part];
    size_t nbytes;
    if (!r->tokenizer) return "";
    free(*text);
    const int32_t n = completion ? dt_rollout_n_completion(x) : x->n_prompt;
    *text = dt_decode(r->tokenizer, ids, n, special == DT_NO_SPECIAL, &nbytes);
    return *text;
}

const char *dt_rollout_record(dt_rollout *r, int64_t row)
{
    free(r->record);
    r->record = NULL;
    const int64_t prompt = r->row[row].prompt;
    const dt_err err =
        r->replay.in ? rollout_replay_record(r, prompt, &r->record) : dt_loader_record(r->prompts, prompt, &r->record);
    return err == DT_OK ? r->record : NULL;
}
