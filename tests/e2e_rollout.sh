#!/bin/bash
# e2e_rollout.sh - rollouts of a run (src/rollout, with the task of tests/rollout_task.h) are the same on any number of ranks and after a
# kill. If one rank fails, every rank ends; no rank waits for it.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
ranks_of() { for p in $(pgrep -f "run.output_dir=$tmp/$1( |\$)"); do [ "$(cat "/proc/$p/comm" 2>/dev/null)" != mpi_rollout ] || echo "$p"; done; }
program=$(realpath "${BUILD:-build/release}/tests/mpi_rollout")
roll() { # NP DIR ARGS...
    local np=$1 dir=$2
    shift 2
    run "$np" "$program" "$tmp" run.output_dir="$tmp/$dir" run.reproducible=true log.rollouts=true run.max_steps=5 "$@"
}
# What replaying cannot know is the sampler's log-probabilities.
lines() { sed 's/, "logps": .*, "old"/, "old"/' "$tmp/$1/rollouts.jsonl"; }
same_rollouts() { [ -s "$tmp/$1/rollouts.jsonl" ] && cmp "$tmp/$1/rollouts.jsonl" "$tmp/$2/rollouts.jsonl"; }
same_completions() { alike "$(lines "$1")" "$(lines "$2")"; }

ends "a run that rolls out" 0 roll 1 ref
expect "rollouts.jsonl has a line for each group of three rollouts" test "$(wc -l <"$tmp/ref/rollouts.jsonl")" = 48
for np in 2 3 4; do
    roll $np ranks$np zero.stage=$((np - 1))
    expect "the same rollouts on $np ranks at stage $((np - 1))" same_rollouts ref ranks$np
done
# The completions of 16 prompts, 3 of each: 3 ranks divide groups.
ROLLOUT_FROM=$tmp/ref/rollouts.jsonl ends "completions from the file that it has written" 0 roll 3 replay zero.stage=3
expect "give the same" same_completions ref replay

# Killed in the middle of the second rollout, when its first has served one step of two and both are saved.
DTRAIN_FAULT=rollout.generate:1:2:kill roll 2 killed checkpoint.save_steps=1
expect "a rank is killed in a rollout" test "$code" != 0
ends "the run resumes on other ranks and at another stage" 0 roll 3 killed checkpoint.resume=auto zero.stage=3
expect "a resumed run has the same rollouts, each once" same_rollouts ref killed

# A signal finds both ranks in the second rollout.
own_mpi_files
DTRAIN_FAULT='generate.pass:*:21:stop' $MPIRUN -np 2 "$program" "$tmp" run.output_dir="$tmp/stopped" run.reproducible=true log.rollouts=true run.max_steps=5 \
    >"$tmp/stopped.out" 2>&1 </dev/null &
stop_at stopped 2 TERM
ends_saying "a signal in a rollout stops the run" 75 "stopped by a signal at step 2 of 5, a checkpoint is written" finish stopped $!
roll 1 stopped checkpoint.resume=auto
expect "the resumed run makes the same rollout" same_rollouts ref stopped

DTRAIN_FAULT='generate.pass:0:2:slow,generate.pass:0:3:slow' ends "a rollout that does not fit into the time limit at all is refused" 64 roll 2 never run.time_limit=1
expect_text "the message names run.time_limit" "rollout of step 1 does not finish before run.time_limit, although the run started with it"

n_faults=0
fails() { # WHERE POINT RANK NTH CODE STAGE
    DTRAIN_FAULT=$2:$3:$4:$7 ends_saying "a rank that fails $1, at stage $6, ends the job" "$5" "rank $3 .*$2" roll 2 "fault$((++n_faults))" zero.stage="$6"
}
fails "when it has generated" rollout.generate 1 2 70 0 error
fails "while it generates" generate.pass 1 9 70 2 error
fails "while it generates, parameters gathered" generate.pass 0 9 70 3 error
fails "where all share what they have made" rollout.share 1 2 70 0 error
fails "while it scores" rollout.score 1 1 70 0 error
fails "where all share their scores" rollout.share_scores 0 2 70 3 error
DTRAIN_FAULT=generate.pass:1:9:error ends "a failure in lockstep ends the run with 70" 70 roll 2 lockstep zero.stage=3 zero.max_live_parameters=20000

DTRAIN_FAULT=rollout.write:0:2:nospace ends "a full disk ends the run" 74 roll 2 full
expect "with what was written before" test "$(wc -l <"$tmp/full/rollouts.jsonl")" = 16
e2e_done
