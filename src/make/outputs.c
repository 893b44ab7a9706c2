/* outputs.c - the kind is known at the first document; the files are created then. A hash of a document's
 * content selects the training or validation file. Repeating a run, or adding files, never moves a
 * document across the split, and duplicates stay together. */
#include "outputs.h"
#include "record_kinds.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */

dt_err dt_outputs_differ(const dt_make_options *opt)
{
    const char *const outputs[] = {opt->output, opt->validation, opt->rec.catalogue};
    const bool shards = opt->n_shards || opt->shard_nbytes;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < i; j++) {
            if (!outputs[i] || !outputs[j]) continue;
            DT_CHECK(!dt_is_same_place(outputs[i], outputs[j]), DT_ERR_USAGE,
                     "%s: output, validation and catalogue must be different files", outputs[i]);
            DT_CHECK(j > 0 || !shards || !dt_is_shard_of(outputs[i], outputs[j]), DT_ERR_USAGE,
                     "%s: this name matches the shards of the output %s; choose another name", outputs[i], outputs[j]);
        }
    return DT_OK;
}

static dt_err check_images(const dt_outputs *o, dt_dataset_kind kind)
{
    const char *with_images[DT_N_DATASET_KINDS];
    char names[128];
    int n = 0;
    for (int k = 0; k < DT_N_DATASET_KINDS; k++)
        if (dt_record_kind_of((dt_dataset_kind)k)->images) with_images[n++] = dt_dataset_kind_name((dt_dataset_kind)k);
    DT_CHECK(!o->recipe->images || dt_record_kind_of(kind)->images, DT_ERR_USAGE,
             "images need records of kinds %s, but these inputs give kind %s",
             dt_choices(names, sizeof names, with_images, n), dt_dataset_kind_name(kind));
    return DT_OK;
}

static dt_err begin(dt_outputs *o, dt_dataset_kind kind)
{
    const dt_make_options *opt = o->opt;
    const dt_tokenizer_info *t = dt_tokenizer_get_info(o->recipe->tokenizer);
    o->kind_known = true;
    o->stats->kind = kind;
    o->stats->lacking = dt_record_kind_of(kind)->lacking;
    const bool weights = opt->weight_key != NULL;
    DT_CHECK(!weights || dt_record_kind_of(kind)->weights, DT_ERR_USAGE,
             "a weight key needs datasets of kind sft, but these inputs give kind %s", dt_dataset_kind_name(kind));
    DT_CHECK(!opt->no_think || kind == DT_DATASET_PROMPTS, DT_ERR_USAGE,
             "--no-think needs datasets of kind prompts, but these inputs give kind %s", dt_dataset_kind_name(kind));
    const char *const path[DT_N_OUTPUTS] = {opt->output, opt->validation};
    const int n = opt->validation ? 2 : 1;
    for (int i = 0; i < n; i++) DT_TRY(dt_make_folder_of(path[i]));
    DT_TRY(dt_outputs_differ(opt));
    DT_TRY(check_images(o, kind));
    for (int i = 0; i < n; i++) {
        DT_TRY(dt_dataset_create(&o->file[i], path[i], kind, t->vocab_size, t->name, weights));
        dt_dataset_set_own(o->file[i], t->n_own);
        if (o->recipe->images) DT_TRY(dt_dataset_set_images(o->file[i], o->recipe->images));
    }
    return DT_OK;
}

/* Validation if hash / 2^64 is below its share. */
static dt_dataset_writer *choose(const dt_outputs *o, uint64_t hash)
{
    const bool held_out = (double)(hash >> 11) * 0x1p-53 < o->opt->validation_fraction;
    return o->file[o->file[DT_VALIDATION] && held_out ? DT_VALIDATION : DT_TRAIN];
}

static void count(dt_outputs *o, const dt_dataset_writer *to, int64_t n_tokens)
{
    const bool held_out = to == o->file[DT_VALIDATION];
    *(held_out ? &o->stats->n_validation_tokens : &o->stats->n_tokens) += n_tokens;
    *(held_out ? &o->stats->n_validation_documents : &o->stats->n_documents) += 1;
}

/* ---- plain text -------------------------------------------------------------------------------------------------- */

