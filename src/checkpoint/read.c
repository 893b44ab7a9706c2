/* read.c - read a checkpoint file. All contents are untrusted and are validated before use. */
#include "file.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Path of a slot's array in the file; tensor: its name there. */
static void name_in_file(const dt_stored_slot *s, const char *tensor, char *out, size_t out_size)
{
    const char *slash = s->of->name ? "/" : "", *of = s->of->name ? s->of->name : "";
    if (s->state_name)
        snprintf(out, out_size, "%s%s/optimizer/%s/%s", slash, of, s->state_name, tensor);
    else
        snprintf(out, out_size, "%s%s/model/%s", slash, of, tensor);
}

void ckpt_slot_name(const dt_stored_slot *s, char *out, size_t out_size)
{
    name_in_file(s, s->tensor->name, out, out_size);
}

hid_t ckpt_slot_open(hid_t file, const dt_stored_slot *s, char *name, size_t name_size)
{
    const char *bare_name = dt_stored_bare_name(s->tensor->name);
    ckpt_slot_name(s, name, name_size);
    hid_t dset = dt_h5_open_array(file, name);
    if (dset >= 0 || !bare_name) return dset;
    char bare[256];
    name_in_file(s, bare_name, bare, sizeof bare);
    dset = dt_h5_open_array(file, bare);
    if (dset >= 0) snprintf(name, name_size, "%s", bare);
    return dset;
}

dt_st_type ckpt_type_of(dt_h5_type t)
{
    return t == DT_H5_F32    ? DT_ST_F32
           : t == DT_H5_F16  ? DT_ST_F16
           : t == DT_H5_BF16 ? DT_ST_BF16
           : t == DT_H5_I8   ? DT_ST_I8
           : t == DT_H5_U8   ? DT_ST_U8
                             : DT_ST_OTHER;
}

static dt_err check_format(hid_t file, const char *path)
{
    char *format = NULL;
    int64_t version = 0;
    DT_TRY(dt_h5_read_text(file, path, "format", &format));
    const bool ours = strcmp(format, "dtrain-checkpoint") == 0;
    dt_err err = DT_OK;
    if (!ours)
        err = dt_fail(DT_ERR_DATA, "%s: attribute `format`: expected dtrain-checkpoint, found %.60s", path, format);
    free(format);
    DT_TRY(err);
    DT_TRY(dt_h5_read_i64(file, path, "version", &version));
    DT_CHECK(version <= CKPT_VERSION, DT_ERR_DATA,
             "%s: expected a version of at most %d, found version %" PRId64 "; use a later dtrain", path,
             (int)CKPT_VERSION, version);
    DT_CHECK(version >= 1, DT_ERR_DATA, "%s: attribute `version`: expected 1 or more, found %" PRId64, path, version);
    return DT_OK;
}

dt_err ckpt_file_open(const char *path, hid_t *file)
{
    DT_TRY(dt_h5_open(path, file, NULL));
    const dt_err err = check_format(*file, path);
    if (err == DT_OK) return DT_OK;
    H5Fclose(*file);
    *file = -1;
    return err;
}

static dt_err open_locked(const char *path, hid_t *file)
{
    dt_h5_lock();
    return ckpt_file_open(path, file);
}

static void close_locked(hid_t file)
{
    if (file >= 0) H5Fclose(file);
    dt_h5_unlock();
}

/* ---- root -------------------------------------------------------------------------------------------------------- */

uint64_t ckpt_sum_texts(const char *config, const char *model_config, const char *base)
{
    const int64_t n = (int64_t)strlen(config), n_model = (int64_t)strlen(model_config), n_base = (int64_t)strlen(base);
    return dt_checksum(config, 0, n, 1) + dt_checksum(model_config, n, n_model, 1) +
           dt_checksum(base, n + n_model, n_base, 1);
}

static dt_err check_texts(hid_t file, const char *path, const dt_ckpt_meta *m, const char *base)
{
    uint64_t expected;
    if (!dt_h5_has(file, "checksum")) return DT_OK; /* written by another program */
    DT_TRY(dt_h5_read_u64(file, path, "checksum", &expected));
    const uint64_t found = ckpt_sum_texts(m->config, m->model_config, base);
    DT_CHECK(found == expected, DT_ERR_DATA,
             "%s: attributes `config` and `model_config`%s were altered: checksum %016" PRIx64 ", expected %016" PRIx64,
             path, *base ? ", or `base`," : "", found, expected);
    return DT_OK;
}

