#!/bin/bash
# e2e_experts.sh - mixtures of experts in the programs: the same losses at every stage of ZeRO and on every number of ranks, plans, checkpoints,
# recomputation, the load-balancing loss, adapters, quantised experts, generation and rollouts.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
cp "$tmp/tiny.ini" "$tmp/plain.ini"
sed -i -e 's/^model_type = llama/model_type = qwen2_moe\nnum_experts = 7\nnum_experts_per_tok = 3\nmoe_intermediate_size = 20\nshared_expert_intermediate_size = 28\nnorm_topk_prob = true/' \
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
cp -r "$tmp/one" "$tmp/resumed" && rm -f "$tmp"/resumed/*6*.h5
train 2 resumed zero.stage=3 run.max_steps=8
expect_exit "a checkpoint continues on two ranks at stage 3" 0
train 2 muon zero.stage=2 optimizer.type=muon
expect_exit "Muon" 0
prints "--plan reports total and active parameters" '^active: [0-9]* of them' run 0 ./dtrain --plan --ranks 4 "$tmp/tiny.ini"

# the load-balancing loss is that of the tokens of all ranks
set -- model.output_router_logits=true model.router_aux_loss_coef=0.3
train 1 balanced "$@" batch.micro_batch_size=2
ends "the load-balancing loss: memory as planned" 0 as_planned
for stage in 0 3; do
    train 2 "balanced$stage" "$@" zero.stage=$stage
    ends "the load-balancing loss at stage $stage on two ranks is that of one" 0 close_losses balanced "balanced$stage" 1e-5
    ends "its value, too" 0 close_numbers balanced "balanced$stage" router/aux_loss 1e-5
    ends "and the largest load" 0 close_numbers balanced "balanced$stage" router/max_load 1e-5
done
train 1 balanced_again "$@" batch.micro_batch_size=2 model.activation_checkpointing=block
ends "recomputation counts no token twice" 0 close_losses balanced balanced_again 0
close_losses one balanced 1e-9 && not_ok "it changes the gradients" "equal losses" || ok "it changes the gradients"
fails_alone 1 task.experts 2 train 2 alone "$@"

# generation and rollouts
hf=$tmp/one/hf
echo "the of" >"$tmp/prompt"
run 1 ./dtrain-generate "$hf" --prompt "the of and " --greedy --max-new-tokens 12
expect_exit "generation" 0
printf '{"prompt": "two and two is", "answer": "four"}\n{"prompt": "one and one is", "answer": "two"}\n' >"$tmp/prompts.jsonl"
./dtrain-data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl" >"$tmp/.data" 2>&1
run 2 ./dtrain input/grpo.ini model.path="$hf" run.output_dir="$tmp/grpo" data.train="$tmp/prompts.h5" data.seq_len=32 grpo.max_completion_length=8 \
    checkpoint.save_steps=0 batch.train_batch_size=8 zero.stage=3
expect_exit "GRPO" 0

# adapters and a quantised base
set -- model.path="$hf" lora.r=4 run.max_steps=3
sed -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini" >"$tmp/.ini" && mv "$tmp/.ini" "$tmp/tiny.ini"
train 2 lora "$@" zero.stage=3
expect_exit "adapters on attention" 0
train 1 shared "$@" lora.target_modules=all-linear lora.dropout=0.2
for way in selective block; do
    train 1 "shared_$way" "$@" lora.target_modules=all-linear lora.dropout=0.2 model.activation_checkpointing=$way
    ends "adapters on the shared expert and its gate: the same losses with activation_checkpointing = $way" 0 close_losses shared "shared_$way" 0
done
ends "the gate has an adapter" 0 grep -q shared_expert_gate "$tmp/shared/adapter/adapter_config.json"
train 1 refused "$@" lora.target_modules=0.gate_proj
expect_text "adapters on experts are refused" 'lora.*target_modules.*experts cannot have adapters'
for base in int8 nf4; do
    train 1 "lora_$base" "$@" lora.base_quantization=$base
    ends "a base in $base" 0 close_losses lora "lora_$base" 0.02
done

# biases of experts, clamped units, sinks
sed -e 's/^model_type = llama/model_type = gpt_oss\nnum_experts = 6\nnum_experts_per_tok = 2\nsliding_window = 9/' -e 's/^mlp_bias.*//' "$tmp/plain.ini" >"$tmp/tiny.ini"
train 1 oss checkpoint.export=hf
expect_exit "gpt-oss" 0
ends "gpt-oss: the memory is that of the plan" 0 as_planned
for stage in 0 1 2 3; do
    train 2 "oss$stage" zero.stage=$stage
    ends "gpt-oss: stage $stage on two ranks has the losses of one rank" 0 close_losses oss "oss$stage" 1e-5
done
train 1 oss_again model.activation_checkpointing=block
ends "gpt-oss: recomputation has the same losses" 0 close_losses oss oss_again 0
hf=$tmp/oss/hf
run 1 ./dtrain-generate "$hf" --prompt "the of and " --greedy --max-new-tokens 12
expect_exit "gpt-oss: generation" 0
run 2 ./dtrain input/grpo.ini model.path="$hf" run.output_dir="$tmp/oss_grpo" data.train="$tmp/prompts.h5" data.seq_len=32 grpo.max_completion_length=8 \
    checkpoint.save_steps=0 batch.train_batch_size=8 zero.stage=3
expect_exit "gpt-oss: GRPO" 0
sed -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini" >"$tmp/.ini" && mv "$tmp/.ini" "$tmp/tiny.ini"
set -- model.path="$hf" lora.r=4 run.max_steps=3
train 2 oss_lora "$@" zero.stage=3
expect_exit "gpt-oss: adapters on attention" 0
for base in int8 nf4; do
    train 1 "oss_$base" "$@" lora.base_quantization=$base
    ends "gpt-oss: a base in $base" 0 close_losses oss_lora "oss_$base" 0.02
done
e2e_done
