#!/bin/bash
# e2e_vision_grids.sh - Qwen2.5-VL, Qwen3-VL, its mixtures, Qwen3.5 and InternVL, with images of several cells: datasets, training, export and generation as transformers',
# for any ranks, stage and packing. Also: adapters; conversations; what is refused.
. "$(dirname "$0")/e2e.sh"
export OMP_NUM_THREADS=1
grids=tests/data/vision/grids
files=$PWD/tests/data/image/files

make_data() { # MODEL ARGUMENTS...
    ./dtrain-data --images $grids/$1 --tokenizer $grids/$1 --image-folder "$files" "${@:2}" >"$out" 2>&1
    code=$?
}
go() { # NP NAME MODEL ARGUMENTS...
    own_mpi_files
    rm -rf "$tmp/$2"
    timeout -k 5 240 $MPIRUN -np "$1" ./dtrain "$tmp/run.ini" run.output_dir="$tmp/$2" model.path=$grids/$3 data.train="$tmp/$3.h5" "${@:4}" >"$out" 2>&1
    code=$?
}
losses_are() { # MODEL RUN: those of transformers
    python3 - "$1" "$tmp/$2/metrics.jsonl" <<'PY'
import json, sys
want = json.load(open("tests/data/vision/grids/expected.json"))[sys.argv[1]]["losses"]
found = [r["loss"] for r in map(json.loads, open(sys.argv[2])) if "loss" in r]
assert len(found) == len(want), found
for a, b in zip(want, found):
    assert abs(a - b) <= 2e-5 * a, "expected %s, found %s" % (want, found)
PY
}
answers_are() { # MODEL greedy|beams
    python3 - "$1" "$2" "$tmp/text" <<'PY'
import json, sys
want = json.load(open("tests/data/vision/grids/expected.json"))[sys.argv[1]]["answers"]
found = [json.loads(line) for line in open(sys.argv[3])]
assert len(found) == len(want)
for a, b in zip(want, found):
    assert b["prompt_ids"] == a["prompt_ids"], "prompt: expected %s, found %s" % (a["prompt_ids"], b["prompt_ids"])
    assert b["ids"] == a[sys.argv[2]], "expected %s, found %s" % (a[sys.argv[2]], b["ids"])
PY
}
generate() { # NP DIRECTORY ARGUMENTS...: records in $tmp/text
    own_mpi_files
    rm -f "$tmp/text"
    timeout -k 5 240 $MPIRUN -np "$1" ./dtrain-generate "$2" --prompts "$tmp/prompts.jsonl" --jsonl --max-new-tokens 8 -o "$tmp/text" --force "${@:3}" \
        >"$out" 2>&1 </dev/null
    code=$?
}

cat >"$tmp/run.ini" <<'INI'
[run]
task = sft
device = cpu
epochs = 4
[data]
seq_len = 256
[vision]
train = tower, projector, llm
[batch]
train_batch_size = 4
micro_batch_size = 2
[optimizer]
lr = 1e-3
betas = 0.9, 0.95
eps = 1e-8
weight_decay = 0
[scheduler]
type = constant
[precision]
dtype = fp32
[checkpoint]
save_steps = 0
export = hf
INI
python3 - "$files" >"$tmp/prompts.jsonl" <<'PY'
import json, sys
for line in open("tests/data/vision/grids/chats.jsonl"):
    r = json.loads(line)
    for part in r["messages"][0]["content"]:
        if part["type"] == "image":
            part["image"] = sys.argv[1] + "/" + part["image"]
    print(json.dumps(dict(messages=r["messages"][:1])))
PY

