#!/bin/bash
# e2e_vision_tiles.sh - InternVL: ids as transformers' processor makes them, trained and frozen parts, adapters, caches, resumed runs, files,
# conversations, and what is refused. Losses and answers: e2e_vision_grids.sh.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
grids=tests/data/vision/grids
model=$grids/internvl chats=$grids/tiled_chats.jsonl files=$PWD/tests/data/image/files length=192
. "$(dirname "$0")/vision_common.sh"
expect "tiles are drawn" ./dtrain-info --images "$tmp/sheet.png" "$tmp/chats.h5"

# ---- training
for kind in int8 nf4; do ends "adapters on a base of $kind" 0 train 1 $kind vision.train=llm lora.r=2 lora.base_quantization=$kind; done
ends "bf16" 0 train 1 half precision.dtype=bf16
ends "adapters, tower and projector whole" 0 train 2 adapted vision.train=tower,projector,llm lora.r=2 batch.micro_batch_size=1 checkpoint.export=hf
for name in model.language_model.layers.0.self_attn.q_proj.lora_A.weight model.multi_modal_projector.layer_norm.weight \
    model.vision_tower.embeddings.cls_token model.vision_tower.encoder.layer.1.lambda_2; do
    expect "its names are PEFT's: $name" grep -q "$name" "$tmp/adapted/adapter/adapter_model.safetensors"
done
run 1 ./dtrain-convert --adapter "$tmp/adapted/adapter" $model "$tmp/merged" --dtype fp32
expect "merged later: the exported model" cmp "$tmp/merged/model.safetensors" "$tmp/adapted/hf/model.safetensors"

# ---- files
run 2 ./dtrain-convert $model "$tmp/internvl.h5"
run 3 ./dtrain-convert "$tmp/internvl.h5" "$tmp/back"
expect "a checkpoint and back: the same bits" cmp "$tmp/back/model.safetensors" $model/model.safetensors
expect "the processor is InternVL's" grep -q '"processor_class": "InternVLProcessor"' "$tmp/back/processor_config.json"
expect "it has the number of tokens" grep -q '"image_seq_length": 4' "$tmp/back/processor_config.json"
run 1 ./dtrain-convert --to hf --text-only $model "$tmp/text"
expect "the text model alone" grep -q '"Qwen2ForCausalLM"' "$tmp/text/config.json"
wrong "another projector" 64 'vision.projector_type: the tower, projector and language model' ./dtrain --check "$tmp/tiny.ini" vision.projector_type=mlp run.output_dir="$tmp/no"
mkdir "$tmp/bare" "$tmp/lacks"
cp $model/preprocessor_config.json "$tmp/bare"
ends "tiles without a model" 64 run 0 ./dtrain-data -q --tokenizer bytes --images "$tmp/bare" --image-tokens 4 -o "$tmp/no.h5" "$tmp/chats.jsonl"
expect_text "say what is missing" 'images of different sizes need the model'
cp $model/* "$tmp/lacks"
sed -i 's/"<img>"/"<imk>"/g' "$tmp/lacks/tokenizer.json" "$tmp/lacks/tokenizer_config.json"
ends "a tokenizer without <img>" 65 run 0 ./dtrain-data -q --tokenizer "$tmp/lacks" --images "$tmp/lacks" -o "$tmp/no.h5" "$tmp/chats.jsonl"
expect_text "is named" 'lacks: the tokenizer lacks token <img>, which images need'
ends "also for generation" 65 run 0 ./dtrain-generate "$tmp/lacks" --prompt a --image "$files/rgb.jpg"
expect_text "with the model" 'lacks: the tokenizer lacks token <img>, which images need'

# ---- conversations
printf 'What is it?\nand now\n' | timeout 240 ./dtrain-generate $model --chat --greedy --max-new-tokens 4 --image "$files/rgb.jpg" --threads 1 >"$tmp/answers" 2>"$out"
expect "a conversation keeps its image" test "${PIPESTATUS[1]}" = 0
e2e_done
