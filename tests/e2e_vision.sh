#!/bin/bash
# e2e_vision.sh - training with images, from files to losses. Results match transformers on any number of ranks, at any stage, offloaded,
# recomputed, adapted and resumed, also if micro-batches have no images or no samples. Frozen tensors keep their bits. Data that does not
# fit the model is refused.
# QUICK:
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/vision/run hf=tests/data/vision/hf pictures=tests/data/vision_data
images() { # MODEL ARGS...: a dataset for it
    local model=$hf/$1
    shift
    expect "a dataset of $model" ./dtrain-data -q --tokenizer "$model" --images "$model" "$@"
}
images clip_llama -o "$tmp/images.h5" $fixture/records.jsonl
sed -n 's/<image>//gp' $fixture/records.jsonl | sed 's/, "images*": .*/}/' >"$tmp/texts.jsonl"
expect "one without images" ./dtrain-data -q --tokenizer $hf/clip_llama -o "$tmp/texts.h5" "$tmp/texts.jsonl" "$tmp/texts.jsonl"
make_task sft run.max_steps=10 model.path=$hf/clip_llama data.train="$tmp/images.h5" data.shuffle=false batch.train_batch_size=4 batch.micro_batch_size=1 \
    optimizer.lr=3e-3 optimizer.betas="0.9, 0.95" optimizer.weight_decay=0
all=tower,projector,llm

# ---- as transformers' LlavaForConditionalGeneration, whose own rounding in fp32 is 1.2e-7 of the loss: ten steps may make some more of ours
like_transformers() { # DIR PART
    losses "$1" | awk -v part="$2" 'NR == FNR { if ($1 == part) for (i = 3; i <= NF; i++) want[i - 2] = $i; next }
        { d = $2 - want[$1]; if (d < 0) d = -d; if (!($1 in want) || d > 1e-6 * want[$1]) { print "step", $1, $2, "and", want[$1]; bad = 1 } n++ }
        END { exit bad || n != 10 }' $fixture/losses.txt - >"$out"
}
for case in "all 1 0 1" "all 4 3 1" "all 2 2 2" "projector 1 1 2" "projector 2 3 1"; do
    read -r part np stage micro <<<"$case"
    train "$np" "$part$np" vision.train="${part/all/$all}" zero.stage="$stage" batch.micro_batch_size="$micro"
    [ "$code" = 0 ] || expect_exit "$case" 0
    expect "$part on $np ranks, stage $stage: as much memory as planned" as_planned
    expect "as --plan says" as_plan_says "$np" "$stage" vision.train="${part/all/$all}" batch.micro_batch_size="$micro"
    expect "micro-batches of $micro: transformers' losses" like_transformers "$part$np" "$part"
done
expect "--plan reports the images of a micro-batch" grep -q "^micro-batch: at most [0-9]* tokens and [0-9]* images of 9 tokens each" "$tmp/.plan"
expect "images are counted" above all1 images_per_second 0
expect "the FLOPs of images are counted" awk -v all="$(number all1 flops_per_second | tail -1)" -v tok="$(number all1 tokens_per_second | tail -1)" 'BEGIN { exit !(all > 6 * 5000 * tok) }'
# the alignment of LLaVA: pretrain, of the projector alone
for case in "1 0 2" "2 2 1"; do
    read -r np stage micro <<<"$case"
    train "$np" "pretrain$np" run.task=pretrain vision.train=projector zero.stage="$stage" batch.micro_batch_size="$micro"
    [ "$code" = 0 ] || expect_exit "pretrain on $np ranks" 0
    expect "pretrain on $np ranks, stage $stage: as much memory as planned" as_planned
    expect "micro-batches of $micro: transformers' losses" like_transformers "pretrain$np" projector
done

