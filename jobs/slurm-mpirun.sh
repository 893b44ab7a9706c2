#!/bin/bash
# Slurm where srun cannot start MPI programs (no PMIx): mpirun takes the nodes from Slurm. Submit with:
#   sbatch jobs/slurm-mpirun.sh input.ini [section.key=value ...]
# The signal goes to this script alone (B:), which hands it to mpirun, and mpirun to all ranks.
#SBATCH --job-name=dtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=dtrain-%j.log

module load dtrain 2>/dev/null || true
mpirun --map-by "slot:PE=$SLURM_CPUS_PER_TASK" dtrain "$@" &
job=$!
trap 'kill -USR1 $job' USR1
wait $job
code=$?
while kill -0 $job 2>/dev/null; do # a signal ends the first wait
    wait $job
    code=$?
done
if [ "$code" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
