#!/bin/bash
# e2e_scaling.sh - the time of a step depends on the number of ranks, and scales as published runs of other programs do.
# QUICK:
. "$(dirname "$0")/e2e.sh"
unset DTRAIN_DEVICE
mfu() { # RANKS KEYS...: at measured rates
    local ranks=$1
    shift
    run 0 ./dtrain --plan --gpu h100 --host-memory 99TiB --ranks "$ranks" --ranks-per-node 8 input/models/llama-3.1-8b.ini zero.stage=3 "$@"
    sed -n 's/^step, at measured rates .*MFU \([0-9.]*\) %$/\1/p' "$out"
}
falls() { awk -v a="$1" -v b="$2" -v c="$3" 'BEGIN { exit !(a > b && b > c && c > 0) }'; }
expect "more ranks have a lower MFU" falls "$(mfu 8)" "$(mfu 128)" "$(mfu 16384)"
expect "sharding inside nodes costs less than among all" falls 100 "$(mfu 1024 zero.shard_group=node)" "$(mfu 1024)"
mfu 1024 >/dev/null
expect_text "the latency is listed" '^communication +[0-9.]+ ms, [0-9.]+ of it exposed, [0-9.]+ of it latency$'
expect_text "and what is assumed of links" '^ +GPU links, from published figures: NVLink 0.78, network 0.94; latencies of NCCL$'
expect_text "and what communication costs kernels" '^ +communication slows the kernels that hide it: [1-9][0-9.]* ms$'
mfu 1024 zero.overlap_comm=false >/dev/null
expect_text "which is nothing without overlap" '^ +communication slows the kernels that hide it: 0.000 ms$'

# The columns that tools/scaling.sh computes: predictions may differ in the last digit, what is within 10 percent may not.
table=docs/data/published-scaling.csv
ends "all published rows are planned" 0 run 0 tools/scaling.sh
cp "$out" "$tmp/now.csv"
same() { awk -F, '/^(#|series)/ { next } FNR == NR { p[FNR] = $13; w[FNR] = $17; next }
    { d = $13 / p[FNR] - 1; bad += d > 0.005 || d < -0.005 || $17 != w[FNR]; n++ } END { exit bad > 0 || n < 60 }' "$@"; }
expect "the predictions are those of the table" same "$table" "$tmp/now.csv"
# at least 45 yes, no row outside, at most three not comparable, each with a reason
expect "all comparable rows are within 10 percent" awk -F, '
    /^(#|series)/ { next } { n[$17]++; bad += ($12 != "") != ($17 == "not comparable") }
    END { exit bad > 0 || n["no"] > 0 || n["yes"] < 45 || n["not comparable"] > 3 }' "$table"