# ---- the same bits. An epoch is four steps of six samples: with images, of which one has none; one with an image and five without; without any; and
# one sample alone, so that all ranks but one have nothing.
fails() { ! "$@"; }
bits() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    train "$np" "$dir" data.train="$tmp/images.h5, $tmp/texts.h5" run.reproducible=true run.max_steps=5 batch.train_batch_size=6 vision.train=$all "$@"
}
ends "steps with and without images" 0 bits 1 ref
while read -r np stage more; do
    bits "$np" "same$np$stage" zero.stage="$stage" $more
    expect "$np ranks at stage $stage${more:+, ${more//$tmp/}}: as much memory as planned" as_planned
    expect "the same bits" same_model "$(newest ref)" "$(newest "same$np$stage")"
done <<LAYOUTS
2 0
2 1 model.activation_checkpointing=selective
2 2 zero.offload_optimizer=cpu
3 3 model.activation_checkpointing=block
6 3 zero.offload_optimizer=nvme zero.offload_param=nvme zero.nvme_path=$tmp
1 3 data.prefetch=0
LAYOUTS
for dtype in bf16 fp16; do # with master weights in fp32. What rounding may do to a loss: test_model_reference.c
    bits 1 $dtype precision.dtype=$dtype
    expect "$dtype: losses near those of fp32" close_losses ref $dtype "$([ $dtype = bf16 ] && echo 1e-2 || echo 1.25e-3)"
    bits 2 $dtype-2 precision.dtype=$dtype zero.stage=2
    bits 3 $dtype-3 precision.dtype=$dtype zero.stage=3 model.activation_checkpointing=block zero.offload_optimizer=cpu
    for np in 2 3; do expect "$dtype: the same bits on $np ranks" same_model "$(newest $dtype)" "$(newest $dtype-$np)"; done
    expect "$dtype: other bits than in fp32" fails same_model "$(newest ref)" "$(newest $dtype)"
done

full_only

# ---- NEFTune, prompts: transformers' losses
for case in "noise 1 0 2 model.neftune_noise_alpha=5" "noise 2 3 1 model.neftune_noise_alpha=5" "prompts 2 2 1 sft.train_on_inputs=true"; do
    read -r part np stage micro key <<<"$case"
    train "$np" "$part$np" vision.train=$all zero.stage="$stage" batch.micro_batch_size="$micro" "$key"
    expect "$key on $np ranks, stage $stage: transformers' losses" like_transformers "$part$np" "$part"
done

# ---- pretrain on captions, as LLaVA's alignment has them
python3 - $fixture/records.jsonl "$PWD/$pictures" <<'PY' >"$tmp/captions.json"
import json, os, sys
records = [r for r in map(json.loads, open(sys.argv[1])) if "image" in r]
chats = [[{"from": "human", "value": "Say what it is.\\n<image>"}, {"from": "gpt", "value": r["completion"]}] for r in records]
print(json.dumps([{"image": os.path.join(sys.argv[2], os.path.basename(r["image"])), "conversations": c} for r, c in zip(records, chats)]))
PY
images clip_llama --captions -o "$tmp/captions.h5" "$tmp/captions.json"
captions() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    bits "$np" "$dir" run.task=pretrain data.train="$tmp/captions.h5" vision.train=projector,llm "$@"
}
ends "pretrain on captions" 0 captions 1 captions
captions 2 captions-2 zero.stage=2
expect "on two ranks: the same bits" same_model "$(newest captions)" "$(newest captions-2)"
is "losses are the same" "$(losses captions-2)" "$(losses captions)"
captions 3 captions-3 zero.stage=3 model.activation_checkpointing=block
expect "on three, which share four samples: the same bits" same_model "$(newest captions)" "$(newest captions-3)"
captions 1 captions-sft run.task=sft
expect "sft of the same data: the same bits" same_model "$(newest captions)" "$(newest captions-sft)"
captions 2 captions-kept zero.stage=1 vision.feature_cache="$tmp/captions-features"
expect "with kept features: the same bits" same_model "$(newest captions)" "$(newest captions-kept)"
bits 2 mixed run.task=pretrain zero.stage=3
expect "pretrain with images and texts: the bits of sft on one rank" same_model "$(newest ref)" "$(newest mixed)"

