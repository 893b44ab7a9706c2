#!/bin/bash
# e2e_expert_groups.sh - experts in units of their own (zero.expert_group_size): the same bits as with all experts of a layer in one unit, at every
# stage, on every number of ranks, with offload, recomputation, adapters and quantised bases; plans, checkpoints, ranks without tokens, faults.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_mixture
sed -i 's/^\[run\]/[run]\nreproducible = true/' "$tmp/tiny.ini"

# 14 steps: the last batch of the epoch is incomplete
train 1 whole run.max_steps=14 checkpoint.save_steps=7 checkpoint.export=hf
expect_exit "one rank, all experts together" 0
for way in "1 0 3" "1 3 3" "2 0 3" "2 1 2" "2 2 3" "2 3 1" "2 3 3" "3 3 4"; do
    set -- $way
    train "$1" "groups$1$2$3" run.max_steps=14 zero.stage="$2" zero.expert_group_size="$3" checkpoint.export=hf
    expect "$1 ranks at stage $2, groups of $3: the losses of one rank" close_losses whole "groups$1$2$3" 0
    expect "and its weights" cmp "$tmp/whole/hf/model.safetensors" "$tmp/groups$1$2$3/hf/model.safetensors"
    expect "memory as planned" as_planned
done
# auto, the default: all experts together where they fit, else the fewest groups
expect "auto takes all experts together" grep -q '^expert_group_size = 0$' "$tmp/whole/config.ini"
needs_live() { ./dtrain --plan --ranks 2 "$tmp/tiny.ini" zero.stage=3 zero.max_live_parameters=1 zero.expert_group_size="$1" 2>&1 | sed -n 's/.*needs zero.max_live_parameters >= //p' | tail -1; }
live=$(needs_live 3)
[ "$live" -lt "$(needs_live 4)" ] && ok "smaller groups, fewer live parameters" || not_ok "smaller groups, fewer live parameters" "$live, $(needs_live 4)"
train 2 automatic zero.stage=3 zero.max_live_parameters="$live" run.max_steps=14 checkpoint.export=hf
expect_text "auto takes groups" "zero.expert_group_size = auto takes 3 of 7 experts, because all need zero.max_live_parameters >= $(needs_live 0)"
expect "the losses of one rank" close_losses whole automatic 0
expect "and its weights" cmp "$tmp/whole/hf/model.safetensors" "$tmp/automatic/hf/model.safetensors"
expect "the choice is recorded" grep -q '^expert_group_size = 3$' "$tmp/automatic/config.ini"
as_planned && ok "memory as planned" || not_ok "memory as planned" "$(tail -3 "$out")"
expect "and as --plan says" as_plan_says 2 3 zero.max_live_parameters="$live"
train 2 too_few zero.stage=3 zero.max_live_parameters=100
expect_text "with too few live parameters for the smallest groups" "zero.max_live_parameters = 100 is too small"
# two ranks with four samples in each micro-step: in that batch one of them has a micro-step without tokens
train 2 four zero.stage=3 run.max_steps=14 batch.micro_batch_size=4
expect_exit "a rank without tokens, all experts together" 0
train 2 idle zero.stage=3 zero.expert_group_size=2 run.max_steps=14 batch.micro_batch_size=4
expect "in groups: the same losses" close_losses four idle 0
train 1 six
set -- zero.stage=3 zero.expert_group_size=2
for way in model.activation_checkpointing=block model.activation_checkpointing=selective zero.offload_param=cpu \
    "zero.offload_optimizer=cpu zero.offload_param=cpu" "zero.offload_optimizer=nvme zero.offload_param=nvme zero.nvme_path=$tmp" \
    zero.overlap_comm=false zero.prefetch_bucket_size=700; do
    train 2 way "$@" $way
    expect "$way: the same losses" close_losses six way 0
    expect "memory as planned" as_planned
    rm -rf "$tmp/way"
done
train 2 whole_frozen model.freeze="experts.3, experts.0.up_proj, mlp.gate" zero.stage=3
train 2 frozen "$@" model.freeze="experts.3, experts.0.up_proj, mlp.gate"
expect "frozen experts" close_losses whole_frozen frozen 0
train 2 whole_all model.freeze=experts zero.stage=3
train 2 all_frozen "$@" model.freeze=experts
expect "all experts frozen" close_losses whole_all all_frozen 0
train 2 muon_whole zero.stage=3 optimizer.type=muon
train 2 muon "$@" optimizer.type=muon
expect "Muon" close_losses muon_whole muon 1e-5
# states of fewer bits: random bits and blocks do not depend on the groups; the experts are no multiple of a block
for states in bf16 int8; do
    set -- optimizer.state_dtype=$states model.moe_intermediate_size=130 run.max_steps=4 checkpoint.save_steps=2
    train 1 "whole_$states" "$@"
    train 2 "groups_$states" "$@" zero.stage=3 zero.expert_group_size=2
    expect "states in $states: the same losses" close_losses "whole_$states" "groups_$states" 0
    rm -f "$tmp/whole_$states"/checkpoints/*4.h5
    train 2 "whole_$states" "$@" zero.stage=3 zero.expert_group_size=3
    expect_exit "states in $states: a run resumes with other groups" 0
    expect "to the same losses" close_losses "whole_$states" "groups_$states" 0
done
set -- zero.stage=3 zero.expert_group_size=2

cp "$tmp/tiny.ini" "$tmp/shared.ini"
sed -i -e 's/^model_type.*/model_type = gpt_oss/' -e '/^shared_expert\|^norm_topk\|^moe_inter/d' -e 's/^num_hidden_layers/intermediate_size = 20\n&/' "$tmp/tiny.ini"
train 1 biased
expect_exit "experts with biases" 0
train 2 biased_groups "$@"
expect "in groups: the same losses" close_losses biased biased_groups 0
cp "$tmp/shared.ini" "$tmp/tiny.ini"

