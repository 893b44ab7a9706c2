/* export_model.c - all ranks write one directory, as checkpoint/save.c writes one file:
 *
 *     create   rank 0: the directory; every file reserved in full under its .part name, the small ones written
 *     write    every rank: its ranges of elements, with adapters merged, converted, by pwrite at the layout's offsets;
 *              then rank 0: the rows of new tokens
 *     sync     rank 0
 *     publish  rank 0: renames, the configuration last
 *
 * with a vote after each stage. Every rank computes the layout from the same names and shapes, so it is not exchanged.
 * A directory of adapters contains other tensors under other names. */
#include "dtrain/pretrained/export.h"
#include "export_config.h"
#include "merge.h"
#include "sentence_files.h"
#include "new_rows.h"
#include "tokenizer_files.h"
#include "dtrain/io/io.h"
#include "dtrain/io/json.h"
#include "dtrain/checkpoint/stored.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef char tensor_name[sizeof DT_PEFT_PREFIX + DT_PEFT_NAME_MAX];

typedef struct export_job {
    dt_comm *comm;
    dt_zero *z;
    const dt_export_options *opt;
    dt_phase *phase;
    dt_saved_model model; /* model of the slots */
    dt_stored_slot *slots;
    int64_t n_labels;   /* count_labels */
    int n_slots, head;  /* head: slot of a tied head; -1: none */
    tensor_name *names; /* [n_slots] in the files */
    dt_tensor *plain;   /* [n_slots] shapes */
    int *entry;         /* [n_slots] tensor of the layout: several slots may be in one (dt_fused) */
    float **new_row;    /* [n_slots] values of each new token's row in a vocabulary matrix; NULL for other slots */
    dt_st_layout layout;
    const dt_renaming *renamings; /* of tensors in the files; NULL: none */
    char *config;                 /* rank 0: text of the configuration */
    merge_delta delta;
    dt_chunks *chunks;
    char config_path[PATH_MAX], config_part[PATH_MAX];
    int fd, fd_file;        /* the file open for writing, and its index */
    bool made_dir, created; /* rank 0: to be undone after an error */
} export_job;

/* Is a tied head written in addition to the embedding? PEFT requires it if the embedding is trained. A merged model
 * needs it if adapters make the two differ. */
static bool writes_head(const export_job *j, const dt_tensor *embed)
{
    return j->opt->adapter ? dt_lora_trains(j->opt->adapter, embed) : j->opt->unties;
}

/* List the slots to export. The last one is a tied head, if it is written: the embedding again. */
static void choose_slots(export_job *j)
{
    int n = 0;
    const int32_t embed = dt_stored_tied_embedding(j->slots, j->n_slots);
    const dt_stored_slot head = embed >= 0 ? j->slots[embed] : (dt_stored_slot){0};
    for (int i = 0; i < j->n_slots; i++) {
        const dt_tensor *t = j->slots[i].tensor;
        const bool of_model = t->adapter_scale == 0 && t->part <= DT_CODES;
        if (j->opt->adapter ? dt_lora_trains(j->opt->adapter, t) : of_model) j->slots[n++] = j->slots[i];
    }
    j->n_slots = n;
    if (embed < 0 || !writes_head(j, head.tensor)) return;
    j->head = j->n_slots++; /* dt_stored_slots has room for one more */
    j->slots[j->head] = head;
}

/* The type of a slot in the files. */
static dt_st_type type_of(const export_job *j, const dt_stored_slot *s)
{
    return s->tensor->part == DT_EXACT ? DT_ST_F32 : j->opt->dtype;
}

/* The name in the model, without a prefix. */
static void model_name(const export_job *j, int i, char name[DT_NAME_MAX])
{
    if (i == j->head)
        dt_stored_name_head(j->slots[i].tensor, name);
    else
        snprintf(name, DT_NAME_MAX, "%s", j->slots[i].tensor->name);
}

