#!/bin/bash
# Slurm where srun cannot start MPI programs (no PMIx): mpirun takes the nodes from Slurm. Submit with:
#   sbatch jobs/slurm-mpirun.sh input.ini [section.key=value ...]
# dtrain saves and exits with 75 before the job ends, by the time its last save took; this script then requeues the job.
# The signal is for a time limit that was changed while the job ran, or an unknown one: raise it if a save takes longer than 30 s.
# After 70, 76 or a lost rank the job is requeued without the named host, at most DTRAIN_MAX_FAILURES (3) times in a row.
# In a job array %a in an argument is the task's number. docs/cluster.md describes arrays, limits and exit codes.
#SBATCH --job-name=dtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=dtrain-%j.log

bin= # make install writes the programs' folder here
module load dtrain 2>/dev/null || true
max_requeues=${DTRAIN_MAX_REQUEUES:-100} max_failures=${DTRAIN_MAX_FAILURES:-3}
case "$max_requeues:$max_failures" in
    :* | *: | *[!0-9:]*)
        echo "DTRAIN_MAX_REQUEUES and DTRAIN_MAX_FAILURES: expected numbers, found '$max_requeues' and '$max_failures'" >&2
        exit 64
        ;;
esac

# In a job array, the array's number alone would select all tasks.
id=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    args=("${@//%a/$SLURM_ARRAY_TASK_ID}")
else
    args=("$@")
fi
field() { scontrol show job "$id" 2>/dev/null | sed -n "s/^\(.* \)\{0,1\}$1=\([^ ]*\).*/\2/p" | head -1; }

