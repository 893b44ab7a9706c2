#!/bin/bash
# e2e_vision_generate.sh - dtrain-generate with images. Text matches transformers' with the same files, for any ranks, stage, batch and
# beams. Also: conversations with images; errors; answers of a small trained model about unseen images.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
export OMP_NUM_THREADS=1
hf=tests/data/vision/hf
files=$PWD/tests/data/image/files

generate() { # NP ARGUMENTS...: the text alone into $tmp/text
    local np=$1
    shift
    own_mpi_files
    if [ "$np" -gt 0 ]; then
        timeout -k 5 240 $MPIRUN -np "$np" ./dtrain-generate "$@" --threads 1 -o "$tmp/text" --force >"$out" 2>&1 </dev/null
    else
        timeout -k 5 240 ./dtrain-generate "$@" --threads 1 >"$tmp/text" 2>"$out" </dev/null
    fi
    code=$?
}
prompts() { # MODEL: its records of the fixture, with images by their paths, without what is expected
    python3 - "$1" "$files" <<'PY'
import json, sys
for line in open("tests/data/vision/generate.jsonl"):
    r = json.loads(line)
    if r["model"] == sys.argv[1]:
        print(json.dumps(dict(prompt=r["prompt"], images=[sys.argv[2] + "/" + f for f in r["images"]])))
PY
}
# Both compute in fp32 and sum in other orders: log-probabilities of about 3 differ by rounding.
agrees() { # MODEL greedy|beams
    python3 - "$1" "$2" "$tmp/text" <<'PY'
import json, sys
expected = [r for r in map(json.loads, open("tests/data/vision/generate.jsonl")) if r["model"] == sys.argv[1]]
found = [json.loads(line) for line in open(sys.argv[3])]
n_return = len(expected[0]["beams"]) if sys.argv[2] == "beams" else 1
assert len(found) == n_return * len(expected), "%d lines" % len(found)
for i, f in enumerate(found):
    e = expected[i // n_return]
    want = e["beams"][i % n_return] if sys.argv[2] == "beams" else e
    assert f["prompt_ids"] == e["prompt_ids"], "%s: prompt: %s" % (e["prompt"], f["prompt_ids"])
    assert f["ids"] == want["ids"], "%s: expected %s, found %s" % (e["prompt"], want["ids"], f["ids"])
    pairs = [(want["score"], f["score"])] if sys.argv[2] == "beams" else list(zip(want["logprobs"], f["logprobs"]))
    for a, b in pairs:
        assert abs(a - b) <= 1e-5, "%s: expected %.8g, found %.8g" % (e["prompt"], a, b)
PY
}

# ---- as transformers; a model's own answer may have the placeholder's token, which is no image
for model in gemma3 clip_llama siglip_qwen2; do # the last one is generated again below
    prompts $model >"$tmp/$model.jsonl"
    greedy=("$hf/$model" --prompts "$tmp/$model.jsonl" --greedy --max-new-tokens 10 --jsonl --logprobs)
    generate 0 "${greedy[@]}"
    expect "$model: greedily" agrees $model greedy
    cp "$tmp/text" "$tmp/expected"
    generate 0 "$hf/$model" --prompts "$tmp/$model.jsonl" --num-beams 4 --num-return 2 --length-penalty 0.5 --max-new-tokens 10 --jsonl
    expect "$model: by beams" agrees $model beams
done
expect "a generated placeholder is among what is expected" grep -q '"ids": \[[^]]*\b60\b[^]]*\], "logprobs"' tests/data/vision/generate.jsonl
for case in "0 1 0" "1 3 3" "2 2 0" "2 16 3" "3 4 3"; do
    read -r np batch stage <<<"$case"
    generate "$np" "${greedy[@]}" --batch-size "$batch" --zero-stage "$stage"
    expect "the same on $np ranks, batch $batch, stage $stage" cmp "$tmp/text" "$tmp/expected"
done
many=("$hf/clip_llama" --prompts "$tmp/clip_llama.jsonl" --num-samples 3 --temperature 0.8 --max-new-tokens 6 --jsonl)
generate 0 "${many[@]}" --batch-size 1
cp "$tmp/text" "$tmp/expected"
generate 2 "${many[@]}" --batch-size 7
expect "samples are the same in batches on two ranks" cmp "$tmp/text" "$tmp/expected"
generate 0 "${many[@]}" --batch-size 4
expect "samples match if they share their prompt" cmp "$tmp/text" "$tmp/expected"

# ---- ways to give images
one=("$hf/clip_llama" --greedy --max-new-tokens 10 --jsonl)
new_ids() { sed 's/.*"ids":\(\[[^]]*\]\),"prompt_ids".*/\1/' "$1" | tr -d '\n'; }
expected_ids() { python3 -c 'import json, sys; print(json.dumps([json.loads(l) for l in open("tests/data/vision/generate.jsonl")][int(sys.argv[1])]["ids"], separators=(",", ":")))' "$1"; }
generate 0 "${one[@]}" --prompt "<image> or <image>, which" --image "$files/lossy.webp" --image "$files/depth8_type6.png"
expect "images of the command line, in their places" test "$(new_ids "$tmp/text")" = "$(expected_ids 4)"
generate 0 "${one[@]}" --prompt "$(python3 -c 'print("60 " * 9 + "1")')" --tokenizer ids --image "$files/depth8_type2.png"
expect "whole runs of placeholders, as ids" test "$(new_ids "$tmp/text")" = "$(expected_ids 1)"
generate 0 "${one[@]}" --prompt "60 1" --tokenizer ids --image "$files/depth8_type2.png"
expect "or one for each" test "$(new_ids "$tmp/text")" = "$(expected_ids 1)"
expect "the prompt is shown with its placeholder" grep -q '"prompt":"60 1",' "$tmp/text"
printf '<image>a\n<image>a\n' | timeout 240 ./dtrain-generate "${one[@]}" - --image "$files/depth8_type2.png" --threads 1 >"$tmp/text" 2>"$out"
expect "images of every line" test "$(new_ids "$tmp/text")" = "$(expected_ids 1)$(expected_ids 1)"
ends "token by token" 0 generate 0 "$hf/clip_llama" --greedy --max-new-tokens 10 --prompt "<image>a" --image "$files/depth8_type2.png" --stream
run 1 ./dtrain-convert "$hf/clip_llama" "$tmp/clip_llama.h5"
generate 0 "$tmp/clip_llama.h5" --tokenizer $hf/clip_llama --greedy --max-new-tokens 10 --jsonl --prompt "<image>a" --image "$files/depth8_type2.png"
expect "a checkpoint knows how images are made ready" test "$(new_ids "$tmp/text")" = "$(expected_ids 1)"
cp "$files/rgb.jpg" "$tmp/here.jpg"
printf '{"messages": [{"role": "user", "content": "what is it?"}], "image": "here.jpg"}
{"messages": [{"role": "user", "content": [{"type": "image", "path": "here.jpg"}, {"type": "text", "text": "what is it?"}]}]}
{"messages": [{"role": "user", "content": "<image>\\nwhat is it?"}], "images": [{"path": "here.jpg"}]}
{"messages": [{"role": "user", "content": "what is it?"}], "image": "file://%s/%%68ere.jpg"}
{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,%s"}}, {"type": "text", "text": "what is it?"}]}]}\n' \
    "$tmp" "$(base64 "$tmp/here.jpg" | tr -d '\n')" >"$tmp/talk.jsonl"
ends "messages with images from the folder of their file" 0 generate 0 "${one[@]}" --prompts "$tmp/talk.jsonl" --chat-template plain
expect "each with one image, however they are written" python3 -c '
import json, sys
found = [json.loads(line)["prompt_ids"] for line in open(sys.argv[1])]
assert [ids.count(60) for ids in found] == [9] * 5 and all(ids == found[0] for ids in found), found
answers = [json.loads(line)["ids"] for line in open(sys.argv[1])]
assert all(ids == answers[0] for ids in answers), answers' "$tmp/text"

run 1 ./dtrain-convert --to hf --chat-template chatml $hf/clip_llama "$tmp/talks"
generate 0 "$tmp/talks" --max-new-tokens 1 --prompt "what is it?" --image "$files/rgb.jpg"
expect_text "a question to a model of conversations, as it is" 'talks has a chat template, but the prompt is passed to the model unchanged; use --chat --prompt'
expect_text "one token has no rate of its own" '1 new token in .*1 rank.; prompts at [0-9.]* tokens/s$'
generate 0 "$tmp/talks" --max-new-tokens 1 --prompt "<image> " --image "$files/rgb.jpg"
expect "an image alone is no question" test "$(grep -c 'chat template' "$out")" = 0

# ---- conversations
ends "a message with an image" 0 generate 0 "$hf/clip_llama" --chat --chat-template plain --greedy --max-new-tokens 8 --prompt "what is it?" --image "$files/rgb.jpg"
cp "$tmp/text" "$tmp/expected"
generate 2 "$hf/clip_llama" --chat --chat-template plain --greedy --max-new-tokens 8 --prompt "what is it?" --image "$files/rgb.jpg" --zero-stage 3
expect "the same on two ranks" cmp "$tmp/text" "$tmp/expected"
printf 'a\nb\n' | timeout 240 ./dtrain-generate "$hf/clip_llama" --chat --chat-template plain --greedy --max-new-tokens 4 --image "$files/rgb.jpg" --threads 1 >"$tmp/text" 2>"$out"
expect "a second message keeps what the first one's image left" grep -q '[1-9][0-9]* reused' "$out"
printf 'what is it?\nand now\nand again\n' | timeout 240 ./dtrain-generate "$hf/clip_llama" --chat --chat-template plain --greedy --max-new-tokens 8 --image "$files/rgb.jpg" --threads 1 >"$tmp/text" 2>"$out"
expect "the image is forgotten with its message" grep -q 'exceeds 64 tokens' "$out"
expect "all messages are answered, the first with the same text" test "$(wc -l <"$tmp/text")-$(head -1 "$tmp/text")" = "3-$(head -1 "$tmp/expected")"
printf '/system see <image>\nwhat is it?\n' | timeout 240 ./dtrain-generate "$hf/clip_llama" --chat --chat-template plain --greedy --max-new-tokens 4 --threads 1 >"$tmp/text" 2>"$out"
expect "a placeholder in a system message shows no image" test "${PIPESTATUS[1]}-$(wc -l <"$tmp/text")" = 0-1

# ---- mistakes
gen_wrong() { local name=$1 code=$2 text=$3; shift 3; wrong "$name" "$code" "$text" ./dtrain-generate --threads 1 "$@"; }
gen_wrong "a place without an image" 65 'prompt: the text has 1 <image>, but the prompt has no image' $hf/clip_llama --prompt "<image>"
gen_wrong "two images for one place" 65 'the text has 1 <image>, but the prompt has 2 images' $hf/clip_llama --prompt "<image>" --image "$files/rgb.jpg" --image "$files/rgb.jpg"
gen_wrong "a model of texts" 64 'found .*clip_llama_text, a language model' $hf/clip_llama_text --prompt a --image "$files/rgb.jpg"
gen_wrong "an image on another machine" 65 'http://x/a.png: images are not downloaded' $hf/clip_llama --prompt a --image http://x/a.png
gen_wrong "a missing image" 65 'nowhere.png' $hf/clip_llama --prompt a --image nowhere.png
printf '{"prompt": "a", "image": "%s"}\n' "$files/rgb.jpg" nowhere.png >"$tmp/late.jsonl"
gen_wrong "a missing image is found before the model is loaded" 65 'nowhere.png' $hf/clip_llama --prompts "$tmp/late.jsonl" --device nowhere
gen_wrong "a damaged one" 65 'cut.png' $hf/clip_llama --prompt a --image "$files/cut.png"
printf '{"prompt": "a", "image": "%s"}\n' "$files/rgb.jpg" "$files/rgb.jpg" "$files/rgb.jpg" "$files/cut.png" >"$tmp/late.jsonl"
gen_wrong "on one rank of two in lockstep" 65 'cut.png' $hf/clip_llama --zero-stage 3 --batch-size 1 --prompts "$tmp/late.jsonl" --max-new-tokens 4
RUN_TIMEOUT=60 DTRAIN_FAULT=generate.pass:0:2:hang gen_wrong "a damaged image on one rank of two: no rank waits for the other" 65 'cut.png' $hf/clip_llama --batch-size 1 --prompts "$tmp/late.jsonl" --max-new-tokens 4
cp "$files/rgb.jpg" "$tmp/out.jpg"
gen_wrong "an image that would be overwritten" 64 'out.jpg: is an input' $hf/clip_llama --prompt a --image "$tmp/out.jpg" --force -o "$tmp/out.jpg"
expect "the input image is unchanged" cmp "$files/rgb.jpg" "$tmp/out.jpg"
gen_wrong "records name their own" 64 'image: expected --prompt, - or --chat' $hf/clip_llama --prompts "$tmp/talk.jsonl" --image "$files/rgb.jpg"
printf '{"prompt": "a"}\n{"prompt": "<image>", "image": 7}\n' >"$tmp/bad.jsonl"
gen_wrong "no path" 65 'bad.jsonl:2: image: expected a path' $hf/clip_llama --prompts "$tmp/bad.jsonl"
cp -r $hf/clip_llama "$tmp/other" && sed -i 's/14/16/' "$tmp/other/preprocessor_config.json"
gen_wrong "images of another size" 65 'expects 14 x 14' "$tmp/other" --prompt a --image "$files/rgb.jpg"

# ---- the example, which in two steps learns nothing, and its table of answers that are all right
[ -z "${DTRAIN_DEVICE:-}" ] || { e2e_done; exit; } # the same programs on any device
ends "from images that a script draws to answers" 0 run 0 env RUNS="$tmp/toy" IMAGES=64 TESTS=8 SETTINGS="run.threads=1 run.max_steps=2" tools/see.sh
told=$tmp/toy/see-data
expect "eight images with answers" test "$(grep -c '<text' "$told/answers.svg")" = 8
sed 's/"completion"/"text": "none", &/' "$told/test.jsonl" >"$tmp/none.jsonl"
sed 's/"completion": \("[^"]*"\)/"text": \1, &/' "$told/test.jsonl" >"$tmp/right.jsonl"
awk -v what=table -f tools/see/answers.awk "$told/test.jsonl" "$tmp/none.jsonl" "$tmp/right.jsonl" >"$out"
expect "no answer is right, and each is" awk 'NR > 1 { bad = bad || $(NF - 1) != 0 || $NF != 1 } END { exit bad || NR != 5 }' "$out"

# A smaller model learns colours and numbers in seconds, and is asked about images of combinations that it was not trained on. Who guesses, or always says
# the same, is right in a sixth and in a quarter of the 100 answers: 37 or more and 48 or more have probabilities of 8.5e-7 and 5.8e-7.
learned=$tmp/learned
mkdir "$learned"
LC_ALL=C awk -v out="$learned" -v images=600 -v tests=100 -v seed=1 -f tools/see/shapes.awk
grep -v '"kind": "shape"' "$learned/questions.jsonl" >"$learned/some.jsonl"
cat >"$learned/small.json" <<'JSON'
{"model_type": "llava", "image_token_index": 35, "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
 "vision_config": {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
 "text_config": {"model_type": "llama", "vocab_size": 257, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
                 "max_position_embeddings": 64, "bos_token_id": 256, "eos_token_id": 256, "tie_word_embeddings": true}}
JSON
expect "questions about colours and numbers" ./dtrain-data -q --images input --image-tokens 16 --image-token '#' -o "$learned/some.h5" "$learned/some.jsonl"
run 2 ./dtrain input/vision.ini run.output_dir="$learned/run" run.threads=1 run.seed=1 run.max_steps=300 scheduler.warmup_steps=10 optimizer.lr=3e-3 model.config="$learned/small.json" data.train="$learned/some.h5"
expect_exit "a small model is trained on them" 0
run 2 ./dtrain-generate "$learned/run/hf" --prompts "$learned/test.jsonl" --greedy --max-new-tokens 8 --jsonl -o "$learned/answers.jsonl" --threads 1
expect_exit "questions about 100 unseen images" 0
{ tail -n +4 "$learned/answers.jsonl"; head -3 "$learned/answers.jsonl"; } >"$learned/of-the-next.jsonl"
awk -v what=table -f tools/see/answers.awk "$learned/test.jsonl" "$learned/of-the-next.jsonl" "$learned/answers.jsonl" >"$out"
right() { awk -v kind="$1" -v column="$2" '$1 == kind { print 100 * $column }' "$out"; }
for case in "colour 37" "number 48"; do
    read -r kind least <<<"$case"
    expect "answers about a $kind are far above chance" test "$(right "$kind" 4)" -ge "$least"
    expect "answers to the next image are not" test "$(right "$kind" 3)" -lt "$least"
done
e2e_done
