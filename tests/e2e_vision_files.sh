#!/bin/bash
# e2e_vision_files.sh - vision-language models in files: import and export of llava-hf directories with any tensor names; a language model
# joined with a tower and a projector; trained parts; adapters; errors, each naming its key.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
hf=tests/data/vision/hf
mkdir "$tmp/names"
printf 'the cat sat on the mat.\nand a dog ran by the red barn, did it?\n%.0s' 1 2 3 4 5 6 7 8 >"$tmp/text.txt"
ends "data for the tests" 0 run 0 ./dtrain-data --documents lines --tokenizer $hf/clip_llama -o "$tmp/train.h5" "$tmp/text.txt"
cat >"$tmp/tiny.ini" <<INI
[run]
task = pretrain
max_steps = 2
threads = 1
[data]
train = $tmp/train.h5
seq_len = 24
[batch]
train_batch_size = 4
micro_batch_size = 1
[optimizer]
lr = 1e-2
[log]
report_to = jsonl
[checkpoint]
export = hf
INI
has() { grep -q -- "$1" "$2" || { echo "no $1 in $2"; return 1; }; }
lacks() { ! grep -q -- "$1" "$2" || { echo "$1 in $2"; return 1; }; }
# Other names for the tensors of a directory, and with PATTERN those alone whose new names match: FROM TO PATTERN SED...
renamed() {
    local from=$1 to=$2 pattern=$3
    shift 3
    mkdir "$to" && cp "$from"/*.json "$to" || return 1
    python3 - "$from/model.safetensors" "$to/model.safetensors" "$pattern" "$@" <<'PY'
import re, sys
from fixtures import safetensors, write_safetensors
new = {}
for name, tensor in safetensors(sys.argv[1]).items():
    for rule in sys.argv[4:]:
        name = re.sub(*rule.split("=>"), name)
    if re.search(sys.argv[3], name):
        new[name] = tensor
write_safetensors(sys.argv[2], new)
PY
}
differing() { # A B: what of A differs from B or is not there; SigLIP's pooling alone may be missing in A
    python3 - "$1/model.safetensors" "$2/model.safetensors" <<'PY'
import sys
from fixtures import safetensors
a, b = ({k: v for k, v in safetensors(path).items() if not k.startswith("vision_tower.head.")} for path in sys.argv[1:])
print(*sorted({".".join(k.split(".")[:4]) for k in a.keys() | b.keys() if a.get(k) != b.get(k)}))
PY
}
# What transformers reads of a directory, A, is what it wrote in B: names, types and shapes of all tensors, and every key of config.json but three that
# name the same otherwise. Logits of B against transformers': test_model_vision.c, e2e_vision_generate.sh.
opens_as() { # A B N_TOKENS
    python3 - "$@" <<'PY'
import json, struct, sys
def read(path):
    blob = open(path + "/model.safetensors", "rb").read()
    header = json.loads(blob[8:8 + struct.unpack("<Q", blob[:8])[0]])
    kind = header.pop("__metadata__", {}).get("format")
    return kind, {k: (v["dtype"], v["shape"]) for k, v in header.items()}, json.load(open(path + "/config.json"))
(kind, found, config), (_, expected, original) = read(sys.argv[1]), read(sys.argv[2])
assert kind == "pt", kind  # without it transformers refuses the file
assert config.pop("torch_dtype") == config["dtype"]  # its older name
assert config.pop("image_seq_length") == int(sys.argv[3]) and original.pop("image_seq_length")
if original["vision_config"].pop("vision_use_head", False):  # nothing here reads SigLIP's pooling, and without it there are no tensors of it
    assert config["vision_config"].pop("vision_use_head") is False
    expected = {k: v for k, v in expected.items() if not k.startswith("vision_tower.head.")}
assert config == original, (config, original)
assert found == expected, found.items() ^ expected.items()
PY
}

# ---- in and out, bit for bit, under all names
for case in "clip_llama 1 2 9" "siglip_qwen2 3 1 16"; do
    read -r name np back n_tokens <<<"$case"
    ends "$name to a checkpoint on $np ranks" 0 run "$np" ./dtrain-convert $hf/$name "$tmp/$name.h5"
    run "$back" ./dtrain-convert "$tmp/$name.h5" "$tmp/$name"
    expect "$name back on $back ranks is the same" test "$(differing "$tmp/$name" $hf/$name)" = ""
    expect "the converted model equals transformers'" opens_as "$tmp/$name" $hf/$name "$n_tokens"
    train "$back" "trained-$name" model.path=$hf/$name vision.train=tower,projector,llm
    expect "the export of a run equals transformers' model" opens_as "$tmp/trained-$name/hf" $hf/$name "$n_tokens"
done
expect "the preprocessor goes along" cmp "$tmp/clip_llama/preprocessor_config.json" $hf/clip_llama/preprocessor_config.json
expect "the export has LlavaProcessor's counts" has '"num_additional_image_tokens": 1' "$tmp/clip_llama/processor_config.json"
expect "of SigLIP, too" has '"num_additional_image_tokens": 0' "$tmp/siglip_qwen2/processor_config.json"
expect "the export has the placeholder's text" has '"image_token": "<image>"' "$tmp/siglip_qwen2/processor_config.json"
expect "a SigLIP without its pooling says so" has '"vision_use_head": false' "$tmp/siglip_qwen2/config.json"
run 1 ./dtrain-convert --to hf --chat-template chatml $hf/siglip_qwen2 "$tmp/chats"
expect "a chat template writes a message's images" has "set image = '<image>'" "$tmp/chats/chat_template.jinja"
sed -i "s/^{%- set image.*//; s/(image.*length) ~ //" "$tmp/chats/chat_template.jinja"
run 1 ./dtrain-convert --to hf --chat-template chatml "$tmp/chats" "$tmp/chats-again"
expect "a chat template without images is replaced" has "set image = '<image>'" "$tmp/chats-again/chat_template.jinja"
expect "nothing that transformers has no key for" lacks 'projector_type\|preprocessor_config' "$tmp/clip_llama/config.json"
old='^language_model\.model\.=>model.language_model.' head='^language_model\.lm_head=>lm_head' proj='^multi_modal=>model.multi_modal' tower='^vision_tower\.=>model.vision_tower.vision_model.'
expect "names of another version" renamed $hf/clip_llama "$tmp/names/new" . "$old" "$head" "$proj" "$tower"
expect "names of an older version are accepted" renamed $hf/clip_llama "$tmp/names/old" . '^vision_tower\.=>vision_tower.vision_model.'
for name in new old; do
    run 2 ./dtrain-convert --to hf "$tmp/names/$name" "$tmp/names/$name-out"
    expect "its model is the same: $name" cmp "$tmp/names/$name-out/model.safetensors" $hf/clip_llama/model.safetensors
done

# ---- two keys say whether the head is the embedding
loss_of() { # DIR: the loss of its first step
    rm -rf "$tmp/looked"
    train 1 looked model.path="$1" run.max_steps=1 optimizer.lr=0 checkpoint.save_steps=0
    number looked loss | head -1
}
with_head() { # FROM TO FACTOR: with a head, FACTOR times the embedding
    cp -r "$1" "$2"
    python3 - "$2/model.safetensors" "$3" <<'PY'
import array, sys
from fixtures import safetensors, write_safetensors
tensors = safetensors(sys.argv[1])
dtype, shape, embed = tensors["language_model.model.embed_tokens.weight"]
head = array.array("f", [x * float(sys.argv[2]) for x in array.array("f", embed)])
write_safetensors(sys.argv[1], tensors | {"language_model.lm_head.weight": (dtype, shape, head.tobytes())})
PY
}
tied_loss=$(loss_of $hf/siglip_qwen2)
expect "a tied model has a loss" test -n "$tied_loss"
top='s/^  "tie_word_embeddings": true/  "tie_word_embeddings": false/' text='s/^    "tie_word_embeddings": true/    "tie_word_embeddings": false/'
while read -r name factor edit same; do
    if [ "$factor" = 0 ]; then cp -r $hf/siglip_qwen2 "$tmp/$name"; else with_head $hf/siglip_qwen2 "$tmp/$name" "$factor"; fi
    sed -i "${!edit}" "$tmp/$name/config.json"
    if cmp -s $hf/siglip_qwen2/config.json "$tmp/$name/config.json"; then not_ok "$name" "config.json is what it was"; fi
    loss=$(loss_of "$tmp/$name")
    if [ "$same" = same ]; then is "$name: the loss of the tied model" "$loss" "$tied_loss"
    else expect "$name: the loss of its own head" test -n "$loss" -a "$loss" != "$tied_loss"; fi
    expect "$name: goes out with both keys alike" test "$(grep -c "\"tie_word_embeddings\": $([ "$same" = same ] && echo true || echo false)" "$tmp/looked/hf/config.json")" = 2