bits 3 part zero.stage=3 run.max_steps=3
bits 2 part zero.stage=2 checkpoint.resume=auto
expect "resumed on other ranks, at another stage" same_model "$(newest ref)" "$(newest part)"
RUN_TIMEOUT=60 DTRAIN_FAULT=step.begin:1:5:kill bits 2 killed checkpoint.save_steps=2 zero.stage=3
prints "a run resumes after a kill" "resumed from .*step-00000004.h5" bits 2 killed checkpoint.save_steps=2 zero.stage=3
expect "the resumed run has the same bits" same_model "$(newest ref)" "$(newest killed)"

grouped="data.shuffle=true data.group_by_modality_length=true"
bits 1 grouped $grouped
bits 3 grouped-3 $grouped zero.stage=3
expect "grouped by images and lengths: the same bits on three ranks" same_model "$(newest grouped)" "$(newest grouped-3)"

# ---- what is trained, and what keeps its bits
differing() { # A B: parts of tensors' names that differ between two checkpoints
    h5diff "$(newest "$1")" "$(newest "$2")" /model /model | sed -n 's|^dataset: </model/\([^>]*\)>.*|\1|p' |
        sed -E 's/^(vision_tower.encoder.layers.[0-9]|language_model.model.layers.[0-9]|[a-z_]*\.[a-z_0-9]*).*/\1/' | sort -u | tr '\n' ' '
}
bits 1 start run.max_steps=1 optimizer.lr=0
tower="vision_tower.embeddings vision_tower.encoder.layers.0 vision_tower.encoder.layers.1 vision_tower.pre_layrnorm "
projector="multi_modal_projector.linear_1 multi_modal_projector.linear_2 "
text="language_model.lm_head language_model.model language_model.model.layers.0 language_model.model.layers.1 "
is "all that is used is trained" "$(differing start ref)" "$text$projector$tower"
while read -r name part want; do
    bits 1 "$name" vision.train="$part" run.max_steps=3
    bits 3 "$name-3" vision.train="$part" run.max_steps=3 zero.stage=3
    is "vision.train = $part: the rest keeps its bits" "$(differing start "$name")" "$want "
    expect "the same bits on three ranks, vision.train = $part" same_model "$(newest "$name")" "$(newest "$name-3")"
done <<PARTS
projector projector ${projector% }
tower tower ${tower% }
last projector,llm:1 language_model.model.layers.1 ${projector% }
PARTS
bits 1 rates optimizer.lr_groups=multi_modal_projector:0,vision_tower:1e-4 run.max_steps=3
is "a learning rate of their own" "$(differing start rates)" "$text$tower"
is "the learning rate of the tower is logged" "$(number rates lr/vision_tower | tail -1)" 0.0001
lora="vision.train=projector,llm lora.r=2 lora.target_modules=q_proj,lm_head run.max_steps=3"
bits 1 lora $lora
bits 3 lora-3 $lora zero.stage=3
expect "adapters with a projector: the same bits on three ranks" same_model "$(newest lora)" "$(newest lora-3)"
bits 1 codes $lora lora.base_quantization=int8
expect "on a base in 8 bits: as much memory as planned" as_planned
bits 3 codes-3 $lora lora.base_quantization=int8 zero.stage=3
expect "the same bits on three ranks" same_model "$(newest codes)" "$(newest codes-3)"
expect "the bits differ from those without quantisation" fails same_model "$(newest lora)" "$(newest codes)"

