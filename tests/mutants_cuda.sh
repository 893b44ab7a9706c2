#!/bin/bash
# mutants_cuda.sh [FILE...] - would a test on the simulator of CUDA notice if a line of the CUDA device were wrong? In one build under
# build/mutants_cuda each of these in cuda/ (or in FILE...) is made wrong when DTRAIN_MUTANT is its number:
#
#   barrier     __syncthreads, __syncwarp, copy_async_commit, copy_async_wait are not there
#   shuffle     reads its own lane (__shfl_sync: the lane beside)
#   mask        of a shuffle or vote: lane 0 is left out
#   copy        copy_async_16 and _8 copy what they should fill with zeros
#   guard       if (...) return; or continue; goes on (but where it asks for a template's constant)
#   accumulate  a sum that should be added to is overwritten, and the other way round
#   event       is not recorded, or nobody waits for it, or for the stream
#   kind        a copy goes from device to device, whatever it was
#   stride      the distance of rows is 8 elements more
#   fragment    the place of a lane in a fragment is that of its neighbour
#   reuse       what comes in for the next turn is put where this one reads
#
# For each number the tests of that file's operations run until one fails, on the simulator and on the one that looks for races. Prints a line
# for each: killed by which test, or SURVIVED. Exit status: how many survived. MUTANTS="3 17": those numbers alone; EVERY=10: each tenth;
# JOBS=8: as many at a time (as there are cores otherwise).
set -u
cd "$(dirname "$0")/.." || exit 1
files=${*:-$(echo cuda/*.cu cuda/[^p]*.cuh cuda/p[^t]*.cuh cuda/device.c cuda/nccl.c)} # ptx.cuh has a twin
tree=build/mutants_cuda
. tests/environment.sh

rm -rf $tree/src $tree/tests $tree/include $tree/cuda
mkdir -p $tree
git ls-files -z | xargs -0 cp --parents -t $tree
cd $tree || exit 1
cat >cuda/mutant.h <<'END_OF_HEADER'
#ifndef MUTANT_H
#define MUTANT_H
#include <stdlib.h>
#ifdef __cplusplus
static const int mutant_chosen = getenv("DTRAIN_MUTANT") ? atoi(getenv("DTRAIN_MUTANT")) : 0;
static inline int mutant(int number) { return number == mutant_chosen; }
#else
static inline int mutant(int number) { return getenv("DTRAIN_MUTANT") && number == atoi(getenv("DTRAIN_MUTANT")); }
#endif
#endif
END_OF_HEADER
# Prints "N FILE FUNCTION CLASS" for each.
perl -0777 -i -ne '
    BEGIN { $n = 0 }
    my $text = $_;
    my $note = sub {
        my ($at, $what) = @_;
        my ($in) = substr($text, 0, $at) =~ /.*^(?:template[^\n]*>\s+)?(?:__global__|__device__|static|dt_err)\b[^;={}]*?\b(?!__launch_bounds__)(\w+)\(/ms;
        $n++;
        print STDERR "$n $ARGV ", $in // "-", " $what\n";
        return "mutant($n)";
    };
    s{(?<comment>/\*.*?\*/|//[^\n]*)|
      (?<barrier>(?:__sync(?:threads|warp)|copy_async_commit|copy_async_wait)(?:<[^;()]*>)?\(\))(?=;)|
      (?<vote>__(?:any|all|ballot)_sync\()0xffffffffu|
      (?<call>__shfl_(?<kind>\w*)sync|copy_async_(?:8|16))(?<args>\((?:[^()]++|(?&args))*\))|
      \bif[ ](?!\(!?[A-Z]+\))(?<if>\((?:[^()]++|(?&if))*\))[ ](?<leave>return|continue);|
      (?<flag>\b(?:(?:mm->|f->)?accumulate|add_to_dx))(?=[ ]\?)|
      \bif[ ]\((?<flag_if>accumulate|add_to_dx)\)|
      (?<event>\bcuda(?:EventRecord|StreamWaitEvent|StreamSynchronize|EventSynchronize)(?<what>\((?:[^()]++|(?&what))*\)))|
      (?<event_op>\bops->event_(?:wait|record)\(comm->dev,[ ]t->free,[ ]stream\))|
      (?<default>\bcudaMemcpyDefault\b)|
      \*[ ](?<stride>(?:\w+(?:\.|->))*(?:\w+_)?ld[abcd]?)\b(?![(<])|
      (?<lane>\blane[ ][/%][ ](?:2|4|8|16)\b)|
      \bwhich[ ]\^[ ]1\b}{
        if ($+{comment}) {
            $+{comment};
        } elsif ($+{barrier}) {
            my $code = $+{barrier};
            "(" . $note->($-[0], "barrier") . " ? (void)0 : $code)";
        } elsif ($+{vote}) {
            my $code = $+{vote};
            "$code(" . $note->($-[0], "mask") . " ? 0xfffffffeu : 0xffffffffu)";
        } elsif ($+{if}) {
            my ($if, $leave) = ($+{if}, $+{leave});
            "if (!" . $note->($-[0], "guard") . " && $if) $leave;";
        } elsif ($+{flag}) {
            my $flag = $+{flag};
            "($flag != " . $note->($-[0], "accumulate") . ")";
        } elsif ($+{flag_if}) {
            my $flag = $+{flag_if};
            "if ($flag != " . $note->($-[0], "accumulate") . ")";
        } elsif ($+{event}) {
            my $code = $+{event};
            "(" . $note->($-[0], "event") . " ? cudaSuccess : $code)";
        } elsif ($+{event_op}) {
            my $code = $+{event_op};
            "(" . $note->($-[0], "event") . " ? DT_OK : $code)";
        } elsif ($+{default}) {
            "(" . $note->($-[0], "kind") . " ? cudaMemcpyDeviceToDevice : cudaMemcpyDefault)";
        } elsif ($+{stride}) {
            my $ld = $+{stride};
            "* ($ld + 8 * " . $note->($-[0], "stride") . ")";
        } elsif ($+{lane}) {
            my $lane = $+{lane};
            "(($lane) ^ " . $note->($-[0], "fragment") . ")";
        } elsif ($+{call}) {
            my ($name, $kind, $call, $at) = ($+{call}, $+{kind} // "", $+{args}, $-[0]);
            my ($before, $last) = $call =~ /^\((.*),\s*((?:[^(),]++|(\((?:[^()]++|(?3))*\)))+)\)$/s;
            my $other = $name =~ /copy/ ? "true" : $kind eq "" ? "($last) ^ 1" : "0";
            my $m = $note->($at, $name =~ /copy/ ? "copy" : "shuffle");
            if ($name =~ /shfl/) {
                my $mask = $note->($at, "mask");
                $before =~ s/^0xffffffffu/($mask ? 0xfffffffeu : 0xffffffffu)/;
            }
            "$name($before, ($m ? $other : ($last)))";
        } else {
            "which ^ !" . $note->($-[0], "reuse");
        }
    }gesx;
    print "#include \"mutant.h\"\n$_"' $files 2>list || exit 70
tests=(tests/test_device_*.c tests/mpi_comm.c)
jobs=${JOBS:-$(nproc)}
make -s -j"$jobs" BUILD=build/release CUDA=0 SIM_FLAGS="-O2 -g -march=native" programs cudasim $(printf "build/release/%s " "${tests[@]%.c}") >build.log 2>&1 ||
    { tail -5 build.log; exit 70; }

# The quickest first; what only an order shows, last.
tests_of() { # FILE
    case $1 in
    */device.c) echo "cudasim_races:training" ;;
    */nccl*) echo "nccl:mpi_comm" ;;
    */attention_turn*) echo "cudasim:test_device_attention_library cudasim_races:test_device_attention_library" ;;
    */attention*) echo "cudasim:test_device_attention cudasim_races:test_device_attention" ;;
    */classifier*) echo "cudasim_races:test_device_classifier" ;;
    */optimizer*) echo "cudasim_races:test_device_optimizer" ;;
    */tokens*) echo "cudasim:test_device_tokens cudasim_races:test_device_tokens" ;;
    */patches*) echo "cudasim:test_device_patches cudasim_races:test_device_patches" ;;
    */heads*) echo "cudasim:test_device_heads cudasim_races:test_device_heads" ;;
    */product_stored* | */stored*) echo "cudasim:test_device_scaled cudasim_races:test_device_scaled" ;;
    */product_int8*) echo "cudasim:test_device_int8 cudasim_races:test_device_int8" ;;
    */product*) echo "cudasim:test_device_epilogue cudasim_races:test_device_epilogue cudasim:test_device_matmul" ;;
    */sums*) echo "cudasim_races:test_device_layers cudasim_races:test_device_optimizer cudasim:test_device_epilogue" ;;
    *) echo "cudasim_races:test_device_layers cudasim_races:test_device_classifier cudasim_races:test_device_optimizer" ;;
    esac
}
# Two ranks with all states in host memory, which they save, too.
training() {
    . tests/e2e.sh
    . tests/train_common.sh
    make_data || exit 1
    train 2 run run.max_steps=2 batch.train_batch_size=2 precision.dtype=bf16 zero.stage=3 zero.offload_optimizer=cpu zero.offload_param=cpu \
        checkpoint.async=true checkpoint.save_steps=1
    cat "$out"
    exit "$code"
}
# One test that fails is enough; what comes behind it may wait for a lock that it held.
until_failure() { # LOG COMMAND...
    local log=$1 pid
    shift
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        if grep -qsa '^\[  FAILED  \]' "$log"; then pkill -KILL -P $pid; fi
        sleep 0.2
    done
    { wait $pid; } 2>/dev/null
}
run() { # DEVICE:TEST LOG
    local device=${1%:*} test=${1#*:}
    case $1 in
    *:training) (DTRAIN_DEVICE=$device training) >"$2" 2>&1 ;;
    nccl:*) DTRAIN_DEVICE=cudasim_races DTRAIN_COMM=nccl timeout 1200 $MPIRUN -np 2 build/release/tests/"$test" >"$2" 2>&1 ;;
    *) DTRAIN_DEVICE=$device until_failure "$2" timeout 1200 build/release/tests/"$test" ;;
    esac
}
verdict() { # NUMBER FILE
    local t log=log.$1
    for t in $(tests_of "$2"); do
        run "$t" "$log" && continue
        if [ $? = 124 ]; then echo "killed by $t, which hangs"; else echo "killed by $t$(grep -qaE 'a race |nobody has waited' "$log" && echo ', a race')"; fi
        return
    done
    echo SURVIVED
}
wanted() { # NUMBER
    if [ -n "${MUTANTS:-}" ]; then [[ " $MUTANTS " == *" $1 "* ]]; else [ $(($1 % ${EVERY:-1})) = 0 ]; fi
}
if [ -z "${MUTANTS:-}" ]; then
    for t in $(for f in $files; do tests_of "$f"; done | tr ' ' '\n' | sort -u); do
        run "$t" log || { echo "$t fails with nothing made wrong: see $tree/log"; exit 70; }
    done
fi
try() { # NUMBER FILE FUNCTION CLASS
    printf '%3d  %-26s %-28s %-10s %s\n' "$@" "$(DTRAIN_MUTANT=$1 verdict "$1" "$2" </dev/null)"
}
while read -r number place in class || { wait; false; }; do
    wanted "$number" || continue
    [ "$(jobs -rp | wc -l)" -lt "$jobs" ] || wait -n
    try "$number" "$place" "$in" "$class" &
done <list | tee table
survivors=$(grep -c 'SURVIVED$' table)
exit $((survivors < 255 ? survivors : 255))
