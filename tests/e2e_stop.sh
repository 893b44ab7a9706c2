#!/bin/bash
# e2e_stop.sh - signals and limits in every phase of a run: the checkpoint comes first, a validation is put off and done again where it was due.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
long="data.validation=$tmp/train.h5 data.validation_steps=2 checkpoint.save_steps=0"

# Until a condition holds, for at most half a minute.
wait_for() { for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done; return 1; }
# start NP DIR SETTINGS...: in the background; sets $pid
start() {
    local np=$1 dir=$2 launch=
    shift 2
    [ "$np" = 0 ] || launch="mpirun -np $np"
    $launch ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$dir" "$@" >"$out" 2>&1 &
    pid=$!
}
finish() { wait "$pid"; code=$?; }
validations() { grep -c validation_loss "$tmp/$1/metrics.jsonl"; }

# A validation that is held up: one rank sleeps at each vote (DTRAIN_FAULT hang would never end), so the set is simply large.
awk 'BEGIN { srand(3); for (d = 0; d < 4000; d++) { s = ""; for (i = 0; i < 60; i++) s = s "word" int(rand() * 100) " "; print s } }' >"$tmp/large.txt"
./dtrain-data --documents lines -o "$tmp/large.h5" "$tmp/large.txt" >/dev/null 2>&1
large="data.validation=$tmp/large.h5 data.validation_steps=4 checkpoint.save_steps=0 run.max_steps=8"

for np in 0 3; do
    rm -rf "$tmp/v"
    start $np v $large
    wait_for grep -q '"step": 4' "$tmp/v/metrics.jsonl"
    kill -USR1 $pid
    finish
    expect_exit "USR1 in a validation ($np ranks): 75" 75
    expect_text "which is put off ($np ranks)" "step 4 of 8, a checkpoint is written, its validation is still due"
    expect "and is no result ($np ranks)" test "$(validations v)" = 0
    train 2 v $large data.validation="$tmp/valid.h5"
    expect_exit "resumed ($np ranks)" 0
    expect_text "the validation comes first ($np ranks)" "validation of step 4 comes first"
    expect "each is done once ($np ranks)" test "$(validations v)" = 2
done

# killed behind the late validation: it is done again, and its record is there once
rm -rf "$tmp/k"
start 0 k $large
wait_for grep -q '"step": 4' "$tmp/k/metrics.jsonl"
kill -TERM $pid
finish
expect_exit "TERM in a validation: 75" 75
DTRAIN_FAULT=save.create:0:1:kill train 2 k $large data.validation="$tmp/valid.h5"
train 2 k $large data.validation="$tmp/valid.h5"
expect "a validation done twice is recorded once" test "$(grep -c '"step": 4, "validation_loss"' "$tmp/k/metrics.jsonl")" = 1

# the limit comes in a validation
rm -rf "$tmp/l"
train 2 l $large run.time_limit=2
expect_exit "run.time_limit in a validation: 75" 75
expect_text "a checkpoint is written" "a checkpoint is written"
if grep -q "still due" "$out"; then
    train 2 l $large run.time_limit=1.5
    expect_exit "a validation that no run has the time for is an error, not a loop: 64" 64
    expect_text "with what to do" "give more time, or a smaller data.max_validation_samples"
else skip "a validation that no run has the time for" "this machine was too slow to begin one"; fi
now=$(date +%s)
SLURM_JOB_END_TIME=$((now + 9)) train 2 job $large run.max_steps=1000000 data.validation_steps=0
expect_exit "the end of the Slurm job: 75" 75
expect_text "which is named" "stopped by the end of the Slurm job"

# evaluation
start 0 none run.task=eval model.path="$(newest v)" data.validation="$tmp/large.h5" run.output_dir=
wait_for grep -q "^validation: " "$out"
sleep 0.5
kill -TERM $pid
finish
expect_exit "TERM in an evaluation: 75" 75
expect_text "says how far it came" "stopped by a signal( after [0-9]+ % of the validation| while the run was starting)"

# one rank fails at each new vote
for point in start.agree validate.vote loop.vote; do
    for np in 2 3; do
        rm -rf "$tmp/f"
        RUN_TIMEOUT=60 DTRAIN_FAULT=$point:$((np - 1)):1:error train $np f $long run.max_steps=4
        expect_exit "one of $np ranks fails at $point: 70" 70
    done
done

# while it starts, and while it loads
train 2 v $large data.validation="$tmp/valid.h5" run.max_steps=10
start 0 v run.max_steps=1000000 checkpoint.save_steps=0
wait_for grep -q "SigBlk:.*[2367abef]..$" /proc/$pid/status
kill -USR1 $pid
finish
expect_exit "USR1 while a run starts or loads: 75" 75

# the last step is done, its validation is not
rm -rf "$tmp/e"
start 0 e $large data.validation_steps=0 run.max_steps=4
wait_for grep -q '"step": 4' "$tmp/e/metrics.jsonl"
kill -USR1 $pid
finish
expect_exit "USR1 in the last validation: 75" 75
train 3 e $large run.max_steps=4 data.validation_steps=0 data.validation="$tmp/valid.h5" checkpoint.export=hf
expect_exit "resumed: the validation and the export are left" 0
expect "both are done" test -s "$tmp/e/hf/model.safetensors" -a "$(validations e)" = 1
train 3 e $large run.max_steps=4 data.validation_steps=0 data.validation="$tmp/valid.h5"
expect "and not once more" test "$(validations e)" = 1
e2e_done
