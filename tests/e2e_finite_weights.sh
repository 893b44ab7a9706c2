#!/bin/bash
# e2e_finite_weights.sh - NaN and Inf in the weights of any model that a program reads. Programs and --check refuse them before the first
# step and name file, tensor and index. dtrain-convert keeps them and warns.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
start=tests/data/dpo/start
poisoned() { # NAME FROM FILE TENSOR INDEX VALUE
    rm -rf "$tmp/$1" && cp -r "$2" "$tmp/$1" && python3 tests/poison.py "$tmp/$1/$3" "$4" "$5" "$6"
}
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
data --kind prompts -o "$tmp/prompts.h5" tests/data/rm/pairs.jsonl
keys="run.threads=1 run.max_steps=2 data.seq_len=64 batch.train_batch_size=4 batch.micro_batch_size=1 precision.dtype=fp32 log.report_to= "
sft() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" data.train="$tmp/sft.h5" $keys "$@"
}
dpo() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    run "$np" ./dtrain /dev/stdin run.task=dpo run.output_dir="$tmp/$dir" data.train="$tmp/pairs.h5" $keys "$@"
}

width=$(grep -o '"hidden_size": [0-9]*' $start/config.json | grep -o '[0-9]*')
up=model.layers.1.mlp.up_proj.weight
poisoned nan $start model.safetensors $up $((3 * width + 1)) nan
refusal="nan/model.safetensors: tensor .$up.: expected finite values, found NaN at \[3, 1\]"
ends_saying "a NaN in model.path ends a run before its first step" 65 "$refusal" sft 1 a model.path="$tmp/nan"
ends_saying "NaN on any rank is refused" 65 "$refusal" sft 3 b model.path="$tmp/nan" zero.stage=3 batch.train_batch_size=3
ends "--check finds it" 65 run 0 ./dtrain --check /dev/stdin run.task=sft run.output_dir="$tmp/c" data.train="$tmp/sft.h5" $keys model.path="$tmp/nan"
expect_text "the message is the same" "$refusal"
ends_saying "dtrain-generate refuses it" 65 "$refusal" run 2 ./dtrain-generate "$tmp/nan" --tokenizer bytes --prompt hello --max-new-tokens 2 --threads 1
poisoned inf $start model.safetensors model.norm.weight 2 -inf
prints "Inf is reported as Inf" "tensor .model.norm.weight.: expected finite values, found Inf at \[2\]" sft 2 d model.path="$tmp/inf"
for type in bf16 fp16; do
    run 0 ./dtrain-convert --to hf --dtype $type $start "$tmp/clean-$type" --tokenizer none
    poisoned $type "$tmp/clean-$type" model.safetensors $up 5 inf
    prints "Inf is refused in $type" "$type/model.safetensors: tensor .$up.: expected finite values, found Inf at \[0, 5\]" sft 2 $type model.path="$tmp/$type"
done
poisoned largest "$tmp/clean-fp16" model.safetensors $up 5 65504
sft 1 largest model.path="$tmp/largest" run.max_steps=1
expect "the largest finite value of a type is accepted" sh -c "! grep -q 'expected finite' '$out'"

# ---- other models -----------------------------------------------------------------------------------------------------------------------------
poisoned adapter tests/data/peft/llama adapter_model.safetensors base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight 0 nan
ends "an adapter" 65 sft 2 e model.path=$start lora.path="$tmp/adapter"
expect_text "by name" "adapter_model.safetensors: tensor .*lora_A.weight.: expected finite values, found NaN at \[0, 0\]"
run 0 ./dtrain --check /dev/stdin run.task=sft run.output_dir="$tmp/e" data.train="$tmp/sft.h5" $keys model.path=$start lora.path="$tmp/adapter"
expect_text "--check reports the tensor" "adapter_model.safetensors: tensor .*lora_A.weight.: expected finite values"
ends_saying "a reference" 65 "$refusal" dpo 2 f model.path=$start dpo.reference_path="$tmp/nan"
run 0 ./dtrain --check /dev/stdin run.task=dpo run.output_dir="$tmp/f" data.train="$tmp/pairs.h5" $keys model.path=$start dpo.reference_path="$tmp/nan"
expect_text "--check reports the tensor" "$refusal"
poisoned judge tests/data/rm/start model.safetensors model.norm.weight 0 nan
for what in "grpo grpo.num_generations=2 grpo.max_completion_length=4 grpo.reward_funcs=model:$tmp/judge" \
    "ppo ppo.response_length=4 ppo.reward_funcs=length ppo.value_path=$tmp/judge"; do
    run 0 ./dtrain --check /dev/stdin run.task=${what%% *} run.output_dir="$tmp/g" data.train="$tmp/prompts.h5" $keys model.path=$start ${what#* }
    expect_exit "--check of ${what%% *}: a model that it reads" 65
    expect_text "by name" "judge/model.safetensors: tensor .model.norm.weight.: expected finite values, found NaN at \[0\]"
    run 2 ./dtrain /dev/stdin run.task=${what%% *} run.output_dir="$tmp/g" data.train="$tmp/prompts.h5" $keys model.path=$start ${what#* }
    expect_text "a run reports NaN in the judge" "judge/model.safetensors: tensor .model.norm.weight.: expected finite values, found NaN at \[0\]"
done

# ---- dtrain-convert, and checkpoints ----------------------------------------------------------------------------------------------------------
ends "a conversion keeps what is not finite" 0 run 2 ./dtrain-convert "$tmp/nan" "$tmp/nan.h5" --tokenizer none
expect_text "dtrain-convert warns of NaN" "tensor .$up.: found NaN at \[3, 1\]; non-finite values are converted unchanged"
run 0 ./dtrain-convert "$tmp/nan.h5" "$tmp/back" --tokenizer none
expect "to the bit" cmp "$tmp/back/model.safetensors" "$tmp/nan/model.safetensors"
ends "a sum with it is refused" 65 run 2 ./dtrain-convert --adapter tests/data/peft/llama "$tmp/nan" "$tmp/merged" --tokenizer none
prints "a checkpoint is refused by name" "nan.h5: tensor .*$up.: expected finite values, found NaN at \[3, 1\]" sft 2 h model.path="$tmp/nan.h5"
e2e_done
