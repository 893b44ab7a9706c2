#!/bin/bash
# e2e_flipped_bits.sh - files with one flipped bit: a sample of the bits of a checkpoint and a dataset (full_bitflips.sh flips all of them).
# The programs refuse such a file with 65 and name it. EVERY: tests one bit in EVERY; PROGRAMS: damaged files for each program.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
every=${EVERY:-997} programs=${PROGRAMS:-3}
driver=${BUILD:-build/release}/tests/test_flipped_bits
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
train 1 run checkpoint.save_steps=3 model.hidden_size=8 model.intermediate_size=8 model.num_hidden_layers=1 model.num_attention_heads=2 \
    model.num_key_value_heads=1
expect_exit "a small run" 0
whole=$(newest run)
head -3 "$tmp/text.txt" >"$tmp/few.txt"
ends "a small dataset" 0 run 0 ./dtrain-data --documents lines -o "$tmp/few.h5" "$tmp/few.txt"

RUN_TIMEOUT=${FLIP_TIMEOUT:-300} run 0 env FLIP_FILES="$whole $tmp/few.h5" FLIP_EVERY="$every" "$driver"
expect_exit "each flipped bit of a checkpoint and of a dataset is refused, and none brings the process down" 0
expect_text "of the checkpoint" 'step-[0-9]*\.h5: [1-9][0-9]* bits: .* 0 taken, 0 crashes, 0 hang'

flip() { # FILE BYTE BIT
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "$(printf '\\%03o' $((byte ^ 1 << $3)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# FILE COMMAND...: the command, on some damaged copies of FILE that stand in its place; does each refuse it?
each_refuses() {
    local file=$1 i at size refused=0
    shift
    cp "$file" "$tmp/.whole"
    size=$(stat -c %s "$file")
    for ((i = 0; i < programs; i++)); do
        at=$(((i * 7919 + 613) % 2048 % size))
        flip "$file" "$at" $((i % 8))
        run 0 "$@"
        [ "$code" = 65 ] && refused=$((refused + 1))
        cp "$tmp/.whole" "$file"
    done
    is "$(basename "$1"): a damaged $(basename "$file" | sed 's/-[0-9]*//') is refused each time" "$refused" "$programs"
}
each_refuses "$whole" ./dtrain-info "$whole"
each_refuses "$whole" ./dtrain-convert "$whole" "$tmp/exported" --force
each_refuses "$whole" ./dtrain-generate "$whole" --prompt a --max-new-tokens 2
each_refuses "$tmp/few.h5" ./dtrain-data info "$tmp/few.h5"
each_refuses "$tmp/train.h5" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/on_damaged"

# a bit of the token ids: a block is verified when it is read for the first time
tokens=$(($(stat -c %s "$tmp/train.h5") / 2))
cp "$tmp/train.h5" "$tmp/.whole"
flip "$tmp/train.h5" $tokens 0
ends "a flipped bit among the token ids ends the training that meets it" 65 train 2 flipped run.max_steps=60
expect_text "the message names file, array and block" 'train\.h5: (tokens|offsets): block 0 \(bytes [0-9]+ to [0-9]+ of the file\) is damaged'
cp "$tmp/.whole" "$tmp/train.h5"

# the newest checkpoint is damaged: the run resumes from the previous one
flip "$whole" 700 3
train 1 run run.max_steps=8 model.hidden_size=8 model.intermediate_size=8 model.num_hidden_layers=1 model.num_attention_heads=2 \
    model.num_key_value_heads=1 checkpoint.save_steps=3
expect_text "with the newest checkpoint damaged, a run says so" "$(basename "$whole").*altered"
e2e_done
