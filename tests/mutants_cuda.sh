#!/bin/bash
# mutants_cuda.sh [FILE...] - is each barrier, wait, shuffle and guard of the CUDA kernels needed, and would a test on the simulator of CUDA
# notice if it were gone? In one build under build/mutants_cuda each of them in cuda/ (or in FILE...) is left out when DTRAIN_MUTANT is its number:
#
#   __syncthreads, __syncwarp, copy_async_commit, copy_async_wait   are not there
#   a shuffle                                                      reads its own lane (__shfl_sync: the lane beside)
#   copy_async_16 and _8                                           copy what they should fill with zeros
#   if (...) return;                                               does not return (but where it asks for a template's constant)
#
# For each number the tests of that file's operations run until one fails, on the simulator and on the one that looks for races. Prints a line
# for each: killed by which test, or SURVIVED. Exit status: how many survived. MUTANTS="3 17": those numbers alone.
set -u
cd "$(dirname "$0")/.." || exit 1
files=${*:-$(ls cuda/*.cu cuda/*.cuh | grep -v '/ptx.cuh')}
tree=build/mutants_cuda
. tests/environment.sh

rm -rf $tree/src $tree/tests $tree/include $tree/cuda
mkdir -p $tree
git ls-files -z | xargs -0 cp --parents -t $tree
cd $tree || exit 1
cat >mutant.h <<'END'
#include <stdlib.h>
static const int mutant_chosen = getenv("DTRAIN_MUTANT") ? atoi(getenv("DTRAIN_MUTANT")) : 0;
static inline bool mutant(int number) { return number == mutant_chosen; }
END
# Prints "N FILE FUNCTION WHAT" for each.
perl -0777 -i -ne '
    BEGIN { $n = 0 }
    my $text = $_;
    my $note = sub {
        my ($at, $what) = @_;
        my ($in) = substr($text, 0, $at) =~ /.*^(?:template[^\n]*>\s+)?(?:__global__|__device__|static)\b[^;={}]*?\b(?!__launch_bounds__)(\w+)\(/ms;
        $n++;
        print STDERR "$n $ARGV ", $in // "-", " $what\n";
        return $n;
    };
    s{(__sync(?:threads|warp)|copy_async_commit|copy_async_wait)((?:<[^;()]*>)?\(\))(?=;)|
      (__shfl_(\w*)sync|copy_async_(?:8|16))(\((?:[^()]++|(?5))*\))|
      \bif[ ](?!\(!?[A-Z]+\))(\((?:[^()]++|(?6))*\))[ ]return;}{
        if ($1) {
            "(mutant(" . $note->($-[0], $1) . ") ? (void)0 : $1$2)";
        } elsif ($6) {
            "if (!mutant(" . $note->($-[0], "return") . ") && $6) return;";
        } else {
            my ($name, $kind, $call, $at) = ($3, $4, $5, $-[0]);
            my ($before, $last) = $call =~ /^\((.*),\s*((?:[^(),]++|(\((?:[^()]++|(?3))*\)))+)\)$/s;
            my $m = $note->($at, $name);
            my $other = $name =~ /copy/ ? "true" : $kind eq "" ? "($last) ^ 1" : "0";
            "$name($before, (mutant($m) ? $other : ($last)))";
        }
    }gex;
    print' $files 2>list || exit 70
make -s -j2 BUILD=build/release CUDA=0 SIM_FLAGS="-O2 -g -march=native -I. -include mutant.h" cudasim \
    $(ls tests/test_device_*.c | sed 's|\(.*\)\.c|build/release/\1|') >build.log 2>&1 || { tail -5 build.log; exit 70; }

# The quickest first; what only an order shows, last.
tests_of() { # FILE
    case $1 in
    */attention*) echo "cudasim:attention cudasim_races:attention" ;;
    */classifier*) echo "cudasim_races:classifier" ;;
    */optimizer*) echo "cudasim_races:optimizer" ;;
    */tokens*) echo "cudasim:tokens cudasim_races:tokens" ;;
    */product*) echo "cudasim:epilogue cudasim_races:epilogue cudasim:matmul" ;;
    */sums*) echo "cudasim_races:layers cudasim_races:optimizer cudasim:epilogue" ;;
    *) echo "cudasim_races:layers cudasim_races:classifier cudasim_races:optimizer" ;;
    esac
}
run() { DTRAIN_DEVICE=${1%:*} timeout 1200 build/release/tests/test_device_${1#*:} >test.log 2>&1; } # DEVICE:TEST
verdict() { # FILE
    local t
    for t in $(tests_of "$1"); do
        run "$t" && continue
        if [ $? = 124 ]; then echo "killed by $t, which hangs"; else echo "killed by $t$(grep -qa 'a race at' test.log && echo ', a race')"; fi
        return
    done
    echo SURVIVED
}
if [ -z "${MUTANTS:-}" ]; then
    for t in $(for f in $files; do tests_of "$f"; done | tr ' ' '\n' | sort -u); do
        DTRAIN_MUTANT= run "$t" || { echo "$t fails with nothing left out: see $tree/test.log"; exit 70; }
    done
fi
survivors=0
while read -r number place in name; do
    [[ -z ${MUTANTS:-} || " $MUTANTS " == *" $number "* ]] || continue
    v=$(DTRAIN_MUTANT=$number verdict "$place" </dev/null)
    printf '%3d  %-26s %-28s %-18s %s\n' "$number" "$place" "$in" "$name" "$v"
    [ "$v" != SURVIVED ] || survivors=$((survivors + 1))
done <list
exit $survivors
