#!/bin/bash
# e2e_vision_lora.sh - adapters on the layers of towers and projectors. Steps are PEFT's, for every kind of tower. Bits do not depend on ranks, stage,
# offload, recomputation and resuming. Files are PEFT's, and merge into the exported model. What does not combine is refused.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
vision=tests/data/vision files=$PWD/tests/data/image/files
hf=$vision/hf grids=$vision/grids
dataset() { # KIND MODEL: $data
    data=$tmp/$1-$(basename "$2").h5
    [ ! -e "$data" ] || return 0
    local records=$vision/run/records.jsonl more=()
    [ "$1" = prompts ] || more=(--mask assistant --image-folder "$files")
    [ "$1" != chats ] || records=$grids/chats.jsonl
    [ "$1" != turns ] || { records=$tmp/turns.jsonl && sed 's/, "ids": .*/}/' $vision/gemma3_chats.jsonl >"$records"; }
    run 0 ./dtrain-data -q --tokenizer "$2" --images "$2" "${more[@]}" -o "$data" "$records"
    [ "$code" = 0 ] || expect_exit "a dataset of $2" 0
}
adapt() { # NP DIR MODEL ARGS...: with $data
    local np=$1 dir=$2 model=$3 length=64
    shift 3
    [[ $data != *chats-* ]] || length=256
    [[ $data != *turns-* ]] || length=96
    run "$np" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/$dir" run.max_steps=10 run.threads=1 model.path="$model" data.train="$data" data.seq_len=$length \
        data.shuffle=false batch.train_batch_size=4 batch.micro_batch_size=1 optimizer.lr=1e-2 optimizer.weight_decay=0 optimizer.betas="0.9, 0.95" \
        optimizer.eps=1e-8 optimizer.max_grad_norm=1 scheduler.type=constant log.report_to=jsonl checkpoint.save_steps=0 precision.dtype=fp32 "$@" </dev/null
}
like_peft() { # DIR RUN: fp32 against fp64
    paste -d' ' <(number "$1" loss) <(number "$1" grad_norm) <(awk -v n="$2" '/^run/ { k++; next } k == n' $vision/adapted.txt) | awk '
        { for (i = 1; i <= 2; i++) { d = $i - $(i + 2); d = d < 0 ? -d : d
              if (NF != 4 || !(d <= (i == 1 ? 1e-5 : 2e-4) * $(i + 2))) { print "step", NR ", number", i ":", $i, $(i + 2); bad = 1 } } }
        END { exit bad || NR != 10 }'
}
n=0
while read -r _ kind model keys; do
    n=$((n + 1))
    dataset "$kind" "$model"
    all=4
    [ "$kind" != prompts ] || all=$(wc -l <$vision/run/records.jsonl)
    adapt 1 "peft$n" "$model" batch.train_batch_size="$all" $keys
    expect "$model $keys: planned memory is allocated" as_planned
    expect "$model $keys: PEFT's steps" like_peft "peft$n" "$n"
done < <(grep '^run' $vision/adapted.txt)

# ---- the same bits
all="lora.r=2 lora.parts=tower,projector,llm lora.target_modules=all-linear"
bits="$all lora.dropout=0.2 batch.train_batch_size=6 run.reproducible=true run.max_steps=3"
for model in $hf/clip_llama $grids/qwen2_5_vl $grids/qwen3_vl $grids/internvl; do
    name=$(basename $model)
    if [ "$name" = clip_llama ]; then dataset prompts $model; else dataset chats $model; fi
    adapt 1 "$name" $model $bits checkpoint.export=hf
    while read -r np stage more; do
        adapt "$np" "$name$np$stage" $model $bits zero.stage="$stage" $more
        expect "$name on $np ranks at stage $stage${more:+, ${more//$tmp/}}: planned memory is allocated" as_planned
        expect "the same bits" same_model "$(newest $name)" "$(newest "$name$np$stage")"
    done <<LAYOUTS
