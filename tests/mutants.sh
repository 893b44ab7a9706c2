#!/bin/bash
# mutants.sh [FILE...] - is each wait and each copy needed, and would a test notice if it were gone? In one build under build/mutants every call
# of the functions below in src/ (or in FILE...), but for the devices' own, is left out when DTRAIN_MUTANT is its number. For each number the
# programs run on the queue device, as late as possible and in two random orders, until one fails. Prints a line a call: killed by which
# program, or SURVIVED. A program that takes 300 s counts as one that hangs, which on a busy machine it may not do. Exit status: how many
# survived. MUTANTS="3 17": those numbers alone, and no look at whether all tests pass with nothing left out.
set -u
cd "$(dirname "$0")/.." || exit 1
table='event_wait|event_sync|event_record|stream_sync|copy'
others='zero_copy|zero_compute_wait|zero_comm_after|zero_comm_after_compute|zero_compute_after_comm|wait_reduced|zero_send_down|zero_send_away|copy_up' # those that call them
others="$others|zero_wait_down|zero_offload_begin|zero_drain|zero_forget|zero_buffer_wait|wait_requests|write_what_came|zero_fetch_write"
others="$others|dt_swap_wait|dt_swap_read|dt_swap_write|dt_saver_hold"
others="$others|dt_zero_state_read|dt_zero_state_write|dt_zero_state_written|dt_zero_state_fetch|dt_span_wait|dt_span_to_device|dt_span_ahead|dt_span_to_host|dt_model_sync|copy_on|sync|sid_wait"
files=${*:-$(ls src/*/*.c | grep -v '^src/device/')}
programs='test_zero_overlap test_zero_streams test_model_step test_model_head test_model_stages test_model_decode test_model_graphs test_model_reference
 test_model_vision test_model_vision_units test_generate_vision test_generate test_beams test_timeline test_count mpi_comm mpi_zero mpi_zero_offload mpi_zero_fault mpi_run mpi_checkpoint mpi_checkpoint_async
 mpi_pretrained mpi_export mpi_generate mpi_task mpi_sid'
tree=build/mutants
export DTRAIN_DEVICE=queue TEST_RESULTS=/dev/null
. tests/environment.sh

rm -rf $tree/src $tree/tests $tree/include
mkdir -p $tree
git ls-files -z | xargs -0 cp --parents -t $tree
cd $tree || exit 1
cat >mutant.h <<'END'
#include <stdbool.h>
#include <stdlib.h>
static inline bool mutant(int number)
{
    const char *chosen = getenv("DTRAIN_MUTANT");
    return chosen && atoi(chosen) == number;
}
END
# f(...) becomes (mutant(N) ? DT_OK : f(...)), but not where f is defined. Prints "N FILE FUNCTION CALL" for each.
perl -0777 -i -ne '
    BEGIN { $names = shift; $n = 0 }
    my $text = $_;
    s{(?<!dt_err )((?:(?:[\w>-]+->)?\bops->)?\b(?:$names))(\((?:[^()]++|(?2))*\))}{
        my ($name, $call, $before) = ($1, $&, substr $text, 0, $-[0]);
        my ($in) = $before =~ /.*^\w[^\n;=]*?(\w+)\([^;{}]*\)\s*\{/ms;
        $name =~ s/.*->//;
        $n++;
        print STDERR "$n $ARGV $in $name\n";
        "(mutant($n) ? DT_OK : $call)"
    }ge;
    print' "(?<=ops->)(?:$table)|(?<![\w>.])(?:$others)" $files 2>list || exit 70
CPPFLAGS='-I. -include mutant.h' make -s BUILD=build/release $(for p in $programs; do echo build/release/tests/$p; done) >build.log 2>&1 ||
    { tail -5 build.log; exit 70; }

run() { # program, seed[, ranks]
    local launch=
    case $1 in mpi_*) launch="$MPIRUN -np ${3:-2}" ;; esac
    DTRAIN_QUEUE_SEED=$2 timeout 300 $launch build/release/tests/$1 >test.log 2>&1
}
verdict() { # file: prints who killed it
    local all=$programs
    case $1 in # the likeliest first
    src/comm/*) all="mpi_comm $programs" ;;
    src/sid/*) all="mpi_sid $programs" ;;
    src/zero/*) all="test_zero_overlap test_zero_streams mpi_zero_offload mpi_zero $programs" ;;
    src/model/vision.c | src/model/patches.c) all="test_model_vision test_model_vision_units $programs" ;;
    src/model/*) all="test_model_step $programs" ;;
    src/checkpoint/saver.c) all="mpi_checkpoint_async $programs" ;;
    src/checkpoint/*) all="mpi_checkpoint $programs" ;;
    src/task/* | src/train/*) all="mpi_run mpi_task $programs" ;;
    src/pretrained/*) all="mpi_pretrained mpi_export $programs" ;;
    esac
    for seed in 0 1 2; do
        for p in $all; do
            run $p $seed && continue
            [ $? = 124 ] && p="$p, which hangs"
            echo "killed by $p"
            return
        done
    done
    run mpi_comm 0 1 || { echo "killed by mpi_comm, on one rank"; return; }
    echo SURVIVED
}
[ -n "${MUTANTS:-}" ] || [ "$(verdict "")" = SURVIVED ] || { echo "a test fails with nothing left out: see $tree/test.log"; exit 70; }
survivors=0
while read -r number place in name; do
    [[ -z ${MUTANTS:-} || " $MUTANTS " == *" $number "* ]] || continue
    v=$(DTRAIN_MUTANT=$number verdict "$place" </dev/null)
    printf '%3d  %-24s %-28s %-24s %s\n' "$number" "$place" "$in" "$name" "$v"
    [ "$v" != SURVIVED ] || survivors=$((survivors + 1))
done <list
exit $survivors