done <<TIED
tied-in-text 0 top same
tied-at-top 0 text same
tied-with-a-copy 1 top same
own-head 0.5 top other
own-head-at-top 0.5 text other
TIED

# ---- joined
expect "LLaVA's file of a projector" renamed $hf/clip_llama "$tmp/names/projector" mm_projector 'multi_modal_projector\.linear_1=>model.mm_projector.0' 'multi_modal_projector\.linear_2=>model.mm_projector.2'
projector=$tmp/names/projector/model.safetensors
clip=(model.path=$hf/clip_llama_text vision.path=$hf/clip)
still=(run.max_steps=1 optimizer.lr=0 optimizer.weight_decay=0)
train 2 joined "${clip[@]}" vision.projector_path="$projector" "${still[@]}" zero.stage=3 model.chat_template=vicuna
expect_exit "a language model, a whole CLIP and a projector" 0
expect "the joined parts equal the original model" cmp "$tmp/joined/hf/model.safetensors" $hf/clip_llama/model.safetensors
train 2 lent model.path=$hf/clip_llama_text vision.path="$tmp/names/new" vision.projector_path="$projector" "${still[@]}"
expect_exit "a tower of a whole vision-language model" 0
expect "the tower of a vision-language model is that of its CLIP" cmp "$tmp/lent/hf/model.safetensors" $hf/clip_llama/model.safetensors
expect "the chat template writes a message's images" has "set image = '<image>'" "$tmp/joined/hf/chat_template.jinja"
expect "the joined model equals the llava directory" opens_as "$tmp/joined/hf" $hf/clip_llama 9
expect "the joined model has the tower's preprocessor" cmp "$tmp/joined/hf/preprocessor_config.json" $hf/clip/preprocessor_config.json
expect "the joined config.json equals the llava one" diff <(python3 -c "import json,sys; print(json.dumps(json.load(open(sys.argv[1])), sort_keys=True, indent=1))" "$tmp/clip_llama/config.json" | grep -v 'projection_dim\|torch_dtype') \
    <(python3 -c "import json,sys; print(json.dumps(json.load(open(sys.argv[1])), sort_keys=True, indent=1))" "$tmp/joined/hf/config.json" | grep -v 'projection_dim\|torch_dtype')
