#!/bin/bash
# bench_train.sh - whole training steps of GPT-2 124M against the machine's limit and against PyTorch, in turn, and the overhead of a run.
#
# The limit of a step of n tokens is the time of its arithmetic at the best rate of matmuls that the machine shows in the same round,
# 6 n N + 6 n L d T (causal attention), plus AdamW's 28 N bytes at its memory bandwidth (N = 124.4M parameters, L = 12, d = 768). Medians of steps,
# best of ROUNDS rounds for ours, the peer's and the limit alike. PYTHON=... names a Python with torch. The peer is the fastest of three, all run in
# turn with ours: PyTorch as shipped; with an allocator that keeps its memory (glibc's gives large buffers back in every step); and compiled besides.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
unset OMP_NUM_THREADS
bin=${BUILD:-build/release}/tests rounds=${ROUNDS:-2} threads=${THREADS:-2} steps=${STEPS:-5}
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import torch' 2>/dev/null || PYTHON=
head -c 1200000 /dev/urandom >"$tmp/noise"
./dtrain-data --format text -o "$tmp/noise.h5" "$tmp/noise" >/dev/null || exit 1 # ids do not matter to the time

gpt2() { # NP RANK_THREADS DTYPE MICRO_BATCH SEQ_LEN STAGE: median tokens/s and peak memory over plan
    rm -rf "$tmp/run"
    $MPIRUN -np "$1" ./dtrain /dev/stdin run.output_dir="$tmp/run" run.threads="$2" precision.dtype="$3" batch.micro_batch_size="$4" data.seq_len="$5" \
        zero.stage="$6" run.max_steps=$((steps + 2)) checkpoint.save_steps=0 data.train="$tmp/noise.h5" log.report_to=jsonl model.dropout=0 \
        model.model_type=gpt2 model.hidden_size=768 model.num_hidden_layers=12 model.num_attention_heads=12 model.vocab_size=50257 \
        model.max_position_embeddings=1024 </dev/null >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; return 1; }
    sed -n 's/.*"tokens_per_second": *\([0-9.e+]*\).*/\1/p' "$tmp/run/metrics.jsonl" | tail -n "$steps" | sort -g | awk '{ v[NR] = $1 } END { printf "%.1f", v[int((NR + 1) / 2)] }'
}
peer() { # KIND DTYPE MICRO_BATCH SEQ_LEN: median tokens/s of PyTorch as shipped, tuned or compiled; 0 where it does not run
    local keep="MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=20000000000 MALLOC_TOP_PAD_=67108864" way=eager
    [ "$1" = shipped ] && keep=
    [ "$1" = compiled ] && way=compiled
    env $keep "$PYTHON" tests/peer_pytorch.py --dtype "$2" --batch "$3" --seq "$4" --threads "$threads" --steps "$steps" --ways $way \
        >"$tmp/peer" 2>"$tmp/peer.log" && cut -d' ' -f2 "$tmp/peer" || { tail -1 "$tmp/peer.log" >&2; echo 0; }
}
largest() { awk -v a="$1" -v b="$2" 'BEGIN { print (a + 0 > b + 0) ? a : b }'; }

echo "GPT-2 124M, one rank, $threads threads, full step (forward, backward, AdamW), best of $rounds rounds, medians of $steps steps"
printf '%-6s %-8s %8s %8s %9s | %8s %8s %9s %6s\n' type batch dtrain limit fraction shipped tuned compiled "ratio to the fastest"
for dtype in fp32 bf16; do
    for shape in "4 64" "1 1024"; do
        set -- $shape
        ours=0 shipped=0 tuned=0 compiled=0 limit=0
        for _ in $(seq "$rounds"); do
            now=$("$bin/bench_limits" "$threads" 2 | awk -v d=$dtype -v n=$(($1 * $2)) -v T="$2" '{ peak = (d == "fp32") ? $1 : $2;
                print n / ((6 * n * 124.44e6 + 6 * n * 12 * 768 * T) / (peak * 1e9) + 28 * 124.44e6 / ($3 * 1e9)) }')
            limit=$(largest "$limit" "$now")
            ours=$(largest "$ours" "$(gpt2 1 "$threads" $dtype "$1" "$2" 0)")
            [ -n "$PYTHON" ] || continue
            shipped=$(largest "$shipped" "$(peer shipped $dtype "$1" "$2")")
            tuned=$(largest "$tuned" "$(peer tuned $dtype "$1" "$2")")
            compiled=$(largest "$compiled" "$(peer compiled $dtype "$1" "$2")")
        done
        awk -v d=$dtype -v s="$1x$2" -v o="$ours" -v l="$limit" -v p1="$shipped" -v p2="$tuned" -v p3="$compiled" 'BEGIN {
            best = "shipped"; p = p1 + 0
            if (p2 + 0 > p) { p = p2 + 0; best = "tuned" }
            if (p3 + 0 > p) { p = p3 + 0; best = "compiled" }
            printf "%-6s %-8s %8.1f %8.1f %9.2f | %8s %8s %9s %6s\n", d, s, o, l, o / l, p1, p2, p3,
                p ? sprintf("%.2f (%s)", o / p, best) : "no PyTorch found" }'
    done
done

echo
echo "two ranks of one thread against one rank of two, the same global batch (8 x 64), fp32: ratio of tokens/s, best of $rounds"
for stage in 0 1 2; do
    one=0 two=0
    for _ in $(seq "$rounds"); do
        one=$(largest "$one" "$(gpt2 1 2 fp32 8 64 0)")
        two=$(largest "$two" "$(gpt2 2 1 fp32 4 64 $stage)")
    done
    awk -v s=$stage -v a="$one" -v b="$two" 'BEGIN { printf "stage %d  %8.1f / %8.1f  = %.2f\n", s, b, a, b / a }'
done

echo
echo "peak resident memory over the plan, fp32, 4 x 64"
gpt2 1 "$threads" fp32 4 64 0 >/dev/null
planned=$(awk '$1 == "planned" { print $NF }' "$tmp/log" | numfmt --from=si)
sed -n 's/.*"memory_host": *\([0-9]*\).*/\1/p' "$tmp/run/metrics.jsonl" | tail -1 | awk -v p="$planned" '{ printf "%.0f MB / %.0f MB = %.2f\n", $1 / 1e6, p / 1e6, $1 / p }'

echo
echo "start-up: launch to the end of a run of one step, checkpoint included, tiny model: median of 5"
for np in 2 16; do
    for _ in 1 2 3 4 5; do
        rm -rf "$tmp/run"
        begin=$(date +%s.%N)
        $MPIRUN -np $np ./dtrain /dev/stdin run.output_dir="$tmp/run" run.threads=1 run.max_steps=1 data.train="$tmp/noise.h5" data.seq_len=32 \
            model.model_type=llama model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=2 model.num_attention_heads=2 model.vocab_size=257 \
            model.max_position_embeddings=64 </dev/null >"$tmp/log" 2>&1 || cat "$tmp/log"
        date +%s.%N | awk -v b="$begin" '{ print $1 - b }'
    done | sort -g | awk -v np=$np '{ v[NR] = $1 } END { printf "%2d ranks  %.2f s\n", np, v[3] }'
done
