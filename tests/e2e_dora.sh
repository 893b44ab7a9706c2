#!/bin/bash
# e2e_dora.sh - DoRA: PEFT opens, merges and continues the adapters of a run, and a run those of PEFT. Bits do not depend on ranks, stage, offload
# and resuming. e2e_lora.sh compares steps with PEFT's.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
dora() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$3
    shift 3
    [ "$model" != llama ] || model=tests/data/dpo/start
    [ "$model" != gpt2 ] || model=tests/data/lora/gpt2
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=4 run.threads=1 model.path="$model" data.train="$tmp/sft.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=12 batch.micro_batch_size=1 optimizer.lr=1e-2 scheduler.type=constant \
        run.reproducible=true log.report_to=jsonl checkpoint.save_steps=0 lora.r=4 lora.use_dora=true lora.target_modules='.*(proj|c_attn|c_fc)' "$@"
}
dora 1 bits llama checkpoint.export=hf
is "the first loss is the model's own" "$(number bits loss | head -1 | cut -c1-8)" "$(dora 1 base llama lora.r=0 lora.use_dora=false lora.target_modules= run.max_steps=1; number base loss | cut -c1-8)"
for layout in "2 2 none none" "3 3 none none" "2 1 cpu none" "2 3 cpu cpu"; do
    set -- $layout
    dora "$1" "bits$1$2$3" llama zero.stage="$2" zero.offload_optimizer="$3" zero.offload_param="$4" checkpoint.export=hf
    expect "the same bits on $1 ranks at stage $2, offload $3 and $4" same_model "$(newest bits)" "$(newest "bits$1$2$3")"
    expect "the same merged model" cmp "$tmp/bits/hf/model.safetensors" "$tmp/bits$1$2$3/hf/model.safetensors"
    expect "planned memory is allocated" as_planned
done
dora 2 halves llama run.max_steps=2
dora 3 halves llama zero.stage=3 checkpoint.resume=auto
expect "resumed on other ranks: the same bits" same_model "$(newest bits)" "$(newest halves)"
for kept in selective block; do
    dora 2 $kept llama model.activation_checkpointing=$kept
    expect "activation_checkpointing = $kept: the same bits" same_model "$(newest bits)" "$(newest $kept)"
done
dora 2 some llama checkpoint.save=trainable
dora 1 some llama checkpoint.save=trainable checkpoint.resume=auto run.max_steps=6
expect_exit "checkpoints of trained weights only are resumed" 0
for base in int8 nf4; do
    dora 1 $base llama lora.base_quantization=$base
    dora 3 ${base}3 llama lora.base_quantization=$base zero.stage=3
    expect "on a base in $base: the same bits on three ranks at stage 3" same_model "$(newest $base)" "$(newest ${base}3)"
    expect "planned memory is allocated" as_planned
done
dora 1 gpt2 gpt2 checkpoint.export=hf
dora 2 gpt22 gpt2 zero.stage=3 checkpoint.export=hf
expect "matrices stored as [in, out]: the same bits on two ranks" same_model "$(newest gpt2)" "$(newest gpt22)"
for name in bits gpt2; do
    base=tests/data/dpo/start
    [ $name = bits ] || base=tests/data/lora/gpt2
    run 2 ./dtrain-convert --adapter "$tmp/$name/adapter" $base "$tmp/$name-merged" --tokenizer none
    expect "$name: dtrain-convert merges to the same model" cmp "$tmp/$name-merged/model.safetensors" "$tmp/$name/hf/model.safetensors"
    echo '{"ids": [9, 33, 17, 42, 51]}' >"$tmp/prompt.jsonl"
    for model in "$base --adapter $tmp/$name/adapter" "$tmp/$name" "$tmp/$name/hf"; do
        run 2 ./dtrain-generate $model --tokenizer ids --prompts "$tmp/prompt.jsonl" --greedy --max-new-tokens 8 --jsonl --threads 1 -o "$tmp/found.jsonl" --force
        grep -o '"ids":\[[^]]*' "$tmp/found.jsonl" >>"$tmp/$name-ids"
    done
    expect "$name: adapter, checkpoint and merged model answer alike" sh -c "[ \$(sort -u '$tmp/$name-ids' | wc -l) = 1 ] && [ \$(wc -l <'$tmp/$name-ids') = 3 ]"
done
for precision in fp32 bf16; do
    dora 1 moe$precision tests/data/lora/moe precision.dtype=$precision lora.target_modules=all-linear
    dora 3 moe$precision-3 tests/data/lora/moe precision.dtype=$precision lora.target_modules=all-linear zero.stage=3 zero.expert_group_size=2
    expect "layers next to experts, $precision: the same bits on three ranks at stage 3" same_model "$(newest moe$precision)" "$(newest moe$precision-3)"
done
for fixture in dora dora_gpt2; do # PEFT's
    base=tests/data/dpo/start
    [ $fixture = dora ] || base=tests/data/lora/gpt2
    run 1 ./dtrain-convert --adapter tests/data/peft/$fixture $base "$tmp/$fixture" --tokenizer none
    none="lora.r=0 lora.use_dora=false lora.target_modules="
    run 2 ./dtrain "$tmp/bits/config.ini" run.output_dir="$tmp/$fixture-on" model.path=$base $none lora.path=tests/data/peft/$fixture run.max_steps=1
    dora 1 $fixture-merged "$tmp/$fixture" run.max_steps=1 $none
    expect "$fixture: training continues from PEFT's adapter with the loss of the merged model" close_losses $fixture-on $fixture-merged 1e-5
done
data -o "$tmp/pairs.h5" tests/data/rm/pairs.jsonl
for precomputed in false true; do
    dora 2 dpo$precomputed llama run.task=dpo data.train="$tmp/pairs.h5" dpo.precompute_reference=$precomputed zero.stage=3
    is "dpo: policy and reference are equal at first" "$(number dpo$precomputed loss | head -1 | cut -c1-6)" 0.6931
done
expect "a precomputed reference gives the same losses" close_losses dpofalse dpotrue 1e-5
dora 2 rm llama run.task=rm data.train="$tmp/pairs.h5"
expect_exit "a reward model" 0
e2e_done
