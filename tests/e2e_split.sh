#!/bin/bash
# e2e_split.sh - PiSSA and OLoRA: dtrain-convert --split writes factors of the weights and the rest of the model, which together compute the same,
# with the same bits on any number of ranks. A run trains them, and --initial converts its adapter to one of the original model.
# DEVICES: cpu
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
data -o "$tmp/sft.h5" tests/data/lora/sft.jsonl
train_on() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$3
    shift 3
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=3 run.threads=1 model.path="$model" data.train="$tmp/sft.h5" \
        data.seq_len=64 data.shuffle=false batch.train_batch_size=12 batch.micro_batch_size=1 optimizer.lr=1e-2 scheduler.type=constant \
        run.reproducible=true log.report_to=jsonl checkpoint.save_steps=0 "$@"
}
for case in "llama pissa tests/data/dpo/start" "llama olora tests/data/dpo/start" "gpt2 pissa tests/data/lora/gpt2" "gpt2 olora tests/data/lora/gpt2"; do
    set -- $case
    name=$1-$2 base=$3
    printf '[lora]\nr = 4\nalpha = 6\ntarget_modules = .*(proj|c_attn|c_fc)\nrank_pattern = (v_proj|c_fc):3\ninit = %s\n' "$2" >"$tmp/split.ini"
    for np in 1 3; do
        run $np ./dtrain-convert --split "$tmp/split.ini" "$base" "$tmp/$name-$np" --tokenizer none
        expect_exit "$name: split on $np ranks" 0
    done
    for file in model.safetensors adapter/adapter_model.safetensors; do
        expect "$name: $file is the same on three ranks" cmp "$tmp/$name-1/$file" "$tmp/$name-3/$file"
    done
    train_on 2 "$name-run" "$tmp/$name-1" lora.path="$tmp/$name-1/adapter" checkpoint.export=hf zero.stage=3
    expect_exit "$name: a run trains them" 0
    [ -e "$tmp/base-$1" ] || train_on 1 "base-$1" "$base" run.max_steps=1 lora.r=0
    is "$name: its first loss is the model's own" "$(number "$name-run" loss | head -1 | cut -c1-7)" "$(number "base-$1" loss | cut -c1-7)"
    run 2 ./dtrain-convert --initial "$tmp/$name-1/adapter" "$tmp/$name-run/adapter" "$tmp/$name-plain"
    expect_exit "$name: the adapter is converted" 0
    train_on 1 "$name-plain-on" "$base" lora.path="$tmp/$name-plain" run.max_steps=1
    train_on 1 "$name-on" "$tmp/$name-run/hf" run.max_steps=1 lora.r=0
    expect "$name: on the original model it computes the same" close_losses "$name-plain-on" "$name-on" 2e-5
done
train_on 2 nf4 "$tmp/llama-pissa-1" lora.path="$tmp/llama-pissa-1/adapter" lora.base_quantization=nf4 checkpoint.save=trainable
expect_exit "the rest may be quantised (QPiSSA), and checkpoints may omit it" 0
refused() { # WHAT EXIT REGEX LINES
    printf "$4" >"$tmp/bad.ini"
    ends "$1 is refused" "$2" run 2 ./dtrain-convert --split "$tmp/bad.ini" tests/data/dpo/start "$tmp/bad" --tokenizer none
    expect_text "by name" "$3"
}
refused "another initialisation" 64 "split: expected pissa or olora, and lora.r above 0, found kaiming and 4" '[lora]\nr = 4\n'
refused "an embedding" 64 "embed_tokens.lora_embedding_A: only adapters of linear layers" '[lora]\nr = 4\ninit = pissa\ntarget_modules = embed_tokens, q_proj\n'
refused "a rank above the weight's" 64 "has a rank of at most" '[lora]\nr = 400\ninit = olora\n'
ends "a run without the split is refused" 64 train_on 1 direct tests/data/dpo/start lora.r=4 lora.init=pissa
expect_text "with what to do" "write both once with dtrain-convert --split CONFIG MODEL DIR, then train from model.path = DIR with lora.path = DIR/adapter"
e2e_done