2 1 model.activation_checkpointing=selective
2 3 zero.offload_optimizer=cpu zero.offload_param=cpu
3 3 model.activation_checkpointing=block
LAYOUTS
    adapt 2 "$name-half" $model $bits run.max_steps=2
    adapt 3 "$name-half" $model $bits zero.stage=3
    expect "$name: resumed on other ranks, the same bits" same_model "$(newest $name)" "$(newest $name-half)"
    rm -rf "$tmp/merged"
    run 2 ./dtrain-convert --adapter "$tmp/$name/adapter" $model "$tmp/merged" --dtype fp32
    expect "$name: merged later, the exported model" cmp "$tmp/merged/model.safetensors" "$tmp/$name/hf/model.safetensors"
    adapt 2 "$name-on" $model lora.path="$tmp/$name/adapter" lora.dropout=0 run.max_steps=1 batch.train_batch_size=6
    expect_exit "$name: training continues from its adapter" 0
    expect "$name: in the same parts" grep -q '^parts = tower, projector, llm$' "$tmp/$name-on/config.ini"
    adapt 1 "$name-whole" "$tmp/$name/hf" vision.train=llm run.max_steps=1 batch.train_batch_size=6 $all
    expect "$name: from where it was" close_losses $name-on $name-whole 1e-5
done
dataset chats $grids/qwen3_vl_moe
for size in 0 1; do adapt 2 "experts$size" $grids/qwen3_vl_moe $bits lora.parts=projector zero.stage=3 zero.expert_group_size=$size; done
expect "groups of experts: the same bits" same_model "$(newest experts0)" "$(newest experts1)"
model=$hf/clip_llama
dataset prompts $model
for dtype in bf16 fp16; do
    adapt 1 $dtype $model $all run.max_steps=3 batch.train_batch_size=6 precision.dtype=$dtype run.reproducible=true
    adapt 3 $dtype-3 $model $all run.max_steps=3 batch.train_batch_size=6 precision.dtype=$dtype zero.stage=3 run.reproducible=true
    expect "$dtype: the same bits on three ranks" same_model "$(newest $dtype)" "$(newest $dtype-3)"
done
adapt 1 codes $model $all run.max_steps=2 lora.base_quantization=int8
expect "on a language model in int8: planned memory is allocated" as_planned
make_task sft run.max_steps=1 model.path=$model data.train="$data" data.shuffle=false batch.train_batch_size=4 batch.micro_batch_size=2
for case in "1 0" "2 3"; do
    read -r np stage <<<"$case"
    train "$np" "plan$np" $all lora.dropout=0.1 zero.stage="$stage"
    expect "--plan for $np ranks at stage $stage is what is allocated" as_plan_says "$np" "$stage" $all lora.dropout=0.1
done
adapt 1 part $model lora.r=2 lora.parts=llm,tower lora.target_modules=q_proj,fc1 run.max_steps=2 checkpoint.save=trainable
expect "in the tower, and the whole projector" grep -q '"modules_to_save": \[ *"multi_modal_projector"' <(tr -d '\n' <"$tmp/part/adapter/adapter_config.json")
expect "the file lists the tower's paths" grep -q '"model.vision_tower.encoder.layers.0.mlp.fc1"' "$tmp/part/adapter/adapter_config.json"
expect "blocks after the features have no adapters" sh -c "! grep -q vision_tower.encoder.layers.2 '$tmp/part/adapter/adapter_config.json'"
adapt 1 plain $model lora.r=2 lora.target_modules=q_proj run.max_steps=2 vision.train=llm
expect "by default only in the language model" sh -c "! grep -q vision_tower '$tmp/plain/adapter/adapter_config.json'"

