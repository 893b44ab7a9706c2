#!/bin/bash
# e2e_vision_part.sh - the part of a model with images that is read: model.vision and --vision.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
grids=tests/data/vision/grids gemma=tests/data/vision/hf/gemma3 files=$PWD/tests/data/image/files
type_of() { python3 -c "import json,sys; c = json.load(open(sys.argv[1] + '/config.json')); print(c['model_type'], c['architectures'][0])" "$1"; }
text="qwen3_5_text Qwen3_5ForCausalLM" whole="qwen3_5 Qwen3_5ForConditionalGeneration"

echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]}' >"$tmp/texts.jsonl"
echo '{"prompt": [{"role": "user", "content": "a"}], "answer": "b"}' >"$tmp/prompts.jsonl"
cat >"$tmp/pairs.jsonl" <<'JSON'
{"prompt": [{"role": "user", "content": "<image>a"}], "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}], "images": ["rgb.jpg"]}
{"prompt": [{"role": "user", "content": "d"}], "chosen": [{"role": "assistant", "content": "e"}], "rejected": [{"role": "assistant", "content": "f"}]}
JSON
./dtrain-data -q --tokenizer $grids/qwen3_5 --mask assistant -o "$tmp/texts.h5" "$tmp/texts.jsonl"
./dtrain-data -q --tokenizer $grids/qwen3_5 -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
./dtrain-data -q --tokenizer $gemma -o "$tmp/gemma_prompts.h5" "$tmp/prompts.jsonl"
./dtrain-data -q --tokenizer $grids/qwen3_5 --images $grids/qwen3_5 --image-folder "$files" -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
./dtrain-data -q --tokenizer $grids/qwen3_5 --images $grids/qwen3_5 --image-folder "$files" --mask assistant -o "$tmp/images.h5" $grids/chats.jsonl
make_task sft run.max_steps=2 model.path=$grids/qwen3_5 data.train="$tmp/texts.h5" data.seq_len=256 batch.train_batch_size=2 run.reproducible=true \
    checkpoint.export=hf

# ---- training
ends "texts" 0 train 1 text
is "train and export the text model" "$(type_of "$tmp/text/hf")" "$text"
ends "the whole model, if wanted" 0 train 1 kept model.vision=whole vision.train=llm
is "is exported" "$(type_of "$tmp/kept/hf")" "$whole"
expect "with the same losses" close_losses text kept 0
ends_saying "keys of the tower" 64 'only the text model of model.path is read; set model.vision = whole' train 1 no vision.train=projector,llm,head
ends "images" 0 train 2 images data.train="$tmp/texts.h5:1, $tmp/images.h5:3"
is "train and export the whole model" "$(type_of "$tmp/images/hf")" "$whole"
ends "images in the validation data" 0 train 1 validated data.validation="$tmp/images.h5"
is "need the whole model, too" "$(type_of "$tmp/validated/hf")" "$whole"
ends_saying "its text model" 65 'has no vision tower; expected a dataset without images' train 1 no model.vision=none data.train="$tmp/images.h5"
train 2 stopped run.max_steps=1 data.train="$tmp/images.h5"
train 2 stopped data.train="$tmp/images.h5"
train 2 through data.train="$tmp/images.h5"
expect "a resumed run has the same bits" same_model "$(newest through)" "$(newest stopped)"
ends "random weights" 0 train 1 random model.path= model.config=$grids/qwen3_5/config.json data.train="$tmp/images.h5"
is "have the same choice" "$(type_of "$tmp/random/hf")" "$whole"
ends "random weights of the text model" 0 train 1 random_text model.path= model.config=$grids/qwen3_5/config.json
is "if no dataset has images" "$(type_of "$tmp/random_text/hf")" "$text"
ends "DPO with images" 0 train 1 dpo run.task=dpo data.train="$tmp/pairs.h5"
is "has the whole model as its reference" "$(type_of "$tmp/dpo/hf")" "$whole"
ends "a checkpoint keeps its part" 0 train 1 again run.task=sft model.path="$tmp/images" model.tokenizer=$grids/qwen3_5
is "of the whole model" "$(type_of "$tmp/again/hf")" "$whole"
ends_saying "and has no other" 64 'the checkpoint .* contains a vision tower' train 1 no model.path="$tmp/images" model.vision=none
grpo=(run.task=grpo grpo.reward_funcs=length grpo.num_generations=2 grpo.max_completion_length=4 data.seq_len=64)
ends "a task without images" 0 train 1 grpo "${grpo[@]}" data.train="$tmp/prompts.h5"
is "takes the text model" "$(type_of "$tmp/grpo/hf")" "$text"
ends_saying "a task that takes none" 64 'or model.vision = none for its text model' train 1 no run.task=embed model.path=$gemma data.train="$tmp/gemma_prompts.h5"
ends "the text model of Gemma 3, by the key" 0 train 1 gemma "${grpo[@]}" model.path=$gemma data.train="$tmp/gemma_prompts.h5" model.vision=none
is "then it exports the text model" "$(type_of "$tmp/gemma/hf")" "gemma3_text Gemma3ForCausalLM"
ends_saying "whole, without a tower" 64 'model.vision.*whole: .* has no vision tower' train 1 no model.path="$tmp/text/hf" model.vision=whole
ends_saying "none, with another tower" 64 'model.vision.*none: vision.path' train 1 no model.vision=none vision.path=tests/data/vision/hf/clip_llama

# ---- programs
say() { ./dtrain-generate $grids/qwen3_5 --prompt "Hello" --greedy --max-new-tokens 6 "$@" 2>&1; }
DTRAIN_LOG=info say >"$out"
expect_text "a prompt reads the text model" 'reads the text model only'
say --jsonl | grep '^{' >"$tmp/of_text"
say --jsonl --vision whole | grep '^{' >"$tmp/of_whole"
expect "the whole model gives the same text" cmp "$tmp/of_text" "$tmp/of_whole"
echo "Hello" | DTRAIN_LOG=info ./dtrain-generate $grids/qwen3_5 --chat --greedy --max-new-tokens 6 >"$out" 2>&1
expect "a conversation reads the whole model" test "$(grep -c 'reads the text model only' "$out")" = 0
run 0 ./dtrain-convert --to hf $grids/qwen3_5 "$tmp/converted"
is "a directory is converted to the text model" "$(type_of "$tmp/converted")" "$text"
run 2 ./dtrain-convert --vision whole $grids/qwen3_5 "$tmp/whole.h5"
run 2 ./dtrain-convert --dtype bf16 "$tmp/whole.h5" "$tmp/back"
expect "the whole model to a checkpoint and back" cmp "$tmp/back/model.safetensors" $grids/qwen3_5/model.safetensors
ends_saying "a text model is no whole model" 65 'vision whole: .* expected a model with images' run 0 ./dtrain-convert --vision whole "$tmp/text/hf" "$tmp/no"

# ---- text models that have other types alone
while read -r model within alone; do # WITHIN: experts have another layout, so sums have other bits
    ./dtrain-data -q --tokenizer $grids/$model --mask assistant -o "$tmp/$model.h5" "$tmp/texts.jsonl"
    set -- model.path=$grids/$model data.train="$tmp/$model.h5"
    ends "$model: the whole model" 0 train 1 "$model" "$@" vision.train=llm
    ends "$model: the text model" 0 train 2 "${model}_text" "$@" model.vision=none
    expect "has the same losses" close_losses "$model" "${model}_text" $within
    is "is exported" "$(type_of "$tmp/${model}_text/hf")" "$alone"
    ends "and converted" 0 run 1 ./dtrain-convert --to hf --text-only "$tmp/$model/hf" "$tmp/${model}_only"
    [ $within != 0 ] || expect "with the same weights" cmp "$tmp/${model}_only/model.safetensors" "$tmp/${model}_text/hf/model.safetensors"
    ends "LoRA" 0 train 1 "${model}_lora" "$@" model.vision=none lora.r=2 model.path="$tmp/$model/hf"
    ends "GRPO" 0 train 1 "${model}_grpo" "${grpo[@]}" "$@" model.vision=none data.train="$tmp/prompts.h5"
    for part in none whole; do ./dtrain-generate $grids/$model --vision $part --prompt Hello --greedy --max-new-tokens 6 --jsonl 2>/dev/null >"$tmp/$part"; done
    expect "the same text is generated" cmp "$tmp/none" "$tmp/whole"
done <<'END'
qwen2_5_vl 0 qwen2 Qwen2ForCausalLM
qwen3_vl 0 qwen3 Qwen3ForCausalLM
qwen3_vl_moe 1e-5 qwen3_moe Qwen3MoeForCausalLM
END
e2e_done
