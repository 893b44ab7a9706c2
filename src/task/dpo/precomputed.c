/* precomputed.c - a plain file with a text header, followed by floats. Every rank writes the samples that it has scored
 * at their offsets, and reads those that its micro-batches need. */
#include "precomputed.h"
#include "../reference.h"
#include "dtrain/data/dataset.h"
#include "dtrain/io/io.h"
#include "dtrain/core/plural.h"
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 4096, CHUNK = 1 << 16 /* elements read at a time */ };
static const char name[] = "reference-logps.bin";
static const char *const key_names[DT_N_KEYS] = {"model",     "training data", "validation data",
                                                 "tokenizer", "data.seq_len",  "precision.dtype"};

/* ---- identity of the contents ------------------------------------------------------------------------------------ */

static void see_difference(void *self, const char *field, const char *before, const char *now)
{
    const char **first = self;
    const size_t len = strlen(field);
    if (!*first && (len < 6 || strcmp(field + len - 6, "_pdrop") != 0)) *first = field;
}

static dt_err check_shape(const dt_precomputed *p, const dt_task *t)
{
    const char *field = NULL;
    dt_model_config_compare(&p->model.mc, t->mc, see_difference, &field);
    DT_CHECK(!field, DT_ERR_DATA,
             "%s: %s: expected a reference of the same shape as the model in training, because precomputing uses that "
             "model's memory",
             p->model.from.path, field);
    return DT_OK;
}

static void count_samples(dt_precomputed *p, const dt_task *t)
{
    const dt_loader *loaders[DT_N_PRECOMPUTED_PARTS] = {t->train, t->valid};
    for (int k = 0; k < DT_N_PRECOMPUTED_PARTS; k++) {
        if (!loaders[k]) continue;
        const dt_data_info *info = dt_loader_info(loaders[k]);
        p->n_samples[k] = info->n_samples;
        p->key[DT_KEY_TRAINING + k] = dt_loader_fingerprint(loaders[k]) ^ dt_mix64((uint64_t)info->n_samples);
        p->key[DT_KEY_TOKENIZER] += dt_hash_text(info->tokenizer) + dt_hash_text(info->chat_template);
    }
}

/* ---- header ------------------------------------------------------------------------------------------------------ */

static int64_t n_elems(const dt_precomputed *p)
{
    return p->first[DT_OF_VALIDATION] ? p->first[DT_OF_VALIDATION][p->n_samples[DT_OF_VALIDATION]]
                                      : p->first[DT_OF_TRAINING][p->n_samples[DT_OF_TRAINING]];
}

static void print_head(const dt_precomputed *p, uint64_t checksum, char head[HEAD])
{
    memset(head, '\n', HEAD);
    int at = snprintf(head, HEAD, "dtrain reference log-probabilities, version 1\nfp32 little-endian from byte %d on\n",
                      HEAD);
    for (int k = 0; k < DT_N_KEYS; k++)
        at += snprintf(head + at, (size_t)(HEAD - at), "%s: %016" PRIx64 "\n", key_names[k], p->key[k]);
    at +=
        snprintf(head + at, (size_t)(HEAD - at), "elements: %" PRId64 "\nchecksum: %016" PRIx64, n_elems(p), checksum);
    head[at] = '\n';
}

/* The number after "NAME: "; false: missing. */
static bool find_number(const char *head, const char *what, int base, uint64_t *value)
{
    char label[40];
    const size_t len = (size_t)snprintf(label, sizeof label, "\n%s: ", what);
    const char *at = strstr(head, label);
    if (!at) return false;
    char *end;
    *value = strtoull(at + len, &end, base);
    return end != at + len && *end == '\n';
}