/* Read a text that may be missing. */
static dt_err read_text_or(hid_t file, const char *path, const char *name, const char *missing, char **text)
{
    if (dt_h5_has(file, name)) return dt_h5_read_text(file, path, name, text);
    return dt_copy_text(text, missing, "%s: out of memory for attribute `%s`", path, name);
}

/* Read which tensors the file omits. text: malloc'ed, "" if none. */
static dt_err read_base(hid_t file, const char *path, dt_base *base, char **text)
{
    DT_TRY(read_text_or(file, path, "base", "", text));
    return **text ? ckpt_base_parse(path, *text, base) : DT_OK;
}

/* group: the root, or that of a model. Files without the optimizer's name predate the choice of optimizers. updates:
 * default, the number of steps that changed the weights. */
static dt_err read_states(hid_t group, const char *path, int64_t updates, dt_ckpt_states *s)
{
    s->updates = updates;
    if (dt_h5_has(group, "state_updates")) DT_TRY(dt_h5_read_i64(group, path, "state_updates", &s->updates));
    DT_TRY(read_text_or(group, path, "optimizer", "adamw", &s->optimizer));
    DT_TRY(read_text_or(group, path, "optimizer_states", "exp_avg, exp_avg_sq", &s->names));
    DT_TRY(read_text_or(group, path, "state_dtype", "fp32", &s->dtype));
    DT_CHECK(s->updates >= 0 && s->updates <= updates, DT_ERR_DATA,
             "%s: attribute `state_updates`: expected 0 to %" PRId64 ", found %" PRId64, path, updates, s->updates);
    return DT_OK;
}

/* Read the state of a dynamic loss scale. If the file lacks it, the scale starts anew. */
static dt_err read_loss_scale(hid_t file, const char *path, dt_ckpt_meta *m)
{
    if (!dt_h5_has(file, "loss_scale_overflows_left")) return DT_OK;
    DT_TRY(dt_h5_read_i64(file, path, "loss_scale_iter", &m->scale.iter));
    DT_TRY(dt_h5_read_i64(file, path, "loss_scale_last_overflow", &m->scale.last));
    DT_TRY(dt_h5_read_i64(file, path, "loss_scale_overflows_left", &m->scale.overflows_left));
    const bool is_state = m->scale.overflows_left > 0 && m->scale.last >= -1 && m->scale.last < m->scale.iter + 1 &&
                          m->scale.iter >= 0 && m->scale.iter <= m->step && m->scale.scale > 0 &&
                          isfinite(m->scale.scale);
    DT_CHECK(is_state || m->scale.overflows_left == 0, DT_ERR_DATA,
             "%s: attributes `loss_scale`, `loss_scale_iter`, `loss_scale_last_overflow`: %g, %" PRId64 " and %" PRId64
             " are not a valid loss scale state at step %" PRId64,
             path, dt_unsigned_nan(m->scale.scale), m->scale.iter, m->scale.last, m->step);
    return DT_OK;
}

static bool is_fraction(double x) { return x >= 0 && x <= 1; }

static dt_err read_schedule(hid_t file, const char *path, dt_ckpt_meta *m)
{
    dt_schedule_span *s = &m->schedule;
    m->lr = -1;
    if (dt_h5_has(file, "lr")) DT_TRY(dt_h5_read_f64(file, path, "lr", &m->lr));
    if (dt_h5_has(file, "schedule_total")) DT_TRY(dt_h5_read_i64(file, path, "schedule_total", &s->total));
    s->extended = dt_h5_has(file, "schedule_start");
    if (s->extended) {
        DT_TRY(dt_h5_read_i64(file, path, "schedule_start", &s->start));
        DT_TRY(dt_h5_read_i64(file, path, "schedule_warmup", &s->warmup));
        DT_TRY(dt_h5_read_f64(file, path, "schedule_from", &s->from));
        DT_TRY(dt_h5_read_f64(file, path, "schedule_top", &s->top));
    }
    DT_CHECK(s->total >= 0 && s->start >= 0 && s->start <= s->total && s->warmup >= 0 && is_fraction(s->from) &&
                 is_fraction(s->top),
             DT_ERR_DATA,
             "%s: attributes `schedule_*`: total %" PRId64 ", start %" PRId64 ", warmup %" PRId64
             ", from %g and top %g are not a valid schedule",
             path, s->total, s->start, s->warmup, s->from, s->top);
    return DT_OK;
}