train 1 joined-2 model.path=$hf/siglip_qwen2_text vision.path=$hf/siglip_vision vision.feature_layer=-1 vision.image_token=60 vision.projector_path=$hf/siglip_qwen2 "${still[@]}"
expect "tied, with a SigLIP alone and the projector of a whole model" test "$(differing "$tmp/joined-2/hf" $hf/siglip_qwen2)" = ""

for model in internlm2 internlm2_as_llama; do
    train 1 "joined-$model" model.path=tests/data/hf/$model vision.path=$hf/clip vision.image_token=60 "${still[@]}"
    expect_exit "$model as the language model" 0
done
expect "InternLM2 is read as Llama" cmp "$tmp/joined-internlm2/hf/model.safetensors" "$tmp/joined-internlm2_as_llama/hf/model.safetensors"

prints "--plan counts all three parts" '17616 parameters in 10 units' run 0 ./dtrain --plan "$tmp/tiny.ini" "${clip[@]}"
prints "says how many are trained" "^trained: 760 of them" run 0 ./dtrain --plan "$tmp/tiny.ini" "${clip[@]}" vision.train=projector
mkdir "$tmp/laptop" && cp $hf/clip/config.json "$tmp/laptop"
run 0 ./dtrain --plan "$tmp/tiny.ini" model.path="$tmp/not-yet-here" model.model_type=llama model.hidden_size=20 model.intermediate_size=28 model.num_hidden_layers=2 \
    model.num_attention_heads=4 model.num_key_value_heads=2 model.head_dim=6 model.vocab_size=61 vision.path="$tmp/laptop" vision.image_token=60
