#!/bin/bash
# scaling.sh - write docs/data/published-scaling.csv again: dtrain's predictions next to published numbers of tokens per second and GPU.
# Usage: tools/scaling.sh [PROGRAM] >new.csv; the columns from `predicted` on are computed.
set -eu
cd "$(dirname "$0")/.."
program=${1:-./dtrain}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
gpt2() { # WIDTH LAYERS HEADS
    echo "model.model_type=gpt2 model.hidden_size=$1 model.num_hidden_layers=$2 model.num_attention_heads=$3 model.intermediate_size=$((4 * $1)) model.vocab_size=50368 model.max_position_embeddings=2048"
}
keys_of() { # MODEL
    case $1 in
    mpt-125m) gpt2 768 12 12 ;;
    mpt-350m) gpt2 1024 24 16 ;;
    mpt-760m) gpt2 1536 24 12 ;;
    mpt-1b) gpt2 2048 24 16 ;;
    mpt-3b) gpt2 2560 32 20 ;;
    mpt-7b) gpt2 4096 32 32 ;;
    mpt-13b) gpt2 5120 40 40 ;;
    mpt-30b) gpt2 7168 48 56 ;;
    mpt-70b) gpt2 8192 80 64 ;;
    llama-8b) echo "model.model_type=llama model.hidden_size=4096 model.intermediate_size=14336 model.num_hidden_layers=32 model.num_attention_heads=32 model.num_key_value_heads=8 model.vocab_size=128256 model.max_position_embeddings=8192 model.tie_word_embeddings=false" ;;
    *) echo "scaling.sh: unknown model $1" >&2 && exit 65 ;;
    esac
}
printf '[data]\ntrain = train.h5\npacking = wrapped\n[precision]\ndtype = bf16\n[zero]\nstage = 3\n' >"$tmp/plan.ini"
while IFS=, read -r series model chip per_node seq recompute reduce ranks micro accum published not_comparable _; do
    case $series in "#"* | series) continue ;; esac
    # Memory is not the question.
    "$program" --plan --gpu "$chip" --device-memory 1TiB --host-memory 99TiB --ranks "$ranks" --ranks-per-node "$per_node" "$tmp/plan.ini" $(keys_of "$model") \
        data.seq_len="$seq" model.activation_checkpointing="$recompute" precision.reduce_dtype="$reduce" batch.micro_batch_size="$micro" batch.gradient_accumulation_steps="$accum" batch.train_batch_size=0 >"$tmp/out" 2>&1 ||
        { cat "$tmp/out" >&2 && exit 1; }
    ms=$(sed -n 's/^step, at measured rates *\([0-9.]*\) ms.*/\1/p' "$tmp/out")
    echo "$series,$model,$chip,$per_node,$seq,$recompute,$reduce,$ranks,$micro,$accum,$published,$not_comparable,$ms"
done <docs/data/published-scaling.csv >"$tmp/ms"
grep -E '^(#|series,)' docs/data/published-scaling.csv
awk -F, -v OFS=, '
    { predicted = $9 * $10 * $5 / $13 * 1000 }
    NR == FNR { if ($12 == "" && !($1 in reference)) { reference[$1] = FNR; published0[$1] = $11; predicted0[$1] = predicted } next }
    {
        a = $11 / published0[$1]; b = predicted / predicted0[$1]
        deviation = 100 * (b / a - 1)
        within = $12 != "" ? "not comparable" : FNR == reference[$1] ? "reference" : deviation < -10 || deviation > 10 ? "no" : "yes"
        NF = 12
        printf "%s,%.0f,%.3f,%.3f,%.1f,%s,%.1f\n", $0, predicted, a, b, deviation, within, 100 * (predicted / $11 - 1)
    }' "$tmp/ms" "$tmp/ms"
