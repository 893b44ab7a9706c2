#!/bin/bash
# e2e_cuda.sh - training on a GPU: losses, norms and weights match those of the CPU for any number of ranks per GPU, any ZeRO stage and any
# offload. Checkpoints move between CPU and GPU.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
unset DTRAIN_DEVICE # the CPU is the CPU here

# On a GPU, or without one on the simulator (tests/cuda_sim), which makes a thousandth of its steps a second: less of everything.
steps="run.max_steps=6 optimizer.eps=1e-4" vocabulary=50257
gpu() { on_gpu train "$@"; } # NP DIR ARGS...
find_gpu "$tmp/tiny.ini"
if [ -n "$simulated" ]; then
    steps="run.max_steps=3 batch.train_batch_size=4 optimizer.eps=1e-4" vocabulary=2003
    ends "a step on the simulator of a GPU" 0 gpu 1 check run.max_steps=1 batch.train_batch_size=1
    [ "$code" = 0 ] || exit 1
fi
cpu() { train "$@" run.device=cpu; }
expect_losses() { if [ "$code" = 0 ]; then expect "$1" close_losses "$2" "$3" "$4"; else not_ok "$1" "exit code $code"; fi; } # NAME A B TOL

# How far apart two devices may be. A chain of fifty roundings (2^-24 each) through sums of a hundred terms, two blocks forward and backward and the head,
# leaves 3e-6 of what it computes: of a loss, of a norm, and of the larger elements of a gradient. The norm of what AdamW gets is at most 1
# (max_grad_norm), and so is the root mean square of its 40 thousand elements at most 5e-3: 3e-2, six times that, is off by 1e-7, and an adjacent element
# is off by no more. An update divides it by no less than eps = 1e-4: with lr = 1e-2 it is 1e-5 too far at worst, where updates are up to 1e-2. That is
# what weights may be off for each step. Losses and norms of the next step change by the sum of gradients times that, of random sign; they get 1e-5, three times
# their own chain.
ends "the CPU trains" 0 cpu 1 cpu $steps
n_steps=${steps%% *} n_steps=${n_steps#*=}
# Each stage with all that may be offloaded there; ranks so that any two of ranks, stage, states and parameters meet.
while read -r np stage states params more; do
    dir=n$np-s$stage-$states-$params
    what="ranks: $np, stage $stage, states in ${states/none/device}, parameters in ${params/none/device}"
    gpu "$np" "$dir" $steps zero.stage="$stage" zero.offload_optimizer="$states" zero.offload_param="$params" zero.nvme_path="$tmp" \
        zero.sub_group_size=4096 $more
    expect_losses "$what: losses are the CPU's" cpu "$dir" 1e-5
    expect "gradient norms match" close_numbers cpu "$dir" grad_norm 1e-5
    expect "weights" close_weights cpu "$dir" "$n_steps"e-5
    [ "$dir" = n1-s0-none-none ] || rm -rf "${tmp:?}/$dir"
done <<LAYOUTS
1 0 none none
2 0 cpu none
4 0 nvme none
2 1 none none
4 1 cpu none
1 1 nvme none
4 2 none none
1 2 cpu none
2 2 nvme none
1 3 none none
2 3 none cpu
4 3 none nvme zero.pin_memory=false
2 3 cpu none
4 3 cpu cpu
1 3 cpu nvme
4 3 nvme none
1 3 nvme cpu zero.pin_memory=false
2 3 nvme nvme
LAYOUTS
expect_text "the log names the chip" "device .*sm_[0-9]+"
cpu 1 cpu-bf16 $steps precision.dtype=bf16
for np in 1 2; do
    gpu "$np" "bf16-$np" $steps precision.dtype=bf16 zero.stage=2
    # bf16 parameters and activations that round to the neighbour now and then, 4e-3 apart
    expect_losses "bf16: losses of $np ranks on the GPU are the CPU's" cpu-bf16 "bf16-$np" 2e-3
done

cpu 1 cpu-fp16 $steps precision.dtype=fp16
for layout in "1 0" "2 3"; do
    gpu "${layout% *}" "fp16-${layout% *}" $steps precision.dtype=fp16 zero.stage="${layout#* }"
    # fp16 has three bits more than bf16
    expect_losses "fp16: losses of ${layout% *} ranks on the GPU at stage ${layout#* } are the CPU's" cpu-fp16 "fp16-${layout% *}" 2.5e-4
done

# Two nodes that have all states each
for stage in 1 3; do
    DTRAIN_FAKE_NODES=2 gpu 4 "groups-s$stage" $steps zero.stage=$stage zero.shard_group=node
    expect_losses "losses of 2 nodes of 2 ranks at stage $stage, each with all states, are the CPU's" cpu "groups-s$stage" 1e-5
done

# The same call gives the same bits.
gpu 1 again $steps zero.stage=0
expect "the same run twice: every digit of the losses" close_losses n1-s0-none-none again 0
expect "weights are bit-identical" same_model "$(newest n1-s0-none-none)" "$(newest again)"
for np in 1 2 4; do gpu "$np" "exact$np" $steps run.reproducible=true zero.stage=$((np - 1)); done
for np in 2 4; do
    expect "reproducible: losses of $np ranks, every digit" close_losses exact1 "exact$np" 0
    expect "reproducible: weights of $np ranks, every bit" same_model "$(newest exact1)" "$(newest "exact$np")"
done

# GPT-2's parts, with dropout, whose numbers are those of the CPU
cp "$tmp/tiny.ini" "$tmp/llama.ini"
sed -i "/^intermediate_size\|^num_key_value_heads/d; s/^model_type.*/model_type = gpt2/; s/^hidden_size.*/hidden_size = 128/; s/^vocab_size.*/vocab_size = $vocabulary/
    s/^num_attention_heads.*/num_attention_heads = 2/; s/^micro_batch_size.*/micro_batch_size = 2/; s/^lr .*/lr = 1e-3/" "$tmp/tiny.ini"
ends "a small GPT-2 on the CPU" 0 cpu 1 gpt2-cpu $steps model.dropout=0.1
gpu 1 gpt2 $steps model.dropout=0.1
expect_losses "losses of a small GPT-2 with dropout are the CPU's" gpt2-cpu gpt2 1e-5
gpu 2 gpt2-block $steps model.dropout=0.1 zero.stage=3 model.activation_checkpointing=block
expect_losses "with recomputation, on 2 ranks at stage 3" gpt2-cpu gpt2-block 1e-5
mv "$tmp/llama.ini" "$tmp/tiny.ini"

# save and resume
half="checkpoint.save_steps=2 run.max_steps=2"
gpu 2 whole $steps checkpoint.save_steps=2 zero.stage=2
gpu 2 parts $steps $half zero.stage=2
prints "a run on the GPU resumes" "resumed from .*step-00000002.h5" gpu 2 parts $steps checkpoint.save_steps=2 zero.stage=2
expect "resumed equals uninterrupted, bit for bit" same_model "$(newest whole)" "$(newest parts)"
expect "metrics without gap or repeat" close_losses whole parts 0
for there in "cpu gpu 4 3" "gpu cpu 1 0"; do
    set -- $there
    "$1" 2 "moved-$1" $steps $half zero.stage=2
    "$2" "$3" "moved-$1" $steps checkpoint.save_steps=2 zero.stage="$4"
    expect_text "a checkpoint of the $1 is resumed on the $2" "resumed from .*step-00000002.h5"
    expect "with the losses of one device" close_losses whole "moved-$1" 1e-5
done

# Adapters, of embedding and head too, on a base that is stored whole, in 8 and in 4 bits.
adapters="run.task=sft data.train=$tmp/sft.h5 model.path=$tmp/whole data.seq_len=64 $steps optimizer.lr=1e-3 lora.r=4 lora.target_modules=.*(proj|embed_tokens|lm_head)"
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
for base in "" int8 nf4; do
    keys=$adapters${base:+ lora.base_quantization=$base} name=${base:-full}
    ends "LoRA on a base in $name on the CPU" 0 cpu 1 lora-cpu $keys
    gpu 1 lora $keys
    expect_losses "LoRA on a base in $name: losses are the CPU's" lora-cpu lora 1e-5
    gpu 2 lora3 $keys zero.stage=3 zero.offload_param=cpu
    expect_losses "on 2 ranks at stage 3, offloaded" lora-cpu lora3 1e-5
    rm -rf "$tmp/lora-cpu" "$tmp/lora" "$tmp/lora3"
done

# evaluation and generation
ends "evaluation on the GPU" 0 gpu 2 eval run.task=eval model.path="$tmp/whole" data.validation="$tmp/valid.h5"
generate() { ./dtrain-generate "$tmp/whole" --prompt "it was" --max-new-tokens 20 --greedy "$@" 2>"$out"; }
generate --device cpu >"$tmp/said.cpu"
if [ "$vocabulary" = 50257 ]; then generate --device cuda >"$tmp/said.gpu"; else DTRAIN_DEVICE=cudasim generate --device cpu >"$tmp/said.gpu"; fi
code=$?
expect_exit "generation on the GPU" 0
expect "says what the CPU says" cmp "$tmp/said.cpu" "$tmp/said.gpu"
e2e_done
