/* sources.c - samples are numbered across all files, in the given order. Each file is packed separately, so no row
 * spans two files. */
#include "sources.h"
#include "kinds/kinds.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Split "PATH:NUMBER": cut the number off item. *weight is 0 if there is none. */
static dt_err split_weight(char *item, const char *where, double *weight)
{
    *weight = 0;
    char *colon = strrchr(item, ':'), *end = NULL;
    if (!colon || colon == item || !strchr("+-.0123456789", colon[1]) || !colon[1]) return DT_OK;
    const double w = strtod(colon + 1, &end);
    if (*end) return DT_OK; /* a colon in the file name */
    DT_CHECK(isfinite(w) && w > 0, DT_ERR_USAGE, "%s: weight of %.*s: expected a number above 0, found %s", where,
             (int)(colon - item), item, colon + 1);
    *colon = '\0';
    *weight = w;
    return DT_OK;
}

/* Choose the layout of a file by `packing`; "auto" is wrapped for tokens and none for sft. */
static dt_err choose_samples_ops(const dt_dataset *d, const dt_loader_options *opt, const dt_samples_ops **ops,
                                 dt_samples_options *lo)
{
    const char *name = opt->packing ? opt->packing : "auto";
    const bool sft = d->info.kind == DT_DATASET_SFT, automatic = strcmp(name, "auto") == 0;
    *lo = (dt_samples_options){.seq_len = opt->seq_len,
                               .document_mask = opt->document_mask,
                               .truncate = opt->truncate,
                               .no_ties = opt->no_ties,
                               .prompt_targets = opt->prompt_targets};
    if (opt->kind == DT_DATASET_PROMPTS) {
        *ops = &dt_samples_prompts;
    } else if (d->kind->samples) {
        DT_CHECK(automatic || strcmp(name, "none") == 0 || !d->kind->samples->fill, DT_ERR_USAGE,
                 "%s: packing = %s: %s cannot be packed (they need no padding): expected auto or none", opt->where,
                 name, d->kind->n_sequences > 1 ? "pairs" : "answers");
        *ops = d->kind->samples;
    } else {
        const dt_packing *p = dt_packing_find(!automatic ? name : sft ? "none" : "wrapped");
        DT_CHECK(p, DT_ERR_USAGE, "%s: packing: expected auto, none, wrapped, bfd or bfd_split, found %s", opt->where,
                 name);
        DT_CHECK(sft ? p->of_sft : p->of_tokens, DT_ERR_USAGE,
                 "%s: packing = %s needs datasets of kind %s, but %s has kind %s: expected auto, %s", opt->where, name,
                 sft ? "tokens" : "sft", d->path, sft ? "sft" : "tokens",
                 sft ? "none or bfd" : "wrapped, bfd or bfd_split");
        *ops = p->ops;
        lo->split = p->split;
    }
    DT_CHECK(*ops == &dt_samples_records || *ops == &dt_samples_prompts || d->kind->samples ||
                 d->info.n_documents >= 0 || (*ops == &dt_samples_wrapped && !opt->document_mask),
             DT_ERR_DATA, "%s: %s needs document offsets, but the dataset offsets is missing", d->path,
             *ops == &dt_samples_wrapped ? "document_mask = true" : "packing by document");
    return DT_OK;
}

static dt_err grow(dt_sources *s)
{
    DT_GROW(s->samples, s->n_files, "out of memory for %d dataset files", s->n_files + 1);
    DT_RESIZE(s->file_first, s->n_files + 2, "out of memory for %d dataset files", s->n_files + 1);
    return DT_OK;
}

/* Both preprocessor texts must be non-NULL. */
static dt_err check_preprocessors(const dt_dataset_info *one, const dt_dataset_info *other)
{
    dt_preprocessor p;
    DT_TRY(dt_image_form_preprocessor(&one->images, one->path, &p));
    const dt_err err = dt_image_form_check(&other->images, other->path, &p, one->path,
                                           "the same preprocessor, because all files of a run must agree");
    dt_preprocessor_free(&p);
    return err;
}