/* Checks that the file matches this run. Rank 0. */
static dt_err check_head(const dt_precomputed *p, uint64_t *checksum)
{
    char head[HEAD + 1] = "";
    uint64_t found = 0;
    struct stat st;
    DT_TRY(dt_read_at(p->fd, p->path, 0, head, HEAD));
    for (int k = 0; k < DT_N_KEYS; k++) {
        DT_CHECK(find_number(head, key_names[k], 16, &found), DT_ERR_DATA,
                 "%s: expected a file of reference log-probabilities, found another format", p->path);
        DT_CHECK(found == p->key[k], DT_ERR_DATA,
                 "%s: the %s of the file does not match this run; remove the file, and the run computes it again",
                 p->path, key_names[k]);
    }
    const bool counted = find_number(head, "elements", 10, &found);
    DT_CHECK(!counted || found == (uint64_t)n_elems(p), DT_ERR_DATA,
             "%s: expected %" PRId64 " log-probabilities, found %" PRIu64 " (dpo.sft_on_prompt adds those of prompts); "
             "remove the file, and the run computes it again",
             p->path, n_elems(p), found);
    DT_CHECK(counted && find_number(head, "checksum", 16, checksum) && fstat(p->fd, &st) == 0 &&
                 st.st_size == HEAD + n_elems(p) * (off_t)sizeof(float),
             DT_ERR_DATA, "%s: the file is truncated or corrupt; remove it, and the run computes it again", p->path);
    return DT_OK;
}

/* Checksum of this rank's part of the file. */
static dt_err sum_part(const dt_precomputed *p, const dt_task *t, uint64_t *sum)
{
    float *chunk = malloc(CHUNK * sizeof *chunk);
    dt_err err = chunk ? DT_OK : dt_fail(DT_ERR_MEMORY, "out of memory to verify %s", p->path);
    const int64_t n_total = n_elems(p), each = n_total / t->data->size + 1,
                  begin = dt_min_i64(t->data->rank * each, n_total), end = dt_min_i64(begin + each, n_total);
    *sum = 0;
    for (int64_t at = begin; at < end && err == DT_OK; at += CHUNK) {
        const int64_t n = dt_min_i64(CHUNK, end - at);
        err = dt_read_at(p->fd, p->path, HEAD + at * (int64_t)sizeof *chunk, chunk, (size_t)n * sizeof *chunk);
        if (err == DT_OK) *sum += dt_checksum(chunk, at, n, sizeof *chunk);
    }
    free(chunk);
    return err;
}

static dt_err sum_all(const dt_precomputed *p, const dt_task *t, uint64_t *sum)
{
    DT_TRY(dt_comm_agree(t->comm, sum_part(p, t, sum)));
    return dt_comm_sum_host_u64(t->data, sum, 1);
}

static dt_err open_file(dt_precomputed *p, const char *path, int how)
{
    if (p->fd >= 0) close(p->fd);
    p->fd = open(path, how | O_CLOEXEC);
    return p->fd >= 0 ? DT_OK : dt_fail_errno(how == O_RDONLY ? DT_ERR_DATA : DT_ERR_WRITE, path, "cannot be opened");
}

/* ---- computation ------------------------------------------------------------------------------------------------- */

static int64_t at_sample(const dt_precomputed *p, int part, int64_t sample)
{
    return HEAD + p->first[part][sample] * (int64_t)sizeof(float);
}

static dt_err write_batch(dt_precomputed *p, int part, const dt_batch *b)
{
    for (int64_t k = 0; k < b->n_samples; k++) {
        const int32_t first = b->seq_target[DT_N_SIDES * k], end = b->seq_target[DT_N_SIDES * (k + 1)];
        DT_TRY(dt_write_at(p->fd, p->path, at_sample(p, part, b->sample[k]), p->logp + first,
                           (size_t)(end - first) * sizeof *p->logp));
    }
    return DT_OK;
}

static dt_err score_part(dt_precomputed *p, dt_task *t, int part, dt_loader *l)
{
    const int64_t n = l ? dt_loader_n_micro(l, DT_EVALUATION) : 0;
    for (int64_t micro = 0; micro < n; micro++) {
        const dt_batch *b;
        dt_phase_enter(t->phase, "score", "the reference");
        DT_TRY(dt_fault("reference.score"));
        DT_TRY(dt_loader_batch(l, DT_EVALUATION, micro, &b));
        DT_TRY(dt_model_forward(t->model, b, false, 0));
        DT_TRY(dt_model_logp(t->model, b, 1.0f, p->logp, NULL, NULL));
        DT_TRY(write_batch(p, part, b));
    }
    return DT_OK;
}