/* Attributes that older files and other programs' files may lack. */
static dt_err read_optional(hid_t file, const char *path, dt_ckpt_meta *m)
{
    int64_t due = 0;
    m->updates = m->step; /* true unless steps were skipped */
    if (dt_h5_has(file, "updates")) DT_TRY(dt_h5_read_i64(file, path, "updates", &m->updates));
    DT_TRY(read_schedule(file, path, m));
    DT_TRY(read_states(file, path, m->updates, &m->states));
    DT_TRY(read_loss_scale(file, path, m));
    if (dt_h5_has(file, "data_fingerprint"))
        DT_TRY(dt_h5_read_u64(file, path, "data_fingerprint", &m->data_fingerprint));
    if (dt_h5_has(file, "validation_due")) DT_TRY(dt_h5_read_i64(file, path, "validation_due", &due));
    if (dt_h5_has(file, "best_step")) DT_TRY(dt_h5_read_i64(file, path, "best_step", &m->best_step));
    if (dt_h5_has(file, "best_metric")) DT_TRY(dt_h5_read_f64(file, path, "best_metric", &m->best_metric));
    if (dt_h5_has(file, "not_better")) DT_TRY(dt_h5_read_i64(file, path, "not_better", &m->n_not_better));
    m->validation_due = due != 0;
    DT_CHECK(m->best_step >= 0 && m->best_step <= m->step && m->n_not_better >= 0, DT_ERR_DATA,
             "%s: attributes `best_step`, `not_better`: expected 0 to %" PRId64 ", and 0 or more, found %" PRId64
             " and %" PRId64,
             path, m->step, m->best_step, m->n_not_better);
    return DT_OK;
}

static dt_err read_meta(hid_t file, const char *path, dt_ckpt_meta *m)
{
    DT_TRY(dt_h5_read_i64(file, path, "step", &m->step));
    DT_TRY(dt_h5_read_i64(file, path, "samples", &m->samples));
    DT_TRY(dt_h5_read_i64(file, path, "tokens", &m->tokens));
    DT_TRY(dt_h5_read_u64(file, path, "seed", &m->seed));
    DT_TRY(dt_h5_read_f64(file, path, "loss_scale", &m->scale.scale));
    DT_TRY(dt_h5_read_text(file, path, "config", &m->config));
    DT_TRY(dt_h5_read_text(file, path, "model_config", &m->model_config));
    DT_TRY(read_optional(file, path, m));
    DT_CHECK(m->step >= 0 && m->samples >= 0 && m->tokens >= 0 && m->updates >= 0, DT_ERR_DATA,
             "%s: attributes `step`, `samples`, `tokens`, `updates`: expected 0 or more, found %" PRId64 ", %" PRId64
             ", %" PRId64 ", %" PRId64,
             path, m->step, m->samples, m->tokens, m->updates);
    char *base = NULL;
    dt_err err = read_base(file, path, &m->base, &base);
    if (err == DT_OK) err = check_texts(file, path, m, base);
    free(base);
    return err;
}

dt_err dt_checkpoint_read_meta(const char *path, dt_ckpt_meta *meta)
{
    hid_t file;
    *meta = (dt_ckpt_meta){0};
    dt_err err = open_locked(path, &file);
    if (err == DT_OK) err = read_meta(file, path, meta);
    if (err == DT_OK) err = ckpt_read_task_arrays(file, path, &meta->items);
    close_locked(file);
    if (err != DT_OK) dt_ckpt_meta_free(meta);
    return err;
}

static dt_err read_states_of(hid_t file, const char *path, const char *name, dt_ckpt_states *s)
{
    int64_t updates = 0;
    DT_TRY(dt_h5_read_i64(file, path, dt_h5_has(file, "updates") ? "updates" : "step", &updates));
    const bool there = H5Lexists(file, name, H5P_DEFAULT) > 0;
    const hid_t group = there ? H5Gopen2(file, name, H5P_DEFAULT) : -1;
    DT_CHECK(group >= 0, DT_ERR_DATA, "%s: expected the group /%s of the second trained model, found none", path, name);
    const dt_err err = read_states(group, path, updates, s);
    H5Gclose(group);
    return err;
}

