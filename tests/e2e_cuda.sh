#!/bin/bash
# e2e_cuda.sh - training on a GPU: the losses of the CPU, whatever the ranks that share it and the ZeRO stage; checkpoints that go from one to the other.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
gpu="run.device=cuda comm.backend=mpi"
unset DTRAIN_DEVICE # the CPU is the CPU here

run 0 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/check" run.device=cuda
if [ -z "${GPU_NEEDED:-}" ] && [ "$code" != 0 ] && grep -qE 'built without CUDA|no GPU' "$out"; then
    skip "training on a GPU" "$(grep -oE 'built without CUDA|no GPU.*' "$out" | head -1)"
    exit 0
fi
expect_exit "--check on the GPU" 0
[ "$code" = 0 ] || exit 1

# What both devices leave in a step differs by rounding (fp32: 6e-8), which six steps at a high learning rate make some hundred times larger.
train 1 cpu run.device=cpu
expect_exit "the CPU trains" 0
for np in 1 2 4; do
    for stage in 0 1 2 3; do
        train "$np" "n$np-s$stage" $gpu zero.stage=$stage
        if [ "$code" = 0 ]; then expect "losses of $np ranks on the GPU at stage $stage are the CPU's" close_losses cpu "n$np-s$stage" 1e-5
        else not_ok "losses of $np ranks on the GPU at stage $stage" "exit code $code"; fi
    done
done
train 1 cpu-bf16 run.device=cpu precision.dtype=bf16
for np in 1 2; do
    train "$np" "bf16-$np" $gpu precision.dtype=bf16 zero.stage=2
    # bf16 parameters and activations that round to the neighbour now and then, 4e-3 apart
    expect "bf16: losses of $np ranks on the GPU are the CPU's" close_losses cpu-bf16 "bf16-$np" 2e-3
done

# The same call gives the same bits.
train 1 again $gpu zero.stage=0
expect "the same run twice: every digit of the losses" close_losses n1-s0 again 0
expect "and every bit of the weights" same_model "$(newest n1-s0)" "$(newest again)"
for np in 1 2 4; do train "$np" "exact$np" $gpu run.reproducible=true zero.stage=$((np - 1)); done
for np in 2 4; do
    expect "reproducible: losses of $np ranks, every digit" close_losses exact1 "exact$np" 0
    expect "reproducible: weights of $np ranks, every bit" same_model "$(newest exact1)" "$(newest "exact$np")"
done

# GPT-2's parts, with its vocabulary and dropout, whose numbers are those of the CPU
cp "$tmp/tiny.ini" "$tmp/llama.ini"
sed -i '/^intermediate_size\|^num_key_value_heads/d; s/^model_type.*/model_type = gpt2/; s/^hidden_size.*/hidden_size = 128/; s/^vocab_size.*/vocab_size = 50257/;
    s/^num_attention_heads.*/num_attention_heads = 2/; s/^micro_batch_size.*/micro_batch_size = 4/; s/^lr .*/lr = 1e-3/' "$tmp/tiny.ini"
gpt2="model.dropout=0.1"
train 1 gpt2-cpu $gpt2 run.device=cpu
expect_exit "a small GPT-2 on the CPU" 0
train 1 gpt2 $gpt2 $gpu
expect "losses of a small GPT-2 with dropout are the CPU's" close_losses gpt2-cpu gpt2 1e-5
train 2 gpt2-block $gpt2 $gpu zero.stage=3 model.activation_checkpointing=block
expect "with recomputation, on 2 ranks at stage 3" close_losses gpt2-cpu gpt2-block 1e-5
mv "$tmp/llama.ini" "$tmp/tiny.ini"

# save and resume
steps="run.max_steps=6 checkpoint.save_steps=3"
train 2 whole $steps $gpu zero.stage=2
train 2 parts $steps $gpu zero.stage=2 run.max_steps=3
train 2 parts $steps $gpu zero.stage=2
expect_text "a run on the GPU resumes" "resumed from .*step-00000003.h5"
expect "resumed equals uninterrupted, bit for bit" same_model "$(newest whole)" "$(newest parts)"
expect "metrics without gap or repeat" close_losses whole parts 0
for there in "cpu cuda 4 3" "cuda cpu 1 0"; do
    set -- $there
    train 2 "moved-$1" $steps run.device="$1" comm.backend=mpi zero.stage=2 run.max_steps=3
    train "$3" "moved-$1" $steps run.device="$2" comm.backend=mpi zero.stage="$4"
    expect_text "a checkpoint of $1 is resumed on $2" "resumed from .*step-00000003.h5"
    expect "with the losses of one device" close_losses whole "moved-$1" 1e-5
done

# evaluation and generation
run 2 ./dtrain "$tmp/tiny.ini" run.task=eval model.path="$tmp/whole" data.validation="$tmp/valid.h5" run.output_dir="$tmp/eval" $gpu
expect_exit "evaluation on the GPU" 0
./dtrain-generate "$tmp/whole" --device cpu --prompt "it was" --max-new-tokens 40 --greedy >"$tmp/said.cpu" 2>/dev/null
./dtrain-generate "$tmp/whole" --device cuda --prompt "it was" --max-new-tokens 40 --greedy >"$tmp/said.cuda" 2>"$out"
code=$?
expect_exit "generation on the GPU" 0
expect "says what the CPU says" cmp "$tmp/said.cpu" "$tmp/said.cuda"
e2e_done
