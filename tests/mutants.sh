#!/bin/bash
# mutants.sh [FILE...] - is each wait and each staging copy of zero and model needed, and would a test notice if it were gone? For each call of
# event_wait, copy and stream_sync a build without it is made under build/mutants, and the programs below run on the queue device until one
# fails. Prints a line a call: killed by which program, or SURVIVED. Exit status: how many survived. Takes about half a minute a call.
set -u
cd "$(dirname "$0")/.." || exit 1
files=${*:-$(grep -lE 'ops->(event_wait|copy|stream_sync)\(' src/zero/*.c src/model/*.c)}
programs='test_model_step test_model_decode mpi_zero mpi_run mpi_checkpoint mpi_export mpi_generate'
tree=build/mutants
export DTRAIN_DEVICE=queue MPIRUN=${MPIRUN:-mpirun}
. tests/environment.sh

rm -rf $tree
mkdir -p $tree
git ls-files -z | xargs -0 cp --parents -t $tree
cd $tree || exit 1
build() { make -s BUILD=build/release programs $(for p in $programs; do echo build/release/tests/$p; done) >build.log 2>&1; }
survivors=0

verdict() { # prints who killed it
    build || { echo "killed by the compiler"; return; }
    for p in $programs; do
        for seed in 1 2 3; do
            launch=
            case $p in mpi_*) launch="$MPIRUN -np 2" ;; esac
            DTRAIN_QUEUE_SEED=$seed timeout 120 $launch build/release/tests/$p >test.log 2>&1 || { echo "killed by $p"; return; }
        done
    done
    echo SURVIVED
}

build || { tail -5 build.log; exit 70; }
for f in $files; do
    n=$(grep -oE 'ops->(event_wait|copy|stream_sync)\(' "$f" | wc -l)
    for k in $(seq "$n"); do
        cp "$f" saved.c
        at=$(grep -nE 'ops->(event_wait|copy|stream_sync)\(' "$f" | sed -n "${k}p" | cut -d: -f1)
        call=$(grep -oE 'ops->(event_wait|copy|stream_sync)\(' "$f" | sed -n "${k}p" | tr -d '(' | cut -d'>' -f2)
        perl -0pi -e "my \$n = 0; s/[\\w>-]+->ops->(?:event_wait|copy|stream_sync)(\\((?:[^()]++|(?1))*\\))/++\$n == $k ? 'DT_OK' : \$&/ge" "$f"
        v=$(verdict)
        printf '%-28s %-12s %s\n' "$f:$at" "$call" "$v"
        [ "$v" != SURVIVED ] || survivors=$((survivors + 1))
        cp saved.c "$f"
    done
done
exit $survivors