dt_err dt_checkpoint_read_states(const char *path, const char *name, dt_ckpt_states *states)
{
    hid_t file;
    *states = (dt_ckpt_states){0};
    dt_err err = open_locked(path, &file);
    if (err == DT_OK) err = read_states_of(file, path, name, states);
    close_locked(file);
    if (err != DT_OK) dt_ckpt_states_free(states);
    return err;
}

void dt_ckpt_states_free(dt_ckpt_states *s)
{
    free(s->optimizer);
    free(s->names);
    free(s->dtype);
    *s = (dt_ckpt_states){0};
}

void dt_ckpt_meta_free(dt_ckpt_meta *m)
{
    dt_named_arrays_free(&m->items);
    dt_ckpt_states_free(&m->states);
    dt_base_free(&m->base);
    free(m->config);
    free(m->model_config);
    m->config = m->model_config = NULL;
}

bool dt_checkpoint_fits_type(const dt_ckpt_states *s, dt_dtype state_dtype)
{
    const char *int8 = dt_dtype_name(DT_I8);
    return (strcmp(s->dtype, int8) == 0) == (state_dtype == DT_I8);
}

bool dt_checkpoint_has_states(const dt_ckpt_states *s, const dt_optimizer_ops *o)
{
    int n = *s->names != '\0';
    for (const char *at = s->names; (at = strchr(at, ',')); at++) n++;
    for (int k = 0; k < o->n_states; k++)
        if (!dt_has_word(s->names, o->state_names[k])) return false;
    return n == o->n_states; /* with further states, as Muon's, some tensors lack others */
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Check the shape, and the type: a slot's codes have one type, floats may have any. */
static dt_err check_tensor(const char *path, const char *name, const dt_stored_slot *slot, const dt_h5_array *a)
{
    const dt_tensor *t = slot->tensor;
    const bool of_state = slot->state != DT_STATE_PARAM && ckpt_slot_dtype(slot) == DT_U8;
    const bool codes = t->part == DT_CODES || t->part == DT_BLOCKS || of_state,
               is_int8 = codes && !of_state && t->coded.type == DT_I8;
    const dt_st_type type = ckpt_type_of(a->type), want = is_int8 ? DT_ST_I8 : DT_ST_U8;
    DT_TRY(dt_stored_check_shape(path, name, t, a->n_dims, a->shape));
    DT_CHECK(codes ? type == want : type >= DT_ST_F32 && type <= DT_ST_BF16, DT_ERR_DATA,
             "%s: tensor `%s`: expected %s, found %s", path, name,
             !codes    ? "fp32, fp16 or bf16 (uint16 with the attribute dtype = \"bf16\")"
             : is_int8 ? "int8"
                       : "uint8",
             dt_h5_type_name(a->type));
    return DT_OK;
}

dt_err dt_checkpoint_n_labels(const char *path, int64_t *n)
{
    static const char name[] = "/model/" DT_STORED_SCORE;
    hid_t file;
    dt_h5_array a;
    dt_err err = open_locked(path, &file);
    *n = 0;
    const hid_t dset = err == DT_OK ? dt_h5_open_array(file, name) : -1;
    if (dset >= 0) err = dt_h5_inspect(dset, path, name, &a);
    if (dset >= 0 && err == DT_OK) *n = (int64_t)a.shape[0];
    if (dset >= 0) H5Dclose(dset);
    close_locked(file);
    return err;
}

/* ---- tensors of a file ------------------------------------------------------------------------------------------- */

/* An array of a model: /[OF/]model/TENSOR or /[OF/]optimizer/STATE/TENSOR. */
typedef struct stored_array {
    char *name;
    char of[64]; /* "": the main model */
    bool is_state, is_used;
    const char *tensor;
    dt_h5_array a;
} stored_array;

typedef struct locate_job {
    const char *path;
    const dt_stored_slot *slots;
    int n_slots;
    dt_stored_map *map;
    stored_array *arrays; /* [n_arrays] of the file, sorted by name */
    int n_arrays;
    dt_base base;   /* omitted tensors */
    int n_left_out; /* slots to take from the base */
    int n_absent;   /* states missing in the file */
    int n_without;  /* tensors without a checksum */
} locate_job;

static bool begins(const char *text, const char *head, const char **rest)
{
    const size_t n = strlen(head);
    *rest = text + n;
    return strncmp(text, head, n) == 0;
}

/* Parse the array's name. Returns false if it belongs to no model. */
static bool read_name(stored_array *to)
{
    const char *name = to->name + 1, *slash = strchr(name, '/'), *rest = name;
    if (slash && !begins(name, "model/", &rest) && !begins(name, "optimizer/", &rest)) {
        snprintf(to->of, sizeof to->of, "%.*s", (int)(slash - name), name);
        name = slash + 1;
    }
    to->is_state = begins(name, "optimizer/", &rest);
    if (!to->is_state && !begins(name, "model/", &rest)) return false;
    to->tensor = to->is_state ? strrchr(name, '/') + 1 : rest;
    return true;
}

static dt_err list_array(hid_t dset, const char *name, void *ctx)
{
    locate_job *job = ctx;
    DT_GROW(job->arrays, job->n_arrays, "%s: out of memory for a list of its arrays", job->path);
    stored_array *to = &job->arrays[job->n_arrays];
    *to = (stored_array){0};
    DT_CHECK(asprintf(&to->name, "/%s", name) >= 0, DT_ERR_MEMORY, "%s: out of memory for a list of its arrays",
             job->path);
    if (!read_name(to)) return free(to->name), DT_OK;
    job->n_arrays++;
    return dt_h5_inspect(dset, job->path, to->name, &to->a);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const stored_array *)a)->name, ((const stored_array *)b)->name);
}