for model in qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe internvl; do
    n_images=3 images='different images' language=model.language_model. tower=model.visual.
    [ $model != internvl ] || n_images=17 images='different tiles of images' language=language_model.model. tower=vision_tower. # tiles are images of the tower
    make_data $model --mask assistant -o "$tmp/$model.h5" $grids/chats.jsonl
    expect_exit "$model: a dataset is made" 0
    expect "$model: it is verified" ./dtrain-info "$tmp/$model.h5"
    go 1 whole $model
    expect "$model: losses are those of transformers" losses_are $model whole
    go 1 packed $model data.packing=bfd data.seq_len=512 batch.micro_batch_size=1 batch.train_batch_size=1
    expect "$model: a packed row has the losses of its records" losses_are $model packed
    for case in "1 0" "2 1" "2 3" "3 0" "3 1" "3 2" "3 3"; do
        read -r np stage <<<"$case"
        go "$np" of $model zero.stage="$stage" run.reproducible=true batch.micro_batch_size=1 batch.train_batch_size=6
        [ "$np" = 1 ] && cp "$tmp/of/hf/model.safetensors" "$tmp/one"
        expect "$model: stage $stage on $np ranks gives the bits of one rank" cmp "$tmp/one" "$tmp/of/hf/model.safetensors"
    done
    for case in "1 0" "3 3" "2 2"; do
        read -r np stage <<<"$case"
        go "$np" with $model vision.feature_cache="$tmp/cache" vision.train=projector,llm zero.stage="$stage" run.reproducible=true \
            batch.micro_batch_size=1 batch.train_batch_size=6
        if [ "$np" = 1 ]; then
            expect "$model: features of images are cached" grep -q "computing features of $n_images of $n_images $images" "$out"
            go 1 without $model vision.train=projector,llm run.reproducible=true batch.micro_batch_size=1 batch.train_batch_size=6
        elif [ "$np" = 3 ]; then
            expect "$model: and found again" grep -q "features of $n_images $images are cached" "$out"
            rm -r "$tmp/cache"
        else
            expect "$model: two ranks compute them" grep -q "computing features of $n_images of $n_images $images" "$out"
        fi
        expect "$model: $np ranks have the bits without a cache" cmp "$tmp/with/hf/model.safetensors" "$tmp/without/hf/model.safetensors"
    done
    go 1 small $model vision.feature_cache="$tmp/other" vision.train=llm data.seq_len=72 batch.micro_batch_size=1
    [ $model = internvl ] || expect "$model: an image that no sample has room for is not computed" grep -q "computing features of 2 of 3" "$out"
    rm -r "$tmp/other"
    generate 1 $grids/$model --greedy
    expect "$model: greedily as transformers" answers_are $model greedy
    generate 1 $grids/$model --num-beams 3
    expect "$model: by beams as transformers" answers_are $model beams
    generate 2 $grids/$model --greedy --zero-stage 3 --batch-size 2
    expect "$model: on two ranks, whose parameters are sharded" answers_are $model greedy
    ./dtrain-convert --to hf --vision whole $grids/$model "$tmp/converted" --force >"$out" 2>&1
    expect "$model: a converted directory has the names of the whole model" python3 - "$tmp/converted/model.safetensors" $language $tower <<'PY'
import json, struct, sys
f = open(sys.argv[1], "rb")
names = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
others = ("__metadata__", "lm_head.weight", "language_model.lm_head.", "multi_modal_projector.")
bad = [n for n in names if not n.startswith((*others, *sys.argv[2:]))]
assert not bad and all(any(n.startswith(part) for n in names) for part in sys.argv[2:]), bad
PY
    generate 1 "$tmp/converted" --greedy
    expect "$model: a converted directory gives the same" answers_are $model greedy
    for parts in llm tower,projector,llm; do
        go 1 adapted $model vision.train=$parts lora.r=2 run.max_steps=2
        expect_exit "$model: adapters, $parts" 0
        rm -rf "$tmp/merged"
        ./dtrain-convert --adapter "$tmp/adapted/adapter" $grids/$model "$tmp/merged" --dtype fp32 >"$out" 2>&1
        expect "$model: merged later, they give the exported model" cmp "$tmp/merged/model.safetensors" "$tmp/adapted/hf/model.safetensors"
        go 2 continued $model vision.train=$parts lora.path="$tmp/adapted/adapter" lora.r=2 run.max_steps=2 batch.micro_batch_size=1
        expect_exit "$model: training continues from them" 0
    done
    [[ $model == *_moe ]] || continue
    go 2 adapted $model vision.train=llm lora.r=2 lora.target_parameters="mlp.experts.gate_up_proj, mlp.experts.down_proj" run.max_steps=2 \
        batch.micro_batch_size=1 zero.stage=3
    expect_exit "$model: adapters of experts" 0
    ./dtrain-convert --adapter "$tmp/adapted/adapter" --vision whole $grids/$model "$tmp/merged" --dtype fp32 --force >"$out" 2>&1
    expect "$model: merged later, they give the exported model" cmp "$tmp/merged/model.safetensors" "$tmp/adapted/hf/model.safetensors"
done

# ---- limits of pixels
mkdir "$tmp/limits"
for size in '{"min_pixels": 576, "max_pixels": 1440}' '{"shortest_edge": 576, "longest_edge": 1440}'; do
    sed -e 's/"m[inax]*_pixels": [0-9]*,//g' -e "s/{/{\"size\": $size,/" $grids/qwen3_vl/preprocessor_config.json >"$tmp/limits/preprocessor_config.json"
    ./dtrain-data -q --force --images "$tmp/limits" --tokenizer $grids/qwen3_vl --image-folder "$files" -o "$tmp/limits.h5" $grids/chats.jsonl >"$out" 2>&1
    ./dtrain-data show "$tmp/limits.h5" 0 >"$tmp/shown"
    expect "limits of pixels in size: $size" test "$(grep -o '<261>' "$tmp/shown" | wc -l)" = 8
done

# ---- conversations and texts
chat() { # TEXT ARGUMENTS...
    ./dtrain-generate $grids/qwen3_vl --chat --prompt "$1" --greedy --max-new-tokens 8 "${@:2}" >"$tmp/answer" 2>"$out" </dev/null
    code=$?
}
chat "What?" --image "$files/depth8_type2.png"
expect_exit "a conversation begins with an image" 0
cp "$tmp/answer" "$tmp/first"
chat "<image>What?" --image "$files/depth8_type2.png"
expect "<image> marks its position" cmp "$tmp/answer" "$tmp/first"

