#!/bin/bash
# e2e_stop.sh - signals and limits in every phase of a run. The checkpoint is written first; a validation is postponed and repeated at the
# step where it was due.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
long="data.validation=$tmp/train.h5 data.validation_steps=2 checkpoint.save_steps=0"

validations() { grep -c validation_loss "$tmp/$1/metrics.jsonl"; }
due="data.validation=$tmp/valid.h5 data.validation_steps=4 checkpoint.save_steps=0 run.max_steps=8"
# held NP DIR SETTINGS...: runs in the background until rank 0 stops at the beginning of its first validation
held() { DTRAIN_FAULT=validate.vote:0:1:stop start "$@"; }

# the end of a job, which comes while the rest of this script runs
job_end=$(($(date +%s) + 30))
export SLURM_JOB_END_TIME=$job_end DTRAIN_FAULT=step.begin:0:2:stop
start 0 job run.max_steps=100000000 checkpoint.save_steps=0
of_slurm=$job
unset SLURM_JOB_END_TIME DTRAIN_FAULT

for np in 0 3; do
    rm -rf "$tmp/v"
    held $np v $due
    stop_at v 1 USR1
    ends_saying "USR1 in a validation ($np ranks): 75" 75 "step 4 of 8, a checkpoint is written, its validation is still due" finish v
    expect "an interrupted validation is not recorded ($np ranks)" test "$(validations v)" = 0
    if [ $np = 3 ]; then
        cp -r "$tmp/v" "$tmp/l"
        ends "a validation that no run has the time for is an error, not a loop: 64" 64 train 2 l $due run.time_limit=0.001
        expect_text "the message names the remedy" "give the run more time, or lower data.max_validation_samples"
    fi
    ends_saying "resumed ($np ranks)" 0 "the run starts with the validation of step 4" train 2 v $due
    expect "each is done once ($np ranks)" test "$(validations v)" = 2
done

# killed after the late validation: it is repeated, and its record is stored once
held 0 k $due
stop_at k 1 TERM
ends "TERM in a validation: 75" 75 finish k
DTRAIN_FAULT=save.create:0:1:kill train 2 k $due
train 2 k $due
expect "a validation done twice is recorded once" test "$(grep -c '"step": 4, "validation_loss"' "$tmp/k/metrics.jsonl")" = 1

# The limit comes in a validation. On a machine so slow that it comes in the first step, what is to be seen is the same.
held 2 t $due data.validation_steps=1 run.time_limit=3
ends_or_is_held() { are_stopped t 1 || ! kill -0 "$job"; }
wait_for ends_or_is_held
sleep 3
kill -CONT $(ranks_of t) 2>/dev/null
ends_saying "run.time_limit in a validation: 75" 75 "stopped by run.time_limit at step 1 of 8, a checkpoint is written, its validation is still due" finish t

# evaluation
held 0 none run.task=eval model.path="$(newest v)" data.validation="$tmp/valid.h5"
stop_at none 1 TERM
ends_saying "TERM in an evaluation: 75" 75 "stopped by a signal after [0-9]+ % of the validation" finish none

# one rank fails at each new vote
for point in start.agree comm.devices validate.vote loop.vote; do
    for np in 2 3; do
        rm -rf "$tmp/f"
        DTRAIN_FAULT=$point:$((np - 1)):1:error train $np f $long run.max_steps=4
        expect_exit "one of $np ranks fails at $point: 70" 70
    done
done

# while it starts, and while it loads
train 2 v $due run.max_steps=10
start 0 v run.max_steps=100000000 checkpoint.save_steps=0
takes_usr1() { grep -q "SigBlk:.*[2367abef]..$" "/proc/$(ranks_of v)/status"; }
wait_for takes_usr1
kill -USR1 $(ranks_of v)
ends "USR1 while a run starts or loads: 75" 75 finish v

# the last step is done, its validation is not
last="data.validation=$tmp/valid.h5 data.validation_steps=0 checkpoint.save_steps=0 run.max_steps=4"
held 0 e $last
stop_at e 1 USR1
ends "USR1 in the last validation: 75" 75 finish e
ends "resumed: the validation and the export are left" 0 train 3 e $last checkpoint.export=hf
expect "the validation and the export are done" test -s "$tmp/e/hf/model.safetensors" -a "$(validations e)" = 1
train 3 e $last
expect "the validation is recorded once" test "$(validations e)" = 1

wait_until_stopped job 1
is_past() { [ "$(date +%s)" -gt "$1" ]; }
wait_for is_past $job_end
kill -CONT $(ranks_of job)
ends_saying "the end of the Slurm job: 75" 75 "stopped by the end of the Slurm job" finish job $of_slurm
e2e_done
