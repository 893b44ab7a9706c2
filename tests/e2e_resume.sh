#!/bin/bash
# e2e_resume.sh - stopping, resuming and changing the layout: signals, kills at any moment, full disks, damaged files, other rank counts and
# stages.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
steps="run.max_steps=8 checkpoint.save_steps=2"

ends "a run without interruption" 0 train 2 whole $steps zero.stage=2

# cases that wait for a clock, concurrently with the rest
hang() {
    DTRAIN_FAULT=step.begin:1:3:hang ends "one rank hangs: 76" 76 train 2 hung $steps comm.timeout=10
    expect_text "each rank reports step and phase" "rank 0 .*no progress.*step 3, phase"
    expect_text "the hanging one too" "rank 1 .*no progress.*step 3, phase read"
}
reach_time_limit() {
    ends "run.time_limit: 75" 75 train 1 limit run.max_steps=100000 run.time_limit=3
}
beside hang
beside reach_time_limit

# same ranks and stage: bit for bit
train 2 parts $steps zero.stage=2 run.max_steps=4
ends_saying "resume" 0 "resumed from .*step-00000004.h5" train 2 parts $steps zero.stage=2
expect "resumed equals uninterrupted, bit for bit" same_model "$(newest whole)" "$(newest parts)"
expect "metrics without gap or repeat" close_losses whole parts 0

# two nodes that have all states each, and back
DTRAIN_FAKE_NODES=2 ends "two nodes of two ranks, each with all states" 0 train 4 groups $steps zero.stage=3 zero.shard_group=node run.max_steps=4
expect_text "the log says so" "zero.stage = 3, zero.shard_group = node"
train 3 groups $steps zero.stage=2 run.max_steps=6
DTRAIN_FAKE_NODES=2:cyclic ends "a run moves from three ranks to two nodes" 0 train 4 groups $steps zero.stage=1 zero.shard_group=node
expect "all in one" close_losses whole groups 1e-4
DTRAIN_FAKE_NODES=2 ends "nodes of different sizes: 64" 64 train 3 uneven $steps zero.shard_group=node
expect_text "the message names ranks and nodes" 'zero.shard_group: the 3 ranks are spread unevenly over 2 nodes, from 1 to 2 per node'
expect "no other error is reported" test "$(grep -c error: "$out")" = 1

# other ranks and stages
i=0
for move in "1 0" "3 3" "4 1" "2 2" "3 0"; do
    set -- $move
    i=$((i + 1))
    rm -rf "$tmp/moved"
    train 2 moved $steps zero.stage=2 run.max_steps=4
    train "$1" moved $steps zero.stage="$2"
    expect "moved to $1 ranks at stage $2" close_losses whole moved 1e-5
done
train 3 moved-bf16 $steps precision.dtype=bf16 zero.stage=3 run.max_steps=4
ends "bf16 moved from 3 ranks to 1" 0 train 1 moved-bf16 $steps precision.dtype=bf16 zero.stage=1

# another batch size: the place in the data is a number of samples
batch="batch.train_batch_size=0 batch.micro_batch_size=2 checkpoint.save_steps=2"
train 2 wider $batch run.max_steps=4
prints "twice the ranks, twice the batch: the data position is kept" "data continues at sample 16 of epoch 0" train 4 wider $batch run.max_steps=5
prints "the data position is kept with batches that do not divide it" "data continues at sample 24 of epoch 0" train 3 wider $batch run.max_steps=6

train 1 narrower batch.train_batch_size=8 batch.micro_batch_size=2 checkpoint.save_steps=1 run.max_steps=2
train 1 narrower batch.train_batch_size=4 batch.micro_batch_size=2 checkpoint.save_steps=1 run.max_steps=3
expect_text "a given batch size: from what to what, and how to keep it" \
    'batch.train_batch_size changed from 8 to 4; data continues at sample 16 of epoch 0. To keep the old value, set batch.train_batch_size=8'
train 1 narrower batch.train_batch_size=4 batch.micro_batch_size=2 checkpoint.save_steps=1 run.max_steps=4
expect "said once: the next start has changed nothing" sh -c "! grep -q 'data continues' '$out'"

full_only

# killed at any moment, by itself and with the others; the first time these are asked to end before
how=kill_slowly
for point in step.begin:1:6 step.agree:0:5 comm.reduce_scatter:1:9 zero.update:1:5 save.create:0:2 save.reserve:0:2 save.write:1:2 save.rename:0:2; do
    rm -rf "$tmp/killed"
    DTRAIN_FAULT=$point:kill $how train 2 killed $steps zero.stage=2
    how=
    [ "$code" != 0 ] || not_ok "killed at $point" "the run did not die"
    train 2 killed $steps zero.stage=2
    if [ "$code" = 0 ]; then expect "killed at $point and resumed" same_model "$(newest whole)" "$(newest killed)"
    else not_ok "killed at $point and resumed" "exit code $code"; fi
    expect "killed at $point: metrics without gap or repeat" close_losses whole killed 0
done