# Slurm runs a copy of this script. "Command" is where it came from, with its arguments.
script=$(scontrol show job "$id" 2>/dev/null | sed -n 's/^ *Command=//p' | head -1)
if [ $# -gt 0 ]; then script=${script%" $*"}; fi
case $script in
/*) ;;
?*) script=$SLURM_SUBMIT_DIR/$script ;;
esac

if [ -n "${DTRAIN:-}" ] && ! { [ -f "$DTRAIN" ] && [ -x "$DTRAIN" ]; }; then
    echo "DTRAIN=$DTRAIN: expected the path of the program dtrain, found no such program" >&2
    exit 127
fi
# The program: $DTRAIN, the one installed or built with this script, the one in PATH, or the one in the folder the job was submitted from.
for dtrain in "${DTRAIN:-}" ${bin:+"$bin/dtrain"} ${script:+"${script%/*}/../dtrain"} "$(command -v dtrain)" "$SLURM_SUBMIT_DIR/dtrain" ''; do
    if [ -f "$dtrain" ] && [ -x "$dtrain" ]; then break; fi
done
if [ -z "$dtrain" ]; then
    echo "dtrain is not installed with ${script:-this script}, not in PATH and not in $SLURM_SUBMIT_DIR: run make there, load its module, or set DTRAIN=/path/to/dtrain" >&2
    exit 127
fi

# Older versions of Slurm do not set SLURM_JOB_END_TIME.
end=$(field EndTime)
case ${SLURM_JOB_END_TIME:-}$end in
[0-9]*-*T*) SLURM_JOB_END_TIME=$(date -d "$end" +%s) && export SLURM_JOB_END_TIME ;;
esac

# The part of the job log written by this start, which shows how it ended.
log=$(readlink "/proc/$$/fd/1") errors=$(readlink "/proc/$$/fd/2")
size_of() { if [ -f "$1" ]; then stat -c %s "$1"; else echo 0; fi; }
log_from=$(size_of "$log") errors_from=$(size_of "$errors")
added() {
    if [ -f "$log" ]; then tail -c "+$((log_from + 1))" "$log"; fi
    if [ -f "$errors" ] && [ "$errors" != "$log" ]; then tail -c "+$((errors_from + 1))" "$errors"; fi
}
mpirun ${SLURM_CPUS_PER_TASK:+--map-by "slot:PE=$SLURM_CPUS_PER_TASK"} "$dtrain" "${args[@]}" &
job=$!
trap 'kill -USR1 $job' USR1
wait $job
code=$?
while kill -0 $job 2>/dev/null; do # a signal ends the first wait
    wait $job
    code=$?
done

# Hosts reported as lost by this start, among the job's nodes. If every node is named, none is
# excluded.
lost_hosts() {
    local nodes named
    nodes=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null)
    named=$(added | sed -nE '
        s/.*srun: error: Node failure on ([^ ,]+).*/\1/p
        s/.*srun: error: ([^ :]+): tasks? [0-9,-]+: (Killed|Bus error|Segmentation fault|Aborted).*/\1/p
        s/.*Remote daemon: .* on node ([^ ]+).*/\1/p
        s/.*noticed that process rank .* on node ([^ ]+) exited on signal.*/\1/p
        s/^dtrain: \[rank [0-9]+ ([^]]+)\] error: .*; rank [0-9]+ on this host has not run.*/\1/p')
    if [ -z "$named" ] && [ "$code" = 70 ]; then
        named=$(added | sed -nE 's/^dtrain: \[rank [0-9]+ ([^]]+)\] error: .*/\1/p')
    elif [ -z "$named" ] && [ "$code" = 76 ]; then # after comm.timeout each live rank prints a line, so a silent host is lost
        named=$(added | sed -nE 's/^dtrain: \[rank [0-9]+ ([^].]+)[^]]*\] error: no progress for .*/\1/p' | sort -u)
        if [ -n "$named" ]; then named=$(grep -vxF "$named" <<<"$nodes"); fi
    fi
    named=$(echo "$named" | cut -d. -f1 | sort -u | grep -xF "$nodes")
    if [ "$(wc -w <<<"$named")" -lt "$(wc -w <<<"$nodes")" ]; then paste -sd, <<<"$named"; fi
}
# Hosts to exclude from now on, unless too few nodes of the partition would be left. Slurm excludes nodes of pending jobs only.
exclude() { # hosts
    local before left i
    before=$(field ExcNodeList)
    case $before in '' | '(null)') ;; *) set -- "$before,$1" ;; esac
    left=$(sinfo -h -N -r -p "${SLURM_JOB_PARTITION:-}" -o %N 2>/dev/null | sort -u | grep -cvxF "$(scontrol show hostnames "$1")")
    if [ "$left" -lt "${SLURM_JOB_NUM_NODES:-1}" ]; then
        echo "dtrain job $id: $1 not excluded: the partition has $left other nodes, the job needs ${SLURM_JOB_NUM_NODES:-1}"
        return
    fi
    for i in 1 2 3 4 5 6 7 8 9 10; do
        if scontrol update JobId="$id" ExcNodeList="$1" 2>/dev/null; then return; fi
        sleep 0.5
    done
    echo "dtrain job $id: cannot exclude $1 after $i attempts: scontrol update JobId=$id ExcNodeList=$1" >&2
}
requeue() { # why, hosts to exclude
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$max_requeues" ]; then
        echo "dtrain job $id: $1; not requeued: it was restarted ${SLURM_RESTART_COUNT:-0} times, at most $max_requeues are allowed (DTRAIN_MAX_REQUEUES)" >&2
        return
    fi
    case $(field JobState) in
    RUNNING | '') ;;
    *) return ;; # cancelled, or at its time limit
    esac
    echo "dtrain job $id: $1; requeued${2:+; lost $2}"
    trap '' TERM # Slurm ends this script when it requeues the job
    if ! scontrol requeue "$id"; then
        echo "dtrain job $id: scontrol requeue failed: submit the job again" >&2
    elif [ -n "$2" ]; then
        exclude "$2"
    fi
}
# A lost node or rank: the launcher's own code, or a signal's number above 128.
hosts=
case $code in
1 | 70 | 76 | 129 | 1[3-9][0-9] | 2[0-9][0-9]) hosts=$(lost_hosts) ;;
esac
case $code:$hosts in
75:*) requeue "stopped with a checkpoint or before its first step" ;;
70:* | 76:* | 129:* | 1[3-9][0-9]:* | 2[0-9][0-9]:* | 1:?*)
    n=0
    if [ -f "$log" ]; then n=$(sed -nE "s/^dtrain job $id: stopped .*/0/p; s/^dtrain job $id: failure ([0-9]+) in a row.*/\1/p" "$log" | tail -1); fi
    n=$((${n:-0} + 1))
    if [ "$n" -le "$max_failures" ]; then
        requeue "failure $n in a row, exit code $code" "$hosts"
    else
        echo "dtrain job $id: failure $n in a row, exit code $code; not requeued: at most $max_failures are allowed (DTRAIN_MAX_FAILURES)" >&2
    fi
    ;;
esac
exit "$code"
