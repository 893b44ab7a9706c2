/* logprobs.c - the file of --top-logprobs: for each target of a dataset the most probable tokens of the model and their
 * log-probabilities. Each rank writes the targets of its micro-batches at their offsets. The file is that of
 * generate_begin_output, which has its final name at the end. */
#include "generate_app.h"
#include "dtrain/data/known.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { USUAL_LEN = 1024 };

typedef struct job {
    dt_loader *data;
    int64_t *first;     /* [samples + 1]: targets before each sample */
    dt_known_file file; /* under its temporary name */
    char part[PATH_MAX];
    dt_known top; /* of a micro-batch */
    uint64_t sum[2];
} job;

static int64_t length_of(const app *a)
{
    return a->opt.seq_len ? a->opt.seq_len : dt_min_i64(USUAL_LEN, dt_model_max_length(&a->frozen.mc));
}

/* By default generation is at temperature 1. */
static double temperature_of(const app *a) { return a->opt.given.temperature ? a->opt.sampling.temperature : 1; }

static dt_err open_data(app *a, job *j)
{
    const dt_loader_options opt = {.files = a->opt.data,
                                   .where = "--data",
                                   .seq_len = length_of(a),
                                   .train_batch_size = a->opt.batch_size * a->comm.nranks,
                                   .micro_batch_size = a->opt.batch_size,
                                   .rank = a->comm.rank,
                                   .nranks = a->comm.nranks,
                                   .vocab_size = a->frozen.mc.vocab_size,
                                   .ledger = &a->ledger,
                                   .phase = &a->phase};
    DT_TRY(dt_loader_open(&j->data, &opt));
    const dt_data_info *info = dt_loader_info(j->data);
    DT_CHECK(!info->of_documents, DT_ERR_USAGE, "--data: %s has kind tokens: expected sft", info->path);
    DT_CHECK(!info->image_path, DT_ERR_USAGE, "--data: %s has images, which --top-logprobs does not support",
             info->image_path);
    DT_CHECK(a->opt.top_logprobs <= a->frozen.mc.vocab_size, DT_ERR_USAGE,
             "--top-logprobs: expected at most the %" PRId64 " tokens of the model, found %" PRId64,
             a->frozen.mc.vocab_size, a->opt.top_logprobs);
    DT_ALLOC(j->first, info->n_samples + 1, "out of memory for %" PRId64 " samples", info->n_samples);
    dt_known_index(j->data, j->first);
    return DT_OK;
}

static dt_err open_model(app *a, job *j)
{
    const dt_data_info *info = dt_loader_info(j->data);
    const int64_t k = a->opt.top_logprobs;
    const dt_model_options mo = {.dtype = a->opt.dtype,
                                 .grad_dtype = a->opt.dtype,
                                 .max_tok = info->max_tok,
                                 .max_seq = info->max_seq,
                                 .max_pos = (int32_t)length_of(a),
                                 .max_known = (int32_t)k,
                                 .batch_invariant = true};
    j->top.k = (int32_t)k;
    DT_ALLOC(j->top.token, info->max_tok * k, "out of memory for %" PRId64 " log-probabilities per target", k);
    DT_ALLOC(j->top.logp, info->max_tok * k, "out of memory for %" PRId64 " log-probabilities per target", k);
    return dt_model_open(&a->model, &a->frozen.mc, &mo, a->frozen.units, a->frozen.n_units, &a->dev, &a->frozen.source,
                         NULL, &a->phase);
}

static dt_err create(const app *a, const job *j)
{
    const dt_known_info info = {.n_targets = j->first[dt_loader_info(j->data)->n_samples],
                                .k = a->opt.top_logprobs,
                                .vocab_size = a->frozen.mc.vocab_size,
                                .seq_len = length_of(a),
                                .temperature = temperature_of(a),
                                .data = dt_known_key(j->data)};
    return dt_known_create(j->part, &info);
}

static dt_err write_batch(job *j, const dt_batch *b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b->n_samples; i++) {
        const int64_t first = j->first[b->sample[i]], n = j->first[b->sample[i] + 1] - first;
        DT_TRY(dt_known_write(&j->file, first, n, j->top.token + at, j->top.logp + at));
        at += n * j->top.k;
    }
    return DT_OK;
}

/* At stage 3 all ranks run the same passes, and a rank that fails alone ends the job. */
static dt_err all_passes(app *a, job *j)
{
    const int64_t n = dt_loader_n_micro(j->data, DT_EVALUATION);
    const float inv_temperature = (float)(1 / temperature_of(a));
    for (int64_t micro = 0; micro < n; micro++) {
        const dt_batch *b;
        dt_phase_enter(&a->phase, "score", "");
        DT_TRY(dt_fault("generate.logprobs"));
        DT_TRY(dt_loader_batch(j->data, DT_EVALUATION, micro, &b));
        DT_TRY(dt_model_forward(a->model, b, false, 0));
        DT_TRY(dt_model_tops(a->model, b, inv_temperature, &j->top));
        DT_TRY(write_batch(j, b));
    }
    return DT_OK;
}

/* The checksums of this rank's share of the file, which other ranks wrote. */
static dt_err sum_share(const app *a, job *j)
{
    const int64_t n = j->file.info.n_targets, from = n * a->comm.rank / a->comm.nranks,
                  end = n * (a->comm.rank + 1) / a->comm.nranks;
    DT_CHECK_ERRNO(fsync(j->file.fd) == 0, DT_ERR_WRITE, j->part, "sync failed");
    return dt_known_sum(&j->file, from, end - from, j->sum);
}

static dt_err run(app *a, job *j)
{
    const bool first = a->comm.rank == 0;
    TOGETHER(a, open_data(a, j));
    DT_TRY(dt_comm_same_file(&a->comm, a->opt.data, dt_loader_fingerprint(j->data)));
    TOGETHER(a, open_model(a, j));
    TOGETHER(a, first ? create(a, j) : DT_OK);
    TOGETHER(a, dt_known_open(&j->file, j->part, false));
    TOGETHER(a, dt_watchdog_start(&a->watchdog, &a->phase, &a->comm, a->opt.timeout_s));
    const dt_err err = all_passes(a, j);
    dt_watchdog_stop(&a->watchdog);
    if (err != DT_OK && a->opt.stage == 3) return err;
    TOGETHER(a, err);
    TOGETHER(a, sum_share(a, j));
    DT_TRY(dt_comm_sum_host_u64(dt_comm_all(&a->comm), j->sum, 2));
    TOGETHER(a, first ? dt_known_finish(j->part, j->sum) : DT_OK);
    if (first)
        fprintf(stderr,
                "dtrain-generate: %" PRId64 " log-probabilities of each of %" PRId64 " targets of %" PRId64
                " samples in %s\n",
                a->opt.top_logprobs, j->file.info.n_targets, dt_loader_info(j->data)->n_samples, a->opt.output);
    return DT_OK;
}

dt_err generate_logprobs(app *a)
{
    job j = {0};
    const bool fits = snprintf(j.part, sizeof j.part, "%s.part", a->opt.output) < (int)sizeof j.part;
    dt_err err = fits ? run(a, &j) : dt_fail(DT_ERR_USAGE, "-o: the name is too long");
    dt_known_close(&j.file);
    dt_loader_close(j.data);
    free(j.first), free(j.top.token), free(j.top.logp);
    return err;
}
