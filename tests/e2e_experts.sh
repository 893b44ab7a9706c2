#!/bin/bash
# e2e_experts.sh - mixtures of experts in the programs: the same losses at every stage of ZeRO and on every number of ranks, plans, checkpoints,
# recomputation, adapters, quantised experts, generation and rollouts.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e 's/^model_type = llama/model_type = qwen3_moe\nnum_experts = 7\nnum_experts_per_tok = 3\nmoe_intermediate_size = 20\nnorm_topk_prob = true/' \
    -e 's/^intermediate_size.*//' "$tmp/tiny.ini"

train 1 one checkpoint.save_steps=3 checkpoint.export=hf
expect_exit "one rank" 0
expect_text "the log names the experts" 'experts: each token uses 3 of 7, and [0-9]* parameters'
ends "the memory is that of the plan" 0 as_planned
for stage in 0 1 2 3; do
    train 2 "two$stage" zero.stage=$stage
    ends "stage $stage on two ranks has the losses of one rank" 0 close_losses one "two$stage" 1e-5
    as_planned && ok "stage $stage: memory as planned" || not_ok "stage $stage: memory as planned" "$(tail -3 "$out")"
done
for way in selective block; do
    train 1 "again_$way" model.activation_checkpointing=$way
    ends "activation_checkpointing = $way has the same losses" 0 close_losses one "again_$way" 0
done
train 2 resumed zero.stage=3 checkpoint.resume="$tmp/one" run.max_steps=6
prints "--plan reports total and active parameters" '^active: [0-9]* of them' run 0 ./dtrain --plan --ranks 4 "$tmp/tiny.ini"

# adapters and a quantised base
set -- model.path="$tmp/one/hf" lora.r=4 run.max_steps=3
sed -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini" >"$tmp/.ini" && mv "$tmp/.ini" "$tmp/tiny.ini"
train 2 lora "$@" zero.stage=3
expect_exit "adapters on attention" 0
train 1 refused "$@" lora.target_modules=gate_proj
expect_text "adapters on experts are refused" 'lora.*target_modules.*experts cannot have adapters'
for base in int8 nf4; do
    train 1 "lora_$base" "$@" lora.base_quantization=$base
    expect_exit "a base in $base" 0
done
e2e_done
