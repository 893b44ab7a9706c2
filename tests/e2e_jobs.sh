#!/bin/bash
# e2e_jobs.sh - job scripts with stand-ins for the schedulers: arrays, paths, arguments, requeues, wall times. tests/full_slurm.sh uses a
# real Slurm.
# QUICK:
. "$(dirname "$0")/e2e.sh"
mkdir -p "$tmp/path" "$tmp/my jobs" "$tmp/spool"
stand_in() { printf '#!/bin/bash\n%s\n' "$2" >"$tmp/path/$1" && chmod +x "$tmp/path/$1"; }
stand_in srun 'echo "launched $*"; while :; do case $1 in -*) shift ;; *) break ;; esac; done; exec "$@"'
stand_in mpirun 'echo "launched $*"; while :; do case $1 in --map-by) shift 2 ;; *) break ;; esac; done; exec "$@"'
stand_in sinfo 'printf "node%s\n" ${CLUSTER:-1 2 3 4}'
# "show job 12" is every task of array 12, as Slurm answers for the task whose own id is 12.
stand_in scontrol 'show() { printf "JobId=%s JobName=dtrain\n   JobState=%s Reason=None\n   StartTime=2040-01-01T00:00:00 EndTime=2040-01-01T01:00:00 Deadline=N/A\n   ReqNodeList=(null) ExcNodeList=%s\n   Command=%s\n" "$1" "${STATE:-RUNNING}" "${EXCLUDED:-(null)}" "$JOB_COMMAND"; }
case "$1 $2" in
"show job") show "$3"; if [ "$3" = 12 ] && [ -n "$SLURM_ARRAY_JOB_ID" ]; then show other; fi ;;
"show hostnames") case $3 in "node[1-2]") printf "node1\nnode2\n" ;; *) tr , "\n" <<<"$3" ;; esac ;;
*) echo "scontrol $*"; [ "$1:${REQUEUE_FAILS:-}" != requeue:1 ] ;;
esac'
stand_in qsub '[ -z "$QSUB_FAILS" ] || exit 1; echo "qsub $* INPUT=$INPUT ARGS=$ARGS TASK=$DTRAIN_TASK REQUEUES=$DTRAIN_REQUEUES FAILURES=$DTRAIN_FAILURES"'
stand_in qstat 'printf "%s\n" "$QSTAT"'
printf '#!/bin/bash\nprintf "started"; printf " <%%s>" "$@"; echo " end ${SLURM_JOB_END_TIME:-}"\n[ -z "$SAYS" ] || echo "$SAYS" >&2\nexit ${CODE:-0}\n' >"$tmp/dtrain"
chmod +x "$tmp/dtrain"

# script, arguments: as the scheduler runs its copy; $log keeps what earlier starts have said
log=$tmp/job.log
job() {
    cp "jobs/$1" "$tmp/spool/job"
    (cd "$tmp" && PATH=$tmp/path:$PATH SLURM_JOB_ID=12 SLURM_CPUS_PER_TASK="${CPUS-2}" SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST='node[1-2]' SLURM_SUBMIT_DIR=$tmp PBS_O_WORKDIR=$tmp \
        PBS_JOBID=7.server bash "$tmp/spool/job" "${@:2}") >>"$log" 2>&1
    code=$?
    cp "$log" "$out"
}
fresh() { rm -f "$log"; job "$@"; }

expect "the two Slurm scripts differ in the launcher alone" sh -c \
    "[ \"\$(sed '1,/^bin=/d; /^srun/d' jobs/slurm.sh)\" = \"\$(sed '1,/^bin=/d; /^mpirun/d' jobs/slurm-mpirun.sh)\" ]"
