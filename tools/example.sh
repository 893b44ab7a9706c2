# example.sh - sourced by the examples in this folder (demo.sh, chat.sh, arithmetic.sh, agent.sh,
# align.sh, recommend.sh, see.sh). NP: number of ranks. All except demo.sh, which trains as
# input/demo.ini specifies, also use RUNS, the folder for runs and data, and SETTINGS, additional
# section.key=value settings of all trainings.
set -eu
cd "$(dirname "$0")/.."
np=${NP:-2} runs=${RUNS:-runs} settings=${SETTINGS:-}
common= # settings of all trainings of the example
. tests/environment.sh
unset OMP_NUM_THREADS # the cores are shared among the ranks by run.threads

say() { printf '\n== %s\n' "$1"; }
train() { # RUN CONFIGURATION SETTINGS...: from scratch
    local run=$1 config=$2
    shift 2
    rm -rf "${runs:?}/$run"
    $MPIRUN -np "$np" ./dtrain "input/$config.ini" run.output_dir="$runs/$run" $common "$@" $settings
}