static dt_err add(dt_outputs *o, const int32_t *ids, int64_t n)
{
    if (n <= 0) return DT_OK;
    if (!dt_record_kind_of(o->stats->kind)->mask) return dt_dataset_add(o->to, ids, NULL, n);
    if ((size_t)n > o->mask_alloc) {
        DT_RESIZE(o->mask, n, "out of memory for the mask of %" PRId64 " tokens", n);
        memset(o->mask, 1, (size_t)n);
        o->mask_alloc = (size_t)n;
    }
    o->mask[0] = o->document_len > 0; /* token 0 is never a target */
    const dt_err err = dt_dataset_add(o->to, ids, o->mask, n);
    o->mask[0] = 1;
    return err;
}

/* Add ids of a document that keeps its start: written directly, up to the limit. */
static dt_err add_start(dt_outputs *o, const int32_t *ids, int64_t n)
{
    const int64_t most = o->recipe->max_length > 0 ? o->recipe->max_length : INT64_MAX, room = most - o->document_len;
    DT_TRY(add(o, ids, n < room ? n : room));
    o->document_len += n;
    return DT_OK;
}

/* Add ids of a document that keeps its end, or may be dropped: buffered until it ends, at most twice the limit. */
static dt_err hold(dt_outputs *o, const int32_t *ids, int64_t n)
{
    const size_t most = (size_t)o->recipe->max_length;
    for (int64_t done = 0; done < n;) {
        const size_t k = (size_t)(n - done) < most ? (size_t)(n - done) : most;
        if (o->held.n + k > 2 * most) {
            memmove(o->held.id, o->held.id + o->held.n - most, most * sizeof *ids);
            o->held.n = most;
        }
        DT_TRY(dt_ids_reserve(&o->held, k));
        memcpy(o->held.id + o->held.n, ids + done, k * sizeof *ids);
        o->held.n += k;
        done += (int64_t)k;
    }
    o->document_len += n;
    return DT_OK;
}

/* End a buffered document: write its last max_length ids, or nothing if longer documents are dropped. */
static dt_err end_held(dt_outputs *o, bool drops, bool *kept)
{
    const int64_t len = o->document_len, most = o->recipe->max_length;
    *kept = !(drops && len > most);
    if (!*kept) return DT_OK;
    const size_t n = o->held.n < (size_t)most ? o->held.n : (size_t)most;
    o->document_len = 0; /* for add, which expects the number of ids written */
    const dt_err err = add(o, o->held.id + o->held.n - n, (int64_t)n);
    o->document_len = len;
    return err;
}

/* End a document of plain text: end of text, buffered ids, counts. take: the function that added its ids. */
static dt_err end_text(dt_outputs *o, bool holds, bool drops, dt_err (*take)(dt_outputs *, const int32_t *, int64_t))
{
    const int64_t most = o->recipe->max_length;
    const int32_t eos = dt_tokenizer_get_info(o->recipe->tokenizer)->eos;
    bool kept = true;
    if (o->recipe->append_eos && eos >= 0) DT_TRY(take(o, &eos, 1));
    if (holds) DT_TRY(end_held(o, drops, &kept));
    const bool cut = most > 0 && o->document_len > most;
    *(kept ? &o->stats->n_truncated : &o->stats->n_too_long) += cut;
    dt_dataset_writer *to = o->to;
    o->to = NULL;
    if (!kept) return DT_OK;
    DT_TRY(dt_dataset_end_document(to, 1));
    count(o, to, cut ? most : o->document_len);
    return DT_OK;
}

/* The first piece decides which file the document goes to. */
static dt_err write_text(dt_outputs *o, const dt_sample *s, const int32_t *ids)
{
    const dt_truncate how = dt_truncate_of(o->recipe, s->kind);
    const bool holds = o->recipe->max_length > 0 && how != DT_TRUNCATE_START;
    dt_err (*take)(dt_outputs *, const int32_t *, int64_t) = holds ? hold : add_start;
    if (s->item->begins) {
        o->to = choose(o, s->hash);
        o->document_len = 0;
        o->held.n = 0;
    }
    DT_TRY(take(o, ids, (int64_t)s->n[0]));
    return s->item->ends ? end_text(o, holds, how == DT_TRUNCATE_DROP, take) : DT_OK;
}

/* The data of a sample in the arrays of its chunk. */
typedef struct sample_data {
    const int32_t *ids[DT_N_SIDES];
    const uint8_t *mask;
    const char *record;
    const uint8_t *pixels;
    const uint32_t *grid;
} sample_data;

/* ---- records ----------------------------------------------------------------------------------------------------- */