/* Labels of a scalar head; DT_HIDDEN_STATES: no head; 0: vocabulary head. */
static int64_t count_labels(const export_job *j)
{
    for (int i = 0; i < j->n_slots; i++)
        if (strcmp(j->slots[i].tensor->name, DT_STORED_SCORE) == 0) return j->slots[i].tensor->shape[0];
    for (int i = 0; i < j->n_slots; i++)
        if (j->slots[i].unit->role == DT_UNIT_SCALAR_HEAD) return DT_HIDDEN_STATES;
    return 0;
}

static void name_slot(export_job *j, int i)
{
    char name[DT_NAME_MAX];
    dt_tensor named = *j->slots[i].tensor;
    model_name(j, i, name);
    snprintf(named.name, sizeof named.name, "%s", name);
    dt_rename(j->renamings, j->opt->adapter ? DT_PEFT_PREFIX : name, j->names[i], sizeof j->names[i]);
    if (!j->opt->adapter) return;
    char path[DT_PEFT_NAME_MAX];
    dt_peft_tensor_name(&named, path);
    snprintf(j->names[i] + strlen(DT_PEFT_PREFIX), sizeof j->names[i] - strlen(DT_PEFT_PREFIX), "%s",
             j->n_labels == DT_HIDDEN_STATES ? dt_peft_headless(path) : path);
}

static dt_err name_slots(export_job *j)
{
    j->names = calloc((size_t)j->n_slots + 1, sizeof *j->names);
    j->entry = calloc((size_t)j->n_slots + 1, sizeof *j->entry);
    j->plain = calloc((size_t)j->n_slots + 1, sizeof *j->plain);
    j->new_row = calloc((size_t)j->n_slots + 1, sizeof *j->new_row);
    DT_CHECK(j->names && j->entry && j->plain && j->new_row, DT_ERR_MEMORY, "out of memory for the names of %d tensors",
             j->n_slots);
    for (int i = 0; i < j->n_slots; i++) {
        (void)dt_stored_plain(&j->slots[i], &j->plain[i]);
        if (j->opt->adapter) j->plain[i] = dt_peft_shaped(&j->plain[i]);
        new_rows_grow(&j->plain[i], j->opt->new_tokens);
        name_slot(j, i);
    }
    return DT_OK;
}

static int64_t shard_size(const dt_export_options *opt)
{
    if (opt->adapter) return INT64_MAX; /* PEFT reads a single file */
    return opt->shard_size ? opt->shard_size : DT_ST_SHARD_SIZE;
}

static dt_err make_layout(export_job *j)
{
    dt_st_entry *entries = calloc((size_t)j->n_slots + 1, sizeof *entries);
    DT_CHECK(entries, DT_ERR_MEMORY, "out of memory for a list of %d tensors", j->n_slots);
    int n = 0;
    for (int i = 0; i < j->n_slots; i++) {
        const dt_tensor *t = &j->plain[i];
        const dt_fused *f = &t->fused;
        const bool fused = f->saved && !j->opt->adapter;
        j->entry[i] = fused && f->first > 0 ? n - 1 : n;
        if (j->entry[i] < n) continue;
        if (fused) dt_rename(j->renamings, dt_tensor_fused(t).name, j->names[i], sizeof j->names[i]);
        entries[n++] = (dt_st_entry){.name = j->names[i],
                                     .n_dims = fused ? f->n_dims : t->n_dims,
                                     .shape = fused ? f->shape : t->shape,
                                     .exact = t->part == DT_EXACT};
    }
    const dt_err err = dt_st_layout_make(&j->layout, j->opt->adapter ? "adapter_model" : "model", entries, n,
                                         j->opt->dtype, shard_size(j->opt));
    free(entries);
    return err;
}

/* Bytes from the start of the slot's file. */
static int64_t offset_of(const export_job *j, int i)
{
    const dt_fused *f = &j->plain[i].fused;
    return j->layout.offset[j->entry[i]] +
           (f->saved && !j->opt->adapter ? f->first : 0) * (int64_t)dt_st_type_size(j->opt->dtype);
}

/* Called by rank 0. */
static dt_err make_config(export_job *j)
{
    const dt_export_options *opt = j->opt;
    if (!opt->adapter) return export_config_make(opt, j->n_labels, &j->config);
    j->config = strdup(opt->model_config);
    return j->config ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory for %s", DT_PEFT_CONFIG);
}

