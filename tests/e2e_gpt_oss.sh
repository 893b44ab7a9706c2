#!/bin/bash
# e2e_gpt_oss.sh - gpt-oss in the programs: biases of experts, clamped units, sinks, and weights in MXFP4.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e 's/^model_type = llama/model_type = gpt_oss\nnum_experts = 6\nnum_experts_per_tok = 2\nsliding_window = 9/' -e 's/^mlp_bias.*//' "$tmp/tiny.ini"

. "$(dirname "$0")/family_common.sh"

# experts in MXFP4
sed -i -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini"
for base in none int8 nf4; do
    set -- model.path=tests/data/hf/gpt_oss_mxfp4 model.tokenizer=bytes lora.r=4 lora.base_quantization=$base run.max_steps=3 checkpoint.save=trainable
    train 2 "packed_$base" "$@" zero.stage=3
    train 2 "decoded_$base" "$@" zero.stage=3 model.path=tests/data/hf/gpt_oss_mxfp4_decoded
    expect "MXFP4, base $base: the losses of the decoded weights" close_losses "decoded_$base" "packed_$base" 0
    train 1 "packed_$base" "$@" run.max_steps=4
    expect_exit "MXFP4, base $base: a checkpoint of the adapters continues" 0
done
e2e_done