static dt_err list_arrays(hid_t file, locate_job *job)
{
    DT_TRY(dt_h5_each_array(file, job->path, list_array, job));
    if (job->n_arrays > 0) qsort(job->arrays, (size_t)job->n_arrays, sizeof *job->arrays, by_name);
    return DT_OK;
}

/* The array of a slot, under its tensor's name or under GPT-2's without "transformer."; NULL: none. */
static stored_array *find_array(const locate_job *job, const dt_stored_slot *s)
{
    const char *const names[] = {s->tensor->name, dt_stored_bare_name(s->tensor->name)};
    stored_array *found = NULL;
    for (int i = 0; i < 2 && names[i] && !found && job->n_arrays > 0; i++) {
        char name[256];
        name_in_file(s, names[i], name, sizeof name);
        found = bsearch(&(stored_array){.name = name}, job->arrays, (size_t)job->n_arrays, sizeof *found, by_name);
    }
    return found;
}

static bool has_score(const locate_job *job)
{
    const dt_tensor score = {.name = DT_STORED_SCORE};
    return find_array(job, &(dt_stored_slot){.of = &(dt_saved_model){0}, .tensor = &score});
}

/* Validate a slot's array and set its location. */
static dt_err take_array(locate_job *job, const dt_stored_slot *s, stored_array *found, dt_stored_location *location)
{
    char name[256];
    if (!found) {
        ckpt_slot_name(s, name, sizeof name);
        return dt_fail(DT_ERR_DATA, "%s: tensor `%s` is missing or cannot be opened%s", job->path, name,
                       dt_stored_head_hint(s->tensor->name, has_score(job)));
    }
    DT_TRY(check_tensor(job->path, found->name, s, &found->a));
    found->is_used = true;
    *location = (dt_stored_location){.offset = found->a.offset,
                                     .checksum = found->a.checksum,
                                     .type = (int32_t)ckpt_type_of(found->a.type),
                                     .has_checksum = found->a.has_checksum};
    return DT_OK;
}

/* Codes, blocks and scales: the file may hold the plain weight instead. */
static dt_err locate_slot(locate_job *job, const dt_stored_slot *slot, dt_stored_location *location)
{
    dt_tensor tensor;
    const dt_stored_slot plain = dt_stored_plain(slot, &tensor);
    stored_array *found = slot->tensor->part >= DT_CODES ? find_array(job, &plain) : NULL;
    const bool quantise = found && found->a.type != DT_H5_I8 && found->a.type != DT_H5_U8;
    DT_TRY(quantise ? take_array(job, &plain, found, location)
                    : take_array(job, slot, find_array(job, slot), location));
    location->quantise = quantise;
    return DT_OK;
}

