/* critic.c - an auxiliary model with a scalar head, run by the same functions as the main model. */
#include "critic.h"
#include "dtrain/io/io.h"
#include "dtrain/checkpoint/stored.h"
#include "dtrain/step/step.h"
#include <unistd.h>

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static dt_err describe(dt_critic *c, const dt_task *t, const char *path)
{
    const bool planned = !t->comm && (!*path || access(path, F_OK) != 0);
    if (planned) return dt_model_config_parse(&c->mc, "config.json", t->mc->json);
    DT_TRY(dt_pretrained_describe(&c->from, path, dt_task_model_part(t)));
    c->from.new_score = true;
    DT_TRY(dt_pretrained_recorded(&c->from, &c->lora));
    DT_TRY(dt_model_config_parse(&c->mc, c->from.config_name, c->from.model_config));
    DT_CHECK(c->lora.base == DT_F32, DT_ERR_DATA,
             "%s: expected floating-point weights, because the %s trains all of them, found %s "
             "(lora.base_quantization); convert it to a directory with dtrain-convert",
             path, c->name, dt_dtype_name(c->lora.base));
    DT_CHECK(c->mc.vocab_size == t->mc->vocab_size, DT_ERR_DATA,
             "%s: vocab_size of the %s is %lld, but the model in training has %lld", path, c->name,
             (long long)c->mc.vocab_size, (long long)t->mc->vocab_size);
    return DT_OK;
}

static dt_model_options options(const dt_critic *c, const dt_task *t)
{
    const dt_model_options *policy = t->model_opt;
    return (dt_model_options){.dtype = policy->dtype,
                              .grad_dtype = c->trained->zero_opt.grad_dtype,
                              .max_tok = policy->max_tok,
                              .max_seq = policy->max_seq,
                              .max_pos = policy->max_pos,
                              .max_images = policy->max_images,
                              .features_given = policy->features_given && c->mc.vision,
                              .training = true,
                              .recompute = policy->recompute,
                              .reproducible = policy->reproducible,
                              .loss_scale = policy->loss_scale,
                              .seed = policy->seed};
}

/* The critic's batches are those of the policy. */
static dt_err settle_images(dt_critic *c, const dt_task *t, const char *path)
{
    return t->train ? dt_settle_images(path, dt_loader_info(t->train), &c->mc, c->name, path) : DT_OK;
}

/* The language model and the head are trained whole, tower and projector if those of the policy are. */
static bool is_trained(void *task, const dt_tensor *tensor)
{
    const dt_task *t = task;
    const dt_stored_section of = dt_stored_section_of(tensor->name);
    if (of == DT_STORED_TOWER) return dt_has_word(t->cfg->vision_train, "tower");
    return of != DT_STORED_PROJECTOR || dt_has_word(t->cfg->vision_train, "projector");
}

/* ---- a part of the task ------------------------------------------------------------------------------------------ */

static size_t lay_out(void *self, const dt_task *t, void *block)
{
    dt_critic *c = self;
    size_t used = 0;
    c->value = dt_carve(block, &used, c->opt.max_tok, sizeof *c->value);
    c->dvalue = dt_carve(block, &used, c->opt.max_tok, sizeof *c->dvalue);
    return used;
}

static dt_err plan(const void *self, const dt_task *t, dt_memory *memory)
{
    const dt_critic *c = self;
    dt_memory model;
    if (!c->trained) return DT_OK; /* a reported error */
    DT_TRY(dt_model_plan(&c->mc, &c->opt, c->units, c->n_units, t->dev, &model));
    dt_memory_add(memory, &model);
    return DT_OK;
}

/* The run may have grouped the experts. */
static void take_units(dt_critic *c)
{
    if (c->trained) c->units = c->trained->units, c->n_units = c->trained->n_units;
}

/* A new head starts from random values; the file replaces all other parameters. */
static dt_err begin(void *self, dt_task *t)
{
    dt_critic *c = self;
    dt_phase_enter(t->phase, "open", c->name);
    DT_TRY(dt_zero_init_random(c->trained->zero, (uint64_t)t->cfg->run_seed));
    DT_TRY(c->lora.r == 0 ? dt_pretrained_load(t->comm, c->trained->zero, &c->from, t->phase)
                          : dt_pretrained_load_merged(t->comm, c->trained->zero, &c->from, &c->lora, &c->mc,
                                                      &c->trained->zero_opt, t->dev, t->compute, t->phase));
    c->source = dt_zero_source(c->trained->zero);
    take_units(c);
    if (c->opt.features_given) DT_TRY(dt_task_share_tower(t, &c->mc, c->trained->zero, c->name));
    return dt_comm_agree(t->comm, dt_model_open(&c->model, &c->mc, &c->opt, c->units, c->n_units, t->dev, &c->source,
                                                t->compute, t->phase));
}

static void close_critic(void *self, dt_task *t)
{
    dt_critic *c = self;
    dt_model_close(c->model);
    take_units(c);
    dt_model_free_units(c->units, c->n_units);
    dt_model_config_free(&c->mc);
    dt_pretrained_free(&c->from);
    dt_lora_free(&c->lora);
}

static const dt_task_part_ops part = {.lay_out = lay_out, .plan = plan, .begin = begin, .close = close_critic};

dt_err dt_critic_open(dt_critic *c, dt_task *t, const char *name, const char *path, double sign)
{
    c->name = name, c->sign = sign;
    dt_task_hold(t, &part, c);
    DT_TRY(describe(c, t, path));
    if (t->comm) DT_TRY(dt_task_reads(t, c->from.config_name, dt_hash_text(c->mc.json)));
    dt_model_config_set_dropout(&c->mc, 0);
    DT_TRY(settle_images(c, t, path));
    DT_TRY(dt_model_make_value_units(&c->mc, 1, &c->units, &c->n_units));
    if (c->mc.vision) dt_units_choose_trained(c->units, c->n_units, is_trained, t);
    if (c->lora.r == 0) DT_TRY(dt_task_verifies(t, &c->from, c->units, c->n_units));
    c->trained = dt_task_train_auxiliary(t, name, c->units, c->n_units);
    if (!c->trained) return DT_OK; /* already reported */
    c->trained->shares_norm = true;
    c->trained->model_config = c->mc.json;
    c->opt = options(c, t);
    return DT_OK;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

dt_err dt_critic_forward(dt_critic *c, dt_task *t, const dt_batch *b)
{
    dt_phase_enter(t->phase, "forward", c->name);
    DT_TRY(dt_fault("task.critic"));
    DT_TRY(dt_model_forward(c->model, b, true, 0));
    DT_TRY(dt_model_values(c->model, b, c->value));
    for (int32_t i = 0; i < b->n_tok && c->sign < 0; i++) c->value[i] = -c->value[i];
    return DT_OK;
}

dt_err dt_critic_backward(dt_critic *c, dt_task *t, const dt_batch *b)
{
    for (int32_t i = 0; i < b->n_tok && c->sign < 0; i++) c->dvalue[i] = -c->dvalue[i];
    dt_phase_enter(t->phase, "backward", c->name);
    DT_TRY(dt_model_value_head(c->model, b, c->dvalue));
    return dt_model_backward(c->model, b);
}
