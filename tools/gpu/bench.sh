#!/bin/bash
# bench.sh [PART...] - GPU benchmarks for docs/data/h*.csv, called by run.sh bench. Parts:
# operations, lora, vision, grpo, and steps, profile or those=MODEL,...
#
# operations: each operation at shapes of known models (tests/bench_compute.c, bench_layers.c), and
# PyTorch's attention (tests/peer_operations.py).
# profile: the time of each operation within a step, measured with events (tests/bench_model.c).
# steps: whole training steps of ./dtrain and of PyTorch (tests/peer_pytorch.py; the fastest of
# WAYS) on the same model and batch, one after the other: random weights and tokens, bf16 with fp32
# master weights, AdamW, gradient clipping. Medians of STEPS steps. MFU is model FLOPs divided by
# the chip's dense bf16 peak, PEAK TFLOP/s (default 989: H100 and H200 SXM). Model FLOPs are 6 per
# matrix parameter and token, including the head, plus attention over the causal half
# (dt_model_train_flops). Memory compares the ledger's peak with the peak of PyTorch's allocator.
# lora, vision: steps with adapters, and of a vision-language model, compared with PEFT and
# transformers (tests/bench_lora.sh, bench_vision.sh).
# grpo: rollouts and steps of GRPO and PPO (tests/bench_grpo.sh), compared with TRL, or with a plain
# PyTorch loop if TRL is not installed.
# Default: operations, profile and steps of gpt2-124m,gpt2-1.5b; steps=all: all of MODELS below.
# DTRAIN_ARGS: further settings of dtrain.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
export OUT=$(realpath -m "${OUT:-build/gpu}")
mkdir -p "$OUT"
. tools/gpu/environment.sh
unset DTRAIN_DEVICE
steps=${STEPS:-20} peak=${PEAK:-989} ways=${WAYS:-compiled,master,master+cudnn} device=${DEVICE:-cuda} limit=${LIMIT:-200}
tmp=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT

# name, sequences, tokens per sequence, keys of [model], or SECTION.KEY for dtrain only; GPT-2's
# intermediate size is four times its width
MODELS='gpt2-124m 32 1024 model_type=gpt2 hidden_size=768 num_hidden_layers=12 num_attention_heads=12 vocab_size=50257 max_position_embeddings=1024
gpt2-350m 16 1024 model_type=gpt2 hidden_size=1024 num_hidden_layers=24 num_attention_heads=16 vocab_size=50257 max_position_embeddings=1024
gpt2-1.5b 8 1024 model_type=gpt2 hidden_size=1600 num_hidden_layers=48 num_attention_heads=25 vocab_size=50257 max_position_embeddings=1024
llama-1b 4 2048 model_type=llama hidden_size=2048 intermediate_size=8192 num_hidden_layers=16 num_attention_heads=32 num_key_value_heads=8 head_dim=64 vocab_size=128256 max_position_embeddings=131072 rope_theta=500000 tie_word_embeddings=true
qwen2.5-0.5b 16 1024 model_type=qwen2 hidden_size=896 intermediate_size=4864 num_hidden_layers=24 num_attention_heads=14 num_key_value_heads=2 head_dim=64 vocab_size=151936 max_position_embeddings=32768 rope_theta=1000000 tie_word_embeddings=true
qwen2.5-1.5b 8 1024 model_type=qwen2 hidden_size=1536 intermediate_size=8960 num_hidden_layers=28 num_attention_heads=12 num_key_value_heads=2 head_dim=128 vocab_size=151936 max_position_embeddings=131072 rope_theta=1000000 tie_word_embeddings=true
qwen2.5-7b 4 2048 model_type=qwen2 hidden_size=3584 intermediate_size=18944 num_hidden_layers=28 num_attention_heads=28 num_key_value_heads=4 head_dim=128 vocab_size=152064 max_position_embeddings=131072 rope_theta=1000000 activation_checkpointing=selective
qwen2.5-7b-offload 4 2048 model_type=qwen2 hidden_size=3584 intermediate_size=18944 num_hidden_layers=28 num_attention_heads=28 num_key_value_heads=4 head_dim=128 vocab_size=152064 max_position_embeddings=131072 rope_theta=1000000 activation_checkpointing=block zero.offload_optimizer=cpu
llama-8b 1 4096 model_type=llama hidden_size=4096 intermediate_size=14336 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 head_dim=128 vocab_size=128256 max_position_embeddings=131072 rope_theta=500000 activation_checkpointing=selective'
MODELS=${MODELS_OF:-$MODELS}

