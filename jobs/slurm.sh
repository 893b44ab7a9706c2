#!/bin/bash
# Slurm: one rank for each socket, with all its cores. Submit with:  sbatch jobs/slurm.sh input.ini [section.key=value ...]
# Two minutes before the time limit every rank gets USR1: dtrain saves and leaves with 75, and the job puts itself back into the queue.
# With checkpoint.resume = auto (the default) it continues where it stopped, on whatever nodes it gets.
#SBATCH --job-name=dtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=dtrain-%j.log

bin= # make install writes the programs' folder here
module load dtrain 2>/dev/null || true
# The program: $DTRAIN, the one installed or built with this script, the one in PATH, or the one in the folder the job was submitted from.
script=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Command=\([^ ]*\).*/\1/p')
for dtrain in "${DTRAIN:-}" ${bin:+"$bin/dtrain"} ${script:+"${script%/*}/../dtrain"} "$(command -v dtrain)" "$SLURM_SUBMIT_DIR/dtrain" ''; do
    if [ -f "$dtrain" ] && [ -x "$dtrain" ]; then break; fi
done
if [ -z "$dtrain" ]; then
    echo "dtrain is not beside ${script:-this script}, not in PATH and not in $SLURM_SUBMIT_DIR: run make there, load its module, or set DTRAIN=/path/to/dtrain" >&2
    exit 127
fi

# dtrain saves before the job's end where it knows that; older versions of Slurm do not say it in the environment.
end=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* EndTime=\([0-9T:-]*\).*/\1/p')
if [ -z "${SLURM_JOB_END_TIME:-}" ] && [ -n "$end" ]; then
    SLURM_JOB_END_TIME=$(date -d "$end" +%s) && export SLURM_JOB_END_TIME
fi
srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" "$dtrain" "$@"
code=$?
if [ "$code" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
