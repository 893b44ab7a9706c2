#!/bin/bash
# e2e_process.sh - external events that hit a run's processes: they are suspended, started twice, started by the wrong launcher, or run out
# of shared memory.
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

n_lines() { grep -c '"loss"' "$tmp/$1/metrics.jsonl" 2>/dev/null || true; }
has_steps() { [ "$(n_lines "$1")" -ge "$2" ]; }
wait_for_step() { wait_for has_steps "$@"; }

# of other hosts: pid 1 is alive here, and means nothing there
lock() { mkdir -p "$tmp/$1"; printf 'host elsewhere\npid 1\nstart 5\nboot b\nspace 4\njob %s\nrestart %s\nsince 1700000000\n' "$2" "$3" >"$tmp/$1/run.lock"; }

# ---- begun here, because they wait for a clock; their ends are looked at below
lock fresh "" 0
start 3 fresh log.logging_steps=1 comm.timeout=20; fresh=$job
export DTRAIN_FAULT=step.begin:*:2:stop
start 0 single log.logging_steps=1 comm.timeout=12; single=$job
start 2 both log.logging_steps=1 comm.timeout=12; both=$job
unset DTRAIN_FAULT
DTRAIN_FAULT=step.begin:2:2:stop start 3 frozen comm.timeout=6; frozen=$job
wait_until_stopped single 1
wait_until_stopped both 2
suspended=$SECONDS
start 2 one log.logging_steps=1 comm.timeout=10 run.max_steps=100000000; one=$job
start 1 robbed log.logging_steps=1 run.max_steps=100000000; robbed=$job
wait_for_step one 1
stopped=$(ranks_of one | tail -1)
kill -STOP "$stopped"
wait_for_step robbed 1
rm "$tmp/robbed/run.lock" && lock robbed "" 0

# ---- shared memory that one rank cannot create or map
ends "three ranks with shared memory" 0 train 3 with
for np in 2 3 4; do
    DTRAIN_FAULT=shm.make:1:1:error ends "no shared memory, $np ranks: by messages" 0 train $np nowhere$np
    expect "said once ($np)" test "$(grep -c 'exchange data by messages instead' "$out")" = 1
done
expect "and the numbers agree" close_losses with nowhere3 1e-5
for fault in shm.make:0 shm.map:0 shm.map:2; do
    DTRAIN_FAULT=$fault:1:error ends "one rank fails at $fault: all exchange by messages" 0 train 3 "fault-$fault"
    expect_text "and that is said ($fault)" "shm.ma.*exchange data by messages instead"
done
start 2 mapped log.logging_steps=1 run.max_steps=100000000; mapped=$job
wait_for_step mapped 1
for pid in $(ranks_of mapped); do
    expect "each rank maps the memory of both" test "$(grep -c "memfd:dtrain (deleted)" "/proc/$pid/maps")" = 2
done
kill -KILL $(ranks_of mapped)
wait $mapped

# ---- suspended for longer than comm.timeout: the only rank, and both of two
until [ $((SECONDS - suspended)) -ge 14 ]; do sleep 0.1; done # more than comm.timeout, however slow the machine is
kill -CONT $(ranks_of single) $(ranks_of both)
ends "a run on one rank continues after a suspension longer than comm.timeout" 0 finish single $single
expect_text "the suspension is reported" "was stopped or suspended for [0-9]+ s; comm.timeout does not count"
expect "the reported duration is that of the suspension" test "$(sed -n 's/.*was stopped or suspended for \([0-9]*\) s;.*/\1/p' "$out" | sort -n | tail -1)" -ge 12
expect "no rank reports missing progress" sh -c "! grep 'no progress' '$out'"
ends "a run on two ranks continues after both were suspended" 0 finish both $both
expect "no rank of two reports missing progress" sh -c "! grep 'no progress' '$out'"
expect "no step is missing" test "$(n_lines both)" = 6

# one rank of two is suspended: the other times out
ends "a run with one suspended rank ends with 76" 76 finish one $one
expect_text "the waiting rank reports its phase" "rank [01] .*no progress for"
expect_text "the waiting rank names the stopped rank" "rank [01] .*; rank [01] on this host has not run for at least [4-9] s: its process $stopped is stopped \(SIGSTOP\)"
ends "one of three ranks is stopped: 76" 76 finish frozen $frozen
is "the other two ranks name only the stopped rank" "$(grep -o 'rank [0-9] on this host has not run' "$out" | sort | uniq -c | tr -s ' ')" " 2 rank 2 on this host has not run"
is "both collectors of the roll call name the stopped rank" "$(grep -o 'no report from .*' "$out" | sort | uniq -c | tr -s ' ')" \
    " 2 no report from rank 2 on host $(hostname) (stopped, unreachable or still computing)"