# ---- features after post_layernorm, and one placeholder for the mean of an image's rows (test_model_vision.c has their values)
expect "a placeholder for each image" ./dtrain-data -q --tokenizer $hf/siglip_qwen2 --images $hf/siglip_vision --image-tokens 1 -o "$tmp/pooled.h5" $fixture/records.jsonl
expect "a placeholder for each row" ./dtrain-data -q --tokenizer $hf/siglip_qwen2 --images $hf/siglip_vision -o "$tmp/rows.h5" $fixture/records.jsonl
whole="data.train=$tmp/pooled.h5,$tmp/texts.h5"
parts="$whole model.path=$hf/siglip_qwen2_text vision.path=$hf/siglip_vision vision.image_token=60"
pooled="vision.feature_layer=-1 vision.feature_norm=true vision.image_tokens=mean_pooling vision.projector_type=mlp"
ends "parts joined so" 0 bits 1 pooled $parts $pooled
expect "as much memory as planned" as_planned
expect "as --plan says" as_plan_says 1 0 vision.train=$all batch.train_batch_size=6 run.reproducible=true $parts $pooled
expect "--plan reports one placeholder for each image" grep -q "^micro-batch: at most [0-9]* tokens and [0-9]* images of 1 token each" "$tmp/.plan"
while read -r np stage more; do
    bits "$np" "pooled-$np" $parts $pooled zero.stage="$stage" $more
    expect "$np ranks at stage $stage: the same bits" same_model "$(newest pooled)" "$(newest "pooled-$np")"
done <<LAYOUTS
2 2 zero.offload_optimizer=cpu
3 3 model.activation_checkpointing=block
LAYOUTS
bits 1 pooled-start $parts $pooled run.max_steps=1 optimizer.lr=0
expect "the norm is trained with the tower" grep -q vision_tower.post_layernorm <<<"$(differing pooled-start pooled)"
bits 1 pooled-head $parts $pooled vision.train=projector,llm checkpoint.export=hf
expect "the norm is frozen with the tower" fails grep -q vision_tower <<<"$(differing pooled-start pooled-head)"
expect_text "transformers has no key for either" "no key for features after post_layernorm"
expect_text "transformers has no key for the mean" "no key for the mean"
expect "the exported model type is not llava" grep -q '"model_type": "dtrain_llava"' "$tmp/pooled-head/hf/config.json"
bits 2 pooled-kept $parts $pooled vision.train=projector,llm vision.feature_cache="$tmp/features" zero.stage=3
expect "with kept features: the same bits" same_model "$(newest pooled-head)" "$(newest pooled-kept)"
bits 1 pooled-bare $parts ${pooled/feature_norm=true/feature_norm=false} vision.train=projector,llm vision.feature_cache="$tmp/features"
is "features without the norm are others" "$(ls "$tmp/features" | grep -c '\.bin$')" 2
ends "an exported model is loaded again" 0 bits 2 pooled-on $whole model.path="$tmp/pooled-head/hf" vision.train=projector,llm zero.stage=2 run.max_steps=1
bits 1 pooled-on-said $whole model.path="$tmp/pooled-head/hf" vision.train=projector,llm run.max_steps=1 ${pooled/vision.projector_type=mlp/}
expect "as it is, whether keys say so or not" same_model "$(newest pooled-on)" "$(newest pooled-on-said)"
cp -r "$tmp/pooled-head/hf" "$tmp/former" && sed -i 's/"dtrain_llava"/"llava"/; s/DtrainLlava/Llava/' "$tmp/former/config.json"
bits 2 pooled-former $whole model.path="$tmp/former" vision.train=projector,llm zero.stage=2 run.max_steps=1
expect "as llava, with the same keys, it is the same" same_model "$(newest pooled-on)" "$(newest pooled-former)"
ends "dtrain-generate accepts an image" 0 run 1 ./dtrain-generate "$tmp/pooled-head/hf" --prompt "<image> what" --image $pictures/wide.ppm --max-new-tokens 4 --greedy
wrong "a norm before the last block's output" 64 'vision.feature_norm: .*vision_feature_layer -1' ./dtrain --check "$tmp/tiny.ini" $parts vision.feature_norm=true run.output_dir="$tmp/wrong"
wrong "CLIP has no such norm" 64 'vision.feature_norm: .*SigLIP' ./dtrain --check "$tmp/tiny.ini" model.path=$hf/clip_llama_text vision.path=$hf/clip vision.feature_norm=true vision.feature_layer=-1 run.output_dir="$tmp/wrong"
wrong "the class row is one more" 65 '9 placeholders per image, but the model computes 10 rows' ./dtrain --check "$tmp/tiny.ini" model.path=$hf/clip_llama_text vision.path=$hf/clip vision.image_token=60 vision.feature_select=cls_patch run.output_dir="$tmp/wrong"
wrong "the mean of an image is one row" 65 '16 placeholders per image, but the model computes 1 row .*--image-tokens 1 ' ./dtrain --check "$tmp/tiny.ini" $parts $pooled data.train="$tmp/rows.h5" run.output_dir="$tmp/wrong"
wrong "another number than the model's" 64 'vision.image_tokens: the model of model.path' ./dtrain --check "$tmp/tiny.ini" $whole model.path="$tmp/pooled-head/hf" vision.image_tokens=patch_insert run.output_dir="$tmp/wrong"

