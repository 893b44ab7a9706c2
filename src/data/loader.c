/* loader.c - builds the batch of (step, micro): order.c selects samples, sources.c finds their files, and
 * the samples of the file fill the batch.
 *
 * Only one thread at a time builds batches (the caller or the prefetching thread), so scratch memory
 * belongs to the loader. */
#include "dtrain/data/data.h"
#include "counted.h"
#include "kinds/kinds.h"
#include "samples/grouping.h"
#include "samples/sample_images.h"
#include "order.h"
#include "prefetch.h"
#include "sources.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct dt_loader {
    dt_loader_options opt; /* its strings are not kept */
    dt_data_info info;
    dt_sources sources;
    dt_order order;
    dt_mix *mix;
    dt_counted memory;
    dt_fill_scratch scratch;
    dt_batch *batches;
    int n_batches;
    dt_prefetch *prefetch;  /* NULL: read on demand */
    dt_feature_slot *slots; /* [dt_loader_n_images] if batches have features, else NULL */
    bool has_features;      /* features are set */
};

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Append a sample to the batch. A token's key combines the sample's number and the token's index. Random
 * numbers derived from it are the same for any number of ranks. */
static dt_err add_sample(dt_loader *l, int64_t sample, dt_batch *b)
{
    const int32_t base = b->n_tok;
    int64_t in_file;
    const dt_samples *set = dt_sources_find(&l->sources, sample, &in_file);
    DT_TRY(set->ops->fill(set, in_file, b, &l->scratch));
    const uint64_t key = dt_mix64((uint64_t)sample);
    for (int32_t t = base; t < b->n_tok; t++) b->token_key[t] = dt_mix64(key + (uint64_t)(t - base));
    b->sample[b->n_samples++] = sample;
    return DT_OK;
}

/* Append the prompt of a sample with the answer of another. */
static dt_err add_mismatched(dt_loader *l, int64_t sample, int64_t other, dt_batch *b)
{
    int64_t in_file, in_other;
    const dt_samples *set = dt_sources_find(&l->sources, sample, &in_file),
                     *from = dt_sources_find(&l->sources, other, &in_other);
    DT_TRY(set->ops->fill_mismatched(set, in_file, from, in_other, b, &l->scratch));
    b->sample[b->n_samples++] = sample;
    return DT_OK;
}

/* The sample before position i of a step; for the first position, the last sample. */
static int64_t sample_before(const dt_loader *l, int64_t step, int64_t i)
{
    int64_t epoch, first, count;
    dt_order_step(&l->order, step, &epoch, &first, &count);
    return dt_order_sample(&l->order, epoch, i > first ? i - 1 : first + count - 1);
}

static dt_err check_features(const dt_loader *l)
{
    DT_CHECK(!l->slots || l->has_features, DT_ERR_FAULT,
             "internal: batch requested before image features were computed");
    return DT_OK;
}

/* Build the batch of (step, micro) on this rank. The loader has no position, so any order of calls works. */
static dt_err make_batch(void *self, const dt_request *what, dt_batch *b)
{
    dt_loader *l = self;
    int64_t epoch, first, count;
    dt_order_micro(&l->order, what->step, what->micro, l->opt.rank, &epoch, &first, &count);
    b->n_tok = b->n_seq = 0;
    b->n_samples = 0;
    dt_images_clear(b);
    DT_TRY(check_features(l));
    DT_TRY(dt_fault("data.read"));
    for (int64_t i = first; i < first + count; i++) {
        const int64_t sample = dt_order_sample(&l->order, epoch, i);
        DT_TRY(what->mismatched ? add_mismatched(l, sample, sample_before(l, what->step, i), b)
                                : add_sample(l, sample, b));
    }
    b->seq_start[b->n_seq] = b->n_tok;
    dt_batch_finish(b);
    return DT_OK;
}

/* After the last micro-batch of an evaluation comes the first one, for the next evaluation. Mismatched batches of a
 * step precede the others. */
