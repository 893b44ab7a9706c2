#!/bin/bash
# e2e_readme.sh - runs every command of README.md and then of docs/first-run.md, as written and in order, in a new directory.
#
# Runs are made small through the files that these pages use: sizes in input.ini and in input/*.ini. Stand-ins in PATH replace
# what a test cannot have: package manager, download, schedulers, environment modules. `make test` is only inspected, because
# it would start this test. A command that is not in the list below fails, so every new command must be added to it.
. "$(dirname "$0")/e2e.sh"
top=$PWD fresh=$tmp/fresh
BUILD=$(realpath "${BUILD:-build/release}")
export RUN_TIMEOUT=600
COMMIT=$(sed -n 's/^#define BUILD_COMMIT "\(.*\)"/\1/p' "$BUILD/build_version.h") # with another one, everything would be linked again
export COMMIT
mkdir -p "$fresh/build" "$tmp/bin" "$tmp/home" "$tmp/submitted"
ln -s "$BUILD" "$fresh/build/release" # what is built already is taken, under the name that it has for a user
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD # make is started here as a user starts it

cp -r input jobs docs README.md "$fresh"
for entry in *; do [ -e "$fresh/$entry" ] || case $entry in build | runs | dtrain | dtrain-*) ;; *) ln -s "$top/$entry" "$fresh/$entry" ;; esac; done
smaller() {
    sed -i -E 's/^(hidden_size) = .*/\1 = 32/; s/^(intermediate_size) = .*/\1 = 64/; s/^(num_hidden_layers) = .*/\1 = 2/;
        s/^(max_steps) = .*/\1 = 4/; s/^(validation_steps) = .*/\1 = 2/; s/^(seq_len) = .*/\1 = 64/' "$@"
}
smaller "$fresh/input/demo.ini"
cat docs/*.md docs/*.md docs/*.md >"$tmp/book.txt"
export TEXT=$tmp/book.txt SETTINGS=run.max_steps=2 # for make demo and tools/chat.sh: another text, few steps

# A user's environment: what the pages say about mpirun must be enough. A scheduler's launcher needs no such permission.
env | sed -n "s/^\(OMPI_ALLOW[A-Z_]*\|OMPI_MCA_[a-z_]*\|PRTE_[A-Za-z_]*\)=\(.*\)/export \1='\2'/p" >"$tmp/cluster"
for name in $(env | sed -n 's/^\(OMPI_ALLOW[A-Z_]*\|OMPI_MCA_rmaps[a-z_]*\|OMPI_MCA_hwloc[a-z_]*\|OMPI_MCA_mpi_yield[a-z_]*\|PRTE_ALLOW[A-Z_]*\|PRTE_MCA_[rh][a-z_]*\)=.*/\1/p'); do
    unset "$name"
done

stand_in() { printf '#!/bin/bash\n%s\n' "$2" >"$tmp/bin/$1" && chmod +x "$tmp/bin/$1"; }
[ "$MPIRUN" = mpirun ] || stand_in mpirun "exec $MPIRUN \"\$@\""
stand_in apt-get '[ "$1" = update ] && exit; shift 2; for package; do command -v "$package" || [ "$package" = git ] || exit 1; done' # each is a program of the same name; git is not needed where an archive was unpacked
stand_in hf '[ "$1 $3" = "download --local-dir" ] && mkdir -p "$(dirname "$4")" && cp -r "$MODEL_TO_DOWNLOAD" "$4"'
stand_in srun 'while :; do case $1 in -*) shift ;; *) break ;; esac; done; exec mpirun -np 2 "$@"'
stand_in scontrol '[ "$1 $2" != "show job" ] || echo "   Command=$JOB_COMMAND"'
# A scheduler runs a copy of the script, elsewhere. The launcher of this machine has fewer cores than the script asks for.
scheduler='. "$CLUSTER"; cp "$script" "$SUBMITTED/job" && JOB_COMMAND=$(realpath "$script") SLURM_JOB_ID=1 SLURM_CPUS_PER_TASK=1 SLURM_SUBMIT_DIR=$PWD PBS_O_WORKDIR=$PWD \
    bash <(sed "s/\${SLURM_CPUS_PER_TASK:+--map-by [^}]*} *//; s/--map-by [^ ]* *//; s/PE=16//" "$SUBMITTED/job") "$@"'