# ---- validation, evaluation
ends "trained on texts, validated on images" 0 train 2 valid data.train="$tmp/texts.h5" data.validation="$tmp/images.h5" run.max_steps=2 zero.stage=3
for packing in none bfd; do # of a packed row each record has its own images
    run 3 ./dtrain "$tmp/tiny.ini" run.task=eval run.output_dir="$tmp/$packing" model.path="$tmp/valid" data.train= data.validation="$tmp/images.h5" data.packing=$packing batch.train_batch_size=0
    # the sums of other ranks, in seven digits
    near "evaluated on other ranks, packing = $packing: the same loss" "$(number $packing validation_loss)" "$(number valid validation_loss | tail -1)" 1e-6
done

# ---- pairs: both texts have the images of their prompt, and so has the reference
sed 's/"completion": \("[^"]*"\)/"chosen": \1, "rejected": "no idea?"/; s|\.\./\.\./vision_data|'"$PWD/$pictures"'|g' $fixture/records.jsonl >"$tmp/pairs.jsonl"
images clip_llama -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
pairs() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    bits "$np" "$dir" run.task=dpo data.train="$tmp/pairs.h5" run.max_steps=3 vision.train=projector,llm "$@"
}
pairs 1 dpo
is "dpo begins without a margin" "$(number dpo dpo/rewards/margins | head -1)" 0
expect "with memory as planned" as_planned
pairs 3 dpo-3 zero.stage=3
expect "the same bits on three ranks" same_model "$(newest dpo)" "$(newest dpo-3)"
pairs 2 dpo-2 dpo.precompute_reference=true
expect "or with a reference asked before" same_model "$(newest dpo)" "$(newest dpo-2)"
pairs 1 simpo dpo.loss_type=simpo
pairs 3 simpo-3 dpo.loss_type=simpo zero.stage=3
expect "without a reference: the same bits on three ranks" same_model "$(newest simpo)" "$(newest simpo-3)"
ends_saying "prompts with images are no targets: exit code" 64 'sft_on_prompt.*expected false, because the prompts of data.train have images' pairs 1 orpo dpo.loss_type=orpo
grep -v '"image' "$tmp/pairs.jsonl" >"$tmp/text.jsonl"
expect "pairs without images" ./dtrain-data -q --tokenizer $hf/clip_llama -o "$tmp/text-pairs.h5" "$tmp/text.jsonl" "$tmp/text.jsonl"
ends_saying "nor are those of a validation: exit code" 64 'sft_on_prompt.*expected false, because the prompts of data.validation have images' \
    pairs 1 orpo dpo.loss_type=orpo data.train="$tmp/text-pairs.h5" data.validation="$tmp/pairs.h5"
lora="vision.train=llm lora.r=2" # its reference is the model without adapters
pairs 1 dpo-lora $lora
expect "dpo of adapters: as much memory as planned" as_planned
is "begins without a margin, too" "$(number dpo-lora dpo/rewards/margins | head -1)" 0
pairs 3 dpo-lora-3 $lora zero.stage=3
expect "the same bits on three ranks" same_model "$(newest dpo-lora)" "$(newest dpo-lora-3)"

