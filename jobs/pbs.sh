#!/bin/bash
# PBS Pro, OpenPBS or Torque: 2 nodes, 2 ranks a node with 16 threads each. Submit with:  qsub -v INPUT=input.ini jobs/pbs.sh
# Settings go into ARGS, quoted as for a shell:  export INPUT=input.ini ARGS='optimizer.lr=1e-4 "run.output_dir=my runs/1"'; qsub -v INPUT,ARGS jobs/pbs.sh
# PBS gives no early warning: run.time_limit makes dtrain save and exit with 75 in time, and the job submits itself again.
# After 70, 76 or a lost rank it does so too, at most DTRAIN_MAX_FAILURES (3) times in a row. docs/cluster.md describes arrays, limits and exit codes.
# Torque has no select: replace that line by  #PBS -l nodes=2:ppn=32
#PBS -N dtrain
#PBS -l select=2:ncpus=32:mpiprocs=2:ompthreads=16
#PBS -l walltime=12:00:00
#PBS -j oe
#PBS -r y

cd "$PBS_O_WORKDIR" || exit 1
if [ -z "${INPUT:-}" ]; then
    echo "INPUT: expected a configuration file; submit with qsub -v INPUT=input.ini jobs/pbs.sh" >&2
    exit 64
fi
bin= # make install writes the programs' folder here
module load dtrain 2>/dev/null || true
max_requeues=${DTRAIN_MAX_REQUEUES:-100} max_failures=${DTRAIN_MAX_FAILURES:-3}
case "$max_requeues:$max_failures" in
    :* | *: | *[!0-9:]*)
        echo "DTRAIN_MAX_REQUEUES and DTRAIN_MAX_FAILURES: expected numbers, found '$max_requeues' and '$max_failures'" >&2
        exit 64
        ;;
esac
if [ -n "${DTRAIN:-}" ] && ! { [ -f "$DTRAIN" ] && [ -x "$DTRAIN" ]; }; then
    echo "DTRAIN=$DTRAIN: expected the path of the program dtrain, found no such program" >&2
    exit 127
fi
# The program: $DTRAIN, the one installed with this script, the one in PATH, or the one in the folder the job was submitted from.
for dtrain in "${DTRAIN:-}" ${bin:+"$bin/dtrain"} "$(command -v dtrain)" "$PBS_O_WORKDIR/dtrain" ''; do
    if [ -f "$dtrain" ] && [ -x "$dtrain" ]; then break; fi
done
if [ -z "$dtrain" ]; then
    echo "dtrain is not in PATH and not in $PBS_O_WORKDIR: run make there, load its module, or set DTRAIN=/path/to/dtrain" >&2
    exit 127
fi

# Of a job array: this task's number, for %a in INPUT and ARGS. A task that was submitted again has it in DTRAIN_TASK.
task=${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-${DTRAIN_TASK:-}}}
if ! words=$(xargs printf '%s\n' <<<"${ARGS:-}"); then
    echo "ARGS: expected settings quoted as for a shell, found: $ARGS" >&2
    exit 64
fi
args=("$INPUT")
if [ -n "${ARGS:-}" ]; then mapfile -t -O 1 args <<<"$words"; fi
if [ -n "$task" ]; then args=("${args[@]//%a/$task}"); fi