static dt_request next_request(void *self, const dt_request *what)
{
    dt_loader *l = self;
    dt_request next = {what->step, what->micro + 1, what->mismatched};
    if (next.micro < dt_order_n_micro(&l->order, what->step)) return next;
    next.micro = 0;
    next.mismatched = l->opt.mismatched && !what->mismatched;
    if (what->step != DT_EVALUATION && !what->mismatched) next.step++;
    return next;
}

/* Prompts are read one by one. */
static bool has_batches(const dt_loader *l)
{
    const dt_samples_ops *ops = dt_kind_of(l->opt.kind)->samples;
    return !ops || ops->fill;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err check_options(const dt_loader_options *o)
{
    DT_EXPECT(o->seq_len >= 1 && o->micro_batch_size >= 1 && o->train_batch_size >= 1 && o->rank >= 0 &&
              o->rank < o->nranks && o->prefetch >= 0 && o->max_samples >= 0);
    const int n_texts = (int)dt_max_i64(1, dt_kind_of(o->kind)->n_sequences);
    DT_CHECK(o->micro_batch_size <= INT32_MAX / n_texts / o->seq_len, DT_ERR_USAGE,
             "%s: micro_batch_size * seq_len: expected at most %d tokens, found %" PRId64 " * %" PRId64, o->where,
             INT32_MAX / n_texts, o->micro_batch_size, o->seq_len);
    DT_CHECK(dt_ceil_div(dt_ceil_div(o->train_batch_size, o->micro_batch_size), o->nranks) <= INT_MAX &&
                 o->train_batch_size <= INT64_MAX / 4,
             DT_ERR_USAGE, "%s: train_batch_size %" PRId64 " needs too many micro-batches of %" PRId64, o->where,
             o->train_batch_size, o->micro_batch_size);
    return DT_OK;
}

static dt_err group(dt_loader *l)
{
    const dt_loader_options *o = &l->opt;
    const int64_t n = l->order.n;
    DT_CHECK(o->shuffle && !l->mix, DT_ERR_USAGE,
             "%s: data.group_by_modality_length needs shuffled samples: expected data.shuffle = true, and files "
             "without weights",
             o->where);
    dt_group_item *item;
    int64_t *grouped;
    DT_COUNTED_ALLOC(&l->memory, grouped, n, "no memory to group %" PRId64 " samples", n);
    DT_ALLOC(item, n, "no memory to group %" PRId64 " samples", n);
    for (int64_t i = 0; i < n; i++) {
        int64_t in_file;
        dt_sample_counts c = {0};
        const dt_samples *set = dt_sources_find(&l->sources, i, &in_file);
        set->ops->counts(set, in_file, &c);
        item[i] = (dt_group_item){.sample = i, .n_tok = c.n_tok, .images = c.images};
    }
    l->order.n_groups = dt_group(item, n, o->train_batch_size, o->seed, grouped);
    l->order.grouped = grouped;
    free(item);
    return DT_OK;
}

static dt_err open_order(dt_loader *l)
{
    const dt_loader_options *o = &l->opt;
    const int64_t n = l->sources.n_samples;
    l->order = (dt_order){.n = o->max_samples > 0 && o->max_samples < n ? o->max_samples : n,
                          .G = o->train_batch_size,
                          .m = o->micro_batch_size,
                          .nranks = o->nranks,
                          .shuffle = o->shuffle,
                          .seed = o->seed,
                          .entry_first = l->sources.entry_first};
    if (l->sources.weighted) {
        DT_CHECK(l->sources.n_entries <= DT_MIX_SLOTS, DT_ERR_USAGE,
                 "%s: expected at most %d files with weights, found %d", o->where, DT_MIX_SLOTS, l->sources.n_entries);
        DT_ALLOC(l->mix, 1, "no memory to mix %d files", l->sources.n_entries);
        dt_mix_init(l->mix, l->sources.n_entries, l->sources.weight);
        l->order.mix = l->mix;
    }
    dt_order_init(&l->order, o->drop_last);
    if (o->group && has_batches(l)) DT_TRY(group(l));
    DT_CHECK(l->order.n_eff > 0, DT_ERR_DATA,
             "%s: %" PRId64 " samples do not fill one micro-batch of %" PRId64
             ", and drop_last drops an incomplete one",
             o->where, l->order.n, o->micro_batch_size);
    return DT_OK;
}

static size_t scratch_nbytes(const dt_loader *l)
{
    if (!has_batches(l)) return 0;
    return (size_t)(l->opt.seq_len + 1) * sizeof *l->scratch.ids + (size_t)l->opt.seq_len;
}

static size_t image_nbytes(const dt_loader *l)
{
    return l->opt.feature_nbytes > 0 ? l->opt.feature_nbytes : dt_image_form_nbytes(&l->info.images);
}

static size_t slots_nbytes(const dt_loader *l)
{
    return l->opt.feature_nbytes > 0 ? (size_t)dt_loader_n_images(l) * sizeof(dt_feature_slot) : 0;
}

static dt_kind_batch largest_batch(const dt_loader *l)
{
    return (dt_kind_batch){.kind = l->opt.kind,
                           .max_tok = l->info.max_tok,
                           .max_seq = l->info.max_seq,
                           .max_images = l->info.max_images,
                           .image_nbytes = image_nbytes(l)};
}

size_t dt_loader_nbytes(const dt_loader *l)
{
    if (!l) return 0;
    const dt_kind_batch most = largest_batch(l);
    size_t nbytes = scratch_nbytes(l) + (size_t)l->n_batches * dt_kind_batch_nbytes(&most);
    for (int i = 0; i < l->sources.n_files; i++) nbytes += l->sources.samples[i].memory.nbytes;
    return nbytes + (l->order.grouped ? (size_t)l->order.n * sizeof *l->order.grouped : 0) + slots_nbytes(l);
}

static dt_err open_slots(dt_loader *l)
{
    if (l->opt.planning || slots_nbytes(l) == 0) return DT_OK;
    DT_COUNTED_ALLOC(&l->memory, l->slots, dt_loader_n_images(l),
                     "out of memory for the feature offsets of %" PRId64 " images", dt_loader_n_images(l));
    return DT_OK;
}

static dt_err open_batches(dt_loader *l)
{
    const int64_t T = l->opt.seq_len, m = l->opt.micro_batch_size, max_tok = l->sources.max_tok;
    DT_CHECK(l->sources.max_images <= INT32_MAX / m, DT_ERR_USAGE,
             "a sample has %" PRId64 " images, which is too many for a micro-batch of %" PRId64, l->sources.max_images,
             m);
    l->info.max_images = (int32_t)(l->sources.max_images * (has_batches(l) ? m : 1));
    DT_TRY(open_slots(l));
    if (!has_batches(l)) return DT_OK;
    /* a sequence has at least one token */
    const int64_t max_seq = l->sources.max_seq > max_tok ? max_tok : l->sources.max_seq;
    l->info.max_tok = (int32_t)(m * max_tok);
    l->info.max_seq = (int32_t)(m * max_seq);
    l->n_batches = l->opt.prefetch + 1;
    if (l->opt.planning) return DT_OK;
    DT_ALLOC(l->batches, l->n_batches, "out of memory for %d micro-batches", l->n_batches);
    DT_COUNTED_ALLOC(&l->memory, l->scratch.ids, T + 1, "out of memory for %d micro-batches", l->n_batches);
    DT_COUNTED_ALLOC(&l->memory, l->scratch.mask, T, "out of memory for %d micro-batches", l->n_batches);
    const dt_kind_batch most = largest_batch(l);
    for (int i = 0; i < l->n_batches; i++) DT_TRY(dt_kind_batch_alloc(&l->batches[i], &most, l->opt.ledger));
    if (l->opt.prefetch == 0) return DT_OK;
    return dt_prefetch_open(&l->prefetch, &(dt_maker){.self = l, .make = make_batch, .next = next_request}, l->batches,
                            l->n_batches);
}

/* The names of the tokenizer and of the chat template, and the first file with another one. */
static void find_names(const dt_sources *s, dt_data_info *to)
{
    to->tokenizer = dt_dataset_get_info(s->samples[0].dataset)->tokenizer;
    to->chat_template = "";
    for (int i = 0; i < s->n_files; i++) {
        const dt_dataset_info *info = dt_dataset_get_info(s->samples[i].dataset);
        const bool other = *to->tokenizer && *info->tokenizer && strcmp(info->tokenizer, to->tokenizer) != 0;
        if (other && !to->other_path) to->other_path = info->path;
        if (!*to->chat_template)
            to->chat_template = info->chat_template;
        else if (!to->other_template_path && *info->chat_template &&
                 strcmp(info->chat_template, to->chat_template) != 0)
            to->other_template_path = info->path;
    }
}

static dt_err open_all(dt_loader *l)
{
    DT_TRY(check_options(&l->opt));
    DT_TRY(dt_sources_open(&l->sources, &l->opt));
    DT_TRY(open_order(l));
    const dt_dataset_info *first = &l->sources.samples[0].dataset->info;
    l->info = l->sources.info;
    l->info.n_samples = l->order.n;
    l->info.longest_prompt = has_batches(l) ? 0 : l->sources.max_tok;
    if (l->order.n < l->sources.n_samples) l->info.n_packed = 0;
    l->info.of_documents = first->kind == DT_DATASET_TOKENS;
    l->info.steps_per_epoch = l->order.steps_per_epoch;
    l->info.path = first->path;
    if (l->sources.with_images)
        l->info.images = l->sources.with_images->images, l->info.image_path = l->sources.with_images->path;
    find_names(&l->sources, &l->info);
    return open_batches(l);
}

dt_err dt_loader_open(dt_loader **out, const dt_loader_options *opt)
{
    *out = NULL;
    dt_loader *l = calloc(1, sizeof *l);
    DT_CHECK(l, DT_ERR_MEMORY, "out of memory for a data loader");
    l->opt = *opt;
    l->memory.ledger = opt->ledger;
    if (!l->opt.where) l->opt.where = "[data]";
    const dt_err err = open_all(l);
    l->opt.files = l->opt.where = l->opt.packing = NULL;
    if (err != DT_OK) {
        dt_loader_close(l);
        return dt_trace(err, __FILE__, __LINE__, "open_all");
    }
    *out = l;
    return DT_OK;
}

void dt_loader_close(dt_loader *l)
{
    if (!l) return;
    dt_prefetch_close(l->prefetch);
    for (int i = 0; l->batches && i < l->n_batches; i++) dt_batch_free(&l->batches[i], l->opt.ledger);
    free(l->batches);
    dt_counted_free_all(&l->memory);
    free(l->mix);
    dt_sources_close(&l->sources);
    free(l);
}

const dt_data_info *dt_loader_info(const dt_loader *l) { return &l->info; }
uint64_t dt_loader_fingerprint(const dt_loader *l) { return l->sources.fingerprint; }

void dt_loader_refuse_placeholders(dt_loader *l, int32_t token)
{
    for (int i = 0; i < l->sources.n_files; i++) {
        dt_dataset *d = l->sources.samples[i].dataset;
        if (!d->info.has_images) d->placeholder = token;
    }
}

dt_err dt_loader_verify(const dt_loader *l, dt_err (*poll)(void *arg), void *arg)
{
    for (int i = 0; i < l->sources.n_files; i++) {
        dt_dataset *d = l->sources.samples[i].dataset;
        DT_TRY(dt_dataset_verify(d, poll, arg));
        if (d->kind->read_signal) DT_TRY(d->kind->read_signal(d, poll, arg, l->opt.rank > 0));
    }
    return DT_OK;
}

int64_t dt_loader_n_target(const dt_loader *l, int64_t sample)
{
    int64_t in_file;
    dt_sample_counts c;
    const dt_samples *set = dt_sources_find(&l->sources, sample, &in_file);
    set->ops->counts(set, in_file, &c);
    return c.n_target;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

int64_t dt_loader_n_images(const dt_loader *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->sources.n_files; i++) n += l->sources.samples[i].dataset->info.n_images;
    return n;
}

/* A sealed checksum is that of the original content. */
bool dt_loader_images_of(const dt_loader *l, int k, dt_images_of_file *f)
{
    if (k >= l->sources.n_files) return false;
    const dt_dataset *d = l->sources.samples[k].dataset;
    *f = (dt_images_of_file){.path = d->path, .n = d->info.n_images};
    if (!d->info.has_images || !d->info.sealed || !d->column[DT_COL_PIXELS].has_checksum) return true;
    f->checksum = d->column[DT_COL_PIXELS].checksum;
    f->key = dt_mix64(f->checksum ^ dt_mix64((uint64_t)f->n ^ dt_mix64((uint64_t)d->info.images.size)));
    return true;
}

dt_err dt_loader_image(dt_loader *l, int64_t i, uint8_t *pixels)
{
    int k = 0;
    DT_CHECK(i >= 0 && i < dt_loader_n_images(l), DT_ERR_ARG,
             "internal: dt_loader_image: image %" PRId64 " is out of range", i);
    while (i >= l->sources.samples[k].dataset->info.n_images) i -= l->sources.samples[k++].dataset->info.n_images;
    return dt_dataset_read_images(l->sources.samples[k].dataset, i, 1, pixels);
}

dt_err dt_loader_grids(const dt_loader *l, uint32_t *grid)
{
    for (int i = 0; i < l->sources.n_files; i++) {
        dt_dataset *d = l->sources.samples[i].dataset;
        DT_TRY(dt_dataset_read_grids(d, 0, d->info.n_images, grid));
        grid += d->info.n_images;
    }
    return DT_OK;
}

void dt_loader_set_features(dt_loader *l, const dt_features *f, const dt_feature_slot *slots)
{
    const dt_feature_slot *at = l->slots;
    if (!at) return; /* no images */
    memcpy(l->slots, slots, slots_nbytes(l));
    for (int i = 0; i < l->sources.n_files; i++) {
        dt_dataset *d = l->sources.samples[i].dataset;
        d->features = f, d->feature_slots = at;
        at += d->info.n_images;
    }
    l->has_features = true;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

int64_t dt_loader_n_micro(const dt_loader *l, int64_t step) { return dt_order_n_micro(&l->order, step); }

dt_err dt_loader_step_counts(dt_loader *l, int64_t step, dt_step_counts *counts)
{
    int64_t epoch, first, count;
    DT_CHECK(step >= 0, DT_ERR_ARG, "internal: dt_loader_step_counts: step %" PRId64 " is negative", step);
    dt_order_step(&l->order, step, &epoch, &first, &count);
    __int128 weight_fixed = 0;
    *counts = (dt_step_counts){.n_samples = count};
    for (int64_t i = first; i < first + count; i++) {
        int64_t in_file;
        dt_sample_counts c = {0};
        const dt_samples *set = dt_sources_find(&l->sources, dt_order_sample(&l->order, epoch, i), &in_file);
        set->ops->counts(set, in_file, &c);
        counts->n_tok += c.n_tok;
        counts->n_target += c.n_target;
        counts->n_chosen += c.n_chosen;
        weight_fixed += c.weight_fixed;
    }
    counts->weight = (double)weight_fixed * 0x1p-20;
    return DT_OK;
}

static dt_err take(dt_loader *l, const dt_request *what, const dt_batch **b)
{
    DT_CHECK(what->step >= DT_EVALUATION && what->micro >= 0, DT_ERR_ARG,
             "internal: dt_loader_batch: step %" PRId64 " or micro-step %" PRId64 " is negative", what->step,
             what->micro);
    if (l->prefetch) return dt_prefetch_take(l->prefetch, what, b);
    *b = &l->batches[0];
    return make_batch(l, what, &l->batches[0]);
}

dt_err dt_loader_batch(dt_loader *l, int64_t step, int64_t micro, const dt_batch **b)
{
    return take(l, &(dt_request){step, micro, false}, b);
}

dt_err dt_loader_mismatched_batch(dt_loader *l, int64_t step, int64_t micro, const dt_batch **b)
{
    DT_EXPECT(l->opt.mismatched);
    return take(l, &(dt_request){step, micro, true}, b);
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

int64_t dt_loader_prompt_at(const dt_loader *l, int64_t i)
{
    return dt_order_sample(&l->order, i / l->order.n_eff, i % l->order.n_eff);
}

dt_err dt_loader_prompt(dt_loader *l, int64_t sample, int32_t max, int32_t *ids, int32_t *n)
{
    int64_t in_file, first, n_tok;
    const dt_samples *set = dt_sources_find(&l->sources, sample, &in_file);
    dt_dataset *d = set->dataset;
    *n = 0;
    DT_TRY(dt_fault("data.read"));
    DT_TRY(dt_dataset_document(d, in_file, &first, &n_tok));
    DT_TRY(dt_samples_cut_answer(d, in_file, first, &n_tok));
    const int64_t kept = dt_min_i64(n_tok, max);
    int64_t n_cut = 0;
    if (kept < n_tok) DT_TRY(dt_dataset_count_placeholders(d, DT_SIDE_FIRST, first, n_tok - kept, &n_cut));
    DT_CHECK(n_cut == 0, DT_ERR_DATA,
             "%s: prompt %" PRId64 ": an image is outside the last %" PRId32 " of its %" PRId64
             " tokens; dtrain-data --max-length drops such prompts",
             d->path, in_file, max, n_tok);
    *n = (int32_t)kept;
    return dt_dataset_read_tokens(d, first + n_tok - kept, kept, ids);
}

dt_err dt_loader_prompt_grids(dt_loader *l, int64_t sample, int32_t max, uint32_t *grid, int32_t *n)
{
    int64_t in_file, first, n_all;
    dt_dataset *d = dt_sources_find(&l->sources, sample, &in_file)->dataset;
    *n = 0;
    DT_TRY(dt_dataset_images_of(d, in_file, &first, &n_all));
    DT_CHECK(n_all <= max, DT_ERR_DATA, "%s: prompt %" PRId64 ": %" PRId64 " images exceed the capacity of %d", d->path,
             in_file, n_all, max);
    *n = (int32_t)n_all;
    return dt_dataset_read_grids(d, first, n_all, grid);
}

dt_err dt_loader_prompt_images(dt_loader *l, int64_t sample, int32_t from, int32_t n, uint8_t *to)
{
    int64_t in_file, first, n_all;
    dt_dataset *d = dt_sources_find(&l->sources, sample, &in_file)->dataset;
    DT_TRY(check_features(l));
    DT_TRY(dt_dataset_images_of(d, in_file, &first, &n_all));
    DT_EXPECT(from >= 0 && from + n <= n_all);
    return dt_dataset_read_for_batch(d, first + from, n, to, image_nbytes(l));
}

bool dt_loader_has_answers(const dt_loader *l)
{
    for (int i = 0; i < l->sources.n_files; i++)
        if (!l->sources.samples[i].dataset->info.has_answers) return false;
    return true;
}

dt_err dt_loader_answer(dt_loader *l, int64_t sample, int32_t max, int32_t *ids, int32_t *n)
{
    int64_t in_file, first, n_tok;
    dt_dataset *d = dt_sources_find(&l->sources, sample, &in_file)->dataset;
    *n = 0;
    DT_TRY(dt_dataset_part(d, DT_SIDE_SECOND, in_file, &first, &n_tok));
    *n = (int32_t)dt_min_i64(n_tok, max);
    return dt_dataset_read_side(d, DT_SIDE_SECOND, first, *n, ids);
}

dt_err dt_loader_record(dt_loader *l, int64_t sample, char **json)
{
    int64_t in_file;
    const dt_samples *set = dt_sources_find(&l->sources, sample, &in_file);
    if (set->dataset->info.kind != DT_DATASET_SFT) return dt_dataset_read_record(set->dataset, in_file, json);
    *json = strdup("{}");
    return *json ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for a record");
}
