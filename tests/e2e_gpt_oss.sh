#!/bin/bash
# e2e_gpt_oss.sh - gpt-oss in the programs: biases of experts, clamped units, sinks, and files in MXFP4 and
# FP8.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e 's/^model_type = llama/model_type = gpt_oss\nnum_experts = 6\nnum_experts_per_tok = 2\nsliding_window = 9/' -e 's/^mlp_bias.*//' "$tmp/tiny.ini"

. "$(dirname "$0")/family_common.sh"

# files of codes: experts in MXFP4, and all matrices in FP8
sed -i -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini"
for packed in gpt_oss_mxfp4 qwen3_moe_fp8; do
    ends "$packed: converted" 0 run 0 ./dtrain-convert --to hf --dtype fp32 tests/data/hf/$packed "$tmp/plain_$packed"
    expect "$packed: exports are plain" test -z "$(grep quantization "$tmp/plain_$packed/config.json")"
    for base in none int8 nf4; do
        set -- model.path=tests/data/hf/$packed model.tokenizer=bytes lora.r=4 lora.base_quantization=$base run.max_steps=3 checkpoint.save=trainable
        train 2 "packed_$packed$base" "$@" zero.stage=3
        train 2 "decoded_$packed$base" "$@" zero.stage=3 model.path="$tmp/plain_$packed"
        expect "$packed, base $base: the losses of the decoded weights" close_losses "decoded_$packed$base" "packed_$packed$base" 0
        train 1 "packed_$packed$base" "$@" run.max_steps=4
        expect_exit "$packed, base $base: a checkpoint of the adapters continues" 0
    done
done
e2e_done
