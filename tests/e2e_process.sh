#!/bin/bash
# e2e_process.sh - what happens to a run's processes from outside: they are suspended, started twice, started by the wrong launcher, left short of shared memory.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

ranks_of() { for p in $(pgrep -f "run.output_dir=$tmp/$1( |\$)"); do [ "$(cat "/proc/$p/comm" 2>/dev/null)" != dtrain ] || echo "$p"; done; }
n_lines() { grep -c '"loss"' "$tmp/$1/metrics.jsonl" 2>/dev/null || true; }
wait_for_step() { for _ in $(seq 1200); do [ "$(n_lines "$1")" -lt "$2" ] 2>/dev/null || [ -z "$(n_lines "$1")" ] || return 0; sleep 0.05; done; }
start() { # NP DIR ARGS...: in the background; $job
    local np=$1 dir=$2
    shift 2
    set -- ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/$dir" log.logging_steps=1 "$@"
    [ "$np" = 0 ] || set -- mpirun -np "$np" "$@"
    timeout -k 5 240 "$@" >"$tmp/$dir.out" 2>&1 </dev/null &
    job=$!
}
finish() { # DIR: its exit code and output as run would leave them
    wait "$2"
    code=$?
    cp "$tmp/$1.out" "$out"
}

# ---- suspended for longer than comm.timeout, in a step that has still to work for a while: the only rank, and both of two
export DTRAIN_FAULT=step.begin:*:2:slow
start 0 single comm.timeout=12; single=$job
start 2 both comm.timeout=12; both=$job
unset DTRAIN_FAULT
wait_for_step single 1
kill -STOP $(ranks_of single)
wait_for_step both 1
kill -STOP $(ranks_of both)
sleep 14
kill -CONT $(ranks_of single) $(ranks_of both)
finish single $single
expect_exit "a run on one rank, suspended for longer than comm.timeout, goes on" 0
expect_text "and says so" "stood still for 1[0-9] s .*comm.timeout does not count"
expect "and has nothing to complain of" sh -c "! grep 'no progress' '$out'"
finish both $both
expect_exit "a run on two ranks, suspended as a whole, goes on" 0
expect "and has nothing to complain of, either" sh -c "! grep 'no progress' '$out'"
expect "no step is missing" test "$(n_lines both)" = 6

# one rank of two alone: the other waits in vain
start 2 one comm.timeout=3 run.max_steps=100000; one=$job
wait_for_step one 1
kill -STOP $(ranks_of one | tail -1)
finish one $one
expect_exit "a run of which one rank alone is suspended ends with 76" 76
expect_text "and the waiting rank says where it stands" "rank [01] .*no progress for"
e2e_done
