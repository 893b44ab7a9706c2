#!/bin/bash
# Slurm: a server of OpenAI's API (docs/serving.md). Submit with:  sbatch jobs/serve.sh MODEL [options of dtrain-generate]
# Its address is in the job's log: open a tunnel with  ssh -L 8000:NODE:8000 LOGIN-NODE. If serve.keys exists in the folder the job was
# submitted from, requests need one of its keys. The signal before the time limit lets answers in progress end.
#SBATCH --job-name=dtrain-serve
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=8:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --output=dtrain-serve-%j.log

bin= # make install writes the programs' folder here
module load dtrain 2>/dev/null || true
# The program: the one installed with this script, the one in PATH, or the one in the folder the job was submitted from.
for program in ${bin:+"$bin/dtrain-generate"} "$(command -v dtrain-generate)" "$SLURM_SUBMIT_DIR/dtrain-generate" ''; do
    if [ -f "$program" ] && [ -x "$program" ]; then break; fi
done
if [ -z "$program" ]; then
    echo "dtrain-generate is not in PATH and not in $SLURM_SUBMIT_DIR: run make there, or load its module" >&2
    exit 127
fi
keys=$SLURM_SUBMIT_DIR/serve.keys
[ -f "$keys" ] && set -- --api-key-file "$keys" "$@"
srun --mpi=pmix ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "$program" --serve "$(hostname):${PORT:-8000}" "$@" &
job=$!
trap 'kill -USR1 $job' USR1
wait $job
code=$?
while kill -0 $job 2>/dev/null; do # a signal ends the first wait
    wait $job
    code=$?
done
exit $code