/* A model with a tower of its own has other names in files. */
static dt_err find_renamings(export_job *j)
{
    json_t *root;
    DT_TRY(dt_json_parse(&root, "config.json", j->opt->model_config, strlen(j->opt->model_config), 0));
    const dt_tower *tower = dt_tower_of_model(json_string_value(json_object_get(root, "model_type")));
    if (tower) j->renamings = tower->names;
    json_decref(root);
    return DT_OK;
}

static dt_err prepare(export_job *j)
{
    const char *name = j->opt->adapter ? DT_PEFT_CONFIG : "config.json";
    const bool fits =
        dt_join_path(j->config_path, j->opt->dir, name, "") && dt_join_path(j->config_part, j->opt->dir, name, ".part");
    DT_CHECK(fits, DT_ERR_WRITE, "%s: the path is too long", j->opt->dir);
    j->model = (dt_saved_model){.zero = j->z};
    DT_TRY(dt_stored_slots(&j->model, 1, &j->slots, &j->n_slots));
    DT_TRY(merge_open(&j->delta, j->z));
    j->n_labels = count_labels(j);
    j->delta.subtracts = j->opt->subtracts;
    choose_slots(j);
    if (!j->opt->adapter) DT_TRY(find_renamings(j));
    DT_TRY(name_slots(j));
    DT_TRY(make_layout(j));
    DT_TRY(dt_chunks_take(&j->chunks, j->comm));
    return dt_comm_first(j->comm) ? make_config(j) : DT_OK;
}

/* ---- rank 0: create ---------------------------------------------------------------------------------------------- */

static dt_err create_files(export_job *j)
{
    const char *dir = j->opt->dir;
    j->made_dir = access(dir, F_OK) != 0;
    DT_TRY(dt_make_dirs(dir));
    j->created = true;
    DT_TRY(dt_write_file_sync(j->config_part, j->config, strlen(j->config))); /* first: locks out another process */
    tokenizer_files_discard(dir);                                             /* from an export that was killed */
    DT_TRY(dt_st_layout_create(&j->layout, dir));
    return tokenizer_files_create(j->opt, dir);
}

static dt_err create(export_job *j)
{
    if (dt_comm_first(j->comm)) DT_TRY(create_files(j));
    return dt_fault("export.create");
}

/* ---- every rank: write ------------------------------------------------------------------------------------------- */

static dt_err close_file(export_job *j)
{
    if (j->fd < 0) return DT_OK;
    const int fd = j->fd;
    const char *name = j->layout.names[j->fd_file];
    /* On one node rank 0 syncs for all ranks; across nodes each rank flushes its own cache. */
    const bool sync = dt_comm_nodes(j->comm) > 1;
    j->fd = -1;
    dt_err err = sync && fsync(fd) != 0
                     ? dt_fail(DT_ERR_WRITE, "%s/%s.part: sync failed: %s", j->opt->dir, name, strerror(errno))
                     : DT_OK;
    if (close(fd) != 0 && err == DT_OK)
        err = dt_fail(DT_ERR_WRITE, "%s/%s.part: close failed: %s", j->opt->dir, name, strerror(errno));
    return err;
}

static dt_err open_file(export_job *j, int file, char path[PATH_MAX])
{
    DT_CHECK(dt_join_path(path, j->opt->dir, j->layout.names[file], ".part"), DT_ERR_WRITE, "%s: the path is too long",
             j->opt->dir);
    if (j->fd >= 0 && j->fd_file == file) return DT_OK;
    DT_TRY(close_file(j));
    j->fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    j->fd_file = file;
    DT_CHECK_ERRNO(j->fd >= 0, DT_ERR_WRITE, path,
                   "cannot be opened by this rank; check that all nodes share the folder");
    return DT_OK;
}

/* Convert n stored weights, starting at `first`, to the type of the files. *out is `from`, raw or converted; the
 * contents of the latter two are lost. A finite value that exceeds the type's range is an error. */