for script in slurm.sh slurm-mpirun.sh; do
    export DTRAIN="" JOB_COMMAND="my jobs/$script in put.ini x=\"q\""
    mkdir -p "$tmp/my jobs" && ln -sf ../dtrain "$tmp/my jobs/dtrain"
    JOB_COMMAND="my jobs/jobs/$script in put.ini x=\"q\"" fresh $script "in put.ini" 'x="q"'
    expect_text "$script: folders with blanks, a relative script, arguments" '^started <in put.ini> <x="q">'
    expect_text "$script: the job's end reaches the program" "end $(date -d 2040-01-01T01:00:00 +%s)\$"
    export DTRAIN=$tmp/dtrain CODE=75
    SLURM_ARRAY_JOB_ID=12 SLURM_ARRAY_TASK_ID=3 fresh $script run-%a.ini run.output_dir=runs/%a
    expect_text "$script: an array task has its own arguments" '^started <run-3.ini> <run.output_dir=runs/3>'
    expect_text "$script: and is requeued without the others" '^scontrol requeue 12_3$'
    expect_exit "$script: with the program's code" 75
    CPUS= fresh $script x.ini
    expect "$script: no --cpus-per-task: the launcher gets no empty number" sh -c "grep -q '^launched' '$out' && ! grep -qE '^launched.*(PE=|cpus-per-task=)( |\$)' '$out'"
    REQUEUE_FAILS=1 prints "$script: a requeue that fails is reported" 'job 12: scontrol requeue failed: submit the job again' fresh $script x.ini
    DTRAIN_MAX_REQUEUES=2 SLURM_RESTART_COUNT=2 prints "$script: the number of restarts is bounded" 'not requeued: it was restarted 2 times, at most 2' fresh $script x.ini
    expect "$script: and no requeue is asked for" sh -c "! grep -q 'scontrol requeue' '$out'"
    STATE=CANCELLED fresh $script x.ini
    expect "$script: a cancelled job stays so" sh -c "! grep -q 'scontrol requeue' '$out'"
    INPUT= ends_saying "pbs.sh: INPUT is missing" 64 'INPUT: expected a configuration file' fresh pbs.sh
for CODE in 0 1 64 65 71 74; do
        fresh $script x.ini
        expect "$script: no requeue after $CODE" sh -c "[ $code = $CODE ] && ! grep -q 'scontrol requeue' '$out'"
    done
    for CODE in 70 76 137 139 143 205; do
        prints "$script: requeued after $CODE" '^scontrol requeue 12$' fresh $script x.ini
    done
    CODE=76 SAYS='dtrain: [rank 0 node1.cluster] error: no progress for 9 s (comm.timeout): host node1.cluster, step 3'
    export SAYS
    EXCLUDED=node4 fresh $script x.ini
    expect "$script: too few nodes left: none is excluded" grep -q '^scontrol requeue 12$' "$out"
    CLUSTER="1 2 3 4 5" EXCLUDED=node4 fresh $script x.ini
    expect_text "$script: a host that did not answer is excluded, too" '^scontrol update JobId=12 ExcNodeList=node4,node2$'
    SAYS='srun: error: node2: task 1: Killed' CODE=137
    prints "$script: the host of a killed rank is excluded" '^scontrol update JobId=12 ExcNodeList=node2$' fresh $script x.ini
    CLUSTER="1 2" prints "$script: unless the job would wait for ever" 'node2 not excluded: the partition has 1 other nodes, the job needs 2' fresh $script x.ini
    SAYS='dtrain: [rank 2 node2] error: CUDA: an illegal memory access was encountered' CODE=70
    prints "$script: the host that failed is excluded" '^scontrol update JobId=12 ExcNodeList=node2$' fresh $script x.ini
    SAYS=
    job $script x.ini
    job $script x.ini
    prints "$script: failures in a row are bounded" 'failure 4 in a row, exit code 70; not requeued: at most 3' job $script x.ini
    CODE=75 job $script x.ini
    CODE=70 job $script x.ini
    is "$script: a stop with a checkpoint ends the row" "$(grep -o 'failure . in a row' "$log" | tail -1)" "failure 1 in a row"
done