# ---- two runs in one directory
start 2 shared log.logging_steps=1 run.max_steps=100000000; first=$job
wait_for_step shared 1
ends "a second run in the same directory is refused" 64 train 1 shared
expect_text "the message names the process of the first run" "another run uses this output_dir: process [0-9]+ on $(hostname).*since 20.*--force"
ends "--check reports a directory in use" 64 train 2 shared --check
expect_text "--check names the key and the process" "output_dir.*: another run uses this output_dir: process [0-9]+ on $(hostname)"
ends "--check accepts it with --force" 0 train 1 shared --check --force
ends "an evaluation that would write to it, too" 64 train 2 shared run.task=eval model.path="$tmp/both" data.validation="$tmp/valid.h5"
ends "dtrain-info reads a directory in use" 0 run 0 ./dtrain-info $(ls "$tmp"/both/checkpoints/*.h5)
kill -KILL $(ranks_of shared) 2>/dev/null
wait $first
expect "a killed run leaves its lock" test -e "$tmp/shared/run.lock"
ends_saying "a stale lock does not prevent a run" 0 "taking over .*run.lock: its run has ended" train 2 shared
expect "a run that ends removes its lock" test ! -e "$tmp/shared/run.lock"
expect "no other lock file remains" sh -c "! ls '$tmp/shared' | grep run.lock"

lock old "" 0
touch -d '1 hour ago' "$tmp/old/run.lock"
ends "the lock of another host that was not refreshed for an hour" 0 train 2 old
lock living "" 0
(while sleep 2; do touch "$tmp/living/run.lock"; done) &
toucher=$!
train 2 living
kill $toucher
expect_exit "the lock of another host that is refreshed" 64
expect_text "names host and time" "process 1 on elsewhere, since 2023-11-14 22:13:20 UTC"
ends_saying "--force takes it over" 0 "--force: taking over .* from process 1 on elsewhere" train 2 living --force
lock requeued "Slurm job 77" 0
SLURM_JOB_ID=77 SLURM_RESTART_COUNT=1 ends "a requeued job is not stopped by itself before" 0 train 2 requeued
# a start that was killed before it wrote its text
mkdir -p "$tmp/empty" && : >"$tmp/empty/run.lock"
touch -d '1 hour ago' "$tmp/empty/run.lock"
ends_saying "an old lock without text is stale" 0 "taking over .*run.lock: its run has ended \(process 0 on an unknown host" train 1 empty

# a run.lock that tells nothing
mkdir -p "$tmp/barred/run.lock"
ends_saying "a directory in place of the lock" 64 "barred/run.lock: expected the lock file of a run, found a directory.*remove it" train 2 barred
mkdir -p "$tmp/strange" && head -c 5000 /dev/zero >"$tmp/strange/run.lock"
ends_saying "a lock that cannot be read" 64 "strange/run.lock: .*remove the file, or start with --force" train 2 strange
expect "an unreadable lock is kept" test -s "$tmp/strange/run.lock"
ends_saying "--check reports an unreadable lock" 64 "output_dir.*strange/run.lock: .*remove the file,? or start with --force" train 1 strange --check
cp "$tmp/with/config.ini" "$tmp/strange"
prints "dtrain-info names it" "^ *lock +$tmp/strange/run.lock: expected at most" run 0 ./dtrain-info "$tmp/strange"
expect_text "the state is unknown" "^ *state +unknown"
ends "--force takes it over, too" 0 train 2 strange --force

# two starts find the same stale lock; the first writes its text into it, then the second, then the first continues
contend() { # POINT NAME
    DTRAIN_FAULT=$1:0:1:stop timeout -k 5 240 ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/race" log.logging_steps=1 run.max_steps=100000000 \
        >"$tmp/$2.out" 2>&1 </dev/null &
    job=$!
    wait_until_stopped race "$3"
}
lock race "" 0
touch -d '1 hour ago' "$tmp/race/run.lock"
contend lock.write second 1; second=$job second_pid=$(ranks_of race)
contend lock.written first 2; first=$job first_pid=$(ranks_of race | grep -vx "$second_pid")
kill -CONT $second_pid
wait_for_step race 1
kill -CONT $first_pid
ends "of two runs that take over the same lock, one ends" 64 finish first $first
expect_text "the run that ends names the process of the other" "another run uses this output_dir: process $second_pid on $(hostname)"
expect "the other run continues" kill -KILL $second_pid
wait $second
ends_saying "a run whose directory was taken over ends" 74 "run.lock was taken over by another run" finish robbed $robbed
ends_saying "a lock of another host that is not refreshed while it is watched is stale" 0 "checking for 35 s whether that run is alive" finish fresh $fresh
for rank in 0 1 2; do
    DTRAIN_FAULT=lock.take:$rank:1:error ends "rank $rank fails at the lock: all leave with 70" 70 train 3 "lockfault$rank"
    expect "and no lock is left by rank $rank" sh -c "! ls '$tmp/lockfault$rank' 2>/dev/null | grep run.lock"
done

# ---- the launcher of another MPI, which starts two processes that do not see each other
for v in "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0" "MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_RANK=0"; do
    ends "another MPI's launcher is noticed (${v%%=*})" 64 run 0 env $v ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/foreign"
    expect_text "and both are named (${v%%=*})" "started [24] processes \\(${v%%=*}\\), but MPI sees only this one.*built with"
done
ends "the other processes leave" 64 run 0 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/foreign"
expect "no message is printed" test ! -s "$out"
expect "nothing was written" test ! -e "$tmp/foreign"
run 0 bash -c 'export SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_TASK_PID=$$; exec ./dtrain "$@"' x "$tmp/tiny.ini" run.output_dir="$tmp/foreign"
expect_exit "srun whose kind of MPI is another is noticed" 64
for tool in "dtrain-generate $tmp/both" "dtrain-convert $tmp/planted $tmp/x.h5"; do
    ends "by ${tool%% *}, too" 64 run 0 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 ./$tool
done
if command -v mpiexec.mpich >/dev/null && ! ldd ./dtrain | grep -q libmpich; then
    run 0 mpiexec.mpich -np 2 ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/foreign"
    expect_text "MPICH's mpiexec is noticed" "MPICH.* started 2 processes \\(PMI_SIZE\\), but MPI sees only this one"
    expect "no file is written" test ! -e "$tmp/foreign"
else
    skip "MPICH's mpiexec is noticed" "MPICH is not installed, or is the MPI of this build"
fi
# one rank alone cannot open its communicator: the other waits for it in a collective, and is ended
for tool in "dtrain $tmp/tiny.ini" "dtrain-generate $tmp/both" "dtrain-convert $tmp/both $tmp/x.h5"; do
    run 2 sh -c '[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 0 ] || export DTRAIN_FAKE_NODES=x; exec ./"$@"' x $tool
    expect_exit "${tool%% *}: a rank that fails before the first vote ends the job" 64
    expect_text "and says why (${tool%% *})" "DTRAIN_FAKE_NODES=x: expected a number"
done
# variables that others have left: a shell in a step, a batch script, an mpirun whose daemons were started by srun
SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_TASK_PID=1 SLURM_NTASKS=8 SLURM_JOB_ID=5 ends "a run on one rank in a shell of a Slurm step" 0 train 0 shell
SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=1 SLURM_TASK_PID=1 PMI_SIZE=3 ends "mpirun in a Slurm step" 0 train 2 daemons

# ---- started by naming the loader: /proc/self/exe is the loader, and must not be started anew
loader=$(readelf -p .interp ./dtrain 2>/dev/null | grep -o '/[^ ]*')
if [ -n "$loader" ]; then
    run 0 env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u KMP_BLOCKTIME "$loader" ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/loader"
    expect_exit "a program that is started through the loader" 0
else
    skip "a program that is started through the loader" "readelf does not tell which it is"
fi

# ---- alone: no daemon of the library
start 0 alone log.logging_steps=1 run.max_steps=100000000; alone=$job
wait_for_step alone 1
pid=$(ranks_of alone)
expect "a run without mpirun starts no other process" test -z "$(pgrep -P "$pid")"
kill -KILL "$pid"
wait "$alone" 2>/dev/null
NCCL_TIMEOUT=2 DTRAIN_FAULT=comm.share_text:1:1:hang ends "a rank that hangs before it has the configuration ends the run" 76 train 2 early
expect_text "and the others say where" 'no progress for 2 s .*phase start, unit configuration'
e2e_done