stand_in sbatch "script=\$1; shift; $scheduler"
stand_in qsub "[ \"\$1\" = -v ] && export \"\$2\" && script=\$3 && shift 3; $scheduler"
export SUBMITTED=$tmp/submitted CLUSTER=$tmp/cluster MODEL_TO_DOWNLOAD=$tmp/model HOME=$tmp/home PATH=$tmp/bin:$PATH
module() { # of the modulefile only what README's commands need: PATH and DTRAIN_HOME
    case $1 in
    use) [ -d "$2" ] && modules=$2 ;;
    load) eval "$(sed -n 's/^prepend-path PATH *"\(.*\)"/PATH=\1:$PATH/p; s/^setenv \([A-Z_]*\) *"\(.*\)"/export \1=\2/p' "$modules/$2/"[0-9]*[0-9])" ;;
    esac
}

# The blocks: sh lines of commands (with their continuation lines), and files, named in their first line.
awk '/^```/ { kind = substr($0, 4); if (kind == "ini") first = 1; next }
     kind == "sh" { whole = whole $0; if (!sub(/\\$/, "", whole)) { print whole; whole = "" } next }
     kind == "ini" && first { sub(/^# */, ""); file = $0; print "@file " file; printf "" >file_of(); first = 0; next }
     kind == "ini" { print >file_of() }
     function file_of() { return DIR "/" file }' DIR="$tmp/submitted" README.md docs/first-run.md >"$tmp/commands"
grep -q '^@file input.ini$' "$tmp/commands" || not_ok "docs/first-run.md writes an input.ini" "it does not"
grep -nE '^    [^ ]' README.md docs/first-run.md >"$out" && not_ok "commands stand in blocks that say sh" "some are indented only"

cd "$fresh" || exit 1
n=0
while IFS= read -r line <&3; do
    [ -n "$line" ] || continue
    n=$((n + 1))
    name="command $n: ${line%%  *}"
    line=${line/run.max_steps=400/run.max_steps=6}
    case $line in
    "@file "*)
        cp "$tmp/submitted/${line#@file }" . && smaller "${line#@file }"
        ok "$name"
        continue
        ;;
    "make test"*) run 0 bash -c "make -n test | grep tests/run.sh" ;;
    "hf download"*) # a file of the right kind, made from existing ones
        ./dtrain-convert runs/demo "$tmp/model" >"$out" 2>&1
        run 0 bash -c "$line"
        ;;
    "./dtrain-plot"*)
        command -v gnuplot >/dev/null || { skip "$name" "no gnuplot"; continue; }
        run 0 bash -c "$line"
        ;;
    tensorboard*)
        command -v tensorboard >/dev/null || { skip "$name" "no tensorboard"; continue; }
        timeout 20 $line --inspect >"$out" 2>&1 # lists what it would serve, and leaves
        code=$?
        ;;
    python3*open_elsewhere.py*)
        python3 -c 'import torch, transformers' 2>/dev/null || { skip "$name" "no transformers"; continue; }
        run 0 bash -c "$line"
        ;;
    export* | module*)
        eval "$line" >"$out" 2>&1
        code=$?
        ;;
    apt-get* | make | make\ demo* | make\ install* | ./dtrain\ * | ./dtrain-data\ * | ./dtrain-generate\ * | ./dtrain-convert\ * | ./dtrain-info\ * | tools/chat.sh* | \
        mpirun\ -np\ [24]\ ./dtrain\ * | mpirun\ -np\ 4\ ./dtrain-generate\ * | echo\ * | sbatch\ * | qsub\ *) run 0 bash -c "$line" ;;
    *)
        not_ok "$name" "this test does not know how to run it"
        continue
        ;;
    esac
    expect_exit "$name" 0
    case $line in
    sbatch* | qsub*) expect_text "the job starts the program" 'step 4 of 4|steps? .*done|nothing left to do' ;;
    esac
done 3<"$tmp/commands"
expect "answers.jsonl has an answer" grep -q '"text"' answers.jsonl
expect "the demo drew its picture" test -s runs/demo/loss.png
expect "the installed program is the one in PATH" test "$(command -v dtrain)" = "$HOME/dtrain/bin/dtrain"
cd "$top" || exit 1
e2e_done