# parts in which no layer has the name; the default of vision.train; values of single layers
dataset chats $grids/qwen2_5_vl
model=$grids/qwen2_5_vl
same="lora.r=2 lora.parts=tower,projector,llm lora.target_modules=qkv run.max_steps=1"
adapt 1 named $model $same
adapt 1 named-on $model $same lora.path="$tmp/named/adapter"
expect_exit "training continues from an adapter with its own keys, also if a part has no such layer" 0
adapt 1 named-run "$tmp/named" $same
expect_exit "and from its checkpoint" 0
adapt 1 text $model lora.r=2 run.max_steps=1
adapt 1 text-on $model lora.path="$tmp/text/adapter" run.max_steps=1
expect "from an adapter of the language model, without lora.r: nothing else is trained" grep -q '^modules_to_save =$' "$tmp/text-on/config.ini"
adapt 1 both $model lora.r=2 run.max_steps=1 vision.train=projector,llm
expect "vision.train = projector, llm is not the default" grep -q '^modules_to_save = model.visual.merger.mlp.0, model.visual.merger.mlp.2$' "$tmp/both/config.ini"
adapt 1 none $model lora.r=2 run.max_steps=1 lora.parts=tower,projector lora.target_modules=all-linear lora.rank_pattern=linear_1:3 \
    lora.alpha_pattern=vision_tower.blocks.0.attn.qkv:32
expect "ranks of PEFT's paths" grep -q '"rank_pattern": {  "model.visual.merger.mlp.0": 3 }' <(tr '\n' ' ' <"$tmp/none/adapter/adapter_config.json" | sed 's/ \+/ /g; s/{ /{  /g')
expect "alphas, too" grep -q '"model.visual.blocks.0.attn.qkv": 32' "$tmp/none/adapter/adapter_config.json"
refused() { # NAME TEXT KEYS...
    adapt 0 wrong $model lora.r=2 "${@:3}"
    expect_exit "$1 is refused" 64
    expect_text "with the key" "$2"
}
refused "a language model that is neither trained nor adapted" "vision.train: with lora.r above 0 llm stands for adapters .*lora.parts = tower has none" \
    lora.parts=tower lora.target_modules=qkv vision.train=llm
refused "a name that PEFT does not know" "modules_to_save: this model has no module 'multi_modal_projector'" lora.modules_to_save=multi_modal_projector
refused "a layer of no part" "choose from .*down_proj, lm_head, qkv, proj, linear_1, linear_2" lora.parts=tower,projector,llm lora.target_modules=none
refused "a rate of what has no adapters" "'language_model' matches frozen tensors: vision.train = none, lora.parts = tower" lora.parts=tower lora.target_modules=qkv \
    optimizer.lr_groups=language_model:1
dataset turns $hf/gemma3
model=$hf/gemma3
refused "a projector that cannot have adapters" "target_modules: no layer in lora.parts = projector can have an adapter" lora.parts=projector lora.target_modules=all-linear
run 2 ./dtrain-generate $grids/qwen3_5 --adapter "$tmp/peft8/adapter" --vision none --prompt a
expect_exit "an adapter of a tower on the text model is refused" 65
expect_text "with the remedy" "are not layers of this one.*keep the tower .model.vision or --vision = whole"
model=$hf/clip_llama
dataset prompts $model
refused "a cache of a tower that is saved" "feature_cache: features can only be cached for a frozen tower, but lora.modules_to_save = vision_tower" \
    lora.modules_to_save=vision_tower vision.feature_cache="$tmp/features"
adapt 1 tower $model lora.r=2 lora.parts=tower lora.target_modules=all-linear run.max_steps=1 vision.train=
expect "adapters of the tower alone" grep -q '^modules_to_save =$' "$tmp/tower/config.ini"

adapt 1 frozen $model $all run.max_steps=2 model.freeze=vision_tower optimizer.lr_groups=multi_modal_projector:1e-4
expect_exit "adapters of the tower are frozen by name, those of the projector have their own learning rate" 0
run 2 ./dtrain-convert --adapter "$tmp/peft8/adapter" $grids/qwen3_5 "$tmp/tower-only"
expect "an adapter of Qwen3.5's tower is merged into the whole model" grep -q model.visual.patch_embed "$tmp/tower-only/model.safetensors"