static void count_pair(dt_pair_count *c, const dt_chunk_item *item)
{
    if (c->n++ == 0) snprintf(c->first, sizeof c->first, "%s:%" PRId64, item->path, item->line);
}

/* Ties are exempt from both checks. */
static void count_pairs(dt_make_stats *stats, const dt_sample *s)
{
    if (!dt_record_kind_of(s->kind)->answers || !s->has_second || s->pair.tie) return;
    stats->n_pairs++;
    if (s->pair.equal) count_pair(&stats->equal, s->item);
    if (s->pair.contradicted) count_pair(&stats->contradicted, s->item);
}

static void count_dropped(dt_make_stats *stats, const dt_chunk_item *item)
{
    if (stats->n_dropped++ == 0)
        snprintf(stats->first_dropped, sizeof stats->first_dropped, "%s:%" PRId64, item->path, item->line);
}

static dt_err write_record(dt_outputs *o, const dt_sample *s, const sample_data *of)
{
    const uint8_t *mask = of->mask;
    const dt_record_kind *kind = dt_record_kind_of(s->kind);
    if (s->too_long) return o->stats->n_too_long++, DT_OK;
    if (kind->is_empty && kind->is_empty(s, mask)) return count_dropped(o->stats, s->item), DT_OK;
    o->stats->n_truncated += s->truncated;
    o->stats->n_parted += s->parted;
    count_pairs(o->stats, s);
    dt_dataset_writer *to = choose(o, s->hash);
    DT_TRY(dt_dataset_add(to, of->ids[0], kind->mask ? mask : NULL, (int64_t)s->n[0]));
    if (s->has_second) DT_TRY(dt_dataset_add_side(to, DT_SIDE_SECOND, of->ids[1], (int64_t)s->n[1]));
    if (s->n_record) DT_TRY(dt_dataset_add_record(to, of->record, s->n_record));
    DT_TRY(dt_dataset_add_images(to, of->pixels, of->grid, s->n_images));
    o->stats->n_images += s->n_whole_images;
    DT_TRY(kind->answers ? dt_dataset_end_pair(to, &s->pair) : dt_dataset_end_document(to, s->weight));
    count(o, to, (int64_t)(s->n[0] + s->n[1]));
    return DT_OK;
}

static dt_err bad(dt_outputs *o, const dt_chunk_item *item, const char *reason, size_t n_named)
{
    if (item->line == 0) return dt_fail(DT_ERR_DATA, "%s: %s", item->path, reason);
    if (!o->opt->skip_bad)
        return dt_fail(DT_ERR_DATA, "%s:%" PRId64 ": %s%s", item->path, item->line, reason,
                       n_named ? " (--skip-bad drops records whose images are missing or damaged)" : "");
    dt_problems_add(o->stats, item, reason, n_named);
    return DT_OK;
}

/* A ranking has several samples but counts as one record. first: this is its first sample. */
static dt_err mixed(dt_outputs *o, const dt_sample *s, bool first)
{
    char reason[300];
    if (!first) return DT_OK;
    const bool texts = dt_record_is_text(s->kind) && dt_record_is_text(o->stats->kind);
    snprintf(reason, sizeof reason, "%s is of kind %s, but the first document was of kind %s%s",
             s->text ? "plain text" : "the record", dt_dataset_kind_name(s->kind), dt_dataset_kind_name(o->stats->kind),
             texts ? ": --kind tokens or --kind sft converts both" : "; check the names of its fields, or set --kind");
    return bad(o, s->item, reason, 0);
}

/* Store the template's name at the first conversation. Files without conversations name no template. */
static dt_err name_template(dt_outputs *o)
{
    char *spec;
    o->template_named = true;
    DT_INFO("chat template: %s", dt_chat_source(o->recipe->rules.chat));
    dt_chat_warn(o->recipe->rules.chat);
    DT_TRY(dt_chat_spec(o->recipe->rules.chat, &spec));
    dt_err err = DT_OK;
    for (int i = 0; i < DT_N_OUTPUTS && err == DT_OK; i++)
        if (o->file[i]) err = dt_dataset_set_template(o->file[i], spec);
    free(spec);
    return err;
}

static dt_err write_sample(dt_outputs *o, const dt_sample *s, bool first, const sample_data *of)
{
    if (s->problem) return bad(o, s->item, s->problem, s->n_named);
    if (!o->kind_known) DT_TRY(begin(o, s->kind));
    if (s->kind != o->stats->kind) return mixed(o, s, first);
    if (s->is_chat && !o->template_named) DT_TRY(name_template(o));
    return s->text ? write_text(o, s, of->ids[0]) : write_record(o, s, of);
}

