/* reference.c - a frozen reference model with a vocabulary head, and its updates towards the policy.
 *
 * Both models are sharded the same way at every stage (zero.h). Each rank therefore mixes its own shards, and
 * parameters that the reference keeps whole are gathered afterwards. */
#include "reference.h"
#include "dtrain/step/step.h"
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 }; /* elements of either model mixed at a time */

static bool trains_adapters_alone(const dt_task *t)
{
    bool any = false;
    for (int u = 0; u < t->n_units; u++)
        for (int i = 0; i < t->units[u].n_tensors; i++) {
            const dt_tensor *tensor = &t->units[u].tensors[i];
            if (tensor->trainable && tensor->adapter_scale == 0) return false;
            any = any || tensor->trainable;
        }
    return any;
}

/* *adapted: training starts from adapters, of lora.path or of a checkpoint. The reference then has them too. A plan
 * works without the model. */
static dt_err starts_adapted(const dt_task *t, bool *adapted)
{
    const char *start = t->cfg->model_path;
    dt_frozen_model f = {0};
    *adapted = *t->cfg->lora_path;
    if (*adapted || !*start || access(start, F_OK) != 0) return DT_OK;
    f.model_part = dt_task_model_part(t);
    const dt_err err = dt_frozen_model_describe(&f, start, 0);
    *adapted = f.lora.r > 0;
    dt_frozen_model_close(&f);
    return err;
}

static const char *first_difference(const dt_frozen_model *f, const dt_task *t)
{
    for (int u = 0; u < t->n_units; u++) {
        const dt_unit *mine = &t->units[u], *its = &f->units[u];
        if (u >= f->n_units || its->n_tensors != mine->n_tensors) return mine->name;
        for (int i = 0; i < mine->n_tensors; i++) {
            const dt_tensor *a = &mine->tensors[i], *b = &its->tensors[i];
            if (strcmp(a->name, b->name) != 0 || a->n_elems != b->n_elems) return a->name;
        }
    }
    return f->n_units == t->n_units ? NULL : f->units[t->n_units].name;
}

/* The slices of both models must be equal. */
static dt_err check_slices(const dt_reference *r, const dt_task *t)
{
    if (r->sync_steps == 0) return DT_OK;
    const dt_slice *mine = dt_zero_owned(t->zero), *its = dt_zero_owned(r->scorer.frozen.zero);
    for (int i = 0; i < dt_zero_n_slices(t->zero); i++)
        DT_CHECK(
            mine[i].unit == its[i].unit && mine[i].tensor == its[i].tensor && mine[i].first == its[i].first &&
                mine[i].n == its[i].n,
            DT_ERR_FAULT,
            "internal: dt_reference: tensor %s: the shards of the reference differ from those of the model in training",
            dt_zero_tensor(t->zero, &mine[i])->name);
    return DT_OK;
}

/* Record the hash of the weights. It is not needed if checkpoints contain the reference: it is the model in training
 * without adapters, or it follows that model. */
static dt_err note_weights(dt_reference *r, const dt_task *t)
{
    uint64_t sum = 0;
    if (r->scorer.is_base || r->sync_steps > 0) return DT_OK;
    DT_TRY(dt_hash_parameters(r->scorer.frozen.zero, t->comm, NULL, &sum));
    r->weights[0] = (int64_t)(sum | 1), r->weights[1] = r->scorer.opt.dtype;
    return DT_OK;
}

static dt_err compare_weights(const void *self, const int64_t *found)
{
    const dt_reference *r = self;
    const dt_pretrained *from = &r->scorer.frozen.from;
    DT_CHECK(found[1] != r->weights[1] || found[0] == r->weights[0], DT_ERR_BASE,
             "%s%s%s: expected %s that the run started with, found another one", from->path,
             from->adapter ? " with the adapter of " : "", from->adapter ? from->adapter : "", r->scorer.name);
    return DT_OK;
}

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_reference *r = self;
    size_t used = 0;
    r->logp = dt_carve(block, &used, r->scorer.opt.max_tok, sizeof *r->logp);
    r->chunk = dt_carve(block, &used, r->sync_steps ? 2 * CHUNK : 0, sizeof(float));
    return used;
}

/* Runs after the begin of the scorer, which is an earlier part of the task. */
static dt_err begin(void *self, dt_task *t)
{
    dt_reference *r = self;
    DT_TRY(note_weights(r, t));
    if (r->scorer.opt.keeps_hidden) t->reference = r->scorer.model;
    return dt_comm_agree(t->comm, check_slices(r, t));
}

static const dt_task_part_ops part = {.lay_out = lay_out, .begin = begin};