# ---- generation, DPO
generate() { ./dtrain-generate "$@" --prompt "see <image> what is it?" --image "$files/rgb.jpg" --greedy --max-new-tokens 8 --threads 1 --jsonl; }
expect "a checkpoint generates" generate "$tmp/clip_llama"
sed 's/"model":"[^"]*"//' "$out" >"$tmp/of-run"
expect "its adapter" generate $model --adapter "$tmp/clip_llama/adapter"
expect "gives the same" grep -qF "$(grep -o '"ids":[^]]*]' "$tmp/of-run")" "$out"
expect "and so the merged model" generate "$tmp/clip_llama/hf"
expect "gives the same" grep -qF "$(grep -o '"ids":[^]]*]' "$tmp/of-run")" "$out"
expect "PEFT's adapter, with those of layers that compute nothing" generate $hf/siglip_qwen2 --adapter $hf/siglip_qwen2_all
sed 's/"completion": \("[^"]*"\)/"chosen": \1, "rejected": "no idea?"/; s|\.\./\.\./vision_data|'"$PWD"'/tests/data/vision_data|g' $vision/run/records.jsonl >"$tmp/pairs.jsonl"
run 0 ./dtrain-data -q --tokenizer $model --images $model -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
dpo() { adapt "$1" "$2" $model run.task=dpo data.train="$tmp/pairs.h5" batch.train_batch_size=6 run.max_steps=3 run.reproducible=true $all "${@:3}"; }
dpo 1 dpo
expect "dpo: planned memory is allocated" as_planned
is "begins without a margin" "$(number dpo dpo/rewards/margins | head -1)" 0
expect "adapters learn" above dpo dpo/rewards/margins 0.001
dpo 3 dpo-3 zero.stage=3
expect "the same bits on three ranks" same_model "$(newest dpo)" "$(newest dpo-3)"
dpo 1 dpo-copy dpo.reference_path=tests/data/../data/vision/hf/clip_llama
expect "its reference is the model without adapters: the bits of a copy" same_model "$(newest dpo)" "$(newest dpo-copy)"

# ---- the cache of features
adapt 1 fresh $model lora.r=2 lora.parts=projector,llm lora.target_modules=all-linear run.max_steps=2 run.reproducible=true
adapt 2 cached $model lora.r=2 lora.parts=projector,llm lora.target_modules=all-linear run.max_steps=2 run.reproducible=true vision.feature_cache="$tmp/features"
expect "a projector with adapters: cached features give the same bits" same_model "$(newest fresh)" "$(newest cached)"

# ---- what is refused
check() { local name=$1 text=$2; shift 2; wrong "$name" 64 "$text" ./dtrain --check "$tmp/peft1/config.ini" run.output_dir="$tmp/wrong" batch.train_batch_size=6 "$@"; }
check "a cache of features that change" 'vision.feature_cache: features can only be cached for a frozen tower, but lora.parts = tower,projector,llm trains its adapters' vision.feature_cache="$tmp/features"
check "an unknown part" 'lora.parts: expected a list of tower, projector and llm, found head' lora.parts=head
check "no part" 'lora.parts: expected at least one' lora.parts=
check "a part that is trained whole" 'lora.parts: tower,llm has a part that vision.train = tower,llm trains as a whole' vision.train=tower,llm lora.parts=tower,llm
check "a tower by default" 'lora.parts: .*set lora.target_modules' lora.parts=tower lora.target_modules=
check "a layer of another part" "target_modules: 'fc1' is a layer of another part of the model; add tower to lora.parts" lora.target_modules=fc1 lora.parts=llm
check "a table of the tower" "target_modules: this model has no layer 'position_embedding'.*choose from .*fc1" lora.target_modules=position_embedding
data -o "$tmp/texts.h5" tests/data/lora/sft.jsonl
check "a language model" 'parts: the model has no tower; leave this key out .*model.vision = whole' vision.train="projector, llm" model.path=tests/data/dpo/start data.train="$tmp/texts.h5"
check "another part than the adapter's" 'lora.parts: the adapter of .* has tower, projector, llm' lora.path=$hf/clip_llama_all lora.parts=tower lora.r=1 lora.alpha=2
e2e_done