/* One vision tower processes the images of all files. Files without images are allowed among them. */
static dt_err check_images_alike(const dt_dataset_info *one, const dt_dataset_info *other)
{
    const dt_image_form *a = &one->images, *b = &other->images;
    DT_CHECK(a->grids == b->grids, DT_ERR_DATA,
             "%s: found images of %s: expected %s as in %s, because all files of a run must agree", other->path,
             b->grids ? "different sizes" : "one size", a->grids ? "different sizes" : "one size", one->path);
    DT_CHECK(a->size == b->size && a->token == b->token && a->n_tokens == b->n_tokens, DT_ERR_DATA,
             "%s: found images of %" PRId64 " pixels per side, %" PRId64
             " placeholders each and placeholder id %" PRId32 ": expected %" PRId64 ", %" PRId64 " and %" PRId32
             " as in %s, because all files of a run must agree",
             other->path, b->size, b->n_tokens, b->token, a->size, a->n_tokens, a->token, one->path);
    return *a->preprocessor && *b->preprocessor && strcmp(a->preprocessor, b->preprocessor) != 0
               ? check_preprocessors(one, other)
               : DT_OK;
}

static dt_err check_file(const dt_sources *s, const dt_dataset *d, const dt_loader_options *opt)
{
    DT_CHECK(opt->vocab_size <= 0 || d->info.vocab_size <= opt->vocab_size, DT_ERR_DATA,
             "%s: vocab_size: the dataset was created with %" PRId64 ", but the model has %" PRId64
             ", without rows for the last tokens of that tokenizer; recreate the dataset with the model's own "
             "tokenizer, or add rows to the model (dtrain-convert --add-tokens)",
             d->path, d->info.vocab_size, opt->vocab_size);
    const dt_kind *wanted = dt_kind_of(opt->kind);
    const bool record = opt->records && d->info.kind == DT_DATASET_SFT;
    DT_CHECK(d->kind == wanted || record || (!d->kind->samples && !wanted->samples), DT_ERR_DATA,
             "%s: kind %s: expected %s for this task%s%s%s", d->path, d->kind->name, wanted->wanted,
             opt->task ? " (" : "", opt->task ? opt->task : "", opt->task ? ")" : "");
    if (d->info.has_images && s->with_images) DT_TRY(check_images_alike(s->with_images, &d->info));
    if (s->n_files == 0) return DT_OK;
    const dt_dataset_info *other = &s->samples[0].dataset->info;
    DT_CHECK(other->kind == d->info.kind, DT_ERR_DATA,
             "%s: kind: found %s, but %s has %s: all files of a run must have the same kind", d->path,
             dt_dataset_kind_name(d->info.kind), other->path, dt_dataset_kind_name(other->kind));
    return DT_OK;
}

/* Warn of targets that truncation loses. Silent while planning, which opens files repeatedly. */
static void warn_of_cut(const dt_samples *set, const dt_loader_options *opt)
{
    const dt_cut_counts *c = &set->cut;
    if (c->n_lost == 0 || opt->rank > 0 || opt->planning) return;
    DT_WARN("%s: data.seq_len = %" PRId64 " truncates %" PRId64 " of its %" PRId64 " sample%s, which loses %" PRId64
            " of their %" PRId64 " targets",
            set->dataset->path, opt->seq_len, c->n, set->dataset->info.n_documents,
            dt_plural(set->dataset->info.n_documents), c->n_lost, c->n_target);
}

/* Warn once for all files of the list. */
static void warn_of_unverified(const dt_sources *s, const dt_loader_options *opt)
{
    const char *first = NULL;
    int n = 0;
    for (int i = 0; i < s->n_files; i++)
        if (!s->samples[i].dataset->info.has_block_checksums) {
            if (n++ == 0) first = s->samples[i].dataset->path;
        }
    if (n == 0 || opt->verified || opt->rank > 0 || opt->planning) return;
    DT_WARN("%s%s: block checksums are missing (earlier versions and other programs do not write them), so damaged "
            "data would go unnoticed; recreate the dataset with dtrain-data, or set data.verify = true",
            first, n > 1 ? " and others" : "");
}

