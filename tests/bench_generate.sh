#!/bin/bash
# bench_generate.sh - tokens per second of dtrain-generate with random weights, and the fraction of what the memory's read bandwidth allows.
#
# A new token of a single sequence reads every weight once. "of limit" is (bytes of weights) * tokens/s / (bytes/s of reading, by bench_limits); the best
# of ROUNDS rounds counts for each. Prompts have 64 tokens and are not timed with the new tokens. MODELS="124m 1b", DTYPES, THREADS, NEW tokens.
# The machine should be idle.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
unset OMP_NUM_THREADS
bin=${BUILD:-build/release}/tests rounds=${ROUNDS:-3} threads=${THREADS:-2} new=${NEW:-32}
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
head -c 20000 /dev/urandom >"$tmp/noise"
./dtrain-data -q --format text -o "$tmp/noise.h5" "$tmp/noise" || exit 1 # ids do not affect the time
keys_of() {
    case $1 in
    124m) echo model_type=gpt2 hidden_size=768 num_hidden_layers=12 num_attention_heads=12 vocab_size=50257 max_position_embeddings=1024 ;;
    1b) echo model_type=llama hidden_size=2048 intermediate_size=8192 num_hidden_layers=16 num_attention_heads=32 num_key_value_heads=8 \
        vocab_size=128256 max_position_embeddings=4096 rope_theta=500000 tie_word_embeddings=true ;;
    *) echo "bench_generate.sh: unknown model $1" >&2; exit 64 ;;
    esac
}
awk 'BEGIN { for (i = 0; i < 8; i++) { s = ""; for (k = 0; k < 64; k++) s = s (k ? "," : "") (i * 64 + k) * 7919 % 50257; print "{\"ids\": [" s "]}" } }' >"$tmp/prompts"
largest() { sort -g | tail -1; }

for model in ${MODELS:-124m 1b}; do
    keys=$(keys_of "$model") || exit 64
    rm -rf "$tmp/made"
    ./dtrain /dev/stdin run.output_dir="$tmp/made" run.device=cpu run.max_steps=1 data.train="$tmp/noise.h5" data.seq_len=16 batch.micro_batch_size=1 \
        optimizer.type=sgd optimizer.momentum=0 checkpoint.export=hf checkpoint.export_dtype=bf16 $(printf ' model.%s' $keys) </dev/null >"$tmp/log" 2>&1 ||
        { cat "$tmp/log" >&2; exit 1; }
    for dtype in ${DTYPES:-fp32 bf16}; do
        nbytes=$(($(stat -c %s "$tmp/made/hf/model.safetensors") / 2 * $([ "$dtype" = fp32 ] && echo 4 || echo 2)))
        rm -f "$tmp"/rate.* "$tmp"/prompt.* "$tmp/read"
        ways=("1 --greedy" "1 --top-k 50 --top-p 0.95" "1 --top-p 0.9" "8 --greedy")
        for _ in $(seq "$rounds"); do
            "$bin/bench_limits" "$threads" 1 | awk '{ print $4 }' >>"$tmp/read"
            for i in "${!ways[@]}"; do
                head -n "${ways[i]%% *}" "$tmp/prompts" >"$tmp/some"
                ./dtrain-generate "$tmp/made/hf" --prompts "$tmp/some" --device cpu --dtype "$dtype" --threads "$threads" --max-new-tokens "$new" \
                    --min-new-tokens "$new" --batch-size 8 --jsonl ${ways[i]#* } 2>"$tmp/log" >/dev/null || { cat "$tmp/log" >&2; exit 1; }
                sed -n 's/.*new tokens at \([0-9.]*\) tokens.*/\1/p' "$tmp/log" >>"$tmp/rate.$i"
                sed -n 's/.*prompts at \([0-9.]*\) tokens.*/\1/p' "$tmp/log" >>"$tmp/prompt.$i"
            done
        done
        read=$(largest <"$tmp/read")
        echo "$model, $dtype, $threads threads: $((nbytes / 1000000)) MB of weights, read at $read GB/s"
        for i in "${!ways[@]}"; do
            awk -v way="${ways[i]#* }" -v n="${ways[i]%% *}" -v rate="$(largest <"$tmp/rate.$i")" -v prompts="$(largest <"$tmp/prompt.$i")" -v b="$nbytes" -v r="$read" 'BEGIN {
                printf "  batch %d  %-26s %8.1f tokens/s", n, way, rate
                if (n == 1) printf "  %.2f of limit\n", rate * b / r / 1e9; else printf "  prompts %.0f tokens/s\n", prompts }'
        done
    done
done
