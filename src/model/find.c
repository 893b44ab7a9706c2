/* find.c - where the tensors of each unit lie, found by name in the unit tables, once. Blocks need not be alike: what
 * is trained in one may be frozen in the next. */
#include "model_private.h"
#include <inttypes.h>
#include <string.h>

static const dt_tensor *find(const dt_unit *u, const char *prefix, const char *name)
{
    char full[DT_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < u->n_tensors; i++)
        if (strcmp(u->tensors[i].name, full) == 0) return &u->tensors[i];
    return NULL;
}

static struct tensor_at locate(const dt_unit *u, const char *prefix, const char *name)
{
    const dt_tensor *t = find(u, prefix, name);
    return t ? (struct tensor_at){t->offset, t->part} : (struct tensor_at){.offset = -1};
}

static struct linear linear_at(const dt_model *m, const dt_unit *u, const char *prefix, const char *name, int64_t n_in,
                               int64_t n_out)
{
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return (struct linear){.n_in = n_in,
                           .n_out = n_out,
                           .w = locate(u, prefix, weight),
                           .b = locate(u, prefix, bias),
                           .w_ld = m->mc->conv1d ? n_out : n_in,
                           .conv1d = m->mc->conv1d};
}

static struct norm norm_at(const dt_unit *u, const char *prefix, const char *weight, const char *bias)
{
    return (struct norm){locate(u, prefix, weight), locate(u, prefix, bias)};
}

static void find_gpt2_block(const dt_model *m, const dt_unit *u, const char *p, struct block *b)
{
    b->norm1 = norm_at(u, p, "ln_1.weight", "ln_1.bias");
    b->norm2 = norm_at(u, p, "ln_2.weight", "ln_2.bias");
    b->q_norm = b->k_norm = (struct tensor_at){.offset = -1};
    b->qkv = linear_at(m, u, p, "attn.c_attn", m->C, m->W);
    b->o = linear_at(m, u, p, "attn.c_proj", m->Q, m->C);
    b->up = linear_at(m, u, p, "mlp.c_fc", m->C, m->U);
    b->down = linear_at(m, u, p, "mlp.c_proj", m->F, m->C);
}

static void find_llama_block(const dt_model *m, const dt_unit *u, const char *p, struct block *b)
{
    b->norm1 = norm_at(u, p, "input_layernorm.weight", "input_layernorm.bias");
    b->norm2 = norm_at(u, p, "post_attention_layernorm.weight", "post_attention_layernorm.bias");
    b->q_norm = locate(u, p, "self_attn.q_norm.weight");
    b->k_norm = locate(u, p, "self_attn.k_norm.weight");
    b->qkv = linear_at(m, u, p, "self_attn.q_proj", m->C, m->W); /* k and v follow directly: one matrix */
    b->o = linear_at(m, u, p, "self_attn.o_proj", m->Q, m->C);
    b->up = linear_at(m, u, p, "mlp.gate_proj", m->C, m->U); /* up follows gate */
    b->down = linear_at(m, u, p, "mlp.down_proj", m->F, m->C);
}

static dt_err find_block(const dt_model *m, const dt_unit *u, struct block *b)
{
    const bool gpt2 = m->mc->family == DT_GPT2;
    char prefix[64];
    snprintf(prefix, sizeof prefix, gpt2 ? "transformer.h.%" PRId64 "." : "model.layers.%" PRId64 ".", b->layer);
    (gpt2 ? find_gpt2_block : find_llama_block)(m, u, prefix, b);
    const bool complete = dt_exists(b->norm1.w) && dt_exists(b->norm2.w) && dt_exists(b->qkv.w) && dt_exists(b->o.w) &&
                          dt_exists(b->up.w) && dt_exists(b->down.w) &&
                          (!m->mc->qk_norm || (dt_exists(b->q_norm) && dt_exists(b->k_norm)));
    DT_CHECK(complete, DT_ERR_ARG, "unit %s does not hold the tensors of block %" PRId64 " of this model", u->name,
             b->layer);
    return DT_OK;
}

static dt_err find_ends(dt_model *m, const dt_unit *embed, const dt_unit *head)
{
    const bool gpt2 = m->mc->family == DT_GPT2;
    m->final_norm = gpt2 ? norm_at(head, "transformer.", "ln_f.weight", "ln_f.bias")
                         : norm_at(head, "model.", "norm.weight", "norm.bias");
    m->wte = locate(embed, "", gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    m->wpe = locate(embed, "", "transformer.wpe.weight");
    m->head = (struct linear){.n_in = m->C, .n_out = m->V, .w_ld = m->C, .b.offset = -1};
    m->head.w = m->tied ? m->wte : locate(head, "", "lm_head.weight");
    const bool complete =
        dt_exists(m->final_norm.w) && dt_exists(m->wte) && dt_exists(m->head.w) && (!gpt2 || dt_exists(m->wpe));
    DT_CHECK(complete, DT_ERR_ARG, "units %s and %s do not hold the tensors of this model", embed->name, head->name);
    return DT_OK;
}

dt_err dt_model_find_tensors(dt_model *m)
{
    const int64_t L = m->mc->num_hidden_layers;
    DT_CHECK(m->n_units == L + 2, DT_ERR_ARG, "expected %d units, found %d", (int)L + 2, m->n_units);
    for (int64_t layer = 0; layer < L; layer++) {
        m->blocks[layer].layer = layer;
        DT_TRY(find_block(m, &m->units[layer + 1], &m->blocks[layer]));
    }
    m->first_trained = 0;
    while (m->first_trained < m->n_units && m->units[m->first_trained].flat_len[DT_TRAINED] == 0) m->first_trained++;
    return find_ends(m, &m->units[0], &m->units[m->n_units - 1]);
}
