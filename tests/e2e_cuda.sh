#!/bin/bash
# e2e_cuda.sh - training on a GPU: the losses of the CPU, whatever the ranks that share it and the ZeRO stage; checkpoints that go from one to the other.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
unset DTRAIN_DEVICE # the CPU is the CPU here

# On a GPU, or without one on the simulator (tests/cuda_sim), which makes a thousandth of its steps a second: less of everything.
steps="run.max_steps=6" vocabulary=50257
gpu() { on_gpu train "$@"; } # NP DIR ARGS...
find_gpu "$tmp/tiny.ini"
if [ -n "$simulated" ]; then
    steps="run.max_steps=4 batch.train_batch_size=4" vocabulary=2003
    gpu 1 check run.max_steps=1 batch.train_batch_size=1
    expect_exit "a step on the simulator of a GPU" 0
    [ "$code" = 0 ] || exit 1
fi
cpu() { train "$@" run.device=cpu; }
expect_losses() { if [ "$code" = 0 ]; then expect "$1" close_losses "$2" "$3" "$4"; else not_ok "$1" "exit code $code"; fi; } # NAME A B TOL

# What both devices leave in a step differs by rounding (fp32: 6e-8), which six steps at a high learning rate make some hundred times larger.
cpu 1 cpu $steps
expect_exit "the CPU trains" 0
for np in 1 2 4; do
    for stage in 0 1 2 3; do
        gpu "$np" "n$np-s$stage" $steps zero.stage=$stage
        expect_losses "losses of $np ranks on the GPU at stage $stage are the CPU's" cpu "n$np-s$stage" 1e-5
    done
done
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

# What is offloaded the processor updates, with bits of its own.
gpu 2 offload-cpu $steps zero.stage=3 zero.offload_optimizer=cpu zero.offload_param=cpu
expect_losses "offloaded to host memory: losses are the CPU's" cpu offload-cpu 1e-5
gpu 2 offload-nvme $steps zero.stage=1 zero.offload_optimizer=nvme zero.nvme_path="$tmp" zero.sub_group_size=4096
expect_losses "offloaded to a file: losses are the CPU's" cpu offload-nvme 1e-5
gpu 1 offload-param $steps zero.stage=3 zero.offload_param=nvme zero.nvme_path="$tmp" zero.pin_memory=false
expect_losses "parameters in a file: losses are the CPU's" cpu offload-param 1e-5

# The same call gives the same bits.
gpu 1 again $steps zero.stage=0
expect "the same run twice: every digit of the losses" close_losses n1-s0 again 0
expect "and every bit of the weights" same_model "$(newest n1-s0)" "$(newest again)"
for np in 1 2 4; do gpu "$np" "exact$np" $steps run.reproducible=true zero.stage=$((np - 1)); done
for np in 2 4; do
    expect "reproducible: losses of $np ranks, every digit" close_losses exact1 "exact$np" 0
    expect "reproducible: weights of $np ranks, every bit" same_model "$(newest exact1)" "$(newest "exact$np")"
done

# GPT-2's parts, with dropout, whose numbers are those of the CPU
cp "$tmp/tiny.ini" "$tmp/llama.ini"
sed -i "/^intermediate_size\|^num_key_value_heads/d; s/^model_type.*/model_type = gpt2/; s/^hidden_size.*/hidden_size = 128/; s/^vocab_size.*/vocab_size = $vocabulary/
    s/^num_attention_heads.*/num_attention_heads = 2/; s/^micro_batch_size.*/micro_batch_size = 2/; s/^lr .*/lr = 1e-3/" "$tmp/tiny.ini"
cpu 1 gpt2-cpu $steps model.dropout=0.1
expect_exit "a small GPT-2 on the CPU" 0
gpu 1 gpt2 $steps model.dropout=0.1
expect_losses "losses of a small GPT-2 with dropout are the CPU's" gpt2-cpu gpt2 1e-5
gpu 2 gpt2-block $steps model.dropout=0.1 zero.stage=3 model.activation_checkpointing=block
expect_losses "with recomputation, on 2 ranks at stage 3" gpt2-cpu gpt2-block 1e-5
mv "$tmp/llama.ini" "$tmp/tiny.ini"

# save and resume
half="checkpoint.save_steps=2 run.max_steps=2"
gpu 2 whole $steps checkpoint.save_steps=2 zero.stage=2
gpu 2 parts $steps $half zero.stage=2
gpu 2 parts $steps checkpoint.save_steps=2 zero.stage=2
expect_text "a run on the GPU resumes" "resumed from .*step-00000002.h5"
expect "resumed equals uninterrupted, bit for bit" same_model "$(newest whole)" "$(newest parts)"
expect "metrics without gap or repeat" close_losses whole parts 0
for there in "cpu gpu 4 3" "gpu cpu 1 0"; do
    set -- $there
    "$1" 2 "moved-$1" $steps $half zero.stage=2
    "$2" "$3" "moved-$1" $steps checkpoint.save_steps=2 zero.stage="$4"
    expect_text "a checkpoint of the $1 is resumed on the $2" "resumed from .*step-00000002.h5"
    expect "with the losses of one device" close_losses whole "moved-$1" 1e-5
done

# Adapters, of embedding and head too, beside a base that is stored whole, in 8 and in 4 bits, and with products in int8. An element of x that rounds to
# another code of int8 changes one product by 1/127 of its row's largest; losses, means of many, stay as near as the other ones.
adapters="run.task=sft data.train=$tmp/sft.h5 model.path=$tmp/whole data.seq_len=64 $steps optimizer.lr=1e-3 lora.r=4 lora.target_modules=.*(proj|embed_tokens|lm_head)"
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
for base in "" int8 nf4 "int8 lora.llm_int8_threshold=2.5"; do
    keys=$adapters${base:+ lora.base_quantization=$base} name=${base:-full}
    cpu 1 lora-cpu $keys
    expect_exit "LoRA on a base in $name on the CPU" 0
    gpu 1 lora $keys
    expect_losses "LoRA on a base in $name: losses are the CPU's" lora-cpu lora 1e-5
    gpu 2 lora3 $keys zero.stage=3 zero.offload_param=cpu
    expect_losses "on 2 ranks at stage 3, offloaded" lora-cpu lora3 1e-5
    rm -rf "$tmp/lora-cpu" "$tmp/lora" "$tmp/lora3"
done

# evaluation and generation
gpu 2 eval run.task=eval model.path="$tmp/whole" data.validation="$tmp/valid.h5"
expect_exit "evaluation on the GPU" 0
generate() { ./dtrain-generate "$tmp/whole" --prompt "it was" --max-new-tokens 20 --greedy "$@" 2>"$out"; }
generate --device cpu >"$tmp/said.cpu"
if [ "$vocabulary" = 50257 ]; then generate --device cuda >"$tmp/said.gpu"; else DTRAIN_DEVICE=cudasim generate --device cpu >"$tmp/said.gpu"; fi
code=$?
expect_exit "generation on the GPU" 0
expect "says what the CPU says" cmp "$tmp/said.cpu" "$tmp/said.gpu"
e2e_done
