/* divide.c - tensor parallelism: the ranks of the axis tp divide the heads of attention and the width of the MLP. A
 * rank's part of a block is a block with fewer heads and a narrower MLP, so the same tables and kernels compute it.
 * Dimensions whose sizes differ between the units of part and whole are those in which tensors are divided. */
#include "divide.h"
#include "dtrain/comm/comm.h"

static int n_parts(const dt_mesh *mesh) { return mesh ? mesh->tp.size : 1; }

/* Does a tensor have the rows of several matrices, such as queries, keys and values? A rank's part of each matrix is
 * not a block of consecutive rows then. */
static bool joins_matrices(const dt_model_config *mc)
{
    bool joined = false;
    for (const struct module *of = mc->family->block; of < mc->family->block + MAX_MODULES && of->name; of++)
        joined = joined || of->out == SIZE_W || (of->out == SIZE_U && mc->gated_mlp);
    return joined;
}

const char *dt_model_undivided(const dt_model_config *mc, int n)
{
    if (mc->vision) return "the model has a vision tower; use model.vision = none for its text model";
    if (mc->num_experts > 0) return "the model has experts";
    if (dt_model_n_linear(mc) > 0) return "the model has linear attention";
    if (mc->kv_lora_rank > 0) return "the model has latent attention";
    if (mc->qk_norm) return "the model normalises queries and keys";
    if (mc->o_bias || mc->mlp_bias) return "the model has biases after attention or in its MLP";
    if (mc->conv1d) return "the matrices of the model are stored as [in, out]";
    if (joins_matrices(mc)) return "the model has several matrices in one tensor";
    if (mc->attn_pdrop > 0) return "dropout of attention depends on the number of heads; set model.dropout = 0";
    if (mc->num_key_value_heads % n) return "it must divide num_key_value_heads";
    return mc->intermediate_size % n ? "it must divide intermediate_size" : NULL;
}

static dt_model_config part_of(const dt_model_config *mc, int n)
{
    dt_model_config part = *mc; /* shares its arrays */
    part.num_attention_heads /= n, part.num_key_value_heads /= n, part.intermediate_size /= n;
    return part;
}

/* Is the model divided? One that cannot be is refused (dt_model_undivided), and other checks of it go on. */
static bool divides(const dt_model_config *mc, const dt_mesh *mesh)
{
    return n_parts(mesh) > 1 && !dt_model_undivided(mc, n_parts(mesh));
}

void dt_divide_config(dt_model *m, const dt_model_config *mc)
{
    m->mc = mc;
    if (!divides(mc, m->opt.mesh)) return;
    m->part_config = part_of(mc, n_parts(m->opt.mesh));
    m->mc = &m->part_config;
}

static dt_err make_units(const dt_model_config *mc, int64_t n_labels, dt_unit **units, int *n_units)
{
    return n_labels ? dt_model_make_value_units(mc, n_labels, units, n_units) : dt_model_make_units(mc, units, n_units);
}

static void mark(dt_tensor *t, const dt_tensor *whole, int rank)
{
    for (int d = 0; d < t->n_dims; d++)
        if (t->shape[d] != whole->shape[d])
            t->split = d, t->split_first = rank * t->shape[d], t->split_whole = whole->shape[d];
    t->fused = whole->fused; /* files have whole tensors */
}

dt_err dt_model_make_parts(const dt_model_config *mc, int64_t n_labels, const dt_mesh *mesh, dt_unit **units,
                           int *n_units)
{
    dt_unit *whole = NULL;
    int n_whole = 0;
    if (!divides(mc, mesh)) return make_units(mc, n_labels, units, n_units);
    const dt_model_config part = part_of(mc, n_parts(mesh));
    DT_TRY(make_units(mc, n_labels, &whole, &n_whole));
    const dt_err err = make_units(&part, n_labels, units, n_units);
    for (int u = 0; u < n_whole && err == DT_OK; u++)
        for (int i = 0; i < whole[u].n_tensors; i++) mark(&(*units)[u].tensors[i], &whole[u].tensors[i], mesh->tp.rank);
    dt_model_free_units(whole, n_whole);
    return err;
}

dt_err dt_divide_join(const dt_model *m, void *x)
{
    if (!dt_is_divided(m)) return DT_OK;
    return dt_comm_all_reduce(&m->opt.mesh->tp, x, m->opt.dtype, m->n_tok * m->C, m->opt.reproducible, m->stream);
}
