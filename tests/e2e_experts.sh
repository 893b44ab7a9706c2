#!/bin/bash
# e2e_experts.sh - mixtures of experts in the programs: the load-balancing loss, the z-loss, frozen experts, Muon, and adapters on experts. What every
# family does, e2e_linear_grouped.sh does with a mixture: stages of ZeRO, recomputation, checkpoints, generation, rollouts.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_mixture

train 1 one checkpoint.save_steps=3 checkpoint.export=hf
expect_exit "one rank" 0
expect_text "the log names the experts" 'experts: each token uses 3 of 7, and [0-9]* parameters'
expect "the memory is that of the plan" as_planned
train 2 muon zero.stage=2 optimizer.type=muon
expect_exit "Muon" 0
prints "--plan reports total and active parameters" '^active: [0-9]* of them' run 0 ./dtrain --plan --ranks 4 "$tmp/tiny.ini"

# the load-balancing loss is that of the tokens of all ranks
set -- model.output_router_logits=true model.router_aux_loss_coef=0.3
train 1 balanced "$@" batch.micro_batch_size=2
expect "the load-balancing loss: memory as planned" as_planned
for stage in 0 3; do
    train 2 "balanced$stage" "$@" zero.stage=$stage
    expect "the load-balancing loss at stage $stage on two ranks is that of one" close_losses balanced "balanced$stage" 1e-5
    expect "its value, too" close_numbers balanced "balanced$stage" router/aux_loss 1e-5
    expect "and the largest load" close_numbers balanced "balanced$stage" router/max_load 1e-5
done
train 1 balanced_again "$@" batch.micro_batch_size=2 model.activation_checkpointing=block
expect "recomputation counts no token twice" close_losses balanced balanced_again 0
close_losses one balanced 1e-9 && not_ok "it changes the gradients" "equal losses" || ok "it changes the gradients"
fails_alone 1 task.experts 2 train 2 alone "$@"
train 1 balanced_path "$@" model.path="$tmp/one/hf" run.max_steps=1
expect "it is also that of a model of path" test -n "$(number balanced_path router/aux_loss)"

# so is the z-loss
set -- model.router_z_loss_coef=0.1
train 1 square "$@" batch.micro_batch_size=3
expect "the z-loss: memory as planned" as_planned
expect "the z-loss is in the metrics" test -n "$(number square router/z_loss)"
close_losses one square 1e-9 && not_ok "the z-loss changes the gradients" "equal losses" || ok "the z-loss changes the gradients"
for way in selective block; do
    train 1 "square_$way" "$@" batch.micro_batch_size=3 model.activation_checkpointing=$way
    expect "the z-loss with activation_checkpointing = $way" close_losses square "square_$way" 0
done
for ranks in 2 3; do
    train $ranks "square$ranks" "$@" zero.stage=3
    expect "the z-loss on $ranks ranks is that of one" close_numbers square "square$ranks" router/z_loss 1e-5
    expect "and so are the losses" close_losses square "square$ranks" 1e-5
done
run 0 ./dtrain --plan input/demo.ini model.router_z_loss_coef=1
expect_exit "a z-loss without experts is refused" 64
expect_text "with the key" "model.router_z_loss_coef: the model has no experts"

# frozen experts and routers
for stage in 0 3; do
    train 2 "frozen$stage" zero.stage=$stage model.freeze="experts, mlp.gate" run.max_steps=3
    expect "frozen experts at stage $stage: memory as planned" as_planned
done
expect "the losses do not depend on the stage" close_losses frozen0 frozen3 1e-5
train 1 frozen1 model.freeze="experts, mlp.gate" run.max_steps=1
for name in 0.mlp.experts.3.up_proj 1.mlp.gate 0.mlp.experts.6.down_proj; do
    expect "layers.$name keeps its values" h5diff "$(newest frozen0)" "$(newest frozen1)" "/model/model.layers.$name.weight" "/model/model.layers.$name.weight"
done
shared=/model/model.layers.0.mlp.shared_expert.up_proj.weight
expect "the shared expert is trained" sh -c "! h5diff '$(newest frozen0)' '$(newest frozen1)' $shared $shared"
expect "they have no moments" sh -c "h5ls '$(newest frozen3)/optimizer/exp_avg' >'$tmp/moments' && grep -q shared_expert '$tmp/moments' && ! grep -qE 'experts[.]|mlp[.]gate[.]' '$tmp/moments'"
wrong "a resumed run that freezes other tensors" 64 "model.freeze" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/frozen_resumed" run.max_steps=9 checkpoint.resume="$tmp/frozen1" model.freeze=experts
cp -r "$tmp/frozen1" "$tmp/reordered"
train 1 reordered model.freeze="mlp.gate,experts" run.max_steps=2
expect_exit "the same tensors in another order continue" 0
wrong "parts of a model without images" 64 'vision.train: the model has no tower' ./dtrain --check "$tmp/tiny.ini" vision.train=projector
wrong "a factor without the loss" 64 'router_aux_loss_coef: has no effect' ./dtrain --check "$tmp/tiny.ini" model.router_aux_loss_coef=0.3
wrong "a name of no tensor" 64 "model.freeze: 'expert' matches no tensor" ./dtrain "$tmp/tiny.ini" model.freeze=expert
wrong "a router of another model" 64 "model.freeze: 'mlp.router' matches no tensor of this model; use mlp.gate" ./dtrain "$tmp/tiny.ini" model.freeze=mlp.router

hf=$tmp/one/hf
# adapters and a quantised base
set -- model.path="$hf" lora.r=4 run.max_steps=3
sed -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini" >"$tmp/.ini" && mv "$tmp/.ini" "$tmp/tiny.ini"
train 1 shared "$@" lora.target_modules=all-linear lora.dropout=0.2
for way in selective block; do
    train 1 "shared_$way" "$@" lora.target_modules=all-linear lora.dropout=0.2 model.activation_checkpointing=$way
    expect "adapters on the shared expert and its gate: the same losses with activation_checkpointing = $way" close_losses shared "shared_$way" 0
done
expect "the gate has an adapter" grep -q shared_expert_gate "$tmp/shared/adapter/adapter_config.json"
train 1 refused "$@" lora.target_modules=0.gate_proj
expect_text "experts have adapters by target_parameters" "lora.*target_modules.*'0.gate_proj' is the name of an expert's matrix or of a router; these have adapters by lora.target_parameters"
train 1 refused "$@" lora.target_modules=mlp.gate
expect_text "and so have routers" "'mlp.gate' is the name of an expert's matrix or of a router"
set -- "$@" lora.target_modules=all-linear lora.target_parameters=gate_up_proj,mlp.experts.down_proj,gate.weight lora.rank_pattern=mlp.gate.weight:2
train 1 expert "$@"
expect_exit "adapters on experts" 0
full_only
for way in selective block; do
    train 1 "expert_$way" "$@" model.activation_checkpointing=$way
    expect "adapters on experts: the same losses with activation_checkpointing = $way" close_losses expert "expert_$way" 0
    expect "$way: memory as planned" as_planned
done
for stage in 0 1 2 3; do
    train 2 "expert$stage" "$@" zero.stage=$stage
    expect "stage $stage on two ranks has the losses of one rank" close_losses expert "expert$stage" 1e-5
done
for base in int8 nf4; do
    train 1 "lora_$base" "$@" lora.base_quantization=$base
    expect "a base in $base" close_losses expert "lora_$base" 0.02
done

e2e_done
