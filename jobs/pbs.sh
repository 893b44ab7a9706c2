#!/bin/bash
# PBS: 2 nodes, 2 ranks a node with 16 threads each. Submit with:  qsub -v INPUT=input.ini jobs/pbs.sh
# PBS gives no early warning: run.time_limit makes dtrain save and leave (75) in time, and the job submits itself again.
#PBS -N dtrain
#PBS -l select=2:ncpus=32:mpiprocs=2:ompthreads=16
#PBS -l walltime=12:00:00
#PBS -j oe
#PBS -r y

cd "$PBS_O_WORKDIR" || exit 1
bin= # make install writes the programs' folder here
module load dtrain 2>/dev/null || true
# The program: $DTRAIN, the one installed with this script, the one in PATH, or the one in the folder the job was submitted from.
for dtrain in "${DTRAIN:-}" ${bin:+"$bin/dtrain"} "$(command -v dtrain)" "$PBS_O_WORKDIR/dtrain" ''; do
    if [ -f "$dtrain" ] && [ -x "$dtrain" ]; then break; fi
done
if [ -z "$dtrain" ]; then
    echo "dtrain is not in PATH and not in $PBS_O_WORKDIR: run make there, load its module, or set DTRAIN=/path/to/dtrain" >&2
    exit 127
fi

mpirun --map-by slot:PE=16 "$dtrain" "$INPUT" run.time_limit=42600
code=$?
if [ "$code" = 75 ]; then qsub -v INPUT="$INPUT" "$0"; fi
exit "$code"
