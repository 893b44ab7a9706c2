#!/bin/bash
# e2e_info.sh - dtrain-info as scripts use it: what it says, and its exit status, for good, foreign and damaged files.
. "$(dirname "$0")/e2e.sh"
kept=tests/data/fuzz/checkpoint

run 0 ./dtrain-info "$kept/good"
expect_exit "info shows a checkpoint" 0
expect_text "info says step, model and verdict" 'step +7 '
expect_text "info counts parameters" 'gpt2, 17 parameters'
expect_text "info verifies what carries a checksum" '2 of 3 arrays verified, 0 altered, 1 without'
run 0 ./dtrain-info --tensors --config "$kept/good"
expect_text "info lists tensors" 'model/w +3 x 5 +fp32 +60 B +ok'
expect_text "info shows the configuration" '^seed = 1$'
run 0 ./dtrain-info --no-verify "$kept/good"
expect_text "info leaves the data alone when asked to" 'not verified'
run 0 ./dtrain-info --json "$kept/good"
expect_exit "info writes JSON" 0
expect_text "JSON has the fields" '"ok":true.*"step":7.*"seed":"18446744073709551610".*"parameters":17'
for how in gzip half bf16 vlen; do
    run 0 ./dtrain-info "$kept/$how"
    expect_exit "info verifies a file with $how" 0
done

# a byte of the data changed
cp "$kept/good" "$tmp/altered.h5"
at=$(LC_ALL=C grep -abo -P '\x00\x00\xe0\xc0\x00\x00\xc0\xc0' "$tmp/altered.h5" | head -1 | cut -d: -f1)
printf '\x01' | dd of="$tmp/altered.h5" bs=1 seek="$at" conv=notrunc 2>/dev/null
run 0 ./dtrain-info "$tmp/altered.h5"
expect_exit "info notices an altered byte" 65
expect_text "info names the altered tensor" 'w.* was altered'
for how in cut empty text later flipped0; do
    run 0 ./dtrain-info "$kept/$how"
    expect_exit "info refuses a file that is $how" 65
done
run 0 ./dtrain-info "$tmp/missing.h5" "$kept/good"
expect_exit "one bad file among good ones" 65
expect_text "the good one is still shown" 'gpt2'
run 0 ./dtrain-info
expect_exit "info without a file" 64
run 0 ./dtrain-info --frobnicate "$kept/good"
expect_exit "info with an unknown option" 64
run 0 ./dtrain-info --help
expect_exit "info --help" 0
e2e_done