# PBS Pro and OpenPBS break long lines and continue after a tab; Torque has nodes, and Walltime.Remaining.
pro=$'Job Id: 7.server\n    Job_Name = dtrain\n    resources_used.walltime = 00:00:40\n    Account_Name = chem\n    Resource_List.nodect = 2\n    Resource_List.select = 2:ncpus=32:mpiprocs=2:ompthreads=16:mem=\n\t100gb\n    Resource_List.walltime = 02:00:00\n    project = _pbs_project_default'
torque=$'Job Id: 7.server\n    Job_Name = dtrain\n    Resource_List.nodes = 2:ppn=32\n    Resource_List.walltime = 1:02:00:00\n    Walltime.Remaining = 93600'
export QSTAT=$pro INPUT="my input.ini" ARGS='optimizer.lr=1e-4 "run.output_dir=my runs/1"' CODE=75 SAYS= DTRAIN=$tmp/dtrain
PBS_QUEUE=long fresh pbs.sh
expect_text "pbs.sh: the wall time of qsub is the limit" '^started <my input.ini> <optimizer.lr=1e-4> <run.output_dir=my runs/1> <run.time_limit=7130>'
expect_text "pbs.sh: submitted again as it was" '^qsub -l walltime=02:00:00 -l select=2:ncpus=32:mpiprocs=2:ompthreads=16:mem=100gb -q long -A chem -v INPUT,ARGS.* INPUT=my input.ini ARGS=optimizer.lr=1e-4 "run.output_dir=my runs/1" .*REQUEUES=1 FAILURES=0$'
QSTAT=$torque prints "pbs.sh, Torque: days" 'run.time_limit=935[0-7][0-9]>' fresh pbs.sh
expect_text "pbs.sh, Torque: nodes" '^qsub -l walltime=1:02:00:00 -l nodes=2:ppn=32 '
QSTAT= PBS_WALLTIME=3600 prints "pbs.sh, Torque: the limit in the environment" 'run.time_limit=35(70|69)>' fresh pbs.sh
QSTAT= prints "pbs.sh: an unknown limit is reported" 'the wall time is unknown' fresh pbs.sh
ARGS="run.time_limit=60" prints "pbs.sh: a limit in ARGS is kept" '^started <my input.ini> <run.time_limit=60> end' fresh pbs.sh
ARGS='"open' ends "pbs.sh: an open quote in ARGS" 64 fresh pbs.sh
PBS_ARRAY_INDEX=4 INPUT=run-%a.ini ARGS= prints "pbs.sh: an array task" '^started <run-4.ini> <run.time_limit' fresh pbs.sh
expect_text "pbs.sh: keeps its number" 'INPUT=run-%a.ini ARGS= TASK=4 '
DTRAIN_MAX_REQUEUES=5 DTRAIN_REQUEUES=5 prints "pbs.sh: the number of submissions is bounded" 'not submitted again: it was submitted 5 times' fresh pbs.sh
QSUB_FAILS=1 prints "pbs.sh: a qsub that fails is reported" 'qsub failed: submit the job again' fresh pbs.sh
expect "pbs.sh: and not as a success" sh -c "! grep -q 'submitted again' '$out'"
CODE=76 DTRAIN_FAILURES=1 prints "pbs.sh: failures are counted" 'failure 2 in a row, exit code 76; submitted again' fresh pbs.sh
CODE=137 DTRAIN_FAILURES=3 prints "pbs.sh: and bounded" 'failure 4 in a row, exit code 137; not submitted again' fresh pbs.sh
for CODE in 0 1 64 65 71 74; do
    fresh pbs.sh
    expect "pbs.sh: not submitted again after $CODE" sh -c "[ $code = $CODE ] && ! grep -q '^qsub' '$out'"
done
for script in slurm.sh slurm-mpirun.sh pbs.sh; do
    DTRAIN=$tmp/nothing ends_saying "$script: DTRAIN names no program" 127 "DTRAIN=$tmp/nothing: expected the path of the program" fresh $script x.ini
    DTRAIN_MAX_REQUEUES=abc ends_saying "$script: a bound that is no number" 64 "expected numbers, found 'abc' and '3'" fresh $script x.ini
done
e2e_done
