/* axes.c - the axes of a team that a user sets, [mesh]: one row for each. It has the axis's key, what its ranks divide,
 * and what it does not combine with. All other code asks the run's mesh for the axes data and sum, and the model takes
 * the axis that it divides by. */
#include "run.h"
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* Does the task generate completions? */
static bool generates(const dt_config *cfg)
{
    const bool distills = strcmp(cfg->run_task, "distill") == 0;
    return dt_has_word("ppo, grpo", cfg->run_task) || (distills && (cfg->distill_lmbda > 0 || cfg->distill_seq_kd));
}

/* The reason why the run cannot have such an axis; NULL: none. */
static const char *context_obstacle(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    if (generates(cfg)) return "the task generates completions, whose tokens are not divided";
    if (cfg->run_reproducible)
        return "run.reproducible gives the same bits on any number of ranks, but sums over divided tokens have other "
               "bits";
    if (!strcmp(cfg->model_attention, "cudnn"))
        return "model.attention = cudnn needs the keys of the same rows; use flash";
    return run->n_units == 0 ? NULL : dt_model_undivided_tokens(&run->mc);
}

static const char *tensor_obstacle(const dt_run *run)
{
    const dt_config *cfg = &run->cfg;
    if (!dt_has_word("pretrain, sft, rm, classify, embed, eval", cfg->run_task))
        return "only the tasks pretrain, sft, rm, classify, embed and eval, which have one model, divide its matrices";
    if (cfg->run_reproducible)
        return "run.reproducible gives the same bits on any number of ranks, but sums of divided products have other "
               "bits";
    if (cfg->lora_r > 0) return "adapters are not divided; set lora.r = 0";
    if (!strcmp(cfg->optimizer_type, "muon")) return "muon updates whole matrices; use adamw";
    if (!strcmp(cfg->optimizer_state_dtype, "int8"))
        return "blocks of int8 states belong to whole tensors; use bf16 or fp32";
    return run->n_units == 0 ? NULL : dt_model_undivided(&run->mc, (int)cfg->mesh_tp);
}

static const struct user_axis {
    const char *key;
    size_t value, size;  /* where dt_config has the key's value, and dt_mesh_shape the axis's size */
    const char *divides; /* what its ranks divide */
    const char *(*obstacle)(const dt_run *run);
} AXES[] = {
    {"tp", offsetof(dt_config, mesh_tp), offsetof(dt_mesh_shape, tp), "the matrices of a layer", tensor_obstacle},
    {"cp", offsetof(dt_config, mesh_cp), offsetof(dt_mesh_shape, cp), "the tokens of a sample", context_obstacle},
};
enum { N_AXES = sizeof AXES / sizeof AXES[0] };

static int size_of(const dt_run *run, const struct user_axis *a)
{
    return (int)*(const int64_t *)(const void *)((const char *)&run->cfg + a->value);
}

dt_mesh_shape run_mesh(const dt_run *run, const strategy *s)
{
    dt_mesh_shape shape = DT_MESH_FLAT;
    shape.by_node = s->by_node;
    for (int i = 0; i < N_AXES; i++) *(int *)(void *)((char *)&shape + AXES[i].size) = size_of(run, &AXES[i]);
    return shape;
}

dt_err run_check_ranks(const dt_run *run, int nranks)
{
    for (int i = 0; i < N_AXES; i++) {
        const int size = size_of(run, &AXES[i]);
        DT_CONFIG_CHECK(nranks % size == 0, &run->cfg, "mesh", AXES[i].key,
                        "expected a divisor of the number of ranks, which is %d, found %d", nranks, size);
        nranks /= size;
    }
    return DT_OK;
}

dt_err run_check_axes(const dt_run *run)
{
    for (int i = 0; i < N_AXES; i++) {
        const int size = size_of(run, &AXES[i]);
        const char *no = size > 1 ? AXES[i].obstacle(run) : NULL;
        DT_CONFIG_CHECK(!no, &run->cfg, "mesh", AXES[i].key, "expected 1, found %d: %s", size, no);
    }
    return DT_OK;
}

const char *run_mesh_text(const dt_run *run, const char *before, const char *ranks, char out[MESH_TEXT])
{
    *out = '\0';
    for (int i = 0; i < N_AXES; i++) {
        const int size = size_of(run, &AXES[i]);
        const size_t n = strlen(out);
        if (size > 1) snprintf(out + n, MESH_TEXT - n, "%s%d%s divide %s", before, size, ranks, AXES[i].divides);
    }
    return out;
}