# a rank that fails alone does not leave the others waiting
for fault in step.begin:1:3 comm.reduce_scatter:0:5 comm.all_gather:1:4 zero.update:1:2 zero.gather:1:3 save.create:1:1 save.write:1:1 save.rename:0:1; do
    rm -rf "$tmp/failed"
    DTRAIN_FAULT=$fault:error train 2 failed $steps zero.stage=1
    if [ "$code" = 70 ]; then ok "one rank fails at $fault: all leave with 70"; else not_ok "one rank fails at $fault: all leave with 70" "exit code $code"; fi
done

# signals
./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/early" run.max_steps=100000000 checkpoint.save_steps=0 >"$out" 2>&1 &
pid=$!
wait_for grep -q "SigBlk:.*[2367abef]..$" /proc/$pid/status # until SIGUSR1, bit 9, is waited for
kill -USR1 "$pid"
wait "$pid"
code=$?
expect_exit "SIGUSR1 while a run starts: 75" 75
DTRAIN_FAULT=start.agree:0:1:stop ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/early" >"$out" 2>&1 & # stopped where ranks agree
pid=$!
for _ in $(seq 3000); do grep -q "^State:.T" /proc/$pid/status && break; sleep 0.01; done
kill -USR1 "$pid" && kill -CONT "$pid"
wait "$pid"
code=$?
expect_exit "between two votes of the start: 75" 75
expect_text "the message names the phase of the stop" "stopped by a signal during start-up, before the first step; start it again"
for sig in USR1 TERM INT; do
    rm -rf "$tmp/signal"
    ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/signal" run.max_steps=100000000 checkpoint.save_steps=0 >"$out" 2>&1 &
    pid=$!
    wait_for test -s "$tmp/signal/metrics.jsonl"
    kill -$sig "$pid"
    wait "$pid"
    code=$?
    expect_exit "SIG$sig saves and leaves with 75" 75
    expect "SIG$sig: a checkpoint exists" test -f "$(newest signal)"
done
own_mpi_files
$MPIRUN -np 2 ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/signal2" run.max_steps=100000000 checkpoint.save_steps=0 >"$out" 2>&1 &
pid=$!
wait_for test -s "$tmp/signal2/metrics.jsonl"
kill -USR1 "$pid"
wait "$pid"
code=$?
expect_exit "SIGUSR1 to mpirun: 75" 75
beside_end

# damaged files
rm -rf "$tmp/damaged" && cp -r "$tmp/whole" "$tmp/damaged"
f=$(newest damaged)
truncate -s -1000 "$f"
ends "--check takes the one before a damaged one, as a run does" 0 run 1 ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/damaged" $steps
expect_text "--check names the checkpoint" "would resume from .*step-00000006.h5"
ends_saying "the newest cut short: the one before is taken" 0 "step-00000008.h5.*trying the previous checkpoint" train 2 damaged $steps zero.stage=2
expect "the run ends with the same weights" same_model "$(newest whole)" "$(newest damaged)"
rm -rf "$tmp/altered" && cp -r "$tmp/whole" "$tmp/altered"
f=$(newest altered)
size=$(stat -c %s "$f")
printf '\377\377\377\377' | dd of="$f" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
prints "an altered one: a warning that names file and tensor" "step-00000008.h5.*trying the previous checkpoint" train 2 altered $steps zero.stage=2
ends "a given checkpoint that is missing: 65" 65 train 2 altered2 $steps zero.stage=2 checkpoint.resume="$tmp/does-not-exist.h5"
expect_text "the message names the key" 'checkpoint.resume: .*does-not-exist.h5: No such file'
cp "$tmp/whole/config.ini" "$tmp/.config"
ends "a fresh start over an old run is refused" 64 train 2 whole checkpoint.resume=none run.seed=8
expect "config.ini is unchanged" cmp "$tmp/.config" "$tmp/whole/config.ini"

train 2 limited $steps zero.stage=2 checkpoint.save_total_limit=2
expect "save_total_limit keeps two" test "$(ls "$tmp/limited/checkpoints" | grep -c 'step-.*h5$')" = 2
expect "latest names the newest" grep -q step-00000008 "$tmp/limited/checkpoints/latest"

# a limit on the size of files, as a quota: the disk has room and says so
run 0 bash -c "ulimit -f 5000; exec ./dtrain $tmp/tiny.ini run.output_dir=$tmp/large $steps model.hidden_size=256"
expect_exit "a checkpoint beyond the limit of file sizes: 74" 74
expect_text "named, with its size" "step-00000002.h5.part: not enough space for a checkpoint of .*File too large"

# a full disk
if [ "$(id -u)" = 0 ] && mkdir -p "$tmp/small" && mount -t tmpfs -o size=2m tmpfs "$tmp/small" 2>/dev/null; then
    trap 'kill $(jobs -p) 2>/dev/null; umount -l "$tmp/small"; rm -rf "$tmp"' EXIT
    for np in 1 3; do
        ends "full disk on $np ranks: 74" 74 train "$np" small/run $steps zero.stage=2 model.hidden_size=96
        expect "the last good checkpoint verifies" ./dtrain-info "$(newest small/run)"
        expect "no partial file is left" sh -c "! ls $tmp/small/run/checkpoints | grep -q part"
        rm -rf "$tmp/small/run"
    done
else
    skip "full disk" "no permission to mount a small file system"
fi
e2e_done
