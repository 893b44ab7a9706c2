#!/bin/bash
# bench_vision.sh - training steps of a vision-language model (tower, projector and language model) against transformers' LlavaForConditionalGeneration
# on the same shapes, in turn: the projector alone, projector and language model (fine-tuning as LLaVA does it), and everything. Images per second,
# medians of STEPS steps, best of ROUNDS rounds.
#
# The model is of nanoVLM's size: SigLIP B/16 at 224 (196 patches) and a language model as SmolLM2 of 135 million parameters. BATCH images a step, each with TEXT tokens of text;
# THREADS, DTYPES, PARTS; DEVICE=cuda: on a GPU, with its memory. PYTHON=... names a Python with torch and transformers.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
. tests/measure.sh
unset OMP_NUM_THREADS DTRAIN_DEVICE
device=${DEVICE:-cpu}
if [ "$device" = cpu ]; then place=host; else place=device; : "${ROUNDS:=1}" "${STEPS:=10}" "${BATCH:=64}" "${DTYPES:=bf16}"; fi
rounds=${ROUNDS:-2} threads=${THREADS:-2} steps=${STEPS:-5} batch=${BATCH:-4} text=${TEXT:-64}
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
PYTHON=${PYTHON-python3}
[ -z "$PYTHON" ] || plainly "$PYTHON" -c 'import torch, transformers' 2>/dev/null || PYTHON=

mkdir "$tmp/model"
cat >"$tmp/model/config.json" <<'JSON'
{"model_type": "llava", "image_token_index": 35, "vision_feature_layer": -1, "vision_feature_select_strategy": "full", "projector_hidden_act": "gelu",
 "vision_config": {"model_type": "siglip_vision_model", "image_size": 224, "patch_size": 16, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                   "num_attention_heads": 12},
 "text_config": {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
                 "num_key_value_heads": 3, "max_position_embeddings": 2048, "rope_theta": 100000, "tie_word_embeddings": true}}
JSON
echo '{"image_processor_type": "SiglipImageProcessor", "size": {"height": 224, "width": 224}}' >"$tmp/model/preprocessor_config.json"

n=$((batch * 4)) # images do not matter to the time, nor do words: the end of a text is its last token
for i in $(seq "$n"); do { printf 'P6 224 224 255\n'; head -c $((224 * 224 * 3)) /dev/urandom; } >"$tmp/$i.ppm"; done
words=$(printf 'x%.0s' $(seq $((text - 1))))
for i in $(seq "$n"); do echo "{\"text\": \"#$words\", \"image\": \"$i.ppm\"}"; done >"$tmp/records.jsonl"
./dtrain-data -q --kind sft --tokenizer bytes --images "$tmp/model" --image-token '#' -o "$tmp/images.h5" "$tmp/records.jsonl" || exit 1

ours() { # DTYPE PARTS: images/s and peak memory in MB
    until_steps "$tmp/run" $((steps + 2)) "${LIMIT:-600}" "$tmp/log" ./dtrain /dev/stdin run.task=sft run.output_dir="$tmp/run" run.device="$device" \
        run.threads="$threads" precision.dtype="$1" vision.train="$2" batch.micro_batch_size="$batch" batch.train_batch_size="$batch" \
        data.seq_len=$((196 + text)) run.max_steps=100000 data.train="$tmp/images.h5" model.config="$tmp/model/config.json" model.tokenizer=bytes ||
        { cat "$tmp/log" >&2; echo "0 0"; return 1; }
    awk -v r="$(median_of "$tmp/run" images_per_second 3 $((steps + 2)))" -v p="$(median_of "$tmp/run" memory_$place $((steps + 2)) $((steps + 2)))" \
        'BEGIN { printf "%.3f %.0f\n", r, p / 1e6 }'
}
peer() { # DTYPE PARTS
    [ -n "$PYTHON" ] || { echo "0 0"; return; }
    plainly "$PYTHON" tests/peer_llava.py "$tmp/model" --device "$device" --dtype "$1" --train "$2" --batch "$batch" --text "$text" --threads "$threads" --steps "$steps" 2>"$tmp/log" || { cat "$tmp/log" >&2; echo "0 0"; }
}
faster() { awk -v a="$1" -v b="$2" 'BEGIN { split(a, x, " "); split(b, y, " "); print (x[1] >= y[1]) ? a : b }'; }

echo "batch of $batch images with $text tokens of text each, $threads threads, best of $rounds rounds, medians of $steps steps; memory in MB"
printf '%-5s %-22s %10s %12s %8s %8s %12s\n' type trained images/s transformers ratio peak transformers
for dtype in ${DTYPES:-fp32 bf16}; do
    for parts in ${PARTS:-projector projector,llm tower,projector,llm}; do
        us="0 0" them="0 0"
        for _ in $(seq "$rounds"); do
            us=$(faster "$us" "$(ours "$dtype" "$parts")")
            them=$(faster "$them" "$(peer "$dtype" "$parts")")
        done
        awk -v d="$dtype" -v p="$parts" -v a="$us" -v b="$them" 'BEGIN { split(a, x, " "); split(b, y, " ");
            printf "%-5s %-22s %10s %12s %8s %8s %12s\n", d, p, x[1], y[1], (y[1] > 0) ? sprintf("%.2f", x[1] / y[1]) : "-", x[2], y[2] }'
    done
done
