#!/bin/bash
# bench_lora.sh - training steps with LoRA on all linear layers, compared with full training and with transformers and PEFT, alternating.
# Also peak memory against the plan, and bases in 8 and in 4 bits. Medians of STEPS steps, best of ROUNDS rounds.
#
# MODEL="KEYS of [model]" (default: Qwen2.5 0.5B), BATCH, SEQ, RANK, THREADS, DTYPES, WAYS (as the table names them);
# DEVICE=cuda: on a GPU, with its memory. PYTHON=... names a Python with torch, transformers and peft.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
. tests/measure.sh
unset OMP_NUM_THREADS DTRAIN_DEVICE
device=${DEVICE:-cpu}
if [ "$device" = cpu ]; then place=host; else place=device; : "${ROUNDS:=1}" "${STEPS:=10}" "${BATCH:=8}" "${SEQ:=1024}" "${DTYPES:=bf16}"; fi
rounds=${ROUNDS:-2} threads=${THREADS:-2} steps=${STEPS:-5} batch=${BATCH:-2} seq=${SEQ:-512} rank=${RANK:-16}
read -ra keys <<<"${MODEL:-model_type=qwen2 hidden_size=896 intermediate_size=4864 num_hidden_layers=24 num_attention_heads=14 num_key_value_heads=2
    vocab_size=151936 max_position_embeddings=32768 rope_theta=1000000 tie_word_embeddings=true}" -d ''
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
PYTHON=${PYTHON-python3}
[ -z "$PYTHON" ] || plainly "$PYTHON" -c 'import torch, transformers, peft' 2>/dev/null || PYTHON=
head -c 400000 /dev/urandom >"$tmp/noise"
./dtrain-data -q --format text -o "$tmp/noise.h5" "$tmp/noise" >/dev/null || exit 1 # ids do not matter to the time

ours() { # DTYPE KEYS...: tokens/s, peak and planned memory in MB
    local dtype=$1 planned
    shift
    until_steps "$tmp/run" $((steps + 2)) "${LIMIT:-600}" "$tmp/log" ./dtrain /dev/stdin run.output_dir="$tmp/run" run.device="$device" run.threads="$threads" \
        precision.dtype="$dtype" batch.micro_batch_size="$batch" data.seq_len="$seq" run.max_steps=100000 data.train="$tmp/noise.h5" "${keys[@]/#/model.}" "$@" ||
        { cat "$tmp/log" >&2; echo "0 0 0"; return 1; }
    planned=$(awk -v place=$place '$1 == "planned" { total = $NF } $1 == "allocated" { exit } total && $1 == place { total = $NF } END { print total }' "$tmp/log" | numfmt --from=si)
    awk -v r="$(median_of "$tmp/run" tokens_per_second 3 $((steps + 2)))" -v p="$(median_of "$tmp/run" memory_$place $((steps + 2)) $((steps + 2)))" -v q="$planned" \
        'BEGIN { printf "%.1f %.0f %.0f\n", r, p / 1e6, q / 1e6 }'
}
peer() { [ -n "$PYTHON" ] && plainly "$PYTHON" tests/peer_peft.py --device "$device" --dtype "$1" --batch "$batch" --seq "$seq" --threads "$threads" --steps "$steps" --rank "$rank" "${keys[@]}" 2>"$tmp/log"; }
faster() { awk -v a="$1" -v b="$2" 'BEGIN { split(a, x, " "); split(b, y, " "); print (x[1] >= y[1]) ? a : b }'; }

adapters="lora.r=$rank lora.alpha=$((2 * rank)) lora.target_modules=all-linear"
measure() { # WAY DTYPE
    case $1 in
    full) ours "$2" ;;
    lora) ours "$2" $adapters ;;
    lora+*) ours "$2" $adapters lora.base_quantization="${1#lora+}" ;;
    PEFT) peer "$2" ;;
    esac
}
ways=${WAYS:-full lora lora+int8 lora+nf4 PEFT}
declare -A best
echo "batch $batch x $seq, rank $rank on all linear layers, $threads threads, best of $rounds rounds, medians of $steps steps; memory in MB"
printf '%-5s %-10s %10s %8s %8s %8s %8s\n' type way tokens/s 'of full' 'of PEFT' peak planned
for dtype in ${DTYPES:-fp32 bf16}; do
    best=([full]=0 [PEFT]=0)
    for _ in $(seq "$rounds"); do
        for way in $ways; do
            now=$(measure "$way" "$dtype")
            echo "$dtype $way: $now" >&2 # keeps the measurements if a later one fails
            best[$way]=$(faster "${best[$way]:-0}" "${now:-0}")
        done
    done
    for way in $ways; do
        read -r rate peak planned <<<"${best[$way]}"
        awk -v d="$dtype" -v w="$way" -v r="$rate" -v f="${best[full]%% *}" -v t="${best[PEFT]%% *}" -v p="$peak" -v q="${planned:-}" 'BEGIN {
            printf "%-5s %-10s %10s %8s %8s %8s %8s\n", d, w, r, (f > 0) ? sprintf("%.2f", r / f) : "-", (t > 0) ? sprintf("%.2f", r / t) : "-", p, q ? q : "-" }'
    done
done
