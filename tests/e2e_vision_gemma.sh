#!/bin/bash
# e2e_vision_gemma.sh - Gemma 3 with images, from records to exports. Ids match those of transformers' processor. Results do not depend on
# ranks, stages or packing. Images attend in both directions, which test_model_vision.c compares with transformers.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
model=tests/data/vision/hf/gemma3 chats=tests/data/vision/gemma3_chats.jsonl files=$PWD/tests/data/image/files length=96
. "$(dirname "$0")/vision_common.sh"

# ---- data
grep -v '"images"' "$tmp/chats.jsonl" >"$tmp/texts.jsonl"
expect "texts only" ./dtrain-data -q --tokenizer $model --mask assistant -o "$tmp/texts.h5" "$tmp/texts.jsonl" "$tmp/texts.jsonl"
mkdir "$tmp/scan"
sed 's/"do_resize"/"do_pan_and_scan": true, "do_resize"/' $model/preprocessor_config.json >"$tmp/scan/preprocessor_config.json"
ends "several crops of an image" 65 run 0 ./dtrain-data -q --tokenizer $model --images "$tmp/scan" -o "$tmp/no.h5" "$tmp/chats.jsonl"
expect_text "are refused" 'do_pan_and_scan: expected false'

# ---- training
ends "texts only, with the whole model" 0 train 2 texts data.train="$tmp/texts.h5" vision.train=llm batch.micro_batch_size=1
ends "bf16" 0 train 1 half precision.dtype=bf16
ends "adapters on an int8 base" 0 train 1 int8 vision.train=llm lora.r=2 lora.base_quantization=int8
ends "adapters, and the projector whole" 0 train 2 adapted vision.train=projector,llm lora.r=2 batch.micro_batch_size=1
expect "its names are PEFT's" grep -q 'base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight' "$tmp/adapted/adapter/adapter_model.safetensors"
expect "and transformers'" grep -q 'multi_modal_projector.mm_input_projection_weight' "$tmp/adapted/adapter/adapter_model.safetensors"

# ---- files
run 2 ./dtrain-convert $model "$tmp/gemma.h5"
run 3 ./dtrain-convert "$tmp/gemma.h5" "$tmp/back"
expect "a checkpoint and back: the same bits" cmp "$tmp/back/model.safetensors" $model/model.safetensors
expect "config.json is the same" python3 -c '
import json, sys
a, b = (json.load(open(d + "/config.json")) for d in sys.argv[1:])
a.pop("torch_dtype")
a["text_config"].pop("tie_word_embeddings", None), b["text_config"].pop("tie_word_embeddings", None)
assert a == b, (a, b)' "$tmp/back" $model
expect "the processor is Gemma 3's" grep -q '"processor_class": "Gemma3Processor"' "$tmp/back/processor_config.json"
expect "it has the number of tokens" grep -q '"image_seq_length": 9' "$tmp/back/processor_config.json"
run 1 ./dtrain-convert --to hf --text-only $model "$tmp/text"
expect "the text model alone" grep -q '"Gemma3ForCausalLM"' "$tmp/text/config.json"
python3 - "$tmp/text/model.safetensors" $model/model.safetensors <<'PY' >"$out" 2>&1
import json, struct, sys
def read(path):
    blob = open(path, "rb").read()
    n = struct.unpack("<Q", blob[:8])[0]
    return {k: blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in json.loads(blob[8:8 + n]).items() if k != "__metadata__"}
text, whole = map(read, sys.argv[1:])
assert text == {k[len("language_model."):]: v for k, v in whole.items() if k.startswith("language_model.")}, text.keys()
PY
expect "has its weights" test $? = 0
run 1 ./dtrain-convert --to hf --text-only tests/data/vision/hf/clip_llama "$tmp/llama"
expect "that of LLaVA, too" cmp "$tmp/llama/model.safetensors" tests/data/vision/hf/clip_llama_text/model.safetensors
wrong "a model of texts" 65 'model_type: expected a model with images' ./dtrain-convert --to hf --text-only tests/data/vision/hf/clip_llama_text "$tmp/no"
wrong "a checkpoint" 64 'text-only: expected FROM to be a model directory' ./dtrain-convert --to hf --text-only "$tmp/gemma.h5" "$tmp/no"
wrong "another projector" 64 'vision.projector_type: the tower, projector and language model' ./dtrain --check "$tmp/tiny.ini" vision.projector_type=mlp run.output_dir="$tmp/no"
wrong "another tower" 64 'vision.path.*already has a tower' ./dtrain --check "$tmp/tiny.ini" vision.path=tests/data/vision/hf/clip run.output_dir="$tmp/no"

# ---- conversations
printf 'What is it?\nand now\n' | timeout 240 ./dtrain-generate $model --chat --greedy --max-new-tokens 4 --image "$files/rgb.jpg" --threads 1 >"$tmp/answers" 2>"$out"
expect "a conversation keeps its image" test "${PIPESTATUS[1]}-$(wc -l <"$tmp/answers")" = 0-2
e2e_done
