#!/bin/bash
# e2e_vision_reward.sh - reward models over images and texts. Ten steps of each family match plain PyTorch with transformers' model, on any number of
# ranks, at any stage; the rest has the same bits everywhere. Exports open as classifiers. A model that judges answers about pictures learns to.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
vision=tests/data/vision all=tower,projector,llm
make_task rm run.max_steps=10 data.shuffle=false batch.train_batch_size=4 batch.micro_batch_size=2 optimizer.lr=3e-4 optimizer.betas="0.9, 0.95" \
    optimizer.weight_decay=0 data.seq_len=160 vision.train=$all
of_model() { # MODEL: its data and a start with a score
    name=${1##*/}
    own="model.path=$tmp/start/$name data.train=$tmp/$name.h5"
    [ ! -e "$tmp/$name.h5" ] || return 0
    python3 tests/vision_records.py pairs "$vision/$1" >"$tmp/$name.jsonl"
    expect "$name: pairs" ./dtrain-data -q --tokenizer "$vision/$1" --images "$vision/$1" -o "$tmp/$name.h5" "$tmp/$name.jsonl"
    mkdir -p "$tmp/start" && python3 tests/vision_records.py score "$vision/$1" "$tmp/start/$name"
}
like_pytorch() { # DIR MODEL PART: as far from fp64 as PyTorch in fp32 may be
    python3 - "$tmp/$1/metrics.jsonl" "$2" "$3" >"$out" 2>&1 <<'PY'
import json, sys
want = json.load(open("tests/data/vision/rm.json"))[sys.argv[2]]
found = [[r["loss"], r["grad_norm"], r["rm/mean_reward"]] for r in map(json.loads, open(sys.argv[1])) if "loss" in r]
off = [max(abs(a - b) / max(1, abs(b)) for a, b in zip(x, y)) for x, y in zip(found, want[sys.argv[3]])]
assert len(found) == 10 and max(off) <= 2e-6 + 4 * want["fp32"], "off by %s, PyTorch by %g" % (off, want["fp32"])
PY
}
for model in hf/clip_llama grids/qwen3_vl hf/gemma3 grids/internvl hf/siglip_qwen2 grids/qwen2_5_vl grids/qwen3_vl_moe grids/qwen3_5 grids/qwen3_5_moe; do
    of_model $model
    train 1 "$name" $own checkpoint.export=hf
    expect "$name: as much memory as planned" as_planned
    expect "ten steps are those of plain PyTorch" like_pytorch "$name" $model all
    train 2 "$name-2" $own vision.train=projector,llm zero.stage=3 batch.micro_batch_size=1
    expect "$name: on two ranks at stage 3, with a frozen tower" like_pytorch "$name-2" $model frozen_tower
done
of_model hf/clip_llama
bits() { # NP DIR ARGS...: steps of 6 of 7 pairs, so that every second one has one pair, and some ranks none
    train "$1" "$2" $own run.reproducible=true run.max_steps=4 batch.train_batch_size=6 batch.micro_batch_size=1 "${@:3}"
}
bits 1 ref
while read -r np stage more; do
    bits "$np" "same$np$stage" zero.stage="$stage" $more
    expect "$np ranks at stage $stage${more:+, ${more//$tmp/}}: as much memory as planned" as_planned
    expect "the same bits" same_model "$(newest ref)" "$(newest "same$np$stage")"
done <<LAYOUTS
2 1 model.activation_checkpointing=selective
2 2
3 3 model.activation_checkpointing=block zero.offload_optimizer=cpu zero.offload_param=cpu
LAYOUTS
bits 2 planned zero.stage=3
expect "--plan counts images" as_plan_says 2 3 $own run.reproducible=true batch.train_batch_size=6 batch.micro_batch_size=1
expect "and reports them" grep -q '^micro-batch: at most [0-9]* tokens and 2 images of 9 tokens each' "$tmp/.plan"
bits 3 part run.max_steps=2 zero.stage=3
bits 2 part zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks, at another stage: the same bits" same_model "$(newest ref)" "$(newest part)"
bits 2 bf16 precision.dtype=bf16
bits 3 bf16-3 precision.dtype=bf16 zero.stage=3
expect "bf16: the same bits on three ranks" same_model "$(newest bf16)" "$(newest bf16-3)"
bits 1 plain vision.train=projector,llm
bits 3 cached vision.train=projector,llm vision.feature_cache="$tmp/features" zero.stage=3
expect "cached features: the same bits" same_model "$(newest plain)" "$(newest cached)"
bits 1 start run.max_steps=1 optimizer.lr=0
parts_moved() { # DIR: parts of the model that it has trained
    h5diff "$(newest start)" "$(newest "$1")" /model /model | sed -n 's|^dataset: </model/\([a-z_]*\).*|\1|p' | sort -u | tr '\n' ' '
}
bits 2 alignment vision.train=projector
is "the projector alone, and the head" "$(parts_moved alignment)" "multi_modal_projector score "
bits 2 tower vision.train=tower
is "the tower alone, and the head" "$(parts_moved tower)" "score vision_tower "
for parts in llm tower,projector,llm; do
    lora="lora.r=2 lora.target_modules=all-linear lora.parts=$parts vision.train=${parts#tower,projector,}"
    bits 1 "lora-$parts" $lora checkpoint.export=hf
    bits 3 "lora-$parts-3" $lora zero.stage=3
    expect "adapters, $parts: the same bits on three ranks" same_model "$(newest "lora-$parts")" "$(newest "lora-$parts-3")"
    expect "the head is saved with them" grep -aq '"base_model.model.score.weight"' "$tmp/lora-$parts/adapter/adapter_model.safetensors"
    expect "they are of a classifier" grep -q '"task_type": "SEQ_CLS"' "$tmp/lora-$parts/adapter/adapter_config.json"
done
bits 1 int8 vision.train=llm lora.r=2 lora.base_quantization=int8
bits 2 int8-2 vision.train=llm lora.r=2 lora.base_quantization=int8 zero.stage=2
expect "on a base in 8 bits: the same bits on two ranks" same_model "$(newest int8)" "$(newest int8-2)"
RUN_TIMEOUT=60 DTRAIN_FAULT=step.begin:1:3:kill bits 2 killed checkpoint.save_steps=2 zero.stage=3
prints "a run resumes after a kill" "resumed from .*step-00000002.h5" bits 2 killed checkpoint.save_steps=2 zero.stage=3
expect "with the same bits" same_model "$(newest ref)" "$(newest killed)"

# ---- exports and scores
bits 1 export checkpoint.export=hf checkpoint.export_dtype=fp32
tr -d ' \n' <"$tmp/export/hf/config.json" >"$tmp/.config"
expect "the class is a classifier of the whole model, with one label" grep -q '"architectures":\["LlavaForSequenceClassification"\].*"id2label":{"0":"LABEL_0"}' "$tmp/.config"
sed 's/"chosen"/"completion"/; s/, "rejected": "no idea?"//' "$tmp/clip_llama.jsonl" >"$tmp/answers.jsonl"
score() { # MODEL FILE ARGS...: rewards, one per line
    run 0 ./dtrain-generate --score "$1" --answers "$2" --jsonl -o "$tmp/scored" --force "${@:3}"
    sed -n 's/.*"reward": *\([-0-9.e]*\).*/\1/p' "$tmp/scored"
}
score "$tmp/export" "$tmp/answers.jsonl" >"$tmp/rewards"
is "each answer about images is scored" "$(wc -l <"$tmp/rewards")" 7
is "in passes of one" "$(score "$tmp/export/hf" "$tmp/answers.jsonl" --batch-size 1)" "$(cat "$tmp/rewards")"
run 2 ./dtrain-generate --score "$tmp/export" --answers "$tmp/answers.jsonl" --jsonl -o "$tmp/scored" --force --zero-stage 3
is "on two ranks at stage 3" "$(sed -n 's/.*"reward": *\([-0-9.e]*\).*/\1/p' "$tmp/scored")" "$(cat "$tmp/rewards")"
python3 tests/vision_records.py prompts $vision/hf/clip_llama >"$tmp/prompts.jsonl"
ends "answers are scored as they are generated" 0 run 2 ./dtrain-generate $vision/hf/clip_llama --score "$tmp/export" --prompts "$tmp/prompts.jsonl" --greedy --max-new-tokens 4
ends_saying "but not by a model with other images" 64 'expected a scoring model that prepares images as' \
    run 0 ./dtrain-generate $vision/hf/clip_llama --score "$tmp/siglip_qwen2/hf" --prompts "$tmp/prompts.jsonl" --greedy
bits 2 again model.path="$tmp/export/hf" run.max_steps=1
expect_exit "training continues from an export" 0

# ---- learning: which answer names the colour of the square
mkdir "$tmp/small" "$tmp/squares"
sed -E 's/"image_size": 32/"image_size": 16/; s/96/32/; s/192/64/; s/128/64/; s/"intermediate_size": 256/"intermediate_size": 128/; s/_layers": 3/_layers": 2/' input/vision.json >"$tmp/small/config.json"
sed 's/32/16/g' input/preprocessor_config.json >"$tmp/small/preprocessor_config.json"
LC_ALL=C awk -v out="$tmp/squares" -v images=400 -v kind=pairs -v seed=1 -f tests/coloured_pictures.awk
expect "pairs of answers about pictures" ./dtrain-data -q --images "$tmp/small" --image-tokens 4 --image-token '#' --tokenizer bytes -o "$tmp/squares.h5" \
    --validation "$tmp/valid.h5" --validation-fraction 0.25 "$tmp/squares/pairs.jsonl"
ends "a judge of answers about pictures, from random weights" 0 train 2 judge model.path= model.config="$tmp/small/config.json" model.tokenizer=bytes run.max_steps=250 \
    data.seq_len=40 data.train="$tmp/squares.h5" data.validation="$tmp/valid.h5" batch.train_batch_size=16 batch.micro_batch_size=8 optimizer.lr=1e-3 data.shuffle=true
expect "it prefers the right answer for new pictures" above judge rm/validation_accuracy 0.95
e2e_done
