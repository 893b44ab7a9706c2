/* moe.h - mixtures of experts: tables and keys that several families share. */
#ifndef DT_MODEL_MOE_H
#define DT_MODEL_MOE_H

#include "llama.h"

/** Read the number of experts and how many a token uses, with these defaults, their width, and the keys of the
 *  load-balancing loss. */
dt_err dt_moe_read_experts(const dt_spec *root, dt_model_config *mc, int64_t n, int64_t n_used);
/** Choose the layers with experts: every decoder_sparse_step-th, except those in mlp_only_layers. */
dt_err dt_moe_choose_sparse(const dt_spec *root, dt_model_config *mc);
/** Read the width of the shared expert. */
dt_err dt_moe_read_shared(const dt_spec *root, dt_model_config *mc);

/** Rows of a mixture, of which files name each expert's, and of an MLP of all tokens in the layers with experts. */
#define EXPERT_ROWS                                                                                                    \
    ROW(SLOT_ROUTER, "mlp.gate", SIZE_E, SIZE_C, 0, 0, SPARSE),                                                        \
        ROW(SLOT_EXPERT_UP, "mlp.experts.%d.gate_proj", SIZE_X, SIZE_C, 0, 0, SPARSE | PER_EXPERT),                    \
        ROW(SLOT_EXPERT_UP, "mlp.experts.%d.up_proj", SIZE_X, SIZE_C, 0, 0, SPARSE | PER_EXPERT),                      \
        ROW(SLOT_EXPERT_DOWN, "mlp.experts.%d.down_proj", SIZE_C, SIZE_X, 0, 0, SPARSE | PER_EXPERT)
#define SHARED_ROWS(module) MLP_ROWS(module, SIZE_S, 0, SPARSE)
#define QWEN_MIXTURE                                                                                                   \
    EXPERT_ROWS, SHARED_ROWS("mlp.shared_expert"),                                                                     \
        ROW(SLOT_MLP_GATE, "mlp.shared_expert_gate", SIZE_ONE, SIZE_C, 0, 0, SPARSE)
/** Tensors with all experts of a layer. */
#define FUSED_EXPERTS(saved)                                                                                           \
    {SLOT_EXPERT_UP, "mlp.experts.gate_up_proj", saved}, { SLOT_EXPERT_DOWN, "mlp.experts.down_proj", saved }
#define LOSS_KEYS "output_router_logits, router_aux_loss_coef, "
#define MIXTURE_KEYS "num_experts, num_experts_per_tok, moe_intermediate_size, " LOSS_KEYS

#endif