static dt_err convert(export_job *j, const dt_stored_slot *s, const void *from, int64_t first, int64_t n,
                      const void **out)
{
    const merge_delta *d = &j->delta;
    dt_st_type kept = dt_st_type_of(dt_zero_state_dtype(j->z, s->state, s->slice));
    const dt_st_type type = type_of(j, s);
    char *to = j->chunks->converted;
    if (d->rank > 0 || d->scales) {
        if (d->scales)
            merge_codes(d, s->tensor, from, first, n, (float *)(void *)to);
        else
            dt_st_convert(from, kept, to, DT_ST_F32, n);
        if (d->rank > 0) DT_TRY(merge_add(d, s->tensor, first, n, (float *)(void *)to));
        from = to, to = j->chunks->raw, kept = DT_ST_F32;
    }
    const int64_t n_lost = kept == type ? 0 : dt_st_convert(from, kept, to, type, n);
    DT_CHECK(n_lost == 0, DT_ERR_DATA, "tensor `%s`: %" PRId64 " values exceed the range of %s; use another data type",
             s->tensor->name, n_lost, dt_st_type_name(type));
    *out = kept == type ? from : to;
    return DT_OK;
}

/* Write weights first .. first+n-1 of slot i at their file offset; transposed codes column by column. */
static dt_err put(export_job *j, const char *path, int i, const char *from, int64_t first, int64_t n)
{
    const dt_coded *c = &j->slots[i].tensor->coded;
    const int64_t n_out = c->n_out, n_in = c->n_in, at = offset_of(j, i);
    const size_t size = dt_st_type_size(type_of(j, &j->slots[i]));
    char *run = from == j->chunks->raw ? j->chunks->converted : j->chunks->raw;
    if (!c->turned) return dt_write_at(j->fd, path, at + first * (int64_t)size, from, (size_t)n * size);
    for (int64_t k = 0; k < n_in; k++) {
        const int64_t lo = (first - k + n_in - 1) / n_in, hi = (first + n - k + n_in - 1) / n_in;
        for (int64_t o = lo; o < hi; o++)
            memcpy(run + (size_t)(o - lo) * size, from + (size_t)(o * n_in + k - first) * size, size);
        if (lo < hi)
            DT_TRY(dt_write_at(j->fd, path, at + (k * n_out + lo) * (int64_t)size, run, (size_t)(hi - lo) * size));
    }
    return DT_OK;
}

/* Write this rank's range of a tensor. */
static dt_err write_slot(export_job *j, int i)
{
    const dt_stored_slot *s = &j->slots[i];
    const size_t kept_size = dt_st_type_size(dt_st_type_of(dt_zero_state_dtype(j->z, s->state, s->slice)));
    const int64_t per = dt_weights_per_elem(s->tensor), step = DT_STORED_BUFFER / 4 / per;
    const char *in_place = dt_zero_state_ptr(j->z, s->state, s->slice);
    char path[PATH_MAX];
    DT_TRY(open_file(j, j->layout.file[j->entry[i]], path));
    for (int64_t at = 0, n; at < s->slice->n; at += n) {
        const dt_tensor_run run = dt_tensor_run_of(s->held, s->slice->first + at, dt_min_i64(step, s->slice->n - at));
        const int64_t first = run.whole * per, n_weights = dt_min_i64(run.n * per, j->plain[i].n_elems - first);
        n = run.n;
        const void *from = in_place ? in_place + (size_t)at * kept_size : j->chunks->raw;
        DT_TRY(dt_phase_poll(j->phase));
        if (!in_place) DT_TRY(dt_zero_state_read(j->z, s->state, s->slice, at, n, j->chunks->raw));
        DT_TRY(convert(j, s, from, first, n_weights, &from));
        DT_TRY(put(j, path, i, from, first, n_weights));
    }
    return DT_OK;
}

