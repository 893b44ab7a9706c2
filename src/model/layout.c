/* layout.c - where the tensors of a block lie in its flat buffer, found by name in the unit tables, once: all blocks
 * are alike. */
#include "model_private.h"
#include <string.h>

static const dt_tensor *find(const dt_unit *u, const char *prefix, const char *name)
{
    char full[DT_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < u->n_tensors; i++)
        if (strcmp(u->tensors[i].name, full) == 0) return &u->tensors[i];
    return NULL;
}

static int64_t place(const dt_unit *u, const char *prefix, const char *name)
{
    const dt_tensor *t = find(u, prefix, name);
    return t ? t->offset : -1;
}

static struct linear linear_at(const dt_model *m, const dt_unit *u, const char *prefix, const char *name, int64_t n_in,
                               int64_t n_out)
{
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return (struct linear){.n_in = n_in,
                           .n_out = n_out,
                           .w_at = place(u, prefix, weight),
                           .b_at = place(u, prefix, bias),
                           .w_ld = m->mc->conv1d ? n_out : n_in,
                           .conv1d = m->mc->conv1d};
}

static struct norm norm_at(const dt_unit *u, const char *prefix, const char *weight, const char *bias)
{
    return (struct norm){place(u, prefix, weight), place(u, prefix, bias)};
}

static void find_gpt2_block(dt_model *m, const dt_unit *u, const char *p)
{
    struct block_layout *b = &m->block;
    b->norm1 = norm_at(u, p, "ln_1.weight", "ln_1.bias");
    b->norm2 = norm_at(u, p, "ln_2.weight", "ln_2.bias");
    b->q_norm_at = b->k_norm_at = -1;
    b->qkv = linear_at(m, u, p, "attn.c_attn", m->C, m->W);
    b->o = linear_at(m, u, p, "attn.c_proj", m->Q, m->C);
    b->up = linear_at(m, u, p, "mlp.c_fc", m->C, m->U);
    b->down = linear_at(m, u, p, "mlp.c_proj", m->F, m->C);
}

static void find_llama_block(dt_model *m, const dt_unit *u, const char *p)
{
    struct block_layout *b = &m->block;
    b->norm1 = norm_at(u, p, "input_layernorm.weight", "input_layernorm.bias");
    b->norm2 = norm_at(u, p, "post_attention_layernorm.weight", "post_attention_layernorm.bias");
    b->q_norm_at = place(u, p, "self_attn.q_norm.weight");
    b->k_norm_at = place(u, p, "self_attn.k_norm.weight");
    b->qkv = linear_at(m, u, p, "self_attn.q_proj", m->C, m->W); /* k and v follow directly: one matrix */
    b->o = linear_at(m, u, p, "self_attn.o_proj", m->Q, m->C);
    b->up = linear_at(m, u, p, "mlp.gate_proj", m->C, m->U); /* up follows gate */
    b->down = linear_at(m, u, p, "mlp.down_proj", m->F, m->C);
}

dt_err dt_model_find_layout(dt_model *m)
{
    const bool gpt2 = m->mc->family == DT_GPT2;
    const dt_unit *embed = &m->units[0], *first = &m->units[1], *head = &m->units[m->n_units - 1];
    DT_CHECK(m->n_units == m->mc->num_hidden_layers + 2, DT_ERR_ARG, "expected %d units, found %d",
             (int)m->mc->num_hidden_layers + 2, m->n_units);
    if (gpt2)
        find_gpt2_block(m, first, "transformer.h.0.");
    else
        find_llama_block(m, first, "model.layers.0.");
    m->final_norm = gpt2 ? norm_at(head, "transformer.", "ln_f.weight", "ln_f.bias")
                         : norm_at(head, "model.", "norm.weight", "norm.bias");
    m->wte_at = place(embed, "", gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    m->wpe_at = place(embed, "", "transformer.wpe.weight");
    m->head = (struct linear){.n_in = m->C, .n_out = m->V, .w_ld = m->C, .b_at = -1};
    m->head.w_at = m->tied ? m->wte_at : place(head, "", "lm_head.weight");
    const struct block_layout *b = &m->block;
    const bool complete = b->norm1.w_at >= 0 && b->norm2.w_at >= 0 && b->qkv.w_at >= 0 && b->o.w_at >= 0 &&
                          b->up.w_at >= 0 && b->down.w_at >= 0 && m->final_norm.w_at >= 0 && m->wte_at >= 0 &&
                          m->head.w_at >= 0 && (!m->mc->qk_norm || (b->q_norm_at >= 0 && b->k_norm_at >= 0)) &&
                          (!gpt2 || m->wpe_at >= 0);
    DT_CHECK(complete, DT_ERR_ARG, "the units do not hold the tensors of this model");
    return DT_OK;
}
