#!/bin/bash
# bench_async.sh [FOLDER] - the cost of a checkpoint during training: GPT-2 124M with Adam (1.5 GB), saved synchronously and while training continues
# (checkpoint.async), in turn on the same disk; medians of the saves of ROUNDS runs. The machine should be idle.
#
#     step       median, of a run that saves only at its end
#     at once    time that training waits for a synchronous save
#     plain      time of one process that writes and syncs as many bytes on the same disk
#     copy       of the states to host memory, and its rate compared with that of reading and writing memory (bench_limits)
#     stall      time that training waits for an asynchronous save; beyond the copy, in percent of a step: the goal is 5
#     published  from the beginning of the copy to the file with its name
#     steps      median of the steps while a checkpoint is written, over that of the others
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/environment.sh
unset OMP_NUM_THREADS
bin=${BUILD:-build/release}/tests rounds=${ROUNDS:-2} every=${EVERY:-6} n_saves=${SAVES:-3} dir=${1:-}
tmp=$(mktemp -d ${dir:+-p "$dir"}) && trap 'rm -rf "$tmp"' EXIT
head -c 1200000 /dev/urandom >"$tmp/noise"
./dtrain-data --format text -o "$tmp/noise.h5" "$tmp/noise" >/dev/null || exit 1 # ids do not matter to the time

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
train() { # NAME NP THREADS STAGE KEYS...
    local name=$1 np=$2 threads=$3 stage=$4
    shift 4
    rm -rf "$tmp/run"
    $MPIRUN -np "$np" ./dtrain /dev/stdin run.output_dir="$tmp/run" run.threads="$threads" zero.stage="$stage" batch.micro_batch_size=$((4 / np)) \
        data.seq_len=128 run.max_steps=$((n_saves * every + 1)) data.train="$tmp/noise.h5" log.report_to=jsonl model.dropout=0 \
        model.model_type=gpt2 model.hidden_size=768 model.num_hidden_layers=12 model.num_attention_heads=12 model.vocab_size=50257 \
        model.max_position_embeddings=1024 checkpoint.save_total_limit=1 "$@" </dev/null >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; exit 1; }
    cat "$tmp/log" >>"$tmp/$name.log"
    cat "$tmp/run/metrics.jsonl" >>"$tmp/$name.jsonl"
}
values() { sed -n "s|.*\"$2\": *\([0-9.e+-]*\).*|\1|p" "$tmp/$1.jsonl"; } # NAME KEY (which may have a slash in it)
# Step times of the async run: up to three steps after a save, and the others.
beside() { awk -v every="$every" -v beside="$1" '{ split($0, a, "\"step\": "); s = a[2] + 0; split($0, b, "\"step_time\": "); k = (s - 1) % every
                                                  if (s > every && (k < 3) == beside) print b[2] + 0 }' "$tmp/async.jsonl" | median; }

printf '%-16s %8s %9s %7s %7s %7s %7s %8s %9s %10s %6s\n' "ranks x threads" "step s" "at once s" "plain s" "copy s" "GB/s" "limit" "stall s" "beyond %" "published s" "steps"
for layout in "1 2 0" "2 1 2"; do
    set -- $layout
    rm -f "$tmp"/*.log "$tmp"/*.jsonl
    for _ in $(seq "$rounds"); do
        train none "$@" checkpoint.save_steps=0
        train sync "$@" checkpoint.save_steps="$every"
        train async "$@" checkpoint.save_steps="$every" checkpoint.async=true
    done
    step=$(values none step_time | median)
    at_once=$(sed -n 's/^checkpoint of step .* written in \([0-9.]*\) s$/\1/p' "$tmp/sync.log" | median)
    limit=$("$bin/bench_limits" "$(($1 * $2))" 2 | awk '{ print $3 / 2 }')
    nbytes=$(values async save/bytes | median)
    plain=$(for _ in 1 2 3; do
        begin=$EPOCHREALTIME
        dd if=/dev/zero of="$tmp/plain" bs=8M count="$(awk -v np="$1" -v b="$nbytes" 'BEGIN { printf "%d", np * b }')" iflag=count_bytes conv=fsync status=none
        awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
        rm "$tmp/plain"
    done | median)
    paste <(values async save/copy_time) <(values async save/stall) | awk '{ print $2 - $1 }' | median >"$tmp/beyond"
    awk -v l="$1 x $2, stage $3" -v s="$step" -v o="$at_once" -v w="$plain" -v c="$(values async save/copy_time | median)" -v b="$nbytes" \
        -v m="$limit" -v t="$(values async save/stall | median)" -v y="$(cat "$tmp/beyond")" -v p="$(values async save/time | median)" \
        -v np="$1" -v during="$(beside 1)" -v else_="$(beside 0)" 'BEGIN {
        printf "%-16s %8.3f %9.3f %7.3f %7.3f %7.1f %7.1f %8.3f %9.1f %10.2f %6.2f\n", l, s, o, w, c, np * b / c / 1e9, m, t, 100 * y / s, p, during / else_ }'
done