# checkpoints do not depend on the groups
cp -r "$tmp/whole" "$tmp/resumed" && rm -rf "$tmp"/resumed/*14*.h5 "$tmp"/resumed/hf
train 2 resumed "$@" run.max_steps=14 checkpoint.save_steps=0 checkpoint.export=hf
expect_exit "a run resumes with other groups" 0
expect "to the same weights" cmp "$tmp/whole/hf/model.safetensors" "$tmp/resumed/hf/model.safetensors"
fails_alone 1 zero.gather 9 train 2 alone "$@"
fails_alone 0 zero.reduce 5 train 2 alone "$@"

# plans, errors
plan_of() { run 0 ./dtrain --plan --ranks 256 --ranks-per-node 8 --device-memory 80G --host-memory 2048G input/models/deepseek-v3.ini zero.stage=3 "$@"; }
total() { awk '$1 == 3 && NF > 6 { print $(NF - 1 - ($NF == "large" ? 2 : 1)); exit }' "$out" | numfmt --from=si; }
plan_of zero.max_live_parameters=100000000000 zero.expert_group_size=0
before=$(total)
plan_of zero.expert_group_size=16
after=$(total)
[ "${after:-0}" -gt 0 ] && [ "$((after * 10))" -lt "$((before * 9))" ] && ok "groups lower the plan of a large mixture" ||
    not_ok "groups lower the plan of a large mixture" "from ${before:-nothing} to ${after:-nothing}"
plan_of zero.max_live_parameters=100000000000 zero.stage=auto
expect_text "auto chooses groups of it" "zero.stage = auto takes 3 with zero.expert_group_size = "
run 0 ./dtrain --plan --gpu H200 --ranks 256 --ranks-per-node 8 input/models/deepseek-v3.ini zero.stage=3
expect_exit "the time of a step with groups" 0
expect_text "names them" "time of a step on .*, zero.stage = 3, zero.expert_group_size = "
run 0 timeout 60 ./dtrain --plan --gpu H200 --ranks 256 --ranks-per-node 8 input/models/deepseek-v3.ini zero.stage=3 zero.expert_group_size=1
expect_exit "30 thousand units: the time per unit does not grow with their number" 0
expect "experts count as their block" [ "$(grep -c '^block' "$out")" -le 2 ]
# 64 GPUs, of which stage 2 fits only with groups: zero.stage = auto does not consider those, a remedy does
plan_of_qwen() { run 0 ./dtrain --plan --ranks 64 --ranks-per-node 8 --device-memory 83G --host-memory 2048G input/models/qwen3-30b-a3b.ini run.device=cuda zero.stage=2 "$@"; }
plan_of_qwen
expect_text "stage 2 fits with groups" "zero.stage = 2, as configured, fits"
expect_text "zero.stage = auto takes the stage that a run takes" "zero.stage = auto takes 3, the first that fits"
plan_of_qwen zero.expert_group_size=0
expect_text "auto is proposed instead of a size that does not fit" "the smallest change that fits is zero.expert_group_size = auto, which needs"
run 0 ./dtrain --plan input/demo.ini zero.expert_group_size=1
expect_exit "groups without experts are refused" 64
expect_text "with the key" "zero.expert_group_size: the model has no experts"

# generation in rollouts, adapters, quantised bases
hf=$tmp/whole/hf
printf '{"prompt": "two and two is", "answer": "four"}\n{"prompt": "one and one is", "answer": "two"}\n' >"$tmp/prompts.jsonl"
./dtrain-data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl" >"$tmp/.data" 2>&1
for way in "0 3" "2 3" "2 2"; do
    set -- $way
    run 2 ./dtrain input/grpo.ini model.path="$hf" run.output_dir="$tmp/grpo$1$2" data.train="$tmp/prompts.h5" data.seq_len=32 \
        grpo.max_completion_length=8 checkpoint.save_steps=0 batch.train_batch_size=8 zero.stage="$2" zero.expert_group_size="$1" run.reproducible=true \
        grpo.beta=0.1 grpo.sync_reference_steps=1
    expect_exit "GRPO at stage $2, groups of $1" 0
    expect "the same losses" close_losses grpo03 "grpo$1$2" 0
done
set -- zero.stage=3 zero.expert_group_size=2
# generation by ranks that have parts of the model: the parameters of two blocks do not fit, those of groups do
train 1 wide run.max_steps=1 model.num_experts=16 model.moe_intermediate_size=768 checkpoint.export=hf
generate() { # MEMORY
    run 2 env DTRAIN_QUEUE_MEMORY="$1" ./dtrain-generate "$tmp/wide/hf" --zero-stage 3 --device queue --prompt "two and two" --max-new-tokens 8 --temperature 0 --threads 1
    grep -v tokens/s "$out" >"$tmp/.text"
}
generate 100000000
cp "$tmp/.text" "$tmp/.all"
generate 8000000
expect_exit "generation with room for groups of experts alone" 0
expect "the same text" cmp "$tmp/.all" "$tmp/.text"
generate 4000000
expect_text "without room for the parameters themselves" "not enough queue memory for parameters"
# a policy, its reference, a critic and a reward model, all with experts
printf '{"prompt": "two and two is", "chosen": "four", "rejected": "five"}\n{"prompt": "one and one is", "chosen": "two", "rejected": "nine"}\n' >"$tmp/pairs.jsonl"
./dtrain-data --kind preference -o "$tmp/pairs.h5" "$tmp/pairs.jsonl" >"$tmp/.data" 2>&1
for size in 0 2; do
    run 2 ./dtrain input/rm.ini model.path="$hf" run.output_dir="$tmp/rm$size" data.train="$tmp/pairs.h5" data.validation= data.seq_len=32 run.max_steps=2 checkpoint.save_steps=0 \
        batch.train_batch_size=2 batch.micro_batch_size=1 zero.stage=3 zero.expert_group_size=$size run.reproducible=true
    expect_exit "a reward model, groups of $size" 0
    run 2 ./dtrain input/ppo.ini model.path="$hf" run.output_dir="$tmp/ppo$size" data.train="$tmp/prompts.h5" data.seq_len=32 ppo.reward_path="$tmp/rm0/hf" \
        ppo.response_length=8 ppo.total_episodes=16 checkpoint.save_steps=0 batch.train_batch_size=8 zero.stage=3 zero.expert_group_size=$size run.reproducible=true
    expect_exit "PPO, groups of $size" 0
    as_planned && ok "memory as planned" || not_ok "memory as planned" "$(tail -3 "$out")"
done
expect "the same losses of the reward model" close_losses rm0 rm2 0
expect "and of PPO" close_losses ppo0 ppo2 0
expect "and the same critic" cmp "$tmp/ppo0/critic/model.safetensors" "$tmp/ppo2/critic/model.safetensors"
# a policy and a critic without experts, and a reward model whose experts fit in groups alone
none=; for key in num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size norm_topk_prob; do none="$none model.$key="; done
train 1 dense run.max_steps=1 checkpoint.export=hf $none model.model_type=qwen2 model.intermediate_size=64
for model in wide dense; do
    run 1 ./dtrain input/rm.ini model.path="$tmp/$model/hf" run.output_dir="$tmp/rm_$model" data.train="$tmp/pairs.h5" data.validation= data.seq_len=32 run.max_steps=1 \
        checkpoint.save_steps=0 batch.train_batch_size=2 batch.micro_batch_size=1
done
judged() { # NAME MEMORY
    run 2 env DTRAIN_DEVICE=queue DTRAIN_QUEUE_MEMORY="$2" ./dtrain input/ppo.ini model.path="$tmp/dense/hf" run.output_dir="$tmp/$1" data.train="$tmp/prompts.h5" data.seq_len=32 \
        ppo.reward_path="$tmp/rm_wide/hf" ppo.value_path="$tmp/rm_dense/hf" ppo.response_length=8 ppo.total_episodes=16 checkpoint.save_steps=0 batch.train_batch_size=8 zero.stage=3 \
        run.reproducible=true
}
judged roomy 1000000000
judged narrow 11000000
expect_exit "a reward model with experts, and a policy without" 0
expect_text "groups of the reward model" "zero.expert_group_size = auto takes .* of 16 experts"
expect "the same losses" close_losses roomy narrow 0
as_planned && ok "memory as planned" || not_ok "memory as planned" "$(tail -3 "$out")"
expect "a key that the policy cannot have is not recorded" [ -z "$(grep '^expert_group_size = [0-9]' "$tmp/narrow/config.ini")" ]
sed -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini" >"$tmp/.ini" && mv "$tmp/.ini" "$tmp/tiny.ini"
lora="model.path=$hf lora.r=4 run.max_steps=3 lora.target_modules=all-linear lora.target_parameters=gate_up_proj,mlp.experts.down_proj,gate.weight"
for base in none int8 nf4; do
    train 1 "lora_$base" $lora lora.base_quantization=$base
    train 2 "lora_groups_$base" $lora lora.base_quantization=$base "$@"
    expect "adapters on experts, base in $base: the same losses" close_losses "lora_$base" "lora_groups_$base" 0
    expect "memory as planned" as_planned
    expect "the same adapter" cmp "$tmp/lora_$base/adapter/adapter_model.safetensors" "$tmp/lora_groups_$base/adapter/adapter_model.safetensors"
done
e2e_done