# ---- data that does not fit the model
check() { local name=$1 code=$2 text=$3; shift 3; wrong "$name" "$code" "$text" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/wrong" "$@"; }
check "a model without a tower" 65 'train: .*images.h5 has images, and the model has no vision tower' model.path=$hf/clip_llama_text
check "of validation, too" 65 'validation: .*images.h5 has images' model.path=$hf/clip_llama_text data.train="$tmp/texts.h5" data.validation="$tmp/images.h5"
check "images of another size" 65 'images.h5 has images of 14 x 14 pixels, but vision_config.image_size of the model is 17; create the dataset again with dtrain-data --images tests/data/vision/hf/siglip_qwen2$' model.path=$hf/siglip_qwen2
images siglip_qwen2 -o "$tmp/many.h5" --image-tokens 7 $fixture/records.jsonl
check "another number of placeholders" 65 'many.h5: attribute image_tokens: 7 placeholders per image, but the model computes 16 rows .*; create the dataset again with dtrain-data --image-tokens 16 --images tests/data/vision/hf/siglip_qwen2$' model.path=$hf/siglip_qwen2 data.train="$tmp/many.h5"
sed 's/0.48145466/0.5/' $hf/clip/preprocessor_config.json >"$tmp/other.json"
expect "other means" ./dtrain-data -q --tokenizer $hf/clip_llama --images "$tmp/other.json" --image-tokens 9 -o "$tmp/means.h5" $fixture/records.jsonl
check "another preprocessor" 65 'means.h5: attribute preprocessor: image_mean: the images were prepared with 0.5, 0.4578275.*, but the model has 0.48145' data.train="$tmp/means.h5"
sed 's/"resample": 3/"resample": 2/' $hf/clip/preprocessor_config.json >"$tmp/bilinear.json"
expect "images made smoother" ./dtrain-data -q --tokenizer $hf/clip_llama --images "$tmp/bilinear.json" --image-tokens 9 -o "$tmp/smooth.h5" $fixture/records.jsonl
check "another filter" 65 'smooth.h5: attribute preprocessor: size and resample: .*bilinear, but the model has .*bicubic' data.train="$tmp/smooth.h5"
# a model without image preprocessing must be validated on images prepared as in training
cp $hf/clip_llama/config.json "$tmp/new.json"
check "validation made otherwise than training" 65 'validation: .*smooth.h5: attribute preprocessor: size and resample' model.path= model.config="$tmp/new.json" data.validation="$tmp/smooth.h5"
mkdir "$tmp/beside" && cp $hf/clip_llama/*config.json "$tmp/beside"
check "a preprocessor next to model.config" 65 'smooth.h5: attribute preprocessor: size and resample' model.path= model.config="$tmp/beside/config.json" data.train="$tmp/smooth.h5"
train 2 made model.path= model.config="$tmp/new.json" data.train="$tmp/smooth.h5" run.max_steps=1 checkpoint.save_steps=1 checkpoint.export=hf model.tokenizer=$hf/clip_llama
expect_exit "a new model" 0
expect "the export has the dataset's preprocessor" grep -q '"resample": 2' "$tmp/made/hf/preprocessor_config.json"
expect "the checkpoint has the dataset's preprocessor" ./dtrain-generate "$(newest made)" --tokenizer $hf/clip_llama --prompt "what" --image $pictures/wide.ppm --max-new-tokens 1
ends "a new model's run resumes" 0 train 1 made model.path= model.config="$tmp/new.json" data.train="$tmp/smooth.h5" run.max_steps=2 checkpoint.save_steps=1 checkpoint.resume=auto
clip=(model.path=$hf/clip_llama_text vision.path=$hf/clip)
check "another placeholder" 65 'images.h5: attribute image_token: placeholders are token 60, but image_token_id or image_token_index of the model is 59' "${clip[@]}" vision.image_token=59
alone=model.path=$hf/clip_llama_text
check "a reward model without a tower" 65 'train: .*pairs.h5 has images, and the model has no vision tower' $alone run.task=rm data.train="$tmp/pairs.h5"
check "a reference without a tower" 65 'reference_path: .*pairs.h5 has images, and the reference has no vision tower' run.task=dpo data.train="$tmp/pairs.h5" dpo.reference_path=$hf/clip_llama_text
# A node may have an old copy of a model: ranks that start in two folders find two, of which one has a block less.
mkdir "$tmp/here" "$tmp/there"
cp -r $hf/clip_llama "$tmp/here/model" && cp -r $hf/clip_llama "$tmp/there/model" && sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' "$tmp/there/model/config.json"
sed "s|tests/data|$PWD/tests/data|" "$tmp/tiny.ini" >"$tmp/apart.ini"
differ() { # WHAT COMMAND...
    ends "$1: two copies that differ are refused" 65 run 0 $MPIRUN -np 1 -wdir "$tmp/here" "$PWD/${@:2}" : -np 1 -wdir "$tmp/there" "$PWD/${@:2}"
    expect_text "the file that differs is named" "model/config.json: the file on host .* differs from rank 0.s"
}
differ "a model" dtrain "$tmp/apart.ini" run.output_dir="$tmp/wrong" model.path=model
differ "a reference" dtrain "$tmp/apart.ini" run.output_dir="$tmp/wrong" run.task=dpo data.train="$tmp/pairs.h5" dpo.reference_path=model
differ "dtrain-generate" dtrain-generate model --prompt a --max-new-tokens 2
differ "dtrain-convert" dtrain-convert model "$tmp/wrong.h5"
sed 's/"completion": "[^"]*"/"answer": "b"/; s|\.\./\.\./vision_data|'"$PWD/$pictures"'|g' $fixture/records.jsonl >"$tmp/prompts.jsonl"
images clip_llama -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
check "rollouts" 65 'prompts.h5 has images, and the model has no vision tower' $alone run.task=grpo data.train="$tmp/prompts.h5" grpo.reward_funcs=length:3 grpo.num_generations=2 grpo.max_completion_length=8
echo '{"prompt": "<image>", "completion": "a"}' >"$tmp/loose.jsonl"
expect "placeholders without images" ./dtrain-data -q --tokenizer $hf/clip_llama -o "$tmp/loose.h5" "$tmp/loose.jsonl"
stray='token 60 stands for an image in this model, but the dataset has no images'
loose() { # NAME REGEX SETTINGS...: both before a run and in it
    local name=$1 regex=$2
    shift 2
    check "$name" 65 "$regex" "$@"
    wrong "$name, in a run" 65 "$regex" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/loose" "$@"
}
loose "are no text" "loose.h5: sample 0: $stray" data.train="$tmp/loose.h5"
loose "packed" "loose.h5: sample 0: $stray" data.train="$tmp/loose.h5" data.packing=bfd
printf 'one\n\ntwo <image>\n\nthree\n' >"$tmp/loose.txt"
run 0 ./dtrain-data -q --tokenizer $hf/clip_llama --documents paragraphs -o "$tmp/loose-text.h5" "$tmp/loose.txt"
loose "of plain text" "loose-text.h5: sample 1: $stray" run.task=pretrain data.train="$tmp/loose-text.h5" data.seq_len=2
echo '{"prompt": "a", "chosen": "b", "rejected": "c<image>"}' >"$tmp/loose-pairs.jsonl"
run 0 ./dtrain-data -q --tokenizer $hf/clip_llama -o "$tmp/loose-pairs.h5" "$tmp/loose-pairs.jsonl"
loose "of a pair" "loose-pairs.h5: sample 0: $stray" run.task=dpo data.train="$tmp/loose-pairs.h5"
e2e_done
