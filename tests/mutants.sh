#!/bin/bash
# mutants.sh [FILE...] - mutation testing of the host code: is each wait and each copy needed, and does a test fail without it?
#
# In one build under build/mutants, a call of one of the functions below in src/ (or in FILE...) is skipped if DTRAIN_MUTANT is its number. Devices are excluded.
# For each number the programs run on the queue device, as late as possible and in two random orders, until one fails. A program that takes 300 s counts as hanging.
# Prints one line for each call: the program that kills it, or SURVIVED.
#
# tests/mutants_host.csv has the verdicts of the last run: file, function, call, status, killed_by, note. Status:
#   killed       killed_by fails without the call. The script runs it first. An e2e script there was run by hand: this script does not run it
#   equivalent   no result depends on the call; the note says why
#   open         no test fails; either the call is not needed or a test is missing
# A run over all calls rewrites the file and keeps its notes. Exit status: the number of open mutants.
# MUTANTS="3 17": only these numbers, without a first run that leaves nothing out.
# TIER=quick: the programs run as `make test` runs them, on its devices and ranks. Prints how many of the known mutants it kills.
set -u
cd "$(dirname "$0")/.." || exit 1
table='event_wait|event_sync|event_record|stream_sync|copy'
others='zero_copy|zero_compute_wait|zero_comm_after|zero_comm_after_compute|zero_compute_after_comm|wait_reduced|zero_send_down|zero_send_away|copy_up' # those that call them
others="$others|zero_wait_down|zero_offload_begin|zero_drain|zero_forget|zero_buffer_wait|wait_requests|write_what_came|zero_fetch_write"
others="$others|dt_swap_wait|dt_swap_read|dt_swap_write|dt_saver_hold"
others="$others|dt_zero_state_read|dt_zero_state_write|dt_zero_state_written|dt_zero_state_fetch|dt_span_wait|dt_span_to_device|dt_span_ahead|dt_span_to_host|dt_model_sync|copy_on|sync|sid_wait"
files=${*:-$(git ls-files 'src/*.c' | grep -vE '^src/(device|backends|perfmodel|selfcheck)/')}
programs='test_zero_overlap test_zero_streams test_model_step test_model_head test_model_stages test_model_decode test_model_graphs test_model_reference
 test_model_vision test_model_vision_units test_generate_vision test_generate test_beams test_timeline test_count mpi_comm mpi_zero mpi_zero_offload mpi_zero_fault mpi_run mpi_checkpoint mpi_checkpoint_async
 mpi_pretrained mpi_export mpi_generate mpi_rollout mpi_task_values mpi_sid'
quick='' seeds='0 1 2'
[ "${TIER:-}" != quick ] || quick=yes seeds=0
unset TIER
tree=build/mutants
known=$PWD/tests/mutants_host.csv
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
CPPFLAGS='-I. -include mutant.h' make -s BUILD=build/release ${quick:+programs} $(for p in $programs; do echo build/release/tests/$p; done) >build.log 2>&1 ||
    { tail -5 build.log; exit 70; }

run() { # program, seed[, ranks]
    local launch=
    if [ -n "$quick" ]; then
        env -u DTRAIN_DEVICE TIER=quick BUILD=build/release TEST_TIMEOUT=300 tests/run.sh "$1.c" "$1.sh" >test.log 2>&1 || ! grep -q ' [1-9][0-9]* failed' test.log
        return
    fi
    case $1 in mpi_*) launch="$MPIRUN -np ${3:-2}" ;; esac
    DTRAIN_QUEUE_SEED=$2 timeout 300 $launch build/release/tests/$1 >test.log 2>&1
}
field() { sed -n 's/^[^,]*,[^,]*,[^,]*,//p' <<<"$1" | cut -d, -f"$2"; } # status, killed_by, note of a line of the file
verdict() { # file, known killer: prints the program that kills the mutant
    local all=$programs
    case $1 in # the likeliest first
    src/comm/*) all="mpi_comm $programs" ;;
    src/recommend/sid/*) all="mpi_sid $programs" ;;
    src/zero/*) all="test_zero_overlap test_zero_streams mpi_zero_offload mpi_zero $programs" ;;
    src/model/vision/vision.c | src/model/vision/patches.c) all="test_model_vision test_model_vision_units $programs" ;;
    src/model/*) all="test_model_step $programs" ;;
    src/checkpoint/save_async.c) all="mpi_checkpoint_async $programs" ;;
    src/checkpoint/*) all="mpi_checkpoint $programs" ;;
    src/task/* | src/train/*) all="mpi_run mpi_rollout $programs" ;;
    src/pretrained/*) all="mpi_pretrained mpi_export $programs" ;;
    esac
    [[ ${2:-} != test_* && ${2:-} != mpi_* && -z $quick ]] || all="${2:-} $all"
    for seed in $seeds; do
        for p in $all; do
            run $p $seed && continue
            [ $? = 124 ] && p="$p, which hangs"
            echo "killed by $p"
            return
        done
    done
    [ -n "$quick" ] || run mpi_comm 0 1 || { echo "killed by mpi_comm, on one rank"; return; }
    echo SURVIVED
}
[ -n "${MUTANTS:-}" ] || [ "$(verdict "")" = SURVIVED ] || { echo "a test fails with nothing left out: see $tree/test.log"; exit 70; }
survivors=0 kills=0 lost=0
declare -A seen
head -1 "$known" >verdicts.csv
while read -r number place in name; do
    call="$place,$in,$name"
    seen[$call]=$((${seen[$call]:-0} + 1))
    [[ -z ${MUTANTS:-} || " $MUTANTS " == *" $number "* ]] || continue
    line=$(grep -F "$call," "$known" | sed -n "${seen[$call]}p") # a function may have several of the same calls
    killer=$(field "$line" 2)
    [[ -z $quick || $line == *,killed,* ]] || continue
    v=$(DTRAIN_MUTANT=$number verdict "$place" "$killer" </dev/null)
    case $v in
    killed*)
        kills=$((kills + 1))
        note=$(sed -n 's/^[^,]*, *\(which \)\{0,1\}\(.*\)/"\2"/p' <<<"$v")
        line="$call,killed,$(sed 's/killed by //; s/,.*//' <<<"$v"),$note" ;;
    *)
        lost=$((lost + 1))
        [[ $line == *,equivalent,* || ($line == *,killed,* && $killer == e2e_*) ]] || { line="$call,open,,\"no program kills it\"" survivors=$((survivors + 1)); }
        v="SURVIVED: $(field "$line" 1) $(field "$line" 2-)" ;;
    esac
    echo "$line" >>verdicts.csv
    printf '%3d  %-24s %-28s %-24s %s\n' "$number" "$place" "$in" "$name" "$v"
done <list
if [ -n "$quick" ]; then echo "make test kills $kills of the $((kills + lost)) mutants that the full tests kill"; exit; fi
[ -n "${MUTANTS:-}${1:-}" ] || cp verdicts.csv "$known"
exit $((survivors < 255 ? survivors : 255))