dt_err dt_outputs_write(dt_outputs *o, const dt_chunk *p)
{
    sample_data of = {{p->ids[0].id, p->ids[1].id},
                      p->mask[0],
                      p->records.bytes,
                      (const uint8_t *)p->pixels.bytes,
                      (const uint32_t *)(const void *)p->grids.bytes};
    for (int i = 0; i < p->n_samples; i++) {
        const dt_sample *s = &p->samples[i];
        const bool first = i == 0 || s[-1].item != s->item; /* first sample of its record */
        DT_TRY(write_sample(o, s, first, &of));
        for (int side = 0; side < DT_N_SIDES; side++)
            if (of.ids[side]) of.ids[side] += s->n[side];
        if (of.mask) of.mask += s->n[0];
        if (of.record) of.record += s->n_record;
        if (s->n_images) of.pixels += (size_t)s->n_images * dt_image_form_nbytes(o->recipe->images);
        if (s->n_images && of.grid) of.grid += s->n_images;
    }
    dt_add_ignored(&o->stats->ignored, &p->ignored);
    o->stats->nbytes_read = p->nbytes_read;
    return p->err == DT_OK ? DT_OK : dt_fail(p->err, "%s", p->message);
}

/* ---- commit ------------------------------------------------------------------------------------------------------ */

static dt_err check_result(const dt_outputs *o)
{
    const dt_make_stats *s = o->stats;
    char short_enough[128] = " is short enough";
    if (o->recipe->images && !o->recipe->images->grids)
        snprintf(short_enough, sizeof short_enough,
                 " is short enough: each image takes %" PRId64 " tokens of --max-length for its placeholders",
                 o->recipe->images->n_tokens);
    const int64_t n = s->n_documents + s->n_validation_documents;
    const dt_record_kind *kind = dt_record_kind_of(s->kind);
    DT_CHECK(n > 0 || s->n_dropped == 0 || s->n_too_long > 0, DT_ERR_DATA,
             "%s: none of the %" PRId64 " record%s has %s%s", s->first_dropped, s->n_dropped, dt_plural(s->n_dropped),
             kind->missing, kind->advice);
    DT_CHECK(n > 0, DT_ERR_DATA, "%s%s: no document in the inputs%s", o->opt->inputs[0],
             o->opt->n_inputs > 1 ? " ..." : "",
             s->n_too_long ? short_enough
             : s->n_bad    ? " is well formed"
                           : "");
    DT_CHECK(s->equal.n == 0 || s->equal.n < s->n_pairs, DT_ERR_DATA,
             "%s: every pair has equal answers (%" PRId64 "), so there is no training signal: expected two different "
             "answers in chosen and rejected, or a longer --max-length",
             o->opt->inputs[0], s->n_pairs);
    DT_CHECK(s->n_documents > 0 && (s->n_validation_documents > 0 || !o->opt->validation), DT_ERR_DATA,
             "every document (%" PRId64 ") is in the %s file: a fraction of %g needs more documents (plain text can be "
             "split: --documents paragraphs or lines)",
             n, s->n_documents > 0 ? "training" : "validation", o->opt->validation_fraction);
    return DT_OK;
}

dt_err dt_outputs_commit(dt_outputs *o)
{
    DT_TRY(check_result(o));
    dt_commit how[DT_N_OUTPUTS];
    for (int i = 0; i < DT_N_OUTPUTS; i++)
        how[i] = (dt_commit){
            .keep_existing = !o->opt->force, .inputs = o->inputs, .n_inputs = o->n_inputs, .stop = o->opt->stop};
    how[0].n_shards = o->opt->n_shards, how[0].shard_nbytes = o->opt->shard_nbytes;
    const dt_err err = dt_datasets_commit(o->file, how, o->opt->validation ? 2 : 1);
    o->file[DT_TRAIN] = o->file[DT_VALIDATION] = NULL; /* the commit has freed them */
    o->stats->n_shards = (int)how[0].n_files;
    return err;
}

void dt_outputs_free(dt_outputs *o)
{
    for (int i = 0; i < DT_N_OUTPUTS; i++) dt_dataset_discard(o->file[i]);
    free(o->held.id);
    free(o->mask);
}