printf 'P6 200 1 255\n' >"$tmp/long.ppm"
head -c 600 /dev/zero >>"$tmp/long.ppm"
chat "What?" --image "$tmp/long.ppm"
expect_exit "a long image may have more cells than max_pixels has" 0
# An image that is replaced between the two times that it is read: the second prompt's, while the first one is answered.
square() { printf "P6 $1 $1 255\n" && head -c $((3 * $1 * $1)) /dev/zero; }
square 24 >"$tmp/square.ppm"
for _ in 1 2; do echo '{"prompt": "<image>What?", "image": "square.ppm"}'; done >"$tmp/squares.jsonl"
DTRAIN_FAULT=generate.pass:0:2:stop ./dtrain-generate $grids/qwen3_vl --prompts "$tmp/squares.jsonl" --batch-size 1 --greedy --max-new-tokens 8 \
    >"$out" 2>&1 </dev/null &
is_stopped() { grep -q '^State:.T' "/proc/$1/status"; }
wait_for is_stopped $!
square 36 >"$tmp/square.ppm"
kill -CONT $!
wait $!
expect "an image that grows during a run" test $? = 65
expect_text "is refused" 'square.ppm: the image was replaced during the run by one of another size'

printf 'a <|image_pad|> b\nWhat?\n' | ./dtrain-generate $grids/qwen3_vl --chat --greedy --max-new-tokens 4 >"$tmp/answer" 2>"$out"
expect "a conversation continues after the placeholder's token without an image" test "${PIPESTATUS[1]}-$(wc -l <"$tmp/answer")" = 0-1
expect_text "which is dropped" 'message is dropped: the text has the token <|image_pad|>'
printf '%900s\nWhat?\n' long | ./dtrain-generate $grids/qwen3_vl --chat --greedy --max-new-tokens 4 --context 300 --image "$files/rgb.jpg" >"$tmp/dropped" 2>"$out"
expect_text "a message that is too long takes its images with it" 'the message and its images are dropped: with this message'
echo 'What?' | ./dtrain-generate $grids/qwen3_vl --chat --greedy --max-new-tokens 4 --context 300 >"$tmp/answer" 2>"$out"
expect "the next message is answered as if it was the first" cmp "$tmp/dropped" "$tmp/answer"

# ---- what is refused
refused() { # WHAT CODE WORDS
    expect_exit "$1: code $2" "$2"
    expect "$1: says why" grep -q "$3" "$out"
}
go 1 bad qwen3_vl vision.projector_type=linear
refused "another projector" 64 "belong together"
echo '{"messages": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}, {"role": "assistant", "content": "a"}]}' >"$tmp/video.jsonl"
make_data qwen3_vl -o "$tmp/bad.h5" "$tmp/video.jsonl"
refused "a video" 65 "found type video"
chat "What?" --system 'Look at <image>' --image "$files/rgb.jpg"
refused "an image in the system message" 65 "system: the text has 1 <|vision_start|>"
chat 'a <|image_pad|>' --image "$files/rgb.jpg"
refused "the placeholder's token" 65 "prompt: the text has the token <|image_pad|>"
./dtrain-generate $grids/qwen3_vl --prompt '<image>What?' >"$out" 2>&1 </dev/null
code=$?
refused "a prompt whose image is missing" 65 "but the prompt has no image"
cp -r $grids/qwen3_vl "$tmp/other" && sed -i 's/"image_token_id": 261/"image_token_id": 263/' "$tmp/other/config.json"
./dtrain-generate "$tmp/other" --prompt 'What?' --image "$files/rgb.jpg" >"$out" 2>&1 </dev/null
code=$?
refused "a placeholder that the tokenizer lacks" 65 "other: the tokenizer lacks token 263, the placeholder for images"
make_data qwen3_vl --image-tokens 5 -o "$tmp/bad.h5" $grids/chats.jsonl
refused "another number of placeholders" 64 "image-tokens: expected 1 for each cell"
make_data qwen3_vl --image-token '' -o "$tmp/bad.h5" $grids/chats.jsonl
refused "a placeholder without text" 64 "image token: expected the text"
sed 's/"qwen3_vl"/"qwen2_vl"/' $grids/qwen3_vl/config.json >"$tmp/limits/config.json"
./dtrain-data --images "$tmp/limits" --tokenizer $grids/qwen3_vl -o "$tmp/bad.h5" $grids/chats.jsonl >"$out" 2>&1
code=$?
refused "a model of another family" 65 'config.json: model_type: expected a vision-language model that dtrain reads.*found "qwen2_vl"'
sed 's/"type": "image"/"type": "image", "max_pixels": 9999/' $grids/chats.jsonl >"$tmp/sized.jsonl"
make_data qwen3_vl -o "$tmp/bad.h5" "$tmp/sized.jsonl"
refused "the size of a single image" 65 "message 0: part 0 of its content: max_pixels: sizes of single images"
./dtrain-data --images tests/data/vision_data/model --tokenizer $grids/qwen3_vl -o "$tmp/bad.h5" $grids/chats.jsonl >"$out" 2>&1
code=$?
refused "another model's images" 64 "no token"
e2e_done