static dt_err add_opened(dt_sources *s, dt_dataset *d, const dt_loader_options *opt)
{
    const dt_samples_ops *ops = NULL;
    dt_samples_options lo;
    uint64_t hash;
    dt_dataset_set_vocabulary(d, dt_max_i64(0, opt->vocab_size));
    d->prompt_targets = opt->prompt_targets;
    DT_TRY(check_file(s, d, opt));
    DT_TRY(choose_samples_ops(d, opt, &ops, &lo));
    DT_TRY(dt_dataset_fingerprint(d, &hash));
    if (d->kind->check_signal) DT_TRY(d->kind->check_signal(d, opt->rank > 0 || opt->planning));
    DT_TRY(grow(s));
    dt_samples *set = &s->samples[s->n_files];
    DT_TRY(dt_samples_open(set, ops, d, &lo, opt->ledger));
    warn_of_cut(set, opt);
    s->n_files++; /* now the sources own set and d */
    s->n_samples += set->n_samples;
    s->info.n_tokens += d->info.n_tokens;
    s->info.n_dropped += set->n_dropped;
    s->info.n_too_long += set->n_too_long;
    s->info.n_ties += set->n_ties;
    s->info.n_flagged += set->n_flagged;
    s->info.has_margins |= d->info.has_margins;
    s->info.has_safety |= d->info.has_safety;
    if (ops == &dt_samples_packed) s->info.n_packed += d->info.n_documents - set->n_dropped - set->n_too_long;
    if (d->info.has_images && !s->with_images) s->with_images = &d->info;
    if (set->max_images > s->max_images) s->max_images = set->max_images;
    s->info.longest_tail = dt_max_i64(s->info.longest_tail, set->max_tail);
    if (set->max_tok > s->max_tok) s->max_tok = set->max_tok;
    if (set->max_seq > s->max_seq) s->max_seq = set->max_seq;
    s->fingerprint = dt_mix64(s->fingerprint ^ hash);
    s->file_first[s->n_files] = s->n_samples;
    return DT_OK;
}

static dt_err add_file(dt_sources *s, const char *path, const dt_loader_options *opt)
{
    dt_dataset *d;
    DT_TRY(dt_dataset_open(&d, path));
    const int before = s->n_files;
    const dt_err err = add_opened(s, d, opt);
    if (s->n_files == before) dt_dataset_close(d);
    return err;
}

/* Report why no sample with answers of an item can be used for training. before: the counts without this item. */
static dt_err no_answer(const char *item, const dt_sources *s, const dt_sources *before, const dt_loader_options *opt)
{
    const int64_t n_ties = s->info.n_ties - before->info.n_ties,
                  n_too_long = s->info.n_too_long - before->info.n_too_long,
                  n_empty = s->info.n_dropped - before->info.n_dropped;
    const char *what = dt_kind_of(opt->kind)->n_sequences > 1 ? "pair" : "answer";
    const int64_t n_all = n_ties + n_too_long + n_empty;
    char why[256] = "";
    int n = 0;
    DT_CHECK(n_all > 0, DT_ERR_DATA, "%s: expected %ss, found none", item, what);
    if (n_ties) n = snprintf(why, sizeof why, "; %" PRId64 " with a tie, which this task does not use", n_ties);
    if (n_too_long)
        n += snprintf(why + n, sizeof why - (size_t)n, "; %" PRId64 " with a text of more than %" PRId64 " tokens",
                      n_too_long, opt->seq_len);
    if (n_empty)
        n += snprintf(why + n, sizeof why - (size_t)n,
                      "; %" PRId64 " without an answer token within the first %" PRId64 " tokens", n_empty,
                      opt->seq_len);
    if (n_too_long || n_empty)
        snprintf(why + n, sizeof why - (size_t)n, "; a larger data.seq_len (or rm.max_length) keeps more");
    return dt_fail(DT_ERR_DATA, "%s: none of its %" PRId64 " %s%s can be used for training%s", item, n_all, what,
                   dt_plural(n_all), why);
}