/* Rows of an adapter of experts as PEFT stores them: this rank's share of the rows. */
static dt_err write_rows(export_job *j, int i, const float *whole, char *row, char *converted)
{
    const dt_tensor *t = j->slots[i].tensor;
    const int64_t E = t->adapter_experts, r = t->shape[1], n_out = t->shape[0] / E, n = r * E;
    const size_t size = dt_st_type_size(j->opt->dtype);
    const dt_axis *all = dt_comm_all(j->comm);
    float *x = (float *)(void *)row;
    char path[PATH_MAX];
    DT_TRY(open_file(j, j->layout.file[j->entry[i]], path));
    for (int64_t o = n_out * all->rank / all->size; o < n_out * (all->rank + 1) / all->size; o++) {
        for (int64_t k = 0; k < n; k++) x[k] = whole[(k % E * n_out + o) * r + k / E];
        DT_CHECK(dt_st_convert(x, DT_ST_F32, converted, j->opt->dtype, n) == 0, DT_ERR_DATA,
                 "tensor `%s`: values exceed the range of %s; use another data type", t->name,
                 dt_st_type_name(j->opt->dtype));
        DT_TRY(dt_write_at(j->fd, path, offset_of(j, i) + o * n * (int64_t)size, converted, (size_t)n * size));
    }
    return DT_OK;
}

/* Write the B of all experts, whose columns alternate. Collective; *agreed as in write_slots. */
static dt_err write_experts(export_job *j, int i, dt_err own, bool *agreed)
{
    const dt_tensor *t = j->slots[i].tensor;
    const size_t n = (size_t)(t->shape[1] * t->adapter_experts);
    float *whole = NULL;
    char *rows = calloc(2 * n + 1, sizeof(float));
    if (!rows && own == DT_OK) own = dt_fail(DT_ERR_MEMORY, "out of memory for a row of `%s`", t->name);
    dt_err err = merge_join(j->comm, j->z, j->slots[i].slice, own, &whole);
    *agreed = err != DT_OK;
    if (err == DT_OK) err = write_rows(j, i, whole, rows, rows + n * sizeof(float));
    free(rows);
    free(whole);
    return err;
}

/* Collective. *agreed: the error is known to all ranks, because a weight with an adapter votes. */
static dt_err write_slots(export_job *j, bool *agreed)
{
    dt_err err = DT_OK;
    for (int i = 0; i < j->n_slots && !*agreed; i++) {
        char name[DT_NAME_MAX];
        model_name(j, i, name);
        if (j->opt->adapter && dt_peft_alternates(j->slots[i].tensor)) {
            err = write_experts(j, i, err, agreed);
            continue;
        }
        if (!j->opt->adapter && merge_has(&j->delta, &j->slots[i], name)) {
            err = merge_gather(&j->delta, j->comm, &j->slots[i], name, err);
            *agreed = err != DT_OK;
        }
        if (err == DT_OK && j->slots[i].slice->n > 0) {
            dt_phase_enter(j->phase, "export", j->slots[i].tensor->name);
            if ((err = dt_fault("export.write")) == DT_OK) err = write_slot(j, i);
        }
        merge_free(&j->delta);
    }
    return err;
}

/* Agreed. */
static dt_err write_all(export_job *j)
{
    bool agreed = false;
    const dt_err err = write_slots(j, &agreed), closed = close_file(j);
    if (agreed) return err;
    return dt_comm_agree(j->comm, err != DT_OK ? err : closed);
}

/* ---- rows of new tokens ------------------------------------------------------------------------------------------ */

/* Collective, agreed: the mean needs the old rows of all ranks. */
static dt_err make_new_rows(export_job *j)
{
    dt_err err = DT_OK;
    const dt_new_tokens *more = j->opt->new_tokens;
    for (int i = 0; more && i < j->n_slots && err == DT_OK; i++)
        if (dt_model_is_vocabulary(j->slots[i].tensor) &&
            new_rows_first(j->slots[i].tensor->shape[0], more) < (int64_t)more->first_id + more->n_added)
            err = new_rows_mean(j->comm, &j->slots[i], j->opt->new_tokens, j->chunks, &j->new_row[i]);
    return err;
}

/* Compute row k of the new rows in slot i, in the file's type. Its noise depends on i and k only. */
static int64_t make_new_row(export_job *j, int i, int64_t k, int64_t len)
{
    float *row = (float *)(void *)j->chunks->raw;
    memset(row, 0, (size_t)len * sizeof *row);
    if (j->opt->new_rows_noise > 0)
        dt_rng_normal(dt_rng_key(0, DT_RNG_INIT), (uint64_t)i, k * len, len, (float)j->opt->new_rows_noise, row);
    for (int64_t c = 0; c < len; c++) row[c] += j->new_row[i][c];
    return dt_st_convert(row, DT_ST_F32, j->chunks->converted, j->opt->dtype, len);
}

