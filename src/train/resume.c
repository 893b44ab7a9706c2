/* resume.c - where a run begins: the newest checkpoint that verifies, a given one, a model to start from, or random weights; and where it leaves off. */
#include "run.h"
#include "dtrain/io.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

char *run_checkpoint_dir(const dt_run *run)
{
    char *dir = NULL;
    return asprintf(&dir, "%s/checkpoints", run->cfg.run_output_dir) < 0 ? NULL : dir;
}

/* A text that rank 0 has (own), for all; malloc'ed. Agreed, as memory may be short on one rank. */
static dt_err share_text(dt_comm *comm, const char *own, char **text)
{
    int64_t len = comm->rank == 0 ? (int64_t)strlen(own) : 0;
    DT_TRY(dt_comm_broadcast_host(comm, &len, sizeof len, 0));
    *text = calloc(1, (size_t)len + 1);
    DT_TRY(dt_comm_agree(comm, *text ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory for a text of %" PRId64 " bytes", len)));
    if (comm->rank == 0) memcpy(*text, own, (size_t)len);
    return dt_comm_broadcast_host(comm, *text, (size_t)len, 0);
}

/* The loader's step that follows so many samples. An epoch takes as many whatever the batch size (with drop_last: whole micro-batches), so their number
 * tells the place also when ranks or batch sizes are others now; inside a step it goes back to the step's begin. */
static int64_t data_step_after(const dt_run *run, int64_t samples)
{
    const dt_data_info *info = dt_loader_info(run->train);
    const int64_t n = info->n_samples, m = run->batching.micro_batch_size, in_epoch = run->cfg.data_drop_last ? n - n % m : n;
    return samples / in_epoch * info->steps_per_epoch + samples % in_epoch / run->batching.train_batch_size;
}

static void place_in_data(const dt_run *run, progress *p)
{
    const int64_t per_epoch = dt_loader_info(run->train)->steps_per_epoch;
    p->data_step = data_step_after(run, p->samples);
    if (p->data_step != p->step)
        DT_INFO("batches had another size before: data goes on at sample %" PRId64 " of epoch %" PRId64,
                p->data_step % per_epoch * run->batching.train_batch_size, p->data_step / per_epoch);
}

/* Load one file into zero; agreed. */
static dt_err load_one(dt_run *run, const char *path, progress *p)
{
    dt_ckpt_meta meta = {0};
    dt_err err = dt_comm_agree(run->comm, dt_checkpoint_read_meta(path, &meta));
    if (err == DT_OK) err = dt_checkpoint_load(run->comm, run->zero, path, true, &run->phase);
    if (err == DT_OK) {
        p->step = p->saved_step = meta.step;
        p->samples = meta.samples, p->tokens = meta.tokens, p->updates = meta.adam_steps;
        if (meta.seed != (uint64_t)run->cfg.run_seed)
            DT_WARN("%s: was made with seed %" PRIu64 "; the configuration's %" PRId64 " holds from here on", path, meta.seed, run->cfg.run_seed);
        place_in_data(run, p);
    }
    dt_ckpt_meta_free(&meta);
    return err;
}

static bool is_auto(const dt_run *run) { return !strcmp(run->cfg.checkpoint_resume, "auto"); }

/* Candidates on rank 0: the files to try, newest first. */
static dt_err list_candidates(dt_run *run, char ***paths, int *n)
{
    char where[512];
    const char *resume = run->cfg.checkpoint_resume;
    char *dir = run_checkpoint_dir(run);
    DT_CHECK(dir, DT_ERR_MEMORY, "no memory for a path");
    dt_err err = DT_OK;
    if (is_auto(run) || !strcmp(resume, "none")) {
        err = dt_checkpoint_list(dir, paths, n);
        if (err == DT_OK && *n && !is_auto(run))
            err = dt_fail(DT_ERR_USAGE, "%s: none, but %s holds %d checkpoints of an earlier run; use auto to go on, or another run.output_dir",
                          dt_config_where(&run->cfg, "checkpoint", "resume", where, sizeof where), dir, *n);
    } else if ((*paths = calloc(1, sizeof **paths))) {
        err = dt_checkpoint_find(resume, &(*paths)[0]);
        *n = err == DT_OK;
    } else {
        err = dt_fail(DT_ERR_MEMORY, "no memory for a path");
    }
    free(dir);
    return err;
}

static dt_err start_fresh(dt_run *run)
{
    if (!run->has_pretrained) return dt_zero_init_random(run->zero, (uint64_t)run->cfg.run_seed);
    DT_INFO("starting from the weights of %s", run->pretrained.path);
    return dt_pretrained_load(run->comm, run->zero, &run->pretrained, &run->phase);
}

dt_err run_resume(dt_run *run, progress *p)
{
    char **paths = NULL;
    int64_t n = 0;
    *p = (progress){.saved_step = -1};
    dt_err err = DT_OK;
    if (run->comm->rank == 0 && run->train) {
        int found = 0;
        err = list_candidates(run, &paths, &found);
        n = found;
    }
    err = dt_comm_agree(run->comm, err);
    if (err == DT_OK) err = dt_comm_broadcast_host(run->comm, &n, sizeof n, 0);
    bool loaded = false;
    for (int64_t i = 0; err == DT_OK && i < n && !loaded; i++) {
        char *path = NULL;
        err = share_text(run->comm, run->comm->rank ? NULL : paths[i], &path);
        if (err == DT_OK) {
            const dt_err bad = load_one(run, path, p);
            loaded = bad == DT_OK;
            if (loaded) DT_INFO("resumed from %s: step %" PRId64 ", %" PRId64 " samples", path, p->step, p->samples);
            else if (bad != DT_ERR_DATA || !is_auto(run)) err = bad;
            else if (i + 1 == n) err = bad; /* starting anew would bury what the user still has */
            else {
                if (dt_comm_speaks(run->comm)) DT_WARN("%s; trying the one before", dt_error_message());
                dt_error_clear();
            }
        }
        free(path);
    }
    if (run->comm->rank == 0) dt_config_free_list(paths, (int)n);
    if (err == DT_OK && !loaded) err = start_fresh(run);
    return err;
}

dt_err run_save(dt_run *run, progress *p)
{
    char *dir = run_checkpoint_dir(run), *config = dt_config_text(&run->cfg);
    dt_err err = dir && config ? dt_report_flush(run->report) : dt_fail(DT_ERR_MEMORY, "no memory for the checkpoint's texts");
    err = dt_comm_agree(run->comm, err);
    if (err == DT_OK) {
        const double begin_s = dt_now_s();
        const dt_ckpt_meta meta = {.step = p->step, .samples = p->samples, .tokens = p->tokens, .adam_steps = p->updates,
                                   .seed = (uint64_t)run->cfg.run_seed, .loss_scale = 1, .config = config, .model_config = run->mc.json};
        dt_phase_enter(&run->phase, "save", "");
        err = dt_checkpoint_save(run->comm, run->zero, &meta, dir, run->cfg.checkpoint_save_total_limit, &run->phase);
        if (err == DT_OK) {
            p->saved_step = p->step;
            DT_INFO("checkpoint of step %" PRId64 " written in %.2f s", p->step, dt_now_s() - begin_s);
        }
    }
    free(dir), free(config);
    return err;
}