/* Handle a slot that is not in the file: it is in the base, it keeps its value, or its state is absent. Returns false
 * if it should be in the file. */
static bool accept_missing(locate_job *job, const dt_stored_slot *s, dt_stored_location *at)
{
    const bool is_param = s->state == DT_STATE_PARAM,
               left_out = is_param && !s->of->name && ckpt_base_of(&job->base, s);
    if (is_param && !left_out && !dt_stored_may_stay(s)) return false;
    *at = (dt_stored_location){.offset = -1,
                               .absent = !is_param,
                               .kept = is_param && !left_out,
                               .left_out = left_out,
                               .elsewhere = left_out && s->of->has_base};
    job->n_absent += at->absent;
    job->n_left_out += left_out && !at->elsewhere;
    return true;
}

static dt_err locate_slots(locate_job *job)
{
    for (int i = 0; i < job->n_slots; i++) {
        dt_stored_location *at = &job->map->locations[i];
        if (!find_array(job, &job->slots[i]) && accept_missing(job, &job->slots[i], at)) continue;
        DT_TRY(locate_slot(job, &job->slots[i], at));
        job->n_without += !at->has_checksum;
    }
    return DT_OK;
}

static dt_err locate_head(locate_job *job, stored_array *found)
{
    const int embed = job->map->embed;
    dt_tensor head = *job->slots[embed].tensor;
    dt_stored_name_head(job->slots[embed].tensor, head.name);
    job->map->has_head = true;
    return take_array(job, &(dt_stored_slot){.of = job->slots[embed].of, .tensor = &head}, found, &job->map->head);
}

/* Is a model of this name requested? Arrays of others are accepted. */
static bool is_asked_for(const locate_job *job, const char *of)
{
    bool is = !*of;
    for (int i = 0; i < job->n_slots && !is; i++) is = job->slots[i].of->name && !strcmp(job->slots[i].of->name, of);
    return is;
}

/* A parameter that no slot has: a head that is tied to the embedding, or an ignored buffer of older versions. */
static dt_err check_others(locate_job *job)
{
    for (int i = 0; i < job->n_arrays; i++) {
        stored_array *x = &job->arrays[i];
        const bool is_main = !*x->of;
        if (x->is_used || x->is_state || dt_stored_is_ignored(x->tensor) || !is_asked_for(job, x->of)) continue;
        if (is_main && job->map->embed >= 0 && strcmp(dt_stored_of_language(x->tensor), DT_STORED_HEAD) == 0)
            DT_TRY(locate_head(job, x));
        else
            DT_CHECK(is_main && dt_stored_is_replaced(job->slots, job->n_slots, x->tensor), DT_ERR_DATA,
                     "%s: tensor `%s`: this model has no such tensor%s", job->path, x->name,
                     dt_stored_head_hint(x->tensor, strcmp(x->tensor, DT_STORED_SCORE) == 0));
    }
    return DT_OK;
}

static bool is_located_state(const locate_job *job, int i)
{
    return job->slots[i].state != DT_STATE_PARAM && !job->map->locations[i].absent;
}

static dt_err fail_absent(const locate_job *job, int i)
{
    char name[256];
    ckpt_slot_name(&job->slots[i], name, sizeof name);
    return dt_fail(DT_ERR_DATA, "%s: tensor `%s` is missing or cannot be opened", job->path, name);
}

/* Whether the file has any state of the slot's tensor, also one that this run does not use. */
static bool has_state(const locate_job *job, const dt_stored_slot *slot)
{
    const char *of = slot->of->name ? slot->of->name : "", *bare = dt_stored_bare_name(slot->tensor->name);
    for (int i = 0; i < job->n_arrays; i++) {
        const stored_array *x = &job->arrays[i];
        if (x->is_state && strcmp(x->of, of) == 0 &&
            (strcmp(x->tensor, slot->tensor->name) == 0 || (bare && strcmp(x->tensor, bare) == 0)))
            return true;
    }
    return false;
}

/* States may be absent only for tensors that were frozen in the run that wrote the file: the file has no other state of
 * the tensor, but has states of its model. */
