#!/bin/bash
# mutants_cuda.sh [FILE...] - mutation testing of the CUDA device: does a test on the simulator of CUDA fail if a line is wrong?
#
# In one build under build/mutants_cuda, one of these in cuda/ (or in FILE...) is changed if DTRAIN_MUTANT is its number:
#
#   barrier     __syncthreads, __syncwarp, copy_async_commit or copy_async_wait is skipped
#   shuffle     reads its own lane (__shfl_sync: the neighbouring lane)
#   mask        of a shuffle or vote: lane 0 is left out
#   copy        copy_async_16 and _8 copy what they should fill with zeros
#   guard       if (...) return; or continue; does not leave (except where it tests a template's constant)
#   accumulate  a sum that should be added to is overwritten, and the reverse
#   event       is not recorded, or no stream waits for it, or the host does not wait for the stream
#   kind        a copy is always from device to device
#   stride      rows are 8 elements further apart
#   fragment    a lane takes its neighbour's place in a fragment
#   reuse       the data of the next turn is stored where this turn reads
#
# For each number, the tests of that file's operations run until one fails, on the simulator and on its build that detects races. Prints one line
# for each: the test that kills it, or SURVIVED. MUTANTS="3 17": only these numbers; EVERY=10: every tenth; JOBS=8: 8 at a time (default: the number of cores).
#
# tests/mutants_cuda.csv has, for groups of files, the mutants, how many were killed, and why the others are equivalent: they change no result.
# The script prints each group in which more mutants survive. Exit status: the number of those.
set -u
cd "$(dirname "$0")/.." || exit 1
files=${*:-$(echo cuda/*.cu cuda/[^p]*.cuh cuda/p[^t]*.cuh cuda/cuda_device.c cuda/nccl.c)} # ptx.cuh has a twin
tree=build/mutants_cuda
known=$PWD/tests/mutants_cuda.csv
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
    */latent*) echo "cudasim:test_device_latent cudasim_races:test_device_latent" ;;
    */heads*) echo "cudasim:test_device_heads cudasim_races:test_device_heads" ;;
    */matmul_stored* | */stored*) echo "cudasim:test_device_scaled cudasim_races:test_device_scaled" ;;
    */matmul*) echo "cudasim:test_device_epilogue cudasim_races:test_device_epilogue cudasim:test_device_matmul" ;;
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
# One failing test is enough; later tests may wait for a lock that it held.
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
unexpected() { # TABLE KNOWN: groups with more survivors than are known to be equivalent; exit status: how many more
    awk 'NR == FNR { if ($NF == "SURVIVED") { sub(/.*\//, "", $2); survived[$2]++ } next }
         FNR > 1 { split($0, f, ","); n = split(f[1], file, " "); sum = 0
                   for (i = 1; i <= n; i++) { sum += survived[file[i]]; delete survived[file[i]] }
                   if (sum > f[2] - f[3]) { print f[1] ": " sum " survived, " f[2] - f[3] " are known to be equivalent"; more += sum - f[2] + f[3] } }
         END { for (i in survived) { print i ": " survived[i] " survived"; more += survived[i] }
               exit more < 255 ? more : 255 }' "$1" "$2"
}
unexpected table "$known"