static dt_err create(dt_precomputed *p, const char *part)
{
    int fd;
    DT_TRY(dt_make_folder_of(part));
    DT_TRY(dt_check_replaceable(p->path));
    DT_TRY(dt_create_file(part, &fd));
    close(fd);
    return dt_reserve_file(part, HEAD + n_elems(p) * (int64_t)sizeof(float), "the reference's log-probabilities");
}

/* Rank 0: renames the complete file to its final name. */
static dt_err publish(dt_precomputed *p, const char *part, uint64_t sum)
{
    char head[HEAD];
    print_head(p, sum, head);
    DT_TRY(dt_fault("reference.write"));
    DT_TRY(dt_write_at(p->fd, part, 0, head, HEAD));
    if (fsync(p->fd) != 0) return dt_fail_errno(DT_ERR_WRITE, part, "sync failed");
    return dt_rename_durable(part, p->path);
}

static dt_err make(dt_precomputed *p, dt_task *t)
{
    char part[PATH_MAX];
    uint64_t sum;
    snprintf(part, sizeof part, "%s.part", p->path);
    const int64_t n_pairs = p->n_samples[0] + p->n_samples[1];
    DT_INFO("computing the reference's log-probabilities of %" PRId64 " pair%s, to be stored in %s", n_pairs,
            dt_plural(n_pairs), p->path);
    DT_TRY(dt_comm_agree(t->comm, dt_comm_first(t->comm) ? create(p, part) : DT_OK));
    DT_TRY(dt_comm_agree(t->comm, open_file(p, part, O_RDWR)));
    DT_TRY(score_part(p, t, DT_OF_TRAINING, t->train));
    DT_TRY(score_part(p, t, DT_OF_VALIDATION, t->valid));
    /* other nodes see the data only after the sync */
    DT_TRY(dt_comm_agree(t->comm, fsync(p->fd) == 0 ? DT_OK : dt_fail_errno(DT_ERR_WRITE, part, "sync failed")));
    DT_TRY(sum_all(p, t, &sum));
    return dt_comm_agree(t->comm, dt_comm_first(t->comm) ? publish(p, part, sum) : DT_OK);
}

/* ---- a part of the task ------------------------------------------------------------------------------------------ */

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_precomputed *p = self;
    size_t used = 0;
    if (t->train)
        p->first[DT_OF_TRAINING] = dt_carve(block, &used, p->n_samples[DT_OF_TRAINING] + 1, sizeof **p->first);
    if (t->valid)
        p->first[DT_OF_VALIDATION] = dt_carve(block, &used, p->n_samples[DT_OF_VALIDATION] + 1, sizeof **p->first);
    p->logp = dt_carve(block, &used, t->model_opt->max_tok, sizeof *p->logp);
    return used;
}

static dt_err prepare(dt_precomputed *p, dt_task *t)
{
    const dt_loader *loaders[DT_N_PRECOMPUTED_PARTS] = {t->train, t->valid};
    int64_t n = 0;
    DT_CHECK(asprintf(&p->path, "%s/%s", t->cfg->run_output_dir, name) > 0, DT_ERR_MEMORY, "out of memory for a path");
    for (int k = 0; k < DT_N_PRECOMPUTED_PARTS; k++) {
        for (int64_t i = 0; loaders[k] && i < p->n_samples[k]; i++) {
            p->first[k][i] = n;
            n += dt_loader_n_target(loaders[k], i);
        }
        if (loaders[k]) p->first[k][p->n_samples[k]] = n;
    }
    return DT_OK;
}

