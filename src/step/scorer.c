/* scorer.c - a frozen model that scores batches in addition to the model in training. */
#include "dtrain/step/scorer.h"
#include "dtrain/io/io.h"
#include <unistd.h>

static dt_err describe(dt_scorer *s, const dt_task *t, const char *name, const char *path, int n_labels)
{
    const bool planned = !t->comm && (!*path || access(path, F_OK) != 0);
    s->name = name;
    s->frozen.model_part = dt_task_model_part(t);
    const dt_err err = planned ? dt_frozen_model_of_shape(&s->frozen, t->mc, n_labels)
                               : dt_frozen_model_describe(&s->frozen, path, n_labels);
    if (err != DT_OK) dt_frozen_model_close(&s->frozen); /* omitted from the plan */
    return err;
}

static dt_err plan_model(const dt_scorer *s, const dt_task *t, dt_memory *memory)
{
    return dt_model_plan(s->mc, &s->opt, s->units, s->n_units, t->dev, memory);
}

/* The model in training lends its work space. */
static dt_err borrow(dt_scorer *s, dt_task *t)
{
    dt_memory alone, memory;
    s->mc = s->is_base ? t->mc : &s->frozen.mc;
    s->units = s->is_base ? t->units : s->frozen.units, s->n_units = s->is_base ? t->n_units : s->frozen.n_units;
    if (!s->is_base) DT_TRY(dt_task_verifies(t, &s->frozen.from, s->frozen.units, s->frozen.n_units));
    if (!s->is_base && t->comm) DT_TRY(dt_task_reads(t, s->frozen.from.config_name, dt_hash_text(s->frozen.mc.json)));
    s->opt.dtype = s->opt.grad_dtype = t->model_opt->dtype;
    if (!t->dev->ops) return DT_OK;
    DT_TRY(plan_model(s, t, &alone));
    s->opt.borrows = true;
    DT_TRY(plan_model(s, t, &memory));
    const size_t own = memory.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE], /* a tower's activations */
        lent = alone.at[DT_MEM_ACTIVATIONS][DT_ON_DEVICE] - own;
    if (t->model_opt->lend_nbytes < lent) t->model_opt->lend_nbytes = lent;
    return DT_OK;
}

/* The scorer receives the batches of the model in training. */
static dt_err settle_images(dt_scorer *s, const dt_task *t, const char *path)
{
    const dt_loader *const loaders[] = {t->train, t->valid};
    for (int i = 0; i < 2; i++)
        if (loaders[i]) DT_TRY(dt_settle_images(path, dt_loader_info(loaders[i]), &s->frozen.mc, s->name, path));
    return DT_OK;
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_scorer *s = self;
    dt_memory model;
    if (!s->units) return DT_OK; /* the error is already reported */
    if (!s->is_base)
        DT_TRY(dt_frozen_model_plan(&s->frozen, &t->main->zero_opt, s->opt.dtype, t->sum->size, t->dev, memory));
    DT_TRY(plan_model(s, t, &model));
    dt_memory_add(memory, &model);
    return DT_OK;
}

static dt_err begin(void *self, dt_task *t)
{
    dt_scorer *s = self;
    dt_frozen_model *f = &s->frozen;
    if (s->is_base)
        f->source = dt_zero_source(t->zero);
    else
        DT_TRY(dt_frozen_model_load(f, &t->main->zero_opt, s->opt.dtype, t->comm, t->dev, t->compute, t->phase));
    s->opt.lender = t->model;
    s->units = s->is_base ? t->units : f->units, s->n_units = s->is_base ? t->n_units : f->n_units;
    if (!s->is_base && s->opt.features_given) DT_TRY(dt_task_share_tower(t, &f->mc, f->zero, f->from.path));
    return dt_comm_agree(t->comm, dt_model_open(&s->model, s->mc, &s->opt, s->units, s->n_units, t->dev, &f->source,
                                                t->compute, t->phase));
}

static void close_scorer(void *self, dt_task *t)
{
    dt_scorer *s = self;
    (void)t;
    dt_model_close(s->model);
    dt_frozen_model_close(&s->frozen);
    *s = (dt_scorer){0};
}

static const dt_task_part_ops part = {.plan = plan, .begin = begin, .close = close_scorer};

/* For the batches of the model in training. */
static dt_model_options options_of(const dt_scorer *s, const dt_task *t)
{
    const dt_model_options *trained = t->model_opt;
    dt_model_options o = {.max_tok = trained->max_tok,
                          .max_seq = trained->max_seq,
                          .max_pos = trained->max_pos,
                          .mesh = trained->mesh,
                          .max_images = trained->max_images,
                          .features_given = trained->features_given,
                          .reproducible = trained->reproducible};
    if (!s->generates) return o;
    o.cache_seqs = trained->cache_seqs, o.cache_len = trained->cache_len;
    o.cache_prompts = trained->cache_prompts, o.cache_prompt_len = trained->cache_prompt_len;
    o.batch_invariant = trained->batch_invariant, o.graphs = trained->graphs;
    return o;
}

/* The ranks of the axis cp divide the tokens of the scorer's batches, too. The trained model is checked elsewhere. */
static dt_err check_context(const dt_scorer *s, const dt_task *t, const char *path)
{
    const int cp = (int)t->cfg->mesh_cp;
    const char *no = cp > 1 ? dt_model_undivided_tokens(&s->frozen.mc) : NULL;
    DT_CHECK(!no, DT_ERR_USAGE, "%s: [mesh] cp: expected 1, found %d: %s", path, cp, no);
    return DT_OK;
}

static dt_err open_for_own_batches(dt_scorer *s, dt_task *t)
{
    const int32_t most = (int32_t)dt_min_i64(s->own_pos, s->frozen.mc.max_position_embeddings);
    const int64_t n_tok = dt_max_i64(most, t->model_opt->max_tok);
    s->opt = (dt_model_options){.max_tok = (int32_t)n_tok, .max_seq = t->model_opt->max_seq, .max_pos = most};
    return borrow(s, t);
}

dt_err dt_scorer_open(dt_scorer *s, dt_task *t, const char *name, const char *path, int n_labels)
{
    dt_task_hold(t, &part, s);
    DT_TRY(describe(s, t, name, path, n_labels));
    if (s->own_pos) return open_for_own_batches(s, t);
    const long long n = (long long)s->frozen.mc.vocab_size, n_trained = (long long)t->mc->vocab_size;
    if (n != n_trained) {
        dt_frozen_model_close(&s->frozen); /* omitted from the plan */
        return dt_fail(DT_ERR_DATA, "%s: vocab_size of %s is %lld, but the model in training has %lld", path, name, n,
                       n_trained);
    }
    dt_err err = settle_images(s, t, path);
    if (err == DT_OK) err = check_context(s, t, path);
    if (err != DT_OK) return dt_frozen_model_close(&s->frozen), err;
    s->opt = options_of(s, t);
    s->opt.features_given = s->opt.features_given && s->frozen.mc.vision;
    return borrow(s, t);
}

dt_err dt_scorer_open_base(dt_scorer *s, dt_task *t, const char *name)
{
    dt_task_hold(t, &part, s);
    *s = (dt_scorer){.name = name, .generates = s->generates, .is_base = true, .opt = options_of(s, t)};
    s->opt.no_adapters = true;
    return borrow(s, t);
}

dt_err dt_scorer_forward(dt_scorer *s, dt_task *t, const dt_batch *b)
{
    dt_phase_enter(t->phase, "score", s->name);
    DT_TRY(dt_fault("task.score"));
    return dt_model_forward(s->model, b, false, 0);
}
