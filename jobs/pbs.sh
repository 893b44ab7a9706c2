#!/bin/bash
# PBS: 2 nodes, 2 ranks a node with 16 threads each. Submit with:  qsub -v INPUT=input.ini jobs/pbs.sh
# PBS gives no early warning: run.time_limit makes dtrain save and leave (75) in time, and the job submits itself again.
#PBS -N dtrain
#PBS -l select=2:ncpus=32:mpiprocs=2:ompthreads=16
#PBS -l walltime=12:00:00
#PBS -j oe
#PBS -r y

cd "$PBS_O_WORKDIR" || exit 1
module load dtrain 2>/dev/null || true
mpirun --map-by slot:PE=16 dtrain "$INPUT" run.time_limit=42600
code=$?
if [ "$code" = 75 ]; then qsub -v INPUT="$INPUT" jobs/pbs.sh; fi
exit "$code"