static dt_err verify(dt_precomputed *p, dt_task *t)
{
    uint64_t said = 0, sum;
    DT_TRY(dt_comm_agree(t->comm, open_file(p, p->path, O_RDONLY)));
    DT_TRY(dt_comm_agree(t->comm, dt_comm_first(t->comm) ? check_head(p, &said) : DT_OK));
    DT_TRY(sum_all(p, t, &sum));
    const bool altered = dt_comm_first(t->comm) && sum != said;
    return dt_comm_agree(
        t->comm,
        altered
            ? dt_fail(DT_ERR_DATA,
                      "%s: the checksum does not match the contents; remove the file, and the run computes it again",
                      p->path)
            : DT_OK);
}

/* Computes the file or verifies the existing one. Leaves the reference's weights in t->zero. */
static dt_err begin(void *self, dt_task *t)
{
    dt_precomputed *p = self;
    DT_TRY(dt_comm_agree(t->comm, prepare(p, t)));
    DT_TRY(dt_pretrained_load(t->comm, t->zero, &p->model.from, t->phase));
    if (p->model.lora.r == 0) DT_TRY(dt_adapters_start(t->comm, t->zero));
    DT_TRY(dt_hash_parameters(t->zero, t->comm, NULL, &p->key[DT_KEY_MODEL]));
    int64_t is_there = dt_comm_first(t->comm) && access(p->path, F_OK) == 0;
    DT_TRY(dt_comm_broadcast_host(t->comm, &is_there, sizeof is_there, 0));
    if (is_there) return verify(p, t);
    DT_TRY(dt_task_make_features(t)); /* by the reference's tower, which equals that of the model in training */
    return make(p, t);
}

static void close_file(void *self, dt_task *t)
{
    dt_precomputed *p = self;
    if (p->path && p->fd >= 0) close(p->fd);
    dt_frozen_model_close(&p->model);
    free(p->path);
}

static dt_err compare(const void *self, const int64_t *found)
{
    const dt_precomputed *p = self;
    DT_CHECK((uint64_t)*found == p->key[DT_KEY_MODEL], DT_ERR_DATA,
             "%s: expected the reference that the run started with, found another one", p->model.from.path);
    return DT_OK;
}

static const dt_task_part_ops as_part = {.lay_out = lay_out, .begin = begin, .close = close_file};

dt_err dt_precomputed_open(dt_precomputed *p, dt_task *t, const char *model_path)
{
    const bool planned = !t->comm && (!*model_path || access(model_path, F_OK) != 0);
    p->fd = -1;
    dt_task_hold(t, &as_part, p);
    dt_task_identity(t, "reference_key", 1, (int64_t *)&p->key[DT_KEY_MODEL], compare, p);
    if (*t->cfg->lora_path && strcmp(model_path, t->cfg->model_path) == 0) p->model.adapter = t->cfg->lora_path;
    p->model.model_part = dt_task_model_part(t);
    const dt_err err =
        planned ? dt_frozen_model_of_shape(&p->model, t->mc, 0) : dt_frozen_model_describe(&p->model, model_path, 0);
    DT_TRY(p->model.adapter ? dt_config_lead_to(t->cfg, "lora", "path", err) : err);
    p->model.from.new_adapters = true; /* the weights are loaded into the model in training, which has new adapters */
    DT_TRY(check_shape(p, t));
    DT_TRY(dt_task_verifies(t, &p->model.from, p->model.units, p->model.n_units));
    p->key[DT_KEY_LENGTHS] = (uint64_t)t->cfg->data_seq_len;
    p->key[DT_KEY_TYPE] = (uint64_t)t->model_opt->dtype;
    count_samples(p, t);
    return DT_OK;
}

/* ---- use in a run ------------------------------------------------------------------------------------------------ */

dt_err dt_precomputed_read(dt_precomputed *p, dt_precomputed_part part, const dt_batch *b)
{
    for (int64_t k = 0; k < b->n_samples; k++) {
        const int32_t first = b->seq_target[DT_N_SIDES * k], end = b->seq_target[DT_N_SIDES * (k + 1)];
        DT_TRY(dt_read_at(p->fd, p->path, at_sample(p, part, b->sample[k]), p->logp + first,
                          (size_t)(end - first) * sizeof *p->logp));
    }
    return DT_OK;
}