# The job's attributes. qstat wraps long lines and continues them after a tab; join them.
attributes=$(qstat -f "${PBS_JOBID:-}" 2>/dev/null | sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t//g')
attribute() { sed -n "s/^ *$1 = //p" <<<"$attributes" | head -1; }
seconds() { # [[days:]hours:]minutes:seconds, or seconds
    awk -F: '/^[0-9]+(:[0-9]+)*(\.[0-9]+)?$/ { d = NF > 3 ? $(NF - 3) : 0; h = NF > 2 ? $(NF - 2) : 0; m = NF > 1 ? $(NF - 1) : 0; print int(((d * 24 + h) * 60 + m) * 60 + $NF) }' <<<"$1"
}
walltime=$(attribute Resource_List.walltime)
total=$(seconds "$walltime")
total=${total:-$(seconds "${PBS_WALLTIME:-}")} # Torque
used=$(seconds "$(attribute resources_used.walltime)")
used=${used:-0}
if [ "$used" -lt "$SECONDS" ]; then used=$SECONDS; fi
case " ${ARGS:-}" in
*[\ \"\']run.time_limit=*) ;;
*)
    if [ -n "$total" ]; then
        limit=$((total - used - 30)) # leave 30 s for the end of the job
        args+=("run.time_limit=$((limit > 0 ? limit : 1))")
    else
        echo "dtrain job ${PBS_JOBID:-}: the wall time is unknown (no Resource_List.walltime in qstat -f, no PBS_WALLTIME): give run.time_limit in ARGS to save before the job ends" >&2
    fi
    ;;
esac

# Submit the job again with the same name, queue, account, resources and settings, and updated
# counts of starts and failures.
again() { # why, failures in a row
    local requeues=${DTRAIN_REQUEUES:-0} options=() nodes account project
    if [ "$requeues" -ge "$max_requeues" ]; then
        echo "dtrain job ${PBS_JOBID:-}: $1; not submitted again: it was submitted $requeues times, at most $max_requeues are allowed (DTRAIN_MAX_REQUEUES)" >&2
        return
    fi
    nodes=$(attribute Resource_List.select) account=$(attribute Account_Name) project=$(attribute project)
    if [ -n "$walltime" ]; then options+=(-l "walltime=$walltime"); fi
    if [ -n "$nodes" ]; then options+=(-l "select=$nodes"); else
        nodes=$(attribute Resource_List.nodes)
        if [ -n "$nodes" ]; then options+=(-l "nodes=$nodes"); fi
    fi
    if [ -n "${PBS_JOBNAME:-}" ]; then options+=(-N "$PBS_JOBNAME"); fi
    if [ -n "${PBS_QUEUE:-}" ]; then options+=(-q "$PBS_QUEUE"); fi
    if [ -n "$account" ]; then options+=(-A "$account"); fi
    case $project in '' | _pbs_project_default) ;; *) options+=(-P "$project") ;; esac
    export INPUT ARGS="${ARGS:-}" DTRAIN="${DTRAIN:-}" DTRAIN_TASK="$task" DTRAIN_REQUEUES=$((requeues + 1)) DTRAIN_FAILURES="$2" \
        DTRAIN_MAX_REQUEUES="$max_requeues" DTRAIN_MAX_FAILURES="$max_failures"
    if qsub "${options[@]}" -v INPUT,ARGS,DTRAIN,DTRAIN_TASK,DTRAIN_REQUEUES,DTRAIN_FAILURES,DTRAIN_MAX_REQUEUES,DTRAIN_MAX_FAILURES "$0"; then
        echo "dtrain job ${PBS_JOBID:-}: $1; submitted again"
    else
        echo "dtrain job ${PBS_JOBID:-}: $1; qsub failed: submit the job again" >&2
    fi
}
mpirun --map-by slot:PE=16 "$dtrain" "${args[@]}"
code=$?
case $code in
75) again "stopped with a checkpoint or before its first step" 0 ;;
70 | 76 | 129 | 1[3-9][0-9] | 2[0-9][0-9]) # a fault, a lost host, or a killed rank
    n=$((${DTRAIN_FAILURES:-0} + 1))
    if [ "$n" -le "$max_failures" ]; then
        again "failure $n in a row, exit code $code" "$n"
    else
        echo "dtrain job ${PBS_JOBID:-}: failure $n in a row, exit code $code; not submitted again: at most $max_failures are allowed (DTRAIN_MAX_FAILURES)" >&2
    fi
    ;;
esac
exit "$code"