static dt_err check_absent(const locate_job *job)
{
    const dt_stored_slot *slots = job->slots;
    const dt_saved_model *with_states = NULL;
    const int n = job->n_absent > 0 ? job->n_slots : 0;
    for (int i = 0; i < n; i++) {
        if (!job->map->locations[i].absent) continue;
        if (has_state(job, &slots[i])) return fail_absent(job, i);
        for (int k = 0; k < n && with_states != slots[i].of; k++)
            if (is_located_state(job, k) && slots[k].of == slots[i].of) with_states = slots[i].of;
        if (with_states != slots[i].of) return fail_absent(job, i);
    }
    if (n > 0)
        DT_WARN("%s lacks %d optimizer states of tensors that were frozen; they start at zero", job->path,
                job->n_absent);
    return DT_OK;
}

dt_err ckpt_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map, int depth)
{
    hid_t file;
    char *base = NULL;
    locate_job job = {.path = path, .slots = slots, .n_slots = n_slots, .map = map};
    map->embed = dt_stored_tied_embedding(slots, n_slots);
    DT_TRY(dt_stored_add_file(map, path));
    dt_err err = open_locked(path, &file);
    if (err == DT_OK) err = read_base(file, path, &job.base, &base);
    if (err == DT_OK) err = list_arrays(file, &job);
    close_locked(file);
    if (err == DT_OK) err = locate_slots(&job);
    if (err == DT_OK) err = check_others(&job);
    if (err == DT_OK) err = check_absent(&job);
    if (err == DT_OK && job.n_left_out) err = ckpt_locate_left_out(path, &job.base, slots, n_slots, map, depth);
    if (err == DT_OK && job.n_without)
        DT_WARN("%s: %d of %d tensors have no checksum, so corruption of them cannot be detected", path, job.n_without,
                n_slots);
    for (int i = 0; i < job.n_arrays; i++) free(job.arrays[i].name);
    free(job.arrays);
    dt_base_free(&job.base);
    free(base);
    return err;
}

dt_err dt_checkpoint_locate(const char *path, const dt_stored_slot *slots, int n_slots, dt_stored_map *map)
{
    return ckpt_locate(path, slots, n_slots, map, 0);
}

/* ---- verification of all checksums ------------------------------------------------------------------------------- */

typedef struct verify_job {
    const char *path;
    FILE *out;
    int64_t n_bad, n_without;
    char first_bad[256];
} verify_job;

/* Compare the checksum of one array with its attribute. Continues after a mismatch, to count all of them. */
static dt_err verify_array(hid_t dset, const char *name, void *ctx)
{
    verify_job *job = ctx;
    dt_h5_array a;
    uint64_t sum = 0;
    char shape[256];
    DT_TRY(dt_h5_inspect(dset, job->path, name, &a));
    DT_TRY(dt_h5_checksum(dset, job->path, name, &a, &sum));
    const bool bad = a.has_checksum && sum != a.checksum;
    if (bad && job->n_bad++ == 0) snprintf(job->first_bad, sizeof job->first_bad, "%s", name);
    if (!a.has_checksum) job->n_without++;
    if (job->out)
        fprintf(job->out, "%-8s %016" PRIx64 "  %s %s %s\n",
                bad              ? "ALTERED"
                : a.has_checksum ? "ok"
                                 : "no sum",
                sum, name, dt_stored_shape_text(a.n_dims, a.shape, shape, sizeof shape), dt_h5_type_name(a.type));
    return DT_OK;
}

dt_err dt_checkpoint_verify(const char *path, FILE *out)
{
    verify_job job = {.path = path, .out = out};
    dt_ckpt_meta meta;
    hid_t file;
    DT_TRY(dt_checkpoint_read_meta(path, &meta));
    dt_ckpt_meta_free(&meta);
    dt_err err = open_locked(path, &file);
    if (err == DT_OK) err = dt_h5_each_array(file, path, verify_array, &job);
    close_locked(file);
    DT_TRY(err);
    DT_CHECK(job.n_bad == 0, DT_ERR_DATA,
             "%s: tensor `%s` was altered: its checksum does not match (%" PRId64 " such tensors)", path, job.first_bad,
             job.n_bad);
    if (job.n_without) DT_WARN("%s: %" PRId64 " tensors have no checksum and cannot be verified", path, job.n_without);
    return DT_OK;
}