dt_err dt_reference_open(dt_reference *r, dt_task *t, const char *path)
{
    const char *const name = r->scorer.name ? r->scorer.name : "the reference";
    const bool is_start = !path || strcmp(path, t->cfg->model_path) == 0;
    bool adapted = false;
    if (is_start && trains_adapters_alone(t)) DT_TRY(starts_adapted(t, &adapted));
    if (is_start && *t->cfg->lora_path) r->scorer.frozen.adapter = t->cfg->lora_path;
    if (is_start) r->scorer.frozen.like = t->units, r->scorer.frozen.n_like = t->n_units;
    const dt_err err = is_start && !adapted && trains_adapters_alone(t)
                           ? dt_scorer_open_base(&r->scorer, t, name)
                           : dt_scorer_open(&r->scorer, t, name, path ? path : "", 0);
    dt_task_hold(t, &part, r);
    dt_task_identity(t, "reference_weights", 2, r->weights, compare_weights, r);
    DT_TRY(is_start && *t->cfg->lora_path ? dt_config_lead_to(t->cfg, "lora", "path", err) : err);
    r->scorer.opt.keeps_hidden = t->model_opt->head & DT_HEAD_DIVERGENCE;
    return DT_OK;
}

/* The name of a unit with trained and frozen parameters; NULL: none. Its shards differ from those of a fully frozen
 * model. */
static const char *partly_trained(const dt_task *t)
{
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].flat_len[DT_TRAINED] > 0 && t->units[u].flat_len[DT_FROZEN] > 0) return t->units[u].name;
    return NULL;
}

dt_err dt_reference_follow(dt_reference *r, dt_task *t, int64_t sync_steps, double mixup)
{
    dt_frozen_model *f = &r->scorer.frozen;
    DT_CHECK(sync_steps == 0 || !r->scorer.is_base, DT_ERR_USAGE,
             "sync_reference_steps: expected 0, because with adapters the reference is the frozen model without them");
    if (sync_steps == 0 || !f->units) return DT_OK; /* no updates, or a reported error */
    const char *partly = partly_trained(t);
    DT_CHECK(!partly, DT_ERR_USAGE,
             "sync_reference_steps: expected 0, because only a model that is trained as a whole can update the "
             "reference; this run trains only part of %s",
             partly);
    const char *other = first_difference(f, t);
    DT_CHECK(
        !other, DT_ERR_DATA,
        "%s: with sync_reference_steps, expected a reference of the same shape as the model in training; %s differs",
        f->from.path, other);
    r->sync_steps = sync_steps, r->mixup = mixup;
    t->kept = f, t->kept_name = "reference";
    return DT_OK;
}

void dt_reference_open_key(dt_reference *r, dt_task *t, const char *section, const char *value, int64_t sync_steps,
                           double mixup)
{
    const char *path = *value ? value : t->cfg->model_path;
    if (t->n_units == 0 || (t->comm && !*path)) return; /* already reported */
    dt_err err = dt_reference_open(r, t, path);
    if (err == DT_OK) err = dt_reference_follow(r, t, sync_steps, mixup);
    dt_mistakes_add(t->mistakes, *value ? dt_config_lead_to(t->cfg, section, "reference_path", err) : err);
}

dt_err dt_reference_scores(void *reference, dt_task *t, const dt_batch *b, float *out)
{
    dt_reference *r = reference;
    DT_TRY(dt_scorer_forward(&r->scorer, t, b));
    return dt_model_logp(r->scorer.model, b, dt_task_inv_temperature(t), out, NULL, NULL);
}

dt_err dt_reference_score(dt_reference *r, dt_task *t, const dt_batch *b)
{
    return dt_reference_scores(r, t, b, r->logp);
}

static dt_err mix_slice(dt_reference *r, dt_zero *policy, const dt_slice *p)
{
    dt_zero *z = r->scorer.frozen.zero;
    const dt_dtype of_policy = dt_zero_state_dtype(policy, DT_STATE_PARAM, p),
                   own = dt_zero_state_dtype(z, DT_STATE_PARAM, p);
    const float mixup = (float)r->mixup, rest = (float)(1 - r->mixup);
    void *from = r->chunk, *to = (float *)r->chunk + CHUNK;
    for (int64_t at = 0; at < p->n; at += CHUNK) {
        const int64_t n = dt_min_i64(CHUNK, p->n - at);
        DT_TRY(dt_zero_state_read(policy, DT_STATE_PARAM, p, at, n, from));
        DT_TRY(dt_zero_state_read(z, DT_STATE_PARAM, p, at, n, to));
        for (int64_t i = 0; i < n; i++) {
            const float before = dt_element(to, own, i), now = dt_element(from, of_policy, i);
            /* parameters that training does not change keep their bits */
            if (before != now) dt_set_element(to, own, i, rest * before + mixup * now);
        }
        DT_TRY(dt_zero_state_write(z, DT_STATE_PARAM, p, at, n, to));
    }
    return DT_OK;
}

dt_err dt_reference_after_step(dt_reference *r, dt_task *t, int64_t step)
{
    if (r->sync_steps == 0 || step % r->sync_steps != 0) return DT_OK;
    dt_phase_enter(t->phase, "update", r->scorer.name);
    DT_TRY(dt_fault("reference.sync"));
    const dt_slice *slices = dt_zero_owned(t->zero);
    for (int i = 0; i < dt_zero_n_slices(t->zero); i++)
        if (dt_zero_tensor(t->zero, &slices[i])->part <= DT_FROZEN) DT_TRY(mix_slice(r, t->zero, &slices[i]));
    return dt_zero_state_written(r->scorer.frozen.zero);
}
