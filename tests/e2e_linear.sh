#!/bin/bash
# e2e_linear.sh - linear attention in the programs.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e 's/^model_type = llama/model_type = qwen3_5_text\nfull_attention_interval = 3\nlinear_num_key_heads = 2\nlinear_num_value_heads = 4/' \
    -e 's/^num_hidden_layers.*/num_hidden_layers = 3\nlinear_key_head_dim = 9\nlinear_value_head_dim = 10\nhead_dim = 16/' \
    -e 's/^seq_len.*/seq_len = 90/' -e 's/^max_position_embeddings.*/max_position_embeddings = 128/' "$tmp/tiny.ini"
. "$(dirname "$0")/family_common.sh"
e2e_done