/* Is paths[i] the index of a Megatron dataset that an earlier path names by its tokens? */
static bool is_named_already(char *const *paths, int i)
{
    const size_t n = strlen(paths[i]);
    if (!dt_has_ending(paths[i], ".idx")) return false;
    for (int k = 0; k < i; k++)
        if (dt_has_ending(paths[k], ".bin") && strlen(paths[k]) == n && !strncmp(paths[k], paths[i], n - 4))
            return true;
    return false;
}

/* Add one item of the list with its weight: all files that match its glob, sorted by name. */
static dt_err add_entry(dt_sources *s, char *item, const dt_loader_options *opt)
{
    double w;
    DT_TRY(split_weight(item, opt->where, &w));
    s->weight[s->n_entries] = w > 0 ? w : 1;
    s->weighted |= w > 0;

    char **paths;
    int n_paths;
    const dt_sources before = *s;
    dt_err err = dt_glob(item, &paths, &n_paths);
    if (err == DT_ERR_DATA && access(item, F_OK) != 0)
        return dt_error_replace(err, "%s; make datasets with dtrain-data", dt_error_message());
    DT_TRY(err);
    for (int i = 0; i < n_paths && err == DT_OK; i++) {
        dt_phase_enter(opt->phase, "open", "data");
        err = dt_phase_poll(opt->phase);
        if (err == DT_OK && !is_named_already(paths, i)) err = add_file(s, paths[i], opt);
    }
    dt_list_free(paths, n_paths);
    DT_TRY(err);
    const bool any = s->n_samples > s->entry_first[s->n_entries];
    if (!any && dt_kind_of(opt->kind)->answers) return no_answer(item, s, &before, opt);
    DT_CHECK(any || !s->info.n_too_long, DT_ERR_DATA,
             "%s: no sample has its images within the first data.seq_len = %" PRId64
             " tokens; raise data.seq_len (dtrain-data info FILE shows the lengths of its samples)",
             item, opt->seq_len);
    DT_CHECK(any || !s->info.n_dropped, DT_ERR_DATA,
             "%s: no sample has a target within the first data.seq_len = %" PRId64 " tokens", item, opt->seq_len);
    DT_CHECK(any || opt->kind != DT_DATASET_PROMPTS, DT_ERR_DATA, "%s: the dataset has no prompts", item);
    DT_CHECK(any, DT_ERR_DATA, "%s: no sample has the minimum of %" PRId64 " tokens", item, opt->seq_len + 1);
    s->entry_first[++s->n_entries] = s->n_samples;
    return DT_OK;
}

static dt_err open_items(dt_sources *s, char **items, int n, const dt_loader_options *opt)
{
    DT_CHECK(n > 0, DT_ERR_USAGE, "%s: expected dataset files, found none", opt->where);
    DT_ALLOC(s->weight, n, "out of memory for %d dataset files", n);
    DT_ALLOC(s->entry_first, n + 1, "out of memory for %d dataset files", n);
    DT_TRY(grow(s));
    s->file_first[0] = 0;
    dt_mistakes mistakes = {0};
    for (int i = 0; i < n; i++) dt_mistakes_add(&mistakes, add_entry(s, items[i], opt));
    return dt_mistakes_end(&mistakes);
}

/* Share of flagged samples, by the weights of the entries. A file without samples adds nothing to any entry. */
static double flagged_share(const dt_sources *s)
{
    double flagged = 0, all = 0;
    for (int e = 0, file = 0; e < s->n_entries; e++) {
        const int64_t end = s->entry_first[e + 1], n = end - s->entry_first[e];
        const double per_sample = s->weighted ? s->weight[e] / (double)n : 1;
        for (; file < s->n_files && s->file_first[file] < end; file++)
            flagged += per_sample * (double)s->samples[file].n_flagged;
        all += per_sample * (double)n;
    }
    return flagged / all;
}

