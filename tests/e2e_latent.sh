#!/bin/bash
# e2e_latent.sh - latent attention, and experts that a vector and groups choose, in the programs.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e 's/^model_type = llama/model_type = deepseek_v3\nq_lora_rank = 13\nkv_lora_rank = 10\nqk_nope_head_dim = 8\nqk_rope_head_dim = 6\nv_head_dim = 9/' \
    -e 's/^num_hidden_layers.*/num_hidden_layers = 3\nfirst_k_dense_replace = 1\nnum_experts = 12\nnum_experts_per_tok = 3\nn_group = 4\ntopk_group = 2/' \
    -e 's/^num_key_value_heads.*/num_key_value_heads = 4\nmoe_intermediate_size = 20\nn_shared_experts = 1/' "$tmp/tiny.ini"
. "$(dirname "$0")/family_common.sh"
e2e_done