expect_text "also without weights" '17616 parameters in 10 units'

# ---- a new projector; the trained part; resuming
ends "a new projector" 0 train 2 aligned "${clip[@]}" vision.train=projector
expect "the random projector is reported" has 'projector (4 tensors) starts from random' "$out"
expect "the number of trained parameters is reported" has '17616 parameters in 10 units (760 are trained)' "$out"
expect "text alone trains none of it" renamed "$tmp/aligned/hf" "$tmp/aligned-text" '^language_model|^vision_tower'
expect "the rest" renamed $hf/clip_llama "$tmp/rest" '^language_model|^vision_tower'
expect "stays, to the bit" cmp "$tmp/aligned-text/model.safetensors" "$tmp/rest/model.safetensors"
train 2 last "${clip[@]}" vision.train=projector,llm:1
expect "llm:1 is the last block" test "$(differing "$tmp/last/hf" "$tmp/aligned/hf")" = "language_model.model.layers.1"
train 1 whole model.path="$tmp/aligned" vision.train=embed,head vision.projector_type=mlp2x_gelu
expect "embed and head are no blocks" test "$(differing "$tmp/whole/hf" "$tmp/aligned/hf")" = "language_model.lm_head.weight language_model.model.embed_tokens.weight"
train 2 aligned "${clip[@]}" vision.train=projector run.max_steps=3
expect "a joined run resumes" has 'resumed from' "$out"

prints "dtrain-info names it" 'LlavaForConditionalGeneration' run 0 ./dtrain-info "$tmp/aligned"
expect_text "its tower and projector" 'vision +clip tower, 3 layers, hidden [0-9]*, images of 14 x 14 pixels, each 9 tokens; projector mlp2x_gelu'
expect_text "the trained part is reported" 'trained +projector$'
wrong "a run for a directory of its own" 64 'aligned: is an input' ./dtrain-convert --force "$tmp/aligned" "$tmp/aligned"
cp -r "$tmp/aligned/hf" "$tmp/blind" && rm "$tmp/blind/preprocessor_config.json"
prints "a model that does not say how its images are made" 'blind: preprocessor_config.json, .*, is missing' run 1 ./dtrain-convert "$tmp/blind" "$tmp/blind.h5"

# ---- adapters
ends "adapters, and the projector whole" 0 train 2 adapted model.path=$hf/clip_llama lora.r=2 lora.target_modules=q_proj,lm_head
expect "the adapter names the projector" has '"multi_modal_projector"' "$tmp/adapted/adapter/adapter_config.json"
expect "under the names that PEFT looks for" has 'base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight' "$tmp/adapted/adapter/adapter_model.safetensors"
expect "the tower has no adapters" lacks 'vision_tower' "$tmp/adapted/adapter/adapter_model.safetensors"
expect "whose paths are whole, so that PEFT adds none there" lacks '"q_proj"' "$tmp/adapted/adapter/adapter_config.json"
train 1 adapted-2 model.path=$hf/siglip_qwen2 lora.r=2 lora.target_modules=q_proj vision.train=tower,projector,llm
expect "of modules that are trained whole PEFT finds each tensor that its model has" python3 - $hf/siglip_qwen2/model.safetensors "$tmp/adapted-2/adapter" <<'PY'
import json, sys
from fixtures import safetensors as names
modules = json.load(open(sys.argv[2] + "/adapter_config.json"))["modules_to_save"]
paths = {k: [k[:i] for i, c in enumerate(k) if c == "."] for k in names(sys.argv[1])}
whole = {k for k in paths if any(p.endswith(m) for p in paths[k] for m in modules)}
missing = {"base_model.model.model." + k for k in whole} - names(sys.argv[2] + "/adapter_model.safetensors").keys()
assert any("vision_tower" in k for k in whole) and not missing, sorted(missing)
PY
run 2 ./dtrain-convert --adapter "$tmp/adapted/adapter" $hf/clip_llama "$tmp/merged"
expect "merged they are the model that the run left" cmp "$tmp/merged/model.safetensors" "$tmp/adapted/hf/model.safetensors"
ends "an adapter of PEFT's" 0 run 2 ./dtrain-convert --adapter $hf/clip_llama_peft $hf/clip_llama "$tmp/peft"
# W + s B A of two terms, each in fp32: a few times 2^-24 for values around 1
expect "is merged as PEFT merges it" python3 - "$tmp/peft/model.safetensors" $hf/clip_llama_peft/merged.safetensors <<'PY'
import array, sys
from fixtures import safetensors
found, expected = ({k: array.array("f", data) for k, (_, _, data) in safetensors(path).items()} for path in sys.argv[1:])
assert len(expected) == 8, sorted(expected)
assert max(abs(x - y) for k in expected for x, y in zip(found[k], expected[k])) < 5e-7
PY

