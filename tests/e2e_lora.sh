#!/bin/bash
# e2e_lora.sh - low-rank adapters: steps as PEFT's adapters take them, the same bits on any number of ranks, at any stage and offload, resumed, and
# with less kept for backward; what is frozen stays as it is.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/lora
data -o "$tmp/sft.h5" $fixture/sft.jsonl
lora() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$fixture/$3
    [ "$3" != llama ] || model=tests/data/dpo/start
    shift 3
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=10 run.threads=1 model.path="$model" data.train="$tmp/sft.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=4 optimizer.lr=1e-2 optimizer.weight_decay=0.1 optimizer.betas="0.9, 0.999" \
        optimizer.eps=1e-8 optimizer.max_grad_norm=1 scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 "$@"
}
# PEFT's numbers have seven digits; fp32 keeps 1e-6 of such sums, of which ten steps at a high rate make more: Adam divides small gradients by themselves.
like_peft() { # DIR RUN
    paste -d' ' <(number "$1" loss) <(number "$1" grad_norm) <(awk -v n="$2" '/^run/ { k++; next } k == n' "$fixture/peft.txt") | awk '
        { for (i = 1; i <= 2; i++) { d = $i - $(i + 2); d = d < 0 ? -d : d
              if (NF != 4 || !(d <= 2e-4 * $(i + 2))) { print "step", NR ", number", i ":", $i, $(i + 2); bad = 1 } } }
        END { exit bad || NR != 10 }'
}
n=0
while read -r _ model keys; do
    n=$((n + 1))
    lora 1 "peft$n" "$model" batch.micro_batch_size=2 $keys
    expect "$model $keys: PEFT's steps" like_peft "peft$n" "$n"
done < <(grep '^run' "$fixture/peft.txt")
lora 1 base llama batch.micro_batch_size=4 run.max_steps=1
expect "the first loss is the model's own, to the bit" [ "$(number base loss)" = "$(lora 1 first llama batch.micro_batch_size=4 run.max_steps=1 lora.r=8; number first loss)" ]

bits="batch.train_batch_size=12 batch.micro_batch_size=1 run.reproducible=true run.max_steps=4 lora.r=4 lora.target_modules=all-linear lora.dropout=0.2"
for layout in "1 0 none none" "2 2 none none" "3 3 none none" "4 1 cpu none" "2 3 cpu cpu"; do
    set -- $layout
    lora "$1" "bits$1$3" llama $bits zero.stage="$2" zero.offload_optimizer="$3" zero.offload_param="$4"
    expect "the same bits on $1 ranks at stage $2, offload $3 and $4" same_model "$(newest bits1none)" "$(newest "bits$1$3")"
    expect "and planned is allocated" as_planned
done
lora 2 halves llama $bits run.max_steps=2
lora 3 halves llama $bits zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks at another stage: the same bits" same_model "$(newest bits1none)" "$(newest halves)"
half=$tmp/halves/checkpoints/step-00000002.h5
for name in model.embed_tokens.weight model.layers.0.self_attn.q_proj.weight model.layers.1.mlp.down_proj.weight model.norm.weight lm_head.weight; do
    expect "$name stays as it is" h5diff "$half" "$(newest halves)" "/model/$name" "/model/$name"
done
expect "what is frozen has no moments" sh -c "! h5ls '$half/optimizer/exp_avg' | grep -v lora_"
for kept in selective block; do
    lora 1 $kept llama $bits model.activation_checkpointing=$kept
    expect "activation_checkpointing = $kept: the same bits" same_model "$(newest bits1none)" "$(newest $kept)"
done
lora 1 gpt2bits gpt2 $bits
lora 2 gpt2block gpt2 $bits model.activation_checkpointing=block zero.stage=3
expect "likewise of GPT-2, recomputed on two ranks" same_model "$(newest gpt2bits)" "$(newest gpt2block)"

lora 1 refused llama lora.r=4 lora.target_modules=q_proj,q_prj batch.micro_batch_size=4
expect_exit "a layer that is not there is refused" 64
expect_text "by name" "lora.target_modules: this model has no layer 'q_prj'; its linear layers are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
lora 1 refused llama lora.alpha=4 batch.micro_batch_size=4
expect_text "settings of adapters without a rank, too" "lora.alpha: without lora.r there are no adapters"
e2e_done