ours() { # B T KEYS...: writes $tmp/ours: tokens/s, FLOP/s, peak bytes
    local b=$1 t=$2 status=0 dropout= last=$((steps + 4)) key keys=()
    shift 2
    [ "${1#model_type=gpt2}" = "$1" ] || dropout=model.dropout=0
    for key; do
        case ${key%%=*} in *.*) keys+=("$key") ;; *) keys+=("model.$key") ;; esac
    done
    until_steps "$tmp/run" $last "$limit" "$tmp/ours.log" ./dtrain /dev/stdin run.output_dir="$tmp/run" run.device="$device" run.max_steps=100000 \
        data.train="$tmp/noise.h5" data.seq_len="$t" batch.micro_batch_size="$b" precision.dtype=bf16 optimizer.weight_decay=0.1 optimizer.max_grad_norm=1 \
        "${keys[@]}" $dropout ${DTRAIN_ARGS:-} || status=1
    cat "$tmp/ours.log" "$tmp/run/metrics.jsonl" >>"$OUT/bench-steps.log" 2>/dev/null
    [ $status = 0 ] || { grep -vE '^(planned|per rank|by memory space)' "$tmp/ours.log" | tail -5 >&2; return 1; }
    echo "$(median_of "$tmp/run" tokens_per_second 5 $last) $(median_of "$tmp/run" flops_per_second 5 $last) $(median_of "$tmp/run" memory_device $last $last)" >"$tmp/ours"
}

one_model() { # LINE of MODELS. Status 1: dtrain failed before the measured steps
    local name b t best status=0
    read -r name b t keys <<<"$1"
    echo "== $name" >>"$OUT/bench-steps.log"
    ours "$b" "$t" $keys || { status=1; echo "0 0 0" >"$tmp/ours"; }
    : >"$tmp/peer"
    if [ -n "$PYTHON" ]; then
        plainly env OMP_NUM_THREADS=8 timeout -k 5 "$limit" "$PYTHON" tests/peer_pytorch.py --device "$device" --batch "$b" --seq "$t" --steps "$steps" --ways "$ways" $(tr ' ' '\n' <<<"$keys" | grep -v '^[^=]*\.') \
            >"$tmp/peer" 2>"$tmp/peer.log" || grep -E '^[a-z]+[+a-z]*: ' "$tmp/peer.log" | cut -c 1-160 >&2
        cat "$tmp/peer.log" "$tmp/peer" >>"$OUT/bench-steps.log"
    fi
    best=$(sort -gr -k2 "$tmp/peer" | head -1)
    awk -v name="$name" -v shape="$b x $t" -v peak="$peak" -v ours="$(cat "$tmp/ours")" -v best="$best" 'BEGIN {
        split(ours, o, " "); split(best, p, " "); per_token = o[1] > 0 ? o[2] / o[1] : 0
        if (o[1] > 0) mine = sprintf("%.0f | %.1f | %.1f", o[1], 100 * o[2] / (peak * 1e12), o[3] / 2^30)
        else mine = "- | - | -"
        printf "| %s | %s | %s | %s | %s | %s | %s |\n", name, shape, mine,
            p[2] ? sprintf("%.0f (%s)", p[2], p[1]) : "-", p[2] && per_token ? sprintf("%.1f", 100 * p[2] * per_token / (peak * 1e12)) : "-",
            p[3] ? p[3] : "-", p[2] && per_token ? sprintf("%.2f", o[1] / p[2]) : "-" }' | tee -a "$OUT/bench.md"
    sed 's/^/    PyTorch, /; s/ \([0-9.]*\) \([0-9.]*\) \([0-9.]*\)$/: \1 tokens\/s, \2 GiB, first step after \3 s/' "$tmp/peer"
    return $status
}

