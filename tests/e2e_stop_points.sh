#!/bin/bash
# e2e_stop_points.sh - a signal at each point of a run loses nothing. The checkpoint of the named step exists after exit code 75, and the
# continued run matches the undisturbed one. Repeated starts without progress, and a start-up that uses the whole time limit, end with 64.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
. "$(dirname "$0")/stop_common.sh"
command -v python3 >/dev/null || { skip "signals at each point" "no python3 to compare metrics"; exit 0; }
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
common="log.logging_steps=1 data.validation=$tmp/valid.h5 data.validation_steps=2 run.max_steps=6"

# a signal at POINT:RANK:NTH of a run in DIR, then the same run to its end: as the run REFERENCE
at() { # DIR REFERENCE NP POINT ARGS...
    local dir=$1 reference=$2 np=$3 point=$4
    shift 4
    rm -rf "${tmp:?}/$dir"
    DTRAIN_FAULT=$point:signal ends "a signal at $point on $np ranks $*: 75" 75 train "$np" "$dir" $common "$@"
    expect "the checkpoint of the named step exists ($point)" keeps_its_word "$dir"
    ends "continued ($point)" 0 train "$np" "$dir" $common "$@"
    expect "metrics match those without the signal ($point)" like_undisturbed "$reference" "$dir"
}

on_two_ranks() {
    local point
    train 2 whole2 $common
    for point in step.begin:0:1 step.agree:1:2 validate.vote:1:2 validate.report:0:1 loop.vote:1:1 step.agree:0:6; do at two whole2 2 $point checkpoint.save_steps=0; done
}

while_a_save_is_in_flight() {
    local point async="checkpoint.save_steps=1 checkpoint.async=true"
    train 1 whole1 $common
    for point in save.create:0:2 save.rename:0:1 loop.vote:0:2 validate.report:0:2 validate.vote:0:5; do at one whole1 1 $point $async; done
    at one whole1 1 save.write:0:1:slow,step.agree:0:4 checkpoint.save_steps=3 checkpoint.async=true
}

with_the_best_and_early_stopping() {
    local point best="run.max_steps=20 data.validation_steps=1 checkpoint.save_steps=4 checkpoint.load_best_model_at_end=true run.early_stopping_patience=2
        run.early_stopping_threshold=100"
    prints "a run that stops early" "early stopping at step 3 of 20" train 2 best $common $best
    for point in best.publish:1:1 validate.report:0:2 validate.vote:0:2; do at better best 2 $point $best; done
    DTRAIN_FAULT=comm.devices:1:1:signal ends "a signal while data is opened: 75, and no mistake for want of data" 75 train 2 opening $common $best
    DTRAIN_FAULT=validate.report:0:3:signal ends "a signal in the validation that ends the run: it is complete" 0 train 2 complete $common $best
}

# The checkpoint is that of the step before, which may be in flight.
in_a_rollout() {
    local i point rollouts="data.validation= run.max_steps=3 model.path=tests/data/dpo/start model.tokenizer=bytes run.task=grpo data.train=$tmp/prompts.h5 batch.train_batch_size=8
        batch.micro_batch_size=1 grpo.num_generations=4 grpo.max_completion_length=6 grpo.reward_funcs=length:3 grpo.beta=0.1 run.reproducible=true"
    for i in $(seq 0 11); do echo "{\"prompt\": \"count $i\"}"; done >"$tmp/prompts.jsonl"
    data -o "$tmp/prompts.h5" "$tmp/prompts.jsonl"
    ends "a run with rollouts" 0 train 2 whole-rollouts $common $rollouts
    for point in generate.pass:0:2 save.write:0:1:slow,generate.pass:1:9; do at rollouts whole-rollouts 2 $point $rollouts checkpoint.save_steps=1 checkpoint.async=true; done
}

what_is_not_saved() {
    DTRAIN_FAULT=loop.vote:0:1:signal ends "save_on_signal = false: 75" 75 train 1 unsaved $common checkpoint.save_on_signal=false
    expect_text "the message says that no checkpoint is written" "stopped by a signal at step 2 of 6, no checkpoint is written \(checkpoint.save_on_signal = false\)"
    DTRAIN_FAULT=step.agree:0:4:signal train 1 unsaved $common checkpoint.save_on_signal=false checkpoint.save_steps=3
    expect_text "the message names the newest checkpoint" "stopped by a signal at step 4 of 6, no checkpoint is written \(.*\): the newest is of step 3"
    DTRAIN_FAULT=validate.report:0:1:slow,validate.report:0:2:slow,validate.report:0:3:slow train 1 limit $common run.max_steps=1000 run.time_limit=3 checkpoint.save_steps=0
    expect_exit "run.time_limit after a validation: 75" 75
    expect "the checkpoint of the time limit exists" keeps_its_word limit
}

# A stop before the first step leaves a checkpoint of the run's own.
from_another_run() {
    DTRAIN_FAULT=validate.vote:0:1:signal train 1 due $common
    DTRAIN_FAULT=validate.vote:0:1:signal ends "stopped in the validation that another run left due: 75" 75 train 1 own $common checkpoint.resume="$(newest due)"
    expect "the checkpoint is in its own directory" keeps_its_word own
}

without_progress() {
    local n
    starting() { DTRAIN_FAULT=start.agree:1:3:signal train 2 stuck $common; }
    for n in 1 2; do
        starting
        expect_exit "start $n that is stopped before its first step: 75" 75
        expect_text "is counted" "start $n in a row without a new checkpoint"
    done
    starting
    expect_exit "the third ends with 64" 64
    expect_text "with how long it took and what to do" "start 3 in a row without a new checkpoint, and it ran for .*s; another start would not help\. Give the job more time"
    starting
    expect_exit "the fourth start without progress ends with 64" 64
    DTRAIN_FAULT=step.agree:0:1:signal ends "a start that takes a step: 75" 75 train 2 stuck $common
    expect "begins the count anew" test ! -e "$tmp/stuck/starts_without_progress"
    starting
    expect_exit "the first without progress again: 75" 75
    train 2 stuck $common
    expect "a run to the end leaves no count" test "$code" = 0 -a ! -e "$tmp/stuck/starts_without_progress"
    for n in 1 2 3; do DTRAIN_FAULT=validate.vote:0:1:signal train 1 evaluated run.task=eval model.path=tests/data/dpo/start data.validation="$tmp/valid.h5"; done
    expect_exit "evaluations that are stopped are counted, too" 64
}

too_late() {
    DTRAIN_FAULT=start.agree:0:1:slow ends "a start-up that takes all of run.time_limit: 64" 64 train 2 late $common run.time_limit=1
    expect_text "says how long it took" "start-up took [0-9.]+ ?m?s, which leaves no time for a step before run.time_limit; give the run more time"
    SLURM_JOB_END_TIME=$(($(date +%s) + 6)) DTRAIN_FAULT=start.agree:0:1:slow,start.agree:0:2:slow train 2 late $common
    expect_exit "a start-up that takes all of a Slurm job: 64" 64
    expect_text "the Slurm limit is named" "no time for a step before the end of the Slurm job"
    train 2 late $common
    ends "a run that is complete needs no time" 0 train 2 late $common run.time_limit=0.001
}

for part in on_two_ranks while_a_save_is_in_flight with_the_best_and_early_stopping in_a_rollout what_is_not_saved from_another_run without_progress too_late; do beside $part; done
beside_end
e2e_done
