#!/bin/bash
# full_slurm.sh - the job scripts under a real Slurm: arrays, a time limit during start-up, a lost node. Its daemons are private (tests/slurm).
export OMPI_MCA_btl=self,tcp OMPI_MCA_pml=ob1 # the nodes are one host
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
export PATH=$PATH:/usr/sbin:/sbin
for program in sbatch slurmctld slurmd munged; do
    command -v $program >/dev/null || { skip "job scripts under Slurm" "no $program (apt-get install slurm-wlm munge)"; exit 0; }
done
[ "$(id -u)" = 0 ] || { skip "job scripts under Slurm" "its daemons need root"; exit 0; }
SLURM_TEST_DIR=$(mktemp -d) SLURM_TEST_PORT=$((20000 + RANDOM % 10000))
export SLURM_TEST_DIR SLURM_TEST_PORT
top=$PWD
trap '"$top/tests/slurm/down.sh" --purge; rm -rf "$tmp"' EXIT
if ! tests/slurm/up.sh 3 4 >"$out" 2>&1; then
    not_ok "a private Slurm starts" "up.sh failed"
    exit 1
fi
. "$SLURM_TEST_DIR/env"
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }

tree="$tmp/my tree"
mkdir -p "$tree/jobs" "$tmp/work dir"
cp jobs/*.sh "$tree/jobs"
ln -s "$(realpath dtrain)" "$tree/dtrain"
export PATH=${PATH//$top:/}
small=(--nodes=2 --ntasks-per-node=1 --cpus-per-task=1)
submit() { (cd "$tmp" && sbatch --parsable --open-mode=append "${small[@]}" "$@"); }
status_of() { scontrol show job "$1" | sed -n "s/.*\b$2=\([^ ]*\).*/\1/p" | head -1; }
at() { [ "$(status_of "$1" JobState)" = "$2" ]; }
# Slurm lets a requeued job wait two minutes: start it at once.
hurry() { # job, until its state is one of these
    local job=$1 end=$((SECONDS + 240))
    shift
    until [[ " $* " == *" $(status_of "$job" JobState) "* ]]; do
        if [ $SECONDS -ge $end ]; then not_ok "job $job ends" "state $(status_of "$job" JobState)"; return 1; fi
        if at "$job" PENDING; then # once its last start has ended
            sleep 3
            scontrol update JobId="$job" StartTime=now 2>/dev/null
        fi
        sleep 0.5
    done
}
shown() { cat "$tmp/$1" >"$out"; }

# An array: its second task is stopped while the others run.
for task in 1 2 3; do cp "$tmp/tiny.ini" "$tmp/work dir/tiny $task.ini"; done
for script in slurm.sh slurm-mpirun.sh; do
    kind=${script%.sh}
    array=$(submit --array=1-3 --nodes=1 --chdir="work dir" -o "$tmp/$kind-%a.log" --time=30 "my tree/jobs/$script" "tiny %a.ini" "run.output_dir=out $kind/%a" run.max_steps=10000000 checkpoint.save_steps=0)
    running() { for t in 1 2 3; do grep -q 'step' "$tmp/work dir/out $kind/$t/metrics.jsonl" || return 1; done; }
    WAIT_TIMEOUT=90 wait_for running
    scancel --batch -s USR1 "${array}_2"
    hurried() { grep -q 'requeued' "$tmp/$kind-2.log"; }
    WAIT_TIMEOUT=60 wait_for hurried
    prints "$script: a stopped task of an array is requeued" "^dtrain job ${array}_2: stopped .*requeued" shown "$kind-2.log"
    for task in 1 3; do
        expect "$script: task $task continues to run" at "${array}_$task" RUNNING
        is "$script: task $task was not restarted" "$(status_of "${array}_$task" Restarts)" 0
    done
    again() { [ "$(status_of "${array}_2" Restarts)" = 1 ] && at "${array}_2" RUNNING && grep -qE 'resum|continu' "$tmp/$kind-2.log"; }
    hurry "${array}_2" RUNNING && WAIT_TIMEOUT=60 wait_for again
    expect "$script: and continues" again
    scancel "$array"
    for task in 1 2 3; do hurry "${array}_$task" CANCELLED; done
    expect "$script: cancelled tasks are not requeued" sh -c "! grep -q requeued '$tmp/$kind-1.log' '$tmp/$kind-3.log'"
done

# A time limit that always comes before the first step: the warning goes out at once.
printf '#!/bin/bash\ntrap "exit 75" USR1\necho starting\nfor i in $(seq 600); do sleep 0.1; done\n' >"$tmp/slow"
chmod +x "$tmp/slow"
job=$(DTRAIN=$tmp/slow DTRAIN_MAX_REQUEUES=2 submit -o "$tmp/slow.log" --time=1 "my tree/jobs/slurm.sh" x.ini)
hurry "$job" FAILED
prints "a time limit in start-up: the job stops at last" 'not requeued: it was restarted 2 times' shown slow.log
is "a time limit in start-up: starts" "$(status_of "$job" Restarts)" 2

# A rank that is killed: its node is excluded from the next start.
printf '#!/bin/bash\necho "start ${SLURM_RESTART_COUNT:-0} on $SLURMD_NODENAME"\n[ "${SLURM_RESTART_COUNT:-0}$SLURM_PROCID" != 01 ] || kill -9 $$\n' >"$tmp/killed"
chmod +x "$tmp/killed"
job=$(DTRAIN=$tmp/killed submit -o "$tmp/killed.log" --time=5 "my tree/jobs/slurm.sh" x.ini)
hurry "$job" COMPLETED
prints "a killed rank: the job is requeued" "failure 1 in a row, exit code 137; requeued; lost node2" shown killed.log
is "a killed rank: its node is excluded" "$(status_of "$job" ExcNodeList)" node2
expect_text "a killed rank: the next start uses another" '^start 1 on node3'

# A lost node: its slurmd and all that it started are killed.
kill_node() { # name
    local pid step
    pid=$(cat "$SLURM_TEST_DIR/run/$1.pid")
    for step in $(pgrep -f "slurmstepd: \[$2\."); do
        if grep -zq "SLURMD_NODENAME=$1" "/proc/$(pgrep -P "$step" | head -1)/environ" 2>/dev/null; then kill -9 $(pgrep -P "$step") "$step"; fi
    done
    kill -9 "$pid"
}
job=$(submit -o "$tmp/lost.log" --time=30 "my tree/jobs/slurm.sh" tiny.ini "run.output_dir=$tmp/lost" run.max_steps=4000 checkpoint.save_steps=50)
saved() { ls "$tmp/lost/checkpoints/"step-*.h5; }
WAIT_TIMEOUT=90 wait_for saved
lost=$(scontrol show hostnames "$(status_of "$job" NodeList)" | tail -1) # not the one of the script
kill_node "$lost" "$job"
requeued() { [ "$(status_of "$job" Restarts)" = 1 ]; }
WAIT_TIMEOUT=120 wait_for requeued
hurry "$job" COMPLETED
prints "a lost node: the job ends on the others" 'step *4000|done' shown lost.log
is "a lost node: exit code" "$(status_of "$job" ExitCode)" 0:0
expect "a lost node is not used again" sh -c "! scontrol show hostnames '$(status_of "$job" NodeList)' | grep -x $lost"
e2e_done
