#!/bin/bash
# e2e_gpt_oss.sh - gpt-oss in the programs: biases of experts, clamped units, sinks, and weights in MXFP4. The same losses at every stage of ZeRO,
# with recomputation and on quantised bases; generation and rollouts.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e 's/^model_type = llama/model_type = gpt_oss\nnum_experts = 6\nnum_experts_per_tok = 2\nsliding_window = 9/' -e 's/^mlp_bias.*//' "$tmp/tiny.ini"

train 1 oss checkpoint.export=hf
expect_exit "one rank" 0
expect "the memory is that of the plan" as_planned
for stage in 0 1 2 3; do
    train 2 "oss$stage" zero.stage=$stage
    expect "stage $stage on two ranks has the losses of one rank" close_losses oss "oss$stage" 1e-5
done
train 1 oss_again model.activation_checkpointing=block
expect "recomputation has the same losses" close_losses oss oss_again 0
hf=$tmp/oss/hf
run 1 ./dtrain-generate "$hf" --prompt "the of and " --greedy --max-new-tokens 12
expect_exit "generation" 0
printf '{"prompt": "two and two is", "answer": "four"}\n{"prompt": "one and one is", "answer": "two"}\n' >"$tmp/prompts.jsonl"
./dtrain-data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl" >"$tmp/.data" 2>&1
run 2 ./dtrain input/grpo.ini model.path="$hf" run.output_dir="$tmp/oss_grpo" data.train="$tmp/prompts.h5" data.seq_len=32 grpo.max_completion_length=8 \
    checkpoint.save_steps=0 batch.train_batch_size=8 zero.stage=3
expect_exit "GRPO" 0
sed -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini" >"$tmp/.ini" && mv "$tmp/.ini" "$tmp/tiny.ini"
set -- model.path="$hf" lora.r=4 run.max_steps=3
train 2 oss_lora "$@" zero.stage=3
expect_exit "adapters on attention" 0
for base in int8 nf4; do
    train 1 "oss_$base" "$@" lora.base_quantization=$base
    expect "a base in $base" close_losses oss_lora "oss_$base" 0.02
done

# experts in MXFP4
for base in none int8 nf4; do
    set -- model.path=tests/data/hf/gpt_oss_mxfp4 model.tokenizer=bytes lora.r=4 lora.base_quantization=$base run.max_steps=3 checkpoint.save=trainable
    train 2 "packed_$base" "$@" zero.stage=3
    train 2 "decoded_$base" "$@" zero.stage=3 model.path=tests/data/hf/gpt_oss_mxfp4_decoded
    expect "MXFP4, base $base: the losses of the decoded weights" close_losses "decoded_$base" "packed_$base" 0
    train 1 "packed_$base" "$@" run.max_steps=4
    expect_exit "MXFP4, base $base: a checkpoint of the adapters continues" 0
done
e2e_done