run_steps() { # all, or names
    local line name found= status=0
    head -c 40000000 /dev/urandom >"$tmp/noise"
    ./dtrain-data -q --format text -o "$tmp/noise.h5" "$tmp/noise" >/dev/null || return 1 # any tokens: they do not affect the time
    rm "$tmp/noise"
    printf '\n| model | batch | dtrain, tokens/s | MFU, %% | GiB | PyTorch, tokens/s | MFU, %% | GiB | ratio |\n|---|---|---|---|---|---|---|---|---|\n' | tee -a "$OUT/bench.md"
    while read -r line; do
        name=${line%% *}
        case ",$1," in *",$name,"* | ,all,) one_model "$line" || status=1; found=yes ;; esac
    done <<<"$MODELS"
    [ -n "$found" ] || { echo "bench.sh: unknown model $1"; return 1; }
    return $status
}

run_operations() {
    local status=0
    timeout -k 5 "$limit" "$BUILD/tests/bench_compute" "$device" 2>&1 | tee -a "$tmp/operations" "$OUT/bench-operations.log" || status=1
    timeout -k 5 "$limit" "$BUILD/tests/bench_layers" "$device" 128 5 2>&1 | tee -a "$tmp/operations" "$OUT/bench-operations.log" || status=1
    [ -z "$PYTHON" ] || plainly timeout -k 5 "$limit" "$PYTHON" tests/peer_operations.py 2>&1 | tee -a "$tmp/operations" "$OUT/bench-operations.log"
    awk -f tools/gpu/tables.awk "$tmp/operations" >>"$OUT/bench.md"
    return $status
}

run_script() { # NAME: runs tests/bench_NAME.sh and prints its output
    { printf '\n```\n'; env DEVICE="$device" LIMIT="$limit" "tests/bench_$1.sh" 2>&1; local status=$?; printf '```\n'; (exit $status); } | tee -a "$OUT/bench-$1.log" "$OUT/bench.md"
}

run_profile() { # all, or names
    local name b t keys status=0
    while read -r name b t keys; do
        case ",$1," in *",$name,"* | ,all,)
            timeout -k 5 "$limit" "$BUILD/tests/bench_model" 0 5 bf16 "$device" "$name" "$b" "$t" 2>&1 | tee -a "$tmp/profile" "$OUT/bench-profile.log" || status=1 ;;
        esac
    done <<<"$MODELS"
    awk -f tools/gpu/tables.awk "$tmp/profile" >>"$OUT/bench.md"
    return $status
}

# Header of the tables: machine, driver and versions.
[ -s "$OUT/bench.md" ] || cat >"$OUT/bench.md" <<MD
### $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1 | sed 's/, /, driver /'), $(date -u '+%-d %B %Y')

\`tools/gpu/run.sh bench $*\`, STEPS=$steps; $(./dtrain --version | head -1); $([ -z "$PYTHON" ] || plainly "$PYTHON" -c 'import torch; print("PyTorch", torch.__version__)'); $(nproc --all) cores.
MD

[ $# -gt 0 ] || set -- operations profile steps
status=0
for part; do
    case $part in
    operations) run_operations || status=1 ;;
    lora | vision) (unset STEPS; run_script "$part") || status=1 ;;
    grpo) STEPS=${GRPO_STEPS:-3} run_script grpo || status=1 ;;
    profile) run_profile gpt2-124m,gpt2-1.5b || status=1 ;;
    profile=*) run_profile "${part#profile=}" || status=1 ;;
    steps) run_steps gpt2-124m,gpt2-1.5b || status=1 ;;
    steps=*) run_steps "${part#steps=}" || status=1 ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set'; exit 64 ;;
    esac
done
exit $status