/* Rank 0, after all old rows are written: some of those may lie beyond the tokenizer's ids. */
static dt_err write_new_rows(export_job *j)
{
    const size_t size = dt_st_type_size(j->opt->dtype);
    char path[PATH_MAX];
    for (int i = 0; i < j->n_slots && dt_comm_first(j->comm); i++) {
        const dt_new_tokens *more = j->opt->new_tokens;
        const int64_t len = j->plain[i].shape[1], first = new_rows_first(j->slots[i].tensor->shape[0], more);
        if (!j->new_row[i]) continue;
        DT_TRY(open_file(j, j->layout.file[j->entry[i]], path));
        for (int64_t k = 0; first + k < (int64_t)more->first_id + more->n_added; k++) {
            DT_CHECK(make_new_row(j, i, k, len) == 0, DT_ERR_DATA,
                     "tensor `%s`: a new row exceeds the range of %s; use another data type", j->names[i],
                     dt_st_type_name(j->opt->dtype));
            DT_TRY(dt_write_at(j->fd, path, offset_of(j, i) + (first + k) * len * (int64_t)size, j->chunks->converted,
                               (size_t)len * size));
        }
    }
    return close_file(j);
}

/* ---- rank 0: sync and publish ------------------------------------------------------------------------------------ */

static dt_err sync_files(export_job *j)
{
    dt_phase_enter(j->phase, "export", "sync");
    for (int f = 0; f < j->layout.n_files && dt_comm_first(j->comm); f++)
        DT_TRY(dt_st_layout_sync(&j->layout, j->opt->dir, f));
    return dt_fault("export.publish");
}

/* From the first removal to the last rename the directory has no configuration, so it is not taken for a model. */
static dt_err publish(export_job *j)
{
    if (!dt_comm_first(j->comm)) return DT_OK;
    DT_CHECK_ERRNO(unlink(j->config_path) == 0 || errno == ENOENT, DT_ERR_WRITE, j->config_path, "cannot be replaced");
    DT_TRY(dt_st_layout_publish(&j->layout, j->opt->dir));
    DT_TRY(tokenizer_files_publish(j->opt->dir));
    if (!j->opt->adapter) DT_TRY(sentence_files_write(j->opt->dir, j->opt->model_config));
    return dt_rename_durable(j->config_part, j->config_path);
}

static void clean_up(export_job *j, dt_err err)
{
    if (j->created && err != DT_OK) {
        dt_st_layout_discard(&j->layout, j->opt->dir);
        tokenizer_files_discard(j->opt->dir);
        dt_remove_part(j->config_part);
        if (j->made_dir) rmdir(j->opt->dir);
    }
    merge_close(&j->delta);
    dt_st_layout_free(&j->layout);
    free(j->slots);
    for (int i = 0; i < j->n_slots && j->new_row; i++) free(j->new_row[i]);
    free(j->new_row);
    free(j->names);
    free(j->entry);
    free(j->plain);
    free(j->config);
    dt_chunks_give_back(j->chunks, j->comm);
}

dt_err dt_export(dt_comm *comm, dt_zero *z, const dt_export_options *opt, dt_phase *phase)
{
    export_job job = {.comm = comm, .z = z, .opt = opt, .phase = phase, .fd = -1, .head = -1};
    dt_phase_enter(phase, "export", "create");
    dt_err err = dt_comm_agree(comm, prepare(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, create(&job));
    if (err == DT_OK) err = make_new_rows(&job);
    if (err == DT_OK) err = write_all(&job);
    if (err == DT_OK && opt->new_tokens) err = dt_comm_agree(comm, write_new_rows(&job));
    if (err == DT_OK) err = dt_comm_agree(comm, sync_files(&job));
    dt_phase_enter(phase, "export", "publish");
    if (err == DT_OK) err = dt_comm_agree(comm, publish(&job));
    clean_up(&job, err);
    return err;
}