# ---- a new preprocessor file next to an old one: dtrain-data prepares images as the model does
cp -r $hf/clip_llama "$tmp/both"
echo '{"image_processor": {"image_processor_type": "CLIPImageProcessor", "image_mean": [0.25, 0.25, 0.25]}}' >"$tmp/both/processor_config.json"
echo '{"image_processor_type": "CLIPImageProcessor", "image_mean": [0.75, 0.75, 0.75]}' >"$tmp/both/preprocessor_config.json"
train 1 newer model.path="$tmp/both"
expect "processor_config.json comes first" has '0.25' "$tmp/newer/hf/preprocessor_config.json"

# ---- mistakes
check() { local name=$1 code=$2 text=$3; shift 3; wrong "$name" "$code" "$text" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/wrong" "$@"; }
check "a tower twice" 64 'vision.path.*already has a tower' model.path=$hf/clip_llama vision.path=$hf/clip
check "another layer than that of the model" 64 'vision.feature_layer.*defines this as -2' model.path=$hf/clip_llama vision.feature_layer=-1
check "a key without a tower" 64 'vision.projector_type.*no tower' model.path=$hf/clip_llama_text vision.projector_type=mlp
check "no language model" 64 'vision.path.*model.path' model.model_type=llama vision.path=$hf/clip
check "a tower that is not there" 65 'vision.path.*nowhere' model.path=$hf/clip_llama_text vision.path=nowhere
check "a tower for a language model" 64 'model.path: expected a language model, found the vision tower .*/clip .model_type clip.' model.path=$hf/clip
check "or in the other's place" 64 'model.path: .*found the vision tower .*/siglip_vision' model.path=$hf/siglip_vision vision.path=$hf/siglip_qwen2_text
check "a directory of another kind" 65 'vision.path: .*clip_llama_text/config.json: model_type: expected clip_vision_model or siglip_vision_model' model.path=$hf/clip_llama_text vision.path=$hf/clip_llama_text
check "no such token" 64 'vision.image_token.*<picture> is not a token' "${clip[@]}" vision.image_token='<picture>'
check "a token beyond the vocabulary" 64 'vision.image_token: .*image_token_index.*below vocab_size' "${clip[@]}" vision.image_token=61
check "a pickle" 64 'vision.projector_path.*pickle' "${clip[@]}" vision.projector_path="$tmp/mm_projector.bin"
check "a projector of another width" 65 'mm_projector.0.weight`: expected the shape .8, 16.' "${clip[@]}" vision.projector_type=mlp vision.projector_hidden_size=8 vision.projector_path="$projector"
check "a projector of another type" 65 'type differs from vision.projector_type' "${clip[@]}" vision.projector_type=linear vision.projector_path="$projector"
check "a layer that is not there" 64 'vision.feature_layer: .*found 9' "${clip[@]}" vision.feature_layer=9
check "squares that do not fit" 64 'vision.projector_shuffle: .*expected a divisor of the 3 patches' "${clip[@]}" vision.projector_type=pixel_shuffle vision.projector_shuffle=2
check "nor do those that are usual" 64 'vision.projector_type: .*projector_shuffle: ' "${clip[@]}" vision.projector_type=pixel_shuffle
cp -r $hf/clip "$tmp/odd" && sed -i 's/"hidden_size": [0-9]*/"hidden_size": 13/' "$tmp/odd/config.json"
check "a tower that is none, by its own file" 65 'vision.path: .*odd/config.json: vision_config.hidden_size' model.path=$hf/clip_llama_text vision.path="$tmp/odd"
run 1 ./dtrain --check "$tmp/tiny.ini" "${clip[@]}" vision.projector_shuffle=2 vision.projector_dropout=0.1 run.output_dir="$tmp/unused"
expect_text "a key that the projector has no use for" 'vision.projector_shuffle is ignored, because a projector of type mlp2x_gelu'
expect_text "the ignored dropout key is reported" 'vision.projector_dropout is ignored'
run 1 ./dtrain --check "$tmp/tiny.ini" "${clip[@]}" vision.projector_type=linear vision.projector_hidden_size=8 run.output_dir="$tmp/unused"
expect_text "and the width between layers, of one" 'vision.projector_hidden_size is ignored'
run 1 ./dtrain --check "$tmp/tiny.ini" "${clip[@]}" vision.projector_type=mlp vision.projector_dropout=0.1 vision.projector_hidden_size=8 run.output_dir="$tmp/unused"
expect "where it has, nothing is said" lacks 'is ignored' "$out"
check "a rate for what is frozen" 64 "lr_groups: 'vision_tower' matches frozen tensors: vision.train = projector, without tower" "${clip[@]}" vision.train=projector optimizer.lr_groups=multi_modal_projector:1e-3,vision_tower:2e-6
check "LLaVA's name of the projector" 64 "'mm_projector' matches no trained tensor; use multi_modal_projector" "${clip[@]}" optimizer.lr_groups=mm_projector:1e-3
check "a task of language models" 64 'run.task: task classify accepts only language models' "${clip[@]}" run.task=classify
check "data that are not there, by their key" 65 'data.train: .*trian.h5: cannot be opened' "${clip[@]}" data.train=trian.h5
check "part of the model for a key" 64 'vision.llm: add llm to vision.train' "${clip[@]}" vision.llm=true
check "AnyLLM's name for a key" 64 'projection_type is projector_type in .vision.' "${clip[@]}" vision.projection_type=mlp
check "something else to train" 64 'vision.train.*found eyes' "${clip[@]}" vision.train=eyes
echo '{"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1},
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 8, "num_attention_heads": 2, "image_size": 4, "patch_size": 4}, "image_token_index": 3}' >"$tmp/patch.json"
check "a tower of one patch, which is left out" 65 'selects no features of an image' model.config="$tmp/patch.json"
check "more blocks than there are" 64 'vision.train.*from 1 to 2' "${clip[@]}" vision.train=llm:3
check "adapters of a tower" 64 "lora.target_modules: 'out_proj' is a layer of another part of the model; add tower to lora.parts" "${clip[@]}" lora.r=2 lora.target_modules=q_proj,out_proj
check "adapters of nothing" 64 'vision.train.*llm' "${clip[@]}" vision.train=projector lora.r=2
check "saving what is trained alone" 64 'checkpoint.save.*vision.path' "${clip[@]}" vision.train=projector checkpoint.save=trainable
wrong "a reward model without a head" 65 'tensor .score.weight. is missing' ./dtrain-generate $hf/clip_llama_text --score $hf/clip_llama --prompt cat --max-new-tokens 3
check "a reference that would have another projector" 64 'vision.projector_path.*more than once' model.path=$hf/clip_llama run.task=dpo vision.projector_path="$projector"
check "LLaVA's own name for a key" 64 'feature_layer' "${clip[@]}" vision.mm_vision_select_layer=-2
train 2 aligned "${clip[@]}" vision.train=projector,llm run.max_steps=4
expect "a resumed run trains the same parts" has 'vision.train: projector -> projector' "$out"
train 2 aligned "${clip[@]}" vision.train=projector vision.feature_layer=-1 run.max_steps=4
expect "from the same features" has 'vision_feature_layer: 2 -> 3\|model.vision_feature_layer' "$out"
train 1 dropping "${clip[@]}" vision.train=projector vision.projector_type=mlp vision.projector_dropout=0.1 run.max_steps=1
train 1 dropping "${clip[@]}" vision.train=projector vision.projector_type=mlp vision.projector_dropout=0.2 run.max_steps=2
expect "with another dropout, which is reported" has 'with the new ones: .*vision.projector_dropout: 0.1 -> 0.2' "$out"
e2e_done