dt_err dt_sources_open(dt_sources *s, const dt_loader_options *opt)
{
    *s = (dt_sources){0};
    char **items = NULL;
    int n = 0;
    DT_TRY(dt_config_split(opt->files ? opt->files : "", &items, &n));
    const dt_err err = open_items(s, items, n, opt);
    dt_list_free(items, n);
    if (err == DT_OK) {
        warn_of_unverified(s, opt);
        s->info.flagged_share = flagged_share(s);
    } else {
        dt_sources_close(s);
    }
    return err;
}

typedef dt_err visit_dataset(void *arg, dt_dataset *d);

static dt_err visit_item(char *item, visit_dataset *visit, void *arg)
{
    char **paths = NULL;
    int n = 0;
    double weight;
    dt_err err = split_weight(item, "", &weight);
    if (err == DT_OK) err = dt_glob(item, &paths, &n);
    for (int i = 0; i < n && err == DT_OK; i++) {
        dt_dataset *d;
        if (is_named_already(paths, i)) continue;
        err = dt_dataset_open(&d, paths[i]);
        if (err == DT_OK) err = visit(arg, d);
        dt_dataset_close(d);
    }
    dt_list_free(paths, n);
    return err;
}

/* Call visit for each file of a list, until it returns an error. */
static dt_err visit_files(const char *files, visit_dataset *visit, void *arg)
{
    char **items = NULL;
    int n = 0;
    dt_err err = dt_config_split(files, &items, &n);
    for (int i = 0; i < n && err == DT_OK; i++) err = visit_item(items[i], visit, arg);
    dt_list_free(items, n);
    return err;
}

static dt_err note_images(void *shows, dt_dataset *d)
{
    *(bool *)shows |= d->info.has_images;
    return DT_OK;
}

bool dt_data_show_images(const char *files)
{
    bool shows = false;
    if (visit_files(files, note_images, &shows) != DT_OK) dt_error_clear();
    return shows;
}

static dt_err note_kind(void *kind, dt_dataset *d)
{
    if (*(dt_dataset_kind *)kind == DT_N_DATASET_KINDS) *(dt_dataset_kind *)kind = d->info.kind;
    return DT_OK;
}

dt_dataset_kind dt_data_kind(const char *files)
{
    dt_dataset_kind kind = DT_N_DATASET_KINDS;
    if (visit_files(files, note_kind, &kind) != DT_OK) dt_error_clear();
    return kind;
}

typedef struct records_visit {
    dt_sample_record_fn *visit;
    void *arg;
} records_visit;

static dt_err visit_records(void *arg, dt_dataset *d)
{
    const records_visit *v = arg;
    dt_err err = DT_OK;
    for (int64_t i = 0; i < d->info.n_documents && d->info.has_records && err == DT_OK; i++) {
        char *text;
        DT_TRY(dt_dataset_read_record(d, i, &text));
        err = v->visit(v->arg, text);
        free(text);
        err = dt_error_prefix(err, "%s: sample %" PRId64 ": ", d->path, i);
    }
    return err;
}

dt_err dt_data_records(const char *files, dt_sample_record_fn *visit, void *arg)
{
    return visit_files(files, visit_records, &(records_visit){visit, arg});
}

void dt_sources_close(dt_sources *s)
{
    for (int i = 0; i < s->n_files; i++) {
        dt_dataset *d = s->samples[i].dataset;
        dt_samples_close(&s->samples[i]);
        dt_dataset_close(d);
    }
    free(s->samples);
    free(s->file_first);
    free(s->entry_first);
    free(s->weight);
    *s = (dt_sources){0};
}

const dt_samples *dt_sources_find(const dt_sources *s, int64_t i, int64_t *in_file)
{
    /* last file with file_first <= i; an empty file has the same file_first as the next */
    int lo = 0, hi = s->n_files - 1;
    while (lo < hi) {
        const int mid = lo + (hi - lo + 1) / 2;
        if (s->file_first[mid] <= i)
            lo = mid;
        else
            hi = mid - 1;
    }
    *in_file = i - s->file_first[lo];
    return &s->samples[lo];
}
